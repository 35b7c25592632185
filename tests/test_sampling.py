"""Drawing from a trained model: what comes out, what it costs to be wrong, and that nothing ahead is read."""

import json
from pathlib import Path

import pytest
import torch
from conftest import Called
from torch import nn

from lrbench import sampling

RUN = ("run", "-m", "full", "-t", "copy", "--preset", "tiny", "--steps", 2, "--threads", 1, "--quiet", "--json")


class Counter(nn.Module):
    """Says with certainty one more than the token before, beginning with 5."""

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        before = torch.cat([torch.full_like(tokens[:, :1], 4), tokens[:, :-1]], 1)
        return 1e4 * nn.functional.one_hot((before + 1) % 256, 256).float()


def test_each_token_follows_from_those_before() -> None:
    assert sampling.draw(Counter(), 6, 2, seed=0, device="cpu").tolist() == [[5, 6, 7, 8, 9, 10]] * 2


def test_draws_follow_the_distribution_and_the_seed() -> None:
    class Coin(nn.Module):
        def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return torch.log(torch.tensor([0.2, 0.8])).expand(*tokens.shape, -1)

    found, again, other = (sampling.draw(Coin(), 5, 400, seed, "cpu") for seed in (1, 1, 2))
    assert float(found.double().mean()) == pytest.approx(0.8, abs=0.03)
    assert torch.equal(found, again) and not torch.equal(found, other)


def test_a_run_is_sampled_as_text(call: Called, tmp_path: Path) -> None:
    assert call(*RUN, "--out", tmp_path, "--keep-checkpoint")[0] == 0
    (record,) = tmp_path.rglob("record.json")
    code, out, err = call("sample", record.parent, "-n", 3, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert len(found["samples"]) == 3 and all(found["samples"])


def test_a_run_without_weights_says_how_to_keep_them(call: Called, tmp_path: Path) -> None:
    assert call(*RUN, "--out", tmp_path)[0] == 0
    (record,) = tmp_path.rglob("record.json")
    code, _, err = call("sample", record.parent)
    assert code == 3 and "--keep-checkpoint" in err


def test_what_is_no_run_is_refused(call: Called, tmp_path: Path) -> None:
    code, _, err = call("sample", tmp_path)
    assert code == 2 and "no finished run" in err


def test_a_classifier_has_nothing_to_draw(call: Called, tmp_path: Path) -> None:
    arguments = ["listops" if each == "copy" else each for each in RUN]
    assert call(*arguments, "--out", tmp_path, "--keep-checkpoint")[0] == 0
    (record,) = tmp_path.rglob("record.json")
    code, _, err = call("sample", record.parent)
    assert code == 2 and "predicts no tokens" in err

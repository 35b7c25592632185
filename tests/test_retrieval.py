"""The retrieval task: pairs, two towers with one encoder, files without quoting."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import changed
from task_helpers import GENUINE, genuine, model_of, request_for, run_tiny

from lrbench import catalog, plan
from lrbench.errors import LrbenchError, Missing, SpecError
from lrbench.loaders import baselines, retrieval, retrieval_standin
from lrbench.loaders.blocks import BlockSplit
from lrbench.loaders.bytetokens import block, decode
from lrbench.loaders.retrieval_files import MOST, row
from lrbench.models.heads import Matcher, concatenated, four_features
from lrbench.specs import Grid
from lrbench.train.batches import collate

SMALL = request_for("retrieval", "tiny", length=64, examples=(9, 9, 9))
ROWS = [b"1.0\tA1\tA2\tfirst\tsecond", b"0.0\tA3\tA4\tb'third'\tb\"it's\""]


def write(folder: Path, **changes: bytes) -> Path:
    """Two pairs a file, or what is given for it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "eval", "test"):
        content = changes.get(name, b"\n".join([*ROWS, b"1.0\tB1\tB2\t" + name.encode() + b"\tx"]))
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes(content)
    return folder


class TestRows:
    @pytest.mark.parametrize(
        ("line", "texts", "label"),
        [
            (ROWS[0], (b"first", b"second"), 1),
            (ROWS[1], (b"third", b"it's"), 0),
            (b"0\ta\tb\tb'\\xe2\\x82\\xac\\n'\tb'x\\ty'", ("€\n".encode(), b"x\ty"), 0),
            ("1\ta\tb\té\t€".encode(), ("é".encode(), "€".encode()), 1),
            (b'1.0\ta\tb\tsay "when\t"', (b'say "when', b'"'), 1),
            (b"1.0\ta\tb\tb'open\tx", (b"b'open", b"x"), 1),
        ],
    )
    def test_both_forms_of_text_and_lone_quotation_marks(self, line: bytes, texts: tuple, label: int) -> None:
        assert row(line, "here") == (texts, label)

    def test_only_the_first_ten_thousand_bytes_count(self) -> None:
        (first, second), _ = row(b"1.0\ta\tb\t" + b"x" * 20_000 + b"\tb'" + b"\\n" * 20_000 + b"'", "here")
        assert len(first) == len(second) == MOST == 10_000

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"1.0\ta\tb\tx", "4 columns in place of 5"),
            (b"1.0\ta\tb\tx\ty\tz", "6 columns in place of 5"),
            (b"", "1 columns in place of 5"),
            (b"2.0\ta\tb\tx\ty", "the label '2.0' is not"),
            (b"nan\ta\tb\tx\ty", "the label 'nan' is not"),
            (b"1.0\ta\tb\t\ty", "column 4 is empty"),
            (b"1.0\ta\tb\tx\tb''", "column 5 is empty"),
            (b"1.0\ta\tb\tx\0\ty", "column 4 holds a NUL byte"),
            (b"1.0\ta\tb\tx\ty\xff", "column 5 is not valid UTF-8 at byte 1"),
            (b"1.0\ta\tb\tx\tb'\\xzz'", "column 5 begins like escaped bytes"),
            (b"1.0\ta\tb\tx\tb'a' + f('b') + b'c'", "column 5 begins like escaped bytes"),
        ],
    )
    def test_faults_name_file_and_line(self, line: bytes, message: str, tmp_path: Path) -> None:
        folder = write(tmp_path / "data", eval=ROWS[0] + b"\n" + line + b"\n")
        refuses(folder, tmp_path, rf"new_aan_pairs\.eval\.tsv:2: {message}")


class TestFiles:
    def test_every_line_is_a_pair(self, tmp_path: Path) -> None:
        quotes = b"\n".join([b'1.0\ta\tb\tan "open quote\tx', b"0.0\tc\td\ty\tz", b'1.0\te\tf\t"\tw"'])
        request = replace(SMALL, source=str(write(tmp_path / "data", test=quotes)))
        data = retrieval.load(request, tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [3, 3, 3]
        assert [decode(view) for view in data.test[0].views] == [b'an "open quote', b"x"]
        assert data.test.labels.tolist() == [1, 0, 1]

    def test_which_form_was_met_is_said(self, tmp_path: Path) -> None:
        escaped = write(tmp_path / "data", train=ROWS[1])
        notes = retrieval.load(replace(SMALL, source=str(escaped)), tmp_path / "cache").notes
        assert "escaped bytes, b'...', in new_aan_pairs.train.tsv" in " ".join(notes)

    def test_the_preset_bounds_what_is_taken(self, tmp_path: Path) -> None:
        source = str(write(tmp_path / "data"))
        data = retrieval.load(replace(SMALL, source=source, examples=(2, 0, 1)), tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [2, 0, 1]

    def test_empty_and_missing_files_are_named(self, tmp_path: Path) -> None:
        refuses(write(tmp_path / "data", train=b""), tmp_path, r"new_aan_pairs\.train\.tsv holds no pairs")
        (tmp_path / "data" / "new_aan_pairs.test.tsv").unlink()
        with pytest.raises(Missing, match="new_aan_pairs.test.tsv is missing"):
            retrieval.load(replace(SMALL, source=str(tmp_path / "data")), tmp_path / "cache")
        with pytest.raises(Missing, match="no pairs of papers in .*nowhere"):
            retrieval.load(replace(SMALL, source=str(tmp_path / "nowhere")), tmp_path / "cache")

    @genuine("aan")
    def test_genuine_pairs(self, tmp_path: Path) -> None:
        request = request_for("retrieval", "paper", source=str(GENUINE / "aan"))
        data = retrieval.load(request, tmp_path)
        assert [len(split) for split in data.splits.values()] == [400, 80, 80]
        assert all(check.ok for check in retrieval.verify(data, request))
        sizes = {len(view) for index in range(400) for view in data.train[index].views}
        assert max(sizes) == 4000 and min(sizes) < 4000
        assert b"\\n" not in decode(data.train[0].views[0]) and b"\n" in decode(data.train[0].views[0])

    def test_offline_names_the_command_that_brings_it(self, tmp_path: Path) -> None:
        with pytest.raises(Missing, match="OpenNLPLab/lra") as caught:
            retrieval.load(request_for("retrieval", "paper", offline=True), tmp_path)
        assert "lrbench data prepare retrieval --data hub" in caught.value.hint

    def test_the_hubs_files_are_read_by_the_same_reader(self, tmp_path: Path, monkeypatch) -> None:
        import datasets

        folder, asked = write(tmp_path / "aan"), []

        def download(self: object, url: str) -> str:
            asked.append(url)
            return str(folder / url.rsplit("/", 1)[1])

        monkeypatch.setattr(datasets.DownloadManager, "download", download)
        data = retrieval.load(replace(SMALL, source="hub"), tmp_path / "cache")
        revision = SMALL.hub.revision
        assert asked[0] == f"hf://datasets/OpenNLPLab/lra@{revision}/aan/new_aan_pairs.train.tsv"
        assert data.source == "hub" and len(data.test) == 3 and f"revision {revision}" in data.notes[0]


class TestModel:
    def test_features_are_those_of_the_paper_in_its_order(self) -> None:
        first, second = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -5.0]])
        assert four_features(first, second).tolist() == [[1, 2, 3, -5, 3, -10, -2, 7]]
        assert concatenated(first, second).tolist() == [[1, 2, 3, -5]]

    def test_views_are_neighbouring_rows(self) -> None:
        pairs = BlockSplit([block([((b"ab", b"c"), 1), ((b"d", b"efg"), 0)], 10, views=2)])
        batch = collate(pairs, [0, 1], "match")
        assert batch.tokens.tolist() == [[98, 99, 0], [100, 0, 0], [101, 0, 0], [102, 103, 104]]
        assert batch.targets.tolist() == [1, 0] and batch.real_tokens == 7
        assert batch.mask is not None and batch.mask.sum() == 7

    def test_both_documents_pass_the_same_encoder_and_neither_sees_the_other(self) -> None:
        torch.manual_seed(0)
        model = model_of("retrieval", "tiny").eval()
        assert isinstance(model, Matcher) and model.head[0].in_features == 4 * 32
        tokens = torch.randint(1, 257, (4, 20))
        seen = []
        model.encoder.register_forward_hook(lambda module, given, found: seen.append(found))
        logits = model(tokens)
        assert logits.shape == (2, 2)
        other = tokens.clone()
        other[1] = torch.randint(1, 257, (20,))
        changed_logits = model(other)
        assert torch.equal(seen[0][0], seen[1][0]) and not torch.equal(seen[0][1], seen[1][1])
        assert torch.equal(logits[1], changed_logits[1]) and not torch.equal(logits[0], changed_logits[0])

    @pytest.mark.parametrize("view", [0, 1])
    def test_either_document_teaches_the_same_weights(self, view: int) -> None:
        torch.manual_seed(0)
        model = model_of("retrieval", "tiny").eval()
        tokens = torch.full((2, 5), 7)
        tokens[view] = 9
        model(tokens)[0, 0].backward()
        assert model.encoder.embedding.weight.grad[9].abs().sum() > 0

    def test_padding_changes_no_answer(self) -> None:
        torch.manual_seed(0)
        model = model_of("retrieval", "tiny").eval()
        tokens = torch.randint(1, 257, (2, 30))
        padded = torch.nn.functional.pad(tokens, (0, 50))
        assert torch.allclose(model(tokens), model(padded, torch.arange(80).expand(2, -1) < 30), atol=1e-5)

    def test_parameters_of_the_released_head_are_those_published(self) -> None:
        assert sum(p.numel() for p in model_of("retrieval", "paper", head="concat").parameters()) == 1_087_618
        assert (
            sum(p.numel() for p in model_of("retrieval", "paper").parameters()) == 1_087_618 + 262_656 + 1_026 - 263_426
        )

    def test_the_head_is_a_setting_of_pairs_only(self) -> None:
        with pytest.raises(SpecError, match="model.head concat: text has one document"):
            model_of("text", "tiny", head="concat")
        card = catalog.task("retrieval")
        grid = Grid(models=["full"], tasks=["retrieval"], preset="tiny", set={"model.head": "concat"})
        assert plan.resolve(card, grid).model.head == "concat"

    def test_a_card_of_the_wrong_kind_is_refused(self, toy_spec, tmp_path: Path) -> None:
        from lrbench.taskdata import TaskSource

        pairs = toy_spec.task.model_copy(update={"kind": "match"})
        with pytest.raises(SpecError, match="kind match takes 2 views, the loader gives 1"):
            TaskSource(pairs, toy_spec.data, tmp_path).load()

    def test_a_pass_holds_both_views(self, toy_spec, tmp_path: Path, monkeypatch) -> None:
        """The most tokens of a pass count rows, not pairs."""
        from accelerate.state import AcceleratorState

        from lrbench.taskdata import TaskSource
        from lrbench.train import loop

        AcceleratorState._reset_state(reset_partial_state=True)
        (cell,) = plan.cells(Grid(models=["full"], tasks=["retrieval"], preset="tiny", device="cpu"), tmp_path)
        spec = changed(cell.spec, train={"steps": 2, "micro_tokens": 1024})
        data = TaskSource(spec.task, spec.data, tmp_path / "cache").load()
        sizes = []
        real = loop.collate
        monkeypatch.setattr(loop, "collate", lambda *args: sizes.append(b := real(*args)) or b)
        model = model_of("retrieval", "tiny")
        loop.Trainer(model, data, spec, tmp_path, loop.accelerator(spec)).fit()
        assert max(batch.tokens.numel() for batch in sizes) <= 1024
        assert max(len(batch.targets) for batch in sizes) == 2


class TestStandIn:
    def test_it_says_what_it_is_and_holds_up(self, tmp_path: Path) -> None:
        request = request_for("retrieval", "tiny", length=512, examples=(1000, 100, 400))
        data = retrieval.load(request, tmp_path)
        assert data.source == "stand-in" and "stand-in" in data.notes[0]
        assert all(check.ok for check in retrieval.verify(data, request))
        assert data.baselines["bag of bytes"] < 0.65 and data.baselines["majority"] == 0.5
        assert data.fingerprint == retrieval.load(request, tmp_path / "again").fingerprint
        assert data.fingerprint != retrieval.load(replace(request, seed=1), tmp_path).fingerprint

    def test_a_shared_subject_is_the_label_and_lies_within_what_is_read(self, tmp_path: Path) -> None:
        data = retrieval.load(request_for("retrieval", "tiny", length=256, examples=(200, 10, 10)), tmp_path)
        for index in range(200):
            views, label = data.train[index]
            subjects = [decode(view).split(b"This paper is about ")[1].split(b".")[0].decode() for view in views]
            assert set(subjects) <= set(retrieval_standin.SUBJECTS)
            assert (subjects[0] == subjects[1]) == label

    def test_lengths_alone_say_nothing(self, tmp_path: Path) -> None:
        data = retrieval.load(request_for("retrieval", "tiny", length=256, examples=(1000, 10, 500)), tmp_path)
        clues = [lambda example, view=view: float(len(example.views[view])) for view in (0, 1)]
        assert abs(baselines.binned(data.train, data.test, *clues) - 0.5) < 4 * 0.5 / 500**0.5


def test_a_tiny_run_from_the_command_line(tmp_path: Path) -> None:
    record = run_tiny("retrieval", tmp_path)
    assert record["status"] == "ok" and record["data"]["source"] == "stand-in"
    assert record["metrics"]["test"]["examples"] == 64
    assert set(record["baselines"]) == {"majority", "bag of bytes"} and np.isfinite(record["metrics"]["test"]["loss"])


def refuses(folder: Path, tmp_path: Path, message: str) -> None:
    """One line, and nothing in the cache."""
    with pytest.raises(LrbenchError, match=message) as caught:
        retrieval.load(replace(SMALL, source=str(folder)), tmp_path / "other")
    assert isinstance(caught.value, SpecError) and "\n" not in caught.value.message
    assert not list((tmp_path / "other").rglob("*.arrow"))

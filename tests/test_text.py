"""The text task: bytes, cuts, files, and what must not leak."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import Called, changed
from task_helpers import GENUINE, genuine, model_of, request_for, run_tiny

from lrbench import catalog
from lrbench.errors import LrbenchError, Missing, SpecError
from lrbench.loaders import baselines, hub, text
from lrbench.loaders.blocks import BlockSplit
from lrbench.loaders.bytetokens import block, decode, encode
from lrbench.loaders.holdout import hold_out
from lrbench.loaders.streams import Stream
from lrbench.specs import RunSpec
from lrbench.train.batches import collate

SMALL = request_for("text", "tiny", length=64, examples=(40, 10, 20))


def write(folder: Path, **changes: list[dict[str, object]]) -> Path:
    """Ten reviews a split, sorted by label as in the original, or what is given for it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        split: [{"text": f"{split} review {index}", "label": int(index >= 10)} for index in range(20)]
        for split in ("train", "test")
    }
    for split, given in {**rows, **changes}.items():
        pq.write_table(pa.Table.from_pylist(given), folder / f"{split}-00000-of-00001.parquet")
    return folder


class TestBytes:
    @pytest.mark.parametrize(("given", "ids"), [("A\n", [66, 11]), ("é", [196, 170]), ("€", [227, 131, 173])])
    def test_the_published_examples(self, given: str, ids: list[int]) -> None:
        assert encode(given.encode(), 100).tolist() == ids

    def test_every_byte_has_its_id_and_none_that_of_padding(self) -> None:
        ids = encode(bytes(range(256)), 1000)
        assert ids.tolist() == list(range(1, 257)) and decode(ids) == bytes(range(256))
        assert catalog.task("text").vocabulary == 257 == model_of("text", "tiny").encoder.embedding.num_embeddings

    def test_the_first_bytes_are_kept_and_a_character_may_be_cut(self) -> None:
        assert decode(encode(b"<" + b"x" * 9 + b">", 10)) == b"<" + b"x" * 9
        assert encode("aé".encode(), 2).tolist() == [98, 196]

    def test_padding_stands_on_the_right_and_is_masked(self) -> None:
        batch = collate(BlockSplit([block([((b"abc",), 1), ((b"a",), 0)], 10)]), [0, 1])
        assert batch.tokens.tolist() == [[98, 99, 100], [98, 0, 0]]
        assert batch.mask is not None and batch.mask.tolist() == [[True] * 3, [True, False, False]]

    def test_padding_changes_no_answer_and_gets_no_gradient(self) -> None:
        torch.manual_seed(0)
        model = model_of("text", "tiny").eval()
        tokens = torch.randint(1, 257, (1, 30))
        mask = torch.arange(80)[None] < 30
        alone = model(tokens)
        padded = model(torch.nn.functional.pad(tokens, (0, 50)), mask)
        assert torch.allclose(alone, padded, atol=1e-5)
        padded.sum().backward()
        gradient = model.encoder.embedding.weight.grad
        assert (gradient[0] == 0).all() and gradient[1:].abs().sum() > 0


def test_the_paper_preset_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in model_of("text", "paper").parameters()) == 3_486_722


class TestHoldOut:
    def test_it_is_a_partition_in_proportion_and_always_the_same(self) -> None:
        labels = np.repeat([0, 1], [300, 700])
        keys = [str(index).encode() for index in range(1000)]
        stay, held = hold_out(keys, labels)
        assert sorted([*stay, *held]) == list(range(1000))
        assert np.bincount(labels[held]).tolist() == [30, 70]
        assert (hold_out(keys, labels)[1] == held).all()
        assert 0.2 < (labels[stay][:200] == 0).mean() < 0.4  # not sorted any more

    def test_copies_stay_together(self) -> None:
        keys = [str(index // 2).encode() for index in range(200)]
        stay, held = hold_out(keys, np.zeros(200, np.int64))
        assert len(held) == 20 and not {keys[i] for i in stay} & {keys[i] for i in held}

    def test_nothing_is_held_out_where_nothing_is_asked(self) -> None:
        stay, held = hold_out([b"a", b"b"], np.array([0, 1]), 0.0)
        assert len(stay) == 2 and not len(held)


class TestFiles:
    @pytest.mark.parametrize("inner", ["", "plain_text"])
    def test_parquet_is_read(self, inner: str, tmp_path: Path) -> None:
        write(tmp_path / "data" / inner)
        data = text.load(replace(SMALL, source=str(tmp_path / "data")), tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [18, 2, 20] and data.source == "local"
        texts = {decode(split[i].views[0]).decode() for split in data.splits.values() for i in range(len(split))}
        assert len(texts) == 40 and "train review 0" in texts
        assert sorted(data.validation.labels) == [0, 1] and sorted(data.test.labels) == [0] * 10 + [1] * 10

    def test_the_preset_bounds_what_is_taken(self, tmp_path: Path) -> None:
        source = str(write(tmp_path / "data"))
        data = text.load(replace(SMALL, source=source, examples=(5, 1, 8)), tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [5, 1, 8]
        assert set(data.train.labels) == set(data.test.labels) == {0, 1}

    def test_without_validation_all_of_train_is_taken(self, tmp_path: Path) -> None:
        source = str(write(tmp_path / "data"))
        request = replace(SMALL, source=source, examples=(40, 0, 20))
        data = text.load(request, tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [20, 0, 20]
        assert all(check.ok for check in text.verify(data, request))
        few = text.load(replace(request, limit=3), tmp_path / "cache")
        assert [len(split) for split in few.splits.values()] == [3, 0, 3]

    def test_copies_in_train_and_test_are_said(self, tmp_path: Path) -> None:
        both = [{"text": f"train review {index}", "label": int(index >= 10)} for index in range(20)]
        request = replace(SMALL, source=str(write(tmp_path / "data", test=both)))
        data = text.load(request, tmp_path / "cache")
        assert any("18 inputs are in both train and test" in note for note in data.notes)
        assert all(check.ok for check in text.verify(data, request))

    def test_verify_finds_a_validation_split_that_is_test(self, tmp_path: Path) -> None:
        request = replace(SMALL, source=str(write(tmp_path / "data")))
        data = text.load(request, tmp_path / "cache")
        wrong = text.verify(replace(data, validation=data.train), request)
        assert {check.name for check in wrong if not check.ok} == {"fingerprint", "duplicates"}
        wrong = text.verify(replace(data, test=BlockSplit([block([((b"a",), 0), ((b"b",), 0)] * 400, 9)])), request)
        assert {check.name for check in wrong if not check.ok} == {"fingerprint", "balance test"}

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([{"text": "a", "label": 0}, {"text": "b", "label": -1}], "row 1: the label is -1"),
            ([{"text": "a", "label": 2}], "row 0: the label is 2"),
            ([{"text": "a", "label": "1"}], "'label' holds string, not whole numbers"),
            ([{"text": 3, "label": 1}], "'text' holds int64, not text"),
            ([{"text": "a", "stars": 1}], "column 'label' is missing"),
            ([{"text": None, "label": 1}, {"text": "a", "label": 1}], "row 0: text is missing"),
            ([{"text": "", "label": 1}], "row 0: the review is empty"),
        ],
    )
    def test_faults_name_file_and_row(self, rows: list, message: str, tmp_path: Path) -> None:
        source = str(write(tmp_path / "data", test=rows))
        refuses(source, tmp_path, f"test-00000-of-00001.parquet: .*{message}|test-00000-of-00001.parquet: {message}")

    def test_a_truncated_file_is_named(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "data")
        file = folder / "train-00000-of-00001.parquet"
        file.write_bytes(file.read_bytes()[:-50])
        refuses(str(folder), tmp_path, "train-00000-of-00001.parquet: no whole Parquet file")

    def test_missing_files_name_the_folder(self, tmp_path: Path) -> None:
        with pytest.raises(Missing, match="no reviews in .*nowhere"):
            text.load(replace(SMALL, source=str(tmp_path / "nowhere")), tmp_path / "cache")

    def test_folders_are_read_and_an_invalid_byte_is_named(self, tmp_path: Path) -> None:
        for split in ("train", "test"):
            for name in ("pos", "neg"):
                (tmp_path / "aclImdb" / split / name).mkdir(parents=True)
                for index in range(10):
                    (tmp_path / "aclImdb" / split / name / f"{index}_7.txt").write_text(f"{name} {split} é {index}")
        data = text.load(replace(SMALL, source=str(tmp_path)), tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [18, 2, 20]
        assert all((b"pos" in decode(data.test[i].views[0])) == data.test.labels[i] for i in range(20))
        (tmp_path / "aclImdb" / "test" / "neg" / "3_7.txt").write_bytes(b"ab\xff")
        refuses(str(tmp_path), tmp_path, "3_7.txt: not valid UTF-8 at byte 2")

    @genuine("imdb")
    def test_genuine_reviews(self, tmp_path: Path) -> None:
        request = replace(request_for("text", "paper"), source=str(GENUINE / "imdb"), examples=(25000, 2500, 25000))
        data = text.load(request, tmp_path)
        assert [len(split) for split in data.splits.values()] == [1800, 200, 1000]
        assert all(check.ok for check in text.verify(data, request))
        whole = text.load(replace(request, examples=(25000, 0, 25000)), tmp_path)
        assert [len(split) for split in whole.splits.values()] == [2000, 0, 1000]
        folders = text.load(replace(request, source=str(GENUINE / "imdb" / "aclImdb")), tmp_path)
        assert [len(split) for split in folders.splits.values()] == [180, 20, 100]
        train = {data.train[i].views[0].tobytes() for i in range(1800)} | {
            data.validation[i].views[0].tobytes() for i in range(200)
        }
        some = [folders.train[i].views[0].tobytes() for i in range(180)]
        assert sum(each in train for each in some) == 180  # the same reviews, byte for byte


class TestHub:
    def test_offline_names_the_command_that_brings_it(self, tmp_path: Path) -> None:
        with pytest.raises(Missing, match="stanfordnlp/imdb") as caught:
            text.load(request_for("text", "paper", offline=True), tmp_path)
        assert "lrbench data prepare text --data hub" in caught.value.hint and caught.value.exit_code == 3
        assert not list(tmp_path.rglob("*.arrow"))

    def test_the_pinned_revision_is_asked_for_once(self, tmp_path: Path, monkeypatch) -> None:
        import datasets

        asked = []

        def load_dataset(name: str, config: str, *, split: str, revision: str) -> datasets.Dataset:
            asked.append((name, config, split, revision))
            rows = [{"text": f"{split} {index}", "label": index % 2} for index in range(20)]
            return datasets.Dataset.from_list(rows)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        request = replace(SMALL, source="hub")
        data = text.load(request, tmp_path)
        assert data.source == "hub" and "e6281661ce1c48d982bc483cf8a173c1bbeb5d31" in data.notes[0]
        assert {revision for *_, revision in asked} == {"e6281661ce1c48d982bc483cf8a173c1bbeb5d31"}
        again = text.load(replace(request, offline=True), tmp_path)  # from the cache
        assert again.fingerprint == data.fingerprint and len(asked) == 2

    def test_a_failing_network_is_missing_data(self, tmp_path: Path, monkeypatch) -> None:
        import datasets

        def load_dataset(*args: object, **words: object) -> None:
            raise ConnectionError("no route\nto host")

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        with pytest.raises(Missing, match="ConnectionError: no route$"):
            text.load(replace(SMALL, source="hub"), tmp_path)

    def test_a_card_without_a_data_set_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="names no data set"):
            hub.table(replace(SMALL, hub=None), "train")


class TestStandIn:
    def test_it_says_what_it_is_and_holds_up(self, tmp_path: Path) -> None:
        request = request_for("text", "tiny", length=1024, examples=(600, 100, 200))
        data = text.load(request, tmp_path)
        assert data.source == "stand-in" and "stand-in" in data.notes[0]
        assert all(check.ok for check in text.verify(data, request))
        assert 0.55 < data.baselines["bag of bytes"] < 1.0 and data.baselines["majority"] == 0.5
        assert data.fingerprint == text.load(request, tmp_path / "again").fingerprint
        assert data.fingerprint != text.load(replace(request, seed=1), tmp_path).fingerprint
        texts = b" ".join(decode(data.train[i].views[0]) for i in range(100))
        assert b"<br />" in texts and "é".encode() in texts

    def test_length_alone_says_nothing(self, tmp_path: Path) -> None:
        data = text.load(request_for("text", "tiny", length=4000, examples=(2000, 10, 1000)), tmp_path)
        score = baselines.binned(data.train, data.test, lambda example: float(len(example.views[0])))
        assert abs(score - 0.5) < 4 * 0.5 / 1000**0.5

    def test_generated_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="generated"):
            text.load(replace(SMALL, source="generated"), tmp_path)


class TestBaselines:
    def test_a_linear_rule_finds_what_is_linear_and_nothing_in_noise(self) -> None:
        random = Stream(5)
        labels = random.below(2, 400)
        rows = [((b"ab" * 20 + (b"z" if label else b"y") * 3,), label) for label in labels.tolist()]
        noise = [((bytes(random.below(256, 50).tolist()),), label) for label in random.below(2, 1000).tolist()]
        clear, blank = BlockSplit([block(rows, 99)]), BlockSplit([block(noise, 99)])
        assert baselines.linear(clear, clear, baselines.bag_of_bytes) == 1.0
        train, test = BlockSplit([block(noise[:500], 99)]), BlockSplit([block(noise[500:], 99)])
        assert abs(baselines.linear(train, test, baselines.bag_of_bytes) - 0.5) < 0.09
        assert baselines.majority(clear, blank) == pytest.approx((blank.labels == np.bincount(labels).argmax()).mean())


def test_without_validation_the_last_step_counts(toy_spec: RunSpec, toy_data, tmp_path: Path) -> None:
    from accelerate.state import AcceleratorState
    from test_train import model_for, trainer_for

    AcceleratorState._reset_state(reset_partial_state=True)
    none = replace(toy_data, validation=type(toy_data.train)([]))
    spec = changed(toy_spec, train={"steps": 6})
    trainer = trainer_for(spec, none, tmp_path / "run", model_for(spec))
    metrics = trainer.fit().metrics
    assert metrics.validation is None and metrics.test == metrics.test_last and metrics.test.step == 6
    assert any("the last step counts" in note for note in trainer.notes)


def test_a_tiny_run_from_the_command_line(tmp_path: Path) -> None:
    record = run_tiny("text", tmp_path)
    assert record["status"] == "ok" and record["data"]["source"] == "stand-in"
    assert set(record["baselines"]) == {"majority", "bag of bytes"}


def refuses(source: str, tmp_path: Path, message: str) -> None:
    """One line, and nothing in the cache."""
    with pytest.raises(LrbenchError, match=message) as caught:
        text.load(replace(SMALL, source=source), tmp_path / "other")
    assert isinstance(caught.value, SpecError) and "\n" not in caught.value.message
    assert not list((tmp_path / "other").rglob("*.arrow"))


def test_a_download_is_announced_with_its_size(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def builder(name: str, config: str | None, revision: str | None) -> SimpleNamespace:
        asked.append((name, config, revision))
        return SimpleNamespace(info=SimpleNamespace(download_size=84_000_000))

    monkeypatch.setattr("datasets.load_dataset_builder", builder)
    monkeypatch.setattr("datasets.load_dataset", _no_network)
    code, out, err = call("data", "prepare", "text", "--data", "hub", "--preset", "tiny")
    assert code == 3 and "text: a download of 84 MB" in err and asked[0][0] == "stanfordnlp/imdb"
    monkeypatch.setattr("datasets.load_dataset_builder", _no_network)
    _, _, err = call("data", "prepare", "text", "--data", "hub", "--preset", "tiny")
    assert "of a size that the hub does not state" in err


def _no_network(*given: object, **named: object) -> None:
    raise ConnectionError("no network")

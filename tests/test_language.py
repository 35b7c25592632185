"""Language modelling: cuts to the byte, windows, words, masks, and files that are not what they should be."""

import gzip
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Called
from task_helpers import GENUINE, genuine, request_for, run_tiny

from lrbench.errors import Missing, SpecError
from lrbench.loaders import hub, language, markov, masked, texts, topics, words
from lrbench.loaders.base import Split
from lrbench.loaders.windows import blocks, windows

SMALL = {"length": 8, "examples": (1000, 100, 100)}


def text_of(split: Split) -> bytes:
    """What is scored of a split, in order."""
    rows = [split[index] for index in range(len(split))]
    return b"".join(row.views[0][row.label :].astype(np.uint8).tobytes() for row in rows)


def request(source: Path | str, task: str = "enwik8", **changes: object) -> object:
    return request_for(task, "tiny", source=str(source), **{**SMALL, **changes})


class TestCut:
    def test_of_a_hundred_million_bytes_ninety_five_five(self) -> None:
        assert texts.bounds(10**8) == (90_000_000, 95_000_000)

    def test_a_file_is_cut_by_bytes_not_by_lines_or_characters(self, tmp_path: Path) -> None:
        content = ("é\n" * 100).encode()[:200]
        (tmp_path / "enwik8").write_bytes(content)
        data = language.load(request(tmp_path), tmp_path / "cache")
        assert [len(text_of(split)) for split in data.splits.values()] == [180, 10, 10]
        assert b"".join(map(text_of, data.splits.values())) == content

    @genuine("enwik8")
    def test_genuine_bytes_come_back(self, tmp_path: Path) -> None:
        data = language.load(request_for("enwik8", "paper", source=str(GENUINE / "enwik8")), tmp_path)
        content = (GENUINE / "enwik8" / "enwik8").read_bytes()
        assert b"".join(map(text_of, data.splits.values())) == content and data.source == "local"
        found = [data.baselines[name] for name in language.REACHES]
        assert found == sorted(found, reverse=True) and 4.5 < found[0] < 5.5, "longer contexts know more"

    def test_a_zip_is_read_and_never_unpacked(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
            archive.writestr("../../evil", b"abcdefghij" * 20)
        before = sorted(path for path in tmp_path.parent.rglob("*"))
        data = language.load(request(tmp_path / "enwik8.zip"), tmp_path / "cache")
        assert len(text_of(data.train)) == 180
        assert not [path for path in tmp_path.parent.rglob("evil")] and before

    def test_documents_are_not_joined(self, tmp_path: Path) -> None:
        for name in ("train", "validation", "test"):
            (tmp_path / name).mkdir()
            for number in range(2):
                (tmp_path / name / f"{number}.txt").write_bytes(bytes([65 + number]) * 11)
        data = language.load(request(tmp_path), tmp_path / "cache")
        views = [bytes(data.train[index].views[0].astype(np.uint8)) for index in range(len(data.train))]
        assert views == [b"A" * 8, b"A" * 3, b"B" * 8, b"B" * 3]

    @pytest.mark.parametrize("kind", ["parquet", "jsonl.gz", "jsonl", "json.gz"])
    def test_tables_and_lines_hold_a_document_a_row(self, tmp_path: Path, kind: str) -> None:
        rows = [{"text": "first one"}, {"text": "zweites €"}]
        for name in ("train", "validation", "test"):
            file = tmp_path / f"c4-{name}.00000-of-00001.{kind}"
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            if kind == "parquet":
                pq.write_table(pa.Table.from_pylist(rows), file)
            elif kind.endswith("gz"):
                file.write_bytes(gzip.compress(lines.encode()))
            else:
                file.write_text(lines)
        data = language.load(request(tmp_path), tmp_path / "cache")
        assert text_of(data.test) == "first onezweites €".encode()

    @genuine("pg19")
    def test_genuine_books_and_their_words(self, tmp_path: Path) -> None:
        found = request_for("pg19", "paper", source=str(GENUINE / "pg19"))
        data = language.load(found, tmp_path, words=True)
        book = (GENUINE / "pg19" / "test" / "10146.txt").read_bytes()
        assert text_of(data.test) == book
        # a word that a window cuts counts twice: one window in some, of 2,048 bytes
        assert data.units["test"] == pytest.approx(len(book.split()), rel=4e-3)

    def test_no_more_is_read_of_a_stream_than_is_needed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []

        def stream(request: object, split: str, column: str, kept: Path) -> object:
            for number in range(10**9):
                asked.append(number)
                yield "a document of 24 letters"

        monkeypatch.setattr(hub, "stream", stream)
        data = language.load(request("hub", "wiki40b", examples=(6, 3, 3)), tmp_path)
        assert [len(split) for split in data.splits.values()] == [6, 3, 3] and len(asked) < 10
        assert data.source == "hub" and any("unknown revision" in note for note in data.notes)


class TestWindows:
    def test_every_token_is_scored_once_whatever_the_stride(self) -> None:
        document = np.arange(23)
        for stride in range(1, 8):
            found = list(windows([document], 7, stride))
            assert np.concatenate([window.tokens[window.given :] for window in found]).tolist() == list(range(23))
            assert all(len(window.tokens) <= 7 for window in found)
            assert all(window.given == 7 - stride for window in found[1:-1])

    def test_a_stride_of_one_window_has_no_context_and_one_of_one_all_of_it(self) -> None:
        assert [window.given for window in windows([np.arange(9)], 3, 3)] == [0, 0, 0]
        assert [window.given for window in windows([np.arange(6)], 3, 1)] == [0, 2, 2, 2]

    def test_no_more_windows_than_asked_and_one_block_at_least(self) -> None:
        found = list(blocks(windows([np.arange(100)], 10, 10), 3))
        assert sum(block.labels.size for block in found) == 3
        assert [block.labels.size for block in blocks(iter(()), 3)] == [0]

    def test_context_helps_and_the_record_says_how_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "enwik8").write_bytes(b"the quick brown fox. " * 400)
        cold, warm = (
            language.load(request(tmp_path, examples=(1000, 1000, 1000)), tmp_path / "cache", stride=stride)
            for stride in (None, 2)
        )
        assert warm.baselines["after 3 bytes"] < cold.baselines["after 3 bytes"]
        assert "each begins without context" in cold.notes[0] and "6 tokens of context or more" in warm.notes[0]
        assert text_of(warm.test) == text_of(cold.test)

    @pytest.mark.parametrize("stride", [0, 9])
    def test_a_stride_beyond_the_window_is_refused(self, tmp_path: Path, stride: int) -> None:
        with pytest.raises(SpecError, match=f"stride {stride}"):
            language.load(request("stand-in"), tmp_path, stride=stride)


class TestLongerWindows:
    def test_validation_and_test_are_scored_in_windows_of_their_own_length(self, tmp_path: Path) -> None:
        (tmp_path / "enwik8").write_bytes(bytes(range(200)) * 10)
        found = request(tmp_path)
        data = language.load(found, tmp_path / "cache", eval_length=64)
        assert [int(split.lengths.max()) for split in data.splits.values()] == [8, 64, 64]
        assert "windows of 64" in data.notes[0] and len(text_of(data.test)) == 100
        assert all(check.ok for check in language.verify(data, found, eval_length=64) if check.name == "cut")

    @pytest.mark.parametrize("model", ["transformer-xl[segment=64,memory=64]", "linear"])
    def test_who_has_a_memory_streams_through_a_document(self, call: Called, model: str) -> None:
        flags = ("--preset", "tiny", "--steps", 2, "--threads", 1, "--quiet", "--set", "data.options.eval_length=4096")
        code, out, err = call("run", "-m", model, "-t", "enwik8", *flags, "--set", "model.positions=none", "--json")
        assert code == 0, err
        (record,) = json.loads(out)
        assert record["metrics"]["test"]["examples"] == 1, "one document, one window"
        assert any("windows of 4096" in note for note in record["notes"])

    def test_positions_that_end_before_are_refused(self, call: Called) -> None:
        flags = ("--preset", "tiny", "--set", "data.options.eval_length=4096")
        code, _, err = call("run", "-m", "full", "-t", "enwik8", *flags)
        assert code == 2 and "learned positions end at 256" in err and "model.positions=none" in err

    def test_no_window_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="eval_length 0"):
            language.load(request("stand-in"), tmp_path, eval_length=0)


class TestWords:
    def lines(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        for name, text in (
            ("train", " the cat \n\n the dog <unk> \n"),
            ("valid", " the\n"),
            ("test", " the bird \n\n a\n"),
        ):
            (folder / f"wiki.{name}.tokens").write_text(text)
        return folder

    def test_a_fixture_of_three_lines_by_hand(self, tmp_path: Path) -> None:
        data = words.load(request(self.lines(tmp_path), "wikitext103"), tmp_path / "cache")
        # <eos> three times, the twice, then <unk>, cat and dog by the alphabet
        assert data.train[0].views[0].tolist() == [1, 3, 0, 0, 1, 4, 2, 0]
        assert data.test[0].views[0].tolist() == [1, 2, 0, 0, 2, 0], (
            "what train lacks is <unk>, a line that is empty counts"
        )

    def test_people_read_words_and_lines(self, tmp_path: Path) -> None:
        asked = request(self.lines(tmp_path), "wikitext103")
        read = words.reader(asked)
        data = words.load(asked, tmp_path / "cache")
        assert read(data.train[0]) == "the cat\n<eos> the dog <unk> <eos>"
        assert read(data.test[0]) == "the <unk>\n<eos> <unk> <eos>"

    def test_the_command_shows_words(self, tmp_path: Path, call: Callable[..., Called]) -> None:
        flags = ["--data", self.lines(tmp_path / "text"), "--set", "data.length=4", "-n", 1]
        code, out, err = call("data", "show", "wikitext103", "--preset", "tiny", *flags)
        assert code == 0 and out.rstrip().endswith("the <unk>\n<eos>"), err

    @genuine("wikitext-2")
    def test_the_published_count_of_words(self) -> None:
        folder = GENUINE / "wikitext-2"
        for name, expected in (("wiki.valid.tokens", 217_646), ("wiki.test.tokens", 245_569)):
            assert sum(1 for _ in words.split_words(words._lines(folder / name))) == expected
        (table,) = (folder / "wikitext-2-v1").glob("test-*.parquet")
        assert sum(1 for _ in words.split_words(words._lines(table))) == 245_569

    @genuine("wikitext-2")
    def test_one_genuine_file_is_cut(self, tmp_path: Path) -> None:
        source = str(GENUINE / "wikitext-2" / "wiki.valid.tokens")
        data = words.load(request_for("wikitext103", "paper", source=source), tmp_path)
        assert sum(int(split.lengths.sum()) for split in data.splits.values()) == 217_646
        assert data.baselines["after 1 word"] < data.baselines["words alone"] < 3000

    def test_a_missing_split_is_named(self, tmp_path: Path) -> None:
        folder = self.lines(tmp_path / "files")
        (folder / "wiki.train.tokens").unlink()
        with pytest.raises(Missing, match="no train split"):
            words.load(request(folder, "wikitext103"), tmp_path)

    def test_too_many_words_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(words, "VOCABULARY", 3)
        with pytest.raises(SpecError, match="4 different words"):
            words.vocabulary(["a", "b", "c"])

    def test_text_that_is_not_utf8_is_named(self, tmp_path: Path) -> None:
        folder = self.lines(tmp_path / "files")
        (folder / "wiki.valid.tokens").write_bytes(b"ok \xff\n")
        with pytest.raises(SpecError, match="wiki.valid.tokens: not valid UTF-8 at byte 3"):
            words.load(request(folder, "wikitext103"), tmp_path)

    def test_a_stand_in_has_as_many_windows_as_asked(self, tmp_path: Path) -> None:
        data = words.load(request("stand-in", "wikitext103", examples=(20, 3, 4)), tmp_path)
        assert [len(split) for split in data.splits.values()] == [20, 3, 4]


class TestMasks:
    def test_what_is_hidden_is_masked_and_nothing_else(self, tmp_path: Path) -> None:
        data = masked.load(request("stand-in", "c4-mlm", length=100, examples=(9, 3, 3)), tmp_path)
        for index in range(9):
            shown, hidden = data.train[index].views
            assert ((shown == masked.MASK) == (hidden >= 0)).all() and (hidden >= 0).sum() == 15
        again = masked.load(request("stand-in", "c4-mlm", length=100, examples=(9, 3, 3)), tmp_path / "other")
        assert data.fingerprint == again.fingerprint, "the same masks for every model"

    def test_the_text_is_that_of_the_files(self, tmp_path: Path) -> None:
        (tmp_path / "enwik8").write_bytes(bytes(range(256)) * 10)
        data = masked.load(request(tmp_path, "c4-mlm", length=64), tmp_path / "cache")
        shown, hidden = data.train[1].views
        assert np.where(hidden >= 0, hidden, shown).tolist() == list(range(64, 128))

    def test_a_window_of_one_byte_hides_it(self) -> None:
        from lrbench.loaders.streams import Stream

        shown, hidden = masked.masked(np.array([7]), Stream(0))
        assert shown.tolist() == [256] and hidden.tolist() == [7]


class TestChain:
    def test_the_entropy_is_what_long_runs_cost(self) -> None:
        chances = markov.chain(0)
        letters = np.searchsorted(np.sort(markov.LETTERS), markov.letters(0, 0, 200_000))
        order = np.argsort(markov.LETTERS)
        letters = order[letters]
        states = letters[:-2] * 27 + letters[1:-1]
        measured = -np.log2(chances[states, letters[2:]]).mean()
        assert measured == pytest.approx(markov.entropy(chances), abs=0.01)

    def test_seeds_and_documents_differ_and_repeat(self) -> None:
        one = markov.letters(0, 0, 100)
        assert (one == markov.letters(0, 0, 100)).all()
        assert (one != markov.letters(0, 1, 100)).any() and (one != markov.letters(1, 0, 100)).any()

    def test_counting_comes_near_the_entropy_and_not_below(self, tmp_path: Path) -> None:
        data = language.load(request("stand-in", length=512, examples=(2000, 10, 200)), tmp_path)
        rate = markov.entropy(markov.chain(0))
        assert rate - 0.02 < data.baselines["after 2 bytes"] < rate + 0.1
        assert any(f"{rate:.4f} bits" in note for note in data.notes)


class TestTopics:
    def test_documents_know_few_signs_and_no_window_spans_two(self, tmp_path: Path) -> None:
        known = [set(document.tolist()) for document in topics.documents(0, 0, 3 * topics.DOCUMENT)]
        assert [len(signs) for signs in known] == [topics.KNOWN] * 3 and known[0] != known[1]
        data = language.load(request("stand-in", length=512, examples=(24, 3, 3)), tmp_path, text="topics")
        assert len(data.train) == 24
        for index in range(24):
            assert set(data.train[index].views[0].tolist()) <= known[index // (topics.DOCUMENT // 512)]

    def test_knowing_the_chain_costs_the_floor(self) -> None:
        weights, costs = topics.chances(0), []
        for document in topics.documents(0, 0, 60 * topics.DOCUMENT):
            letters = np.searchsorted(np.sort(topics.SIGNS), document)
            signs = np.argsort(topics.SIGNS)[letters]
            known = np.unique(signs)
            steps = weights[:, known] / weights[:, known].sum(1, keepdims=True)
            costs.append(-np.log2(steps[signs[:-1], np.searchsorted(known, signs[1:])]).mean())
        assert np.mean(costs) == pytest.approx(topics.floor(0), abs=0.05)

    def test_seeds_and_splits_differ_and_repeat(self) -> None:
        def first(seed: int, number: int) -> np.ndarray:
            return next(topics.documents(seed, number, 100))

        assert (first(0, 0) == first(0, 0)).all() and len(first(0, 0)) == 100
        assert (first(0, 0) != first(0, 1)).any() and (first(0, 0) != first(1, 0)).any()

    def test_counting_neighbours_stays_far_above_the_floor(self, tmp_path: Path) -> None:
        data = language.load(request("stand-in", length=512, examples=(400, 8, 80)), tmp_path, text="topics")
        assert data.baselines["after 1 byte"] > topics.floor(0) + 1.0
        assert any(f"{topics.floor(0):.4f} bits" in note for note in data.notes)

    def test_masked_text_can_be_about_something_too(self, tmp_path: Path) -> None:
        data = masked.load(request("stand-in", length=512, examples=(8, 1, 1)), tmp_path, text="topics")
        assert any("signs" in note for note in data.notes)
        assert set(data.train[0].views[0].tolist()) <= {*topics.SIGNS.tolist(), masked.MASK}


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "content", "what"),
        [
            ("train.jsonl", b'{"text": "a"}\nnonsense\n', "line 2: not JSON"),
            ("train.jsonl", b'{"words": "a"}\n', "line 1: no field 'text'"),
            ("train.jsonl", b'{"text": ""}\n', "line 1: the document is empty"),
            ("train.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 1000, mtime=0)[:60], "not whole"),
            ("train.parquet", b"PAR1 nothing", "no whole Parquet file"),
            ("train.txt", b"", "train.txt: the document is empty"),
        ],
    )
    def test_a_faulty_file_is_named_and_nothing_is_kept(
        self, tmp_path: Path, name: str, content: bytes, what: str
    ) -> None:
        folder = tmp_path / "files"
        folder.mkdir()
        (folder / name).write_bytes(content)
        for other in ("validation", "test"):
            (folder / f"{other}.txt").write_text("some text that is long enough")
        with pytest.raises(SpecError, match=what):
            language.load(request(folder), tmp_path / "cache")
        assert not list((tmp_path / "cache").rglob("*.arrow"))

    def test_a_wrong_column_is_named(self, tmp_path: Path) -> None:
        for name in ("train", "validation", "test"):
            pq.write_table(pa.table({"words": ["a"]}), tmp_path / f"{name}-00000-of-00001.parquet")
        with pytest.raises(SpecError, match="column 'text' is missing"):
            language.load(request(tmp_path), tmp_path / "cache")

    def test_an_archive_of_two_files_and_one_that_is_none(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
            archive.writestr("a", b"1")
            archive.writestr("b", b"2")
        with pytest.raises(SpecError, match="holds 2 files"):
            language.load(request(tmp_path / "enwik8.zip"), tmp_path / "cache")
        (tmp_path / "enwik8.zip").write_bytes(b"PK nothing")
        with pytest.raises(SpecError, match="no whole ZIP archive"):
            language.load(request(tmp_path / "enwik8.zip"), tmp_path / "cache")

    def test_no_text_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(Missing, match="no text in"):
            language.load(request(tmp_path / "nowhere"), tmp_path / "cache")

    def test_a_text_too_short_to_be_cut(self, tmp_path: Path) -> None:
        (tmp_path / "enwik8").write_bytes(b"abc")
        with pytest.raises(SpecError, match="3 bytes cannot be cut"):
            language.load(request(tmp_path), tmp_path / "cache")

    def test_the_hub_without_network_is_code_3(self, call: Called) -> None:
        code, _, err = call("data", "prepare", "wiki40b", "--preset", "tiny", "--data", "hub", "--offline")
        assert code == 3 and "--data stand-in" in err


@pytest.mark.parametrize(
    ("task", "metric"), [("enwik8", "bits_per_byte"), ("pg19", "perplexity"), ("c4-mlm", "perplexity")]
)
def test_a_tiny_run_ends_in_the_task_s_metric(tmp_path: Path, task: str, metric: str) -> None:
    record = run_tiny(task, tmp_path)
    test = record["metrics"]["test"]
    nats = math.log(test[metric]) if metric == "perplexity" else test[metric] * math.log(2)
    assert nats == pytest.approx(test["loss"] * test["scored"] / (test["units"] or test["scored"]))
    assert record["data"]["source"] == "stand-in" and all(value > 0 for value in record["baselines"].values())


@pytest.mark.parametrize("task", ["enwik8", "c4-mlm", "pg19", "wikitext103"])
def test_data_can_be_verified_and_shown(call: Called, task: str) -> None:
    assert call("data", "verify", task, "--preset", "tiny")[0] == 0
    code, out, _ = call("data", "show", task, "--preset", "tiny", "-n", 1)
    assert code == 0 and "fingerprint" in out

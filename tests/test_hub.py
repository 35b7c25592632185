"""Corpora that are streamed: cut off anywhere, they are gone on with, and no row is lost, doubled or fetched again."""

import gzip
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from task_helpers import request_for

from lrbench.errors import Missing
from lrbench.loaders import hub, language, masked
from lrbench.loaders.base import SPLITS, DataRequest, Hub

SHARDS, ROWS = 3, 7
TEXTS = {name: [f"{name} {number:02}" for number in range(SHARDS * ROWS)] for name in SPLITS}
Cut = Callable[[int | None], list[str]]


@pytest.fixture(params=["parquet", "json.gz"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three splits in three files each, as `datasets` takes them for a data set of the hub."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, texts in TEXTS.items():
        for shard in range(SHARDS):
            part = texts[shard * ROWS : (shard + 1) * ROWS]
            path = folder / f"{name}-{shard:05}-of-{SHARDS:05}.{request.param}"
            if request.param == "parquet":
                pq.write_table(pa.table({"text": part, "title": part}), path, row_group_size=3)
            else:
                path.write_bytes(gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in part).encode()))
    return folder


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cut:
    """Lets the network fail once so many rows more have come; in the list that is given back are those that came."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    rows, came = datasets.IterableDataset.__iter__, []

    def cut(after: int | None) -> list[str]:
        left = after

        def failing(self: datasets.IterableDataset) -> Iterator[dict]:
            nonlocal left
            for row in rows(self):
                if left is not None:
                    if not left:
                        raise ConnectionError("cut off")
                    left -= 1
                came.append(row["text"])
                yield row

        monkeypatch.setattr(datasets.IterableDataset, "__iter__", failing)
        return came

    return cut


def asked(corpus: Path, **changes: object) -> DataRequest:
    return request_for("wiki40b", "tiny", source="hub", hub=Hub(str(corpus)), **changes)


def train(corpus: Path, kept: Path) -> Iterator[str | None]:
    return hub.stream(asked(corpus), "train", "text", kept)


class TestStream:
    @pytest.mark.parametrize("characters", [1, 20, 10**6], ids=["parts of a row", "of three", "of all"])
    @pytest.mark.parametrize("after", [0, 1, 6, 7, 8, 20])
    def test_cut_off_it_goes_on_where_it_was(
        self, corpus: Path, cut: Cut, after: int, characters: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hub, "PART", characters)
        cut(after)
        with pytest.raises(Missing, match="ConnectionError: cut off"):
            list(train(corpus, tmp_path / "kept"))
        came = cut(None)
        assert list(train(corpus, tmp_path / "kept")) == TEXTS["train"]
        assert came == TEXTS["train"], "each row was fetched once"

    def test_whoever_wants_no_more_keeps_what_came(self, corpus: Path, cut: Cut, tmp_path: Path) -> None:
        came = cut(None)
        for count in (3, 2, 11):
            assert list(islice(train(corpus, tmp_path / "kept"), count)) == TEXTS["train"][:count]
        assert came == TEXTS["train"][:11]

    def test_killed_it_goes_on_behind_the_last_part(
        self, corpus: Path, cut: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hub, "PART", 20)  # three rows of eight characters
        came = cut(None)
        begun = train(corpus, tmp_path / "kept")
        list(islice(begun, 8))
        shutil.copytree(tmp_path / "kept", tmp_path / "found")  # as it lies there without a word of good-bye
        begun.close()
        del came[:]
        assert list(train(corpus, tmp_path / "found")) == TEXTS["train"] and came == TEXTS["train"][6:]

    def test_two_at_once_do_each_other_no_harm(self, corpus: Path, cut: Cut, tmp_path: Path) -> None:
        came = cut(None)
        late, early = (train(corpus, tmp_path / "kept") for _ in range(2))
        list(islice(late, 2)), list(islice(early, 5))
        early.close()
        late.close()
        del came[:]
        assert list(train(corpus, tmp_path / "kept")) == TEXTS["train"] and came == TEXTS["train"][5:]

    def test_a_damaged_part_is_fetched_again(
        self, corpus: Path, cut: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(hub, "PART", 20)
        cut(14)
        with pytest.raises(Missing):
            list(train(corpus, tmp_path / "kept"))
        sorted(tmp_path.glob("kept/*/*/*.parquet"))[2].write_bytes(b"PAR1")
        came = cut(None)
        del came[:]
        with caplog.at_level(logging.WARNING):
            monkeypatch.setattr(hub, "PART", 1)
            assert list(train(corpus, tmp_path / "kept")) == TEXTS["train"] and came == TEXTS["train"][6:]
        assert "000000000006-000000000009.parquet is damaged" in caplog.text
        del came[:]
        assert list(train(corpus, tmp_path / "kept")) == TEXTS["train"] and not came

    def test_of_data_that_have_changed_nothing_is_taken(self, corpus: Path, cut: Cut, tmp_path: Path) -> None:
        cut(10)
        with pytest.raises(Missing):
            list(train(corpus, tmp_path / "kept"))
        min(corpus.glob("train-*")).touch()
        came = cut(None)
        del came[:]
        assert list(train(corpus, tmp_path / "kept")) == TEXTS["train"] and came == TEXTS["train"]

    def test_offline_nothing_is_asked(self, corpus: Path, tmp_path: Path) -> None:
        with pytest.raises(Missing, match="--offline"):
            list(hub.stream(asked(corpus, offline=True), "train", "text", tmp_path / "kept"))
        assert not (tmp_path / "kept").exists()


class TestPreparation:
    @pytest.mark.parametrize("loader", [language, masked])
    @pytest.mark.parametrize("after", [5, 21, 30, 55])
    def test_begun_again_it_fetches_the_rest_and_leaves_nothing(
        self, corpus: Path, cut: Cut, loader: object, after: int, tmp_path: Path
    ) -> None:
        wanted = asked(corpus, length=8, examples=(100, 100, 100))
        cut(after)
        with pytest.raises(Missing, match="cut off"):
            loader.load(wanted, tmp_path / "cache")
        assert not list(tmp_path.glob("cache/*/*/*.arrow"))
        came = cut(None)
        data = loader.load(wanted, tmp_path / "cache")
        assert came == [text for name in SPLITS for text in TEXTS[name]], "each row was fetched once"
        assert not list(tmp_path.glob("cache/*/.*.kept"))
        assert data.fingerprint == loader.load(wanted, tmp_path / "straight").fingerprint

    def test_no_more_is_fetched_than_is_needed(self, corpus: Path, cut: Cut, tmp_path: Path) -> None:
        came = cut(None)
        data = language.load(asked(corpus, length=8, examples=(6, 3, 3)), tmp_path)
        shown = [data.train[index].views[0].astype(np.uint8).tobytes().decode() for index in range(6)]
        assert shown == TEXTS["train"][:6] and len(came) == 6 + 2 + 3  # two windows in a text of validation

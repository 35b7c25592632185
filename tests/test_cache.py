"""Prepared data: made once, whoever asks and whoever is killed, and never read when damaged."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbench.errors import Missing, SpecError
from lrbench.loaders.arrow import SplitWriter, open_split
from lrbench.loaders.base import Example, Head, fingerprint, limited
from lrbench.loaders.blocks import Block, BlockSplit
from lrbench.loaders.cache import MANIFEST, Prepared, damage, damages, prepared

ROOT = Path(__file__).parents[1]
LOAD = """
import sys, time
from pathlib import Path
from lrbench.loaders import listops
from lrbench.loaders.base import DataRequest
data = listops.load(DataRequest("listops", 64, (3000, 100, 100)), Path(sys.argv[1]), shortest=10, longest=60)
print(data.fingerprint, len(data.train))
"""


def block(*examples: tuple[list[list[int]], int], dtype: str = "uint8") -> Block:
    """A block of examples given as (views, label)."""
    views = list(zip(*[views for views, _ in examples], strict=True))
    return Block(
        tuple(np.array([token for example in view for token in example], dtype) for view in views),
        tuple(np.array([len(example) for example in view]) for view in views),
        np.array([label for _, label in examples]),
    )


def three() -> Iterable[tuple[str, Block]]:
    """Three small splits, train in two blocks that are not neighbours."""
    yield "train", block(([[1, 2, 3]], 4), ([[5]], 0))
    yield "validation", block(([[7, 7]], 1))
    yield "train", block(([[]], 2), ([[9, 8]], 3))
    yield "test", block(([[6]], 9))


def make(cache: Path, **content: object) -> Prepared:
    return prepared(cache, "toy", content, three)


def plain(example: Example) -> tuple[list[list[int]], int]:
    return [view.tolist() for view in example.views], example.label


def left_behind(cache: Path) -> list[Path]:
    return [path for path in (cache / "toy").glob(".*") if path.suffix != ".lock"]


def must_not_build() -> Iterable[tuple[str, Block]]:
    raise AssertionError("built again")


class TestSplits:
    def test_examples_come_back_in_order(self, tmp_path: Path) -> None:
        split = make(tmp_path).splits["train"]
        assert [plain(split[i]) for i in range(len(split))] == [([[1, 2, 3]], 4), ([[5]], 0), ([[]], 2), ([[9, 8]], 3)]
        assert (split.lengths.tolist(), split.labels.tolist()) == ([3, 1, 0, 2], [4, 0, 2, 3])

    def test_numbers_count_from_the_end_and_end(self, tmp_path: Path) -> None:
        split = make(tmp_path).splits["train"]
        assert plain(split[-1]) == plain(split[3]) and plain(split[np.int64(1)]) == plain(split[1])
        for index in (4, -5):
            with pytest.raises(IndexError):
                split[index]

    @pytest.mark.parametrize("dtype", ["uint8", "int32"])
    def test_two_views_and_other_types(self, dtype: str, tmp_path: Path) -> None:
        written = block(([[1, 2], [3]], 0), ([[4], [5, 6, 7]], 1), dtype=dtype)
        with SplitWriter(tmp_path / "x.arrow") as writer:
            writer.write(written)
        split = open_split(tmp_path / "x.arrow")
        assert [plain(split[i]) for i in range(2)] == [([[1, 2], [3]], 0), ([[4], [5, 6, 7]], 1)]
        assert split.lengths.tolist() == [2, 3]
        assert {view.dtype for view in split[0].views} == {np.dtype(dtype)}

    def test_tokens_are_mapped_not_copied(self, tmp_path: Path) -> None:
        (view,) = make(tmp_path).splits["train"][0].views
        assert not view.flags.owndata and not view.flags.writeable
        (neighbour,) = make(tmp_path).splits["train"][1].views
        assert view.strides == neighbour.strides == (1,)

    def test_the_files_are_those_of_datasets(self, tmp_path: Path) -> None:
        from datasets import Dataset

        data = Dataset.from_file(str(make(tmp_path).folder / "train.arrow"))
        assert data["tokens"][:] == [[1, 2, 3], [5], [], [9, 8]]
        assert data["label"][:] == [4, 0, 2, 3]

    @given(st.lists(st.lists(st.tuples(st.lists(st.integers(0, 255), max_size=4), st.integers(0, 9)), max_size=5)))
    def test_cutting_into_blocks_changes_nothing(self, cut: list[list[tuple[list[int], int]]]) -> None:
        rows = [([tokens], label) for part in cut for tokens, label in part]
        split = BlockSplit([block(*[([tokens], label) for tokens, label in part]) for part in cut])
        assert [plain(split[i]) for i in range(len(split))] == rows
        assert fingerprint({"x": split}) == fingerprint({"x": BlockSplit([block(*rows)])})


class TestFingerprint:
    def test_every_part_counts(self) -> None:
        def of(*examples: tuple[list[list[int]], int], name: str = "train", dtype: str = "uint8") -> str:
            return fingerprint({name: BlockSplit([block(*examples, dtype=dtype)])})

        same = [([[1, 2]], 0), ([[3]], 1)]
        others = [
            of(([[1, 2]], 0), ([[4]], 1)),
            of(([[1, 2]], 0), ([[3]], 2)),
            of(([[1]], 0), ([[2, 3]], 1)),
            of(([[3]], 1), ([[1, 2]], 0)),
            of(*same, name="test"),
            of(*same, dtype="int32"),
            of(([[1], [2]], 0), ([[3], []], 1)),
        ]
        assert of(*same) == of(*same)
        assert len({of(*same), *others}) == 8


class TestLimit:
    @pytest.mark.parametrize(("limit", "count"), [(None, 4), (1, 1), (3, 3), (9, 4), (0.5, 2), (0.01, 1), (2.0, 2)])
    def test_counts_and_fractions(self, limit: float | None, count: int, tmp_path: Path) -> None:
        split = make(tmp_path).splits["train"]
        head = limited(split, limit)
        assert len(head) == len(head.lengths) == len(head.labels) == count
        assert [plain(head[i]) for i in range(count)] == [plain(split[i]) for i in range(count)]

    def test_nothing_beyond_it(self, tmp_path: Path) -> None:
        head = Head(make(tmp_path).splits["train"], 2)
        assert plain(head[-1]) == ([[5]], 0)
        with pytest.raises(IndexError):
            head[2]


class TestOnce:
    def test_a_second_call_builds_nothing(self, tmp_path: Path) -> None:
        first = make(tmp_path)
        before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
        second = prepared(tmp_path, "toy", {}, must_not_build)
        assert second.fingerprint == first.fingerprint == fingerprint(first.splits)
        assert before == {path: path.stat().st_mtime_ns for path in second.folder.iterdir()}

    def test_other_content_is_another_folder(self, tmp_path: Path) -> None:
        folders = {make(tmp_path, seed=0).folder, make(tmp_path, seed=1).folder, make(tmp_path, size=0).folder}
        assert len(folders) == 3

    def test_the_order_of_the_content_does_not_matter(self, tmp_path: Path) -> None:
        assert make(tmp_path, a=1, b=[2]).folder == make(tmp_path, b=[2], a=1).folder

    def test_the_manifest_says_what_there_is(self, tmp_path: Path) -> None:
        found = make(tmp_path, seed=3)
        manifest = json.loads((found.folder / MANIFEST).read_text())
        assert manifest["content"] == {"seed": 3}
        assert manifest["examples"] == {"train": 4, "validation": 1, "test": 1}
        assert sorted(path.name for path in found.folder.iterdir()) == [MANIFEST, *sorted(manifest["files"])]

    def test_a_builder_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        def build() -> Iterable[tuple[str, Block]]:
            yield "train", block(([[1]], 1))
            raise SpecError("line 3 is wrong")

        with pytest.raises(SpecError, match="line 3"):
            prepared(tmp_path, "toy", {}, build)
        assert [path.suffix for path in (tmp_path / "toy").iterdir()] == [".lock"]
        assert make(tmp_path).splits["test"].labels.tolist() == [9]

    def test_a_cache_that_cannot_be_written_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(Missing, match="toy cannot be prepared in the cache .*file") as caught:
            make(tmp_path / "file")
        assert caught.value.exit_code == 3 and "\n" not in caught.value.message
        assert "--cache-dir" in caught.value.hint

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="rights do not bind this user")
    def test_a_cache_that_can_only_be_read_is_read(self, tmp_path: Path) -> None:
        make(tmp_path)
        (tmp_path / "toy").chmod(0o500)
        try:
            assert prepared(tmp_path, "toy", {}, must_not_build).splits["test"].labels.tolist() == [9]
        finally:
            (tmp_path / "toy").chmod(0o700)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """One bit in the middle; of the manifest its first character, as within a number it would blame another file."""
    content = bytearray(path.read_bytes())
    content[0 if path.name == MANIFEST else len(content) // 2] ^= 1
    path.write_bytes(content)


class TestDamage:
    @pytest.mark.parametrize("name", ["train.arrow", "validation.arrow", "test.arrow", MANIFEST])
    @pytest.mark.parametrize("harm", [halve, flip, Path.unlink], ids=["halved", "one bit", "gone"])
    def test_it_is_named_and_mended(self, name: str, harm, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        first = make(tmp_path)
        whole = {path.name: path.read_bytes() for path in first.folder.iterdir()}
        harm(first.folder / name)
        (line,) = damages(tmp_path, "toy")
        assert str(first.folder / name) in line
        with caplog.at_level(logging.WARNING):
            again = make(tmp_path)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert str(first.folder / name) in caplog.text
        assert {path.name: path.read_bytes() for path in again.folder.iterdir()} == whole
        assert damages(tmp_path, "toy") == [] and not left_behind(tmp_path)

    def test_a_cut_file_is_told_by_its_size(self, tmp_path: Path) -> None:
        folder = make(tmp_path).folder
        halve(folder / "test.arrow")
        assert "bytes in place of" in (damage(folder) or "")

    @pytest.mark.parametrize("field", ["files", "fingerprint"])
    def test_a_manifest_without_a_field_is_damaged(self, field: str, tmp_path: Path) -> None:
        folder = make(tmp_path).folder
        manifest = json.loads((folder / MANIFEST).read_text())
        del manifest[field]
        (folder / MANIFEST).write_text(json.dumps(manifest))
        assert MANIFEST in (damage(folder) or "")

    def test_an_empty_folder_is_mended(self, tmp_path: Path) -> None:
        folder = make(tmp_path).folder
        for path in folder.iterdir():
            path.unlink()
        assert make(tmp_path).splits["test"].labels.tolist() == [9]

    def test_nothing_prepared_is_no_damage(self, tmp_path: Path) -> None:
        assert damages(tmp_path, "toy") == []

    def test_a_split_stays_readable_while_it_is_made_again(self, tmp_path: Path) -> None:
        """The pages of an open file outlive its name."""
        split = make(tmp_path).splits["train"]
        (tmp_path / "toy").rename(tmp_path / "moved")
        make(tmp_path)
        assert plain(split[0]) == ([[1, 2, 3]], 4)


class TestProcesses:
    def test_four_at_once_make_one_copy(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", LOAD, str(tmp_path)]
        started = [
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)
        ]
        ended = [process.communicate(timeout=60) for process in started]
        assert [process.returncode for process in started] == [0] * 4, ended
        assert len({out for out, _ in ended}) == 1
        assert [path.suffix for path in (tmp_path / "listops").iterdir() if path.name[0] == "."] == [".lock"]
        assert len(list(tmp_path.rglob("train.arrow"))) == 1

    def test_one_that_is_killed_half_way_leaves_a_usable_cache(self, tmp_path: Path) -> None:
        slow = "import time\nfrom lrbench.loaders import cache\ncache._describe = lambda *args: time.sleep(60)\n" + LOAD
        process = subprocess.Popen([sys.executable, "-c", slow, str(tmp_path)], cwd=ROOT)
        try:
            wait_for(lambda: list(tmp_path.rglob("*.tmp/test.arrow")))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert list(tmp_path.rglob("*.tmp")) and not list(tmp_path.rglob(MANIFEST))
        done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not list(tmp_path.rglob("*.tmp")) and len(list(tmp_path.rglob(MANIFEST))) == 1

    def test_loading_opens_no_connection_and_imports_no_torch(self, tmp_path: Path) -> None:
        watched = (
            "import sys\n"
            "def watch(event, args):\n"
            "    if event in ('socket.connect', 'socket.getaddrinfo'): raise SystemExit(f'{event} {args}')\n"
            "sys.addaudithook(watch)\n" + LOAD + "print('torch' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", watched, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == "False"


def wait_for(condition, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)

"""Files of results: strict, whole or absent, and damaged ones named."""

import json
import math
import threading
from pathlib import Path

import pytest

from lrbench.files import write_atomic
from lrbench.records import dumps, load, read, strict


def test_numbers_that_json_does_not_know_become_null() -> None:
    assert strict({"a": [math.nan, math.inf, 1.5], 3: (1, "x")}) == {"a": [None, None, 1.5], "3": [1, "x"]}
    assert dumps({"loss": math.nan}) == '{"loss": null}'


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    texts = [json.dumps([letter] * 20_000) for letter in "ab"]
    write_atomic(path, texts[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(200):
            write_atomic(path, texts[turn % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert path.read_text() in texts
    writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not valid JSON"),
        ('{"schema": "lrbench.run/1", "run_', "not valid JSON"),
        ("[]", "record.json"),
        ('{"schema": "lrbench.run/2"}', "this version reads lrbench.run/1"),
        ('{"schema": "lrbench.run/1"}', "run_id"),
        ("\xff\xfe", "record.json"),
    ],
)
def test_a_damaged_or_newer_record_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(text.encode("latin-1"))
    assert read(path) is None
    (message,) = caplog.messages
    assert str(path) in message and told in message


def test_a_record_that_is_not_there_is_no_cause_for_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(tmp_path / "record.json") is None
    assert caplog.messages == []


def test_only_the_runs_of_a_results_folder_are_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for place in ("runs/a", "reference/b"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "record.json").write_text("broken")
    load([tmp_path])
    assert len(caplog.messages) == 1 and "runs/a" in caplog.messages[0].replace("\\", "/")

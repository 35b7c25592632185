"""The image task: grey levels, order of pixels, black that is real, files that must not run."""

import io
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from task_helpers import GENUINE, genuine, model_of, request_for, run_tiny

from lrbench.errors import LrbenchError, Missing, SpecError
from lrbench.loaders import image
from lrbench.loaders.blocks import BlockSplit
from lrbench.loaders.pickles import read_arrays
from lrbench.loaders.pictures import block, decode, drawn, grey
from lrbench.train.batches import collate

COLOURS = [  # red, green, blue, grey as Pillow weighs them
    (255, 0, 0, 76),
    (0, 255, 0, 150),
    (0, 0, 255, 29),
    (200, 100, 50, 124),
    (255, 255, 255, 255),
    (0, 0, 0, 0),
]
SMALL = request_for("image", "tiny")


def png(pixels: np.ndarray) -> bytes:
    """An image as the bytes of a PNG, grey or in colour by its axes."""
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def colour(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)


def batches(folder: Path, **changes: object) -> Path:
    """Files of four images each in the layout of the release, or what is given for one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate([*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"]):
        planes = colour(number, 4).transpose(0, 3, 1, 2).reshape(4, -1)
        content = {b"data": planes, b"labels": [number, 1, 2, 9], **changes.pop(name, {})}
        with (folder / name).open("wb") as file:
            pickle.dump(content, file, protocol=4)
    return folder


def table(folder: Path, **changes: list[dict[str, object]]) -> Path:
    """Ten images a split in the layout of the hub, or what is given for it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(("train", "test")):
        rows = [
            {"img": {"bytes": png(each), "path": None}, "label": index} for index, each in enumerate(colour(number, 10))
        ]
        pq.write_table(pa.Table.from_pylist(changes.get(split, rows)), folder / f"{split}-00000-of-00001.parquet")
    return folder


class TestPixels:
    @pytest.mark.parametrize(("red", "green", "blue", "level"), COLOURS)
    def test_grey_is_that_of_pillow(self, red: int, green: int, blue: int, level: int) -> None:
        assert grey(np.array([[red, green, blue]], np.uint8)).tolist() == [level]

    def test_grey_agrees_with_pillow_on_random_colours(self) -> None:
        pixels = colour(0, 1)[0]
        assert (grey(pixels) == np.array(Image.fromarray(pixels).convert("L"))).all()

    def test_rows_come_one_after_the_other(self) -> None:
        pixels = np.arange(1024).reshape(1, 32, 32) % 251
        view = BlockSplit([block(pixels.astype(np.uint8), np.array([3]))])[0].views[0]
        assert view.tolist() == [index % 251 for index in range(1024)]

    def test_planes_become_pixels(self, tmp_path: Path) -> None:
        """A pixel's red, green and blue lie 1,024 apart in the release."""
        planes = np.zeros((4, 3072), np.uint8)
        planes[0, [1, 1025, 2049]] = 200, 100, 50  # the pixel of row 0, column 1
        planes[0, 32] = 255  # the red of row 1, column 0
        folder = batches(tmp_path / "data", test_batch={b"data": planes})
        data = image.load(replace(SMALL, source=str(folder)), tmp_path / "cache")
        assert np.flatnonzero(data.test[0].views[0]).tolist() == [1, 32]
        assert data.test[0].views[0][[1, 32]].tolist() == [124, 76]

    def test_black_is_real(self) -> None:
        black = BlockSplit([block(np.zeros((2, 32, 32), np.uint8), np.array([0, 1]))])
        batch = collate(black, [0, 1])
        assert batch.mask is None and batch.real_tokens == 2048 and batch.tokens.shape == (2, 1024)
        grey_one = BlockSplit([block(np.eye(32, dtype=np.uint8)[None], np.array([0]))])
        assert collate(grey_one, [0]).mask is None

    def test_black_has_an_embedding_that_learns(self) -> None:
        model = model_of("image", "tiny")
        batch = collate(BlockSplit([block(np.zeros((1, 32, 32), np.uint8), np.array([0]))]), [0])
        model(batch.tokens, batch.mask).sum().backward()
        assert model.encoder.embedding.num_embeddings == 256
        assert model.encoder.embedding.weight.grad[0].abs().sum() > 0

    def test_a_drawing_fits_a_terminal(self) -> None:
        lines = drawn(np.full(128 * 128, 255)).splitlines()
        assert len(lines) == 32 and max(map(len, lines)) == 64
        assert set(drawn(np.zeros(1024)).replace("\n", "")) == set()


def test_the_paper_preset_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in model_of("image", "paper").parameters()) == 248_458


class TestFiles:
    def test_batches_are_read_in_their_order(self, tmp_path: Path) -> None:
        request = replace(SMALL, source=str(batches(tmp_path / "cifar-10-batches-py").parent))
        data = image.load(request, tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [18, 2, 4] and data.source == "local"
        assert data.train.labels.tolist() == [n for b in range(5) for n in (b, 1, 2, 9)][:18]
        assert data.validation.labels.tolist() == [2, 9]  # the last tenth of train, none of test
        assert all(check.ok for check in image.verify(data, request))

    def test_two_reads_are_the_same(self, tmp_path: Path) -> None:
        request = replace(SMALL, source=str(table(tmp_path / "data")))
        first, second = (image.load(request, tmp_path / name) for name in ("a", "b"))
        assert first.fingerprint == second.fingerprint
        assert (first.train[3].views[0] == grey(colour(0, 10)[3]).ravel()).all()

    def test_without_validation_all_of_train_is_taken(self, tmp_path: Path) -> None:
        request = replace(SMALL, source=str(batches(tmp_path / "data")), examples=(100, 0, 100))
        assert [len(split) for split in image.load(request, tmp_path / "c").splits.values()] == [20, 0, 4]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({b"labels": [0, 1, 2, 10]}, "row 3: the label is 10"),
            ({b"labels": [0, -1, 2, 3]}, "row 1: the label is -1"),
            ({b"labels": [0, 1, 2]}, "labels is a list of 3, not a list of 4"),
            ({b"labels": [0, 1, 2, 1.5]}, "row 3: the label is 1.5"),
            ({b"data": np.zeros((4, 3072), np.int64)}, "data is an array of int64"),
            ({b"data": np.zeros((4, 1024), np.uint8)}, "data is an array of uint8 of shape .* not rows of 3072 bytes"),
            ({b"data": [1, 2]}, "data is a list of 2"),
        ],
    )
    def test_faults_in_a_batch_name_file_and_row(self, change: dict, message: str, tmp_path: Path) -> None:
        refuses(batches(tmp_path / "data", data_batch_3=change), tmp_path, f"data_batch_3: {message}")

    def test_a_truncated_batch_is_named(self, tmp_path: Path) -> None:
        folder = batches(tmp_path / "data")
        file = folder / "test_batch"
        file.write_bytes(file.read_bytes()[:-300])
        refuses(folder, tmp_path, "test_batch: no whole pickle")

    def test_a_missing_batch_is_named(self, tmp_path: Path) -> None:
        folder = batches(tmp_path / "data")
        (folder / "data_batch_2").unlink()
        with pytest.raises(Missing, match="data_batch_2 is missing"):
            image.load(replace(SMALL, source=str(folder)), tmp_path / "cache")

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"img": {"bytes": b"", "path": "a"}, "label": 1}, "row 0: the image is empty"),
            ({"img": {"bytes": b"\x89PNG\r\n", "path": "a"}, "label": 1}, "row 0: no whole PNG"),
            ({"img": {"bytes": png(colour(0, 1)[0])[:-400], "path": "a"}, "label": 1}, "row 0: no whole PNG"),
            ({"img": {"bytes": png(colour(0, 1)[0][:16]), "path": "a"}, "label": 1}, "row 0: .*32 x 16 pixels"),
            ({"img": {"bytes": png(colour(0, 1)[0, ..., 0]), "path": "a"}, "label": 1}, "row 0: .*mode L"),
            ({"img": {"bytes": png(colour(0, 1)[0]), "path": "a"}, "label": 10}, "row 0: the label is 10"),
            ({"img": "text", "label": 1}, "column 'img' holds string, not images"),
            ({"image": "text", "label": 1}, "column 'img' is missing"),
        ],
    )
    def test_faults_in_a_table_name_file_and_row(self, row: dict, message: str, tmp_path: Path) -> None:
        refuses(table(tmp_path / "data", test=[row]), tmp_path, f"test-00000-of-00001.parquet: {message}")

    def test_an_enormous_image_is_refused_before_it_is_unpacked(self) -> None:
        huge = io.BytesIO()
        Image.new("L", (5000, 5000)).save(huge, "PNG")
        with pytest.raises(SpecError, match="5000 x 5000 pixels in place of 32 x 32"):
            decode(huge.getvalue(), "L", 32, "here")

    @genuine("cifar10")
    def test_genuine_images_are_the_same_from_either_layout(self, tmp_path: Path) -> None:
        prints = set()
        for layout in ("cifar-10-batches-py", "plain_text"):
            request = request_for("image", "paper", source=str(GENUINE / "cifar10" / layout))
            data = image.load(request, tmp_path)
            assert [len(split) for split in data.splits.values()] == [1800, 200, 500]
            assert all(check.ok for check in image.verify(data, request))
            prints.add(data.fingerprint)
        assert len(prints) == 1


class Evil:
    """Asks for a call when unpickled."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class TestPickles:
    @pytest.mark.parametrize("where", ["alone", "inside"])
    def test_nothing_is_run(self, where: str, tmp_path: Path) -> None:
        import os

        mark = tmp_path / "was-run"
        evil = Evil(os.mkdir, str(mark))
        content = evil if where == "alone" else {b"data": [evil], b"labels": []}
        file = tmp_path / "data_batch_1"
        file.write_bytes(pickle.dumps(content))
        with pytest.raises(SpecError, match=r"data_batch_1: asks for posix\.mkdir|nt\.mkdir"):
            read_arrays(file)
        assert not mark.exists()
        pickle.loads(file.read_bytes())  # which is what it would have done
        assert mark.exists()

    @pytest.mark.parametrize("asked", [eval, print, getattr, __import__])
    def test_builtins_are_refused_by_name(self, asked: object, tmp_path: Path) -> None:
        file = tmp_path / "batch"
        file.write_bytes(pickle.dumps(Evil(asked, "1")))
        with pytest.raises(SpecError, match=f"builtins.{asked.__name__}"):
            read_arrays(file)

    def test_other_things_of_numpy_are_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "batch"
        file.write_bytes(b"\x80\x02cnumpy\nload\nU\x01xR.")
        with pytest.raises(SpecError, match="numpy.load"):
            read_arrays(file)

    def test_what_is_no_dictionary_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "batch"
        file.write_bytes(pickle.dumps([1, 2]))
        with pytest.raises(SpecError, match="holds a list, not a dictionary"):
            read_arrays(file)

    @pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x02}q\x00("])
    def test_noise_is_no_pickle(self, content: bytes, tmp_path: Path) -> None:
        file = tmp_path / "batch"
        file.write_bytes(content)
        with pytest.raises(SpecError, match="batch: no whole pickle"):
            read_arrays(file)


class TestStandIn:
    def test_it_says_what_it_is_and_holds_up(self, tmp_path: Path) -> None:
        request = request_for("image", "tiny", examples=(1000, 100, 500))
        data = image.load(request, tmp_path)
        assert data.source == "stand-in" and "stand-in" in data.notes[0]
        assert all(check.ok for check in image.verify(data, request))
        assert np.bincount(data.test.labels).tolist() == [50] * 10
        assert data.baselines["shades"] < 0.3
        assert data.fingerprint == image.load(request, tmp_path / "again").fingerprint
        assert data.fingerprint != image.load(replace(request, seed=1), tmp_path).fingerprint

    @pytest.mark.parametrize("length", [3072, 1000])
    def test_other_lengths_are_refused(self, length: int, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="images have 1024 pixels"):
            image.load(replace(SMALL, length=length), tmp_path)


def test_offline_names_the_command_that_brings_it(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="uoft-cs/cifar10") as caught:
        image.load(request_for("image", "paper", offline=True), tmp_path)
    assert "lrbench data prepare image --data hub" in caught.value.hint


def test_a_tiny_run_from_the_command_line(tmp_path: Path) -> None:
    record = run_tiny("image", tmp_path)
    assert record["status"] == "ok" and record["data"]["source"] == "stand-in"
    assert record["speed"]["train_tokens_per_s"] == record["speed"]["train_padded_tokens_per_s"]


def refuses(folder: Path, tmp_path: Path, message: str) -> None:
    """One line, and nothing in the cache."""
    with pytest.raises(LrbenchError, match=message) as caught:
        image.load(replace(SMALL, source=str(folder)), tmp_path / "other")
    assert isinstance(caught.value, SpecError) and "\n" not in caught.value.message
    assert not list((tmp_path / "other").rglob("*.arrow"))

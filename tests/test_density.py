"""Density of images: order of bytes, both kinds of ImageNet-64, what noise and constants cost, damaged files."""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import Called
from PIL import Image
from task_helpers import genuine, request_for, run_tiny

from lrbench.errors import LrbenchError, Missing, SpecError
from lrbench.loaders import density, imagenet_files, ngrams
from lrbench.loaders.blocks import Block, BlockSplit
from lrbench.loaders.pictures import colour_block, image_of, save_sheet

TINY = request_for("cifar10-density", "tiny")
BOX = request_for("imagenet64-box-density", "tiny")
GENUINE = Path(__file__).parents[2] / "shared" / "data"


def npz(folder: Path, count: int = 5, seed: int = 0, **arrays: np.ndarray) -> Path:
    """Files of the box-averaged kind: planes of red, green and blue."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(("train_data_batch_1", "train_data_batch_2", "val_data")):
        planes = np.random.default_rng(seed + number).integers(0, 256, (count, 12288)).astype(np.uint8)
        np.savez(folder / f"{name}.npz", **{"data": planes, "labels": np.arange(count), **arrays})
    return folder


class TestOrder:
    def test_rows_then_columns_then_red_green_blue(self) -> None:
        image = np.arange(2 * 2 * 3).reshape(1, 2, 2, 3).astype(np.uint8)
        view = BlockSplit([colour_block(image)])[0].views[0]
        assert view.tolist() == list(range(12)), "the image's value is its place"
        assert (image_of(view) == image[0]).all()

    def test_planes_of_the_files_become_pixels(self, tmp_path: Path) -> None:
        planes = np.repeat(np.array([1, 2, 3], np.uint8), 4096)[None]
        parts = imagenet_files.find(str(npz(tmp_path, data=planes)), "imagenet64-box")
        (image,) = next(iter(parts.test[1]))
        assert image.reshape(-1)[:6].tolist() == [1, 2, 3, 1, 2, 3]

    def test_grey_images_are_a_byte_a_pixel(self, tmp_path: Path) -> None:
        request = request_for("cifar10-density", "tiny", length=1024, examples=(3, 1, 2))
        colour = density.load(request_for("cifar10-density", "tiny", examples=(3, 1, 2)), tmp_path)
        data = density.load(request, tmp_path, grey=True)
        assert data.fingerprint != colour.fingerprint
        red, green, blue = colour.test[1].views[0].reshape(-1, 3).T.astype(float)
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        assert np.abs(data.test[1].views[0] - luma).max() <= 1.0
        assert density.picture(data.test[1].views[0]).shape == (32, 32)
        assert density.describe(data.test[1]) == density.describe(colour.test[1])
        assert set(data.baselines) == {"levels alone", "pixel to the left", "left and above"}

    def test_colour_and_grey_have_lengths_of_their_own(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="images have 1024 bytes"):
            density.load(TINY, tmp_path, grey=True)

    @genuine("cifar10")
    def test_genuine_photographs_from_both_layouts_are_the_same(self, tmp_path: Path) -> None:
        found = []
        for layout in ("cifar-10-batches-py", "plain_text"):
            source = str(GENUINE / "cifar10" / layout)
            request = request_for("cifar10-density", "paper", source=source, limit=20)
            found.append(density.load(request, tmp_path / layout))
        assert [len(split) for split in found[0].splits.values()] == [20, 20, 20]
        views = [found[part].test[3].views[0] for part in range(2)]
        assert (views[0] == views[1]).all() and views[0].size == 3072
        assert found[0].source == "local" and found[0].baselines["pixel to the left"] < 7.0

    @genuine("imagenet64")
    def test_genuine_box_averaged_photographs(self, tmp_path: Path) -> None:
        source = str(GENUINE / "imagenet64")
        request = request_for("imagenet64-box-density", "paper", source=source)
        data = density.load(request, tmp_path, images="imagenet64-box")
        assert [len(split) for split in data.splits.values()] == [360, 40, 100]
        assert "400 and 100 images, not the whole imagenet64-box" in data.notes
        assert all(check.ok for check in density.verify(data, request))


class TestStandIns:
    @pytest.mark.parametrize(("drawing", "low", "high"), [("noise", 7.9, 8.3), ("constant", 0.0, 0.6)])
    def test_counting_knows_noise_from_constants(self, tmp_path: Path, drawing: str, low: float, high: float) -> None:
        data = density.load(request_for("cifar10-density", "tiny", examples=(600, 8, 50)), tmp_path, drawing=drawing)
        assert low < data.baselines["pixel to the left"] < high
        assert data.source == "stand-in" and drawing in data.notes[0]

    def test_a_constant_image_has_one_colour_and_all_differ(self, tmp_path: Path) -> None:
        data = density.load(TINY, tmp_path, drawing="constant")
        colours = {tuple(data.train[index].views[0][:3].tolist()) for index in range(len(data.train))}
        assert len(colours) > 50
        assert all(len(np.unique(data.train[index].views[0].reshape(-1, 3), axis=0)) == 1 for index in range(5))

    def test_splits_have_no_image_in_common(self, tmp_path: Path) -> None:
        request = request_for("cifar10-density", "tiny")
        assert all(check.ok for check in density.verify(density.load(request, tmp_path), request))

    def test_shapes_fill_larger_images_too(self, tmp_path: Path) -> None:
        data = density.load(request_for("imagenet64-density", "tiny"), tmp_path, images="imagenet64")
        assert data.test[0].views[0].size == 12288


class TestRefusals:
    def test_the_two_kinds_of_imagenet_are_not_taken_for_each_other(self, tmp_path: Path) -> None:
        request = request_for("imagenet64-density", "tiny", source=str(npz(tmp_path / "box")))
        with pytest.raises(Missing, match="no images") as caught:
            density.load(request, tmp_path, images="imagenet64")
        assert "imagenet64-box-density" in caught.value.hint

    def test_pngs_of_the_other_kind_are_read(self, tmp_path: Path) -> None:
        for split, count in (("train", 6), ("valid", 2)):
            folder = tmp_path / f"{split}_64x64"
            folder.mkdir()
            for index in range(count):
                Image.fromarray(np.full((64, 64, 3), 10 * index, np.uint8)).save(folder / f"{index}.png")
        request = request_for("imagenet64-density", "tiny", source=str(tmp_path), examples=(4, 1, 2))
        data = density.load(request, tmp_path / "cache", images="imagenet64")
        firsts = {name: [int(split[i].views[0][0]) for i in range(len(split))] for name, split in data.splits.items()}
        assert firsts == {"train": [0, 10, 20, 30], "validation": [50], "test": [0, 10]}

    @pytest.mark.parametrize(
        ("array", "what"),
        [
            (np.zeros((5, 3072), np.uint8), "not rows of 12288 bytes"),
            (np.zeros((5, 12288), np.float32), "float32"),
            (np.array([{"a": 1}], object), "data is no array|object"),
        ],
    )
    def test_a_wrong_array_is_named(self, tmp_path: Path, array: np.ndarray, what: str) -> None:
        with pytest.raises(SpecError, match=what):
            density.load(self.box(npz(tmp_path / "files", data=array)), tmp_path, images="imagenet64-box")

    def box(self, folder: Path) -> object:
        return request_for("imagenet64-box-density", "tiny", source=str(folder))

    def test_a_truncated_archive_is_named_and_nothing_stays_in_the_cache(self, tmp_path: Path) -> None:
        folder = npz(tmp_path / "files")
        file = folder / "train_data_batch_2.npz"
        file.write_bytes(file.read_bytes()[:30_000])
        with pytest.raises(SpecError, match="train_data_batch_2.npz"):
            density.load(self.box(folder), tmp_path / "cache", images="imagenet64-box")
        assert not list((tmp_path / "cache").rglob("*.arrow"))

    def test_an_archive_that_is_damaged_inside_is_named(self, tmp_path: Path) -> None:
        folder = npz(tmp_path / "files")
        file = folder / "val_data.npz"
        content = bytearray(file.read_bytes())
        content[20_000:20_100] = bytes(100)
        file.write_bytes(bytes(content))
        with pytest.raises(SpecError, match="val_data.npz: damaged"):
            density.load(self.box(folder), tmp_path / "cache", images="imagenet64-box")

    def test_a_hostile_pickle_runs_nothing(self, tmp_path: Path) -> None:
        class Hostile:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return (Path.touch, (tmp_path / "ran",))

        folder = tmp_path / "files"
        folder.mkdir()
        for name in ("train_data_batch_1", "val_data"):
            (folder / name).write_bytes(pickle.dumps({"data": Hostile()}))
        with pytest.raises(SpecError, match="nothing of it was run"):
            density.load(self.box(folder), tmp_path / "cache", images="imagenet64-box")
        assert not (tmp_path / "ran").exists()

    def test_a_member_that_is_missing_is_named(self, tmp_path: Path) -> None:
        folder = npz(tmp_path / "files")
        with zipfile.ZipFile(folder / "val_data.npz", "w") as archive:
            archive.writestr("labels.npy", b"")
        with pytest.raises(SpecError, match="'data' is missing"):
            density.load(self.box(folder), tmp_path / "cache", images="imagenet64-box")

    def test_another_length_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="data.length 1024"):
            density.load(request_for("cifar10-density", "tiny", length=1024), tmp_path)

    def test_a_preset_that_waits_for_files_says_so(self, call: "object", tmp_path: Path) -> None:
        code, _, err = call("run", "-m", "full", "-t", "imagenet64-density", "--preset", "paper", "--offline")
        assert code == 3 and "give --data PATH" in err and len(err.strip().splitlines()) == 2


class TestCounting:
    def split(self, rows: list[list[int]], given: int = 0) -> BlockSplit:
        lengths = np.array([len(row) for row in rows], np.int64)
        return BlockSplit([Block((np.concatenate(rows).astype(np.uint8),), (lengths,), np.full(len(rows), given))])

    def test_smoothed_counts_by_hand(self) -> None:
        train, test = self.split([[0, 0, 1]]), self.split([[0]])
        assert ngrams.nats(train, test, 2, ()) == pytest.approx(-np.log((2 + 2 * 0.5) / (3 + 2)))

    def test_a_context_by_hand(self) -> None:
        train, test = self.split([[0, 1, 0, 1]]), self.split([[0, 1]], given=1)
        alone = (2 + 2 * 0.5) / (4 + 2)
        assert ngrams.nats(train, test, 2, (1,)) == pytest.approx(-np.log((2 + 1 * alone) / (2 + 1)))

    def test_what_is_given_is_context_and_not_scored(self) -> None:
        random = np.random.default_rng(0)
        rows = [np.tile(random.integers(0, 9, 4), 30).tolist() for _ in range(50)]
        loose = ngrams.nats(self.split(rows[:40]), self.split(rows[40:], given=0), 9, (4,))
        assert loose > 0 and ngrams.nats(self.split(rows[:40]), self.split(rows[40:], given=8), 9, (4,)) < loose

    def test_in_pieces_it_is_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        random = np.random.default_rng(1)
        parts = [self.split(random.integers(0, 5, (20, 13)).tolist(), given=2) for _ in range(2)]
        whole = ngrams.nats(*parts, 5, (1, 2))
        monkeypatch.setattr(ngrams, "CHUNK", 17)
        assert ngrams.nats(*parts, 5, (1, 2)) == pytest.approx(whole, rel=1e-12)


def test_a_sheet_of_images_is_written(tmp_path: Path) -> None:
    images = [np.full((32, 32, 3), 50 * index, np.uint8) for index in range(5)]
    save_sheet(images, tmp_path / "a" / "sheet.png")
    with Image.open(tmp_path / "a" / "sheet.png") as sheet:
        assert sheet.size == (3 * 34 * 3, 2 * 34 * 3)
    with pytest.raises(LrbenchError, match="sheet.png"):
        save_sheet(images, tmp_path / "a" / "sheet.png" / "no")


def test_show_writes_pictures(call: Called, tmp_path: Path) -> None:
    code, out, err = call("data", "show", "cifar10-density", "--preset", "tiny", "-n", 2, "--png", tmp_path / "a.png")
    assert code == 0, err
    assert (tmp_path / "a.png").stat().st_size > 100 and "bits" not in err
    code, _, err = call("data", "show", "listops", "--preset", "tiny", "--png", tmp_path / "b.png")
    assert code == 2 and "no images" in err


def test_a_tiny_run_ends_in_bits(tmp_path: Path) -> None:
    record = run_tiny("cifar10-density", tmp_path)
    test = record["metrics"]["test"]
    assert 4.0 < test["bits_per_dim"] < 9.0 and test["scored"] == 8 * 3072
    assert record["data"]["source"] == "stand-in" and "pixel to the left" in record["baselines"]


@pytest.mark.parametrize(
    ("drawing", "steps", "rate", "low", "high"),
    [("noise", 130, 3e-3, 7.99, 8.01), ("constant", 160, 1e-2, 0.003, 0.1)],
)
def test_noise_costs_eight_bits_and_constants_next_to_nothing(
    call: Called, drawing: str, steps: int, rate: float, low: float, high: float
) -> None:
    sets = {"data.options.drawing": drawing, "data.examples": "[1000,4,16]", "model.positions": "rotary"}
    sets |= {"train.lr": rate, "train.batch": 4, "train.schedule": "cosine", "train.eval_every": 200}
    flags = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    given = ("-m", "local[window=8]", "-t", "cifar10-density", "--preset", "tiny", "--steps", steps, "--threads", 1)
    code, out, err = call("run", *given, *flags, "--quiet", "--json")
    assert code == 0, err
    (record,) = json.loads(out)
    assert low < record["metrics"]["test"]["bits_per_dim"] < high

"""The Pathfinder tasks: what is drawn, what the label may and may not tell, files of the release."""

import hashlib
import io
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from task_helpers import GENUINE, genuine, model_of, request_for, run_tiny

from lrbench.errors import LrbenchError, Missing, SpecError
from lrbench.loaders import baselines, pathfinder
from lrbench.loaders.blocks import BlockSplit
from lrbench.loaders.pathfinder_drawing import dilate, shrink, tables
from lrbench.loaders.pathfinder_generator import DESIGNS, GENERATOR, Images, images
from lrbench.loaders.pictures import block
from lrbench.train.batches import collate

SIZES = {"pathfinder32": 32, "pathfinder64": 64, "pathx": 128, "pathfinder256": 256}
FEW = {32: 400, 64: 24, 128: 16, 256: 16}
SMALL = request_for("pathfinder32", "tiny")


def drawn(side: int, count: int, seed: int = 0) -> Images:
    """Images with labels 0 and 1 in turn."""
    parts = list(images(side, seed, np.arange(count) % 2))
    return Images(*(np.concatenate(field) for field in zip(*parts, strict=True)))


@pytest.fixture(scope="module", params=[32, 64, 128, 256])
def some(request) -> Images:
    return drawn(request.param, FEW[request.param])


@pytest.fixture(scope="module")
def many() -> Images:
    """Enough for two points at four sigma with a classifier fitted on the half."""
    return drawn(32, 12000)


def split_of(found: Images, chosen: slice) -> BlockSplit:
    return BlockSplit([block(found.images[chosen], found.labels[chosen])])


def folder_of(root: Path, side: int = 32, name: str = "curv_contour_length_14", count: int = 20, **cells: str) -> Path:
    """A set in the layout of the release: `count` images in two batches, cells of line 3 of batch 1 as given."""
    segments = {"curv_contour_length_14": "14", "curv_contour_length_9": "9", "curv_baseline": "6"}[name]
    place = root / f"pathfinder{side}" / name
    (place / "metadata").mkdir(parents=True)
    for batch in range(2):
        (place / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for index in range(count // 2):
            pixels = np.full((side, side), 10 * index + batch, np.uint8)
            Image.fromarray(pixels).save(place / "imgs" / str(batch) / f"sample_{index}.png")
            row = [f"imgs/{batch}", f"sample_{index}.png", str(index), str(index % 2), "1.0", segments]
            row += ["4", "2", "0.5", "1", "1"]
            if batch == 1 and index == 2:
                for column, text in cells.items():
                    row[int(column.removeprefix("c"))] = text
            lines.append(" ".join(each for each in row if each))
        (place / "metadata" / f"{batch}.npy").write_text("\n".join(lines) + "\n")
    return place


class TestGenerator:
    def test_markers_lie_on_one_snake_exactly_when_the_label_says_so(self, some: Images) -> None:
        every = np.arange(len(some.labels))[:, None]
        y, x = some.markers[..., 0], some.markers[..., 1]
        on = np.stack([some.snakes[every, snake, y, x] for snake in (0, 1)], axis=-1)  # image marker snake
        own = on.argmax(-1)
        assert on.max(-1).min() > 180  # either lies on a snake
        assert ((own[:, 0] == own[:, 1]) == (some.labels == 1)).all()

    def test_two_snakes_lie_apart(self, some: Images) -> None:
        both = some.snakes[:, 0].astype(int) + some.snakes[:, 1]
        assert both.max() < 1.8 * 255

    def test_images_fill_their_range_and_no_two_are_the_same(self, some: Images) -> None:
        assert (some.images.max((1, 2)) == 255).all() and (some.images.min((1, 2)) == 0).all()
        assert len({each.tobytes() for each in some.images}) == len(some.images)

    def test_a_marker_can_be_found_again(self, some: Images) -> None:
        side = some.images.shape[1]
        found = np.stack([pathfinder.marked(each.ravel(), side) for each in some.images])
        apart = np.hypot(*(found[:, :, None] - some.markers[:, None]).transpose(3, 0, 1, 2))  # image found true
        near = apart.min(2).max(1) < DESIGNS[side].marker_radius + 1
        assert near.mean() > 0.9

    def test_labels_only_move_the_markers(self) -> None:
        zero, one = (list(images(32, 4, np.full(50, label)))[0] for label in (0, 1))
        assert (zero.snakes == one.snakes).all() and (zero.markers[:, 0] == one.markers[:, 0]).all()
        assert (zero.markers[:, 1] != one.markers[:, 1]).any(1).all()

    def test_ink_alone_says_nothing(self, many: Images) -> None:
        train, test = split_of(many, slice(0, 6000)), split_of(many, slice(6000, None))
        score = baselines.binned(train, test, pathfinder._mean, pathfinder._inked)
        assert abs(score - 0.5) <= 0.02

    def test_ink_that_tells_is_caught(self, many: Images) -> None:
        bright = np.minimum(many.images.astype(int) + 20 * many.labels[:, None, None], 255).astype(np.uint8)
        leak = many._replace(images=bright)
        train, test = split_of(leak, slice(0, 6000)), split_of(leak, slice(6000, None))
        assert baselines.binned(train, test, pathfinder._mean, pathfinder._inked) > 0.6

    @pytest.mark.parametrize(
        ("side", "count", "digest"),
        [(32, 200, "b3dcbfc3"), (64, 3, "657f4f75"), (128, 8, "6d03f9f2"), (256, 8, "480871d2")],
    )
    def test_a_seed_gives_the_images_of_this_version(self, side: int, count: int, digest: str) -> None:
        """Whoever changes what is drawn raises `GENERATOR` and the versions of the cards."""
        assert GENERATOR == "lrbench pathfinder 2"
        assert hashlib.sha256(drawn(side, count, 1).images.tobytes()).hexdigest().startswith(digest)

    def test_the_same_seed_gives_the_same_images(self) -> None:
        first, again, other = (drawn(32, 20, seed) for seed in (1, 1, 2))
        assert (first.images == again.images).all() and (first.images != other.images).any()

    @genuine("pathfinder")
    def test_segments_and_markers_look_like_the_originals(self) -> None:
        """Of the original's dashes on black ground, upright ones come in the same three shades as ours."""
        paths = sorted((GENUINE / "pathfinder/pathfinder32/curv_contour_length_14/imgs").glob("*/*.png"))
        original = np.stack([np.array(Image.open(path)) for path in paths])
        for shades in ((133, 191, 151), (177, 255, 201)):
            for found in (original, drawn(32, 400).images):
                column = np.ones(found[:, 2:].shape, bool)
                for offset, shade in enumerate(shades):
                    column &= found[:, offset : offset + column.shape[1]] == shade
                assert column.any((1, 2)).sum() > 20

    @genuine("pathfinder")
    @pytest.mark.parametrize(("size", "count", "room"), [(32, 400, 0.05), (128, 16, 0.15)])
    def test_ink_is_that_of_the_original(self, size: int, count: int, room: float) -> None:
        paths = sorted((GENUINE / f"pathfinder/pathfinder{size}/curv_contour_length_14/imgs").glob("*/*.png"))
        original = np.stack([np.array(Image.open(path)) for path in paths])
        ours = drawn(size, count).images
        assert ours.mean() == pytest.approx(original.mean(), rel=room)
        assert (ours > 0).mean() == pytest.approx((original > 0).mean(), rel=room)


class TestDrawing:
    def test_shrinking_is_that_of_pillow(self) -> None:
        given = np.random.default_rng(0).integers(0, 2, (5, 17, 17)).astype(np.uint8) * 255
        ours = shrink(given, 9).astype(int)
        pillow = [np.array(Image.fromarray(each).resize((9, 9), Image.Resampling.LANCZOS)) for each in given]
        assert np.abs(ours - np.stack(pillow).astype(int)).max() <= 1

    def test_dilation_is_the_greatest_in_a_disc(self) -> None:
        image = np.zeros((1, 7, 7), np.uint8)
        image[0, 3, 3] = 9
        y, x = np.mgrid[-3:4, -3:4]
        assert (dilate(image, 2)[0] == 9 * (y * y + x * x <= 4)).all()

    def test_a_snake_likes_to_go_straight_on(self) -> None:
        table = tables(DESIGNS[128], 3)
        weights = table.weights[180]  # the direction of degree 0, to the right
        assert table.ring[weights.argmax(), 0] == 0 and table.ring[weights.argmax(), 1] > 0
        assert weights[table.ring[:, 1] < 0].max() < 1e-12


class TestTask:
    @pytest.mark.parametrize("task", SIZES)
    def test_the_cards_agree_with_the_designs(self, task: str) -> None:
        for preset in ("tiny", "small", "paper"):
            assert request_for(task, preset).length == SIZES[task] ** 2

    @pytest.mark.parametrize(
        ("task", "count"),
        [("pathfinder32", 26_530), ("pathfinder64", 153_186), ("pathx", 537_954), ("pathfinder256", 2_119_266)],
    )
    def test_the_paper_presets_have_the_published_numbers_of_parameters(self, task: str, count: int) -> None:
        assert sum(p.numel() for p in model_of(task, "paper").parameters()) == count

    def test_generated_data_hold_up(self, tmp_path: Path) -> None:
        request = replace(SMALL, examples=(600, 100, 200))
        data = pathfinder.load(request, tmp_path)
        assert data.source == "generated" and "same family" in " ".join(data.notes)
        assert all(check.ok for check in pathfinder.verify(data, request))
        assert [int(split.labels.sum()) for split in data.splits.values()] == [300, 50, 100]
        assert set(data.baselines) == {"majority", "ink", "marker distance"}
        assert data.fingerprint == pathfinder.load(request, tmp_path / "again").fingerprint
        few = pathfinder.load(replace(request, limit=20), tmp_path)
        assert len(few.test) == 20 and few.fingerprint != data.fingerprint

    def test_the_ground_is_real(self, tmp_path: Path) -> None:
        data = pathfinder.load(SMALL, tmp_path)
        batch = collate(data.train, [0, 1, 2])
        assert batch.mask is None and (batch.tokens == 0).sum() > 1000 and batch.real_tokens == 3072

    def test_verify_finds_a_shortcut(self, tmp_path: Path) -> None:
        request = replace(SMALL, examples=(64, 16, 1600))
        data = pathfinder.load(request, tmp_path)
        wrong = pathfinder.verify(replace(data, baselines={**data.baselines, "ink": 0.6}), request)
        assert [check.name for check in wrong if not check.ok] == ["ink"]

    def test_two_halves_of_black_and_white_are_drawn(self) -> None:
        pixels = np.zeros((32, 32), np.uint8)
        pixels[16:] = 255
        text = pathfinder.describe(BlockSplit([block(pixels[None], np.array([1]))])[0])
        assert text.splitlines()[8:] == ["@" * 32] * 8 + ["answer: one path"]

    @pytest.mark.parametrize(
        ("change", "message"), [({"length": 1000}, "data.length 1000"), ({"source": "hub"}, "hub")]
    )
    def test_what_there_is_not_is_refused(self, change: dict, message: str, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=message):
            pathfinder.load(replace(SMALL, **change), tmp_path)
        with pytest.raises(SpecError, match="only the hard set"):
            pathfinder.load(SMALL, tmp_path, difficulty="easy")


class TestFiles:
    @pytest.mark.parametrize("given", ["", "pathfinder32", "pathfinder32/curv_contour_length_14"])
    def test_a_set_is_read_by_number_of_batch(self, given: str, tmp_path: Path) -> None:
        folder_of(tmp_path)
        data = pathfinder.load(replace(SMALL, source=str(tmp_path / given)), tmp_path / "cache")
        assert [len(split) for split in data.splits.values()] == [16, 2, 2]
        assert [int(data.train[index].views[0][0]) for index in (0, 9, 10)] == [0, 90, 1]
        assert data.train.labels.tolist() == [0, 1] * 8 and data.test.labels.tolist() == [0, 1]

    @pytest.mark.parametrize("kind", ["U", "S"])
    def test_real_arrays_of_text_are_read(self, kind: str, tmp_path: Path) -> None:
        place = folder_of(tmp_path)
        plain = pathfinder.load(replace(SMALL, source=str(tmp_path)), tmp_path / "cache")
        for path in (place / "metadata").glob("*.npy"):
            rows = [line.split() for line in path.read_text().splitlines()]
            stream = io.BytesIO()
            np.save(stream, np.array(rows).astype(kind))
            path.write_bytes(stream.getvalue())
        data = pathfinder.load(replace(SMALL, source=str(tmp_path)), tmp_path / "cache")
        assert data.fingerprint == plain.fingerprint

    def test_a_pickled_table_is_refused_and_not_run(self, tmp_path: Path) -> None:
        place = folder_of(tmp_path)
        stream = io.BytesIO()
        np.save(stream, np.array([["a", 1]], dtype=object), allow_pickle=True)
        (place / "metadata" / "0.npy").write_bytes(stream.getvalue())
        refuses(tmp_path, "0.npy: no NumPy array that can be read safely")
        (place / "metadata" / "0.npy").write_bytes(pickle.dumps(["a"]))
        refuses(tmp_path, "0.npy: neither a table in plain text nor a NumPy array")

    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            ({"c3": "2"}, r"1.npy:3: the label \(column 4\) is '2'"),
            ({"c3": "1.0"}, r"1.npy:3: the label \(column 4\) is '1.0'"),
            ({"c5": "9"}, r"1.npy:3: paths of '9' segments \(column 6\) in place of 14"),
            ({"c10": ""}, "1.npy:3: 10 columns in place of 11"),
            ({"c1": "sample_77.png"}, "1.npy:3: imgs/1/sample_77.png is not there"),
            ({"c0": "../../imgs"}, "1.npy:3: .* lies outside the set"),
        ],
    )
    def test_faults_name_file_and_line(self, cells: dict, message: str, tmp_path: Path) -> None:
        folder_of(tmp_path, **cells)
        refuses(tmp_path, message)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "sample_3.png: the image is empty"),
            (b"no image", "sample_3.png: no whole PNG"),
            (None, "sample_3.png: an image of 16 x 16 pixels in place of 32 x 32"),
        ],
    )
    def test_a_faulty_image_is_named(self, content: bytes | None, message: str, tmp_path: Path) -> None:
        image = folder_of(tmp_path) / "imgs" / "1" / "sample_3.png"
        image.write_bytes(content) if content is not None else Image.new("L", (16, 16)).save(image)
        refuses(tmp_path, message)

    def test_another_set_is_not_the_hard_one(self, tmp_path: Path) -> None:
        folder_of(tmp_path, name="curv_contour_length_9")
        with pytest.raises(Missing, match="no pathfinder32/curv_contour_length_14 in"):
            pathfinder.load(replace(SMALL, source=str(tmp_path)), tmp_path / "cache")
        data = pathfinder.load(replace(SMALL, source=str(tmp_path)), tmp_path / "cache", difficulty="intermediate")
        assert "set curv_contour_length_9" in data.notes

    @genuine("pathfinder")
    def test_genuine_images(self, tmp_path: Path) -> None:
        counts = {
            ("pathfinder32", "hard"): [320, 40, 40],
            ("pathfinder32", "intermediate"): [48, 6, 6],
            ("pathfinder32", "easy"): [159, 20, 20],  # one of the 200 is empty, as in the release
            ("pathx", "hard"): [24, 3, 3],
        }
        for (task, difficulty), sizes in counts.items():
            request = request_for(task, "paper", source=str(GENUINE / "pathfinder"))
            data = pathfinder.load(request, tmp_path, difficulty=difficulty)
            assert [len(split) for split in data.splits.values()] == sizes
            assert all(check.ok for check in pathfinder.verify(data, request, difficulty=difficulty))
            assert any("sample_172.png" in note for note in data.notes) == (difficulty == "easy")


@pytest.mark.parametrize("task", ["pathfinder32", "pathx"])
def test_a_tiny_run_from_the_command_line(task: str, tmp_path: Path) -> None:
    record = run_tiny(task, tmp_path)
    assert record["status"] == "ok" and record["data"]["source"] == "generated"
    assert set(record["baselines"]) == {"majority", "ink", "marker distance"}


def refuses(root: Path, message: str) -> None:
    """One line, and nothing in the cache."""
    with pytest.raises(LrbenchError, match=message) as caught:
        pathfinder.load(replace(SMALL, source=str(root)), root / "other")
    assert isinstance(caught.value, SpecError) and "\n" not in caught.value.message
    assert not list((root / "other").rglob("*.arrow"))

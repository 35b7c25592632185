"""Pathfinder images by the thousand: two long dashed paths, short ones to distract, two marked ends.

Linsley et al. 2018, with the parameters of the Long Range Arena's hard sets (14 segments). Two snakes grow in turn on
one map of what is occupied; each next segment begins where the last one points to and turns by chance, the less the
likelier. A segment that would touch others is drawn anew (twice), then the whole pair. Then short snakes are set where
there is room (four more tries each; one that still fails is left out). The label only says which ends are marked:
the two of one snake, or one of either.

The original draws image by image. Here hundreds grow side by side in numpy arrays: all positions are whole pixels,
so segments are looked up in tables and laid over one another. Random words are the raw output of Philox. Differences:
a pair of snakes that overlap is begun anew, for there each is blind to the latest segment of the other and an end of
one may come to lie on the other (7 of 1,000 images of 32 pixels); the last segments of both count as occupied, not of
the second alone; room for a short snake is sought at 128 random places, where the original lists all (it matters where
under 1 % of them have room).
Whether the released sets hold more distractors or stray paddles is not known: here are as many as the parameters say,
and none astray.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.pathfinder_drawing import DEGREES, FULL, TOO_MUCH, Design, Stamps, Tables, disc, tables
from lrbench.loaders.streams import Stream

GENERATOR = "lrbench pathfinder 2"  # raised whenever a seed gives other images
DESIGNS = {
    32: Design(32, 1, 2, 0.5, (1,), 1.5, 7, 1.0, 5, 2.0, 0.75),
    64: Design(64, 1, 5, 1.0, (1,), 2.5, 12, 1.8, 5, 0.8, 1.0),
    128: Design(128, 1, 5, 1.5, (2, 3), 3.0, 20, 1.8, 8, 0.9, 1.0),
    256: Design(256, 22, 5, 2.0, (3,), 5.0, 27, 1.8, 7, 1.0, 1.0),
}
PIXELS = 2**24  # of the pairs of long snakes that are begun side by side
PAIRS = 8192  # at most
RETRIES = 2  # of a segment
SNAKE_RETRIES = 4  # of a distractor
PLACES = 128  # tried for a distractor
TAKEN = int(0.3 * FULL)  # what a distractor's first segment may not lie on


class Images(NamedTuple):
    """Some images, and how they came about."""

    images: NDArray[np.uint8]  # image, y, x
    labels: NDArray[np.int64]
    markers: NDArray[np.int64]  # image, marker, (y, x)
    snakes: NDArray[np.uint8]  # image, long snake, y, x: what it occupies


class Canvas:
    """What is occupied in images side by side, each with a border so that stamps may hang over."""

    def __init__(self, design: Design, table: Tables, count: int) -> None:
        self.design, self.table = design, table
        self.area = table.side**2
        self.mask = self._framed(count, 0, design.padding)
        # that, and its surroundings as far as the margin; outside there is no way on either
        self.near = self._framed(count, FULL, design.padding + table.margin)

    def layer(self, count: int) -> NDArray[np.uint8]:
        """An empty layer: image, cell."""
        return np.zeros((count, self.area), np.uint8)

    def cropped(self, layer: NDArray[Any]) -> NDArray[Any]:
        """A layer without its border: image, y, x."""
        border, side = self.table.border, self.table.side
        return layer.reshape(-1, side, side)[:, border:-border, border:-border]

    def of(self, rows: NDArray[np.int64]) -> None:
        """Keep some images only."""
        self.mask, self.near = self.mask[rows], self.near[rows]

    def _framed(self, count: int, outside: int, width: int) -> NDArray[np.uint8]:
        """A layer with a full frame inside the image's edge."""
        one = np.full((1, self.area), outside, np.uint8)
        inside = self.cropped(one)
        inside[:] = FULL
        inside[:, width:-width, width:-width] = 0
        return np.repeat(one, count, axis=0)


class Segments(NamedTuple):
    """A segment in each of some images: the last one of a growing snake, which does not count as occupied yet."""

    rows: NDArray[np.int64]  # of the canvas
    pivots: NDArray[np.int64]  # cells
    directions: NDArray[np.int64]  # of the tables
    heads: NDArray[np.int64]  # its outer end's cells

    def of(self, chosen: NDArray[np.int64]) -> "Segments":
        """Those of some images."""
        return Segments(*(each[chosen] for each in self))


class _Pairs(NamedTuple):
    """Images with two long snakes each, and a canvas with what these occupy."""

    canvas: Canvas
    directions: NDArray[np.int64]  # image, snake, segment
    heads: NDArray[np.int64]  # image, snake, segment: cell
    owned: list[NDArray[np.uint8]]  # what either occupies: image, cell


class _Unmarked(NamedTuple):
    """One image before its ends are marked, in units of 1 / 255 of a marker."""

    image: NDArray[np.float32]
    origins: NDArray[np.int64]  # long snake, (y, x)
    tips: NDArray[np.int64]
    snakes: NDArray[np.uint8]


def images(size: int, seed: int, labels: NDArray[np.int64]) -> Iterator[Images]:
    """One image for each label, in their order. Some 1 ms each at 32 pixels on one core."""
    design = DESIGNS[size]
    # each margin has a row of images of its own, for they differ in how often a pair of snakes fails
    rows = [_endless(design, margin, Stream(seed, number + 1)) for number, margin in enumerate(design.margins)]
    choice = Stream(seed, 0)
    step = max(16, PIXELS // 64 // size**2)
    for start in range(0, len(labels), step):
        some = labels[start : start + step]
        drawn = [next(rows[row]) for row in choice.below(len(rows), len(some)).tolist()]
        yield _marked(design, drawn, some, choice)


def _marked(design: Design, drawn: list[_Unmarked], labels: NDArray[np.int64], random: Stream) -> Images:
    """Mark one end of either snake, or for label 1 both ends of one, and stretch to 8 bits."""
    every = np.arange(len(drawn))
    first = random.below(2, len(drawn))
    second = np.where(labels == 1, first, 1 - first)
    origins, tips = (np.stack(ends) for ends in zip(*((each.origins, each.tips) for each in drawn), strict=True))
    markers = np.stack([origins[every, first], tips[every, second]], axis=1)
    stamp = disc(design).astype(np.float32)
    reach = len(stamp) // 2
    room = np.pad(np.stack([each.image for each in drawn]), ((0, 0), (reach, reach), (reach, reach)))
    for image, both in zip(room, markers.tolist(), strict=True):
        for y, x in both:
            patch = image[y : y + len(stamp), x : x + len(stamp)]
            np.maximum(patch, stamp, out=patch)
    whole = room[:, reach : reach + design.size, reach : reach + design.size]
    # each image is stretched to its brightest point, as the original's way of saving does
    bright = np.floor(whole * (FULL / whole.max((1, 2), keepdims=True)) + np.float32(0.5)).astype(np.uint8)
    return Images(bright, labels, markers, np.stack([each.snakes for each in drawn]))


def _endless(design: Design, margin: int, random: Stream) -> Iterator[_Unmarked]:
    """Images without end, some dozens to hundreds at a time."""
    table = tables(design, margin)
    while True:
        pairs = _two_snakes(design, table, random)
        canvas, count = pairs.canvas, len(pairs.heads)
        if not count:
            continue
        short = canvas.layer(count)
        for _ in range(design.distractors):
            _distract(canvas, short, random)
        long = np.maximum(*_whole(canvas, table.images, pairs.directions, pairs.heads))
        bright = np.maximum(
            np.float32(design.snake_contrast * design.paddle_contrast) * long, np.float32(design.snake_contrast) * short
        )
        whole, masks = canvas.cropped(bright), np.stack([canvas.cropped(each) for each in pairs.owned], axis=1)
        ends = table.places(pairs.heads[:, :, [0, -1]])
        for index in range(count):
            yield _Unmarked(whole[index], ends[index, :, 0], ends[index, :, 1], masks[index])


def _two_snakes(design: Design, table: Tables, random: Stream) -> _Pairs:
    """Pairs of long snakes; most of those that are begun fail, and are given up."""
    snakes = _seeds(design, table, min(PAIRS, PIXELS // design.size**2), random)
    count = len(snakes[0].rows)
    canvas = Canvas(design, table, count)
    directions, heads = (np.zeros((design.segments, 2, count), np.int64) for _ in range(2))
    for segment in range(design.segments):
        for snake in range(2):
            if segment:
                after, good = _extend(canvas, snakes[snake], random)
                snakes = [each.of(good) for each in snakes]
                _occupy(canvas, snakes[snake])
                snakes[snake] = after
            directions[segment, snake, snakes[snake].rows] = snakes[snake].directions
            heads[segment, snake, snakes[snake].rows] = snakes[snake].heads
    for each in snakes:
        _occupy(canvas, each)
    rows = snakes[0].rows
    directions, heads = directions[..., rows].T, heads[..., rows].T
    owned = _whole(canvas, table.masks, directions, heads)
    apart = ~np.any(owned[0].astype(np.int16) + owned[1] >= TOO_MUCH, axis=1)
    canvas.of(rows[apart])
    return _Pairs(canvas, directions[apart], heads[apart], [layer[apart] for layer in owned])


def _whole(
    canvas: Canvas, stamps: Stamps, directions: NDArray[np.int64], heads: NDArray[np.int64]
) -> list[NDArray[np.uint8]]:
    """A layer with all segments of either long snake."""
    every = np.arange(len(heads))
    layers = [canvas.layer(len(heads)) for _ in range(2)]
    for snake, layer in enumerate(layers):
        for segment in range(canvas.design.segments):
            _lay(layer, stamps, every, directions[:, snake, segment], heads[:, snake, segment])
    return layers


def _seeds(design: Design, table: Tables, count: int, random: Stream) -> list[Segments]:
    """The first segments of two long snakes, the seed distance apart at a random angle, in images that take them.

    Of `count` images that are begun; rows count those that are left. To draw a direction anew until the first has a
    place is to draw one of those that have.
    """
    low, high = table.first[..., 0], table.first[..., 1]
    sizes = (high - low).prod(1)
    possible = np.flatnonzero(sizes)
    degrees = possible[random.below(len(possible), count)]
    choice = (random.uniform(count) * sizes[degrees]).astype(np.int64)
    tails = low[degrees] + np.stack(np.divmod(choice, (high - low)[degrees, 1]), axis=1)
    angles = random.below(DEGREES, count) * (np.pi / 180)
    aside = design.seed_distance * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    ends = [(tails, degrees), (tails + np.rint(aside.round(9)).astype(np.int64), random.below(DEGREES, count))]
    good = np.flatnonzero(np.logical_and(*(_fits(design, table, *each) for each in ends)))
    return [_begun(table, np.arange(len(good)), places[good], turned[good]) for places, turned in ends]


def _begun(table: Tables, rows: NDArray[np.int64], tails: NDArray[np.int64], degrees: NDArray[np.int64]) -> Segments:
    """First segments whose outer ends are at (y, x)."""
    return Segments(rows, table.at(tails + table.pivot[degrees]), degrees, table.at(tails))


def _fits(design: Design, table: Tables, tails: NDArray[np.int64], degrees: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether both ends of a first segment and its pivot lie in the image."""
    points = np.stack([tails, tails + table.head[degrees], tails + table.pivot[degrees]])
    return np.asarray(((points >= 0) & (points < design.size)).all((0, 2)))


def _extend(canvas: Canvas, last: Segments, random: Stream) -> tuple[Segments, NDArray[np.int64]]:
    """Draw the next segment of each snake: those that went well, and which these are."""
    turns = canvas.table.turns
    pivots = last.pivots + canvas.table.ahead[last.directions]
    cells = turns.cells.take(last.directions, 0) + (last.rows * canvas.area + pivots)[:, None]
    free = FULL - canvas.near.reshape(-1).take(cells)
    limits = np.cumsum(turns.weights.take(last.directions, 0) * free, axis=1)
    pending = np.flatnonzero(limits[:, -1] > 1e-4 * FULL)
    chosen = np.full(len(limits), -1)
    for _ in range(RETRIES + 1):
        drawn = random.uniform(len(pending)) * limits[pending, -1]
        turn = (limits[pending] > drawn[:, None]).argmax(1)
        directions = DEGREES + turns.places[last.directions[pending], turn]
        blocked = _collides(canvas, directions, cells[pending, turn])
        chosen[pending[~blocked]] = turn[~blocked]
        pending = pending[blocked]
    good = np.flatnonzero(chosen >= 0)
    before, turn = last.directions[good], chosen[good]
    heads = pivots[good] + turns.cells[before, turn]
    return Segments(last.rows[good], pivots[good], DEGREES + turns.places[before, turn], heads), good


def _collides(canvas: Canvas, directions: NDArray[np.int64], heads: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a segment needs what is occupied already; heads are cells of the whole layer."""
    hard = canvas.table.hard
    there = canvas.mask.reshape(-1).take(hard.cells.take(directions, 0) + heads[:, None])
    found: NDArray[np.bool_] = np.any(there >= hard.values.take(directions, 0), axis=1)
    return found


def _lay(
    layer: NDArray[np.uint8],
    stamps: Stamps,
    rows: NDArray[np.int64],
    directions: NDArray[np.int64],
    heads: NDArray[np.int64],
) -> None:
    """Draw segments on a layer, over what is darker."""
    cells = stamps.cells.take(directions, 0) + (rows * layer.shape[1] + heads)[:, None]
    flat = layer.reshape(-1)
    flat[cells] = np.maximum(flat.take(cells), stamps.values.take(directions, 0))


def _occupy(canvas: Canvas, segments: Segments) -> None:
    """Let segments count as occupied."""
    rows, _, directions, heads = segments
    _lay(canvas.mask, canvas.table.masks, rows, directions, heads)
    _lay(canvas.near, canvas.table.near, rows, directions, heads)


def _distract(canvas: Canvas, short: NDArray[np.uint8], random: Stream) -> None:
    """Add one short snake to each image that has room for it."""
    pending = np.arange(len(canvas.mask))
    for _ in range(SNAKE_RETRIES + 1):
        begun = _short_seeds(canvas, pending, random)
        if not len(begun.rows):
            continue
        before = canvas.mask[begun.rows], canvas.near[begun.rows]
        parts = _short_snakes(canvas, begun, random)
        for rows, _, directions, heads in parts:
            _lay(short, canvas.table.images, rows, directions, heads)
        done = parts[-1].rows
        failed = ~np.isin(begun.rows, done)
        undone = begun.rows[failed]
        canvas.mask[undone], canvas.near[undone] = (layer[failed] for layer in before)
        pending = pending[~np.isin(pending, done)]


def _short_snakes(canvas: Canvas, begun: Segments, random: Stream) -> list[Segments]:
    """The segments of the short snakes that could be grown; they are occupied, and so are parts of those that not."""
    parts = [begun]
    for _ in range(canvas.design.distractor_segments - 1):
        after, good = _extend(canvas, parts[-1], random)
        parts = [part.of(good) for part in parts]
        _occupy(canvas, parts[-1])
        parts.append(after)
    _occupy(canvas, parts[-1])
    return parts


def _short_seeds(canvas: Canvas, rows: NDArray[np.int64], random: Stream) -> Segments:
    """A first segment in each of the images that have room: at the first of some random places that has it."""
    table, mask = canvas.table, canvas.mask.reshape(-1)
    degrees = random.below(DEGREES, len(rows))
    places = random.below(canvas.design.size, len(rows), PLACES, 2)
    placed = np.flatnonzero(table.placed[degrees])
    cells = (rows[placed] * canvas.area)[:, None] + table.at(places[placed])
    image, place = np.nonzero(mask.take(cells) <= TAKEN)  # the edge is occupied
    cells = cells[image, place]
    image = placed[image]
    for pixel in range(table.needs.shape[1]):
        free = mask.take(cells + table.needs[degrees[image], pixel]) <= TAKEN
        image, place, cells = image[free], place[free], cells[free]
    found, first = np.unique(image, return_index=True)
    tails = places[found, place[first]]
    fits = np.flatnonzero(_fits(canvas.design, table, tails, degrees[found]))
    return _begun(table, rows[found], tails, degrees[found]).of(fits)

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

from lrbench.loaders.pathfinder_drawing import DEGREES, FULL, Design, Stamps, Tables, disc, tables
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
TOO_MUCH = int(1.8 * FULL)  # what a segment may not reach together with what is there
TAKEN = int(0.3 * FULL)  # what a distractor's first segment may not lie on


class Images(NamedTuple):
    """Some images, and how they came about."""

    images: NDArray[np.uint8]  # image, y, x
    labels: NDArray[np.int64]
    markers: NDArray[np.int64]  # image, marker, (y, x)
    snakes: NDArray[np.uint8]  # image, long snake, y, x: what it occupies


class Canvas:
    """Images side by side, each with a border so that stamps may hang over."""

    def __init__(self, design: Design, table: Tables, count: int) -> None:
        self.design, self.table = design, table
        self.border = table.reach + design.length
        self.side = design.size + 2 * self.border
        self.mask = self.layer(count)  # what is occupied
        self.near = self.layer(count)  # that, and its surroundings as far as the margin
        for layer, width in ((self.mask, design.padding), (self.near, design.padding + table.margin)):
            inside = self.cropped(layer)
            inside[:] = FULL
            inside[:, width:-width, width:-width] = 0

    def layer(self, count: int) -> NDArray[np.uint8]:
        """An empty layer: image, cell."""
        return np.zeros((count, self.side * self.side), np.uint8)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cells of (y, x)."""
        cells: NDArray[np.int64] = (places[..., 0] + self.border) * self.side + places[..., 1] + self.border
        return cells

    def inside(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether (y, x) lies in the image."""
        size = self.design.size
        y, x = places[..., 0], places[..., 1]
        inside: NDArray[np.bool_] = (y >= 0) & (y < size) & (x >= 0) & (x < size)
        return inside

    def cropped(self, layer: NDArray[Any]) -> NDArray[Any]:
        """A layer without its border: image, y, x."""
        whole = layer.reshape(-1, self.side, self.side)
        return whole[:, self.border : -self.border, self.border : -self.border]


class Segments(NamedTuple):
    """A segment in each of some images: the last one of a growing snake, which does not count as occupied yet."""

    rows: NDArray[np.int64]  # of the canvas
    pivots: NDArray[np.int64]
    directions: NDArray[np.int64]  # of the tables
    heads: NDArray[np.int64]  # its outer end

    def of(self, chosen: NDArray[np.bool_]) -> "Segments":
        """Those of some images."""
        return Segments(*(each[chosen] for each in self))


class _Pairs(NamedTuple):
    """Images with two long snakes each, and a canvas with what these occupy."""

    canvas: Canvas
    directions: NDArray[np.int64]  # image, snake, segment
    heads: NDArray[np.int64]  # image, snake, segment, (y, x)
    owned: list[NDArray[np.uint8]]  # what either occupies: image, cell


class _Unmarked(NamedTuple):
    """One image before its ends are marked, in units of 1 / 255 of a marker."""

    image: NDArray[np.float32]
    origins: NDArray[np.int64]  # long snake, (y, x)
    tips: NDArray[np.int64]
    snakes: NDArray[np.uint8]


def images(size: int, seed: int, labels: NDArray[np.int64]) -> Iterator[Images]:
    """One image for each label, in their order. Some 2 ms each at 32 pixels on one core."""
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
        long = canvas.layer(count)
        every = np.arange(count)
        for snake in range(2):
            for segment in range(design.segments):
                part = Segments(every, every, pairs.directions[:, snake, segment], pairs.heads[:, snake, segment])
                _lay(canvas, long, table.images, part)
        bright = np.maximum(
            np.float32(design.snake_contrast * design.paddle_contrast) * long, np.float32(design.snake_contrast) * short
        )
        whole, masks = canvas.cropped(bright), np.stack([canvas.cropped(each) for each in pairs.owned], axis=1)
        for index in range(count):
            heads = pairs.heads[index]
            yield _Unmarked(whole[index], heads[:, 0], heads[:, -1], masks[index])


def _two_snakes(design: Design, table: Tables, random: Stream) -> _Pairs:
    """Pairs of long snakes; most of those that are begun fail, and are given up."""
    canvas = Canvas(design, table, min(PAIRS, PIXELS // design.size**2))
    count = len(canvas.mask)
    directions = np.zeros((count, 2, design.segments), np.int64)
    heads = np.zeros((count, 2, design.segments, 2), np.int64)
    snakes = _seeds(canvas, random)
    for segment in range(design.segments):
        for snake in range(2):
            if segment:
                before = snakes[snake]
                after, good = _extend(canvas, before, random)
                _occupy(canvas, before.of(good))
                snakes = [each.of(good) for each in snakes]
                snakes[snake] = after.of(good)
            directions[snakes[snake].rows, snake, segment] = snakes[snake].directions
            heads[snakes[snake].rows, snake, segment] = snakes[snake].heads
    for each in snakes:
        _occupy(canvas, each)
    rows = snakes[0].rows
    owned = _owned(canvas, directions[rows], heads[rows])
    apart = ~np.any(owned[0].astype(np.int16) + owned[1] >= TOO_MUCH, axis=1)
    rows = rows[apart]
    canvas.mask, canvas.near = canvas.mask[rows], canvas.near[rows]
    return _Pairs(canvas, directions[rows], heads[rows], [layer[apart] for layer in owned])


def _owned(canvas: Canvas, directions: NDArray[np.int64], heads: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """What each of two long snakes occupies."""
    every = np.arange(len(heads))
    layers = []
    for snake in range(2):
        layers.append(canvas.layer(len(heads)))
        for segment in range(canvas.design.segments):
            part = Segments(every, every, directions[:, snake, segment], heads[:, snake, segment])
            _lay(canvas, layers[snake], canvas.table.masks, part)
    return layers


def _seeds(canvas: Canvas, random: Stream) -> list[Segments]:
    """The first segments of two long snakes, the seed distance apart at a random angle, in the images that take them.

    To draw a direction anew until the first has a place is to draw one of those that have.
    """
    design, table, count = canvas.design, canvas.table, len(canvas.mask)
    possible = np.array([degree for degree, places in enumerate(table.first) if len(places)])
    degrees = possible[random.below(len(possible), count)]
    sizes = np.array([len(places) for places in table.first])
    choice = (random.uniform(count) * sizes[degrees]).astype(np.int64)
    tails = np.concatenate(table.first)[np.cumsum(sizes)[degrees] - sizes[degrees] + choice]
    first = _begun(canvas, np.arange(count), tails, degrees)
    angles = random.below(DEGREES, count) * (np.pi / 180)
    aside = design.seed_distance * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    tails = tails + np.rint(aside.round(9)).astype(np.int64)
    second = _begun(canvas, np.arange(count), tails, random.below(DEGREES, count))
    good = _fits(canvas, first) & _fits(canvas, second)
    return [first.of(good), second.of(good)]


def _begun(canvas: Canvas, rows: NDArray[np.int64], tails: NDArray[np.int64], degrees: NDArray[np.int64]) -> Segments:
    return Segments(rows, tails + canvas.table.pivot[degrees], degrees, tails)


def _fits(canvas: Canvas, begun: Segments) -> NDArray[np.bool_]:
    inner = begun.heads + canvas.table.head[begun.directions]
    return canvas.inside(inner) & canvas.inside(begun.pivots) & canvas.inside(begun.heads)


def _extend(canvas: Canvas, last: Segments, random: Stream) -> tuple[Segments, NDArray[np.bool_]]:
    """Draw the next segment of each snake, and tell where that went well."""
    table = canvas.table
    pivots = last.pivots + table.ahead[last.directions]
    places = pivots[:, None] + table.ring  # image place (y, x)
    inside = canvas.inside(places)
    cells = last.rows[:, None] * canvas.mask.shape[1] + np.where(inside, canvas.at(places), 0)
    free = FULL - canvas.near.reshape(-1)[cells]
    limits = np.cumsum(table.weights[last.directions] * np.where(inside, free, 0), axis=1)
    pending = np.flatnonzero(limits[:, -1] > 1e-4 * FULL)
    chosen = np.zeros(len(places), np.int64)
    good = np.zeros(len(places), bool)
    for _ in range(RETRIES + 1):
        drawn = random.uniform(len(pending)) * limits[pending, -1]
        chosen[pending] = (limits[pending] > drawn[:, None]).argmax(1)
        trial = Segments(
            last.rows[pending], pivots[pending], DEGREES + chosen[pending], places[pending, chosen[pending]]
        )
        blocked = _collides(canvas, trial)
        good[pending[~blocked]] = True
        pending = pending[blocked]
    heads = places[np.arange(len(places)), chosen]
    return Segments(last.rows, pivots, DEGREES + chosen, heads), good


def _cells(canvas: Canvas, stamps: Stamps, segments: Segments) -> NDArray[np.int64]:
    """The cells of a flat layer that the stamps of some segments fall on."""
    offsets = stamps.places[..., 0] * canvas.side + stamps.places[..., 1]
    first = segments.rows * canvas.mask.shape[1] + canvas.at(segments.heads)
    cells: NDArray[np.int64] = first[:, None] + offsets[segments.directions]
    return cells


def _lay(canvas: Canvas, layer: NDArray[np.uint8], stamps: Stamps, segments: Segments) -> None:
    cells = _cells(canvas, stamps, segments)
    flat = layer.reshape(-1)
    flat[cells] = np.maximum(flat[cells], stamps.values[segments.directions])


def _collides(canvas: Canvas, segments: Segments) -> NDArray[np.bool_]:
    """Whether a segment needs what is occupied already."""
    masks = canvas.table.masks
    there = canvas.mask.reshape(-1)[_cells(canvas, masks, segments)]
    together = there.astype(np.int16) + masks.values[segments.directions]
    found: NDArray[np.bool_] = np.any(together >= TOO_MUCH, axis=1)
    return found


def _occupy(canvas: Canvas, segments: Segments) -> None:
    """Let segments count as occupied."""
    _lay(canvas, canvas.mask, canvas.table.masks, segments)
    _lay(canvas, canvas.near, canvas.table.near, segments)


def _distract(canvas: Canvas, short: NDArray[np.uint8], random: Stream) -> None:
    """Add one short snake to each image that has room for it."""
    pending = np.arange(len(canvas.mask))
    for _ in range(SNAKE_RETRIES + 1):
        before = canvas.mask[pending], canvas.near[pending]
        done, parts = _short_snake(canvas, pending, random)
        for part in parts:
            _lay(canvas, short, canvas.table.images, part)
        failed = ~done
        canvas.mask[pending[failed]], canvas.near[pending[failed]] = (layer[failed] for layer in before)
        pending = pending[failed]


def _short_snake(canvas: Canvas, rows: NDArray[np.int64], random: Stream) -> tuple[NDArray[np.bool_], list[Segments]]:
    """Try a short snake in some images; in which of them that went well, and its segments there."""
    last = _short_seeds(canvas, rows, random)
    parts = [last]
    for _ in range(canvas.design.distractor_segments - 1):
        after, good = _extend(canvas, last, random)
        _occupy(canvas, last.of(good))
        last = after.of(good)
        parts = [*(part.of(good) for part in parts), last]
    _occupy(canvas, last)
    return np.isin(rows, last.rows), parts


def _short_seeds(canvas: Canvas, rows: NDArray[np.int64], random: Stream) -> Segments:
    """A first segment in each of the images that have room: at the first of some random places that has it."""
    degrees = random.below(DEGREES, len(rows))
    places = random.below(canvas.design.size, len(rows), PLACES, 2)
    taken = canvas.mask[rows] > TAKEN
    edge = canvas.cropped(taken)
    edge[:, [0, -1]] = True
    edge[:, :, [0, -1]] = True
    cells = canvas.at(places)
    image, place = np.nonzero(~taken[np.arange(len(rows))[:, None], cells] & canvas.table.placed[degrees][:, None])
    needs = canvas.table.needs[..., 0] * canvas.side + canvas.table.needs[..., 1]  # degree, pixel
    for pixel in range(needs.shape[1]):
        free = ~taken[image, cells[image, place] + needs[degrees[image], pixel]]
        image, place = image[free], place[free]
    found, first = np.unique(image, return_index=True)
    begun = _begun(canvas, rows[found], places[found, place[first]], degrees[found])
    return begun.of(_fits(canvas, begun))

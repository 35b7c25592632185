"""The shapes that Pathfinder images are put together from, drawn once for every direction they can take.

Everything in an image lies on whole pixels, and a direction is one of 360 degrees for a first segment, or leads from
a pivot to one of the pixels on a ring around it. So the segments, what they occupy and where they may go on are tables.
Drawn as by Linsley et al.: at `antialias` times the size, then reduced by Lanczos' filter.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DEGREES = 360
FULL = 255
FAINT = 16  # what the filter leaves around a segment below this occupies nothing
TOO_MUCH = int(1.8 * FULL)  # what a segment may not reach together with what is there
NO_TURN = 1e-20  # the square of a cosine that is zero but for rounding; the least that is meant is above 1e-7


@dataclass(frozen=True)
class Design:
    """The parameters of one size: names and values of the Long Range Arena's generator, hard set."""

    size: int
    padding: int
    length: int  # of a paddle, in pixels
    thickness: float
    margins: tuple[int, ...]  # one is drawn for each image
    marker_radius: float
    seed_distance: int
    continuity: float
    distractors: int
    snake_contrast: float
    paddle_contrast: float
    segments: int = 14  # of the two long snakes
    distractor_segments: int = 4  # a third of 14, rounded down
    antialias: int = 2


class Stamps(NamedTuple):
    """A drawing for each direction, as the cells that are not empty; shorter lists repeat their last cell."""

    cells: NDArray[np.int64]  # direction, cell: from that of the segment's outer end
    values: NDArray[np.uint8]  # direction, cell


class Turns(NamedTuple):
    """Where a snake may go on in each direction, in the order of the ring; shorter lists end in places of no weight."""

    places: NDArray[np.int64]  # direction, turn: place on the ring
    cells: NDArray[np.int64]  # direction, turn: from the pivot's cell
    weights: NDArray[np.float64]  # direction, turn: how much a snake likes it


@dataclass(frozen=True)
class Tables:
    """What a margin of a design comes to. Directions: 360 degrees, then one for each pixel of the ring.

    Images have a border so that stamps may hang over. A cell is y · side + x, border included; distances are cells too.
    """

    margin: int
    border: int
    side: int  # of an image with its border
    images: Stamps
    masks: Stamps  # what a segment occupies
    hard: Stamps  # where a segment may touch others, and from which value there that is too much
    near: Stamps  # where no ring may pass because of it
    ahead: NDArray[np.int64]  # direction: cells from a pivot to the next one
    turns: Turns
    head: NDArray[np.int64]  # degree, (y, x): from the outer end of a first segment to its other end
    pivot: NDArray[np.int64]  # degree, (y, x): from the outer end of a first segment to its pivot
    ring: NDArray[np.int64]  # place on the ring, (y, x)
    weights: NDArray[np.float64]  # direction, place on the ring: how much a snake likes to turn there
    first: NDArray[np.int64]  # degree, (y, x), (from, to): where the first of two long snakes may begin
    needs: NDArray[np.int64]  # degree, pixel: cells from a place to what has to be free; repeats its last one
    placed: NDArray[np.bool_]  # degree: whether a first segment finds a place at all

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cells of (y, x)."""
        return _cells(places + self.border, self.side)

    def places(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """The inverse."""
        return np.stack(np.divmod(cells, self.side), axis=-1) - self.border


@lru_cache(maxsize=8)
def tables(design: Design, margin: int) -> Tables:
    """Draw everything; a tenth of a second at 32 pixels, some seconds above."""
    ring = _ring(design.length + margin)
    degrees = np.arange(-180, 180) * (np.pi / 180)
    to_ring = np.arctan2(ring[:, 0], ring[:, 1])
    directions = np.concatenate([degrees, to_ring])
    # a first segment is drawn from its outer end inwards, a later one from its head back to the pivot
    images, masks = _segments(design, margin, np.concatenate([degrees, to_ring + np.pi]))
    near = dilate(np.pad(masks, ((0, 0), (margin, margin), (margin, margin))), margin)
    head = _whole(design.length, degrees)
    needs = _needs(design, margin, masks[:DEGREES])
    placed = np.array([_seen_from_corners(each) for each in needs])
    border = near.shape[1] // 2 + design.length
    side = design.size + 2 * border
    weights = _weights(directions, to_ring, design.continuity)
    return Tables(
        margin=margin,
        border=border,
        side=side,
        images=_stamps(images, 1, side),
        masks=_stamps(masks, FAINT, side),
        hard=_hard(masks, side),
        near=_stamps(near, FAINT, side),
        ahead=_cells(_whole(design.length + 2 * margin, directions), side),
        turns=_turns(weights, _cells(ring, side)),
        head=head,
        pivot=head + _whole(-(design.length + margin), degrees),
        ring=ring,
        weights=weights,
        first=np.stack([_first(design, each) * good for each, good in zip(needs, placed, strict=True)]),
        needs=_cells(_even(needs), side),
        placed=placed,
    )


def disc(design: Design) -> NDArray[np.uint8]:
    """A marker: a square patch around its centre."""
    radius = int(np.ceil(design.marker_radius)) + 3  # as far as the filter rings
    fine = np.arange(design.antialias * (2 * radius + 1)) - design.antialias * radius
    inside = fine[:, None] ** 2 + fine**2 <= (design.marker_radius * design.antialias) ** 2
    return shrink(inside[None] * np.uint8(FULL), 2 * radius + 1)[0]


def shrink(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Reduce squares by Lanczos' filter of three lobes, columns first, each pass rounded to 8 bits: Pillow's way."""
    matrix = _lanczos(images.shape[1], size)
    across = _rounded(images @ matrix.T)
    return _rounded(matrix @ across)


def dilate(images: NDArray[np.uint8], radius: int) -> NDArray[np.uint8]:
    """The greatest value within a disc around each pixel; nothing comes in from outside."""
    size = images.shape[1]
    around = np.zeros((len(images), size + 2 * radius, size + 2 * radius), np.uint8)
    around[:, radius : radius + size, radius : radius + size] = images
    found = images.copy()
    for y in range(-radius, radius + 1):
        for x in range(-radius, radius + 1):
            if x * x + y * y <= radius * radius:
                moved = around[:, radius + y : radius + y + size, radius + x : radius + x + size]
                np.maximum(found, moved, out=found)
    return found


def _segments(
    design: Design, margin: int, directions: NDArray[np.floating]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Lines from the middle of a patch in the given directions, and what they occupy."""
    radius = design.length + int(np.ceil(design.thickness)) + margin
    fine = 2 * radius * design.antialias + 1
    ends = _whole(design.length * design.antialias, directions)
    width = round(design.thickness * design.antialias)
    lines = np.stack([_line(fine, end, width) for end in ends.tolist()])
    return shrink(lines, 2 * radius + 1), shrink(dilate(lines, margin * design.antialias), 2 * radius + 1)


def _line(size: int, end: list[int], width: int) -> NDArray[np.uint8]:
    """From the middle of a square to `end` (y, x) beside it, `width` pixels wide."""
    image = np.zeros((size, size), np.uint8)
    middle = size // 2
    if width == 1:
        steps = max(map(abs, end))
        along = np.arange(steps + 1) / max(steps, 1)
        # half up, as the halves of the common line algorithm go
        y, x = (np.floor(along * part + 0.5).astype(int) for part in end)
        image[middle + y, middle + x] = FULL
        return image
    y, x = np.mgrid[-middle : middle + 1, -middle : middle + 1]
    length = float(np.hypot(end[0], end[1]))
    along = (y * end[0] + x * end[1]) / length
    across = np.abs(x * end[0] - y * end[1]) / length
    image[(along >= -0.5) & (along <= length + 0.5) & (across <= width / 2 - 1e-9)] = FULL
    return image


def _ring(radius: int) -> NDArray[np.int64]:
    """The pixels, relative to the middle, on a circle cut into pieces of a pixel; each once, in reading order."""
    angles = np.arange(0, 360, 180 / (radius * np.pi)) * (np.pi / 180)
    points = np.stack([radius * np.sin(angles), radius * np.cos(angles)], axis=1)
    return np.unique(np.floor(points.round(9)).astype(np.int64), axis=0)


def _whole(distance: float, directions: NDArray[np.floating]) -> NDArray[np.int64]:
    """So far in these directions, rounded up to pixels; noise beyond the ninth digit is none."""
    offsets = distance * np.stack([np.sin(directions), np.cos(directions)], axis=1)
    whole: NDArray[np.int64] = np.ceil(offsets.round(9)).astype(np.int64)
    return whole


def _weights(directions: NDArray[np.float64], to_ring: NDArray[np.float64], continuity: float) -> NDArray[np.float64]:
    """cos²(continuity · turn), nothing from a right angle on."""
    turn = np.abs(to_ring - directions[:, None])
    turn = np.minimum(turn, 2 * np.pi - turn)
    weights: NDArray[np.float64] = np.maximum(np.cos(np.minimum(turn * continuity, np.pi / 2)), 0) ** 2
    return weights


def _needs(design: Design, margin: int, occupied: NDArray[np.uint8]) -> list[NDArray[np.int64]]:
    """Pixels that a first segment fills entirely, farthest first, within reach of length and margin.

    They are taken from a drawing whose middle is one pixel off, as in the original.
    """
    middle, reach = occupied.shape[1] // 2, design.length + margin
    found = []
    for mask in occupied:
        y, x = np.nonzero(mask == FULL)
        offsets = np.stack([y, x], axis=1) - middle + 1
        offsets = offsets[(np.abs(offsets) <= reach).all(1)]
        found.append(offsets[np.argsort(-(offsets**2).sum(1), kind="stable")])
    return found


def _seen_from_corners(needs: NDArray[np.int64]) -> bool:
    """Whether from each corner of an image one of these pixels lies inside.

    Where none does, the original's search (a dilation, which is minus infinity over nothing) takes the whole image for
    full. With a margin of one pixel that is so for most directions, and leaves images of 32 pixels with one short snake
    on average in place of five.
    """
    return all(bool((needs * sides <= 0).all(1).any()) for sides in ((1, 1), (1, -1), (-1, 1), (-1, -1)))


def _first(design: Design, needs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the first long snake may begin: at least twice the seed distance from the border, all that it needs too."""
    low = 2 * design.seed_distance - np.minimum(needs.min(0), 0)
    high = design.size - 2 * design.seed_distance - np.maximum(needs.max(0), 0)
    return np.stack([low, np.maximum(low, high)], axis=1)


def _lanczos(given: int, wanted: int) -> NDArray[np.float64]:
    """Rows of weights: pixel of the small image × pixel of the large one."""
    scale = given / wanted
    centres = (np.arange(wanted)[:, None] + 0.5) * scale
    distance = (np.arange(given) + 0.5 - centres) / scale
    weights = np.sinc(distance) * np.sinc(distance / 3) * (np.abs(distance) < 3)
    matrix: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
    return matrix


def _rounded(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    # rounded twice: the last digits of a product of matrices are not the same on every machine
    return np.clip(np.floor(values.round(6) + 0.5), 0, FULL).astype(np.uint8)


def _cells(offsets: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """(y, x) as distances of cells."""
    cells: NDArray[np.int64] = offsets[..., 0] * side + offsets[..., 1]
    return cells


def _stamps(images: NDArray[np.uint8], least: int, side: int) -> Stamps:
    """The cells of patches that are at least so bright."""
    middle = images.shape[1] // 2
    places = [np.stack(np.nonzero(image >= least), axis=1) for image in images]
    values = [image[image >= least] for image in images]
    return Stamps(_cells(_even(places) - middle, side), _even(values))


def _hard(masks: NDArray[np.uint8], side: int) -> Stamps:
    """The cells that can be too much together with others, and from which value of the others on they are."""
    cells, values = _stamps(masks, TOO_MUCH - FULL, side)
    return Stamps(cells, (TOO_MUCH - values.astype(np.int64)).astype(np.uint8))


def _turns(weights: NDArray[np.float64], ring: NDArray[np.int64]) -> Turns:
    """The places of the ring that have any weight: a third of them, or less."""
    places = [np.flatnonzero(row > NO_TURN) for row in weights]
    every = _even(places)
    repeated = np.arange(every.shape[1]) >= np.array([len(each) for each in places])[:, None]
    return Turns(every, ring[every], np.where(repeated, 0, np.take_along_axis(weights, every, 1)))


def _even(lists: list[NDArray[Any]]) -> NDArray[Any]:
    """Lists as one array: the shorter ones repeat their last item."""
    longest = max(map(len, lists))
    return np.stack([each[np.minimum(np.arange(longest), len(each) - 1)] for each in lists])

"""Checks that boxes which a member receives are disjoint, leave no holes and miss what it sends.

In: an exchange on small meshes, and for pairs of members whether one reads the other. Out: nothing,
or a Mismatch that names the member and both boxes.
Always holds: a fold is not checked, since all of its boxes land at one place. Boxes that cannot be
compared dim by dim are compared element by element.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from codegen.verify.pairs import BoxTerms, Found, Pairs, Places
from codegen.verify.vectors import Array

MOST = 1 << 16  # elements of a box that are compared one by one


class Landing:
    """The non-empty boxes of one exchange that were added so far."""

    def __init__(self, pairs: Pairs, read: int) -> None:
        """Prepare the boxes of one exchange. read: the term that is 1 where a taker reads from a
        giver."""
        t, boxes, self.pairs = pairs.terms, pairs.between, pairs
        self.boxes: list[BoxTerms] = []
        if pairs.row.said.get("fn") == "" and "into" in boxes:
            self.boxes.append(boxes["into"])
            here = pairs.row.said["send"], pairs.row.said["into"]
            self.in_place = here[0] is not None and here[0]["buffer"] == here[1]["buffer"]
            if self.in_place:
                self.boxes.append(boxes["send"])
        self.terms = [term for box in self.boxes
                      for term in (t.all(read, box.nonempty), box.offset,
                                   *(part for dim in box.dims for part in dim))]
        self.landed: list[tuple[int, Places, list[Array]]] = []  # sent or not, where, box

    def add(self, places: Places, values: list[Array]) -> None:
        """Add the non-empty boxes at these places; `values` holds, for each term of a box, its
        values there."""
        left = iter(values)
        for sent, box in enumerate(self.boxes):
            some, *parts = itertools.islice(left, 2 + 2 * len(box.dims))
            if (some := some != 0).any():
                chosen = {s: a[some] for s, a in places.items()}
                self.landed.append((sent, chosen, [a[some] for a in parts]))

    def check(self) -> None:
        """Raise Mismatch where boxes of one member overlap, or where they leave a hole."""
        if len({len(box.dims) for box in self.boxes}) != 1 or not self.landed:
            return
        sent = np.concatenate([np.full(len(v[0]), k) for k, _, v in self.landed])
        places = {s: np.concatenate([chosen[s] for _, chosen, _ in self.landed])
                  for s in self.landed[0][1]}
        values = [np.concatenate(v) for v in zip(*(v for *_, v in self.landed), strict=True)]
        owner = self._owner(sent, places)
        order = np.lexsort((sent, owner))
        sent, owner, values = sent[order], owner[order], [v[order] for v in values]
        places = {s: a[order] for s, a in places.items()}
        begin, extent, clear = _digits(values)
        self._apart(owner, sent, begin, extent, clear, values, places)
        if not self.in_place:
            self._whole(owner, begin, extent, clear, places)

    def _owner(self, sent: Array, places: Places) -> Array:
        """Return, for each box, a number that identifies the member in whose memory it lies, with
        the iteration and the mesh."""
        pairs, out = self.pairs, np.zeros(len(sent), dtype=np.int64)
        own = [(pairs.taker[a], pairs.giver[a]) for a in pairs.row.axes]
        both = {s for pair in own for s in pair}
        for s, a in places.items():
            if s not in both and s != pairs.wrap:
                out = out * (int(a.max()) - int(a.min()) + 1) + (a - a.min()).astype(np.int64)
        for taker, giver in own:
            if taker in places:
                mine: Array = np.where(sent == 1, places[giver], places[taker])
                out = out * (int(mine.max()) + 1) + mine
        return out

    def _apart(self, owner: Array, sent: Array, begin: Array, extent: Array, clear: Array,
               values: list[Array], places: Places) -> None:
        """Raise Mismatch if two boxes that one member receives overlap, or if such a box overlaps
        one that the member sends."""
        most = max(np.unique(owner, return_counts=True)[1].tolist())
        for by in range(1, most):
            meet = (owner[by:] == owner[:-by]) & (sent[:-by] == 0)
            known = clear[by:] & clear[:-by]
            for b, e, s in zip(begin, extent, values[2::2], strict=True):
                known &= (s[by:] == s[:-by]) | (e[by:] <= 1) & (e[:-by] <= 1) & (
                    s[by:] * s[:-by] > 0)
                meet &= ~known | ((b[by:] < b[:-by] + e[:-by]) & (b[:-by] < b[by:] + e[by:]))
            for k in np.flatnonzero(meet):
                if known[k] or _share(_box(values, int(k)), _box(values, int(k) + by)):
                    self._fault(places, sent, values, int(k), int(k) + by)

    def _fault(self, places: Places, sent: Array, values: list[Array], j: int, k: int) -> None:
        pairs, both = self.pairs, []
        for position in (j, k):
            point = {s: int(a[position]) for s, a in places.items()}
            other = pairs.rank(point, pairs.taker if sent[position] else pairs.giver)
            does = "sends to" if sent[position] else "takes of"
            both.append(f"{does} {other} {_box(values, position)}")
        me = pairs.rank(point, pairs.giver if sent[k] else pairs.taker)
        raise pairs.fault(point, f"what {me} takes lands apart from all that it takes or sends",
                          " and ".join(both))

    def _whole(self, owner: Array, begin: Array, extent: Array, clear: Array,
               places: Places) -> None:
        """Raise Mismatch unless the boxes that a member receives fill a whole region without a
        hole."""
        first = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))
        many = np.ones(len(owner), dtype=np.int64)
        whole = np.ones(len(first), dtype=np.int64)
        for b, e in zip(begin, extent, strict=True):
            many = many * e
            whole = whole * (np.maximum.reduceat(b + e, first) - np.minimum.reduceat(b, first))
        taken, known = np.add.reduceat(many, first), np.logical_and.reduceat(clear, first)
        for k in np.flatnonzero(known & (taken != whole)):
            point = {s: int(a[first[k]]) for s, a in places.items()}
            raise self.pairs.fault(
                point, f"what {self.pairs.rank(point, self.pairs.taker)} takes fills a region of "
                f"{whole[k]} elements", f"{taken[k]} elements")


def _digits(values: list[Array]) -> tuple[list[Array], list[Array], Array]:
    """Return the begin of boxes along each dim, their extents, and whether this is exact. Begins
    follow from offset and strides if the strides nest as those of an array do; dims of one element
    with stride 0 are ignored."""
    left, clear, begin = values[0], np.ones(len(values[0]), dtype=bool), []
    outer = np.full(len(left), np.iinfo(np.int64).max)
    for extent, stride in zip(values[1::2], values[2::2], strict=True):
        is_single = (stride == 0) & (extent <= 1)
        clear &= is_single | (stride > 0)
        size = np.maximum(stride, 1)
        first, left = np.where(is_single, 0, left // size), np.where(is_single, left, left % size)
        clear &= is_single | ((first + extent) * size <= outer)
        begin.append(first)
        outer = np.where(is_single, outer, size)
    return begin, values[1::2], clear & (left == 0)


def _box(values: list[Array], k: int) -> Found:
    offset, *dims = (int(v[k]) for v in values)
    return offset, tuple(dims[::2]), tuple(dims[1::2])


def _share(a: Found, b: Found) -> bool:
    """Return whether two boxes have an element in common; False, unchecked, for boxes of more than
    MOST elements."""
    if max(math.prod(box[1]) for box in (a, b)) > MOST:
        return False
    elements = [set(), set()]  # type: list[set[int]]
    for (offset, extents, strides), element in zip((a, b), elements, strict=True):
        start = np.array(offset)
        for e, s in zip(extents, strides, strict=True):
            start = start[..., None] + s * np.arange(e)
        element.update(start.ravel().tolist())
    return bool(elements[0] & elements[1])

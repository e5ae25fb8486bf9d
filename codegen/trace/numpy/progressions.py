"""Index arrays that are known while building and go in equal steps: such a key reads a slice.

In: an array, and the items of a key. Out: the elements as slices, diagonals, transposes and
broadcasts show them, so that ranks exchange what is read and no more; None for other keys.
Always holds: the view is in bounds; NumPy's rule says where the dims of the indices stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codegen import ops
from codegen.symbolic import expr
from codegen.trace.array import Array
from codegen.trace.numpy.subscripts import NEW, Item, Many, Part, Whole, basic_view


@dataclass(frozen=True)
class Progression:
    """start, start + step, … along dim `along` of the indices; along None: `start` everywhere."""

    start: int
    step: int
    extent: int
    along: int | None


def progression(index: np.ndarray, extent: int) -> Progression | None:
    """Return the arithmetic progression that an index array holds; None where it varies along
    several dims, by unequal steps, or beyond the bounds."""
    if not index.size or index.min() < -extent or index.max() >= extent:
        return None
    index = np.where(index < 0, index + extent, index)
    first = int(index.flat[0])
    wide = [d for d, e in enumerate(index.shape) if e > 1 and (np.diff(index, axis=d) != 0).any()]
    if not wide:
        return Progression(first, 1, 1, None)
    if len(wide) > 1:
        return None
    line = np.moveaxis(index, wide[0], 0).reshape(index.shape[wide[0]], -1)[:, 0]
    steps = np.diff(line)
    if (steps != steps[0]).any():
        return None
    return Progression(first, int(steps[0]), len(line), wide[0])


def slice_view(array: Array, items: Sequence[Item]) -> Array | None:
    """Return the view that items with index arrays read, or None where one is no progression."""
    places = [k for k, item in enumerate(items) if isinstance(item, (Many, Whole))]
    known = [_known(items[k]) for k in places]
    if any(index is None for index in known):
        return None
    try:
        points = np.broadcast_arrays(*known)  # type: ignore[arg-type]
    except ValueError:
        return None  # refused with its place, where they are gathered
    dims = [k - sum(i is NEW for i in items[:k]) for k in places]
    if not all(array.extents[d].is_const for d in dims):
        return None
    counts = [progression(index, array.extents[d].value) for index, d in zip(points, dims)]
    if any(count is None for count in counts):
        return None
    parts: list[Item] = list(items)
    for k, count in zip(places, counts):
        assert count is not None
        parts[k] = Part(expr.const(count.start), count.step, expr.const(count.extent))
    view = basic_view(array, parts)
    kept: dict[int, int] = {}  # by dim of the indices: the place of the dim that it became
    gone: list[int] = []
    for k, count in zip(places, counts):
        assert count is not None
        if count.along is None or count.along in kept:
            gone.append(k)
        else:
            kept[count.along] = k
    for k in reversed(gone):  # the last one first: the places before it stay
        along = counts[places.index(k)].along  # type: ignore[union-attr]
        if along is None:
            rest = (*view.extents[:k], *view.extents[k + 1 :])
            view = view.viewed(ops.Reshape(rest))
        else:
            view = view.viewed(ops.Diagonal(kept[along], k))
    after = {k: k - sum(g < k for g in gone) for k in range(len(items))}
    return _in_order(view, [after[k] for k in places if k not in gone], {
        j: after[k] for j, k in kept.items()}, points[0].shape, _front(places, after))


def _known(item: Item) -> np.ndarray | None:
    if isinstance(item, Many):
        return item.index if isinstance(item.index, np.ndarray) else None
    index = item.index
    return np.asarray(index.value) if isinstance(index, expr.Expr) and index.is_const else None


def _front(places: Sequence[int], after: dict[int, int]) -> int:
    """Return where the dims of the indices begin: where they stand if side by side, else first."""
    together = places[-1] - places[0] == len(places) - 1
    return after[places[0]] if together else 0


def _in_order(
    view: Array, taken: Sequence[int], kept: dict[int, int], points: tuple[int, ...], front: int
) -> Array:
    """Return the view with the dims of the indices side by side; those along which no index varies
    are broadcast."""
    rest = [d for d in range(view.ndim) if d not in taken]
    index_dims = sorted(kept)
    perm = (*rest[:front], *[kept[j] for j in index_dims], *rest[front:])
    view = view.viewed(ops.Transpose(perm))
    if len(index_dims) == len(points):
        return view
    shape = (*view.extents[:front], *map(expr.const, points),
             *view.extents[front + len(index_dims) :])
    dims = (*range(front), *[front + j for j in index_dims],
            *range(front + len(points), len(shape)))
    return view.viewed(ops.Broadcast(dims, shape))

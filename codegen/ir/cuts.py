"""Parts of a dim that ranks hold or need, as formulas: a Cut; a Window has one for each dim.

A Cut follows the balanced blocks of some dim: element j is mine where step * j + shift lies in my
block, for a shift between `least` and `most`, clipped to first <= j < last. So what is aligned with
an array's shards, a shifted or strided slice of it say, keeps to them, and a halo is a wider Cut.
Always holds: low and high of a Cut are Exprs in coordinates, and low <= high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from codegen.ir.graph import Shape, Value
from codegen.mesh import (
    Layout,
    LayoutEntry,
    Mesh,
    Owned,
    blocks_begun,
    blocks_ended,
    local_extent,
    local_offset,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import LAUNCH, Expr, IntLike, Sym, const

ZERO = const(0)


@dataclass(frozen=True)
class Cut:
    """The part of a dim that a rank holds or needs: one range of elements, as a formula of its
    rank.

    If `axes` split a dim of `extent` elements into blocks, it is the set of j with first <= j <
    last for which step * j + s lies in the rank's block, for an s from `least` to `most`. If axes
    is (), it is first … last - 1 on all ranks. interval: the range itself, where it follows no
    blocks. entry: the layout entry of a dim of which a rank has all or nothing."""

    axes: LayoutEntry
    first: Expr
    last: Expr
    extent: Expr = ZERO
    least: Expr = ZERO
    most: Expr = ZERO
    step: int = 1
    interval: tuple[Expr, Expr] | None = None
    open: bool = False  # not clipped: what lies beyond the ends is there, and nobody's
    period: Expr | None = None  # the dim goes on beyond its ends, with this period
    entry: Owned | None = None

    def bounds(self, mesh: Mesh) -> tuple[Expr, Expr]:
        """Return the first element of a rank's part, and the one after the last."""
        if self.interval is not None:
            return self.interval
        if not self.axes:
            return self.first, self.last
        return _bounds(self, mesh)

    def _at(self, begin: Expr, end: Expr) -> tuple[Expr, Expr]:
        """Return the bounds before clipping for a rank whose block is begin … end - 1."""
        if self.step > 0:
            return _ceil(begin - self.most, self.step), _ceil(end - self.least, self.step)
        return (self.least - end) // -self.step + 1, (self.most - begin) // -self.step + 1

    def clipped(self, mesh: Mesh) -> tuple[Expr, Expr]:
        begin = local_offset(mesh, self.extent, self.axes)
        bounds = self._at(begin, begin + local_extent(mesh, self.extent, self.axes))
        if self.open:
            return bounds
        at_first, at_last = self._at(ZERO, ZERO), self._at(self.extent, self.extent)
        if self.step < 0:
            at_first, at_last = at_last, at_first
        low, high = (
            _clipped(e, self.first, self.last, least, most)
            for e, least, most in zip(bounds, at_first, at_last)
        )
        return low, high

    def follows(self, other: Cut) -> bool:
        """Return whether both cuts follow the same blocks in the same steps."""
        return (
            bool(self.axes) and self.interval is None and other.interval is None
            and (self.axes, self.extent, self.step) == (other.axes, other.extent, other.step)
        )

    @property
    def empty(self) -> bool:
        """Return whether a rank's part is evidently empty."""
        low, high = self.interval or (self.first, self.last)
        return low == high and not self.open

    def inside(self, other: Cut) -> bool:
        """Return whether every rank's part evidently lies in the same rank's part by another
        cut."""
        if self == other or self.empty:
            return True
        if self.period is not None and other.period is None:
            return False
        if not self.axes and not other.axes and self.interval is None is other.interval:
            return expr.nonneg(self.first - other.first) and expr.nonneg(other.last - self.last)
        return (
            self.follows(other)
            and expr.nonneg(self.least - other.least) and expr.nonneg(other.most - self.most)
            and expr.nonneg(self.first - other.first) and expr.nonneg(other.last - self.last)
        )

    def wraps(self) -> tuple[Expr, Expr, Expr] | None:
        """Return (before, behind, period): how many periods a part reaches beyond the two ends of a
        periodic dim. None if the dim is not periodic."""
        if self.period is None:
            return None
        n = expr.maximum(self.period, 1)
        before, beyond = self.most, -self.least
        if not self.axes and self.interval is None:
            before, beyond = -self.first, self.last - self.period
        elif self.interval is None:
            beyond = beyond + self.extent - self.period
            if not self.open:  # clipping leaves no more than this
                before = expr.least(before, -self.first)
                beyond = expr.least(beyond, self.last - self.period)
        return expr.most(_ceil(before, n), 0), expr.most(_ceil(beyond, n), 0), self.period

    def opened(self) -> Cut:
        """Return the cut without clipping, so that its bounds are simple formulas; the cut itself
        if it selects a few of many rows."""
        if not self.axes or self.interval is not None:
            return self
        rows, n = self.last - self.first, self.extent
        few = rows.is_const and not (n.is_const and n.value <= 4 * rows.value)
        return self if few else replace(self, open=True)

    def symbols(self) -> set[Sym]:
        parts = [self.first, self.last, self.extent, self.least, self.most, *(self.interval or ())]
        return set().union(*(e.symbols() for e in parts))


@lru_cache(maxsize=4096)
def _bounds(cut: Cut, mesh: Mesh) -> tuple[Expr, Expr]:
    return cut.clipped(mesh)


def _clipped(e: Expr, first: Expr, last: Expr, least: Expr, most: Expr) -> Expr:
    """Return e, known to lie within least … most, between first and last."""
    if not expr.nonneg(last - most):
        e = expr.minimum(e, last)
    return e if expr.nonneg(least - first) else expr.maximum(e, first)


Window = tuple[Cut, ...]

# How far apart parts may lie that are fetched together as one: elements.
NEAR = 64


def whole(extent: IntLike) -> Cut:
    return Cut((), ZERO, expr.as_expr(extent))


def fixed(first: IntLike, last: IntLike) -> Cut:
    return Cut((), expr.as_expr(first), expr.as_expr(last))


def block(axes: LayoutEntry, extent: Expr) -> Cut:
    """Return the cut of a dim into balanced blocks along `axes`; for an Owned entry, all or
    nothing."""
    if isinstance(axes, Owned):
        bounds = ZERO, extent * axes.has
        return Cut(tuple(axes), ZERO, extent, interval=bounds, entry=axes)
    return Cut(axes, ZERO, extent, extent) if axes else whole(extent)


def owned(axes: LayoutEntry, rows: int, row: int, mesh: Mesh) -> Owned:
    """Return the layout entry of dims of which a rank has all or nothing. It has all if row number
    `row` is in its block of a dim of `rows` rows that these axes split."""
    low, high = row_of(axes, rows, row, mesh).bounds(mesh)
    return Owned(tuple(axes), rows, row, high - low)


def row_of(axes: LayoutEntry, rows: int, row: int, mesh: Mesh) -> Cut:
    """Return the cut of extent 1 that a rank has if row number `row` of `rows` is in its block, and
    that is empty on other ranks."""
    return of_result(block(tuple(axes), const(rows)), const(row), 1, const(1), mesh)


def entry_of(unit: Cut, mesh: Mesh) -> Owned | None:
    """Return the Owned entry that describes this cut of a dim of extent 1: all on the ranks whose
    block has a certain row, nothing on others. None where the cut is of another form."""
    if unit.entry is not None:
        return unit.entry
    known = unit.extent.is_const and unit.least.is_const and unit.least == unit.most
    if not unit.axes or unit.interval is not None or not known or unit.open or unit.period:
        return None
    rows, row = unit.extent.value, unit.least.value
    same = unit == row_of(unit.axes, rows, row, mesh)
    return owned(unit.axes, rows, row, mesh) if same else None


def interval(axes: LayoutEntry, low: Expr, high: Expr) -> Cut:
    """Return the cut of which each rank holds the elements from `low` to `high`, without the last;
    both may depend on the rank's coordinates."""
    return Cut(axes, low, high, interval=(low, high))


def blocks(shape: Shape, layout: Layout) -> Window:
    """Return the window that a rank holds of an array of this layout."""
    return tuple(block(entry, e) for e, entry in zip(shape, layout, strict=True))


def layout_of(value: Value) -> Layout:
    return value.type.layout or ((),) * value.type.ndim


def home(value: Value) -> Window:
    """Return the balanced blocks of a value's layout."""
    return blocks(value.type.shape, layout_of(value))


def extents(mesh: Mesh, window: Window) -> Shape:
    return tuple(high - low for low, high in (c.bounds(mesh) for c in window))


def lows(mesh: Mesh, window: Window) -> Shape:
    return tuple(c.bounds(mesh)[0] for c in window)


def inside(a: Window, b: Window) -> bool:
    """Return whether every rank's part by window a evidently lies in the same rank's part by window
    b."""
    return all(x.inside(y) for x, y in zip(a, b, strict=True))


def symbols(window: Window) -> set[Sym]:
    return set().union(*(c.symbols() for c in window)) if window else set()


# ---- who reads whom ------------------------------------------------------------------------------

# The members along an axis that I read, and those that read me: begin, end, begin, end.
Ranges = tuple[Expr, Expr, Expr, Expr]


def near(
    mesh: Mesh, axes: tuple[str, ...], have: Sequence[Cut], want: Sequence[Cut]
) -> tuple[Ranges, ...]:
    """Return, along each of these axes, the range of members that a member reads, and the range of
    members that read it. Return () unless each axis alone splits one dim, which is shifted, widened
    or cut into blocks of another extent.

    A member reads those members that hold elements of its unclipped wanted part. A range may go on
    beyond the end of the axis, and continues at its other end. Always holds: p is among those that
    q reads if and only if q is among p's readers."""
    ranges_of: dict[str, Ranges] = {}
    for held, wanted in zip(have, want, strict=True):
        if wanted == held or (wanted.period is not None and not held.axes):
            continue  # round a dim that nobody splits everybody reads itself
        is_same_axis = wanted.interval is None and wanted.axes == held.axes and len(held.axes) == 1
        known = {s.kind for s in wanted.symbols()} <= LAUNCH  # once and for all
        if not is_same_axis or not known or wanted.step != 1:
            return ()
        if wanted.period is not None and wanted.extent != held.extent:
            return ()
        before, beyond, _ = wanted.wraps() or (0, 0, 0)
        ranges = _ranges if before == 0 and beyond == 0 else _ranges_around
        ranges_of[held.axes[0]] = ranges(mesh, held, wanted)
    return tuple(ranges_of[a] for a in axes) if set(ranges_of) == set(axes) else ()


def _ranges(mesh: Mesh, held: Cut, wanted: Cut) -> Ranges:
    n, size = held.extent, mesh.size(held.axes)
    begin, end = held.bounds(mesh)
    low, high = block(held.axes, wanted.extent).bounds(mesh)
    holders = expr.least(n, size)
    return (
        blocks_ended(n, size, low - wanted.most),
        expr.least(blocks_begun(n, size, high - wanted.least), holders),
        blocks_ended(wanted.extent, size, begin + wanted.least),
        expr.lt(begin, end) * blocks_begun(wanted.extent, size, end + wanted.most),
    )


def _ranges_around(mesh: Mesh, held: Cut, wanted: Cut) -> Ranges:
    """Return the ranges of readers and read members around a periodic dim. They skip the members
    without elements, which are the last along the axis; they are empty if no member has any."""
    n, size = held.extent, mesh.size(held.axes)
    begin, end = held.bounds(mesh)
    some = expr.gt(n, 0)

    def owner_of(position: Expr) -> Expr:
        inside = blocks_ended(n, size, position % expr.maximum(n, 1))
        return (inside + size * (position // expr.maximum(n, 1))) * some

    return (
        owner_of(begin - wanted.most), owner_of(end - wanted.least - 1) + some,
        owner_of(begin + wanted.least), owner_of(end + wanted.most - 1) + some,
    )


# ---- through slices ------------------------------------------------------------------------------


def of_operand(cut: Cut, start: Expr, step: int, mesh: Mesh) -> Cut:
    """Return the part of a slice's operand that is read for this part of its result, where
    result[j] = operand[start + step * j]."""
    first, last = _covered(cut.first, cut.last, start, step)
    assert cut.period is None or (start, step) == (ZERO, 1), "of a whole dim"
    if cut.interval is None and not cut.axes:
        return replace(cut, first=first, last=last)
    if cut.period is not None:
        return cut
    if cut.interval is not None or cut.step % step:
        return interval(cut.axes, *_covered(*cut.bounds(mesh), start, step))
    by = cut.step // step
    least, most = cut.least - by * start, cut.most - by * start
    return replace(cut, first=first, last=last, step=by, least=least, most=most)


def of_result(cut: Cut, start: Expr, step: int, extent: Expr, mesh: Mesh) -> Cut:
    """Return the part of a slice's result that is read from this part of its operand: those j <
    extent for which start + step * j lies in it."""
    if cut.interval is not None:
        return interval(cut.axes, *_within(*cut.interval, start, step, extent))
    first, last = _within(cut.first, cut.last, start, step, extent)
    if not cut.axes:
        return fixed(first, last)
    least, most = cut.least + cut.step * start, cut.most + cut.step * start
    return replace(cut, first=first, last=last, step=cut.step * step, least=least, most=most)


def rolled(cut: Cut, shift: Expr, extent: Expr, mesh: Mesh) -> Cut:
    """Return the part of a roll's operand that is read for this part of its result, where result[j]
    = operand[(j - shift) mod extent]."""
    if cut.axes and cut.interval is None and cut.step != 1:
        cut = interval(cut.axes, *cut.bounds(mesh))
    bounds = cut.interval and (cut.interval[0] - shift, cut.interval[1] - shift)
    return replace(
        cut, entry=None, first=cut.first - shift, last=cut.last - shift, interval=bounds,
        least=cut.least + shift, most=cut.most + shift, period=extent,
    )


def _covered(low: Expr, high: Expr, start: Expr, step: int) -> tuple[Expr, Expr]:
    """Return the range that contains start + step * j for all low <= j < high: its least element,
    and the one after its greatest."""
    if step == 1:
        return low + start, high + start
    if step == -1:
        return start - high + 1, start - low + 1
    size = abs(step)
    span = expr.maximum((high - low - 1) * size + 1, 0)
    begin = start + step * low if step > 0 else start + step * (high - 1)
    return begin, begin + span


def _within(low: Expr, high: Expr, start: Expr, step: int, extent: Expr) -> tuple[Expr, Expr]:
    """Return the range of those j, 0 <= j < extent, for which low <= start + step * j < high."""
    if step > 0:
        first, last = _ceil(low - start, step), _ceil(high - start, step)
    else:
        first, last = (start - high) // -step + 1, (start - low) // -step + 1
    return _clip(first, extent), _clip(last, extent)


def _clip(e: Expr, extent: Expr) -> Expr:
    if not expr.nonneg(extent - e):
        e = expr.minimum(e, extent)
    return e if expr.nonneg(e) else expr.maximum(e, 0)


def _ceil(e: Expr, step: IntLike) -> Expr:
    return e if step == 1 else -((-e) // step)


def widened(blocks: Cut, width: int) -> Cut:
    """Return these blocks, each with `width` more elements at its end, for a dim that is longer by
    `width`."""
    if not blocks.axes:
        return replace(blocks, last=blocks.last + width)
    if blocks.interval is not None:
        return interval(blocks.axes, blocks.interval[0], blocks.interval[1] + width)
    return replace(blocks, last=blocks.last + width, least=blocks.least - width)


# ---- several uses of one array -------------------------------------------------------------------


def hull(a: Cut, b: Cut) -> Cut | None:
    """Return the smallest cut that contains both, or None where they do not lie near each other."""
    if a == b or b.inside(a):
        return a
    if a.inside(b):
        return b
    if not a.axes and not b.axes and a.interval is None is b.interval:
        gap = expr.maximum(a.first, b.first) - expr.minimum(a.last, b.last)
        near = gap.is_const and gap.value <= NEAR
        joined = fixed(_least(a.first, b.first), _most(a.last, b.last))
        return replace(joined, period=a.period or b.period) if near else None
    if not a.follows(b):
        return None
    least, most = _least(a.least, b.least), _most(a.most, b.most)
    wide = (most - least) if (most - least).is_const else None
    if wide is None or wide.value > NEAR * abs(a.step):
        return None
    if a.extent.is_const and 4 * wide.value > a.extent.value and not 0 <= wide.value <= 2:
        return None  # most of a short dim
    first, last = _least(a.first, b.first), _most(a.last, b.last)
    period = a.period or b.period
    return replace(a, first=first, last=last, least=least, most=most, period=period)


def hull_of(a: Window, b: Window) -> Window | None:
    out = []
    for cut, other in zip(a, b, strict=True):
        joined = hull(cut, other)
        if joined is None:
            return None
        out.append(joined)
    return tuple(out)


def gather(windows: Sequence[Window]) -> list[Window]:
    """Return a few windows that together cover all of these: windows that lie near each other are
    replaced by their common hull."""
    out: list[Window] = []
    for window in windows:
        for k, known in enumerate(out):
            joined = hull_of(known, window)
            if joined is not None:
                out[k] = joined
                break
        else:
            out.append(window)
    return out


def _least(a: Expr, b: Expr) -> Expr:
    return a if expr.nonneg(b - a) else b if expr.nonneg(a - b) else expr.minimum(a, b)


def _most(a: Expr, b: Expr) -> Expr:
    return a if expr.nonneg(a - b) else b if expr.nonneg(b - a) else expr.maximum(a, b)

"""Whether less moves if ghost cells of a result are fetched than if they are computed once more.

In: an op, and the Windows wanted of its result, which follow balanced blocks at a distance:
`h[1:] = out[:-1]` wants all of `out` a row further on. Out: whether `out` is shifted, or what it
is made of. Always holds: only what is known for all sizes counts; of equals nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from codegen.ir.cuts import Cut, Window, home
from codegen.ir.graph import Op, Value
from codegen.ops import Branch, Loop

if TYPE_CHECKING:
    from codegen.layouts.demands import Demands


def moves_less(demands: Demands, op: Op, wanted: Iterable[Window]) -> bool:
    """Return whether fewer bytes move if the result is computed in balanced blocks and then
    shifted. Where a rank wants its own blocks too, that is worth it only if more than element-wise
    work would be done twice."""
    (value,), windows = op.results, list(wanted)
    if not windows or any(c.period is not None for w in windows for c in w) or any(
            demands.rules.natural(value, d) != b for d, b in enumerate(home(value))):
        return False
    work = _Moved(demands)
    result = [work.missing(value, w) for w in windows]
    if None in result or not any(result):
        return False
    pure = all(_is_shifted(w, home(value)) for w in windows)
    recomputed = [work.of_operands(op, w) for w in windows]
    if None in recomputed or not (pure or work.labours):
        return False
    return sum(b for b in result if b is not None) < sum(b for b in recomputed if b is not None)


def _is_shifted(window: Window, blocks: Window) -> bool:
    """Return whether the part that a rank wants lies at a fixed distance from its own block."""
    return any(b.axes and c.least == c.most and c.least != 0
               for c, b in zip(window, blocks, strict=True))


class _Moved:
    """The bytes that a rank fetches from others, as far as extents are known. labours: whether more
    than element-wise work is done for them."""

    def __init__(self, demands: Demands) -> None:
        self.demands, self.rules = demands, demands.rules
        self.known: dict[tuple[Value, Window], int | None] = {}
        self.labours = False

    def missing(self, value: Value, window: Window) -> int | None:
        """Return the bytes of a part of a value that a rank lacks if the value is held in balanced
        blocks; None if that is not known."""
        beyond, size = 0, value.type.dtype.size
        for cut, block, extent in zip(window, home(value), value.type.shape, strict=True):
            if cut.inside(block):
                size *= extent.value if extent.is_const else 1
                continue
            far = _beyond(cut, block)
            if far is None or beyond:  # along one dim
                return None
            beyond = far
        return beyond * size

    def of_operands(self, op: Op, window: Window) -> int | None:
        """Return the bytes that a rank lacks of the parts of the operands from which it computes a
        part of a result; None if that is not known."""
        self.labours |= not (op.kind.inline or op.kind.is_view)
        parts = [self.of(v, w) for v, w in
                 zip(op.operands, self.rules.needs(op, window), strict=True)]
        return None if None in parts else sum(p for p in parts if p is not None)

    def of(self, value: Value, window: Window) -> int | None:
        """Return the bytes that a rank fetches to have a part of a value, either that part or what
        it is computed from, whichever is less; None if that is not known."""
        key = value, window
        if key not in self.known:
            self.known[key] = None
            op = self.demands.defs.get(value)
            if op is not None and self.demands.is_view(op):
                self.known[key] = self.of_operands(op, window)
            else:
                self.known[key] = self._least(value, op, window)
        return self.known[key]

    def _least(self, value: Value, op: Op | None, window: Window) -> int | None:
        if any(c.period is not None for c in window):  # it goes on beyond the ends of a dim
            return None
        fetched = self.missing(value, window)
        if fetched == 0 or op is None or op.kind.held or isinstance(op.kind, Loop | Branch) or (
                len(op.results) != 1):
            return fetched
        recomputed = self.of_operands(op, window)
        fetches = recomputed is None or (fetched is not None and fetched < recomputed)
        return fetched if fetches else recomputed


def _beyond(cut: Cut, block: Cut) -> int | None:
    """Return how many elements of a dim lie outside of a rank's block, at most; None if that is
    not known."""
    known = cut.follows(block) and cut.step == 1 and cut.period is None
    if not known or not (cut.least.is_const and cut.most.is_const):
        return None
    return max(cut.most.value, 0) - min(cut.least.value, 0)

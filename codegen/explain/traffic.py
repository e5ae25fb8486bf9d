"""What an exchange is called, and how much of it reaches a rank.

Goes in: an exchange op of a Program. Comes out: words, and the bytes that a rank gets from others,
as a formula of axis sizes: what the rank with the largest part gets at most.
Always holds: what a rank has already does not count; of what ranks fold, a rank's own vector does.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.errors import ProgramError
from codegen.ir.cuts import Cut
from codegen.ir.graph import Op
from codegen.mesh import Mesh
from codegen.ops import Exchange
from codegen.ops.group import Bounds, Span, each
from codegen.ops.rules import Traffic
from codegen.symbolic import block_laws, estimate, expr
from codegen.symbolic.expr import LAUNCH, Call, Expr, Sym

_COMBINED = {"add": "partial sums", "mul": "partial products", "max": "maxima", "min": "minima"}


class Meter:
    """A meter of what exchanges of a Program move."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    # ---- the largest and the smallest part -----------------------------------------------------

    def most(self, e: Expr) -> Expr:
        """Return the extent on the rank that has most: of blocks ceil(extent / ranks)."""
        return self._of_blocks(e, 1)

    def least(self, e: Expr) -> Expr:
        return self._of_blocks(e, -1)

    def _of_blocks(self, e: Expr, sign: int) -> Expr:
        bound = block_laws.evened(unclipped(e) if sign > 0 else e, sign)
        bound = _touched(bound) if sign > 0 else bound
        return _bound(e, sign) if _gone(bound) else bound

    def cut(self, c: Cut) -> Expr:
        """Return the extent of a Cut on the rank that has most."""
        if c.interval is not None or not c.axes:
            low, high = c.bounds(self.mesh)
            return self.most(high - low)
        extent = c.most - c.least + expr.begin(1, c.extent, self.mesh.size(c.axes))
        if abs(c.step) != 1:
            extent = -((-extent) // abs(c.step))
        limit = c.last - c.first
        return extent if c.open or limit == c.extent else expr.minimum(extent, limit)

    def volume(self, shape: Sequence[Expr]) -> Expr:
        try:
            return expr.product(map(self.most, shape))
        except ProgramError:  # no extent alone is bounded
            return _bound(expr.product(shape), 1)

    # ---- kinds ---------------------------------------------------------------------------------

    def of(self, op: Op) -> Traffic:
        """Return the traffic of an exchange that has a result."""
        assert isinstance(op.kind, Exchange)
        return op.kind.traffic(op, self)

    def result(self, op: Op) -> Expr:
        result = op.result.type
        return self.volume(result.shape) * result.dtype.size

    def whole(self, words: str, op: Op) -> Traffic:
        """Return the traffic of an exchange in which all that a rank has afterwards comes from
        others."""
        result = self.result(op)
        return Traffic(words, words, result, result)

    def folded(self, op: Op, words: str, fn: str, cut: Sequence[int]) -> Traffic:
        """Return the traffic of a fold. cut: dims of which a rank keeps a part."""
        combined = _COMBINED.get(fn, f"'{fn}'")
        into = f" into blocks of {_dims(cut)}" if cut else ""
        operand = op.operands[0].type
        bytes_ = self.volume(operand.shape) * operand.dtype.size
        return Traffic(words, f"{words} of {combined}{into}", bytes_, self.result(op))

    def moved(self, op: Op, have: Bounds, want: Bounds, flow: str) -> Traffic:
        """Return the traffic of a Move, from what each dim becomes, its new extent, and how much of
        that a rank has already."""
        ndim = op.result.type.ndim
        dims = list(zip(each(have, ndim), each(want, ndim), strict=True))
        split = [d for d, (cut, part) in enumerate(dims) if cut is None and part is not None]
        if flow == "from_root":
            return self.whole("scatter" if split else "broadcast", op)
        shape, size = op.result.type.shape, op.result.type.dtype.size
        word = "gather" if flow == "to_root" else "all-gather"
        dims_of, rest = {}, []
        for d, (cut, part) in enumerate(dims):
            if cut is None or cut == part:
                rest.append(part[1] - part[0] if part else shape[d])
            elif part is None:
                own = self.least(cut[1] - cut[0])
                dims_of[d] = word, f"{word} along {{}}", self.most(shape[d]), own
            else:
                dims_of[d] = self.dim(d, cut, part, ndim)
        kinds = list(dict.fromkeys(kind for kind, _, _, _ in dims_of.values()))
        same: dict[str, list[int]] = {}
        for d, (_, text, _, _) in dims_of.items():
            same.setdefault(text, []).append(d)
        kind = kinds[0] if len(kinds) == 1 else "change of layout"
        words = " and ".join(text.format(_dims(some)) for text, some in same.items())
        others = self.volume(rest) * size
        result = expr.product(total for _, _, total, _ in dims_of.values()) * others
        mine = expr.product(own for _, _, _, own in dims_of.values()) * others
        if split:
            words = f"all-to-all: {_dims(split)} is split instead of {_dims([*dims_of])}"
            return Traffic("all-to-all", words, result - mine, result)
        gathered = tuple(d for d, (of, _, total, _) in dims_of.items()
                         if of in ("all-gather", "gather", "broadcast") and total != 1)
        return Traffic(kind, words, result - mine, result, gathered)

    def dim(
        self, d: int, have: Span, want: Span, ndim: int
    ) -> tuple[str, str, Expr, Expr]:
        """Return what becomes of a dim of which a rank has one part and wants another one: a kind,
        its text, the extent wanted, and the extent that the rank has already."""
        (low, high), (first, last) = have, want
        total = self.most(last - first)
        before, after = low - first, last - high
        if before.is_const and after.is_const:
            own = total - max(before.value, 0) - max(after.value, 0)
            a, b = before.value, after.value
            if a + b == 0:
                kept = own if abs(a) == 1 else expr.maximum(own, 0)
                return "shift", f"shift by {abs(a)} along {{}}", total, kept
            a, b = max(a, 0), max(b, 0)
            width = f"of {a} before, {b} after" if a != b else f"of width {a}"
            if 0 in (a, b):
                width = f"of width {max(a, b)} on one side"
            return "halo", f"halo {width} along {{}}", total, own
        if before + after == 0:  # by what is known at run time only
            return "shift", "shift along {}", total, expr.const(0)
        if not {s.kind for e in want for s in e.symbols()} & {"coord"}:
            if last - first == 1:
                word = {(2, 0): "row", (2, 1): "column"}.get((ndim, d), "slice")
                return "broadcast", f"broadcast of {word} {first} of {{}}", total, expr.const(0)
            if expr.nonneg(before) and expr.nonneg(after):
                return "all-gather", "all-gather along {}", total, self.least(high - low)
            return "broadcast", f"broadcast of {first}:{last} of {{}}", total, expr.const(0)
        split = low == 0 and not {s.kind for s in high.symbols()} & {"coord"}
        if split:  # of what a rank has whole, it keeps a part
            return "change of layout", "{} split", total, total
        return "change of blocks", "change of blocks along {}", total, expr.const(0)


def _touched(e: Expr) -> Expr:
    """Return an upper bound of e without begins: the number of pieces that a range touches is its
    end rounded up less its begin rounded down, and -(p // d) - q // d is at most 1 - (p + q) //
    d."""
    down = [a for a in sorted((a for a in e.atoms() if isinstance(a, Call)), key=lambda a: a.order)
            if a.op == "floordiv" and _gone(expr.from_atom(a)) and expr.linear_in(e, a)[0] == -1]
    for k, a in enumerate(down):
        for b in down[k + 1 :]:
            sizes = a.args[0] + b.args[0]
            if a.args[1] == b.args[1] and not _gone(sizes):
                both = expr.from_atom(a) + expr.from_atom(b)
                return _touched(e + both + 1 - sizes // a.args[1])
    return e


def _gone(e: Expr) -> set[Sym]:
    """Return the symbols whose values nobody knows who asks: counters, and where a rank is."""
    return {s for s in e.symbols() if s.kind not in LAUNCH}


def _bound(e: Expr, sign: int) -> Expr:
    """Return a bound of e without the symbols that nobody knows; the bounds of a counter may hold
    those of loops around."""
    bound = estimate.upper_bound if sign > 0 else estimate.lower_bound
    while gone := _gone(e):
        e = bound(e, gone)
    return e


def unclipped(e: Expr) -> Expr:
    """Return an upper bound of e, an extent high - low, without the ends that both are kept
    within."""
    clips = [a for a in e.atoms() if isinstance(a, Call) and a.op in ("min", "max")]
    above = [a for a in clips if expr.linear_in(e, a)[0] == 1]
    below = [a for a in clips if expr.linear_in(e, a)[0] == -1]
    if not clips or len(above) > 1 or len(below) > 1 or len(clips) > len(above) + len(below):
        return e
    rest = e - sum(map(expr.from_atom, above)) + sum(map(expr.from_atom, below))
    high = expr.from_atom(above[0]) if above else rest
    low = expr.from_atom(below[0]) if below else -rest
    more = rest if above and below else expr.const(0)
    while True:
        a, b = _clip(high), _clip(low)
        if a is None and b is None:
            return high - low + more
        if a is not None and b is not None and a[:2] == b[:2]:
            high, low = a[2], b[2]  # clipping brings them no further apart
        elif a is not None and a[0] == "min":
            high = a[2]
        elif b is not None and b[0] == "max":
            low = b[2]
        else:
            return e


def _clip(e: Expr) -> tuple[str, Expr, Expr] | None:
    """Return an extreme as (min or max, number, what it clips)."""
    for call in e.atoms():
        if isinstance(call, Call) and call.op in ("min", "max") and e == expr.from_atom(call):
            for number, other in (call.args, call.args[::-1]):
                if number.is_const:
                    return call.op, number, other
    return None


def _dims(dims: Sequence[int]) -> str:
    names = [str(d) for d in dims]
    if len(names) == 1:
        return f"dim {names[0]}"
    return f"dims {', '.join(names[:-1])} and {names[-1]}"

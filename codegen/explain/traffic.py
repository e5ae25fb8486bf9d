"""What an exchange is called, and how much of it reaches a rank.

Goes in: an exchange op of a Program. Comes out: words, and the bytes that a rank gets from others,
as a formula of axis sizes: what the rank with the largest part gets at most.
Always holds: what a rank has already does not count; of what ranks fold, a rank's own vector does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen import estimate, expr
from codegen.errors import ProgramError
from codegen.expr import Call, Expr
from codegen.ir import Op, Shape
from codegen.layouts.cuts import Cut
from codegen.mesh import Mesh
from codegen.naming import Naming
from codegen.ops import OPS, Exchange

_COMBINED = {"add": "partial sums", "mul": "partial products", "max": "maxima", "min": "minima"}
_FOLDS = {
    "all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter", "reduce_to": "reduce",
}  # fmt: skip
_MOVES = {
    "permute": "permute", "broadcast_from": "broadcast", "gather_to": "gather",
    "scatter_from": "scatter", "barrier": "barrier",
}  # fmt: skip
_KINDS = {*_FOLDS, *_MOVES, "redistribute", "halo", "all_gather", "all_to_all", "scan"}
assert {k for k, rule in OPS.items() if issubclass(rule, Exchange)} == _KINDS


@dataclass(frozen=True)
class Traffic:
    """kind: in a word. words: in some more. bytes: see above. result: bytes of what a rank has
    afterwards. gathered: dims of which every rank then has the same, and which were split."""

    kind: str
    words: str
    bytes: Expr
    result: Expr
    gathered: tuple[int, ...] = ()


class Meter:
    """every: the Exprs that will be asked about."""

    def __init__(self, mesh: Mesh, every: Iterable[Expr]) -> None:
        self.mesh = mesh
        self.naming = Naming(mesh, every)

    # ---- the largest and the smallest part -----------------------------------------------------

    def most(self, e: Expr) -> Expr:
        """The extent on the rank that has most: of blocks ceil(extent / ranks)."""
        return self._of_blocks(e, 1)

    def least(self, e: Expr) -> Expr:
        return self._of_blocks(e, -1)

    def _of_blocks(self, e: Expr, sign: int) -> Expr:
        size = {
            high: expr.symbol(low) - sign * ((-sign * extent) // self.mesh.size(axes))
            for (extent, axes), (low, high) in self.naming.names.items()
        }  # -(-e // n) is e / n rounded up
        found = expr.replace(e, self.naming.stands_for)
        found = (unclipped(found) if sign > 0 else found).subst(size)
        gone = {s for s in found.symbols() if s.kind not in ("size", "scalar")}
        if not gone:
            return found
        bound = estimate.upper_bound if sign > 0 else estimate.lower_bound
        return bound(e, {s for s in e.symbols() if s.kind not in ("size", "scalar")})

    def cut(self, c: Cut) -> Expr:
        """The extent of a Cut on the rank that has most."""
        if c.given is not None or not c.axes:
            low, high = c.bounds(self.mesh)
            return self.most(high - low)
        found = c.most - c.least - (-c.extent) // self.mesh.size(c.axes)
        if abs(c.step) != 1:
            found = -((-found) // abs(c.step))
        limit = c.last - c.first
        return found if c.open or limit == c.extent else expr.minimum(found, limit)

    def volume(self, shape: Shape) -> Expr:
        try:
            return expr.product(map(self.most, shape))
        except ProgramError:  # no extent alone is bounded
            elements = expr.product(shape)
            gone = {s for s in elements.symbols() if s.kind not in ("size", "scalar")}
            return estimate.upper_bound(elements, gone)

    # ---- kinds ---------------------------------------------------------------------------------

    def of(self, op: Op) -> Traffic:
        size = op.operands[0].type.dtype.size if op.operands else 0
        if op.kind in ("redistribute", "halo"):
            return self.redistribute(op, size)
        shape = op.result.type.shape if op.results else ()
        result = self.volume(shape) * size
        if op.kind == "all_gather" or op.kind == "gather_to":
            d = op.attrs["dim"]
            mine = self.least(op.operands[0].type.shape[d])
            whole = op.operands[0].type.shape
            rest = self.volume((*whole[:d], *whole[d + 1 :]))
            words = "all-gather" if op.kind == "all_gather" else "gather"
            total = self.most(shape[d])
            return Traffic(words, f"{words} along dim {d}", (total - mine) * rest * size,
                           result, (d,))  # fmt: skip
        if op.kind == "all_to_all":
            split, concat = op.attrs["split"], op.attrs["concat"]
            total = self.most(shape[concat]) - self.least(op.operands[0].type.shape[concat])
            rest = self.volume((*shape[:concat], *shape[concat + 1 :]))
            words = f"all-to-all: dim {split} is split instead of dim {concat}"
            return Traffic("all-to-all", words, total * rest * size, result)
        if op.kind == "scan":
            kind = "exclusive scan" if op.attrs["exclusive"] else "scan"
        else:
            kind = _FOLDS.get(op.kind, "")
        if kind:
            combined = _COMBINED.get(op.attrs["fn"], f"'{op.attrs['fn']}'")
            into = f" into blocks of dim {op.attrs['dim']}" if op.kind == "reduce_scatter" else ""
            whole = op.operands[0].type.shape
            return Traffic(kind, f"{kind} of {combined}{into}", self.volume(whole) * size, result)
        return Traffic(_MOVES[op.kind], _MOVES[op.kind], result, result)

    def redistribute(self, op: Op, size: int) -> Traffic:
        """Per dim: what it becomes, its new extent, and how much of that a rank has already."""
        found = [
            self.dim(d, h, w, op.result.type.ndim)
            for d, (h, w) in enumerate(zip(op.attrs["have"], op.attrs["want"], strict=True))
        ]
        kinds = list(dict.fromkeys(kind for kind, _, _, _ in found if kind))
        same: dict[str, list[int]] = {}
        for d, (_, text, _, _) in enumerate(found):
            same.setdefault(text, []).append(d)
        texts = [text.format(_dims(dims)) for text, dims in same.items() if text]
        result = expr.product(total for _, _, total, _ in found) * size
        mine = expr.product(own for _, _, _, own in found) * size
        gathered = tuple(d for d, f in enumerate(found)
                         if f[0] in ("all-gather", "broadcast") and f[2] != 1)
        return Traffic(kinds[0] if len(kinds) == 1 else "change of layout", " and ".join(texts),
                       result - mine, result, gathered)  # fmt: skip

    def dim(
        self, d: int, have: Sequence[Expr], want: Sequence[Expr], ndim: int
    ) -> tuple[str, str, Expr, Expr]:
        (low, high), (first, last) = have, want
        total = self.most(last - first)
        if (low, high) == (first, last):
            return "", "", total, total
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


def unclipped(e: Expr) -> Expr:
    """At least e: an extent high - low, without the ends that both are kept within."""
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
    """(min or max, number, what it clips)."""
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

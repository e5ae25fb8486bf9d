"""The bounds of a rank's blocks by short names: what makes the text of a Program readable.

Goes in: every Expr of a Module. Comes out: per dim that is split unevenly, a name for the begin and
one for the end of this rank's block, and how an Expr reads with them.
Always holds: the text has the value of the Expr; one that gets no shorter stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

from codegen.mesh import LayoutEntry, Mesh, local_extent, local_offset
from codegen.symbolic import expr
from codegen.symbolic.expr import Call, Expr, Sym


class Naming:
    """names: per extent and axes of a dim, what begin and end of this rank's block are called."""

    def __init__(self, mesh: Mesh, every: Iterable[Expr]) -> None:
        self.mesh = mesh
        self.names: dict[tuple[Expr, LayoutEntry], tuple[Sym, Sym]] = {}
        self.known: dict[Expr, str] = {}
        self.stands_for: dict[Call, Expr] = {}
        entries = [e for n in range(1, 4) for e in permutations(mesh.names, n)]
        along = {mesh.position(e): e for e in reversed(entries)}
        every = dict.fromkeys(every)
        taken = {s.name for e in every for s in e.symbols()}
        for e in every:
            for call in expr.calls(e):
                found = _uneven(call, mesh, along)
                if found is not None:
                    self.name(*found, taken)

    def name(self, extent: Expr, axes: LayoutEntry, taken: set[str]) -> None:
        if (extent, axes) in self.names:
            return
        blocks = self.mesh.size(axes)
        k, each, left = self.mesh.position(axes), extent // blocks, extent % blocks
        begins, longer = expr.minimum(k, left), expr.lt(k, left)
        rounded, tests = _only(begins), [c for c in longer.atoms() if isinstance(c, Call)]
        if rounded is None or len(tests) != 1:
            return
        stem, count = "".join(axes), 1
        while {f"{stem}{end}{_numbered(count)}" for end in (0, 1)} & taken:
            count += 1
        low, high = (Sym(f"{stem}{end}{_numbered(count)}", "coord") for end in (0, 1))
        taken |= {low.name, high.name}
        self.names[extent, axes] = low, high
        begin, end = expr.symbol(low), expr.symbol(high)
        self.stands_for[rounded] = begin - each * k
        self.stands_for[tests[0]] = 1 - (end - begin - each)  # not longer

    def __call__(self, e: Expr) -> str:
        found = self.known.get(e)
        if found is None:
            found = str(e)
            if not e.deep.isdisjoint(self.stands_for):
                found = min(str(expr.replace(e, self.stands_for)), found, key=len)
            self.known[e] = found
        return found

    def definitions(self) -> Iterable[str]:
        """A line per block."""
        for (extent, axes), (low, high) in self.names.items():
            over = ", ".join(f'"{a}"' for a in axes)
            begin = local_offset(self.mesh, extent, axes)
            size = local_extent(self.mesh, extent, axes)
            yield (f"block {low.name}:{high.name} of {extent} over {over}: "
                   f"{low.name} = {begin}, {high.name} = {low.name} + {size}")  # fmt: skip


def _numbered(count: int) -> str:
    return "" if count == 1 else f"_{count}"


def _only(e: Expr) -> Call | None:
    """The call that an Expr is."""
    found = [a for a in e.atoms() if isinstance(a, Call) and e == expr.from_atom(a)]
    return found[0] if found else None


def _uneven(
    call: Call, mesh: Mesh, along: dict[Expr, LayoutEntry]
) -> tuple[Expr, LayoutEntry] | None:
    """(extent, axes) where a call is made for a block of this rank: min or ge0 of its remainder."""
    if call.op not in ("min", "ge0"):
        return None
    for left in {a for arg in call.args for a in arg.atoms()}:
        if not isinstance(left, Call) or left.op != "mod":
            continue
        extent, blocks = left.args
        rest = expr.from_atom(left)
        sides = call.args if call.op == "min" else (call.args[0] + rest, rest)
        for position in sides:
            axes = along.get(position)
            if axes and mesh.size(axes) == blocks and {position, rest} == set(sides):
                return extent, axes
    return None

"""The bounds of a rank's blocks by short names: what makes the text of a Program readable.

Goes in: every Expr of a Module. Comes out: per dim that is split unevenly, a name for the begin and
one for the end of this rank's block, and how an Expr reads with them.
Always holds: the text has the value of the Expr.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

from codegen.mesh import LayoutEntry, Mesh, local_extent, local_offset
from codegen.symbolic import expr
from codegen.symbolic.block_laws import begins
from codegen.symbolic.expr import Call, Expr, Sym


class Naming:
    """Short names for the bounds of blocks. names: by extent and axes of a dim, the two names of
    the begin and the end of this rank's block."""

    def __init__(self, mesh: Mesh, every: Iterable[Expr]) -> None:
        self.mesh = mesh
        self.names: dict[tuple[Expr, LayoutEntry], tuple[Sym, Sym]] = {}
        self.known: dict[Expr, str] = {}
        self.stands_for: dict[Call, Expr] = {}
        entries = [e for n in range(1, 4) for e in permutations(mesh.names, n)]
        along = {(mesh.position(e), mesh.size(e)): e for e in reversed(entries)}
        every = dict.fromkeys(every)
        taken = {s.name for e in every for s in e.symbols()}
        for e in every:
            for call in begins(e):
                k, extent, blocks = call.args
                for end in (0, 1):
                    axes = along.get((k - end, blocks))
                    if axes:
                        self.stands_for[call] = expr.symbol(self.name(extent, axes, taken)[end])

    def name(self, extent: Expr, axes: LayoutEntry, taken: set[str]) -> tuple[Sym, Sym]:
        if (extent, axes) not in self.names:
            stem, count = "".join(axes), 1
            while {f"{stem}{end}{_numbered(count)}" for end in (0, 1)} & taken:
                count += 1
            low, high = (Sym(f"{stem}{end}{_numbered(count)}", "coord") for end in (0, 1))
            taken |= {low.name, high.name}
            self.names[extent, axes] = low, high
        return self.names[extent, axes]

    def __call__(self, e: Expr) -> str:
        name = self.known.get(e)
        if name is None:
            name = self.known[e] = str(expr.replace(e, self.stands_for))
        return name

    def definitions(self) -> Iterable[str]:
        """Yield, for each block, a line that defines its names."""
        for (extent, axes), (low, high) in self.names.items():
            over = ", ".join(f'"{a}"' for a in axes)
            begin = local_offset(self.mesh, extent, axes)
            end = begin + local_extent(self.mesh, extent, axes)
            yield (f"block {low.name}:{high.name} of {extent} over {over}: "
                   f"{low.name} = {begin}, {high.name} = {end}")


def _numbered(count: int) -> str:
    return "" if count == 1 else f"_{count}"

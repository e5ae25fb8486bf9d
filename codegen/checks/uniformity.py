"""Checks against deadlocks: an exchange is reached by all its members or none, a feed by all ranks.

In: a Program. Out: the same; or a MatchingError where ranks may take different branches around it.
Always holds: what members must say alike, such as a root, is one formula on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import MatchingError, Place
from codegen.graph.variance import Axes, Variance, analysed
from codegen.ir.graph import Module, Op, Region
from codegen.ir.graph_text import axes_text, exchange_text, user_text
from codegen.ops import Branch, Exchange, Feeding, Loop, Save


def check_uniform(program: Module) -> Module:
    """Return the Program itself, in which every exchange is reached by all its members or by none.

    Raises MatchingError where members may pass a branch or loop around an exchange differently.
    """
    variance = analysed(program)
    for region in program.regions:
        _Check(program, variance).region(region, ())
    return program


# ---- who comes to an exchange ------------------------------------------------------------------


@dataclass(frozen=True)
class _Around:
    """A loop or branch around an exchange, and the axes along which ranks pass it differently."""

    op: Op
    axes: Axes


class _Check:
    """Checks every exchange, feed and save with the loops and branches around it."""

    def __init__(self, program: Module, variance: Variance) -> None:
        self.mesh = program.mesh
        self.variance = variance

    def region(self, region: Region, around: tuple[_Around, ...]) -> None:
        for op in region.ops:
            if isinstance(op.kind, Exchange):
                self.exchange(op, op.kind, around)
            elif isinstance(op.kind, Feeding):
                self.met(op, f'feed "{op.kind.feed}"', frozenset(self.mesh.names), around)
            elif isinstance(op.kind, Save):
                self.met(op, f'save "{op.kind.series}"', frozenset(self.mesh.names), around)
            for inner in op.regions:
                self.region(inner, (*around, _Around(op, self.variance.passing(op))))

    def exchange(self, op: Op, kind: Exchange, around: tuple[_Around, ...]) -> None:
        members = frozenset(kind.axes)
        self.met(op, exchange_text(op), members, around)
        for name, e in kind.agreed().items():
            if apart := self.variance.expr(e) & members:
                raise MatchingError(
                    f"{exchange_text(op)}: {name} differs between the ranks along "
                    f"{axes_text(sorted(apart))}",
                    place=op.place,
                    expected="one formula on all ranks, which names each rank by its position",
                    found=user_text(self.mesh, e),
                    remedy="ppermute(..., to=lambda i, n: ...) gives each rank's destination",
                )

    def met(
        self, op: Op, called: str, members: Axes, around: tuple[_Around, ...]
    ) -> None:
        """Raise MatchingError if some of the members may not reach an op while others do."""
        for k, outer in reversed([*enumerate(around)]):
            if apart := outer.axes & members:
                names = tuple(a for a in self.mesh.names if a in apart)
                same = (o.op for o in around[:k] if o.op.place == outer.op.place)
                raise self.refused(op, called, next(same, outer.op), names)

    def refused(
        self, op: Op, called: str, outer: Op, apart: tuple[str, ...]
    ) -> MatchingError:
        along = axes_text(apart)
        if isinstance(outer.kind, Loop):
            where = f"inside a loop whose number of turns may differ between ranks along {along}"
            title = "the number of turns differs:"
        else:
            where = f"inside a branch that only some ranks along {along} may take"
            title = "the branch is taken by some ranks only:"
        fed = isinstance(op.kind, Feeding)
        why = ": a batch is of all ranks, each takes its part of it" if fed else ""
        cause, remedy = self.cause(outer, apart, "take the batch" if fed else "compute the value")
        also: tuple[tuple[str, Place], ...] = ((title, outer.place),) if outer.place else ()
        return MatchingError(
            f"{called} {where}",
            place=op.place,
            also=also,
            expected=f"all ranks along {along} come to it together, or none{why}",
            found=cause,
            remedy=remedy,
        )

    def cause(self, outer: Op, apart: tuple[str, ...], do: str) -> tuple[str, str]:
        """Return why ranks part at a branch or loop, and the remedy, which says where to `do`
        something."""
        kind = outer.kind
        if isinstance(kind, Branch) and kind.on is not None:
            return (user_text(self.mesh, kind.on),
                    f"{do} on every rank and choose with np.where")
        if isinstance(kind, Loop):
            bounds = {"start": kind.start, "stop": kind.stop, "step": kind.step}
            for name, e in bounds.items():
                if e is not None and self.variance.expr(e) & set(apart):
                    remedy = "run the loop from one start, equally often on every rank; np.where "
                    return f"{name} = {user_text(self.mesh, e)}", f"{remedy}chooses"
        axes = axes_text(apart) if len(apart) == 1 else f"({axes_text(apart)})"
        return (
            f"a condition computed from values that may differ along {axes_text(apart)}",
            f"reduce the condition first: spmd.any_ranks(condition, {axes}), or all_ranks",
        )

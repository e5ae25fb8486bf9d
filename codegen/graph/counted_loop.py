"""Views of loops: what a turn reads, writes, carries unchanged, and what depends on the counter.

Goes in: a loop of a Graph or a Program. Comes out: a LoopBody, or for a loop that counts without
a condition a CountedLoop, which also knows its counter's values and estimates sizes.
Always holds: a value that a view calls invariant is the same array in every turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from codegen.graph.rewriter import is_pure
from codegen.ir.graph import Op, Region, Value, walk
from codegen.ops import Loop
from codegen.symbolic import expr
from codegen.symbolic.estimate import largest
from codegen.symbolic.expr import Expr, Sym


@dataclass(frozen=True)
class LoopBody:
    """The body of a loop. typical: a typical value of each counter around it, by name, for
    estimates."""

    op: Op
    typical: Mapping[str, int]

    @property
    def body(self) -> Region:
        return self.op.regions[-1]

    @cached_property
    def defs(self) -> dict[Value, Op]:
        """The op of the body that computes a value, not those of inner regions."""
        return {v: op for op in self.body.ops for v in op.results}

    @cached_property
    def carried(self) -> dict[Value, tuple[Value, Value]]:
        """By argument of the body: its value before the loop, and at the end of a turn."""
        ends = zip(self.op.operands, self.body.results, strict=True)
        return dict(zip(self.body.args, ends, strict=True))

    @cached_property
    def computed(self) -> set[Sym]:
        """The symbols that ops in the body define."""
        return {s for op in walk(self.body) if (s := op.kind.counts()) is not None}

    @cached_property
    def varying(self) -> set[Value]:
        """The values of a turn that another turn may compute differently, or not at all."""
        symbols = {*self.computed, self.op.kind.counts()}
        varying = {v for region in self.op.regions for v in region.args
                   if region is not self.body or self.carried[v][1] is not v}
        for op in self.body.ops:
            exprs = [*op.kind.exprs(), *(e for v in op.results for e in v.type.shape)]
            if not is_pure(op) or not varying.isdisjoint(op.operands) or any(
                    not symbols.isdisjoint(e.symbols()) for e in exprs):
                varying.update(op.results)
        return varying

    def is_inside(self, value: Value) -> bool:
        """Return whether a value is carried or computed by the body."""
        return value in self.carried or value in self.defs

    def before(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return values with the carried ones replaced by what they are before the loop."""
        return tuple(self.carried[v][0] if v in self.carried else v for v in values)

    def number(self, e: Expr) -> int | None:
        """Return the estimated value of an expression, or None if it has symbols without an
        estimate."""
        try:
            return e.evaluate(self.typical)
        except KeyError:
            return None

    def volume(self, shape: Iterable[Expr]) -> int | None:
        """Return the estimated number of elements of a shape, at most, or None if not known."""
        extents = [self.number(largest(e)) for e in shape]
        return None if None in extents else prod(e for e in extents if e is not None)


@dataclass(frozen=True)
class CountedLoop(LoopBody):
    """A loop without a condition whose counter goes from `first` to `last` in `count` turns, by
    `step`."""

    counter: Sym = field(kw_only=True)
    first: Expr = field(kw_only=True)
    last: Expr = field(kw_only=True)
    step: int = field(kw_only=True)
    count: Expr = field(kw_only=True)

    @classmethod
    def of(cls, op: Op, typical: Mapping[str, int]) -> CountedLoop | None:
        """Return an op as a counted loop, or None if it is none or may have a negative number of
        turns."""
        loop = op.kind
        if not isinstance(loop, Loop) or loop.counter is None or len(op.regions) > 1:
            return None
        count = loop.turns()
        if count is None or not expr.nonneg(count):
            return None
        step = loop.step.value
        last = loop.start + step * (count - 1)
        view = cls(op, typical, counter=loop.counter, first=loop.start, last=last, step=step,
                   count=count)
        middle = view.number(view.middle)
        return view if middle is None else replace(
            view, typical={**typical, loop.counter.name: middle})

    @property
    def middle(self) -> Expr:
        return (self.first + self.last) // 2

    def when(self, e: Expr, counter: Expr) -> Expr:
        """Return an expression's value in the turn in which the counter has this value."""
        return e.subst({self.counter: counter})

    def slope(self, e: Expr) -> int | None:
        """Return by how much an expression grows per turn, or None if that is not one constant."""
        by, rest = expr.linear_in(e, self.counter)
        if by is None or not by.is_const or self.counter in rest.symbols():
            return None
        return by.value * self.step

    def least(self, e: Expr) -> Expr | None:
        """Return the least value of an expression over all turns, or None if it is not linear."""
        by = self.slope(e)
        return None if by is None else self.when(e, self.last if by < 0 else self.first)

    def most(self, e: Expr) -> Expr | None:
        """Return the greatest value of an expression over all turns, or None if it is not
        linear."""
        least = self.least(-e)
        return None if least is None else -least


def typical_counters(region: Region) -> dict[str, int]:
    """Return the value of each loop counter in the middle of its turns, by name, as far as it is
    known."""
    typical: dict[str, int] = {}
    for op in walk(region):
        if (loop := CountedLoop.of(op, typical)) is not None:
            typical.update(loop.typical)
    return typical

"""Split a backward half in two: gradients of the arguments first, those of the weights later.

In: Halves. Out: BackwardParts. Always holds: what both parts need is computed by the first one, and
crosses to the second one, which computes it again only where it is a view or follows from the
weights only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from codegen.ir.graph import ArrayType, Op, Value
from codegen.trace.array import Array, wrap
from codegen.trace.derive.dead_code import needed
from codegen.trace.derive.halves import (
    VIEWS,
    Halves,
    following,
    reads_of,
    recomputed,
    values_of,
)
from codegen.trace.state import fill


@dataclass(frozen=True)
class BackwardParts:
    """The backward half of Halves, split by dataflow. crossing: the values of the
    first part that the second one reads, besides those that the forward half has kept."""

    halves: Halves
    sooner: tuple[Op, ...]
    later: tuple[Op, ...]
    crossing: tuple[Value, ...]

    @property
    def crossing_types(self) -> list[ArrayType]:
        return [v.type for v in self.crossing]

    def of_arguments(self, weights: Any, kept: Sequence[Array], cotangents: Sequence[Array]
                     ) -> tuple[tuple[Any, ...], list[Array]]:
        """Return the gradients of each argument, as Halves.backward does, and the values that
        cross."""
        halves = self.halves
        wanted = halves.gradients[len(halves.weights):]
        values = halves.copied(
            self.sooner, halves.weights + halves.kept + halves.cotangents,
            values_of(halves.context, (weights, list(kept), list(cotangents))),
            wanted + self.crossing)
        arrays = [wrap(halves.context, v) for v in values]
        rest = iter(arrays)
        gradients = tuple(n if n is None else [*islice(rest, n)] for n in halves.wanted)
        return gradients, arrays[len(wanted):]

    def of_weights(self, weights: Any, kept: Sequence[Array], crossing: Sequence[Array]) -> Any:
        """Return the gradients of the weights."""
        halves = self.halves
        values = halves.copied(
            self.later, halves.weights + halves.kept + self.crossing,
            values_of(halves.context, (weights, list(kept), list(crossing))),
            halves.gradients[:len(halves.weights)])
        arrays = iter([wrap(halves.context, v) for v in values])
        return fill(halves.weights_tree, arrays, fresh=True)


def backward_parts(halves: Halves) -> BackwardParts:
    """Split the backward half: first what gradients of the arguments need, then the rest.

    Where no argument's gradient is wanted, the first part is the ops that the gradients of several
    weights need. A loop is never split: gradients of weights that one finds in the first part
    cross.
    """
    of_weights = halves.gradients[:len(halves.weights)]
    of_arguments = halves.gradients[len(halves.weights):]
    every = {v: op for op in halves.later for v in op.results}
    shared = [v for op in _shared(halves.later, of_weights) for v in op.results]
    first_values = _ancestors(every, of_arguments or shared)
    of_microbatch = following(halves.later, [*halves.kept, *halves.cotangents])
    again, crossing = recomputed(halves.later, of_weights, lambda v: v in halves.cotangents or (
        v in first_values and v in of_microbatch and not isinstance(every[v].kind, VIEWS)))
    sooner = needed(halves.later, [*of_arguments, *crossing])
    later = needed([op for op in halves.later if op in again], of_weights)
    return BackwardParts(halves, tuple(sooner), tuple(later), tuple(crossing))


def _ancestors(every: Mapping[Value, Op], results: Sequence[Value]) -> set[Value]:
    """Return all results of the ops that `results` need, those of a loop that none needs too."""
    values: set[Value] = set()
    stack = list(results)
    while stack:
        v = stack.pop()
        if v in every and v not in values:
            values.update(every[v].results)
            stack += reads_of(every[v])
    return values


def _shared(ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Return the ops that more than one of the results need."""
    users: dict[Value, set[int]] = {}
    for k, v in enumerate(results):
        users.setdefault(v, set()).add(k)
    shared = []
    for op in reversed(ops):
        those = {k for v in op.results for k in users.get(v, ())}
        for v in reads_of(op):
            users.setdefault(v, set()).update(those)
        if len(those) > 1:
            shared.append(op)
    return shared[::-1]

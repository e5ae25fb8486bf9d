"""Operations on global arrays, on one rank: which part of its operands an op needs for a part of
its result, and the local ops that compute that part.

The rules are those of codegen.layouts.views and combining, one pair for each kind of op.
Always holds: what `make` reads, `needs` has named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codegen.ir import Op, Value
from codegen.layouts.combining import Combining
from codegen.layouts.cuts import Window
from codegen.layouts.views import Builder

# Ops that are no work of their own, or hardly any: computed anew wherever a part is wanted.
VIEWS = frozenset("broadcast slice transpose reshape full iota const expr".split())
# Ops that compute a part that several uses want together, though parts of ranks then overlap.
OVERLAPPING = frozenset({"map"})


class Localizer(Combining):
    """The rules by the kind of an op."""

    def needs(self, op: Op, window: Window) -> list[Window]:
        """The part of each operand for this part of the result. Window () for 0-d operands."""
        found: list[Window] = _NEEDS[op.kind](self, op, window)
        return found

    def make(self, op: Op, window: Window, operands: Sequence[Value], build: Builder) -> Value:
        """The part of the result, of the operands' parts that `needs` named."""
        value: Value = _MAKES[op.kind](self, op, window, list(operands), build)
        return value


_NEEDS: dict[str, Callable[..., list[Window]]] = {
    "map": Localizer._same, "relayout": Localizer._same,
    "broadcast": Localizer._broadcast_needs,
    "slice": Localizer._slice_needs, "transpose": Localizer._transpose_needs,
    "reshape": Localizer._reshape_needs,
    "full": Localizer._none, "iota": Localizer._none, "const": Localizer._none,
    "expr": Localizer._none,
    "update": Localizer._update_needs, "dynamic_slice": Localizer._dynamic_slice_needs,
    "dynamic_update": Localizer._dynamic_update_needs, "gather": Localizer._gather_needs,
    "scatter": Localizer._scatter_needs, "reduce": Localizer._reduce_needs,
    "sort": Localizer._lane_needs, "argsort": Localizer._lane_needs,
    "argreduce": Localizer._argreduce_needs, "cumulative": Localizer._same,
    "matmul": Localizer._matmul_needs,
}  # fmt: skip
_MAKES: dict[str, Callable[..., Value]] = {
    "map": Localizer._map, "relayout": Localizer._operand,
    "broadcast": Localizer._broadcast, "slice": Localizer._slice,
    "transpose": Localizer._transpose, "reshape": Localizer._reshape,
    "full": Localizer._full, "iota": Localizer._iota, "const": Localizer._const,
    "expr": Localizer._expr,
    "update": Localizer._update, "dynamic_slice": Localizer._dynamic_slice,
    "dynamic_update": Localizer._dynamic_update, "gather": Localizer._gather,
    "scatter": Localizer._scatter, "reduce": Localizer._reduce,
    "sort": Localizer._sort, "argsort": Localizer._sort,
    "argreduce": Localizer._argreduce, "cumulative": Localizer._cumulative,
    "matmul": Localizer._matmul,
}  # fmt: skip

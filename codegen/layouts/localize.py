"""Operations on global arrays, on one rank: which part of its operands an op needs for a part of
its result, and the local ops that compute that part.

The rules are those of codegen.layouts.views and combining, one pair for each kind of op.
Always holds: what `make` reads, `needs` has named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codegen.ir import Op, Value
from codegen.layouts import cuts
from codegen.layouts.combining import Combining
from codegen.layouts.cuts import Window, home
from codegen.layouts.views import Builder

# Ops that are no work of their own, or hardly any: computed anew wherever a part is wanted.
VIEWS = frozenset("broadcast slice transpose reshape roll full iota const expr".split())
# Ops that compute a part that several uses want together, though parts of ranks then overlap.
OVERLAPPING = frozenset({"map"})


class Localizer(Combining):
    """The rules by the kind of an op."""

    def needs(self, op: Op, window: Window) -> list[Window]:
        """The part of each operand for this part of the result. Window () for 0-d operands."""
        needs, _ = _RULES[op.kind]
        return needs(self, op, window)

    def make(self, op: Op, window: Window, operands: Sequence[Value], build: Builder) -> Value:
        """The part of the result, of the operands' parts that `needs` named."""
        _, make = _RULES[op.kind]
        return make(self, op, window, list(operands), build)


# By the kind of an op: what it needs, and how it is made.
_RULES: dict[str, tuple[Callable[..., list[Window]], Callable[..., Value]]] = {
    "map": (Localizer._same, Localizer._map),
    "relayout": (Localizer._same, Localizer._operand),
    "broadcast": (Localizer._broadcast_needs, Localizer._broadcast),
    "slice": (Localizer._slice_needs, Localizer._slice),
    "transpose": (Localizer._transpose_needs, Localizer._transpose),
    "reshape": (Localizer._reshape_needs, Localizer._reshape),
    "roll": (Localizer._roll_needs, Localizer._roll),
    "edge": (Localizer._edge_needs, Localizer._edge),
    "full": (Localizer._none, Localizer._full),
    "iota": (Localizer._none, Localizer._iota),
    "const": (Localizer._none, Localizer._const),
    "expr": (Localizer._none, Localizer._expr),
    "update": (Localizer._update_needs, Localizer._update),
    "dynamic_slice": (Localizer._dynamic_slice_needs, Localizer._dynamic_slice),
    "dynamic_update": (Localizer._dynamic_update_needs, Localizer._dynamic_update),
    "gather": (Localizer._gather_needs, Localizer._gather),
    "scatter": (Localizer._scatter_needs, Localizer._scatter),
    "reduce": (Localizer._reduce_needs, Localizer._reduce),
    "sort": (Localizer._lane_needs, Localizer._sort),
    "argsort": (Localizer._lane_needs, Localizer._sort),
    "argreduce": (Localizer._argreduce_needs, Localizer._argreduce),
    "cumulative": (Localizer._same, Localizer._cumulative),
    "matmul": (Localizer._matmul_needs, Localizer._matmul),
}


def kernel_windows(op: Op) -> list[Window]:
    """The part of each operand that a kernel works on for its part of the results."""
    return [
        tuple(
            cuts.whole(extent) if along is None
            else cuts.widened(home(op.results[along[0]])[along[1]], along[2])
            for extent, along in zip(v.type.shape, dims, strict=True)
        )
        for v, dims in zip(op.operands, op.attrs["along"], strict=True)
    ]  # fmt: skip

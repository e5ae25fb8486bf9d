"""What users give a pipeline, checked: parameters of layers, states.

In: layers, or what stands in the place of a state. Out: UsageError, or what is wrong, as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codegen.errors import DtypeError, UsageError
from codegen.places import user_place
from codegen.trace.array import Array, as_array
from codegen.trace.state import flatten
from spmd.pipelining.layer_texts import function_name, types_text


def check_parameters(layers: Sequence[tuple[Any, Any]]) -> None:
    """Raise UsageError where parameters of layers are no floats, or where there are none at all."""
    count = 0
    for number, (function, parameters) in enumerate(layers):
        leaves = flatten(parameters)[1]
        count += len(leaves)
        for leaf in leaves:
            try:
                fits = as_array(leaf).type.dtype.kind in "fc"
            except DtypeError:
                fits = False
            if not fits:
                raise UsageError(
                    f"parameters of layer {number}, {function_name(function)}, are no floats",
                    place=user_place(), expected="a tree of arrays of floats, which are trained",
                    found=types_text(leaf),
                    remedy="() for a layer without any" if leaf is None else
                    "w.astype(np.float64); or, for what is not trained, a constant that the "
                    "function uses")
    if not count:
        raise UsageError("no layer of the pipeline has parameters: there is nothing to train",
                         place=user_place(), expected="arrays of floats in one layer at least",
                         remedy="layers=[(block, w), (last, v)]")


def state_fault(state: Any, lengths: Mapping[str, Mapping[str, Any] | None], stages: int) -> str:
    """Return why something is no state with these parts; "" where it is one. lengths: of the
    buffers of each part, by their element types; None for a part that is an array."""
    if isinstance(state, tuple):
        return f"a tuple of {len(state)}"
    if not isinstance(state, Mapping):
        return types_text(state)
    if missing := [name for name in lengths if name not in state]:
        return f"a dict without {', '.join(map(repr, missing))}"
    for name, parts in lengths.items():
        if parts is None:
            continue
        rows = state[name] if isinstance(state[name], Mapping) else {}
        if set(rows) != set(parts) or any(
                not isinstance(x, Array) or _differ(x.shape, (stages, parts[k]))
                for k, x in rows.items()):
            return f"{name} of other layers, stages, or of another optimizer"
    return ""


def _differ(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two shapes differ, as far as that is known while building."""
    return len(shape) != len(other) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(shape, other))

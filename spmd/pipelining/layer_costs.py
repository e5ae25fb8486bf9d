"""What layers cost, by which they are cut into stages.

In: layers, and `cut` of spmd.pipeline. Out: a number for each layer, and what it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.errors import UsageError
from codegen.ir.graph import Op
from codegen.ops import Branch, Loop
from codegen.places import user_place
from codegen.symbolic.expr import Expr
from codegen.trace.state import flatten
from spmd.pipelining.stage_code import code_of, stages_of

if TYPE_CHECKING:
    from spmd.pipelining.microbatches import Microbatches
    from spmd.pipelining.training_pipeline import TrainingPipeline

Cut = str | Sequence[float]


def check_cut(cut: Cut, layers: int) -> None:
    """Raise UsageError for a `cut` that spmd.pipeline does not take."""
    if isinstance(cut, str):
        right = cut in ("parameters", "operations")
    else:
        right = isinstance(cut, Sequence | np.ndarray) and len(cut) == layers and all(
            isinstance(x, (int, float, np.number)) and 0 <= x < float("inf") for x in cut)
    if not right:
        raise UsageError(
            f"cut={cut!r} of a pipeline of {layers} layers", place=user_place(),
            expected='"parameters", "operations", or a list with the seconds of each layer',
            remedy=f"a list of {layers} numbers, none below 0" if not isinstance(cut, str) else
            'cut="operations"')


def costs_of(pipe: TrainingPipeline, cut: Cut, batch: Microbatches | None
             ) -> tuple[list[float], str]:
    """Return what each layer costs, and its unit. batch: None where it is not known yet, and so no
    operations are."""
    if not isinstance(cut, str):
        return list(map(float, cut)), "seconds"
    if cut == "operations" and batch is not None:
        return _operations(pipe, batch), "operations of a microbatch"
    return [float(sum(map(_size, flatten(w)[1]))) for _, w in pipe.layers], "parameters"


def _size(x: Any) -> int:
    return int(np.prod([int(n) for n in np.shape(x)], dtype=np.int64))


def _operations(pipe: TrainingPipeline, batch: Microbatches) -> list[float]:
    """Return how many operations each layer has, forward and backward."""
    each = stages_of(pipe.layers, range(len(pipe.layers) + 1), pipe.split)
    code = code_of(pipe.split, pipe.axis, each, batch.x_types, batch.y_types)
    return [float(operations((*half.ahead, *half.later), {})) for half in code.halves]


def operations(ops: Iterable[Op], counters: Mapping[Any, int]) -> int:
    """Return about how many operations the ops do: one for each element that is computed, and for
    each term of a sum in a product of matrices. Sizes that only the launch knows count as 1; a loop
    whose turns differ counts its first turn for all. counters: values of symbols."""
    return sum(_operations_of(op, counters) for op in ops)


def _operations_of(op: Op, counters: Mapping[Any, int]) -> int:
    kind = op.kind
    if isinstance(kind, Loop):
        turns, inner = 1, dict(counters)
        if kind.counter is not None:
            inner[kind.counter.name] = _value(kind.start, counters)
        if kind.stop is not None:
            start, stop, step = (_value(e, counters) for e in (kind.start, kind.stop, kind.step))
            turns = max(0, -((start - stop) // (step or 1)))
        return turns * operations(op.regions[-1].ops, inner)
    if op.regions:
        count: Callable[[Iterable[int]], int] = max if isinstance(kind, Branch) else sum
        return count(operations(region.ops, counters) for region in op.regions)
    if kind.is_view:
        return 0
    return max((prod(max(0, _value(e, counters)) for e in shape) for shape in kind.work(op)),
               default=0)


def _value(e: Expr, known: Mapping[str, int]) -> int:
    return e.evaluate({s.name: 1 for s in e.symbols()} | dict(known))

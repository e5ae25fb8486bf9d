"""What an image says of its pipelines to people: how layers are cut, and the schedule.

In: a TrainingPipeline. Out: a row of the notes of the image, in JSON, which spmd.pipeline_notes
reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any

from codegen.dtypes import BY_NAME
from codegen.explain.reasons import place_row
from codegen.ir.graph import ArrayType
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import to_json
from codegen.trace.number import expr_of
from spmd.pipelining.stage_code import StageCode
from spmd.schedules import Schedule

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import TrainingPipeline


def row_of(pipe: TrainingPipeline, place: str) -> dict[str, Any]:
    """Return the row of a pipeline, before it is known what its stages keep."""
    return {"place": place_row(user_place()), "axis": pipe.axis, "stages_lie": place,
            "cut": pipe.cut, "schedule": _plain(pipe.schedule)}


def row_bytes(pipe: TrainingPipeline, code: StageCode) -> dict[str, Any]:
    """Return how long a row of each buffer is that may go to another rank, in bytes, as formulas in
    JSON; `loss` is the sum of losses, and how many they are."""
    packings = {"weights": pipe.weights, "activations": code.activations,
                "cotangents": code.cotangents}
    sizes = {name: _sum(_length(n) * BY_NAME[dtype].size for dtype, n in packing.lengths.items())
             for name, packing in packings.items()}
    sizes["loss"] = expr.const(2 * code.halves[-1].out_types[0].dtype.size)
    return {name: to_json(size) for name, size in sizes.items()}


def kept_bytes(pipe: TrainingPipeline, code: StageCode) -> list[Any]:
    """Return how many bytes a rank of each stage keeps of a microbatch, as formulas in JSON."""
    return [to_json(pipe.split.most(_sum(map(_bytes, half.kept_types)))) for half in code.halves]


def other_axes(pipe: TrainingPipeline, data: str | None) -> dict[str, list[str]]:
    """Return the axes that split weights, and those along which all ranks compute the same. data:
    the axis that splits the batch."""
    others = [a for a in pipe.context.mesh.names if a not in (pipe.axis, data)]
    return {"split": [a for a in others if a in pipe.split.names],
            "alike": [a for a in others if a not in pipe.split.names]}


def _length(n: Any) -> expr.Expr:
    length = expr_of(n)
    assert length is not None, "a length is an integer, or a formula"
    return length


def _sum(sizes: Iterable[expr.Expr]) -> expr.Expr:
    return reduce(lambda a, b: a + b, sizes, expr.const(0))


def _bytes(t: ArrayType) -> expr.Expr:
    return reduce(lambda a, b: a * b, t.shape, expr.const(t.dtype.size))


def _plain(schedule: Schedule) -> dict[str, Any]:
    """Return the fields of a schedule as JSON has them."""
    names = ("name", "stages", "microbatches", "period", "accumulate", "correction", "place",
             "ranks", "proof", "source")
    ticks = {kind: [list(row) for row in rows] for kind, rows in schedule.ticks.items()}
    return {**{name: getattr(schedule, name) for name in names}, "ticks": ticks}

"""What an image says of its pipelines to people: how layers are cut, and the schedule.

In: a TrainingPipeline. Out: a row of the notes of the image, in JSON, which spmd.pipeline_notes
reads.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from codegen.explain.reasons import place_row
from codegen.ir import ArrayType
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import to_json
from spmd.pipelining.stage_code import StageCode
from spmd.schedules import Schedule

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import TrainingPipeline


def row_of(pipe: TrainingPipeline, place: str) -> dict[str, Any]:
    """Return the row of a pipeline, before it is known what its stages keep."""
    return {"place": place_row(user_place()), "axis": pipe.axis, "stages_lie": place,
            "cut": pipe.cut, "schedule": _plain(pipe.schedule)}


def kept_bytes(code: StageCode) -> list[Any]:
    """Return how many bytes each stage keeps of a microbatch, as formulas in JSON."""
    return [to_json(reduce(lambda a, b: a + b, map(_bytes, half.kept_types), expr.const(0)))
            for half in code.halves]


def _bytes(t: ArrayType) -> expr.Expr:
    return reduce(lambda a, b: a * b, t.shape, expr.const(t.dtype.size))


def _plain(schedule: Schedule) -> dict[str, Any]:
    """Return the fields of a schedule as JSON has them."""
    names = ("name", "stages", "microbatches", "period", "accumulate", "correction", "place",
             "ranks", "proof", "source")
    ticks = {kind: [list(row) for row in rows] for kind, rows in schedule.ticks.items()}
    return {**{name: getattr(schedule, name) for name in names}, "ticks": ticks}

"""What ranks of a running image do in its pipelines: for timelines, and messages about lost ranks.

In: an image, whose notes have a row for each pipeline, and the position that a rank has stored.
Out: its stages, its actions, the microbatches in flight there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from codegen.image import manifest as reader
from spmd.pipeline_notes import pipeline_of
from spmd.schedules import Action, Schedule
from spmd.schedules.tick_positions import TickPosition

if TYPE_CHECKING:
    from spmd.launch.job import Job


@dataclass(frozen=True)
class RanksAtTick:
    """The stages of some ranks, what they do in a tick, and the microbatches in flight there.

    stages: none where ranks follow microbatches. works: whether these ranks do anything in any
    tick. ended: the tick is over, and the next step has not begun."""

    stages: list[int]
    works: bool
    actions: list[Action]
    in_flight: list[int]
    ended: bool

    def action_text(self) -> str:
        """Return what is done, as F 3 of stage 1."""
        if self.ended:
            return "between two steps"
        return ", ".join(f"{a.kind} {a.microbatch} of stage {a.stage}" for a in self.actions
                         ) or "idle"

    def text(self) -> str:
        """Return the stages, and the microbatches in flight."""
        flight = ", ".join(map(str, self.in_flight)) or "none"
        if not self.works:
            return "it held no stage of the pipeline"
        if not self.stages:
            return ("it followed microbatches through the stages of the pipeline; "
                    f"in flight there: {flight} ({self.action_text()})")
        several = "s" if len(self.stages) > 1 else ""
        return (f"it held stage{several} {', '.join(map(str, self.stages))} of the pipeline, with "
                f"microbatches {flight} in flight there ({self.action_text()})")


def ranks_at(schedule: Schedule, position: TickPosition, coordinates: Iterable[int], ranks: int
             ) -> RanksAtTick:
    """Return what ranks with these coordinates along the axis, of so many, do at a tick."""
    own = set(coordinates)
    rows = [k for k in range(schedule.stages) if schedule.rank_of(k, ranks) in own]
    return RanksAtTick([] if schedule.place == "microbatch" else rows, bool(rows),
                       list(position.actions(schedule, rows)), position.in_flight(schedule, rows),
                       position.ended)


class Positions:
    """The pipelines of an image, which say what a rank does at a position that it has stored."""

    def __init__(self, image: reader.ImageFile, sizes: Sequence[int]) -> None:
        """Read the pipelines of an image. sizes: of the mesh axes."""
        self.rows = image.notes().get("pipelines", [])
        self.known = {k: pipeline_of(image, row, None) for k, row in enumerate(self.rows)}
        self.axes = [a["name"] for a in image.manifest["mesh"]]
        self.sizes = list(sizes)

    def work_of(self, position: int, first: int, count: int = 1) -> RanksAtTick | None:
        """Return what `count` ranks from rank `first` on do; None where they are in no tick."""
        if position == 0:
            return None
        tick = TickPosition.of(position)
        if tick.pipeline not in self.known:
            return None
        axis = self.axes.index(self.rows[tick.pipeline]["axis"])
        stride = prod(self.sizes[axis + 1:])
        coordinates = [r // stride % self.sizes[axis] for r in range(first, first + count)]
        return ranks_at(self.known[tick.pipeline].schedule, tick, coordinates, self.sizes[axis])


def positions_of(job: Job) -> Positions | None:
    """Return what the positions of the job's ranks mean; None for an image that says none."""
    return job.positions_in and Positions(job.positions_in, job.setup.sizes)

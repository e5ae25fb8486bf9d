"""What an image says of its pipelines: how layers are cut, and the schedule, as text or picture.

In: an image, whose notes have a row for each pipeline. Out: text, SVG, and what to say at build.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from codegen.errors import ImageError, UsageError, under
from codegen.image import manifest as reader
from codegen.image.elf import printable
from codegen.symbolic.meaning import names_in
from spmd.launch.memory import bytes_text
from spmd.schedules import Schedule
from spmd.schedules.dependences import problems
from spmd.schedules.schedule_tables import complete
from spmd.schedules.step_traffic import RowBytes, compared
from spmd.schedules.weight_ring import NoRingError

AGAIN = "spmd build, to make the image again"
NOTABLE = 0.3  # a share of the time that ranks are idle


@dataclass(frozen=True)
class PipelineNotes:
    """A row describes one pipeline. schedule: on the ranks that are asked for. kept: bytes of the
    activations that each stage keeps of a microbatch; lengths: bytes of the rows that may go to
    another rank; both None where nothing is trained. row: as the image has it."""

    schedule: Schedule
    kept: Sequence[int] | None
    lengths: RowBytes | None
    row: dict[str, Any]

    @property
    def sends(self) -> dict[str, Any] | None:
        """Return what a step sends, in this way and in the other one, as compared() says."""
        try:
            return None if self.lengths is None else compared(self.schedule, self.lengths)
        except NoRingError:
            raise ImageError("damaged image", expected="a schedule whose weights can go around",
                             found=printable(self.schedule.name)) from None

    def head(self) -> Iterator[str]:
        """Yield the place where the pipeline is written."""
        if place := self.row["place"]:
            yield f"{place['file']}:{place['line']}: {self._title()}"
            yield under(place["text"], place["column"], place["end"])
        else:
            yield self._title()

    def _title(self) -> str:
        s = self.schedule
        several = "" if s.microbatches == 1 else "es"
        return f"a pipeline of {s.stages} stages, {s.name}, {s.microbatches} microbatch{several}"

    def facts(self, notable: float = 0.0) -> Iterator[str]:
        """Yield the cut, the share of idle time if it is at least `notable`, and, where nothing
        flushes, the updates that a microbatch crosses."""
        yield from self.row["cut"].split("\n")
        share = idle_share(self.schedule)
        if share >= notable:
            yield (f"ranks are idle for {share:.0%} of the time, with stages that take equally long"
                   .replace("%", " %", 1))
        suits, name = self.row["schedule"]["place"], self.schedule.name
        if suits in ("round", "v") and self.schedule.place != suits:
            yield f'{name} is made for place="{suits}", on half as many ranks as stages'
        if not self.schedule.flushes:
            yield crossed_text(self.schedule)
        yield from self._axes()

    def _axes(self) -> Iterator[str]:
        """Yield which axes split layers, and which ones do not."""
        axes = self.row.get("axes", {})
        if split := axes.get("split"):
            over = ", ".join(f'"{printable(name)}"' for name in split)
            yield f"layers are split over {over}, as their parameters lie"
        for name in axes.get("alike", ()):
            yield (f'all ranks along "{printable(name)}" compute the same: no parameter lies along '
                   f'it; try layout=(None, "{printable(name)}") for one of each layer')

    def traffic(self) -> Iterator[str]:
        """Yield what a step sends from rank to rank, in this way and in the other one."""
        if (sends := self.sends) is None:
            return
        ranks = sends["ranks"]
        yield f"a step sends {_way_text(sends['own'])}"
        if sends["other"] is not None:
            yield f"the other way it would send {_way_text(sends['other'])}"
        less = f'place="{sends["less"]}" sends less; ' if sends["less"] else ""
        yield f"{less}these are means over {ranks} rank{'s' * (ranks > 1)}"

    def text(self) -> str:
        """Return all of it, with the drawing."""
        return "\n".join([*filter(None, self.head()), *self.facts(), *self.traffic(),
                          self.schedule.proof, "", self.schedule.text(self.kept)])

    def json(self) -> dict[str, Any]:
        """Return the pipeline's row of the image as JSON values, and `sends`: what a step sends."""
        return {**self.row, "sends": self.sends}

def idle_share(schedule: Schedule) -> float:
    """Return the part of all ranks' time in which they do nothing: of a step that flushes; else of
    the steps after filling."""
    first = schedule.times(steps=3)
    if schedule.flushes:
        return schedule.times().idle_share
    later = schedule.times(steps=5)
    ranks = schedule.ranks
    work = [(1 - t.idle_share) * t.total * ranks for t in (first, later)]
    return max(0.0, 1 - (work[1] - work[0]) / ((later.total - first.total) * ranks))


def crossed_text(schedule: Schedule) -> str:
    """Return how many updates of its stage come between the passes of a microbatch."""
    stages = range(schedule.stages)
    crossed = ", ".join(str(schedule.crossed(s)) for s in stages)
    text = f"updates that a microbatch crosses, at each stage: {crossed}"
    if isinstance(every := schedule.accumulate, int):
        most = ", ".join(str(ceil(schedule.in_flight(s) / every)) for s in stages)
        text += f" (at most in flight / accumulate: {most})"
    return text


def pipelines_of(
    image: reader.ImageFile, ranks: int | None = None, mesh: dict[str, int] | None = None,
) -> list[PipelineNotes]:
    """Return the pipelines of an image, each once. ranks: on how many they are drawn, in the place
    of those that the schedule is made for. mesh: sizes of axes, 1 of those that it does not have.
    """
    rows = image.notes().get("pipelines", [])
    return [pipeline_of(image, row, (mesh or {}).get(row["axis"], ranks), mesh)
            for k, row in enumerate(rows) if row not in rows[:k]]


def warnings(image: reader.ImageFile) -> Iterator[str]:
    """Yield what to say of each pipeline when it is built."""
    for pipeline in pipelines_of(image):
        facts = (f"  {line}" for line in pipeline.facts(NOTABLE))
        yield "\n".join([*filter(None, pipeline.head()), *facts])


def pipeline_of(
    image: reader.ImageFile, row: dict[str, Any], ranks: int | None,
    mesh: dict[str, int] | None = None,
) -> PipelineNotes:
    """Return a pipeline from its row in the notes of an image. ranks, mesh: as of pipelines_of."""
    schedule = _schedule_of(row["schedule"])
    place = row["stages_lie"]
    own = schedule.ranks if schedule.place == place else schedule.stages
    if ranks is not None and place in ("round", "v") and schedule.stages % ranks:
        fits = [n for n in range(1, schedule.stages + 1) if schedule.stages % n == 0]
        raise UsageError(f"--ranks {ranks}: ranks must divide the {schedule.stages} stages",
                         expected=f"one of {', '.join(map(str, fits))}",
                         remedy=f"--ranks {min(fits, key=lambda n: abs(n - ranks))}")
    schedule = replace(schedule, place=place, ranks=own if ranks is None else ranks)
    lengths = row.get("rows") or {}
    sizes = {name: 1 for e in (*row.get("kept", ()), *lengths.values()) for name in names_in(e)}
    sizes |= {f"n_{axis}": size for axis, size in (mesh or {}).items()}
    kept = [int(reader.evaluate(e, sizes)) for e in row["kept"]] if "kept" in row else None
    if kept is not None and len(kept) != schedule.stages:
        raise ImageError("damaged image", expected="kept bytes of each stage", found=str(len(kept)),
                         remedy=AGAIN)
    row_bytes = {name: int(reader.evaluate(e, sizes)) for name, e in lengths.items()}
    return PipelineNotes(schedule, kept, RowBytes(**row_bytes) if row_bytes else None, row)


def _way_text(way: dict[str, Any]) -> str:
    """Return the bytes of a way to place the work, and what travels."""
    traffic = "weights" if way["place"] == "microbatch" else "activations"
    return (f'{bytes_text(way["bytes"])} from each rank: {traffic} and their gradients '
            f'(place="{way["place"]}", {way["schedule"]})')


def _schedule_of(row: dict[str, Any]) -> Schedule:
    """Return a Schedule from JSON, checked as each one is."""
    ticks = row["ticks"]
    if not complete(ticks, row["stages"], row["microbatches"]) or problems(ticks, row["period"]):
        raise ImageError("damaged image", expected="a schedule that is legal",
                         found=printable(row["name"]), remedy=AGAIN)
    return Schedule(**{**row, "ticks": {k: tuple(map(tuple, rows)) for k, rows in ticks.items()}})

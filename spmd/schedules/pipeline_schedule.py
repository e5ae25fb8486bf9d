"""A schedule of a pipeline as data: the tick of every action, and what follows from the ticks.

In: the ticks of one step, which have passed the checker. Out: actions of any number of steps, what
each stage keeps, when it is updated, how long it is idle; tables and drawings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil, lcm
from pathlib import Path

from codegen.errors import OutputError, UsageError
from spmd.schedules import kept_activations as lifetimes
from spmd.schedules import schedule_tables, stage_times, tick_drawing
from spmd.schedules.actions import ABSENT, KINDS, Action, Ticks, gradient_kind, rank_of, row_of
from spmd.schedules.stage_times import Times


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each stage of a pipeline does what: F, B, W or U of which microbatch at which tick.

    `spmd.schedules.make_schedule` gives one, and has checked it.

    name: its own, or that of its file. stages, microbatches: those of one step. ticks: of each
    action of a step, as ticks[kind][stage][microbatch]. period: how many ticks later the next step
    does the same, None where a step flushes the pipeline. accumulate: after how many backward
    passes a stage is updated, or "8 ticks". correction: what backward passes do about weights that
    have changed since the forward pass: "none", "stash", "two versions", "discrepancy". place,
    ranks: what it is made for; it stays right on others. place "microbatch": ranks follow
    microbatches, microbatch k is of rank (k - 1) % stages. proof: what is known of its dependences.
    """

    name: str
    stages: int
    microbatches: int
    ticks: Ticks = field(repr=False)
    period: int | None
    accumulate: int | str
    correction: str
    place: str
    ranks: int
    proof: str
    source: str = field(default="", repr=False)

    # ---- actions

    @property
    def flushes(self) -> bool:
        """Return whether a step begins with updated weights, when the step before it is over."""
        return self.period is None

    @property
    def splits_backward(self) -> bool:
        """Return whether gradients of weights are actions of their own, W."""
        return "W" in self.ticks

    @cached_property
    def length(self) -> int:
        """Return the number of ticks until the last action of a step is done."""
        return 1 + max(t for kind in self.ticks for row in self.ticks[kind] for t in row)

    def tick(self, kind: str, stage: int, microbatch: int) -> int:
        """Return the tick of an action; microbatches of later steps have higher numbers.

        Where each step flushes, the next one begins `length` ticks later.
        """
        step, k = divmod(microbatch, self.microbatches)
        return self.ticks[kind][stage][k] + step * (self.period or self.length)

    def actions(self, steps: int = 1) -> list[Action]:
        """Return the actions of so many steps from the first one on, in the order of ticks.

        Updates at the end of a step that flushes are not listed: all stages do them together.
        """
        count = steps * self.microbatches
        every = [Action(self.tick(kind, s, k), s, kind, k)
                 for kind in self.ticks if kind != "U" for s in range(self.stages)
                 for k in range(count)]
        every += [Action(tick, s, "U", k)
                  for s in range(self.stages) for tick, k in self.updates(s, count)]
        return sorted(every, key=lambda a: (a.tick, a.stage, KINDS.index(a.kind), a.microbatch))

    def microbatches_at(self, kind: str) -> list[list[int | None]]:
        """Return a row for each tick of a cycle: the microbatch of each stage's action, or None.

        A cycle is `period` ticks, or `length` where a step flushes. Cycle n runs the same actions
        on microbatches whose numbers are n * microbatches higher; below 0 nothing runs. For U all
        updates that are possible are listed; `accumulate` says which are made.
        """
        cycle = self.period or self.length
        rows: list[list[int | None]] = [[None] * self.stages for _ in range(cycle)]
        for stage, ticks in enumerate(self.ticks.get(kind, ())):
            for k, tick in enumerate(ticks):
                if tick != ABSENT:
                    rows[tick % cycle][stage] = k - tick // cycle * self.microbatches
        return rows

    def updates(self, stage: int, microbatches: int) -> list[tuple[int, int]]:
        """Return (tick, newest microbatch applied) of a stage's updates by the first microbatches.

        An update takes effect with the next tick. There are none where a step flushes.
        """
        if "U" not in self.ticks:
            return []
        if isinstance(self.accumulate, str):
            return self._updates_by_ticks(stage, microbatches, int(self.accumulate.split()[0]))
        row, size = self.ticks["U"][stage], self.microbatches
        every = ABSENT not in row
        return [(self.tick("U", stage, k), k) for k in range(microbatches)
                if row[k % size] != ABSENT and not (every and (k + 1) % self.accumulate)]

    def _updates_by_ticks(self, stage: int, microbatches: int, every: int) -> list[tuple[int, int]]:
        """Return what `updates` does, where stages are updated after every so many ticks."""
        newest: dict[int, int] = {}
        last = gradient_kind(self.ticks)
        for k in range(microbatches):
            tick = (self.tick(last, stage, k) // every + 1) * every - 1
            newest[tick] = max(k, newest.get(tick, k))
        return sorted(newest.items())

    # ---- what stages keep

    def kept(self, stage: int) -> int:
        """Return of how many microbatches a stage keeps activations, at most at once.

        They live from F to the last action that reads them: W where there is one, else B.
        """
        return lifetimes.most_at_once(lifetimes.activations(self.ticks, stage), self.period)

    def kept_in_row(self, row: int) -> list[list[int]]:
        """Return, for each tick until `length`, the stages whose activations a row of ranks that
        follow microbatches keeps, one for each microbatch."""
        kept: list[list[int]] = [[] for _ in range(self.length)]
        for stage in range(self.stages):
            for k, (first, last) in enumerate(lifetimes.activations(self.ticks, stage)):
                if row_of(stage, k, self.stages, "microbatch") == row:
                    for t in range(first, last + 1):
                        kept[t].append(stage)
        return kept

    def kept_at(self, stage: int) -> list[int]:
        """Return of how many microbatches a stage keeps activations at each tick until `length`."""
        change = [0] * (self.length + 1)
        for step in range(1 if self.period is None else -(-self.length // self.period)):
            for first, last in lifetimes.activations(self.ticks, stage):
                shift = step * (self.period or 0)
                change[min(first + shift, self.length)] += 1
                change[min(last + shift + 1, self.length)] -= 1
        return list(accumulate(change))[:-1]

    def kept_gradients(self, stage: int) -> int:
        """Return of how many microbatches a stage keeps the gradients of its outputs for W."""
        return lifetimes.most_at_once(lifetimes.output_gradients(self.ticks, stage), self.period)

    def slots(self, stage: int) -> int:
        """Return the fewest slots for activations such that microbatch k has slot k % slots."""
        kept = lifetimes.activations(self.ticks, stage)
        return lifetimes.smallest_modulus(kept, self.period)

    def gradient_slots(self, stage: int) -> int:
        """Return the fewest slots for what W reads of B; 0 where B does the work of W."""
        return lifetimes.smallest_modulus(
            lifetimes.output_gradients(self.ticks, stage), self.period)

    def received(self, stage: int, kind: str) -> int:
        """Return how many inputs of F, or output gradients of B, a stage holds at most.

        Each is held from the tick after the neighbour has computed it until it is used: 1 where
        nothing waits, 0 at the ends of the pipeline.
        """
        return lifetimes.most_at_once(lifetimes.received(self.ticks, stage, kind), self.period)

    def received_slots(self, stage: int, kind: str) -> int:
        """Return the fewest slots for what `received` counts, such that microbatch k has slot
        k % slots."""
        return lifetimes.smallest_modulus(
            lifetimes.received(self.ticks, stage, kind), self.period)

    def in_flight(self, stage: int) -> int:
        """Return how many microbatches a stage has begun and not yet applied, at most at once."""
        return lifetimes.most_at_once(lifetimes.in_flight(self.ticks, stage), self.period)

    def crossed(self, stage: int) -> int:
        """Return how many updates of its stage come between F and B of a microbatch, at most.

        It is at most ceil(in_flight / accumulate) where microbatches come in order.
        """
        return self._crossed(stage, "B")

    def _crossed(self, stage: int, last: str) -> int:
        """Return how many updates come between F and this action of a microbatch, at most."""
        if self.period is None:
            return 0
        accumulate, every = self._accumulated()
        recurs = lcm(self.microbatches * self.period, every * self.period) // self.period
        lives = max(b - f for f, b in zip(self.ticks["F"][stage], self.ticks[last][stage]))
        first = self.microbatches * (lives // self.period + 2) + accumulate
        updates = [tick for tick, _ in self.updates(stage, first + recurs + accumulate)]
        return max(
            bisect_left(updates, self.tick(last, stage, k))
            - bisect_left(updates, self.tick("F", stage, k))
            for k in range(first, first + recurs)
        )

    def _accumulated(self) -> tuple[int, int]:
        """Return how many microbatches an update applies at most, and after how many it recurs."""
        if isinstance(self.accumulate, int):
            return self.accumulate, self.accumulate
        ticks, period = int(self.accumulate.split()[0]), self.period or 1
        steps = lcm(ticks, period) // period
        return self.microbatches * ceil(ticks / period + 1), self.microbatches * steps

    def versions(self, stage: int) -> int:
        """Return how many versions of its weights a stage keeps for `correction`."""
        if self.correction not in ("stash", "two versions"):
            return 1
        return 1 + self._crossed(stage, gradient_kind(self.ticks))

    # ---- ranks and time

    def row(self, action: Action, place: str | None = None) -> int:
        """Return the row of an action in a drawing, and in arrays: its stage, or that of its
        microbatch."""
        return row_of(action.stage, action.microbatch, self.stages, place or self.place)

    def rank_of(self, row: int, ranks: int | None = None, place: str | None = None) -> int:
        """Return the rank of a stage, or row: as the schedule is made for, or as these say.

        place: "block" (contiguous ones), "round" (r, r + ranks, …), "v" (there and back),
        "microbatch" (contiguous rows of microbatches).
        """
        number = self.ranks if ranks is None else ranks
        return rank_of(row, self.stages, number, place or self.place)

    def times(
        self, units: Mapping[str, float] | None = None, steps: int = 1,
        ranks: int | None = None, place: str | None = None,
    ) -> Times:
        """Return when actions begin and end if each takes as long as `units` says, by kind.

        A rank does its actions in the order of ticks and waits only for what they need.
        Without units F takes 1, and B takes 2, or B and W take 1 each where W is an action of its
        own.
        """
        usual = {"F": 1, "B": 1, "W": 1} if self.splits_backward else {"F": 1, "B": 2}
        number = self.ranks if ranks is None else ranks
        if number < 1:
            raise UsageError(f"{number} ranks", expected="at least one",
                             remedy=f"ranks={self.ranks}")
        return stage_times.times_of(
            self.actions(steps), self.stages, {**usual, "U": 0, **(units or {})},
            lambda a: self.rank_of(self.row(a, place), number, place), number,
            (place or self.place) == "microbatch")

    def _ticks_of_row(self, row: int) -> Iterator[int]:
        """Yield the ticks in which a row does something in a step."""
        for kind, rows in self.ticks.items():
            if kind == "U":
                continue
            if self.place == "microbatch":
                for ticks in rows:  # of microbatches k with (k - 1) % stages == row
                    yield from ticks[(row + 1) % self.stages::self.stages]
            else:
                yield from rows[row]

    def idle_ticks(self, rank: int) -> int:
        """Return in how many ticks a rank of `ranks` does nothing, between its first and its last
        action of a step; where steps follow without end, in how many of each period, once full.
        """
        busy = {t if self.period is None else t % self.period
                for row in range(self.stages) if self.rank_of(row) == rank
                for t in self._ticks_of_row(row)}
        span = self.period or (max(busy) - min(busy) + 1 if busy else 0)
        return span - len(busy)

    # ---- tables and drawings

    def _drawn(self) -> Sequence[Action]:
        """Return all actions until the last one of the first step."""
        return _actions_until(self, self.length)

    def csv(self, path: str | Path | None = None) -> str:
        """Return the schedule as a table, and write it into a file where there is a path.

        Line t + 1 is tick t, column s is stage s; a cell 2F0 is stage 2, forward, microbatch 0,
        and `2B0 2U0` a backward pass after which the stage is updated. UsageError where updates of
        a step are not those of the next one.
        """
        size = self.microbatches
        if isinstance(self.accumulate, str) or (self.period and size % self.accumulate):
            raise UsageError(
                f"updates after {self.accumulate} are not the same in each step of {size} "
                "microbatches, and a table has one step",
                remedy=f"accumulate={size}, or another divisor of {size}")
        text = schedule_tables.table_text(self.actions(), self.stages)
        return _save(text, path)

    def title(self) -> str:
        """Return name, sizes, and whether a step flushes."""
        return tick_drawing.title(self)

    def text(self, kept_bytes: Sequence[int] | None = None) -> str:
        """Draw the schedule as text: a row for each stage, a column for each tick, a point where it
        is idle.

        An asterisk marks an update at the end of a tick; crossed are updates between F and B of
        one microbatch. kept_bytes: of one microbatch's activations, for each stage; without them,
        activations are counted.
        """
        return tick_drawing.as_text(self, self._drawn(), kept_bytes)

    def svg(self, path: str | Path | None = None, kept_bytes: Sequence[int] | None = None) -> str:
        """Return the drawing as SVG, and write it into a file where there is a path.

        Below each row stands how much the stage keeps at each tick.
        """
        return _save(tick_drawing.as_svg(self, self._drawn(), kept_bytes), path)

    def __str__(self) -> str:
        return self.text()


def _save(text: str, path: str | Path | None) -> str:
    """Return a text that is written into a file where there is a path."""
    if path is not None:
        try:
            Path(path).write_text(text)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}",
                              remedy="the path of a file in a folder that is there") from None
    return text


@lru_cache(maxsize=8)
def _actions_until(schedule: Schedule, ticks: int) -> tuple[Action, ...]:
    steps = 1 if schedule.period is None else -(-ticks // schedule.period)
    return tuple(_before(schedule.actions(steps), ticks))


def _before(actions: Sequence[Action], ticks: int) -> Iterator[Action]:
    return (a for a in actions if a.tick < ticks)

"""The checker of schedules: whether actions come after what they need, each of them once.

In: ticks of one step, the period after which the next step follows (None: when this one is over).
Out: a Problem for each rule that is broken, ordered by tick; none for a legal schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import lt
from typing import NamedTuple

from spmd.schedules.actions import ABSENT, Ticks, gradient_kind, needs


class Problem(NamedTuple):
    """A problem at a tick of a stage; `other` is the tick of the action that it clashes with.

    A tick of ABSENT is that of a problem which belongs to no single cell.
    """

    tick: int
    stage: int
    text: str
    other: int = ABSENT

    def message(self, first_line: int | None = None) -> str:
        """Return the problem as a line of text; first_line: the line of a file that is tick 0."""
        if self.tick == ABSENT:
            return self.text
        other = "" if self.other == ABSENT else (
            f" (tick {self.other})" if first_line is None else f" (line {self.other + first_line})")
        return f"tick {self.tick}, stage {self.stage}: {self.text}{other}"


def problems(ticks: Ticks, period: int | None) -> list[Problem]:
    """Return all problems of a schedule, in the order of ticks; those of whole microbatches last.
    """
    early = [*_early_actions(ticks)]
    known = {(p.tick, p.stage) for p in early if p.tick == p.other}
    shared = (p for p in _shared_ticks(ticks, period)  # B in the tick of its own F is said once
              if p.tick != p.other or (p.tick, p.stage) not in known)
    return in_order([*early, *_dropped_microbatches(ticks), *shared,
                     *_wrong_updates(ticks, period)])


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems in the order of ticks; those of no single cell last."""
    return sorted(problems, key=lambda p: (p.tick == ABSENT, p.tick, p.stage))


def in_time(ticks: Ticks) -> bool:
    """Return whether no action is absent, and each comes in a later tick than what it needs."""
    stages = len(ticks["F"])
    complete = all(min(row) > ABSENT for kind in ticks if kind != "U" for row in ticks[kind])
    return complete and all(
        all(map(lt, ticks[before][other], ticks[kind][stage]))
        for kind in ticks for stage in range(stages)
        for before, other in needs(kind, stage, stages)
    )


def _early_actions(ticks: Ticks) -> Iterator[Problem]:
    """Yield a Problem for each action that comes before one that it needs, or without it."""
    if in_time(ticks):
        return
    stages = len(ticks["F"])
    for kind in ticks:
        for stage, row in enumerate(ticks[kind]):
            for before, other in needs(kind, stage, stages):
                whose = f"its {before}" if other == stage else f"{before} of stage {other}"
                for k, (earlier, tick) in enumerate(zip(ticks[before][other], row)):
                    action = f"{kind} of microbatch {k}"
                    if tick == ABSENT or ABSENT < earlier < tick:
                        continue
                    if earlier == ABSENT:
                        yield Problem(tick, stage, f"{action} without {whose}")
                    elif earlier == tick:
                        yield Problem(tick, stage, f"{action} in the same tick as {whose}", earlier)
                    else:
                        yield Problem(tick, stage, f"{action} before {whose}", earlier)


def _dropped_microbatches(ticks: Ticks) -> Iterator[Problem]:
    """Yield a Problem for each microbatch that never begins, or lacks an action of some stage."""
    kinds = [kind for kind in ticks if kind != "U"]
    rows = [row for kind in kinds for row in ticks[kind]]
    for k in range(len(ticks["F"][0])):
        present = [row[k] for row in rows if row[k] != ABSENT]
        if len(present) == len(rows):
            continue
        if not present:
            yield Problem(ABSENT, 0, f"microbatch {k} never begins")
            continue
        lacks = [f"no {kind} at stage{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
                 for kind in kinds
                 if (absent := [s for s, row in enumerate(ticks[kind]) if row[k] == ABSENT])]
        where = next((s for s, row in enumerate(ticks["F"]) if row[k] == min(present)), 0)
        text = f"microbatch {k} begins and is dropped: {'; '.join(lacks)}"
        yield Problem(min(present), where, text)


def _shared_ticks(ticks: Ticks, period: int | None) -> Iterator[Problem]:
    """Yield a Problem for each second action of a stage in one tick, of one step or of several that
    overlap."""
    kinds = [kind for kind in ticks if kind != "U"]
    for stage in range(len(ticks["F"])):
        every = [t for kind in kinds for t in ticks[kind][stage] if t != ABSENT]
        places = every if period is None else [t % period for t in every]
        if len(set(places)) == len(every):
            continue
        seen: dict[int, tuple[int, str]] = {}
        for tick, action in sorted((t, f"{kind} of microbatch {k}") for kind in kinds
                                   for k, t in enumerate(ticks[kind][stage]) if t != ABSENT):
            place = tick if period is None else tick % period
            if place in seen:
                other, first = seen[place]
                later = "" if tick == other else f", as steps follow after {period} ticks"
                yield Problem(tick, stage, f"{action} in the tick of {first}{later}", other)
            seen.setdefault(place, (tick, action))


def _wrong_updates(ticks: Ticks, period: int | None) -> Iterator[Problem]:
    """Yield a Problem for each update that does not apply the gradients up to its microbatch, all
    of these and no other.

    An update takes effect at the end of its tick, so that it may stand in that of its gradient.
    """
    if "U" not in ticks:
        return
    kind = gradient_kind(ticks)
    for stage, row in enumerate(ticks["U"]):
        if all(t == ABSENT for t in row):
            yield Problem(ABSENT, stage, f"stage {stage} has no U: its weights never change")
        gradients = ticks[kind][stage]
        latest, soonest = _extremes(gradients, period)
        for k, tick in enumerate(row):
            if tick == ABSENT or (latest[k] <= tick < soonest[k] and gradients[k] != ABSENT):
                continue
            if gradients[k] == ABSENT:
                yield Problem(tick, stage, f"U of microbatch {k} without its {kind}")
            elif gradients[k] > tick:
                yield Problem(tick, stage, f"U of microbatch {k} before its {kind}", gradients[k])
            else:
                late = latest[k] > tick
                text = f"U of microbatch {k} {'before' if late else 'after'} {kind} of "
                text += "an earlier one" if late else "a later one, which belongs to the next U"
                yield Problem(tick, stage, text, latest[k] if late else soonest[k])


def _extremes(gradients: Sequence[int], period: int | None) -> tuple[list[int], list[int]]:
    """Return, for each microbatch, the latest gradient up to it and the soonest one behind it."""
    never = max(gradients, default=0) + (period or 0) + 1
    before = ABSENT if period is None else max(gradients) - period
    behind = never if period is None else min(gradients) + period
    latest = list(accumulate([before, *gradients], max))[1:]
    later = [never if t == ABSENT else t for t in gradients]
    soonest = list(accumulate([behind, *reversed(later)], min))[::-1][1:]
    return latest, soonest

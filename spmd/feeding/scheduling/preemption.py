"""Jobs that give their slots to others: those of a lower priority that keep checkpoints.

In: jobs that wait for slots, jobs that run, agents. Out: which of those that run end behind their
next checkpoint, and for whom. A pure function.
Always holds: only a job that goes on from a checkpoint ends, for one of a higher priority, and only
where that one then has all of its slots; as few ranks as possible end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spmd.feeding.messages.job_options import option_value
from spmd.feeding.scheduling.job_places import JobRow, SlotRow, agents_for, in_turn


class RunningRow(NamedTuple):
    """A job that runs. places: its agents, and how many ranks each has. keeps: it goes on from a
    checkpoint of its own. began: when it started."""

    job: str
    places: tuple[tuple[str, int], ...]
    priority: float
    keeps: bool
    began: float = 0.0

    @property
    def ranks(self) -> int:
        return sum(ranks for _, ranks in self.places)

    def ranks_on(self, agents: Collection[str]) -> int:
        """Return how many ranks some agents have of it."""
        return sum(ranks for agent, ranks in self.places if agent in agents)


def keeps_checkpoints(words: Sequence[str]) -> bool:
    """Return whether a job with these words of `spmd run` goes on where it ended: a folder that is
    not absolute lies where its ranks run, and goes with these."""
    folder = option_value(words, "--checkpoint")
    return os.path.isabs(folder) and folder == option_value(words, "--resume")


def jobs_that_yield(waiting: Sequence[JobRow], running: Sequence[RunningRow],
                    agents: Sequence[SlotRow], ending: Collection[str]) -> dict[str, str]:
    """Return by job that runs the name of the one that takes its slots.

    agents: with the slots that no job has. ending: jobs that were told so before.
    """
    free = {row.agent: row.free for row in agents}
    yields: dict[str, str] = {}
    for job in in_turn(waiting):
        choices = []
        for group in agents_for(job, agents):
            names = {row.agent for row in group}
            chosen = _chosen(job, names, [row for row in running if row.job not in yields], free,
                             ending)
            if chosen is not None:
                more = sum(row.ranks for row in chosen if row.job not in ending)
                kinds = {row.device for row in group}
                choices.append((more, bool(job.device) and kinds != {job.device}, sorted(names),
                                chosen))
        if not choices:
            continue
        _, _, best, chosen = min(choices, key=lambda choice: choice[:3])
        yields.update({row.job: job.name for row in chosen})
        for row in chosen:
            for name, ranks in row.places:
                free[name] = free.get(name, 0) + ranks
        left = job.least
        for name in best:
            taken = min(left, free[name])
            free[name], left = free[name] - taken, left - taken
    return yields


def _chosen(job: JobRow, agents: set[str], running: Sequence[RunningRow], free: Mapping[str, int],
            ending: Collection[str]) -> list[RunningRow] | None:
    """Return jobs that end so that another one has enough slots of some agents; None where these
    are too few whoever ends."""
    mine = [row for row in running if row.keeps and row.priority < job.priority
            and row.ranks_on(agents)]
    # Those that end anyway, then the lowest priority, then who loses least.
    mine.sort(key=lambda row: (row.job not in ending, row.priority, -row.began))
    chosen: list[RunningRow] = []
    missing = job.least - sum(free[name] for name in agents)
    while mine and missing > 0:
        chosen.append(mine.pop(0))
        missing -= chosen[-1].ranks_on(agents)
    return chosen if missing <= 0 else None

"""Jobs that give their slots to others: those of a lower priority that keep checkpoints.

In: jobs that wait for slots, jobs that run, agents. Out: which of those that run end behind their
next checkpoint, and for whom. A pure function.
Always holds: only a job that goes on from a checkpoint ends, for one of a higher priority, and only
where that one then has all of its slots; as few ranks as possible end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from spmd.feeding.messages.job_words import word_behind
from spmd.feeding.scheduling.job_places import JobRow, SlotRow, in_turn


class RunningRow(NamedTuple):
    """A job that runs. keeps: it goes on from a checkpoint of its own. began: when it started."""

    job: str
    agent: str
    ranks: int
    priority: float
    keeps: bool
    began: float = 0.0


def keeps_checkpoints(words: Sequence[str]) -> bool:
    """Return whether a job with these words of `spmd run` goes on where it ended."""
    folder = word_behind(words, "--checkpoint")
    return folder != "" and folder == word_behind(words, "--resume")


def jobs_that_yield(waiting: Sequence[JobRow], running: Sequence[RunningRow],
                    agents: Sequence[SlotRow], ending: Collection[str]) -> dict[str, str]:
    """Return by job that runs the name of the one that takes its slots.

    agents: with the slots that no job has. ending: jobs that were told so before.
    """
    free = {row.agent: row.free for row in agents}
    yields: dict[str, str] = {}
    for job in in_turn(waiting):
        choices = []
        for agent in agents:
            mine = [row for row in running if row.agent == agent.agent and row.keeps
                    and row.priority < job.priority and row.job not in yields]
            # Those that end anyway, then the lowest priority, then who loses least.
            mine.sort(key=lambda row: (row.job not in ending, row.priority, -row.began))
            chosen: list[RunningRow] = []
            while mine and free[agent.agent] + sum(r.ranks for r in chosen) < job.least:
                chosen.append(mine.pop(0))
            if agent.slots >= job.least <= free[agent.agent] + sum(r.ranks for r in chosen):
                more = sum(row.ranks for row in chosen if row.job not in ending)
                choices.append((more, agent.device != (job.device or agent.device), agent.agent,
                                chosen))
        if not choices:
            continue
        _, _, best, chosen = min(choices, key=lambda choice: choice[:3])
        yields.update({row.job: job.name for row in chosen})
        free[best] += sum(row.ranks for row in chosen) - job.least
    return yields

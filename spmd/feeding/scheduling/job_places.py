"""Where jobs start: a pure function from the queue and the slots of agents to starts and reasons.

In: jobs that wait, agents with slots. Out: which start where, with how many ranks; why others wait.
Always holds: a job whose ranks do not fit yet keeps those behind it from agents that it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class JobRow(NamedTuple):
    """A job that waits for `least` to `most` slots of one agent. device: the kind that it prefers,
    or "". estimated: seconds that it takes."""

    job: str
    name: str
    least: int
    most: int
    device: str = ""
    priority: float = 0.0
    estimated: float | None = None
    number: int = 0


class SlotRow(NamedTuple):
    """An agent. free: of its slots, those that no job has."""

    agent: str
    host: str
    device: str
    slots: int
    free: int


class JobStart(NamedTuple):
    job: str
    agent: str
    ranks: int


def place_jobs(jobs: Sequence[JobRow], agents: Sequence[SlotRow]) -> (
        tuple[list[JobStart], dict[str, str]]):
    """Return the jobs that start now, and by job why others wait."""
    free = {row.agent: row.free for row in agents}
    waited_for: dict[str, str] = {}  # by agent: the first job that waits for slots of it
    starts, waits = [], {}
    for job in in_turn(jobs):
        able = [row for row in agents if row.slots >= job.least]
        open_ = [row for row in able
                 if row.agent not in waited_for and free[row.agent] >= job.least]
        if open_:
            # Of the preferred kind; then where most ranks start; then where least is left over.
            best = min(open_, key=lambda row: (
                row.device != (job.device or row.device), -min(job.most, free[row.agent]),
                free[row.agent], row.agent))
            ranks = min(job.most, free[best.agent])
            free[best.agent] -= ranks
            starts.append(JobStart(job.job, best.agent, ranks))
            continue
        waits[job.job] = _why(job, agents, able, free, waited_for)
        for row in able:
            waited_for.setdefault(row.agent, job.name)
    return starts, waits


def in_turn(jobs: Sequence[JobRow]) -> list[JobRow]:
    """Return jobs in the order of the queue: by priority, then the shortest, then the first."""
    endless = float("inf")
    return sorted(jobs, key=lambda job: (
        -job.priority, endless if job.estimated is None else job.estimated, job.number))


def _why(job: JobRow, agents: Sequence[SlotRow], able: Sequence[SlotRow], free: dict[str, int],
         waited_for: dict[str, str]) -> str:
    ranks = f"{job.least} rank{'s' * (job.least > 1)}"
    if not any(row.slots for row in agents):
        return (f"no agent offers slots, and it needs {ranks}; try: python -m spmd feed worker "
                f"--slots {job.least} --connect ADDRESS")
    if not able:
        most = max(row.slots for row in agents)
        return (f"it needs {ranks} on one machine, agents offer {_offers(agents, None)}; try: "
                f"--ranks {most}, or an agent with --slots {job.least}")
    before = next((waited_for[row.agent] for row in able if row.agent in waited_for), "")
    text = f"it needs {ranks}, and free are {_offers(able, free)}"
    return f"{text}; {before} comes first" if before else text


def _offers(agents: Sequence[SlotRow], free: dict[str, int] | None) -> str:
    """nodea 4, nodeb 2; with the slots that are free: nodea 1 of 4."""
    rows = sorted((row for row in agents if row.slots), key=lambda row: (-row.slots, row.host))
    parts = [f"{row.host} " + (f"{free[row.agent]} of " if free else "") + f"{row.slots}"
             for row in rows[:8]]
    return ", ".join(parts) + ", …" * (len(rows) > 8)

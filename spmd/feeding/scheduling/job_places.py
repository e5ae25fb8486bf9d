"""Where jobs start: a pure function from the queue and the slots of agents to starts and reasons.

In: jobs that wait, agents with slots. Out: which start where, with how many ranks; why others wait.
Always holds: a job is on several agents only if none offers enough alone; one whose ranks do not
fit yet keeps those behind it from agents that it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class JobRow(NamedTuple):
    """A job that waits for `least` to `most` slots. device: the kind that it prefers, or "".
    estimated: seconds that it takes. has_frames: its ranks save frames in a folder of one agent."""

    job: str
    name: str
    least: int
    most: int
    device: str = ""
    priority: float = 0.0
    estimated: float | None = None
    number: int = 0
    has_frames: bool = False


class SlotRow(NamedTuple):
    """Describes an agent's slots. free: how many of them no job has."""

    agent: str
    host: str
    device: str
    slots: int
    free: int


class JobStart(NamedTuple):
    """Says where a job starts. places: agents and their numbers of ranks, in the order of ranks."""

    job: str
    places: tuple[tuple[str, int], ...]


def place_jobs(jobs: Sequence[JobRow], agents: Sequence[SlotRow]) -> (
        tuple[list[JobStart], dict[str, str]]):
    """Return the jobs that start now, and by job why others wait."""
    free = {row.agent: row.free for row in agents}
    waited_for: dict[str, str] = {}  # by agent: the first job that waits for slots of it
    starts, waits = [], {}
    for job in in_turn(jobs):
        groups = agents_for(job, agents)
        able = [row for group in groups for row in group]
        open_ = [row for row in agents if row.agent not in waited_for]
        if all(len(group) == 1 for group in groups):
            places = _on_one(job, [row for row in able if row in open_], free)
        else:
            places = _on_several(job, open_, free)
        if places:
            for agent, ranks in places:
                free[agent] -= ranks
            starts.append(JobStart(job.job, places))
            continue
        waits[job.job] = _why(job, agents, able, free, waited_for)
        for row in able:
            waited_for.setdefault(row.agent, job.name)
    return starts, waits


def agents_for(job: JobRow, agents: Sequence[SlotRow]) -> list[list[SlotRow]]:
    """Return groups of agents of which each has enough slots for a job when these are free: single
    agents; where none offers so many alone, one group of several, if the job may be on several."""
    if able := [[row] for row in agents if row.slots >= job.least]:
        return able
    several = _first_enough(job, agents, {row.agent: row.slots for row in agents})
    return [several] if several and not job.has_frames else []


def _on_one(job: JobRow, able: Sequence[SlotRow], free: dict[str, int]) -> (
        tuple[tuple[str, int], ...]):
    """Return one place that has room for a job now, or none."""
    rows = [row for row in able if free[row.agent] >= job.least]
    if not rows:
        return ()
    # Of the preferred kind; then where most ranks start; then where least is left over.
    best = min(rows, key=lambda row: (
        row.device != (job.device or row.device), -min(job.most, free[row.agent]),
        free[row.agent], row.agent))
    return ((best.agent, min(job.most, free[best.agent])),)


def _on_several(job: JobRow, agents: Sequence[SlotRow], free: dict[str, int]) -> (
        tuple[tuple[str, int], ...]):
    """Return places that together have room for a job now, as few as possible, or none."""
    left, places = job.most, []
    for row in _first_enough(job, agents, free):
        places.append((row.agent, min(left, free[row.agent])))
        left -= places[-1][1]
    return tuple(places)


def _first_enough(job: JobRow, agents: Sequence[SlotRow], slots: dict[str, int]) -> list[SlotRow]:
    """Return agents that a job takes together, where they have so many slots; none where all of
    them have too few. Those of the kind that it prefers come first, then those with most slots."""
    chosen, left = [], job.least
    for row in sorted(agents, key=lambda row: (
            row.device != (job.device or row.device), -slots[row.agent], row.host, row.agent)):
        if left > 0 and slots[row.agent]:
            chosen.append(row)
            left -= slots[row.agent]
    return chosen if left <= 0 else []


def distinct_names(hosts: Sequence[str]) -> list[str]:
    """Return a name for each host of a job: its own where it is the only one, else its part before
    a dot (Open MPI reads no more), with a number where several agents are on one host."""
    if len(hosts) == 1:
        return list(hosts)
    short = [host.partition(".")[0] for host in hosts]
    return [host if short.count(host) == 1 else f"{host}-{k}" for k, host in enumerate(short)]


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
    if not able and job.has_frames:
        return (f"it needs {ranks} on one agent, where its frames lie, and agents offer "
                f"{_offers(agents, None)}; try: --ranks {max(row.slots for row in agents)}, or "
                "frames beside checkpoints in a folder that all agents see: --options "
                '"--checkpoint /FOLDER --resume /FOLDER"')
    if not able:
        most = sum(row.slots for row in agents)
        return (f"it needs {ranks}, agents offer {_offers(agents, None)}; try: --ranks {most}, or "
                f"one more agent: python -m spmd feed worker --slots {job.least - most} --connect "
                "ADDRESS")
    before = next((waited_for[row.agent] for row in able if row.agent in waited_for), "")
    text = f"it needs {ranks}, and free are {_offers(able, free)}"
    return f"{text}; {before} comes first" if before else text


def _offers(agents: Sequence[SlotRow], free: dict[str, int] | None) -> str:
    """Return the slots of agents as text: nodea 4, nodeb 2; with the free ones: nodea 1 of 4."""
    rows = sorted((row for row in agents if row.slots), key=lambda row: (-row.slots, row.host))
    parts = [f"{row.host} " + (f"{free[row.agent]} of " if free else "") + f"{row.slots}"
             for row in rows[:8]]
    return ", ".join(parts) + ", …" * (len(rows) > 8)

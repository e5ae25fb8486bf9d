"""The processes that a launcher started for one command: they come, and were told the same.

In: what each of them was told to do. Out: `Processes`.
Always holds: MPI may wait for a process that never comes: a signal ends us without any Python, and
a process whose arguments are wrong comes too, to say so.
"""

from __future__ import annotations

import os

from spmd.launch import exit_signals
from spmd.launch.hosts import place
from spmd.launch.launchers import launcher, world
from spmd.launch.process_watch import ProcessWatch, StartWatch
from spmd.launch.processes import Processes, disagreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def join(limit: float) -> tuple[Processes, StartWatch | None]:
    """Return all processes of the launcher; MPI is started.

    limit: seconds, of --time-limit; how long they may take to come goes by it. 0: for ever.
    """
    exit_signals.begin(waits=True)
    rank, count, _ = launcher()
    start = StartWatch(rank, count, limit) if limit else None
    processes = Processes(world())
    exit_signals.end_all_from_now_on(processes)
    return processes, start


def agree(
    processes: Processes, start: StartWatch | None, said: Callable[[], str], limit: float
) -> None:
    """Check that every process says the same command; what is wrong with one ends all of them."""
    met = processes.run_and_gather(lambda: (said(), (os.getpid(), place())))
    if start:
        start.end()
    commands = [command for command, _ in met]
    odd = [k for k, command in enumerate(commands) if command != commands[0]]
    if odd:
        processes.refuse(disagreement(
            "the processes of one job were given different commands", "process", odd,
            expected=f"{commands[0]} (process 0)",
            found=f"{commands[odd[0]]} (process {odd[0]})", remedy="give all the same command",
        ))
    processes.watch = ProcessWatch(processes, [where for _, where in met], limit)

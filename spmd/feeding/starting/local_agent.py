"""The agent that one command starts: a process with the workers of a run on this machine.

In: a line of whoever started it: where the scheduler is, its own name, how many cores ranks need,
which they may use, how many workers. Always holds: it ends when its parent closes the channel, or
dies; workers stay on cores that belong to the job.
"""

from __future__ import annotations

import os
import signal
import sys

from spmd.feeding.host.children import of_parent
from spmd.feeding.messages.keys import Keys
from spmd.feeding.workers.agent import Agent
from spmd.launch.launchers import launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIRST_S = 60.0  # for its parent to start a scheduler


def main(channel: Any) -> None:
    if not channel.wait_for(FIRST_S) or not (said := channel.said()):
        return
    asked = said[0]
    os.sched_setaffinity(0, cores_of(asked["cores"], asked["busy"], launcher()[2]))
    free = len(os.sched_getaffinity(0)) - asked["busy"]
    agent = Agent(asked["where"]["address"], Keys.of_plain(asked["where"]["keys"]),
                  asked["workers"] or max(1, free), lifeline=channel, agent=asked["agent"])
    channel.send(begun=True)
    agent.run()


def cores_of(cores: list[int], busy: int, started_by: str) -> list[int]:
    """Return the cores for workers. cores: those that the processes of this host may use together.

    Others may belong to somebody else: to another job of Slurm, or as taskset says. But mpirun
    binds each process to one core of a machine that it has for itself.
    """
    if len(cores) > busy or started_by in ("", "Slurm"):
        return cores
    return list(range(os.cpu_count() or 1))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends us
    main(of_parent(sys.argv[1:])[0])

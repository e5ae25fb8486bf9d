"""One command: a scheduler and workers on this machine, for one run, which end with it.

In: a pipeline, the processes of a job. Out: where its scheduler is. The first process of the job
starts the scheduler, the first of each host an agent with workers on the cores that ranks leave.
Always holds: they end when the supply goes, and when their process dies, however it dies.
"""

from __future__ import annotations

import os
import signal
import sys
import weakref

from codegen.errors import EnvironmentFault, PeerError
from spmd.feeding.agent import Agent
from spmd.feeding.children import Child, ended_by, of_parent
from spmd.feeding.client import Client
from spmd.feeding.consumer import PipelineSupply
from spmd.feeding.keys import Keys, made_for_a_run
from spmd.feeding.machine import host_name
from spmd.feeding.serving import start_in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.data.pipelines import Pipeline

END_S = 1.0
START_S = 20.0


class StartedSupply(PipelineSupply):
    """A PipelineSupply whose scheduler and workers this job has started."""

    def __init__(self, pipeline: str, address: str, keys: Keys, children: list[Child],
                 **more: Any) -> None:
        super().__init__(pipeline, address, keys, **more)
        self.children = children
        self._end = weakref.finalize(self, end_all, children)  # at the end of Python, too

    def what_ended(self) -> PeerError | None:
        for child in self.children:
            if (status := child.has_ended()) is not None and not self.has_finished():
                return PeerError(
                    f"pipeline {self.pipeline}: a process that feeds this run {ended_by(status)}, "
                    "and there are no workers any more",
                    expected="scheduler and workers that live as long as the run",
                    remedy="start the run again, with --resume if it was kept")
        return None


def end_all(children: list[Child]) -> None:
    """Workers first: a scheduler that goes before would be missed by them."""
    for child in reversed(children):
        child.end(END_S)
    children.clear()


def started(pipeline: Pipeline, *, processes: Any, ranks: tuple[int, ...],
            feed: str) -> StartedSupply:
    """In all processes together. Raises EnvironmentFault where something does not start."""
    children: list[Child] = []
    try:
        rows = processes.all_gather((host_name(), len(ranks)))
        hosts = list(dict.fromkeys(host for host, _ in rows))
        where = processes.from_first(lambda: begin_scheduler(pipeline, len(hosts) > 1, children))
        here = rows[processes.number][0]
        first = next(k for k, (host, _) in enumerate(rows) if host == here)
        busy = sum(count for host, count in rows if host == here)
        each = workers_each(pipeline, len(hosts))
        agents = processes.together(
            lambda: [begin_agent(where, busy, each)] if first == processes.number else [],
            shared=False)
        children.extend(agents)
    except BaseException:
        end_all(children)
        raise
    return StartedSupply(where["name"], where["address"], Keys.of_plain(where["keys"]), children,
                         ranks=ranks, run=feed)


def workers_each(pipeline: Pipeline, hosts: int) -> int:
    """Workers of each host where the pipeline says how many in all, else 0."""
    workers = pipeline.settings.workers
    return -(-workers // hosts) if isinstance(workers, int) else 0


def begin_scheduler(pipeline: Pipeline, several_hosts: bool,
                    children: list[Child]) -> dict[str, Any]:
    """A scheduler that knows the pipeline: its address, the keys of this run, the name."""
    keys = made_for_a_run()
    child, address = start_in_child(
        keys, "tcp://0.0.0.0:*" if several_hosts else "tcp://127.0.0.1:*")
    children.append(child)
    with Client(address, keys, timeout=START_S) as client:
        found = client.submit(pipeline)
    return {"address": address, "keys": keys.as_plain(), "name": found["name"]}


def begin_agent(where: dict[str, Any], busy: int, workers: int) -> Child:
    """An agent in a process of its own. busy: cores that the ranks of this host need."""
    child = Child("spmd.feeding.local_feeding")
    child.channel.send(where=where, busy=busy, workers=workers)
    if not child.channel.wait_for(START_S) or child.channel.said() != [{"begun": True}]:
        child.kill()
        raise EnvironmentFault(
            "the workers of this run do not start", found=f"no word of their agent for {START_S} s",
            remedy="python -m spmd feed worker says more; then run --feed NAME@ADDRESS")
    return child


def main(channel: Any) -> None:
    """What the agent's process does: until its parent closes the channel, or dies."""
    if not channel.wait_for(START_S) or not (said := channel.said()):
        return
    asked = said[0]
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a launcher may have bound its process
    cores = len(os.sched_getaffinity(0))
    agent = Agent(asked["where"]["address"], Keys.of_plain(asked["where"]["keys"]),
                  asked["workers"] or max(1, cores - asked["busy"]), lifeline=channel)
    channel.send(begun=True)
    agent.run()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends us
    main(of_parent(sys.argv[1:])[0])

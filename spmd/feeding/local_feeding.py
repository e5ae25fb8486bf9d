"""One command: a scheduler and workers on this machine, for one run, which end with it.

In: a pipeline, the processes of a job. Out: where its scheduler is. The first process of the job
starts the scheduler, the first of each host an agent with workers on the cores that ranks leave.
Always holds: they end when the supply goes, and when their process dies, however it dies.
"""

from __future__ import annotations

import weakref

from codegen.errors import EnvironmentFault, PeerError
from spmd.feeding.children import Child, ended_by
from spmd.feeding.client import Client
from spmd.feeding.consumer import PipelineSupply
from spmd.feeding.keys import Keys, made_for_a_run
from spmd.feeding.machine import host_name
from spmd.feeding.opened_streams import opened_by
from spmd.feeding.serving import start_in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.data.pipelines import Pipeline

AGENT = "spmd.feeding.local_agent"
END_S = 1.0
START_S = 20.0


class StartedSupply(PipelineSupply):
    """A PipelineSupply whose scheduler and workers this job has started."""

    def __init__(self, pipeline: Pipeline, address: str, keys: Keys, children: list[Child], *,
                 name: str, **more: Any) -> None:
        super().__init__(name, address, keys, **more)
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


def started(pipeline: Pipeline, *, processes: Any, ranks: tuple[int, ...], feed: Any,
            run: str) -> StartedSupply:
    """In all processes together. Raises EnvironmentFault where something does not start."""
    children: list[Child] = []
    try:
        rows = processes.all_gather((host_name(), len(ranks)))
        hosts = list(dict.fromkeys(host for host, _ in rows))
        here = rows[processes.number][0]
        first = next(k for k, (host, _) in enumerate(rows) if host == here)
        busy = sum(count for host, count in rows if host == here)
        each = workers_each(pipeline, len(hosts))
        agents = processes.together(
            lambda: [Child(AGENT)] if first == processes.number else [], shared=False)
        children.extend(agents)  # they load their modules while the scheduler does
        where = processes.from_first(
            lambda: begin_scheduler(pipeline, feed, run, len(hosts) > 1, children))

        def begin() -> None:
            for one in agents:
                begin_agent(one, where, busy, each)

        processes.together(begin, shared=False)
    except BaseException:
        end_all(children)
        raise
    return StartedSupply(pipeline, where["address"], Keys.of_plain(where["keys"]), children,
                         name=where["name"], ranks=ranks, run=run, opened=where["opened"])


def workers_each(pipeline: Pipeline, hosts: int) -> int:
    """Workers of each host where the pipeline says how many in all, else 0."""
    workers = pipeline.settings.workers
    return -(-workers // hosts) if isinstance(workers, int) else 0


def begin_scheduler(pipeline: Pipeline, feed: Any, run: str, several_hosts: bool,
                    children: list[Child]) -> dict[str, Any]:
    """A scheduler that knows the pipeline: its address, the keys of this run, the name."""
    keys = made_for_a_run()
    child, address = start_in_child(
        keys, "tcp://0.0.0.0:*" if several_hosts else "tcp://127.0.0.1:*")
    children.insert(0, child)
    with Client(address, keys, timeout=START_S) as client:
        name = client.submit(pipeline)["name"]
        stream = opened_by(client, name, feed, run)
    return {"address": address, "keys": keys.as_plain(), "name": name, "opened": stream}


def begin_agent(child: Child, where: dict[str, Any], busy: int, workers: int) -> None:
    """Tells an agent what it works for. busy: cores that the ranks of this host need."""
    child.channel.send(where={key: where[key] for key in ("address", "keys")}, busy=busy,
                       workers=workers)
    if not child.channel.wait_for(START_S) or child.channel.said() != [{"begun": True}]:
        child.kill()
        raise EnvironmentFault(
            "the workers of this run do not start", found=f"no word of their agent for {START_S} s",
            remedy="python -m spmd feed worker says more; then run --feed NAME@ADDRESS")

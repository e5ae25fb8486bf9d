"""One command: a scheduler and workers on this machine, for one run, which end with it.

In: a pipeline, the processes of a job. Out: where its scheduler is. The first process of the job
starts the scheduler, the first of each host an agent with workers on the cores that ranks leave;
whichever dies is started again. They end with the supply, and with their process, however it dies.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress

from codegen.errors import EnvironmentFault, PeerError
from spmd.feeding.clients.client import Client
from spmd.feeding.clients.open_stream import opened_by
from spmd.feeding.consumers.pipeline_supply import PipelineSupply
from spmd.feeding.host.children import Child
from spmd.feeding.host.machine import host_name, ports_of
from spmd.feeding.host.supervision import ChildSupervisor, SupervisedChild
from spmd.feeding.messages.keys import Keys, made_for_a_run
from spmd.feeding.messages.wire import new_id
from spmd.feeding.scheduling.scheduler_state import StateMemory
from spmd.feeding.starting.scheduler_process import SCHEDULER, wait_for_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.data.pipelines import Pipeline

AGENT = "spmd.feeding.starting.local_agent"
START_S = 20.0


class StartedSupply(PipelineSupply):
    """A PipelineSupply whose scheduler and workers this job has started."""

    helps = "more workers (workers=N in @data.pipeline)"

    def __init__(self, pipeline: Pipeline, address: str, keys: Keys, keeper: ChildSupervisor, *,
                 name: str, **more: Any) -> None:
        super().__init__(name, address, keys, **more)
        self.keeper, self.check_batch, self.computes = keeper, pipeline.check_batch, pipeline
        self._end = weakref.finalize(self, keeper.end)  # at the end of Python, too

    def can_go_on(self, ranks: tuple[int, ...]) -> bool:
        """Return whether another job of this run with the same ranks can use it: all child
        processes run."""
        return ranks == self.ranks and self.keeper.error is None

    def name_of(self, position: int) -> str:
        with suppress(Exception):  # whatever the user's source raises: workers will say it
            return self.computes.example_name(position)
        return ""

    def what_ended(self) -> PeerError | None:
        return self.keeper.error


class LocalScheduler:
    """The scheduler of a run: started again, it has the same keys, address and state."""

    def __init__(self, several_hosts: bool) -> None:
        self.keys, self.memory = made_for_a_run(), StateMemory()
        self.listen = f"tcp://0.0.0.0:{ports_of('', 1, '')}" if several_hosts else (
            "tcp://127.0.0.1:*")
        self.address = ""
        weakref.finalize(self, self.memory.close)

    def start(self) -> Child:
        return Child(SCHEDULER, (self.memory.fd,))

    def greet(self, child: Child) -> None:
        self.address = wait_for_address(child, self.keys, self.listen)
        self.listen = f"{self.listen.rpartition(':')[0]}:{self.address.rpartition(':')[2]}"


def started(pipeline: Pipeline, *, processes: Any, ranks: tuple[int, ...], feed: Any,
            run: str) -> StartedSupply:
    """Start scheduler and workers; all processes call this together. Raises EnvironmentFault where
    something does not start."""
    keeper = ChildSupervisor(pipeline.name)
    try:
        rows = processes.all_gather((host_name(), len(ranks), os.sched_getaffinity(0)))
        hosts = list(dict.fromkeys(host for host, *_ in rows))
        here = rows[processes.number][0]
        first = next(k for k, (host, *_) in enumerate(rows) if host == here)
        mine = [(count, cores) for host, count, cores in rows if host == here]
        asked = {"busy": sum(count for count, _ in mine),
                 "cores": sorted(set().union(*(cores for _, cores in mine))),
                 "workers": workers_each(pipeline, len(hosts)), "agent": new_id()}
        agent = SupervisedChild("the agent of workers", lambda: Child(AGENT, ends_itself=True),
                          lambda child: begin_agent(child, asked))
        # Agents load their modules while the scheduler does.
        processes.run_in_all(lambda: keeper.add(agent) if first == processes.number else None,
                           shared=False)
        where = processes.run_in_first(
            lambda: begin_scheduler(pipeline, feed, run, len(hosts) > 1, keeper))
        asked["where"] = {key: where[key] for key in ("address", "keys")}
        processes.run_in_all(lambda: keeper.meet(agent), shared=False)
    except BaseException:
        keeper.end()
        raise
    return StartedSupply(pipeline, where["address"], Keys.of_plain(where["keys"]), keeper,
                         name=where["name"], ranks=ranks, run=run, opened=where["opened"])


def workers_each(pipeline: Pipeline, hosts: int) -> int:
    """Return how many workers each host has where the pipeline says how many in all, else 0."""
    workers = pipeline.settings.workers
    return -(-workers // hosts) if isinstance(workers, int) else 0


def begin_scheduler(pipeline: Pipeline, feed: Any, run: str, several_hosts: bool,
                    keeper: ChildSupervisor) -> dict[str, Any]:
    """Start a scheduler and submit the pipeline; return its address, the keys of this run, and the
    name."""
    local = LocalScheduler(several_hosts)
    supervised = SupervisedChild("the scheduler", local.start, local.greet)
    keeper.add(supervised)
    keeper.meet(supervised)
    with Client(local.address, local.keys, timeout=START_S) as client:
        name = client.submit(pipeline, compute=False)["name"]  # workers are at it
        stream = opened_by(client, name, feed, run)
    return {"address": local.address, "keys": local.keys.as_plain(), "name": name,
            "opened": stream}


def begin_agent(child: Child, asked: dict[str, Any]) -> None:
    """Tell an agent what it works for: where the scheduler is, who the agent is (another one takes
    the place of a dead one), cores that the ranks of this host need, how many workers."""
    child.channel.send(**asked)
    said, why = child.first_word(START_S)
    if not said:
        raise EnvironmentFault(
            "the workers of this run do not start", found=f"their agent: {why}",
            remedy="python -m spmd feed worker says more; then run --feed NAME@ADDRESS")

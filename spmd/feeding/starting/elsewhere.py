"""Workers that Dask or Ray start, for those who run a cluster of these: one function each.

In: the scheduler's address and keys. Out: an agent on every machine of the cluster.
Always holds: secrets travel on the lines of Dask or Ray, and through a pipe, never on a command
line; agents end with the workers of Dask, or the actors of Ray, that started them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from codegen.errors import EnvironmentFault
from spmd.feeding.host.children import Child, of_parent
from spmd.feeding.messages.keys import Keys, keys_of
from spmd.feeding.workers.agent import Agent

END_S = 2.0
PLUGIN = "spmd-feed"


def on_dask(client: Any, connect: str, keys: str | Keys = "", processes: int = 1,
            **more: Any) -> None:
    """Starts an agent beside every worker of a Dask cluster, also of those that come later.

    client: a dask.distributed.Client. connect: the scheduler's address. keys: a folder of keys
    on this machine. processes: for each Dask worker. more: device, ports, free, memory, cost,
    watts, as of `feed worker`. client.unregister_worker_plugin("spmd-feed") ends them.

    Raises EnvironmentFault where Dask is not installed.
    """
    base = _imported("distributed.diagnostics.plugin", "dask").WorkerPlugin
    said = _said(connect, keys, processes, more)

    class FeedPlugin(base):  # type: ignore[misc, valid-type]
        name = PLUGIN

        def setup(self, worker: Any) -> None:
            self.child = start_agent(said)

        def teardown(self, worker: Any) -> None:
            self.child.end(END_S)

    client.register_plugin(FeedPlugin(), name=PLUGIN)


def on_ray(connect: str, keys: str | Keys = "", processes: int = 1, **more: Any) -> list[Any]:
    """Starts an agent on every node of a Ray cluster, each in an actor that takes so many CPUs.

    Arguments as of on_dask. Returns the actors: they end when nothing refers to them any more,
    or with ray.kill(actor). Raises EnvironmentFault where Ray is not installed.
    """
    ray = _imported("ray", "ray")
    near = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    said = _said(connect, keys, processes, more)
    actors = []
    for node in ray.nodes():
        if node["Alive"]:
            where = near(node_id=node["NodeID"], soft=False)
            actor = ray.remote(RayAgent).options(num_cpus=processes, scheduling_strategy=where)
            actors.append(actor.remote(said))
    ray.get([actor.pid.remote() for actor in actors])
    return actors


class RayAgent:
    """An actor: an agent beside it, as long as it lives."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.child = start_agent(said)

    def pid(self) -> int:
        return self.child.pid


def start_agent(said: dict[str, Any]) -> Child:
    """An agent in a process of its own, which ends with this one. said: what on_dask sends."""
    child = Child("spmd.feeding.starting.elsewhere", ends_itself=True)
    child.channel.send(**said)
    return child


def _said(connect: str, keys: str | Keys, processes: int, more: dict[str, Any]) -> dict[str, Any]:
    found = keys if isinstance(keys, Keys) else keys_of(keys)
    return {"connect": connect, "keys": found.as_plain(), "processes": processes, "more": more}


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise EnvironmentFault(f"{package} is not installed here",
                               remedy=f"pip install {package}") from None


def _in_child(arguments: list[str]) -> None:
    channel, _ = of_parent(arguments)
    channel.wait_for(END_S * 5)
    said = (channel.said() or [{}])[0]
    if said:
        os.setpgid(0, 0)  # signals for a terminal's group are not for us: our parent ends us
        Agent(said["connect"], Keys.of_plain(said["keys"]), said["processes"], lifeline=channel,
              **said["more"]).run()


if __name__ == "__main__":
    _in_child(sys.argv[1:])

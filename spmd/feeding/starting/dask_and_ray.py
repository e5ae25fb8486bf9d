"""Workers that Dask or Ray start, for those who run a cluster of these: one function each.

In: the scheduler's address and keys. Out: an agent on every machine of the cluster.
Always holds: secrets travel on the lines of Dask or Ray, and through a pipe, never on a command
line; agents end with the workers of Dask, or the actors of Ray, that started them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module
from typing import Any

from codegen.errors import EnvironmentFault, SpmdError
from spmd.feeding.host.children import Child, of_parent
from spmd.feeding.messages.keys import Keys, keys_of
from spmd.feeding.workers.agent import Agent

START_S, END_S = 60.0, 2.0
PLUGIN = "spmd-feed"


def on_dask(client: Any, connect: str, keys: str | Keys = "", processes: int = 1,
            **more: Any) -> Any:
    """Starts an agent beside every worker of a Dask cluster, also of those that come later.

    client: a dask.distributed.Client; of one that is asynchronous, await what this returns.
    connect: the scheduler's address, as machines of the cluster reach it. keys: a folder of keys
    on this machine. processes: for each Dask worker. more: device, ports, free, memory, cost,
    watts, as of `feed worker`. Called again, it ends those that it has started, and starts others.
    client.unregister_worker_plugin("spmd-feed") ends them; so does the end of the cluster.

    Raises EnvironmentFault where Dask is not installed, or an agent does not start.
    """
    base = _imported("distributed.diagnostics.plugin", "dask").WorkerPlugin
    said = _said(connect, keys, processes, more)

    class FeedPlugin(base):  # type: ignore[misc, valid-type]
        name, child = PLUGIN, None

        async def setup(self, worker: Any) -> None:  # other tasks of the worker go on
            self.child = await asyncio.to_thread(start_agent, said)

        def teardown(self, worker: Any) -> None:
            if self.child:
                self.child.end(END_S)

    async def registered() -> None:
        try:
            await client.register_plugin(FeedPlugin(), name=PLUGIN)
        except Exception:  # it would keep every later worker of Dask from starting
            await client.unregister_worker_plugin(PLUGIN)
            raise

    return client.sync(registered)


def on_ray(connect: str, keys: str | Keys = "", processes: int = 1, **more: Any) -> list[Any]:
    """Starts an agent on every node of a Ray cluster that has CPUs, in an actor that takes
    `processes` of them, once they are free. Ray starts an actor again whose process dies.

    Arguments as of on_dask. Returns the actors: each ends with ray.kill(actor), when nothing
    refers to it any more, and with the program that calls this. Nodes that come later have none.

    Raises EnvironmentFault where Ray is not installed, a node has too few CPUs, or an agent does
    not start.
    """
    ray = _imported("ray", "ray")
    if not ray.is_initialized():
        ray.init()
    near = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    said = _said(connect, keys, processes, more)
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
    for node in nodes:
        if (there := node["Resources"]["CPU"]) < processes:  # Ray would wait without end
            raise EnvironmentFault(
                f"node {node['NodeManagerHostname']} of Ray has too few CPUs for its actor",
                expected=f"processes={processes}", found=f"{there:g}",
                remedy=f"processes={there:g}")
    actors = []
    for node in nodes:
        where = near(node_id=node["NodeID"], soft=False)
        actor = ray.remote(RayAgent).options(num_cpus=processes, scheduling_strategy=where,
                                             max_restarts=-1)
        actors.append(actor.remote(said))
    for why in ray.get([actor.trouble.remote() for actor in actors]):
        if why:
            raise EnvironmentFault(why)
    return actors


class RayAgent:
    """Runs an agent beside a Ray actor, as long as that lives."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.why = ""
        try:
            self.child = start_agent(said)
        except EnvironmentFault as error:  # Ray would start it again and again
            self.why = str(error)

    def trouble(self) -> str:
        """Return why there is no agent, or ""."""
        return self.why


def start_agent(said: dict[str, Any]) -> Child:
    """Start an agent in a process of its own, which ends with this one. said: what on_dask
    sends."""
    child = Child("spmd.feeding.starting.dask_and_ray", ends_itself=True)
    child.channel.send(**said)
    word, why = child.first_word(START_S)
    if word is None or "error" in word:
        child.kill()
        raise EnvironmentFault("workers of feeding do not start: " + (
            word["error"] if word else f"their agent, {why}"))
    return child


def _said(connect: str, keys: str | Keys, processes: int, more: dict[str, Any]) -> dict[str, Any]:
    loaded = keys if isinstance(keys, Keys) else keys_of(keys)
    return {"connect": connect, "keys": loaded.as_plain(), "processes": processes, "more": more}


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
        try:
            agent = Agent(said["connect"], Keys.of_plain(said["keys"]), said["processes"],
                          lifeline=channel, **said["more"])
        except SpmdError as error:
            channel.send(error=str(error))
            return
        channel.send(begun=True)
        agent.run()


if __name__ == "__main__":
    _in_child(sys.argv[1:])

"""What the processes of a job agree on before it is loaded, where they are, which ranks each hosts.

In: what each of them brings. Out: `Hosts`, or an AgreementError that says who differs in what.
"""

from __future__ import annotations

import os

from codegen.errors import EnvironmentFault, MeshError, SpmdError
from codegen.symbolic.meaning import block
from spmd.launch import limits
from spmd.launch.processes import disagreement
from spmd.launch.sizes import ranks_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.launch.processes import Processes

# One name per process, "a,a,b": hosts that this one host plays, so that one machine can try what
# several do. For tests.
PRETENDED = "SPMD_PRETEND_HOSTS"


def contribution(digest: str, settings: dict[str, Any], first: int, count: int) -> dict[str, Any]:
    """Return what this process, host of so many ranks, brings to `agree`. settings: by name."""
    return {
        "ranks": range(first, first + count),
        "digest": digest,
        "settings": {name: repr(value) for name, value in settings.items()},
        "host": os.uname().nodename,
        "place": place(),
        "cores": tuple(os.sched_getaffinity(0)),
        "limits": limits.in_use() if first == 0 else None,  # process 0's count
    }


def place() -> tuple[str, ...]:
    """Return a key that is equal for two processes that can reach each other's memory: kernel and
    process table."""
    parts = [os.uname().nodename]
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass
    return tuple(parts)


class Hosts:
    """A map of the processes of a job to hosts and arenas. Lists have one entry per process.

    names: of their hosts; hosts: their numbers. arenas: the number of the arena whose memory each
    of them shares. first: rank of each, and behind the last one the number of ranks. cores: usable
    on this process's host. limits: process 0's, of spmd.launch.limits.
    """

    def __init__(
        self, number: int, everyones: list[dict[str, Any]], transport: str = "auto"
    ) -> None:
        places = [theirs["place"] for theirs in everyones]
        pretended = os.environ.get(PRETENDED, "").split(",")
        if len(pretended) == len(places):
            places = [(*place, "pretended", name) for place, name in zip(places, pretended)]
        order = list(dict.fromkeys(places))
        self.number = number
        self.count = len(order)
        self.names = [
            f"{theirs['host']}#{place[-1]}" if "pretended" in place else theirs["host"]
            for theirs, place in zip(everyones, places)
        ]
        self.hosts = [order.index(place) for place in places]
        self.arenas = list(range(len(places))) if transport == "mpi" else self.hosts
        self.first = [theirs["ranks"].start for theirs in everyones] + [everyones[-1]["ranks"].stop]
        mine = everyones[number]["place"]  # pretended hosts share what cores there are
        self.here = [k for k, theirs in enumerate(everyones) if theirs["place"] == mine]
        self.limits = everyones[0]["limits"]
        self.cores = len({core for k in self.here for core in everyones[k]["cores"]})

    @property
    def spans_hosts(self) -> bool:
        """Return whether the ranks lie on several hosts, so that data must travel by MPI."""
        return len(set(self.arenas)) > 1

    def ranks_of(self, processes: list[int]) -> int:
        """Return how many ranks these processes host."""
        return sum(self.first[k + 1] - self.first[k] for k in processes)

    def in_this_arena(self) -> list[int]:
        """Return the processes that share one arena of memory with this one."""
        return [k for k, arena in enumerate(self.arenas) if arena == self.arenas[self.number]]

    def on_this_host(self) -> list[int]:
        """Return the processes on this one's host, also where tests pretend that there are
        several."""
        return [k for k, host in enumerate(self.hosts) if host == self.hosts[self.number]]


def agree(processes: Processes, everyones: list[dict[str, Any]], transport: str = "auto") -> Hosts:
    """Check that every process holds the same image and settings; return where they are.

    Raises AgreementError or EnvironmentFault in process 0, `Elsewhere` in the others.
    """
    try:
        _compare(everyones)
        hosts = Hosts(processes.number, everyones, transport)
        if transport == "shm" and hosts.count > 1:
            raise EnvironmentFault(
                f"the processes run on {hosts.count} hosts",
                expected="one host, where --transport shm is asked for",
                found=", ".join(dict.fromkeys(hosts.names)),
                remedy="--transport auto",
            )
    except SpmdError as error:
        processes.refuse(error)
    return hosts


def _compare(everyones: list[dict[str, Any]]) -> None:
    for key, things in (("digest", "images"), ("settings", "settings")):
        groups: dict[Any, list[int]] = {}
        for number, theirs in enumerate(everyones):
            groups.setdefault(repr(theirs[key]), []).append(number)
        if len(groups) == 1:
            continue
        usual = max(groups.values(), key=len)
        others = [theirs for number, theirs in enumerate(everyones) if number not in usual]
        odd = [rank for theirs in others for rank in theirs["ranks"]]
        expected, odd_one = everyones[usual[0]], others[0]
        raise disagreement(
            f"ranks of one job hold different {things}", "rank", odd,
            expected=f"{_different(key, expected, odd_one)} (rank {expected['ranks'][0]})",
            found=f"{_different(key, odd_one, expected)} (rank {odd_one['ranks'][0]})",
            remedy="give every rank the same image and the same options",
        )


def _different(key: str, own: dict[str, Any], other: dict[str, Any]) -> str:
    """Return in words what one process holds that the other does not."""
    value = own[key]
    if not isinstance(value, dict):
        return f"{key} {value}"
    return ", ".join(f"{k} {v}" for k, v in value.items() if other[key].get(k) != v)


def hosted(ranks: int, processes: Processes) -> tuple[int, int]:
    """Return the first rank of this process and how many it hosts."""
    if ranks < processes.count:
        raise MeshError(
            f"{processes.count} processes were started for {ranks_text(ranks)}",
            expected="at least one rank for every process",
            remedy=f"mpirun -n {ranks}, or --ranks {processes.count}",
        )
    return block(processes.number, ranks, processes.count)

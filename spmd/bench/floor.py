"""What this machine allows, by minimal C (csrc/bench/floor.c): for `bench floor` and `--vs floor`.

In: names of collectives, sizes. Out: rows like those of `bench`, with the method that was best.
Always holds: as for ours, what goes in differs in every turn, every turn begins with a barrier and
is checked, times are those of the worst rank; the processes are the job's, the memory is an arena.
"""

from __future__ import annotations

import statistics
from array import array
from typing import Any

from codegen.errors import EnvironmentFault
from spmd.bench.collectives import COLLECTIVES, Bench, summary, turns_of
from spmd.engine import ffi, lib
from spmd.launch.hosts import Hosts, agree, contribution, hosted
from spmd.launch.job import arena_address
from spmd.launch.options import Options
from spmd.launch.processes import Processes

# Methods: enum spmd_floor_method; moves: enum spmd_floor_move, of which the first goes unsaid.
METHODS, MOVES = ("eager", "pull", "push"), ("", " memcpy", " stream")
WAYS = {f"{method}{move}": (m, k)
        for m, method in enumerate(METHODS) for k, move in enumerate(MOVES)}
TRIALS = 20  # turns in which a way shows how fast it is

# What transfers are made of: its kind, and what ways there are to do it, where that is not up to
# csrc/floor.c.
MACHINE: dict[str, tuple[int, dict[str, str]]] = {
    "copy": (lib.SPMD_FLOOR_COPY, {}),
    "copy-at-once": (lib.SPMD_FLOOR_COPY, {}),
    "flag": (lib.SPMD_FLOOR_FLAG, {"pull": "spin"}),
    "switch-futex": (lib.SPMD_FLOOR_SWITCH, {"pull": "futex"}),
    "switch-yield": (lib.SPMD_FLOOR_SWITCH, {"push": "yield"}),
}
TITLES = {
    "copy": "memory copied by one core",
    "copy-at-once": "memory copied by all ranks that have a core, at once",
    "flag": "round trip of a word between two ranks",
    "switch-futex": "from one thread to another on one core, where they sleep",
    "switch-yield": "from one thread to another on one core, where they yield",
}


class Floor:
    """A measurement of one collective by hand, or of something it is made of, in the same
    processes."""

    def __init__(self, name: str, processes: Processes, ranks: int, count: int) -> None:
        self.processes, self.method = processes, ""
        first, count_here = hosted(ranks, processes)
        met = processes.run_and_gather(lambda: contribution("", {}, first, count_here))
        hosts = agree(processes, met)
        if hosts.count > 1:
            processes.refuse(EnvironmentFault(
                "the floor is measured over shared memory", expected="processes on one host",
                found=", ".join(dict.fromkeys(hosts.names)), remedy="start all of them on one host",
            ))
        kind, self.names = MACHINE.get(name) or (COLLECTIVES[name][1], {})
        self.active = min(ranks, hosts.cores) if name == "copy-at-once" else 1
        self.c_floor = ffi.new("spmd_floor *", {
            "kind": kind, "ranks": ranks, "count": count, "first": first, "hosted": count_here,
            "crowded": ranks > hosts.cores, "active": self.active,
            "partner": hosts.first[1] if processes.count > 1 else 1,
        })
        arenas = processes.run_and_gather(self._make)
        processes.run_in_all(lambda: self._attach(*arenas[0]))
        lib.spmd_arena_close_fd(self._arena)

    def _make(self) -> tuple[str, int]:
        if self.processes.number:
            return "", 0
        shared = int(self.processes.count > 1)
        self._take(lambda to: lib.spmd_arena_new(lib.spmd_floor_bytes(self.c_floor), shared, to))
        return arena_address(self._arena)

    def _attach(self, path: str, nonce: int) -> None:
        if self.processes.number:
            need = lib.spmd_floor_bytes(self.c_floor)
            self._take(lambda to: lib.spmd_arena_attach(path.encode(), need, nonce, to))
        self._check(lib.spmd_floor_take(self.c_floor))

    def _take(self, make: Any) -> None:
        to = ffi.new("spmd_arena **")
        self._check(make(to))
        self._arena = self.c_floor.arena = ffi.gc(to[0], lib.spmd_arena_free)

    def _check(self, status: int) -> None:
        if status != lib.SPMD_OK:
            text = ffi.string(lib.spmd_status_text(status)).decode()
            raise EnvironmentFault(f"memory for the floor: {text}", remedy="smaller --sizes")

    def turns(self, count: int) -> tuple[list[list[int]], int]:
        """Measure the collective; return what Bench.ours returns. The first call finds out which
        method is best."""
        if not self.method:
            self.method = self._best(min(count, TRIALS))
        return self._measure(self.method, count)

    def _best(self, count: int) -> str:
        """Return the way whose faster turns are the fastest: what else runs here decides the
        slower."""
        offered = [way for way in self.names or WAYS if self._offers(way)]
        if len(offered) == 1:
            return offered[0]
        worst: dict[str, list[int]] = {way: [] for way in offered}
        for _ in range(2):
            for way in offered:
                times, _ = self._measure(way, count)
                worst[way] += [max(turn) for turn in zip(*times)]
        return self.processes.run_in_first(
            lambda: min(worst, key=lambda way: statistics.quantiles(worst[way])[0])
        )

    def _offers(self, way: str) -> bool:
        self.c_floor.method, self.c_floor.move = WAYS[way]
        return bool(lib.spmd_floor_offers(self.c_floor))

    def _measure(self, way: str, count: int) -> tuple[list[list[int]], int]:
        self.c_floor.method, self.c_floor.move = WAYS[way]
        hosted = int(self.c_floor.hosted)
        times = array("q", bytes(8 * count * hosted))
        wrong = lib.spmd_floor_measure(self.c_floor, count, ffi.from_buffer("int64_t[]", times))
        if wrong < 0:  # the others may wait for us: the end of this process is theirs
            raise EnvironmentFault("no memory or no thread for the floor", remedy="fewer --ranks")
        rows = [list(times[k * count : (k + 1) * count]) for k in range(hosted)]
        met = self.processes.gather_to_first((rows, wrong))
        ranks = [row for rows, _ in met for row in rows]
        # Only those that have a part in it.
        return [row for row in ranks if min(row) >= 0], sum(bad for _, bad in met)


class FloorBench(Bench):
    """Rows as of Bench, of what is made by hand."""

    def __init__(self, options: Options, processes: Processes, rounds: int) -> None:
        super().__init__(options, processes, rounds)
        if not options.ranks and processes.count == 1:
            cores = Hosts(0, [contribution("", {}, 0, 1)]).cores
            self.ranks = max(2, cores)

    def _row(self, name: str, count: int) -> dict[str, Any]:
        turns = turns_of(name, count, self.ranks)
        floor = Floor(name, self.processes, self.ranks, count)
        batches, wrong = [], 0
        for batch in range(self.rounds + 1):  # the first one warms up
            times, bad = floor.turns(turns)
            wrong += bad
            batches += [times] if batch else []
        row = self.row_of(name, count, turns * self.rounds)
        if self.processes.number:
            return {**row, "wrong": 0}
        row |= {**summary(batches), "wrong": wrong}
        row["method"] = floor.names.get(floor.method, floor.method)
        factor = floor.active if name in MACHINE else COLLECTIVES[name][2](self.ranks)
        row["bus"] = factor * row["bytes"] / (row["worst"] / 1e6)
        return row

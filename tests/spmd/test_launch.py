"""Agreement between processes: an error of one is an error of all, and is told once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from codegen.errors import AgreementError, EnvironmentFault, InputError
from spmd.launch import launchers
from spmd.launch.hosts import PRETENDED, Hosts, agree, contribution
from spmd.launch.processes import Elsewhere, Processes
from tests.conftest import PATIENCE


class Together:
    """The collective calls of a communicator, between threads."""

    def __init__(self, count: int) -> None:
        self.count, self.slots = count, [None] * count
        self.barrier = threading.Barrier(count, timeout=PATIENCE)

    def member(self, number: int) -> Processes:
        together = self

        class Member:
            def Get_rank(self) -> int:
                return number

            def Get_size(self) -> int:
                return together.count

            def allgather(self, value: Any) -> list[Any]:
                together.slots[number] = value
                together.barrier.wait()
                found = list(together.slots)
                together.barrier.wait()
                return found

        return Processes(Member())

    def run(self, step: Callable[[Processes], Any]) -> list[Any]:
        """Return what `step` returned or raised, for every process."""
        found: list[Any] = [None] * self.count

        def one(number: int) -> None:
            try:
                found[number] = step(self.member(number))
            except Exception as error:
                found[number] = error

        threads = [threading.Thread(target=one, args=(k,)) for k in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        return found


def test_results_of_all_in_all() -> None:
    found = Together(3).run(
        lambda p: (p.run_and_gather(lambda: p.number**2), p.run_in_all(lambda: p.number)))
    assert found == [([0, 1, 4], k) for k in range(3)]
    assert Together(3).run(lambda p: p.run_in_first(lambda: p.number + 7)) == [7, 7, 7]


def test_the_lowest_failing_process_speaks_for_all() -> None:
    def step(processes: Processes) -> None:
        def fail() -> None:
            if processes.number in (1, 3):
                raise InputError(f"from {processes.number}")

        processes.run_in_all(fail)

    found = Together(4).run(step)
    assert isinstance(found[1], InputError)
    assert [type(f) for f in found] == [Elsewhere, InputError] + [Elsewhere] * 2
    assert {getattr(f, "exit_code", None) for f in found} == {65}


def test_a_defect_on_one_process_ends_all() -> None:
    found = Together(2).run(lambda p: p.run_in_all(lambda: 1 // (p.number - 1 + 1)))
    assert isinstance(found[0], ZeroDivisionError)
    assert isinstance(found[1], Elsewhere) and found[1].exit_code == 70


def agreement(**changes: dict[int, Any]) -> list[dict[str, Any]]:
    everyones = [contribution("d0", {"mesh": (8,), "steps": 3}, k, 1) for k in range(8)]
    for key, values in changes.items():
        for number, value in values.items():
            everyones[number][key] = value
    return everyones


def test_those_who_differ_are_named() -> None:
    hosts = agree(Processes(), agreement())
    assert (hosts.count, hosts.spans_hosts, hosts.first) == (1, False, list(range(9)))
    with pytest.raises(AgreementError, match="ranks 3, 7 differ") as caught:
        agree(Processes(), agreement(digest={3: "d1", 7: "d1"}))
    assert caught.value.exit_code == 78
    assert "d0 (rank 0)" in str(caught.value) and "d1 (rank 3)" in str(caught.value)
    with pytest.raises(AgreementError, match="different settings: rank 2 differs") as caught:
        agree(Processes(), agreement(settings={2: {"mesh": "(8,)", "steps": "5"}}))
    assert "expected: steps 3 (rank 0)" in str(caught.value)
    assert "found:    steps 5 (rank 2)" in str(caught.value)
    with pytest.raises(EnvironmentFault, match="run on 2 hosts") as fault:
        agree(Processes(), agreement(place={5: ("elsewhere",)}), "shm")
    assert fault.value.exit_code == 69


def test_cores_are_those_of_all_processes() -> None:
    hosts = agree(Processes(), agreement(cores={k: (k, 90) for k in range(8)}))
    assert hosts.cores == 9


def test_who_shares_memory_with_whom() -> None:
    """Arenas are numbered in the order in which processes first belong to one."""
    everyones = agreement(place={k: ("b",) if k in (1, 2, 6) else ("a",) for k in range(8)})
    hosts = Hosts(6, everyones)
    assert hosts.arenas == [0, 1, 1, 0, 0, 0, 1, 0]
    assert hosts.here == hosts.in_this_arena() == [1, 2, 6]
    assert hosts.ranks_of(hosts.here) == 3 and hosts.count == 2
    alone = Hosts(6, everyones, "mpi")
    assert alone.arenas == list(range(8))
    assert alone.in_this_arena() == [6] and alone.here == [1, 2, 6] and alone.spans_hosts


def test_hosts_can_be_pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRETENDED, "a,a,a,b,b,b,b,c")
    hosts = Hosts(3, agreement())
    assert hosts.arenas == [0, 0, 0, 1, 1, 1, 1, 2] and hosts.count == 3
    assert hosts.names[7].endswith("#c")
    assert hosts.here == list(range(8)), "they share the cores of one machine"


def test_a_launcher_of_another_family_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launchers.launcher() == (0, 1, "")
    assert launchers.world() is None
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert launchers.launcher() == (2, 4, "Open MPI")

"""In the steady state of an exchange no memory is allocated and no system call made but to wait.

steady.c traps and counts what the threads of the engine ask for in 2,000 exchanges of two ranks
(fewer on a busy machine), with a core for each: every program of images.c, and mixed.c, on two
threads and in two processes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, run
from tests.engine.harness import HERE, compile_c, compile_hooked

FILES = [str(HERE / f"{name}.c") for name in ("steady", "mixed", "images", "near")]
PROGRAMS = 13
# enum delays_defect, and what counts it.
DEFECTS = {"allocations": 4, "others": 5}


@pytest.fixture(scope="module")
def steady(once: Callable[..., Path], engine_object: str) -> Path:
    return once("steady", lambda path: compile_c(path, "-O2", *FILES, engine_object))


@pytest.fixture(scope="module")
def hooked(once: Callable[..., Path], hooked_engine: str) -> Path:
    return once("hooked", lambda path: compile_hooked(path, "-O0", *FILES, hooked_engine))


def counted(program: Path, *arguments: object, code: int = 0) -> list[dict[str, str]]:
    """A row for each case: program, processes, elements, algorithm, and what was counted."""
    done = run([program, *arguments], timeout=5 * PATIENCE)
    if done.code == 2 and ("seccomp" in done.err or "privileges" in done.err):
        pytest.skip(f"this machine does not let system calls be trapped: {done.err}")
    words = [["program", *line.split()] for line in done.expect(code).out.splitlines()]
    rows = [dict(zip(line[::2], line[1::2])) for line in words]
    assert len({row["program"] for row in rows}) == PROGRAMS and rows[-1]["fine"] in "01"
    return rows


@pytest.mark.alone
def test_nothing_is_asked_of_the_system_but_to_wait(steady):
    rows = counted(steady, "all")
    assert len(rows) > 6 * PROGRAMS
    assert {(row["others"], row["allocations"], row["wrong"]) for row in rows} == {("0", "0", "0")}
    for row in rows:  # a thread that shares its core goes to another one, at most once in a while
        assert int(row["moves"]) <= int(row["exchanges"]) // 20, row


@pytest.mark.parametrize("what", DEFECTS)
def test_the_counters_see_what_the_engine_does(hooked, what):
    """An engine that allocates, or calls the system, in one step of a hundred."""
    rows = counted(hooked, "sleeps", DEFECTS[what], code=1)
    for row in rows:  # a thread that allocates may need system calls for it, too
        assert int(row[what]) > 10 and row["fine"] == row["wrong"] == "0", row


@pytest.mark.alone
def test_a_thread_that_goes_on_is_not_woken(steady):
    """One rank naps every 200 exchanges and the other falls asleep; as soon as it has gone on,
    nobody calls the system to wake it. Where it slept more often, since it had to share its core,
    there may be more wakes.
    """
    for row in counted(steady, "sleeps"):
        waits, wakes, exchanges = (int(row[k]) for k in ("waits", "wakes", "exchanges"))
        assert waits >= exchanges // 2 // 200 // 2, "somebody slept"
        assert wakes <= 4 * waits + exchanges // 20, row

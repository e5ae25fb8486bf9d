"""Entries that write into states: where these lie, without copies; a failed run is undone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen import compile as compiler
from codegen.errors import CheckError, UsageError
from codegen.ir.plan import KEEPS, Phase, Store
from codegen.ir.steps import walk_steps
from spmd.entries import OpenedEntity

ROWS, WIDTH = 24, 10


@spmd.program(mesh=("r",))
class Cache:
    def __init__(self) -> None:
        self.keys = spmd.zeros((ROWS, WIDTH), np.float64, layout=(None, "r"))
        self.count = 0
        self.log = np.zeros(4)

    @spmd.entry
    def push(self) -> Any:
        k = spmd.input("k", (WIDTH,), np.float64)
        self.keys[self.count] = k
        self.log[0] += 1
        self.count += 1
        return np.sum(self.keys * k)

    @spmd.entry
    def put(self) -> None:
        i = spmd.scalar("i", 0)
        self.keys = spmd.dynamic_update_slice(
            self.keys, spmd.input("k", (2, WIDTH), np.float64), (i, 0))
        self.log[1] += 1

    @spmd.entry
    def fail_late(self) -> Any:
        i = spmd.input("i", (5,), np.int64)
        self.keys[i] = spmd.input("k", (5, WIDTH), np.float64)
        for _ in spmd.range(3):
            self.log[2] += 1
        total = np.sum(self.keys)
        assert total < 0, f"the sum is {total}"
        return total

    @spmd.entry
    def read_before(self) -> Any:
        """Reads the old state after it was overwritten, so that it has to be copied."""
        old = self.keys.copy()
        self.keys[1:3] = spmd.input("k", (2, WIDTH), np.float64)
        return np.sum(old) - np.sum(self.keys)

    @spmd.entry
    def clear(self) -> None:
        self.keys, self.count = np.zeros_like(self.keys), 0


@pytest.fixture(scope="module")
def image() -> spmd.Image:
    return spmd.build(Cache)


def test_nothing_is_copied_to_write_into_a_state() -> None:
    plan = compiler.lower(Cache.graph({})).finished
    by_name = {entry.name: entry for entry in plan.entries}
    assert {name for name, e in by_name.items() if 0 in e.updates} == {"push", "put", "fail_late"}
    assert by_name["clear"].rebinds and 0 not in by_name["clear"].updates
    keys = plan.inputs[plan.states[0].input].buffer
    branch: Any = plan.steps[-1]
    for entry, arm in zip(plan.entries[1:4], branch.arms[1:4], strict=True):
        stores = [w for step in walk_steps(arm) if isinstance(step, Phase) for w in step.work
                  if isinstance(w, Store) and w.buffer is keys]
        assert [w.combine for w in stores] == [KEEPS, "set"], entry.name


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_random_calls(image: spmd.Image, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    keys, count, log = np.zeros((ROWS, WIDTH)), 0, np.zeros(4)
    with image.open(ranks=ranks) as cache:
        assert isinstance(cache, OpenedEntity)
        for turn in range(120):
            which = rng.integers(5)
            if which == 0 and count < ROWS:
                k = rng.normal(size=WIDTH)
                keys[count], count = k, count + 1
                log[0] += 1
                assert abs(cache.push(k=k) - np.sum(keys * k)) < 1e-9
            elif which == 1:
                i, k = int(rng.integers(ROWS - 1)), rng.normal(size=(2, WIDTH))
                keys[i : i + 2] = k
                log[1] += 1
                cache.put(i=i, k=k)
            elif which == 2:
                before, k = keys.sum(), rng.normal(size=(2, WIDTH))
                keys[1:3] = k
                assert abs(cache.read_before(k=k) - (before - keys.sum())) < 1e-9
            elif which == 3 and turn % 3 == 0:
                keys[:], count = 0, 0
                cache.clear()
            state = cache.state()
            assert (state["keys"] == keys).all() and state["count"] == count
            assert (state["log"] == log).all()


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_that_fails_is_undone(image: spmd.Image, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with image.open(ranks=ranks) as cache:
        for _ in range(3):
            cache.push(k=np.abs(rng.normal(size=WIDTH)))
        before = cache.state()
        for _ in range(2):
            with pytest.raises(CheckError, match="the sum is"):
                cache.fail_late(i=rng.permutation(ROWS)[:5], k=np.ones((5, WIDTH)))
            after = cache.state()
            assert all((before[name] == after[name]).all() for name in before)
        cache.push(k=np.ones(WIDTH))
        assert cache.state()["count"] == 4


@spmd.program(mesh=("r",), layout={"row": "r"})
class Steps:
    """Each turn of a loop overwrites elements of a state that lie at places of the run."""

    def __init__(self) -> None:
        row = spmd.Dim("row", 300)
        self.u = spmd.zeros((row, 50), np.float64)
        self.flags = spmd.zeros((row,), np.bool_)
        self.ends = np.zeros(3)

    @spmd.entry
    def go(self) -> None:
        turns = spmd.scalar("turns", 1)
        for k in spmd.range(turns):
            self.u[k * 7 % 300] += 1
            self.u[:, 3] = k
            self.flags[k % 300] = ~self.flags[k % 300]
            self.ends[k % 3] += 1
        assert turns % 2 == 0, "odd"


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_kept_is_no_more_than_the_state_however_long_a_run_is(ranks: int) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with spmd.build(Steps).open(ranks=ranks) as steps:
        steps.go(turns=2)
        before, size = steps.state(), resident()
        with pytest.raises(CheckError, match="odd"):
            steps.go(turns=30_001)
        after = steps.state()
        assert all((before[name] == after[name]).all() for name in before)
        steps.go(turns=30_000)
        assert steps.state()["ends"].sum() == 30_002
        assert resident() - size < 10e6, "the state has 120 kB, 90 MB were overwritten"


def test_outputs_of_entries_are_not_kept(image: spmd.Image) -> None:
    with pytest.raises(UsageError, match="outputs of entries are copies"):
        image.open(ranks=1, keep="result")


def test_an_interrupt_leaves_all_of_a_call_or_nothing() -> None:
    """A call writes one state in place and binds another anew: both happen, or neither does."""
    program = f"""
import os, random, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import numpy as np
import spmd
from tests.spmd.test_state_writes import Counts

image = spmd.build(Counts)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(400):
    counts = image.open(ranks=1)
    counts.count()
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.002))
        while True:
            counts.count()
    except KeyboardInterrupt:
        state = counts._get_state()
        assert state["written"][1] == state["bound"], state
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@spmd.program(mesh=("r",))
class Counts:
    def __init__(self) -> None:
        self.written, self.bound = np.zeros(4, np.int64), 0

    @spmd.entry
    def count(self) -> None:
        self.written[1] += 1
        self.bound += 1


@spmd.program(mesh=("r",))
class Routines:
    """Results of routines are stored into parts of states."""

    def __init__(self) -> None:
        self.spectra = np.zeros((3, 16, 16), np.complex128)
        self.products = np.zeros((3, 16, 16))

    @spmd.entry
    def add(self) -> Any:
        x = spmd.input("x", (16, 16), np.float64)
        self.spectra[1] = np.fft.fft(x + 0j)
        product = x @ x.T
        for k in spmd.range(2):
            self.products[k + 1] = product @ x
            product = product + self.products[k + 1] @ x.T
        assert product[0, 0] < 1e6, "too large"
        return product

    @spmd.entry
    def both(self) -> Any:
        return self.spectra, self.products


def test_what_routines_make_is_stored_into_states_where_they_lie() -> None:
    image = spmd.build(Routines)
    plan = compiler.lower(Routines.graph({})).finished
    assert {e.name: e.updates for e in plan.entries}["add"] == (0, 1)
    x = np.arange(256.0).reshape(16, 16) % 7 / 7
    for ranks in (1, 3):
        with image.open(ranks=ranks) as job, Routines.eager() as plain:
            np.testing.assert_allclose(job.add(x=x), plain.add(x=x), rtol=1e-12)
            with pytest.raises(CheckError, match="too large"):
                job.add(x=x * 1e4)
            for found, wanted in zip(job.both(), plain.both(), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)

"""Buffers of arms that never run at once lie in one memory, and every arm finds its own there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import spmd
from benchmarks.pipeline_memory import unequal
from codegen.checks.check_loops import check_loops
from codegen.checks.check_memory import check_memory
from codegen.compile import lower, through
from codegen.errors import InternalError
from codegen.image import manifest
from codegen.ir.overlays import overlays
from codegen.loops.accumulate_in_place import accumulate_in_place
from codegen.loops.assign_buffers import assign_buffers
from codegen.loops.copy_elision import copy_elision
from codegen.loops.double_buffering import double_buffering
from codegen.loops.fuse import fuse
from codegen.loops.fuse_into_exchange import fuse_into_exchange
from codegen.loops.stored_values import stored_values
from codegen.loops.to_loops import to_loops
from codegen.ops import Loop
from codegen.plan.to_plan import to_plan
from spmd import show
from spmd.image import Image

WIDTHS = (100, 400, 900, 200)


def stage(width, rows=64):
    """Return a stage whose activations are `rows` rows of this width."""
    def run(h):
        w = np.sin(np.arange(width * 64).reshape(64, width) * 0.1)
        a = np.tanh(h @ w)
        return np.cumsum(np.exp(-a) + a[::-1], axis=1) @ w.T

    return run


def close(image: Image, wanted, ranks, **inputs) -> None:
    for n in ranks:
        out = image.run(ranks=n, **inputs)
        np.testing.assert_allclose(out, wanted(n), rtol=1e-11, atol=1e-11, err_msg=f"{n} ranks")


def rank_bytes(image: Image, path, **inputs) -> int:
    """Return how many bytes the manifest says that the buffers of a rank take, if that is what the
    engine takes for them, but for a page, and slots of exchanges."""
    image.save(path)
    said = show.size_table(manifest.read(path.read_bytes()))[0]["rank_bytes"]
    sites = sum("site" in row for row in image.manifest["operations"])
    with image.open(ranks=1) as job:
        job(**inputs)
        assert said <= job._job.rank_bytes() <= said + (sites + 1) * 12_000
    return int(said)


def placed_of(program):
    """Return the Loops of a program with their buffers."""
    program_level = lower(program.graph({})).program
    loops = to_loops(program_level, stored_values(program_level))
    return double_buffering(assign_buffers(through(
        check_loops, loops, accumulate_in_place, fuse, copy_elision, fuse_into_exchange)))


@spmd.program(mesh=("stage",))
def four():
    h = spmd.input("h", (64, 64), np.float64)

    @spmd.shard_map(mesh="stage", out_layouts=("stage", None, None))
    def body(h):
        return spmd.switch(spmd.axis_index("stage"), [stage(n) for n in WIDTHS], h)[None]

    return body(h)


def test_a_rank_has_the_memory_of_its_largest_stage(tmp_path) -> None:
    """Two buffers of the widest stage, what goes in and what comes out: not those of all stages."""
    h = np.random.default_rng(0).normal(size=(64, 64))
    image = spmd.build(four)
    found = rank_bytes(image, tmp_path / "four.img", h=h)
    assert found == 2 * 64 * max(WIDTHS) * 8 + 2 * 64 * 64 * 8
    results = [stage(n)(h) for n in WIDTHS]
    close(image, lambda n: np.stack([results[min(k, 3)] for k in range(n)]), (1, 2, 3, 4, 6), h=h)


@spmd.program(mesh=("stage",))
def nested():
    """A stage is a branch itself, on what its data say."""
    h = spmd.input("h", (64, 64), np.float64)

    def either(small, large):
        def run(h):
            before = np.tanh(h @ np.ones((64, small)) * 0.01)
            return spmd.cond(np.sum(before) > 0, stage(small), stage(large), h) + before[:, :1]
        return run

    @spmd.shard_map(mesh="stage", out_layouts=("stage", None, None))
    def body(h):
        arms = [either(100, 300), either(500, 200)]
        return spmd.switch(spmd.axis_index("stage") % 2, arms, h)[None]

    return body(h)


def test_branches_in_arms(tmp_path) -> None:
    """Memory of an arm's own lies beside the memory of the arms of a branch in it."""
    image = spmd.build(nested)
    around = overlays(lower(nested.graph({})).finished).around
    assert sorted(map(bool, around)) == [False] * 2 + [True] * 4
    for sign in (1, -1):
        h = sign * np.abs(np.random.default_rng(1).normal(size=(64, 64)))
        close(image, lambda n, h=h: _nested(h, n), (1, 2, 3), h=h)
    found = rank_bytes(image, tmp_path / "nested.img", h=h)
    assert found < 64 * 8 * (2 * 500 + 500 + 3 * 64 + 16)


def _nested(h, n):
    pairs = ((100, 300), (500, 200))
    found = []
    for k in range(n):
        small, large = pairs[k % 2]
        before = np.tanh(h @ np.ones((64, small)) * 0.01)
        found.append(stage(small if np.sum(before) > 0 else large)(h) + before[:, :1])
    return np.stack(found)


@spmd.program(mesh=("data", "stage"))
def summed():
    """Ranks in different arms exchange with those that are in the same one."""
    h = spmd.input("h", (6, 64, 64), np.float64)

    def stage_of(width):
        def run(h):
            for _ in spmd.range(3):
                total = spmd.psum(stage(width)(h), "data")
                near = spmd.ppermute(total * 0.5, "data", shift=1)
                h = np.tanh(total + near)
            return h
        return run

    @spmd.shard_map(mesh=("data", "stage"), in_layouts=("data", None, None),
                    out_layouts=("stage", "data", None, None))
    def body(h):
        arms = [stage_of(n) for n in WIDTHS]
        return spmd.switch(spmd.axis_index("stage"), arms, np.sum(h, axis=0))[None, None]

    return body(h)


def test_arms_that_exchange(tmp_path) -> None:
    h = np.random.default_rng(2).normal(size=(6, 64, 64)) * 0.1
    image = spmd.build(summed)
    for data, stages in ((1, 1), (2, 4), (3, 2), (1, 4), (3, 5)):
        out = image.run(mesh={"data": data, "stage": stages}, ranks=data * stages, h=h)
        np.testing.assert_allclose(out, _summed(h, data, stages), rtol=1e-9, atol=1e-9)
    assert rank_bytes(image, tmp_path / "summed.img", h=h) < 64 * 8 * (3 * max(WIDTHS) + 64 * 14)


def _summed(h, data, stages):
    found = []
    for k in range(stages):
        parts = [np.sum(part, axis=0) for part in np.array_split(h, data)]
        for _ in range(3):
            total = sum(stage(WIDTHS[min(k, 3)])(part) for part in parts)
            parts = [np.tanh(total + 0.5 * total) for _ in parts]
        found.append(np.stack(parts))
    return np.stack(found)


@spmd.program(mesh=("r",))
def kept():
    """Keeps arrays that only one arm reads and writes, over turns in which other arms run."""
    x = spmd.input("x", (32, 32), np.float64)
    mine, other = np.zeros((32, 32)), np.zeros((32, 32))
    total = np.zeros((32, 32))
    for k in spmd.range(9):
        if k % 3 == 0:
            mine = mine @ x + 1
            total = total + np.cumsum(mine[::-1], axis=0)
        elif k % 3 == 1:
            other = other + np.cumsum(x, axis=1) * k
            total = total - other[::-1]
        else:
            total = np.tanh(total @ x) + mine
    return total


def test_what_is_carried_lies_by_itself() -> None:
    x = np.random.default_rng(3).normal(size=(32, 32)) * 0.1
    wanted = kept.eager(x=x)
    close(spmd.build(kept), lambda n: wanted, (1, 2, 3, 5), x=x)


# ---- a checker finds a buffer in the wrong overlay -----------------------------------------------


def in_arm(given, buffer, arm):
    """Return what is given with a buffer in another arm."""
    buffers = tuple(replace(b, arm=arm) if b is buffer else b for b in given.buffers)
    return replace(given, buffers=buffers,
                   of={v: buffers[b.number] for v, b in given.of.items()})


def test_memory_of_an_arm_that_is_read_outside_is_refused() -> None:
    """Each buffer but those of arms, put into an arm: whoever reads it elsewhere finds nothing."""
    given = placed_of(four)
    check_memory(given, to_plan(given))
    refused = 0
    for buffer in given.buffers:
        if buffer.arm:
            continue
        wrong = in_arm(given, buffer, 1)
        with pytest.raises(InternalError):
            check_memory(wrong, to_plan(wrong))
        refused += 1
    assert refused >= 2


def test_memory_of_a_stretch_that_is_needed_behind_it_is_refused() -> None:
    """The verifier refuses to place what loops carry between stretches of a program into one of
    them."""
    given = placed_of(unequal(16, 4, 8, True)[0])
    check_memory(given, to_plan(given))
    stretches = list(given.arms.stretches.values())
    assert len({b.arm for b in given.buffers} & set(stretches)) >= 3
    carried = {given.of[v] for op in given.loops.module.body.ops if isinstance(op.kind, Loop)
               for v in op.operands if op is not given.loops.module.body.ops[-1]}
    assert len(carried) >= 3
    for buffer in carried:
        for arm in stretches:
            wrong = in_arm(given, buffer, arm)
            with pytest.raises(InternalError):
                check_memory(wrong, to_plan(wrong))

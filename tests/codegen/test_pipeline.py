"""The passes as they run: what is recorded of them, and builds that leave one out."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen import compile as compiler
from codegen.compile import NEEDED, OPTIMISATIONS, build, lower, recorded
from codegen.errors import UsageError
from codegen.ir.graph import Module, Region
from codegen.ir.structure import alike, size
from spmd.image import Image
from spmd.launch import loader
from tests.codegen import sample_programs


@spmd.program(mesh=("r",))
def smooth(n: int = 40):
    steps = spmd.scalar("steps", 4)
    u = spmd.input("u", (n, 3), np.float64, layout=("r", None))
    for _ in spmd.range(steps):
        v = u.copy()
        v[1:-1] = (u[:-2] + u[1:-1] + u[2:]) / 3
        u = v
    return {"u": u, "mean": np.mean(u, axis=0), "up": u + 1, "down": u - 1}


@spmd.program(mesh=("r",))
def diagonal(n: int = 2000):
    """Every turn reads an element of its own row: the pass fetch_ahead has something to do."""
    a = spmd.input("a", (n, n), np.float64, layout=("r", None))
    total = 0.0
    for i in spmd.range(n):
        total += np.tanh(a[i, i])
    return a + total


def changed(program: Any, without: tuple[str, ...] = ()) -> dict[str, bool]:
    return {row.name: row.changed for row in recorded(program, {}, without=without)[0]}


def test_a_graph_that_is_captured_again_is_alike() -> None:
    first, second = sample_programs.branches.capture(), sample_programs.branches.capture()
    assert first is not second and first.body.ops[0].results != second.body.ops[0].results
    assert alike(first, second) and alike(lower(first).finished, lower(second).finished)
    assert size(first) == size(second) and size(first)["ops"] > 0


def test_an_op_more_a_value_less_or_another_number_is_not_alike() -> None:
    graph = smooth.capture()

    def other(body: Region) -> Module:
        return replace(graph, body=body)

    assert alike(graph, other(replace(graph.body)))
    assert not alike(graph, other(replace(graph.body, ops=graph.body.ops[1:])))
    assert not alike(graph, other(replace(graph.body, results=graph.body.results[::-1])))
    assert not alike(smooth.capture(n=40), smooth.capture(n=41))


def test_values_that_change_places_are_not_alike() -> None:
    @spmd.program(mesh=("r",))
    def less(swapped: bool = False):
        x, y = (spmd.input(k, (4,), np.float64) for k in "xy")
        return y - x if swapped else x - y

    assert alike(less.capture(), less.capture())
    assert not alike(less.capture(), less.capture(swapped=True))


def test_every_pass_of_a_build_has_a_row_in_order() -> None:
    rows, tracing, lowering = recorded(smooth, {})
    names = [row.name for row in rows]
    assert {*names} <= {*OPTIMISATIONS, *NEEDED}
    assert {*OPTIMISATIONS} <= {*names}
    for first, second in (("loop_motion", "partition"), ("partition", "to_loops"),
                          ("fuse", "assign_buffers"), ("assign_buffers", "to_plan"),
                          ("to_plan", "hoist_formulas"), ("hoist_formulas", "emit")):
        assert names.index(first) < names.index(second)
    inner = sum(row.seconds for row in rows if not row.depth)
    assert tracing > 0 and 0 < inner <= lowering


def test_changes_are_counted_where_the_program_has_them() -> None:
    rows = {row.name: row for row in recorded(smooth, {})[0]}
    assert rows["partition"].changed and rows["partition"].after["exchanges"] > 0
    assert not rows["reshape_chains"].changed and not rows["matching"].changed
    fused = rows["fuse"]
    assert fused.changed and fused.after["acts"] < fused.before["acts"]
    assert changed(smooth, without=("fuse",))["fuse"] is False


def test_what_a_pass_tries_and_gives_up_is_no_change() -> None:
    """The partitions of forms that were weighed are rows inside the pass that weighed them."""
    rows = recorded(diagonal, {})[0]
    fetch = next(k for k, row in enumerate(rows) if row.name == "gather_before_loop")
    assert rows[fetch].changed
    inside = [row.name for row in rows[fetch + 1 :] if row.depth]
    assert inside[:1] == ["partition"]
    outer = next(row for row in rows if row.name == "partition" and not row.depth)
    assert not outer.changed  # its Program is not the one that goes on
    assert next(row for row in rows if row.name == "partition" and row.depth).changed


def test_a_recording_does_not_change_the_image() -> None:
    before = build(smooth, {})
    recorded(smooth, {})
    assert build(smooth, {}) == before


@pytest.mark.parametrize("name", OPTIMISATIONS)
def test_without_an_optimisation_the_results_are_the_same(name: str) -> None:
    """A sample; make figures ARGS=passes says which pass changes which program."""
    u = np.random.default_rng(0).random((40, 3))
    wanted = smooth.eager(u=u.copy())
    image = Image(loader.check(build(smooth, {}, without=(name,))))
    for ranks in (1, 3):
        found = image.run(ranks=ranks, u=copy.deepcopy(u))
        for key, want in wanted.items():
            np.testing.assert_allclose(found[key], want, rtol=1e-12, err_msg=key)


def test_what_a_build_needs_cannot_be_left_out() -> None:
    with pytest.raises(UsageError, match="the pass partition cannot be left out"):
        build(smooth, {}, without=("partition",))
    with pytest.raises(UsageError, match="there is no pass 'fusse'") as refused:
        build(smooth, {}, without=("fuse", "fusse"))
    assert "fold_casts" in str(refused.value) and "--without fuse" in str(refused.value)
    assert not {*OPTIMISATIONS} & {*NEEDED}


def test_passes_are_named_by_their_files() -> None:
    rooms = re.compile(r"from codegen\.(?:checks|graph|layouts|loops|plan)\.(\w+) import")
    with open(compiler.__file__) as file:
        imported = {*rooms.findall(file.read())}
    assert {*OPTIMISATIONS, *NEEDED} - imported == {"emit"}

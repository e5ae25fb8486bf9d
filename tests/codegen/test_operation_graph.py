"""What operations wait for: that it is enough is run, that nothing of it is too much is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.conflicts import check_conflicts
from codegen.compile import Levels, lower
from codegen.describe import manifest_of
from codegen.errors import InternalError
from codegen.graph.checkpoint_locations import checkpoint_locations
from codegen.ir.overlays import overlays
from codegen.ir.plan import Exchange, Let, Phase, Plan, Point, Take
from codegen.ir.steps import operations, walk_steps
from codegen.plan.operation_graph import OperationRow, operation_graph
from spmd import nn, optim
from tests.codegen import sample_programs, test_self_exchange_elision
from tests.codegen.shuffled_rows import image_of, shuffled
from tests.codegen.test_mutations import PROGRAMS
from tests.spmd.walks import Walks


@spmd.program(mesh=("x", "y"), layout={"batch": "x", "heads": "y"})
def attends(steps: int = 2):
    """A layer of attention, trained: heads are split."""
    width, heads = 16, spmd.Dim("heads", 4)
    x = spmd.random.normal(1, (spmd.Dim("batch", 6), 8, width))
    w = {name: spmd.random.normal(k, (width, heads, 4)) * 0.3 for k, name in enumerate("qkv")}
    w["out"] = spmd.random.normal(9, (heads, 4, width)) * 0.3

    def loss(w):
        query, key, value = (nn.dense(x, w[name]) for name in "qkv")
        return np.mean((nn.dense(nn.attention(query, key, value), w["out"], axes=2) - x) ** 2)

    tx = optim.adam(1e-2)
    state = tx.init(w)
    losses = spmd.zeros(steps)
    for k in spmd.range(steps):
        losses[k], grads = spmd.value_and_grad(loss)(w, )
        updates, state = tx.update(grads, state, w)
        w = optim.apply_updates(w, updates)
        spmd.print("loss {}", losses[k])
    return {"losses": losses, **w}


@spmd.program(mesh=("r",))
def chained():
    """Each line needs the one before."""
    x = spmd.input("x", (12,), layout=("r",), default=lambda i: i)
    for _ in spmd.range(3):
        x = np.cumsum(x) / 10
        x = x - np.max(x)
        x = x[::-1].copy()
    return x


@spmd.program(mesh=("r",))
def seen():
    """Prints, checks and saves values, and sends messages to a partner that the program
    computes."""
    x = spmd.input("x", (12,), layout=("r",), default=lambda i: i)
    a, b = np.sin(x), np.cos(x)
    for _ in spmd.range(3):
        sums = np.sum(a), np.sum(b)
        spmd.print("a {}", sums[0])
        spmd.print("b {}", sums[1])
        assert sums[1] < 100
        a, b = a + 1, b * 2
        spmd.save("frames", a)
    far = np.sum(x.astype(np.int64)) % 5

    @spmd.shard_map(out_layouts=("r",))
    def moved(x):
        return spmd.ppermute(np.sum(x)[None], "r", shift=far + 1)

    return a, b, moved(x)


def _sorted(x: Any) -> Any:
    return np.sort(x)


@spmd.program(mesh=("r",))
def branching():
    """Loops and branches that only compute, in one phase, and those around exchanges."""
    x = spmd.input("x", (10, 4), layout=("r", None), default=lambda i, j: i * j % 7)
    y, total = x * 2, np.zeros(4)
    for k in spmd.range(4):
        if np.sum(x[:, 0]) > k:
            y = y + x
            total = total + np.sum(y, axis=0)
        else:
            y, x = y - 1, x + np.max(y)
        total[k] = total[k] + k
    return {"y": y, "total": total, "sorted": _sorted(x.T.copy())}


@spmd.program(mesh=("r",))
def overlying():
    """Branches one after the other, of which one prints and one exchanges: what their arms alone
    use lies in one memory."""
    which = spmd.scalar("which", 1)
    a = spmd.input("a", (12,), layout=("r",), default=lambda i: i)
    b = spmd.input("b", (12,), layout=(None,), default=lambda i: i * i % 7)
    if which > 0:
        first = np.sum(a * a)
    else:
        first = np.max(a)
    if which > 1:
        second = np.sort(b) * 3
    else:
        second = np.sort(b)[::-1] + np.cumsum(b)
        spmd.print("which {}", which)
    return {"first": first, "second": second}


@spmd.program(mesh=("r",))
def shows():
    """Exchanges an array that one rank reads in place, without a copy, and then overwrites it."""
    m = spmd.input("m", (6, 10), layout=("r", None), default=lambda i, j: i + j)
    for k in spmd.range(3):
        down = m.relayout((None, "r"))
        sums = np.sum(np.sin(down), axis=1)
        m[:, k] = np.arange(6) * k
        m[0] += sums[0]
    return m


@spmd.program(mesh=("r",))
def gives_up():
    """An exchange is the last to read what something else reads too."""
    x = spmd.input("x", (10,), layout=("r",), default=lambda i: i)

    @spmd.shard_map(out_layouts=(("r",), (None,)))
    def local(a):
        part = np.arange(5) * np.sum(a)
        return a + np.cumsum(part)[2], spmd.psum(part, "r")

    return local(x)


@spmd.program(mesh=("data",))
def sharded(n: int = 6):
    """Reads a view of a buffer in a loop that does not touch the buffer itself."""
    x = spmd.input("x", (n, 4), np.float64, layout=("data", None), default=lambda i, j: i)
    w = np.ones(4)
    tx = optim.sharded(optim.sgd(0.1, momentum=0.9), "data")
    state = tx.init(w)
    for _ in spmd.range(2):
        grads = spmd.grad(lambda w: np.mean(x @ w))(w)
        updates, state = tx.update(grads, state, w)
        w = optim.apply_updates(w, updates)
    return w, state[0].trace


@spmd.kernel
def doubles(x, out):
    for i in range(x.shape[0]):
        out[i] = 2 * x[i]


@spmd.program(mesh=("r",))
def calls():
    """Two calls of a kernel, of which the second needs nothing of the first."""
    x = spmd.input("x", (12,), layout=("r",), default=lambda i: i)
    y = np.cumsum(x)
    return doubles(x, out=spmd.like(x)), doubles(y, out=spmd.like(y))


@spmd.program(mesh=("r",))
def batches():
    """Batches that lie where they came until the next one is taken."""
    feed = spmd.feed(x=spmd.spec((6, 4), np.float64))
    one = feed.next().x
    squares, largest = np.sum(one * one, axis=0), np.max(one, axis=1)
    other = feed.next().x
    sums, total = np.sum(other, axis=0), np.zeros(4)
    for batch in feed:
        total = total + np.sum(batch.x, axis=0)
    return {"squares": squares, "largest": largest, "sums": sums, "total": total}


PLANS = {
    **PROGRAMS, "attends": attends, "chained": chained, "seen": seen, "branching": branching,
    "overlying": overlying,
    "one_rank_groups": test_self_exchange_elision.program, "fed": sample_programs.fed,
    "fed_ranks": sample_programs.fed_ranks,
    "Walks": Walks, "shows": shows, "gives_up": gives_up,
    "sharded": sharded, "calls": calls, "batches": batches,
}
_levels: dict[str, Levels] = {}


def levels_of(name: str) -> Levels:
    if name not in _levels:
        graph = PLANS[name].graph({}, ())
        _levels[name] = lower(checkpoint_locations(graph) if name == "seen" else graph)
    return _levels[name]


def row_at(rows: list[OperationRow], line: str) -> list[OperationRow]:
    return [row for row in rows if row.place and line in row.place.source_line()]


# ---- what the graph says -------------------------------------------------------------------------


def test_queries_keys_and_values_are_streams_of_their_own() -> None:
    rows = levels_of("attends").operations
    found = [row for row in row_at(rows, "query, key, value = ") if row.kind == "library"][:3]
    assert len({row.stream for row in found}) == 3
    assert len({row.waits for row in found}) == 1
    assert len({frozenset(row.reads) for row in found}) == 3
    phases = sum(isinstance(step, Phase) for step in operations(levels_of("attends").plan.steps))
    assert len([row for row in rows if row.kind in ("nest", "library")]) > 3 * phases


def test_libraries_and_kernels_name_their_rows_and_buffers() -> None:
    for name, table, kind in (("attends", "libraries", "library"), ("calls", "kernels", "kernel")):
        levels = levels_of(name)
        manifest = manifest_of(levels.plan, "x86-64", levels.finished, levels.operations)
        rows = [row for row in levels.operations if row.kind == kind]
        (said,) = manifest[table]
        assert said["rows"] == [row.number for row in rows] and len(rows) > 1
        assert set(said["buffers"]) == set().union(*(row.reads | row.writes for row in rows))
        assert manifest["streams"] == 1 + max(row.stream for row in levels.operations)


def test_a_chain_is_one_stream() -> None:
    rows = levels_of("chained").operations
    (loop,) = (row for row in rows if row.kind == "loop" and row.region is None)
    inside = [row for row in rows if row.region and row.region[0] == loop.number]
    assert len(inside) > 4 and {row.stream for row in inside} == {0}
    assert [row.waits for row in inside[1:]] == [(row.number,) for row in inside[:-1]]


def test_exchanges_keep_one_order() -> None:
    """The exchanges of one region wait for each other, whatever they move."""
    for name in PLANS:
        rows = levels_of(name).operations
        for region in {row.region for row in rows}:
            before: dict[int, set[int]] = {}
            chain: list[int] = []
            for row in (row for row in rows if row.region == region):
                before[row.number] = set(row.waits).union(*(before[k] for k in row.waits))
                if row.kinds.intersection((Exchange, Take)):
                    assert before[row.number].issuperset(chain[-1:]), (name, row.number)
                    chain.append(row.number)


@pytest.mark.parametrize("name", PLANS)
def test_rows_are_what_the_plan_says(name: str) -> None:
    levels = levels_of(name)
    rows, steps = levels.operations, operations(levels.finished.steps)
    assert [row.number for row in rows] == list(range(len(rows)))
    assert {row.step for row in rows} - {None} == set(range(len(steps)))
    for row in rows:
        inner = [one for one in rows if one.region and one.region[0] == row.number]
        assert row.reads.isdisjoint(row.writes)
        assert all(row.writes >= one.writes for one in inner)
        assert all(row.reads | row.writes >= one.reads for one in inner)
        assert all(rows[k].region == row.region and k < row.number for k in row.waits)


# ---- that it is enough ---------------------------------------------------------------------------


def results(image: Any, ranks: int) -> dict[str, Any]:
    given = image.manifest["inputs"]
    arrays = {a["name"]: np.random.default_rng(k).normal(size=a["shape"])
              for k, a in enumerate(given) if not a["default"]}
    if image.manifest["feeds"]:
        arrays["feed"] = [{"x": np.arange(24.0).reshape(6, 4) + k} for k in range(5)]
    return image.run(ranks=ranks, **arrays)


@pytest.mark.parametrize(("name", "meshes"), [
    ("attends", (1, 2, 4)), ("branching", (1, 3)), ("one_rank_groups", (1, 2)), ("moves", (1, 4)),
    ("branches", (3,)), ("shows", (1, 2)), ("gives_up", (1, 3)), ("batches", (1, 3)),
])
def test_any_order_that_the_graph_allows_gives_the_same(
    name: str, meshes: tuple[int, ...]
) -> None:
    levels = levels_of(name)
    plain = image_of(levels, levels.finished)
    wanted = {ranks: results(plain, ranks) for ranks in meshes}
    found = (shuffled(levels.finished, levels.operations, seed) for seed in range(20))
    orders = {tuple(order): plan for plan, order in found}
    assert len(orders) > 1
    for plan in list(orders.values())[:3]:
        check_conflicts(plan, operation_graph(plan))
        image = image_of(levels, plan)
        for ranks in meshes:
            _same(results(image, ranks), wanted[ranks])


def _same(a: Any, b: Any) -> None:
    a, b = (x if isinstance(x, dict) else dict(enumerate(x)) if isinstance(x, tuple) else {0: x}
            for x in (a, b))
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], str(key))


def test_a_lost_wait_shows_when_it_runs() -> None:
    """The test above is one that fails: of orders without some waits, one gives something else."""
    levels = levels_of("attends")
    wanted = results(image_of(levels, levels.finished), 2)
    for seed in range(10):
        rows = [replace(row, waits=()) if row.kind == "library" else row
                for row in levels.operations]
        found = results(image_of(levels, shuffled(levels.finished, rows, seed)[0]), 2)
        if any((found[key] != wanted[key]).any() for key in wanted):
            return
    pytest.fail("no order without the waits of products gave another result")


# ---- that the checker sees what is missing -------------------------------------------------------


def refused(plan: Plan, rows: list[OperationRow]) -> bool:
    try:
        check_conflicts(plan, rows)
    except InternalError as error:
        assert "the compiler broke a rule of its own" in error.message
        return True
    return False


def without(rows: list[OperationRow], number: int, wait: int) -> list[OperationRow]:
    left = tuple(k for k in rows[number].waits if k != wait)
    return [*rows[:number], replace(rows[number], waits=left), *rows[number + 1:]]


def waits(rows: list[OperationRow]) -> Iterator[tuple[int, int]]:
    return ((row.number, k) for row in rows for k in row.waits)


@pytest.mark.parametrize("name", PLANS)
def test_every_wait_that_is_left_out_is_missed(name: str) -> None:
    """So none is more than is needed either."""
    plan, rows = levels_of(name).finished, levels_of(name).operations
    check_conflicts(plan, rows)
    for number, wait in waits(rows):
        assert refused(plan, without(rows, number, wait)), (number, wait)


def _why(row: OperationRow, other: OperationRow, plan: Plan) -> Iterator[str]:
    """Why a row waits for another one."""
    shows = {(s.pull_into.buffer.number, s.pull_from.buffer.number) for s in walk_steps(plan.steps)
             if isinstance(s, Exchange) and s.shifts and s.pull_into and s.pull_from}
    if row.reads & other.writes:
        yield "reads what was written"
    if row.writes & other.reads:
        yield "writes what was read"
    if row.writes & other.writes:
        yield "writes what was written"
    if other.kinds.intersection((Point,)):
        yield "is behind a point"
    if isinstance(other.act, Let):
        yield "uses an integer that was computed"
    if isinstance(row.act, Exchange) and row.act.last and row.act.pull_from and (
            row.act.pull_from.buffer.number in other.reads):
        yield "gives up what was read"
    if any(into in other.reads and source in row.writes for into, source in shows):
        yield "writes what is shown"
    over = overlays(plan)
    if any(over.share_memory(over.of[a], over.of[b])
           for a in row.reads | row.writes for b in other.reads | other.writes):
        yield "lies where others lay"


def test_every_kind_of_conflict_is_among_those() -> None:
    """Every reason to wait occurs, and for some of them a pair waits for this reason alone."""
    every, alone = set(), set()
    for name in PLANS:
        rows = levels_of(name).operations
        for number, wait in waits(rows):
            why = frozenset(_why(rows[number], rows[wait], levels_of(name).finished))
            kinds = frozenset(row.kind for row in (rows[number], rows[wait]))
            every |= why
            alone |= why if len(why) == 1 else {("order", kinds)} if not why else set()
    assert every == {
        "reads what was written", "writes what was read", "writes what was written",
        "is behind a point", "uses an integer that was computed", "gives up what was read",
        "writes what is shown", "lies where others lay"}
    assert alone >= {
        "reads what was written", "writes what was read", "writes what was written",
        "uses an integer that was computed", "writes what is shown", "lies where others lay",
        ("order", frozenset(["print"])),
        ("order", frozenset(["exchange"]))}


def _changed(rows: list[OperationRow], number: int, **fields: Any) -> list[OperationRow]:
    return [*rows[:number], replace(rows[number], **fields), *rows[number + 1:]]


@pytest.mark.parametrize("name", ["attends", "branching", "Walks"])
def test_rows_that_say_something_else_than_the_plan_are_refused(name: str) -> None:
    plan, rows = levels_of(name).finished, levels_of(name).operations
    assert refused(plan, rows[:-1]) and refused(plan, [*rows, rows[-1]])
    for row in rows:
        k = row.number
        for buffer in row.reads | row.writes:
            assert refused(plan, _changed(rows, k, reads=row.reads - {buffer},
                                          writes=row.writes - {buffer}))
        for buffer in row.writes:
            assert refused(plan, _changed(rows, k, reads=row.reads | {buffer},
                                          writes=row.writes - {buffer}))
        assert refused(plan, _changed(rows, k, waits=(k,)))
        assert refused(plan, _changed(rows, k, act=rows[k - 1].act))
        streams = [one.stream for one in rows[:k] if one.region == row.region]
        if not row.waits and streams:
            assert refused(plan, _changed(rows, k, stream=streams[-1]))


def test_samples_have_what_they_are_for() -> None:
    steps = {name: list(walk_steps(levels_of(name).finished.steps)) for name in PLANS}
    assert any(isinstance(step, Let) for step in steps["seen"])
    assert any(isinstance(step, Point) for step in steps["seen"])
    assert any(isinstance(s, Exchange) and s.shifts for s in steps["one_rank_groups"])
    assert any(isinstance(s, Exchange) and s.swaps for s in steps["one_rank_groups"])
    assert any(isinstance(step, Take) for step in steps["fed"])
    assert {row.kind for name in PLANS for row in levels_of(name).operations} >= {
        "nest", "library", "kernel", "exchange", "loop", "branch", "default", "let", "print",
        "expect", "save", "point", "take", "more", "send", "entries"}

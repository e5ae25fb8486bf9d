"""What spmd.remat keeps, by its policies: the same gradients, fewer products, so much memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.check_graph import check
from codegen.compile import lower
from codegen.describe import manifest_of
from codegen.ir.graph import walk
from codegen.ir.graph_text import module_text
from codegen.ops import Map, MatMul
from codegen.oracle.interpret import run

# mypy: ignore-errors

ROWS, WIDTH = 6, 4
KEPT = spmd.checkpoint_policies
POLICIES = {
    "nothing": None,
    "everything": KEPT.everything_saveable,
    "dots": KEPT.dots_saveable,
    "names": KEPT.save_only_these_names("act"),
    "other names": KEPT.save_anything_except_these_names("act"),
}
ARRAY = ROWS * WIDTH * 8  # bytes
# Of each: products in a scan's program; bytes of each turn, beside what it begins with.
EXPECTED = {"nothing": (4, 0), "everything": (3, 2 * ARRAY), "dots": (3, ARRAY),
            "names": (3, ARRAY), "other names": (3, 2 * ARRAY)}


def cell(w, h):
    act = spmd.checkpoint_name(np.tanh(h @ w), "act")
    return np.sin(act) * act + h


def scanned(f, w, x, turns=3):
    return np.sum(spmd.scan(lambda h, _: (f(w, h), None), x, length=turns)[0] ** 2)


def unrolled(f, w, x):
    for _ in range(3):
        x = f(w, x)
    return np.sum(x**2)


def used_after(f, w, x):
    """The turn goes on with what was kept, in branches and loops."""
    for k in spmd.range(3):
        y = f(w, x) * 0.5
        for _ in spmd.range(k + 1):
            y = np.sin(f(w, y))
        x = y + f(w, x) if k < 2 else y * x
    return np.sum(x * x)


def counted(f, w, x):
    """Apply f as many times as the run's scalar `steps` says."""
    for _ in spmd.range(spmd.scalar("steps", 3)):
        x = f(w, x)
    return np.sum(x**2)


def of_ranks(f, w, x):
    @spmd.shard_map(mesh="r", in_layouts=((None, None), ("r", None)), out_layouts=())
    def mapped(w, x):
        for _ in spmd.range(2):
            x = f(w, x) * spmd.psum(np.sum(x), "r")
        return spmd.psum(np.sum(x), "r")

    return mapped(w, x)


def curved(f, w, x):
    """The derivative of a gradient."""
    along = spmd.grad(lambda w: unrolled(f, w, x) + scanned(f, w, x))
    return np.sum(spmd.jvp(along, (w,), (w * w,))[1] ** 2)


BODIES = (scanned, unrolled, used_after, counted, of_ranks, curved)


def program_of(loss, mesh="r"):
    @spmd.program(mesh=mesh)
    def gradient():
        w = spmd.input("w", (WIDTH, WIDTH), np.float64, layout=(None, None))
        x = spmd.input("x", (ROWS, WIDTH), np.float64, layout=("r", None))
        return loss(w, x)

    return gradient


def rematted(policy: str) -> Any:
    return spmd.remat(cell, policy=POLICIES[policy])


def test_gradients_do_not_depend_on_what_is_kept():
    def every(w, x):
        return {body.__name__: {
            name: spmd.grad(lambda w, b=body, f=f: b(f, w, x))(w)
            for name, f in (("plain", cell), *((name, rematted(name)) for name in POLICIES))
        } for body in BODIES}

    random = np.random.default_rng(1)
    given = {"w": random.normal(size=(WIDTH, WIDTH)) * 0.4, "x": random.random((ROWS, WIDTH))}
    graph = check(program_of(every).graph({}))
    made = run(graph, {"r": 3}, given)
    for name in made:
        body, policy = name.split(".")
        np.testing.assert_allclose(made[name], made[f"{body}.plain"], 1e-12, err_msg=name)
    assert len(made) == len(BODIES) * (1 + len(POLICIES))


def bytes_of(policy: str, turns: int) -> int:
    f = rematted(policy)
    made = program_of(lambda w, x: spmd.grad(lambda w: scanned(f, w, x, turns))(w), {"r": 1})
    manifest = manifest_of(lower(made.graph({})).plan, "native")
    return sum(b["bytes"] for b in manifest["buffers"])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loop_keeps_what_its_policy_says(policy):
    """Twice as many turns take as much more memory as is kept of a turn."""
    products, beside = EXPECTED[policy]
    f = rematted(policy)
    graph = program_of(lambda w, x: spmd.grad(lambda w: scanned(f, w, x))(w)).graph({})
    assert sum(isinstance(op.kind, MatMul) for op in walk(graph.body)) == products
    assert bytes_of(policy, 20) - bytes_of(policy, 10) == 10 * (ARRAY + beside)
    text = module_text(graph)
    each = ARRAY + beside
    assert f"scan: {each} bytes a turn, {3 * each:,} in 3 turns" in text.replace(
        f"kept of each turn of the loop at line {scanned.__code__.co_firstlineno + 1}", "scan")


def test_what_is_kept_to_compute_again_is_shown():
    f = rematted("names")
    graph = program_of(lambda w, x: spmd.grad(lambda x: np.sum(f(w, x)))(x)).graph({})
    kept = module_text(graph).split("kept to compute again")[1].splitlines()
    assert kept[0].endswith(f": {ARRAY + WIDTH * WIDTH * 8} bytes") and len(kept) == 3
    assert f'  %act_2: float64[6, 4] over ("r", None): {ARRAY} bytes' in kept


def test_a_policy_holds_for_the_gradient_of_a_change_too():
    f = rematted("names")
    change = lambda w, x: spmd.jvp(lambda x: f(w, x), (x,), (x,))[1]
    graph = program_of(lambda w, x: spmd.grad(lambda x: np.sum(change(w, x)))(x)).graph({})
    kept = module_text(graph).split("kept to compute again")[1]
    assert f'  %act_2: float64[6, 4] over ("r", None): {ARRAY} bytes' in kept


def test_policies_that_keep_nothing_known_are_explained():
    only = KEPT.save_only_these_names("gate")
    f = spmd.remat(cell, policy=only)
    with pytest.raises(spmd.UsageError, match='keeps "gate"(.|\\n)*expected(.|\\n)*found: *"act"'):
        program_of(lambda w, x: spmd.grad(lambda w: unrolled(f, w, x))(w)).capture()
    with pytest.raises(spmd.UsageError, match="policy is none(.|\n)*everything"):
        spmd.remat(cell, policy="everything")


def test_a_loop_of_unknown_length_runs_again_where_parts_of_it_begin(monkeypatch):
    """A loop of 35 parts of two turns each runs forward once, recomputes the first turn of each
    part, and runs backward; it prints its messages once."""
    def loss(x, steps):
        for k in spmd.range(steps):
            x = np.tanh(x) * 1.5
            spmd.print("turn {}", k)
        return np.sum(x)

    @spmd.program(mesh=("r",))
    def counted():
        x = spmd.input("x", (ROWS,), np.float64, layout=("r",))
        y, back = spmd.vjp(lambda x: loss(x, spmd.scalar("steps", 70)), x)
        return back(np.float64(1))[0]

    times, said = [], []
    reference = Map.reference
    monkeypatch.setattr(Map, "reference", lambda self, *given: (
        times.append(self.fn == "tanh"), reference(self, *given))[1])
    found = run(counted.graph({}), {"r": 1}, {"x": np.ones(ROWS)}, prints=said)
    assert (sum(times), len(said)) == (70 + 35 + 70, 70)
    x, g = np.ones(ROWS), np.ones(ROWS)
    for _ in range(70):
        g, x = g * 1.5 * (1 - np.tanh(x) ** 2), np.tanh(x) * 1.5
    np.testing.assert_allclose(next(iter(found.values())), g, 1e-10)

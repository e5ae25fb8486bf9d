"""Loop-invariant code motion: what turns make alike is made once, where that is legal and pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower, recorded
from codegen.graph.loop_motion import loop_motion
from codegen.ir.graph import Module, walk
from codegen.ops import Loop

N, TURNS = 60, 12


def matrix(d: Any) -> Any:
    return np.diag(d) + 0.5 * np.eye(N) + np.eye(N, k=1) + np.eye(N, k=-1)


def conjugate_gradients(b, d, turns=range):
    """Make the matrix anew in each turn."""
    x, r = np.zeros(N), b.copy()
    p, rs = r.copy(), r @ r
    for _ in turns(TURNS):
        ap = matrix(d) @ p
        alpha = rs / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        new = r @ r
        p = r + (new / rs) * p
        rs = new
    return x


def until_converged(b, d, turns=range):
    """Make the matrix anew in each turn of a loop that may make none."""
    x, k = b * 0.1, 0
    while np.max(np.abs(x)) > 0.05 and k < TURNS:
        x = x - 0.1 * (matrix(d) @ x)
        k += 1
    return x


def nested(b, d, turns=range):
    """Make a matrix that depends on the outer loop's counter in each turn of the inner one."""
    x = b.copy()
    for i in turns(3):
        for _ in turns(4):
            x = x / np.max(np.abs(x)) + (matrix(d) * (i + 1.0)) @ x
    return x


def changed(b, d, turns=range):
    """Make arrays that differ from turn to turn, or that a turn writes over, or reads a row of."""
    x, y = b.copy(), d.copy()
    for i in turns(N):
        work = np.eye(N) * 2.0 + np.diag(d)
        work[i] = x
        y = y + 0.001 * (work @ y)
        x = x + (np.diag(d) + np.eye(N))[i] * 0.1
        d = d * 1.01
    return x, y


def factored(b, d, turns=range):
    """Factor the same matrix in each turn: several results of one op."""
    x = b.copy()
    for _ in turns(3):
        q, r = np.linalg.qr(matrix(d))
        x = q.T @ x + 0.01 * (r @ x)
    return x


def program(body: Any, layout: Any = ("r",)) -> Any:
    @spmd.program(mesh=("r",))
    def kernel():
        b = spmd.input("b", (N,), np.float64, layout=layout)
        d = spmd.input("d", (N,), np.float64, layout=layout)
        return body(b, d, spmd.range)

    return kernel


def matrices_in_loops(graph: Module) -> list[str]:
    """Return the names of ops that compute an N by N matrix in the body of an innermost loop."""
    bodies = [op.regions[-1] for op in walk(graph.body) if isinstance(op.kind, Loop)]
    return [o.kind.name for body in bodies for o in body.ops if not o.regions
            for v in o.results if [str(e) for e in v.type.shape] == [str(N), str(N)]]


@pytest.mark.parametrize("body", [conjugate_gradients, until_converged])
def test_no_turn_makes_a_matrix_that_is_the_same_in_all_turns(body: Any):
    graph = program(body).graph({})
    assert {"scatter", "map"} <= {*matrices_in_loops(graph)}
    assert matrices_in_loops(loop_motion(graph)) == []


def test_a_matrix_moves_as_far_as_it_stays_the_same():
    """What depends on the outer counter stands in the outer loop, and the rest before both."""
    graph = loop_motion(program(nested).graph({}))
    (outer,) = [op for op in graph.body.ops if isinstance(op.kind, Loop)]
    (inner,) = [op for op in outer.regions[0].ops if isinstance(op.kind, Loop)]
    scatters = [op for op in walk(graph.body) if op.kind.name == "scatter"]
    assert len(scatters) == 1 and scatters[0] in graph.body.ops
    assert [op.kind.name for op in inner.regions[0].ops
            if op.results and op.result.type.ndim == 2 and op.kind.name == "scatter"] == []
    assert matrices_in_loops(replaced_body(graph, inner)) == []


def replaced_body(graph: Module, op: Any) -> Module:
    """Return a Graph that is one op."""
    return graph.with_body(graph.body.with_ops((op,)))


def test_what_a_turn_changes_stays_in_it():
    graph = program(changed).graph({})
    assert loop_motion(graph) is graph


def test_run_time_checks_stay_at_their_lines():
    graph = program(conjugate_gradients).graph({}, ("nan",))
    assert loop_motion(graph) is graph


def test_users_see_the_pass():
    rows, _, _ = recorded(program(conjugate_gradients), {})
    assert [row.changed for row in rows if row.name == "loop_motion"] == [True]


@pytest.mark.parametrize("layout", [("r",), None], ids=str)
@pytest.mark.parametrize("body", [
    conjugate_gradients, until_converged, nested, changed, factored])
@pytest.mark.filterwarnings("ignore::spmd.LayoutWarning")
def test_results_are_numpys_on_any_number_of_ranks(body: Any, layout: Any):
    random = np.random.default_rng(5)
    given = {"b": random.random(N), "d": 4 + random.random(N)}
    expected = body(*(v.copy() for v in given.values()))
    image = spmd.build(program(body, layout))
    for ranks in (1, 2, 3):
        np.testing.assert_allclose(image.run(ranks=ranks, **given), expected, rtol=1e-9)


def test_a_loop_that_makes_no_turn_leaves_its_arrays():
    given = {"b": np.full(N, 0.01), "d": np.full(N, 4.0)}
    image = spmd.build(program(until_converged))
    np.testing.assert_array_equal(image.run(ranks=2, **given), given["b"] * 0.1)


def test_lowering_keeps_the_matrix_before_the_loop():
    levels = lower(program(conjugate_gradients).graph({}))
    assert matrices_in_loops(levels.graph) == []

"""Mistakes in programs of which the message names the way out: what users wrote, and the words."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen import progress
from codegen.errors import SpmdError
from codegen.trace.program import Program

scipy_sparse = pytest.importorskip("scipy.sparse")
TABLE = np.arange(8.0)
SPARSE = scipy_sparse.csr_matrix(np.eye(8))


def x() -> Any:
    return spmd.input("x", (8,), np.float64, layout=("r",))


def appended() -> Any:
    out = [1]
    if x()[0] > 0:
        out.append(2)
    return x() * len(out)


def recursive() -> Any:
    def power(k: Any) -> Any:
        return 1 if k <= 0 else 2 * power(k - 1)

    return x() * power(spmd.scalar("k", 3))


def fields() -> Any:
    u = np.zeros(4, dtype=[("a", "f8"), ("b", "i4")])
    u["a"][0] = x()[0]
    return u["a"]


def masked_index() -> Any:
    places = spmd.input("places", (8,), np.uint32, layout=(None,))
    return x()[places[places > 2]]


def drawn() -> Any:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    return pyplot.plot(x())


def deleted() -> Any:
    y = x()
    del y[0]
    return y


def chosen() -> Any:
    name = "a"
    if x()[0] > 1:
        name = "b"
    return x() * (name == "a")


def first() -> Any:
    y, best = x(), None
    for i in spmd.range(3):
        if best is None or y[i] > best:
            best = y[i]
    return best


class Kept:
    def __init__(self) -> None:
        self.rows: list[Any] = []


def kept() -> Any:
    y, kept = x(), Kept()
    for i in spmd.range(3):
        kept.rows.append(y[i])
    return np.stack(kept.rows)


CASES: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: spmd.grad(np.sum)(spmd.nn.init.he_normal(0, (4, 4))),
     "this makes an initializer", "a second call: …()(0, (4, 4))"),
    (lambda: spmd.input("y", (8,), layout=("r",), default=lambda i: TABLE),
     "gives all elements", "default=lambda i: table[i]"),
    (drawn, "only the run knows", "draw what the image gives"),
    (recursive, "recursion whose end only the run knows", "spmd.range(n), or a while"),
    (fields, "an array with fields", "u[field].copy() for each field"),
    (lambda: spmd.input("s", (4,), [("a", "f8"), ("b", "i4")]), "is not an element type",
     "an array for each field: a, b"),
    (appended, '"out" grows, shrinks', "1 items in one arm, 2 in another"),
    (lambda: SPARSE @ x(), "an element of float64[8]", "np.add.at(y, A.row, A.data * x[A.col])"),
    (lambda: SPARSE.dot(x()), "sparse matrices are no arrays", "np.add.at(y, A.row"),
    (lambda: x() @ SPARSE, "sparse matrices are no arrays", "np.add.at(y, A.row"),
    (masked_index, "the length of x[mask]", "spmd.numpy.extract(mask, x, size=n) has a length"),
    (lambda: [v * 2 for v in x() if v > 2], "leaves items out by a test", "np.where(test, value"),
    (lambda: np.concatenate(x(), x()), "takes its arrays in one list", "np.concatenate([a, b])"),
    (lambda: x()[8 / 4], "only integers, slices", "i // 2 in place of i / 2"),
    (lambda: x().append(1), "has no 'append'", "np.append(x, …)"),
    (lambda: np.frompyfunc(abs, 1, 1)(x()), "that np.frompyfunc has made", "@spmd.kernel"),
    (lambda: spmd.input("y", np.zeros(8)), "in place of a shape", "x.shape, x.dtype, default=x"),
    (lambda: sorted([x()[2], x()[1]]), "sorted() compares elements", "np.stack makes an array"),
    (lambda: max(x(), key=abs), "with key= compares elements", "x[np.argmax(key(x))]"),
    (lambda: pickle.dumps(x()), "bytes for pickle", "return the array"),
    (lambda: logging.warning("x is %s", x()), "a line of a log", "spmd.print("),
    (lambda: spmd.require(x()[0] > 1), "known at launch", "assert condition"),
    (chosen, '"name" changes', "numbers in place of texts"),
    (first, '"best" changes', "in place of None"),
    (kept, '"kept.rows" grows', "written by out[k]"),
    (deleted, "cannot be deleted", "np.delete(x, k)"),
    (lambda: x().relayout("auto"), 'relayout("auto") asks for no layout', "relayout(None) gathers"),
]


@pytest.mark.parametrize(("f", "said", "way_out"), CASES, ids=[c[1] for c in CASES])
def test_the_message_names_the_way_out(f: Callable[[], Any], said: str, way_out: str) -> None:
    def program() -> Any:
        return f()

    with pytest.raises(SpmdError) as caught:
        spmd.build(spmd.program(mesh=("r",))(program))
    text = str(caught.value)
    assert text.startswith(__file__) and said in text and way_out in text, text


@pytest.mark.parametrize(("layout", "said"), [
    (["r"], ('None, "auto", or a dict', "found:    layout=['r']", 'layout=("r", None)')),
    ("dta", ("found:    layout='dta'", 'spmd.Dim("batch", 64)')),
    ("outo", ('layout="auto", if that is what you mean',)),
    ({"bacth": "r"}, ("the dim 'bacth', which no array has", '"batch", if that is what you mean')),
    ({"batch": "r", "hidden": None}, ("the dim 'hidden', which no array has",)),
])
def test_rules_without_an_effect_are_refused(layout: Any, said: tuple[str, ...]) -> None:
    def program() -> Any:
        return spmd.input("x", (spmd.Dim("batch", 8), 3), np.float64)

    with pytest.raises(SpmdError) as caught:
        Program(program, ("r",), layout=layout).capture()
    assert all(part in str(caught.value) for part in said), caught.value


def test_none_in_a_rule_means_whole() -> None:
    def program() -> Any:
        x = spmd.input("x", (spmd.Dim("batch", 8), 3), np.float64)
        y = spmd.input("y", (8, 3), np.float64, layout=("r", None))
        return x + y

    def layout(rules: Any) -> Any:
        (found,) = (i for i in Program(program, ("r",), layout=rules).capture().inputs
                    if i.name == "x")
        return found.layout

    assert layout({"batch": None}) == ((), ())
    assert layout({"batch": "r"}) == layout(None) == (("r",), ())


def test_a_parameter_that_does_not_exist() -> None:
    def program(steps: int = 3) -> Any:
        return x() * steps

    with pytest.raises(SpmdError, match="steps=…, if that is what you mean"):
        Program(program, ("r",)).capture(step=4)


def test_loops_of_many_turns_that_python_runs_are_announced() -> None:
    def program() -> Any:
        total = 0
        for k in range(300):
            total += np.sum(k)
        return x() + total

    heard: list[tuple[str, int, int]] = []
    with progress.told(lambda *said: heard.append(said)):
        Program(program, ("r",)).capture()
    said = [h[0] for h in heard if "which spmd.range would compile" in h[0]]
    assert len(said) == 101 and said[-1].startswith(f"recording turn 300 of the loop at {__file__}")


@pytest.mark.parametrize("extent", [
    lambda i, n: i + 1, lambda i, n: n - i, lambda i, n: n * 3 - i * i, lambda i, n: 8 // n + i - 1,
    lambda i, n: n + 1, lambda i, n: (i + 1) % 3 + 1,
])
def test_examples_are_of_ranks_that_exist(extent: Callable[[Any, Any], Any]) -> None:
    def program() -> Any:
        def added(v: Any) -> Any:
            i, n = spmd.axis_index("r"), spmd.axis_size("r")
            return v[:, 0] + np.ones(extent(i, n) + spmd.axis_index("q"))

        y = spmd.input("y", (8, 3), np.float64, layout=("r", "q"))
        return spmd.shard_map(added, out_layouts=("r",))(y)

    with pytest.raises(SpmdError) as caught:
        Program(program, ("r", "q")).capture()
    example = str(caught.value).partition("; for ")[2].partition(" they are ")[0]
    values = {name: int(text) for name, text in (v.split(" = ") for v in example.split(", "))}
    assert 0 <= values["i_r"] < values["n_r"] and 0 <= values["i_q"] < values["n_q"], caught.value

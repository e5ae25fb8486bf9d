"""Whether rows of calls may be joined: what the compiler says, beside each call made by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmd
from codegen.layouts.independent_rows import IndependentRows, independent_rows
from spmd import nn
from tests.serving.rows import Independent

MOST = 8
W = np.linspace(-1, 1, 16).reshape(4, 4)


def said_of(function: Callable[[Any], Any]) -> IndependentRows:
    """Return what the compiler finds out about a function of an array with rows of four numbers."""
    def of_rows() -> Any:
        return function(spmd.input("x", (spmd.Dim("batch", at_most=MOST), 4), np.float64))

    (found,) = independent_rows(spmd.program(mesh=("r",), layout={"batch": "r"})(of_rows).graph({}))
    return found


def is_joinable(function: Callable[[Any], Any]) -> bool:
    """Whether NumPy gives rows of two calls, made as one, what it gives each call by itself."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(low, low + 1, (n, 4)) for n, low in ((2, 1.6), (3, 0.1)))
    both, alone = function(np.concatenate([a, b])), [function(a), function(b)]
    return both.ndim > 0 and len(both) == 5 and np.allclose(both, np.concatenate(alone))


def repeated(x: Any) -> Any:
    for k in range(3):
        x = np.sin(x) + k
    return x


def halved_until_small(x: Any) -> Any:
    while np.sum(x) > 1:
        x = x / 2
    return x


def first_row_set(x: Any) -> Any:
    y = x.copy()
    y[0] = 1.0
    return y


def first_column_set(x: Any) -> Any:
    y = x.copy()
    y[:, 0] = 1.0
    return y


def doubled_if_large(x: Any) -> Any:
    if np.max(x) > 1.5:
        x = x * 2
    return x


# What each does: none of it mixes rows, and the compiler knows.
ROW_WISE: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: np.tanh(x @ W), "of a row": lambda x: x - np.mean(x, 1, keepdims=True),
    "sorted row": lambda x: np.sort(x, 1), "running row": lambda x: np.cumsum(x, 1),
    "rolled row": lambda x: np.roll(x, 1, 1), "counted column": lambda x: x + np.arange(4),
    "loop": repeated, "column set": first_column_set, "flat and back": lambda x:
    (x.reshape(-1) * 2).reshape(x.shape), "looked up": lambda x:
    W[np.minimum(x[:, 0].astype(np.int64), 3)], "chosen": lambda x: np.where(x > 1, x, -x),
    "picked": lambda x: np.take_along_axis(x, np.argsort(x, 1), 1),
    "pairs": lambda x: np.max(x[:, :, None] * x[:, None, :], 1),
    "columns joined": lambda x: np.concatenate([x, x], 1)[:, 2:6],
    "ones": lambda x: x * np.ones(x.shape), "turned twice": lambda x: x.T.T,
    "spectrum": lambda x: np.abs(np.fft.fft(x, axis=1)),
    "diagonal": lambda x: x * np.diagonal(W), "maximum": lambda x: np.maximum(x, x[:, ::-1]),
}
# What each does to rows, and what is said of it.
MIXED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "mean": (lambda x: x - np.mean(x, 0), "depends on how many rows"),
    "sum": (lambda x: x / np.sum(x), "reads all of batch"),
    "count": (lambda x: x * x.shape[0], "depends on how many rows"),
    "counted rows": (lambda x: x + np.arange(x.shape[0])[:, None], "where in batch a row stands"),
    "running": (lambda x: np.cumsum(x, 0), "where in batch a row stands"),
    "rolled": (lambda x: np.roll(x, 1, 0), "reads other rows"),
    "turned round": (lambda x: x[::-1] * 1, "how many rows batch has"),
    "while": (halved_until_small, "reads all of batch"),
    "branch": (doubled_if_large, "reads all of batch"),
    "row set": (first_row_set, "where in batch a row stands"),
    "triangle": (np.tril, "where in batch a row stands"),
    "sorted": (lambda x: np.sort(x, 0), "reads all of batch"),
    "a row of all": (lambda x: x * x[0], "reads all of batch"),
    "first": (lambda x: x[:1] * 1, "has not one row for each of batch"),
    "products of rows": (lambda x: (x @ x.T) @ x, "reads all of batch"),
}


@pytest.mark.parametrize("what", ROW_WISE)
def test_rows_that_are_independent(what):
    assert is_joinable(ROW_WISE[what])
    assert said_of(ROW_WISE[what]) == IndependentRows("batch")


@pytest.mark.parametrize("what", MIXED)
def test_rows_that_are_not(what):
    function, because = MIXED[what]
    assert not is_joinable(function)
    found = said_of(function)
    assert (found.dim, because in found.because) == ("", True), found


def test_what_is_not_joined_though_numpy_would():
    """Random numbers follow from the place of a row; a text is printed once for each call; an
    assertion on a mean may fail for one call and not for both."""
    def drawn(x: Any) -> Any:
        return x + spmd.random.normal(3, x.shape)

    def printed(x: Any) -> Any:
        print("called", x[0, 0])
        return x

    def asserted(x: Any) -> Any:
        assert np.mean(x) > 0, "too small"
        return x

    for function, because in ((drawn, "where in batch"), (printed, "has a print"),
                              (asserted, "how many rows")):
        found = said_of(function)
        assert (found.dim, because in found.because) == ("", True), found
        assert found.place is not None and found.place.file == __file__


def test_an_assertion_of_all_rows_holds_for_each_call():
    def asserted(x: Any) -> Any:
        assert np.all(x > 0), "too small"
        return x * 2

    assert said_of(asserted).dim == "batch"


def test_networks():
    for function in (nn.softmax, nn.layer_norm, nn.gelu,
                     lambda x: nn.softmax_cross_entropy(x, np.argmax(x, 1)),
                     lambda x: spmd.vmap(lambda row: row / np.linalg.norm(row))(x),
                     lambda x: spmd.grad(lambda y: np.sum(np.tanh(y @ W) ** 2))(x)):
        assert said_of(function).dim == "batch"


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from([*ROW_WISE, *MIXED]), min_size=1, max_size=4))
def test_what_is_said_of_compositions_holds(names):
    """Whatever is done one after the other: what is said to be joinable is."""
    functions = [ROW_WISE[name] if name in ROW_WISE else MIXED[name][0] for name in names]

    def composed(x: Any) -> Any:
        for function in functions:
            x = function(x)
        return x

    try:
        said = said_of(composed)
    except spmd.SpmdError:  # shapes that do not fit
        return
    if said.dim:
        assert is_joinable(composed)
    assert said.dim or not {*names} <= {*ROW_WISE}


# ---- images


@pytest.mark.parametrize("ranks", [1, 3])
def test_images_give_joined_rows_what_they_give_each(ranks):
    """Each entry that claims it gives joined rows the same results, on ranks that split the
    rows."""
    image = spmd.build(Independent)
    rng = np.random.default_rng(0)
    x, ids = rng.normal(size=(6, 4)), rng.integers(0, 5, 6)
    with image.open(ranks=ranks) as opened:
        for name, entry in opened.entries.items():
            given = {"ids": ids} if name == "looked_up" else {"x": x}
            alone = [entry(**{k: v[a:b] for k, v in given.items()})
                     for a, b in ((0, 1), (1, 3), (3, 6))]
            joined = entry(**given)
            for key in joined:
                np.testing.assert_allclose(
                    joined[key], np.concatenate([part[key] for part in alone]), rtol=1e-12)
    rows = image.manifest["independent_rows"]
    assert [row.get("dim") for row in rows] == [None, *["batch"] * len(opened.entries)]

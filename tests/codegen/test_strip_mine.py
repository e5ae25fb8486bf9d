"""Operands are read in strips and runs, and what comes out is what NumPy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.plan import Exchange, Phase, Store
from codegen.ir.plan_text import work_text
from codegen.ir.steps import walk_steps

_DRAW = np.random.default_rng(3)
GIVEN: dict[str, Any] = {
    "a": _DRAW.normal(size=(37, 53)), "t": _DRAW.normal(size=(11, 20, 18)).astype(np.float32),
    "c": (_DRAW.normal(size=(19, 33)) + 1j).astype(np.complex64),
    "h": np.arange(840).reshape(40, 21).astype(np.int8),
}


def turned(a: Any, t: Any, c: Any, h: Any) -> Any:
    out = np.zeros((53, 37))
    out += a.T
    own = a[:30, :30].copy()
    own[:] = own.T + own
    return {
        "added": out, "copied": a.T.copy(), "numbered": a.T + np.arange(37), "own": own,
        "reversed": t.transpose(2, 1, 0) + 0.5, "rolled": t.transpose(2, 0, 1) - 1,
        "inner": t.transpose(0, 2, 1) * 2, "conjugate": np.conj(c).T, "bytes": h.T[::2, ::-1] * 3,
        "function": np.exp(a.T),
    }


@spmd.program(mesh=("x",))
def case() -> Any:
    return turned(**{n: spmd.input(n, x.shape, x.dtype, layout=(None,) * (x.ndim - 1) + ("x",))
                     for n, x in GIVEN.items()})


def test_operands_across_are_read_in_strips() -> None:
    steps = walk_steps(lower(case.capture()).finished.steps)
    works = [w for s in steps if isinstance(s, Phase) for w in s.work]
    texts = [work_text(w) for w in works if isinstance(w, Store)]
    strips = [text for text in texts if "_strip <" in text]
    assert len(strips) > 4 and not any("exp(" in text for text in strips)
    image = spmd.build(case)
    for ranks in (1, 3, 20):
        found = image.run(ranks=ranks, **GIVEN)
        for name, wanted in turned(**GIVEN).items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-6, err_msg=f"{name} on {ranks}")


@spmd.program(mesh=("x",))
def exchanged() -> Any:
    out = {}
    for name, dtype in (("f", np.float64), ("s", np.float32), ("z", np.complex128), ("b", np.int8)):
        x = spmd.input(name, (150, 3, 70), dtype, layout=("x", None, None))
        out[name] = spmd.zeros((70, 150, 3), dtype, layout=("x", None, None))
        out[name] += np.transpose(x, (2, 0, 1))
    return out


def test_what_ranks_exchange_is_transposed_as_it_is_copied() -> None:
    """Tiles that are full and others, of elements of all sizes; loops read what lies in order."""
    steps = list(walk_steps(lower(exchanged.capture()).finished.steps))
    works = [work_text(w) for s in steps if isinstance(s, Phase) for w in s.work]
    assert not any("_strip <" in text for text in works)
    assert sum(isinstance(s, Exchange) and s.take is not None for s in steps) == 4
    given = {k: _DRAW.normal(size=(150, 3, 70)) * 40 for k in "fszb"}
    given = {k: x.astype({"f": "d", "s": "f", "z": "D", "b": "b"}[k]) for k, x in given.items()}
    image = spmd.build(exchanged)
    for ranks in (1, 2, 3, 80):
        for name, found in image.run(ranks=ranks, **given).items():
            wanted = np.transpose(given[name], (2, 0, 1))
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name} on {ranks}")


def met(a: Any, b: Any) -> Any:
    """Statements with what arrives: three compute with it as it does, the last four cannot."""
    halves = a * 1
    for _ in spmd.range(3):
        halves = 0.5 * (halves + halves.T)
    scaled, twice = np.max(b) * a.T - b, b.T * 2
    late = a.T
    sums = np.cumsum(b, axis=1)
    return {
        "halves": halves, "scaled": scaled, "where": np.where(b.T > 0, a, 3),
        "twice": (twice + 1, twice * b), "late": late + sums, "elsewhere": a.T + b[:, ::-1],
        "copied": a.T.copy(), "placed": a.T * np.arange(90),
    }


@spmd.program(mesh=("x",))
def meets() -> Any:
    return met(*(spmd.input(n, (90, 90), np.float64, layout=("x", None)) for n in "ab"))


def test_statements_take_what_arrives_where_it_belongs() -> None:
    graph = meets.capture()
    takes = [s.take for s in walk_steps(lower(graph).finished.steps) if isinstance(s, Exchange)]
    texts = [work_text(take) for take in takes if take is not None]
    assert len(texts) == 3 and all("[point] = " in text for text in texts)
    given = {n: _DRAW.normal(size=(90, 90)) for n in "ab"}
    wanted, image = meets.eager(**given), spmd.build(meets)
    for ranks in (1, 2, 3, 100):
        found = image.run(ranks=ranks, **given)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-13, err_msg=f"{name}, {ranks}")


def divided(x: Any, k: Any) -> Any:
    square = x[:210].reshape(14, 15)
    return {
        "repeated": np.repeat(x, 20)[3:], "tiled": np.tile(x, 9) * 2, "outer": np.kron(x, k),
        "joined": square[1:, 2:].reshape(-1) + 1, "turned": square.T.reshape(-1) - 1,
        "both": np.repeat(x, 10)[:2000] + np.tile(x, 8)[-2000:], "even": np.repeat(k, 64),
    }


@spmd.program(mesh=("x",))
def divides() -> Any:
    return divided(spmd.input("x", (260,), np.float64, layout=("x",)),
                   spmd.input("k", (31,), np.float64, layout=("x",)))


@pytest.mark.filterwarnings("ignore::spmd.LayoutWarning")
def test_positions_that_are_divided_are_run_through_without_a_division() -> None:
    steps = list(walk_steps(lower(divides.capture()).finished.steps))
    works = [work_text(w) for s in steps if isinstance(s, Phase) for w in s.work]
    runs = [text for text in works if "_run <" in text]
    assert len(runs) >= 5 and not any("//" in text.split("_run <")[-1] for text in runs)
    given = {"x": _DRAW.normal(size=260), "k": _DRAW.normal(size=31)}
    image = spmd.build(divides)
    for ranks in (1, 2, 3, 5, 16, 70):
        for name, found in image.run(ranks=ranks, **given).items():
            np.testing.assert_array_equal(found, divided(**given)[name], f"{name} on {ranks}")

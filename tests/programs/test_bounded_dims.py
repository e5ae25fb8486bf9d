"""Dims whose extent only a run knows: what images compute of the rows that they are given is what
NumPy computes of them, in one job, whatever the number of rows of the call before."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.layouts.partition import partition
from codegen.oracle import interpret
from codegen.user.named import named
from tests.programs import test_expressions as expressions
from tests.programs.expressions import ARRAYS

AT_MOST = 256
BATCH = spmd.Dim("batch", at_most=AT_MOST)
ROWS = (0, 1, 2, 5, 7, 255, 256)
CENTRES = np.random.default_rng(1).normal(size=(6, 4))
SPLIT, WHOLE = {"batch": "r"}, {"batch": None}


def columns(x: Any, y: Any) -> dict[str, Any]:
    """Reductions of the rows, and of the columns."""
    z = np.exp(x - np.max(x, axis=1, keepdims=True))
    return {
        "softmax": z / np.sum(z, axis=1, keepdims=True), "best": np.argmax(x, axis=1),
        "mean": np.mean(x, axis=0), "var": np.var(x, axis=0), "all": np.mean(x),
        "any": np.any(x > 2, axis=0), "rows": np.std(x, axis=1), "product": np.prod(x * 0.1, 0),
        "norm": np.linalg.norm(x, axis=1), "count": x.shape[0], "half": len(x) // 2,
        "agree": np.mean(np.argmax(x, axis=1) == np.argmax(y, axis=1)),
    }


def products(x: Any, y: Any) -> dict[str, Any]:
    return {
        "scores": x @ CENTRES, "gram": x.T @ x, "both": x.T @ y, "pairs": x @ y.T,
        "distances": np.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=2).sum(axis=0),
        "pieces": np.einsum("bij,bjk->bik", x.reshape(x.shape[0], 2, 3),
                            y.reshape(y.shape[0], 3, 2)),
        "solved": np.linalg.solve(x.T @ x + np.eye(6), x.T),
    }


def shapes(x: Any, y: Any) -> dict[str, Any]:
    """Moves rows of bounded arrays, and joins and cuts them."""
    inner = x.copy()
    inner[1:-1] += 0.25 * (x[:-2] + x[2:])
    order = np.argsort(x[:, 0], kind="stable")
    return {
        "beside": np.concatenate([x, y], axis=1), "below": np.concatenate([x, y], axis=0),
        "where": np.where(x > y, x, 2 * y), "less": x < y, "inner": inner,
        "rolled": np.roll(x, 1, axis=0), "outer": np.outer(x[:, 0], y[:, 1]),
        "sorted": np.sort(x, axis=0), "row": np.sort(x, axis=1), "by": x[order], "back": x[::-1],
        "running": np.cumsum(x, axis=0), "steps": np.diff(x, axis=0), "first": x[:3],
        "even": x[::2], "picked": x[np.arange(x.shape[0]), np.argmax(y, axis=1)],
        "padded": np.pad(x, ((1, 2), (0, 0))), "flat": x.ravel(),
        "positive": np.sum(x[x > 0]), "places": np.bincount(np.argmax(x, 1), minlength=6),
    }


def loops(x: Any, y: Any) -> dict[str, Any]:
    """Rows that loops carry, and loops over rows."""
    u, total = x * 1.0, np.zeros(6)
    for i in spmd.range(5):
        u = u * 0.5 + np.mean(u, axis=1, keepdims=True) + i
        total = total + np.sum(u, axis=0)
    v = y.copy()
    for _ in spmd.range(3):
        v[:, 1:] += 0.1 * v[:, :-1]
    last = np.zeros(6)
    for i in spmd.range(x.shape[0]):
        last = 0.5 * last + x[i]
    for row in y[1:]:
        last = np.maximum(0.9 * last, row)
    n = 0
    while np.sum(np.abs(v)) > 1 and n < 30:
        v = v * 0.5
        n = n + 1
    if x.shape[0] > 5:
        w = x + 1
    else:
        w = x - 1
    return {"u": u, "total": total, "v": v, "last": last, "n": n, "w": w}


def built(function: Callable[..., Any], layout: Any) -> Any:
    def rows() -> Any:
        return function(*(spmd.input(name, (BATCH, 6), np.float64) for name in "xy"))

    return spmd.program(mesh=("r",), layout=layout)(rows)


def given(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.normal(size=(AT_MOST, 6))[:rows] for name in "xy"}


def compare(out: Any, want: dict[str, Any], what: str) -> None:
    assert out.keys() == want.keys()
    for name, value in want.items():
        assert np.shape(out[name]) == np.shape(value), f"{what}: {name}"
        np.testing.assert_allclose(out[name], value, 1e-8, 1e-9, err_msg=f"{what}: {name}")


def numpys(function: Callable[..., Any], rows: int) -> Any:
    with np.errstate(all="ignore"):
        return function(**given(rows))


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::spmd.LayoutWarning")
@pytest.mark.parametrize("layout", [SPLIT, WHOLE], ids=["split", "whole"])
@pytest.mark.parametrize("function", [columns, products, shapes, loops])
def test_a_job_computes_the_rows_that_it_is_given(function, layout):
    image = spmd.build(built(function, layout))
    want = {rows: numpys(function, rows) for rows in ROWS}
    for ranks in (1, 2, 3, 5):
        order = [*ROWS, 7, 1]
        random.Random(ranks).shuffle(order)
        with image.open(ranks=ranks) as job:
            jobs = set()
            for rows in order:
                compare(job(**given(rows)), want[rows], f"{rows} rows on {ranks} ranks")
                jobs.add(id(job._job))
            assert len(jobs) == 1


def mlp(x: Any, y: Any, w: Any) -> Any:
    def loss(w: Any) -> Any:
        h = np.tanh(x @ w["a"] + w["b"])
        return np.mean(spmd.nn.softmax_cross_entropy(h @ w["c"], y))

    return spmd.value_and_grad(loss)(w)


def mlp_in_numpy(x: Any, y: Any, w: Any) -> Any:
    n, h = len(x), np.tanh(x @ w["a"] + w["b"])
    z = h @ w["c"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    if not n:
        return np.nan, {k: np.zeros_like(v) for k, v in w.items()}
    d = p.copy()
    d[np.arange(n), y] -= 1
    d /= n
    dh = (d @ w["c"].T) * (1 - h * h)
    found = {"a": x.T @ dh, "b": dh.sum(0), "c": h.T @ d}
    return np.mean(-np.log(p[np.arange(n), y])), found


@pytest.mark.parametrize(("mesh", "layout", "sizes"), [
    (("r",), SPLIT, [{"r": n} for n in (1, 2, 3, 5)]), (("r",), WHOLE, [{"r": 3}]),
    (("r", "s"), {"batch": "r", "hidden": "s"}, [{"r": 2, "s": 2}, {"r": 1, "s": 3}]),
], ids=["data", "whole", "both"])
def test_gradients_of_the_mean_over_the_rows(mesh, layout, sizes):
    def train() -> Any:
        hidden = spmd.Dim("hidden", 10)
        x, y = spmd.input("x", (BATCH, 6), np.float64), spmd.input("y", (BATCH,), np.int32)
        w = spmd.input("w", {"a": spmd.spec((6, hidden), np.float64),
                             "b": spmd.spec(hidden, np.float64),
                             "c": spmd.spec((hidden, 4), np.float64)})
        return mlp(x, y, w)

    rng = np.random.default_rng(3)
    w = {"a": rng.normal(size=(6, 10)), "b": rng.normal(size=10), "c": rng.normal(size=(10, 4))}
    x, y = rng.normal(size=(AT_MOST, 6)), rng.integers(0, 4, AT_MOST).astype(np.int32)
    image = spmd.build(spmd.program(mesh=mesh, layout=layout)(train))
    for size in sizes:
        with image.open(ranks=int(np.prod(list(size.values()))), mesh=size) as job:
            first = None
            for rows in (7, 0, 256, 1, 5, 255, 2):
                value, grads = job(x=x[:rows], y=y[:rows], w=w)
                first = first or job._job
                assert job._job is first
                want, wanted = mlp_in_numpy(x[:rows], y[:rows], w)
                np.testing.assert_allclose(value, want, rtol=1e-9)
                compare(grads, wanted, f"{rows} rows on {size}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", [columns, products, shapes, loops])
def test_the_oracles_compute_the_same(function):
    """Plain Python, the Graph and the Program: of few rows, and of fewer than there are ranks."""
    program = built(function, SPLIT)
    graph = program.graph({})
    local = partition(graph)
    for rows in (0, 1, 7):
        want, inputs = numpys(function, rows), given(rows)
        compare(program.eager(ranks=3, **inputs), want, f"eager, {rows} rows")
        compare(interpret.run(graph, {"r": 3}, inputs), want, f"Graph, {rows} rows")
        compare(interpret.run(local, {"r": 3}, inputs), want, f"Program, {rows} rows")


def test_one_rank_sees_its_block_of_the_rows():
    @spmd.program(mesh=("r",))
    def shares():
        x = spmd.input("x", (BATCH, 2), np.float64, layout=("r", None))

        @spmd.shard_map(mesh="r", out_layouts=(("r", None), (), ("r",)))
        def of(part):
            total = spmd.psum(np.sum(part, axis=0), "r")
            return part / (1 + total), total, np.full(1, part.shape[0])

        return of(x)

    image = spmd.build(shares)
    for ranks in (1, 2, 3, 5):
        with image.open(ranks=ranks) as job:
            for rows in (7, 0, 2, 256):
                x = given(rows)["x"][:, :2] ** 2
                for out in (job(x=x), shares.eager(ranks=ranks, x=x)):
                    part, total, blocks = out
                    np.testing.assert_allclose(part, x / (1 + x.sum(0)))
                    np.testing.assert_allclose(total, x.sum(0))
                    assert list(blocks) == [len(b) for b in np.array_split(x, ranks)]


def test_networks_over_several_rows():
    """spmd.nn works with shapes of which one dim is bounded; eager runs take a plain Dim."""
    def net(batch: Any) -> Any:
        x = spmd.input("x", (batch, 6, 8), np.float64)
        w = spmd.input("w", (8, 24), np.float64)
        k = spmd.input("k", (3, 2, 4), np.float64)

        def loss(w: Any) -> Any:
            q, key, v = (a.reshape(x.shape[0], 6, 2, 4) for a in np.split(x @ w, 3, axis=-1))
            seen = spmd.nn.attention(q, key, v)
            return np.mean(np.sum(spmd.nn.gelu(seen) ** 2, axis=(1, 2, 3)))

        value, grads = spmd.value_and_grad(loss)(w)
        found = spmd.nn.conv(x.reshape(x.shape[0], 24, 2), k)
        return {"loss": value, "grads": grads, "conv": spmd.nn.max_pool(found, (2,), (2,)),
                "norm": spmd.nn.layer_norm(x), "each": spmd.vmap(lambda m: m.T @ m)(x)}

    rng = np.random.default_rng(5)
    x, w, k = rng.normal(size=(20, 6, 8)), rng.normal(size=(8, 24)), rng.normal(size=(3, 2, 4))
    image = spmd.build(spmd.program(mesh=("r",), layout=SPLIT)(
        lambda: net(spmd.Dim("batch", at_most=20))))
    want = {}
    for rows in (1, 2, 7, 20):
        fixed = spmd.program(mesh=("r",))(lambda rows=rows: net(spmd.Dim("batch", rows)))
        want[rows] = dict(named(fixed.eager(x=x[:rows], w=w, k=k), "o"))
    for ranks in (1, 3):
        with image.open(ranks=ranks) as job:
            for rows in (7, 1, 20, 2):
                out = dict(named(job(x=x[:rows], w=w, k=k), "o"))
                compare(out, want[rows], f"{rows} rows on {ranks} ranks")
            assert job(x=x[:0], w=w, k=k)["conv"].shape[0] == 0


def with_rows(text: str, folder: Path, name: str) -> Any:
    """The program of a line of expressions.py; what has 7 rows there has as many as are given."""
    lines, names = ["@spmd.program(mesh=('r',))", "def case():"], expressions.used(text)
    for a in names:
        array, layout = ARRAYS[a]
        rows, *others = array.shape
        shape = ", ".join(["ROWS" if rows == 7 else str(rows), *map(str, others)])
        lines.append(f"    {a} = spmd.input('{a}', ({shape},), np.{array.dtype}, layout={layout})")
    lines += ["    return flat({'e0': f0(" + ", ".join(names) + ")})", ""]
    head = expressions.HEAD + expressions.FLAT + "ROWS = spmd.Dim('rows', at_most=11)\n\n"
    made = head + expressions.functions([text]) + "\n".join(lines)
    return expressions.loaded(made, folder, name).case


@pytest.mark.filterwarnings("ignore")
def test_functions_of_numpy_take_the_rows_given(tmp_path, monkeypatch):
    """Lines of expressions.py, a few in a short run: what is not refused is what NumPy computes of
    the first rows of each array."""
    texts = [text for _, text in expressions.WORKING
             if any(ARRAYS[name][0].shape[0] == 7 for name in expressions.used(text))]
    taken = 0
    for k, text in enumerate(texts if expressions.LONG else texts[3::40]):
        try:
            graph = with_rows(text, tmp_path, f"rows{k}").graph({})
        except spmd.SpmdError:
            continue
        local = partition(graph)
        for rows in (7, 3):
            first = {a: x[:rows] if len(x) == 7 else x for a, (x, _) in ARRAYS.items()}
            monkeypatch.setattr(expressions, "GIVEN", first)
            try:
                want = [expressions.numpy_says(text)]
            except (ValueError, IndexError):
                continue  # of more rows only
            inputs = {i.name: first[i.name] for i in graph.inputs}
            for module in (graph, local):
                out = interpret.run(module, {"r": 3}, inputs)
                expressions.agree(out, [text], want, f"{rows} rows")
        taken += 1
    assert taken > 30

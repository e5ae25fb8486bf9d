"""Half types, float16 and bfloat16, are added up in float32 and rounded once, everywhere."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import spmd
import spmd.numpy
from codegen.dtypes import BY_NAME, numpy_dtype
from codegen.oracle import interpret
from codegen.trace.ranks import combining
from codegen.user.half_types import ADDING
from spmd import nn
from tests.spmd.nn_cases import CASES

# mypy: ignore-errors

pytestmark = pytest.mark.one_mpi

HALVES = ("float16", "bfloat16")
DIGIT = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # of the last digit of 1
LEAST = {"float16": 2.0**-14, "bfloat16": 2.0**-126}  # below which digits are lost
N = 70_000


def check(found: Any, exact: Any, half: str, what: str, ulps: float = 1.01, beside: float = 0.0
          ) -> None:
    """Check that results are of the half type, and within so many last digits of the exact result,
    or of `beside` if that is larger, as for a difference of larger numbers."""
    for x, e in zip(spmd.tree.leaves(found), spmd.tree.leaves(exact), strict=True):
        x, e = np.asarray(x), np.asarray(e, np.float64)
        if e.dtype.kind not in "fc" or x.dtype.kind in "biu":
            continue
        assert x.dtype == half, f"{what}: {x.dtype}"
        with np.errstate(all="ignore"):
            rounded = e.astype(x.dtype).astype(np.float64)
            x, size = x.astype(np.float64), np.maximum(np.abs(e), max(LEAST[half], beside))
            near = np.abs(np.where(rounded == x, 0, x - e)) <= ulps * DIGIT[half] * size
        same = near | (rounded == x) | (np.isnan(x) & np.isnan(rounded))
        assert same.all(), f"{what}: {x[~same][:3]} is not {e[~same][:3]}"


# ---- reductions of spmd.numpy --------------------------------------------------------------------

# Of x (N, 2), or of some of it where the exact result is beyond the type.
REDUCTIONS = {
    "average": lambda n, x: (n.average(x, 0), n.average(x, 0, weights=n.abs(x[:, 0]))),
    "convolve": lambda n, x: n.convolve(x[:3000, 0], x[:3000, 1])[2999],
    "correlate": lambda n, x: n.correlate(x[:3000, 0], x[:3000, 1]),
    "cumprod": lambda n, x: n.cumprod(x[:9], 0)[-1], "cumsum": lambda n, x: n.cumsum(x, 0)[-1],
    "cumulative_prod": lambda n, x: n.cumulative_prod(x[:9], axis=0)[-1],
    "cumulative_sum": lambda n, x: n.cumulative_sum(x, axis=0)[-1],
    "dot": lambda n, x: n.dot(x[:, 0], x[:, 1]),
    "einsum": lambda n, x: (n.einsum("ti,tj->ij", x, x), n.einsum("ti->i", x)),
    "gradient": lambda n, x: n.gradient(x[:5, 0]), "inner": lambda n, x: n.inner(x[:, 0], x[:, 1]),
    "linalg.matmul": lambda n, x: n.linalg.matmul(x.T, x),
    "linalg.matrix_norm": lambda n, x: n.linalg.matrix_norm(x),
    "linalg.matrix_power": lambda n, x: n.linalg.matrix_power(x[:2], 3),
    "linalg.multi_dot": lambda n, x: n.linalg.multi_dot([x.T, x, x[:2]]),
    "linalg.norm": lambda n, x: [n.linalg.norm(x[:, 0], k) for k in (1, 2, 3)]
    + [n.linalg.norm(x), n.linalg.norm(x, axis=0), n.linalg.norm(x, 1)],
    "linalg.tensordot": lambda n, x: n.linalg.tensordot(x, x, axes=((0,), (0,))),
    "linalg.trace": lambda n, x: n.linalg.trace(n.reshape(x[:200], (20, 20))),
    "linalg.vecdot": lambda n, x: n.linalg.vecdot(x[:, 0], x[:, 1]),
    "linalg.vector_norm": lambda n, x: n.linalg.vector_norm(x[:, 0]),
    "matmul": lambda n, x: x.T @ x, "matvec": lambda n, x: n.matvec(x.T, x[:, 0]),
    "mean": lambda n, x: (n.mean(x), x.mean(0)), "median": lambda n, x: n.median(x, 0),
    "nancumprod": lambda n, x: n.nancumprod(x[:9], 0)[-1],
    "nancumsum": lambda n, x: n.nancumsum(x, 0)[-1], "nanmean": lambda n, x: n.nanmean(x, 0),
    "nanmedian": lambda n, x: n.nanmedian(x, 0),
    "nanpercentile": lambda n, x: n.nanpercentile(x, 30, axis=0),
    "nanprod": lambda n, x: n.nanprod(x[:9], 0),
    "nanquantile": lambda n, x: n.nanquantile(x, 0.3, axis=0),
    "nanstd": lambda n, x: n.nanstd(x, 0), "nansum": lambda n, x: n.nansum(x, 0),
    "nanvar": lambda n, x: n.nanvar(x, 0), "percentile": lambda n, x: n.percentile(x, 30, axis=0),
    "polyval": lambda n, x: n.polyval(x[:3, 0], x[0, 1]), "prod": lambda n, x: n.prod(x[:9], 0),
    "quantile": lambda n, x: n.quantile(x, 0.3, axis=0), "std": lambda n, x: (n.std(x, 0), x.std()),
    "sum": lambda n, x: (n.sum(x), n.sum(x, 0), x.sum(1)[:3], n.add.reduce(x, 0),
                         n.add.accumulate(x, 0)[-1]),
    "tensordot": lambda n, x: n.tensordot(x, x, (0, 0)),
    "trace": lambda n, x: n.trace(n.reshape(x[:200], (20, 20))),
    "trapezoid": lambda n, x: n.trapezoid(x, axis=0), "var": lambda n, x: (n.var(x, 0), x.var()),
    "vdot": lambda n, x: n.vdot(x[:, 0], x[:, 1]), "vecdot": lambda n, x: n.vecdot(x.T, x.T),
    "vecmat": lambda n, x: n.vecmat(x[:, 0], x),
}
# Of names that make few numbers of many: whose results are elements, or no half types.
OTHERS = set(
    "amax amin corrcoef cov diag diagonal histogram_bin_edges linalg.cond linalg.diagonal "
    "linalg.svdvals max min nanmax nanmin ptp unique unique_counts unique_values".split())
POWERS = {
    "cube": lambda x: x[:3] ** 3, "square": lambda x: x[:3] ** 2.0, "root": lambda x: x[:3] ** 0.5,
    "inverse": lambda x: x[:3] ** -1, "fourth": lambda x: np.power(x[:3], 4),
    "weak": lambda x: (0.1 * x[:3], x[:3] + 1, np.where(x[:3] > 0, x[:3], 0.5)),
}


def test_every_function_that_adds_is_tried():
    assert REDUCTIONS.keys() == ADDING
    x, missing = np.ones((400, 2)), []
    for name in {*dir(spmd.numpy)} | {f"linalg.{n}" for n in dir(np.linalg)}:
        function = np
        for part in name.split("."):
            function = getattr(function, part, None)
        with warnings.catch_warnings(action="ignore"):
            try:
                made = np.asarray(function(x))
            except Exception:
                continue
        if made.dtype == np.float64 and made.size < 100 and name not in ADDING | OTHERS:
            missing.append(name)
    assert not missing


@spmd.program(mesh=("r",))
def reduced(dtype: str = "float16", names: tuple = tuple(REDUCTIONS)):
    x = spmd.input("x", (N, 2), dtype, layout=("r", None))
    return ({name: REDUCTIONS[name](np, x) for name in names},
            {name: f(x) for name, f in POWERS.items()})


@pytest.mark.parametrize("half", HALVES)
def test_reductions_are_those_of_float64_rounded_once(half):
    kind = numpy_dtype(BY_NAME[half])
    image = spmd.build(reduced, dtype=half) if half == "float16" else None  # that takes long
    signs = np.where(np.arange(2 * N) % N < N // 2, 1, -1).reshape(N, 2)  # of whole ranks' parts
    # Of bfloat16, whose range is that of float32: where cubes are within it.
    ends = (4e4, 1e-6) if half == "float16" else (1e9, 1e-9)
    for value in (1.0, 0.3, 300.0, *ends, 4e4 * signs, 100.0 * signs):
        x = np.broadcast_to(value, (N, 2)).astype(kind)
        with np.errstate(all="ignore"):
            exact = {k: f(np, x.astype(np.float64)) for k, f in REDUCTIONS.items()}
            powers = {k: f(x.astype(np.float64)) for k, f in POWERS.items()}
        both = {"eager": reduced.eager(dtype=half, x=x)}
        if image is not None:
            both["image"] = image.run(ranks=3, x=x)
        for how, found in both.items():
            for name, e in exact.items():
                beside = np.abs(x[0, 0].astype(float)) if name.endswith(("std", "var")) else 0.0
                sums = np.abs(x.astype(np.float64)).sum(0).max() * 1e-4 if np.ndim(value) else 0.0
                check(found[0][name], e, half, f"{name} of {x[0]} ({how})", 2.0, max(beside, sums))
            for name, e in powers.items():
                check(found[1][name], e, half, f"{name} of {x[0]} ({how})", 2.0)


# What says float16 in the place of dtype, by keyword or not, or has an array for what comes out.
SAID = [
    lambda x, h: np.mean(x, dtype=np.float16), lambda x, h: np.mean(x > 0, dtype=np.float16),
    lambda x, h: np.mean(h, None, np.float16), lambda x, h: h.mean(0, np.float16),
    lambda x, h: np.std(x * 3e4, None, "float16") + np.var(h, 0, np.dtype(np.float16)),
    lambda x, h: np.sum(h, 0, None, np.zeros((), np.float16)),
    lambda x, h: np.linalg.norm(h.reshape(2, -1) * 300, axis=1),
]


def test_a_type_that_is_said_is_that_of_the_result_alone():
    special = pytest.importorskip("scipy.special")

    @spmd.program(mesh=("r",))
    def said():
        x = spmd.input("x", (N,), np.float64, layout=("r",))
        h = spmd.input("h", (N,), np.float16, layout=("r",))
        return [*(f(x, h) for f in SAID), special.logsumexp(h), special.softmax(h)[:3],
                special.log_softmax(h)[:3]]

    x = np.full(N, 0.5)
    inputs = {"x": x, "h": x.astype(np.float16)}
    exact = [0.5, 1, 0.5, 0.5, 0, N / 2, np.full(2, 150 * np.sqrt(N / 2))]
    soft = [0.5 + np.log(N), np.full(3, 1 / N), np.full(3, -np.log(N))]
    found = interpret.run(said.capture(), {"r": 3}, inputs)
    check(list(found.values()), exact + soft, "float16", "interpreted")
    check(said.eager(**inputs)[: len(SAID)], exact, "float16", "eager")


# ---- networks ------------------------------------------------------------------------------------


def pools(x: Any) -> Any:
    rows = x.reshape(1, N, 1)
    return (nn.avg_pool(rows, N)[0, 0, 0], nn.adaptive_avg_pool(rows, 1)[0, 0, 0],
            nn.adaptive_avg_pool(rows, 3)[0, :, 0])


def shares(x: Any) -> Any:
    """Experts of so many tokens, of which each likes one the most."""
    router = np.array([[1.0, 0.5]]).astype(x.dtype)
    made, told = nn.mixture_of_experts(x.reshape(1, N, 1)[:, :3000], router, lambda t: 2 * t, 1)
    return made[0, :3, 0]


# Of N equal numbers: what functions of spmd.nn, and their gradients, add up.
LONG = {
    "softmax": lambda x: nn.softmax(x)[:3], "log_softmax": lambda x: nn.log_softmax(x)[:3],
    "logsumexp": nn.logsumexp,
    "layer_norm": lambda x: nn.layer_norm(x + x * (np.arange(N) == 1))[:3],
    "rms_norm": lambda x: nn.rms_norm(x)[:3], "pools": pools,
    "batch_norm": lambda x: nn.batch_norm(x.reshape(N, 1) + 1)[0][:3, 0],
    "conv": lambda x: nn.conv(x.reshape(1, N, 1), 0.01 * x.reshape(N, 1, 1), padding="VALID")[0, 0],
    "dense": lambda x: (nn.dense(x, 0.01 * x.reshape(N, 1)),
                        nn.dense(x, x.reshape(N, 1), x[:1] * 0 - 6e4)),
    "attention": lambda x: nn.attention(x[:1].reshape(1, 1, 1), x.reshape(N, 1, 1),
                                        x.reshape(N, 1, 1)),
    "mixture_of_experts": shares,
    "softmax_cross_entropy": lambda x: (nn.softmax_cross_entropy(x, np.array(3)),
                                        nn.softmax_cross_entropy(x, x * 0 + 2.0**-16)),
    "kl_divergence": lambda x: nn.kl_divergence(x, x * 0 + 0.125),
    "cosine_similarity": lambda x: (nn.cosine_similarity(x, 2 * x), nn.cosine_distance(x, -x)),
    "rnn_cell": lambda x: nn.rnn_cell(
        {"w": x.reshape(N, 1) * 0 + 2.0**-14, "u": x[:1].reshape(1, 1) * 0, "b": x[:1] * 0},
        x[:1] * 0, x)[0],
    "embedding": lambda x: spmd.grad(lambda t: np.sum(
        nn.embedding(np.zeros(N, np.int32), t)[:, 0] * 2.0**-7))(x[:2].reshape(2, 1)),
    "losses": lambda x: spmd.grad(lambda s: np.mean(nn.squared_error(s[0] + x, x)))(x[:1]),
    "powers": lambda x: (np.linalg.norm(x * 0.1), np.mean(x**3)),
}


@spmd.program(mesh=("r",))
def long_rows(dtype: str = "float16", names: tuple = tuple(LONG), wide: bool = False):
    x = spmd.input("x", (N,), dtype, layout=("r",))
    x = x.astype(np.float64) if wide else x
    return {name: LONG[name](x) for name in names}


@pytest.mark.parametrize("half", HALVES)
def test_networks_add_up_in_float32(half):
    kind = numpy_dtype(BY_NAME[half])
    image = spmd.build(long_rows, dtype=half) if half == "bfloat16" else None
    for value in (3.0, -0.3):
        x = np.full(N, value).astype(kind)
        exact = long_rows.eager(dtype=half, wide=True, x=x)
        both = {"eager": long_rows.eager(dtype=half, x=x)}
        if image is not None:
            both["image"] = image.run(ranks=3, x=x)
        for how, found in both.items():
            for name, e in exact.items():
                check(found[name], e, half, f"{name} of {value} ({how})", 2.0)


ENDS = {"float16": (1.0, 200.0, 6e4, 1e-4, 3e-7), "bfloat16": (1.0, 200.0, 1e6, 1e-4, 1e-9)}
# What is the difference of numbers as large as its data, or as 1: so near is it.
DIFFERENCES = {"layer_norm": 4.0, "batch_norm": 4.0, "cosine_distance": 1.0, "log_softmax": 1.0,
               "log_cosh": 1.0, "recurrent": 4.0}


@spmd.program
def short_calls(dtype: str = "float16", names: tuple = tuple(CASES), wide: bool = False):
    out = {}
    for name in names:
        parts = [spmd.input(f"x{list(CASES).index(name)}_{k}", shape, dtype)
                 for k, shape in enumerate(CASES[name].shapes)]
        out[name] = CASES[name].function(*[p.astype(np.float64) if wide else p for p in parts])
    return out


@pytest.mark.parametrize("half", HALVES)
def test_every_function_of_networks_rounds_once(half):
    """Functions of spmd.nn round once on data near the ends of the range, if results are within
    it."""
    rng, kind = np.random.default_rng(5), numpy_dtype(BY_NAME[half])
    for size in ENDS[half]:
        given = {}
        for i, case in enumerate(CASES.values()):
            for k, shape in enumerate(case.shapes):
                x = rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)
                given[f"x{i}_{k}"] = (x * (size if k < max(case.data, 1) else 1)).astype(kind)
        exact = short_calls.eager(dtype=half, wide=True, **given)
        found = short_calls.eager(dtype=half, **given)
        for name, e in exact.items():
            beside = DIFFERENCES.get(name.split()[0], 0.0)
            if name == "batch_norm":  # its statistics are float32
                e, found[name] = e[0], found[name][0]
            check(found[name], e, half, f"{name} of {size}", 2.0, beside)


# ---- collectives ---------------------------------------------------------------------------------

COLLECTIVES = {
    "psum": lambda x: spmd.psum(x, "r"), "pmean": lambda x: spmd.pmean(x, "r"),
    "pprod": lambda x: spmd.pprod(x, "r"), "pscan": lambda x: spmd.pscan(x, "r"),
    "pexscan": lambda x: spmd.pexscan(x, "r"), "preduce": lambda x: spmd.preduce(x, "r", root=1),
    "psum_scatter": lambda x: spmd.psum_scatter(x, "r", tiled=True),
}
EXTREMES = "all_ranks any_ranks pand pargmax pargmin pmax pmin por pxor".split()


@spmd.program(mesh=("r",))
def collected(dtype: str = "float16", wide: bool = False):
    x = spmd.input("x", (5, 4), dtype, layout=("r", None))
    x = x.astype(np.float64) if wide else x
    out = {}
    for name, f in COLLECTIVES.items():
        each = spmd.shard_map(lambda part, f=f: f(part[0])[None], out_layouts=("r", None))
        out[name] = spmd.shard_map(lambda part, f=f: f(part[0]), out_layouts=("r",))(
            x) if name == "psum_scatter" else each(x)
    return out


def test_ranks_add_up_in_float32():
    assert {*COLLECTIVES, *EXTREMES} == {*combining.__all__}
    columns = np.array([[6e4, 6e4, 1.0, 0.3], [6e4, 3e4, 2.0, 0.3], [6e4, -6e4, 3.0, 0.3],
                        [6e4, -3e4, 4.0, 0.3], [6e4, 1.0, 5.0, 0.3]])
    for half in HALVES:
        x = columns.astype(numpy_dtype(BY_NAME[half]))
        exact = collected.eager(dtype=half, wide=True, ranks=5, x=x)
        for how, found in (("eager", collected.eager(dtype=half, ranks=5, x=x)),
                           ("image", spmd.build(collected, dtype=half).run(ranks=5, x=x))):
            for name, e in exact.items():
                check(found[name], e, half, f"{name} ({how})")

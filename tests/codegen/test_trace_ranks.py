"""The per-rank view: shards, exchange, layouts, symbolic extents; against NumPy."""

import itertools
import linecache

import numpy as np
import pytest

import spmd
from codegen.errors import (
    CarryError,
    DtypeError,
    LayoutError,
    MatchingError,
    ProgramError,
    SpmdError,
    UsageError,
)
from codegen.ir.graph import walk
from codegen.oracle import interpret
from codegen.symbolic import expr
from codegen.trace.number import number

SIZES = (1, 2, 3, 5, 8)


def run(program, sizes, **given):
    scalars = {k: v for k, v in given.items() if not isinstance(v, np.ndarray)}
    inputs = {k: v for k, v in given.items() if isinstance(v, np.ndarray)}
    sizes = {"r": sizes} if isinstance(sizes, int) else sizes
    return interpret.run(program.capture(), sizes, inputs, scalars)


def shards(array, n):
    return np.array_split(array, n)


def on_shards(f, shape, layout, out):
    """A program that applies f to the shard of u and returns what it gives, laid out as `out`."""

    @spmd.program(mesh=("r",))
    def case():
        u = spmd.input("u", shape, np.float64, layout=layout)
        return spmd.shard_map(f, out_layouts=out)(u)

    return case


U = np.round(np.random.default_rng(3).standard_normal((7, 5)), 2)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "f",
    [
        lambda u: u * 2 + 1,
        lambda u: u - u.mean(axis=1, keepdims=True),
        lambda u: np.concatenate([u, u], axis=1)[:, 2:7],
        lambda u: u[::-1],
        lambda u: u.T.T[:, ::-1],
        lambda u: (u[:, 1:] - u[:, :-1]) @ np.eye(4),
        lambda u: u.reshape(-1).reshape(u.shape),
        lambda u: np.where(np.arange(5) > 2, u, u[:, :1]),
        lambda u: np.sort(u, axis=0),
        lambda u: np.pad(u, 1)[1:-1, 1:-1],
        lambda u: np.vstack([u, u])[: u.shape[0]],
        lambda u: np.roll(u, 1, axis=0),
        lambda u: np.zeros_like(u) + np.ones_like(u[:, 0])[:, None],
        lambda u: np.repeat(u, 2, axis=1)[:, ::2],
        lambda u: np.cumsum(u, axis=0),
    ],
)
def test_functions_of_a_shard(f, n):
    program = on_shards(f, (7, 5), ("r", None), ("r", None))
    want = np.concatenate([f(s) if len(s) else s[:, : f(U).shape[1]] for s in shards(U, n)])
    np.testing.assert_allclose(run(program, n, u=U)["result"], want, atol=1e-12)


def test_slices_of_symbolic_extents_meet():
    """u[1:-1], u[:-2] and u[2:] have one extent, whatever the shard."""

    def f(u):
        out = u.copy()
        out[1:-1] = u[:-2] + u[2:] - 2 * u[1:-1]
        return out

    program = on_shards(f, (23, 5), ("r", None), ("r", None))
    big = np.arange(115.0).reshape(23, 5) ** 2
    for n in (1, 4, 11, 23, 30):
        want = np.concatenate([f(s) for s in shards(big, n)])
        np.testing.assert_allclose(run(program, n, u=big)["result"], want)


def test_slice_bounds_are_clamped_as_numpy_clamps():
    """Every combination of bounds and steps, at extents the compiler does not know."""
    values = (None, 0, 1, 3, 9, -1, -3, -9)
    steps = (None, 2, -1, -3)
    keys = [slice(*k) for k in itertools.product(values, values, steps)]

    def f(u):
        return np.stack([u[k].sum() + 100 * u[k].shape[0] for k in keys])[None]

    program = on_shards(f, (7,), ("r",), ("r", None))
    line = np.arange(7.0) + 1
    for n in (1, 2, 3, 8):
        got = run(program, n, u=line)["result"]
        for row, s in zip(got, shards(line, n)):
            want = [s[k].sum() + 100 * len(s[k]) for k in keys]
            np.testing.assert_allclose(row, want)


def test_constant_rows_of_a_shard_are_read_and_written():
    def f(u):
        u = u.copy()
        u[0] += 10
        u[-1] = u[0] * 2
        return u

    program = on_shards(f, (7, 5), ("r", None), ("r", None))
    for n in (1, 2, 3, 7):
        want = np.concatenate([f(s) for s in shards(U, n)])
        np.testing.assert_allclose(run(program, n, u=U)["result"], want)


# ---- exchange --------------------------------------------------------------------------------


def per_rank(f, out=("r", None)):
    """f(x) on each rank, x: one row of 4 float64 per rank, 4 * index + (0 1 2 3)."""

    @spmd.program(mesh=("r",))
    def case():
        n = spmd.axis_size("r")
        x = spmd.input("x", (n, 4), layout=("r", None), default=lambda r, c: 4 * r + c)
        return spmd.shard_map(f, mesh="r", out_layouts=out)(x)

    return case


def rows(n):
    return np.arange(4.0 * n).reshape(n, 4)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shift", [0, 1, -1, 2, 7])
def test_ppermute_shift(n, shift):
    program = per_rank(lambda x: spmd.ppermute(x, "r", shift=shift))
    np.testing.assert_array_equal(run(program, n)["result"], np.roll(rows(n), shift, axis=0))


@pytest.mark.parametrize("n", SIZES)
def test_ppermute_to_every_second_sends_nothing(n):
    program = per_rank(
        lambda x: spmd.ppermute(x, "r", to=lambda i, n: i + 1 if i < n - 1 else None)
    )
    want = np.zeros((n, 4))
    want[1:] = rows(n)[:-1]
    np.testing.assert_array_equal(run(program, n)["result"], want)


@pytest.mark.parametrize("n", SIZES)
def test_ppermute_reversed_and_nested_choice(n):
    def to(i, n):
        return (i + 1 if i + 1 < n else None) if i % 2 == 0 else i - 1

    program = per_rank(lambda x: spmd.ppermute(x, "r", to=lambda i, n: n - 1 - i) * 2
                       + spmd.ppermute(x, "r", to=to))
    want = rows(n)[::-1] * 2
    for i in range(n):
        if (d := to(i, n)) is not None:
            want[d] += rows(n)[i]
    np.testing.assert_array_equal(run(program, n)["result"], want)


def test_ppermute_pairs():
    program = per_rank(lambda x: spmd.ppermute(x, "r", perm=[(0, 2), (1, 0)]))
    want = np.zeros((4, 4))
    want[2], want[0] = rows(4)[0], rows(4)[1]
    np.testing.assert_array_equal(run(program, 4)["result"], want)


def test_ppermute_of_unequal_shards_has_the_senders_shape():
    """Blocks of 7 rows travel around the ring and come home."""

    def f(u):
        n = spmd.axis_size("r")
        return spmd.ppermute(spmd.ppermute(u, "r", shift=1), "r", shift=n - 1)

    program = on_shards(f, (7, 5), ("r", None), ("r", None))
    for n in SIZES:
        np.testing.assert_array_equal(run(program, n, u=U)["result"], U)


@pytest.mark.parametrize("n", SIZES)
def test_reductions_over_ranks(n):
    def f(x):
        i = spmd.axis_index("r")
        return (
            spmd.psum(x, "r"), spmd.pmax(x, "r"), spmd.pmin({"a": x}, "r")["a"], spmd.pmean(x, "r"),
            spmd.pprod(x[:, :1] * 0 + 2, "r"), spmd.psum(i, "r"), spmd.psum(x > 3, "r"),
            spmd.all_ranks(i < 3), spmd.any_ranks(i == 3), spmd.psum(1, "r"),
        )

    out = list(run(per_rank(f, out=spmd.replicated), n).values())
    x = rows(n)
    want = [
        x.sum(0, keepdims=True), x.max(0, keepdims=True), x.min(0, keepdims=True),
        x.mean(0, keepdims=True), np.full((1, 1), 2.0**n), n * (n - 1) // 2,
        (x > 3).sum(0, keepdims=True), n <= 3, n > 3, n,
    ]
    for got, expected in zip(out, want):
        assert got.dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("n", SIZES)
def test_gathers(n):
    def f(x):
        i = spmd.axis_index("r")
        stacked = spmd.all_gather(x[0], "r")  # (n, 4)
        joined = spmd.all_gather(x, "r", dim=1, tiled=True)  # (1, 4n)
        mine = spmd.psum_scatter(stacked, "r")  # (4,): n * row i
        blocks = spmd.psum_scatter(stacked * 1.0, "r", tiled=True)  # (1, 4)
        root = spmd.pbroadcast(x, "r", n_ - 1)
        return stacked, joined, mine[None], blocks, root, (stacked[i] - x[0])[None]

    @spmd.program(mesh=("r",))
    def case():
        x = spmd.input("x", (spmd.axis_size("r"), 4), layout=("r", None))
        return spmd.shard_map(
            f, out_layouts=(None, None, ("r", None), ("r", None), None, ("r", None))
        )(x)

    n_ = n if n == 1 else 1  # the root must exist: member 0
    got = list(run(case, n, x=rows(n)).values())
    np.testing.assert_array_equal(got[0], rows(n))
    np.testing.assert_array_equal(got[1], rows(n).reshape(1, -1))
    np.testing.assert_array_equal(got[2], rows(n) * n)
    np.testing.assert_array_equal(got[3], rows(n) * n)
    np.testing.assert_array_equal(got[4], rows(n)[:1])
    np.testing.assert_array_equal(got[5], rows(n) * 0)


@pytest.mark.parametrize("n", SIZES)
def test_all_gather_joins_unequal_shards(n):
    program = on_shards(lambda u: spmd.all_gather(u, "r", tiled=True), (7, 5), ("r", None), None)
    np.testing.assert_array_equal(run(program, n, u=U)["result"], U)


@pytest.mark.parametrize("n", SIZES)
def test_all_to_all_moves_the_split(n):
    program = on_shards(
        lambda u: spmd.all_to_all(u, "r", split_dim=1, concat_dim=0, tiled=True),
        (7, 5), ("r", None), (None, "r"),
    )
    np.testing.assert_array_equal(run(program, n, u=U)["result"], U)


@pytest.mark.parametrize("n", SIZES)
def test_all_to_all_untiled_is_a_transpose_of_ranks(n):
    def f(x):
        m = spmd.axis_size("r")
        mine = np.arange(m) + 100 * spmd.axis_index("r")  # element k goes to rank k
        return spmd.all_to_all(mine, "r", split_axis=0, concat_axis=0)[None]

    got = run(per_rank(f, ("r", None)), n)["result"]
    np.testing.assert_array_equal(got, np.arange(n)[:, None] + 100 * np.arange(n))


def test_two_axes():
    @spmd.program(mesh=("x", "y"))
    def case():
        u = spmd.input("u", (5, 7), layout=("x", "y"), default=lambda r, c: 10 * r + c)

        @spmd.shard_map(out_layouts=(("x", "y"), (), None, (("x", "y"),)))
        def f(u):
            both = spmd.axis_index(("x", "y"))
            right = spmd.ppermute(spmd.ppermute(u, "y", shift=1), "y", shift=-1)
            total = spmd.psum(np.sum(u), ("x", "y"))
            ring = spmd.ppermute(np.reshape(both, 1), ("x", "y"), shift=1)
            check = spmd.ranks() * 1000 + spmd.axis_size("x")
            return right, total, check, ring + 0 * spmd.index()

        return f(u)

    whole = 10.0 * np.arange(5)[:, None] + np.arange(7)
    for x, y in ((1, 1), (2, 3), (4, 2), (6, 1)):
        got = list(run(case, {"x": x, "y": y}).values())
        np.testing.assert_array_equal(got[0], whole)
        assert got[1] == whole.sum()
        assert got[2] == x * y * 1000 + x
        np.testing.assert_array_equal(got[3], np.roll(np.arange(x * y), 1))


def test_a_named_mesh_takes_all_axes_as_one():
    @spmd.program(mesh=("x", "y"))
    def case():
        ring = spmd.mesh("ring")
        u = spmd.input("u", (9,), layout=("ring",), default=lambda k: k)

        @spmd.shard_map(mesh=ring, out_layouts=("ring",))
        def f(u):
            i = spmd.axis_index("ring")
            return u + 0 * i + spmd.ppermute(u, ring, to=lambda k, n: k)

        return f(u)

    np.testing.assert_array_equal(run(case, {"x": 2, "y": 2})["result"], 2 * np.arange(9.0))


def test_numpy_makes_arrays_of_symbolic_extents():
    def f(x):
        n, i = spmd.axis_size("r"), spmd.axis_index("r")
        total = np.zeros((n, 2))
        total[i] += 3
        grid = np.arange(n) * np.ones(n, np.int64)
        pair = np.array([i, n])
        return (total + grid[:, None] + np.full((n, 1), 0.5) + np.eye(n)[:, :1] + pair)[None]

    program = per_rank(f, ("r", None, None))
    for n in SIZES:
        for i, got in enumerate(run(program, n)["result"]):
            want = np.zeros((n, 2))
            want[i] += 3
            want += np.arange(n)[:, None] + 0.5 + np.eye(n)[:, :1] + np.array([i, n])
            np.testing.assert_array_equal(got, want)


# ---- shard_map -------------------------------------------------------------------------------


def test_arguments_by_value_and_captured_globals():
    @spmd.program(mesh=("r",))
    def case():
        u = spmd.input("u", (6,), layout=("r",), default=lambda k: k)
        w = spmd.input("w", (2,), default=np.array([3.0, 4.0]))

        @spmd.shard_map(out_layouts=("r",))
        def f(u):
            u += w[1]
            return u * w[0]

        return {"v": f(u), "u": u, "w": w}

    out = run(case, 4)
    np.testing.assert_array_equal(out["v"], (np.arange(6.0) + 4) * 3)
    np.testing.assert_array_equal(out["u"], np.arange(6.0))


def test_pytrees_and_constants_as_arguments():
    table = np.arange(10.0)

    @spmd.program(mesh=("r",))
    def case():
        u = spmd.input("u", (10,), layout=("r",), default=lambda k: k)
        state = {"a": u, "b": (u, 2)}

        @spmd.shard_map(in_layouts=(("r",), ("r",)), out_layouts={"s": ("r",), "t": ("r",)})
        def f(state, t):
            return {"s": state["a"] + state["b"][0] * state["b"][1], "t": t}

        return f(state, table)

    out = run(case, 3)
    np.testing.assert_array_equal(out["s"], 3 * table)
    np.testing.assert_array_equal(out["t"], table)


def test_global_constructors():
    @spmd.program(mesh=("r",))
    def case():
        return {
            "z": spmd.zeros((3, 4), np.int32, layout=(None, "r")),
            "f": spmd.full((5,), 2.5, layout=("r",)),
            "a": spmd.arange(2, 20, 3, layout=("r",)),
            "e": spmd.eye(4, layout=("r", None)),
            "c": spmd.asarray(np.arange(7.0), layout=("r",)),
            "n": np.arange(3),
            "k": spmd.axis_size("r"),
            "l": spmd.ones_like(spmd.arange(6, layout=("r",))),
        }

    for n in (1, 3, 6):
        out = run(case, n)
        np.testing.assert_array_equal(out["z"], np.zeros((3, 4), np.int32))
        np.testing.assert_array_equal(out["f"], np.full(5, 2.5))
        np.testing.assert_array_equal(out["a"], np.arange(2, 20, 3))
        np.testing.assert_array_equal(out["e"], np.eye(4))
        np.testing.assert_array_equal(out["c"], np.arange(7.0))
        np.testing.assert_array_equal(out["n"], np.arange(3))
        np.testing.assert_array_equal(out["l"], np.ones(6, int))
        assert out["k"] == n


def test_scalars_and_symbolic_numbers():
    @spmd.program(mesh=("r",))
    def case(p: int = 3):
        steps = spmd.scalar("steps", 100)
        rate = spmd.scalar("rate", 0.5)

        @spmd.shard_map(out_layouts=spmd.replicated)
        def f():
            u = np.arange(10, dtype=np.float32)
            v = spmd.asarray(u)
            n = spmd.ranks()
            return (
                v * rate, v[steps % 10], (steps + 1) / 2, v[:2] + n, rate * 2 + 1, -steps // 7,
                np.where(steps > 50, v[1], v[2]), np.sqrt(rate), steps * 2.5, 2**p + steps,
            )

        return f()

    for n, steps in ((2, 100), (3, 17)):
        u = np.arange(10, dtype=np.float32)
        rate, out = 0.25, list(run(case, n, steps=steps, rate=0.25).values())
        want = [
            u * np.float32(rate), u[steps % 10], (steps + 1) / 2, u[:2] + np.float32(n),
            rate * 2 + 1, -steps // 7, u[1] if steps > 50 else u[2], np.sqrt(rate), steps * 2.5,
            8 + steps,
        ]
        for got, expected in zip(out, want):
            assert got.dtype == np.asarray(expected).dtype
            np.testing.assert_array_equal(got, expected)


def test_blocks_are_views_along_any_dim():
    def f(u):
        u = u.copy()
        b = spmd.blocks(u, 3, dim=1)
        b[0] = 0
        b[-1] += 1
        for part in b:
            part *= 2
        assert len(b) == 3
        return u

    program = on_shards(f, (7, 5), ("r", None), ("r", None))
    want = U.copy()
    want[:, :2] = 0
    want[:, 4:] += 1
    np.testing.assert_allclose(run(program, 3, u=U)["result"], want * 2)


BLOCKS = ["all_to_all", "all_gather"]
WHOLE = ["broadcast_from"] * 2  # before a loop and in it


@pytest.mark.parametrize("op, exchanges", [
    (lambda a, b, x: np.where(b > a, b, a) + 1, BLOCKS),
    (lambda a, b, x: np.hypot(a, b) * a.shape[0], BLOCKS),
    (lambda a, b, x: b, BLOCKS),
    (lambda a, b, x: a + b[::-1], WHOLE),
    (lambda a, b, x: a @ b, WHOLE),
    (lambda a, b, x: a + np.sum(b), WHOLE),
    (lambda a, b, x: a * x + b, WHOLE),
    (lambda a, b, x: a * spmd.axis_index("r") + b, WHOLE),
    (lambda a, b, x: np.copyto(x, a) or a + b, WHOLE),
])
def test_only_what_works_element_by_element_is_combined_in_blocks(op, exchanges):
    def f(u):
        x = spmd.zeros((7, 7)) + 1
        return spmd.preduce(x * 2, "r", lambda a, b: op(a, b, x), None)[0]

    module = on_shards(f, (7, 5), ("r", None), (None,)).capture()
    kinds = [op.kind.called for op in walk(module.body)]
    assert [k for k in kinds if k in ("all_to_all", "all_gather", "broadcast_from")] == exchanges


# ---- refusals --------------------------------------------------------------------------------


def refuse(kind, f, *needles, out=("r", None)):
    with pytest.raises(kind) as caught:
        per_rank(f, out).capture()
    text = str(caught.value)
    assert __file__ in text and "^" in text, text
    for needle in needles:
        assert needle in text, text


def test_illegal_exchange_is_refused():
    refuse(LayoutError, lambda x: spmd.psum(x, "q"), 'one of "r"', "q")
    refuse(UsageError, lambda x: spmd.ppermute(x, "r"), "shift=", "to=", "perm=")
    refuse(UsageError, lambda x: spmd.ppermute(x, "r", to=lambda i, n: x), "destination")
    refuse(MatchingError, lambda x: spmd.ppermute(x, "r", shift=spmd.axis_index("r")), "all ranks")
    refuse(MatchingError, lambda x: spmd.pbroadcast(x, "r", spmd.axis_size("r")), "does not exist")
    refuse(MatchingError, lambda x: spmd.pgather(x, "r", -1), "root of a pgather", "does not exist")
    refuse(MatchingError, lambda x: spmd.pscatter(x, "r", spmd.axis_index("r")), "the root differs")
    refuse(UsageError, lambda x: spmd.preduce(x, "r", "mean"), "no op 'mean'", "one of sum, prod")
    refuse(DtypeError, lambda x: spmd.pscan(x * 1.0, "r", "xor"), "pscan of float64", "x != 0")
    refuse(DtypeError, lambda x: spmd.por(x * 1j, "r"), "por of complex128")
    refuse(DtypeError, lambda x: spmd.pexscan(x * 1j, "r", "max"), "pexscan of complex128", "pscan")
    refuse(SpmdError, lambda x: spmd.pscan(x[:, : spmd.axis_index("r")], "r"), "other members")
    refuse(CarryError, lambda x: spmd.preduce(x, "r", lambda a, b: a > b), "op= of preduce", "bool")
    refuse(ProgramError, lambda x: spmd.pscan(x, "r", lambda a: a), "op= of pscan", "a, b")
    refuse(UsageError, lambda x: spmd.pexscan(x, "r", lambda a, b: a), "no op", "one of sum")
    refuse(UsageError, lambda x: spmd.pgather(x, "r", x), "known at launch", "axis sizes")
    refuse(SpmdError, lambda x: spmd.pscatter(x, "r"), "pscatter", "tiled=True")
    refuse(SpmdError, lambda x: spmd.pgather(x, "r", dim=3), "no dim 3")
    refuse(SpmdError, lambda x: spmd.psum(x[:, : spmd.axis_index("r")], "r"), "other members")
    refuse(SpmdError, lambda x: spmd.psum_scatter(x, "r"), "tiled=True")
    refuse(SpmdError, lambda x: ["a", "b", "c"][spmd.axis_index("r")], "subscripted by a value")


def test_illegal_results_are_refused():
    refuse(SpmdError, lambda x: x[:, : spmd.axis_index("r")], "differs between ranks")
    refuse(SpmdError, lambda x: np.concatenate([x] * 2)[: spmd.axis_index("r")], "balanced blocks")
    refuse(ProgramError, lambda x: None, "returned nothing")
    refuse(ProgramError, lambda x: "text", "returned a str")
    refuse(LayoutError, lambda x: x, "splits two dims", 'layout=("r", None)', out=("r", "r"))
    refuse(LayoutError, lambda x: x, "one entry per dim", out=("r",))
    refuse(LayoutError, lambda x: x, 'one of "r"', out=("z", None))


def test_outside_a_shard_map():
    @spmd.program(mesh=("r",))
    def index():
        return spmd.axis_index("r")

    @spmd.program(mesh=("r",))
    def local():
        @spmd.shard_map(out_layouts=())
        def f():
            value = spmd.zeros(3)
            linecache.cache["value"] = value  # nobody looks into the standard library's modules
            return np.sum(value)

        f()
        return linecache.cache.pop("value")

    for program, needle in ((index, "outside a shard_map"), (local, "one rank's array")):
        with pytest.raises(SpmdError, match=needle):
            program.capture()
    with pytest.raises(ProgramError, match="outside a program"):
        spmd.axis_size("r")


@pytest.mark.parametrize("mask", [0, 1, 2, 3, 5, 6, 8, 255, 1 << 20])
def test_bits_of_an_index(mask):
    """Masks with few bits stay formulas, also of negative numbers."""
    sym = expr.Sym("k", "scalar")
    k = number(expr.symbol(sym))
    pairs = [(k & mask, lambda v: v & mask), (k | mask, lambda v: v | mask),
             (k ^ mask, lambda v: v ^ mask), (mask ^ k, lambda v: v ^ mask)]
    for made, plain in pairs:
        for v in (*range(-20, 21), 255, 256, 1 << 20, (1 << 20) + 7):
            found = made.expr.evaluate({"k": v}) if hasattr(made, "expr") else made
            assert found == plain(v)

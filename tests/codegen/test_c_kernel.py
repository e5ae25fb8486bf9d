"""C functions of users in images: beside NumPy, in all that calls of kernels may ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd

FILE = "c_kernels.c"
SMOOTH = {
    dtype: spmd.c_kernel(
        FILE, f"void smooth_{dtype}(const {c} *u, {c} *out, int64_t rows, int64_t cols)")
    for dtype, c in (("float32", "float"), ("float64", "double"), ("int64", "int64_t"))
}
part = spmd.c_kernel(FILE, "void part(const double *x, double low, int64_t times, double *above, "
                           "float *below, int64_t n)")
turned = spmd.c_kernel(FILE, "void turned(const double _Complex *z, double complex by, "
                             "bool conjugate, uint8_t added, double _Complex *out, int64_t n);")
placed = spmd.c_kernel(FILE, "void placed(const double *u, const int64_t *at, double *out, "
                             "int64_t rows, int64_t cols)")
added = spmd.c_kernel(FILE, "void added(const double *a, const double *b, double *out, int64_t n)")
SLOPES = "void slopes(const double *u, double scale, double *out, int64_t n)"
slopes, with_back = spmd.c_kernel(FILE, SLOPES), spmd.c_kernel(FILE, SLOPES)
referred = spmd.c_kernel(
    FILE, SLOPES, reference=lambda u, scale: scale * (u[2:] - u[:-2]) * u[1:-1])


def back(u, scale, out, g):
    """Return the way back of slopes through the elements of a ring."""
    g = scale * g
    before, after = np.roll(u, 1), np.roll(u, -1)
    return np.roll(g * u, 1) - np.roll(g * u, -1) + g * (after - before), None


with_back.defvjp(back)
polynomial = spmd.c_kernel(
    FILE, "void polynomial(const double *c, int64_t terms, const float *x, int64_t n, double by, "
          "float *out, int64_t m, int *most)", signature="(k),(n),()->(n),()")


@spmd.program(mesh=("x", "y"))
def smoothed(dtype: str = "float32", n: int = 7, m: int = 11):
    u = spmd.input("u", (n, m), dtype, layout=("x", "y"), default=lambda i, j: i * j % 7)
    for _ in spmd.range(3):
        u = SMOOTH[dtype](u, out=spmd.like(u), halo={"u": (1, 1)}, boundary="wrap")
    return u


@pytest.mark.parametrize("dtype", list(SMOOTH))
def test_windows_of_split_arrays(dtype):
    u = np.fromfunction(lambda i, j: i * j % 7, (7, 11)).astype(dtype)
    for _ in range(3):
        near = [np.roll(u, k, axis) for axis in (1, 0) for k in (1, -1)]
        u = (u * 5 - (near[0] + near[1] + near[2] + near[3])).astype(dtype)
    image = spmd.build(smoothed, dtype=dtype)
    for ranks in (1, 3, 5):
        np.testing.assert_array_equal(image.run(ranks=ranks), u)
    np.testing.assert_array_equal(smoothed.eager(dtype=dtype), u)


@spmd.program(mesh=("r",))
def everything(n: int = 13):
    low, times = spmd.scalar("low", 0.5), spmd.scalar("times", 3)
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: np.cos(i))
    above, below = part(x, low, times=times, above=spmd.like(x),
                        below=spmd.empty(n, np.float32, layout=("r",)), halo={"x": (0,)})
    z = turned(x + 1j * x[::-1], 2 - 1j, True, 3, out=spmd.empty(n, complex))
    wide = spmd.asarray(np.ones((n, 4)), layout=("r", None))
    u = spmd.asarray(np.full((n, 4), 0.25), layout=("r", None))
    at = placed(u, spmd.start(u), out=wide, halo={"u": (0, 0)})

    @spmd.shard_map(mesh="r", out_layouts=(("r",), (None,)))
    def on_ranks(mine):
        some = added(mine, mine, out=spmd.like(mine), n=mine.shape[0] - 1)  # by hand: all but one
        return some, spmd.preduce(np.full(3, 2.0), "r", op=added, root=None)

    some, total = on_ranks(x)
    return {"above": above, "below": below, "z": z, "at": at, "some": some, "total": total}


def expected(n: int, ranks: int, low: float = 0.5, times: int = 3) -> dict[str, Any]:
    x = np.cos(np.arange(n, dtype=float))
    ends = np.cumsum([len(b) for b in np.array_split(x, ranks)]) - 1
    some = 2 * x
    some[ends] = 0
    return {
        "above": np.where(x > low, times * np.sin(x), 0),
        "below": np.where(x > low, 0, times * x).astype(np.float32),
        "z": np.conj(x + 1j * x[::-1]) * (2 - 1j) + 3,
        "at": 1.25 + np.fromfunction(lambda i, j: 10 * i + j, (n, 4)),
        "some": some, "total": np.full(3, 2.0 * ranks),
    }


def same(got: Any, want: dict[str, Any]) -> None:
    for name, value in want.items():
        np.testing.assert_allclose(np.asarray(got[name]), value, rtol=1e-14, err_msg=name)


def test_scalars_two_outputs_places_and_extents():
    image = spmd.build(everything)
    for ranks in (1, 3, 5):
        same(image.run(ranks=ranks), expected(13, ranks))
    same(image.run(ranks=3, low=0.1, times=7), expected(13, 3, 0.1, 7))
    same(everything.eager(), expected(13, 1))
    symbols = {row["symbol"]: row for row in image.manifest["kernels"]}
    assert {row["file"] for row in symbols.values()} == {FILE}
    assert all(row["buffers"] and row["operations"] for row in symbols.values())


@spmd.program(mesh=("r",))
def derived(by: str = "reference", n: int = 9):
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i * i / 8)
    kernel = {"reference": referred, "defvjp": with_back, "nothing": slopes}[by]

    def loss(u):
        return np.sum(kernel(u, 0.5, out=spmd.like(u), halo={"u": (1,)}, boundary="wrap") ** 2)

    many = spmd.vmap(lambda u, s: kernel(u, s, out=spmd.like(u[1:-1])))(
        np.stack([u, 2 * u]), np.array([1, 3]))  # int64, which C converts
    return {"loss": loss(u), "grad": spmd.grad(loss)(u), "many": many}


def in_numpy(u):
    padded = np.concatenate([u[-1:], u, u[:1]])
    return np.sum((0.5 * (padded[2:] - padded[:-2]) * padded[1:-1]) ** 2)


@spmd.program(mesh=("r",))
def by_rows(n: int = 7):
    x = spmd.input("x", (n, 5), np.float32, layout=("r", None), default=lambda i, j: i - j / 2)
    scales = spmd.asarray(np.arange(n), layout=("r",))  # int64, which C converts
    out, most = polynomial(np.array([1.0, 2.0, 0.5]), x, scales, out=spmd.like(x),
                           most=spmd.empty(n, np.int32))
    short, _ = polynomial(np.array([1.0, 2.0, 0.5]), x, scales, out=spmd.like(x),
                          most=spmd.empty(n, np.int32), terms=2)
    return {"out": out, "most": most, "short": short}


def test_a_signature_calls_it_for_each_row():
    x = np.fromfunction(lambda i, j: i - j / 2, (7, 5)).astype(np.float32)
    value = np.arange(7)[:, None] * (1 + 2.0 * x + 0.5 * x * x)
    want = {"out": value.astype(np.float32), "most": np.argmax(value, 1),
            "short": (np.arange(7)[:, None] * (1 + 2.0 * x)).astype(np.float32)}
    image = spmd.build(by_rows)
    for ranks in (1, 3, 5):
        same(image.run(ranks=ranks), want)
    same(by_rows.eager(), want)
    assert "all_gather" not in str(image.manifest["operations"])


def test_derivatives_go_through_the_reference_or_a_way_back():
    u = np.arange(9.0) ** 2 / 8
    steps = 1e-6 * np.eye(9)
    slope = [(in_numpy(u + h) - in_numpy(u - h)) / 2e-6 for h in steps]
    many = np.stack([s * (x[2:] - x[:-2]) * x[1:-1] for x, s in ((u, 1), (2 * u, 3))])
    image, by_hand = spmd.build(derived), spmd.build(derived, by="defvjp")
    for out in (image.run(ranks=1), image.run(ranks=3), derived.eager(), by_hand.run(ranks=2)):
        np.testing.assert_allclose(out["loss"], in_numpy(u), rtol=1e-13)
        np.testing.assert_allclose(out["grad"], slope, rtol=1e-6)
        np.testing.assert_allclose(out["many"], many, rtol=1e-13)
    with pytest.raises(spmd.UnsupportedError, match="slopes.defvjp"):
        spmd.build(derived, by="nothing")

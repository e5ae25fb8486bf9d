"""Every NumPy function and method the tracer knows, against NumPy, by the interpreter."""

import math

import numpy as np
import pytest

import spmd
import spmd.numpy as xp
from codegen.errors import SpmdError
from codegen.oracle import interpret

RNG = np.random.default_rng(7)
U = np.round(RNG.standard_normal((4, 6)), 2)
F = U.astype(np.float32)
V = np.round(RNG.standard_normal(6), 2)
I = RNG.integers(-9, 9, (4, 6))  # noqa: E741
S = RNG.integers(-100, 100, (4, 6)).astype(np.int8)
B = RNG.random((4, 6)) < 0.5
C = (U + 1j * U[::-1]).astype(np.complex64)
T = np.round(RNG.standard_normal((2, 3, 4)), 2)
K = np.array([3, 0, -1, 2, 2])
H = F.astype(np.float16)
OUT = np.zeros((4, 6))


def traced(f, *arrays, sizes=2):
    """f of replicated arrays inside a shard_map, interpreted; a list of the results."""

    @spmd.program(mesh=("r",))
    def case():
        xs = [spmd.input(f"a{k}", a.shape, a.dtype) for k, a in enumerate(arrays)]

        @spmd.shard_map(out_layouts=spmd.replicated)
        def body(*xs):
            return f(*xs)

        return body(*xs)

    module = case.capture()
    given = {f"a{k}": a for k, a in enumerate(arrays)}
    return list(interpret.run(module, {"r": sizes}, given).values())


def leaves(x):
    return [y for e in x for y in leaves(e)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


def check(f, *arrays):
    with np.errstate(all="ignore"):
        expected = leaves(f(*[a.copy() for a in arrays]))
    found = traced(f, *arrays)
    assert len(found) == len(expected)
    for got, want in zip(found, expected):
        agree(got, want, "")


def check_all(cases, *arrays):
    """Several functions in one program."""
    with np.errstate(all="ignore"):
        expected = [leaves(f(*[a.copy() for a in arrays])) for f in cases]
    found = iter(traced(lambda *xs: [f(*xs) for f in cases], *arrays))
    for k, wanted in enumerate(expected):
        for want in wanted:
            agree(next(found), want, f"case {k}")
    assert next(found, None) is None


def agree(got, want, what):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    tolerance = 1e-5 if want.itemsize < 8 else 1e-12
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-6, err_msg=what)


UFUNCS = [
    lambda u: u + 1, lambda u: 1 - u, lambda u: u * 2.5, lambda u: 2 / u, lambda u: u // 0.3,
    lambda u: u % 0.7, lambda u: -u, lambda u: abs(u), lambda u: u**2, lambda u: 2.0**u,
    lambda u: u > 0, lambda u: (u >= 0) & (u < 1), lambda u: ~(u < 0), lambda u: u == u.T.T,
    np.exp, np.sin, np.tanh, np.sign, np.floor, np.ceil, np.rint, np.square, np.isnan, np.cbrt,
    lambda u: np.sqrt(np.abs(u)), lambda u: np.maximum(u, 0), lambda u: np.arctan2(u, 1),
    lambda u: np.hypot(u, 2), lambda u: np.copysign(u, -1), lambda u: np.where(u > 0, u, 0),
    lambda u: np.where(u > 0, 1, 2), lambda u: np.logaddexp(u, 1), lambda u: divmod(u, 0.5),
    lambda u: np.modf(u), lambda u: np.fmax(u, 0), lambda u: np.deg2rad(u), lambda u: np.fabs(u),
    lambda u: np.heaviside(u, 0.5), lambda u: np.positive(u), lambda u: np.trunc(u),
    lambda u: np.clip(u, -0.5, 0.5), lambda u: u.clip(0), lambda u: np.round(u, 1),
    lambda u: u.round(), lambda u: np.isclose(u, u + 1e-9), lambda u: np.allclose(u, u),
    lambda u: np.nan_to_num(u / 0.0), lambda u: u + np.arange(6), lambda u: u * np.float64(2),
    lambda u: np.add(u, u, dtype=np.float64), lambda u: np.float_power(u, 2),
    lambda u: u + [1, 2, 3, 4, 5, 6], lambda u: np.array_equal(u, u),
    lambda u: np.interp(u, [-1.0, 0.0, 1.0], [0.0, 1.0, 4.0]), lambda u: np.isin(u, [0.5, 1.0]),
]


@pytest.mark.parametrize("a", [U, F], ids=["float64", "float32"])
def test_elementwise(a):
    check_all(UFUNCS, a)


INTEGERS = [
    lambda i: i + 1, lambda i: i / 2, lambda i: i // 3, lambda i: i % 4, lambda i: i * 2.5,
    lambda i: -i, lambda i: abs(i), lambda i: i & 6, lambda i: i | 1, lambda i: i ^ 5,
    lambda i: ~i, lambda i: i << 1, lambda i: i >> 1, lambda i: i.sum(), lambda i: i.prod(axis=0),
    lambda i: i.mean(), lambda i: i.max(), lambda i: np.sqrt(i * i), lambda i: i + np.int32(3),
    lambda i: i + np.float32(1), lambda i: i > 2, lambda i: i.cumsum(axis=1), lambda i: i.var(),
    lambda i: np.sign(i), lambda i: np.median(i), lambda i: i.astype(np.float32),
    lambda i: i.astype(bool), lambda i: np.exp(i / 50), lambda i: np.isfinite(i),
]


@pytest.mark.parametrize("a", [I, S, S.astype(np.uint16) % 50], ids=["int64", "int8", "uint16"])
def test_integers(a):
    check_all(INTEGERS, a)


REDUCE = [
    lambda u: u.sum(), lambda u: u.sum(axis=0), lambda u: u.sum(1, keepdims=True),
    lambda u: np.sum(u, axis=(0, 1)), lambda u: u.mean(axis=-1), lambda u: np.mean(u, where=u > 0),
    lambda u: u.var(axis=0), lambda u: u.std(ddof=1), lambda u: u.min(), lambda u: u.max(axis=1),
    lambda u: u.argmax(), lambda u: u.argmin(axis=0), lambda u: np.argmax(u, 1, keepdims=True),
    lambda u: np.any(u > 1), lambda u: np.all(u > -9, axis=0), lambda u: np.count_nonzero(u > 0),
    lambda u: np.cumsum(u), lambda u: np.cumprod(u, axis=0), lambda u: np.ptp(u, axis=1),
    lambda u: np.sum(u, where=u > 0, axis=0), lambda u: np.max(u, initial=5.0),
    lambda u: np.add.reduce(u), lambda u: np.maximum.accumulate(u, axis=1),
    lambda u: np.logical_or.reduce(u > 1), lambda u: np.sort(u), lambda u: np.sort(u, axis=0),
    lambda u: np.argsort(u, axis=None), lambda u: np.median(u, axis=1), lambda u: np.average(u),
    lambda u: np.average(u, axis=0, weights=np.arange(4) + 1.0), lambda u: np.diff(u),
    lambda u: np.diff(u, 2, axis=0), lambda u: np.trapezoid(u), lambda u: np.linalg.norm(u),
    lambda u: np.linalg.norm(u, axis=1), lambda u: np.multiply.outer(u[0], u[1]),
    lambda u: u.sum(dtype=np.float64), lambda u: u.trace(), lambda u: np.diag(u), lambda u: sum(u),
]


@pytest.mark.parametrize("a", [U, F], ids=["float64", "float32"])
def test_reductions(a):
    check_all(REDUCE, a)


SHAPE = [
    lambda u: u.T, lambda u: u.reshape(6, 4), lambda u: u.reshape(2, -1), lambda u: u.ravel(),
    lambda u: u.reshape((3, 8)).T, lambda u: np.transpose(u), lambda u: u.swapaxes(0, 1),
    lambda u: np.moveaxis(u, 0, 1), lambda u: u[np.newaxis], lambda u: np.expand_dims(u, (0, 3)),
    lambda u: np.squeeze(u[:1]), lambda u: np.concatenate([u, u[:2]]), lambda u: np.hstack([u, u]),
    lambda u: np.vstack([u, u[0]]), lambda u: np.stack([u, u + 1], axis=1), lambda u: u.flatten(),
    lambda u: np.concatenate([u, np.ones((4, 2))], axis=1), lambda u: np.roll(u, 2),
    lambda u: np.roll(u, -1, axis=1), lambda u: np.roll(u, (1, 2), (0, 1)), lambda u: np.flip(u),
    lambda u: np.flip(u, 0), lambda u: np.rot90(u), lambda u: np.tile(u, (2, 3)),
    lambda u: np.tile(u, 2), lambda u: np.repeat(u, 3, axis=1), lambda u: np.repeat(u, 2),
    lambda u: np.pad(u, 1), lambda u: np.pad(u, ((1, 2), (0, 3)), constant_values=7),
    lambda u: np.pad(u, 2, mode="edge"), lambda u: np.pad(u, 2, mode="wrap"),
    lambda u: np.pad(u, 2, mode="reflect"), lambda u: np.pad(u, 2, mode="symmetric"),
    lambda u: np.split(u, 2), lambda u: np.array_split(u, 4, axis=1), lambda u: np.split(u, [1, 3]),
    lambda u: np.broadcast_to(u[0], (3, 6)), lambda u: np.tril(u), lambda u: np.triu(u, 1),
    lambda u: [np.roll(u, [1, 2], [0, 0]), np.roll(u, np.array([1, 2]), (1, 0))],
    lambda u: np.eye(4) @ u, lambda u: np.diag(u[0]), lambda u: np.meshgrid(u[0], u[1]),
    lambda u: np.meshgrid(u[0], u[:, 1], indexing="ij"), lambda u: np.atleast_3d(u),
    lambda u: np.column_stack([u[0], u[1]]), lambda u: np.zeros_like(u),
    lambda u: np.full_like(u, 3),
    lambda u: np.append(u, u[:1], axis=0), lambda u: np.block([[u, u], [u, u]]), lambda u: u.copy(),
    lambda u: [r * 2 for r in u], lambda u: np.asarray(u), lambda u: np.zeros_like(u, dtype=int),
]


def test_shapes():
    check_all(SHAPE, U)


PRODUCTS = [
    lambda a, t: a @ a.T, lambda a, t: a @ a[0], lambda a, t: a[:, 0] @ a, lambda a, t: a[0] @ a[1],
    lambda a, t: np.dot(a, a.T), lambda a, t: np.dot(a[0], a[1]), lambda a, t: np.outer(a[0], a[1]),
    lambda a, t: t @ t.swapaxes(1, 2), lambda a, t: np.matmul(t, t[0].T),
    lambda a, t: np.tensordot(a, t, ((0,), (2,))), lambda a, t: np.inner(a, a),
    lambda a, t: np.einsum("ij,kj->ik", a, a), lambda a, t: np.einsum("ij->ji", a),
    lambda a, t: np.einsum("ij,ij->", a, a), lambda a, t: np.einsum("ij,ij->i", a, a),
    lambda a, t: np.einsum("bij,bkj->bik", t, t), lambda a, t: np.einsum("ii->i", a[:, :4]),
    lambda a, t: np.einsum("ij,kl->ijkl", a[:2], a[2:]),
    lambda a, t: np.einsum("ij,jk,kl", a, a.T, a),
    lambda a, t: np.einsum("...ij,...kj->...ik", t, t), lambda a, t: np.vdot(a, a),
    lambda a, t: np.kron(a[:2, :2], a[2:, :2]), lambda a, t: a.dot(a.T),
    lambda a, t: np.convolve(a[0], a[1, :3], "same"), lambda a, t: np.trace(a @ a.T),
    lambda a, t: [np.convolve(v, w, mode) for mode in ("full", "same", "valid")
                  for v, w in ((a[0, :3], a[1]), (a[0], 2.0), ([1, 2], a[0]))],
    lambda a, t: a @ np.ones((6, 2)), lambda a, t: np.arange(4) @ a,
]


def test_products():
    check_all(PRODUCTS, U, T)


INDEX = [
    lambda u, k: u[0], lambda u, k: u[-1, 2:], lambda u, k: u[1:3, ::2], lambda u, k: u[::-1],
    lambda u, k: u[5:1:-2], lambda u, k: u[:, ::-2], lambda u, k: u[..., 1],
    lambda u, k: u[None, 1],
    lambda u, k: u[2, 3], lambda u, k: u[10:], lambda u, k: u[-9:2], lambda u, k: u[:, -3:-1],
    lambda u, k: u[k], lambda u, k: u[:, k], lambda u, k: u[[0, 2, -1]], lambda u, k: u[k, k],
    lambda u, k: u[k[:, None], k], lambda u, k: u[1, k], lambda u, k: u[k, 1:3],
    lambda u, k: u[None, k, :, None], lambda u, k: np.take(u, k, axis=1), lambda u, k: u.take(k),
    lambda u, k: u[k[0]], lambda u, k: u[k[2], k[1]], lambda u, k: u[np.array([True, False] * 2)],
    lambda u, k: np.take_along_axis(u, np.argsort(u, axis=1), 1), lambda u, k: u[..., None, 0:2],
    lambda u, k: u[np.ix_(np.array([0, 2]), np.array([1, 5]))], lambda u, k: u[()],
    lambda u, k: np.searchsorted(np.sort(u[0]), u[1]), lambda u, k: u[k - 1][::2].T,
]


def test_indexing():
    check_all(INDEX, U, K)


def _w(body):
    """A function that writes into a copy of u and returns it."""

    def f(u, k):
        u = u.copy()
        body(u, k)
        return u

    return f


def _assign_slice(u, k):
    u[1:3, ::2] = 7


def _add_slice(u, k):
    u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1])


def _shift(u, k):
    u[1:] = u[:-1]


def _alias(u, k):
    b = u[1]
    c = b[::-1]
    c[:2] = -1
    b += 10


def _through_transpose(u, k):
    u.T[2] = np.arange(4)
    u.T[1:3] *= 2


def _through_reshape(u, k):
    u.reshape(2, 12)[1, 3:7] = 5
    u.reshape(-1)[::5] -= 1


def _row_broadcast(u, k):
    u[:] = u[0]


def _mask(u, k):
    u[u > 0] = 0
    u[u[:, 0] < 0] = 9


def _scatter(u, k):
    u[k] = 1
    u[k, 2] += 3
    u[:, k] = 2


def _add_at(u, k):
    np.add.at(u, k, 1.5)
    np.add.at(u, (k, 0), 1.0)
    np.maximum.at(u, (k[:2], k[:2]), 0.7)


def _element(u, k):
    a = u[0, 1]
    b = a
    a += 1
    u[0, 2] = a
    u[0, 3] = b
    u[0, 0] += 4


def _dynamic(u, k):
    u[k[0]] += 1
    u[k[2], 1:3] = 8
    row = u[k[1]]
    row[2:] *= 2


def _out(u, k):
    np.add(u, 1, out=u)
    np.multiply(u, 2, out=u, where=u > 0)
    u **= 2
    u.fill(3)
    u[0].sort()


def _swap(u, k):
    u[0], u[1] = u[1], u[0]
    u[[0, 1]] = u[[1, 0]]


def _newaxis(u, k):
    u[:, None][1, 0, 2:] = 6
    u[..., 0][:] = 1
    a = u[1, 1, ...]
    a += 5


WRITES = [
    _assign_slice, _add_slice, _shift, _alias, _through_transpose, _through_reshape, _row_broadcast,
    _mask, _scatter, _add_at, _element, _dynamic, _out, _swap, _newaxis,
]


@pytest.mark.parametrize("body", WRITES, ids=lambda f: f.__name__)
def test_writes(body):
    check(_w(body), U, K)


OTHERS = [
    lambda: (lambda c: (c.real, c.imag, c.conj(), abs(c), c * 2, c + 1j, c.sum(), np.angle(c)), C),
    lambda: (lambda b: (b.sum(), b & ~b, b | True, b + b, b.astype(float), b.mean(), b.any()), B),
    lambda: (lambda h: (h + 1, h * 2.5, h.mean(), h + np.float32(1), h.max(), h.sum()), H),
    lambda: (lambda i, f: (i + f, i * f, np.where(f > 0, i, f), i < f), I, F),
    lambda: (lambda s: (s + s, s + 1, s * 2.5, s.sum(), s / 3, s + np.int64(4)), S),
    lambda: (lambda i: (i == np.uint64(3), i < i.astype(np.uint64)), I),
    lambda: (lambda t: (t[:, 1:, ::2].sum((0, 2)), t.transpose(2, 0, 1), t[1][:, None] + t[0]), T),
]


@pytest.mark.parametrize("k", range(len(OTHERS)))
def test_types(k):
    check(*OTHERS[k]())


REFUSED = [
    (lambda u: np.nonzero(u), "np.nonzero", "np.where"),
    (lambda u: u[u > 0], "depends on data", "np.where"),
    (lambda u: np.unique(u), "np.unique gives an array", "spmd.numpy.unique(x, size=n)"),
    (lambda u: np.ma.masked_array(u), "np.ma.MaskedArray", "where=mask"),
    (lambda u: list(np.nditer(u)), "np.nditer", "for k in spmd.range"),
    (lambda u: np.polynomial.Polynomial(u[0]), "Polynomial", "polyval(x, c)"),
    (lambda u: np.less.reduce(u), "np.less makes bool of float64", "type of the operands"),
    (lambda u: np.subtract.reduce(u, axis=None), "not reorderable", "axis=0"),
    (lambda u: spmd.top_k(u, 7), "top_k", "0 to 6"),
    (lambda u: xp.quantile(u, 0.5, speed=1), "np.quantile with speed=", "without it"),
    (lambda u: np.quantile(u, u[0, 0]), "a q that depends on data", "numbers as q"),
    (lambda u: np.linalg.inv(u[:, :3]), "square matrices", "one extent"),
    (lambda u: np.linalg.solve(u[:, :4], u[:3, 0]), "unequal numbers of rows", "4 rows"),
    (lambda u: np.linalg.cholesky(u[0]), "takes matrices", "2 dims or more"),
    (lambda u: np.linalg.svd(u.astype(np.float16)), "np.linalg.svd of float16", "float32"),
    (lambda u: np.bincount(u[0].astype(int)), "np.bincount", "np.add.at"),
    (lambda u: np.fft.fft(u, 0), "number of FFT data points", "0"),
    (lambda u: np.fft.rfft(u * 1j), "rfft", "signature"),
    (lambda u: np.fft.ifft2(u, norm="half"), "Invalid norm value half", "ortho"),
    (lambda u: np.vectorize(abs)(u), "np.vectorize", "spmd.kernel"),
    (lambda u: np.random.default_rng(1).permutation(u), "permutation", "spmd.random"),
    (lambda u: u.view(np.int64), "x.view(t)", "astype"),
    (lambda u: u + np.ones(5), "could not be broadcast", "(4, 6) and (5,)"),
    (lambda u: u.reshape(5, 5), "cannot reshape", "24"),
    (lambda u: u[:, 9], "out of bounds", "extent 6"),
    (lambda u: u[0, 0, 0], "too many indices", "at most 2"),
    (lambda u: complex(u[0, 0]), "not known while building", "Python complex"),
    (lambda u: math.factorial(u[0, 0]), "math.factorial", "math.gamma(n + 1)"),
    (lambda u: u.item(), "item() of an array with several", "x.item(0)"),
    (lambda u: u.tolist(), "not known while building", "return the array"),
    (lambda u: f"{u[0, 0]:.2f}", "not known while building", "spmd.print"),
    (lambda u: ["a", "b", "c"][u[0].argmax()], "not known while building", "spmd.range"),
    (lambda u: u[: u[0].argmax()], "only at run time", "dynamic_slice"),
    (lambda u: u @ u, "matmul", "shapes (4, 6) and (4, 6)"),
    (lambda u: u & 1, "bitwise_and", "element types"),
    (lambda u: u.astype("datetime64[s]"), "not an element type", "float32"),
    (lambda u: u.sum(axis=2), "out of bounds", "from -2 to 1"),
    (lambda u: np.concatenate([u, u.T]), "must match", "(6, 4)"),
    (lambda u: np.sin(u, out=OUT), "OUT is a NumPy array", "OUT.copy()"),
    (lambda u: np.roll(u, [1, 2, 3], [0, 1]), "do not pair up", "3 and 2"),
    (lambda u: np.convolve(u, u[0]), "np.convolve", "one dim"),
    (lambda u: u.astype(int) ** -1, "negative integer powers", "1 / x"),
    (lambda u: np.power(u.astype(int), np.array([1, 2, 3, -2, 0, 1])), "powers", "0 or more", "-2"),
    (lambda u: np.choose(np.array([0, 2, 1, 0, 0, 0]), [u[0], u[1]]), "choice", "0 to 1", "clip"),
    (lambda u: np.average(u[0], weights=np.zeros(6)), "weights sum to zero", "ZeroDivisionError"),
    (lambda u: [0 for _ in spmd.range(2**63 - 2, 2**63 + 1)], "64 bits", str(2**63 + 1)),
    (lambda u: u.astype(np.uint8) + 300, "out of bounds", "0 to 255"),
]


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_refusals_name_the_place_and_a_remedy(k):
    f, *needles = REFUSED[k]
    with pytest.raises(SpmdError) as caught:
        traced(f, U)
    text = str(caught.value)
    assert __file__ in text and "^" in text
    for needle in needles:
        assert needle in text


def test_in_place_results_must_cast():
    def f(i):
        i = i.copy()
        i += 1.5
        return i

    with pytest.raises(SpmdError, match="same_kind"):
        traced(f, I)


def test_broadcast_views_are_read_only():
    def f(u):
        b = np.broadcast_to(u[0], (3, 6))
        b[0] = 1
        return b

    with pytest.raises(SpmdError, match="read-only"):
        traced(f, U)


def test_einsum_of_one_array_is_a_view():
    def written(u):
        u = u * 1
        turned, shown = np.einsum("ij->ji", u), np.einsum("i...->...i", u)
        turned[0] = 7
        shown[1, 2] = 8
        u[1, 1] = 9
        return u, turned * 1, np.einsum("ii->i", u[:3, :3]) * 1

    def diagonal(u):
        np.einsum("ii->i", u)[:] = 1
        return u

    u = np.arange(12.0).reshape(3, 4)
    for ranks in (1, 3):
        for got, want in zip(spmd.jit(written, ranks=ranks)(u), written(u), strict=True):
            np.testing.assert_array_equal(got, want)
    with pytest.raises(SpmdError, match="read-only"):
        spmd.jit(diagonal)(u[:3, :3])


def test_at_gives_a_new_array():
    def f(u):
        v = u.at[1, 2:4].set(9)
        w = u.at[np.array([0, 0, 1])].add(1.0)
        x = u.at[u > 0].mul(2).at[0].min(0).at[1].max(0.1)
        return u, v, w, x

    u, v, w, x = traced(f, U)
    np.testing.assert_array_equal(u, U)
    want = U.copy()
    want[1, 2:4] = 9
    np.testing.assert_array_equal(v, want)
    want = U.copy()
    np.add.at(want, [0, 0, 1], 1.0)
    np.testing.assert_allclose(w, want)
    want = np.where(U > 0, U * 2, U)
    want[0], want[1] = np.minimum(want[0], 0), np.maximum(want[1], 0.1)
    np.testing.assert_allclose(x, want)


def test_run_time_indices_beyond_the_ends():
    """Reads are clamped, writes dropped, negative ones count from the end."""

    def f(u, k):
        reads = u[k[0]], u[k[1]], u[k]
        v = u.copy()
        v[k[0]] = 1
        v[k[1]] = 2
        w = u.copy()
        w[k] = 3
        return *reads, v, w

    a, b, c, v, w = traced(f, U, np.array([9, -2, -9]))
    np.testing.assert_array_equal(a, U[-1])
    np.testing.assert_array_equal(b, U[-2])
    np.testing.assert_array_equal(c, U[[3, 2, 0]])
    want = U.copy()
    want[2] = 2
    np.testing.assert_array_equal(v, want)
    want[2] = 3
    np.testing.assert_array_equal(w, want)


def test_dynamic_boxes():
    def f(u, k):
        box = spmd.dynamic_slice(u, (k[0], 1), (2, 3))
        return box, spmd.dynamic_update_slice(u, box * 0, (k[1], k[1]))

    box, new = traced(f, U, np.array([2, 3]))
    np.testing.assert_array_equal(box, U[2:4, 1:4])
    want = U.copy()
    want[2:4, 3:6] = 0
    np.testing.assert_array_equal(new, want)


@pytest.mark.parametrize("k", [-9, -4, -1, 0, 1, 2, 3, 9])
def test_boxes_are_clamped_as_by_jax(k):
    """A negative start counts from the end; then the whole box is moved inside."""

    def f(x, k):
        return spmd.dynamic_slice(x, (k,), (2,)), spmd.dynamic_update_slice(x, x[:2] * 0 - 1, (k,))

    x = np.arange(4.0)
    first = int(np.clip(k + 4 if k < 0 else k, 0, 2))
    box, new = traced(f, x, np.array(k))
    np.testing.assert_array_equal(box, x[first : first + 2])
    x[first : first + 2] = -1
    np.testing.assert_array_equal(new, x)


def test_an_initial_value_counts_once_whatever_the_mask():
    def f(u):
        return [r(u, axis=a, initial=2, where=u > 0)
                for r in (np.sum, np.prod, np.max, np.min) for a in (None, 0, 1)]

    for got, want in zip(traced(f, U), f(U)):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_weights_are_summed_as_wide_as_the_data():
    draw = np.random.default_rng(1)
    x, w = draw.standard_normal((30, 5)), draw.standard_normal((30, 5)).astype(np.float32)
    found = traced(lambda x, w: np.average(x, weights=w), x, w)
    np.testing.assert_allclose(found, np.average(x, weights=w), rtol=1e-12)


def test_grids_of_indices_are_formulas():
    grid = np.arange(100)[:, None] * 3 - np.arange(50.0) + 2

    def f(u):
        return u[0, 0] * 0 + grid, u[0, 0] * 0 + np.arange(100)[::-1], u[0, 0] * 0 + U[0]

    for got, want in zip(traced(f, U), (grid, np.arange(100)[::-1], U[0])):
        np.testing.assert_array_equal(got, want)


def test_the_array_api_namespace():
    def f(u):
        xp = u.__array_namespace__()
        return xp.sum(xp.exp(u), axis=0), xp.concat([u, u]), xp.pow(u, 2), xp.matmul(u, u.T)

    want = np.exp(U).sum(0), np.concatenate([U, U]), U**2, U @ U.T
    for got, expected in zip(traced(f, U), want):
        np.testing.assert_allclose(got, expected)

"""What few programs reach, as NumPy has it: bools, complex numbers, empty arrays, -0.0."""

import numpy as np
import pytest

import spmd
from codegen.dtypes import FLOAT64
from codegen.errors import DtypeError, ShapeError, SpmdError, UnsupportedError
from codegen.ir.plan import Literal
from tests.codegen.test_trace_numpy import S, T, agree, check, check_all, traced

C = np.array([1 + 1j, -1j, complex(np.nan, 0), complex(np.inf, -1), 0, complex(-0.0, -2), 3],
             np.complex64)
B = np.array([True, False, True, True, False, False, True])
I = np.array([-128, -127, -1, 0, 1, 7, 127], np.int8)  # noqa: E741
F = np.array([[-np.inf, np.nan, -1.5], [np.nan, np.nan, np.nan], [1, 2, np.nan]], np.float32)
V = np.array([3, 1, 4, 1, 5])

TYPES = [
    lambda c, b, i: np.select([b, ~b], [i, 2]), lambda c, b, i: np.select([b], [np.float32(1)], i),
    lambda c, b, i: np.bitwise_count(i), lambda c, b, i: np.bitwise_count(i.astype(np.int64)),
    lambda c, b, i: np.angle(b), lambda c, b, i: np.angle(i), lambda c, b, i: np.angle(c[:2]),
    lambda c, b, i: np.round(b), lambda c, b, i: np.heaviside(b, 1), lambda c, b, i: np.vdot(b, b),
    lambda c, b, i: np.heaviside(i, 2.5), lambda c, b, i: np.heaviside(i, 1),
    lambda c, b, i: b.max(initial=3), lambda c, b, i: i.max(initial=np.int64(9)),
    lambda c, b, i: i.max(initial=2.5), lambda c, b, i: i.sum(initial=2.5),
    lambda c, b, i: c[:2].std(), lambda c, b, i: c[:2].var(ddof=1, where=b[:2] | True),
    lambda c, b, i: c[:2].var(dtype=np.complex128), lambda c, b, i: np.nanstd(c[:3]),
    lambda c, b, i: np.nanmax(c), lambda c, b, i: np.nanmin(c), lambda c, b, i: np.nanargmax(c),
    lambda c, b, i: np.round(c, 1), lambda c, b, i: np.round(c[0] / 3, 2),
    lambda c, b, i: i ** np.float64(2), lambda c, b, i: c ** 0.5,
    lambda c, b, i: b**2, lambda c, b, i: np.power(b, 2), lambda c, b, i: b[0] ** 2,
    lambda c, b, i: (i > 0)[:, None] ** 2, lambda c, b, i: b ** np.int64(2),
    lambda c, b, i: np.sinc(i.astype(np.float16)),
    lambda c, b, i: -abs(i[4:]).astype(np.float32) * 0 ** np.float64(0.5),
]


@pytest.mark.filterwarnings("ignore")
def test_types_that_few_programs_use():
    check_all(TYPES, C, B, I)


JOINED = [  # no number is weak in an array of several
    lambda f, i: np.append(f[0], 1.5), lambda f, i: np.append(i, 1), lambda f, i: np.hstack([i, 3]),
    lambda f, i: np.stack([f[0, 0], 1.0]), lambda f, i: np.array([f[0, 0], 1]),
    lambda f, i: np.array([[1, i[1]], [i[2], 3]]), lambda f, i: np.diff(i, append=1),
    lambda f, i: np.ediff1d(i, to_begin=1), lambda f, i: np.vander(i, 3),
    lambda f, i: np.radians(i.astype(np.int16)), lambda f, i: np.vecdot(i, i),
    lambda f, i: np.bitwise_or.reduce(i, initial=1, where=i > 0), lambda f, i: np.r_[f[0], 1.0],
    lambda f, i: np.logical_and.reduce(i, initial=False), lambda f, i: np.vecdot(i > 0, i > 1),
]


def test_numbers_in_lists():
    check_all(JOINED, F, I)


LANES = [
    lambda t, f: np.median(t, axis=(0, 1)), lambda t, f: np.median(t, axis=()),
    lambda t, f: np.median(t, axis=(2, 1), keepdims=True), lambda t, f: np.median(t, keepdims=1),
    lambda t, f: np.quantile(t, [0.3, 0.6], axis=(0, 2), keepdims=True),
    lambda t, f: np.quantile(t, 0.3, axis=1, keepdims=1), lambda t, f: np.percentile(t, 3, (1,)),
    lambda t, f: np.nanmedian(t, axis=(0, 2)), lambda t, f: np.nanmedian(f, axis=1, keepdims=1),
    lambda t, f: np.nanquantile(t, 0.2, axis=(0, 1), keepdims=True),
    lambda t, f: np.nanpercentile(np.where(f == 2, -np.inf, f), 40, axis=0),
    lambda t, f: np.nansum(f, axis=1, where=f != 2), lambda t, f: np.nanmax(f, 1, initial=0),
]


@pytest.mark.filterwarnings("ignore")
def test_several_dims_at_once():
    check_all(LANES, T, F)

    def into(f):
        out = np.ones(3, np.float32)
        return np.nanmax(f, axis=1, out=out), out

    check(into, F)


PADS = [(13, "wrap"), (12, "symmetric"), ((1, 9), "reflect"), (5, "wrap"), (4, "reflect")]


def test_pads_wider_than_the_array():
    check_all([lambda v, w=w, m=m: np.pad(v, w, m) for w, m in PADS], V)

    @spmd.program(mesh=("r",))
    def unknown():
        v, w = spmd.input("v", (5,), np.int64), spmd.scalar("w", 9)
        return np.pad(v, w, "wrap").sum()

    with pytest.raises(SpmdError, match="may be wider than the array"):
        unknown.capture()


REFUSED = [
    (lambda c, i, e: np.argmax(e), ShapeError, "empty sequence"),
    (lambda c, i, e: np.argmin(e, axis=0), ShapeError, "empty sequence"),
    (lambda c, i, e: np.argmax(i[None], axis=(0, 1)), ShapeError, "one axis is an integer"),
    (lambda c, i, e: np.cumsum(i, axis=(0,)), ShapeError, "one axis is an integer"),
    (lambda c, i, e: np.select([i > 0], [1, 2]), ShapeError, "as many conditions"),
    (lambda c, i, e: np.interp(c, [0.0, 1.0], [2.0, 3.0]), UnsupportedError, "complex"),
    (lambda c, i, e: np.digitize(c, [0, 1]), UnsupportedError, "complex"),
    (lambda c, i, e: np.quantile(c, 0.5), UnsupportedError, "complex"),
    (lambda c, i, e: np.heaviside(c, 1), DtypeError, "heaviside"),
    (lambda c, i, e: np.bitwise_or.reduce(e), DtypeError, "bitwise_or"),
    (lambda c, i, e: +(i > 0), UnsupportedError, "positive"),
    (lambda c, i, e: i.__setitem__(0, 1j), DtypeError, "a complex number in an array of int8"),
    (lambda c, i, e: i.__setitem__(0, np.int64(300)), DtypeError, "out of bounds"),
    (lambda c, i, e: i.astype(i), DtypeError, "is not an element type"),
    (lambda c, i, e: i[:: i.shape[0] * 0 + spmd.scalar("k", 2)], SpmdError,
     "(?s)step of a slice.* a mask: "),
]


def test_what_numpy_refuses_is_refused():
    for f, error, text in REFUSED:
        with pytest.raises(error, match=text):
            traced(f, C, I, np.zeros((0, 3)))
    check(lambda e: np.argmax(e, axis=1), np.zeros((0, 3)))


def test_an_array_is_not_none():
    check_all([lambda s: s == None, lambda s: s != "a"], S)  # noqa: E711


X = np.array([-np.inf, -1, -0.0, 0.5])
ZEROS = [
    lambda x, c, k: x / 0.0, lambda x, c, k: x / -0.0, lambda x, c, k: np.arctan2(-0.0, x),
    lambda x, c, k: np.arctan2(0.0, x), lambda x, c, k: x**0.5,
    lambda x, c, k: x ** np.float64(0.5), lambda x, c, k: c**1, lambda x, c, k: c**2,
    lambda x, c, k: c**3, lambda x, c, k: c**-1,
    lambda x, c, k: np.power(c, np.full(7, 2)), lambda x, c, k: np.power(c, np.full(7, 1)),
    lambda x, c, k: np.asarray(k * 0.5) * c.real, lambda x, c, k: np.clip(x, 0, 1),
    lambda x, c, k: k**-1, lambda x, c, k: np.ones(2, int) * k**-2,
]


@pytest.mark.filterwarnings("ignore")
def test_signs_of_zero_and_powers_in_an_image():
    """0.0 and -0.0 are equal numbers, and not the same constant."""
    assert Literal(0.0, FLOAT64) != Literal(-0.0, FLOAT64)

    @spmd.program(mesh=("r",))
    def image():
        x = spmd.input("x", X.shape, X.dtype, layout=("r",))
        c = spmd.input("c", C.shape, C.dtype, layout=("r",))
        k = spmd.scalar("k", 2)
        return {f"o{n}": f(x, c, k) for n, f in enumerate(ZEROS)}

    found = spmd.build(image).run(ranks=2, x=X, c=C)
    for n, f in enumerate(ZEROS):
        want = np.asarray(f(X, C, 2))
        agree(found[f"o{n}"], want, f"case {n}")
        if want.dtype.kind == "f":
            assert (np.signbit(found[f"o{n}"]) == np.signbit(want))[~np.isnan(want)].all()

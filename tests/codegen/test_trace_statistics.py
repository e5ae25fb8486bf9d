"""Statistics, masks, and views of parts of complex numbers, against NumPy, by the interpreter."""

import numpy as np
import pytest

import spmd
from tests.codegen.test_trace_numpy import C, F, U, check, check_all, traced


def nans(u):
    return np.where(u > 1, np.nan, u)


STATISTICS = [
    lambda u: np.percentile(u, 30), lambda u: np.quantile(u, [0.1, 0.5, 1], axis=1),
    lambda u: np.quantile(u, 0.7, axis=0, keepdims=True), lambda u: np.percentile(nans(u), 20, 1),
    lambda u: np.histogram(u, 5, (-1, 1)), lambda u: np.histogram(u, 4),
    lambda u: np.histogram((u * 90).astype(np.uint8), 16, (0, 256)),
    lambda u: np.nansum(nans(u) * (1 + 2j), axis=1),
    lambda u: np.histogram(u, [-1, 0, 0.5, 2]), lambda u: np.histogram(u, 3, density=True),
    lambda u: np.histogram(u, 3, weights=u * u), lambda u: np.digitize(u, [-1.0, 0, 1]),
    lambda u: np.cov(u), lambda u: np.cov(u[0], u[1]), lambda u: np.cov(u, rowvar=False, bias=True),
    lambda u: np.corrcoef(u), lambda u: np.corrcoef(u[0], u[1]), lambda u: np.gradient(u),
    lambda u: np.gradient(u, 0.5, axis=1), lambda u: np.gradient(u, 2, np.arange(6) ** 1.5),
    lambda u: np.ediff1d(u), lambda u: np.insert(u[0], 2, [1, 2]), lambda u: np.insert(u, 1, 5, 1),
    lambda u: np.insert(u, 0, u[0], axis=0), lambda u: np.delete(u, 2, axis=1),
    lambda u: np.delete(u[0], -1), lambda u: np.cross(u[:, :3], u[:, 3:]),
    lambda u: np.nansum(nans(u), axis=0), lambda u: np.nanmean(nans(u)),
    lambda u: np.nanmax(nans(u), 1), lambda u: np.nanstd(nans(u), axis=1, ddof=1),
    lambda u: np.nanmin(nans(u) * np.nan, axis=0), lambda u: np.mean(u * 4, 1, np.int8),
    lambda u: np.nanmean(nans(u), 1, np.float32), lambda u: np.nanvar(nans(u)[:, :2], 1, ddof=1),
    lambda u: np.nanstd(nans(u)[:, :2], 0, None, None, 4, True),
    lambda u: np.correlate(u[0] > 0, u[1, :3] > 0),
    lambda u: np.quantile(u > 0, [0.3, 0.9], axis=1, method="lower"),
    lambda u: np.pad(u > 0, 2, mode="reflect", reflect_type="odd"),
    lambda u: np.correlate(u[0], u[1, :3]), lambda u: np.correlate(u[0], [1.0, 2.0], "full"),
    lambda u: [np.correlate(u[0, :4] * 1j + 1, u[1] - 2j, m) for m in ("full", "same", "valid")],
    lambda u: np.polyval([1.0, 2, 3], u), lambda u: np.vander(u[0], 3), lambda u: np.sinc(u),
    lambda u: np.lib.stride_tricks.sliding_window_view(u, 3, axis=1).max(-1),
    lambda u: np.unravel_index(np.argmax(u), u.shape), lambda u: np.array(u[0], ndmin=3),
    lambda u: np.ravel_multi_index((np.argmax(u, 0), np.arange(6)), (4, 6)),
]


@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:Degrees of freedom")
def test_statistics():
    check_all(STATISTICS, U)
    check_all(STATISTICS, F)


@pytest.mark.parametrize("f", [
    lambda u: np.var(u, dtype=np.int8), lambda u: np.std(u, 0, np.int64),
    lambda u: np.nanmean(u, dtype=np.int32), lambda u: np.nanstd(u, dtype=np.int32),
    lambda u: np.var(u + 1j, dtype=np.float64),
])
def test_a_mean_in_a_type_without_fractions_is_refused(f):
    with pytest.raises(spmd.DtypeError, match="cannot be computed in"):
        traced(f, U)


MASKS = [
    lambda u: u[u > 0].sum(), lambda u: u[u > 0].mean(), lambda u: np.std(u[u > 0], ddof=1),
    lambda u: u[u > 0].size, lambda u: np.sum(np.sqrt(u[u > 0]) * u[u > 0] + 1),
    lambda u: np.max(u[u < 0], initial=-9.0), lambda u: np.count_nonzero(u[u < 1]),
    lambda u: np.add.reduce(u[u[:, 0] > 0]), lambda u: np.multiply.reduce(u[u > 0]),
    lambda u: u[u[:, 0] > 0].sum(axis=0), lambda u: u[:, u[0] > 0].mean(axis=1),
    lambda u: np.sum(2.0 / u[u > 1].clip(1, 2)), lambda u: np.any(u[u > 1] > 2),
    lambda u: u[1, u[1] > 0].prod(), lambda u: np.sum(np.where(u[u > 0] > 1, u[u > 0], 0)),
    lambda u: np.var(u, where=u > 0), lambda u: np.std(u, axis=0, where=u[:, :1] > -9),
]


def test_what_a_mask_chooses():
    check_all(MASKS, U)


def masked_writes(u):
    w = u.copy()
    w[w > 1] *= 0.5
    w[w < 0] += 2 * w[w < 0] ** 2
    w[w[:, 1] > 0] -= np.arange(6.0)
    w[:, w[0] > 0] *= np.arange(4.0)[:, None]
    w[1, w[1] > 0] = 7
    w[w[:, 2] < 0, 3] = w.sum()
    chosen = w[w > 2]
    other = chosen
    chosen -= 1
    w[1:][w[1:] > 3] = 3
    return w, other.sum(), w.max()


def parts(c):
    c = c.copy()
    shown = c.real
    c.imag[1:] = 3
    c.real *= 2
    c[2].imag = np.arange(6)
    c.T.real[0] = c.imag[:, 1]
    shown.reshape(24)[5] = 1
    return c, shown, c.real.sum()


def diagonals(u):
    u = u.copy()
    shown = np.diagonal(u, 1)
    u[0, 1] = 50
    return shown * 1, np.trace(u), np.diag(u)[::-1], np.diag(np.diag(u)), np.einsum("ii", u[:, :4])


def test_views_of_parts_and_masks():
    check(masked_writes, U)
    check(parts, C)
    check(parts, C.astype(np.complex128))
    check(diagonals, U)


X = np.random.default_rng(1).normal(size=20)
ODD = np.array([-np.inf, -1, -0.0, 0, 0.5, np.inf, np.nan])
SEARCHES = [
    lambda x, o: np.histogram(x, bins=4), lambda x, o: np.histogram(x, 4, density=True),
    lambda x, o: np.histogram(x, 4, weights=x), lambda x, o: np.histogram((x * 9).astype(int), 7),
    lambda x, o: np.histogram(x, 4, (x.min(), x.max())), lambda x, o: np.histogram(o, 3, (-1, 1)),
    lambda x, o: np.histogram2d(x, x[::-1], 3), lambda x, o: np.linspace(x[0], x[1], 7)[-1] - x[1],
    lambda x, o: np.searchsorted(np.sort(x), o), lambda x, o: np.searchsorted(o, o, side="right"),
    lambda x, o: np.searchsorted(np.float32([0.1]), 0.1 + 0 * x[0], "right"),
    lambda x, o: np.digitize(o, [-1.0, 0, 1]), lambda x, o: np.digitize(o, [1.0, 0, -1], True),
    lambda x, o: np.interp(o, [0, 1, 2], [1j, 2, 3 + 1j]), lambda x, o: np.interp(o, [1], [2.0]),
    lambda x, o: np.interp(x, [0, 1, 2], [1.0, 4, 2], period=3),
    lambda x, o: np.interp(o, [-np.inf, 0, 1, np.inf], [1, 2, 2, 3]),
    lambda x, o: np.median(x[:1] * 1e308),
    lambda x, o: np.nan_to_num(o + 1j * o), lambda x, o: np.array_equal(o, o, equal_nan=True),
]


def test_edges_and_what_is_no_number():
    check_all(SEARCHES, X, ODD)


def test_random_data_lose_nothing():
    """The last edge of a third of random data rounds below the maximum."""
    for seed in range(12):
        x = np.random.default_rng(seed).normal(size=20)
        check(lambda x: np.histogram(x), x)
        check(lambda x: np.histogram(x, 7, weights=x), x.astype(np.float32))

"""Derivatives of functions of each element at their edges: 0, ±1, large numbers, one-hot arguments,
float32. Where derivatives beside an edge agree, there is a limit, and the derivative is that. Here
are those with formulas of their own; `make random` takes all functions."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.oracle import interpret
from spmd import nn
from tests.codegen.namespace_cases import CASES
from tests.codegen.test_derivatives_of_namespaces import PACK, leaves  # with all cases

# mypy: ignore-errors

EDGES = np.array([0.0, 1, -1, 0.5, 2, 3, -2, 0.3, 0.65, 20, -20, 89, -89, 710, -710, 1e-8, -1e-5])
PAIRS = np.array([0.0, 1, -1, 0.5, 2, 3, 40, -40])
STEP = 1e-4  # and a hundredth of it
UNARY = [n for n, (f, xs) in CASES.items() if len(xs) == 1 and (
    (isinstance(f, np.ufunc) and f.nout == 1)
    or n in ("np.sinc", "np.nan_to_num", "np.i0", "np.angle", "np.clip"))]
UNARY += [f"nn.{n}" for n in (
    "celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid mish relu relu6 selu "
    "sigmoid silu soft_sign softplus").split()]
BINARY = [n for n, (f, xs) in CASES.items() if len(xs) == 2 and isinstance(f, np.ufunc)
          and f.signature is None and f.nout == 1]
BINARY += [f"nn.{n}" for n in (
    "huber_loss l2_loss log_cosh squared_error sigmoid_binary_cross_entropy hinge_loss").split()]
# By name, why a limit says nothing.
EXCEPT = {
    "np.fmod": "jumps between the points",
    "np.mod": "jumps between the points",
    "np.remainder": "jumps between the points",
    "np.floor_divide": "jumps between the points",
    "np.nextafter": "steps of the last bit",
    "np.spacing": "steps of the last bit",
}


def points(name):
    """Edges; and around each, in rows, points that come near to it from all sides."""
    if name in UNARY:
        sides = np.array([[-1.0], [1.0], [-2.0], [2.0]])
        return [np.stack([EDGES, *(x for step in (STEP, STEP / 100) for s in sides
                                   for x in [EDGES + step * np.maximum(1, abs(EDGES)) * s])])]
    a, b = (x.ravel() for x in np.meshgrid(PAIRS, PAIRS))
    sides = np.array([[-1, -1.3], [-1, 1.3], [1, -1.3], [1, 1.3]])
    return [np.stack([x, *(x + step * np.maximum(1, abs(x)) * s for step in (STEP, STEP / 100)
                           for s in sides[:, k])]) for k, x in enumerate((a, b))]


def program(names, dtype, second):
    @spmd.program
    def derived():
        out = {}
        for j, name in enumerate(names):
            f = CASES[name][0] if name in CASES else getattr(nn, name.split(".")[1])
            xs = tuple(spmd.input(f"x{j}_{k}", x.shape, dtype) for k, x in enumerate(points(name)))
            numbers = tuple(range(len(xs)))

            def slopes(*xs, f=f, numbers=numbers):
                return spmd.grad(lambda *xs: np.sum(f(*xs)), numbers)(*xs)

            out[f"f{j}"] = f(*xs)
            for k, g in enumerate(slopes(*xs)):
                out[f"g{j}_{k}"] = g
            for along in numbers if second else ():
                ways = tuple(np.ones_like(x) if k == along else np.zeros_like(x)
                             for k, x in enumerate(xs))
                for k, h in enumerate(spmd.jvp(slopes, xs, ways)[1]):
                    out[f"h{j}_{k}_{along}"] = h
        return out

    return derived


def run(names, dtype, second=True):
    given = {f"x{j}_{k}": x.astype(dtype) for j, n in enumerate(names)
             for k, x in enumerate(points(n))}
    with np.errstate(all="ignore"):
        return interpret.run(program(names, dtype, second).capture(), {"x": 1}, given)


def limits(values, made):
    """Return the limits of derivatives beside the edges, and where these limits are sure."""
    (coarse, spread, _), (fine, narrow, there) = (
        _beside(values[rows], made[rows]) for rows in (slice(1, 5), slice(5, 9)))
    size = 1 + np.abs(fine)
    sure = np.isfinite(values[0]) & there & (spread < 0.02 * size) & (narrow < 2e-3 * size)
    return fine, size, sure & (np.abs(coarse - fine) < 2e-3 * size)


def _beside(values, made):
    """Their mean, how far they are apart, and whether they are all there."""
    there = np.isfinite(values)
    finite = np.where(there, made, np.nan)
    sure = there.any(0) & ~np.any(there & ~np.isfinite(made), 0)
    sure &= np.nanmax(values, 0) - np.nanmin(values, 0) < 0.01 * (1 + np.abs(np.nanmean(values, 0)))
    return np.nanmean(finite, 0), np.nanmax(finite, 0) - np.nanmin(finite, 0), sure


def wrong(names):
    """Edges at which a derivative is not its limit; first ones, then second ones, these where the
    gradient is finite."""
    found, bad = run(names, np.float64), []
    for j, name in enumerate(names):
        keys = [k for k in found if k[1:].split("_")[0] == str(j)]
        infinite = np.any([np.isinf(found[k][0]) for k in keys if k[0] != "f"], 0)
        assert not np.all(infinite), name
        smooth = ~infinite
        for key in sorted(k for k in keys if k[0] != "f"):  # first derivatives first
            middle, size, sure = limits(found[f"f{j}"], found[key])
            if key[0] == "g":
                smooth &= sure
            else:
                sure &= smooth
            off = sure & ~(np.abs(found[key][0] - middle) < 5e-3 * size)
            bad += [(name, key, *(float(x[0][i]) for x in points(name)), found[key][0][i],
                     middle[i]) for i in np.flatnonzero(off)]
    return [b for b in bad if b[0] not in EXCEPT]


NAMES = sorted(dict.fromkeys([*UNARY, *BINARY]))
PACKS = [NAMES[k::len(NAMES) // PACK + 1] for k in range(len(NAMES) // PACK + 1)]
FORMULAS = [f"special.{n}" for n in (
    "boxcox exprel expit inv_boxcox kl_div log_expit pseudo_huber rel_entr xlog1py xlogy").split()]
FORMULAS += ["np.sinc", "np.power", "np.logaddexp", "nn.huber_loss", "nn.sigmoid"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_derivatives_at_edges_are_their_limits():
    assert wrong(FORMULAS) == []


def check_narrow(names):
    """Derivatives in float32 are those in float64, where these are of a size that float32 has."""
    wide, narrow = run(names, np.float64, False), run(names, np.float32, False)
    for j, name in enumerate(names):
        for key in (k for k in wide if k[0] == "g" and k[1:].split("_")[0] == str(j)):
            a, b = wide[key][0], narrow[key][0]
            there = np.isfinite(wide[f"f{j}"][0]) & np.isfinite(narrow[f"f{j}"][0])
            off = there & (abs(a) < 1e30) & ~(np.abs(a - b) < 2e-4 * (1 + np.abs(a)))
            assert not off.any() or name in EXCEPT, (name, key, [
                (float(x[0][i]), a[i], b[i]) for x in points(name) for i in np.flatnonzero(off)])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_derivatives_in_float32_are_those_in_float64():
    check_narrow(FORMULAS)


def test_what_a_mask_leaves_out_has_no_derivative():
    x = np.array([1.0, np.nan, 3.0, 0.0])
    mask, nothing = np.array([True, False, True, True]), np.zeros(2, bool)

    @spmd.program
    def masked():
        a, b = spmd.asarray(x), spmd.asarray(np.array([1.0, 2.0]))
        return [
            spmd.grad(np.nanvar)(a), spmd.grad(np.nanstd)(a), spmd.grad(np.nanmean)(a),
            spmd.grad(lambda a: np.var(a, where=mask))(a),
            spmd.grad(lambda a: np.sum(a, where=mask))(a),
            spmd.grad(lambda b: np.sum(nn.softmax(b, where=nothing) * b))(b),
            nn.softmax(b, where=nothing),
        ]

    centre = np.where(mask, x, 4 / 3) - 4 / 3
    deviation = np.sqrt(np.mean(centre[mask] ** 2))
    wanted = [2 * centre / 3, centre / 3 / deviation, mask / 3, 2 * centre / 3, mask * 1.0,
              np.zeros(2), np.zeros(2)]
    found = interpret.run(masked.capture(), {"x": 1}, {})
    for a, b in zip(leaves(dict(found)), wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-12, 1e-15)


def test_second_derivatives_where_first_ones_are_zero():
    """Second derivatives equal the exact numbers where first derivatives are zero."""
    x, zero = np.array([3.0, -4.0, 0.0]), np.zeros(3)

    def second(f, x):
        return spmd.jvp(spmd.grad(f), (x,), (np.ones(np.shape(x)),))[1]

    @spmd.program
    def twice():
        a, z = spmd.asarray(x), spmd.asarray(zero)
        power = spmd.jvp(spmd.grad(lambda p: np.sum(a[:1] ** p[:1])), (z,), (np.ones(3),))[1]
        return [second(lambda z: np.sum(np.sinc(z)), z), power[0],
                second(np.linalg.norm, a), second(lambda z: np.sum(nn.huber_loss(z)), z)]

    u = x / 5
    wanted = [np.full(3, -np.pi**2 / 3), np.log(3) ** 2, (1 - u * np.sum(u)) / 5, np.ones(3)]
    found = interpret.run(twice.capture(), {"x": 1}, {})
    for a, b in zip(leaves(dict(found)), wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-12, 1e-15)


def test_an_infinite_error_has_the_slope_of_a_large_one():
    special, x = pytest.importorskip("scipy.special"), np.array([np.inf, -np.inf, 0.5, -7.0])
    for f in (lambda x: nn.huber_loss(x, delta=2.0), lambda x: special.huber(2.0, x)):
        assert np.array_equal(spmd.grad(lambda x: np.sum(f(x)))(x), [2, -2, 0.5, -2])


def test_bessel_functions_of_small_numbers_have_second_derivatives():
    special = pytest.importorskip("scipy.special")
    x = np.array([0.0, 1e-300, -1e-10, 1e-3, -0.5, 0.99, 1.01, -3.0])
    size, sign = np.abs(x), np.sign(x)
    i0, i1, i2, i3 = (special.iv(k, size) * sign**k for k in range(4))
    second = (3 * i1 + i3) / 4
    wanted = {
        "i1": second, "j1": (special.jv(3, size) - 3 * special.jv(1, size)) / 4 * sign,
        "i1e": np.exp(-size) * (second - sign * (i0 + i2) + sign**2 * i1),
    }
    for name, exact in wanted.items():
        function = getattr(special, name)
        slope = spmd.grad(lambda x, f=function: np.sum(f(x)))
        found = spmd.jvp(slope, (x,), (np.ones(x.shape),))[1]
        np.testing.assert_allclose(found, exact, 1e-12, 1e-14, err_msg=name)

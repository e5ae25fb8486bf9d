"""Functions whose derivatives JAX knows too, of a few small arrays.

`python -m tests.codegen.jax_cases` differentiates them with JAX in float64 and writes
tests/golden/jax.json: per case the value, its change along a direction, and the gradient and its
change along that direction, each summed with weights. It needs jax; the tests do not.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# mypy: ignore-errors

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "jax.json"
_draw = np.random.default_rng(7)


def _complex(*shape: int) -> np.ndarray:
    return _draw.normal(size=shape) + 1j * _draw.normal(size=shape)


INPUTS = {
    "p": _draw.uniform(0.3, 2, 6), "q": _draw.normal(size=6), "u": _draw.uniform(-0.8, 0.8, 6),
    "g": _draw.uniform(1.2, 3, 6), "a": _draw.normal(size=(3, 4)), "b": _draw.normal(size=(4, 3)),
    "m": _draw.normal(size=(3, 3)), "h": _draw.normal(size=(4, 3, 2)), "z": _complex(3, 4),
    "c": _complex(3, 3), "zero": np.array([1.3, 0, -0.7, 2, 1]),
    "zeros": np.array([0.4, 0, 1.1, 0, 2]),
    "singular": np.array([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]]),
    "nothing": np.array([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]]),
    "i1": _draw.normal(size=(2, 7, 4)), "k1": _draw.normal(size=(3, 2, 6)),
    "i2": _draw.normal(size=(1, 6, 5, 2)), "k2": _draw.normal(size=(3, 2, 2, 3)),
    "i3": _draw.normal(size=(1, 3, 4, 3, 1)), "k3": _draw.normal(size=(2, 2, 3, 1, 2)),
}
DIRECTIONS = {n: _draw.normal(size=x.shape) + (1j * _draw.normal(size=x.shape)
              if x.dtype.kind == "c" else 0) for n, x in INPUTS.items()}
# Whose second derivatives are refused while a program runs: where a factor is 0.
ONCE = {"prod of a zero", "prod of zeros", "cumprod of a zero", "cumprod of zeros",
        "det of a singular matrix", "det of a nilpotent matrix"}
# By name: the inputs, and a function of `o`, what differs between the two, and of those.
CASES: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {}


def case(name: str, inputs: str, f: Callable[..., Any]) -> None:
    assert name not in CASES, name
    CASES[name] = (tuple(inputs.split()), f)


def weights(shape: Sequence[int]) -> Any:
    n = int(np.prod(shape))
    return np.cos(1.0 + 2.3 * np.arange(n)).reshape(shape)


def loss(o: Any, f: Callable[..., Any], args: Sequence[Any]) -> Any:
    """One number of what f gives, be it complex."""
    total = 0.0
    for part in (made if isinstance(made := f(o, *args), tuple) else (made,)):
        w = weights(part.shape)
        if part.dtype.kind == "c":
            total = total + o.np.sum(part.real * w) - o.np.sum(part.imag * (w + 0.3))
        else:
            total = total + o.np.sum(part * w)
    return total


def numbers(parts: Sequence[Any]) -> list[float]:
    """Each part summed with weights: real ones to one number, complex ones to two."""
    out = []
    for part in map(np.asarray, parts):
        w = weights(part.shape)
        out += [float(np.sum(part.real * w))]
        out += [float(np.sum(part.imag * w))] if part.dtype.kind == "c" else []
    return out


# ---- element by element --------------------------------------------------------------------------

for _n in "abs exp exp2 expm1 sin cos tan sinh cosh tanh arctan arcsinh square negative sinc " \
        "cbrt rint floor sign deg2rad positive fabs".split():
    case(_n, "q", lambda o, x, n=_n: getattr(o.np, n)(x) * x)
for _n in "log log2 log10 log1p sqrt reciprocal".split():
    case(_n, "p", lambda o, x, n=_n: getattr(o.np, n)(x))
for _n in "arcsin arccos arctanh".split():
    case(_n, "u", lambda o, x, n=_n: getattr(o.np, n)(x))
case("arccosh", "g", lambda o, x: o.np.arccosh(x))
for _n in "add subtract multiply divide maximum minimum fmax fmin arctan2 hypot logaddexp " \
        "logaddexp2 remainder fmod copysign heaviside".split():
    case(_n, "q u", lambda o, x, y, n=_n: getattr(o.np, n)(x, y) * x)
case("power", "p q", lambda o, x, y: x**y + x**3 + 2.0**y + x**-0.5)
case("float_power", "p", lambda o, x: o.np.float_power(x, 1.7))
case("clip", "q", lambda o, x: o.np.clip(x, -0.4, 0.5) * x)
case("where", "q u", lambda o, x, y: o.np.where(x > y, x * y, x**3))
case("nan_to_num", "q", lambda o, x: o.np.nan_to_num(x) ** 2)
case("maximum of equal ones", "q", lambda o, x: o.np.maximum(x, x * 1.0) + o.np.minimum(x, x))
for _n in "erf erfc gammaln i0 i0e i1 i1e expit entr ndtr digamma".split():
    case(f"special.{_n}", "p", lambda o, x, n=_n: getattr(o.special, n)(x))
case("special.gamma", "p", lambda o, x: o.special.gamma(x))
case("special.polygamma", "p", lambda o, x: o.special.polygamma(2, x))
case("special.zeta", "p", lambda o, x: o.special.zeta(2.5, x))
case("special.erfinv", "u", lambda o, x: o.special.erfinv(x))
case("special.logit", "u", lambda o, x: o.special.logit(0.5 + 0.4 * x))
case("special.xlogy", "p q", lambda o, x, y: o.special.xlogy(x, y * y + 1))
case("special.logsumexp", "a", lambda o, x: o.special.logsumexp(x, axis=0))
case("special.softmax", "a", lambda o, x: o.special.softmax(x, axis=1))
for _n in "relu relu6 sigmoid log_sigmoid softplus soft_sign silu mish gelu elu celu selu " \
        "leaky_relu hard_tanh hard_sigmoid hard_silu".split():
    case(f"nn.{_n}", "q", lambda o, x, n=_n: getattr(o.nn, n)(2.5 * x))
case("nn.gelu exactly", "q", lambda o, x: o.nn.gelu(x, approximate=False))
case("nn.glu", "a", lambda o, x: o.nn.glu(x))
case("nn.softmax", "a", lambda o, x: o.nn.softmax(x) * o.nn.log_softmax(x, axis=0))

# ---- along dims ----------------------------------------------------------------------------------

for _n in "sum mean prod max min var std ptp median".split():
    case(_n, "a", lambda o, x, n=_n: (getattr(o.np, n)(x, axis=0), getattr(o.np, n)(x) ** 2))
for _n in "cumsum cumprod sort diff flip".split():
    case(_n, "a", lambda o, x, n=_n: getattr(o.np, n)(x, axis=1) * x[:, :3 if n == "diff" else 4])
case("running max", "a", lambda o, x: o.cummax(x) * x)
case("running min", "a", lambda o, x: o.cummin(x) * x)
case("max of equal ones", "a", lambda o, x: o.np.max(o.np.concatenate([x, x * 1.0]), axis=0))
case("prod of a zero", "zero", lambda o, x: o.np.prod(x) + o.np.sum(x))
case("prod of zeros", "zeros", lambda o, x: o.np.prod(x) + o.np.sum(x))
case("cumprod of a zero", "zero", lambda o, x: o.np.cumprod(x))
case("cumprod of zeros", "zeros", lambda o, x: o.np.cumprod(x))
case("quantile", "a", lambda o, x: o.np.quantile(x, o.np.array([0.2, 0.7]), axis=1))
case("average", "a", lambda o, x: o.np.average(x, axis=0, weights=o.np.array([1.0, 3, 2])))
case("cov", "a", lambda o, x: (o.np.cov(x), o.np.corrcoef(x)))
case("gradient", "a", lambda o, x: (o.np.gradient(x, axis=0), o.np.trapezoid(x * x)))
case("interp", "u p", lambda o, x, y: o.np.interp(
    x, o.np.array([-1.0, -0.31, 0.33, 0.52, 0.91, 1.2]), y))
case("norms", "a", lambda o, x: (o.np.linalg.norm(x), o.np.linalg.norm(x, axis=0),
                                 o.np.linalg.norm(x, 1, axis=1), o.np.linalg.norm(x, 3, axis=1)))
case("nuclear norm", "a", lambda o, x: o.np.linalg.norm(x, "nuc") + o.np.linalg.norm(x, 2))

# ---- shapes, subscripts --------------------------------------------------------------------------

case("shapes", "h", lambda o, x: (
    o.np.transpose(x, (2, 0, 1)) ** 2, x.reshape(6, 4) ** 3, o.np.roll(x, 2, axis=1) * x,
    o.np.repeat(x, 2, axis=0), o.np.tile(x, (1, 2, 1)), o.np.rot90(x), o.np.squeeze(x[:1]) * 2,
    o.np.broadcast_to(x[0], (2, 3, 2)), o.np.moveaxis(x, 0, 2), o.np.stack([x, x * x])))
for _n in "constant edge wrap reflect symmetric".split():
    case(f"pad {_n}", "a", lambda o, x, n=_n: o.np.pad(x, ((1, 2), (2, 1)), mode=n) ** 2)
case("slices", "h", lambda o, x: (x[1:, ::-1] * x[:-1], x[::2, 1] ** 2, x[..., None, 0] * 3))
case("taken", "a", lambda o, x: (
    x[o.np.array([2, 0, 0])] ** 2, x[[0, 1], [3, 3]] ** 3, o.np.take(x, o.np.array([1, 1]), axis=1),
    o.np.take_along_axis(x, o.np.argsort(x, axis=1), axis=1) * x, o.np.diagonal(x[:, :3])))
case("written", "a q", lambda o, x, y: (
    x.at[o.np.array([0, 2, 0])].add(y[:4]), x.at[1, 1:].set(y[:3] ** 2),
    x.at[o.np.array([0, 1])].multiply(2.0) if o.is_jax else _doubled(x)))
case("triangles", "m", lambda o, x: (o.np.tril(x) @ o.np.triu(x, 1), o.np.trace(x) ** 2))


case("multiplied", "a b", lambda o, x, y: (
    x.at[o.np.array([2, 0])].multiply(y[:2, :1], unique_indices=True) if o.is_jax
    else _multiplied(x, y)))


def _doubled(x: Any) -> Any:
    u = x.copy()
    u[:2] *= 2
    return u


def _multiplied(x: Any, y: Any) -> Any:
    u = x.copy()
    np.multiply.at(u, np.array([2, 0]), y[:2, :1])
    return u


# ---- products, linear algebra --------------------------------------------------------------------

case("matmul", "a b", lambda o, x, y: (x @ y, y[:, 0] @ x.T[:, 1], x[0] @ y))
case("einsum", "a b h", lambda o, x, y, w: (
    o.np.einsum("ij,jk,kl->il", x, y, x), o.np.einsum("ij->j", x), o.np.einsum("ijk,ij->k", w, y)))
case("tensordot", "h b", lambda o, x, y: (o.np.tensordot(x, y, axes=([0, 1], [0, 1])),
                                          o.np.inner(y, y), o.np.kron(y[:2, :2], y[:1])))
case("convolve", "q u", lambda o, x, y: (o.np.convolve(x, y[:3]), o.np.correlate(x, y[:2], "same")))
case("solve", "m b", lambda o, x, y: (o.np.linalg.solve(x, y.T), o.np.linalg.inv(x)))
case("det", "m", lambda o, x: (o.np.linalg.det(x), o.np.linalg.slogdet(x)[1]))
case("det of a singular matrix", "singular", lambda o, x: o.np.linalg.det(x) + o.np.sum(x))
case("det of a nilpotent matrix", "nothing", lambda o, x: o.np.linalg.det(x) + o.np.sum(x))
case("cholesky", "a", lambda o, x: o.np.linalg.cholesky(x @ x.T + 2 * np.eye(3)))
case("eigh", "m", lambda o, x: (o.np.linalg.eigh(x + x.T)[0] ** 3,
                                o.np.linalg.eigh(x + x.T)[1] ** 2, o.np.linalg.eigvalsh(x @ x.T)))
case("svd", "a", lambda o, x: (
    o.np.linalg.svd(x, full_matrices=False)[0] ** 2, o.np.linalg.svd(x, compute_uv=False) ** 2,
    o.np.linalg.svd(x.T, full_matrices=False)[0] @ o.np.linalg.svd(x.T, full_matrices=False)[2]))
case("qr", "b", lambda o, x: (o.np.linalg.qr(x)[0] ** 2, o.np.abs(o.np.linalg.qr(x)[1])))
case("wide qr", "a", lambda o, x: (o.np.linalg.qr(x)[0] ** 2, o.np.linalg.qr(x, "complete")[1],
                                   o.np.linalg.qr(x, "r")**2))
case("square svd", "m", lambda o, x: (o.np.linalg.svd(x)[0] ** 2, o.np.linalg.svd(x)[2] ** 2,
                                      o.np.linalg.svd(x + x.T, hermitian=True)[0] ** 2))
case("eig", "m", lambda o, x: (o.eig(x)[0], o.eig(x)[1], o.eigvals(x) ** 2))
case("pinv", "a", lambda o, x: (o.np.linalg.pinv(x), o.np.linalg.pinv(x @ x.T, hermitian=True)))
case("matrix_power", "m", lambda o, x: o.np.linalg.matrix_power(x, 3))
case("multi_dot", "a b", lambda o, x, y: o.np.linalg.multi_dot([x, y, x]))

# ---- complex numbers -----------------------------------------------------------------------------

case("complex", "z", lambda o, x: (
    o.np.exp(x) * o.np.conj(x) / (1.5 + x * x), o.np.abs(x) ** 3, o.np.angle(x), x.real * x.imag,
    o.np.sqrt(x), o.np.log(x), o.np.sin(x) + o.np.tanh(x)))
case("complex inside", "a", lambda o, x: (
    o.np.abs(o.np.exp(1j * x) + x), (x + 2j) ** 2, o.np.real((x + 1j) / (x - 1j))))
case("complex sums", "z", lambda o, x: (o.np.sum(x * x, axis=0), o.np.cumsum(x, axis=1),
                                        o.np.mean(x), o.np.cumprod(x, axis=0), o.np.prod(x)))
case("complex products", "z c", lambda o, x, y: (y @ x, o.np.einsum("ij,ik->jk", x, x.conj()),
                                                 o.np.vdot(x, x * 2)))
case("complex solve", "c z", lambda o, x, y: (o.np.linalg.solve(x, y), o.np.linalg.inv(x)))
case("complex det", "c", lambda o, x: (o.np.linalg.det(x), o.np.linalg.slogdet(x)[1]))
case("complex cholesky", "z", lambda o, x: o.np.linalg.cholesky(x @ x.conj().T + 2 * np.eye(3)))
case("complex eigh", "c", lambda o, x: (o.np.linalg.eigh(x + x.conj().T)[0] ** 3,
                                        o.np.abs(o.np.linalg.eigh(x + x.conj().T)[1]) ** 2))
case("complex svd", "z", lambda o, x: (
    o.np.linalg.svd(x, compute_uv=False), o.np.abs(o.np.linalg.svd(x, full_matrices=False)[0]) ** 2,
    o.np.linalg.svd(x, full_matrices=False)[0] @ o.np.linalg.svd(x, full_matrices=False)[2]))
case("complex qr", "c", lambda o, x: (o.np.abs(o.np.linalg.qr(x)[0]) ** 2,
                                      o.np.abs(o.np.linalg.qr(x)[1]) ** 2))
case("complex eig", "c", lambda o, x: (o.eig(x)[0] ** 2, o.eig(x)[1], o.eigvals(x)))
case("complex wide qr", "z", lambda o, x: (o.np.abs(o.np.linalg.qr(x)[0]) ** 2,
                                           o.np.linalg.qr(x)[1] ** 2))
for _n in "fft ifft".split():
    case(_n, "z", lambda o, x, n=_n: (getattr(o.np.fft, n)(x, axis=0), getattr(o.np.fft, n)(x, 6),
                                      getattr(o.np.fft, n)(x, norm="ortho") ** 2))
case("rfft", "a", lambda o, x: (o.np.fft.rfft(x) ** 2, o.np.fft.rfft(x, 5, axis=0),
                                o.np.fft.rfftn(x), o.np.fft.fft2(x)))
case("irfft", "z", lambda o, x: (o.np.fft.irfft(x) ** 2, o.np.fft.irfft(x, 5, axis=1)))

# ---- convolutions --------------------------------------------------------------------------------

_CONVOLUTIONS: dict[str, list[dict[str, Any]]] = {
    "i1 k1": [{"groups": 2}, {"strides": 2, "groups": 2},
              {"padding": "VALID", "dilation": 2, "groups": 2},
              {"strides": 3, "padding": [(2, 1)], "groups": 2}],
    "i2 k2": [{}, {"strides": (2, 1)}, {"dilation": (1, 2), "padding": "VALID"},
              {"strides": (2, 2), "padding": [(1, 2), (0, 3)], "dilation": (2, 1)}],
    "i3 k3": [{"strides": (1, 2, 1)}, {"padding": "VALID"}],
}
for _names, _rows in _CONVOLUTIONS.items():
    for _row in _rows:
        for _n in ("conv", "conv_transpose"):
            if _n == "conv" or "groups" not in _row:
                case(f"{_n} {_names} {_row}", _names,
                     lambda o, x, w, n=_n, row=_row: getattr(o, n)(x, w, **row))

# ---- control -------------------------------------------------------------------------------------

case("scan", "a", lambda o, x: o.scan(
    lambda carry, row: (o.np.sin(carry) * row, carry * row + row), x[0], x))
case("cond", "q", lambda o, x: o.cond(o.np.sum(x) > 0.1, lambda x: x * x, o.np.sin, x))
case("fori_loop", "q", lambda o, x: o.fori_loop(
    0, 4, lambda k, x: o.np.sin(x) * (1.0 + 0.1 * k), x))


def with_jax() -> Any:
    import jax  # not of the tests' environment
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def spatial(x: Any) -> tuple[str, str, str]:
        dims = "DHW"[3 - (x.ndim - 2):]
        return f"N{dims}C", f"{dims}IO", f"N{dims}C"

    def each(value: Any, x: Any) -> Any:
        return value if isinstance(value, (tuple, list)) else (value,) * (x.ndim - 2)

    def conv(x, w, strides=1, padding="SAME", dilation=1, groups=1):
        return jax.lax.conv_general_dilated(
            x, w, each(strides, x), padding, rhs_dilation=each(dilation, x),
            dimension_numbers=spatial(x), feature_group_count=groups)

    def conv_transpose(x, w, strides=1, padding="SAME", dilation=1):
        return jax.lax.conv_transpose(x, w, each(strides, x), padding,
                                      rhs_dilation=each(dilation, x), dimension_numbers=spatial(x))

    def eig(x, vectors):
        return jax.lax.linalg.eig(x, compute_left_eigenvectors=False,
                                  compute_right_eigenvectors=vectors, enable_eigvec_derivs=True)

    return types.SimpleNamespace(
        np=jnp, special=jax.scipy.special, nn=jax.nn, conv=conv, conv_transpose=conv_transpose,
        eig=lambda x: eig(x, True), eigvals=lambda x: eig(x, False)[0],
        scan=jax.lax.scan, cond=jax.lax.cond, fori_loop=jax.lax.fori_loop, is_jax=True,
        cummax=lambda x: jax.lax.cummax(x, 1), cummin=lambda x: jax.lax.cummin(x, 1))


def main() -> None:
    import jax  # not of the tests' environment

    o, found = with_jax(), {}
    for name, (inputs, f) in CASES.items():
        args, along = ([d[n] for n in inputs] for d in (INPUTS, DIRECTIONS))
        both = jax.value_and_grad(lambda *a, f=f: loss(o, f, a), tuple(range(len(args))))
        args, along = (list(map(jax.numpy.asarray, xs)) for xs in (args, along))
        (value, gradient), (change, second) = jax.jvp(both, args, along)
        found[name] = [numbers(part) for part in ([value, change], gradient, second)]
        if not np.all(np.isfinite(np.concatenate(found[name]))):
            print(name, found[name])
    rounded = {n: [[float(f"{x:.12g}") for x in part] for part in row] for n, row in found.items()}
    lines = (f"{json.dumps(n)}: {json.dumps(row)}" for n, row in rounded.items())
    GOLDEN.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()

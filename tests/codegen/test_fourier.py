"""Fourier transforms: beside NumPy on any number of ranks, with as few exchanges as they need."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.fft

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ops import Exchange
from codegen.oracle import interpret
from codegen.trace.numpy import fourier

_DRAW = np.random.default_rng(5)
F = np.fft


def _complex(*shape: int) -> Any:
    return _DRAW.normal(size=shape) + 1j * _DRAW.normal(size=shape)


GIVEN: dict[str, Any] = {
    "u": _DRAW.normal(size=(12, 10)), "z": _complex(7, 11).astype(np.complex64),
    "t": _complex(5, 4, 17), "line": _complex(20 * 18), "row": _DRAW.normal(size=(1, 16 * 25)),
    "prime": _DRAW.normal(size=131),
}
SCALARS = {"k": 0.5, "m": 9}
LAYOUTS = {"u": ("x", None), "z": (None, "x"), "t": (None, "x", None), "line": ("x",),
           "row": (None, "x"), "prime": ("x",)}


def transforms(u: Any, z: Any, t: Any, line: Any, row: Any, prime: Any, k: Any, m: Any) -> Any:
    """Transforms all shapes and types, cut or padded, along split dims and others; a line in four
    steps; and a number of points known at launch."""
    out = np.empty((12, 10), np.complex128)
    F.fft(u, axis=0, out=out)
    return {
        "two": F.fft2(u), "there": out, "single": F.fft(z, 16, norm="ortho"),
        "few": F.ifft(z, 5, 0),
        "real": F.rfft(u, axis=0), "to_real": F.irfft(t, 9, axis=1, norm="forward"),
        "middle": F.fft(t, axis=1), "view": F.fft(t[::2, :, 1:].T, axis=2), "last": F.fft(t.T),
        "all": F.fftn(t), "three": F.irfftn(t, axes=(0, 2, 1)), "hermitian": F.hfft(z, 12),
        "line": F.fft(line), "back": F.ifft(line, norm="ortho"), "half": F.rfft(row),
        "again": F.irfft(F.rfft(row), norm="forward"), "prime": F.fft(prime)[3:9],
        "turned": F.fftshift(F.fft2(z)), "launched": F.rfft(u, m),
        "scipys": scipy.fft.irfft2(scipy.fft.rfft2(u, (9, 9), workers=1), overwrite_x=True),
        "freq": F.fftfreq(9, k), "rfreq": F.rfftfreq(10, d=k),
    }


@spmd.program(mesh=("x",))
def everything() -> Any:
    arrays = {n: spmd.input(n, GIVEN[n].shape, GIVEN[n].dtype, layout=lay)
              for n, lay in LAYOUTS.items()}
    k, m = spmd.scalar("k", 1.0), spmd.scalar("m", 4)
    size = spmd.axis_size("x")
    more = {"even": F.fftfreq(2 * size), "odd": F.fftfreq(2 * size + 1), "rest": F.rfftfreq(size)}
    return transforms(**arrays, k=k, m=m) | more


def _same(found: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    for name, e in wanted.items():
        got = np.asarray(found[name])
        assert (got.dtype, got.shape) == (e.dtype, e.shape), f"{name} {where}"
        single = e.dtype in (np.float32, np.complex64)
        np.testing.assert_allclose(got, e, atol=1e-4 if single else 1e-11, err_msg=name + where)


def test_transforms_agree_with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both oracles and in the image."""
    monkeypatch.setattr(fourier, "FOUR_STEPS", 256)
    monkeypatch.setattr(fourier, "FACTOR", 4)
    levels, image = lower(everything.capture()), spmd.build(everything)
    wanted = transforms(**GIVEN, **SCALARS)
    for ranks in (1, 2, 3, 5):
        wanted |= {"even": F.fftfreq(2 * ranks), "odd": F.fftfreq(2 * ranks + 1),
                   "rest": F.rfftfreq(ranks)}
        for level in (levels.graph, levels.program):
            made = interpret.run(level, {"x": ranks}, GIVEN, SCALARS)
            _same(made, wanted, f" on {ranks}")
        _same(image.run(ranks=ranks, **GIVEN, **SCALARS), wanted, f" in the image on {ranks}")


# ---- a spectral solver ---------------------------------------------------------------------------


def poisson(f: Any) -> Any:
    """Laplace's operator, undone on a periodic square."""
    n, m = f.shape
    kx, ky = 2j * np.pi * F.fftfreq(n, 1 / n), 2j * np.pi * F.rfftfreq(m, 1 / m)
    by = kx[:, None] ** 2 + ky**2
    by[0, 0] = 1.0
    modes = F.rfft2(f) / by
    modes[0, 0] = 0.0
    return F.irfft2(modes, f.shape)


@spmd.program(mesh=("x",))
def solved() -> Any:
    f = spmd.input("f", (48, 30), np.float64, layout=("x", None))
    return {"u": poisson(f)}


def _exchanges(program: Any, **parameters: Any) -> list[str]:
    ops = walk(lower(program.capture(**parameters)).program.body)
    return [op.kind.called for op in ops if isinstance(op.kind, Exchange)]


def test_poisson_takes_one_exchange_each_way() -> None:
    assert _exchanges(solved) == ["all_to_all", "all_to_all"]
    f = _DRAW.normal(size=(48, 30))
    image = spmd.build(solved)
    first = image.run(ranks=1, f=f)["u"]
    np.testing.assert_allclose(first, poisson(f), atol=1e-12)
    for ranks in (2, 3, 5):
        assert (image.run(ranks=ranks, f=f)["u"] == first).all(), "the same lanes, the same bits"


# ---- what moves ----------------------------------------------------------------------------------


@spmd.program(mesh=("x", "y"))
def pencils() -> Any:
    a = spmd.input("a", (6, 7, 8), np.complex128, layout=("x", "y", None))
    return {"out": F.fftn(a)}


def test_a_mesh_of_two_axes_exchanges_along_one_at_a_time() -> None:
    graph = pencils.capture()
    ops = [op for op in walk(lower(graph).program.body) if isinstance(op.kind, Exchange)]
    assert [op.kind.axes for op in ops] == [("y",), ("x",)]
    a = _complex(6, 7, 8)
    _same(interpret.run(lower(graph).program, {"x": 3, "y": 2}, {"a": a}), {"out": F.fftn(a)}, "")


@spmd.program(mesh=("x",))
def lines(n: int = 1 << 14) -> Any:
    return {"out": F.fft(spmd.input("a", (n,), np.complex128, layout=("x",)))}


def test_a_line_without_good_factors_is_gathered_and_build_says_so() -> None:
    moves = _exchanges(lines)
    assert moves.count("all_to_all") == 3 and set(moves) == {"all_to_all", "redistribute"}
    assert _exchanges(lines, n=2 * 8191) == ["all_gather"]
    with pytest.warns(spmd.LayoutWarning, match="every rank gets all of a: 2.0 MiB") as said:
        spmd.build(lines, n=131071)
    assert "two factors of at least 32" in str(said[0].message)


def test_what_makes_an_infinity_is_said() -> None:
    @spmd.program(mesh=("x",))
    def large() -> Any:
        a = spmd.input("a", (4, 6), np.float64, layout=("x", None))
        return {"out": F.rfft(a, axis=0)}

    image = spmd.build(large, check="nan")
    a = np.ones((4, 6))
    image.run(ranks=2, a=a)
    a[1, 3] = np.inf
    image.run(ranks=2, a=a)  # it was there before
    a[:, 3] = 1e308
    with pytest.raises(spmd.CheckError, match="a Fourier transform makes a NaN or an infinity"):
        image.run(ranks=2, a=a)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.int8])
def test_types_are_those_of_numpy(dtype: Any) -> None:
    data = np.arange(8).astype(dtype)

    def transformed(x: Any) -> list[Any]:
        return [F.fft(x), F.ifft(x), F.rfft(x), F.irfft(x), F.hfft(x), F.ihfft(x)]

    graph = spmd.program(mesh=("x",))(lambda: transformed(spmd.asarray(data))).capture()
    found = interpret.run(graph, {"x": 1}).values()
    assert [x.dtype for x in found] == [x.dtype for x in transformed(data)]

"""Kernels: numba functions in an image give NumPy's results; what cannot be linked is refused."""

import math

import numpy as np
import pytest

import spmd
from codegen.dtypes import BY_NAME
from codegen.errors import KernelError
from codegen.kernels import compile_kernel

F32, F64, I64 = BY_NAME["float32"], BY_NAME["float64"], BY_NAME["int64"]


def twice(x):
    return 2 * x


@spmd.kernel
def weighted(x, y, weight, shift, out, total):
    s = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = weight * twice(x[i, j]) + math.sin(y[j]) + shift
            s += out[i, j]
    total[0] = s


@spmd.program(mesh=("r",))
def uses_kernel(n: int = 11):
    w = spmd.scalar("w", 1.5)
    x = spmd.input("x", (n, 4), np.float64, layout=("r", None), default=lambda i, j: i + j / 8)

    @spmd.shard_map(out_layouts=(("r", None), (None,)))
    def f(x):
        y = np.arange(4) * 0.5
        out, total = weighted(
            x, y, w, spmd.axis_size("r"), out=spmd.like(x), total=spmd.empty((1,), np.float64)
        )
        return out, spmd.psum(total, "r")

    return f(x)


@pytest.mark.parametrize("ranks", [1, 3, 16])
def test_a_kernel_in_an_image(ranks):
    out, total = spmd.build(uses_kernel).run(ranks=ranks, w=2.0)
    i, j = np.indices((11, 4))
    expected = 2.0 * 2 * (i + j / 8) + np.sin(j * 0.5) + ranks
    np.testing.assert_allclose(out, expected, rtol=1e-14)
    np.testing.assert_allclose(total[0], expected.sum(), rtol=1e-12)


def allocates(x):
    scratch = np.zeros(x.shape[0])
    for i in range(x.shape[0]):
        scratch[i] = x[i]
    x[0] = scratch.sum()


def raises(x):
    if x[0] > 1:
        raise ValueError("too large")


def unknown(x):
    x[0] = no_such_name + 1  # noqa: F821


def wants_objects(x):
    x[0] = len("a" + str(x[0]))


@pytest.mark.parametrize(
    "function, text, line",
    [
        (allocates, "allocates", "scratch = np.zeros"),
        (raises, "can raise", "raise ValueError"),
        (unknown, "cannot be compiled", ""),
        (wants_objects, "", ""),
    ],
)
def test_refused_with_the_kernels_own_line(function, text, line):
    with pytest.raises(KernelError) as caught:
        compile_kernel(function, [(F64, 1, True)], "k", "x86-64-v2")
    message = str(caught.value)
    assert text in message and line in message
    assert caught.value.place.file == __file__
    assert caught.value.exit_code == 65


def test_half_types_are_refused():
    with pytest.raises(KernelError, match="float16"):
        compile_kernel(twice, [(BY_NAME["float16"], 0, False)], "k", "x86-64-v2")


def test_the_object_is_for_the_target():
    def copy(x, out):
        for i in range(out.shape[0]):
            out[i] = x[i] * 2

    signature = [(F32, 1, False), (F32, 1, True)]
    old = compile_kernel(copy, signature, "k", "x86-64")
    new = compile_kernel(copy, signature, "k", "x86-64-v4")
    assert old != new and b"k" in old

"""Kernels: numba functions in an image give NumPy's results; what cannot be linked is refused."""

import math

import numpy as np
import pytest

import spmd
from codegen.dtypes import BY_NAME
from codegen.errors import KernelError
from codegen.gufunc import Parameter
from codegen.image.kernel_objects import compile_kernel
from codegen.symbolic import expr
from codegen.trace.number import Number

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


@spmd.program(mesh=("r",))
def helper_inside(n: int = 4):
    def kept(v):
        return v

    @spmd.kernel
    def copied(x, out):
        for i in range(x.shape[0]):
            out[i] = kept(x[i])

    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i)
    return copied(x, out=spmd.like(x))


def test_a_kernel_calls_a_helper_of_the_program():
    assert spmd.build(helper_inside).run(ranks=2).tolist() == [0, 1, 2, 3]


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


def assigns(x):
    y = x[1:]
    x[:] = y


def helped(x):
    x[0] = plus_one(x)


def plus_one(a):
    return (a + 1.0)[0]


scale = Number(expr.const(3))


def outer(x):
    x[0] = scale * 2


def nested(x):
    weighted(x, x, 1, 1, x, x)


def dims(x):
    x[0, 0] = x[1, 1]


def wants_objects(x):
    x[0] = len("a" + str(x[0]))


@pytest.mark.parametrize(
    "function, text, line",
    [
        (allocates, "allocates", "scratch = np.zeros"),
        (raises, "can raise", "raise ValueError"),
        (unknown, "reads no_such_name, which is not defined", "x[0] = no_such_name + 1"),
        (assigns, "write the loop: for i in", "x[:] = y"),
        (helped, "element by element in a loop", "return (a + 1.0)[0]"),
        (outer, "pass scale as an argument", "x[0] = scale * 2"),
        (nested, "leave @spmd.kernel out before def weighted", "weighted(x, x, 1, 1, x, x)"),
        (dims, "no getitem(array(float64, 1d, C)", "x[0, 0] = x[1, 1]"),
        (wants_objects, "", ""),
    ],
)
def test_refused_with_the_kernels_own_line(function, text, line):
    with pytest.raises(KernelError) as caught:
        compile_kernel(function, [Parameter(F64, 1, True)], "k", "x86-64-v2")
    message = str(caught.value)
    assert text in message and line in message
    assert caught.value.place.file == __file__
    assert caught.value.exit_code == 65


def test_half_types_are_refused():
    with pytest.raises(KernelError, match="float16"):
        compile_kernel(twice, [Parameter(BY_NAME["float16"])], "k", "x86-64-v2")


def test_the_object_is_for_the_target():
    def copy(x, out):
        for i in range(out.shape[0]):
            out[i] = x[i] * 2

    signature = [Parameter(F32, 1), Parameter(F32, 1, True)]
    old = compile_kernel(copy, signature, "k", "x86-64")
    new = compile_kernel(copy, signature, "k", "x86-64-v4")
    assert old != new and b"k" in old


# ---- what users write --------------------------------------------------------------------------


def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


@spmd.kernel
def mixed(x, a, b, flag, n, out):
    for i in range(x.shape[0]):
        out[i] = x[i] * a + b + factorial(i)
        if flag:
            out[i] += n


@spmd.program(mesh=("r",))
def mixed_scalars(n: int = 6, dtype: str = "complex64"):
    x = spmd.input("x", (n,), dtype, layout=("r",), default=lambda i: i)

    @spmd.shard_map(out_layouts=(("r",),))
    def f(x):
        a = np.sum(x[:0]) + x.dtype.type(1 + 2j)  # run-time values of all kinds, among each other
        b = np.sum(x[:0].real) + x.real.dtype.type(0.5)
        return mixed(x, a, b, spmd.axis_index("r") >= 0, spmd.axis_size("r"), out=spmd.like(x))

    return f(x)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_scalars_of_every_kind_and_a_helper_that_calls_itself(dtype):
    """Complex numbers by value have no calling convention that C and LLVM agree on."""
    out = spmd.build(mixed_scalars, dtype=dtype).run(ranks=1)
    i = np.arange(6)
    expected = i * (1 + 2j) + 0.5 + np.array([math.factorial(k) for k in i]) + 1
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, expected.astype(dtype))


def gamma(x):
    x[0] = math.gamma(x[0]) + math.ldexp(x[0], 3) + math.frexp(x[0])[0]


def elements(x):
    x[0] = np.cbrt(x[0]) + np.hypot(x[0], x[1]) + math.erf(x[1]) + np.logaddexp(x[0], x[1])


def integers(x, n):
    x[0] = 7 // n + 7 % n + (n << 3) + abs(n) + int(n / 3.7)


def views(x):
    y = x[1:3]
    y[0] = y.sum() + TABLE[int(x[0])]


TABLE = np.arange(5.0)


@pytest.mark.parametrize(
    "function, scalars", [(gamma, []), (elements, []), (integers, [Parameter(I64)]), (views, [])]
)
def test_what_a_kernel_may_use(function, scalars):
    first = I64 if scalars else F64
    assert compile_kernel(function, [Parameter(first, 1, True), *scalars], "k", "x86-64-v2")


def divides(z, w):
    z[0] = z[0] / w


def largest(x):
    x[0] = x.max()


def powers(x, n):
    x[0] = 2**n


def imports(x):
    import math as m

    x[0] = m.sin(1.0)


def prints(x):
    print(x[0])


def draws(x):
    x[0] = np.random.rand()


COMPLEX = BY_NAME["complex128"]


@pytest.mark.parametrize(
    "function, scalars, text, line",
    [
        (divides, [Parameter(COMPLEX)], "ZeroDivisionError: complex division by zero", "def div"),
        (largest, [], "zero-size array", "def largest"),
        (powers, [Parameter(I64)], "OverflowError", "def powers"),
        (imports, [], "cannot be compiled", "def imports"),
        (prints, [], "a call into Python", "def prints"),
        (draws, [], "numba_get_np_random_state", "x[0] = np.random.rand()"),
    ],
)
def test_the_refusal_says_what_could_be_raised(function, scalars, text, line):
    first = COMPLEX if function is divides else I64 if scalars else F64
    with pytest.raises(KernelError) as caught:
        compile_kernel(function, [Parameter(first, 1, True), *scalars], "k", "x86-64-v2")
    assert text in str(caught.value) and line in str(caught.value)
    assert caught.value.remedy and caught.value.place.file == __file__


def recursive(x):
    for i in range(x.shape[0]):
        x[i] = factorial(int(x[i])) + TABLE[i % 5]


def test_compiling_twice_gives_the_same_bytes():
    """Neither numba's counters nor a path of this machine are in the object."""
    signature = [Parameter(F64, 1, True)]
    once, twice = (compile_kernel(recursive, signature, "k", "x86-64") for _ in range(2))
    assert once == twice
    assert b"/" not in once.replace(b"//", b"") and b"numba" not in once.lower()

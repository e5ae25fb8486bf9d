"""Names that the compiler gives: a user's x_2 is another one than the second x."""

import numpy as np
import pytest

import spmd
from codegen.errors import UsageError
from codegen.ir.fresh import Fresh


def test_no_name_is_given_twice():
    names = Fresh(["x_3"])
    given = [names.name(n) for n in ("x", "x", "x_2", "x", "x_2", "x_3", "x_2_2", "x")]
    assert len(set(given)) == len(given) and given[:2] == ["x", "x_2"]
    assert "x_3" not in given
    again = names.copy()
    assert again.name("x") == names.name("x")


@spmd.program(mesh=("r",))
def numbered(n: int = 10):
    a = spmd.input("row", (n,), np.float64, layout=("r",), default=lambda i: i + 1.0)
    scale = spmd.scalar("s", 2.0)
    x = np.exp(-a)
    p = x + 1 / x
    x = np.sin(a)
    q = x + 1 / x
    x_2 = np.cos(a)
    r = x_2 + 1 / x_2
    m = np.sum(a)
    m = np.max(a) + m * 0
    m_2 = np.min(a)
    scalar_s = np.tanh(a)
    return p + q + r, a * m + m_2, scalar_s * scale + 1 / scalar_s


@spmd.program(mesh=("r",))
def counted(n: int = 6):
    row = spmd.zeros((n, 4), np.float64, layout=(None, "r"))
    for k in spmd.range(5):
        row = row + k
    for k in spmd.range(5):
        for k_2 in spmd.range(3):
            row = row * 0.5 + k - k_2
    for _ in spmd.range(3):
        row[1:-1] = 0.5 * (row[:-2] + row[2:]) + 1.0
    return row


@pytest.mark.parametrize("program", [numbered, counted], ids=lambda p: p.name)
def test_names_with_numbers_are_other_names(program):
    expected = program.eager()
    image = spmd.build(program, cache=False)
    for ranks in (1, 3):
        found = image.run(ranks=ranks)
        for f, e in zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True):
            np.testing.assert_allclose(f, e, rtol=1e-12)


@pytest.mark.parametrize("name", ["p", "wrap"])
def test_a_number_of_the_compiler_is_no_scalar(name):
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.zeros((4,), np.float64, layout=("r",))
        for steps in spmd.range(3):
            x = x + steps
        return x + spmd.scalar(name, 2)

    with pytest.raises(UsageError, match="another number") as caught:
        program.capture()
    assert f"{name}_given" in str(caught.value)


def test_a_loop_variable_leaves_a_scalar_its_name():
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.zeros((4,), np.float64, layout=("r",))
        for steps in spmd.range(3):
            x = x + steps
        return x + spmd.scalar("steps", 2)

    assert spmd.build(program).run(ranks=2, steps=5).tolist() == [8.0] * 4

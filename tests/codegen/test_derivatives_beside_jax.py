"""Values, gradients, changes along a direction and second derivatives, beside JAX's."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest
import scipy.special

import spmd
from codegen.oracle.interpret import run
from tests.codegen.jax_cases import CASES, DIRECTIONS, GOLDEN, INPUTS, ONCE, loss, numbers

# mypy: ignore-errors

OURS = types.SimpleNamespace(
    np=np, special=scipy.special, nn=spmd.nn, conv=spmd.nn.conv, eig=np.linalg.eig,
    eigvals=np.linalg.eigvals,
    conv_transpose=spmd.nn.conv_transpose, scan=spmd.scan, cond=spmd.cond,
    fori_loop=spmd.fori_loop, is_jax=False, cummax=lambda x: np.maximum.accumulate(x, axis=1),
    cummin=lambda x: np.minimum.accumulate(x, axis=1))


def derived(names, once=False):
    """Return the derivatives of the named cases; `once` leaves out second derivatives."""

    @spmd.program(mesh=("r",))
    def program():
        given = {}
        for prefix, arrays in (("x", INPUTS), ("v", DIRECTIONS)):
            for n, x in arrays.items():
                layout = ("r", *[None] * (x.ndim - 1))
                given[prefix + n] = spmd.input(prefix + n, x.shape, x.dtype, layout=layout)
        out = {}
        for name in names:
            inputs, f = CASES[name]
            xs, vs = ([given[p + n] for n in inputs] for p in "xv")
            one = lambda *xs, f=f: loss(OURS, f, xs)
            both = spmd.value_and_grad(one, tuple(range(len(xs))))
            if once:
                value, gradient = both(*xs)
                change, second = spmd.jvp(one, xs, vs)[1], ()
            else:
                (value, gradient), (change, second) = spmd.jvp(both, xs, vs)
            out[name] = [[value, change], list(gradient), list(second)]
        return out

    given = {p + n: x for p, d in (("x", INPUTS), ("v", DIRECTIONS)) for n, x in d.items()}
    return run(program.capture(), {"r": 2}, given)


def test_derivatives_are_those_of_jax():
    golden = json.loads(GOLDEN.read_text())
    assert list(golden) == list(CASES)
    for names, once in (([n for n in CASES if n not in ONCE], False), (sorted(ONCE), True)):
        parts = iter(derived(names, once).values())
        for name in names:
            count = len(CASES[name][0])
            for what, n, wanted in zip(("value, change", "gradient", "its change"),
                                       (2, count, 0 if once else count), golden[name]):
                if n:
                    mine = numbers([next(parts) for _ in range(n)])
                    np.testing.assert_allclose(mine, wanted, 1e-7, 1e-7, err_msg=f"{name}: {what}")


@pytest.mark.parametrize("name", ["prod of a zero", "cumprod of zeros", "det of a singular matrix"])
def test_second_derivatives_where_a_factor_is_0_are_refused(name):
    with pytest.raises(spmd.SpmdError, match="the second derivative of"):
        derived([name])

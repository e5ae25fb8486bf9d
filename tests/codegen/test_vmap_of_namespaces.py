"""Every function of spmd.numpy, spmd.nn, scipy.special and spmd.optim under spmd.vmap, beside a
Python loop: all arguments mapped, one alone, along another dim. Here are a sixth of them; `make
random` takes all, in images too."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from tests.codegen.namespace_cases import CASES
from tests.codegen.test_derivatives_of_namespaces import leaves

# mypy: ignore-errors

MEMBERS = 3
# For a loop over members: what needs a program, and what is complex where data are so.
WITHOUT = {"np.roots", "nn.conv", "nn.conv_transpose", "nn.avg_pool", "nn.recurrent",
           "nn.attention_with_cache"}  # of spmd.nn: tests/spmd/test_nn_of_members.py
NAMES = [name for name in CASES if name not in WITHOUT]  # with those of scipy.special
HERE = NAMES[::6]


def members(name, x):
    """Other arrays for which the function is defined too: np.interp wants rising ones."""
    return np.stack([x, x * 0.97, x * 0.94 if name == "np.interp" else np.flip(x)])


def ways(name):
    """Which dim of each argument counts members."""
    count = len(CASES[name][1])
    alone = [[0 if j == k else None for j in range(count)] for k in range(count)]
    return [[0] * count, [-1] * count, *(alone if count > 1 else [])]


def given(name, axes):
    arrays = CASES[name][1]
    return [x if axis is None else np.moveaxis(members(name, x), 0, axis)
            for x, axis in zip(arrays, axes, strict=True)]


def by_loop(name, axes, args):
    each = [leaves(CASES[name][0](*(x if axis is None else np.take(x, k, axis)
                                    for x, axis in zip(args, axes, strict=True))))
            for k in range(MEMBERS)]
    return [np.stack(rows) for rows in zip(*each, strict=True)]


def agree(found, wanted, what):
    for x, y in zip(leaves(found), wanted, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape), what
        np.testing.assert_allclose(x, y, 1e-9, 1e-11, err_msg=what)


def check(name):
    for axes in ways(name):
        args = given(name, axes)
        found = spmd.vmap(CASES[name][0], in_axes=tuple(axes))(*args)
        agree(found, by_loop(name, axes, args), f"{name}, {axes}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("k", range(4))
def test_members_beside_a_loop(k):
    for name in HERE[k::4]:
        check(name)

"""Every function of the namespaces under spmd.vmap, outside of programs and in images; the default
run takes a few."""

from __future__ import annotations

import pytest
from hypothesis import settings

import spmd
from tests.codegen.namespace_cases import CASES
from tests.codegen.test_vmap_of_namespaces import (
    HERE,
    NAMES,
    agree,
    by_loop,
    check,
    given,
    ways,
)

# mypy: ignore-errors

LONG = settings().max_examples > 25
REST = [name for name in NAMES if name not in HERE] if LONG else ["np.kron"]
IMAGES = [NAMES[k::12] for k in range(12)] if LONG else [["np.interp", "special.softmax"]]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")


def test_members_beside_a_loop():
    for name in REST:
        check(name)


@pytest.mark.parametrize("names", IMAGES, ids=lambda names: names[0])
def test_members_under_jit(names):
    # By themselves: a build looks at all that the program reaches, which CASES is too much for.
    each = [(name, axes, given(name, axes)) for name in names for axes in ways(name)[-1:]]
    called = [(CASES[name][0], tuple(axes)) for name, axes, _ in each]

    def mapped(arrays):
        return [spmd.vmap(function, in_axes=axes)(*args)
                for (function, axes), args in zip(called, arrays, strict=True)]

    for ranks in (1, 3) if LONG else (3,):
        found = spmd.jit(mapped, ranks=ranks)([args for _, _, args in each])
        for (name, axes, args), made in zip(each, found, strict=True):
            agree(made, by_loop(name, axes, args), f"{name}, {axes}, {ranks} ranks")

"""What a Transformer's block exchanges under each layout: kind, axis, elements, as in Megatron."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir import Value, walk
from codegen.ops import Exchange, MatMul
from codegen.plan.text import loops_text
from codegen.symbolic import expr
from tests.conftest import EXAMPLES

SIZES = {"steps": 3, "batch": 8, "heads": 4, "width": 32, "length": 16}
STREAM = 8 * 16 * 32  # elements of what goes from block to block
WEIGHTS = [32, 32, *[32 * 32] * 4, *[32 * 128] * 2]


def example() -> Any:
    found = importlib.util.spec_from_file_location("transformer", EXAMPLES / "transformer.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def elements(value: Value, sizes: dict[str, int]) -> int:
    """On the first rank."""
    known = {f"n_{a}": n for a, n in sizes.items()} | {f"i_{a}": 0 for a in sizes}
    return expr.product(value.type.shape).evaluate(known)


def exchanged(program: Any, layers: int, sizes: dict[str, int]) -> Counter[Any]:
    level = lower(program.graph({**SIZES, "layers": layers}, ())).program
    return Counter(
        (op.what.called, "".join(op.what.axes), elements(op.result, sizes))
        for op in walk(level.body) if isinstance(op.what, Exchange)
    )


def sums(axis: str, sizes: list[int]) -> list[Any]:
    return [("all_reduce", axis, n) for n in sizes]


@pytest.mark.parametrize(("name", "sizes", "expected"), [
    ("data", {"x": 2}, sums("x", WEIGHTS)),
    ("model", {"x": 2}, sums("x", [STREAM] * 4)),
    ("both", {"x": 2, "y": 2}, [
        *sums("y", [STREAM // 2] * 4),
        *sums("x", [32, 32, *[32 * 16] * 4, *[32 * 64] * 2]),
    ]),
])
def test_a_block_exchanges(name: str, sizes: dict[str, int], expected: list[Any]) -> None:
    """What two blocks exchange more than one: gradients once each, or the stream twice forward and
    twice backward."""
    program = getattr(example(), name)
    two, one = exchanged(program, 2, sizes), exchanged(program, 1, sizes)
    assert two - one == Counter(expected)
    assert not one - two


def test_gradients_of_a_repeated_matrix_are_one_product() -> None:
    @spmd.program(mesh=("r",))
    def repeated():
        x = spmd.input("x", (6, 5, 16), np.float64, layout=("r", None, None))
        w = spmd.input("w", (16, 14), np.float64)
        return spmd.grad(lambda w: np.sum(np.sin(x @ w)))(w)

    program = lower(repeated.graph({}, ())).program
    made = [op for op in walk(program.body) if isinstance(op.what, MatMul)]
    assert [op.result.type.ndim for op in made] == [3, 2]
    x = np.random.default_rng(0).random((6, 5, 16))
    w = np.random.default_rng(1).random((16, 14))
    expected = np.einsum("blc,bld->cd", x, np.cos(x @ w))
    image = spmd.build(repeated)
    for ranks in (1, 4, 7):
        np.testing.assert_allclose(image.run(ranks=ranks, x=x, w=w), expected, rtol=1e-12)


def test_split_heads_are_read_where_they_lie() -> None:
    """No copy of a split dim, and no division where dims of which one is split are merged."""

    @spmd.program(mesh=("r",))
    def heads():
        x = spmd.input("x", (6, 5, 16), np.float64)
        w = spmd.input("w", (16, 4, 14), np.float64, layout=(None, "r", None))
        return np.einsum("blc,chd->bhld", x, w)

    levels = lower(heads.graph({}, ()))
    assert " // (" not in loops_text(levels.loops)
    x = np.random.default_rng(0).random((6, 5, 16))
    w = np.random.default_rng(1).random((16, 4, 14))
    image = spmd.build(heads)
    for ranks in (1, 3, 5):
        np.testing.assert_allclose(
            image.run(ranks=ranks, x=x, w=w), np.einsum("blc,chd->bhld", x, w), rtol=1e-12)

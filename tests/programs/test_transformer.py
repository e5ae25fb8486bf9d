"""The character model: its losses beside JAX's and PyTorch's, and what ranks exchange, as in
Megatron (M. Shoeybi et al., 2019): kind, axis, number and bytes."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import Module, walk
from codegen.ir.plan_text import loops_text
from codegen.ops import Exchange, MatMul
from codegen.symbolic import expr
from tests.conftest import EXAMPLES
from tests.spmd import character_model

# Of the small one: a batch of 8 pieces of 16 letters, of 65; 4 bytes for each element.
SIZES = {"steps": 3, "batch": 8, "heads": 4, "width": 32, "length": 16, "layers": 1, "vocab": 65}
STREAM = 4 * 8 * 16 * 32  # what goes from block to block
ROWS = 4 * 8 * 16  # a number for each letter
MATRIX, LARGE, SCALE = 4 * 32 * 32, 4 * 32 * 128, 4 * 32  # of a block
TOKEN, PLACE = 4 * 65 * 32, 4 * 16 * 32
PART = 4 * 33 * 32  # of the table of letters, on the first of two ranks


@pytest.fixture(scope="module")
def example() -> Any:
    found = importlib.util.spec_from_file_location("transformer", EXAMPLES / "transformer.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def exchanged(graph: Module, sizes: dict[str, int]) -> Counter[Any]:
    """How often each exchange is: its kind, its axes, and the bytes of its result on the first
    rank."""
    known = {f"n_{a}": n for a, n in sizes.items()} | {f"i_{a}": 0 for a in sizes}
    return Counter(
        (op.kind.called, "".join(op.kind.axes),
         expr.product(op.result.type.shape).evaluate(known) * op.result.type.dtype.size)
        for op in walk(lower(graph).program.body) if isinstance(op.kind, Exchange)
    )


def sums(axis: str, *sizes: int) -> list[Any]:
    return [("all_reduce", axis, size) for size in sizes]


# A block whose weights all ranks have exchanges its gradients, one whose heads and hidden units are
# split the stream: twice forward, twice backward. What stands around it: letters and their loss.
@pytest.mark.parametrize(("name", "sizes", "block", "around"), [
    ("data", {"x": 2}, sums("x", SCALE, SCALE, *[MATRIX] * 4, LARGE, LARGE),
     sums("x", SCALE, PLACE, TOKEN, 4)),
    ("model", {"x": 2}, sums("x", *[STREAM] * 4), sums("x", STREAM, STREAM, ROWS, ROWS, ROWS)),
    ("both", {"x": 2, "y": 2}, [
        *sums("y", *[STREAM // 2] * 4),
        *sums("x", SCALE, SCALE, *[MATRIX // 2] * 4, LARGE // 2, LARGE // 2),
    ], [
        *sums("y", STREAM // 2, STREAM // 2, *[ROWS // 2] * 3),
        *sums("x", SCALE, PLACE, PART, 4),
    ]),
])
def test_a_block_exchanges(
    example: Any, name: str, sizes: dict[str, int], block: list[Any], around: list[Any]
) -> None:
    found = exchanged(getattr(example, name).graph(SIZES), sizes)
    assert found == Counter([*block, *around])


@pytest.mark.parametrize(("rules", "expected"), [
    ({"batch": "x"}, sums("x", 4 * 20 * 64, 4 * 64, 4 * 64 * 12, 4 * 12, 4)),
    ({"hidden": "x"}, sums("x", 4 * 32 * 12)),
    ({"batch": "x", "hidden": "y"}, [
        *sums("x", 4 * 20 * 32, 4 * 32, 4 * 32 * 12, 4 * 12, 4), *sums("y", 4 * 16 * 12)]),
])
def test_two_layers_exchange(rules: dict[str, str], expected: list[Any]) -> None:
    """Gradients and the loss over the batch; over hidden units, what the second layer gives."""
    mesh = tuple(sorted(set(rules.values())))

    @spmd.program(mesh=mesh, layout=rules)
    def two_layers():
        batch, hidden = spmd.Dim("batch", 32), spmd.Dim("hidden", 64)
        x = spmd.input("x", (batch, 20), np.float32)
        w = spmd.input("w", {"w1": spmd.spec((20, hidden)), "b1": spmd.spec(hidden),
                             "w2": spmd.spec((hidden, 12)), "b2": spmd.spec(12)})

        def loss(w: Any) -> Any:
            h = spmd.nn.relu(spmd.nn.dense(x, w["w1"], w["b1"]))
            return np.mean(spmd.nn.dense(h, w["w2"], w["b2"]) ** 2)

        value, grads = spmd.value_and_grad(loss)(w)
        return {"loss": value, **{k: w[k] - grads[k] for k in w}}

    assert exchanged(two_layers.graph({}), dict.fromkeys(mesh, 2)) == Counter(expected)


@pytest.mark.slow
def test_losses_are_those_of_jax_and_pytorch(example: Any) -> None:
    """nanoGPT's CPU configuration, the first 8 of 20 steps: where one axis has one rank, the other
    is data or model parallel alone. 4 heads and 65 letters are split unevenly too."""
    model = character_model
    steps = 8
    image = spmd.build(example.both, steps=steps, vocab=model.VOCAB)
    theirs = json.loads(model.GOLDEN.read_text())
    for x, y in ((2, 1), (1, 3), (4, 4)):
        out = image.run(ranks=x * y, mesh={"x": x, "y": y}, w=model.weights(),
                        text=model.text()[:steps], rate=model.RATE)
        for name in ("jax", "torch"):
            np.testing.assert_allclose(out["losses"], theirs[name]["losses"][:steps], rtol=1e-5,
                                       err_msg=f"{name} and {x} by {y} ranks")


def test_gradients_of_a_repeated_matrix_are_one_product() -> None:
    @spmd.program(mesh=("r",))
    def repeated():
        x = spmd.input("x", (6, 5, 16), np.float64, layout=("r", None, None))
        w = spmd.input("w", (16, 14), np.float64)
        return spmd.grad(lambda w: np.sum(np.sin(x @ w)))(w)

    program = lower(repeated.graph({}, ())).program
    made = [op for op in walk(program.body) if isinstance(op.kind, MatMul)]
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

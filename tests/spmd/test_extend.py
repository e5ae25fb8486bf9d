"""Operations of users: on 1, 3 and 5 ranks, eagerly, mapped, differentiated, and beside NumPy.

A rule that does not fit is refused with the name of the operation, of the rule, and what to write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ops import Exchange
from codegen.oracle import interpret
from codegen.trace.control.fingerprint import digest


@spmd.kernel
def largest_of(x, width, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[i, j]
            for k in range(1, width):
                out[i, j] = max(out[i, j], x[i + k, j])


@dataclass(frozen=True)
class Largest(spmd.extend.Operation):
    """result[i, j] is the largest of x[i, j] to x[i + width - 1, j]."""

    width: int

    def result(self, x):
        return spmd.extend.Type((x.shape[0] - self.width + 1, x.shape[1]), x.dtype)

    def numpy(self, x):
        n = x.shape[0] - self.width + 1
        return np.max([x[k : k + n] for k in range(self.width)], axis=0)

    def needs(self, dims, x):
        return [(dims[0].windows(self.width), dims[1])]

    def compute(self, part, x):
        return largest_of(x, self.width, out=spmd.empty(part.shape, x.dtype))

    def vjp(self, operands, result, cotangent):
        (x,), n = operands, result.shape[0]
        slope = np.zeros_like(x)
        for k in range(self.width):
            slope[k : k + n] += np.where(x[k : k + n] == result, cotangent, 0)
        return (slope,)


class Blocks(spmd.extend.Operation):
    """Sums of so many elements, one place or more apart; captured from NumPy, without a kernel."""

    def __init__(self, size, step):
        self.size, self.step = size, step

    def result(self, x):
        return spmd.extend.Type(((x.shape[0] - self.size) // self.step + 1,), x.dtype)

    def numpy(self, x):
        n = (x.shape[0] - self.size) // self.step + 1
        return sum(x[k : k + (n - 1) * self.step + 1 : self.step] for k in range(self.size))

    def needs(self, dims, x):
        return [(dims[0].windows(self.size, self.step),)]


class Ramp(spmd.extend.Operation):
    """x plus the place of each row, and what stands in y for all of them."""

    def result(self, x, y):
        return x

    def numpy(self, x, y):
        return x + np.arange(x.shape[0])[:, None] + np.sum(y)

    def needs(self, dims, x, y):
        return [dims, None]

    def compute(self, part, x, y):
        places = np.arange(x.shape[0]) + part.start[0]
        return x + places[:, None] + np.sum(y)

    def vjp(self, operands, result, cotangent):
        return cotangent, np.sum(cotangent) + np.zeros_like(operands[1])

    def batched(self):
        return Ramps()


class Ramps(Ramp):
    """Ramp of each member of a batch."""

    def numpy(self, x, y):
        return np.stack([Ramp().numpy(*member) for member in zip(x, y)])

    def needs(self, dims, x, y):
        return [dims, (dims[0], None)]

    def compute(self, part, x, y):
        places = np.arange(x.shape[1]) + part.start[1]
        return x + places[:, None] + np.sum(y, 1)[:, None, None]


largest, blocks, ramp = Largest(3), Blocks(3, 2), Ramp()


@spmd.program(mesh=("r",))
def used(n: int = 11):
    x = spmd.input("x", (n, 4), np.float64, layout=("r", None),
                   default=lambda i, j: (i * 7 + j * 5) % 11)
    y = spmd.input("y", (5,), np.float64, layout=("r",), default=lambda i: i)
    v = x
    for _ in spmd.range(2):
        v = np.pad(largest(v * 0.5), ((1, 1), (0, 0)))
    padded = lambda x: largest(np.concatenate([np.zeros((1, 4)), x, np.zeros((1, 4))]))
    shards = spmd.shard_map(lambda x, y: padded(x) + ramp(x, y), out_layouts=("r", None))
    return {
        "largest": largest(x), "looped": v, "wide": Largest(7)(x), "blocks": blocks(x[:, 0]),
        "ramp": ramp(x, y), "slope": spmd.grad(lambda x: np.sum(largest(x) ** 2))(x),
        **dict(zip(("slope_x", "slope_y"),
                   spmd.grad(lambda x, y: np.sum(ramp(x, y) ** 2), (0, 1))(x, y))),
        "tangent": spmd.jvp(lambda x: ramp(x, y), (x,), (x * 2,))[1],
        "members": spmd.vmap(lambda v: blocks(v), in_axes=1)(x), "rows": spmd.vmap(blocks)(x),
        "batch": spmd.vmap(ramp)(np.stack([x, 2 * x]), np.stack([y, 3 * y])),
        "both": spmd.vmap(spmd.grad(lambda v: np.sum(largest(v[:, None]) ** 2)), in_axes=1)(x),
        "arm": spmd.cond(x[0, 0] > 0, lambda: largest(x), lambda: -largest(x)),
        "shards": np.sum(shards(x, y)) * 0,
    }


def by_hand(n: int = 11) -> dict[str, Any]:
    i, j = np.indices((n, 4))
    x = (i * 7 + j * 5) % 11 * 1.0
    v = x
    for _ in range(2):
        v = np.pad(largest.numpy(v * 0.5), ((1, 1), (0, 0)))
    placed = x + np.arange(n)[:, None] + 10
    slope = np.zeros_like(x)
    for a in range(n - 2):
        for b in range(4):
            for k in range(3):
                most = x[a : a + 3, b].max()
                slope[a + k, b] += 2 * most * (x[a + k, b] == most)
    return {
        "largest": largest.numpy(x), "looped": v, "wide": Largest(7).numpy(x),
        "blocks": np.array([x[k : k + 3, 0].sum() for k in range(0, n - 2, 2)]), "ramp": placed,
        "slope": slope, "slope_x": 2 * placed, "slope_y": np.full(5, 2 * placed.sum()),
        "tangent": 2 * x,
        "members": np.stack([blocks.numpy(row) for row in x.T]),
        "rows": np.stack([blocks.numpy(row) for row in x]),
        "batch": np.stack([placed, 2 * x + np.arange(n)[:, None] + 30]), "both": slope.T,
        "arm": -largest.numpy(x), "shards": 0.0,
    }


def same(found: Any, title: str) -> None:
    for name, expected in by_hand().items():
        np.testing.assert_allclose(found[name], expected, err_msg=f"{name}, {title}")


def test_operations_beside_numpy() -> None:
    levels, image = lower(used.capture()), spmd.build(used)
    same(used.eager(), "eager")
    for ranks in (1, 3, 5):
        same(interpret.run(levels.graph, {"r": ranks}), f"the Graph on {ranks} ranks")
        same(image.run(ranks=ranks), f"{ranks} ranks")


def test_ranks_fetch_what_the_rule_names() -> None:
    """Nothing is gathered of an array whose dims all go with those of the result."""

    @spmd.program(mesh=("r",))
    def one():
        x = spmd.input("x", (11, 4), np.float64, layout=("r", None), default=lambda i, j: i + j)
        return largest(x)

    (sent,) = [op for op in walk(lower(one.capture()).program.body)
               if isinstance(op.kind, Exchange)]
    assert sent.kind.called in ("halo", "redistribute")


def test_outside_of_programs_and_compiled() -> None:
    x = np.arange(33.0).reshape(11, 3) % 7
    np.testing.assert_array_equal(largest(x), largest.numpy(x))
    np.testing.assert_array_equal(spmd.jit(lambda x: largest(x) * 2)(x), largest.numpy(x) * 2)
    slope = spmd.grad(lambda x: np.sum(largest(x)))(x)
    np.testing.assert_array_equal(slope, largest.vjp((x,), largest.numpy(x), np.ones((9, 3)))[0])
    half = largest(x.astype(np.float32))
    assert half.dtype == np.float32


def test_rules_are_tried() -> None:
    draw = np.random.default_rng(0)
    spmd.extend.check(Largest(4), draw.random((11, 3)))
    spmd.extend.check(Blocks(2, 2), draw.random(10).astype(np.float32), ranks=(1, 4))
    spmd.extend.check(ramp, draw.random((7, 3)), draw.random(3))


def test_a_capture_knows_the_code_of_rules() -> None:
    """A program is built anew if the code of an operation's rule has changed, as for any
    function."""

    def program(by: float) -> Any:
        class Scaled(spmd.extend.Operation):
            def result(self, x):
                return x

            def numpy(self, x):
                return x * by

        scaled = Scaled()
        return spmd.program(lambda: scaled(spmd.input("x", (3,), np.float64)))

    first, again, other = (digest(program(by)) for by in (2.0, 2.0, 3.0))
    assert first is not None and first == again != other


# ---- rules that do not fit -----------------------------------------------------------------------


def with_rules(**rules: Callable[..., Any]) -> Any:
    """Return an operation that is right but for these rules."""
    right = {"result": lambda self, x: x, "numpy": lambda self, x: 2.0 * x,
             "needs": lambda self, dims, x: [dims]}
    return type("Odd", (spmd.extend.Operation,), {**right, **rules})()


LONGER = {"result": lambda self, x: spmd.extend.Type((x.shape[0] + 1,), x.dtype)}
SHORT = {"needs": lambda self, dims, x: [None], "compute": lambda self, part, x: 2.0 * x}
WRONG = [
    (LONGER | SHORT, spmd.ShapeError,
     ['"Odd"', "disagree about the shape", "compute returns"]),
    ({"result": lambda self, x: spmd.extend.Type((x.shape[0] - 1,), x.dtype)}, spmd.ShapeError,
     ['"Odd"', "disagree about the shape", "(5,), as the rule result", "(6,), which numpy"]),
    ({"result": lambda self, x: spmd.extend.Type(x.shape, np.float32)}, spmd.DtypeError,
     ['"Odd"', "float32, as the rule result says", "float64"]),
    ({"result": lambda self, x: x.shape}, spmd.UsageError,
     ['"Odd"', "the rule result returns no type", "spmd.extend.Type(shape, dtype)"]),
    ({"needs": lambda self, dims, x: dims}, spmd.LayoutError,
     ['"Odd"', "not one entry for each dim of operand 0", "1 entries"]),
    ({"needs": lambda self, dims, x: [dims, dims]}, spmd.LayoutError,
     ['"Odd"', "not one entry for each operand", "2"]),
    ({"needs": lambda self, dims, x: [(dims[0].windows(3),)]}, spmd.LayoutError,
     ['"Odd"', "shorter than the rule needs says", "8"]),
    ({"needs": lambda self, dims, x: [(dims[0].windows(2, 3),)]}, spmd.LayoutError,
     ["gaps", "1 <= step <= size", "x[::step]"]),
    ({"compute": lambda self, part, x: x + spmd.psum(np.sum(x), "r")}, spmd.UnsupportedError,
     ['"Odd"', "compute exchanges data between ranks", "rule needs"]),
    ({"compute": lambda self, part, x: x[:0]}, spmd.ShapeError,
     ['"Odd"', "as the rule needs says", "compute returns"]),
    ({"result": spmd.extend.Operation.result}, spmd.UsageError,
     ['"Odd"', "no rule result", "def result(self, x)"]),
]


@pytest.mark.parametrize("rules, error, words", WRONG, ids=lambda x: "/".join(x) if isinstance(
    x, (dict, list)) else x.__name__)
def test_wrong_rules_are_refused(rules: Any, error: type, words: list[str]) -> None:
    odd = with_rules(**rules)

    @spmd.program(mesh=("r",))
    def program():
        return odd(spmd.input("x", (6,), np.float64, layout=("r",)))

    with pytest.raises(error) as caught:
        lower(program.capture())
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert f"{__file__}:" in str(caught.value) or "test_extend.py" in str(caught.value)


def test_a_missing_derivative_says_what_to_add() -> None:
    odd = with_rules()

    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (6,), np.float64, layout=("r",))
        return spmd.grad(lambda x: np.sum(odd(x)))(x)

    with pytest.raises(spmd.UnsupportedError, match='"Odd" has no derivative') as caught:
        program.capture()
    assert "def vjp(self, operands, result, cotangent)" in str(caught.value)


@pytest.mark.parametrize("rule, words", [
    (lambda self, operands, result, g: g, ["no cotangent for each operand", "a tuple of 1"]),
    (lambda self, operands, result, g: (g[1:],), ["another shape for operand 0", "(6,)", "(5,)"]),
])
def test_a_wrong_derivative_is_refused(rule: Any, words: list[str]) -> None:
    odd = with_rules(vjp=rule)

    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (6,), np.float64, layout=("r",))
        return spmd.grad(lambda x: np.sum(odd(x)))(x)

    with pytest.raises(spmd.SpmdError) as caught:
        program.capture()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("rules, words", [
    ({"compute": lambda self, part, x: 3.0 * x}, ["compute on 1 rank", "numpy", "element"]),
    ({"compute": lambda self, part, x: 2.0 * x * (part.start[0] == 0)}, ["compute on 2 ranks"]),
    ({"vjp": lambda self, operands, result, g: (g,)}, ["vjp", "differences of numpy"]),
    ({"numpy": lambda self, x: x[1:]}, ["disagree about the shape", "numpy returns"]),
])
@pytest.mark.parametrize("unit", [1.0, 1e-15, 1j])
def test_trying_finds_rules_that_disagree(rules: Any, words: list[str], unit: complex) -> None:
    with pytest.raises(spmd.SpmdError) as caught:
        spmd.extend.check(with_rules(**rules), np.arange(1.0, 7.0) * unit, ranks=(1, 2))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_right_rules_of_other_types_pass() -> None:
    turned = {"result": lambda self, x: spmd.extend.Type(x.shape, np.complex128),
              "numpy": lambda self, x: x * 1j}
    x = np.arange(1.0, 7.0)
    for operand, back in ((x, lambda g: np.real(g * 1j)), (x + 2j, lambda g: g * 1j)):
        rules = {**turned, "vjp": lambda self, operands, result, g, back=back: (back(g),)}
        spmd.extend.check(with_rules(**rules), operand, ranks=(2,))
    positive = {"result": lambda self, x: spmd.extend.Type(x.shape, np.bool_),
                "numpy": lambda self, x: x > 3, "vjp": lambda self, operands, result, g: (None,)}
    spmd.extend.check(with_rules(**positive), x, ranks=(2,))


def test_a_rule_cannot_write_into_the_arrays_of_its_caller() -> None:
    def numpy(self: Any, x: Any) -> Any:
        x *= 2
        return x

    x = np.arange(3.0)
    with pytest.raises(ValueError, match="read-only"):
        with_rules(numpy=numpy)(x)
    assert x.tolist() == [0, 1, 2]

"""spmd.vmap beside a Python loop over members: eager, outside of programs, and in images."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import spmd
from codegen.errors import CheckError, ShapeError, UnsupportedError, UsageError
from codegen.ir.graph import walk
from codegen.ops import OPS, Exchange, Kind
from tests.codegen.member_cases import CASES, ROW, rounded

pytestmark = pytest.mark.one_mpi

# mypy: ignore-errors

RNG = np.random.default_rng(3)
X = RNG.normal(0, 1, (5, 4))
SHAPES = {"members split": ("r", None), "each member split": (None, "r")}


def leaves(x: Any) -> list[Any]:
    if isinstance(x, dict):
        x = list(x.values())
    return [y for part in x for y in leaves(part)] if isinstance(x, (list, tuple)) else [x]


def agree(found: Any, wanted: Any, what: str) -> None:
    for got, want in zip(leaves(found), leaves(wanted), strict=True):
        if want is None or isinstance(want, str):
            assert got == want, what
            continue
        got, want = np.asarray(got), np.asarray(want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape), what
        np.testing.assert_allclose(got, want, 1e-9, 1e-11, err_msg=what)


# ---- the rules -----------------------------------------------------------------------------------

WITHOUT_RULE = {
    **dict.fromkeys("const full iota expr scalar".split(), "it has no operands"),
    "barrier": "it has neither operands nor results",
    "point": "it is made after the capture",
    **dict.fromkeys("take more send".split(), "batches are taken for all members, outside"),
}


def test_every_kind_of_op_has_a_rule() -> None:
    """A new kind without one is noticed here."""
    without = {name for name, kind in OPS.items() if kind.batch is Kind.batch}
    assert without == set(WITHOUT_RULE)


# ---- members beside a loop -----------------------------------------------------------------------


def cases(split: tuple[str | None, ...]) -> Any:
    @spmd.program(mesh=("r",))
    def all_cases():
        x = spmd.input("x", X.shape, np.float64, layout=split)
        made = {name: spmd.vmap(f)(x) for name, f in CASES.items()}
        made["taken_apart"] = {k: v for k, v in made["taken_apart"].items()
                               if k not in ("text", "nothing")}
        return made

    return all_cases


@functools.cache
def one_by_one() -> Any:
    """Return the results of a Python loop over members in an eager run."""
    return cases(("r", None)).eager(x=X)


@pytest.mark.parametrize("shape", SHAPES)
def test_members_in_images(shape: str) -> None:
    image = spmd.build(cases(SHAPES[shape]))
    for ranks in (1, 3, 5):
        found = image.run(ranks=ranks, x=X)
        for name, wanted in one_by_one().items():
            agree(found[name], wanted, f"{name}, {shape}, {ranks} ranks")


def test_members_outside_of_programs() -> None:
    for name, f in CASES.items():
        if "scalar" not in f.__code__.co_names:
            found = spmd.vmap(f)(X)
            wanted = one_by_one()[name]
            if name == "taken_apart":
                assert (found.pop("text"), found.pop("nothing")) == ("as it is", None)
            agree(found, wanted, name)


def test_gradients_of_what_is_mapped() -> None:
    """By what is mapped, and by what all members share."""
    def loss(f, x, w):
        each = spmd.vmap(f, in_axes=(0, None))(x, w)
        return np.sum(np.sin(each) * np.arange(5)[:, None])

    def looped(f, x, w):
        return np.sum(np.sin(np.stack([f(x[k], w) for k in range(5)])) * np.arange(5)[:, None])

    def until(x, w):
        while np.sum(x * x) < 9:
            x = x * w[0] + x * 2
        return x * w[1]

    functions = {
        "product": lambda x, w: np.tanh(x @ w) @ w.T,
        "own derivative": lambda x, w: rounded(x, w * 9) * x,
        "solve": lambda x, w: np.linalg.solve(w + np.diag(x) + 9 * np.eye(4), x),
        "cond": lambda x, w: spmd.cond(x[0] > 0, lambda x, w: x * w[0], lambda x, w: w[1] ** 2,
                                       x, w),
        "scan": lambda x, w: spmd.scan(lambda c, r: (c * r + x, c), x, w)[0],
        "remat": lambda x, w: spmd.remat(lambda x, w: np.sin(x @ w))(x, w),
        "until": until,
        "picked": lambda x, w: w[np.argmax(x)] * x,
        "convolved": lambda x, w: spmd.nn.conv(
            x.reshape(1, 4, 1), w[:2, :1].reshape(2, 1, 1)).reshape(-1),
    }

    @spmd.program(mesh=("r",))
    def gradients(split: bool = True, how: str = "mapped"):
        x = spmd.input("x", (5, 4), np.float64, layout=("r", None) if split else (None, "r"))
        w = spmd.input("w", (4, 4), np.float64, layout=(None, "r") if split else None)
        of = loss if how == "mapped" else looped
        return {name: spmd.grad(lambda x, w, f=f: of(f, x, w), (0, 1))(x, w)
                for name, f in functions.items()}

    w = RNG.normal(0, 1, (4, 4))
    wanted = gradients.eager(how="loop", x=X, w=w)
    for split in (True, False):
        image = spmd.build(gradients, split=split)
        for ranks in (1, 3, 5):
            for name, found in image.run(ranks=ranks, x=X, w=w).items():
                agree(found, wanted[name], f"{name}, {split}, {ranks} ranks")


def test_members_and_ranks() -> None:
    """A shard_map in a function of a member, and members in a shard_map."""
    @spmd.shard_map(mesh="r", out_layouts=(("r",), (), ("r",)))
    def together(part):
        whole = spmd.all_gather(part, "r", tiled=True)
        after = spmd.ppermute(np.sum(part) * np.ones(1), "r", shift=1)
        return part * spmd.psum(np.sum(part), "r") + after[0], np.sort(whole), spmd.psum_scatter(
            whole, "r", tiled=True)

    @spmd.shard_map(mesh="r", in_layouts=((None,),), out_layouts=spmd.replicated)
    def alone(part):
        return np.cumsum(part)

    @spmd.shard_map(mesh="r")
    def shares(part):
        return spmd.vmap(lambda column: column / spmd.psum(np.sum(np.abs(column)), "r"), 1, 1)(part)

    @spmd.program(mesh=("r",))
    def mapped():
        x = spmd.input("x", (4, 6), np.float64, layout=("r", None))
        t = spmd.input("t", (6, 4), np.float64, layout=("r", None))
        y = t.T
        return ([spmd.vmap(f)(z) for f in (together, alone) for z in (x, y)],
                [tuple(np.stack(p) for p in zip(*[(lambda m: m if isinstance(m, tuple) else (m,))(
                    f(z[k])) for k in range(4)])) for f in (together, alone) for z in (x, y)],
                shares(t))

    x = RNG.normal(0, 1, (4, 6))
    image = spmd.build(mapped)
    for ranks in (1, 2, 3):
        found, wanted, inside = image.run(ranks=ranks, x=x, t=np.ascontiguousarray(x.T))
        agree(found, wanted, f"{ranks} ranks")
        agree(inside, x.T / np.abs(x.T).sum(0), "in a shard_map")


def test_ranks_exchange_nothing_for_members_that_are_split() -> None:
    @spmd.program(mesh=("r",))
    def rows():
        x = spmd.input("x", (16, 8), np.float64, layout=("r", None))
        w = spmd.input("w", (8, 8), np.float64)

        def member(row):
            while np.sum(row) < 0:
                row = row + 1
            return np.sort(np.tanh(row @ w))[row.astype(int) % 8], np.fft.fft(row)

        return spmd.vmap(member)(x)

    from codegen.layouts.partition import partition

    ops = [op for op in walk(partition(rows.capture()).body) if isinstance(op.kind, Exchange)]
    assert all(op.operands[0].type.ndim == 0 for op in ops), ops  # whether a member goes on


# ---- axes ----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    a: Any
    b: Any


def test_axes_as_in_jax() -> None:
    x, y = RNG.normal(0, 1, (3, 4)), RNG.normal(0, 1, (4, 3, 2))
    agree(spmd.vmap(lambda a: a, in_axes=-1)(x), x.T, "-1")
    agree(spmd.vmap(lambda a, b: a @ b, in_axes=(0, 1))(x, y), np.einsum("ij,jik->ik", x, y), "1")
    agree(spmd.vmap(lambda a, b: a @ b, in_axes=(0, None))(x, y[:, 0]), x @ y[:, 0], "None")
    agree(spmd.vmap(lambda a: np.outer(a, a), out_axes=-1)(x), np.einsum("ij,ik->jki", x, x), "out")
    tree = {"w": x, "p": Pair(y, [x[0], 2.0])}
    f = lambda t, s: {"a": t["w"] * s, "b": Pair(t["p"].a.sum(), t["p"].b[1])}
    found = spmd.vmap(f, in_axes=({"w": 0, "p": Pair(1, None)}, None),
                      out_axes={"a": 1, "b": Pair(0, None)})(tree, 3.0)
    agree(found, {"a": x.T * 3, "b": Pair(y.sum((0, 2)), np.float64(2.0))}, "trees")
    assert isinstance(found["b"], Pair)
    agree(spmd.vmap(lambda a, *, k: a * k)(x, k=np.arange(3)), x * np.arange(3)[:, None], "by name")
    agree(spmd.vmap(lambda a: a + ROW, in_axes=None, axis_size=2)(ROW),
          np.stack([2 * ROW] * 2), "size")
    agree(spmd.vmap(lambda a: np.sum(a))(np.ones((0, 3))), np.zeros(0), "nobody")
    agree(spmd.vmap(spmd.vmap(lambda a, b: a * b, (None, 0)), (0, None))(x[0], x[1]),
          np.outer(x[0], x[1]), "nested")

    @spmd.vmap(in_axes=(0, None))
    def decorated(row, number):
        """Return a row times a number."""
        return row * number

    assert decorated.__name__ == "decorated" and "times a number" in decorated.__doc__
    agree(decorated(x, 2), 2 * x, "decorator")

    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (3, 4), np.float64, layout=(None, "r"))
        y = spmd.input("y", (4, 3, 2), np.float64, layout=("r", None, None))
        tree = {"w": x, "p": Pair(y, [x[0], 2.0])}
        return (spmd.vmap(f, in_axes=({"w": 0, "p": Pair(1, None)}, None),
                          out_axes={"a": 1, "b": Pair(0, None)})(tree, 3.0),
                spmd.vmap(lambda a: a, in_axes=-1)(x), decorated(x, 2))

    for run in (program.eager(x=x, y=y), spmd.build(program).run(ranks=3, x=x, y=y)):
        agree(run, (found, x.T, 2 * x), "in a program")


MISTAKES = {
    "in_axes: x has 4 along dim 0, y has 5": lambda: spmd.vmap(lambda x, y: x + y)(
        np.ones(4), np.ones(5)),
    "in_axes: p['w'][1] has 4 along dim 0, y has 5 along dim 1": lambda: spmd.vmap(
        lambda p, y: p, (({"w": (None, 0)}), 1))({"w": (1, np.ones(4))}, np.ones((2, 5))),
    "in_axes: x has 4 along dim 0, axis_size is 5": lambda: spmd.vmap(
        lambda x: x, axis_size=5)(np.ones(4)),
    "in_axes: x has no dim 2": lambda: spmd.vmap(lambda x: x, 2)(np.ones((4, 2))),
    "in_axes: y has no dim 0": lambda: spmd.vmap(lambda x, y: x)(np.ones(4), 2.0),
    "in_axes: y is no array": lambda: spmd.vmap(lambda x, y: x)(np.ones(4), "text"),
    "has not one entry for each argument": lambda: spmd.vmap(lambda x, y: x, (0,))(
        np.ones(4), np.ones(4)),
    "in_axes has another structure than x": lambda: spmd.vmap(lambda x: x, ({"v": 0},))(
        {"w": np.ones(4)}),
    "in_axes of spmd.vmap is neither a dim nor a tuple": lambda: spmd.vmap(lambda x: x, "x")(
        np.ones(4)),
    "nothing to map over": lambda: spmd.vmap(lambda x: x, None)(np.ones(4)),
    "out_axes is None for result[1]": lambda: spmd.vmap(lambda x: (1, x), out_axes=None)(
        np.ones(4)),
    "out_axes: result has no dim 1": lambda: spmd.vmap(lambda x: x, out_axes=1)(np.ones(4)),
    "out_axes has another structure": lambda: spmd.vmap(lambda x: x, out_axes=(0, 0))(np.ones(4)),
    "spmd.vmap is given no function": lambda: spmd.vmap(3),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message: str) -> None:
    with pytest.raises((ShapeError, UsageError)) as caught:
        MISTAKES[message]()
    text = str(caught.value)
    assert message in text and "test_vmap.py" in text and "expected:" in text, text


def test_what_a_member_cannot_do() -> None:
    @spmd.program
    def writes():
        x = spmd.input("x", (4,), np.float64)
        y = np.zeros(3) + spmd.scalar("a", 1.0)

        def member(a):
            y[0] = a
            return a

        return spmd.vmap(member)(x), y

    with pytest.raises(UsageError, match="writes into an array from around it"):
        writes.capture()

    @spmd.program
    def takes():
        feed = spmd.feed(x=spmd.spec((4,), np.float64))
        x = spmd.input("x", (4,), np.float64)

        def member(a):
            if a > 0:
                a = a + feed.next().x[0]
            return a

        return spmd.vmap(member)(x)

    with pytest.raises(UnsupportedError, match="feed"):
        takes.capture()

    @spmd.program
    def saves():
        def member(a):
            for k in spmd.range(3):
                spmd.save("a", ROW, every=2)
                a = a * k
            return a

        return spmd.vmap(member)(spmd.input("x", (4,), np.float64))

    with pytest.raises(UnsupportedError, match="in a function of one member"):
        saves.capture()


# ---- what a member says --------------------------------------------------------------------------


def test_members_print_and_assert_alone(capfd: pytest.CaptureFixture[str]) -> None:
    def member(x):
        if x > 1:
            spmd.print("large: {}", x)
            assert x < 3, f"{x} is too large"
            x = x * 2
        return x

    @spmd.program
    def says():
        return spmd.vmap(member)(spmd.input("x", (4,), np.float64))

    image = spmd.build(says)
    for run in (lambda x: spmd.vmap(member)(x), lambda x: image.run(ranks=2, x=x)):
        agree(run(np.array([0.5, 2, -7, 1.5])), np.array([0.5, 4, -7, 3]), "values")
        out = capfd.readouterr().out
        assert re.findall(r"large: ([\d.]+)", out) == ["2.0", "1.5"], out
        with pytest.raises(CheckError, match="too large"):
            run(np.array([0.5, 2, 4, 1.5]))
        capfd.readouterr()


# ---- transforms outside of programs --------------------------------------------------------------


def test_transforms_of_functions_on_numpy_arrays() -> None:
    x = np.array([1.0, 2, 3])
    before = x.copy()
    f = lambda x: np.sum(x**3)
    agree(spmd.grad(f)(x), 3 * x**2, "grad")
    agree(spmd.grad(lambda x, y: x * y, (0, 1))(2.0, 3.0), (np.float64(3), np.float64(2)), "floats")
    (value, aux), g = spmd.value_and_grad(lambda x: (f(x), {"n": x[0], "s": "text"}),
                                          has_aux=True)(x)
    agree([value, aux, g], [np.float64(36), {"n": np.float64(1), "s": "text"}, 3 * x**2], "aux")
    y, back = spmd.vjp(lambda x: x * x, x)
    x[:] = 0  # what comes after the call does not reach it
    agree([y, back(np.ones(3))], [before**2, (2 * before,)], "vjp")
    x[:] = before
    agree(spmd.jvp(f, (x,), (x,)), (np.float64(36), np.float64(108)), "jvp")
    agree(spmd.jvp(spmd.grad(f), (x,), (x,))[1], 6 * x * x, "Hessian times a vector")
    agree(spmd.grad(lambda x: np.sum(spmd.vmap(spmd.grad(lambda a: a**3))(x)))(x), 6 * x, "mixed")
    agree(spmd.vmap(spmd.grad(f))(np.stack([x, 2 * x])), np.stack([3 * x**2, 12 * x**2]),
          "vmap of grad")
    agree(spmd.grad(lambda x: np.sum(spmd.stop_gradient(x) * x))(x), x, "stop_gradient")
    agree(spmd.grad(lambda w: np.sum(w["a"] * w["b"][0]))({"a": x, "b": [2.0]}),
          {"a": 2 * np.ones(3), "b": [np.float64(6)]}, "trees")

    def written(x):
        x[0] = 5
        return np.sum(x * x)

    agree(spmd.grad(written)(x), np.array([0.0, 4, 6]), "its own copy")
    agree(x, before, "the caller's array")


# ---- matrices of derivatives ---------------------------------------------------------------------


def curve(x):
    return np.stack([np.sum(x**2), x[0] * x[1], np.sin(x[2])])


def differences(f: Any, x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    columns = []
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = h
        columns.append((np.asarray(f(x + step)) - np.asarray(f(x - step))) / (2 * h))
    made = np.stack(columns, -1)
    return made.reshape(*made.shape[:-1], *x.shape)


def bumps(x):
    total = x[0] * 0
    for k in spmd.range(3):
        total = total + np.sum(np.sin(x * (k + 1)) * x[::-1])
    return total


def test_jacobians_and_hessians() -> None:
    x, m = np.array([0.3, -1.2, 0.7]), RNG.normal(0, 1, (2, 3))
    exact = np.array([2 * x, [x[1], x[0], 0], [0, 0, np.cos(x[2])]])
    rows = lambda m: np.linalg.norm(m, axis=1) * m[0, 0]
    for of in (spmd.jacobian, spmd.jacrev, spmd.jacfwd):
        agree(of(curve)(x), exact, of.__name__)
        np.testing.assert_allclose(of(rows)(m), differences(rows, m), 1e-7, 1e-7)
        found = of(lambda a, p: {"y": a * p["w"], "n": np.sum(p["w"])}, argnums=(0, 1))(
            x, {"w": x**2, "none": None})
        agree(found, {"y": (np.diag(x**2), {"w": np.diag(x), "none": None}),
                      "n": (np.zeros(3), {"w": np.ones(3), "none": None})}, of.__name__)
    agree(spmd.jacobian(lambda x: (x * 2, "aux"), has_aux=True)(x), (2 * np.eye(3), "aux"), "aux")
    second = spmd.hessian(lambda x: np.sum(x**3) + x[0] * x[1])(x)
    agree(second, np.diag(6 * x) + np.eye(3)[[1, 0, 2]] * [1, 1, 0], "hessian")
    nested = spmd.hessian(lambda p: np.sum(p["w"] ** 2) * p["b"])({"w": x, "b": 2.0})
    agree(nested, {"w": {"w": 4 * np.eye(3), "b": 2 * x}, "b": {"w": 2 * x, "b": np.float64(0)}},
          "a nest of nests")

    @spmd.program(mesh=("r",))
    def matrices():
        x = spmd.input("x", (7,), np.float64, layout=("r",))
        return (spmd.jacobian(lambda x: np.cumsum(x) * np.sort(x))(x), spmd.hessian(bumps)(x),
                spmd.jacfwd(lambda x: np.outer(x[:2], x))(x),
                spmd.vmap(spmd.hessian(lambda a: a**3 * x[0]))(x))

    x = RNG.normal(0, 1, 7)
    plain = lambda x: sum(np.sum(np.sin(x * (k + 1)) * x[::-1]) for k in range(3))
    wanted = (differences(lambda x: np.cumsum(x) * np.sort(x), x),
              differences(lambda x: differences(plain, x, 1e-4), x, 1e-4),
              differences(lambda x: np.outer(x[:2], x), x), 6 * x * x[0])
    image = spmd.build(matrices)
    for found in (matrices.eager(x=x), *(image.run(ranks=n, x=x) for n in (1, 3, 5))):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    jacobian = next(o for o in matrices.capture().outputs)
    assert jacobian.layout[0] == ("r",)  # as the dim of the result that it is of


def stepped(x):
    """Uses what only a compiled function allows: a loop, a branch and writes into an array."""
    y, n = np.zeros(7), 0.0
    for _ in spmd.range(3):
        n += 1
        if x[0] > 0:
            x = x * 1.5
    np.copyto(y, x * n, where=x > -9)
    return y


def test_a_jacobian_of_a_function_with_a_loop_and_a_branch():
    @spmd.program(mesh=("r",))
    def matrices():
        x = spmd.input("x", (7,), np.float64, layout=("r",))
        first = lambda x: np.sum(stepped(x) ** 2)
        return spmd.jacobian(stepped)(x), spmd.jacfwd(stepped)(x), spmd.hessian(first)(x)

    image, factor = spmd.build(matrices), 3 * 1.5**3
    for ranks in (1, 3):
        found = image.run(ranks=ranks, x=np.arange(1.0, 8))
        for got, want in zip(found, (factor, factor, 2 * factor**2), strict=True):
            np.testing.assert_allclose(got, want * np.eye(7))


def test_jacobians_are_of_floats() -> None:
    for f, x in ((lambda x: x.astype(int), np.ones(3)), (lambda x: x * 1j, np.ones(3)),
                 (lambda x: x, np.arange(3))):
        for of in (spmd.jacobian, spmd.jacfwd, spmd.hessian):
            with pytest.raises(UsageError, match="float"):
                of(f)(x)

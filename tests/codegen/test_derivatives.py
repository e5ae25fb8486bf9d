"""Derivatives against differences and formulas, on several numbers of ranks; what is refused."""

from __future__ import annotations

import types
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.functions import FUNCTIONS, SPECIAL
from codegen.ops import OPS, Defined, Kind, Map
from codegen.ops.partials import FLAT, OTHERWISE, PARTIALS
from codegen.oracle import interpret
from codegen.trace.derive.reverse import RULES
from tests.codegen import derived_cases
from tests.codegen.derived_cases import CASES, POINTS, X

# mypy: ignore-errors

# Kinds that have no derivative, or none yet, or nothing to differentiate.
WITHOUT = {
    "no operand": {"const", "full", "iota", "expr", "scalar"},
    "no result": {"print", "expect", "barrier", "let", "save"},
    "steps": {"argreduce", "argsort", "count", "searchsorted", "partition"},
    "after tracing": {"merge", "point"},
    "np.linalg has it": {"cholesky", "lu", "lu_solve", "swapped_columns", "triangular", "qr", "svd",
                         "eigh", "eig"},
    "defvjp says it": {"kernel"},
    "their batches are constants": {"take", "more", "send"},
}


def test_every_kind_has_a_way_back_or_says_why_not():
    without = set().union(*WITHOUT.values())
    for name, kind in OPS.items():
        has = kind.vjp is not Kind.vjp or kind in RULES
        assert has != (name in without), f"{name}: vjp, or a line in WITHOUT"
        assert kind.flat is True or name not in WITHOUT["steps"], name
    assert OPS["constant"].flat and Defined in RULES and Map.vjp is not Kind.vjp


def test_every_function_has_a_row():
    rows = [set(PARTIALS), FLAT, OTHERWISE]
    assert sorted(FUNCTIONS) == sorted(name for row in rows for name in row)
    for name, partials in PARTIALS.items():
        assert len(partials) == FUNCTIONS[name].arity, name


def differences(f, x, step=1e-6):
    at = [(f(x + h), f(x - h)) for h in np.eye(x.size) * step]
    return np.array([(a - b) / (2 * step) for a, b in at])


def plain():
    """The cases with Python's range."""
    module = types.ModuleType("plain_cases")
    source = Path(derived_cases.__file__).read_text().replace("spmd.range(", "range(")
    exec(compile(source, "plain_cases", "exec"), module.__dict__)
    return module.CASES


def close(found, wanted, name):
    np.testing.assert_allclose(found, wanted, 2e-6, 2e-6 * max(1, np.abs(wanted).max()),
                               err_msg=name)


@pytest.mark.parametrize("names", [list(CASES)[k::3] for k in range(3)], ids=" ".join)
def test_gradients_are_differences(names):
    @spmd.program(mesh=("r",))
    def gradients():
        x = spmd.input("x", (POINTS,), np.float64, layout=("r",))
        return {name: spmd.value_and_grad(CASES[name])(x) for name in names}

    image, functions = spmd.build(gradients), plain()
    wanted = {name: (functions[name](X), differences(functions[name], X)) for name in names}
    for ranks in (1, 2, 5):
        found = image.run(ranks=ranks, x=X)
        for name in names:
            close(found[name][0], wanted[name][0], name)
            close(found[name][1], wanted[name][1], f"{name} on {ranks} ranks")


UNARY = [n for n, f in FUNCTIONS.items() if n in PARTIALS and f.arity == 1 and n not in SPECIAL]
BINARY = [n for n, f in FUNCTIONS.items() if n in PARTIALS and f.arity == 2
          and n not in ("ldexp", "nextafter", "zeta")]


def test_partial_derivatives_are_differences():
    special = pytest.importorskip("scipy.special")
    given = {"acosh": 1.3, "erfinv": 0.4, "erfcinv": 0.7, "atanh": 0.3, "asin": 0.3, "acos": 0.3}
    one = {n: getattr(np, FUNCTIONS[n].ufunc) for n in UNARY if FUNCTIONS[n].ufunc
           and hasattr(np, FUNCTIONS[n].ufunc)}
    one |= {n: getattr(special, n) for n in SPECIAL.split() if n in PARTIALS}
    two = {n: getattr(np, FUNCTIONS[n].ufunc) for n in BINARY}
    points = {n: np.array([given.get(n, 0.6), given.get(n, 0.6) + 0.1]) for n in one}
    second = np.array([0.7, 0.31])

    @spmd.program(mesh=("r",))
    def partials():
        out = {}
        for n, f in one.items():
            x = spmd.input(f"in_{n}", (2,), np.float64, layout=("r",))
            out[n] = spmd.grad(lambda x, f=f: np.sum(f(x)))(x)
        x = spmd.input("x", (2,), np.float64, layout=("r",))
        y = spmd.input("y", (2,), np.float64, layout=("r",))
        for n, f in two.items():
            out[n] = spmd.grad(lambda x, y, f=f: np.sum(f(x, y)), (0, 1))(x, y)
        return out

    x = np.array([1.2, 0.9])
    found = spmd.build(partials).run(ranks=2, x=x, y=second,
                                     **{f"in_{n}": p for n, p in points.items()})
    for n, f in one.items():
        close(found[n], differences(lambda v, f=f: np.sum(f(v)), points[n]), n)
    for n, f in two.items():
        wanted = (differences(lambda v, f=f: np.sum(f(v, second)), x),
                  differences(lambda v, f=f: np.sum(f(x, v)), second))
        wanted = (wanted[0], wanted[1] * 0) if n == "copysign" else wanted
        close(np.array(found[n]), np.array(wanted), n)


@spmd.custom_vjp
def clipped(x):
    return np.clip(x, -1, 1)


clipped.defvjp(lambda x: (np.clip(x, -1, 1), x), lambda x, g: (g * (np.abs(x) < 2),))


@spmd.custom_vjp
def powers(x):
    return np.exp(x) * x[::-1]


powers.defvjp(lambda x: (np.exp(x) * x[::-1], (x, np.exp(x))),
              lambda kept, g: (g * kept[1] * kept[0][::-1] + (g * kept[1])[::-1],))


def repeated(x):
    for _ in spmd.range(4):
        x = np.sin(x) * x
    return x


W = np.arange(36.0).reshape(6, 6) * 0.02


def plain_repeated(x):
    for _ in range(4):
        x = np.sin(x) * x
    return x


def layers(x):
    for _ in range(2):
        x = np.tanh(x @ W) @ W
    return np.sum(x**2)


def turned(x):
    """A layer that reads the turn's number, and what the turn has made."""
    for k in spmd.range(4):
        c = x * 0.5 + k
        x = spmd.remat(lambda x, k, c=c: np.sin(x) * c * (k + 1))(x, k)
    return np.sum(x)


def plain_turned(x):
    for k in range(4):
        x = np.sin(x) * (x * 0.5 + k) * (k + 1)
    return np.sum(x)


def of_cubes(x):
    return 3 * x**2 * x[::-1] + (x**3)[::-1]


REPEATED = spmd.remat(lambda x, w: np.tanh(x @ w) @ w)


def counted(steps):
    def f(x):
        for _ in spmd.range(steps):
            x = x + 0.0003 * np.sin(x)
        return np.sum(x)

    return f


def plain_counted(x, steps):
    for _ in range(steps):
        x = x + 0.0003 * np.sin(x)
    return np.sum(x)


@spmd.program(mesh=("r",))
def several():
    steps = spmd.scalar("steps", 5)
    x = spmd.input("x", (6,), np.float64, layout=("r",))
    v, w = np.arange(6.0), W
    y, back = spmd.vjp(lambda x, y: (x * y, np.sin(y)), x, x[::-1])
    return {
        "own": spmd.grad(lambda x: np.sum(clipped(x) ** 2 * v))(x),
        "again": spmd.grad(lambda x: np.sum(REPEATED(REPEATED(x, w), w) ** 2))(x),
        "forward": spmd.jvp(repeated, (x,), (v,))[1],
        "hessian": spmd.jvp(spmd.grad(lambda x: np.sum(x**3 * x[::-1])), (x,), (v,))[1],
        "second": spmd.grad(lambda x: np.sum(spmd.grad(lambda x: np.sum(x**4))(x) ** 2))(x),
        "kept": spmd.jvp(spmd.grad(lambda x: np.sum(powers(x) * w[1])), (x,), (v,))[1],
        "vjp": back((x, x)),
        "counted": spmd.grad(counted(steps))(x),
        "tree": spmd.grad(lambda p: np.sum(p["w"] @ p["b"][0]))(
            {"w": spmd.asarray(w), "b": (x,)}),
        "nothing": spmd.grad(lambda p: np.sum(p["w"] ** 2))({"w": x, "b": None})["w"],
        "unused": spmd.grad(lambda x, y: np.sum(x), 1)(x, x),
        "aux": spmd.grad(lambda x: (np.sum(x**2), x + 1), has_aux=True)(x),
        "twice": (back((x, x))[0] * 0 + back((x, x * 0))[0]),
        "itself": spmd.grad(lambda x: np.sum(spmd.grad(lambda x: np.sum(
            spmd.grad(lambda x: np.sum(like_itself(x) * w[0]))(x) * w[1]))(x)))(x),
        "numbers": spmd.grad(lambda x: np.sum(spmd.remat(lambda x: (0.5, x * x))(x)[1]))(x),
        "complex": spmd.grad(lambda x: np.sum(spmd.remat(lambda z: z * z)(x + 1j * x).imag))(x),
        "turned": spmd.grad(turned)(x),
        "solved": spmd.jvp(lambda x: np.linalg.solve(W + np.eye(6), x), (x,), (v,))[1],
        "right": spmd.grad(lambda x: np.sum(
            np.linalg.solve(W * x + np.eye(6), [1.0, 2, 3, 4, 5, 6])))(x),
        "stopped": spmd.grad(lambda x: np.sum(x * spmd.stop_gradient(x)))(x),
    }


def test_what_is_built_from_gradients():
    x, v = np.linspace(-1.4, 1.5, 6), np.arange(6.0)
    image = spmd.build(several)

    y = x[::-1]
    for ranks in (1, 2, 3):
        found = image.run(ranks=ranks, x=x)
        close(found["own"], 2 * np.clip(x, -1, 1) * v * (np.abs(x) < 2), "own")
        close(found["again"], differences(layers, x), "again")
        h = 1e-6 * v
        close(found["forward"], (plain_repeated(x + h) - plain_repeated(x - h)) / 2e-6, "forward")
        close(found["hessian"], (of_cubes(x + h) - of_cubes(x - h)) / 2e-6, "hessian")
        close(found["second"], 96 * x**5, "second")
        first = np.exp(x) * W[1]
        close(found["kept"], v * first * y + first * v[::-1] + (v * first)[::-1], "kept")
        close(found["vjp"][0], x * y, "vjp")
        close(found["vjp"][1], x * x + np.cos(y) * x, "vjp")
        close(found["tree"]["w"], np.ones((6, 1)) * x, "tree")
        close(found["tree"]["b"][0], W.sum(0), "tree")
        close(found["unused"], x * 0, "unused")
        close(found["nothing"], 2 * x, "nothing")
        close(found["aux"][0], 2 * x, "aux")
        close(found["aux"][1], x + 1, "aux")
        close(found["stopped"], x, "stopped")
        close(found["twice"], x * y, "twice")
        close(found["itself"], np.sin(x) * W[0] * W[1], "itself")  # JAX's too, not cos(x)
        close(found["numbers"], 2 * x, "numbers")
        close(found["complex"], 4 * x, "complex")
        close(found["turned"], differences(plain_turned, x), "turned")
        close(found["solved"], np.linalg.solve(W + np.eye(6), v), "solved")
        right = differences(lambda x: np.sum(np.linalg.solve(W * x + np.eye(6), v + 1)), x)
        close(found["right"], right, "right")
    for steps in (0, 1, 200, 4230):
        wanted = differences(lambda x, n=steps: plain_counted(x, n), x)
        close(image.run(ranks=2, x=x, steps=steps)["counted"], wanted, f"{steps} turns")


def test_what_is_differentiated_prints_once(capfd):
    def told(x):
        for k in spmd.range(3):
            if k == 1:
                spmd.print("turn {}", k)
            x = x * x
        return np.sum(x)

    @spmd.program(mesh=("r",))
    def telling():
        return spmd.grad(told)(spmd.input("x", (3,), np.float64, layout=("r",)))

    spmd.build(telling).run(ranks=1, x=X[:3])
    assert capfd.readouterr().out.count("turn 1") == 1


def test_a_loop_keeps_only_what_its_way_back_reads():
    """A linear loop keeps nothing, and the first loop is not there if only the gradient is
    wanted."""
    from codegen.ir.graph import walk
    from codegen.ops import Loop

    def program(f, derivative=spmd.grad):
        @spmd.program(mesh=("r",))
        def made():
            u = spmd.input("u", (40,), np.float64, layout=("r",))
            return derivative(f)(u)

        return [op for op in walk(made.capture().body) if isinstance(op.kind, Loop)]

    def linear(u):
        for _ in spmd.range(7):
            u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        return np.sum(u)

    def squared(u):
        for _ in spmd.range(7):
            u = u * u + 1
        return np.sum(u)

    (back,) = program(linear)
    assert len(back.operands) == 1
    forward, back = program(squared)
    assert [v.type.ndim for v in forward.operands] == [1, 2]
    (both,) = program(squared, lambda f: lambda u: spmd.jvp(f, (u,), (u,))[1])
    assert [v.type.ndim for v in both.operands] == [1, 1]


@spmd.kernel
def doubled(x: spmd.Array) -> spmd.Array:
    return 2 * x


MISTAKES = {
    "an integer": (
        lambda x: spmd.grad(np.sum)(spmd.asarray(np.arange(3))), "argument 0 is no float"),
    "a vector loss": (lambda x: spmd.grad(np.sin)(x), "a gradient is that of one float"),
    "no aux": (lambda x: spmd.grad(np.sum, has_aux=True)(x), "returns no pair"),
    "a count": (lambda x: spmd.grad(np.argmax)(x), "made of floats"),
    "a complex loss": (lambda x: spmd.grad(lambda x: np.sum(1j * x))(x), "z.real of it"),
    "no return": (lambda x: spmd.grad(lambda x: None)(x), "a return in the function"),
    "aux forgotten": (lambda x: spmd.grad(lambda x: (np.sum(x), x))(x), "has_aux=True where"),
    "argnums": (lambda x: spmd.grad(np.sum, 1)(x), "argnums 1 of 1 arguments"),
    "argnums by name": (lambda x: spmd.grad(np.sum, "x")(x), "no numbers of arguments"),
    "called at once": (lambda x: spmd.grad(np.sum, x), "no numbers of arguments"),
    "by name only": (lambda x: spmd.grad(lambda x: np.sum(x))(x=x), "no argument stands by"),
    "no function": (lambda x: spmd.grad(np.sum(x)), "is given no function"),
    "a name in a tree": (
        lambda x: spmd.grad(lambda p: np.sum(p["w"]))({"w": x, "name": "dense"}),
        r"argument 0\['name'\] is no float"),
    "no tuple": (lambda x: spmd.jvp(np.sum, x, x), "the primals are no tuple"),
    "too few tangents": (lambda x: spmd.jvp(np.add, (x, x), (x,)), "as many tangents as primals"),
    "a tree that changes": (lambda x: spmd.vjp(lambda p: p, {"w": x})[1]({"w": x, "b": x}),
                            "another structure"),
    "all of Q": (lambda x: spmd.grad(lambda x: np.sum(np.linalg.qr(
        np.outer(x, x)[:, :2], "complete")[0]))(x), "mode='complete' has no derivative"),
    "running logaddexp": (lambda x: spmd.grad(lambda x: np.sum(np.logaddexp.accumulate(x)))(x),
                          "running sums, products and extremes"),
    "another structure": (lambda x: spmd.vjp(np.sin, x)[1]((x, x)), "another structure"),
    "another shape": (lambda x: spmd.vjp(np.sin, x)[1](x[1:]), "another shape"),
    "too few": (lambda x: spmd.grad(lambda x: np.sum(few(x, x)))(x), "for each argument"),
    "no way back": (lambda x: spmd.grad(lambda x: np.sum(none(x)))(x), "has no way back yet"),
    "argnums twice": (lambda x: spmd.grad(np.sum, (0, 0))(x), "an argument twice"),
    "a write": (lambda x: spmd.grad(lambda x: np.sum(spmd.remat(written)(x)))(x), "writes into"),
    "another cotangent": (
        lambda x: spmd.grad(lambda x: np.sum(scaled(x)))(x), "another shape than"),
    "a closure": (
        lambda x: spmd.grad(lambda x: np.sum(closing(x)(x)))(x), "reads what is differentiated"),
}


@spmd.custom_vjp
def few(x, y):
    return x


few.defvjp(lambda x, y: (x, None), lambda _, g: (g,))


@spmd.custom_vjp
def none(x):
    return x


def written(x):
    x[0] = 1
    return x


@spmd.custom_vjp
def scaled(x):
    return 2 * x


scaled.defvjp(lambda x: (2 * x, None), lambda _, g: (g[1:],))


def closing(y):
    @spmd.custom_vjp
    def product(x):
        return x * y

    product.defvjp(lambda x: (x * y, None), lambda _, g: (g,))
    return product


@spmd.custom_vjp
def like_itself(x):
    return np.sin(x)


def fwd_of_itself(x):
    y = like_itself(x)
    return y, y


like_itself.defvjp(fwd_of_itself, lambda y, g: (g * y,))


CHOSEN = {
    "a product of which a factor is 0": lambda x: np.sum(multiplied(x)),
    "from singular vectors without a singular value":
        lambda x: np.sum(np.linalg.svd(np.outer(x, x)[:, :1])[0][:, 1]),
}


def multiplied(x):
    y = x[::-1].copy()
    np.multiply.at(y, np.array([0, 1, 1]), x)
    return y


@pytest.mark.parametrize("what", CHOSEN)
def test_what_has_no_derivative_at_some_points_is_refused_there(what):
    @spmd.program(mesh=("r",))
    def second():
        x = spmd.input("x", (3,), np.float64, layout=("r",))
        return spmd.jvp(spmd.grad(CHOSEN[what]), (x,), (x,))[1]

    with pytest.raises(spmd.SpmdError, match=f"(?s)derivative of .*{what}.*expected"):
        interpret.run(second.capture(), {"r": 2}, {"x": X[:3] - X[1]})


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_explained(what):
    function, text = MISTAKES[what]

    @spmd.program(mesh=("r",))
    def mistaken():
        return function(spmd.input("x", (3,), np.float64, layout=("r",)))

    with pytest.raises(spmd.SpmdError, match=text) as found:
        mistaken.capture()
    assert found.value.place is not None and "expected" in str(found.value)


def test_changes_follow_from_what_the_result_depends_on_alone():
    """jvp of functions with ops that have no derivative, where none is asked for."""
    def told(x):
        return 2 * x, np.argmax(np.logaddexp.accumulate(x))

    @spmd.custom_vjp
    def kept(x):
        return np.sum(x * x)

    kept.defvjp(lambda x: (np.sum(x * x), (x, np.logaddexp.accumulate(x))),
                lambda r, g: (2 * r[0] * g + 0 * np.sum(r[1]),))

    @spmd.program(mesh=("r",))
    def changes():
        x = spmd.input("x", (3,), np.float64, layout=("r",), default=lambda i: i + 1.0)
        v = np.ones(3)
        return [spmd.jvp(f, (x,), (v,))[1] for f in (
            lambda x: x * spmd.stop_gradient(np.logaddexp.accumulate(x)),
            lambda x: told(x)[0], kept)]

    first, second, third = interpret.run(changes.capture(), {"r": 2}, {}).values()
    np.testing.assert_allclose(first, np.logaddexp.accumulate(X3), 1e-12)
    np.testing.assert_array_equal(second, [2, 2, 2])
    np.testing.assert_allclose(third, 12)


X3 = np.arange(1.0, 4.0)


def test_powers_with_known_exponents():
    exponents = (-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    values = np.array([0.0, 0.25, 1.0, 3.0, np.inf])

    @spmd.program(mesh=("r",))
    def powers():
        x = spmd.input("x", values.shape, np.float64, layout=("r",))
        return [spmd.grad(lambda x, p=p: np.sum(np.power(x, p)))(x) for p in exponents]

    with np.errstate(divide="ignore"):
        wanted = [p * values ** (p - 1) if p else 0.0 for p in exponents]
    found = spmd.build(powers).run(ranks=2, x=values)
    for p, a, b in zip(exponents, found, wanted, strict=True):
        np.testing.assert_allclose(a, np.broadcast_to(b, 5), rtol=1e-14, err_msg=f"x**{p}")

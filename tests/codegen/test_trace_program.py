"""Programs as a whole: parameters, declarations, messages, kernels, the golden Graph, imports."""

import collections.abc
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.errors import (
    DtypeError,
    KernelError,
    ProgramError,
    SpmdError,
    TracedValueError,
    UnsupportedError,
    UsageError,
)
from codegen.ir.graph_text import module_text
from codegen.oracle import interpret


@spmd.program(mesh=("ring",))
def ring_allreduce(count: int = 1 << 20):
    n = spmd.axis_size("ring")
    part = spmd.input("part", (n, count), np.float32, layout=("ring", None),   # one row per rank
                      default=lambda r, c: r + c % 7)

    @spmd.shard_map(mesh="ring", out_layouts=("ring", None))
    def reduce(row):                                   # row: (1, count)
        i = spmd.axis_index("ring")
        b = spmd.blocks(row[0], n)                     # n balanced fragments of a local array
        for s in spmd.range(n - 1):                    # reduce-scatter
            b[(i - s - 1) % n] += spmd.ppermute(b[(i - s) % n], "ring", shift=1)
        for s in spmd.range(n - 1):                    # all-gather
            b[(i - s) % n] = spmd.ppermute(b[(i + 1 - s) % n], "ring", shift=1)
        return row

    return {"sum": reduce(part)}


def test_the_graph_of_the_ring(golden):
    text = module_text(ring_allreduce.capture(count=10)).replace(__file__, "ring.py")
    golden("trace_ring.graph", text)


@spmd.program(mesh=("r",))
def with_names(n: int = 4):
    u = spmd.input("u", (n,), np.float64, layout=("r",))
    sure: object = u + 1
    if n > 3: low = u - 1  # noqa: E701
    text = """
    words = of a text, and no code""", u * 2
    u[1:] += 3
    last = first = (
        u / 4)
    return sure, low, text[1], last, first


def test_values_are_named_after_what_is_assigned():
    maps = [op for op in with_names.capture().body.ops if op.kind.name == "map"]
    found = [(op.kind.fn, op.result.name) for op in maps]
    assert found == [("add", "sure"), ("sub", "low"), ("mul", "map"), ("add", "u"), ("div", "map")]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_the_ring_sums(n, count):
    part = np.random.default_rng(n).integers(-5, 5, (n, count)).astype(np.float32)
    out = interpret.run(ring_allreduce.capture(count=count), {"ring": n}, {"part": part})
    np.testing.assert_array_equal(out["sum"], np.tile(part.sum(0), (n, 1)))
    r, c = np.indices((n, count))
    out = interpret.run(ring_allreduce.capture(count=count), {"ring": n})
    np.testing.assert_array_equal(out["sum"], np.tile((r + c % 7).sum(0), (n, 1)))


# ---- parameters ------------------------------------------------------------------------------


@spmd.program(mesh={"x": 2, "y": None})
def small(n: int = 4, scale: float = 1.5, name: str = "u", flag: bool = False):
    u = spmd.input(name, (n,), layout=("x",), default=lambda k: k * scale)
    return u if flag else (u, u)


def test_parameters_and_their_types():
    assert small.name == "small" and list(small.parameters) == ["n", "scale", "name", "flag"]
    as_text = small.read({"n": "4"})  # as on a command line
    texts = {module_text(small.capture(**given)) for given in ({}, {"n": np.int8(4)}, as_text)}
    assert len(texts) == 1
    given = small.read({"n": "6", "scale": "2", "name": "v", "flag": "true", "rate": "3"})
    module = small.capture(**given)
    assert dict(module.parameters) == {"n": 6, "scale": 2.0, "name": "v", "flag": True}
    assert small.capture(n=6, scale=2).parameters[1] == ("scale", 2.0)
    assert module.returns == 0 and small.capture().returns == ("tuple", 0, 1)
    assert [o.name for o in small.capture().outputs] == ["0", "1"]
    with pytest.raises(UsageError, match='no parameter "m"') as caught:
        small.capture(m=3)
    assert "n, scale, name, flag" in str(caught.value)
    assert small.capture(flag=1).parameters == small.capture(flag=np.True_).parameters
    for wrong in ({"n": 2.0}, {"n": "3"}, {"n": True}, {"n": None}, {"scale": "1"}, {"flag": 2},
                  {"scale": False}, {"name": 3}, *(small.read({"n": t}) for t in ("2.0", "many"))):
        ((name, value),) = wrong.items()
        with pytest.raises(UsageError, match=f'parameter "{name}".* another type') as caught:
            small.capture(**wrong)
        assert repr(value) in str(caught.value)
    assert "n=2" in str(pytest.raises(UsageError, small.eager, 2, n=2.0).value)
    with pytest.raises(ProgramError, match="like a function"):
        small()


def test_parse_parameter():
    texts = ["3", "2.5", "True", "false", "abc", "(1, 2)"]
    assert [spmd.parse_parameter(t) for t in texts] == [3, 2.5, True, False, "abc", (1, 2)]


def build(body, mesh=("x",)):
    return spmd.program(mesh=mesh)(body).capture()


def refuse(kind, body, *needles, mesh=("x",)):
    with pytest.raises(kind) as caught:
        build(body, mesh)
    text = str(caught.value)
    assert __file__ in text, text
    for needle in needles:
        assert needle in text, text


def test_meshes():
    fixed = build(lambda: spmd.axis_size("x"), {"x": 3, "y": None})
    assert fixed.mesh.axis("x").fixed == 3 and fixed.outputs[0].value.type.shape == ()
    for mesh in ((), ("x", "x"), ("1",), {"x": 0}, 3):
        with pytest.raises((UsageError, TypeError)):
            spmd.program(mesh=mesh)(lambda: 1)
    with pytest.raises(SpmdError, match="one to three"):
        spmd.program(mesh=("a", "b", "c", "d"))(lambda: 1)
    with pytest.raises(UsageError, match="sync"):
        spmd.program(mesh=("a",), sync="never")(lambda: 1)


def test_layouts_are_checked():
    def layout(value, ndim=2):
        return lambda: spmd.input("u", (4,) * ndim, layout=value)

    refuse(SpmdError, layout(("x", "x")), "splits two dims", 'layout=("x", None)')
    refuse(SpmdError, layout(("x",)), "one entry per dim", 'layout=("x", None)')
    refuse(SpmdError, layout(("y", None)), 'one of "x"')
    refuse(SpmdError, layout("data"), "'data' is not an axis", 'one of "x"')
    refuse(SpmdError, layout((3, None)), "is not a layout")
    both = build(layout((("x", "y"), None)), ("x", "y"))
    assert both.inputs[0].layout == (("x", "y"), ())
    for whole in (spmd.replicated, (None, None)):
        assert build(layout(whole)).inputs[0].layout == ((), ())
    for chosen in (None, "auto"):  # the compiler's choice, where nothing else is split
        assert build(layout(chosen)).inputs[0].layout == (("x",), ())


def test_declarations():
    def twice():
        spmd.input("u", (4,))
        return spmd.scalar("u", 3)

    def loop():
        return tuple(spmd.input("u", (4,)) for _ in range(2))

    def extent():
        return spmd.input("u", (spmd.scalar("n", 4),))

    def default():
        return spmd.input("u", (4,), default=np.zeros(5))

    def uses():
        rate = spmd.scalar("rate", 0.5)
        return spmd.input("u", (4,), default=lambda k: k * rate)

    refuse(ProgramError, twice, '"u" is declared twice', "declared before at")
    assert len(build(loop).inputs) == 1
    refuse(ProgramError, extent, "run-time scalar", "parameter of the program")
    refuse(ProgramError, default, "another shape", "(4,)", "(5,)")
    refuse(ProgramError, uses, "uses arrays of the program", "rate")


def test_a_default_does_without_what_changes_while_the_program_runs():
    def by_counter():
        total = 0.0
        for n in spmd.range(2):
            total += np.sum(spmd.input("u", (4,), default=lambda k: np.where(k > n, k, 0)))
        return total

    def by_computed():
        n = int(spmd.input("v", (4,))[0])
        return spmd.ones(4)[n] + spmd.input("u", (4,), default=lambda k: k + n)

    def own_loop():
        def triangle(k):
            total = 0 * k
            for n in spmd.range(3):
                total += n * k
            return total

        return spmd.input("u", (4,), default=triangle)

    refuse(ProgramError, by_counter, "a number that the program computes", "n, which changes",
           "u + n")
    refuse(ProgramError, by_computed, "the default of input", "uses")
    refuse(DtypeError, lambda: spmd.input("u", 4, np.int32, default=np.nan), "nan out of bounds")
    assert len(build(own_loop).inputs) == 1


def test_what_a_program_returns():
    """Messages show the expression that is returned, also where a helper returned before."""

    def helper():
        return 3

    def early(n=1):
        if n:
            return [helper(), "text"]  # here: text
        return spmd.zeros(3)

    def perhaps_one():
        x, y = spmd.zeros(4), spmd.zeros(4)
        if x[0] > 1:
            y = x
        y[0] = helper()
        return x, y  # here: perhaps

    def nested():
        return [[1, 2.5], [3, {"a": spmd.zeros(2)}]]

    def mask():
        x = spmd.zeros(4)
        return {"chosen": x[x > 1]}  # here: mask

    def full():
        w = np.full(5, np.nan, np.int32)  # here: full
        return w

    refuse(ProgramError, lambda: None, "returns arrays", "None")
    refuse(ProgramError, lambda: "text", "returns arrays", "str")
    refuse(ProgramError, lambda: {1: 2}, "are text", "1")
    refuse(ProgramError, lambda: {"b": {"c": 1}, "b.c": 2}, "two outputs", "b.c")
    refuse(ProgramError, lambda: {"b": None}, "returns arrays", "None, as b")
    deep = 0
    for _ in range(101):
        deep = [deep]
    refuse(ProgramError, lambda: [deep], "100 deep")
    refuse(ProgramError, lambda: {"b": {3: 1}}, "are text", "3")
    refuse(ProgramError, lambda: {"b": 2**70}, "71 bits")
    assert [o.name for o in build(nested).outputs] == ["0.0", "0.1", "1.0", "1.1.a"]
    for body, name, error in ((early, "text", ProgramError), (full, "full", DtypeError),
                              (perhaps_one, "perhaps", ProgramError),
                              (mask, "mask", UnsupportedError)):
        with pytest.raises(error) as caught:
            build(body)
        assert f"# here: {name}" in caught.value.place.source_line()


def test_a_name_means_one_declaration():
    """Also where one source line, of a helper or a loop, makes several."""

    def pair(*said, of=spmd.input):
        return lambda: [of("u", **options) for options in said]

    def by_loop():
        return [spmd.input("u", (4,), default=lambda k: k + n) for n in range(2)]

    def same():
        total = 0.0
        for k in spmd.range(3):  # captured several times
            for _ in range(2):
                total += np.sum(spmd.input("u", (4,), default=np.ones(4)) * spmd.scalar("s", 3))
                total += np.sum(spmd.input("v", (4,), np.int64, default=lambda i: i * 2)) + k
        return total

    one = {"shape": (4,), "default": lambda k: k}
    refuse(ProgramError, pair(one, one | {"dtype": int}), "another dtype", "float64", "int64")
    refuse(ProgramError, pair(one, one | {"shape": 6}), "another shape", "(4,)", "(6,)")
    refuse(ProgramError, pair(one, one | {"default": lambda k: 2 * k}), "another default")
    refuse(ProgramError, by_loop, "another default", "n = 0", "n = 1")
    scalars = pair({"default": 1}, {"default": 2}, of=spmd.scalar)
    refuse(ProgramError, scalars, "another default", "default 1", "default 2")
    assert len(build(same).inputs) == 2


def test_attributes_of_an_array_stay():
    def shape():
        x = spmd.zeros(4)
        x.shape = (2, 2)
        return x

    refuse(UnsupportedError, shape, "x.shape", "cannot be set", "x = x.reshape(shape)")


def test_a_number_of_the_run_is_no_key():
    def turns():
        total = 0
        for k in spmd.range(2):
            total += {0: 5, 1: 6}.get(k, -1)
        return total

    def swapped():
        to = lambda k, n: {0: 1, 1: 0}.get(k)
        part = lambda v: spmd.ppermute(v, "x", to=to)
        return spmd.shard_map(part, out_layouts=("x",))(spmd.input("u", (4,), layout=("x",)))

    for body in (turns, swapped, lambda: len({spmd.scalar("s", 3), 3}),
                 lambda: {1.0: 2}.get(spmd.input("u", (4,))[0])):
        refuse(TracedValueError, body, "a known key of a dict or set", "perm=[(0, 1), …]")
    assert build(lambda: spmd.zeros(3) + {1: 2}[np.arange(4)[1]])


def test_types_are_those_of_numpy():
    def body():
        x, s, f = spmd.input("u", (4,)), spmd.scalar("s", 3), spmd.scalar("f", 0.5)
        assert isinstance(x, np.ndarray) and isinstance(x, spmd.Array) and not np.isscalar(x)
        assert isinstance(x[0], float) and isinstance(x[0], np.floating) and np.isscalar(x[0])
        assert not isinstance(x[0], np.ndarray) and not isinstance(x > 1, (int, float))
        assert isinstance(s, int) and isinstance(s > 1, bool) and not isinstance(s, (bool, float))
        assert type(f) is float and isinstance(f, float) and not isinstance(f, np.generic)
        assert type(s) is int and type(s > 1) is bool and type(int(x[0])) is int
        assert type(x[0]) is np.float64 and type(x[0] > 1) is np.bool and type(x) is np.ndarray
        assert type(s).__name__ == "int" and type("Made", (), {})().__class__.__name__ == "Made"
        assert issubclass(type(x[0]), np.floating) and issubclass(type(x), np.ndarray)
        assert not hasattr(x[0], "__len__") and not hasattr(s, "shape") and hasattr(x, "at")
        assert hasattr(x, "__len__") and getattr(f, "ndim", None) is None and getattr(x, "no", 1)
        assert not isinstance(x[0], collections.abc.Sized) and isinstance(x, collections.abc.Sized)
        assert list(map(type, (x, s))) == [np.ndarray, int]
        assert len(list(filter(np.isscalar, (x, s, x[0])))) == 2
        match (4, {"x": s}):
            case (3, _):
                raise AssertionError
            case (4, {"x": found}):
                return x + found

    def of_type():
        match spmd.scalar("s", 3):
            case int():
                return np.ones(1)
        return np.zeros(1)

    def of_truth():
        match {"big": spmd.scalar("s", 3) > 2}:
            case {"big": True}:
                return np.ones(1)
        return np.zeros(1)

    assert build(body)
    for match in (of_type, of_truth):
        refuse(TracedValueError, match, "a match statement", "isinstance")
    refuse(TracedValueError, lambda: str(spmd.scalar("s", 3)), "text", "spmd.print")


def test_require():
    def square():
        spmd.require(spmd.axis_size("r") == spmd.axis_size("c"))
        spmd.require(spmd.scalar("steps", 3) > 0, "steps must be positive")
        return spmd.input("u", (4,))

    (first, second) = build(square, ("r", "c")).conditions
    assert first.text == 'spmd.axis_size("r") == spmd.axis_size("c")'
    assert second.text == "steps must be positive"
    assert first.holds.evaluate({"n_r": 3, "n_c": 3}) == 1
    assert first.holds.evaluate({"n_r": 3, "n_c": 2}) == 0

    def never():
        spmd.require(spmd.axis_size("x") > 0)  # always: no condition
        spmd.require(spmd.axis_size("x") < 1)

    refuse(ProgramError, never, "can never hold")


def test_messages():
    def body():
        epoch, loss = spmd.scalar("epoch", 3), spmd.scalar("loss", 0.25)

        @spmd.shard_map(out_layouts=())
        def f():
            i = spmd.index()
            spmd.print("epoch {} loss {:.4f} {name}", epoch, loss, name="digits")
            spmd.print("rank {1} of {0}", spmd.ranks(), i, every_rank=True)
            spmd.print(spmd.asarray([epoch, epoch + 1]))
            return np.sum(spmd.zeros(3))

        return f()

    lines = []
    interpret.run(build(body), {"x": 2}, {}, {"epoch": 7, "loss": 0.5}, lines)
    assert "epoch 7 loss 0.5000 digits" in lines and "[7 8]" in lines
    assert any("rank 1 of 2" in line for line in lines)

    def bad(text, *values):
        return lambda: spmd.print(text, *values)

    refuse(UsageError, bad("{} {}", 1), "no value")
    refuse(UsageError, bad("{}", 1, 2), "2 values for 1")
    refuse(UsageError, lambda: spmd.print("{:.2q}", spmd.scalar("a", 0.5)), "float64")


# ---- kernels ---------------------------------------------------------------------------------


@spmd.kernel
def smooth(u, k, out):
    for i in range(out.shape[0]):
        out[i] = u[i] * k


def test_kernel_calls():
    def body():
        u = spmd.input("u", (6,), layout=("x",))

        @spmd.shard_map(out_layouts=("x",))
        def f(u):
            return smooth(u, spmd.axis_size("x"), out=spmd.like(u))

        return f(u)

    module = build(body)
    (op,) = [o for o in module.body.ops[0].regions[0].ops if o.kind.name == "kernel"]
    kinds = [kind for kind, _ in op.kind.args]
    assert kinds == ["in", "expr", "out"] and op.kind.kernel is smooth
    assert op.result.type == module.body.ops[0].regions[0].args[0].type

    def inside(call):
        def g():
            return spmd.shard_map(call, out_layouts=None)(spmd.input("u", (6,)))

        return g

    refuse(KernelError, inside(lambda u: smooth(u, 2, u)), "without an output", "spmd.like")
    refuse(KernelError, inside(lambda u: smooth(u, out=spmd.like(u))), "missing a required")
    refuse(KernelError, inside(lambda u: smooth(u, "a", out=spmd.like(u))), "is a str")
    refuse(SpmdError, inside(lambda u: smooth(u, 2, out=spmd.like(u), halo={"u": 1})), "halo")


# ---- arrays to be written ----------------------------------------------------------------------


def prepared(n):
    """Has no arrays of a program: NumPy's own."""
    table = np.zeros(n)
    table[2] = 3
    assert float(table.sum()) == 3
    return table


def test_new_arrays_of_numpy_can_be_written():
    @spmd.program(mesh=("r",))
    def written(n: int = 7):
        x = spmd.input("x", (n,), layout="r", default=lambda i: (3 * i + 1) % n)
        y = spmd.input("y", (n,), layout="r", default=np.full(n, 2.0))
        z = spmd.input("z", (n,), layout="r", default=prepared(n))
        shifted, count, at = np.zeros(n), np.ones(n, np.int64), x.astype(int)
        shifted[1:] = x[:-1]
        np.add.at(count, at, 1)
        return shifted, count, np.full(n, 0.5)[at], y, z

    for found, expected in zip(spmd.build(written).run(ranks=3), written.eager()):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


# ---- the package -----------------------------------------------------------------------------


def test_importing_spmd_imports_nothing_heavy():
    code = "import sys, spmd; print(*sorted(m for m in sys.modules if m.split('.')[0] in {}))"
    heavy = ("numpy", "mpi4py", "codegen", "numba", "cffi", "ctypes")
    root = str(Path(inspect.getfile(spmd)).parents[1])
    out = subprocess.run([sys.executable, "-c", code.format(heavy)], cwd=root, text=True,
                         capture_output=True, timeout=60)
    assert out.stdout.strip() == "", out.stdout + out.stderr


def test_names_of_the_package():
    with pytest.raises(AttributeError):
        spmd.nothing_like_it  # noqa: B018
    assert spmd.numpy.sin is not None and spmd.numpy.float32 is np.float32
    assert spmd.numpy.concat is not None and spmd.numpy.pi == np.pi
    np.testing.assert_array_equal(spmd.numpy.add(np.ones(2), 1), [2, 2])

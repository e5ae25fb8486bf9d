"""spmd.jit beside the same functions as plain NumPy: kinds of arguments, ranks, what is kept."""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import spmd
from codegen.user.named import held
from spmd import jitting, source


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Layer:
    kernel: Any
    bias: Any


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what is built, or taken from the cache of builds, in order."""
    done: list[str] = []
    build = source.build_program

    def counted(program: Any, *args: Any) -> bytes:
        done.append(program.name)
        return build(program, *args)

    monkeypatch.setattr(source, "build_program", counted)
    yield done


def same(ours: Any, numpys: Any, path: str = "") -> None:
    """Equal trees of equal arrays; containers are of one class."""
    inside = held(numpys)
    if inside is None:
        if numpys is None:
            assert ours is None, path
            return
        wanted = np.asarray(numpys)
        assert isinstance(ours, np.ndarray) and ours.dtype == wanted.dtype, (path, ours, wanted)
        np.testing.assert_allclose(ours, wanted, rtol=1e-6, err_msg=path)
        return
    assert type(ours) is type(numpys), path
    mine = held(ours)
    assert mine is not None and [k for k, _ in mine] == [k for k, _ in inside], path
    for (key, x), (_, y) in zip(mine, inside, strict=True):
        same(x, y, f"{path}.{key}")


# ---- kinds of arguments ----------------------------------------------------------------------

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 \
complex128".split()


def arrays_of_all_dtypes() -> dict[str, np.ndarray]:
    rows = np.arange(12).reshape(4, 3)
    return {name: (rows % 2 if name == "bool" else rows).astype(name) for name in DTYPES} | {
        "bfloat16": rows.astype(ml_dtypes.bfloat16)}


def doubled(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: x + x for name, x in arrays.items()} | {
        f"{name}_row": x[1] for name, x in arrays.items()}


def weak(arrays: dict[str, Any], i: Any, f: Any, c: Any, flag: Any) -> dict[str, Any]:
    """Combines every dtype with Python's numbers: result dtypes follow NumPy's promotion."""
    out = {}
    for name, x in arrays.items():
        if name != "bool":
            out[f"{name}_i"] = x * i
        if name != "bfloat16":
            out[f"{name}_f"] = x * f
            out[f"{name}_c"] = x * c
        out[f"{name}_flag"] = np.where(flag, x, x)
    return out


def nested(pair: Any, layers: Any, *rest: Any, scale: Any = 2.0, **more: Any) -> Any:
    (x, [y]), z = pair
    first, second = layers
    return {
        "pair": Pair(x + first.kernel, (y, second["w"] * scale)),
        "layer": Layer(z - first.bias, None),
        1: [sum(r for r in rest), more["shift"] + x], "empty": {}, "none": None,
    }


def control(x: Any, n: Any, k: Any) -> Any:
    """Loops, branches, subscripts at run-time integers; writes into an argument."""
    total = 0.0
    i = 0
    while i < n:
        x[i] = x[i] * 2 + k
        if x[i] > 3:
            total = total + x[i]
        i += 1
    x[-1] = 9
    while total > 10:
        total = total / 2
    return x, total, x[k], x.T[::2]


x4, x43 = np.arange(4.0), np.arange(12.0).reshape(4, 3)
CASES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (doubled, (arrays_of_all_dtypes(),), {}),
    (weak, (arrays_of_all_dtypes(), 2, 0.5, 2j, True), {}),
    (nested, ((((x4, [x43]), np.float32(3)),
               [Layer(x4, np.ones(())), {"w": x4.astype(np.float32)}], 1, x4, np.int8(3))),
     {"shift": 4, "scale": 3}),
    (control, (x4, 3, 2), {}),
    (lambda x, y: x[:, ::-1] @ y.T, (np.asfortranarray(x43), x43[:, ::-1]), {}),
    (lambda big, none: big + (1 if none is None else 2), (x4.astype(">f8"), None), {}),
    (lambda: np.arange(3) * 2, (), {}),
    (functools.partial(lambda s, x: s * x, 3.0), (x4,), {}),
    (np.negative, (x43,), {}),
    (lambda x: x[:0], (x43,), {}),
]


@pytest.mark.parametrize("ranks", (1, 3, 5))
@pytest.mark.parametrize("case", range(len(CASES)))
def test_as_numpy(case: int, ranks: int) -> None:
    function, args, kwargs = CASES[case]
    kept = copy.deepcopy((args, kwargs))
    ours = spmd.jit(function, ranks=ranks)(*args, **kwargs)
    assert repr((args, kwargs)) == repr(kept)
    args, kwargs = kept
    same(ours, function(*args, **kwargs))


# ---- what is built, and what is kept ---------------------------------------------------------


def test_nothing_is_built_twice(builds: list[str]) -> None:
    @spmd.jit(ranks=2)
    def scaled(x: Any, by: Any = 1.0) -> Any:
        return {"u": x * by}

    x = np.arange(4.0)
    for by in (2.0, 3.0, -0.0, float("nan")):
        same(scaled(x, by), {"u": x * by})
        same(scaled(x + 1, by=by), {"u": (x + 1) * by})
    assert len(builds) == 2  # by position, and by name
    assert scaled(x.astype(np.float32), 2.0)["u"].dtype == np.float32  # and of another dtype
    assert scaled(np.arange(5.0), 2.0)["u"].shape == (5,)  # and shape
    scaled(x, np.float64(2.0))  # a number that has a dtype
    assert len(builds) == 5
    for _ in range(2):
        scaled(x), scaled(x.astype(np.float32), 2.0), scaled(np.arange(5.0), 2.0)
    assert len(builds) == 6
    scaled.clear_cache()
    assert scaled(x, 2.0)["u"][1] == 2 and len(builds) == 7


def test_static_arguments(builds: list[str]) -> None:
    def grid(x: Any, n: int, kind: str = "plus") -> Any:
        return np.zeros(n) + x if kind == "plus" else np.ones(n) - x

    for how in ({"static_argnums": (1, 2)}, {"static_argnames": ["n", "kind"]},
                {"static_argnums": -2, "static_argnames": "kind"}):
        f = spmd.jit(grid, ranks=3, **how)
        for n in (2, 4, 2):
            for kind in ("plus", "minus"):
                same(f(1.5, n, kind), grid(1.5, n, kind))
                same(f(1.5, n=n, kind=kind), grid(1.5, n, kind))
        same(f(1.5, 2), grid(1.5, 2))
    assert len(builds) == 3 * (4 + 4 + 1)
    g = spmd.jit(grid, static_argnames=("n", "kind"))
    assert g(0.5, 1).shape == (1,)
    with pytest.raises(spmd.ProgramError, match="an integer is required"):
        g(0.5, True)  # another value than 1
    with pytest.raises(spmd.UsageError, match="static argument n has no hash"):
        g(1.5, [2])
    told = spmd.jit(lambda x, n: x + len(repr(n)), static_argnums=1)
    for n in (0.0, -0.0, (1,), (True,), (1.0,), ((0.0,), 1), ((-0.0,), 1), float("nan")):
        same(told(0.0, n), np.array(float(len(repr(n)))))  # equal, or not even that
    for how, text in (({"static_argnums": 7}, "static_argnums has 7"),
                      ({"static_argnames": "m"}, "static_argnames has 'm'"),
                      ({"layout": {"y": "r"}}, "layout= names 'y'")):
        with pytest.raises(spmd.UsageError, match=text):
            spmd.jit(grid, **how)


TABLE = np.arange(4.0)
FACTOR = 2.0


def reads_a_global(x: Any) -> Any:
    return x * TABLE + FACTOR


class Settings:
    shift = 1.0

    def __init__(self) -> None:
        self.weights = {"w": [np.ones(4)]}
        self.seen = 0

    def apply(self, x: Any) -> Any:
        return x * self.weights["w"][0] + self.shift


def test_what_is_read_may_change(builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, table = np.ones(4), np.arange(4.0)
    settings, shift = Settings(), 0.5

    def by_closure(x: Any) -> Any:
        return table * x + shift, settings.apply(x)

    def from_outside() -> Any:
        return big + float(os.environ.get("SPMD_TEST_SHIFT", "1"))

    big = np.zeros(20_000)
    f, g, h = spmd.jit(by_closure, ranks=2), spmd.jit(reads_a_global), spmd.jit(from_outside)

    def right() -> None:
        same(f(x), by_closure(x))
        same(g(x), reads_a_global(x))
        same(h(), from_outside())

    right()
    settings.seen += 1  # nobody reads it
    right()
    assert len(builds) == 3
    for change in (
        lambda: table.__setitem__(0, 7), lambda: settings.weights["w"].append(1),
        lambda: settings.weights["w"][0].__setitem__(2, -1),
        lambda: settings.weights.update(w=[np.zeros(4)]),
        lambda: setattr(settings, "shift", 4.0), lambda: monkeypatch.setattr(Settings, "shift", 3),
        lambda: monkeypatch.setitem(globals(), "FACTOR", 5.0),
        lambda: monkeypatch.setitem(globals(), "TABLE", TABLE[::-1]),
        lambda: big.__setitem__(19_999, 3), lambda: monkeypatch.setenv("SPMD_TEST_SHIFT", "2"),
        lambda: monkeypatch.setattr(Settings, "apply", lambda self, x: x - 1),
    ):
        change()
        right()
    shift = 0.25
    right()
    count = len(builds)
    table = table.copy()  # another object of the same content
    right()
    assert len(builds) == count


class Model:
    def __init__(self, scale: float) -> None:
        self.scale, self.calls = scale, 0

    @spmd.jit(ranks=2)
    def twice(self, x: Any) -> Any:
        return {"out": 2 * self.scale * x}

    @functools.partial(spmd.jit, static_argnums=(0, 2))
    def rows(self, x: Any, n: int) -> Any:
        return x[:n] * self.scale


def test_methods(builds: list[str]) -> None:
    one, two, x = Model(3.0), Model(4.0), np.arange(3.0)
    for model in (one, two, one):
        model.calls += 1
        same(model.twice(x), {"out": 2 * model.scale * x})
        same(model.rows(x, 2), x[:2] * model.scale)
    assert len(builds) == 4
    one.scale = 5.0
    same(one.twice(x), {"out": 10 * x})
    assert len(builds) == 5 and one.twice.image(x).run(ranks=3, x=x)["out"][1] == 10
    gone = weakref.ref(two)
    del two, model
    gc.collect()
    assert gone() is None


def test_where_other_code_runs_it_is_the_function(builds: list[str]) -> None:
    half = spmd.jit(lambda x: {"u": x / 2}, ranks=3)
    quarter = spmd.jit(lambda x: half(half(x)["u"])["u"])

    @spmd.program(mesh=("r",))
    def whole() -> Any:
        return quarter(spmd.input("x", (4,), np.float64, layout=("r",), default=lambda i: i))

    x = np.arange(4.0)
    assert (quarter(x) == x / 4).all() and len(builds) == 1
    assert (spmd.build(whole).run(ranks=2) == x / 4).all()
    assert (whole.eager() == x / 4).all()
    slope = spmd.jit(spmd.grad(lambda x: np.sum(quarter(x) ** 2)), ranks=3)
    np.testing.assert_allclose(slope(x), x / 8)


def loss(w: Any, x: Any) -> Any:
    return np.sum(np.tanh(x @ w["a"] + w["b"]) ** 2)


@pytest.mark.parametrize("ranks", (1, 3, 5))
def test_of_derivatives(ranks: int) -> None:
    rng = np.random.default_rng(0)
    w, x = {"a": rng.normal(size=(3, 2)), "b": np.zeros(2)}, rng.normal(size=(7, 3))
    value, slopes = spmd.jit(spmd.value_and_grad(loss), ranks=ranks)(w, x)
    only = spmd.jit(spmd.grad(loss, argnums=(0, 1)), ranks=ranks)(w, x)
    same(value, loss(w, x))
    same(only[0], slopes)
    for name, k in (("a", (1, 1)), ("b", (1,))):
        moved = copy.deepcopy(w)
        moved[name][k] += 1e-6
        np.testing.assert_allclose(slopes[name][k], (loss(moved, x) - loss(w, x)) / 1e-6, 1e-4)


def test_transforms_compose() -> None:
    w, x = np.ones(3) / 4, np.arange(12.0).reshape(4, 3) / 8

    def of_row(w: Any, row: Any) -> Any:
        return np.tanh(row @ w) ** 2

    def slope(w: Any, row: Any) -> Any:
        h = np.tanh(row @ w)
        return 2 * h * (1 - h**2) * row

    each = spmd.jit(spmd.vmap(spmd.grad(of_row), in_axes=(None, 0)), ranks=3)(w, x)
    np.testing.assert_allclose(each, [slope(w, row) for row in x])
    rows = spmd.jit(lambda w, x: spmd.vmap(of_row, in_axes=(None, 0))(w, x), ranks=2)
    np.testing.assert_allclose(rows(w, x), [of_row(w, row) for row in x])
    total = spmd.jit(spmd.grad(lambda w, x: np.sum(rows(w, x))), ranks=2)
    np.testing.assert_allclose(total(w, x), sum(slope(w, row) for row in x))
    np.testing.assert_allclose(spmd.grad(lambda w: np.sum(rows(w, x)))(w), total(w, x))


def test_copied_and_pickled() -> None:
    """By its name where that leads to it, else by its function; a method with its object."""
    assert pickle.loads(pickle.dumps(Model.twice)) is copy.deepcopy(Model.twice) is Model.twice
    for again in (pickle.loads, lambda x: copy.deepcopy(pickle.loads(x))):
        assert again(pickle.dumps(spmd.jit(reads_a_global))).__wrapped__ is reads_a_global
        assert again(pickle.dumps(Model(2.5).twice)).__self__.scale == 2.5


def test_what_a_program_says(capsys: pytest.CaptureFixture[str]) -> None:
    @spmd.jit(ranks=3, check="nan")
    def said(x: Any) -> Any:
        spmd.print("the sum is {}", np.sum(x))
        assert x[0] >= 0, "not below zero"
        return np.log(x[1:])

    assert said(np.ones(3))[0] == 0 and capsys.readouterr().out == "the sum is 3.0\n"
    for wrong, text in ((np.array([-1.0, 1, 1]), "not below zero"), (np.zeros(3), "log makes")):
        with pytest.raises(spmd.CheckError, match=text):
            said(wrong)
    assert said(np.ones(3))[0] == 0 and spmd.jit(lambda x: spmd.print("once"))(1.0) is None


def test_images_and_layouts() -> None:
    def total(params: Any, x: Any) -> Any:
        return params["w"] + np.sum(x, axis=1)

    f = spmd.jit(total, ranks=4, mesh=("i", "j"), layout={"x": ("i", "j"), "params": {"w": "j"}})
    w, x = {"w": np.ones(6)}, np.arange(24.0).reshape(6, 4)
    image = f.image({"w": spmd.spec((6,), np.float64)}, spmd.spec(x.shape, np.float64))
    assert f.lower(w, x).digest == image.digest
    rows = {row["name"]: row["layout"] for row in image.layouts(ranks=4)}
    assert rows["x"] == [["i"], ["j"]] and rows["params.w"] == [["j"]]
    same(f(w, x), total(w, x))
    same(image.run(ranks=3, params=w, x=x), total(w, x))
    same(image.run(ranks=2, check=True, params=w, x=x), total(w, x))
    kept = spmd.jit(lambda u: {"u": u + 1}, ranks=3, keep=True)
    u = x
    for _ in range(3):
        u = kept(u)["u"]
    same(np.asarray(u), x + 3)


# ---- processes, threads, memory --------------------------------------------------------------


def test_threads() -> None:
    f, wrong = spmd.jit(lambda x: x * 2, ranks=2), []

    def call(n: int) -> None:
        for k in range(10):
            x = np.full(n, float(k))
            wrong.extend([n] * (not (f(x) == 2 * x).all()))

    threads = [threading.Thread(target=call, args=(n,)) for n in (3, 4, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_opens_its_own() -> None:
    f, x = spmd.jit(lambda x: x * 2, ranks=2), np.arange(3.0)
    f(x)
    child = os.fork()
    if not child:  # in a copy of pytest: leave without a word
        code = 1
        try:
            code = 0 if (f(x) == 2 * x).all() else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (f(x) == 2 * x).all()


def test_what_nobody_has_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jitting, "MOST_OPEN", 4)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def mapped() -> int:
        return sum(1 for _ in open("/proc/self/maps"))

    for k in range(4):
        f = spmd.jit(lambda x: x * 2, ranks=2)
        for n in range(1, 8) if k == 0 else (3, 4):  # more than stay open
            f(np.ones(n))
        del f
        gc.collect()
        if k == 1:
            before = descriptors(), mapped()
    assert descriptors() <= before[0] and mapped() <= before[1] + 8


PROCESSES = """
import numpy as np, spmd
from mpi4py import MPI
comm = MPI.COMM_WORLD

@spmd.jit(comm=comm)
def step(state, by):
    return {"u": state["u"] * by, "sum": np.sum(state["u"]), "none": None}

state, expected = {"u": np.arange(10.0)}, np.arange(10.0)
for by in (2.0, 3.0):
    out = step(state, by)
    expected = expected * by
    state = {"u": out["u"]}
    assert out["none"] is None
    assert out["u"].local.size == len(np.array_split(expected, 3)[comm.rank])
whole = out["u"].gather()
if comm.rank == 0:
    assert (whole == expected).all() and np.asarray(out["sum"]) == 90.0
    print("right")
table = np.ones(4)
read = spmd.jit(lambda x: x * table, comm=comm)
read(np.ones(4))
if comm.rank == 1:  # one of them sees a change: all of them build, with what process 0 reads
    table[0] = 5
seen = read(np.ones(4)).gather()
assert comm.rank or (seen == 1).all()
try:
    step({"u": np.ones(10 + (comm.rank == 1))}, 1.0)
except spmd.AgreementError as error:
    print(error)
except spmd.SpmdError:
    pass
"""


def test_in_processes(mpirun: Any, tmp_path: Path) -> None:
    path = tmp_path / "steps.py"
    path.write_text(PROCESSES)
    mpirun(3, path).expect(0, "right", "process 1 differs", "(11,)")


# ---- mistakes --------------------------------------------------------------------------------


def test_arguments_that_are_none() -> None:
    f = spmd.jit(lambda x, params=0: x, ranks=2)
    for bad, text in (
        (np.array([None]), "argument x is an array of object"), ("a", "argument x is a str"),
        (np.array("2000-01-01", np.datetime64), "argument x is an array of datetime64"),
        ({"q": [1.0, object()]}, r"argument x\.q\.1 is an object"),
        ({"q": Layer(1.0, {"b": "text"})}, r"argument x\.q\.bias\.b is a str"),
        (2**70, "argument x is an int that does not fit"), (spmd.local(np.ones(2)), "x is a Local"),
        (np.ma.masked_array([1.0], [True]), "masked"), (np.longdouble(1), "longdouble|float128"),
        (np.ones((2, 2)).view(np.matrix), "argument x is a matrix"),
    ):
        with pytest.raises(spmd.InputError, match=text):
            f(bad)
    same(f(2**63 - 1), np.array(2**63 - 1))
    for big in (2**63, 2**64 - 1, -(2**63) - 1, [2**63]):  # of a kind that has been built
        with pytest.raises(spmd.InputError, match=r"argument x(\.0)? is an int that does not fit"):
            f(big)
    with pytest.raises(TypeError, match="too many positional arguments"):
        f(1.0, 2.0, 3.0)
    for wrong in (3, int, lambda: (yield), spmd.program(lambda: np.ones(1))):
        with pytest.raises(spmd.UsageError, match="takes a function of arrays"):
            spmd.jit(wrong)


class Made:  # as classes of messages are that a library makes
    def __init__(self) -> None:
        self.factor = 2.0


Made.__module__ = None  # type: ignore[assignment]
MADE = Made()


def test_objects_of_classes_without_a_module() -> None:
    twice = spmd.jit(lambda x: x * MADE.factor)
    np.testing.assert_array_equal(twice(np.ones(3)), 2 * np.ones(3))
    with pytest.raises(spmd.DtypeError, match="an operand of type 'Made'"):
        spmd.jit(lambda x: x + MADE)(np.ones(3))


def test_what_is_not_known_while_building() -> None:
    def shaped(x: Any, n: Any) -> Any:
        return np.zeros(n) + x[0]

    with pytest.raises(spmd.TracedValueError, match=r'(?s)test_jit.py:\d+.*static_argnames="n"'):
        spmd.jit(shaped)(np.ones(3), 3)
    with pytest.raises(spmd.SpmdError, match=r"test_jit.py:\d+: x.mask. has a length that"):
        spmd.jit(lambda x: x[x > 0])(np.ones(3))
    with pytest.raises(spmd.TracedValueError, match=r'(?s)py:\d+: this text shows.*print\(f"'):
        spmd.jit(lambda x: x * len("x is " + str(np.sum(x))))(np.ones(3))


def test_attributes_that_were_not_there_build_again() -> None:
    class Base:
        scale = 2.0

    class Sub(Base):
        pass

    this = Sub()
    inherited = spmd.jit(lambda x: x * this.scale + Sub.scale)
    asked = spmd.jit(lambda x: x * (Sub.more if hasattr(Sub, "more") else 1.0))
    got = spmd.jit(lambda x: x * getattr(this, "less", 1.0))
    for holder, name, value in ((Sub, "scale", 3.0), (this, "scale", 4.0), (Base, "more", 5.0),
                                (Sub, "more", 6.0), (Sub, "less", 7.0), (this, "less", 8.0)):
        setattr(holder, name, value)
        same(inherited(1.0), np.array(this.scale + Sub.scale))
        same(asked(1.0), np.array(getattr(Sub, "more", 1.0)))
        same(got(1.0), np.array(getattr(this, "less", 1.0)))

"""A class that is a program as plain Python, beside its open image: state, refusals, functions."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest

import spmd
from codegen.errors import CarryError, InputError, MissingError, ProgramError, SpmdError, UsageError
from codegen.ir.graph import walk
from codegen.oracle.interpret import run
from codegen.user.named import named

TABLE = np.arange(4.0)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    first: Any


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value

    def bump(self, x: Any) -> None:
        self.value = self.value + x


class Base:
    factor = 2.0

    def __init__(self, n: int = 6) -> None:
        self.w = {"in": spmd.ones((n,), np.float64, layout=("r",)), "out": [np.zeros(2)]}
        self.pair = Pair(np.arange(3), np.float32(1))
        self.record, self.box = Record(np.ones((2, 3), np.float16)), Box(np.zeros((), np.complex64))
        self.ema = self.w["in"]  # never written in place
        self.empty, self.flags = np.zeros((0, 3)), np.array([True, False])
        self.table, self.same_table = TABLE, TABLE
        self.count, self.rate = 0, 1.0
        self.slope = spmd.value_and_grad(self.loss)  # over self
        self.scaled = lambda x: x * self.w["in"]

    def loss(self, w: Any) -> Any:
        return np.sum(w * w * self.w["in"])

    @property
    def total(self) -> Any:
        return np.sum(self.w["in"])

    @cached_property
    def twice(self) -> Any:
        return self.w["in"] * 2

    def step(self) -> Any:
        return 1.0

    @spmd.entry
    def gone(self) -> Any:
        return self.count


@spmd.program(mesh=("r",))
class Machine(Base):
    def step(self) -> Any:
        return super().step() * self.factor

    def gone(self) -> Any:  # no entry any more
        return 0

    @spmd.entry
    def train(self) -> Any:
        x = spmd.input("x", (6,), np.float64, layout=("r",))
        value, slope = self.slope(self.w["in"])
        self.ema = self.w["in"]
        self.w["in"] = self.scaled(x) - 0.1 * slope + self.step() + self.twice
        if np.sum(x) > 0:
            self.count += 1
        self.box.bump(1j)
        self.table[0] += 1
        assert np.sum(x) > -100, "x is not too small"
        return {"value": value, "count": self.count}

    @spmd.entry
    def turn(self) -> None:
        steps = spmd.scalar("steps", 2)
        for _ in spmd.range(steps):
            self.w["in"], self.ema = self.ema, self.w["in"]
            self.rate = self.rate * 0.5
        self.flags = ~self.flags
        self.pair = self.pair._replace(left=self.pair.left[::-1])
        self.record.first = self.record.first * 2

        @spmd.shard_map(in_layouts=(("r",),), out_layouts=("r",))
        def shifted(u: Any) -> Any:
            return u + spmd.psum(np.sum(u), "r")

        self.w["in"] = shifted(self.w["in"])

    @spmd.entry
    def look(self) -> Any:
        x = spmd.input("x", (2, 2), np.int32)
        steps = spmd.scalar("steps", 2)
        return self.w, self.total * self.rate, np.sum(x) * steps, self.same_table, self.pair.right


def same(found: Any, expected: Any) -> None:
    left, right = list(named(found)), list(named(expected))
    assert [n for n, _ in left] == [n for n, _ in right]
    for (name, a), (_, b) in zip(left, right, strict=True):
        if b is None:
            assert a is None
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=name)


def test_an_eager_class_does_as_its_image(tmp_path: Any) -> None:
    """State, closures over self, trees, numbers, aliases, and a file of the one for the other."""
    image = spmd.build(Machine)
    calls = [("train", {"x": np.arange(6.0)}), ("turn", {}), ("look", {"x": np.ones((2, 2))}),
             ("train", {"x": -np.ones(6)}), ("turn", {"steps": 3}), ("train", {"x": np.ones(6)})]
    for ranks in (1, 3, 5):
        plain = Machine.eager(ranks=ranks)
        with image.open(ranks=ranks) as job:
            for name, given in calls:
                if "x" in given and name == "look":
                    given = {"x": np.ones((2, 2), np.int32)}
                same(getattr(job, name)(**given), getattr(plain, name)(**given))
                same(job.state(), plain.state())
            plain.save(tmp_path / "state.safetensors")
            job.train(x=np.ones(6))
            job.load(tmp_path / "state.safetensors")
            same(job.turn(), plain.turn())
            job.save(tmp_path / "state.npz")
            plain.turn()
            plain.load(tmp_path / "state.npz")
            same(job.state(), plain.state())
    assert TABLE[0] == 0
    with pytest.raises(MissingError, match='Machine has no entry "gone"; it has look, train, turn'):
        plain.gone()


def test_a_call_that_fails_leaves_the_state_and_its_arrays() -> None:
    """Inputs and outputs are copies."""
    plain = Machine.eager()
    x = np.ones(6)
    plain.train(x=x)
    before, out = plain.state(), plain.look(x=np.ones((2, 2), np.int32))
    out[0]["in"][:] = 99
    for given, error in (({"x": -1e6 * x}, AssertionError), ({"y": x}, SpmdError),
                         ({"x": x, "y": x}, UsageError)):
        with pytest.raises(error):
            plain.train(**given)
        same(plain.state(), before)
    assert (x == 1).all()
    with pytest.raises(InputError, match=r"state w\.in is not given"):
        plain.load({k: v for k, v in before.items() if k != "w.in"})
    with pytest.raises(InputError, match="state ema has another shape"):
        plain.load(before | {"ema": np.zeros(7)})


def test_an_interpreted_graph_runs_one_entry() -> None:
    graph = Machine.capture()
    state = run(graph, {"r": 3}, scalars={"entry": 0})
    found = run(graph, {"r": 3}, {**state, "train.x": np.ones(6)}, {"entry": 1})
    plain = Machine.eager()
    plain.train(x=np.ones(6))
    for name, x in plain.state().items():
        np.testing.assert_allclose(found.get(name, state[name]), x)
    assert found["train.count"] == 1 and "look.0.in" not in found


# ---- refusals ------------------------------------------------------------------------------------


class New:
    def __init__(self) -> None:
        self.w = np.zeros(3)

    @spmd.entry
    def train(self) -> None:
        self.cache = self.w + 1


class Turned:
    def __init__(self) -> None:
        self.w = {"in": np.zeros((64, 128), np.float32)}

    @spmd.entry
    def train(self) -> None:
        self.w["in"] = self.w["in"].T


class Wider:
    def __init__(self) -> None:
        self.w = np.zeros(3, np.float32)

    @spmd.entry
    def train(self) -> None:
        self.w = self.w * np.ones(3)


class Grown:
    def __init__(self) -> None:
        self.w = [np.zeros(3)]

    @spmd.entry
    def train(self) -> None:
        self.w.append(self.w[0] + 1)


class Dropped:
    def __init__(self) -> None:
        self.w = np.zeros(3)

    @spmd.entry
    def train(self) -> None:
        del self.w


class Shown:
    def __init__(self) -> None:
        self.w = np.zeros((2, 3))
        self.row = self.w[0]

    @spmd.entry
    def train(self) -> None:
        self.w += 1


class WrittenThenBound:
    def __init__(self) -> None:
        self.w = np.zeros((2, 3))
        self.row = self.w[0]

    @spmd.entry
    def train(self) -> Any:
        self.w[0] += 1
        self.w = self.w * 2
        return self.row  # plain Python: ones


class BoundInOneArm:
    def __init__(self) -> None:
        self.w = np.zeros((2, 3))
        self.row = self.w[0]

    @spmd.entry
    def train(self) -> None:
        if spmd.scalar("way", 0) > 0:
            self.w = self.w * 2
        else:
            self.w[0] += 1

    @spmd.entry
    def look(self) -> Any:
        return self.row


class Named:
    def __init__(self) -> None:
        self.w, self.name = np.zeros(3), "a"

    @spmd.entry
    def train(self) -> None:
        self.name = "b"


REFUSED = [
    (New, ProgramError, "self.cache is not state: __init__ does not bind it", "self.cache ="),
    (Turned, CarryError, 'self.w["in"] was float32 (64, 128), train makes it (128, 64)',
     'self.w["in"] ='),
    (Wider, CarryError, "self.w was float32 (3,), train makes it float64 (3,)", "self.w ="),
    (Grown, CarryError, "self.w[1] is new: __init__ does not put it there", "@spmd.entry"),
    (Dropped, CarryError, "self.w is no longer there after train", "@spmd.entry"),
    (Shown, ProgramError, "self.w is written in place, and self.row may be the same array",
     "self.w += 1"),
    (WrittenThenBound, ProgramError,
     "self.w is written in place, and self.row may be the same array", "self.w = self.w * 2"),
    (BoundInOneArm, ProgramError,
     "self.w is written in place, and self.row may be the same array", "self.w[0] += 1"),
    (Named, ProgramError, "train binds self.name, which is not state", 'self.name = "b"'),
]


@pytest.mark.parametrize(("cls", "error", "text", "line"), REFUSED)
def test_both_refuse_what_is_no_state(cls: type, error: Any, text: str, line: str) -> None:
    program = spmd.program(mesh=("r",))(cls)
    said = []
    for call in (lambda: spmd.build(program), lambda: program.eager().train()):
        with pytest.raises(error) as found:
            call()
        assert found.value.message == text
        assert found.value.place.source_line().strip().startswith(line)
        assert found.value.expected and found.value.found and found.value.remedy
        said.append(str(found.value).split("\n  found:")[0])
    assert said[0] == said[1]


def test_a_refused_write_refuses_no_later_call() -> None:
    plain = spmd.program(mesh=("r",))(BoundInOneArm).eager()
    with pytest.raises(ProgramError, match="written in place"):
        plain.train()
    plain.train(way=1)
    np.testing.assert_array_equal(plain.look(), np.zeros(3))


def test_an_entry_has_no_name_of_an_open_image() -> None:
    class Bad:
        @spmd.entry
        def save(self) -> None:
            pass

    with pytest.raises(UsageError, match="an open image has a method save of its own"):
        spmd.program(mesh=("r",))(Bad)


def test_numbers_take_the_type_that_an_entry_gives_them() -> None:
    class Numbers:
        def __init__(self) -> None:
            self.a, self.b, self.x = 0, 1, np.ones(2, np.float32)

        @spmd.entry
        def go(self) -> Any:
            self.a = self.a + 0.5
            self.b = np.sum(self.x)
            return self.x * self.a, self.x * self.b

    program = spmd.program(mesh=("r",))(Numbers)
    plain = program.eager()
    with spmd.build(program).open(ranks=2) as job:
        for _ in range(2):
            same(job.go(), plain.go())
        same(job.state(), plain.state())
        assert plain.state()["a"] == 1 and plain.state()["b"].dtype == np.float32


# ---- functions -----------------------------------------------------------------------------------


def add(n: int = 3) -> Any:
    total = spmd.input("total", (n,), np.float64, default=lambda i: i)
    x = spmd.input("x", (n,), np.float64)
    return {"total": total + x, "sum": np.sum(total + x)}


def middle(n: int = 3) -> Any:
    total = spmd.input("total", (n,), np.float64)
    total[0] = 9.0  # a copy
    return np.mean(total[1:])


def layer() -> Any:
    w = spmd.input("w", {"in": spmd.spec((4, 3)), "out": [spmd.spec((3,), np.float64)]})
    return {"w": {"in": w["in"] * 2, "out": w["out"]}, "y": np.sum(w["in"])}


@spmd.program(mesh=("r",))
def weights() -> Any:
    w = spmd.input("w", {"in": spmd.spec((4, 3)), "out": [spmd.spec((3,), np.float64)]})
    return w["in"]


def test_functions_share_state_by_the_names_of_inputs() -> None:
    program = spmd.entity(add=add, middle=middle, state="total")
    plain = program.eager(ranks=2, n=4)
    with spmd.build(program, n=4).open(ranks=3) as job:
        for name, given in (("add", {"x": np.ones(4)}), ("middle", {}), ("add", {"x": TABLE})):
            same(getattr(job, name)(**given), getattr(plain, name)(**given))
            same(job.state(), plain.state())
    np.testing.assert_array_equal(plain.state()["total"], [1, 3, 5, 7])


def test_defaults_of_a_state_stand_where_functions_declare_them() -> None:
    lines, first = inspect.getsourcelines(add)
    for op in walk(spmd.entity(add=add, state="total").graph({"n": 3}).body):
        assert op.place.file == __file__ and first <= op.place.line < first + len(lines), op


def test_an_eager_entry_is_started_as_that_of_an_image() -> None:
    program = spmd.entity(add=add, middle=middle, state="total")
    with spmd.build(program).open(ranks=2) as job:
        for x in (program.eager(), job):
            call = x.add.start(x=np.ones(3))
            wrong = x.add.start(x=np.ones(4))
            assert call.result(timeout=60) == {"sum": 6}
            with pytest.raises(InputError):
                wrong.result()
            assert call.done() and wrong.done()
            np.testing.assert_array_equal(x.state()["total"], [1, 2, 3])
        assert repr(job) == "<open image of add_middle, with the entries add, middle>"
        assert repr(job.add) == "<entry add(x)>"
    assert repr(job).startswith("<closed image of ")


def test_a_state_that_nothing_begins_is_given_first() -> None:
    program = spmd.entity(layer=layer, weights=weights, state=("w",), name="Net")
    image, w = spmd.build(program), {"in": np.ones((4, 3), np.float32), "out": [np.zeros(3)]}
    assert image.manifest["program"] == "Net" and image.manifest["mesh"][0]["name"] == "r"
    for job in (program.eager(), image.open(ranks=2)):
        with pytest.raises(InputError, match=r"no default says what w\.in, w\.out\.0 begins with"):
            job.weights()
        job.load({"w": w})
        assert job.layer() == {"y": 12} and (job.weights() == 2).all()
        job.close()
    with image.open(ranks=3, state={"w": w}) as job:
        assert (job.weights() == 1).all()


def test_functions_that_do_not_fit_each_other_are_refused() -> None:
    def other() -> Any:
        return spmd.input("total", (5,), np.float64)

    with pytest.raises(ProgramError, match="declare the state total differently"):
        spmd.build(spmd.entity(add=add, other=other, state="total"))
    with pytest.raises(ProgramError, match="declares the input z, which is state"):
        spmd.build(spmd.entity(add=add, state=("z",)))
    with pytest.raises(UsageError, match="the entry add of an entity is no function"):
        spmd.entity(add=3)

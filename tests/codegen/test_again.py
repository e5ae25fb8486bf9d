"""A program captured again: what it reads has changed meanwhile, and the new capture says so.

Each case changes something between two captures; the Graphs must differ, and be what a program
written with the new value gives; and the digest of what can be read must differ.
"""

from __future__ import annotations
import __future__

import ast
import dataclasses
import enum
import functools
import importlib
import linecache
import os
import random
import re
import sys
import threading
import time
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import spmd
from codegen.errors import ProgramError
from codegen.ir.graph_text import module_text
from codegen.trace.control import conversion
from codegen.trace.control.fingerprint import digest

TABLE = np.arange(2000.0)
SETTINGS = {"s": [3.0]}
HOLDER = types.SimpleNamespace(s=3.0)
CONFIG = types.ModuleType("config")
CONFIG.s = 3.0


class Shape:
    s = 3.0

    def of(self, x):
        return x * self.s


SHAPE = Shape()


def helper(x, s=3.0, *, t=3.0):
    return x * s


def u():
    return spmd.input("u", (2000,), np.float64, layout=("x",))


def _closure():
    s = 3.0

    def p():
        return u() * s

    def change():
        nonlocal s
        s = 4.0

    return p, change


def _set(holder, name, value):
    return lambda: setattr(holder, name, value)


def _array_default():
    table = np.arange(2000.0)

    def p(table=table):
        return u() * table

    return p, lambda: table.__setitem__(1000, -1.0)


def _kwdefaults(x, *, s=3.0):
    return x * s


CASES = {
    "global": (lambda: u() * THREE, lambda: globals().update(THREE=4.0)),
    "array in place": (lambda: u() * TABLE, lambda: TABLE.__setitem__(1000, -1.0)),
    "dict and list": (lambda: u() * SETTINGS["s"][0], lambda: SETTINGS["s"].__setitem__(0, 4.0)),
    "attribute": (lambda: u() * HOLDER.s, _set(HOLDER, "s", 4.0)),
    "module": (lambda: u() * CONFIG.s, _set(CONFIG, "s", 4.0)),
    "class attribute": (lambda: SHAPE.of(u()), _set(Shape, "s", 4.0)),
    "closure": _closure(),
    "default": (lambda: helper(u()), _set(helper, "__defaults__", (4.0,))),
    "keyword default": (lambda: _kwdefaults(u()), lambda: _kwdefaults.__kwdefaults__.update(s=4.0)),
    "array parameter": _array_default(),
    "helper anew": (lambda: named(u()), lambda: globals().update(named=lambda x: x + 1)),
    "code in place": (lambda: swapped(u()), lambda: setattr(swapped, "__code__", other.__code__)),
}
THREE = 3.0


def named(x):
    return x * 2


def swapped(x):
    if x.size > 3:
        return x * 2
    return x


def other(x):
    if x.size > 3:
        return x * 5
    return x


@pytest.mark.parametrize("case", CASES)
def test_the_second_capture_reads_again(case):
    function, change = CASES[case]
    program = spmd.program(function)
    values = program.bind({})
    before, read = program.capture(), digest(program, values)
    assert read == digest(program, values)
    change()
    after, read_again = program.capture(), digest(program, values)
    fresh = spmd.program(function).capture()
    texts = [_whole(m) for m in (before, after, fresh)]
    assert texts[0] != texts[1] == texts[2]
    assert None not in (read, read_again) and read != read_again


def _whole(module) -> tuple[str, list[bytes]]:
    """The text of a Graph, and the bytes of its constants, which the text leaves out."""
    arrays = [
        value.tobytes()
        for op in module.body.ops
        for value in op.kind.attributes().values()
        if isinstance(value, np.ndarray)
    ]
    return module_text(module), arrays


# ---- what can be seen in advance


class Colour(enum.Enum):
    RED = 1


class Size(NamedTuple):
    n: int = 3


@dataclasses.dataclass(frozen=True)
class Setting:
    s: float = 3.0


class Slotted:
    __slots__ = ("s",)

    def __init__(self):
        self.s = 3.0


class Rows(list):
    scale = 2


VALUES = {"enum": Colour.RED, "named": Size(), "data": Setting(), "slots": Slotted(),
          "own": Rows([1, [2]]), "set": {1, "b"}, "partial": functools.partial(helper, s=2.0),
          "dtype": np.dtype("f4"), "scalar": np.float32(2), "module": CONFIG, "ufunc": np.add,
          "np": np.roll, "range": range(3), "spmd": spmd.psum, "class": Shape,
          "bound": SHAPE.of, "reduce": functools.reduce, "built-in": sum}
HIDDEN = {"generator": np.random.default_rng(0), "random": random.random, "time": time.time,
          "iterator": iter([1]), "file": sys.stdout, "environment": os.environ, "open": open,
          "np.random": np.random.rand, "cached": functools.cache(helper), "os": os,
          "object": np.array([None]), "masked": np.ma.zeros(3), "lock": threading.Lock(),
          "local": threading.local(), "load": np.load, "pattern": re.compile("a")}


@pytest.mark.parametrize("name", VALUES)
def test_it_can_be_seen(name):
    value = VALUES[name]
    assert digest(lambda: value)


@pytest.mark.parametrize("name", HIDDEN)
def test_it_cannot_be_seen(name):
    """Neither by itself, nor in what a function reaches."""
    hidden = HIDDEN[name]
    holder = types.SimpleNamespace(inside=[hidden])
    assert digest(hidden) is None
    assert digest(lambda: hidden) is None and digest(lambda: holder) is None


def test_reading_by_the_back_door_is_seen_as_such():
    name = "s"
    for function in (
        lambda: globals()["THREE"], lambda: getattr(CONFIG, name), lambda: vars(CONFIG)["s"],
        lambda: CONFIG.__dict__["s"], lambda: eval("THREE"), lambda: np.random.rand(),
        lambda: time.time(), lambda: os.environ["HOME"],
    ):
        assert digest(function) is None


def test_a_file_of_the_users_with_the_name_of_a_known_module(monkeypatch):
    """Nothing is believed because of its name."""
    mine = types.ModuleType("copy")
    exec("s = 3.0\ndef scale(x):\n    return x * s", mine.__dict__)
    before = digest(mine.scale)
    mine.s = 4.0
    assert before is None or before != digest(mine.scale)


def test_what_differs_is_told_apart():
    """Values that Python calls equal, and one array under two names."""
    a = np.zeros(3)
    seen = [digest([x]) for x in (
        0, 0.0, -0.0, False, "0", b"0", None, np.float32(0), np.float64(0), (0,), [0], {0}, {0: 0},
        a, a.reshape(3, 1), a.astype("f4"), a.astype(">f8"), (a, a), (a, a + 0), (a, a + 1),
        Size(0), Rows([0]), Setting(0),
    )]
    assert None not in seen and [seen.index(s) for s in seen] == list(range(len(seen)))


# ---- files that change

HELPERS = """import spmd
def scale(x):
    if x.size > 3:
        return x * {0}
    return x
"""


@pytest.fixture
def helpers(tmp_path, monkeypatch):
    """A module in a file; write(n) writes it with another factor, with the same size and time."""
    path = tmp_path / "some_helpers.py"

    def write(factor) -> Path:
        path.write_text(HELPERS.format(factor))
        os.utime(path, (1_000_000_000, 1_000_000_000))
        return path

    write(3)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop("some_helpers", None)


def test_a_helper_from_a_file_that_was_read_anew(helpers):
    module = importlib.import_module("some_helpers")
    program = spmd.program(lambda: module.scale(u()))
    first = _whole(program.capture())
    helpers(4)
    importlib.reload(module)
    assert _whole(program.capture()) != first


def test_a_file_that_changed_after_it_was_imported(helpers):
    """Its text is no longer that of the function: neither of them is guessed."""
    module = importlib.import_module("some_helpers")
    path = helpers(4)
    with pytest.raises(ProgramError, match="has changed since") as caught:
        spmd.program(lambda: module.scale(u())).capture()
    assert str(path) in str(caught.value) and "start Python again" in str(caught.value)


def test_a_file_in_which_a_helper_moved(helpers):
    """The same function stands further down: it is found there."""
    module = importlib.import_module("some_helpers")
    path = helpers(3)
    path.write_text("# one line more\n\n" + path.read_text())
    program = spmd.program(lambda: module.scale(u()))
    assert "mul" in module_text(program.capture())


def test_a_notebook_compiles_a_cell_statement_by_statement():
    """Python then compiles spmd.NAME(…) otherwise than in a file that imports spmd above it."""
    cell = "import spmd\n\ndef p(n=4):\n    u = spmd.input('u', (n,))\n    return u * 2\n"
    name = "/tmp/ipykernel_1/1.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    names: dict[str, object] = {}
    for statement in ast.parse(cell).body:
        exec(compile(ast.Module([statement], []), name, "exec"), names)
    assert "mul" in module_text(spmd.program(names["p"]).capture())


def test_a_cell_of_a_notebook_that_waits_and_remembers_the_future():
    """Compiled as IPython does: with flags of earlier cells, and `await` outside of functions."""
    text = "def f(x):\n    def g(y: int):\n        return y * 2\n    return g(x)\nawait g()\n"
    file = "/tmp/ipykernel_1/1.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    flags = __future__.annotations.compiler_flag | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(text, file, "exec", flags=flags, dont_inherit=True)
    f = types.FunctionType(next(c for c in code.co_consts if isinstance(c, types.CodeType)), {})
    try:
        assert "mul" in module_text(spmd.program(lambda: f(u())).capture())
        assert conversion.convert(f) is not f
    finally:
        del linecache.cache[file]


# ---- kernels


def _helped(x):
    return x[0]


def test_a_kernels_helper_that_writes_from_now_on(monkeypatch):
    """A helper that now writes into a kernel's input is noticed: the input gets an array of its
    own."""

    @spmd.kernel
    def k(x, out):
        out[0] = _helped(x)

    def writes(x):
        x[0] = 7.0
        return x[0]

    program = spmd.program(lambda: spmd.shard_map(
        lambda x: k(x, out=spmd.empty((1,), np.float64)), mesh="x", out_layouts=("x",))(u())
    )
    before = module_text(program.capture())
    monkeypatch.setitem(globals(), "_helped", writes)
    assert module_text(program.capture()) != before


def test_a_kernels_file_that_changed(helpers):
    path = helpers(3)
    path.write_text(KERNEL.format("out[i] = x[i]"))
    module = importlib.import_module("some_helpers")
    path.write_text(KERNEL.format("x[i] = out[i]"))
    program = spmd.program(lambda: spmd.shard_map(
        lambda x: module.k(x, out=spmd.like(x)), mesh="x", out_layouts=("x",))(u())
    )
    with pytest.raises(ProgramError, match="the file of k has changed"):
        program.capture()


KERNEL = """import spmd
@spmd.kernel
def k(x, out):
    for i in range(x.shape[0]):
        {}
"""

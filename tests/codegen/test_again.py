"""A program captured again: what it reads has changed meanwhile, and the new capture says so.

Each case changes something between two captures; the text of the Graphs must differ, and be what a
program written with the new value gives.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.errors import ProgramError
from codegen.printer import module_text

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
    before = program.capture()
    change()
    after = program.capture()
    fresh = spmd.program(function).capture()
    texts = [_whole(m) for m in (before, after, fresh)]
    assert texts[0] != texts[1] == texts[2]


def _whole(module) -> tuple[str, list[bytes]]:
    """The text of a Graph, and the bytes of its constants, which the text leaves out."""
    arrays = [
        value.tobytes()
        for op in module.body.ops
        for value in op.attrs.values()
        if isinstance(value, np.ndarray)
    ]
    return module_text(module), arrays


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

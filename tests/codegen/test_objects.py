"""Objects that a program changes, of any class, wherever it was loaded from: as in plain Python."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import ProgramError
from codegen.oracle import interpret
from codegen.trace.control import fingerprint
from codegen.trace.program import Program

CLASSES = '''
import collections, queue, weakref
from dataclasses import dataclass
from typing import NamedTuple

N = 0.0
HELD = [0.0]

class Ticking:
    def tick(self): self.t += 0.5

class Plain(Ticking):
    count = 0.0
    def __init__(self): self.t = 0.0

class Slots(Ticking):
    __slots__ = ("t",)
    def __init__(self): self.t = 0.0

class OnlySlots:
    __slots__ = ("t", "empty")
    def __init__(self): self.t = 0.0
    def tick(self): self.t += 0.5

class PrivateSlots:
    __slots__ = ("__t",)
    def __init__(self): self.__t = 0.0
    @property
    def t(self): return self.__t
    @t.setter
    def t(self, value): self.__t = value
    def tick(self): self.t += 0.5

@dataclass
class Data(Ticking):
    t: float = 0.0

@dataclass(slots=True)
class DataSlots:
    t: float = 0.0
    def tick(self): self.t += 0.5

class Property(Ticking):
    def __init__(self): self._t = 0.0
    @property
    def t(self): return self._t
    @t.setter
    def t(self, value): self._t = value

class InDict:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, x, owner): return x.__dict__[self.name]
    def __set__(self, x, value): x.__dict__[self.name] = value

class Described(Ticking):
    t = InDict()
    def __init__(self): self.t = 0.0

class Elsewhere:
    def __init__(self): self.values = weakref.WeakKeyDictionary()
    def __get__(self, x, owner): return self.values[x]
    def __set__(self, x, value): self.values[x] = value

class DescribedElsewhere(Ticking):
    t = Elsewhere()
    def __init__(self): self.t = 0.0

class Hooked(Ticking):
    def __init__(self): object.__setattr__(self, "held", {"t": 0.0})
    def __getattr__(self, name):
        if name != "t": raise AttributeError(name)
        return self.held[name]
    def __setattr__(self, name, value): self.held[name] = value

class OfMeta(Ticking, metaclass=type("Meta", (type,), {})):
    def __init__(self): self.t = 0.0

class List(list):
    def __init__(self): self.t = 0.0
    def tick(self): self.t += 0.5

class Dict(collections.OrderedDict):
    def __init__(self): self.t = 0.0
    def tick(self): self.t += 0.5

class Inside:
    """Keeps it in an object of the standard library."""
    def __init__(self):
        self.line = queue.Queue()
        self.line.put(0.0)
    @property
    def t(self): return self.line.queue[0]
    @t.setter
    def t(self, value):
        self.line.get()
        self.line.put(value)
    def tick(self): self.t += 0.5

def ticks():
    global N
    N += 0.5
    return N

def ticks_held():
    HELD[0] += 0.5
    return HELD[0]

def helper(c): c.t += 0.5
'''
KINDS = ("Plain Slots OnlySlots PrivateSlots Data DataSlots Property Described DescribedElsewhere "
         "Hooked OfMeta List Dict Inside").split()
REFUSED_KINDS = {"DescribedElsewhere", "List", "Dict", "Inside"}  # the others are carried


def in_a_module(folder: Path) -> Any:
    (folder / "clocks_here.py").write_text(CLASSES)
    return importlib.import_module("clocks_here")


def installed(folder: Path) -> Any:
    (folder / "site-packages" / "clocks").mkdir(parents=True)
    (folder / "site-packages" / "clocks" / "__init__.py").write_text(CLASSES)
    sys.path.insert(0, str(folder / "site-packages"))
    importlib.invalidate_caches()
    return importlib.import_module("clocks")


def by_runpy(folder: Path) -> Any:
    (folder / "run.py").write_text(CLASSES)
    return types.SimpleNamespace(**runpy.run_path(str(folder / "run.py")))


def without_sys_modules(folder: Path) -> Any:
    (folder / "loaded.py").write_text(CLASSES)
    spec = importlib.util.spec_from_file_location("loaded_clocks", folder / "loaded.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["loaded_clocks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # dataclasses with slots ask sys.modules
    del sys.modules["loaded_clocks"]
    return module


def by_exec(folder: Path) -> Any:
    names: dict[str, Any] = {"__name__": "nowhere"}
    sys.modules["nowhere"] = types.ModuleType("nowhere")
    exec(CLASSES, names)
    del sys.modules["nowhere"]
    return types.SimpleNamespace(**names)


WAYS = (in_a_module, installed, by_runpy, without_sys_modules, by_exec)


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.__name__)
def clocks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
           ) -> Iterator[Any]:
    path, folder = list(sys.path), tmp_path_factory.mktemp("clocks")
    sys.path.insert(0, str(folder))
    yield request.param(folder)
    sys.path[:] = path
    for name in ("clocks", "clocks_here"):
        sys.modules.pop(name, None)


def first(f: Callable[[Any], Any]) -> float:
    """The first element of what a program makes of [1, 2]."""

    def program():
        return f(spmd.input("x", (2,), np.float64, layout=(None,)))

    module = Program(program, ("r",)).capture()
    (result,) = interpret.run(module, {"r": 1}, {"x": np.array([1.0, 2.0])}).values()
    return float(result[0])


def ways_to_change(clocks: Any, kind: str) -> dict[str, tuple[Callable[[Any], Any], float]]:
    """Programs that change an object, with what plain Python makes of it."""
    make, name = getattr(clocks, kind), "t"

    def loop(x):
        c = make()
        for _ in spmd.range(3):
            c.t += 0.5
        return x * c.t

    def method(x):
        c = make()
        for _ in spmd.range(3):
            c.tick()
        return x * c.t

    def helper(x):
        c = make()
        for _ in spmd.range(3):
            clocks.helper(c)
        return x * c.t

    def held(x):
        c = {"a": [make()]}
        for _ in spmd.range(3):
            c["a"][0].t += 0.5
        return x * c["a"][0].t

    def branch_not_taken(x):
        c = make()
        if x[0] > 100:
            c.t += 0.5
        return x + c.t

    def branch_taken(x):
        c = make()
        if x[0] < 100:
            setattr(c, name, c.t + 0.5)
        return x * c.t

    return {"loop": (loop, 1.5), "method": (method, 1.5), "helper": (helper, 1.5),
            "held": (held, 1.5), "not taken": (branch_not_taken, 1.0), "taken": (branch_taken, 0.5)}


@pytest.mark.parametrize("kind", KINDS)
def test_carried_as_in_python_or_refused(clocks: Any, kind: str) -> None:
    for name, (f, expected) in ways_to_change(clocks, kind).items():
        if kind in REFUSED_KINDS:
            with pytest.raises(ProgramError, match=r"is (changed|asked)"):
                first(f)
        else:
            assert first(f) == expected, name


def test_what_stands_outside_of_the_program_is_refused(clocks: Any) -> None:
    kept = {kind: getattr(clocks, kind)() for kind in KINDS}

    def of_class(x):
        for _ in spmd.range(3):
            clocks.Plain.count += 0.5
        return x * clocks.Plain.count

    def of_objects(kind):
        def changes(x):
            for _ in spmd.range(3):
                kept[kind].t += 0.5
            return x * kept[kind].t

        return changes

    def of_globals(x):
        for _ in spmd.range(3):
            x = x + clocks.ticks()
        return x

    def of_lists(x):
        for _ in spmd.range(3):
            x = x + clocks.ticks_held()
        return x

    for f in (of_class, of_globals, of_lists, *map(of_objects, KINDS)):
        with pytest.raises(ProgramError, match="is changed in"):
            first(f)


def test_a_module_of_a_package_that_a_program_changes(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "counting.py").write_text("N = 0.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    counting = importlib.import_module("counting")

    def counts(x):
        for _ in spmd.range(3):
            counting.N += 0.5
        return x * counting.N

    with pytest.raises(ProgramError, match="counting.N is changed in a loop"):
        first(counts)


def test_what_the_library_computes_later_is_no_change() -> None:
    """A path keeps its text when somebody asks for it first."""
    path = Path("a") / "b"

    def asks(x):
        for _ in spmd.range(3):
            x = x + len(str(path))
        return x

    assert first(asks) == 10.0


def test_large_objects_of_packages_are_not_opened(tmp_path: Path, monkeypatch) -> None:
    """Each of 12 holds all others: there are 12! ways through them. A change is refused."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "graph.py").write_text(
        "class Node:\n    def __init__(self): self.t = 0.0\n"
        "NODES = [Node() for _ in range(12)]\n"
        "for node in NODES: node.others = [n for n in NODES if n is not node]\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    node = importlib.import_module("graph").NODES[0]

    def reads_it(x):
        n = node
        for _ in spmd.range(3):
            x = x + n.others[3].t
        return x

    def changes(x):
        n = node
        for _ in spmd.range(3):
            n.others[3].t += 0.5
        return x + n.others[3].t

    assert first(reads_it) == 1.0
    with pytest.raises(ProgramError, match="t is changed in a loop"):
        first(changes)


def test_images_of_other_rules_have_other_keys(tmp_path: Path, monkeypatch) -> None:
    """The same text in a package and in a file of the user's, under the same name of a module."""
    text = "class Clock:\n    t = 0.0\n"
    keys = []
    for folder in ("here", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_clock.py").write_text(text)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(tmp_path / folder))
            sys.modules.pop("same_clock", None)
            module = importlib.import_module("same_clock")
            keys.append(fingerprint.digest(module.Clock()))
    sys.modules.pop("same_clock", None)
    assert None not in keys and len(set(keys)) == 2

"""Do workers find the pipeline that a program holds? They run its file anew, without arguments.

In: a Pipeline that an imported module or a script has made. Out: what its file makes when it is
run here as workers run it, or a UsageError that names what is different.
Always holds: what a function adds to its own globals (a cache, a counter) is no difference.
"""

from __future__ import annotations

import dis
import functools
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from codegen.errors import InputError, UsageError
from codegen.places import is_library_file
from spmd.data.pipeline_files import load_text
from spmd.data.pipelines import Pipeline
from spmd.data.settings import FIXED

PLAIN = (int, float, complex, str, bytes, type(None), range, slice, PurePath, np.generic, np.dtype)
MOST = 10_000  # entries of one value that are compared
LONG = 1 << 24  # bytes
AS_WORKERS = "what the file makes when workers run it: as a module, without arguments"


def reloaded(pipeline: Pipeline, text: str) -> Pipeline:
    """Return the same pipeline, loaded from the text of its file. The caller closes its `own`."""
    try:
        pipelines = load_text(text, pipeline.file)
    except InputError as error:
        error.remedy = error.remedy or "workers run the file anew, without a command line"
        raise
    if pipeline.name not in pipelines:
        raise UsageError(
            f"workers do not find pipeline {pipeline.name}", place=pipeline.place,
            expected=f"a pipeline at the top level of {pipeline.file}, where workers run it",
            found=", ".join(pipelines) or "none is there: it is made in a function, or below "
            "if __name__ == '__main__':",
            remedy="make it at the top level; @data.pipeline(name=…) gives it a name of its own")
    reread = pipelines[pipeline.name]
    if difference := _difference(pipeline, reread):
        if reread.own:
            reread.own.close()
        raise UsageError(
            f"pipeline {pipeline.name} is another one here than at workers", place=pipeline.place,
            expected=AS_WORKERS, found=difference,
            remedy="write what it needs into its file, and give each variant a name of its own")
    return reread


def _difference(pipeline: Pipeline, reread: Pipeline) -> str:
    """Return in words what differs at workers; "" where no difference can be seen."""
    if pipeline.size != reread.size:
        return f"size {pipeline.size} here, {reread.size} there"
    for name in sorted(FIXED):
        here, there = getattr(pipeline.settings, name), getattr(reread.settings, name)
        if here != there:
            return f"{name}={here!r} here, {name}={there!r} there"
    if difference := PipelineComparison().functions(
            pipeline.name, pipeline.function, reread.function):
        return difference
    try:
        same = pipeline.order() == reread.order()
    except Exception:  # of a user's source: what is wrong is said at its examples
        same = True
    return "" if same else "its source has other examples here, or another order of them"


class PipelineComparison:
    """Compares what a pipeline's code reads here with what it reads where its file was run anew."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def functions(self, label: str, a: Any, b: Any) -> str:
        """Return in words how two functions of pipelines differ, or "". They may be objects that
        are called."""
        plain = self.differs(label, a, b)
        return plain or (self.differs(label, vars(a), vars(b)) if hasattr(a, "__dict__")
                         and not isinstance(a, FunctionType) else "")

    def differs(self, label: str, a: Any, b: Any) -> str:
        """Return in words how two values differ, or "". label: how the user's text names them."""
        if a is b or (id(a), id(b)) in self.seen:
            return ""
        self.seen.add((id(a), id(b)))
        if type(a).__qualname__ != type(b).__qualname__:
            return _said(label, a, b)
        return "; ".join(difference for difference in self._parts(label, a, b) if difference)

    def _parts(self, label: str, a: Any, b: Any) -> Iterator[str]:
        if type(a) is not type(b):  # each of its own copy of the user's class
            yield self.differs(type(a).__qualname__, type(a), type(b))
        if isinstance(a, Enum):
            yield "" if a.name == b.name else _said(label, a, b)
        elif isinstance(a, PLAIN):
            yield "" if a == b or (a != a and b != b) else _said(label, a, b)
        elif isinstance(a, np.ndarray):
            yield "" if _alike(a, b) else f"{label} is another array here than there"
        elif isinstance(a, tuple | list):
            grown = isinstance(a, list) and len(a) > len(b)
            yield "" if grown or len(a) == len(b) else _said(label, a, b)
            yield from (self.differs(f"{label}[{k}]", item, other)
                        for k, (item, other) in enumerate(zip(a[:MOST], b[:MOST])))
        elif isinstance(a, set | frozenset):
            yield "" if len(b) > MOST or b <= a else _said(label, a, b)
        elif type(a) is dict:  # a Counter counts, a defaultdict grows
            yield from self._entries(label, a, b)
        elif isinstance(a, Pipeline):
            yield self.functions(label, a.function, b.function)
        elif isinstance(a, FunctionType | MethodType | functools.partial):
            yield from self._called(label, a, b)
        elif isinstance(a, ModuleType):
            yield "" if _file(a) == _file(b) else f"{label} is {_file(a)} here, {_file(b)} there"
        elif isinstance(a, type):
            yield from (self.differs(f"{label}.{name}", vars(a).get(name), item)
                        for name, item in vars(b).items() if isinstance(item, FunctionType)
                        or isinstance(item, PLAIN) and not name.startswith("__"))
        elif hasattr(a, "py_func") or hasattr(a, "__wrapped__"):  # of numba, of functools
            inner = "py_func" if hasattr(a, "py_func") else "__wrapped__"
            yield self.differs(label, getattr(a, inner), getattr(b, inner, None))
        elif is_dataclass(a) or isinstance(a, Namespace | SimpleNamespace):
            yield from self._entries(f"{label}.", vars(a), vars(b))

    def _entries(self, label: str, a: dict[Any, Any], b: dict[Any, Any]) -> Iterator[str]:
        for k, (name, other) in enumerate(b.items()):
            if k == MOST:
                return
            said = f"{label}{name}" if label.endswith(".") else f"{label}[{name!r}]"
            if name in a:
                yield self.differs(said, a[name], other)
            elif isinstance(name, PLAIN):
                yield f"{said} is not here"

    def _called(self, label: str, a: Any, b: Any) -> Iterator[str]:
        if isinstance(a, functools.partial):
            yield self.differs(label, a.func, b.func)
            yield self.differs(label, [*a.args, a.keywords], [*b.args, b.keywords])
        elif isinstance(a, MethodType):
            yield self.differs(label, a.__func__, b.__func__)
        elif a.__code__ != b.__code__:
            yield f"{label}() has another text here than in its file"
        elif not is_library_file(a.__code__.co_filename):
            yield self.differs(f"a default of {label}()", [a.__defaults__, a.__kwdefaults__],
                               [b.__defaults__, b.__kwdefaults__])
            for name, cell, other in zip(a.__code__.co_freevars, a.__closure__ or (),
                                         b.__closure__ or ()):
                yield self.differs(name, _held(cell), _held(other))
            yield from self._globals(a.__code__, a.__globals__, b.__globals__)

    def _globals(self, code: CodeType, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
        """Yield the differences of the globals that code reads and does not set itself."""
        read, attributes, kept = _names(code)
        for name in sorted(read - kept):
            if name.startswith("__") or name not in a and name not in b:
                continue
            if (name in a) != (name in b):
                yield f"{name} is {'set here, and not there' if name in a else 'not set here'}"
                continue
            yield self.differs(name, a[name], b[name])
            if isinstance(a[name], ModuleType) and isinstance(b[name], ModuleType):
                mine, others = vars(a[name]), vars(b[name])
                yield from (self.differs(f"{name}.{attribute}", mine[attribute], others[attribute])
                            for attribute in sorted(attributes & mine.keys() & others.keys())
                            if mine is not others)


def _names(code: CodeType) -> tuple[set[str], set[str], set[str]]:
    """Return the globals that code reads, the attributes that it reads, and the globals that it
    sets."""
    names: tuple[set[str], set[str], set[str]] = set(), set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names[0].add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names[1].add(instruction.argval)
        elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            names[2].add(instruction.argval)
        elif isinstance(instruction.argval, CodeType):
            for mine, inner in zip(names, _names(instruction.argval)):
                mine.update(inner)
    return names


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays are equal. Only some rows of long ones are compared: they may be
    files."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.nbytes > LONG and len(a) > 64:
        rows = np.linspace(0, len(a) - 1, 64).astype(np.int64)
        a, b = a[rows], b[rows]
    return a.dtype.hasobject or a.tobytes() == b.tobytes()


def _file(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return os.path.realpath(file) if file else module.__name__


def _said(label: str, a: Any, b: Any) -> str:
    return f"{label} is {_short(a)} here, {_short(b)} there"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (*PLAIN, tuple, list)) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Pipelines in Python files: the file is run, as a module of its own, and its pipelines are found.

In: a path, or the text of a file that another machine has. Out: pipelines by name.
Always holds: a mistake in the user's file is an error with its line, whatever kind it is; what it
imports from its folder is its own.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Mapping
from types import ModuleType

from codegen.errors import InputError, OutputError, Place, SpmdError, UsageError
from codegen.suggest import nearest
from spmd.data import reading_time
from spmd.data.computing import failure
from spmd.data.own_modules import LOADED_AS, OwnModules
from spmd.data.pipelines import Pipeline
from spmd.data.source_tools import relative_to

_loading: list[str] = []  # files whose texts run just now


def load(path: str | os.PathLike[str], name: str = "") -> Pipeline:
    """Return the pipeline of a file; `name` chooses one of several.

    path may end with ":NAME". Relative paths in it begin at the folder of the file.

    Raises OutputError if the file cannot be read, InputError for a mistake in it, UsageError if
    it has no such pipeline.
    """
    file, said = file_and_name(path)
    name = name or said
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(
            f"{file} cannot be read", expected="a Python file with a pipeline",
            found=(getattr(error, "strerror", None) or str(error)).lower(),
            remedy="" if file.endswith(".py") else _address(file)) from None
    with reading_time.read_in_time(file, file, reading_time.LOAD_S,
                                   "what takes long may stand in the source or the operation"):
        pipelines = load_text(text, file)
    return select_pipeline(pipelines, file, name)


def load_beside(path: str, known: Iterable[Pipeline]) -> Pipeline:
    """Return the pipeline of a file for a run that has taken the pipelines `known`: it takes one
    text of a file, and of its modules, whoever writes to them meanwhile."""
    file, name = file_and_name(path)
    for own in [pipeline.own for pipeline in known if pipeline.own]:
        if os.path.abspath(own.file) == os.path.abspath(file):
            return select_pipeline(load_text(own.text, file, own.folder, own.texts()), file, name)
    return load(path)


def file_and_name(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return FILE.py and NAME of FILE.py:NAME; the name is "" where none stands there."""
    file, _, said = os.fspath(path).partition(".py:")
    return (file + ".py", said) if said else (os.fspath(path), "")


def _address(said: str) -> str:
    """Return how what is no file may be meant: as a pipeline that a scheduler serves."""
    name, _, address = said.rpartition("@")
    host = (address if name or "://" in address else "").rpartition("://")[2] or "HOST:PORT"
    name = name or ("NAME" if "://" in said else said)
    return f"{name}@tcp://{host}, if a scheduler there serves it"


def select_pipeline(pipelines: dict[str, Pipeline], file: str, name: str = "") -> Pipeline:
    """Return the pipeline called `name`, or the only one. Raises UsageError if there is no such
    one."""
    if name and name in pipelines:
        return pipelines[name]
    if not name and len(pipelines) == 1:
        return next(iter(pipelines.values()))
    if not pipelines:
        raise UsageError(
            f"{file} has no pipeline", expected="a function with @data.pipeline(source=…) above it",
            found="none", remedy="import spmd.data as data")
    raise UsageError(
        f"{file} has no pipeline {name!r}" if name else f"{file} has several pipelines",
        expected=", ".join(pipelines), found=name or "no name",
        remedy=f"{file}:{nearest(name, pipelines) or next(iter(pipelines))}")


def is_loading() -> bool:
    """Return whether the file of a pipeline runs just now, to find what is in it."""
    return bool(_loading)


def load_text(text: str, file: str, folder: str | os.PathLike[str] = "",
              modules: Iterable[Mapping[str, str]] | None = None) -> dict[str, Pipeline]:
    """Return all pipelines that a file's text defines, by name, without imported ones.

    file: what messages call it. folder: where relative paths in it begin, and its modules lie, if
    not beside it. modules: name, file and text of each of these, as another process has read them.
    """
    module = ModuleType(LOADED_AS)
    module.__file__ = os.path.abspath(file)
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    own = OwnModules(file, text, os.path.abspath(folder or os.path.dirname(module.__file__)),
                     modules)
    _loading.append(file)
    try:
        with relative_to(own.folder), own.running(module):
            exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
        return _pipelines_of(module, own)
    except SpmdError:
        own.close()
        raise
    except SyntaxError as error:
        own.close()
        place = Place(error.filename or file, error.lineno or 1, max((error.offset or 1) - 1, 0))
        raise InputError(f"SyntaxError: {error.msg}", place=place) from None
    except (Exception, SystemExit) as error:
        own.close()
        raised = failure(error, 0, "", Place(file, 1))
        raise InputError(
            f"the file of a pipeline raised {raised.text}", place=Place(raised.file, raised.line),
        ) from None
    finally:
        _loading.remove(file)


def _pipelines_of(module: ModuleType, own: OwnModules) -> dict[str, Pipeline]:
    mine = [v for v in module.__dict__.values() if isinstance(v, Pipeline) and v.file == own.file]
    pipelines = {p.name: p for p in mine}
    for pipeline in mine:
        pipeline.own = own
        other = pipelines[pipeline.name]
        if other is not pipeline:
            raise UsageError(
                f"{own.file} has two pipelines called {pipeline.name}", place=pipeline.place,
                expected="a name for each", also=(("the other is at", other.place),),
                remedy="@data.pipeline(name=…)")
    return pipelines

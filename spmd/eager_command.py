"""`run FILE.py --eager`: a program as plain NumPy, from files to files.

In: the options of `run`. Out: printed outputs, files.
Always holds: what the compiler alone can do is refused; the user's mistakes are shown with lines.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from codegen.errors import SpmdError, UsageError
from codegen.trace.classes import Entity
from codegen.user.named import MANY, named, roots
from spmd.arguments import read
from spmd.arrays import numpy_dtype, output_text
from spmd.faces import check_entry
from spmd.files import is_series
from spmd.files.inputs import InputArray, open_inputs
from spmd.files.outputs import OutputFile, check_overwrites, open_outputs
from spmd.files.state_files import open_state
from spmd.launch.eager_feeds import eager_feeds
from spmd.launch.eager_frames import EagerFrames
from spmd.launch.processes import Processes
from spmd.launch.saved_state import check_ending, check_has_state
from spmd.report import state_text, tree_text
from spmd.source import find_program, guarded, parameters_of

Arrays = dict[str, np.ndarray]


def command(options: argparse.Namespace, _: Processes) -> int:
    """Runs the program, or one entry of a class; its outputs are printed or saved."""
    if ".py" not in options.image:
        raise UsageError("--eager runs a program, not an image", remedy="run FILE.py --eager")
    if options.checkpoint or options.resume:
        raise UsageError("--eager keeps no checkpoints", expected="an image for --checkpoint and "
                         "--resume", remedy="leave --eager out")
    if options.check:
        raise UsageError("--check is of images; --eager runs NumPy itself",
                         expected="one of the two", remedy="leave --check out: NumPy refuses "
                         "indices out of bounds, and warns of NaN and overflow")
    series = {name: path for name, path in options.output.items() if is_series(path)}
    check_overwrites(options, series)
    for path in filter(None, (options.state, options.save_state)):
        check_ending(path)
    program = find_program(options.image)
    entries = program.methods if isinstance(program, Entity) else {}
    check_entry(program.name, entries, options.entry)
    check_has_state(program.name, bool(entries), options)
    parameters = parameters_of(program, options.set)
    inputs: dict[str, Any] = dict(_inputs(options, program, parameters))
    inputs |= {} if options.only is None else {"only": options.only}
    where = {"ranks": options.ranks or 1, "mesh": options.mesh or None}
    with nullcontext() if options.feed is None else eager_feeds(options.feed) as feeds:
        inputs |= {} if feeds is None else {"feed": feeds}
        frames = EagerFrames(series)
        result, state = guarded(lambda: _called(
            program, options, {**where, "save": frames.takers()}, parameters, inputs))
    frames.finish()
    arrays = {name or "result": np.asarray(value) for name, value in named(result)
              if value is not None}
    if state:
        files = open_outputs({}, [options.save_state], _rows(state))
        _write(files, state)
        print(state_text(len(state), options.save_state))
    rows = _rows(arrays)
    files = open_outputs({k: v for k, v in options.output.items() if k not in series},
                         options.output_all, rows)
    for text in _texts(arrays, [row[0] for row, file in zip(rows, files) if file is None]):
        print(text)
    _write(files, arrays)
    return 0


def _called(
    program: Any, options: argparse.Namespace, where: dict[str, Any], parameters: dict[str, Any],
    inputs: dict[str, Any],
) -> tuple[Any, Arrays]:
    """Call the program; return its result, and the state behind a call of an entry, if that is to
    be saved."""
    scalars = {k: v for k, v in read(options.set).items() if k not in parameters}
    if not options.entry:
        return program.eager(**where, **scalars, **parameters, **inputs), {}
    entity = program.eager(**where, **parameters)
    if options.state:
        wanted = {name: (str(x.dtype), x.shape) for name, x in entity.state().items()}
        opened = open_state(options.state, wanted, program.name)
        entity.load({name: _array(file) for name, file in opened.items()})
    result = entity.entries[options.entry](**scalars, **inputs)
    return result, entity.state() if options.save_state else {}


def _inputs(
    options: argparse.Namespace, program: Any, parameters: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    if not options.input and not options.input_all:
        return
    known = _declared(program, options.entry, parameters)
    names = None if known is None else list(known)
    for name, opened in open_inputs(options.input, options.input_all, names).items():
        if known and name in known:
            opened.convert(*known[name])
        yield name, _array(opened)


def _array(opened: InputArray) -> np.ndarray:
    dtype = numpy_dtype(opened.dtype).newbyteorder(">" if opened.swapped else "=")
    return np.ndarray(opened.shape, dtype, opened.buffer, opened.start, opened.strides)


def _declared(
    program: Any, entry: str | None, parameters: dict[str, Any]
) -> dict[str, tuple[str, int]] | None:
    """Return dtype and number of dims of the inputs of a program or an entry, from its graph; None
    where it does not build."""
    try:
        graph = program.graph(parameters)
    except SpmdError:
        return None
    mine = next((e.inputs for e in graph.entries if e.name == entry), range(len(graph.inputs)))
    return {declared.name.removeprefix(f"{entry}."): (
        declared.value.type.dtype.name, declared.value.type.ndim)
        for declared in (graph.inputs[k] for k in mine)}


def _rows(arrays: Arrays) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, str(array.dtype), array.shape) for name, array in arrays.items()]


def _write(files: list[OutputFile | None], arrays: Arrays) -> None:
    """Write files that are whole, or not there. Raises OutputError."""
    try:
        for file, (name, array) in zip(files, arrays.items()):
            if file is None:
                continue
            file.check()
            start, data = file.starts[name], array.tobytes()
            with file.attach(file.create()) as view:
                view[start : start + len(data)] = data
        for file in files:
            if file is not None and file.part:
                file.commit()
    finally:
        for file in files:
            if file is not None:
                file.discard()


def _texts(arrays: dict[str, np.ndarray], names: list[str]) -> Iterator[str]:
    for root, leaves in roots(names).items():
        leaf_types = [(str(arrays[name].dtype), arrays[name].shape) for name in leaves]
        if len(leaves) > MANY:
            yield tree_text(root, leaf_types)
        else:
            yield from (output_text(name, dtype, arrays[name])
                        for name, (dtype, _) in zip(leaves, leaf_types))

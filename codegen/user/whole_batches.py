"""What a feed is, as a user says it, and its batches, whole: for runs as plain Python and oracles.

In: specs of fields; any iterable of dicts of arrays. Out: batches of those fields.
Always holds: a batch has all of its rows; what is not there is zeros, and False in the field mask.
"""

from __future__ import annotations

import collections
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import InputError, MissingError, ProgramError, ShapeError, UsageError
from codegen.places import user_place
from codegen.short_batches import MASK, not_given
from codegen.user import named
from codegen.user.casts import may_cast, range_text
from codegen.user.numbers import element_type
from codegen.user.spec import Spec, is_tree

STEP = re.compile(r"[A-Za-z0-9_]+")  # of the path of a field
Array = np.ndarray[Any, Any]


def declared_fields(name: Any, fields: Mapping[str, Any]) -> dict[str, Spec]:
    """Return the fields of a feed, those of trees by their paths, as batch.x. Raises UsageError for
    what cannot be one."""
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError("the name of a feed must be an identifier", place=user_place(),
                         expected='spmd.feed("train", x=spmd.spec(…))', found=repr(name),
                         remedy="fields have names: x=spmd.spec(shape, dtype)")
    if not fields:
        raise UsageError(f'feed "{name}" has no fields', place=user_place(),
                         expected="x=spmd.spec((batch, 64), np.float32), for each array of a batch",
                         found="none")
    specs: dict[str, Spec] = {}
    for field, tree in fields.items():
        if field.startswith("_"):
            raise UsageError(f'feed "{name}": a field is called {field}', place=user_place(),
                             expected="a name that does not begin with an underscore",
                             found=field)
        leaves = [*named.named(tree, field)] if is_tree(tree) else [(field, tree)]
        for leaf, spec in leaves or [(field, tree)]:
            if not isinstance(spec, Spec):
                raise UsageError(
                    f'field "{leaf}" of feed "{name}" is no spec', place=user_place(),
                    expected=f"{field}=spmd.spec(shape, dtype), or a tree of them",
                    found=f"{leaf}: {type(spec).__name__}")
            if leaf in specs or not all(map(STEP.fullmatch, leaf.split("."))):
                raise UsageError(f'feed "{name}": "{leaf}" cannot be the name of a field',
                                 place=user_place(), found=repr(leaf),
                                 expected="keys of letters, digits and _, each once")
            if spec.default is not None:
                raise UsageError(
                    f'field "{leaf}" of feed "{name}" has a default', place=user_place(),
                    expected="a shape, a dtype and perhaps a layout: batches are given",
                    found="default=", remedy="leave it out")
            specs[leaf] = spec
    return specs


def check_batch(name: str, shapes: Mapping[str, Sequence[Any]], kinds: Mapping[str, Any]) -> None:
    """Raises ShapeError and DtypeError unless all fields begin with one dim, the batch."""
    for field, shape in shapes.items():
        if not len(shape):
            raise ShapeError(f'field "{field}" of feed "{name}" has no dims', place=user_place(),
                             expected="the batch as dim 0: spmd.spec((batch, …), dtype)",
                             found="()", remedy="a number for each example has shape (batch,)")
    first, *others = shapes
    for field in others:
        if shapes[field][0] != shapes[first][0]:
            raise ShapeError(
                f'the fields of feed "{name}" have different batches', place=user_place(),
                expected=f"dim 0 of {field} as of {first}: {shapes[first][0]}",
                found=str(shapes[field][0]),
                remedy="two feeds may have batches of different extents")
    if MASK in shapes and (len(shapes[MASK]) != 1 or kinds[MASK].name != "bool"):
        raise ShapeError(f'field "mask" of feed "{name}" says which examples are there',
                         place=user_place(), found=f"{kinds[MASK].name}, of {len(shapes[MASK])} "
                         "dims", expected="mask=spmd.spec((batch,), np.bool_)",
                         remedy="another name, if it is something else")


def batch_maker(feed: str, fields: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that makes a batch of arrays by the paths of fields: a named tuple, with
    trees where they were declared."""
    names = tuple(fields)

    def missing(self: Any, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MissingError(f'a batch of feed "{feed}" has no field "{name}"', place=user_place(),
                           expected=f"one of {', '.join(names)}", found=name,
                           remedy=f"declare it: spmd.feed({name}=spmd.spec(shape, dtype))")

    base = collections.namedtuple("Batch", names)  # type: ignore[misc]
    batch_type = type("Batch", (base,), {"__getattr__": missing, "__slots__": ()})
    return lambda values: batch_type(**named.renamed(lambda path, _: values[path], dict(fields)))


def declared_inside() -> ProgramError:
    return ProgramError("spmd.feed stands inside a shard_map", place=user_place(),
                        expected="feeds declared in the program, outside shard_map",
                        found="one rank's view",
                        remedy="declare it before: feed = spmd.feed(…); feed.next() inside gives a "
                        "rank its own part")


def sent_fields(feed: str, values: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of feed.send by name, the arrays of trees by their paths. Raises
    UsageError."""
    if len(values) > 1 or (values and named) or not (values or named):
        raise UsageError(f'feed "{feed}": send takes one array or tree, or several by name',
                         place=user_place(), expected="feed.send(action), feed.send(a=x, b=y)",
                         found=f"{len(values)} without a name, {len(named)} with one")
    trees = {"values": values[0]} if values else named
    return dict(leaf for name, tree in trees.items() for leaf in _sent_leaves(feed, name, tree))


def _sent_leaves(feed: str, name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree. Keys of dicts are names, as told() tells these from lists."""
    inside = None if _is_of_numbers(tree) else named.held(tree)
    if inside is None:
        yield name, tree
        return
    if not inside:
        raise UsageError(f'feed "{feed}": send is given nothing', place=user_place(),
                         expected=f"arrays in {name}", found=f"{type(tree).__name__} of nothing")
    for key, item in inside:
        if isinstance(tree, dict) and not (isinstance(key, str) and key.isidentifier()):
            raise UsageError(f'feed "{feed}": {key!r} cannot be the name of what is sent',
                             place=user_place(), expected="dicts whose keys are identifiers",
                             found=f"{key!r} in {name}")
        yield from _sent_leaves(feed, named.below(name, key), item)


def _is_of_numbers(value: Any) -> bool:
    """Return whether a list or tuple is an array: it holds Python numbers, or such lists."""
    return type(value) in (list, tuple) and len(value) > 0 and all(
        isinstance(x, (int, float, complex, np.generic)) or _is_of_numbers(x) for x in value)


def told(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was sent as those who make batches read it: dicts with the trees that were sent,
    in which tuples stand for lists and tuples, and dicts for all else."""
    trees: dict[str, Any] = {}
    for path, value in values.items():
        *steps, last = path.split(".")
        inside = trees
        for step in steps:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return {name: _with_tuples(tree) for name, tree in trees.items()}


def _with_tuples(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    items = {key: _with_tuples(item) for key, item in tree.items()}
    return tuple(items[str(k)] for k in range(len(items))) if "0" in items else items


def check_sent(feed: str, field: str, shape: Sequence[Any], batch: Any) -> None:
    """Raises ShapeError unless there is a row for each place of a batch."""
    if not len(shape) or shape[0] != batch:
        extents = ", ".join(map(str, shape))
        raise ShapeError(f'what is sent to feed "{feed}" has another shape', place=user_place(),
                         expected=f"{field} with a row for each example: ({batch}, …)",
                         found=f"({extents}{',' * (len(shape) == 1)})",
                         remedy="np.broadcast_to(value, (batch,)) sends the same to all")


def unanswerable(feed: str) -> InputError:
    return InputError(f'feed "{feed}": send() needs a batch that next() has taken, and once for '
                      "each", place=user_place(), expected="feed.send behind each feed.next()",
                      found="no batch since the last send", remedy="b = feed.next() before it")


def untold(feed: str) -> UsageError:
    return UsageError(f'the program sends values back to feed "{feed}"', place=user_place(),
                      expected="a pipeline of data.environments, or a generator: values = yield "
                      "{…}, a batch", found="batches whose maker is told nothing",
                      remedy="leave out feed.send, or a generator in the place of a list")


# ---- whole batches -------------------------------------------------------------------------------


def _batches(source: Any, fields: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return an iterable of batches: itself, what a function gives, or a pipeline's `batches`."""
    if isinstance(source, (str, os.PathLike)):
        raise InputError("an eager run is given the file of a pipeline", place=user_place(),
                         expected="the pipeline itself, or dicts of arrays",
                         found=os.fspath(source),
                         remedy=f"feed=spmd.data.load({os.fspath(source)!r}), "
                         f"or spmd run FILE.py --eager --feed {os.fspath(source)}")
    if callable(batches := getattr(source, "batches", None)):
        batch = next(iter(fields.values()))[0][0]
        masks = getattr(source, "masks", False)
        return batches(batch, {k: (shape[1:], dtype) for k, (shape, dtype) in fields.items()
                               if k != MASK or masks})
    return source() if callable(source) else source


class Batches:
    """The batches that an iterable of dicts gives, by their numbers. fields: shape and NumPy's
    dtype of each. keeps: each may be taken again; else one that was taken is let go."""

    def __init__(self, feed: str, source: Any, fields: Mapping[str, tuple[Any, Any]],
                 keeps: bool = False) -> None:
        self.feed, self.fields, self.keeps = feed, dict(fields), keeps
        self.source: Iterator[Any] = iter(_batches(source, self.fields))
        self.batches: dict[int, dict[str, Array]] = {}
        self.count = 0  # that were made
        self.ended = False
        self.answered = 0  # batches behind which values were sent
        self._tells: Callable[..., Any] | None = (
            None if isinstance(source, Generator) else getattr(source, "send", None))
        self._reply: dict[str, Any] | None = None  # that a generator has not been told yet

    def more(self, number: int) -> bool:
        """Return whether there is a batch of this number."""
        while self.count <= number and not self.ended:
            values = self._next()
            batch = None if values is None else self._whole(values)
            if batch is None:
                self.ended = True
            else:
                self.batches[self.count] = batch
                self.count += 1
        return self.count > number

    def _next(self) -> Any:
        if self._reply is None:
            return next(self.source, None)
        reply, self._reply = self._reply, None
        try:
            return self.source.send(reply)  # type: ignore[attr-defined]
        except StopIteration:
            return None

    def answer(self, taken: int, values: dict[str, Array]) -> None:
        """Hand what is sent behind the last of `taken` batches to the maker of that batch. Raises
        InputError without such a batch, UsageError where nobody takes it."""
        if taken == self.answered:
            raise unanswerable(self.feed)
        self.answered = taken
        values = told(values)
        if callable(self._tells):
            batch = next(iter(self.fields.values()))[0][0]
            self._tells((taken - 1) * batch, values)
        elif isinstance(self.source, Generator):
            self._reply = values
        else:
            raise untold(self.feed)

    def take(self, number: int) -> dict[str, Array]:
        """Return the batch of this number. Raises InputError where the stream has ended."""
        if not self.more(number):
            raise InputError(f'feed "{self.feed}" has no more batches', place=user_place(),
                             expected=f"a batch number {number}, counted from 0",
                             found=f"{self.count} batches",
                             remedy="while feed.more(): … ends with the stream")
        return self.batches[number] if self.keeps else self.batches.pop(number)

    def _whole(self, values: Any) -> dict[str, Array] | None:
        """Return all rows of it; None of one that is not full, where no mask says so."""
        if not isinstance(values, Mapping):
            raise InputError(f'feed "{self.feed}" is given something else than batches',
                             expected="dicts of arrays, by the names of fields",
                             found=type(values).__name__)
        values = named.by_path(values, self.fields, f'feed "{self.feed}": field')
        arrays = {k: dtypes.as_numpy(x) for k, x in values.items()}
        wanted = [f for f in self.fields if f != MASK or MASK in arrays]
        if unknown := [k for k in (*arrays, *wanted) if k not in self.fields or k not in arrays]:
            raise InputError(f'a batch of feed "{self.feed}" has other fields than are declared',
                             expected=", ".join(self.fields), found=", ".join(arrays),
                             remedy=f"give {unknown[0]} too" if unknown[0] in self.fields else
                             f"leave out {unknown[0]}, or declare it")
        for name in wanted:
            dtype = np.dtype(self.fields[name][1])
            if not may_cast(arrays[name], dtype):
                raise InputError(f'field "{name}" of feed "{self.feed}" has another dtype',
                                 expected=str(dtype),
                                 found=f"{arrays[name].dtype}{range_text(arrays[name])}",
                                 remedy=f"array.astype({str(dtype)!r})")
        rows = len(arrays[wanted[0]]) if arrays[wanted[0]].ndim else 0
        batch = next(iter(self.fields.values()))[0][0]
        for name in wanted:
            shape, dtype = self.fields[name]
            if arrays[name].shape != (rows, *shape[1:]) or rows > batch:
                raise InputError(f'field "{name}" of feed "{self.feed}" has another shape',
                                 expected=f"{dtype}{list(shape)}",
                                 found=f"{arrays[name].dtype}{list(arrays[name].shape)}")
        if rows < batch and MASK not in self.fields:
            print("spmd: " + not_given(f'feed "{self.feed}"', rows, batch), file=sys.stderr)
            return None
        arrays.setdefault(MASK, np.ones(rows, bool))
        padded = {}
        for name, (shape, dtype) in self.fields.items():
            padded[name] = np.zeros(shape, dtype)
            padded[name][:rows] = arrays[name].astype(dtype)
        return padded


def streams_of(source: Any, fields: Mapping[str, Mapping[str, tuple[Any, Any]]]) -> dict[
    str, Batches]:
    """Return the batches of each feed, by its name. source: an iterable for the only feed, or a
    dict of them by feed. Raises UsageError and InputError."""
    several = source if isinstance(source, Mapping) else dict.fromkeys(fields, source)
    if source is None:
        several = {}
    if unknown := [name for name in several if name not in fields]:
        raise UsageError(f'the program has no feed "{unknown[0]}"',
                         expected=", ".join(fields) or "none", found=unknown[0])
    if missing := [name for name in fields if name not in several]:
        raise InputError(f'feed "{missing[0]}" is not given',
                         expected="an iterable of dicts of arrays, a batch each",
                         remedy=f"feed={{{missing[0]!r}: batches}}")
    if len(fields) > 1 and several is not source:
        raise UsageError(f"the program has {len(fields)} feeds", expected="a dict by their names",
                         found=type(source).__name__,
                         remedy="feed={" + ", ".join(f'"{f}": …' for f in fields) + "}")
    return {name: Batches(name, several[name], declared, keeps=True)  # each rank takes it
            for name, declared in fields.items()}


def numpy_dtype(dtype: Any) -> Any:
    return dtypes.numpy_dtype(element_type(dtype))

"""Examples stacked to arrays: what a pipeline gives is held against what is declared, then cast.

In: dicts of values, one per example or one per batch. Out: Stacked arrays, and Failures with
position, example, file and line.
Always holds: a row that is not there is zeros; a value is changed only as its cast allows.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from codegen.errors import EnvironmentFault, InputError, Place, SpmdError
from codegen.short_batches import MASK
from codegen.user.casts import is_masked, may_cast, range_text
from codegen.user.named import by_path, held, is_in, of_tree
from spmd.data.source_tools import ChangedFile, SourceFailed

Specs = dict[str, tuple[tuple[int, ...], np.dtype]]

MOST_HELD = 16  # arrays of a list that may be a tree, in the first example
COLOURS = (1, 3, 4)  # as a last dim: of a picture

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))


# What is raised for a mistake of a program: every other example fails too.
MISTAKES = ("AttributeError", "NameError", "NotImplementedError", "TypeError", "UnboundLocalError")


def advice(text: str) -> str:
    """Return what to try where an example failed; "" where the text of the failure says it itself,
    or no other example is better."""
    if "try:  " in text or text.partition(":")[0] in MISTAKES:
        return ""
    if "its timeout" in text:
        return "timeout=300 in @data.pipeline if it needs so long; on_error='skip' if others do not"
    return "if other examples are right, on_error='skip' goes on without those that fail"


@dataclass(frozen=True)
class Failure:
    """An example that could not be computed. fatal: the stream cannot go on without it either.

    position: in the stream. example: its name, such as a file. file, line: the user's. text: what
    was raised, or what was expected and found.
    """

    position: int
    example: str
    file: str
    line: int
    text: str
    fatal: bool = False

    def __str__(self) -> str:
        """Return the line by which a run says that it skips the example."""
        return f"{self.example} ({self.file}:{self.line}): {self.text}"

    def error(self, pipeline: str) -> InputError:
        """Return the error that ends a run."""
        return InputError(
            f"pipeline {pipeline} failed at position {self.position}, {self.example}\n"
            f"  {self.text}",
            place=Place(self.file, self.line) if self.file else None,
            remedy="" if self.fatal else advice(self.text),
        )


@dataclass
class Stacked:
    """Examples of the positions first, first + 1, …: a row of every array for each.

    there: which rows have an example. total: how many positions the stream has, once known.
    """

    first: int
    arrays: dict[str, np.ndarray]
    there: np.ndarray
    failures: list[Failure] = field(default_factory=list)
    total: int | None = None


class Misfit(Exception):
    """Raised for a value that is not what is declared."""


class StackedRows:
    """Rows that are filled one after the other, or many at once.

    rows_of: of an array of `out`, what single rows are written to; the array itself if None.
    """

    def __init__(
        self, count: int, specs: Specs | None, out: Mapping[str, np.ndarray] | None, whose: str,
        rows_of: Callable[[np.ndarray], Any] | None = None,
    ) -> None:
        self.count, self.specs, self._whose, self._rows_of = count, specs, whose, rows_of
        self._there = bytearray(count)
        self._out = out
        self.arrays: dict[str, np.ndarray] = {}
        self._rows: dict[str, Any] = {}
        if specs:
            self._make(specs)

    @property
    def there(self) -> np.ndarray:
        """Return a mask that is True for each row that has an example."""
        return np.frombuffer(self._there, np.bool_)

    def _make(self, specs: Specs) -> None:
        if self._out is None:
            self.arrays = self._rows = {name: np.empty((self.count, *shape), dtype)
                                        for name, (shape, dtype) in specs.items()}
            return
        for name, (shape, dtype) in specs.items():
            a = self._out.get(name)
            if a is None or a.shape != (self.count, *shape) or a.dtype != dtype:
                raise ValueError(
                    f"out[{name!r}]: expected {dtype} {(self.count, *shape)}, found "
                    + (f"{a.dtype} {a.shape}" if a is not None else "nothing"))
        self.arrays = {name: self._out[name] for name in specs}
        self._rows = self.arrays if self._rows_of is None else {
            name: self._rows_of(a) for name, a in self.arrays.items()}

    def put(self, row: int, result: Any) -> None:
        """Put one example into a row. Misfit if it is not as declared."""
        if type(result) is not dict or self.specs is None or result.keys() != self.specs.keys():
            result = self._named(result)
            if self.specs is None:
                self._begin({name: np.asarray(v) for name, v in result.items()})
            assert self.specs is not None
            self._same_names(result)
        for name, (shape, dtype) in self.specs.items():
            value = result[name]
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                value = fit(name, value, shape, dtype, self._whose)
            self._rows[name][row] = value  # finish() makes zeros of it if another does not fit
        self._there[row] = True

    def put_many(self, rows: slice, results: Mapping[str, Any], skip: int, size: int) -> None:
        """Put rows skip, skip + 1, … of what a function of a batch of `size` examples gave."""
        arrays = {name: plain(name, v) for name, v in self._named(results).items()}
        for name, a in arrays.items():
            if a.shape[:1] != (size,):
                raise Misfit(f"field {name!r} of a batch has other rows than the batch\n"
                             f"expected: {size} rows\nfound:    shape {a.shape}\n"
                             "try:      a row for each example; source.where(…) leaves some out "
                             "before they come to the function")
        if self.specs is None:
            self._begin({name: a[0] for name, a in arrays.items()})
        assert self.specs is not None
        self._same_names(arrays)
        count = rows.stop - rows.start
        fitted = {}
        for name, (shape, dtype) in self.specs.items():
            part = arrays[name][skip : skip + count]
            fitted[name] = fit(name, part, (count, *shape), dtype, self._whose)
        for name, value in fitted.items():
            self._rows[name][rows] = value
        self._there[rows] = bytes([True]) * count

    def _begin(self, first: dict[str, np.ndarray]) -> None:
        """Declare the fields by the first example, where nobody else has."""
        for name, a in first.items():
            if a.dtype.hasobject or a.dtype.kind in "USmM":
                raise Misfit(
                    f"field {name!r} is no array of numbers\nexpected: numbers\n"
                    f"found:    {a.dtype} {a.shape}\ntry:      "
                    + ("data.text.fixed_bytes(text, length) makes numbers of a text"
                       if a.dtype.kind in "US" else "a number where there is none, such as -1"
                       if None in a.ravel() else "numbers, or arrays of them"))
        self.specs = {name: (a.shape, a.dtype) for name, a in first.items()}
        self._make(self.specs)

    def _named(self, result: Any) -> Mapping[str, Any]:
        if (type(result) is not dict and not isinstance(result, Mapping)) or not result:
            raise Misfit(f"the pipeline returned no fields\nexpected: a dict, such as {{'x': …}}\n"
                         f"found:    {kind_of(result)}\n"
                         f"try:      return {{'{next(iter(self.specs or 'x'))}': …}}")
        if MASK in result:
            raise Misfit("the field 'mask' says which places of a batch have an example\n"
                         "expected: a field of another name\nfound:    'mask'\n"
                         "try:      leave it out: it is filled by whoever stacks the examples")
        if self.specs is None:
            return dict(_in_dicts(result))
        try:
            flat: Mapping[str, Any] = by_path(result, self.specs, "field")
        except InputError as error:
            raise Misfit(f"{error.message}\nexpected: {error.expected}\n"
                         f"found:    {error.found}") from None
        return flat

    def _same_names(self, result: Mapping[str, Any]) -> None:
        assert self.specs is not None
        if result.keys() != self.specs.keys():
            less = [name for name in self.specs if name not in result]
            more = [name for name in result if name not in self.specs]
            remedy = (f"call {more[0]!r} {less[0]!r}, if they are the same" if less and more else
                      f"return {_and(less)} too" if less else
                      f"leave out {_and(more)}, or declare {'them' if more[1:] else 'it'} in "
                      "spmd.feed")
            raise Misfit(f"the pipeline returned other fields than {self._whose}\n"
                         f"expected: {', '.join(self.specs)}\nfound:    {', '.join(result)}\n"
                         f"try:      {remedy}")

    def finish(self) -> None:
        """Fill rows that nothing was put into with zeros."""
        if False in self._there:
            for a in self.arrays.values():
                a[~self.there] = np.zeros((), a.dtype)


class FirstExample(StackedRows):
    """One example, before a program has said what is a tree: what a list or tuple holds is there by
    its path, and so is itself where it is an array."""

    def __init__(self) -> None:
        super().__init__(1, None, None, "the first example")
        self._size: int | None = None

    def put_many(self, rows: slice, results: Mapping[str, Any], skip: int, size: int) -> None:
        self._size = size
        super().put_many(rows, results, skip, size)

    def _named(self, result: Any) -> Mapping[str, Any]:
        named = super()._named(result)
        return named if self.specs else dict(
            form for name, value in named.items() for form in self._forms(name, value))

    def _forms(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        inside = held(value) or []
        below = [form for key, item in inside[:MOST_HELD + 1]
                 for form in self._forms(f"{name}.{key}", item)]
        if len(below) > MOST_HELD or not all(self._has_rows(np.shape(v)) for _, v in below):
            below = []
        try:
            whole = plain(name, value)
        except ValueError:  # arrays of several shapes
            whole = None
        if not below or (whole is not None and not whole.dtype.hasobject
                         and self._has_rows(whole.shape)):
            yield name, value
        yield from below

    def _has_rows(self, shape: tuple[int, ...]) -> bool:
        return self._size is None or shape[:1] == (self._size,)


def comparable(found_forms: Mapping[str, Any], declared: Mapping[str, Any]
               ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return, of what FirstExample found, those forms of lists that a program with such fields
    means; and the fields, without those of lists of which it found only the array."""
    forms = [name for name in found_forms if name in declared or not of_tree(name, declared)]
    arrays = [name for name in found_forms if name not in forms and not of_tree(name, found_forms)]
    return ({name: found_forms[name] for name in forms
             if name in declared or not any(is_in(name, other) for other in forms)},
            {name: spec for name, spec in declared.items()
             if not any(is_in(name, array) for array in arrays)})


def _in_dicts(result: Mapping[Any, Any], path: str = "") -> Iterator[tuple[Any, Any]]:
    """Yield the values of dicts in dicts, by their paths: before anybody has declared what is a
    tree."""
    for key, value in result.items():
        name = f"{path}.{key}" if path else key
        if type(value) is dict and value:
            yield from _in_dicts(value, str(name))
        else:
            yield name, value


def kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array, {value.dtype} {value.shape}"
    return "nothing (None)" if value is None else type(value).__name__


def specs_of(fields: Mapping[str, tuple[Any, Any]] | None) -> Specs | None:
    """Return fields as an image declares them, the shapes without the batch, without the mask."""
    if fields is None:
        return None
    return {name: (tuple(shape), dtype_of(dtype)) for name, (shape, dtype) in fields.items()
            if name != MASK}


def dtype_of(dtype: Any) -> np.dtype:
    """Return a dtype by its name too; those that NumPy does not have come from ml_dtypes."""
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(getattr(import_module("ml_dtypes"), str(dtype)))


# ---- casts


def plain(name: str, value: Any) -> np.ndarray:
    """Return a value as an array. Misfit for one that hides some of its elements."""
    if is_masked(value):
        raise Misfit(f"field {name!r} has masked elements\nexpected: an array without a mask\n"
                     f"found:    {value.mask.sum()} of {value.size} are masked\n"
                     "try:      .filled(0), or what else should stand there")
    return np.asarray(value)


def fit(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype, whose: str) -> np.ndarray:
    """Return a value as an array of this shape, which may be cast to this dtype. Misfit if not."""
    try:
        a = plain(name, value)
    except ValueError as error:
        raise Misfit(f"field {name!r} is no array\nexpected: {dtype} {shape}\n"
                     f"found:    {error}\n"
                     "try:      rows that are equally long: data.pad_or_cut(…)") from None
    declared = whose.endswith("declares")  # else it is what another example has
    if a.shape != shape:
        raise Misfit(f"field {name!r} has another shape than {whose}\n"
                     f"expected: {dtype} {shape}\nfound:    {a.dtype} {a.shape}\n"
                     f"try:      {_of_shape(a.shape, shape, declared)}")
    if a.size and not may_cast(a, dtype):
        raise Misfit(f"field {name!r} has another dtype than {whose}, to which it is not cast\n"
                     f"expected: {dtype} {shape}\nfound:    {a.dtype} {a.shape}{range_text(a)}\n"
                     f"try:      {_of_dtype(a.dtype, dtype, declared)}")
    return a


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(map(repr, names[:-1])), repr(names[-1])]))


def _of_dtype(actual: np.dtype, wanted: np.dtype, declared: bool) -> str:
    if np.issubdtype(actual, np.floating) and np.issubdtype(wanted, np.integer):
        return (f"declare np.{actual} in spmd.feed; or " * declared
                + f".astype(np.{wanted}), which cuts off what is behind the point")
    return f".astype(np.{wanted}), if that is what you mean"


def _of_shape(actual: tuple[int, ...], wanted: tuple[int, ...], declared: bool) -> str:
    """Return what turns an array of the one shape into one of the other."""
    if len(actual) == len(wanted) == 3 and actual[2:] == wanted[2:] and wanted[2] in COLOURS:
        return (f"data.image.resize(picture, {wanted[:2]}) makes all equally large"
                + f"; or declare {actual} in spmd.feed" * declared)
    if actual and len(actual) == len(wanted) and actual[1:] == wanted[1:]:
        return f"data.pad_or_cut(…, {wanted[0]}) makes all equally long"
    return "an array of that shape for each example, or another shape in spmd.feed(…)"


# ---- what was raised, and where


def failure(
    error: BaseException, position: int, example: str, place: Place, fatal: bool = False
) -> Failure:
    """Return the Failure of what an operation raised, with the user's innermost line, in the
    pipeline's file if it can be.

    place: of the pipeline, for what no line of the user raises.
    """
    if isinstance(error, Misfit):
        text = str(error).replace("\n", "\n  ")
        return Failure(position, example, place.file, place.line, text, fatal)
    # No other example is better.
    fatal = fatal or isinstance(error, EnvironmentFault | ImportError | ChangedFile)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if f.filename == place.file] or [
        f for f in frames if not _is_library(f.filename)]
    file, line = (mine[-1].filename, mine[-1].lineno) if mine else (place.file, place.line)
    if isinstance(error, SpmdError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {_said(error)}".removesuffix(": ")
    if isinstance(error, ModuleNotFoundError) and not error.path:  # else one that did not travel
        text += (f"\ntry:      install it where workers run: {sys.executable} -m pip install …, on "
                 f"{platform.node()}")
    return Failure(position, example, file, line or 0, text.replace("\n", "\n  "), fatal)


def source_failure(error: BaseException, pipeline: str, place: Place) -> SourceFailed:
    """Return the error for what a source raised that was asked how many examples it has, or which
    they are."""
    raised = failure(error, 0, "", place)
    return SourceFailed(
        f"the source of pipeline {pipeline} does not say how many examples it has, or which",
        place=Place(raised.file, raised.line), expected="source.length() and source.digest()",
        found=raised.text, remedy="source.length() in Python raises the same")


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:  # of a class whose own text fails
        return f"its text cannot be had: {type(another).__name__}"


def _is_library(file: str) -> bool:
    path = os.path.abspath(file)
    folders = (_OURS, *_LIBRARIES)
    return file.startswith("<") or path.startswith(tuple(f + os.sep for f in folders))

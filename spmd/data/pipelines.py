"""Pipelines: a function of one example, or of a batch, with its source and its settings.

In: `@data.pipeline(source=…)` on a function. Out: a Pipeline, which computes the examples of any
positions of its stream as stacked arrays.
Always holds: what is computed follows from pipeline, seed and position, however work is divided.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np

from codegen.errors import InputError, Place, SpmdError, UsageError, shown
from codegen.short_batches import MASK, check_holes, not_given
from spmd.data.computing import (
    Failure,
    FirstExample,
    Misfit,
    Specs,
    Stacked,
    StackedRows,
    failure,
    plain,
    source_failure,
    specs_of,
)
from spmd.data.drawing import Drawn, EndOfStream, drawn
from spmd.data.fork_guard import in_one_process
from spmd.data.own_modules import OwnModules
from spmd.data.permutations import Generators
from spmd.data.settings import Settings, read
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import Digest, caller, made_once

NAME = re.compile(r"[A-Za-z0-9_.+-]{1,128}")  # as it stands on the wire and in FILE.py:NAME
_MOST_SAID = 10  # skipped examples that are named one by one
Watch = Callable[[int], None]


class Pipeline:
    """A pipeline, which workers compute: `data.pipeline` and `data.batched` make one.

    Called as a function, it is the function that it was made of, so that pipelines can use each
    other's. name, file and line say where it stands; `settings` are those of the decorator.
    """

    masks = True  # its batches have the field mask, where one is declared

    def __init__(
        self, function: Callable[..., Any], source: ExampleSource, settings: Settings,
        size: int = 0, name: str = "",
    ) -> None:
        code = _code(function)
        self.function, self.source, self.settings, self.size = function, source, settings, size
        plain = getattr(function, "__name__", type(function).__name__)
        self.name = name or plain
        self.place = Place(code.co_filename, code.co_firstlineno, function=plain)
        self.file, self.line = self.place.file, self.place.line
        self.__doc__, self.__name__ = function.__doc__, plain
        self._random = _takes_random(function, self.place)
        self._drawn: Callable[[], Drawn] = made_once(
            lambda: self._of_source(lambda: drawn(source, settings)))
        self._generators = Generators(settings.seed)
        self._order: Callable[[], str] = made_once(self._order_of)
        self._specs: Specs | None = None
        self.own: OwnModules | None = None  # of one whose file was run to find it
        self.when_full: Callable[[], None] | None = None  # called where memory is used up
        self._last: tuple[int, int, Any] | None = None  # a batch that was computed: of parts of it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<pipeline {self.name} at {self.place}>"

    # ---- how much there is

    def length(self) -> int | None:
        """Return the number of examples of an epoch; None if only reading all of them tells."""
        return self._of_source(self.source.length)

    def _of_source(self, ask: Callable[[], Any]) -> Any:
        """Return what the source says of itself. SourceFailed, with the user's line, if it
        raises."""
        try:
            return ask()
        except SpmdError:
            raise
        except (Exception, SystemExit) as error:
            raise source_failure(error, self.name, self.place) from error

    def total(self, batch: int = 1) -> int | None:
        """Return the number of batches of the stream; None if endless, or not known yet."""
        n = self._drawn().total()
        return None if n is None else -(-n // batch)

    def digest(self) -> str:
        """Return a hash of source and settings: equal hashes mean equal examples."""
        s = self.settings
        order = (s.sampling, s.seed, s.epochs, s.shuffle, self.size)
        return Digest("pipeline").add(self._of_source(self.source.digest), *order).text()

    def order(self) -> str:
        """Return a hash that is equal where pipelines have the same example at each position:
        epochs may differ, and what is computed of an example, but not source, sampling, seed and
        order."""
        return self._order()

    def _order_of(self) -> str:
        s = self.settings
        order = (s.sampling, s.seed, s.shuffle, self.size)
        drawn = self._drawn().digest()
        return Digest("order").add(self._of_source(self.source.digest), drawn, *order).text()

    def specs(self) -> Specs:
        """Return shape and dtype of each field of the first example, which is computed for that."""
        if self._specs is None:
            for failed in self.compute(0, 1).failures:  # of one that would be skipped, too
                raise failed.error(self.name)
        assert self._specs is not None
        return self._specs

    def first(self) -> dict[str, np.ndarray]:
        """Compute the first example, and return its fields."""
        table = FirstExample()
        with self.own.active() if self.own else nullcontext():
            failures = list((self._by_batches if self.size else self._one_by_one)(
                0, table, _nobody))
        for failed in failures:  # of one that would be skipped, too
            raise failed.error(self.name)
        if not table.there[0]:
            raise InputError(f"pipeline {self.name} has no example", place=self.place)
        return {name: array[0] for name, array in table.arrays.items()}

    def example_name(self, position: int) -> str:
        """Return the name of the example at a position for messages: a file, a row, a line."""
        draw = self._drawn()
        return draw.name(draw.keys(position, 1)[0])

    def namer(self, first: int, count: int) -> Callable[[int], str]:
        """Return a function that names the examples at many positions, from `first` on, at little
        cost for each."""
        draw = self._drawn()
        keys = draw.keys(first, max(count, 1))

        def name(position: int) -> str:
            inside = 0 <= position - first < len(keys)
            return draw.name(keys[position - first]) if inside else self.example_name(position)

        return name

    # ---- actions, for environments

    @property
    def acts(self) -> bool:
        """Return whether the pipeline needs actions, which a program sends back with
        `feed.send`."""
        return self._of_source(self.source.found_by) == "acting"

    def ready(self, first: int, count: int) -> bool:
        """Return whether these positions can be computed now: not before the actions that lead to
        them."""
        return not self.acts or self.source.ready(first, count)  # type: ignore[attr-defined]

    def send(self, first: int, actions: Mapping[str, Any]) -> None:
        """Take rows of actions, also in trees, for what positions first, first + 1, … gave."""
        if not self.acts:
            raise UsageError(
                f"pipeline {self.name} takes no actions", place=self.place,
                expected="source=data.environments(…)", found=type(self.source).__name__.strip("_"),
                remedy="leave out feed.send in the program")
        self.source.send(first, actions)  # type: ignore[attr-defined]

    def check_batch(self, batch: int) -> None:
        """Raise UsageError for a feed of another batch than there are environments: each place is
        one."""
        count = getattr(self.source, "count", batch)
        if self.acts and count != batch:
            raise UsageError(
                f"pipeline {self.name} has another number of environments than places in a batch",
                place=self.place, expected=f"a batch of {count}, or data.environments(…, {batch})",
                found=f"{count} environments, a batch of {batch}")

    # ---- computing

    def compute(
        self, first: int, count: int, fields: Mapping[str, tuple[Any, Any]] | None = None,
        out: Mapping[str, np.ndarray] | None = None, watch: Watch | None = None, *,
        rows_of: Callable[[np.ndarray], Any] | None = None, raises: bool = True,
    ) -> Stacked:
        """Compute the examples of the positions first to first + count - 1, a row for each.

        fields: name -> (shape of one example, dtype), as an image declares them; without them the
        first example says what the others must be. out: arrays of `count` rows to fill; rows_of:
        of one of them, what takes its rows: `rows[k] = value`. watch is called with each position
        before its example is computed.

        Raises InputError for an example that fails. With on_error="skip", or raises=False, such
        failures are part of what is returned; where they are not skipped the first one ends it.
        """
        with self.own.active() if self.own else nullcontext():
            stacked = self._computed(first, count, fields, out, watch, rows_of)
        for failed in stacked.failures if raises else ():
            if failed.fatal or self.settings.on_error == "stop":
                raise failed.error(self.name)
        return stacked

    def _computed(
        self, first: int, count: int, fields: Mapping[str, tuple[Any, Any]] | None,
        out: Mapping[str, np.ndarray] | None, watch: Watch | None,
        rows_of: Callable[[np.ndarray], Any] | None,
    ) -> Stacked:
        specs = specs_of(fields) or self._specs
        whose = "the program declares" if fields else "the first example"
        table = StackedRows(count, specs, out, whose, rows_of)
        work = self._by_batches if self.size else self._one_by_one
        failures = list(work(first, table, watch or _nobody))
        if self._specs is None and table.specs:
            self._specs = table.specs
        table.finish()
        return Stacked(first, table.arrays, table.there, failures, self._drawn().total())

    def batches(
        self, batch: int, fields: Mapping[str, tuple[Any, Any]] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield whole batches, computed in this process, without a last one that is not full.

        With "mask" among the fields it is given too: True where an example is there, else zeros.
        Raises InputError for an example that fails. With on_error="skip" its row is zeros instead,
        and standard error says which it is; raises UsageError then where "mask" is not among the
        fields.
        """
        check_holes(self.name, self.settings.on_error == "skip", batch, fields or (), self.place)
        return self._batches(batch, fields, MASK in (fields or ()))

    def _batches(
        self, batch: int, fields: Mapping[str, tuple[Any, Any]] | None, masked: bool
    ) -> Iterator[dict[str, np.ndarray]]:
        first, said = 0, set[str]()
        while True:
            stacked = self.compute(first, batch, fields)
            for failed in map(str, stacked.failures):  # as a run says it
                if failed not in said and len(said) < _MOST_SAID:
                    said.add(failed)
                    print(shown(f"spmd feed: {self.name}: skipped {failed}"), file=sys.stderr)
            if stacked.total is not None and first + (1 if masked else batch) > stacked.total:
                if fields and (rest := stacked.total - first) > 0:  # as a run says it
                    print(f"spmd feed: {not_given(self.name, rest, batch)}", file=sys.stderr)
                return
            yield {**stacked.arrays, MASK: stacked.there} if masked else stacked.arrays
            first += batch

    def _there(self, first: int, count: int) -> int:
        """Return how many of these positions the stream has, as far as that is known."""
        total = self._drawn().total()
        return count if total is None else max(0, min(count, total - first))

    def _one_by_one(self, first: int, table: StackedRows, watch: Watch) -> Iterator[Failure]:
        draw, alone = self._drawn(), in_one_process(self.place)
        for row, key in enumerate(draw.keys(first, self._there(first, table.count))):
            position = first + row
            watch(position)
            reading = True
            try:
                with alone:
                    example = draw.get(key)
                    reading = False
                    result = self._of_one(example, position)
                table.put(row, result)
            except EndOfStream:
                return
            except BaseException as error:  # whatever class the user's code raises
                self._look_at(error)
                fatal = reading and self.source.found_by() == "reading"
                failed = failure(error, position, draw.name(key), self.place, fatal)
                yield failed
                if failed.fatal or self.settings.on_error == "stop":
                    return

    def _look_at(self, error: BaseException) -> None:
        """Raise what ends more than an example, such as Ctrl-C; where nobody hears that, as in
        workers, it was raised by the user's code itself."""
        if isinstance(error, MemoryError) and self.when_full:
            self.when_full()
        if isinstance(error, KeyboardInterrupt) and (
                signal.getsignal(signal.SIGINT) is not signal.SIG_IGN):
            raise error

    def _of_one(self, example: Any, position: int) -> Any:
        if self._random:
            return self.function(example, rng=self._generators.generator(position))
        return self.function(example)

    # ---- batches

    def _by_batches(self, first: int, table: StackedRows, watch: Watch) -> Iterator[Failure]:
        """Yield the parts of batches, which begin at multiples of their size, whichever of their
        positions are asked for."""
        end = first + table.count
        for begin in range(first - first % self.size, end, self.size):
            watch(begin)
            count, result = self._batch(begin)
            here = max(begin, first)
            stop = min(begin + count, end)
            if isinstance(result, Failure):
                yield replace(result, position=max(result.position, first))
                if result.fatal or self.settings.on_error == "stop":
                    return
            elif here < stop:
                try:
                    table.put_many(slice(here - first, stop - first), result, here - begin, count)
                except Misfit as error:
                    yield failure(error, here, self._batch_name(begin, count), self.place)
                    if self.settings.on_error == "stop":
                        return
            if count < self.size:
                return

    def _batch(self, begin: int) -> tuple[int, Any]:
        """Return how many examples the batch from here on has, and its arrays, or why there are
        none."""
        if self._last is not None and self._last[0] == begin:
            return self._last[1:]
        draw = self._drawn()
        count = self._there(begin, self.size)
        result: Any = {}
        reading = self.source.found_by() == "reading"
        try:
            keys = draw.keys(begin, count)
            with in_one_process(self.place):
                examples = self._read_on(keys) if reading else draw.get_many(keys)
                count, reading = len(examples), False
                if count:
                    more = {"rng": self._generators.generator(begin)} if self._random else {}
                    result = self.function(examples, **more)
            if count and isinstance(result, list | tuple):
                result = _stacked(result, count)
        except BaseException as error:
            self._look_at(error)
            name = self._batch_name(begin, count)
            result = failure(error, begin, name, self.place, reading)
        self._last = (begin, count, result)
        return count, result

    def _read_on(self, keys: Sequence[int]) -> list[Any]:
        examples = []
        for key in keys:
            try:
                examples.append(self._drawn().get(key))
            except EndOfStream:
                break
        return examples

    def _batch_name(self, begin: int, count: int) -> str:
        return f"{self.example_name(begin)} and the {count - 1} behind it in the stream"


def _nobody(position: int) -> None:
    """Ignore a position: the watch of a caller who gave none."""


def _stacked(results: Any, count: int) -> dict[str, Any]:
    """Return a list of examples as a dict of arrays."""
    if len(results) != count or not all(isinstance(r, Mapping) for r in results):
        raise Misfit(f"the pipeline returned another list than one of examples\n"
                     f"expected: {count} dicts\nfound:    {len(results)} values")
    for k, example in enumerate(results):
        if example.keys() != results[0].keys():
            raise Misfit(f"example {k} of what the pipeline returned has other fields than the "
                         f"first\nexpected: {', '.join(results[0])}\n"
                         f"found:    {', '.join(example)}\n"
                         "try:      the same fields for each example")
    columns = {}
    for name in results[0]:
        every = [plain(name, r[name]) for r in results]
        for k, a in enumerate(every):
            if a.shape != every[0].shape:
                raise Misfit(f"field {name!r} of example {k} has another shape than that of the "
                             f"first\nexpected: {every[0].shape}\nfound:    {a.shape}\n"
                             "try:      data.pad_or_cut(…, n) makes all equally long")
        columns[name] = np.stack(every)
    return columns


# ---- decorators


def _code(function: Any) -> CodeType:
    """Return the code of a function; of an object that is called, that of its method."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)
    if not isinstance(code, CodeType):
        raise UsageError(
            "a pipeline is made of a function", place=caller(), expected="def f(example): …",
            found=repr(function), remedy="a function that calls it")
    return code


def _takes_random(function: Callable[..., Any], place: Place) -> bool:
    """Return whether a function has a parameter rng. UsageError for one that cannot be called with
    an example."""
    parameters = list(inspect.signature(function).parameters.values())
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in (
        p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in parameters]
    if not names or names[0] == "rng" or not set(needed) <= {names[0], "rng"}:
        raise UsageError(
            "the function of a pipeline has other parameters", place=place,
            expected="(example), or (example, rng) with the name rng",
            found=str(inspect.signature(function)),
            remedy="parameters of your own have default values")
    return "rng" in names


def pipeline(
    function: Callable[..., Any] | None = None, /, *, source: ExampleSource | None = None,
    name: str = "", **settings: Any,
) -> Any:
    """Make a Pipeline of a function of one example: a decorator.

    The function gets an example of the source, and `rng`, a numpy.random.Generator, if it has a
    parameter of that name; it is the example's until the function returns. It returns a dict of
    arrays or numbers, the same fields each time.

    source: data.files(…), data.arrays(…) and others. name: what the pipeline is called, if not as
    the function. settings: sampling="once" or "independent", seed=0, epochs=None, shuffle=True,
    on_error="stop" or "skip", timeout=60 seconds, and what says how it is served: the reference has
    a table of all.

    Raises UsageError for a setting that does not exist, or a value that it cannot have.

    ::

        >>> @data.pipeline(source=data.range(10), shuffle=False)
        ... def squares(example, rng):
        ...     return {"x": np.float32(example) ** 2}
        >>> squares.compute(3, 4).arrays["x"]
        array([ 9., 16., 25., 36.], dtype=float32)
    """
    place = caller()
    return _decorator("pipeline", function, source, name, settings, 0, place)


def batched(
    function: Callable[..., Any] | None = None, /, *, source: ExampleSource | None = None,
    size: int = 32, name: str = "", **settings: Any,
) -> Any:
    """Make a Pipeline of a function of a list of examples: a decorator.

    The function gets `size` examples that follow each other in the stream, fewer at its end, and
    returns a dict of arrays with a row for each, or a list of dicts. Of data.arrays it gets Rows:
    `examples.x` has the rows of all. size is the pipeline's own: it need not be that of a feed,
    and does not change what is in a batch of the feed. If the function raises, all of its examples
    fail.

    The settings are those of `pipeline`; timeout is for a call of the function, with all of its
    examples.

    ::

        >>> source = data.arrays(x=np.arange(8.0))
        >>> @data.batched(source=source, size=4, shuffle=False)
        ... def halves(examples):
        ...     return {"x": examples.x / 2}
        >>> halves.compute(2, 3).arrays["x"]
        array([1. , 1.5, 2. ])
    """
    place = caller()
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(
            "size of data.batched is wrong", place=place, expected="a number of examples, from 1",
            found=repr(size), remedy="size=32")
    return _decorator("batched", function, source, name, settings, size, place)


def _decorator(
    which: str, function: Any, source: Any, name: str, options: dict[str, Any], size: int,
    place: Place | None,
) -> Any:
    if source is None:
        raise UsageError(
            f"data.{which} needs a source", place=place,
            expected=f"@data.{which}(source=…) above the function",
            found=f"@data.{which}" + ("()" if function is None else " alone"),
            remedy="source=data.files('photos/*.jpg'), data.arrays('set.npz'), data.range(100) …")
    if not isinstance(source, ExampleSource):
        raise UsageError(
            f"source of data.{which} is no source", place=place,
            expected="what data.files, arrays, csv, lines, range or iterator returns",
            found=type(source).__name__, remedy=_instead(source))
    settings = read(options, place)
    if name != "":
        check_name(f"data.{which}", name, place)

    def decorate(function: Callable[..., Any]) -> Pipeline:
        if not callable(function):
            raise UsageError(f"data.{which} decorates functions", place=place,
                             expected="a function", found=type(function).__name__)
        pipeline = Pipeline(function, source, settings, size, name)
        if pipeline.name != "<lambda>":  # it needs a name only where it is submitted
            check_name(f"data.{which}", pipeline.name, pipeline.place)
        return pipeline

    return decorate if function is None else decorate(function)


def check_name(whose: str, name: Any, place: Place | None) -> None:
    """Raise UsageError for what cannot be the name of a pipeline at a scheduler."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"name of {whose} is wrong", place=place, found=repr(name),
            expected="A to Z, a to z, digits and _ . + -, at most 128",
            remedy="name='train-images'")


def _instead(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return f"data.files({str(source)!r})"
    if isinstance(source, Mapping | np.ndarray):
        return "data.arrays(x=…)"
    if isinstance(source, range):
        return f"data.{source!r}"
    return "data.iterator(function) for a function that gives examples one after the other"

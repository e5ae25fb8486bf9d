"""Feeds in an eager run: whole batches as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import index
from typing import Any

import numpy as np

from codegen.errors import InputError, ProgramError, UsageError
from codegen.oracle.common import Common
from codegen.places import user_place
from codegen.user import eager_runs, whole_batches
from codegen.user.numbers import element_type
from codegen.user.spec import Spec
from codegen.user.whole_batches import Batches


class EagerStream:
    """What spmd.feed gives in an eager run: as codegen.trace.feed_calls.Stream."""

    def __init__(self, world: Common, batches: Batches, layouts: Mapping[str, Any]) -> None:
        self.world, self.batches, self.layouts = world, batches, layouts
        self.number = 0
        self._batch = whole_batches.batch_type(batches.feed, batches.fields)

    def next(self) -> Any:
        self._check("next")
        found = self.batches.take(self.number)
        self.number += 1
        return self._batch(**{k: self.world.made(x, self.layouts[k]) for k, x in found.items()})

    def more(self) -> bool:
        self._check("more")
        return self.batches.more(self.number)

    def __iter__(self) -> Iterator[Any]:
        while self.more():
            yield self.next()

    def send(self, *values: Any, **named: Any) -> None:
        self._check("send")
        fields = whole_batches.sent_fields(self.batches.feed, values, named)
        (shape, _), *_ = self.batches.fields.values()
        arrays = {k: np.array(x) for k, x in fields.items()}
        for name, x in arrays.items():
            whole_batches.check_sent(self.batches.feed, name, x.shape, shape[0])
        self.batches.answer(self.number, arrays)

    def _check(self, what: str) -> None:
        now = eager_runs.runtime()
        if now is None:
            raise ProgramError(
                f"feed.{what}() stands in a function that is differentiated, in an eager run",
                place=user_place(), expected="a batch that is taken before it",
                found="a derivative, which is computed as a program of its own",
                remedy="b = feed.next() before, and b.x as an argument")
        if now is not self.world:
            raise whole_batches.inside(what)


def declared(world: Common, given: Any, name: str, fields: Mapping[str, Any],
             others: Mapping[str, Any]) -> EagerStream:
    """The stream of a declaration. given: what the run was given as feed=; others: the feeds that
    are declared already."""
    specs: dict[str, Spec] = whole_batches.declared_fields(name, fields)
    shapes = {k: tuple(s.shape) if isinstance(s.shape, (tuple, list)) else (s.shape,)
              for k, s in specs.items()}
    whole_batches.check_batch(name, shapes, {k: element_type(s.dtype) for k, s in specs.items()})
    if given is None:
        raise InputError(f'feed "{name}" is not given', place=user_place(),
                         expected="an iterable of dicts of arrays, a batch each",
                         remedy="pass feed=batches")
    if isinstance(given, Mapping):
        if name not in given:
            raise InputError(f'feed "{name}" is not given', place=user_place(),
                             expected=f"{name} in feed={{…}}", found=", ".join(given))
        given = given[name]
    elif others:
        raise UsageError("the program has several feeds", place=user_place(),
                         expected="a dict by their names", found=type(given).__name__,
                         remedy=f"feed={{{next(iter(others))!r}: …, {name!r}: …}}")
    batches = Batches(name, given, {
        k: (tuple(map(index, shapes[k])), whole_batches.numpy_dtype(s.dtype))
        for k, s in specs.items()})
    return EagerStream(world, batches, {
        k: (next(iter(world.axes)), *[None] * (len(shapes[k]) - 1)) if s.layout is None
        else s.layout for k, s in specs.items()})

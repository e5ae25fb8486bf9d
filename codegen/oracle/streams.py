"""Feeds in an eager run: whole batches as NumPy arrays, and in one rank's view its own blocks."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.errors import InputError, ProgramError, SpmdError, UsageError
from codegen.oracle.ranks import EagerRank
from codegen.oracle.threads import Combine, ExchangeCall
from codegen.places import user_place
from codegen.user import eager_runs, whole_batches
from codegen.user.absent import needs_of
from codegen.user.dims import Dim
from codegen.user.layout_trees import MeshName
from codegen.user.numbers import element_type
from codegen.user.spec import Spec
from codegen.user.whole_batches import Batches

if TYPE_CHECKING:
    from codegen.oracle.eager import World


class EagerStream:
    """A feed in an eager run, as spmd.feed returns it there: see
    codegen.trace.feed_calls.Stream."""

    def __init__(self, world: World, batches: Batches, layouts: Mapping[str, Any],
                 by_rules: Container[str], declared: Mapping[str, Any]) -> None:
        """Begin at the first batch. by_rules: fields that the rules of the program may lay out
        otherwise. declared: fields as the user says them, with trees."""
        self.world, self.batches = world, batches
        self.layouts, self.by_rules = dict(layouts), by_rules
        self.number = 0
        self._batch = whole_batches.batch_maker(batches.feed, declared)

    def next(self) -> Any:
        if (rank := self._rank("next")) is None:
            arrays = self._take()
            return self._batch({k: self.world.eager_array(x, self.layouts[k]) for k,
                                x in arrays.items()})
        layouts = {k: self._known_layout(k) for k in self.batches.fields}

        def blocks(_: Sequence[Any]) -> list[Any]:
            whole = self._take()
            return [{k: rank.shards.shard(x, layouts[k], number) for k, x in whole.items()}
                    for number in range(len(rank.shards.coords))]

        return self._batch(self._together(rank, "next", None, blocks))

    def _take(self) -> dict[str, Any]:
        arrays = self.batches.take(self.number)
        self.number += 1
        return arrays

    def more(self) -> bool:
        if (rank := self._rank("more")) is None:
            return self.batches.more(self.number)
        return bool(self._together(rank, "more", None, lambda payloads: [
            self.batches.more(self.number)] * len(payloads)))

    def __iter__(self) -> Iterator[Any]:
        def batches() -> Iterator[Any]:
            while self.more():
                yield self.next()

        return eager_runs.runtime().turns.counted(batches())  # type: ignore[no-any-return]

    def send(self, *values: Any, **named: Any) -> None:
        rank = self._rank("send")
        if needs_of((values, named)):
            return
        fields = whole_batches.sent_fields(self.batches.feed, values, named)
        arrays = {k: np.array(x) for k, x in fields.items()}
        if rank is None:
            self._answer(arrays)
            return
        split = {rank.shards.entries(self._known_layout(k), len(shape))[0]
                 for k, (shape, _) in self.batches.fields.items()}
        layout = (split.pop() if len(split) == 1 else None,)
        (shape, _), *_ = self.batches.fields.values()
        (own,) = rank.shards.box(shape[:1], rank.shards.entries(layout, 1), rank.index_)
        for name, x in arrays.items():
            whole_batches.check_sent(self.batches.feed, name, x.shape, own.stop - own.start)

        def whole(parts: Sequence[Any]) -> list[Any]:
            self._answer({k: np.asarray(rank.shards.join([part[k] for part in parts], layout))
                          for k in arrays})
            return [None] * len(parts)

        self._together(rank, "send", arrays, whole)

    def _answer(self, arrays: dict[str, Any]) -> None:
        (shape, _), *_ = self.batches.fields.values()
        for name, x in arrays.items():
            whole_batches.check_sent(self.batches.feed, name, x.shape, shape[0])
        self.batches.answer(self.number, arrays)

    def _known_layout(self, field: str) -> Any:
        """Return how a field is cut: as it says, or as the compiler lays it out."""
        if field in self.by_rules:
            return self.world.field_layout(self.batches.feed, field)
        layout = self.layouts[field]
        return (layout,) if isinstance(layout, MeshName) else layout

    def _together(self, rank: EagerRank, method: str, payload: Any, of: Combine) -> Any:
        """Return what `of` gives this rank, once all ranks have come here."""
        here = user_place()

        def at_this_line(parts: Sequence[Any]) -> Sequence[Any]:
            try:
                return of(parts)
            except SpmdError as error:
                error.place = here
                raise

        call = ExchangeCall(f"feed.{method}()", tuple(self.world.axes), here, payload, at_this_line)
        return rank.crew.exchange(rank.index_, call)

    def _rank(self, method: str) -> EagerRank | None:
        """Return the rank that calls; None: the program itself."""
        now = eager_runs.runtime()
        if now is None:
            raise ProgramError(
                f"feed.{method}() stands in a function that is differentiated, in an eager run",
                place=user_place(), expected="a batch that is taken before it",
                found="a derivative, which is computed as a program of its own",
                remedy="b = feed.next() before, and b.x as an argument")
        return None if now is self.world else now


def declared(world: World, source: Any, name: str, fields: Mapping[str, Any],
             others: Mapping[str, Any]) -> EagerStream:
    """Return the stream of a declaration. source: the argument feed= of the run; others: the feeds
    that are declared already."""
    specs: dict[str, Spec] = whole_batches.declared_fields(name, fields)
    shapes = {k: tuple(s.shape) if isinstance(s.shape, (tuple, list)) else (s.shape,)
              for k, s in specs.items()}
    whole_batches.check_batch(name, shapes, {k: element_type(s.dtype) for k, s in specs.items()})
    if source is None:
        raise InputError(f'feed "{name}" is not given', place=user_place(),
                         expected="an iterable of dicts of arrays, a batch each",
                         remedy="pass feed=batches")
    if isinstance(source, Mapping):
        if name not in source:
            raise InputError(f'feed "{name}" is not given', place=user_place(),
                             expected=f"{name} in feed={{…}}", found=", ".join(source))
        source = source[name]
    elif others:
        raise UsageError("the program has several feeds", place=user_place(),
                         expected="a dict by their names", found=type(source).__name__,
                         remedy=f"feed={{{next(iter(others))!r}: …, {name!r}: …}}")
    batches = Batches(name, source, {
        k: (tuple(map(index, shapes[k])), whole_batches.numpy_dtype(s.dtype))
        for k, s in specs.items()})
    return EagerStream(world, batches, {
        k: (next(iter(world.axes)), *[None] * (len(shapes[k]) - 1)) if s.layout is None
        else s.layout for k, s in specs.items()}, {
        k for k, s in specs.items() if s.layout in (None, "auto")
        and any(isinstance(e, Dim) for e in shapes[k])}, fields)

"""Memory as the user sees it, and what it holds: a value of the graph, or elements known now.

Several arrays (views) may share one Storage. Known elements are a NumPy array, for any Python to
use; they become a value of the graph where they meet what is known at run time only: as their
formula with the writes since, or as a constant.
Always holds: known elements are written in place only by code that runs once, in program order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from codegen.dtypes import DType
from codegen.ir.graph import ArrayType, Value
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.trace import view
from codegen.trace.constants import array_value, broadcast_value, constant_value
from codegen.trace.context import Context
from codegen.trace.view import View

_KEPT_WRITES = 8  # writes that are kept beside a formula; with more, the elements are data
_LARGE_DATA = 1 << 16  # elements; of larger arrays more writes are kept, since data fill the image
_MANY_WRITES = 64
_MOST_WRITTEN = 1 << 14  # elements of a write that is kept


class Storage:
    """Memory under one or more arrays. serial grows with every storage made during a capture."""

    def __init__(self, context: Context, content: Value | Known) -> None:
        self.serial = context.next_serial()
        self.content: Any = content  # Known: while building; else a value, or why there is none
        self.transposed = False  # NumPy may keep it in another order: see memory_order
        self.region = context.region()  # in which it was made
        # the shard_map it was made in, whose arrays exist there only
        self.home = context.captured[-1] if context.captured else None
        # storages that may be the same memory, for all that is known while building, with what
        # stands for their content once this one is written
        self.shadows: dict[Storage, Any] = {}
        context.storages.add(self)

    @property
    def value(self) -> Any:
        return self.content.value() if isinstance(self.content, Known) else self.content

    @value.setter
    def value(self, value: Any) -> None:
        self.content = value

    def write(self, context: Context, value: Value) -> None:
        """Replace the content of the memory. All writes go through here: logs tell loops what is
        carried."""
        self.value = value
        for shadow, gone in self.shadows.items():
            shadow.value = gone
        for log in context.write_logs:
            log.setdefault(self)
            log.update(dict.fromkeys(self.shadows))

    def lose(self, context: Context, why: Any) -> None:
        """Makes the content unreadable, and says why; storages that may be the same keep theirs."""
        self.value = why
        for log in context.write_logs:
            log.setdefault(self)


class Known:
    """The content of a storage. `make` gives the elements when somebody asks for them."""

    def __init__(
        self, context: Context, shape: tuple[int, ...], dtype: DType,
        make: Callable[[], np.ndarray[Any, Any]], formula: Callable[[], Value] | None = None,
    ) -> None:
        self.made_in, self.shape, self.dtype = context, shape, dtype
        self._make = make
        self._data: np.ndarray[Any, Any] | None = None
        self.formula = formula
        self.writes: list[tuple[View, Any]] = []  # since the formula: where, and what
        self.version = 0
        self.epoch = context.epoch
        self.place = user_place()

    @property
    def context(self) -> Context:
        """Return the present capture; a content may be kept from another one, as a constant."""
        return Context.current() or self.made_in

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """The elements, contiguous in C order; whoever writes them calls `wrote`."""
        if self._data is None:
            self._data = self._make()
        return self._data

    @property
    def type(self) -> ArrayType:
        t = ArrayType(self.dtype, tuple(expr.const(n) for n in self.shape))
        if self.context.rank_view or not t.ndim:
            return t
        return replace(t, layout=((),) * t.ndim, free=True)

    def value(self) -> Value:
        """Return the content as it is now, as a value of the open region."""
        return self.context.remember(("known", self, self.version), self._emit)

    def _emit(self) -> Value:
        context = self.context
        with context.standing_at(self.place):
            if self.formula is None:
                return constant_value(context, self.data)
            value = self.formula()
            for seen, written in self.writes:
                shape = view.shape_of(seen, value.type.shape)
                new = array_value(context, written, self.dtype)
                value = view.put(context, value, seen, broadcast_value(context, new, shape))
            return value

    def copied(self) -> Known:
        """Return a copy, so that writes do not reach others that hold this content."""
        new = Known(self.context, self.shape, self.dtype, self.data.copy, self.formula)
        new.writes, new.place = list(self.writes), self.place
        return new

    def wrote(self, seen: View | None, value: Any) -> None:
        """Note that elements seen so have been replaced by `value`; None: nobody can say which
        ones."""
        self.version += 1
        most = _MANY_WRITES if self.data.size > _LARGE_DATA else _KEPT_WRITES
        if self.formula is None or seen is None or len(self.writes) >= most or (
            np.size(value) > _MOST_WRITTEN
        ):
            self.formula, self.writes = None, []
        else:
            self.writes.append((seen, np.array(value)))

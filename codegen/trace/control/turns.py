"""`for` and `while` as loops of the program: their bodies are run until what they carry is settled.

Goes in: a range or a test, and the variables of the body. Comes out, by yielding: one pass of the
body after another; then the op stands in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from codegen.places import user_place
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, is_traced
from codegen.trace.context import Block, Context, require_context
from codegen.trace.control.captured_loops import Counter, Later, Loop
from codegen.trace.control.ranges import Range, step_of
from codegen.trace.control.regions import Capture
from codegen.trace.number import expr_of, number
from codegen.trace.state import Code

_AT = "__at__"  # the loop variable where a bound is data


class Attempt(Capture):
    """A stretch of a `while` whose test is known so far: kept if it stays so, else undone."""

    def kept(self) -> None:
        if self.open is not None:
            self.keep(self.close())

    def undone(self) -> None:
        self.outside.check()
        self.close()
        self.put_back()
        self.mark.forget_later(self.context, "loop", self.place)
        self.mark.restore_declared(self.context)


def captured_while(context: Context, test: Callable[[], Any], code: Code) -> Iterator[None]:
    """Yield Python's own iterations while the test is known; from the first unknown one on, capture
    an op."""
    started = False
    while True:
        attempt = Attempt(context, code, "loop")
        attempt.begin(Block(once=True))
        try:
            if started:
                yield
            known = not any(is_traced(code.names.get(f)) for f in code.flags)
            holds = known and test()
            known = known and not is_traced(holds)
            if not known:
                attempt.undone()
                break
        finally:  # also where the body leaves by break or an exception
            attempt.kept()
        if not holds:
            return
        started = True
    loop = Loop(context, code, Later(code.kept or (), started))
    yield from passes(loop, lambda: None)
    loop.finish(Counter(context, "pass", expr.const(0), None, expr.const(1)), test)


def passes(loop: Loop, item: Callable[[], Any]) -> Iterator[Any]:
    """Run the body, by yielding, until the loop is settled."""
    tracing, number = loop.names.tracing, loop.code.number
    try:
        while True:
            loop.start_pass()
            tracing.append(number)
            loop.context.loops.append(loop)
            try:
                yield item()
            finally:
                tracing.remove(number)
                loop.context.loops.remove(loop)
            if loop.end_pass():
                loop.around.carries[loop.number] = loop.settled()
                break
    finally:
        loop.abort()


# ---- for ---------------------------------------------------------------------------------------


def captured_for(
    bounds: Range, code: Code, hint: str, item_of: Callable[[Any], Any] = lambda counter: counter,
) -> Iterator[Any]:
    """Yields the counter, or what `item_of` makes of it, once per pass of the capture, then emits
    the loop."""
    context, names = require_context("spmd.range"), code.names
    step, sign = step_of(bounds)
    start, stop = expr_of(bounds.start), expr_of(bounds.stop)
    if start is not None and stop is not None:
        if expr.nonneg((start - stop) * sign):
            return  # never runs: what holds of its counter would hold of no number
        known = (b.value for b in (start, stop, step) if b.is_const)
        turns = range(*known) if start.is_const and stop.is_const and step.is_const else None
        if turns is not None and user_place() in context.unrolled:
            yield from map(item_of, turns)
            return
        if hint in code.bound and not code.reads_later(hint):
            names.unbind(hint)  # what it was before, nobody asks any more
        counter = Counter(context, hint.strip("_") or "i", start, stop, step)
        sure = expr.nonneg((stop - start) * sign - 1)
        loop = Loop(context, code, Later(code.kept or (), sure, counter.sym))
        loop.turns = None if turns is None else len(turns)
        yield from passes(loop, lambda: item_of(counter.value))
        loop.finish(counter)
        return
    # a bound is data: the position is carried, and compared before every iteration
    position_name = f"{_AT}{code.number}"
    names.hidden[position_name] = _weak(bounds.start)
    end = _weak(bounds.stop)
    loop = Loop(context, replace(code, bound=(*code.bound, position_name)), Later(code.kept or ()))
    counter = Counter(context, "pass", expr.const(0), None, expr.const(1))

    def item() -> Any:
        position = names.get(position_name)
        names.put(position_name, position + number(step))
        return position

    def more() -> Any:
        return names.get(position_name) < end if sign > 0 else names.get(position_name) > end

    yield from passes(loop, item)
    loop.finish(counter, more)
    del names.hidden[position_name]


def _weak(x: Any) -> Array:
    """Return a bound as a 0-d int64 array that promotes as a Python integer."""
    array: Array = as_array(x).astype(np.int64)
    array.weak = True
    return array

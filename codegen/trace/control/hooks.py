"""What rewritten functions call (as `__spmd__`): statements on unknown values.

Operators (logic.py) and calls (calls.py) are here by name.
Always holds: on plain Python values, and outside a capture, every function here does exactly what
the statement or operator does that it stands for.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from codegen.errors import ProgramError, TracedValueError, UnsupportedError
from codegen.places import last, place_at, user_place
from codegen.progress import announce, is_heard
from codegen.trace.array import Array, is_traced
from codegen.trace.calls import call
from codegen.trace.context import Context
from codegen.trace.control.branches import captured_if
from codegen.trace.control.outside import is_iterator
from codegen.trace.control.over_rows import turns_of
from codegen.trace.control.ranges import Range
from codegen.trace.control.stateful import changed, ordered, refuse_outside
from codegen.trace.control.turns import captured_for, captured_while
from codegen.trace.expecting import asserted
from codegen.trace.feed_calls import Stream, captured_feed
from codegen.trace.foreign import fresh, indexed, target
from codegen.trace.number import Number
from codegen.trace.numpy.logic import and_, both, compare, either, ifexp, known, not_, or_
from codegen.trace.state import Code, Names, inside
from codegen.trace.text_styles import called, formatted, percent_text
from codegen.trace.traced_text import converted, fstring, percent
from codegen.user import pytree

__all__ = ["Names", "and_", "asserted", "both", "call", "compare", "converted", "either", "fresh",
           "formatted", "fstring", "ifexp", "indexed", "known", "not_", "or_", "percent",
           "percent_text", "target", "text_of"]

NameError = builtins.NameError
_MANY_TURNS = 200  # of a loop that Python runs: to record them takes a while


def if_(
    test: Any, names: Names, bound: Sequence[str], touched: Sequence[str], kept: Sequence[str],
    *later: Callable[[], Any],
) -> Iterable[int]:
    """Return the numbers of the arms to run: one where the tests are known, else each in turn."""
    for k, evaluate in enumerate((lambda: test, *later)):
        value = evaluate()
        if is_traced(value):
            return captured_if(
                value, later[k:], Code(names, bound, touched, kept=kept), k)
        if value:
            return (k,)
    return (len(later) + 1,)


def text_of(function: Any, *args: Any, **options: Any) -> Any:
    """Return the text that str, repr, ascii or format makes inside a print or an assert."""
    text = called(function, *args, **options)
    return call(function)(*args, **options) if text is None else text


def returned(value: Any) -> Any:
    """Notes where the function returns its value."""
    context = Context.current()
    if context is not None:
        frame = sys._getframe(1)
        context.returned = frame.f_code, frame.f_lasti, frame.f_lineno
    return value


def matched(subject: Any) -> Any:
    """Return the subject of a match statement, whose patterns name types, True or False; raise
    TracedValueError if it is a value of the program."""
    if Context.current() is not None and any(
        isinstance(x, (Array, Number)) for x in pytree.leaves(subject)
    ):
        raise TracedValueError(
            "a match statement asks for the type of a value that the program computes",
            expected="patterns of values, or of tuples, lists and dicts",
            found="case int(), case True, or the like",
            remedy="if isinstance(x, int): …, or if x: …",
        )
    return subject


def for_(
    iterable: Any, names: Names, bound: Sequence[str], touched: Sequence[str],
    flags: Sequence[str], loop_number: int, hint: str, kept: Sequence[str], fresh: Sequence[str],
) -> Iterable[Any]:
    """Return the iterable itself, or the passes of a captured loop over an spmd.range or a feed."""
    if isinstance(iterable, (Range, Stream)):
        code = Code(names, bound, touched, flags, loop_number, kept, fresh)
        if isinstance(iterable, Stream):
            return captured_feed(iterable, code)
        return captured_for(iterable, code, hint)
    context = Context.current()
    if context is not None and (turns := turns_of(context, iterable)) is not None:
        code = Code(names, bound, touched, flags, loop_number, kept, fresh)
        return captured_for(turns[0], code, hint, turns[1])
    if isinstance(iterable, Number):
        raise TracedValueError("a for loop over a number", expected="something to iterate over",
                               found=repr(iterable), remedy="for i in spmd.range(n)")
    if context is not None and is_iterator(iterable):
        refuse_outside(iterable)
        if flags:
            return _unrolled(_leaving(context, each(iterable), names, flags))
    return _unrolled(each(iterable))


def _leaving(
    context: Context, iterator: Iterator[Any], names: Names, flags: Sequence[str]
) -> Iterator[Any]:
    """Yield all items of an iterator, and note it in the context where only the run knows whether
    one of the flags, by a break or return, ends the loop before."""
    try:
        for item in iterator:  # noqa: UP028 - `yield from` would close a generator at a break
            yield item
    finally:
        if any(is_traced(names.get(flag)) for flag in flags):
            context.left_early.append(iterator)


def _unrolled(turns: Iterable[Any]) -> Iterable[Any]:
    """Return the turns of a loop that Python runs; where somebody listens, they report that there
    are many."""
    return turns if Context.current() is None or not is_heard() else _told_of(turns)


def _told_of(turns: Iterable[Any]) -> Iterator[Any]:
    where = user_place()
    for k, turn in enumerate(turns, 1):
        if k >= _MANY_TURNS:
            announce(f"recording turn {k} of the loop at {where}, which spmd.range would compile")
        yield turn


def each(iterable: Any) -> Any:
    """Return what Python iterates over in place of `iterable`: a set in an order that lasts."""
    return iterable if Context.current() is None else ordered(iterable)


def while_(
    test: Callable[[], Any], names: Names, bound: Sequence[str], touched: Sequence[str],
    flags: Sequence[str], loop_number: int, kept: Sequence[str], fresh: Sequence[str],
) -> Iterator[None]:
    context = Context.current()
    if context is None:
        return _plain_while(test)
    code = Code(names, bound, touched, flags, loop_number, kept, fresh)
    return captured_while(context, test, code)


def _plain_while(test: Callable[[], Any]) -> Iterator[None]:
    while test():
        yield


def left(names: Names, loop_number: int, *flags: Any) -> bool:
    """Return whether a loop that Python runs was left by break or return."""
    if loop_number in names.tracing:
        return False
    return any(not is_traced(f) and f for f in flags)


def endless() -> None:
    """Stands before a loop that has no way out."""
    if Context.current() is not None:
        raise UnsupportedError("this loop never ends", expected="a break, a return or a test",
                               found="while True: without one",
                               remedy="while condition:, or if condition: break")


def raising(names: Names) -> None:
    """Stands before a raise under an `if` or in a loop."""
    if names.arms:
        raise UnsupportedError(
            "raise under a condition known only at run time",
            remedy='assert test, "…" ends the run where a test fails; spmd.require(...) checks '
            "sizes at launch",
        )


def stored(thing: Any, *steps: Any) -> None:
    """Note that a statement has stored into a thing, or has bound the variable of a name.

    steps: keys and attributes that lead from the thing to a list, dict or object inside it.
    """
    context = Context.current()
    if context is not None:
        for step in steps:
            thing = inside(thing, step)
        changed(context, thing)


def chosen(test: Any) -> Any:
    """Return the test after `if` of a comprehension. Raises TracedValueError where only the run
    knows it."""
    if not is_traced(test):
        return test
    raise TracedValueError(
        "a comprehension leaves items out by a test that only the run knows",
        expected="a test known while building: how many items there are cannot depend on data",
        found=f"if {test!r}",
        remedy="np.where(test, value, 0) for each item; x[mask].sum() of an array",
    )


def plain(test: Any, statement: str, reason: str) -> Any:
    """Return a test that Python itself takes; refuses one that is known only at run time."""
    if not is_traced(test):
        return test
    raise UnsupportedError(
        f"`{statement}` on a value known only at run time, in a function that cannot be compiled",
        found=reason, remedy="move this part into a function of its own",
    )


def explain(error: builtins.NameError, names: Names) -> None:
    """Raise what says why a variable has no value, where a loop or branch took it away."""
    tb = last(error.__traceback__)
    if tb is None or not names.lost:
        return
    text = str(error).split("'")
    name = getattr(error, "name", None) or (text[1] if len(text) > 1 else "")
    if name in names.lost:
        raise ProgramError(f'"{name}" has no value here', place=place_at(tb),
                           found=names.lost[name], remedy=f"bind {name} before it") from None

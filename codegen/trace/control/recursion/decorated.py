"""@spmd.recursive: what stands above a function that calls itself, and its calls as plain Python.

Always holds: as plain Python, in an eager run too, so many calls may be open as in a program.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from codegen.errors import CheckError, UsageError
from codegen.places import user_place
from codegen.trace.context import Context
from codegen.trace.control.conversion import find
from codegen.trace.control.exits import own_nodes
from codegen.trace.control.recursion.captured import called
from codegen.trace.control.recursion.too_deep import bound, too_deep
from codegen.trace.state import describe
from codegen.user.signatures import check_call

F = TypeVar("F", bound=Callable[..., Any])
_MOST_LEVELS = 5000  # of Python's own recursion for which it is given room


class _Open(threading.local):
    """How many calls of each function have begun in this thread, and not ended."""

    def __init__(self) -> None:
        self.calls: dict[Recursive, int] = {}


_open = _Open()


class _TailCall(BaseException):
    """Raised where a function returns what it calls itself for: its frame is left before that call
    begins."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.call = args, kwargs


class Recursive:
    """A function under @spmd.recursive."""

    def __init__(self, function: Callable[..., Any], depth: int) -> None:
        functools.update_wrapper(self, function)
        self.function, self.depth = function, depth

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "the function")

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        context = Context.current()
        if context is not None:
            check_call(self.function, self.name, *args, **kwargs)
            return called(context, self, args, kwargs)
        if self._is_tail_call(sys._getframe(1)):
            raise _TailCall(args, kwargs)
        count = _open.calls.get(self, 0)
        if count == self.depth:
            raise self._too_deep(args, kwargs)
        if not count:
            levels = min(self.depth, _MOST_LEVELS)
            sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + 3 * levels))
        _open.calls[self] = count + 1
        try:
            while True:
                try:
                    return self.function(*args, **kwargs)
                except _TailCall as tail:
                    args, kwargs = tail.call
        finally:
            _open.calls[self] = count

    def _too_deep(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckError:
        place = user_place()
        arguments = bound(self.function, args, kwargs).arguments
        shown = [x.item() if getattr(x, "shape", None) == () else x for x in arguments.values()]
        texts = [str(x) if isinstance(x, (int, float, complex)) else describe(x) for x in shown]
        text = "".join(too_deep(self, list(zip(arguments, texts))))
        return CheckError(text, str(place or ""), place.source_line().strip() if place else "")

    def _is_tail_call(self, caller: types.FrameType) -> bool:
        """Return whether the function itself calls, and returns what it gets as it is."""
        code, below = caller.f_code, caller.f_back
        if code is not getattr(self.function, "__code__", None) or below is None:
            return False
        if below.f_code is not Recursive.__call__.__code__:
            return False
        return self._positions[caller.f_lasti // 2] in self._tail_calls

    @functools.cached_property
    def _positions(self) -> list[Any]:
        return list(self.function.__code__.co_positions())

    @functools.cached_property
    def _tail_calls(self) -> set[Any]:
        """Return the source positions of the function's tail calls: line and column of begin and
        end."""
        node = find(self.function.__code__, self.function.__globals__)
        if node is None:
            return set()
        body: Any = node[0].body
        returned = [body] if isinstance(body, ast.expr) else [
            n.value for n in _unguarded(body) if isinstance(n, ast.Return) and n.value]
        return {(c.lineno, c.end_lineno, c.col_offset, c.end_col_offset)
                for value in returned for c in _calls_of(value)}


def _unguarded(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Return an iterator over the nodes that stand in no try and no with, which have something to
    do after a return."""
    held = {id(inner) for node in own_nodes(body) if isinstance(node, (ast.Try, ast.With))
            for inner in own_nodes([node])}
    return (node for node in own_nodes(body) if id(node) not in held)


def _calls_of(value: ast.expr) -> Iterator[ast.Call]:
    if isinstance(value, ast.IfExp):
        yield from _calls_of(value.body)
        yield from _calls_of(value.orelse)
    elif isinstance(value, ast.Call):
        yield value


@overload
def recursive(function: F) -> F: ...


@overload
def recursive(function: None = ..., *, depth: int = ...) -> Callable[[F], F]: ...


def recursive(function: Any = None, *, depth: int = 64) -> Any:
    """Let a function call itself under conditions that only the run knows; use it as a decorator.

    In a program it becomes a loop over a stack: what a call still needs after a call inside it
    lies in arrays with `depth` rows. CheckError ends the run where more than `depth` calls have
    begun and not ended; it says with which arguments. A call that the function returns as it is, a
    tail call, takes no row.

    - Arguments are arrays and numbers that keep their shapes and dtypes from call to call, in
      tuples, lists or dicts too; what all calls pass on unchanged may be anything. They are values:
      write into arrays that are read by closure, or passed on unchanged.
    - Results keep their structure, shapes and dtypes. The function may return None.
    - Two functions under this decorator may call each other; each has `depth` rows of its own.

    UnsupportedError for a call of itself in a loop of the program, or in a function that is given
    to spmd.grad, spmd.vmap or spmd.shard_map there. CarryError where an argument or a result
    changes its type. As plain Python, and in an eager run, the function runs as it is, with the
    same limit; Python has room for 5000 calls.

    Example::

        @spmd.recursive(depth=32)
        def fib(n):
            if n < 2:
                return n
            return fib(n - 1) + fib(n - 2)

        @spmd.program(mesh=("r",))
        def numbers():
            return fib(spmd.scalar("n", 10))

        print(spmd.build(numbers).run(ranks=2, n=12))    # 144
    """
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise UsageError("depth= of spmd.recursive", expected="an int of 1 or more",
                         found=repr(depth), place=user_place())
    if function is None:
        return functools.partial(recursive, depth=depth)
    if not callable(function):
        raise UsageError("spmd.recursive decorates a function", expected="a function",
                         found=repr(function), remedy="@spmd.recursive(depth=64)",
                         place=user_place())
    return Recursive(function, depth)

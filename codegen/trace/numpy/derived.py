"""Functions with a derivative of their own, written on arrays, instead of that of their ops.

Always holds: where nothing is differentiated such a function is just called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from codegen.errors import UsageError
from codegen.ir.graph import Op, Value
from codegen.ops import Defined
from codegen.places import user_place
from codegen.trace.array import Array, wrap
from codegen.trace.context import Context
from codegen.trace.state import fill, flatten
from codegen.trace.storage import Storage

F = TypeVar("F", bound=Callable[..., Any])
# Takes the arguments that may stand by position, the results, the cotangents of the results (None:
# zeros) and, as keywords, the other arguments; returns the cotangents of the first arguments (None:
# zeros).
Back = Callable[..., Sequence[Any]]


def derived(back: Back) -> Callable[[F], F]:
    """Give a function of arrays its derivative: `back` computes the cotangents of its first
    arguments, the arrays. Use it as a decorator."""

    def decorate(f: F) -> F:
        signature = inspect.signature(f)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            context = Context.current()
            if context is None or not context.recordings:
                return f(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return defined(context, f, back, bound.args, bound.kwargs)

        return call  # type: ignore[return-value]

    return decorate


def with_slopes(slopes: Callable[..., Sequence[Any]]) -> Callable[[F], F]:
    """Give a function of arrays of one shape, element by element, its derivatives; use it as a
    decorator. slopes: from its arguments and its result to the partial derivatives by the
    arguments."""

    def back(inputs: Sequence[Any], output: Any, cotangents: Sequence[Any]) -> Sequence[Any]:
        (g,) = cotangents
        return [None if g is None else g * slope for slope in slopes(*inputs, output)]

    return derived(back)


def defined(
    context: Context, f: Callable[..., Any], back: Back | None, args: Sequence[Any],
    kwargs: dict[str, Any], saved: Callable[[Sequence[Op]], Sequence[Value]] = lambda ops: (),
    keeps: bool = False,
) -> Any:
    """Emit f as one op with its own derivative; return its result. `saved` returns, from the ops of
    f, the values that the backward pass reads; with `keeps`, f returns a pair whose second item it
    reads. Raise UsageError where f writes into an argument or an array from before the call."""
    context.differentiated = True
    operands = [x.read() if _is_operand(x) else None for x in args]

    def arguments_with(arrays: Sequence[Any]) -> list[Any]:
        """Return the arguments with these arrays in the place of their own."""
        replacements = iter(arrays)
        return [next(replacements) if v is not None else x for x, v in zip(args, operands)]

    with context.block() as block, context.watching_writes() as log:
        block.apart, before = True, context.next_serial()
        taken = [wrap(context, v, x.weak, x.scalar) for x, v in zip(args, operands)
                 if v is not None]
        returned = f(*arguments_with(taken), **kwargs)
        tree, leaves = flatten(returned)
        arrays = [leaf for leaf in leaves if isinstance(leaf, Array)]
        more = saved(block.ops)
        region = block.close([*(a.read() for a in arrays), *more])
        _check_writes(log, before, taken, [v for v in operands if v is not None])

    def with_results(results: Iterator[Any]) -> Any:
        return fill(tree, iter([next(results) if isinstance(x, Array) else x for x in leaves]),
                    fresh=True)

    def backward(
        inputs: Sequence[Array], outputs: Sequence[Array], cotangents: Sequence[Any]
    ) -> Any:
        assert back is not None
        input_cotangents = back(arguments_with(inputs), with_results(iter(outputs)), cotangents,
                                **kwargs)
        return [g for v, g in zip_longest(operands, input_cotangents) if v is not None]

    how = None if back is None else backward
    types = tuple(v.type for v in region.results)
    read = [v for v in operands if v is not None]
    own = flatten(returned[1])[1] if keeps else ()
    kept = len(more) + sum(isinstance(x, Array) for x in own)
    results = list(context.emit(Defined(how, types, kept), read, [region]))
    return with_results(iter([wrap(context, v, a.weak, a.scalar) for v, a in zip(results, arrays)]))


def _check_writes(
    log: Iterable[Storage], before: int, taken: Sequence[Array], operands: Sequence[Value]
) -> None:
    """Raise UsageError where the log has a write into an array older than serial `before`, or where
    an argument no longer has the value of its operand."""
    own = [x.storage for x in taken]
    into = ["an array from around it" for s in log if s.serial < before]
    into += ["its argument" for s, v in zip(own, operands) if s.value is not v]
    if into:
        raise UsageError("a function that is differentiated as one writes into an array that it "
                         "did not make", place=user_place(), found=into[0],
                         expected="a function that returns what it makes",
                         remedy="write into a copy: y = x.copy()")


def _is_operand(x: Any) -> bool:
    return isinstance(x, Array) and not x.is_known

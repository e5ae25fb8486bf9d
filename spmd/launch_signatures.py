"""Methods that take the options of a launch by name: said in one place, checked by type checkers.

In: a method of (self, …, options[, arguments]). Out: one that users call, with the signature of
every option, and for OPTIONS in its docstring what each of them means.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from codegen.suggest import meant_keyword
from spmd.launch.options import OPTIONS, TIME_LIMIT, Option, Options
from spmd.tracebacks import BY_NAME, plainly

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


def call(
    *,
    ranks: int | None = None,
    mesh: Mapping[str, int] | None = None,
    threads: int | None = None,
    algorithm: str = "auto",
    barrier: str = "auto",
    transport: str = "auto",
    time_limit: float = TIME_LIMIT,
    comm: Any = None,
    check: Any = False,
    checkpoint: str | None = None,
    every: int | str | None = None,
    resume: str | None = None,
    feed: Any = None,
    save: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> None:
    """Declare the options of one run, and its inputs and scalars: no type has room for both by
    name.

    A test compares them with `Options`.
    """


def takes(
    declared: Callable[P, object],
) -> Callable[[Callable[Concatenate[S, ...], R]], Callable[Concatenate[S, P], R]]:
    """Give a method the options of a launch as keyword arguments. declared: Options, or `call`:
    with inputs and scalars, which the method gets as a dict."""
    known = list(inspect.signature(declared).parameters.values())
    if declared is Options:  # its own signature takes any keyword: a field is an option
        kind = inspect.Parameter.KEYWORD_ONLY
        known = [inspect.Parameter(name, kind, default=row.default,
                                   annotation=Options.__annotations__[name])
                 for name, row in OPTIONS.items()]

    def decorate(body: Callable[Concatenate[S, ...], R]) -> Callable[Concatenate[S, P], R]:
        own = inspect.signature(body)
        first = [p for p in own.parameters.values() if p.name not in ("options", "arguments")]
        signature = own.replace(parameters=[*first, *known])

        @functools.wraps(body)
        def method(*args: Any, **kwargs: Any) -> R:
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                wrong = TypeError(f"{body.__qualname__}() {error}")
                wrong.add_note(meant_keyword(error, OPTIONS) or BY_NAME)
                raise wrong from None
            options = Options(**{name: bound.pop(name) for name in OPTIONS if name in bound})
            rest = [bound.pop("arguments", {})] if "arguments" in own.parameters else []
            return body(*bound.values(), options, *rest)

        if body.__doc__:
            rows = (_row(name, OPTIONS[name]) for name in signature.parameters if name in OPTIONS)
            method.__doc__ = inspect.cleandoc(body.__doc__).replace("OPTIONS", "\n".join(rows))
        method.__signature__ = signature  # type: ignore[attr-defined]
        return plainly(method)

    return decorate


def _row(name: str, option: Option) -> str:
    form = f" ({option.form})" if option.form else ""
    return textwrap.fill(f"- {name}{form}: {option.help}.", 96, subsequent_indent="  ")


def takes_more(
    declared: Callable[P, object],
) -> Callable[[Callable[Concatenate[S, T, ...], R]], Callable[Concatenate[S, T, P], R]]:
    """Give a method with one argument before the options these options, as `takes` does."""
    return takes(declared)  # type: ignore[arg-type]

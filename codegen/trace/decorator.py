"""The decorator @spmd.program: what stands above a function, or above a class with entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from codegen.errors import UnsupportedError, UsageError
from codegen.places import user_place
from codegen.trace.classes import Entity
from codegen.trace.program import Program


@overload
def program(function: type) -> Entity: ...


@overload
def program(function: Callable[..., Any]) -> Program: ...


@overload
def program(
    *, mesh: Any = ..., layout: Any = ..., sync: str = ..., selectable: bool = ...
) -> Callable[[Callable[..., Any]], Program]: ...


def program(
    function: Callable[..., Any] | None = None, *, mesh: Any = ("x",), layout: Any = None,
    sync: str = "least", selectable: bool = False,
) -> Any:
    """Make a program of a function, or of a class with entries (spmd.entry):
    `@spmd.program(mesh=("x", "y"))`.

    - mesh: names of axes, one to three. Their sizes are bound when the image runs; a dict fixes
      sizes while building: `{"x": 4, "y": None}`.
    - layout: rules for named dims, `{"batch": "x"}`: arrays whose shape has `spmd.Dim("batch", …)`,
      and that have no layout of their own, are split so.
    - sync: where barriers stand around exchanges: "least" (none that is not needed), "before",
      "after" or "both".
    - selectable: True: a call that asks for some outputs only, `image.run(only="label")`, does not
      compute what others alone need. Loops over what several outputs need may then run apart. Not
      of a class, whose entries compute all of their outputs.

    The function's parameters have defaults and are fixed while building: `--set n=100`, or
    `spmd.build(program, n=100)`. It returns an array, a number, or a tuple, list or dict of them,
    nested as you like; a run returns the same nest. `{"a": {"b": u}}` has the output `a.b`.

    Of a class, the parameters are those of `__init__`, which runs when a job is opened. The arrays
    that it binds to attributes are state: they stay on the ranks from call to call. Methods under
    `@spmd.entry` are what the job can be asked for.

    UsageError for a mesh that is none, LayoutError for rules that name no axis of it,
    UnsupportedError for a class that is selectable.

    Example::

        @spmd.program(mesh=("r",))
        def mean(n: int = 10):
            x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i)
            return {"mean": np.sum(x) / n}

        print(mean.eager(n=5)["mean"])    # 2.0
    """
    if function is not None and not callable(function):
        raise UsageError('write @spmd.program(mesh=("x",))', place=user_place())

    def decorate(f: Any) -> Program:
        if not isinstance(f, type):
            return Program(f, mesh, layout, sync, selectable)
        if selectable:
            raise UnsupportedError(
                f"{f.__name__} is a class, and selectable", place=user_place(),
                expected="selectable=True above a function", found="selectable=True above a class",
                remedy="an entry of its own for outputs that are asked for alone")
        return Entity(f, mesh, layout, sync)

    return decorate if function is None else decorate(function)

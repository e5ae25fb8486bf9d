"""Lists the formulas in a Plan's Work and exchanges, and replaces them.

Goes in: Work, an exchange, or parts of one. Comes out: what is in it, or the same with other Exprs.
Always holds: formulas come in the order of computing: those of loops, then of what is read, then of
where it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from operator import is_not
from typing import Any, TypeVar

from codegen.ir import plan as g
from codegen.symbolic.expr import Expr, Sym

_INSIDE = (
    g.Apply, g.Argument, g.Bound, g.Box, g.WorkBranch, g.LibraryCall, g.Exchange, g.Integer,
    g.LocalValue, g.KernelCall, g.Lane, g.Load, g.Nest, g.Part, g.Reduce, g.Store, g.Sweep,
    g.WorkLoop, g.Var,
)
_PLAIN = ("DType", "DType | None", "Place | None", "Sym", "bool", "int", "int | None", "str",
          "M | None", "tuple[M, ...]", "Caller", "tuple[int, ...]")
_LAST = ("limit", "value", "offset")

T = TypeVar("T")


def mapped(x: T, f: Callable[[Expr], Expr]) -> T:
    """Return x with every Expr e in it replaced by f(e)."""
    changed: T = _mapped(x, f)
    return changed


def exprs(x: Any) -> Iterator[Expr]:
    """Return an iterator over every Expr in x."""
    formulas: list[Expr] = []
    _gather(x, formulas)
    return iter(formulas)


def _gather(x: Any, formulas: list[Expr]) -> None:
    if isinstance(x, Expr):
        formulas.append(x)
    elif isinstance(x, tuple):
        for y in x:
            _gather(y, formulas)
    else:
        kind: Any = type(x)
        for name in _order(kind):
            _gather(getattr(x, name), formulas)


def picked(x: Any) -> Iterator[Sym]:
    """Yield the symbols in `x` that stand for positions which data decides."""
    if isinstance(x, g.Bound):
        yield x.sym
    if isinstance(x, tuple):
        for y in x:
            yield from picked(y)
    else:
        kind: Any = type(x)
        for name in _order(kind):
            yield from picked(getattr(x, name))


def _mapped(x: Any, f: Callable[[Expr], Expr]) -> Any:
    if isinstance(x, Expr):
        return f(x)
    if isinstance(x, tuple):
        new = [_mapped(y, f) for y in x]
        return tuple(new) if any(map(is_not, x, new)) else x
    kind: Any = type(x)
    changed = {}
    for name in _order(kind):
        old = getattr(x, name)
        new_value = _mapped(old, f)
        if new_value is not old:
            changed[name] = new_value
    return replace(x, **changed) if changed else x


@cache
def _order(kind: Any) -> tuple[str, ...]:
    """Return the names of a class's fields that may contain formulas; none for other classes."""
    if not issubclass(kind, _INSIDE):
        return ()
    names = [f.name for f in fields(kind) if f.type not in _PLAIN]
    return (*(n for n in names if n not in _LAST), *(n for n in _LAST if n in names))

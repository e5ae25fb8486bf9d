"""What a manifest says in expressions and lists, as people write it.

In: expressions in prefix form, layouts. Out: text.
Always holds: the text of an expression means the same in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codegen.symbolic.meaning import names_in, rows_of, value

_SUM, _PRODUCT, _ATOM = range(3)  # how tightly a text binds
_INFIX = {"floordiv": "//", "mod": "%"}

Text = tuple[str, int]
Terms = list[tuple[int, tuple[Text, ...]]]  # a sum of products: a number, and other factors


def infix(e: Any) -> str:
    """Return an expression in prefix form as people write it, with -(-a // b) as ceil(a / b)."""
    names: dict[str, Terms] = {name: [(1, ((name, _ATOM),))] for name in names_in(e)}
    return _sum(value(rows_of(e), names, _terms))[0]


def _terms(op: str, args: Sequence[Any]) -> Terms:
    """Return an operation on its arguments as a sum of products: (number, factors) for each
    term."""
    if op == "number":
        return [(args[0], ())]
    if op == "+":
        return [term for terms in args for term in terms]
    if op == "*":
        number, factors = 1, list[Text]()
        for terms in args:
            ((by, more),) = terms if len(terms) == 1 else [(1, (_sum(terms),))]
            number, factors = number * by, [*factors, *more]
        return [(number, tuple(factors))]
    if op == "begin" and args[0] == [(1, ())]:  # the extent of the longest block
        return [(1, ((f"ceil({_divided(args[1], args[2], '/')})", _ATOM),))]
    if op == "floordiv" and all(number < 0 for number, _ in args[0]):
        above = [(-number, factors) for number, factors in args[0]]
        return [(-1, ((f"ceil({_divided(above, args[1], '/')})", _ATOM),))]
    if op in _INFIX:
        return [(1, ((_divided(args[0], args[1], _INFIX[op]), _PRODUCT),))]
    if op == "table":
        entries = ", ".join(_sum(terms)[0] for terms in args[1:])
        return [(1, ((f"({entries})[{_sum(args[0])[0]}]", _ATOM),))]
    inner = ", ".join(_sum(terms)[0] for terms in args)
    sign = {"ge0": ">=", "eq0": "=="}.get(op)
    return [(1, ((f"({inner} {sign} 0)" if sign else f"{op}({inner})", _ATOM),))]


def _divided(a: Terms, b: Terms, sign: str) -> str:
    return f"{_within(_sum(a), _PRODUCT)} {sign} {_within(_sum(b), _ATOM)}"


def _within(text: Text, least: int) -> str:
    return text[0] if text[1] >= least else f"({text[0]})"


def _sum(terms: Terms) -> Text:
    """Return the text of a sum: what is added first, then what is subtracted."""
    out, binds = "", _SUM
    for number, factors in sorted(terms, key=lambda term: term[0] < 0):
        parts = [*[(str(abs(number)), _ATOM)] * (abs(number) != 1 or not factors), *factors]
        if len(parts) == 1 and (number >= 0 or out):
            text, binds = parts[0]
        else:
            text, binds = " * ".join(_within(part, _ATOM) for part in parts), _PRODUCT
        sign = "-" if number < 0 else "+"
        out += f" {sign} {text}" if out else text if sign == "+" else f"-{text}"
    return out, binds if len(terms) == 1 else _SUM


def layout_text(layout: list[list[str]]) -> str:
    """Return a layout as the user writes it: ("x", None)."""
    entries = []
    for axes in layout:
        inner = ", ".join(f'"{a}"' for a in axes)
        entries.append(f"({inner})" if len(axes) > 1 else inner or "None")
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"

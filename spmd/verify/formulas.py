"""What a manifest says in expressions and lists, as people write it.

In: expressions in prefix form, layouts. Out: text.
Always holds: the text of an expression means the same in Python.
"""

from __future__ import annotations

from typing import Any

# How tightly each operation binds, and how it is written.
_INFIX = {"+": (1, "+"), "*": (2, "*"), "/": (2, "/"), "floordiv": (2, "//"), "mod": (2, "%")}


def infix(e: Any, outer: int = 0) -> str:
    """An expression in prefix form as people write it. outer: how tightly its place binds."""
    if not isinstance(e, list):
        return str(e) if not isinstance(e, int) or e >= 0 or not outer else f"({e})"
    op, *args = e
    if op in ("ge0", "eq0"):
        return f"({infix(args[0])} {'>=' if op == 'ge0' else '=='} 0)"
    if op == "begin" and args[0] == 1:  # the extent of the longest block
        op, args = "ceil", [["/", *args[1:]]]
    if op not in _INFIX:
        return f"{op}({', '.join(infix(a) for a in args)})"
    binds, sign = _INFIX[op]
    if op == "+":
        text = infix(args[0])
        for a in args[1:]:
            negative = _negated(a)
            text += f" + {infix(a, 1)}" if negative is None else f" - {infix(negative, 2)}"
    else:  # from the left, so that only the first may be another product
        text = f" {sign} ".join(infix(a, binds + (k > 0 or op == "*")) for k, a in enumerate(args))
    return f"({text})" if binds < outer else text


def _negated(e: Any) -> Any:
    """-e where e is a negative number or has a negative factor, else None."""
    if isinstance(e, int) and e < 0:
        return -e
    if isinstance(e, list) and e[0] == "*" and isinstance(e[1], int) and e[1] < 0:
        rest = e[2:] if e[1] == -1 else [-e[1], *e[2:]]
        return rest[0] if len(rest) == 1 else ["*", *rest]
    return None


def rounded_up(e: Any) -> Any:
    """The same with -(-a // b) as ceil(a / b)."""
    if not isinstance(e, list):
        return e
    op, *args = e[0], *map(rounded_up, e[1:])
    if op == "floordiv" and (above := _all_negated(args[0])) is not None:
        return ["*", -1, ["ceil", ["/", above, args[1]]]]
    if op == "+":  # what is added first, then what is taken away
        args.sort(key=lambda a: _negated(a) is not None)
    if op != "*":
        return [op, *args]
    flat = [f for a in args for f in (a[1:] if isinstance(a, list) and a[0] == "*" else [a])]
    factor, rest = 1, [f for f in flat if not isinstance(f, int)]
    for f in flat:
        factor *= f if isinstance(f, int) else 1
    return ["*", factor, *rest] if factor != 1 else rest[0] if len(rest) == 1 else ["*", *rest]


def _all_negated(e: Any) -> Any:
    """-e where every term of e is negative, else None."""
    if isinstance(e, list) and e[0] == "+":
        terms = [_negated(a) for a in e[1:]]
        return None if None in terms else ["+", *terms]
    return _negated(e)


def layout_text(layout: list[list[str]]) -> str:
    """As the user writes it: ("x", None)."""
    entries = []
    for axes in layout:
        inner = ", ".join(f'"{a}"' for a in axes)
        entries.append(f"({inner})" if len(axes) > 1 else inner or "None")
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"

"""C expressions put together from parts that know how tightly they bind.

Goes in: Texts and forms of FUNCTIONS. Comes out: Texts.
Always holds: parentheses stand where C, or a reader of C, needs them, and nowhere else; the order
of evaluation is that of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.functions import Form
from codegen.symbolic.spelling import Binds, Text, within

# How tightly an operator binds, and how tightly its left and right side have to.
_SUM = (Binds.SUM, Binds.SUM, Binds.PRODUCT)
_PRODUCT = (Binds.PRODUCT, Binds.PRODUCT, Binds.UNARY)
_COMPARE = (Binds.COMPARE, Binds.SUM, Binds.SUM)
_BITS = (Binds.BITS, Binds.UNARY, Binds.UNARY)
_INFIX = {
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "&": _BITS, "|": _BITS, "^": _BITS,
    "==": _COMPARE, "!=": _COMPARE, "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE, ">=": _COMPARE,
}
_PREFIX = {"-": Binds.UNARY, "~": Binds.UNARY, "!": Binds.NOT}


def single(text: str) -> Text:
    """Return the Text of a name, an element or a call, which needs no parentheses anywhere."""
    return text, Binds.ATOM


def infix(left: Text, operator: str, right: Text) -> Text:
    binds, on_left, on_right = _INFIX[operator]
    return f"{within(left, on_left)} {operator} {within(right, on_right)}", binds


def cast(ctype: str, text: Text) -> Text:
    return f"({ctype}){within(text, Binds.ATOM)}", Binds.UNARY


def call(name: str, *arguments: Text) -> Text:
    return single(f"{name}({', '.join(a[0] for a in arguments)})")


def prefix(operator: str, text: Text) -> Text:
    return f"{operator}{within(text, Binds.ATOM)}", _PREFIX[operator]


def applied(form: Form, operands: Sequence[Text], ending: str) -> Text:
    """Return a form of FUNCTIONS applied to its operands; ending: the suffix of support
    functions."""
    if isinstance(form, int):
        return operands[form]
    head, *parts = (form, *range(len(operands))) if isinstance(form, str) else form
    assert isinstance(head, str)
    texts = [single(p) if isinstance(p, str) else applied(p, operands, ending) for p in parts]
    if head == "?":
        test, yes, no = texts
        both = f"{within(yes, Binds.COMPARE)} : {within(no, Binds.COMPARE)}"
        return f"{within(test, Binds.OR)} ? {both}", Binds.CHOICE
    if head == ",":
        return single(f"((void){within(texts[0], Binds.ATOM)}, {texts[1][0]})")
    if head in _INFIX and len(texts) == 2:
        return infix(texts[0], head, texts[1])
    return prefix(head, texts[0]) if head in _PREFIX else call(f"{head}_{ending}", *texts)

"""C expressions put together from parts that know how tightly they bind.

Goes in: Texts and templates of FUNCTIONS. Comes out: Texts.
Always holds: parentheses stand where C, or a reader of C, needs them, and nowhere else; the order
of evaluation is that of the parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from codegen.symbolic.spelling import Binds, Text, within

# How tightly an operator binds, and how tightly its left and right side have to.
_SUM = (Binds.SUM, Binds.SUM, Binds.PRODUCT)
_PRODUCT = (Binds.PRODUCT, Binds.PRODUCT, Binds.UNARY)
_COMPARE = (Binds.COMPARE, Binds.SUM, Binds.SUM)
_BITS = (Binds.BITS, Binds.UNARY, Binds.UNARY)
_INFIX = {
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "&": _BITS, "|": _BITS, "^": _BITS,
    "==": _COMPARE, "!=": _COMPARE, "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE, ">=": _COMPARE,
}  # fmt: skip
_PREFIX = {"-": Binds.UNARY, "~": Binds.UNARY, "!": Binds.NOT}
_BETWEEN = re.compile(r"(.+) ([-+*/&|^]|[<>]=?|[=!]=) (.+)")  # an operator and its sides


def single(text: str) -> Text:
    """A name, an element, a call."""
    return text, Binds.ATOM


def infix(left: Text, operator: str, right: Text) -> Text:
    binds, on_left, on_right = _INFIX[operator]
    return f"{within(left, on_left)} {operator} {within(right, on_right)}", binds


def cast(ctype: str, text: Text) -> Text:
    return f"({ctype}){within(text, Binds.ATOM)}", Binds.UNARY


def call(name: str, *arguments: Text) -> Text:
    return single(f"{name}({', '.join(a[0] for a in arguments)})")


def filled(template: str, operands: Sequence[Text], ending: str) -> Text:
    """A template of FUNCTIONS with its operands; ending: of support functions."""
    if template == "{0}":
        return operands[0]
    if template.startswith("spmd_"):
        return single(template.format(*(o[0] for o in operands), t=ending))
    if template == "{0} ? {1} : {2}":
        needs = (Binds.OR, Binds.COMPARE, Binds.COMPARE)
        texts = (within(o, n) for o, n in zip(operands, needs, strict=True))
        return template.format(*texts), Binds.CHOICE
    if found := _BETWEEN.fullmatch(template):
        return infix(_side(found[1], operands), found[2], _side(found[3], operands))
    tight = [within(o, Binds.ATOM) for o in operands]
    return template.format(*tight), _PREFIX.get(template[0], Binds.ATOM)


def _side(template: str, operands: Sequence[Text]) -> Text:
    """One side of an operator: an operand, or what a template makes of it."""
    if found := re.fullmatch(r"\{(\d)\}", template):
        return operands[int(found[1])]
    return single(template.format(*(within(o, Binds.ATOM) for o in operands)))

"""Texts of C that are alike: equal but for their own names, and for some numbers.

Goes in: text. Comes out: its tokens, which of them are numbers that a function could be handed, and
in which of these texts that are alike differ.
Always holds: the tokens of a text, joined, are that text.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import groupby

# What compilers make no better where they know an operand, as they do a quotient or a power.
_TAKES_ANY = ("spmd_minimum_", "spmd_maximum_", "spmd_philox_")


def tokens(text: str) -> list[str]:
    """Return the names and numbers of a text, and what stands between them."""
    out: list[str] = []
    for in_word, some in groupby(text, _is_in_word):
        piece = "".join(some)
        joins = in_word and len(out) > 1 and out[-2][0].isdigit() and piece[0].isdigit()
        if joins and (out[-1] == "." or out[-1] in ("+", "-") and out[-2].endswith("e")):
            piece = "".join((out.pop(-2), out.pop(), piece))  # 0.5, 1e-05
        out.append(piece)
    return out


def _is_in_word(c: str) -> bool:
    return c.isalnum() or c == "_"


def is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def plain(pieces: Sequence[str], own: Container[str]) -> tuple[list[str], dict[str, int]]:
    """Return the tokens with the ordinals of names in place of names, and those ordinals. own: the
    names that another text may call otherwise; that of a function that is called is none."""
    order: dict[str, int] = {}
    out = list(pieces)
    for k, piece in enumerate(pieces):
        if piece in own and not (k + 1 < len(pieces) and pieces[k + 1].startswith("(")):
            out[k] = f"${order.setdefault(piece, len(order))}"
    return out, order


def numbers(pieces: Sequence[str]) -> list[int]:
    """Return the places of numbers that code runs as fast with in a variable: floats that are no
    divisor and no operand of a function, but of those that are as fast with any; and the keys of
    random numbers."""
    found: list[int] = []
    called: list[str] = []  # around a token: the function whose operand it is, or ""
    for k, piece in enumerate(pieces):
        if piece[0].isdigit():
            around = called[-1] if called else ""
            if not around and ("." in piece or "e" in piece):
                divides = k > 0 and pieces[k - 1].rstrip(" (-").endswith("/")
                found += [] if divides else [k]
            elif around.startswith(_TAKES_ANY) and kind(piece):
                found.append(k)
        elif not is_name(piece):
            for place, c in enumerate(piece):
                if c in "([":
                    name = pieces[k - 1] if place == 0 and k and is_name(pieces[k - 1]) else ""
                    called.append("[" if c == "[" else name)
                elif c in ")]" and called:
                    called.pop()
    return found


def kind(number: str) -> str:
    """Return the type of C of a number with a point or a suffix; "" for an int."""
    if number.endswith(("u", "ull")):
        return "uint64_t"
    if "." in number or "e" in number:
        return "float" if number.endswith("f") else "double"
    return ""


def differing(rows: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the columns in which not all rows are equal; columns that are equal stand together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for k, column in enumerate(zip(*rows, strict=True)):
        if len(set(column)) > 1:
            groups.setdefault(column, []).append(k)
    return list(groups.values())

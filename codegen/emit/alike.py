"""Texts of C that are alike: equal but for their own names, and for some numbers.

Goes in: text. Comes out: its tokens, which of them are numbers that could be arguments of one
function for all, and which of these differ between texts that are alike.
Always holds: the tokens of a text, joined, are that text.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache

# What compilers make no better where they know an operand, as they do a quotient or a power.
_TAKES_ANY = ("spmd_minimum_", "spmd_maximum_", "spmd_philox_")

_APART = {ord(c): f"\0{c}\0" for c in map(chr, range(128)) if not (c.isalnum() or c == "_")}


@lru_cache(maxsize=4096)
def tokens(text: str) -> tuple[str, ...]:
    """Return the names and numbers of a text, and each other character between them, in order."""
    pieces = [piece for piece in text.translate(_APART).split("\0") if piece]
    out: list[str] = []
    for piece in pieces:
        if piece[0].isdigit() and len(out) > 1 and out[-2][0].isdigit() and (
            out[-1] == "." or out[-1] in ("+", "-") and out[-2].endswith("e")
        ):
            piece = "".join((out.pop(-2), out.pop(), piece))  # 0.5, 1e-05
        out.append(piece)
    return tuple(out)


def is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def plain(pieces: Sequence[str], own: Container[str]) -> tuple[list[str], dict[str, int]]:
    """Return the tokens, in which each name in `own` is replaced by the order of its first use, and
    that order by name. Names of functions stay. own: names that may differ between alike texts."""
    order: dict[str, int] = {}
    out = list(pieces)
    for k, piece in enumerate(pieces):
        if piece in own and not (k + 1 < len(pieces) and pieces[k + 1].startswith("(")):
            out[k] = f"${order.setdefault(piece, len(order))}"
    return out, order


def numbers(pieces: Sequence[str]) -> list[int]:
    """Return the positions of tokens that are numbers which a function may take as arguments
    without getting slower: floats, but for divisors and for operands of functions that compilers
    simplify for a known operand; and the keys of random numbers."""
    values: list[int] = []
    called: list[str] = []  # around a token: the function whose operand it is, or ""
    before = ""  # the last token but for spaces, signs and parentheses
    for k, piece in enumerate(pieces):
        if piece in "( -":
            if piece == "(":
                called.append(pieces[k - 1] if k and is_name(pieces[k - 1]) else "")
            continue
        if piece == "[":
            called.append("[")
        elif piece in ")]":
            if called:
                called.pop()
        elif piece[0].isdigit():
            around = called[-1] if called else ""
            takes = around.startswith(_TAKES_ANY) if around else not piece.endswith(("u", "ull"))
            if takes and kind(piece) and before != "/":
                values.append(k)
        before = piece
    return values


def kind(number: str) -> str:
    """Return the C type of a number that has a point or a suffix; "" for an int."""
    if number.endswith(("u", "ull")):
        return "uint64_t"
    if "." in number or "e" in number:
        return "float" if number.endswith("f") else "double"
    return ""


def differing(rows: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the columns in which rows differ; equal columns form one group."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for k, column in enumerate(zip(*rows, strict=True)):
        if len(set(column)) > 1:
            groups.setdefault(column, []).append(k)
    return list(groups.values())

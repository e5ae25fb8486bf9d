"""Guess what a misspelt word means: the one helper behind every "if that is what you mean".

In: a word that nothing is called, and the names that exist. Out: the name that is most like it, or
a remedy for an error's `try` line. Always holds: nothing but difflib is imported, and
that only where a word is misspelt: every rank reads this file.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LIKE = 0.6  # of 1: how alike two words are before one of them is taken for the other
VERY_LIKE = 0.75  # where there are so many names that something is always a little alike


def nearest(word: object, known: Iterable[str], least: float = LIKE) -> str:
    """Return the name in `known` that is most like `word`, or "" if none is alike by `least`.

    Upper and lower case count as the same letter. A word that is no text is like nothing.
    """
    if not isinstance(word, str):
        return ""
    from difflib import get_close_matches  # only who makes a mistake waits for it

    by_letters = {name.lower(): name for name in known}
    return next((by_letters[x] for x in get_close_matches(word.lower(), by_letters, 1, least)), "")


def meant(word: object, known: Iterable[str], form: str = "{}", least: float = LIKE) -> str:
    """Return the remedy "NAME, if that is what you mean" for a misspelt word, or "" without one.

    form: how the name is written in the text, with {} in its place, as in "{}=…" of a keyword.
    """
    near = nearest(word, known, least)
    return f"{form.format(near)}, if that is what you mean" if near else ""


def meant_keyword(error: TypeError, known: Iterable[str]) -> str:
    """Return the remedy for a misspelt keyword argument, or "" if the error is about another thing.

    error: what Python raised for the call. known: the names of the function's parameters.
    """
    return meant(unexpected_keyword(error), known, "{}=…")


def unexpected_keyword(error: TypeError) -> str:
    """Return the keyword argument that a call's function does not have, or "" if the error is about
    another thing."""
    text = str(error)
    word = text.partition("unexpected keyword argument '")[2].partition("'")[0]
    return word or (text.split("'")[1] if "is an invalid keyword argument" in text else "")

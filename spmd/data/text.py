"""Operations on text: to words, characters and bytes, and on tokens, which are integers.

Always holds: a result follows from text and arguments alone. Vocabularies are in vocabularies.py
and byte_pairs.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.errors import InputError
from spmd.data.byte_pairs import BytePairs
from spmd.data.preparing import pad_or_cut
from spmd.data.vocabularies import Vocabulary

__all__ = [
    "BytePairs", "Vocabulary", "as_bytes", "characters", "decode_bytes", "fixed_bytes", "normalise",
    "pad_or_cut", "windows", "words",
]

WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def normalise(text: str, *, lower: bool = True, accents: bool = True) -> str:
    """Normalise a text to Unicode NFKC, small letters, single spaces.

    accents=False takes the accents off; lower=False keeps capitals.

    ::

        >>> data.text.normalise("  The ﬁrst\\n Café ", accents=False)
        'the first cafe'
    """
    text = unicodedata.normalize("NFKC", text)
    if lower:
        text = unicodedata.normalize("NFKC", text.casefold())
    if not accents:
        apart = unicodedata.normalize("NFD", text)
        text = "".join(c for c in apart if not unicodedata.combining(c))
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.split())


def words(text: str, punctuation: bool = True) -> list[str]:
    """Return the words of a text, and its marks of punctuation, each by itself.

    ::

        >>> data.text.words("It's 5 o'clock, go!")
        ["It's", '5', "o'clock", ',', 'go', '!']
    """
    words = WORD.findall(text)
    return words if punctuation else [w for w in words if w[0].isalnum() or w[0] == "_"]


def characters(text: str) -> list[str]:
    """Return the characters of a text."""
    return list(text)


def as_bytes(text: str | bytes) -> np.ndarray:
    """Return the bytes of a text in UTF-8 as tokens from 0 to 255: uint8.

    ::

        >>> data.text.as_bytes("né").tolist()
        [110, 195, 169]
    """
    raw = text.encode() if isinstance(text, str) else text
    return np.frombuffer(raw, np.uint8)


def fixed_bytes(text: str | bytes, length: int) -> np.ndarray:
    """Return a text as `length` bytes, uint8, padded with zeros. InputError if it is longer.

    ::

        >>> data.text.fixed_bytes("ab", 4).tolist()
        [97, 98, 0, 0]
    """
    encoded = as_bytes(text)
    if len(encoded) > length:
        raise InputError("a text is longer than its field", expected=f"at most {length} bytes",
                         found=f"{len(encoded)}: {str(text)[:40]!r}")
    return pad_or_cut(encoded, length)


def decode_bytes(tokens: Any) -> str:
    """Return the text of bytes, without zeros at its end.

    ::

        >>> data.text.decode_bytes([97, 98, 0, 0])
        'ab'
    """
    raw = np.asarray(tokens).astype(np.uint8).tobytes()
    return raw.rstrip(b"\0").decode(errors="replace")


def windows(tokens: Sequence[int] | Any, length: int, stride: int | None = None) -> np.ndarray:
    """Return parts of `length` tokens, `stride` apart: (number of parts, length), a view.

    Tokens that do not fill the last part are left out. stride=None puts them side by side; with
    stride=length - 1 and the last token of one being the first of the next, a language model sees
    each token as a target once.

    ::

        >>> data.text.windows(np.arange(7), 3, stride=2).tolist()
        [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    """
    row = np.asarray(tokens)
    step = length if stride is None else stride
    if length < 1 or step < 1 or row.ndim != 1:
        raise InputError("windows of tokens", expected="a row of tokens, length and stride from 1",
                         found=f"shape {row.shape}, length {length}, stride {step}")
    if len(row) < length:
        return np.empty((0, length), row.dtype)
    return np.lib.stride_tricks.sliding_window_view(row, length)[::step]

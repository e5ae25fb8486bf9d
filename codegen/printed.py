"""Turn lines of the engine's print into the text that Python would write.

In: the texts of Print ops, with marks: which stream they are for, whether a line goes on,
arrays as their elements, and formats. Out: text; arrays in it are written by NumPy itself.
Always holds: a text without marks stays as it is.
"""

from __future__ import annotations

import ast

import numpy as np

from codegen.progress import ARRAY, FIELD


def array_mark(dtype: str, shape: tuple[int, ...], of_repr: bool) -> str:
    """Return the text between ARRAY and the elements of an array."""
    return f"{'r' if of_repr else 's'}{dtype}{shape}:"


def written(text: str) -> str:
    """Return the text with arrays written as NumPy does, and formatted fields aligned."""
    parts = text.split(ARRAY)
    text = "".join(_array(part) if k % 2 else part for k, part in enumerate(parts))
    plain, *fields = text.split(FIELD)
    for spec, aligned, rest in zip(fields[::3], fields[1::3], fields[2::3]):
        plain += format(aligned, spec) + rest
    return plain


def is_whole(text: str) -> bool:
    """Return whether a text ends in no array and in nothing that has a format."""
    return not text.count(ARRAY) % 2 and not text.count(FIELD) % 3


def joined(lines: list[str], text: str, mark: str) -> None:
    """Append the text of a Print op to lines, or to the last of them if that goes on. mark: the end
    of such a line."""
    if lines and lines[-1].endswith(mark):
        text = lines.pop().removesuffix(mark) + text
    lines.append(text if text.endswith(mark) else written(text))


def _array(part: str) -> str:
    head, _, elements = part.partition(":")
    name, paren, extents = head[1:].partition("(")
    dtype = np.dtype(np.float32 if name == "bfloat16" else name)
    values = [_element(x, dtype) for x in elements.split()]
    array = np.array(values, dtype).reshape(ast.literal_eval(paren + extents))
    return repr(array) if part[0] == "r" else str(array)


def _element(text: str, dtype: np.dtype) -> object:
    if dtype.kind == "b":
        return text == "True"
    return int(text) if dtype.kind in "iu" else complex(text) if dtype.kind == "c" else float(text)

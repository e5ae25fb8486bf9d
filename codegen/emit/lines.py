"""Lines of C within 99 columns: comments, calls, and what is broken at its operators.

Always holds: breaking a line changes no token.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

from codegen.errors import Place

WIDTH = 99


def source(place: Place) -> str:
    """Return file:line and the source text of a place in the user's program, fit for a comment."""
    line = " ".join(place.source_line().split()).replace("*/", "* /").replace("/*", "/ *")
    return f"{os.path.basename(place.file)}:{place.line}: {line}".rstrip(": ")


def comment(*paragraphs: str, indent: str = "") -> str:
    """Return a comment of some paragraphs; an indented one is a formula, broken at its
    operators."""
    room = WIDTH - len(indent) - 3
    lines = [ln for text in paragraphs for ln in _filled(text, room)]
    if len(paragraphs) == 1:  # closed where it ends
        lines = _filled(paragraphs[0], room - 3)
    text = f"\n{indent} * ".join(lines)
    return f"{indent}/* {text}" + (" */" if len(paragraphs) == 1 else f"\n{indent} */")


def _filled(text: str, room: int) -> list[str]:
    if text.startswith(" "):
        return fold(text, room).split("\n")
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)


def wrapped(head: str, parts: Sequence[str], end: str, indent: str = "    ") -> str:
    """Return head, the parts separated by commas, and end, broken before the last column."""
    lines = [head]
    for k, part in enumerate(parts):
        piece = part + (end if k + 1 == len(parts) else ",")
        if len(lines[-1]) + len(piece) + 1 > WIDTH:
            lines.append(indent + piece)
        else:
            lines[-1] += ("" if lines[-1] == head else " ") + piece
    return "\n".join(lines)


def fold(line: str, width: int = WIDTH) -> str:
    """Return a long line of code broken at operators or commas, with the following lines
    indented."""
    if len(line) <= width or line.lstrip().startswith(("/*", "* ", "#")):
        return line
    indent = len(line) - len(line.lstrip())
    inner = line[:indent] + "    "
    out: list[str] = []
    while len(line) > width and (cut := _cut(line, indent + 8, width)) > 0:
        if line[cut - 1] in "+-?:":  # the operator begins the next line
            cut -= 2
        out.append(line[:cut])
        line = inner + line[cut:].lstrip()
    return "\n".join([*out, line])


_MARKS = (" + ", " - ", " ? ", " : ", ", ")


def _cut(line: str, first: int, width: int) -> int:
    """Return the column at which to break a line: the last one within the width among those inside
    the fewest parentheses, and never inside a string."""
    depth, best, least, quoted = 0, -1, 0, False
    for k, c in enumerate(line[:width]):
        quoted ^= c == '"'  # one within a text is \042
        if quoted or c not in " ,([)]":
            continue
        depth += (c in "([") - (c in ")]")
        after = next((len(m) - 1 for m in _MARKS if line.startswith(m, k)), 0)
        if after and first < k + after < width and (best < 0 or depth <= least):
            best, least = k + after, depth
    return best

"""In which turn of which loop an eager run is: what spmd.save counts, as the compiler counts it.

In: loops that Python runs, as their iterators see them, and the user's source. Out: a turn from 0.
Always holds: the loop is the innermost one of the program around a call, in the function that
calls or in one that called that. A while is counted by the calls in it.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Generator, Iterable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from codegen.places import is_user_file


class Turns:
    """The loops of one eager run that are under way: of each its frame, its line and its turn."""

    def __init__(self) -> None:
        self.open: list[list[Any]] = []  # frame, line, turn; innermost last
        self.whiles: dict[tuple[int, int], tuple[tuple[Any, ...], int]] = {}

    def counted(self, items: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the items, one for each turn of the user's loop, and count the turns."""
        frame = _users(sys._getframe(1))
        here: list[Any] = [frame, frame.f_lineno if frame else 0, -1]
        self.open.append(here)
        try:
            for item in items:
                here[2] += 1
                yield item
        finally:
            self.open.remove(here)

    def of_caller(self) -> int | None:
        """Return the turn of the innermost user's loop around the call of one of our functions, or
        None
    outside of loops."""
        frame = _users(sys._getframe(1))
        inside = False  # of a function that a loop of ours calls: fori_loop, scan
        while frame is not None:
            for kind, line in _loops(frame.f_code, frame.f_lineno):
                here = next((h for h in self.open[::-1] if h[0] is frame and h[1] == line), None)
                if here is not None:
                    return int(here[2])
                if kind == "while":
                    return self._of_while(frame, line)
            calls = next((h for h in self.open[::-1] if h[0] is _users(frame.f_back)), None)
            inside = calls is not None and calls[1] == getattr(calls[0], "f_lineno", -1)
            if inside and calls is not None:
                return int(calls[2])
            frame = _users(frame.f_back)
        return None

    def _of_while(self, frame: FrameType, line: int) -> int:
        around = tuple((id(h), h[2]) for h in self.open)
        before, turn = self.whiles.get((id(frame), line), (None, 0))
        turn = turn + 1 if before == around else 0
        self.whiles[id(frame), line] = around, turn
        return turn


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@lru_cache
def _tree(code: CodeType) -> tuple[ast.AST, int] | None:
    try:
        lines, first = inspect.getsourcelines(code)
        return ast.parse(textwrap.dedent("".join(lines))), max(1, first) - 1
    except (OSError, SyntaxError):
        return None


def _loops(code: CodeType, line: int) -> list[tuple[str, int]]:
    """Return the loops of a function that enclose one of its lines, innermost first, as (kind,
    line)."""
    if (parsed := _tree(code)) is None:
        return []
    tree, before = parsed
    around = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))
              and node.body[0].lineno + before <= line
              <= (node.body[-1].end_lineno or 0) + before]
    around.sort(key=lambda node: -node.lineno)
    return [("while" if isinstance(node, ast.While) else "for", node.lineno + before)
            for node in around]

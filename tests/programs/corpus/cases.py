"""Programs as people write them in NumPy: `@case` above each says what it is given.

In: a size. Out: the arguments of a program, arrays and numbers, always the same ones. A program is
a plain function: it returns its results, or changes its arrays, and runs under NumPy too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SUBJECTS = ("solvers", "particles", "images", "statistics", "networks", "spectral", "fields",
            "finance", "pipelines")
Draw = Callable[..., Any]
_cases: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """A program: its function, its sizes when tested and when measured, its arguments by size.

    refused: the message with which a build refuses it today, though it should work.
    """

    function: Callable[..., Any]
    small: int
    size: int
    arguments: Callable[[int, Draw], dict[str, Any]]
    refused: str = ""

    def given(self, size: int | None = None) -> dict[str, Any]:
        """Return the arguments for a size, or for the small one."""
        random = np.random.default_rng(0)
        return self.arguments(size or self.small, lambda *shape: random.random(shape))


def case(
    small: int, size: int, arguments: Callable[[int, Draw], dict[str, Any]], refused: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function below is a program of the corpus. arguments(n, r) returns what it is
    called with; `r(shape…)` are random numbers between 0 and 1."""

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        _cases[function.__name__] = Case(function, small, size, arguments, refused)
        return function

    return noted


def cases() -> dict[str, Case]:
    """Return the programs of all subjects by their names."""
    for subject in SUBJECTS:
        importlib.import_module(f"tests.programs.corpus.{subject}")
    return _cases

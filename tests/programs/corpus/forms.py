"""The programs of the corpus as spmd builds them, in three forms of layout.

In: a case, or a class, and the name of a form. Out: a Program or an Entity, and its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import spmd
from tests.programs.corpus.cases import Case


@dataclass(frozen=True)
class Form:
    """A mesh, and the axes over which the first dims of every array are split; without axes, nobody
    says how arrays lie."""

    mesh: tuple[str, ...]
    axes: tuple[str, ...]

    def layout(self, ndim: int) -> tuple[str | None, ...] | None:
        return (*self.axes, *[None] * ndim)[:ndim] if self.axes else None


FORMS = {"none": Form(("x",), ()), "one axis": Form(("x",), ("x",)),
         "two axes": Form(("x", "y"), ("x", "y"))}


def results(returned: Any, given: dict[str, Any]) -> list[Any]:
    """Return what a program computed: what it returned, or else its arrays."""
    if returned is None:
        return [value for value in given.values() if isinstance(value, np.ndarray)
                or hasattr(value, "shape")]
    return list(returned) if isinstance(returned, tuple) else [returned]


def as_program(case: Case, form: str, size: int | None = None) -> Any:
    """Return a case as a program whose inputs are its arrays; its numbers are constants."""
    given, of = case.given(size), FORMS[form]

    def body() -> Any:
        mine = {name: spmd.input(name, value.shape, value.dtype, of.layout(value.ndim))
                if isinstance(value, np.ndarray) else value for name, value in given.items()}
        return tuple(results(case.function(**mine), mine))

    body.__name__ = case.function.__name__
    return spmd.program(mesh=of.mesh)(body)


def inputs(case: Case, size: int | None = None) -> dict[str, Any]:
    return {name: value for name, value in case.given(size).items()
            if isinstance(value, np.ndarray)}


def as_entity(kept: type, form: str) -> Any:
    """Return a class with the rows of its arrays split as a form says."""
    of = FORMS[form]
    return spmd.program(mesh=of.mesh, layout={"rows": of.axes[0]} if of.axes else None)(kept)

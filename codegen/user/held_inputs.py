"""Inputs that are state of an entity: their declarations in functions, and the state in their
place.

Read by the tracer and by eager runs. Always holds: a declaration has the shape and dtype of the
state, or ProgramError says what both are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from codegen.errors import Place, ProgramError
from codegen.places import user_place
from codegen.user import named, state_rules

Type = tuple[str, tuple[Any, ...]]  # the name of a dtype, and extents


@dataclass(frozen=True)
class HeldInput:
    """An array that a function declares as state. shape, dtype, layout, default: as the user writes
    them. type: the declared type, in a form that compares."""

    shape: Any
    dtype: Any
    layout: Any
    default: Any
    type: Type
    place: Place | None


def taken(
    state: Any, name: str, declared: Mapping[str, Type], type_of: Callable[[Any], Type],
    copied: Callable[[Any], Any],
) -> Any:
    """Return the state that stands in the place of an input of its name, as copies. declared: the
    types of the arrays, by name; type_of: that of an array of the state."""
    arrays = dict(named.named(state, name))
    if list(arrays) != list(declared):
        raise ProgramError(f"{name} is state, and is declared as another tree here",
                           place=user_place(), expected=named.some(arrays),
                           found=named.some(declared))
    for leaf, x in arrays.items():
        if type_of(x) != declared[leaf]:
            raise ProgramError(f"{leaf} is state, and is declared otherwise here",
                               place=user_place(), expected=state_rules.type_text(*type_of(x)),
                               found=state_rules.type_text(*declared[leaf]))
    return named.renamed(lambda _, x: copied(x), state, name)

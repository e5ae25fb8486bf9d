"""Names and distances of spmd.save, checked alike in programs and in eager runs."""

from __future__ import annotations

from typing import Any

from codegen.errors import UsageError
from codegen.places import user_place


def check_series(name: Any, every: Any) -> None:
    """Raise UsageError for an invalid name of a series of frames or an invalid number of turns."""
    if not isinstance(name, str) or not name.replace(".", "_").isidentifier():
        raise UsageError(f"spmd.save: {name!r} is no name of frames", place=user_place(),
                         expected='a name as variables have it, first: spmd.save("u", u)',
                         found=repr(name))
    if type(every) is not int or every < 1:
        raise UsageError(f"spmd.save({name!r}, every={every!r}): no number of turns",
                         place=user_place(), found=repr(every),
                         expected="a whole number from 1 that is known when you build")


def nothing_saved(entry: str) -> UsageError:
    """Return the error for a stream of an entry, or, where that is "", of a program, that saves
    nothing."""
    return UsageError(
        f"{f'the entry {entry}' if entry else 'the program'} saves nothing while it runs: there is "
        "nothing to stream", expected='spmd.save("token", token) in a loop of it',
        found="no spmd.save")

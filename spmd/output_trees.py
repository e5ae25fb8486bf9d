"""Outputs in the tree that a program returns: dicts, lists, tuples and named tuples.

In: outputs in order, the tree as a manifest holds it. Out: the same tree with the outputs in it.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from functools import cache
from typing import Any


def structure(tree: Any, outputs: list[Any]) -> Any:
    """Return outputs as the program returned them: tree as a manifest holds it
    (codegen.ir.graph.Returned)."""
    if not isinstance(tree, list):
        return outputs[tree]
    kind, *inner = tree
    if kind == "dict":
        return {key: structure(below, outputs) for key, below in inner}
    if kind == "named":
        name, *fields = inner
        values = (structure(below, outputs) for _, below in fields)
        return _named(name, tuple(field for field, _ in fields), values)
    values = (structure(below, outputs) for below in inner)
    return list(values) if kind == "list" else tuple(values)


def _named(name: str, fields: tuple[str, ...], values: Iterable[Any]) -> Any:
    """Return a named tuple like the program's: its class is not where the image is."""
    return _named_class(name, fields)(*values)


@cache
def _named_class(name: str, fields: tuple[str, ...]) -> Any:
    record_class = namedtuple("Returned", fields, rename=True)  # type: ignore[misc]
    record_class.__name__ = record_class.__qualname__ = name

    def reduced(self: Any) -> Any:  # the class has no module where pickle could look it up
        return _named, (name, fields, tuple(self))

    record_class.__reduce__ = reduced  # type: ignore[method-assign]
    return record_class

"""What a program returns: arrays and numbers as outputs, and the tree that they are the leaves of.

In: what the user's function returned. Out: outputs with distinct names, and a tree (ir.Returned).
Always holds: leaf k of the tree, in order, is output k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.errors import Place, ProgramError
from codegen.image.elf import printable
from codegen.image.schema import MOST_NESTED
from codegen.ir.graph import Output, Returned, Value
from codegen.trace.array import Array, Number, as_value
from codegen.trace.context import Context
from codegen.trace.numpy.masks import Chosen
from codegen.trace.ranks import mapping
from codegen.user.dims import extent_of
from codegen.user.named import below, held


def outputs_of(context: Context, returned: Any, place: Place) -> tuple[list[Output], Returned]:
    """Raises ProgramError, or UnsupportedError for x[mask], for what no image can give."""
    leaves: dict[str, Any] = {}
    if returned is None:
        raise _returned_error("None", place)
    tree = _tree(returned, "", leaves, place)
    return [_output(context, name, x, place) for name, x in leaves.items()], tree


def _tree(x: Any, name: str, leaves: dict[str, Any], place: Place, depth: int = 0) -> Returned:
    """Return the tree of a result and collect its leaves by name: a nested leaf has a dotted name,
    as files and `-o` know it."""
    if depth > MOST_NESTED:
        raise _returned_error(f"containers nested more than {MOST_NESTED} deep", place)
    inside = held(x)
    if inside is not None:
        kind: tuple[Any, ...] = ("list" if isinstance(x, list) else "tuple",)
        if isinstance(x, dict):
            kind = ("dict",)
            inside = [(_key(key, place), inner) for key, inner in inside]
        elif not isinstance(x, (tuple, list)) or hasattr(x, "_fields"):
            kind = ("named", type(x).__name__)
    else:
        name = name or "result"
        if name in leaves:
            raise ProgramError(f'a program returns two outputs named "{name}"', place=place,
                               expected="a name for each: what is nested has names with dots",
                               found=", ".join([*leaves, name]))
        leaves[name] = x
        return len(leaves) - 1
    trees = []
    for key, inner in inside:
        part = printable(key) or '""'
        subtree = _tree(inner, below(name, part), leaves, place, depth + 1)
        trees.append(subtree if kind[0] in ("list", "tuple") else (key, subtree))
    return (*kind, *trees)


def _key(key: Any, place: Place) -> str:
    if isinstance(key, str):
        return str(key)
    raise ProgramError("the keys of a dict that a program returns must be text", place=place,
                       expected='return {"u": u}', found=repr(key))


def _output(context: Context, name: str, x: Any, place: Place) -> Output:
    x = extent_of(x)
    if isinstance(x, Chosen):
        raise x.refused_output()
    if isinstance(x, np.ndarray) and x.ndim:
        x = mapping.replicated_constant(context, x)
    if not isinstance(x, (Array, Number, bool, int, float, complex, np.generic, np.ndarray)):
        kind = type(x).__name__
        text = "None" if x is None else f"a{'n' * kind.startswith(('a', 'o', 'i', 'e'))} {kind}"
        raise _returned_error(text if name == "result" else f"{text}, as {name}", place)
    if isinstance(x, int) and not -(2**63) <= x < 2**64:
        raise _returned_error(f"an int of {x.bit_length()} bits, as {name}", place)
    if isinstance(x, Array) and x.home is not None:
        x = mapping.laid(x, x.home)
    value: Value = as_value(context, x)
    if value.type.layout is None and value.type.ndim:
        raise ProgramError(f'output "{name}" is one rank\'s array, not a global one', place=place,
                           expected="what a function given to spmd.shard_map returned",
                           found=str(value.type),
                           remedy="return it from that function, with out_layouts")
    layout = value.type.layout or ()
    return Output(name, value, layout, value.type.shape)


def _returned_error(found: str, place: Place) -> ProgramError:
    return ProgramError("a program returns arrays", place=place,
                        expected="an array, a number, or a tuple, list or dict of them",
                        found=found, remedy='return {"u": u}')

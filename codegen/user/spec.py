"""Descriptions of arrays that a run is given, and trees of them: what spmd.input declares."""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.errors import ProgramError, UsageError
from codegen.places import user_place
from codegen.user.named import held, named
from codegen.user.numbers import element_type


class Spec:
    """A description of one array, as spmd.spec returns it."""

    def __init__(self, shape: Any, dtype: Any, layout: Any, default: Any) -> None:
        self.shape, self.dtype, self.layout, self.default = shape, dtype, layout, default

    def __repr__(self) -> str:
        return f"spec({self.shape}, {element_type(self.dtype)})"


def spec(shape: Any, dtype: Any = np.float32, layout: Any = None, default: Any = None) -> Spec:
    """Return a description of one array, for trees of inputs: `spmd.input("w", {"b":
    spmd.spec(4)})`.

    - shape, layout, default: as those of spmd.input. A shape may have named dims (spmd.Dim), whose
      layout follows from the program's rules.
    - dtype: float32 unless you say otherwise, which is what weights mostly are.

    DtypeError for what is no element type.

    Example::

        @spmd.program(mesh=("r",), layout={"hidden": "r"})
        def layer():
            hidden = spmd.Dim("hidden", 6)
            w = spmd.input("w", {
                "kernel": spmd.spec((2, hidden), default=lambda i, j: i + j),
                "bias": spmd.spec(hidden, default=np.ones(6)),
            })
            return np.ones(2) @ w["kernel"] + w["bias"]

        print(layer.eager())    # [ 2.  4.  6.  8. 10. 12.]
    """
    element_type(dtype)
    return Spec(shape, dtype, layout, default)


def is_tree(shape: Any) -> bool:
    """Return whether what stands where a shape may is a tree of specs, or one of them."""
    if isinstance(shape, Spec):
        return True
    inside = held(shape)
    if inside is None or not isinstance(shape, (tuple, list)):
        return inside is not None
    return any(isinstance(x, Spec) or held(x) is not None for _, x in inside)


def declared(name: str, shape: Any, dtype: Any, layout: Any) -> tuple[Any, dict[str, Spec]]:
    """Return what spmd.input declares as a tree of specs, and the specs by name. What is no tree is
    one array, of float64 unless it says otherwise. Raises UsageError and ProgramError."""
    if not is_tree(shape):
        single = Spec(shape, np.float64 if dtype is None else dtype, layout, None)
        return single, {name: single}
    if dtype is not None or layout is not None:
        raise UsageError(f'the dtype and the layout of input "{name}" stand in its specs',
                         place=user_place(), expected="spmd.spec(shape, dtype, layout)",
                         found=f"dtype={dtype!r}" if layout is None else f"layout={layout!r}")
    specs: dict[str, Spec] = {}
    for leaf, spec in named(shape, name):
        if not isinstance(spec, Spec):
            raise UsageError(f'a tree of inputs, "{name}", holds something else than specs',
                             place=user_place(), expected=f"spmd.spec(shape, dtype) as {leaf}",
                             found=type(spec).__name__)
        if leaf in specs:
            raise ProgramError(f"{leaf} is the name of two inputs", place=user_place(),
                               expected="keys that give names which differ", found=repr(leaf))
        if "" in leaf.split(".") or not leaf.isprintable():
            raise ProgramError(f"{leaf!r} cannot be the name of an input", place=user_place(),
                               expected="keys of printable text", found=repr(leaf))
        specs[leaf] = spec
    return shape, specs


def check_optional(name: str, default: Any) -> None:
    """Raise UsageError for an optional input with a default: a call may leave it out anyway."""
    if default is not None:
        raise UsageError(
            f'input "{name}" is optional and has a default', place=user_place(),
            expected="one of the two: without the input, its default is computed, or what needs it "
            "is left out", found="optional=True and default=", remedy="leave optional=True out",
        )

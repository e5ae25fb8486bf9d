"""Derivatives and maps of functions on NumPy arrays, outside of programs and runs.

Goes in: a function, and arguments with NumPy arrays in them. Comes out: what it returns, with NumPy
arrays. It is captured as the program of one rank, which is computed in NumPy.
Always holds: the caller's arrays are not changed; what the function prints is printed once.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen.errors import Place
from codegen.places import user_place
from codegen.trace.context import Context, eager_current
from codegen.trace.control.conversion import as_called
from codegen.trace.numpy.creation import asarray
from codegen.trace.program import Program, make_mesh
from codegen.trace.state import Tree, fill, flatten, leaf_type

_AXIS = "x"
ARRAY = object()  # stands for a leaf that is an array, or a number


def is_outside() -> bool:
    """Return whether no program is being captured and none runs eagerly."""
    return Context.current() is None and eager_current() is None


def on_numpy(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None,
    aloud: bool = True,
) -> Any:
    """Return function(*args, **kwargs), computed outside of programs. Numbers come back as NumPy's.
    aloud: what it prints is printed."""
    program = _Call(function, args, kwargs or {})
    arrays, prints = program.computed()
    for text in prints if aloud else ():
        builtins.print(text)
    assert program.tree is not None
    leaves = (next(arrays) if x is ARRAY else x for x in program.others)
    return fill(program.tree, leaves, fresh=True)


def copied(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with copies of their arrays, so that no later write changes them."""
    tree, leaves = flatten(tuple(args))
    fresh = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
    copies: tuple[Any, ...] = fill(tree, iter(fresh), fresh=True)
    return copies


class _Call(Program):
    """The call as a program without parameters. tree: of what it returns; others: its leaves that
    are no arrays, and ARRAY for one that is; names: of the outputs that these are."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.called_with = tuple(args), kwargs
        self.inner = function
        self.tree: Tree | None = None
        self.others: list[Any] = []
        self.names: tuple[str, ...] = ()
        here = user_place()
        self.function, self.mesh = self._returned, make_mesh(_AXIS)
        self.name = getattr(function, "__name__", "f")
        self.sync, self.rules, self.file = "least", {}, here.file if here else ""
        self.place = here or Place("?", 1)

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def bind(self, arguments: Any) -> dict[str, Any]:
        return {}

    def _returned(self) -> dict[str, Any]:
        tree, leaves = flatten(self.called_with)
        converted = [asarray(x.copy()) if isinstance(x, np.ndarray) else x for x in leaves]
        args, kwargs = fill(tree, iter(converted), fresh=True)
        self.tree, leaves = flatten(as_called(self.inner)(*args, **kwargs))
        self.others = [x if leaf_type(x) is None else ARRAY for x in leaves]
        outputs = {f"part{k}": asarray(x) for k, x in enumerate(leaves) if leaf_type(x) is not None}
        self.names = tuple(outputs)
        return outputs

    def computed(self) -> tuple[Any, list[str]]:
        """Compute the arrays one by one. Return them and the lines that the program printed."""
        prints = list[str]()
        outputs = self.interpreted({_AXIS: 1}, prints)
        return (outputs[name][()] for name in self.names), prints

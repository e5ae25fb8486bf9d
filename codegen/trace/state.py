"""What the user's variables hold: read before and after a piece of code, compared, put back.

A variable holds a tree of lists, tuples, dicts and objects, with leaves that are
arrays, numbers or anything else. Lists, dicts and objects keep their identity when they are filled.
Always holds: a variable without a value is UNDEFINED here and really unbound in the user's frame.
"""

from __future__ import annotations

import builtins
import copy
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.graph import layout_propagation
from codegen.ir.graph import ArrayType, Shape
from codegen.mesh import Layout
from codegen.symbolic import expr
from codegen.trace.array import Array, Number
from codegen.user.objects import attributes, is_carried, put_attributes, put_items

UNDEFINED: Any = type("Undefined", (), {"__repr__": lambda self: "no value"})()


class Names:
    """The variables of one activation of a user's function; made at its start.

    lost: why a name has no value. tracing: numbers of the loops being captured. arms: how many
    branches are being captured.
    """

    def __init__(self, cells: Callable[[], Any]) -> None:
        assert isinstance(cells, types.FunctionType)
        self._cells = dict(zip(cells.__code__.co_freevars, cells.__closure__ or ()))
        self._globals = cells.__globals__
        self.hidden: dict[str, Any] = {}  # variables that the source does not have
        self.lost: dict[str, str] = {}
        self.roots: list[tuple[str, Any]] = []  # what else the code can reach, with its name
        self.tracing: list[int] = []
        self.arms = 0

    def get(self, name: str) -> Any:
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return UNDEFINED
        if name in self.hidden:
            return self.hidden[name]
        return self._globals.get(name, UNDEFINED)

    def key(self, name: str) -> Any:
        """Return a key that only this variable has: the id of its cell, or its namespace and name
        if it is global."""
        cell = self._cells.get(name)
        return (id(self._globals), name) if cell is None else id(cell)

    def unbind(self, name: str) -> None:
        """Takes a variable of the function its value."""
        if name in self._cells and self.get(name) is not UNDEFINED:
            del self._cells[name].cell_contents

    def put(self, name: str, value: Any, lost: str = "") -> None:
        cell = self._cells.get(name)
        if value is UNDEFINED and lost:
            self.lost[name] = lost
        if cell is not None and value is not UNDEFINED:
            cell.cell_contents = value
        elif cell is not None:
            if self.get(name) is not UNDEFINED:
                del cell.cell_contents
        elif name in self.hidden:
            self.hidden[name] = value
        elif value is UNDEFINED:
            self._globals.pop(name, None)
        else:
            self._globals[name] = value



@dataclass(frozen=True)
class Code:
    """A piece of a user's function that is captured. bound: the variables that it may rebind.

    touched: others, through which it may change data. kept: bound variables that are read after it;
    None: all. Of a loop: flags, the variables that end it when true; its number in the function;
    fresh, bound variables of which no turn reads what they held before it; changes, how each turn
    is thought to change all arrays that the bound ones hold, by which its capture takes less time:
    "rebinds" or "writes", or "" where nobody knows.
    """

    names: Names
    bound: Sequence[str] = ()
    touched: Sequence[str] = ()
    flags: Sequence[str] = ()
    number: int = 0
    kept: Sequence[str] | None = None
    fresh: Sequence[str] = ()
    changes: str = ""

    def reads_later(self, name: str) -> bool:
        """Return whether code after it may read a variable that it binds."""
        return self.kept is None or name in self.kept


# ---- trees --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A tree of what a variable holds. kind: leaf, tuple, list, dict or object; value: itself."""

    kind: str
    value: Any
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()

    def like(self, other: Tree) -> bool:
        return (
            self.kind == other.kind
            and self.keys == other.keys
            and (self.kind == "leaf" or type(self.value) is type(other.value))
            and all(a.like(b) for a, b in zip(self.children, other.children, strict=True))
        )

    @property
    def mutable(self) -> bool:
        return self.kind in ("list", "dict", "object") or any(c.mutable for c in self.children)

    def containers(self) -> Iterator[Any]:
        """Yield the lists, dicts and objects in it, and itself."""
        if self.kind != "leaf":
            yield self.value
        for child in self.children:
            yield from child.containers()

    def paths(self) -> Iterator[str]:
        """Yield one text per leaf: "", "[0]", "['w']", ".weight" …"""
        if self.kind == "leaf":
            yield ""
        for key, child in zip(self.keys, self.children):
            step = f".{key}" if self.kind == "object" else f"[{key!r}]"
            yield from (step + path for path in child.paths())


def flatten(value: Any) -> tuple[Tree, list[Any]]:
    """Return the structure of a tree of tuples, lists, dicts and objects, and its leaves in order.

    The structure has `paths()`: a text for each leaf, such as "['w'][0]".
    """
    leaves: list[Any] = []
    return _flatten(value, leaves, set()), leaves


def attribute_set(path: str, before: Tree, now: Tree) -> str:
    """Return the first attribute of an object in the tree that was not there before; "" for
    none."""
    if before.kind != now.kind:
        return ""
    if now.kind == "object" and (new := [k for k in now.keys if k not in before.keys]):
        return f"{path}.{new[0]}"
    inside = zip(before.keys, now.keys, before.children, now.children)
    steps = ((f".{j}" if now.kind == "object" else f"[{j!r}]", a, b)
             for i, j, a, b in inside if i == j)
    return next(filter(None, (attribute_set(path + step, a, b) for step, a, b in steps)), "")


def where_grown(path: str, before: Tree, now: Tree) -> tuple[str, Tree, Tree]:
    """Return the innermost list, dict or object in two trees, of one path, that has other keys in
    one."""
    if before.keys == now.keys:
        for key, a, b in zip(before.keys, before.children, now.children):
            if a.kind == b.kind and not a.like(b):
                step = f".{key}" if before.kind == "object" else f"[{key!r}]"
                return where_grown(path + step, a, b)
    return path, before, now


def _flatten(value: Any, leaves: list[Any], above: set[int]) -> Tree:
    keys: Iterable[Any]
    kind = ""
    if id(value) in above:
        keys = ()  # it contains itself
    elif isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        keys, items = range(len(value)), value
    elif isinstance(value, dict) and "__builtins__" not in value and value is not vars(builtins):
        kind, keys, items = "dict", value.keys(), list(value.values())
    elif is_carried(value):
        held = attributes(value) or {}
        kind, keys, items = "object", held.keys(), list(held.values())
    if not kind:
        leaves.append(value)
        return Tree("leaf", value)
    inside = above | {id(value)}
    return Tree(kind, value, tuple(keys), tuple(_flatten(v, leaves, inside) for v in items))


def inside(value: Any, key: Any) -> Any:
    """Return what a list, dict or object holds under a key; None where it has no such key."""
    tree = _flatten(value, [], set()) if not isinstance(value, Array) else Tree("leaf", value)
    matching = (c.value for k, c in zip(tree.keys, tree.children) if k == key)
    return next(matching, None)


def fill(
    tree: Tree, leaves: Iterator[Any], fresh: bool = False, things: Iterator[Any] | None = None
) -> Any:
    """Return the tree with these leaves: lists, dicts and objects themselves, or fresh copies of
    them.

    things: what is filled instead of them, each after those inside it.
    """
    if tree.kind == "leaf":
        return next(leaves)
    items = [fill(child, leaves, fresh, things) for child in tree.children]
    value = tree.value
    if tree.kind == "tuple":
        if all(a is b for a, b in zip(items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if things is not None:
        value = next(things)
    elif fresh:
        value = copy.copy(value)
    if tree.kind == "list":
        value[:] = items
        return value
    if tree.kind == "object":
        put_attributes(value, dict(zip(tree.keys, items)))
        return value
    put_items(value, dict(zip(tree.keys, items)))
    return value


# ---- leaves ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeafType:
    """The type of a leaf as an array. weak: promotes as a Python number. scalar: immutable."""

    dtype: DType
    shape: Shape = ()
    layout: Layout | None = None
    weak: bool = field(default=False, compare=True)
    scalar: bool = field(default=True, compare=False)
    free: bool = field(default=False, compare=False)  # the layout is nobody's choice

    @property
    def array(self) -> ArrayType:
        return ArrayType(self.dtype, self.shape, self.layout, self.free)

    def __str__(self) -> str:
        return str(self.array)


def leaf_type(x: Any) -> LeafType | None:
    """Return the type of a leaf; None where it is neither an array nor a number."""
    if isinstance(x, Array):
        t = x.type
        layout = t.layout or None  # a 0-d array has none to speak of
        return LeafType(t.dtype, t.shape, layout, x.weak, x.scalar, t.free)
    if isinstance(x, Number):
        return LeafType(dtypes.BOOL if x.truth else dtypes.INT64, weak=not x.strong)
    if isinstance(x, bool):
        return LeafType(dtypes.BOOL, weak=True)
    if isinstance(x, (np.generic, np.ndarray)):
        dtype = dtypes.from_numpy(x.dtype)
        if dtype is None:
            return None
        scalar = isinstance(x, np.generic)
        return LeafType(dtype, tuple(expr.const(n) for n in x.shape), scalar=scalar)
    for kind, dtype in ((int, dtypes.INT64), (float, dtypes.FLOAT64), (complex, dtypes.COMPLEX128)):
        if isinstance(x, kind):
            return LeafType(dtype, weak=True)
    return None


_GRADE = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def joined(a: LeafType, b: LeafType) -> LeafType | None:
    """Return one type for both: a weak one adapts to the other; None where they do not agree."""
    if len(a.shape) != len(b.shape):
        return None
    layout = layout_propagation.met(a.array, b.array).layout
    if not all(expr.equal(m, n) for m, n in zip(a.shape, b.shape)):
        return None
    if a.dtype == b.dtype:
        return LeafType(a.dtype, a.shape, layout, a.weak and b.weak, a.scalar and b.scalar,
                        a.free and b.free)
    if not (a.weak or b.weak) or dtypes.BOOL in (a.dtype, b.dtype):
        return None
    strong, weak = (b, a) if a.weak else (a, b)
    if strong.weak:
        dtype = max(strong.dtype, weak.dtype, key=lambda d: _GRADE[d.kind])
        return LeafType(dtype, a.shape, layout, True, a.scalar and b.scalar)
    if _GRADE[weak.dtype.kind] > _GRADE[strong.dtype.kind]:
        return None
    return LeafType(strong.dtype, a.shape, layout, False, a.scalar and b.scalar)


def same(a: Any, b: Any) -> bool:
    """Return whether two leaves are one thing, or equal Python values."""
    if a is b:
        return True
    if isinstance(a, Number) and isinstance(b, Number):
        return bool(a.expr == b.expr) and (a.truth, a.strong) == (b.truth, b.strong)
    if type(a) is not type(b):
        return False
    if isinstance(a, Array):
        return (a.storage, a.seen) == (b.storage, b.seen)
    if isinstance(a, (bool, int, float, complex, str, bytes, np.generic)):
        return repr(a) == repr(b)
    return False


def describe(x: Any) -> str:
    """Return a leaf as an error shows it."""
    if x is UNDEFINED:
        return "no value"
    if isinstance(x, (Array, np.ndarray, np.generic)) and (t := leaf_type(x)) is not None:
        return str(t)
    if isinstance(x, Number):
        return f"the number {x.expr}"
    text = repr(x)
    return f"{text} ({type(x).__name__})" if len(text) <= 40 else type(x).__name__


# ---- capture -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """The content of one variable at some moment."""

    tree: Tree
    leaves: list[Any]

    @property
    def value(self) -> Any:
        return self.tree.value


Variables = dict[str, Held | None]


@dataclass(frozen=True)
class Memory:
    """The memory of an array that a variable holds."""

    name: str
    leaf: int


def hold(value: Any) -> Held | None:
    if value is UNDEFINED:
        return None
    return Held(*flatten(value))


def memory_of(entry: Variables) -> dict[Any, Memory]:
    """Return, for each storage, the variable and leaf that show it."""
    return {
        leaf.storage: Memory(name, j)
        for name, held in entry.items() if held is not None
        for j, leaf in enumerate(held.leaves) if isinstance(leaf, Array)
    }


def storage_of(entry: Variables, memory: Any) -> Any:
    """Return the storage that a Memory means now; anything else is returned as it is."""
    if not isinstance(memory, Memory):
        return memory
    held = entry.get(memory.name)
    leaf = held.leaves[memory.leaf] if held and memory.leaf < len(held.leaves) else None
    return leaf.storage if isinstance(leaf, Array) else None


def capture(code: Code) -> Variables:
    """Return what the variables of `code` hold now: those that it may rebind, and others that hold
    data."""
    out = {name: hold(code.names.get(name)) for name in code.bound}
    for name in code.touched:
        held = hold(code.names.get(name))
        if held is not None and held.tree.mutable:
            out[name] = held
    return out


def restore(names: Names, variables: Variables) -> None:
    for name, held in variables.items():
        value = UNDEFINED if held is None else fill(held.tree, iter(held.leaves))
        if names.get(name) is not value:
            names.put(name, value)

"""Capturing a piece of the user's code as a region: begin, run it, end, see what changed.

A piece is run in a block of its own; variables and storages are put back before the next piece.
Always holds: after `put_back` variables and storages are as they were at `begin`; arrays made
inside a region cannot be read after it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

from codegen import dtypes
from codegen.errors import CarryError, Place, ProgramError, ShapeError
from codegen.ir.fresh import Fresh
from codegen.ir.graph import ArrayType, Value
from codegen.mesh import Layout
from codegen.ops import Relayout
from codegen.places import user_place
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_value, wrap
from codegen.trace.context import Block, Context
from codegen.trace.control.outside import of_piece
from codegen.trace.number import condition_of
from codegen.trace.state import (
    UNDEFINED,
    Code,
    LeafType,
    Variables,
    capture,
    describe,
    restore,
)
from codegen.trace.storage import Known, Storage


class Gone:
    """Stands for the value of a storage that cannot be read any more; says why."""

    def __init__(self, message: str, remedy: str, place: Place | None) -> None:
        self.message, self.remedy, self.place = message, remedy, place

    @property
    def type(self) -> ArrayType:
        raise ProgramError(self.message, remedy=self.remedy,
                           also=(("it is", self.place),) if self.place else ())


def link(a: Storage, b: Storage, construct: str, place: Place | None) -> None:
    """Notes that two storages may be one memory: after a write to one, the other is unreadable."""
    gone = Gone(
        "this array may or may not share memory with one that was written: "
        f"a {construct} decides it",
        "read it through the name that was written, or copy it before: x = x.copy()", place,
    )
    if a is not b:
        a.shadows = {**a.shadows, b: gone}
        b.shadows = {**b.shadows, a: gone}


@dataclass
class Mark:
    """The state of a capture at one moment, to which it can be put back."""

    storages: list[tuple[Storage, Any, dict[Storage, Any]]]  # with contents and shadows
    serial: int  # of the newest of them
    scalars: dict[str, Any]
    own_scalars: dict[str, Place | None]
    inputs: dict[str, Any]
    feeds: dict[str, Any]
    conditions: int
    names: Fresh

    @classmethod
    def of(cls, context: Context) -> Mark:
        context.epoch += 1
        return cls([(s, s.content, s.shadows) for s in context.storages], context.next_serial(),
                   dict(context.scalars), dict(context.own_scalars), dict(context.inputs),
                   dict(context.feeds), len(context.conditions), context._names.copy())

    def restore_storages(self) -> None:
        for storage, content, shadows in self.storages:
            storage.content, storage.shadows = content, shadows

    def forget_later(
        self, context: Context, construct: str, place: Place | None,
        remedy: str = "bind a name before the loop or branch and rebind that name inside",
    ) -> None:
        """Make storages that were made since then unreadable: nothing outside may read them."""
        gone = Gone(f"this array was made inside a {construct} and is read outside it", remedy,
                    place)
        for storage in list(context.storages):
            if storage.serial > self.serial and not isinstance(storage.content, Known):
                storage.content = gone

    def restore_declared(self, context: Context) -> None:
        context.scalars, context.inputs = dict(self.scalars), dict(self.inputs)
        context.feeds, context.own_scalars = dict(self.feeds), dict(self.own_scalars)
        del context.conditions[self.conditions :]
        context.take_back_names(self.names)


class Capture:
    """A region being captured, again and again where needed."""

    def __init__(self, context: Context, code: Code, kind: str) -> None:
        self.context, self.code, self.kind = context, code, kind
        self.names = code.names
        self.place = user_place()
        self.entry: Variables = capture(code)
        self.outside = of_piece(kind, code, self.entry)
        self.mark = Mark.of(context)
        self.serials = {s for s, *_ in self.mark.storages}
        self.log: dict[Storage, None] = {}
        self.open: Block | None = None
        self.filled = False  # whether the last run of the piece has filled a cache

    def begin(self, block: Block) -> None:
        self.log = {}
        self.context.write_logs.append(self.log)
        self.context.blocks.append(block)
        self.context.bodies.append(self.outside)
        self.open = block

    def close(self) -> Block:
        """End the block; variables and storages stay as its code left them."""
        assert self.open is not None
        block, self.open = self.open, None
        self.context.blocks.remove(block)
        self.context.bodies.remove(self.outside)
        self.context.write_logs[:] = [g for g in self.context.write_logs if g is not self.log]
        return block

    def abort(self) -> None:
        """Drop the open block after an exception, and put everything back."""
        if self.open is not None:
            self.close()
            self.put_back()
            self.mark.forget_later(self.context, self.kind, self.place)

    def put_back(self) -> None:
        """Put variables and storages back to what they were before the piece ran."""
        restore(self.names, self.entry)
        self.mark.restore_storages()

    def keep(self, block: Block) -> None:
        """Add the ops to the block around: the piece was plain Python after all."""
        around = self.context.blocks[-1]
        around.ops.extend(block.ops)
        around.memo.update(block.memo)

    def after(self) -> Variables:
        """Return what the variables hold now. UnsupportedError where something outside has
        changed."""
        self.filled = self.outside.check()
        return capture(self.code)

    def written(self) -> list[Storage]:
        """Return the storages from before the piece that it wrote."""
        return [s for s in self.log if s in self.serials]


# ---- values of leaves --------------------------------------------------------------------------


def value_of(context: Context, leaf: Any, t: LeafType) -> Value:
    """Return the value of a leaf in the element type and layout that were agreed."""
    return laid_as(context, as_value(context, leaf, t.dtype), t.layout)


def plain_type(v: Value) -> ArrayType:
    """Return the type that a value has where nobody else says how it lies."""
    return replace(v.type, free=False)


def laid_as(context: Context, value: Value, layout: Layout | None) -> Value:
    """Return a global value in the layout that was agreed."""
    if not layout or context.rank_view or value.type.layout == layout:
        return value
    return context.emit_one(Relayout(to=layout), value)


def array_of(context: Context, value: Value, t: LeafType) -> Array:
    return wrap(context, value, t.weak, t.scalar)


def hint(name: str, path: str) -> str:
    """Return a name for a value: letters, digits and underscores."""
    words = "".join(c if c.isalnum() else "_" for c in name + path)
    return "_".join(filter(None, words.split("_"))) or "x"


def condition(x: Any, construct: str) -> Expr | Value:
    """Return a truth value for an `if` or a loop: an Expr of a number, or a 0-d bool value."""
    truth = condition_of(x)
    if truth is not None:
        return truth
    context = Context.current()
    assert context is not None
    if isinstance(x, Array):
        if x.ndim and not all(e == 1 for e in x.extents):
            raise ShapeError("the truth of an array with several elements is ambiguous "
                             f"({construct})", expected="a 0-d array or a number",
                             found=str(x.type), remedy="say which: .any() or .all()")
        x = x.reshape(()) if x.ndim else x
        return as_value(context, x, dtypes.BOOL)
    return as_value(context, bool(x), dtypes.BOOL)


def _instead_of(name: str, *values: Any) -> str:
    """Return what to write in place of a variable that holds no array and no number."""
    odd = next(x for x in values if not isinstance(x, LeafType))
    if odd is None:
        return (f"a value of the same type in place of None: {name} = np.float64(0) before it, or "
                "the worst that there is, such as np.inf")
    if isinstance(odd, str):
        return f"numbers in place of texts, as {name} = 0 and {name} = 1; or compute in each arm"
    if isinstance(odd, enum.Enum):
        return f"its number in each arm: {name}.value"
    if callable(odd):
        return f"call it in each arm: y = f(x); or spmd.switch({name}, [f, g], x) of a number"
    return "only arrays and numbers may depend on what is known at run time"


def carry_error(
    construct: str, name: str, path: str, place: Place | None, expected: Any, found: Any
) -> CarryError:
    """Return the error for a variable that changes its type in a loop, or differs between arms."""
    words = {"loop": ("before the loop", "after one pass"), "branch": ("one arm", "another arm")}
    first, second = words.get(construct, ("before", "after"))
    shown = [str(t) if isinstance(t, LeafType) else describe(t) for t in (expected, found)]
    remedy = "give it one shape and dtype throughout"
    both = all(isinstance(t, LeafType) for t in (expected, found))
    if both and expected.shape == found.shape and construct == "loop":
        remedy = f"convert it: {name}{path}.astype({expected.dtype}), or start with {found.dtype}"
    elif both and construct == "loop":
        remedy = f"make it an array of that shape before the loop: {name} = spmd.zeros(…)"
    elif found is UNDEFINED:
        remedy = f"{name} means two things here: give one of them another name"
    elif not both:
        remedy = _instead_of(f"{name}{path}", expected, found)
    owner = f'"{name}{path}"' if not name.startswith("__") else "the returned value"
    return CarryError(f"{owner} changes its type in a {construct}" if both else
                      f"{owner} changes in a {construct}", place=place,
                      expected=f"{shown[0]} ({first})", found=f"{shown[1]} ({second})",
                      remedy=remedy)

"""A class as a program: several entries over state that stays on the ranks between calls.

In: the class, and values of the parameters of its `__init__`. Out: a Graph whose body is a branch
with an arm for `__init__` and for each entry; arrays that `__init__` binds are the state: inputs of
the Graph, and outputs where an entry makes new ones. Always holds: state keeps shapes and dtypes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from codegen import dtypes, ops
from codegen.errors import CarryError, Place, ProgramError, SpmdError
from codegen.image.manifest import ENTRY
from codegen.ir import (
    INITIAL,
    ArrayType,
    Entry,
    Input,
    Module,
    Op,
    Output,
    Returned,
    Scalar,
    StateArray,
    Value,
)
from codegen.mesh import Layout
from codegen.places import user_place
from codegen.suggest import meant
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.trace.array import Array, Number, as_value, wrap
from codegen.trace.context import Block, Context
from codegen.trace.control.conversion import as_called
from codegen.trace.control.regions import Mark, laid_as
from codegen.trace.derive.snapshots import Copies
from codegen.trace.objects import attributes, is_carried, put_attributes, put_items
from codegen.trace.program import Program, outputs_at, place_of_return
from codegen.trace.state import LeafType, describe, joined, leaf_type, same
from codegen.user.entry_methods import entries_of
from codegen.user.named import below

_NUMBERS = (bool, int, float, complex, np.generic, Number)


class Entity(Program):
    """A class decorated with @spmd.program."""

    def __init__(self, cls: type, mesh: Any, layout: Any, sync: str) -> None:
        self.cls: Any = cls
        self.methods = entries_of(cls)
        self.numbers: Mapping[str, LeafType | None] = {}  # that are state, by path; their types
        self.is_part = False
        self._begin(cls, place_of(cls), mesh, layout, sync)

    def read_parts(self) -> tuple[Any, ...]:
        return *super().read_parts(), "class", *self.methods.values()

    def graph(self, parameters: Mapping[str, Any], checks: Collection[str] = ()) -> Module:
        """The Graph for these parameters. A number is state if an entry binds it anew."""
        numbers: dict[str, LeafType | None] = {}
        while True:
            attempt = copy.copy(self)
            attempt.numbers = dict(numbers)
            try:
                return Program.graph(attempt, parameters, checks)
            except _NumberIsState as found:
                numbers[found.path] = found.type

    def recorded(
        self, context: Context, values: dict[str, Any]
    ) -> Callable[[], tuple[list[Output], Returned]]:
        made = _Recording(self, context)
        made.initial(values)
        for name, method in self.methods.items():
            made.entry(name, method)
        return made.finish

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("methods", ()):
            raise ProgramError(
                f"{self.name}.{name} is called before there is an image", place=user_place(),
                expected=f"with spmd.build({self.name}).open(ranks=2) as x: x.{name}(…)",
                remedy=f"{self.name}.eager().{name}(…) runs it as plain Python")
        return super().__getattr__(name)


class _NumberIsState(BaseException):
    """An entry binds a number anew, or one of another type: it is captured again."""

    def __init__(self, path: str, type: LeafType | None) -> None:
        super().__init__(path)
        self.path, self.type = path, type


@dataclass
class _Kept:
    """A state while the class is captured. first: the input that holds it; begins: its value after
    `__init__`; new: by arm, its new values."""

    path: str
    name: str
    type: LeafType
    input: Input
    begins: Value
    new: dict[int, Value] = field(default_factory=dict)


@dataclass
class _Arm:
    """One entry, captured."""

    name: str
    place: Place | None
    block: Block
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    scalars: tuple[str, ...] = ()
    returns: Returned | None = None


class _Recording:
    """The arms of a class, one after the other, then the branch."""

    def __init__(self, entity: Entity, context: Context) -> None:
        self.entity, self.context = entity, context
        self.arms: list[_Arm] = []
        self.states: dict[str, _Kept] = {}  # by path
        self.object: Any = None  # as __init__ left it
        self.shared: dict[str, str] = {}  # paths of arrays that may be one, by each other
        self.written: dict[str, Place | None] = {}  # paths of arrays that are written in place
        context.take_names(ENTRY)
        self.entry_sym = Sym(ENTRY, "scalar", expr.const(0),
                             expr.const(len(entity.methods)))

    # ---- __init__ --------------------------------------------------------------------------------

    def initial(self, values: dict[str, Any]) -> None:
        context, cls = self.context, self.entity.cls
        mark = Mark.of(context)
        with context.block() as block:
            self.object = cls.__new__(cls)
            as_called(cls.__init__)(self.object, **values)
            arm = _Arm(INITIAL, self.entity.place, block)
            if context.inputs:
                name = next(iter(context.inputs))
                raise ProgramError(
                    f'__init__ of {self.entity.name} declares the input "{name}"',
                    place=context.inputs[name].place, expected="inputs that entries declare",
                    remedy="arrays that are computed here, or loaded from a file of saved state")
            found = _walked(self.object)
            self.note_shared(found)
            names: dict[str, str] = {}
            for path, (name, x) in found.items():
                kept = self.kept(path, name, x)
                if kept is None:
                    continue
                if name in names:
                    raise ProgramError(f"{names[name]} and {path} have one name, {name}",
                                       place=self.entity.place, expected="a name for each array",
                                       found="two keys with the same text")
                names[name] = path
                self.states[path] = kept
                kept.new[0] = laid_as(context, kept.begins, kept.input.layout)
        context.inputs.clear()
        self.arms.append(arm)
        mark.forget_later(context, "__init__", self.entity.place,
                          "bind it to an attribute of self: then it is state")

    def kept(self, path: str, name: str, x: Any) -> _Kept | None:
        """What __init__ bound, as a state; None for what stays as it is."""
        if isinstance(x, _NUMBERS) and path not in self.entity.numbers:
            return None
        type = leaf_type(x)
        if type is None:
            return None
        type = self.entity.numbers.get(path) or type
        context = self.context
        wanted = None if isinstance(x, Array) else dtypes.numpy_dtype(type.dtype)
        value = as_value(context, x, wanted)
        t = value.type
        if any(e.has_extents for e in t.shape):
            raise ProgramError(
                f"{path} has a dim whose extent only a run knows", place=self.entity.place,
                expected="state of one shape in all calls", found=str(t),
                remedy="the most elements, and a number that says how many of them count")
        layout: Layout = t.layout or ((),) * t.ndim
        origin = "given"
        if t.free or not t.ndim:
            context.auto.append(name)
            layout, origin = context.layouts.get(name, layout), "chosen"
        held = Value(name, ArrayType(t.dtype, t.shape, layout))
        given = Input(held, layout, t.shape, None, self.entity.place, origin)
        return _Kept(path, name, replace(type, dtype=t.dtype), given, value)

    # ---- entries ---------------------------------------------------------------------------------

    def entry(self, name: str, method: Callable[..., Any]) -> None:
        context = self.context
        code = method.__code__
        place = Place(code.co_filename, code.co_firstlineno, 0, -1, name)
        mark = Mark.of(context)
        said = dict(context.said)
        context.entry, context.own_scalars = name, {}
        context.entry_runs = expr.eq(expr.symbol(self.entry_sym), len(self.arms))
        with context.block() as block:
            arm = _Arm(name, place, block)
            number = len(self.arms)
            instance = self.instance()
            before = _walked(instance)
            function = as_called(method)
            returned = function(instance)
            at = place_of_return(context, function, place)
            if returned is not None:
                outputs, arm.returns = outputs_at(context, returned, at)
                arm.outputs = [replace(o, name=below(name, o.name)) for o in outputs]
            try:
                with context.standing_at(at):
                    self.rebind(number, name, before, _walked(instance))
            except SpmdError as error:
                error.place = error.place or at
                raise
        arm.inputs = list(context.inputs.values())
        context.inputs.clear()
        context.said = {k: v for k, v in context.said.items() if k in said or k in context.scalars}
        arm.scalars = tuple(n for n in context.scalars if n in context.own_scalars)
        context.entry, context.entry_runs = "", expr.const(1)
        self.arms.append(arm)
        mark.forget_later(context, f"call of {name}", place,
                          "bind it to an attribute of self: then it is state")

    def instance(self) -> Any:
        """A copy of what __init__ left, with the state in it."""
        made = Copies(lambda array: array).of(self.object)
        arrays: dict[str, Any] = {}
        for path, kept in self.states.items():
            t = kept.type
            arrays[path] = wrap(self.context, kept.input.value, t.weak, t.scalar)
        return _placed(made, arrays, "self", set())

    def rebind(
        self, number: int, entry: str, before: dict[str, tuple[str, Any]],
        after: dict[str, tuple[str, Any]],
    ) -> None:
        """Note what an entry made of the state. Raises ProgramError, CarryError for what it cannot
        do."""
        for path in after:
            if path not in before:
                raise self.not_state(path, before)
        self.note_shared(after)
        for path, (_, old) in before.items():
            if path not in after:
                raise CarryError(f"{path} is no longer there after {entry}",
                                 expected="state of the same containers after every call",
                                 remedy="an array that is kept, and a flag that says if it counts")
            _, x = after[path]
            kept = self.states.get(path)
            if kept is None:
                if x is old or same(x, old):
                    continue
                if leaf_type(x) is not None and isinstance(old, _NUMBERS):
                    raise _NumberIsState(path, None)
                raise ProgramError(
                    f"{entry} binds {path}, which is not state", expected="an array or a number",
                    found=f"{describe(old)} before, {describe(x)} after",
                    remedy="what is no array is fixed when __init__ has run")
            self.new_value(number, entry, kept, old, x)

    def new_value(self, number: int, entry: str, kept: _Kept, old: Array, x: Any) -> None:
        context = self.context
        if x is old:
            if old.read() is kept.input.value:
                return
            self.written.setdefault(kept.path, user_place())
        now = leaf_type(x)
        if now is None:
            raise CarryError(f"{kept.path} was {_said(kept.type)}, {entry} makes it {describe(x)}",
                             expected="an array of the same shape and dtype")
        agreed = joined(kept.type, now)
        if agreed is not None and agreed.dtype != kept.type.dtype and kept.type.weak:
            raise _NumberIsState(kept.path, replace(agreed, weak=False))
        if agreed is None or agreed.dtype != kept.type.dtype:
            other = _said(now)
            if now.dtype == kept.type.dtype:
                other = _shape(now)
            raise CarryError(f"{kept.path} was {_said(kept.type)}, {entry} makes it {other}",
                             expected="state keeps its shape and dtype", found=_said(now),
                             remedy=f"{kept.path} = ….astype(np.{kept.type.dtype.name})"
                             if now.shape == kept.type.shape else "")
        value = as_value(context, x, dtypes.numpy_dtype(kept.type.dtype))
        if value is not kept.input.value:
            kept.new[number] = laid_as(context, value, kept.input.layout)

    def not_state(self, path: str, before: Collection[str]) -> ProgramError:
        top = path.split(".", 2)[1].split("[")[0]
        known = {p.split(".", 2)[1].split("[")[0] for p in before if "." in p}
        if top in known:
            return CarryError(f"{path} is new: __init__ does not put it there",
                              expected="the same keys and as many items as after __init__",
                              remedy=f"put it into self.{top} in __init__")
        return ProgramError(f"self.{top} is not state: __init__ does not bind it",
                            expected="attributes that __init__ binds",
                            remedy=meant(top, sorted(known), "self.{}")
                            or f"self.{top} = np.zeros(…) in __init__, or a local variable")

    def note_shared(self, found: dict[str, tuple[str, Any]]) -> None:
        """Which arrays have one memory: they are separate states, none of which may be written in
        place."""
        owner: dict[Any, str] = {}
        for path, (_, x) in found.items():
            if isinstance(x, Array) and not x.scalar:
                first = owner.setdefault(x.storage, path)
                if first != path:
                    self.shared[path], self.shared[first] = first, path

    # ---- the branch ------------------------------------------------------------------------------

    def finish(self) -> tuple[list[Output], Returned]:
        context = self.context
        for path, place in self.written.items():
            if path in self.shared:
                raise ProgramError(
                    f"{path} is written in place, and {self.shared[path]} may be the same array",
                    place=place, expected="an array of its own",
                    remedy=f"{self.shared[path]} = {path}.copy() where both are bound")
        inputs = [k.input for k in self.states.values()]
        outputs: list[Output] = []
        given: list[dict[int, Value]] = []  # of each output, by arm: its value
        states: list[StateArray] = []
        for number, kept in enumerate(self.states.values()):
            states.append(StateArray(number, kept.path, len(outputs)))
            outputs.append(Output(kept.name, kept.new[0], kept.input.layout, kept.input.shape))
            given.append(kept.new)
        entries: list[Entry] = []
        for k, arm in enumerate(self.arms):
            mine = range(len(inputs), len(inputs) + len(arm.inputs))
            inputs += arm.inputs
            first = len(outputs)
            outputs += arm.outputs
            given += [{k: o.value} for o in arm.outputs]
            entries.append(Entry(
                arm.name, tuple(mine), tuple(range(first, len(outputs))),
                tuple(n for n, kept in enumerate(self.states.values()) if k in kept.new),
                arm.scalars, arm.returns, arm.place))
        types = tuple(
            ArrayType(v.type.dtype, v.type.shape, v.type.layout)
            for values in given for v in [next(iter(values.values()))])
        regions = []
        for k, arm in enumerate(self.arms):
            context.blocks.append(arm.block)
            results = [values[k] if k in values else _blank(arm.block, o.name, t, self.entity.place)
                       for values, t, o in zip(given, types, outputs, strict=True)]
            context.blocks.pop()
            regions.append(arm.block.close(results))
        names = [o.name for o in outputs]
        made = context.emit(ops.Branch(expr.symbol(self.entry_sym), types), (), regions, names,
                            self.entity.place)
        outputs = [replace(o, value=v) for o, v in zip(outputs, made, strict=True)]
        context.inputs = {i.name: i for i in inputs}
        context.scalars = {ENTRY: Scalar(ENTRY, dtypes.INT64, 0, self.entry_sym), **context.scalars}
        context.entries, context.states = tuple(entries), tuple(states)
        return outputs, ("tuple", *range(len(outputs)))


def _blank(block: Block, name: str, t: ArrayType, place: Place | None) -> Value:
    value = Value(name, t)
    what = ops.Full(value=0, dtype=t.dtype, shape=t.shape, blank=True)
    block.ops.append(Op(what, (), (value,), (), place))
    return value


def place_of(cls: type) -> Place:
    """Where a class stands."""
    for function in vars(cls).values():
        code = getattr(function, "__code__", None)
        if code is not None:
            break
    else:
        here = user_place()
        return here or Place("?", 1)
    try:
        line = inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        line = code.co_firstlineno
    return Place(code.co_filename, line, 0, -1, cls.__name__)


# ---- what an object holds ------------------------------------------------------------------------


def _inside(x: Any) -> list[tuple[str, str, Any]] | None:
    """What a container or an object holds: how it is reached, what a name says, and itself."""
    if isinstance(x, tuple):
        fields = getattr(x, "_fields", None)
        if fields:
            return [(f".{f}", f, item) for f, item in zip(fields, x, strict=True)]
        return [(f"[{k}]", str(k), item) for k, item in enumerate(x)]
    if isinstance(x, list):
        return [(f"[{k}]", str(k), item) for k, item in enumerate(x)]
    if isinstance(x, dict):
        return [(f"[{_quoted(k)}]", str(k), item) for k, item in x.items()]
    if is_carried(x):
        return [(f".{k}", k, item) for k, item in (attributes(x) or {}).items()]
    return None


def _quoted(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _walked(x: Any) -> dict[str, tuple[str, Any]]:
    """The leaves by path, such as self.w["in"], each with its name, w.in. What is reached twice
    stands where it was met first."""
    return dict(_leaves(x, "self", "", set()))


def _leaves(
    x: Any, path: str, name: str, seen: set[int]
) -> Iterator[tuple[str, tuple[str, Any]]]:
    inside = _inside(x)
    if inside is None:
        yield path, (name, x)
        return
    if not isinstance(x, tuple):
        if id(x) in seen:
            return
        seen.add(id(x))
    for step, key, item in inside:
        yield from _leaves(item, path + step, below(name, key), seen)


def _placed(x: Any, arrays: Mapping[str, Any], path: str, seen: set[int]) -> Any:
    """The same containers with these arrays at their paths."""
    inside = _inside(x)
    if inside is None:
        return arrays.get(path, x)
    if not isinstance(x, tuple):
        if id(x) in seen:
            return x
        seen.add(id(x))
    items = [_placed(item, arrays, path + step, seen) for step, _, item in inside]
    if isinstance(x, tuple):
        if all(a is b for a, b in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
    if isinstance(x, list):
        x[:] = items
    elif isinstance(x, dict):
        put_items(x, dict(zip(x, items, strict=True)))
    else:
        put_attributes(x, dict(zip((attributes(x) or {}), items, strict=True)))
    return x


def _said(t: LeafType) -> str:
    return f"{t.dtype.name} {_shape(t)}"


def _shape(t: LeafType) -> str:
    inner = ", ".join(map(str, t.shape))
    return f"({inner},)" if len(t.shape) == 1 else f"({inner})"

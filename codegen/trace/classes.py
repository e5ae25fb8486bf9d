"""A class as a program: several entries over state that stays on the ranks between calls.

In: the class, and values of the parameters of its `__init__`. Out: a Graph whose body is a branch
with an arm for `__init__` and for each entry; arrays that `__init__` binds are the state: inputs of
the Graph, and outputs where an entry makes new ones. Always holds: state keeps shapes and dtypes.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from codegen import dtypes, ops
from codegen.errors import Place, ProgramError, SpmdError
from codegen.image.manifest import ENTRY
from codegen.ir.graph import (
    INITIAL,
    ArrayType,
    Entry,
    Input,
    Module,
    Op,
    Output,
    Region,
    Returned,
    Scalar,
    StateArray,
    Value,
    used_values,
    walk,
)
from codegen.mesh import Layout
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.trace.array import Array, Number, as_value, wrap
from codegen.trace.context import Block, Context
from codegen.trace.control.conversion import as_called
from codegen.trace.control.regions import Mark, laid_as
from codegen.trace.derive.snapshots import Copies
from codegen.trace.program import (
    Program,
    check_takers,
    oracle,
    outputs_at,
    place_of_return,
)
from codegen.trace.state import LeafType, describe, joined, leaf_type, same
from codegen.user import state_rules
from codegen.user.entry_methods import entries_of, place_of_method
from codegen.user.named import below
from codegen.user.state_paths import Leaves, leaves_by_path, placed

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
        """Return the Graph for these parameters. A number is state if an entry binds it anew."""
        numbers: dict[str, LeafType | None] = {}
        while True:
            attempt = copy.copy(self)
            attempt.numbers = dict(numbers)
            try:
                return Program.graph(attempt, parameters, checks)
            except _NumberIsState as error:
                numbers[error.path] = error.type

    def recorded(
        self, context: Context, values: dict[str, Any]
    ) -> Callable[[], tuple[list[Output], Returned]]:
        recording = _Recording(self, context)
        recording.initial(values)
        for name, method in self.methods.items():
            recording.entry(name, method)
        return recording.finish

    def eager(
        self, ranks: int = 1, mesh: Mapping[str, int] | None = None,
        save: Mapping[str, Callable[[Any], Any]] | None = None, **parameters: Any,
    ) -> Any:
        """Run the class as plain Python on NumPy arrays, in this process. parameters: those
        of its `__init__`; other arguments as of Program.eager.

        Returns an object whose methods are the entries: it is called as an open image is, and its
        state stays between calls. What an image would refuse, a call refuses when it happens.
        """
        check_takers(save)
        axes, values = self._eager_axes(ranks, mesh), self.bind(parameters)
        captured, outside = self._captured(axes), self._outside(parameters)
        graph = functools.cache(lambda: self.graph(parameters))

        def world(arguments: Mapping[str, Any]) -> Any:
            eager_world = oracle().eager.World(axes, arguments, graph, captured, None)
            eager_world.frames, eager_world.reachable = save or {}, outside
            return eager_world

        return oracle().EagerEntity(
            self.name, self.methods, self.place, lambda: self.cls(**values), world,
            lambda: [state.path for state in graph().states], self.needed())

    def needed(self) -> list[str]:
        """Return the names of states that `__init__` does not make: they have to be given."""
        return []

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("methods", ()):
            raise ProgramError(
                f"{self.name}.{name} is called before there is an image", place=user_place(),
                expected=f"with spmd.build({self.name}).open(ranks=2) as x: x.{name}(…)",
                remedy=f"{self.name}.eager().{name}(…) runs it as plain Python")
        cls = self.__dict__.get("cls")
        if cls is not None and not name.startswith("__") and hasattr(cls, name):
            return getattr(cls, name)  # methods may name the class, and so this
        return super().__getattr__(name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """Return the bases of a class that names this entity as its base: the decorated class
        itself."""
        return (self.cls,)


class _NumberIsState(BaseException):
    """Raised where an entry assigns a number to an attribute, or changes its type: the class is
    traced again with that attribute as state."""

    def __init__(self, path: str, type: LeafType | None) -> None:
        super().__init__(path)
        self.path, self.type = path, type


@dataclass
class _Kept:
    """A state while the class is captured. input: it holds it; begins: its value after
    `__init__`; new: by arm, its new values."""

    path: str
    name: str
    type: LeafType
    input: Input
    begins: Value
    new: dict[int, Value] = field(default_factory=dict)


@dataclass
class _Arm:
    """An arm holds what was captured of one entry, or of `__init__`."""

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
        self.written: dict[str, int] = {}  # paths of arrays written in place, and in which arm
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
            leaves = leaves_by_path(self.object)
            self.note_shared(leaves)
            names: dict[str, str] = {}
            for path, (name, x) in leaves.items():
                kept = self.kept(path, name, x)
                if kept is None:
                    continue
                if name in names:
                    raise state_rules.two_of_one_name(names[name], path, name, self.entity.place)
                names[name] = path
                self.states[path] = kept
                with context.standing_at(self.entity.place):
                    kept.new[0] = laid_as(context, kept.begins, kept.input.layout)
        context.inputs.clear()
        arm.scalars = tuple(k for k, scalar in context.scalars.items() if scalar.sym is not None)
        self.arms.append(arm)
        mark.forget_later(context, "__init__", self.entity.place,
                          "bind it to an attribute of self: then it is state")

    def kept(self, path: str, name: str, x: Any) -> _Kept | None:
        """Make a state of a value that `__init__` bound; return None if the value is a constant."""
        if isinstance(x, _NUMBERS) and path not in self.entity.numbers:
            return None
        type = leaf_type(x)
        if type is None:
            return None
        type = self.entity.numbers.get(path) or type
        context = self.context
        wanted = None if isinstance(x, Array) else dtypes.numpy_dtype(type.dtype)
        with context.standing_at(self.entity.place):
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
        state_input = Input(held, layout, t.shape, None, self.entity.place, origin)
        return _Kept(path, name, replace(type, dtype=t.dtype), state_input, value)

    # ---- entries ---------------------------------------------------------------------------------

    def entry(self, name: str, method: Callable[..., Any]) -> None:
        context = self.context
        place = place_of_method(name, method)
        mark = Mark.of(context)
        said = dict(context.declarations)
        # what __init__ declares, entries may name in formulas
        context.entry = name
        context.own_scalars = {n: context.scalars[n].place for n in self.arms[0].scalars}
        context.entry_runs = expr.eq(expr.symbol(self.entry_sym), len(self.arms))
        with context.block() as block:
            arm = _Arm(name, place, block)
            number = len(self.arms)
            instance = self.instance()
            before = leaves_by_path(instance)
            function = as_called(method)
            returned = function(instance)
            return_place = place_of_return(context, function, place)
            if returned is not None:
                outputs, arm.returns = outputs_at(context, returned, return_place)
                arm.outputs = [replace(o, name=below(name, o.name)) for o in outputs]
            self.rebind(number, name, method, before, leaves_by_path(instance), return_place)
        arm.inputs = list(context.inputs.values())
        context.inputs.clear()
        scalars = {k: v for k, v in context.declarations.items() if k in context.scalars}
        context.declarations = scalars | said
        arm.scalars = tuple(context.own_scalars)
        context.entry, context.entry_runs = "", expr.const(1)
        self.arms.append(arm)
        mark.forget_later(context, f"call of {name}", place,
                          "bind it to an attribute of self: then it is state")

    def instance(self) -> Any:
        """Return a copy of what __init__ left, with the state in it."""
        instance = Copies(lambda array: array).of(self.object)
        arrays: dict[str, Any] = {}
        for path, kept in self.states.items():
            t = kept.type
            arrays[path] = wrap(self.context, kept.input.value, t.weak, t.scalar)
        return placed(instance, arrays)

    def rebind(
        self, number: int, entry: str, method: Callable[..., Any], before: Leaves, after: Leaves,
        place: Place,
    ) -> None:
        """Note what an entry made of the state. Raises ProgramError, CarryError for what it cannot
        do, which stands where the entry binds the attribute."""
        self.note_shared(after)
        for path in dict.fromkeys([*after, *before]):
            try:
                with self.context.standing_at(place):
                    self.rebind_one(number, entry, path, before, after)
            except SpmdError as error:
                error.place = state_rules.place_of_binding(method, path, error.place or place)
                raise

    def rebind_one(
        self, number: int, entry: str, path: str, before: Leaves, after: Leaves
    ) -> None:
        if path not in before:
            raise state_rules.not_state(path, before)
        if path not in after:
            raise state_rules.lost(path, entry)
        old, x = before[path][1], after[path][1]
        kept = self.states.get(path)
        if kept is not None:
            self.new_value(number, entry, kept, old, x)
        elif x is not old and not same(x, old):
            if leaf_type(x) is not None and isinstance(old, _NUMBERS):
                raise _NumberIsState(path, None)
            raise state_rules.fixed(path, entry, describe(old), describe(x))

    def new_value(self, number: int, entry: str, kept: _Kept, old: Array, x: Any) -> None:
        context = self.context
        if old.read() is not kept.input.value:
            self.written.setdefault(kept.path, number)
        elif x is old:
            return
        now, was = leaf_type(x), _described(kept.type)
        if now is None:
            raise state_rules.not_an_array(kept.path, entry, state_rules.type_text(*was),
                                           describe(x))
        agreed = joined(kept.type, now)
        if agreed is not None and kept.type.weak and (
                agreed.dtype != kept.type.dtype or not agreed.weak):
            raise _NumberIsState(kept.path, agreed)
        if agreed is None or agreed.dtype != kept.type.dtype:
            raise state_rules.changed(kept.path, entry, was, _described(now))
        value = as_value(context, x, dtypes.numpy_dtype(kept.type.dtype))
        if value is not kept.input.value:
            kept.new[number] = laid_as(context, value, kept.input.layout)

    def note_shared(self, leaves: Leaves) -> None:
        """Note which arrays have one memory: they are separate states, none of which may be written
        in place."""
        owner: dict[Any, str] = {}
        for path, (_, x) in leaves.items():
            if isinstance(x, Array) and not x.scalar:
                first = owner.setdefault(x.storage, path)
                if first != path:
                    self.shared[path], self.shared[first] = first, path

    # ---- the branch ------------------------------------------------------------------------------

    def finish(self) -> tuple[list[Output], Returned]:
        context = self.context
        for path, number in self.written.items():
            if path in self.shared:
                arm = self.arms[number]
                place = state_rules.place_of_binding(
                    self.entity.methods[arm.name], path, arm.place or self.entity.place)
                raise state_rules.shared(path, self.shared[path], place)
        inputs = [k.input for k in self.states.values()]
        outputs: list[Output] = []
        values_by_arm: list[dict[int, Value]] = []  # of each output, by arm: its value
        states: list[StateArray] = []
        for number, kept in enumerate(self.states.values()):
            begins = kept.name not in self.entity.needed()
            states.append(StateArray(number, kept.path, len(outputs), begins))
            outputs.append(Output(kept.name, kept.new[0], kept.input.layout, kept.input.shape))
            values_by_arm.append(kept.new)
        entries: list[Entry] = []
        for k, arm in enumerate(self.arms):
            mine = range(len(inputs), len(inputs) + len(arm.inputs))
            inputs += arm.inputs
            first = len(outputs)
            outputs += arm.outputs
            values_by_arm += [{k: o.value} for o in arm.outputs]
            entries.append(Entry(
                arm.name, tuple(mine), tuple(range(first, len(outputs))), (),
                tuple(n for n, kept in enumerate(self.states.values()) if k in kept.new),
                arm.scalars, (), (), arm.returns, arm.place))
        types = tuple(
            ArrayType(v.type.dtype, v.type.shape, v.type.layout)
            for values in values_by_arm for v in [next(iter(values.values()))])
        regions = []
        for k, arm in enumerate(self.arms):
            context.blocks.append(arm.block)
            results = [values[k] if k in values else _blank(arm.block, o.name, t, self.entity.place)
                       for values, t, o in zip(values_by_arm, types, outputs, strict=True)]
            context.blocks.pop()
            regions.append(arm.block.close(results))
        names = [o.name for o in outputs]
        branch = ops.Branch(expr.symbol(self.entry_sym), types)
        branch_values = context.emit(branch, (), regions, names, self.entity.place)
        outputs = [replace(o, value=v) for o, v in zip(outputs, branch_values, strict=True)]
        context.inputs = {i.name: i for i in inputs}
        context.scalars = {ENTRY: Scalar(ENTRY, dtypes.INT64, 0, self.entry_sym), **context.scalars}
        context.entries = tuple(map(self.with_uses, entries, regions))
        context.states = tuple(states)
        return outputs, ("tuple", *range(len(outputs)))

    def with_uses(self, entry: Entry, arm: Region) -> Entry:
        """Return the entry with the states, feeds and saves that are found in its arm."""
        every, used = list(walk(arm)), set(used_values(arm))
        feeds = {op.kind.feed for op in every if isinstance(op.kind, ops.Feeding)}
        return replace(
            entry, feeds=tuple(name for name in self.context.feeds if name in feeds),
            saves=tuple(op.kind.series for op in every if isinstance(op.kind, ops.Save)),
            reads=tuple(n for n, kept in enumerate(self.states.values())
                        if kept.input.value in used))


def _blank(block: Block, name: str, t: ArrayType, place: Place | None) -> Value:
    value = Value(name, t)
    kind = ops.Full(value=0, dtype=t.dtype, shape=t.shape, blank=True)
    block.ops.append(Op(kind, (), (value,), (), place))
    return value


def place_of(cls: type) -> Place:
    """Return the place where a class is defined; the user's own place where Python does not know
    it."""
    for function in vars(cls).values():
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
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


def _described(t: LeafType) -> tuple[str, tuple[Any, ...]]:
    return t.dtype.name, t.shape

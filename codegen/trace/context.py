"""What one capture of a program keeps while the user's function runs: open regions and storages.

Always holds: ops are appended to the innermost open block only, in program order.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import gcd
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np

from codegen.dtypes import INT64
from codegen.errors import Place, ProgramError, TracedValueError, UnsupportedError, UsageError
from codegen.graph import layout_propagation
from codegen.ir.fresh import Fresh
from codegen.ir.graph import (
    ArrayType,
    Condition,
    Entry,
    Feed,
    Input,
    Keeps,
    Op,
    Region,
    Scalar,
    StateArray,
    Value,
)
from codegen.mesh import Axis, Layout, Mesh
from codegen.ops import Full, Kind
from codegen.places import user_frame, user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.targets import assigned_name, target_at
from codegen.user import eager_runs

if TYPE_CHECKING:
    from codegen.trace.storage import Storage

T = TypeVar("T")
Limits = dict[str, tuple[Expr | None, Expr | None]]


@dataclass(eq=False)
class Block:
    """A block collects the ops of an open region. once: its code runs once, as a part of the code
    around it. apart: it uses nothing that was computed around it, except its arguments."""

    args: tuple[Value, ...] = ()
    ops: list[Op] = field(default_factory=list)
    once: bool = False
    apart: bool = False
    # what was computed in this region already: views read, expressions, constants
    memo: dict[Any, Any] = field(default_factory=dict)

    def close(self, results: Sequence[Value]) -> Region:
        return Region(self.args, tuple(self.ops), tuple(results))

    def forget(self) -> None:
        """Drop the ops, before the code of the region runs once more."""
        self.ops.clear()
        self.memo.clear()


UNROLLED_TURNS = 64  # turns of a loop that Python may run while building


class CapturedAgain(Exception):
    """Raised by a capture that has found what it should have known before: it begins again with
    it."""


class _Captures(threading.local):
    """The captures that are open in this thread, the innermost one last."""

    def __init__(self) -> None:
        self.stack: list[Context] = []


class Context:
    """A context holds the state of one capture. `current()` returns the innermost one of this
    thread; None outside any program."""

    _captures = _Captures()
    entry_runs = expr.const(1)  # whether a call is one of the entry that is captured
    when_built = ""  # how users make a number known while building, where that is not usual
    reserved: frozenset[str] = frozenset()  # names of scalars, which loop variables leave free
    recursions: tuple[Any, ...] = ()  # being captured, innermost last: recursion.captured.Recursion
    path: Any = None  # while a function is followed: recursion.paths.Path
    entry = ""  # whose code is captured, in a class that is a program
    own_scalars: dict[str, Place | None]  # that it, or the program, has declared, and where
    held: Mapping[str, Any] = types.MappingProxyType({})  # states in the place of inputs, by name
    # states that are looked for, by name: the tree that is declared, and its leaves
    looked_for: dict[str, Any]
    facts: dict[str, Any]  # what earlier captures of the program have found
    notes: dict[str, list[dict[str, Any]]]  # what libraries say to people
    library_calls: dict[Place, None]  # of code of ours that has loops of its own
    states: tuple[StateArray, ...] = ()
    entries: tuple[Entry, ...] = ()
    outermost: Any = None  # what loops in no other one carried in the capture before: settled.Inner

    def __init__(self, name: str, mesh: Mesh, user_files: set[str] | None = None) -> None:
        self.name = name
        self.mesh = mesh
        self.blocks: list[Block] = [Block()]
        self.storages: WeakSet[Storage] = WeakSet()  # nobody misses what nobody can reach
        self.epoch = 0  # grows where a piece of code begins that may be undone
        self.place: Place | None = None  # where ops come from, if not from what runs now
        self.write_logs: list[dict[Storage, None]] = []
        self.own_scalars, self.looked_for, self.facts = {}, {}, {}
        self.scalars: dict[str, Scalar] = {}
        self.inputs: dict[str, Input] = {}
        self.feeds: dict[str, Feed] = {}
        self.numbers: dict[Value, Any] = {}  # of those that are one number everywhere
        self.said: dict[str, dict[str, Any]] = {}  # of inputs and scalars: sameness.check_same
        self.conditions: list[Condition] = []
        self.learned: dict[str, Axis] = {}  # axes of which a condition says more
        self.limits: Limits = {}  # by run-time scalar, the least and the most that it can be
        self.narrower: Limits = {}  # those of which a condition says more
        self.rules: dict[str, Any] = {}  # by the name of a dim, the axis that splits it
        self.named_dims: dict[str, None] = {}  # that stand in shapes
        self.layouts: dict[str, Layout] = {}  # by input, what the compiler has chosen so far
        self.auto: list[str] = []  # inputs whose layout is the compiler's choice
        self.bounds, self.begun_with = dict[str, Any](), dict[str, Any]()  # letting.Bounds, by key
        self.rank_view = 0  # how many shard_maps are open; arrays inside are local
        # while > 0, a formula is made: integers are symbols, a conditional expression evaluates
        # both arms (number.choose). So many blocks were open when it began.
        self.selecting = 0
        self.checks: frozenset[str] = frozenset()  # what is checked while the program runs
        self.mesh_names: dict[str, tuple[str, ...]] = {}  # meshes named by spmd.mesh("ring")
        # global arrays that an open shard_map met by closure: innermost last
        self.captured: list[dict[Value, Value]] = []
        # of the open shard_map's arguments, the axes that split them; of values, those over which
        # they vary because it is said; of what open loops carry, those that were counted with
        self.split: dict[Value, frozenset[str]] = {}
        self.varying: dict[Value, frozenset[str]] = {}
        self.assumed: dict[Value, frozenset[str]] = {}
        self.families: Any = None  # what varying.families has walked
        # what open bodies must leave as it is, the program first; where a thing was last changed
        self.bodies: list[Any] = []
        self.loops: list[Any] = []  # whose bodies are being captured: loops.Loop
        self.unrolled: frozenset[Place | None] = frozenset()  # loops that Python runs
        self.to_unroll: list[Place | None] = []
        # whether loops over rows of arrays are run by Python, and whether one is compiled
        self.rows_by_python = self.has_rows = False
        self.changed_at: dict[Any, Place | None] = {}
        self.left_early: list[Any] = []  # iterators of loops that the run may end early
        # containers that may be one: two of them, their names, and where that is decided
        self.twins: list[tuple[Any, Any, str, str, Place | None]] = []
        self.seeded: set[int] = set()  # ids of random generators that the program gives a seed
        # where a function of the user's last returned a value: its code, and where in it
        self.returned: tuple[types.CodeType, int, int] | None = None
        self.differentiated = False  # much of what was recorded may be needed by nobody
        self.recordings = self.members = 0  # differentiated, and mapped, functions that are running
        self.keeps: list[Keeps] = []  # what ways back keep
        self.replaced: dict[Op, Op] = {}  # recorded ops by what stands there since: they keep more
        # while it is true, names are given for good: also in a piece of code that is captured again
        self.naming_for_good = False
        self._for_good: list[str] = []
        self._serial, self.notes, self.library_calls = 0, {}, {}
        self._names = Fresh()

    @classmethod
    def current(cls) -> Context | None:
        stack = cls._captures.stack
        return stack[-1] if stack else None

    @contextmanager
    def active(self) -> Iterator[Context]:
        Context._captures.stack.append(self)
        try:
            yield self
        finally:
            Context._captures.stack.pop()

    def hold(self, holds: Expr, text: str) -> None:
        """Refuses launches for which a condition fails; the next capture makes use of it. One of
        an entry, of extents that all entries share, is asked of the calls of that entry alone."""
        if holds.has_extents and self.entry_runs != 1:
            holds = expr.or_(1 - self.entry_runs, holds)
        if holds != 1:
            self.conditions.append(Condition(holds, text, user_place()))
            self.learn(holds)

    def learn(self, holds: Expr) -> None:
        """Note what a condition says of axis sizes or of a scalar; the next capture bounds their
        symbols by it.

        Understood are size <= number, size == number, size == size, number % size == 0; and
        scalar >= number, scalar <= number.
        """
        for scalar in self.scalars.values():
            if scalar.sym is not None and holds.symbols() == {scalar.sym}:
                old = self.narrower.get(scalar.name, (scalar.sym.lo, scalar.sym.hi))
                if (new := _narrowed(old, scalar.sym, holds)) != old:
                    self.narrower[scalar.name] = new
        for axis in self.mesh.axes:
            now = self.learned.get(axis.name, axis)
            told = replace(now, **_told(axis, holds, self.mesh))
            if told != now:
                self.learned[axis.name] = told

    def dim(self, name: str, at_most: int) -> Sym:
        """Return the extent of a named dim that only a run knows: a scalar that no run is given."""
        known = self.scalars.get(name)
        if known is not None and known.at_most == at_most:
            assert known.sym is not None
            return known.sym
        taken = known or self.inputs.get(name)
        if taken is not None or self.unique(name) != name:
            clash = (f"{name}, of a loop, of the mesh, or of the members of exchanges"
                     if taken is None else
                     f"{taken.place}: {name!r} is "
                     f"{'an input' if known is None else _said_of(known)}")
            raise UsageError(f"the dim {name!r} has the name of something else", found=clash,
                             place=user_place(), expected="a name that nothing before it has",
                             remedy=f'spmd.Dim("{name}_rows", at_most={at_most})')
        low, high = self.limits.get(name, (expr.const(0), expr.const(at_most)))
        sym = Sym(name, "extent", low, high)
        self.scalars[name] = Scalar(name, INT64, at_most, sym, user_place(), at_most)
        return sym

    @property
    def following(self) -> Any:
        """The way through a function that branches take here, or None where they are captured."""
        path = self.path
        return path if path is not None and len(self.loops) == path.loops else None

    @property
    def in_every_launch(self) -> bool:
        """Whether what is captured now runs for sure: not in a loop or branch, or in a formula."""
        return not self.write_logs and not self.selecting

    def region(self) -> Block:
        """Return the innermost open region: code in it runs as often as other code in it."""
        return next(b for b in reversed(self.blocks) if not b.once)

    @contextmanager
    def standing_at(self, place: Place | None) -> Iterator[None]:
        """Let ops come from this place of the source while it is open."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def enter_library(self) -> None:
        """Note that ops whose place is this call are code of ours, loops among them: no run is kept
        in these, and their user can change nothing in them."""
        if (place := user_place()) is not None:
            self.library_calls[place] = None

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def unique(self, hint: str) -> str:
        """Return a name for a symbol: the hint, or hint_2, hint_3 … when it is taken."""
        name = self._names.name(f"{hint}_2" if hint in self.reserved else hint)
        if self.naming_for_good:
            self._for_good.append(name)
        return name

    def take_names(self, *names: str) -> None:
        """Reserve these names, so that nothing else gets them."""
        self._names.take(names)

    def is_free(self, name: str) -> bool:
        """Give a scalar its name; return whether it is free. Else the next attempt keeps it so."""
        if self._names.name(name) == name:
            return True
        self.reserved |= {name}
        return False

    def take_back_names(self, names: Fresh) -> None:
        """Free all names but these, and those that are given for good."""
        self._names = names.copy()
        self._names.take(self._for_good)

    # ---- building ops ------------------------------------------------------------------------

    def emit(
        self, kind: Kind, operands: Sequence[Value] = (), regions: Sequence[Region] = (),
        names: Sequence[str] = (), place: Place | None = None,
    ) -> tuple[Value, ...]:
        """Append an op to the open block; return its results."""
        operand_types = [v.type for v in operands]
        types = kind.infer(operand_types)
        if not self.rank_view:
            types = [layout_propagation.laid_out(kind, operand_types, t) for t in types]
        place = place or self.place or user_place()
        hint = assigned_name(place) or kind.called
        results = tuple(
            Value(names[k] if k < len(names) else hint, t) for k, t in enumerate(types)
        )
        op = Op(kind, tuple(operands), results, tuple(regions), place)
        self.blocks[-1].ops.append(op)
        if isinstance(kind, Full):
            self.numbers[op.result] = kind.value
        return results

    def emit_one(self, kind: Kind, *operands: Value) -> Value:
        (value,) = self.emit(kind, operands)
        return value

    def remember(self, key: Any, make: Callable[[], T]) -> T:
        """Return what was computed under this key in an open region; compute and keep it if there
        is none."""
        key = (self.rank_view > 0, key)
        for block in reversed(self.blocks):
            if key in block.memo:
                remembered: T = block.memo[key]
                return remembered
            if block.apart:
                break
        value = make()
        self.blocks[-1].memo[key] = value
        return value

    @contextmanager
    def block(
        self, arg_types: Sequence[ArrayType] = (), names: Sequence[str] = ()
    ) -> Iterator[Block]:
        """Open a region with these arguments; close it with block.close(results) afterwards."""
        args = tuple(
            Value(names[k] if k < len(names) else "arg", t) for k, t in enumerate(arg_types)
        )
        opened = Block(args)
        self.blocks.append(opened)
        try:
            yield opened
        finally:
            self.blocks = [b for b in self.blocks if b is not opened]

    @contextmanager
    def watching_writes(self) -> Iterator[dict[Storage, None]]:
        """Collects the storages written while it is open, in order of the first write."""
        log: dict[Storage, None] = {}
        self.write_logs.append(log)
        try:
            yield log
        finally:
            self.write_logs = [kept for kept in self.write_logs if kept is not log]


def _said_of(scalar: Scalar) -> str:
    return "a scalar" if scalar.at_most is None else f"a dim of at most {scalar.at_most}"


def refuse_constant() -> None:
    """Raises TracedValueError where the running statement writes into a NumPy array."""
    frame, place = user_frame(), user_place()
    if frame is None or place is None:
        return
    target = target_at(place)
    name = target.name
    if target.written and isinstance(frame.f_locals.get(name), np.ndarray):
        raise TracedValueError(
            f"what is written into {name} is not known while building", place=place,
            expected="an array of the program, which exists at run time",
            found=f"the NumPy array {name}, a constant of the program",
            remedy=f"write into a copy made in the program: w = {name}.copy()",
        )


def refuse_constant_write(text: str, fields: str = "") -> NoReturn:
    """Raises ProgramError for a write into an array that the program did not make. fields: of the
    array that it is a field of."""
    if fields:
        raise UnsupportedError(f"{text} is of an array with fields, which programs do not have",
                               expected="an array of numbers for each field", found=fields,
                               remedy="w = u[field].copy() for each field, in the program")
    raise ProgramError(f"{text} is a NumPy array from outside the program, which is a constant",
                       expected="an array that was made in the program",
                       found=f"a write into {text}",
                       remedy=f"write into a copy: w = {text}.copy()" if text.isidentifier() else
                       "write into a copy of it, made in the program by .copy()")


def require_context(construct: str) -> Context:
    """Return the current capture, or an error that says where `construct` may stand."""
    context = Context.current()
    if context is None:
        raise ProgramError(
            f"{construct} stands outside a program", place=user_place(),
            expected="a call while a function decorated with @spmd.program is being built",
            remedy="move it into the function, or run the program with image.run(...)",
        )
    return context


def eager_current() -> Any:
    """Return the eager runtime that calls go to, or None."""
    return eager_runs.runtime() if Context.current() is None else None


def _told(axis: Axis, holds: Expr, mesh: Mesh) -> dict[str, Any]:
    """Return the fields of an axis that a condition decides."""
    if axis.fixed is not None or axis.size_sym not in holds.symbols():
        return {}
    for other in mesh.axes:
        if other.name == axis.name:
            break
        if other.fixed is None and not axis.like and holds == expr.eq(other.size, axis.size):
            return {"like": other.like or other.name}
    for call in expr.calls(holds):
        first = call.args[0]
        if call.op == "eq0" and holds == expr.eq(axis.size, n := (axis.size - first)):
            return {"fixed": n.value} if n.is_const else {}
        if call.op == "ge0" and holds.symbols() == {axis.size_sym}:
            # size <= most is kept as 1 - (size - most - 1 >= 0)
            most = -first.subst({axis.size_sym: 1}).evaluate({})
            if most > 0 and holds == expr.le(axis.size, most):
                return {"most": min(most, axis.most or most)}
        elif call.op == "mod" and first.is_const and first.value > 0:
            ((factors, scale), *more) = call.args[1].terms
            if not more and axis.size_sym in factors and first.value % scale == 0:
                if holds == expr.eq(expr.mod(first, call.args[1]), 0):
                    known = gcd(axis.divides, first.value // scale)
                    told = {"divides": known}  # a power of two has no most
                    return told | ({} if known == expr.POWERS else
                                   {"most": min(known, axis.most or known)})
    return {}


def _narrowed(
    limits: tuple[Expr | None, Expr | None], sym: Sym, holds: Expr
) -> tuple[Expr | None, Expr | None]:
    """Return the least and the greatest value of a symbol, narrowed by a condition on this symbol
    only."""
    low, high = limits
    for call in expr.calls(holds):
        slope, rest = expr.linear_in(call.args[0], sym)
        if call.op != "ge0" or slope not in (1, -1) or not rest.is_const:
            continue
        # slope * sym + rest is at least 0, or at most -1, wherever the condition holds
        if expr.nonneg(-expr.replace(holds, {call: 0})):  # then the condition is not 1
            at_least, bound = slope == 1, -rest if slope == 1 else rest
        elif expr.nonneg(-expr.replace(holds, {call: 1})):
            at_least, bound = slope == -1, rest + 1 if slope == -1 else -rest - 1
        else:
            continue
        if at_least:
            low = bound if low is None else expr.maximum(low, bound)
        else:
            high = bound if high is None else expr.minimum(high, bound)
    return low, high


def extent_unknown() -> None:
    """Have the program captured again, with the innermost loop of few turns run by Python, before
    an extent is refused that only the run knows, perhaps because of a loop's counter."""
    if (context := Context.current()) is not None:
        loops = reversed(context.loops)
        short = [x.place for x in loops if x.turns is not None and x.turns <= UNROLLED_TURNS]
        context.to_unroll += short[:1]

"""Recursive functions captured as regions: their bodies are run until all types are settled.

A call of the function inside its own body is a placeholder op, `RecursiveCall`; stack_machine.py
makes a loop of the regions. What all calls pass on unchanged, and what is no number or array in all
returns, stays what it is; everything else becomes a value of one type.
Always holds: after a pass variables and storages are as they were before it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from codegen.errors import ProgramError, UnsupportedError
from codegen.graph import layout_propagation
from codegen.ir.graph import ArrayType, Region, Value
from codegen.places import user_place
from codegen.trace.array import Array
from codegen.trace.context import Block, Context
from codegen.trace.control.conversion import as_called
from codegen.trace.control.recursion import stack_machine
from codegen.trace.control.recursion.call import RecursiveCall
from codegen.trace.control.recursion.leaves import Leaves, spelt, with_types
from codegen.trace.control.recursion.paths import Path
from codegen.trace.control.recursion.too_deep import bound
from codegen.trace.control.regions import (
    Capture,
    Gone,
    Mark,
    array_of,
    hint,
    laid_as,
    link,
    value_of,
)
from codegen.trace.state import Code, LeafType, Names, Tree, flatten, leaf_type, same
from codegen.trace.storage import Storage

_PASSES = 40  # more never settle: every pass makes some type wider
_Returned = Callable[[Any, Capture, Sequence[Array]], None]  # given what the arguments are
_WAYS = 500  # through a function, of which one should return without a call of itself


class _Again(BaseException):
    """Raised where a call shows that a type is wider: what was captured with the other one is
    dropped."""


class _NothingKnown(BaseException):
    """A call of whose results nothing is known yet, on a way through the function."""


class _Member(BaseException):
    """Raised where a function calls one whose recursion is open outside: both are of that
    recursion."""

    def __init__(self, recursion: Recursion, members: list[Any]) -> None:
        super().__init__()
        self.recursion, self.members = recursion, members


@dataclass
class Member:
    """A function of a recursion: what is known of it so far."""

    function: Any
    first: dict[str, Any] = field(default_factory=dict)  # what its first call passes
    whole: set[str] = field(default_factory=set)  # arguments that are one thing in all calls
    arguments: Leaves | None = None
    results: Leaves | None = None
    region: Region = field(default_factory=lambda: Region((), (), ()))
    aliases: dict[Storage, None] = field(default_factory=dict)  # older memory that a result may be
    passes_on: bool = False  # whether a result may be the memory of an argument

    def flat(self, arguments: Mapping[str, Any]) -> tuple[Tree, list[Any]]:
        """Return the tree of a call's arguments, and its leaves; a value that all calls share is a
        leaf."""
        each = [(Tree("leaf", x), [x]) if name in self.whole else flatten(x)
                for name, x in arguments.items()]
        tree = Tree("dict", dict(arguments), tuple(arguments), tuple(t for t, _ in each))
        return tree, [x for _, leaves in each for x in leaves]

    def take(self, arguments: Mapping[str, Any], serial: int) -> bool:
        """Learn what a call passes; whether that is of another type than what is known. serial: of
        the newest memory from before the recursion."""
        now = dict(arguments)
        if self.arguments is None:
            self.first = {n: with_types(x, serial) for n, x in now.items()}
            self.whole = {n for n, x in now.items() if self.first[n] is x}
        others = {n for n in self.whole if now[n] is not self.first[n]}
        self.whole -= others
        if self.arguments is None or any(flatten(now[n])[0].kind != "leaf" for n in others):
            self.arguments = Leaves(*self.flat(self.first))
            return True
        return self.arguments.widen(*self.flat(now), lambda path: (
            f"the argument {spelt(path)} of {self.function.name}"), user_place())


def called(context: Context, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the results of a call: a placeholder inside the function, else those of a whole
    recursion."""
    arguments = bound(function.function, args, kwargs)
    open_now: tuple[Recursion, ...] = context.recursions
    for k, recursion in enumerate(open_now):
        if function in recursion.members:
            if k < len(open_now) - 1:
                raise _Member(recursion, [f for r in open_now[k + 1 :] for f in r.members])
            return recursion.call(function, arguments)
    return Recursion(context).run(function, arguments)


class Recursion:
    """One call from outside, and all calls that follow from it."""

    def __init__(self, context: Context) -> None:
        self.context, self.place = context, user_place()
        self.members: dict[Any, Member] = {}
        self.stored: dict[Storage, ArrayType] = {}  # memory that a body writes
        self.stale: dict[Storage, None] = {}
        self.around, self.serial = _openings(context), context.next_serial()

    def run(self, function: Any, arguments: inspect.BoundArguments) -> Any:
        context = self.context
        outer, context.path = (context.recursions, context.path), None
        self.members[function] = first = Member(function)
        first.take(arguments.arguments, self.serial)
        context.recursions = (*context.recursions, self)
        try:
            self._settle()
        finally:
            context.recursions, context.path = outer
        leaves = first.flat(arguments.arguments)[1]
        values = stack_machine.emit(context, self, first, self._operands(first, leaves))
        return self._results(first, leaves, values)

    # ---- passes ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Capture all functions until nothing new is learned of any of them."""
        for _ in range(_PASSES):
            mark = Mark.of(self.context)
            if self._learned() is False:
                return
            mark.restore_declared(self.context)
        names = ", ".join(f.name for f in self.members)
        raise UnsupportedError(f"what {names} takes and returns changes its type in every call",
                               place=self.place, expected="one type for each of them")

    def _learned(self) -> bool:
        """Return whether a pass over all functions shows something new."""
        unknown = [m for m in self.members.values() if m.arguments and m.results is None]
        if unknown:
            if not any(self._explored(m) for m in unknown):
                raise ProgramError(
                    f"every way through {unknown[0].function.name} calls it again",
                    place=self.place, expected="an arm that returns without a call of itself",
                    found="none", remedy="if n == 0: return 0, before the call",
                )
            return True
        return any(self._captured(m) for m in list(self.members.values()) if m.arguments)

    def _explored(self, member: Member) -> bool:
        """Find what the function returns where it does not call itself; whether there is such a
        way, or something else is known now."""
        context = self.context
        path, learned = Path(len(context.loops)), False

        def returned(result: Any, *_: Any) -> None:
            tree, leaves = flatten(result)
            member.results = Leaves(tree, [leaf_type(x) or x for x in leaves])

        for _ in path.each(_WAYS):
            context.path = path
            try:
                said = self._body(member, returned)
            finally:
                context.path = None
            learned = said is _Again
            if learned or member.results is not None:
                break
        return learned or member.results is not None

    def _captured(self, member: Member) -> bool:
        """Capture the body of a function; whether that shows something new."""
        news: list[bool] = []

        def returned(result: Any, capture: Capture, arrays: Sequence[Array]) -> None:
            aliased = self._finds_aliases(member, result, capture, arrays)
            news.append(self._returned(member, result, capture) or aliased)

        return self._body(member, returned) is _Again or news[-1]

    def _body(self, member: Member, returned: _Returned) -> Any:
        """Run the function once in a block of its own; return the class of what interrupts it."""
        assert member.arguments is not None
        context, taken = self.context, member.arguments
        names = Names(lambda: ())
        body = as_called(member.function.function)
        names.roots.append((member.function.name, body))
        names.roots += [(n, member.first[n]) for n in member.whole]
        said, filled = None, True
        while filled:
            capture = Capture(context, Code(names), "recursion")
            types = [t.array for t in taken.types] + list(self.stored.values())
            hints = [hint(n, "") for n in taken.names] + ["memory"] * len(self.stored)
            block = Block(tuple(Value(n, t) for n, t in zip(hints, types)))
            with _as_before(context):
                capture.begin(block)
                said = self._run(member, body, block, returned, capture)
                capture.open = None
            filled = capture.filled
            capture.put_back()
            capture.mark.forget_later(context, "recursion", self.place,
                                      "return it, or write into an array made before the call")
        return said

    def _run(
        self, member: Member, function: Callable[..., Any], block: Block,
        returned: _Returned, capture: Capture,
    ) -> Any:
        taken = member.arguments
        assert taken is not None
        values = iter(block.args)
        arrays = [array_of(self.context, next(values), t) for t in taken.types]
        for storage in self.stored:
            storage.value = next(values)
        arguments = taken.filled(iter(arrays))
        before = member.flat(arguments)[1]
        bound_arguments = inspect.signature(member.function.function).bind_partial()
        bound_arguments.arguments.update(arguments)
        try:
            result = function(*bound_arguments.args, **bound_arguments.kwargs)
            capture.after()
            self._refuse_writes(member, arrays, capture)
            now = member.flat(arguments)[1]
            if len(now) != len(before) or not all(map(same, now, before)):
                raise UnsupportedError(
                    f"{member.function.name} changes a list or dict that it is given",
                    place=self.place, expected="arguments are values",
                    remedy="return what is new, or write into an array that is read by closure")
            returned(result, capture, arrays)
        except (_Again, _NothingKnown) as stop:
            return type(stop)
        except _Member as met:
            if met.recursion is not self:
                raise
            for other in met.members:
                self.members.setdefault(other, Member(other))
            return _Again
        return None

    def _refuse_writes(self, member: Member, arrays: Sequence[Array], capture: Capture) -> None:
        taken = member.arguments
        assert taken is not None
        for array, name in zip(arrays, taken.names):
            if array.storage in capture.log:
                raise UnsupportedError(
                    f"{member.function.name} writes into its argument {spelt(name)}, which is "
                    "another array in other calls", place=self.place,
                    expected="arguments are values", remedy="write into a copy and return it: x = "
                    "x.copy(); or into an array that is read by closure")

    def _returned(self, member: Member, result: Any, capture: Capture) -> bool:
        """Note what the body returned at its end; return whether that, or what it wrote, is new."""
        context, known = self.context, member.results
        assert known is not None and capture.open is not None
        tree, leaves = flatten(result)
        new = known.widen(tree, leaves, lambda path: (
            f"the result{path} of {member.function.name}"), self.place)
        before = {s: content for s, content, _ in capture.mark.storages}
        written: dict[Storage, ArrayType] = {}
        for storage in capture.written():
            if isinstance(storage.value, Gone):
                self.stale[storage] = None
                continue
            had = self.stored.get(storage) or before[storage].type
            written[storage] = layout_propagation.met(had, storage.value.type)
        new = new or any(self.stored.get(s) != t for s, t in written.items())
        self.stored |= written
        if new:
            return True
        values = [value_of(context, x, t) for x, t in zip(known.varying(leaves), known.types)]
        for k, (t, value) in enumerate(zip(known.types, values)):
            if t.layout is None and value.type.layout:
                typed = [j for j, x in enumerate(known.leaves) if isinstance(x, LeafType)]
                known.leaves[typed[k]] = replace(t, layout=value.type.layout, free=value.type.free)
                new = True
        values += [laid_as(context, s.value, t.layout) for s, t in self.stored.items()]
        member.region = capture.open.close(values)
        return new

    def _finds_aliases(
        self, member: Member, result: Any, capture: Capture, arrays: Sequence[Array]
    ) -> bool:
        """Note which memory from outside a result may be; return whether that is new."""
        before = len(member.aliases), member.passes_on
        argument_storages = {array.storage for array in arrays}
        for x in flatten(result)[1]:
            if isinstance(x, Array) and not x.scalar:
                may_be = {x.storage, *x.storage.shadows}
                member.aliases |= dict.fromkeys(s for s in may_be if s in capture.serials)
                member.passes_on |= not may_be.isdisjoint(argument_storages)
        return (len(member.aliases), member.passes_on) != before

    # ---- calls ----------------------------------------------------------------------------------

    def call(self, function: Any, arguments: inspect.BoundArguments) -> Any:
        """Return the results of a call inside a body, as values of the op that stands for it."""
        context, member = self.context, self.members[function]
        self._refuse_where_it_stands(function)
        if member.take(arguments.arguments, self.serial):
            raise _Again
        if member.results is None:
            raise _NothingKnown if context.path is not None else _Again
        leaves = member.flat(arguments.arguments)[1]
        types = [t.array for t in member.results.types] + list(self.stored.values())
        names = [function.name] * len(member.results.types) + ["memory"] * len(self.stored)
        values = context.emit(RecursiveCall(tuple(types), function), self._operands(member, leaves),
                              names=names)
        return self._results(member, leaves, values)

    def _refuse_where_it_stands(self, function: Any) -> None:
        """Raise UnsupportedError where a function calls itself in an op that would run the call
        otherwise."""
        for (construct, remedy), now, before in zip(_APART, _openings(self.context), self.around):
            if now > before:
                raise UnsupportedError(
                    f"{function.name} calls itself in {construct}", place=user_place(),
                    expected="calls of itself in expressions and branches", remedy=remedy)

    def _operands(self, member: Member, leaves: Sequence[Any]) -> list[Value]:
        taken, context = member.arguments, self.context
        assert taken is not None
        varying = taken.varying(leaves)
        for x, name in zip(varying, taken.names):
            if isinstance(x, Array) and not x.scalar and x.storage in self.stored:
                raise UnsupportedError(
                    f"{member.function.name} writes into an array that it is also given as its "
                    f"argument {spelt(name)}", place=user_place(), expected="arguments are values",
                    remedy="pass a copy: x.copy(); or the same array in all calls")
        values = [value_of(context, x, t) for x, t in zip(varying, taken.types)]
        return values + [laid_as(context, s.value, t.layout) for s, t in self.stored.items()]

    def _results(self, member: Member, leaves: Sequence[Any], values: Sequence[Value]) -> Any:
        """Build the result of a call from the values of its op; storages that it writes show the
        last of them."""
        context, known, taken = self.context, member.results, member.arguments
        assert known is not None and taken is not None
        remaining = iter(values)
        arrays = [array_of(context, next(remaining), t) for t in known.types]
        for storage in self.stored:
            storage.write(context, next(remaining))
        gone = Gone("this array was written in a recursion through a name that may be another's",
                    "copy it before the call: x = x.copy()", self.place)
        for storage in self.stale:
            storage.lose(context, gone)
        passed = [x.storage for x in taken.varying(leaves) if isinstance(x, Array) and not x.scalar]
        may_be = [*member.aliases, *(passed if member.passes_on else ())]
        for array in arrays:
            for storage in may_be if not array.scalar else ():
                link(array.storage, storage, "recursion", self.place)
        return known.filled(iter(arrays))


_APART = (  # where no call of itself may stand, and what to try
    ("a loop of the program", "a call behind the loop, which ends by break; Python's own range, "
     "which unrolls; or a second function under @spmd.recursive in place of the loop"),
    ("a function that is differentiated", "the derivative of a function that calls this one from "
     "outside"),
    ("a function under spmd.vmap", "spmd.vmap of a function that calls this one from outside"),
    ("a function given to spmd.shard_map", "the whole recursion inside spmd.shard_map"),
)


def _openings(context: Context) -> tuple[int, ...]:
    """Return how many of each of these are open now."""
    return len(context.loops), context.recordings, context.members, context.rank_view


@contextmanager
def _as_before(context: Context) -> Iterator[None]:
    """Leave the same blocks, loops and logs open as before, whatever was interrupted in between."""
    lists = ("blocks", "bodies", "write_logs", "loops", "left_early", "captured")
    before = {name: list(getattr(context, name)) for name in lists}
    numbers = {name: getattr(context, name) for name in ("recordings", "members", "rank_view",
                                                         "selecting", "place")}
    yield
    for name, value in {**before, **numbers}.items():
        setattr(context, name, value)



"""Verifies buffer assignment: every read of the Plan finds the value that the Loops ask for.

Goes in: Loops with their buffers, and the Plan made of them. Comes out: the Plan, or an
InternalError that names the op.
Always holds: the check shares no code with the assignment. It follows the content of each buffer
from step to step, through copies, branches and loops, as verifiers of register allocation do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen.errors import InternalError, Place
from codegen.ir.accesses import MemoryAccess, accesses
from codegen.ir.graph import Op, Region, Value
from codegen.ir.loops import Act, BufferAssignment, Do
from codegen.ir.plan import (
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    Let,
    Load,
    Loop,
    More,
    Phase,
    Plan,
    Point,
    Print,
    Save,
    Send,
    Step,
    Store,
    Take,
    Work,
)
from codegen.ir.steps import inner_steps, memory_read, memory_written, moved
from codegen.loops.collapse import collapsed
from codegen.ops import Branch as BranchOp
from codegen.ops import Let as LetOp
from codegen.ops import Update
from codegen.symbolic import expr

Item = Step | Work[Buffer]
Values = frozenset[Value]
_NONE: Values = frozenset()


def check_memory(placed: BufferAssignment, plan: Plan) -> Plan:
    """Return the Plan unchanged. Raises InternalError at the first op that does not find the value
    that it reads."""
    _Check(placed, plan).run()
    return plan


class _Holds:
    """The values that each buffer holds at one point of the program. Buffers that a region has not
    written are looked up in `under`, the state before the region."""

    def __init__(self, under: _Holds | None = None) -> None:
        self.under, self.own = under, dict[int, Values]()  # by number of a buffer

    def __getitem__(self, number: int) -> Values:
        level: _Holds | None = self
        while level is not None:
            if number in level.own:
                return level.own[number]
            level = level.under
        return _NONE


class _Items:
    """The steps of a region in order, with phases replaced by their works."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.left: list[Item] = []
        for step in reversed(steps):
            self.left += reversed(step.work) if isinstance(step, Phase) else [step]

    @property
    def first(self) -> Item | None:
        return self.left[-1] if self.left else None


class _Check:
    """Follows the Plan beside the Loops and keeps what each buffer holds."""

    def __init__(self, placed: BufferAssignment, plan: Plan) -> None:
        self.placed, self.plan = placed, plan
        self.number = {v: b.number for v, b in placed.of.items()}
        self.written: dict[int, frozenset[int]] = {}  # by id of a step: numbers of buffers
        # of an array that is made part by part, what is left of others where no part is written
        self.under: dict[Value, Values] = {}
        self.place: Place | None = None

    def run(self) -> None:
        module, steps = self.placed.loops.module, list(self.plan.steps)
        holds = _Holds()
        for i in module.inputs:
            holds.own[self.number[i.value]] = frozenset([i.value])
        for k, i in enumerate(module.inputs):
            if i.default is not None:
                step = steps.pop(0) if steps else None
                self.rule(isinstance(step, Default) and step.input == k, "an input has its default")
                assert isinstance(step, Default)
                inner = self.region(i.default, step.steps, holds)
                self.moved(inner, [(i.default.results[0], i.value)])
                for buffer, values in inner.own.items():
                    holds.own[buffer] = values & holds[buffer]
                holds.own[self.number[i.value]] = frozenset([i.value])
        end = self.region(module.body, steps, holds)
        for o in module.outputs:
            self.read(o.value, end)

    # ---- rules -----------------------------------------------------------------------------------

    def rule(self, holds: bool, rule: str, found: str = "") -> None:
        if not holds:
            raise InternalError.of_rule(rule, self.place, found)

    def read(self, value: Value, holds: _Holds) -> None:
        values = holds[self.number[value]]
        if value not in values:
            names = " and ".join(sorted(v.name for v in values)) or "nothing"
            self.rule(False, f"{value.name} is in its buffer when it is read",
                      f"buffer {self.placed.of[value].name} holds {names}")

    # ---- steps -----------------------------------------------------------------------------------

    def region(self, region: Region, steps: Sequence[Step], outer: _Holds) -> _Holds:
        """Follow a region's steps and return what the buffers hold at its end, after its final
        copies."""
        holds, items = _Holds(outer), _Items(steps)
        for op in region.ops:
            self.place = op.place or self.place
            if not isinstance(op.kind, Do):
                self.copies(items, holds)
            if (stretch := self.placed.arms.stretches.get(op, 1)) > 1:
                holds.own |= dict.fromkeys(self.lies_over(stretch), _NONE)
            if isinstance(op.kind, Do):
                self.do(op, op.kind, items, holds)
                continue
            step = items.left.pop() if items.left else None
            if isinstance(op.kind, LetOp):
                self.rule(isinstance(step, Let) and step.counter is op.kind.counter
                          and step.value.buffer.number == self.number[op.operands[0]],
                          "a let is a step")
                self.read(op.operands[0], holds)
            elif isinstance(op.kind, BranchOp):
                self.branch(op, op.kind, step, holds)
            else:
                self.loop(op, step, holds)
        self.copies(items, holds)
        self.rule(items.first is None, "every step is what an op asks for")
        return holds

    def copies(
        self, items: _Items, holds: _Holds, wanted: Sequence[tuple[Value, Value]] | None = None
    ) -> None:
        """Follow the copies that come next: all of them, or only until each wanted value lies in
        the buffer of the value that it is paired with."""
        while wanted is None or any(v not in holds[self.number[to]] for v, to in wanted):
            if (source := _copied(items.first)) is None:
                break
            store = items.left.pop()
            assert isinstance(store, Store)
            many = expr.product(v.extent for v in store.loops)
            holds.own[store.buffer.number] = frozenset(
                v for v in holds[source] if expr.product(v.type.shape) == many)

    def do(self, op: Op, do: Do, items: _Items, holds: _Holds) -> None:
        """Check that the steps of an op do its acts, read the values that it asks for, and leave
        results."""
        spare: dict[Value, Buffer] = {}
        own = {*op.results, *do.scratch}
        begins = [(x, v) for x, v in do.begins if x not in own]
        self.copies(items, holds, begins)
        self.moved(holds, begins)
        for x, v in do.begins:
            self.rule(x not in own or self.number[x] == self.number[v],
                      f"{v.name} begins with {x.name}")
        written = set[Value]()
        left = _NONE
        if do.of is not None and isinstance(do.of.kind, Update) and do.of.kind.apart:
            under = (self.under.get(x, _NONE) for x, _ in begins)
            left = holds[self.number[op.result]].union(*under)
            self.under[op.result] = left
        for act in do.acts:
            for v in memory_read(act):
                if v in own or v not in self.number or (v in left and isinstance(act, Store)):
                    continue  # where a part is written, what it replaces may be read
                self.read(v, holds)
            if not self.matches(act, items.first, spare):
                item_kind = type(items.first).__name__
                self.rule(_nothing(act, self.number), "what an op does is in the Plan", item_kind)
                continue
            step = items.left.pop()
            if isinstance(step, Exchange):
                holds.own |= dict.fromkeys(_given_up(step), _NONE)
            if isinstance(act, Exchange) and act.take is not None:
                self.over_itself(act.take)
            elif isinstance(act, Store) and not act.rows and any(v.extent != 1 for v in act.loops):
                self.over_itself(act)
            for v in memory_written(act):  # where two lie in one memory, the last one is there
                if v in self.number:
                    written.add(v)
                    holds.own[self.number[v]] = frozenset([v])
        for v in op.results:
            if v not in written:  # what it begins with, or whatever is there
                holds.own[self.number[v]] = holds[self.number[v]] | {v}

    def over_itself(self, act: Store[Value]) -> None:
        """Check that a store which reads the memory it writes reads only the element that it is
        about to write: it may have overwritten others by then. Stores that buffer whole rows are
        exempt."""
        mine = self.number.get(act.buffer, -1)
        if all(self.number.get(v) != mine for v in memory_read(act)):
            return
        written = MemoryAccess(act.buffer, act.offset, act.loops)
        for a in accesses(act):
            if self.number.get(a.buffer) == mine and not a.writes:
                self.rule(a.offset == act.offset or not a.may_overlap(written.range),
                          "a store reads what it has not written yet",
                          f"{a.buffer.name} at {a.offset}, written at {act.offset}")

    def matches(self, act: Any, item: Any, spare: dict[Value, Buffer]) -> bool:
        """Return whether a step is the given act with values replaced by their buffers. `spare`
        maps scratch values to the buffers found for them so far."""
        if type(act) is not type(item):
            return False
        mine, theirs = ([*memory_read(x), *memory_written(x)] for x in (act, item))
        if len(mine) != len(theirs):
            return False
        to = dict(spare)
        for v, b in zip(mine, theirs, strict=True):
            if v in self.number:
                to[v] = self.placed.of[v]
            elif not _same_elements(b.data, self.placed.loops.constants.get(v)):
                return False
            else:
                to.setdefault(v, b)
        new: Any = moved(act, to.__getitem__)
        if isinstance(new, Exchange):
            new = replace(new, last=item.last)
        elif not isinstance(new, Print | Expect | Point | Take | More | Send | Save):
            new = collapsed(new)
        return bool(new == item)

    # ---- control ---------------------------------------------------------------------------------

    def moved(self, holds: _Holds, pairs: Iterable[tuple[Value, Value]]) -> None:
        """Check, for each pair of values, that the first one lies in the buffer of the second
        one."""
        for v, to in pairs:
            self.rule(v in holds[self.number[to]], f"{v.name} is handed on as {to.name}",
                      f"buffer {self.placed.of[to].name}")

    def branch(self, op: Op, kind: BranchOp, step: Item | None, holds: _Holds) -> None:
        """Check the arms of a branch. After it, a buffer holds the values that all arms leave in
        it."""
        self.rule(isinstance(step, Branch) and len(step.arms) == len(op.regions),
                  "a branch is a step")
        assert isinstance(step, Branch)
        if kind.on is None:
            self.rule(isinstance(step.on, Load)
                      and step.on.buffer.number == self.number[op.operands[0]],
                      "a branch reads what decides it")
            self.read(op.operands[0], holds)
        else:
            self.rule(step.on == kind.on, "a branch is on what decides it")
        ends = []
        entries = op is self.placed.loops.module.entry_branch
        arms = self.placed.arms
        own = dict[int, Values]()
        for region, arm in zip(op.regions, step.arms, strict=True):
            begin = _Holds(holds)
            if not entries:  # whose own inputs and outputs lie in their overlays
                begin.own = dict.fromkeys(self.lies_over(arms.number[region]), _NONE)
                own |= begin.own
            ends.append(end := self.region(region, arm, begin))
            self.moved(end, zip(region.results, op.results, strict=True))
        for number in set[int]().union(*(end.own for end in ends)):
            held = [end[number] for end in ends]
            holds.own[number] = held[0].intersection(*held[1:])
        holds.own |= own
        for v in op.results:
            self.rule(self.number[v] not in own, f"{v.name} lies where no arm has its own")
            holds.own[self.number[v]] = holds[self.number[v]] | {v}

    def lies_over(self, arm: int) -> Iterator[int]:
        """Yield the buffers that may overlay those of an arm, its own ones included: their content
        is lost when the arm begins and when it ends."""
        arms = self.placed.arms
        around = arms.around[arm - 1]
        for b in self.plan.buffers:
            if arms.common(b.arm, around) != b.arm:
                yield b.number

    def loop(self, op: Op, step: Item | None, holds: _Holds) -> None:
        """Check a loop and its turns. When a turn begins, a buffer that turns write holds only
        carried values: whatever else it held is taken as lost."""
        self.rule(isinstance(step, Loop), "a loop is a step")
        assert isinstance(step, Loop)
        body = op.regions[-1]
        self.moved(holds, zip(op.operands, body.args, strict=True))
        written = self.buffers_written(step)
        head = _Holds(holds)
        for number in written:
            head.own[number] = _NONE
        for region in op.regions:
            for arg, v in zip(body.args, region.args, strict=True):
                self.rule(self.number[arg] == self.number[v], "what is carried stays in its buffer")
                head.own[self.number[v]] = head[self.number[v]] | {v}
        end = head
        if len(op.regions) == 2:
            end = self.region(op.regions[0], step.condition, head)
            (truth,) = op.regions[0].results
            self.rule(step.flag is not None and step.flag.buffer.number == self.number[truth],
                      "a loop reads what decides it")
            self.read(truth, end)
        turned = self.region(body, step.body, end)
        for cycle in step.rotate:
            held = [turned[b.number] for b in cycle]
            turned.own.update((b.number, v) for b, v in zip(cycle, (held[-1], *held), strict=False))
        self.moved(turned, zip(body.results, body.args, strict=True))
        for number in written:
            holds.own[number] = end[number]
        for v, arg in zip(op.results, body.args, strict=True):
            self.rule(self.number[v] == self.number[arg], "a result of a loop stays in its buffer")
            self.rule(arg in end[self.number[arg]], f"{arg.name} is there when the loop ends")
            holds.own[self.number[v]] = holds[self.number[v]] | {v}

    def buffers_written(self, step: Step) -> frozenset[int]:
        """Return the numbers of the buffers that a step and all steps inside it write."""
        if id(step) not in self.written:
            numbers = set[int]()
            if isinstance(step, Phase):
                numbers.update(b.number for work in step.work for b in memory_written(work))
            elif isinstance(step, Take | More):
                numbers.update(b.number for b in memory_written(step))
            elif isinstance(step, Exchange):
                numbers.update(b.number for b in memory_written(step))
                numbers |= _given_up(step)
            elif isinstance(step, Loop):
                numbers.update(b.number for cycle in step.rotate for b in cycle)
            for inner in inner_steps(step):
                for inner_step in inner:
                    numbers |= self.buffers_written(inner_step)
            self.written[id(step)] = frozenset(numbers)
        return self.written[id(step)]


def _copied(item: Item | None) -> int | None:
    """Return the number of the buffer that a step copies to the same offsets of another one, or
    None if the step is no such copy."""
    if not isinstance(item, Store) or item.combine != "set" or item.bounds or item.rows:
        return None
    value = item.value
    if not isinstance(value, Load) or value.bounds or value.offset != item.offset:
        return None
    constant = value.buffer.data is not None
    return None if constant or value.buffer is item.buffer else value.buffer.number


def _same_elements(a: Any, b: Any) -> bool:
    """Return whether two arrays hold the same bytes; NaNs are equal if their bits are."""
    return a is b or (a is not None and b is not None and a.dtype == b.dtype
                      and a.tobytes() == b.tobytes())


def _nothing(act: Act, number_of: Mapping[Value, int]) -> bool:
    """Return whether an act copies an array to itself, as a reshape in place does: it needs no
    step."""
    return (isinstance(act, Store) and isinstance(act.value, Load)
            and number_of.get(act.value.buffer) == number_of[act.buffer]
            and act.value.offset == act.offset)


def _given_up(step: Exchange) -> set[int]:
    """Return the number of the buffer that an exchange reads for the last time, in a set; an empty
    set if the Plan does not say so."""
    of = step.pull_from.buffer if step.pull_from is not None and step.last else None
    return {of.number} if of is not None and of.data is None else set()

"""Loops to Plan: values become the buffers that they lie in, and steps are put in phases.

Goes in: Loops with their buffers. Comes out: the Plan; nothing is left for the emitter to decide.
Where a value could not have the buffer it wanted, a copy stands here.
Always holds: between two exchanges there is at most one compute phase; no phase mentions a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from codegen import ops
from codegen.dtypes import DType
from codegen.errors import InternalError, Place
from codegen.ir.graph import Op, Region, Value
from codegen.ir.indexing import loop_vars, positions, ravel
from codegen.ir.loops import BufferAssignment, Do, capacity
from codegen.ir.plan import (
    Array,
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    FeedStep,
    Home,
    Let,
    Load,
    Loop,
    More,
    Phase,
    Plan,
    Point,
    Print,
    Save,
    Saved,
    Send,
    Step,
    Store,
    Take,
    Work,
)
from codegen.ir.steps import moved
from codegen.loops.collapse import collapsed
from codegen.ops import Kind
from codegen.ops.control import POSITION
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


def to_plan(placed: BufferAssignment) -> Plan:
    """Return the Plan of Loops whose values have buffers."""
    work, of = _Scheduler(placed), placed.of
    program = placed.loops.module
    steps: list[Step] = []
    for k, i in enumerate(program.inputs):
        if i.default is not None:
            copies = work.moves(i.default.results, (i.value,))
            steps.append(Default(k, i.name, work.region(i.default, copies)))
    steps += work.region(program.body, [])
    inputs = tuple(
        Array(i.name, of[i.value], i.value.type.dtype, i.shape, i.layout, i.default is not None,
              flag=i.flag, needs=(i.root,) if i.root else ())
        for i in program.inputs
    )
    outputs = tuple(
        Array(o.name, of[o.value], o.value.type.dtype, o.shape, o.layout, flag=o.wanted,
              needs=o.needs) for o in program.outputs
    )
    loops = placed.loops
    return Plan(
        program.name, program.file, program.mesh, program.parameters, program.scalars,
        tuple(work.buffers), tuple(work.contents.values()), inputs, outputs, program.returns,
        program.states, program.entries,
        tuple(steps), program.conditions, work.counters, loops.sites, program.routes,
        loops.libraries, tuple(loops.kernels.items()), program.checks, dict(loops.named),
        points=tuple(work.points) if program.kept else None, feeds=program.feeds,
        takes=tuple(work.takes), sends=tuple(work.sends), saves=tuple(work.saves),
        arms=tuple(placed.arms.around), lets=dict(loops.lets), position=work.position,
    )


# A copy that a control step needs: from buffer, the value, into buffer.
_Copy = tuple[Buffer, Value, Buffer]


class _Scheduler:
    """Emits the steps of a Plan; `pending` are the works of the phase that is being filled."""

    def __init__(self, placed: BufferAssignment) -> None:
        self.placed, self.of = placed, placed.of
        self.buffers = list(placed.buffers)
        self.constants: dict[Value, Buffer] = {}
        self.contents: dict[tuple[str, bytes], Buffer] = {}  # by dtype and digest of its elements
        self.spare: dict[Value, Buffer] = {}  # what the op at hand needs meanwhile
        self.phases = self.counters = 0
        self.position: int | None = None
        self.pending: list[Work] = []
        self.points: list[tuple[Array, ...]] = []
        self.takes: list[FeedStep] = []
        self.sends: list[FeedStep] = []
        self.saves: list[Saved] = []
        self.steps: list[Step] = []
        self.arm = 0  # the arm of a branch that the op at hand stands in
        self.here: Place | None = None  # of the last op: the place of copies that no op asks for

    # ---- memory ----------------------------------------------------------------------------------

    def buffer(self, value: Value) -> Buffer:
        if value in self.of:
            return self.of[value]
        return self.spare[value] if value in self.spare else self.constant(value)

    def constant(self, value: Value) -> Buffer:
        """Return the place of a constant in the image; constants of equal contents share one. (An
        array that a program names twice is two constants: Python may have changed it between.)"""
        if value not in self.constants:
            data, number = self.placed.loops.constants[value], len(self.contents)
            content = value.type.dtype.name, blake2b(data.tobytes()).digest()
            self.constants[value] = self.contents.setdefault(content, Buffer(
                number, f"constant_{number}", value.type.dtype, expr.const(data.size), data))
        return self.constants[value]

    def new_buffer(self, name: str, dtype: DType, elements: Expr) -> Buffer:
        buffer = Buffer(len(self.buffers), name, dtype, elements, arm=self.arm)
        self.buffers.append(buffer)
        return buffer

    def moves(self, values: Sequence[Value], into: Sequence[Value]) -> list[_Copy]:
        return [(self.of[v], v, self.of[to]) for v, to in zip(values, into, strict=True)]

    def copies(self, copies: Sequence[_Copy]) -> None:
        """Add parallel copies, one after the other, ordered so that none overwrites another one's
        source; a cycle goes through a spare buffer."""
        left = [c for c in copies if c[0] is not c[2]]
        while left:
            for c in left:
                if not any(o[0] is c[2] for o in left if o is not c):
                    break
            else:  # a cycle: save one source
                c = left[0]
                spare = self.new_buffer(f"{c[2].name}_old", c[2].dtype, c[2].capacity)
                self.copy(c[2], c[1], spare)
                left = [(spare, v, to) if src is c[2] else (src, v, to) for src, v, to in left]
                continue
            self.copy(*c)
            left.remove(c)

    def copy(self, source: Buffer, value: Value, into: Buffer) -> None:
        loops = loop_vars(value.type.shape)
        offset = ravel(positions(loops), value.type.shape)
        self.add(Store(loops, into, offset, Load(source, offset)))

    def arrays(self, buffers: Sequence[Buffer], homes: Sequence[Home]) -> tuple[Array, ...]:
        """Return descriptions of buffers, with which others than the program read or write their
        arrays."""
        named, arrays = self.placed.loops.named, []
        for buffer, home in zip(buffers, homes, strict=True):
            shape, layout, before = home.array or (home.part, ((),) * len(home.part), None)
            room = () if before is None else tuple(zip(before, home.part, strict=True))
            shape = tuple(e.subst(named) for e in shape)
            arrays.append(Array(home.name, buffer, home.dtype, shape, layout,
                              own=home.array is None, room=room))
        return tuple(arrays)

    # ---- regions and control ---------------------------------------------------------------------

    def region(self, region: Region, copies: Sequence[_Copy]) -> tuple[Step, ...]:
        """Return the steps of a region, with the copies that its end asks for."""
        outer, self.steps = (self.steps, self.pending, self.arm), []
        self.pending = []
        self.arm = self.placed.arms.number.get(region, self.arm)
        for op in region.ops:
            self.here = op.place or self.here
            _RULES[type(op.kind)](self, op)
        self.copies(copies)
        self.flush()
        done = tuple(self.steps)
        self.steps, self.pending, self.arm = outer
        return done

    def add(self, work: Work) -> None:
        self.pending.append(collapsed(work))

    def flush(self) -> None:
        if self.pending:
            place = next((w.place for w in self.pending if w.place), self.here)
            name = f"phase_{self.phases}"
            self.steps.append(Phase(self.phases, name, tuple(self.pending), place))
            self.phases += 1
            self.pending = []

    def do(self, op: Op) -> None:
        """Emit the steps of one op: copies that it begins with, then its acts."""
        assert isinstance(op.kind, Do)
        self.copies([(self.of[x], x, self.of[v]) for x, v in op.kind.begins])
        for v in op.kind.scratch:
            self.spare[v] = self.new_buffer(v.name, v.type.dtype, capacity(v))
        for act in op.kind.acts:
            if isinstance(act, Exchange):
                self.flush()
                last = op in self.placed.last
                self.steps.append(replace(moved(act, self.buffer), last=last))
            elif isinstance(act, Print | Expect):
                self.flush()
                self.steps.append(moved(act, self.buffer))
            elif isinstance(act, Point):
                self.flush()
                self.steps.append(point := moved(act, self.buffer))
                names = (b.name if h.name == "memory" else h.name  # written in place
                         for b, h in zip(point.carried, point.homes, strict=True))
                arrays = self.arrays(point.carried, point.homes)
                self.points.append(tuple(map(_named, arrays, names)))
            elif isinstance(act, Save):
                self.flush()
                self.steps.append(save := moved(act, self.buffer))
                assert isinstance(save, Save)
                (array,) = self.arrays(save.values, save.homes)
                self.saves.append(Saved(save.series, save.every, array, save.place))
            elif isinstance(act, Take | More | Send):
                self.flush()
                self.steps.append(step := moved(act, self.buffer))
                if isinstance(step, Take):
                    arrays = self.arrays(step.into, step.homes)
                    self.takes.append(FeedStep(step.feed, step.number, arrays))
                elif isinstance(step, Send):
                    arrays = self.arrays(step.values, step.homes)
                    self.sends.append(FeedStep(step.feed, step.number, arrays))
            elif not _is_there(work := moved(act, self.buffer)):
                self.add(work)

    def loop(self, op: Op) -> None:
        kind = op.kind
        assert isinstance(kind, ops.Loop)
        body = op.regions[-1]
        self.copies(self.moves(op.operands, body.args))
        self.flush()
        slot = self.counters
        self.counters += kind.counter is not None
        condition: tuple[Step, ...] = ()
        flag = None
        if len(op.regions) == 2:
            condition = self.region(op.regions[0], ())
            flag = Load(self.of[op.regions[0].results[0]], expr.const(0))
        rotate = self.placed.cycles.get(op, ())
        turned = [(a, b) for cycle in rotate for a, b in zip(cycle, (*cycle[1:], cycle[0]))]
        again = self.moves(body.results, body.args)
        steps = self.region(body, [c for c in again if (c[0], c[2]) not in turned])
        stop = None if kind.stop is None else expr.as_expr(kind.stop)
        start, step = expr.as_expr(kind.start), expr.as_expr(kind.step)
        self.steps.append(
            Loop(kind.counter, slot, start, stop, step, steps, condition, flag, rotate, op.place)
        )
        for r, arg in zip(op.results, body.args, strict=True):
            if self.of[r] is not self.of[arg]:
                raise InternalError(f"loop result {r} left its buffer", place=op.place)

    def let(self, op: Op) -> None:
        assert isinstance(op.kind, ops.Let)
        self.flush()
        value = Load(self.of[op.operands[0]], expr.const(0))
        slot = self.counters
        if op.kind.key == POSITION:  # all of them have one slot
            slot = self.position = slot if self.position is None else self.position
        self.steps.append(Let(op.kind.counter, slot, value, op.place))
        self.counters += slot == self.counters

    def branch(self, op: Op) -> None:
        assert isinstance(op.kind, ops.Branch)
        self.flush()
        arms = tuple(self.region(a, self.moves(a.results, op.results)) for a in op.regions)
        on: Expr | Load | None = op.kind.on
        if on is None:
            on = Load(self.of[op.operands[0]], expr.const(0))
        self.steps.append(Branch(on, arms, op.place))


def _named(array: Array, name: str) -> Array:
    return replace(array, name=name)


def _is_there(work: Work) -> bool:
    """Return whether a work copies an array to itself, as a reshape in place does: it needs no
    step."""
    if not isinstance(work, Store) or not isinstance(work.value, Load):
        return False
    return work.value.buffer is work.buffer and work.value.offset == work.offset


_RULES: dict[type[Kind], Callable[[_Scheduler, Op], None]] = {
    Do: _Scheduler.do,
    ops.Loop: _Scheduler.loop,
    ops.Let: _Scheduler.let,
    ops.Branch: _Scheduler.branch,
}

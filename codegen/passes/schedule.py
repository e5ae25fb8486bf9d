"""Program to Plan: ops in order become compute phases, exchange phases and control steps.

Goes in: a Program, its stored values and their buffers. Comes out: the Plan; nothing is left for
the emitter to decide. Where a value could not have the buffer it wanted, a copy stands here.
Always holds: between two exchanges there is at most one compute phase; no phase mentions a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from codegen import ops
from codegen.dtypes import DType
from codegen.errors import InternalError, Place
from codegen.image.gufunc import Parameter
from codegen.ir import Module, Op, Region, Value
from codegen.ops import Kind
from codegen.plan.access import Points, Resolver
from codegen.plan.exchanges import Sides
from codegen.plan.flatten import flattened
from codegen.plan.grammar import (
    Array,
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    Keep,
    Let,
    Literal,
    Load,
    Loop,
    Nest,
    Phase,
    Plan,
    Print,
    Reduce,
    Step,
    Store,
    Sweep,
    Var,
    Work,
)  # fmt: skip
from codegen.plan.indexing import loop_vars, positions, ravel
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


def schedule(
    program: Module, stored: frozenset[Value], buffers: Sequence[Buffer],
    of: Mapping[Value, Buffer], rotate: Mapping[Op, Rings],
) -> Plan:  # fmt: skip
    """The Plan of a Program. rotate: by loop, the buffers that change places as a turn ends."""
    work = Scheduler(program, stored, list(buffers), of, rotate)
    steps: list[Step] = []
    for k, i in enumerate(program.inputs):
        if i.default is not None:
            copies = work.moves(i.default.results, (i.value,))
            steps.append(Default(k, i.name, work.region(i.default, copies)))
    steps += work.region(program.body, [])
    inputs = tuple(
        Array(i.name, of[i.value], i.value.type.dtype, i.shape, i.layout, i.default is not None)
        for i in program.inputs
    )
    outputs = tuple(
        Array(o.name, of[o.value], o.value.type.dtype, o.shape, o.layout) for o in program.outputs
    )
    return Plan(
        program.name, program.file, program.mesh, program.parameters, program.scalars,
        tuple(work.buffers), tuple(work.constants.values()), inputs, outputs, program.returns,
        tuple(steps), program.conditions, work.counters, work.sites, program.routes,
        tuple(work.libraries), tuple(work.kernels.items()), program.checks,
        {s: e for e, s in work.resolver.named.items()},
    )  # fmt: skip


# A copy that a control step needs: from buffer, the value, into buffer.
_Copy = tuple[Buffer, Value, Buffer]
Rings = tuple[tuple[Buffer, ...], ...]


class Scheduler:
    """What the rules of kinds add their work to."""

    def __init__(
        self, program: Module, stored: frozenset[Value], buffers: list[Buffer],
        of: Mapping[Value, Buffer], rotate: Mapping[Op, Rings],
    ) -> None:  # fmt: skip
        self.mesh = program.mesh
        self.sync = program.sync
        self.buffers = buffers
        self.of = of
        self.stored = stored
        self.rotate = rotate
        self.constants: dict[Value, Buffer] = {}
        self.resolver = Resolver(
            program.def_use.defs, lambda v: v in stored, lambda v: of[v], self.constant,
            {s.name: k for k, s in enumerate(program.scalars)},
        )  # fmt: skip
        self.sides = Sides(program.mesh, self.resolver)
        self.phases = self.sites = self.counters = 0
        self.libraries: list[str] = []
        self.kernels: dict[str, Any] = {}
        self.names: dict[str, int] = {}
        self.pending: list[Work] = []
        self.steps: list[Step] = []
        self.here: Place | None = None  # of the last op: the place of copies that no op asks for

    def constant(self, value: Value, data: Any) -> Buffer:
        if value not in self.constants:
            number = len(self.constants)
            self.constants[value] = Buffer(
                number, f"constant_{number}", value.type.dtype, expr.const(data.size), data
            )
        return self.constants[value]

    # ---- regions and control ---------------------------------------------------------------------

    def region(self, region: Region, copies: Sequence[_Copy]) -> tuple[Step, ...]:
        """The steps of a region, with the copies that its end asks for."""
        outer, self.steps = (self.steps, self.pending), []
        self.pending = []
        for op in region.ops:
            self.op(op)
        self.copies(copies)
        self.flush()
        done = tuple(self.steps)
        self.steps, self.pending = outer
        return done

    def flush(self) -> None:
        if self.pending:
            place = next((w.place for w in self.pending if w.place), self.here)
            name = f"phase_{self.phases}"
            self.steps.append(Phase(self.phases, name, tuple(self.pending), place))
            self.phases += 1
            self.pending = []

    def moves(self, values: Sequence[Value], into: Sequence[Value]) -> list[_Copy]:
        return [(self.of[v], v, self.of[to]) for v, to in zip(values, into, strict=True)]

    def copies(self, copies: Sequence[_Copy]) -> None:
        """Copies that happen at once: ordered so that none destroys another's source."""
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

    def new_buffer(self, name: str, dtype: DType, capacity: Expr) -> Buffer:
        buffer = Buffer(len(self.buffers), name, dtype, capacity)
        self.buffers.append(buffer)
        return buffer

    def op(self, op: Op) -> None:
        self.here = op.place or self.here
        if op.what.inline:
            if op.result in self.stored and not (isinstance(op.what, ops.Full) and op.what.blank):
                self.store_inline(op)
            return
        if isinstance(op.what, ops.Exchange):
            self.exchange(op)
        elif type(op.what) in _CONTROL:
            _CONTROL[type(op.what)](self, op)
        else:
            op.what.steps(op, self)

    def loop(self, op: Op) -> None:
        what = op.what
        assert isinstance(what, ops.Loop)
        body = op.regions[-1]
        self.copies(self.moves(op.operands, body.args))
        self.flush()
        slot = self.counters
        self.counters += what.counter is not None
        condition: tuple[Step, ...] = ()
        flag = None
        if len(op.regions) == 2:
            condition = self.region(op.regions[0], ())
            flag = Load(self.of[op.regions[0].results[0]], expr.const(0))
        rotate = self.rotate.get(op, ())
        turned = [(a, b) for ring in rotate for a, b in zip(ring, (*ring[1:], ring[0]))]
        again = self.moves(body.results, body.args)
        steps = self.region(body, [c for c in again if (c[0], c[2]) not in turned])
        stop = None if what.stop is None else expr.as_expr(what.stop)
        start, step = expr.as_expr(what.start), expr.as_expr(what.step)
        self.steps.append(
            Loop(what.counter, slot, start, stop, step, steps, condition, flag, rotate, op.place)
        )
        for r, arg in zip(op.results, body.args, strict=True):
            if self.of[r] is not self.of[arg]:
                raise InternalError(f"loop result {r} left its buffer", place=op.place)

    def let(self, op: Op) -> None:
        assert isinstance(op.what, ops.Let)
        self.flush()
        value = Load(self.of[op.operands[0]], expr.const(0))
        self.steps.append(Let(op.what.counter, self.counters, value, op.place))
        self.counters += 1

    def branch(self, op: Op) -> None:
        assert isinstance(op.what, ops.Branch)
        self.flush()
        arms = tuple(self.region(a, self.moves(a.results, op.results)) for a in op.regions)
        on: Expr | Load | None = op.what.on
        if on is None:
            on = Load(self.of[op.operands[0]], expr.const(0))
        self.steps.append(Branch(on, arms, op.place))

    def print(self, op: Op) -> None:
        assert isinstance(op.what, ops.Print)
        self.flush()
        nodes = tuple(self.resolver.node(v, ()) for v in op.operands)
        self.steps.append(Print(op.what.parts, nodes, op.what.every_rank, op.place))

    def expect(self, op: Op) -> None:
        assert isinstance(op.what, ops.Expect)
        self.flush()
        holds, *shown = (self.resolver.node(v, ()) for v in op.operands)
        self.steps.append(Expect(holds, op.what.parts, tuple(shown), op.what.check, op.place))

    # ---- compute ---------------------------------------------------------------------------------

    def add(self, work: Work) -> None:
        self.pending.append(flattened(work))

    def store_inline(self, op: Op) -> None:
        loops = loop_vars(op.result.type.shape)
        index = positions(loops)
        node = self.resolver.computed(op, index)
        into = self.of[op.result]
        offset = ravel(index, op.result.type.shape)
        if isinstance(node, Load) and node.buffer is into and node.offset == offset:
            return  # a reshape in place
        self.add(Store(loops, into, offset, node, place=op.place))

    def nest(self, op: Op) -> None:
        assert isinstance(op.what, ops.Nest)
        outer, members = op.what.outer, op.regions[0].ops
        made = {m.result for m in members}
        updated = [(m.operands[0], m.result) for m in members if isinstance(m.what, ops.Update)]
        self.copies([(self.of[x], x, self.of[v]) for x, v in updated if x not in made])
        sweeps: list[Sweep] = []
        for number in range(max(op.what.sweeps) + 1):
            parts: list[Keep | Store | Reduce] = []
            after: list[Store] = []  # what is folded, once it is
            kept = []
            loops: tuple[Var, ...] = ()
            for member, n in zip(members, op.what.sweeps, strict=True):
                if n == number:
                    at = self.resolver.points(member)
                    loops = at.loops[len(outer) :]
                    self.part(member, at, parts, after)
                    kept += [member.result] if at.how == "point" and loops else []
            sweeps.append(Sweep(loops, tuple(parts)))
            if after:
                sweeps.append(Sweep((), tuple(after)))
            for v in kept:  # later sweeps come to other points
                self.resolver.kept.pop(v, None)
        self.resolver.kept.clear()
        self.add(Nest(outer, tuple(sweeps), op.place))

    def part(
        self, op: Op, at: Points, parts: list[Keep | Store | Reduce], after: list[Store]
    ) -> None:
        """A member of a nest: what is computed, and where it goes."""
        v, kept = op.result, self.resolver.kept
        node = self.resolver.member(op, at)
        fn = op.what.fn if isinstance(op.what, ops.Reduce) else ""
        if at.how == "rows":
            inner = tuple(loop for loop in at.loops if loop not in at.kept)
            parts.append(Reduce(at.kept, inner, True, self.of[v], at.offset, node, fn, v.type.dtype,
                                op.place))  # fmt: skip
            return
        if isinstance(op.what, ops.Update):  # most of its elements nobody reads here
            parts.append(Store(at.loops, self.of[v], at.offset, node, place=op.place))
            return
        fn = fn if at.how == "fold" else ""
        same = next((p for p in parts if isinstance(p, Keep) and p.value == node
                     and (p.fn, p.dtype) == (fn, v.type.dtype)), None)  # fmt: skip
        keep = same or Keep(self.local_name(v.name), v.type.dtype, node, fn, op.place)
        parts += [] if same else [keep]
        kept[v] = keep.local
        if v in self.stored:
            stores = after if fn else parts
            stores.append(Store(at.kept, self.of[v], at.offset, kept[v], place=op.place))

    def local_name(self, name: str) -> str:
        """Unique in the Plan."""
        self.names[name] = self.names.get(name, 0) + 1
        return name if self.names[name] == 1 else f"{name}_{self.names[name]}"

    def take_over(self, op: Op) -> Buffer:
        """The buffer that an update writes; the old content is copied where it is still needed."""
        x, result = op.operands[0], op.result
        self.copies([(self.of[x], x, self.of[result])])
        return self.of[result]

    def library(self, routine: str) -> int:
        """The number of a routine of BLAS."""
        if routine not in self.libraries:
            self.libraries.append(routine)
        return self.libraries.index(routine)

    def kernel(self, kernel: Any, signature: tuple[Parameter, ...]) -> str:
        """The symbol of a kernel compiled for these parameters."""
        known = (s for s, (k, sig) in self.kernels.items() if k is kernel and sig == signature)
        symbol = next(known, None)
        if symbol is None:
            symbol = f"kernel_{len(self.kernels)}_{kernel.name}"
            self.kernels[symbol] = (kernel, signature)
        return symbol

    def begin(self, value: Value, content: Value, op: Op) -> None:
        """A value begins with the content of another one."""
        loops = loop_vars(value.type.shape)
        index = positions(loops)
        node = self.resolver.node(content, index)
        self.add(Store(loops, self.of[value], ravel(index, value.type.shape), node,
                       place=op.place))  # fmt: skip

    # ---- exchange --------------------------------------------------------------------------------

    def exchange(self, op: Op) -> None:
        """An exchange phase, with the barriers that the program asked for around it."""
        assert isinstance(op.what, ops.Exchange)
        if op.what.in_place:
            self.take_over(op)
        self.flush()
        around = "least" if isinstance(op.what, ops.Barrier) else self.sync
        if around in ("before", "both"):
            self.add_exchange(op, ops.Barrier(op.what.axes))
        self.add_exchange(op, op.what)
        if around in ("after", "both"):
            self.add_exchange(op, ops.Barrier(op.what.axes))
        if op.results:
            self.fill(op, op.what)

    def fill(self, op: Op, what: ops.Exchange) -> None:
        """The elements of a result that the exchange leaves alone."""
        where, value = what.unsent(self.mesh.position(what.axes), op.result.type)
        if where == 0:
            return
        result = op.result.type
        shape = result.shape or (expr.const(1),)
        loops = loop_vars((shape[0] * where, *shape[1:]))
        literal = Literal(value, result.dtype)
        self.add(Store(loops, self.of[op.result], ravel(positions(loops), shape), literal,
                       place=op.place))  # fmt: skip

    def add_exchange(self, op: Op, what: ops.Exchange) -> None:
        member = Sym("member", "var", expr.const(0), self.mesh.size(what.axes) - 1)
        details = self.sides.details(op, what, member)
        dtype = details["send"].buffer.dtype if details else None
        self.steps.append(
            Exchange(self.sites, what.called, what.axes, member, dtype, place=op.place, **details)
        )
        self.sites += 1


_CONTROL: dict[type[Kind], Callable[[Scheduler, Op], None]] = {
    ops.Loop: Scheduler.loop,
    ops.Let: Scheduler.let,
    ops.Branch: Scheduler.branch,
    ops.Print: Scheduler.print,
    ops.Expect: Scheduler.expect,
    ops.Nest: Scheduler.nest,
}

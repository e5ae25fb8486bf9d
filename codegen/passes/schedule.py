"""Program to Plan: ops in order become compute phases, exchange phases and control steps.

Goes in: a Program, its stored values and their buffers. Comes out: the Plan; nothing is left for
the emitter to decide. Where a value could not have the buffer it wanted, a copy stands here.
Always holds: between two exchanges there is at most one compute phase; no phase mentions a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from codegen import expr, indexing, prove
from codegen.access import Points, Resolver
from codegen.dtypes import INT64, DType
from codegen.errors import InternalError, Place
from codegen.exchanges import EXCHANGES, Exchanges
from codegen.expr import Expr, Sym
from codegen.flatten import flattened
from codegen.gufunc import Parameter
from codegen.indexing import loop_vars, positions, ravel, strides
from codegen.ir import Module, Op, Region, Value, walk
from codegen.ops import Scatter, Update
from codegen.plan import (
    Argument,
    Array,
    Bound,
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    Keep,
    KernelCall,
    Lane,
    Let,
    Literal,
    Load,
    Loop,
    Matrix,
    Nest,
    Phase,
    Plan,
    Print,
    Product,
    Reduce,
    Step,
    Store,
    Sweep,
    Var,
    Work,
)  # fmt: skip

_ROUTINES = {"float32": "sgemm", "float64": "dgemm", "complex64": "cgemm", "complex128": "zgemm"}


def schedule(
    program: Module, stored: frozenset[Value], buffers: Sequence[Buffer],
    of: Mapping[Value, Buffer], rotate: Mapping[Op, Rings],
) -> Plan:  # fmt: skip
    """The Plan of a Program. rotate: by loop, the buffers that change places as a turn ends."""
    work = _Schedule(program, stored, list(buffers), of, rotate)
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


class _Schedule:
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
        regions = [i.default for i in program.inputs if i.default is not None] + [program.body]
        defs = {v: op for r in regions for op in walk(r) for v in op.results}
        self.resolver = Resolver(
            defs, lambda v: v in stored, lambda v: of[v], self.constant,
            {s.name: k for k, s in enumerate(program.scalars)},
        )  # fmt: skip
        self.exchanges = Exchanges(program.mesh, self.resolver)
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
            if op.result in self.stored and not op.attrs.get("blank"):
                self.store_inline(op)
            return
        _OPS[op.kind](self, op)

    def loop(self, op: Op) -> None:
        body = op.regions[-1]
        self.copies(self.moves(op.operands, body.args))
        self.flush()
        a = op.attrs
        slot = self.counters
        self.counters += a["counter"] is not None
        condition: tuple[Step, ...] = ()
        flag = None
        if len(op.regions) == 2:
            condition = self.region(op.regions[0], ())
            flag = Load(self.of[op.regions[0].results[0]], expr.const(0))
        rotate = self.rotate.get(op, ())
        turned = [(a, b) for ring in rotate for a, b in zip(ring, (*ring[1:], ring[0]))]
        again = self.moves(body.results, body.args)
        steps = self.region(body, [c for c in again if (c[0], c[2]) not in turned])
        stop = None if a["stop"] is None else expr.as_expr(a["stop"])
        self.steps.append(
            Loop(a["counter"], slot, expr.as_expr(a["start"]), stop, expr.as_expr(a["step"]), steps,
                 condition, flag, rotate, op.place)
        )  # fmt: skip
        for r, arg in zip(op.results, body.args, strict=True):
            if self.of[r] is not self.of[arg]:
                raise InternalError(f"loop result {r} left its buffer", place=op.place)

    def let(self, op: Op) -> None:
        self.flush()
        value = Load(self.of[op.operands[0]], expr.const(0))
        self.steps.append(Let(op.attrs["counter"], self.counters, value, op.place))
        self.counters += 1

    def branch(self, op: Op) -> None:
        self.flush()
        arms = tuple(self.region(a, self.moves(a.results, op.results)) for a in op.regions)
        on = op.attrs["on"]
        if on is None:
            on = Load(self.of[op.operands[0]], expr.const(0))
        self.steps.append(Branch(on, arms, op.place))

    def print(self, op: Op) -> None:
        self.flush()
        nodes = tuple(self.resolver.node(v, ()) for v in op.operands)
        self.steps.append(
            Print(tuple(op.attrs["parts"]), nodes, bool(op.attrs["every_rank"]), op.place)
        )

    def expect(self, op: Op) -> None:
        self.flush()
        holds, *shown = (self.resolver.node(v, ()) for v in op.operands)
        self.steps.append(Expect(holds, tuple(op.attrs["parts"]), tuple(shown),
                                 op.attrs.get("check", ""), op.place))  # fmt: skip

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
        outer, members = op.attrs["outer"], op.regions[0].ops
        made = {m.result for m in members}
        updated = [(m.operands[0], m.result) for m in members if m.kind == "update"]
        self.copies([(self.of[x], x, self.of[v]) for x, v in updated if x not in made])
        sweeps: list[Sweep] = []
        for number in range(max(op.attrs["sweeps"]) + 1):
            parts: list[Keep | Store | Reduce] = []
            after: list[Store] = []  # what is folded, once it is
            kept = []
            loops: tuple[Var, ...] = ()
            for member, n in zip(members, op.attrs["sweeps"], strict=True):
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
        if at.how == "rows":
            inner = tuple(loop for loop in at.loops if loop not in at.kept)
            parts.append(Reduce(at.kept, inner, True, self.of[v], at.offset, node, op.attrs["fn"],
                                v.type.dtype, op.place))  # fmt: skip
            return
        if op.kind == "update":  # most of its elements nobody reads here
            parts.append(Store(at.loops, self.of[v], at.offset, node, place=op.place))
            return
        fn = op.attrs["fn"] if at.how == "fold" else ""
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

    def update(self, op: Op) -> None:
        into = self.take_over(op)
        v = op.operands[1]
        loops = loop_vars(v.type.shape)
        index = positions(loops)
        assert isinstance(op.what, Update)
        at = self.resolver.within(op.what, index)
        node = self.resolver.node(v, index)
        shape = op.result.type.shape
        target = ravel(at, shape)
        rows = indexing.rows_kept(node, into, target, shape, op.what.step)
        assert rows is not None, "what reads x where the order of rows does not help is stored"
        waiting = None
        if rows:
            row = expr.product(loop.extent for loop in loops[1:])
            gone = {s for s in row.symbols() if s.kind not in ("size", "scalar")}
            most = prove.upper_bound(row, gone) if gone else row
            waiting = self.new_buffer(f"{into.name}_rows", into.dtype, most * rows)
        self.add(Store(loops, into, target, node, place=op.place, rows=rows, waiting=waiting))

    def dynamic_update(self, op: Op) -> None:
        into = self.take_over(op)
        x, v, *starts = op.operands
        loops = loop_vars(v.type.shape)
        index = positions(loops)
        bounds, at = [], []
        for d, start in enumerate(starts):
            bound = self.resolver.bound(start, (), x.type.shape[d] - 1)
            bounds.append(Bound(bound.sym, bound.node, bound.limit, index[d]))
            at.append(expr.symbol(bound.sym) + index[d])
        self.add(Store(loops, into, ravel(tuple(at), x.type.shape),
                       self.resolver.node(v, index), "set", tuple(bounds), op.place))  # fmt: skip

    def scatter(self, op: Op) -> None:
        into = self.take_over(op)
        x, v, *indices = op.operands
        loops = loop_vars(v.type.shape)
        index = positions(loops)
        assert isinstance(op.what, Scatter)
        inner, bounds = self.resolver.picked(indices, op.what, x.type.shape, index)
        self.add(Store(loops, into, ravel(inner, x.type.shape), self.resolver.node(v, index),
                       op.what.fn, bounds, op.place))  # fmt: skip

    def reduce(self, op: Op) -> None:
        x = op.operands[0]
        loops = loop_vars(x.type.shape)
        index = positions(loops)
        dims = op.attrs["dims"]
        kept = tuple(v for d, v in enumerate(loops) if d not in dims)
        inner = tuple(v for d, v in enumerate(loops) if d in dims)
        offset = ravel(positions(kept), op.result.type.shape)
        long = [d for d, v in enumerate(loops) if v.extent != 1]
        rows = bool(kept) and bool(long) and long[-1] not in dims and op.result.type.dtype.size != 2
        node = self.resolver.node(x, index)
        self.add(Reduce(kept, inner, rows, self.of[op.result], offset, node, op.attrs["fn"],
                        op.result.type.dtype, op.place))  # fmt: skip

    def lane(self, op: Op) -> None:
        x, dim = op.operands[0], op.attrs["dim"]
        loops = loop_vars(x.type.shape)
        rest = tuple(v for d, v in enumerate(loops) if d != dim)
        node = self.resolver.node(x, positions(loops))
        shape = op.result.type.shape
        if op.kind == "argreduce":
            offset, stride = ravel(positions(rest), shape), expr.const(0)
        else:
            at = list(positions(loops))
            at[dim] = expr.const(0)
            offset, stride = ravel(tuple(at), shape), strides(shape)[dim]
        scratch: tuple[Buffer, ...] = ()
        if op.kind in ("sort", "argsort"):
            room = self.of[op.result].capacity  # a lane is never longer than the whole
            scratch = (self.new_buffer(f"{op.result.name}_lane", x.type.dtype, room),)
            if op.kind == "argsort":
                scratch += (self.new_buffer(f"{op.result.name}_order", INT64, room * 2),)
        self.add(Lane(op.kind, rest, loops[dim], self.of[op.result], offset, stride, x.type.dtype,
                      op.attrs.get("fn", ""), node, scratch, op.place))  # fmt: skip

    def matmul(self, op: Op) -> None:
        a, b = op.operands
        c = op.result
        batch = loop_vars(c.type.shape[:-2])
        m, n = c.type.shape[-2:]
        k = a.type.shape[-1]
        mats = [self.matrix(v, batch) for v in (a, b, c)]
        library = None
        routine = _ROUTINES.get(c.type.dtype.name)
        shapes = ((m, k), (k, n), (m, n))
        if routine and all(_blas_can_read(x, s) for x, s in zip(mats, shapes, strict=True)):
            if routine not in self.libraries:
                self.libraries.append(routine)
            library = self.libraries.index(routine)
        self.add(
            Product(batch, m, n, k, mats[0], mats[1], mats[2], c.type.dtype, library, op.place)
        )

    def matrix(self, value: Value, batch: tuple[Var, ...]) -> Matrix:
        last = loop_vars(value.type.shape[-2:], "k")
        node = self.resolver.node(value, positions(batch) + positions(last))
        assert isinstance(node, Load), "an operand of matmul lies in memory"
        found = indexing.affine(node.offset, last)
        assert found is not None, "an operand of matmul is strided"
        base, (row, column) = found
        return Matrix(node.buffer, base, row, column)

    def kernel(self, op: Op) -> None:
        kernel = op.attrs["kernel"]
        arguments: list[Argument] = []
        signature: list[Parameter] = []
        follows = op.attrs.get("follows") or [None] * len(op.attrs["args"])
        for (how, what), loops in zip(op.attrs["args"], follows, strict=True):
            if how in ("out", "own"):
                j, begins = what
                v = op.results[j]
                if begins is not None:
                    self.begin(v, op.operands[begins], op)
                arguments.append(Argument(self.of[v], v.type.dtype, v.type.shape, True))
                apart = how == "out" and op.attrs.get("apart", False)
                signature.append(Parameter(v.type.dtype, v.type.ndim, how == "out", loops, apart))
            elif how == "in":
                v = op.operands[what]
                node = self.resolver.node(v, ()) if not v.type.ndim else self.of[v]
                arguments.append(Argument(node, v.type.dtype, v.type.shape))
                signature.append(Parameter(v.type.dtype, v.type.ndim, False, loops))
            else:
                numbers = what if how == "starts" else (what,)
                arguments += [Argument(e, INT64) for e in numbers]
                many = len(numbers) if len(numbers) > 1 else 0
                signature.append(Parameter(INT64, 0, False, loops, many=many))
        symbol = next((s for s, (k, sig) in self.kernels.items() if k is kernel and
                       sig == tuple(signature)), None)  # fmt: skip
        if symbol is None:
            symbol = f"kernel_{len(self.kernels)}_{kernel.name}"
            self.kernels[symbol] = (kernel, tuple(signature))
        self.add(KernelCall(symbol, tuple(arguments), op.place))

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
        if op.kind == "halo":
            self.take_over(op)
        self.flush()
        around = self.sync if op.kind != "barrier" else "least"
        if around in ("before", "both"):
            self.add_exchange(op, "barrier")
        self.add_exchange(op, op.kind)
        if around in ("after", "both"):
            self.add_exchange(op, "barrier")
        self.fill(op)

    def fill(self, op: Op) -> None:
        """The elements of a result that the exchange leaves alone."""
        where, value = self.exchanges.unsent(op)
        if where == 0:
            return
        result = op.result.type
        shape = result.shape or (expr.const(1),)
        loops = loop_vars((shape[0] * where, *shape[1:]))
        literal = Literal(value, result.dtype)
        self.add(Store(loops, self.of[op.result], ravel(positions(loops), shape), literal,
                       place=op.place))  # fmt: skip

    def add_exchange(self, op: Op, kind: str) -> None:
        axes = tuple(op.attrs["axes"])
        member = Sym("member", "var", expr.const(0), self.mesh.size(axes) - 1)
        details = self.exchanges.details(op, kind, member)
        moves = kind != "barrier"
        dtype = op.operands[0].type.dtype if moves else None
        fn = op.attrs.get("fn", "") if moves else ""
        self.steps.append(
            Exchange(self.sites, kind, axes, member, dtype, fn=fn, place=op.place, **details)
        )
        self.sites += 1


def _blas_can_read(x: Matrix, shape: tuple[Expr, Expr]) -> bool:
    """One stride is 1 (or its extent is), the other is not negative."""
    rows, columns = shape
    along_row = x.column == 1 or columns == 1
    along_column = x.row == 1 or rows == 1
    return (along_row and expr.nonneg(x.row)) or (along_column and expr.nonneg(x.column))


_OPS: dict[str, Callable[[_Schedule, Op], None]] = {
    "loop": _Schedule.loop,
    "let": _Schedule.let,
    "branch": _Schedule.branch,
    "print": _Schedule.print,
    "expect": _Schedule.expect,
    "nest": _Schedule.nest,
    "update": _Schedule.update,
    "dynamic_update": _Schedule.dynamic_update,
    "scatter": _Schedule.scatter,
    "reduce": _Schedule.reduce,
    "argreduce": _Schedule.lane,
    "cumulative": _Schedule.lane,
    "sort": _Schedule.lane,
    "argsort": _Schedule.lane,
    "matmul": _Schedule.matmul,
    "kernel": _Schedule.kernel,
}

_OPS.update(dict.fromkeys(EXCHANGES, _Schedule.exchange))

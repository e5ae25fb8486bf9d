"""Loops that store: element by element, several results in one loop, and folds at its end.

Goes in: Stores and Nests. Comes out: lines of C. Always holds: a local value is a const of its
block, declared before what reads it."""

from __future__ import annotations

from collections.abc import Collection

from codegen.dtypes import DType
from codegen.emit.expressions import single
from codegen.emit.function import CFunction
from codegen.emit.spell import combined, converted, element, literal, stored, suffix
from codegen.functions import OPENMP, neutral
from codegen.ir.fresh import Fresh
from codegen.ir.names import identifier
from codegen.ir.plan import (
    KEEPS,
    Bound,
    Buffer,
    Load,
    LocalValue,
    Nest,
    Runtime,
    Store,
    Sweep,
    Var,
)
from codegen.library_routines import KEEP_ROUTINE
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.spelling import Binds, Text, c_operand
from codegen.target import TARGET


class NestWriter(CFunction):
    """A C function that takes as arguments all that it uses: buffers, by name, and numbers."""

    def __init__(self, buffer_names: dict[int, str], taken: Collection[str]) -> None:
        super().__init__()
        self.buffer_names = buffer_names
        self.names = Fresh(taken)
        self.buffers: dict[str, tuple[Buffer, bool]] = {}  # and whether they are written
        self.runtimes: dict[str, Runtime] = {}
        self.library = False  # whether it needs the table of routines
        self.totals: dict[str, str] = {}  # what something kept is folded in

    def buffer(self, buffer: Buffer, written: bool = False) -> str:
        name = self.buffer_names[id(buffer)]
        before = self.buffers.get(name, (buffer, False))[1]
        self.buffers[name] = (buffer, before or written)
        return name

    def symbolic(self, e: Expr) -> Text:
        return c_operand(e, lambda s: s.name)

    def load(self, buffer: Buffer, offset: Expr) -> str:
        return f"{self.buffer(buffer)}[{self.integer(offset, Binds.CHOICE)}]"

    def runtime(self, node: Runtime) -> str:
        for name, known in self.runtimes.items():
            if known == node:
                return name
        name = self.names.name(f"scalar_{identifier(node.name)}")
        self.runtimes[name] = node
        return name

    def target(self, buffer: Buffer, offset: Expr) -> str:
        """Return the C of an element that is written."""
        self.buffer(buffer, written=True)
        return self.load(buffer, offset)

    def put(self, buffer: Buffer, offset: Expr, value: Text, combine: str = "set") -> str:
        """Return a statement that stores a value in an element, or combines it with the old one."""
        target, dtype = self.target(buffer, offset), buffer.dtype
        if combine == KEEPS:
            self.library = True
            return f"{KEEP_ROUTINE.called}(&{target}, ({value[0]}) * {dtype.size});"
        if combine != "set":
            value = combined(combine, dtype, element(dtype, target), value)
        return f"{target} = {stored(dtype, value)};"

    # ---- nests -----------------------------------------------------------------------------------

    def nest(self, nest: Nest) -> None:
        opened = self.loops(nest.loops)
        for sweep in nest.sweeps:
            for f in sweep.folds:
                self.start(f, sweep.lanes)
            inside = self.loops(sweep.long[:-1])
            if sweep.lanes:
                self.in_lanes(sweep)
            else:
                inside += self.one_by_one(sweep)
            self.close(inside)
            for f in sweep.folds:
                self.finish(f, sweep.lanes)
        self.close(opened)

    def one_by_one(self, sweep: Sweep) -> int:
        """Open the loops of a sweep for one element at a time; return how many loops were
        opened."""
        inside = len(sweep.long[-1:])
        if sweep.ahead:
            inside += 1
            ends = self.look_ahead(sweep)
        if sweep.simd:
            self.simd(*((f.fn, f.dtype, self.totals[f.name]) for f in sweep.folds))
        for last in sweep.long[-1:]:
            self.loop(last, ends if sweep.ahead else None)
        self.parts(sweep)
        return inside

    def in_lanes(self, sweep: Sweep) -> None:
        """Write the last loop of a sweep, which computes an element for each lane in an iteration,
        and then a loop for the remaining elements. Compilers vectorise complex numbers by
        themselves."""
        last, lanes = sweep.long[-1], sweep.lanes
        j, n = last.sym.name, self.integer(last.extent, Binds.UNARY)
        begin, whole = (self.names.name(f"{j}_{x}") for x in ("begin", "whole"))
        totals = {f.name: self.totals[f.name] for f in sweep.folds}
        self.line(f"const int64_t {whole} = {n} - {n} % {lanes};")
        self.open(f"for (int64_t {begin} = 0; {begin} < {whole}; {begin} += {lanes}) {{")
        if not any(f.dtype.kind == "c" for f in sweep.folds):
            self.simd()
        self.open(f"for (int64_t k = 0; k < {lanes}; k++) {{")
        self.line(f"const int64_t {j} = {begin} + k;")
        self.totals |= {name: f"{total}[k]" for name, total in totals.items()}
        self.parts(sweep)
        self.close(2)
        self.loop(last, (whole, self.integer(last.extent)))
        self.totals |= {name: f"{total}[{j} - {whole}]" for name, total in totals.items()}
        self.parts(sweep)
        self.close()
        self.totals |= totals

    def look_ahead(self, sweep: Sweep) -> tuple[str, str]:
        """Open the loop over pieces, and load into local arrays the elements that a piece looks up:
        first all their positions, then the elements. Return the piece's begin and end."""
        last = sweep.long[-1]
        ends = self.pieces(last, TARGET.lookahead)
        index = f"[{last.sym.name} - {ends[0]}]"
        for keep in sweep.ahead:
            load = keep.value
            assert isinstance(load, Load)
            where, local = self.names.name("at"), self.names.name(keep.name)
            self.line(f"int64_t {where}[{TARGET.lookahead}];")
            self.line(f"{keep.dtype.compute} {local}[{TARGET.lookahead}];")
            self.loop(last, ends)
            self.declared.clear()
            self.bounds(load.bounds)
            self.line(f"{where}{index} = {self.integer(load.offset)};")
            self.close()
            self.loop(last, ends)
            source = f"{self.buffer(load.buffer)}[{where}{index}]"
            self.line(f"{local}{index} = {element(load.buffer.dtype, source)[0]};")
            self.close()
            self.kept[keep.name] = local + index
        return ends

    def pieces(self, last: Var, size: int) -> tuple[str, str]:
        """Open a loop over pieces of a loop's range; return where a piece begins and ends."""
        j, n = last.sym.name, self.integer(last.extent)
        piece, end = self.names.name(f"{j}_piece"), self.names.name(f"{j}_end")
        self.open(f"for (int64_t {piece} = 0; {piece} < {n}; {piece} += {size}) {{")
        self.line(f"const int64_t {end} = spmd_min({piece} + {size}, {n});")
        return piece, end

    def simd(self, *folded: tuple[str, DType, str]) -> None:
        """Write the pragma that vectorises the next loop. folded: for each fold in it, the
        function, the dtype and the name of the total."""
        clauses = [f"reduction({openmp(fn, dtype)} : {total})" for fn, dtype, total in folded]
        self.lines.append(" \\\n    ".join(["#pragma omp simd", *clauses]))

    def parts(self, sweep: Sweep) -> None:
        """Write what the parts of a sweep do at one point."""
        self.declared.clear()
        for part in sweep.parts:
            self.quote(part.place)
            match part:
                case LocalValue(fn=""):
                    text = self.value(part.value)[0]
                    self.line(f"const {part.dtype.compute} {self.keep(part.name)} = {text};")
                case LocalValue():
                    value, total = self.value(part.value), single(self.totals[part.name])
                    new = combined(part.fn, total_of(part), total, value)[0]
                    self.line(f"{total[0]} = {new};")
                case Store():
                    value = self.value(part.value)
                    self.line(self.put(part.buffer, part.offset, value, part.combine))

    def keep(self, name: str) -> str:
        """Declare that local value `name` is available from here on; return its name in C."""
        self.kept[name] = self.names.name(identifier(name))
        return self.kept[name]

    def start(self, f: LocalValue, lanes: int) -> None:
        """Write the initial total of a fold, or those of its lanes."""
        name, dtype = self.keep(f.name), total_of(f)
        first = literal(neutral(f.fn, dtype), dtype)[0]
        if lanes:
            self.totals[f.name] = total = self.names.name(f"{name}_lanes")
            self.line(f"{dtype.compute} {total}[{lanes}];")
            self.line(f"for (int64_t k = 0; k < {lanes}; k++) {total}[k] = {first};")
            return
        self.totals[f.name] = name if dtype == f.dtype else self.names.name(f"{name}_wide")
        self.line(f"{dtype.compute} {self.totals[f.name]} = {first};")

    def finish(self, f: LocalValue, lanes: int) -> None:
        dtype, total = total_of(f), self.totals[f.name]
        if lanes:
            halves = single(f"{total}[k]"), single(f"{total}[k + half]")
            both = combined(f.fn, dtype, *halves)[0]
            self.open(f"for (int64_t half = {lanes // 2}; half > 0; half /= 2) {{")
            self.line(f"for (int64_t k = 0; k < half; k++) {total}[k] = {both};")
            self.close()
        if lanes or dtype != f.dtype:
            total_value = single(f"{total}[0]" if lanes else total)
            text = converted(total_value, suffix(dtype), f.dtype)[0]
            self.line(f"const {f.dtype.compute} {self.kept[f.name]} = {text};")

    # ---- stores ----------------------------------------------------------------------------------

    def store(self, work: Store) -> None:
        self.declared.clear()
        if work.waiting is not None:
            self.store_waiting(work, work.waiting)
            return
        if work.sift:
            self.store_sifted(work)
            return
        opened = self.loops(work.loops)
        if work.combine == KEEPS:  # the store after it has the same positions
            self.open("{")
            opened += 1
        self.buffer(work.buffer, written=True)
        tests = [self.within(b) for b in work.bounds]
        text = self.put(work.buffer, work.offset, self.value(work.value), work.combine)
        self.line(f"if ({' && '.join(tests)}) {text}" if tests else text)
        self.close(opened)

    def store_sifted(self, work: Store) -> None:
        """Write a store of which points may be dropped: the points that are not are listed
        first, without a branch, since one that is predicted wrongly costs more than listing
        every point."""
        *outer, last = (v for v in work.loops if v.extent != 1)
        j = last.sym.name
        indices, many, k = (self.names.name(x) for x in ("found", "many", "k"))
        arrays_of = {b.sym: self.names.name(f"{b.sym.name}_at") for b in work.bounds}
        opened = self.loops(outer)
        piece, end = self.pieces(last, work.sift)
        arrays = "".join(f"{name}[{work.sift}], " for name in (*arrays_of.values(), indices))
        self.line(f"int64_t {arrays}{many} = 0;")
        self.loop(last, (piece, end))
        for b in work.bounds:
            self.line(f"{arrays_of[b.sym]}[{j} - {piece}] = {self.position(b.node)};")
        self.close()
        self.loop(last, (piece, end))
        self.line(f"{indices}[{many}] = {j};")
        tests = [f"({self.inside(b, f'{arrays_of[b.sym]}[{j} - {piece}]')})" for b in work.bounds]
        self.line(f"{many} += {' & '.join(tests)};")
        self.close()
        self.open(f"for (int64_t {k} = 0; {k} < {many}; {k}++) {{")
        self.line(f"const int64_t {j} = {indices}[{k}];")
        for b in work.bounds:
            self.inside(b, f"{arrays_of[b.sym]}[{j} - {piece}]")
        self.line(self.put(work.buffer, work.offset, self.value(work.value), work.combine))
        self.close(opened + 2)

    def within(self, b: Bound) -> str:
        """Declare a bound position of a Store; return the C condition that it is within its
        limit."""
        return self.inside(b, self.position(b.node))

    def inside(self, b: Bound, raw: str) -> str:
        self.declared.add(b.sym.name)
        self.line(f"const int64_t {b.sym.name} = {raw};")
        position = self.integer(expr.symbol(b.sym) + (b.shift if b.shift is not None else 0))
        return f"{position} >= 0 && {position} <= {self.integer(b.limit)}"

    def store_waiting(self, work: Store, waiting: Buffer) -> None:
        """Write a loop that computes a row into a buffer in each iteration, and stores an earlier
        row."""
        first, *inner = work.loops
        j, n, behind = first.sym.name, self.integer(first.extent), work.rows - 1
        late, back = (f" + {behind}", f" - {behind}") if behind else ("", "")
        row = Sym("row", "var", expr.const(0), first.extent - 1)
        later = {first.sym: expr.symbol(row)}
        begins = work.offset.subst({v.sym: expr.const(0) for v in inner})
        offset, line = work.offset.subst(later), self.integer(work.line, Binds.CHOICE)
        self.open(f"for (int64_t {j} = 0; {j} < {n}{late}; {j}++) {{")
        self.open(f"if ({j} < {n}) {{" if behind else "{")
        self.waiting_line("", work, waiting, j, begins)
        opened = self.loops(inner)
        self.line(f"line[{line}] = {stored(work.buffer.dtype, self.value(work.value))};")
        self.close(opened + 1)
        self.open(f"if ({j} >= {behind}) {{" if behind else "{")
        if row in offset.symbols():
            self.line(f"const int64_t row = {j}{back};")
        number = f"({j}{back})" if behind else j
        self.waiting_line("const ", work, waiting, number, begins.subst(later))
        opened = self.loops(inner)
        self.line(f"{self.target(work.buffer, offset)} = line[{line}];")
        self.close(opened + 2)

    def waiting_line(
        self, constant: str, work: Store, waiting: Buffer, number: str, begins: Expr
    ) -> None:
        """Declare the buffer of a row, at an address whose low 12 bits differ from those of the
        row's target (csrc/spmd_support.h: spmd_apart)."""
        rows, target = self.buffer(waiting, written=True), self.buffer(work.buffer, True)
        if work.rows > 1:
            rows += f" + {number} % {work.rows} * {self.integer(work.room, Binds.PRODUCT)}"
        self.line(f"{constant}{work.buffer.dtype.c} *const line = spmd_apart({rows},")
        self.line(f"    {target} + {self.integer(begins)});")


def total_of(f: LocalValue) -> DType:
    assert f.total is not None, "loops/schedule.py says in which type a fold is computed"
    return f.total


# What OpenMP combines instead, of bool or floats.
_OF_BOOL = {"add": "|", "mul": "&", "min": "&", "max": "|"}
_OF_FLOAT = {"min": "spmd_minimum", "max": "spmd_maximum"}


def openmp(fn: str, dtype: DType) -> str:
    """Return OpenMP's name of a combining function, by which a loop may combine in any order. The
    names spmd_… are declared in csrc/spmd_simd.h."""
    special = {"b": _OF_BOOL, "f": _OF_FLOAT}.get(dtype.kind, {})
    return special.get(fn, OPENMP[fn])

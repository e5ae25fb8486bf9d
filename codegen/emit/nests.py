"""Nests as C: element by element, several results in one loop, and the reductions that end them.

Goes in: a Nest, and the writer of its phase. Comes out: lines of C.
Always holds: what is kept is a const of its block, declared before what reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from codegen.emit.operators import cast, infix, single
from codegen.emit.spell import combined, element, literal, rounded, stored
from codegen.functions import neutral
from codegen.plan.grammar import Keep, Nest, Reduce, Store, Sweep

if TYPE_CHECKING:
    from codegen.emit.phases import PhaseWriter

SHORT = 16  # turns of a loop that is not worth vectorising


def write_nest(self: PhaseWriter, nest: Nest) -> None:
    for part in nest.parts:
        if isinstance(part, Reduce):
            start_rows(self, part)
    self.begin((*nest.loops, *(v for sweep in nest.sweeps for v in sweep.loops)))
    opened = self.open(nest.loops)
    for sweep in nest.sweeps:
        folds = [p for p in sweep.parts if isinstance(p, Keep) and p.fn]
        if folds:
            _fold(self, sweep, folds)
        else:
            inside = self.open(sweep.loops[:-1])
            if _parts_of_an_array(sweep):
                self.out.append("#pragma omp simd")
            inside += self.open(sweep.loops[-1:])
            _parts(self, sweep)
            self.close(inside)
    self.close(opened)


def _parts_of_an_array(sweep: Sweep) -> bool:
    """Whether it writes several of one memory: they are apart, which no compiler can see."""
    buffers = [p.buffer.number for p in sweep.parts if isinstance(p, Store)]
    return len(set(buffers)) < len(buffers) and bool(sweep.loops)


def start_rows(self: PhaseWriter, work: Reduce) -> None:
    """The row of results before anything is combined into it."""
    self.begin(work.loops)
    first = stored(work.dtype, literal(neutral(work.fn, work.dtype), work.dtype))
    opened = self.open(work.loops)
    self.statement(lambda: f"{self.target(work.buffer, work.offset)} = {first};")
    self.close(opened)


def _parts(self: PhaseWriter, sweep: Sweep) -> None:
    """The parts of a sweep at one point."""
    self.writer.begin()
    for part in sweep.parts:
        self.quote(part.place)
        value = self.value(part.value)
        if isinstance(part, Keep):
            if part.fn:
                total = single(_total(self, part))
                new = infix(total, "+", value) if _is_wide(part) else combined(
                    part.fn, part.dtype, total, value)  # fmt: skip
                text = f"{total[0]} = {new[0]};"
            else:
                text = f"const {part.dtype.compute} {self.keep(part.name)} = {value[0]};"
        else:
            target = self.target(part.buffer, part.offset)
            if isinstance(part, Reduce):
                value = combined(part.fn, part.dtype, element(part.dtype, target), value)
            text = f"{target} = {stored(part.buffer.dtype, value)};"
        self.flush()
        self.line(text)


def _is_wide(keep: Keep) -> bool:
    """float32 sums accumulate in double."""
    return keep.dtype.name == "float32" and keep.fn == "add"


def _is_half(keep: Keep) -> bool:
    """What accumulates in float32 is rounded at the end."""
    return keep.dtype.kind == "f" and keep.dtype.size == 2


def _total(self: PhaseWriter, keep: Keep) -> str:
    """What a reduction accumulates in."""
    return self.writer.names[f"total of {keep.name}"]


def _fold(self: PhaseWriter, sweep: Sweep, folds: Sequence[Keep]) -> None:
    """Reductions over the loops of a sweep, in an order that lets the last loop vectorise."""
    for f in folds:
        ctype = "double" if _is_wide(f) else f.dtype.compute
        start = literal(neutral(f.fn, f.dtype), f.dtype)[0]
        name = self.keep(f.name)
        total = self.fresh(f"{name}_wide") if _is_wide(f) or _is_half(f) else name
        self.writer.names[f"total of {f.name}"] = total
        self.line(f"{ctype} {total} = {start};")
    long = [v for v in sweep.loops if v.extent != 1]
    inside = self.open(long[:-1])
    clauses = [_clause(f, _total(self, f)) for f in folds]
    short = not long or (long[-1].extent.is_const and long[-1].extent.value < SHORT)
    if any(f.dtype.kind in "fc" for f in folds) and all(clauses) and not short:
        self.out.append(" \\\n    ".join(["#pragma omp simd", *clauses]))
    inside += self.open(long[-1:])
    _parts(self, sweep)
    self.close(inside)
    for f in folds:
        if _is_wide(f) or _is_half(f):
            wide = single(_total(self, f))
            result = rounded(wide, f.dtype) if _is_half(f) else cast("float", wide)
            self.line(f"const float {self.writer.names[f.name]} = {result[0]};")


# How OpenMP calls what combines (of floats: csrc/spmd_simd.h), and of bool.
_CLAUSES = {
    "add": "+", "mul": "*", "min": "min", "max": "max", "and": "&&", "or": "||", "bit_and": "&",
    "bit_or": "|", "bit_xor": "^",
}  # fmt: skip
_OF_BOOL = {"add": "|", "mul": "&", "min": "&", "max": "|"}
_OF_FLOAT = {"min": "spmd_minimum", "max": "spmd_maximum"}


def _clause(f: Keep, total: str) -> str:
    """The clause that lets a loop combine in another order; "" where there is none."""
    if f.dtype.kind == "c" and f.fn != "add":
        return ""
    special = {"b": _OF_BOOL, "f": _OF_FLOAT}.get(f.dtype.kind, {})
    return f"reduction({special.get(f.fn, _CLAUSES[f.fn])} : {total})"


def single_nest(work: Reduce) -> Nest:
    """A reduction alone, which is none of rows."""
    keep = Keep(work.buffer.name, work.dtype, work.value, work.fn, work.place)
    store = Store((), work.buffer, work.offset, keep.local, place=work.place)
    return Nest(work.loops, (Sweep(work.inner, (keep,)), Sweep((), (store,))), work.place)

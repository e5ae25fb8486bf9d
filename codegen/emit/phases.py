"""Compute phases as C functions over pointers, extents and offsets.

Goes in: a Phase. Comes out: its function and the arguments of its call.
Always holds: a phase function is handed everything; it reads neither the rank nor the index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codegen import expr
from codegen.dtypes import DType
from codegen.emit.spell import (
    NodeWriter,
    abstract,
    bare,
    c_expr,
    element,
    identifier,
    literal,
    storage_suffix,
    stored,
    suffix,
)  # fmt: skip
from codegen.errors import Place
from codegen.expr import Expr, Sym
from codegen.functions import COMBINE, FUNCTIONS, neutral
from codegen.plan import (
    Buffer,
    KernelCall,
    Lane,
    Matrix,
    Node,
    Phase,
    Product,
    Reduce,
    Runtime,
    Store,
    Var,
    Work,
)  # fmt: skip

LANES = 8  # accumulators of a floating-point sum: enough for one AVX-512 register of doubles


class PhaseWriter:
    """One compute phase. After write(): text, and what the caller hands over."""

    def __init__(self, phase: Phase, buffer_name: Callable[[Buffer], str]) -> None:
        self.phase = phase
        self.buffer_name = buffer_name
        self.buffers: dict[str, tuple[Buffer, bool]] = {}
        self.parameters: dict[str, tuple[Expr, str]] = {}  # by key: what, and its name
        self.runtimes: dict[str, Runtime] = {}
        self.library = False
        self.out: list[str] = []
        self.depth = 1
        self.local: frozenset[Sym] = frozenset()
        self.writer = NodeWriter(self.load, self.integer, self.runtime)

    def write(self) -> str:
        place: Place | None = None
        for work in self.phase.work:
            if work.place and (place is None or work.place.line != place.line):
                place = work.place
                self.line(f"/* {comment(place)} */")
            _WRITE[type(work)](self, work)
        head = wrapped(f"static void {self.phase.name}(", self.signature() or ["void"], ")")
        notes = [f" *   {n} = {e}" for e, n in self.parameters.values()]
        intro = ["/* compute phase", *notes, " */"] if notes else ["/* compute phase */"]
        # A function of its own: a symbol for objdump, gdb and perf, and all it gets are arguments.
        head = f"__attribute__((noinline))\n{head}"
        return "\n".join([*intro, head, "{", *self.out, "}"]) + "\n"

    def signature(self) -> list[str]:
        out = []
        for name, (buffer, written) in self.buffers.items():
            constant = "" if written else "const "
            out.append(f"{constant}{buffer.dtype.c} *restrict {name}")
        out += [f"const int64_t {n}" for _, n in self.parameters.values()]
        out += [f"const double {n}" for n in self.runtimes]
        if self.library:
            out.append("void *const *library")
        return out

    # ---- names -----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.out.append("    " * self.depth + text)

    def buffer(self, buffer: Buffer, written: bool = False) -> str:
        name = self.buffer_name(buffer)
        before = self.buffers.get(name, (buffer, False))[1]
        self.buffers[name] = (buffer, before or written)
        return name

    def load(self, buffer: Buffer, offset: Expr) -> str:
        return f"{self.buffer(buffer)}[{self.integer(offset)}]"

    def runtime(self, node: Runtime) -> str:
        name = f"scalar_{identifier(node.name)}"
        self.runtimes[name] = node
        return name

    def parameter(self, e: Expr) -> Expr:
        """What the caller computes: a symbol for it."""
        if e.key not in self.parameters:
            self.parameters[e.key] = (e, f"e{len(self.parameters)}")
        return expr.symbol(Sym(self.parameters[e.key][1]))

    def integer(self, e: Expr) -> str:
        bound = {s for s in e.symbols() if s.name in self.writer.done}
        return c_expr(abstract(e, self.local | frozenset(bound), self.parameter))

    # ---- nests -----------------------------------------------------------------------------------

    def open(self, loops: Sequence[Var]) -> int:
        """Open the loops that have more than one iteration; how many."""
        opened = 0
        for v in loops:
            if v.extent == 1:
                continue
            self.local |= {v.sym}
            n, j = self.integer(v.extent), v.sym.name
            self.line(f"for (int64_t {j} = 0; {j} < {n}; {j}++) {{")
            self.depth += 1
            opened += 1
        return opened

    def close(self, count: int) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")

    def begin(self, loops: Sequence[Var]) -> None:
        self.local = frozenset(v.sym for v in loops)
        self.writer.begin()

    def statement(self, make: Callable[[], str]) -> None:
        """A statement, after the declarations that its expression needs."""
        self.writer.begin()
        text = make()
        for declaration in self.writer.lines:
            self.line(declaration)
        self.line(text)

    def value(self, node: Node) -> str:
        return self.writer.text(node)


def wrapped(head: str, parts: Sequence[str], end: str, indent: str = "    ") -> str:
    """head, the parts with commas, end; broken before column 100."""
    lines = [head]
    for k, part in enumerate(parts):
        piece = part + (end if k + 1 == len(parts) else ",")
        if len(lines[-1]) + len(piece) + 1 > 99:
            lines.append(indent + piece)
        else:
            lines[-1] += ("" if lines[-1] == head else " ") + piece
    return "\n".join(lines)


def comment(place: Place) -> str:
    import os

    source = place.source_line().strip().replace("*/", "* /").replace("/*", "/ *")
    text = f"{os.path.basename(place.file)}:{place.line}: {source}".rstrip(": ")
    return text if len(text) <= 84 else text[:83] + "…"


def combined(fn: str, dtype: DType, a: str, b: str) -> str:
    """COMBINE[fn] of two values of a dtype's compute type."""
    return FUNCTIONS[COMBINE[fn]].template(dtype).format(a, b, t=suffix(dtype))


# ---- one function per kind of work ---------------------------------------------------------------


def _store(self: PhaseWriter, work: Store) -> None:
    self.begin(work.loops)
    opened = self.open(work.loops)
    name = self.buffer(work.buffer, written=True)
    dtype = work.buffer.dtype
    self.writer.begin()
    tests = []
    for b in work.bounds:
        raw = self.value(b.node)
        self.writer.done.add(b.sym.name)
        self.writer.lines.append(f"const int64_t {b.sym.name} = (int64_t)({raw});")
        at = self.integer(expr.symbol(b.sym) + (b.shift if b.shift is not None else 0))
        tests.append(f"{at} >= 0 && {at} <= {self.integer(b.limit)}")
    value = self.value(work.value)
    target = f"{name}[{self.integer(work.offset)}]"
    if work.combine != "set":
        value = combined(work.combine, dtype, element(dtype, target), value)
    for declaration in self.writer.lines:
        self.line(declaration)
    store = f"{target} = {stored(dtype, value)};"
    self.line(f"if ({' && '.join(tests)}) {store}" if tests else store)
    self.close(opened)


def _reduce(self: PhaseWriter, work: Reduce) -> None:
    name = self.buffer(work.buffer, written=True)
    self.begin(work.loops + work.inner)
    first = stored(work.dtype, literal(neutral(work.fn, work.dtype), work.dtype))
    if work.rows:
        opened = self.open(work.loops)
        self.statement(lambda: f"{name}[{self.integer(work.offset)}] = {first};")
        self.close(opened)
        *outer, row = work.loops
        opened = self.open((*outer, *work.inner, row))
        self.statement(lambda: _combine_into(self, work, name))
        self.close(opened)
        return
    opened = self.open(work.loops)
    short = all(v.extent.is_const and v.extent.value < 2 * LANES for v in work.inner[-1:])
    if work.dtype.kind in "fc" and work.fn in ("add", "mul", "min", "max") and not short:
        _reduce_lanes(self, work, name)
    else:
        self.line("{")
        self.depth += 1
        self.line(
            f"{work.dtype.compute} total = {literal(neutral(work.fn, work.dtype), work.dtype)};"
        )
        inside = self.open(work.inner)
        self.statement(lambda: _assign(work.dtype, "total", combined(
            work.fn, work.dtype, "total", self.value(work.value))))  # fmt: skip
        self.close(inside)
        self.writer.begin()
        self.line(f"{name}[{self.integer(work.offset)}] = {stored(work.dtype, 'total')};")
        self.depth -= 1
        self.line("}")
    self.close(opened)


def _assign(dtype: DType, name: str, value: str) -> str:
    return f"{name} = ({dtype.compute})({bare(value)});"


def _combine_into(self: PhaseWriter, work: Reduce, name: str) -> str:
    value = self.value(work.value)
    target = f"{name}[{self.integer(work.offset)}]"
    new = combined(work.fn, work.dtype, element(work.dtype, target), value)
    return f"{target} = {stored(work.dtype, new)};"


def _reduce_lanes(self: PhaseWriter, work: Reduce, name: str) -> None:
    """Independent accumulators, so that the loop vectorises; float sums accumulate in double."""
    wide = work.dtype.name == "float32" and work.fn == "add"
    total = "double" if wide else work.dtype.compute
    start = literal(neutral(work.fn, work.dtype), work.dtype)
    long = [v for v in work.inner if v.extent != 1] or [work.inner[-1]]
    *outer, last = long
    self.line("{")
    self.depth += 1
    n, j = self.integer(last.extent), last.sym.name
    self.line(f"{total} lane[{LANES}];")
    self.line(f"for (int l = 0; l < {LANES}; l++) lane[l] = {start};")
    opened = self.open(outer)
    self.local |= {last.sym}

    def put(lane: str) -> str:
        value = self.value(work.value)
        new = f"lane[{lane}] + {value}" if wide else combined(
            work.fn, work.dtype, f"lane[{lane}]", value)  # fmt: skip
        return f"lane[{lane}] = {new};"

    self.line(f"for (int64_t t = 0; t + {LANES} <= {n}; t += {LANES}) {{")
    self.depth += 1
    self.line(f"for (int l = 0; l < {LANES}; l++) {{")
    self.depth += 1
    self.line(f"const int64_t {j} = t + l;")
    self.statement(lambda: put("l"))
    self.depth -= 1
    self.line("}")
    self.depth -= 1
    self.line("}")
    self.line(f"for (int64_t {j} = {n} - {n} % {LANES}; {j} < {n}; {j}++) {{")
    self.depth += 1
    self.statement(lambda: put(f"{j} % {LANES}"))
    self.depth -= 1
    self.line("}")
    self.close(opened)
    self.line(f"for (int l = 1; l < {LANES}; l++) " + (
        "lane[0] += lane[l];" if wide else
        f"lane[0] = {combined(work.fn, work.dtype, 'lane[0]', 'lane[l]')};"))  # fmt: skip
    self.writer.begin()
    result = "(float)lane[0]" if wide else "lane[0]"
    self.line(f"{name}[{self.integer(work.offset)}] = {stored(work.dtype, result)};")
    self.depth -= 1
    self.line("}")


def _lane(self: PhaseWriter, work: Lane) -> None:
    name = self.buffer(work.buffer, written=True)
    self.begin((*work.loops, work.along))
    opened = self.open(work.loops)
    self.line("{")
    self.depth += 1
    _LANES[work.kind](self, work, name)
    self.depth -= 1
    self.line("}")
    self.close(opened)


def _along(self: PhaseWriter, work: Lane, make: Callable[[], str]) -> None:
    """The loop along the lane, even where it has one iteration."""
    j = work.along.sym.name
    self.local |= {work.along.sym}
    self.line(f"for (int64_t {j} = 0; {j} < {self.integer(work.along.extent)}; {j}++) {{")
    self.depth += 1
    self.statement(make)
    self.depth -= 1
    self.line("}")


def _cumulative(self: PhaseWriter, work: Lane, name: str) -> None:
    assert work.value is not None
    value = work.value
    self.line(f"{work.dtype.compute} total = {literal(neutral(work.fn, work.dtype), work.dtype)};")
    at = work.offset + work.stride * expr.symbol(work.along.sym)

    def step() -> str:
        new = _assign(
            work.dtype, "total", combined(work.fn, work.dtype, "total", self.value(value))
        )
        return f"{new} {name}[{self.integer(at)}] = {stored(work.dtype, 'total')};"

    _along(self, work, step)


def _argreduce(self: PhaseWriter, work: Lane, name: str) -> None:
    """The first extreme; NaN is more extreme than any number, as in NumPy."""
    assert work.value is not None
    value = work.value
    j, compute = work.along.sym.name, work.dtype.compute
    self.line(f"{compute} best = 0;")
    self.line("int64_t where = 0;")
    sign = "<" if work.fn == "min" else ">"

    def step() -> str:
        nan = " || (value != value && best == best)" if work.dtype.kind == "f" else ""
        test = f"{j} == 0 || value {sign} best{nan}"
        return (
            f"const {compute} value = {self.value(value)}; "
            f"if ({test}) {{ best = value; where = {j}; }}"
        )

    _along(self, work, step)
    self.writer.begin()
    self.line(f"{name}[{self.integer(work.offset)}] = where;")


def _sort(self: PhaseWriter, work: Lane, name: str) -> None:
    assert work.value is not None
    value, j = work.value, work.along.sym.name
    lane = self.buffer(work.scratch[0], written=True)
    _along(self, work, lambda: f"{lane}[{j}] = {stored(work.dtype, self.value(value))};")
    n = self.integer(work.along.extent)
    ending = storage_suffix(work.dtype)
    at = work.offset + work.stride * expr.symbol(work.along.sym)
    if work.kind == "sort":
        self.line(f"spmd_sort_{ending}({lane}, {n});")
        source = lane
    else:
        source = self.buffer(work.scratch[1], written=True)
        self.line(f"spmd_argsort_{ending}({lane}, {n}, {source}, {source} + {n});")
    _along(self, work, lambda: f"{name}[{self.integer(at)}] = {source}[{j}];")


_LANES = {"cumulative": _cumulative, "argreduce": _argreduce, "sort": _sort, "argsort": _sort}


def _product(self: PhaseWriter, work: Product) -> None:
    self.begin(work.loops)
    opened = self.open(work.loops)
    if work.library is not None:
        _gemm(self, work, work.library)
    else:
        _plain_product(self, work)
    self.close(opened)


def _gemm(self: PhaseWriter, work: Product, library: int) -> None:
    self.library = True
    m, n, k = (self.integer(e) for e in (work.m, work.n, work.k))
    a, ta, lda = _blas_operand(self, work.a, work.m, work.k)
    b, tb, ldb = _blas_operand(self, work.b, work.k, work.n)
    c = f"{self.buffer(work.c.buffer, written=True)} + {self.integer(work.c.offset)}"
    kind = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[work.dtype.name]
    one, zero = ("1", "0") if kind in "sd" else (f"(const {work.dtype.c}[]){{1}}",
                                                 f"(const {work.dtype.c}[]){{0}}")  # fmt: skip
    self.line(f"if ({m} > 0 && {n} > 0)")
    self.line(
        f"    ((spmd_{kind}gemm)library[{library}])(SPMD_ROW_MAJOR, {ta}, {tb}, (int)({m}), "
        f"(int)({n}),"
    )
    self.line(
        f"        (int)({k}), {one}, {a}, (int)spmd_max({lda}, 1), {b}, (int)spmd_max({ldb}, 1), "
        f"{zero},"
    )
    self.line(f"        {c}, (int)({n}));")


def _blas_operand(self: PhaseWriter, x: Matrix, rows: Expr, columns: Expr) -> tuple[str, str, str]:
    """Address, transposition and leading dimension of an operand (rows x columns)."""
    at = f"{self.buffer(x.buffer)} + {self.integer(x.offset)}"
    if (x.column == 1 or columns == 1) and expr.nonneg(x.row):
        lead = columns if rows == 1 or x.row == 0 else x.row
        return at, "SPMD_PLAIN", self.integer(lead)
    lead = rows if columns == 1 or x.column == 0 else x.column
    return at, "SPMD_TRANSPOSED", self.integer(lead)


def _plain_product(self: PhaseWriter, work: Product) -> None:
    """For types that no library multiplies: row by row, in the order of k."""
    dtype = work.dtype
    a, b = self.buffer(work.a.buffer), self.buffer(work.b.buffer)
    c = self.buffer(work.c.buffer, written=True)
    i, j, k = (expr.symbol(Sym(n)) for n in "ijk")
    self.local |= {Sym("i"), Sym("j"), Sym("k")}
    at = {
        "a": self.integer(work.a.offset + work.a.row * i + work.a.column * k),
        "b": self.integer(work.b.offset + work.b.row * k + work.b.column * j),
        "c": self.integer(work.c.offset + work.c.row * i + work.c.column * j),
    }
    product = combined(
        "mul", dtype, element(dtype, f"{a}[{at['a']}]"), element(dtype, f"{b}[{at['b']}]")
    )
    total = combined("add", dtype, "total", product)
    m, n, kk = (self.integer(e) for e in (work.m, work.n, work.k))
    self.line(f"for (int64_t i = 0; i < {m}; i++)")
    self.line(f"    for (int64_t j = 0; j < {n}; j++) {{")
    self.line(f"        {dtype.compute} total = 0;")
    self.line(f"        for (int64_t k = 0; k < {kk}; k++) total = ({dtype.compute})({total});")
    self.line(f"        {c}[{at['c']}] = {stored(dtype, 'total')};")
    self.line("    }")


def _kernel(self: PhaseWriter, work: KernelCall) -> None:
    self.begin(())
    arguments: list[str] = []
    for a in work.arguments:
        if isinstance(a.what, Buffer):
            arguments.append(f"(void *){self.buffer(a.what, written=True)}")
            arguments += [self.integer(e) for e in a.shape]
        elif isinstance(a.what, Expr):
            arguments.append(self.integer(a.what))
        elif a.dtype.kind == "c":  # by its parts
            value = self.value(a.what)
            arguments += [f"spmd_{part}_{suffix(a.dtype)}({value})" for part in ("real", "imag")]
        else:
            arguments.append(self.value(a.what))
    for declaration in self.writer.lines:
        self.line(declaration)
    self.line(f"{work.symbol}({', '.join(arguments)});")


_WRITE: dict[type, Callable[[PhaseWriter, Work], None]] = {
    Store: _store,  # type: ignore[dict-item]
    Reduce: _reduce,  # type: ignore[dict-item]
    Lane: _lane,  # type: ignore[dict-item]
    Product: _product,  # type: ignore[dict-item]
    KernelCall: _kernel,  # type: ignore[dict-item]
}

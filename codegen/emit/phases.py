"""Compute phases as C functions over pointers, extents and offsets.

Goes in: a Phase. Comes out: its function and the arguments of its call.
Always holds: a phase function is handed everything; it reads neither the rank nor the index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import gcd

from codegen.emit.cutting import NOINLINE
from codegen.emit.lines import comment, source, wrapped
from codegen.emit.nests import single_nest, start_rows, write_nest
from codegen.emit.operators import applied, call, cast, single
from codegen.emit.spell import (
    NodeWriter,
    abstract,
    c_expr,
    combined,
    element,
    identifier,
    literal,
    storage_suffix,
    stored,
    suffix,
)  # fmt: skip
from codegen.errors import Place
from codegen.functions import FUNCTIONS, neutral
from codegen.mesh import part_of_block
from codegen.plan.grammar import (
    Buffer,
    KernelCall,
    Lane,
    Matrix,
    Nest,
    Node,
    Phase,
    Product,
    Reduce,
    Runtime,
    Store,
    Var,
    Work,
)  # fmt: skip
from codegen.plan.indexing import positions, ravel, waiting_room
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.spelling import Binds, Text, within


class PhaseWriter:
    """One compute phase. After write(): text, and what the caller hands over."""

    def __init__(
        self, phase: Phase, buffer_name: Callable[[Buffer], str], taken: Collection[str]
    ) -> None:
        self.phase = phase
        self.buffer_name = buffer_name
        self.taken = set(taken)  # names that parameters cannot have
        self.buffers: dict[str, tuple[Buffer, bool]] = {}
        self.parameters: dict[str, tuple[Expr, str]] = {}  # by key: what, and its name
        self.runtimes: dict[str, Runtime] = {}
        self.library = False
        self.out: list[str] = []
        self.depth = 1
        self.place: Place | None = None  # the source line of what was written last
        self.local: frozenset[Sym] = frozenset()
        self.writer = NodeWriter(self.load, self.symbolic, self.runtime)

    def write(self) -> str:
        for work in self.phase.work:
            self.quote(work.place)
            _WRITE[type(work)](self, work)
        head = wrapped(f"static void {self.phase.name}(", self.signature() or ["void"], ")")
        named = ((n, str(e)) for e, n in self.parameters.values())
        intro = comment("compute phase", *(f"  {n} = {text}" for n, text in named if n != text))
        # A function of its own: a symbol for objdump, gdb and perf, and all it gets are arguments.
        head = f"{NOINLINE}{head}"
        return "\n".join([intro, head, "{", *self.out, "}"]) + "\n"

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

    def quote(self, place: Place | None) -> None:
        """The line of the source that what follows comes from, where it is another one."""
        if place and (self.place is None or place.line != self.place.line):
            self.place = place
            self.out.append(comment(source(place), indent="    " * self.depth))

    def fresh(self, base: str) -> str:
        """A name that nothing in this function has."""
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def keep(self, name: str) -> str:
        """What a value that is kept from here on is called."""
        self.writer.names[name] = self.fresh(identifier(name))
        return self.writer.names[name]

    def buffer(self, buffer: Buffer, written: bool = False) -> str:
        name = self.buffer_name(buffer)
        before = self.buffers.get(name, (buffer, False))[1]
        self.buffers[name] = (buffer, before or written)
        return name

    def load(self, buffer: Buffer, offset: Expr) -> str:
        return f"{self.buffer(buffer)}[{self.integer(offset, Binds.CHOICE)}]"

    def runtime(self, node: Runtime) -> str:
        name = f"scalar_{identifier(node.name)}"
        self.runtimes[name] = node
        return name

    def parameter(self, e: Expr) -> Expr:
        """What the caller computes, by the symbol that stands for it here.

        `2 * extent` is computed here from an extent, so that few parameters say much; a longer sum
        is not, as it may be multiplied by what moves.
        """
        name, unit, times, plus = _obvious_name(e), e, 1, 0
        if not name:
            unit, times, plus = _unit(e)
            name = _obvious_name(unit)
        if not name or (plus and name == "extent"):
            name, unit, times, plus = f"e{len(self.parameters)}", e, 1, 0
        if unit.key not in self.parameters:
            self.parameters[unit.key] = (unit, self.fresh(name))
        return expr.symbol(Sym(self.parameters[unit.key][1], "size")) * times + plus

    def symbolic(self, e: Expr) -> Text:
        bound = {s for s in e.symbols() if s.name in self.writer.done}
        return c_expr(abstract(e, self.local | frozenset(bound), self.parameter), {})

    def integer(self, e: Expr, least: Binds = Binds.SUM) -> str:
        """An Expr where something binds this tightly."""
        return within(self.symbolic(e), least)

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
        self.flush()
        self.line(text)

    def flush(self) -> None:
        """Write the declarations that an expression needs."""
        for declaration in self.writer.lines:
            self.line(declaration)
        self.writer.lines = []

    def value(self, node: Node) -> Text:
        return self.writer.operand(node)

    def target(self, buffer: Buffer, offset: Expr) -> str:
        """An element that is written."""
        return f"{self.buffer(buffer, written=True)}[{self.integer(offset, Binds.CHOICE)}]"


def _unit(e: Expr) -> tuple[Expr, int, int]:
    """(unit, times, plus) of e = unit * times + plus."""
    terms = [(m, c) for m, c in e.terms if m]
    times = gcd(*(c for _, c in terms)) * (1 if any(c > 0 for _, c in terms) else -1)
    plus = sum(c for m, c in e.terms if not m)
    return Expr(tuple((m, c // times) for m, c in terms)), times, plus


def _obvious_name(e: Expr) -> str:
    """A symbol's own name; extent or offset of a block; or ""."""
    symbols = list(e.symbols())
    if len(symbols) == 1 and e == expr.symbol(symbols[0]):
        return identifier(symbols[0].name)
    return part_of_block(e)


# ---- one function per kind of work ---------------------------------------------------------------


def _store_rows(self: PhaseWriter, work: Store) -> None:
    """Rows wait for the rows that still read what they replace."""
    assert work.waiting is not None
    first, *inner = work.loops
    row = Sym("row", "var", expr.const(0), first.extent - 1)
    offset = work.offset.subst({first.sym: expr.symbol(row)})
    self.begin((*work.loops, Var(row, first.extent)))
    waiting, written = self.buffer(work.waiting, written=True), self.buffer(work.buffer, True)
    assert waiting != written
    at = self.integer(ravel(positions(inner), tuple(v.extent for v in inner)), Binds.CHOICE)
    j, n, behind = first.sym.name, self.integer(first.extent), work.rows - 1
    late = f" + {behind}" if behind else ""
    dtype = work.buffer.dtype
    # what is not spelled is no parameter
    room = waiting_room(tuple(v.extent for v in inner), dtype)
    size = self.integer(room, Binds.PRODUCT) if behind else ""
    begins = work.offset.subst({v.sym: expr.const(0) for v in inner})
    self.line(f"for (int64_t {j} = 0; {j} < {n}{late}; {j}++) {{")
    self.depth += 1
    for test, number, write in (
        (f"{j} < {n}", j, False),
        (f"{j} >= {behind}", f"({j} - {behind})" if behind else j, True),
    ):
        self.line(f"if ({test}) {{" if behind else "{")
        self.depth += 1
        if write and row in offset.symbols():
            self.line(f"const int64_t row = {j}{f' - {behind}' if behind else ''};")
        slot = f" + {number} % {work.rows} * {size}" if behind else ""
        constant = "const " if write else ""
        its = begins.subst({first.sym: expr.symbol(row)}) if write else begins
        self.line(f"{constant}{dtype.c} *const line = spmd_apart({waiting}{slot},")
        self.line(f"    {written} + {self.integer(its)});")
        opened = self.open(inner)
        if write:
            self.statement(lambda: f"{self.target(work.buffer, offset)} = line[{at}];")
        else:
            self.statement(lambda: f"line[{at}] = {stored(dtype, self.value(work.value))};")
        self.close(opened)
        self.depth -= 1
        self.line("}")
    self.depth -= 1
    self.line("}")


def _store(self: PhaseWriter, work: Store) -> None:
    if work.rows:
        _store_rows(self, work)
        return
    self.begin(work.loops)
    opened = self.open(work.loops)
    self.buffer(work.buffer, written=True)
    dtype = work.buffer.dtype
    self.writer.begin()
    tests = []
    for b in work.bounds:
        raw = self.writer.position(b.node)
        self.writer.done.add(b.sym.name)
        self.writer.lines.append(f"const int64_t {b.sym.name} = {raw};")
        at = self.integer(expr.symbol(b.sym) + (b.shift if b.shift is not None else 0))
        tests.append(f"{at} >= 0 && {at} <= {self.integer(b.limit)}")
    value = self.value(work.value)
    target = self.target(work.buffer, work.offset)
    if work.combine != "set":
        value = combined(work.combine, dtype, element(dtype, target), value)
    for declaration in self.writer.lines:
        self.line(declaration)
    store = f"{target} = {stored(dtype, value)};"
    self.line(f"if ({' && '.join(tests)}) {store}" if tests else store)
    self.close(opened)


def _reduce(self: PhaseWriter, work: Reduce) -> None:
    if not work.rows:
        write_nest(self, single_nest(work))
        return
    start_rows(self, work)
    *outer, row = work.loops
    self.begin(work.loops + work.inner)
    opened = self.open((*outer, *work.inner, row))
    self.statement(lambda: _combine_into(self, work))
    self.close(opened)


_TOTAL = single("total")


def _start(self: PhaseWriter, work: Reduce | Lane) -> None:
    first = literal(neutral(work.fn, work.dtype), work.dtype)[0]
    self.line(f"{work.dtype.compute} total = {first};")


def _advance(work: Reduce | Lane, value: Text) -> str:
    return f"total = {combined(work.fn, work.dtype, _TOTAL, value)[0]};"


def _combine_into(self: PhaseWriter, work: Reduce) -> str:
    value = self.value(work.value)
    target = self.target(work.buffer, work.offset)
    new = combined(work.fn, work.dtype, element(work.dtype, target), value)
    return f"{target} = {stored(work.dtype, new)};"


def _lane(self: PhaseWriter, work: Lane) -> None:
    self.buffer(work.buffer, written=True)
    self.begin((*work.loops, work.along))
    opened = self.open(work.loops)
    self.line("{")
    self.depth += 1
    _LANES[work.kind](self, work)
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


def _cumulative(self: PhaseWriter, work: Lane) -> None:
    assert work.value is not None
    value = work.value
    _start(self, work)
    at = work.offset + work.stride * expr.symbol(work.along.sym)

    def step() -> str:
        new = _advance(work, self.value(value))
        return f"{new} {self.target(work.buffer, at)} = {stored(work.dtype, _TOTAL)};"

    _along(self, work, step)


def _argreduce(self: PhaseWriter, work: Lane) -> None:
    """The first extreme; NaN is more extreme than any number, as in NumPy."""
    assert work.value is not None
    value = work.value
    j, compute = work.along.sym.name, work.dtype.compute
    self.line(f"{compute} best = 0;")
    self.line("int64_t where = 0;")
    form = FUNCTIONS["lt" if work.fn == "min" else "gt"].form(work.dtype)
    beyond = applied(form, (single("value"), single("best")), suffix(work.dtype))[0]

    def step() -> str:
        nan = " || (value != value && best == best)" if work.dtype.kind in "fc" else ""
        test = f"{j} == 0 || {beyond}{nan}"
        return (
            f"const {compute} value = {self.value(value)[0]}; "
            f"if ({test}) {{ best = value; where = {j}; }}"
        )

    _along(self, work, step)
    self.writer.begin()
    self.line(f"{self.target(work.buffer, work.offset)} = where;")


def _sort(self: PhaseWriter, work: Lane) -> None:
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
    _along(self, work, lambda: f"{self.target(work.buffer, at)} = {source}[{j}];")


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
    m, n, k = (cast("int", self.symbolic(e))[0] for e in (work.m, work.n, work.k))
    a, ta, lda = _blas_operand(self, work.a, work.m, work.k)
    b, tb, ldb = _blas_operand(self, work.b, work.k, work.n)
    self.buffer(work.c.buffer, written=True)
    c = _address(self, work.c)
    kind = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[work.dtype.name]
    one, zero = ("1", "0") if kind in "sd" else (f"(const {work.dtype.c}[]){{1}}",
                                                 f"(const {work.dtype.c}[]){{0}}")  # fmt: skip
    rows = [
        f"((spmd_{kind}gemm)library[{library}])(SPMD_ROW_MAJOR, {ta}, {tb}, {m}, {n}, {k}, {one},",
        f"    {a}, {lda}, {b}, {ldb}, {zero}, {c}, {n});",
    ]
    tests = [f"{self.integer(e)} > 0" for e in (work.m, work.n) if not expr.nonneg(e - 1)]
    if tests:
        self.line(f"if ({' && '.join(tests)}) {{")
    self.depth += bool(tests)
    for row in rows:
        self.line(row)
    self.close(bool(tests))


def _address(self: PhaseWriter, x: Matrix) -> str:
    name = self.buffer(x.buffer)
    return name if x.offset == 0 else f"{name} + {self.integer(x.offset)}"


def _element(self: PhaseWriter, x: Matrix, row: Sym, column: Sym) -> str:
    at = x.offset + x.row * expr.symbol(row) + x.column * expr.symbol(column)
    return f"{self.buffer(x.buffer)}[{self.integer(at, Binds.CHOICE)}]"


def _blas_operand(self: PhaseWriter, x: Matrix, rows: Expr, columns: Expr) -> tuple[str, str, str]:
    """Address, transposition and leading dimension of an operand (rows x columns)."""
    plain = (x.column == 1 or columns == 1) and expr.nonneg(x.row)
    if plain:
        lead = columns if rows == 1 or x.row == 0 else x.row
    else:
        lead = rows if columns == 1 or x.column == 0 else x.column
    text = self.symbolic(lead)
    if not expr.nonneg(lead - 1):
        text = call("spmd_max", text, single("1"))
    how = "SPMD_PLAIN" if plain else "SPMD_TRANSPOSED"
    return _address(self, x), how, cast("int", text)[0]


def _plain_product(self: PhaseWriter, work: Product) -> None:
    """For types that no library multiplies: row by row, in the order of k."""
    dtype = work.dtype
    i, j, k = (Sym(n) for n in "ijk")
    self.local |= {i, j, k}
    a, b = _element(self, work.a, i, k), _element(self, work.b, k, j)
    c = _element(self, work.c, i, j)
    self.buffer(work.c.buffer, written=True)
    product = combined("mul", dtype, element(dtype, a), element(dtype, b))
    total = combined("add", dtype, _TOTAL, product)[0]
    self.line(f"for (int64_t i = 0; i < {self.integer(work.m)}; i++) {{")
    self.line(f"    for (int64_t j = 0; j < {self.integer(work.n)}; j++) {{")
    self.line(f"        {dtype.compute} total = 0;")
    self.line(f"        for (int64_t k = 0; k < {self.integer(work.k)}; k++) total = {total};")
    self.line(f"        {c} = {stored(dtype, _TOTAL)};")
    self.line("    }")
    self.line("}")


def _kernel(self: PhaseWriter, work: KernelCall) -> None:
    self.begin(())
    arguments: list[str] = []
    for a in work.arguments:
        if isinstance(a.what, Buffer):
            arguments.append(f"(void *){self.buffer(a.what, written=True)}")
            arguments += [self.integer(e, Binds.CHOICE) for e in a.shape]
        elif isinstance(a.what, Expr):
            arguments.append(self.integer(a.what, Binds.CHOICE))
        elif a.dtype.kind == "c":  # by its parts
            value = self.value(a.what)[0]
            arguments += [f"spmd_{part}_{suffix(a.dtype)}({value})" for part in ("real", "imag")]
        else:
            arguments.append(self.value(a.what)[0])
    for declaration in self.writer.lines:
        self.line(declaration)
    self.line(f"{work.symbol}({', '.join(arguments)});")


_WRITE: dict[type, Callable[[PhaseWriter, Work], None]] = {
    Store: _store,  # type: ignore[dict-item]
    Reduce: _reduce,  # type: ignore[dict-item]
    Nest: write_nest,  # type: ignore[dict-item]
    Lane: _lane,  # type: ignore[dict-item]
    Product: _product,  # type: ignore[dict-item]
    KernelCall: _kernel,  # type: ignore[dict-item]
}

"""Compute phases as C functions over pointers, extents and offsets.

Goes in: a Phase. Comes out: its function and the arguments of its call. Always holds: a phase
function gets all it uses as arguments; it reads neither rank nor index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codegen.emit.cutting import NOINLINE
from codegen.emit.expressions import applied, single
from codegen.emit.lines import comment, wrapped
from codegen.emit.nests import NestWriter
from codegen.emit.shared_works import SharedCall, SharedWorks
from codegen.emit.spell import combined, literal, storage_suffix, suffix
from codegen.functions import FUNCTIONS, neutral, neutral_sign
from codegen.ir.plan import (
    Argument,
    Buffer,
    KernelCall,
    Lane,
    LibraryCall,
    Nest,
    Node,
    Phase,
    Reduce,
    Store,
    Work,
    WorkBranch,
    WorkLoop,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.symbolic.spelling import Binds, Text


class PhaseWriter(NestWriter):
    """The writer of one compute phase. After write(), it has the arguments of the call, in order:
    buffers, parameters of the phase, runtimes, and with `library` the table of routines."""

    def __init__(self, phase: Phase, buffer_names: dict[int, str],
                 shared: SharedWorks | None = None) -> None:
        taken = (*buffer_names.values(), *(p.sym.name for p in phase.parameters))
        super().__init__(buffer_names, taken)
        self.phase = phase
        self.shared = shared

    def write(self) -> str:
        for work in self.phase.work:
            self.quote(work.place)
            call = self.shared.call(work) if self.shared else None
            if call is None:
                self.work(work)
            else:
                self.call_shared(call)
        head = wrapped(f"static void {self.phase.name}(", self.signature() or ["void"], ")")
        named = ((p.sym.name, str(p.formula)) for p in self.phase.parameters)
        uses = self.shared.uses[self.phase.number] if self.shared else 1
        title = f"what {uses} compute phases do, with names of the first one"
        title = title if uses > 1 else "compute phase"
        intro = comment(title, *(f"  {n} = {text}" for n, text in named if n != text))
        # A function of its own: a symbol for objdump, gdb and perf, and all it gets are arguments.
        return "\n".join([intro, f"{NOINLINE}{head}", "{", *self.lines, "}"]) + "\n"

    def call_shared(self, call: SharedCall) -> None:
        passed, work = [], call.work
        for name in work.arguments:
            if name in work.buffers:
                self.buffer(*work.buffers[name])
            passed.append(self.runtime(work.runtimes[name]) if name in work.runtimes else name)
        indent = "    " * self.depth
        arguments = [*passed, *call.numbers] or [""]
        self.lines.append(wrapped(f"{indent}{call.name}(", arguments, ");", indent + "    "))

    def signature(self) -> list[str]:
        names = [*self.buffers, *(p.sym.name for p in self.phase.parameters), *self.runtimes]
        types = self.signature_types()
        out = [t + name for t, name in zip(types, names, strict=True)]
        return [*out, "void *const *library"] if self.library else out

    def signature_types(self) -> list[str]:
        """Return the types of the function's parameters, without the table of routines."""
        return [*(f"{'' if written else 'const '}{buffer.dtype.c} *restrict "
                  for buffer, written in self.buffers.values()),
                *["const int64_t "] * len(self.phase.parameters),
                *["const double "] * len(self.runtimes)]

    def works(self, works: Sequence[Work]) -> None:
        for work in works:
            self.quote(work.place)
            self.work(work)

    def work(self, work: Work) -> None:
        match work:
            case Store():
                self.store(work)
            case Nest():
                self.nest(work)
            case Lane():
                self.lane(work)
            case LibraryCall():
                self.call(work)
            case KernelCall():
                self.kernel(work)
            case WorkLoop():
                self.open(f"for (int64_t {self.turns(work.sym.name, work)}) {{")
                self.works(work.body)
                self.close()
            case WorkBranch():
                for k in self.arms(work):
                    self.works(work.arms[k])
            case Reduce():
                raise AssertionError("loops/schedule.py leaves no Reduce")

    # ---- lanes -----------------------------------------------------------------------------------

    def lane(self, work: Lane) -> None:
        assert work.value is not None
        self.buffer(work.buffer, written=True)
        opened = self.loops(work.loops)
        self.open("{")
        match work.kind:
            case "cumulative":
                self.cumulative(work, work.value)
            case "argreduce":
                self.argreduce(work, work.value)
            case _:
                self.sort(work, work.value)
        self.close(opened + 1)

    def along(self, work: Lane, make: Callable[[], str]) -> None:
        """Write a statement for every position of a lane, even if there is only one."""
        self.loop(work.along)
        self.declared.clear()
        self.line(make())
        self.close()

    def cumulative(self, work: Lane, value: Node) -> None:
        """Write a running fold whose first element stays as it is: 0.0 + -0.0 is 0.0, and 1 times
        inf + 0j has a NaN."""
        first = neutral_sign(work.fn, work.dtype)
        self.line(f"{work.dtype.compute} total = {literal(first, work.dtype)[0]};")

        def step() -> str:
            new = self.folded(work, value, _TOTAL)
            if work.fn == "mul" and work.dtype.kind == "c":
                new = f"{work.along.sym.name} == 0 ? {self.value(value)[0]} : {new}"
            return f"total = {new}; {self.put(work.buffer, work.offset, _TOTAL)}"

        self.along(work, step)

    def folded(self, work: Lane, value: Node, total: Text) -> str:
        return combined(work.fn, work.dtype, total, self.value(value))[0]

    def argreduce(self, work: Lane, value: Node) -> None:
        """Write a search for the first extreme; NaN is more extreme than any number, as in
        NumPy."""
        if work.lanes:
            self.argreduce_in_lanes(work, value)
            return
        j, compute = work.along.sym.name, work.dtype.compute
        better = self.beyond(work, "best")
        self.line(f"{compute} best = 0;")
        self.line("int64_t where = 0;")
        take = f"if ({j} == 0 || {better}) {{ best = value; where = {j}; }}"
        self.along(work, lambda: f"const {compute} value = {self.value(value)[0]}; {take}")
        self.line(self.put(work.buffer, work.offset, single("where")))

    def beyond(self, work: Lane, than: str) -> str:
        """Return a C condition that `value` is more extreme than `than`, where NaN exceeds any
        number."""
        form = FUNCTIONS["lt" if work.fn == "min" else "gt"].form(work.dtype)
        more = applied(form, (single("value"), single(than)), suffix(work.dtype))[0]
        if work.dtype.kind in "fc":
            return f"({more}) | ((value != value) & ({than} == {than}))"
        return more

    def argreduce_in_lanes(self, work: Lane, value: Node) -> None:
        """Write a search for an extreme in blocks. In a block with an element more extreme than all
        before, each vector lane computes its extreme and the iteration that has it; then the first
        of the lanes' extremes is taken."""
        j, n, lanes = work.along.sym.name, self.integer(work.along.extent), work.lanes
        dtype, compute = work.dtype, work.dtype.compute
        number = "int64_t" if dtype.size == 8 else "int32_t"  # as wide as what is compared
        first = literal(neutral(work.fn, dtype), dtype)[0]
        self.line(f"{compute} best = 0;")
        self.line("int64_t where = 0;")
        self.open(f"for (int64_t block = 0; block < {n}; block += {_BLOCK}) {{")
        self.line(f"const int64_t end = spmd_min(block + {_BLOCK}, {n});")
        self.line(f"{number} found = block == 0;")
        self.loop(work.along, ("found ? end : block", "end"))
        no_more = "<=" if work.fn == "max" else ">="
        within = applied(no_more, (self.value(value), single("best")), suffix(dtype))[0]
        self.line(f"found |= !({within});")
        self.close()
        self.line("if (!found) continue;")
        self.line(f"{compute} most[{lanes}];")
        self.line(f"{number} turn = 0, at[{lanes}] = {{0}};")
        self.line(f"for (int64_t k = 0; k < {lanes}; k++) most[k] = {first};")
        self.line(f"const int64_t whole = end - (end - block) % {lanes};")
        self.open(f"for (int64_t begin = block; begin < whole; begin += {lanes}, turn++) {{")
        self.simd()
        self.open(f"for (int64_t k = 0; k < {lanes}; k++) {{")
        self.line(f"const int64_t {j} = begin + k;")
        self.take(work, value, number, "k")
        self.close(2)
        self.loop(work.along, ("whole", "end"))
        self.take(work, value, number, f"{j} - whole")
        self.close()
        self.open(f"for (int64_t k = 0; k < {lanes}; k++) {{")
        self.line(f"const {compute} value = most[k];")
        self.line(f"const int64_t here = block + at[k] * {lanes} + k;")
        same = "value == best" + " || (value != value && best != best)" * (dtype.kind == "f")
        better = f"block + k == 0 || {self.beyond(work, 'best')} || (here < where && ({same}))"
        self.line(f"if ({better}) {{ best = value; where = here; }}")
        self.close()
        if dtype.kind == "f":
            self.line("if (best != best) break;")
        self.close()
        self.line(self.put(work.buffer, work.offset, single("where")))

    def take(self, work: Lane, value: Node, number: str, k: str) -> None:
        """Write the update of one vector lane's extreme by one more element."""
        self.line(f"const {work.dtype.compute} value = {self.value(value)[0]};")
        self.line(f"const int better = {self.beyond(work, f'most[{k}]')};")
        for name, new, ending in (("most", "value", suffix(work.dtype)),
                                  ("at", "turn", f"i{number[3:5]}")):
            self.line(f"{name}[{k}] = spmd_select_{ending}(better, {new}, {name}[{k}]);")

    def sort(self, work: Lane, value: Node) -> None:
        j, n = work.along.sym.name, self.integer(work.along.extent)
        lane, *order = (self.buffer(memory, written=True) for memory in work.scratch)
        place, called = expr.symbol(work.along.sym), f"spmd_{work.kind}_lane"
        self.along(work, lambda: self.put(work.scratch[0], place, self.value(value)))
        ordered, arguments = lane, [f"{lane} + {n}", n]
        if order:  # of positions, with the room that merging them takes
            (ordered,) = order
            arguments = [n, ordered, f"{ordered} + {n}"]
        self.line(f"{called}_{storage_suffix(work.dtype)}({', '.join([lane, *arguments])});")
        self.along(work, lambda: f"{self.target(work.buffer, work.offset)} = {ordered}[{j}];")

    # ---- libraries and kernels -------------------------------------------------------------------

    def call(self, work: LibraryCall) -> None:
        self.library = True
        opened = self.loops(work.loops)
        arguments = [self.integer(e) for e in work.numbers]
        for part in work.parts:
            name = self.buffer(part.buffer, written=part.writes)
            arguments.append(name if part.offset == 0 else f"{name} + {self.integer(part.offset)}")
        self.line(f"{work.function.name}({', '.join(['library', *arguments])});")
        self.close(opened)

    def kernel(self, work: KernelCall) -> None:
        self.declared.clear()
        arguments = [text for a in work.arguments for text in self.argument(a)]
        self.line(f"{work.symbol}({', '.join(arguments)});")

    def argument(self, a: Argument) -> list[str]:
        """Return the C arguments of a kernel's argument: the address and extents of an array, or a
        scalar (the two parts of a complex one)."""
        if isinstance(a.value, Buffer):
            name = self.buffer(a.value, written=a.writes)
            address = f"(void *){name if a.offset == 0 else f'({name} + {self.integer(a.offset)})'}"
            return [address, *(self.integer(e, Binds.CHOICE) for e in a.shape)]
        if isinstance(a.value, Expr):
            return [self.integer(a.value, Binds.CHOICE)]
        value = self.value(a.value)[0]
        if a.dtype.kind == "c":
            return [f"spmd_{part}_{suffix(a.dtype)}({value})" for part in ("real", "imag")]
        return [value]


_TOTAL = single("total")
_BLOCK = 512  # elements of a lane in which argreduce looks for something more extreme

"""The control program: one resumable state machine per rank.

Goes in: a Plan. Comes out: C of step(), and of the phases and exchanges that it needs.
step() runs until the rank must wait, returns, and resumes at rank->pc (a switch whose cases stand
in the middle of loops); where it is long it is cut into functions that do the same, each for a
range of cases. Branches on the index stand here; phases never see the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from codegen.dtypes import DType
from codegen.emit.cutting import NOINLINE, Cuts
from codegen.emit.exchange_code import exchange_functions
from codegen.emit.expressions import prefix
from codegen.emit.function import dtype_of
from codegen.emit.lines import wrapped
from codegen.emit.phases import PhaseWriter
from codegen.emit.rank_code import Places, RankFunction
from codegen.emit.shared_exchanges import SharedExchanges
from codegen.emit.shared_works import SharedWorks
from codegen.ir.plan import (
    Branch,
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
    Take,
)
from codegen.ir.steps import inner_steps, is_asked, operations, walk_steps
from codegen.symbolic.spelling import Binds


class ControlWriter:
    """The writer of step(). phases, exchanges: texts of the functions that step() calls."""

    def __init__(self, plan: Plan, places: Places) -> None:
        self.plan, self.places = plan, places
        self.phases: list[str] = []
        self.shared = SharedWorks(plan, places.names, PhaseWriter)
        self.writers: dict[int, PhaseWriter] = {}  # of phases, by their number
        self.alike = SharedExchanges(plan, places)
        self.exchanges = list(self.alike.functions)
        self.parts: list[str] = []  # of step()
        self.numbers = {id(s): k for k, s in enumerate(operations(plan.steps))}
        self.points = [s.number for s in walk_steps(plan.steps) if isinstance(s, Point)]
        self.feeds = {f.name: k for k, f in enumerate(plan.feeds)}
        self.takes = [h.number for h in plan.takes]
        self.sends = [h.number for h in plan.sends]
        self.saves = [s.series for s in plan.saves]
        self.cuts = Cuts(plan.steps)
        self.cases = 0
        self.f = self.new_function()

    def write(self) -> str:
        """Return the C of step() and its parts."""
        self.steps(self.plan.steps)
        return "\n".join([*self.parts, _switch("step", 0, self.f)])

    def new_function(self) -> RankFunction:
        # inside a function and its switch
        return RankFunction(self.places, depth=2, changing=self.places.counters)

    # ---- steps -----------------------------------------------------------------------------------

    def steps(self, steps: Sequence[Step]) -> None:
        groups = self.cuts.groups(steps)
        for group in groups:
            if len(groups) > 1:
                self.part(group)
            else:
                for step in group:
                    self.step(step)

    def part(self, steps: Sequence[Step]) -> None:
        """Write steps as a C function of their own."""
        outer, self.f = self.f, self.new_function()
        self.cases += 1
        first, name = self.cases, f"step_{self.cases}"
        self.steps(steps)
        self.parts.append(NOINLINE + _switch(name, first, self.f))
        self.f = outer
        self.resume(first)
        self.f.line(f"if ({name}(r)) return SPMD_WAITS;")

    def resume(self, first: int) -> None:
        """Write the case label at which a rank resumes; it covers the cases from `first` to the
        last one so far."""
        self.f.line(f"r->pc = {first};")
        self.f.line("/* fall through */")
        last = f" ... {self.cases}" if self.cases > first else ""
        self.f.depth -= 1
        self.f.line(f"case {first}{last}:")
        self.f.depth += 1

    def step(self, step: Step) -> None:
        match step:
            case Phase():
                self.phase(step)
            case Exchange():
                self.exchange(step)
            case Loop():
                self.loop(step)
            case Let():
                self.let(step)
            case Branch():
                self.branch(step)
            case Default():
                self.default(step)
            case Print():
                self.print(step)
            case Expect():
                self.expect(step)
            case Take():
                self.handing(step, f"take(r, {self.takes.index(step.number)})")
            case Send():
                self.handing(step, f"send(r, {self.sends.index(step.number)})")
            case More():
                self.more(step)
            case Save():
                number = self.saves.index(step.series)
                self.waiting(step, f'save "{step.series}": ', f"save(r, {number})")
            case Point():
                raise AssertionError("a point is the first step of a turn")

    def phase(self, phase: Phase) -> None:
        first, f = self.shared.phases[phase.number], self.f
        if first is phase:
            writer = self.writers[phase.number] = PhaseWriter(phase, self.places.names, self.shared)
            self.phases.append(writer.write())
        writer = self.writers[first.number]
        buffers, runtimes = self.shared.handed(phase, writer)
        arguments = [self.places.address(b) for b in buffers]
        arguments += [f.integer(p.value, Binds.CHOICE) for p in phase.parameters]
        arguments += [f.runtime(s) for s in runtimes]
        arguments += ["r->engine->library"] if writer.library else []
        f.quote(phase.place)
        f.line(f"spmd_enter(r, {self.numbers[id(phase)]});")
        indent = "    " * f.depth
        f.lines.append(wrapped(f"{indent}{first.name}(", arguments or [""], ");", indent + "    "))

    def exchange(self, x: Exchange) -> None:
        begins = self.alike.begins.get(x.site)
        if begins is None:
            self.exchanges.append(exchange_functions(x, self.plan.mesh, self.places,
                                                     self.alike.boxes.get(x.site, {})))
        self.cases += 1
        self.f.quote(x.place)
        self.f.line(f"spmd_enter(r, {self.numbers[id(x)]});")
        if x.shifts or x.swaps:
            self.without_copy(x)
        self.f.line(begins or f"exchange_{x.site}(r);")
        self.resume(self.cases)
        self.f.line("if (!r->engine->exchange(r)) return SPMD_WAITS;")
        if x.shifts or x.swaps:
            self.f.close()

    def without_copy(self, x: Exchange) -> None:
        """Open the branch for a group of a single member, which need not copy; the branch for
        several members follows."""
        assert x.pull_from is not None and x.pull_into is not None
        into, f = self.places.number(x.pull_into.buffer), self.f
        f.open(f"if ({f.integer(self.plan.mesh.size(x.axes), Binds.SUM)} == 1) {{")
        if x.swaps:
            f.line(f"spmd_swap(r, {self.places.number(x.pull_from.buffer)}, {into});")
        else:
            f.line("spmd_box from, into;")
            f.line(f"pull_{x.site}(r, 0, &from, &into);")
            f.line(f"r->buffer[{into}] += from.offset - into.offset;")
        f.close()
        f.open("else {")

    # ---- feeds -----------------------------------------------------------------------------------

    def handing(self, step: Take | More | Send, call: str) -> None:
        self.waiting(step, f'feed "{step.feed}": ', call)

    def waiting(self, step: Take | More | Send | Save, title: str, call: str) -> None:
        """Write a call of the engine that is repeated, each time the rank resumes, until it
        succeeds."""
        self.cases += 1
        self.f.quote(step.place, title)
        self.f.line(f"spmd_enter(r, {self.numbers[id(step)]});")
        self.resume(self.cases)
        self.f.line(f"if (!r->engine->{call}) return SPMD_WAITS;")

    def more(self, step: More) -> None:
        self.f.open("{")
        self.f.line("int64_t more;")
        self.handing(step, f"more(r, {self.feeds[step.feed]}, &more)")
        into = f"*({step.into.dtype.c} *){self.places.address(step.into)}"
        self.f.line(f"{into} = more != 0;")
        self.f.close()

    def point(self, point: Point, loop: Loop) -> None:
        """Write the start of a loop's iteration, where a run may resume from a checkpoint: it
        resumes only if the iteration before the checkpoint's counter is one of the loop with its
        present bounds."""
        counter = "NULL" if point.counter is None else f"&{self.f.integer(point.counter)}"
        self.cases += 1
        self.f.quote(point.place, "a turn begins: ")
        self.resume(self.cases)
        number = self.points.index(point.number)
        self.f.open(f"switch (r->engine->point(r, {number}, {counter})) {{")
        self.f.line("case SPMD_HELD:")
        self.f.line("    return SPMD_WAITS;")
        self.f.line("case SPMD_AGAIN:")
        if point.counter is not None:
            self.f.line(f"    {counter[1:]} -= {self.f.integer(loop.step, Binds.CHOICE)};")
            if test := self.f.test_of(counter[1:], loop):
                self.f.line(f"    if (!({test})) {{")
                self.f.line("        r->engine->point(r, SPMD_NO_TURN, NULL);")
                self.f.line("        return SPMD_WAITS;")
                self.f.line("    }")
        self.f.line("    continue;")
        self.f.close()

    def loop(self, loop: Loop) -> None:
        self.f.quote(loop.place)
        saves = [self.saves.index(s.series) for s in _of_loop(loop.body) if isinstance(s, Save)]
        for number in saves:
            self.f.line(f"r->engine->turn(r, {number}, 1);")
        counter = None if loop.counter is None else self.places.symbol(loop.counter)
        self.f.open(f"for ({self.f.turns(counter, loop) if counter else ';;'}) {{")
        if loop.flag is not None:
            self.steps(loop.condition)
            self.f.line(f"if (!{self.f.value(loop.flag)[0]}) break;")
        body = loop.body
        if body and isinstance(body[0], Point):
            self.point(body[0], loop)
            body = body[1:]
        for number in saves:
            self.f.line(f"r->engine->turn(r, {number}, 0);")
        self.steps(body)
        for cycle in loop.rotate:
            for a, b in reversed(list(pairwise(cycle))):
                self.f.line(f"spmd_swap(r, {self.places.number(a)}, {self.places.number(b)});")
        self.f.close()

    def let(self, let: Let) -> None:
        value = self.f.load(let.value.buffer, let.value.offset)
        self.f.line(f"{self.places.symbol(let.counter)} = {value};")

    def branch(self, branch: Branch) -> None:
        on = "data" if isinstance(branch.on, Load) else "the index"
        on = "what is given" if is_asked(branch.on) else on
        self.f.quote(branch.place, f"branch on {on}: ")
        for k in self.f.arms(branch):
            self.steps(branch.arms[k])

    def default(self, default: Default) -> None:
        self.f.line(f"/* default of {default.name} */")
        self.f.open(f"if (!r->world->given[{default.input}]) {{")
        self.steps(default.steps)
        self.f.close()

    # ---- texts -----------------------------------------------------------------------------------

    def print(self, step: Print) -> None:
        self.f.quote(step.place)
        self.f.open("{" if step.every_rank else "if (r->index == 0) {")
        self.f.declared.clear()
        if step.paced:
            number, total = (self.f.value(node)[0] for node in step.operands[:2])
            self.f.open(f"if ({number} == {total} || r->engine->due(r)) {{")
        self.text(step, ("rank ", ": ") if step.every_rank else ())
        self.f.line("r->engine->print(r, text, at - text);")
        self.f.close(1 + step.paced)

    def expect(self, step: Expect) -> None:
        self.f.quote(step.place)
        self.f.open("{")
        self.f.declared.clear()
        self.f.open(f"if ({prefix('!', self.f.value(step.holds))[0]}) {{")
        self.text(step)
        self.f.line(f"r->engine->fail(r, {self.numbers[id(step)]}, text, at - text);")
        self.f.line("return SPMD_WAITS;")
        self.f.close(2)

    def text(self, step: Print | Expect, around: Sequence[str] = ()) -> None:
        """Write the C that composes a step's text, from `text` to `at`. around: the C before and
        after the index."""
        self.f.line("char text[1024], *at = text;")
        self.f.line("const char *const end = text + sizeof text;")
        if around:
            self.words(around[0])
            self.f.line('spmd_print_i64(&at, end, "", r->index);')
            self.words(around[1])
        if step.parts == ("",) and not around:
            self.f.line("(void)end;")  # an empty line
        for k, part in enumerate(step.parts):
            if k % 2 == 0:
                self.words(part)
            else:
                node = step.operands[k // 2]
                value = self.f.value(node)[0]
                self.f.line(_print_call(dtype_of(node), c_string(part), value))

    def words(self, text: str) -> None:
        for some in (text[k : k + 32] for k in range(0, len(text), 32)):  # on short lines
            self.f.line(f'spmd_print_text(&at, end, "", {c_string(some)});')


def _of_loop(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps of a loop's body, those in branches too, but not those of inner loops."""
    for step in steps:
        yield step
        if not isinstance(step, Loop):
            for inner in inner_steps(step):
                yield from _of_loop(inner)


def _switch(name: str, first: int, f: RankFunction) -> str:
    """Return a C function that resumes at r->pc; it begins with case `first`."""
    f.lines = ["    switch (r->pc) {", f"    case {first}:", *(f.lines or ["        break;"])]
    body = f"{f.body()}\n    }}\n    return SPMD_DONE;"
    return f"static int {name}(spmd_rank *r)\n{{\n{body}\n}}\n"


def c_string(text: str) -> str:
    out = "".join(
        c if 32 <= ord(c) < 127 and c not in '"\\?' else "".join(f"\\{b:03o}" for b in c.encode())
        for c in text
    )
    return f'"{out}"'


# Significant bits of floats whose text is shorter than that of the float64 that they are.
_NARROW = {"float16": 11, "bfloat16": 8, "float32": 24, "complex64": 24}


def _print_call(dtype: DType, spec: str, value: str) -> str:
    parts = [f"creal({value})", f"cimag({value})"] if dtype.kind == "c" else [value]
    if bits := _NARROW.get(dtype.name):
        parts = [f"spmd_short({spec}, (double)({part}), {bits})" for part in parts]
    kind = {"b": "bool", "i": "i64", "u": "u64", "f": "f64", "c": "c128"}[dtype.kind]
    return f"spmd_print_{kind}(&at, end, {spec}, {', '.join(parts)});"

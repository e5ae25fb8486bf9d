"""The control program: one resumable state machine per rank, and what its exchanges name.

Goes in: a Plan. Comes out: C of step(), of every exchange, and of what is evaluated at load.
step() runs until the rank must wait, returns, and resumes at rank->pc (a switch whose cases stand
in the middle of loops); where it is long it is cut into functions that do the same, each for a
range of cases. Branches on the index stand here; phases never see the index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from codegen.dtypes import DType
from codegen.emit.cutting import NOINLINE, Cuts
from codegen.emit.lines import comment, source, wrapped
from codegen.emit.operators import prefix
from codegen.emit.phases import PhaseWriter
from codegen.emit.spell import NodeWriter, abstract, c_expr, identifier
from codegen.errors import Place
from codegen.mesh import Mesh
from codegen.plan.grammar import (
    Box,
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    Let,
    Load,
    Loop,
    Phase,
    Plan,
    Print,
    Runtime,
    Step,
)  # fmt: skip
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.spelling import Binds, Text, within


class ControlWriter:
    """Spells the control program of one Plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.at_load: dict[str, tuple[Expr, str]] = {}  # by key: what, and the name of its entry
        self.entries: dict[str, str] = {}  # the symbol of an entry, and its place in the table
        self.taken: set[str] = set()  # names of entries
        self.hint = "value"  # what the next entry is for
        self.used: dict[str, Sym] = {}  # by the names of their variables
        self.in_step = True  # where counters move, and cannot be copied to locals
        self.phases: list[str] = []
        self.exchanges: list[str] = []
        self.parts: list[str] = []  # of step()
        self.cuts = Cuts(plan.steps)
        self.fold_names: dict[tuple[str, DType], str] = {}
        self.operations: list[tuple[str, Step]] = []
        self.counters: dict[Sym, int] = {}
        self.out: list[str] = []
        self.quoted: Place | None = None  # the source line of what was written last
        self.depth = 2  # inside step() and its switch
        self.cases = 0
        self.scalars = {s.name: k for k, s in enumerate(plan.scalars)}
        self.node = NodeWriter(self.load, self.symbolic, self.runtime)
        self._names = _buffer_names(plan)

    def write(self) -> str:
        """step() and its parts; the phases and exchanges they need are in self.phases and
        self.exchanges."""
        self.steps(self.plan.steps)
        return "\n".join([*self.parts, self.function("step", 0, self.out)])

    def function(self, name: str, first: int, lines: Sequence[str]) -> str:
        """A function that goes on at r->pc, where it begins: first."""
        head = ["    switch (r->pc) {", f"    case {first}:"]
        body = "\n".join(self.with_locals([*head, *(lines or ["        break;"])]))
        return (
            f"static int {name}(spmd_rank *r)\n{{\n{body}\n    }}\n    return SPMD_DONE;\n}}\n"
        )

    # ---- names -----------------------------------------------------------------------------------

    def buffer_name(self, buffer: Buffer) -> str:
        return self._names[id(buffer)]

    def address(self, buffer: Buffer) -> str:
        if buffer.data is not None:
            return f"CONSTANT({buffer.number})"
        return f"AT(r, B_{self.buffer_name(buffer)})"

    def symbol(self, s: Sym) -> str:
        """Where a rank finds the value of a symbol."""
        for axis in self.plan.mesh.axes:
            if s == axis.coord_sym:
                return f"r->coord[AXIS_{axis.name}]"
            if s == axis.size_sym:
                return f"r->world->size[AXIS_{axis.name}]"
        if s.kind == "scalar":
            return f"r->world->scalar[SCALAR_{identifier(s.name)}]"
        if s in self.counters:
            return f"r->counter[{self.counter_name(s)}]"
        if s.name in self.entries:
            return f"r->at_load[{self.entries[s.name]}]"
        return s.name

    def counter_name(self, s: Sym) -> str:
        return f"C_{identifier(s.name)}"

    def rank_expr(self, e: Expr, least: Binds = Binds.CHOICE) -> str:
        """An Expr in control code, where something binds this tightly."""
        return within(self.symbolic(e), least)

    def symbolic(self, e: Expr) -> Text:
        """An Expr in control code: divisions that never change come from the table filled at load.

        Symbols are spelled by their own names; `with_locals` declares those a function uses.
        """
        named = sorted(e.symbols() & self.plan.named.keys(), key=lambda s: s.name)
        e = e.subst({s: self.entry(self.plan.named[s], s.name) for s in named})
        moving = frozenset(s for s in e.symbols() if s.kind in ("counter", "var"))
        e = abstract(e, moving, self.constant_part)
        names = {s: local_name(s) for s in e.symbols()}
        if self.in_step:
            names.update({s: self.symbol(s) for s in e.symbols() if s.kind == "counter"})
        self.used.update((local_name(s), s) for s in e.symbols())
        return c_expr(e, names)

    def constant_part(self, e: Expr) -> Expr:
        """What stays while the program runs: an entry of the table if it needs a division."""
        calls = [a for a in e.atoms() if not isinstance(a, Sym)]
        if not calls:
            return e
        if len(calls) > 1:
            return self.entry(e)
        one = Expr((((calls[0],), 1),))
        stands_for = self.entry(one)
        total = expr.const(0)
        for monomial, coefficient in e.terms:
            product = expr.const(coefficient)
            for atom in monomial:
                product = product * (stands_for if atom == calls[0] else Expr((((atom,), 1),)))
            total = total + product
        return total

    def entry(self, e: Expr, hint: str = "") -> Expr:
        """An entry of the table filled at load, as a symbol."""
        if e.key not in self.at_load:
            base = entry_name(e) or hint or self.hint
            name, count = base, 1
            while name in self.taken:
                count += 1
                name = f"{base}_{count}"
            self.taken.add(name)
            self.at_load[e.key] = (e, name)
            self.entries[f"x_{name}"] = f"X_{name}"
        return expr.symbol(Sym(f"x_{self.at_load[e.key][1]}", "size"))

    def with_locals(self, lines: Sequence[str], indent: str = "    ") -> list[str]:
        """Declarations of the symbols that some lines of a function use, then the lines."""
        text = re.sub(r"/\*.*?\*/", "", "\n".join(lines), flags=re.DOTALL)  # comments quote source
        words = set(re.findall(r"\w+", text))
        needed = {name: self.used[name] for name in words & self.used.keys()}
        places = [(name, self.symbol(s)) for name, s in sorted(needed.items())]
        if self.in_step:
            places = [(name, place) for name, place in places if "->counter[" not in place]
        return [*(f"{indent}const int64_t {name} = {place};" for name, place in places
                  if place != needed[name].name), *lines]  # fmt: skip

    def load(self, buffer: Buffer, offset: Expr) -> str:
        return f"(({buffer.dtype.c} *){self.address(buffer)})[{self.rank_expr(offset)}]"

    def runtime(self, node: Runtime) -> str:
        return f"spmd_scalar_f64(r, {node.number})"

    def line(self, text: str) -> None:
        self.out.append("    " * self.depth + text)

    def quote(self, place: Place | None, what: str = "") -> None:
        """The line of the source that what follows comes from, where it is another one."""
        if place and (what or self.quoted is None or self.quoted.line != place.line):
            self.out.append(comment(what + source(place), indent="    " * self.depth))
        self.quoted = place

    def operation(self, kind: str, step: Step) -> int:
        self.operations.append((kind, step))
        return len(self.operations) - 1

    # ---- steps -----------------------------------------------------------------------------------

    def steps(self, steps: Sequence[Step]) -> None:
        groups = self.cuts.groups(steps)
        for group in groups:
            if len(groups) > 1:
                self.part(group)
            else:
                for step in group:
                    _WRITE[type(step)](self, step)

    def part(self, steps: Sequence[Step]) -> None:
        """Steps in a function of their own."""
        outer, depth = self.out, self.depth
        self.out, self.depth, self.quoted = [], 2, None
        self.cases += 1
        first, name = self.cases, f"step_{self.cases}"
        self.steps(steps)
        lines, self.out, self.depth, self.quoted = self.out, outer, depth, None
        self.parts.append(NOINLINE + self.function(name, first, lines))
        self.resume(first)
        self.line(f"if ({name}(r)) return SPMD_WAITS;")

    def resume(self, first: int) -> None:
        """Where a rank goes on from this case to the last one so far."""
        self.line(f"r->pc = {first};")
        self.line("/* fall through */")
        last = f" ... {self.cases}" if self.cases > first else ""
        self.out.append("    " * max(self.depth - 1, 1) + f"case {first}{last}:")

    def phase(self, phase: Phase) -> None:
        writer = PhaseWriter(phase, self.buffer_name, self._names.values())
        self.phases.append(writer.write())
        arguments = [self.address(b) for b, _ in writer.buffers.values()]
        for e, name in writer.parameters.values():
            self.hint = f"{phase.name}_{name}"
            arguments.append(self.rank_expr(e))
        arguments += [self.runtime(s) for s in writer.runtimes.values()]
        if writer.library:
            arguments.append("r->engine->library")
        self.quote(phase.place)
        self.line(f"spmd_enter(r, {self.operation('compute', phase)});")
        indent = "    " * self.depth
        self.out.append(wrapped(f"{indent}{phase.name}(", arguments or [""], ");", indent + "    "))

    def exchange(self, x: Exchange) -> None:
        self.in_step = False
        self.exchanges.append(self.exchange_functions(x))
        self.in_step = True
        self.cases += 1
        self.quote(x.place)
        self.line(f"spmd_enter(r, {self.operation(x.kind, x)});")
        self.line(f"exchange_{x.site}(r);")
        self.resume(self.cases)
        self.line("if (!r->engine->exchange(r)) return SPMD_WAITS;")

    def loop(self, loop: Loop) -> None:
        self.quote(loop.place)
        self.line(f"for ({self.loop_head(loop)}) {{")
        self.depth += 1
        if loop.flag is not None:
            self.steps(loop.condition)
            self.line(f"if (!{self.load(loop.flag.buffer, loop.flag.offset)}) break;")
        self.steps(loop.body)
        for ring in loop.rotate:
            for a, b in reversed(list(pairwise(ring))):
                one, other = self.buffer_name(a), self.buffer_name(b)
                self.line(f"spmd_swap(r, B_{one}, B_{other});")
        self.depth -= 1
        self.line("}")

    def loop_head(self, loop: Loop) -> str:
        """start; test; advance of a loop. A while loop has none of them."""
        if loop.counter is None:
            return ";;"
        self.counters[loop.counter] = loop.slot
        self.hint = f"loop_{loop.counter.name}"
        c = f"r->counter[{self.counter_name(loop.counter)}]"
        start, step = self.rank_expr(loop.start), self.rank_expr(loop.step)
        test = ""
        if loop.stop is not None:
            stop = self.rank_expr(loop.stop, Binds.SUM)
            forward = not (loop.step.is_const and loop.step.value < 0)
            test = f"{c} {'<' if forward else '>'} {stop}"
            if not loop.step.is_const:
                by = self.rank_expr(loop.step, Binds.SUM)
                test = f"{by} > 0 ? {c} < {stop} : {by} < 0 && {c} > {stop}"
        advance = f"{c}++" if step == "1" else f"{c} += {step}"
        if loop.stop is not None and not _stays_far(loop.stop, loop.step):
            advance = f"{c} = spmd_next({c}, {step})"
        return f"{c} = {start}; {test}; {advance}"

    def let(self, let: Let) -> None:
        self.counters[let.counter] = let.slot
        value = self.load(let.value.buffer, let.value.offset)
        self.line(f"r->counter[{self.counter_name(let.counter)}] = {value};")

    def branch(self, branch: Branch) -> None:
        on = "data" if isinstance(branch.on, Load) else "the index"
        self.quote(branch.place, f"branch on {on}: ")
        last = len(branch.arms) - 1
        for k, arm in enumerate(branch.arms):
            test = f"if ({self.chooses(branch, k)}) {{" if k < last else "{"
            self.line(f"}} else {test}" if k else test)
            self.depth += 1
            self.steps(arm)
            self.depth -= 1
        self.line("}")

    def chooses(self, branch: Branch, arm: int) -> str:
        """Whether this is the arm: the first one for all numbers up to 0."""
        if isinstance(branch.on, Load):
            on = self.load(branch.on.buffer, branch.on.offset)
            if branch.on.buffer.dtype.kind == "b":
                return on if arm else f"!{on}"
            return f"{on} {'==' if arm else '<='} {arm}"
        self.hint = "branch"
        return self.rank_expr(expr.eq(branch.on, arm) if arm else expr.le(branch.on, 0))

    def default(self, default: Default) -> None:
        self.line(f"/* default of {default.name} */")
        self.line(f"if (!r->world->given[{default.input}]) {{")
        self.depth += 1
        self.steps(default.steps)
        self.depth -= 1
        self.line("}")

    def print(self, step: Print) -> None:
        self.quote(step.place)
        self.line("{" if step.every_rank else "if (r->index == 0) {")
        self.depth += 1
        prefix = ("rank ", ": ") if step.every_rank else ()
        self.node.begin()
        self.text(step, prefix)
        self.line("r->engine->print(r, text, at - text);")
        self.depth -= 1
        self.line("}")

    def expect(self, step: Expect) -> None:
        self.quote(step.place)
        self.line("{")
        self.depth += 1
        self.node.begin()
        fails = prefix("!", self.node.operand(step.holds))
        self.declare()
        self.line(f"if ({fails[0]}) {{")
        self.depth += 1
        self.text(step)
        operation = self.operation("expect", step)
        self.line(f"r->engine->fail(r, {operation}, text, at - text);")
        self.line("return SPMD_WAITS;")
        for _ in range(2):
            self.depth -= 1
            self.line("}")

    def declare(self) -> None:
        """Write what an expression needs before it."""
        for declaration in self.node.lines:
            self.line(declaration)
        self.node.lines = []

    def text(self, step: Print | Expect, prefix: Sequence[str] = ()) -> None:
        """The text of a step, from `text` to `at`. prefix: around the index."""
        self.line("char text[1024], *at = text;")
        self.line("const char *const end = text + sizeof text;")
        if prefix:
            self.line(f'spmd_print_text(&at, end, "", {c_string(prefix[0])});')
            self.line('spmd_print_i64(&at, end, "", r->index);')
            self.line(f'spmd_print_text(&at, end, "", {c_string(prefix[1])});')
        for k, part in enumerate(step.parts):
            if k % 2 == 0:
                for some in (part[k : k + 32] for k in range(0, len(part), 32)):  # on short lines
                    self.line(f'spmd_print_text(&at, end, "", {c_string(some)});')
                continue
            node = step.operands[k // 2]
            dtype = node.buffer.dtype if isinstance(node, Load) else node.dtype
            value = self.node.text(node)
            self.declare()
            self.line(_print_call(dtype, c_string(part), value))

    # ---- exchanges -------------------------------------------------------------------------------

    def exchange_functions(self, x: Exchange) -> str:
        """exchange_K fills rank->exchange; pull_K and send_K name the regions."""
        place = [source(x.place)] if x.place else []
        out: list[str] = []
        lines = [
            f"x->site = {x.site};",
            f"x->kind = {_kind(x)};",
            f"x->size = {x.dtype.size if x.dtype else 0};",
            *self.members(x),
        ]
        if x.dest is not None:
            lines += self.peers(x)
        lines += self.flow(x)
        if x.pull_from is not None and x.pull_into is not None and x.send is not None:
            pull = self.region_function(f"pull_{x.site}", x, (x.pull_from, x.pull_into))
            send = self.region_function(f"send_{x.site}", x, (x.send,))
            asked, taken = f"exchange {x.site}, asked by the engine", "fold" if x.fn else "copy"
            out += [
                comment(f"{asked}: what I {taken} from `member`, and into what", *place), pull,
                comment(f"{asked}: what is for `member` to {taken} from me", *place), send,
            ]  # fmt: skip
            lines += [f"x->pull = pull_{x.site};", f"x->send = send_{x.site};"]
        if x.give_into is not None and x.send is not None:
            give = self.region_function(f"give_{x.site}", x, (x.send, x.give_into))
            asked = f"exchange {x.site}, asked by the engine"
            out += [comment(f"{asked}: what of mine may be written to `member`", *place), give]
        lines.append(f"x->give = {f'give_{x.site}' if x.give_into is not None else '0'};")
        lines.append(f"x->fold = {self.fold_of(x)};")
        lines.append("r->stage = 0;")
        lines = ["    " + ln for ln in ["spmd_exchange *const x = &r->exchange;", *lines]]
        body = "\n".join(self.with_locals(lines))
        over = f"{x.kind} over {', '.join(x.axes)}"
        out.append(comment(f"exchange {x.site}, begun by step(): {over}", *place))
        out.append(f"static void exchange_{x.site}(spmd_rank *r)\n{{\n{body}\n}}\n")
        return "\n".join(out)

    def members(self, x: Exchange) -> Iterator[str]:
        """How many members, which I am, where the others are: index = first + sum of strides."""
        mesh = self.plan.mesh
        self.hint = f"exchange_{x.site}_members"
        yield f"x->members = {self.rank_expr(mesh.size(x.axes))};"
        self.hint = f"exchange_{x.site}_position"
        yield f"x->position = {self.rank_expr(mesh.position(x.axes))};"
        first = mesh.index.subst({mesh.axis(a).coord_sym: 0 for a in x.axes})
        self.hint = f"exchange_{x.site}_first"
        yield f"x->first = {self.rank_expr(first)};"
        self.hint = f"exchange_{x.site}_stride"
        counts = [mesh.axis(a).size for a in x.axes] + [expr.const(1)] * (3 - len(x.axes))
        strides = [index_stride(mesh, a) for a in x.axes] + [expr.const(0)] * (3 - len(x.axes))
        for name, values in (("count", counts), ("stride", strides)):
            texts = (f"x->{name}[{k}] = {self.rank_expr(e)}" for k, e in enumerate(values))
            yield ", ".join(texts) + ";"

    def peers(self, x: Exchange) -> Iterator[str]:
        if x.source is None or x.receives is None:
            yield "x->source = SPMD_UNKNOWN;"
        else:
            self.hint = f"exchange_{x.site}_source"
            yield f"x->source = {self.chosen(x.receives, x.source)};"
        self.hint = f"exchange_{x.site}_dest"
        assert x.dest is not None and x.sends is not None
        yield f"x->dest = {self.chosen(x.sends, x.dest)};"

    def flow(self, x: Exchange) -> Iterator[str]:
        """Which members I read, and whether each reads something else of me."""
        yield f"x->flow = SPMD_{x.flow.upper()};"
        yield f"x->pieces = {int(x.pieces)};"
        yield f"x->constant = {int(x.constant)};"
        self.hint = f"exchange_{x.site}_wraps"
        yield f"x->wraps = {self.rank_expr(x.wraps)};"
        if x.root is not None:
            self.hint = f"exchange_{x.site}_root"
            yield f"x->root = {self.rank_expr(x.root)};"
        all_of_one = (expr.const(0), expr.const(1))  # along axes that the group does not have
        for k in range(3 if x.near else 0):
            self.hint = f"exchange_{x.site}_near"
            ranges = x.near[k] if k < len(x.near) else all_of_one * 2
            begin, end, first, last = (self.rank_expr(e) for e in ranges)
            yield f"x->sources[{k}] = (spmd_range){{{begin}, {end}}};"
            yield f"x->readers[{k}] = (spmd_range){{{first}, {last}}};"

    def chosen(self, guard: Expr, peer: Expr) -> str:
        if guard.is_const:
            return self.rank_expr(peer) if guard.value else "SPMD_NONE"
        test, value = self.rank_expr(guard, Binds.OR), self.rank_expr(peer, Binds.COMPARE)
        return f"{test} ? {value} : SPMD_NONE"

    def region_function(self, name: str, x: Exchange, boxes: Sequence[Box]) -> str:
        used = any(x.member in box.symbols() for box in boxes)
        lines: list[str] = []
        for named, formula in {s: e for box in boxes for s, e in box.names}.items():
            self.hint = named.name
            lines.append(f"const int64_t {named.name} = {self.rank_expr(formula)};")
        for target, box in zip(("from", "into"), boxes, strict=False):
            size = box.buffer.dtype.size
            self.hint = f"{name}_{target}"
            where = f"r->buffer[B_{self.buffer_name(box.buffer)}]"
            offset = self.rank_expr(box.offset * size, Binds.SUM)
            lines.append(
                f"{target}->offset = {where}" + (f" + {offset}" if offset != "0" else "") + ";"
            )
            extents = box.extent or (expr.const(1),)
            strides = box.stride or (expr.const(1),)
            lines.append(f"{target}->dims = {len(extents)};")
            for d, (e, s) in enumerate(zip(extents, strides, strict=True)):
                s = expr.const(1) if s == 0 and d == len(extents) - 1 else s
                same = target == "into" and boxes[0].extent[d : d + 1] == (e,) and not e.is_const
                extent = f"from->extent[{d}]" if same else self.rank_expr(e)
                lines.append(f"{target}->extent[{d}] = {extent};")
                lines.append(f"{target}->stride[{d}] = {self.rank_expr(s * size)};")
        if x.wraps != 1:
            lines.insert(0, "const int64_t wrap = member / r->exchange.members;")
            lines.insert(1, "member %= r->exchange.members;")
        elif not used:
            lines.insert(0, "(void)member;")
        if not any("r->" in ln for ln in lines):
            lines.insert(0, "(void)r;")
        into = ", spmd_box *into" if len(boxes) == 2 else ""
        lines = self.with_locals(["    " + ln for ln in lines])
        head = f"static void {name}(const spmd_rank *r, int64_t member, spmd_box *from{into})"
        return head + "\n{\n" + "\n".join(lines) + "\n}\n"

    def fold_of(self, x: Exchange) -> str:
        if not x.fn or x.dtype is None:
            return "0"
        name = f"{x.fn}_{x.dtype.name}"
        self.fold_names[(x.fn, x.dtype)] = name
        return f"fold_{name}[r->engine->vectors]"


def _kind(x: Exchange) -> str:
    """What the engine calls it."""
    if not x.boxes:
        return "SPMD_BARRIER"
    if x.fn:
        return "SPMD_REDUCE_SCATTER" if x.pieces else "SPMD_REDUCE"
    return "SPMD_PULL" if x.dest is None else "SPMD_PERMUTE"


_WRITE: dict[type, Callable[[ControlWriter, Any], None]] = {
    Phase: ControlWriter.phase,
    Exchange: ControlWriter.exchange,
    Loop: ControlWriter.loop,
    Let: ControlWriter.let,
    Branch: ControlWriter.branch,
    Default: ControlWriter.default,
    Print: ControlWriter.print,
    Expect: ControlWriter.expect,
}


def local_name(s: Sym) -> str:
    """The C variable that holds a symbol inside a function."""
    return s.name if s.kind == "var" else identifier(s.name)


_OPERATORS = {"floordiv": "div", "mod": "mod"}


def entry_name(e: Expr) -> str:
    """A name that says what the entry is, for a short division: 10 // n_x is 10_div_n_x."""
    if len(e.terms) != 1 or len(e.terms[0][0]) != 1 or e.terms[0][1] != 1:
        return ""
    call = e.terms[0][0][0]
    if isinstance(call, Sym) or call.op not in _OPERATORS:
        return ""
    text = f"{call.args[0]} {_OPERATORS[call.op]} {call.args[1]}"
    text = text.replace(" - ", " minus ").replace(" + ", " plus ").replace(" * ", " times ")
    return text.replace(" ", "_") if re.fullmatch(r"[\w ]{1,48}", text) else ""


def index_stride(mesh: Mesh, axis: str) -> Expr:
    """How far the index moves when the coordinate along an axis grows by one."""
    names = list(mesh.names)
    return expr.product(mesh.axis(n).size for n in names[names.index(axis) + 1 :])


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
    if dtype.kind == "c":
        return f"spmd_print_c128(&at, end, {spec}, {', '.join(parts)});"
    kind = {"b": "bool", "i": "i64", "u": "u64", "f": "f64"}[dtype.kind]
    if dtype.kind == "f":
        value = parts[0]
    return f"spmd_print_{kind}(&at, end, {spec}, {value});"


def _buffer_names(plan: Plan) -> dict[int, str]:
    """One identifier per buffer and constant."""
    taken: set[str] = set()
    names: dict[int, str] = {}
    for buffer in (*plan.buffers, *plan.constants):
        name = base = identifier(buffer.name)
        count = 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        names[id(buffer)] = name
    return names


def _stays_far(stop: Expr, step: Expr) -> bool:
    """Whether a counter that passes its stop by less than a step is an int64 for sure."""
    far = stop.is_const and step.is_const and abs(stop.value) + abs(step.value) < 2**62
    return far or step in (1, -1)

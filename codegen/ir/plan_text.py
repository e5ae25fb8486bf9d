"""Loops and Plans as text: memory, then steps; golden tests compare it and `show` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from codegen.ir.graph import Op, Region, Value
from codegen.ir.graph_text import EntryText, ValueNames
from codegen.ir.loops import Do, Loops
from codegen.ir.overlays import overlays
from codegen.ir.plan import (
    Apply,
    Array,
    Box,
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    Integer,
    KernelCall,
    Lane,
    Let,
    LibraryCall,
    Literal,
    Load,
    LocalRead,
    LocalValue,
    Loop,
    More,
    Nest,
    Node,
    Phase,
    Plan,
    Point,
    Print,
    Reduce,
    Runtime,
    Save,
    Send,
    Simple,
    Step,
    Store,
    Take,
    Var,
    Work,
    WorkBranch,
    WorkLoop,
)
from codegen.ir.steps import is_asked, moved
from codegen.mesh import Mesh
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


def plan_text(plan: Plan) -> str:
    """Return the whole plan; ends with a newline."""
    lines = [f"plan {plan.name} over mesh ({_mesh(plan.mesh)})"]
    over = overlays(plan)
    for b in plan.buffers:
        lies = f" in overlay {over.of[b.number]}" if over.of[b.number] else ", sparse" * b.sparse
        lines.append(f"buffer {b.number} {b.name}: {b.dtype}[{b.capacity}]{lies}")
    lines += [f"overlay {k} in overlay {n}" for k, n in enumerate(over.around, 1) if n]
    for b in plan.constants:
        lines.append(f"constant {b.number} {b.name}: {b.dtype}[{b.capacity}]")
    lines += [f"at load {s.name} = {e}" for s, e in plan.at_load.items()]
    kept = {s.input for s in plan.states}
    lines += [f"{'state' if k in kept else 'input'} {_array(a)}" for k, a in enumerate(plan.inputs)]
    for f in plan.feeds:
        fields = ", ".join(f"{name}: {t}" for name, t in f.fields)
        lines.append(f"feed {f.name} of {fields}")
    lines += list(_steps(plan.steps, "  ", tuple(e.name for e in plan.entries)))
    new = {s.new for s in plan.states}
    lines += [f"{'new state' if k in new else 'output'} {_array(a)}"
              for k, a in enumerate(plan.outputs)]
    lines += [f"library {k} {r.name} of {r.source}" for k, r in enumerate(plan.libraries)]
    return "\n".join(lines) + "\n"


def loops_text(loops: Loops) -> str:
    """Yield the text of Loops, which ends with a newline. A value is called as its memory would
    be."""
    module, names = loops.module, ValueNames(str)
    memory: dict[Value, Buffer] = {}

    def of(value: Value) -> Buffer:
        if value not in memory:
            memory[value] = Buffer(0, names(value)[1:], value.type.dtype, expr.const(0))
        return memory[value]

    def called(value: Value) -> str:
        return f"{of(value).name}: {names.type(value.type)}"

    def region(r: Region, indent: str) -> Iterator[str]:
        for op in r.ops:
            yield f"{indent}{head(op)}" + (f"  # line {op.place.line}" if op.place else "")
            if isinstance(op.kind, Do):
                yield from (f"{indent}  {of(v).name} begins as {of(x).name}"
                            for x, v in op.kind.begins)
                yield from (f"{indent}  meanwhile {called(v)}" for v in op.kind.scratch)
                for act in op.kind.acts:
                    if isinstance(act, Exchange | Print | Expect | Point | Take | More | Send
                                  | Save):
                        yield from _steps([moved(act, of)], f"{indent}  ")
                    else:
                        yield from _work(moved(act, of), f"{indent}  ")
            for k, inner in enumerate(op.regions):
                yield f"{indent}  region {k} ({', '.join(map(called, inner.args))}):"
                yield from region(inner, f"{indent}    ")
                yield f"{indent}    yield {', '.join(of(v).name for v in inner.results)}".rstrip()

    def head(op: Op) -> str:
        results = ", ".join(map(called, op.results))
        operands = ", ".join(of(v).name for v in op.operands)
        source = f"from {operands}" if operands else ""
        return " ".join(filter(None, (op.kind.name, results, source)))

    def body() -> Iterator[str]:
        if module.entry_branch is None:
            yield from region(module.body, "  ")
            return
        yield from region(module.body.with_ops(module.body.ops[:-1]), "  ")
        for shown in (EntryText(module, number) for number in range(len(module.entries))):
            yield f"  {shown.head}"
            yield from region(shown.body, "    ")
            yield from (f"    {field} is {of(v).name}" for field, v in shown.gives.items())

    lines = [f"loops {module.name} over mesh ({_mesh(module.mesh)})"]
    lines += [f"constant {called(v)}" for v in loops.constants]
    states = {module.inputs[s.input] for s in module.states}
    for i in module.inputs:
        lines.append(f"{'state' if i in states else 'input'} {called(i.value)}")
        if i.default is not None:
            lines += [*region(i.default, "    "), f"    yield {of(i.default.results[0]).name}"]
    lines += list(body())
    lines += [f"output {o.name} is {of(o.value).name}" for o in module.outputs
              if not module.entries]
    return "\n".join(lines) + "\n"


def _mesh(mesh: Mesh) -> str:
    return ", ".join(a.name if a.fixed is None else f"{a.name}={a.fixed}" for a in mesh.axes)


def _array(a: Array) -> str:
    part = ", ".join(f"{offset}:+{extent}" for offset, extent in a.part)
    return f"{a.name} in buffer {a.buffer.number}" + (f", a rank's part [{part}]" if part else "")


def _steps(steps: Sequence[Step], indent: str, entries: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of steps. entries: names of the arms of the last step."""
    for step in steps:
        place = getattr(step, "place", None)
        where = f"  # line {place.line}" if place else ""
        if isinstance(step, Phase):
            handed = ", ".join(f"{p.sym.name} = {p.formula}" for p in step.parameters
                               if p.sym.name != str(p.formula))
            yield f"{indent}compute {step.name}{f' with {handed}' if handed else ''}{where}"
            for work in step.work:
                yield from _work(work, indent + "  ")
        elif isinstance(step, Exchange):
            yield f"{indent}exchange {step.site} {_exchange(step)}{where}"
        elif isinstance(step, Loop):
            stop = "" if step.stop is None else f" to {step.stop}"
            name = step.counter.name if step.counter is not None else ""
            count = f" {name} from {step.start}{stop} step {step.step}"
            yield f"{indent}loop{count if step.counter is not None else ''}{where}"
            if step.flag is not None:
                yield f"{indent}  while {node_text(step.flag)}:"
                yield from _steps(step.condition, indent + "    ")
            yield from _steps(step.body, indent + "  ")
            for cycle in step.rotate:
                yield f"{indent}  rotate {' to '.join(b.name for b in (*cycle, cycle[0]))}"
        elif isinstance(step, Let):
            yield f"{indent}let {step.counter.name} be {node_text(step.value)}{where}"
        elif isinstance(step, Branch) and entries and step is steps[-1]:
            for entry, arm in zip(entries, step.arms, strict=True):
                yield f"{indent}entry {entry}"
                yield from _steps(arm, f"{indent}  ")
        elif isinstance(step, Branch):
            yield f"{indent}branch on {_on(step.on)}{where}"
            for k, arm in enumerate(step.arms):
                yield f"{indent}  arm {k}"
                yield from _steps(arm, indent + "    ")
        elif isinstance(step, Default):
            yield f"{indent}default of input {step.name}"
            yield from _steps(step.steps, indent + "  ")
        elif isinstance(step, Print):
            who = "every rank" if step.every_rank else "index 0"
            yield f"{indent}print by {who}: {'{}'.join(step.parts[::2])!r}{where}"
        elif isinstance(step, Expect):
            text = "{}".join(step.parts[::2])
            yield f"{indent}expect {node_text(step.holds)}, else {text!r}{where}"
        elif isinstance(step, Point):
            carried = ", ".join(b.name for b in step.carried)
            yield f"{indent}point {step.number} of {carried}{where}"
        elif isinstance(step, Take):
            into = ", ".join(b.name for b in step.into)
            yield f"{indent}take {into} from feed {step.feed}{where}"
        elif isinstance(step, More):
            yield f"{indent}ask feed {step.feed} for more, into {step.into.name}{where}"
        elif isinstance(step, Send):
            names = ", ".join(b.name for b in step.values)
            yield f"{indent}send {names} to feed {step.feed}{where}"
        elif isinstance(step, Save):
            yield f"{indent}save {step.values[0].name} as {step.series}, every {step.every}{where}"


def _work(work: Work, indent: str) -> Iterator[str]:
    if isinstance(work, WorkLoop):
        where = f"  # line {work.place.line}" if work.place else ""
        yield (f"{indent}for {work.sym.name} from {work.start} to {work.stop} "
               f"step {work.step}{where}")
        for inner in work.body:
            yield from _work(inner, indent + "  ")
        return
    if isinstance(work, WorkBranch):
        yield f"{indent}branch on {_on(work.on)}"
        for k, arm in enumerate(work.arms):
            yield f"{indent}  arm {k}"
            for inner in arm:
                yield from _work(inner, indent + "    ")
        return
    if not isinstance(work, Nest):
        yield indent + work_text(work)
        return
    yield f"{indent}nest{_loops(work.loops)}"
    for sweep in work.sweeps:
        yield f"{indent}  sweep{_loops(sweep.loops)}{', vectorised' if sweep.simd else ''}"
        for part in (*sweep.ahead, *sweep.parts):
            if isinstance(part, LocalValue):
                value = node_text(part.value)
                total = f" in {part.total}" if part.total not in (None, part.dtype) else ""
                computed = f"{part.fn}({value}){total}" if part.fn else value
                yield f"{indent}    {part.name} is {computed}"
            else:
                yield f"{indent}    {work_text(replace(part, loops=()))}"


def _on(on: Expr | Load) -> str:
    if isinstance(on, Load):
        return node_text(on)
    return f"what is given: {on}" if is_asked(on) else f"index: {on}"


# Which members each one reads.
_FLOWS = {
    "from_root": " from member ", "to_root": " to member ", "up_to": " up to itself",
    "before": " before itself", "near": " near itself",
}


def _exchange(x: Exchange) -> str:
    text = f"{x.kind}{'.' + x.fn if x.fn else ''} over ({', '.join(x.axes)})"
    if x.kind == "permute":
        source = "by route slot" if x.source is None else f"{x.source} if {x.receives}"
        text += f": to {x.dest} if {x.sends}, from {source}"
    if x.flow != "all":
        text += _FLOWS[x.flow] + (str(x.root) if x.root is not None else "")
    if x.wraps != 1:
        text += f", {x.wraps} wraps of each"
    for axis, (begin, end, first, last) in zip(x.axes, x.near, strict=False):
        text += f"; along {axis} reads {begin} to {end} - 1, is read by {first} to {last} - 1"
    if x.pull_from is not None and x.pull_into is not None:
        text += f"; pull {_box(x.pull_from)} into {_box(x.pull_into)}"
    if x.take is not None:
        text += f", each element by {work_text(x.take)}"
    if x.shifts:
        text += "; alone: read where it lies"
    if x.swaps:
        text += "; alone: both change places"
    return text


def _box(box: Box) -> str:
    dims = ", ".join(f"{e}:{s}" for e, s in zip(box.extent, box.stride, strict=True))
    names = ", ".join(f"{s.name} = {e}" for s, e in box.names)
    return f"{box.buffer.name}+{box.offset}[{dims}]" + (f" where {names}" if names else "")


def _loops(loops: Sequence[Var]) -> str:
    return "".join(f" for {v.sym.name} < {v.extent}" for v in loops if v.extent != 1)


def _at(buffer: Buffer, offset: Expr) -> str:
    return f"{buffer.name}[{offset}]"


def work_text(work: Simple) -> str:
    if isinstance(work, Store):
        how = "=" if work.combine == "set" else f"{work.combine}="
        tests = "".join(f" where {b.sym.name} = {node_text(b.node)}" for b in work.bounds)
        target = _at(work.buffer, work.offset)
        sifted = f"; {work.sift} looked at before" if work.sift else ""
        loops = f"{_loops(work.loops)}{_waiting(work)}{sifted}"
        return f"{target} {how} {node_text(work.value)}{tests}{loops}"
    if isinstance(work, Reduce):
        target = _at(work.buffer, work.offset)
        inner = _loops(work.inner)
        return f"{target} = {work.fn}({node_text(work.value)}{inner}){_loops(work.loops)}"
    if isinstance(work, Lane):
        value = node_text(work.value) if work.value is not None else ""
        name = f"{work.kind}{'.' + work.fn if work.fn else ''}"
        along = _loops((work.along,))
        return f"{_at(work.buffer, work.offset)} = {name}({value}{along}){_loops(work.loops)}"
    if isinstance(work, LibraryCall):
        parts = [f"{'to ' if p.writes else ''}{_at(p.buffer, p.offset)}" for p in work.parts]
        by = f" by library {', '.join(map(str, work.routines))}"
        args = ", ".join([*map(str, work.numbers), *parts])
        return f"{work.function.name}({args}){by}{_loops(work.loops)}"
    assert isinstance(work, KernelCall)
    args = ", ".join(
        (a.value.name if a.offset == 0 else _at(a.value, a.offset)) if isinstance(a.value, Buffer)
        else str(a.value) if isinstance(a.value, Expr) else node_text(a.value)
        for a in work.arguments
    )
    return f"{work.symbol}({args})"


def _waiting(work: Store) -> str:
    if work.waiting is None:
        return ""
    apart = "" if work.room == 0 else f", {work.room} apart"
    return f"; {work.rows} rows wait in {work.waiting.name}{apart}"


def node_text(node: Node) -> str:
    if isinstance(node, Literal):
        return str(node.value)
    if isinstance(node, Integer):
        return f"({node.value}{_where(node)})"
    if isinstance(node, Runtime):
        return node.name
    if isinstance(node, Load):
        return f"{node.buffer.name}[{node.offset}{_where(node)}]"
    if isinstance(node, LocalRead):
        return node.name
    assert isinstance(node, Apply)
    name = f"cast {node.dtype}" if node.fn == "cast" else node.fn
    return f"{name}({', '.join(node_text(a) for a in node.args)})"


def _where(node: Load | Integer) -> str:
    """Return the text of the positions in a node that data decides."""
    return "".join(f"; {b.sym.name} = {node_text(b.node)}" for b in node.bounds)

"""The executable specification of a Plan: runs before C is printed.

Goes in: a Plan. Comes out: the same Plan, or an InternalError that names the step.
Checks: every buffer used is in the table and its capacity knows no rank; those that change places
are alike; an exchange pulls into other memory than it reads; no two compute phases without
loops stand side by side. Finished: a phase uses what it is handed; what stays is known at load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codegen.errors import InternalError, Place
from codegen.ir.exprs import exprs
from codegen.ir.plan import (
    Branch,
    Exchange,
    Expect,
    LocalValue,
    Loop,
    More,
    Nest,
    Phase,
    Plan,
    Point,
    Print,
    Reduce,
    Save,
    Send,
    Step,
    Take,
    WorkLoop,
)
from codegen.ir.steps import (
    inner_steps,
    memory_written,
    simple_works,
    step_buffers,
    step_memory,
    walk_steps,
    walk_works,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import LAUNCH, Expr, Sym


def check_plan(plan: Plan) -> Plan:
    """Return the Plan unchanged. Raises InternalError at the first step that breaks a rule."""
    known = {id(b) for b in (*plan.buffers, *plan.constants)}
    _rule(
        [b.number for b in plan.buffers] == list(range(len(plan.buffers))),
        None,
        "buffers are numbered in order",
    )
    for b in plan.buffers:
        _rule(
            all(s.lays_out for s in b.capacity.symbols()),
            None,
            f"the capacity of buffer {b.name} mentions axis sizes and scalars only",
        )
    for step in walk_steps(plan.steps):
        place = getattr(step, "place", None)
        for buffer in step_memory(step):
            _rule(id(buffer) in known, place, f"buffer {buffer.name} is in the table")
        if isinstance(step, Loop):
            _rotations(step)
            late = any(isinstance(s, Point) for s in walk_steps(step.body[1:]))
            _rule(not late, place, "a point is the first step of a turn of an outermost loop")
        if isinstance(step, Exchange):
            near = len(step.axes) if step.flow == "near" else 0
            _rule(len(step.near) == near, place, "neighbours have a range along every axis")
            _rule(
                all(b.buffer.data is None for b in step.boxes), place,
                "members see each other's buffers, not constants",
            )
        if isinstance(step, Phase):
            written = (b for work in walk_works(step.work) for b in memory_written(work))
            _rule(all(b.data is None for b in written), place, "no constant is written")
        if isinstance(step, Exchange) and step.pull_from and step.pull_into:
            _rule(
                step.in_place == (step.pull_from.buffer is step.pull_into.buffer), place,
                "an exchange writes the buffer that its peers read only where it says so",
            )
            _rule(step.site < plan.sites, place, "every exchange has a site")
            _rule(step.take is None or _takes(step), place,
                  "what an exchange computes it writes where it pulls to, for all that is pulled")
            _rule(
                len(step.pull_from.extent) == len(step.pull_into.extent),
                place,
                "both sides of an exchange have the same dims",
            )
    arrays = [*plan.inputs, *plan.outputs, *(a for some in plan.points or () for a in some),
              *(a for some in (*plan.takes, *plan.sends) for a in some.arrays),
              *(s.array for s in plan.saves)]
    _rule(all(a.buffer.data is None for a in arrays), None,
          "what others than the program read lies in buffers")
    _feeds(plan)
    _side_by_side(plan.steps)
    return plan


def check_finished(plan: Plan) -> Plan:
    """Check a Plan after loops/schedule.py and plan/hoist_formulas.py, and return it.

    Raises InternalError at the first step that breaks a rule."""
    check_plan(plan)
    known: set[Sym] = set()
    for entry, e in plan.at_load.items():
        outside = {s for s in e.symbols() - known
                   if s in plan.at_load or s.kind not in {"coord", *LAUNCH}}
        _rule(not outside, None, f"{entry.name} follows from the index and entries before it")
        known.add(entry)
    for step in walk_steps(plan.steps):
        place = getattr(step, "place", None)
        if isinstance(step, Phase):
            handed = {p.sym for p in step.parameters}
            used = {s for e in exprs(step.work) for s in e.symbols() if s.kind != "var"}
            _rule(used == handed, place, f"{step.name} uses what it is handed, and nothing else")
            parts = [p for w in simple_works(step)
                     for p in (w.parts if isinstance(w, Nest) else (w,))]
            folds = [p for p in parts if isinstance(p, LocalValue) and p.fn]
            _rule(all(f.total for f in folds), place, "a total has a type")
            _rule(not any(isinstance(p, Reduce) for p in parts), place,
                  "a reduction is a total, or a row in memory")
        again = [c for e in _exprs(step) for c in expr.calls(e)
                 if {s.kind for s in expr.from_atom(c).symbols()} <= {"coord", *LAUNCH}]
        _rule(not again, place, "what stays while the program runs is evaluated at load")
    return plan


def _feeds(plan: Plan) -> None:
    """Check that every take, send and save step stands in the Plan's table once, in order, with its
    buffers, and that its feed is declared."""
    for kind, table in ((Take, plan.takes), (Send, plan.sends)):
        steps = [s for s in walk_steps(plan.steps) if isinstance(s, kind)]
        _rule([s.number for s in steps] == [h.number for h in table], None,
              "every take and every send stands in the table of the Plan, in order")
        for act, handed in zip(steps, table, strict=True):
            buffers = [a.buffer.number for a in handed.arrays]
            _rule(buffers == [b.number for b in step_buffers(act)], act.place,
                  "the table of the Plan has the buffers of each take and send")
            _rule(len(set(buffers)) == len(buffers) or kind is Send, act.place,
                  "the fields of a batch lie apart")
    saves = [s for s in walk_steps(plan.steps) if isinstance(s, Save)]
    _rule([(s.series, s.values[0].number) for s in saves]
          == [(s.series, s.array.buffer.number) for s in plan.saves], None,
          "every save stands in the table of the Plan, in order, with its buffer")
    known = {f.name for f in plan.feeds}
    for step in walk_steps(plan.steps):
        if isinstance(step, Take | More | Send):
            _rule(step.feed in known, step.place, f'feed "{step.feed}" is declared')


def _exprs(step: Step) -> Iterator[Expr]:
    """Yield the formulas that a rank evaluates when it reaches a step."""
    match step:
        case Phase():
            yield from (p.value for p in step.parameters)
        case Loop():
            yield from exprs((step.start, step.stop, step.step))
        case Branch():
            yield from exprs(step.on)
        case Print():
            yield from exprs(step.operands)
        case Expect():
            yield from exprs((step.holds, step.operands))
        case Exchange():
            yield from exprs(step)


def _takes(x: Exchange) -> bool:
    pulls = x.dest is None and not x.fn and x.give_into is None and x.wraps == 1
    into = x.pull_into.buffer if x.pull_into else None
    return pulls and x.take is not None and x.take.buffer is into and not x.in_place


def _rotations(loop: Loop) -> None:
    buffers = [b.number for cycle in loop.rotate for b in cycle]
    alike = all(len(cycle) > 1 and len({(b.dtype, b.capacity) for b in cycle}) == 1
                for cycle in loop.rotate)
    _rule(alike, loop.place, "buffers that change places have one dtype and one capacity")
    once = len(set(buffers)) == len(buffers)
    _rule(once, loop.place, "a buffer changes its place once as a turn ends")


def _rule(holds: bool, place: Place | None, rule: str) -> None:
    if not holds:
        raise InternalError.of_rule(rule, place)


def _loops(phase: Phase) -> bool:
    return any(isinstance(w, WorkLoop) for w in phase.work)


def _side_by_side(steps: Sequence[Step]) -> None:
    for a, b in zip(steps, steps[1:], strict=False):
        _rule(
            not all(isinstance(s, Phase) and not _loops(s) for s in (a, b)),
            getattr(b, "place", None),
            "two compute phases without loops in them do not stand side by side",
        )
    for step in steps:
        for inner in inner_steps(step):
            _side_by_side(inner)

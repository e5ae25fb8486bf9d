"""Loop-invariant code motion of index formulas: computed at load, per phase call, or inside loops.

Goes in: a Plan. Comes out: a Plan whose Work mentions its loop variables and the parameters of its
phase only, and whose other steps mention formulas with a division or a test only if these change
with a counter or a member: the rest is in `at_load`. Each array says where a rank's part lies.
Always holds: with names replaced by what they stand for, it is the Plan that went in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from math import gcd
from typing import Any, TypeVar

from codegen.ir.exprs import mapped
from codegen.ir.fresh import Fresh
from codegen.ir.names import buffer_names, identifier
from codegen.ir.plan import (
    Array,
    Box,
    Branch,
    Exchange,
    Expect,
    Loop,
    Phase,
    PhaseParameter,
    Plan,
    Print,
    Step,
    WorkLoop,
)
from codegen.ir.steps import mapped_steps, walk_works
from codegen.mesh import local_extent, local_offset, part_of_block
from codegen.symbolic import expr
from codegen.symbolic.block_laws import by_parts, written
from codegen.symbolic.expr import Call, Expr, Sym

T = TypeVar("T")

# What of an exchange is evaluated as it begins, and what that is called.
_HINTS = {"receives": "source", "source": "source", "sends": "dest", "dest": "dest",
          "wraps": "wraps", "root": "root", "near": "near"}


def hoist_formulas(plan: Plan) -> Plan:
    """Return the Plan with its formulas hoisted and its entries at load."""
    work = _Hoisting(plan)
    inputs, outputs = (tuple(map(work.array, some)) for some in (plan.inputs, plan.outputs))
    points = None if plan.points is None else tuple(
        tuple(map(work.array, carried)) for carried in plan.points)
    takes, sends = (
        tuple(replace(h, arrays=tuple(map(work.array, h.arrays))) for h in some)
        for some in (plan.takes, plan.sends))
    saves = tuple(replace(s, array=work.array(s.array)) for s in plan.saves)
    steps = mapped_steps(plan.steps, work.step)
    at_load = {s: e for e, s in work.entries.items()}
    return replace(plan, inputs=inputs, outputs=outputs, steps=steps, named={}, at_load=at_load,
                   points=points, takes=takes, sends=sends, saves=saves)


class _Hoisting:
    """Moves formulas into load-time entries and phase parameters; `entries` maps them to their
    symbols."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.entries: dict[Expr, Sym] = {}
        self.names = Fresh()  # of entries
        self.buffers = buffer_names(plan).values()

    # ---- steps and arrays ------------------------------------------------------------------------

    def array(self, a: Array) -> Array:
        name, mesh, part = identifier(a.name), self.plan.mesh, []
        for d, (extent, entry) in enumerate(zip(a.shape, a.layout, strict=True)):
            offset, extent = local_offset(mesh, extent, entry), local_extent(mesh, extent, entry)
            offset = self.once(offset, f"{name}_offset_{d}")
            part.append((offset, self.once(extent, f"{name}_extent_{d}")))
        room = tuple((self.once(own, f"{name}_before_{d}"), self.once(around, f"{name}_around_{d}"))
                     for d, (own, around) in enumerate(a.room))
        return replace(a, part=tuple(part), room=room)

    def step(self, step: Step) -> Step:
        match step:
            case Phase():
                return self.phase(step)
            case Exchange():
                return self.exchange(step)
            case Loop(counter=Sym() as counter):
                ends = (step.start, step.step, step.stop)
                start, by, stop = self.inside(ends, f"loop_{counter.name}")
                return replace(step, start=start, stop=stop, step=by)
            case Branch(on=Expr() as on):
                return replace(step, on=self.once(on, "branch"))
            case Print():
                return replace(step, operands=self.inside(step.operands, "value"))
            case Expect():
                holds, operands = self.inside((step.holds, step.operands), "value")
                return replace(step, holds=holds, operands=operands)
        return step

    def phase(self, phase: Phase) -> Phase:
        turns = [w.sym.name for w in walk_works(phase.work) if isinstance(w, WorkLoop)]
        inside = _Inside((*self.buffers, *turns), bool(turns))
        work = mapped(phase.work, inside)
        parameters = tuple(
            PhaseParameter(sym, e, self.once(e, f"{phase.name}_{sym.name}"))
            for e, sym in inside.parameters.items()
        )
        return replace(phase, work=work, parameters=parameters)

    def exchange(self, x: Exchange) -> Exchange:
        changes: dict[str, Any] = {
            name: self.inside(getattr(x, name), f"exchange_{x.site}_{hint}")
            for name, hint in _HINTS.items()
        }
        if x.pull_from is not None and x.pull_into is not None and x.send is not None:
            pull = self.boxes(f"pull_{x.site}", x.pull_from, x.pull_into)
            changes |= {"pull_from": pull[0], "pull_into": pull[1]}
            changes["send"] = self.boxes(f"send_{x.site}", x.send)[0]
        if x.give_into is not None and x.send is not None:
            changes["give_into"] = self.boxes(f"give_{x.site}", x.send, x.give_into)[1]
        return replace(x, **changes)

    def boxes(self, name: str, *boxes: Box) -> list[Box]:
        """Hoist the formulas of boxes that one function of the image evaluates, bound names first;
        return the boxes with what stands for the formulas."""
        names = {s: e for box in boxes for s, e in box.names}
        names = {s: self.once(e, s.name) for s, e in names.items()}
        hoisted = []
        for target, box in zip(("from", "into"), boxes, strict=False):
            inner = self.inside(replace(box, names=()), f"{name}_{target}")
            hoisted.append(replace(inner, names=tuple((s, names[s]) for s, _ in box.names)))
        return hoisted

    # ---- entries of the table at load ------------------------------------------------------------

    def inside(self, x: T, hint: str) -> T:
        """Return any structure (a step, a box, a tuple) with all formulas in it hoisted."""
        return mapped(x, lambda e: self.once(e, hint))

    def once(self, e: Expr, hint: str) -> Expr:
        """Return a formula with entries of the load-time table for its parts that stay the same
        during a run. `hint` names these entries."""
        named = sorted(e.symbols() & self.plan.named.keys(), key=lambda s: s.name)
        e = e.subst({s: self.entry(self.plan.named[s], s.name) for s in named})
        return _split(e, ("flag", "counter", "var"), lambda part: self.staying(part, hint))

    def staying(self, e: Expr, hint: str) -> Expr:
        """Return a load-time entry for a formula with a division or a test, else the formula. If
        there is just one such call, only the call becomes an entry, so that other formulas share
        it."""
        calls = [a for a in e.atoms() if isinstance(a, Call)]
        if len(calls) != 1:
            return self.entry(e, hint) if calls else e
        once = self.entry(expr.from_atom(calls[0]), hint)
        total = expr.const(0)
        for monomial, coefficient in e.terms:
            product = expr.const(coefficient)
            for atom in monomial:
                product = product * (once if atom == calls[0] else expr.from_atom(atom))
            total = total + product
        return total

    def entry(self, e: Expr, hint: str) -> Expr:
        if e not in self.entries:
            name = self.names.name(_short_name(e) or hint)
            self.entries[e] = Sym(f"x_{name}", "size")
        return expr.symbol(self.entries[e])


class _Inside:
    """Rewrites the formulas of a phase to use parameters. `parameters` maps what is computed
    outside to its symbol; `in_turn` says that the phase has a loop whose turns may read what
    earlier turns wrote."""

    def __init__(self, taken: Collection[str], in_turn: bool) -> None:
        self.in_turn = in_turn
        self.parameters: dict[Expr, Sym] = {}
        self.names = Fresh(taken)

    def __call__(self, e: Expr) -> Expr:
        return _split(e, ("var",), self.parameter)

    def parameter(self, e: Expr) -> Expr:
        """Return a formula over a phase parameter. `2 * extent` is computed in the phase from
        `extent`, so that a phase needs few parameters; a longer sum is a parameter, as it may be
        multiplied by a loop variable."""
        name, unit, times, plus = _obvious_name(e), e, 1, 0
        if not name:
            unit, times, plus = _unit(e)
            name = _obvious_name(unit)
        if not name or (plus and name == "extent"):
            name, unit, times, plus = f"e{len(self.parameters)}", e, 1, 0
        if self.in_turn and name == f"e{len(self.parameters)}":  # C sees what is a step apart
            for known, sym in self.parameters.items():
                if (e - known).is_const:
                    return expr.symbol(sym) + (e - known)
        if unit not in self.parameters:
            self.parameters[unit] = Sym(self.names.name(name), "size")
        return expr.symbol(self.parameters[unit]) * times + plus


def _split(e: Expr, moving: tuple[str, ...], outside: Callable[[Expr], Expr]) -> Expr:
    """Return `e` with outside(part) in place of its largest parts without symbols of the kinds
    `moving`."""
    known: dict[Expr, Expr] = {}  # Exprs share their parts

    def stays(e: Expr) -> bool:
        return all(s.kind not in moving for s in e.symbols())

    def split(e: Expr) -> Expr:
        if e not in known:
            known[e] = e if e.is_const else outside(e) if stays(e) else apart(e)
        return known[e]

    def apart(e: Expr) -> Expr:
        e = written(e, frozenset(s for s in e.symbols() if s.kind in moving))
        groups: dict[Expr, Expr] = {}  # by the product of what moves: what it is multiplied with
        for monomial, coefficient in e.terms:
            inner, rest = expr.const(1), expr.const(coefficient)
            for atom in monomial:
                symbol = expr.from_atom(atom)
                if stays(symbol):
                    rest = rest * symbol
                elif isinstance(atom, Call):
                    atom = by_parts(atom)
                    inner = inner * expr.from_atom(Call(atom.op, tuple(map(split, atom.args))))
                else:
                    inner = inner * symbol
            groups[inner] = groups.get(inner, expr.const(0)) + rest
        total = expr.const(0)
        for inner, rest in groups.items():
            total = total + inner * (rest if rest.is_const else outside(rest))
        return total

    return split(e)


def _unit(e: Expr) -> tuple[Expr, int, int]:
    """Return (unit, times, plus) such that e = unit * times + plus."""
    terms = [(m, c) for m, c in e.terms if m]
    times = gcd(*(c for _, c in terms)) * (1 if any(c > 0 for _, c in terms) else -1)
    plus = sum(c for m, c in e.terms if not m)
    return Expr(tuple((m, c // times) for m, c in terms)), times, plus


def _obvious_name(e: Expr) -> str:
    """Return a name for a formula: a symbol's own name, "extent" or "offset" for those of a block,
    or "" if there is none."""
    symbols = list(e.symbols())
    if len(symbols) == 1 and e == expr.symbol(symbols[0]):
        return identifier(symbols[0].name)
    return part_of_block(e)


_OPERATORS = {"floordiv": "div", "mod": "mod"}


def _short_name(e: Expr) -> str:
    """Return a name for a short division, such as 10_div_n_x for 10 // n_x; "" for anything
    else."""
    (call, *more) = e.atoms()
    if more or not isinstance(call, Call) or e != expr.from_atom(call):
        return ""
    if call.op not in _OPERATORS:
        return ""
    text = f"{call.args[0]} {_OPERATORS[call.op]} {call.args[1]}"
    for sign, word in ((" - ", " minus "), (" + ", " plus "), (" * ", " times ")):
        text = text.replace(sign, word)
    text = text.replace(" ", "_")
    plain = text.isascii() and text.replace("_", "").isalnum()
    return text if plain and len(text) <= 48 else ""

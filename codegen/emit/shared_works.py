"""Works and phases that a program does several times: each becomes one C function.

Goes in: a Plan and the names of its buffers. Comes out: functions of C, and calls of them. Blocks
of a network that are alike, and updates of parameters of one shape, are compiled once.
Always holds: works share a function if their texts are equal up to names of arguments and local
variables, and numbers that it is handed; it uses nothing but its arguments, as a phase does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codegen.emit.alike import differing, kind, numbers, plain, tokens
from codegen.emit.cutting import NOINLINE
from codegen.emit.lines import comment, wrapped
from codegen.ir.fresh import Fresh
from codegen.ir.plan import KEEPS, Buffer, Lane, Nest, Phase, Plan, Runtime, Store, Work
from codegen.ir.steps import walk_steps

if TYPE_CHECKING:  # phases.py writes their calls
    from codegen.emit.phases import PhaseWriter

# Of one text: what stands there twice is compiled as fast in its place; a loop of one statement, to
# which a call adds, where there are several.
LEAST_USES, LEAST_OF_SHORT, SHORT = 3, 4, 4  # uses, uses of a short one, lines of a short one

Key = tuple[object, ...]


@dataclass(frozen=True)
class SharedWork:
    """A work as the body of a function that other works share. arguments: the names of its
    arguments, in order. numbers: literals in its text that may differ between the works that share
    the function."""

    key: Key
    lines: tuple[str, ...]
    arguments: tuple[str, ...]
    declared: tuple[str, ...]
    numbers: tuple[str, ...]
    buffers: Mapping[str, tuple[Buffer, bool]]
    runtimes: Mapping[str, Runtime]


@dataclass(frozen=True)
class SharedCall:
    """A call of the function that a work shares. numbers: literals that it passes after the
    arguments."""

    name: str
    work: SharedWork
    numbers: tuple[str, ...]


class SharedWorks:
    """The works of a Plan, and the functions that they share. functions: the texts of these, in the
    order of first use. phases: by the number of a phase, the first phase with the same function."""

    def __init__(self, plan: Plan, names: dict[int, str], writer: type[PhaseWriter]) -> None:
        self.names, self.writer = names, writer
        self.functions: list[str] = []
        self.called: dict[Key, str] = {}
        self.works: dict[int, SharedWork] = {}  # by id
        self.rows: dict[Key, list[tuple[str, ...]]] = {}  # the numbers of all that share one
        self.columns: dict[Key, list[list[int]]] = {}  # those that a function is handed
        self.phases: dict[int, Phase] = {}
        self.operands: dict[int, list[str | Runtime]] = {}  # of the works of a phase, each once
        self.buffers: dict[str, Buffer] = {}
        self.uses: Counter[int] = Counter()  # of a first phase, by its number
        first: dict[Key, Phase] = {}
        for step in walk_steps(plan.steps):
            if isinstance(step, Phase):
                works = [self.read(step, work) for work in step.work]
                same = first.setdefault(self.key(step, works), step)
                self.phases[step.number] = same
                self.uses[same.number] += 1
                if same is step:
                    self.count(step, works)

    def key(self, phase: Phase, works: Sequence[SharedWork]) -> Key:
        """Return the key of a phase: the texts of its works, and which of their arguments are the
        same. Phases with equal keys share a function."""
        order: dict[str | Runtime, int] = {}
        parts: list[object] = []
        for work in works:
            self.buffers.update((name, buffer) for name, (buffer, _) in work.buffers.items())
            names = dict.fromkeys((*work.arguments, *work.buffers, *work.runtimes))
            operands = (work.runtimes.get(name, name) for name in names)
            parts.append((work.key, work.numbers,
                          *(order.setdefault(thing, len(order)) for thing in operands)))
        self.operands[phase.number] = list(order)
        return *parts, *(order.get(p.sym.name) for p in phase.parameters)

    def count(self, phase: Phase, works: Sequence[SharedWork]) -> None:
        """Note the works of a phase that may share a function."""
        for work, shape in zip(phase.work, works, strict=True):
            if isinstance(work, Nest | Store | Lane) and not _keeps(work):
                self.works[id(work)] = shape
                self.rows.setdefault(shape.key, []).append(shape.numbers)

    def handed(self, phase: Phase, writer: PhaseWriter) -> tuple[list[Buffer], list[Runtime]]:
        """Return the arguments with which a phase calls the function of the first phase with its
        key, which `writer` wrote: buffers and run-time scalars."""
        first, own = (self.operands[k] for k in (self.phases[phase.number].number, phase.number))
        here = dict(zip(first, own, strict=True))
        buffers, runtimes = [], []
        things: list[str | Runtime] = [*writer.buffers, *writer.runtimes.values()]
        for other in map(here.__getitem__, things):
            if isinstance(other, Runtime):
                runtimes.append(other)
            else:
                buffers.append(self.buffers[other])
        return buffers, runtimes

    def read(self, phase: Phase, work: Work) -> SharedWork:
        """Return a work as the body of a function, with its arguments and literals."""
        w = self.writer(phase, self.names)
        w.work(work)
        handed = {*w.buffers, *w.runtimes, *(p.sym.name for p in phase.parameters)}
        lines = [tokens(line) for line in _code(w.lines)]
        pieces = [token for line in lines for token in line]
        text, order = plain(pieces, {*handed, *w.names.names(), *_counters(pieces)})
        begin, parts = 0, []
        for line in lines:
            parts += [begin + k for k in numbers(line)]
            begin += len(line)
        values = tuple(pieces[k] for k in parts)
        for k in parts:
            text[k] = f"#{kind(pieces[k])}"
        arguments = tuple(name for name in order if name in handed)
        declared = tuple(
            _declared(*w.buffers[name]) if name in w.buffers else
            "const double " if name in w.runtimes else "const int64_t " for name in arguments)
        places = tuple(order[name] for name in arguments)
        return SharedWork(("".join(text), places, declared), tuple(w.lines), arguments, declared,
                          values, w.buffers, w.runtimes)

    def call(self, work: Work) -> SharedCall | None:
        """Return a call of the function that does the work; None if too few works share one."""
        shared = self.works.get(id(work))
        if shared is None:
            return None
        rows = self.rows[shared.key]
        if len(rows) < (LEAST_OF_SHORT if len(shared.lines) < SHORT else LEAST_USES):
            return None
        if shared.key not in self.called:
            self.columns[shared.key] = differing(rows)
            name = self.called[shared.key] = f"shared_{len(self.called)}"
            self.functions.append(self.function(name, shared))
        handed = tuple(shared.numbers[group[0]] for group in self.columns[shared.key])
        return SharedCall(self.called[shared.key], shared, handed)

    def function(self, name: str, work: SharedWork) -> str:
        """Return the C function that does this work and all those that share it."""
        columns, count = self.columns[work.key], len(self.rows[work.key])
        names = Fresh(token for line in work.lines for token in tokens(line))
        parameters = [d + n for d, n in zip(work.declared, work.arguments, strict=True)]
        new: dict[int, str] = {}
        for group in columns:
            new |= dict.fromkeys(group, names.name("number"))
            parameters.append(f"const {kind(work.numbers[group[0]])} {new[group[0]]}")
        head = wrapped(f"static void {name}(", parameters, ")")
        does = "names and numbers" if columns else "names"
        intro = comment(f"what {count} works do, with {does} of the first one")
        begin, lines = 0, []
        for line in work.lines:
            if not _is_comment(line):
                pieces = list(tokens(line))
                for place in numbers(pieces):
                    pieces[place] = new.get(begin, pieces[place])
                    begin += 1
                line = "".join(pieces)
            lines.append(line)
        return "\n".join([intro, f"{NOINLINE}{head}", "{", *lines, "}"]) + "\n"


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("/*")


def _code(lines: list[str]) -> list[str]:
    return [line for line in lines if not _is_comment(line)]


def _counters(pieces: list[str]) -> list[str]:
    """Return the names of the int64_t variables that a text declares."""
    return [name for t, _, name in zip(pieces, pieces[1:], pieces[2:]) if t == "int64_t"]


def _declared(buffer: Buffer, written: bool) -> str:
    return f"{'' if written else 'const '}{buffer.dtype.c} *restrict "


def _keeps(work: Work) -> bool:
    """Return whether a work calls the engine, through a table that functions of works do not have
    as an argument."""
    parts = work.parts if isinstance(work, Nest) else (work,)
    return any(isinstance(part, Store) and part.combine == KEEPS for part in parts)

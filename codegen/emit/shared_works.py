"""Works that a program does several times with different buffers: each becomes one C function.

Goes in: a Plan and the names of its buffers. Comes out: functions of C, and calls of them. Blocks
of a network that are alike, and updates of parameters of one shape, are compiled once.
Always holds: works share a function if their texts are equal up to names of arguments and local
variables; a function uses nothing but its arguments, as a phase does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from codegen.emit.cutting import NOINLINE
from codegen.emit.lines import comment, wrapped
from codegen.plan.grammar import Buffer, Lane, Nest, Phase, Plan, Runtime, Store, Work
from codegen.plan.steps import walk_steps

if TYPE_CHECKING:  # phases.py writes their calls
    from codegen.emit.phases import PhaseWriter

# Of one text: what stands there twice is compiled as fast in its place; a loop of one statement, to
# which a call adds, where there are many.
LEAST_USES, LEAST_OF_SHORT, SHORT = 3, 4, 4  # uses, uses of a short one, lines of a short one


@dataclass(frozen=True)
class SharedWork:
    """One work as the body of a function. given: the names of its arguments, in order."""

    key: tuple[object, ...]
    lines: tuple[str, ...]
    given: tuple[str, ...]
    declared: tuple[str, ...]
    buffers: Mapping[str, tuple[Buffer, bool]]
    runtimes: Mapping[str, Runtime]


class SharedWorks:
    """The works of a Plan, and which of them share a function. functions: the texts of these, in
    the order of first use."""

    def __init__(self, plan: Plan, names: dict[int, str], writer: type[PhaseWriter]) -> None:
        self.names, self.writer = names, writer
        self.functions: list[str] = []
        self.called: dict[tuple[object, ...], str] = {}
        self.works: dict[int, SharedWork] = {}  # by id
        for step in walk_steps(plan.steps):
            if isinstance(step, Phase):
                for work in step.work:
                    if isinstance(work, Nest | Store | Lane):
                        self.works[id(work)] = self.read(step, work)
        self.uses = Counter(work.key for work in self.works.values())

    def read(self, phase: Phase, work: Work) -> SharedWork:
        """Return a work as the body of a function of its own."""
        w = self.writer(phase, self.names)
        w.work(work)
        lines = tuple(line for line in w.lines if not line.lstrip().startswith("/*"))
        text = "\n".join(lines)
        numbers = {p.sym.name for p in phase.parameters}
        handed = {*w.buffers, *w.runtimes, *numbers}
        pieces = ["".join(some) for _, some in groupby(text, _is_of_name)]
        own = {*w.names.names(), *_counters(pieces)} - handed
        order: dict[str, int] = {}
        for k, (piece, behind) in enumerate(zip(pieces, [*pieces[1:], ""])):
            if (piece in handed or piece in own) and not behind.startswith("("):
                pieces[k] = f"${order.setdefault(piece, len(order))}"
        plain = "".join(pieces)
        given = tuple(name for name in order if name in handed)
        declared = tuple(
            _declared(*w.buffers[name]) if name in w.buffers else
            "const double " if name in w.runtimes else "const int64_t " for name in given)
        places = tuple(order[name] for name in given)
        return SharedWork((plain, places, declared), tuple(w.lines), given, declared, w.buffers,
                          w.runtimes)

    def call(self, work: Work) -> tuple[str, SharedWork] | None:
        """Return the name of the function that does a work, and its SharedWork; None if too few
        works share it."""
        found = self.works.get(id(work))
        if found is None:
            return None
        least = LEAST_OF_SHORT if len(found.lines) < SHORT else LEAST_USES
        if self.uses[found.key] < least:
            return None
        if found.key not in self.called:
            name = self.called[found.key] = f"shared_{len(self.called)}"
            given = [d + n for d, n in zip(found.declared, found.given, strict=True)]
            head = wrapped(f"static void {name}(", given, ")")
            intro = comment(f"what {self.uses[found.key]} works do, with names of the first one")
            self.functions.append(
                "\n".join([intro, f"{NOINLINE}{head}", "{", *found.lines, "}"]) + "\n")
        return self.called[found.key], found


def _is_of_name(c: str) -> bool:
    return c.isalnum() or c == "_"


def _counters(pieces: list[str]) -> list[str]:
    """Return the names of the int64_t variables that a text declares."""
    return [name for kind, _, name in zip(pieces, pieces[1:], pieces[2:]) if kind == "int64_t"]


def _declared(buffer: Buffer, written: bool) -> str:
    return f"{'' if written else 'const '}{buffer.dtype.c} *restrict "

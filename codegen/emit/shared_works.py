"""Works that a program does several times to other buffers, each written as one function.

Goes in: a Plan and the names of its buffers. Comes out: functions of C, and calls of them. Blocks
of a network that are alike, and updates of parameters of one shape, are compiled once.
Always holds: what is shared has equal text, but for the names of what it is handed and of its own
variables; everything it uses is handed to it, as to a phase.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codegen.emit.cutting import NOINLINE
from codegen.emit.lines import comment, wrapped
from codegen.plan.grammar import Buffer, Lane, Nest, Phase, Plan, Runtime, Store, Work
from codegen.plan.steps import walk_steps

if TYPE_CHECKING:  # phases.py writes their calls
    from codegen.emit.phases import PhaseWriter

# Of one text: what stands there twice is compiled as fast in its place; a loop of one statement, to
# which a call adds, where there are many.
LEAST_USES, LEAST_OF_SHORT, SHORT = 3, 8, 4  # uses, uses of a short one, lines of a short one
_NAME = re.compile(r"\b[A-Za-z_]\w*\b(?!\s*\()")
_DECLARED = re.compile(r"\bint64_t (\w+) =")


@dataclass(frozen=True)
class SharedWork:
    """One work as a function would do it. given: what that is handed, in this order."""

    key: tuple[object, ...]
    lines: tuple[str, ...]
    given: tuple[str, ...]
    declared: tuple[str, ...]
    buffers: Mapping[str, tuple[Buffer, bool]]
    runtimes: Mapping[str, Runtime]


class SharedWorks:
    """All works of a Plan that are shared. functions: their texts, in the order of first uses."""

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
        """A work as it would stand in a function of its own."""
        w = self.writer(phase, self.names)
        w.work(work)
        lines = tuple(line for line in w.lines if not line.lstrip().startswith("/*"))
        text = "\n".join(lines)
        numbers = {p.sym.name for p in phase.parameters}
        handed = {*w.buffers, *w.runtimes, *numbers}
        own = {*w.names.names(), *_DECLARED.findall(text)} - handed
        order: dict[str, int] = {}

        def ordinal(found: re.Match[str]) -> str:
            name = found[0]
            if name not in handed and name not in own:
                return name
            return f"${order.setdefault(name, len(order))}"

        plain = _NAME.sub(ordinal, text)
        given = tuple(name for name in order if name in handed)
        declared = tuple(
            _declared(*w.buffers[name]) if name in w.buffers else
            "const double " if name in w.runtimes else "const int64_t " for name in given)
        places = tuple(order[name] for name in given)
        return SharedWork((plain, places, declared), tuple(w.lines), given, declared, w.buffers,
                          w.runtimes)

    def call(self, work: Work) -> tuple[str, SharedWork] | None:
        """The name of the function that does a work, and the work; None where it is not shared."""
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
            places = self.uses[found.key]
            intro = comment(f"what {places} places do, here with the first one's names")
            self.functions.append(
                "\n".join([intro, f"{NOINLINE}{head}", "{", *found.lines, "}"]) + "\n")
        return self.called[found.key], found


def _declared(buffer: Buffer, written: bool) -> str:
    return f"{'' if written else 'const '}{buffer.dtype.c} *restrict "

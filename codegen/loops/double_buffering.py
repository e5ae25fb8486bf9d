"""Multiple buffering: buffers swap roles as an iteration of a loop ends, instead of copies.

Goes in: Loops with their buffers. Comes out: the same, with cycles of buffers per loop: as an
iteration ends, each takes the content of the one before it.
Always holds: nobody needs what a cycle overwrites; members of an exchange that touches a buffer
have it in the same place, as each computes with its own table where the others' boxes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from codegen.ir.graph import Op, walk
from codegen.ir.loops import BufferAssignment, Cycle
from codegen.ir.plan import Buffer
from codegen.ops import Loop

Axes = frozenset[str]
_NONE: Axes = frozenset()


@dataclass(frozen=True)
class _Wish:
    loop: Op
    cycle: Cycle
    diverging: Axes  # along which ranks may not all be in this iteration


def double_buffering(placed: BufferAssignment) -> BufferAssignment:
    """Return the assignment with the buffer cycles of every loop that has some."""
    module, of, diverging = placed.loops.module, placed.of, placed.loops.diverging
    loops = [op for region in module.regions for op in walk(region) if isinstance(op.kind, Loop)]
    wishes = [_Wish(op, cycle, diverging[op.results[0]])
              for op in loops for cycle in _cycles(op, placed)]
    replaced = _replaced(placed)
    moved = _moved(wishes, replaced)
    touched: dict[int, set[str]] = {}
    for value, axes in placed.exchanged.items():
        touched.setdefault(of[value].number, set()).update(axes)
    for old, new in replaced:
        both = touched.get(old.number, set()) | touched.get(new.number, set())
        touched |= {old.number: both, new.number: both}
    cycles: dict[Op, tuple[Cycle, ...]] = {}
    for w in wishes:
        if all(moved[b.number].isdisjoint(touched.get(b.number, ())) for b in w.cycle):
            cycles[w.loop] = (*cycles.get(w.loop, ()), w.cycle)
    return replace(placed, cycles=cycles)


def _replaced(placed: BufferAssignment) -> list[Cycle]:
    """Return the pairs of buffers of each state and its new value; they swap as a run ends."""
    module, of = placed.loops.module, placed.of
    return [(of[module.inputs[s.input].value], of[module.outputs[s.new].value])
            for s in module.states]


def _moved(wishes: list[_Wish], replaced: list[Cycle]) -> dict[int, Axes]:
    """Return, for each buffer's number, the axes along which ranks may have it in different places.
    A buffer inherits the axes of every buffer that it swaps with, in any loop or as a run ends."""
    cycles = [(w.cycle, w.diverging) for w in wishes] + [(cycle, _NONE) for cycle in replaced]
    moved: dict[int, Axes] = {b.number: _NONE for cycle, _ in cycles for b in cycle}
    while True:
        before = dict(moved)
        for cycle, diverging in cycles:
            axes = diverging.union(*(moved[b.number] for b in cycle))
            moved.update({b.number: axes for b in cycle})
        if moved == before:
            return moved


def _cycles(loop: Op, placed: BufferAssignment) -> Iterator[Cycle]:
    """Yield the cycles of a loop: buffers of carried values that pass their content on in a ring,
    or in a chain whose first buffer is dead by then and takes the content of the last.

    Copies that are left write buffers outside of all cycles. They run before the cycles rotate.
    """
    body, of = loop.regions[-1], placed.of
    into: dict[int, Buffer] = {}  # by number: where what a buffer holds goes
    by_number: dict[int, Buffer] = {}
    for y, arg in zip(body.results, body.args, strict=True):
        a, b = of[y], of[arg]
        if a is not b and a.number not in into and (a.dtype, a.capacity) == (b.dtype, b.capacity):
            into[a.number] = b
            by_number[a.number] = a
    needed = {of[v].number for v in (*placed.across[loop], *body.args) if v in of}
    replaced = {b.number for b in into.values()}
    done: set[int] = set()
    for start in sorted(into, key=lambda k: k in replaced):  # chains before cycles
        if start in done:
            continue
        cycle = [by_number[start]]
        while (following := into.get(cycle[-1].number)) and following.number != start:
            cycle.append(following)
        done.update(b.number for b in cycle)
        if start in replaced or start not in needed:
            yield tuple(cycle)

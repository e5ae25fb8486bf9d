"""Loop distribution: elements at positions that data decides are read by a loop of their own.

Goes in: a Sweep of a Plan. Comes out: the same, which reads them ahead, for some iterations each.
Always holds: the same points in the same order. The loops of positions and of results vectorise; a
compiler does not vectorise a loop that also looks elements up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from codegen.ir.indexing import leaves, rewritten
from codegen.ir.plan import Apply, Load, LocalRead, LocalValue, Node, Reduce, Store, Sweep
from codegen.symbolic.expr import Sym

WORTH = 3  # functions: a loop that only copies is as fast without vectors


def is_legal(sweep: Sweep) -> bool:
    """Return whether a sweep may be cut into a loop that reads and one that computes: it folds
    nothing. What it reads at positions that it writes itself stays where it is."""
    return bool(sweep.long) and not sweep.folds and not any(
        isinstance(p, Reduce) for p in sweep.parts)


def read_ahead(sweep: Sweep) -> Sweep:
    """Return a sweep whose `ahead` holds the elements that it looks up in other memory than it
    writes; the sweep itself if there are none."""
    last = sweep.long[-1]
    written = {p.buffer.number for p in sweep.parts if isinstance(p, Store)}
    locals_: dict[str, Node] = {}
    ahead: list[LocalValue] = []
    parts: list[LocalValue | Store] = []

    def inlined(node: Node) -> Node | None:
        return locals_.get(node.name) if isinstance(node, LocalRead) else None

    def change(node: Node) -> Node | None:
        if not isinstance(node, Load) or id(node) not in chosen:
            return None
        load = rewritten(node, inlined)
        if not _reads_elsewhere(load, written):
            return node
        same = next((k for k in ahead if k.value == load), None)
        if same is None:
            same = LocalValue(f"ahead_{len(ahead)}", node.buffer.dtype, load)
            ahead.append(same)
        return same.read

    for part in sweep.parts:
        assert not isinstance(part, Reduce)
        chosen = {id(load) for load in _looked_up(part.value, last.sym)}
        if isinstance(part, LocalValue):
            locals_[part.name] = rewritten(part.value, inlined)
        parts.append(replace(part, value=rewritten(part.value, change)))
    if not ahead:
        return sweep
    read = set[str]()
    for part in tuple(reversed(parts)):
        if isinstance(part, LocalValue) and part.name not in read:  # only positions were made of it
            parts.remove(part)
        else:
            read |= {n.name for n in leaves(part.value) if isinstance(n, LocalRead)}
    return replace(sweep, parts=tuple(parts), ahead=tuple(ahead))


def _looked_up(node: Node, along: Sym) -> Iterator[Load]:
    """Yield the Loads whose positions differ in every turn, and that are read in any case."""
    if isinstance(node, Apply):
        for arg in node.args if node.fn != "guard" else ():
            yield from _looked_up(arg, along)
    elif isinstance(node, Load) and any(_moves(b.node, along) for b in node.bounds):
        yield node


def _moves(node: Node, along: Sym) -> bool:
    return any(
        isinstance(n, LocalRead) or isinstance(n, Load) and along in n.offset.symbols()
        for n in leaves(node)
    )


def _reads_elsewhere(load: Node, written: set[int]) -> bool:
    """Return whether what a Load reads, and what says where, is written by others than this
    loop."""
    return not any(isinstance(n, Load) and n.buffer.number in written for n in leaves(load))

"""Elements at positions that data decides, read before the loop that computes with them.

Goes in: a Sweep of a Plan. Comes out: the same, which reads them ahead, for some turns at once.
Always holds: the same points in the same order; the loops of positions and of results vectorise,
which compilers do not do with a loop that also looks elements up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from codegen.ir.indexing import leaves, rewritten
from codegen.ir.plan import Apply, Keep, Kept, Load, Node, Reduce, Store, Sweep
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.target import TARGET

WORTH = 3  # functions: a loop that only copies is as fast without vectors


def read_ahead(sweep: Sweep) -> Sweep:
    """Let a sweep read what it looks up some turns ahead; not what it folds, or writes itself."""
    if not sweep.long or sweep.folds or any(isinstance(p, Reduce) for p in sweep.parts):
        return sweep
    last = sweep.long[-1]
    if expr.nonneg(TARGET.short_loop - last.extent):
        return sweep
    written = {p.buffer.number for p in sweep.parts if isinstance(p, Store)}
    known: dict[str, Node] = {}
    found: list[Keep] = []
    parts: list[Keep | Store] = []

    def inlined(node: Node) -> Node | None:
        return known[node.name] if isinstance(node, Kept) and node.name in known else None

    def change(node: Node) -> Node | None:
        if not isinstance(node, Load) or id(node) not in chosen:
            return None
        load = rewritten(node, inlined)
        if not _reads_elsewhere(load, written):
            return node
        same = next((k for k in found if k.value == load), None)
        if same is None:
            same = Keep(f"ahead_{len(found)}", node.buffer.dtype, load)
            found.append(same)
        return same.local

    for part in sweep.parts:
        assert not isinstance(part, Reduce)
        chosen = {id(load) for load in _looked_up(part.value, last.sym)}
        if isinstance(part, Keep):
            known[part.name] = rewritten(part.value, inlined)
        parts.append(replace(part, value=rewritten(part.value, change)))
    if not found or sum(_functions(p.value) for p in parts) < WORTH:
        return sweep
    read = set[str]()
    for part in tuple(reversed(parts)):
        if isinstance(part, Keep) and part.name not in read:  # it only said where to read
            parts.remove(part)
        else:
            read |= {n.name for n in leaves(part.value) if isinstance(n, Kept)}
    return replace(sweep, parts=tuple(parts), ahead=tuple(found))


def _functions(node: Node) -> int:
    return 1 + sum(map(_functions, node.args)) if isinstance(node, Apply) else 0


def _looked_up(node: Node, along: Sym) -> Iterator[Load]:
    """Yield the Loads whose positions differ in every turn, and that are read in any case."""
    if isinstance(node, Apply):
        for arg in node.args if node.fn != "guard" else ():
            yield from _looked_up(arg, along)
    elif isinstance(node, Load) and any(_moves(b.node, along) for b in node.bounds):
        yield node


def _moves(node: Node, along: Sym) -> bool:
    return any(
        isinstance(n, Kept) or isinstance(n, Load) and along in n.offset.symbols()
        for n in leaves(node)
    )


def _reads_elsewhere(load: Node, written: set[int]) -> bool:
    """Return whether what a Load reads, and what says where, is written by others than this
    loop."""
    return not any(isinstance(n, Load) and n.buffer.number in written for n in leaves(load))

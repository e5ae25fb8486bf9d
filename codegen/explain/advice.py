"""What to say at build of large arrays that every rank gets whole, and of loops that are unrolled.

Goes in: an exchange of a Program, its traffic, the Graph it came from. Comes out: text, or None.
Always holds: what the user asked for (a relayout, the layouts of a shard_map) is no surprise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from codegen.errors import Place
from codegen.ir.cuts import layout_of
from codegen.ir.graph import Module, Op, Region, Value, layout_text, walk
from codegen.layouts.demands import Demands
from codegen.mesh import LayoutEntry
from codegen.ops import Fourier, Kernel, Loop, MatMul
from codegen.ops.rules import Traffic
from codegen.ops.transforms import FACTOR, FOUR_STEPS
from codegen.symbolic import expr
from codegen.symbolic.estimate import largest
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

AS_IT_IS = "{0} = {0}.relayout({1}) in the loop, if the copies take too much memory"
LONG_PROGRAM, OFTEN = 2000, 64  # operations that take seconds to build, copies of one of them
COMPILED_LOOP = (
    "spmd.range in place of a Python loop, or one array in place of many in a tree: what is done "
    "to each is then built once"
)
UNROLLED = "this loop is unrolled: an extent in it depends on its counter"
ONE_EXTENT = "arrays as long in every turn, and a mask: np.arange(n) < i in place of np.arange(i)"
EACH_ITS_OWN = "relayout of an operand in the loop: then each turn makes its own product"


def unrolled(graph: Module) -> tuple[Place, int] | None:
    """Return the place in a line that stands most often in a Graph that takes long to build, and
    how often: fewer times than its operations of one kind, of which it may have several."""
    library = frozenset(graph.library_calls)
    copies = Counter((op.place, type(op.kind), where)
                     for op, where in _by_users(graph.body, library) if op.place)
    often = [(n, place) for (place, *_), n in copies.most_common() if n >= OFTEN]
    if sum(1 for _ in walk(graph.body)) < LONG_PROGRAM or not often:
        return None
    line = often[0][1].line
    return min(((place, n) for n, place in often if place.line == line), key=lambda pair: pair[1])


def _by_users(region: Region, library: frozenset[Place], inside: bool = False
              ) -> Iterator[tuple[Op, int]]:
    """Yield the ops that users have written, and, of each call of library code, the outermost
    loops, which are as many as calls. With each stands 0, or in library code its region: that
    repeats what users have written, and they cannot change how often."""
    for op in region.ops:
        called = op.place in library
        if not called or (isinstance(op.kind, Loop) and not inside):
            yield op, id(region) * inside
        for inner in op.regions:
            yield from _by_users(inner, library, inside or called)


def too_much(traffic: Traffic) -> bool:
    """Return whether an exchange gives every rank a large array whole."""
    return bool(traffic.gathered) and most_bytes(traffic.result) > TARGET.large_copy


def most_bytes(size: Expr) -> int:
    """Return bytes on 16 ranks along every axis; with extents that a scalar decides, of a
    million."""
    size = largest(size)
    kinds = {s.name: s.kind for s in size.symbols()}
    return max(
        size.evaluate({name: 16 if kind == "size" else n for name, kind in kinds.items()})
        for n in (1, 1 << 20)
    )


def remedy(
    demands: Demands, op: Op, value: Value, name: str, gathered: Sequence[int]
) -> str | None:
    """Return a text that says what to try; None where the exchange is what was asked for."""
    by = demands.by_place.get(op.place, [])  # what the exchange is made for
    kernels = [o.kind.kernel.name for o in by
               if isinstance(o.kind, Kernel) and value in o.operands]
    if any(o.kind.lays_out for o in by) and not kernels:
        return None
    if kernels:
        return (
            f"halo= in the call of {kernels[0]} for dims along which it works point by point or in "
            f"windows, or signature= where the kernel is made: each rank then gets its part"
        )
    if any(isinstance(o.kind, Fourier) for o in by):
        return (f"a length with two factors of at least {FACTOR}, of {FOUR_STEPS} elements on: "
                "it is transformed in four steps, which gather nothing")
    layout = layout_of(value)
    whole = tuple(() if d in gathered else entry for d, entry in enumerate(layout))
    reads_all = f"{layout_text(whole)} for {name}: each rank then reads all of it from the start"
    wanted = demands.wanted.get(value, {})
    if value in demands.inputs and not any(w[d].axes for w in wanted for d in gathered):
        return reads_all  # nobody wants it in parts
    products = [o for o in by if isinstance(o.kind, MatMul)]
    for o in products:
        if sums := _partial_sums(o, value, gathered):
            return sums
    free = [d for d, entry in enumerate(whole) if not entry and value.type.shape[d] != 1
            and d not in gathered]
    if free and not products:
        entries: list[LayoutEntry] = list(whole)
        entries[free[0]] = tuple(a for d in gathered for a in layout[d])
        dims = " and ".join(f"dim {d}" for d in gathered)
        return f"{layout_text(tuple(entries))} for {name}: each rank then has {dims} whole"
    if value in demands.inputs:
        return reads_all
    return "no layout of it alone avoids that; a smaller part of it at a time takes less memory"


def _partial_sums(op: Op, value: Value, gathered: Sequence[int]) -> str:
    """Return the advice for a @ b with b split where it is summed over: a split there too leaves
    sums to be reduced."""
    if value not in op.operands:
        return ""
    a, b = op.operands
    summed = value.type.ndim - (1 if value is a else 2)
    other, dim = (b, b.type.ndim - 2) if value is a else (a, a.type.ndim - 1)
    axes = layout_of(value)[summed]
    small = _elements(op.result) < _elements(value)
    if tuple(gathered) != (summed,) or layout_of(other)[dim] == axes or not small:
        return ""
    entries = [() if set(entry) & set(axes) else entry for entry in layout_of(other)]
    entries[dim] = axes
    which = "right" if value is a else "left"
    return (f"the layout {layout_text(tuple(entries))} for the {which} operand: then the product "
            f"is an all-reduce of partial sums")


def _elements(value: Value) -> int:
    """Return the number of elements; 0 where no number is known."""
    total = expr.product(value.type.shape)
    return total.value if total.is_const else 0

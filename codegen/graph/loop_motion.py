"""Loop-invariant code motion: what turns of a loop compute alike is computed once, before it.

Goes in: a Graph. Comes out: the same in which arrays that a turn makes anew, and what it computes
of them, stand before their loops if no turn changes them (invariants); and the rows that turns
multiply by a matrix are one product of matrices before the loop (row_products).
Always holds: a rule moves what it legally may; MotionPolicy says whether it pays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.graph.builder import bytes_of
from codegen.graph.counted_loop import CountedLoop, LoopBody, typical_counters
from codegen.graph.invariants import Invariant, invariants
from codegen.graph.rewriter import Rewriter
from codegen.graph.row_products import Product, before_loop, row_products
from codegen.ir.graph import Module, Op, Value
from codegen.ops import Loop

ROOM = 32 << 20  # bytes that moved arrays may take, or as many as the largest array of the loop
TURNS = 8  # with fewer, rows are no matrix
WORK = 1 << 11  # steps on elements in all turns: with less there is little to gain
EXTRA = 2.5  # a product of matrices may make so many times the products that turns want
STEPS = 4  # on an element: with fewer, computing it again is no slower than reading it


def loop_motion(graph: Module) -> Module:
    """Return the Graph with these ops moved before their loops. A Graph with run-time checks
    stays as it is, so that a check fails at the line where the user computes."""
    return graph if graph.checks else _LoopMotion(graph).run()


class _LoopMotion(Rewriter):
    """Moves ops before loops, inner loops first. typical: see LoopBody."""

    def __init__(self, graph: Module) -> None:
        super().__init__(graph)
        self.typical: dict[str, int] = {}
        for region in graph.regions:
            self.typical |= typical_counters(region)

    def op(self, op: Op) -> None:
        if isinstance(op.kind, Loop):
            op = self.without_invariants(LoopBody(op, self.typical))
            if (loop := CountedLoop.of(op, self.typical)) is not None:
                op = self.without_products(loop)
        self.keep(op)

    def without_invariants(self, loop: LoopBody) -> Op:
        """Emit what each turn computes alike, as far as that pays, and return the loop that is
        left."""
        policy = MotionPolicy(loop)
        moved = {op for part in invariants(loop) if policy.invariant_pays(part) for op in part.ops}
        if not moved:
            return loop.op
        for op in loop.body.ops:
            if op in moved:
                operands = loop.before(op.operands)
                self.keep(op if operands == op.operands else replace(op, operands=operands))
        left = loop.body.with_ops(op for op in loop.body.ops if op not in moved)
        return replace(loop.op, regions=(*loop.op.regions[:-1], left))

    def without_products(self, loop: CountedLoop) -> Op:
        """Emit the products of all turns, as far as that pays, and return the loop that reads their
        rows."""
        policy, moved = MotionPolicy(loop), dict[Op, tuple[Product, str]]()
        for op, products in row_products(loop):
            product = next((p for p in products if policy.product_pays(p, loop)), None)
            size = None if product is None else policy.size(product, op.result)
            if product is not None and size is not None:
                moved[op] = product, (f"the products of all {loop.count} turns are one product "
                                      f"before the loop, of {size / 2**20:.2g} MiB")
        return before_loop(loop, moved, self) if moved else loop.op


@dataclass(frozen=True)
class MotionPolicy:
    """Estimates whether computing before a loop is faster, and takes no more memory than an array
    of the loop or than ROOM."""

    loop: LoopBody

    def invariant_pays(self, part: Invariant) -> bool:
        """Return whether reading a value in each turn beats computing it there: it is made in
        memory there, or takes many steps for each element."""
        steps, elements = part.steps(self.loop), self.loop.volume(part.value.type.shape)
        if steps is None or elements is None or steps < WORK:
            return False
        amount = elements * part.value.type.dtype.size
        return (part.in_memory or steps > STEPS * elements) and amount <= self.room(*part.inputs)

    def product_pays(self, product: Product, loop: CountedLoop) -> bool:
        """Return whether a product of all turns is estimated to be faster, though it also computes
        elements that no turn uses."""
        between = product.columns.box.shape[product.columns.summed]
        often, k, rows, columns = map(loop.number, (
            loop.count, between, product.rows.many, product.columns.many))
        each = [loop.number(loop.when(product.wanted, turn))
                for turn in (loop.first, loop.middle, loop.last)]
        if often is None or k is None or rows is None or columns is None or None in each:
            return False
        before = often * sum(e for e in each if e) // len(each)
        after = rows * columns // (2 if product.is_symmetric else 1)
        if often < TURNS or before * k < WORK:
            return False
        return after <= before * (EXTRA if rows >= TURNS else 1)

    def size(self, product: Product, row: Value) -> int | None:
        """Return the bytes that a product of all turns takes, or None if it has no room."""
        amount = self.loop.number(product.rows.many * product.columns.many * row.type.dtype.size)
        room = self.room(product.rows.box.array, product.columns.box.array)
        return amount if amount is not None and amount <= room else None

    def room(self, *arrays: Value) -> int:
        """Return how many bytes a moved array may take, beside these arrays and those of the
        loop."""
        return max(ROOM, *(bytes_of(v) or 0 for v in (*self.loop.op.operands, *arrays)))

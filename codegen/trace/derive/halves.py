"""A function and its derivative as two pieces of code, which may stand in different places.

In: a function, the types of its arguments. Out: a Halves, which emits the forward half, whose
result has what it keeps as arrays, and the backward half, which reads these. Always holds: the
function is captured once; the backward half computes nothing that the forward half has computed,
except views, constants, and what follows from the weights only, which it takes as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from codegen.graph.builder import global_ops
from codegen.graph.clone import Copier
from codegen.ir.cuts import home, layout_of
from codegen.ir.graph import ArrayType, Op, Region, Value, free_counters, free_values
from codegen.layouts.localize import Localizer
from codegen.ops import Barrier, Broadcast, Feeding, Full, Let, Print, Reshape, Transpose
from codegen.symbolic.expr import Sym
from codegen.trace.array import Array, as_value, wrap
from codegen.trace.context import Block, Context
from codegen.trace.control.conversion import as_called
from codegen.trace.derive.dead_code import needed
from codegen.trace.derive.derivatives import vjp
from codegen.trace.state import Tree, fill, flatten

VIEWS = (Broadcast, Reshape, Transpose)


@dataclass(frozen=True)
class Halves:
    """The forward and the backward half of f(weights, *arguments), captured once.

    out: the structure of what f returns; out_types, kept_types: of its leaves, and of what the
    backward half reads of the forward half. Cotangents are of the leaves that are floats. wanted:
    of each argument how many leaves are floats, or None where it has no cotangents.
    """

    context: Context
    weights: tuple[Value, ...]
    arguments: tuple[Value, ...]
    out: Tree
    outs: tuple[Value, ...]
    kept: tuple[Value, ...]
    cotangents: tuple[Value, ...]
    gradients: tuple[Value, ...]
    ahead: tuple[Op, ...]
    later: tuple[Op, ...]
    weights_tree: Tree
    wanted: tuple[int | None, ...]

    @property
    def out_types(self) -> list[ArrayType]:
        return [v.type for v in self.outs]

    @property
    def kept_types(self) -> list[ArrayType]:
        return [v.type for v in self.kept]

    def forward(self, weights: Any, *arguments: Any) -> tuple[Any, list[Array]]:
        """Return the result of f, and the values that are kept for the backward half."""
        values = self.copied(self.ahead, self.weights + self.arguments, values_of(
            self.context, (weights, arguments)), self.outs + self.kept)
        arrays = [wrap(self.context, v) for v in values]
        return fill(self.out, iter(arrays[:len(self.outs)]), fresh=True), arrays[len(self.outs):]

    def backward(self, weights: Any, kept: Sequence[Array], cotangents: Sequence[Array]
                 ) -> tuple[Any, ...]:
        """Return the gradients of the weights; and of each argument a list of those of its leaves
        that are floats, or None where none is wanted."""
        values = self.copied(self.later, self.weights + self.kept + self.cotangents,
                             values_of(self.context, (weights, list(kept), list(cotangents))),
                             self.gradients)
        arrays = iter([wrap(self.context, v) for v in values])
        own = fill(self.weights_tree, arrays, fresh=True)
        return own, *(n if n is None else [*islice(arrays, n)] for n in self.wanted)

    def copied(self, ops: Iterable[Op], names: Sequence[Value], values: Sequence[Value],
               results: Sequence[Value]) -> list[Value]:
        """Emit the ops with these values in the place of the names; return the results."""
        copier = Copier(self.context.unique, dict(zip(names, values, strict=True)), {})
        block = self.context.blocks[-1]
        for op in copier.ops(ops):
            block.ops.append(op)
            if isinstance(op.kind, Full):
                self.context.numbers[op.result] = op.kind.value
        return [copier.of(v) for v in results]


def capture_halves(
    context: Context, f: Callable[..., Any], weights: Any, arguments: Sequence[Any],
    wanted: Sequence[bool], backward: bool = True, local: bool = True,
) -> Halves:
    """Return the halves of f(weights, *arguments), captured once.

    weights, arguments: trees of ArrayTypes. local: whether these are of a rank's view; else f gets
    global arrays, which lie as their types say. wanted: for each of the arguments, whether the
    backward half returns the gradients of its leaves that are floats. backward: False for a
    backward half that is empty.
    """
    axes = frozenset(context.mesh.names)
    tree, types = flatten((weights, tuple(arguments)))
    view, context.rank_view = context.rank_view, context.rank_view + 1 if local else 0
    logs, context.write_logs = context.write_logs, [*context.write_logs, {}]
    try:
        with context.block(types) as block:
            block.apart = True
            context.varying.update(dict.fromkeys(block.args, axes))
            own_weights, own_arguments = fill(
                tree, iter([wrap(context, v) for v in block.args]), fresh=True)
            parts = [flatten(a) for a in own_arguments]
            chosen = [x for (_, xs), want in zip(parts, wanted) if want for x in xs if _is_float(x)]
            outside: list[Any] = []

            def run(w: Any, mine: Sequence[Any]) -> Any:
                rest = iter(mine)
                args = [fill(t, iter([next(rest) if _is_float(x) else x for x in xs]), fresh=True)
                        if want else a
                        for a, (t, xs), want in zip(own_arguments, parts, wanted)]
                out_tree, leaves = flatten(as_called(f)(w, *args))
                values = [as_value(context, leaf) for leaf in leaves]
                outside[:] = out_tree, values
                return [wrap(context, v) for v in values if v.type.dtype.kind in "fc"]

            if not backward:
                run(own_weights, chosen)
                return _forward_only(context, block, len(flatten(weights)[1]), tree, *outside)
            _, back = vjp(run, own_weights, chosen)
            last = block.ops[-1] if block.ops else None
            out, outs = outside
            cotangents = [Value("cotangent", v.type) for v in outs if v.type.dtype.kind in "fc"]
            context.varying.update(dict.fromkeys(cotangents, axes))
            block.args += tuple(cotangents)
            slopes = back([wrap(context, v) for v in cotangents])
            gradients = [as_value(context, leaf) for leaf in flatten(slopes)[1]]
    finally:
        context.rank_view = view
        context.write_logs = logs
    count = len(flatten(weights)[1])
    names = block.args[:count], block.args[count:len(types)]
    while last in context.replaced:  # by a loop that keeps what its turns begin with
        last = context.replaced[last]
    first = set(block.ops[:block.ops.index(last) + 1 if last else 0])
    moved = set() if local else _moved(context, block.ops)
    ahead, later, kept = _cut(block.ops, first, names, cotangents, outs, gradients, moved)
    return Halves(context, *names, out, tuple(outs), tuple(kept), tuple(cotangents),
                  tuple(gradients), tuple(ahead), tuple(later), flatten(slopes[0])[0],
                  tuple(sum(map(_is_float, xs)) if want else None
                        for (_, xs), want in zip(parts, wanted)))


def _is_float(x: Array) -> bool:
    return x.type.dtype.kind in "fc"


def _forward_only(context: Context, block: Block, count: int, tree: Tree, out: Tree,
                  outs: Sequence[Value]) -> Halves:
    """Return Halves with an empty backward half."""
    ops = needed(block.ops, outs)
    return Halves(context, block.args[:count], block.args[count:], out, tuple(outs), (), (), (),
                  tuple(ops), (), tree, ())


def values_of(context: Context, tree: Any) -> list[Value]:
    """Return the leaves of a tree as values."""
    return [as_value(context, leaf) for leaf in flatten(tree)[1]]


def reads_of(op: Op) -> list[Value]:
    """Return all that an op reads, in its regions too."""
    return [*op.operands, *(v for region in op.regions for v in free_values(region))]


def lets_of(ops: Iterable[Op]) -> dict[Sym, Op]:
    """Return the Let ops, which give a symbol to a computed integer, by their symbol."""
    return {op.kind.counter: op for op in ops if isinstance(op.kind, Let)}


def named_in(op: Op, lets: Mapping[Sym, Op]) -> list[Op]:
    """Return the Let ops whose symbols stand in formulas of an op."""
    return [lets[s] for s in free_counters(Region((), (op,), ())) if s in lets]


def following(ops: Sequence[Op], values: Iterable[Value]) -> set[Value]:
    """Return the values, and all results of these ops that follow from them."""
    followers = set(values)
    for op in ops:
        if followers.intersection(reads_of(op)):
            followers.update(op.results)
    return followers


def recomputed(
    ops: Sequence[Op], wanted: Iterable[Value], is_kept: Callable[[Value], bool]
) -> tuple[set[Op], list[Value]]:
    """Return the ops that compute the wanted values from kept ones, with the Let ops of symbols in
    their formulas; and the kept values that they read."""
    producers = {v: op for op in ops for v in op.results}
    lets = lets_of(ops)
    again: set[Op] = set()
    kept: dict[Value, None] = {}
    visited: set[Value] = set()
    stack = list(reversed([*wanted]))
    while stack:
        v = stack.pop()
        if v in visited:
            continue
        visited.add(v)
        if is_kept(v):
            kept[v] = None
        elif v in producers:
            op = producers[v]
            again.add(op)
            stack += reversed(reads_of(op))
            for let in named_in(op, lets):
                again.add(let)
                stack += let.operands
    return again, list(kept)


def _cut(
    every: Sequence[Op], first: set[Op], names: tuple[Sequence[Value], Sequence[Value]],
    cotangents: Sequence[Value], outs: Sequence[Value], gradients: Sequence[Value],
    moved: set[Value],
) -> tuple[list[Op], list[Op], list[Value]]:
    """Return the ops of both halves, and the values of the first one that the second one reads.

    first: the ops of the function itself; others are of its derivative, even where they depend on
    its results only. moved: values in whose place a view of them is kept.
    """
    producers = {v: op for op in every for v in op.results}
    behind, of_arguments = following(every, cotangents), following(every, names[1])

    def is_kept(v: Value) -> bool:
        if v not in producers:
            return v in of_arguments
        op = producers[v]
        is_view = isinstance(op.kind, VIEWS) and (v in moved or op.operands[0] not in moved)
        return not (v in behind or op not in first or is_view
                    or (v not in of_arguments and not _is_seen(op)))

    again, kept = recomputed(every, gradients, is_kept)
    later = needed([op for op in every if op in again], gradients)
    ahead = needed([op for op in every if op in first], [*outs, *kept])
    assert not any(map(_is_seen, later))
    return ahead, later, kept


def _moved(context: Context, ops: Sequence[Op]) -> set[Value]:
    """Return the global values of which a rank computes other parts than balanced blocks: they
    would be exchanged before they are kept. A reshape of a split dim makes such values."""
    rules = Localizer(context.mesh, lambda v, dim: layout_of(v)[dim])
    for op in global_ops(Region((), tuple(ops), ())):
        rules.define(op)
    unbalanced = {v for v, dims in rules.lies.items()
             if any(cut != home(v)[dim] for dim, cut in dims.items())}
    for op in ops:
        if not isinstance(op.kind, Reshape) and unbalanced.intersection(op.operands):
            unbalanced.update(v for v in op.results if any(layout_of(v)))
    return unbalanced


def _is_seen(op: Op) -> bool:
    """Return whether a second run of an op would be noticed: it prints, waits for other ranks, or
    takes from a feed, itself or in its regions."""
    return isinstance(op.kind, (Print, Barrier, Feeding)) or any(
        map(_is_seen, (inner for region in op.regions for inner in region.ops)))

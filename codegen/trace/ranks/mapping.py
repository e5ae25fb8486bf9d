"""shard_map: one rank's view of global arrays, captured into the region of one op.

Inside, every argument is a new local array of this rank's extents; a global array met by closure
becomes one more argument with its own layout. Results are new global arrays.
Always holds: a split dim of a result has the local extents of balanced blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from codegen.errors import LayoutError, ProgramError, ShapeError
from codegen.ir.graph import ArrayType, Region, Shape, Value, walk
from codegen.mesh import Layout, LayoutEntry, Mesh, Owned, block_extent, local_extent, local_offset
from codegen.ops import Relayout, ShardMap, Slice
from codegen.ops.kind import layout_of as lying
from codegen.places import user_place
from codegen.symbolic import estimate, expr
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.array import Array, Number, as_array, as_value, local_shape, local_type, wrap
from codegen.trace.context import Context
from codegen.trace.control.outside import Outside
from codegen.trace.numpy.elementwise import same_extent, shape_text
from codegen.trace.numpy.masks import Chosen
from codegen.trace.ranks.default_layouts import computed_layouts, fields_in
from codegen.trace.ranks.layout_forms import axes_of, layout_of
from codegen.trace.ranks.varying import axes_in, check
from codegen.user import pytree
from codegen.user.layout_trees import spread
from codegen.user.signatures import check_call


def coords_of(e: Expr) -> set[Sym]:
    """Return positions on mesh axes that an extent depends on."""
    return {s for s in e.symbols() if s.kind == "coord"}


# ---- arguments -------------------------------------------------------------------------------


class _Arguments:
    """Operands, their layouts, and the arrays that the function is called with."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.operands: list[Value] = []
        self.layouts: list[Layout] = []
        self.makers: list[Callable[[Sequence[Value]], Any]] = []

    def add(self, x: Any, spec: Any, given: bool, pad: bool) -> None:
        """Add one leaf as an operand. given: the user named a layout for it."""
        context = self.context
        if isinstance(x, Array) and (x.is_global or x.ndim):  # of a 0-d array there are views, too
            value = x.read()
            layout = value.type.layout
            assert layout is not None
            if given:
                wanted = layout_of(context, spec, x.ndim, "in_layouts", pad)
                if wanted != layout:
                    value = context.emit_one(Relayout(to=wanted), value)
                    layout = wanted
            position = len(self.operands)
            self.operands.append(value)
            self.layouts.append(layout)
            self.makers.append(lambda args: wrap(context, args[position], scalar=False))
        elif isinstance(x, Array):
            self.makers.append(lambda _: wrap(context, x.read(), x.weak, x.scalar))
        elif isinstance(x, np.ndarray):
            spec = spec if given else getattr(x, "layout", None)  # of an eager run
            layout = layout_of(context, spec, x.ndim, "in_layouts", pad)
            self.makers.append(lambda _: shard_of_constant(context, x, layout))
        else:
            self.makers.append(lambda _: x)


def shard_of_constant(context: Context, data: np.ndarray[Any, Any], layout: Layout) -> Array:
    """Return this rank's shard of a constant, as a new local array."""
    shape = tuple(expr.const(n) for n in data.shape)
    mesh = context.mesh
    value = as_value(context, data)
    start = tuple(local_offset(mesh, e, entry) for e, entry in zip(shape, layout))
    local = local_shape(mesh, shape, layout)
    if local != shape:
        value = context.emit_one(Slice(start=start, step=(1,) * len(shape), shape=local), value)
    return wrap(context, value, scalar=False)


# ---- results ---------------------------------------------------------------------------------


def _global_extent(
    mesh: Mesh, extent: Expr, entry: LayoutEntry, known: Sequence[Expr]
) -> Expr | None:
    """Return the extent of a dim whose balanced blocks have these local extents; None: there is
    none."""
    n, k = mesh.size(entry), mesh.position(entry)
    blocks = {candidate: local_extent(mesh, candidate, entry) for candidate in known}
    for same in (operator.eq, same_extent):  # one that is said with the same formula comes first
        for candidate, own in blocks.items():
            if same(own, extent):
                return candidate
    var = Sym("member", "var", expr.const(0), n - 1)
    at_member = extent.subst(mesh.coordinates(entry, expr.symbol(var)))
    total = estimate.prefix_sum(at_member, var, n)
    if total is None or coords_of(total):
        return None
    return total if same_extent(block_extent(total, n, k), extent) else None


def global_shape(
    context: Context, local: Shape, layout: Layout, known: Sequence[Expr], what: str
) -> Shape:
    """Return the shape of the global array whose shards have this local shape. Raises
    ShapeError."""
    mesh = context.mesh
    out = []
    for d, (extent, entry) in enumerate(zip(local, layout)):
        if not entry:
            if (found := coords_of(extent)):
                raise ShapeError(
                    f"{what}: dim {d} is not split, and its extent differs between ranks",
                    expected="one extent on all ranks",
                    found=f"{extent} in shape {shape_text(local)}",
                    remedy=f"out_layouts with an axis for dim {d}, or an all_gather" +
                    (f" over {', '.join(s.name.removeprefix('i_') for s in found)}"),
                )
            out.append(extent)
            continue
        total = _global_extent(mesh, extent, entry, known)
        if total is None:
            raise ShapeError(
                f"{what}: dim {d} has extents that are not balanced blocks",
                expected="local extents as numpy.array_split cuts, larger ones first",
                found=f"{extent} in shape {shape_text(local)}",
                remedy="return a part of the extent of an argument's shard",
            )
        out.append(total)
    return tuple(out)


# ---- the call --------------------------------------------------------------------------------


def call(
    context: Context, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    mesh: Any = None, in_layouts: Any = None, out_layouts: Any = ..., pad: bool = False,
    sure: bool = False,
) -> Any:
    """Capture function(*args) as one rank's view; return its results as global arrays. sure: the
    user says that they are as their layouts say."""
    if context.rank_view:
        raise ProgramError("a shard_map inside a shard_map",
                           expected="one shard_map at a time: arrays are local already",
                           remedy="call the function itself")
    if mesh is not None:
        axes_of(context, mesh, "shard_map")
    arguments = _Arguments(context)
    given = in_layouts is not None
    for x, spec in zip(pytree.leaves((args, kwargs)), _argument_specs(in_layouts, args, kwargs)):
        arguments.add(x, spec, given, pad)
    return _capture(context, function, (args, kwargs), arguments, out_layouts, pad, sure)


def _argument_specs(in_layouts: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    if len(args) == 1 and not isinstance(args[0], (tuple, list, dict)):
        first = spread(in_layouts, args)
    elif len(args) == 1 and isinstance(in_layouts, (tuple, list)) and len(in_layouts) == 1:
        first = spread(in_layouts[0], args[0])
    else:
        first = spread(in_layouts, args if len(args) != 1 else args[0])
    return first + [None for _ in pytree.leaves(kwargs)]


def _capture(
    context: Context, function: Callable[..., Any], inputs: Any, arguments: _Arguments,
    out_layouts: Any, pad: bool, sure: bool,
) -> Any:
    place = user_place()
    args, kwargs = inputs
    check_call(function, getattr(function, "__name__", "the function"), *args, **kwargs)
    types = [local_type(context.mesh, v.type) for v in arguments.operands]
    names = [v.name for v in arguments.operands]
    captured: dict[Value, Value] = {}
    context.captured.append(captured)
    context.rank_view += 1
    outside = Outside("shard_map", [(getattr(function, "__name__", "the function"), function)])
    context.bodies.append(outside)
    try:
        with context.block(types, names) as block:
            context.split = dict(zip(block.args, map(axes_in, arguments.layouts)))
            filled = True  # a cache: then the function is called once more
            while filled:
                block.forget()
                made = iter([make(block.args) for make in arguments.makers])
                args, kwargs = _rebuild(inputs, made)
                returned = function(*args, **kwargs)
                filled = outside.check()
            leaves = [x for x in pytree.leaves(returned) if x is not None]
            _check_returned(leaves)
            values = [as_value(context, x) for x in leaves]
            operands = [*arguments.operands, *captured]
            block.args += tuple(captured.values())
            region = block.close(values)
            check(context, region, dict(zip(block.args, (axes_in(lying(v.type))
                                                         for v in operands))))
            if out_layouts is ...:
                layouts = computed_layouts(context, returned, region, operands)
            else:
                layouts = _given_layouts(context, returned, values, out_layouts, pad)
            outs = _result_types(context, values, layouts, operands, region)
    finally:
        context.bodies.remove(outside)
        context.rank_view -= 1
        context.captured.pop()
    lie = tuple(lying(v.type) for v in operands)
    results = context.emit(ShardMap(lie, tuple(map(lying, outs)), tuple(outs), bool(sure)),
                           operands, [region],
                           [getattr(function, "__name__", "result")] * len(outs),
                           place)
    arrays = iter([wrap(context, v, scalar=False) for v in results])
    return pytree.map_tree(lambda _: next(arrays), returned)


def _rebuild(inputs: Any, made: Any) -> Any:
    """Return the arguments with the leaves in `made`, of which a None has one too."""

    def again(x: Any) -> Any:
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*(again(i) for i in x))
        if isinstance(x, (tuple, list)):
            return type(x)(again(i) for i in x)
        if isinstance(x, dict):
            return {k: again(i) for k, i in x.items()}
        return next(made)

    return again(inputs)


def _check_returned(leaves: Sequence[Any]) -> None:
    for x in leaves:
        if isinstance(x, Chosen):
            raise x.refused()
        if not isinstance(x, (Array, Number, int, float, complex, np.ndarray, np.generic)):
            raise ProgramError(f"a function given to shard_map returned a {type(x).__name__}",
                               expected="arrays, or tuples, lists and dicts of arrays",
                               found=repr(x)[:60])
    if not leaves:
        raise ProgramError(
            "a function given to shard_map returned nothing",
            expected="arrays: arguments are by value, so writing into them changes nothing outside",
            found="None", remedy="return the arrays that were written",
        )


def _given_layouts(
    context: Context, returned: Any, values: Sequence[Value], out_layouts: Any, pad: bool
) -> list[Layout]:
    """Return one layout per result, as the user says."""
    several = isinstance(returned, (tuple, list, dict))
    alone = returned if isinstance(returned, (Array, Number)) or several else np.asarray(returned)
    specs = spread(out_layouts, returned if several else (alone,))
    return [layout_of(context, spec, value.type.ndim, _result_name(values, k), pad)
            for k, (value, spec) in enumerate(zip(values, specs))]


def _result_types(
    context: Context, values: Sequence[Value], layouts: Sequence[Layout],
    operands: Sequence[Value], body: Region,
) -> list[ArrayType]:
    shapes = [v.type.shape for v in operands] + [shape for shape, _ in fields_in(body)]
    if any(isinstance(e, Owned) for layout in layouts for e in layout):  # whole in the body
        shapes += [v.type.shape for op in walk(body) for v in op.results]
    known = list(dict.fromkeys(e for shape in shapes for e in shape))
    out = []
    for k, (value, layout) in enumerate(zip(values, layouts)):
        shape = global_shape(context, value.type.shape, layout, known, _result_name(values, k))
        out.append(ArrayType(value.type.dtype, shape, layout))
    return out


def _result_name(values: Sequence[Value], k: int) -> str:
    return "out_layouts" if len(values) == 1 else f"out_layouts, result {k}"


def per_rank(context: Context, shape: Shape, layout: Layout, make: Callable[[], Array]) -> Array:
    """Return a global array whose shards `make` computes on each rank: a shard_map without
    arguments."""
    with rank_view(context), context.block() as block:
        value = as_array(make()).read()
        region = block.close([value])
    result = ArrayType(value.type.dtype, shape, layout)
    made = ShardMap((), (layout,), (result,))
    (array,) = context.emit(made, (), (region,), ("made",))
    return wrap(context, array, scalar=False)


def relayout(x: Array, spec: Any, asked: bool = False) -> Array:
    """Return the same elements over other axes: a new array. asked: by the user, who names no new
    one."""
    context = x.context
    if context.rank_view:
        raise ProgramError(
            "relayout of one rank's array", expected="a global array, outside shard_map",
            found=str(x.type),
            remedy="all_gather, all_to_all and psum_scatter move data between ranks",
        )
    if spec == "auto" and "auto" not in context.mesh.names:
        raise LayoutError(
            'relayout("auto") asks for no layout', expected="the layout that the array shall have",
            found='"auto"', remedy="relayout(None) gathers it on every rank; without relayout the "
            "compiler lays arrays out where it may")
    return laid(x, layout_of(context, spec, x.ndim, "relayout"), asked)


def laid(x: Array, layout: Layout, asked: bool = False) -> Array:
    """Return the same elements in this layout."""
    return wrap(x.context, x.context.emit_one(Relayout(layout, asked), x.read()), scalar=False)


def replicated_constant(context: Context, data: np.ndarray[Any, Any]) -> Array:
    """Return a NumPy array as a global array that every rank holds whole."""
    layout: Layout = ((),) * data.ndim
    shape = tuple(expr.const(n) for n in data.shape)
    return per_rank(context, shape, layout, lambda: shard_of_constant(context, data, layout))


@contextmanager
def rank_view(context: Context) -> Iterator[None]:
    """Let arrays be local while it is open."""
    context.rank_view += 1
    try:
        yield
    finally:
        context.rank_view -= 1

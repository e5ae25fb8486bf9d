"""What a program declares: inputs, run-time scalars, conditions, other meshes, messages.

Always holds: a name is declared once; declaring it again from the same place (a body traced twice)
gives the same thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import (
    LayoutError,
    Place,
    ProgramError,
    ShapeError,
    TracedValueError,
    UsageError,
)
from codegen.image.manifest import ENTRY
from codegen.ir import cuts
from codegen.ir.graph import (
    ArrayType,
    Input,
    Region,
    Scalar,
    Shape,
    Value,
    free_counters,
    free_values,
)
from codegen.mesh import Layout, Owned, checked_text, local_offset
from codegen.ops import Full, Iota, Map, Reshape, RunScalar
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import LAUNCH, Expr, Sym
from codegen.trace import constants, known_arrays, view
from codegen.trace.array import Array, Number, as_array, is_traced, local_shape, number, wrap
from codegen.trace.context import Context, extent_unknown, require_context
from codegen.trace.control.conversion import checked_callback
from codegen.trace.number import DEEPEST, condition_of, expr_of
from codegen.trace.numpy import elementwise
from codegen.trace.ranks import mapping
from codegen.trace.ranks.layout_forms import by_rules, layout_of
from codegen.user import held_inputs, named, spec
from codegen.user.layout_trees import MeshName
from codegen.user.numbers import element_type, rounded
from codegen.user.sameness import check_same, declared_twice, text_and_form


def _not_an_extent(item: Any) -> str:
    if not isinstance(item, Array):
        return repr(item)
    if item.ndim or item.type.dtype.kind not in "iu":
        return "an array"
    return ("a number that the program computes while it runs (a formula has at most "
            f"{DEEPEST} operations such as // in each other)")


def _when_built(text: str) -> str:
    """Return how a number becomes known while building: this text, or what this capture says of
    it."""
    context = Context.current()
    return (context.when_built if context else "") or text


def shape_of(shape: Any, subject: str, scalars: bool = False) -> Shape:
    """Return extents the user gave: Python integers, or formulas in axis sizes (locally: the
    index)."""
    shape = known_arrays.plain(shape)
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    if isinstance(shape, np.ndarray):
        items = shape.ravel().tolist()
    out = []
    for item in items:
        e = expr_of(item)
        if e is None or (expr.nonneg(-e - 1)):
            extent_unknown()
            raise TracedValueError(
                f"{subject}: {'this number' if is_traced(item) else repr(item)} cannot be an "
                "extent",
                expected="a non-negative Python integer, or a formula of axis sizes",
                found=_not_an_extent(item),
                remedy=_when_built("parameters of the program are Python integers")
                if e is None else "",
            )
        if e.is_const and e.value >= 2**62:
            raise ShapeError(f"{subject}: this extent is too large", expected="less than 2**62",
                             found=str(e.value))
        context = Context.current()
        kinds = {s.kind for s in e.symbols()}
        if not scalars and kinds & {"scalar", "counter"}:
            extent_unknown()
            raise TracedValueError(
                f"{subject}: the extent {e} depends on a run-time scalar or a loop counter",
                expected="a Python integer, or a formula of axis sizes", found=str(e),
                remedy=_when_built("make it a parameter of the program, which is set at build"),
            )
        if kinds <= LAUNCH and context is not None and context.in_every_launch:
            context.hold(expr.ge0(e), f"the extent {e} is not negative")
        out.append(e)
    return tuple(out)


# ---- scalars ---------------------------------------------------------------------------------


def scalar(name: str, default: Any = None, dtype: Any = None) -> Any:
    """Return a number that is set when the image runs: `--set steps=500`, or
    `image.run(steps=500)`.

    An int or bool default makes an int64 scalar: a number that may stand in bounds of loops, in
    subscripts and in conditions, but not in shapes. A float default, or none, makes a float64
    scalar: an array of shape () that takes the dtype of the array that it meets. Without a default
    each run has to give a value. Where the default is True or False, a run gives one of these.
    UsageError for a default that is not a number.

    Example::

        @spmd.program(mesh=("r",))
        def scaled(n: int = 4):
            factor = spmd.scalar("factor", 2.0)
            return factor * spmd.input("x", (n,), np.float64, layout=("r",))

        print(scaled.eager(x=np.ones(4), factor=3.0))    # [3. 3. 3. 3.]
    """
    context = require_context("spmd.scalar")
    element = _scalar_dtype(default, dtype)
    _check_default(default, element, name)
    known, here = context.scalars.get(name), user_place()
    if name not in context.own_scalars:
        _check_name(context, name, "scalar")
    said = {"dtype": (element.name, element.name), "default": text_and_form(default, _comparable)}
    if known is None:
        context.declarations[name] = said
        low, high = context.limits.get(name, (None, None))
        plain_int = element is dtypes.INT64
        sym = Sym(_own_name(context, name), "scalar", low, high) if plain_int else None
        held = default if default is None else _held(default, plain_int)
        known = context.scalars[name] = Scalar(name, element, held, sym, here)
    elif known.at_most is not None:
        raise declared_twice(name, "scalar", known.place, here)
    else:  # entries of a class may declare one scalar alike
        before = context.own_scalars.get(name, here)
        check_same(name, "scalar", (before, context.declarations[name]), (here, said))
    context.own_scalars.setdefault(name, here)
    if known.sym is not None:
        plain = Number(expr.symbol(known.sym))
        return plain != 0 if isinstance(default, bool) else plain
    value = context.emit(RunScalar(scalar=name, dtype=element), (), names=(name,))[0]
    return wrap(context, value, weak=True)


def _own_name(context: Context, name: str) -> str:
    """Return the name by which launches set a scalar that stands in formulas; raise UsageError if
    it is taken."""
    if not context.is_free(name):
        raise UsageError(
            f"spmd.scalar({name!r}): another number of this program has that name",
            place=user_place(), expected="a name that no loop variable before it has",
            found=f"{name}, of a loop, of the mesh, or of the members of exchanges",
            remedy=f"another name, as spmd.scalar({name + '_given'!r})",
        )
    return name


def _held(default: Any, whole: bool) -> int | float:
    """Return the default as Python's own number; True and False stay what they are: launches then
    take nothing else."""
    if isinstance(default, (bool, np.bool_)) and whole:
        return bool(default)
    return int(default) if whole else float(default)


def _scalar_dtype(default: Any, dtype: Any) -> DType:
    if dtype is not None:
        return dtypes.INT64 if element_type(dtype).kind in "iub" else dtypes.FLOAT64
    if isinstance(default, (bool, int, np.integer, np.bool_)):
        return dtypes.INT64
    if default is None or isinstance(default, (float, np.floating)):
        return dtypes.FLOAT64
    raise UsageError("the default of a scalar must be a number", expected="an int or a float",
                     found="a number that the program computes" if
                     isinstance(default, (Array, Number)) and not np.ndim(default) else
                     f"{type(default).__name__}",
                     remedy="an array is declared by spmd.input")


def _check_default(default: Any, dtype: DType, name: Any) -> None:
    """Raise UsageError for a number that no image can hold: a scalar has 64 bits."""
    if default is None or dtype.kind == "f" and isinstance(default, (float, np.floating)):
        return
    low, high = (-(2**63), 2**63 - 1) if dtype is dtypes.INT64 else (-(2**1023), 2**1023)
    if not low <= default <= high:  # nan too
        raise UsageError(f'the default of scalar "{name}" does not fit into 64 bits',
                         expected=f"an int of {low} to {high}" if dtype is dtypes.INT64 else
                         "a float64",
                         found=repr(default) if isinstance(default, float) or abs(default) < 2**99
                         else f"an int of {default.bit_length()} bits",
                         remedy="" if dtype is dtypes.FLOAT64 else
                         "a float scalar: dtype=np.float64")


def _declaration_texts(
    context: Context, name: str, shape: Any, dtype: Any, layout: Any, default: Any, optional: bool
) -> dict[str, tuple[str, Any]]:
    """Return, by part of an input's declaration, its text in messages, and a form that compares."""
    extents = shape_of(shape, f'input "{name}"')
    element = element_type(dtype).name
    where = layout_of(context, by_rules(context, shape, layout), len(extents), f'input "{name}"')
    return {
        "dtype": (element, element),
        "shape": (elementwise.shape_text(extents), extents),
        "layout": (repr(layout), (layout is None, where)),
        "default": text_and_form(
            _uniform(context, known_arrays.plain(default), extents), _comparable),
        "optional": (str(bool(optional)), bool(optional)),
    }


def flag_of_call(context: Context, hint: str) -> Sym:
    """Return a new symbol that is 1 or 0, as each call of the image says."""
    name = context.unique("".join(c if c.isalnum() else "_" for c in hint))
    return Sym(name, "flag", expr.const(0), expr.const(1))


def _comparable(x: Any) -> Any:
    """Return the type in the place of an array of the program or a counter: these are new in each
    capture of a body."""
    x = known_arrays.plain(x)
    if isinstance(x, Number):
        passing = any(s.kind == "counter" for s in x.expr.symbols())
        return "a counter" if passing else str(x.expr)
    return str(x.type) if isinstance(x, Array) else x


def _check_name(context: Context, name: Any, kind: str) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(
            f"the name of a{'n' if kind == 'input' else ''} {kind} must be an identifier",
            expected='text such as "u" or "steps"', found=repr(name),
        )
    if name == ENTRY and context.entry and kind == "scalar":
        raise UsageError('the scalar "entry" says which entry of a class runs', place=user_place(),
                         expected="another name", found='spmd.scalar("entry")',
                         remedy='spmd.scalar("entry_given")')
    known = context.own_scalars | {k: i.place for k, i in context.inputs.items()}
    for its_name, place in known.items():
        if its_name == name or named.is_in(its_name, name):
            raise declared_twice(name, kind, place, user_place())


# ---- inputs ----------------------------------------------------------------------------------


@overload
def input_(
    name: str, shape: tuple[Any, ...] | int, dtype: Any = ..., layout: Any = ...,
    default: Any = ..., optional: bool = ...,
) -> Array: ...


@overload
def input_(
    name: str, shape: Any, dtype: Any = ..., layout: Any = ..., default: Any = ...,
    optional: bool = ...,
) -> Any: ...


def input_(
    name: str, shape: Any, dtype: Any = None, layout: Any = None, default: Any = None,
    optional: bool = False,
) -> Any:
    """Return an array that is given when the image runs: `-i u=u.npy`, or `image.run(u=array)`.

    - shape: of the whole array. Extents are integers, named dims (spmd.Dim; with at_most= each run
      says their extent), or formulas in axis sizes. Or a tree: dicts, lists, tuples and dataclasses
      of spmd.spec(shape, dtype, layout).
    - dtype: float64 unless you say otherwise.
    - layout: for each dim the mesh axis that splits it, a tuple of axes, or None. Left out, it
      follows from the arrays that the input meets.
    - default: an array, or a function of the global indices (one argument for each dim: arrays that
      broadcast). Without it, every run has to give the input.
    - optional: True: a call may leave the input out. What needs it then does not run: its prints
      and asserts neither, and None stands for outputs that follow from it. Do not ask `if x is
      None`: the program's text says what needs x. An optional tree is given whole, or left out.

    Of a tree each leaf is one input, whose name has dots, such as `w.blocks.0.query`; the same tree
    of arrays is returned. Runs take it whole: `image.run(w=tree)`, `-i w=FILE.safetensors`. A
    default may be a tree too.

    LayoutError for an illegal layout, ShapeError for a default of another shape, ProgramError for a
    name that is declared twice or inside a shard_map, InputError for a tree of defaults that lacks
    leaves, UsageError for an optional input with a default.

    Example::

        @spmd.program(mesh=("r",))
        def table(n: int = 3):
            return spmd.input("x", (n, 2), np.int64, layout=("r", None), default=lambda i, j: i - j)

        print(table.eager().tolist())    # [[0, -1], [1, 0], [2, 1]]
    """
    context = require_context("spmd.input")
    if isinstance(shape, (Array, np.ndarray)) and shape.dtype.kind not in "iu":
        raise UsageError(f'input "{name}" is declared with an array in place of a shape',
                         expected="spmd.input(name, shape, …)", found=f"an array of {shape.dtype}",
                         remedy=f'spmd.input("{name}", x.shape, x.dtype, default=x)')
    tree, leaves = spec.declared(name, known_arrays.plain(shape), dtype, layout)
    if name in context.held or name in context.declared_states:
        types = {leaf: (element_type(form.dtype).name, shape_of(form.shape, f'input "{leaf}"'))
                 for leaf, form in leaves.items()}
    if name in context.held:
        return held_inputs.taken(
            context.held[name], name, types, lambda x: (x.type.dtype.name, x.extents),
            lambda x: wrap(context, x.read(), scalar=False))
    known = {name, *named.of_tree(name, context.inputs)}
    if {name, *leaves} != known or (name in leaves and name not in context.inputs):
        _check_name(context, name, "input")
    defaults = {leaf: part.default for leaf, part in leaves.items()}
    if default is not None:
        defaults |= named.spread({name: default}, leaves, "default of")
    if name in context.declared_states:
        context.declared_states[name] = tree, {
            leaf: held_inputs.HeldInput(part.shape, part.dtype, part.layout, defaults[leaf],
                                        types[leaf], user_place())
            for leaf, part in leaves.items()}
    return named.renamed(lambda leaf, part: _one_input(
        context, leaf, part.shape, part.dtype, part.layout, defaults[leaf], optional), tree, name)


def _one_input(
    context: Context, name: str, shape: Any, dtype: Any, layout: Any, default: Any,
    optional: bool = False,
) -> Array:
    before = context.inputs.get(name)
    if before is not None:
        said = _declaration_texts(context, name, shape, dtype, layout, default, optional)
        check_same(name, "input", (before.place, context.declarations[name]), (user_place(), said))
        return wrap(context, before.value, scalar=False)
    if context.rank_view:
        raise ProgramError("spmd.input stands inside a shard_map",
                           expected="inputs declared in the program, outside shard_map",
                           remedy="pass the input to the function as an argument")
    extents = shape_of(shape, f'input "{name}"')
    dim = context.scalars.get(name)
    if dim is not None and dim.at_most is not None:  # its own
        raise declared_twice(name, "input", dim.place, user_place())
    element = element_type(dtype)
    declared_layout, layout = layout, by_rules(context, shape, layout)
    chosen = layout_of(context, layout, len(extents), f'input "{name}"')
    whole_name = named.below(context.entry, name)  # two entries may each have an input x
    if layout is None:
        context.auto.append(whole_name)
        chosen = tuple(
            cuts.owned(e, e.rows, e.row, context.mesh) if isinstance(e, Owned) else e
            for e in context.layouts.get(whole_name, chosen))
    _check_split(extents, chosen, name)
    value = Value(whole_name, ArrayType(element, extents, chosen))
    region = None
    if default is not None:
        region = _default_region(context, name, default, extents, element, chosen)
    origin = "chosen" if layout is None else "given" if layout is declared_layout else "rules"
    context.declarations[name] = _declaration_texts(
        context, name, shape, dtype, declared_layout, default, optional)
    flag, root = None, ""
    if optional:
        spec.check_optional(name, default)
        # of a tree, all of which is given, or nothing
        root = named.below(context.entry, name.partition(".")[0])
        flags = (i.flag for i in context.inputs.values() if i.root == root)
        flag = next(flags, None) or flag_of_call(context, f"given_{root}")
    context.inputs[name] = Input(value, chosen, extents, region, user_place(), origin, flag,
                                 root)
    return wrap(context, value, scalar=False)


def array_input(name: str, shape: tuple[int, ...], dtype: DType, layout: Any) -> Array:
    """Return an input of a name that may be any text."""
    return _one_input(require_context("an input"), name, shape, dtype, layout, None)


def number_input(name: str, dtype: DType, weak: bool) -> Array:
    """Return an input that is one number. weak: it promotes as a Python number does."""
    array = array_input(name, (), dtype, ())
    array.weak, array.scalar = weak, True
    return array


def _check_split(extents: Shape, layout: Layout, name: str) -> None:
    for d, (e, entry) in enumerate(zip(extents, layout)):
        if not entry and any(s.kind == "coord" for s in e.symbols()):
            raise LayoutError(f'input "{name}": dim {d} depends on the index but is not split',
                              expected="an extent that is equal on all ranks",
                              found=str(e))


def _default_region(
    context: Context, name: str, default: Any, extents: Shape, dtype: DType, layout: Layout
) -> Region:
    """Return the region of one rank's code that computes its shard."""
    default = _uniform(context, known_arrays.plain(default), extents)
    if isinstance(default, (int, float, np.integer, np.floating)):
        rounded(default, dtype)  # of a NaN NumPy makes an integer
    with mapping.rank_view(context), context.block() as block:
        local = local_shape(context.mesh, extents, layout)
        if callable(default):
            array = _from_function(context, default, extents, local, layout)
        else:
            array = _from_array(context, name, default, extents, layout)
        if array.extents != local:
            if callable(default) and array.extents == extents:
                raise ShapeError(
                    f'the default of input "{name}" gives all elements, whatever it is asked for',
                    expected="those at the indices that it is given: each rank asks for its own",
                    found=f"an array of {elementwise.shape_text(array.extents)}",
                    remedy="default=lambda i: table[i]; or default=table, the array itself")
            shape = elementwise.broadcast_shapes([array.extents, local], f'default of "{name}"')
            if len(shape) != len(local) or not all(map(elementwise.same_extent, shape, local)):
                raise ShapeError(f'the default of input "{name}" has another shape',
                                 expected=f"what broadcasts to {elementwise.shape_text(local)}",
                                 found=elementwise.shape_text(array.extents))
        value = elementwise.operand_value(context, array, dtype, local)
        region = block.close([value])
    _refuse_computed(name, region)
    return region


def _refuse_computed(name: str, region: Region) -> None:
    """Raise ProgramError where a default needs what only exists while the program runs."""
    arrays, counters = free_values(region), free_counters(region)
    if arrays or counters:
        dependency = "arrays of the program" if arrays else "a number that the program computes"
        raise ProgramError(
            f'the default of input "{name}" uses {dependency}',
            expected="global indices, constants and integer scalars: an input is filled once, "
            "before the program runs",
            found=", ".join([v.name for v in arrays] + [f"{s.name}, which changes while it runs"
                                                        for s in counters]),
            remedy="a default without it, and then compute with the input: "
            f"{name} + {(arrays or counters)[0].name}",
        )


def _uniform(context: Context, default: Any, extents: Shape) -> Any:
    """Return the number that an array of the program, such as np.zeros made, has everywhere."""
    if not isinstance(default, Array) or (default.extents != extents and not default.ndim):
        return default
    if default.extents != extents:
        raise ShapeError("the default of an input has another shape",
                         expected=elementwise.shape_text(extents),
                         found=elementwise.shape_text(default.extents))
    value = default.read()
    op = next((op for b in context.blocks for op in b.ops if value in op.results), None)
    return op.kind.value if op is not None and isinstance(op.kind, Full) else default


def _from_function(
    context: Context, default: Callable[..., Any], extents: Shape, local: Shape, layout: Layout
) -> Array:
    """Return the function called with open grids of global indices, as
    numpy.indices(sparse=True)."""
    names = [f"index {d}" for d in range(len(layout))]
    function = checked_callback(default, "the default of an input", *names)
    grids = []
    for d, entry in enumerate(layout):
        offset = local_offset(context.mesh, extents[d], entry)
        grids.append(global_indices(context, local[d], offset, d, len(local)))
    return as_array(function(*grids))


def global_indices(context: Context, extent: Expr, offset: Expr, dim: int, ndim: int) -> Array:
    """Return offset, offset + 1, … along dim of an array of ndim dims whose others have extent
    1."""
    value = context.emit_one(Iota(dim=0, dtype=dtypes.INT64, shape=(extent,)))
    if offset != 0:
        first = constants.broadcast_value(context, view.index_value(context, offset), (extent,))
        value = context.emit_one(Map("add"), value, first)
    unit = expr.const(1)
    shape = tuple(extent if d == dim else unit for d in range(ndim))
    if shape != (extent,):
        value = context.emit_one(Reshape(shape=shape), value)
    return wrap(context, value, scalar=False)


def _from_array(context: Context, name: str, default: Any, extents: Shape, layout: Layout) -> Array:
    if isinstance(default, (Number, Array)):
        return as_array(default)
    data = dtypes.as_numpy(default)
    if data.ndim == 0:
        return as_array(data)
    shape = tuple(expr.const(n) for n in data.shape)
    if shape != extents:
        bounded = any(e.has_extents for e in extents)
        raise ShapeError(f'the default of input "{name}" has another shape',
                         expected=elementwise.shape_text(extents),
                         found=elementwise.shape_text(shape),
                         remedy="a function of the indices, which is asked for as many as there "
                         "are: default=lambda i: table[i]" if bounded else "")
    return mapping.shard_of_constant(context, data, layout)


def check_dims(context: Context) -> None:
    """Raise ProgramError where nothing says to a run how many elements a named dim has."""
    said = {e for i in context.inputs.values() for e in i.shape}
    for dim in context.scalars.values():
        if dim.at_most is not None and dim.sym is not None and expr.symbol(dim.sym) not in said:
            raise ProgramError(
                f'no input has the dim "{dim.name}", whose extent only a run knows',
                place=dim.place, expected="an input with the dim itself in its shape",
                found=", ".join(f"{i.name}: {elementwise.shape_text(i.shape)}"
                                for i in context.inputs.values()) or "no inputs",
                remedy=f'spmd.Dim("{dim.name}", {dim.at_most}), which has one extent in all runs')


# ---- conditions and meshes -------------------------------------------------------------------


def require(condition: Any, text: str = "") -> None:
    """State for which launches the program is made; all others are refused (MeshError, exit code
    78).

    - condition: a comparison of axis sizes, int scalars, parameters and integers.
    - text: what the message says instead of the condition.

    The compiler uses what you state: after `require(n % axis_size("r") == 0)` all shards have one
    shape; after `require(0 <= k)` and `require(k <= n)` slices with the scalar k fit each other;
    after `require(size & (size - 1) == 0)`, a power of two, every `i ^ d` is a rank.
    TracedValueError for a condition that depends on data or on the index, ProgramError for one that
    can never hold.

    Example::

        @spmd.program(mesh=("r",))
        def even(n: int = 6):
            spmd.require(n % spmd.axis_size("r") == 0, "equal shards")
            return np.sum(spmd.input("x", (n,), np.float64, layout=("r",)))

        print(spmd.build(even).run(ranks=3, x=np.ones(6)))    # 6.0
    """
    context = require_context("spmd.require")
    place = user_place()
    checked_text(text, place)
    holds = condition_of(condition)
    if holds is None or any(s.kind in ("coord", "counter", "var") for s in holds.symbols()):
        raise TracedValueError(
            "spmd.require takes a condition that is known at launch", place=place,
            expected="a comparison of axis sizes, run-time int scalars and integers",
            found=repr(condition),
            remedy='assert condition, "…" is checked while the program runs',
        )
    if holds == 0:
        raise ProgramError("a condition of the program can never hold", place=place,
                           expected=text or "a condition that holds for some mesh sizes",
                           found="False")
    if holds != 1:
        wording = text or (_source_of(place) if place else str(holds))
        context.hold(holds, wording)


def _source_of(place: Place) -> str:
    line = place.source_line()
    text = line[place.column : place.end_column].strip() if place.end_column > 0 else line.strip()
    inner = text.removeprefix("spmd.").removeprefix("require(")
    return inner.removesuffix(")") if inner != text else text


def mesh(name: str) -> MeshName:
    """Return another mesh over the same ranks: one axis of this name, along which ranks lie in the
    order of their index. Its name may stand wherever an axis may: `psum(x, "all")` after
    `mesh("all")`.

    UsageError where the program's mesh has an axis of this name.
    """
    context = require_context("spmd.mesh")
    known = context.mesh_names.get(name)
    if name in context.mesh.names and context.mesh.names != (name,):
        raise UsageError(f'"{name}" is an axis of the program\'s mesh already',
                         expected="another name", found=repr(name))
    if known is None:
        context.mesh_names[name] = context.mesh.names
    return MeshName(name, context.mesh.names)


def number_of_ranks() -> Any:
    """Return how many ranks there are, over all axes: a number that is known when the image
    runs."""
    return number(require_context("spmd.ranks").mesh.ranks)

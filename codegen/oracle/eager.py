"""A program as plain Python on NumPy arrays: the simplest debugger, and an oracle.

The user's function runs unconverted, once, on global arrays; shard_map runs its function once per
rank (threads.py) on the parts that numpy.array_split cuts. NumPy's own rules hold where they differ
from an image's: an index beyond the ends raises, Python integers do not wrap, i // 0 raises.
Always holds: shards, and what a rank receives, are copies.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ml_dtypes  # noqa: F401  so that NumPy knows the name bfloat16
import numpy as np

from codegen import dtypes
from codegen.errors import InputError, LayoutError, MeshError, Place, SpmdError, UsageError
from codegen.image.manifest import scalar_value
from codegen.ir.graph import Module, layout_text, walk
from codegen.mesh import Layout, as_written
from codegen.ops import ShardMap
from codegen.ops.kind import layout_of
from codegen.oracle import interpret
from codegen.oracle.common import Common
from codegen.oracle.local import EagerArray, whole
from codegen.oracle.ranks import EagerRank, Shards
from codegen.oracle.streams import EagerStream, declared
from codegen.oracle.threads import Crew
from codegen.places import put_place, user_place
from codegen.user import held_inputs, named, spec
from codegen.user.absent import Absent, stand_in_for, stand_in_of
from codegen.user.casts import inexact, may_cast
from codegen.user.dims import BoundedDim, extent_of, fixed
from codegen.user.eager_runs import running_eagerly
from codegen.user.given_extents import GivenExtents
from codegen.user.layout_trees import MeshName, spread
from codegen.user.numbers import element_type, rounded
from codegen.user.pytree import leaves, map_tree
from codegen.user.sameness import Said, check_same, text_and_form


def run(
    function: Callable[..., Any], axes: Mapping[str, int], arguments: Mapping[str, Any],
    graph: Callable[[], Module], of: Callable[[Callable[[], Any]], Module],
    prints: list[str] | None = None, frames: Mapping[str, Callable[..., Any]] | None = None,
    outside: Callable[[], Container[int]] = tuple,
) -> Any:
    """Run the program's function and return its result, with whole NumPy arrays as leaves.

    axes: ranks along each mesh axis, in order. arguments: parameters, inputs and scalars by name.
    graph captures the program: for layouts of results that the compiler knows and plain NumPy does
    not; `of` does so with another function, for derivatives. prints collects what spmd.print says;
    by default it goes to standard output.
    frames: by the name of a save, a function of each frame.
    outside: a function that returns, by id, the memory of arrays that the program finds.
    """
    parameters = inspect.signature(function).parameters
    own = {k: v for k, v in arguments.items() if k in parameters}
    world = World(axes, {k: v for k, v in arguments.items() if k not in parameters}, graph, of,
                  prints)
    world.frames, world.reachable = frames or {}, outside
    result = world.runs(  # an extent is a number while the run is under way
        lambda: named.renamed(lambda _, leaf: extent_of(leaf), function(**own)), also=parameters)
    return world.returned(result)


def outputs(
    module: Module, axes: Mapping[str, int], prints: list[str]
) -> dict[str, Any]:
    """Return the outputs of a Graph without inputs, as whole arrays by name. prints collects the
    printed texts."""
    return interpret.run(module, axes, prints=prints)


def mesh_sizes(names: Sequence[str], fixed: Mapping[str, int | None], ranks: int) -> dict[str, int]:
    """Return ranks along each axis: as fixed, the rest as equal as possible and not increasing."""
    free = [name for name in names if not fixed.get(name)]
    taken = int(np.prod([fixed.get(name) or 1 for name in names]))
    left = ranks // taken
    if left * taken != ranks or (not free and left != 1):
        raise MeshError(f"{ranks} ranks do not form a mesh with {dict(fixed)}",
                        expected=f"a multiple of {taken}" if free else
                        f"{taken} ranks")
    divisors = [d for d in range(1, left + 1) if left % d == 0]
    shapes = (
        c for c in itertools.product(divisors, repeat=len(free))
        if np.prod(c) == left and list(c) == sorted(c, reverse=True)
    )
    sizes = dict(zip(free, min(shapes), strict=True))
    return {name: sizes.get(name) or fixed.get(name) or 1 for name in names}


class World(Common):
    """The functions of `spmd` in the program itself: arrays are whole."""

    def __init__(
        self, axes: Mapping[str, int], arguments: Mapping[str, Any], graph: Callable[[], Module],
        of: Callable[[Callable[[], Any]], Module], prints: list[str] | None,
    ) -> None:
        super().__init__(axes, prints)
        self.graph, self.of = functools.cache(graph), of
        self.arguments = arguments
        # by name of an input or a scalar: where it is declared, and as what
        self.declared: dict[str, tuple[Place | None, Said]] = {}
        self.most: dict[str, int] = {}  # elements along named dims that only a run knows
        self.extents = GivenExtents(self.most)
        self.shards = Shards(self)
        self.feeds: dict[str, EagerStream] = {}
        self.held: Mapping[str, Any] = {}  # states in the place of inputs, by name

    def runs(
        self, function: Callable[[], Any], place: Place | None = None, also: Iterable[str] = ()
    ) -> Any:
        """Run the user's function and return its result. place: for errors that have none. also:
        names of further arguments that are no inputs or scalars. Raise UsageError for arguments
        that it does not declare."""
        try:
            with running_eagerly(self), np.errstate(all="ignore"):
                result = function()
        except SpmdError as error:
            put_place(error)
            raise
        if unknown := [name for name in self.arguments if not self.knows(name) and name != "only"]:
            raise UsageError(
                f"the program has no {sorted(unknown)[0]!r}", place=place,
                expected=f"one of {named.listed(sorted({*also, *self.declared})) or 'nothing'}",
            )
        streams = self.arguments.get("feed") if self.feeds else None
        if isinstance(streams, Mapping) and (
                unknown := [f for f in streams if f not in self.feeds]):
            raise UsageError(f'the program has no feed "{unknown[0]}"',
                             expected=f"one of {', '.join(self.feeds)}")
        return result

    def returned(self, result: Any) -> Any:
        """Return copies of the results of a call, without absent ones and without outputs that the
        call does not ask for."""
        only = None if self.knows("only") else self.arguments.get("only")
        wanted = named.asked(only, [name or "result" for name, _ in named.named(result)])
        return named.renamed(lambda name, leaf: whole(leaf) if leaf is not None and
                             (name or "result") in wanted else None, result)

    def __getattr__(self, name: str) -> Any:
        """Refuse the functions that only one rank's view has."""
        if name.startswith("_") or not hasattr(EagerRank, name):
            raise AttributeError(name)
        raise self.outside(name)

    # ---- declarations ----------------------------------------------------------------------------

    def input(self, name: str, shape: Any, dtype: Any = None, layout: Any = None,
              default: Any = None, optional: bool = False) -> Any:
        tree, leaves = spec.declared(name, shape, dtype, layout)
        if name in self.held:
            types = {leaf: (element_type(stated.dtype).name, _extents(stated.shape))
                     for leaf, stated in leaves.items()}
            return held_inputs.taken(self.held[name], name, types,
                                     lambda x: (x.dtype.name, x.shape), lambda x: x.copy())
        arrays = named.spread({k: x for k, x in self.arguments.items()
                               if k == name or named.is_in(k, name)
                               if x is not None or not optional}, leaves)
        defaults = {} if default is None else named.spread({name: default}, leaves, "default of")
        missing = name if optional and not arrays else ""

        def declare(leaf: str, stated: spec.Spec) -> Any:
            default_of_leaf = defaults.get(leaf, stated.default)
            return self._input(leaf, stated, arrays.get(leaf), default_of_leaf, optional, missing)

        return named.renamed(declare, tree, name)

    def knows(self, name: str) -> bool:
        """Return whether a name is declared, or is that of a tree of declared inputs."""
        if name == "feed" and self.feeds:
            return True
        return name in self.declared or bool(named.of_tree(name, self.declared))

    def _input(self, name: str, stated: spec.Spec, value: Any, default: Any, optional: bool,
               missing: str) -> Any:
        """Declare an input and return its array. missing: the optional input, or tree, that a call
        has left out."""
        shape, layout, dtype = stated.shape, stated.layout, element_type(stated.dtype)
        dims = _extents(shape)
        self._declare("input", name, shape=dims, dtype=dtype, layout=layout, default=default,
                      optional=bool(optional))
        if optional:
            spec.check_optional(name, default)
        if value is not None:
            self._take(name, dims, np.shape(value))
        extents = tuple(int(e) if isinstance(e, BoundedDim) else e for e in dims)
        if missing:
            stand_in = stand_in_for(extents, dtypes.numpy_dtype(dtype))
            return Absent(self.eager_array(stand_in, layout), (missing,))
        if value is not None:
            array = dtypes.as_numpy(value)
            if array.shape != extents:
                raise InputError(f"input {name} has another shape", expected=str(extents),
                                 found=str(array.shape))
            _check_kept(name, array, dtypes.numpy_dtype(dtype))
        elif default is None:
            raise InputError(f"input {name} is not given",
                             remedy=f"pass {name}=array, or declare default=")
        elif callable(default):
            array = np.asarray(default(*np.indices(extents, sparse=True)))
        else:
            array = dtypes.as_numpy(default)
            if not array.ndim and array.dtype.kind in "iuf":
                rounded(array.item(), dtype)  # of a NaN NumPy makes an integer
        return self.eager_array(np.broadcast_to(array, extents).astype(stated.dtype), layout)

    def _take(self, name: str, dims: Sequence[Any], shape: Sequence[int]) -> None:
        """Note the extents of named dims that the shape of an input shows."""
        for dim in dims:
            if isinstance(dim, BoundedDim):
                self.most[dim.name] = dim.at_most
        self.extents.take(name, [getattr(dim, "name", None) for dim in dims], shape)

    def extent_of(self, dim: BoundedDim) -> int:
        """Return the extent of a dim, from the inputs that have been declared, else from those that
        will be; if none of them is given, the most."""
        extents = self.extents.values()
        if dim.name not in extents:
            with suppress(SpmdError):  # of a program that does not build
                module = self.graph()
                inputs = named.spread(self.arguments, [i.name for i in module.inputs])
                extents = interpret.extents_given(module, inputs)
        return extents.get(dim.name, dim.at_most)

    def feed(self, name: str = "feed", /, **fields: Any) -> EagerStream:
        self._declare("feed", f"feed {name}", **{"list of fields": tuple(fields)}, **{
            k: (s.shape, s.dtype, s.layout) if isinstance(s, spec.Spec) else None
            for k, s in named.named(fields)})
        if name not in self.feeds:
            self.feeds[name] = declared(self, self.arguments.get("feed"), name, fields, self.feeds)
        return self.feeds[name]

    def field_layout(self, feed: str, field: str) -> Any:
        """Return the layout that the compiler gives a field, where rules of the program may name
        its dims."""
        try:
            (declared_feed,) = (f for f in self.graph().feeds if f.name == feed)
        except SpmdError as error:
            raise LayoutError(
                f'field "{field}" of feed "{feed}" needs a layout in an eager run',
                place=user_place(), expected="the layout that the program's rules say",
                found=f"the program does not build: {error.message}",
                remedy='write it: spmd.spec(shape, dtype, layout=("x", None))') from error
        return as_written(layout_of(dict(declared_feed.fields)[field]))

    def _declare(self, role: str, name: str, **parts: Any) -> None:
        """Raises ProgramError where a name means something else already."""
        said = {k: text_and_form(x, lambda leaf: leaf) for k, x in parts.items()}
        now = user_place(), said | {"kind": (role, role)}
        check_same(name, role, self.declared.setdefault(name, now), now)

    def scalar(self, name: str, default: Any = None, dtype: Any = None) -> Any:
        self._declare("scalar", name, dtype=dtype, default=default)
        kind = np.dtype(dtype) if dtype is not None else np.asarray(default or 0.0).dtype
        if default is not None and dtype is None:
            kind = np.asarray(default).dtype
        declared = {"name": name, "dtype": "int64" if kind.kind in "iub" else "float64",
                    "default": default}
        value = scalar_value(declared, self.arguments[name]) if name in self.arguments else default
        if value is None:
            raise InputError(f"scalar {name} is not given",
                             remedy=f"pass {name}=number, or declare a default")
        if isinstance(default, bool):
            return bool(value)
        return int(value) if kind.kind in "iub" else float(value)

    def mesh(self, name: str) -> MeshName:
        return MeshName(name, tuple(self.axes))

    def barrier(self, axis: Any = None) -> None:
        """Do nothing, since the program's own code runs once and there is nobody to wait for."""

    def captured(self, function: Callable[[], Any]) -> list[EagerArray]:
        """Return the arrays of a dict that a function returns, which is captured and
        interpreted."""
        with running_eagerly(None), fixed(self.extent_of):
            module = self.of(function)
        results = interpret.run(module, self.axes)
        return [self.eager_array(results[o.name], as_written(o.layout)) for o in module.outputs]

    # ---- shard_map -------------------------------------------------------------------------------

    def shard_map(self, f: Any, in_layouts: Any, out_layouts: Any, args: Sequence[Any]) -> Any:
        """Run f on every rank's shards of the arguments; return the results as global arrays."""
        specs = self._argument_layouts(in_layouts, args)
        crew = Crew(self.shards.group)
        bodies = [self._body(f, args, specs, crew, k) for k in range(len(self.shards.coords))]
        results = crew.run(bodies)
        flat = [[x for x in leaves(r) if x is not None] for r in results]
        several = isinstance(results[0], (tuple, list, dict))
        if out_layouts is ...:
            arrays = zip((x for x in leaves(tuple(args)) if x is not None), specs, strict=True)
            taken = [self.shards.entries(spec, x.ndim) for x, spec in arrays
                     if isinstance(x, (EagerArray, Absent))]
            layouts = self._computed_layouts(taken, [np.ndim(x) for x in flat[0]])
        else:
            first = results[0] if several else (np.asarray(stand_in_of(results[0])),)
            layouts = spread(out_layouts, first)
        joined = iter([
            self.shards.join([r[j] for r in flat], layouts[j]) for j in range(len(flat[0]))
        ])
        return map_tree(lambda _: next(joined), results[0])

    def _computed_layouts(self, taken: Sequence[Layout], ndims: Sequence[int]) -> list[Any]:
        """Return the layouts of results that the compiler computes for the call that runs now.
        taken: the layouts of its arguments; ndims: of its results."""
        here = user_place()
        try:
            calls = [(op.place, op.kind) for op in walk(self.graph().body)
                     if isinstance(op.kind, ShardMap)]
        except LayoutError:
            raise
        except SpmdError as error:
            raise self._unknown(f"the program does not build: {error.message}") from error
        layouts = list(dict.fromkeys(
            (call.in_layouts, call.out_layouts) for place, call in calls
            if place and here
            and (place.file, place.line, place.column) == (here.file, here.line, here.column)
            and [len(layout) for layout in call.out_layouts] == list(ndims)
        ))
        if len({out for _, out in layouts}) != 1:
            raise self._unknown("other layouts in other calls of this line" if layouts else
                                "no such shard_map in the compiled program")
        for operands, _ in layouts:
            rest = iter(operands)  # arrays met by closure and constants stand between and behind
            if not all(layout in rest for layout in taken):
                lie = ", ".join(map(layout_text, operands))
                raise self._unknown(f"the compiler lays the arguments out as {lie}")
        return [as_written(layout) for layout in layouts[0][1]]

    @staticmethod
    def _unknown(why: str) -> LayoutError:
        return LayoutError(
            "this shard_map needs out_layouts in an eager run",
            expected="the layouts that the compiler computes", found=why,
            remedy='write it, and in_layouts: out_layouts=("x", None) joins the parts along dim 0, '
            "out_layouts=spmd.replicated says that all ranks return the same",
        )

    def _argument_layouts(self, layouts: Any, args: Sequence[Any]) -> list[Any]:
        """Return one layout per leaf that is not None: the stated one, or that of the array."""
        items = list(leaves(tuple(args)))
        if layouts is None:
            return [getattr(x, "layout", None) for x in items if x is not None]
        is_tree = len(args) == 1 and isinstance(args[0], (tuple, list, dict))
        if is_tree and len(layouts) == 1:
            layouts = layouts[0]
        specs = spread(layouts, args[0] if is_tree else tuple(args))
        return [s for s, x in zip(specs, items, strict=True) if x is not None]

    def _body(self, f: Any, args: Any, layouts: Sequence[Any], crew: Crew, rank: int) -> Any:
        specs = iter(layouts)
        shards = map_tree(lambda x: self.shards.shard(x, next(specs), rank), tuple(args))
        own = self.shards.view_of(f, rank)
        view = EagerRank(self, self.shards, crew, rank)

        def main() -> Any:
            with running_eagerly(view), np.errstate(all="ignore"):
                return own(*shards)

        return main


def _extents(shape: Any) -> tuple[Any, ...]:
    return tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)


def _check_kept(name: str, array: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> None:
    """Raise an InputError where an input loses more in its declared type than digits of floats."""
    if (lost := inexact(array, wanted)) is not None:
        raise InputError(f"input {name} would be rounded: {wanted} does not hold {lost}",
                         expected=f"integers that {wanted} holds", found=str(array.dtype))
    if array.size and not may_cast(array, wanted):
        raise InputError(f"input {name} has dtype {array.dtype}, which does not fit {wanted}",
                         expected=str(wanted), found=str(array.dtype),
                         remedy=f"array.astype({str(wanted)!r})")

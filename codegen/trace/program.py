"""@spmd.program: from a Python function and its parameters to a Graph.

Goes in: the function, mesh axes, values of the parameters. Comes out: a Module of level "graph".
Always holds: equal parameters give the same Module; every output is a global array or a number.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from codegen.checks.names import CHECKS
from codegen.errors import (
    LayoutError,
    MissingError,
    Place,
    ProgramError,
    SpmdError,
    UnsupportedError,
    UsageError,
)
from codegen.graph.predicated import predicated
from codegen.ir.graph import Condition, Module, Output, Returned
from codegen.layouts.input_layouts import choose
from codegen.mesh import Axis, Layout, Mesh, checked_count, checked_sizes
from codegen.places import place_in, program_files, put_place, user_place
from codegen.suggest import meant
from codegen.trace import registration  # noqa: F401  # what those below need of those above
from codegen.trace.context import CapturedAgain, Context, Limits
from codegen.trace.control.conversion import as_called
from codegen.trace.control.letting import Bounds, bounds_of
from codegen.trace.control.outside import Outside
from codegen.trace.control.returned import outputs_of
from codegen.trace.control.settled import Inner
from codegen.trace.declare import check_dims, flag_of_call
from codegen.trace.derive.dead_code import kept_by, pruned, without_defined
from codegen.trace.feed_calls import check_feeds
from codegen.trace.save_calls import check_saves

SYNC = ("least", "before", "after", "both")


def make_mesh(spec: Any) -> Mesh:
    """Return the Mesh for ("x", "y"), "x", or {"x": 4, "y": None}. Raises UsageError."""
    items: list[tuple[Any, Any]]
    if isinstance(spec, str):
        items = [(spec, None)]
    elif isinstance(spec, Mapping):
        items = list(spec.items())
    elif not isinstance(spec, (tuple, list)):
        items = []
    else:
        items = [(name, None) for name in spec]
    names = [name for name, _ in items]
    legal = all(isinstance(n, str) and n.isidentifier() for n in names)
    sizes = all(s is None or (isinstance(s, int) and s >= 1) for _, s in items)
    if not items or not legal or not sizes or len(set(names)) != len(names):
        raise UsageError(
            f"{spec!r} is not a mesh", place=user_place(),
            expected='different names: mesh=("x", "y"), or {"x": 4, "y": None} to fix a size',
            found=repr(spec),
        )
    if len(items) > 3:
        raise UnsupportedError("meshes have one to three axes", place=user_place(),
                               expected="at most 3 axes",
                               found=f"{len(items)}: {', '.join(names)}")
    return Mesh(tuple(Axis(name, size) for name, size in items))


def _check_function(function: Any) -> None:
    """Raises UsageError for what @spmd.program cannot stand on."""
    kind = type(function).__name__
    if isinstance(function, Program):
        kind = "a function that is a program already"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        kind = "an async function"
    elif inspect.isgeneratorfunction(function):
        kind = "a function with yield, which returns no arrays"
    elif inspect.isfunction(function):
        return
    raise UsageError("@spmd.program stands above a function of yours", place=user_place(),
                     expected="def name(n: int = 1000): … return {\"u\": u}",
                     found=kind)


def parse_parameter(text: str) -> Any:
    """Return the value that `--set NAME=TEXT` gives a parameter: what the text means as a Python
    literal, such as `3`, `0.5`, `(1, 2)` or `True`; else the text itself.

    Example::

        values = [spmd.parse_parameter(text) for text in ("3", "(1, 2)", "true", "linear")]
        print(values)    # [3, (1, 2), True, 'linear']
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text.lower(), text)


_KINDS: dict[Any, type] = {k.__name__: k for k in (int, float, bool, str)}  # by annotation, as text
_ROUNDS = 4  # in which the compiler's choice of layouts may change


def _rules(layout: Any, mesh: Mesh) -> dict[str, Any]:
    """Return the layout rules of a program: the mesh axis, or axes, for the name of a dim. Raise
    UsageError for anything but rules."""
    if layout is None or layout == "auto":
        return {}
    if not isinstance(layout, Mapping):
        raise UsageError(
            "the layout of a program is rules for named dims", place=user_place(),
            expected='None, "auto", or a dict: layout={"batch": "x"}, and spmd.Dim("batch", 64) in '
            "shapes", found=f"layout={layout!r}",
            remedy=meant(layout, ["auto"], 'layout="{}"') or "spmd.input(…, layout=("
            f'"{mesh.names[0]}", None)) lays one array out',
        )
    axes = [a for e in layout.values() for a in (e if isinstance(e, tuple) else (e,)) if a]
    for axis in axes:
        if axis not in mesh.names:
            raise LayoutError(f"a layout rule names {axis!r}, which is not an axis of the mesh",
                              place=user_place(), expected=f"one of {', '.join(mesh.names)}",
                              found=repr(layout))
    return dict(layout)


class Program:
    """A function decorated with @spmd.program. Inside another program it is called like any
    function.
    """

    selectable = False

    def __init__(
        self, function: Callable[..., Any], mesh: Any = ("x",), layout: Any = None,
        sync: str = "least", selectable: bool = False,
    ) -> None:
        _check_function(function)
        code = function.__code__
        place = Place(code.co_filename, code.co_firstlineno, 0, -1, function.__name__)
        self._begin(function, place, mesh, layout, sync)
        self.selectable = bool(selectable)

    def _begin(
        self, function: Callable[..., Any], place: Place, mesh: Any, layout: Any, sync: str
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.mesh = make_mesh(mesh)
        self.sync = sync
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.file, self.place = place.file, place
        program_files.add(self.file)
        self.rules = _rules(layout, self.mesh)
        self.is_part = False  # of another program, some of whose arrays it has not
        if sync not in SYNC:
            raise UsageError(f"sync={sync!r} is unknown", place=user_place(),
                             expected=", ".join(repr(s) for s in SYNC),
                             found=repr(sync))

    def __repr__(self) -> str:
        return f"<spmd program {self.name} over {', '.join(self.mesh.names)}>"

    def read_parts(self) -> tuple[Any, ...]:
        """Return what a capture depends on: see reads.py."""
        axes = [(a.name, a.fixed) for a in self.mesh.axes]
        return (self.function, self.name, self.file, axes, self.rules, self.sync,
                self.selectable)

    @property
    def parameters(self) -> dict[str, Any]:
        """Names and defaults; inspect.Parameter.empty where a parameter has none."""
        return {k: p.default for k, p in inspect.signature(self.function).parameters.items()}

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return every parameter's value by name. Raises UsageError for unknown names and missing
        values."""
        signature = inspect.signature(self.function).parameters
        for name in arguments:
            if name not in signature:
                known = ", ".join(signature) or "none"
                raise UsageError(f'program "{self.name}" has no parameter "{name}"',
                                 place=self.place, expected=f"parameters: {known}",
                                 found=f"{name}={arguments[name]!r}",
                                 remedy=meant(name, signature, "{}=…"))
        out = {}
        for name, parameter in signature.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UnsupportedError(f'program "{self.name}" takes *{name}', place=self.place,
                                       expected="named parameters with defaults")
            value = arguments.get(name, parameter.default)
            if value is parameter.empty:
                raise UsageError(
                    f'parameter "{name}" of program "{self.name}" has no value', place=self.place,
                    expected=f"a default, --set {name}=VALUE, or {name}=VALUE from Python",
                    remedy=f'{name} = spmd.input("{name}", shape) in the program, if it is an '
                    "array; or spmd.jit, whose functions take arrays",
                )
            out[name] = value
            if name in arguments:
                out[name] = self._typed(name, value, parameter.annotation)
        return out

    def _typed(self, name: str, value: Any, annotation: Any) -> Any:
        """Return a value that is what its annotation (int, float, bool, str) says, without a
        loss."""
        kind = _KINDS.get(annotation, annotation)
        if kind not in _KINDS.values() or type(value) is kind:
            return value
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value[()]
        truth = isinstance(value, (bool, np.bool_))
        real = isinstance(value, numbers.Real)
        fits = {
            int: real and not truth and hasattr(value, "__index__"),
            float: real and not truth,
            bool: truth or (real and hasattr(value, "__index__") and value in (0, 1)),
            str: isinstance(value, str),
        }
        if not fits[kind]:
            raise UsageError(f'parameter "{name}" of program "{self.name}" is of another type',
                             place=self.place, expected=f"{name}: {kind.__name__}",
                             found=f"{value!r}, a {type(value).__name__}",
                             remedy=f"{name}={int(value)}" if kind is int and value in (0, 1) and
                             truth else f"{name}={int(value)}" if kind is int and real and value ==
                             value // 1 else "")
        return kind(value)

    def read(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return values of those parameters that are given as text, on a command line."""
        annotations = {k: p.annotation for k, p in
                       inspect.signature(self.function).parameters.items()}
        return {
            name: text if _KINDS.get(annotations[name], annotations[name]) is str
            else parse_parameter(text)
            for name, text in texts.items() if name in annotations
        }

    def capture(self, **parameters: Any) -> Module:
        """Return the Graph for these parameters."""
        return self.graph(parameters)

    def graph(self, parameters: Mapping[str, Any], checks: Collection[str] = ()) -> Module:
        """Return the Graph for these parameters. checks: rows of check_names.py, of which the Graph
        has what the source alone knows."""
        # Never remembered: what the function reads may have changed since. A program is traced
        # again with what spmd.require said of its axes: that proves more.
        values = self.bind(parameters)
        mesh = self.mesh
        stated: dict[tuple[str, Place | None], Condition] = {}
        bounds: dict[str, Bounds] = {}
        layouts: dict[str, Layout] = {}
        limits: Limits = {}
        unrolled: frozenset[Place | None] = frozenset()
        outermost, rounds = Inner(), 0
        rows_by_python, reserved = False, frozenset[str]()
        facts: dict[str, Any] = {}
        while True:
            context = Context(self.name, mesh)
            context.bounds, context.rules, context.layouts = bounds, self.rules, layouts
            context.limits, context.checks = limits, frozenset(checks)
            context.unrolled, context.outermost = unrolled, outermost
            context.rows_by_python, context.reserved = rows_by_python, reserved
            context.facts = facts
            outermost.met.clear()
            try:
                module = self._trace(context, values)
            except CapturedAgain:
                continue
            except Exception as error:
                if context.has_rows:  # perhaps Python can run the loops that were compiled
                    rows_by_python, outermost = True, Inner()
                    continue
                if context.reserved != reserved:
                    reserved = context.reserved
                    continue
                if not isinstance(error, SpmdError):
                    raise
                unrolled = unrolled.union(context.to_unroll)
                if not (context.learned or context.narrower or unrolled != context.unrolled):
                    raise
            else:
                new_bounds = bounds_of(module)
                chosen = choose(module, context.auto) if rounds < _ROUNDS else layouts
                settled = chosen == layouts
                layouts, rounds = chosen, rounds + 1
                learned_more = context.learned or context.narrower
                assumed = {key: context.begun_with.get(key, bounds.get(key)) for key in new_bounds}
                if not learned_more and new_bounds == assumed and settled:
                    # a bound that is known proves the condition it came from: keep that one
                    kept = stated | {(c.text, c.place): c for c in module.conditions}
                    return predicated(replace(module, conditions=tuple(kept.values())))
                bounds = new_bounds
            learned, limits = context.learned, {**limits, **context.narrower}
            stated |= {(c.text, c.place): c for c in context.conditions}
            mesh = mesh.told(learned)

    def _trace(self, context: Context, values: dict[str, Any]) -> Module:
        for axis in context.mesh.axes:  # scalars and counters must not be named like these
            context.take_names(axis.size_name, axis.coord_sym.name)
        context.take_names("p", "member", "wrap", "others")  # what formulas of exchanges name
        outside = Outside("program", [(self.name, self.function), *self.reached(values)])
        outside.place = self.place
        context.bodies.append(outside)
        with context.active():
            try:
                returned = self.recorded(context, values)
                outside.check(context.seeded)
            except BaseException as error:
                outside.put_back()
                if isinstance(error, SpmdError):
                    put_place(error)
                raise
            outputs, returns = returned()
        if self.selectable:
            outputs = [replace(o, wanted=flag_of_call(context, f"wanted_{o.name}"))
                       for o in outputs]
        self._check_rules(context)
        check_dims(context)
        body = context.blocks[0].close([o.value for o in outputs])
        if context.differentiated:
            body = pruned(without_defined(body))
            outputs = [replace(o, value=v) for o, v in zip(outputs, body.results, strict=True)]
        module = Module(
            name=self.name, level="graph", mesh=context.mesh, parameters=tuple(values.items()),
            scalars=tuple(context.scalars.values()),
            inputs=tuple(context.inputs.values()),
            feeds=tuple(context.feeds.values()), body=body, outputs=tuple(outputs),
            conditions=tuple(context.conditions), returns=returns, sync=self.sync,
            states=context.states, entries=context.entries,
            file=self.file, keeps=kept_by(body, context.keeps), notes=context.notes,
            unrolled=tuple(sorted(filter(None, context.unrolled), key=str)),
            library_calls=tuple(context.library_calls),
            checks=tuple(name for name in CHECKS if name in context.checks),
        )
        return check_saves(check_feeds(module))

    def reached(self, values: dict[str, Any]) -> Iterable[tuple[str, Any]]:
        """Yield, by name, the user's values that the function can read and change, but for
        itself."""
        return values.items()

    def recorded(
        self, context: Context, values: dict[str, Any]
    ) -> Callable[[], tuple[list[Output], Returned]]:
        """Run the user's code. Returns what makes outputs of what that returned."""
        function = as_called(self.function)
        returned = self.called(context, function, values)
        return lambda: outputs_at(context, returned, place_of_return(context, function, self.place))

    def called(self, context: Context, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        """Return what the converted function returns for these parameters."""
        return function(**values)

    def _check_rules(self, context: Context) -> None:
        """Raise LayoutError where a rule is of a dim that no array has."""
        for name in self.rules:
            if name not in context.named_dims and not self.is_part:
                known = ", ".join(repr(n) for n in context.named_dims) or "no array has a named dim"
                raise LayoutError(
                    f"a layout rule is of the dim {name!r}, which no array has", place=self.place,
                    expected=f"a dim that spmd.Dim names: {known}", found=repr(self.rules),
                    remedy=meant(name, context.named_dims, '"{}"') or
                    f'spmd.Dim("{name}", n) instead of n in a shape; or leave the rule out',
                )

    def eager(
        self, ranks: int = 1, mesh: Mapping[str, int] | None = None,
        save: Mapping[str, Callable[[Any], Any]] | None = None, **arguments: Any,
    ) -> Any:
        """Runs the function as plain Python on NumPy arrays, in this process: the simplest
        debugger.

        - ranks, mesh: what `spmd.ranks()` and axis sizes say, and how many times the function of a
          shard_map runs; 1 unless you say otherwise. Nothing runs in parallel.
        - save: by the name of a save, a function that is called with each of its frames, such as
          `frames.append`.
        - arguments: parameters, inputs and scalars by name; feed: an iterable of batches, which are
          dicts of arrays, or by name one for each feed.

        A shard_map without out_layouts asks the compiler how its results lie.

        Returns what the function returns. InputError for an input that is missing or of another
        shape, UsageError for an unknown name; exceptions of NumPy come through.
        """
        check_takers(save)
        eager = oracle().eager
        known = {k: v for k, v in arguments.items() if k in self.parameters}
        rest = {k: v for k, v in arguments.items() if k not in self.parameters}
        axes = self._eager_axes(ranks, mesh)
        arguments = {**self.bind(known), **rest}
        return eager.run(self.function, axes, arguments, lambda: self.graph(known),
                         self._captured(axes), frames=save, outside=self._outside(known))

    def _eager_axes(self, ranks: int, mesh: Mapping[str, int] | None) -> dict[str, int]:
        """Return the axis sizes of an eager run."""
        ranks = checked_count("ranks", ranks)
        given_sizes = checked_sizes({} if mesh is None else mesh, self.mesh.names)
        fixed = {a.name: a.fixed for a in self.mesh.axes} | given_sizes
        if mesh and all(fixed.values()):
            ranks = math.prod(n for n in fixed.values() if n)
        axes: dict[str, int] = oracle().eager.mesh_sizes(self.mesh.names, fixed, ranks)
        return axes

    def _captured(self, axes: Mapping[str, int]) -> Callable[[Callable[[], Any]], Module]:
        """Return a function that gives the Graph of another function, on this mesh."""
        def captured(function: Callable[[], Any]) -> Module:
            other = Program.__new__(Program)
            vars(other).update(vars(self))
            other.function, other.mesh, other.is_part = function, make_mesh(axes), True
            return other.graph({})

        return captured

    def _outside(self, known: Mapping[str, Any]) -> Callable[[], Mapping[int, Any]]:
        """Return a function that gives, by id, the memory of arrays that the program finds."""
        def outside() -> Mapping[int, Any]:
            values = self.bind(known)
            reached = Outside("program", [(self.name, self.function), *self.reached(values)])
            return reached.owners()

        return functools.cache(outside)

    def interpreted(self, axes: Mapping[str, int], prints: list[str]) -> dict[str, Any]:
        """Return the outputs by name, of a program without inputs: its Graph, computed in NumPy.
        prints collects what it prints."""
        outputs: dict[str, Any] = oracle().eager.outputs(self.graph({}), axes, prints)
        return outputs

    def __getattr__(self, name: str) -> Any:
        if name not in ("run", "open", "save", "verify", "layouts"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}",
                                 name=name, obj=self)
        raise MissingError(
            f'program "{self.name}" is not built yet: it has no {name}', place=user_place(),
            expected="an image", remedy=f"spmd.build({self.name}).{name}(…)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if Context.current() is not None:
            return as_called(self.function)(*args, **kwargs)
        raise ProgramError(
            f'program "{self.name}" is called like a function', place=user_place(),
            expected="spmd.build, or a run as plain NumPy",
            remedy=f"spmd.build({self.name}).run(ranks=4), or {self.name}.eager()",
        )


def check_takers(save: Mapping[str, Any] | None) -> None:
    """Raises UsageError for what cannot take the frames of a save."""
    for name, take in (save or {}).items():
        if not callable(take):
            raise UsageError(f"save={{{name!r}: …}} of an eager run is no function",
                             expected="a function that is called with each frame, such as "
                             "frames.append", found=repr(take),
                             remedy="spmd run FILE.py --eager -o NAME=… writes files")


def place_of_return(context: Context, function: Callable[..., Any], else_at: Place) -> Place:
    """Return the expression that a converted function returned; where there is none, another
    place."""
    returned = context.returned
    if returned is None or returned[0] is not getattr(function, "__code__", None):
        return else_at
    return place_in(*returned)


def outputs_at(context: Context, returned: Any, place: Place) -> tuple[list[Output], Returned]:
    """Return the outputs that a function returned there, and their tree."""
    try:
        with context.standing_at(place):
            return outputs_of(context, returned, place)
    except SpmdError as error:
        error.place = place  # the user's function has returned already
        raise


def oracle() -> Any:
    from codegen.oracle import entities  # start-up time: builds and images do without it

    return entities

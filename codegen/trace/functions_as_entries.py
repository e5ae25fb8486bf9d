"""spmd.entity: functions that exist as the entries of one program over state that stays.

In: functions, or programs, and names of their inputs that are state. Out: an Entity, as of a class
whose `__init__` binds the defaults of these inputs. Always holds: an input that is state is one
array for all functions that declare it; an output of its name is its new value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from codegen.errors import Place, ProgramError, UsageError
from codegen.ir.graph import Module
from codegen.places import program_files, user_place
from codegen.trace.classes import Entity
from codegen.trace.context import Context, eager_current
from codegen.trace.control.conversion import as_called
from codegen.trace.numpy import creation
from codegen.trace.program import Program
from codegen.user import named, state_rules
from codegen.user.entry_methods import entry, place_of_method
from codegen.user.held_inputs import HeldInput


def entity(
    *, state: str | Sequence[str] = (), name: str = "", mesh: Any = None, layout: Any = None,
    sync: str = "least", **functions: Any,
) -> Entity:
    """Make one program of several functions: each is an entry, and they share state.

    - functions: by the name of the entry. A function, or one under @spmd.program.
    - state: names of inputs. What a function declares by `spmd.input` under such a name it finds as
      it was left by the call before, of whatever entry; "w" means all arrays of a tree w. An output
      of that name, a key of the dict that the function returns, is its new value, and is not
      returned.
    - name: of the program; else the names of the functions.
    - mesh, layout, sync: as of spmd.program; left out, as of the programs that are given.

    A state begins with the default that a function declares for the input. Where none does, it has
    to be given before the first call: `image.open(state=…)`, or `load`.

    What comes back is used as a class under @spmd.program is: spmd.build, eager, open.

    UsageError for what is no function, and where two functions have a parameter of one name with
    other defaults; ProgramError where two declare a state differently.

    Example::

        def add():
            total = spmd.input("total", (3,), np.float64, default=0.0)
            x = spmd.input("x", (3,), np.float64)
            return {"total": total + x}

        def mean():
            return np.mean(spmd.input("total", (3,), np.float64))

        counter = spmd.entity(add=add, mean=mean, state="total").eager()
        counter.add(x=np.ones(3))
        print(counter.mean())    # 1.0
    """
    names = (state,) if isinstance(state, str) else tuple(state)
    if not functions:
        raise UsageError("an entity has no entry", place=user_place(), found="none",
                         expected="spmd.entity(train=f, infer=g, state=(\"w\",))")
    for key, f in functions.items():
        if not isinstance(f, Program) and not inspect.isfunction(f) or isinstance(f, Entity):
            raise UsageError(f"the entry {key} of an entity is no function", place=user_place(),
                             expected="a function, or one under @spmd.program",
                             found=type(f).__name__)
    programs = [f for f in functions.values() if isinstance(f, Program)]
    if mesh is None:
        meshes = {tuple((a.name, a.fixed) for a in p.mesh.axes) for p in programs}
        if len(meshes) > 1:
            raise UsageError("the programs of an entity have different meshes", place=user_place(),
                             expected="one mesh", found=" and ".join(map(str, sorted(meshes))),
                             remedy="spmd.entity(…, mesh=…)")
        mesh = dict(meshes.pop()) if meshes else ("x",)
    if layout is None:
        layout = {key: rule for p in programs for key, rule in p.rules.items()} or None
    plain = {key: f.function if isinstance(f, Program) else f for key, f in functions.items()}
    return FunctionEntity(plain, names, name or "_".join(plain), mesh, layout, sync)


class FunctionEntity(Entity):
    """An entity of functions: as of a class that is made of them."""

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]], names: Sequence[str], name: str,
        mesh: Any, layout: Any, sync: str,
    ) -> None:
        self.functions, self.names = dict(functions), tuple(names)
        self.declared: dict[str, dict[str, HeldInput]] = {}  # of each state: its leaves, by name
        self.trees: dict[str, Any] = {}  # of each state: the tree as it is declared
        for f in self.functions.values():
            program_files.add(f.__code__.co_filename)
        super().__init__(self._as_class(name), mesh, layout, sync)
        self.place = place_of_method(*next(iter(self.functions.items())))
        self.file = self.place.file

    def _as_class(self, name: str) -> type:
        first = next(iter(self.functions.values()))
        space: dict[str, Any] = {"__module__": first.__module__, "__doc__": first.__doc__}
        for key, f in self.functions.items():
            space[key] = entry(self._entry(key, f))
        parameters: dict[str, inspect.Parameter] = {}
        for key, f in self.functions.items():
            for p in inspect.signature(f).parameters.values():
                if repr(parameters.setdefault(p.name, p).default) != repr(p.default):
                    raise UsageError(
                        f"two functions of an entity have a parameter {p.name}",
                        place=place_of_method(key, f), expected="one default for both",
                        found=f"{parameters[p.name].default!r} and {p.default!r}")

        def __init__(instance: Any, **values: Any) -> None:
            instance.parameters = _Values(values)
            for state in self.names:
                if state in self.trees:
                    setattr(instance, state, named.renamed(self._first, self.trees[state], state))

        space["__init__"] = __init__
        cls = type(name, (), space)
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=p.KEYWORD_ONLY) for p in parameters.values()])
        return cls

    def _entry(self, key: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method that calls a function with the state in place of its inputs."""
        parameters = tuple(inspect.signature(f).parameters)

        def method(instance: Any) -> Any:
            values = {p: instance.parameters.values[p] for p in parameters}
            held = {state: getattr(instance, state) for state in self.names
                    if state in self.trees}
            run: Any = Context.current() or eager_current()
            run.held = held
            try:
                returned = (as_called(f) if Context.current() else f)(**values)
            finally:
                run.held = {}
            return self._rebound(instance, returned)

        itself = inspect.signature(method)
        functools.update_wrapper(method, f)
        method.__name__, method.__signature__ = key, itself  # type: ignore[attr-defined]
        return method

    def _rebound(self, instance: Any, returned: Any) -> Any:
        """Bind outputs that are state; return the others."""
        inside = named.held(returned)
        if inside is None or not any(key in self.trees for key, _ in inside):
            return returned
        for key, x in inside:
            if key in self.trees:
                setattr(instance, key, x)
        return {key: x for key, x in inside if key not in self.trees} or None

    def _first(self, leaf: str, _: Any) -> Any:
        """Return what a state begins with: its default, or zeros until it is given. Its ops stand
        where a function declares it."""
        held = next(leaves[leaf] for leaves in self.declared.values() if leaf in leaves)
        context = Context.current()
        with context.standing_at(held.place) if context else nullcontext():
            return self._begin_with(held)

    def _begin_with(self, held: HeldInput) -> Any:
        makes: Any = eager_current() or creation
        initial = makes.zeros(held.shape, held.dtype, layout=held.layout)
        default = held.default
        if callable(default):
            extents = initial.shape
            grids = [makes.arange(n).reshape([n if d == k else 1 for d in range(len(extents))])
                     for k, n in enumerate(extents)]
            default = (as_called(default) if Context.current() else default)(*grids)
        if default is not None:
            initial[...] = default
        return initial

    def discover(self, values: Mapping[str, Any]) -> None:
        """Find out which states the functions declare, for these values of parameters."""
        self.declared, self.trees = {}, {}
        for key, f in self.functions.items():
            part = _Part(self, f, key)
            part.graph({p: values[p] for p in inspect.signature(f).parameters})
            for state, (tree, leaves) in part.state_inputs.items():
                self.trees.setdefault(state, tree)
                self._same(state, self.declared.setdefault(state, leaves), leaves, part.place)
        for state in self.names:
            if state not in self.trees:
                raise ProgramError(
                    f"no function of {self.name} declares the input {state}, which is state",
                    place=self.place, expected=f'spmd.input("{state}", shape, dtype)',
                    found=", ".join(self.trees) or "none of the states",
                    remedy="leave it out of state=")

    def _same(
        self, state: str, first: dict[str, HeldInput], now: dict[str, HeldInput], place: Place
    ) -> None:
        """Raise ProgramError where two functions declare one state differently; the first default
        counts."""
        if list(first) != list(now):
            raise ProgramError(f"two functions declare the state {state} as different trees",
                               place=place, expected=", ".join(first), found=", ".join(now),
                               remedy="one function that declares it, which both call")
        for leaf, held in now.items():
            before = first[leaf]
            if before.type != held.type:
                raise ProgramError(
                    f"two functions declare the state {leaf} differently", place=held.place,
                    expected=state_rules.type_text(*before.type),
                    found=state_rules.type_text(*held.type),
                    remedy="one function that declares it, which both call")
            if before.default is None:
                first[leaf] = held

    def needed(self) -> list[str]:
        """Return the names of states that no default begins."""
        return [leaf for leaves in self.declared.values() for leaf, held in leaves.items()
                if held.default is None]

    def graph(self, parameters: Mapping[str, Any], checks: Collection[str] = ()) -> Module:
        self.discover(self.bind(parameters))
        return super().graph(parameters, checks)

    def eager(self, *args: Any, **arguments: Any) -> Any:
        parameters = {k: v for k, v in arguments.items() if k in self.parameters}
        self.discover(self.bind(parameters))
        return super().eager(*args, **arguments)


class _Values:
    """The values of parameters: nothing that a program changes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)


class _Part(Program):
    """One function, captured to see which states it declares."""

    def __init__(self, whole: FunctionEntity, f: Callable[..., Any], key: str) -> None:
        vars(self).update(vars(whole))
        self.function, self.is_part, self.place = f, True, place_of_method(key, f)
        self.states = whole.names
        self.state_inputs: dict[str, tuple[Any, dict[str, HeldInput]]] = {}

    def called(self, context: Context, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        context.looked_for = dict.fromkeys(self.states)
        returned = function(**values)
        self.state_inputs = {k: inputs for k, inputs in context.looked_for.items()
                             if inputs is not None}
        return 0 if returned is None else returned

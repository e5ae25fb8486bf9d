"""@spmd.kernel: a Python function that numba compiles into the image, and its call while tracing.

The keyword argument `out`, and others made by spmd.like and spmd.empty, are outputs: they are
written in place and returned. Inputs are by value: the kernel sees contiguous copies.
Always holds: outside of shard_map a kernel gets parts of arrays along those dims only that the
signature loops over or that halo= names; of all others it gets the whole.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from codegen import gufunc
from codegen.errors import KernelError, Place
from codegen.gufunc import Signature
from codegen.image.kernel_source import Reading
from codegen.image.prototypes import RESERVED
from codegen.symbolic import expr
from codegen.trace.array import Array, Number
from codegen.trace.context import eager_current, require_context
from codegen.trace.control.conversion import find
from codegen.trace.kernel_back import emit_with_back
from codegen.trace.kernel_op import emit
from codegen.trace.kernel_trial import try_made_up
from codegen.trace.numpy.elementwise import same_extent, shape_text
from codegen.user import windows
from codegen.user.absent import needs_of, stand_in_of, withheld
from codegen.user.windows import Form, Start

_ARGUMENTS = (Array, Number, int, float, complex, np.ndarray, np.generic, Start)
_NO_KERNEL_TYPES = ("float16", "bfloat16")


class Reads(Protocol):
    """This protocol says what is known of a kernel's body, by the name of a parameter and its
    dims."""

    def writes(self, name: str, ndim: int) -> bool: ...

    def fills(self, name: str, ndim: int) -> bool: ...


class Kernel:
    """A kernel is the user's function as it is, its name, and the place where it is defined."""

    def __init__(
        self, function: Callable[..., Any], place: Place | None = None, signature: str | None = None
    ) -> None:
        code = getattr(function, "__code__", None)
        if code is None:
            raise KernelError("a kernel is a Python function", place=place,
                              expected="def smooth(u, out): ...", found=repr(function))
        self.function = function
        self.name = function.__name__
        self.place = Place(code.co_filename, code.co_firstlineno, 0, -1, self.name)
        self.signature = None if signature is None else self._parsed(signature, place)
        self.reading: Reads = Reading(function, tree_of)
        self.back: Callable[..., Any] | None = None
        self.tried: set[Any] = set()  # calls that gave the same on parts as on the whole
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        for name in RESERVED:
            if name in self.parameters:
                raise KernelError(f'kernel "{self.name}": a parameter cannot be named {name}',
                                  place=self.place, expected="another name",
                                  found=f"{name}=, which calls of all kernels have")

    @property
    def parameters(self) -> list[str]:
        """Return the names of what a call gives, inputs and outputs."""
        return list(inspect.signature(self.function).parameters)

    def _parsed(self, text: str, place: Place | None) -> Signature:
        parameters = self.parameters
        try:
            signature = gufunc.parse(text)
        except ValueError:
            raise KernelError(
                f'kernel "{self.name}": this is not a signature', place=place,
                expected='dims of inputs, then of outputs, as NumPy writes them: "(n),()->(n)"',
                found=repr(text),
            ) from None
        if len(signature.dims) != len(parameters):
            raise KernelError(
                f'kernel "{self.name}": the signature has not one entry per parameter', place=place,
                expected=f"{len(parameters)} entries: {', '.join(parameters)}",
                found=f"{len(signature.dims)} in {text!r}",
            )
        return signature

    def combining(self, operation: str, like: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a function of two arrays, for op= of `operation`. like: makes the array
        that is written."""
        names = self.parameters
        if len(names) != 3:
            raise KernelError(f'kernel "{self.name}" cannot be the op= of {operation}',
                              expected="a kernel of two arrays and the output: (a, b, out)",
                              found=f"{self.name}({', '.join(names)})")
        return lambda a, b: self(a, b, **{names[2]: like(a)})

    def __repr__(self) -> str:
        return f"<spmd kernel {self.name}>"

    def defvjp(self, back: Callable[..., Any]) -> None:
        """Says the way back: `back` takes what the kernel takes, by its parameters, with
        the results in the place of the outputs, then a cotangent of each output. It returns a tuple
        of the cotangents of the inputs, None where there is none; it may call kernels. The page on
        derivatives has an example.
        """
        self.back = back

    def read_parts(self) -> tuple[Any, ...]:
        """Return what the kernel's code depends on: see reads.py."""
        return self.function, self.name, self.signature and self.signature.text

    def __call__(self, *args: Any, halo: Any = None, boundary: Any = None, **kwargs: Any) -> Any:
        self.reading = Reading(self.function, tree_of)  # helpers may have changed
        bound = self._bound(args, kwargs)
        outputs = [name for name, x in in_place_of(bound).items()
                   if name in kwargs and self._is_output(name, x)]
        return self._called(bound, outputs, halo, boundary)

    def _called(
        self, called: dict[str, Any], outputs: list[str], halo: Any, boundary: Any
    ) -> Any:
        bound, needs = in_place_of(called), needs_of(called)
        runtime = eager_current()
        context = None if runtime else require_context(f'kernel "{self.name}"')
        local = runtime.index_ is not None if runtime else bool(context and context.rank_view)
        has_halo = halo is not None or boundary is not None
        self._check(bound, outputs, local, has_halo, runtime is not None)
        if runtime is not None:
            form = self._form(bound, outputs, halo, boundary, lambda a, b: bool(a == b))
            if needs:
                return _alone([withheld(called[name], needs) for name in outputs])
            return runtime.kernel(self, form, bound)
        form = self._form(bound, outputs, halo, boundary, _same)
        assert context is not None
        if form.cut:
            self._try_parts(form, bound)
        back = self._way_back(form, bound) if context.recordings else None
        if back is not None:
            return emit_with_back(self, back, context, form, bound)
        return emit(self, context, form, bound)

    def _try_parts(self, form: Form, bound: Mapping[str, Any]) -> None:
        """Raises KernelError where it gives another result on parts of arrays than on the whole."""
        try_made_up(self, form, bound)

    def _way_back(self, form: Form, bound: Mapping[str, Any]) -> Callable[..., Any] | None:
        """Return what defvjp was given, or None."""
        return self.back

    def _is_output(self, name: str, x: Any) -> bool:
        """Return whether a keyword argument is an output: the signature says so, it is named out,
        or it was made empty and the kernel writes it."""
        position = self.parameters.index(name)
        if (self.signature and position >= self.signature.inputs) or name == "out":
            return isinstance(x, (Array, np.ndarray))
        if self.signature:
            return False
        ndim = getattr(x, "ndim", 0)
        return getattr(x, "made_empty", False) and self.reading.writes(name, ndim)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise KernelError(
                f'kernel "{self.name}": {error}',
                expected=f"{self.name}{inspect.signature(self.function)}",
                found=f"{len(args)} arguments and {', '.join(kwargs) or 'no'} keywords",
                remedy="out=spmd.empty(shape, dtype), or out=spmd.like(x), is for the result",
            ) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _check(
        self, bound: Mapping[str, Any], outputs: list[str], local: bool, halo: bool, eager: bool
    ) -> None:
        """Raises KernelError for arguments that are wrong whatever their extents are."""
        for name, x in bound.items():
            if not isinstance(x, _ARGUMENTS):
                raise self.refused(f"{name} is a {type(x).__name__}", "arrays and numbers",
                                   repr(x)[:60])
            kind = str(getattr(x, "dtype", ""))
            if kind in _NO_KERNEL_TYPES:
                raise self.refused(
                    f"{name} is of {kind}, which kernels do not know",
                    "float32, float64, an integer, bool or complex", kind,
                    f"convert it before the call: {name}.astype(np.float32)",
                )
            if isinstance(x, int) and not -(2**63) <= x < 2**63:
                raise self.refused(f"{name} is not an integer of 64 bits", "-2**63 to 2**63 - 1",
                                   repr(x))
            if name in outputs and not isinstance(x, Array) and not eager:
                raise self.refused(
                    f"the output {name} is a NumPy array from outside of the program",
                    "an array of the program", f"{type(x).__name__} {shape_text(_shape(x))}",
                    f"{name}=spmd.like(u), or spmd.asarray({name}) before the call",
                )
            if name in outputs and not self.signature and not getattr(x, "ndim", 1):
                raise self.refused(f"the output {name} has no dims", "an array of at least one",
                                   "shape ()", f"{name}=spmd.empty((1,), dtype)")
            if isinstance(x, Start) and not any(x.array is y for y in bound.values()):
                raise self.refused(f"{name} is spmd.start of an array that is not passed",
                                   "spmd.start(u) beside u itself",
                                   f"arrays {', '.join(bound)}")
        if not outputs:
            raise self.refused(
                "called without an output",
                "out=, or another keyword argument, made by spmd.like(x) or spmd.empty(shape)",
                ", ".join(f"{k}={type(v).__name__}" for k, v in bound.items()),
                f"v = {self.name}(..., out=spmd.like(u))",
            )
        if self.signature and list(bound)[self.signature.inputs :] != outputs:
            raise self.refused("the outputs are not those of the signature",
                               ", ".join(list(bound)[self.signature.inputs :]),
                               ", ".join(outputs), "v = f(u, out=spmd.like(u))")
        if local and halo:
            raise self.refused(
                "halo= stands inside a shard_map, where a kernel gets what the rank has",
                "a call on global arrays", "one rank's arrays",
                "call it outside of the shard_map, or fetch the ghost cells with spmd.ppermute",
            )
        if local and any(isinstance(x, Start) for x in bound.values()):
            raise self.refused(
                "spmd.start stands inside a shard_map, where a kernel gets what the rank has",
                "a call on global arrays", "one rank's arrays",
                "call it outside of the shard_map, or compute the place from spmd.axis_index",
            )

    def _form(
        self, bound: Mapping[str, Any], outputs: list[str], halo: Any, boundary: Any,
        same: Callable[[Any, Any], bool],
    ) -> Form:
        names = tuple(bound)
        shapes = {n: _shape(x) for n, x in bound.items()}
        follows: list[tuple[int, ...] | None] = [None] * len(names)
        if self.signature:
            try:
                loop_dims = self.signature.follows(names, list(shapes.values()), same)
            except ValueError as error:
                raise self.refused(str(error), f'shapes of the signature "{self.signature.text}"',
                                   ", ".join(f"{n} {shape_text(s)}" for n, s in shapes.items()),
                                   "dims before those of the signature are loops, and broadcast") \
                    from None
            follows = list(loop_dims)
            labels: dict[str, tuple[Any, ...]] = dict(zip(names, self.signature.dims, strict=True))
        else:
            labels = {n: tuple(range(len(shape))) for n, shape in shapes.items()}
        arrays = {n: len(labels[n]) for n, shape in shapes.items() if shape}
        wanted = windows.halos(self.name, halo, arrays, outputs)
        starts = {
            n: next(m for m, y in bound.items() if y is x.array)
            for n, x in bound.items() if isinstance(x, Start)
        }
        form = Form(names, tuple(outputs), follows, labels, wanted,
                    windows.boundaries(self.name, boundary, wanted), starts)
        for name, entries in wanted.items():
            extents = shapes[name][len(form.lead(name)) :]
            for label, sides, extent in zip(labels[name], entries, extents, strict=True):
                for out in outputs if sides is not None else ():
                    have = label in labels[out]
                    if not have or not same(shapes[out][form.place(out, label)], extent):
                        raise self.refused(
                            f"halo= names dim {label} of {name}, which {out} does not have",
                            f"dim {label} of {extent} elements in every output",
                            f"{out} {shape_text(shapes[out])}",
                            "give outputs the extent of the input, without ghost cells",
                        )
        if any(map(form.lead, starts.values())):
            raise self.refused("spmd.start of an array that the signature loops over",
                               "an array of which the function sees all dims", "loop dims",
                               "pass spmd.arange(n) as one more input")
        return form

    def refused(self, text: str, expected: str, found: str, remedy: str = "") -> KernelError:
        return KernelError(f'kernel "{self.name}": {text}', expected=expected, found=found,
                           remedy=remedy)


def _shape(x: Any) -> tuple[Any, ...]:
    return x.extents if isinstance(x, Array) else getattr(x, "shape", ())


def in_place_of(called: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with stand-ins for arrays that follow from inputs that are not given."""
    if not needs_of(called):
        return called
    return {name: Start(stand_in_of(x.array)) if isinstance(x, Start) else stand_in_of(x)
            for name, x in called.items()}


def _alone(outputs: list[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _same(a: Any, b: Any) -> bool:
    return same_extent(expr.as_expr(a), expr.as_expr(b))


def tree_of(function: types.FunctionType) -> ast.AST | None:
    """Return the syntax tree of a function. ProgramError where its file has changed since it was
    read."""
    source = find(function.__code__, function.__globals__)
    return source[0] if source else None

"""spmd.c_kernel: a C function of the user's in the image, called as kernels in Python are.

Positional arguments are its inputs, in the order of the prototype; outputs are keyword arguments.
An int64_t directly behind an array is the extent of its next dim, unless the call gives it.
Always holds: it is compiled from the file as that is when a program is built, or run eagerly.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import KernelError, Place
from codegen.gufunc import Parameter, Signature
from codegen.image import c_objects, prototypes, target
from codegen.image.c_objects import FunctionInC, Passed
from codegen.image.prototypes import CParameter
from codegen.trace.array import Array, Number
from codegen.trace.control.conversion import convert
from codegen.trace.derive.derivatives import vjp
from codegen.trace.kernel_call import Kernel, in_place_of
from codegen.user import windows
from codegen.user.windows import Form, Start

# A number of one kind becomes one of its own kind, or of one behind it.
_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


class _Extent:
    """An extent that a call leaves out has this object as its default, for texts of signatures."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class _FromPrototype:
    """Facts about a C function: it writes what its prototype says, and may leave elements as they
    were."""

    def writes(self, name: str, ndim: int) -> bool:
        return False  # of inputs, whose pointers are const

    def fills(self, name: str, ndim: int) -> bool:
        return False


class CKernel(Kernel):
    """A C function and, for some of its parameters, how calls pass them."""

    def __init__(
        self, file: str, text: str, signature: str | None = None,
        reference: Callable[..., Any] | None = None, place: Place | None = None,
    ) -> None:
        try:
            prototype = prototypes.parse(text)
        except ValueError as error:
            expected, found = error.args if len(error.args) == 2 else ("a prototype", str(error))
            raise KernelError("c_kernel: this is no prototype of a C function that a kernel may be",
                              place=place, expected=expected, found=found) from None
        self.in_c = FunctionInC(file, os.path.abspath(file), prototype, place)
        self.in_c.texts()  # is it there?
        self.name = prototype.name
        self.place = self.in_c.defined_at()
        self.signature = None if signature is None else self._parsed(signature, place)
        self.reading = _FromPrototype()
        self.reference = reference
        self.back = None
        self.tried = set()
        self.passed = Passed(())
        self.function = self._on_arrays
        self.of = {p.name: p for p in prototype.parameters}
        self._variants: dict[Passed, CKernel] = {}
        self.__doc__ = getattr(reference, "__doc__", None)
        self._check_reference(place)

    def _check_reference(self, place: Place | None) -> None:
        known = [p.name for p in self.in_c.prototype.parameters if not p.writes]
        if self.reference is None:
            return
        asked = list(inspect.signature(self.reference).parameters)
        if not set(asked) <= set(known):
            raise KernelError(f'kernel "{self.name}": its reference has other parameters',
                              place=place, expected=f"some of {', '.join(known)}, by name",
                              found=", ".join(asked),
                              remedy="a reference returns the outputs, one or a tuple")

    @property
    def parameters(self) -> list[str]:
        prototype = self.in_c.prototype
        return [p.name for p in (*prototype.inputs, *prototype.outputs)]

    def read_parts(self) -> tuple[Any, ...]:
        """Return what the code of the kernel depends on, with the C as it is now."""
        return (self.name, self.in_c.prototype.text, self.in_c.texts(), self.reference, self.back,
                self.signature and self.signature.text)

    def read_files(self) -> tuple[str, ...]:
        """Return the files that this is read from."""
        return self.in_c.files()

    # ---- calls -----------------------------------------------------------------------------------

    def __call__(self, *args: Any, halo: Any = None, boundary: Any = None, **kwargs: Any) -> Any:
        bound = self._bound(args, kwargs)
        there = in_place_of(bound)
        for name, x in there.items():
            self._check_type(self.of[name], x)
        outputs = [p.name for p in self.in_c.prototype.outputs]
        return self._variant(there)._called(bound, outputs, halo, boundary)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by parameter name: inputs, extents, outputs."""
        prototype, parameter = self.in_c.prototype, inspect.Parameter
        seen: dict[str, int] = {}
        rows = [parameter(p.name, parameter.POSITIONAL_OR_KEYWORD) for p in prototype.inputs]
        rows += [parameter(p.name, parameter.KEYWORD_ONLY) for p in prototype.outputs]
        for p in prototype.extents:
            assert p.extent_of is not None
            dim = seen[p.extent_of] = seen.get(p.extent_of, -1) + 1
            rows.append(parameter(p.name, parameter.KEYWORD_ONLY,
                                  default=_Extent(f"{p.extent_of}.shape[{dim}]")))
        signature = inspect.Signature(rows)
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise KernelError(
                f'kernel "{self.name}": {error}', expected=f"{self.name}{signature}",
                found=f"{len(args)} arguments and {', '.join(kwargs) or 'no'} keywords",
                remedy="inputs by position or keyword, outputs by keyword: out=spmd.like(x)",
            ) from None
        order = [p.name for p in prototype.parameters if not p.writes]
        order += [p.name for p in prototype.outputs]
        return {name: bound[name] for name in order if name in bound}

    def _check_type(self, p: CParameter, x: Any) -> None:
        """Raises KernelError where an argument is no array, or none of the prototype's type."""
        said = f"{'const ' * (p.pointer and not p.writes)}{p.c} {'*' * p.pointer}{p.name}"
        if isinstance(x, Start):
            if p.dtype.name != "int64" or p.writes or (
                    not p.pointer and getattr(x.array, "ndim", 1) > 1):
                raise self.refused(f"{p.name} is spmd.start of an array", said,
                                   "an int64 for each dim of it", f"const int64_t *{p.name}")
            return
        ndim, dtype = getattr(x, "ndim", 0), _dtype(x)
        if p.pointer and not ndim:
            raise self.refused(f"{p.name} is a number", f"an array, for {said}", repr(x)[:60],
                               f"np.full(1, x, np.{p.dtype}), or {p.c} {p.name} in the prototype")
        elif p.pointer and dtype != p.dtype.name:
            raise self.refused(f"{p.name} has elements of another type than the prototype says",
                               f"{p.dtype}, for {said}", dtype, f"{p.name}.astype(np.{p.dtype})")
        elif not p.pointer and ndim and not self.signature:
            raise self.refused(f"{p.name} is an array", f"a number, for {said}",
                               f"an array of {ndim} dims", f"const {p.c} *{p.name}, for an array")
        elif not p.pointer and _RANK[np.dtype(dtype).kind] > _RANK[p.dtype.kind]:
            raise self.refused(f"{p.name} is a number of another kind than the prototype says",
                               f"{p.dtype}, for {said}", dtype, f"np.{p.dtype}({p.name})")

    def _variant(self, bound: Mapping[str, Any]) -> CKernel:
        """Return the kernel for calls that give these, with the dims that give the extents left
        out; always the same for the same."""
        left: list[tuple[str, str, int]] = []
        for array in (p.name for p in self.in_c.prototype.parameters if p.pointer):
            names = [p.name for p in self.in_c.prototype.extents
                     if p.extent_of == array and p.name not in bound]
            ndim = self._dims_of(array, bound[array])
            if names and len(names) != ndim:
                raise self.refused(
                    f"{array} has {ndim} dims, and {len(names)} extents stand behind it",
                    "an int64_t for each dim, in their order, or none", ", ".join(names),
                    f"{names[-1]}=… in the call says what it is")
            left += [(name, array, d) for d, name in enumerate(names)]
        passed = Passed(tuple(bound), tuple(left))
        if passed not in self._variants:
            self._variants[passed] = variant = copy.copy(self)
            variant.passed, variant.function = passed, variant._on_arrays
            if self.signature:
                variant.signature = self._of_all(self.signature, passed.names)
        variant = self._variants[passed]
        variant.back = self.back
        return variant

    def _dims_of(self, name: str, x: Any) -> int:
        """Return how many dims of an array the function sees."""
        if self.signature:
            return len(self.signature.dims[self.parameters.index(name)])
        return 1 if isinstance(x, Start) else int(x.ndim)

    def _of_all(self, signature: Signature, names: Sequence[str]) -> Signature:
        """Return a signature with an entry for each extent that a call gives, too."""
        dims = dict(zip(self.parameters, signature.dims, strict=True))
        outputs = len(self.in_c.prototype.outputs)
        return Signature(signature.text, tuple(dims.get(n, ()) for n in names),
                         len(names) - outputs)

    def _is_output(self, name: str, x: Any) -> bool:
        return self.of[name].writes

    def _try_parts(self, form: Form, bound: Mapping[str, Any]) -> None:
        """Do nothing here, since while building no code of the user's in C is run; eager runs try
        it."""

    # ---- on NumPy arrays -------------------------------------------------------------------------

    def _on_arrays(self, *args: Any) -> None:
        """Calls the reference, or the C function, on whole arrays; outputs are written in place."""
        arguments = dict(zip(self.passed.names, args, strict=True))
        outputs = {p.name: arguments[p.name] for p in self.in_c.prototype.outputs}
        if self.reference is None:
            self._in_memory(list(args))
            return
        results = self._referred(self.reference, arguments)
        for (name, out), x in zip(outputs.items(), results, strict=True):
            if np.shape(x) != out.shape and not np.size(x) == out.size == 1:
                raise self.refused(f"its reference returns another shape for {name}",
                                   str(out.shape), str(np.shape(x)))
            out[...] = x

    def _referred(
        self, reference: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Return the outputs that the reference gives for what a call passes."""
        extents = {n: arguments[array].shape[d] for n, array, d in self.passed.extents}
        known = {**arguments, **extents}
        returned = reference(**{n: known[n] for n in inspect.signature(reference).parameters})
        several = returned if isinstance(returned, (tuple, list)) else (returned,)
        outputs = [p.name for p in self.in_c.prototype.outputs]
        if len(several) != len(outputs):
            raise self.refused("its reference does not return its outputs",
                               ", ".join(outputs), f"{len(several)} arrays")
        return several

    def _in_memory(self, args: list[Any]) -> None:
        signature: list[Parameter] = []
        passed: list[Any] = []
        copies: list[tuple[Any, Any, bool]] = []
        for name, x in zip(self.passed.names, args, strict=True):
            p = self.of[name]
            if p.pointer and not isinstance(x, tuple) and np.ndim(x):
                lies = np.require(x, requirements=["C", "A"])
                if lies is not x:
                    copies.append((x, lies, p.writes))
                signature.append(Parameter(p.dtype, lies.ndim, p.writes))
                passed += [lies.ctypes.data, *lies.shape]
            elif p.pointer or isinstance(x, tuple):  # of spmd.start
                many = x if isinstance(x, tuple) else (x,)
                signature.append(Parameter(dtypes.INT64, many=len(many) if len(many) > 1 else 0))
                passed += map(int, many)
            else:
                number = p.dtype if p.dtype.name != "bool" else dtypes.INT64
                signature.append(Parameter(number))
                passed += [x.real, x.imag] if number.kind == "c" else [x]
        call = c_objects.loaded(self.in_c, self.passed, signature, target.native())
        call(*(x.item() if isinstance(x, np.generic) else x for x in passed))
        for x, lies, writes in copies:
            if writes:
                x[...] = lies

    # ---- derivatives -----------------------------------------------------------------------------

    def _way_back(self, form: Form, bound: Mapping[str, Any]) -> Callable[..., Any] | None:
        """Return what defvjp was given, or the way back through the reference, unless the signature
        has loops around it."""
        if self.back is not None or self.reference is None or any(map(form.lead, bound)):
            return self.back
        reference = convert(self.reference)

        def back(*args: Any) -> tuple[Any, ...]:
            known = dict(zip(bound, args))
            changes = args[len(bound) :]
            inputs = [n for n in bound if n not in form.outputs]
            by = [n for n in inputs if isinstance(known[n], Array)
                  and known[n].type.dtype.kind in "fc"]

            def primal(*primals: Any) -> Any:
                now = {**known, **dict(zip(by, primals))}
                for name in form.halo:
                    now[name] = windows.with_boundary(
                        now[name], *windows.ghosts(form, name), np.pad)
                for name, x in now.items():
                    if isinstance(x, Start):
                        now[name] = form.first(form.starts[name], {})
                outputs = self._referred(reference, now)
                return outputs[0] if len(outputs) == 1 else tuple(outputs)

            _, way = vjp(primal, *(known[n] for n in by))
            cotangents = dict(zip(by, way(changes[0] if len(changes) == 1 else changes)))
            return tuple(cotangents.get(n) for n in inputs)

        return back


def _dtype(x: Any) -> str:
    """Return NumPy's name of an argument's element type."""
    if isinstance(x, Array):
        return str(x.type.dtype)
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.name
    return "int64" if isinstance(x, Number) else np.asarray(x).dtype.name


def c_file(file: str | os.PathLike[str], program: str) -> str:
    """Return the path of a C file that is given relative to the folder of the program's file, or
    where that is none, as in a notebook, to the current one."""
    folder = os.path.dirname(program) if os.path.isfile(program) else ""
    return os.path.normpath(os.path.join(folder, os.fspath(file)))

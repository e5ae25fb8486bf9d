"""Kernels: a user's Python function, compiled by numba into an object file for the image.

Goes in: the function and one Parameter for each of its own. Comes out: an object with one C
function: per array its address and extents, per scalar its value (a complex one: parts).
Always holds: the object needs libm only; it allocates nothing, raises nothing, calls no Python.
This is the only file that imports numba.
"""

from __future__ import annotations

import re
import types as pytypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import cfunc, njit, types
from numba.np import numpy_support

from codegen.dtypes import DType
from codegen.errors import KernelError
from codegen.gufunc import ONLY, Parameter, c_names
from codegen.image import kernel_refusals as refusals
from codegen.image import link
from codegen.places import names_in

# What numba calls by another name, with the same arguments.
_ALIASES = {"numba_gamma": "tgamma", "numba_gammaf": "tgammaf", "numba_ldexp": "ldexp",
            "numba_frexp": "frexp"}


def compile_kernel(
    function: Callable[..., Any], signature: Sequence[Parameter], symbol: str, target: str
) -> bytes:
    """Compile a kernel into an object file; raise KernelError with the kernel's line. target: an
    LLVM name of a CPU."""
    functions = refusals.check_names(function)
    module = _optimised(_typed(function, signature), symbol, target)
    declared = [*module.functions, *module.global_variables]
    names = {f.name for f in declared if f.is_declaration and not f.name.startswith("llvm.")}
    outside = {n for n in names if not link.is_math(n)}
    if outside:
        raise refusals.not_linkable(
            function, functions, outside, str(module),
            lambda: str(_optimised(_typed(function, signature, debug=True), symbol, target)),
        )
    object_file: bytes = _machine(target).emit_object(module)
    return object_file


def results_of(function: Callable[..., Any], operands: Sequence[DType]) -> list[str]:
    """Return NumPy's names of the element types that a function of numbers of these types gives.
    Raises KernelError where numba cannot tell."""
    refusals.check_names(function)
    try:
        compiled, signature = _with_helpers(function, {}, False), tuple(map(_element, operands))
        compiled.compile(signature)
        result = compiled.overloads[signature].signature.return_type
        parts = getattr(result, "types", None) or [result] * getattr(result, "count", 1)
        return [str(numpy_support.as_dtype(getattr(p, "dtype", p))) for p in parts]
    except Exception as error:  # as in _typed
        raise refusals.not_typed(function, str(error) or type(error).__name__) from None


def _element(dtype: DType) -> Any:
    """Return numba's type of an element, or None if it has none."""
    return types.boolean if dtype.kind == "b" else getattr(types, dtype.name, None)


def _typed(
    function: Callable[..., Any], signature: Sequence[Parameter], debug: bool = False
) -> Any:
    """Return numba's C-callable wrapper around the function, typed for contiguous arrays. debug:
    with the lines that code comes from."""
    c_signature = _c_signature(signature)
    members = vars(numba)
    scope: dict[str, Any] = {n: members[n] for n in ("carray", "complex64", "complex128")}
    try:
        scope["inner"] = _with_helpers(function, {}, debug)
        exec(_wrapper(signature), scope)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of lines that it does not find
            return cfunc(c_signature, error_model="numpy", debug=debug)(scope["wrapper"])
    except Exception as error:  # numba raises many classes for what it cannot compile
        raise refusals.not_typed(function, str(error) or type(error).__name__) from None


def _wrapper(signature: Sequence[Parameter]) -> str:
    """Return Python's text of a function of addresses, extents and numbers that calls `inner` with
    arrays, in every turn of the loops."""
    names, lines, arguments = [], [], []
    loops: dict[int, str] = {}
    for k, p in enumerate(signature):
        _, *parts = c_names(k, p)
        argument = f"a{k}"
        if p.ndim or p.writes:
            lines.append(f"    a{k} = carray(p{k}, ({', '.join(parts) or '1'},))")
        elif p.dtype.kind == "c":
            lines.append(f"    a{k} = {p.dtype.name}(complex(p{k}, q{k}))")
        elif p.many:
            lines.append(f"    a{k} = (p{k}, {', '.join(parts)})")
        else:
            argument = f"p{k}"
        names += [f"p{k}", *parts]
        if p.apart:
            lines.append(f"    if a{k}.size == 0:\n        return")
        if p.loops:
            loops |= {i: n for i, n in zip(p.loops, parts) if i != ONLY}
            subscripts = ["0" if i == ONLY else f"i{i}" for i in p.loops]
            if p.writes and len(subscripts) == p.ndim:  # of single elements: an array of one
                subscripts[-1] = f"{subscripts[-1]}:{subscripts[-1]} + 1"
            argument += f"[{', '.join(subscripts)}]"
        arguments.append(argument)
    pad = "    "
    for i in sorted(loops):
        lines.append(f"{pad}for i{i} in range({loops[i]}):")
        pad += "    "
    return "\n".join([f"def wrapper({', '.join(names)}):", *lines,
                      f"{pad}inner({', '.join(arguments)})"])


def _c_signature(signature: Sequence[Parameter]) -> Any:
    arguments: list[Any] = []
    for p in signature:
        dtype = p.dtype
        element = _element(dtype)
        if element is None or dtype.name in ("float16", "bfloat16"):
            raise KernelError(
                f"kernels do not take {dtype}",
                expected="float32, float64, an integer, bool or complex", found=str(dtype),
                remedy="convert with x.astype(np.float32) before the call",
            )
        if p.ndim or p.writes:
            pointer: Any = types.CPointer
            arguments += [pointer(element), *[types.int64] * p.ndim]
        elif p.many:
            arguments += [types.int64] * p.many
        elif dtype.kind == "c":  # how C passes one by value is another matter on every machine
            arguments += [types.float32 if dtype.name == "complex64" else types.float64] * 2
        else:
            arguments.append(types.uint8 if dtype.kind == "b" else element)
    return types.void(*arguments)


def _with_helpers(function: Any, compiled: dict[Any, Any], debug: bool) -> Any:
    """Return the function, and the user's functions that it names, for numba to compile now.

    compiled: the functions that were met before; functions may call each other, and themselves.
    """
    if function in compiled:
        return compiled[function]
    # One that the user gave to numba may be compiled already, with what it read then.
    own = getattr(function, "targetoptions", {})
    options = {"error_model": "numpy", "boundscheck": False, "debug": debug, **own}
    options.pop("nopython", None)
    key, function = function, getattr(function, "py_func", function)
    code, scope = function.__code__, dict(function.__globals__)
    closure = function.__closure__ or ()
    cells = tuple(pytypes.CellType(c.cell_contents) for c in closure)
    copy = pytypes.FunctionType(code, scope, function.__name__, function.__defaults__, cells)
    compiled[key] = njit(**options)(copy)
    for name in names_in(code):
        if _is_helper(helper := scope.get(name)):
            scope[name] = _with_helpers(helper, compiled, debug)
    for cell in cells:
        if _is_helper(cell.cell_contents):
            cell.cell_contents = _with_helpers(cell.cell_contents, compiled, debug)
    return compiled[key]


def _is_helper(x: Any) -> bool:
    return isinstance(x, pytypes.FunctionType) or hasattr(x, "py_func") and hasattr(x, "overloads")


def _machine(target: str) -> Any:
    triple = llvm.get_process_triple()
    cpu = target if target.startswith("x86-64") else ""
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features="", opt=3, reloc="pic", codemodel="small"
    )


def _optimised(wrapped: Any, symbol: str, target: str) -> Any:
    """Return the module with `symbol` as its only visible function, optimised for the target."""
    # A function that calls itself is declared under another name, for numba's own linker.
    text = wrapped._library.get_llvm_str()
    text = re.sub(r"(?m)^declare [^\n]*\.numba\.unresolved\$.*\n", "", text)
    module = llvm.parse_assembly(text.replace(".numba.unresolved$", ""))
    entry = wrapped._wrapper_name
    for f in module.functions:
        if not f.is_declaration:
            f.linkage = "external" if f.name == entry else "internal"
    for g in module.global_variables:
        if not g.is_declaration:
            g.linkage = "internal"
    module.get_function(entry).name = symbol
    for f in module.functions:
        f.name = _ALIASES.get(f.name, f.name) if f.is_declaration else f.name
    machine = _machine(target)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    module.name = symbol
    kept = [v for v in (*module.functions, *module.global_variables) if not v.is_declaration]
    for k, value in enumerate(v for v in kept if v.name != symbol):
        if not value.name.startswith(refusals.RAISED):
            value.name = f"{symbol}_{k}"  # numba's own names count what was compiled before
    return module

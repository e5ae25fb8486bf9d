"""Kernels: a user's Python function, compiled by numba into an object file for the image.

Goes in: the function and one (dtype, number of dims, is output) per parameter. Comes out: an object
with one C function: per array its address and extents, per scalar its value, in order.
Always holds: the object needs libm only; it allocates nothing, raises nothing, calls no Python.
This is the only file that imports numba.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types as pytypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from codegen.dtypes import DType
from codegen.errors import KernelError, Place

Signature = Sequence[tuple[DType, int, bool]]

# What a kernel may call: libm, memory moves, and the compiler's own arithmetic.
_MATH = frozenset(
    "acos asin atan atan2 acosh asinh atanh cos sin tan cosh sinh tanh exp exp2 expm1 log log2 "
    "log10 log1p pow sqrt cbrt hypot erf erfc lgamma tgamma floor ceil trunc rint nearbyint "
    "round fabs fmod "
    "remainder copysign ldexp frexp modf fmin fmax fma memcpy memset memmove __powidf2 __powisf2 "
    "__divti3 __modti3 __muldc3 __divdc3 __mulsc3 __divsc3".split()
)
_ALLOCATES = frozenset("zeros empty ones full zeros_like empty_like ones_like array copy".split())


def compile_kernel(
    function: Callable[..., Any], signature: Signature, symbol: str, target: str
) -> bytes:
    """The object file. target: an LLVM name of a CPU. Raises KernelError with the kernel's line."""
    import llvmlite.binding as llvm

    module = _optimised(_typed(function, signature), symbol, target)
    names = {f.name for f in module.functions if f.is_declaration}
    outside = {n for n in names if not n.startswith("llvm.")}
    _refuse_outside(function, {n for n in outside if not _is_math(n)})
    object_file: bytes = _machine(llvm, target).emit_object(module)
    return object_file


def _is_math(name: str) -> bool:
    return name in _MATH or (name.endswith("f") and name[:-1] in _MATH)


def _typed(function: Callable[..., Any], signature: Signature) -> Any:
    """numba's C-callable wrapper around the function, typed for contiguous arrays."""
    import numba
    from numba import cfunc, njit
    from numba.core import errors

    inner = njit(error_model="numpy", boundscheck=False)(_with_helpers(function))
    names, lines, arguments = [], [], []
    for k, (_, ndim, _) in enumerate(signature):
        extents = [f"n{k}_{d}" for d in range(ndim)]
        names += [f"p{k}", *extents]
        if ndim:
            lines.append(f"    a{k} = carray(p{k}, ({', '.join(extents)},))")
        arguments.append(f"a{k}" if ndim else f"p{k}")
    text = "\n".join([f"def wrapper({', '.join(names)}):", *lines,
                      f"    inner({', '.join(arguments)})"])  # fmt: skip
    scope: dict[str, Any] = {"carray": vars(numba)["carray"], "inner": inner}
    exec(text, scope)
    try:
        return cfunc(_c_signature(signature), error_model="numpy")(scope["wrapper"])
    except errors.NumbaError as error:
        raise _not_typed(function, str(error)) from None
    except NotImplementedError as error:
        raise _not_typed(function, str(error)) from None


def _c_signature(signature: Signature) -> Any:
    from numba import types

    arguments: list[Any] = []
    for dtype, ndim, _ in signature:
        element = types.boolean if dtype.kind == "b" else getattr(types, dtype.name, None)
        if element is None or dtype.name in ("float16", "bfloat16"):
            raise KernelError(
                f"kernels know no {dtype}",
                expected="float32, float64, an integer, bool or complex", found=str(dtype),
                remedy="convert with x.astype(np.float32) before the call",
            )  # fmt: skip
        if ndim:
            pointer: Any = types.CPointer
            arguments += [pointer(element), *[types.int64] * ndim]
        else:
            arguments.append(types.uint8 if dtype.kind == "b" else element)
    return types.void(*arguments)


def _with_helpers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the plain Python functions that it names compiled as well."""
    from numba import njit

    code = function.__code__
    scope = dict(function.__globals__)
    for name in _global_names(code):
        helper = scope.get(name)
        if isinstance(helper, pytypes.FunctionType):
            scope[name] = njit(error_model="numpy")(_with_helpers(helper))
    cells = tuple(
        pytypes.CellType(njit(error_model="numpy")(_with_helpers(c.cell_contents)))
        if isinstance(c.cell_contents, pytypes.FunctionType) else c
        for c in function.__closure__ or ()
    )  # fmt: skip
    return pytypes.FunctionType(code, scope, function.__name__, function.__defaults__, cells)


def _global_names(code: pytypes.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, pytypes.CodeType):
            yield from _global_names(constant)


def _machine(llvm: Any, target: str) -> Any:
    triple = llvm.get_process_triple()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=target, features="", opt=3, reloc="pic", codemodel="small"
    )


def _optimised(wrapped: Any, symbol: str, target: str) -> Any:
    """The module with `symbol` as its only visible function, optimised for the target."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(wrapped._library.get_llvm_str())
    entry = wrapped._wrapper_name
    for f in module.functions:
        if not f.is_declaration:
            f.linkage = "external" if f.name == entry else "internal"
    for g in module.global_variables:
        if not g.is_declaration:
            g.linkage = "internal"
    module.get_function(entry).name = symbol
    machine = _machine(llvm, target)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    return module


# ---- refusals ------------------------------------------------------------------------------------


def _refuse_outside(function: Callable[..., Any], names: set[str]) -> None:
    """A kernel that needs the Python runtime allocates memory or can raise."""
    if not names:
        return
    allocation = _find(function, _is_allocation)
    raising = _find(function, lambda n: isinstance(n, (ast.Raise, ast.Assert)))
    if any("alloc" in n for n in names) or (allocation and not raising):
        raise KernelError(
            f'kernel "{function.__name__}" allocates memory',
            place=allocation or _place(function),
            expected="a kernel that works on the arrays it is given",
            found=", ".join(sorted(names)[:4]),
            remedy="pass scratch space as one more output made by spmd.empty(...), or use scalars",
        )
    raise KernelError(
        f'kernel "{function.__name__}" can raise or calls what an image does not hold',
        place=raising or _place(function),
        expected="arithmetic, loops, branches, math and the arrays it is given",
        found=", ".join(sorted(names)[:4]),
        remedy="return the problem in an output array and test it outside",
    )


def _is_allocation(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, (ast.List, ast.ListComp, ast.Dict, ast.Set))
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in _ALLOCATES


def _find(function: Callable[..., Any], wanted: Callable[[ast.AST], bool]) -> Place | None:
    """The first place in the function's source that `wanted` recognises."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    indent = len(lines[0]) - len(lines[0].lstrip())
    for node in ast.walk(tree):
        if wanted(node):
            line = first + node.lineno - 1  # type: ignore[attr-defined]
            column = node.col_offset + indent  # type: ignore[attr-defined]
            end = (node.end_col_offset or 0) + indent  # type: ignore[attr-defined]
            return Place(function.__code__.co_filename, line, column, end, function.__name__)
    return None


def _place(function: Callable[..., Any]) -> Place:
    code = function.__code__
    return Place(code.co_filename, code.co_firstlineno, 0, -1, function.__name__)


def _not_typed(function: Callable[..., Any], text: str) -> KernelError:
    """numba's complaint, shortened to its reason and the user's line."""
    code = function.__code__
    line = code.co_firstlineno
    for file, number in re.findall(r'File "([^"]+)", line (\d+)', text):
        if code.co_filename.endswith(file.lstrip(".")):
            line = int(number)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    reasons = [
        ln.strip() for ln in plain.splitlines()
        if ln.strip() and not re.match(r"\s*(Failed in|File|During|>>>|\^|-{3,}|\[\d)", ln)
    ]  # fmt: skip
    return KernelError(
        f'kernel "{function.__name__}" cannot be compiled',
        place=Place(code.co_filename, line, 0, -1, function.__name__),
        expected="what numba compiles without Python objects (nopython mode)",
        found="; ".join(reasons[:2])[:300],
        remedy="use arithmetic, loops, math, and NumPy functions of single elements",
    )

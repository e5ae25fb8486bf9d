"""Kernels that no image can hold: why, and the user's own line.

Goes in: the function, the names that are outside of its machine code, and its optimised LLVM text
(with the lines that it comes from). Comes out: a KernelError.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import os
import pickle
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from codegen.errors import KernelError, Place

RAISED = ".const.pickledata."  # how numba names what a raise statement holds
_ALLOCATES = frozenset("zeros empty ones full zeros_like empty_like ones_like array copy".split())
_WORKS = "a kernel that works on the arrays it is given"


# ---- before it is compiled -----------------------------------------------------------------------


def check_names(function: Callable[..., Any]) -> list[types.FunctionType]:
    """Return the functions of a kernel: itself and its helpers. Raises KernelError for names that
    stand for nothing, or for what only the program has."""
    functions: list[types.FunctionType] = []
    todo: list[Any] = [function]
    while todo:
        f = todo.pop()
        if f in functions:
            continue
        functions.append(f)
        closure = dict(zip(f.__code__.co_freevars, f.__closure__ or ()))
        for name, place in _reads(f, f.__code__):
            try:
                value = closure[name].cell_contents if name in closure else f.__globals__.get(
                    name, getattr(builtins, name, _NOTHING)
                )
            except ValueError:  # an empty cell
                value = _NOTHING
            if value is _NOTHING:
                raise KernelError(
                    f'kernel "{function.__name__}" reads {name}, which is not defined',
                    place=place, expected="a parameter, a variable of the kernel, or a global",
                    found=f"no {name} when the program is built",
                )
            if type(value).__module__.startswith("codegen.trace"):
                raise _of_the_program(function, name, value, place)
            if isinstance(value, types.FunctionType):
                todo.append(value)
    return functions


_NOTHING = object()


def _reads(f: types.FunctionType, code: types.CodeType) -> Iterator[tuple[str, Place]]:
    """Yield the names that code reads from outside of it, with their places."""
    for instruction in dis.get_instructions(code):
        opname, name, p = instruction.opname, instruction.argval, instruction.positions
        if opname not in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") or not isinstance(name, str):
            continue
        if opname == "LOAD_DEREF" and name not in f.__code__.co_freevars:
            continue
        line = p.lineno if p and p.lineno else code.co_firstlineno
        column, end = (p.col_offset or 0, p.end_col_offset or -1) if p else (0, -1)
        yield name, Place(code.co_filename, line, column, end, f.__name__)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _reads(f, constant)


def _of_the_program(
    function: Callable[..., Any], name: str, value: Any, place: Place
) -> KernelError:
    if type(value).__name__ == "Kernel":
        return KernelError(
            f'kernel "{function.__name__}" calls the kernel {name}', place=place,
            expected="helpers that are plain functions", found=repr(value),
            remedy=f"leave @spmd.kernel out before def {value.name}; call that one from kernels",
        )
    return KernelError(
        f'kernel "{function.__name__}" reads {name}, which exists only when the program runs',
        place=place, expected="a constant, or a parameter", found=type(value).__name__,
        remedy=f"pass {name} as an argument",
    )


# ---- after it is compiled ------------------------------------------------------------------------


def not_linkable(
    function: Callable[..., Any],
    functions: Sequence[types.FunctionType],
    names: set[str],
    module: str,
    with_lines: Callable[[], str],
) -> KernelError:
    """Return the error for a kernel that needs the Python runtime: it allocates memory, can raise,
    or calls Python.

    module: the optimised code; with_lines: makes that of a build that keeps lines.
    """
    raised = list(_raised(module))
    own = {f.__code__.co_filename for f in functions}
    if memory := {n for n in names if "alloc" in n.lower() or n.startswith("NRT_MemInfo_new")}:
        place = _find(functions, _is_allocation) or _calls(functions, memory, with_lines())
        assigns = place and _find(functions, _is_slice_assignment, place.line)
        loop = "write the loop: for i in range(out.shape[0]): out[i] = ..."
        return KernelError(
            f'kernel "{function.__name__}" allocates memory',
            place=assigns or place or _place(function),
            expected=_WORKS,
            found="arrays that are assigned to a slice: they may overlap, or differ in shape"
            if assigns else "a new array, list or other object",
            remedy=loop if assigns else "work element by element in a loop; pass scratch space as "
            "one more output made by spmd.empty(...)",
        )
    if raised:
        lines = [(file, line) for _, file, line in raised if file in own]
        return KernelError(
            f'kernel "{function.__name__}" can raise',
            place=_place(function, *lines[0]) if lines else _place(function),
            expected="arithmetic, loops, branches, math and the arrays it is given",
            found="; ".join(dict.fromkeys(text for text, _, _ in raised))[:300],
            remedy="return the problem in an output array and test it outside",
        )
    return KernelError(
        f'kernel "{function.__name__}" calls what an image does not hold',
        place=_calls(functions, names, with_lines()) or _place(function),
        expected="arithmetic, loops, branches, math and the arrays it is given",
        found="a function that calls itself, or Python" if "numba_gil_ensure" in names
        else ", ".join(sorted(names)[:4]),
        remedy="write it out with loops and math, or do it outside of the kernel",
    )


def _calls(
    functions: Sequence[types.FunctionType], names: set[str], text: str
) -> Place | None:
    """Return the user's line that calls one of these, as LLVM's debug information has it."""
    nodes = dict(re.findall(r"(?m)^(!\d+) = (?:distinct )?(!DI.*)$", text))
    called = "|".join(map(re.escape, sorted(names)))
    for node in re.findall(rf"(?m)call [^\n]*@(?:{called})\([^\n]*!dbg (!\d+)", text):
        while node:
            location = nodes.get(node, "")
            line, scope, node = (_field(location, f) for f in ("line", "scope", "inlinedAt"))
            while scope and not _field(nodes.get(scope, ""), "file"):
                scope = _field(nodes.get(scope, ""), "scope")
            file = _field(nodes.get(_field(nodes.get(scope, ""), "file"), ""), "filename")
            for f in functions:
                code = f.__code__
                first = code.co_firstlineno
                last = max((n for _, _, n in code.co_lines() if n), default=first)
                if os.path.basename(code.co_filename) == file and first <= int(line or 0) <= last:
                    return _place(f, code.co_filename, int(line))
    return None


def _field(node: str, name: str) -> str:
    match = re.search(rf'\b{name}: (?:"([^"]*)"|([^\s,)]+))', node)
    return (match[1] or match[2]) if match else ""


def _raised(module: str) -> Iterator[tuple[str, str, int]]:
    """Yield what the optimised code can still raise: text, file and line, as numba keeps them."""
    pattern = rf'(?m)^@"?{re.escape(RAISED)}[0-9a-f]+"? = .* c"((?:[^"\\]|\\..)*)"'
    for quoted in re.findall(pattern, module):
        escapes = re.compile(rb"\\([0-9A-F]{2})")
        content = escapes.sub(lambda m: bytes([int(m[1], 16)]), quoted.encode("latin-1"))
        try:
            kind, arguments, where = pickle.loads(content)  # written by numba in this process
        except Exception:
            continue
        text = ": ".join([kind.__name__, *(str(a) for a in arguments or ())])
        text = "a call into Python" if "missing Environment" in text else text
        yield (text, where[1], where[2]) if where else (text, "", 0)


def _is_allocation(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, (ast.List, ast.ListComp, ast.Dict, ast.Set))
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in _ALLOCATES


def _is_slice_assignment(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(t, ast.Subscript) and any(isinstance(s, ast.Slice) for s in ast.walk(t.slice))
        for t in node.targets
    )


def _find(
    functions: Sequence[types.FunctionType], wanted: Callable[[ast.AST], bool], line: int = 0
) -> Place | None:
    """Return the first place in the functions' source, or on a line of it, that `wanted`
    recognises."""
    for function in functions:
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, SyntaxError, TypeError):
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        for node in ast.walk(tree):
            if not wanted(node):
                continue
            node_line = first + node.lineno - 1  # type: ignore[attr-defined]
            if line in (0, node_line):
                column = node.col_offset + indent  # type: ignore[attr-defined]
                end = (node.end_col_offset or 0) + indent  # type: ignore[attr-defined]
                file, name = function.__code__.co_filename, function.__name__
                return Place(file, node_line, column, end, name)
    return None


def _place(function: Callable[..., Any], file: str = "", line: int = 0) -> Place:
    code = function.__code__
    return Place(file or code.co_filename, line or code.co_firstlineno, 0, -1, function.__name__)


def not_typed(function: Callable[..., Any], text: str) -> KernelError:
    """Return numba's complaint, shortened to its reason and the user's line."""
    code = function.__code__
    line = code.co_firstlineno
    for file, number in re.findall(r'File "([^"]+)", line (\d+)', text):
        if code.co_filename.endswith(file.lstrip(".")):
            line = int(number)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    reasons = [
        ln.strip() for ln in plain.splitlines()
        if ln.strip() and not re.match(r"\s*(Failed in|File|During|>>>|\^|-{3,}|\[\d)", ln)
    ]
    if reasons and reasons[0].startswith("No implementation of function"):
        reasons = [f"no {call}" for call in re.findall(r"(?m)^\s*>>> (.*)$", plain)[:1]] or reasons
    return KernelError(
        f'kernel "{function.__name__}" cannot be compiled',
        place=_place(function, "", line),
        expected="what numba compiles without Python objects (nopython mode)",
        found="; ".join(reasons[:2])[:300],
        remedy="use arithmetic, loops, math, and NumPy functions of single elements",
    )

"""From a user's function to the same function with its control flow visible to a capture.

`convert` finds the function in its file, rewrites the syntax tree (exits.py, rewrite.py), compiles
it under the original file name and positions, and binds it to the original closure and globals.
Always holds: on plain Python values the converted function behaves as the original does.
"""

from __future__ import annotations
import __future__

import ast
import functools
import importlib.machinery
import linecache
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from codegen.errors import Place, ProgramError
from codegen.places import codes_in, is_library_file, is_user_file
from codegen.trace.control import rewrite
from codegen.user.sameness import RUNTIME, content
from codegen.user.signatures import check_call

_FUTURE = functools.reduce(
    lambda a, b: a | b, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

# Beside each: what of the function it was made of, which Python lets anybody replace.
_converted: weakref.WeakKeyDictionary[
    Callable[..., Any], tuple[types.FunctionType, tuple[Any, ...]]
] = weakref.WeakKeyDictionary()
_codes: dict[tuple[str, types.CodeType], types.CodeType | str] = {}
# by id: code objects compare by content. The values keep the ids from being used again.
_made: dict[int, types.CodeType] = {}
_Text = tuple[str, list[tuple[_Function, str | None]], list[types.CodeType]]
_trees: dict[tuple[str, int], _Text] = {}
runtime: Any = None  # what converted functions call: see registration.py


def convert(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with compiled control flow; itself where it is not the user's own
    Python."""
    if isinstance(function, types.MethodType):
        inner = convert(function.__func__)
        return (
            function if inner is function.__func__ else types.MethodType(inner, function.__self__)
        )
    if isinstance(function, functools.partial):
        inner = convert(function.func)
        if inner is function.func:
            return function
        return functools.partial(inner, *function.args, **function.keywords)
    if isinstance(function, types.FunctionType):
        return _convert_function(function)
    method = getattr(type(function), "__call__", None)  # noqa: B004
    if isinstance(method, types.FunctionType) and not isinstance(function, type):
        inner = convert(method)
        return function if inner is method else types.MethodType(inner, function)
    return function


def as_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs in place of a function that is given to one of ours, such as vmap or jit:
    what would run if the user's own code called it. It may be a built-in, or another library's."""
    converted = convert(function)
    return runtime.call(function) if converted is function else converted


def why_unconverted() -> str:
    """Return why the function that asks for a value now is not compiled; "" when it is."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or id(frame.f_code) in _made:
        return ""
    code = frame.f_code
    reason = _codes.get((code.co_filename, code))
    if isinstance(reason, str):
        return reason
    if not is_user_file(code.co_filename):
        return _unread(code)
    return f"{code.co_name} was called by code that is not compiled"


def in_a_for_statement(remedy: str = "") -> tuple[str, str]:
    """Return two texts for the error about a `for` that was not compiled: what follows the value in
    the message, and what to try."""
    if why := why_unconverted():
        return f"; {why}", "a file with the program in it, which Python runs or imports"
    return "", f"leave out the enumerate, zip, list or comprehension around it{remedy}"


def _unread(code: types.CodeType) -> str:
    return f"the source of {code.co_name} cannot be read, so its control flow is not compiled"


def checked_callback(function: Any, role: str, *names: str) -> Callable[..., Any]:
    """Return as_called(function), for a function that we call with so many arguments, called
    `names`."""
    check_call(function, role, *names, expected=f"a function of {', '.join(names) or 'nothing'}")
    return as_called(function)


def _convert_function(function: types.FunctionType) -> Callable[..., Any]:
    code = function.__code__
    if id(code) in _made or not is_user_file(code.co_filename):
        return function
    return rewritten(function)


def rewritten(function: types.FunctionType) -> Callable[..., Any]:
    """Return the function with compiled control flow, whoever wrote it; itself where it has no
    source."""
    code = function.__code__
    parts = (code, function.__defaults__, function.__kwdefaults__)
    known, made_of = _converted.get(function, (None, ()))
    if known is not None and all(a is b for a, b in zip(parts, made_of)):
        return known
    key = (code.co_filename, code)
    if key not in _codes:
        _codes[key] = _convert_code(code, function.__globals__)
    new = _codes[key]
    if isinstance(new, str):
        return function
    converted = _bind(function, new)
    _converted[function] = converted, parts
    return converted


def _convert_code(code: types.CodeType, namespace: dict[str, Any]) -> types.CodeType | str:
    """Return the rewritten code, or the reason why there is none."""
    source = find(code, namespace)
    if source is None:
        return _unread(code)
    node, class_name = source
    try:
        tree = rewrite.function_module(node, code.co_freevars, class_name)
        flags = code.co_flags & _FUTURE
        module = compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, RecursionError) as error:
        return f"{code.co_name} nests too deeply to be compiled ({error})"
    inner = module
    for _ in range(2 if class_name is None else 3):  # module, factory, perhaps a class
        inner = next(c for c in inner.co_consts if isinstance(c, types.CodeType))
    inner = _renamed(inner, inner.co_qualname, code.co_qualname)
    _register(inner)
    return inner


def _bind(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """Return a function of the new code in the old one's surroundings: same cells, same globals."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    cells[RUNTIME] = types.CellType(runtime)
    closure = tuple(cells[name] for name in code.co_freevars)
    new = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__,
                             closure)
    new.__kwdefaults__ = function.__kwdefaults__
    new.__dict__.update(function.__dict__)
    new.__annotations__ = function.__annotations__
    new.__doc__, new.__module__ = function.__doc__, function.__module__
    new.__qualname__ = function.__qualname__
    return new


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """Return the code with its qualified name, and those of the functions in it, as in the
    source."""
    consts = tuple(
        _renamed(c, old, new) if isinstance(c, types.CodeType) else c for c in code.co_consts
    )
    name = code.co_qualname
    name = new + name[len(old) :] if name.startswith(old) else name
    return code.replace(co_consts=consts, co_qualname=name)


def _register(code: types.CodeType) -> None:
    _made[id(code)] = code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            _register(c)


# ---- finding a function in its file ----------------------------------------------------------


def find(code: types.CodeType, namespace: dict[str, Any]) -> tuple[_Function, str | None] | None:
    """Return the node of a code object and the class around it (for private names); None: not
    found."""
    linecache.checkcache(code.co_filename)
    text = _text(code, namespace)
    if text is None:
        return None
    if text[2] and all(c.co_firstlineno != code.co_firstlineno for c in _same(text[2], code)):
        linecache.cache.pop(code.co_filename, None)  # perhaps a change that kept size and time
        text = _text(code, namespace)
        same = _same(text[2], code) if text else []
        if text is None or not same:
            raise _changed(code)
        code = next((c for c in same if c.co_firstlineno == code.co_firstlineno), same[0])
    fits = [(n, c) for n, c in text[1] if _is_source_of(n, code)]
    if len(fits) > 1 and code.co_name == "<lambda>":  # several lambdas begin on this line
        spans = set(code.co_positions())
        fits = [(n, c) for n, c in fits if isinstance(n, ast.Lambda) and _span(n.body) in spans]
        fits.sort(key=lambda f: len(ast.dump(f[0])), reverse=True)  # outer ones hold inner bodies
    return fits[0] if fits else None


def _text(code: types.CodeType, namespace: dict[str, Any]) -> _Text | None:
    """Return the text of a function's file, all functions in it, and their code; no code where they
    were made by something that changes what it reads, as pytest changes assertions."""
    lines = linecache.getlines(code.co_filename, namespace)
    if not lines:
        return None
    text = "".join(lines)
    # A notebook's cells may wait, and keep what earlier cells imported from __future__.
    flags = code.co_flags & _FUTURE | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    key = code.co_filename, flags
    if key not in _trees or _trees[key][0] != text:
        loader = namespace.get("__loader__")
        plain = loader is None or type(loader) is importlib.machinery.SourceFileLoader
        try:
            tree = ast.parse(text)
            codes = _codes_of(tree, code.co_filename, flags) if plain else []
            _trees[key] = (text, [*_functions(tree, None)], codes)
        except (SyntaxError, ValueError):
            return None
    return _trees[key]


def _codes_of(tree: ast.Module, filename: str, flags: int) -> list[types.CodeType]:
    """Compile the whole file, and each statement by itself, as notebooks do: Python compiles a call
    of `module.function` another way where it sees the import."""
    parts = [tree, *(ast.Module([statement], []) for statement in tree.body)]
    modules = [compile(part, filename, "exec", flags=flags, dont_inherit=True) for part in parts]
    return [code for module in modules for code in codes_in(module)]


def _same(codes: list[types.CodeType], code: types.CodeType) -> list[types.CodeType]:
    """Return the code objects of the file that do the same as `code`, wherever they stand."""
    meant = content(code)
    return [c for c in codes if c.co_name == code.co_name and content(c) == meant]


def _changed(code: types.CodeType) -> ProgramError:
    return ProgramError(
        f"the file of {code.co_name} has changed since Python read it",
        place=Place(code.co_filename, code.co_firstlineno),
        expected=f"the text that {code.co_name} was made of, whose control flow is compiled",
        found="another text", remedy="start Python again, or importlib.reload() of its module",
    )


def _functions(node: ast.AST, class_name: str | None) -> Iterator[tuple[_Function, str | None]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield child, class_name
        inner = child.name if isinstance(child, ast.ClassDef) else class_name
        yield from _functions(child, inner)


def _is_source_of(node: _Function, code: types.CodeType) -> bool:
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    if len(names) != code.co_argcount + code.co_kwonlyargcount:
        return False
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
    return node.name == code.co_name and first == code.co_firstlineno


def _span(node: ast.expr) -> tuple[int | None, int | None, int | None, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset

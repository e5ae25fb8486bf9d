"""C functions of users, compiled into object files for the image, and into memory for eager runs.

Goes in: a FunctionInC, which parameters a call gives, and what it gives for each. Comes out: an
object with one C function, which takes what a call of a kernel passes (an address and extents for
each array, numbers by value) and calls the user's. Always holds: it needs libm only, keeps no
state, and nothing of it runs when the image is loaded.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from codegen import gufunc
from codegen.errors import EnvironmentFault, KernelError, Place
from codegen.gufunc import ONLY, Parameter
from codegen.image import c_refusals, link
from codegen.image.prototypes import CParameter, Prototype

# Errors, though C11 may be read so that compilers only warn: what they mean is never what is meant.
_ERRORS = ("implicit-function-declaration", "incompatible-pointer-types", "int-conversion",
           "implicit-int")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
_SYMBOL = "spmd_c_kernel"  # of what eager runs call


@dataclass(frozen=True)
class FunctionInC:
    """A function in a C file. file: as messages name it; path: the same from the root on. place: of
    the line that names it in the program."""

    file: str
    path: str
    prototype: Prototype
    place: Place | None = None

    def texts(self) -> tuple[tuple[str, str], ...]:
        """Return the file and those that it includes by "…", as they are now: each with its path
        from the file's folder on. KernelError where the file cannot be read."""
        texts: dict[str, tuple[str, str]] = {}
        todo, here = [self.path], os.path.dirname(self.path)
        while todo:
            path = todo.pop()
            if (real := os.path.realpath(path)) in texts:
                continue
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    text = file.read()
            except OSError as error:
                if path == self.path:
                    raise KernelError(
                        f"cannot read {self.file}: {error.strerror}", place=self.place,
                        expected=f"a C file with {self.prototype.text.strip()}",
                        found=os.path.basename(path),
                        remedy="a path is relative to the folder of the program's file") from None
                continue  # of the system, or the compiler says that it is missing
            texts[real] = os.path.relpath(path, here), text
            todo += [os.path.join(os.path.dirname(path), inner) for inner in _INCLUDE.findall(text)]
        return tuple(texts.values())

    def files(self) -> tuple[str, ...]:
        """Return the paths of these files."""
        folder = os.path.dirname(self.path)
        return tuple(os.path.join(folder, name) for name, _ in self.texts())

    def defined_at(self) -> Place:
        """Return where the file has the function's name first, as a call or a definition."""
        return c_refusals.line_of(self.file, self.prototype.name, "(") or Place(self.file, 1)


@dataclass(frozen=True)
class Passed:
    """The arguments of a call: parameters by name, in the order in which it passes them, and for
    extents that it leaves out the array and the dim."""

    names: tuple[str, ...]
    extents: tuple[tuple[str, str, int], ...] = ()


def compile_c(
    function: FunctionInC, passed: Passed, signature: Sequence[Parameter], symbol: str, target: str
) -> bytes:
    """Compile a C function into an object file; raise KernelError with the line of the C file."""
    text = _wrapper(function, passed, signature, symbol)
    folder = os.path.dirname(function.path)
    flags = [*link.FLAGS, *(f"-Werror={e}" for e in _ERRORS), f"-march={target}",
             "-D_DEFAULT_SOURCE", f"-ffile-prefix-map={folder}{os.sep}="]
    object_file, done = link.in_folder(
        {"kernel.c": text.encode("utf-8", "surrogateescape")},
        [[*link.compiler(), *flags, "-c", "-o", "kernel.o", "kernel.c"],
         ["objcopy", f"--keep-global-symbol={symbol}", "kernel.o"]],
        "kernel.o",
    )
    if done.code:
        link.trial(target)  # raises what the compiler lacks
        raise c_refusals.not_compiled(function, done.err)
    c_refusals.check_object(function, symbol, object_file)
    return object_file


# ---- the function around the user's --------------------------------------------------------------


def _wrapper(
    function: FunctionInC, passed: Passed, signature: Sequence[Parameter], symbol: str
) -> str:
    """Return the C around the user's file: its function must be what the prototype says, and is
    called once, or in every turn of the loops."""
    prototype = function.prototype
    parameters = {p.name: p for p in prototype.parameters}
    arrays = dict(zip(passed.names, enumerate(signature), strict=True))
    lines: list[str] = []
    for k, p in arrays.values():
        if p.apart:
            empty = " || ".join(f"n{k}_{d} == 0" for d in range(p.ndim))
            lines.append(f"if ({empty})\n    return;")
    loops = {i: f"n{k}_{d}" for k, p in arrays.values() for d, i in enumerate(p.loops or ())
             if i != ONLY}
    pad = ""
    for i in sorted(loops):
        lines.append(f"{pad}for (int64_t i{i} = 0; i{i} < {loops[i]}; i{i}++)")
        pad += "    "
    extents = {name: f"n{arrays[array][0]}_{dim + len(arrays[array][1].loops or ())}"
               for name, array, dim in passed.extents}
    arguments = [extents[p.name] if p.name in extents else _argument(p, *arrays[p.name])
                 for p in prototype.parameters]
    lines.append(f"{pad}{prototype.name}({', '.join(arguments)});")
    takes = [f"{c} {name}" for k, p in arrays.values()
             for c, name in zip(gufunc.c_types(p), gufunc.c_names(k, p), strict=True)]
    body = "\n".join("    " + line for text in lines for line in text.split("\n"))
    declared = ", ".join(f"{'const ' * (p.pointer and not p.writes)}{p.c} {'*' * p.pointer}"
                         for p in parameters.values())
    return (f'#include "{function.path}"\n#include <stdint.h>\n'
            f"void {prototype.name}({declared});\n"
            f'__attribute__((visibility("default"))) void {symbol}({", ".join(takes)});\n'
            f"void {symbol}({', '.join(takes)})\n{{\n{body}\n}}\n")


def _argument(p: CParameter, k: int, passed: Parameter) -> str:
    """Return the C of an argument that the wrapper passes for one of the user's parameters."""
    c, address = p.c if p.pointer else passed.dtype.c, f"p{k}"  # a number C itself converts
    if passed.ndim or passed.writes:
        typed = f"({'' if p.writes else 'const '}{c} *)p{k}"
        inner = [f"n{k}_{d}" for d in range(len(passed.loops or ()), passed.ndim)]
        row = "0"
        for d, i in enumerate(passed.loops or ()):
            row = f"({row} * n{k}_{d} + {'0' if i == ONLY else f'i{i}'})"
        offset = " * ".join([row, *inner]) if passed.loops else "0"
        return f"{typed} + {offset}" if p.pointer else f"({typed})[{offset}]"
    if passed.dtype.kind == "c":  # by its parts
        parts = f"{passed.dtype.c.removesuffix(' _Complex')} parts[2]"
        both = f"{{{{p{k}, q{k}}}}}"
        address = f"((union {{ {parts}; {passed.dtype.c} number; }}){both}).number"
    if p.pointer:  # the numbers of spmd.start
        numbers = gufunc.c_names(k, passed)
        return f"(const int64_t[]){{{', '.join(numbers)}}}"
    return address


# ---- in memory, for eager runs -------------------------------------------------------------------

_loaded: dict[Any, Any] = {}


def loaded(
    function: FunctionInC, passed: Passed, signature: Sequence[Parameter], target: str
) -> Any:
    """Return the same function in this process: a ctypes function of addresses, extents and
    numbers. Its file stays open: the dynamic linker takes what has the same path for what it has
    loaded."""
    key = (function.texts(), function.prototype, passed, tuple(signature))
    if key not in _loaded:
        object_file = compile_c(function, passed, signature, _SYMBOL, target)
        data = link.shared({"kernel.o": object_file}, target)
        file = os.memfd_create("spmd-c-kernel", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(file), "wb") as out:
                out.write(data)
            library = ctypes.CDLL(f"/proc/self/fd/{file}")
        except OSError as error:
            os.close(file)
            raise EnvironmentFault(
                "a C function cannot be loaded for an eager run", found=str(error),
                remedy="reference=, a NumPy function") from None
        call = library[_SYMBOL]
        call.restype = None
        call.argtypes = [_CTYPES[c] for p in signature for c in gufunc.c_types(p)]
        _loaded[key] = call
    return _loaded[key]


_CTYPES = {
    "void *": ctypes.c_void_p, "float": ctypes.c_float, "double": ctypes.c_double,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

"""Machine code that earlier builds left: of whole images, and of kernels.

Goes in: what is to be made, a store of bytes under keys. Comes out: the bytes, from the store or
made now. Always holds: a key names all that the bytes follow from, or there is none.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy

from codegen.image import commands, link
from codegen.image.c_objects import compile_c
from codegen.progress import announce
from codegen.trace.c_kernel import CKernel
from codegen.trace.control import reads
from codegen.trace.kernel_call import Kernel


class BuildStore(Protocol):
    """A store of bytes under keys, which may forget what it was given at any time."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes) -> None: ...


class Nothing:
    """A store that forgets at once."""

    def get(self, key: str) -> bytes | None:
        return None

    def put(self, key: str, data: bytes) -> None:
        pass


def program_key(program: Any, values: Mapping[str, Any], how: Sequence[str]) -> str:
    """Return the key of a program's image; "" where something that a capture reads cannot be seen
    before it. how: it is built: for which target, with which checks."""
    read = reads.digest(program, dict(values))
    return _key("program", read, tuple(how), _compiler(), _numba()) if read else ""


def kernel(store: BuildStore, kernel: Kernel, signature: Any, symbol: str, target: str) -> bytes:
    """Return the object file of a kernel; numba is imported only where it is to be compiled."""
    if isinstance(kernel, CKernel):
        read: Any = (kernel.in_c.prototype, kernel.in_c.texts(), kernel.passed)
        key = _key("kernel in C", read, signature, symbol, target, _compiler())
    else:
        read = reads.digest(kernel.function)
        key = _key("kernel", read, signature, symbol, target, _numba()) if read else ""
    if key and (data := store.get(key)) is not None:
        return data
    announce(f"compiling the kernel {kernel.name}")
    if isinstance(kernel, CKernel):
        data = compile_c(kernel.in_c, kernel.passed, signature, symbol, target)
    else:
        from codegen.image.kernel_objects import compile_kernel  # numba: half a second

        data = compile_kernel(kernel.function, signature, symbol, target)
    if key:
        store.put(key, data)
    return data


def linked(store: BuildStore, source: str, *, target: str, **parts: Any) -> bytes:
    """Return the image that link.link makes of these parts."""
    key = _key("link", source, target, sorted(parts.items()), _compiler())
    data = store.get(key)
    if data is None:
        announce("compiling C")
        data = link.link(source, target=target, **parts)
        store.put(key, data)
    return data


def _key(kind: str, *parts: Any) -> str:
    """Return the key of these parts, for this version of spmd, of Python and of NumPy."""
    whole = (kind, parts, _ourselves(), sys.version, numpy.__version__)
    return hashlib.sha256(repr(whole).encode("utf-8", "surrogatepass")).hexdigest()


def _compiler() -> list[Any]:
    """Return the C compiler, what it calls, and what tells it where to look: another one, another
    key."""
    words = [*link.compiler(), "as", "ld"]
    told = "CPATH C_INCLUDE_PATH LIBRARY_PATH COMPILER_PATH GCC_EXEC_PREFIX".split()
    return [(w, _state(commands.path_of(w))) for w in words] + [os.environ.get(n) for n in told]


def _numba() -> list[Any]:
    """Return the compiler of kernels, and what it is told."""
    told = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_"))
    return [*(_state(s.origin) for n in ("numba", "llvmlite") if (s := find_spec(n))), told]


def _state(path: str | None) -> tuple[Any, ...]:
    """Return a file as far as a look at it tells: another one has another size, time or place."""
    if not path:
        return ()
    real = os.path.realpath(path)
    status = os.stat(real)
    return real, status.st_size, status.st_mtime_ns


@functools.cache
def _ourselves() -> str:
    """Return the compiler's own files, those beside it in which programs find functions, and the
    headers of images: an edited one gives other keys.

    What was edited while this process ran may or may not be what it imported: then no other process
    finds these keys.
    """
    rows: list[tuple[Any, ...]] = []
    here = os.path.dirname(__file__)
    for top in (here, os.path.join(os.path.dirname(here), "spmd"), link.include_dir()):
        for folder, _, names in os.walk(top):
            for name in names:
                if name.endswith((".py", ".h")):
                    path = os.path.join(folder, name)
                    rows.append((os.path.relpath(path, top), *_state(path)[1:]))
    if any(row[-1] > (_started_s() - 1) * 1e9 for row in rows):
        rows.append(("edited", os.urandom(8)))
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def _started_s() -> float:
    """Return when this process started, as a date."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])  # since the machine started
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age

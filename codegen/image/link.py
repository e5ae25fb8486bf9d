"""C source, kernels and constants to an image: by the C compiler of this machine.

Goes in: C text, object files, bytes, dicts. Comes out: the bytes of an ELF shared object.
Always holds: the same input and compiler give the same bytes; no path, date or build id is in them.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codegen.errors import REPORT, EnvironmentFault, InternalError
from codegen.image import commands, elf, elf_dynamic
from codegen.image import manifest as reader

# NumPy's arithmetic: no fast-math, no fused multiply-add, wrapping integers, and complex products
# and quotients by the plain formula and Smith's. No if-conversion: see csrc/spmd_select.h. OpenMP's
# pragmas, not its runtime: reductions that may be taken in any order say so. No predictive
# commoning: with it, gcc 12.2 computes an element of a short row by its neighbours' (with vectors
# of 512 bits; tests/codegen/test_rounding.py has the loops).
FLAGS = (
    "-std=c11 -O3 -fPIC -fvisibility=hidden -fno-semantic-interposition -ffp-contract=off -fwrapv "
    "-fcx-fortran-rules -fno-math-errno -fno-trapping-math -fno-tree-loop-if-convert "
    "-fno-predictive-commoning -fno-ident -fno-asynchronous-unwind-tables -fopenmp-simd"
).split()
# The last two are clang's, for options that only gcc or only linking uses, and for loops that do
# not vectorise.
# Compilers only guess what is not initialised, differently from version to version; and a user may
# compare what is never equal, or never less.
WARNINGS = (
    "-Wall -Wextra -Wshadow -Werror -Wno-maybe-uninitialized -Wno-tautological-compare "
    "-Wno-type-limits -Wno-unused-command-line-argument -Wno-pass-failed"
).split()
LINK = "-shared -nostartfiles -Wl,--build-id=none,-z,defs,-z,now,-z,noexecstack,-Bsymbolic".split()

# What kernels may call: libm, memory moves, and the compiler's own arithmetic.
_MATH = frozenset(
    "acos asin atan atan2 acosh asinh atanh cos sin tan cosh sinh tanh exp exp2 expm1 log log2 "
    "log10 log1p logb ilogb scalbn scalbln pow sqrt cbrt hypot erf erfc lgamma tgamma floor ceil "
    "trunc rint nearbyint lrint llrint round lround llround fabs fmod remainder remquo copysign "
    "nan nextafter nexttoward fdim ldexp frexp modf fmin fmax fma sincos j0 j1 jn y0 y1 yn "
    "cacos casin catan cacosh casinh catanh ccos csin ctan ccosh csinh ctanh cexp clog cpow csqrt "
    "cabs carg cimag creal conj cproj memcpy memset memmove memcmp __memcpy_chk __memset_chk "
    "__memmove_chk __stack_chk_fail __stack_chk_guard __powidf2 __powisf2 __divti3 __modti3 "
    "__udivti3 __umodti3 __multi3 __popcountdi2 __muldc3 __divdc3 __mulsc3 __divsc3".split()
)

_ASSEMBLY = """
    .section .spmd.index, "a", @progbits
    .balign 8
    .globl spmd_index
spmd_index:
    .incbin "index"
    .section .spmd.digest, "a", @progbits
    .balign 8
    .globl spmd_digest
spmd_digest:
    .zero {room}
    .section .spmd.manifest, "", @progbits
    .incbin "manifest"
    .section .spmd.notes, "", @progbits
    .incbin "notes"
    {constants}
    .section .note.GNU-stack, "", @progbits
"""
# What is loaded of it is not in a segment: launches map it, once for all jobs of a process.
_CONSTANTS = """.section .spmd.constants, "", @progbits
    .balign 64
    .incbin "constants\""""

_MEMORY = "more memory: its limit may be that of a job or of a container"
# What compilers say when they are incomplete or older than the target: no defect of ours.
_LACKS = (
    ("-march", "does not know this target", "a newer compiler, or --target x86-64"),
    ("unknown target CPU", "does not know this target", "a newer compiler, or --target x86-64"),
    (".h: No such file", "has no C library headers", "apt install libc6-dev"),
    (".h' file not found", "has no C library headers", "apt install libc6-dev"),
    ("cannot find -l", "has no C library to link with", "apt install libc6-dev"),
    ("No space left", "has no room to write", "set TMPDIR to a directory with room"),
    ("signal terminated program", "was killed", _MEMORY),
    ("out of memory", "has no memory left", _MEMORY),
    ("memory exhausted", "has no memory left", _MEMORY),
    ("annot allocate memory", "has no memory left", _MEMORY),
    ("internal compiler error", "has a defect of its own", "another compiler: CC=clang"),
)
_TRIAL = b"""#include "spmd_image.h"
#include <math.h>
double spmd_trial(double x);
double spmd_trial(double x) { return sqrt(x); }
"""


def include_dir() -> str:
    """Return the folder of the headers that images include: in the package, or beside it in a
    source tree."""
    here = Path(__file__).resolve().parent.parent  # the package codegen
    for place in (here / "include", here.parent / "csrc"):
        if (place / "spmd_image.h").is_file():
            return str(place)
    raise EnvironmentFault("the headers of spmd are missing", expected=str(here / "include"),
                           found="no spmd_image.h", remedy="install spmd again")


def compiler() -> list[str]:
    """Return the command of the C compiler: CC, or cc, gcc, clang; raise EnvironmentFault where
    there is none."""
    named = os.environ.get("CC", "").split()
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if commands.path_of(command[0]):
            return command
    raise EnvironmentFault(
        f"{named[0] if named else 'cc'} not found; install gcc or set CC",
        expected="a C compiler", found="none on PATH", remedy="apt install gcc, or CC=/path/to/cc",
    )


def is_math(name: str) -> bool:
    """Return whether a symbol is one of those that kernels may call."""
    return name in _MATH or (name.endswith("f") and name[:-1] in _MATH)


def link(
    source: str, *, objects: Sequence[bytes], constants: bytes, manifest: dict[str, Any],
    notes: dict[str, Any], index_words: int, target: str,
) -> bytes:
    """Link an image and return its bytes. index_words: how many run-time scalars stand behind the
    index. target: -march."""
    empty = reader.index_words(0, 0, 0, [1] * reader.AXES, [0] * index_words)
    files: dict[str, bytes] = {
        "image.c": source.encode(),
        "index": empty,
        "manifest": json.dumps(manifest, separators=(",", ":"), ensure_ascii=True).encode(),
        "notes": zlib.compress(json.dumps(notes).encode(), 6),
        "constants": constants,
        "tables.s": _ASSEMBLY.format(
            room=reader.DIGEST_ROOM, constants=_CONSTANTS if constants else "").encode(),
    }
    for k, content in enumerate(objects):
        files[f"kernel_{k}.o"] = content
    inputs = ["image.c", "tables.s", *[f"kernel_{k}.o" for k in range(len(objects))]]
    data = bytearray(_linked(files, inputs, target))
    _, sections = elf.read_sections(bytes(data))
    offset, size = sections[".spmd.digest"]
    data[offset : offset + size] = reader.make_digest(bytes(data), sections)
    elf_dynamic.check_dynamic(bytes(data))
    return bytes(data)


def shared(files: dict[str, bytes], target: str) -> bytes:
    """Return the shared object that these object files are linked into."""
    return _linked(files, list(files), target)


def _linked(files: dict[str, bytes], inputs: list[str], target: str) -> bytes:
    """Return the shared object that the compiler makes of these files. Raises EnvironmentFault."""
    command = [*compiler(), *FLAGS, *WARNINGS, f"-march={target}", "-I", include_dir(), *LINK,
               "-o", "image.so", *inputs, "-lm"]
    data, done = in_folder(files, [command], "image.so")
    if done.code:
        raise _refused(command[0], done, files, target)
    return data


def in_folder(
    files: dict[str, bytes], programs: Sequence[Sequence[str]], makes: str
) -> tuple[bytes, commands.Ended]:
    """Write files into a folder of their own, and run programs there up to the first that fails;
    return the file that they make, and how the last one ended. Raises EnvironmentFault."""
    with commands.unwound(), _folder() as folder:
        try:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
        except OSError as error:
            raise EnvironmentFault(f"cannot write to {folder}: {error.strerror}",
                                   remedy="set TMPDIR to a directory with room") from None
        # Their own files are in ours, so that they go with ours whatever ends them.
        environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0", "TMPDIR": folder}
        for command in programs:
            try:
                done = commands.run(command, folder=folder, environment=environment)
            except OSError as error:
                raise _not_started(command[0], error) from None
            if done.code:
                return b"", done
        if not Path(folder, makes).is_file():
            raise EnvironmentFault(f"{programs[0][0]} is not a C compiler",
                                   expected="an output file", found="none",
                                   remedy="install gcc or set CC")
        return Path(folder, makes).read_bytes(), done


def _not_started(name: str, error: OSError) -> EnvironmentFault:
    if name == "objcopy":
        return EnvironmentFault("objcopy not found", remedy="apt install binutils")
    return EnvironmentFault(f"the C compiler {name} cannot be started",
                            found=str(error.strerror), remedy="set CC")


def trial(target: str) -> str:
    """Compile and link a small shared object as images are; return the first line of the
    compiler's --version."""
    _linked({"trial.c": _TRIAL}, ["trial.c"], target)
    lines = commands.run([*compiler(), "--version"], limit_s=60).out.splitlines()
    return lines[0] if lines else compiler()[0]


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder that can be written: in the temporary directory, the shared memory file
    system, or here."""
    for place in (None, "/dev/shm", "."):
        try:
            return tempfile.TemporaryDirectory(
                prefix="spmd-", dir=place and os.path.abspath(place), ignore_cleanup_errors=True
            )
        except OSError:
            continue
    raise EnvironmentFault("no directory can be written", expected="a temporary directory",
                           found="none", remedy="set TMPDIR to a directory of yours")


def _refused(
    name: str, done: commands.Ended, files: dict[str, bytes], target: str
) -> EnvironmentFault | InternalError:
    """Return the error for a compiler that failed: something is missing, or our input is wrong."""
    lines = [ln for ln in done.err.splitlines() if "error" in ln] or done.err.splitlines()
    message = "; ".join(lines[:3])[:500] or f"exit code {done.code}, and not a word"
    for sign, lacks, remedy in _LACKS:
        if sign in done.err:
            return EnvironmentFault(f"the C compiler {name} {lacks}", found=message[:300],
                                    remedy=remedy)
    if done.code < 0:
        return EnvironmentFault(f"the C compiler {name} was killed",
                                found=f"signal {-done.code}", remedy=_MEMORY)
    if files.get("trial.c") != _TRIAL:
        try:
            _linked({"trial.c": _TRIAL}, ["trial.c"], target)
        except EnvironmentFault as error:
            return error
        return InternalError(
            "the C compiler refused what spmd generated",
            expected="code that compiles without a warning", found=message,
            remedy=REPORT,
        )
    return EnvironmentFault(
        f"{name} does not compile C as images need it", found=message,
        expected="C11 with the options of gcc or clang", remedy="CC=gcc, or CC=clang",
    )


def disassemble(data: bytes) -> str:
    """Return the machine code as text. Raises EnvironmentFault where objdump is missing."""
    if not commands.path_of("objdump"):
        raise EnvironmentFault("objdump not found", remedy="apt install binutils")
    with _folder() as folder:
        Path(folder, "image.so").write_bytes(data)
        command = ["objdump", "-d", "--no-show-raw-insn", "-M", "intel", "image.so"]
        done = commands.run(command, folder=folder)
    if done.code:
        raise EnvironmentFault("objdump cannot read this image", found=done.err.strip()[:300],
                               remedy="apt install binutils")
    return done.out

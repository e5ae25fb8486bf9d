"""What a user is told at the end: what went wrong, and by which exit code; what was checked.

In: an exception, or a manifest. Out: text, on standard error.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from codegen.errors import InternalError, SpmdError
from spmd.files.npy import SIZES, element_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def output_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return SIZES[dtype] * element_count(shape)


def tree_text(root: str, arrays: list[tuple[str, tuple[int, ...]]], files: str = "") -> str:
    """Return one line for all arrays (dtype, shape) of a tree."""
    count = sum(element_count(shape) for _, shape in arrays)
    kinds = ", ".join(dict.fromkeys(dtype for dtype, _ in arrays))
    text = f"{root}: {len(arrays)} arrays, {count} elements of {kinds}"
    return f"{text} in {files}" if files else f"{text}; use -o {root}=FILE.safetensors"


def state_text(count: int, path: str) -> str:
    """Return the line for a state of so many arrays that was written to a file."""
    return f"state: {count} array{'s' * (count != 1)} in {path}"


def debugging() -> bool:
    return os.environ.get("SPMD_DEBUG", "") not in ("", "0")


def exit_code(error: BaseException) -> int:
    """Return the exit code that an exception stands for."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = getattr(error, "exit_code", None)
    if isinstance(code, int) and code != InternalError.exit_code:
        return code
    if is_shortage(error) or _hidden(error):
        return 69
    return 74 if isinstance(error, OSError) else 70


def _hidden(error: BaseException) -> SpmdError | None:
    """Return the error to show about a module that a file of the user hides, instead of an error of
    nobody."""
    if isinstance(error, SpmdError) and not isinstance(error, InternalError):
        return None
    told: SpmdError | None = import_module("spmd.shadowed_modules").shadowing_error(error)
    return told


def is_shortage(error: BaseException) -> bool:
    """Return whether this machine, or a limit of this process, has too little memory for
    something."""
    signs = ("failed to map segment", "annot allocate memory", "can't start new thread")
    is_one = isinstance(error, (ImportError, OSError, RuntimeError))
    return isinstance(error, MemoryError) or (is_one and any(s in str(error) for s in signs))


def print_error(error: BaseException) -> None:
    """Print one message on standard error; a traceback only when it was asked for."""
    if debugging():
        sys.__excepthook__(type(error), error, error.__traceback__)
    print(error_text(error), file=sys.stderr, flush=True)


def error_text(error: BaseException) -> str:
    error = _hidden(error) or error
    if isinstance(error, InternalError):
        return f"spmd: {error}\n  this is a defect of spmd; SPMD_DEBUG=1 shows where"
    if isinstance(error, SpmdError):
        return f"spmd: {error}"
    if is_shortage(error) and not isinstance(error, MemoryError):
        return (
            f"spmd: out of memory, or of address space: {str(error).strip().splitlines()[-1]}\n"
            "  try:      ulimit -v unlimited; fewer threads (--threads), fewer ranks"
        )
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"spmd: {name}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "spmd: out of memory"
    return (
        f"spmd: {type(error).__name__}: {error}\n"
        "  this is a defect of spmd; SPMD_DEBUG=1 shows where"
    )


def checks_text(manifest: dict[str, Any]) -> str:
    """Return what an image checks, and at how many places."""
    places = [row.get("check") for row in manifest["operations"] if row["kind"] == "expect"]
    return ", ".join(f"{places.count(name)} of {name}" for name in manifest["checks"])

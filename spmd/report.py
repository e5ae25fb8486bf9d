"""What a user is told at the end: outputs that no file takes, and errors.

In: outputs as buffers, or an exception. Out: text. NumPy is imported only where there is an array
to print, in the one process that prints it.
"""

from __future__ import annotations

import os
import sys

from codegen.errors import InternalError, SpmdError
from spmd.files.npy import SIZES, element_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np

SMALL = 100  # elements that are printed in full
CHUNK = 1 << 20  # elements that are summarised at a time: no second copy of a large array


def as_array(buffer: Any, start: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A NumPy view of an output that lies in a buffer."""
    import numpy as np

    return np.ndarray(shape, numpy_dtype(dtype), buffer, start)


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of one of our element types."""
    import numpy as np

    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def output_text(name: str, dtype: str, array: np.ndarray) -> str:
    """One output: as NumPy prints it, or its shape, dtype, min, max and mean."""
    import numpy as np

    head = f"{name}: {dtype} {array.shape}"
    if array.ndim == 0:
        return f"{name}: {dtype} {array[()]!s}"
    if array.size == 0:
        return f"{head} []"
    if array.size <= SMALL:
        text = np.array2string(array)
        return f"{head} {text}" if "\n" not in text else f"{head}\n{text}"
    low, high, mean = summary(array)
    if dtype.startswith("complex"):
        return f"{head} mean {mean:.6g}"
    return f"{head} min {low!s} max {high!s} mean {mean:.6g}"


def summary(array: np.ndarray) -> tuple[Any, Any, Any]:
    """min, max and mean, in pieces; min and max are None for complex numbers."""
    import numpy as np

    flat = array.reshape(-1)
    ordered = array.dtype.kind != "c"
    wide = np.float64 if ordered else np.complex128
    low, high, total = None, None, wide(0)
    with np.errstate(all="ignore"):
        for at in range(0, flat.size, CHUNK):
            piece = flat[at : at + CHUNK]
            total += piece.astype(wide).sum()
            if ordered:
                low = piece.min() if low is None else np.minimum(low, piece.min())
                high = piece.max() if high is None else np.maximum(high, piece.max())
        return low, high, total / flat.size


def output_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return SIZES[dtype] * element_count(shape)


def debugging() -> bool:
    return os.environ.get("SPMD_DEBUG", "") not in ("", "0")


def exit_code(error: BaseException) -> int:
    """The exit code that an exception stands for."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    if is_shortage(error):
        return 69
    return 74 if isinstance(error, OSError) else 70


def is_shortage(error: BaseException) -> bool:
    """Whether this machine, or a limit of this process, has too little memory for something."""
    signs = ("failed to map segment", "annot allocate memory", "can't start new thread")
    is_one = isinstance(error, (ImportError, OSError, RuntimeError))
    return isinstance(error, MemoryError) or (is_one and any(s in str(error) for s in signs))


def print_error(error: BaseException) -> None:
    """One message on standard error; a traceback only when it was asked for."""
    if debugging():
        import traceback

        traceback.print_exception(error)
    print(error_text(error), file=sys.stderr, flush=True)


def error_text(error: BaseException) -> str:
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
    """What an image checks, and at how many places."""
    places = [row.get("check") for row in manifest["operations"] if row["kind"] == "expect"]
    return ", ".join(f"{places.count(name)} of {name}" for name in manifest["checks"])

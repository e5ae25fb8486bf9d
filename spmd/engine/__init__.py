"""The engine (csrc/) for Python: `ffi` and `lib`, as csrc/engine.h declares them.

Always holds: importing this imports nothing but the extension (every rank does it at start); every
status is checked by the caller, in one place (spmd/job.py). Calls release the interpreter.
"""

from ._engine import ffi, lib

__all__ = ["ffi", "lib"]

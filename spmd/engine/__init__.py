"""The engine (csrc/) for Python: `ffi` and `lib`, as csrc/engine.h declares them.

Always holds: importing this imports nothing but the extension (every rank does it at start); every
status is checked by the caller, in one place (spmd/launch/job.py). Calls release the interpreter.
"""

try:
    from ._engine import ffi, lib
except ModuleNotFoundError as error:
    if error.name != f"{__name__}._engine":
        raise
    from spmd.engine.missing import not_built

    raise not_built(__path__[0]) from None

__all__ = ["ffi", "lib"]

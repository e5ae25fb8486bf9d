"""spmd.build: the image of a program, from Python.

In: a program, or the path of its file, and its parameters. Out: an Image.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

from codegen.checks.names import POINTS, checks_of
from codegen.errors import LayoutWarning, UsageError
from codegen.suggest import meant
from spmd import source
from spmd.cache import Cache
from spmd.image import Image
from spmd.launch import loader
from spmd.tracebacks import cells, plainly

OWN = ("target", "cache", "check", "checkpoint")  # parameters of build itself


@plainly
def build(
    program: Any, *, target: str = "native", cache: bool = True, check: Any = False,
    checkpoint: bool = False, **parameters: Any,
) -> Image:
    """Build the image of a program, or of the one in "FILE.py[:NAME]", with these parameters.

    - target: the instruction set: "native" for this machine, or "x86-64-v2", "-v3", "-v4".
    - cache: take an image that was built before from the user's cache directory, as long as nothing
      that the program reads has changed. False builds it in any case, as SPMD_CACHE=off does.
    - check: what the image checks whenever it runs: True, "all", or names such as "bounds,nan"
      (see `run --check`). What is found wrong ends the run in a CheckError, with the line.

    - checkpoint: the image can be kept while it runs (`run --checkpoint`). One built without is
      built again where that is asked for.

    Raises ProgramError and its kin, with the line, for what cannot be compiled; EnvironmentFault
    without a C compiler. Warns of layouts (LayoutWarning) with which every rank gets a large array
    whole.
    """
    if isinstance(program, str | os.PathLike):
        program = source.find_program(os.fspath(program))
    if not hasattr(program, "parameters"):
        raise UsageError(
            "spmd.build takes a program or the path of a Python file",
            found=type(program).__name__,
            remedy="decorate the function with @spmd.program(mesh=...)",
        )
    for name in parameters:
        if name not in program.parameters:
            raise UsageError(
                f"the program has no parameter {name!r}",
                expected=", ".join(program.parameters) or "no parameters",
                remedy=meant(name, [*program.parameters, *OWN], "{}=…"),
            )
    checks = (*checks_of(check), *((POINTS,) if checkpoint else ()))
    store = None if cache else Cache("")
    data = source.build_program(program, parameters, target, store, checks)
    for text in source.warnings_of(data, loops=False):
        warnings.warn(cells(text), LayoutWarning, stacklevel=3)
    again = functools.partial(build, program, target=target, cache=cache, **parameters)
    return Image(loader.check(data), again)

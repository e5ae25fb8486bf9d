"""Why there is no engine where Python looks for it: imported only then.

In: the folder of this package. Out: the error that says what was found, and what to do.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

from codegen.errors import EnvironmentFault


def not_built(folder: str) -> EnvironmentFault:
    """Return the error for an engine that is not there: a source tree hides an installed package,
    it is not built, or it was built for another Python."""
    package = os.path.dirname(folder)
    top = os.path.dirname(package)
    elsewhere = [
        os.path.join(place or ".", "spmd") for place in sys.path
        if _engines(place) and not os.path.samefile(os.path.join(place or ".", "spmd"), package)
    ]
    expected = f"the compiled module {os.path.join(folder, '_engine' + EXTENSION_SUFFIXES[0])}"
    if elsewhere:
        return EnvironmentFault(
            f"Python takes spmd from the source folder {top}, where it is not built",
            expected=f"the installed one, {elsewhere[0]}, which comes later on sys.path",
            remedy="start Python in another folder, or with -P (PYTHONSAFEPATH=1), or by the "
            "command spmd; to work on the sources: pip install -e .",
        )
    if others := _engines(top):
        return EnvironmentFault(
            "the engine of spmd was built for another Python", expected=expected,
            found=", ".join(others), remedy="install spmd again with this Python: pip install .",
        )
    return EnvironmentFault("the engine of spmd is not built", expected=expected, found="none",
                            remedy=f"make setup, or pip install -e {top}")


def _engines(place: str) -> list[str]:
    """Return the file names of compiled engines of the package spmd in a folder of sys.path."""
    try:
        names = os.listdir(os.path.join(place or ".", "spmd", "engine"))
    except OSError:
        return []
    return [n for n in names if n.startswith("_engine.") and n.endswith((".so", ".pyd"))]

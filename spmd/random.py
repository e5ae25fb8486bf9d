"""Random numbers that follow from a seed: the same for any number of ranks and any layout."""

from __future__ import annotations

import sys
from typing import Any

from codegen.trace.numpy import random
from codegen.trace.numpy.refused import RANDOM

_NAMES = "bits categorical normal permutation randint uniform".split()


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        instead = RANDOM.get(name, f"it has {', '.join(_NAMES)}")
        module = sys.modules[__name__]
        raise AttributeError(f"spmd.random has no {name!r}: {instead}", name=None, obj=module)
    return getattr(random, name)


def __dir__() -> list[str]:
    return _NAMES

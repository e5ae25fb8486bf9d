"""Random numbers that follow from a seed: the same for any number of ranks and any layout."""

from __future__ import annotations

from typing import Any

_NAMES = "bits normal permutation randint uniform".split()


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"spmd.random has no {name!r}")
    from codegen.trace import random

    return getattr(random, name)


def __dir__() -> list[str]:
    return _NAMES

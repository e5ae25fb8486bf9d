"""The image that `show` and `verify` look at: a file, or what a program gives when it is built.

In: a path, settings. Out: bytes of an image, unchecked. The compiler comes in for programs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmd.launch import loader


def builder() -> Any:
    """Return the module that builds programs, spmd.source."""
    from spmd import source  # the compiler: who has an image does without

    return source


def image_or_built(
    path: str, settings: dict[str, str], no_cache: bool, without: Sequence[str] = ()
) -> tuple[bytes, set[str]]:
    """Return the bytes of an image, or of the one that FILE.py[:NAME] gives with these settings,
    and which of the settings are parameters of that program. Raises what reading or building does.
    """
    if not loader.is_program(path):
        return loader.read(path), set()
    built: tuple[bytes, set[str]] = builder().image_of(path, settings, no_cache, without)
    return built

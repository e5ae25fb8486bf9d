"""Examples as they are kept: nothing that is written to later, and a check sum of what they hold.

In: what a source gives. Out: a copy of its arrays, the rest as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spmd.data.source_tools import Digest, Record

PLAIN = str | bytes | bool | int | float | complex | np.generic | None
MOST = 1 << 16  # bytes of one array that are looked at


def copied(example: Any) -> Any:
    """Return an example with arrays of its own, also in lists, tuples and dicts: a source may write
    the next example to the memory of this one."""
    if isinstance(example, np.ndarray):
        return example.copy()
    if type(example) in (list, tuple):
        return type(example)(map(copied, example))
    if type(example) is dict:
        return {name: copied(value) for name, value in example.items()}
    if isinstance(example, bytearray | memoryview):
        return type(example)(bytes(example))
    return example


def add_example(digest: Digest, example: Any) -> None:
    """Add the content of an example to a digest, as far as two processes see it alike: of other
    objects only their class."""
    digest.add(type(example).__name__)
    if isinstance(example, np.ndarray):
        plain = "" if example.dtype.hasobject else example.reshape(-1)[
            : MOST // max(example.itemsize, 1)].tobytes()
        digest.add(example.dtype, example.shape, plain)
    elif isinstance(example, PLAIN):
        digest.add(example)
    elif isinstance(example, list | tuple):
        digest.add(len(example))
        for element in example:
            add_example(digest, element)
    elif isinstance(example, Mapping | Record):
        for name in example.keys():
            digest.add(name)
            add_example(digest, example[name])

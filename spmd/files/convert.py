"""Inputs whose elements are of another dtype than the program's: converted where nothing is lost.

In: an array of a file, a dtype. Out: the same array as elements in memory.
"""

from __future__ import annotations

import mmap

import numpy as np

from codegen import dtypes
from codegen.user.casts import inexact
from spmd.arrays import numpy_dtype
from spmd.files import npy
from spmd.files.npy import AT_ONCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.files.inputs import InputFile


def converted(file: InputFile, given: npy.Elements, dtype: str) -> npy.Elements | None:
    """Return the same array with elements of another dtype: in memory, in the order of the file.
    None where something would be lost by that."""
    if not np.can_cast(numpy_dtype(given.dtype), numpy_dtype(dtype)):
        return None
    made = npy.Elements(0, dtype, given.shape)
    made.strides = tuple(s // npy.SIZES[given.dtype] * npy.SIZES[dtype] for s in given.strides)
    made.inflate = lambda *span: _convert(file, given, made, *span)
    return made


def _convert(
    file: InputFile, given: npy.Elements, made: npy.Elements, low: int, high: int, processes: int,
    available: int,
) -> mmap.mmap:
    """Read what bytes low to high of the converted array are made of, and convert it into
    memory."""
    old, new = numpy_dtype(given.dtype), numpy_dtype(made.dtype)
    old = old.newbyteorder() if given.swapped else old
    first, last = low // new.itemsize, -(-high // new.itemsize)
    begin, end = given.start + first * old.itemsize, given.start + last * old.itemsize
    remedy = f"save it as {made.dtype}: then each process reads its part"
    memory = file.memory(f"as {made.dtype}", made.end, high - low, processes, available, remedy)
    whole = given.inflate(begin, end, processes, available) if given.inflate else None
    for at in range(begin, end, AT_ONCE):
        count = min(AT_ONCE, end - at)
        raw = whole[at : at + count] if whole else file.read_all(at, count)
        numbers = np.frombuffer(raw, old)
        if (lost := inexact(numbers.astype(old.newbyteorder("=")), new)) is not None:
            raise file.wrong(f"has an integer that {new} does not hold",
                             f"integers up to 2**53, or others that {new} holds", str(lost))
        bits = numbers.astype(new).tobytes()
        to = (at - given.start) // old.itemsize * new.itemsize
        memory[to : to + len(bits)] = bits
    if whole is not None:
        whole.close()
    return memory


def casts(old: str, new: str) -> bool:
    """Return whether every element of one dtype is one of another, with nothing lost. old: may be
    the name of a dtype that programs do not have, as that of objects."""
    return old in dtypes.BY_NAME and bool(np.can_cast(numpy_dtype(old), numpy_dtype(new)))


def cast_rows(columns: list[np.ndarray], dtype: str) -> bytes:
    """Return columns of equal length as the bytes of their rows, in one dtype."""
    return np.stack([c.astype(numpy_dtype(dtype)) for c in columns], axis=1).tobytes()

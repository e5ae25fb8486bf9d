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


def converted(file: InputFile, elements: npy.Elements, dtype: str) -> npy.Elements | None:
    """Return the same array with elements of another dtype: in memory, in the order of the file.
    None where something would be lost by that."""
    if not np.can_cast(numpy_dtype(elements.dtype), numpy_dtype(dtype)):
        return None
    result = npy.Elements(0, dtype, elements.shape)
    old, new = npy.SIZES[elements.dtype], npy.SIZES[dtype]
    result.strides = tuple(stride // old * new for stride in elements.strides)
    result.inflate = lambda *span: _convert(file, elements, result, *span)
    return result


def _convert(
    file: InputFile, source: npy.Elements, target: npy.Elements, low: int, high: int,
    processes: int, available: int,
) -> mmap.mmap:
    """Read what bytes low to high of the converted array are made of, and convert it into
    memory."""
    old, new = numpy_dtype(source.dtype), numpy_dtype(target.dtype)
    old = old.newbyteorder() if source.swapped else old
    first, last = low // new.itemsize, -(-high // new.itemsize)
    begin, end = source.start + first * old.itemsize, source.start + last * old.itemsize
    remedy = f"save it as {target.dtype}: then each process reads its part"
    memory = file.memory(f"as {target.dtype}", target.end, high - low, processes, available, remedy)
    whole = source.inflate(begin, end, processes, available) if source.inflate else None
    for offset in range(begin, end, AT_ONCE):
        count = min(AT_ONCE, end - offset)
        raw = whole[offset : offset + count] if whole else file.read_all(offset, count)
        numbers = np.frombuffer(raw, old)
        if (lost := inexact(numbers.astype(old.newbyteorder("=")), new)) is not None:
            raise file.wrong(f"has an integer that {new} does not hold",
                             f"integers up to 2**53, or others that {new} holds", str(lost))
        bits = numbers.astype(new).tobytes()
        to = (offset - source.start) // old.itemsize * new.itemsize
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

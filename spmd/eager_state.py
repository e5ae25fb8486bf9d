"""Files of the state of a class that runs as plain Python: the same as those of an open image.

In: a path, arrays by name. Out: the file, whole or not there; or the arrays of one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from spmd.arrays import numpy_dtype
from spmd.files.outputs import open_outputs
from spmd.files.state_files import open_state
from spmd.launch.saved_state import check_ending


def write(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a state to a file. Raises UsageError for another ending, OutputError where it cannot be
    written."""
    check_ending(path)
    rows = [(name, str(x.dtype), x.shape) for name, x in arrays.items()]
    file = open_outputs({}, [path], rows)[0]
    assert file is not None
    try:
        file.check()
        with file.attach(file.create()) as view:
            for name, x in arrays.items():
                start, data = file.starts[name], x.tobytes()
                view[start : start + len(data)] = data
        file.commit()
    finally:
        file.discard()


def read(
    path: str, wanted: Mapping[str, tuple[str, tuple[int, ...]]], program: str
) -> dict[str, np.ndarray]:
    """Return the arrays of a file, of these dtypes and shapes. Raises InputError for those of
    another program, OutputError for a file that is not there."""
    check_ending(path)
    opened = open_state(path, wanted, program)
    try:
        arrays = {}
        for name, x in opened.items():
            dtype = numpy_dtype(x.dtype).newbyteorder(">" if x.swapped else "=")
            arrays[name] = np.array(np.ndarray(x.shape, dtype, x.buffer, x.start, x.strides),
                                    numpy_dtype(x.dtype))
        return arrays
    finally:
        for x in opened.values():
            x.close()

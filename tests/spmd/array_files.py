"""What the tests of files share: an input as NumPy sees it, a file of outputs made at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codegen.errors import InputError
from spmd.arrays import numpy_dtype
from spmd.files import inputs as files
from spmd.files import outputs


def elements(file: files.InputArray) -> np.ndarray:
    dtype = numpy_dtype(file.dtype).newbyteorder(">" if file.swapped else "<")
    return np.ndarray(file.shape, dtype, file.buffer, file.start, file.strides)


def open_input(path: Path | str, name: str = "u") -> files.InputArray:
    return files.open_inputs({name: str(path)}, [])[name]


def open_array(path: Path | str, name: str = "u") -> np.ndarray:
    return elements(open_input(path, name))


def write(path: Path, arrays: dict[str, np.ndarray]) -> outputs.OutputFile:
    """Every array as an output into this one file, which is committed."""
    rows = [(name, str(array.dtype), array.shape) for name, array in arrays.items()]
    file = outputs.open_outputs({}, [str(path)], rows)[0]
    assert file is not None
    file.check()
    with file.attach(file.create()) as view:
        for name, array in arrays.items():
            data, start = array.tobytes(), file.starts[name]
            view[start : start + len(data)] = data
    file.commit()
    return file


def refused(path: Path, data: bytes, member: str = "") -> str:
    """The message for a file of these bytes: an InputError that names input and file."""
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_array(f"{path}:{member}" if member else path)
    assert caught.value.exit_code == 65 and caught.value.expected and caught.value.found
    assert "input u: " in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)

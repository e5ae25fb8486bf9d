"""What may be given for an input: an array of its dtype and shape, or one that loses nothing by it.

In: a row of the manifest, and what a user gives. Out: an array, or the parts of one. Raises
InputError for other shapes, for other dtypes, and for values that would be rounded.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import InputError, UsageError
from codegen.user import named
from codegen.user.casts import inexact
from spmd.arguments import check_array
from spmd.arrays import numpy_dtype
from spmd.distributed import Distributed, Local


def fitting(
    declared: dict[str, Any], shape: tuple[int, ...], value: Any
) -> np.ndarray | Local | Distributed:
    """Return an array of the declared dtype. Only conversions that lose nothing are made."""
    if isinstance(value, Distributed):
        check_array(declared, shape, value)
        if not value.is_held():
            value.copy_out()  # of an earlier call of a job: refused
        return value
    part = value.part if isinstance(value, Local) else dtypes.as_numpy(value)
    wanted = numpy_dtype(declared["dtype"])
    if part.dtype.kind in "US":
        name = declared["name"]
        raise InputError(f"input {name} was given text", expected=f"an array of {wanted}",
                         found=repr(value)[:80], remedy=_loaded_from(name, value))
    # Lists and Python numbers have no dtype of their own: they adapt, as in NumPy.
    casting: Any = "safe" if hasattr(value, "dtype") or isinstance(value, Local) else "same_kind"
    if not np.can_cast(part.dtype, wanted, casting):
        raise InputError(
            f"input {declared['name']} has dtype {part.dtype}, which does not fit {wanted}",
            expected=str(wanted),
            found=str(part.dtype),
            remedy=f"array.astype({declared['dtype']!r})",
        )
    if (lost := inexact(part, wanted)) is not None:
        raise InputError(
            f"input {declared['name']} would be rounded: {wanted} does not hold {lost}",
            expected=f"integers up to 2**53, or others that {wanted} holds", found=str(part.dtype),
            remedy=f"array.astype({declared['dtype']!r}), or a program of int64")
    part = part.astype(wanted, copy=False)
    if isinstance(value, Local):
        return Local(part)
    check_array(declared, shape, part)
    return part


def _loaded_from(name: str, value: Any) -> str:
    """Return how Python reads a file whose path was given as an array; "" for other text."""
    if not isinstance(value, str):
        return ""
    readers = {".safetensors": "safetensors.numpy.load_file({!r})[{!r}]",
               ".npz": "np.load({!r})[{!r}]", ".csv": "np.loadtxt({!r}, delimiter=',')"}
    reader = readers.get(os.path.splitext(value)[1], "np.load({!r})")
    return f"{name}={reader.format(value, name)}: only the command line takes paths of files"


def whole(value: Any) -> Any:
    """Return an argument as it goes to other processes: arrays, in trees of them. Raises UsageError
    for what is only a part of one."""
    if isinstance(value, Local):
        raise UsageError("an input is only the part of process 0", found="spmd.local(…)",
                         expected="whole arrays, where the other processes follow")
    if isinstance(value, Distributed):
        return np.asarray(value)
    inside = named.held(value)
    return value if inside is None else named.rebuilt(value, [whole(x) for _, x in inside])


def copied(value: Any) -> Any:
    """Return a copy of the arrays in an argument, which may be a tree."""
    if isinstance(value, Distributed) or isinstance(value, (bool, int, float, str)):
        return value
    inside = named.held(value)
    if inside is not None:
        return named.rebuilt(value, [copied(item) for _, item in inside])
    if isinstance(value, Local):
        return Local(value.part.copy(), value.offsets)
    return np.array(dtypes.as_numpy(value))


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of what is given for an input."""
    if isinstance(value, Local):
        return value.part.shape
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)

"""Messages of inference: JSON, and the bytes of binary tensors behind it.

In: the body of a request or an answer. Out: what it asks for or says, as arrays; and back. Server
and client share it. Always holds: a body that is no such message raises InputError, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from codegen.errors import InputError
from spmd.serving import tensors

HEADER = "Inference-Header-Content-Length"
KIND = "Spmd-Error"  # the header of an answer that names the class of its error
MICROSECONDS = 1e6
GENERATE_KEYS = ("id", "parameters")  # of a body of `generate`, beside inputs and scalars
MOST_KEPT = 1 << 12  # bytes of a JSON that is kept with what was read from it
_as_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


@dataclass
class InferRequest:
    """A request for inference.

    arrays: its inputs, by name. wanted: by the names of the outputs that it asks for, whether each
    comes as bytes; None where it asks for all, binary: as bytes. timeout: seconds, or None."""

    arrays: dict[str, np.ndarray]
    wanted: dict[str, bool] | None = None
    binary: bool = False
    timeout: float | None = None
    id: str | None = None


class TensorRow(NamedTuple):
    """A tensor as the JSON of a message describes it. `size` counts its bytes behind the JSON; None
    means that its elements are in `data`."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    size: int | None
    data: Any


class _Head(NamedTuple):
    """The JSON of a request for inference, checked: its tensors, and the fields of InferRequest."""

    rows: Sequence[TensorRow]
    wanted: dict[str, bool] | None
    binary: bool
    timeout: float | None
    id: str | None


def read_request(body: bytes, length: str | None) -> InferRequest:
    """Return the request in a body; length: of its JSON, as parted() takes it."""
    text, tail = _divided(body, length)
    head = _kept_head(text) if len(text) <= MOST_KEPT and tail else _head_of(text)
    return InferRequest(_arrays(head.rows, tail), *head[1:])


def read_named(body: bytes, datatypes: Mapping[str, str]) -> InferRequest:
    """Return the request that a body of `generate` is: arrays by name, numbers and lists, beside
    GENERATE_KEYS. datatypes: of the names that are known; others come without elements."""
    head, _ = parted(body, None)
    arrays = {
        name: tensors.from_nested(name, tensors.checked_dtype(name, datatypes[name]), value)
        if name in datatypes else np.empty(0)
        for name, value in head.items() if name not in GENERATE_KEYS}
    return InferRequest(arrays, *_fields({k: head[k] for k in GENERATE_KEYS if k in head}))


def _head_of(text: bytes) -> _Head:
    head = _object(text)
    return _Head(_tensor_rows(_rows(head, "inputs")), *_fields(head))


_kept_head = lru_cache(maxsize=256)(_head_of)  # requests of a client differ in their bytes alone


def _fields(head: dict[str, Any]) -> tuple[dict[str, bool] | None, bool, float | None, str | None]:
    """Return what a request asks for beside its arrays: see InferRequest."""
    parameters = parameters_of(head)
    binary = _is_true(parameters, "binary_data_output", False)
    wanted = None
    if head.get("outputs") is not None:
        wanted = {_name(row): _is_true(parameters_of(row), "binary_data", binary)
                  for row in _rows(head, "outputs")}
    return wanted, binary, seconds_of(parameters), _of_kind(head, "id", str)


def parted(body: bytes, length: str | None) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON object of a body, and the bytes behind it. length: how long the JSON is, as
    the header says it; None: there is nothing behind it."""
    text, tail = _divided(body, length)
    return _object(text), tail


def _divided(body: bytes, length: str | None) -> tuple[bytes, memoryview]:
    """Return the bytes of the JSON in a body, and those behind it."""
    size = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) < 20
                and int(length) <= size):
            raise InputError(f"{HEADER} is {tensors.brief(length)}", found=f"{size} bytes in all",
                             expected="the bytes of the JSON at the beginning of the body")
        size = int(length)
    return body[:size], memoryview(body)[size:]


def _object(text: bytes) -> dict[str, Any]:
    """Return the JSON object that a text is."""
    try:
        head = json.loads(str(text, "utf-8"))  # of a long one, a view of its bytes
    except (ValueError, RecursionError) as error:
        raise InputError("the body is no JSON", expected="a JSON object with inputs",
                         found=str(error)[:200] or "deeply nested lists") from None
    if not isinstance(head, dict):
        raise InputError("the body is no JSON object", expected="a JSON object with inputs",
                         found=tensors.brief(head))
    return head


def arrays_of(rows: Iterable[dict[str, Any]], tail: memoryview) -> dict[str, np.ndarray]:
    """Return the tensors of a message by name. tail: the bytes of those that are binary, in order.
    """
    return _arrays(_tensor_rows(rows), tail)


def _tensor_rows(rows: Iterable[dict[str, Any]]) -> list[TensorRow]:
    """Return what the JSON objects of a message say of its tensors."""
    by_name: dict[str, TensorRow] = {}
    for row in rows:
        name = _name(row)
        if name in by_name:
            raise InputError(f"tensor {name} is there twice", expected="each tensor once")
        dtype = tensors.checked_dtype(name, row.get("datatype"))
        shape = tensors.checked_shape(name, row.get("shape"))
        by_name[name] = TensorRow(name, dtype, shape, parameters_of(row).get("binary_data_size"),
                                  row.get("data"))
    return list(by_name.values())


def _arrays(rows: Sequence[TensorRow], tail: memoryview) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, dtype, shape, size, data in rows:
        if size is None:
            arrays[name] = tensors.from_list(name, dtype, shape, data)
            continue
        if type(size) is not int or not 0 <= size <= len(tail) - offset:
            raise InputError(f"tensor {name} has binary_data_size {tensors.brief(size)}",
                             expected="as many bytes behind the JSON",
                             found=f"{len(tail) - offset} bytes that are left")
        arrays[name] = tensors.from_bytes(name, dtype, shape, tail[offset:offset + size])
        offset += size
    if offset != len(tail):
        raise InputError("the body is longer than its tensors", expected=f"{offset} bytes behind "
                         "the JSON", found=str(len(tail)))
    return arrays


def message(
    head: dict[str, Any], key: str, arrays: Iterable[tuple[str, np.ndarray, bool]]
) -> tuple[bytes, int | None]:
    """Return a body, and the length of its JSON if bytes stand behind it. key: inputs or outputs;
    arrays: name, array and whether it goes as bytes, of each."""
    rows, tail = [], []
    for name, array, binary in arrays:
        datatype = tensors.datatype_of(array)
        if binary:
            tail.append(tensors.as_bytes(array))
            rows.append(_binary_row(name, datatype, array.shape, array.nbytes))
        else:
            rows.append(_as_json({"name": name, "datatype": datatype, "shape": list(array.shape),
                                  "data": tensors.as_list(name, array)}))
    # Most of it is short texts, of which the encoder takes each quicker than an object of them.
    begin = "".join(f"{_as_json(name)}:{_as_json(value)}," for name, value in head.items())
    text = f"{{{begin}{_as_json(key)}:[{','.join(rows)}]}}".encode()
    return b"".join((text, *tail)), len(text) if tail else None


@lru_cache(maxsize=256)
def _binary_row(name: str, datatype: str | None, shape: tuple[int, ...], size: int) -> str:
    """Return what the JSON of a message says of a tensor whose elements go as bytes behind it."""
    return _as_json({"name": name, "datatype": datatype, "shape": list(shape),
                     "parameters": {"binary_data_size": size}})


def _rows(head: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = head.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"the request has no proper {key}", expected="a list of JSON objects",
                         found=tensors.brief(rows))
    return rows


def _name(row: dict[str, Any]) -> str:
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise InputError("a tensor has no name", expected='"name": "x"', found=tensors.brief(name))
    return name


def _of_kind(row: dict[str, Any], key: str, kind: type) -> Any:
    value = row.get(key)
    if value is not None and not isinstance(value, kind):
        raise InputError(f"{key} is {tensors.brief(value)}",
                         expected="text" if kind is str else "a JSON object",
                         found=type(value).__name__)
    return value


def _is_true(parameters: dict[str, Any], key: str, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"parameters.{key} is {tensors.brief(value)}", expected="true or false")
    return value


def parameters_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request, or of a tensor."""
    return _of_kind(row, "parameters", dict) or {}


def seconds_of(parameters: dict[str, Any]) -> float | None:
    """Return the timeout of a request, which its parameters have in microseconds."""
    microseconds = parameters.get("timeout")
    if microseconds is None:
        return None
    if type(microseconds) is not int or not 0 < microseconds < 1 << 63:
        raise InputError(f"parameters.timeout is {tensors.brief(microseconds)}",
                         expected="an integer of microseconds, 1 or more")
    return microseconds / MICROSECONDS

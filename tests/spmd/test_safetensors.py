"""The .safetensors reader and writer: files made by hand, and the package's own where it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.errors import SpmdError, UsageError
from spmd.arrays import numpy_dtype
from spmd.files import npy, safetensors
from tests.spmd.array_files import elements, open_array, open_input, refused, write


def made(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def row(dtype: str, shape: list[object], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def some(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(npy.element_count(shape)).reshape(shape).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("code", safetensors.DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)])
def test_reads_every_type_wherever_it_lies(
    tmp_path: Path, code: str, shape: tuple[int, ...]
) -> None:
    wanted = some(safetensors.DTYPES[code], shape)
    size = wanted.nbytes
    header = {"__metadata__": {"by": "hand"}, "first": row("U8", [3], 0, 3),
              "u": row(code, list(shape), 3, 3 + size)}
    (tmp_path / "a.safetensors").write_bytes(made(header, b"abc" + wanted.tobytes()))
    found = open_array(tmp_path / "a.safetensors")
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
    assert open_array(f"{tmp_path}/a.safetensors:first").tobytes() == b"abc"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    arrays = {f"a.{d}": some(d, (3, k)) for k, d in enumerate(safetensors.CODES)}
    file = write(tmp_path / "b.safetensors", {"größe": some("bool", (1,)), **arrays})
    assert os.listdir(tmp_path) == ["b.safetensors"]
    assert min(file.starts.values()) % 64 == 0
    for name, wanted in arrays.items():
        assert file.starts[name] % wanted.itemsize == 0
        found = open_array(tmp_path / "b.safetensors", name)
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_the_package_reads_what_is_written(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    arrays = {d: some(d, (k, 2)) for k, d in enumerate(safetensors.CODES)} | {"größe": np.ones(())}
    write(tmp_path / "b.safetensors", arrays)
    found = package.load_file(tmp_path / "b.safetensors")
    assert found.keys() == arrays.keys()
    for name, wanted in arrays.items():
        assert found[name].dtype == wanted.dtype and np.array_equal(found[name], wanted), name
    with pytest.importorskip("safetensors").safe_open(tmp_path / "b.safetensors", "numpy") as file:
        assert np.array_equal(file.get_slice("float64")[1:4], arrays["float64"][1:4])


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    arrays = {d: some(d, (2, k)) for k, d in enumerate(safetensors.CODES)}
    package.save_file(arrays, tmp_path / "a.safetensors", metadata={"epoch": "3"})
    for name, wanted in arrays.items():
        found = open_array(tmp_path / "a.safetensors", name)
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_what_the_format_cannot_hold() -> None:
    for name, dtype in (("u", "complex128"), ("__metadata__", "int8")):
        with pytest.raises(UsageError, match=f"cannot hold {name}") as caught:
            safetensors.frame([(name, dtype, (3,))])
        assert caught.value.remedy == "a .npz file"


def test_damaged_files_are_named_with_expected_and_found(tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"

    def refuse(header: object, data: bytes = bytes(8), member: str = "u") -> str:
        return refused(path, made(header, data), member)

    one = row("F32", [2], 0, 8)
    assert np.array_equal(open_made(path, made({"u": one}, bytes(8))), np.zeros(2, np.float32))
    assert "found:    0 bytes" in refused(path, b"")
    assert "header of up to 100000000" in refused(path, b"hello, I am text")
    assert "expected: 1008 bytes" in refused(path, (1000).to_bytes(8, "little") + b"{}")
    assert "truncated" in refuse({"u": one}, bytes(7))
    assert "found:    78 bytes" in refuse({"u": one}, bytes(9))
    assert "16 bytes for 'u', F32 [4]" in refuse({"u": row("F32", [4], 0, 8)})
    assert "1152921504606846976 bytes" in refuse({"u": row("F32", [1 << 58], 0, 8)})
    assert "overlaps 'v'" in refuse({"u": one, "v": row("F32", [1], 4, 8)})
    assert "a gap before 'u'" in refuse({"u": row("F32", [1], 4, 8)})
    assert "'u' twice" in refuse(b'{"u": %b, "u": %b}' % ((json.dumps(one).encode(),) * 2))
    assert "'F8_E4M3'" in refuse({"u": row("F8_E4M3", [8], 0, 8)})
    for broken in (
        row("F32", [-2], 0, 8), row("F32", [2.0], 0, 8), row("F32", [True, 2], 0, 8),
        row("F32", [1] * 65 + [2], 0, 8), row("F32", [2], -8, 0), row("F32", [2], 8, 0),
        row("F32", [1 << 200, 0], 0, 8), {"dtype": "F32", "shape": [2]}, [], None,
        {**one, "shape": 2}, {**one, "dtype": 4}, {**one, "data_offsets": [0, 8, 8]},
        {**one, "shape": "22"},
    ):
        assert "dtype, shape and data_offsets" in refuse({"u": broken}), broken
    deep, long = b"[" * 100_000, b'{"u": 1' + b"0" * 5000 + b"}"
    for text in (b"[]", b"\xff{}", b"{" * 90, deep, b'{"u":' * 50_000, b" {}", long):
        assert "has a damaged header" in refuse(text)
    assert "has no member 'u'" in refuse({}, b"")
    text = refuse({"\x1b[31m\ud800": one}, member="v")
    assert "\x1b" not in text and "\\x1b[31m" in text


def open_made(path: Path, data: bytes) -> np.ndarray:
    path.write_bytes(data)
    return open_array(path)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_damage_gets_past_uncontrolled(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any bytes changed, anything cut off: an array within the file, or a refusal."""
    content = bytearray(made({"u": row("F32", [2], 0, 8), "v": row("I8", [3], 8, 11)}, bytes(11)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        file = open_input(str(path), "u")
        assert 0 <= file.start <= len(file.buffer) - elements(file).nbytes
    except SpmdError as error:
        assert error.exit_code == 65

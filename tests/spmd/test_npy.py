"""The .npy reader and writer against NumPy's own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen import dtypes
from codegen.errors import InputError, OutputError
from spmd.files import npy
from spmd.files.outputs import OutputFile
from tests.spmd.array_files import elements, open_array, open_input, refused

NUMPY_NAMES = [name for name in npy.SIZES if name != "bfloat16"]


@pytest.mark.parametrize("dtype", NUMPY_NAMES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("swap", ["<", ">"])
def test_reads_what_numpy_writes(tmp_path: Path, dtype: str, order: str, swap: str) -> None:
    wanted = np.arange(24).reshape(2, 3, 4).astype(np.dtype(dtype).newbyteorder(swap), order=order)
    np.save(tmp_path / "a.npy", wanted)
    file = open_input(str(tmp_path / "a.npy"), "a")
    assert (file.dtype, file.shape) == (dtype, (2, 3, 4))
    assert file.swapped == (swap == ">" and wanted.dtype.itemsize > 1)
    assert np.array_equal(elements(file), wanted)


@pytest.mark.parametrize("dtype", NUMPY_NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (3, 4)])
def test_numpy_reads_what_is_written(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    wanted = np.arange(npy.element_count(shape)).reshape(shape).astype(dtype)
    out = OutputFile(str(tmp_path / "b.npy"), {"b": ("b", dtype, shape)})
    out.check()
    view = out.attach(out.create())
    view[out.starts["b"] :] = wanted.tobytes()
    view.close()
    out.commit()
    found = np.load(tmp_path / "b.npy")
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
    assert os.listdir(tmp_path) == ["b.npy"]
    reference = tmp_path / "c.npy"
    np.save(reference, wanted)
    assert reference.read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_sizes_are_those_of_the_compiler() -> None:
    assert {name: d.size for name, d in dtypes.BY_NAME.items()} == npy.SIZES


def test_bfloat16_is_spelt_as_ml_dtypes_spells_it(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    np.save(tmp_path / "a.npy", np.arange(3, dtype=ml_dtypes.bfloat16))
    assert open_array(tmp_path / "a.npy").dtype == ml_dtypes.bfloat16
    assert npy.header("bfloat16", (3,)) == (tmp_path / "a.npy").read_bytes()[:128]


def damaged(tmp_path: Path, data: bytes) -> str:
    return refused(tmp_path / "d.npy", data)


def test_damaged_files_are_named_with_expected_and_found(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4), np.float32))
    whole = (tmp_path / "a.npy").read_bytes()
    text = damaged(tmp_path, whole[:-1])
    assert "truncated" in text and f"{len(whole)} bytes" in text and f"{len(whole) - 1}" in text
    assert "truncated" in damaged(tmp_path, whole[:60])
    assert "empty file" in damaged(tmp_path, b"")
    assert "not a .npy file" in damaged(tmp_path, b"hello, I am text")
    assert "damaged header" in damaged(tmp_path, whole.replace(b"(3, 4)", b"(3,-4)"))
    assert "damaged header" in damaged(tmp_path, whole.replace(b"(3, 4)", b"((((( "))
    assert "truncated" in damaged(tmp_path, whole.replace(b"(3, 4), } ", b"(999999,)}"))
    assert "type" in damaged(tmp_path, whole.replace(b"<f4", b"<U4"))
    assert "type" in damaged(tmp_path, whole.replace(b"'<f4'", "'<f²'".encode()))
    text = damaged(tmp_path, whole.replace(b"False, ", b"'no',  "))
    assert "damaged header" in text
    np.save(tmp_path / "s.npy", np.zeros(2, [("a", "i4"), ("b", "f8")]))
    assert "type" in damaged(tmp_path, (tmp_path / "s.npy").read_bytes())


def test_directories_pipes_and_missing_files_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in (
        (tmp_path, "not a file"),
        (tmp_path / "pipe", "not a file"),
    ):
        with pytest.raises(InputError, match=what):
            open_input(str(path), "u")
    with pytest.raises(OutputError, match="No such file"):
        open_input(str(tmp_path / "none.npy"), "u")


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_header_gets_past_the_parser_uncontrolled(raw: bytes) -> None:
    try:
        value = npy.parse_literal(raw.decode("latin-1"))
    except ValueError:
        return
    assert isinstance(value, dict)


def test_an_output_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, what in (("none/u.npy", "no directory"), ("folder", "not a file")):
        with pytest.raises(OutputError, match=what) as caught:
            OutputFile(str(tmp_path / path), {"u": ("u", "float32", (3,))}).check()
        assert caught.value.exit_code == 74


def test_a_full_disk_leaves_the_previous_file(tmp_path: Path) -> None:
    target = tmp_path / "u.npy"
    np.save(target, np.arange(3))
    out = OutputFile(str(target), {"u": ("u", "float64", (1 << 50,))})
    with pytest.raises(OutputError, match="cannot write"):
        out.create()
    assert os.listdir(tmp_path) == ["u.npy"]
    assert np.array_equal(np.load(target), np.arange(3))

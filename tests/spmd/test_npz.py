"""The .npz reader and writer against NumPy's own and the standard library's zipfile."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.errors import EnvironmentFault, InputError, SpmdError
from spmd.files import inputs as files
from spmd.files import npy, npz
from spmd.files.outputs import OutputFile
from spmd.launch.memory import available_memory, bytes_text
from tests.spmd.array_files import elements, open_array, open_input, refused, write

NUMPY_NAMES = [name for name in npy.SIZES if name != "bfloat16"]
ARRAYS = {
    "u": np.arange(24.0).reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
    "big": np.arange(5, dtype=">c8"),
    "none": np.zeros((0, 7), np.uint8),
    "scalar": np.float32(3),
    "größe": np.ones(2, bool),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_writes(tmp_path: Path, save: object) -> None:
    save(tmp_path / "a.npz", **ARRAYS)  # type: ignore[operator]
    for name, wanted in ARRAYS.items():
        file = open_input(f"{tmp_path}/a.npz", name)
        found = elements(file)
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted), name
        assert file.swapped == (name == "big") and file.path == f"{tmp_path}/a.npz:{name}"
        # Only what was compressed is copied.
        assert (len(file.buffer) == os.path.getsize(tmp_path / "a.npz")) == (save is np.savez)
        del found
        file.close()


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    arrays = {f"a.{name}": np.arange(7).astype(name) for name in NUMPY_NAMES}
    arrays |= {"none": np.zeros((3, 0)), "scalar": np.array(2.5), "größe": np.ones((2, 3))}
    file = write(tmp_path / "b.npz", arrays)
    assert os.listdir(tmp_path) == ["b.npz"] and all(s % 64 == 0 for s in file.starts.values())
    with zipfile.ZipFile(tmp_path / "b.npz") as archive:
        assert archive.testzip() is None  # the CRC-32 of every member
        assert archive.namelist() == [f"{name}.npy" for name in arrays]
    with np.load(tmp_path / "b.npz") as found:
        assert list(found) == list(arrays)
        for name, wanted in arrays.items():
            assert found[name].dtype == wanted.dtype and np.array_equal(found[name], wanted)
    for name, wanted in arrays.items():
        assert np.array_equal(open_array(tmp_path / "b.npz", name), wanted)


def test_bfloat16_is_two_bytes_of_no_type(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wanted = np.arange(9, dtype=ml_dtypes.bfloat16)
    file = write(tmp_path / "b.npz", {"u": wanted})
    assert np.array_equal(np.load(tmp_path / "b.npz")["u"].view(ml_dtypes.bfloat16), wanted)
    assert np.array_equal(open_array(tmp_path / "b.npz"), wanted)
    how = file.reading("u", "bfloat16")
    assert np.array_equal(eval(how, {"numpy": np, "ml_dtypes": ml_dtypes}), wanted)


def test_members_beyond_4_gib(tmp_path: Path) -> None:
    """A sparse file has a directory that zipfile and NumPy can read, and its last elements are
    right."""
    count = (1 << 32) + 3
    frame = npz.frame([("large", "uint8", (count,)), ("after", "int32", (5,))])
    path = tmp_path / "large.npz"
    with open(path, "wb") as file:
        file.truncate(frame.size)
        for at, piece in frame.pieces:
            file.seek(at)
            file.write(piece)
        file.seek(frame.starts[0] + count - 1)
        file.write(b"\7")
        file.seek(frame.starts[1])
        file.write(np.arange(5, dtype=np.int32).tobytes())
    out = OutputFile(str(path), {"after": ("after", "int32", (5,))})
    out.frame = npz.frame([("large", "uint8", (count,)), ("after", "int32", (5,))])
    out.part, out.fd = str(path), os.open(path, os.O_RDWR)
    out.frame.sums = out.frame.sums[1:]  # reading 4 GiB back takes too long here
    out.commit()
    with zipfile.ZipFile(path) as archive:
        large, after = archive.infolist()
        assert (large.file_size, large.compress_size) == (count + 128, count + 128)
        assert after.header_offset > 1 << 32
    assert np.array_equal(np.load(path)["after"], np.arange(5))
    assert np.array_equal(open_array(path, "after"), np.arange(5))
    found = open_array(path, "large")
    assert found.shape == (count,) and found[-1] == 7
    with open(path, "rb") as file:  # what a reader without the directory sees
        local = npz.LOCAL.unpack(file.read(npz.LOCAL.size))
        file.seek(npz.LOCAL.size + len("large.npy"))
        assert local[-4:-2] == (npz.WIDE, npz.WIDE) and local[1] == 45
        assert struct.unpack("<2H2Q", file.read(20)) == (1, 16, count + 128, count + 128)


def test_zip64_records_of_others(tmp_path: Path) -> None:
    """Python writes a zip64 end for more than 65,535 members."""
    one = io.BytesIO()
    np.save(one, np.arange(3))
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        for k in range(70_000):
            archive.writestr(f"{k}.npy", one.getvalue() if k == 69_999 else b"")
    assert np.array_equal(open_array(f"{tmp_path}/many.npz:69999"), np.arange(3))
    frame = npz.frame([(str(k), "int8", ()) for k in range(70_000)])
    at, piece = frame.pieces[-1]
    with open(tmp_path / "ours.npz", "wb") as file:
        file.truncate(at)
        file.seek(at)
        file.write(piece)
    assert len(zipfile.ZipFile(tmp_path / "ours.npz").infolist()) == 70_000


def test_only_what_is_reserved_is_kept(tmp_path: Path) -> None:
    """A part of a compressed member; what it costs are the pages of that part."""
    wanted = np.arange(2_000_000.0)
    np.savez_compressed(tmp_path / "a.npz", u=wanted)
    file = open_input(f"{tmp_path}/a.npz", "u")
    file.reserve(file.start + 8_000, file.start + 80_000, 2, 0)
    before = resident()
    found = elements(file)
    assert np.array_equal(found[1000:10_000], wanted[1000:10_000])
    assert resident() - before < wanted.nbytes // 2
    assert found[20_000] == 0


def test_what_does_not_fit_is_refused_before_it_is_taken(tmp_path: Path) -> None:
    """Counted from what was available when the file was opened, in all processes of a host."""
    np.savez_compressed(tmp_path / "a.npz", u=np.arange(1000.0))
    file = open_input(f"{tmp_path}/a.npz", "u")
    taken = file.available - 20_000
    file.reserve(file.start, file.start + 8_000, 3, taken)
    with pytest.raises(EnvironmentFault, match="7.8 KiB in each of 3 processes"):
        elements(file)
    file.reserve(file.start, file.start + 8_000, 2, taken)
    assert np.array_equal(elements(file), np.arange(1000.0))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_which_member(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.npz"
    np.savez(path, u=np.zeros(1), v=np.ones(2))
    assert open_array(path, "v").shape == (2,) and open_array(f"{path}:v").shape == (2,)
    with pytest.raises(InputError, match="has no member 'w'") as caught:
        open_array(path, "w")
    assert caught.value.expected == "u, v" and caught.value.remedy == f"-i w={path}:u"
    np.savez(tmp_path / "one.npz", x=np.zeros(3))
    assert open_array(tmp_path / "one.npz", "w").shape == (3,)
    np.save(open(f"{path}:v", "wb"), np.zeros(9))  # a file of that whole name comes first
    assert open_array(f"{path}:v").shape == (9,)


def test_split_keeps_folders_with_such_names(tmp_path: Path) -> None:
    folder = tmp_path / "x.npz:y"
    folder.mkdir()
    np.savez(folder / "a.npz", u=np.zeros(4))
    assert files.split(f"{folder}/a.npz:u", existing=True) == (f"{folder}/a.npz", "u")
    assert files.split("a.npz:b.npz:c", existing=True) == ("a.npz", "b.npz:c")
    assert files.split("a.npy:u", existing=True) == ("a.npy:u", "")


def whole(save: object = np.savez) -> bytes:
    memory = io.BytesIO()
    save(memory, u=np.arange(6.0), v=np.ones(3))  # type: ignore[operator]
    return memory.getvalue()


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def test_damaged_files_are_named_with_expected_and_found(tmp_path: Path) -> None:
    data, path = whole(), tmp_path / "d.npz"
    first, second = data.index(npz.ENTRY_MARK), data.rindex(npz.ENTRY_MARK)
    end = data.index(npz.END_MARK)
    word = struct.Struct("<L").pack
    assert "truncated" in refused(path, data[:-1])
    assert "truncated" in refused(path, data[:100])
    assert "an empty file" in refused(path, b"")
    assert "not a .npz file" in refused(path, b"hello, I am text")
    assert "a directory of 3 members" in refused(path, changed(data, end + 8, b"\3\0\3\0"))
    assert "one part of several" in refused(path, changed(data, end + 8, b"\3\0"))
    assert "directory" in refused(path, changed(data, end + 12, b"\xff\xff\0\0"))
    assert "directory" in refused(path, changed(data, end + 16, b"\xff\xff\0\0"))
    assert "to end before" in refused(path, changed(data, first + 20, word(400)))
    assert "to end before" in refused(path, changed(data, second + 42, word(10)))
    assert "stored" in refused(path, changed(data, first + 24, word(17)))
    assert "64-bit sizes" in refused(path, changed(data, first + 20, word(npz.WIDE)))
    assert "an encrypted member" in refused(path, changed(data, first + 8, b"\1"))
    assert "method 12" in refused(
        path, changed(changed(data, first + 10, b"\x0c"), 8, b"\x0c")
    )
    assert "member b'u.npy' at byte 0" in refused(path, changed(data, 30, b"w"))
    assert "'v' twice" in refused(path, changed(data, first + 46, b"v"))
    assert "truncated" in refused(path, data.replace(b"(6,)", b"(7,)"))
    assert "damaged header" in refused(path, data.replace(b"'descr'", b"'desc\0'"))
    assert "not a .npy file" in refused(path, data.replace(b"\x93NUMPY", b"\x93NUMBY"))


def test_damaged_compressed_members(tmp_path: Path) -> None:
    data, path = whole(np.savez_compressed), tmp_path / "d.npz"
    first, word = data.index(npz.ENTRY_MARK), struct.Struct("<L").pack
    name, extra = struct.unpack("<2H", data[26:30])
    start = 30 + name + extra
    packed = struct.unpack("<L", data[first + 20 : first + 24])[0]
    assert np.array_equal(open_array_of(path, data), np.arange(6.0))
    assert "deflated data" in refused(path, changed(data, start, b"\xff"))
    assert "CRC-32" in refused(path, changed(data, first + 16, b"\0\0\0\0"))
    assert f"out of {packed} compressed" in refused(path, changed(data, first + 24, word(1 << 30)))
    assert "truncated" in refused(path, changed(data, first + 24, word(150)))
    assert "found:    177 bytes" in refused(path, changed(data, first + 24, word(177)))
    half = changed(data, first + 20, word(packed - 9))
    assert "bytes, inflated" in refused(path, half)


def open_array_of(path: Path, data: bytes) -> np.ndarray:
    path.write_bytes(data)
    return open_array(path)


def test_a_member_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    """A file whose sizes fit each other: refused before any of that memory is taken."""
    size = 2 * available_memory()
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    head = stream.compress(npy.header("uint8", (size - 128,)) + bytes(1 << 17)) + stream.flush()
    packed = size // npz.DENSEST + 1
    local = npz.LOCAL.pack(npz.LOCAL_MARK, 45, 0, npz.DEFLATED, 0, 0, 0, 0, 0, 5, 0) + b"u.npy"
    extra = struct.pack("<2HQ", npz.SIZES_ID, 8, size)
    entry = npz.ENTRY.pack(npz.ENTRY_MARK, 45, 45, 0, npz.DEFLATED, 0, 0, 0, packed, npz.WIDE,
                           5, len(extra), 0, 0, 0, 0, 0) + b"u.npy" + extra
    directory = len(local) + packed
    end = npz.END.pack(npz.END_MARK, 0, 0, 1, 1, len(entry), directory, 0)
    with open(tmp_path / "a.npz", "wb") as file:
        file.write(local + head)
        file.truncate(directory)
        file.seek(directory)
        file.write(entry + end)
    file = open_input(f"{tmp_path}/a.npz", "u")
    assert file.shape == (size - 128,)
    with pytest.raises(EnvironmentFault, match="does not fit into memory") as caught:
        file.buffer  # noqa: B018
    assert caught.value.expected == bytes_text(size)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_damage_gets_past_uncontrolled(
    tmp_path_factory: pytest.TempPathFactory, save: object, data: st.DataObject
) -> None:
    """Any bytes changed, anything cut off: an array of the right bounds, or a refusal."""
    content = bytearray(whole(save))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzz.npz"
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    try:
        file = open_input(str(path), "u")
        assert 0 <= file.start <= len(file.buffer) - elements(file).nbytes
    except SpmdError as error:
        assert error.exit_code in (65, 69)

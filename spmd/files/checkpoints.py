"""Sets of files that a run is kept in: a folder each, which is complete once its index is there.

In: a folder of sets, parts of arrays. Out: a .safetensors file per process, checkpoint.json last.
Always holds: a set without checkpoint.json is none; that one comes in one step, when all parts are
on the disk; a part that is not what it was is refused by its name.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from typing import NamedTuple
from zlib import crc32

from codegen.errors import InputError, OutputError, UsageError
from spmd.files import npy
from spmd.files.inputs import InputFile
from spmd.files.safetensors import ALIGNMENT, CODES, DTYPES, METADATA, StoredArray, members
from spmd.files.whole import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INDEX, LOCK, MARK, FORMAT = "checkpoint.json", ".lock", ".run-", 2
KEPT = 2  # sets: the last one, and the one before it
LOCK_SECONDS = 5.0  # for which a run that ends may still hold the folder
AT_ONCE = 1 << 26  # bytes that are summed or written in one call
SET = re.compile(r"loop\d{4,}-turn\d{12,}-[0-9a-f]{8}")
SAYS = (("program", str), ("image", str), ("point", int), ("turn", int), ("counter", int),
        ("ranks", int), ("scalars", dict), ("inputs", dict), ("arrays", dict))
PART = re.compile(r"\.?part-\d+\.safetensors")


def part_name(process: int) -> str:
    return f"part-{process}.safetensors"


def mark_of(folder: str, nonce: str) -> str:
    return os.path.join(folder, MARK + nonce)


def set_name(point: int, turn: int, nonce: str) -> str:
    return f"loop{point:04d}-turn{turn:012d}-{nonce}"


def complete(folder: str) -> list[str]:
    """Return the names of the complete sets of a folder, from the first to the last."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise OutputError(f"cannot read checkpoints in {folder}: {error.strerror}",
                          expected="a folder that run --checkpoint FOLDER has written to",
                          remedy="its name, or run without --resume") from None
    return sorted(n for n in names if is_set(n) and os.path.isfile(os.path.join(folder, n, INDEX)))


def remove(folder: str, name: str) -> None:
    """Remove a set so that it is no complete one from the beginning. What others put there
    stays."""
    path = os.path.join(folder, name)
    try:
        inside = os.listdir(path)
        for entry in sorted(inside, key=lambda n: n != INDEX):
            if PART.fullmatch(entry) or INDEX in entry:
                os.unlink(os.path.join(path, entry))
        os.rmdir(path)
    except OSError:
        pass  # somebody else removes it too, or may not


def is_set(name: str) -> bool:
    return bool(SET.fullmatch(name))


class Folder:
    """A folder that this process alone may add sets to, until it is closed."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        try:
            os.makedirs(self.path, exist_ok=True)
            self.fd = os.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                              0o666)
        except OSError as error:
            raise OutputError(f"checkpoint: cannot write to {path}: {error.strerror}",
                              expected="a folder that may be written to, or made",
                              remedy="--checkpoint FOLDER with another one") from None
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    self.close()
                    raise UsageError(
                        f"another run keeps its checkpoints in {path}",
                        expected="a folder for each run", found="the folder is locked",
                        remedy="another folder, or end that run",
                    ) from None
                time.sleep(0.05)
        for name in os.listdir(self.path):  # what was not completed
            if is_set(name) and not os.path.isfile(os.path.join(self.path, name, INDEX)):
                remove(self.path, name)

    def mark(self, nonce: str) -> None:
        """Makes a file by which others know that they see this folder."""
        self._unmark()
        try:
            os.close(os.open(mark_of(self.path, nonce), os.O_WRONLY | os.O_CREAT, 0o666))
        except OSError as error:
            raise OutputError(
                f"checkpoint: cannot write to {self.path}: {error.strerror}") from None

    def _unmark(self) -> None:
        for name in os.listdir(self.path):
            if name.startswith(MARK):
                os.unlink(os.path.join(self.path, name))

    def close(self) -> None:
        if self.fd >= 0 and os.path.isdir(self.path):
            self._unmark()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# ---- writing -------------------------------------------------------------------------------------


class Piece:
    """A rank's part of an array: its elements, and where they lie in it."""

    def __init__(self, name: str, dtype: str, rank: int, offset: list[int], extent: list[int],
                 data: Any) -> None:
        self.name, self.dtype, self.rank = name, dtype, rank
        self.offset, self.extent, self.data = offset, extent, data


def write_part(path: str, process: int, pieces: list[Piece]) -> None:
    """Write the part of a process, under another name until all of it is on the disk.
    OutputError."""
    pieces = sorted(pieces, key=lambda p: -npy.SIZES[p.dtype])
    header: dict[str, Any] = {}
    rows, offset, crc = [], 0, 0
    for piece in pieces:
        size = len(piece.data)
        shape = [*piece.extent, 2] if piece.dtype == "complex128" else piece.extent
        key = f"{piece.name}@{piece.rank}"
        code = CODES.get(piece.dtype, "F64")
        header[key] = {"dtype": code, "shape": shape, "data_offsets": [offset, offset + size]}
        rows.append([key, piece.name, piece.rank, piece.offset, piece.extent])
        for k in range(0, size, AT_ONCE):
            crc = crc32(piece.data[k : k + AT_ONCE], crc)
        offset += size
    header[METADATA] = {"spmd": json.dumps({"pieces": rows, "crc": crc})}
    text = json.dumps(header, separators=(",", ":")).encode()
    base = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT
    final, part = (os.path.join(path, n + part_name(process)) for n in ("", "."))
    try:
        os.makedirs(path, exist_ok=True)
        with open(part, "wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, base + offset)
            _all(file, (base - 8).to_bytes(8, "little") + text.ljust(base - 8))
            for piece in pieces:
                _all(file, piece.data)
            os.fsync(file.fileno())
        os.replace(part, final)
    except OSError as error:
        try:
            os.unlink(part)
        except OSError:
            pass
        raise OutputError(
            f"checkpoint: cannot write {final}: {error.strerror}",
            expected=f"room for {base + offset} bytes", found="less, or no right to write",
            remedy="free some, then --resume: the last complete checkpoint is as it was",
        ) from None


def _all(file: Any, data: Any) -> None:
    view = memoryview(data).cast("B")
    written = 0
    while written < len(view):
        written += file.write(view[written : written + AT_ONCE])


def complete_set(path: str, processes: int, said: dict[str, Any]) -> bool:
    """Writes the index, if the parts of all processes are there: from then on the set is one."""
    names = [part_name(k) for k in range(processes)]
    if not all(os.path.isfile(os.path.join(path, name)) for name in names):
        return False
    try:
        parts = []
        for name in names:
            file = os.path.join(path, name)
            part = InputFile(file, "")
            header = _header(part)
            parts.append([name, part.length, crc32(header), _metadata(header)["crc"]])
            part.close()
        index = {"format": FORMAT, **said, "parts": parts}
        with whole(os.path.join(path, INDEX)) as out:
            out.write(json.dumps({**index, "crc": _index_sum(index)}).encode())
        for folder in (path, os.path.dirname(path)):
            _sync(folder)
    except OSError as error:
        raise OutputError(f"checkpoint: cannot write {path}/{INDEX}: {error.strerror}") from None
    return True


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---- reading -------------------------------------------------------------------------------------


def read_index(path: str) -> dict[str, Any]:
    """Return what a complete set says of itself. InputError for one that is damaged."""
    file = os.path.join(path, INDEX)
    try:
        with open(file, "rb") as opened:
            index = json.load(opened)
        if index["format"] != FORMAT:
            raise InputError(f"{file} is of another format", expected=f"format {FORMAT}",
                             found=ascii(index["format"]), remedy="the spmd that wrote it")
        if index.pop("crc") != _index_sum(index):
            raise damaged(file, "what its check sum says", "something else")
        parts = [StoredPart(*row) for row in index["parts"]]
        mesh = [(str(name), int(size)) for name, size in index["mesh"]]
        feeds = index.setdefault("feeds", {})  # sets of older runs say nothing of them
        sound = all(map(StoredPart.is_sound, parts)) and all(
            type(row[key]) is int and 0 <= row["from"] <= row["taken"]
            and isinstance(row.get("order", ""), str) and isinstance(row.get("text", ""), str)
            for row in feeds.values() for key in ("taken", "from"))
        if not sound or any(type(index[key]) is not kind for key, kind in SAYS):
            raise ValueError
        return {**index, "parts": parts, "mesh": mesh}
    except OSError as error:
        raise OutputError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(file, "the index of a checkpoint", "something else") from None


def _index_sum(index: dict[str, Any]) -> int:
    return crc32(json.dumps(index).encode())


class DamagedSet(InputError):
    """Raised where a file of a checkpoint is not as it was written."""


def damaged(file: str, expected: str, found: str) -> DamagedSet:
    return DamagedSet(
        f"the checkpoint is damaged: {file}", expected=expected, found=found,
        remedy=f"remove the folder {os.path.dirname(file)}: the checkpoint before it is taken then",
    )


def _header(file: InputFile) -> bytes:
    return file.read(8, int.from_bytes(file.read(0, 8), "little"))


def _metadata(header: bytes) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(json.loads(header)[METADATA]["spmd"])
    return metadata


class StoredPart(NamedTuple):
    """A row of the index about a part: its name, bytes, check sums of its header and its
    elements."""

    name: str
    size: int
    header: int
    elements: int

    def is_sound(self) -> bool:
        """Return whether it names no other file than one of the set's, and has numbers."""
        return bool(PART.fullmatch(self.name)) and all(type(n) is int for n in self[1:])


class MappedPart:
    """The part of one process, mapped. pieces: name, dtype, rank, offset, extent, first byte."""

    def __init__(self, path: str, part: StoredPart) -> None:
        file = os.path.join(path, part.name)
        try:
            self.file = InputFile(file, "")
        except (OutputError, InputError):
            raise damaged(file, "a part of the checkpoint", "it cannot be opened") from None
        try:
            self._read(file, part)
        except BaseException as error:
            self.file.close()
            if isinstance(error, InputError) and not isinstance(error, DamagedSet):
                raise damaged(file, "a part of the checkpoint",
                              str(error).partition("\n")[0]) from None
            if isinstance(error, (ValueError, KeyError, TypeError)):
                raise damaged(file, "a part of the checkpoint", "another header") from None
            raise

    def _read(self, file: str, part: StoredPart) -> None:
        if self.file.length != part.size:
            raise damaged(file, f"{part.size} bytes", f"{self.file.length} bytes")
        header = _header(self.file)
        _compare(file, "a header", part.header, crc32(header))
        arrays = members(self.file)
        self.pieces = [_piece(arrays[row[0]], *row[1:]) for row in _metadata(header)["pieces"]]
        first, has = min((array.start for array in arrays.values()), default=part.size), 0
        for offset in range(first, part.size, AT_ONCE):
            has = crc32(self.file.read_all(offset, min(AT_ONCE, part.size - offset)), has)
        _compare(file, "elements", part.elements, has)


def _piece(array: StoredArray, name: str, rank: int, offset: list[int], extent: list[int]) -> Any:
    """Return one of a part's pieces; raise ValueError unless what is said of it is what is
    stored."""
    sound = npy.is_shape(offset) and npy.is_shape(extent) and len(offset) == len(extent)
    pair = array.shape == (*extent, 2)  # of complex128
    if not sound or not (pair or array.shape == tuple(extent)):
        raise ValueError
    dtype = "complex128" if pair else DTYPES[array.code]
    return name, dtype, rank, offset, extent, array.start


def _compare(file: str, part: str, expected: int, found: int) -> None:
    if found != expected:
        raise damaged(file, f"{part} with the check sum {expected:08x}", f"{found:08x}")

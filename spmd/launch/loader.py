"""From a file to machine code in memory: check the bytes, patch the index words, load those bytes.

Goes in: a path or bytes. Comes out: a checked image, and from it a loaded local program.
Always holds: the bytes that were hashed are the bytes that are loaded; what the dynamic linker
hands back is compared with them, for it knows files by names that can return.
"""

from __future__ import annotations

import fcntl
import os
import stat

from codegen.errors import EnvironmentFault, ImageError, InputError, OutputError, VersionError
from codegen.image import manifest as reader
from spmd.engine import ffi, lib
from spmd.launch.routines import address, linker_error

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CONSTANTS = ".spmd.constants"


def read(path: str) -> bytes:
    """Return the bytes of an image file. Raises ImageError for what is no regular file."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise ImageError(f"{path}: not an spmd image", expected="a regular file",
                             found="a directory" if stat.S_ISDIR(mode)
                             else "a special file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise OutputError(f"cannot read {path}", found=error.strerror or str(error)) from None


def check(data: bytes) -> Checked:
    """Return the image in these bytes, if it may run here. Raises ImageError or VersionError."""
    return Checked(reader.read(data))


def is_program(path: str) -> bool:
    """Return whether a path names a program, FILE.py[:NAME], and no image."""
    return path.endswith(".py") or ".py:" in path


class named:
    """A context in which what is wrong with an image is said with its path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: object, __: object) -> None:
        said = isinstance(error, (ImageError, InputError, VersionError))
        if said and self.path not in error.message:  # type: ignore[attr-defined]
            error.message = f"{self.path}: {error.message}"  # type: ignore[attr-defined]


def open_file(path: str) -> Checked:
    """Return the checked image in a file; what is wrong with it is said with its path."""
    with named(path):
        return check(read(path))


class Checked:
    """An image that passed every check. manifest: its description. digest: hexadecimal."""

    def __init__(self, image: reader.ImageFile) -> None:
        self.image = image
        self.manifest = image.manifest
        self.digest = image.digest

    def load(self, first: int, count: int, sizes: list[int], words: list[int]) -> Loaded:
        """Return the local program of these ranks, as machine code in this process."""
        data = reader.patch(self.image, first, count, list(sizes), list(words))
        proof = {
            symbol: data[offset : offset + size]
            for symbol, (offset, size) in (
                (b"spmd_index", self.image.sections[".spmd.index"]),
                (b"spmd_digest", self.image.sections[".spmd.digest"]),
            )
        }
        rows = self.manifest["libraries"]
        left_out = self.image.sections.get(CONSTANTS, (0, 0))
        return Loaded(data, proof, [(row["source"], row["routine"]) for row in rows], left_out)

    def constants(self) -> memoryview:
        """Return the section that the machine code reads constants in; empty if there is none."""
        offset, size = self.image.sections.get(CONSTANTS, (0, 0))
        return memoryview(self.image.data)[offset : offset + size]

    def load_any(self, scalars: int) -> Loaded:
        """Return some local program, for functions that read no index words."""
        words = reader.IndexWords(self.image.section(".spmd.index"))
        if words.patched:
            return self.load(words.first, words.count, list(words.sizes), list(words.scalars))
        return self.load(0, 1, [1] * len(self.manifest["mesh"]), [0] * scalars)


class Loaded:
    """Machine code in memory. table: its spmd_image_table. library: routines by logical number.

    proof: what must stand at some symbols, or the dynamic linker gave us another image. left_out:
    offset and size of what nobody looks for in the file that is loaded.
    """

    def __init__(self, data: bytes, proof: dict[bytes, bytes],
                 routines: list[tuple[str, str]], left_out: tuple[int, int] = (0, 0)) -> None:
        self._handle, self._file = _open(data, proof, left_out)
        self.table = lib.spmd_library_symbol(self._handle, b"spmd_image_table")
        if self.table == ffi.NULL:
            self.close()
            raise ImageError("not an spmd image", expected="the symbol spmd_image_table",
                             found="none")
        try:
            self.library = [address(source, name) for source, name in routines]
        except (EnvironmentFault, ImageError):
            self.close()
            raise

    def close(self) -> None:
        """Unload the machine code. The descriptor is closed last: its number names the mapping
        until then."""
        if self._handle != ffi.NULL:
            lib.spmd_library_close(self._handle)
            os.close(self._file)
            self._handle = ffi.NULL


def _open(
    data: bytes, proof: dict[bytes, bytes], left_out: tuple[int, int]
) -> tuple[Any, int]:
    """Load an image into memory. Return the dynamic linker's handle, and the descriptor that is to
    be closed after it."""
    held: list[int] = []  # open until the end: a number names one file only
    reasons: list[str] = []
    try:
        for place in places():
            try:
                file, path = private_file(data, place, left_out)
            except OSError as error:
                reasons.append(f"{place or 'memory'}: {error.strerror}")
                continue
            held.append(file)
            handle = lib.spmd_library_open(path.encode())
            if place:
                os.unlink(path)
            if handle == ffi.NULL:
                reasons.append(linker_error())
            elif _is_proved(handle, proof):
                held.remove(file)
                return handle, file
            else:
                lib.spmd_library_close(handle)
                reasons.append("the dynamic linker returned another image")
    finally:
        for file in held:
            os.close(file)
    raise EnvironmentFault(
        "the image cannot be loaded", expected="memory files, or a directory, that may be executed",
        found="; ".join(dict.fromkeys(reasons)), remedy="set TMPDIR to a directory without noexec",
    )


def _is_proved(handle: Any, proof: dict[bytes, bytes]) -> bool:
    for symbol, wanted in proof.items():
        address = lib.spmd_library_symbol(handle, symbol)
        if address == ffi.NULL or bytes(ffi.buffer(address, len(wanted))) != wanted:
            return False
    return True


def places() -> Iterator[str]:
    """Yield the places from which an image can be loaded: memory (""), then directories."""
    yield ""
    chosen = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    yield from filter(os.path.isdir, dict.fromkeys([*chosen, "/tmp", "/var/tmp", "/dev/shm"]))
    yield os.getcwd()


def private_file(
    data: bytes | memoryview, place: str, left_out: tuple[int, int] = (0, 0)
) -> tuple[int, str]:
    """Return a private file that holds the bytes, and its path. In memory it is sealed for good.
    What is left out, from an offset on so many bytes, is a hole: it reads as zeros and takes no
    memory."""
    if place:
        path = os.path.join(os.path.abspath(place), f"spmd-{os.urandom(8).hex()}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    else:
        file = os.memfd_create("spmd-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        path = f"/proc/self/fd/{file}"
    try:
        os.ftruncate(file, len(data))  # a part of an image would be a bus error while it is loaded
        hole, size = left_out
        for begin, end in ((0, hole), (hole + size, len(data))):
            while begin < end:
                begin += os.pwrite(file, memoryview(data)[begin:end], begin)
        if not place:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, 0xF)  # seal, shrink, grow, write
    except OSError:
        os.close(file)
        if place:
            os.unlink(path)
        raise
    return file, path

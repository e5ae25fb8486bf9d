"""Files that inputs come from: which format a path means, which member of it, mapped for reading.

In: paths as `-i` has them. Out: for every input where its elements lie: buffer, start, dtype,
shape, strides in bytes, byte order.
Always holds: a file is checked as far as it says anything of an input before any element is read.
"""

from __future__ import annotations

import mmap
import os

from codegen.errors import EnvironmentFault, InputError, OutputError, UsageError
from codegen.image.manifest import hashed
from spmd.files import ARCHIVES, npy, npz, safetensors
from spmd.files.npy import AT_ONCE
from spmd.launch.memory import available_memory, bytes_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAP_NORESERVE = 0x4000  # of Linux; Python's mmap has no name for it


def archive_format(path: str) -> Any:
    """The module that reads and lays out files of many arrays; None for a .npy file."""
    formats = zip(ARCHIVES, (npz, safetensors), strict=True)
    return next((module for ending, module in formats if path.endswith(ending)), None)


def split(path: str, existing: bool) -> tuple[str, str]:
    """FILE.npz:MEMBER in two; the member is "" where none is named.

    existing: what there is decides where the file's name ends; a file of the whole name comes
    first.
    """
    if existing and os.path.exists(path):
        return path, ""
    cuts = sorted(
        at + len(suffix)
        for suffix in ARCHIVES
        for at in range(len(path))
        if path.startswith(f"{suffix}:", at)
    )
    real = [cut for cut in cuts if existing and os.path.isfile(path[:cut])]
    for cut in real or cuts:
        return path[:cut], path[cut + 1 :]
    return path, ""


class InputFile:
    """A file mapped for reading. data: its bytes. label: what messages call it.

    version: equal for two processes that have opened the same file, unless somebody deceives us.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name, self.label = path, name, path
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None
        try:
            status = os.fstat(fd)
            if status.st_mode & 0o170000 != 0o100000:
                found = "a directory, a pipe or a device"
                raise self.wrong("is not a file", "a file of arrays", found)
            self.length = status.st_size
            self.version = (status.st_ino, status.st_size, status.st_mtime_ns)
            self.data: mmap.mmap | bytes = b""
            if self.length:
                self.data = mmap.mmap(fd, self.length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: it is shorter already
            os.close(fd)
            raise self._unreadable(error) from None
        except InputError:
            os.close(fd)
            raise
        self._fd = fd

    def read(self, at: int, count: int) -> bytes:
        """These bytes, as far as there are so many. Not from the mapping: another process may have
        cut the file short, and there is no message for that."""
        return os.pread(self._fd, max(0, min(count, self.length - at)), at)

    def read_all(self, at: int, count: int) -> bytes:
        """These bytes, all of them."""
        found = self.read(at, count)
        if len(found) < count:
            raise self.wrong(
                "became shorter while it was read", f"{count} bytes from byte {at}", str(len(found))
            )
        return found

    def memory(
        self, how: str, size: int, used: int, processes: int, available: int, remedy: str
    ) -> mmap.mmap:
        """Room for `size` bytes, of which `used` are written, in each of these processes. Pages
        that nothing is written to take no memory. EnvironmentFault where there is too little."""
        text = f"input {self.name}: {self.label} does not fit into memory {how}"
        if used * processes > available:
            each = f" in each of {processes} processes" if processes > 1 else ""
            raise EnvironmentFault(text, expected=f"{bytes_text(used)}{each}",
                                   found=f"{bytes_text(available)} available", remedy=remedy)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            return mmap.mmap(-1, max(1, size), flags)
        except OSError as error:
            raise EnvironmentFault(text, expected=bytes_text(size), found=error.strerror or "",
                                   remedy=remedy) from None

    def close(self) -> None:
        if isinstance(self.data, mmap.mmap):
            self.data.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def wrong(self, what: str, expected: str, found: str) -> InputError:
        title = f"input {self.name}: " if self.name else "input "
        return InputError(f"{title}{self.label} {what}", expected=expected, found=found)

    def _unreadable(self, error: Exception) -> OutputError:
        title = f"input {self.name}" if self.name else "input"
        why = error.strerror if isinstance(error, OSError) else error
        return OutputError(f"{title}: cannot open {self.path}: {why}")


class InputArray:
    """An input's elements: buffer[start] is the first byte, `strides` are in bytes.

    swapped: their byte order is not this machine's. buffer: the mapped file; of a compressed
    member, and of elements that are converted, memory that is filled when it is first used: all of
    it, or what was reserved.
    """

    def __init__(self, file: InputFile, elements: npy.Elements) -> None:
        self.path, self._file, self._given = file.label, file, elements
        self._use(elements)

    def _use(self, elements: npy.Elements) -> None:
        self._elements = elements
        self.dtype, self.shape, self.start = elements.dtype, elements.shape, elements.start
        self.strides, self.swapped = elements.strides, elements.swapped
        self.is_made = elements.inflate is not None  # in memory, from what the file has
        self._inflated: mmap.mmap | None = None
        # Before anybody takes any: processes that look later would see what others have taken.
        self.available = available_memory() if self.is_made else 0
        self._reserved = (0, elements.end, 1, self.available)

    def convert(self, dtype: str) -> None:
        """From now on the elements are of this dtype, where nothing is lost by that; else they stay
        as they are."""
        if self.dtype != dtype:
            from spmd.files.convert import converted  # NumPy, where dtypes differ

            if (elements := converted(self._file, self._given, dtype)) is not None:
                self._use(elements)

    def reserve(self, low: int, high: int, processes: int, taken: int) -> None:
        """Only bytes low to high of what is put into memory are used here, as many in each of the
        other processes of this host; together they have `taken` since this input was opened.
        """
        self._reserved = (low, high, processes, self.available - taken)

    @property
    def buffer(self) -> mmap.mmap | bytes:
        if self._elements.inflate is None:
            return self._file.data
        if self._inflated is None:
            self._inflated = self._elements.inflate(*self._reserved)
        return self._inflated

    @property
    def version(self) -> tuple[Any, ...]:
        """Equal for two processes that were given the same array of the same file."""
        given = self._given
        return (*self._file.version, given.start, given.inflate is not None, *self._kind())

    def _kind(self) -> tuple[Any, ...]:
        given = self._given
        return given.dtype, given.shape, given.strides, given.swapped

    def digest(self) -> str:
        """Equal for two arrays of equal elements. All of a file that is not compressed is read."""
        found = hashed(repr(self._kind()).encode(), digest_size=16)
        given = self._given
        if given.inflate is not None:
            found.update(repr(given.sum).encode())
            return found.hexdigest()
        for at in range(given.start, given.end, AT_ONCE):
            found.update(self._file.read_all(at, min(AT_ONCE, given.end - at)))
        return found.hexdigest()

    def close(self) -> None:
        if self._inflated is not None:
            self._inflated.close()
        self._file.close()


def _open(path: str, member: str, name: str) -> InputArray:
    """The array for input `name` in FILE.npy, or a member of FILE.npz or FILE.safetensors.

    Member "": that of the input's name, or the only one. Raises InputError for whatever is
    wrong with the file, OutputError where it cannot be opened.
    """
    archive = archive_format(path)
    file = InputFile(path, name)
    try:
        if archive is None:
            return InputArray(file, npy.elements(file.read, 0, file.length, file.wrong))
        members = archive.members(file)
        if not member:
            member = next(iter(members)) if len(members) == 1 else name
        if member not in members:
            raise _no_member(file, member, list(members))
        file.label = f"{path}:{listed([member])}"
        return InputArray(file, archive.elements(file, members[member]))
    except BaseException:
        file.close()
        raise


def _no_member(file: InputFile, member: str, known: list[str]) -> InputError:
    error = file.wrong(f"has no member {member!r}", listed(known) or "any member", "none of them")
    if known:
        error.remedy = f"-i {file.name}={file.path}:{listed(known[:1])}"
    return error


def listed(names: list[str], most: int = 20) -> str:
    """Names as messages list them; those of a file may hold anything."""
    shown = [name if name.isprintable() else ascii(name) for name in names[:most]]
    return ", ".join(shown) + (", …" if len(names) > most else "")


def open_inputs(
    named: dict[str, str], whole: list[str], known: list[str] | None = None
) -> dict[str, InputArray]:
    """The inputs that were given, by name: files for one input, and files for all their members.

    An input that is named takes its own file. known: the inputs there are; None: any.
    """
    chosen = {name: split(path, existing=True) for name, path in named.items()}
    for path in whole:
        file = InputFile(path, "")
        try:
            members = list(archive_format(path).members(file))
        finally:
            file.close()
        for member in members:
            if known is not None and member not in known:
                error = file.wrong(
                    f"has a member that is not an input of the program: {listed([member])}",
                    f"inputs {listed(known)}" if known else "no inputs",
                    f"members {listed(members)}",
                )
                if known:
                    error.remedy = f"-i {known[0]}={path}:MEMBER for each input"
                raise error
            if member in chosen and member not in named:
                raise UsageError(
                    f"input {member} is given twice",
                    found=f"{chosen[member][0]} and {path}",
                    remedy=f"-i {member}=FILE for one of them",
                )
            chosen.setdefault(member, (path, member))
    return {name: _open(path, member, name) for name, (path, member) in chosen.items()}

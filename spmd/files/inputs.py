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
from codegen.suggest import nearest
from codegen.user.named import listed, of_tree, some
from spmd.files import ARCHIVES, TABLES, csv_tables, npy, npz, parquet, safetensors
from spmd.files.npy import AT_ONCE
from spmd.files.table_elements import TableElements, taking
from spmd.launch.memory import available_memory, bytes_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

NAMED = (*ARCHIVES, *TABLES)  # endings of files whose arrays have names
MAP_NORESERVE = 0x4000  # of Linux; Python's mmap has no name for it


def archive_format(path: str) -> Any:
    """Return the module that reads and lays out files of many arrays; None for a .npy file."""
    formats = zip(NAMED, (npz, safetensors, csv_tables, parquet), strict=True)
    return next((module for ending, module in formats if path.endswith(ending)), None)


def split(path: str, existing: bool) -> tuple[str, str]:
    """Return FILE.npz:MEMBER, or FILE.csv:COLUMN, in two; the member is "" where none is named.

    existing: what there is decides where the file's name ends; a file of the whole name comes
    first.
    """
    if existing and os.path.exists(path):
        return path, ""
    cuts = sorted(
        start + len(suffix)
        for suffix in NAMED
        for start in range(len(path))
        if path.startswith(f"{suffix}:", start)
    )
    real = [cut for cut in cuts if existing and os.path.isfile(path[:cut])]
    for cut in real or cuts:
        return path[:cut], path[cut + 1 :]
    return path, ""


class InputFile:
    """A file mapped for reading. data: its bytes. label: what messages call it. kind: what
    messages call its arrays, as "input".

    version: equal for two processes that have opened the same file, unless somebody deceives us.
    """

    def __init__(self, path: str, name: str, kind: str = "input") -> None:
        self.path, self.name, self.label, self.kind = path, name, path, kind
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None
        try:
            status = os.fstat(fd)
            if status.st_mode & 0o170000 != 0o100000:
                actual = "a directory, a pipe or a device"
                raise self.wrong("is not a file", "a file of arrays", actual)
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
        self._fd, self._users = fd, [1]

    def shared(self, name: str) -> InputFile:
        """Return the same file for another input: it is closed when all of them are."""
        other = object.__new__(InputFile)
        other.__dict__.update(self.__dict__, name=name, label=self.path)
        self._users[0] += 1
        return other

    def descriptor(self) -> int:
        """Return the number of the open file, for who opens it once more."""
        return self._fd

    def read(self, offset: int, count: int) -> bytes:
        """Read these bytes, as far as there are so many. Not from the mapping: another process may
        have cut the file short, and there is no message for that."""
        return os.pread(self._fd, max(0, min(count, self.length - offset)), offset)

    def read_all(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from byte `offset` on. Raises InputError where the file has
        fewer."""
        raw = self.read(offset, count)
        if len(raw) < count:
            raise self.wrong(
                "became shorter while it was read", f"{count} bytes from byte {offset}",
                str(len(raw)))
        return raw

    def memory(
        self, how: str, size: int, used: int, processes: int, available: int, remedy: str
    ) -> mmap.mmap:
        """Return room for `size` bytes, of which `used` are written, in each of these processes.
        Pages that nothing is written to take no memory. EnvironmentFault where there is too
        little."""
        text = f"{self.kind} {self.name}: {self.label} does not fit into memory {how}"
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
        fd, self._fd = self._fd, -1
        self._users[0] -= fd >= 0
        if fd >= 0 and not self._users[0]:
            if isinstance(self.data, mmap.mmap):
                self.data.close()
            os.close(fd)

    def wrong(self, problem: str, expected: str, found: str) -> InputError:
        title = f"{self.kind} {self.name}: " if self.name else f"{self.kind} "
        return InputError(f"{title}{self.label} {problem}", expected=expected, found=found)

    def _unreadable(self, error: Exception) -> OutputError:
        title = f"{self.kind} {self.name}" if self.name else self.kind
        why = error.strerror if isinstance(error, OSError) else error
        return OutputError(f"{title}: cannot open {self.path}: {why}")


class InputArray:
    """The elements of an input: buffer[start] is the first byte, `strides` are in bytes.

    swapped: their byte order is not this machine's. buffer: the mapped file; of a compressed
    member, and of elements that are converted, memory that is filled when it is first used: all of
    it, or what was reserved.
    """

    def __init__(self, file: InputFile, elements: npy.Elements) -> None:
        self.path, self._file, self._elements = file.label, file, elements
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

    def convert(self, dtype: str, dims: int) -> None:
        """Convert the elements to this dtype, where nothing is lost by that; else they stay as they
        are. dims: of what the program declares."""
        if isinstance(self._elements, TableElements):
            self._use(self._elements.typed(dtype, dims))
        elif self.dtype != dtype:
            from spmd.files.convert import converted  # NumPy, where dtypes differ

            if (elements := converted(self._file, self._elements, dtype)) is not None:
                self._use(elements)

    def way_out(self, dims: int) -> str:
        """Return what to try where the shape is not that of an input of so many dims; or ""."""
        elements = self._elements
        return elements.way_out(dims) if isinstance(elements, TableElements) else ""

    def reserve(self, low: int, high: int, processes: int, taken: int) -> None:
        """Note that only bytes low to high of what is put into memory are used here, as many in
        each of the other processes of this host; together they have `taken` since this input was
        opened."""
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
        """Return a key that is equal in two processes if they read the same array of the same
        file."""
        elements = self._elements
        return (*self._file.version, elements.start, elements.inflate is not None, elements.sum,
                *self._kind())

    def _kind(self) -> tuple[Any, ...]:
        elements = self._elements
        return elements.dtype, elements.shape, elements.strides, elements.swapped

    def digest(self) -> str:
        """Return a hash that is equal for two arrays of equal elements. All of a file that is not
        compressed is read."""
        hasher = hashed(repr(self._kind()).encode(), digest_size=16)
        elements = self._elements
        if isinstance(elements, TableElements):
            return elements.digest()
        if elements.inflate is not None:
            hasher.update(repr(elements.sum).encode())
            return hasher.hexdigest()
        for offset in range(elements.start, elements.end, AT_ONCE):
            hasher.update(self._file.read_all(offset, min(AT_ONCE, elements.end - offset)))
        return hasher.hexdigest()

    def close(self) -> None:
        if self._inflated is not None:
            self._inflated.close()
        self._file.close()


def _open(file: InputFile, members: dict[str, Any], member: str, name: str) -> InputArray:
    """Return the array for input `name` in FILE.npy, or a member of FILE.npz or FILE.safetensors,
    or a column of a table.

    Member "": that of the input's name, or the only one; of a table, all columns. Raises InputError
    for whatever is wrong with the file.
    """
    archive = archive_format(file.path)
    if archive is None:
        return InputArray(file, npy.elements(file.read, 0, file.length, file.wrong))
    if not member and file.path.endswith(TABLES):
        return InputArray(file, archive.whole(file, members))
    if not member:
        member = next(iter(members)) if len(members) == 1 else name
    if member not in members:
        raise _no_member(file, member, list(members))
    file.label = f"{file.path}:{some([member])}"
    return InputArray(file, archive.elements(file, members[member]))


def _no_member(file: InputFile, member: str, known: list[str]) -> InputError:
    error = file.wrong(f"has no member {member!r}", some(known) if known else "any member",
                       "none of them")
    separator = next((mark for mark in ";\t|" if len(known) == 1 and mark in known[0]), "")
    if separator and file.path.endswith(".csv"):
        error.remedy = f"a file with ',' between its fields: this one has {separator!r}"
    elif known:
        error.remedy = taking(file, nearest(member, known) or known[0])
    return error


class _Archives:
    """Files that are open, and the members of those that have some: each is read once."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[InputFile, dict[str, Any]]] = {}

    def file(self, path: str, name: str) -> tuple[InputFile, dict[str, Any]]:
        """Return the open file for input `name`, and its members. InputError for a damaged one,
        OutputError for one that is not there."""
        if path not in self.files:
            file, archive = InputFile(path, name), archive_format(path)
            self.files[path] = file, {}
            if archive is not None:
                self.files[path] = file, archive.members(file)
        file, members = self.files[path]
        return file.shared(name), members

    def close(self) -> None:
        for file, _ in self.files.values():
            file.close()


def open_inputs(
    named: dict[str, str], whole: list[str], known: list[str] | None = None
) -> dict[str, InputArray]:
    """Return the inputs that were given, by name: files for one input, for a tree of them, and
    files for all their members.

    An input that is named takes its own file. known: the inputs there are; None: any.
    """
    archives, chosen = _Archives(), dict[str, tuple[str, str]]()
    try:
        for name, path in named.items():
            leaves = [] if known is None or name in known else of_tree(name, known)
            files = {name: split(path, existing=True)}
            if leaves:
                files = _members_of_tree(archives, name, *files[name], leaves)
            _choose(chosen, files)
        mine = set(chosen)
        for path in whole:
            file, members = archives.file(path, "")
            if path.endswith(TABLES) and (name := _columns_of_one(members, known)):
                _choose(chosen, {name: (path, "")} if name not in mine else {})
                continue
            for member in members:
                if known is not None and member not in known:
                    raise _no_input(file, member, list(members), known)
            _choose(chosen, {member: (path, member) for member in members if member not in mine})
        return {name: _open(*archives.file(path, name), member, name)
                for name, (path, member) in chosen.items()}
    finally:
        archives.close()


def _choose(chosen: dict[str, tuple[str, str]], files: dict[str, tuple[str, str]]) -> None:
    for name, (path, member) in files.items():
        if name in chosen:
            raise UsageError(f"input {name} is given twice", found=f"{chosen[name][0]} and {path}",
                             remedy=f"-i {name}=FILE for one of them")
        chosen[name] = path, member


def _no_input(file: InputFile, member: str, members: list[str], known: list[str]) -> InputError:
    error = file.wrong(
        f"has a member that is not an input of the program: {some([member])}",
        f"inputs {listed(known)}" if known else "no inputs", f"members {some(members)}",
    )
    if known:
        first = next((name for name in known if name in members), known[0])
        error.remedy = f"-i {first}={file.path}:{first if first in members else 'MEMBER'}"
        if file.path.endswith(TABLES):
            error.remedy += (f" for one column, -i {first}={file.path} for all of them, as a 2-D "
                             "array")
        else:
            error.remedy += " for each input"
    return error


def _columns_of_one(members: Collection[str], known: list[str] | None) -> str:
    """Return the input whose columns NAME_0, NAME_1, … are all that a table has, or ""."""
    return next((name for name in known or () if [*members] == [
        f"{name}_{k}" for k in range(len(members))]), "")


def _members_of_tree(
    archives: _Archives, name: str, path: str, prefix: str, leaves: list[str]
) -> dict[str, tuple[str, str]]:
    """Return the members of a file for the inputs of a tree: those named like them, or like what
    stands behind the tree's name; with a prefix those that have it instead. Neither more nor
    less."""
    if archive_format(path) is None:
        raise UsageError(f"input {name} is a tree of {len(leaves)} arrays", found=path,
                         expected="a .safetensors or .npz file")
    file, members = archives.file(path, name)
    inside = of_tree(prefix or name, members)
    begin = len(prefix or name) + 1 if inside or prefix else 0
    stored = {member[begin:]: member for member in inside or ([] if prefix else members)}
    wanted = {leaf[len(name) + 1 :]: leaf for leaf in leaves}
    for missing in (k for k in wanted if k not in stored):
        raise file.wrong(f"has nothing for {wanted[missing]}", some(wanted), some(stored))
    for other in (k for k in stored if k not in wanted):
        raise file.wrong(f"has {some([other])}, of which the program knows nothing", some(wanted),
                         some(stored))
    return {leaf: (path, stored[rest]) for rest, leaf in wanted.items()}

"""Files that outputs go to: one or several arrays each, written in place part by part.

In: paths as `-o` has them, outputs with dtype and shape. Out: for each the file that takes it.
Always holds: a file has its whole length before anything is written (a full disk is noticed then),
lies in the target's directory under another name, and replaces the target in one step.
"""

from __future__ import annotations

import mmap
import os
from zlib import crc32

from codegen.errors import OutputError, UsageError
from codegen.user.named import of_tree
from spmd.files import ENDINGS, TABLES, is_series, npy, parquet
from spmd.files.frames import frame_number
from spmd.files.inputs import archive_format, split
from spmd.files.inputs import open_inputs as open_inputs  # for who needs both
from spmd.files.whole import keep_mode, no_folder, part_of, refuse_replacing, whole
from spmd.launch.memory import bytes_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    Array = tuple[str, str, tuple[int, ...]]

AT_ONCE = 1 << 24  # bytes that are summed between two signals


def check_overwrites(options: argparse.Namespace, save: Mapping[str, str]) -> None:
    """Raises UsageError where `run` would write over what it reads, or in no format. save: paths of
    frames, by their series."""
    for name, path in (*options.output.items(), *(("", path) for path in options.output_all)):
        if not is_series(path):
            check_ending(name, path)
    sources = {program_file(options.image): "what runs"}
    for name, path in options.input.items():
        sources[split(path, existing=True)[0]] = f"the file of input {name}"
    sources |= dict.fromkeys(options.input_all, "a file of inputs")
    if options.save_state:
        refuse_replacing(options.save_state, sources)  # the state's own file is read by then
    sources |= dict.fromkeys(filter(None, [options.state, options.save_state]),
                             "a file of the state")
    paths = [split(path, existing=False)[0] for path in options.output.values()]
    for path in [*paths, *options.output_all, *filter(None, [options.timeline])]:
        refuse_replacing(path, sources)
    files = {**sources, **dict.fromkeys((*paths, *options.output_all), "the file of an output")}
    for name, path in save.items():
        for file, role in files.items():
            if frame_number(path, file) is not None:
                raise UsageError(f"{file} is {role}: save {name} would replace it by a frame",
                                 expected="a folder for frames alone", found=path,
                                 remedy=f"-o '{name}={name}/{{}}.npy'")


def check_ending(name: str, path: str) -> None:
    """Refuses an output whose file has an ending that is of no format. Raises UsageError."""
    file, _ = split(path, existing=False)
    if file.endswith(ENDINGS):
        return
    stem, suffix = os.path.splitext(file)
    raise UsageError(
        f"output {name}: {path} names no format in which arrays are written",
        expected=f"a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}",
        found=suffix or "no ending", remedy=f"-o {name}={stem}.npy",
    )


def program_file(path: str) -> str:
    """Return FILE.py of FILE.py:NAME; another path as it is."""
    return path.partition(":")[0] if ".py:" in path else path


def open_outputs(
    named: dict[str, str], whole: list[str], outputs: list[Array]
) -> list[OutputFile | None]:
    """Return, for each output (name, dtype, shape), the file that takes it; None where there is
    none.

    named: by output, FILE.npy or FILE.npz[:MEMBER] or FILE.safetensors[:MEMBER]. whole: a file for
    all the others. Raises UsageError where files or members are taken twice.
    """
    if len(whole) > 1:
        raise UsageError(f"{whole[0]} and {whole[1]} cannot both take all outputs",
                         remedy="-o NAME=FILE")
    if whole and not outputs:
        raise UsageError(f"-o {whole[0]}: the program has no outputs")
    places: dict[str, str] = {}  # of files as given, by their real path
    members: dict[str, dict[str, Array]] = {}
    named = _of_leaves(named, [name for name, _, _ in outputs])
    for name, dtype, shape in outputs:
        if name not in named and not whole:
            continue
        path, member = split(named[name], existing=False) if name in named else (whole[0], "")
        real = os.path.realpath(path)
        places.setdefault(real, path)
        inside = members.setdefault(real, {})
        member = member or name
        archive = archive_format(path)
        if inside and (archive is None or archive is not archive_format(places[real])):
            raise _taken(next(iter(inside.values()))[0], name, "cannot share a file", path)
        if member in inside:
            raise _taken(inside[member][0], name, "cannot both be one member", f"{path}:{member}",
                         f"-o {inside[member][0]}={path} -o {name}={path}, where each has its name")
        inside[member] = (name, dtype, shape)
    files = {
        array[0]: file
        for real, inside in members.items()
        for file in [OutputFile(places[real], inside)]
        for array in inside.values()
    }
    return [files.get(name) for name, _, _ in outputs]


def _of_leaves(named: dict[str, str], known: list[str]) -> dict[str, str]:
    """Return files of single outputs, where they are given for trees: members are called like
    these."""
    files: dict[str, str] = {}
    for name, file in named.items():
        leaves = [] if name in known else of_tree(name, known)
        if not leaves:
            files[name] = file
            continue
        path, prefix = split(file, existing=False)
        if archive_format(path) is None:
            raise UsageError(f"output {name} is a tree of {len(leaves)} arrays", found=path,
                             expected="a .safetensors or .npz file")
        for leaf in leaves:
            if leaf in named:
                raise UsageError(f"output {leaf} is given twice", found=f"{name} and {leaf}",
                                 remedy="a file for one of them")
            files[leaf] = f"{path}:{(prefix or name) + leaf[len(name) :]}"
    return files


def _taken(
    first: str, second: str, clash: str, found: str,
    remedy: str = "-o NAME=FILE.npz, which holds several",
) -> UsageError:
    return UsageError(f"outputs {first} and {second} {clash}", expected="a place for each",
                      found=found, remedy=remedy)


class OutputFile:
    """A file under construction: `create` in one process, `attach` in every, then `commit`.

    given: its path. members: outputs (name, dtype, shape) by their name inside of the file.
    starts: by output, where its elements begin.
    """

    def __init__(self, given_path: str, members: dict[str, Array]) -> None:
        self.given_path, self.path = given_path, os.path.realpath(given_path)
        names = [name for name, _, _ in members.values()]
        self.title = f"output{'s' if len(names) > 1 else ''} {', '.join(names)}"
        self.arrays = members
        self.members = {name: member for member, (name, _, _) in members.items()}
        archive = archive_format(given_path)
        try:
            self.frame: npy.Frame = (archive or npy).frame(
                [(member, dtype, shape) for member, (_, dtype, shape) in members.items()]
            )
        except UnicodeEncodeError:
            raise UsageError(f"{self.title}: no name for a member: {ascii(list(members))}",
                             expected="text in UTF-8") from None
        self.starts = dict(zip(names, self.frame.starts))
        self.part, self.fd = "", -1

    def check(self) -> None:
        """Refuses what can be refused before anything has been computed."""
        if self.given_path.endswith(".parquet"):
            parquet.check_arrow()
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise self._failed(no_folder(folder) or f"there is no directory {folder}")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise self._failed("it exists and is not a file")
        if not os.access(folder, os.W_OK):
            raise self._failed(f"directory {folder} may not be written to")
        space = os.statvfs(folder)
        have = space.f_bavail * space.f_frsize
        if space.f_blocks and have < self.frame.size:
            raise self._failed(f"needs {bytes_text(self.frame.size)}, have {bytes_text(have)}")

    def create(self, named: bool = True) -> str:
        """Makes the file, with all of its space; returns a path by which processes can open it.

        named: under another name, for other hosts. Else without any, where the file system can do
        that: whatever kills this process then leaves nothing.
        """
        if self.part:
            return self.part
        try:
            fd = -1 if named else self._unnamed()
            if fd < 0:
                self.part = part_of(self.path)
                fd = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self.part = ""
            raise self._failed(error.strerror) from None
        self.fd = fd
        try:
            os.posix_fallocate(fd, 0, self.frame.size)
            for offset, piece in self.frame.pieces:
                os.pwrite(fd, piece, offset)
        except OSError as error:
            self.discard()
            raise self._failed(error.strerror) from None
        return self.part

    def _unnamed(self) -> int:
        """Return a file in the target's directory that is gone when it is closed; -1: not there."""
        try:
            fd = os.open(os.path.dirname(self.path), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError:
            return -1
        self.part = f"/proc/{os.getpid()}/fd/{fd}"
        return fd

    def attach(self, part: str) -> mmap.mmap:
        """Return the whole file, mapped for writing."""
        try:
            fd = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            try:
                return mmap.mmap(fd, 0)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failed(error.strerror) from None

    def commit(self) -> None:
        """Gives the whole file its name; the one that was there before is replaced."""
        if self.given_path.endswith(TABLES):
            self._tabulate()
            return
        if self.frame.sums:
            self._sum()
        try:
            keep_mode(self.fd, self.path)
            os.fsync(self.fd)
            if self.part.startswith("/proc/"):
                name = part_of(self.path)
                # Only with a folder given does Python follow the link that /proc shows.
                os.link(self.part, name, src_dir_fd=self.fd, follow_symlinks=True)
                self.part = name
            os.replace(self.part, self.path)
        except OSError as error:
            self.discard()
            raise self._failed(error.strerror) from None
        self._close()

    def _tabulate(self) -> None:
        """Writes the table whose columns the elements are."""
        from spmd.files import written_tables  # NumPy, in the process that writes a table

        arrays = [(member, dtype, shape) for member, (_, dtype, shape) in self.arrays.items()]
        try:
            with self.attach(self.part) as view, whole(self.path) as file:
                written_tables.write(self.path, file, arrays, self.frame.starts, view)
        except OSError as error:
            raise self._failed(error.strerror) from None
        finally:
            self.discard()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.part, self.fd = "", -1

    def _sum(self) -> None:
        """Reads back what was written, for the CRC-32 of every member."""
        with self.attach(self.part) as view, memoryview(view) as data:
            for first, end, places in self.frame.sums:
                crc = 0
                for offset in range(first, end, AT_ONCE):
                    crc = crc32(data[offset : min(offset + AT_ONCE, end)], crc)
                for place in places:
                    data[place : place + 4] = crc.to_bytes(4, "little")

    def reading(self, name: str, dtype: str) -> str:
        """Return how NumPy reads an output of a type that it does not know; "" where it does."""
        if dtype != "bfloat16" or self.given_path.endswith(".safetensors"):
            return ""
        member = f"[{self.members[name]!r}]" if archive_format(self.given_path) else ""
        return f"numpy.load({self.path!r}){member}.view(ml_dtypes.bfloat16)"

    def discard(self) -> None:
        """Removes an unfinished file; the target stays as it was."""
        if self.part and not self.part.startswith("/proc/"):
            try:
                os.unlink(self.part)
            except OSError:
                pass
        self._close()

    def _failed(self, why: str | None) -> OutputError:
        return OutputError(f"{self.title}: cannot write {self.path}: {why}")

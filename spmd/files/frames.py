"""Frames that a program saves while it runs: files frames/0.npy, frames/1.npy …, or one FILE.zarr.

In: a path, and parts of frames in any order. Out: files; of zarr, its version 2: a chunk for each
frame, not compressed, written by hand.
Always holds: a frame is there with all of its bytes, or not at all: it is written under another
name, and takes its own once all parts are in it.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress

from codegen.errors import InputError, OutputError, UsageError
from codegen.suggest import meant
from spmd.files import ZARR, is_series, npy
from spmd.files.whole import ENDING, no_folder, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

METADATA, ATTRIBUTES = ".zarray", ".zattrs"  # files of a zarr array
# What a run leaves of these that is killed while it writes them.
LEFT = re.compile(rf"\.({re.escape(METADATA)}|{re.escape(ATTRIBUTES)})\.\d+\.[0-9a-f]{{8}}\.part")
MARK = "spmd_save"  # in the attributes of an array that is ours, which a later run may replace


def check_distinct(paths: Mapping[str, str]) -> None:
    """Raise UsageError for two saves whose frames may have the same file names."""
    names = list(paths)
    for k, name in enumerate(names):
        for other in names[:k]:
            if _may_meet(_affixes(paths[name]), _affixes(paths[other])):
                raise UsageError(f"frames of {other} and {name} cannot have the same files",
                                 expected="a path for each", found=paths[name],
                                 remedy=f"-o '{name}={name}/{{}}.npy', or -o {name}={name}.zarr")


def check_path(name: str, pattern: str, dtype: str) -> None:
    """Raise UsageError for a path that is no series of files, and for a dtype that zarr does not
    know. name: of the save, or ""."""
    text = f"-o {name}={pattern}" if name else pattern
    if pattern.endswith(ZARR):
        if dtype == "bfloat16":
            raise UsageError(f"save {name}: zarr knows no bfloat16", found=text,
                             expected="another dtype, or .npy files",
                             remedy=f"-o '{name}=frames/{{}}.npy'")
        return
    base = os.path.basename(pattern)
    folder, numbers = os.path.dirname(pattern), (0, 1, 12345)
    try:
        files = [os.path.join(folder, base.format(k)) for k in numbers]
    except (ValueError, LookupError, AttributeError):
        files = []
    numbered = [frame_number(pattern, file) for file in files] == [*numbers]
    if not numbered or not pattern.endswith(".npy") or "{" in folder:
        raise UsageError(f"save {name} needs a file for each frame, or one that holds all",
                         expected="frames/{}.npy, with {} for the number of a frame; or "
                         "FILE.zarr", found=text,
                         remedy=f"-o '{name}=frames/{{}}.npy', -o {name}=FILE.zarr")


def check_paths(manifest: Mapping[str, Any], paths: Mapping[str, str]) -> None:
    """Raise UsageError for a name that the program saves nothing under, for a path that is none of
    frames, and for two saves with one path."""
    rows = {row["name"]: row for row in manifest["saves"]}
    for name, path in paths.items():
        if name not in rows:
            output = any(row["name"] == name for row in manifest["outputs"])
            raise UsageError(f"the program saves nothing under {name!r} while it runs",
                             expected=", ".join(rows) or
                             f'spmd.save("{name}", …) in a loop that may have turns',
                             found=f"{name}={path}",
                             remedy=f"-o {name}={name}.npy: it is an output" if output else
                             meant(name, rows))
        if not isinstance(path, str) or not is_series(path):
            raise UsageError(f"{name} is saved as many frames", found=f"{path!s}",
                             expected="frames/{}.npy, with {} for the number of a frame; or "
                             "FILE.zarr", remedy=f"-o '{name}=frames/{{}}.npy'")
        check_path(name, path, rows[name]["dtype"])
    check_distinct(paths)


def no_place(path: str) -> str:
    """Return why a series cannot have this path: its folder cannot be made, or is one of others.
    Else return ""."""
    folder, is_zarr = _affixes(path)[0], path.endswith(ZARR)
    if is_zarr and os.path.lexists(folder) and MARK not in _attributes(folder) and (
            not os.path.isdir(folder) or not all(map(LEFT.fullmatch, os.listdir(folder)))):
        return "it is there, and nothing that spmd.save has written"
    return no_folder(folder)


def _attributes(folder: str) -> dict[str, Any]:
    """Return what a zarr array says of itself; of anything else nothing."""
    attributes = None
    with suppress(OSError, ValueError):
        with open(os.path.join(folder, ATTRIBUTES), "rb") as file:
            attributes = json.loads(file.read())
    return attributes if isinstance(attributes, dict) else {}


def frame_number(path: str, file: str) -> int | None:
    """Return the number of the frame that a file is by its name, of a series with this path; None
    where it is none."""
    folder, before, after = _affixes(path)
    name = os.path.basename(file)
    inner = name[len(before) : len(name) - len(after)]
    named_so = inner.isdecimal() and name == before + inner + after
    is_here = os.path.realpath(os.path.dirname(file) or ".") == folder
    return int(inner) if named_so and is_here else None


def _affixes(path: str) -> tuple[str, str, str]:
    """Return the folder of a series, and what its files are called before and behind a number."""
    if path.endswith(ZARR):
        return os.path.realpath(path), "", ""
    before, _, rest = os.path.basename(path).partition("{")
    return os.path.realpath(os.path.dirname(path) or "."), before, rest.partition("}")[2]


def _may_meet(first: tuple[str, str, str], second: tuple[str, str, str]) -> bool:
    """Return whether files of two series may have one name: what one has more in front of its
    number, or behind it, are digits."""
    (folder, before, after), (folder_2, before_2, after_2) = first, second
    short, long = sorted((before, before_2), key=len)
    low, high = sorted((after, after_2), key=len)
    more = long[len(short) :] + high[: len(high) - len(low)]
    return (folder == folder_2 and long.startswith(short) and high.endswith(low)
            and (not more or more.isdecimal()))


class FrameFiles:
    """The files of one series. name: of the save; shape, dtype: of each frame.

    Process 0 begins and commits; all processes write parts, to files of the same names.
    """

    def __init__(self, name: str, pattern: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.name, self.pattern, self.dtype, self.shape = name, pattern, dtype, shape
        self.is_zarr, self.nonce = pattern.endswith(ZARR), ""
        self.size = npy.SIZES[dtype] * npy.element_count(shape)
        self.head = b"" if self.is_zarr else npy.header(dtype, shape)
        self.open: dict[int, int] = {}  # descriptors, by the numbers of frames
        self.others: Callable[[], int] | None = None  # frames of which all others wrote their parts
        check_path(name, pattern, dtype)
        self.folder = os.path.realpath(pattern if self.is_zarr else os.path.dirname(pattern) or ".")

    # ---- names -----------------------------------------------------------------------------------

    def path(self, frame: int) -> str:
        """Return the path of a frame that is whole."""
        if self.is_zarr:
            return os.path.join(self.folder, ".".join(map(str, (frame, *[0] * len(self.shape)))))
        return os.path.join(self.folder, os.path.basename(self.pattern).format(frame))

    def part(self, frame: int) -> str:
        """Return the path of a frame while it is written: the same in all processes."""
        return self._hidden(f"{frame}{ENDING}")

    def done_path(self, process: int) -> str:
        """Return where a process says how many frames it has written its parts of."""
        return self._hidden(f"{process}.done")

    def _hidden(self, rest: str) -> str:
        return os.path.join(self.folder, f".{self.name}.{self.nonce}.{rest}")

    def _numbers(self) -> Iterator[tuple[int, str]]:
        """Yield number and path of each frame in the folder, also from earlier runs."""
        digits = r"(\d+)" + r"\.0" * len(self.shape)
        if not self.is_zarr:
            before, _, after = os.path.basename(self.pattern).partition("{")
            digits = re.escape(before) + r"(\d+)" + re.escape(after.partition("}")[2])
        for entry in os.listdir(self.folder):
            if (match := re.fullmatch(digits, entry)) is not None:
                path = os.path.join(self.folder, entry)
                if path == self.path(int(match[1])):
                    yield int(match[1]), path

    # ---- process 0, before the run ---------------------------------------------------------------

    def begin(self, frames: int, nonce: str) -> None:
        """Makes the folder, and removes all frames but the first `frames`, which a run that goes on
        has written. Raises OutputError, and InputError where these are not all there."""
        self.nonce = nonce
        try:
            self._make_folder()
            self._remove_leftovers()
            old = dict(self._numbers())
            missing = [k for k in range(frames) if k not in old and self.size]
            if missing:
                raise InputError(f"save {self.name}: the run goes on with frame {frames}",
                                 expected=f"the frames before it, in {self.pattern}",
                                 found=f"no frame {missing[0]}",
                                 remedy="the path at which the run that was kept has saved them")
            if frames:
                self._describe(frames)  # first: what it does not name is no frame
            elif self.is_zarr:  # a full disk has room for it once old frames are gone
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, METADATA))
            for k, path in old.items():
                if k >= frames:
                    os.unlink(path)
            if not frames:
                self._describe(0)
        except OSError as error:
            raise self.failed(error.strerror) from None

    def _remove_leftovers(self) -> None:
        """Remove what runs have left that were killed: parts of frames and of metadata."""
        mine = re.escape(f".{self.name}.") + r"[0-9a-f]{8}\.\d+\.(part|done)"
        for entry in os.listdir(self.folder):
            if re.fullmatch(mine, entry) or (self.is_zarr and LEFT.fullmatch(entry)):
                os.unlink(os.path.join(self.folder, entry))

    def _make_folder(self) -> None:
        if why := no_place(self.pattern):
            raise self.failed(why)
        os.makedirs(self.folder, exist_ok=True)
        attributes = {MARK: {"name": self.name}}
        if self.is_zarr and _attributes(self.folder) != attributes:
            self._write(ATTRIBUTES, attributes)

    def _describe(self, frames: int) -> None:
        """Write the metadata that says how many frames there are."""
        if self.is_zarr:
            self._write(METADATA, {
                "zarr_format": 2, "shape": [frames, *self.shape],
                "chunks": [1, *(max(1, extent) for extent in self.shape)],
                "dtype": npy.descr_of(self.dtype), "compressor": None, "fill_value": None,
                "filters": None, "order": "C", "dimension_separator": ".",
            })

    def _write(self, name: str, attributes: dict[str, Any]) -> None:
        with whole(os.path.join(self.folder, name)) as file:
            file.write(json.dumps(attributes, indent=1).encode())

    # ---- while it runs ---------------------------------------------------------------------------

    def write(self, frame: int, offset: Sequence[int], extent: Sequence[int], data: Any) -> None:
        """Write contiguous elements, in row-major order, at their offset in a frame.
        Raises OutputError with the number of the frame."""
        try:
            if frame not in self.open:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self.open[frame] = fd = os.open(self.part(frame), flags, 0o666)
                if os.fstat(fd).st_size < len(self.head) + self.size:
                    os.ftruncate(fd, len(self.head) + self.size)
            with memoryview(data) as view:
                for position, low, high in self._rows(offset, extent):
                    _write_all(self.open[frame], view[low:high], position)
        except OSError as error:
            raise self.failed(error.strerror, frame) from None

    def _rows(self, offset: Sequence[int], extent: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield the contiguous pieces of a part, in bytes: the position in the file, the begin and
        the end in the part."""
        item, dims = npy.SIZES[self.dtype], len(self.shape)
        strides = npy.contiguous_strides(self.shape, item)
        inner = dims  # dims from here on are whole: a row goes through them
        while inner and (offset[inner - 1], extent[inner - 1]) == (0, self.shape[inner - 1]):
            inner -= 1
        inner = max(0, inner - 1)
        length = item * npy.element_count(extent[inner:])
        start = len(self.head) + sum(o * s for o, s in zip(offset, strides, strict=True))
        for k in range(npy.element_count(extent[:inner]) if length else 0):
            position, rest = start, k
            for d in range(inner - 1, -1, -1):
                rest, index = divmod(rest, extent[d])
                position += index * strides[d]
            yield position, k * length, (k + 1) * length

    def close(self, frame: int) -> None:
        """Flush to disk the parts of a frame that this process has written. Raises OutputError."""
        fd = self.open.pop(frame, -1)
        if fd >= 0:
            try:
                os.fdatasync(fd)
            except OSError as error:
                raise self.failed(error.strerror, frame) from None
            finally:
                os.close(fd)

    def commit(self, frame: int) -> None:
        """Give a frame its final name, once all processes have written their parts. Raises
        OutputError; the frame is not there then."""
        try:
            if self.head or self.size:
                new = 0 if self.size else os.O_CREAT  # a frame without elements has no parts
                fd = os.open(self.part(frame), os.O_RDWR | new | os.O_CLOEXEC, 0o666)
                try:
                    if self.head:
                        _write_all(fd, memoryview(self.head), 0)
                        os.fdatasync(fd)
                finally:
                    os.close(fd)
                os.replace(self.part(frame), self.path(frame))
            try:
                self._describe(frame + 1)
            except OSError:
                if self.size:
                    os.unlink(self.path(frame))  # without metadata it is none
                raise
        except OSError as error:
            raise self.failed(error.strerror, frame) from None

    def discard(self) -> None:
        """Remove the frame that this process was writing."""
        for frame, fd in self.open.items():
            os.close(fd)
            with suppress(OSError):
                os.unlink(self.part(frame))
        self.open.clear()

    def remove_parts(self, frames: int) -> None:
        """Remove the parts of all frames but the first `frames`. Raises OutputError."""
        mine = re.escape(f".{self.name}.{self.nonce}.") + r"(\d+)" + re.escape(ENDING)
        try:
            for entry in os.listdir(self.folder):
                match = re.fullmatch(mine, entry)
                if match and int(match[1]) >= frames:
                    os.unlink(os.path.join(self.folder, entry))
        except OSError as error:
            raise self.failed(error.strerror) from None

    def said(self, frames: int) -> str:
        """Return a line that says how many frames there are, and where."""
        extents = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return (f"{self.name}: {frames} frame{'s' * (frames != 1)} of {self.dtype} ({extents}) in "
                f"{self.pattern}")

    def failed(self, why: str | None, frame: int | None = None) -> OutputError:
        which, earlier = "" if frame is None else f", frame {frame}", ""
        if frame:
            there = frame if self.others is None else min(frame, self.others())
            earlier = ("; earlier ones are whole" if there == frame else
                       f"; the first {there} are whole")
        return OutputError(f"save {self.name}{which}: cannot write {self.pattern}: {why}{earlier}")


def _write_all(fd: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(fd, data, position)
        data, position = data[count:], position + count


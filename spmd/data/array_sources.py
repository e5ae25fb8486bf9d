"""Sources of arrays and numbers: memory, .npy, .npz and .safetensors files, mapped where it goes.

In: arrays whose first dim counts examples. Out: examples whose fields are their rows, views that
cannot be written.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from codegen.errors import UsageError
from spmd.data.computing import dtype_of
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import (
    Digest,
    PlainFile,
    Record,
    absolute,
    caller,
    made_once,
    short,
    unreadable,
)
from spmd.files.safetensors import DTYPES, LONGEST_HEADER, METADATA


class Rows(Record):
    """Examples of arrays that a function of a batch gets: `rows.x` has a row for each of them.

    It is a sequence too: `rows[0].x` is the first one's.
    """

    __slots__ = ("_indices",)

    def __init__(self, fields: dict[str, Any], indices: list[int]) -> None:
        super().__init__(fields, f"{len(indices)} examples")
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._fields[key]
        return Record({f: a[key] for f, a in self._fields.items()}, _row(self._indices[key]))

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))


class _Arrays(ExampleSource):
    def __init__(self, source: Any) -> None:
        self.place = caller()
        if isinstance(source, str | os.PathLike):
            path = absolute(source)
            self._make = made_once(lambda: _checked(self, _of_file(self, path)))
        else:
            kept = {
                str(name): absolute(a) if isinstance(a, str | os.PathLike) else a
                for name, a in source.items()
            }
            self._make = made_once(lambda: _checked(self, _each(self, kept)))
        self._digest = made_once(self._sum)
        self.files: list[PlainFile] = []  # that are mapped: they show what is written to them

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = self._make()
        for file in self.files:
            file.check_unchanged()
        return arrays

    def length(self) -> int:
        return int(next(iter(self._make().values())).shape[0])

    def get(self, index: int) -> Record:
        return Record({name: a[index] for name, a in self._arrays().items()}, self.name(index))

    def get_many(self, indices: list[int]) -> Rows:
        chosen = np.asarray(indices, np.int64)
        fields = {name: a[chosen] for name, a in self._arrays().items()}
        return Rows(fields, indices)

    def name(self, index: int) -> str:
        return _row(index)

    def digest(self) -> str:
        return str(self._digest())

    def _sum(self) -> str:
        digest = Digest("arrays")
        for name, a in sorted(self._make().items()):
            digest.add(name, a.dtype, a.shape)
            flat = a.reshape(-1)
            size = max(a.dtype.itemsize, 1)
            digest.add_samples(
                a.nbytes,
                lambda start, n, flat=flat, size=size: flat[start // size : -(-(start + n) // size)]
                .tobytes())
        return digest.text()


def _row(index: int) -> str:
    return f"row {index}"


def arrays(source: Any = None, /, **fields: Any) -> ExampleSource:
    """Return a source of arrays with equally many rows: a dict, a file, or fields by name.

    source: {name: array or path of a .npy file}, or the path of a .npz, .safetensors or .npy file.
    Files are mapped, not read, where their arrays are stored plainly; members of a compressed
    .npz are read into memory. An example has a field for each array: its row, which cannot be
    written. The field of a .npy file is called as the file is.

    Raises InputError for a file that cannot be read, or arrays with unequal numbers of rows.

    ::

        >>> source = data.arrays(x=np.eye(3), y=np.arange(3))
        >>> source.length(), source.get(1).x.tolist(), int(source.get(1).y)
        (3, [0.0, 1.0, 0.0], 1)
    """
    is_known = isinstance(source, Mapping | str | os.PathLike | None)
    if (source is None) == (not fields) or not is_known:
        raise UsageError(
            "data.arrays gets arrays by name, or the path of a file", place=caller(),
            expected="data.arrays(x=…, y=…), data.arrays({'x': …}) or data.arrays('set.npz')",
            found=f"{type(source).__name__} and {len(fields)} names")
    return _Arrays(fields if source is None else source)


def _checked(source: ExampleSource, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    if not arrays:
        raise source.wrong("there is no array in the source", "one or more", "none")
    for name, a in arrays.items():
        if a.ndim == 0 or a.dtype.hasobject:
            raise source.wrong(
                f"array {name!r} has no rows that can be examples",
                "a dim that counts examples, and numbers or strings of fixed length",
                f"{a.dtype} {a.shape}", "np.asarray(…, dtype=…)")
        a.flags.writeable = False
    rows = {name: a.shape[0] for name, a in arrays.items()}
    if len(set(rows.values())) > 1:
        raise source.wrong(
            "arrays of a source have unequal numbers of rows", "one number",
            ", ".join(f"{name}: {n}" for name, n in rows.items()))
    return arrays


def _each(source: _Arrays, fields: dict[str, Any]) -> dict[str, Any]:
    arrays = {}
    for name, a in fields.items():
        if isinstance(a, str):
            members = _of_file(source, a)
            if len(members) != 1:
                raise source.wrong(f"{short(a)} has several arrays", "one", ", ".join(members))
            arrays[name] = next(iter(members.values()))
        else:
            arrays[name] = np.asarray(a).view()
    return arrays


def _of_file(source: _Arrays, path: str) -> dict[str, Any]:
    read = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
    ending = os.path.splitext(path)[1]
    if ending not in read:
        raise source.wrong(
            f"{short(path)} is no file of arrays that is known", ", ".join(read), ending or "none")
    file = PlainFile(path, source.wrong)
    file.check_unchanged()  # from here on
    source.files.append(file)
    try:
        return read[ending](file, path)
    except OSError as error:
        raise unreadable(source.wrong, path, error) from None
    except Exception as error:  # damaged bytes make NumPy and zipfile raise a dozen kinds
        raise source.wrong(
            f"{short(path)} is damaged, or no {ending} file", "arrays of numbers",
            str(error) or type(error).__name__,
        ) from None


def _npy(_: PlainFile, path: str) -> dict[str, Any]:
    name = os.path.splitext(os.path.basename(path))[0]
    return {name: np.load(path, mmap_mode="r", allow_pickle=False)}


def _npz(file: PlainFile, path: str) -> dict[str, Any]:
    """Return the arrays of an archive: those stored plainly are mapped where they lie, the others
    read."""
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as stored:
                version = np.lib.format.read_magic(stored)
                header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0)
                    else np.lib.format.read_array_header_2_0)
                shape, fortran, dtype = header(stored)
                name = member.filename.removesuffix(".npy")
                if member.compress_type != zipfile.ZIP_STORED or dtype.hasobject or not all(shape):
                    stored.seek(0)
                    arrays[name] = np.lib.format.read_array(stored, allow_pickle=False)
                    continue
                local = file.read(member.header_offset + 26, 4)
                begin = member.header_offset + 30 + sum(np.frombuffer(local, "<u2").tolist())
                arrays[name] = np.memmap(
                    path, dtype, "r", begin + stored.tell(), shape, "F" if fortran else "C")
    return arrays


def _safetensors(file: PlainFile, path: str) -> dict[str, Any]:
    size = int.from_bytes(file.read(0, 8), "little")
    if not 0 < size <= min(LONGEST_HEADER, file.size() - 8):
        raise ValueError(f"a header of {size} bytes in a file of {file.size()}")
    header = json.loads(file.read(8, size))
    arrays: dict[str, Any] = {}
    for name, said in header.items():
        if name == METADATA:
            continue
        if (kind := DTYPES.get(said["dtype"])) is None:
            raise ValueError(f"{name!r} has dtype {said['dtype']}, which NumPy has not")
        dtype = dtype_of(kind)
        begin, end = said["data_offsets"]
        shape = tuple(said["shape"])
        if end - begin != dtype.itemsize * int(np.prod(shape)) or 8 + size + end > file.size():
            raise ValueError(f"{name!r} needs bytes {begin} to {end}, which are not there")
        arrays[name] = (
            np.memmap(path, dtype, "r", 8 + size + begin, shape) if end > begin
            else np.zeros(shape, dtype))
    return arrays


class _Range(ExampleSource):
    def __init__(self, numbers: Any) -> None:
        self.place = caller()
        self.numbers = numbers

    def length(self) -> int:
        return len(self.numbers)

    def get(self, index: int) -> int:
        return int(self.numbers[index])

    def name(self, index: int) -> str:
        return f"number {self.numbers[index]}"

    def digest(self) -> str:
        return Digest("range").add(self.numbers).text()


def number_range(*bounds: int) -> ExampleSource:
    """Return the integers of Python's range(…), for pipelines that make their examples.

    ::

        >>> data.range(2, 10, 3).get(1)
        5
    """
    try:
        return _Range(range(*bounds))
    except (TypeError, ValueError) as error:
        raise UsageError(
            "data.range gets what Python's range gets", place=caller(), found=str(error),
            expected="data.range(n), or (start, stop), or (start, stop, step)") from None

"""The source of windows: parts of a long row of tokens, found by their number alone.

In: an array of tokens, or a file of them, which is mapped. Out: examples of `length` tokens each,
`stride` apart, views that cannot be written.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from codegen.errors import UsageError
from spmd.data.array_sources import Rows
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


class _Windows(ExampleSource):
    def __init__(self, source: Any, length: int, stride: int, dtype: np.dtype | None) -> None:
        self.place = caller()
        self.window, self.stride, self.dtype = length, stride, dtype
        self._tokens = made_once(lambda: self._read(source))
        self._digest = made_once(self._sum)
        self._file: PlainFile | None = None  # that is mapped: it shows what is written to it

    def _unchanged(self) -> np.ndarray:
        tokens: np.ndarray = self._tokens()
        if self._file:
            self._file.check_unchanged()
        return tokens

    def _read(self, source: Any) -> np.ndarray:
        tokens = self._of_file(source) if isinstance(source, str) else np.asarray(
            source, None if isinstance(source, np.ndarray) else self.dtype)
        if self.dtype not in (None, tokens.dtype):
            raise self.wrong("the tokens have another dtype than data.windows is told",
                             f"{self.dtype}", f"{tokens.dtype}", "leave dtype out, or .astype(…)")
        if tokens.ndim != 1 or tokens.dtype.hasobject or tokens.dtype.kind in "USV":
            raise self.wrong(
                "windows are parts of one row of tokens", "an array of numbers with one dim",
                f"{tokens.dtype} {tokens.shape}", "np.concatenate of the tokens of all texts")
        tokens = tokens.view()
        tokens.flags.writeable = False
        return tokens

    def _of_file(self, path: str) -> np.ndarray:
        try:
            self._file = PlainFile(path, self.wrong)
            self._file.check_unchanged()  # from here on
            if path.endswith(".npy"):
                return np.load(path, mmap_mode="r", allow_pickle=False)
            size, dtype = self._file.size(), self.dtype or np.dtype(np.uint8)
            if size % dtype.itemsize:
                raise self.wrong(f"{short(path)} is no row of tokens", f"a multiple of "
                                 f"{dtype.itemsize} bytes, for {dtype}", f"{size} bytes")
            return np.memmap(path, dtype, "r") if size else np.zeros(0, dtype)
        except OSError as error:
            raise unreadable(self.wrong, path, error) from None
        except ValueError as error:
            raise self.wrong(f"{short(path)} is damaged, or no .npy file", "a row of tokens",
                             str(error)) from None

    def length(self) -> int:
        return max(0, (len(self._tokens()) - self.window) // self.stride + 1)

    def get(self, index: int) -> Record:
        start = index * self.stride
        return Record({"tokens": self._unchanged()[start : start + self.window], "start": start},
                      self.name(index))

    def get_many(self, indices: list[int]) -> Rows:
        starts = np.asarray(indices, np.int64) * self.stride
        tokens = self._unchanged()[starts[:, None] + np.arange(self.window)]
        return Rows({"tokens": tokens, "start": starts}, indices)

    def name(self, index: int) -> str:
        start = index * self.stride
        return f"tokens {start} to {start + self.window - 1}"

    def digest(self) -> str:
        return str(self._digest())

    def _sum(self) -> str:
        tokens, size = self._tokens(), self._tokens().dtype.itemsize
        digest = Digest("windows").add(tokens.dtype, self.window, self.stride)
        return digest.add_samples(
            tokens.nbytes, lambda start, n: tokens[start // size : -(-(start + n) // size)]
            .tobytes()).text()

    def empty(self) -> Any:
        return self.wrong("there are too few tokens for a window", f"{self.window} or more",
                          str(len(self._tokens())))


def windows(
    tokens: Any, /, length: int, *, stride: int | None = None, dtype: Any = None
) -> ExampleSource:
    """Return a source of parts of running text: `length` tokens each, one `stride` behind the
    other.

    tokens: an array with one dim; the path of a .npy file; or of any other file, whose bytes are
    numbers of `dtype` (uint8 without it: the bytes of a text). Files are mapped, so they may be
    larger than memory. stride=None puts windows side by side; tokens that do not fill the last
    one are left out. An example has `tokens` and `start`, its place in the row.

    A language model with N inputs takes length=N + 1 and stride=N: each token is a target once.

    ::

        >>> blocks = data.windows(np.arange(10), 4, stride=3)
        >>> blocks.length(), blocks.get(1).tokens.tolist(), blocks.get(1).start
        (3, [3, 4, 5, 6], 3)
    """
    step = length if stride is None else stride
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1
               for n in (length, step)):
        raise UsageError(
            "length or stride of data.windows is wrong", place=caller(),
            expected="numbers of tokens, from 1", found=f"length {length!r}, stride {stride!r}")
    if isinstance(tokens, ExampleSource):
        raise UsageError(
            "data.windows gets one row of tokens", place=caller(), found="a source",
            expected="an array, or a file of tokens",
            remedy="encode the texts once: np.save('tokens.npy', np.concatenate([…]))")
    source = absolute(tokens) if isinstance(tokens, str | os.PathLike) else tokens
    return _Windows(source, int(length), int(step), None if dtype is None else dtype_of(dtype))

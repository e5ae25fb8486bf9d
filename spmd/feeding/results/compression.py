"""Frames between hosts, packed by lz4 or zstd where measuring says that it pays.

Pays: packing, sending fewer bytes and unpacking take less time than sending all of them.
Always holds: what is unpacked has exactly the length that was said, whatever a peer sends.
"""

from __future__ import annotations

import lz4.block
import zstandard

from codegen.errors import InputError
from spmd.feeding.host import steady_clock as time
from spmd.feeding.results.memory_layout import dtype_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import numpy as np

CODECS = ("none", "lz4", "zstd")
SMALL = 4096  # bytes: less is never packed
SAMPLE = 1 << 17
TRY_EVERY = 64  # frames between two trials of a field
LEVEL = 1  # of zstd: higher ones pay on no link that feeds ranks
# Bytes of a frame: heartbeats pass between frames, not within one. Small ones cost more time.
LEAST_PART, PART = 16 << 10, 128 << 10
PART_S = 0.25  # that a frame may take on its way
MOST_PARTS = 1 << 14  # of an array
UNPACK_GAIN = {"lz4": 4.0, "zstd": 2.5}  # unpacking is so many times faster than packing


def packed(data: Any, codec: str) -> Any:
    if codec == "lz4":
        return lz4.block.compress(data, store_size=False)
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=LEVEL).compress(data)
    return data


def unpacked(data: Any, codec: str, size: int) -> Any:
    """Return the bytes that were packed. Raises InputError unless they are `size` bytes."""
    try:
        if codec == "lz4":
            plain = lz4.block.decompress(data, uncompressed_size=size)
        elif codec == "zstd":
            # The limit is ours, not the sender's: a small frame cannot ask for much memory.
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data)
            plain = reader.read(size + 1)
        else:
            plain = data
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, OverflowError) as error:
        raise InputError(f"a result that cannot be unpacked by {codec}: {error}") from None
    if memoryview(plain).nbytes != size:
        raise InputError(f"a result of another length: expected {size} bytes, "
                         f"found {memoryview(plain).nbytes}")
    return plain


def in_parts(data: Any, size: int = LEAST_PART) -> list[Any]:
    """Return data as frames of `size` bytes, or of more where there would be too many frames."""
    whole = memoryview(data)
    size = max(size, -(-whole.nbytes // MOST_PARTS))
    return [whole[offset : offset + size] for offset in range(0, whole.nbytes, size)] or [whole]


def of_parts(frames: Sequence[Any]) -> Any:
    """Return the bytes that were cut by in_parts()."""
    return frames[0] if len(frames) == 1 else b"".join(frames)


class Link:
    """Measures the network to one consumer, and chooses a codec for each field from that.

    fixed: "auto", or the codec that the pipeline's author wants.
    """

    def __init__(self, fixed: str = "auto") -> None:
        self.fixed = fixed
        self.speed = 0.0  # bytes/s; 0: not known yet
        self.under_way = self.largest = 0  # bytes of results that the consumer has not got yet
        self.heard = time.monotonic()
        self._sent: dict[str, tuple[float, int]] = {}
        self._busy_until = 0.0
        self._trials: dict[str, tuple[int, str]] = {}

    def sent(self, result: str, size: int) -> None:
        self._sent[result] = (time.monotonic(), size)
        self.under_way += size
        self.largest = max(self.largest, size)

    def arrived(self, result: str) -> None:
        """Record that the consumer has a result: those that were under way together shared the
        time."""
        self.heard = time.monotonic()
        if result not in self._sent:
            return
        began, size = self._sent.pop(result)
        self.under_way -= size
        now = time.monotonic()
        seconds = max(now - max(began, self._busy_until), 1e-6)
        self._busy_until = now
        if size >= SMALL:
            speed = size / seconds
            self.speed = speed if not self.speed else 0.8 * self.speed + 0.2 * speed

    def count(self) -> int:
        """Return how many results are under way."""
        return len(self._sent)

    def part(self) -> int:
        """Return the bytes of a frame: few until the connection is known to be fast."""
        return min(max(LEAST_PART, int(self.speed * PART_S)), PART)

    def codec(self, field: str, data: memoryview) -> str:
        if data.nbytes < SMALL:
            return "none"
        if self.fixed != "auto":
            return self.fixed
        left, best = self._trials.get(field, (0, "none"))
        if left <= 0 and self.speed:
            best = self._tried(data)
            left = TRY_EVERY
        self._trials[field] = (left - 1, best)
        return best

    def _tried(self, data: memoryview) -> str:
        """Return the codec that gets a sample of this data to the other side soonest."""
        begin = (data.nbytes - min(SAMPLE, data.nbytes)) // 2
        sample = data[begin : begin + SAMPLE]
        best, least = "none", sample.nbytes / self.speed
        for codec in CODECS[1:]:
            began = time.perf_counter()
            size = len(packed(sample, codec))
            packing = time.perf_counter() - began
            total = packing * (1 + 1 / UNPACK_GAIN[codec]) + size / self.speed
            if total < 0.9 * least:
                best, least = codec, total
        return best


def in_frames(values: dict[str, np.ndarray]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return arrays as messages have them, with copies of their bytes."""
    arrays: list[dict[str, Any]] = []
    frames: list[Any] = []
    for name, value in values.items():
        parts = in_parts(value.tobytes())
        arrays.append({"name": name, "dtype": dtype_text(value.dtype),
                       "shape": list(value.shape), "bytes": value.nbytes,
                       "frame": len(frames), "parts": len(parts), "codec": "none"})
        frames += parts
    return arrays, frames

"""The same preprocessing in PyTorch's DataLoader and in Grain, for tests.figures_feeding.

In: a library, a part, how many workers. Each line of standard input is a number of batches, which
are taken and copied once, as a rank of spmd copies them; seconds are the answer, a line each. Needs
no spmd; the Python that runs it has torch or grain, and pillow.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = {"copies": 1, "photographs": 32}
MEGABYTE = (512, 512)
SIDE = 96


def crop(bytes_of_jpeg: bytes, rng: np.random.Generator) -> np.ndarray:
    """A photograph: decoded, cut at random, turned at random, as numbers from 0 to 1."""
    from PIL import Image

    with Image.open(io.BytesIO(bytes_of_jpeg)) as image:
        pixels = np.asarray(image.convert("RGB"))
    top, left = (int(rng.integers(0, n - SIDE + 1)) for n in pixels.shape[:2])
    part = pixels[top:top + SIDE, left:left + SIDE]
    return (part[:, ::-1] if rng.random() < 0.5 else part).astype(np.float32) / 255


def megabytes() -> np.ndarray:
    """64 arrays of one megabyte each."""
    return np.ones((64, *MEGABYTE), np.float32)


class Examples:
    """What DataLoader and Grain index: they ask for __getitem__ and __len__."""

    def __init__(self, part: str, folder: str) -> None:
        self.part = part
        self.files = sorted(Path(folder).glob("*.jpg"))
        self.arrays = megabytes() if part == "copies" else None

    def __len__(self) -> int:
        return 1 << 22

    def __getitem__(self, k: int) -> Any:
        if self.arrays is not None:
            return self.arrays[k % len(self.arrays)]
        return crop(self.files[k % len(self.files)].read_bytes(), np.random.default_rng(k))


def torch_batches(part: str, workers: int, folder: str) -> Iterator[Any]:
    import torch

    class Torch(Examples, torch.utils.data.Dataset):  # type: ignore[misc]
        def __getitem__(self, k: int) -> Any:
            return torch.from_numpy(super().__getitem__(k))

    loader = torch.utils.data.DataLoader(
        Torch(part, folder), batch_size=None if part == "copies" else BATCH[part],
        num_workers=workers, prefetch_factor=4)
    torch.set_num_threads(1)
    return (batch.numpy() for batch in loader)


def grain_batches(part: str, workers: int, folder: str) -> Iterator[Any]:
    import grain.python as grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    data: Any = grain.MapDataset.source(Examples(part, folder))
    if part != "copies":
        data = data.batch(BATCH[part])
    return iter(data.to_iter_dataset().mp_prefetch(
        grain.MultiprocessingOptions(num_workers=workers)))


def main(library: str, part: str, workers: str, folder: str) -> None:
    made = torch_batches if library == "torch" else grain_batches
    batches, into = made(part, int(workers), folder), None
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            batch = next(batches)
            into = np.empty_like(batch) if into is None else into
            np.copyto(into, batch)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

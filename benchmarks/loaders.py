"""The same preprocessing in DataLoader, Grain and tf.data service, for benchmarks.feeding.

In: a library, a part, how many workers. Each line of standard input is a number of batches, which
are taken and copied once, as a rank of spmd copies them; seconds are the answer, a line each; what
was ready before is taken first. Needs no spmd; the Python that runs it has torch, grain or
tensorflow; pillow and torchvision as it goes.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = {"copies": 1, "photographs": 32, "ready": 32}
MEGABYTE = (512, 512)
SIDE = 96
READY = 16  # batches that may be ready before anybody asks: they are taken before time counts


def crop(bytes_of_jpeg: bytes, rng: np.random.Generator) -> np.ndarray:
    """Return a decoded photograph, cropped and flipped at random, as numbers from 0 to 1."""
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
    """A dataset that DataLoader and Grain index through __getitem__ and __len__."""

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

    ready = ready_operations() if part == "ready" else None

    class Torch(Examples, torch.utils.data.Dataset):  # type: ignore[misc]
        def __getitem__(self, k: int) -> Any:
            if ready:
                return ready(self.files[k % len(self.files)].read_bytes())
            return torch.from_numpy(super().__getitem__(k))

    loader = torch.utils.data.DataLoader(
        Torch(part, folder), batch_size=None if part == "copies" else BATCH[part],
        num_workers=workers, prefetch_factor=4)
    torch.set_num_threads(1)
    return (batch.numpy() for batch in loader)


def ready_operations() -> Any:
    """Return torchvision's function that decodes, crops and flips an image and scales it to 0 to
    1."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    change = v2.Compose([v2.RandomCrop(SIDE), v2.RandomHorizontalFlip(),
                         v2.ToDtype(torch.float32, scale=True)])
    return lambda raw: change(decode_jpeg(
        torch.frombuffer(bytearray(raw), dtype=torch.uint8), ImageReadMode.RGB))


def grain_batches(part: str, workers: int, folder: str) -> Iterator[Any]:
    import grain.python as grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    data: Any = grain.MapDataset.source(Examples(part, folder))
    if part != "copies":
        data = data.batch(BATCH[part])
    return iter(data.to_iter_dataset().mp_prefetch(
        grain.MultiprocessingOptions(num_workers=workers)))


def tf_batches(part: str, workers: int, folder: str) -> Iterator[Any]:
    """One dispatcher here, each worker a process; operations of TensorFlow, since a function in
    Python cannot travel to other processes."""
    tf = tensorflow()
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    for _ in range(workers):
        subprocess.Popen([sys.executable, "-m", "benchmarks.loaders", "tf-worker", address])
    files = tf.constant([str(path) for path in sorted(Path(folder).glob("*.jpg"))])
    arrays = tf.constant(megabytes()) if part == "copies" else None

    def example(k: Any) -> Any:
        if arrays is not None:
            return arrays[k % len(arrays)]
        pixels = tf.io.decode_jpeg(tf.io.read_file(files[k % len(files)]), channels=3)
        part = tf.image.stateless_random_crop(pixels, (SIDE, SIDE, 3), seed=(k, 0))
        part = tf.image.stateless_random_flip_left_right(part, seed=(k, 1))
        return tf.cast(part, tf.float32) / 255

    data = tf.data.Dataset.range(1 << 22).map(example)
    if part != "copies":
        data = data.batch(BATCH[part])
    options = tf.data.Options()  # a worker computes in one thread, as the others' do
    options.threading.private_threadpool_size = options.threading.max_intra_op_parallelism = 1
    data = data.with_options(options).apply(service.distribute(
        service.ShardingPolicy.DYNAMIC, f"grpc://{address}", max_outstanding_requests=4 * workers))
    return kept_alive(data.as_numpy_iterator(), dispatcher)


def kept_alive(batches: Iterator[Any], *owners: Any) -> Iterator[Any]:
    yield from batches
    del owners


def tf_worker(address: str) -> None:
    service = tensorflow().data.experimental.service
    service.WorkerServer(service.WorkerConfig(dispatcher_address=address)).join()


def tensorflow() -> Any:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    import tensorflow

    return tensorflow


MADE = {"torch": torch_batches, "grain": grain_batches, "tf": tf_batches}


def main(library: str, part: str, workers: str, folder: str) -> None:
    batches, into = MADE[library](part, int(workers), folder), None
    for line in sys.stdin:
        for k in range(READY + int(line)):
            if k == READY:
                start = time.perf_counter()
            batch = next(batches)
            into = np.empty_like(batch) if into is None else into
            np.copyto(into, batch)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "tf-worker":
        tf_worker(sys.argv[2])
    else:
        main(*sys.argv[1:])

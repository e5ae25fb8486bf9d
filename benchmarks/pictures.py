"""What a picture costs a worker: ms of processor time for an example, one way and another.

In: how many rounds, in which the ways alternate. Out: a JSON line: what is done -> ms, medians.
Needs Pillow, and simplejpeg for what is faster with it; scikit-learn ships the photograph.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from benchmarks.running import json_lines, table
from spmd import data
from spmd.data import picture_files

SIZES = {"256 x 256": (256, 256), "640 x 427": (427, 640), "3840 x 2562": (2562, 3840)}
TARGETS = {"256 x 256": 96, "640 x 427": 224, "3840 x 2562": 224}


def photograph(size: tuple[int, int]) -> bytes:
    whole = Image.fromarray(load_sample_images().images[1])
    file = io.BytesIO()
    part = whole.crop((100, 80, 356, 336)) if size == (256, 256) else whole.resize(size[::-1])
    part.save(file, "JPEG", quality=90)
    return file.getvalue()


def crop(raw: bytes, side: int) -> Any:
    rng = np.random.default_rng(0)
    part = data.image.random_crop(data.image.decode(raw), (side, side), rng)
    return data.image.random_flip(part, rng)


def ways(raw: bytes, side: int) -> dict[str, Callable[[], Any]]:
    size = side, side

    def resized(picture: Any) -> Any:
        return data.image.random_resized_crop(picture, size, np.random.default_rng(1))

    return {
        "decode": lambda: data.image.decode(raw),
        "decode, random_crop, random_flip": lambda: crop(raw, side),
        "the same, to_float": lambda: data.image.to_float(crop(raw, side)),
        "resize(decode(raw))": lambda: data.image.resize(data.image.decode(raw), size),
        "resize(raw)": lambda: data.image.resize(raw, size),
        "random_resized_crop(decode(raw))": lambda: resized(data.image.decode(raw)),
        "random_resized_crop(raw)": lambda: resized(raw),
    }


def seconds(way: Callable[[], Any], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        way()
    return (time.process_time() - start) / times


def main(rounds: str) -> None:
    decoders: dict[str, Callable[[], Any]] = {"Pillow": lambda: None}
    if (faster := picture_files.faster()) is not None:
        decoders["simplejpeg"] = lambda: faster
    times: dict[str, list[float]] = {}
    for _ in range(int(rounds)):
        for size, extents in SIZES.items():
            raw, side = photograph(extents), TARGETS[size]
            for decoder, module in decoders.items():
                picture_files.faster = module  # type: ignore[assignment]
                for name, way in ways(raw, side).items():
                    took = seconds(way, 2 if extents[0] > 2000 else 40)
                    times.setdefault(f"{size}|{name}|{decoder}", []).append(1e3 * took)
    print(json.dumps({name: statistics.median(every) for name, every in times.items()}))


def report(_: Path, rounds: int = 7) -> None:
    """Print how long a worker takes to prepare a picture, with each decoder."""
    times = json_lines("pictures", rounds, timeout=600)[-1]
    rows: dict[tuple[str, str], list[str]] = {}
    for name, ms in times.items():
        size, work, _ = name.split("|")
        rows.setdefault((size, work), []).append(f"{ms:.2f}")
    print(f"A picture, ms of one core, median of {rounds}; 96 pixels a side are made of the first, "
          "224 of the others:\n")
    decoders = dict.fromkeys(name.split("|")[2] for name in times)
    table(["JPEG", "what is done", *decoders], [(*row, *ms) for row, ms in rows.items()])


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How fast workers feed ranks, beside a copy of memory, DataLoader and Grain: one JSON line.

In: a part, how many rounds. Out: seconds of a batch with each, medians; medians of the ratios of a
round, in which they alternate; of `starved`, how much of its time a rank waits that computes for
about 110 ms with each batch of 1024 examples. PEERS_PYTHON names a Python that has torch and grain.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from tests import figures_loaders
from tests.figures_loaders import BATCH, MEGABYTE, SIDE

PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)
PEERS = ("torch", "grain")
STEPS = {"copies": 2000, "photographs": 40}
ROWS = 1024  # of a batch, in `starved`

HEAD = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
import spmd.data as data
from tests.figures_loaders import crop, megabytes
"""
PIPELINES = {
    "copies": """
arrays = megabytes()

@data.pipeline(source=data.arrays(x=arrays), shuffle=False, workers={workers})
def work(example):
    return {{"x": example.x}}
""",
    "photographs": """
@data.pipeline(source=data.files({folder!r} + "/*.jpg"), shuffle=False, workers={workers})
def work(example, rng):
    return {{"x": crop(example.bytes, rng)}}
""",
    "starved": """
@data.pipeline(source=data.range(1 << 20), workers={workers})
def work(example, rng):
    return {{"x": np.sort(rng.random(64, dtype=np.float32))}}
""",
}


def program(batch: int, shape: tuple[int, ...], work: int = 0) -> Any:
    """A program that takes batches, and multiplies matrices `work` times with each."""

    @spmd.program(mesh=("data",))
    def taken() -> Any:
        feed = spmd.feed(x=spmd.spec((batch, *shape), np.float32))
        n, many = spmd.scalar("n", 1), spmd.scalar("work", 0)
        seen, a = spmd.zeros(batch, np.float32), spmd.ones((256, 256), np.float32) / 256
        for _ in spmd.range(n):
            seen += feed.next().x.reshape(batch, -1)[:, 0]
            for _ in spmd.range(many):
                a = a @ a
        return {"seen": seen, "a": a}

    return taken


@contextmanager
def peer(library: str, part: str, workers: int, folder: str) -> Iterator[Callable[[int], float]]:
    """DataLoader or Grain in a process of its own: seconds of so many batches."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    argv = [PYTHON, "-m", "tests.figures_loaders", library, part, str(workers), folder]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=environment)
    assert process.stdin and process.stdout

    def run(steps: int) -> float:
        print(steps, file=process.stdin, flush=True)
        return float(process.stdout.readline())  # type: ignore[union-attr]

    try:
        yield run
    finally:
        process.kill()
        process.wait()


def photographs(folder: str) -> None:
    """64 files of 256 x 256 pixels, cut from the photographs that scikit-learn ships."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    for k in range(64):
        pixels = load_sample_images().images[k % 2]
        top, left = (int(rng.integers(0, n - 256)) for n in pixels.shape[:2])
        Image.fromarray(pixels[top:top + 256, left:left + 256]).save(f"{folder}/{k:02}.jpg")


def pipeline_file(part: str, workers: int, folder: str) -> str:
    path = Path(folder, f"{part}_{workers}.py")
    root = str(Path(__file__).parent.parent)
    path.write_text((HEAD + PIPELINES[part]).format(root=root, workers=workers, folder=folder))
    return str(path)


def ours(job: Any) -> Callable[[int], float]:
    def run(steps: int) -> float:
        start = time.perf_counter()
        job(n=steps, work=0)
        return time.perf_counter() - start

    return run


def copies(steps: int) -> float:
    """Seconds of copying so many megabytes, one after the other, between arrays in memory."""
    given = figures_loaders.megabytes()
    into = np.empty(MEGABYTE, np.float32)
    start = time.perf_counter()
    for k in range(steps):
        np.copyto(into, given[k % len(given)])
    return time.perf_counter() - start


def measured(part: str, rounds: int) -> dict[str, float]:
    """Seconds of a batch by who feeds it and with how many workers; ours over the others'."""
    shape = MEGABYTE if part == "copies" else (SIDE, SIDE, 3)
    steps, image = STEPS[part], spmd.build(program(BATCH[part], shape))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        photographs(folder)
        runs: dict[str, Callable[[int], float]] = {}
        for n in (1, 2):
            feed = pipeline_file(part, n, folder)
            runs[f"ours {n}"] = ours(stack.enter_context(image.open(ranks=1, feed=feed)))
            for library in PEERS:
                runs[f"{library} {n}"] = stack.enter_context(peer(library, part, n, folder))
        if part == "copies":
            runs["copy"] = copies
        for run in runs.values():
            run(steps)  # whatever is slow at first
        rows = [{name: run(steps) / steps for name, run in runs.items()} for _ in range(rounds)]
    found = {name: statistics.median(row[name] for row in rows) for name in runs}
    for n in (1, 2):
        for name in runs:
            if name == "copy" or name.endswith(f" {n}"):
                found[f"ours {n} / {name}"] = statistics.median(
                    row[f"ours {n}"] / row[name] for row in rows)
    return found


def starved(rounds: int) -> dict[str, float]:
    """How much of its time a rank waits, which computes about 110 ms with a batch of 1024."""
    image = spmd.build(program(ROWS, (64,)))
    start = time.perf_counter()
    image.run(n=1, work=200, feed=[{"x": np.zeros((ROWS, 64), np.float32)}])
    work = round(200 * 0.11 / (time.perf_counter() - start))
    with tempfile.TemporaryDirectory() as folder:
        feed, shares, whole = pipeline_file("starved", 1, folder), [], []
        for _ in range(rounds):
            profile = image.profile(n=60, work=work, feed=feed, ranks=1)
            seconds = sum(row["seconds"] for row in profile)
            waits = sum(row["seconds"] * row["waiting"] for row in profile if "feed" in row)
            shares.append(waits / seconds)
            whole.append(seconds / 60)
    return {"share": statistics.median(shares), "batch": statistics.median(whole)}


def main(part: str, rounds: str) -> None:
    found = starved(int(rounds)) if part == "starved" else measured(part, int(rounds))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

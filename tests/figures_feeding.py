"""How fast workers feed ranks, beside copies of memory, DataLoader and Grain: one JSON line.

In: a part, how many rounds. Out: seconds of a batch with each, medians; medians of the ratios of a
round, in which they alternate; of `starved`, how much of its time a rank waits that computes for
about 110 ms with each batch of 1024 examples. PEERS_PYTHON names a Python that has torch and grain.
"""

from __future__ import annotations

import json
import os
import signal
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
ALONE = ("copy", "handover")  # what has no workers
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
    with asked([PYTHON, "-m", "tests.figures_loaders", library, part, str(workers),
                folder]) as run:
        yield run


@contextmanager
def handover(folder: str) -> Iterator[Callable[[int], float]]:
    """Two processes of C, of which one hands megabytes to the other, by two copies: the least that
    can be had."""
    program = Path(folder, "handover")
    source = Path(__file__).parent / "handover.c"
    subprocess.run(["cc", "-O2", str(source), "-o", str(program)], check=True)
    with asked([str(program)]) as run:
        yield run


@contextmanager
def asked(argv: list[str]) -> Iterator[Callable[[int], float]]:
    """A process that takes a number of batches from each line, and says how long it took."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=environment, start_new_session=True)
    assert process.stdin and process.stdout

    def run(steps: int) -> float:
        print(steps, file=process.stdin, flush=True)
        return float(process.stdout.readline())  # type: ignore[union-attr]

    try:
        yield run
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with its workers
        process.wait()


def missing() -> str:
    """What the Python of the peers lacks."""
    asked = "from importlib.util import find_spec as f\nfor m in ('torch', 'grain', 'PIL'):" \
            "\n  if not f(m): print(m)"
    found = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True, check=True)
    return ", ".join(found.stdout.split())


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
            runs["handover"] = stack.enter_context(handover(folder))
        for run in runs.values():
            run(steps)  # whatever is slow at first
        rows = [{name: run(steps) / steps for name, run in runs.items()} for _ in range(rounds)]
    found = {name: statistics.median(row[name] for row in rows) for name in runs}
    for n in (1, 2):
        for name in runs:
            if name in ALONE or name.endswith(f" {n}"):
                found[f"ours {n} / {name}"] = statistics.median(
                    row[f"ours {n}"] / row[name] for row in rows)
    return found


def starved(rounds: int) -> dict[str, float]:
    """How much of its time a rank waits, which computes about 110 ms with a batch of 1024, after
    its first batch; seconds until that one is there; seconds of next() where a small batch is."""
    image = spmd.build(program(ROWS, (64,)))
    start = time.perf_counter()
    image.run(n=1, work=200, feed=[{"x": np.zeros((ROWS, 64), np.float32)}])
    work = round(200 * 0.11 / (time.perf_counter() - start))
    small = spmd.build(program(16, (64,)))
    with tempfile.TemporaryDirectory() as folder:
        feed, rows = pipeline_file("starved", 1, folder), []
        for _ in range(rounds):
            first, *rest = taken_of(image, f"{folder}/of.json", n=60, work=work, feed=feed)
            _, *fast = taken_of(small, f"{folder}/of.json", n=200, work=10, feed=feed)
            seconds = (rest[-1][1] - first[1]) / len(rest)
            rows.append({"share": sum(row[2] for row in rest) / len(rest) / seconds,
                         "batch": seconds, "first": first[1],
                         "next": statistics.median(
                             end - begin for begin, end, waited in fast if not waited)})
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def taken_of(image: Any, file: str, **arguments: Any) -> list[tuple[float, float, float]]:
    """Of each batch that rank 0 took in a run: begin, end, seconds of it that it waited."""
    image.timeline(file, ranks=1, **arguments)
    events = json.loads(Path(file).read_text())["traceEvents"]
    return [(e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["args"]["wait us"] / 1e6)
            for e in events if e.get("cat") == "take"]


def main(part: str, rounds: str) -> None:
    found = starved(int(rounds)) if part == "starved" else measured(part, int(rounds))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How fast workers feed ranks, beside copies of memory, DataLoader, Grain and tf.data service.

In: a part, how many rounds. Out: ms of a batch, medians of rounds in which all alternate, and of
processor time, which other work disturbs less; of `starved`, how much a rank waits that computes
110 ms with each batch. PEERS_PYTHON names a Python that has torch, torchvision, grain and pillow,
PEERS_PYTHON_TF one that has tensorflow; whoever is not there is left out.
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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from benchmarks import loaders, steady_feeding
from benchmarks.loaders import BATCH, MEGABYTE, READY, SIDE
from tests.conftest import run

PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)
PYTHON_TF = os.environ.get("PEERS_PYTHON_TF", PYTHON)
PEERS = {"torch": "DataLoader", "grain": "Grain", "tf": "tf.data service"}
NEEDS = {"torch": "torch", "grain": "grain", "tf": "tensorflow"}
STEPS = {"copies": 1000, "photographs": 30, "ready": 30}
TITLES = {
    "copies": "1 MB, a row of an array",
    "photographs": "32 photographs, one function for all (tf.data: its own operations)",
    "ready": "32 photographs, each library's own operations",
}
ALONE = {"copy": "a copy", "handover": "a handover in C"}  # what has no workers
ROWS = 1024  # of a batch, in `starved`
ASKED = {"torch": 3.0, "tf": 3.0, "copy": 0.8}  # how many times as long as ours they may take

HEAD = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
import spmd.data as data
from benchmarks.loaders import crop, megabytes
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
    "ready": """
@data.pipeline(source=data.files({folder!r} + "/*.jpg"), shuffle=False, workers={workers})
def work(example, rng):
    picture = data.image.decode(example.bytes)
    return {{"x": data.image.random_flip(data.image.random_crop(picture, (96, 96), rng), rng)}}
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


def floats_of_bytes(batch: int, shape: tuple[int, ...]) -> Any:
    """A program that takes pictures as bytes, and makes floats of each itself."""

    @spmd.program(mesh=("data",))
    def taken_as_bytes() -> Any:
        feed = spmd.feed(x=spmd.spec((batch, *shape), np.uint8))
        n, last = spmd.scalar("n", 1), spmd.zeros((batch, *shape), np.float32)
        spmd.scalar("work", 0)
        for _ in spmd.range(n):
            last = feed.next().x.astype(np.float32) / 255
        return last

    return taken_as_bytes


class Loader:
    """A library, or ours, in a process of its own, which takes batches when it is told to."""

    def __init__(self, argv: list[str], ready: int | None = None) -> None:
        self.ready = ready  # batches that it takes before time counts; None: as many as then
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment, start_new_session=True)
        self.processor = 0.0  # seconds of a batch, in all of its processes, in the last run

    def run(self, steps: int) -> float:
        """Seconds of so many batches."""
        assert self.process.stdin and self.process.stdout
        before = processor_seconds(self.process.pid)
        print(steps, file=self.process.stdin, flush=True)
        seconds = float(self.process.stdout.readline())
        time.sleep(0.3)  # as many batches are ready again as there were
        ready = steps if self.ready is None else self.ready
        self.processor = (processor_seconds(self.process.pid) - before) / (ready + steps)
        return seconds

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            pass
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with its workers
        self.process.wait()


def loader(library: str, part: str, workers: int, folder: str) -> Loader:
    module = "benchmarks.feeding" if library == "ours" else "benchmarks.loaders"
    return Loader([python_of(library), "-m", module, library, part, str(workers), folder],
                  None if library == "ours" else READY)


def handover(folder: str) -> Loader:
    """Two processes of C, of which one hands megabytes to the other, by two copies: the least that
    can be had."""
    program = Path(folder, "handover")
    source = Path(__file__).parent / "handover.c"
    subprocess.run(["cc", "-O2", str(source), "-o", str(program)], check=True)
    return Loader([str(program)])


def processor_seconds(root: int) -> float:
    """Return the CPU seconds of a process, its descendants, and the children that these waited
    for."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        pid, row = int(name.split()[0]), rest.split()
        parents[pid] = int(row[1])
        seconds[pid] = sum(map(int, row[11:15])) / os.sysconf("SC_CLK_TCK")

    def below(pid: int) -> bool:
        while pid and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    return sum(s for pid, s in seconds.items() if below(pid))


def take_batches(part: str, workers: str, folder: str) -> None:
    """Ours, as loaders does it with others."""
    make = floats_of_bytes if part == "ready" else program
    image = spmd.build(make(BATCH[part], MEGABYTE if part == "copies" else (SIDE, SIDE, 3)))
    with image.open(ranks=1, feed=pipeline_file(part, int(workers), folder)) as job:
        for n in map(int, sys.stdin):  # workers go on between calls of one number of steps
            job(n=n, work=0)  # takes what is ready
            start = time.perf_counter()
            job(n=n, work=0)
            print(time.perf_counter() - start, flush=True)


def python_of(library: str) -> str:
    return {"ours": sys.executable, "tf": PYTHON_TF}.get(library, PYTHON)


def lacks(library: str, modules: tuple[str, ...]) -> bool:
    """Does the Python of this library lack one of the modules?"""
    asked = "import sys\nfrom importlib.util import find_spec\n" \
            "sys.exit(not all(find_spec(m) for m in sys.argv[1:]))"
    return subprocess.run([python_of(library), "-c", asked, *modules]).returncode != 0


def peers_of(part: str) -> list[str]:
    """Who is there, and can do this part."""
    more = {"photographs": ("PIL",), "ready": ("torchvision",)}.get(part, ())
    return [library for library in PEERS
            if not (library == "grain" and part == "ready")
            and not lacks(library, (NEEDS[library], *(more if library != "tf" else ())))]


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


def copies(steps: int) -> float:
    """Seconds of copying so many megabytes, one after the other, between arrays in memory."""
    arrays = loaders.megabytes()
    into = np.empty(MEGABYTE, np.float32)
    start = time.perf_counter()
    for k in range(steps):
        np.copyto(into, arrays[k % len(arrays)])
    return time.perf_counter() - start


def measured(part: str, rounds: int) -> dict[str, float]:
    """Seconds of a batch by who feeds it and with how many workers, and of processor time; the
    others' over ours."""
    steps, libraries = STEPS[part], ["ours", *peers_of(part)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        photographs(folder)
        loaders = {f"{library} {n}": stack.enter_context(loader(library, part, n, folder))
                   for n in (1, 2) for library in libraries}
        runs: dict[str, Callable[[int], float]] = {k: opened.run for k, opened in loaders.items()}
        if part == "copies":
            runs["copy"] = copies
            runs["handover"] = stack.enter_context(handover(folder)).run
        for run in runs.values():
            run(steps)  # whatever is slow at first
        rows = []
        for _ in range(rounds):
            rows.append({name: run(steps) / steps for name, run in runs.items()})
            rows[-1] |= {f"cpu {name}": loader.processor for name, loader in loaders.items()}
    times = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    for n in (1, 2):
        for name in runs:
            if name in ALONE or name.endswith(f" {n}"):
                times[f"{name} / ours {n}"] = statistics.median(
                    row[name] / row[f"ours {n}"] for row in rows)
    return times


def say(part: str, times: dict[str, float]) -> None:
    """Print the times of one part as a Markdown table, and whether the ratios asked for are met."""
    names = [k for k in (*PEERS, *ALONE) if f"{k} 1" in times or k in times]
    head = [TITLES[part], "ours", *({**PEERS, **ALONE}[k] for k in names)]
    rows = [head, ["---"] * len(head)]
    for n in (1, 2):
        who = f"{n} worker{'s' * (n > 1)}"
        rows.append([who, f"{1e3 * times[f'ours {n}']:.3f}"])
        rows.append([f"{who}, processor", f"{1e3 * times[f'cpu ours {n}']:.3f}"])
        for k in names:
            key = k if k in ALONE else f"{k} {n}"
            rows[-2].append(f"{1e3 * times[key]:.3f} (**{times[f'{key} / ours {n}']:.2f}**)")
            cpu, mine = times.get(f"cpu {key}"), times[f"cpu ours {n}"]
            rows[-1].append(f"{1e3 * cpu:.3f} ({cpu / mine:.2f})" if cpu else "")
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))
    for k in names:
        if k in ASKED:
            least = min(v for name, v in times.items() if name.startswith(k) and " / " in name)
            print(f"\n{PEERS.get(k, 'a copy')}: {least:.2f} times as long as ours or more; asked: "
                  f"{ASKED[k]:g}, {'met' if least >= ASKED[k] else 'missed'}.", end="")
    print("\n", flush=True)


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
    """Return begin, end and seconds of waiting for each batch that rank 0 took in a run."""
    image.timeline(file, ranks=1, **arguments)
    events = json.loads(Path(file).read_text())["traceEvents"]
    return [(e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["args"]["wait us"] / 1e6)
            for e in events if e.get("cat") == "take"]


def main(part: str, rounds: str) -> None:
    if part != "starved":
        say(part, measured(part, int(rounds)))
        return
    times = starved(int(rounds))
    print(f"A rank that computes {1e3 * times['batch']:.0f} ms with each batch of {ROWS} waits "
          f"{times['share']:.2%} of its time after its first batch, which is there after "
          f"{times['first']:.2f} s. next() takes {1e6 * times['next']:.1f} us where a small batch "
          "is there.\n", flush=True)


def report(folder: Path, rounds: int = 5) -> None:
    """Batches of workers beside a copy of memory and other libraries; a rank that computes."""
    steady_feeding.report(folder)
    for library, name in PEERS.items():
        if lacks(library, (NEEDS[library],)):
            which = "PEERS_PYTHON_TF" if library == "tf" else "PEERS_PYTHON"
            package = {"torch": "torch torchvision pillow", "grain": "grain pillow"}.get(
                library, "tensorflow-cpu")
            print(f"Without {name}: {python_of(library)} has none. {which} names "
                  f"a Python that has it: pip install {package}.\n")
    print(f"A batch, ms, median of {rounds} rounds in which all alternate; in brackets how many "
          "times as long as ours it takes:\n")
    for part in (*STEPS, "starved"):
        argv = [sys.executable, "-m", "benchmarks.feeding", part, rounds]
        print(run(argv, timeout=600).expect(0).out, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "ours":
        take_batches(*sys.argv[2:])
    else:
        main(*sys.argv[1:])

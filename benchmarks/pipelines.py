"""Training in pipelines beside plain training of the same network; prints one JSON line.

In: a network, or "torch" for torch.distributed.pipelining beside ours; rounds. Out: seconds of a
step with the whole batch at once, with gradients added up over the microbatches, and of each
schedule; CPU of steps and builds. Always holds: all start from the same weights, as losses show.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from benchmarks.pipeline_memory import memory as memory
from benchmarks.running import json_lines, table
from benchmarks.training import PYTHON, lacks
from codegen.image import manifest as reader
from spmd import optim, pipeline_notes
from tests.conftest import EXAMPLES, run
from tests.spmd import sleeping_stages

sys.path.insert(0, str(EXAMPLES))  # one example imports another
letters = import_module("pipeline_training")
transformer = import_module("transformer")

SCHEDULES = {"continuous": 8, "1f1b": 32}


def first(w: Any, x: Any) -> Any:
    return np.tanh(x @ w["in"])


def block(w: Any, h: Any) -> Any:
    return h + np.tanh(h @ w["up"]) @ w["down"]


def last(w: Any, h: Any, y: Any) -> Any:
    return np.mean((h @ w["out"] - y) ** 2)


def perceptron(width: int = 384, blocks: int = 8) -> Any:
    """Layers of residual blocks: (functions, parameters)."""
    random = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return spmd.spec(shape, np.float32,
                         default=random.standard_normal(shape) / shape[0] ** 0.5 / 2)

    weights = [{"up": normal(width, width), "down": normal(width, width)} for _ in range(blocks)]
    return ([first, *[block] * blocks, last],
            [{"in": normal(16, width)}, *weights, {"out": normal(width, 1)}])


def vectors(rows: int) -> Any:
    """Vectors, and what is learnt of each."""
    x = spmd.input("x", (rows, 16), np.float32,
                   default=np.random.default_rng(2).standard_normal((rows, 16)))
    return x, np.sin(np.sum(x, axis=1, keepdims=True))


def model(blocks: int = 6, heads: int = 4, width: int = 128, length: int = 64) -> Any:
    """Layers of the Transformer of characters."""
    return ([letters.embed, *[letters.block] * blocks, letters.head],
            letters.weights(blocks, heads, width, length))


def texts(rows: int, length: int = 64) -> Any:
    """Pieces of a text, and the letters that follow."""
    text = spmd.input("text", (rows, length + 1), np.int32,
                      default=transformer.pieces(1, rows, length)[0])
    return text[:, :-1], text[:, 1:]


# What makes the layers and a batch, rows of a batch, what makes the optimizer, steps of a run.
NETWORKS: dict[str, tuple[Any, Any, int, Any, int]] = {
    "width 384": (perceptron, vectors, 256, lambda: optim.sgd(1e-3), 10),
    "width 768": (lambda: perceptron(768, 2), vectors, 2048, lambda: optim.sgd(1e-3), 2),
    "transformer": (model, texts, 32, lambda: optim.adamw(1e-3), 3),
}


def plain(name: str, microbatches: int = 1) -> Any:
    """A program that trains without a pipeline, gradients added up over microbatches."""
    make, data, rows, optimizer, _ = NETWORKS[name]

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        steps = spmd.scalar("steps", 1)
        functions, weights = make()
        w, (x, y) = spmd.input("w", weights), data(rows)
        x, y = (a.reshape(microbatches, -1, *a.shape[1:]) for a in (x, y))
        tx = optimizer()

        def loss(w: Any, x: Any, y: Any) -> Any:
            for function, own in zip(functions[:-1], w[:-1]):
                x = function(own, x)
            return functions[-1](w[-1], x, y)

        state, losses = tx.init(w), spmd.zeros(4, np.float32)
        for k in spmd.range(steps):
            if microbatches == 1:
                value, grads = spmd.value_and_grad(loss)(w, x[0], y[0])
            else:
                value, grads = spmd.asarray(np.float32(0)), each(lambda a: a * 0, w)
                for m in spmd.range(microbatches):
                    more, new = spmd.value_and_grad(loss)(w, x[m], y[m])
                    value, grads = value + more, each(lambda a, b: a + b, grads, new)
                value, grads = value / microbatches, each(lambda a: a / microbatches, grads)
            losses[k % 4] = value
            updates, state = tx.update(grads, state, w)
            w = optim.apply_updates(w, updates)
        return losses

    return train


def each(function: Any, first: Any, *others: Any) -> Any:
    """The function of all leaves of trees of lists and dicts."""
    if isinstance(first, list):
        return [each(function, *parts) for parts in zip(first, *others)]
    if isinstance(first, dict):
        return {k: each(function, *(x[k] for x in (first, *others))) for k in first}
    return function(first, *others)


def piped(name: str, schedule: str, microbatches: int, stages: int = 2) -> Any:
    """A program that trains in a pipeline."""
    make, data, rows, optimizer, _ = NETWORKS[name]

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        steps = spmd.scalar("steps", 1)
        functions, weights = make()
        w, (x, y) = spmd.input("w", weights), data(rows)
        pipe = spmd.pipeline(
            list(zip(functions, w)), axis="stage", stages=stages, microbatches=microbatches,
            schedule=schedule, optimizer=optimizer(),
            **({"accumulate": microbatches} if schedule == "continuous" else {}))
        state, losses = pipe.init(), spmd.zeros(4, np.float32)
        for k in spmd.range(steps):
            state, losses[k % 4] = pipe.step(state, x, y)
        return losses

    return train


def _cpu() -> float:
    """Seconds of CPU that this process and its children have used."""
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in both)


def measured(name: str, schedules: dict[str, int], rounds: int) -> dict[str, float]:
    """Seconds of a step by what was measured; "cpu …": of CPU; "build …": CPU of a build."""
    steps = NETWORKS[name][-1]
    build_times: dict[str, float] = {}
    runs: dict[str, Any] = {}
    with ExitStack() as stack:
        def build(key: str, program: Any) -> Any:
            begin = _cpu()
            image = spmd.build(program)
            build_times[f"build {key}"] = _cpu() - begin
            return image

        def add(key: str, image: Any, ranks: int = 1) -> None:
            runs[key] = stack.enter_context(image.open(ranks=ranks))

        add("plain", build("plain", plain(name)))
        for schedule, microbatches in schedules.items():
            add(f"accumulated {microbatches}",
                build(f"accumulated {microbatches}", plain(name, microbatches)))
            image = build(schedule, piped(name, schedule, microbatches))
            for ranks in (1, 2):
                add(f"{schedule} {ranks}", image, ranks)
        losses = {key: np.asarray(job(steps=4)) for key, job in runs.items()}
        for key, got in losses.items():
            np.testing.assert_allclose(got[0], losses["plain"][0], rtol=1e-4, err_msg=key)
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for key, job in runs.items():
                spent, cpu = [], []
                for count in (1, steps + 1):
                    begin, used = time.perf_counter(), _cpu()
                    job(steps=count)
                    spent.append(time.perf_counter() - begin)
                    cpu.append(_cpu() - used)
                times.setdefault(key, []).append((spent[1] - spent[0]) / steps)
                times.setdefault(f"cpu {key}", []).append((cpu[1] - cpu[0]) / steps)
    return build_times | {key: statistics.median(t) for key, t in times.items()}


def asleep(schedule: str, stages: int, processes: int, rounds: int, unit: float = 0.01) -> float:
    """Units that a step takes for each microbatch and each one that fills the pipeline, where
    stages sleep; a thread for each rank. 3 is the least without overlapping steps."""
    microbatches = 2 * stages
    ticks, more = microbatches + stages - 1, 64 // stages  # steps of about 2 seconds
    with tempfile.TemporaryDirectory() as folder:
        if schedule == "table":
            lines = spmd.schedules.make_schedule("1f1b", stages, microbatches)
            (file := Path(folder) / "1f1b.csv").write_text(lines.csv())
            schedule = str(file)
        image = spmd.build(sleeping_stages.train, stages=stages, microbatches=microbatches,
                           unit=unit, schedule=schedule)
        image.save(saved := Path(folder) / "asleep.img")
        argv = ["mpirun", "-n", processes, sys.executable, "-m", "spmd", "run", saved, "--ranks",
                stages, "--threads", -(-stages // processes), "--set"]
        pairs = [[run([*argv, f"steps={n}"], timeout=300).expect(0).seconds for n in (1, 1 + more)]
                 for _ in range(rounds)]
    return statistics.median(b - a for a, b in pairs) / more / unit / ticks


@contextmanager
def in_torch(schedule: str, microbatches: int, file: Path) -> Iterator[Callable[[int], Any]]:
    """Two processes that train in torch.distributed.pipelining: what steps say, stage by stage."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": port, "PYTHONPATH": str(Path(__file__).parent.parent)}
    argv = [PYTHON, "-m", "benchmarks.torch_pipelines", schedule, str(microbatches), file]
    stages = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**environment, "RANK": str(k)}) for k in range(2)]

    def run(steps: int) -> Any:
        for process in stages:
            print(steps, file=process.stdin, flush=True)
        return [json.loads(process.stdout.readline())  # type: ignore[union-attr]
                for process in stages]

    try:
        yield run
    finally:
        for process in stages:
            process.stdin.close()  # type: ignore[union-attr]
        for process in stages:
            process.wait(60)


def beside_torch(rounds: int, name: str = "width 384") -> dict[str, dict[str, Any]]:
    """Return, by schedule, the seconds of a step, ours over torch's, and the bytes each stage
    keeps."""
    steps, microbatches = NETWORKS[name][-1], 8
    figures = {}
    for schedule in ("1f1b", "gpipe"):
        with ExitStack() as stack:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "given.pickle"
            random = np.random.default_rng(2).standard_normal((256, 16)).astype(np.float32)
            weights = [{k: a.default for k, a in w.items()} for w in perceptron()[1]]
            file.write_bytes(pickle.dumps({
                "x": random, "y": np.sin(np.sum(random, axis=1, keepdims=True)), "cut": 5,
                "w": [{k: a.astype(np.float32) for k, a in w.items()} for w in weights],
                "rate": 1e-3}))
            image = spmd.build(piped(name, schedule, microbatches))
            job = stack.enter_context(image.open(ranks=2))
            theirs = stack.enter_context(in_torch(schedule, microbatches, file))
            losses = np.asarray(job(steps=4))
            np.testing.assert_allclose(theirs(3)[1]["losses"], losses, rtol=1e-4)
            rows = []
            for _ in range(rounds):
                spent = []
                for count in (1, steps + 1):
                    begin = time.perf_counter()
                    job(steps=count)
                    spent.append(time.perf_counter() - begin)
                said = theirs(steps)
                rows.append(((spent[1] - spent[0]) / steps, said[0]["seconds"] / steps))
            image.save(saved := file.with_name("saved.img"))
            notes = pipeline_notes.pipelines_of(reader.read(saved.read_bytes()))[0]
            figures[schedule] = {
                "ours": statistics.median(a for a, _ in rows),
                "torch": statistics.median(b for _, b in rows),
                "ours / torch": statistics.median(a / b for a, b in rows),
                "kept by ours": [k * notes.schedule.in_flight(s)
                                 for s, k in enumerate(notes.kept or ())],
                "kept by torch": [stage["kept"] for stage in said]}
    return figures


def report(folder: Path, rounds: int = 5) -> None:
    """Training in two stages beside plain training, on one rank and on two."""
    speeds, builds = [], []
    for name in NETWORKS:
        figures = json_lines("pipelines", name, rounds)[-1]
        for schedule, parts in SCHEDULES.items():
            bases = "plain", f"accumulated {parts}"
            speeds.append((
                name, schedule, parts, f"{1e3 * figures['plain']:.1f}",
                *(f"{figures[f'cpu {schedule} 1'] / figures[f'cpu {base}']:.2f}" for base in bases),
                *(f"{figures[b] / figures[f'{schedule} {n}']:.2f}" for b in bases for n in (1, 2))))
            builds.append((name, schedule, f"{figures['build plain']:.1f}",
                           f"{figures[f'build {schedule}'] / figures['build plain']:.2f}"))
    print(f"A step in two stages beside plain training, also accumulated; medians of {rounds}:\n")
    table(["network", "schedule", "microbatches", "plain, ms", "CPU of 1 rank / plain",
           "CPU of 1 rank / accumulated", *(f"speed of {n} / {base}" for base in
           ("plain", "accumulated") for n in ("1 rank", "2 ranks"))], speeds)
    print("Building it, seconds of one core with all that it starts:\n")
    table(["network", "schedule", "plain, s", "pipeline / plain"], builds)
    table(*memory(folder))
    print("Stages that sleep, for 10 ms forward and 20 backward; 1F1B, a thread for each rank; "
          f"step / (microbatches + stages - 1) / 10 ms, medians of {rounds}; ideal: 3:\n")
    table(["stages", "schedule", "1 process", "2 processes"], [
        (n, schedule, *(f"{asleep(schedule, n, k, rounds):.2f}" for k in (1, 2)))
        for n in (2, 4, 8, 16) for schedule in ("1f1b", "formula", "table")])
    if not lacks("torch"):
        figures = json_lines("pipelines", "torch", rounds)[-1]
        print("A step in two stages, 8 microbatches, beside torch.distributed.pipelining:\n")
        table(["schedule", "ours, ms", "torch, ms", "ours / torch", "kept by our stages, bytes",
               "kept by its stages, bytes"], [
            (name, f"{1e3 * row['ours']:.1f}", f"{1e3 * row['torch']:.1f}",
             f"{row['ours / torch']:.2f}", *(", ".join(f"{k:,}" for k in row[f"kept by {who}"])
                                             for who in ("ours", "torch")))
            for name, row in figures.items()])


if __name__ == "__main__":
    print(json.dumps(beside_torch(int(sys.argv[2])) if sys.argv[1] == "torch"
                     else measured(sys.argv[1], SCHEDULES, int(sys.argv[2]))))

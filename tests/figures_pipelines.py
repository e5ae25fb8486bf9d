"""Training in pipelines beside plain training of the same network; prints one JSON line.

In: a network, and how many rounds. Out: seconds of a step with the whole batch at once, with
gradients added up over the microbatches, and of each schedule on one and two ranks; the CPU of a
step, and of a build; or, of layers of unlike sizes, the memory that each rank has touched. Always
holds: all start from the same weights, and first losses are the same.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from spmd import optim
from spmd.schedules import make_schedule
from tests.conftest import EXAMPLES, run

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
    made, data, rows, optimizer, _ = NETWORKS[name]

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        steps = spmd.scalar("steps", 1)
        functions, weights = made()
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
    made, data, rows, optimizer, _ = NETWORKS[name]

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        steps = spmd.scalar("steps", 1)
        functions, weights = made()
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


WIDTHS = 2448, 707  # of layers of 24 and of 2 MB


def distance(w: Any, h: Any, y: Any) -> Any:
    return np.mean((h @ w - y) ** 2)


def unequal(wide: int, narrow: int, rows: int, given: bool) -> tuple[Any, list[int]]:
    """Return a program that trains four layers, each of them a stage, the first of which is wide;
    and the bytes of the parameters, moments and kept activations of each. given: parameters are
    inputs, and returned; else they are computed."""
    sides = [wide, narrow, narrow, narrow]
    slots = [make_schedule("1f1b", 4, 4).slots(stage) for stage in range(4)]
    # a layer keeps what it is given of a microbatch, and what it finds
    own = [4 * (3 * n * n + kept * rows // 4 * 2 * n) for n, kept in zip(sides, slots)]

    def tanh(w: Any, h: Any) -> Any:
        return np.tanh(h @ w)[:, :narrow]

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        x = spmd.input("x", (rows, wide), np.float32, default=lambda i, j: (i + j) % 13 / 13)
        y = spmd.input("y", (rows, narrow), np.float32, default=lambda i, j: (i * j) % 11 / 11)
        w = [spmd.full((n, n), 1e-3, np.float32) for n in sides]
        if given:
            w = [spmd.input(f"w{k}", (n, n), np.float32, default=lambda i, j: (3 * i + j) % 7 / 1e3)
                 for k, n in enumerate(sides)]
        pipe = spmd.pipeline(list(zip([tanh, tanh, tanh, distance], w)), stages=4, microbatches=4,
                             optimizer=optim.adamw(1e-3))
        state, loss = pipe.init(), spmd.zeros((), np.float32)
        for _ in spmd.range(2):
            state, loss = pipe.step(state, x, y)
        return {"loss": loss, **({"w": pipe.params(state)} if given else {})}

    return train, own


def held(image: str) -> list[int]:
    """Return the bytes of the memory of ranks that each process has touched, in a run with a rank
    in each: a process of MPI, all of which must call this."""
    comm = import_module("mpi4py.MPI").COMM_WORLD
    with spmd.load(image).open(comm=comm, keep=True) as job:
        job()
        comm.Barrier()
        mine, found = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            word, *rest = line.split()
            found = "memfd:spmd" in line if not word.endswith(":") else found
            mine += 1024 * int(rest[0]) if found and word == "Rss:" else 0
        gathered: list[int] = comm.allgather(mine)
    return gathered


def memory(folder: Path) -> list[tuple[Any, ...]]:
    """Return of four ranks what each of them should hold, and what it has touched, in MiB."""
    rows: list[tuple[Any, ...]] = []
    for what, given in (("computed", False), ("inputs and outputs", True)):
        program, own = unequal(*WIDTHS, 64, given)
        spmd.build(program).save(image := folder / f"{given}.img")
        argv = ["mpirun", "-n", 4, sys.executable, "-m", "tests.figures_pipelines", "held", image]
        each = json.loads(run(argv, timeout=120).expect(0).out.splitlines()[-1])
        rows += [(what, rank, f"{mine / 2**20:.1f}", f"{found / 2**20:.1f}", f"{found / mine:.2f}")
                 for rank, (mine, found) in enumerate(zip(own, each, strict=True))]
    return rows


def _cpu() -> float:
    """Seconds of CPU that this process and its children have used."""
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in both)


def measured(name: str, schedules: dict[str, int], rounds: int) -> dict[str, float]:
    """Seconds of a step by what was measured; "cpu …": of CPU; "build …": CPU of a build."""
    steps = NETWORKS[name][-1]
    found: dict[str, float] = {}
    runs: dict[str, Any] = {}
    with ExitStack() as stack:
        def build(key: str, program: Any) -> Any:
            begin = _cpu()
            image = spmd.build(program)
            found[f"build {key}"] = _cpu() - begin
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
    return found | {key: statistics.median(t) for key, t in times.items()}


if __name__ == "__main__" and sys.argv[1] == "held":
    if (each := held(sys.argv[2])) and import_module("mpi4py.MPI").COMM_WORLD.rank == 0:
        print(json.dumps(each))
elif __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], SCHEDULES, int(sys.argv[2]))))

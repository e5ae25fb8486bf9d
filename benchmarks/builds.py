"""What building costs: networks of six residual blocks, a small program, and a long one.

In: a folder, and how often each is built. Out: seconds of one core of `spmd build`, with Python,
the C compiler and all that is imported, where no earlier build has left anything.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.growth import unrolled
from benchmarks.running import table
from tests.conftest import run

HEAD = """import numpy as np
import spmd
from spmd import nn, optim

WIDE, F = 64, np.float32
"""
DENSE = """
def block(p, x):
    h = nn.layer_norm(x, p["scale"], p["offset"])
    return x + nn.dense(nn.relu(nn.dense(h, p["w1"], p["b1"])), p["w2"], p["b2"])

def start(seed):
    draw = nn.init.he_normal()
    return {"scale": spmd.ones((WIDE,), F), "offset": spmd.zeros((WIDE,), F),
            "w1": draw(seed, (WIDE, 2 * WIDE), F), "b1": spmd.zeros((2 * WIDE,), F),
            "w2": draw(seed + 1, (2 * WIDE, WIDE), F), "b2": spmd.zeros((WIDE,), F)}

def loss(p, x, y):
    for q in p["blocks"]:
        x = block(q, x)
    return np.mean((nn.dense(x, p["w"], p["b"]) - y) ** 2)

@spmd.program(mesh=("r",))
def network(steps: int = 10):
    x = spmd.input("x", (256, WIDE), F, layout=("r", None), default=lambda i, j: (i * j) % 7)
    y = spmd.input("y", (256, 1), F, layout=("r", None), default=lambda i, j: i % 5)
    p = {"blocks": [start(10 * k) for k in range(6)], "b": spmd.zeros((1,), F),
         "w": nn.init.glorot_normal()(1000, (WIDE, 1), F)}
"""
CONVOLVED = """
def block(p, x):
    h = nn.relu(nn.layer_norm(nn.conv(x, p["w1"], p["b1"]), p["s1"], p["o1"]))
    return nn.relu(x + nn.layer_norm(nn.conv(h, p["w2"], p["b2"]), p["s2"], p["o2"]))

def start(seed):
    draw = nn.init.he_normal()
    return {f"w{k}": draw(seed + k, (3, 3, 16, 16), F) for k in (1, 2)} | {
        name: (spmd.ones if "s" in name else spmd.zeros)((16,), F)
        for name in ("b1", "s1", "o1", "b2", "s2", "o2")}

def loss(p, x, y):
    x = nn.conv(x, p["w0"])
    for q in p["blocks"]:
        x = block(q, x)
    logits = nn.dense(np.mean(x, axis=(1, 2)), p["w"], p["b"])
    return np.mean(nn.softmax_cross_entropy(logits, y))

@spmd.program(mesh=("r",))
def network(steps: int = 10):
    x = spmd.input("x", (64, 16, 16, 3), F, layout=("r", None, None, None),
                   default=lambda i, j, k, c: (i * j + k + c) % 7)
    y = spmd.input("y", (64,), np.int32, layout=("r",), default=lambda i: i % 5)
    p = {"w0": nn.init.he_normal()(1, (3, 3, 3, 16), F), "b": spmd.zeros((10,), F),
         "blocks": [start(10 * k) for k in range(6)],
         "w": nn.init.glorot_normal()(1000, (16, 10), F)}
"""
GLOBAL = """    adam, value = optim.adam(1e-3), np.float32(0)
    state = adam.init(p)
    for _ in spmd.range(steps):
        value, g = spmd.value_and_grad(loss)(p, x, y)
        updates, state = adam.update(g, state, p)
        p = optim.apply_updates(p, updates)
    return value, p
"""
EACH_RANK = """    adam = optim.adam(1e-3)
    @spmd.shard_map(mesh="r", in_layouts=(None, ("r", None), ("r", None)),
                    out_layouts=(None, None))
    def train(p, x, y):
        state, value = adam.init(p), spmd.pvary(F(0), "r")
        for _ in spmd.range(steps):
            value, g = spmd.value_and_grad(loss)(p, x, y)
            g = spmd.tree.map(lambda a: spmd.pmean(a, "r"), g)
            updates, state = adam.update(g, state, p)
            p = optim.apply_updates(p, updates)
        return spmd.pmean(value, "r"), p

    return train(p, x, y)
"""
SMALL = """import numpy as np
import spmd

@spmd.program(mesh=("r",))
def small(n: int = 1000):
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i)
    return np.sum(x * x)
"""
PROGRAMS = {
    "a sum of squares": SMALL,
    "400 statements, unrolled": unrolled(400),
    "six residual blocks, dense": HEAD + DENSE + GLOBAL,
    "the same in a rank's view": HEAD + DENSE + EACH_RANK,
    "six residual blocks, convolutions": HEAD + CONVOLVED + GLOBAL,
}


def measured(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of one core of every build, by program; programs alternate."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for k, (name, source) in enumerate(PROGRAMS.items()):
            path = folder / f"build_{k}.py"
            path.write_text(source)
            with tempfile.TemporaryDirectory() as cache:
                before = _used()
                run([sys.executable, "-m", "spmd", "build", path], timeout=300,
                    env={**os.environ, "SPMD_CACHE": cache}).expect(0)
                times[name].append(_used() - before)
    return times


def medians(folder: Path, rounds: int) -> list[tuple[str, str]]:
    return [(name, f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})")
            for name, s in measured(folder, rounds).items()]


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def report(folder: Path, rounds: int = 5) -> None:
    """The command `spmd build` of networks, a small program and a long one."""
    print(f"`spmd build`, seconds of one core with all that it starts, median of {rounds}:\n")
    table(["program", "seconds"], medians(folder, rounds))

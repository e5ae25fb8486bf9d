"""Calls of an open image, beside ONNX Runtime in the same process: Markdown on standard output.

`python -m benchmarks.entities`, where onnx and onnxruntime are installed. Every figure is the
median of many calls; ours and the peer's alternate in rounds, so that both meet the same
disturbances. Times are of Python calls, arrays in and arrays out.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import spmd
from tests.conftest import run

WIDTH, LENGTH, HEADS, LAYERS = 128, 64, 4, 2
rng = np.random.default_rng(0)


def medians(calls: dict[str, Callable[[], Any]], rounds: int = 15, each: int = 100) -> dict[str,
                                                                                           float]:
    """Microseconds of each call: the median over rounds of the median in a round."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            times = []
            for _ in range(each):
                began = time.perf_counter()
                call()
                times.append(time.perf_counter() - began)
            samples[name].append(statistics.median(times) * 1e6)
    return {name: statistics.median(times) for name, times in samples.items()}


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    head = list(head)
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


# ---- the peer ------------------------------------------------------------------------------------


class Onnx:
    """A graph that is written node by node."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.shape, self.count = shape, 0

    def weight(self, array: np.ndarray) -> str:
        self.count += 1
        self.weights.append(numpy_helper.from_array(array, f"w{self.count}"))
        return f"w{self.count}"

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.count += 1
        self.nodes.append(helper.make_node(kind, list(inputs), [f"v{self.count}"], **attributes))
        return f"v{self.count}"

    def session(self, result: str, threads: int) -> Any:
        self.nodes[-1].output[0] = "y"
        graph = helper.make_graph(
            self.nodes, "peer",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def called(session: Any, x: np.ndarray) -> Callable[[], Any]:
    inputs = {"x": x}
    return lambda: session.run(None, inputs)


# ---- the programs --------------------------------------------------------------------------------


@spmd.program(mesh=("r",))
class Small:
    @spmd.entry
    def scaled(self) -> Any:
        return spmd.input("x", (8,), np.float32) * spmd.scalar("by", 2.0) + 1


NETWORK = [rng.normal(size=shape).astype(np.float32) / 16 for shape in ((784, 256), (256, 10))]


@spmd.program(mesh=("r",), layout={"batch": "r"})
class Network:
    def __init__(self, rows: int = 1, at_most: int = 0) -> None:
        self.rows = spmd.Dim("batch", at_most=at_most) if at_most else spmd.Dim("batch", rows)
        self.first, self.second = NETWORK

    @spmd.entry
    def infer(self) -> Any:
        x = spmd.input("x", (self.rows, 784), np.float32)
        return np.maximum(x @ self.first, 0) @ self.second


def network_peer(rows: int, threads: int) -> Any:
    g = Onnx("network", (rows, 784))
    first, second = map(g.weight, NETWORK)
    hidden = g.node("Relu", g.node("MatMul", "x", first))
    return g.session(g.node("MatMul", hidden, second), threads)


def _layer() -> dict[str, np.ndarray]:
    def of(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))

    return {"qkv": of(WIDTH, 3 * WIDTH), "out": of(WIDTH, WIDTH), "up": of(WIDTH, 4 * WIDTH),
            "down": of(4 * WIDTH, WIDTH)}


BLOCKS = [_layer() for _ in range(LAYERS)]
SIZE = WIDTH // HEADS


@spmd.program(mesh=("r",))
class Transformer:
    """Blocks of attention and a network, without biases; heads and hidden units are split."""

    def __init__(self) -> None:
        self.blocks = []
        for b in BLOCKS:
            qkv = b["qkv"].reshape(WIDTH, 3, HEADS, SIZE)
            self.blocks.append({
                "q": spmd.asarray(np.ascontiguousarray(qkv[:, 0].transpose(1, 0, 2)),
                                  layout=("r", None, None)),
                "k": spmd.asarray(np.ascontiguousarray(qkv[:, 1].transpose(1, 0, 2)),
                                  layout=("r", None, None)),
                "v": spmd.asarray(np.ascontiguousarray(qkv[:, 2].transpose(1, 0, 2)),
                                  layout=("r", None, None)),
                "out": spmd.asarray(b["out"].reshape(HEADS, SIZE, WIDTH),
                                    layout=("r", None, None)),
                "up": spmd.asarray(b["up"], layout=(None, "r")),
                "down": spmd.asarray(b["down"], layout=("r", None)),
            })

    def norm(self, x: Any) -> Any:
        centred = x - np.mean(x, -1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + np.float32(1e-5))

    @spmd.entry
    def infer(self) -> Any:
        x = spmd.input("x", (LENGTH, WIDTH), np.float32)
        for b in self.blocks:
            n = self.norm(x)
            q, k, v = (np.matmul(n, b[name]) for name in ("q", "k", "v"))
            scores = np.matmul(q, k.transpose(0, 2, 1)) * np.float32(SIZE ** -0.5)
            scores = np.exp(scores - np.max(scores, -1, keepdims=True))
            mixed = np.matmul(scores / np.sum(scores, -1, keepdims=True), v)
            x = x + np.sum(np.matmul(mixed, b["out"]), 0)
            x = x + np.maximum(self.norm(x) @ b["up"], 0) @ b["down"]
        return x


def transformer_peer(threads: int) -> Any:
    g = Onnx("transformer", (LENGTH, WIDTH))
    ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    scale, bias = g.weight(ones), g.weight(zeros)
    factor = g.weight(np.float32(SIZE ** -0.5))
    split = g.weight(np.array([LENGTH, 3, HEADS, SIZE]))
    joined = g.weight(np.array([LENGTH, WIDTH]))
    index = [g.weight(np.int64(k)) for k in range(3)]
    x = "x"
    for b in BLOCKS:
        n = g.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
        qkv = g.node("Reshape", g.node("MatMul", n, g.weight(b["qkv"])), split)
        parts = g.node("Transpose", qkv, perm=[1, 2, 0, 3])
        q, k, v = (g.node("Gather", parts, i, axis=0) for i in index)
        scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 2, 1]))
        weights = g.node("Softmax", g.node("Mul", scores, factor), axis=-1)
        mixed = g.node("Transpose", g.node("MatMul", weights, v), perm=[1, 0, 2])
        mixed = g.node("MatMul", g.node("Reshape", mixed, joined), g.weight(b["out"]))
        x = g.node("Add", x, mixed)
        n = g.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
        up = g.node("Relu", g.node("MatMul", n, g.weight(b["up"])))
        x = g.node("Add", x, g.node("MatMul", up, g.weight(b["down"])))
    return g.session(x, threads)


@spmd.program(mesh=("r",))
class Twenty:
    """A step over 20 arrays that stay on the ranks; turns: so many steps in one call."""

    def __init__(self) -> None:
        self.arrays = [spmd.zeros((64, 64), np.float32, layout=("r", None)) for _ in range(20)]

    @spmd.entry
    def step(self) -> Any:
        rate = spmd.scalar("rate", 0.5)
        self.arrays = [a * rate + 1 for a in self.arrays]
        return self.arrays[0][0, 0]

    @spmd.entry
    def steps(self) -> Any:
        rate, turns = spmd.scalar("rate", 0.5), spmd.scalar("turns", 1)
        arrays = self.arrays
        for _ in spmd.range(turns):
            arrays = [a * rate + 1 for a in arrays]
        self.arrays = arrays
        return arrays[0][0, 0]


FOLLOW = """
import statistics, sys, time
import numpy as np
import spmd
from mpi4py import MPI
with spmd.load(sys.argv[1]).open(comm=MPI.COMM_WORLD) as m:
    if MPI.COMM_WORLD.rank:
        m.follow()
    else:
        x, times = np.arange(8, dtype=np.float32), []
        for _ in range(2000):
            began = time.perf_counter()
            m.scaled(x=x)
            times.append(time.perf_counter() - began)
        print(f"{statistics.median(times) * 1e6:.1f}")
"""


def small() -> None:
    g = Onnx("small", (8,))
    twice = g.node("Mul", "x", g.weight(np.float32(2)))
    peer = g.session(g.node("Add", twice, g.weight(np.float32(1))), 1)
    x, image = np.arange(8, dtype=np.float32), spmd.build(Small)
    rows = []
    for ranks in (1, 2):
        with image.open(ranks=ranks) as m:
            assert (m.scaled(x=x) == peer.run(None, {"x": x})[0]).all()
            count = iter(range(10**9))
            times = medians({"peer": called(peer, x), "ours": lambda: m.scaled(x=x),
                             "another scalar": lambda: m.scaled(x=x, by=float(next(count)))})
        rows.append((f"`x * 2 + 1`, 8 numbers, {ranks} rank{'s' * (ranks > 1)}",
                     f"{times['ours']:.1f}", f"{times['peer']:.1f}",
                     f"{times['ours'] / times['peer']:.2f}"))
        rows.append((f"the same with another scalar in each call, {ranks}",
                     f"{times['another scalar']:.1f}", "", ""))
    with tempfile.TemporaryDirectory() as folder:
        path, script = Path(folder, "small.img"), Path(folder, "follow.py")
        image.save(path)
        script.write_text(FOLLOW)
        done = run(["mpirun", "-n", 2, sys.executable, script, path], timeout=120).expect(0)
        rows.append(("the same in two processes, `follow()`", done.out.strip(), "", ""))
    table(("call", "µs", "ONNX Runtime, µs", "ratio"), rows)


def networks() -> None:
    rows = []
    for count, ranks in ((1, 1), (256, 2)):
        x, peer = rng.normal(size=(count, 784)).astype(np.float32), network_peer(count, ranks)
        with spmd.build(Network, rows=count).open(ranks=ranks) as m, spmd.build(
                Network, at_most=256).open(ranks=ranks) as bounded:
            np.testing.assert_allclose(m.infer(x=x), peer.run(None, {"x": x})[0], atol=1e-3)
            np.testing.assert_allclose(bounded.infer(x=x), m.infer(x=x), atol=1e-4)
            times = medians({"peer": called(peer, x), "ours": lambda: m.infer(x=x),
                             "bounded": lambda: bounded.infer(x=x)})
        rows.append((f"784-256-10, {count} row(s), {ranks} rank(s)", f"{times['ours']:.0f}",
                     f"{times['bounded']:.0f}", f"{times['peer']:.0f}",
                     f"{times['ours'] / times['peer']:.2f}",
                     f"{times['bounded'] / times['ours']:.2f}"))
    x, peer = rng.normal(size=(LENGTH, WIDTH)).astype(np.float32), transformer_peer(2)
    with spmd.build(Transformer).open(ranks=2) as m:
        np.testing.assert_allclose(m.infer(x=x), peer.run(None, {"x": x})[0], atol=1e-2)
        times = medians({"peer": called(peer, x), "ours": lambda: m.infer(x=x)})
    rows.append(("Transformer, heads over 2 ranks", f"{times['ours']:.0f}", "",
                 f"{times['peer']:.0f}", f"{times['ours'] / times['peer']:.2f}", ""))
    table(("network", "µs", "in a batch of at most 256", "ONNX Runtime, µs", "ratio",
           "bounded to fixed"), rows)


def resident() -> None:
    rows = []
    for ranks in (1, 2):
        with spmd.build(Twenty).open(ranks=ranks) as m:
            times = medians({"step": m.step, "many": lambda: m.steps(turns=101),
                             "one": lambda: m.steps(turns=1)})
            each = (times["many"] - times["one"]) / 100
        rows.append((f"a step over 20 arrays, {ranks} rank(s)", f"{times['step']:.0f}",
                     f"{each:.0f}", f"{times['step'] - each:.0f}"))
    table(("call", "µs", "a step in a loop of the program, µs", "more, µs"), rows)


def main() -> None:
    slow = [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ]
    if slow:  # for an older OpenBLAS than ours: it is read where a library is loaded
        left = {name: value for name, value in os.environ.items() if name not in slow}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.entities", *sys.argv[1:]],
                  left)
    for figure in (small, networks, resident):
        if not sys.argv[1:] or figure.__name__ in sys.argv[1:]:
            figure()


def report(_: Path) -> None:
    """Calls of open images beside ONNX Runtime."""
    print(run([sys.executable, "-m", "benchmarks.entities"], timeout=900).expect(0).out)


if __name__ == "__main__":
    main()

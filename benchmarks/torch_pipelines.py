"""Steps in torch.distributed.pipelining, for benchmarks.pipelines, which starts this file.

In: a schedule, microbatches, a file with weights and data; a process for each of two stages. Each
line of standard input is a number of steps. Out: a JSON line for each: seconds, losses, and the
most bytes that passes forward kept for passes backward. Needs torch, not spmd.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Layers(torch.nn.Module):
    """Some of the layers of the perceptron, whose parameters are of the dicts w."""

    def __init__(self, w: list[dict[str, Any]]) -> None:
        super().__init__()
        self.w = torch.nn.ModuleList(torch.nn.ParameterDict(
            {k: torch.nn.Parameter(torch.tensor(a)) for k, a in layer.items()}) for layer in w)

    def forward(self, x: Any) -> Any:
        for w in self.w:
            if "in" in w:
                x = torch.tanh(x @ w["in"])
            elif "out" in w:
                x = x @ w["out"]
            else:
                x = x + torch.tanh(x @ w["up"]) @ w["down"]
        return x


class Kept:
    """The bytes of what passes forward keep for passes backward, parameters aside: now, at most."""

    def __init__(self, module: Layers) -> None:
        self.own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.live: dict[int, list[int]] = {}  # by address: how many tensors, of how many bytes
        self.most = 0

    def pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self.own:
            self.live.setdefault(address, [0, storage.nbytes()])[0] += 1
            self.most = max(self.most, sum(size for _, size in self.live.values()))
        return _Held(self, address, tensor)


class _Held:
    """A tensor that is kept, until nothing refers to it."""

    def __init__(self, kept: Kept, address: int, tensor: Any) -> None:
        self.kept, self.address, self.tensor = kept, address, tensor

    def __del__(self) -> None:
        live = self.kept.live
        if self.address in live:
            live[self.address][0] -= 1
            if not live[self.address][0]:
                del live[self.address]


def main(schedule: str, microbatches: str, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stage, many = dist.get_rank(), int(microbatches)
    with open(file, "rb") as data:
        network = pickle.load(data)
    module = Layers(network["w"][:network["cut"]] if stage == 0 else network["w"][network["cut"]:])
    x, y = torch.tensor(network["x"]), torch.tensor(network["y"])
    steps = SCHEDULES[schedule](
        PipelineStage(module, stage, 2, torch.device("cpu")), many,
        loss_fn=lambda z, y: torch.mean((z - y) ** 2))
    tx = torch.optim.SGD(module.parameters(), network["rate"], fused=True)
    kept = Kept(module)

    def step() -> float:
        tx.zero_grad()
        losses: list[Any] = []
        if stage == 0:
            steps.step(x)
        else:
            steps.step(target=y, losses=losses)
        tx.step()
        return float(sum(losses).detach() / many) if losses else 0.0

    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda held: held.tensor):
        first = step()
    for line in sys.stdin:
        dist.barrier()
        begin = time.perf_counter()
        losses = [step() for _ in range(int(line))]
        dist.barrier()
        print(json.dumps({"seconds": time.perf_counter() - begin, "kept": kept.most,
                          "losses": [first, *losses][:4]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

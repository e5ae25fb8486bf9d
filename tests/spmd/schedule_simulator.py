"""Pipelines, simulated action by action: what schedules are held to, sharing no code with them.

In: rows (tick, stage, kind, microbatch). Out: what each stage did and kept. An AssertionError
names the first action that cannot be done, as it would fail if a pipeline ran it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

Row = tuple[int, int, str, int]


class Simulation:
    """Stages that hand on microbatches, tick by tick; `rows` are in the order of ticks.

    kept: the most activations that a stage held. crossed: the most updates of a stage between F and
    B of a microbatch. busy: the ticks of each stage's actions. ended: (stage, microbatch) of all
    gradients. applied: the microbatches of each update, by stage.
    """

    def __init__(self, rows: list[Row], stages: int) -> None:
        self.stages = stages
        self.split = any(kind == "W" for _, _, kind, _ in rows)
        self.outputs: dict[tuple[str, int, int], int] = {}  # the tick in which one was computed
        self.held: list[set[int]] = [set() for _ in range(stages)]
        self.kept = [0] * stages
        self.updates = [0] * stages
        self.crossed = [0] * stages
        self.began: dict[tuple[int, int], int] = {}
        self.sums: list[list[int]] = [[] for _ in range(stages)]
        self.applied: dict[int, list[list[int]]] = defaultdict(list)
        self.busy: list[list[int]] = [[] for _ in range(stages)]
        self.ended: set[tuple[int, int]] = set()
        self.freed: list[tuple[int, int]] = []
        self.changed: list[int] = []
        now = -1
        for row in rows:
            if row[0] != now:
                self.end_of_tick()
                assert row[0] > now, f"{row} is out of order"
                now = row[0]
            self.act(*row)
        self.end_of_tick()

    def end_of_tick(self) -> None:
        for stage, k in self.freed:
            self.held[stage].remove(k)
        for stage in self.changed:
            self.updates[stage] += 1
            self.applied[stage].append(self.sums[stage])
            self.sums[stage] = []
        self.freed, self.changed = [], []

    def act(self, tick: int, stage: int, kind: str, k: int) -> None:
        where = f"tick {tick}, stage {stage}: {kind}{k}"
        if kind == "U":
            assert k == max(self.sums[stage]), f"{where}: gradients of {self.sums[stage]}"
            self.changed.append(stage)
            return
        assert not self.busy[stage] or self.busy[stage][-1] < tick, f"{where}: a second action"
        assert (kind, stage, k) not in self.outputs, f"{where}: again"
        self.busy[stage].append(tick)
        self.outputs[kind, stage, k] = tick
        if kind == "F":
            assert stage == 0 or self.there("F", stage - 1, k, tick), f"{where}: no input"
            self.held[stage].add(k)
            self.began[stage, k] = self.updates[stage]
            self.kept[stage] = max(self.kept[stage], len(self.held[stage]))
            return
        if kind == "B":
            last = stage + 1 == self.stages
            assert last or self.there("B", stage + 1, k, tick), f"{where}: no gradient"
            assert self.there("F", stage, k, tick), f"{where}: no activations"
            crossed = self.updates[stage] - self.began[stage, k]
            self.crossed[stage] = max(self.crossed[stage], crossed)
        else:
            assert self.there("B", stage, k, tick), f"{where}: nothing to multiply with"
        if kind == "W" or not self.split:
            self.sums[stage].append(k)
            self.ended.add((stage, k))
            self.freed.append((stage, k))

    def there(self, kind: str, stage: int, k: int, tick: int) -> bool:
        return self.outputs.get((kind, stage, k), tick) < tick

    def idle(self, group: Any = lambda stage: stage) -> list[int]:
        """Ticks without an action between the first and the last one, by what `group` says."""
        ticks = defaultdict(list)
        for stage, busy in enumerate(self.busy):
            ticks[group(stage)] += busy
        return [max(t) - min(t) + 1 - len(set(t)) for _, t in sorted(ticks.items())]


def idle_units(rows: list[Row], stages: int, units: dict[str, int]) -> list[int]:
    """Idle units of each stage where all actions of a stage follow each other as soon as they can.

    Rows are in the order of ticks, so that what an action needs has been seen before.
    """
    end: dict[tuple[str, int, int], int] = {}
    free = [0] * stages
    first: list[int | None] = [None] * stages
    busy = [0] * stages
    for _, stage, kind, k in rows:
        if kind == "U":
            continue
        before = {"F": [("F", stage - 1, k)], "B": [("F", stage, k), ("B", stage + 1, k)],
                  "W": [("B", stage, k)]}[kind]
        begin = max([free[stage], *(end.get(b, 0) for b in before)])
        first[stage] = begin if first[stage] is None else first[stage]
        free[stage] = end[kind, stage, k] = begin + units[kind]
        busy[stage] += units[kind]
    return [free[s] - first[s] - busy[s] for s in range(stages)]

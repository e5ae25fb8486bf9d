"""Schedules as CSV tables: line t + 1 is tick t, column s is stage s, a cell 2F0 is an action.

A cell is empty where the stage is idle; an update stands behind the action whose tick it ends, as
in `2B0 2U0`. In: a file. Out: ticks, and a Problem for each cell that cannot be taken.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from codegen.errors import InputError
from spmd.schedules.actions import ABSENT, KINDS, Action, Ticks
from spmd.schedules.dependences import Problem, problems

CELL = re.compile(r"(\d{1,9})([FBWU])(\d{1,9})")

WRITE = 'make_schedule("1f1b", stages=4, microbatches=8).csv("FILE.csv") writes one'


def read_rows(path: str | Path) -> list[list[str]]:
    """Return the cells of a CSV file, line by line; InputError where it cannot be read."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"cannot read the schedule {path}: {error}",
                         expected="a CSV table", remedy=WRITE) from None
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def actions_in(rows: list[list[str]], stages: int) -> tuple[list[Action], list[Problem]]:
    """Return the actions of a table in the order of ticks, and what is wrong with its cells."""
    actions, faults = [], []
    for tick, row in enumerate(rows):
        for column, cell in enumerate(row):
            names = cell.split()
            taken = []
            for name in names:
                match = CELL.fullmatch(name)
                if column >= stages:
                    faults.append(Problem(tick, column, f"there are {stages} stages, from 0 on"))
                elif match is None:
                    text = f"{name!r} is no action, which is written as {column}F0"
                    faults.append(Problem(tick, column, text))
                elif int(match[1]) != column:
                    text = f"{name} is of stage {int(match[1])}, whose column is another"
                    faults.append(Problem(tick, column, text))
                else:
                    taken.append(Action(tick, column, match[2], int(match[3])))
            if sum(a.kind != "U" for a in taken) > 1 or sum(a.kind == "U" for a in taken) > 1:
                text = f"{' and '.join(names)} in one tick"
                faults.append(Problem(tick, column, text))
            actions += taken
    return actions, faults


def ticks_of_actions(
    actions: Iterable[Action], stages: int, microbatches: int
) -> tuple[Ticks, list[Problem]]:
    """Return the ticks of one step, and a Problem for each action that is there again."""
    rows: dict[str, list[list[int]]] = {}
    faults = []
    for action in sorted(actions):
        tick, stage, kind, k = action
        if k >= microbatches:
            text = f"{action}: there are {microbatches} microbatches, from 0 on"
            faults.append(Problem(tick, stage, text))
            continue
        row = rows.setdefault(kind, [[ABSENT] * microbatches for _ in range(stages)])[stage]
        if row[k] == ABSENT:
            row[k] = tick
        else:
            faults.append(Problem(tick, stage, f"{kind} of microbatch {k} again", row[k]))
    for kind in "FB":
        rows.setdefault(kind, [[ABSENT] * microbatches for _ in range(stages)])
    return {kind: rows[kind] for kind in KINDS if kind in rows}, faults


def complete(ticks: Ticks, stages: int, microbatches: int) -> bool:
    """Return whether there are F and B, and a row of each stage, with ticks of all microbatches."""
    return {"F", "B"} <= set(ticks) <= set(KINDS) and all(
        len(rows) == stages and all(len(row) == microbatches for row in rows)
        for rows in ticks.values())


def period_of_table(ticks: Ticks) -> int | None:
    """Return the fewest ticks after which the next step may follow; None for tables without U."""
    if "U" not in ticks:
        return None
    busy = max(sum(len(ticks[kind][s]) for kind in ticks if kind != "U")
               for s in range(len(ticks["F"])))
    last = 1 + max(t for rows in ticks.values() for row in rows for t in row)
    return next((n for n in range(busy, last) if not problems(ticks, n)), last)


def microbatches_in(actions: Sequence[Action], path: str | Path) -> int:
    """Return how many microbatches a table has: one more than the largest number that may be."""
    numbers = [a.microbatch for a in actions]
    count = max(numbers, default=ABSENT) + 1
    if count > len(numbers):  # so many cannot all be there
        count = len(set(numbers))
    if not count:
        raise InputError(f"{path}: a table without any action",
                         expected="cells such as 2F0: stage 2, forward, microbatch 0",
                         remedy=WRITE)
    return count


def table_text(actions: Iterable[Action], stages: int) -> str:
    """Return the text of a table."""
    cells: dict[tuple[int, int], list[str]] = {}
    last = 0
    for action in sorted(actions, key=lambda a: (a.tick, a.stage, a.kind == "U")):
        cells.setdefault((action.tick, action.stage), []).append(str(action))
        last = max(last, action.tick)
    return "".join(
        ",".join(" ".join(cells.get((t, s), ())) for s in range(stages)) + "\n"
        for t in range(last + 1)
    )

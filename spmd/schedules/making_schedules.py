"""From a name, formulas or a table to a Schedule that has passed every check.

In: what a user calls a schedule, and its sizes. Out: a Schedule; UsageError for what is no
schedule, ScheduleError with a line for each rule that one breaks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from codegen.errors import ScheduleError, UsageError
from codegen.suggest import meant
from spmd.schedules import schedule_tables, tick_formulas
from spmd.schedules.actions import ABSENT, Ticks, plain_integer
from spmd.schedules.built_in import BUILT_IN, Recipe, rows_of_orders
from spmd.schedules.dependences import Problem, in_order, problems
from spmd.schedules.pipeline_schedule import Schedule

CORRECTIONS = ("none", "stash", "two versions", "discrepancy")
RIGHT = ('ticks of a schedule that is right, to begin with: '
         'print(spmd.schedules.make_schedule("1f1b", stages, microbatches).csv())')
FEW, MANY = 10, 100  # lines of a message
FOR_ALL_SIZES = "proved for all numbers of stages and microbatches"


def make_schedule(
    schedule: Schedule | str | os.PathLike[str] | Callable[..., dict[str, Any]],
    stages: int | None = None, microbatches: int | None = None,
    accumulate: int | str | None = None, correction: str | None = None, keep: int | None = None,
) -> Schedule:
    """Return a Schedule for so many stages and microbatches in a step, after it is checked.

    schedule: a name of `spmd.schedules.BUILT_IN`; a function of stage s of p and microbatch k of m
    that returns the ticks of F, B and, where you want them, W and U; the path of a CSV table, which
    says itself how many stages and microbatches there are; or a Schedule. accumulate: the gradients
    of how many microbatches a stage is updated by, or "8 ticks", or "1 cycle" of m microbatches.
    correction: "none", "stash" (weights of the forward pass are kept for the backward pass), "two
    versions" (no more than those) or "discrepancy". keep: activations of how many microbatches a
    stage may keep at most.

    Without U a step flushes the pipeline and updates at its end; with U it never flushes, and
    microbatch k + m does what k does, a number of ticks later.

    Checked are dependences, one action of a stage in a tick, each microbatch once in a step, and
    what stages keep: ScheduleError has a line for each rule that is broken. `proof` of the result
    says whether formulas are proved for all sizes, or checked for those asked.

    Example::

        >>> import spmd
        >>> schedule = spmd.schedules.make_schedule("1f1b", stages=2, microbatches=3)
        >>> print(schedule.text())
        1f1b: 2 stages, 3 microbatches, 8 ticks, flushes after each step
                  0  1  2  3  4  5  6  7   idle  kept
        stage 0  F0  . F1 B0 F2 B1  . B2      2     2
        stage 1   . F0 B0 F1 B1 F2 B2  .      0     1
        >>> schedule.kept(0), schedule.times().idle, schedule.proof
        (2, (3.0, 0.0), 'proved for all numbers of stages and microbatches')
        >>> lines = lambda s, p, k, m: {"F": 2*k + s, "B": 2*(k + p) - 1 - s}
        >>> spmd.schedules.make_schedule(lines, 2, 3).csv() == schedule.csv()
        True
    """
    stages, microbatches, keep = (
        number if number is None else _positive(name, number) for name, number in (
            ("stages", stages), ("microbatches", microbatches), ("keep", keep)))
    if not (callable(schedule) or isinstance(schedule, Schedule | str | os.PathLike)):
        raise UsageError(f"no schedule: {schedule!r}", remedy='schedule="1f1b"',
                         expected="a name, a function, the path of a table, or a Schedule")
    if isinstance(schedule, Schedule):
        result = _as_asked(schedule, stages, microbatches, accumulate, correction)
        where, first_line = f"{schedule.name}: ", None
    elif isinstance(schedule, str) and not schedule.endswith(".csv"):
        result = _named(schedule, *_sizes(stages, microbatches), accumulate, correction)
        where, first_line = f"{schedule}: ", None
    elif callable(schedule):
        p, m = _sizes(stages, microbatches)
        result = _by_formulas(schedule, p, m, accumulate, correction)
        where, first_line = tick_formulas.where_written(schedule), None
    else:
        result = _by_table(os.fspath(schedule), stages, microbatches, accumulate, correction)
        where, first_line = os.fspath(schedule), 1
    _refuse(_full_stages(result, keep), where, first_line, "more slots, or another schedule")
    most = max(map(result.in_flight, range(result.stages)))
    _refuse(_stages_with_more_versions(result), where, first_line, f"accumulate={most}")
    return result


def _positive(name: str, number: Any) -> int:
    """Return a size as an integer of Python's; UsageError where it is none, or below 1."""
    size = plain_integer(number)
    if size is None or size < 1:
        raise UsageError(f"{name}={number!r}", expected=f"{name} of at least 1", remedy=f"{name}=4")
    return size


def _as_asked(schedule: Schedule, stages: int | None, microbatches: int | None,
              accumulate: int | str | None, correction: str | None) -> Schedule:
    """Return a Schedule that has all of what is asked; UsageError where it has something else."""
    for name, asked in (("stages", stages), ("microbatches", microbatches),
                        ("accumulate", accumulate), ("correction", correction)):
        own = getattr(schedule, name)
        if asked is not None and asked != own:
            raise UsageError(f"{name}={asked!r}, and the schedule has {own!r}",
                             expected=f"{name}={own!r}, as {schedule.name!r} is made for",
                             remedy=f"spmd.schedules.make_schedule(…, {name}={asked!r})")
    _refuse(problems(schedule.ticks, schedule.period), f"{schedule.name}: ", None)
    return schedule


def _sizes(stages: int | None, microbatches: int | None) -> tuple[int, int]:
    if stages is None or microbatches is None:
        raise UsageError("a schedule by name or by formulas has no sizes of its own",
                         remedy="stages=4, microbatches=8")
    return stages, microbatches


def _named(
    name: str, p: int, m: int, accumulate: int | str | None, correction: str | None
) -> Schedule:
    recipe = BUILT_IN.get(name)
    if recipe is None:
        raise UsageError(
            f"no schedule is called {name!r}", expected=f"one of {', '.join(BUILT_IN)}; "
            "a path that ends with .csv; or a function",
            remedy=meant(name, BUILT_IN) or 'schedule="1f1b"')
    if recipe.formulas is not None:
        ticks = tick_formulas.ticks_of_formulas(recipe.formulas, p, m)
        period = tick_formulas.period_of_formulas(recipe.formulas, ticks, p, m)
        for_all = _proved(name)
    else:
        assert recipe.orders is not None
        ticks, period = rows_of_orders(recipe.orders(p, m), p, m), None
        for_all = False
    _refuse(problems(ticks, period), f"{name}: ", None)
    return _schedule(name, ticks, period, accumulate, correction, for_all, recipe)


@cache
def _proved(name: str) -> bool:
    recipe = BUILT_IN[name]
    return recipe.formulas is not None and tick_formulas.proved(recipe.formulas, recipe.kept)


def _by_formulas(
    formulas: Callable[..., dict[str, Any]], p: int, m: int, accumulate: int | str | None,
    correction: str | None,
) -> Schedule:
    ticks = tick_formulas.ticks_of_formulas(formulas, p, m)
    where = tick_formulas.where_written(formulas)
    try:
        period = tick_formulas.period_of_formulas(formulas, ticks, p, m)
    except UsageError:
        _refuse(problems(ticks, None), where, None)
        raise
    _refuse(problems(ticks, period), where, None)
    name = getattr(formulas, "__name__", "formulas").replace("<lambda>", "formulas")
    return _schedule(name, ticks, period, accumulate, correction, tick_formulas.proved(formulas))


def _by_table(
    path: str, stages: int | None, microbatches: int | None, accumulate: int | str | None,
    correction: str | None,
) -> Schedule:
    rows = schedule_tables.read_rows(path)
    columns = max((s + 1 for row in rows for s, cell in enumerate(row) if cell), default=0)
    if stages is not None and stages > columns:
        raise ScheduleError((f"{path}: {columns} columns, and there are {stages} stages",),
                            remedy=f"stages={columns}, or a table with a column for each stage")
    stages = stages or columns
    actions, wrong = schedule_tables.actions_in(rows, stages)
    if not actions:
        _refuse(in_order(wrong), path, 1)
    own = schedule_tables.microbatches_in(actions, path)
    m = microbatches or own
    if own < m:
        said = f"{path}: microbatches of a step: {own} in the table, {m} are asked for"
        raise ScheduleError(
            (said,), remedy=f"microbatches={own}, or a table with the actions of all {m}")
    ticks, again = schedule_tables.ticks_of_actions(actions, stages, m)
    wrongs = [*wrong, *again, *problems(ticks, None)]
    in_cells = {(p.tick, p.stage) for p in wrong}  # two actions of one cell are said once
    wrongs = [*wrong, *(p for p in wrongs[len(wrong):]
                        if (p.tick, p.stage) not in in_cells or p.other != p.tick)]
    of_layers = len({(a.stage, a.microbatch) for a in actions}) == m > 1
    remedy = "the number behind F, B or W is a microbatch, which goes through all stages"
    _refuse(in_order(wrongs), path, 1, remedy if of_layers else "")
    period = schedule_tables.period_of_table(ticks)
    _refuse(problems(ticks, period), path, 1)
    return _schedule(os.path.basename(path), ticks, period, accumulate, correction, False)


def _schedule(
    name: str, ticks: Ticks, period: int | None, accumulate: int | str | None,
    correction: str | None, for_all: bool, recipe: Recipe | None = None,
) -> Schedule:
    p, m = len(ticks["F"]), len(ticks["F"][0])
    if correction is None:
        correction = recipe.correction if recipe else "none"
    if correction not in CORRECTIONS:
        raise UsageError(f"correction={correction!r}", expected=f"one of {', '.join(CORRECTIONS)}",
                         remedy=meant(correction, CORRECTIONS) or 'correction="none"')
    if period is None and correction != "none":
        raise UsageError(
            f'correction={correction!r} in a schedule that flushes: no update comes between the '
            "passes of a microbatch", remedy='correction="none"')
    place = recipe.place if recipe else "block"
    return Schedule(
        name, p, m, {kind: tuple(map(tuple, rows)) for kind, rows in ticks.items()}, period,
        _accumulation(accumulate, ticks, period, recipe), correction, place,
        -(-p // 2) if place in ("round", "v") else p,
        FOR_ALL_SIZES if for_all else f"checked for {p} stages and {m} microbatches",
        recipe.source if recipe else "",
    )


def _accumulation(
    accumulate: int | str | None, ticks: Ticks, period: int | None, recipe: Recipe | None
) -> int | str:
    """Return `accumulate` as a number of microbatches, or as "8 ticks"."""
    p, m = len(ticks["F"]), len(ticks["F"][0])
    own = _accumulated_in(ticks)
    if accumulate is None:
        return m if period is None else own if recipe is None else recipe.accumulate(p)
    match = re.fullmatch(r"([1-9]\d*) (tick|cycle)s?", str(accumulate))
    number = int(match[1]) if match else plain_integer(accumulate) or 0
    if number < 1:
        raise UsageError(f"accumulate={accumulate!r}", remedy=f"accumulate={m}",
                         expected='a number of microbatches, "8 ticks" or "1 cycle"')
    if match and match[2] == "cycle":
        number *= m
    if period is None and (number % m or (match and match[2] == "tick")):
        raise UsageError(
            f"accumulate={accumulate!r}, and the pipeline flushes after {m} microbatches",
            expected=f"a multiple of {m}", remedy=f"accumulate={-(-number // m) * m}")
    if period is not None and own != 1 and accumulate != own:
        raise UsageError(f"accumulate={accumulate!r}, and the table has updates of its own",
                         expected=f"accumulate={own}, or a table with U of each microbatch",
                         remedy=f"accumulate={own}")
    return f"{number} ticks" if match and match[2] == "tick" else number


def _accumulated_in(ticks: Ticks) -> int:
    """Return after how many microbatches U come in a table, at most."""
    most, size = 1, len(ticks["F"][0])
    for row in ticks.get("U", ()):
        own = [k for k, tick in enumerate(row) if tick != ABSENT]
        most = max([most, *(b - a for a, b in zip(own, [*own[1:], own[0] + size]))])
    return most


def _full_stages(schedule: Schedule, keep: int | None) -> list[Problem]:
    """Return a Problem for each stage that keeps activations of more than `keep` microbatches."""
    faults = []
    for s in range(schedule.stages):
        if keep is not None and (kept := schedule.kept(s)) > keep:
            tick = next((t for t, n in enumerate(schedule.kept_at(s)) if n > keep), ABSENT)
            text = f"{kept} activations are kept, and there are slots for {keep}"
            faults.append(Problem(tick, s, text))
    return faults


def _stages_with_more_versions(schedule: Schedule) -> list[Problem]:
    """Return a Problem for each stage that needs more than the two versions of its weights."""
    if schedule.correction != "two versions":
        return []
    return [
        Problem(ABSENT, s, f"stage {s} needs {versions} versions of its weights, and keeps two: "
                f"accumulate={schedule.accumulate} is less than what is in flight")
        for s in range(schedule.stages) if (versions := schedule.versions(s)) > 2]


def _refuse(
    faults: list[Problem], where: str, first_line: int | None, remedy: str = ""
) -> None:
    """Raise a ScheduleError where there are problems. where: the file, or what stands before each.
    """
    if not faults:
        return
    lines = []
    for problem in faults:
        prefix = where if first_line is None else (
            f"{where}: " if problem.tick == ABSENT else f"{where}:{problem.tick + first_line}: ")
        lines.append(prefix + problem.message(first_line))
    # one wrong formula breaks rules in many ticks; a table has each of its cells mended
    most = FEW if first_line is None else MANY
    raise ScheduleError(tuple(lines), remedy=remedy or RIGHT, lines=most)

"""Who works for whom: a pure function from what was measured to shares of workers.

In: pipelines, consumers, workers, the assignment before this one. Out: for every worker which part
of its time each consumer has, and why a pipeline waits. Rate equation: workers = consumption /
production. Always holds: no worker gives more than all of its time; no limit is passed; with enough
workers every consumer has what it takes, and less than one worker more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from spmd.feeding.scheduling.free_workers import SLIVER
from spmd.feeding.scheduling.max_min_fairness import Parts, divided
from spmd.feeding.scheduling.spare_capacity import SpareCapacity, spare_time
from spmd.feeding.scheduling.worker_shares import Budget, Held, Need, Pool, fit, held_by, supplied

Shares = dict[str, dict[str, float]]  # worker -> consumer -> part of its time

HEADROOM = 0.10  # of what a consumer takes, but never a whole worker
MOST_HEADROOM = 0.75  # workers
KEPT_FROM = 0.1  # of the headroom: what a consumer has is kept from here
KEPT_UP_TO = 1.5  # times what it takes, and at most
KEPT_MORE = 0.8  # workers more: it stays within one of the rate equation
NOISE = 0.03  # of what it takes: measured rates differ by so much from second to second
FAIR_ENOUGH = 0.93  # of what all could have: too few workers are not dealt anew for less
WORTH = 1.05  # times as much for the poorest: for less, nobody gives up workers of its own host
STEPS = 12  # halvings, to find a level
LEFT_OVER = 0.02  # of the time of workers: less is not dealt once more
MORE = 1.1  # times what it has: a pipeline that can have this goes on being raised


@dataclass(frozen=True)
class PipelineRow:
    """Holds the request of a pipeline. rates: examples/s of a worker by kind of device, until
    measured.

    limits and left: what it may spend in an hour, and yet in total, of "cost" and of "energy".
    workers: so many, whatever the rates say. preferred: agents, hosts or addresses. acts: it has
    environments.
    """

    name: str
    priority: int = 0
    workers: int | None = None
    max_workers: int | None = None
    estimated_s: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    left: Mapping[str, float] = field(default_factory=dict)
    preferred: frozenset[str] = frozenset()
    acts: bool = False

    def without_spare(self) -> str:
        """Return why the pipeline has no spare time of others, or "": what it spends is counted in
        shares."""
        if self.acts:
            return "its environments stay with workers of its own"
        limited = bool(self.limits or self.left)
        return "with its limits it has nothing of what others leave" * limited


@dataclass(frozen=True)
class ConsumerRow:
    """A process of ranks. rate: examples/s that it takes when it never waits; None: not known.

    avoids: workers that it does not reach. preferred: names of those that are for it. first: it
    comes before others of its pipeline.
    """

    consumer: str
    pipeline: str
    rate: float | None = None
    host: str = ""
    avoids: frozenset[str] = frozenset()
    preferred: frozenset[str] = frozenset()
    first: bool = False


@dataclass(frozen=True)
class WorkerRow:
    """Describes a worker. rates: measured, by pipeline. names: those by which it may be preferred.

    prices: "cost" and "energy" of an hour.
    """

    worker: str
    host: str = ""
    device: str = "cpu"
    rates: Mapping[str, float] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """Holds which consumers have which workers. shares: worker -> consumer -> part of its time.
    pending: pipeline -> why it has no worker.

    needs: how many workers each consumer takes by the rate equation (None: not known yet).
    lacks: how many more would do, for those that have too few.
    limited: pipeline -> the setting that lets it have no more.
    spare: consumer -> the workers of which it has what others leave.
    """

    shares: Shares = field(default_factory=dict)
    pending: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, float | None] = field(default_factory=dict)
    lacks: Mapping[str, int] = field(default_factory=dict)
    limited: Mapping[str, str] = field(default_factory=dict)
    spare: Mapping[str, SpareCapacity] = field(default_factory=dict)

    def of(self, consumer: str) -> dict[str, float]:
        """Return the workers of a consumer, with their shares."""
        return {w: by_consumer[consumer] for w, by_consumer in self.shares.items()
                if consumer in by_consumer}


def assign(
    pipelines: Sequence[PipelineRow], consumers: Sequence[ConsumerRow],
    workers: Sequence[WorkerRow], before: Shares | None = None, turn: int = 0,
    spare_before: Mapping[str, SpareCapacity] | None = None,
) -> Assignment:
    """Assign workers to consumers: by priority, then max-min fair. turn: the number of the time
    slice, where slices are due.

    What consumers had before stays theirs as long as it is about what they need. Who lacks workers
    has what others leave of theirs.
    """
    rows = {row.name: row for row in pipelines}
    ours = [c for c in consumers if c.pipeline in rows]
    before = before or {}
    held = held_by(before)
    pool = Pool({w.worker: w for w in workers})
    demands = {name: list(_demands(row, [c for c in ours if c.pipeline == name], workers))
               for name, row in rows.items()}
    pending: dict[str, str] = {}
    budgets = {name: _budget(row) for name, row in rows.items()}
    for level in sorted({row.priority for row in pipelines}, reverse=True):
        mine = [row for row in pipelines if row.priority == level and demands[row.name]]
        able = [row for row in mine if not _note(pending, row.name, _refusal(row, workers))]
        if not able:
            continue
        if pool.is_empty():
            pending.update({row.name: _above(row, rows, pool) for row in able})
            continue
        able = _sliced(able, demands, budgets, pool, turn, pending)
        _level([d for row in able for d in demands[row.name]], budgets, pool, held)
    line = sorted(pipelines, key=lambda r: -r.priority)
    _spread([d for row in line for d in demands[row.name] if d.spread and row.name not in pending],
            budgets, pool, before)
    assignment = _told(rows, demands, pool, pending, budgets)
    waiting = {row.name for row in line if row.name in pending and not _refusal(row, workers)}
    return _with_spare(assignment, line, waiting, demands, budgets, pool, spare_before or {}, turn)


# ---- what each one needs ------------------------------------------------------------------------


def production(row: PipelineRow, workers: Sequence[WorkerRow]) -> dict[str, float] | None:
    """Return the examples/s of each worker: measured, else declared for its kind, else the mean of
    its kind, else of all. None where no rate is known."""
    measured = {w.worker: w.rates[row.name] for w in workers if w.rates.get(row.name, 0) > 0}
    kinds: dict[str, list[float]] = {}
    for w in workers:
        if w.worker in measured:
            kinds.setdefault(w.device, []).append(measured[w.worker])
    means = {**{kind: sum(r) / len(r) for kind, r in kinds.items()}}
    declared = {kind: rate for kind, rate in row.rates.items() if rate > 0}
    known = list(measured.values()) or [declared[w.device] for w in workers if w.device in declared]
    if not known:
        return None
    usual = sum(known) / len(known)
    return {w.worker: measured.get(w.worker) or declared.get(w.device) or means.get(w.device, usual)
            for w in workers}


def _demands(
    row: PipelineRow, consumers: Sequence[ConsumerRow], workers: Sequence[WorkerRow]
) -> Iterator[Need]:
    known_speeds = production(row, workers)
    speeds = known_speeds or {w.worker: 1.0 for w in workers}
    usual = sum(speeds.values()) / len(speeds) if speeds else 1.0
    fastest = max(speeds.values(), default=1.0)
    rates = [c.rate for c in consumers if c.rate]
    whole = sum(rates) / len(rates) if rates else 0.0
    total = sum(c.rate or whole for c in consumers)
    for c in consumers:
        known = bool(known_speeds and rates)
        need = (c.rate or whole) if known else usual
        more = min(HEADROOM * need, MOST_HEADROOM * usual) if known else 0.0
        if row.workers is not None:
            part = (c.rate or whole) / total if total else 1 / len(consumers)
            need, more = row.workers * usual * part, 0.0
        yield Need(c.consumer, row.name, c.host, need, need + more, usual, speeds, fastest,
                   c.avoids, c.preferred or row.preferred, known,
                   spread=not known and row.workers is None, first=c.first)


def _budget(row: PipelineRow) -> Budget:
    most, fixed = row.max_workers, row.workers
    if fixed is not None and (most is None or fixed <= most):
        return Budget(fixed, row.limits, "workers")
    return Budget(most, row.limits)


def _refusal(row: PipelineRow, workers: Sequence[WorkerRow]) -> str:
    """Return why a pipeline can have no worker at all, or ""."""
    if not workers:
        return "no worker has joined; try: python -m spmd feed worker --connect ADDRESS"
    for resource, left in row.left.items():
        if left <= 0:
            return (f"its limit of {resource} is used up; try: python -m spmd feed update "
                    f"{row.name} --{resource} MORE --connect ADDRESS")
    if row.max_workers == 0 or row.workers == 0:
        return (f"it is held at 0 workers; try: python -m spmd feed update {row.name} "
                "--max-workers 4 --connect ADDRESS")
    return ""


def _note(pending: dict[str, str], name: str, why: str) -> bool:
    if why:
        pending[name] = why
    return bool(why)


def _above(row: PipelineRow, rows: Mapping[str, PipelineRow], pool: Pool) -> str:
    """Return the text that pipelines of higher priority have all workers, and how long they may
    take."""
    busy = sorted({d for _, d in pool.owners()}, key=lambda n: (-rows[n].priority, n))
    names = ", ".join(f"{n} (priority {rows[n].priority})" for n in busy)
    times = [rows[n].estimated_s for n in busy]
    text = f"pipelines of higher priority have all workers: {names}"
    if times and all(t is not None for t in times):
        text += f"; about {max(t or 0 for t in times):.0f} s more"
    return f"{text}; try: more workers, or a priority above {row.priority}"


# ---- one priority -------------------------------------------------------------------------------


def _sliced(
    able: list[PipelineRow], demands: Mapping[str, list[Need]], budgets: Mapping[str, Budget],
    pool: Pool, turn: int, pending: dict[str, str],
) -> list[PipelineRow]:
    """Return the pipelines that have this time slice: workers rotate where they are too few for all
    pipelines.

    The shortest comes first. Others are pending.
    """
    every = [d for row in able for d in demands[row.name]]
    count = pool.workers_left()
    if count >= len(able) or fit(
            every, 1.0, {}, _copies(budgets), pool.copy(), {}, only_all=True):
        return able
    line = sorted(able, key=lambda r: (r.estimated_s is None, r.estimated_s or 0.0, r.name))
    first = turn * count % len(line)
    line = line[first:] + line[:first]
    for k, row in enumerate(line[count:]):
        turns = ceil((k + 1) / count)
        pending[row.name] = (
            f"{len(line)} pipelines of priority {row.priority} take turns on {count} "
            f"worker{'s' * (count > 1)}; its time slice comes after {turns} "
            f"other{'s' * (turns > 1)}; try: more workers")
    return line[:count]


def _level(
    demands: list[Need], budgets: Mapping[str, Budget], pool: Pool, before: Held
) -> None:
    """Assign workers to the consumers of one priority: what they need, or an equal part of it."""
    held = {d.consumer: supplied(d, before, pool) for d in demands}
    kept = {d.consumer: held[d.consumer] for d in demands if _is_right(d, held[d.consumer])}
    trial, spent = pool.copy(), _copies(budgets)
    if fit(demands, 1.0, kept, spent, trial, before, only_all=True):
        pool.become(trial)
        _take_over(budgets, spent)
        return
    goals = _fair_goals(demands, budgets, pool, before)
    if (best := _divided(demands, budgets, pool)) and best[0] > WORTH * goals.level:
        goals = max(goals, _fair_goals(demands, budgets, pool, before, *best),
                    key=lambda candidate: candidate.level)
    if all(goals.of[d.consumer] * FAIR_ENOUGH <= held[d.consumer] <= d.target for d in demands):
        goals = FairGoals(0.0, held, None)  # nobody could have much more: nothing moves
    fit(demands, 1.0, goals.of, budgets, pool, before, goals.parts)


class FairGoals(NamedTuple):
    """Holds the examples/s that each consumer should get. level: how many workers each pipeline has
    at least, if it needs so many. parts: which workers are best for whom."""

    level: float
    of: dict[str, float]
    parts: Parts | None


def _wanted(demands: list[Need]) -> dict[str, float]:
    """Return by pipeline how many workers of its usual speed it should get."""
    workers: dict[str, float] = {}
    for d in demands:
        workers[d.pipeline] = workers.get(d.pipeline, 0.0) + d.target / d.usual
    return workers


def _divided(
    demands: list[Need], budgets: Mapping[str, Budget], pool: Pool
) -> tuple[float, Parts] | None:
    """Return which workers are best for which pipelines, where their speeds or prices differ, and
    how many workers of its usual speed each pipeline can have."""
    wanted = _wanted(demands)
    if len(wanted) < 2:
        return None
    free = {w: left for w, left in pool.left.items() if left >= SLIVER}
    one_of = {d.pipeline: d for d in demands}
    speeds = {name: {w: d.speed(w) / d.usual for w in free} for name, d in one_of.items()}
    parts = divided(wanted, speeds, free, {w: pool.rows[w].prices for w in free},
                    {name: budgets[name].limits for name in wanted})
    had = {n: sum(part * speeds[n][w] for w, part in mine.items()) for n, mine in parts.items()}
    short = [had[n] for n in wanted if had[n] < 0.95 * wanted[n]]
    return min(short, default=max(wanted.values())), parts


def _fair_goals(
    demands: list[Need], budgets: Mapping[str, Budget], pool: Pool, before: Held,
    high: float = 0.0, parts: Parts | None = None,
) -> FairGoals:
    """Return max-min fair goals: all pipelines have equally many workers, but none more than it
    needs; what one cannot have the others share. Consumers of one pipeline have the same part of
    what they need.

    high: no more than so many can be had (0: not known).
    """
    wanted = _wanted(demands)

    def fits(levels: Mapping[str, float], trial: Pool | None = None) -> bool:
        goals = {d.consumer: d.target * levels[d.pipeline] for d in demands}
        return fit(demands, 1.0, goals, _copies(budgets), trial or pool.copy(), before, parts,
                   only_all=trial is None)

    def parts_at(level: float, active: list[str]) -> dict[str, float]:
        """Return the part of its want that each pipeline has: `level` workers for the active ones,
        the others as they are."""
        return {**levels, **{n: min(level / wanted[n], most[n]) for n in active}}

    most = dict.fromkeys(wanted, 1.0)
    for name in most:
        if budgets[name].is_bounded():
            own = [d for d in demands if d.pipeline == name]
            most[name] = _largest(lambda part, own=own: fit(  # type: ignore[misc]
                own, part, {}, _copies(budgets), pool.copy(), before, parts, only_all=True))
    levels, active, first = dict.fromkeys(most, 0.0), list(most), 0.0
    for turn in range(len(most)):
        level = _largest(lambda level, active=active: fits(  # type: ignore[misc]
            parts_at(level, active)), high or max(wanted[n] for n in active))
        first, high = first if turn else level, 0.0
        levels, trial = parts_at(level, active), pool.copy()
        fits(levels, trial)
        if sum(trial.left.values()) < LEFT_OVER * sum(pool.left.values()):
            break
        active = [n for n in active if 0 < levels[n] < most[n]
                  and fits({**levels, n: min(levels[n] * MORE, most[n])})]
        if not active:
            break
    return FairGoals(first, _first_ones(demands, levels), parts)


def _first_ones(demands: list[Need], levels: Mapping[str, float]) -> dict[str, float]:
    """Return how much each consumer should get: the same part of what it needs as all of its
    pipeline; but those that come first have all of it, as far as that goes."""
    goals: dict[str, float] = {}
    for name, level in levels.items():
        mine = [d for d in demands if d.pipeline == name]
        left = level * sum(d.target for d in mine)
        for group in ([d for d in mine if d.first], [d for d in mine if not d.first]):
            wanted = sum(d.target for d in group)
            part = min(1.0, left / wanted) if wanted else 0.0
            goals.update({d.consumer: part * d.target for d in group})
            left -= part * wanted
    return goals


def _is_right(d: Need, supply: float) -> bool:
    """Return whether a consumer has about what it needs."""
    low = d.need + (d.target - d.need) * KEPT_FROM
    return low <= supply <= min((1 + NOISE) * d.need + KEPT_MORE * d.usual, KEPT_UP_TO * d.need)


def _largest(fits: Callable[[float], bool], high: float = 1.0) -> float:
    """Return the largest amount that fits, up to `high`."""
    if fits(high):
        return high
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _copies(budgets: Mapping[str, Budget]) -> dict[str, Budget]:
    return {name: budget.copy() for name, budget in budgets.items()}


def _take_over(budgets: Mapping[str, Budget], spent: Mapping[str, Budget]) -> None:
    for name, budget in budgets.items():
        budget.become(spent[name])


def _spread(
    demands: list[Need], budgets: Mapping[str, Budget], pool: Pool, before: Shares
) -> None:
    """Deal idle workers to consumers that were not measured yet, so that they will be."""
    idle = pool.idle() if demands else []
    fair = (len(idle) + sum(len(pool.of(d.consumer)) for d in demands)) // max(1, len(demands))
    for worker in idle:
        owners, host = before.get(worker, {}), pool.rows[worker].host
        order = sorted(demands, key=lambda d: (
            d.consumer not in owners or len(pool.of(d.consumer)) >= fair,
            len(pool.of(d.consumer)), d.host != host))
        for d in order:
            if d.speed(worker) and pool.take(d, worker, 1.0, budgets[d.pipeline]) > 0:
                break


def _with_spare(
    assignment: Assignment, line: Sequence[PipelineRow], waiting: Set[str],
    demands: Mapping[str, list[Need]], budgets: Mapping[str, Budget], pool: Pool,
    before: Mapping[str, SpareCapacity], turn: int,
) -> Assignment:
    """Add spare time to an assignment: consumers that lack workers, the highest priority first,
    have what others leave. The reasons of waiting pipelines say so."""
    rows = {row.name: row for row in line}

    def is_short(d: Need) -> bool:
        """Return whether a consumer should have spare time. One that had some keeps it until it has
        a little more than it needs."""
        more = d.known and d.consumer in before and _had(d, pool) < d.target
        return more or d.consumer in assignment.lacks or not pool.of(d.consumer)

    short = [d for row in line if not row.without_spare()
             for d in filter(is_short, demands[row.name])]
    levels = sorted({rows[d.pipeline].priority for d in short}, reverse=True)
    behind = {d.pipeline: 1 + levels.index(rows[d.pipeline].priority) for d in short}
    spare = spare_time(short, behind, budgets, pool, before, turn)
    served, pending = {d.pipeline for d in short if d.consumer in spare}, dict(assignment.pending)
    for name in waiting:
        if why := rows[name].without_spare():
            pending[name] += f"; {why}"
        elif name in served:
            pending[name] += "; until then it has what others leave of their time"
    return replace(assignment, pending=pending, spare=spare)


def _had(d: Need, pool: Pool) -> float:
    """Return the examples/s of the workers that a consumer has."""
    return sum(share * d.speed(w) for w, (_, share) in pool.of(d.consumer).items())


# ---- what is told -------------------------------------------------------------------------------


def _told(
    rows: Mapping[str, PipelineRow], demands: Mapping[str, list[Need]], pool: Pool,
    pending: dict[str, str], budgets: Mapping[str, Budget],
) -> Assignment:
    limited = {name: limit for name, budget in budgets.items() if (limit := budget.used_up())}
    needs: dict[str, float | None] = {}
    lacks: dict[str, int] = {}
    for name, mine in demands.items():
        for d in mine:
            needs[d.consumer] = d.need / d.usual if d.known else None
            short = d.need - _had(d, pool)
            if d.known and short > 0.005 * d.need:
                lacks[d.consumer] = max(1, ceil(short / d.usual - 0.05))
        if mine and name not in pending and not any(pool.of(d.consumer) for d in mine):
            dear = rows[name].limits
            pending[name] = (
                f"no worker is cheap enough for its limits of {' and '.join(dear)} in an hour"
                if dear else "all workers are taken; try: more workers")
    return Assignment(pool.shares(), pending, needs, lacks, limited)

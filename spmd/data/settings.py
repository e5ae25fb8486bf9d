"""What is said of a pipeline beside its operations: one row per setting, checked as it is written.

In: keywords of `@data.pipeline`, or JSON from another process. Out: Settings.
Always holds: every value is what JSON can say; a wrong one is refused with what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from typing import Any

from codegen.errors import Place, UsageError
from codegen.suggest import meant, nearest

SAMPLINGS = ("once", "independent")
POLICIES = ("stop", "skip")
QUEUES = ("fifo", "lifo")
PULLS = ("turn", "random", "all")
CODECS = ("auto", "none", "lz4", "zstd")
_RANKS = re.compile(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*")
LARGEST_SEED = 2**64 - 1
MOST_RANKS = 1 << 20  # of a job: a larger number is a mistake

# What says which examples there are and in what order: constant while a pipeline runs.
FIXED = frozenset({"sampling", "seed", "epochs", "shuffle", "image"})
ORDER = ("sampling", "seed", "shuffle")  # which example stands at which position


@dataclass(frozen=True)
class Settings:
    """All settings of a pipeline, with their defaults."""

    sampling: str = "once"
    seed: int = 0
    epochs: int | None = None
    shuffle: bool | int = True
    on_error: str = "stop"
    timeout: float | None = 60.0
    queue: str = "fifo"
    workers: int | list[str] | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    compress: str = "auto"
    user: str = ""
    priority: float = 0.0
    image: str = ""
    estimated_seconds: float | None = None
    rates: dict[str, float] = field(default_factory=dict)
    cost: float | None = None
    energy: float | None = None
    cost_per_hour: float | None = None
    energy_per_hour: float | None = None
    pull: str = "turn"
    ranks: int | list[int] | None = None
    device: str = ""
    takes: dict[str, float] = field(default_factory=dict)
    serves: dict[str, str] = field(default_factory=dict)
    first: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the settings as a dict that JSON can write; `read` reads it again."""
        return asdict(self)

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """Return settings with some values changed, as a running pipeline may get them.

        UsageError: a setting that does not exist, a wrong value, or one that says which examples
        there are: those are constant while a pipeline runs.
        """
        _check(changes, None)
        for name in changes:
            if name in FIXED and changes[name] != getattr(self, name):
                raise UsageError(
                    f"{name} of a running pipeline cannot be changed",
                    expected=f"{getattr(self, name)!r}, with which it began",
                    found=repr(changes[name]),
                    remedy="cancel it, and submit it again: it begins anew",
                )
        settings = replace(self, **{name: _plain(value) for name, value in changes.items()})
        _check_together(settings, None)
        return settings


def read(values: Mapping[str, Any], place: Place | None = None) -> Settings:
    """Return the Settings that a user gives. UsageError, which names the setting, for a wrong
    one."""
    _check(values, place)
    settings = Settings(**{name: _plain(value) for name, value in values.items()})
    _check_together(settings, place)
    return settings


def _plain(value: Any) -> Any:
    """Return a tuple as the list that JSON makes of it, a number of NumPy as Python's."""
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value.item() if hasattr(value, "item") else value


def _check(values: Mapping[str, Any], place: Place | None) -> None:
    for name, value in values.items():
        if name not in RULES:
            remedy = ELSEWHERE.get(name) or meant(name, RULES, "{}=…") or "remove it"
            raise UsageError(
                f"a pipeline has no setting {name!r}", place=place,
                expected=", ".join(sorted(RULES)),
                remedy=remedy,
            )
        holds, expected, remedy = RULES[name]
        if not holds(_plain(value)):
            remedy = _near(value, remedy)
            raise UsageError(
                f"{name} of a pipeline is wrong", place=place, expected=expected,
                found=repr(value), remedy=remedy,
            )


def _check_together(settings: Settings, place: Place | None) -> None:
    """Raise UsageError for a setting that another one leaves without effect."""
    independent = settings.sampling == "independent"
    if settings.queue == "lifo" and not independent:
        raise UsageError(
            "queue='lifo' has no effect where every example has its place in an epoch",
            place=place, expected="sampling='independent', where the newest example may come first",
            found=f"sampling={settings.sampling!r}",
            remedy="sampling='independent', or leave out queue")
    if settings.shuffle is not True and independent:
        raise UsageError(
            "shuffle has no effect where each example is drawn by itself", place=place,
            expected="sampling='once'", found=f"sampling='independent', "
            f"shuffle={settings.shuffle!r}", remedy="sampling='once', or leave out shuffle")


BATCH = "leave it out: the program says it, as in spmd.feed(x=spmd.spec((64, …), dtype))"

# What other libraries call it, and what it is here.
ELSEWHERE = {
    "num_workers": "workers=…, or leave it out: there are as many as the ranks need",
    "batch_size": BATCH, "batch": BATCH,
    "drop_last": "leave it out: a last batch that is not full is given where the program declares "
                 "the field mask",
    "collate_fn": "leave it out: examples are stacked; data.batched gets many at once",
    "worker_init_fn": "leave it out: what stands at the top of the file runs once in each worker",
    "transform": "call it in the function", "transforms": "call it in the function",
    "sampler": "source.where(…), data.mix(…, weights=…), or a data.ExampleSource of your own",
    "num_epochs": "epochs=…",
    **dict.fromkeys(("prefetch_factor", "pin_memory", "persistent_workers"),
                    "leave it out: batches are made ahead, and workers stay until the run ends"),
}


def _near(value: Any, remedy: str) -> str:
    """Return the remedy; before it the word that a misspelt value probably means, if there is
    one."""
    words = (*SAMPLINGS, *POLICIES, *QUEUES, *CODECS, *PULLS)
    near = nearest(value, words)
    return f"{near!r}; {remedy}" if near else remedy


# ---- rules

Rule = tuple[Callable[[Any], bool], str, str]


def _whole(value: Any, least: int = 0, most: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: Any, least: float = 0.0, open_: bool = True) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return False
    return value > least if open_ else value >= least


def _workers(value: Any) -> bool:
    several = isinstance(value, list) and bool(value)
    return value is None or _whole(value, 1) or (
        several and all(isinstance(v, str) and v for v in value))


def ranks_in(text: str) -> Callable[[int], bool]:
    """Return what tells whether a rank is among those that a text names.

    Raises ValueError for another text.

    ::

        >>> [k for k in range(9) if ranks_in("0-2,7")(k)]
        [0, 1, 2, 7]
    """
    ranges = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ranges.append((int(first), int(last if dash else first)))
    return lambda rank: any(low <= rank <= high for low, high in ranges)


def _names_ranks(value: Any) -> bool:
    return isinstance(value, str) and bool(_RANKS.fullmatch(value))


def _ranks(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(_whole(v, 1, MOST_RANKS) for v in value) and (
            value[0] <= value[1])
    return value is None or _whole(value, 1, MOST_RANKS)


def _rates(value: Any) -> bool:
    return isinstance(value, dict) and all(k and _number(v) for k, v in value.items())


def _one_of(words: tuple[str, ...], remedy: str) -> Rule:
    return (lambda v: isinstance(v, str) and v in words, " or ".join(map(repr, words)), remedy)


def _positive(unit: str, remedy: str) -> Rule:
    return (lambda v: v is None or _number(v), f"{unit}, above 0, or None", remedy)


RULES: dict[str, Rule] = {
    "sampling": _one_of(SAMPLINGS, "'once' gives every example of an epoch exactly once"),
    "seed": (lambda v: _whole(v, 0, LARGEST_SEED), "an integer from 0 to 2**64 - 1", "seed=0"),
    "epochs": (
        lambda v: v is None or _whole(v, 1), "a number of epochs from 1, or None for no end",
        "epochs=1 gives every example once",
    ),
    "shuffle": (
        lambda v: isinstance(v, bool) or _whole(v, 2),
        "True, False, or the length of a window of examples, from 2",
        "shuffle=1000 shuffles within each window of 1000 examples",
    ),
    "on_error": _one_of(POLICIES, "'skip' goes on without an example that raises"),
    "timeout": _positive("seconds for one example, or for one batch of data.batched",
                         "timeout=None waits for ever"),
    "queue": _one_of(QUEUES, "'fifo' gives the oldest first, 'lifo' the newest"),
    "workers": (
        _workers, "a number from 1, a list of addresses, or None",
        "None takes as many workers as the ranks need",
    ),
    "min_workers": (
        lambda v: v is None or _whole(v, 1), "a number from 1, or None", "None is none"),
    "max_workers": (
        lambda v: v is None or _whole(v, 1), "a number from 1, or None", "None is no limit"),
    "compress": _one_of(CODECS, "'auto' measures what pays"),
    "user": (lambda v: isinstance(v, str) and v.isprintable(), "a name", "user='me'"),
    "priority": (
        lambda v: _number(v, 0.0, open_=False), "a number from 0; a higher one comes first",
        "priority=0 comes last",
    ),
    "image": (lambda v: isinstance(v, str), "the name of an image file", "image='train.img'"),
    "estimated_seconds": _positive("a number of seconds", "estimated_seconds=3600"),
    "rates": (
        _rates, "a dict: kind of device -> examples per second, above 0",
        "rates={'cpu': 500.0}",
    ),
    "cost": _positive("the most that it may cost", "cost=None is no limit"),
    "energy": _positive("the most joules that it may take", "energy=None is no limit"),
    "cost_per_hour": _positive(
        "the most that its workers may cost in an hour", "cost_per_hour=None is no limit"),
    "energy_per_hour": _positive(
        "the most joules that its workers may take in an hour", "energy_per_hour=None is no limit"),
    "ranks": (
        _ranks, "a number from 1, (least, most), or None",
        "ranks=(2, 8): `feed submit` starts so many, too",
    ),
    "device": (lambda v: isinstance(v, str) and v.isprintable() and len(v) <= 64,
               "a kind of device", "device='gpu', as `feed worker --device` names it"),
    "takes": (
        _rates, "a dict: kind of device -> examples per second that a rank takes, above 0",
        "takes={'gpu': 9000.0}",
    ),
    "serves": (
        lambda v: isinstance(v, dict) and all(k and _names_ranks(r) for k, r in v.items()),
        "a dict: agent, host or address of a worker -> the ranks that it comes first for",
        "serves={'nodea': '0-3', 'nodeb': '4-7'}",
    ),
    "first": (lambda v: v == "" or _names_ranks(v), "ranks, as '0-3,8'",
              "first='0' is served first where workers are too few; '': all ranks alike"),
    "pull": _one_of(PULLS, "'turn' asks the workers of a rank one after the other"),
}

assert set(RULES) == {f.name for f in fields(Settings)}  # both say which settings there are

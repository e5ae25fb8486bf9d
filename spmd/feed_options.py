"""The options of `spmd feed`: one row for each of its commands.

In: the parser of feed. Out: its commands with their options. Nothing of feeding is imported here.
"""

from __future__ import annotations

import re
import shlex

from spmd import texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = "tcp://127.0.0.1:5570"
_HOURS = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")


def add(feed: Any) -> None:
    """Add all commands of feed to its parser."""
    commands = feed.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, (summary, options) in COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        parser = commands.add_parser(name, help=summary, description=description)
        options(parser)


def _serve(parser: Any) -> None:
    parser.add_argument("--listen", metavar="tcp://HOST:PORT", default=HERE,
                        help=f"default: {HERE}; tcp://0.0.0.0:5570 for other machines, with --keys")
    _add_keys(parser)
    parser.add_argument("--state", metavar="FILE", default="",
                        help="what outlives a restart; default: "
                        "~/.local/state/spmd/feed-PORT.sqlite")
    parser.add_argument("--page", metavar="PORT", type=texts.port, default=None,
                        help="a page on 127.0.0.1 with rates, /metrics for Prometheus, "
                        "/status.json")
    parser.add_argument("--slice", metavar="SECONDS", type=_positive, default=10.0,
                        help="how long a pipeline has the workers where several take turns; "
                        "default: 10")


def _worker(parser: Any) -> None:
    _add_connect(parser)
    parser.add_argument("--processes", metavar="N", type=texts.index, default=None,
                        help="workers on this machine; default: one for each core, none with "
                        "--slots")
    parser.add_argument("--device", metavar="KIND", default="cpu",
                        help="the kind of device, as pipelines name it in rates=; default: cpu")
    parser.add_argument("--slots", metavar="N", type=texts.index, default=0,
                        help="for how many ranks of jobs there is room (submit --ranks); "
                        "default: 0")
    parser.add_argument("--launch", metavar="'COMMAND -n {ranks}'", type=_launch, default=None,
                        help="what starts the ranks of a job, as 'srun -n {ranks}'; default: one "
                        "process has all of them")
    parser.add_argument("--folder", metavar="FOLDER", default="",
                        help="where each job gets a folder of its own; for a --launch that starts "
                        "ranks on other machines, one that all of them see; default: TMPDIR")
    parser.add_argument("--ports", metavar="FIRST-LAST", type=_ports, default=None,
                        help="where they listen, as a firewall lets through: 40000-40099; default: "
                        "SPMD_FEED_PORTS, or any")
    parser.add_argument("--free", metavar="HH:MM-HH:MM", type=_hours, default=None,
                        help="work at these hours only")
    parser.add_argument("--memory", metavar="SIZE", type=texts.size, default=0,
                        help="that all of them may take, as 8g; default: three quarters of what is "
                        "free")
    parser.add_argument("--cost", metavar="AMOUNT", type=_positive, default=0.0,
                        help="of one worker in an hour, for the limits of pipelines")
    parser.add_argument("--watts", metavar="W", type=_positive, default=0.0,
                        help="that one worker takes, for the limits of pipelines")


def _submit(parser: Any) -> None:
    parser.add_argument("file", metavar="FILE.py[:NAME]", help="a file with @data.pipeline in it")
    parser.add_argument("--name", default="", help="the name to submit it under; default: its own")
    parser.add_argument("--image", metavar="IMAGE",
                        help="the image that takes it: is compared first")
    parser.add_argument("--wait", metavar="SECONDS", type=_positive, default=5.0,
                        help="for a scheduler that still starts; default: 5")
    _add_job(parser)
    _add_settings(parser)
    _add_connect(parser)
    _add_json(parser)


def _add_job(parser: Any) -> None:
    """Add the options of the other half of a submission: the ranks that take the pipeline."""
    parser.add_argument("--ranks", metavar="N|LEAST-MOST|none", type=_or_none(_ranks), default=None,
                        help="start so many ranks of --image, too, where an agent has slots for "
                        "them; what they print and their exit status are those of this command; "
                        "default: as ranks= of the pipeline says")
    parser.add_argument("-i", "--input", metavar="[NAME=]FILE", type=texts.file, action="append",
                        default=[], help="with --ranks: as of run; FILE travels to them")
    _add_output(parser)
    parser.add_argument("--feed", metavar="NAME", default="",
                        help="with --ranks: the feed of the image that takes the pipeline, where "
                        "it has several")
    parser.add_argument("--launch", metavar="'COMMAND -n {ranks}'", type=_launch, default=None,
                        help="with --ranks: what starts them, as 'mpirun -n {ranks}'; default: as "
                        "the agent does")
    parser.add_argument("--options", metavar="'OPTION …'", type=shlex.split, default=[],
                        help="with --ranks: more options of run, as '--set steps=100'")
    parser.add_argument("--device", metavar="KIND", default="",
                        help="with --ranks: the kind of device that is preferred; default: device= "
                        "of the pipeline")
    parser.add_argument("--restarts", metavar="N", type=texts.index, default=0,
                        help="with --ranks: how often they begin again when they are lost; "
                        "default: 0")
    parser.add_argument("--until", metavar="'NAME < NUMBER'", type=_condition, default=None,
                        help="with --ranks: end well once what the program saves as NAME is so; "
                        "also <=, >, >=; of an array its mean")
    parser.add_argument("--detach", action="store_true",
                        help="with --ranks: do not wait for their end; fetch does")


def _condition(text: str) -> str:
    """Return the text of a condition, which is read where the names that it may have are known."""
    if not text.strip():
        raise ValueError(f"{text!r} is no condition such as 'loss < 0.1'")
    return text


def _add_output(parser: Any) -> None:
    parser.add_argument("-o", "--output", metavar="[NAME=]FILE", type=texts.file, action="append",
                        default=[], help="of ranks: as of run; FILE is here")


def _fetch(parser: Any) -> None:
    parser.add_argument("name", metavar="JOB", help="as submit named it: PIPELINE/NUMBER")
    _add_output(parser)
    _add_connect(parser)


def _update(parser: Any) -> None:
    parser.add_argument("name", metavar="PIPELINE", help="may be running: nothing is lost")
    parser.add_argument("--source", metavar="FILE.py[:NAME]", default="",
                        help="the text that workers compute from now on")
    _add_settings(parser)
    for name, (read, metavar, text) in SETTINGS_OF_RANKS.items():
        _add_setting(parser, name, read, metavar, text)
    _add_connect(parser)
    _add_json(parser)


def _cancel(parser: Any) -> None:
    parser.add_argument("name", metavar="PIPELINE|JOB",
                        help="runs that take it end, with a message; their checkpoints stay; a job "
                        "that has ended is forgotten")
    _add_connect(parser)
    _add_json(parser)


def _status(parser: Any) -> None:
    _add_shown(parser)
    _add_connect(parser)
    _add_json(parser)


def _add_shown(parser: Any) -> None:
    parser.add_argument("name", metavar="PIPELINE|JOB", nargs="?", default="",
                        help="this one, with all its ranks and workers; default: everything")


def _top(parser: Any) -> None:
    _add_shown(parser)
    parser.add_argument("--every", metavar="SECONDS", type=_positive, default=1.0,
                        help="default: 1; Ctrl-C ends it")
    _add_connect(parser)


def _keys(parser: Any) -> None:
    parser.add_argument("folder", metavar="FOLDER",
                        help="gets server.key, server.secret, client.key and client.secret")


# What a command of feed does, and its options.
COMMANDS = {
    "serve": ("the scheduler: assigns workers to ranks", _serve),
    "worker": ("workers of this machine, which compute examples", _worker),
    "submit": ("give a pipeline to the scheduler, and ranks that take it", _submit),
    "fetch": ("what the ranks of a job print, their outputs, their exit status", _fetch),
    "status": ("say what runs, how fast, and what to do", _status),
    "top": ("the same as it changes", _top),
    "update": ("change a pipeline while it runs", _update),
    "cancel": ("take a pipeline or a job away, and end the runs that take it", _cancel),
    "keys": ("make keys: nobody without one gets in", _keys),
}

# Settings of a pipeline that the command line can give: option, how it is read, its metavar, help.
SETTINGS: dict[str, tuple[Any, str, str]] = {
    "workers": (lambda word: _workers(word), "N|ADDRESS,…",
                "so many, whatever the rates say; or those that are preferred"),
    "min_workers": (texts.count, "N", "submitted ranks wait until so many workers are here"),
    "max_workers": (texts.count, "N", "at most so many"),
    "priority": (lambda word: _number(word), "P", "a higher one comes first"),
    "cost": (lambda word: _positive(word), "AMOUNT", "the most that it may cost in all"),
    "cost_per_hour": (lambda word: _positive(word), "AMOUNT", "the most in an hour"),
    "energy": (lambda word: _positive(word), "JOULES", "the most that it may take in all"),
    "energy_per_hour": (lambda word: _positive(word), "JOULES", "the most in an hour"),
    "estimated_seconds": (lambda word: _positive(word), "SECONDS",
                          "how long it will run; the shortest goes first in time slices"),
    "rates": (lambda word: _rates(word), "KIND=RATE,…",
              "examples/s of a worker, until it is measured"),
    "takes": (lambda word: _rates(word), "KIND=RATE,…",
              "examples/s that a rank takes, until it is measured"),
    "serves": (lambda word: dict(part.split("=", 1) for part in word.split(",") if "=" in part),
               "NODE=RANKS,…", "workers of NODE are first for these ranks: nodea=0-3,nodeb=4-7"),
    "first": (str, "RANKS", "ranks that are served first where workers are too few: 0-3"),
    "pull": (str, "HOW", "ask workers in turn, at random, or all: turn, random, all"),
    "queue": (str, "ORDER", "fifo or lifo"),
    "compress": (str, "CODEC", "auto, none, lz4 or zstd"),
    "on_error": (str, "POLICY", "stop or skip"),
    "timeout": (lambda word: _positive(word), "SECONDS",
                "for one example, or one batch of data.batched"),
    "user": (str, "NAME", "whose it is"),
}
# Those that `submit` has options for that are of one job.
SETTINGS_OF_RANKS: dict[str, tuple[Any, str, str]] = {
    "ranks": (lambda word: list(_ranks(word)), "N|LEAST-MOST",
              "so many ranks does submit start, where it says none"),
    "device": (str, "KIND", "the kind of device that its ranks prefer"),
}
LIMITS = ("ranks", "workers", "min_workers", "max_workers", "cost", "cost_per_hour", "energy",
          "energy_per_hour", "estimated_seconds", "timeout")  # those that "none" takes away
NONE = object()  # such a setting, which is given; None: it is not given


def command_line_settings(asked: Any) -> dict[str, Any]:
    """Return the settings that stand on the command line."""
    more = SETTINGS_OF_RANKS if asked.subcommand == "update" else ()
    settings = {name: getattr(asked, name, None) for name in (*SETTINGS, *more, "image")}
    return {name: None if value is NONE else value for name, value in settings.items()
            if value is not None}


def _add_settings(parser: Any) -> None:
    for name, (read, metavar, text) in SETTINGS.items():
        _add_setting(parser, name, read, metavar, text)


def _add_setting(parser: Any, name: str, read: Any, metavar: str, text: str) -> None:
    if name in LIMITS:
        read, metavar = _or_none(read), f"{metavar}|none"
    parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, type=read, default=None,
                        help=text)


def _add_connect(parser: Any) -> None:
    parser.add_argument("--connect", metavar="tcp://HOST:PORT", default=HERE,
                        help=f"where the scheduler is; default: {HERE}")
    _add_keys(parser)


def _add_keys(parser: Any) -> None:
    parser.add_argument("--keys", metavar="FOLDER", default="",
                        help="of feed keys; default: SPMD_FEED_KEYS, or those of this user on this "
                        "machine")


def _add_json(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="the same, for programs to read")


# ---- words


def _or_none(read: Any) -> Any:
    return lambda word: NONE if word == "none" else read(word)


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise ValueError(f"{word!r} is not a number from 0")
    return value


def _positive(word: str) -> float:
    value = _number(word)
    if value == 0:
        raise ValueError(f"{word!r} is not a number above 0")
    return value


def _ranks(word: str) -> tuple[int, int]:
    least, dash, most = word.partition("-")
    if not texts.is_number(least) or (dash and not texts.is_number(most)) or not (
            1 <= int(least) <= int(most or least) <= 1 << 20):
        raise ValueError(f"{word!r} is not N, or LEAST-MOST")
    return int(least), int(most or least)


def _launch(word: str) -> str:
    try:
        words = shlex.split(word)
    except ValueError as error:
        raise ValueError(f"{word!r}: {error}") from None
    if not words or "{ranks}" not in word:
        raise ValueError(f"{word!r} does not say {{ranks}}, as in 'mpirun -n {{ranks}}'")
    return word


def _ports(word: str) -> str:
    first, _, last = word.partition("-")
    if not (texts.is_number(first) and texts.is_number(last)
            and 1 <= int(first) <= int(last) <= 65535):
        raise ValueError(f"{word!r} is not FIRST-LAST, as 40000-40099")
    return word


def _hours(word: str) -> str:
    if not _HOURS.fullmatch(word):
        raise ValueError(f"{word!r} is not HH:MM-HH:MM, as 20:00-06:00")
    return word


def _workers(word: str) -> int | list[str]:
    return texts.count(word) if texts.is_number(word) else [p for p in word.split(",") if p]


def _rates(word: str) -> dict[str, float]:
    rates = {}
    for part in word.split(","):
        kind, equals, rate = part.partition("=")
        if not equals or not kind:
            raise ValueError(f"{word!r} is not KIND=RATE,KIND=RATE")
        rates[kind] = _positive(rate)
    return rates

"""The options of a launch, declared once: for the command line, for Python, for what runs.

In: options by name. Out: `Options`, and OPTIONS: what the command line and docstrings say of each.
Always holds: a name, its type, its default, how it is read and what it means stand in one row.
"""

from __future__ import annotations

from codegen.checks.names import checks_of
from spmd import texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, dataclass_transform
else:  # typing costs every rank more time than this file

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda declared: declared


TIME_LIMIT = 5.0  # seconds of silence until a process counts as lost


class Option:
    """A row describes one option. read: its text on the command line. known: all that it can be.
    form: in Python."""

    def __init__(self, default: Any, help: str, read: Callable[[str], Any], metavar: str,
                 known: tuple[str, ...], form: str) -> None:
        self.default, self.help, self.read = default, help, read
        self.metavar, self.known, self.form = metavar, known, form or ", ".join(known)


def option(
    *, default: Any, help: str, read: Callable[[str], Any] = str, metavar: str = "",
    known: tuple[str, ...] = (), form: str = "",
) -> Any:
    return Option(default, help, read, metavar, known, form)


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
class _Declared:
    """Takes the rows of its class by name, as a dataclass does, whose module is too dear."""

    def __init__(self, **values: Any) -> None:
        for name, row in OPTIONS.items():
            setattr(self, name, values.pop(name, row.default))
        for name in values:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
        paths = vars(self)["save"]
        if isinstance(paths, dict):
            vars(self)["save"] = {name: str(path) for name, path in paths.items()}


class Options(_Declared):
    """How an image runs: what `spmd run` and Image.open take."""

    ranks: int | None = option(
        default=None, read=texts.count, metavar="N",
        help="how many ranks in all; unless given, one for every process, or what the mesh says",
    )
    mesh: Mapping[str, int] | None = option(
        default=None, read=texts.mesh, metavar="AXIS=SIZE,…", form='{"x": 4, "y": 2}',
        help="sizes of mesh axes; unless given, as equal as possible",
    )
    threads: int | None = option(
        default=None, read=texts.count, metavar="W",
        help="threads of each process; unless given, as many as it has cores and ranks",
    )
    algorithm: str = option(
        default="auto", known=("auto", "flat", "blocks", "ring"),  # as the engine numbers them
        help="how reductions work; ring, of long ones: fragments travel in both directions",
    )
    barrier: str = option(
        default="auto", known=("auto", "strict"),
        help="strict: every exchange begins and ends with a barrier of its members; "
        "auto: ranks wait only for those whose data they read, or who read theirs",
    )
    transport: str = option(
        default="auto", known=("auto", "shm", "mpi"),
        help="auto: shared memory inside a host, MPI between hosts; shm, mpi: all by one of them",
    )
    time_limit: float = option(
        default=TIME_LIMIT, read=texts.seconds, metavar="SECONDS",
        help="a process silent for longer is lost, and the job ends with exit code 75; 0: wait "
        "for ever; unless given, 5",
    )
    comm: Any = option(
        default=None,
        help="an mpi4py communicator, one rank per process; outputs are then Distributed",
    )
    check: Any = option(
        default=False, read=checks_of, metavar="CHECKS", form='True, "all", or "bounds,nan"',
        help="end with the line and the rank where something is wrong: bounds (of run-time "
        "indices), nan (or an infinity made), equal (what all ranks hold), overflow (of integers), "
        "or all",
    )
    checkpoint: str | None = option(
        default=None, metavar="FOLDER",
        help="keep there what the outermost loop carries, again and again; needs every",
    )
    every: int | str | None = option(
        default=None, read=texts.every, metavar="TURNS|SECONDSs", form='100, or "30s"',
        help="how often a checkpoint is kept: every so many turns of the outermost loop, or about "
        "every so many seconds",
    )
    resume: str | None = option(
        default=None, metavar="FOLDER",
        help="go on from the last checkpoint there, on any number of ranks",
    )
    feed: Any = option(
        default=None, metavar="[NAME=]FILE|NAME@ADDRESS", form='batches, or {"train": batches}',
        help="where batches of feeds come from: an iterable of dicts of arrays with all rows, or a "
        "function that gives one; a pipeline, its file, or NAME@ADDRESS of one that is served",
    )
    state: Any = option(
        default=None, metavar="FILE.safetensors", form="FILE.safetensors, or a dict of arrays",
        help="of a class: the state that it begins with, instead of what __init__ makes; on any "
        "number of ranks",
    )
    save: Mapping[str, Any] | None = option(
        default=None, form='{"u": "frames/{}.npy"}, or {"u": "u.zarr"}',
        help="where frames go that the program saves while it runs, by the names of its saves",
    )
    keep: Iterable[str] | str | bool = option(
        default=(),
        help="names of outputs that stay with the ranks, True for all of them; they come as "
        "Distributed, and go into the next call as they are",
    )

    @property
    def checks(self) -> tuple[str, ...]:
        """Return the names of the checks that `check` asks for. Raises UsageError."""
        return checks_of(self.check)

    def agreed(self, spelling: Callable[[str], str] = str) -> dict[str, Any]:
        """Return, by name, what all processes of a job must be given alike."""
        names = ("algorithm", "barrier", "transport", "time_limit", "checkpoint", "every", "resume")
        said = {spelling(name): getattr(self, name) for name in names}
        return {**said, spelling("save"): sorted((self.save or {}).items())}


OPTIONS: dict[str, Option] = {
    name: row for name, row in vars(Options).items() if isinstance(row, Option)
}


def flag(name: str) -> str:
    """Return an option's name on the command line: --time-limit for time_limit."""
    return f"--{name.replace('_', '-')}"


def options_of(arguments: dict[str, Any]) -> Options:
    """Return the options among arguments of a command line."""
    return Options(**{name: arguments[name] for name in OPTIONS if name in arguments})

"""Every failure a user can meet: one class per cause, each with its exit code.

A message says where, what was expected, what was found and what to try. `Place` is a position in
the user's source; an error that has one prints `file:line`, the line and a caret.
Always holds: importing this module imports nothing at all; every rank does it at start.
"""

from __future__ import annotations

__all__ = [  # that users import from spmd
    "AgreementError", "CarryError", "CheckError", "DtypeError", "EnvironmentFault",
    "ImageError", "InputError", "InternalError", "KernelError", "LayoutError", "LayoutWarning",
    "MatchingError", "MeshError", "MissingError", "OutputError", "PeerError", "ProgramError",
    "ScheduleError", "ShapeError", "SpmdError", "TracedValueError", "UnsupportedError",
    "UsageError", "VersionError",
]

EXIT_USAGE = 2
EXIT_DATA = 65
EXIT_ENVIRONMENT = 69
EXIT_IO = 74
EXIT_PEER = 75
EXIT_CONFIG = 78


class Place:
    """A span of the user's source. `line` counts from 1, columns from 0; end_column may be -1.

    Written out, not a dataclass: that module costs each rank more time than all of ours.
    """

    __slots__ = ("column", "end_column", "file", "function", "line")
    file: str
    line: int
    column: int
    end_column: int
    function: str

    def __init__(
        self, file: str, line: int, column: int = 0, end_column: int = -1, function: str = ""
    ) -> None:
        put = object.__setattr__
        put(self, "file", file)
        put(self, "line", line)
        put(self, "column", column)
        put(self, "end_column", end_column)
        put(self, "function", function)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Place is constant; cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Place({', '.join(map(repr, self._key()))})"

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Place, self._key()

    def _key(self) -> tuple[str, int, int, int, str]:
        return (self.file, self.line, self.column, self.end_column, self.function)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def source_line(self) -> str:
        import linecache  # where something went wrong: no rank pays for it at start

        return linecache.getline(self.file, self.line).rstrip("\n")

    def caret(self) -> str:
        """Return the source line and a caret under the span, or "" when the source cannot be
        read."""
        return under(self.source_line(), self.column, self.end_column)


def under(text: str, column: int, end_column: int) -> str:
    """Return a line of source and a caret under columns of it; "" for a blank one."""
    if not text.strip():
        return ""
    indent = len(text) - len(text.lstrip())
    start = max(column, indent)
    end = end_column if end_column > start else start + 1
    end = min(end, len(text)) if end > start + 1 else end
    return f"    {text[indent:]}\n    {' ' * (start - indent)}{'^' * max(1, end - start)}"


CONTROLS = {k: f"\\x{k:02x}" for k in (*range(32), *range(127, 160)) if k not in (9, 10)}


def shown(text: str) -> str:
    """Return a text fit for a terminal: control characters become numbers, so that none draws on
    it; lines stay."""
    return text.translate(CONTROLS).encode("utf-8", "backslashreplace").decode()


class SpmdError(Exception):
    """A failure that the user can do something about.

    expected, found, remedy are sentences or fragments without a final full stop; any may be "".
    """

    exit_code = EXIT_DATA

    def __init__(
        self,
        message: str,
        *,
        place: Place | None = None,
        expected: str = "",
        found: str = "",
        remedy: str = "",
        also: tuple[tuple[str, Place], ...] = (),
    ) -> None:
        self.message = message
        self.place: Place | None = None
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.also = also
        self.stand_at(place)
        super().__init__(message)

    def stand_at(self, place: Place | None) -> None:
        """Set the place of an error that has none yet."""
        if self.place is None and place is not None:
            self.place = place
            if self.exit_code == EXIT_USAGE:
                self.exit_code = EXIT_DATA  # inside a program, not on the command line

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.message}" if self.place else self.message]
        if self.place and (caret := self.place.caret()):
            lines.append(caret)
        for text, place in self.also:
            lines.append(f"  {text} {place}")
            if caret := place.caret():
                lines.append(caret)
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.found:
            lines.append(f"  found:    {self.found}")
        if self.remedy:
            lines.append(f"  try:      {self.remedy}")
        return shown("\n".join(lines))


class UsageError(SpmdError):
    """A command line or a call that names something that does not exist."""

    exit_code = EXIT_USAGE


# What is wrong with a program, found while building.


class ProgramError(SpmdError):
    """A program that cannot be built."""


class MissingError(ProgramError, AttributeError):
    """An attribute that arrays of a program do not have."""


class ShapeError(ProgramError):
    """Shapes that do not fit each other."""


class DtypeError(ProgramError):
    """Element types that do not fit an operation."""


class LayoutError(ProgramError):
    """A layout that is illegal or names no axis of the mesh."""


class UnsupportedError(ProgramError):
    """Python or NumPy that cannot be compiled, with what can be written instead."""


class CarryError(ProgramError):
    """A name whose shape or dtype changes from one iteration (or branch) to the other."""


class TracedValueError(ProgramError):
    """A value known only at run time where Python needs one while building."""


class LayoutWarning(UserWarning):
    """Layouts that make ranks exchange much: said once, when a program is built. A loop that every
    rank computes since that is faster is none: `show --layouts` names it."""


class MatchingError(ProgramError):
    """Sends and receives that do not match, with the smallest counter-example."""


class ScheduleError(ProgramError):
    """A schedule of a pipeline that is not legal: `problems` has a line for each rule it breaks.

    Dependences, one action of a stage in a tick, each microbatch once in a step, no more
    activations and versions of weights than may be kept.
    """

    def __init__(self, problems: tuple[str, ...], *, expected: str = "", remedy: str = "",
                 lines: int = 100) -> None:
        """Make the error of a schedule. problems: all of them; lines: how many of these the message
        has at most."""
        self.problems = problems
        more = len(problems) - lines
        text = "\n".join([*problems[:lines], *([f"and {more} more"] if more > 0 else [])])
        super().__init__(text, expected=expected, remedy=remedy)

    def stand_at(self, place: Place | None) -> None:
        """Say which line asks for the schedule. Each problem says itself where it is, in the file
        or the formula."""
        if place is not None and not self.also and not self.message.startswith(f"{place.file}:"):
            self.also = (("the schedule is used at", place),)


class KernelError(ProgramError):
    """A kernel, in Python or C, that cannot be compiled, allocates, raises, or keeps state."""


REPORT = "report this program: it is a defect of spmd"


class InternalError(SpmdError):
    """A level of the compiler broke one of its own rules. Always a defect of spmd."""

    exit_code = 70

    @classmethod
    def of_rule(
        cls, rule: str, place: Place | None, found: str = "", expected: str = ""
    ) -> InternalError:
        """Return the error that a rule does not hold, which the checkers between the passes ask
        for."""
        return cls(
            f"the compiler broke a rule of its own: {rule}", place=place, found=found,
            expected=expected, remedy=REPORT,
        )


# What is wrong with an image, its inputs or the place it runs in.


class ImageError(SpmdError):
    """A file that is no image, or a damaged one."""


class InputError(SpmdError):
    """Input data that does not fit what the program declared."""


class VersionError(SpmdError):
    """An image made by another version than this runtime reads."""

    exit_code = EXIT_CONFIG


class MeshError(SpmdError):
    """A mesh that cannot be formed from the ranks started, or breaks a condition of the program."""

    exit_code = EXIT_CONFIG


class AgreementError(SpmdError):
    """Ranks of one job that hold different images or settings."""

    exit_code = EXIT_CONFIG


class EnvironmentFault(SpmdError):
    """Something missing on this machine: a compiler, an MPI, memory."""

    exit_code = EXIT_ENVIRONMENT


class OutputError(SpmdError):
    """A file that cannot be written or read."""

    exit_code = EXIT_IO


class CheckError(SpmdError):
    """A condition did not hold: one that the program expects while it runs, or that a check asked
    for.

    text: the message, and lines below it. at: file and line, with that line's source. where: rank.
    """

    def __init__(self, text: str, at: str = "", line: str = "", where: str = "") -> None:
        self.at = at
        message, *more = text.split("\n")
        lines = [f"{at}: {message}" if at else message, *([f"    {line}"] if line else []), *more]
        super().__init__("\n".join([*lines, *([f"  where:    {where}"] if where else [])]))

    def stand_at(self, place: Place | None) -> None:
        """Set the place of an error whose text has none yet."""
        if not self.at:
            super().stand_at(place)


class PeerError(SpmdError):
    """A rank that was lost or did not arrive in time."""

    exit_code = EXIT_PEER


for _class in list(globals().values()):  # a traceback names them as users import them
    if isinstance(_class, type) and issubclass(_class, Exception):
        _class.__module__ = "spmd"

"""What can be checked while a program runs, by name: for the compiler and for the command line.

Always holds: importing this module imports nothing but the errors; every rank does it at start.
"""

from __future__ import annotations

from codegen.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

CHECKS = {
    "bounds": "indices lie within their dims, powers of integers are not negative, divisors not 0",
    "nan": "no operation makes a NaN or an infinity where there was none",
    "equal": "what all ranks hold is the same on all of them",
    "overflow": "integers do not overflow, and are not divided by zero",
}
POINTS = "points"  # no check: an image whose outermost loops can be kept, and gone on with
USUAL = ("bounds", "nan", "equal")  # `--check`, `check=True`; overflow is checked on request


def checks_of(wanted: object) -> tuple[str, ...]:
    """Return the names that --check or check= means, in the order of CHECKS. Raises UsageError.

    wanted: True, "all", "bounds,nan", or an iterable of names; False, None or "": none.
    """
    if wanted is None or wanted is False or wanted == "":
        return ()
    if wanted is True or wanted == "True":
        return USUAL
    names: Iterable[object] = (
        wanted.split(",") if isinstance(wanted, str) else wanted)  # type: ignore
    try:
        asked = [str(name).strip() for name in names]
    except TypeError:
        asked = [repr(wanted)]
    if asked == ["all"]:
        return tuple(CHECKS)
    for name in asked:
        if name not in CHECKS and name != POINTS:
            raise UsageError(
                f"there is no check {name!r}",
                expected=f"all, or some of {', '.join(CHECKS)}",
                remedy=f"--check is {','.join(USUAL)}",
            )
    return tuple(name for name in (*CHECKS, POINTS) if name in asked)


def built_with(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the checks that an image was built with, and POINTS if its run can be kept and
    resumed."""
    return (*manifest["checks"], *(() if manifest["points"] is None else (POINTS,)))

"""At which sizes data travel in another way: what `doctor --calibrate` has found on this machine.

In: SPMD_CALIBRATION, the user's cache directory. Out: limits for the engine, and where they are
from. Always holds: a file that is missing, unreadable, malformed or another machine's leaves the
engine's own limits, and no run fails for it; one that was named is said to be so.
"""

from __future__ import annotations

import json
import os
import stat
import sys

from spmd.files.whole import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A path instead of the one below, or "off".
CHOSEN = "SPMD_CALIBRATION"
VERSION = 1  # of what the limits mean
NAMES = ("slot", "fold", "share", "ring")  # the fields of spmd_limits
CLASSES = ("spacious", "crowded")  # in the order of enum spmd_class
MOST_BYTES = 1 << 16  # of a file
MOST = 1 << 50  # beyond any array
PREFIX = f"limits-{VERSION}-"

Limits = dict[str, dict[str, int]]  # by class and name; 0: the engine's own


class FoundLimits:
    """The limits of this machine. limits: None for the engine's own. path: of the file they are
    from, or would be; "" where there is to be none. fault: why they are not from it although it is
    there, or was named."""

    def __init__(self, limits: Limits | None = None, path: str = "", fault: str = "") -> None:
        self.limits, self.path, self.fault = limits, path, fault


def machine() -> dict[str, Any]:
    """Return the facts on which good limits depend: processor and number of cores. Whether a
    process may use all cores does not count."""
    return {"processor": _processor(), "cores": os.cpu_count() or 1}


def _processor() -> str:
    """Return the processor's name, as the system says it. It reads only the beginning of a file
    that may have a part for every core."""
    words: dict[str, str] = {}
    try:
        file = os.open("/proc/cpuinfo", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, 2048).decode("utf-8", "replace")
        finally:
            os.close(file)
        for line in text.splitlines():
            key, _, value = line.partition(":")
            words.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    parts = [words[key] for key in ("model name", "CPU implementer", "CPU part") if key in words]
    return " ".join([os.uname().machine, *parts])


def folder() -> str:
    """Return the user's cache directory for us; "" where there is none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "spmd") if os.path.isabs(base) else ""


def place() -> str:
    """Return the path of this machine's file; "" where there is to be none."""
    chosen = os.environ.get(CHOSEN, "")
    if chosen:
        return "" if chosen == "off" else os.path.abspath(chosen)
    here, inside = machine(), folder()
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in here["processor"])
    return os.path.join(inside, f"{PREFIX}{name[:100]}-{here['cores']}.json") if inside else ""


def find() -> FoundLimits:
    """Read the limits that are kept for this machine."""
    path = os.environ.get(CHOSEN, "")
    try:
        path = place()
        return FoundLimits(read(path), path) if path else FoundLimits()
    except FileNotFoundError:
        fault = "there is no such file" if os.environ.get(CHOSEN) else ""
        return FoundLimits(None, path, fault)
    except (OSError, ValueError, RecursionError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        return FoundLimits(None, path, text or type(error).__name__)


def read(path: str) -> Limits:
    """Return the limits in a file. ValueError: it is malformed, or another machine's."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # no FIFO holds us up
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("not a regular file")
        data = os.read(file, MOST_BYTES)
    finally:
        os.close(file)
    try:
        kept = json.loads(data)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(kept, dict) or kept.get("version") != VERSION:
        raise ValueError(f"not of version {VERSION}")
    if kept.get("machine") != machine():
        raise ValueError(f"measured on another machine: {str(kept.get('machine'))[:200]!r}")
    limits: Any = kept.get("limits")
    if not _is_limits(limits):
        raise ValueError("what it has are no limits")
    return {kind: dict(limits[kind]) for kind in CLASSES}


def _is_limits(value: Any) -> bool:
    return (
        isinstance(value, dict) and set(value) == set(CLASSES)
        and all(isinstance(row, dict) and set(row) == set(NAMES) for row in value.values())
        and all(type(n) is int and 0 <= n <= MOST for row in value.values() for n in row.values())
    )


def write(path: str, limits: Limits) -> None:
    """Keep limits for later runs; whoever reads meanwhile sees the old file or the new one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    text = json.dumps({"version": VERSION, "machine": machine(), "limits": limits}, indent=1)
    with whole(path) as file:
        file.write(text.encode() + b"\n")


_known: dict[tuple[str, ...], Limits | None] = {}


def in_use() -> Limits | None:
    """Return the limits for the jobs of this process: they are looked up once, since a program may
    start many. The processor is asked for only where there is a file that may be meant."""
    key = os.environ.get(CHOSEN, ""), folder()
    if key not in _known:
        limits = find() if key[0] or _has_files(key[1]) else FoundLimits()
        if limits.fault and key[0]:  # somebody wants it
            print(f"spmd: {CHOSEN}={key[0]} is not used: {limits.fault}", file=sys.stderr)
        _known[key] = limits.limits
    return _known[key]


def _has_files(inside: str) -> bool:
    try:
        return any(name.startswith(PREFIX) for name in os.listdir(inside))
    except OSError:
        return False


def rows(limits: Limits | None) -> list[dict[str, int]]:
    """Return the rows of spmd_settings for these limits, by enum spmd_class."""
    return [(limits or {}).get(kind, {}) for kind in CLASSES]

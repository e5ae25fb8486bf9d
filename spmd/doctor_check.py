"""What a check of `doctor` is: a line, with what to do where something is missing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

OK, WARNING, MISSING = "ok", "warning", "missing"
OPEN_MPI_FOLDER = "PRTE_MCA_prte_tmpdir_base=/dev/shm"  # where its launcher keeps a session


@dataclass(frozen=True)
class Check:
    """A line of the doctor's report. state: OK, WARNING, or MISSING: builds or runs fail without
    it."""

    name: str
    state: str
    found: str
    remedy: str = ""


def version_of(package: str) -> str:
    """Return the version of an installed package; "" where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

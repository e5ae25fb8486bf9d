"""`python -m spmd doctor`: what builds and runs need, what of it is here, and what to do.

In: how many ranks are meant. Out: a table for people or JSON, and an exit code for scripts: 69 when
something is missing that builds or runs need. What only mpirun needs is a warning.
Always holds: nothing is changed, but by --calibrate; every program that is tried has a time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from codegen.errors import EXIT_ENVIRONMENT, EnvironmentFault, SpmdError
from codegen.image import commands, link, target
from spmd import doctor_mpi
from spmd.doctor_check import MISSING, OK, OPEN_MPI_FOLDER, WARNING, Check, version_of
from spmd.launch.launchers import launcher
from spmd.launch.memory import available_memory, bytes_text, memory_limit
from spmd.launch.processes import Processes

SMALL = 1 << 30  # bytes of memory below which a warning is due


def command(asked: argparse.Namespace, _: Processes) -> int:
    """Print the report. Return 0, or 69 where something is missing. Under a launcher only the first
    process prints."""
    if launcher()[0]:
        return 0
    checks = list(_checks(asked.ranks, asked.calibrate))
    code = EXIT_ENVIRONMENT if any(c.state == MISSING for c in checks) else 0
    if asked.json:
        print(json.dumps({"exit_code": code, "checks": [asdict(c) for c in checks]}, indent=1))
    else:
        print(table(checks))
    return code


def table(checks: list[Check]) -> str:
    """Return the report: one aligned line for each check, and a summary at the end."""
    widths = [max(len(getattr(c, part)) for c in checks) for part in ("name", "state")]
    lines = []
    for check in checks:
        lines.append(f"{check.name:{widths[0]}}  {check.state:{widths[1]}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':{sum(widths) + 4}}try: {check.remedy}")
    missing = [c.name for c in checks if c.state == MISSING]
    launch = next((c for c in checks if c.name == "mpirun" and c.state == WARNING), None)
    if missing:
        lines.append(f"\nmissing: {', '.join(missing)}")
    elif launch:
        lines.append(f"\nimage.run(ranks=4) works; for mpirun: {launch.remedy}")
    else:
        lines.append("\nimage.run(ranks=4) and mpirun work")
    return "\n".join(lines)


def _checks(ranks: int | None, calibrate: bool) -> Iterator[Check]:
    engine, tried = _engine()
    yield from software(engine)
    yield from doctor_mpi.checks()
    yield from machine(ranks)
    if tried:
        yield from tried.checks(calibrate)
    else:
        yield Check("loading", WARNING, "not tried without the engine")


# ---- what is installed ---------------------------------------------------------------------------


def software(engine: Check) -> Iterator[Check]:
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    headers = "with headers" if os.path.exists(header) else "without headers"
    lacks = engine.state == MISSING and headers.startswith("without")
    yield Check("Python", MISSING if lacks else OK,
                f"{sys.version.split()[0]}, {headers}, {sys.executable}",
                "apt install python3-dev: the engine is built with its headers" if lacks else "",
                )
    yield engine
    yield _compiler()
    for name, module, need in (
        ("NumPy", "numpy", ""), ("cffi", "cffi", ""), ("ml_dtypes", "ml_dtypes", ""),
        ("numba", "numba", "@spmd.kernel"),
        ("pyzmq", "zmq", "run --feed with a pipeline, spmd feed (jobs), or serve --replicas"),
        *((name, module, "run --feed with a pipeline") for name, module in (
            ("lz4", "lz4"), ("zstandard", "zstandard"),
            ("prometheus-client", "prometheus_client"))),
        ("Pillow", "PIL", "spmd.data.image"),
    ):
        yield _package(name, module, need)
    yield Check("simplejpeg", OK, version_of("simplejpeg") or
                "not installed; with it JPEG pictures take half the time")


def _package(name: str, module: str, need: str) -> Check:
    """Check that a package is installed. need: what alone cannot be done without it; "" for
    everything."""
    if find_spec(module) is not None:
        return Check(name, OK, version_of(name) or "of unknown version")
    return Check(name, WARNING if need else MISSING,
                 f"not installed{f'; only {need} needs it' if need else ''}",
                 f"pip install {name.lower()}")


def _engine() -> tuple[Check, Any]:
    """Return the engine, and the module of what is tried with it; None where it cannot be
    loaded."""
    text = f"spmd {version_of('spmd') or 'in a source tree'}"
    try:
        tried = import_module("spmd.doctor_engine")
    except EnvironmentFault as error:
        return Check("engine", MISSING, f"{text}; {error.message}", error.remedy), None
    except ImportError as error:
        return Check("engine", MISSING, f"{text}; not loaded: {error}",
                     "pip install . in the source tree, or make setup"), None
    return Check("engine", OK, f"{text}, {tried.PLACE}"), tried


def _compiler() -> Check:
    try:
        text = link.trial(target.native())
    except (SpmdError, OSError) as error:
        if not isinstance(error, SpmdError):
            return Check("C compiler", MISSING, str(error), "install gcc or set CC")
        detail = f"; {error.found}" if error.found else ""
        return Check("C compiler", MISSING, error.message + detail, error.remedy)
    return Check("C compiler", OK, f"{text}; builds shared objects")


# ---- this machine --------------------------------------------------------------------------------


def machine(ranks: int | None) -> Iterator[Check]:
    yield _memory()
    yield Check("/dev/shm", OK, _size("/dev/shm", "not needed: ranks share a memory file"))
    yield _temporary()
    yield _shared_files()
    yield _cores(ranks)
    level = target.native()
    yield Check("processor", OK, f"{os.uname().machine}, {level} ({target.mark(level)})")
    yield _limits()


def _memory() -> Check:
    have, limit = available_memory(), memory_limit()
    text = f"{bytes_text(have)} available, " + (
        f"control group limit {bytes_text(limit)}" if limit else "no control group limit"
    )
    if have < SMALL:
        return Check("memory", WARNING, text, "smaller arrays, or ask the scheduler for more")
    return Check("memory", OK, text)


def _size(place: str, note: str) -> str:
    try:
        status = os.statvfs(place)
    except OSError as error:
        return f"{error.strerror}; {note}"
    return f"{bytes_text(status.f_blocks * status.f_frsize)}; {note}"


def _temporary() -> Check:
    meant = os.environ.get("TMPDIR") or "/tmp"
    try:
        place = tempfile.gettempdir()
    except OSError:
        place = ""
    if os.access(meant, os.W_OK | os.X_OK):
        return Check("TMPDIR", OK, _size(meant, meant))
    instead = f"{place} is used" if place else "/dev/shm or the current directory is used"
    return Check("TMPDIR", WARNING, f"{meant} cannot be written; {instead}",
                 f"TMPDIR of yours; for the mpirun of Open MPI: export {OPEN_MPI_FOLDER}",
                 )


def _shared_files() -> Check:
    """Check that another process of this user can open a memory file by /proc/PID/fd."""
    file = os.memfd_create("spmd-doctor", os.MFD_CLOEXEC)
    try:
        code = f"open('/proc/{os.getpid()}/fd/{file}', 'r+b').close()"
        tried = commands.run([sys.executable, "-I", "-S", "-c", code], limit_s=60)
    finally:
        os.close(file)
    if tried.code == 0:
        return Check("sharing", OK, "processes of one user open each other's memory files")
    last = (tried.err.strip().splitlines() or [f"exit code {tried.code}"])[-1]
    return Check("sharing", WARNING, f"/proc/PID/fd of another process does not open: {last}",
                 "host all ranks in one process: --ranks N without mpirun; or mount /proc "
                 "without hidepid and allow ptrace of own processes")


def _cores(ranks: int | None) -> Check:
    usable = len(os.sched_getaffinity(0))
    text = f"{usable} of {os.cpu_count()} usable"
    if ranks is None:
        tasks = os.environ.get("SLURM_NTASKS", "")
        ranks = int(tasks) if tasks.isascii() and tasks.isdigit() else None
    if ranks is None:
        return Check("cores", OK, text)
    if ranks > usable:
        return Check("cores", WARNING, f"{text} for {ranks} ranks: they take turns",
                     "fine for trying; for speed at most a rank for each core")
    return Check("cores", OK, f"{text} for {ranks} ranks")


def _limits() -> Check:
    parts = []
    for name, label in (("RLIMIT_AS", "address space (ulimit -v)"),
                        ("RLIMIT_MEMLOCK", "locked memory (ulimit -l)")):
        soft = resource.getrlimit(getattr(resource, name))[0]
        parts.append(f"{label} {'unlimited' if soft < 0 else bytes_text(soft)}")
    if resource.getrlimit(resource.RLIMIT_AS)[0] >= 0:
        return Check("limits", WARNING, "; ".join(parts),
                     "ulimit -v unlimited: ranks map all memory of a job")
    return Check("limits", OK, "; ".join(parts))

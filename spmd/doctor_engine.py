"""What `doctor` tries with the engine: loading images, OpenBLAS, the limits of exchanges.

In: whether they are to be measured. Out: checks. Nothing here is imported where there is no engine.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from importlib import import_module

from codegen.errors import EnvironmentFault, SpmdError
from spmd.doctor_check import MISSING, OK, WARNING, Check
from spmd.engine import _engine, ffi, lib
from spmd.launch import limits, loader, routines

PLACE = str(_engine.__file__)
_PACKAGES = {"openblas": "scipy-openblas32", "numpy": "numpy"}


def checks(calibrate: bool) -> Iterator[Check]:
    openblas = _openblas()
    yield openblas
    yield from _routines("openblas" if openblas.state == OK else "", "numpy")
    yield _places()
    if calibrate:
        yield from calibration()
    yield exchange()


def _openblas() -> Check:
    name, need = "OpenBLAS", "products of matrices and linear algebra need it"
    try:
        return Check(name, OK, routines.openblas())
    except EnvironmentFault as error:
        return Check(name, WARNING, f"{error.message}; {need}", error.remedy)


def _routines(*sources: str) -> Iterator[Check]:
    """Check whether the routines that images call give what NumPy gives: a row for each library,
    and one for each routine that does not."""
    try:
        beside_numpy = import_module("spmd.routine_checks").beside_numpy
    except ImportError:  # of NumPy: another row says so
        return
    for source in filter(None, sources):
        good = 0
        for name, fault in beside_numpy(source):
            good += not fault
            if fault:
                yield Check("routines", WARNING, f"{name} of {source}: {fault}",
                            f"pip install --force-reinstall {_PACKAGES[source]}")
        if good:
            yield Check("routines", OK, f"{good} of {source} give what NumPy gives")


def _places() -> Check:
    """Check where images can be loaded from: memory files, else directories without noexec."""
    good = []
    for place in loader.places():
        try:
            file, path = loader.private_file(b"\x7fELF" + bytes(4092), place)
        except OSError:
            continue
        try:
            mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
            good.append(place or "memory files")
        except OSError:  # noexec
            pass
        finally:
            os.close(file)
            if place:
                os.unlink(path)
    if not good:
        return Check("loading", MISSING, "no memory file and no directory may be executed",
                     "set TMPDIR to a directory without noexec")
    return Check("loading", OK, f"images can be executed from {', '.join(dict.fromkeys(good))}")


def calibration() -> Iterator[Check]:
    """Measures, and keeps what was found; a row for every comparison."""
    from spmd.bench.calibrate import Calibration  # the compiler, and NumPy: it may be missing

    name = "calibration"
    print("spmd: measuring, for up to 20 seconds", file=sys.stderr)
    work = Calibration()
    try:
        for text in work.measure():
            yield Check(name, OK, text)
    except (SpmdError, OSError) as error:
        yield Check(name, WARNING, f"not measured: {getattr(error, 'message', error)}",
                    getattr(error, "remedy", ""))
        return
    if work.missed:
        yield Check(name, WARNING, f"no time or memory for {work.missed} comparisons: what they "
                    "are for stays", "again, when the machine has nothing else to do")
    path = limits.place()
    if not path:
        yield Check(name, WARNING, "not kept: there is no place for it", f"{limits.CHOSEN}=FILE")
        return
    try:
        limits.write(path, work.limits)
    except OSError as error:
        yield Check(name, WARNING, f"not kept: {path}: {error.strerror}", f"{limits.CHOSEN}=FILE")
    else:
        yield Check(name, OK, f"kept in {path}")


def exchange() -> Check:
    """Return a row with the limits in use, and where they come from."""
    calibration = limits.find()
    kinds = []
    for row in limits.rows(calibration.limits):
        filled = ffi.new("spmd_limits *", row)
        lib.spmd_limits_fill(filled, 1)
        ring = f"ring from {filled.ring}" if filled.ring else "no ring"
        kinds.append((f"slots to {filled.slot} bytes, folded whole to {filled.fold}, {ring}",
                      f", broadcasts shared from {filled.share}"))
    (roomy, share), (crowded, _) = kinds
    text = roomy + share + (f"; where threads share cores: {crowded}" if crowded != roomy else "")
    remedy = "python -m spmd doctor --calibrate"
    if calibration.limits:
        return Check("exchange", OK, f"{text}; from {calibration.path}")
    if calibration.fault:
        ignored = f"{calibration.path} is ignored: {calibration.fault}"
        return Check("exchange", WARNING, f"{text}; {ignored}", remedy)
    why = "calibration is off" if os.environ.get(limits.CHOSEN) == "off" else "not calibrated"
    return Check("exchange", OK, f"{text}; defaults, {why}")

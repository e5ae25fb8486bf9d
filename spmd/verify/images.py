"""`python -m spmd verify`: what can be known of an image without running it.

In: paths of images, meshes. Out: a line for each, or the error that says what does not fit.
Always holds: nothing of the image is executed here; with --execute its plan functions run in a
child process, which cannot hurt this one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
from typing import Any

from codegen.errors import ImageError, MeshError, UsageError
from codegen.image import manifest as reader
from codegen.image.conditions import broken_condition
from codegen.image.manifest import ENTRY
from codegen.progress import announce, each
from codegen.verify import many, small
from codegen.verify.exchange_table import Mismatch
from spmd import image_or_program
from spmd.arguments import check_scalars, check_settings, patched_in, read, scalars_of
from spmd.launch import loader, sizes
from spmd.launch.memory import bytes_text
from spmd.launch.processes import Processes
from spmd.ledger import Ledger
from spmd.progress_display import shown

RANKS = range(1, 65)
FEW = (0, 1, 5)  # elements along a dim whose extent only a run knows, beside the most
AT_ONCE = 64  # ranks up to which all pairs are compared, of all meshes together
MOST = 1 << 24  # ranks: 8 bytes each are needed to see that no two send to one
EXECUTE_S = 120  # how long a child process may take


def command(options: argparse.Namespace, _: Processes) -> int:
    """Verify every image that is named. Raises what is wrong with the first that does not pass."""
    with shown():
        reports = []
        for path in options.image:
            with loader.named(path):
                reports.append(verify(path, options))
    if options.json:
        print(json.dumps(reports if len(reports) > 1 else reports[0], indent=1))
        return 0
    for report in reports:
        print(as_text(report))
    return 0


def verify(path: str, options: Any) -> dict[str, Any]:
    """Return what was checked of one image, or of the one that FILE.py gives, as the command line
    asks."""
    data, parameters = image_or_program.image_or_built(path, options.set, options.no_cache)
    image = reader.read(data, host=False)
    scalars = {k: v for k, v in read(options.set).items() if k not in parameters}
    asked = options.ranks, options.mesh, scalars
    return checked(image, path, *asked, execute=options.execute)


def checked(
    image: reader.ImageFile, path: str, ranks: Any, mesh: dict[str, int], settings: dict[str, Any],
    execute: bool = False,
) -> dict[str, Any]:
    """Return what was checked of one image. ranks: several numbers, or None; execute: of a file
    only."""
    check_settings(image.manifest, settings)
    patched, axis_sizes, _ = patched_in(image, settings, mesh, None)
    scalars = scalars_of(image.manifest, patched)
    meshes, refused = _meshes(image.manifest, ranks, axis_sizes, scalars)
    ledger = Ledger(image, path)
    used = set[str]().union(*(row.used for row in ledger.table.rows))
    check_scalars(scalars, used)
    transfers, sampled = 0, dict[int, str]()
    tried = _tried_extents(image.manifest, patched)
    numbers = range(len(image.manifest["entries"])) if ENTRY in used else [0]
    for number, extents in itertools.product(numbers, tried):
        if image.manifest["entries"]:
            scalars[ENTRY] = number
        now = {**scalars, **extents}
        fits = _fitting(image.manifest, meshes, now)
        for shape in each(f"checking {path}: numbers of ranks", fits):
            if math.prod(shape) > MOST:
                raise UsageError("too many ranks to verify", expected=f"up to {MOST}",
                                 found=str(math.prod(shape)))
            ledger.check_arrays(shape, now)
        more, samples = compare(ledger, fits, now)
        transfers, sampled = transfers + more, {**sampled, **samples}
    executed = copied = 0
    if execute:
        announce(f"running the plan functions of {path}")
        reader.check_machine(image.machine)
        reader.check_features(image.manifest["target"])
        for extents in tried:
            fits = _fitting(image.manifest, meshes, {**scalars, **extents})
            once = _execute(path, image, fits, {**settings, **extents})
            executed, copied = executed + once[0], copied + once[1]
    return {
        "image": path, "bytes": len(image.data), "digest": image.digest,
        "elsewhere": _elsewhere(image),
        "local": _local(image), "meshes": len(meshes),
        "ranks": [math.prod(mesh) for mesh in meshes], "refused": refused,
        "at_once": [math.prod(mesh) for mesh in meshes if math.prod(mesh) > AT_ONCE],
        "entries": [e["name"] for e in image.manifest["entries"][1:]],
        "exchanges": len(ledger.table.rows), "at_run_time": sorted(ledger.unknown),
        "transfers": transfers, "sampled": sampled, "executed": executed,
        "copied": copied, "extents": {name: [e[name] for e in tried] for name in tried[0]},
    }


def _tried_extents(manifest: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, int]]:
    """Return the extents to try for named dims that inputs say and settings do not: few elements,
    and the most that there may be."""
    free = [s for s in manifest["scalars"] if "at_most" in s and s["name"] not in settings]
    extents = [{s["name"]: min(few, s["at_most"]) for s in free} for few in FEW]
    extents.append({s["name"]: s["at_most"] for s in free})
    return [e for k, e in enumerate(extents) if e not in extents[:k]]


def _fitting(
    manifest: dict[str, Any], meshes: list[tuple[int, ...]], scalars: dict[str, Any]
) -> list[tuple[int, ...]]:
    """Return the meshes on which the conditions of the program hold."""
    return [mesh for mesh in meshes if broken_condition(
        manifest["conditions"], {**scalars, **sizes.mesh_symbols(manifest, mesh)}) is None]


def compare(
    ledger: Ledger, meshes: list[tuple[int, ...]], scalars: dict[str, Any], at_once: int = AT_ONCE
) -> tuple[int, dict[int, str]]:
    """Check that every exchange matches on these meshes. Return how many transfers were compared,
    and, by exchange, of what only a sample was. at_once: ranks of meshes that are looked at
    together."""
    common = [ledger.common(mesh, scalars) for mesh in meshes]
    few = [m for mesh, m in zip(meshes, common, strict=True) if math.prod(mesh) <= at_once]
    try:
        agreed = small.check(ledger.table, few) if few else small.Agreed()
        for mesh, values in zip(meshes, common, strict=True):
            if math.prod(mesh) > at_once:
                more = many.check(ledger.table, values)
                agreed.transfers += more.transfers
                agreed.sampled |= more.sampled
    except Mismatch as wrong:
        raise ledger.wrong(wrong.title, wrong.expected, wrong.found) from None
    return agreed.transfers, agreed.sampled


def _meshes(
    manifest: dict[str, Any], asked: Any, chosen: dict[str, int], scalars: dict[str, Any]
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the meshes to look at, and the numbers of ranks that cannot form one.

    What was asked for alone must be possible. Raises MeshError.
    """
    whole = all(axis["size"] or axis["name"] in chosen for axis in manifest["mesh"])
    asked = asked or ([None] if chosen and whole else RANKS)
    meshes, refused = [], []
    for ranks in asked:
        try:
            meshes.append(sizes.bind_mesh(manifest, ranks, chosen, scalars))
        except MeshError:
            if len(asked) == 1:
                raise
            refused.append(ranks)
    if not meshes:
        raise MeshError("the program can run on none of these numbers of ranks",
                        found=sizes.runs_text(list(asked)))
    return meshes, refused


def _execute(
    path: str, image: reader.ImageFile, meshes: list[tuple[int, ...]], settings: dict[str, Any]
) -> tuple[int, int]:
    """Have a child process compare the machine code's plan functions with the manifest, and the
    engine's copies with NumPy's. Return how many ranks and how many boxes it compared."""
    from codegen.image import commands  # subprocess, for --execute alone

    fd = os.memfd_create("image", os.MFD_CLOEXEC)  # what was built has no file
    with open(fd, "wb") as file:
        file.write(image.data)
        file.flush()
        return _compared(path, commands, json.dumps(
            {"path": f"/proc/{os.getpid()}/fd/{fd}", "meshes": meshes, "set": settings}))


def _compared(path: str, commands: Any, job: str) -> tuple[int, int]:
    """Return how many ranks and boxes the child compared; raise ImageError for what is wrong."""
    ended = commands.run([sys.executable, "-m", "spmd.bench.probe", job], limit_s=EXECUTE_S)
    if ended.code == commands.TOO_LATE:
        raise ImageError(f"{path}: its plan functions do not end", expected=f"{EXECUTE_S} s",
                         found="they were stopped")
    try:
        answer = json.loads(ended.out)
        wrong, ranks, boxes = answer["wrong"], int(answer["ranks"]), int(answer["boxes"])
    except (ValueError, KeyError, TypeError):
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        last = ended.err.strip().split("\n")[-1]
        raise ImageError(f"{path}: its plan functions crash", expected="numbers",
                         found=f"{how} {last}".strip()) from None
    if wrong:
        raise ImageError(f"{path}: the machine code and the manifest differ", **wrong)
    return ranks, boxes


def _elsewhere(image: reader.ImageFile) -> str:
    """Return why this machine cannot run the image, which is no fault of the image; "" where it
    can."""
    try:
        reader.check_machine(image.machine)
        reader.check_features(image.manifest["target"])
    except ImageError as error:
        return error.message
    return ""


def _local(image: reader.ImageFile) -> str:
    words = reader.IndexWords(image.section(".spmd.index"))
    return str(words) if words.patched else ""


def as_text(report: dict[str, Any]) -> str:
    ranks, refused = sizes.runs_text(report["ranks"]), sizes.runs_text(report["refused"])
    lines = [
        f"{report['image']}: whole, {bytes_text(report['bytes'])}, digest {report['digest'][:16]}…",
        f"  ranks      {ranks}: every expression of the plan evaluated for all of them",
    ]
    if report["at_once"]:
        lines[1:] = [
            f"  ranks      {ranks}: who exchanges what, for all of them",
            f"  at once    {sizes.runs_text(report['at_once'])}: formulas prove whole ranges of "
            "them, and what they leave open is evaluated",
        ]
    if report["elsewhere"]:
        lines.insert(1, f"  elsewhere  not for this machine: {report['elsewhere']}")
    if report["local"]:
        lines.insert(1, f"  local      {report['local']}")
    if report["refused"]:
        lines.append(f"  refused    {refused}: by the mesh, or by the program's conditions")
    if report["entries"]:
        lines.append(f"  entries    {', '.join(report['entries'])}: the exchanges of all of them")
    known = report["exchanges"] - len(report["at_run_time"]) - len(report["sampled"])
    lines.append(f"  exchanges  {known} match: {report['transfers']} transfers have equal boxes, "
                 "inside their buffers, on both sides")
    lines += [f"  a sample   of exchange {site}: {text}"
              for site, text in report["sampled"].items()]
    lines += [f"  dim        {name}: {', '.join(map(str, tried))} elements along it"
              for name, tried in report["extents"].items()]
    if report["at_run_time"]:
        sites = ", ".join(map(str, report["at_run_time"]))
        lines.append(f"  at run time: exchange {sites}, which depends on what the program computes")
    if report["executed"]:
        lines.append(f"  executed   plan functions of {report['executed']} ranks say the same")
        lines.append(f"  copied     {report['copied']} kinds of boxes come as NumPy copies them")
    return "\n".join(lines)

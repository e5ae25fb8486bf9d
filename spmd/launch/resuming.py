"""A run goes on from a checkpoint: the set is compared with the run, its parts go to the rooms.

In: a loaded job, the folder of a complete set. Out: what the set says of itself; rooms are filled.
Always holds: what is damaged, or has no meaning here, is refused before the run; nothing that a
file says is believed before it is compared with the program.
"""

from __future__ import annotations

import operator
import os
import sys

from codegen.errors import InputError, MeshError
from codegen.user import named
from spmd.engine import ffi, lib
from spmd.faces import states_of
from spmd.files.checkpoints import INDEX, MappedPart, damaged, read_index
from spmd.files.npy import element_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.launch.checkpointing import Checkpointing
    from spmd.launch.job import Job


def mesh_of(job: Job) -> list[tuple[str, int]]:
    """Return the names and the sizes of the mesh axes of a job."""
    return [(axis["name"], size)
            for axis, size in zip(job.manifest["mesh"], job.setup.sizes, strict=True)]


def fill(checkpointing: Checkpointing, job: Job, path: str) -> dict[str, Any]:
    """Has the next run go on from a set; returns the set's index."""
    index = read_index(path)
    _compare(checkpointing, job, path, index)
    if checkpointing.first:
        _say_what_differs(checkpointing, index)
    carried = checkpointing.arrays(job, index["point"])
    now = {"point": index["point"], "turn": index["turn"], "counter": index["counter"]}
    job._check(lib.spmd_job_resume(job._job, ffi.new("spmd_set *", now)))
    holds: dict[str, int] = dict.fromkeys(carried, 0)  # elements; of ranks' own, pieces
    for row in index["parts"]:
        part = MappedPart(path, row)
        try:
            for piece in part.pieces:
                name, count = _fitting(job, part.file.path, piece, carried, index)
                holds[name] += count
                _refill(job, part, piece, *carried[name])
        finally:
            part.file.close()
    for name, (_, row) in carried.items():
        whole = job.setup.ranks if row["shape"] is None else element_count(job.setup.shape(row))
        if holds[name] != whole:
            raise damaged(os.path.join(path, INDEX), f"all of {name}: {whole}", str(holds[name]))
    if checkpointing.first:
        print(f"spmd: goes on from turn {index['turn']} of {path}", file=sys.stderr)
    return index


def _fitting(
    job: Job, file: str, piece: Any, carried: dict[str, tuple[int, dict[str, Any]]],
    index: dict[str, Any],
) -> tuple[str, int]:
    """Return the name and the number of elements of an array of the program for which a piece of a
    part stands."""
    name, dtype, rank, offset, extent, _ = piece
    number, row = carried.get(name, (-1, {}))
    fits, count = bool(row) and len(extent) == lib.spmd_job_dims(job._job, number), 1
    if fits and row["shape"] is None:
        fits = rank in range(index["ranks"])
    elif fits:
        ends = map(operator.add, offset, extent)
        fits, count = all(map(operator.le, ends, job.setup.shape(row))), element_count(extent)
    if not fits or dtype != row["dtype"]:
        raise damaged(file, "parts of what the loop carries", f"{name}: {dtype} {extent}")
    return name, count


def _refill(job: Job, part: MappedPart, piece: Any, number: int, row: dict[str, Any]) -> None:
    """Copy what hosted ranks have of a piece to their rooms."""
    name, _, rank, offset, extent, start = piece
    box = [ffi.new("int64_t[8]", numbers) for numbers in (offset, extent)]
    base = ffi.from_buffer("char[]", part.file.data)
    try:
        for mine in range(job.setup.first, job.setup.first + job.setup.count):
            if row["shape"] is not None or mine == rank:
                status = lib.spmd_job_refill(job._job, number, mine, *box, base + start)
                job._check_array(status, name)
    finally:
        ffi.release(base)


def _compare(checkpointing: Checkpointing, job: Job, path: str, index: dict[str, Any]) -> None:
    """Check that the set is of this image, and has a meaning on this mesh."""
    digest = checkpointing.launch.checked.digest
    if index["image"] != digest:
        had, has = index.get("parameters"), job.manifest["parameters"]
        had = had if isinstance(had, dict) else {}
        others = [name for name in has if name in had and had[name] != has[name]]
        raise InputError(
            f"{path} was kept by another image",
            expected=_settings(had, others) or f"image {index['image'][:16]}",
            found=_settings(has, others) or f"image {digest[:16]}",
            remedy="the program, its parameters and the target with which it was kept",
        )
    if (entry := index.get("entry", "")) != checkpointing.launch.face.name:
        raise InputError(f"{path} was kept in another entry", expected=f"--entry {entry}",
                         found=f"--entry {checkpointing.launch.face.name}")
    had, has = index.get("computes"), computes(job)
    if had != has:
        raise InputError(
            f"{path} was kept by a run that computed other outputs",
            expected=", ".join(map(str, had)) if isinstance(had, list) else "all outputs",
            found=", ".join(has) or "none",
            remedy="the optional inputs, and the names in only, with which it was kept",
        )
    mesh, points = mesh_of(job), job.manifest["points"]
    if index["point"] not in range(len(points)):
        raise damaged(os.path.join(path, INDEX), "a loop of the program", f"loop {index['point']}")
    own = [row["name"] for row in points[index["point"]] if row["shape"] is None]
    if own and mesh != index["mesh"]:
        raise MeshError(
            f"{path} can be gone on from on its own mesh only: the loop stands in a shard_map, "
            f"and {', '.join(dict.fromkeys(own))} differ{'s' * (len(own) == 1)} between ranks",
            expected=_mesh_text(index["mesh"]), found=_mesh_text(mesh),
            remedy="--mesh " + ",".join(f"{n}={k}" for n, k in index["mesh"])
            + "; or carry what all ranks have alike, or whole arrays outside of shard_map",
        )
    for name, row in checkpointing.said(job, index["point"]).items():
        had = index["arrays"].get(name)
        was = had.get("shape") if isinstance(had, dict) else "no array"
        if was != row["shape"]:
            raise MeshError(f"{path}: {name} has another shape on this mesh", expected=f"{was}",
                            found=f"{row['shape']}",
                            remedy="the mesh and the scalars with which it was kept")


def computes(job: Job) -> list[str]:
    """Return the names of the outputs that a run computes."""
    return [row["name"] for row, wanted in zip(job.manifest["outputs"], job.wanted) if wanted]


def _say_what_differs(checkpointing: Checkpointing, index: dict[str, Any]) -> None:
    """Print which scalars, inputs and states differ from those of the checkpoint, which may be
    meant."""
    for name, value in checkpointing.launch.face.own(checkpointing.launch.scalars).items():
        if (was := index["scalars"].get(name)) != value:
            print(f"spmd: scalar {name} was {was} when it was kept, now it is {value}",
                  file=sys.stderr)
    other = [name for name, was in index["inputs"].items() if was != checkpointing.inputs.get(name)]
    states = states_of(checkpointing.launch.manifest)
    for kind, names in (("input", [n for n in other if n not in states]),
                        ("state", [n for n in other if n in states])):
        if names:
            print(f"spmd: {kind} {named.listed(names)} has other elements than when it was kept",
                  file=sys.stderr)


def _settings(parameters: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={parameters[name]!r}" for name in names)


def _mesh_text(mesh: list[tuple[str, int]]) -> str:
    return "mesh " + ", ".join(f"{name}={size}" for name, size in mesh)

"""The child process of `verify --execute`: an image's plan functions, beside what it says of them,
and what the engine copies for its exchanges, beside NumPy.

In: a path, meshes and settings, as JSON in the first argument. Out: JSON: the first difference,
and how many ranks and boxes were compared.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from codegen.image.manifest import evaluate
from codegen.image.schema import AXES, DIMS
from spmd.arguments import scalar_words, scalars_of
from spmd.bench.engine_copies import MOST_RANKS, TriedBoxes
from spmd.engine import ffi, lib
from spmd.launch import loader
from spmd.ledger import Ledger

MOST = 4096  # ranks of a mesh that are looked at: evenly, and the last


def main(text: str) -> None:
    asked = json.loads(text)
    checked = loader.open_file(asked["path"])
    scalars = scalars_of(checked.manifest, asked["set"])
    words = scalar_words(checked.manifest, scalars)
    image = None
    compared, wrong = 0, None
    ledger = Ledger(checked.image, asked["path"])
    copies = TriedBoxes(ledger)
    for mesh in map(tuple, asked["meshes"]):
        probe = Probe(checked, ledger, mesh, scalars, words)
        image = image or checked.load_any(len(words))
        wrong = probe.differs(image)
        compared += probe.ranks
        if not wrong and probe.size <= MOST_RANKS:
            wrong = copies.differs(mesh, scalars)
        if wrong:
            break
    print(json.dumps({"wrong": wrong, "ranks": compared, "boxes": len(copies.tried)}))


class Probe:
    """A probe of an image on one mesh."""

    def __init__(
        self, checked: loader.Checked, ledger: Ledger, mesh: tuple[int, ...],
        scalars: dict[str, Any], words: list[int],
    ) -> None:
        self.manifest, self.ledger, self.mesh = checked.manifest, ledger, mesh
        self.scalars, self.words = scalars, words
        self.arrays = [*self.manifest["inputs"], *self.manifest["outputs"]]
        self.size = math.prod(mesh)
        few = min(self.size, MOST)
        self.looked_at = sorted({*(k * self.size // few for k in range(few)), self.size - 1})
        self.ranks = len(self.looked_at)

    def differs(self, image: loader.Loaded) -> dict[str, str] | None:
        """Return the first difference, as the words of an error."""
        sizes = ffi.new("int64_t[]", [*self.mesh, *[1] * (AXES - len(self.mesh))])
        words = ffi.new("int64_t[]", self.words or [0])
        settings = ffi.new("spmd_settings *", {
            "image": image.table, "ranks": self.size, "size": sizes, "scalar": words,
            "scalars": len(self.words), "count": self.size, "threads": 1, "cores": 1,
        })
        job = ffi.new("spmd_job **")
        status = lib.spmd_job_new(settings, job)
        if status != lib.SPMD_OK:
            return {"expected": f"a job on {self.mesh}",
                    "found": ffi.string(lib.spmd_status_text(status)).decode()}
        try:
            for index in self.looked_at:
                values = self.ledger.rank(self.mesh, self.scalars, index)
                for subject, said, computed in self.compare(job[0], index, values):
                    if said != computed:
                        where = f"{subject} of rank {index} on the mesh {self.mesh}"
                        return {"expected": f"{where}: {said}", "found": str(computed)}
        finally:
            lib.spmd_job_free(job[0])
        return None

    def compare(self, job: Any, index: int, values: dict[str, int]) -> Any:
        """Yield what the manifest says and what the machine code computes, for one rank."""
        buffers = self.manifest["buffers"]
        taken = ffi.new("int64_t[]", len(buffers) + 1)
        load = ffi.new("int64_t[]", len(self.ledger.at_load) + 1)
        offset, extent = (ffi.new("int64_t[]", DIMS * len(self.arrays) + 1) for _ in range(2))
        plan = ffi.new("spmd_plan *", {
            "buffers": len(buffers), "at_loads": len(self.ledger.at_load),
            "arrays": len(self.arrays), "bytes": taken, "at_load": load,
            "offset": offset, "extent": extent,
        })
        if lib.spmd_job_probe(job, index, plan) != lib.SPMD_OK:
            numbers = (plan.buffers, plan.at_loads, plan.arrays)
            yield "numbers of buffers, at_load words and arrays", numbers, "others"
            return
        for k, buffer in enumerate(buffers):
            yield f"bytes of buffer {k}", evaluate(buffer["bytes"], values), taken[k]
        values = dict(values)
        for k, (name, e) in enumerate(self.ledger.at_load):
            values[name] = evaluate(e, values) + 0
            yield f"at_load word {k}", values[name], load[k]
        for k, array in enumerate(self.arrays):
            said = self.ledger.shard(array, self.mesh, values)
            dims = range(DIMS * k, DIMS * k + len(array["shape"]))
            computed = ([offset[d] for d in dims], [extent[d] for d in dims])
            yield f"part of {array['name']}", said, computed


if __name__ == "__main__":
    main(sys.argv[1])

"""What a call of an image takes and gives: of the whole program, or of one of its entries.

In: a manifest. Out: rows of inputs and outputs by the names that users say, with their numbers.
"""

from __future__ import annotations

from codegen.image.manifest import ENTRY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Face:
    """One entry, or a program that has none. number: of the entry; its inputs and outputs, rows of
    the manifest with the numbers that they have there; pairs: buffers of states that it rebinds,
    and of their new values."""

    def __init__(self, manifest: dict[str, Any], number: int | None = None) -> None:
        rows = {kind: list(enumerate(manifest[kind])) for kind in ("inputs", "outputs")}
        self.number = number
        self.scalars = [scalar["name"] for scalar in manifest["scalars"]]
        self.returns = manifest["returns"]
        self.name, self.pairs = "", []
        if number is not None:
            entry = manifest["entries"][number]
            self.name = entry["name"]
            at = len(self.name) + 1
            rows = {kind: [(k, {**manifest[kind][k], "name": manifest[kind][k]["name"][at:]})
                           for k in entry[kind]] for kind in rows}
            self.scalars, self.returns = entry["scalars"], entry["returns"]
            for k in entry["rebinds"]:
                state = manifest["states"][k]
                pair = [manifest["inputs"][state["input"]]["buffer"],
                        manifest["outputs"][state["new"]]["buffer"]]
                self.pairs += pair if pair[0] != pair[1] else []
        self.inputs: list[tuple[int, dict[str, Any]]] = rows["inputs"]
        self.outputs: list[tuple[int, dict[str, Any]]] = rows["outputs"]
        # by input: 1 where no default is to be computed; nobody gives those of other entries
        self.given = bytearray(b"\1" * len(manifest["inputs"]))
        for k, _ in self.inputs:
            self.given[k] = 0

    def settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """These scalars, and the one that says which entry runs."""
        return given if self.number is None else {**given, ENTRY: self.number}


def faces_of(manifest: dict[str, Any]) -> dict[str, Face]:
    """The entries by name, without that of `__init__`; {} for a program that has none."""
    return {entry["name"]: Face(manifest, k) for k, entry in enumerate(manifest["entries"]) if k}

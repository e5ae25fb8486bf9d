"""What a call of an image takes and gives: of the whole program, or of one of its entries.

In: a manifest. Out: rows of inputs and outputs by the names that users say, with their numbers.
"""

from __future__ import annotations

from codegen.errors import UsageError
from codegen.image.manifest import ENTRY
from codegen.suggest import meant
from codegen.symbolic.meaning import names_in
from codegen.user import named
from spmd.arguments import bounded_dims
from spmd.launch.options import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any


class Face:
    """One entry, or a program that has none. number: of the entry; its inputs and outputs, rows of
    the manifest with the numbers that they have there; scalars, feeds, saves: by name; pairs:
    buffers of states that it rebinds, and of their new values; dims: of each dim whose extent only
    a run knows, the input that says it, and which of its dims that is; optional: inputs, or
    trees of them, that a call may leave out; takes_only: no input or scalar is named `only`."""

    def __init__(self, manifest: dict[str, Any], number: int | None = None) -> None:
        rows = {kind: list(enumerate(manifest[kind])) for kind in ("inputs", "outputs")}
        self.manifest, self.number = manifest, number
        self.scalars, self.feeds, self.saves = (
            [row["name"] for row in manifest[kind]] for kind in ("scalars", "feeds", "saves"))
        self.returns = manifest["returns"]
        self.name, self.pairs = "", []
        if number is not None:
            entry = manifest["entries"][number]
            self.name = entry["name"]
            rows = {kind: [(k, _within(self.name, manifest[kind][k])) for k in entry[kind]]
                    for kind in rows}
            self.scalars, self.returns = entry["scalars"], entry["returns"]
            self.feeds, self.saves = entry["feeds"], entry["saves"]
            for k in entry["rebinds"]:
                state = manifest["states"][k]
                pair = [manifest["inputs"][state["input"]]["buffer"],
                        manifest["outputs"][state["new"]]["buffer"]]
                self.pairs += pair if pair[0] != pair[1] else []
        self.inputs: list[tuple[int, dict[str, Any]]] = rows["inputs"]
        self.outputs: list[tuple[int, dict[str, Any]]] = rows["outputs"]
        # by input: 1 where no default is to be computed; nobody gives those of other entries
        self.dims = _dims(manifest, self.inputs)
        self.optional = {array["optional"] for _, array in self.inputs if "optional" in array}
        self.takes_only = "only" not in (*self.scalars, *(a["name"] for _, a in self.inputs))
        self.given_flags = bytearray(b"\1" * len(manifest["inputs"]))
        for k, _ in self.inputs:
            self.given_flags[k] = 0

    def rows(self) -> dict[str, Any]:
        """Return what the image says of joining calls: {"dim": …}, or {"because": …} and where."""
        rows = self.manifest.get("independent_rows", ())[self.number or 0:]
        joining: dict[str, Any] = rows[0] if rows else {"because": "an older image does not say it"}
        return joining

    def settable(self) -> list[str]:
        """Return the names of the scalars that users set. Inputs determine the bounded dims."""
        dims = bounded_dims(self.manifest)
        return [name for name in self.scalars if name not in dims]

    def names(self) -> list[str]:
        """Return the names of the inputs, then of the scalars that users set."""
        return [array["name"] for _, array in self.inputs] + self.settable()

    def check_names(self, arguments: Iterable[str]) -> None:
        """Raise UsageError for a name that is none of an input, of a scalar, or of a parameter of
        the build, of which later steps say more."""
        known = [array["name"] for _, array in self.inputs] + self.scalars
        for name in arguments:
            if name not in known and name not in self.manifest["parameters"]:
                whose = f"the entry {self.name}" if self.name else "the program"
                raise UsageError(f"{whose} has no input or scalar {name!r}",
                                 expected=named.listed(self.names())
                                 or "no inputs and no scalars",
                                 remedy=meant(name, [*known, *OPTIONS], "{}=…"))

    def settings(self, scalars: dict[str, Any]) -> dict[str, Any]:
        """Return these scalars, and the one that says which entry runs. Raise UsageError for one
        that this entry does not have."""
        if self.number is None:
            return scalars
        settable = self.settable()
        for name in scalars:
            if name not in self.scalars and name not in self.manifest["parameters"]:
                raise UsageError(f"the entry {self.name} has no scalar {name!r}",
                                 expected=", ".join(settable) or "no scalars",
                                 remedy="run --entry NAME says which entry runs"
                                 if name == ENTRY else meant(name, settable))
        return {**scalars, ENTRY: self.number}

    def others(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scalars of other entries, as they were in the call before. A dim whose extent
        inputs say has all of its elements where no input says it."""
        return {row["name"]: row["default"] if "at_most" in row
                else before.get(row["name"], row["default"] or 0)
                for row in self.manifest["scalars"] if row["name"] not in self.scalars}

    def reads(self) -> list[tuple[int, dict[str, Any]]]:
        """Return what a call reads, number and row of each: the states, then its inputs."""
        return [*states_of(self.manifest).values(), *self.inputs]

    def own(self, scalars: dict[str, Any]) -> dict[str, Any]:
        """Return the scalars without those that belong to other entries; bounded dims and the
        scalar that selects the entry stay."""
        others = self.others({}) if self.number is not None else {}
        dims = bounded_dims(self.manifest)
        return {k: v for k, v in scalars.items() if k not in others or k in dims or k == ENTRY}

    def asked(self) -> dict[str, Any]:
        """Return the manifest without the conditions and routes that name scalars of other
        entries."""
        if self.number is None:
            return self.manifest
        others = {row["name"] for row in self.manifest["scalars"]}.difference(
            (*bounded_dims(self.manifest), *self.scalars, ENTRY))
        conditions = [c for c in self.manifest["conditions"] if not others & names_in(c["holds"])]
        routes = [r for r in self.manifest["routes"]
                  if not others & names_in(r["to"], r["sends"], r["size"])]
        return {**self.manifest, "conditions": conditions, "routes": routes}


def _within(entry: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an input or output of an entry, with the names that its method says."""
    start = len(entry) + 1
    own: dict[str, Any] = {"name": row["name"][start:]}
    if "optional" in row:
        own["optional"] = row["optional"][start:]
    if "needs" in row:
        own["needs"] = [name[start:] for name in row["needs"]]
    return {**row, **own}


def _dims(
    manifest: dict[str, Any], inputs: list[tuple[int, dict[str, Any]]]
) -> list[tuple[str, int]]:
    bounded = bounded_dims(manifest)
    places: dict[str, tuple[str, int]] = {}
    for _, array in inputs:
        for d, extent in enumerate(array["shape"]):
            if isinstance(extent, str) and extent in bounded:
                places.setdefault(extent, (array["name"], d))
    return list(places.values())


def faces_of(manifest: dict[str, Any]) -> dict[str, Face]:
    """Return the entries by name, without that of `__init__`; {} for a program without entries."""
    return {entry["name"]: Face(manifest, k) for k, entry in enumerate(manifest["entries"]) if k}


def face_of(manifest: dict[str, Any], entry: str | None) -> Face:
    """Return the face of an entry, or of a program without entries, where `entry` is None. Raise
    UsageError as check_entry does."""
    faces = faces_of(manifest)
    check_entry(manifest["program"], faces, entry)
    return Face(manifest) if entry is None else faces[entry]


def check_entry(program: str, known: Collection[str], entry: str | None) -> None:
    """Raise UsageError unless `entry` is one of the known ones, or None where there are none."""
    names = ", ".join(sorted(known))
    if not known and entry is not None:
        raise UsageError(f"{program} has no entries", expected="no --entry, no entry=",
                         found=entry, remedy="@spmd.entry above methods of a class")
    if known and entry is None:
        first = next(iter(known))
        raise UsageError(f"{program} has entries, and none is named", expected=names,
                         remedy=f"--entry {first}; entry={first!r} from Python")
    if entry is not None and entry not in known:
        raise UsageError(f'{program} has no entry "{entry}"; it has {names}',
                         remedy=meant(entry, known))


def check_named(called: str, names: Iterable[str], unnamed: Collection[Any]) -> None:
    """Raise UsageError where what is called has arguments without a name; names: those it has."""
    if unnamed:
        words = ", ".join(f"{name}=…" for name in names)
        raise UsageError(f"{called} takes inputs and scalars by name",
                         expected=f"{called}({words})",
                         found=f"{len(unnamed)} argument{'s' * (len(unnamed) > 1)} without a name")


def states_of(manifest: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the arrays of the state by name: number and row of the input that holds each."""
    inputs, numbers = manifest["inputs"], [state["input"] for state in manifest["states"]]
    return {inputs[k]["name"]: (k, inputs[k]) for k in numbers}


def needed_of(manifest: dict[str, Any]) -> list[str]:
    """Return the names of states without a default: they have to be given before the first call."""
    return [manifest["inputs"][state["input"]]["name"] for state in manifest["states"]
            if not state.get("begins", True)]

"""What a launch is given: scalars and arrays by name, checked against the manifest.

In: names with text, numbers or arrays. Out: values of the declared types, or an error that lists
what the program knows.
"""

from __future__ import annotations

import struct

from codegen.checks.names import POINTS, built_with
from codegen.errors import InputError, UsageError
from codegen.image.manifest import ENTRY, IndexWords, scalar_value
from codegen.suggest import meant
from codegen.user import named
from codegen.user.given_extents import GivenExtents
from spmd.files.npy import element_count

TYPE_CHECKING = False
Only = str | tuple[str, ...] | None  # names of outputs that a call asks for; None: all
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    from codegen.image.manifest import ImageFile
    from spmd.faces import Face


def read(texts: dict[str, str]) -> dict[str, Any]:
    """Return the values that --set gives, as numbers; text that is none stays as it is."""
    return {name: _number(text) for name, text in texts.items()}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def extents_of(
    manifest: dict[str, Any], inputs: list[dict[str, Any]], shapes: dict[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the extents of named dims that only a run knows, from the shapes of the inputs that it
    is given, by name. inputs: the rows of those that may be given. Raises InputError where shapes
    do not fit."""
    most = bounded_dims(manifest)
    extents = GivenExtents(most)
    for array in inputs if most else ():
        if array["name"] in shapes:
            extents.take(array["name"], array["shape"], shapes[array["name"]])
    return extents.values()


def scalars_of(
    manifest: dict[str, Any], settings: dict[str, Any], extents: dict[str, int] | None = None
) -> dict[str, int | float]:
    """Return the value of every scalar: what was set, else its default. extents: of named dims, as
    inputs have them. Raises UsageError, and InputError where a dim was set to something else."""
    extents = extents or {}
    known = [scalar["name"] for scalar in manifest["scalars"]]
    for name in settings:
        if name in manifest["parameters"] and name not in known:
            raise UsageError(
                f"{name} is a parameter: it was fixed when the image was built",
                found=f"{name}={manifest['parameters'][name]} in this image",
                remedy=f"build it again with --set {name}={settings[name]}",
            )
        if name not in known:
            raise UsageError(
                f"the program has no scalar {name!r}", expected=", ".join(known) or "no scalars",
                remedy=meant(name, known),
            )
    values = {
        scalar["name"]: scalar_value(scalar, settings[scalar["name"]])
        if scalar["name"] in settings
        else scalar["default"]
        for scalar in manifest["scalars"]
    }
    for name, extent in extents.items():
        if name in settings and values[name] != extent:
            raise InputError(
                f"{name} was set to {values[name]}, and the inputs have {extent}",
                expected="the extent that the inputs have along it", found=f"{name}={values[name]}",
                remedy=f"leave {name} out: a run takes it from its inputs",
            )
    return {**values, **extents}


def check_settings(manifest: dict[str, Any], settings: dict[str, Any]) -> None:
    """Check that all values that users set are scalars of their own. Raises UsageError for the one
    that says which entry runs."""
    if manifest["entries"] and ENTRY in settings:
        others = [s["name"] for s in manifest["scalars"] if s["name"] != ENTRY]
        raise UsageError(f"the program has no scalar {ENTRY!r}",
                         expected=", ".join(others) or "no scalars",
                         remedy="run --entry NAME says which entry runs")


def check_checks(manifest: dict[str, Any], checks: tuple[str, ...], remedy: str) -> None:
    """Raise UsageError unless the image has the checks that are asked for."""
    has = built_with(manifest)
    if POINTS in checks and POINTS not in has:
        raise UsageError(
            "the image was built without points at which a run can be kept",
            expected="an image for checkpoints: build puts their code in", found="one without",
            remedy="spmd build FILE.py --checkpoint, spmd.build(program, checkpoint=True), or run "
            "FILE.py; a FILE.img whose FILE.py is beside it is built again by itself",
        )
    if missing := [name for name in checks if name not in has]:
        raise UsageError(
            f"the image does not check {', '.join(missing)}",
            expected="an image that was built with these checks: build puts their code in",
            found=f"one that checks {', '.join(has) or 'nothing'}", remedy=remedy,
        )


def check_scalars(scalars: dict[str, Any], needed: set[str]) -> None:
    """Raise UsageError unless each of these scalars has a value."""
    for name in sorted(needed):
        if name in scalars and scalars[name] is None:
            raise InputError(
                f"scalar {name} was not given, and the program declares no default for it",
                remedy=f"--set {name}=VALUE, or {name}=VALUE from Python",
            )


def scalar_words(manifest: dict[str, Any], scalars: dict[str, int | float]) -> list[int]:
    """Return the scalars as the 64 bits that the index words and the engine hold."""
    check_scalars(scalars, set(scalars))
    return [
        struct.unpack("=q", struct.pack("=d", scalars[scalar["name"]]))[0]
        if scalar["dtype"] == "float64" else int(scalars[scalar["name"]])
        for scalar in manifest["scalars"]
    ]


def bounded_dims(manifest: dict[str, Any]) -> dict[str, int]:
    """Return the named dims whose extent only a run knows, with the most that it may be."""
    return {s["name"]: s["at_most"] for s in manifest["scalars"] if "at_most" in s}


def scalars_of_words(manifest: dict[str, Any], words: Sequence[int]) -> dict[str, int | float]:
    """Return the scalars of such words, by name."""
    return {
        scalar["name"]: struct.unpack("=d", struct.pack("=q", word))[0]
        if scalar["dtype"] == "float64" else word
        for scalar, word in zip(manifest["scalars"], words)
    }


def patched_in(
    image: ImageFile, settings: dict[str, Any], mesh: dict[str, int], ranks: int | None
) -> tuple[dict[str, Any], dict[str, int], int | None]:
    """Return settings, mesh and ranks of a launch; those of a local program are what was patched
    in.

    Raises InputError where something else is asked for.
    """
    own = IndexWords(image.section(".spmd.index"))
    if not own.patched:
        return settings, mesh, ranks
    manifest = image.manifest
    sizes = {a["name"]: n for a, n in zip(manifest["mesh"], own.sizes)}
    dims = bounded_dims(manifest)  # what inputs say, of each run
    values = {name: value for name, value in scalars_of_words(manifest, own.scalars).items()
              if name not in dims}
    product = element_count(own.sizes)
    known = {**{s["name"]: s for s in manifest["scalars"]}}
    wrong = [f"{k}={v}" for k, v in mesh.items() if k in sizes and sizes[k] != v]
    wrong += [f"{ranks} ranks"] if ranks not in (None, product) else []
    if manifest["entries"]:  # a local program has all of them too
        values.pop(ENTRY)
    wrong += [f"{k}={v}" for k, v in settings.items()
              if k in values and scalar_value(known[k], v) != values[k]]
    if wrong:
        raise InputError(
            f"this is a local program: {wrong[0]} is not what was patched into it",
            expected=", ".join(f"{k}={v}" for k, v in {**sizes, **values}.items()),
            found=", ".join(wrong), remedy="patch the image again, or run the image itself",
        )
    others = {k: v for k, v in settings.items() if k not in values}
    unknown = {k: v for k, v in mesh.items() if k not in sizes}
    return {**values, **others}, {**sizes, **unknown}, product


def names_of(arrays: list[dict[str, Any]]) -> list[str]:
    return [array["name"] for array in arrays]


def check_names(arrays: list[dict[str, Any]], names: Any, kind: str, option: str) -> None:
    """Check that every name is that of an array, or of a tree of them."""
    known = names_of(arrays)
    for name in names:
        if name not in known and not named.of_tree(name, known):
            raise UsageError(
                f"{option} {name}: the program has no {kind} {name!r}",
                expected=named.listed(known) or f"no {kind}s", remedy=meant(name, known),
            )


def check_required(inputs: list[dict[str, Any]], names: Any) -> None:
    """Check that every input was given that has no default and is not optional; of an optional tree
    all."""
    begun = {array["optional"] for array in inputs
             if array["name"] in names and "optional" in array}
    for array in inputs:
        left_out = "optional" in array and array["optional"] not in begun
        if array["name"] not in names and not array["default"] and not left_out:
            name, root = array["name"], array["name"].partition(".")[0]
            file, value = ("safetensors", "TREE") if root != name else ("npy", "ARRAY")
            raise UsageError(
                f"input {name} was not given, and the program declares no default for it",
                remedy=f"-i {root}=FILE.{file}, or {root}={value} from Python",
            )


def asked_for(face: Face, arguments: dict[str, Any]) -> tuple[Only, dict[str, Any]]:
    """Return what a call asks for with `only`, and its other arguments, without optional inputs
    that are None."""
    only = None
    if "only" in arguments and face.takes_only:
        arguments = dict(arguments)
        only = arguments.pop("only")
        only = only if only is None or isinstance(only, str) else tuple(only)
    if face.optional:
        arguments = {name: value for name, value in arguments.items()
                     if value is not None or name not in face.optional}
    return only, arguments


def computed_outputs(face: Face, input_names: Collection[str], only: Any) -> list[int]:
    """Return the numbers of the outputs that a call computes which gives these inputs: of those
    that it asks for with `only`, those whose optional inputs are all there. The others hold what
    they held."""
    asked = frozenset(named.asked(only, [output["name"] for _, output in face.outputs]))
    missing = {array["optional"] for _, array in face.inputs
               if "optional" in array and array["name"] not in input_names}
    return [k for k, output in face.outputs
            if output["name"] in asked and missing.isdisjoint(output.get("needs", ()))]


def check_computed(
    rows: list[dict[str, Any]], files: Collection[str], there: Collection[str]
) -> None:
    """Raise UsageError unless every output that a file is to take is computed."""
    for name in files:
        if name not in there and not named.of_tree(name, there):
            needs = {n for row in rows if row["name"] == name or named.is_in(row["name"], name)
                     for n in row.get("needs", ())}
            raise UsageError(
                f"-o {name}: this run does not compute the output", expected=", ".join(there),
                remedy=f"leave -o {name} out, or give what it needs: -i "
                f"{' -i '.join(f'{n}=FILE.npy' for n in sorted(needs))}" if needs else
                f"--only with {name} in it")


def check_array(array: dict[str, Any], shape: tuple[int, ...], value: Any) -> None:
    """Check that a given array has the shape and the dtype that the program declared."""
    for aspect, expected, got in (
        ("shape", shape, tuple(value.shape)), ("dtype", array["dtype"], str(value.dtype)),
    ):
        if expected != got:
            where = f": {value.path}" if hasattr(value, "path") else ""
            remedy = f"array.astype({expected!r})"
            if aspect == "shape":
                remedy = value.way_out(len(shape)) if hasattr(value, "way_out") else ""
                if len(got) != len(shape):  # a named dim has any extent then
                    declared = [extent if isinstance(extent, str) else n
                                for extent, n in zip(array["shape"], shape)]
                    expected = f"({', '.join(map(str, declared))}{',' * (len(declared) == 1)})"
            raise InputError(
                f"input {array['name']}{where} has the wrong {aspect}", expected=str(expected),
                found=str(got), remedy=remedy,
            )

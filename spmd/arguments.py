"""What a launch is given: scalars and arrays by name, checked against the manifest.

In: names with text, numbers or arrays. Out: values of the declared types, or an error that lists
what the program knows.
"""

from __future__ import annotations

from codegen.errors import InputError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def scalars_of(manifest: dict[str, Any], settings: dict[str, Any]) -> dict[str, int | float]:
    """Every scalar's value: what was set, else its default. Text and numbers are accepted."""
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
                f"the program has no scalar {name!r}", expected=", ".join(known) or "no scalars"
            )
    return {
        scalar["name"]: scalar_value(scalar, settings[scalar["name"]])
        if scalar["name"] in settings
        else scalar["default"]
        for scalar in manifest["scalars"]
    }


def scalar_value(scalar: dict[str, Any], value: Any) -> int | float:
    """A scalar of the declared type. UsageError for what is none, or does not fit 64 bits."""
    try:
        if scalar["dtype"] == "float64":
            return float(value)
        number = int(value) if isinstance(value, str) else value.__index__()
    except (ValueError, TypeError, AttributeError):
        number = None
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise UsageError(
            f"scalar {scalar['name']} cannot be {value!r}",
            expected="a number" if scalar["dtype"] == "float64" else "an integer of 64 bits",
        )
    return int(number)


def check_names(arrays: list[dict[str, Any]], given: Any, what: str, option: str) -> None:
    known = [array["name"] for array in arrays]
    for name in given:
        if name not in known:
            raise UsageError(
                f"{option} {name}: the program has no {what} {name!r}",
                expected=", ".join(known) or f"no {what}s",
            )


def check_given(manifest: dict[str, Any], given: Any) -> None:
    """Every input without a default was given."""
    for array in manifest["inputs"]:
        if array["name"] not in given and not array["default"]:
            name = array["name"]
            raise UsageError(
                f"input {name} was not given, and the program declares no default for it",
                remedy=f"-i {name}=FILE.npy, or {name}=ARRAY from Python",
            )


def check_array(array: dict[str, Any], shape: tuple[int, ...], found: Any) -> None:
    """A given array has the shape and the dtype that the program declared."""
    for what, expected, got in (
        ("shape", shape, tuple(found.shape)),
        ("dtype", array["dtype"], str(found.dtype)),
    ):
        if expected != got:
            where = f": {found.path}" if hasattr(found, "path") else ""
            raise InputError(
                f"input {array['name']}{where} has the wrong {what}",
                expected=str(expected),
                found=str(got),
                remedy="" if what == "shape" else f"array.astype({expected!r})",
            )

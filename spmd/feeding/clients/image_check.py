"""Does a pipeline give what an image takes? Told before anything is started.

In: a pipeline and an image file. Out: nothing, or an InputError that names the field.
Always holds: nothing of the image is executed; the pipeline computes one example.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from codegen.errors import InputError, OutputError
from codegen.image.manifest import read
from codegen.short_batches import MASK
from codegen.user.casts import range_text
from spmd.data.computing import Misfit, comparable, dtype_of, fit
from spmd.data.pipelines import Pipeline


def check_image(pipeline: Pipeline, image: str) -> None:
    """Compare the fields of the first example with those of the image's feeds.

    InputError where no feed has the pipeline's names, shapes and dtypes.
    """
    path = image if os.path.exists(image) else os.path.join(
        os.path.dirname(os.path.abspath(pipeline.file)), image)
    try:
        with open(path, "rb") as file:
            manifest = read(file.read(), host=False).manifest
    except OSError as error:
        raise OutputError(f"{image}, the image of pipeline {pipeline.name}, cannot be read: "
                          f"{error.strerror}",
                          remedy="build it first, or leave out image=") from None
    feeds: list[dict[str, Any]] = manifest.get("feeds") or []
    if not feeds:
        raise InputError(f"{image} takes no feed", expected="spmd.feed(…) in its program",
                         found="none", remedy="another image=, or none")
    example = pipeline.first()
    misfits = [_misfit(example, feed) for feed in feeds]
    if "" not in misfits:
        raise InputError(
            f"pipeline {pipeline.name} does not give what {image} takes: {misfits[0]}",
            place=pipeline.place,
            expected="; or ".join(_described(feed) for feed in feeds),
            found=", ".join(f"{n} {_shape(a.shape)} {a.dtype}" for n, a in example.items()),
            remedy="np.asarray(…, dtype).reshape(…) in the pipeline, or another spmd.feed(…)")


def _misfit(example: dict[str, np.ndarray], feed: dict[str, Any]) -> str:
    """Return the first difference between an example and a feed, or "". Dtypes may differ where
    workers would cast them."""
    wanted = {f["name"]: f for f in feed["fields"] if f["name"] != MASK}
    example, wanted = comparable(example, wanted)
    for name in [*(wanted.keys() - example.keys()), *(example.keys() - wanted.keys())]:
        return (f"field {name} is not among what it gives" if name in wanted
                else f"no feed has a field {name}")
    for name, field in wanted.items():
        shape = example[name].shape
        extents = field["shape"][1:]
        same = len(shape) == len(extents) and all(
            not isinstance(e, int) or e == n for n, e in zip(shape, extents))
        if not same:
            return f"field {name} has the shape {_shape(shape)}"
        try:
            fit(name, example[name], shape, dtype_of(field["dtype"]), "the image declares")
        except Misfit:
            return f"field {name} is of {example[name].dtype}{range_text(example[name])}"
    return ""


def _described(feed: dict[str, Any]) -> str:
    parts = [f"{f['name']} {_shape(f['shape'][1:])} {f['dtype']}" for f in feed["fields"]
             if f["name"] != MASK]
    where = f" ({feed['place']})" if "place" in feed else ""
    return f"feed {feed['name']} of {', '.join(parts)}{where}"


def _shape(shape: Any) -> str:
    """Return a shape as text; an extent that depends on how the image is run is a dot."""
    parts = [str(e) if isinstance(e, int) else "·" for e in shape]
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"

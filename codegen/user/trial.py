"""A kernel's Python function on parts of arrays: whether it gives the same as on the whole.

Goes in: NumPy arrays, of an eager run or made up while building. Comes out: nothing, or a
KernelError with an element that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from codegen import gufunc
from codegen.user.windows import Box, Form, Start


def call(function: Any, form: Form, passed: Mapping[str, Any], box: Box | None = None) -> None:
    """Call the function once, or for every turn of its loops. box: which part of arrays these
    are."""
    args = [
        form.first(form.starts[n], box or {}) if isinstance(x, Start) else x
        for n, x in passed.items()
    ]
    gufunc.call(function, args, form.follows, [n in form.outputs for n in passed])


def try_parts(
    kernel: Any, form: Form, passed: Mapping[str, Any], results: Mapping[str, Any], where: str = ""
) -> None:
    """Raises KernelError where the kernel gives another result on halves of its arrays. passed:
    what it got, with ghost cells, and outputs as they were before."""
    extents = {c: results[form.outputs[0]].shape[form.place(form.outputs[0], c)] for c in form.cut}
    for half in np.ndindex(*[2] * len(form.cut)):
        box = {
            c: (0, n // 2) if h == 0 else (n // 2, n)
            for (c, n), h in zip(extents.items(), half, strict=True)
        }
        if any(first == last for first, last in box.values()):
            continue
        parts = {
            n: np.array(x[form.slices(n, box)]) if isinstance(x, np.ndarray) else x
            for n, x in passed.items()
        }
        call(kernel.function, form, parts, box)
        for n in form.outputs:
            slices = form.slices(n, box)
            whole, part = np.asarray(results[n])[slices], parts[n]
            same = (whole == part) | ((whole != whole) & (part != part))
            if same.all():
                continue
            place = tuple(np.argwhere(~same)[0])
            index = ", ".join(str(k + (s.start or 0)) for k, s in zip(place, slices))
            raise kernel.refused(
                "another result on a part of the arrays than on the whole",
                "the same on every part, since halo= lets ranks compute their own",
                f"{n}[{index}] is {whole[place]} on the whole and {part[place]} on a part{where}",
                "read no further than the ghost cells; or None for that dim in halo=: the kernel "
                "then gets it whole",
            )

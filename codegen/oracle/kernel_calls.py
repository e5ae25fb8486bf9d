"""A kernel's call in an eager run: its Python function on whole NumPy arrays.

Always holds: inputs are copies. What halo= says is tried: the result on halves of the arrays is
that on the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from codegen.user import windows
from codegen.user.trial import call, try_parts
from codegen.user.windows import Form


def run(kernel: Any, form: Form, bound: Mapping[str, Any]) -> Any:
    """Call a user's kernel; its outputs are written in place and returned."""
    passed = {n: _given(kernel, form, n, x) for n, x in bound.items()}
    before = {n: np.array(passed[n]) for n in form.outputs} if form.cut else {}
    if form.cut:  # the kernel may write into these
        before |= {n: np.array(x) for n, x in passed.items() if isinstance(x, np.ndarray)}
    call(kernel.function, form, passed)
    if form.cut:
        try_parts(kernel, form, {**passed, **before}, bound)
    outputs = [bound[n] for n in form.outputs]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _given(kernel: Any, form: Form, name: str, x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    if name in form.outputs:
        return x.view(np.ndarray)  # the same memory, element by element in NumPy's own time
    if name not in form.halo:
        return np.array(x)
    for d, least, boundary in windows.least(form, name):
        if x.shape[d] < least:
            raise kernel.refused(f'boundary="{boundary}" of {name} wants more than dim {d} has',
                                 f"at least {least} elements", str(x.shape[d]))
    return windows.with_boundary(np.array(x), *windows.ghosts(form, name), np.pad)

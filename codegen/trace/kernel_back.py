"""A kernel whose way back somebody has written: its call as one op, and what that function returns.

Always holds: the kernel itself runs as anywhere else; an array that it adds to, and that follows
from what is differentiated by, is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from codegen.errors import KernelError
from codegen.places import user_place
from codegen.trace.array import Array, wrap
from codegen.trace.context import Context
from codegen.trace.control.conversion import convert
from codegen.trace.kernel_op import emit
from codegen.trace.numpy.derived import defined
from codegen.user.windows import Form


def emit_with_back(
    kernel: Any, back: Callable[..., Any], context: Context, form: Form, bound: Mapping[str, Any]
) -> Any:
    """Emits the call within what is differentiated; the outputs, which are written."""
    inputs = [n for n in bound if n not in form.outputs]
    outputs = [bound[n] for n in form.outputs]

    def run(*primals: Any) -> Any:
        fresh = {n: wrap(context, x.read(), scalar=False) for n, x in zip(form.outputs, outputs)}
        return emit(kernel, context, form, {**dict(zip(inputs, primals)), **fresh})

    def way(primals: Sequence[Any], returned: Any, cotangents: Sequence[Any]) -> Sequence[Any]:
        results = [returned] if len(outputs) == 1 else returned
        changes = [np.zeros_like(x) if g is None else g for x, g in zip(results, cotangents)]
        known = {**dict(zip(inputs, primals)), **dict(zip(form.outputs, results))}
        _check_parameters(kernel, back, [*bound, *(f"d_{n}" for n in form.outputs)])
        input_cotangents = convert(back)(*(known[n] for n in bound), *changes)
        if not isinstance(input_cotangents, tuple) or len(input_cotangents) != len(inputs):
            is_tuple = isinstance(input_cotangents, tuple)
            shown = f"{len(input_cotangents)}" if is_tuple else type(input_cotangents).__name__
            raise KernelError(
                f'kernel "{kernel.name}": its way back returns no cotangent for each input',
                place=user_place(), expected=f"a tuple of {len(inputs)}: {', '.join(inputs)}",
                found=shown, remedy="None for an input that has none")
        return input_cotangents

    written = defined(context, run, way, [bound[n] for n in inputs], {})
    for array, result in zip(outputs, [written] if isinstance(written, Array) else written):
        array.write(result.read())
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _check_parameters(kernel: Any, back: Callable[..., Any], names: Sequence[str]) -> None:
    try:
        inspect.signature(back).bind(*names)
    except TypeError:
        raise KernelError(
            f'kernel "{kernel.name}": its way back takes other arguments', place=user_place(),
            expected=f"the {len(names)} of {back.__name__}({', '.join(names)}): what the kernel "
            "takes, then a cotangent of each output",
            found=f"{back.__name__}{inspect.signature(back)}") from None
    except ValueError:  # it has no signature
        pass

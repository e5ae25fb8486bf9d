"""np.vectorize in a program: the function of numbers becomes a kernel that is called at each point.

Always holds: element types of results are those that otypes= says, or that numba finds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from codegen.trace.array import as_array, unsupported
from codegen.trace.foreign import is_unknown, library
from codegen.trace.kernel_call import Kernel
from codegen.trace.numpy.creation import empty, empty_like
from codegen.trace.numpy.refused import KERNEL
from codegen.trace.numpy.shaping import broadcast_arrays


def vectorized(wrapper: Any) -> Callable[..., Any]:
    """Return the function that runs where an np.vectorize object is called."""

    def call(*args: Any, **options: Any) -> Any:
        if not is_unknown(args, options):
            return library(wrapper)(*args, **options)
        if isinstance(wrapper.pyfunc, np.ufunc) and not wrapper.otypes:
            return wrapper.pyfunc(*args, **options)
        plain = isinstance(wrapper.pyfunc, FunctionType)
        if not plain or wrapper.signature or wrapper.excluded:
            raise unsupported("np.vectorize with signature=, or of a built-in function,", KERNEL)
        bound = inspect.signature(wrapper.pyfunc).bind(*args, **options)
        if bound.kwargs:
            raise unsupported("np.vectorize with keyword-only arguments", KERNEL)
        return _called(wrapper.pyfunc, list(bound.args), wrapper.otypes)

    return call


def _called(function: FunctionType, args: list[Any], otypes: str | None) -> Any:
    from codegen.image.kernel_objects import results_of  # numba: half a second

    inputs = [as_array(x) for x in args]
    whole = broadcast_arrays(*inputs)
    kinds = list(otypes or results_of(function, [x.type.dtype for x in inputs]))
    like = next((x for x in inputs if x.extents == whole[0].extents), None)
    outs = {f"out{k}": empty(whole[0].shape, t) if like is None else empty_like(like, np.dtype(t))
            for k, t in enumerate(kinds)}
    names = [f"x{k}" for k in range(len(inputs))]
    scope: dict[str, Any] = {"function": function}
    exec(f"def {_name(function)}({', '.join((*names, *outs))}):\n"
         f"    {', '.join(f'{out}[0]' for out in outs)} = function({', '.join(names)})\n",
         scope)
    signature = f"{','.join(['()'] * len(names))}->{','.join(['()'] * len(outs))}"
    result = Kernel(scope[_name(function)], signature=signature)(*inputs, **outs)
    return result


def _name(function: FunctionType) -> str:
    return function.__name__ if function.__name__.isidentifier() else "point"

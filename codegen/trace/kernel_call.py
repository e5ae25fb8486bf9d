"""@spmd.kernel: a Python function that numba compiles into the image, and its call while tracing.

Keyword arguments made by spmd.like and spmd.empty are outputs. Arguments are by value: the kernel
sees contiguous copies, and a call returns the outputs as they are afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import expr
from codegen.errors import KernelError, Place, UnsupportedError
from codegen.ir import ArrayType, Value
from codegen.trace.array import Array, Number, as_array, as_value
from codegen.trace.context import Context, require_context, user_place

_LATER = ("halo", "boundary")


class Kernel:
    """function: the user's, untouched. name: its own. place: where it is defined."""

    def __init__(self, function: Callable[..., Any], place: Place | None = None) -> None:
        code = getattr(function, "__code__", None)
        if code is None:
            raise KernelError("a kernel is a Python function", place=place,
                              expected="def smooth(u, out): ...", found=repr(function))  # fmt: skip
        self.function = function
        self.name = function.__name__
        self.place = Place(code.co_filename, code.co_firstlineno, 0, -1, self.name)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<spmd kernel {self.name}>"

    def read_parts(self) -> tuple[Any, ...]:
        """What its code depends on: see reads.py."""
        return self.function, self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from codegen.trace.api import eager_current

        for name in _LATER:
            if name in kwargs:
                raise UnsupportedError(
                    f"{name}= of a kernel is not available yet",
                    place=user_place(),
                    expected="a kernel of this rank's own arrays",
                    remedy="exchange the ghost cells with spmd.ppermute and pass a padded array",
                )
        bound = self._bound(args, kwargs)
        runtime = eager_current()
        if runtime is not None:
            return self._eager(runtime, bound, set(kwargs))
        return self._traced(require_context(f'kernel "{self.name}"'), bound, set(kwargs))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise KernelError(
                f'kernel "{self.name}": {error}',
                place=user_place(),
                expected=f"{self.name}{inspect.signature(self.function)}",
                found=f"{len(args)} arguments and {', '.join(kwargs) or 'no'} keywords",
            ) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _traced(self, context: Context, bound: dict[str, Any], named: set[str]) -> Any:
        operands: list[Value] = []
        args: list[tuple[str, Any]] = []
        outputs: list[Array] = []
        for name, x in bound.items():
            if isinstance(x, Array) and x.made_empty and name in named:
                args.append(("out", len(outputs)))
                outputs.append(as_array(x))
            elif isinstance(x, (Number, bool, int)) and not isinstance(x, np.generic):
                number = x.expr if isinstance(x, Number) else expr.const(int(x))
                args.append(("expr", number))
            elif isinstance(x, (Array, float, complex, np.ndarray, np.generic)):
                args.append(("in", len(operands)))
                operands.append(as_value(context, as_array(x)))
            else:
                raise KernelError(
                    f'kernel "{self.name}": {name} is a {type(x).__name__}',
                    place=user_place(),
                    expected="arrays and numbers",
                    found=repr(x)[:60],
                )
        if not outputs:
            raise KernelError(
                f'kernel "{self.name}" is called without an output',
                place=user_place(),
                expected="a keyword argument made by spmd.like(x) or spmd.empty(shape, dtype)",
                found=", ".join(f"{k}={type(v).__name__}" for k, v in bound.items()),
                remedy=f"v = {self.name}(..., out=spmd.like(u))",
            )
        types = tuple(ArrayType(o.type.dtype, o.extents, o.type.layout) for o in outputs)
        attrs = {"kernel": self, "args": tuple(args), "types": types}
        results = context.emit("kernel", operands, attrs, names=[self.name] * len(outputs))
        for array, value in zip(outputs, results):
            array.write(value)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _eager(self, runtime: Any, bound: dict[str, Any], named: set[str]) -> Any:
        """Inputs are copied; outputs are written in place and returned."""
        passed, outputs = [], []
        for name, x in bound.items():
            if name in named and getattr(x, "made_empty", False):
                outputs.append(x)
                passed.append(x)
            else:
                passed.append(np.array(x) if isinstance(x, np.ndarray) else x)
        runtime.kernel(self.function, passed)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

"""The functions users reach as `spmd.NAME`: recorded while a program is captured, run while eager.

Always holds: inside a capture the tracing function runs; in an eager run the runtime's method of
the same name; anywhere else the call is an error that says where it may stand.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from codegen.errors import UsageError
from codegen.places import user_frame, user_place
from codegen.suggest import meant
from codegen.trace.array import Array
from codegen.trace.batching.vmap import vmap
from codegen.trace.c_kernel import CKernel, c_file
from codegen.trace.context import Context, eager_current, require_context
from codegen.trace.control.conversion import as_called
from codegen.trace.control.recursion.decorator import recursive
from codegen.trace.decorator import program
from codegen.trace.derive.derivatives import (
    custom_vjp,
    grad,
    jvp,
    value_and_grad,
    vjp,
)
from codegen.trace.derive.eagerly import mapped
from codegen.trace.derive.jacobians import hessian, jacfwd, jacobian, jacrev
from codegen.trace.derive.marks import (
    checkpoint_name,
    checkpoint_policies,
    remat,
    stop_gradient,
)
from codegen.trace.feed_calls import Stream
from codegen.trace.function_entity import entity
from codegen.trace.kernel_call import Kernel
from codegen.trace.program import Program, parse_parameter
from codegen.trace.ranks import mapping
from codegen.user.absent import needs_of, without
from codegen.user.dims import Dim
from codegen.user.entry_methods import entry
from codegen.user.layout_trees import replicated
from codegen.user.signatures import check_call
from codegen.user.spec import spec
from codegen.user.windows import Start

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "Array", "Dim", "Program", "Stream", "checkpoint_name", "checkpoint_policies", "custom_vjp",
    "entity", "entry", "grad", "hessian", "jacfwd", "jacobian", "jacrev", "jvp", "parse_parameter",
    "program", "recursive", "remat", "replicated", "spec", "stop_gradient", "value_and_grad", "vjp",
    "vmap",
]


# JAX's names of arguments, and ours.
_JAX = {"axis_name": "axis", "fun": "f", "fill_value": "value", "device": None}


def _public(name: str, module: str, attribute: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for theirs, ours in _JAX.items():
            if ours and theirs in kwargs:
                kwargs[ours] = kwargs.pop(theirs)
        if name == "all_gather" and len(args) > 1 and "axis" in kwargs:
            kwargs["dim"] = kwargs.pop("axis")  # JAX: behind the mesh axis it is the dim
        function: Callable[..., Any] = call.__wrapped__  # type: ignore[attr-defined]
        runtime = eager_current()
        if runtime is not None:
            method = getattr(runtime, name, None)
            if method is None:
                raise UsageError(f"spmd.{name} is not available in an eager run",
                                 remedy="build the program and run the image")
            check_call(function, f"spmd.{name}", *args, **kwargs)
            needs = needs_of((args, kwargs))
            result = without(name, method, args, kwargs, needs) if needs else (
                method(*args, **kwargs))
            if name in ("empty", "empty_like", "like"):
                result.made_empty = True  # so that a kernel knows its outputs
            return result
        if name == "range" and Context.current() is None:
            return range(*args, **kwargs)  # so that one file of functions serves NumPy too
        require_context(f"spmd.{name}")
        check_call(function, f"spmd.{name}", *args, **kwargs)
        return function(*args, **kwargs)

    traced = getattr(importlib.import_module(f"codegen.trace.{module}"), attribute)
    functools.update_wrapper(call, traced)
    call.__name__ = call.__qualname__ = name
    call.__module__ = "spmd"
    return call


# module of codegen.trace -> names in it; name=attribute where the two differ
_MODULES = {
    "declare": "input=input_ scalar require mesh ranks=number_of_ranks",
    "messages": "print=print_ progress",
    "save_calls": "save",
    "feed_calls": "feed",
    "ranks.communicate": "axis_index axis_size index=axis_index ppermute all_gather all_to_all "
    "barrier",
    "ranks.combining": "psum pprod pmax pmin pmean psum_scatter pand por pxor preduce pscan "
    "pexscan pargmax pargmin all_ranks any_ranks",
    "ranks.rooted": "pbroadcast pgather pscatter",
    "ranks.varying": "pvary",
    "numpy.creation": "zeros ones empty full arange eye identity linspace asarray array "
    "zeros_like ones_like empty_like full_like like dynamic_slice dynamic_update_slice",
    "numpy.ordering": "top_k",
    "numpy.convolving": "convolve",
    "control.blocks": "blocks=Blocks",
    "control.ranges": "range=spmd_range",
    "control.functional": "fori_loop while_loop cond switch scan",
}
# name -> module, and the name there
_TABLE = {
    name: (module, attribute or name)
    for module, names in _MODULES.items()
    for name, _, attribute in (entry.partition("=") for entry in names.split())
}

PUBLIC: dict[str, Callable[..., Any]] = {}  # those that were asked for


def __getattr__(name: str) -> Any:
    if name in _TABLE:
        if name not in PUBLIC:
            PUBLIC[name] = _public(name, *_TABLE[name])
        return PUBLIC[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ---- shard_map -------------------------------------------------------------------------------


@overload
def shard_map(
    f: F, *, mesh: Any = ..., in_layouts: Any = ..., out_layouts: Any = ..., in_specs: Any = ...,
    out_specs: Any = ..., **jax_options: Any,
) -> F: ...


@overload
def shard_map(
    f: None = ..., *, mesh: Any = ..., in_layouts: Any = ..., out_layouts: Any = ...,
    in_specs: Any = ..., out_specs: Any = ..., **jax_options: Any,
) -> Callable[[F], F]: ...


def shard_map(
    f: Callable[..., Any] | None = None, *, mesh: Any = None, in_layouts: Any = None,
    out_layouts: Any = ..., in_specs: Any = None, out_specs: Any = ..., **jax_options: Any,
) -> Any:
    """Return a function of whole arrays that calls f on each rank with its shards.

    - mesh: the axes that it works along, one or a tuple.
    - in_layouts: of the arguments; their own unless you say otherwise. Another one makes ranks
      exchange first.
    - out_layouts: how the results' shards form whole arrays. A flat tuple is one layout, a tuple of
      tuples has one for each result. An axis joins shards; None, () and spmd.replicated say that
      the result is the same on all ranks. Without it the compiler decides: a result that is equal
      on all ranks is returned once, and one that may differ is joined along the dims that are cut
      as an argument's. LayoutError where no such dim is there; it says what to write.
    - in_specs, out_specs: JAX's names for them.
    - check_vma: False states, as in JAX, that ranks which hold the same part of a result have the
      same values, where the compiler would refuse it: it follows from the index or a split
      argument, and nothing combines it.

    Arguments are values: return what you write into. LayoutError and ShapeError where results do
    not fit their layouts, MatchingError where messages do not match.

    Example::

        @spmd.program(mesh=("r",))
        def shares(n: int = 4):
            x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i + 1)

            @spmd.shard_map(mesh="r", out_layouts=(("r",), ()))    # or leave out_layouts out
            def share(part):
                total = spmd.psum(np.sum(part), "r")
                return part / total, total

            return share(x)

        print(shares.eager(ranks=3)[0])    # [0.1 0.2 0.3 0.4]
    """
    for word in jax_options.keys() - {"check_vma", "check_rep", "axis_names"}:
        known = ("mesh", "in_layouts", "out_layouts", "in_specs", "out_specs")
        raise UsageError(f"shard_map has no argument {word!r}", expected=", ".join(known),
                         place=user_place(), remedy=meant(word, known, "{}=…"))
    pad = in_specs is not None or out_specs is not ...
    ins = in_layouts if in_layouts is not None else in_specs
    outs = out_layouts if out_layouts is not ... else out_specs
    sure = not all(jax_options.get(name, True) for name in ("check_vma", "check_rep"))
    if f is None:
        names = ("in_specs", "out_specs") if pad else ("in_layouts", "out_layouts")
        return functools.partial(shard_map, mesh=mesh, **dict(zip(names, (ins, outs))),
                                 **jax_options)
    function = f

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        runtime = eager_current()
        if runtime is not None:
            return _eager_shard_map(runtime, function, args, kwargs, ins, outs, call)
        context = require_context("a function given to spmd.shard_map")
        return mapping.call(context, as_called(function), args, kwargs, mesh, ins, outs, pad, sure)

    return call


def _eager_shard_map(
    runtime: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
    ins: Any, outs: Any, traced: Callable[..., Any],
) -> Any:
    """Call the runtime's shard_map, which takes positional arguments, and a layout spec as the user
    gave it."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    return mapped(runtime, function, lambda: runtime.shard_map(function, ins, outs, bound.args),
                  traced, bound.args)


# ---- kernels ---------------------------------------------------------------------------------


@overload
def kernel(function: Callable[..., Any]) -> Callable[..., Any]: ...


@overload
def kernel(
    function: None = ..., *, signature: str | None = ...
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def kernel(function: Callable[..., Any] | None = None, *, signature: str | None = None) -> Any:
    """Compile a Python function of elements with numba and put it into the image; use it as a
    decorator.

    A call passes arrays and numbers. The keyword argument out=, and others made by spmd.like or
    spmd.empty, are outputs; the call writes into them and returns them. Inputs are values: what a
    kernel writes into one reaches nobody.

    On whole arrays the kernel gets every dim whole, on every rank, with two exceptions:

    - signature: the dims that it works on, as in numpy.vectorize and numba.guvectorize. With
      "(n),()->(n)" it gets rows and a number, and is called for each of the dims before them, which
      broadcast and stay split. An output "()" is an array of one element.
    - halo, boundary: keyword arguments of the call. halo={"u": (1, 0)} passes parts of u with one
      ghost cell on both sides of dim 0, and parts of the outputs; the result must be the same on
      every part. boundary fills ghost cells beyond the ends: "edge", "wrap", "zero" or a number.

    Inside a shard_map it gets what the rank has. KernelError where numba cannot compile it, where
    it allocates memory or raises.

    Example::

        @spmd.kernel(signature="(n)->(n)")
        def running(row, out):
            total = 0.0
            for i in range(row.shape[0]):
                total += row[i]
                out[i] = total

        @spmd.program(mesh=("r",))
        def totals(rows: int = 3):
            x = spmd.input("x", (rows, 4), np.float64, layout=("r", None), default=lambda i, j: i)
            return running(x, out=spmd.like(x))

        print(totals.eager()[2])    # [2. 4. 6. 8.]
    """
    if function is None:
        return functools.partial(kernel, signature=signature)
    return Kernel(function, user_place(), signature)


def c_kernel(
    file: str | os.PathLike[str], prototype: str, *, signature: str | None = None,
    reference: Callable[..., Any] | None = None,
) -> CKernel:
    """Return a kernel that is a C function: its file is compiled into the image.

    file: a path, relative to the folder of the program's file. prototype: the function's, which
    returns void. Pointers take arrays: const ones inputs, others outputs; other parameters take
    numbers. Element types are those of stdint.h, bool, int, float, double, float _Complex and
    double _Complex.

    A call passes inputs by position or keyword, outputs by keyword. signature, halo, boundary,
    spmd.start and spmd.shard_map mean what they mean for spmd.kernel; a signature names the dims of
    all inputs, then of all outputs. An int64_t directly behind an array is the
    extent of its next dim: the first one of dim 0, and so on. A call may pass another value for it
    by keyword. spmd.start(u) is a `const int64_t *`, with an integer for each dim of u, or an
    int64_t where u has one dim. Outputs hold zeros, or what their array held, when the function
    begins.

    reference: a NumPy function, which takes some of the inputs and extents by their names, and
    returns the outputs. Eager runs call it, and derivatives go through it. Without one, eager runs
    call the C function.

    KernelError, with the line of the C file, where the compiler refuses it; where it calls other
    functions than its own and those of math.h and complex.h; where it keeps static variables, or
    has a constructor.

    Example::

        from pathlib import Path

        Path(__file__).with_name("scaled.c").write_text('''
        #include <stdint.h>
        void scaled(const double *x, double by, double *out, int64_t n)
        {
            for (int64_t i = 0; i < n; i++)
                out[i] = by * x[i];
        }
        ''')

        scaled = spmd.c_kernel(
            "scaled.c", "void scaled(const double *x, double by, double *out, int64_t n)")

        @spmd.program(mesh=("r",))
        def doubled(n: int = 4):
            x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i)
            return scaled(x, 2, out=spmd.like(x), halo={"x": (0,)})

        print(spmd.build(doubled).run(ranks=3))    # [0. 2. 4. 6.]
    """
    frame = user_frame()
    path = c_file(file, frame.f_code.co_filename if frame else "<nowhere>")
    return CKernel(path, prototype, signature, reference, user_place())


def start(x: Any) -> Any:
    """Pass a kernel the global position at which its part of x begins.

    An integer for one dim, a tuple for several: the global index of the first element that is no
    ghost cell. 0 along dims that the kernel gets whole.
    """
    if eager_current() is None:
        require_context("spmd.start")
    if not getattr(x, "ndim", 0):
        raise UsageError("spmd.start takes an array", place=user_place(),
                         expected="an array that the kernel is given too",
                         found=type(x).__name__)
    return Start(x)

"""Write NumPy. Ship one image. Run it on any number of ranks.

Always holds: importing this package imports nothing else, except in one of several processes of a
launcher; a name brings in what it needs when it is first used.
"""

from __future__ import annotations

__version__ = "0.1.0"

# Names of the language, defined in codegen.trace.api.
_LANGUAGE = frozenset(
    """Dim all_gather all_ranks all_to_all any_ranks arange array asarray axis_index
    axis_size barrier blocks cond dynamic_slice dynamic_update_slice empty empty_like eye
    fori_loop full full_like identity index input kernel like linspace mesh ones ones_like
    pand pargmax pargmin parse_parameter pbroadcast pexscan pgather pmax pmean pmin por
    ppermute pprod preduce print program Program pscan pscatter psum psum_scatter pxor range
    ranks replicated require scalar scan shard_map start switch while_loop zeros
    zeros_like""".split()
)

# Names of the runtime, defined in spmd.image.
_RUNTIME = frozenset("Distributed Image Local Opened build load local".split())

# What can be raised, defined in codegen.errors; all are SpmdErrors, with an exit_code.
_ERRORS = frozenset(
    """AgreementError CarryError CheckError DtypeError EnvironmentFault ImageError InputError
    InternalError KernelError LayoutError MatchingError MeshError OutputError PeerError ProgramError
    ShapeError SpmdError TracedValueError UnsupportedError UsageError VersionError""".split()
)

# What can be warned of, defined there too.
_WARNINGS = frozenset({"LayoutWarning"})

# What is planned but not there yet, with what to write instead.
_LATER = {
    "c_kernel": "@spmd.kernel compiles a Python function",
}

# What people know from MPI, and its name here.
_INSTEAD = {
    **dict.fromkeys("send recv isend irecv sendrecv".split(), "spmd.ppermute sends and receives"),
    **dict.fromkeys("allreduce all_reduce".split(), "spmd.psum, pmax, pmin, pprod, pmean"),
    **dict.fromkeys("reduce".split(), "spmd.preduce, or spmd.psum for all"),
    **dict.fromkeys("exscan".split(), "spmd.pexscan"),
    **dict.fromkeys("maxloc minloc".split(), "spmd.pargmax, spmd.pargmin"),
    **dict.fromkeys("bcast broadcast".split(), "spmd.pbroadcast"),
    **dict.fromkeys("allgather".split(), "spmd.all_gather"),
    **dict.fromkeys("gather".split(), "spmd.pgather, or spmd.all_gather"),
    **dict.fromkeys("scatter".split(), "spmd.pscatter; inputs have layouts"),
    **dict.fromkeys("reduce_scatter".split(), "spmd.psum_scatter"),
    **dict.fromkeys("alltoall".split(), "spmd.all_to_all"),
    **dict.fromkeys("rank get_rank".split(), "spmd.index, or spmd.axis_index of one axis"),
    **dict.fromkeys("size get_size comm".split(), "spmd.ranks, or spmd.axis_size of one axis"),
}

__all__ = sorted(_LANGUAGE | _RUNTIME | _ERRORS | _WARNINGS | {"numpy", "random"})

TYPE_CHECKING = False  # typing costs every rank more time than this package
if TYPE_CHECKING:
    from typing import Any

    from spmd import numpy as numpy
    from spmd import random as random


def foreign_codegen() -> str:
    """What is wrong when the `codegen` that Python finds is not this project's, else ""."""
    try:
        import codegen.errors  # noqa: F401
    except ImportError:
        import sys

        found = getattr(sys.modules.get("codegen"), "__file__", None) or "nothing"
        return (
            "the package `codegen` that Python finds is not spmd's\n"
            f"  expected: the compiler that is installed with {__path__[0]}\n"
            f"  found:    {found}\n"
            "  try:      pip uninstall codegen, then install spmd again; or rename that file"
        )
    return ""


def _begin() -> None:
    """One of several processes shows the others, from now on, what it is at: spmd.presence."""
    import os
    import sys

    marks = "PMI_SIZE OMPI_COMM_WORLD_SIZE MV2_COMM_WORLD_SIZE FLUX_JOB_SIZE SLURM_STEP_NUM_TASKS"
    several = any(os.environ.get(mark, "1") != "1" for mark in marks.split())
    if several and sys.argv[:1] != ["-m"] and not foreign_codegen():  # `python -m spmd`: Patience
        from spmd import presence

        presence.begin()


def __getattr__(name: str) -> Any:
    if name in _LANGUAGE | _RUNTIME | _ERRORS | _WARNINGS and (problem := foreign_codegen()):
        raise ImportError(problem)
    if name in _LANGUAGE:
        from codegen.trace import api

        value = getattr(api, name)
        globals()[name] = value
        return value
    if name in _RUNTIME:
        from spmd import image

        return getattr(image, name)
    if name in _ERRORS | _WARNINGS:
        from codegen import errors

        return getattr(errors, name)
    if name in ("numpy", "random"):
        import importlib

        return importlib.import_module(f"spmd.{name}")
    if name in _LATER:
        from codegen.errors import UnsupportedError

        raise UnsupportedError(f"spmd.{name} is not available yet", remedy=_LATER[name])
    import sys

    instead = _INSTEAD.get(name.lower(), "")
    raise AttributeError(
        f"module 'spmd' has no attribute {name!r}" + (f": {instead}" if instead else ""),
        name=name, obj=sys.modules[__name__],
    )  # fmt: skip


def __dir__() -> list[str]:
    return __all__


_begin()

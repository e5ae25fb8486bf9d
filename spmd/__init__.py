"""Write NumPy. Ship one image. Run it on any number of ranks.

Always holds: importing this package imports nothing else of ours, except in one of several
processes of a launcher; a name brings in what it needs when it is first used.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

__version__ = "0.1.0"

# Names of the language, defined in codegen.trace.api.
_LANGUAGE = frozenset(
    """Array Dim Stream all_gather all_ranks all_to_all any_ranks arange array asarray
    axis_index axis_size barrier blocks c_kernel checkpoint_name checkpoint_policies cond
    custom_vjp dynamic_slice dynamic_update_slice empty empty_like entity entry eye feed
    fori_loop full full_like grad hessian identity index input jacfwd jacobian jacrev jvp
    kernel like linspace mesh ones ones_like pand pargmax pargmin parse_parameter pbroadcast
    pexscan pgather pmax pmean pmin por ppermute pprod preduce print program Program progress
    pscan pscatter psum psum_scatter pvary pxor range ranks recursive remat replicated require save
    scalar scan shard_map spec start stop_gradient switch top_k value_and_grad vjp vmap
    while_loop zeros zeros_like""".split()
)

# Names of the runtime, defined in spmd.image, spmd.building and spmd.jitting.
_RUNTIME = frozenset(
    """Distributed FrameStream Image Jit Local Opened OpenedEntity RemoteModel RemoteServer
    Started TrainingPipeline build connect jit load local pipeline""".split())

# What can be raised, defined in codegen.errors; all are SpmdErrors, with an exit_code.
_ERRORS = frozenset(
    """AgreementError CarryError CheckError DtypeError EnvironmentFault ImageError InputError
    InternalError KernelError LayoutError MatchingError MeshError MissingError OutputError
    PeerError ProgramError ScheduleError ShapeError SpmdError TracedValueError UnsupportedError
    UsageError VersionError""".split()
)

# What can be warned of, defined there too.
_WARNINGS = frozenset({"LayoutWarning"})

# What people know from elsewhere, and its name here.
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
    "compile": "spmd.jit of a function, spmd.build of a program",
    "checkpoint": "spmd.remat",
    "pmap": "spmd.vmap maps a function; layouts split the mapped dim over ranks",
    **dict.fromkeys("run profile timeline layouts".split(), "spmd.build(program) gives an image"),
    **dict.fromkeys("doctor bench show patch calibrate".split(), "a command of the shell: spmd"),
}

_MODULES = {"data", "extend", "nn", "numpy", "optim", "random", "schedules", "tree"}
__all__ = sorted(_LANGUAGE | _RUNTIME | _ERRORS | _WARNINGS | _MODULES)

TYPE_CHECKING = False  # typing costs every rank more time than this package
if TYPE_CHECKING:  # for editors and type checkers: where every name has its docstring and its types
    from typing import Any

    from codegen.errors import *  # noqa: F403
    from codegen.trace.api import Dim as Dim
    from codegen.trace.api import Program as Program
    from codegen.trace.api import c_kernel as c_kernel
    from codegen.trace.api import custom_vjp as custom_vjp
    from codegen.trace.api import entity as entity
    from codegen.trace.api import entry as entry
    from codegen.trace.api import grad as grad
    from codegen.trace.api import kernel as kernel
    from codegen.trace.api import parse_parameter as parse_parameter
    from codegen.trace.api import program as program
    from codegen.trace.api import remat as remat
    from codegen.trace.api import replicated as replicated
    from codegen.trace.api import shard_map as shard_map
    from codegen.trace.api import spec as spec
    from codegen.trace.api import start as start
    from codegen.trace.api import value_and_grad as value_and_grad
    from codegen.trace.array import Array as Array
    from codegen.trace.batching.vmap import vmap as vmap
    from codegen.trace.control.blocks import Blocks as _blocks
    from codegen.trace.control.functional import cond as cond
    from codegen.trace.control.functional import fori_loop as fori_loop
    from codegen.trace.control.functional import scan as scan
    from codegen.trace.control.functional import switch as switch
    from codegen.trace.control.functional import while_loop as while_loop
    from codegen.trace.control.ranges import spmd_range as _range
    from codegen.trace.control.recursion.decorated import recursive as recursive
    from codegen.trace.declare import input_ as _input
    from codegen.trace.declare import mesh as mesh
    from codegen.trace.declare import number_of_ranks as _ranks
    from codegen.trace.declare import require as require
    from codegen.trace.declare import scalar as scalar
    from codegen.trace.derive.derivatives import jvp as jvp
    from codegen.trace.derive.derivatives import vjp as vjp
    from codegen.trace.derive.jacobians import hessian as hessian
    from codegen.trace.derive.jacobians import jacfwd as jacfwd
    from codegen.trace.derive.jacobians import jacobian as jacobian
    from codegen.trace.derive.jacobians import jacrev as jacrev
    from codegen.trace.derive.marks import checkpoint_name as checkpoint_name
    from codegen.trace.derive.marks import checkpoint_policies as checkpoint_policies
    from codegen.trace.derive.marks import stop_gradient as stop_gradient
    from codegen.trace.feed_calls import Stream as Stream
    from codegen.trace.feed_calls import feed as feed
    from codegen.trace.messages import print_ as _print
    from codegen.trace.messages import progress as progress
    from codegen.trace.numpy.creation import *  # noqa: F403
    from codegen.trace.numpy.ordering import top_k as top_k
    from codegen.trace.ranks.combining import *  # noqa: F403
    from codegen.trace.ranks.communicate import all_gather as all_gather
    from codegen.trace.ranks.communicate import all_to_all as all_to_all
    from codegen.trace.ranks.communicate import axis_index as _index
    from codegen.trace.ranks.communicate import axis_index as axis_index
    from codegen.trace.ranks.communicate import axis_size as axis_size
    from codegen.trace.ranks.communicate import barrier as barrier
    from codegen.trace.ranks.communicate import ppermute as ppermute
    from codegen.trace.ranks.rooted import pbroadcast as pbroadcast
    from codegen.trace.ranks.rooted import pgather as pgather
    from codegen.trace.ranks.rooted import pscatter as pscatter
    from codegen.trace.ranks.varying import pvary as pvary
    from codegen.trace.save_calls import save as save
    from spmd import data as data
    from spmd import extend as extend
    from spmd import nn as nn
    from spmd import numpy as numpy
    from spmd import optim as optim
    from spmd import random as random
    from spmd import schedules as schedules
    from spmd import tree as tree
    from spmd.building import build as build
    from spmd.image import Distributed as Distributed
    from spmd.image import FrameStream as FrameStream
    from spmd.image import Image as Image
    from spmd.image import Local as Local
    from spmd.image import Opened as Opened
    from spmd.image import OpenedEntity as OpenedEntity
    from spmd.image import Started as Started
    from spmd.image import load as load
    from spmd.image import local as local
    from spmd.jitting import Jit as Jit
    from spmd.jitting import jit as jit
    from spmd.pipelining import TrainingPipeline as TrainingPipeline
    from spmd.pipelining import pipeline as pipeline
    from spmd.serving.remote_models import RemoteModel as RemoteModel
    from spmd.serving.remote_models import RemoteServer as RemoteServer
    from spmd.serving.remote_models import connect as connect

    blocks = _blocks
    index = _index
    input = _input
    print = _print
    range = _range
    ranks = _ranks


# Where public names are defined.
_HOMES = {
    **dict.fromkeys(_LANGUAGE, "codegen.trace.api"),
    **dict.fromkeys(_RUNTIME, "spmd.image"),
    "build": "spmd.building",
    **dict.fromkeys(("RemoteModel", "RemoteServer", "connect"), "spmd.serving.remote_models"),
    "pipeline": "spmd.pipelining",
    "TrainingPipeline": "spmd.pipelining",
    "jit": "spmd.jitting",
    "Jit": "spmd.jitting",
    **dict.fromkeys(_ERRORS | _WARNINGS, "codegen.errors"),
}


def foreign_codegen() -> str:
    """Return what is wrong when the `codegen` that Python finds is not this project's, else ""."""
    try:
        import_module("codegen.errors")
    except ImportError:
        origin = getattr(sys.modules.get("codegen"), "__file__", None) or "nothing"
        return (
            "the package `codegen` that Python finds is not spmd's\n"
            f"  expected: the compiler that is installed with {os.path.dirname(__file__)}\n"
            f"  found:    {origin}\n"
            "  try:      pip uninstall codegen, then install spmd again; or rename that file"
        )
    return ""


def launched() -> bool:
    """Return whether a launcher has started this process as one of several."""
    marks = "PMI_SIZE OMPI_COMM_WORLD_SIZE MV2_COMM_WORLD_SIZE FLUX_JOB_SIZE SLURM_STEP_NUM_TASKS"
    return any(os.environ.get(mark, "1") != "1" for mark in marks.split())


def _begin() -> None:
    """Let this process, if it is one of several, show the others what it does from now on."""
    if launched() and sys.argv[:1] != ["-m"] and not foreign_codegen():  # that has ProcessWatch
        import_module("spmd.launch.process_status").begin()
        if "PMIX_NAMESPACE" in os.environ:
            import_module("atexit").register(_leave_together)


def _leave_together() -> None:
    import_module("spmd.launch.script_exit").leave_together()


def _find(name: str) -> Any:
    """Return the value of a public name; its module is imported when the name is first used."""
    if name in _HOMES:
        if problem := foreign_codegen():
            raise ImportError(problem)
        value = getattr(import_module(_HOMES[name]), name)
        if name in _LANGUAGE:
            import_module("spmd.tracebacks")  # how IPython shows those of a program
            paths = import_module("codegen.user.state_paths")
            paths.give_files(lambda: import_module("spmd.eager_state"))
            globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"spmd.{name}")
    instead = _INSTEAD.get(name.lower(), "")
    if not instead and hasattr(sys.modules.get("numpy"), name):
        instead = f"np.{name} works on arrays of a program"
    raise AttributeError(
        f"module 'spmd' has no attribute {name!r}" + (f": {instead}" if instead else ""),
        name=None if instead else name, obj=sys.modules[__name__],
    )


if not TYPE_CHECKING:  # a type checker knows all names, and says which one does not exist
    __getattr__ = _find


def __dir__() -> list[str]:
    return __all__


_begin()

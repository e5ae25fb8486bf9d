"""Pipelines that prepare examples: sources, operations on them, and what workers compute.

Always holds: importing this package needs NumPy only; no MPI, no compiler, no engine.
"""

from __future__ import annotations

from importlib import import_module

from spmd.data import image, text
from spmd.data.archive_sources import ArchiveFile, archive
from spmd.data.array_sources import Rows, arrays
from spmd.data.array_sources import number_range as range
from spmd.data.computing import Failure, Stacked
from spmd.data.environment_sources import Observed, environments
from spmd.data.file_sources import FileExample, files
from spmd.data.line_sources import TextLine, csv, lines
from spmd.data.mixed_sources import concatenate, iterator, mix
from spmd.data.pipeline_files import load, load_text
from spmd.data.pipelines import Pipeline, batched, pipeline
from spmd.data.preparing import (
    binarise,
    bucket,
    normalise,
    one_hot,
    pad,
    pad_or_cut,
    rescale,
    stack,
    standardise,
)
from spmd.data.settings import Settings
from spmd.data.source_base import ExampleSource
from spmd.data.token_sources import windows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.feeding.clients.client import Client as Client
    from spmd.feeding.starting.dask_and_ray import on_dask as on_dask
    from spmd.feeding.starting.dask_and_ray import on_ray as on_ray

# What talks to a scheduler: it needs pyzmq, which pipelines do not.
_FEEDING = {"Client": "spmd.feeding.clients.client",
            "on_dask": "spmd.feeding.starting.dask_and_ray",
            "on_ray": "spmd.feeding.starting.dask_and_ray"}

__all__ = [
    "ArchiveFile", "Client", "ExampleSource", "Failure", "FileExample", "Observed", "Pipeline",
    "Rows", "Settings", "Stacked", "TextLine", "archive", "arrays", "batched", "binarise", "bucket",
    "concatenate", "csv",
    "environments", "files", "image", "iterator", "lines", "load", "load_text", "mix", "normalise",
    "on_dask", "on_ray", "one_hot", "pad", "pad_or_cut", "pipeline", "range", "rescale", "stack",
    "standardise", "text", "windows",
]


def __getattr__(name: str) -> Any:
    if name in _FEEDING:
        return getattr(import_module(_FEEDING[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

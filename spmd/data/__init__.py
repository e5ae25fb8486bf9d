"""Pipelines that prepare examples: sources, operations on them, and what workers compute.

Always holds: importing this package needs NumPy only; no MPI, no compiler, no engine.
"""

from __future__ import annotations

from spmd.data.array_sources import Rows, arrays
from spmd.data.array_sources import number_range as range
from spmd.data.computing import Failure, Stacked
from spmd.data.environment_sources import Observed, environments
from spmd.data.file_sources import FileExample, files
from spmd.data.line_sources import TextLine, csv, lines
from spmd.data.mixed_sources import concatenate, iterator, mix
from spmd.data.pipeline_files import load, load_text
from spmd.data.pipelines import Pipeline, batched, pipeline
from spmd.data.settings import Settings
from spmd.data.source_base import ExampleSource

__all__ = [
    "ExampleSource", "Failure", "FileExample", "Observed", "Pipeline", "Rows", "Settings",
    "Stacked", "TextLine", "arrays", "batched", "concatenate", "csv", "environments", "files",
    "iterator", "lines", "load", "load_text", "mix", "pipeline", "range",
]

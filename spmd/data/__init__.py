"""Pipelines that prepare examples: sources, operations on them, and what workers compute.

Always holds: importing this package needs NumPy only; no MPI, no compiler, no engine.
"""

from __future__ import annotations

from spmd.data.array_sources import arrays
from spmd.data.array_sources import number_range as range
from spmd.data.computing import Failure, Stacked
from spmd.data.pipelines import Pipeline, batched, pipeline
from spmd.data.settings import Settings
from spmd.data.source_base import ExampleSource

__all__ = [
    "Failure", "Pipeline", "Settings", "ExampleSource", "Stacked", "arrays", "batched", "pipeline",
    "range",
]

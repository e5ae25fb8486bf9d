"""Training in pipelines: layers on different ranks, several microbatches in flight at once.

A library in the language itself: global loops of ticks over arrays with a row for each stage.
"""

from __future__ import annotations

from spmd.pipelining.training_pipeline import TrainingPipeline, pipeline

__all__ = ["TrainingPipeline", "pipeline"]

"""What is said where workers of one pipeline do not read the same."""

from __future__ import annotations

from codegen.errors import AgreementError, UsageError


def streams_differ(pipeline: str) -> AgreementError:
    return AgreementError(
        f"workers of pipeline {pipeline} do not read the same source",
        expected="the same examples in the same order at all of them",
        found="others at different workers; or a data.iterator that gives others each time",
        remedy="the same files everywhere, random numbers of a fixed seed")


def lifo_refused(pipeline: str, acts: bool) -> UsageError:
    """Return the error for queue='lifo' where environments go on from batch to batch, or several
    processes need the same batches."""
    return UsageError(
        f"pipeline {pipeline} has queue='lifo', and "
        + ("its environments go on from batch to batch" if acts else
           "several processes hold the same rows of its batches, which must be equal in all"),
        expected="queue='fifo'", found="queue='lifo'",
        remedy="leave out queue" + (
            "" if acts else ", or take a layout that splits the batch over all processes"))

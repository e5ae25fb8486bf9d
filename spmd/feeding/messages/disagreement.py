"""What is said where workers of one pipeline do not read the same."""

from __future__ import annotations

from codegen.errors import AgreementError


def other_streams(pipeline: str) -> AgreementError:
    return AgreementError(
        f"workers of pipeline {pipeline} do not read the same source",
        expected="the same examples in the same order at all of them",
        found="others at different workers; or a data.iterator that gives others each time",
        remedy="the same files everywhere, random numbers of a fixed seed")

"""Pipelines from their text, as load messages have it, and what is said where that fails."""

from __future__ import annotations

from codegen.errors import SpmdError
from spmd.data.pipeline_files import load_text, select_pipeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.data.pipelines import Pipeline

TEXT = 16000  # characters of what was raised


def load_pipeline(said: dict[str, Any]) -> Pipeline:
    """Load a pipeline from its file's text, as a load message has it, by the name that it has
    there, if that is known. Errors name the file and the line."""
    file, name = said["file"], said.get("own_name")
    pipelines = load_text(said["source"], file, modules=said.get("modules"))
    return select_pipeline(pipelines, file, name or (said["name"] if len(pipelines) != 1 else ""))


def what_failed(error: BaseException, file: str) -> tuple[str, str | None, int | None]:
    """Return text, file and line of an error of a worker that is not the failure of an example."""
    if isinstance(error, SpmdError):
        text = str(SpmdError(error.message, expected=error.expected, found=error.found,
                             remedy=error.remedy))
        place = error.place
        return text[:TEXT], (place.file if place else None), (place.line if place else None)
    return f"{type(error).__name__}: {error}"[:TEXT], file, None

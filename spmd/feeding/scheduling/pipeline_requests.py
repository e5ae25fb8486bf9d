"""What clients ask of pipelines: submit, update, cancel; refused with the way out, or done.

In: a checked message and the pipelines that are there. Out: the pipeline as it is to be kept.
Always holds: nothing is changed here; what is refused leaves everything as it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from codegen.errors import UsageError
from codegen.suggest import meant
from spmd.data.settings import FIXED, Settings, read
from spmd.feeding.messages.wire import FACTS
from spmd.feeding.scheduling.registry import KnownPipeline
from spmd.feeding.scheduling.scheduler_state import StoredPipeline


def submitted(
    said: Mapping[str, Any], pipelines: Mapping[str, KnownPipeline], running: set[str]
) -> tuple[KnownPipeline, str]:
    """Return the pipeline, and whether it is "new", "changed" or "unchanged" (asked for twice).

    UsageError: a setting that is wrong, or a running pipeline that is another one.
    """
    settings = read(said["settings"]).as_json()
    before = pipelines.get(said["name"])
    if before is None:
        return KnownPipeline(_stored(said, 1, settings, {})), "new"
    old = before.stored
    stored = _stored(said, old.version + 1, settings, dict(old.spent))
    if (old.code(), old.settings) == (stored.code(), settings) and not _reordered(said, old):
        return before, "unchanged"
    if said["name"] in running:
        raise UsageError(
            f"pipeline {said['name']} is running, and what you submit differs from it",
            remedy=f"python -m spmd feed update {said['name']} --source FILE.py, for runs that "
            "begin later; or submit under another name (--name), or cancel it first")
    return KnownPipeline(stored), "changed"


def _stored(said: Mapping[str, Any], version: int, settings: dict[str, Any],
            spent: dict[str, float]) -> StoredPipeline:
    return StoredPipeline(said["name"], version, said["file"], said["source"], settings, spent,
                          time.time(), facts_of(said), said["own_name"] or "", said["modules"])


def _reordered(said: Mapping[str, Any], old: StoredPipeline) -> bool:
    """Return whether positions have other examples though the text is the same: of other files,
    say."""
    return bool(said["order"] and old.facts.get("order", said["order"]) != said["order"])


def facts_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the submitter knows of the source."""
    return {name: said[name] for name in FACTS if said[name] is not None}


def updated(
    said: Mapping[str, Any], pipelines: Mapping[str, KnownPipeline]
) -> StoredPipeline:
    """Return a pipeline with other settings, or with another source: then it is a new version.

    UsageError: no such pipeline, or a setting that only its source can change.
    """
    stored = _of(said["name"], pipelines).stored
    changed = Settings(**stored.settings).changed(said["settings"])
    if said["source"] is None:
        return replace(stored, settings=changed.as_json())
    new = replace(stored, source=said["source"], own_name=said["own_name"] or "",
                  modules=said["modules"])
    if new.code() == stored.code() and not _reordered(said, stored):
        return replace(stored, settings=changed.as_json())
    fixed = {name: value for name, value in (said["fixed"] or {}).items() if name in FIXED}
    settings = read({**changed.as_json(), **fixed}).as_json()
    return replace(new, settings=settings, file=said["file"] or stored.file,
                   version=stored.version + 1, facts=facts_of(said))


def cancelled(name: str, pipelines: Mapping[str, KnownPipeline]) -> None:
    """Raise UsageError where there is no such pipeline."""
    _of(name, pipelines)


def _of(name: str, pipelines: Mapping[str, KnownPipeline]) -> KnownPipeline:
    if name in pipelines:
        return pipelines[name]
    raise UsageError(
        f"there is no pipeline {name}", expected=", ".join(sorted(pipelines)) or "none is there",
        remedy=meant(name, pipelines) or "python -m spmd feed status shows those that are there")

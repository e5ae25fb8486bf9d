"""What clients ask of pipelines: submit, update, cancel; refused with the way out, or done.

In: a checked message and the pipelines that are there. Out: the pipeline as it is to be kept.
Always holds: nothing is changed here; what is refused leaves everything as it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from codegen.errors import UsageError
from spmd.data.settings import Settings, read
from spmd.feeding.known_parties import KnownPipeline
from spmd.feeding.scheduler_state import StoredPipeline

# Settings that only the scheduler reads: workers need not load anything anew for these.
SCHEDULED = frozenset(
    "workers max_workers user priority estimated_seconds rates cost energy cost_per_hour "
    "energy_per_hour pull".split()
)


def submitted(
    said: Mapping[str, Any], pipelines: Mapping[str, KnownPipeline], running: set[str]
) -> tuple[KnownPipeline, str]:
    """The pipeline, and whether it is "new", "changed" or "unchanged" (asked for twice).

    UsageError: a setting that is wrong, or a running pipeline that is another one.
    """
    settings = read(said["settings"]).as_json()
    before = pipelines.get(said["name"])
    if before is None:
        return KnownPipeline(StoredPipeline(
            said["name"], 1, said["file"], said["source"], settings, {}, time.time())), "new"
    old = before.stored
    if (old.source, old.settings) == (said["source"], settings):
        return before, "unchanged"
    if said["name"] in running:
        raise UsageError(
            f"pipeline {said['name']} is running, and what you submit differs from it",
            remedy=f"python -m spmd feed update {said['name']} …, which loses nothing; or cancel "
            "it first, or submit under another name (--name)")
    stored = StoredPipeline(said["name"], old.version + 1, said["file"], said["source"], settings,
                            dict(old.spent), time.time())
    return KnownPipeline(stored), "changed"


def updated(
    said: Mapping[str, Any], pipelines: Mapping[str, KnownPipeline]
) -> StoredPipeline:
    """A pipeline with other settings. A new version where workers must load it again.

    UsageError: no such pipeline, or a setting that cannot change while it runs.
    """
    stored = _of(said["name"], pipelines).stored
    settings = Settings(**stored.settings).changed(said["settings"]).as_json()
    source = said["source"] if said["source"] is not None else stored.source
    reload = source != stored.source or any(
        settings[name] != stored.settings.get(name) for name in settings.keys() - SCHEDULED)
    return replace(stored, settings=settings, source=source, file=said["file"] or stored.file,
                   version=stored.version + reload)


def cancelled(name: str, pipelines: Mapping[str, KnownPipeline]) -> None:
    """UsageError where there is no such pipeline."""
    _of(name, pipelines)


def _of(name: str, pipelines: Mapping[str, KnownPipeline]) -> KnownPipeline:
    if name in pipelines:
        return pipelines[name]
    near = get_close_matches(name, pipelines, 1)
    raise UsageError(
        f"there is no pipeline {name}", expected=", ".join(sorted(pipelines)) or "none is there",
        remedy=f"{near[0]}, if that is what you mean" if near
        else "python -m spmd feed status shows those that are there")

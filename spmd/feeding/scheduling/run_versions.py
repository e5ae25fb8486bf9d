"""Which version of its pipeline each run goes on with: always the one with which it began.

In: runs that begin, consumers that register, updates. Out: a version, with the settings of now.
Always holds: no update changes what a run takes at a position; a version is kept for a day after
its last run was seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from codegen.errors import AgreementError
from codegen.suggest import meant
from spmd.data.settings import FIXED, ORDER
from spmd.feeding.messages.wire import new_id
from spmd.feeding.scheduling.scheduler_state import COMES, KnownRun, StateFile, StoredPipeline

KEPT_S = 86400.0  # a run that is stopped for so long can still go on
LOOK_S = 60.0  # between two looks at which are older


class RunVersions:
    """Holds the versions of pipelines that runs use. store: keeps them over a restart."""

    def __init__(self, store: StateFile) -> None:
        self.store = store
        self.older = {(stored.name, stored.version): stored for stored in store.older()}
        self.runs = {run.stream: run for run in store.runs()}
        self._looked = 0.0

    def begin(self, now: StoredPipeline, said: Mapping[str, Any]) -> dict[str, Any]:
        """Register a run that opens a stream, or goes on with one (version, text). Return what its
        processes are told.

        AgreementError where what it goes on with is not kept any more.
        """
        stored = self.of(now, said)
        run = KnownRun(new_id(), said["run"], said["feed"], now.name, stored.version,
                       seen=time.time())
        self.runs[run.stream] = run
        self.store.remember(runs=[run])
        return {"stream": run.stream, "version": stored.version,
                "text": text_digest(*stored.code()), "facts": stored.facts,
                "order": {name: stored.settings.get(name) for name in ORDER}}

    def register(self, now: StoredPipeline, said: Mapping[str, Any]) -> int:
        """The version that a consumer takes; the newest, where its run did not say one."""
        version = self.of(now, said).version
        stream = said["stream"] or said["consumer"]
        before = self.runs.get(stream)
        self.runs[stream] = run = KnownRun(stream, said["run"], said["feed"], now.name, version, 0,
                                           time.time())
        if before is None or before.taken == COMES:
            self.store.remember(runs=[run])  # whoever waits for it knows that it has been
        return version

    def by_pipeline(self) -> dict[str, list[KnownRun]]:
        """Return by pipeline the runs whose consumers have come, the one seen last at the end."""
        by_name: dict[str, list[KnownRun]] = {}
        for run in sorted(self.runs.values(), key=lambda run: run.seen):
            if run.taken != COMES:
                by_name.setdefault(run.pipeline, []).append(run)
        return by_name

    def of(self, now: StoredPipeline, said: Mapping[str, Any]) -> StoredPipeline:
        """Return the version that a run names: by its number, or by its text where that is
        known."""
        version, text = said["version"], said["text"]
        if version is None:
            return now
        every = [now, *(o for of, o in self.older.items() if of[0] == now.name)]
        every.sort(key=lambda stored: stored.version != version)
        for stored in every:
            if text_digest(*stored.code()) == text if text else stored.version == version:
                return self.with_settings(now, stored)
        raise AgreementError(
            f"version {version} of pipeline {now.name}, with which this run began, is not kept any "
            "more", expected="one that a run has used within the last day, of a pipeline that was "
            "not cancelled", found=f"version {now.version}",
            remedy="start the run again, with --resume if it was kept")

    def numbered(self, now: StoredPipeline, version: int) -> StoredPipeline:
        """Return a version of a pipeline by its number."""
        stored = self.older.get((now.name, version), now)
        return self.with_settings(now, stored)

    def with_settings(self, now: StoredPipeline, stored: StoredPipeline) -> StoredPipeline:
        """Return a version with the settings of now, except those that determine which examples
        there are."""
        if stored is now:
            return now
        fixed = {name: stored.settings[name] for name in FIXED if name in stored.settings}
        return replace(stored, settings={**now.settings, **fixed})

    def replaced(self, old: StoredPipeline, new: StoredPipeline) -> list[StoredPipeline]:
        """Return what must be kept beside a new version: the one before it, if its source
        differs."""
        if old.version == new.version:
            return []
        self.older[old.name, old.version] = old
        return [old]

    def cancelled(self, name: str) -> None:
        self.older = {of: stored for of, stored in self.older.items() if of[0] != name}
        self.runs = {s: run for s, run in self.runs.items() if run.pipeline != name}

    def see(self, taken: Iterable[tuple[str, int]]) -> list[KnownRun]:
        """Record by stream how many batches runs have taken. Return the runs to store."""
        seen = []
        for stream, batches in taken:
            if run := self.runs.get(stream):
                run.taken, run.seen = max(run.taken, batches), time.time()
                seen.append(run)
        return seen

    def forget(self) -> None:
        """Forget runs that were not seen for a day, and the versions that no run uses."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        before = time.time() - KEPT_S
        self.runs = {s: run for s, run in self.runs.items() if run.seen >= before}
        used = {(run.pipeline, run.version) for run in self.runs.values()}
        self.older = {of: stored for of, stored in self.older.items() if of in used}
        self.store.forget_runs(before)


def text_digest(source: str, own_name: str = "", modules: Any = None) -> str:
    """Return a digest of the texts of a version."""
    more = json.dumps([own_name, modules]) if own_name or modules else ""
    return blake2b((source + more).encode(), digest_size=16).hexdigest()


def unknown_pipeline(name: str, names: Iterable[str], address: str) -> AgreementError:
    """Return the error for a run that takes a pipeline that nobody submitted."""
    known = sorted(names)
    return AgreementError(
        f"pipeline {name} was not submitted to {address}",
        expected="one of those that were: " + (", ".join(known) or "none"),
        remedy=meant(name, known, "{}@" + address) or "python -m spmd feed submit FILE.py")

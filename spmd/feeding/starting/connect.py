"""From what a user gives for a feed to the supply of it: a pipeline, its file, or NAME@ADDRESS.

In: the text or object, the processes of the job. Out: a PipelineSupply in each of them.
"""

from __future__ import annotations

import os
import re

from codegen.errors import UsageError
from codegen.places import user_place
from spmd.data.pipeline_files import is_loading, load_beside
from spmd.data.pipelines import Pipeline
from spmd.data.reading_time import source_in_time
from spmd.feeding.clients.open_stream import opened
from spmd.feeding.consumers.pipeline_supply import PipelineSupply
from spmd.feeding.messages.keys import keys_of
from spmd.feeding.starting.local_feeding import StartedSupply, started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from spmd.launch.iterable_supply import Supply

DEVICE = "SPMD_FEED_DEVICE"  # the kind of device that these ranks run on
REMOTE = re.compile(r"([A-Za-z0-9_.:+-]{1,128})@(tcp://\S+:\d+)")


def supply_for(source: Any, *, feed: Any, processes: Any, ranks: tuple[int, ...] = (),
               before: Any = None, beside: Iterable[Any] = ()) -> Supply:
    """Return the supply of a feed's batches; all processes of a job call this together. source: a
    Pipeline, "FILE.py", "FILE.py:NAME", or "NAME@tcp://HOST:PORT", a pipeline that was submitted
    there. before: the supply with which the run has come to where this one begins. beside: those of
    its other feeds: of one pipeline all have the same version, of one file the same text.

    Raises UsageError for something else, and what the pipeline's file raises.
    """
    if is_loading():  # each worker would start workers, without end
        raise UsageError(
            "the file of a pipeline starts a run with a pipeline when a worker reads it",
            place=user_place(), expected="runs below if __name__ == '__main__':",
            found=f"feed={source!r}", remedy="or write the pipeline into a file of its own")
    if isinstance(source, str) and (address_match := REMOTE.fullmatch(source)):
        name, address = address_match.groups()
        keys = processes.run_in_all(lambda: keys_of(""), shared=False)
        known = [supply for supply in (before, *beside) if isinstance(supply, PipelineSupply)]
        same = [supply.opened for supply in known
                if (supply.pipeline, supply.address) == (name, address)]
        stream = processes.run_in_first(lambda: opened(
            name, address, keys, feed, run_name(), same[0] if same else None))
        return PipelineSupply(name, address, keys, ranks=ranks, run=run_name(), opened=stream,
                              device=os.environ.get(DEVICE, "cpu"))
    if isinstance(source, str) and "@" in source and "://" in source:
        processes.refuse(UsageError(f'feed "{feed.name}": {source!r} is no address of a pipeline',
                                    expected="NAME@tcp://HOST:PORT"))

    if isinstance(before, StartedSupply):  # its workers know the pipeline already
        processes.run_in_all(lambda: before.check_batch(feed.batch), shared=False)
        if all(processes.all_gather(before.can_go_on(ranks))):
            return before

    mates = [supply.computes for supply in (before, *beside) if isinstance(supply, StartedSupply)]

    def checked() -> Pipeline:
        loaded = source if isinstance(source, Pipeline) else load_beside(source, mates)
        with source_in_time(loaded):
            loaded.check_batch(feed.batch)
        return loaded

    pipeline = processes.run_in_all(checked, shared=False)
    return started(pipeline, processes=processes, ranks=ranks, feed=feed, run=run_name())


def run_name() -> str:
    """Return the name of a run, as `feed status` shows it."""
    job = os.environ.get("SPMD_RUN") or os.environ.get("SLURM_JOB_ID") or ""
    return job[:256] or f"{os.uname().nodename[:48]}-{os.getppid()}"

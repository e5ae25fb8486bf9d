"""Where ranks are in the program's own terms: what it says while it runs, for people to read.

In: a job whose image says positions. Out: what they mean; None for an image that says none.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.launch.job import Job
    from spmd.pipeline_notes import Positions


def positions_of(job: Job) -> Positions | None:
    """Return what the positions of the job's ranks mean."""
    if job.positions_in is None:
        return None
    from spmd.pipeline_notes import Positions  # for timelines and lost ranks only

    return Positions(job.positions_in, job.setup.sizes)

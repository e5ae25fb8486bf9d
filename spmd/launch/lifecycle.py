"""The course of a launch, in each of its processes: asked for, agreed, loaded, run, timed, ended.

In: a checked image, options, the processes of the job. Out: a job that has run.
Always holds: whatever can be refused is refused before anything is computed; what one process fails
at, all of them leave.
"""

from __future__ import annotations

from contextlib import contextmanager

from codegen.errors import SpmdError
from codegen.image.manifest import ENTRY
from spmd import report
from spmd.arguments import check_required, computed_outputs, extents_of, patched_in, scalars_of
from spmd.faces import Face
from spmd.launch.hosts import agree, contribution
from spmd.launch.job import Job
from spmd.launch.setup import Setup
from spmd.launch.sizes import bind_mesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from spmd.launch.checkpointing import Checkpointing
    from spmd.launch.feeds import Feeds
    from spmd.launch.hosts import Hosts
    from spmd.launch.loader import Checked
    from spmd.launch.options import Options
    from spmd.launch.processes import Processes
    from spmd.launch.saved_state import SavedState
    from spmd.launch.saving import Saving
    from spmd.streaming import Streaming


MOST_EVENTS = 2_000_000  # of all ranks together: what a browser still opens


class Launch:
    """One image in one process: it is `agreed`, then `loaded`, then `run` as often as one likes."""

    times: bool | None = None  # whether times are kept, and single events too

    def __init__(self, checked: Checked, options: Options, processes: Processes) -> None:
        self.checked, self.options, self.processes = checked, options, processes
        self.manifest = checked.manifest
        self.job: Job | None = None
        self.face = Face(self.manifest)  # of the call under way
        self.scalars: dict[str, Any] = {}
        self.computed: list[int] = []  # numbers of the outputs that the call computes
        self.checkpointing: Checkpointing | None = None
        if options.checkpoint or options.every or options.resume:
            from spmd.launch.checkpointing import Checkpointing  # zlib: most runs keep nothing

            self.checkpointing = Checkpointing(self)
        self.saving: Saving | None = None
        self.stream: Streaming | None = None  # of the call under way
        self.feeds: Feeds | None = None
        if options.feed is not None or self.manifest["feeds"]:
            from spmd.launch.feeds import Feeds  # NumPy: ranks that take no batches do without

            self.feeds = Feeds(self)

    def bind(
        self, face: Face, settings: dict[str, Any], shapes: dict[str, tuple[int, ...]],
        only: Any = None,
    ) -> Setup:
        """Return the setup for a call of this face: what these scalars, and inputs of these shapes
        by name, make of the image on its mesh. only: names of the outputs that are asked for; None:
        all."""
        options = self.options
        self.face = face
        settings, mesh, ranks = patched_in(
            self.checked.image, face.settings(settings), dict(options.mesh or {}), options.ranks
        )
        inputs = [array for _, array in face.inputs]
        extents = extents_of(self.manifest, inputs, shapes)
        others = {k: v for k, v in face.others(self.scalars).items() if k not in extents}
        self.scalars = scalars_of(self.manifest, {**others, **settings}, extents)
        check_required(inputs, shapes)
        self.computed = computed_outputs(face, shapes, only)
        if self.checkpointing is not None:
            self.checkpointing.check()
        if options.save:
            if self.saving is None:
                from spmd.launch.saving import Saving  # most runs save nothing

                self.saving = Saving(self)
            self.saving.check()
        if self.feeds is not None:
            self.feeds.set_sources(options.feed)
            options.feed = None  # it goes on from call to call
            self.feeds.check()
        count = self.processes.count
        self.sizes = bind_mesh(face.asked(), ranks, mesh, face.own(self.scalars), count)
        setup = self.setup()
        if self.stream is not None:
            self.stream.check(setup)
        return setup

    def setup(
        self, hosts: Hosts | None = None, scalars: dict[str, Any] | None = None
    ) -> Setup:
        return Setup(self.manifest, self.processes, self.sizes, scalars or self.scalars,
                     self.options, hosts)

    def contribution(self, setup: Setup, said: dict[str, Any]) -> dict[str, Any]:
        """Return what this process brings to `agreed`: the processes must have equal values of it,
        and of `said`."""
        said = {"mesh": self.sizes, **said}
        return contribution(self.checked.digest, said, setup.first, setup.count)

    def agreed(self, prepare: Callable[[], dict[str, Any]]) -> tuple[Setup, list[dict[str, Any]]]:
        """Prepare, in every process, and bring what is `mine`; return the setup, and what all
        brought."""
        met = self.processes.run_and_gather(prepare)
        return self.setup(agree(self.processes, met, self.options.transport)), met

    def loaded(self, setup: Setup, put: Callable[[Job], None] = lambda _: None) -> Job:
        """Return the job, ready to run. It is loaded anew only where scalars that memory depends on
        have changed. Where checkpoints are written or resumed, `put` fills the inputs already here,
        since their check sums are compared."""
        job = self.placed(setup)
        job.want(self.computed)
        if self.times is not None and not job.keeps_times:
            events = MOST_EVENTS // setup.ranks if self.times else 0
            self.processes.run_in_all(lambda: job.keep_times(events))
        if self.checkpointing is not None:
            self.checkpointing.begin(job, put)
        if self.saving is not None:
            self.saving.begin(job, self.checkpointing.resumed if self.checkpointing else None)
        if self.feeds is not None:
            self.feeds.begin(job, self.checkpointing.resumed if self.checkpointing else None)
        return job

    def placed(self, setup: Setup) -> Job:
        """Return the job of this setup, with its memory reserved and its ranks loaded."""
        if self.job is None or not self.fits(setup):
            self.end(goes_on=True)
            self.job = Job(self.checked, setup, self.processes, self.options.time_limit)
        return self.job

    def with_state(self, setup: Setup, state: SavedState | None) -> Job:
        """Return the job with a state: what is given, or what the program makes of it. Feeds,
        checkpoints and frames have no part in that; nothing is timed."""
        if state is not None:
            job = self.placed(setup)
            state.put(job)
            return job
        initial = Face(self.manifest, 0)
        job = self.placed(self.setup(setup.hosts, {**self.scalars, ENTRY: initial.number}))
        job.forget(initial.given_flags)
        self.processes.run_in_all(job.run)
        job.replace(initial.pairs)
        return job

    @contextmanager
    def streaming(self, stream: Streaming | None) -> Iterator[None]:
        """Let a call hand over what it saves, or nothing, while it is open."""
        self.stream = stream
        try:
            yield
        finally:
            self.stream = None
            if stream is not None:
                stream.end()

    def looks_at_calls(self) -> bool:
        """Return whether feeds, checkpoints or frames have a part in every call."""
        return any(part is not None for part in (self.feeds, self.checkpointing, self.saving))

    def fits(self, setup: Setup) -> bool:
        """Return whether the loaded job can run with this setup; give it other scalars if so."""
        assert self.job is not None
        return self.job.rebind(setup)

    def run(
        self, job: Job, put: Callable[[Job], None], told: Callable[[str], None] | None = None
    ) -> None:
        """Puts the inputs and runs. What fails in this process ends the job in all of them."""
        try:
            if self.checkpointing is None:
                put(job)
            if self.stream is not None:
                self.stream.begin(job, self.saving)
        except BaseException as error:
            job.abort(report.exit_code(error), str(error))
            raise
        try:
            job.run(told)
        except BaseException as error:
            if self.checkpointing is not None and not isinstance(error, Exception):
                self.checkpointing.say_how_to_go_on()
            if isinstance(error, SpmdError) and self.feeds is not None and self.feeds.error:
                raise self.feeds.error from None  # what ended the run
            raise

    def finish_outputs(self) -> None:
        """Finish feeds, frames and checkpoints once all ranks have run."""
        if self.feeds is not None:
            self.feeds.check_after_run()
        if self.saving is not None:
            self.saving.finish()
        if self.checkpointing is not None:
            self.checkpointing.finish()

    def end(self, goes_on: bool = False) -> None:
        """Gives the job's memory back. goes_on: another job of this run follows at once."""
        if self.checkpointing is not None:
            self.checkpointing.close()
        if self.saving is not None:
            self.saving.close()
        if self.feeds is not None:
            self.feeds.close(goes_on)
        if self.job is not None:
            self.job.close()
            self.job = None

"""An image that stays loaded, and what a call of it does: arrays in, one run, arrays out.

In: options of a run, then inputs and scalars by name, as often as you like. Out: what the program
returns. Always holds: outputs that are kept stay in the memory of the ranks until the next call.
"""

from __future__ import annotations

import math
import os
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.user import named
from spmd import report, tables, timeline
from spmd.arguments import Only, asked_for, bounded_dims, check_array
from spmd.arrays import numpy_dtype
from spmd.distributed import Distributed, Local, address, global_of, moves_of
from spmd.engine import ffi
from spmd.faces import Face
from spmd.fitting import copied, fitting, shape_of, whole
from spmd.following import CALLS, FOLLOWS, Following, listens
from spmd.frame_streams import FrameQueue, FrameStream
from spmd.launch import process_status
from spmd.launch.job import Global, Job
from spmd.launch.lifecycle import Launch
from spmd.launch.loader import Checked
from spmd.launch.options import Options
from spmd.launch.processes import Elsewhere
from spmd.launch.script_exit import LEFT, end_all, end_all_on_error
from spmd.launch.setup import Setup
from spmd.launch.sizes import axis_sizes
from spmd.opening import Process, check_options, group_of, kept_outputs
from spmd.output_trees import structure
from spmd.prepared_calls import LedCall, PreparedCall
from spmd.started import FairLock, Started, Starter, refused
from spmd.streaming import Streaming, check_saves
from spmd.tracebacks import plainly

Key = tuple[int | None, tuple[int, ...], Only]  # of prepared calls: see Opened._key
MOST_PREPARED = 1024  # calls: of every entry, one for each of the extents that only a run knows


class Opened:
    """An image that stays loaded: what image.open gives. Another value of a scalar, and another
    extent of a dim with at_most, loads it again only where memory depends on it, which it never
    does for a dim; and in programs with feeds, frames or checkpoints.
    """

    def __init__(self, checked: Checked, options: Options) -> None:
        self.keep = kept_outputs(checked.manifest, options.keep)
        self._latest: list[weakref.ref[Distributed]] = []  # outputs of the latest call, kept
        self._owner, self._turns, self._closed = os.getpid(), FairLock(), False
        self._starter = Starter(self._turns)
        self.processes = group_of(options.comm, options.time_limit)
        self.distributed = options.comm is not None
        self._options, self._manifest = options, checked.manifest
        self._prepared: dict[Key, PreparedCall] = {}
        self._face = Face(checked.manifest)
        self._launch = Launch(checked, options, self.processes)
        self._group = Following(self.processes, self.close)
        if self.processes.count > 1:
            end_all_on_error()
        else:
            check_options(self._options, self._manifest, self.processes)

    @property
    def _job(self) -> Job | None:
        return self._launch.job

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self.processes.count > 1 and os.getpid() == self._owner:
            if isinstance(error, SystemExit):
                if error.code:
                    end_all(error)
            elif error is not None:
                setattr(error, LEFT, True)
                if self._job is not None:
                    self._job.broken = True  # the others are not leaving, they may be running
                    text = f"process {self.processes.number} left"
                    self._job.abort(report.exit_code(error), text)
                with self._group.held:
                    self._group.release(self._job, ("left", report.exit_code(error), str(error)))
        self.close()

    @plainly
    def close(self) -> None:
        """Free the job's memory, once all calls that were started have ended. Kept outputs that are
        still used are copied out first.

        In a forked child it does nothing.
        """
        if os.getpid() == self._owner:
            with self._turns.during(lambda: self._take_turn(waits=True)):
                self._closed = True
                with self._group.held:
                    self._group.release(self._job, ("close",))
                if self._job is not None and not self._job.broken:
                    for reference in self._latest:
                        if (output := reference()) is not None and output.is_held():
                            output.copy_out()
                self._launch.end()
                self._group.end_area()

    def _take_turn(self, waits: bool) -> None:
        """Wait for the turn of this thread: the engine runs one call of a job at a time."""
        self._check_owner()
        if not self._turns.take(waits):
            raise refused()

    def _take_call_turn(self) -> None:
        self._check_owner()
        if not self._group.take(self._turns):
            raise refused()

    def _check_owner(self) -> None:
        if Process.number != self._owner:
            raise UsageError(
                f"this job was opened by process {self._owner}, from which this one was forked",
                expected="a job of its own: threads and memory of the engine are not copied",
                remedy="image.open in the child, or multiprocessing's start method 'spawn'",
            )

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this job is closed", expected="an open one",
                             found="a call after close(), or behind its with block",
                             remedy="image.open(…) again, or call it inside the block")

    @plainly
    def __call__(self, **arguments: Any) -> Any:
        """Run the program once with these inputs and scalars, by name.

        A program with feeds goes on with the next batch of what it was opened with; `feed=…` in a
        call begins another stream. An output that this job kept, or that a run with comm= gave, can
        be an input as it is: `out = job(u=out["u"])`.

        `only="label"`, or several names, asks for some outputs, as files know them (`a.b`): None
        stands for the others. None, too, stands for what needs an optional input that is not given,
        or given as None.

        Calls from several threads run one after the other; with several processes a second one is
        refused. Raises UsageError for that, in a forked child, and once the job is closed.

        A call that a check, an assert or a feed ends leaves the outputs that were kept as they
        were: they are copied before such a call.
        """
        return self._in_turn(self._face, arguments)

    def _once(self, arguments: dict[str, Any]) -> Any:
        """Make the only call of an image that is opened for it."""
        return self(**arguments)

    @plainly
    def start(self, **arguments: Any) -> Started:
        """Start a call, and return at once; `.result()` of what comes back waits for its outputs.

        Inputs are copied: you may write to your arrays at once. Calls run in the order in which
        they were started, those by `job(…)` among them, from whatever thread. What is wrong with
        a call comes out of `result()`. close() waits for all calls that were started.
        """
        return self._started(self._face, arguments)

    @plainly
    def stream(self, **arguments: Any) -> FrameStream:
        """Start a call, as `start` does, and return what the program saves by spmd.save while it
        runs: a FrameStream, to iterate over. `.result()` of it waits for the outputs::

            for u in job.stream(u=u0):
                draw(u)

        Items wait in memory until you ask for them: neither the call nor a later one waits for you.
        Frames that `open(save=…)` writes to files are streamed, too. With `comm=`, process 0 has
        the stream where the others follow; where all processes call, each of them has one, once the
        call has ended. Raises UsageError for a program that saves nothing, and for frames
        of which another process has a part.
        """
        return self._streamed(self._face, arguments)

    def _saving_into(self, frames: FrameQueue | None, arguments: dict[str, Any]) -> Any:
        """Call the program here and now; frames, if any, take what it saves, as soon as it is
        saved."""
        return self._in_turn(self._face, arguments, frames)

    def _in_turn(
        self, face: Face, arguments: dict[str, Any], frames: FrameQueue | None = None
    ) -> Any:
        """Call a face once earlier calls have ended. It does what `during` does in a microsecond
        less."""
        within = self._turns.is_mine()
        try:
            self._take_call_turn()
            return self._agreed_call(face, arguments, frames)
        finally:
            if not within:
                try:
                    self._turns.leave()
                except BaseException:
                    self._turns.leave()
                    raise

    def _agreed_call(
        self, face: Face, arguments: dict[str, Any], frames: FrameQueue | None = None
    ) -> Any:
        self._check_open()
        self._group.agree(CALLS)
        return self._call(face, arguments, frames)

    def _started(
        self, face: Face, arguments: dict[str, Any], frames: FrameQueue | None = None
    ) -> Started:
        self._check_owner()
        self._check_open()
        if self.processes.number:
            raise UsageError("only process 0 starts calls", expected="follow() in all others",
                             found=f"start(…) in process {self.processes.number}")
        arguments = {name: copied(value) for name, value in arguments.items()}
        def run() -> Any:
            return self._agreed_call(face, arguments, frames)

        return self._starter.add(run if frames is None else lambda: frames.during(run))

    def _streamed(self, face: Face, arguments: dict[str, Any]) -> FrameStream:
        self._check_owner()
        self._check_open()
        check_saves(face)
        frames = FrameQueue(is_named=len(face.saves) > 1)
        if self._calls_together():
            started = Started()
            started.run(lambda: frames.during(lambda: self._in_turn(face, arguments, frames)))
        else:
            started = self._started(face, arguments, frames)
        return FrameStream(frames, started)

    def _calls_together(self) -> bool:
        """Return whether several processes make each call together; agree on it first."""
        if not self._group.agreed:
            with self._turns.during(self._take_call_turn):
                self._group.agree(CALLS)
        return self.processes.count > 1 and not self._group.is_led

    @plainly
    def follow(self) -> None:
        """Carry out each call that process 0 makes, until that one closes the job.

        Of several processes (`comm=`), process 0 calls, and all others follow::

            with image.open(comm=MPI.COMM_WORLD) as job:
                if comm.rank:
                    job.follow()
                else:
                    serve(job)

        Inputs come from process 0, and its outputs are whole arrays. What is wrong with a call is
        said there. Raises UsageError in process 0; what process 0 has left its with block by; in
        all, AgreementError where some processes call and some follow.
        """
        with self._turns.during(lambda: self._take_turn(waits=False)):
            self._check_open()
            if not self.processes.number:
                raise UsageError("process 0 cannot follow", found="follow() in process 0",
                                 expected="calls of process 0, which all others follow")
            self._group.agree(FOLLOWS)
            self._carry_out()

    def _carry_out(self) -> None:
        while True:
            if self._job is not None and not self._job.broken and listens(self._job):
                calls = [call.pointer if (call := self._prepared.get((number, (), None)))
                         else ffi.NULL
                         for number in self._faces_by_number()]
                if not self._job.follow(calls):
                    self._end_failed()
            kind, *details = self._group.hear()
            self._closed = kind in ("close", "left")
            if kind == "close":
                return
            if kind == "left":
                raise Elsewhere(*details)
            with suppress(Exception):  # process 0 says what it is
                self._do(kind, *details)

    def _do(self, kind: str, *details: Any) -> Any:
        """Carry out an order of process 0: a call, by the number of its face."""
        number, arguments, only = details
        return self._called(self._faces_by_number()[number], arguments, only)

    def _faces_by_number(self) -> dict[int | None, Face]:
        return {None: self._face}

    def _profiled(self, arguments: dict[str, Any]) -> tables.Profile:
        """Run once and return, in every process, where the time went on all ranks."""
        job, times = self._measured(arguments, events=False)
        rows = self.processes.broadcast(timeline.profile(job, times) if times else None)
        ranks = job.setup.ranks
        inside = tables.rows_html(timeline.profile_title(ranks, rows), timeline.HEAD,
                                  list(timeline.profile_cells(rows)))
        return tables.Profile(rows, timeline.profile_text(ranks, rows), inside)

    def _timed(self, path: str, arguments: dict[str, Any]) -> str:
        """Run once. Process 0 writes the timeline of all ranks to a file; return what to print
        about it."""
        job, times = self._measured(arguments, events=True)
        return str(self.processes.run_in_first(lambda: timeline.write(path, job, times)))

    def _measured(
        self, arguments: dict[str, Any], events: bool
    ) -> tuple[Job, list[timeline.RankEvents]]:
        """Run once and return the job, and in process 0 the times of all ranks."""
        self._launch.times = events
        self._once(arguments)
        assert self._job is not None
        return self._job, timeline.gather(self._job)

    def _call(
        self, face: Face, arguments: dict[str, Any], frames: FrameQueue | None = None
    ) -> Any:
        if not self._group.leads:
            return self._made(face, arguments, frames)
        with self._group.held:  # until the others have done their part
            return self._made(face, arguments, frames)

    def _made(self, face: Face, arguments: dict[str, Any], frames: FrameQueue | None) -> Any:
        only, arguments = asked_for(face, arguments)
        call = self._prepared.get(self._key(face, arguments, only))
        if call is not None and call.fits(self._job, arguments, only):
            held = call.take(arguments)
            if held is not None:
                return (self._repeated(call, held) if frames is None else
                        self._repeated_stream(call, held, frames))
        if self._group.leads:
            arguments = {name: whole(value) for name, value in arguments.items()}
            self._group.tell(self._job, ("call", face.number, arguments, only))
        with self._launch.streaming(Streaming(face, frames) if frames else None):
            return self._called(face, arguments, only)

    def _repeated_stream(self, call: PreparedCall, held: list[Any], frames: FrameQueue) -> Any:
        """Run a call that was prepared, and hand over what it saves."""
        stream = Streaming(call.face, frames)
        stream.check(call.job.setup)
        try:
            stream.begin(call.job, None)
            return self._repeated(call, held)
        finally:
            stream.end()

    def _repeated(self, call: PreparedCall, held: list[Any]) -> Any:
        """Run a call that was prepared. held: what lives until its inputs have been read."""
        room = call.room()
        try:
            call.job.run(None, call.pointer, call.number)
            outputs = call.finish(room)
        except BaseException:
            self._end_failed()
            raise
        returns = call.face.returns
        return None if returns is None else structure(returns, outputs)

    def _key(self, face: Face, arguments: dict[str, Any], only: Only) -> Key:
        """Return what tells prepared calls from each other: the number of the face, the extents of
        dims that only a run knows, as the arrays say them (-1: not said), and the outputs that are
        asked for. Where others follow, each face has one prepared call, the latest."""
        if self._group.is_led:
            return face.number, (), None
        if not face.dims:
            return face.number, (), only
        extents = []
        for name, d in face.dims:
            shape = getattr(arguments.get(name), "shape", ())
            extents.append(shape[d] if len(shape) > d else -1)
        return face.number, tuple(extents), only

    def _called(self, face: Face, arguments: dict[str, Any], only: Only) -> Any:
        """Run a call of whatever arguments; all processes agree on it."""
        self._prepared.pop(self._key(face, arguments, only), None)
        joined = self._joined(face, arguments)
        setup, _ = self._launch.agreed(
            lambda: self._prepare(face, dict(arguments), joined, only))
        self._copy_resized(setup)
        if self._job is not None and not self._launch.fits(setup):
            for value in self.arrays.values():
                if isinstance(value, Distributed):
                    value.copy_out()
            self._save_state()
        kept = self._kept_now()
        try:
            before = self._job
            job = self._launch.loaded(setup, lambda job: self._put(face, job))
            if job is not before:
                self.processes.run_in_all(lambda: self._bring_state(job))
            self.processes.run_in_all(lambda: self._compute(face, job))
            self._launch.finish_outputs()
            outputs = [self._output(job, k, array) if job.wanted[k] else None
                       for k, array in face.outputs]
            job.replace(face.pairs)
        except BaseException:
            self._end_failed()
            for output, array in kept:
                output.stays_in(array)
            raise
        self._latest = [weakref.ref(output) for output in outputs
                        if isinstance(output, Distributed) and output.is_held()]
        if self._may_repeat(job, arguments):
            self._prepare_next(job, face, arguments, only)
        return None if face.returns is None else structure(face.returns, outputs)

    def _may_repeat(self, job: Job, arguments: dict[str, Any]) -> bool:
        """Return whether a call like this one can be prepared: processes that call together must
        agree on every call; feeds, frames and checkpoints look at each."""
        if (self.keep or self._launch.looks_at_calls()
                or any(isinstance(value, (Distributed, Local)) for value in arguments.values())):
            return False
        return listens(job) if self._group.is_led else not self.distributed

    def _prepare_next(
        self, job: Job, face: Face, arguments: dict[str, Any], only: Only
    ) -> None:
        """Prepare calls like this one, which has succeeded; where that fails, in all processes, the
        next one goes the general way."""
        area = self._group.area
        try:
            if self._group.is_led:
                call: PreparedCall = LedCall(
                    job, face, arguments, only, self._group.memory)
            else:
                call = PreparedCall(job, face, arguments, only)
        except Exception:
            self._prepared.clear()
            return
        if self._group.area is not area or len(self._prepared) >= MOST_PREPARED:
            self._prepared.clear()
        self._prepared[self._key(face, arguments, only)] = call

    def _end_failed(self) -> None:
        """End the job after a call that has failed; state is what it was before the call."""
        if self._job is not None and (self._job.broken or not self._group.is_led):
            self._undo(self._job)
        self._save_state()
        self._launch.end()

    def _undo(self, job: Job) -> None:
        """Put back what the run that failed wrote into states where they lie."""

    def _save_state(self) -> None:
        """Copy the state out of the memory of the ranks, where there is any."""

    def _bring_state(self, job: Job) -> None:
        """Put the state that was copied into the memory of a new job."""

    def _copy_resized(self, setup: Setup) -> None:
        """Copy kept outputs out of the memory of the ranks whose shapes this setup changes."""
        if self._job is None or self._job.setup.words == setup.words:
            return
        for reference in self._latest:
            output = reference()
            if output is not None and output.is_held():
                declared = self._job.array(output.number)
                if setup.shape(declared) != output.shape:
                    output.copy_out()

    def _kept_now(self) -> list[tuple[Distributed, np.ndarray]]:
        """Return copies of the outputs that were kept, where the program itself can end a run."""
        rows = self._manifest["operations"]
        if not self._manifest["feeds"] and all(row.get("kind") != "expect" for row in rows):
            return []
        held = [output for reference in self._latest if (output := reference()) is not None]
        return [(output, output.copied()) for output in held if output.is_held()]

    def _joined(self, face: Face, arguments: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of inputs of which each process gives its part: along named dims that
        only a run knows, the extents of all parts together."""
        manifest = self._manifest
        dims = bounded_dims(manifest)
        if not (self.distributed and dims):
            return {}
        known = [array["name"] for _, array in face.inputs]
        met = self.processes.run_and_gather(lambda: {
            name: value.part.shape for name, value in named.spread(arguments, known).items()
            if isinstance(value, Local)})
        axes = axis_sizes(manifest, self.processes.count, dict(self._options.mesh or {}))
        mine: dict[str, tuple[int, ...]] = met[self.processes.number]
        for _, array in face.inputs:
            shape = list(mine.get(array["name"], ()))
            for d, (e, entry) in enumerate(zip(array["shape"], array["layout"])):
                if d < len(shape) and entry and e in dims:
                    parts = [theirs[array["name"]][d] for theirs in met if array["name"] in theirs]
                    ranks = math.prod(axes[name] for name in entry)
                    shape[d] = sum(parts) * ranks // self.processes.count
            mine |= {array["name"]: tuple(shape)} if shape else {}
        return mine

    def _prepare(
        self, face: Face, arguments: dict[str, Any], joined: dict[str, tuple[int, ...]],
        only: Only = None,
    ) -> dict[str, Any]:
        """Sort the arguments and check them; return what all processes must share. joined: the
        shapes of inputs of which this process gives a part."""
        check_options(self._options, self._manifest, self.processes)
        manifest = self._manifest
        known = [array["name"] for _, array in face.inputs]
        if manifest["feeds"] and "feed" not in known:
            self._options.feed = arguments.pop("feed", self._options.feed)
        arguments = named.spread(arguments, known)
        face.check_names(arguments)
        inputs = {name: value for name, value in arguments.items() if name in known}
        scalars = {k: v for k, v in arguments.items() if k not in known}
        shapes = {k: joined.get(k) or shape_of(v) for k, v in inputs.items()}
        setup = self._launch.bind(face, scalars, shapes, only)
        self.arrays = {
            array["name"]: fitting(array, setup.shape(array), inputs[array["name"]])
            for _, array in face.inputs
            if array["name"] in inputs
        }
        said = {**face.own(self._launch.scalars), "entry": face.name, "inputs": sorted(inputs),
                "only": self._launch.computed,
                **self._options.agreed()}
        return self._launch.contribution(setup, said)

    def _compute(self, face: Face, job: Job) -> None:
        try:
            self._launch.run(job, lambda job: self._put(face, job))
        finally:
            self.arrays = {}

    def _put(self, face: Face, job: Job) -> None:
        job.forget(face.given_flags)
        self._hand_over(face, job)
        for number, array in face.inputs:
            value = self.arrays.get(array["name"])
            if isinstance(value, Local):
                self._put_part(job, number, array, value)
            elif value is not None:
                assert isinstance(value, np.ndarray)  # the others have been handed over
                job.put(number, global_of(value, array["dtype"]))
        process_status.show(process_status.COMPUTES)

    def _hand_over(self, face: Face, job: Job) -> None:
        """Make outputs of the last call inputs, inside the memory of every rank. Those of another
        layout go through Python."""
        moves: list[tuple[Any, int, int]] = []  # from, to, bytes
        for number, array in face.inputs:
            value = self.arrays.get(array["name"])
            if not isinstance(value, Distributed):
                continue
            if not value.lies_in(job) or (copies := moves_of(job, value, number)) is None:
                self.arrays[array["name"]] = (
                    Local(value.local, value.offsets) if self.distributed else value.local
                )
            else:
                moves += copies
                job.given_flags[number] = 1
                del self.arrays[array["name"]]
        # Memory of one array may be that of another: what would be overwritten is read first.
        targets = [(to, to + size) for _, to, size in moves]
        for k, (start, to, size) in enumerate(moves):
            others = (t for j, t in enumerate(targets) if j != k)
            if any(start < high and low < start + size for low, high in others):
                staged = ffi.new("char[]", size)
                ffi.memmove(staged, ffi.cast("char *", start), size)
                moves[k] = staged, to, size
        for start, to, size in moves:
            ffi.memmove(ffi.cast("char *", to), ffi.cast("char *", start), size)

    def _put_part(self, job: Job, number: int, array: dict[str, Any], local: Local) -> None:
        """Put one rank's shard, a global array of which only this part is there."""
        rank, part = job.setup.first, local.part
        offset, extent, _ = job.shard(number, rank)
        position = local.offsets, part.shape
        if local.offsets is not None and position != (tuple(offset), tuple(extent)):
            raise UsageError(
                f"input {array['name']} was given an output of another layout",
                expected=f"the part of shape {tuple(extent)} that begins at {tuple(offset)}",
                found=f"the part of shape {part.shape} that begins at {local.offsets}",
                remedy="give output and input one layout in the program; or out.gather(), "
                "comm.bcast, and hand in the whole array",
            )
        check_array(array, tuple(extent), part)
        start = sum(o * s for o, s in zip(offset, part.strides, strict=True))
        shape = job.setup.shape(array)
        base = address(part) - start
        job.put(number, Global(base, array["dtype"], shape, part.strides), rank)

    def _output(self, job: Job, number: int, output: dict[str, Any]) -> Any:
        kept = output["name"] in self.keep
        if self._group.is_led:
            return Distributed(job, job.outputs + number, True, False).gather()
        if self.distributed or kept:
            return Distributed(job, job.outputs + number, self.distributed, kept)
        array = np.empty(job.setup.shape(output), numpy_dtype(output["dtype"]))
        job.get(number, global_of(array, output["dtype"]))
        return array

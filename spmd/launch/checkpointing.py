"""Checkpoints of a run: when they are taken, and who writes what of them.

How a run goes on from one is in resuming.py.
In: the options checkpoint, every, resume; a loaded job. Out: sets of files, while the ranks run.
Always holds: ranks wait only for their copies; what they put in their rooms this process' main
thread writes; process 0 completes a set once it sees the parts of all.
"""

from __future__ import annotations

import os
import sys
import time

from codegen.errors import InputError, OutputError, UsageError
from codegen.image.manifest import evaluate
from spmd.engine import ffi, lib
from spmd.files.checkpoints import (
    KEPT,
    Folder,
    Piece,
    complete,
    complete_set,
    mark_of,
    remove,
    set_name,
    write_part,
)
from spmd.launch import exit_signals, resuming
from spmd.launch.memory import bytes_text
from spmd.texts import MOST_SECONDS, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spmd.launch.job import Job
    from spmd.launch.lifecycle import Launch

NS = 1e9  # nanoseconds of a second
SEE_SECONDS = 5.0  # until a file of one host is seen by another


def interval(every: Any) -> tuple[int, int]:
    """Return the turns, or nanoseconds, that `every` means; the other one is 0. Raises
    UsageError."""
    if type(every) is int and every > 0:
        return every, 0
    if isinstance(every, str):
        number = every.removesuffix("s")
        if is_number(every) and int(every) > 0:
            return int(every), 0
        try:
            seconds = float(number) if number != every else 0.0
        except ValueError:
            seconds = 0.0
        if 0 < seconds < MOST_SECONDS:
            return 0, max(1, int(seconds * NS))
    raise UsageError(f"every {every!r} is no distance between checkpoints",
                     expected="a number of turns from 1, or seconds: 100, 30s, 0.5s",
                     found=repr(every), remedy="--every 100, or every=100")


class Checkpointing:
    """The checkpoints of a launch, in one process."""

    def __init__(self, launch: Launch) -> None:
        options = launch.options
        self.launch, self.processes = launch, launch.processes
        self.to, self.source, self.every = options.checkpoint, options.resume, options.every
        self.first = launch.processes.number == 0
        self.folder: Folder | None = None
        self.job: Job | None = None
        self.path = self.nonce = ""
        self.waiting: list[tuple[str, dict[str, Any]]] = []  # sets without an index so far
        self.sets, self.bytes, self.last_turn = 0, 0, 0
        self.held = self.copied = self.seconds = 0.0  # of the last run, where it took most
        self.resumed: dict[str, Any] | None = None
        self.inputs: dict[str, str | None] = {}  # a check sum of each; None: its default
        self.runs = 0

    # ---- before a run ----------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse, before anything is loaded, what can be refused."""
        if self.to and self.every is None:
            raise UsageError("--checkpoint does not say how often", expected="--every TURNS, or "
                             "--every SECONDSs", found="no --every",
                             remedy="--every 100, --every 60s; every=100 from Python")
        if self.every is not None and not self.to:
            raise UsageError("--every says how often checkpoints are kept, and none are",
                             expected="--checkpoint FOLDER with it", found="no --checkpoint",
                             remedy="--checkpoint FOLDER")
        if self.every is not None:
            interval(self.every)
        if not self.launch.manifest["points"]:
            raise UsageError("the program has no loop that could be kept",
                             expected="a loop of spmd.range, or while, that carries something, "
                             "with as many turns on each rank",
                             found="none", remedy="leave --checkpoint out")

    def begin(self, job: Job, put: Callable[[Job], None]) -> None:
        """Prepare a run. All processes call this at the same time."""
        self.job, self.runs = job, self.runs + 1
        shares = self.processes.run_and_gather(lambda: self._inputs(job, put))
        self.inputs = {name: None if share is None else
                       f"{sum(theirs[name] for theirs in shares) % (1 << 64):016x}"
                       for name, share in shares[0].items()}
        turns, nanoseconds = interval(self.every) if self.every is not None else (0, 0)
        place = self.processes.run_in_first(self._open)
        self.path, self.nonce, chosen = place
        self.processes.run_in_all(self._see)
        job._check(lib.spmd_job_keep(job._job, turns, nanoseconds))
        if chosen:
            self.resumed = self.processes.run_in_all(lambda: resuming.fill(self, job, chosen))
            if self.first and os.path.dirname(chosen) == self.path:
                self._may_leave(self.resumed["turn"])
        else:
            self.resumed = None
            job._check(lib.spmd_job_resume(job._job, ffi.new("spmd_set *", {"point": -1})))
        job.look = self.look
        self.sets, self.seconds = 0, 0.0

    def _inputs(self, job: Job, put: Callable[[Job], None]) -> dict[str, Any]:
        """Put the inputs, and return by name this process' share of the check sum of each; None for
        an input that has its default."""
        put(job)
        sums: dict[str, Any] = {}
        share = ffi.new("uint64_t *")
        for number, row in self.launch.face.reads():
            sums[row["name"]] = None
            if job.given_flags[number]:
                sums[row["name"]] = 0
                for rank in self._owners(job, row["layout"]):
                    job._check(lib.spmd_job_sum(job._job, number, rank, share))
                    sums[row["name"]] += share[0]
        return sums

    def _open(self) -> tuple[str, str, str]:
        """Return, in process 0, where sets go, what they are called by, and the set to go on
        from."""
        chosen = ""
        again = bool(self.to and self.source
                     and os.path.realpath(self.to) == os.path.realpath(self.source))
        if self.to and self.folder is None:
            self.folder = Folder(self.to)
        if self.source and self.runs == 1:
            chosen = self._newest(again)
        if self.folder is None:
            return "", "", chosen
        if self.runs == 1 and not again and (old := complete(self.folder.path)):
            raise UsageError(
                f"there are checkpoints of another run in {self.to}",
                expected="an empty folder, or one to go on from", found=f"{len(old)}: {old[-1]}",
                remedy=f"--resume {self.to} with it goes on from there; or another folder",
            )
        nonce = os.urandom(4).hex()
        self.folder.mark(nonce)
        return self.folder.path, nonce, chosen

    def _newest(self, again: bool) -> str:
        """Return the last complete set, by its path."""
        assert self.source is not None
        names = complete(self.source)
        if names:
            return os.path.join(os.path.realpath(self.source), names[-1])
        if not again:
            raise InputError(f"there is no complete checkpoint in {self.source}",
                             expected="what run --checkpoint FOLDER has kept", found="none",
                             remedy="run without --resume")
        print(f"spmd: no checkpoint in {self.source} yet: the run begins", file=sys.stderr)
        return ""

    def _see(self) -> None:
        """Raise OutputError unless all hosts write to one folder: they see the mark of process
        0."""
        end = time.monotonic() + SEE_SECONDS
        while self.path and not os.path.isfile(mark_of(self.path, self.nonce)):
            if time.monotonic() > end:
                raise OutputError(f"checkpoint: {self.path} is not on this host what it is on the "
                                  "first one", expected="a folder that all hosts share",
                                  remedy="--checkpoint FOLDER on a shared file system")
            time.sleep(0.05)

    # ---- what sets hold --------------------------------------------------------------------------

    def arrays(self, job: Job, point: int) -> dict[str, tuple[int, dict[str, Any]]]:
        """Return the arrays that a point carries, by names that differ: the engine's number and the
        row of each."""
        manifest = self.launch.manifest
        points = manifest["points"]
        number = len(manifest["inputs"]) + len(manifest["outputs"])
        number += sum(len(carried) for carried in points[:point])
        arrays: dict[str, tuple[int, dict[str, Any]]] = {}
        for k, row in enumerate(points[point]):
            name, more = row["name"], 2
            while name in arrays:
                name, more = f"{row['name']}_{more}", more + 1
            arrays[name] = number + k, row
        return arrays

    def said(self, job: Job, point: int) -> dict[str, dict[str, Any]]:
        return {
            name: {"dtype": row["dtype"], "layout": row["layout"],
                   "shape": None if row["shape"] is None else
                   [int(evaluate(e, job.setup.values)) for e in row["shape"]]}
            for name, (_, row) in self.arrays(job, point).items()
        }

    # ---- while it runs ---------------------------------------------------------------------------

    def look(self) -> None:
        """Writes a set that waits; completes those of which all parts are there."""
        job = self.job
        assert job is not None
        waiting_set = ffi.new("spmd_set *")
        waits = True
        while waits:
            begin = time.monotonic()
            if waits := bool(lib.spmd_job_set(job._job, waiting_set)):
                self._write(job, waiting_set)
            if self.first and self.waiting:  # each time, or they would pile up
                self._complete()
            self.seconds += time.monotonic() - begin

    def _write(self, job: Job, waiting_set: Any) -> None:
        path = os.path.join(self.path, set_name(waiting_set.point, waiting_set.turn, self.nonce))
        pieces = self._pieces(job, waiting_set.point)
        write_part(path, self.processes.number, pieces)
        said = self._index(job, waiting_set)
        lib.spmd_job_release(job._job)
        self.waiting.append((path, said))
        self.sets, self.last_turn = self.sets + 1, waiting_set.turn
        self.bytes = sum(len(p.data) for p in pieces)

    def _pieces(self, job: Job, point: int) -> list[Piece]:
        """Return the pieces of a set that this process writes; of several ranks that hold one part,
        the first writes it."""
        pieces = []
        offset, extent = ffi.new("int64_t[8]"), ffi.new("int64_t[8]")
        address, size = ffi.new("void **"), ffi.new("int64_t *")
        hosted = range(job.setup.first, job.setup.first + job.setup.count)
        for name, (number, row) in self.arrays(job, point).items():
            dims = 0
            ranks = hosted if row["shape"] is None else self._owners(job, row["layout"])
            for rank in ranks:
                job._check(lib.spmd_job_room(job._job, number, rank, offset, extent, address, size))
                dims = lib.spmd_job_dims(job._job, number)
                data = ffi.buffer(address[0], size[0]) if size[0] else b""
                pieces.append(Piece(name, row["dtype"], rank, list(offset[0:dims]),
                                    list(extent[0:dims]), data))
        return pieces

    def _owners(self, job: Job, layout: list[list[str]]) -> list[int]:
        ranks = job.setup.owners(layout)
        if ranks == [lib.SPMD_EVERY_RANK]:
            return list(range(job.setup.first, job.setup.first + job.setup.count))
        return ranks

    def _index(self, job: Job, waiting_set: Any) -> dict[str, Any]:
        feeds = self.launch.feeds.cursors() if self.launch.feeds else {}
        return {
            "program": self.launch.manifest["program"], "image": self.launch.checked.digest,
            "entry": self.launch.face.name,
            "parameters": self.launch.manifest["parameters"],
            "point": waiting_set.point, "turn": waiting_set.turn, "counter": waiting_set.counter,
            "ranks": job.setup.ranks, "mesh": resuming.mesh_of(job),
            "scalars": self.launch.face.own(self.launch.scalars),
            "saves": self.launch.saving.kept() if self.launch.saving else {},
            "computes": resuming.computes(job), "inputs": self.inputs,
            "arrays": self.said(job, waiting_set.point), "feeds": feeds,
        }

    def _complete(self) -> None:
        while self.waiting:
            path, said = self.waiting[0]
            if self.launch.saving and not self.launch.saving.has(said["saves"]):
                return  # who goes on from it goes on behind frames that are whole
            if not complete_set(path, self.processes.count, said):
                return
            self.waiting.pop(0)
            self._may_leave(said["turn"])
            names = complete(self.path)
            mine = [name for name in names if self.runs == 1 or name.endswith(self.nonce)]
            for old in set(names) - set(mine[-KEPT:]):
                remove(self.path, old)

    # ---- after it --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Complete the last set, once all processes have run, and say what it took."""
        job = self.job
        assert job is not None
        job.look = None
        self.processes.run_in_all(self.look)
        self.processes.run_in_first(self._complete_last)
        costs = self.processes.run_and_gather(lambda: self._spent(job))
        self.held, self.copied, _ = max(costs)
        self.seconds = max(seconds for _, _, seconds in costs)
        if self.first and self.sets:
            print(f"spmd: {self.cost_text()}", file=sys.stderr)
        elif self.first and self.to:
            print(f"spmd: no checkpoint: the run ended before the first one, --every {self.every}",
                  file=sys.stderr)

    def _spent(self, job: Job) -> tuple[float, float, float]:
        """Return seconds for which the rank here that was held up most was, and copied; for
        writing."""
        if self.resumed is not None and not lib.spmd_job_resumed(job._job):
            raise InputError("the run ended before it came to the loop of the checkpoint",
                             expected=f"loop {self.resumed['point']} of the program to be reached",
                             found="no turn of it", remedy="the scalars with which it was kept")
        held, copied = ffi.new("int64_t *"), ffi.new("int64_t *")
        lib.spmd_job_held(job._job, held, copied)
        return held[0] / NS, copied[0] / NS, self.seconds

    def _complete_last(self) -> None:
        end = time.monotonic() + SEE_SECONDS
        while self.waiting and time.monotonic() < end:
            self._complete()
            time.sleep(0.01)
        if self.waiting:
            raise OutputError(f"checkpoint: parts of other processes are missing in "
                              f"{self.waiting[0][0]}", expected="a folder that all hosts share",
                              remedy="--checkpoint FOLDER on a shared file system")

    def cost_text(self) -> str:
        each = self.sets or 1
        return (f"{self.sets} checkpoint{'s' * (self.sets > 1)}, the last of turn "
                f"{self.last_turn}: {bytes_text(self.bytes)} of this process each; "
                f"ranks were held up {self.held / each * 1e3:.2f} ms each (copying "
                f"{self.copied / each * 1e3:.2f} ms), "
                f"writing took {self.seconds / each * 1e3:.1f} ms meanwhile")

    def say_how_to_go_on(self) -> None:
        """Print, for whoever has interrupted the run, how to go on from the last set."""
        if self.sets and self.first:
            self._complete()
            print(self._last_words(self.last_turn), file=sys.stderr)

    def _may_leave(self, turn: int) -> None:
        """Let a signal under a launcher say that there is a complete set of this turn to go on
        from."""
        if self.processes.count > 1:
            exit_signals.say(self._last_words(turn))

    def _last_words(self, turn: int) -> str:
        return (f"spmd: interrupted; the last checkpoint is of turn {turn}: the same with "
                f"--resume {self.to} goes on from it")

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
            self.folder = None

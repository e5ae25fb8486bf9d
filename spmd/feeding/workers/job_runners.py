"""The jobs of an agent: a runner for each, a process of its own that starts the ranks.

In: what the scheduler tells the agent to start and to end. Out: which jobs are here, and run.
Always holds: no job outlives its agent; the folder of a job goes with its runner, and that of one
that was killed together with its agent goes when another agent starts there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from codegen.errors import UsageError
from spmd.feeding.host.children import Child, end_together, ended_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PREFIX = "spmd-job-"  # of folders of jobs
LOCK = "lock"  # a file in each, which its agent and its runner hold while they live
RUNNER, PART_RUNNER = "spmd.feeding.jobs.runner", "spmd.feeding.jobs.part_runner"
END_S = 5.0  # for ranks to end, and for the scheduler to hear of it


class JobRunner:
    """A runner's process, and the folder of its job."""

    def __init__(self, said: dict[str, Any], parent: str) -> None:
        self.name, self.attempt, self.runs = said["name"], said["attempt"], True
        self.yields = False  # it was told to
        self.folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent or None)
        self.lock = os.open(os.path.join(self.folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.child = Child(PART_RUNNER if said["part"] else RUNNER, (self.lock,), ends_itself=True)
        self.child.channel.send(**said, folder=self.folder)

    def has_ended(self) -> bool:
        """Return whether the runner has just ended; remove what it leaves behind."""
        if not self.runs or self.child.has_ended() is None:
            self.child.channel.flush()
            return False
        self.end(0.0)
        return True

    def end(self, seconds: float) -> None:
        end_together([self.child], seconds)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.runs:
            os.close(self.lock)
        self.runs = False


def remove_left(parent: str) -> None:
    """Remove folders of jobs whose agents and runners are gone. One without a lock is just made, or
    not ours."""
    for path in Path(parent or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), open(path / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


class JobRunners:
    """Starts and ends the runners of jobs on this machine. slots: for how many ranks. launch: what
    starts them, "" for one process. folder: where jobs have folders of their own, "" for the usual
    one for temporary files. about: what each runner is told beside its job."""

    def __init__(self, slots: int, launch: str, folder: str, log: Callable[[str], None],
                 **about: Any) -> None:
        self.slots, self.launch, self.folder, self.log = slots, launch, folder, log
        self.about = about
        if folder and not os.path.isdir(folder):
            raise UsageError(f"--folder {folder}: there is no such folder",
                             expected="one in which each job may have its own")
        if slots:
            remove_left(folder)
        self.here: dict[str, JobRunner] = {}  # by job, until the scheduler has heard of its end
        self.ending: list[tuple[float, JobRunner]] = []  # until when they may take

    def start(self, said: dict[str, Any]) -> None:
        """Starts an attempt of a job, once however often it is told."""
        before = self.here.get(said["job"])
        if before and before.attempt >= said["attempt"]:
            return
        if before:
            self.end(said["job"])
        try:
            self.here[said["job"]] = JobRunner(
                {**said, **self.about, "launch": said["launch"] or self.launch}, self.folder)
        except OSError as error:  # it is told again
            self.log(f"{said['name']} cannot start here: {error}")

    def end(self, job: str) -> None:
        """End a job that is obsolete, and forget it, without waiting for its end."""
        if (runner := self.here.pop(job, None)) and runner.runs:
            self.log(f"{runner.name} is ended here")
            runner.child.channel.send(end=True)
            self.ending.append((time.monotonic() + END_S, runner))

    def have_yield(self, job: str) -> None:
        """Tell the runner of a job, once, to end it after its next checkpoint."""
        if (runner := self.here.get(job)) and runner.runs and not runner.yields:
            runner.yields = True
            runner.child.channel.send(yields=True)

    def states(self) -> dict[str, list[Any]]:
        """Return for each job here its attempt, and whether it runs."""
        for until, runner in self.ending:
            if not runner.has_ended() and time.monotonic() > until:
                runner.end(0.0)
        self.ending = [(until, runner) for until, runner in self.ending if runner.runs]
        for runner in self.here.values():
            if runner.has_ended() and (status := runner.child.process.returncode):
                self.log(f"what runs {runner.name} {ended_by(status)}")
        return {job: [runner.attempt, runner.runs] for job, runner in self.here.items()}

    def close(self) -> None:
        left = [runner for runner in (*self.here.values(), *(runner for _, runner in self.ending))
                if runner.runs]
        end_together([runner.child for runner in left], END_S)
        for runner in left:
            runner.end(0.0)

"""The state of an image with entries, in a file: written and read by all processes of a job.

In: a loaded job, a path. Out: a file of arrays that have the names of attributes, as w.in; or the
state in the memory of the ranks, on any mesh.
Always holds: a file that does not fit is refused by all processes before anything has changed; one
that is written is whole or not there.
"""

from __future__ import annotations

from codegen.errors import UsageError
from spmd.faces import states_of
from spmd.files import ARCHIVES
from spmd.files import outputs as outputs  # for who needs both
from spmd.files.state_files import open_state
from spmd.launch import array_files
from spmd.launch.options import flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from spmd.files.inputs import InputArray
    from spmd.files.outputs import OutputFile
    from spmd.launch.array_files import Versions
    from spmd.launch.job import Job
    from spmd.launch.processes import Processes
    from spmd.launch.setup import Setup


class SavedState:
    """A state in a file: it is opened, compared, then put into a job."""

    def __init__(self, manifest: dict[str, Any], path: str) -> None:
        self.manifest, self.path, self.rows = manifest, path, states_of(manifest)
        self.opened: dict[str, InputArray] = {}

    def open(self, setup: Setup) -> Versions:
        """Open the state's file, in each process alone. InputError for the state of another
        program, and for a damaged file; OutputError for one that is not there."""
        wanted = {name: (row["dtype"], setup.shape(row)) for name, (_, row) in self.rows.items()}
        check_ending(self.path)
        self.opened = open_state(self.path, wanted, self.manifest["program"])
        return array_files.versions_of(self.opened)

    def compare(self, processes: Processes, everyones: list[Versions], holder: str) -> None:
        array_files.compare(processes, self.opened, everyones, holder, "state")

    def put(self, job: Job) -> None:
        """Put the state into the memory of the ranks, in all processes together: what is converted
        is whole in all of them before one of them puts anything."""
        numbers = {name: number for name, (number, _) in self.rows.items()}

        def convert() -> None:
            for name, file in self.opened.items():
                array_files.reserve(job, file, numbers[name])
                try:
                    file.buffer  # noqa: B018 (made when it is first asked for)
                except MemoryError:
                    raise array_files.no_memory(name, file, "state") from None

        job.processes.run_in_all(convert)
        job.processes.run_in_all(
            lambda: array_files.put(job, self.opened, numbers, "state"))

    def close(self) -> None:
        for file in self.opened.values():
            file.close()
        self.opened = {}


def check_ending(path: str) -> None:
    """Refuses a file that cannot hold arrays by name. Raises UsageError."""
    if not path.endswith(ARCHIVES):
        raise UsageError(f"state: {path} names no format that holds arrays by their names",
                         expected=f"a file that ends in {' or '.join(ARCHIVES)}",
                         remedy="FILE.safetensors")


def check_has_state(program: str, has_entries: bool, asked: argparse.Namespace) -> None:
    """Refuses files of a state for a program that has none. Raises UsageError."""
    for name in ("state", "save_state"):
        if getattr(asked, name) and not has_entries:
            raise UsageError(f"{flag(name)}: {program} has no state",
                             expected="a class under @spmd.program",
                             found="a program without entries",
                             remedy="-i and -o: inputs and outputs")


class WrittenState:
    """A state on its way into a file: all processes `write`, then it has its name."""

    def __init__(self, manifest: dict[str, Any], path: str) -> None:
        self.rows, self.path = states_of(manifest), path
        self.file: OutputFile | None = None

    def check(self, setup: Setup) -> None:
        """Refuse, in each process alone, what can be refused before anything is computed."""
        check_ending(self.path)
        if not self.rows:
            raise UsageError(f"state: nothing to write to {self.path}",
                             expected="a program with state: arrays that __init__ binds")
        rows = [(name, row["dtype"], setup.shape(row)) for name, (_, row) in self.rows.items()]
        self.file = outputs.open_outputs({}, [self.path], rows)[0]
        assert self.file is not None
        self.file.title = "state"
        self.file.check()

    def write(self, job: Job) -> None:
        """Write the state, in all processes together."""
        file, several = self.file, job.setup.hosts.count > 1
        assert file is not None
        try:
            path = job.processes.run_in_first(lambda: file.create(several))
            rooms = {number: (path, file.starts[name])
                     for name, (number, _) in self.rows.items()}
            for view in array_files.collect(job, rooms, "state").values():
                view.close()
            job.processes.run_in_first(file.commit)
        finally:
            file.discard()

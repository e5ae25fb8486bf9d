"""A state that is given as arrays by name, in the place of a file.

In: a dict of arrays, or of trees of them. Out: the state in the memory of the ranks.
Always holds: arrays that do not fit are refused by all processes before anything has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from codegen import dtypes
from codegen.errors import InputError
from codegen.user.named import below, held
from spmd.distributed import Distributed, Local, global_of
from spmd.files.convert import casts
from spmd.files.state_files import check_state
from spmd.fitting import fitting
from spmd.launch.job import Job
from spmd.launch.processes import Processes
from spmd.launch.saved_state import SavedState
from spmd.opened import Opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.launch.array_files import Versions
    from spmd.launch.setup import Setup


class StateArrays(SavedState):
    """Arrays of a state, compared, then put into a job."""

    def __init__(self, manifest: dict[str, Any], into: Opened, state: Any) -> None:
        super().__init__(manifest, "")
        self.into, self.state = into, state
        self.arrays: dict[str, Any] = {}

    def open(self, setup: Setup) -> Versions:
        """Check the state that is given, in each process alone. InputError for the state of another
        program."""
        if not isinstance(self.state, Mapping):
            raise InputError("the state is no dict of arrays", found=type(self.state).__name__,
                             expected='a path, or {"w": array, …}, as x.state() gives it')
        leaves = dict(_leaves(self.state, self.rows))
        shapes = {name: setup.shape(row) for name, (_, row) in self.rows.items()}
        wanted = {name: (row["dtype"], shapes[name]) for name, (_, row) in self.rows.items()}
        arrays = {name: x if isinstance(x, (Local, Distributed)) else dtypes.as_numpy(x)
                  for name, x in leaves.items()}
        forms = {}
        for name, x in arrays.items():
            part = x.part if isinstance(x, Local) else x
            shape = shapes.get(name, part.shape) if isinstance(x, Local) else x.shape
            forms[name] = part.dtype.name, tuple(shape)  # in whatever byte order
        check_state(wanted, forms, "what is given", self.manifest["program"], lambda name: (
            forms[name][1] == wanted[name][1] and casts(forms[name][0], wanted[name][0])))
        self.arrays = {name: fitting(row, shapes[name], arrays[name])
                       for name, (_, row) in self.rows.items()}
        return {}

    def compare(self, processes: Processes, everyones: list[Versions], holder: str) -> None:
        pass

    def put(self, job: Job) -> None:
        job.processes.run_in_all(lambda: self._put(job))

    def _put(self, job: Job) -> None:
        for name, (number, row) in self.rows.items():
            value = self.arrays[name]
            if isinstance(value, Distributed):
                value = Local(value.local, value.offsets) if self.into.distributed else value.local
            if isinstance(value, Local):
                self.into._put_part(job, number, row, value)
            else:
                job.put(number, global_of(value, row["dtype"]))


def _leaves(tree: Any, known: Collection[str], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree by name; what stands where an array is known is one."""
    inside = None if name in known else held(tree)
    if inside is None:
        yield name, tree
    for key, item in inside or ():
        yield from _leaves(item, known, below(name, key))

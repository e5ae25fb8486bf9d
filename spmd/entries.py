"""An image with several entries that stays loaded: a call of each, and the state between calls.

In: inputs and scalars of one entry, by name. Out: what that entry returns. Always holds: state is
in the memory of the ranks; a call that fails leaves it as it was.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.user.entry_methods import called_whole, no_entry, not_given
from spmd.arrays import numpy_dtype
from spmd.distributed import Distributed, global_of
from spmd.faces import Face, check_named, faces_of, needed_of, states_of
from spmd.fitting import whole
from spmd.following import CALLS
from spmd.frame_streams import FrameQueue, FrameStream
from spmd.launch.job import Job
from spmd.launch.loader import Checked
from spmd.launch.options import Options
from spmd.launch.saved_state import SavedState, WrittenState
from spmd.opened import Opened
from spmd.started import Started
from spmd.state_arrays import StateArrays
from spmd.tracebacks import plainly


class EntryCall:
    """One entry of an open image: call it with its inputs and scalars by name."""

    def __init__(self, opened: OpenedEntity, face: Face) -> None:
        self._opened, self._face = opened, face

    @plainly
    def __call__(self, *unnamed: Any, **arguments: Any) -> Any:
        """Run the entry once. Returns its outputs, as copies, in the nest that the method returns;
        None where it returns nothing.

        Raises what a call of an image raises; state then is as it was before the call.
        """
        self._check_named(unnamed)
        return self._opened._in_turn(self._face, arguments)

    @plainly
    def start(self, *unnamed: Any, **arguments: Any) -> Started:
        """Start a call of the entry, and return at once; `.result()` of what comes back waits for
        its outputs.

        Inputs are copied. Calls of all entries run in the order in which they were started, those
        that are waited for among them. What is wrong with a call comes out of `result()`.
        """
        self._check_named(unnamed)
        return self._opened._started(self._face, arguments)

    @plainly
    def stream(self, *unnamed: Any, **arguments: Any) -> FrameStream:
        """Start a call of the entry, as `start` does, and return what the entry saves by spmd.save
        while it runs: a FrameStream, to iterate over. `.result()` of it waits for the outputs::

            for token in m.generate.stream(prompt=prompt):
                print(LETTERS[int(token)], end="", flush=True)

        Items wait in memory until you ask for them, so that calls of this and of other entries may
        follow meanwhile. Raises UsageError for an entry that saves nothing, and for frames of which
        another process has a part.
        """
        self._check_named(unnamed)
        return self._opened._streamed(self._face, arguments)

    def _saving_into(self, frames: FrameQueue | None, arguments: dict[str, Any]) -> Any:
        """Call the entry here and now; frames, if any, take what it saves, as soon as it is
        saved."""
        return self._opened._in_turn(self._face, arguments, frames)

    def _check_named(self, unnamed: tuple[Any, ...]) -> None:
        if unnamed:
            check_named(self._face.name, self._face.names(), unnamed)

    def __repr__(self) -> str:
        return f"<entry {self._face.name}({', '.join(self._face.names())})>"


class OpenedEntity(Opened):
    """An open image of a class: what image.open gives. Each of its entries is a method of it.

    Example::

        @spmd.program(mesh=("r",))
        class Counter:
            def __init__(self, n: int = 3):
                self.total = np.zeros(n)

            @spmd.entry
            def add(self):
                self.total = self.total + spmd.input("x", (3,), np.float64)
                return np.sum(self.total)

        with spmd.build(Counter).open(ranks=2) as counter:
            counter.add(x=np.ones(3))
            print(counter.add(x=np.ones(3)))    # 6.0
    """

    def __init__(self, checked: Checked, options: Options) -> None:
        if options.keep:
            raise UsageError("outputs of entries are copies: none can be kept on the ranks",
                             expected="no keep=", found=f"keep={options.keep!r}",
                             remedy="an attribute that __init__ binds is state: it stays there")
        super().__init__(checked, options)
        self._faces = faces_of(checked.manifest)
        self._initial = Face(checked.manifest, 0)
        self._has_state = False
        self._saved: dict[str, np.ndarray] | None = None  # of a job that was ended
        self.entries = {name: EntryCall(self, face) for name, face in self._faces.items()}
        # names of states that have to be given before the first call
        self._needed = [] if options.state is not None else needed_of(checked.manifest)
        self._begin(options.state)
        self._has_state = True

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("entries", {})
        if name in entries:
            return entries[name]
        if name.startswith("_") or not entries:
            raise AttributeError(name)
        raise no_entry(self._manifest["program"], name, entries)

    def __repr__(self) -> str:
        how = "closed" if self._closed else "open"
        return f"<{how} image of {self._manifest['program']}, with the entries " \
               f"{', '.join(self.entries)}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.entries]

    @plainly
    def __call__(self, **arguments: Any) -> Any:
        """Raise MissingError, since an image with entries is asked for one of them."""
        raise called_whole(self._manifest["program"], self.entries)

    @plainly
    def start(self, **arguments: Any) -> Started:
        """Raise MissingError, since an image with entries is asked for one of them."""
        raise called_whole(self._manifest["program"], self.entries)

    @plainly
    def stream(self, **arguments: Any) -> FrameStream:
        """Raise MissingError, since an image with entries is asked for one of them."""
        raise called_whole(self._manifest["program"], self.entries)

    def _once(self, arguments: dict[str, Any]) -> Any:
        """Make the only call of an image that is opened for it; entry= says of which entry."""
        return self.entries[arguments.pop("entry")](**arguments)

    def _faces_by_number(self) -> dict[int | None, Face]:
        return {face.number: face for face in (self._initial, *self._faces.values())}

    def _call(
        self, face: Face, arguments: dict[str, Any], frames: FrameQueue | None = None
    ) -> Any:
        if self._needed:
            raise not_given(self._manifest["program"], self._needed)
        self._recover()
        return super()._call(face, arguments, frames)

    # ---- state -----------------------------------------------------------------------------------

    @plainly
    def state(self) -> dict[str, Any]:
        """Return copies of the arrays of the state, by name: the attribute `w["in"]` is `w.in`.

        They are NumPy arrays; with comm= they are Distributed, of which every process has the part
        of its rank. Every process must call it; where the others follow, process 0 alone.
        """
        arrays: dict[str, Any] = self._in_all("state")
        return arrays

    @plainly
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, which is whole or not there: .safetensors, or .npz.

        Its arrays have the names that `state` says. Every process must call it, and writes the
        part of its rank. Raises OutputError for a file that cannot be written, UsageError for one
        of another format, and where a .safetensors file cannot hold complex128.
        """
        self._in_all("save", os.fspath(path))

    @plainly
    def load(self, state: Any) -> None:
        """Replace the state by a saved one: a file that `save` wrote, on any number of ranks, or
        arrays by name, as `state` gives them; a dict of trees will do, `{"w": {"in": …}}`.

        With comm= every process gives the whole arrays, or spmd.local(part) of its rank. Elements
        of another dtype are converted where nothing is lost. Every process must call it.

        Raises InputError, and nothing has changed, for the state of another program: it lists what
        is missing, what is too much, and what has another shape or dtype.
        """
        self._in_all("load", os.fspath(state) if isinstance(state, os.PathLike) else state)

    def _in_all(self, kind: str, *details: Any) -> Any:
        """Wait for earlier calls, then get, save or load the state, as `kind` says; the other
        processes of the job do the same."""
        with self._turns.during(self._take_call_turn):
            self._check_open()
            self._group.agree(CALLS)
            self._recover()
            if not self._group.leads:
                return self._do(kind, *details)
            details = tuple(map(whole, details))
            with self._group.held:
                self._group.tell(self._job, (kind, *details))
                return self._do(kind, *details)

    def _do(self, kind: str, *details: Any) -> Any:
        if kind == "call":
            return super()._do(kind, *details)
        job = self._loaded()
        if kind == "save":
            file = WrittenState(self._manifest, *details)
            self.processes.run_in_all(lambda: file.check(job.setup))
            file.write(job)
        elif kind == "load":
            new_state = self._given(*details)
            met = self.processes.run_and_gather(lambda: new_state.open(job.setup))
            new_state.compare(self.processes, met, "rank")
            try:
                new_state.put(job)
            finally:
                new_state.close()
            self._needed = []
        elif not self.distributed:
            return self._get_state()
        else:
            parts = {name: Distributed(job, number, True, False, "state")
                     for name, (number, _) in self._states().items()}
            return {k: x.gather() for k, x in parts.items()} if self._group.is_led else parts

    def _given(self, state: Any) -> SavedState:
        if isinstance(state, (str, os.PathLike)):
            return SavedState(self._manifest, os.fspath(state))
        return StateArrays(self._manifest, self, state)

    def _begin(self, state: Any) -> None:
        """Load the job and make its state: by `__init__`, or from what is given."""
        initial_state = None if state is None else self._given(state)

        def prepare() -> dict[str, Any]:
            mine = self._prepare(self._initial, {}, {})
            mine["settings"]["state"] = initial_state is not None
            states = initial_state.open(self._launch.setup()) if initial_state else {}
            return {**mine, "states": states}

        try:
            setup, met = self._launch.agreed(prepare)
            if initial_state is not None:
                initial_state.compare(self.processes, [theirs["states"] for theirs in met], "rank")
            self._launch.with_state(setup, initial_state)
        except BaseException:
            self._launch.end()
            raise
        finally:
            if initial_state is not None:
                initial_state.close()

    def _states(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """Return of each state, by name, the number and row of the input that holds it."""
        return states_of(self._manifest)

    def _undo(self, job: Job) -> None:
        if self._has_state and any(entry["updates"] for entry in self._manifest["entries"]):
            job.undo()

    def _recover(self) -> None:
        """Put the state back after a call that has failed, where an interrupt came before that was
        done: it may have to wait for a rank that still computes."""
        if self._job is not None and self._job.broken:
            self._end_failed()

    def _save_state(self) -> None:
        if self._saved is None and self._has_state and self._job is not None:
            self._saved = self._get_state()

    def _bring_state(self, job: Job) -> None:
        if self._saved is not None:
            self._put_state(self._saved)
            self._saved = None

    def _get_state(self) -> dict[str, np.ndarray]:
        """Return every state by name: whole arrays, of which this process fills the parts that it
        holds."""
        arrays, job = {}, self._loaded()
        for name, (number, row) in self._states().items():
            array = np.empty(job.setup.shape(row), numpy_dtype(row["dtype"]))
            job.get_input(number, global_of(array, row["dtype"]))
            arrays[name] = array
        return arrays

    def _put_state(self, arrays: dict[str, np.ndarray]) -> None:
        job = self._loaded()
        for name, (number, row) in self._states().items():
            job.put(number, global_of(arrays[name], row["dtype"]))

    def _loaded(self) -> Job:
        """Return the job. Where a call that failed has ended it, load it again with its state."""
        if self._job is None:
            setup, _ = self._launch.agreed(lambda: self._prepare(self._initial, {}, {}))
            job = self._launch.placed(setup)
            self.processes.run_in_all(lambda: self._bring_state(job))
        assert self._job is not None
        return self._job

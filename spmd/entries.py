"""An image with several entries that stays loaded: a call of each, and the state between calls.

In: inputs and scalars of one entry, by name. Out: what that entry returns. Always holds: state is
in the memory of the ranks; a call that fails leaves it as it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.errors import MissingError
from codegen.suggest import meant
from spmd.arrays import numpy_dtype
from spmd.distributed import global_of
from spmd.faces import Face, faces_of
from spmd.launch.job import Job
from spmd.launch.loader import Checked
from spmd.launch.options import Options
from spmd.mistakes import plainly
from spmd.opened import Opened


class EntryCall:
    """One entry of an open image: call it with its inputs and scalars by name."""

    def __init__(self, opened: OpenedEntity, face: Face) -> None:
        self._opened, self._face = opened, face

    @plainly
    def __call__(self, **arguments: Any) -> Any:
        """Run the entry once. Returns its outputs, as copies, in the nest that the method returns;
        None where it returns nothing.

        Raises what a call of an image raises; state then is as it was before the call.
        """
        with self._opened._ready():
            return self._opened._enter(self._face, arguments)

    def __repr__(self) -> str:
        names = [array["name"] for _, array in self._face.inputs] + list(self._face.scalars)
        return f"<entry {self._face.name}({', '.join(names)})>"


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
        super().__init__(checked, options)
        self._faces = faces_of(checked.manifest)
        self._initial = Face(checked.manifest, 0)
        self._saved: dict[str, np.ndarray] | None = None  # of a job that has failed
        self.entries = {name: EntryCall(self, face) for name, face in self._faces.items()}
        with self._ready():
            self._call(self._initial, {})

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("entries", {})
        if name in entries:
            return entries[name]
        if name.startswith("_") or not entries:
            raise AttributeError(name)
        program = self._manifest["program"]
        raise MissingError(f'{program} has no entry "{name}"; it has {", ".join(sorted(entries))}',
                           remedy=meant(name, list(entries), "{}(…)"))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.entries]

    @plainly
    def __call__(self, **arguments: Any) -> Any:
        """An image with entries is asked for one of them: raises MissingError."""
        names = sorted(self.entries)
        raise MissingError(f"{self._manifest['program']} is called, and it has entries",
                           expected=" or ".join(f"x.{name}(…)" for name in names),
                           found="x(…)")

    def _enter(self, face: Face, arguments: dict[str, Any]) -> Any:
        if self._job is None and self._saved is not None:
            saved, self._saved = self._saved, None
            self._call(self._initial, {})
            self._put_state(saved)
        return self._call(face, arguments)

    # ---- state -----------------------------------------------------------------------------------

    def _states(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """By name: number and row of the input that holds it."""
        inputs = self._manifest["inputs"]
        numbers = (state["input"] for state in self._manifest["states"])
        return {inputs[k]["name"]: (k, inputs[k]) for k in numbers}

    def _get_state(self) -> dict[str, np.ndarray]:
        found, job = {}, self._loaded()
        for name, (number, row) in self._states().items():
            array = np.empty(job.setup.shape(row), numpy_dtype(row["dtype"]))
            job.get_input(number, global_of(array, row["dtype"]))
            found[name] = array
        return found

    def _put_state(self, arrays: dict[str, np.ndarray]) -> None:
        job = self._loaded()
        for name, (number, row) in self._states().items():
            job.put(number, global_of(np.ascontiguousarray(arrays[name]), row["dtype"]))

    def _loaded(self) -> Job:
        assert self._job is not None
        return self._job

"""What a launch binds: sizes of the mesh axes, scalars, and the ranks of this process.

In: a manifest, sizes, scalars, options. Out: what a job is made of, and which hosted ranks hold
what of an array. Always holds: nothing is loaded, and no memory taken.
"""

from __future__ import annotations

from codegen.image.manifest import evaluate
from spmd.arguments import scalar_words, scalars_of_words
from spmd.engine import lib
from spmd.files.npy import element_count
from spmd.launch.hosts import Hosts, contribution, hosted
from spmd.launch.options import OPTIONS
from spmd.launch.sizes import mesh_symbols

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from spmd.launch.options import Options
    from spmd.launch.processes import Processes

EVERY_RANK: int = lib.SPMD_EVERY_RANK
LINE = 64  # bytes at whose multiples arrays of a checkpoint begin: SPMD_LINE


class Setup:
    """The values that a launch binds: mesh axes, scalars, ranks of this process, threads.

    sizes: of each mesh axis. scalars: by name. hosts: None while they are not known.
    """

    def __init__(
        self, manifest: dict[str, Any], processes: Processes, sizes: tuple[int, ...],
        scalars: dict[str, int | float], options: Options, hosts: Hosts | None = None,
    ) -> None:
        self.manifest, self.sizes, self.scalars = manifest, sizes, scalars
        self.ranks = element_count(sizes)
        self.first, self.count = hosted(self.ranks, processes)
        if hosts is None:
            hosts = Hosts(0, [contribution("", {}, 0, self.ranks)])
        self.hosts = hosts
        share = max(1, hosts.cores // len(hosts.here))
        self.algorithm = OPTIONS["algorithm"].known.index(options.algorithm)
        self.strict = OPTIONS["barrier"].known.index(options.barrier)
        self.threads = max(1, min(self.count, options.threads or share))
        self.values: dict[str, Any] = {**scalars, **mesh_symbols(manifest, sizes)}
        self.words = scalar_words(manifest, scalars)
        self.room_bytes = self._room_bytes() if options.checkpoint or options.resume else 0
        self.room_bytes += self._frame_bytes(options.save or {})

    def with_words(self, words: list[int]) -> Setup:
        """Return the same setup for other scalars, which no shape and no condition mentions."""
        setup = object.__new__(Setup)
        setup.__dict__.update(self.__dict__)
        setup.words, setup.scalars = words, scalars_of_words(self.manifest, words)
        setup.values = {**self.values, **setup.scalars}
        return setup

    def _room_bytes(self) -> int:
        """Return the most bytes that copies of what one of the points carries take of a rank."""
        buffers = self.manifest["buffers"]
        return max((sum(-(-int(evaluate(buffers[array["buffer"]]["bytes"], self.values)) // LINE)
                        for array in carried) * LINE
                    for carried in self.manifest["points"] or ()), default=0)

    def _frame_bytes(self, saved: Mapping[str, str]) -> int:
        """Return the most bytes that frames that wait to be written take of a rank."""
        buffers, each = self.manifest["buffers"], lib.SPMD_FRAME_BYTES // self.count
        return sum(2 * int(evaluate(buffers[row["buffer"]]["bytes"], self.values)) + each
                   for row in self.manifest["saves"] if row["name"] in saved)

    def shape(self, array: dict[str, Any]) -> tuple[int, ...]:
        """Return the global extents of an input or output: a row of the manifest."""
        return tuple(int(evaluate(extent, self.values)) for extent in array["shape"])

    def owners(self, layout: list[list[str]]) -> list[int]:
        """Return hosted ranks that between them hold every element of an array once.

        Along an axis that splits no dim all ranks hold the same: the first of them speaks.
        """
        first = self._first_holder(layout)
        hosted = range(self.first, self.first + self.count)
        return [EVERY_RANK] if first is None else [rank for rank in hosted if first(rank) == rank]

    def holders(self, layout: list[list[str]]) -> list[int]:
        """Return hosted ranks that between them hold every element that this process has once."""
        first = self._first_holder(layout)
        if first is None:
            return [EVERY_RANK]
        hosted = range(self.first, self.first + self.count)
        return sorted({first(rank): rank for rank in reversed(hosted)}.values())

    def _first_holder(self, layout: list[list[str]]) -> Callable[[int], int] | None:
        """Return the function from a rank to the first one that holds the same part of an array;
        None where each rank holds another part."""
        used = {name for entry in layout for name in entry}
        spare = []
        stride = self.ranks
        for axis, size in zip(self.manifest["mesh"], self.sizes, strict=True):
            stride //= size
            if axis["name"] not in used and size > 1:
                spare.append((stride, size))
        if not spare:
            return None
        return lambda rank: rank - sum(rank // stride % size * stride for stride, size in spare)

"""Images from Python: build, save, load, run, and open to be run many times.

In: programs, paths, NumPy arrays. Out: what the program returns, as NumPy arrays, or one part per
process where a communicator was given.
"""

from __future__ import annotations

import functools
import os
import warnings

from codegen.checks import checks_of
from codegen.errors import LayoutWarning, UsageError
from codegen.image.elf import printable
from codegen.mesh import checked_count, checked_sizes
from spmd import layouts, show, source, tables, timeline
from spmd.arguments import check_checks
from spmd.cache import Cache
from spmd.distributed import Distributed as Distributed
from spmd.distributed import Local as Local
from spmd.distributed import local as local
from spmd.launch import loader
from spmd.launch import processes as launch
from spmd.mistakes import cells, plainly
from spmd.opened import Opened as Opened
from spmd.verify.formulas import layout_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


@plainly
def build(
    program: Any, *, target: str = "native", cache: bool = True, check: Any = False,
    **parameters: Any,
) -> Image:  # fmt: skip
    """The image of a program, or of the one in "FILE.py[:NAME]", with these parameters.

    - target: the instruction set: "native" for this machine, or "x86-64-v2", "-v3", "-v4".
    - cache: take an image that was built before from the user's cache directory, as long as nothing
      that the program reads has changed. False builds it in any case, as SPMD_CACHE=off does.
    - check: what the image checks whenever it runs: True, "all", or names such as "bounds,nan"
      (see `run --check`). What is found wrong ends the run in a CheckError, with the line.

    Raises ProgramError and its kin, with the line, for what cannot be compiled; EnvironmentFault
    without a C compiler. Warns of layouts (LayoutWarning) with which every rank gets a large array
    whole.
    """
    if isinstance(program, str | os.PathLike):
        program = source.find_program(os.fspath(program))
    if not hasattr(program, "parameters"):
        raise UsageError(
            "spmd.build takes a program or the path of a Python file",
            found=type(program).__name__,
            remedy="decorate the function with @spmd.program(mesh=...)",
        )
    for name in parameters:
        if name not in program.parameters:
            raise UsageError(
                f"the program has no parameter {name!r}",
                expected=", ".join(program.parameters) or "no parameters",
            )
    checks = checks_of(check)
    store = None if cache else Cache("")
    data = source.build_program(program, parameters, target, store, checks)
    for text in source.warnings_of(data):
        warnings.warn(cells(text), LayoutWarning, stacklevel=3)
    again = functools.partial(build, program, target=target, cache=cache, **parameters)
    return Image(loader.check(data), again)


@plainly
def load(path: str | os.PathLike[str]) -> Image:
    """The image in a file that `spmd build` or Image.save wrote.

    Raises ImageError for a file that is no image or is damaged (the digest is compared),
    VersionError for an image of a newer format, OutputError for a file that cannot be read.
    """
    return Image(loader.open_file(os.fspath(path)), path=os.fspath(path))


class Image:
    """One executable image: what spmd.build and spmd.load give.

    `data` are its bytes, `manifest` its description, `digest` is the hash of its content.
    """

    def __init__(self, checked: loader.Checked, again: Callable[..., Image] | None = None,
                 path: str = "") -> None:  # fmt: skip
        self._checked = checked
        self._path = path  # of the file that it was loaded from
        self._again = again  # builds the same program, with check=
        self._with_checks: dict[tuple[str, ...], Image] = {}
        self.data = checked.image.data
        self.manifest: dict[str, Any] = self._checked.manifest
        self.digest: str = self._checked.digest

    def __repr__(self) -> str:
        return (
            f"<spmd image {self.manifest['program']}, {len(self.data)} bytes, {self.digest[:12]}>"
        )

    @plainly
    def checking(self, check: Any) -> Image:
        """The image that checks this: itself if it does, else it is built, once.

        One that was loaded from FILE.img is built from the FILE.py beside it. Raises UsageError
        where that one is not there or gives another image, for an unknown check, and where the
        program has changed meanwhile.
        """
        checks = checks_of(check)
        if set(checks) <= set(self.manifest["checks"]):
            return self
        if checks not in self._with_checks:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LayoutWarning)
                self._with_checks[checks] = self._built_again(checks)
        return self._with_checks[checks]

    def _built_again(self, checks: tuple[str, ...]) -> Image:
        if self._again is not None:
            if self._again(check=self.manifest["checks"]).digest != self.digest:
                raise UsageError(
                    "the program, or what it reads, has changed since this image was built",
                    expected="the same program, which is built again with checks",
                    remedy="build it now: spmd.build(program, check=True)",
                )
            return self._again(check=checks)
        twin = source.checked_twin(self._checked, self._path, checks) if self._path else None
        if twin is not None:
            return Image(loader.check(twin))
        asked = repr(",".join(checks))
        check_checks(self.manifest, checks, f"spmd.build(program, check={asked}); a FILE.img is "
                     "built again by itself where its FILE.py is beside it")  # fmt: skip
        return self

    @plainly
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the image to a file, in one step: never a part of it. Raises OutputError."""
        source.write_whole(os.fspath(path), self.data)

    @plainly
    def run(
        self,
        *,
        ranks: int | None = None,
        mesh: Mapping[str, int] | None = None,
        threads: int | None = None,
        algorithm: str = "auto",
        barrier: str = "auto",
        transport: str = "auto",
        time_limit: float = launch.TIME_LIMIT,
        comm: Any = None,
        check: Any = False,
        **arguments: Any,
    ) -> Any:
        """Runs once; inputs and scalars by name. Returns what the program returns, as NumPy arrays.

        - ranks: how many this process hosts; 1 unless `mesh` says more.
        - mesh: sizes of axes, {"x": 4, "y": 2}; as equal as possible unless you say otherwise.
        - threads: how many advance the ranks; as many as there are cores and ranks.
        - comm: an mpi4py communicator, one rank per process; outputs are then Distributed.
        - check: True, "all" or names such as "bounds,nan". The program is built once more, with
          checks (an image from `load`: from the FILE.py beside its FILE.img, where that one still
          gives this image); CheckError names the line and the rank.
        - algorithm: of all-reduce: auto, flat, blocks, or ring (in both directions).
        - barrier: auto (ranks wait for those whom they read, and who read them), or strict (all
          members of an exchange meet before it and after it).
        - transport: auto (shared memory inside a host, MPI between hosts), shm or mpi.
        - time_limit: seconds of silence after which a process counts as lost, and the job ends with
          exit code 75; 0 waits for ever. While others wait for it here, a process also counts as
          lost when it has ended, has left its script, or waits in MPI for something else. One that
          computes gets a warning, and 60 times as long.

        InputError for an array of another shape or dtype, MeshError for ranks that do not fit the
        program, UsageError for an unknown name, PeerError for a lost process.
        """
        with self.open(
            ranks=ranks, mesh=mesh, threads=threads, algorithm=algorithm, barrier=barrier,
            transport=transport, time_limit=time_limit, comm=comm, check=check,
        ) as job:  # fmt: skip
            return job(**arguments)

    @plainly
    def open(
        self,
        *,
        ranks: int | None = None,
        mesh: Mapping[str, int] | None = None,
        threads: int | None = None,
        algorithm: str = "auto",
        barrier: str = "auto",
        transport: str = "auto",
        time_limit: float = launch.TIME_LIMIT,
        comm: Any = None,
        check: Any = False,
        keep: Iterable[str] | str | bool = (),
    ) -> Opened:
        """A context whose value is called as `run` is; the image is loaded once for all calls.

        Options are those of `run`, and keep: names of outputs that stay with the ranks (True: all
        of them). They come as Distributed, are not copied to Python unless you ask for them
        (`np.asarray(out["u"])`), and go into the next call as they are::

            with image.open(ranks=4, keep="u") as job:
                out = job(u=u0)
                for _ in range(100):
                    out = job(u=out["u"])
                u = np.asarray(out["u"])
        """
        return Opened(
            self.checking(check), ranks, mesh, threads, algorithm, barrier, transport,
            time_limit, comm, keep,
        )  # fmt: skip

    # ---- looked at

    @plainly
    def profile(
        self,
        *,
        ranks: int | None = None,
        mesh: Mapping[str, int] | None = None,
        threads: int | None = None,
        algorithm: str = "auto",
        barrier: str = "auto",
        transport: str = "auto",
        time_limit: float = launch.TIME_LIMIT,
        comm: Any = None,
        **arguments: Any,
    ) -> tables.Profile:
        """Runs once and says where the time went: the table of `spmd run --profile`.

        Takes what `run` takes. Its rows are dicts; `.plot()` draws them. With comm= every process
        gets the table of all ranks.

        Example::

            @program(mesh=("r",))
            def halves(n: int = 8):
                return spmd.input("u", (n,), np.float64, layout=("r",)) / 2

            image = spmd.build(halves)
            profile = image.profile(ranks=4, u=np.arange(8.0))
            print(profile[0]["kind"], profile[0]["count"])    # compute 1
        """
        with self.open(
            ranks=ranks, mesh=mesh, threads=threads, algorithm=algorithm, barrier=barrier,
            transport=transport, time_limit=time_limit, comm=comm,
        ) as opened:  # fmt: skip
            return opened._profiled(arguments)

    @plainly
    def timeline(
        self,
        path: str | os.PathLike[str],
        *,
        ranks: int | None = None,
        mesh: Mapping[str, int] | None = None,
        threads: int | None = None,
        algorithm: str = "auto",
        barrier: str = "auto",
        transport: str = "auto",
        time_limit: float = launch.TIME_LIMIT,
        comm: Any = None,
        **arguments: Any,
    ) -> str:
        """Runs once and writes what every rank did when, as `spmd run --timeline` does.

        Takes what `run` takes. Returns a sentence with the path; ui.perfetto.dev opens the file.
        Raises OutputError, before it runs, for a file that cannot be written.
        """
        path = os.fspath(path)
        timeline.check(path)
        with self.open(
            ranks=ranks, mesh=mesh, threads=threads, algorithm=algorithm, barrier=barrier,
            transport=transport, time_limit=time_limit, comm=comm,
        ) as opened:  # fmt: skip
            return opened._timed(path, arguments)

    @plainly
    def layouts(
        self, *, ranks: int | None = None, mesh: Mapping[str, int] | None = None
    ) -> tables.Layouts:
        """How every array lies, and what ranks send each other: what `spmd show --layouts` prints.

        With ranks or mesh, bytes are numbers; without, formulas of the sizes of the axes. Nothing
        runs.

        Example::

            @program(mesh=("r",))
            def halves(n: int = 8):
                return spmd.input("u", (n,), np.float64, layout=("r",)) / 2

            image = spmd.build(halves)
            table = image.layouts(ranks=4)
            print(table[0]["name"], table[0]["rank_bytes"], table.exchanges)    # u 16 []
        """
        names = tuple(axis["name"] for axis in self.manifest["mesh"])
        sizes = checked_sizes({} if mesh is None else mesh, names)
        count = None if ranks is None else checked_count("ranks", ranks)
        found = layouts.table(self._checked.image, count, sizes)
        lines = layouts.text(self._checked.image, found)
        return tables.Layouts(found, "\n".join(printable(line.expandtabs()) for line in lines))

    @plainly
    def verify(
        self,
        *,
        ranks: int | Iterable[int] | None = None,
        mesh: Mapping[str, int] | None = None,
        **scalars: Any,
    ) -> tables.Table:
        """Checks without running that ranks send what others receive, inside their buffers.

        - ranks: a number, or several (`range(1, 65)`, which is the default).
        - scalars: by name, where who sends to whom depends on them.

        Returns a table of one row: what `spmd verify --json` prints. Raises ImageError for what
        does not match, MeshError for ranks that the program refuses.
        """
        from spmd.progress import shown
        from spmd.verify import images as verify

        names = tuple(axis["name"] for axis in self.manifest["mesh"])
        given = checked_sizes({} if mesh is None else mesh, names)
        several = None
        if ranks is not None:
            counts: Iterable[Any] = ranks if hasattr(ranks, "__iter__") else [ranks]
            several = [checked_count("ranks", count) for count in counts]
        with shown():
            name = self.manifest["program"]
            found = verify.checked(self._checked.image, name, several, given, scalars)
        return tables.Table([found], verify.as_text(found))

    def _repr_html_(self) -> str:
        m = self.manifest
        rows = [("scalar", s["name"], s["dtype"], f"default {s['default']}") for s in m["scalars"]]
        for kind, arrays in (("input", m["inputs"]), ("output", m["outputs"])):
            rows += [(kind, a["name"], f"{a['dtype']}[{show.shape_text(a)}]",
                      layout_text(a["layout"])) for a in arrays]  # fmt: skip
        axes = ", ".join(show.axis_text(axis) for axis in m["mesh"])
        title = f"spmd image {m['program']}, mesh ({axes}), {len(self.data)} bytes, "
        return tables.rows_html(printable(title + self.digest[:12]),
                                ("", "name", "type", "split over"), rows)  # fmt: skip

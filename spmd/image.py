"""Images from Python: load, save, run, and open to be run many times.

In: paths, NumPy arrays. Out: what the program returns, as NumPy arrays, or one part per
process where a communicator was given.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from codegen.checks.names import POINTS, built_with, checks_of
from codegen.errors import LayoutWarning, UsageError
from codegen.image.elf import printable
from codegen.mesh import checked_count, checked_sizes
from codegen.user.named import together
from spmd import image_or_program, layout_table, show, tables
from spmd.arguments import check_checks
from spmd.distributed import Distributed as Distributed
from spmd.distributed import Local as Local
from spmd.distributed import local as local
from spmd.entries import OpenedEntity as OpenedEntity
from spmd.faces import Face, face_of, faces_of, states_of
from spmd.files.whole import check_place, write_whole
from spmd.frame_streams import FrameStream as FrameStream
from spmd.launch import loader
from spmd.launch.options import Options
from spmd.launch_signatures import call, takes, takes_more
from spmd.opened import Opened as Opened
from spmd.progress_display import shown
from spmd.started import Started as Started
from spmd.tracebacks import plainly
from spmd.verify import images
from spmd.verify.formulas import layout_text


@plainly
def load(path: str | os.PathLike[str]) -> Image:
    """Load an image from a file that `spmd build` or Image.save wrote.

    Raises ImageError for a file that is no image or is damaged (the digest is compared),
    VersionError for an image of a newer format, OutputError for a file that cannot be read.
    """
    return Image(loader.open_file(os.fspath(path)), path=os.fspath(path))


def _unpickled(data: bytes) -> Image:
    """Return the image of pickled bytes, checked as a file's are. Raises ImageError."""
    return Image(loader.check(data))


class Image:
    """An executable image, as spmd.build and spmd.load return it.

    `data` are its bytes, `manifest` its description, `digest` is the hash of its content. It can be
    pickled, for `multiprocessing`, Dask and the like: what travels is its bytes.
    """

    def __init__(self, checked: loader.Checked, again: Callable[..., Image] | None = None,
                 path: str = "") -> None:
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
        """Return an image with these checks: this one if it has them, else one that is built now.

        One that was loaded from FILE.img is built from the FILE.py beside it. Raises UsageError
        where that one is not there or gives another image, for an unknown check, and where the
        program has changed meanwhile.
        """
        checks = checks_of(check)
        if set(checks) <= set(built_with(self.manifest)):
            return self
        if checks not in self._with_checks:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LayoutWarning)
                self._with_checks[checks] = self._built_again(checks)
        return self._with_checks[checks]

    def _built_again(self, checks: tuple[str, ...]) -> Image:
        if self._again is not None:
            if self._again(check=built_with(self.manifest)).digest != self.digest:
                raise UsageError(
                    "the program, or what it reads, has changed since this image was built",
                    expected="the same program, which is built again with checks",
                    remedy="build it now: spmd.build(program, check=True)",
                )
            return self._again(check=checks)
        if self._path:
            twin = image_or_program.builder().checked_twin(self._checked, self._path, checks)
            if twin is not None:
                return Image(loader.check(twin))
        asked = repr(",".join(checks))
        check_checks(self.manifest, checks, f"spmd.build(program, check={asked}); a FILE.img is "
                     "built again by itself where its FILE.py is beside it")
        return self

    def __reduce__(self) -> tuple[Callable[[bytes], Image], tuple[bytes]]:
        """Return how it is pickled: by its bytes. Its program does not travel with it, so that only
        checks which it was built with can be asked of it there.
        """
        return _unpickled, (bytes(self.data),)

    @plainly
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the image to a file, which is whole or not there. Raises OutputError."""
        write_whole(os.fspath(path), self.data)

    @takes(call)
    def run(self, options: Options, arguments: dict[str, Any]) -> Any:
        """Run the image once, and return what the program returns, as NumPy arrays.

        Pass inputs and scalars by name. `only="label"`, or several names, asks for some outputs:
        None stands for the others, and for what needs an optional input that is not given. Of an
        image of a class, entry names what runs, and state, a file or a dict of arrays, is what it
        begins with; without it `__init__` runs first.

        OPTIONS

        While others wait for it here, a process also counts as lost when it has ended, has left its
        script, or waits in MPI for something else. One that computes gets a warning, and 60 times
        as long. With check, the program is built once more (an image from `load`: from the FILE.py
        beside its FILE.img, where that one still gives this image).

        InputError for an array of another shape or dtype, MeshError for ranks that do not fit the
        program, UsageError for an unknown name, PeerError for a lost process, CheckError for what a
        check has found.
        """
        with self._opened_once(options, arguments) as job:
            return job._once(arguments)

    @takes(Options)
    def open(self, options: Options) -> Opened:
        """Open the image for many calls: it is loaded once. Use it in a `with` statement.

        Options are those of `run`, and keep: names of outputs that stay with the ranks (True: all
        of them). They come as Distributed, are not copied to Python unless you ask for them
        (`np.asarray(out["u"])`), and go into the next call as they are::

            with image.open(ranks=4, keep="u") as job:
                out = job(u=u0)
                for _ in range(100):
                    out = job(u=out["u"])
                u = np.asarray(out["u"])

        An image of a class is called by its entries, over state that stays with the ranks::

            with image.open(ranks=2, state="digits.safetensors") as digits:
                label = digits.infer(x=x)
        """
        if self.manifest["entries"] and (options.checkpoint or options.resume):
            raise UsageError(
                "an open image of a class keeps no checkpoints",
                expected="state files, between calls",
                found=f"checkpoint={options.checkpoint!r}, resume={options.resume!r}",
                remedy='x.save("FILE.safetensors"), then image.open(state="FILE.safetensors"); or '
                "image.run(entry=…, checkpoint=…) for one long call")
        if options.state is not None and not self.manifest["entries"]:
            raise UsageError(f"{self.manifest['program']} has no state",
                             expected="an image of a class under @spmd.program", found="state=…",
                             remedy="inputs, by name, in each call")
        return self._opened(options)

    def _opened_once(self, options: Options, arguments: dict[str, Any]) -> Opened:
        """Return the image, open for one call. Of a class, the arguments say with which state."""
        if self.manifest["entries"]:
            face_of(self.manifest, arguments.get("entry"))
            options.state = arguments.pop("state", None)
        return self._opened(options)

    def _opened(self, options: Options) -> Opened:
        checks = checks_of(options.check)
        if options.checkpoint or options.resume:
            checks = (*checks, POINTS)
        checked = self.checking(checks)._checked
        return (OpenedEntity if checked.manifest["entries"] else Opened)(checked, options)

    # ---- looked at

    @takes(call)
    def profile(self, options: Options, arguments: dict[str, Any]) -> tables.Profile:
        """Run once, and return the table of `spmd run --profile`: where the time went.

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
        with self._opened_once(options, arguments) as job:
            return job._profiled(arguments)

    @takes_more(call)
    def timeline(self, path: str | os.PathLike[str], options: Options, arguments: dict[str, Any]
                 ) -> str:
        """Run once, and write what every rank did when, as `spmd run --timeline` does.

        Takes what `run` takes. Returns a sentence with the path; ui.perfetto.dev opens the file.
        Raises OutputError, before it runs, for a file that cannot be written.
        """
        path = os.fspath(path)
        check_place(path, "timeline")
        with self._opened_once(options, arguments) as job:
            return job._timed(path, arguments)

    @plainly
    def layouts(
        self, *, ranks: int | None = None, mesh: Mapping[str, int] | None = None
    ) -> tables.Layouts:
        """Return the layouts of arrays and the exchanges, as `spmd show --layouts` prints them.

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
        table = layout_table.table(self._checked.image, count, sizes)
        lines = layout_table.text(self._checked.image, table)
        return tables.Layouts(table, "\n".join(printable(line.expandtabs()) for line in lines))

    @plainly
    def verify(
        self, *, ranks: int | Iterable[int] | None = None, mesh: Mapping[str, int] | None = None,
        **scalars: Any,
    ) -> tables.Table:
        """Check, without a run, that ranks send what others receive, inside their buffers.

        - ranks: a number, or several (`range(1, 65)`, which is the default).
        - scalars: by name, where who sends to whom depends on them.

        Returns a table of one row: what `spmd verify --json` prints. Raises ImageError for what
        does not match, MeshError for ranks that the program refuses.
        """
        names = tuple(axis["name"] for axis in self.manifest["mesh"])
        sizes = checked_sizes({} if mesh is None else mesh, names)
        several = None
        if ranks is not None:
            counts: Iterable[Any] = ranks if hasattr(ranks, "__iter__") else [ranks]
            several = [checked_count("ranks", count) for count in counts]
        with shown():
            name = self.manifest["program"]
            report = images.checked(self._checked.image, name, several, sizes, scalars)
        return tables.Table([report], images.as_text(report))

    def _repr_html_(self) -> str:
        m = self.manifest
        rows: list[tuple[str, ...]] = _array_rows("state", (a for _, a in states_of(m).values()))
        rows += [("dim", s["name"], f"0 to {s['at_most']}", "") for s in m["scalars"]
                 if "at_most" in s]
        for face in faces_of(m).values() if m["entries"] else [Face(m)]:
            if face.name:
                rows.append(("entry", face.name, "", ""))
            rows += [("scalar", s["name"], s["dtype"], f"default {s['default']}")
                     for s in m["scalars"] if s["name"] in face.scalars and "at_most" not in s]
            for kind, arrays in (("input", face.inputs), ("output", face.outputs)):
                rows += _array_rows(kind, (a for _, a in arrays))
        axes = ", ".join(show.axis_text(axis) for axis in m["mesh"])
        title = f"spmd image {m['program']}, mesh ({axes}), {len(self.data)} bytes, "
        return tables.rows_html(printable(title + self.digest[:12]),
                                ("", "name", "type", "split over"), rows)


def _array_rows(kind: str, arrays: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [(kind, *row) for row in together(
        (a["name"], f"{a['dtype']}[{show.shape_text(a)}]", layout_text(a["layout"]))
        for a in arrays)]

"""`python -m spmd run`: an image from its file to its outputs, in every process of the job.

In: the options. Out: text of the program and its outputs on standard output, files, an exit code.
Always holds: whatever can be refused is refused before anything is computed; an output file takes
its name only when every process has written its part.
"""

from __future__ import annotations

import json
import mmap
import os
import sys

from codegen.check_names import POINTS, built_with
from codegen.errors import EnvironmentFault, UsageError
from codegen.user import named
from spmd import report
from spmd.arguments import check_array, check_checks, check_computed, check_names, read
from spmd.files import ZARR, is_series
from spmd.files.npy import SIZES, contiguous_strides
from spmd.files.whole import check_place
from spmd.launch import loader
from spmd.launch.course import Launch
from spmd.launch.job import Global
from spmd.launch.memory import available_memory
from spmd.launch.options import chosen, flag
from spmd.launch.processes import disagreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, TextIO

    from spmd.files.inputs import InputArray
    from spmd.files.outputs import OutputFile
    from spmd.launch.job import Job
    from spmd.launch.processes import Processes


def run(asked: argparse.Namespace, processes: Processes) -> int:
    """Runs an image, or a program that is built first; returns the exit code.

    With --json standard output is one JSON document, the rows of the profile; what else is said,
    the results too, goes to standard error.
    """
    if not asked.json:
        return _run(asked, processes, None)
    if not asked.profile:
        raise UsageError("--json is for the profile", remedy="--profile --json")
    document, sys.stdout = sys.stdout, sys.stderr  # of results and of the program's text
    try:
        return _run(asked, processes, document)
    finally:
        sys.stdout = document


def _run(asked: argparse.Namespace, processes: Processes, document: TextIO | None) -> int:
    """document: what takes the profile as JSON, and nothing else."""
    if asked.checkpoint or asked.resume:
        asked.check = (*asked.check, POINTS)
    checked, parameters = _image(asked, processes)
    settings = {k: v for k, v in read(asked.set).items() if k not in parameters}
    this = Run(asked, settings, checked, processes)
    setup, met = this.agreed(this.prepare)
    this.compare_files([theirs["files"] for theirs in met])
    job = this.loaded(setup, this.put)
    try:
        rooms = processes.meet(lambda: this.compute(job))[0]
        this.kept()
        for line in this.saving.said() if this.saving and this.first else ():
            print(line, flush=True)
        if rooms:
            this.collect(job, rooms)
            processes.together(this.finish)
        this.say_times(job, document)
    finally:
        this.discard()
        this.end()
    return 0


def _image(
    asked: argparse.Namespace, processes: Processes
) -> tuple[loader.Checked, dict[str, Any]]:
    """The image, and those of the settings that are parameters of a program built for this run."""
    opened = _same_image(asked, processes)

    def build() -> tuple[bytes, dict[str, Any]]:
        from spmd import source  # the compiler, which the first process alone needs

        return source.image_for_run(asked, opened)

    if opened is not None and not set(asked.check) - set(built_with(opened.manifest)):
        return opened, {}
    data, parameters = processes.from_first(build)
    if data:
        opened = processes.together(lambda: loader.check(data), shared=False)
    assert opened is not None
    return opened, parameters


def _same_image(asked: argparse.Namespace, processes: Processes) -> loader.Checked | None:
    """The image that every process was given; None where it is a program that is to be built."""
    opened: list[loader.Checked] = []

    def come() -> str:
        if loader.is_program(asked.image):
            return ""
        opened.append(loader.open_file(asked.image))
        return opened[0].digest

    digests = processes.meet(come)
    odd = [k for k, digest in enumerate(digests) if digest != digests[0]]
    if odd:
        kinds = [f"image {digest}" if digest else "a program" for digest in digests]
        holder = "process" if asked.ranks else "rank"
        processes.refuse(disagreement(
            "ranks of one job hold different images", holder, odd,
            expected=f"{kinds[0]} ({holder} 0)",
            found=f"{kinds[odd[0]]} ({holder} {odd[0]})", remedy="give every rank the same file",
        ))
    return opened[0] if opened else None


class Run(Launch):
    """A launch whose inputs come from files, and whose outputs go to files or are printed."""

    def __init__(
        self, asked: argparse.Namespace, settings: dict[str, str], checked: loader.Checked,
        processes: Processes,
    ) -> None:
        super().__init__(checked, chosen(vars(asked)), processes)
        self.asked, self.settings = asked, settings
        self.first = processes.number == 0
        if asked.timeline or asked.profile:
            self.times = bool(asked.timeline)
        self.says_checks = bool(self.first and self.manifest["checks"] and not asked.json)
        self.opened: dict[str, InputArray] = {}
        self.files: list[OutputFile | None] = []
        self.rooms: dict[int, int] = {}
        self.views: dict[int, Any] = {}  # outputs that no file takes: buffers, or arrays

    def prepare(self) -> dict[str, Any]:
        """Checks everything that can be checked alone; returns what all processes must share."""
        asked, inputs = self.asked, self.manifest["inputs"]
        check_checks(self.manifest, asked.check,
                     "spmd build FILE.py --check, or spmd run FILE.py --check; the FILE.py beside "
                     "FILE.img is built again by itself, if it still gives this image")
        check_names(inputs, asked.input, "input", "-i")
        self._part_saves()
        known_outputs = [*self.manifest["outputs"], *self.manifest["saves"]]
        check_names(known_outputs, asked.output, "output", "-o")
        if files := any((asked.input, asked.input_all, asked.output, asked.output_all,
                         asked.timeline)):
            from spmd.files import outputs  # mmap, zlib: a run without files does without

            outputs.check_apart(asked, self.options.save or {})
            known = [array["name"] for array in inputs]
            self.opened = outputs.open_inputs(asked.input, asked.input_all, known)
        setup = self.bound(self.settings, self.opened, asked.only)
        for array in inputs:
            if array["name"] in self.opened:
                self.opened[array["name"]].convert(array["dtype"], len(array["shape"]))
                check_array(array, setup.shape(array), self.opened[array["name"]])
        rows = [(output["name"], output["dtype"], setup.shape(output))
                for output in self.manifest["outputs"]]
        self.shapes = [shape for _, _, shape in rows]
        self.files = [None] * len(rows)
        if asked.timeline:
            check_place(asked.timeline, "timeline")
        if files:
            check_computed(self.manifest, asked.output, self.computed)
            there = [rows[k] for k in self.computed]
            found = outputs.open_outputs(asked.output, asked.output_all, there)
            for k, file in zip(self.computed, found, strict=True):
                self.files[k] = file
        for file in self.files:
            if file is not None:
                file.check()
        versions = {name: (given.path, given.version) for name, given in self.opened.items()}
        return {"files": versions} | self.mine(setup, {
            **{f"--set {k}": v for k, v in self.scalars.items()},
            "-i": sorted(self.opened), "--only": self.computed,
            "-o": [file and file.given for file in self.files],
            **self.options.agreed(flag),
            "--timeline": bool(asked.timeline), "--profile": asked.profile, "--feed": asked.feed,
        })

    def _part_saves(self) -> None:
        """Takes what the program saves while it runs out of what -o names."""
        saves, outputs = ([row["name"] for row in self.manifest[kind]] for kind in
                          ("saves", "outputs"))
        given = self.asked.output
        series = {name: path for name, path in given.items() if name in saves
                  or path.endswith(ZARR) or (is_series(path) and name not in outputs)}
        self.options.save = series or None
        self.asked.output = {k: v for k, v in given.items() if k not in series}

    def compare_files(self, everyones: list[dict[str, tuple[str, tuple[Any, ...]]]]) -> None:
        """All processes were given the same arrays: the same files, or others of equal elements."""
        other = [
            name for name in self.opened
            if any(files[name][1] != everyones[0][name][1] for files in everyones)
        ]
        if not other:
            return
        digests = self.processes.meet(lambda: {name: self.opened[name].digest() for name in other})
        for name in other:
            odd = [k for k, theirs in enumerate(digests) if theirs[name] != digests[0][name]]
            if odd:
                holder = "process" if self.asked.ranks else "rank"
                self.processes.refuse(disagreement(
                    f"ranks of one job were given different arrays for input {name}", holder, odd,
                    expected=f"the elements of {everyones[0][name][0]} ({holder} 0)",
                    found=f"others in {everyones[odd[0]][name][0]} ({holder} {odd[0]})",
                    remedy="give every rank the same file, or a copy of it",
                ))

    def compute(self, job: Job) -> list[tuple[str, int]]:
        """Reads the inputs and runs; process 0 then makes room for every output."""
        if self.says_checks:
            print(f"spmd: checks on: {report.checks_text(self.manifest)}", file=sys.stderr)
            if self.times is None:
                job.keep_times(0)  # from here on it is measured what that costs
        if self.first and sys.stderr.isatty():
            from spmd.showing import at, shown  # threads, for one process on a terminal

            with shown():
                self.run(job, self.put, at)
        else:
            self.run(job, self.put)
        return [self._room(job, k) for k in range(len(self.files))] if self.first else []

    def put(self, job: Job) -> None:
        """The hosted ranks' parts of the inputs, from their files into the memory of the ranks."""
        for name, file in self.opened.items():
            try:
                if file.is_made:
                    here = job.setup.hosts.here
                    file.reserve(*_span(job, name, file), len(here), job.host_bytes())
                how = file.dtype, file.shape, file.strides, file.swapped, file.start
                with Global(file.buffer, *how) as given:
                    job.put(name, given, file=file.path)
            except MemoryError:
                raise EnvironmentFault(
                    f"input {name}: not enough memory to read {file.path}", remedy="more processes"
                ) from None
            file.close()

    def _room(self, job: Job, number: int) -> tuple[str, int]:
        """Where output `number` goes: a path that every process can open, and its first byte."""
        output = self.manifest["outputs"][number]
        file = self.files[number]
        if number not in self.computed:
            return "", 0
        if file is not None:
            return file.create(job.setup.hosts.count > 1), file.starts[output["name"]]
        size = report.output_bytes(output["dtype"], self.shapes[number])
        if job.setup.hosts.count > 1 or size > available_memory() // 2:
            return "", 0
        fd = os.memfd_create(output["name"], os.MFD_CLOEXEC)
        os.ftruncate(fd, max(1, size))
        self.rooms[number] = fd
        return f"/proc/{os.getpid()}/fd/{fd}", 0

    def collect(self, job: Job, rooms: list[tuple[str, int]]) -> None:
        """Copies the hosted ranks' parts of every output to where it goes."""
        if job.setup.hosts.count > 1:
            from spmd import output_parts  # NumPy, where memory is not shared

            self.views = output_parts.collect(job, rooms)
        else:
            self.processes.together(lambda: self._copy(job, rooms))

    def _copy(self, job: Job, rooms: list[tuple[str, int]]) -> None:
        for number, (path, start) in enumerate(rooms):
            if not path:
                continue
            dtype, shape = self.manifest["outputs"][number]["dtype"], self.shapes[number]
            view = mapped(path)
            strides = contiguous_strides(shape, SIZES[dtype])
            with Global(view, dtype, shape, strides, start=start) as into:
                job.get(number, into)
            if self.first and self.files[number] is None:
                self.views[number] = view
            else:
                view.close()

    def finish(self) -> None:
        """Process 0 names the files and prints the outputs that no file takes."""
        if not self.first:
            return
        for file in self.files:
            if file is not None and file.part:  # all of its outputs are whole
                file.commit()
        numbers = {self.manifest["outputs"][k]["name"]: k for k in self.computed}
        for root, names in named.roots(numbers).items():
            mine = [numbers[name] for name in names]
            if len(mine) > named.MANY:
                self._say_tree(root, mine)
            else:
                for number in mine:
                    self._say(number)

    def _say_tree(self, root: str, numbers: list[int]) -> None:
        files = dict.fromkeys(file.given for n in numbers if (file := self.files[n]) is not None)
        arrays = [(self.manifest["outputs"][n]["dtype"], self.shapes[n]) for n in numbers]
        print(report.tree_text(root, arrays, ", ".join(files)), flush=True)

    def _say(self, number: int) -> None:
        output, file = self.manifest["outputs"][number], self.files[number]
        name, dtype, shape = output["name"], output["dtype"], self.shapes[number]
        if file is not None:
            extents = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            print(f"{name}: {dtype} ({extents}) in {file.given}", flush=True)
            if how := file.reading(name, dtype):
                print(f"spmd: output {name} is {dtype}: read it by {how}", file=sys.stderr)
        elif number in self.views:
            from spmd import arrays  # NumPy, in the process that prints

            array = arrays.as_array(self.views[number], dtype, shape)
            print(arrays.output_text(name, dtype, array), flush=True)
        else:
            print(f"{name}: {dtype} {shape} too large to summarise; use -o {name}=FILE.npy")

    def say_times(self, job: Job, document: TextIO | None) -> None:
        """Process 0 says what checks took, writes the timeline, prints the profile; as JSON into
        the document.
        """
        if self.times is None and not self.says_checks:
            return
        from spmd import timeline  # a run that nobody times does without

        if self.says_checks:
            checks, whole = timeline.cost_of_checks(job)
            print(f"spmd: all checks held; they took about {checks / max(whole, 1e-9):.0%} of "
                  f"{timeline.time_text(whole)}", file=sys.stderr)
        if self.times is not None:
            times = timeline.gather(job)

            def say() -> None:
                if self.asked.timeline:
                    print(timeline.write(self.asked.timeline, job, times), flush=True)
                if self.asked.profile:
                    rows, ranks = timeline.profile(job, times), job.setup.ranks
                    text = json.dumps(rows) if document else timeline.profile_text(ranks, rows)
                    if self.keeping and self.keeping.sets and not document:
                        text += f"\n{self.keeping.cost_text()}"
                    print(text, file=document, flush=True)

            self.processes.from_first(say)

    def discard(self) -> None:
        """Removes unfinished files; does nothing after `finish`."""
        for file in self.files:
            if file is not None:
                file.discard()


def _span(job: Job, name: str, file: InputArray) -> tuple[int, int]:
    """The bytes of an input's buffer, low to high, that the hosted ranks' parts lie between."""
    low, high = file.start, file.start
    for rank in range(job.setup.first, job.setup.first + job.setup.count):
        offset, extent, _ = job.shard(job.numbers[name], rank)
        if 0 in extent:
            continue
        first = file.start + sum(o * s for o, s in zip(offset, file.strides))
        last = first + sum((e - 1) * s for e, s in zip(extent, file.strides))
        low = first if high == file.start else min(low, first)
        high = max(high, last + SIZES[file.dtype])
    return low, high


def mapped(path: str) -> mmap.mmap:
    """A whole file, mapped for writing by all."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)

"""`python -m spmd run`: an image from its file to its outputs, in every process of the job.

In: the options. Out: text of the program and its outputs on standard output, files, an exit code.
Always holds: whatever can be refused is refused before anything is computed; an output file takes
its name only when every process has written its part.
"""

from __future__ import annotations

import json
import os
import sys
from mmap import mmap

from codegen.checks.names import POINTS, built_with
from codegen.errors import UsageError
from codegen.user import named
from spmd import report
from spmd.arguments import check_array, check_checks, check_computed, check_names, read
from spmd.faces import face_of, needed_of
from spmd.files import ZARR, is_series
from spmd.files.whole import check_place
from spmd.launch import array_files, loader
from spmd.launch.lifecycle import Launch
from spmd.launch.memory import available_memory
from spmd.launch.options import flag, options_of
from spmd.launch.processes import disagreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, TextIO

    from spmd.faces import Face
    from spmd.files.inputs import InputArray
    from spmd.files.outputs import OutputFile
    from spmd.launch.array_files import Versions
    from spmd.launch.job import Job
    from spmd.launch.processes import Processes
    from spmd.launch.saved_state import SavedState, WrittenState
    from spmd.launch.setup import Setup


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
    """Run an image, or a program, and return the exit code."""
    if asked.checkpoint or asked.resume:
        asked.check = (*asked.check, POINTS)
    checked, parameters = _image(asked, processes)
    settings = {k: v for k, v in read(asked.set).items() if k not in parameters}
    this = Run(asked, settings, checked, processes)
    setup, met = this.agreed(this.prepare)
    this.compare_files(met)
    try:
        if this.face.number is not None:
            this.with_state(setup, this.state)
        job = this.loaded(setup, this.put)
        rooms = processes.run_and_gather(lambda: this.compute(job))[0]
        this.finish_outputs()
        job.replace(this.face.pairs)
        for line in this.saving.said() if this.saving and this.first else ():
            print(line, flush=True)
        if rooms:
            this.collect(job, rooms)
        if this.state_file is not None:
            this.state_file.write(job)
        processes.run_in_all(this.finish)
        this.say_times(job, document)
    finally:
        this.discard()
        this.end()
    return 0


def _image(
    asked: argparse.Namespace, processes: Processes
) -> tuple[loader.Checked, dict[str, Any]]:
    """Return the image, and those of the settings that are parameters of a program built for this
    run."""
    opened = _same_image(asked, processes)

    def build() -> tuple[bytes, dict[str, Any]]:
        from spmd import source  # the compiler, which the first process alone needs

        return source.image_for_run(asked, opened)

    if opened is not None and not set(asked.check) - set(built_with(opened.manifest)):
        return opened, {}
    data, parameters = processes.run_in_first(build)
    if data:
        opened = processes.run_in_all(lambda: loader.check(data), shared=False)
    assert opened is not None
    return opened, parameters


def _same_image(asked: argparse.Namespace, processes: Processes) -> loader.Checked | None:
    """Return the image that every process was given; None where it is a program that is to be
    built."""
    opened: list[loader.Checked] = []

    def come() -> str:
        if loader.is_program(asked.image):
            return ""
        opened.append(loader.open_file(asked.image))
        return opened[0].digest

    digests = processes.run_and_gather(come)
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
        super().__init__(checked, options_of(vars(asked)), processes)
        self.asked, self.settings = asked, settings
        self.holder = "process" if asked.ranks else "rank"  # whom messages speak of
        self.first = processes.number == 0
        if asked.timeline or asked.profile:
            self.times = bool(asked.timeline)
        self.says_checks = bool(self.first and self.manifest["checks"] and not asked.json)
        self.opened: dict[str, InputArray] = {}
        self.files: list[OutputFile | None] = []
        self.positions: list[int] = []  # among the outputs of the face: of those that are computed
        self.rooms: dict[int, int] = {}
        self.views: dict[int, Any] = {}  # outputs that no file takes: buffers, or arrays
        self.state: SavedState | None = None  # with which an entry begins
        self.state_file: WrittenState | None = None  # which takes that behind it

    def prepare(self) -> dict[str, Any]:
        """Checks everything that can be checked alone; returns what all processes must share."""
        asked = self.asked
        face = face_of(self.manifest, asked.entry)
        inputs = [array for _, array in face.inputs]
        check_checks(self.manifest, asked.check,
                     "spmd build FILE.py --check, or spmd run FILE.py --check; the FILE.py beside "
                     "FILE.img is built again by itself, if it still gives this image")
        check_names(inputs, asked.input, "input", "-i")
        outs = [output for _, output in face.outputs]
        self._part_saves(face)
        known_outputs = [*outs, *({"name": name} for name in face.saves)]
        check_names(known_outputs, asked.output, "output", "-o")
        if files := any((asked.input, asked.input_all, asked.output, asked.output_all,
                         asked.timeline, asked.state, asked.save_state)):
            from spmd.launch import saved_state  # mmap, zlib: a run without files does without

            outputs = saved_state.outputs
            outputs.check_overwrites(asked, self.options.save or {})
            known = [array["name"] for array in inputs]
            self.opened = outputs.open_inputs(asked.input, asked.input_all, known)
        arrays = [array for array in inputs if array["name"] in self.opened]
        for array in arrays:
            self.opened[array["name"]].convert(array["dtype"], len(array["shape"]))
        shapes = {name: file.shape for name, file in self.opened.items()}
        setup = self.bind(face, self.settings, shapes, asked.only)
        for array in arrays:
            check_array(array, setup.shape(array), self.opened[array["name"]])
        rows = [(output["name"], output["dtype"], setup.shape(output)) for output in outs]
        self.positions = [k for k, (number, _) in enumerate(face.outputs)
                          if number in self.computed]
        self.shapes = [shape for _, _, shape in rows]
        self.files = [None] * len(rows)
        if asked.timeline:
            check_place(asked.timeline, "timeline")
        if files:
            there = [rows[k] for k in self.positions]
            check_computed(outs, asked.output, [name for name, _, _ in there])
            written = outputs.open_outputs(asked.output, asked.output_all, there)
            for k, file in zip(self.positions, written, strict=True):
                self.files[k] = file
        for file in self.files:
            if file is not None:
                file.check()
        states = self._states(setup, saved_state) if asked.state or asked.save_state else {}
        if face.number is not None and not asked.state and (needed := needed_of(self.manifest)):
            raise UsageError(f"{self.manifest['program']} has no state yet",
                             expected=", ".join(needed), found="no --state",
                             remedy="--state FILE.safetensors")
        versions = array_files.versions_of(self.opened)
        return {"files": versions, "states": states} | self.contribution(setup, {
            "--entry": asked.entry, "--state": asked.state is not None,
            **{f"--set {k}": v for k, v in face.own(self.scalars).items()},
            "-i": sorted(self.opened), "--only": self.computed,
            "-o": [file and file.given_path for file in self.files],
            **self.options.agreed(flag),
            "--timeline": bool(asked.timeline), "--profile": asked.profile, "--feed": asked.feed,
            "--save-state": asked.save_state,
        })

    def _states(self, setup: Setup, saved_state: Any) -> Versions:
        """Return the files of the state: the one that is read is opened, the other one can be
        written. saved_state: the module."""
        asked = self.asked
        versions: Versions = {}
        saved_state.check_has_state(self.manifest["program"], self.face.number is not None, asked)
        if asked.state:
            self.state = saved_state.SavedState(self.manifest, asked.state)
            versions = self.state.open(setup)
        if asked.save_state:
            self.state_file = saved_state.WrittenState(self.manifest, asked.save_state)
            self.state_file.check(setup)
            taken = {file.path: file.given_path for file in self.files if file is not None}
            if (path := os.path.realpath(asked.save_state)) in taken:
                raise UsageError(f"{taken[path]} is the file of an output: it would be replaced",
                                 expected="a file of its own for the state",
                                 found=f"--save-state {asked.save_state}",
                                 remedy="another name for it")
        return versions

    def compare_files(self, met: list[dict[str, Any]]) -> None:
        """Check that all processes were given the same arrays."""
        files, states = ([theirs[key] for theirs in met] for key in ("files", "states"))
        array_files.compare(self.processes, self.opened, files, self.holder, "input")
        if self.state is not None:
            self.state.compare(self.processes, states, self.holder)

    def _part_saves(self, face: Face) -> None:
        """Takes what the program saves while it runs out of what -o names."""
        saves, outputs = face.saves, [row["name"] for _, row in face.outputs]
        paths = self.asked.output
        series = {name: path for name, path in paths.items() if name in saves
                  or path.endswith(ZARR) or (is_series(path) and name not in outputs)}
        self.options.save = series or None
        self.asked.output = {k: v for k, v in paths.items() if k not in series}

    def compute(self, job: Job) -> list[tuple[str, int]]:
        """Reads the inputs and runs; process 0 then makes room for every output."""
        if self.says_checks:
            print(f"spmd: checks on: {report.checks_text(self.manifest)}", file=sys.stderr)
            if self.times is None:
                job.keep_times(0)  # from here on it is measured what that costs
        if self.first and sys.stderr.isatty():
            from spmd.progress_display import (  # threads, for one process on a terminal
                announce,
                shown,
            )

            with shown():
                self.run(job, self.put, announce)
        else:
            self.run(job, self.put)
        return [self._room(job, k) for k in self.positions] if self.first else []

    def put(self, job: Job) -> None:
        """Copy the hosted ranks' parts of the inputs, from their files into the memory of the
        ranks."""
        job.forget(self.face.given_flags)
        numbers = {array["name"]: number for number, array in self.face.inputs}
        array_files.put(job, self.opened, numbers, "input")

    def _room(self, job: Job, number: int) -> tuple[str, int]:
        """Return where output `number` of the entry goes: a path that every process can open, and
        its first byte."""
        _, output = self.face.outputs[number]
        file = self.files[number]
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
        arrays = [job.outputs + self.face.outputs[k][0] for k in self.positions]
        views = array_files.collect(job, dict(zip(arrays, rooms, strict=True)), "output")
        for number, array in zip(self.positions, arrays, strict=True):
            view = views.get(array)
            if self.first and self.files[number] is None and view is not None:
                self.views[number] = view
            elif isinstance(view, mmap):
                view.close()

    def finish(self) -> None:
        """Process 0 names the files and prints the outputs that no file takes."""
        if not self.first:
            return
        for file in self.files:
            if file is not None and file.part:  # all of its outputs are whole
                file.commit()
        if self.state_file is not None:
            print(report.state_text(len(self.state_file.rows), self.state_file.path), flush=True)
        numbers = {self.face.outputs[k][1]["name"]: k for k in self.positions}
        for root, names in named.roots(numbers).items():
            mine = [numbers[name] for name in names]
            if len(mine) > named.MANY:
                self._say_tree(root, mine)
            else:
                for number in mine:
                    self._say(number)

    def _say_tree(self, root: str, numbers: list[int]) -> None:
        files = dict.fromkeys(
            file.given_path for n in numbers if (file := self.files[n]) is not None)
        arrays = [(self.face.outputs[n][1]["dtype"], self.shapes[n]) for n in numbers]
        print(report.tree_text(root, arrays, ", ".join(files)), flush=True)

    def _say(self, number: int) -> None:
        (_, output), file = self.face.outputs[number], self.files[number]
        name, dtype, shape = output["name"], output["dtype"], self.shapes[number]
        if file is not None:
            extents = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            print(f"{name}: {dtype} ({extents}) in {file.given_path}", flush=True)
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
                    if self.checkpointing and self.checkpointing.sets and not document:
                        text += f"\n{self.checkpointing.cost_text()}"
                    print(text, file=document, flush=True)

            self.processes.run_in_first(say)

    def discard(self) -> None:
        """Remove the output files that are not finished. After `finish` there are none."""
        for file in self.files:
            if file is not None:
                file.discard()
        if self.state is not None:
            self.state.close()

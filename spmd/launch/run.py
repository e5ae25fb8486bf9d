"""`python -m spmd run`: an image from its file to its outputs, in every process of the job.

In: the options. Out: text of the program and its outputs on standard output, files, an exit code.
Always holds: whatever can be refused is refused before anything is computed; an output file takes
its name only when every process has written its part.
"""

from __future__ import annotations

import mmap
import os
import sys

from codegen.errors import AgreementError, EnvironmentFault, UsageError
from spmd import report
from spmd.arguments import (
    check_array,
    check_checks,
    check_given,
    check_names,
    patched_in,
    read,
    scalars_of,
)
from spmd.files.npy import SIZES, contiguous_strides
from spmd.launch import loader, sizes
from spmd.launch import processes as launch
from spmd.launch.job import Global, Job, Setup
from spmd.launch.memory import available_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, TextIO

    import numpy as np

    from spmd.files.inputs import Input
    from spmd.files.outputs import OutputFile
    from spmd.timeline import Rank


def run(options: argparse.Namespace, processes: launch.Processes) -> int:
    """Runs an image, or a program that is built first; returns the exit code.

    With --json standard output is one JSON document, the rows of the profile; what else is said,
    the results too, goes to standard error.
    """
    if options.eager:
        from spmd import source

        return source.run_eager(options)
    if not options.json:
        return _run(options, processes)
    if not options.profile:
        raise UsageError("--json is for the profile", remedy="--profile --json")
    document, sys.stdout = sys.stdout, sys.stderr  # of results and of the program's text
    try:
        return _run(options, processes, document)
    finally:
        sys.stdout = document


def _run(
    options: argparse.Namespace, processes: launch.Processes, document: TextIO | None = None
) -> int:
    """document: what takes the profile as JSON, and nothing else."""
    checked, parameters = _same_image(options, processes), {}
    if checked is None:
        data, parameters = processes.from_first(lambda: built(options))
        checked = processes.together(lambda: loader.check(data), shared=False)
    elif set(options.check) - set(checked.manifest["checks"]):
        from spmd import source

        here, path = checked, options.image
        again = processes.from_first(lambda: source.checked_twin(
            here, path, options.check, source.chosen_cache(options)))  # fmt: skip
        if again is not None:
            checked = processes.together(lambda: loader.check(again), shared=False)
            if processes.number == 0:
                print(f"spmd: {path} has no such checks; built again with them from "
                      f"{source.program_beside(path)}, which gives this image", file=sys.stderr)
    settings = {k: v for k, v in read(options.set).items() if k not in parameters}
    launched = Launch(options, settings, checked)
    met = processes.meet(lambda: launched.prepare(processes))
    hosts = launch.agree(processes, met, options.transport)
    launched.compare_files(processes, [theirs["files"] for theirs in met])
    setup = launched.setup(processes, hosts)
    with Job(launched.checked, setup, processes, options.time_limit) as job:
        try:
            if options.timeline or options.profile:
                from spmd import timeline

                processes.together(lambda: timeline.keep(job, bool(options.timeline)))
            checks = bool(launched.first and launched.manifest["checks"] and not options.json)
            if checks:
                launched.say_checks(job)
            parts = processes.meet(lambda: launched.compute(job))[0]
            if checks:
                launched.say_cost(job)
            if parts:
                processes.together(lambda: launched.collect(job, parts))
                launched.gather(job)
                processes.together(launched.finish)
            if options.timeline or options.profile:
                times = timeline.gather(job)
                processes.from_first(lambda: launched.report_times(job, times, document))
        finally:
            launched.discard()
    return 0


def _same_image(
    options: argparse.Namespace, processes: launch.Processes
) -> loader.Checked | None:
    """The image that every process was given; None where it is a program that is to be built."""
    opened: list[loader.Checked] = []

    def come() -> str:
        if is_source(options.image):
            return ""
        opened.append(loader.open_file(options.image))
        return opened[0].digest

    digests = processes.meet(come)
    odd = [k for k, digest in enumerate(digests) if digest != digests[0]]
    if odd:
        kinds = [f"image {digest}" if digest else "a program" for digest in digests]
        holder = "process" if options.ranks else "rank"
        processes.refuse(AgreementError(
            f"ranks of one job hold different images: {holder} {launch.listed(odd)} "
            f"differ{'s' if len(odd) == 1 else ''}", expected=f"{kinds[0]} ({holder} 0)",
            found=f"{kinds[odd[0]]} ({holder} {odd[0]})", remedy="give every rank the same file",
        ))  # fmt: skip
    return opened[0] if opened else None


def is_source(path: str) -> bool:
    return path.endswith(".py") or ".py:" in path


def built(options: argparse.Namespace) -> tuple[bytes, dict[str, Any]]:
    """The image of a program, and those of the settings that are its parameters."""
    from spmd import source

    program = source.find_program(options.image)
    parameters = source.parameters_of(program, options.set)
    data = source.build_program(program, parameters, cache=source.chosen_cache(options),
                                checks=options.check)  # fmt: skip
    if not options.json:
        source.point_out(data)
    return data, parameters


class Launch:
    """One `run` in one process: the image, what was asked for, and the arrays on their way."""

    def __init__(
        self, options: argparse.Namespace, settings: dict[str, str], checked: loader.Checked
    ) -> None:
        self.options, self.settings, self.checked = options, settings, checked
        self.manifest = checked.manifest
        self.opened: dict[str, Input] = {}
        self.files: list[OutputFile | None] = []
        self.first = False
        self.rooms: dict[int, int] = {}
        self.arrays: dict[int, np.ndarray] = {}  # outputs that no file takes

    def prepare(self, processes: launch.Processes) -> dict[str, Any]:
        """Checks everything that can be checked alone; returns what all processes must share."""
        self.first = processes.number == 0
        check_checks(self.manifest, self.options.check,
                     "spmd build FILE.py --check, or spmd run FILE.py --check; the FILE.py beside "
                     "FILE.img is built again by itself, if it still gives this image")  # fmt: skip
        settings, mesh, ranks = patched_in(
            self.checked.image, self.settings, self.options.mesh, self.options.ranks
        )
        self.scalars = scalars_of(self.manifest, settings)
        check_names(self.manifest["inputs"], self.options.input, "input", "-i")
        check_names(self.manifest["outputs"], self.options.output, "output", "-o")
        self._open_inputs()
        self.sizes = sizes.bind_mesh(self.manifest, ranks, mesh, self.scalars, processes.count)
        setup = self.setup(processes)
        for array in self.manifest["inputs"]:
            if array["name"] in self.opened:
                self.opened[array["name"]].convert(array["dtype"])
                check_array(array, setup.shape(array), self.opened[array["name"]])
        self._plan_outputs(setup)
        files = {name: (file.path, file.version) for name, file in self.opened.items()}
        return {"files": files} | launch.mine(
            self.checked.digest,
            {
                "mesh": self.sizes, **{f"--set {k}": v for k, v in self.scalars.items()},
                "-i": sorted(self.opened), "-o": [file and file.given for file in self.files],
                "--algorithm": self.options.algorithm, "--barrier": self.options.barrier,
                "--transport": self.options.transport,
                "--time-limit": self.options.time_limit,
                "--timeline": bool(self.options.timeline), "--profile": self.options.profile,
            },  # fmt: skip
            setup.first,
            setup.count,
        )

    def compare_files(
        self, processes: launch.Processes, everyones: list[dict[str, tuple[str, tuple[Any, ...]]]]
    ) -> None:
        """All processes were given the same arrays: the same files, or others of equal elements."""
        other = [
            name for name in self.opened
            if any(files[name][1] != everyones[0][name][1] for files in everyones)
        ]  # fmt: skip
        if not other:
            return
        digests = processes.meet(lambda: {name: self.opened[name].digest() for name in other})
        for name in other:
            odd = [k for k, theirs in enumerate(digests) if theirs[name] != digests[0][name]]
            if odd:
                one, holder = len(odd) == 1, "process" if self.options.ranks else "rank"
                processes.refuse(AgreementError(
                    f"ranks of one job were given different arrays for input {name}: "
                    f"{holder}{'' if one else 's'} {launch.listed(odd)} differ{'s' if one else ''}",
                    expected=f"the elements of {everyones[0][name][0]} ({holder} 0)",
                    found=f"others in {everyones[odd[0]][name][0]} ({holder} {odd[0]})",
                    remedy="give every rank the same file, or a copy of it",
                ))  # fmt: skip

    def _open_inputs(self) -> None:
        options = self.options
        if options.input or options.input_all:
            from spmd.files.inputs import open_inputs

            known = [array["name"] for array in self.manifest["inputs"]]
            self.opened = open_inputs(options.input, options.input_all, known)
        check_given(self.manifest, self.opened)

    def _plan_outputs(self, setup: Setup) -> None:
        outputs, options = self.manifest["outputs"], self.options
        if options.timeline or options.output or options.output_all:
            from spmd.files.outputs import check_apart, open_outputs

            check_apart(options)
        if options.timeline:
            from spmd import timeline

            timeline.check(options.timeline)
        self.files = [None] * len(outputs)
        if options.output or options.output_all:
            rows = [(array["name"], array["dtype"], setup.shape(array)) for array in outputs]
            self.files = open_outputs(options.output, options.output_all, rows)
            for file in self.files:
                if file is not None:
                    file.check()

    def setup(self, processes: launch.Processes, hosts: launch.Hosts | None = None) -> Setup:
        return Setup(
            self.manifest, processes, self.sizes, self.scalars, self.options.threads, hosts,
            self.options.algorithm, self.options.barrier,
        )

    def compute(self, job: Job) -> list[tuple[str, int]]:
        """Reads the inputs and runs; process 0 then makes room for every output."""
        try:
            for name, file in self.opened.items():
                if file.is_made:
                    here = job.setup.hosts.here
                    file.reserve(*_span(job, name, file), len(here), job.host_bytes())
                how = file.dtype, file.shape, file.strides, file.swapped, file.start
                with Global(file.buffer, *how) as given:
                    job.put(name, given, file=file.path)
                file.close()
        except MemoryError:
            job.abort(69, "out of memory")
            raise EnvironmentFault(
                f"input {name}: not enough memory to read {file.path}", remedy="more processes"
            ) from None
        except BaseException as error:
            job.abort(report.exit_code(error), str(error))
            raise
        if self.first and sys.stderr.isatty():
            from codegen.progress import at
            from spmd.progress import shown

            with shown():
                job.run(at)
        else:
            job.run()
        return [self._room(job, k) for k in range(len(self.files))] if self.first else []

    def say_checks(self, job: Job) -> None:
        """What is checked; from here on it is measured what that costs."""
        from spmd import timeline

        print(f"spmd: checks on: {report.checks_text(self.manifest)}", file=sys.stderr)
        if not self.options.timeline and not self.options.profile:
            timeline.keep(job, False)

    def say_cost(self, job: Job) -> None:
        from spmd import timeline

        checks, whole = timeline.cost_of_checks(job)
        print(f"spmd: all checks held; they took about {checks / max(whole, 1e-9):.0%} of "
              f"{timeline.time_text(whole)}", file=sys.stderr)  # fmt: skip

    def _room(self, job: Job, number: int) -> tuple[str, int]:
        """Where output `number` goes: a path that every process can open, and its first byte."""
        output = self.manifest["outputs"][number]
        file = self.files[number]
        if file is not None:
            return file.create(job.setup.hosts.count > 1), file.starts[output["name"]]
        size = report.output_bytes(output["dtype"], job.setup.shape(output))
        if job.setup.hosts.count > 1 or size > available_memory() // 2:
            return "", 0
        fd = os.memfd_create(output["name"], os.MFD_CLOEXEC)
        os.ftruncate(fd, max(1, size))
        self.rooms[number] = fd
        return f"/proc/{os.getpid()}/fd/{fd}", 0

    def collect(self, job: Job, parts: list[tuple[str, int]]) -> None:
        """Copies the hosted ranks' parts of every output to where it goes."""
        for number, (path, start) in enumerate(parts):
            if not path:
                continue
            output = self.manifest["outputs"][number]
            dtype, shape = output["dtype"], job.setup.shape(output)
            if job.setup.hosts.count > 1:
                from spmd import parts as across

                across.store(job, number, path, start)
                continue
            view = mapped(path)
            strides = contiguous_strides(shape, SIZES[dtype])
            with Global(view, dtype, shape, strides, start=start) as into:
                job.get(number, into)
            if self.first and self.files[number] is None:
                self.arrays[number] = report.as_array(view, 0, dtype, shape)
            else:
                view.close()
        self.shapes = [job.setup.shape(output) for output in self.manifest["outputs"]]

    def gather(self, job: Job) -> None:
        """Brings to process 0 what other hosts hold of the outputs that no file takes."""
        hosts = job.setup.hosts
        if hosts.count == 1:
            return
        from spmd import parts

        for number, output in enumerate(self.manifest["outputs"]):
            size = report.output_bytes(output["dtype"], self.shapes[number])
            if self.files[number] is not None or size > parts.MOST_GATHERED:
                continue
            mine = parts.hosted_parts(job, number)
            dtype = report.numpy_dtype(output["dtype"])
            array = parts.gather(job.processes.comm, mine, self.shapes[number], dtype)
            if array is not None:
                self.arrays[number] = array

    def finish(self) -> None:
        """Process 0 names the files and prints the outputs that no file takes."""
        if not self.first:
            return
        for number, output in enumerate(self.manifest["outputs"]):
            file = self.files[number]
            name, dtype, shape = output["name"], output["dtype"], self.shapes[number]
            if file is not None:
                if file.part:  # the first of its outputs: all of them are whole
                    file.commit()
                extents = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
                print(f"{name}: {dtype} ({extents}) in {file.given}", flush=True)
                if how := file.reading(name, dtype):
                    print(f"spmd: output {name} is {dtype}: read it by {how}", file=sys.stderr)
            elif number in self.arrays:
                print(report.output_text(name, dtype, self.arrays[number]), flush=True)
            else:
                print(f"{name}: {dtype} {shape} too large to summarise; use -o {name}=FILE.npy")

    def report_times(self, job: Job, times: list[Rank], document: TextIO | None) -> None:
        """Process 0 writes the timeline and prints the profile, as JSON into the document."""
        from spmd import timeline

        if self.options.timeline:
            print(timeline.write(self.options.timeline, job, times), flush=True)
        if self.options.profile:
            rows = timeline.profile(job, times)
            if document:
                import json

                print(json.dumps(rows), file=document, flush=True)
            else:
                print(timeline.profile_text(job.setup.ranks, rows), flush=True)

    def discard(self) -> None:
        """Removes unfinished files; does nothing after `finish`."""
        for file in self.files:
            if file is not None:
                file.discard()


def _span(job: Job, name: str, file: Input) -> tuple[int, int]:
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

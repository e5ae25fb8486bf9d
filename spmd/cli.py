"""The command line: what was asked for, who does it, and the exit code.

In: arguments. Out: an exit code of FAULTS.md; one message on standard error when it is not 0.
Always holds: nothing that only one command needs is imported for another.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from errno import ENOSPC

from codegen.checks import CHECKS, USUAL, checks_of
from codegen.errors import AgreementError, UsageError
from spmd import report
from spmd.launch import processes as launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


COMMAND = "spmd"


class Terminated(BaseException):
    """SIGTERM: leave as promptly as for an interrupt."""

    exit_code = 143


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Of fixed width: asking the terminal imports every compression module Python has."""
    return argparse.HelpFormatter(prog, max_help_position=32, width=96)


class Parser(argparse.ArgumentParser):
    """Raises instead of printing: under mpirun one process speaks for all."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, **options)
        self.set_defaults(parser=self)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")

    def print_help(self, file: Any = None) -> None:
        if launch.launcher()[0] == 0:
            super().print_help(file)


def _pair(text: str) -> tuple[str, str]:
    """name=value."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _file(text: str) -> tuple[str, str]:
    """name=path; a file of many arrays may stand alone: its name is then ""."""
    from spmd.files.inputs import ARCHIVES

    name, equals, path = text.partition("=")
    if (not equals or "/" in name) and text.endswith(ARCHIVES):
        return "", text
    if not equals or not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE, FILE.npz or FILE.safetensors")
    return name, path


def _mesh(text: str) -> dict[str, int]:
    """x=4,y=4."""
    sizes = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        if not equals or not _is_number(size) or not name or name in sizes:
            raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,AXIS=SIZE")
        sizes[name] = int(size)
    return sizes


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 4000


def _count(text: str) -> int:
    if not _is_number(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _index(text: str) -> int:
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an index from 0")
    return int(text)


def _range(text: str) -> range:
    """4, or 1-64."""
    low, dash, high = text.partition("-")
    if not _is_number(low) or (dash and not _is_number(high)):
        raise argparse.ArgumentTypeError(f"{text!r} is not N or N-M")
    first, last = int(low), int(high or low)
    if not 1 <= first <= last < first + 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of at most 4096 from 1")
    return range(first, last + 1)


def _sizes(text: str) -> tuple[int, int]:
    """Bytes: 8-16m."""
    import re

    units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    found = re.fullmatch(r"(\d{1,12})([kmg]?)(?:-(\d{1,12})([kmg]?))?", text.lower())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of sizes such as 8-16m")
    low, low_unit, high, high_unit = found.groups()
    least = max(1, int(low) * units[low_unit])
    most = int(high) * units[high_unit] if high else least
    if most < least:
        raise argparse.ArgumentTypeError(f"{text!r}: the second size must be the larger one")
    return least, most


def _factor(text: str) -> int:
    if not _is_number(text) or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 2")
    return int(text)


def _peers(text: str) -> list[str]:
    """What to measure beside: mpi, floor, mpi,floor."""
    names = text.split(",")
    unknown = [name for name in names if name not in ("mpi", "floor")]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is neither mpi nor floor")
    return names


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < launch.MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


class _Version(argparse.Action):
    """Prints what a report of a defect should begin with: once, also under mpirun."""

    def __call__(self, top: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from codegen.image.manifest import FORMAT, INTERFACE
        from spmd import __version__

        if launch.launcher()[0] == 0:
            python = ".".join(map(str, sys.version_info[:3]))
            print(f"spmd {__version__}, image format {FORMAT}, engine interface {INTERFACE}, "
                  f"Python {python}")  # fmt: skip
        top.exit()


def _called() -> str:
    """As what the user has started us."""
    return COMMAND if os.path.basename(sys.argv[0]) == COMMAND else f"python -m {COMMAND}"


def parser(command: str = "", prog: str = "") -> Parser:
    """The options of one command only, where it is known: each costs every rank some time."""
    prog = prog or _called()
    top = Parser(
        prog=prog, description="Write NumPy. Ship one image. Run it on any number of ranks.",
        epilog=f"{prog} COMMAND --help says what a command takes.",
    )  # fmt: skip
    top.add_argument("--version", action=_Version, nargs=0, help="say which version this is")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=prog)
    for name, (what, add) in _OPTIONS.items():
        if command in (name, "") or command not in _OPTIONS:
            add(commands.add_parser(name, help=what))
    return top


def _build_options(build: Parser) -> None:
    build.add_argument("program", metavar="FILE[:NAME]", help="a Python file with a program in it")
    build.add_argument("-o", "--output", metavar="IMAGE",
                       help="where the image goes; default: FILE.img")  # fmt: skip
    _add_set(build, "a parameter of the program")
    build.add_argument("--check", metavar="CHECKS", type=checks_of, default=(),
                       help="what the image checks whenever it runs: see run --help")  # fmt: skip
    build.add_argument("--target", default="native",
                       help="the instruction set; default: that of this machine")  # fmt: skip
    _add_no_cache(build)


def _run_options(run: Parser) -> None:
    run.add_argument(
        "image", metavar="IMAGE|FILE.py[:NAME]", help="an image, or a program, which is built first"
    )
    files = {
        ("-i", "--input"): "a .npy, .npz or .safetensors file for an input, also FILE.npz:MEMBER; "
        "FILE.npz alone: for all inputs it has; each process reads its own part",
        ("-o", "--output"): "a file for an output; several may share one .npz or .safetensors; "
        "FILE.npz alone: for all; those without one are printed",
    }
    for names, text in files.items():
        run.add_argument(*names, metavar="[NAME=]FILE", type=_file, action="append", default=[],
                         help=text)  # fmt: skip
    _add_set(run, "a run-time scalar; for a FILE.py also a parameter")
    _add_mesh(run)
    _add_how(run)
    run.add_argument("--timeline", metavar="FILE.json",
                     help="what every rank did when, for ui.perfetto.dev")  # fmt: skip
    run.add_argument("--profile", action="store_true",
                     help="a table: time, waiting, bytes and source line of every operation")
    run.add_argument("--json", action="store_true",
                     help="with --profile: as JSON; results and text go to standard error")
    run.add_argument(
        "--check", metavar="CHECKS", type=checks_of, default=(),
        help="end with the line and the rank where something is wrong: bounds (of run-time "
        "indices), nan (or an infinity made), equal (what all ranks hold), overflow (of integers), "
        "or all; --check alone: bounds,nan,equal. Build an image with the same --check",
    )  # fmt: skip
    run.add_argument("--eager", action="store_true", help="run FILE.py as plain NumPy")
    _add_no_cache(run)


def _show_options(show: Parser) -> None:
    show.add_argument("image", metavar="IMAGE", help="nothing of it is executed")
    for what, text in _PARTS.items():
        show.add_argument(f"--{what}", dest="what", action="append_const", const=what, help=text)
    show.add_argument("--ranks", metavar="N", type=_count,
                      help="with --layouts: bytes for so many ranks")  # fmt: skip
    _add_mesh(show)
    show.add_argument("--json", action="store_true", help="the same, for programs to read")


def _doctor_options(doctor: Parser) -> None:
    doctor.add_argument("--ranks", metavar="N", type=_count,
                        help="how many ranks you want to start")  # fmt: skip
    doctor.add_argument("--calibrate", action="store_true",
                        help="measure at which sizes data should travel in another way, and keep "
                        "it for this machine: up to 20 seconds")  # fmt: skip
    doctor.add_argument("--json", action="store_true", help="the same, for programs to read")


def _bench_options(bench: Parser) -> None:
    bench.add_argument("collective", metavar="COLLECTIVE", nargs="*",
                       help="default: all of them; floor [NAME …]: what this machine allows, by "
                       "minimal C, and what that is made of")  # fmt: skip
    bench.add_argument("--sizes", metavar="N-M", type=_sizes, default=(8, 16 << 20),
                       help="bytes of a rank's operand, also 4k, 16m; default: 8-16m")
    bench.add_argument("--step", metavar="K", type=_factor, default=8,
                       help="the factor from one size to the next; default: 8")  # fmt: skip
    bench.add_argument("--vs", metavar="mpi|floor", type=_peers, action="extend", default=[],
                       help="measure MPI's own, or minimal C, in turn with ours; mpi,floor: both")
    bench.add_argument("--rounds", metavar="N", type=_count, default=5,
                       help="how often all is measured; default: 5")
    _add_how(bench)
    bench.add_argument("--json", action="store_true", help="the same, for programs to read")
    bench.add_argument("--plot", metavar="FILE.png", help="latency over size, as a picture")


def _patch_options(patch: Parser) -> None:
    patch.add_argument("image", metavar="IMAGE", help="or a local program of it")
    patch.add_argument("--index", metavar="I", type=_index, help="the index of one rank")
    patch.add_argument("--ranks", metavar="N", type=_count, help="how many ranks the job has")
    patch.add_argument("--all", metavar="N", type=_count, help="all local programs of N ranks")
    patch.add_argument("-o", "--output", metavar="FILE",
                       help="with --all a folder; default: IMAGE.I-of-N.img beside it")  # fmt: skip
    _add_mesh(patch)
    _add_set(patch, "a run-time scalar")


def _verify_options(verify: Parser) -> None:
    verify.add_argument("image", metavar="IMAGE", nargs="+")
    verify.add_argument("--ranks", metavar="N|N-M", type=_range, default=None,
                        help="numbers of ranks to evaluate the plan for; default: 1-64")
    _add_mesh(verify)
    _add_set(verify, "a run-time scalar")
    verify.add_argument("--execute", action="store_true",
                        help="compare the machine code's plan functions too, in a child process")
    verify.add_argument("--json", action="store_true", help="the same, for programs to read")


def _completion_options(completion: Parser) -> None:
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="for bash, write it to "
                            "~/.local/share/bash-completion/completions/spmd")  # fmt: skip


_PARTS = {
    "manifest": "arrays, scalars, conditions, buffers (what is shown without options)",
    "sizes": "bytes of the image, and of a rank's memory on 1 to 1,000,000 ranks",
    "layouts": "how every array lies and why; what ranks exchange, how much, for which line",
    "graph": "the program as it was traced: global arrays",
    "program": "one rank's view: extents in the index and the axis sizes",
    "plan": "compute phases and exchanges over numbered buffers",
    "c": "the generated C",
    "asm": "the machine code (needs objdump)",
}

_OPTIONS = {
    "build": ("compile a program into an image", _build_options),
    "run": ("run an image, or a program", _run_options),
    "show": ("look into an image, running nothing of it", _show_options),
    "patch": ("write the image of one rank, or of all, as files", _patch_options),
    "verify": ("check an image and its plan, running nothing of it", _verify_options),
    "bench": ("time collectives, also beside MPI's own", _bench_options),
    "doctor": ("say what is installed, what is missing and what to do", _doctor_options),
    "completion": ("print a script that completes what you type in a shell", _completion_options),
}

_NAMES = {"bench": "collective", "verify": "image"}  # commands that take any number of them


def _add_mesh(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--mesh", metavar="AXIS=SIZE,…", type=_mesh, action="append", default=[],
        help="sizes of mesh axes; default: as equal as possible"
    )  # fmt: skip


def _add_how(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ranks", metavar="N", type=_count,
                         help="how many ranks in all; default: one for every process")
    command.add_argument("--threads", metavar="W", type=_count, help="threads of each process")
    command.add_argument(
        "--algorithm", choices=("auto", "flat", "blocks", "ring"), default="auto",
        help="how reductions work; ring, of long ones: fragments travel in both directions",
    )  # fmt: skip
    command.add_argument(
        "--barrier", choices=("auto", "strict"), default="auto",
        help="strict: every exchange begins and ends with a barrier of its members; "
        "auto: ranks wait only for those whose data they read, or who read theirs",
    )  # fmt: skip
    command.add_argument(
        "--transport", choices=launch.TRANSPORTS, default="auto",
        help="auto: shared memory inside a host, MPI between hosts; shm, mpi: all by one of them",
    )  # fmt: skip
    command.add_argument(
        "--time-limit", metavar="SECONDS", type=_seconds, default=launch.TIME_LIMIT,
        help="a process silent for longer is lost; 0: wait for ever; default: 5",
    )  # fmt: skip


def _add_no_cache(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-cache", action="store_true",
                         help="build anew what was built before, and keep nothing")  # fmt: skip


def _add_set(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--set", metavar="NAME=VALUE", type=_pair, action="append", default=[], help=what
    )


def _check_alone(arguments: list[str]) -> list[str]:
    """`--check` means the usual ones, `--check bounds,nan` these: what follows may be a file."""
    out: list[str] = []
    for word in arguments:
        if out[-1:] == ["--check"]:
            names = set(word.split(","))
            out[-1] = f"--check={word if names <= {*CHECKS, 'all'} else ','.join(USUAL)}"
            if names <= {*CHECKS, "all"}:
                continue
        out.append(word)
    return [f"--check={','.join(USUAL)}" if word == "--check" else word for word in out]


def _meant(word: str, command: Parser) -> str:
    """The option that is like an unknown one; "" where there is none."""
    from difflib import get_close_matches

    near = get_close_matches(word.partition("=")[0], command._option_string_actions, 1, 0.75)
    return f"\n  try:      {near[0]}, if that is what you mean" if near else ""


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options; those of NAME=VALUE as dicts. Raises UsageError, before MPI is started."""
    if not arguments:
        raise UsageError(f"which command?\n{parser().format_help().rstrip()}")
    arguments = _check_alone(arguments)
    options, unknown = parser(arguments[0] if arguments else "").parse_known_args(arguments)
    if options.command in _NAMES and not any(word.startswith("-") for word in unknown):
        getattr(options, _NAMES[options.command]).extend(unknown)  # names that come after options
        unknown = []
    options.given = {word.partition("=")[0] for word in arguments if word.startswith("-")}
    if unknown:
        options.parser.error(f"unknown: {' '.join(unknown)}{_meant(unknown[0], options.parser)}")
    if isinstance(getattr(options, "mesh", None), list):
        options.mesh = [pair for given in options.mesh for pair in given.items()]
    for option in ("set", "input", "output", "mesh"):
        pairs = getattr(options, option, None)
        if isinstance(pairs, list):
            setattr(options, f"{option}_all", [file for name, file in pairs if not name])
            pairs = [(name, value) for name, value in pairs if name]
            setattr(options, option, dict(pairs))
            twice = [name for k, (name, _) in enumerate(pairs) if name in dict(pairs[:k])]
            if twice:
                raise UsageError(f"--{option} {twice[0]} is given twice")
    if getattr(options, "eager", False) and launch.launcher()[1] > 1:
        raise UsageError("--eager runs in one process", remedy="leave mpirun out")
    return options


def main(arguments: list[str]) -> int:
    """Does what the arguments say; returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("stdout", "stderr"):  # a shell may have closed them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif hasattr(getattr(sys, name), "reconfigure"):  # text that it has no letters for
            getattr(sys, name).reconfigure(errors="backslashreplace")
    processes = launch.Processes()
    try:
        if _is_one_of_several(arguments):
            # MPI may wait for a process that never comes, and Python's handlers with it: a signal
            # ends us as it ends any program. A process with wrong arguments must come, to say so.
            _plain_signals()
            options, wrong = _attempt(arguments)
            limit = options.time_limit if options else launch.TIME_LIMIT
            processes = launch.find(limit)
            options = _agreed(options, wrong, processes)
            if options is None:
                return 0
        else:
            options = parsed(arguments)
            signal.signal(signal.SIGTERM, _terminate)
        code = _commands()[options.command](options, processes)
        sys.stdout.flush()
        processes.finish()
        return code
    except launch.Elsewhere as error:
        processes.finish()
        return error.exit_code
    except (KeyboardInterrupt, Terminated) as error:
        _leave_now(processes, report.exit_code(error))
    except BrokenPipeError:
        # Whoever read our output has gone: nothing to say, and nothing left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _leave_now(processes, 74)
    except Exception as error:
        _name_output(error)
        met = processes.met is error
        if met or processes.comm is not None or launch.launcher()[0] == 0:
            report.print_error(error)
        code = report.exit_code(error)
        if met:
            processes.finish()
        else:
            processes.abort(code)
        return code


def _name_output(error: Exception) -> None:
    """Says of an error of standard output, which has no name, what it is of."""
    if isinstance(error, OSError) and error.errno == ENOSPC and error.filename is None:
        try:
            os.write(1, b"\n")
        except OSError:
            error.filename = "standard output"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _attempt(arguments: list[str]) -> tuple[argparse.Namespace | None, Exception | None]:
    """The options, or what is wrong with them; neither where only help was wanted."""
    try:
        return parsed(arguments), None
    except SystemExit:
        return None, None
    except Exception as error:
        return None, error


def _agreed(
    options: argparse.Namespace | None, wrong: Exception | None, processes: launch.Processes
) -> argparse.Namespace | None:
    """The options, where every process has some; None where help was all that was wanted."""

    def come() -> tuple[str, tuple[int, object]]:
        if wrong:
            raise wrong
        return options.command if options else "--help", (os.getpid(), launch.place())

    met = processes.meet(come)
    processes.have_come()
    commands = [command for command, _ in met]
    odd = [k for k, command in enumerate(commands) if command != commands[0]]
    if odd:
        processes.refuse(AgreementError(
            f"the processes of one job were given different commands: process {launch.listed(odd)} "
            f"differ{'s' if len(odd) == 1 else ''}", expected=f"{commands[0]} (process 0)",
            found=f"{commands[odd[0]]} (process {odd[0]})", remedy="give all the same command",
        ))  # fmt: skip
    if options:
        processes.be_patient([where for _, where in met], options.time_limit)
    return options


def _is_one_of_several(arguments: list[str]) -> bool:
    together = arguments[:1] in (["run"], ["bench"]) and "--eager" not in arguments
    return together and launch.launcher()[1] > 1


def _plain_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _terminate(*_: object) -> NoReturn:
    raise Terminated


def _leave_now(processes: launch.Processes, code: int) -> NoReturn:
    """Ends without waiting for threads or other processes; memory without a name goes with us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sys.stdout.flush()
    except OSError:
        pass
    processes.abort(code)
    os._exit(code)


def _commands() -> dict[str, Any]:
    return {"build": _build, "run": _run, "show": _show, "patch": _patch, "verify": _verify,
            "bench": _bench, "doctor": _doctor, "completion": _completion}  # fmt: skip


def _build(options: argparse.Namespace, _: launch.Processes) -> int:
    from spmd import source

    source.build_file(options)
    return 0


def _run(options: argparse.Namespace, processes: launch.Processes) -> int:
    from spmd.launch import run

    return run.run(options, processes)


def _show(options: argparse.Namespace, _: launch.Processes) -> int:
    from spmd import show

    what = options.what or ["manifest"]
    if (options.ranks or options.mesh) and "layouts" not in what:
        raise UsageError("--ranks and --mesh are for the bytes that --layouts shows",
                         remedy="show IMAGE --layouts --ranks N")  # fmt: skip
    return show.main(options.image, what, options.json, options.ranks, options.mesh)


def _patch(options: argparse.Namespace, _: launch.Processes) -> int:
    from spmd.launch import patch

    return patch.main(options)


def _verify(options: argparse.Namespace, _: launch.Processes) -> int:
    from spmd.verify import images as verify

    return verify.main(options)


def _bench(options: argparse.Namespace, processes: launch.Processes) -> int:
    from spmd.bench import command as bench

    return bench.main(options, processes)


def _doctor(options: argparse.Namespace, _: launch.Processes) -> int:
    from spmd import doctor

    return doctor.main(options.ranks, options.json, options.calibrate)


def _completion(options: argparse.Namespace, _: launch.Processes) -> int:
    from spmd import completion

    print(completion.script(options.shell, parser(prog=COMMAND)))
    return 0

"""The command line: what was asked for, who does it, and the exit code.

In: arguments. Out: an exit code of FAULTS.md; one message on standard error when it is not 0.
Always holds: nothing that only one command needs is imported for another.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from errno import ENOSPC
from importlib import import_module

from codegen.checks.names import CHECKS, USUAL, checks_of
from codegen.errors import UsageError
from codegen.suggest import meant
from spmd import __version__, interrupts, report, texts
from spmd.launch.launchers import launcher
from spmd.launch.options import OPTIONS, TIME_LIMIT, flag
from spmd.launch.processes import Elsewhere, Processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn


COMMAND = "spmd"


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return a help formatter of fixed width: asking the terminal imports every compression module
    Python has."""
    return argparse.HelpFormatter(prog, max_help_position=30, width=80)


class Parser(argparse.ArgumentParser):
    """Raises instead of printing: under mpirun one process speaks for all."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, **options)
        self.set_defaults(parser=self)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an argument. Where its `type` raises ValueError for a word, the text of that error is
        reported together with the option."""
        if read := options.get("type"):
            options["type"] = lambda word: _read(read, word)
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += _try(choice[1], re.findall(r"[\w-]+", choice[2]))
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")

    def print_help(self, file: Any = None) -> None:
        if launcher()[0] == 0:
            print(self.format_help(), end="", file=file, flush=True)  # argparse hides errors


def _read(read: Callable[[str], Any], word: str) -> Any:
    try:
        return read(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Version(argparse.Action):
    """Prints what a report of a defect should begin with: once, also under mpirun."""

    def __call__(self, top: argparse.ArgumentParser, *_: Any) -> NoReturn:
        if launcher()[0] == 0:
            reader = _loaded("codegen.image.manifest")
            python = ".".join(map(str, sys.version_info[:3]))
            print(f"spmd {__version__}, image format {reader.FORMAT}, engine interface "
                  f"{reader.INTERFACE}, Python {python}", flush=True)
        top.exit()


def _loaded(target: str) -> Any:
    """Return a module, or module:name, that only some commands need: no other rank pays for it."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def _called() -> str:
    """Return the name by which the user has started us."""
    return COMMAND if os.path.basename(sys.argv[0]) == COMMAND else f"python -m {COMMAND}"


def parser(command: str = "", prog: str = "") -> Parser:
    """Return the options of one command only, where it is known: each costs every rank some
    time."""
    prog = prog or _called()
    top = Parser(
        prog=prog, description="Write NumPy. Ship one image. Run it on any number of ranks.",
        epilog=f"{prog} COMMAND --help says what a command takes.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="say which version this is")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=prog)
    for name, (summary, add, _) in COMMANDS.items():
        if command in (name, "") or command not in COMMANDS:
            add(commands.add_parser(name, help=summary))
    return top


def _build_options(build: Parser) -> None:
    build.add_argument("program", metavar="FILE[:NAME]", help="a Python file with a program in it")
    build.add_argument("-o", "--output", metavar="IMAGE",
                       help="where the image goes; default: FILE.img")
    _add_set(build, "a parameter of the program")
    build.add_argument("--check", metavar="CHECKS", type=checks_of, default=(),
                       help="what the image checks whenever it runs: see run --help")
    build.add_argument("--checkpoint", action="store_true",
                       help="for run --checkpoint where FILE.py is not beside the image")
    build.add_argument("--target", default="native",
                       help="the instruction set; default: that of this machine")
    _add_without(build)
    _add_no_cache(build)


def _run_options(run: Parser) -> None:
    run.add_argument(
        "image", metavar="IMAGE|FILE.py[:NAME]", help="an image, or a program, which is built first"
    )
    files = {
        ("-i", "--input"): "a .npy, .npz, .safetensors, .csv or .parquet file for an input; also "
        "FILE.npz:MEMBER, t.csv:COLUMN; FILE.npz or t.csv alone: for all inputs it has; for a tree "
        "of inputs: -i w=FILE.safetensors; each process reads its own part",
        ("-o", "--output"): "a file for an output; several may share one .npz, .safetensors, .csv "
        "or .parquet; FILE.npz alone: for all; those without one are printed; for frames of "
        "spmd.save: 'u=frames/{}.npy' or u=FILE.zarr",
    }
    for names, text in files.items():
        run.add_argument(*names, metavar="[NAME=]FILE", type=texts.file, action="append",
                         default=[], help=text)
    run.add_argument("--only", metavar="NAME,…", type=texts.names,
                     help="outputs that are asked for; others are left out, and of a selectable "
                     "program what only they need does not run")
    _add_set(run, "a run-time scalar; for a FILE.py also a parameter")
    run.add_argument("--entry", metavar="NAME", help="of a class: the entry that runs; names of "
                     "its inputs, outputs and scalars stand as in the method")
    row = OPTIONS["state"]
    run.add_argument("--state", metavar=row.metavar, type=row.read, help=row.help)
    run.add_argument("--save-state", metavar="FILE.safetensors",
                     help="where the state goes when the entry has run")
    _add_mesh(run)
    _add_how(run)
    for name in ("checkpoint", "every", "resume"):
        row = OPTIONS[name]
        run.add_argument(flag(name), metavar=row.metavar, type=row.read, default=row.default,
                         help=row.help)
    row = OPTIONS["feed"]
    run.add_argument("--feed", metavar=row.metavar, type=texts.feed, action="append", default=[],
                     help="where batches of a feed come from: the file of a pipeline, or "
                     "PIPELINE@ADDRESS of one that is served")
    run.add_argument("--timeline", metavar="FILE.json",
                     help="what every rank did when, for ui.perfetto.dev")
    run.add_argument("--profile", action="store_true",
                     help="a table: time, waiting, bytes and source line of every operation")
    run.add_argument("--json", action="store_true",
                     help="with --profile: as JSON; results and text go to standard error")
    run.add_argument("--check", metavar="CHECKS", type=checks_of, default=(),
                     help=OPTIONS["check"].help + "; --check alone: bounds,nan,equal. Build an "
                     "image with the same --check")
    run.add_argument("--eager", action="store_true", help="run FILE.py as plain NumPy")
    _add_no_cache(run)


def _add_without(command: Parser) -> None:
    command.add_argument("--without", metavar="PASS,…", type=texts.names, default=(),
                         help="optimisations to leave out, as show FILE.py --passes names them")


def _show_options(show: Parser) -> None:
    show.add_argument("image", metavar="IMAGE|FILE.py[:NAME]",
                      help="nothing of an image is executed; a program is built first")
    for part, text in _PARTS.items():
        show.add_argument(f"--{part}", dest="parts", action="append_const", const=part, help=text)
    show.add_argument("--ranks", metavar="N", type=texts.count,
                      help="with --layouts: bytes for so many ranks; with --schedule: who does "
                      "what then")
    _add_mesh(show)
    _add_set(show, "a parameter of a FILE.py")
    _add_without(show)
    _add_no_cache(show)
    show.add_argument("-o", "--output", metavar="FILE.svg",
                      help="with --graph or --schedule: as a picture, which browsers open")
    show.add_argument("--json", action="store_true", help="the same, for programs to read")


def _doctor_options(doctor: Parser) -> None:
    doctor.add_argument("--ranks", metavar="N", type=texts.count,
                        help="how many ranks you want to start")
    doctor.add_argument("--calibrate", action="store_true",
                        help="measure at which sizes data should travel in another way, and keep "
                        "it for this machine: up to 20 seconds")
    doctor.add_argument("--json", action="store_true", help="the same, for programs to read")


def _bench_options(bench: Parser) -> None:
    bench.add_argument("collective", metavar="COLLECTIVE", nargs="*",
                       help="default: all of them; floor [NAME …]: what this machine allows, by "
                       "minimal C, and what that is made of")
    bench.add_argument("--sizes", metavar="N-M", type=texts.sizes, default=(8, 16 << 20),
                       help="bytes of a rank's operand, also 4k, 16m; default: 8-16m")
    bench.add_argument("--step", metavar="K", type=texts.factor, default=8,
                       help="the factor from one size to the next; default: 8")
    bench.add_argument("--vs", metavar="mpi|floor", type=texts.rivals, action="extend", default=[],
                       help="measure MPI's own, or minimal C, in turn with ours; mpi,floor: both")
    bench.add_argument("--rounds", metavar="N", type=texts.count, default=5,
                       help="how often all is measured; default: 5")
    _add_how(bench)
    bench.add_argument("--json", action="store_true", help="the same, for programs to read")
    bench.add_argument("--plot", metavar="FILE.png", help="latency over size, as a picture")


def _patch_options(patch: Parser) -> None:
    patch.add_argument("image", metavar="IMAGE", help="or a local program of it")
    patch.add_argument("--index", metavar="I", type=texts.index, help="the index of one rank")
    patch.add_argument("--ranks", metavar="N", type=texts.count, help="how many ranks the job has")
    patch.add_argument("--all", metavar="N", type=texts.count, help="all local programs of N ranks")
    patch.add_argument("-o", "--output", metavar="FILE",
                       help="with --all a folder; default: IMAGE.I-of-N.img beside it")
    _add_mesh(patch)
    _add_set(patch, "a run-time scalar")


def _verify_options(verify: Parser) -> None:
    verify.add_argument("image", metavar="IMAGE|FILE.py[:NAME]", nargs="+",
                        help="nothing of an image is executed; a program is built first")
    verify.add_argument("--ranks", metavar="N|N-M", type=texts.counts, default=None,
                        help="numbers of ranks to evaluate the plan for; default: 1-64")
    _add_mesh(verify)
    _add_set(verify, "a run-time scalar; for a FILE.py also a parameter")
    _add_no_cache(verify)
    verify.add_argument("--execute", action="store_true",
                        help="compare the machine code's plan functions too, in a child process")
    verify.add_argument("--json", action="store_true", help="the same, for programs to read")


def _serve_options(serve: Parser) -> None:
    serve.add_argument("image", metavar="IMAGE|FILE.py[:NAME]", nargs="?",
                       help="an image, or a program, which is built first")
    serve.add_argument("--replicas", metavar="tcp://HOST:PORT",
                       help="where replicas may join, which make calls too; port *: one that is "
                       "free, which is printed")
    serve.add_argument("--join", metavar="tcp://HOST:PORT",
                       help="be a replica of the server that lets replicas join there; it hands "
                       "over the image; also under mpirun")
    serve.add_argument("--keys", metavar="FOLDER", default="",
                       help="of feed keys, for --replicas and --join; default: SPMD_FEED_KEYS, or "
                       "those of this user on this machine")
    serve.add_argument("--host", metavar="ADDRESS", default="127.0.0.1",
                       help="where it listens; default: 127.0.0.1; 0.0.0.0 for other machines")
    serve.add_argument("--port", metavar="PORT", type=texts.port, default=8000,
                       help="default: 8000; 0: one that is free, which is printed")
    serve.add_argument("--grpc-port", metavar="PORT", type=texts.port,
                       help="answer gRPC too, at this port; 0: one that is free, which is printed")
    serve.add_argument("--allow", metavar="ENTRY", action="append", default=[],
                       help="an entry that changes state and may be called; load: requests may "
                       "load another image or state")
    serve.add_argument("--load-from", metavar="FOLDER", action="append", default=[],
                       help="a folder below which files of loads may be, beside the image's")
    serve.add_argument("--token-file", metavar="FILE",
                       help="a token in each line, of which every request needs one")
    serve.add_argument("--tls-cert", metavar="FILE.pem", help="the certificate, for HTTPS")
    serve.add_argument("--tls-key", metavar="FILE.pem", help="its key")
    serve.add_argument("--queue", metavar="N", type=texts.count, default=256,
                       help="requests that may wait; one more is refused; default: 256")
    serve.add_argument("--wait", metavar="TIME", type=texts.duration, default=0.0,
                       help="how long a request waits for others with which it is joined: 2ms, "
                       "500us; default: 0")
    serve.add_argument("--timeout", metavar="SECONDS", type=texts.seconds, default=60.0,
                       help="until a request is answered; it may ask for less; 0: no limit; "
                       "default: 60")
    serve.add_argument("--max-body", metavar="SIZE", type=texts.size, default=64 << 20,
                       help="bytes of a request, also 64m, 1g; default: 64m")
    row = OPTIONS["state"]
    serve.add_argument("--state", metavar=row.metavar, type=row.read, help=row.help)
    _add_set(serve, "a parameter of a FILE.py")
    _add_mesh(serve)
    _add_how(serve, least_ranks=0)
    _add_no_cache(serve)


def _completion_options(completion: Parser) -> None:
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="for bash, write it to "
                            "~/.local/share/bash-completion/completions/spmd")


def _feed_options(feed: Parser) -> None:
    _loaded("spmd.feed_options:add")(feed)


_PARTS = {
    "manifest": "arrays, scalars, conditions, buffers (what is shown without options)",
    "sizes": "bytes of the image, and of a rank's memory on 1 to 1,000,000 ranks",
    "layouts": "how every array lies and why; what ranks exchange, how much, for which line",
    "graph": "the program as it was traced: global arrays; what each operation waits for",
    "schedule": "of each pipeline: how layers are cut, and who does what at which tick",
    "program": "one rank's view: extents in the index and the axis sizes",
    "loops": "what each op computes: loop nests over values that lie in memory",
    "plan": "compute phases and exchanges over numbered buffers",
    "c": "the generated C",
    "asm": "the machine code (needs objdump)",
    "passes": "of a FILE.py, built afresh: what each pass changed, its estimates, its time",
}

# What a command does, its options, and who does it: module:function(asked, processes).
COMMANDS = {
    "build": ("compile a program into an image", _build_options, "spmd.source:build_file"),
    "run": ("run an image, or a program", _run_options, "spmd.launch.run:run"),
    "show": ("look into an image, running nothing of it", _show_options, "spmd.show:command"),
    "patch": ("write the image of one rank, or of all, as files", _patch_options,
              "spmd.launch.patch:command"),
    "verify": ("check an image and its plan, running nothing of it", _verify_options,
               "spmd.verify.images:command"),
    "bench": ("time collectives, also beside MPI's own", _bench_options,
              "spmd.bench.command:command"),
    "doctor": ("say what is installed, what is missing and what to do", _doctor_options,
               "spmd.doctor:command"),
    "feed": ("workers that prepare examples for ranks, and their scheduler", _feed_options,
             "spmd.feeding.starting.feed_commands:command"),
    "serve": ("answer requests for an image over HTTP", _serve_options,
              "spmd.serving.serve_command:command"),
    "completion": ("print a script that completes what you type in a shell", _completion_options,
                   "spmd.completion:command"),
}
EAGER = "spmd.eager_command:command"  # run --eager
REPLICA = "spmd.serving.replica_command:command"  # serve --join
TOGETHER = ("run", "bench")  # what several processes do together

_NAMES = {"bench": "collective", "verify": "image"}  # commands that take any number of them


def _add_mesh(command: argparse.ArgumentParser) -> None:
    row = OPTIONS["mesh"]
    command.add_argument("--mesh", metavar=row.metavar, type=row.read, action="append",
                         default=[], help=row.help)


def _add_how(command: argparse.ArgumentParser, least_ranks: int = 1) -> None:
    for name in ("ranks", "threads", "algorithm", "barrier", "transport", "time_limit"):
        row = OPTIONS[name]
        none = name == "ranks" and not least_ranks
        command.add_argument(flag(name), metavar=row.metavar or None,
                             type=texts.index if none else row.read,
                             choices=row.known or None, default=row.default,
                             help=row.help + "; 0, with --replicas: none" * none)


def _add_no_cache(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-cache", action="store_true",
                         help="build anew what was built before, and keep nothing")


def _add_set(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument(
        "--set", metavar="NAME=VALUE", type=texts.pair, action="append", default=[], help=help_text
    )


def _check_alone(arguments: list[str]) -> list[str]:
    """Return the arguments with `--check` as the usual checks, `--check bounds,nan` as these: what
    follows may be a file."""
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
    """Return the option that is like an unknown one; "" where there is none."""
    return _try(word.partition("=")[0], command._option_string_actions, 0.75)


def _try(word: str, known: Iterable[str], *least: float) -> str:
    """Return the line of an error that names what a misspelt word probably means, or ""."""
    near = meant(word, known, "{}", *least)
    return f"\n  try:      {near}" if near else ""


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options; those of NAME=VALUE as dicts. Raises UsageError, before MPI is
    started."""
    if not arguments:
        raise UsageError(f"which command?\n{parser().format_help().rstrip()}")
    arguments = _check_alone(arguments)
    options, unknown = parser(arguments[0] if arguments else "").parse_known_args(arguments)
    if options.command in _NAMES and not any(word.startswith("-") for word in unknown):
        getattr(options, _NAMES[options.command]).extend(unknown)  # names that come after options
        unknown = []
    options.flags = {word.partition("=")[0] for word in arguments if word.startswith("-")}
    if unknown:
        options.parser.error(f"unknown: {' '.join(unknown)}{_meant(unknown[0], options.parser)}")
    if isinstance(getattr(options, "mesh", None), list):
        options.mesh = [pair for sizes in options.mesh for pair in sizes.items()]
    for option in ("set", "input", "output", "mesh", "feed"):
        pairs = getattr(options, option, None)
        if isinstance(pairs, list):
            setattr(options, f"{option}_all", [file for name, file in pairs if not name])
            pairs = [(name, value) for name, value in pairs if name]
            setattr(options, option, dict(pairs))
            twice = [name for k, (name, _) in enumerate(pairs) if name in dict(pairs[:k])]
            if twice:
                raise UsageError(f"--{option} {twice[0]} is given twice")
    if getattr(options, "feed_all", None) is not None:
        options.feed = _feeds(options.feed, options.feed_all)
    if getattr(options, "eager", False) and launcher()[1] > 1:
        raise UsageError("--eager runs in one process", remedy="leave mpirun out")
    return options


def _feeds(named: dict[str, str], alone: list[str]) -> Any:
    """Return what --feed gives: for the only feed, or by names; None without it."""
    if len(alone) + bool(named) > 1:
        raise UsageError("several --feed, and one of them names no feed", found=", ".join(alone),
                         expected="--feed NAME=FILE.py for each feed")
    return alone[0] if alone else named or None


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit code."""
    for name in ("stdout", "stderr"):  # a shell may have closed them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif hasattr(getattr(sys, name), "reconfigure"):  # text that it has no letters for
            getattr(sys, name).reconfigure(errors="backslashreplace")
    processes = Processes()
    try:
        if several := _is_one_of_several(arguments):
            command_group = _loaded("spmd.launch.command_group")
            options, wrong = _attempt(arguments)
            limit = options.time_limit if options else TIME_LIMIT
            processes, start = command_group.join(limit)
            patience = limit if options else 0  # nobody looks after those who only want help
            command_group.agree(processes, start, lambda: _command_of(options, wrong), patience)
            if options is None:
                return 0
        else:
            options = parsed(arguments)
        target = COMMANDS[options.command][2]
        if getattr(options, "eager", False):
            target = EAGER
        elif getattr(options, "join", None):
            target = REPLICA
        run = _loaded(target)
        if not several:  # from here on: until then, a signal ends the process without Python
            interrupts.hear()
        code = int(run(options, processes))
        sys.stdout.flush()
        processes.finish()
        return code
    except Elsewhere as error:
        processes.finish()
        return error.exit_code
    except (KeyboardInterrupt, interrupts.Terminated) as error:
        _leave_now(processes, report.exit_code(error))
    except BrokenPipeError:
        # Whoever read our output has gone: nothing to say, and nothing left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _leave_now(processes, 74)
    except Exception as error:
        _name_output(error)
        met = processes.met is error
        if met or processes.comm is not None or launcher()[0] == 0:
            report.print_error(error)
        code = report.exit_code(error)
        if met:
            processes.finish()
        else:
            processes.abort(code)
        return code


def _name_output(error: Exception) -> None:
    """Say of an error of standard output, which has no name, what it is of."""
    if isinstance(error, OSError) and error.errno == ENOSPC and error.filename is None:
        try:
            os.write(1, b"\n")
        except OSError:
            error.filename = "standard output"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _attempt(arguments: list[str]) -> tuple[argparse.Namespace | None, Exception | None]:
    """Return the options, or what is wrong with them; neither where only help was wanted."""
    try:
        return parsed(arguments), None
    except SystemExit:
        return None, None
    except Exception as error:
        return None, error


def _command_of(options: argparse.Namespace | None, wrong: Exception | None) -> str:
    """Return the command that this process was told to do; raise what is wrong with its
    arguments."""
    if wrong:
        raise wrong
    return str(options.command) if options else "--help"


def _is_one_of_several(arguments: list[str]) -> bool:
    together = bool(arguments) and "--eager" not in arguments and (
        arguments[0] in TOGETHER or (arguments[0] == "serve" and any(
            word.partition("=")[0] == "--join" for word in arguments)))
    return together and launcher()[1] > 1


def _leave_now(processes: Processes, code: int) -> NoReturn:
    """Ends without waiting for threads or other processes; memory without a name goes with us."""
    try:
        sys.stdout.flush()
    except OSError:
        pass
    processes.abort(code)
    os._exit(code)

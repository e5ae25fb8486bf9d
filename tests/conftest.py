"""What all tests share: real launches that cannot hang, images built once, golden files.

A launch runs in its own session under a time limit; afterwards every process it left is killed and
reported. Order: what takes long first, then tests that use `mpirun`, then all others, so that at
the end no worker of pytest-xdist (`make test`) has long ones while others have none; last those
that run alone: while one of them runs, the other workers run nothing.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from codegen.errors import EnvironmentFault
from codegen.image import link
from spmd import cli
from tests.linked_hosts import LinkedHosts, NoHosts

Found = TypeVar("Found")
ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
EXAMPLES = ROOT / "examples"
NETWORKS = (
    "bert.py", "feed_cartpole.py", "feed_digits.py", "feed_lines.py", "feed_photographs.py",
    "generate.py", "lstm.py", "pipeline_training.py", "transformer.py", "translate.py",
)
RANK_WORDS = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK")
PATIENCE = 120.0  # seconds: of limits that only guard against hanging, on however busy a machine
LEFT_S = 30.0  # for what is ending to have ended
ORDER = ("slow", "mpi", "", "alone")  # of tests, by their marks; "": those without
CHUNK = 16  # tests that a worker is given at a time: those that take long stand side by side
SHARED = Path("/dev/shm")
MPIS = ("mpich_", "sm_segment.", "ucx_")  # what files of MPI's are called there
MARK = "SPMD_TEST_LAUNCH"  # in the environment of everything a test starts
USERS_CC = "SPMD_TEST_USERS_CC"  # what CC was before images were compiled with less effort
LIGHT_CC = "SPMD_TEST_LIGHT_CC"  # the one that does so
LIGHT = "-Og"  # half of the time that loops of vectors take to compile
VECTORS = "-O1 -ftree-vectorize -fstrict-aliasing"

# Open MPI refuses root and more ranks than cores unless told; MPICH does not read these.
LAUNCH_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class Finished:
    """A command that ended by itself. code: negative for a signal, as subprocess has it."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def text(self) -> str:
        return self.out + self.err

    def expect(self, code: int, *fragments: str) -> Finished:
        """Fails the test unless this exit code and all fragments were seen, and no traceback."""
        assert self.code == code, f"exit code {self.code}, expected {code}\n{self.text}"
        missing = [f for f in fragments if f not in self.text]
        assert not missing, f"missing {missing} in:\n{self.text}"
        assert "Traceback (most recent call last)" not in self.text, self.text
        return self


def until(what: Callable[[], Found], seconds: float = PATIENCE) -> Found:
    """Waits until something is true; returns it."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)
    return found


def at_some_pace(check: Callable[[int], Found], paces: Iterable[int] = (1, 4, 16)) -> Found:
    """What check(pace) gives at the first pace at which it does not fail: of what is said about
    times, which a machine that is busy, or stands still for a while, may make wrong once."""
    *quick, slowest = paces
    for pace in quick:
        try:
            return check(pace)
        except (Exception, pytest.fail.Exception):
            continue
    return check(slowest)


class Launch:
    """A command in a session of its own. Use as a context; leaving it leaves no process behind.

    The launcher of Open MPI keeps a folder that is named by its process number: one that a test
    killed would be in the way of a later one of the same number, so every launch has its own.
    """

    def __init__(
        self, argv: Iterable[object], cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.started = time.monotonic()
        environment = {**os.environ, **LAUNCH_ENVIRONMENT, "PYTHONPATH": str(ROOT), **(env or {})}
        environment[MARK] = self.mark
        self.folder = tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True)
        environment.setdefault("PRTE_MCA_prte_tmpdir_base", self.folder.name)
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        self.argv, self.cwd, self.environment = [str(a) for a in argv], cwd, environment
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv, cwd=self.cwd, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            _kill(pid)
        self.process.wait(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        self.folder.cleanup()

    def alive(self) -> list[int]:
        """Every process started by this launch that still runs."""
        return marked(self.mark)

    def ranks(self, count: int) -> dict[int, int]:
        """Rank to process, of the Python processes that a launcher has started for this launch."""
        begin = time.monotonic()
        found: dict[int, int] = {}
        again = True
        while len(found) < count and time.monotonic() < begin + PATIENCE:
            if not found and again and time.monotonic() > begin + 20:
                # Of some hundred starts of Open MPI's launcher one begins nothing at all.
                for pid in self.alive():
                    _kill(pid)
                self.process.communicate()
                self.process, again = self._start(), False
            for pid in self.alive():
                try:
                    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    name = Path(f"/proc/{pid}/comm").read_text()
                except OSError:
                    continue
                numbers = [int(w.split(b"=")[1]) for w in words if w.split(b"=")[0] in RANK_WORDS]
                if numbers and name.startswith("python"):
                    found[numbers[0]] = pid
            time.sleep(0.01)
        assert len(found) == count, found
        return found

    def finish(self, timeout: float = PATIENCE) -> Finished:
        """Waits for the end. Fails the test on a hang and on processes left behind."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for pid in self.alive():
                _kill(pid)
            out, err = self.process.communicate()
            pytest.fail(f"no end after {timeout} s: {self.process.args}\n{out}{err}")
        deadline = time.monotonic() + LEFT_S
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            names = [_command_line(pid) for pid in left]
            for pid in left:
                _kill(pid)
            pytest.fail(f"processes left behind by {self.process.args}: {names}\n{out}{err}")
        return Finished(self.process.returncode, out, err, time.monotonic() - self.started)


def marked(mark: str) -> list[int]:
    """Processes in whose environment this mark stands."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                    if needle in file.read():
                        found.append(int(name))
            except OSError:  # gone meanwhile, or not ours
                continue
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"pid {pid}"


def run(
    argv: Iterable[object], *, timeout: float = PATIENCE, cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Runs a command to its end under a time limit."""
    with Launch(argv, cwd, env) as launch:
        return launch.finish(timeout)


@pytest.fixture
def hosts() -> Iterator[LinkedHosts]:
    """A host that has a link to each of two others, where namespaces may be made."""
    try:
        linked = LinkedHosts(2)
    except NoHosts as why:
        pytest.skip(f"no network namespaces here: {why}")
    with closing(linked):
        yield linked


@pytest.fixture(scope="session")
def survivors() -> list[str]:
    """The launcher, such that it lets the others live when one process dies, where it can."""
    text = run(["mpirun", "--version"]).text
    return ["mpirun", "-disable-auto-cleanup"] if "HYDRA" in text else ["mpirun"]


@pytest.fixture(scope="session")
def ended_by() -> Callable[[int], int]:
    """The launcher's exit code when a signal ends a job. Open MPI's has one of its own."""
    hydra = "HYDRA" in run(["mpirun", "--version"]).text
    return lambda number: 128 + number if hydra else 1


@pytest.fixture(scope="session")
def mpirun() -> Callable[..., Finished]:
    """mpirun(4, "-m", "spmd", "run", image): python with these arguments on 4 real processes."""

    def start(n: int, *args: object, **keywords: object) -> Finished:
        return run(["mpirun", "-n", n, sys.executable, *args], **keywords)  # type: ignore[arg-type]

    return start


@pytest.fixture(scope="session")
def spmd_command() -> Callable[..., Finished]:
    """spmd_command("build", file): `python -m spmd` in one process."""

    def start(*args: object, **keywords: object) -> Finished:
        return run([sys.executable, "-m", "spmd", *args], **keywords)  # type: ignore[arg-type]

    return start


@contextmanager
def kept_signals() -> Iterator[None]:
    """A command takes signals its own way; afterwards they are the tests' again."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def here(*args: object) -> int:
    """What `python -m spmd` does with these arguments, in this process; its exit code."""
    path, modules = sys.path[:], {*sys.modules}
    try:
        with kept_signals():
            return cli.main([str(a) for a in args])
    finally:
        sys.path[:] = path
        for name in {Path(str(a)).stem for a in args} - modules:
            sys.modules.pop(name, None)  # a program that was built


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A test, with its fixtures, leaves SIGINT and SIGTERM as it found them: after a command that
    it ran in this process, the second one, in a later test, would end the process."""
    with kept_signals():
        return (yield)


@pytest.fixture
def spmd_here(capfd: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """spmd_here("verify", image): as spmd_command, in this process, which has imported all. What
    could end or change the process is for spmd_command."""

    def start(*args: object) -> Finished:
        capfd.readouterr()
        began = time.monotonic()
        code = here(*args)
        out, err = capfd.readouterr()
        return Finished(code, out, err, time.monotonic() - began)

    return start


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Holds the lock of a file, which the workers of a session know."""
    with path.open("w") as file:
        fcntl.flock(file, how)
        yield


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a session."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, session_folder: Path) -> Iterator[None]:
    """Tests run side by side, one on each worker; those marked `alone`, one at a time."""
    alone = request.node.get_closest_marker("alone")
    with locked(session_folder / "turn.lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        yield


@pytest.fixture(scope="module")
def drawn(request: pytest.FixtureRequest) -> list[tuple[object, object]]:
    """The random generators of a module of tests, each with its state before the first of them."""
    values = vars(request.module).values() if request.module else ()
    return [(bits, bits.state) for one in values
            if (bits := getattr(one, "bit_generator", None)) is not None]


@pytest.fixture(autouse=True)
def same_numbers(drawn: list[tuple[object, object]]) -> None:
    """A test draws what it would draw if it were the first of its module in this process."""
    for bits, state in drawn:
        bits.state = state


@pytest.fixture(scope="session")
def once(session_folder: Path) -> Callable[[str, Callable[[Path], object]], Path]:
    """once("stress", make): the file or folder of this name; make(path) makes it in one worker."""

    def get(name: str, make: Callable[[Path], object]) -> Path:
        path, part = session_folder / name, session_folder / f"{name}.part"
        with locked(session_folder / f"{name}.lock"):
            if not path.exists():
                make(part)
                part.rename(path)
        return path

    return get


@pytest.fixture(scope="session")
def built(once: Callable[..., Path]) -> Callable[..., Path]:
    """built(path or source text, count=10): the image of a program, built once per session, by a
    worker itself: a process for each would import the compiler anew."""

    def build(program: Path | str, **parameters: object) -> Path:
        text = program.read_text() if isinstance(program, Path) else program
        parts = text, sorted(parameters.items()), os.environ.get("CC")
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
        settings = [x for k, v in parameters.items() for x in ("--set", f"{k}={v}")]

        def make(image: Path) -> None:
            source = program
            if not isinstance(source, Path):
                source = image.with_name(f"{key}.py")
                source.write_text(text)
            assert here("build", source, "-o", image, *settings) == 0

        return once(f"{key}.img", make)

    return build


@pytest.fixture(scope="module")
def vectors_cc() -> Iterator[None]:
    """Images whose compiler relies on what the code promises of memory and of turns in any order,
    as users' does: for tests that draw programs, are about loops, or compute for long."""
    with pytest.MonkeyPatch.context() as patch:
        if LIGHT_CC in os.environ:
            patch.setenv("CC", f"{os.environ[LIGHT_CC]}-vectors")
        yield


@pytest.fixture(scope="module")
def users_cc() -> Iterator[None]:
    """Images are compiled as users' are: where that is what a test is about."""
    with pytest.MonkeyPatch.context() as patch:
        named = os.environ.get(USERS_CC)
        if named:
            patch.setenv("CC", named)
        elif named is not None:
            patch.delenv("CC", raising=False)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden("ring.plan", text): equal to tests/golden/ring.plan, or --update-golden writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {path}; write it with `make golden`, and read it"
        assert text == path.read_text(), f"{path} differs; if that is right: `make golden`"

    return compare


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden instead of comparing"
    )


def nobodys(paths: Iterable[Path]) -> list[Path]:
    """Those that are ours and that no process has mapped or opened: left, or made just now."""
    paths, used = set(paths), ""
    for process in Path("/proc").glob("[0-9]*") if paths else ():
        try:
            used += (process / "maps").read_text()
            used += "\n".join(os.readlink(fd) for fd in (process / "fd").iterdir())
        except OSError:  # gone meanwhile, or not ours
            continue
    found = []
    for path in paths:
        try:
            if path.stat().st_uid == os.getuid() and str(path) not in used:
                found.append(path)
        except OSError:  # gone meanwhile
            continue
    return found


def _swept(before: set[Path]) -> None:
    """What MPI left in shared memory since then, where a test ended it while it began, is removed:
    ours, and mapped by nobody, also not by tests that run beside these."""
    new = set(SHARED.glob("*")) - before
    for path in nobodys(path for path in new if path.name.startswith(MPIS)):
        try:
            if path.stat().st_mtime < time.time() - 20:  # who makes it maps it then
                path.unlink()
        except OSError:
            continue


def _compile_light(path: Path) -> None:
    """Images take a fourth of the C compiler's time; `make random` compiles as users do."""
    try:
        command = link.compiler()
    except EnvironmentFault:  # tests will say so
        return
    for file, flags in ((path, LIGHT), (path.with_name(f"{path.name}-vectors"), VECTORS)):
        file.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@" {flags}\n')
        file.chmod(0o755)
    os.environ[USERS_CC] = os.environ.get("CC", "")
    os.environ[LIGHT_CC] = os.environ["CC"] = str(path)


def pytest_configure(config: pytest.Config) -> None:
    """Profiles of hypothesis: short by default, `--hypothesis-profile=long` for `make random`.

    Ctrl-C means what it means at a terminal, wherever the tests are started. What this machine was
    calibrated to is left out, and what the user has built.
    """
    from hypothesis import HealthCheck, Phase, settings

    os.environ["SPMD_CALIBRATION"] = "off"
    os.environ["SPMD_PROGRESS"] = "off"  # what a slow machine would write into standard error
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers use that of the session that starts them
        folder = tempfile.TemporaryDirectory(prefix="builds-", ignore_cleanup_errors=True)
        os.environ["SPMD_CACHE"] = os.path.join(folder.name, "cache")
        as_users = config.getoption("--hypothesis-profile", default=None)
        if not as_users and USERS_CC not in os.environ:
            _compile_light(Path(folder.name, "cc"))
        config.add_cleanup(folder.cleanup)
        before = set(SHARED.glob("*"))
        config.add_cleanup(lambda: _swept(before))

    if getattr(config.option, "maxschedchunk", CHUNK) is None:
        config.option.maxschedchunk = CHUNK
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # as shells start what runs in the background; the programs under test would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile(
        "long", max_examples=200, deadline=None, suppress_health_check=checks
    )
    settings.register_profile(
        "short", max_examples=12, deadline=None, derandomize=True, suppress_health_check=checks,
        phases=[Phase.explicit, Phase.generate],  # a failure is shown as it was found, at once
    )
    if not config.getoption("--hypothesis-profile", default=None):
        settings.load_profile("short")


def numbers(most: int) -> Iterator[int]:
    """Yield numbers of programs to draw in `make random`: of RANDOM_SEED, until its time is up."""
    first = int(os.environ.get("RANDOM_SEED", "1")) * 1_000_003
    for number in range(first, first + most):
        if time.time() > float(os.environ.get("RANDOM_END", "inf")):
            return
        yield number


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > float(os.environ.get("RANDOM_END", "inf")):
        pytest.skip("RANDOM_SECONDS are over")


def pytest_sessionfinish() -> None:
    """Of what is left now, pytest would look for garbage five times, in each worker: once is seen
    as much."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait, for processes that start, stand still or end.
    """
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish() -> None:
    """What is imported by now stays: Python need not look for garbage in it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"mpirun", "survivors"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("mpi")

    def tier(item: pytest.Item) -> tuple[int, int]:
        """Those that take long are mixed: some compute, others wait for processes of theirs."""
        kept = {mark.name for mark in item.iter_markers()} | {""}
        tier = 3 if "alone" in kept else next(k for k, name in enumerate(ORDER) if name in kept)
        made = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        shares = any(one.scope == "module" and one.baseid.endswith(".py") for a in made
                     for one in a)
        mixed = str(item.path) if shares else item.nodeid  # what a module makes, it makes once
        return tier, 0 if tier else zlib.crc32(mixed.encode())

    items.sort(key=tier)

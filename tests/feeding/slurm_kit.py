"""A cluster of Slurm's own programs on this machine, for tests: munged, slurmctld, and nodes.

In: how many nodes. Out: commands of Slurm that reach it, jobs and how they go on.
Always holds: what it starts, and what jobs start, ends with it; it has a folder and ports of its
own, so that others may run beside it.
"""

from __future__ import annotations

import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path

from tests.conftest import LAUNCH_ENVIRONMENT, MARK, ROOT, marked, until
from tests.feeding.served_kit import command_of

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue",
            "sinfo")
WHERE = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
OURS = ("SLURM_", "SBATCH_", "SRUN_", "PMI", "OMPI_", "HYDI_")  # of a job in which tests run
TRIES = 3  # somebody may take a port before a daemon does

# Nodes claim more cores than there are, and no program is bound to one.
CONF = """
ClusterName=spmd
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=30
FirstJobId={first}
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=1000\n"


class DoesNotStart(Exception):
    """Slurm's programs end at once, on a machine without cgroups say: what they said."""


def missing() -> list[str]:
    """Programs of Slurm that are not here."""
    return [name for name in PROGRAMS if not shutil.which(name, path=WHERE)]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


class Cluster:
    """Nodes that take jobs. home: where $HOME of jobs is; its my-env is this Python's."""

    def __init__(self, nodes: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spmd-slurm-"))  # names of sockets are short
        self.mark, self.daemons, self.own = uuid.uuid4().hex, {}, set()
        self.nodes = [f"node{k}" for k in range(nodes)]
        for name in ("state", "home", "tmp", "work", *(f"tmp-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        self.work, self.tmp = self.folder / "work", self.folder / "tmp"
        activate = self.folder / "home" / "my-env" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.write_text(f"export PATH='{Path(sys.executable).parent}':$PATH\n"
                            f"export PYTHONPATH='{ROOT}'\n")
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(OURS)},
            **LAUNCH_ENVIRONMENT, "PATH": WHERE, "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.tmp), "SLURM_CONF": str(self.folder / "slurm.conf"),
            MARK: self.mark}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self._daemon("munged", "-F", "--force", *(f"--{what}={self.folder}/munge.{name}" for
                     what, name in (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"),
                                    ("log-file", "log"), ("seed-file", "seed"))))
        until((self.folder / "munge.socket").exists)
        for _ in range(TRIES):
            self._configure()
            ours = [self._daemon("slurmctld", "-D"),
                    *(self._daemon("slurmd", "-D", "-N", node) for node in self.nodes)]
            if self._comes_up(ours):
                self.own = set(marked(self.mark))
                return
            said = [f"{p.stem}: {p.read_text()[-300:]}" for p in self.folder.glob("slurm*.out")]
            for one in ours:
                self._end(one)
        raise DoesNotStart("\n".join(said))

    def _configure(self) -> None:
        host, (port, *others) = socket.gethostname(), free_ports(1 + len(self.nodes))
        text = CONF.format(host=host, port=port, user=getpass.getuser(), folder=self.folder,
                           first=random.randrange(1, 1 << 25))
        text += "".join(NODE.format(name=name, host=host, port=port)
                        for name, port in zip(self.nodes, others))
        text += f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES State=UP\n"
        (self.folder / "slurm.conf").write_text(text)

    def _daemon(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{'-'.join(w for w in words if w[0] != '-')}.out").open("w") as log:
            one = subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, start_new_session=True)
        self.daemons[one.pid] = one
        return one

    def jobs(self, name: str) -> str:
        """Return what waits or runs under a name. A job that is COMPLETING has ended: for how long
        Slurm keeps it in that state, its daemons decide between them."""
        return self.run("squeue", "-h", f"--name={name}", "-t", "PENDING,CONFIGURING,RUNNING")

    def _comes_up(self, ours: list[subprocess.Popen[bytes]]) -> bool:
        """Whether all nodes are there; False where one of the daemons ended before."""
        def state() -> bool | str:
            ended = any(one.poll() is not None for one in ours)
            found = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
            return "ended" * ended or found == ["idle"] * len(self.nodes)
        return until(state) is True

    def run(self, *words: str, check: bool = True, **more: str) -> str:
        """What a command of Slurm prints, in the folder from which jobs are submitted."""
        done = subprocess.run(words, env={**self.environment, **more}, cwd=self.work, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        """The number of a job, which writes into `job-NUMBER.out`."""
        (self.work / "job.sh").write_text(script)
        return self.run("sbatch", "--parsable", "--open-mode=append", "--output=job-%j.out",
                        *options, "job.sh").strip()

    def state(self, job: str) -> str:
        """As Slurm says it; "" for a job that is over."""
        lines = self.run("squeue", "-h", "-o", "%i %T").splitlines()
        return next((line.split()[1] for line in lines if line.split()[0] == job), "")

    def said(self, job: str) -> str:
        file = self.work / f"job-{job}.out"
        return file.read_text() if file.exists() else ""

    def wait_for(self, job: str, state: str) -> None:
        """Until a job is in it. A failed test says what the job said."""
        try:
            until(lambda: self.state(job) == state, 120)
        except AssertionError as error:
            raise AssertionError(f"job {job}, not {state!r}: {error}\n{self.said(job)}") from None

    def left(self) -> list[str]:
        """Processes of jobs."""
        return [command_of(pid) for pid in marked(self.mark) if pid not in self.own]

    def close(self) -> None:
        if self.own:
            self.run("scancel", "--user", getpass.getuser(), check=False)
        for one in reversed(self.daemons.values()):
            self._end(one)
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)

    def _end(self, one: subprocess.Popen[bytes]) -> None:
        one.terminate()
        try:
            one.wait(10)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()

"""Small, read-only and noexec places (30): runs need neither /dev/shm nor a temporary directory.

They are really mounted, in a mount namespace of their own; where that is not permitted, skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, ROOT, Finished, run

# 96 MB on each of 2 ranks twice over: far more than the 64 MB of /dev/shm.
BIG = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def big(n: int = 24_000_000):
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i % 7)

    @spmd.shard_map(mesh="r", out_layouts=())
    def total(x):
        return spmd.psum(np.sum(spmd.ppermute(x, "r", shift=1)), "r")

    return {"total": total(x)}
'''
# Who is not root becomes it in a user namespace.
UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
TOTAL = f"total: float64 {sum(k % 7 for k in range(24_000_000 % 7)) + 24_000_000 // 7 * 21:.1f}"

# $1: what to mount over, $2: how, $3: a file to take along. Proves that it is as it says.
MOUNTED = """
mount --make-rprivate / && mount -t tmpfs -o size=64m tmpfs /dev/shm || exit 97
cp "$3" /dev/shm/taken && cp /bin/true /dev/shm/true
mount -t tmpfs -o size=16m tmpfs "$1" && cp /dev/shm/true "$1" && mount -o "remount,bind,$2" "$1" ||
  exit 97
cd /dev/shm
case $2 in
ro) touch "$1/file" 2>/dev/null && exit 98 ;;
noexec) "$1/true" 2>/dev/null && exit 98 ;;
esac
export TMPDIR="$1"
shift 3
exec "$@"
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[..., Finished]:
    """mounted("/tmp", "ro", file, argv): argv in a namespace, the file as /dev/shm/taken."""

    def start(over: str, how: str, file: Path, *argv: object) -> Finished:
        if over == "TMPDIR":
            over = str(tmp_path)
        elif any(str(Path(p).resolve()).startswith("/tmp/") for p in (ROOT, sys.prefix)):
            pytest.skip("this source tree or this Python is in /tmp itself")
        done = run([*UNSHARE, "sh", "-c", MOUNTED, "sh", over, how, file, *argv],
                   env={"PRTE_MCA_prte_tmpdir_base": "/dev/shm"})
        if done.code == 97:
            pytest.skip("a file system cannot be mounted here")
        return done

    try:
        if subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=PATIENCE).returncode:
            pytest.skip(f"{' '.join(UNSHARE)} is not permitted here")
    except OSError:
        pytest.skip("unshare is not installed")
    return start


@pytest.mark.mpi
@pytest.mark.parametrize(("over", "how"), [("TMPDIR", "ro"), ("/tmp", "noexec")])
def test_processes_share_more_than_shm_holds(built, mounted, over, how):
    image = built(BIG)
    argv = ["mpirun", "-n", "4", sys.executable, "-m", "spmd", "run", "/dev/shm/taken"]
    mounted(over, how, image, *argv).expect(0, TOTAL)


@pytest.mark.usefixtures("users_cc")  # ours would lie in /tmp
@pytest.mark.parametrize(("over", "how"), [("TMPDIR", "noexec"), ("/tmp", "ro")])
def test_a_program_is_built_and_run(mounted, tmp_path_factory, over, how):
    program = tmp_path_factory.mktemp("program") / "p.py"
    program.write_text(BIG)
    argv = ["sh", "-c", 'cp taken p.py && exec "$@"', "sh",
            sys.executable, "-m", "spmd", "run", "p.py", "--no-cache",
            "--ranks", "16"]
    mounted(over, how, program, *argv).expect(0, TOTAL)


@pytest.mark.parametrize("how", ["ro", "noexec"])
def test_doctor_says_so(mounted, tmp_path_factory, how):
    empty = tmp_path_factory.mktemp("empty") / "file"
    empty.touch()
    done = mounted("TMPDIR", how, empty, sys.executable, "-m", "spmd", "doctor").expect(
        0, "/dev/shm", "64.0 MiB"
    )
    assert ("cannot be written" in done.out) == (how == "ro")
    assert "images can be executed from memory files" in done.out

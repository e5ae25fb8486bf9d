"""`python -m spmd run`: files in and out, what is printed, who says what under mpirun."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, Finished, run

PROGRAM = """
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def smooth(n: int = 12):
    weight = spmd.scalar("weight", 0.25)
    u = spmd.input("u", (n, 5), np.float32, layout=("x", "y"), default=lambda i, j: i + 10 * j)

    @spmd.shard_map(mesh=("x", "y"), out_layouts=(("x", "y"), (), ("x",)))
    def body(u):
        spmd.print("on {} ranks", spmd.ranks())
        v = u * weight
        return v, spmd.pmax(np.max(v), ("x", "y")), spmd.psum(np.sum(v, axis=1), "y")

    v, peak, rows = body(u)
    return {"v": v, "peak": peak, "rows": rows}
"""

EMPTY = """
import spmd

@spmd.program(mesh=("x",))
def empty():
    return {}
"""

# All that a rank imports beyond the interpreter and mpi4py, whatever the program.
OURS = {
    "codegen.image", "codegen.symbolic", "codegen.symbolic.meaning", "spmd.files", "spmd.launch",
    "codegen", "codegen.checks", "codegen.checks.names", "codegen.image.elf",
    "codegen.image.elf_dynamic",
    "codegen.errors", "codegen.image.conditions", "codegen.image.manifest",
    "codegen.image.schema", "codegen.image.target", "codegen.suggest",
    "spmd", "spmd.arguments", "spmd.cli", "spmd.engine", "spmd.engine._engine",
    "spmd.engine._engine.lib", "spmd.launch.job", "spmd.launch.processes", "spmd.launch.launchers",
    "spmd.launch.limits", "spmd.launch.loader", "spmd.launch.memory", "spmd.files.npy",
    "spmd.report", "spmd.launch.process_watch", "spmd.launch.process_status", "spmd.launch.run",
    "spmd.launch.sizes", "spmd.launch.watch", "spmd.launch.options", "spmd.launch.command_group",
    "spmd.launch.lifecycle", "spmd.launch.hosts", "spmd.launch.routines", "spmd.launch.transport",
    "spmd.files.whole", "spmd.texts", "codegen.user", "codegen.user.named",
    "codegen.progress", "spmd.launch.program_output", "spmd.launch.exit_signals", "spmd.interrupts",
    "spmd.launch.shared_constants", "spmd.faces", "spmd.launch.array_files", "spmd.launch.setup",
    "codegen.user.given_extents", "codegen.validators",
}
THEIRS = {
    "__future__", "_cffi_backend", "_json", "_locale", "_sha2", "_sha256", "_sha512", "argparse",
    "atexit", "errno", "faulthandler",
    "fcntl", "gettext", "json", "json.decoder", "json.encoder", "json.scanner", "locale", "mmap",
    "signal", "resource", "_blake2", "_hashlib", "hashlib", "_md5", "_sha1", "_sha3", "platform",
}


@pytest.mark.parametrize("ranks", [1, 6, 35])
def test_files_in_and_out(
    built: Callable[..., Path], spmd_command: Callable[..., Finished], tmp_path: Path, ranks: int
) -> None:
    u = np.random.default_rng(ranks).random((12, 5), np.float32)
    np.save(tmp_path / "u.npy", u)
    done = spmd_command(
        "run", built(PROGRAM), "--ranks", ranks, "-i", f"u={tmp_path}/u.npy", "--set", "weight=0.5",
        "-o", f"v={tmp_path}/v.npy", "-o", f"rows={tmp_path}/rows.npy",
    ).expect(0)
    v = np.load(tmp_path / "v.npy")
    np.testing.assert_array_equal(v, u * np.float32(0.5))
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), v.sum(axis=1), rtol=1e-5)
    assert done.out.splitlines() == [
        f"on {ranks} ranks", f"v: float32 (12, 5) in {tmp_path}/v.npy",
        f"peak: float32 {v.max()!s}", f"rows: float32 (12,) in {tmp_path}/rows.npy",
    ]
    assert done.err == ""
    assert sorted(os.listdir(tmp_path)) == ["rows.npy", "u.npy", "v.npy"]


def test_parameters_and_scalars_of_a_python_file(
    spmd_here: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    arguments = ("--ranks", "4", "--set", "n=3", "--set", "weight=1")
    done = spmd_here("run", tmp_path / "p.py", *arguments).expect(0, "on 4 ranks")
    assert "rows: float32 (3,) [100. 105. 110.]" in done.out
    done = spmd_here("run", f"{tmp_path}/p.py:smooth", "--mesh", "x=2,y=3").expect(0)
    assert "on 6 ranks" in done.out
    spmd_here("run", tmp_path / "p.py", "--set", "m=3").expect(2, "m", "weight")
    spmd_here("build", tmp_path / "p.py", "--set", "n=2.0").expect(65, '"n"', "int", "n=2")
    spmd_here("run", f"{tmp_path}/p.py:other").expect(2, "other", "smooth")
    eager = spmd_here("run", tmp_path / "p.py", *arguments[2:], "--eager").expect(0)
    assert "rows: float32 (3,) [100. 105. 110.]" in eager.out


def test_large_outputs_are_summarised(
    built: Callable[..., Path], spmd_command: Callable[..., Finished]
) -> None:
    done = spmd_command("run", built(PROGRAM, n=1000), "--ranks", "3").expect(0)
    assert "v: float32 (1000, 5) min 0.0 max 259.75 mean 129.875\n" in done.out


@pytest.mark.parametrize("processes", [1, 3, 4])
def test_under_mpirun(
    built: Callable[..., Path], mpirun: Callable[..., Finished], tmp_path: Path, processes: int
) -> None:
    image = built(PROGRAM)
    done = mpirun(processes, "-m", "spmd", "run", image, "--ranks", "8",
                  "-o", f"v={tmp_path}/v.npy").expect(0)
    i, j = np.ogrid[:12, :5]
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), (i + 10 * j) * np.float32(0.25))
    assert f"on 8 ranks\nv: float32 (12, 5) in {tmp_path}/v.npy\npeak: float32 12.75\n" in done.out
    assert "\nrows: float32 (12,) [" in done.out
    assert os.listdir(tmp_path) == ["v.npy"]


@pytest.mark.one_mpi
def test_a_python_file_is_built_once(mpirun: Callable[..., Finished], tmp_path: Path) -> None:
    text = "from spmd.launch.launchers import launcher\nprint('read by', launcher()[0])\n" + PROGRAM
    (tmp_path / "p.py").write_text(text)
    done = mpirun(3, "-m", "spmd", "run", tmp_path / "p.py").expect(0, "on 3 ranks")
    assert done.out.count("read by") == 1 and "read by 0" in done.out


@pytest.mark.one_mpi
def test_one_error_is_told_once(
    built: Callable[..., Path], mpirun: Callable[..., Finished], tmp_path: Path
) -> None:
    image = built(PROGRAM)
    for code, arguments, text in (
        (2, ("--set", "wait=3"), "'wait'"),
        (2, ("--ranks",), "--ranks"),
        (74, ("-i", f"u={tmp_path}/none.npy"), "none.npy"),
        (74, ("-o", f"v={tmp_path}/no/v.npy"), "no directory"),
        (78, ("--mesh", "x=2,y=2"), "3 ranks"),
        (78, ("--ranks", "2"), "3 processes"),
    ):
        done = mpirun(3, "-m", "spmd", "run", image, *arguments)
        assert done.code == code, done.text
        assert done.err.count("spmd: ") == 1 and text in done.err, done.text
        assert "Traceback" not in done.text


def test_processes_that_differ_are_named(built: Callable[..., Path], tmp_path: Path) -> None:
    start = [sys.executable, "-m", "spmd", "run"]
    other = built(PROGRAM, n=13)
    done = run(["mpirun", "-n", 2, *start, built(PROGRAM), ":", "-n", 1, *start, other])
    assert done.code == 78 and "rank 2 differs" in done.err, done.text
    assert done.err.count("spmd: ") == 1


def test_an_output_that_does_not_fit_leaves_the_old_one(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    image = built(PROGRAM, n=100_000)
    np.save(tmp_path / "v.npy", np.arange(3))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run(
        [sys.executable, "-m", "spmd", "run", image, "-o", f"v={tmp_path}/v.npy"],
        preexec_fn=limit, capture_output=True, text=True, timeout=60, cwd=ROOT,
    )
    assert done.returncode == 74 and "cannot write" in done.stderr, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), np.arange(3))
    assert os.listdir(tmp_path) == ["v.npy"]


def test_a_reader_that_leaves(built: Callable[..., Path]) -> None:
    command = f"{sys.executable} -m spmd run {built(PROGRAM)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert "Traceback" not in done.stderr and done.returncode in (0, 74), done.stderr


MODULES = """
import json, sys
from mpi4py import MPI
before, rank = set(sys.modules), MPI.COMM_WORLD.rank
from spmd import cli
code = cli.main(["run", sys.argv[1]])
if rank == 1:
    print(json.dumps(sorted(set(sys.modules) - before)))
sys.exit(code)
"""


@pytest.mark.one_mpi
def test_what_a_rank_imports(
    built: Callable[..., Path], tmp_path: Path, mpirun: Callable[..., Finished]
) -> None:
    (tmp_path / "modules.py").write_text(MODULES)
    done = mpirun(2, tmp_path / "modules.py", built(EMPTY)).expect(0)
    found = set(json.loads(done.out.splitlines()[-1]))
    assert {name for name in found if name.split(".")[0] in ("spmd", "codegen")} <= OURS
    assert found - OURS <= THEIRS | {"json"}
    assert not found & {"numpy", "typing", "dataclasses", "inspect", "shutil", "tempfile"}

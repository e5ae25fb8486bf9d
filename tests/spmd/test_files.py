"""Inputs from and outputs to .npz and .safetensors files: real runs, each process with its part."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spmd import cli
from spmd.launch.hosts import PRETENDED
from tests.conftest import ROOT, Finished
from tests.spmd.array_files import open_array, write

# On a mesh of two axes: split over both, over one, over none, over both in one dim.
PROGRAM = """
import ml_dtypes
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def several(n: int = 7, m: int = 5):
    u = spmd.input("u", (n, m), np.float64, layout=("x", "y"))
    k = spmd.input("k", (m, 3), np.int32, layout=("y", None))
    c = spmd.input("c", (n,), np.complex64, layout=(("x", "y"),), default=lambda i: i)
    b = spmd.input("b", (3,), ml_dtypes.bfloat16, layout=(None,), default=lambda i: i)

    @spmd.shard_map(mesh=("x", "y"), out_layouts=(("x", "y"), ("y", None), (("x", "y"),), (None,)))
    def body(u, k, c, b):
        return u + 1, k * 2, c * 2, b + b

    v, l, d, a = body(u, k, c, b)
    return {"v": v, "l": l, "d": d, "a": a}
"""

Start = Callable[..., Finished]


def inputs(n: int = 7, m: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    c = (rng.random(n) + 1j * rng.random(n)).astype(np.complex64)
    return {"u": rng.random((n, m)), "k": np.arange(3 * m, dtype=np.int32).reshape(m, 3), "c": c}


def expected(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import ml_dtypes

    a = (2 * np.arange(3)).astype(ml_dtypes.bfloat16)
    return {"v": given["u"] + 1, "l": given["k"] * 2, "d": given["c"] * 2, "a": a}


def check(path: Path, given: dict[str, np.ndarray]) -> None:
    """The file holds what the program returns: as our reader sees it, and as NumPy does."""
    for name, wanted in expected(given).items():
        found = open_array(f"{path}:{name}")
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted), name
    if path.suffix == ".npz":
        assert zipfile.ZipFile(path).testzip() is None
        with np.load(path) as found:
            assert np.array_equal(found["v"], given["u"] + 1)
    else:
        package = pytest.importorskip("safetensors.numpy")
        for name, array in package.load_file(path).items():
            assert np.array_equal(array, expected(given)[name]), name


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("mesh", ["x=1,y=1", "x=2,y=3", "x=3,y=1", "x=9,y=8"])
def test_whole_files(
    built: Callable[..., Path], spmd_command: Start, tmp_path: Path, suffix: str, mesh: str
) -> None:
    given = inputs()
    write(tmp_path / f"in.{suffix}", given)
    done = spmd_command("run", built(PROGRAM), "--mesh", mesh, "-i", f"in.{suffix}",
                        "-o", f"out.{suffix}", cwd=tmp_path).expect(0)
    assert done.out.splitlines() == [
        f"v: float64 (7, 5) in out.{suffix}", f"l: int32 (5, 3) in out.{suffix}",
        f"d: complex64 (7,) in out.{suffix}", f"a: bfloat16 (3,) in out.{suffix}",
    ]
    check(tmp_path / f"out.{suffix}", given)
    assert sorted(os.listdir(tmp_path)) == [f"in.{suffix}", f"out.{suffix}"]
    assert ("ml_dtypes" in done.err) == (suffix == "npz")


@pytest.mark.one_mpi
@pytest.mark.parametrize("processes, ranks, mesh", [(2, 6, "x=3,y=2"), (4, 18, "x=9,y=2")])
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_under_mpirun(
    built: Callable[..., Path], mpirun: Start, tmp_path: Path, suffix: str,
    processes: int, ranks: int, mesh: str,
) -> None:
    """More ranks than processes, uneven and empty shards, files given in both ways, of the declared
    dtype or of one that is converted."""
    given = inputs()
    given["u"] = given["u"].astype(np.float32).astype(np.float64)
    write(tmp_path / "in.npz", {"u": given["u"].astype(np.float32), "c": given["c"]})
    write(tmp_path / "k.safetensors", {"other": given["k"].astype(np.int16)})
    out = tmp_path / f"out.{suffix}"
    write(out, {"before": np.zeros(9)})  # is replaced
    done = mpirun(
        processes, "-m", "spmd", "run", built(PROGRAM), "--mesh", mesh, "--ranks", ranks,
        "-i", "in.npz", "-i", "k=k.safetensors:other", "-o", out, "-o", "l=l.npy", cwd=tmp_path,
    ).expect(0)
    assert f"v: float64 (7, 5) in {out}\nl: int32 (5, 3) in l.npy\n" in done.out
    assert np.array_equal(np.load(tmp_path / "l.npy"), given["k"] * 2)
    for name in ("v", "d", "a"):
        assert np.array_equal(open_array(f"{out}:{name}"), expected(given)[name]), name
    assert len(os.listdir(tmp_path)) == 4
    if suffix == "npz":
        assert zipfile.ZipFile(out).testzip() is None
        assert sorted(np.load(out)) == ["a", "d", "v"]


@pytest.mark.one_mpi
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes(
    built: Callable[..., Path], mpirun: Start, tmp_path: Path, save: Callable[..., None]
) -> None:
    """Fortran order, foreign byte order, stored and compressed."""
    given = inputs(130, 41)
    save(tmp_path / "in.npz", u=np.asfortranarray(given["u"].astype(">f8")),
         k=np.asfortranarray(given["k"]), c=given["c"].astype(">c8"))
    mpirun(4, "-m", "spmd", "run", built(PROGRAM, n=130, m=41), "-i", "in.npz",
           "-o", "out.npz", cwd=tmp_path).expect(0)
    check(tmp_path / "out.npz", given)


@pytest.mark.one_mpi
def test_between_hosts(built: Callable[..., Path], mpirun: Start, tmp_path: Path) -> None:
    """Processes that share no memory, only the files; one of them has empty parts only."""
    given = inputs(2, 3)
    np.savez_compressed(tmp_path / "in.npz", **given)
    mpirun(4, "-m", "spmd", "run", built(PROGRAM, n=2, m=3), "--mesh", "x=4,y=1", "-i", "in.npz",
           "-o", "out.npz", cwd=tmp_path, env={PRETENDED: "a,a,b,b"}).expect(0)
    check(tmp_path / "out.npz", given)


def test_members_are_chosen(
    built: Callable[..., Path], spmd_command: Start, tmp_path: Path
) -> None:
    """Members are chosen by the input's name, as the only one, or by name; outputs can share a
    file."""
    given = inputs()
    np.savez(tmp_path / "u.npz", w=given["u"])
    np.savez(tmp_path / "several.npz", k=given["k"], u=np.zeros(3), third=given["c"])
    outs = ("v=r.npz", "l=r.npz:rows", "d=./r.npz:größe")
    spmd_command(
        "run", built(PROGRAM), "--ranks", 6, "-i", "u=u.npz", "-i", "k=several.npz",
        "-i", "c=several.npz:third", *(x for out in outs for x in ("-o", out)), cwd=tmp_path,
    ).expect(0, "l: int32 (5, 3) in r.npz", "a: bfloat16 (3,) [0 2 4]")
    with np.load(tmp_path / "r.npz") as found:
        assert list(found) == ["v", "rows", "größe"]
        assert np.array_equal(found["rows"], given["k"] * 2)
        assert np.array_equal(found["größe"], given["c"] * 2)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_eager(spmd_command: Start, tmp_path: Path, suffix: str) -> None:
    """The same files for the program as plain NumPy."""
    (tmp_path / "p.py").write_text(PROGRAM)
    given = inputs()
    np.savez_compressed(tmp_path / "in.npz", **{**given, "u": given["u"].astype(">f8")})
    done = spmd_command("run", "p.py", "--eager", "-i", "in.npz", "-o", f"o.{suffix}",
                        "-o", "l=l.npy", cwd=tmp_path).expect(0)
    assert done.out == ""
    for name in ("v", "d", "a"):
        found = open_array(f"{tmp_path}/o.{suffix}:{name}")
        assert np.array_equal(found, expected(given)[name])
    assert np.array_equal(np.load(tmp_path / "l.npy"), given["k"] * 2)


def test_links_are_one_file(
    built: Callable[..., Path], spmd_command: Start, tmp_path: Path
) -> None:
    """A link keeps pointing; two names of one file are one file, of one format."""
    write(tmp_path / "in.npz", inputs())
    write(tmp_path / "real.npz", {"old": np.zeros(3)})
    (tmp_path / "link.npz").symlink_to("real.npz")
    (tmp_path / "link.npy").symlink_to("real.npz")
    run = ("run", built(PROGRAM), "-i", "in.npz", "-o", "v=link.npz", "-o")
    spmd_command(*run, "l=link.npy", cwd=tmp_path).expect(2, "v and l cannot share")
    spmd_command(*run[:-2], "v=link.npy", "-o", "l=link.npz", cwd=tmp_path).expect(2, "v and l")
    spmd_command(*run, "l=real.npz", cwd=tmp_path).expect(0)
    assert (tmp_path / "link.npz").is_symlink()
    assert list(np.load(tmp_path / "real.npz")) == ["v", "l"]


def test_what_cannot_be_asked_for(
    built: Callable[..., Path], spmd_command: Start, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **inputs())
    np.savez(tmp_path / "b.npz", u=np.zeros(3))
    np.savez(tmp_path / "w.npz", w=np.zeros(3), **inputs())

    def refuse(code: int, text: str, *options: str) -> Finished:
        done = spmd_command("run", built(PROGRAM), "--ranks", 2, *options, cwd=tmp_path)
        return done.expect(code, *text.split(" … "))

    refuse(2, "input u was not given", "-i", "k=a.npz")
    refuse(2, "input k was not given", "-i", "b.npz")
    refuse(65, "w.npz has a member that is not an input … w\n … inputs u, k, c, b", "-i", "w.npz")
    refuse(2, "input u is given twice … a.npz and b.npz", "-i", "a.npz", "-i", "b.npz")
    refuse(65, "u … a.npz:k … wrong shape … (7, 5) … (5, 3)", "-i", "a.npz", "-i", "u=a.npz:k")
    refuse(2, "both take all", "-i", "a.npz", "-o", "x.npz", "-o", "y.npz")
    refuse(2, "outputs v and l cannot share a file … x.npy",
           "-i", "a.npz", "-o", "v=x.npy", "-o", "l=./x.npy")
    refuse(2, "outputs v and l cannot both be one member … x.npz:l … -o v=x.npz -o l=x.npz",
           "-i", "a.npz", "-o", "v=x.npz:l", "-o", "l=x.npz")
    refuse(74, "outputs v, l … no directory", "-i", "a.npz", "-o", "v=no/x.npz", "-o", "l=no/x.npz")
    refuse(2, "'a.npy' is not NAME=FILE", "-i", "a.npy")
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "b.npz", "w.npz"]


def test_complex128_does_not_fit_safetensors(
    built: Callable[..., Path], spmd_command: Start, tmp_path: Path
) -> None:
    image = built(PROGRAM.replace("complex64", "complex128"))
    given = inputs()
    np.savez(tmp_path / "in.npz", u=given["u"], k=given["k"])
    arguments = ("run", image, "-i", "in.npz", "-o")
    spmd_command(*arguments, "d=o.safetensors", cwd=tmp_path).expect(2, "hold d: complex128")
    spmd_command(*arguments, "d=o.npz", cwd=tmp_path).expect(0)
    assert np.array_equal(np.load(tmp_path / "o.npz")["d"], 2 * np.arange(7.0).astype(complex))


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_full_disk_leaves_the_previous_file(
    built: Callable[..., Path], tmp_path: Path, suffix: str
) -> None:
    image = built(PROGRAM, n=20_000)
    write(tmp_path / "in.npz", inputs(20_000))
    out = tmp_path / f"out.{suffix}"
    write(out, {"v": np.arange(3)})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))

    done = subprocess.run(
        [sys.executable, "-m", "spmd", "run", image, "-i", tmp_path / "in.npz",
         "-o", f"v={out}", "-o", f"l={out}", "-o", f"d={tmp_path}/d.npz"],
        preexec_fn=limit, capture_output=True, text=True, timeout=60, cwd=ROOT,
    )
    assert done.returncode == 74 and "outputs v, l: cannot write" in done.stderr, done.stderr
    assert np.array_equal(open_array(f"{out}:v"), np.arange(3))
    assert sorted(os.listdir(tmp_path)) == ["in.npz", out.name]


MODULES = """
import sys
from mpi4py import MPI
before = set(sys.modules)
from spmd import cli
code = cli.main(sys.argv[1:])
if MPI.COMM_WORLD.rank == 1:  # the other one prints the outputs, with NumPy
    print("modules", *(set(sys.modules) - before))
sys.exit(code)
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    "save, file, more, never",
    [
        (np.savez_compressed, "a.npz", {"spmd.files.npz"}, {"zipfile", "numpy"}),
        (np.save, "a.npy", {"spmd.files.inputs"}, {"numpy", "spmd.files.convert"}),
    ],
)
def test_a_rank_imports_what_its_files_need(
    built: Callable[..., Path], mpirun: Start, tmp_path: Path, save: object, file: str,
    more: set[str], never: set[str],
) -> None:
    (tmp_path / "modules.py").write_text(MODULES)
    if save is np.save:
        np.save(tmp_path / file, inputs()["u"])
    else:
        save(tmp_path / file, u=inputs()["u"])  # type: ignore[operator]
    defaults = PROGRAM.replace('("y", None))', '("y", None), default=lambda i, j: i)', 1)
    image = built(defaults)
    done = mpirun(2, "modules.py", "run", image, "-i", f"u={file}", cwd=tmp_path).expect(0)
    found = set(re.findall(r"^modules (.*)", done.out, re.MULTILINE)[0].split())
    assert more <= found and not found & never


def test_other_dtypes_are_converted_where_nothing_is_lost(
    built: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte orders, orders of dims and compression are converted, as spmd.build(...).run does it."""
    image, given = built(PROGRAM), inputs()
    u = given["u"] = given["u"].astype(np.float32).astype(np.float64)
    c = given["c"].real.astype(np.float16)
    given["c"] = c.astype(np.complex64)
    k = given["k"].astype(np.int8)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(u.astype(">f4")))
    np.savez_compressed(tmp_path / "packed.npz", u=u.astype(np.float32), k=k, c=c)
    np.savez(tmp_path / "plain.npz", u=u.astype(np.float32).T.copy().T, k=k, c=c)

    def run_with(*files: str) -> int:
        words = [f"-i={tmp_path}/{f}" if "=" not in f else f"-i{f.replace('=', f'={tmp_path}/')}"
                 for f in files]
        return cli.main(["run", str(image), "--mesh", "x=3,y=2", *words, "-o", str(out)])

    out = tmp_path / "out.npz"
    apart = ("u=fortran.npy", "k=plain.npz", "c=packed.npz")
    for files in (("packed.npz",), ("plain.npz",), apart):
        assert run_with(*files) == 0, capsys.readouterr().err
        check(out, given)
    np.save(tmp_path / "wide.npy", given["k"].astype(np.int64))
    assert run_with("packed.npz", "k=wide.npy") == 65
    assert "expected: int32\n  found:    int64" in capsys.readouterr().err


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", ["pic.png", "r.npy.gz", "plain", "r.NPZ"])
def test_an_ending_that_names_no_format(
    built: Callable[..., Path], spmd_here: Start, tmp_path: Path, name: str, eager: bool
) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    image = tmp_path / "p.py" if eager else built(PROGRAM)
    done = spmd_here("run", image, "-o", f"v={tmp_path / name}", *["--eager"] * eager)
    text = done.expect(2).err
    suffix = Path(name).suffix
    assert "names no format" in text and ".npy, .npz" in text and f"found:    {suffix}" in text
    assert os.listdir(tmp_path) == ["p.py"]

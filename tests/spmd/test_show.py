"""What people see of an image: a summary, sizes, every level; nothing of it is executed."""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import spmd
from codegen.compile import build
from codegen.errors import ImageError
from codegen.image import link, manifest
from codegen.image.manifest import evaluate
from spmd import cli, show
from spmd.engine import ffi
from spmd.launch import loader
from spmd.verify.formulas import infix
from tests.codegen import sample_programs
from tests.conftest import here


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("show") / "branches.img"
    path.write_bytes(build(sample_programs.branches, {}))
    return path


@pytest.fixture
def shown(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*what: str, as_json: bool = False, file: Path = path) -> str:
        capsys.readouterr()
        assert show.main(str(file), list(what), as_json) == 0
        return capsys.readouterr().out

    return call


def test_the_summary(shown: Any, path: Path) -> None:
    text = shown("manifest")
    for line in (
        r"program +branches",
        r"parameter +n = 9",
        r"mesh +\(x\), sizes bound at launch",
        r"scalar +steps: int64 = 3",
        r'input +u: float64\[9, 4\] over \("x", None\), buffer 0, has a default',
        r'output +result: float64\[9, 4\] over \("x", None\)',
        r"buffer 0 +u: float64, 32 \* ceil\(9 / n_x\) bytes, operations 0, 1",
        r"operation 2 +all_reduce over \(x\)  sample_programs.py:\d+: a = a - rate",
        r"target +x86-64",
        rf"digest +{manifest.read(path.read_bytes()).digest}",
        rf"file +{path.stat().st_size} bytes",
    ):
        assert re.search(rf"^{line}", text, re.M), f"no line {line} in:\n{text}"


@pytest.mark.parametrize(
    "level, line",
    [
        ("graph", "graph branches over mesh (x)"),
        ("program", "program branches over mesh (x)"),
        ("loops", "loops branches over mesh (x)"),
        ("plan", "plan branches over mesh (x)"),
        ("c", "static int step(spmd_rank *r)"),
        ("asm", "<step>:"),
    ],
)
def test_every_level(shown: Any, level: str, line: str) -> None:
    if level == "asm" and not shutil.which("objdump"):
        pytest.skip("objdump is not installed")
    assert line in shown(level)


def test_what_is_shown_is_what_was_built(shown: Any, path: Path) -> None:
    assert shown("c").rstrip("\n") == manifest.read(path.read_bytes()).notes()["c"].rstrip("\n")


def test_json(shown: Any, path: Path) -> None:
    image = manifest.read(path.read_bytes())
    one = json.loads(shown("manifest", as_json=True))
    assert one["digest"] == image.digest and one["buffers"] == image.manifest["buffers"]
    assert one["sections"][".text"] == image.sections[".text"][1]
    both = json.loads(shown("sizes", "plan", as_json=True))
    assert [row["ranks"] for row in both["sizes"]] == [10**k for k in range(7)]
    assert both["plan"].startswith("plan branches")


# ---- sizes -------------------------------------------------------------------------------------


def test_sizes_of_a_million_ranks(shown: Any, path: Path) -> None:
    """The image is one and the same; a rank's memory is that of its shard."""
    rows = json.loads(shown("sizes", as_json=True))
    assert {row["image_bytes"] for row in rows} == {path.stat().st_size}
    assert rows[-1]["mesh"] == [1_000_000]
    buffers = manifest.read(path.read_bytes()).manifest["buffers"]
    for row in rows:
        rounded = [-(-evaluate(b["bytes"], {"n_x": row["ranks"]}) // 64) * 64 for b in buffers]
        assert row["rank_bytes"] == sum(rounded)
        assert row["total_bytes"] == row["ranks"] * row["rank_bytes"]
    assert "built once; no number of ranks is in it" in shown("sizes")


class World(ctypes.Structure):
    """The struct spmd_world of spmd_image.h, for ctypes."""

    _fields_ = (
        ("ranks", ctypes.c_int64), ("size", ctypes.c_int64 * 3), ("scalar", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p), ("given", ctypes.c_void_p),
    )


class Table(ctypes.Structure):
    """spmd_image, as far as `reserve`."""

    _fields_ = (
        *((n, ctypes.c_uint32) for n in ("version", "axes", "scalars", "inputs", "outputs",
                                         "buffers", "at_load", "counters", "sites",
                                         "points", "feeds", "takes", "sends", "saves",
                                         "overlays")),
        *((n, ctypes.c_void_p) for n in ("buffer_overlay", "overlay_around", "buffer_sparse",
                                         "array_buffer", "array_dims",
                                         "array_size", "point_first",
                                         "take_feed", "take_first", "take_lies", "send_feed",
                                         "send_first")),
        ("reserve", ctypes.CFUNCTYPE(None, ctypes.POINTER(World), ctypes.POINTER(ctypes.c_int64))),
    )


def test_sizes_are_what_the_image_reserves(path: Path) -> None:
    """The expressions of the manifest and the machine code agree, buffer by buffer."""
    image = manifest.read(path.read_bytes())
    buffers = image.manifest["buffers"]
    local = loader.check(path.read_bytes()).load(0, 1, [1], [3, 0])
    table = Table.from_address(int(ffi.cast("intptr_t", local.table)))
    assert table.buffers == len(buffers)
    for ranks in show.RANKS:
        found = (ctypes.c_int64 * len(buffers))()
        table.reserve(World(ranks, (ranks, 1, 1)), found)
        assert list(found) == [evaluate(b["bytes"], {"n_x": ranks}) for b in buffers]
    local.close()


# ---- layouts -----------------------------------------------------------------------------------

GLOBAL = """import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def stencil(n: int = 30):
    steps = spmd.scalar("steps", 3)
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"), default=lambda i, j: i + j)
    for _ in spmd.range(steps):
        u[1:-1, 1:-1] += u[:-2, 1:-1] + u[2:, 1:-1]
    return {"u": u, "peak": np.max(u)}
"""

SHOWN = """\
for any mesh of n_x ranks along "x", n_y ranks along "y"

arrays, and the bytes of the largest shard
  u     float32[30, 30]  ("x", "y")  4 * ceil(30 / n_x) * ceil(30 / n_y) bytes  given at \
stencil.py:7 (input, variable, result)
  peak  float32[]        ()          4 bytes                                    a number, the \
same on every rank (result)

what is exchanged, and the bytes that reach a rank from others
  0. halo of width 1 along dim 0 of u, over "x": 8 * ceil(30 / n_y) bytes, per turn of the loop \
in line 8
     stencil.py:9
         u[1:-1, 1:-1] += u[:-2, 1:-1] + u[2:, 1:-1]
                          ^^^^^^^^^^^^^^^^^^^^^^^^^^
  1. all-reduce of maxima of peak, over "x", "y": 4 bytes, once
     stencil.py:10
         return {"u": u, "peak": np.max(u)}
                                 ^^^^^^^^^
"""


@pytest.fixture(scope="module")
def stencil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layouts") / "stencil.py"
    path.write_text(GLOBAL)
    assert here("build", path) == 0
    path.unlink()  # what is quoted is in the image
    return path.with_suffix(".img")


def test_layouts(shown: Any, stencil: Path) -> None:
    assert shown("layouts", file=stencil) == SHOWN


@pytest.mark.parametrize(
    "mesh, shard, halo",
    [("x=1,y=1", 3600, 0), ("x=2,y=1", 1800, 120), ("x=3,y=1", 1200, 240), ("x=4,y=2", 480, 120),
     ("x=7,y=7", 100, 40), ("x=100,y=60", 4, 8)],
)
def test_layouts_on_a_mesh(
    mesh: str, shard: int, halo: int, stencil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["show", str(stencil), "--layouts", "--mesh", mesh, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert ",".join(f"{k}={n}" for k, n in found["mesh"].items()) == mesh
    assert [row["rank_bytes"] for row in found["arrays"]] == [shard, 4]
    assert [row["rank_bytes"] for row in found["exchanges"]] == [halo, 4]


def test_a_mesh_is_for_layouts(stencil: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(stencil), "--sizes", "--ranks", "4"]) == 2
    assert "--layouts" in capsys.readouterr().err
    assert cli.main(["show", str(stencil), "--layouts", "--mesh", "x=2,z=2"]) == 2
    assert "no mesh axis 'z'" in capsys.readouterr().err


def test_layouts_that_nobody_can_read(shown: Any, tmp_path: Path) -> None:
    """A hostile table is refused, or printed without what moves a cursor."""
    good = manifest.read(build(sample_programs.branches, {})).notes()
    evil = json.loads(json.dumps(good["arrays"]))
    evil[0]["because"] = "\x1b[2J\u202e"
    file = made(tmp_path / "evil.img", arrays=evil)
    assert not set(shown("layouts", file=file)) & set("\x1b\u202e")
    for wrong in ([{}], [3], [{**evil[0], "bytes": ["*", "n_unknown"]}], [{**evil[0], "shape": 3}]):
        file = made(tmp_path / "wrong.img", arrays=wrong)
        with pytest.raises(ImageError, match="damaged"):
            show.main(str(file), ["layouts"], False)


LARGE = """import numpy as np
import spmd

@spmd.program(mesh=("x",))
def net(n: int = 1024):
    x = spmd.input("x", (4096, n), np.float32, layout=("x", None), default=lambda i, j: i + j)
    w = spmd.input("w", (n, 512), np.float32, layout=("x", None), default=lambda i, j: i - j)
    return {"y": np.max(np.tanh(x @ w))}
"""

POINTED_OUT = """\
spmd: net.py:8: every rank gets all of w: 2.0 MiB, on however many ranks
    return {"y": np.max(np.tanh(x @ w))}
                                ^^^^^
  layout: ("x", None), given at net.py:7
  try:    (None, None) for w: each rank then reads all of it from the start
"""


@pytest.mark.parametrize("command", ["build", "run"])
def test_what_is_pointed_out(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(LARGE)
    assert cli.main([command, str(tmp_path / "net.py")]) == 0
    assert capsys.readouterr().err.startswith(POINTED_OUT)
    assert cli.main([command, str(tmp_path / "net.py"), "--set", "n=100"]) == 0
    assert "try:" not in capsys.readouterr().err


def test_scripts_are_warned(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(LARGE)
    with pytest.warns(spmd.LayoutWarning, match="every rank gets all of w: 2.0 MiB") as said:
        spmd.build(tmp_path / "net.py")
    assert len(said) == 1 and said[0].filename == __file__


# ---- expressions -------------------------------------------------------------------------------


def drawn(draw: random.Random, depth: int) -> Any:
    if depth == 0 or draw.random() < 0.3:
        return draw.choice([draw.randint(-5, 9), "n_x", "n_y"])
    op, count = draw.choice(
        [("+", 2), ("+", 3), ("*", 2), ("*", 3), ("floordiv", 2), ("mod", 2), ("min", 2),
         ("max", 2), ("ge0", 1), ("eq0", 1)]
    )
    return [op, *(drawn(draw, depth - 1) for _ in range(count))]


def test_infix_means_the_same() -> None:
    draw = random.Random(5)
    compared = 0
    for _ in range(3000):
        e, values = drawn(draw, 3), {"n_x": draw.randint(1, 6), "n_y": draw.randint(1, 6)}
        try:
            found = eval(infix(e), {"ceil": math.ceil}, dict(values))
        except ZeroDivisionError:  # which an Expr defines, and Python does not
            continue
        assert found == evaluate(e, values), f"{e} is written {infix(e)}"
        compared += 1
    assert compared > 1000


@pytest.mark.parametrize(
    "e, text",
    [
        (1437, "1437"),
        (["*", 10, "n_ring"], "10 * n_ring"),
        (["+", "a", ["*", -1, "b"], -3], "a - b - 3"),
        (["*", 3, ["floordiv", ["+", "n", 1], 2]], "3 * ((n + 1) // 2)"),
        (["min", ["+", "n", 1], 4], "min(n + 1, 4)"),
    ],
)
def test_infix(e: Any, text: str) -> None:
    assert infix(e) == text


# ---- images that cannot be trusted, or run elsewhere -------------------------------------------


def made(path: Path, change: Any = lambda m: None, **notes: Any) -> Path:
    """An image without a program, with a manifest changed by `change`."""
    original = manifest.read(build(sample_programs.in_place, {}))
    changed = json.loads(json.dumps(original.manifest))
    change(changed)
    data = link.link(
        "int unused;\n", objects=[], constants=b"", manifest=changed,
        notes={**original.notes(), **notes}, index_words=0, target="x86-64",
    )
    path.write_bytes(data)
    return path


def test_strings_are_printed_escaped(shown: Any, tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;title\x07../../etc\u202e"

    def change(m: dict[str, Any]) -> None:
        m["program"] = evil
        m["buffers"][0]["name"] = evil
        m["parameters"] = {evil: evil}

    file = made(tmp_path / "evil.img", change, graph=evil, c=f"/*\t{evil} */")
    for what in ("manifest", "graph", "c", "sizes"):
        text = shown(what, file=file)
        assert not set(text) & set("\x1b\x07\u202e\t"), what
    assert "title" in shown("manifest", file=file)
    assert "\x1b" not in shown("manifest", as_json=True, file=file)


class NoLinker:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the engine was asked for {name}")


def test_nothing_is_executed(shown: Any, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """It is not even loaded: neither by the engine nor by anything else in this process."""
    monkeypatch.setattr(loader, "lib", NoLinker())
    monkeypatch.setattr(ctypes, "CDLL", NoLinker())
    for what in ("manifest", "sizes", "graph", "program", "loops", "plan", "c"):
        assert shown(what)
    with pytest.raises(AssertionError):
        loader.check(path.read_bytes()).load(0, 1, [1], [3, 0])


def test_an_image_for_a_newer_processor(shown: Any, tmp_path: Path) -> None:
    def newer(m: dict[str, Any]) -> None:
        m["target"].update(level="x86-64-v9", features=["warp"])

    file = made(tmp_path / "newer.img", newer)
    with pytest.raises(ImageError, match="needs"):
        manifest.read(file.read_bytes())
    assert "x86-64-v9" in shown("manifest", file=file)


def test_an_image_for_another_machine(shown: Any, path: Path, tmp_path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 18, 183)
    sections = manifest.read_sections(bytes(data))[1]
    at, room = sections[".spmd.digest"]
    data[at : at + room] = manifest.make_digest(bytes(data), sections)
    file = tmp_path / "other.img"
    file.write_bytes(data)
    with pytest.raises(ImageError, match="built for aarch64, this machine is"):
        manifest.read(bytes(data))
    assert "program     branches" in shown("manifest", file=file)
    assert "ranks" in shown("sizes", file=file)


def test_a_damaged_image_is_refused(path: Path, tmp_path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[manifest.read(bytes(data)).sections[".spmd.notes"][0] + 5] ^= 1
    (tmp_path / "broken.img").write_bytes(data)
    with pytest.raises(ImageError, match="digest mismatch in section .spmd.notes"):
        show.main(str(tmp_path / "broken.img"), ["manifest"], False)


GROWS = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def grows(n: int = 6):
    by = spmd.scalar("by", 2)
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
    return {"u": np.roll(u, 1) + by}
"""


def test_a_program_is_built_and_shown(spmd_here: Any, tmp_path: Path) -> None:
    """show and verify take FILE.py as run does, and leave no image behind."""
    (tmp_path / "grows.py").write_text(GROWS)
    file = f"{tmp_path / 'grows.py'}:grows"
    assert "parameter   n = 9" in spmd_here("show", file, "--set", "n=9").expect(0).out
    assert "np.roll(u, 1)" in spmd_here("show", file, "--graph").expect(0).out
    said = spmd_here("verify", file, "--set", "n=9", "--set", "by=3", "--ranks", "1-4",
                     "--execute").expect(0).out
    assert said.startswith(f"{file}: whole") and "functions of 10 ranks say the same" in said
    assert "no scalar 'm'" in spmd_here("verify", file, "--set", "m=9").expect(2).err
    assert "no scalar 'm'" in spmd_here("show", file, "--set", "m=9").expect(2).err
    assert os.listdir(tmp_path) == ["grows.py"]
    spmd_here("build", file, "-o", tmp_path / "g.img").expect(0)
    assert "--set is for a FILE.py" in spmd_here("show", tmp_path / "g.img", "--set", "n=9").expect(
        2).err

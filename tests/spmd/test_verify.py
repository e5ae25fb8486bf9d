"""`verify`: what an image says of its exchanges is evaluated; what does not fit is named."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from codegen.image import elf, manifest
from spmd.bench import engine_copies
from spmd.bench.engine_copies import TriedBoxes
from spmd.engine import lib
from spmd.ledger import Ledger
from tests.conftest import EXAMPLES
from tests.spmd.plans import HALO, STENCIL, edited

COMPUTED = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def computed():
    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def scan():
        x, d = np.ones(1), 1
        while d < spmd.axis_size("r"):
            x += spmd.ppermute(x, "r", to=lambda i, n: i + d if i + d < n else None)
            d = d * 2
        return x

    return scan()
'''


@pytest.mark.parametrize("name", ["heat", "ring_allreduce", "train_digits", "mandelbrot"])
def test_examples_pass(built, spmd_here, name):
    done = spmd_here("verify", built(EXAMPLES / f"{name}.py"), "--execute").expect(
        0, "whole", "ranks      1 to 64", "plan functions of 2080 ranks say the same"
    )
    assert "at run time" not in done.out and "refused" not in done.out


def test_what_is_said(built, spmd_here):
    image = built(HALO)
    done = spmd_here("verify", image, "--json", "--ranks", "1-9").expect(0)
    found = json.loads(done.out)
    assert found["ranks"] == list(range(1, 10)) and found["exchanges"] == 4
    assert found["transfers"] > 100 and found["executed"] == 0
    assert found["digest"] == manifest.read(image.read_bytes()).digest


def test_what_the_program_computes_is_left_to_run_time(built, spmd_command):
    spmd_command("verify", built(COMPUTED)).expect(0, "at run time: exchange 0")


@pytest.mark.parametrize(("change", "text"), [
    (lambda row: row.update(dest=["+", row["dest"], 1]), "a receiver of its own"),
    (lambda row: row.update(dest=0), "receives from"),
    (lambda row: row.update(source=["+", row["source"], 1]), "receives from"),
    (lambda row: row["send"].update(offset=["+", row["send"]["offset"], 1]), "box 'send' within"),
    (lambda row: row["send"]["extent"].__setitem__(0, 1), "both name one box"),
    (lambda row: row["into"].update(offset=1), "box 'into' within"),
    (lambda row: row["into"].update(offset=-1), "elements -1 to"),
])
def test_a_permute_that_does_not_match(built, spmd_here, tmp_path, change, text):
    copy = edited(built(HALO), tmp_path, lambda notes: change(notes["exchanges"][0]))
    spmd_here("verify", copy).expect(
        65, "exchange 0 (permute, ", "does not match with the mesh (x=", text
    )


@pytest.mark.parametrize(("box", "offset", "text"), [
    ("into", -1, "box 'into' within"), ("give", -1, "box 'give' within"),
    ("give", 0, "both name one place for it"),
])
def test_a_gather_that_does_not_match(built, spmd_here, tmp_path, box, offset, text):
    def change(notes):
        row = next(row for row in notes["exchanges"] if row["kind"] == "all_gather")
        row[box]["offset"] = offset

    spmd_here("verify", edited(built(HALO), tmp_path, change)).expect(65, "all_gather", text)


def only_itself(row, i):
    return [[i, ["+", i, 1], i, ["+", i, 1]], *row["near"][1:]]


@pytest.mark.parametrize(("change", "text"), [
    (lambda row, i: [[["+", row["near"][0][0], 1], *row["near"][0][1:]], *row["near"][1:]],
     "agree whether"),
    (only_itself, "reads nothing of"),
    (lambda row, i: [[-1, *row["near"][0][1:]], *row["near"][1:]], "expected: members 0 to"),
    (lambda row, i: [[0, 1 << 40, 0, 1 << 40], *row["near"][1:]], "expected: members 0 to"),
    (lambda row, i: row["near"][:1], "damaged"),
    (lambda row, i: [[0, 1, 0], *row["near"][1:]], "damaged"),
])
def test_neighbours_that_do_not_match(built, spmd_here, tmp_path, change, text):
    def edit(notes):
        (row,) = notes["exchanges"]
        assert row["flow"] == "near"
        row["near"] = change(row, notes["coordinates"][0])

    spmd_here("verify", edited(built(STENCIL), tmp_path, edit)).expect(65, text)


@pytest.mark.parametrize("change", [
    lambda notes: notes.update(exchanges=[{}]),
    lambda notes: notes.update(coordinates=["a"]),
    lambda notes: notes["exchanges"][0].update(dest=["os.system", 1]),
    lambda notes: notes["exchanges"][0]["from"].update(buffer=99),
    lambda notes: notes["exchanges"][0].update(axes=["z"]),
    lambda notes: notes["exchanges"][0].update(flow="sideways"),
    lambda notes: notes.update(load=[["+"] * 3]),
])
def test_damaged_notes_are_refused(built, spmd_here, tmp_path, change):
    done = spmd_here("verify", edited(built(HALO), tmp_path, change))
    done.expect(65, "damaged")


def test_a_manifest_that_the_machine_code_does_not_follow(built, spmd_here, tmp_path):
    """Buffers are said to be larger than the code makes them: only running it shows that."""
    image = built(HALO)
    data = image.read_bytes()
    at, size = elf.read_sections(data)[1][".spmd.manifest"]
    buffer = re.search(rb'"bytes": ?\["\*", ?4', data[at : at + size]) or re.search(
        rb'"bytes": ?\["\+", ?\["\*", ?4', data[at : at + size]
    )
    assert buffer
    old = buffer.group(0)
    copy = edited(image, tmp_path, old=old, new=old[:-1] + b"8")
    spmd_here("verify", copy).expect(0)
    spmd_here("verify", copy, "--execute").expect(
        65, "the machine code and the manifest differ", "bytes of buffer"
    )


def test_a_buffer_of_a_negative_size(built, spmd_here, tmp_path):
    old = b'"bytes":["*",4,["begin",1,200,"n_x"]],'
    copy = edited(built(HALO), tmp_path, old=old, new=old.replace(b"200", b"-20"))
    spmd_here("verify", copy).expect(65, "has a negative size on", "0 bytes or more", "-80 bytes")


@pytest.mark.parametrize(("code", "text", "limit_s"), [
    (b"\x0f\x0b", "crash", 30), (b"\xeb\xfe", "do not end", 1),
])
def test_plan_functions_that_crash_or_hang(
    built, tmp_path, capsys, monkeypatch, code, text, limit_s
):
    """In a child process: this one goes on."""
    from spmd import cli
    from spmd.verify import images as verify

    image = built(HALO)
    symbols = subprocess.run(["nm", image], capture_output=True, text=True, check=True).stdout
    address = int(re.search(r"^(\w+) t load$", symbols, re.MULTILINE).group(1), 16)
    sections = subprocess.run(["readelf", "-SW", image], capture_output=True, text=True).stdout
    start, offset = (int(x, 16) for x in re.search(r"\.text +PROGBITS +(\w+) (\w+)",
                                                   sections).groups())
    data = image.read_bytes()
    at = address - start + offset
    old = data[at : at + 16]
    assert data.count(old) == 1
    copy = edited(image, tmp_path, old=old, new=code + old[2:])
    monkeypatch.setattr(verify, "EXECUTE_S", limit_s)
    assert cli.main(["verify", str(copy)]) == 0
    assert cli.main(["verify", str(copy), "--execute", "--ranks", "2"]) == 65
    assert text in capsys.readouterr().err


def test_nothing_is_executed_without_being_asked(built, spmd_here, tmp_path):
    """An image of another machine can be verified as far as its plan goes."""
    data = bytearray(built(HALO).read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # e_machine: aarch64
    sections = elf.read_sections(bytes(data))[1]
    at, room = sections[".spmd.digest"]
    data[at : at + room] = manifest.make_digest(bytes(data), sections)
    copy = tmp_path / "other.img"
    copy.write_bytes(data)
    spmd_here("verify", copy).expect(0, "exchanges  4 match")
    spmd_here("verify", copy, "--execute").expect(65, "built for aarch64")


SHARD = "    @spmd.shard"
TWO = HALO.replace(SHARD, f'    spmd.require(spmd.axis_size("x") == 2)\n\n{SHARD}')


def test_numbers_of_ranks_that_the_program_refuses(built, spmd_here):
    image = built(TWO)
    spmd_here("verify", image, "--ranks", "1-8").expect(0, "ranks      2, 4", "refused    1, 3")
    spmd_here("verify", image, "--ranks", "9").expect(78, "cannot form the mesh")
    spmd_here("verify", image, "--mesh", "x=2,y=3").expect(0, "ranks      6")
    spmd_here("verify", image, "--ranks", "0-3").expect(2, "from 1")


def test_a_part_of_the_mesh_and_local_programs(built, spmd_here, tmp_path):
    """Given sizes of the mesh stay; a local program runs on the mesh that was patched in, and no
    other."""
    image = built(EXAMPLES / "heat.py")
    spmd_here("verify", image, "--mesh", "x=3").expect(0, "ranks      3, 6, 9, 12,")
    spmd_here("patch", image, "--index", 1, "--mesh", "x=3,y=2", "-o", tmp_path).expect(0)
    (local,) = tmp_path.iterdir()
    spmd_here("verify", local).expect(0, "ranks      6:", "rank 1 of")
    spmd_here("verify", local, "--ranks", 4).expect(78, "4 ranks cannot form the mesh")


def test_a_scalar_that_nobody_gave(built, spmd_here):
    default, text = "k = 3", "scalar k was not given, and the program declares no default"
    program = COMPUTED.replace("computed():", f"computed():\n    {default}")
    program = program.replace("i + d", "i + k")
    assert program.count("i + k") == 2
    given = built(program.replace(default, 'k = spmd.scalar("k", dtype=int)'))
    spmd_here("verify", given).expect(65, text, "--set k=VALUE")
    spmd_here("run", given, "--ranks", 3).expect(65, text, "--set k=VALUE")
    spmd_here("verify", given, "--set", "k=2", "--ranks", "1-70").expect(0, "1 match")


def test_more_ranks_than_are_looked_at(built, spmd_here):
    spmd_here("verify", built(STENCIL), "--ranks", 1 << 25).expect(2, "up to 16777216")


def test_what_is_no_image(spmd_command, tmp_path):
    spmd_command("verify", tmp_path).expect(65, "not an spmd image")
    spmd_command("verify", tmp_path / "gone").expect(74, "gone")


CASTS = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def casts():
    x = spmd.input("x", (4, 4), np.float64, layout=("r", None))
    return x.relayout((None, "r")).astype(np.float32)
'''


def test_copies_that_are_not_those_of_numpy_are_seen(built, monkeypatch):
    """An engine that takes elements of the result for as long as those that arrive."""
    path = str(built(CASTS))
    ledger = Ledger(manifest.read(Path(path).read_bytes()), path)
    assert TriedBoxes(ledger).differs((2,), {}) is None

    def takes_them_for_equal(into, into_stride, into_size, *rest):
        lib.spmd_take_probe(into, into_stride, rest[2], *rest)

    monkeypatch.setattr(engine_copies, "lib", SimpleNamespace(spmd_take_probe=takes_them_for_equal))
    assert "brings" in TriedBoxes(ledger).differs((2,), {})["expected"]

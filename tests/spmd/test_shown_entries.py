"""Entries and state in what `show`, `verify`, `patch` and notebooks say of an image."""

from __future__ import annotations

import json

import pytest

import spmd
from codegen.errors import ImageError, UsageError
from tests.conftest import ROOT
from tests.spmd.plans import edited

PROGRAM = ROOT / "tests" / "spmd" / "walks.py"
LINE = {line.strip()[4:].partition("(")[0]: number for number, line in
        enumerate(PROGRAM.read_text().splitlines()) if line.startswith("    def ")}  # of the mark
SAID = f"""\
state       u: float64[10, 3] over ("r", None)
state       parts.in: float32[4] over (None,)
state       parts.b.0: int32[10] over ("r",)
state       steps: int64[] over ()
entry       walk: reads u, parts.b.0, steps; changes u, parts.b.0, steps  (walks.py:{LINE["walk"]})
  scalar      factor: float64 = 1.0
  input       by: float64[10, 3] over ("r", None)
  output      sum: float64[] over ()
  output      u: float64[10, 3] over ("r", None)
entry       turned: reads u  (walks.py:{LINE["turned"]})
  scalar      shift: int64 = 1
  output      result: float64[] over ()
entry       where: reads u, steps  (walks.py:{LINE["where"]})
  output      0: float64[10, 3] over ("r", None)
  output      1: int64[] over ()
entry       reset: changes u  (walks.py:{LINE["reset"]})
"""


@pytest.fixture(scope="module")
def image(built):
    return built(PROGRAM)


def test_show_says_what_there_is_to_call(image, spmd_here):
    assert SAID in spmd_here("show", image).expect(0).out
    found = json.loads(spmd_here("show", image, "--json").expect(0).out)
    assert [e["name"] for e in found["entries"]] == ["__init__", "walk", "turned", "where", "reset"]
    spmd_here("show", image, "--sizes").expect(0, "buffers of a rank")


@pytest.mark.parametrize(("level", "lines"), [
    ("graph", ["scalar factor: float64 = 1.0", 'state %u: float64[10, 3] over ("r", None)',
               f"  entry walk:  # line {LINE['walk']}", "    state steps = ",
               "    output sum = %reduce", "    output 0 = %u"]),
    ("program", [f"  entry reset:  # line {LINE['reset']}", "    state u = %full"]),
    ("loops", ["state steps: int64[]", f"  entry where:  # line {LINE['where']}",
               "    output 1 is steps"]),
    ("plan", ["state u in buffer 0", "  entry turned", "new state u in buffer", "output walk.sum"]),
])
def test_levels_have_a_part_for_each_entry(image, spmd_here, level, lines):
    text = spmd_here("show", image, f"--{level}").expect(0, *lines).out
    for hidden in ("scalar entry", "blank", "arm ", "branch", "region 1", "on=entry"):
        assert hidden not in text, hidden


def test_layouts_name_states_and_entries(image, spmd_here):
    text = spmd_here("show", image, "--layouts", "--ranks", 2).expect(0).out
    assert text.count("(state)") == 4 and "once, in turned" in text and "in the branch" not in text
    rows = {row["name"]: row for row in spmd.load(image).layouts(ranks=2)}
    assert rows["u"]["what"] == ["state"] and rows["u"]["rank_bytes"] == 120
    assert rows["walk.by"]["what"] == ["input"] and rows["where.0"]["what"] == ["result"]
    page = spmd.load(image)._repr_html_()
    for said in ("state", "entry", "turned", "parts.b.0", "factor"):
        assert f">{said}</" in page, page


def test_verify_looks_at_every_entry(image, spmd_here, tmp_path):
    done = spmd_here("verify", image, "--execute").expect(
        0, "entries    walk, turned, where, reset: the exchanges of all of them")
    assert "at run time" not in done.out
    (row,) = [spmd.load(image).verify(ranks=range(1, 9), shift=2)[0]]
    assert row["entries"] == ["walk", "turned", "where", "reset"] and row["exchanges"] == 3

    def change(notes):  # who sends to whom is wrong while its own entry runs, the second one
        row = next(row for row in notes["exchanges"] if row["kind"] == "permute")
        row["dest"] = ["+", row["dest"], ["floordiv", "entry", 2]]

    spmd_here("verify", edited(image, tmp_path, change)).expect(65, "(permute, ")
    with pytest.raises(ImageError, match="permute"):
        spmd.load(tmp_path / "edited.img").verify()


def test_the_scalar_that_chooses_is_nobodys(image, spmd_here, tmp_path):
    for command in (["verify", image], ["patch", image, "--all", 2, "-o", tmp_path],
                    ["show", PROGRAM]):
        spmd_here(*command, "--set", "entry=1").expect(
            2, "no scalar 'entry'", "expected: factor, shift", "run --entry NAME")
    with pytest.raises(UsageError, match="no scalar 'entry'"):
        spmd.load(image).verify(entry=1)


def test_local_programs_run_any_entry(image, spmd_here, tmp_path, mpirun):
    spmd_here("patch", image, "--all", 2, "-o", f"{tmp_path}/", "--set", "factor=3").expect(0)
    programs = sorted(tmp_path.glob("*.img"))
    spmd_here("show", programs[0]).expect(0, "local       rank 0 of 2")
    command = ["-m", "spmd", "run"]
    for entry, said in (("where", "1: int64 0"), ("turned", "result: float64 0.0")):
        mpirun(1, *command, programs[0], "--entry", entry, ":", "-n", 1, "python", *command,
               programs[1], "--entry", entry).expect(0, said)

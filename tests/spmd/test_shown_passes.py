"""`spmd show FILE.py --passes`, and `--without PASS` of show and build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spmd import cli

PROGRAM = """import numpy as np
import spmd

@spmd.program(mesh=("r",))
def smooth(n: int = 30):
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
    up, down = u + 1, u - 1
    return {"up": up, "down": down, "total": np.sum(u[1:] - u[:-1])}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "smooth.py"
    path.write_text(PROGRAM)
    return path


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> tuple[str, str]:
    assert cli.main([str(a) for a in arguments]) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


def test_each_pass_has_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, 0, "show", file, "--passes")[0].splitlines()
    assert lines[0].startswith("smooth: ") and "passes changed something" in lines[0]
    words = {line.split()[0]: line for line in lines[1:]}
    assert "exchanges 0 -> " in words["partition"] and words["reshape_chains"].endswith("-")
    assert "acts" in words["fuse"] and "lines of C 0 -> " in words["emit"]


def test_for_programs_to_read(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, 0, "show", file, "--passes", "--json", "--without", "fuse")[0])
    rows = {row["name"]: row for row in found["passes"]}
    assert rows["fuse"]["left_out"] and not rows["fuse"]["changed"]
    assert rows["partition"]["changed"] and rows["partition"]["after"]["exchanges"] > 0
    assert all(row["seconds"] >= 0 for row in found["passes"]) and found["tracing"] > 0


def test_a_build_without_a_pass_is_another_image(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = said(capsys, 0, "show", file, "--c")[0]
    without = said(capsys, 0, "show", file, "--c", "--without", "fuse,self_exchange_elision")[0]
    again = said(capsys, 0, "show", file, "--c")[0]
    assert plain == again != without and without.count("for (") > plain.count("for (")


def test_what_cannot_be_left_out_or_shown_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = file.with_suffix(".img")
    said(capsys, 0, "build", file, "-o", image)
    for message, *arguments in (
        ("there is no pass 'fusion'", "build", file, "--without", "fusion"),
        ("the pass to_plan cannot be left out", "show", file, "--passes", "--without", "to_plan"),
        ("--passes is for a FILE.py", "show", image, "--passes"),
        ("--without is for a FILE.py", "show", image, "--without", "fuse"),
        ("--passes stands alone", "show", file, "--passes", "--c"),
    ):
        assert message in said(capsys, 2, *arguments)[1]

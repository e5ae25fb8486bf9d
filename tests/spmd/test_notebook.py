"""What Python users see: tables, HTML, outputs that stay on the ranks, mistakes in their line."""

from __future__ import annotations

import json
import linecache
import re
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import MeshError, OutputError, UsageError
from spmd.launch.job import Job


@spmd.program(mesh=("x",))
def step(n: int = 10):
    factor = spmd.scalar("factor", 2.0)
    u = spmd.input("u", (n,), np.float64, layout=("x",), default=lambda i: i)
    w = spmd.input("w", (n,), np.float64, layout=(None,), default=lambda i: 2 * i)
    z = spmd.input("z", (n,), np.float64, layout=("x",), default=lambda i: 3 * i)
    same = np.roll(u, 1) * factor if 2 < n else u
    return {"u": same, "w": w + 1, "z": z - u, "total": np.sum(u)}


U = np.arange(10.0)


@pytest.fixture(scope="module")
def image() -> Any:
    return spmd.build(step)


@pytest.fixture
def copies(monkeypatch: Any) -> list[str]:
    """The names of the arrays that are copied between Python and the ranks."""
    found: list[str] = []
    put, get = Job.put, Job.get_array

    def putting(job: Job, number: int, *rest: Any) -> None:
        found.append(f"put {job.manifest['inputs'][number]['name']}")
        put(job, number, *rest)

    def getting(job: Job, array: int, *rest: Any) -> None:
        found.append(f"get {job.array(array)['name']}")
        get(job, array, *rest)

    monkeypatch.setattr(Job, "put", putting)
    monkeypatch.setattr(Job, "get_array", getting)
    return found


@pytest.mark.parametrize("ranks", [1, 3, 12])
def test_kept_outputs_are_inputs_of_the_next_call(image: Any, copies: list[str], ranks: int):
    """Without a copy to Python, in any order, also where one lies in the memory of another."""
    with image.open(ranks=ranks, keep=True) as job:
        out = job()
        for turn in range(6):
            if turn % 2:  # of another name, the other way round
                out = job(u=out["z"], w=out["w"], z=out["u"])
            else:
                out = job(u=out["u"], w=out["w"], z=out["z"])
        assert copies == []
    assert sorted(copies) == ["get total", "get u", "get w", "get z"]  # at the end, once
    expected = _numpy({"u": U, "w": 2 * U, "z": 3 * U})
    for turn in range(6):
        given = dict(expected)
        if turn % 2:
            given["u"], given["z"] = expected["z"], expected["u"]
        expected = _numpy(given)
    for name, array in expected.items():
        np.testing.assert_array_equal(out[name], array)


def _numpy(a: dict[str, Any]) -> dict[str, Any]:
    return {"u": np.roll(a["u"], 1) * 2, "w": a["w"] + 1, "z": a["z"] - a["u"],
            "total": np.sum(a["u"])}


def test_kept_beside_what_is_given(image: Any, copies: list[str]):
    with image.open(ranks=3, keep=("u",)) as job:
        first = job(u=U)
        assert repr(first["u"]) == "<spmd.Distributed u: float64 (10,), kept on the ranks>"
        assert type(first["w"]) is np.ndarray and float(first["total"]) == 45
        del copies[:]
        second = job(u=first["u"], z=U)
        assert "put z" in copies and not {"put u", "get u"} & set(copies)
        np.testing.assert_array_equal(second["z"], U - np.roll(U, 1) * 2)
        with pytest.raises(UsageError, match="has been called again"):
            np.asarray(first["u"])
        with pytest.raises(UsageError, match="has been called again"):
            job(u=first["u"])
        assert "no longer there" in repr(first["u"])
        u = np.asarray(second["u"])  # a copy: the next call leaves it alone
        third = job(u=U)  # put again
        np.testing.assert_array_equal(third["u"], np.roll(U, 1) * 2)
        np.testing.assert_array_equal(u, np.roll(U, 2) * 4)
        np.testing.assert_array_equal(second["u"].gather(), u)
        del copies[:]
        swapped = job(u=third["w"], w=third["u"])  # another layout: through Python
        assert {"put u", "put w"} <= set(copies)
        np.testing.assert_array_equal(swapped["w"], np.roll(U, 1) * 2 + 1)
        scaled = job(u=swapped["u"], factor=5.0)  # loads the image again
        np.testing.assert_array_equal(scaled["u"], np.roll(third["w"], 2) * 10)
        np.testing.assert_array_equal(job()["u"], np.roll(U, 1) * 2)  # defaults, not the kept ones
    with pytest.raises(UsageError, match="no output 'v'\n  expected: u, w, z, total"):
        image.open(keep="v")


@spmd.program(mesh=("x", "y"))
def turned(n: int = 6):
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"))
    turn = spmd.shard_map(lambda u: u.T, mesh=("x", "y"), out_layouts=("y", "x"))
    return turn(u)


def test_kept_where_input_and_output_lie_otherwise(copies: list[str]):
    """A process that hosts all ranks copies; the array is that of NumPy in any case."""
    u = np.arange(36, dtype=np.float32).reshape(6, 6)
    with spmd.build(turned).open(mesh={"x": 3, "y": 2}, keep=True) as job:
        out = job(u=u)
        for _ in range(2):
            out = job(u=out)
        np.testing.assert_array_equal(out, u.T)
    assert copies.count("put u") == 3


@spmd.program(mesh=("x",))
def crossed(n: int = 10):
    u = spmd.input("u", (n,), np.float64, layout=("x",))
    v = spmd.input("v", (n,), np.float64, layout=("x",))
    return {"u": v, "v": u}


def test_kept_outputs_that_lie_in_each_others_inputs(copies: list[str]):
    """Output u is the memory of input v, and the other way round: both must move at once."""
    with spmd.build(crossed).open(ranks=3, keep=True) as job:
        out = job(u=U, v=-U)
        out = job(u=out["u"], v=out["v"])
        inside = [job._job.shard(k, 0)[2] for k in range(4)]  # type: ignore[union-attr]
        assert inside[:2] == inside[:1:-1]
        assert copies == ["put u", "put v"]
    np.testing.assert_array_equal(out["u"], U)
    np.testing.assert_array_equal(out["v"], -U)


def test_a_profile(image: Any, monkeypatch: Any):
    profile = image.profile(ranks=3, u=U)
    assert str(profile).startswith("profile: ") and "waiting: " in repr(profile)
    assert profile[0]["seconds"] == max(row["seconds"] for row in profile)
    assert {"compute", "all_reduce"} <= {row["kind"] for row in profile}
    html = profile._repr_html_()
    assert html.count("<tr>") == len(profile) + 1
    assert "if 2 &lt; n else" in html and "if 2 < n" not in html
    monkeypatch.setenv("MPLBACKEND", "agg")
    axes = profile.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{row['kind'].replace('_', '-')}  {row['place']}" for row in profile
    ]
    bars = [bar.get_width() for bar in axes.patches[: len(profile)]]
    assert bars == pytest.approx([r["seconds"] * (1 - r["waiting"]) * 1e3 for r in profile])
    assert profile.plot(ax=axes) is axes


def test_a_timeline(image: Any, tmp_path: Path):
    path = tmp_path / "t.json"
    assert str(path) in image.timeline(path, ranks=3, u=U, factor=3)
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1, 2}
    with pytest.raises(OutputError, match="timeline: cannot write"):
        image.timeline(tmp_path / "none" / "t.json", ranks=3)


def test_layouts_and_verify(image: Any, tmp_path: Path, spmd_command: Any):
    """The same as the commands print."""
    image.save(tmp_path / "step.img")
    shown = spmd_command("show", tmp_path / "step.img", "--layouts", "--ranks", 3).expect(0).out
    layouts = image.layouts(ranks=3)
    assert repr(layouts) + "\n" == shown and layouts.mesh == {"x": 3}
    assert layouts[0]["name"] == "u" and layouts[0]["rank_bytes"] == 32
    assert [row["rank_bytes"] for row in layouts.exchanges if row["kind"] == "shift"] == [8]
    assert "&lt;" in layouts._repr_html_() and "2 < n" not in layouts._repr_html_()
    verified = image.verify(ranks=(1, 3, 70))
    assert verified[0]["ranks"] == [1, 3, 70] and "whole, " in repr(verified)
    assert image.verify(mesh={"x": 4})[0]["ranks"] == [4]
    with pytest.raises(MeshError):
        image.verify(ranks=3, mesh={"x": 2})
    with pytest.raises(UsageError, match="ranks=0: a job needs at least one"):
        image.verify(ranks=0)
    with pytest.raises(UsageError, match="no scalar 'nothing'"):
        image.verify(nothing=3)


def test_an_image_in_html(image: Any):
    html = image._repr_html_()
    assert re.search(r"<td[^>]*>input</td><td[^>]*>u</td><td[^>]*>float64\[10\]</td>", html)
    assert "spmd image step, mesh (x)" in html and "&quot;x&quot;" in html


def test_a_mistake_shows_the_line_of_its_caller(image: Any, monkeypatch: Any):
    """The traceback has one frame of ours, which says how to see the others; no frame is in a
    cell."""

    def frames(call: Any) -> tuple[list[str], str]:
        with pytest.raises(spmd.SpmdError) as caught:
            call()
        error = caught.value
        assert error.__cause__ is None
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        return [file for file in files if "/spmd/" in file and "/tests/" not in file], "".join(
            error._render_traceback_()
        )

    with image.open(ranks=3) as job:
        for call in (
            lambda: image.run(ranks=3, u=np.ones(3)), lambda: job(v=1), lambda: image.profile(q=1),
            lambda: image.open(ranks=0), lambda: image.layouts(ranks=-1), lambda: spmd.load("/no"),
            lambda: spmd.build(step, m=3),
        ):
            ours, shown = frames(call)
            assert len(ours) <= 1, ours
            assert "lambda: " in shown and "Error: " in shown and "raise" not in shown
    monkeypatch.setenv("SPMD_DEBUG", "1")
    ours, shown = frames(lambda: image.run(ranks=3, u=np.ones(3)))
    assert len(ours) > 3 and "raise InputError" in shown


def test_places_in_a_notebook_are_called_as_jupyter_does(monkeypatch: Any):
    """In a mistake, in a warning and in a table: no file that Jupyter made up."""
    text = """
@spmd.program(mesh=("r",))
def cell(n: int = 4):
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
    return u if n == 4 else u + np.ones(9)
"""
    file = "/tmp/ipykernel_7/1234567.py"
    monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(True), file))
    names: dict[str, Any] = {"np": np, "spmd": spmd}
    exec(compile(text, file, "exec"), names)
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={file: 3}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with pytest.raises(spmd.ShapeError) as caught:
        spmd.build(names["cell"], n=5)
    shown = "\n".join(caught.value._render_traceback_())
    assert "ShapeError: Cell In[3], line 5: operands" in shown and "ipykernel" not in shown
    image = spmd.build(names["cell"])
    for table in (image.layouts(), image.profile(ranks=2)):
        for shown in (repr(table), table._repr_html_()):
            assert "Cell In[3], line 4" in shown and "1234567" not in shown
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert "1234567.py:4" in repr(image.layouts())


def test_what_is_given_by_place_instead_of_by_name(image: Any):
    for call in (lambda: image.run(4), lambda: spmd.build(step, 7)):
        with pytest.raises(TypeError) as caught:
            call()
        assert "by name, as in run(ranks=4)" in caught.value.__notes__[0]


def test_uncaught_mistakes_have_the_name_that_users_import():
    named = [getattr(spmd, name) for name in spmd.__all__ if name.endswith(("Error", "Fault"))]
    assert {kind.__module__ for kind in named} == {"spmd"} and len(named) > 20

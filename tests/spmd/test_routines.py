"""Routines of libraries: one table, tried beside NumPy by `doctor`, named in manifests."""

from __future__ import annotations

import numpy as np

import spmd
from codegen.library_routines import every
from spmd import doctor_engine
from spmd.image import load
from spmd.launch import routines
from spmd.routine_checks import beside_numpy


def test_every_routine_gives_what_numpy_gives():
    known = {row.of(dtype).name for row, dtype in every() if row.trial is not None}
    said = [pair for source in routines.SOURCES for pair in beside_numpy(source)]
    assert {name for name, _ in said} == known and len(said) == len(known) > 50
    assert [(name, fault) for name, fault in said if fault] == []
    handed_over = {row.of(dtype).name for row, dtype in every()} - known
    assert all(name.endswith(" data") for name in handed_over)  # by trials of what reads them


def test_a_routine_that_differs_is_named(monkeypatch):
    find = routines.address
    monkeypatch.setattr(
        routines, "address", lambda source, name: find(source, name.replace("even dd", "odd dd")))
    rows = list(doctor_engine._routines("numpy"))
    assert [row.state for row in rows] == ["warning", "ok"]
    assert rows[0].found.startswith("fft._pocketfft_umath.rfft_n_even dd->D of numpy: an element")
    assert rows[1].found == "9 of numpy give what NumPy gives"


@spmd.program(mesh=("r",))
def factored(n: int = 40):
    a = spmd.input("a", (n, n), np.float64, layout=("r", None),
                   default=lambda i, j: (i == j) * 3 + 1 / (1 + i + j))
    return np.linalg.cholesky(a @ a.T)


def test_manifests_say_which_buffers_a_routine_is_handed(tmp_path, spmd_command):
    image = spmd.build(factored)
    rows = {row["routine"]: row for row in image.manifest["libraries"]}
    assert {"dpotrf"} < set(rows) and all(row["source"] == "openblas" for row in rows.values())
    names = {b["number"]: b["name"] for b in image.manifest["buffers"]}
    assert [row["number"] for row in image.manifest["libraries"]] == list(range(len(rows)))
    assert any("cholesky" in names[k] for k in rows["dpotrf"]["buffers"])
    for row in rows.values():
        operation = image.manifest["operations"][row["operations"][0]]
        assert row["buffers"] and set(row["buffers"]) <= set(operation["buffers"])
    path = tmp_path / "factored.img"
    image.save(path)
    buffers = ", ".join(map(str, rows["dpotrf"]["buffers"]))
    spmd_command("show", str(path)).expect(0, f"dpotrf of openblas, buffers {buffers}, operations")
    assert load(path).manifest["libraries"] == image.manifest["libraries"]


def test_rows_are_of_libraries_that_ranks_find():
    assert {row.source for row, _ in every()} | {"engine"} == set(routines.SOURCES)

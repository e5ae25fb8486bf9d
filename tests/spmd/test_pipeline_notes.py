"""What a build, spmd show and a timeline say of pipelines: cuts, idle time, ticks."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest

import spmd
from codegen.errors import ImageError
from codegen.image import manifest
from spmd import pipeline_notes
from spmd.schedules.tick_positions import TickPosition, packed
from tests.spmd import small_pipeline
from tests.spmd.test_show import made

PROGRAM = Path(small_pipeline.__file__)
LINE = 1 + PROGRAM.read_text()[:PROGRAM.read_text().index("spmd.pipeline(")].count("\n")


@pytest.fixture(scope="module")
def images(built):
    """Return a function that gives the image of the program with these parameters."""
    return lambda **parameters: built(PROGRAM, **parameters)


def test_a_build_says_the_cut_and_the_idle_time(spmd_here, tmp_path):
    said = spmd_here("build", PROGRAM, "-o", tmp_path / "p.img").expect(0).err
    for part in (f"small_pipeline.py:{LINE}: a pipeline of 4 stages, 1f1b, 2 microbatches",
                 "stage 0: layers 0 to 1, 32 parameters", "at most 2.50 times as fast",
                 "ranks are idle for 60 % of the time"):
        assert part in said
    said = spmd_here("build", PROGRAM, "-o", tmp_path / "p.img", "--set", "microbatches=24")
    assert "at most 2.50" in said.err and "idle" not in said.err  # 11 % are not notable


def test_a_build_in_python_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spmd.build(small_pipeline.train)


@pytest.mark.parametrize(("accumulate", "expected"), [
    (None, "3, 2, 1, 0 (at most in flight / accumulate: 4, 3, 2, 1)"),
    (4, "1, 1, 1, 0 (at most in flight / accumulate: 1, 1, 1, 1)"), ("8 ticks", "1, 1, 1, 1")])
def test_updates_that_a_microbatch_crosses(accumulate, expected):
    schedule = spmd.schedules.make_schedule("continuous", 4, 8, accumulate)
    text = pipeline_notes.crossed_text(schedule)
    assert text == f"updates that a microbatch crosses, at each stage: {expected}"


@pytest.mark.parametrize("microbatches", [1, 2, 5, 12])
def test_the_idle_share(microbatches):
    """GPipe and 1F1B idle for (p - 1) / (m + p - 1); without flush no stage idles once it is
    filled."""
    for name in ("gpipe", "1f1b"):
        schedule = spmd.schedules.make_schedule(name, 4, microbatches)
        share = pipeline_notes.idle_share(schedule)
        assert share == pytest.approx(3 / (microbatches + 3))
    schedule = spmd.schedules.make_schedule("continuous", 4, microbatches)
    assert pipeline_notes.idle_share(schedule) == pytest.approx(0)


def test_show_draws_the_schedule_of_an_image(images, spmd_here, tmp_path):
    image = images()
    assert "1f1b: 4 stages, 2 microbatches, 10 ticks" in spmd_here("show", image).expect(0).out
    text = spmd_here("show", image, "--schedule").expect(0).out
    schedule = spmd.schedules.make_schedule("1f1b", 4, 2)
    (one,) = pipeline_notes.pipelines_of(manifest.read(image.read_bytes()))
    assert one.schedule.ticks == schedule.ticks
    # of 12 examples, 4 float64 each: h, and what each layer makes of it; stage 0 has two layers
    assert list(one.kept) == [1152, 768, 768, 768]
    assert schedule.text(one.kept) in text and "stage 0: layers 0 to 1" in text
    on_two = spmd_here("show", image, "--schedule", "--ranks", 2).expect(0).out
    assert "rank 1, stage 2" in on_two and "rank 1, stage 3" in on_two
    file = tmp_path / "s.svg"
    assert spmd_here("show", image, "--schedule", "-o", file).expect(0).out == ""
    texts = [e.text for e in ElementTree.fromstring(file.read_text()).iter() if e.text]
    wrong = spmd_here("show", image, "--schedule", "--mesh", "dta=2").expect(2)
    assert "the program has no mesh axis 'dta'" in wrong.err
    halves = tmp_path / "halves.svg"
    spmd_here("show", image, "--schedule", "--mesh", "data=2", "-o", halves).expect(0)
    assert halves.read_text() != file.read_text()
    assert texts.count("F0") == 4 and texts.count("B1") == 4
    rows = json.loads(spmd_here("show", image, "--schedule", "--json").expect(0).out)
    assert rows[0]["schedule"]["ticks"]["F"] == [list(row) for row in schedule.ticks["F"]]


def test_show_draws_stages_where_they_lie(images, spmd_here):
    image = images(schedule="interleaved", place="round")
    text = spmd_here("show", image, "--schedule").expect(0).out
    assert "rank 0, stage 0" in text and "rank 0, stage 2" in text
    done = spmd_here("show", image, "--schedule", "--ranks", 3).expect(2)
    assert "ranks must divide the 4 stages" in done.err and "1, 2, 4" in done.err


def test_what_cannot_be_drawn(spmd_here, tmp_path):
    program = tmp_path / "plain.py"
    program.write_text("import spmd\n\n@spmd.program(mesh=('r',))\ndef f():\n"
                       "    return {'x': spmd.zeros(3)}\n")
    done = spmd_here("show", program, "--schedule").expect(2)
    assert "has a pipeline of spmd.pipeline" in done.err


@pytest.mark.parametrize("change", [
    lambda row: row["schedule"]["ticks"]["B"][0].__setitem__(0, 0),
    lambda row: row["schedule"]["ticks"].pop("F"), lambda row: row.update(kept=[1]),
    lambda row: row["schedule"]["ticks"]["F"].pop(), lambda row: row.update(stages_lie="x"),
    lambda row: row["schedule"].update(accumulate="ticks"), lambda row: row.update(schedule=3)])
def test_notes_that_cannot_be_trusted(images, tmp_path, change):
    rows = manifest.read(images().read_bytes()).notes()["pipelines"]
    image = made(tmp_path / "made.img", pipelines=rows)
    assert len(pipeline_notes.pipelines_of(manifest.read(image.read_bytes()))) == 1
    change(rows[0])
    image = made(tmp_path / "made.img", pipelines=rows)
    with pytest.raises(ImageError):
        pipeline_notes.pipelines_of(manifest.read(image.read_bytes()))


# ---- ticks of a run


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "continuous"])
def test_positions_name_each_action_once(name):
    schedule = spmd.schedules.make_schedule(name, 4, 3)
    count = 3 * (schedule.period or schedule.length)
    stages = range(4)
    found = [a for tick in range(count)
             for a in TickPosition.of(packed(2) + tick + 1).actions(schedule, stages)]
    expected = [a for a in schedule.actions(steps=9) if a.kind != "U" and a.tick < count]
    assert sorted(found) == sorted(expected)
    for tick in range(count):
        flight = TickPosition.of(packed(0) + tick + 1).in_flight(schedule, [1])
        begun = {a.microbatch for a in expected if a.stage == 1 and a.kind == "F"
                 and a.tick <= tick}
        last = "W" if schedule.splits_backward else "B"
        ended = {a.microbatch for a in expected if a.stage == 1 and a.kind == last
                 and a.tick < tick}
        assert flight == sorted(begun - ended)
        after = TickPosition.of(-(packed(0) + tick + 1))
        ended |= {a.microbatch for a in expected if a.stage == 1 and a.kind == last
                  and a.tick == tick}
        assert after.in_flight(schedule, [1]) == sorted(begun - ended)
        assert not list(after.actions(schedule, stages))


@pytest.mark.parametrize("schedule", ["1f1b", "continuous"])
def test_a_timeline_names_actions_and_microbatches(images, spmd_here, tmp_path, schedule):
    file, steps, microbatches = tmp_path / "t.json", 3, 2
    spmd_here("run", images(schedule=schedule), "--ranks", 4, "--mesh", "data=2", "--mesh",
              "stage=2", "--only", "loss", "--timeline", file).expect(0)
    events = json.loads(file.read_text())["traceEvents"]
    for rank in range(4):
        own = [e for e in events if e.get("tid") == rank and e["ph"] == "X"]
        ticks = [e for e in own if e["cat"] == "tick"]
        done = [action for e in ticks for action in e["name"].split(", ") if action != "idle"]
        # the second mesh axis has stages 0 and 1 on its first rank, 2 and 3 on the other one
        stages = (0, 1) if rank % 2 == 0 else (2, 3)
        expected = [f"{kind} {k} of stage {s}" for kind in "FB" for s in stages
                    for k in range(steps * microbatches)]
        assert sorted(done) == sorted(expected)
        inside = [e for e in own if e["cat"] == "compute" and any(
            t["ts"] <= e["ts"] and e["ts"] + e["dur"] <= t["ts"] + t["dur"] + 1e-3 for t in ticks)]
        assert len(inside) >= len(ticks)

"""Schedules as tables: what is read and written, and what is said of one that is not legal."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import spmd
from tests.spmd.schedule_simulator import Simulation

make = spmd.schedules.make_schedule
Cells = dict[tuple[int, int], str]  # tick and stage, as 2F0

BASES = (("1f1b", 4, 5), ("gpipe", 3, 4), ("zb-h1", 3, 4), ("zb-v", 4, 3), ("interleaved", 4, 4))


def cells_of(schedule: spmd.schedules.Schedule) -> Cells:
    return {(a.tick, a.stage): f"{a.stage}{a.kind}{a.microbatch}" for a in schedule.actions()}


def write(path: Path, cells: Cells, stages: int) -> Path:
    last = max(t for t, _ in cells)
    path.write_text("".join(",".join(cells.get((t, s), "") for s in range(stages)) + "\n"
                            for t in range(last + 1)))
    return path


def rows_of(cells: Cells) -> list[tuple[int, int, str, int]]:
    return sorted((t, s, cell[1], int(cell[2:])) for (t, s), cell in cells.items())


def changed(cells: Cells, stages: int, rng: random.Random) -> Cells:
    """Exchange two cells of a stage, one of which may be idle."""
    last = max(t for t, _ in cells)
    at, other = (rng.randrange(last + 2) for _ in range(2))
    stage = rng.randrange(stages)
    out = {place: cell for place, cell in cells.items() if place[1] != stage
           or place[0] not in (at, other)}
    for new, old in ((at, other), (other, at)):
        if (old, stage) in cells:
            out[new, stage] = cells[old, stage]
    return out


def broken(cells: Cells, stages: int) -> set[tuple[int, int, int]]:
    """(tick, stage, line of the other) of all actions that come too early."""
    tick = {cell: t for (t, _), cell in cells.items()}
    out = set()
    for (t, s), cell in cells.items():
        kind, k = cell[1], cell[2:]
        before = {"F": [f"{s - 1}F{k}"], "B": [f"{s}F{k}", f"{s + 1}B{k}"], "W": [f"{s}B{k}"]}
        out |= {(t, s, tick[b] + 1) for b in before[kind] if tick.get(b, -1) >= t}
    return out


def changes(legal: bool, number: int) -> list[tuple[int, Cells]]:
    """So many tables with one change, of which the simulator says whether they are legal."""
    rng, out = random.Random(32), []
    while len(out) < number:
        name, p, m = BASES[len(out) % len(BASES)]
        old = cells_of(make(name, p, m))
        new = changed(old, p, rng)
        try:
            Simulation(rows_of(new), p)
            runs = True
        except AssertionError:
            runs = False
        if new != old and runs == legal:
            out.append((p, new))
    return out


def test_fifty_illegal_changes_are_refused(tmp_path):
    for p, cells in changes(False, 50):
        path = write(tmp_path / "schedule.csv", cells, p)
        with pytest.raises(spmd.ScheduleError) as error:
            make(path)
        said = set()
        for problem in error.value.problems:
            found = re.fullmatch(
                re.escape(str(path)) + r":(\d+): tick (\d+), stage (\d+): [FBW] of microbatch \d+ "
                r"(?:before|in the same tick as) .*[FBW].* \(line (\d+)\)", problem)
            line, tick, stage, other = map(int, found.groups())
            assert line == tick + 1
            said.add((tick, stage, other))
        assert said == broken(cells, p) != set()


def test_fifty_legal_changes_pass(tmp_path):
    for p, cells in changes(True, 50):
        schedule = make(write(tmp_path / "schedule.csv", cells, p))
        simulation = Simulation(rows_of(cells), p)
        assert simulation.kept == [schedule.kept(s) for s in range(p)]
        assert {tuple(a) for a in schedule.actions()} == set(rows_of(cells))


@pytest.mark.parametrize("name", sorted(spmd.schedules.BUILT_IN))
def test_tables_say_what_schedules_say(name, tmp_path):
    for p, m in ((1, 1), (4, 8), (5, 3)):
        accumulate = 1 if name in ("continuous", "pipedream", "pipemare") else m
        schedule = make(name, p, m, accumulate=accumulate) if name != "2bw" or m == 8 else None
        if schedule is None:
            continue
        text = schedule.csv(tmp_path / "schedule.csv")
        again = make(tmp_path / "schedule.csv")
        assert again.csv() == text == (tmp_path / "schedule.csv").read_text()
        assert again.actions(3) == schedule.actions(3)
        assert (again.period, again.accumulate) == (schedule.period, schedule.accumulate)


def said_of(tmp_path: Path, text: str, *sizes: int) -> list[str]:
    (tmp_path / "schedule.csv").write_text(text)
    with pytest.raises(spmd.ScheduleError) as error:
        make(tmp_path / "schedule.csv", *sizes)
    return [p.removeprefix(f"{tmp_path}/") for p in error.value.problems]


def test_a_backward_pass_before_its_forward_pass(tmp_path):
    cells = cells_of(make("1f1b", 3, 4))
    del cells[9, 2]
    cells[8, 2], cells[10, 2] = "2B3", "2F3"
    path = write(tmp_path / "schedule.csv", cells, 3)
    assert said_of(tmp_path, path.read_text()) == [
        "schedule.csv:9: tick 8, stage 2: B of microbatch 3 before its F (line 11)"]


def test_microbatches_that_never_end(tmp_path):
    cells = {at: cell for at, cell in cells_of(make("1f1b", 2, 4)).items()
             if cell[1:] not in ("B2", "B3")}
    path = write(tmp_path / "schedule.csv", cells, 2)
    assert said_of(tmp_path, path.read_text()) == [
        "schedule.csv:5: tick 4, stage 0: microbatch 2 begins and is dropped: no B at stages 0, 1",
        "schedule.csv:7: tick 6, stage 0: microbatch 3 begins and is dropped: no B at stages 0, 1",
    ]
    text = make("1f1b", 2, 2).csv()
    assert said_of(tmp_path, text, 2, 3) == [
        "schedule.csv: microbatches of a step: 2 in the table, 3 are asked for"]
    assert said_of(tmp_path, text + "0W0,1W0\n0W1\n") == [
        "schedule.csv:3: tick 2, stage 0: microbatch 1 begins and is dropped: no W at stage 1"]


@pytest.mark.parametrize("old, new, said", [
    ("0F1", "0F0", "schedule.csv:3: tick 2, stage 0: F of microbatch 0 again (line 1)"),
    ("0F1", "1F1", "schedule.csv:3: tick 2, stage 0: 1F1 is of stage 1, whose column is another"),
    ("0F1", "f1", "schedule.csv:3: tick 2, stage 0: 'f1' is no action, which is written as 0F0"),
    ("0F1", "0F7", "schedule.csv:3: tick 2, stage 0: 0F7: there are 2 microbatches, from 0 on"),
    (",1F0", ",1F0 1B0", "schedule.csv:2: tick 1, stage 1: 1F0 and 1B0 in one tick"),
    (",1F0", ",1F0,2F0", "schedule.csv:2: tick 1, stage 2: there are 2 stages, from 0 on"),
])
def test_cells_that_cannot_be_taken(tmp_path, old, new, said):
    text = make("1f1b", 2, 2).csv()
    assert old in text
    assert said in said_of(tmp_path, text.replace(old, new, 1), 2, 2)


def test_updates_in_tables(tmp_path):
    """1F1B of 2 stages, 4 microbatches, with an update after each second backward pass."""
    text = make("continuous", 2, 4, accumulate=2).csv(tmp_path / "schedule.csv")
    assert "0B1 0U1" in text and "0U0" not in text
    schedule = make(tmp_path / "schedule.csv", correction="stash")
    assert (schedule.accumulate, schedule.period, schedule.correction) == (2, 8, "stash")
    assert make(tmp_path / "schedule.csv", accumulate=2).versions(0) == 1
    with pytest.raises(spmd.UsageError, match="the table has updates of its own"):
        make(tmp_path / "schedule.csv", accumulate=4)
    late = text.replace("0B1 0U1", "0B1").replace("0B2", "0B2 0U1")
    assert said_of(tmp_path, late) == [
        "schedule.csv:8: tick 7, stage 0: U of microbatch 1 after B of a later one, which belongs "
        "to the next U (line 8)"]
    early = text.replace("0B1 0U1", "0B1").replace("0F2", "0F2 0U1")
    assert said_of(tmp_path, early) == [
        "schedule.csv:5: tick 4, stage 0: U of microbatch 1 before its B (line 6)"]
    never = text.replace(" 0U1", "").replace(" 0U3", "")
    assert said_of(tmp_path, never) == [
        "schedule.csv: stage 0 has no U: its weights never change"]
    with pytest.raises(spmd.UsageError, match="not the same in each step of 4 microbatches"):
        make("continuous", 2, 4, accumulate=3).csv()


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(spmd.InputError, match="cannot read the schedule"):
        make(tmp_path / "absent.csv")
    (tmp_path / "schedule.csv").write_text(",,\n\n")
    with pytest.raises(spmd.InputError, match="a table without any action"):
        make(tmp_path / "schedule.csv")
    assert said_of(tmp_path, "0f0;\n0b0;\n") == [
        "schedule.csv:1: tick 0, stage 0: '0f0;' is no action, which is written as 0F0",
        "schedule.csv:2: tick 1, stage 0: '0b0;' is no action, which is written as 0F0"]
    (tmp_path / "schedule.csv").write_bytes(b"\xff\xfe0")
    with pytest.raises(spmd.InputError, match="cannot read the schedule"):
        make(tmp_path / "schedule.csv")
    (tmp_path / "one.csv").write_text("\ufeff 0F0 \r\n0B0\r\n\r\n", encoding="utf-8")
    assert make(str(tmp_path / "one.csv")).length == 2


def test_any_text_is_a_schedule_or_an_error(tmp_path):
    rng, legal = random.Random(5), 0
    for _ in range(400):
        text = list(make("continuous", 3, 4, accumulate=rng.choice((1, 2))).csv())
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(len(text))] = rng.choice("0123456789FBWU ,\n\"x")
        (tmp_path / "schedule.csv").write_text("".join(text))
        try:
            make(tmp_path / "schedule.csv")
            legal += 1
        except spmd.SpmdError as error:
            assert "schedule.csv" in str(error)
    assert legal > 4


def test_sizes_that_are_not_those_of_the_table(tmp_path):
    text = make("1f1b", 2, 2).csv()
    assert said_of(tmp_path, text, 3) == ["schedule.csv: 2 columns, and there are 3 stages"]
    assert "schedule.csv:3: tick 2, stage 0: 0F999999999: there are 2 microbatches, from 0 on" in (
        said_of(tmp_path, text.replace("0F1", "0F999999999").replace("1F1", "1F0")
                .replace("0B1", "0B0").replace("1B1", "1B0")))
    with pytest.raises(spmd.OutputError, match="cannot write"):
        make("1f1b", 2, 2).csv(tmp_path / "absent" / "schedule.csv")
    with pytest.raises(spmd.UsageError, match="no schedule: 7"):
        make(7, 2, 2)


def test_messages_of_large_tables_end(tmp_path):
    text = make("gpipe", 16, 32).csv()
    problems = said_of(tmp_path, text.replace("B", "X").replace("F", "B").replace("X", "F"))
    assert len(problems) > 500
    with pytest.raises(spmd.ScheduleError) as error:
        make(tmp_path / "schedule.csv")
    *_, end, remedy = lines = str(error.value).splitlines()
    assert len(lines) == 102 and end == f"and {len(problems) - 100} more" and "try:" in remedy
    assert error.value.exit_code == 65


def test_layers_in_the_place_of_microbatches(tmp_path):
    text = "0F0,,\n,1F1,\n,,2F2\n,,2B2\n,1B1,\n0B0,,\n"
    (tmp_path / "schedule.csv").write_text(text)
    assert said_of(tmp_path, text) == [
        "schedule.csv:1: tick 0, stage 0: microbatch 0 begins and is dropped: no F at stages 1, 2; "
        "no B at stages 1, 2",
        "schedule.csv:2: tick 1, stage 1: F of microbatch 1 without F of stage 0",
        "schedule.csv:2: tick 1, stage 1: microbatch 1 begins and is dropped: no F at stages 0, 2; "
        "no B at stages 0, 2",
        "schedule.csv:3: tick 2, stage 2: F of microbatch 2 without F of stage 1",
        "schedule.csv:3: tick 2, stage 2: microbatch 2 begins and is dropped: no F at stages 0, 1; "
        "no B at stages 0, 1",
        "schedule.csv:5: tick 4, stage 1: B of microbatch 1 without B of stage 2",
        "schedule.csv:6: tick 5, stage 0: B of microbatch 0 without B of stage 1",
    ]
    with pytest.raises(spmd.ScheduleError, match="a microbatch, which goes through all stages"):
        make(tmp_path / "schedule.csv")

"""Stages round after round and there and back, spare ranks, tables of files: to the bit; faults."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spmd
from spmd import optim
from spmd.schedules import make_schedule
from spmd.schedules.actions import rank_of
from tests.spmd import pipeline_by_hand as by_hand
from tests.spmd.test_pipelines import OPTIMIZERS, STEPS, Case, same_bits

PLACED = [  # layers, stages, microbatches
    ("interleaved", "round", 5, 4, 6), ("continuous", "v", 4, 4, 2), ("zb-v", "v", 4, 4, 3),
    ("pipedream", "round", 4, 3, 2),
]


@pytest.mark.parametrize(("schedule", "place", "layers", "stages", "microbatches"), PLACED)
def test_results_do_not_depend_on_where_stages_lie(
        schedule, place, layers, stages, microbatches):
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(layers, layers, microbatches)
    image = spmd.build(case.program(stages, mine, schedule=schedule, place=place))
    expected = by_hand.plain(case.layers, theirs, case.xs, case.ys, microbatches) if (
        make_schedule(schedule, stages, microbatches).flushes) else by_hand.without_flush(
        case.layers, case.cuts(stages), theirs, case.xs, case.ys, microbatches, 1,
        reads="then" if schedule == "pipedream" else "now")
    outs = [image.run(ranks=n, **case.inputs) for n in range(1, stages + 1) if stages % n == 0]
    assert len(outs) > 1
    case.check(outs[0], expected)
    for out in outs[1:]:
        same_bits(out, outs[0])
    with pytest.raises(spmd.MeshError, match="ranks must divide stages") as caught:
        image.run(ranks=5, **case.inputs)
    fits = {3: "1, 3", 4: "1, 2, 4"}[stages]
    assert f"one of these numbers of ranks: {fits}" in str(caught.value)


@pytest.mark.parametrize("place", ["block", "round", "v"])
def test_rows_of_stages(place):
    """Each rank's block of rows has the stages that rank_of says, in order."""
    stages = 12

    @spmd.program(mesh=("stage",))
    def rows():
        from spmd.pipelining.stage_places import StagePlaces
        from spmd.pipelining.stage_rows import crossings
        places = StagePlaces("stage", stages, place)
        own = spmd.zeros((stages, 1), layout=("stage", None))
        for s in range(stages):
            own[places.row(s), 0] = s
        found = {"stages": places.by_row(np.arange(stages)), "own": own}
        over_all = spmd.asarray(crossings(np.ones((1, stages - 1), bool)))[0]
        for name, step in (("before", 1), ("behind", -1)):
            found[name] = places.handed_on({"x": own}, step, None, over_all)["x"]
        return found

    image = spmd.build(rows)
    for n in (1, 2, 3, 4, 6, 12):
        out = image.run(ranks=n)
        lie = [s for r in range(n) for s in range(stages) if rank_of(s, stages, n, place) == r]
        assert out["stages"].tolist() == lie == out["own"][:, 0].tolist()
        for row, s in enumerate(lie):
            assert s == 0 or out["before"][row, 0] == s - 1
            assert s == stages - 1 or out["behind"][row, 0] == s + 1


def test_an_unknown_place_is_refused():
    case = Case(1, 3, 2)
    with pytest.raises(spmd.UsageError, match="one of block, round, v"):
        case.program(3, optim.sgd(0.1), place="rounds").capture()


def test_a_state_goes_on_on_as_many_ranks_only(tmp_path):
    """With stages round after round; in blocks it goes on on any number (test_pipelines.py)."""
    case = Case(6, 4, 2)
    ws = [w for _, w in case.layers]

    @spmd.program(mesh=("stage",))
    def train():
        feed = spmd.feed(x=spmd.spec(case.xs.shape[1:], np.float64),
                         y=spmd.spec(case.ys.shape[1:], np.float64))
        pipe = spmd.pipeline([(f, w) for (f, _), w in zip(case.layers, ws)], stages=4,
                             microbatches=2, place="round", optimizer=optim.sgd(0.1))
        state = pipe.init()
        for _ in spmd.range(STEPS):
            b = feed.next()
            state, _ = pipe.step(state, b.x, b.y)
        return pipe.params(state)

    given = [{"x": x, "y": y} for x, y in zip(case.xs, case.ys)]

    def breaks_off():
        yield from given[:2]
        raise OSError("the disk is gone")

    image = spmd.build(train, checkpoint=True)
    whole = image.run(ranks=1, feed=given)
    with pytest.raises(spmd.InputError, match="the disk is gone"):
        image.run(ranks=2, feed=breaks_off, checkpoint=str(tmp_path), every=1)
    with pytest.raises(spmd.CheckError, match='lie as on 2 ranks along "stage"'):
        image.run(ranks=4, feed=given, resume=str(tmp_path))
    resumed = image.run(ranks=2, feed=given, resume=str(tmp_path))
    same_bits({"losses": 0, "ws": resumed}, {"losses": 0, "ws": whole})


def test_a_table_gives_what_its_formulas_give(tmp_path):
    mine, _ = OPTIMIZERS["adamw"]
    case, path = Case(3, 4, 3), tmp_path / "continuous.csv"
    make_schedule("continuous", 3, 3, 3).csv(path)
    outs = [spmd.build(case.program(3, mine, schedule=schedule, accumulate=3)).run(
        ranks=2, **case.inputs) for schedule in ("continuous", str(path))]
    same_bits(*outs)
    assert outs[0]["after"] == outs[1]["after"]


OUT_OF_ORDER = """0F0,,
0F3,1F0,
0F1,1F3,2F0
0F2,1F1,2B0
,,2F3
,1F2,2B3
,,2F2
,1B3,2F1
0B3,1B0,2B2
,1B2,2B1
0B2,1B1,
0B1,,
0B0,,
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_microbatches_out_of_order_wait_in_slots_of_their_own(tmp_path, ranks):
    """Cotangents at stage 1: of 0 and 3 at once. k % 3 is one slot for both; k % 2 is not."""
    path = tmp_path / "mine.csv"
    path.write_text(OUT_OF_ORDER)
    schedule = make_schedule(path)
    assert [schedule.received_slots(s, "B") for s in range(3)] == [3, 2, 0]
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(8, 3, 4)
    expected = by_hand.plain(case.layers, theirs, case.xs, case.ys, 4)
    image = spmd.build(case.program(3, mine, schedule=str(path)))
    case.check(image.run(ranks=ranks, **case.inputs), expected)


def test_an_error_of_a_table_is_said_with_its_line(tmp_path):
    text = make_schedule("1f1b", 3, 4).csv()
    path = tmp_path / "schedule.csv"
    path.write_text(text.replace("2B1", "?").replace("2F1", "2B1").replace("?", "2F1"))
    case = Case(3, 4, 4)
    with pytest.raises(spmd.ScheduleError) as caught:
        case.program(3, optim.sgd(0.1), schedule=str(path)).capture()
    said = str(caught.value)
    assert "schedule.csv:5: tick 4, stage 2: B of microbatch 1 before its F (line 6)" in said
    assert re.search(r"the schedule is used at \S+\.py:\d+\n", said)


def test_the_loss_that_is_nan_has_step_and_data_rank():
    case = Case(2, 3, 4, size=4)
    case.ys[2, 6] = np.nan  # of four examples in microbatch 1 of step 2, the third: data rank 1
    image = spmd.build(case.program(2, optim.sgd(0.1), ("data", "stage"), "data"))
    with pytest.raises(spmd.CheckError,
                       match="loss of microbatch 9 is NaN: step 2, data rank 1"):
        image.run(ranks=4, mesh={"data": 2, "stage": 2}, **case.inputs)

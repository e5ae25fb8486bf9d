"""Ranks that follow microbatches while weights go around: tables beside a simulator, results beside
plain training, bytes beside those that the engine counts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.errors import ImageError
from codegen.image import manifest
from spmd import optim, pipeline_notes
from spmd.pipeline_positions import ranks_at
from spmd.schedules import make_schedule
from spmd.schedules.tick_positions import TickPosition
from spmd.schedules.weight_ring import NoRingError, ring_of
from tests.spmd import pipeline_by_hand as by_hand
from tests.spmd.test_pipelines import OPTIMIZERS, Case, same_bits
from tests.spmd.test_show import made

# ---- the ring of a schedule


def rolled(rows, count):
    """Return a list whose items have moved on by so many places."""
    return [rows[(j - count) % len(rows)] for j in range(len(rows))]


@pytest.mark.parametrize("name", ["weipipe", "gpipe"])
def test_weights_are_where_ranks_need_them(name):
    """Each rank has the weights of its stage in each tick, and keeps what F gives until B."""
    for p, m in [(p, m) for p in (1, 2, 3, 5, 8, 13) for m in (1, 2, 3, 5, 8, 16, 27)]:
        schedule = replace(make_schedule(name, p, m), place="microbatch", ranks=p)
        ring = ring_of(schedule)
        forth = rolled([*range(p)][::-1], ring.forward.begin)
        back = rolled([*range(p)], ring.backward.begin)
        held = [{} for _ in range(p)]
        most, busy, sums, next_stage = [0] * p, [[] for _ in range(p)], [[] for _ in range(p)], {}
        for t, tick in enumerate(ring.actions):
            for row, action in enumerate(tick):
                if action is None:
                    continue
                _, s, kind, k = action
                slot = ring.slots[s, k]
                assert (k - 1) % p == row and slot < ring.count
                busy[row].append(t)
                assert next_stage.get((row, kind), (k, s)) == (k, s)  # no other pass comes between
                ends = s == (p - 1 if kind == "F" else 0)
                next_stage[row, kind] = (k + p if ends else k,
                                         s + (1 if kind == "F" else -1) if not ends else
                                         (0 if kind == "F" else p - 1))
                if kind == "F":
                    assert forth[row] == s and slot not in held[row]
                    held[row][slot] = (s, k)
                    most[row] = max(most[row], len(held[row]))
                else:
                    assert back[row] == s and held[row].pop(slot) == (s, k)
                    sums[s].append(k)
            forth = rolled(forth, ring.forward.hops_after[t])
            back = rolled(back, ring.backward.hops_after[t])
        assert sums == [[*range(m)]] * p and not any(held)
        assert rolled(back, -ring.backward.end) == [*range(p)]
        assert most == [max(map(len, schedule.kept_in_row(row))) for row in range(p)]
        assert ring.count == max(most) == (p if name == "weipipe" else p * -(-m // p))
        idle = [ticks[-1] - ticks[0] + 1 - len(ticks) if ticks else 0 for ticks in busy]
        assert idle == [schedule.idle_ticks(r) for r in range(p)]
        # no longer idle than 1F1B
        assert schedule.times().total <= make_schedule("1f1b", p, m).times().total


@pytest.mark.parametrize(("name", "said"), [
    ("1f1b", "tick 2 has 0F1 and 2F0: the weights of both stages"), ("zb-h1", "it has W"),
    ("interleaved", "tick 6 has 0F3 and 1B0, which one rank would have to do"),
    ("continuous", "it updates each stage by itself")])
def test_schedules_that_do_not_fit(name, said):
    with pytest.raises(NoRingError) as caught:
        ring_of(make_schedule(name, 3, 4))
    assert said in str(caught.value)
    with pytest.raises(spmd.UsageError) as refused:
        Case(1, 3, 4).program(3, optim.sgd(0.1), schedule=name, place="microbatch").capture()
    assert said in str(refused.value) and 'schedule="weipipe", or "gpipe"' in str(refused.value)
    assert "test_pipelines.py" in str(refused.value)


def test_a_pass_that_is_interrupted_does_not_fit():
    """Microbatches 0 and 2 of one rank go forward side by side."""
    side_by_side = lambda s, p, k, m: {"F": 3 * s + k, "B": 3 * (2 * p - 1 - s) + k}
    with pytest.raises(NoRingError, match="tick 2 has 0F2 before the pass of microbatch 0"):
        ring_of(make_schedule(side_by_side, 2, 3))


# ---- results


RESULTS = [  # layers, stages, microbatches
    ("weipipe", "adamw", 5, 3, 4), ("gpipe", "sgd", 6, 5, 7), ("weipipe", "sgd", 2, 1, 2),
]


@pytest.mark.parametrize(("schedule", "name", "layers", "stages", "microbatches"), RESULTS)
def test_results_are_those_of_plain_training(schedule, name, layers, stages, microbatches):
    mine, theirs = OPTIMIZERS[name]
    case = Case(3, layers, microbatches)
    expected = by_hand.plain(case.layers, theirs, case.xs, case.ys, microbatches)
    image = spmd.build(case.program(stages, mine, schedule=schedule, place="microbatch"))
    outs = [image.run(ranks=n, **case.inputs) for n in (1, 2, 3, 5)]
    case.check(outs[0], expected)
    if stages == 3:
        block = spmd.build(case.program(stages, mine, schedule=schedule))
        outs.append(block.run(ranks=2, **case.inputs))
    for out in outs[1:]:
        same_bits(out, outs[0])


def thinned(w, h):
    return spmd.nn.dropout(np.tanh(h @ w["w"]), 0.4, seed=3)


def each(w, h, y):
    return np.mean((h @ w["o"] - y) ** 2, axis=1)


@spmd.program(mesh=("data", "stage"))
def thinned_and_masked(place: str = "block", steps: int = 3):
    x = spmd.input("x", (steps, 24, 4), np.float64, layout=(None, "data", None))
    masks = spmd.input("masks", (steps, 24), np.bool_, layout=(None, "data"))
    w = spmd.input("w", (4, 4), np.float64)
    layers = [*((thinned, {"w": w * (k + 1)}) for k in range(4)), (each, {"o": w})]
    pipe = spmd.pipeline(layers, stages=3, microbatches=6, schedule="weipipe", place=place,
                         optimizer=optim.chain(optim.clip_by_global_norm(0.05), optim.adamw(0.01)))
    state, losses = pipe.init(), spmd.zeros(steps)
    for k in spmd.range(steps):
        state, losses[k] = pipe.step(state, x[k], x[k], masks[k])
    return {"losses": losses, "ws": pipe.params(state),
            "after": pipe.evaluate(state, x[0], x[0], masks[0])}


def test_dropout_masks_and_a_data_axis():
    """To the bit as in blocks; test_pipeline_layers.py has those beside plain programs."""
    random = np.random.default_rng(5)
    given = {"x": random.standard_normal((3, 24, 4)), "w": random.standard_normal((4, 4)),
             "masks": random.random((3, 24)) < 0.7}
    given["masks"][1, 4:8] = False  # a microbatch without any
    around, block = (spmd.build(thinned_and_masked, place=place)
                     for place in ("microbatch", "block"))
    for data, stage in ((1, 1), (1, 3), (2, 2), (4, 1), (2, 5)):
        mesh = {"data": data, "stage": stage}
        mine, theirs = (image.run(ranks=data * stage, mesh=mesh, **given)
                        for image in (around, block))
        same_bits(mine, theirs)
        assert mine["after"] == theirs["after"]
        assert not np.allclose(mine["ws"][0]["w"], given["w"], atol=1e-3)


# ---- bytes


def wide(w, h):
    return np.tanh(h @ w)


def last(w, h, y):
    return np.mean((h @ w - y) ** 2)


@spmd.program(mesh=("data", "stage"), layout={"batch": "data"})
def sequences(length: int = 128, place: str = "block", schedule: str = "1f1b", steps: int = 2):
    x, y = (spmd.input(name, (spmd.Dim("batch", 12), length, 16), np.float64,
                       default=lambda i, j, k: np.sin(i + j + k)) for name in "xy")
    layers = [*((wide, np.eye(16)) for _ in range(5)), (last, np.eye(16))]
    pipe = spmd.pipeline(layers, stages=3, microbatches=6, schedule=schedule, place=place,
                         optimizer=optim.sgd(0.1))
    state, losses = pipe.init(), spmd.zeros(steps)
    for k in spmd.range(steps):
        state, losses[k] = pipe.step(state, x, y)
    return losses


def notes_of(image, tmp_path, **options):
    image.save(tmp_path / "image.img")
    (found,) = pipeline_notes.pipelines_of(
        manifest.read((tmp_path / "image.img").read_bytes()), **options)
    return found


def test_show_says_the_bytes_that_are_sent(tmp_path, spmd_here):
    """`spmd show` gives the bytes that the engine counts; weights are fewer for long sequences,
    activations for short ones."""
    counted = {}
    for place, schedule in (("block", "1f1b"), ("microbatch", "weipipe"), ("round", "gpipe")):
        image = spmd.build(sequences, place=place, schedule=schedule)
        for data, n in ((1, 3), (1, 2), (2, 3), (1, 5)):
            if place == "round" and n != 3:
                continue
            rows = image.profile(ranks=data * n, mesh={"data": data, "stage": n})
            moved = sum(row["bytes"] for row in rows if row["count"] > 1  # x and y move once
                        and row["kind"] in ("permute", "redistribute"))
            sends = notes_of(image, tmp_path, ranks=n, mesh={"data": data}).sends
            assert moved == pytest.approx(2 * sends["own"]["bytes"], abs=8) and moved > 0
            counted.setdefault((data, n), {})[place] = sends
    for sends in counted.values():
        assert sends["block"]["own"] == {"place": "block", "schedule": "1f1b",
                                         "bytes": sends["microbatch"]["other"]["bytes"]}
        assert sends["block"]["other"] == sends["microbatch"]["own"]
        assert sends["block"]["less"] == sends["microbatch"]["less"] == "microbatch"
    # 7 moves of the weights forth and 7 of weights and gradients back, to and from their homes
    row, lost = 2 * 16 * 16 * 8, 2 * 8
    assert counted[1, 3]["microbatch"]["own"]["bytes"] == 21 * row + 7 * lost + row + row * 2 // 3
    short = notes_of(spmd.build(sequences, length=1), tmp_path)
    assert short.sends["less"] == "block"
    text = spmd_here("show", tmp_path / "image.img", "--schedule").expect(0).out
    own, other = (short.sends[way]["bytes"] for way in ("own", "other"))
    assert f"a step sends {own / 1024:.1f} KiB from each rank: activations and" in text
    assert f"would send {other / 1024:.1f} KiB from each rank: weights and their" in text
    assert 'place="block" sends less; these are means over 3 ranks' in text
    printed = spmd_here("show", tmp_path / "image.img", "--schedule", "--json").expect(0).out
    assert json.loads(printed)[0]["sends"] == short.sends


def test_ranks_hold_few_rows_of_weights():
    """Their own, those that go around, gradients, their sums, and room for what comes in: whatever
    m is. What only a branch, or a stretch of the program, needs shares memory with others."""
    plan = lower(sequences.capture(place="microbatch", schedule="weipipe")).plan
    sizes = [b.capacity.evaluate({"n_stage": 3, "n_data": 1}) for b in plan.buffers if not b.arm]
    assert sizes.count(2 * 16 * 16) == 5


def test_ranks_that_follow_microbatches_in_a_timeline_and_in_a_drawing(tmp_path):
    image = spmd.build(sequences, place="microbatch", schedule="weipipe")
    notes = notes_of(image, tmp_path, ranks=2)
    schedule = notes.schedule
    position = TickPosition.of(6 + 1)
    assert ranks_at(schedule, position, [0], 2).action_text() == "F 2 of stage 1, F 1 of stage 2"
    assert ranks_at(schedule, position, [1], 2).action_text() == "F 3 of stage 0"
    assert "in flight there: 1, 2" in ranks_at(schedule, position, [0], 2).text()
    assert ranks_at(schedule, position, [3], 4).text() == "it held no stage of the pipeline"
    assert "rank 1, microbatch 0, 3  0F0   . 1F0" in notes.text() and schedule.ranks == 2
    rows = manifest.read((tmp_path / "image.img").read_bytes()).notes()["pipelines"]
    rows[0]["schedule"]["ticks"] = {k: [list(row) for row in ticks]
                                    for k, ticks in make_schedule("1f1b", 3, 6).ticks.items()}
    (found,) = pipeline_notes.pipelines_of(
        manifest.read(made(tmp_path / "made.img", pipelines=rows).read_bytes()))
    with pytest.raises(ImageError, match="whose weights can go around"):
        found.text()

"""Which job starts where, and what those are told that wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spmd.feeding.scheduling.job_places import JobRow, JobStart, SlotRow, place_jobs


def job(number, least, most=None, **more):
    return JobRow(f"{number}", f"p/{number}", least, most or least, number=number, **more)


def agent(name, slots, free=None, device="cpu"):
    return SlotRow(name, f"host-{name}", device, slots, slots if free is None else free)


def start(job, **places):
    return JobStart(job, tuple(places.items()))


def test_priority_then_the_shortest_then_the_first():
    rows = [job(1, 2), job(2, 2, estimated=9.0), job(3, 2, estimated=3.0), job(4, 2, priority=1)]
    for free, expected in ((2, ["4"]), (4, ["4", "3"]), (8, ["4", "3", "2", "1"])):
        assert [s.job for s in place_jobs(rows, [agent("a", 8, free)])[0]] == expected


def test_what_waits_is_not_passed_by_smaller_ones():
    """Else many small jobs would keep a large one waiting for ever."""
    starts, waits = place_jobs([job(1, 4), job(2, 1)], [agent("a", 4, 1), agent("b", 2, 2)])
    assert starts == [start("2", b=1)], "b could never take the large one"
    assert waits == {"1": "it needs 4 ranks, and free are host-a 1 of 4"}
    starts, waits = place_jobs([job(1, 4), job(2, 1)], [agent("a", 4, 1)])
    assert not starts
    assert waits["2"] == "it needs 1 rank, and free are host-a 1 of 4; p/1 comes first"


def test_more_than_is_offered_says_what_is():
    starts, waits = place_jobs([job(1, 8), job(2, 2)], [agent("a", 2), agent("b", 4)])
    assert starts == [start("2", a=2)], "it holds up nobody, and leaves the larger machine"
    assert waits["1"] == ("it needs 8 ranks, agents offer host-b 4, host-a 2; try: --ranks 6, or "
                          "one more agent: python -m spmd feed worker --slots 2 --connect ADDRESS")
    assert "no agent offers slots" in place_jobs([job(1, 8)], [])[1]["1"]


def test_several_agents_have_what_none_has_alone():
    agents = [agent("a", 4), agent("b", 6, 5), agent("c", 1)]
    assert place_jobs([job(1, 6)], agents)[1]["1"] == "it needs 6 ranks, and free are host-b 5 of 6"
    assert place_jobs([job(1, 7)], agents)[0] == [start("1", b=5, a=2)], "as few as can have it"
    assert place_jobs([job(1, 7, 20)], agents)[0] == [start("1", b=5, a=4)]
    assert place_jobs([job(1, 10)], agents)[0] == [start("1", b=5, a=4, c=1)]
    gpus = [*agents, agent("g", 2, device="gpu")]
    assert place_jobs([job(1, 7, device="gpu")], gpus)[0] == [start("1", g=2, b=5)]


def test_a_job_on_several_agents_is_not_passed_on_those_that_it_waits_for():
    agents = [agent("a", 4, 1), agent("b", 4, 1), agent("c", 2, 2)]
    starts, waits = place_jobs([job(1, 6), job(2, 1), job(3, 1)], agents)
    assert starts == [start("2", c=1), start("3", c=1)], "a and b are enough for the first"
    assert waits == {"1": "it needs 6 ranks, and free are host-a 1 of 4, host-b 1 of 4"}


def test_a_job_whose_frames_one_agent_has_waits_for_one_that_has_room():
    agents = [agent("a", 4), agent("b", 4)]
    assert place_jobs([job(1, 4, 8, has_frames=True)], agents)[0] == [start("1", a=4)]
    starts, waits = place_jobs([job(1, 6, has_frames=True), job(2, 8)], agents)
    assert starts == [start("2", a=4, b=4)], "it holds up nobody"
    assert waits["1"] == (
        "it needs 6 ranks on one agent, where its frames lie, and agents offer host-a 4, host-b 4; "
        "try: --ranks 4, or frames beside checkpoints in a folder that all agents see: --options "
        '"--checkpoint /FOLDER --resume /FOLDER"')


def test_the_preferred_kind_and_as_many_ranks_as_there_is_room_for():
    agents = [agent("a", 8), agent("b", 2, device="gpu")]
    assert place_jobs([job(1, 1, 6)], agents)[0] == [start("1", a=6)]
    assert place_jobs([job(1, 1, 6, device="gpu")], agents)[0] == [start("1", b=2)]
    assert place_jobs([job(1, 4, 6, device="gpu")], agents)[0] == [start("1", a=6)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 3)), max_size=9),
       st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4))
def test_no_slot_is_given_twice_and_every_job_is_answered(jobs, agents):
    rows = [job(k, least, least + more, priority=p) for k, (least, more, p) in enumerate(jobs)]
    there = [agent(f"{k}", slots, min(slots, free)) for k, (slots, free) in enumerate(agents)]
    starts, waits = place_jobs(rows, there)
    assert {s.job for s in starts} | waits.keys() == {row.job for row in rows}
    assert len(starts) + len(waits) == len(rows)
    most = max((one.slots for one in there), default=0)
    for one in there:
        assert sum(dict(s.places).get(one.agent, 0) for s in starts) <= one.free
    for one in starts:
        row, ranks = rows[int(one.job)], [n for _, n in one.places]
        assert row.least <= sum(ranks) <= row.most and min(ranks) > 0
        assert (len(ranks) == 1) == (row.least <= most)

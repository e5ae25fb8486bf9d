"""A few thousand malformed frames; `make fuzz` sends a million."""

from __future__ import annotations

from tests.feeding.fuzz_frames import fuzz_decoder, fuzz_worker
from tests.feeding.fuzz_sockets import (
    fuzz_agent,
    fuzz_results,
    fuzz_scheduler,
    fuzz_unix_sockets,
)


def test_the_decoder_raises_nothing_else():
    refused = fuzz_decoder(5000, 1)
    assert 4000 < refused <= 5000  # some changes leave a message


def test_a_worker_goes_on():
    fuzz_worker(5000, 2)


def test_a_scheduler_goes_on_without_a_defect():
    fuzz_scheduler(3000, 3)


def test_an_agent_keeps_its_worker():
    fuzz_agent(1000, 4)


def test_a_result_is_what_was_asked_for_or_refused():
    assert 0 < fuzz_results(3000, 5) < 1000


def test_unix_sockets_take_nothing_odd():
    fuzz_unix_sockets(500, 6)

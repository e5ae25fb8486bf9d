"""A few thousand malformed frames; `make fuzz` sends a million."""

from __future__ import annotations

from tests.feeding.fuzz_frames import fuzz_decoder, fuzz_worker


def test_the_decoder_raises_nothing_else():
    refused = fuzz_decoder(5000, 1)
    assert 4000 < refused <= 5000  # some changes leave a message


def test_a_worker_goes_on():
    assert fuzz_worker(5000, 2) < 10

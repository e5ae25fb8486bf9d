"""Thousands of malformed requests; `make fuzz-requests` sends a million."""

from __future__ import annotations

import time

import pytest

from tests.serving.fuzz_requests import (
    PROGRAM,
    fuzz_bytes,
    fuzz_grpc,
    fuzz_messages,
    grpc_address,
    still_serves,
)
from tests.serving.serving_kit import serving


@pytest.mark.parametrize("count", [3000])
def test_no_request_is_a_defect(count, built):
    image = built(PROGRAM)
    with serving(image, "--ranks", 2, "--allow", "load") as server:
        began = time.monotonic()
        assert {200, 400, 409} <= fuzz_messages(server.port, image.stem, count, 1).keys()
        fuzz_bytes(server.port, image.stem, count // 10, 2)
        print(f"{time.monotonic() - began:.1f} s")
        still_serves(server, image.stem)


@pytest.mark.parametrize("count", [1000])
def test_no_message_of_grpc_is_a_defect(count, built):
    pytest.importorskip("grpc")
    image = built(PROGRAM)
    with serving(image, "--ranks", 2, "--allow", "load", "--grpc-port", 0) as server:
        codes = fuzz_grpc(grpc_address(server), image.stem, count, 3)
        assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"} <= codes.keys()
        still_serves(server, image.stem)

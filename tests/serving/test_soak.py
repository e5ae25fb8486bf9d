"""What soak.py does for an hour, for seconds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.replicated import folder_of
from tests.serving.soak import overload, through_changes

pytestmark = pytest.mark.slow


def test_replicas_are_killed_while_states_are_loaded(once: Any, built: Any) -> None:
    folder = once("scaled", lambda path: folder_of(path, built))
    through_changes(folder, requests=10_000, swaps=5, kills=5)


def test_twice_the_load_that_a_server_can_bear(tmp_path: Any) -> None:
    overload(tmp_path, seconds=6)

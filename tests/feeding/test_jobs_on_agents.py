"""One job whose ranks are on several agents: a real mpirun starts its daemons through them."""

from __future__ import annotations

import os

import pytest

from tests.conftest import until
from tests.feeding.test_jobs import (
    Submitting,
    descendants,
    image,
    is_there,
    kill,
    room,
)
from tests.feeding.served_kit import command_of

pytestmark = pytest.mark.slow  # it waits for processes of its own


class Spread(Submitting):
    """A scheduler, and two agents with two slots each: four ranks are on both."""

    def __init__(self, folder, image):
        super().__init__(folder, image, slots=2)
        self.other = self.offers(2)


@pytest.fixture(scope="module")
def served(tmp_path_factory, image):
    one = Spread(tmp_path_factory.mktemp("served"), image)
    yield one
    one.close()


def test_ranks_on_two_agents_give_what_one_agent_gives(served, capfd):
    assert served.feed(*served.words("both", ranks=4)) == 0
    out, err = capfd.readouterr()
    print(out, err)
    assert served.counted_once("both")
    until(lambda: os.listdir(served.jobs) == [])

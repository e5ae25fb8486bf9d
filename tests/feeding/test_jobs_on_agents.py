"""One job whose ranks are on several agents: a real mpirun starts its daemons through them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import PATIENCE, ROOT, until
from tests.feeding.served_kit import ServedProcess
from tests.feeding.test_jobs import PIPELINE, MPIRUN, N, Submitting, image, room
from tests.spmd.network import ADDRESSES, Network

__all__ = ["image", "room"]  # fixtures
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


class OnHosts(ServedProcess):
    """A scheduler on the first of two hosts, and an agent with two slots on each. Neither sees the
    folders of jobs of the other."""

    def __init__(self, folder, network):
        self.network, self.host, self.jobs = network, "hosta", folder / "jobs"
        self.jobs.mkdir()
        super().__init__(folder)

    def start(self):
        self.address = f"tcp://{ADDRESSES['hosta']}:*"
        super().start()
        for self.host in ADDRESSES:
            self.network.inside(self.host, "mount", "-t", "tmpfs", "none", str(self.jobs))
            self.worker(1, "--slots", "2", "--folder", str(self.jobs))
        self.host = "hosta"

    def command(self, *words, log):
        process = subprocess.Popen(
            [*self.network.enter(self.host, ROOT), sys.executable, "-m", "spmd", "feed", *words],
            stdin=subprocess.DEVNULL, stdout=log.open("w"), stderr=subprocess.STDOUT)
        self.started.append(process)
        return process


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("UCX_NET_DEVICES", "ve0")
    try:
        network = Network(tmp_path).__enter__()
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    one = OnHosts(tmp_path, network)
    yield one
    one.close()
    network.__exit__()


def test_two_hosts_that_share_no_folder(hosts, image):
    file = hosts.folder / "apart.py"
    file.write_text(PIPELINE.format(n=N, name="apart", seconds=0.0))
    submit = hosts.command(
        "submit", str(file), "--image", str(image), "--ranks", "4", "-i",
        f"shift={image.parent}/shift.npy", "-o", f"seen={hosts.folder}/apart.npy", "--connect",
        hosts.address, "--keys", hosts.keys_folder, log=(log := hosts.folder / "submit.log"))
    assert submit.wait(PATIENCE) == 0, log.read_text()
    assert "runs on hosta (ranks 0-1), hostb (ranks 2-3) with 4 ranks" in log.read_text()
    assert (np.load(hosts.folder / "apart.npy") == 1).all()

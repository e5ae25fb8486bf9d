"""One job whose ranks are on several agents: a real mpirun starts its daemons through them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import PATIENCE, ROOT, until
from tests.feeding.served_kit import ServedProcess, command_of
from tests.feeding.test_jobs import (
    PIPELINE,
    N,
    Submitting,
    begin_of,
    descendants,
    image,
    is_there,
    kill,
    room,
)
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


@pytest.mark.mpi
def test_ranks_on_two_agents_give_what_one_agent_gives(served, capfd):
    assert served.feed(*served.words("both", ranks=4)) == 0
    out, err = capfd.readouterr()
    assert out.count("batch 20\n") == 1 and "batches: int64 20\n" in out
    assert " (ranks 0-1), " in err and " (ranks 2-3) with 4 ranks\n" in err
    assert served.counted_once("both")
    assert served.feed("status") == 0 and " (ranks 2-3)" in capfd.readouterr().out
    until(lambda: os.listdir(served.jobs) == [])


def processes_of(served):
    """The processes of the job that runs: by agent, the first one first."""
    def found():
        rows = [descendants(agent.pid) for agent in (served.agent, served.other)]
        return rows if all(any("spmd run" in begin_of(pid) for pid in row) for row in rows) else []
    rows = until(found)
    return rows if any("jobs.runner" in command_of(pid) for pid in rows[0]) else rows[::-1]


def host_of(row, part):
    """What a job calls the host of one of its agents."""
    return row["host"].split(", ")[part].split(" ")[0]


def ended(served, row, everybody):
    with served.client() as client:
        found = client.fetch(row["name"])
    until(lambda: not any(map(is_there, everybody)))
    until(lambda: os.listdir(served.jobs) == [])
    return found


# Which agent of the job, a process there, and why the job ends then.
VICTIMS = [
    (1, "daemon", "its daemon on {host} was killed by SIGKILL"),
    (1, "jobs.part_runner", "what runs it on {host} was killed"),
    (1, "spmd run", "mpirun ended with status "),
    (0, "jobs.runner", "what runs it on {host} was killed"),
    (0, "mpirun", "mpirun was killed by SIGKILL"),
]
OF_FAMILIES = {"daemon": ("hydra_pmi_proxy", "bin/prted"), "mpirun": ("mpirun", "prterun")}


@pytest.mark.parametrize(("agent", "word", "says"), VICTIMS, ids=[word for _, word, _ in VICTIMS])
def test_a_process_is_killed_and_the_job_ends_everywhere(served, agent, word, says):
    row = served.started_job("ids", ranks=4, seconds=0.015)
    rows = processes_of(served)
    words = OF_FAMILIES.get(word, (word,))
    kill(next(pid for pid in rows[agent] if any(word in begin_of(pid) for word in words)))
    found = ended(served, row, [*rows[0], *rows[1]])
    assert found["status"] and says.format(host=host_of(found, agent)) in found["why"], found
    assert not (served.folder / "ids.npy").exists()


def test_what_reaches_the_other_agent_is_killed(served):
    """The daemon is there already: whether the launcher goes on is its own affair."""
    row = served.started_job("reach", ranks=4, seconds=0.015)
    rows = processes_of(served)
    kill(next(pid for pid in rows[0] if "jobs.remote_start" in begin_of(pid)))
    found = ended(served, row, [*rows[0], *rows[1]])
    assert (found["status"] == 0) == (served.folder / "reach.npy").exists(), found
    assert found["status"] or served.counted_once("reach")


def test_a_job_that_is_cancelled_ends_on_all_agents(served):
    row = served.started_job("over", ranks=4, seconds=0.05)
    rows = processes_of(served)
    with served.client() as client:
        assert client.cancel_job(row["name"])["what"] == "cancelled"
    assert ended(served, row, [*rows[0], *rows[1]])["status"] == 143


@pytest.mark.parametrize(("agent", "restarts"), [(1, 0), (0, 1)])
def test_an_agent_of_two_is_killed(served, agent, restarts):
    """The other one ends what it has of the job; a third takes the place if it begins anew."""
    row = served.started_job("anew", "--restarts", restarts, ranks=4, seconds=0.015)
    first = processes_of(served)
    agents = [served.agent, served.other]
    if not any("jobs.runner" in command_of(pid) for pid in descendants(served.agent.pid)):
        agents.reverse()
    agents.pop(agent).kill()
    served.agent, served.other = agents[0], served.offers(2)
    found = ended(served, row, [*first[0], *first[1]])
    if restarts:
        assert (found["status"], found["attempt"]) == (0, 2), found
        assert served.counted_once("anew")
    else:
        assert found["status"] == 75 and f"its agent on {host_of(found, agent)} " in found["why"]
        assert not (served.folder / "anew.npy").exists()


def test_more_ranks_than_all_agents_offer_wait(served):
    assert served.feed(*served.words("many", "--detach", ranks=6)) == 0
    with served.client() as client:
        job = client.status()["jobs"][-1]["name"]
        why = until(lambda: client.job(job)["why"])
        assert why.startswith("it needs 6 ranks, agents offer ") and " 2; try: --ranks 4, " in why
        client.cancel_job(job)


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


@pytest.mark.mpi
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

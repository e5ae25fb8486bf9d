"""Who gets in, and at which ports: keys that come and go while lines stand, ranges of ports."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from spmd import PeerError, UsageError
from spmd.feeding.consumers import consumer
from spmd.feeding.host.machine import PORTS, ports_of
from spmd.feeding.messages.keys import Keys, made_for_a_run, make_folder, pair
from spmd.feeding.messages.sockets import REFUSED_KEY, Lines
from spmd.feeding.messages.wire import new_id
from spmd.feeding.results.shared_results import ResultReader
from spmd.feeding.starting.local_feeding import LocalScheduler
from spmd.feeding.workers.agent import Agent
from tests.conftest import until
from tests.feeding.feeding_kit import RunningAgent, running, x_of

pytestmark = pytest.mark.slow  # it waits for processes of its own

SOURCE = """
import numpy as np
import spmd.data as data

@data.pipeline(source=data.range(10**6), epochs=1, shuffle=False)
def numbers(example):
    return {"x": np.int64(example)}
"""


def test_a_key_that_is_taken_out_loses_its_lines(tmp_path, monkeypatch):
    """To the scheduler, and to workers; others lose nothing. One that comes counts there too."""
    folder = make_folder(str(tmp_path / "keys"))
    (folder / "allowed").mkdir()
    with running(SOURCE, folder=str(folder)) as run:
        pids = run.workers(1).wait_for_workers(1)

        def let_in(name):
            public, secret = pair()
            file = folder / "allowed" / f"{name}.key"
            file.write_text(public + "\n")
            keys = Keys(run.keys.server, public, secret, frozenset())
            (ring,) = run.supply(x_of(4), 4, keys=keys)
            return file, keys, ring

        (ours,) = run.supply(x_of(4), 4)
        seen = [ours.next()["x"]]
        ada, her_keys, hers = let_in("ada")  # the agent has read the folder before
        assert hers.next()["x"].tolist() == [0, 1, 2, 3]
        said, lines = run.agents[0].agent.workers[0].said, Lines(her_keys)
        watch = lines.watch(lines.dealer(f"tcp://127.0.0.1:{said['port']}", said["key"], new_id()))
        until(lambda: not watch.broke() and watch.stands)
        # Who has a line to its shared memory, and has asked for nothing, loses that one as well.
        reading = ResultReader(new_id(), said["local"], said["secret"])
        monkeypatch.setattr(consumer, "SILENT_S", 3.0)
        ada.unlink()
        with pytest.raises(PeerError, match="(?s)no scheduler answers.*it refuses our key"):
            while hers.next():
                seen.append(ours.next()["x"])
        until(lambda: watch.broke() or watch.why() == REFUSED_KEY)
        assert not watch.stands
        until(lambda: not reading.attend())
        reading.close()
        lines.close()
        monkeypatch.setattr(consumer, "SILENT_S", 20.0)
        _, _, his = let_in("ben")
        assert his.next()["x"].tolist() == [0, 1, 2, 3]
        seen += [ours.next()["x"] for _ in range(20)]
        assert np.concatenate(seen).tolist() == list(range(4 * len(seen)))
        assert run.agents[0].pids() == pids


def test_workers_listen_at_the_ports_that_they_are_given(monkeypatch):
    keys = made_for_a_run()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        agent = RunningAgent("tcp://127.0.0.1:1", keys, 2, ports=f"{first}-{first + 40}")
        agent.wait_for_workers(2)
        ports = [w.said["port"] for w in agent.agent.workers]
        agent.close()
        assert len({first, *ports}) == 3 and all(first < p <= first + 40 for p in ports)
        agent = RunningAgent("tcp://127.0.0.1:1", keys, 1, ports=f"{first}-{first}")
        until(lambda: any("none of the ports" in said and "--ports FIRST-LAST" in said
                          for said in agent.said))
        agent.close()
    with pytest.raises(UsageError, match="(?s)fewer than workers.*found: +2"):
        Agent("tcp://127.0.0.1:1", keys, 3, ports="40000-40001")
    monkeypatch.setenv(PORTS, "40000-40009")
    assert ports_of("", 10, "10.0.0.1") == "40000-40009" and ports_of("", 99, "127.0.0.1") == "*"
    assert LocalScheduler(True).listen == "tcp://0.0.0.0:40000-40009"
    assert LocalScheduler(False).listen == "tcp://127.0.0.1:*"
    for wrong in ("40000", "9-8", "0-5", "1-65536", "a-b"):
        monkeypatch.setenv(PORTS, wrong)
        with pytest.raises(UsageError, match="no range of ports"):
            ports_of("", 1, "10.0.0.1")

"""Jobs whose processes are killed at random moments: each ends well, and counts every example once.

    python -m tests.feeding.kill_jobs SEED SECONDS
Workers, agents, runners, ranks and schedulers die by kill -9; a client follows each job.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np

import spmd
from tests.conftest import until
from tests.feeding.served_kit import command_of
from tests.feeding.test_jobs import MPIRUN, PROGRAM, Submitting, descendants, kill

MOST = 6  # kills of one job: it must end some time
WORDS = {"worker": "workers.worker", "runner": "jobs.runner", "rank": " run counts.img"}


def main(seed: int, seconds: float) -> None:
    chance, end, kills = random.Random(seed), time.monotonic() + seconds, Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "counts.py").write_text(PROGRAM)
        np.save(folder / "shift.npy", np.int64(0))
        spmd.build(str(folder / "counts.py")).save(folder / "counts.img")
        served = Submitting(folder, folder / "counts.img")
        try:
            while time.monotonic() < end:
                job = one_job(served, chance, kills)
                print(f"{job}: every example once; kills so far: {dict(kills)}", flush=True)
            until(lambda: os.listdir(served.jobs) == [])
        finally:
            served.close()
        for log in folder.glob("*.log"):
            assert "Traceback" not in (text := log.read_text()) and "defect" not in text, text


def one_job(served: Submitting, chance: random.Random, kills: Counter[str]) -> str:
    """Submits a job and follows it, while its processes are killed; returns its name."""
    launch = chance.choice([[], ["--launch", f"{MPIRUN} -n {{ranks}}"]])
    assert served.feed(*served.words("ids", "--detach", "--restarts", 50, *launch,
                                     seconds=0.004)) == 0
    job = served.status()["jobs"][-1]["name"]
    log = served.folder / "fetch.log"
    follows = served.command("fetch", job, "--connect", served.address, "--keys",
                             served.keys_folder, log=log)
    for _ in range(MOST):
        time.sleep(chance.uniform(0.2, 2.0))
        if follows.poll() is None:
            kill_one(served, chance, kind := chance.choice([*WORDS, "agent", "scheduler"]))
            kills[kind] += 1
    assert follows.wait(300) == 0, log.read_text()
    assert served.counted_once("ids"), log.read_text()
    (served.folder / "ids.npy").unlink()
    return str(job)


def kill_one(served: Submitting, chance: random.Random, kind: str) -> None:
    """An agent and a scheduler start again, as whoever looks after them would do it."""
    if kind == "scheduler":
        served.process.kill()
        served.process.wait()
        time.sleep(chance.uniform(0, 2))
        served.start()
    elif kind == "agent":
        served.agent.send_signal(signal.SIGKILL)
        served.agent.wait()
        served.agent = served.offers(4)
    else:
        root = served.started[1] if kind == "worker" else served.agent
        if there := [p for p in descendants(root.pid) if WORDS[kind] in command_of(p)]:
            with suppress(ProcessLookupError):
                kill(chance.choice(there))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))

"""Runs with feeds whose processes are killed at random moments: every example comes exactly once.

    make feed-kills FEED_KILLS=100
Workers, agents, schedulers, ranks and launchers die by kill -9; a run goes on from its checkpoint
on another number of ranks. What a run took is counted in its program, and kept with it.
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

from tests.conftest import Launch, here
from tests.feeding.served_kit import ServedProcess, command_of

N, EPOCHS = 3001, 2
FIRST_S = 20.0  # that a run waits for a scheduler when it begins
PROGRAM = f"""
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def counts(batch: int = 20, n: int = {N}):
    feed = spmd.feed(i=spmd.spec((batch,), np.int64), row=spmd.spec((batch, 100), np.int32),
                     mask=spmd.spec((batch,), np.bool_))
    seen, wrong = spmd.zeros(n, np.int64), spmd.asarray(0)
    for b in feed:
        seen = seen + np.bincount(np.where(b.mask, b.i, n), minlength=n + 1)[:n]
        wrong = wrong + np.sum((b.row != b.i[:, None]) & b.mask[:, None])
    return {{"seen": seen, "wrong": wrong}}
"""
PIPELINE = """
import time
import numpy as np
import spmd.data as data

@data.pipeline(source=data.{source}, sampling="once", seed={seed}, epochs={epochs}, workers=3)
def ids(example, rng):
    time.sleep({seconds} * rng.random())
    return {{"i": example, "row": np.full(100, example, np.int32)}}
"""
SOURCES = (f"range({N})", f"iterator(lambda: iter(range({N})))")
# Of the command lines of a run's own processes.
WORDS = {"worker": "spmd.feeding.workers.worker", "agent": "spmd.feeding.starting.local_agent",
         "scheduler": "spmd.feeding.starting.scheduler_process"}


class Killed:
    """One run from its beginning to its end, with kills between."""

    def __init__(self, folder: Path, image: Path, seed: int) -> None:
        self.folder, self.image, self.chance = folder, image, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.away = 0.0  # seconds for which there was no scheduler, in a launch
        self.file = folder / "ids.py"
        self.file.write_text(PIPELINE.format(
            source=self.chance.choice(SOURCES), seed=seed, epochs=EPOCHS, seconds=0.006))
        self.served = self.start_served() if self.chance.random() < 0.6 else None

    def start_served(self) -> ServedProcess:
        served = ServedProcess(self.folder)
        self.agents = [served.worker(2), served.worker(2)]
        with served.client() as client:
            client.submit(self.file)
        return served

    def run(self) -> None:
        many = [16, 12, 3, 5, 1, 7] if self.chance.random() < 0.3 else [
            self.chance.randint(1, 6) for _ in range(6)]
        try:
            while not self.one_launch(many[0], len(many) > 1):
                many = many[1:] or many
            seen, wrong = (np.load(self.folder / f"{n}.npy") for n in ("seen", "wrong"))
            assert wrong == 0 and (seen == EPOCHS).all(), (wrong, np.bincount(seen))
        finally:
            if self.served:
                self.served.close()

    def one_launch(self, ranks: int, may_die: bool) -> bool:
        """True: the run came to its end."""
        self.away = 0.0
        feed = f"ids@{self.served.address}" if self.served else self.file
        kept, env = self.folder / "kept", {}
        if self.served:
            env["SPMD_FEED_KEYS"] = self.served.keys_folder
        with Launch(["mpirun", "-n", ranks, sys.executable, "-m", "spmd", "run", self.image,
                     "--feed", feed, "--checkpoint", kept, "--resume", kept, "--every", 5,
                     "-o", f"seen={self.folder}/seen.npy", "-o",
                     f"wrong={self.folder}/wrong.npy"], env=env) as launch:
            dead = False
            for _ in range(self.chance.randint(1, 4)):
                time.sleep(self.chance.uniform(0.2, 1.5))
                kind = self.chance.choice(["worker", "agent", "scheduler", "worker"])
                if launch.process.poll() is None and self.kill(launch, kind):
                    self.kills[kind] += 1
            if may_die and self.chance.random() < 0.8:
                time.sleep(self.chance.uniform(0.0, 2.0))
                kind = self.chance.choice(["rank", "rank", "launcher"])
                dead = launch.process.poll() is None and self.kill(launch, kind)
                self.kills[kind] += dead
            done = launch.finish(90)
        assert "Traceback" not in done.err and "damaged" not in done.err, done.err
        if self.away > FIRST_S / 2:  # a busy machine: a run that begins does not wait longer
            dead = dead or done.code == 75 and "no scheduler answers" in done.err
        assert dead or done.code == 0, done.text
        return done.code == 0

    def kill(self, launch: Launch, kind: str) -> bool:
        if kind == "launcher":
            victim = launch.process.pid
        elif kind == "rank":
            found = [p for p in launch.alive() if " run " in command_of(p)
                     and command_of(p).split()[0].endswith("python")]
            if not found:
                return False
            victim = self.chance.choice(found)
        elif self.served:
            return self.kill_served(kind)
        else:
            found = [p for p in launch.alive() if WORDS[kind] in command_of(p)]
            if not found:
                return False
            victim = self.chance.choice(found)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            return True
        return False

    def kill_served(self, kind: str) -> bool:
        if kind == "scheduler":
            began = time.monotonic()
            self.served.process.kill()
            self.served.process.wait()
            time.sleep(self.chance.uniform(0, 2))
            self.served.start()
            self.away += time.monotonic() - began
        elif kind == "agent":
            agent = self.agents.pop(self.chance.randrange(2))
            agent.kill()
            agent.wait()
            self.agents.append(self.served.worker(2))
        else:
            agents = {a.pid for a in self.agents}
            found = [p for p in map(int, filter(str.isdigit, os.listdir("/proc")))
                     if WORDS[kind] in command_of(p) and parent_of(p) in agents]
            if not found:
                return False
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(found), signal.SIGKILL)
        return True


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def main(wanted: int, seed: int = 0) -> None:
    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as top:
        program, image = Path(top) / "counts.py", Path(top) / "counts.img"
        program.write_text(PROGRAM)
        assert here("build", program, "--checkpoint", "-o", image) == 0
        while kills.total() < wanted:
            folder = Path(top) / str(seed)
            folder.mkdir()
            one = Killed(folder, image, seed)
            print(f"seed {seed}: {'served' if one.served else 'one command'}", flush=True)
            one.run()
            kills += one.kills
            print(f"seed {seed}: {dict(kills)}", flush=True)
            seed += 1


if __name__ == "__main__":  # kills, first seed
    main(*map(int, sys.argv[1:]))

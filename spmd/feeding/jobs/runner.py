"""The runner of a job: a process beside an agent that starts its ranks, and sends what they give.

In: a line of the agent: the job, where the scheduler is. Out: at the scheduler, what ranks print as
they print it; at the end their outputs, whole, and then the exit status.
Always holds: ranks end with it, and it ends with its agent; a scheduler that is away is waited for.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from codegen.errors import OutputError, PeerError, shown
from spmd.feeding.clients.client import Client
from spmd.feeding.host.children import Channel, Child, end_marked, ended_by, of_parent
from spmd.feeding.jobs import multi_agent_launch
from spmd.feeding.jobs.saved_values import SavedValues
from spmd.feeding.messages.end_conditions import condition
from spmd.feeding.messages.job_options import checkpoint_folder, option_value
from spmd.feeding.messages.keys import KEYS, Keys
from spmd.feeding.messages.scheduler_replies import Refused
from spmd.files import ZARR, is_series
from spmd.files.checkpoints import complete
from spmd.files.packed_frames import pack

LAUNCHED = "spmd.feeding.jobs.launcher_process"
FIRST_S = 20.0
ASK_S = 2.0  # for an answer of the scheduler, before it is asked again
LOOK_S = 0.1
AGAIN_S = 0.5  # before it is asked again that cannot keep what it was sent
END_S = 3.0  # for a launcher to end its ranks
NAMED_S = 2.0  # for other agents to say how their daemons have ended
PART_BYTES = 1 << 20
FULL = 74  # exit code of a disk without room: that may change
OUTPUTS = "stdout", "stderr"
END_EARLY_S = 0.3  # between two times that the scheduler is asked to end a feed
WORK = "work"  # where ranks run, of the folder of a job
FRAMES = "frames"  # there: what they save while they run


class Over(Exception):
    """This attempt must end. why: what is said of it; "" where everybody knows."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


class YieldedSlots(Exception):
    """This attempt ends for a job of a higher priority; another one goes on where it ended."""


class Runner:
    """Runs the first part of a job. said: the fields of start_job, and of its agent: connect, keys,
    folder, launch, and runs_on, the kind of device."""

    prints = OUTPUTS  # files for standard output and standard error of what it starts

    def __init__(self, channel: Channel, said: dict[str, Any]) -> None:
        self.channel, self.said, self.folder = channel, said, said["folder"]
        self.of = {"job": said["job"], "attempt": said["attempt"]}
        self.host = said["places"][said["part"]][0]
        self.keys = Keys.of_plain(said["keys"])
        self.client = Client(said["connect"], self.keys, ASK_S)
        self.child: Child | None = None
        self.sent = dict.fromkeys(self.prints, 0)
        self.work = os.path.join(self.folder, WORK)
        self.series = series_of(said)
        self.values: SavedValues | None = None
        self.before: str | None = None  # the newest checkpoint when it was told to yield
        self.asked_s = 0.0  # when the scheduler was asked last to end the feed

    def run(self) -> None:
        """Run the job until the scheduler knows how it ended, or it must end."""
        try:
            self.prepare()
            self.carry_out()
        except Over as over:
            self.end_ranks()
            if over.why:
                with suppress(PeerError, Refused):
                    self.client.ask("job_ended", **self.of, status=None, why=over.why, files={})
        finally:
            self.end_ranks()
            self.client.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def carry_out(self) -> None:
        """Start the ranks, and report how they have ended."""
        if self.said["until"]:
            end_condition = condition(self.said["until"])
            path = os.path.join(self.work, self.series[end_condition.name])
            self.values = SavedValues(path, end_condition)
        words, environment = command_of(self.said, self.series), {}
        if len(self.said["places"]) > 1:
            environment = multi_agent_launch.prepare(
                self.folder, self.said["places"], self.said["connect"], self.of["job"],
                str(self.of["attempt"]))
        self.start(words, environment)
        try:
            status = self.watch()
        except YieldedSlots:
            self.end_ranks()
            self.ask("job_ended", **self.of, status=None, why="", files={}, yields=True)
            return
        self.tell_end(status)

    # ---- the scheduler

    def ask(self, kind: str, raw: Any = (), /, **fields: Any) -> Any:
        """Repeat a request until the scheduler answers. Raises Over where another attempt has
        replaced this one."""
        while True:
            self.look_at_agent()
            try:
                return self.client.ask(kind, raw, **fields)
            except PeerError:  # it is away
                continue
            except Refused as error:
                if error.exit_code != FULL:
                    print(f"spmd feed: {self.said['name']}: {error}", file=sys.stderr, flush=True)
                    raise Over from None
            time.sleep(AGAIN_S)

    def look_at_agent(self) -> None:
        if (said := self.channel.said()) is None:
            raise Over(f"its agent on {self.host} was killed, or has ended")
        if any("yields" not in message for message in said):
            raise Over  # it is told to end
        if said and self.before is None:
            self.before = self.newest_checkpoint()

    def newest_checkpoint(self) -> str:
        folder = option_value(self.said["words"], "--checkpoint")
        with suppress(OutputError):
            return max(complete(os.path.join(self.work, folder)), default="")
        return ""

    def get(self, file: str, path: str) -> None:
        """Fetch a file that was sent with the job into its folder."""
        with open(os.path.join(self.folder, path), "wb") as opened:
            while True:
                answer = self.ask("get", job=self.of["job"], attempt=0, file=file,
                                  offset=opened.tell())
                for frame in answer.frames:
                    opened.write(frame)
                if opened.tell() >= answer["value"]["size"]:
                    return

    def read(self, file: str) -> bytes:
        """Return a short file of this attempt; nothing where it is not there."""
        return b"".join(map(bytes, self.ask("get", **self.of, file=file, offset=0).frames))

    def put(self, file: str, path: str, begin: int = 0) -> int:
        """Sends a file from `begin` on; returns how long it is."""
        with open(os.path.join(self.folder, path), "rb") as opened:
            opened.seek(begin)
            while (data := opened.read(PART_BYTES)) or not opened.tell():
                self.ask("put", [data], **self.of, file=file, offset=opened.tell() - len(data))
                if not data:  # of an empty file, that it is there
                    break
            return opened.tell()

    # ---- ranks

    def prepare(self) -> None:
        os.mkdir(self.work)
        self.get("image", os.path.join(WORK, self.said["image"]))
        for file, name in {f"in.{entry['number']}": entry["file"] for entry in self.said["inputs"]
                           }.items():
            self.get(file, os.path.join(WORK, name))
        keys = os.path.join(self.folder, "keys")
        os.mkdir(keys, 0o700)
        for part, value in (("server.key", self.keys.server), ("client.key", self.keys.public),
                            ("client.secret", self.keys.secret)):
            fd = os.open(os.path.join(keys, part), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as secret:
                secret.write(value + "\n")

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        files = [os.open(os.path.join(self.folder, name),
                         os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for name in self.prints]
        self.child = Child(LAUNCHED, tuple(files))
        for fd in files:
            os.close(fd)
        alone = len(self.said["places"]) == 1
        self.child.channel.send(
            command=command, folder=self.work if alone else multi_agent_launch.EVERYWHERE,
            environment={KEYS: os.path.join(self.folder, "keys"), "PYTHONUNBUFFERED": "1",
                         "SPMD_RUN": self.said["name"], "SPMD_FEED_DEVICE": self.said["runs_on"],
                         multi_agent_launch.FOLDER: self.work,
                         multi_agent_launch.PYTHON: sys.executable, **environment})

    def watch(self) -> int:
        """Return the exit status as Popen says it, once what was started has ended."""
        assert self.child is not None
        while (status := self.child.has_ended()) is None:
            self.child.channel.flush()
            self.look_at_agent()
            self.send_prints()
            self.look_at_values()
            if self.before is not None and self.newest_checkpoint() > self.before:
                raise YieldedSlots
            time.sleep(LOOK_S)
        self.send_prints()
        return status

    def look_at_values(self) -> None:
        """End the feed once the condition of the job holds."""
        if self.values and self.values.look() and time.monotonic() - self.asked_s > END_EARLY_S:
            with suppress(PeerError, Refused):  # it is asked again
                self.client.ask("end_early", **self.of)
            self.asked_s = time.monotonic()

    def send_prints(self) -> None:
        for name, sent in self.sent.items():
            if os.stat(os.path.join(self.folder, name)).st_size > sent:
                self.sent[name] = self.put(name, name, sent)

    def tell_end(self, status: int) -> None:
        """Send the outputs of a run that ended well; then report how it ended."""
        files, why = {}, ""
        for output in self.said["outputs"] if status == 0 else ():
            file, path = f"out.{output['number']}", os.path.join(WORK, output["file"])
            if is_series(output["file"]):
                pack(os.path.join(self.work, self.series[output["name"]]),
                     os.path.join(self.folder, file))
                path = file
            if file not in files:
                files[file] = self.put(file, path)
        if status:
            why = f"{os.path.basename(command_of(self.said, self.series)[0])} {ended_by(status)}"
            why += "".join(f"; {text}" for text in self.killed_daemons())
        elif self.values:
            self.values.look()
            why = str(self.values)
        self.ask("job_ended", **self.of, status=status if status >= 0 else 128 - status,
                 why=shown(why), files=files)

    def killed_daemons(self) -> list[str]:
        """Return what was killed on other agents: their runners say it when a launcher ends."""
        hosts = [host for host, _ in self.said["places"]]
        waited = {k for k in range(1, len(hosts)) if self.read(f"start.{k}")}
        deaths: list[str] = []
        last = time.monotonic() + NAMED_S
        while waited and time.monotonic() < last:
            for k in sorted(waited):
                if end := self.read(f"end.{k}"):
                    waited.remove(k)
                    how = json.loads(end)
                    deaths += [f"its daemon on {hosts[k]} {how['text']}"] * how["killed"]
            time.sleep(LOOK_S)
        return deaths

    def end_ranks(self) -> None:
        if self.child is None:
            return
        if self.child.has_ended() is None:
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGTERM)
            end = time.monotonic() + END_S
            while self.child.has_ended() is None and time.monotonic() < end:
                time.sleep(LOOK_S / 2)
        self.child.end(0.0)
        end_marked([self.child.mark])  # launchers give ranks groups of their own
        self.child = None


def series_of(said: dict[str, Any]) -> dict[str, str]:
    """Return where the ranks of a job save frames, by the names of saves: below the folder where
    they run; those of a job that keeps checkpoints beside these, so that it finds them there when
    it goes on, and all of its agents see them."""
    kept = checkpoint_folder(said["words"])
    folder = f"{kept.rstrip('/')}.{FRAMES}" if kept else FRAMES
    names = {output["name"]: output["file"] for output in said["outputs"]
             if is_series(output["file"])}
    if said["until"]:
        names.setdefault(condition(said["until"]).name, "{}.npy")
    return {name: f"{folder}/{quote(name, safe='')}" + (
        ZARR if file.endswith(ZARR) else "/{}.npy") for name, file in names.items()}


def command_of(said: dict[str, Any], series: dict[str, str]) -> list[str]:
    """Return the launcher's words, and those of `spmd run` with the files of the job. series: where
    frames go, by the names of saves."""
    alone = len(said["places"]) == 1
    launch = shlex.split(said["launch"]) or ([] if alone else multi_agent_launch.launcher())
    launch = [word.replace("{ranks}", str(said["ranks"])) for word in launch]
    feed = f"{said['pipeline']}@{said['connect']}"
    start = [sys.executable, "-m", "spmd"] if alone else multi_agent_launch.RANK
    words = [*launch, *start, "run", said["image"],
             "--ranks", str(said["ranks"]),
             "--feed", f"{said['feed']}={feed}" if said["feed"] else feed]
    for name, path in series.items():
        words += ["-o", f"{name}={path}"]
    for option, kind in (("-i", "inputs"), ("-o", "outputs")):
        for entry in said[kind]:
            if kind == "outputs" and entry["name"] in series:
                continue
            name, member = (f"{entry['name']}=" if entry["name"] else "",
                            f":{entry['member']}" if entry["member"] else "")
            words += [option, f"{name}{entry['file']}{member}"]
    return words + said["words"]


def main(arguments: list[str], kind: type[Runner] = Runner) -> None:
    channel, _ = of_parent(arguments)
    if channel.wait_for(FIRST_S) and (said := channel.said()):
        kind(channel, said[0]).run()


if __name__ == "__main__":
    main(sys.argv[1:])

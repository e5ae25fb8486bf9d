"""What a launcher calls instead of ssh: a command for a host, which the agent there runs.

In: the scheduler's address, a job, its attempt, its hosts; then what ssh is told: options, a host,
a command for a shell. Out: what the command prints, and its exit status.
Always holds: it goes by the scheduler, over the lines that jobs have; it ends with its launcher.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, NoReturn

from codegen.errors import PeerError, UsageError
from spmd.feeding.clients.client import Client
from spmd.feeding.messages.keys import keys_of
from spmd.feeding.messages.scheduler_replies import Refused

ASK_S = 2.0
LOOK_S = 0.3
OVER = 75  # exit status where the attempt counts no more
DAEMONIZE = "--daemonize"  # of PRRTE: the agent has to see the end of what it starts


def main(arguments: list[str]) -> int:
    connect, job, attempt, hosts, *words = arguments
    names = hosts.split(",")
    while words and words[0] not in names:  # options of ssh
        del words[0]
    if len(words) < 2:
        raise UsageError("a launcher gives no host of this job", expected=", ".join(names))
    part, command = names.index(words[0]), " ".join(w for w in words[1:] if w != DAEMONIZE)
    if part == 0:  # we are there
        os.execvp("sh", ["sh", "-c", command])
    return RemoteStart(connect, job, int(attempt), part).run(names[part], command)


class RemoteStart:
    """A command on the agent that has a part of a job. part: which one."""

    def __init__(self, connect: str, job: str, attempt: int, part: int) -> None:
        self.client = Client(connect, keys_of(""), ASK_S)
        self.of, self.part = {"job": job, "attempt": attempt}, part
        self.parent, self.shown = os.getppid(), 0

    def run(self, host: str, command: str) -> int:
        """Return the command's exit status as a shell says it."""
        if self.get("start", 0):
            raise UsageError(f"{host} runs a command of this job already",
                             expected="a launcher that starts one daemon on each host")
        self.ask("put", [json.dumps({"command": command}).encode()], **self.of,
                 file=f"start.{self.part}", offset=0)
        while True:
            end = self.get("end", 0)  # all that it has printed is there before
            while said := self.get("said", self.shown):
                os.write(2, said)
                self.shown += len(said)
            if end:
                return int(json.loads(end)["status"])
            time.sleep(LOOK_S)

    def get(self, kind: str, offset: int) -> bytes:
        """Return what a file of our part has from an offset on."""
        answer = self.ask("get", **self.of, file=f"{kind}.{self.part}", offset=offset)
        return b"".join(bytes(frame) for frame in answer.frames)

    def ask(self, kind: str, raw: Any = (), /, **fields: Any) -> Any:
        """Return what the scheduler answers; while it is away, it is asked again."""
        while os.getppid() == self.parent:
            try:
                return self.client.ask(kind, raw, **fields)
            except Refused:
                raise
            except PeerError:
                time.sleep(LOOK_S)
        leave(OVER)


def leave(status: int) -> NoReturn:
    """End the process immediately: threads of broken connections are not waited for."""
    os._exit(status)


if __name__ == "__main__":
    try:
        leave(main(sys.argv[1:]))
    except (UsageError, Refused) as error:
        os.write(2, f"spmd feed: {error}\n".encode())
        leave(OVER)

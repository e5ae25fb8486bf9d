"""The runner of one part of a job that is on several agents: it runs the launcher's daemon here.

In: as of every runner; the command of the daemon, which the first agent's launcher gives. Out: what
the daemon prints, how it ends. Always holds: it and its ranks end when the scheduler says so, and
with its agent; a daemon that was killed ends the job, also where the launcher does not see it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from spmd.feeding.host.children import Channel, ended_by
from spmd.feeding.jobs.runner import END_S, LOOK_S, Over, Runner, main

SIGNALS = 128  # exit statuses behind it are of signals, for a shell


class PartRunner(Runner):
    """Runs a part of a job that is not the first. said: as for Runner."""

    def __init__(self, channel: Channel, said: dict[str, Any]) -> None:
        self.prints = (f"said.{said['part']}",) * 2  # both, in the order of writing
        super().__init__(channel, said)

    def carry_out(self) -> None:
        """Wait for the command, and run it until told that the job is over."""
        part = self.said["part"]
        while not (said := self.read(f"start.{part}")):
            self.look_at_agent()
            time.sleep(LOOK_S)
        self.start(["sh", "-c", json.loads(said)["command"]], {})
        status = self.watch()
        if status > SIGNALS:  # as a shell says of what it has started itself
            status = SIGNALS - status
        self.tell(f"end.{part}", {"status": status if status >= 0 else SIGNALS - status,
                                  "killed": status < 0, "text": ended_by(status)})
        last = time.monotonic() + END_S
        while not status or time.monotonic() < last:  # it is told to end
            self.look_at_agent()
            time.sleep(LOOK_S)
        raise Over(f"its daemon on {self.host} {ended_by(status)}")

    def tell(self, file: str, said: dict[str, object]) -> None:
        """Sends a short file."""
        with open(os.path.join(self.folder, file), "w") as out:
            json.dump(said, out)
        self.put(file, file)


if __name__ == "__main__":
    main(sys.argv[1:], PartRunner)

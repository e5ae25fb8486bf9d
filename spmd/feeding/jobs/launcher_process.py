"""The process that becomes the launcher of a job, so that it dies with the runner that starts it.

In: a line of its runner: the command, its folder and environment; two files for what it prints.
Always holds: the command is run without a shell; its exit status is that of this process.
"""

from __future__ import annotations

import os
import sys

from codegen.errors import shown
from spmd.feeding.host.children import of_parent
from spmd.launch.launchers import variables

FIRST_S = 20.0
NOT_THERE, NOT_RUN = 127, 126  # as shells say it


def main(arguments: list[str]) -> None:
    channel, (out, err) = of_parent(arguments)
    if not channel.wait_for(FIRST_S) or not (said := channel.said()):
        return
    words = said[0]["command"]
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(said[0]["folder"])
    os.environ.update(said[0]["environment"])
    if words[0] == sys.executable:  # no launcher: an agent that one has started is none for ranks
        while (count := variables()[1]):
            del os.environ[count]
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, shown(f"spmd: {words[0]}: {error.strerror}\n").encode())
        os._exit(NOT_THERE if isinstance(error, FileNotFoundError) else NOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])

"""`spmd completion`: a script by which a shell completes commands, options and file names.

In: the name of a shell, and the parser. Out: the script, from its options; it starts no Python
when it is used. This is the only file that imports shtab.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from codegen.errors import EnvironmentFault
from spmd.cli import COMMAND, parser
from spmd.launch.processes import Processes

try:
    import shtab
except ImportError:
    shtab = None  # type: ignore[assignment]

# Options that name files.
FILES = ("program", "image", "input", "output", "timeline", "plot", "file", "keys", "state",
         "save_state", "folder", "source", "token_file", "tls_cert", "tls_key")


def command(asked: argparse.Namespace, _: Processes) -> int:
    """Print the script of a shell. Raises EnvironmentFault where shtab is not installed."""
    if shtab is None:
        raise EnvironmentFault("completion needs shtab", expected="the package shtab",
                               found="none", remedy="pip install shtab")
    whole = parser(prog=COMMAND)
    for action in _actions(whole):
        if action.dest in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, asked.shell))
    return 0


def _actions(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in command._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in set(action.choices.values()):
                yield from _actions(inner)

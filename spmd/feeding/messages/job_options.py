"""What the submitter of a job says of it: the fields of wire.JOB, and further words of `spmd run`.

In: these. Out: what is behind a word, where a job keeps what it saves. Nothing here knows all
words.
"""

from __future__ import annotations

import os

from spmd.files import is_series

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def option_value(words: Sequence[str], option: str) -> str:
    """Return what stands behind an option, or "" where the option is not there.

    ::

        >>> option_value(["--every", "30s", "--resume=kept"], "--resume")
        'kept'
    """
    for word, follower in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else follower
    return ""


def checkpoint_folder(words: Sequence[str]) -> str:
    """Return the folder of checkpoints that a job writes, else of those that it begins with; "" for
    none."""
    return option_value(words, "--checkpoint") or option_value(words, "--resume")


def has_frames(asked: Mapping[str, Any]) -> bool:
    """Return whether a job saves frames where only one agent sees them: in the folder in which its
    ranks run. Others lie beside its checkpoints, in a folder that all agents see."""
    saves = asked["until"] or any(is_series(output["file"]) for output in asked["outputs"])
    return bool(saves) and not os.path.isabs(checkpoint_folder(asked["words"]))

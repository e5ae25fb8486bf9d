"""What further words of `spmd run` say of a job, which its submitter gave it.

In: the words. Out: what is behind one of them; nothing here knows all of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def word_behind(words: Sequence[str], option: str) -> str:
    """Return what stands behind an option, or "" where the option is not there.

    ::

        >>> word_behind(["--every", "30s", "--resume=kept"], "--resume")
        'kept'
    """
    for word, follower in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else follower
    return ""

"""SkippedExamples: examples that fail and are left out; each is said once for the whole run.

In: what a process skips, and what others tell it. The first process of a run says it, and answers;
the scheduler passes both on. Always holds: what nobody has answered for is told again, and said by
the process itself at its end.
"""

from __future__ import annotations

import sys
import time

from codegen.errors import shown

NAMED = 10  # skipped examples that are named one by one
AGAIN_S = 1.0  # without an answer: lines break, and what is under way is lost then


class SkippedExamples:
    """Counts the examples that were skipped, and prints each once, for one process."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.said: set[int] = set()  # positions, of the whole run where this process speaks
        self.named: set[str] = set()  # what was printed of them: one line for a batch that failed
        self.told: dict[int, tuple[str, float]] = {}  # not answered for: what, and since when

    def say(self, position: int, failure: str) -> None:
        """Count a skipped example, and print its failure once, if that is not ""."""
        self.told.pop(position, None)
        if position not in self.said:
            self.said.add(position)
            if failure and failure not in self.named and len(self.named) < NAMED:
                self.named.add(failure)
                say(f"{self.pipeline}: skipped {failure}")

    def tells(self, position: int, failure: str) -> dict[str, object]:
        """Return what the scheduler passes on to the first process, which prints it."""
        self.told[position] = failure, time.monotonic()
        return {"position": position, "text": failure[:4000]}

    def answered(self, position: int) -> None:
        self.told.pop(position, None)

    def late(self) -> list[tuple[int, str]]:
        """Return the skipped examples that no process has acknowledged."""
        now = time.monotonic()
        return [(k, failure) for k, (failure, since) in self.told.items() if now - since > AGAIN_S]

    def end(self) -> None:
        for position, (failure, _) in list(self.told.items()):
            self.say(position, failure)
        if len(self.said) > NAMED:
            say(f"{self.pipeline}: {len(self.said)} examples were skipped in all")


def say(text: str) -> None:
    print(shown(f"spmd feed: {text}"), file=sys.stderr, flush=True)

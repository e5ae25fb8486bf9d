"""The waiting protocol of csrc/wait.c: every interleaving of a small model of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.engine.explore import explore

WORDS = ("posted", "rung", "sleeps")


@dataclass(frozen=True)
class Thread:
    """A thread at step `at`; `buffer` holds its writes that others do not see yet."""

    at: str
    heard: int = 0
    buffer: tuple[tuple[str, int], ...] = ()
    blocked: bool = False
    posts: int = 0


@dataclass(frozen=True)
class State:
    memory: tuple[int, ...]
    threads: tuple[Thread, ...]  # the sleeper first


class Model:
    """`ringers` threads write once each, `posts` times; the sleeper waits until all is written."""

    def __init__(self, ringers: int, posts: int, without: str = "") -> None:
        self.posts, self.without, self.needed = posts, without, ringers * posts
        sleeper = Thread("look")
        self.first = State((0, 0, 0), (sleeper, *[Thread("post", posts=posts)] * ringers))

    def next(self, state: State) -> Iterator[State]:
        for k, thread in enumerate(state.threads):
            if thread.buffer:  # its oldest write becomes visible
                (word, value), *rest = thread.buffer
                yield self._with(state, k, replace(thread, buffer=tuple(rest)), {word: value})
            step = getattr(self, f"_{thread.at}")
            if not thread.blocked and thread.at != "done":
                yield from step(state, k, thread)

    @staticmethod
    def _with(state: State, k: int, thread: Thread, writes: dict[str, int]) -> State:
        memory = tuple(writes.get(w, v) for w, v in zip(WORDS, state.memory))
        threads = (*state.threads[:k], thread, *state.threads[k + 1 :])
        return State(memory, threads)

    def _read(self, state: State, thread: Thread, word: str) -> int:
        own = [value for w, value in thread.buffer if w == word]
        return own[-1] if own else state.memory[WORDS.index(word)]

    def _fence(self, state: State, k: int, thread: Thread, to: str, name: str) -> Iterator[State]:
        if not thread.buffer or self.without == name:
            yield self._with(state, k, replace(thread, at=to), {})

    def _done(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        yield from ()

    # ---- who lets the sleeper go on: spmd_span_ring

    def _post(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        if not thread.buffer:  # an atomic addition
            value = state.memory[0] + 1
            if self.without == "ringer":  # a plain write, as if nobody else wrote
                value = self._read(state, thread, "posted") + 1
                yield self._with(state, k, replace(
                    thread, at="ring_fence", buffer=(("posted", value),)), {})
            else:
                yield self._with(state, k, replace(thread, at="ring_fence"), {"posted": value})

    def _ring_fence(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        yield from self._fence(state, k, thread, "ring_look", "ringer")

    def _ring_look(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        after = replace(thread, posts=thread.posts - 1,
                        at="post" if thread.posts > 1 else "done")
        if self._read(state, thread, "sleeps"):
            after = replace(thread, at="ring")
        yield self._with(state, k, after, {})

    def _ring(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        if not thread.buffer:
            writes = {"rung": state.memory[1] + 1}
            yield self._with(state, k, replace(thread, at="wake"), writes)

    def _wake(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        after = replace(thread, posts=thread.posts - 1,
                        at="post" if thread.posts > 1 else "done")
        woken = self._with(state, k, after, {})
        yield self._with(woken, 0, replace(woken.threads[0], blocked=False), {})

    # ---- the sleeper: spmd_wait, and the sweep that is made before and after it

    def _look(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        over = self._read(state, thread, "posted") == self.needed
        yield self._with(state, k, replace(thread, at="done" if over else "hear"), {})

    def _hear(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        heard = self._read(state, thread, "rung")
        if self.without == "heard":  # read later, just before it sleeps
            heard = -1
        yield self._with(state, k, replace(thread, at="sleepy", heard=heard), {})

    def _sleepy(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        buffer = (*thread.buffer, ("sleeps", 1))
        yield self._with(state, k, replace(thread, at="sleep_fence", buffer=buffer), {})

    def _sleep_fence(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        yield from self._fence(state, k, thread, "look_again", "sleeper")

    def _look_again(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        over = self._read(state, thread, "posted") == self.needed
        yield self._with(state, k, replace(thread, at="done" if over else "sleep"), {})

    def _sleep(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        """The futex compares and blocks at once. No time-out: it must not be needed."""
        heard = state.memory[1] if thread.heard < 0 else thread.heard
        blocked = state.memory[1] == heard
        yield self._with(state, k, replace(thread, at="hear_again", blocked=blocked), {})

    def _hear_again(self, state: State, k: int, thread: Thread) -> Iterator[State]:
        heard = -1 if self.without == "heard" else self._read(state, thread, "rung")
        yield self._with(state, k, replace(thread, at="look_again", heard=heard), {})


def stuck(model: Model) -> tuple[int, list[State]]:
    """How many states there are, and those that never change again with somebody asleep."""
    states = list(explore(model.first, model.next))
    return len(states), [state for state, end in states
                         if end and any(t.at != "done" for t in state.threads)]


@pytest.mark.parametrize(("ringers", "posts"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1)])
def test_nobody_sleeps_for_ever(ringers: int, posts: int) -> None:
    states, asleep = stuck(Model(ringers, posts))
    assert states > 20 and asleep == []


@pytest.mark.parametrize("without", ["ringer", "sleeper", "heard"])
def test_each_part_of_the_protocol_is_needed(without: str) -> None:
    """The model can fail: without either fence, or with a late look at the bell, it sleeps on."""
    _, asleep = stuck(Model(1, 1, without))
    assert asleep and all(state.threads[0].blocked for state in asleep)

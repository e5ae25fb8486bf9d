"""Every state that a small model can come to: models of csrc/wait.c and csrc/direct.c.

Threads of a model have store buffers, as x86 processors do (Sewell et al., x86-TSO, CACM 53(7),
2010): what one writes is seen by others some time later, at the latest when it comes to a fence
or to a locked instruction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


def explore(first: S, after: Callable[[S], Iterable[S]]) -> Iterator[tuple[S, bool]]:
    """Each state once, and whether it is an end: none comes after it."""
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        end = True
        for other in after(state):
            end = False
            if other not in seen:
                seen.add(other)
                todo.append(other)
        yield state, end


# ---- threads without branches

Writes = tuple[tuple[int, int], ...]  # words and values


class Op(NamedTuple):
    """One access to a shared word. "wait": until the word, which only grows, is at least `value`.
    "read": it must be `value`. "write" sets it. Locked: "add" adds one; "swap": `value` becomes
    `new`."""

    kind: str
    word: str
    value: int = 0
    new: int = 0
    name: str = ""  # of a wait; of what is written by release


class Step(NamedTuple):
    """Waits and reads at one instant, then writes that others see at one instant. Or, of locked
    instructions, an addition, or an exchange of one value for another."""

    waits: Writes = ()
    reads: Writes = ()
    writes: Writes = ()
    adds: int | None = None
    swaps: tuple[int, int, int] | None = None


class State(NamedTuple):
    """A state of all members: the step of each, and how many of its writing steps others have
    seen."""

    at: tuple[int, ...]
    seen: tuple[int, ...]
    memory: tuple[int, ...]
    wrong: str = ""


class Machine:
    """Explores all interleavings of the threads' `ops`, without words that one thread alone uses.

    each: a word at a time. Otherwise those of one step are touched at one instant. That hides
    nothing, as there is one right value for each read. A read that comes between two writes of a
    step, and finds a wrong value, finds it too after them, if it is a new one, or before them: it
    did not wait for the last. And of two reads in a step the first can as well be made with the
    second: if it is then wrong, a fault is found all the same.
    """

    def __init__(self, ops: Sequence[Sequence[Op]], each: bool) -> None:
        self.names = {op.name for own in ops for op in own if op.name}
        users = Counter(word for own in ops for word in {op.word for op in own})
        self.words = sorted(word for word, count in users.items() if count > 1)
        number = {word: k for k, word in enumerate(self.words)}
        awaited = {op.word for own in ops for op in own if op.kind == "wait"}
        self.steps = []
        for own in ops:
            shared = [op for op in own if op.word in number]
            self.steps.append([step_of(group, number) for group in grouped(shared, awaited, each)])
        # By step: which steps before it write.
        self.writing = [[[k for k in range(at) if steps[k].writes] for at in range(len(steps) + 1)]
                        for steps in self.steps]
        self.first = State((0,) * len(ops), (0,) * len(ops), (0,) * len(self.words))

    def next(self, state: State) -> Iterator[State]:
        if state.wrong:
            return
        at, seen, memory, _ = state
        for k, steps in enumerate(self.steps):
            buffer = [steps[j].writes for j in self.writing[k][at[k]][seen[k] :]]
            if buffer:  # the oldest become visible
                yield State(at, plus_one(seen, k), written(memory, buffer[0]))
            if at[k] == len(steps):
                continue
            step = steps[at[k]]
            if any(memory[word] < value for word, value in step.waits):
                continue
            if buffer and (step.adds is not None or step.swaps):
                continue
            yield self._done(state, k, step, written(memory, *buffer) if step.reads else memory)

    def _done(self, state: State, k: int, step: Step, mine: tuple[int, ...]) -> State:
        """Return the state after a step of member k, which sees the memory `mine`."""
        memory = state.memory
        for word, value in step.reads:
            if mine[word] != value:
                return state._replace(wrong=f"{k} reads {self.words[word]}")
        if step.adds is not None:
            memory = written(memory, [(step.adds, memory[step.adds] + 1)])
        if step.swaps:
            word, value, new = step.swaps
            if memory[word] != value:
                return state._replace(wrong=f"{k} reads {self.words[word]}")
            memory = written(memory, [(word, new)])
        return State(plus_one(state.at, k), state.seen, memory)

    def done(self, state: State) -> bool:
        return all(at == len(steps) for at, steps in zip(state.at, self.steps, strict=True))


def grouped(ops: list[Op], awaited: set[str], each: bool) -> Iterator[list[Op]]:
    """Yield groups that make one step each: waits, reads, then writes; only the last is waited
    for."""
    order = ["wait", "read", "write"]
    group: list[Op] = []
    for op in ops:
        if group:
            last = group[-1]
            locked = op.kind not in order or last.kind not in order
            back = not locked and order.index(op.kind) < order.index(last.kind)
            if each or locked or back or (last.kind == "write" and last.word in awaited):
                yield group
                group = []
        group.append(op)
    if group:
        yield group


def step_of(ops: list[Op], number: dict[str, int]) -> Step:
    def those(kind: str) -> Writes:
        return tuple((number[op.word], op.value) for op in ops if op.kind == kind)

    first = ops[0]
    word = number[first.word]
    return Step(
        those("wait"), those("read"), those("write"),
        adds=word if first.kind == "add" else None,
        swaps=(word, first.value, first.new) if first.kind == "swap" else None,
    )


def plus_one(counts: tuple[int, ...], k: int) -> tuple[int, ...]:
    return (*counts[:k], counts[k] + 1, *counts[k + 1 :])


def written(memory: tuple[int, ...], *batches: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    if not batches:
        return memory
    after = list(memory)
    for batch in batches:
        for word, value in batch:
            after[word] = value
    return tuple(after)

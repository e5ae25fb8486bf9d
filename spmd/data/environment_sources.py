"""The source of environments, for reinforcement learning: what each shows after the last action.

Each place of a batch is one environment. The example at position turn * count + place is what
environment `place` shows at that turn; the action for it leads to the next turn's.
Always holds: an environment has the API of gymnasium: reset(seed=…) and step(action).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from codegen.errors import EnvironmentFault, UsageError
from codegen.user.named import named, renamed
from spmd.data.permutations import keyed
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import Digest, caller


class Observed:
    """An observation of an environment: `obs`, `reward`, `terminated`, `truncated`, `done`,
    `first`.

    done: the episode ends with this. first: it begins with this; the reward is 0 then. turn: how
    many actions led here. place: which environment it is, from 0.
    """

    __slots__ = ("first", "obs", "place", "reward", "terminated", "truncated", "turn")

    def __init__(
        self, obs: Any, reward: float, terminated: bool, truncated: bool, first: bool, turn: int,
        place: int,
    ) -> None:
        self.obs, self.reward = obs, reward
        self.terminated, self.truncated, self.first = terminated, truncated, first
        self.turn, self.place = turn, place

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def __repr__(self) -> str:
        return f"<environment {self.place}, turn {self.turn}>"


class _Environments(ExampleSource):
    def __init__(self, make: Callable[[], Any], count: int, said: str) -> None:
        self.place = caller()
        self.count, self.said = count, said
        self._make = make
        self._made: dict[int, Any] = {}
        self._shown: dict[int, Observed] = {}
        self._actions: dict[int, tuple[int, Any]] = {}  # place -> turn that it leads to, action

    def found_by(self) -> str:
        return "acting"

    def length(self) -> None:
        return None

    def name(self, index: int) -> str:
        turn, place = divmod(index, self.count)
        return f"environment {place}, turn {turn}"

    def digest(self) -> str:
        return Digest("environments").add(self.said, self.count).text()

    def ready(self, first: int, count: int) -> bool:
        """Return whether there is an action for each environment that must act, or it is a turn to
        begin at."""
        return not any(self._waits(p) for p in range(first, first + count))

    def _waits(self, position: int) -> bool:
        """Return whether an environment waits for an action: what leads to it was shown here, and
        no action has come."""
        turn, place = divmod(position, self.count)
        shown = self._shown.get(place)
        come = self._actions.get(place, (-1, None))[0]
        return shown is not None and shown.turn + 1 == turn and come != turn

    def send(self, first: int, actions: Mapping[str, Any]) -> None:
        """Take rows of actions, also in trees, for the environments shown at first, first + 1, …"""
        rows = {len(a) for _, a in named(dict(actions))}
        if len(rows) != 1:
            raise UsageError(
                "actions for environments have unequal numbers of rows", place=self.place,
                expected="a row for each environment", found=str(sorted(rows)))
        for k in range(rows.pop()):
            turn, place = divmod(first + k, self.count)
            action = {name: _row(tree, k) for name, tree in actions.items()}
            plain = action if len(action) > 1 else next(iter(action.values()))
            self._actions[place] = turn + 1, plain

    def observe(self, position: int, seed: int) -> Observed:
        """Return what is shown at a position; return it again, if it was asked for already.

        An environment whose last turn was not shown here, as another worker had it, begins anew.
        """
        turn, place = divmod(position, self.count)
        shown = self._shown.get(place)
        if shown is not None and shown.turn == turn:
            return shown
        goes_on = shown is not None and shown.turn + 1 == turn
        if goes_on and self._waits(position):
            raise UsageError(
                f"no action has come for {self.name(position)}", place=self.place,
                expected="feed.send(action) in the program, before the next feed.next()",
                found="none", remedy="feed.send in each turn; pipeline.send(…) where you try it")
        if shown is None or not goes_on:
            self._shown[place] = self._begin(place, turn, seed)
        elif shown.done:
            self._shown[place] = self._reset(place, turn, None)
        else:
            self._shown[place] = self._step(place, turn)
        return self._shown[place]

    def _begin(self, place: int, turn: int, seed: int) -> Observed:
        if place not in self._made:
            self._made[place] = self._make()
        number = int(keyed(seed, place, turn)[0] >> np.uint64(33))  # 31 bits, as all take them
        return self._reset(place, turn, number)

    def _reset(self, place: int, turn: int, seed: int | None) -> Observed:
        results = self._made[place].reset() if seed is None else self._made[place].reset(seed=seed)
        if not isinstance(results, tuple) or len(results) != 2:
            raise self._other("reset(seed=…)", "(obs, info)", results)
        return Observed(results[0], 0.0, False, False, True, turn, place)

    def _step(self, place: int, turn: int) -> Observed:
        action = self._actions.pop(place)[1]
        results = self._made[place].step(action)
        if not isinstance(results, tuple) or len(results) != 5:
            raise self._other("step(action)", "(obs, reward, terminated, truncated, info)", results)
        obs, reward, terminated, truncated, _ = results
        return Observed(
            obs, float(reward), bool(terminated), bool(truncated), False, turn, place)

    def _other(self, call: str, expected: str, found: Any) -> UsageError:
        kind = f"{len(found)} values" if isinstance(found, tuple) else type(found).__name__
        return UsageError(
            f"{call} of an environment returned something else", place=self.place,
            expected=f"{expected}, as gymnasium has it", found=kind,
            remedy="gymnasium.make(…) makes such environments")

    def close(self) -> None:
        """Close all that were made."""
        for environment in self._made.values():
            getattr(environment, "close", _nothing)()
        self._made.clear()
        self._shown.clear()
        self._actions.clear()


def _row(tree: Any, k: int) -> Any:
    return renamed(lambda _, array: array[k], tree)


def _nothing() -> None:
    """Do nothing to close an environment that has no method for it."""


def environments(make: str | Callable[[], Any], count: int, /, **options: Any) -> ExampleSource:
    """Return a source of environments: each place of a batch is one, and the batch has `count`
    places.

    make: a function that makes an environment with gymnasium's API, called with `options`, or the
    name of one that gymnasium registers. An example has `obs`, `reward`, `terminated`, `truncated`,
    `done`, `first`, `turn` and `place`. The program sends actions back with `feed.send`, a row for
    each place, before it takes the next batch.

    An episode that ends is shown with done; the next turn shows the begin of a new one (first), and
    the action sent to the last is not used. Environments are seeded by the pipeline's seed, place
    and turn. If a worker is lost, its environments begin new episodes.

    Raises UsageError for a wrong count; EnvironmentFault, when a name is first made, if gymnasium
    is not installed.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(
            "count of data.environments is wrong", place=caller(),
            expected="a number from 1: the batch of the feed", found=repr(count))
    if isinstance(make, str):
        return _Environments(lambda: _registered(make, options), count, f"{make} {options}")
    if not callable(make):
        raise UsageError(
            "data.environments gets a function, or a name", place=caller(),
            expected="a function that makes an environment", found=type(make).__name__)
    said = getattr(make, "__name__", type(make).__name__)
    return _Environments(lambda: make(**options), count, f"{said} {options}")


def _registered(name: str, options: dict[str, Any]) -> Any:
    try:
        gymnasium = import_module("gymnasium")
    except ImportError:
        raise EnvironmentFault(
            f"environment {name!r} needs gymnasium", expected="the package gymnasium",
            found="none", remedy="pip install gymnasium, where the workers run") from None
    return gymnasium.make(name, **options)

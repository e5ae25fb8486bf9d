"""Lists, dicts and objects with more than one name, where a loop or a branch rebinds one of them.

A capture gives every carried name values of its own, so names may be one thing only as long as they
are in every turn. Always holds: where a branch decides what is one, nothing is stored into it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from codegen.errors import CarryError, Place, UnsupportedError
from codegen.places import is_user_file
from codegen.trace.context import Context
from codegen.trace.control.outside import Outside
from codegen.trace.state import Tree, flatten, same

_COPY = "a copy of {0} for one of them: list, dict or copy.copy makes it"


def parts(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the containers of a tree, in the order in which `fill` comes to them, with their
    paths."""
    for key, child in zip(tree.keys, tree.children):
        yield from parts(child, path + (f".{key}" if tree.kind == "object" else f"[{key!r}]"))
    if tree.kind not in ("leaf", "tuple"):
        yield path, tree.value


def _fixed(thing: Any) -> bool:
    """Return whether nobody stores into it: a frozen dataclass."""
    return bool(getattr(getattr(type(thing), "__dataclass_params__", None), "frozen", False))


def holder(thing: Any, but: Iterable[str] = ()) -> str:
    """Return how else the user's running functions reach a thing: a path, or ""; `but`: variables
    of the innermost function that do not count."""
    frame, skipped = sys._getframe(1), set(but)
    while frame is not None and frame.f_globals.get("__name__") != "codegen.trace.program":
        if is_user_file(frame.f_code.co_filename):
            for name, value in frame.f_locals.items():
                if name not in skipped and not name.startswith("__"):
                    for path, part in parts(flatten(value)[0], name):
                        if part is thing:
                            return path
            skipped = set()
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _labels(things: Iterable[Any]) -> list[int]:
    """Return one number per thing; equal numbers mark the same thing."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(x), len(numbers)) for x in things]


# ---- branches ----------------------------------------------------------------------------------


class Merging:
    """Decides which containers names share after a branch: the arms' own, or copies."""

    def __init__(self, context: Context, place: Place | None, older: Outside) -> None:
        self.context, self.place, self._older = context, place, older
        self._made: dict[tuple[int, ...], tuple[Any, list[Any]]] = {}

    def things(self, name: str, trees: Sequence[Tree]) -> list[Any]:
        out = []
        for arms in zip(*(parts(t, name) for t in trees)):
            path, values = arms[0][0], [value for _, value in arms]
            out.append(self._one(name, path, values))
        return out

    def _one(self, name: str, path: str, values: list[Any]) -> Any:
        if all(v is values[0] for v in values):
            return values[0]
        key = tuple(map(id, values))
        if key in self._made:
            return self._made[key][0]
        merged = copy.copy(values[0])
        for other, theirs in self._made.values():
            if any(a is b for a, b in zip(values, theirs)):
                self._twins(merged, other, path, "another name")
        self._made[key] = merged, values
        for value in values:
            other_path = holder(value, (name,)) if value in self._older else ""
            if other_path:
                self._twins(merged, value, path, other_path)
        return merged

    def _twins(self, a: Any, b: Any, path: str, other: str) -> None:
        path = path.replace("__value__", "the value of the expression")
        if not _fixed(a):
            self.context.twins.append((a, b, path, other, self.place))


def refuse_twin(context: Context, thing: Any, place: Place | None) -> None:
    """Raises UnsupportedError for a store into a container that another name may share."""
    for a, b, path, other, where in context.twins:
        if thing is a or thing is b:
            raise UnsupportedError(
                f"{path} and {other} may or may not be one {type(a).__name__} here: "
                "what is known only at run time decides it", place=place,
                expected="a store into what is surely one, or surely two",
                found=f"a store into {path if thing is a else other}",
                remedy=f"choose {_COPY.format(other)}",
                also=(("it is decided", where),) if where else (),
            )


# ---- loops -------------------------------------------------------------------------------------


class Turning:
    """Decides which containers names share in a loop. entry: what variables hold before it.

    bound: variables that it rebinds. outside: what else it can reach.
    """

    def __init__(
        self, context: Context, place: Place | None, entry: dict[str, Tree], bound: Sequence[str],
        outside: Outside,
    ) -> None:
        self.context, self.place, self.entry, self.outside = context, place, entry, outside
        self.known = (*entry, *bound)
        self.before = [p for name, tree in entry.items() for p in parts(tree, name)]
        self.began: list[list[Any]] = []

    def begin(self) -> None:
        self.began = [flatten(thing)[1] for _, thing in self.before]

    def end(self, after: dict[str, Tree]) -> bool:
        """Return whether what may be one at the end of a turn was known to; CarryError where what
        is one before the turn is two after it, or the other way round."""
        now = [thing for name in self.entry for _, thing in parts(after[name], name)]
        twins = {(id(a), id(b)) for a, b, *_ in self.context.twins}
        twins |= {(b, a) for a, b in twins}
        settled = True
        plain = not twins and _labels(x for _, x in self.before) == _labels(now)
        for j, (path, thing) in enumerate(self.before):
            self._refuse_kept(path, thing, now[j], self.began[j])
            if plain or _fixed(thing):
                continue
            for i, (other, first) in enumerate(self.before[:j]):
                if (first is thing) != (now[i] is now[j]):
                    self._refuse(other, path, thing, first is thing)
                if (id(now[i]), id(now[j])) in twins and (id(first), id(thing)) not in twins:
                    self.context.twins.append((thing, first, path, other, self.place))
                    settled = False
        return settled

    def _refuse(self, first: str, second: str, thing: Any, shared_before: bool) -> None:
        kind = type(thing).__name__
        words = (f"one {kind}", "two")
        raise CarryError(
            f"{first} and {second} are {words[not shared_before]} before a turn of the loop and "
            f"{words[shared_before]} after it", place=self.place,
            expected="names that share a list, dict or object in every turn, or in none",
            found=f"a turn that rebinds {first} or {second}",
            remedy=f"{_COPY.format(first)}, {'before' if shared_before else 'in'} the loop",
        )

    def _refuse_kept(self, path: str, thing: Any, now: Any, began: list[Any]) -> None:
        """Raise CarryError if a thing that the first turn has, and later turns no longer have, can
        still be reached by another name: one that the body reads, or one by which a store of that
        turn is seen later."""
        if now is thing or _fixed(thing):
            return
        other = self.outside.holder(thing, self.known)  # the body may read it by this name
        if not other and not all(map(same, began, flatten(thing)[1])):
            other = holder(thing, self.known)
        if other:
            raise CarryError(
                f"{path} and {other} are one {type(thing).__name__} before the loop and two after "
                "a turn of it", place=self.place,
                expected="what the loop changes to have one name, or to keep its names",
                found=f"a turn that changes what {other} holds, and rebinds {path}",
                remedy=f"{_COPY.format(other)}, before the loop",
            )

    def finish(self, after: dict[str, Tree], later: dict[str, Tree]) -> dict[str, list[Any]]:
        """Return what each variable is filled into after the loop: the old object where it stays,
        else a copy; names that share an object at the end of a turn share the copy."""
        replacements: dict[int, Any] = {}
        moved: list[tuple[str, Any, Any]] = []
        out: dict[str, list[Any]] = {}
        for name, tree in self.entry.items():
            for (path, old), (_, now) in zip(parts(tree, name), parts(after[name], name)):
                if id(now) not in replacements:
                    replacements[id(now)] = old if now is old else copy.copy(old)
                if now is not old:
                    moved.append((path, old, now))
                out.setdefault(name, []).append(replacements[id(now)])
        for name, tree in later.items():
            for path, now in parts(tree, name):
                if id(now) not in replacements:
                    replacements[id(now)] = copy.copy(now)
                    moved.append((path, now, now))
                out.setdefault(name, []).append(replacements[id(now)])
        self._remember(replacements, moved)
        return out

    def _remember(self, replacements: dict[int, Any], moved: list[tuple[str, Any, Any]]) -> None:
        """Notes which containers may be one after the loop: copies of each other, or of others."""
        twins = self.context.twins
        for a, b, *rest in list(twins):
            if id(a) in replacements and id(b) in replacements:
                twins.append((replacements[id(a)], replacements[id(b)], *rest))
        for _, old, _ in moved:
            other = holder(old, self.known)
            if other:
                twins += [(replacements[id(now)], old, path, other, self.place)
                          for path, _, now in moved]

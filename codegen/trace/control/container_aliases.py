"""Aliases of lists, dicts and objects, where a loop or a branch rebinds one of several names.

A capture gives every carried name values of its own, so two names may share a container only if
they do so in every iteration. Always holds: nothing is stored into containers that are one or two
depending on a branch of the run.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from codegen.errors import CarryError, Place, UnsupportedError
from codegen.places import is_user_file
from codegen.trace.context import Context
from codegen.trace.control.outer_state import OuterState
from codegen.trace.state import Tree, flatten, same

_COPY = "a copy of {0} for one of them: list, dict or copy.copy makes it"


def parts(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the containers of a tree, in the order in which `fill` comes to them, with their
    paths."""
    for key, child in zip(tree.keys, tree.children):
        yield from parts(child, path + (f".{key}" if tree.kind == "object" else f"[{key!r}]"))
    if tree.kind not in ("leaf", "tuple"):
        yield path, tree.value


def _is_immutable(thing: Any) -> bool:
    """Return whether an object is immutable: a frozen dataclass."""
    return bool(getattr(getattr(type(thing), "__dataclass_params__", None), "frozen", False))


def holder(thing: Any, but: Iterable[str] = ()) -> str:
    """Return a path by which the user's running functions reach an object, or "". but: variables of
    the innermost function that do not count."""
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
    """Return a number for each object; equal numbers mark the same object."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(x), len(numbers)) for x in things]


# ---- branches ----------------------------------------------------------------------------------


class BranchAliases:
    """Decides for each variable which container it holds after a branch: that of all arms if they
    have one in common, else a copy, which names that shared a container share."""

    def __init__(self, context: Context, place: Place | None, older: OuterState) -> None:
        self.context, self.place, self._older = context, place, older
        self._merged: dict[tuple[int, ...], tuple[Any, list[Any]]] = {}

    def things(self, name: str, trees: Sequence[Tree]) -> list[Any]:
        out = []
        for arms in zip(*(parts(t, name) for t in trees)):
            path, values = arms[0][0], [value for _, value in arms]
            out.append(self._merged_container(name, path, values))
        return out

    def _merged_container(self, name: str, path: str, values: list[Any]) -> Any:
        if all(v is values[0] for v in values):
            return values[0]
        key = tuple(map(id, values))
        if key in self._merged:
            return self._merged[key][0]
        merged = copy.copy(values[0])
        for other, theirs in self._merged.values():
            if any(a is b for a, b in zip(values, theirs)):
                self._note_alias(merged, other, path, "another name")
        self._merged[key] = merged, values
        for value in values:
            other_path = holder(value, (name,)) if value in self._older else ""
            if other_path:
                self._note_alias(merged, value, path, other_path)
        return merged

    def _note_alias(self, a: Any, b: Any, path: str, other: str) -> None:
        path = path.replace("__value__", "the value of the expression")
        if not _is_immutable(a):
            self.context.may_alias.append((a, b, path, other, self.place))


def refuse_aliased_store(context: Context, thing: Any, place: Place | None) -> None:
    """Raise UnsupportedError for a store into a container that another name may share."""
    for a, b, path, other, where in context.may_alias:
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


class LoopAliases:
    """Checks that names share containers in every iteration of a loop, or in none. entry: what
    variables hold before the loop. bound: variables that it rebinds. outside: what else it can
    reach.
    """

    def __init__(
        self, context: Context, place: Place | None, entry: dict[str, Tree], bound: Sequence[str],
        outside: OuterState,
    ) -> None:
        self.context, self.place, self.entry, self.outside = context, place, entry, outside
        self.known = (*entry, *bound)
        self.before = [p for name, tree in entry.items() for p in parts(tree, name)]
        self.began: list[list[Any]] = []

    def begin(self) -> None:
        self.began = [flatten(thing)[1] for _, thing in self.before]

    def end(self, after: dict[str, Tree]) -> bool:
        """Return whether all containers that may alias at the end of an iteration were known to.
        Raise CarryError where two names share a container before the iteration and not after it, or
        the other way round."""
        now = [thing for name in self.entry for _, thing in parts(after[name], name)]
        twins = {(id(a), id(b)) for a, b, *_ in self.context.may_alias}
        twins |= {(b, a) for a, b in twins}
        stable = True
        plain = not twins and _labels(x for _, x in self.before) == _labels(now)
        for j, (path, thing) in enumerate(self.before):
            self._refuse_stale_name(path, thing, now[j], self.began[j])
            if plain or _is_immutable(thing):
                continue
            for i, (other, first) in enumerate(self.before[:j]):
                if (first is thing) != (now[i] is now[j]):
                    self._refuse(other, path, thing, first is thing)
                if (id(now[i]), id(now[j])) in twins and (id(first), id(thing)) not in twins:
                    self.context.may_alias.append((thing, first, path, other, self.place))
                    stable = False
        return stable

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

    def _refuse_stale_name(self, path: str, thing: Any, now: Any, began: list[Any]) -> None:
        """Raise CarryError if the first iteration has an object that later ones do not have, and
        another name still reaches it: a name that the body reads, or one through which code after
        the loop would see a store of that iteration."""
        if now is thing or _is_immutable(thing):
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
        """Return, for each variable, the containers that hold its values after the loop: the old
        ones where the loop does not rebind them, else copies; names that share a container at the
        end of an iteration share the copy."""
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
        """Note which containers may alias after the loop: copies of each other, or of others."""
        twins = self.context.may_alias
        for a, b, *rest in list(twins):
            if id(a) in replacements and id(b) in replacements:
                twins.append((replacements[id(a)], replacements[id(b)], *rest))
        for _, old, _ in moved:
            other = holder(old, self.known)
            if other:
                twins += [(replacements[id(now)], old, path, other, self.place)
                          for path, _, now in moved]

"""Branches captured as ops: every arm runs in a region of its own, then they are merged.

A leaf that the arms leave different becomes a result of the op; under a condition on numbers,
integers stay numbers (a formula), so that they may stand in subscripts.
Always holds: both arms begin from the same variables and storages.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from codegen import ops
from codegen.errors import CarryError
from codegen.graph import layout_propagation
from codegen.ir.graph import Region, Value
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, is_traced
from codegen.trace.context import Block, Context
from codegen.trace.control.exits import RESULT
from codegen.trace.control.regions import (
    Capture,
    Gone,
    array_of,
    carry_error,
    condition,
    hint,
    laid_as,
    link,
    value_of,
)
from codegen.trace.control.sharing import Merging
from codegen.trace.number import choose, expr_of, number
from codegen.trace.state import (
    UNDEFINED,
    Code,
    Held,
    LeafType,
    Names,
    Variables,
    fill,
    hold,
    joined,
    leaf_type,
    same,
)
from codegen.trace.storage import Storage

_EXTRA = "__value__"  # what an arm gives as an expression


@dataclass
class _Arm:
    """An arm records what its code left behind. storages: older ones that it wrote, with their new
    values."""

    block: Block
    variables: Variables
    storages: dict[Storage, Any]


class Branch(Capture):
    """A branch being captured. on: the number of the arm that runs, an Expr or a 0-d value."""

    def __init__(self, context: Context, code: Code, on: Expr | Value) -> None:
        super().__init__(context, code, "branch")
        self.on = on
        self.arms: list[_Arm] = []
        self.sharing = Merging(context, self.place, self.outside)

    def start_arm(self) -> None:
        self.begin(Block())

    def end_arm(self, extra: Any = UNDEFINED) -> bool:
        """The arm's code has run; `extra` is its value where it is an expression. Return whether
        the arm is captured: else it has filled a cache, and its code has to run once more."""
        after = self.after()
        after[_EXTRA] = hold(extra)
        written = {s: s.value for s in self.written()}
        block = self.close()
        if not self.filled:
            self.arms.append(_Arm(block, after, written))
        self.put_back()
        return not self.filled

    def captured(self, arm: Callable[[], Iterator[int]]) -> Iterator[int]:
        """Yields what an arm yields, until it is captured."""
        done = False
        while not done:
            self.start_arm()
            yield from arm()
            done = self.end_arm()

    # ---- merging --------------------------------------------------------------------------------

    def finish(self) -> Any:
        """Emit the op; variables and storages show what the arm that runs leaves."""
        self.results: list[tuple[str, LeafType, list[Any]]] = []
        merged_variables: dict[str, _Merged] = {}
        for name in self.arms[0].variables | self.entry:
            merged = self._merge_variable(name)
            if merged is not None:
                merged_variables[name] = merged
        stored = list(dict.fromkeys(s for arm in self.arms for s in arm.storages))
        gone = {s: arm.storages[s] for arm in self.arms for s in arm.storages
                if isinstance(arm.storages[s], Gone)}
        stored = [s for s in stored if s not in gone]
        values = iter(self._emit(stored))
        self.mark.forget_later(self.context, "branch", self.place)
        arrays = [array_of(self.context, next(values), t) for _, t, _ in self.results]
        for storage in stored:
            storage.write(self.context, next(values))
        for storage, why in gone.items():
            storage.lose(self.context, why)
        self._link(arrays)
        return self._put(merged_variables, arrays)

    def _link(self, arrays: Sequence[Array]) -> None:
        """Notes which memory a result may be: that of an older array, or that of another result."""
        for k in range(len(self.arms)):
            owner: dict[Storage, Storage] = {}
            for array, (_, _, leaves) in zip(arrays, self.results):
                leaf = leaves[k]
                if not isinstance(leaf, Array) or leaf.scalar:
                    continue
                old = leaf.storage
                twin = old if old in self.serials else owner.setdefault(old, array.storage)
                link(array.storage, twin, "branch", self.place)

    def _put(self, merged_variables: dict[str, _Merged], arrays: list[Array]) -> Any:
        extra = None
        for name, merged in merged_variables.items():
            leaves = [arrays[x.position] if isinstance(x, _Result) else x for x in merged.leaves]
            value = fill(merged.held.tree, iter(leaves), things=iter(merged.things))
            if name == _EXTRA:
                extra = value
            else:
                self.names.put(name, value)
        return extra

    def _merge_variable(self, name: str) -> _Merged | None:
        """Merge what the arms left in a variable; return what it holds after the branch, or None if
        no arm changes it."""
        helds = [arm.variables.get(name) for arm in self.arms]
        defined = [h for h in helds if h is not None]
        if not defined:
            return None
        if len(defined) < len(helds):
            if name != RESULT:
                if self.entry.get(name) is not None or name in self.code.bound:
                    where = f"it is bound in one arm only of the branch at {self.place}"
                    self.names.put(name, UNDEFINED, where)
                return None
            helds = [h or _blank(defined[0]) for h in helds]
        first = defined[0]
        for h in defined[1:]:
            if not first.tree.like(h.tree):
                if self._selecting():
                    return self._chosen(first, h)
                if self._is_over(name):
                    return None
                if first.tree.kind == h.tree.kind in ("list", "dict"):
                    raise self._grown(name, first, h)
                a, b = (leaf_type(x.value) or x.value for x in (h, first))
                raise carry_error("branch", name, "", self.place, a, b)
        if self._unchanged(name, helds):
            return None
        paths = list(first.tree.paths())
        before = len(self.results)
        try:
            leaves = [
                self._merge_leaf(name, paths[j], [h.leaves[j] for h in helds if h is not None])
                for j in range(len(first.leaves))
            ]
        except CarryError:
            del self.results[before:]
            if self._is_over(name):
                return None
            raise
        things = self.sharing.things(name, [h.tree for h in helds if h is not None])
        return _Merged(first, leaves, things)

    def _grown(self, name: str, first: Held, other: Held) -> CarryError:
        kind, sizes = first.tree.kind, sorted({len(h.tree.keys) for h in (first, other)})
        difference = f"{sizes[0]} items in one arm, {sizes[-1]} in another" if len(sizes) > 1 else (
            "other keys in each arm, or items of other types")
        remedy = ("an array with a row for each item, and a count of those that are there; "
                  "np.where(test, x, 0) where nothing is to be added")
        if kind == "dict" and len(sizes) > 1:
            remedy = f"all keys of {name} before the branch; or " + remedy
        return CarryError(
            f'"{name}" grows, shrinks or changes its keys in a branch', place=self.place,
            expected=f"a {kind} of the same items in every arm: only the run knows which one runs",
            found=difference, remedy=remedy,
        )

    def _is_over(self, name: str) -> bool:
        """Return whether nobody reads a variable after the branch: then it has no value any
        more."""
        if self.code.reads_later(name) or name.startswith("__") or name not in self.code.bound:
            return False
        where = f"it is of another type in each arm of the branch at {self.place}"
        self.names.put(name, UNDEFINED, where)
        return True

    def _selecting(self) -> bool:
        return bool(self.context.selecting) and isinstance(self.on, Expr) and len(self.arms) == 2

    def _chosen(self, other: Held, then: Held) -> _Merged:
        """Return the choice of a number or None in a `to` function, as a formula."""
        value = choose(number(self.on, True), then.value, other.value)  # type: ignore[arg-type]
        held = hold(value)
        assert held is not None
        return _Merged(held, held.leaves, [])

    def _unchanged(self, name: str, helds: Sequence[Held | None]) -> bool:
        before = self.entry.get(name)
        return before is not None and all(
            h is not None and h.value is before.value and len(h.leaves) == len(before.leaves)
            and all(map(operator.is_, h.tree.containers(), before.tree.containers()))
            and all(same(a, b) for a, b in zip(h.leaves, before.leaves))
            for h in helds
        )

    def _merge_leaf(self, name: str, path: str, leaves: list[Any]) -> Any:
        known = [x for x in leaves if not isinstance(x, _Blank)]
        if len(known) < len(leaves) and not isinstance(known[0], Array):
            return known[0]
        if len(known) == len(leaves) and all(same(known[0], x) for x in known):
            return known[0]
        if self._selecting():
            return choose(number(self.on, True), leaves[1], leaves[0])  # type: ignore[arg-type]
        exprs = [expr_of(x) if not isinstance(x, np.generic) else None for x in leaves]
        if isinstance(self.on, Expr) and all(e is not None for e in exprs):
            truth = all(isinstance(x, bool) or getattr(x, "truth", False) for x in leaves)
            if truth or not any(isinstance(x, bool) for x in leaves):
                return number(self._select(exprs), truth)  # type: ignore[arg-type]
        return self._result(name, path, leaves)

    def _select(self, exprs: Sequence[Expr]) -> Expr:
        """Return the formula of the arm whose number `on` is; numbers beyond the ends are
        clamped."""
        assert isinstance(self.on, Expr)
        if len(exprs) == 2:
            return expr.select(self.on, exprs[1], exprs[0])
        out = exprs[0]
        for k in range(1, len(exprs)):
            out = expr.select(expr.ge(self.on, k), exprs[k], out)
        return out

    def _result(self, name: str, path: str, leaves: list[Any]) -> Any:
        types = [leaf_type(x) for x in leaves if not isinstance(x, _Blank)]
        known = [x for x in leaves if not isinstance(x, _Blank)]
        for x, t in zip(known, types):
            if t is None:
                other = next((y for y in known if not same(x, y)), x)
                raise carry_error("branch", name, path, self.place, other, x)
        leaf_types = [t for t in types if t is not None]
        t = leaf_types[0]
        for u in leaf_types[1:]:
            agreed = joined(t, u)
            if agreed is None:
                raise carry_error("branch", name, path, self.place, u, t)
            t = agreed
        self.results.append((hint(name, path), t, leaves))
        return _Result(len(self.results) - 1)

    # ---- the op ---------------------------------------------------------------------------------

    def _emit(self, stored: Sequence[Storage]) -> tuple[Value, ...]:
        """Return the op with one region per arm, which gives results, then storages."""
        context = self.context
        regions: list[Region] = []
        left = []  # by each arm; only there does a view show how it is laid
        for k, arm in enumerate(self.arms):
            for s, value in arm.storages.items():
                s.value = value
            try:
                with self._inside(arm):
                    values = [self._value(leaves[k], t) for _, t, leaves in self.results]
                    values += [arm.storages[s] if s in arm.storages else s.value for s in stored]
                left.append(values)
            finally:
                self.mark.restore_storages()
        types = [reduce(layout_propagation.met, [v.type for v in values]) for values in zip(*left)]
        for arm, values in zip(self.arms, left):
            with self._inside(arm):
                laid = [laid_as(context, v, t.layout) for v, t in zip(values, types)]
            regions.append(arm.block.close(laid))
        if not regions[0].results and not any(r.ops for r in regions):
            return ()
        results = tuple(v.type for v in regions[0].results)
        operands, on = ((self.on,), None) if isinstance(self.on, Value) else ((), self.on)
        names = [name for name, _, _ in self.results] + ["memory"] * len(stored)
        return context.emit(ops.Branch(on, results), operands, regions, names, self.place)

    @contextmanager
    def _inside(self, arm: _Arm) -> Iterator[None]:
        """Append ops to this arm while it is open."""
        self.context.blocks.append(arm.block)
        try:
            yield
        finally:
            self.context.blocks.pop()

    def _value(self, leaf: Any, t: LeafType) -> Value:
        if isinstance(leaf, _Blank):
            return self.context.emit_one(ops.Full(value=0, dtype=t.dtype, shape=t.shape))
        return value_of(self.context, leaf, t)


@dataclass(frozen=True)
class _Merged:
    """A merged variable holds this after the branch. things: its containers, as `fill` takes
    them."""

    held: Held
    leaves: list[Any]
    things: list[Any]


@dataclass(frozen=True)
class _Result:
    """A leaf that is a result of the op, by number."""

    position: int


@dataclass(frozen=True)
class _Blank:
    """A leaf of what an arm does not return: never read, so any value will do."""


def _blank(like: Held) -> Held:
    return Held(like.tree, [_Blank()] * len(like.leaves))


# ---- forms -------------------------------------------------------------------------------------


def captured_if(
    test: Any, later: Sequence[Callable[[], Any]], code: Code, k: int = 0
) -> Iterator[int]:
    """Yields the number of each arm to run."""
    context = Context.current()
    assert context is not None
    on = condition(test, "if")
    if (path := context.following) is not None:
        yield from _followed(path, later, code, k)
        return
    branch = Branch(context, code, on)
    code.names.arms += 1
    try:
        yield from branch.captured(lambda: iter((k,)))
        yield from branch.captured(lambda: _chosen_arms(later, code, k + 1))
        branch.arms.reverse()  # region 0 is what runs where the test fails
    finally:
        code.names.arms -= 1
        branch.abort()
    branch.finish()


def _followed(path: Any, later: Sequence[Callable[[], Any]], code: Code, k: int) -> Iterator[int]:
    """Yield the arm that a way through the function takes, without a capture."""
    code.names.arms += 1
    try:
        yield from iter((k,)) if path.choose(2) else _chosen_arms(later, code, k + 1)
    finally:
        code.names.arms -= 1


def _chosen_arms(later: Sequence[Callable[[], Any]], code: Code, k: int) -> Iterator[int]:
    """Yield the arms of the tests that are left, the first of them number k."""
    for j, evaluate in enumerate(later):
        test = evaluate()
        if is_traced(test):
            yield from captured_if(test, later[j + 1 :], code, k + j)
            return
        if test:
            yield k + j
            return
    yield k + len(later)


def captured_switch(on: Expr | Value, arms: Sequence[Callable[[], Any]]) -> Any:
    """Return the value of the arm whose number `on` is; arms are functions of nothing."""
    context = Context.current()
    assert context is not None
    if (path := context.following) is not None:
        return arms[path.choose(len(arms))]()
    names = Names(lambda: ())
    names.roots += [("an arm", arm) for arm in arms]
    branch = Branch(context, Code(names), on)
    names.arms += 1
    try:
        for arm in arms:
            done = False
            while not done:
                branch.start_arm()
                done = branch.end_arm(arm())
    finally:
        names.arms -= 1
        branch.abort()
    return branch.finish()

"""What an eager run has not: an optional input that is not given, and what follows from it.

Such an array has a shape and a dtype, and no elements. NumPy's functions and operators give another
one of the right shape and dtype: they compute with a stand-in, whose elements mean nothing.
Always holds: nothing that is computed from a stand-in comes out as an array that is there.
"""

from __future__ import annotations

import ast
import dis
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import index
from types import FrameType
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from codegen.errors import InputError
from codegen.places import user_place
from codegen.user.pytree import leaves, map_tree

Needs = tuple[str, ...]  # names of inputs that are not given

# What depends on the shape and the dtype of its first argument only.
_OF_SHAPES = frozenset((
    np.shape, np.ndim, np.size, np.zeros_like, np.ones_like, np.empty_like, np.result_type,
    np.can_cast, np.iscomplexobj, np.isrealobj,
))
_WRITING = frozenset((np.copyto, np.put, np.place, np.putmask, np.put_along_axis,
                      np.fill_diagonal))  # functions that write into their first argument
_PYTHON = frozenset(("item", "tolist", "tobytes", "tofile", "dump", "dumps"))


class Absent(NDArrayOperatorsMixin):
    """An array that is not there, since `needs` are not given. stand_in: one of its shape and dtype
    that NumPy computes with. Once all of it is written, needs is empty, and stand_in is the array.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, stand_in: Any, needs: Needs) -> None:
        self.stand_in, self.needs = stand_in, needs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("stand_in", "needs"):
            raise AttributeError(name)
        if name in _PYTHON and self.needs:
            raise self.refused(f"{name}() gives Python numbers of what follows from it")
        value = getattr(self.stand_in, name)
        if isinstance(value, (np.ndarray, np.generic)):
            return absent(value, self.needs)
        if not callable(value) or isinstance(value, type):
            return value
        return lambda *args, **kwargs: computed(value, args, kwargs, self.needs)

    # ---- NumPy's dispatch ------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outs = kwargs.pop("out", ())
        needs = needs_of((inputs, kwargs))
        if method == "at":
            withheld(inputs[0], needs)
            return None
        if outs:
            kwargs["out"] = tuple(None if o is None else np.array(stand_in_of(o)) for o in outs)
        result = computed(getattr(ufunc, method), inputs, kwargs, needs)
        if not outs:
            return result
        results = result if isinstance(result, tuple) else (result,)
        outputs = tuple(m if o is None else withheld(o, needs, m)
                        for o, m in zip(outs, results, strict=True))
        return outputs if len(outputs) > 1 else outputs[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        needs = needs_of((args, kwargs))
        if function in _OF_SHAPES:
            return function(*stand_ins(args), **stand_ins(kwargs))
        if function is np.full_like and not needs_of((args[1:], kwargs)):
            return function(*stand_ins(args), **kwargs)
        if function in _WRITING:
            withheld(args[0], needs)
            return None
        out = kwargs.pop("out", None)
        result = computed(function, args, kwargs, needs)
        return result if out is None else withheld(out, needs, result)

    def __array_namespace__(self, **kwargs: Any) -> Any:
        return np.empty(0).__array_namespace__(**kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.needs:
            return self.stand_in.__array__(*args, **kwargs)
        raise self.refused("its elements are asked for, where only NumPy's own arrays may stand")

    # ---- indices ---------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        return absent(self.stand_in[stand_ins(key)], _each((*self.needs, *needs_of(key))))

    def __setitem__(self, key: Any, value: Any) -> None:
        needs = needs_of((key, value))
        self.stand_in[stand_ins(key)] = stand_in_of(value)
        self.needs = needs if is_all(key) else _each((*self.needs, *needs))

    def __len__(self) -> int:
        return len(self.stand_in)

    def __iter__(self) -> Iterator[Any]:
        return (absent(row, self.needs) for row in self.stand_in)

    @property
    def at(self) -> _At:
        return _At(self)

    # ---- what has no answer ----------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Return whatever lets an assert go on, as an image leaves it out; refuse everything
        else."""
        if not self.needs:
            return bool(self.stand_in)
        truth = _asserted(sys._getframe(1))
        if truth is None:
            raise self.refused("what follows from it decides which line runs next")
        return truth

    def _python(self, kind: Callable[[Any], Any]) -> Any:
        if not self.needs:
            return kind(self.stand_in)
        raise self.refused("a Python number is made of what follows from it")

    def __int__(self) -> int:
        return int(self._python(int))

    def __float__(self) -> float:
        return float(self._python(float))

    def __complex__(self) -> complex:
        return complex(self._python(complex))

    def __index__(self) -> int:
        return int(self._python(index))

    def __contains__(self, value: Any) -> bool:
        return bool(self._python(lambda x: value in x))

    def refused(self, why: str) -> InputError:
        """Return an error for what is done with Python values."""
        names = " and ".join(self.needs)
        are = f"input {names} is" if len(self.needs) == 1 else f"inputs {names} are"
        return InputError(
            f"{are} not given, and {why}", place=user_place(),
            expected="what NumPy's functions and operators do with arrays",
            found="a Python value that depends on it",
            remedy=f"np.where(condition, a, b) in place of an if; or give {names}",
        )

    def __repr__(self) -> str:
        return f"<not there: {', '.join(self.needs)} is not given>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def with_copies(self, of: Callable[[Any], Any]) -> Any:
        """Return the stand-in that a derivative computes with, and note what it needs; see
        `meeting`."""
        if _met:
            _met[-1].update(self.needs)
        return of(self.stand_in)


class _At:
    """The attribute x.at, as in x.at[k].add(v), of an array that is not there."""

    def __init__(self, x: Absent, key: Any = None) -> None:
        self.x, self.key = x, key

    def __getitem__(self, key: Any) -> _At:
        return _At(self.x, key)

    def get(self) -> Any:
        return self.x[self.key]

    def set(self, value: Any) -> Any:
        needs = _each((*self.x.needs, *needs_of((self.key, value))))
        return Absent(self.x.stand_in.copy(), needs)

    add = min = max = mul = multiply = set


_met: list[set[str]] = []  # for each derivative that is being captured: what it meets


class meeting:
    """A context whose value becomes the inputs that a derivative needs, and are not given."""

    def __enter__(self) -> set[str]:
        _met.append(set())
        return _met[-1]

    def __exit__(self, *_: object) -> None:
        _met.pop()


# ---- what is computed of stand-ins ---------------------------------------------------------------


def stand_in_for(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return elements of which most functions have a value: zeros, as positions; else ones."""
    return np.full(shape, 0 if dtype.kind in "biu" else 1, dtype)


def needs_of(tree: Any) -> Needs:
    """Return the inputs without which something in a tree is not there."""
    needed = (getattr(x, "needs", ()) for x in leaves(tree) if isinstance(x, (Absent, np.ndarray)))
    return _each(name for needs in needed for name in needs)


def _each(names: Iterable[str]) -> Needs:
    return tuple(dict.fromkeys(names))


def computed(
    function: Callable[..., Any], args: Any, kwargs: Any, needs: Needs
) -> Any:
    """Call a function on stand-ins; return its results as arrays that are not there."""
    needs = _each((*needs, *needs_of((args, kwargs))))
    with np.errstate(all="ignore"):
        try:
            result = function(*stand_ins(args), **stand_ins(kwargs))
        except np.linalg.LinAlgError:  # of a matrix of ones; every matrix routine takes eye
            result = function(*map_tree(_eye, stand_ins(args)), **stand_ins(kwargs))
    return map_tree(lambda x: absent(x, needs), result)


def absent(x: Any, needs: Needs) -> Any:
    """Return numbers and arrays as what is not there; else x. needs: none, where they are there."""
    is_value = needs and isinstance(x, (np.ndarray, np.generic, bool, int, float, complex))
    return Absent(x if isinstance(x, np.ndarray) else np.asarray(x), needs) if is_value else x


def withheld(x: Any, needs: Needs, result: Any = None) -> Any:
    """Return an array into which an absent value was written: it is absent from now on. result: the
    array to return where NumPy's own array cannot be marked so; InputError without it."""
    if isinstance(x, Absent):
        x.needs = _each((*x.needs, *needs))
        return x
    if hasattr(x, "withhold"):
        x.withhold(needs)
        return x
    if result is None:
        raise Absent(x, needs).refused("what follows from it is written into an array of NumPy's: "
                                       "spmd.zeros makes one that can take it")
    return result


def is_all(key: Any) -> bool:
    """Return whether an index is of all elements."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(k is ... or (isinstance(k, slice) and k == slice(None)) for k in parts)


def stand_in_of(x: Any) -> Any:
    """Return an array to compute with in the place of one that is not there; else x."""
    hidden = getattr(x, "hidden", None)
    x = x if hidden is None else hidden()
    return x.stand_in if isinstance(x, Absent) else x


def stand_ins(tree: Any) -> Any:
    return map_tree(stand_in_of, tree)


def _eye(x: Any) -> Any:
    if not isinstance(x, np.ndarray) or x.ndim < 2:
        return x
    return np.broadcast_to(np.eye(x.shape[-2], x.shape[-1], dtype=x.dtype), x.shape)


_EFFECTS = frozenset("print progress save".split())
_LIKE = frozenset("zeros_like ones_like empty_like like".split())
_CALLING = frozenset("fori_loop while_loop cond switch scan blocks range".split())  # with arrays


def without(
    name: str, function: Callable[..., Any], args: Any, kwargs: Any, needs: Needs
) -> Any:
    """Return the result of spmd's function of a name for arguments some of which are not there.
    What a user would see of them is left out."""
    if name in _EFFECTS:
        return None
    if name in ("cond", "switch") and needs_of(args[:1]):
        result = function(np.True_ if name == "cond" else 0, *args[1:], **kwargs)
        return map_tree(lambda x: absent(x, needs), result)
    if name in _CALLING:
        return function(*args, **kwargs)
    if name in _LIKE or (name == "full_like" and not needs_of((args[1:], kwargs))):
        return function(*stand_ins(args), **stand_ins(kwargs))
    return computed(function, args, kwargs, needs)


# ---- asserts -------------------------------------------------------------------------------------


def _asserted(frame: FrameType | None) -> bool | None:
    """Return the truth value with which the assert goes on whose test is being computed in a frame;
    None: it is no assert."""
    if frame is None:
        return None
    line, _, column, _ = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    spans = _tests(frame.f_code.co_filename)
    if line is None or column is None or not any(a <= (line, column) < b for a, b in spans):
        return None
    code = list(dis.get_instructions(frame.f_code))
    places = {step.offset: k for k, step in enumerate(code)}
    position = places[frame.f_lasti]
    position += code[position].opname == "TO_BOOL"
    if "POP_JUMP" not in code[position].opname:
        return True
    jumps = "TRUE" in code[position].opname
    if _fails(code[position + 1]):
        return jumps
    return not jumps if _fails(code[places[code[position].argval]]) else True


def _fails(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_ASSERTION_ERROR" or step.argval is AssertionError


@cache
def _tests(file: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return from where to where asserts go in a file, without their messages: lines and
    columns."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    return [((node.lineno, node.col_offset),
             (node.test.end_lineno or 0, node.test.end_col_offset or 0))
            for node in ast.walk(tree) if isinstance(node, ast.Assert)]

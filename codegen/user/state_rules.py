"""Rules of state that entries of a class keep, and what is said where one does not.

Read by the tracer when a class is built, and by eager runs after each call: both say the same.
Always holds: an error names the path of the state, and the line that binds it where that is known.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from codegen.errors import CarryError, Place, ProgramError
from codegen.suggest import meant


def not_state(path: str, before: Collection[str]) -> ProgramError:
    """Return the error for an entry that binds what `__init__` did not. before: the paths that
    there were."""
    top = attribute_of(path)
    known = {attribute_of(p) for p in before}
    if top in known:
        return CarryError(f"{path} is new: __init__ does not put it there",
                          expected="the same keys and as many items as after __init__",
                          found=path, remedy=f"put it into self.{top} in __init__")
    return ProgramError(f"self.{top} is not state: __init__ does not bind it",
                        expected="attributes that __init__ binds",
                        found=", ".join(f"self.{name}" for name in sorted(known)) or "none",
                        remedy=meant(top, sorted(known), "self.{}")
                        or f"self.{top} = np.zeros(…) in __init__, or a local variable")


def lost(path: str, entry: str) -> CarryError:
    """Return the error for an entry that leaves a container without one of its arrays."""
    return CarryError(f"{path} is no longer there after {entry}",
                      expected="state of the same containers after every call", found="nothing",
                      remedy="an array that is kept, and a flag that says if it counts")


def not_an_array(path: str, entry: str, was: str, now: str) -> CarryError:
    """Return the error for an entry that puts something else where an array was."""
    return CarryError(f"{path} was {was}, {entry} makes it {now}",
                      expected="an array of the same shape and dtype", found=now,
                      remedy=f"{path} is bound to arrays only")


def fixed(path: str, entry: str, was: str, now: str) -> ProgramError:
    """Return the error for an entry that binds anew what is neither array nor number."""
    return ProgramError(f"{entry} binds {path}, which is not state",
                        expected="an array or a number", found=f"{was} before, {now} after",
                        remedy="what is no array is fixed when __init__ has run")


def changed(
    path: str, entry: str, was: tuple[str, Sequence[Any]], now: tuple[str, Sequence[Any]]
) -> CarryError:
    """Return the error for an entry that gives state another dtype or shape: a name and extents
    each."""
    other = shape_text(now[1]) if was[0] == now[0] else type_text(*now)
    remedy = f"{path} = ….astype(np.{was[0]})"
    if shape_text(was[1]) != shape_text(now[1]):
        remedy = f"another attribute for what is {shape_text(now[1])}, bound in __init__"
    return CarryError(f"{path} was {type_text(*was)}, {entry} makes it {other}",
                      expected="state keeps its shape and dtype", found=type_text(*now),
                      remedy=remedy)


def shared(path: str, other: str, place: Place | None) -> ProgramError:
    """Return the error for an array that is written in place and that another state may show
    too."""
    return ProgramError(f"{path} is written in place, and {other} may be the same array",
                        place=place, expected="an array of its own",
                        found="one array that is bound to both, or a view: each state has memory "
                        "of its own between calls",
                        remedy=f"{other} = {path}.copy() where both are bound")


def two_of_one_name(first: str, path: str, name: str, place: Place | None) -> ProgramError:
    """Return the error for two paths that files of saved state could not tell from each other."""
    return ProgramError(f"{first} and {path} have one name, {name}", place=place,
                        expected="a name for each array", found="two keys with the same text",
                        remedy="other keys")


def type_text(dtype: str, shape: Sequence[Any]) -> str:
    return f"{dtype} {shape_text(shape)}"


def shape_text(shape: Sequence[Any]) -> str:
    inner = ", ".join(map(str, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def attribute_of(path: str) -> str:
    """Return the attribute of self that a path goes through first."""
    return path.removeprefix("self.").split(".")[0].split("[")[0]


def place_of_binding(method: Callable[..., Any], path: str, otherwise: Place) -> Place:
    """Return the last line of a method that binds the attribute, or writes into it."""
    code = inspect.unwrap(method).__code__
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, ValueError):
        return otherwise
    instance = code.co_varnames[0] if code.co_argcount else "self"
    targets = [target for node in ast.walk(tree) for target in _targets(node)
               if _attribute(target, instance) == attribute_of(path)]
    if not targets:
        return otherwise
    last = max(targets, key=lambda node: node.lineno)
    indent = len(lines[0]) - len(lines[0].lstrip())
    return Place(otherwise.file, first + last.lineno - 1, last.col_offset + indent, -1,
                 otherwise.function)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [inner for target in node.targets for inner in ast.walk(target)
                if isinstance(inner, (ast.Attribute, ast.Subscript))]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return [node.target]
    return []


def _attribute(target: ast.expr, instance: str) -> str:
    """Return the attribute that an assignment's target is, or is a part of; "" for none."""
    name = ""
    node: ast.expr = target
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        name = node.attr if isinstance(node, ast.Attribute) else name
        node = node.value
    return name if isinstance(node, ast.Name) and node.id == instance else ""


def by_name(leaves: Mapping[str, tuple[str, Any]], names: Collection[str]) -> dict[str, str]:
    """Return the paths of the leaves that have these names."""
    return {name: path for path, (name, _) in leaves.items() if name in names}

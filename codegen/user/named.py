"""Trees of arrays by name: what dicts, lists, tuples and dataclasses hold, as w.blocks.0.query.

Always holds: names of leaves have the keys on the way to them, with dots between; the order of the
leaves is that of the tree.
"""

from __future__ import annotations

from codegen.errors import InputError, UsageError
from codegen.suggest import meant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

MANY = 8  # arrays of one tree, beyond which tables have a line for all of them


def held(tree: Any) -> list[tuple[Any, Any]] | None:
    """Return what a dict, list, tuple, named tuple or dataclass holds, by key; None for anything
    else."""
    if isinstance(tree, dict):
        return list(tree.items())
    if isinstance(tree, (tuple, list)):
        fields = getattr(tree, "_fields", None) if isinstance(tree, tuple) else None
        return list(zip(fields or map(str, range(len(tree))), tree, strict=True))
    fields = getattr(tree, "__dataclass_fields__", None)
    if fields is not None and not isinstance(tree, type):
        return [(name, getattr(tree, name)) for name in fields if hasattr(tree, name)]
    return None


def rebuilt(tree: Any, items: Iterable[Any]) -> Any:
    """Return a container like `tree`, a dict, list, tuple or dataclass, that holds other items."""
    if isinstance(tree, dict):
        return dict(zip(tree, items, strict=True))
    if isinstance(tree, (tuple, list)):
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    copy = object.__new__(type(tree))
    for name, item in getattr(tree, "__dict__", {}).items():
        object.__setattr__(copy, name, item)
    for (name, _), item in zip(held(tree) or (), items, strict=True):
        object.__setattr__(copy, name, item)  # frozen ones too
    return copy


def named(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves, each with its name."""
    inside = held(tree)
    if inside is None:
        yield name, tree
    for key, item in inside or ():
        yield from named(item, below(name, key))


def renamed(function: Callable[[str, Any], Any], tree: Any, name: str = "") -> Any:
    """Return the same tree with function(name, leaf) in the place of every leaf."""
    inside = held(tree)
    if inside is None:
        return function(name, tree)
    return rebuilt(tree, [renamed(function, x, below(name, key)) for key, x in inside])


def below(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def is_in(name: str, tree: str) -> bool:
    """Return whether a leaf is one of this tree."""
    return name.startswith(f"{tree}.")


def of_tree(tree: str, known: Iterable[str]) -> list[str]:
    """Return the leaves of a tree, by name."""
    return [name for name in known if is_in(name, tree)]


def asked(only: Any, known: Sequence[str], option: str = "only") -> list[str]:
    """Return the names of those outputs that an option asks for: a name or several, of outputs or
    of trees of them; None: all. Raises UsageError."""
    if only is None:
        return list(known)
    chosen: set[str] = set()
    for name in (only,) if isinstance(only, str) else tuple(only):
        leaves = [name] if name in known else of_tree(name, known)
        if not leaves:
            raise UsageError(f"{option}={name!r}: the program has no output {name!r}",
                             expected=listed(known) or "no outputs",
                             remedy=meant(name, known))
        chosen.update(leaves)
    return [name for name in known if name in chosen]


def roots(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the leaves of each tree, by what stands before their first dot; others by their own
    name."""
    leaves: dict[str, list[str]] = {}
    for name in names:
        leaves.setdefault(name.partition(".")[0], []).append(name)
    return leaves


def listed(names: Iterable[str]) -> str:
    """Return the known names for a message: a tree of many leaves is one of them."""
    return ", ".join(
        f"{root} (a tree of {len(leaves)} arrays)" if len(leaves) > MANY else ", ".join(leaves)
        for root, leaves in roots(names).items()
    )


def together(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return rows of a table of arrays, name first: one for those that differ in numbers of their
    names only, as w.blocks.*.query (4)."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        steps = ("*" if step.isdigit() else step for step in name.split("."))
        groups.setdefault((".".join(steps) if "." in name else name, *cells), []).append(name)
    return [(names[0] if len(names) == 1 else f"{pattern} ({len(names)})", *cells)
            for (pattern, *cells), names in groups.items()]


# ---- trees that are given for trees that are known


def spread(
    values: Mapping[str, Any], known: Collection[str], role: str = "input"
) -> dict[str, Any]:
    """Return `values` with one entry for each leaf: trees are flattened, arrays stay. role: what
    messages call an entry.

    Raises InputError where a tree lacks leaves or has others, UsageError for one that comes twice.
    """
    arrays: dict[str, Any] = {}
    for name, value in values.items():
        tree = name not in known and of_tree(name, known)
        leaves = _leaves(name, value, tree, role) if tree else [(name, value)]
        for leaf, array in leaves:
            if leaf in arrays:
                raise UsageError(f"{role} {leaf} is given twice", found="in a tree, and by name",
                                 expected="one of them")
            arrays[leaf] = array
    return arrays


def _leaves(
    name: str, value: Any, known: Collection[str], role: str
) -> Iterator[tuple[str, Any]]:
    if name in known:
        yield name, value
        return
    inside = held(value)
    steps = list(dict.fromkeys(leaf[len(name) + 1 :].partition(".")[0] for leaf in known))
    if inside is None:
        raise InputError(f"{role} {name} is a tree of arrays", expected=f"one with {some(steps)}",
                         found=type(value).__name__)
    left = list(known)
    paths = [below(name, key) for key, _ in inside]
    holder = {leaf: path for path in sorted(paths, key=len) for leaf in known
              if leaf == path or is_in(leaf, path)}  # one may begin as another: "a" beside "a.b"
    holder |= {leaf: path for path, (_, item) in zip(paths, inside, strict=True)
               for leaf, _ in named(item, path)}
    for path, (key, item) in zip(paths, inside, strict=True):
        mine = [leaf for leaf in known if holder.get(leaf) == path]
        if not mine and any(True for _ in named(item)):
            raise InputError(f"{role} {name} has something of which the program knows nothing",
                             expected=some(steps), found=repr(key))
        if mine:
            yield from _leaves(path, item, mine, role)
            left = [leaf for leaf in left if leaf not in mine]
    if left:
        raise InputError(f"{role} {left[0]} is not given", expected=some(steps),
                         found=some(str(key) for key, _ in inside))


def by_path(values: Any, known: Collection[str], role: str) -> Any:
    """Return a dict with trees in it as a flat one, where some known names are paths; else as it
    is. Raises InputError, with the path."""
    if not isinstance(values, dict) or not any("." in name for name in known):
        return values
    return spread(values, known, role)


def some(names: Iterable[str], most: int = 20) -> str:
    """Names as messages list them; those that others wrote may hold anything."""
    names = list(names)
    shown = [name if name.isprintable() else ascii(name) for name in names[:most]]
    return ", ".join(shown) + (", …" if len(names) > most else "") or "nothing"

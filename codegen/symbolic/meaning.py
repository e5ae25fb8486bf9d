"""The meaning of formulas: operations, formulas as rows, and their values in any domain.

A row is a number, a symbol, or an op and numbers of rows before it; equal rows are one. A domain
is a function of an op and its arguments' values: integers here; vectors, ranges, texts elsewhere.
Always holds: every operation is total, and nothing is imported: ranks read manifests with this.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeAlias

    Row: TypeAlias = tuple[str, tuple[Any, ...]]
    Domain: TypeAlias = Callable[[str, Sequence[Any]], Any]


def floordiv(a: int, b: int) -> int:
    """Divide and round down; a division by zero gives 0, as NumPy's integers do."""
    return a // b if b else 0


def mod(a: int, b: int) -> int:
    return a % b if b else 0


def begin(k: int, extent: int, blocks: int) -> int:
    """Return the first element of balanced block k of so many, as numpy.array_split cuts."""
    return k * floordiv(extent, blocks) + min(k, mod(extent, blocks))


def block(k: int, extent: int, blocks: int) -> tuple[int, int]:
    """Return the first element of balanced block k of so many, and its length."""
    first = begin(k, extent, blocks)
    return first, begin(k + 1, extent, blocks) - first


def table(k: int, *values: int) -> int:
    """Return the constant at position k of `values`; 0 beyond their ends."""
    return values[k] if 0 <= k < len(values) else 0


def product(factors: Iterable[int]) -> int:
    total = 1
    for factor in factors:
        total *= factor
    return total


MANY: dict[str, Callable[[Iterable[int]], int]] = {"+": sum, "*": product}
# Beside these.
OPERATIONS: dict[str, Callable[..., int]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": min,
    "max": max,
    "ge0": lambda a: int(a >= 0),
    "eq0": lambda a: int(a == 0),
    "begin": begin,
    "table": table,
}
# How many arguments each has; a table has as many as it likes.
ARGUMENTS = {op: {"ge0": 1, "eq0": 1, "begin": 3}.get(op, 2) for op in OPERATIONS if op != "table"}


def integers(op: str, args: Sequence[int]) -> int:
    """Compute an operation in the domain of Python's integers, of any size."""
    if op in MANY:
        return MANY[op](args)
    return args[0] if op == "number" else OPERATIONS[op](*args)


# ---- rows ----------------------------------------------------------------------------------------


def rows_of(e: Any) -> list[Row]:
    """Return the rows of a formula in prefix form (an integer, a name, or [op, formula …]); the
    formula is the last one."""
    rows: dict[Row, int] = {}
    known: dict[int, int] = {}  # of lists, which may be shared

    def read(e: Any) -> int:
        if not isinstance(e, list):
            row: Row = "symbol" if isinstance(e, str) else "number", (e,)
            return rows.setdefault(row, len(rows))
        number = known.get(id(e))
        if number is None:
            row = e[0], tuple([read(a) for a in e[1:]])
            number = known[id(e)] = rows.setdefault(row, len(rows))
        return number

    read(e)
    return list(rows)


def evaluate(
    rows: Sequence[Row], symbols: Mapping[str, Any], domain: Domain = integers,
    order: Iterable[int] | None = None, gone: Mapping[int, Sequence[int]] | None = None,
) -> dict[int, Any]:
    """Return the values of rows, by number. symbols: values by name; raise KeyError for any other
    name. order: the rows that are computed, None for all; gone: by row, the rows whose values are
    dropped after it."""
    values: dict[int, Any] = {}
    for k in range(len(rows)) if order is None else order:
        op, args = rows[k]
        if op == "symbol":
            values[k] = symbols[args[0]]
        else:
            values[k] = domain(op, args if op == "number" else [values[a] for a in args])
        if gone:
            for done in gone[k]:
                del values[done]
    return values


def value(rows: Sequence[Row], symbols: Mapping[str, Any], domain: Domain = integers) -> Any:
    """Return the value of the last row."""
    return evaluate(rows, symbols, domain)[len(rows) - 1]


def names_in(*formulas: Any) -> set[str]:
    """Return the symbols in formulas of prefix form; a formula of None has none."""
    names, left, seen = set[str](), list(formulas), set[int]()
    while left:
        e = left.pop()
        if isinstance(e, list):
            left += e[1:] if id(e) not in seen else ()
            seen.add(id(e))  # lists may be shared
        elif isinstance(e, str):
            names.add(e)
    return names

"""Tables that image.profile, .layouts and .verify give, and HTML for notebooks.

In: rows of numbers and words, and their text. Out: the same as text, as HTML, as a plot.
Always holds: whatever goes into HTML is escaped; matplotlib is imported when a plot is asked for.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from codegen.errors import EnvironmentFault
from spmd.tracebacks import cells


class Table(Sequence[dict]):
    """Rows, each a dict: `table[0]["kind"]`, `for row in table`, `pandas.DataFrame(table.rows)`.

    Its repr is the text that the command prints. A notebook shows it as HTML.
    """

    def __init__(self, rows: list[dict[str, Any]], text: str, inside: str = "") -> None:
        self.rows, self.text = rows, text
        self._inside = inside or pre(text)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        return self.rows[key]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return cells(self.text)

    def _repr_html_(self) -> str:
        return cells(self._inside)


class Layouts(Table):
    """How every array lies, and in `exchanges` what ranks send each other: rows as well.

    `mesh` has the sizes of the axes, where they were given; rows then have "rank_bytes".
    """

    def __init__(self, table: dict[str, Any], text: str) -> None:
        super().__init__(table["arrays"], text)
        self.exchanges: list[dict[str, Any]] = table["exchanges"]
        self.mesh: dict[str, int] | None = table["mesh"]


class Profile(Table):
    """A table of where the time went: a row for each operation, the longest first.

    Rows have "kind", "axes", "place", "text", "count" (turns), "seconds" (the mean over the ranks),
    "waiting" (a part of 1), "longest" (seconds), "imbalance", "bytes" and "bandwidth".
    """

    def plot(self, ax: Any = None) -> Any:
        """Draws a bar for each operation: its time, and what of it was waiting. Returns the axes.

        - ax: axes of matplotlib; new ones unless you give some.

        Raises EnvironmentFault without matplotlib: `pip install 'spmd[plot]'`.
        """
        if ax is None:
            _, ax = matplotlib("pyplot", "plot()").subplots(
                figsize=(9.0, 1.2 + 0.35 * len(self.rows)), layout="constrained"
            )
        names = [f"{row['kind'].replace('_', '-')}  {cells(row['place'])}" for row in self.rows]
        milliseconds = [row["seconds"] * 1e3 for row in self.rows]
        waits = [row["seconds"] * row["waiting"] * 1e3 for row in self.rows]
        busy = [t - w for t, w in zip(milliseconds, waits)]
        places = list(range(len(names)))
        ax.barh(places, busy, label="busy")
        ax.barh(places, waits, left=busy, label="waiting", color="lightgray")
        ax.set_yticks(places, [name.replace("$", r"\$") for name in names])
        ax.invert_yaxis()  # the longest on top
        ax.set_xlabel("milliseconds on a rank, the mean")
        ax.legend()
        return ax


def matplotlib(module: str, who: str, instead: str = "") -> Any:
    """Return a module of matplotlib, which takes half a second. Raises EnvironmentFault without
    it."""
    try:
        return import_module(f"matplotlib.{module}")
    except ImportError:
        raise EnvironmentFault(f"{who} needs matplotlib, which is not installed",
                               remedy=f"pip install 'spmd[plot]'{instead}") from None


def pre(text: str) -> str:
    """Return text as it is, in columns of equal width."""
    style = "font-family: monospace; white-space: pre; overflow-x: auto"
    return f'<pre style="{style}">{html.escape(text)}</pre>'


def rows_html(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        style = ' style="text-align: left"'
        cells = [f"<{tag}{style}>{html.escape(str(cell))}</{tag}>" for cell in cells]
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return (f"<table><caption>{html.escape(caption)}</caption>"
            f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>")

"""What each pass of a build did, as text and as JSON: `spmd show FILE.py --passes`.

In: the rows of codegen.pipeline. Out: one line for each pass, in order, and the times of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class PassTable(NamedTuple):
    """The passes of one build: `rows` of codegen.pipeline, and the seconds of capturing the program
    (`tracing`) and of all passes with the checks between them (`lowering`)."""

    program: str
    rows: list[Any]
    tracing: float
    lowering: float

    @property
    def between(self) -> float:
        """Return the seconds of lowering that no pass accounts for."""
        return self.lowering - sum(row.seconds for row in self.rows if not row.depth)

    def json(self) -> dict[str, Any]:
        return {
            "program": self.program, "tracing": self.tracing, "checks": self.between,
            "passes": [{
                "name": row.name, "inside": row.depth > 0, "times": row.times,
                "seconds": row.seconds, "changed": row.changed, "left_out": row.left_out,
                "before": row.before, "after": row.after,
                "estimates": [{"before": before, "after": after}
                              for before, after in row.estimates],
            } for row in self.rows],
        }

    def text(self) -> Iterator[str]:
        changing = sum(row.changed for row in self.rows)
        yield f"{self.program}: {changing} of {len(self.rows)} passes changed something"
        yield f"{'pass':<20}{'ms':>9}  what it changed"
        yield f"{'(tracing)':<20}{self.tracing * 1e3:>9.1f}"
        for row in self.rows:
            name = f"{'  ' * row.depth}{row.name}{f' x{row.times}' if row.times > 1 else ''}"
            yield f"{name:<20}{row.seconds * 1e3:>9.1f}  {_done(row)}".rstrip()
        yield f"{'(checks between)':<20}{self.between * 1e3:>9.1f}"


def _done(row: Any) -> str:
    """Return what changed in a pass, and what the pass estimated; "-" where nothing did."""
    if row.left_out:
        return "left out"
    parts = []
    if row.changed:
        counts = [f"{name} {row.before.get(name, 0)} -> {many}"
                  for name, many in row.after.items() if many != row.before.get(name)]
        parts.append(", ".join(counts) or "the same numbers of everything, changed inside")
    parts += [f"estimate {before * 1e3:.2f} -> {after * 1e3:.2f} ms"
              for before, after in row.estimates]
    return "; ".join(parts) or "-"

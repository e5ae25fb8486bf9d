"""The operation graph of an image as text: a line for each row, a column of characters a stream.

In: regions of boxes. Out: lines. `*` stands in the column of the row's stream, `|` where a stream
goes on; a row stands below all that it waits for. Source lines stand where they change.
"""

from __future__ import annotations

from collections.abc import Iterator

from spmd.graph_boxes import GraphBox, GraphRegion, line_text, touched_text

HEAD = "operations, a column for each stream; what each waits for, reads -> writes"
MOST_WAITS = 6  # numbers of rows that a line names; the others are counted


def graph_text(region: GraphRegion) -> str:
    """Return the drawing, which ends with a newline."""
    return "\n".join([HEAD, *_lines(region, "  ")]) + "\n"


def _lines(region: GraphRegion, indent: str) -> Iterator[str]:
    ends: dict[int, int] = {}
    for k, box in enumerate(region.boxes):
        ends[box.column] = k
    begun: set[int] = set()
    columns = region.columns
    where = ""
    for k, box in enumerate(region.boxes):
        begun.add(box.column)
        marks = "".join("*" if c == box.column else "|" if c in begun and ends[c] > k else " "
                        for c in range(columns))
        line = f"  # {line_text(box.place)}: {box.text}" if box.place not in ("", where) else ""
        where = box.place
        yield f"{indent}{marks}  {_said(box)}{line}"
        for inner in box.regions:
            if inner.title:
                yield f"{indent}{' ' * columns}    {inner.title}:"
            yield from _lines(inner, f"{indent}{' ' * columns}    ")


def _said(box: GraphBox) -> str:
    many = f" ×{len(box.rows)}" if len(box.rows) > 1 else ""
    waits = [str(k) for k in box.waits]
    if len(waits) > MOST_WAITS + 1:
        waits = [*waits[:MOST_WAITS], f"{len(waits) - MOST_WAITS} more"]
    after = f" after {', '.join(waits)}" if waits else ""
    touched = "" if box.regions else touched_text(box)
    return f"{box.number} {box.action}{many}{after}{touched and ': '}{touched}"

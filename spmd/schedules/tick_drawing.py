"""Drawings of schedules, as text and as SVG: ticks, idle cells, and what each stage keeps.

In: a schedule and its actions until the end of the first step. Out: text with a row for each
stage, or for the microbatches that ranks follow, and a column for each tick. Rows that share a
rank stand below each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from spmd.schedules.actions import Action, row_of

if TYPE_CHECKING:
    from spmd.schedules.pipeline_schedule import Schedule

COLOURS = {"F": "#94b8ca", "B": "#2a6f97", "W": "#89a894"}
INK = {"F": "#000", "B": "#fff", "W": "#000"}
UPDATE, IDLE, KEPT, LINE = "#c1440e", "#f2f2f2", "#d9a441", "#fff"
CELL, ROW, BAR, TOP = 26, 22, 20, 58  # pixels


def as_text(
    schedule: Schedule, actions: Sequence[Action], kept_bytes: Sequence[int] | None
) -> str:
    """Return all rows, with idle ticks and kept activations behind them."""
    cells: dict[tuple[int, int], str] = {}
    for action in sorted(actions, key=lambda a: a.kind == "U"):
        cell = schedule.row(action), action.tick
        own = "*" if action.kind == "U" else _cell_text(schedule, action)
        cells[cell] = cells.get(cell, "") + own
    width = 1 + max(map(len, cells.values()))
    busy = _busy(schedule, actions)
    ticks = range(schedule.length)
    labels = _labels(schedule)
    left = max(map(len, labels.values())) + 1
    note = ("" if schedule.flushes else "; * updates the stage") + _cell_note(schedule)
    lines = [title(schedule) + note, " " * left + "".join(f"{t:>{width}}" for t in ticks)
             + "   idle  kept" + ("" if schedule.flushes else "  crossed")]
    for row, label in labels.items():
        rank = schedule.rank_of(row)
        empty = ["" if (rank, t) in busy else "." for t in ticks]
        line = "".join(f"{cells.get((row, t), empty[t]):>{width}}" for t in ticks)
        idle = schedule.idle_ticks(rank)
        kept = _amount(_kept(schedule, row, kept_bytes), kept_bytes)
        crossed = "" if schedule.flushes else f"{schedule.crossed(row):>9}"
        lines.append(f"{label:<{left}}{line}{idle:>7}{kept:>6}{crossed}")
    return "\n".join(lines)


def as_svg(
    schedule: Schedule, actions: Sequence[Action], kept_bytes: Sequence[int] | None
) -> str:
    """Return the rows as coloured cells, with a bar below each cell as high as what is kept."""
    labels = _labels(schedule)
    left = 16 + 7 * max(map(len, labels.values()))
    end = left + CELL * schedule.length
    height = TOP + (ROW + BAR) * schedule.stages + 20
    kept_by_row = {row: _kept(schedule, row, kept_bytes) for row in labels}
    most = max(kept_by_row.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {end + 112} {height}" '
        f'width="{end + 112}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{end + 112}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">'
        f'{escape(title(schedule))}</text>',
        *(f'<text x="{left + CELL * t + CELL // 2}" y="{TOP - 8}" text-anchor="middle" '
          f'fill="#666">{t}</text>' for t in range(schedule.length)),
        f'<text x="{end + 34}" y="{TOP - 8}" text-anchor="end" fill="#666">idle</text>',
        f'<text x="{end + 100}" y="{TOP - 8}" text-anchor="end" fill="#666">kept</text>',
    ]
    busy = _busy(schedule, actions)
    by_cell: dict[tuple[int, int], list[Action]] = {}
    for action in actions:
        by_cell.setdefault((schedule.row(action), action.tick), []).append(action)
    for line, (row, label) in enumerate(labels.items()):
        y, rank = TOP + (ROW + BAR) * line, schedule.rank_of(row)
        parts.append(f'<text x="12" y="{y + 15}">{escape(label)}</text>')
        kept = _kept_at(schedule, row, kept_bytes)
        for t in range(schedule.length):
            tall = round((BAR - 6) * kept[t] / most) if most else 0
            fill = LINE if (rank, t) in busy else IDLE
            parts += _cell(schedule, left + CELL * t, y, by_cell.get((row, t), []), tall, fill)
        amount = _amount(kept_by_row[row], kept_bytes)
        idle = schedule.idle_ticks(rank)
        parts += [
            f'<text x="{end + 34}" y="{y + 15}" text-anchor="end">{idle}</text>',
            f'<text x="{end + 100}" y="{y + 15}" text-anchor="end">{amount}</text>',
        ]
    whose = "rank" if schedule.place == "microbatch" else "stage"
    note = f"grey: the rank is idle; below: what the {whose} keeps"
    note += ("" if schedule.flushes else "; red: the stage is updated") + _cell_note(schedule)
    parts.append(f'<text x="12" y="{height - 8}" font-size="10" fill="#666">{note}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _busy(schedule: Schedule, actions: Sequence[Action]) -> set[tuple[int, int]]:
    """Return (rank, tick) of all ticks in which a rank does something."""
    return {(schedule.rank_of(schedule.row(a)), a.tick) for a in actions if a.kind != "U"}


def _cell_text(schedule: Schedule, action: Action) -> str:
    """Return an action as F0, where the row does not say the stage, as 2F0."""
    return str(action) if schedule.place == "microbatch" else f"{action.kind}{action.microbatch}"


def _cell_note(schedule: Schedule) -> str:
    """Return what explains the text of a cell, where that is needed."""
    return "; 2F0: stage 2, F of microbatch 0" if schedule.place == "microbatch" else ""


def _cell(schedule: Schedule, x: int, y: int, actions: Sequence[Action], tall: int, empty: str
          ) -> list[str]:
    """Return one tick of a row: its action, a mark at the end for an update, what is kept below."""
    own = next((a for a in actions if a.kind != "U"), None)
    fill = COLOURS[own.kind] if own else empty
    parts = [f'<rect x="{x}" y="{y}" width="{CELL}" height="{ROW}" fill="{fill}" '
             f'stroke="{LINE}"/>']
    if own:
        text = _cell_text(schedule, own)
        small = ' font-size="8"' if len(text) > 3 else ""
        parts.append(f'<text x="{x + CELL // 2}" y="{y + 15}" text-anchor="middle"{small} '
                     f'fill="{INK[own.kind]}">{text}</text>')
    if len(actions) > (own is not None):
        parts.append(f'<rect x="{x + CELL - 4}" y="{y}" width="4" height="{ROW}" '
                     f'fill="{UPDATE}"/>')
    if tall:
        parts.append(f'<rect x="{x}" y="{y + ROW + 1}" width="{CELL}" height="{tall}" '
                     f'fill="{KEPT}"/>')
    return parts


def title(schedule: Schedule) -> str:
    """Return name, sizes, and whether a step flushes."""
    ends = "flushes after each step" if schedule.flushes else (
        f"the next step {schedule.period} ticks later")
    return (f"{schedule.name}: {_counted(schedule.stages, 'stage')}, "
            f"{_counted(schedule.microbatches, 'microbatch', 'es')}, "
            f"{_counted(schedule.length, 'tick')}, {ends}")


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _labels(schedule: Schedule) -> dict[int, str]:
    """Return a label for each row, those of a rank below each other."""
    rows = sorted(range(schedule.stages), key=lambda row: (schedule.rank_of(row), row))
    if schedule.place == "microbatch":
        return {row: f"rank {schedule.rank_of(row)}, microbatch {_microbatches(schedule, row)}"
                for row in rows}
    if schedule.ranks == schedule.stages:
        return {s: f"stage {s}" for s in rows}
    return {s: f"rank {schedule.rank_of(s)}, stage {s}" for s in rows}


def _microbatches(schedule: Schedule, row: int) -> str:
    """Return the microbatches of a row, as 0, 4, …"""
    own = [k for k in range(schedule.microbatches)
           if row_of(0, k, schedule.stages, schedule.place) == row]
    return (", ".join(map(str, own[:2])) or "-") + (", …" if len(own) > 2 else "")


def _kept(schedule: Schedule, row: int, kept_bytes: Sequence[int] | None) -> int:
    """Return how many activations, or bytes, a row keeps at most."""
    if schedule.place == "microbatch":
        return max(_kept_at(schedule, row, kept_bytes))
    return schedule.kept(row) * (1 if kept_bytes is None else kept_bytes[row])


def _kept_at(schedule: Schedule, row: int, kept_bytes: Sequence[int] | None) -> list[int]:
    """Return what a row keeps at each tick, as a number of activations, or in bytes."""
    if schedule.place == "microbatch":
        return [sum(1 if kept_bytes is None else kept_bytes[s] for s in stages)
                for stages in schedule.kept_in_row(row)]
    each = 1 if kept_bytes is None else kept_bytes[row]
    return [each * kept for kept in schedule.kept_at(row)]


def _amount(kept: int, kept_bytes: Sequence[int] | None) -> str:
    """Return what is kept as a number of activations, or as bytes in binary units."""
    if kept_bytes is None:
        return str(kept)
    value, units = float(kept), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f" {value:.3g} {units[0]}"

"""The charts, drawn from the numbers beside them: `python docs/figures/draw.py`.

In: programs.csv, jax.csv, collectives.csv and machines.csv, which `make charts` measures. Out: an
SVG beside each. A test draws them again and compares.
"""

from __future__ import annotations

import csv
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEFT, WIDTH, ROW = 300, 440, 22  # pixels: of the labels, of the bars, from one bar to the next
OURS, BESIDE, GRID = "#2a6f97", "#94b8ca", "#8888"


def rows(name: str) -> tuple[list[str], list[list[str]]]:
    head, *body = csv.reader((HERE / name).read_text().splitlines())
    return head, body


def bars(chart: str, title: str, items: list[tuple[str, float, str]], note: str) -> str:
    """Labels, values and colours, one bar below the other; a line stands at 1."""
    _, when, where = next(row for row in rows("machines.csv")[1] if row[0] == chart)
    scale = WIDTH / (max(value for _, value, _ in items) * 1.12)
    height = 84 + ROW * len(items)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{LEFT + WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    x = LEFT + scale
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="36" y2="{height - 44}" stroke="{GRID}"/>'
    labels = []
    for k, (label, value, colour) in enumerate(items):
        y = 40 + ROW * k
        length = value * scale
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>',
        ]
        labels.append(  # white around it, as the line may pass behind it
            f'<text x="{LEFT + length + 5:.1f}" y="{y + 13}" paint-order="stroke" stroke="#fff" '
            f'stroke-width="5">{value:g}</text>')
    parts += [
        line, *labels,
        f'<text x="{x:.1f}" y="{height - 28}" text-anchor="middle">{escape(note)}</text>',
        f'<text x="12" y="{height - 8}" font-size="10">{escape(f"{when}, {where}")}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def programs() -> str:
    _, body = rows("programs.csv")
    items = [(name, float(value), OURS) for name, value in body]
    title = "Our time over that of C by hand, one core (shorter is better)"
    return bars("programs", title, items, "as fast as C")


def jax() -> str:
    _, body = rows("jax.csv")
    items = [(row[0], float(row[1]), OURS) for row in body]
    title = "JAX's time over ours, on all cores (longer is better)"
    return bars("jax", title, items, "as fast as JAX")


def collectives() -> str:
    head, body = rows("collectives.csv")
    items = [
        (f"{what}, {who}", float(value), OURS if "Open" in who else BESIDE)
        for column, what in ((1, "barrier"), (2, "all-reduce of 8 B"), (4, "all-reduce of 128 KiB"))
        for who, value in ((row[0].replace(",", " ranks,"), row[column]) for row in body)
    ]
    assert head[2] == "all-reduce of 8 B" and head[4] == "128 KiB"
    title = "MPI's time over ours (longer is better)"
    return bars("collectives", title, items, "as fast as MPI")


FIGURES = {"programs.svg": programs, "jax.svg": jax, "collectives.svg": collectives}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (HERE / name).write_text(draw())

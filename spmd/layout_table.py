"""`show --layouts`: how every array lies, what ranks send each other; what is said of it at build.

In: an image, and a mesh where one is asked for. Out: rows and text.
Always holds: expressions are checked before they are evaluated; nothing of the image is executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from codegen.errors import ImageError, under
from codegen.image import manifest as reader
from codegen.user.named import together
from codegen.verify import exchange_table as exchanges
from spmd import ledger
from spmd.files.npy import SIZES, element_count
from spmd.launch import memory, sizes
from spmd.verify.formulas import infix, layout_text

Row = dict[str, Any]

# Ranks up to which what reaches each of some of them is counted, beyond it is what it is at most.
COUNTED = 4096  # ranks up to which each is evaluated; above, the ends and the middle tell
_FOLDS = ("all-reduce", "reduce-scatter", "reduce", "scan", "exclusive scan")


def table(image: reader.ImageFile, ranks: int | None, mesh: dict[str, int]) -> dict[str, Any]:
    """Return {"mesh", "arrays", "exchanges", "chosen"}: as noted at build; with rank_bytes where a
    mesh is known.

    Raises MeshError where the ranks asked for do not form one.
    """
    notes = image.notes()
    if "traffic" not in notes:
        raise ImageError("the image has no table of its layouts",
                         remedy="build it again with this version of spmd")
    try:
        arrays, exchanges = ([dict(r) for r in notes[name]] for name in ("arrays", "traffic"))
        counted = _Counted(image, ranks, mesh) if ranks or mesh else None
        for row in (*arrays, *exchanges):
            reader.check_expression(row["bytes"], _symbols(image))
            if counted is not None:
                row["rank_bytes"] = counted.bytes(row)
        known = counted.sizes if counted is not None else None
        layouts = {"mesh": known, "arrays": arrays, "exchanges": exchanges,
                   "chosen": notes.get("chosen", [])}
        for _ in text(image, layouts):  # a row that cannot be written is damaged
            pass
        return layouts
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError):
        raise ImageError("damaged notes", expected="a table of layouts",
                         found="something else") from None


def _symbols(image: reader.ImageFile) -> set[str]:
    names = {f"n_{axis['name']}" for axis in image.manifest["mesh"]}
    return names | {scalar["name"] for scalar in image.manifest["scalars"]}


class _Counted:
    """Amounts of bytes that ranks exchange on one mesh."""

    def __init__(self, image: reader.ImageFile, ranks: int | None, mesh: dict[str, int]) -> None:
        m = image.manifest
        scalars = {s["name"]: s["default"] for s in m["scalars"] if s["dtype"] == "int64"}
        bound = sizes.bind_mesh(m, ranks, mesh, scalars)
        self.sizes = {a["name"]: n for a, n in zip(m["mesh"], bound, strict=True)}
        self.values = {**scalars, **sizes.mesh_symbols(m, bound)}
        self.ledger: ledger.Ledger | None = None
        if element_count(bound) <= COUNTED:
            self.ledger = ledger.Ledger(image, "the image")
        self.buffers = m["buffers"]

    def bytes(self, row: Row) -> int | None:
        """Return the bytes on the rank with the largest part; None where a scalar decides that has
        no default."""
        try:
            most = reader.evaluate(row["bytes"], self.values)
            if self.ledger is None or "site" not in row or row["kind"] in _FOLDS:
                return most
            return self._received(next(r for r in self.ledger.table.rows if r.site == row["site"]))
        except TypeError:
            return None

    def _received(self, row: exchanges.Row) -> int | None:
        """Return the most bytes that a rank gets from the others: ranks at the ends and in the
        middle tell."""
        from codegen.verify.small import received  # NumPy, where a mesh is known only

        if row.said["from"] is None or row.unknown:
            return None
        dtype = self.buffers[row.said["from"]["buffer"]]["dtype"]
        return received(row, self.values) * SIZES[dtype]


# ---- as text -----------------------------------------------------------------------------------


def text(image: reader.ImageFile, layouts: dict[str, Any]) -> Iterator[str]:
    axes = ", ".join(f'n_{a["name"]} ranks along "{a["name"]}"' for a in image.manifest["mesh"])
    known = layouts["mesh"]
    yield ("on the mesh (" + ", ".join(f"{k}={n}" for k, n in known.items()) + ")") if known else (
        f"for any mesh of {axes}")
    yield ""
    yield "arrays, and the bytes of the largest shard"
    rows = together(
        (f"{r['name']}", f"{r['dtype']}[{_shape(r['shape'])}]", layout_text(r["layout"]),
         amount(r), f"{r['because']} ({', '.join(r['what'])})")
        for r in layouts["arrays"]
    )
    widths = [max((len(row[k]) for row in rows), default=0) for k in range(4)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths))
        yield f"  {'  '.join(cells)}  {row[4]}"
    yield ""
    yield "what is exchanged, and the bytes that reach a rank from others"
    if not layouts["exchanges"]:
        yield "  nothing"
    for r in layouts["exchanges"]:
        over = ", ".join(f'"{a}"' for a in r["axes"])
        whose = f" of {r['array']}" if r["array"] else ""
        yield f"  {r['site']}. {r['words']}{whose}, over {over}: {amount(r)}, {r['often']}"
        yield from quoted(r["place"])
        if r["advice"] is not None:
            yield f"       {r['advice']['message']}"
            yield f"       try: {r['advice']['try']}"
    if layouts["chosen"]:
        yield ""
        yield "loops: what the compiler does before them, and which stand copied in the program"
    for r in layouts["chosen"]:
        yield f"  {r['message']}"
        yield from quoted(r["place"])
        if r["try"]:
            yield f"       try: {r['try']}"


def layout_warnings(image: reader.ImageFile, loops: bool = True) -> Iterator[str]:
    """Yield what to say at build of exchanges that give every rank a large array whole, once per
    line; loops: also of loops before which every rank gets large arrays, before which large
    products stand, or that are unrolled."""
    chosen = image.notes().get("chosen", []) if loops else []
    for row in (r for r in chosen if r["try"] and r.get("costs", True)):
        place = row["place"]
        yield "\n".join(
            [f"{place['file']}:{place['line']}: {row['message']}",
             under(place["text"], place["column"], place["end"]), f"  try:    {row['try']}"]
        )
    said = set()
    for row in image.notes()["traffic"]:
        if row["advice"] is None or (key := (row["array"], row["place"]["line"])) in said:
            continue
        said.add(key)
        place, advice = row["place"], row["advice"]
        caret = under(place["text"], place["column"], place["end"])
        often = "" if row["often"] == "once" else f", {row['often']}"
        yield "\n".join(
            [f"{place['file']}:{place['line']}: {advice['message']}{often}", caret,
             f"  layout: {advice['layout']}", f"  try:    {advice['try']}"]
        )


def quoted(place: Row | None) -> Iterator[str]:
    """Yield a source line as errors show it."""
    if place is not None:
        yield f"     {place['file']}:{place['line']}"
        caret = under(place["text"], place["column"], place["end"])
        yield from (f"     {line}" for line in caret.split("\n") if line)


def amount(row: Row) -> str:
    number = row.get("rank_bytes")
    if number is None:
        return f"{infix(row['bytes'])} bytes"
    return f"{number} bytes" if number < 1 << 20 else memory.bytes_text(number)


def _shape(shape: list[Any]) -> str:
    return ", ".join(infix(e) for e in shape)

"""Exchanges that are alike: functions that tell their boxes, and that begin them, written once.

Goes in: a Plan. Comes out: C of the functions that exchanges share, with a table of the numbers in
which these differ: a row for each site.
Always holds: a function of several exchanges does what each of their own would do: it finds its
numbers by the site of the exchange that its rank is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codegen.emit.alike import differing, tokens
from codegen.emit.exchange_code import beginning, box_bodies, box_head, over, says
from codegen.emit.lines import comment, source, wrapped
from codegen.emit.rank_code import Places
from codegen.ir.plan import Exchange, Plan
from codegen.ir.steps import walk_steps

LEAST_USES = 3


@dataclass(frozen=True)
class _Body:
    """The body of a function of one exchange, in tokens. numbers: the positions of the tokens that
    are numbers and may differ."""

    x: Exchange
    pieces: list[str]
    numbers: list[int]

    @property
    def key(self) -> str:
        pieces = list(self.pieces)
        for k in self.numbers:
            pieces[k] = "#"
        return "".join(pieces)

    @property
    def row(self) -> list[str]:
        return [self.pieces[k] for k in self.numbers]

    def filled(self, columns: list[list[int]], texts: list[str]) -> str:
        """Return the body with these texts in place of the numbers in these columns."""
        pieces = list(self.pieces)
        for group, text in zip(columns, texts, strict=True):
            for k in group:
                pieces[self.numbers[k]] = text
        return "".join(pieces)


class SharedExchanges:
    """Functions that several exchanges share. boxes: by the site of an exchange and the kind of
    function, the name of the shared function for its boxes. begins: by site, the call that begins
    the exchange. functions: the texts of all these."""

    def __init__(self, plan: Plan, places: Places) -> None:
        self.places, self.mesh = places, plan.mesh
        self.own = {*map(places.number, plan.buffers), *map(places.entry, plan.at_load)}
        self.functions: list[str] = []
        self.boxes: dict[int, dict[str, str]] = {}
        self.begins: dict[int, str] = {}
        # what arrives at a phase of its own, or is asked for outside of an exchange, has its own
        some = [s for s in walk_steps(plan.steps) if isinstance(s, Exchange)
                and s.take is None and not s.shifts and not s.swaps]
        if len(some) < LEAST_USES:
            return
        bodies = [(name, self.body(x, text)) for x in some
                  for name, text in box_bodies(x, places).items()]
        for name in ("pull", "send", "give"):
            for group in _groups([body for n, body in bodies if n == name]):
                self.share_boxes(name, group)
        begun = [self.body(x, beginning(x, plan.mesh, places, self.boxes.get(x.site, {})))
                 for x in some if x.site in self.boxes]
        for group in _groups(begun):
            self.share_beginning(group)

    def body(self, x: Exchange, text: str) -> _Body:
        pieces = list(tokens(text))
        numbers = [k for k, piece in enumerate(pieces)
                   if piece[0].isdigit() or piece in self.own]
        return _Body(x, pieces, numbers)

    def share_boxes(self, name: str, group: list[_Body]) -> None:
        """Write one function that returns the boxes of all exchanges of a group."""
        first, columns = group[0], differing([body.row for body in group])
        function = f"{name}_shared_{len(self.functions)}"
        for body in group:
            self.boxes.setdefault(body.x.site, {})[name] = function
        text = first.filled(columns, [f"own[{k}]" for k in range(len(columns))])
        out = [comment(f"asked by the engine in {len(group)} exchanges: {says(first.x)[name]}")]
        if columns:
            rows, quoted = "", ""
            for body in group:
                where = source(body.x.place) if body.x.place else ""
                rows += comment(where, indent="    ") + "\n" if where not in ("", quoted) else ""
                quoted = where
                own = ", ".join(body.row[c[0]] for c in columns)
                rows += f"    [{body.x.site}] = {{{own}}},\n"
            out.append(f"static const int64_t {function}_own[][{len(columns)}] = {{\n{rows}}};")
            text = f"    const int64_t *const own = {function}_own[r->exchange.site];\n{text}"
        out.append(f"{box_head(function, name)}\n{{\n{text}\n}}\n")
        self.functions.append("\n".join(out))

    def share_beginning(self, group: list[_Body]) -> None:
        """Write one function that begins any exchange of a group."""
        first, columns = group[0], differing([body.row for body in group])
        function = f"exchange_shared_{len(self.functions)}"
        names = ["site" if all(body.row[c[0]] == str(body.x.site) for body in group)
                 else f"number_{k}" for k, c in enumerate(columns)]
        for body in group:
            handed = ", ".join(["r", *(body.row[c[0]] for c in columns)])
            self.begins[body.x.site] = f"{function}({handed});"
        head = wrapped(f"static void {function}(",
                       ["spmd_rank *r", *(f"const int64_t {n}" for n in names)], ")")
        intro = comment(f"{len(group)} exchanges, begun by step(): {over(first.x)}")
        self.functions.append(f"{intro}\n{head}\n{{\n{first.filled(columns, names)}\n}}\n")


def _groups(bodies: list[_Body]) -> Iterator[list[_Body]]:
    """Yield groups of bodies that are alike, each of at least LEAST_USES."""
    groups: dict[str, list[_Body]] = {}
    for body in bodies:
        groups.setdefault(body.key, []).append(body)
    return (group for group in groups.values() if len(group) >= LEAST_USES)

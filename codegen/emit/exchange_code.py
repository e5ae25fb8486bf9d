"""What an exchange is to the engine: functions that name its members and its boxes.

Goes in: an Exchange of a finished Plan. Comes out: C of exchange_K, which fills rank->exchange, and
of pull_K, send_K and give_K, which the engine asks for boxes.
Always holds: a box function looks at nothing but the rank and the member that it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from codegen.emit.lines import comment, source, wrapped
from codegen.emit.phases import PhaseWriter
from codegen.emit.rank_code import Places, RankFunction
from codegen.ir.exprs import mapped
from codegen.ir.fresh import Fresh
from codegen.ir.indexing import rewritten
from codegen.ir.plan import (
    ARRIVED,
    POINT,
    Box,
    Buffer,
    Exchange,
    Load,
    LocalRead,
    Phase,
    PhaseParameter,
    Store,
    Var,
)
from codegen.mesh import Mesh
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.spelling import Binds


def exchange_functions(x: Exchange, mesh: Mesh, places: Places, shared: Mapping[str, str]) -> str:
    """Return the C functions of an exchange. shared: by name, the functions for its boxes that it
    shares with other exchanges, which are left out here."""
    where = [source(x.place)] if x.place else []
    asked = f"exchange {x.site}, asked by the engine"
    out: list[str] = []
    for name, body in box_bodies(x, places).items():
        if name not in shared:
            head = box_head(f"{name}_{x.site}", name)
            out += [comment(f"{asked}: {says(x)[name]}", *where), f"{head}\n{{\n{body}\n}}\n"]
    if x.take is not None:
        does = comment(f"{asked}: what I do with a piece of what I pull", *where)
        out.append(_taking(x, x.take, places, does))
    out.append(comment(f"exchange {x.site}, begun by step(): {over(x)}", *where))
    body = beginning(x, mesh, places, shared)
    out.append(f"static void exchange_{x.site}(spmd_rank *r)\n{{\n{body}\n}}\n")
    return "\n".join(out)


def says(x: Exchange) -> dict[str, str]:
    """Return, by the name of each function of an exchange, a phrase for comments that says what the
    engine learns from it."""
    taken = "fold" if x.fn else "copy"
    return {
        "pull": f"what I {taken} from `member`, and into what",
        "send": f"what is for `member` to {taken} from me",
        "give": "what of mine may be written to `member`",
    }


def over(x: Exchange) -> str:
    return f"{x.kind} over {', '.join(x.axes)}"


def beginning(x: Exchange, mesh: Mesh, places: Places, shared: Mapping[str, str]) -> str:
    """Return the body of a function that begins an exchange. shared: by name, the functions for its
    boxes that it shares with other exchanges."""
    f, told = RankFunction(places), _told(x)
    names = {name: shared.get(name, f"{name}_{x.site}") for name in told}
    _begin(f, x, mesh)
    for name in ("pull", "send"):
        if name in told:
            f.line(f"x->{name} = {names[name]};")
    f.line(f"x->give = {names.get('give', '0')};")
    f.line(f"x->take = {f'take_{x.site}' if x.take else '0'};")
    if x.take is not None:
        f.line(f"x->into_size = {x.take.buffer.dtype.size};")
    f.line(f"x->fold = {f'{fold_name(x)}[r->engine->vectors]' if x.fn and x.dtype else '0'};")
    f.line("r->stage = 0;")
    return f.body()


def _taking(x: Exchange, take: Store, places: Places, does: str) -> str:
    """Return the C function take_K, which computes with a piece that has arrived, after the phase
    that it calls for that."""
    names, dtype = Fresh(places.names.values()), take.buffer.dtype
    arrived = Buffer(-1, names.name(ARRIVED), x.dtype or dtype, expr.const(0))
    symbols = {
        "at": f"(piece->into - r->buffer[{places.number(take.buffer)}]) / {dtype.size}",
        "from_row": f"piece->from_stride / {arrived.dtype.size}",
        "into_row": f"piece->into_stride / {dtype.size}",
        "rows": "piece->rows", "n": "piece->n",
    }
    syms = [Sym(names.name(name), "size") for name in symbols]
    position, from_row, into_row, rows, n = map(expr.symbol, syms)
    loops = Var(Sym("row", "var"), rows), Var(Sym("i", "var"), n)
    row, i = (expr.symbol(v.sym) for v in loops)
    node = rewritten(take.value, lambda node: Load(arrived, from_row * row + i)
                     if isinstance(node, LocalRead) else None)
    work = mapped(replace(take, loops=loops, value=node),
                  lambda e: e.subst({POINT: into_row * row + position + i}))
    parameters = tuple(PhaseParameter(s, e, e) for s in syms for e in (expr.symbol(s),))
    phase = Phase(x.site, f"piece_{x.site}", (work,), None, parameters)
    writer = PhaseWriter(phase, {**places.names, id(arrived): arrived.name})
    text = writer.write()
    arguments = ["piece->from" if b is arrived else places.address(b)
                 for b, _ in writer.buffers.values()]
    call = wrapped(f"    piece_{x.site}(", [*arguments, *symbols.values()], ");", "        ")
    head = f"static void take_{x.site}(const spmd_rank *r, const spmd_piece *piece)"
    return f"{text}\n{does}\n{head}\n{{\n{call}\n}}\n"


def fold_name(x: Exchange) -> str:
    """Return the name of the function that combines ranks' elements."""
    return f"fold_{x.fn}_{x.dtype}"


def _told(x: Exchange) -> dict[str, tuple[Box, ...]]:
    """Return, by the name of each function for boxes, the boxes that it returns."""
    told: dict[str, tuple[Box, ...]] = {}
    if x.send is not None and x.pull_from is not None and x.pull_into is not None:
        told |= {"pull": (x.pull_from, x.pull_into), "send": (x.send,)}
    if x.send is not None and x.give_into is not None:
        told["give"] = (x.send, x.give_into)
    return told


# ---- exchange_K ----------------------------------------------------------------------------------


def _begin(f: RankFunction, x: Exchange, mesh: Mesh) -> None:
    """Write the statements that fill rank->exchange."""

    def put(name: str, e: Expr) -> None:
        f.line(f"x->{name} = {f.integer(e, Binds.CHOICE)};")

    f.line("spmd_exchange *const x = &r->exchange;")
    f.line(f"x->site = {x.site};")
    f.line(f"x->kind = {_kind(x)};")
    f.line(f"x->size = {x.dtype.size if x.dtype else 0};")
    # How many members, which I am, where the others are: index = first + sum of strides.
    put("members", mesh.size(x.axes))
    put("position", mesh.position(x.axes))
    put("first", mesh.index.subst({mesh.axis(a).coord_sym: 0 for a in x.axes}))
    more = 3 - len(x.axes)
    counts = [mesh.axis(a).size for a in x.axes] + [expr.const(1)] * more
    strides = [_index_stride(mesh, a) for a in x.axes] + [expr.const(0)] * more
    for name, values in (("count", counts), ("stride", strides)):
        texts = (f"x->{name}[{k}] = {f.integer(e, Binds.CHOICE)}" for k, e in enumerate(values))
        f.line(", ".join(texts) + ";")
    if x.dest is not None:
        f.line(f"x->source = {_peer(f, x.receives, x.source)};")
        f.line(f"x->dest = {_peer(f, x.sends, x.dest)};")
    # Which members I read, and whether each reads something else of me.
    f.line(f"x->flow = SPMD_{x.flow.upper()};")
    f.line(f"x->differs = {int(x.differs)};")
    f.line(f"x->constant = {int(x.constant)};")
    put("wraps", x.wraps)
    if x.root is not None:
        put("root", x.root)
    all_of_one = (expr.const(0), expr.const(1)) * 2  # along axes that the group does not have
    for k, ranges in enumerate((*x.near, *[all_of_one] * 2)[:3] if x.near else ()):
        begin, end, first, last = (f.integer(e, Binds.CHOICE) for e in ranges)
        f.line(f"x->sources[{k}] = (spmd_range){{{begin}, {end}}};")
        f.line(f"x->readers[{k}] = (spmd_range){{{first}, {last}}};")


def _kind(x: Exchange) -> str:
    """Return the engine's constant for the kind of an exchange."""
    if not x.boxes:
        return "SPMD_BARRIER"
    if x.fn:
        return "SPMD_REDUCE_SCATTER" if x.differs else "SPMD_REDUCE"
    return "SPMD_PULL" if x.dest is None else "SPMD_PERMUTE"


def _peer(f: RankFunction, guard: Expr | None, peer: Expr | None) -> str:
    """Return the C expression of a permute's peer: SPMD_NONE where `guard` is 0, SPMD_UNKNOWN if it
    is not solved for."""
    if guard is None or peer is None:
        return "SPMD_UNKNOWN"
    if guard.is_const:
        return f.integer(peer, Binds.CHOICE) if guard.value else "SPMD_NONE"
    return f"{f.integer(guard, Binds.OR)} ? {f.integer(peer, Binds.COMPARE)} : SPMD_NONE"


def _index_stride(mesh: Mesh, axis: str) -> Expr:
    """Return how far the index moves when the coordinate along an axis grows by one."""
    names = list(mesh.names)
    return expr.product(mesh.axis(n).size for n in names[names.index(axis) + 1 :])


# ---- boxes ---------------------------------------------------------------------------------------


def box_bodies(x: Exchange, places: Places) -> dict[str, str]:
    """Return, by name, the bodies of the functions that return the boxes of an exchange."""
    return {name: _box_body(x, boxes, places) for name, boxes in _told(x).items()}


def box_head(function: str, name: str) -> str:
    """Return the head of a function that returns boxes: the one it reads from and, unless it is a
    send, the one it writes into."""
    into = "" if name == "send" else ", spmd_box *into"
    return f"static void {function}(const spmd_rank *r, int64_t member, spmd_box *from{into})"


def _box_body(x: Exchange, boxes: Sequence[Box], places: Places) -> str:
    f = RankFunction(places)
    if x.wraps != 1:
        f.line("const int64_t wrap = member / r->exchange.members;")
        f.line("member %= r->exchange.members;")
    elif all(x.member not in box.symbols() for box in boxes):
        f.line("(void)member;")
    for sym, formula in {sym: e for box in boxes for sym, e in box.names}.items():
        f.line(f"const int64_t {sym.name} = {f.integer(formula, Binds.CHOICE)};")
    for target, box in zip(("from", "into"), boxes, strict=False):
        size = box.buffer.dtype.size
        plus = "" if box.offset == 0 else f" + {f.integer(box.offset * size)}"
        f.line(f"{target}->offset = r->buffer[{places.number(box.buffer)}]{plus};")
        extents, strides = (e or (expr.const(1),) for e in (box.extent, box.stride))
        f.line(f"{target}->dims = {len(extents)};")
        for d, (e, s) in enumerate(zip(extents, strides, strict=True)):
            s = expr.const(1) if s == 0 and d == len(extents) - 1 else s
            same = target == "into" and boxes[0].extent[d : d + 1] == (e,) and not e.is_const
            extent = f"from->extent[{d}]" if same else f.integer(e, Binds.CHOICE)
            f.line(f"{target}->extent[{d}] = {extent};")
            f.line(f"{target}->stride[{d}] = {f.integer(s * size, Binds.CHOICE)};")
    return f.body()

"""Correct Programs, broken in one place: some check between the levels must notice every one.

A mutation is tried on every op that it fits, in every program; each is named in the test's id.
"""

from dataclasses import replace

import numpy as np
import pytest

import spmd
from codegen.checks.check_graph import check
from codegen.checks.matching import check as check_matching
from codegen.checks.uniformity import check_uniform
from codegen.dtypes import BOOL, INT64
from codegen.errors import InternalError, LayoutError, MatchingError
from codegen.ir.graph import ArrayType, Op, Region, Value, walk
from codegen.layouts.partition import partition
from codegen.ops import Branch, Exchange, Full, Loop, Map, Symbolic
from codegen.symbolic import expr
from codegen.symbolic.expr import const
from examples.heat import heat
from tests.codegen.sample_programs import branches, halo, in_place, ring_allreduce


@spmd.program(mesh=("x", "y"))
def moves(n: int = 11, m: int = 7):
    """Every exchange that moves parts of uneven shards."""
    u = spmd.input("u", (n, m), np.float64, layout=("x", "y"), default=lambda i, j: i + j)

    @spmd.shard_map(out_layouts=(("x", None), ("x", "y"), ("y", None), ("x", "y")))
    def parts(a):
        rows = spmd.all_gather(a, "y", 1, tiled=True)
        columns = spmd.all_gather(a, "x", 0, tiled=True)
        own = spmd.psum_scatter(np.ones((n, m)), ("x", "y"), 0, tiled=True)
        mine = spmd.all_to_all(columns, "y", 0, 1, tiled=True)
        first = spmd.pbroadcast(a, "x")
        total = np.sum(first) + np.sum(own)
        return rows, a + total, mine, a[:, ::-1]

    return parts(u)


@spmd.program(mesh=("x", "y"))
def roots(n: int = 11, m: int = 7):
    """Every exchange in which one member, or its place among them, is another than the rest."""
    u = spmd.input("u", (n, m), np.float64, layout=("x", "y"), default=lambda i, j: i + j)

    @spmd.shard_map(out_layouts=("x", "y"))
    def local(a):
        rows = spmd.pgather(a, "y", 0, 1, tiled=True)
        parts = spmd.pscatter(rows, "y", 0, 1, tiled=True)
        sums = spmd.pscan(np.sum(a), "x") + spmd.pexscan(np.sum(a), ("x", "y"))
        return parts + spmd.preduce(sums, "x")

    return local(u)


@spmd.program(mesh=("x",))
def settle(n: int = 9):
    """Exchange in a loop and in a branch whose conditions are reduced first."""
    u = spmd.input("u", (n,), np.float64, layout=("x",), default=lambda i: i)

    @spmd.shard_map(out_layouts=("x",))
    def run(a):
        largest = spmd.pmax(np.max(a, initial=0), "x")
        while largest > 1:
            a = a / 2
            largest = spmd.pmax(np.max(a, initial=0), "x")
        if spmd.any_ranks(np.sum(a) > 1, "x"):
            a = a - spmd.pmin(np.min(a, initial=0), "x")
        return a

    return run(u)


@spmd.program(mesh=("r", "c"))
def transposed():
    """A square mesh turned over its diagonal."""
    rows = spmd.axis_size("r")
    spmd.require(rows == spmd.axis_size("c"))
    u = spmd.input("u", (rows, spmd.axis_size("c")), np.float64, layout=("r", "c"),
                   default=lambda i, j: 10 * i + j)

    @spmd.shard_map(out_layouts=("r", "c"))
    def turn(a):
        return spmd.ppermute(a, ("r", "c"), to=lambda i, n: (i % rows) * rows + i // rows)

    return turn(u)


PROGRAMS = {p.name: p for p in (
    ring_allreduce, branches, halo, in_place, heat, moves, roots, settle, transposed,
)}
_programs = {}


def program_of(name):
    if name not in _programs:
        _programs[name] = check(partition(PROGRAMS[name].capture()))
    return _programs[name]


def checked(program):
    return check_matching(check_uniform(check(program)))


# ---- rewriting ---------------------------------------------------------------------------------


def rewritten(program, target, new):
    """The program with `target` replaced by the ops `new`."""

    def region(r):
        ops = []
        for op in r.ops:
            if op is target:
                ops += new
            elif op.regions:
                ops.append(replace(op, regions=tuple(region(i) for i in op.regions)))
            else:
                ops.append(op)
        return replace(r, ops=tuple(ops))

    return replace(program, body=region(program.body))


def with_attrs(op, **changed):
    return [replace(op, kind=op.kind.but(**changed))]


def with_extent(op, dim, extent):
    """The op with another extent of its result, said everywhere that an op says it."""
    shape = list(op.result.type.shape)
    shape[dim] = extent
    t = ArrayType(op.result.type.dtype, tuple(shape))
    stated = op.kind.attributes()
    said = {name: x for name, x in (("types", (t,)), ("shape", t.shape)) if name in stated}
    return replace(op, kind=op.kind.but(**said), results=(Value(op.result.name, t),))


def renamed(program, old, new):
    """The program with every use of one value replaced by another."""

    def swap(values):
        return tuple(new if v is old else v for v in values)

    def region(r):
        ops = tuple(
            replace(op, operands=swap(op.operands), regions=tuple(region(i) for i in op.regions))
            for op in r.ops
        )
        return Region(r.args, ops, swap(r.results))

    outputs = tuple(replace(o, value=swap([o.value])[0]) for o in program.outputs)
    return replace(program, body=region(program.body), outputs=outputs)


# ---- mutations of one op: op, program -> ops in its place; None or False where it does not fit ---
# Where no source is solved, another permutation is as good as the one that stood there.


def _size(op, program):
    return program.mesh.size(op.kind.axes)


def _var(op):
    return expr.symbol(op.kind.var)


def to_the_next(op, program):
    return with_attrs(op, to=op.kind.to + 1)


def to_the_next_wrapped(op, program):
    return _solved(op) and with_attrs(op, to=(op.kind.to + 1) % _size(op, program))


def to_reversed(op, program):
    return _solved(op) and with_attrs(op, to=_size(op, program) - 1 - op.kind.to)


def to_the_first(op, program):
    return with_attrs(op, to=const(0))


def to_by_own_index(op, program):
    own = program.mesh.position(op.kind.axes)
    return with_attrs(op, to=op.kind.to.subst({op.kind.var: own}))


def to_doubled(op, program):
    return with_attrs(op, to=2 * op.kind.to % _size(op, program))


def sends_always(op, program):
    return None if op.kind.sends == 1 else with_attrs(op, sends=const(1))


def sends_never(op, program):
    return _solved(op) and with_attrs(op, sends=const(0))


def sends_but_the_first(op, program):
    guard = expr.ge(_var(op), 1)
    if op.kind.sends == guard or not _solved(op):
        return None
    return with_attrs(op, sends=op.kind.sends * guard)


def sends_but_the_second(op, program):
    return _solved(op) and with_attrs(op, sends=op.kind.sends * expr.ne(_var(op), 1))


def source_next(op, program):
    return _solved(op) and with_attrs(op, source=(op.kind.source + 1) % _size(op, program))


def source_none_such(op, program):
    return _solved(op) and with_attrs(op, source=_size(op, program))


def source_itself(op, program):
    return _solved(op) and with_attrs(op, source=_var(op))


def source_forgotten(op, program):
    """Without a solved source, all must send one shape."""
    shape = op.operands[0].type.shape
    own = {s for a in op.kind.axes for s in [program.mesh.axis(a).coord_sym]}
    varies = any(e.symbols() & own for e in shape)
    return with_attrs(op, source=None, receives=None) if _solved(op) and varies else None


def receives_always(op, program):
    return _solved(op) and op.kind.receives != 1 and with_attrs(op, receives=const(1))


def receives_never(op, program):
    return _solved(op) and with_attrs(op, receives=const(0))


def receives_but_the_last(op, program):
    last = expr.lt(_var(op), _size(op, program) - 1)
    if not _solved(op) or op.kind.receives == last:
        return None
    return with_attrs(op, receives=op.kind.receives * last)


def _solved(op):
    return op.kind.source is not None


PERMUTE = [
    to_the_next, to_the_next_wrapped, to_reversed, to_the_first, to_by_own_index, to_doubled,
    sends_always, sends_never, sends_but_the_first, sends_but_the_second, source_next,
    source_none_such, source_itself, source_forgotten, receives_always, receives_never,
    receives_but_the_last,
]


def _spans(op, change):
    """The op with other parts of the dim that members hold, or want, in parts."""
    bounds = {name: getattr(op.kind, name, ()) for name in ("have", "want")}
    said = {name: tuple(span and change(*span, d) for d, span in enumerate(spans))
            for name, spans in bounds.items() if spans}
    return with_attrs(op, **said)


def parts_later(op, program):
    return _spans(op, lambda low, high, d: (low + 1, high + 1))


def parts_even(op, program):
    """They begin as if all of them were equal."""
    n, k = _size(op, program), program.mesh.position(op.kind.axes)

    def even(low, high, d):
        whole = max((v.type.shape[d] for v in (*op.operands, op.result)),
                    key=lambda e: e.evaluate({s.name: 2 for s in e.symbols()}))
        return k * (whole // n), k * (whole // n) + high - low

    return _spans(op, even)


def parts_all_first(op, program):
    return _spans(op, lambda low, high, d: (const(0), high - low))


def parts_of_the_next(op, program):
    own = program.mesh.axis(op.kind.axes[-1])
    after = {own.coord_sym: (own.coord + 1) % own.size}
    return _spans(op, lambda low, high, d: (low.subst(after), high.subst(after)))


def parts_of_the_other_dim(op, program):
    return with_attrs(op, **{name: getattr(op.kind, name)[::-1] for name in ("have", "want")
                             if getattr(op.kind, name, ())})


def parts_exchanged(op, program):
    return with_attrs(op, have=op.kind.want, want=op.kind.have)


PARTS = [parts_later, parts_even, parts_all_first, parts_of_the_next, parts_of_the_other_dim]


def root_forgotten(op, program):
    """Return the op as if all members gave what only the root gives."""
    return None if op.kind.called == "reduce_to" else with_attrs(op, root=None, flow="all")


def root_beyond(op, program):
    return with_attrs(op, root=_size(op, program))


def root_before(op, program):
    return with_attrs(op, root=const(-1))


def root_own(op, program):
    return with_attrs(op, root=program.mesh.position(op.kind.axes))


ROOT = [root_beyond, root_before, root_own, root_forgotten]


def axes_unknown(op, program):
    return with_attrs(op, axes=("z",))


def axes_twice(op, program):
    return with_attrs(op, axes=op.kind.axes * 2)


def axes_other(op, program):
    """Along the other axis of the mesh; what is one for all may be reduced along any."""
    combines = op.kind.called in ("all_reduce", "reduce_to", "scan")
    if len(program.mesh.axes) < 2 or len(op.kind.axes) > 1 or combines:
        return None
    return with_attrs(op, axes=tuple(a for a in program.mesh.names if a != op.kind.axes[0]))


def dropped(op, program):
    return [] if op.results else None


def _parted(op, program, on, operands=(), before=()):
    """The op in one arm of a branch, zeros in the other."""
    inner = tuple(Value(v.name, v.type) for v in op.results)
    zeros = [
        Op(Full(0, v.type.dtype, v.type.shape), (), (Value("zeros", v.type),)) for v in op.results
    ]
    arms = (
        Region((), tuple(zeros), tuple(z.result for z in zeros)),
        Region((), (replace(op, results=inner),), inner),
    )
    branch = Branch(on, tuple(v.type for v in op.results))
    return [*before, Op(branch, tuple(operands), op.results, arms, op.place)]


def _own(op, program):
    return program.mesh.axis(op.kind.axes[0]).coord


def into_a_branch_on_the_index(op, program):
    return _parted(op, program, expr.eq(_own(op, program), 0))


def into_a_branch_on_varying_data(op, program):
    index, flag = Value("index", ArrayType(INT64, ())), Value("flag", ArrayType(BOOL, ()))
    before = [
        Op(Symbolic(_own(op, program), INT64), (), (index,)),
        Op(Map("cast", BOOL), (index,), (flag,)),
    ]
    return _parted(op, program, None, (flag,), before)


def _looped(op, start, stop):
    """The op in a loop that carries its results."""
    zeros = [
        Op(Full(0, v.type.dtype, v.type.shape), (), (Value("zeros", v.type),)) for v in op.results
    ]
    args = tuple(Value(v.name, v.type) for v in op.results)
    inner = tuple(Value(v.name, v.type) for v in op.results)
    counter = expr.Sym("again", "counter", start, stop - 1)
    what = Loop(counter, start, stop, const(1))
    body = Region(args, (replace(op, results=inner),), inner)
    loop = Op(what, tuple(z.result for z in zeros), op.results, (body,), op.place)
    return [*zeros, loop]


def into_a_loop_whose_count_varies(op, program):
    return _looped(op, const(0), _own(op, program))


def into_a_loop_whose_start_varies(op, program):
    return _looped(op, _own(op, program), _own(op, program) + 2)


EXCHANGE = [
    axes_unknown, axes_twice, axes_other, dropped, into_a_branch_on_the_index,
    into_a_branch_on_varying_data, into_a_loop_whose_count_varies, into_a_loop_whose_start_varies,
]


def _box(op, program):
    """Whether one rank alone has an element of the box, and knows so without counters."""
    part = (op.operands[1] if op.kind.name == "update" else op.result).type.shape
    extents = (*part, *op.operands[0].type.shape, *map(expr.as_expr, op.kind.start))
    alone = {s.name: v for a in program.mesh.axes for s, v in ((a.size_sym, 1), (a.coord_sym, 0))}
    if not {s.name for e in extents for s in e.symbols()} <= alone.keys():
        return None
    whole, part = ([e.evaluate(alone) for e in s] for s in (op.operands[0].type.shape, part))
    return (whole, part) if all(part) else None


def start_beyond(op, program):
    start = (op.operands[0].type.shape[0], *op.kind.start[1:])
    return _box(op, program) and with_attrs(op, start=start)


def start_one_too_far(op, program):
    part = (op.operands[1] if op.kind.name == "update" else op.result).type.shape
    far = op.operands[0].type.shape[-1] - (part[-1] - 1) * abs(op.kind.step[-1])
    return _box(op, program) and with_attrs(op, start=(*op.kind.start[:-1], far))


def start_negative(op, program):
    return _box(op, program) and with_attrs(op, start=(const(-1), *op.kind.start[1:]))


def start_by_the_index(op, program):
    """Beyond the end on some ranks only."""
    first = op.kind.start[0] + program.mesh.axes[0].coord * op.operands[0].type.shape[0]
    return _box(op, program) and with_attrs(op, start=(first, *op.kind.start[1:]))


def step_doubled(op, program):
    if not (box := _box(op, program)) or not any(2 * (m - 1) >= e for e, m in zip(*box)):
        return None
    return with_attrs(op, step=tuple(2 * s for s in op.kind.step))


BOX = [start_beyond, start_one_too_far, start_negative, start_by_the_index, step_doubled]

FITS = {
    "permute": PERMUTE + EXCHANGE,
    "all_reduce": EXCHANGE,
    "all_gather": [*PARTS, parts_exchanged, *EXCHANGE],
    "all_to_all": [*PARTS, parts_exchanged, *EXCHANGE],
    "reduce_scatter": PARTS + EXCHANGE,
    "broadcast_from": EXCHANGE + ROOT,
    "gather_to": [*PARTS, parts_exchanged, *EXCHANGE, *ROOT],
    "scatter_from": [*PARTS, parts_exchanged, *EXCHANGE, *ROOT],
    "reduce_to": EXCHANGE + ROOT,
    "scan": EXCHANGE,
    "slice": BOX,
    "update": BOX,
}
MUTATIONS = {m.__name__: m for group in FITS.values() for m in group}


def mutants(program, mutation):
    for op in walk(program.body):
        if mutation in FITS.get(op.kind.called, ()):
            new = mutation(op, program)
            if new is not None and new is not False:  # [] drops the op
                yield op, rewritten(program, op, new)


CASES = [
    (name, mutation) for name in PROGRAMS for mutation, function in MUTATIONS.items()
    if any(True for _ in mutants(program_of(name), function))
]


def survivors(broken):
    """Places of the mutants that no check notices."""
    out = []
    for op, program in broken:
        try:
            checked(program)
        except (MatchingError, InternalError, LayoutError):
            continue
        out.append(f"{op.kind.called} at {op.place}: {op.kind.attributes()}")
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_programs_pass(name):
    assert checked(program_of(name)).conditions == program_of(name).conditions


def test_every_mutation_fits_some_program():
    assert {m for _, m in CASES} == set(MUTATIONS)


@pytest.mark.parametrize(("name", "mutation"), CASES, ids=[f"{n}-{m}" for n, m in CASES])
def test_noticed(name, mutation):
    assert survivors(mutants(program_of(name), MUTATIONS[mutation])) == []


# ---- mutations of more than one op --------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("by", [1, -1, None], ids=["longer", "shorter", "as_sent"])
def test_extents_of_what_is_received(name, by):
    """Told to all its users, so that only the senders' extents can tell."""
    program = program_of(name)
    for op in walk(program.body):
        if not isinstance(op.kind, Exchange) or not op.results or not op.result.type.ndim:
            continue
        for d, extent in enumerate(op.result.type.shape):
            other = op.operands[0].type.shape[d] if by is None else extent + by
            if op.kind.called == "all_reduce" or other == extent:
                continue
            new = with_extent(op, d, other)
            broken = renamed(rewritten(program, op, [new]), op.result, new.result)
            with pytest.raises((MatchingError, InternalError, LayoutError)):
                check_matching(broken)


def test_a_condition_that_is_no_longer_reduced():
    program = program_of("settle")
    reductions = [op for op in walk(program.body) if op.kind.called == "all_reduce"]
    deciding = [op for op in reductions if op.kind.fn in ("max", "or")]
    assert len(deciding) == 3
    for op in deciding:
        broken = renamed(program, op.result, op.operands[0])
        with pytest.raises(MatchingError, match="inside a (loop|branch)"):
            check_uniform(rewritten(broken, op, []) if op in program.body.ops else broken)


def test_a_branch_on_data_becomes_one_on_the_index():
    program = program_of("settle")
    (branch,) = [op for op in walk(program.body) if op.kind.name == "branch"]
    on = program.mesh.axes[0].coord
    new = replace(branch, operands=(), kind=branch.kind.but(on=on))
    with pytest.raises(MatchingError, match="inside a branch"):
        checked(rewritten(program, branch, [new]))


def test_the_bounds_of_a_loop_differ_between_ranks():
    program = program_of("ring_allreduce")
    loops = [op for op in walk(program.body) if op.kind.name == "loop"]
    for loop in loops:
        for name in ("start", "stop", "step"):
            value = expr.as_expr(getattr(loop.kind, name)) + program.mesh.axes[0].coord
            new = replace(loop, kind=loop.kind.but(**{name: value}))
            with pytest.raises(MatchingError, match="inside a loop"):
                check_uniform(rewritten(program, loop, [new]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_layouts_and_shapes_at_the_edges(name):
    program = program_of(name)
    out = program.outputs[0]
    for layout in (out.layout[::-1], ((),) * len(out.layout)):
        if layout == out.layout or (name == "transposed" and any(layout)):
            continue  # a square mesh may be turned over
        with pytest.raises(LayoutError, match="balanced blocks"):
            check_matching(replace(program, outputs=(replace(out, layout=layout),)))
    longer = replace(out, shape=(out.shape[0] + 1, *out.shape[1:]))
    with pytest.raises(LayoutError, match="balanced blocks"):
        check_matching(replace(program, outputs=(longer,)))
    for i in program.inputs:
        longer = replace(i, shape=(i.shape[0] + 1, *i.shape[1:]))
        with pytest.raises(LayoutError, match="balanced blocks"):
            check_matching(replace(program, inputs=(longer,)))

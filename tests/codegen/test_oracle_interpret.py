"""The interpreter on modules built by hand: control, exchange, shards and errors."""

import numpy as np
import pytest

from codegen import dtypes, mesh, ops
from codegen.errors import InputError, InternalError, MatchingError, MeshError, Place, UsageError
from codegen.ir.graph import ArrayType, Condition, Input, Module, Op, Output, Region, Scalar, Value
from codegen.mesh import Axis, Mesh
from codegen.oracle.interpret import run
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym, const, symbol

RING = Mesh((Axis("r"),))
GRID = Mesh((Axis("x"), Axis("y")))
F64, I64, BOOL = dtypes.FLOAT64, dtypes.INT64, dtypes.BOOL


class Build:
    """Appends ops to a list; `region` closes it."""

    def __init__(self):
        self.ops = []

    def __call__(self, kind, *operands, regions=(), line=0, **attrs):
        what = ops.OPS[kind](**attrs)
        types = what.infer([v.type for v in operands])
        results = tuple(Value(kind, t) for t in types)
        place = Place("prog.py", line) if line else None
        self.ops.append(Op(what, operands, results, tuple(regions), place))
        return results[0] if len(results) == 1 else results

    def region(self, *results, args=()):
        return Region(tuple(args), tuple(self.ops), results)


def shape(*extents):
    return tuple(expr.as_expr(e) for e in extents)


def program(make, mesh_=RING, extent=7, layout=(("r",),), out_layout=None, out_shape=None, **more):
    """A Program over one input u[extent]; make(build, u) gives the output's value."""
    whole = shape(extent)
    local = tuple(mesh.local_extent(mesh_, e, axes) for e, axes in zip(whole, layout))
    u = Value("u", ArrayType(F64, local))
    b = Build()
    out = make(b, u)
    outputs = (
        Output(
            "out",
            out,
            layout if out_layout is None else out_layout,
            whole if out_shape is None else shape(*out_shape),
        ),
    )
    return Module(
        "p",
        "program",
        mesh_,
        (),
        more.pop("scalars", ()),
        (Input(u, layout, whole),),
        b.region(out),
        outputs,
        **more,
    )


def shift_attrs(mesh_, axes, by, extent, solved=None):
    """A permute by `by` along axes, of a dim of this extent that is split over them."""
    n = mesh_.size(axes)
    m = Sym("m", "var", const(0), n - 1)
    source = (symbol(m) - by) % n
    at = mesh_.coordinates(axes, (mesh_.position(axes) - by) % n)
    local = mesh.local_extent(mesh_, extent, axes).subst(at)
    return {
        "axes": axes,
        "var": m,
        "to": (symbol(m) + by) % n,
        "sends": const(1),
        "source": source if solved is None else solved,
        "receives": const(1),
        "types": (ArrayType(F64, (local,)),),
    }


def test_map_of_shards_is_map_of_the_whole():
    module = program(lambda b, u: b("map", u, u, fn="add"))
    u = np.arange(7.0)
    for n in range(1, 10):
        np.testing.assert_array_equal(run(module, {"r": n}, {"u": u})["out"], u + u)


@pytest.mark.parametrize("n", range(1, 10))
def test_shift_moves_whole_blocks(n):
    def make(b, u):
        got = b("permute", u, **shift_attrs(RING, ("r",), 1, 7))
        n, k = RING.size(("r",)), RING.position(("r",))
        last = mesh.block_extent(7, n, n - 1)
        first = expr.select(expr.ge(k, 1), mesh.block_offset(7, n, k - 1) + last, 0)
        have = ((first, first + got.type.shape[0]),)
        return b("move", got, axes=("r",), have=have, types=(ArrayType(F64, shape(7)),))

    module = program(make, out_layout=((),))
    blocks = np.array_split(np.arange(7.0), n)
    expected = np.concatenate(blocks[-1:] + blocks[:-1])
    np.testing.assert_array_equal(run(module, {"r": n}, {"u": np.arange(7.0)})["out"], expected)


def test_a_wrong_inverse_is_seen():
    m = Sym("m")
    attrs = shift_attrs(RING, ("r",), 1, 9, solved=(symbol(m) + 1) % RING.size(("r",)))
    module = program(lambda b, u: b("permute", u, **attrs), extent=9)
    with pytest.raises(InternalError, match="source of member 0 is 1, and it receives from 2"):
        run(module, {"r": 3}, {"u": np.zeros(9)})


def test_permute_that_collides_names_both():
    attrs = dict(shift_attrs(RING, ("r",), 1, 8), to=symbol(Sym("m")) // 2)
    module = program(lambda b, u: b("permute", u, **attrs), extent=8)
    with pytest.raises(MatchingError, match="with 4 ranks, ranks 0 and 1 both send to 0"):
        run(module, {"r": 4}, {"u": np.zeros(8)})


def test_ranks_that_receive_nothing_get_zeros():
    m = symbol(Sym("m"))
    n = RING.size(("r",))
    attrs = dict(
        shift_attrs(RING, ("r",), 0, 8),
        to=m + 1,
        sends=expr.lt(m, n - 1),
        source=m - 1,
        receives=expr.ge(m, 1),
    )
    module = program(lambda b, u: b("permute", u, **attrs), extent=8)
    out = run(module, {"r": 4}, {"u": np.arange(1.0, 9.0)})["out"]
    np.testing.assert_array_equal(out, [0, 0, 1, 2, 3, 4, 5, 6])


def test_groups_along_one_axis_of_two():
    module = program(
        lambda b, u: b("fold", u, axes=("y",), fn="add"),
        GRID,
        extent=4,
        layout=(("x",),),
        out_layout=(("x",),),
    )
    out = run(module, {"x": 2, "y": 3}, {"u": np.arange(4.0)})["out"]
    np.testing.assert_array_equal(out, 3 * np.arange(4.0))


def test_axes_in_another_order_number_the_members_otherwise():
    def make(b, u):
        at = b("expr", value=GRID.position(("x", "y")), dtype=F64)
        own, k = b("broadcast", at, dims=(), shape=shape(1)), GRID.position(("y", "x"))
        types = (ArrayType(F64, shape(6)),)
        return b("move", own, axes=("y", "x"), have=((k, k + 1),), types=types)

    module = program(make, GRID, extent=4, layout=((),), out_layout=((),), out_shape=(6,))
    out = run(module, {"x": 2, "y": 3}, {"u": np.zeros(4)})["out"]
    np.testing.assert_array_equal(out, [0, 3, 1, 4, 2, 5])


def block(extent):
    """The elements of this rank's block along the ring."""
    first = mesh.local_offset(RING, extent, ("r",))
    return first, first + mesh.local_extent(RING, extent, ("r",))


def test_all_to_all_moves_a_split():
    def make(b, u):
        rows = b("reshape", u, shape=(*shape(1), *u.type.shape))
        whole = b("broadcast", rows, dims=(0, 1), shape=(*shape(5), *u.type.shape))
        mine = mesh.local_extent(RING, 5, ("r",))
        have, want = (None, block(7)), (block(5), None)
        types = (ArrayType(F64, (mine, const(7))),)
        return b("move", whole, axes=("r",), have=have, want=want, types=types)

    module = program(make, out_layout=(("r",), ()), out_shape=(5, 7))
    for ranks in (1, 2, 3, 6, 9):
        out = run(module, {"r": ranks}, {"u": np.arange(7.0)})["out"]
        np.testing.assert_array_equal(out, np.broadcast_to(np.arange(7.0), (5, 7)))


@pytest.mark.parametrize("wrong", [
    lambda low, high: (low + 1, high + 1), lambda low, high: (const(0), high - low),
], ids=["beside", "twice"])
def test_parts_that_do_not_make_up_the_whole_are_seen(wrong):
    types = (ArrayType(F64, shape(7)),)
    module = program(lambda b, u: b("move", u, axes=("r",), have=(wrong(*block(7)),), types=types),
                     out_layout=((),))
    with pytest.raises(InternalError, match="all_gather: of what member 0 gets, no member or seve"):
        run(module, {"r": 3}, {"u": np.zeros(7)})


def test_reduce_scatter_keeps_balanced_blocks():
    def make(b, u):
        return b("fold", u, axes=("r",), fn="max", want=(block(7),))

    module = program(make, layout=((),), out_layout=(("r",),))
    out = run(module, {"r": 3}, {"u": np.arange(7.0)})["out"]
    np.testing.assert_array_equal(out, np.arange(7.0))


def test_loops_count_and_conditions_end_them():
    counter = Sym("i", "counter")
    steps = Scalar("steps", I64, 3, Sym("steps", "scalar"))

    def make(b, u):
        arg, inner = Value("a", u.type), Build()
        by = inner("expr", value=symbol(counter), dtype=F64)
        grown = inner("map", arg, inner("broadcast", by, dims=(), shape=u.type.shape), fn="add")
        return b(
            "loop",
            u,
            counter=counter,
            start=const(1),
            stop=symbol(steps.sym) + 1,
            step=1,
            regions=(inner.region(grown, args=(arg,)),),
        )

    module = program(make, scalars=(steps,))
    u = np.zeros(7)
    assert run(module, {"r": 2}, {"u": u})["out"][0] == 1 + 2 + 3
    assert run(module, {"r": 2}, {"u": u}, {"steps": 10})["out"][-1] == 55
    assert run(module, {"r": 2}, {"u": u}, {"steps": -5})["out"][3] == 0
    with pytest.raises(UsageError, match="no scalar step"):
        run(module, {"r": 2}, {"u": u}, {"step": 1})


def test_while_on_data():
    def make(b, u):
        args = [Value("a", u.type)]
        test = Build()
        biggest = test("reduce", args[0], fn="max", dims=(0,))
        below = test(
            "map",
            test("fold", biggest, axes=("r",), fn="max"),
            test("full", value=100.0, dtype=F64, shape=()),
            fn="lt",
        )
        inner = Build()
        twice = inner("map", args[0], args[0], fn="add")
        return b(
            "loop",
            u,
            counter=None,
            start=const(0),
            stop=None,
            step=1,
            regions=(test.region(below, args=args), inner.region(twice, args=args)),
        )

    out = run(program(make), {"r": 3}, {"u": np.arange(7.0)})["out"]
    np.testing.assert_array_equal(out, 32 * np.arange(7.0))


def test_branch_on_the_index_and_on_data():
    def make(b, u):
        arms = []
        for fn in ("neg", "square"):
            arm = Build()
            arms.append(arm.region(arm("map", u, fn=fn)))
        on = expr.symbol(RING.axis("r").coord_sym) % 2
        first = b("branch", on=on, types=(u.type,), regions=arms)
        flag = b("full", value=True, dtype=BOOL, shape=())
        keep, drop = Build(), Build()
        return b(
            "branch",
            flag,
            on=None,
            types=(u.type,),
            regions=(drop.region(drop("map", first, fn="neg")), keep.region(first)),
        )

    out = run(program(make, extent=4), {"r": 4}, {"u": np.arange(4.0)})["out"]
    np.testing.assert_array_equal(out, [-0.0, 1, -2, 9])


def test_ranks_at_different_exchanges_are_named():
    def make(b, u):
        total = b("reduce", u, fn="add", dims=(0,))
        arms = []
        for line, fn in ((11, "add"), (13, "max")):
            arm = Build()
            arms.append(arm.region(arm("fold", total, axes=("r",), fn=fn, line=line)))
        on = expr.symbol(RING.axis("r").coord_sym) % 2
        return b("branch", on=on, types=(total.type,), regions=arms)

    module = program(make, out_layout=(), out_shape=())
    with pytest.raises(
        MatchingError,
        match=r"rank 0 waits in all_reduce at prog.py:11, and rank 1 "
        r"waits in all_reduce at prog.py:13",
    ):
        run(module, {"r": 2}, {"u": np.zeros(7)})


def test_a_rank_that_ended_is_named():
    def make(b, u):
        total = b("reduce", u, fn="add", dims=(0,))
        arm, other = Build(), Build()
        arms = (arm.region(total), other.region(other("fold", total, axes=("r",), fn="add")))
        on = expr.symbol(RING.axis("r").coord_sym)
        return b("branch", on=on, types=(total.type,), regions=arms)

    with pytest.raises(MatchingError, match="rank 1 waits in all_reduce .* rank 0 has ended"):
        run(program(make, out_layout=(), out_shape=()), {"r": 2}, {"u": np.zeros(7)})


def test_replicas_must_agree():
    module = program(lambda b, u: b("reduce", u, fn="add", dims=(0,)), out_layout=(), out_shape=())
    with pytest.raises(MatchingError, match="differs between ranks 0 and 1"):
        run(module, {"r": 2}, {"u": np.arange(7.0)})


def test_a_stated_type_that_is_not_computed_is_an_error_with_a_place():
    def make(b, u):
        out = b("map", u, u, fn="add", line=5)
        wrong = Value("w", ArrayType(F64, shape(3)))
        b.ops[-1] = Op(ops.Map("add"), (u, u), (wrong,), (), Place("prog.py", 5))
        return out if False else wrong

    with pytest.raises(InternalError, match=r"prog.py:5: map gives another type than it states"):
        run(program(make), {"r": 2}, {"u": np.arange(7.0)})


def test_a_slice_beyond_the_end_is_an_error():
    def make(b, u):
        return b("slice", u, start=shape(1), step=(1,), shape=u.type.shape)

    with pytest.raises(InternalError, match="dim 0 is read or written from 1 to 4"):
        run(program(make), {"r": 2}, {"u": np.arange(7.0)})


def test_a_graph_cuts_and_joins_as_array_split_does():
    whole = ArrayType(F64, shape(7), (("x", "y"),))
    u = Value("u", whole)
    local = Value("row", ArrayType(F64, (mesh.local_extent(GRID, 7, ("x", "y")),)))
    inner, outer = Build(), Build()
    offset = inner("expr", value=mesh.local_offset(GRID, 7, ("x", "y")), dtype=F64)
    result = inner(
        "map", local, inner("broadcast", offset, dims=(), shape=local.type.shape), fn="add"
    )
    out = outer(
        "shard_map",
        u,
        in_layouts=((("x", "y"),),),
        out_layouts=((("x", "y"),),),
        types=(whole,),
        regions=(inner.region(result, args=(local,)),),
    )
    default = Build()
    iota = default("iota", dim=0, dtype=F64, shape=local.type.shape)
    module = Module(
        "g",
        "graph",
        GRID,
        (),
        (),
        (Input(u, whole.layout, whole.shape, default.region(iota)),),
        outer.region(out),
        (Output("out", out, whole.layout, whole.shape),),
        conditions=(Condition(expr.eq(GRID.size(("x",)), GRID.size(("y",))), "x and y are equal"),),
    )
    for n in (1, 2, 3):
        parts = np.array_split(np.arange(7.0), n * n)
        offsets = np.cumsum([0] + [len(p) for p in parts])
        given = np.concatenate([p + o for p, o in zip(parts, offsets)])
        sizes = {"x": n, "y": n}
        np.testing.assert_array_equal(run(module, sizes, {"u": np.arange(7.0)})["out"], given)
        own = np.concatenate([np.arange(len(p)) + o for p, o in zip(parts, offsets)])
        np.testing.assert_array_equal(run(module, sizes)["out"], own)
    with pytest.raises(MeshError, match="x and y are equal"):
        run(module, {"x": 2, "y": 1})
    with pytest.raises(InputError, match="another shape"):
        run(module, {"x": 1, "y": 1}, {"u": np.zeros(8)})


def test_prints_come_from_index_0_or_from_every_rank():
    def make(b, u):
        index = b("expr", value=RING.position(("r",)), dtype=I64)
        b("print", index, parts=("at ", "02d", "!"), every_rank=False)
        b("print", index, parts=("at ", "", ""), every_rank=True)
        return u

    lines: list[str] = []
    run(program(make), {"r": 2}, {"u": np.zeros(7)}, prints=lines)
    assert sorted(lines) == ["at 00!", "rank 0: at 0", "rank 1: at 1"]

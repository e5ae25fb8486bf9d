"""np.linalg in images: NumPy's results for every element type, on whole and on split matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.errors import CheckError, UnsupportedError
from codegen.explain.traffic import Meter
from codegen.ir.graph import walk
from codegen.ir.plan import LibraryCall, Phase
from codegen.layouts.partition import partition
from codegen.ops import Exchange, spectra
from codegen.oracle import interpret
from codegen.target import TARGET
from codegen.trace import blocked_linalg, namespace

KINDS = ("float32", "float64", "complex64", "complex128")
_DRAW = np.random.default_rng(5)


def drawn(kind: str, *shape: int) -> Any:
    x = _DRAW.normal(size=shape)
    return (x + 1j * _DRAW.normal(size=shape) if kind[0] == "c" else x).astype(kind)


def factors(a: Any, b: Any, tall: Any) -> dict[str, Any]:
    """Return factorisations of square a and tall matrices, without the signs and orders in which
    versions of LAPACK differ. `b` holds right sides."""
    spd = a @ a.swapaxes(-1, -2).conj() + np.eye(a.shape[-1], dtype=a.dtype)
    q, r = np.linalg.qr(tall)
    u, s, v = np.linalg.svd(tall, full_matrices=False)
    w, vectors = np.linalg.eigh(spd)
    e, right = np.linalg.eig(a)
    return {
        "solve": np.linalg.solve(a, b), "lower": np.linalg.cholesky(spd), "q": q, "r": r, "s": s,
        "svd": (u * s[..., None, :]) @ v, "w": w, "e": (e * e).sum(-1),
        "eigh": (vectors * w[..., None, :]) @ vectors.swapaxes(-1, -2).conj(),
        "eig": a @ right - right * e[..., None, :],
    }


def others(a: Any, tall: Any, m: Any, c: Any) -> dict[str, Any]:
    wide, least = np.linalg.svd(tall.swapaxes(-1, -2)), np.linalg.lstsq(m, c)
    full = np.linalg.qr(tall, "complete").Q
    sign, logarithm = np.linalg.slogdet(a)
    both = a + a.swapaxes(-1, -2)
    low = np.tril(both - 2 * np.eye(a.shape[-1]))  # the triangle that counts
    u, s, v = np.linalg.svd(low, hermitian=True)
    place = np.arange(36).reshape(6, 6)
    far, lost = np.where(place == 0, np.inf, a), np.where(place == 35, np.nan, a)
    return {
        "inv": np.linalg.inv(a), "gram": np.linalg.cholesky(m.T @ m), "wide": wide.S,
        "only_r": np.linalg.qr(tall, "r"),
        "all": abs(wide.U[..., 0]), "full": abs(full[..., :1]),
        "eigvalsh": np.linalg.eigvalsh(a, "U"), "eigvals": np.linalg.eigvals(a).sum(-1),
        "det": np.linalg.det(a), "sign": sign, "log": logarithm, "pinv": np.linalg.pinv(tall),
        "far": np.linalg.det(far), "lost": np.linalg.slogdet(lost).sign,
        "pinvh": np.linalg.pinv(low, hermitian=True), "svdh": (u * s[..., None, :]) @ v, "sh": s,
        "rankh": np.linalg.matrix_rank(low * (np.arange(6) > 0), hermitian=True),
        "valuesh": np.linalg.svd(low, compute_uv=False, hermitian=True),
        "x": least[0], "residues": least[1], "rank": least[2], "values": least[3],
    }


SPLIT = ("float64", "complex64")


@spmd.program(mesh=("r",))
def every() -> Any:
    out: dict[str, Any] = {}
    for kind in KINDS:
        n, axis = (4, "r") if kind in SPLIT else (1, None)
        a, b, tall = (spmd.input(f"{name}_{kind}", (n, *shape), kind, layout=(axis, None, None))
                      for name, shape in SHAPES.items())
        out |= {f"{name}_{kind}": x for name, x in factors(a, b, tall).items()}
        if kind == "float64":
            first, last = a, tall
    m = spmd.input("m", (7, 4), np.float64, layout=("r", None))
    c = spmd.input("c", (7,), np.float64, layout=("r",))
    return out | others(first, last, m, c)


SHAPES = {"a": (6, 6), "b": (6, 2), "t": (9, 5)}


@pytest.mark.filterwarnings("ignore:invalid value encountered in slogdet")
def test_every_function_on_every_kind() -> None:
    arrays = {f"{name}_{kind}": drawn(kind, 4 if kind in SPLIT else 1, *shape)
              for kind in KINDS for name, shape in SHAPES.items()}
    arrays |= {"m": drawn("float64", 7, 4), "c": drawn("float64", 7)}
    wanted: dict[str, Any] = {}
    for kind in KINDS:
        made = factors(*(arrays[f"{name}_{kind}"] for name in SHAPES))
        wanted |= {f"{name}_{kind}": x for name, x in made.items()}
    wanted |= others(arrays["a_float64"], arrays["t_float64"], arrays["m"], arrays["c"])
    image = spmd.build(every)
    for ranks in (1, 2, 3, 5):
        found = image.run(ranks=ranks, **arrays)
        assert found.keys() == wanted.keys()
        for name, x in wanted.items():
            got, x = np.asarray(found[name]), np.asarray(x)
            assert (got.dtype, got.shape) == (x.dtype, x.shape), name
            close = 2e-3 if x.dtype in (np.float32, np.complex64) else 1e-9
            where = f"{name} on {ranks} ranks"
            np.testing.assert_allclose(got, x, rtol=close, atol=close, err_msg=where)
    for name, wrong, text in FAILURES:
        with pytest.raises(CheckError, match=text):
            image.run(ranks=3, **arrays | {name: wrong * np.ones_like(arrays[name])})


# What makes a run end, with which message: a batch of matrices of which one fails.
FAILURES = (
    ("a_float64", np.arange(4).reshape(4, 1, 1), r"solve: the matrix is singular \(matrix \([0-3]"),
    ("m", 0.0, r"cholesky: the matrix is not positive definite[^$]*try: .*np\.eye"),
    ("t_float32", np.nan, "svd did not converge[^$]*expected: a matrix of finite numbers"),
)


# ---- what LAPACK counts with C's int -------------------------------------------------------------


def factored(function: Callable[[Any], Any], *shape: int, layout: Any = (None, None)) -> Any:
    @spmd.program(mesh=("r",))
    def program() -> Any:
        return function(spmd.input("x", shape, np.float64, layout=layout))

    return program


@pytest.mark.parametrize(("function", "shape", "most"), [
    (np.linalg.qr, (1_000_000, 4), 16),
    (np.linalg.qr, (4, 1_000_000), 4_000_000),
    (np.linalg.svdvals, (23_000, 23_000), 5_000_000),
    (np.linalg.eigvalsh, (40_000, 40_000), 3_000_000),
    (np.linalg.eigh, (32_000, 32_000), (1 << 31) - 1),
])
def test_workspace_is_what_lapack_needs(function: Any, shape: tuple[int, int], most: int) -> None:
    plan = lower(factored(function, *shape).capture()).plan
    (work,) = (b.capacity for b in plan.buffers if b.name.endswith("_work"))
    assert 0 < work.value <= most
    assert not plan.conditions


def test_numbers_that_are_no_ints_of_c() -> None:
    for function, *shape in ((np.linalg.svd, 24_000, 24_000), (np.linalg.eigh, 33_000, 33_000),
                             (lambda x: x.T @ x, 3_000_000_000, 20)):
        with pytest.raises(UnsupportedError, match="expected: at most 2147483647") as refused:
            lower(factored(function, *shape).capture())
        assert refused.value.place is not None
    rows = factored(lambda x: np.linalg.qr(x, "raw")[1][0], 20, 3_000_000_000, layout=("r", None))
    with pytest.raises(UnsupportedError, match="dgeqrf"):
        lower(rows.capture())
    split = factored(lambda x: x.T @ x, 3_000_000_000, 20, layout=("r", None))
    conditions = lower(split.capture()).plan.conditions
    assert [c.holds.evaluate({"n_r": n}) for c in conditions[:1] for n in (1, 2)] == [0, 1]
    assert 'ceil(3000000000 / axis_size("r")) < 2147483648' in conditions[0].text


def test_what_lapack_does_not_take_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "TARGET", replace(TARGET, lapack_block=0))  # no workspace
    image = spmd.build(factored(lambda x: np.linalg.qr(x).R, 5, 3))
    with pytest.raises(CheckError, match="geqrf or orgqr does not take .*: it returned -8"):
        image.run(x=drawn("float64", 5, 3))


# ---- split matrices ------------------------------------------------------------------------------


@spmd.program(mesh=("r", "s"))
def blocks(n: int = 17) -> Any:
    """Matrices of a few blocks, the last one not full, split by rows or by columns."""
    a = spmd.input("a", (n, n), np.float64, layout=("r", None))
    b = spmd.input("b", (n, 3), np.float64, layout=("r", None))
    z = spmd.input("z", (n, n), np.complex128, layout=("r", None))
    tall = spmd.input("tall", (47, 5), np.float64, layout=("r", None))
    long = spmd.input("long", (47, 4), np.complex128, layout=("s", None))
    gram, hermitian = a @ a.T + n * np.eye(n), z @ z.conj().T + np.eye(n)
    total = np.zeros((n, 3))
    for k in spmd.range(2):
        total += np.linalg.solve(a + k * np.eye(n), b)
    q, r = np.linalg.qr(long)
    wide = spmd.input("wide", (9, 22), np.float64, layout=(None, "r"))
    low = spmd.input("low", (19, 11), np.float64, layout=("r", None))  # of rank 7
    full, z_full, low_full = np.linalg.qr(wide, "complete"), np.linalg.qr(z), np.linalg.qr(low)
    sign, size = np.linalg.slogdet(z)
    u, s, v = np.linalg.svd(tall, full_matrices=False)
    return {
        "lower": np.linalg.cholesky(np.tril(gram) - np.maximum(a[0, 0] - 50, 0) * np.eye(n)),
        "upper": np.linalg.cholesky(hermitian, upper=True),
        "solve": total, "vector": np.linalg.solve(z.T, z[0]), "r": np.linalg.qr(tall, "r"),
        "det": np.linalg.det(a), "sign": sign, "log": size, "zero": np.linalg.det(a * 0),
        "complex": q, "corner": r, "u": abs(u), "svd": (u * s) @ v,
        "wide_q": full.Q, "wide_r": full.R, "z_q": z_full.Q, "z_r": z_full.R,
        "low_r": np.linalg.qr(low, "r"), "low": low_full.Q @ low_full.R,
        "unit": low_full.Q.T @ low_full.Q, "square": np.linalg.qr(low, "complete").Q[:, :7],
    }


def test_split_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block, with pivots, and with the signs that LAPACK gives the whole matrix, also of
    more columns than rows, and where columns depend on others; no rank gets a whole one."""
    monkeypatch.setattr(blocked_linalg, "BLOCK", 4)
    monkeypatch.setattr(blocked_linalg, "LEAST", 2)
    arrays = {"a": drawn("float64", 17, 17), "b": drawn("float64", 17, 3),
              "z": drawn("complex128", 17, 17), "tall": drawn("float64", 47, 5),
              "long": drawn("complex128", 47, 4), "wide": drawn("float64", 9, 22),
              "low": drawn("float64", 19, 11)}
    arrays["low"][:, 7:] = arrays["low"][:, :4] @ drawn("float64", 4, 4)
    wanted, image = blocks.eager(**arrays), spmd.build(blocks)
    for ranks, mesh in ((1, None), (2, None), (3, None), (5, None), (6, {"r": 2, "s": 3})):
        found = image.run(ranks=ranks, mesh=mesh, **arrays)
        for name, x in wanted.items():
            where = f"{name} on {ranks} ranks"
            np.testing.assert_allclose(found[name], x, rtol=1e-9, atol=1e-9, err_msg=where)
    with pytest.raises(CheckError, match="np.linalg.solve: the matrix is singular"):
        image.run(ranks=2, **arrays | {"a": np.zeros((17, 17))})
    with pytest.raises(CheckError, match="np.linalg.cholesky: the matrix is not positive definite"):
        first = np.arange(289).reshape(17, 17) == 0
        image.run(ranks=3, **arrays | {"a": np.where(first, 1e6, arrays["a"])})
    lowered = partition(blocks.capture())
    meter = Meter(lowered.mesh)
    for op in walk(lowered.body):
        text = op.place.source_line() if op.place else ""
        if not isinstance(op.kind, Exchange) or "linalg" not in text:
            continue
        if (traffic := meter.of(op)).gathered:
            assert traffic.result.evaluate({"n_r": 4, "n_s": 1}) < 17 * 17 * 8, text


def test_a_split_cholesky_copies_no_panel() -> None:
    """Triangles are solved with where their right sides lie, and no rank has half of the matrix."""
    plan = lower(factored(np.linalg.cholesky, 4096, 4096, layout=("r", None)).capture()).plan
    assert not [b.name for b in plan.buffers if b.name.startswith(("triangular", "slice"))]
    assert sum(b.capacity.evaluate({"n_r": 64}) for b in plan.buffers) < 4096 * 4096 // 4


IN_PARTS = {  # beside functions of one matrix
    "solve": lambda x: np.linalg.solve(x, x[0]), "lstsq": lambda x: np.linalg.lstsq(x, x[:, 0]),
    "tensorsolve": lambda x: np.linalg.tensorsolve(x, x[0]),
    "tensorinv": lambda x: np.linalg.tensorinv(x, 1),
    "svd": lambda x: np.linalg.svd(x, full_matrices=False),
    "qr": lambda x: (*np.linalg.qr(x, "complete"), *np.linalg.qr(x)),
}


def test_the_table_says_what_stays_in_parts() -> None:
    found = {s.name.partition(".")[2]: s.note for s in namespace.states() if "in parts" in s.note}
    assert {"cholesky", "det", "inv", "svd"} < found.keys() and "eig" not in found
    assert found["inv"].startswith("of a matrix, in parts from 1,024 rows on; else every rank")
    for name, note in found.items():
        shape = (1024, 1024) if "1,024 rows" in note else (40, 5)

        @spmd.program(mesh=("r",))
        def program(name: str = name, shape: tuple[int, int] = shape) -> Any:
            x = spmd.input("x", shape, np.float64, layout=("r", None))
            return IN_PARTS.get(name, getattr(np.linalg, name))(x)

        lowered = partition(program.capture())
        meter, (rows, columns) = Meter(lowered.mesh), shape
        for op in walk(lowered.body):
            if not isinstance(op.kind, Exchange) or not op.results:
                continue
            traffic = meter.of(op)
            if rows < 1024 and traffic.gathered:
                assert traffic.result.evaluate({"n_r": 4}) < rows * columns * 8, (name, op.place)
            for ranks in (4, 64) if rows >= 1024 else ():
                most = (rows // ranks + 2 * blocked_linalg.BLOCK) * columns * 8
                assert traffic.result.evaluate({"n_r": ranks}) <= most, (name, ranks, op)


@spmd.program(mesh=("r",))
def edges() -> Any:
    """Matrices without rows, batches without matrices, and extents that ranks know only."""
    a = spmd.input("a", (12, 3), np.float64, layout=("r", None))
    none, flat = np.zeros((0, 0)) * a[0, 0], a[:0] * 1
    batch = a[:9].reshape(3, 3, 3)[:0] + np.eye(3)

    def own(part: Any) -> Any:
        w, v = np.linalg.eigh(spmd.psum(part.T @ part, "r") + np.eye(3))
        return (v * w) @ v.T, spmd.psum(np.linalg.pinv(part) @ part, "r")

    gram, inner = spmd.shard_map(own, mesh="r", out_layouts=((None, None), (None, None)))(a)
    return {
        "gram": gram, "inner": inner[:0], "det": np.linalg.det(none), "inv": np.linalg.inv(batch),
        "eigh": np.linalg.eigh(batch).eigenvalues, "solve": np.linalg.solve(none, flat),
        "complete": np.linalg.qr(flat.T, "complete").Q, "values": np.linalg.svdvals(flat),
        "sides": np.linalg.solve(a[:3], a[:3, :0]), "dets": np.linalg.det(np.stack([a[:3] * 0])),
    }


def test_empty_matrices_and_extents_of_one_rank() -> None:
    a = drawn("float64", 12, 3)
    graph, wanted = edges.capture(), edges.eager(a=a)
    lowered = partition(graph)
    for ranks in (1, 2, 4):
        found = interpret.run(lowered, {"r": ranks}, {"a": a})
        for name, x in wanted.items():
            assert np.shape(found[name]) == np.shape(x), name
            np.testing.assert_allclose(found[name], x, rtol=1e-9, atol=1e-9, err_msg=name)


def test_products_of_any_extents():
    """By loops or by a library, in turns of four terms and those that are left; of a matrix by its
    own transpose, half; and where an axis splits rows and sums, so that the least is moved."""
    draw = np.random.default_rng(5)
    given = {f"{name}{k}": draw.integers(-9, 9, shape).astype(dtype)
             for k in (1, 4, 5, 6, 13) for name, shape, dtype in (
                 ("a", (7, k), np.float64), ("b", (k, 3), np.float64), ("v", (k,), np.float64),
                 ("i", (2, 4, k), np.int8), ("j", (k, 33), np.int8))}
    for name, *shape in (("g", 70, 5), ("h", 5, 70), ("z", 19, 23), ("y", 23), ("x", 19)):
        given[name] = draw.integers(-9, 9, shape) + 1j * draw.integers(-9, 9, shape)
    for name, shape in (("s", (2, 64)), ("w", (64, 40))):
        given[name] = draw.integers(-9, 9, shape).astype(np.float64)

    def products(x):
        return {f"{what}{k}": made for k in (1, 4, 5, 6, 13) for what, made in (
            ("ab", x[f"a{k}"] @ x[f"b{k}"]), ("av", x[f"a{k}"] @ x[f"v{k}"]),
            ("vb", x[f"v{k}"] @ x[f"b{k}"]), ("aa", x[f"a{k}"].T @ x[f"a{k}"]),
            ("bv", x[f"b{k}"].T @ x[f"v{k}"]), ("ij", x[f"i{k}"] @ x[f"j{k}"]))} | {
            "gg": x["g"].T @ x["g"], "hh": x["h"] @ x["h"].T, "real": x["h"].real @ x["h"].real.T,
            "part": (x["h"] @ x["h"].T)[1:3, 2:4], "zy": x["z"] @ x["y"], "xz": x["x"] @ x["z"],
            "zx": x["z"].T @ x["x"], "yz": x["y"] @ x["z"].T, "none": x["z"][:, :0] @ x["y"][:0],
            "sw": x["s"] @ x["w"]}

    @spmd.program(mesh=("r",))
    def program():
        split = {"a": ("r", None), "b": (None, "r"), "v": ("r",), "i": (None, "r", None),
                 "j": (None, "r")}
        return products({n: spmd.input(n, x.shape, x.dtype,
                                       layout=split.get(n[0], ("r", None)[: x.ndim]))
                         for n, x in given.items()})

    image, want = spmd.build(program), products(given)
    for ranks in (1, 2, 3, 5):
        out = image.run(ranks=ranks, **given)
        for name, value in want.items():
            np.testing.assert_array_equal(out[name], value, err_msg=f"{name} on {ranks} ranks")
    assert "all-gather along dim 0 of w," not in str(image.layouts(ranks=3)), "sums are fewer"


def test_outer_products_of_columns_that_are_split() -> None:
    """The dim that is summed over has one element, of one rank: the distance of the rows in memory
    is then anything, also less than BLAS takes."""
    layouts = [(None, None, None), (None, None, "x"), (None, "x", None), ("x", None, None)]
    rng = np.random.default_rng(3)
    given = {f"a{k}": rng.normal(size=(2, 12, 1)) for k in range(len(layouts))}

    @spmd.program(mesh=("x",))
    def outer():
        some = [spmd.input(f"a{k}", (2, 12, 1), np.float64, layout=layout)
                for k, layout in enumerate(layouts)]
        return {f"{j}{k}": a @ b.transpose(0, 2, 1)
                for j, a in enumerate(some) for k, b in enumerate(some)}

    image = spmd.build(outer)
    for ranks in (1, 3):
        for name, found in image.run(ranks=ranks, **given).items():
            a, b = (given[f"a{k}"] for k in name)
            np.testing.assert_allclose(found, a @ b.transpose(0, 2, 1), err_msg=name)


def test_threads_multiply_transposed_matrices_of_other_sizes_at_once() -> None:
    """A kernel of OpenBLAS gave one the other's distance of rows, in one call of a hundred."""
    draw = np.random.default_rng(6)
    given = {f"{name}{k}": draw.integers(-9, 9, shape).astype(np.float32)
             for k in (0, 13, 600) for name, shape in (("a", (k, 9)), ("b", (27, k)))}

    def products(x):
        more = {"sum": x["a600"][:, :5].T @ x["b600"].T}
        more["sum"] -= x["a13"][:, 4:].T @ x["b13"].T
        return {str(k): x[f"a{k}"].T @ x[f"b{k}"].T for k in (0, 13, 600)} | more

    @spmd.program(mesh=("r",))
    def program():
        return products({n: spmd.input(n, x.shape, x.dtype, layout=("r", None) if n[0] == "b"
                                       else (None, None)) for n, x in given.items()})

    want = products(given)
    with spmd.build(program).open(ranks=2) as job:
        for _ in range(500):
            for name, value in job(**given).items():
                np.testing.assert_array_equal(value, want[name], err_msg=name)


def test_batches_of_products_by_one_matrix_are_one_product() -> None:
    """Along the dims of a batch that lie next to the rows, whichever operand has them; nothing is
    repeated in memory."""
    draw = np.random.default_rng(7)
    shapes = {"a": (6, 7, 20), "t": (6, 7, 20), "b": (5, 4, 3, 20), "c": (20, 16), "d": (13, 20)}
    given = {n: draw.integers(-9, 9, shape) * 1.0 for n, shape in shapes.items()}
    given["z"] = given["a"] + 1j * given["t"]

    def products(a, t, b, c, d, z):
        one = {"row": a[:, :, None] @ c, "column": d @ a[..., None], "t": t[..., None, :] @ c,
               "rows": b @ c, "turned": b @ d.T, "z": d @ z[..., None], "zc": z[:, :, None] @ c,
               "einsum": np.einsum("rqp,ps->rqs", a, c), "dot": np.dot(t, c),
               "tensordot": np.tensordot(b, c, 1)}
        return {**one, "some": a[:, 1:5, None] @ c, "steps": b[:, ::2] @ c, "back": b[::-1] @ c,
                "swapped": a.transpose(1, 0, 2)[:, :, None] @ c, "first": d @ b.swapaxes(-1, -2),
                "each": a[:, :, None] @ t[..., None], "outer": a[..., None] @ c[:1],
                "repeated": np.broadcast_to(c[None, :, :1], (3, 20, 16)) @ np.ones((16, 20))}

    def some(wanted: slice) -> Any:
        @spmd.program(mesh=("r",))
        def program() -> Any:
            split = {"a": ("r", None, None), "t": (None, "r", None), "b": (None, "r", None, None),
                     "c": ("r", None), "z": ("r", None, None)}
            made = products(**{n: spmd.input(n, x.shape, x.dtype, layout=split.get(n))
                               for n, x in given.items()})
            return dict(list(made.items())[wanted])
        return program

    image, want = spmd.build(some(slice(None))), products(**given)
    for ranks in (1, 2, 3, 5):
        out = image.run(ranks=ranks, **given)
        for name, value in want.items():
            np.testing.assert_array_equal(out[name], value, err_msg=f"{name} on {ranks} ranks")
    plan = lower(some(slice(10)).capture()).plan
    calls = [w for step in plan.steps if isinstance(step, Phase) for w in step.work
             if isinstance(w, LibraryCall)]
    assert len(calls) == 10 and not any(w.loops for w in calls)


def test_rows_have_the_same_bits_on_any_number_of_ranks() -> None:
    """A matrix-vector product's rows have the same bits in the unrolled loop and in its
    remainder."""
    draw = np.random.default_rng(8)
    given = {n: draw.normal(size=shape) for n, shape in (
        ("a", (31, 2100)), ("b", (29, 37)), ("x", (2100,)), ("y", (37,)), ("v", (31,)))}
    given["z"] = given["a"] + 1j * given["a"][::-1]

    def products(a, b, x, y, v, z):
        rows = {"ax": a @ x, "by": b @ y, "zx": z @ x, "sum": v + a @ x}
        return {**rows, "va": v @ a, "axa": (a @ x) @ a, "yb": (b @ y) @ b, "zxz": (z @ x) @ z}

    @spmd.program(mesh=("r",))
    def program() -> Any:
        return products(**{n: spmd.input(n, x.shape, x.dtype, layout=("r", None)[: x.ndim])
                           for n, x in given.items()})

    image, want, first = spmd.build(program), products(**given), dict[str, Any]()
    for ranks in (1, 2, 3, 5):
        out = image.run(ranks=ranks, **given)
        first = first or out
        for name, value in want.items():
            np.testing.assert_allclose(out[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
        for name in ("ax", "by", "zx", "sum"):
            np.testing.assert_array_equal(out[name], first[name], err_msg=f"{name} on {ranks}")


def test_products_that_are_added_where_they_are_wanted() -> None:
    """One call of the library each; what it reads of the array that it adds to stands elsewhere, or
    is copied before."""
    draw = np.random.default_rng(3)
    given = {"w": draw.integers(-9, 9, (64, 40)) * 1.0, "v": draw.integers(-9, 9, (20, 20)) * 1.0}

    def sums(w, v):
        a, b, c, d = w * 1, w * 1, w * 1, w * 1
        a[:, 20:] -= a[:, :20] @ v  # beside what is written
        a[:, :20] += v[:1] - a[:, 20:] @ v
        b[:, 5:25] -= b[:, 4:24] @ v  # in part what is written
        c[40:, 3:23] += c[10:34, :20] @ v  # before it
        c[::-1][:30, :20] -= w[:30, :20] @ v
        d[::2, :20] -= w[::2, :20] @ v
        e = 2 * w[:, :20] + w[:, 20:] @ v
        return {"a": a, "b": b, "c": c, "d": d, "e": e, "f": w[:, :20] @ v - d[:, :20],
                "g": abs(w[:, :20] @ v + 1), **more(w, v)}

    def more(w, v):
        a, b = w * 1, w[:, 20:] @ v
        a[:, :20] -= w[:, :20] @ v  # a sum is no product: a + w
        twice, kept = w[:, 10:30] @ v, w[:, 5:25] @ v
        return {"a2": a + w, "b2": b + b, "c2": twice * twice + twice, "d2": kept, "e2": kept - w[
            :, :20], "f2": w[:, :20] @ v + w[:, 20:] @ v, "g2": w[:, 1:21] @ v - b @ v + w[0, 0]}

    @spmd.program(mesh=("r",))
    def program():
        return sums(spmd.input("w", (64, 40), np.float64, layout=("r", None)),
                    spmd.input("v", (20, 20), np.float64))

    image, want = spmd.build(program), sums(**given)
    for ranks in (1, 2, 3, 5):
        out = image.run(ranks=ranks, **given)
        for name, value in want.items():
            np.testing.assert_array_equal(out[name], value, err_msg=f"{name} on {ranks} ranks")
    plan = lower(program.capture()).plan
    calls = [w for step in plan.steps if isinstance(step, Phase) for w in step.work
             if isinstance(w, LibraryCall)]
    assert [int(w.numbers[-1].value) for w in calls].count(0) == 6, "c backwards, f and g, 4 more"

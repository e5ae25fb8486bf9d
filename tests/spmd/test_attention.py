"""Attention beside NumPy and JAX: values and gradients, in one piece, in blocks and around a ring;
what ranks exchange for it; memory; a cache of keys and values."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.errors import ShapeError
from codegen.ir.graph import walk
from codegen.layouts.partition import partition
from codegen.ops import Exchange
from codegen.oracle import interpret
from spmd import nn
from spmd.nn import attention_blocks, attention_heads
from tests.spmd import attentions
from tests.spmd.attentions import plain, slopes

# mypy: ignore-errors

pytestmark = pytest.mark.one_mpi

RNG = np.random.default_rng(0)


def close(found: Any, wanted: Any, what: str = "", rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(found, wanted, rtol, rtol, err_msg=what)


def arrays(batch: int, length: int, positions: int, heads: int, shared: int) -> list[Any]:
    """Query, key, value whose size is another, and a cotangent of what comes out."""
    shapes = ((length, heads, 2), (positions, shared, 2), (positions, shared, 3),
              (length, heads, 3))
    return [RNG.normal(size=(batch, *shape)) for shape in shapes]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of two positions."""
    monkeypatch.setattr(attention_blocks, "LEAST", 2)
    monkeypatch.setattr(attention_blocks, "MOST", 2)
    monkeypatch.setattr(attention_blocks, "UNKNOWN", 2)
    monkeypatch.setattr(attention_heads, "FEW", 0)


def exchanges(program: Any) -> Counter[Any]:
    ops = walk(partition(program.capture()).body)
    return Counter((op.kind.called, "".join(op.kind.axes)) for op in ops
                   if isinstance(op.kind, Exchange))


# ---- values and gradients ------------------------------------------------------------------------


def test_values_and_gradients_are_jax_s():
    """In one piece, examples and heads split: nothing is exchanged where each head has its keys."""
    golden = json.loads(attentions.GOLDEN.read_text())

    @spmd.program(mesh=("x", "y"))
    def all_of_them():
        out = {}
        for name in attentions.CASES:
            (*given, g), how = attentions.arrays(name)
            given = [spmd.input(f"{name}_{n}", x.shape, np.float64, default=x, layout=(
                "x", None, "y" if x.shape[2] > 1 else None, None)) for n, x in zip("qkv", given)]
            y, back = spmd.vjp(lambda *given, how=how: nn.attention(*given, **how), *given)
            out[name] = (y, *back(spmd.asarray(g, layout=("x", None, "y", None))))
        return out

    image = spmd.build(all_of_them)
    assert {kind for kind, _ in exchanges(all_of_them)} == {"all_reduce"}  # of keys that all share
    for mesh in ({"x": 1, "y": 1}, {"x": 2, "y": 2}, {"x": 3, "y": 1}):
        for name, found in image.run(mesh=mesh).items():
            (*given, g), how = attentions.arrays(name)
            wanted = (plain(*given, **how), *slopes(*given, g, **how)[:3])
            for got, mine, theirs in zip(found, wanted, golden[name], strict=True):
                close(got, mine, name)
                close(np.ravel(got), theirs, name, 1e-6)  # float32 inside


def split(**arrays: Any) -> Any:
    """Return a program of attention and its gradients, all dims split, with a bias or a mask."""
    lie = ("x", "y", "z", None)
    positions, shared = (2, 2) if "mask" in arrays else (7, 4)

    @spmd.program(mesh=("x", "y", "z"))
    def attended():
        shapes = (7, 4, 2), (positions, shared, 2), (positions, shared, 3), (7, 4, 3)
        q, k, v, g = (spmd.input(n, (2, *shape), np.float64, layout=lie)
                      for n, shape in zip("qkvg", shapes))
        if "mask" in arrays:
            mask = spmd.input("mask", (2, 1, 7, 2), np.bool_)
            y, back = spmd.vjp(lambda q, k, v: nn.attention(q, k, v, mask=mask), q, k, v)
        else:
            bias = spmd.input("bias", (4, 7, 7), np.float64, layout=("z", "y", None))
            y, back = spmd.vjp(lambda q, k, v, b: nn.attention(q, k, v, causal=True, bias=b),
                               q, k, v, bias)
        return (y, *back(g))

    return attended


def test_a_split_length_goes_around_a_ring(small_blocks):
    """Keys and values once around; back with their cotangents, which go home; and the sum of the
    bias's over examples."""
    given, bias = arrays(2, 7, 7, 4, 4), RNG.normal(size=(4, 7, 7))
    *wanted, last = slopes(*given, causal=True, bias=bias)
    wanted = [plain(*given[:3], causal=True, bias=bias), *wanted, last.sum(0)]
    program = split(bias=bias)
    image = spmd.build(program)
    for sizes in ((1, 1, 1), (1, 3, 1), (2, 2, 3), (1, 9, 1)):
        found = image.run(mesh=dict(zip("xyz", sizes)), bias=bias, **dict(zip("qkvg", given)))
        for x, part in zip(found, wanted, strict=True):
            close(x, part, str(sizes))
    assert exchanges(program) == {("permute", "y"): 8, ("all_reduce", "x"): 1}


def test_fewer_keys_than_ranks_of_which_some_queries_see_none(small_blocks):
    """Two heads share the keys of one."""
    given, mask = arrays(2, 7, 2, 4, 2), RNG.random((2, 1, 7, 2)) < 0.5
    mask[0, 0, 3] = False
    wanted = (plain(*given[:3], mask=mask), *slopes(*given, mask=mask)[:3])
    graph, inputs = split(mask=mask).capture(), dict(zip("qkvg", given), mask=mask)
    for sizes in ((1, 3, 1), (2, 4, 2)):
        found = interpret.run(graph, dict(zip("xyz", sizes)), inputs).values()
        for x, part in zip(found, wanted, strict=True):
            close(x, part, str(sizes))


def test_blocks_of_what_is_not_split(small_blocks):
    """Heads that share keys; only the gradient of a bias that examples share is exchanged, once."""
    given, bias = arrays(2, 5, 7, 4, 2), RNG.normal(size=(4, 1, 7))
    for layout, wanted in ((None, {}), ("x", {("all_reduce", "x"): 1})):
        @spmd.program(mesh=("x",))
        def blocks(layout=layout):
            lie = (layout, None, None, None)
            q, k, v, g = (spmd.input(n, x.shape, np.float64, layout=lie)
                          for n, x in zip("qkvg", given))
            b = spmd.input("b", bias.shape, np.float64, layout=spmd.replicated)
            attend = lambda q, k, v, b: nn.attention(q, k, v, causal=True, bias=b)
            y, back = spmd.vjp(attend, q, k, v, b)
            return (y, *back(g))

        assert exchanges(blocks) == wanted
        inputs = dict(zip("qkvgb", (*given, bias)))
        found = interpret.run(blocks.capture(), {"x": 2}, inputs)
        expected = slopes(*given, causal=True, bias=bias)
        expected[-1] = expected[-1].sum((0, 2))[:, None]
        for got, part in zip(found.values(), (plain(*given[:3], causal=True, bias=bias), *expected),
                             strict=True):
            close(got, part)


@pytest.mark.parametrize("layouts", [
    ((None, "x", None, None), (None, None, None, None)),
    ((None, None, "x", None), (None, None, None, None)),
    ((None, None, None, None), (None, "x", None, None)),
], ids=["queries", "heads that share keys", "keys"])
def test_what_is_split_of_one_side_alone(small_blocks, layouts):
    """Long causal attention works if queries or keys alone are split; keys' gradients are
    summed."""
    given = arrays(1, 7, 5, 4, 1)

    @spmd.program(mesh=("x",))
    def attend():
        of_q, of_k = layouts
        q, k, v, g = (spmd.input(n, x.shape, np.float64, layout=lie)
                      for n, x, lie in zip("qkvg", given, (of_q, of_k, of_k, of_q)))
        y, back = spmd.vjp(lambda q, k, v: nn.attention(q, k, v, causal=True), q, k, v)
        return (y, *back(g))

    wanted = (plain(*given[:3], causal=True), *slopes(*given, causal=True)[:3])
    graph, inputs = attend.capture(), dict(zip("qkvg", given))
    for ranks in (1, 3):
        found = interpret.run(graph, {"x": ranks}, inputs)
        for got, part in zip(found.values(), wanted, strict=True):
            close(got, part, str(ranks))


def test_a_full_cache_is_no_cache():
    x = np.ones((1, 2, 1, 1))
    cache = {"key": np.ones((1, 3, 1, 1)), "value": np.ones((1, 3, 1, 1))}
    for at in (0, 1):
        nn.attention_with_cache(x, x, x, cache, at)
    with pytest.raises(ShapeError, match="the cache is full"):
        nn.attention_with_cache(x, x, x, cache, 2)

    @spmd.program(mesh=("x",))
    def steps():
        until, one = spmd.scalar("until", 3), spmd.ones((1, 1, 1, 1))
        cache = nn.attention_cache(1, 3, 1, 1, np.float64)
        for k in spmd.range(until):
            made, cache = nn.attention_with_cache(one, one, one, cache, k)
        return cache["key"]

    image = spmd.build(steps)
    assert image.run(ranks=2).all()
    with pytest.raises(spmd.CheckError, match="the cache is full[^$]*1 new after 3"):
        image.run(ranks=2, until=4)


def test_one_rank_s_view_and_eager_runs(small_blocks):
    given = arrays(1, 5, 4, 2, 2)

    @spmd.program(mesh=("x",))
    def ring(gradients: bool = True):
        lie = (None, "x", None, None)
        q, k, v, g = (spmd.input(n, x.shape, np.float64, layout=lie)
                      for n, x in zip("qkvg", given))

        @spmd.shard_map(out_layouts=(lie,) * (4 if gradients else 1))
        def attend(q, k, v, g):
            f = lambda q, k, v: nn.attention(q, k, v, causal=True, ranks="x")
            if not gradients:
                return (f(q, k, v),)
            y, back = spmd.vjp(f, q, k, v)
            return (y, *back(g))

        return attend(q, k, v, g)

    wanted = (plain(*given[:3], causal=True), *slopes(*given, causal=True)[:3])
    inputs = dict(zip("qkvg", given))
    for ranks in (2, 5):
        found = interpret.run(ring.capture(), {"x": ranks}, inputs).values()
        for got, part in zip(found, wanted, strict=True):
            close(got, part)
    close(ring.eager(gradients=False, mesh={"x": 3}, **inputs)[0], wanted[0])


def test_second_derivatives(small_blocks):
    """Second derivatives of attention in blocks equal those of attention in one piece."""
    q, k, v, _ = arrays(1, 3, 3, 1, 1)

    @spmd.program(mesh=("x",))
    def curvature(size: int = 2):
        attention_blocks.LEAST = size  # put back by the fixture
        x, key, value = (spmd.input(n, a.shape, np.float64) for n, a in zip("qkv", (q, k, v)))

        def f(x, key, value):
            return np.sum(np.sin(nn.attention(x, key, value, causal=True)))

        g = spmd.grad(f, argnums=(0, 1, 2))
        return spmd.jvp(g, (x, key, value), (value[..., :2], x, np.sin(value)))[1]

    inputs = dict(zip("qkv", (q, k, v)))
    found = [interpret.run(curvature.capture(size=size), {"x": 1}, inputs) for size in (2, 64)]
    for in_blocks, at_once in zip(*(f.values() for f in found), strict=True):
        assert np.max(np.abs(at_once)) > 0.01
        close(in_blocks, at_once)


def test_queries_that_see_nothing_get_zeros(small_blocks):
    """And so do gradients, whether a mask or a bias hides all positions."""
    *given, g = arrays(1, 3, 4, 1, 1)
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]], bool)
    wanted = (plain(*given, mask=mask), *slopes(*given, g, mask=mask)[:3])

    @spmd.program(mesh=("x",))
    def hidden(size: int = 2):
        attention_blocks.LEAST = size  # put back by the fixture
        q, k, v = (spmd.input(n, x.shape, np.float64) for n, x in zip("qkv", given))
        out = []
        for how in ({"mask": mask}, {"bias": np.where(mask, 0, -np.inf)}):
            y, back = spmd.vjp(lambda q, k, v, how=how: nn.attention(q, k, v, **how), q, k, v)
            out += [y, *back(g)]
        return tuple(out)

    for size in (2, 64):
        found = interpret.run(hidden.capture(size=size), {"x": 1}, dict(zip("qkv", given)))
        for got, part in zip(found.values(), wanted * 2, strict=True):
            close(got, part)


def test_short_floats_are_summed_as_float32():
    x = np.full((1, 3000, 1, 1), 0.1)

    @spmd.program(mesh=("x",))
    def ones(dtype: str = "float16"):
        given = spmd.input("x", x.shape, dtype)
        return nn.attention(given, given, spmd.ones(x.shape, dtype))

    for dtype in ("float16", "bfloat16"):
        made = interpret.run(ones.capture(dtype=dtype), {"x": 1}, {"x": x})
        (made,) = made.values()
        assert str(made.dtype) == dtype and np.all(made == 1)


# ---- memory, mistakes ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [None, "x"])
def test_memory_grows_as_the_length(layout):
    @spmd.program(mesh=("x",))
    def gradient(length: int = 1024):
        q, k, v = (spmd.input(n, (1, length, 4, 8), np.float32, layout=(None, layout, None, None))
                   for n in "qkv")
        return spmd.grad(lambda *a: np.sum(nn.attention(*a, causal=True) ** 2), (0, 1, 2))(q, k, v)

    def elements(length: int, ranks: int) -> int:
        plan = lower(gradient.graph({"length": length}, ())).plan
        return sum(b.capacity.evaluate({"n_x": ranks}) for b in plan.buffers)

    ranks = 2 if layout else 1
    assert elements(4096, ranks) < 2 * elements(2048, ranks) < 2048 * 2048


X = np.ones((2, 3, 4, 8))


@pytest.mark.parametrize(
    "given, options, error, text",
    [
        ((X[0, 0], X, X), {}, spmd.ShapeError, "query has 2 dims"),
        ((X, X[0], X), {}, spmd.ShapeError, "key has 3 dims"),
        ((X, X[..., :4], X), {}, spmd.ShapeError, "the size of key does not fit that of query"),
        ((X, X, X[:, :2]), {}, spmd.ShapeError, "the length of value does not fit that of key"),
        ((X, X[:1], X[:1]), {}, spmd.ShapeError, "dim 0 of key does not fit that of query"),
        ((X, X[:, :, :3], X[:, :, :3]), {}, spmd.ShapeError, "divides 4"),
        ((X, X, X), {"mask": np.ones((3, 3))}, spmd.DtypeError, "mask != 0"),
        ((X, X, X), {"mask": np.ones((2, 3, 3), bool)}, spmd.ShapeError, "does not broadcast"),
        ((X.astype(int), X, X), {}, spmd.DtypeError, "attention of int64"),
        ((X, X, X), {"ranks": "x"}, spmd.ProgramError, "outside"),
    ],
)
def test_mistakes(given, options, error, text):
    with pytest.raises(error, match=text):
        nn.attention(*given, **options)


def test_a_rank_does_not_know_how_its_heads_share_keys():
    @spmd.program(mesh=("x",))
    def attended():
        lie = (None, None, "x", None)
        q, k = (spmd.input(n, (1, 3, heads, 2), np.float64, layout=lie)
                for n, heads in (("q", 4), ("k", 2)))
        return spmd.shard_map(lambda q, k: nn.attention(q, k, k), out_layouts=lie)(q, k)

    with pytest.raises(spmd.ShapeError, match=r"np\.repeat\(key"):
        attended.capture()


# ---- rotary positions ----------------------------------------------------------------------------


def turned(x: np.ndarray, positions: np.ndarray, interleaved: bool) -> np.ndarray:
    """Pairs as complex numbers."""
    half = x.shape[-1] // 2
    turns = np.exp(1j * positions[..., None] * 100.0 ** (-np.arange(half) / half))[..., None, :]
    pairs = x[..., 0::2] + 1j * x[..., 1::2] if interleaved else x[..., :half] + 1j * x[..., half:]
    made = pairs * turns
    parts = [made.real, made.imag]
    return np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)


def test_rotary_positions():
    x, places = RNG.normal(size=(2, 5, 3, 6)), RNG.integers(0, 50, (2, 5))

    @spmd.program(mesh=("x",))
    def both():
        given = spmd.input("x", x.shape, np.float64, layout=(None, "x", None, None))
        at = spmd.input("places", places.shape, np.int64)
        f = lambda x: np.sum(nn.rotary(x, base=100.0) * given)
        return (nn.rotary(given, base=100.0), nn.rotary(given, at, 100.0, interleaved=True),
                spmd.grad(f)(given))

    back = turned(x, -np.arange(5), False)
    for found in (both.eager(x=x, places=places)[:2], interpret.run(
            both.capture(), {"x": 3}, {"x": x, "places": places}).values()):
        for got, wanted in zip(found, (turned(x, np.arange(5), False), turned(x, places, True),
                                       back)):
            close(got, wanted)
    q, k = nn.rotary(x, np.arange(5) + 7), nn.rotary(x, np.arange(5) + 9)
    far = nn.rotary(x, np.arange(5) + 102)
    near = np.einsum("blhd,blhd->blh", q, k)
    close(np.einsum("blhd,blhd->blh", nn.rotary(x, np.arange(5) + 100), far), near)
    with pytest.raises(spmd.ShapeError, match="an even size"):
        nn.rotary(x[..., :5])

    @spmd.program(mesh=("x",))
    def part():
        lie = (None, "x", None, None)
        given = spmd.input("x", x.shape, np.float64, layout=lie)
        return spmd.shard_map(nn.rotary, out_layouts=lie)(given)

    with pytest.raises(spmd.UsageError, match="needs its positions"):
        part.capture()


# ---- a cache of keys and values ------------------------------------------------------------------

VOCABULARY, HEADS, SIZE, STEPS = 5, 4, 2, 4


def network(w: Any, x: Any, attend: Any) -> Any:
    """Return the logits of a network of one attention layer."""
    q, k, v = (np.einsum("...lc,chd->...lhd", x, w[n]) for n in ("q", "k", "v"))
    return (x + np.einsum("...lhd,hdc->...lc", attend(q, k, v), w["o"])) @ w["table"].T


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = dict.fromkeys("qkv", (6, HEADS, SIZE)) | {"o": (HEADS, SIZE, 6)}
    return {n: rng.normal(size=s) for n, s in (shapes | {"table": (VOCABULARY, 6)}).items()}


def full(w: Any, tokens: np.ndarray) -> np.ndarray:
    causal = lambda q, k, v: plain(q, k, v, causal=True)
    return network(w, w["table"][tokens], causal)


@spmd.program(mesh=("x",), layout={"heads": "x"})
def decoding():
    """Logits of given tokens, two of them at once first; tokens that are drawn; beams."""
    heads = spmd.Dim("heads", HEADS)
    shapes = {n: spmd.spec((6, heads, SIZE), np.float64) for n in "qkv"}
    w = spmd.input("w", shapes | {"o": spmd.spec((heads, SIZE, 6), np.float64),
                                  "table": spmd.spec((VOCABULARY, 6), np.float64)})
    tokens = spmd.input("tokens", (2, 6), np.int32)

    def step(at: Any, tokens: Any, cache: Any) -> Any:
        """Return the logits after new tokens (…, new), and the extended cache."""
        kept = []

        def attend(q, k, v):
            made, now = nn.attention_with_cache(q, k, v, cache, at)
            kept.append(now)
            return made

        return network(w, w["table"][tokens], attend), kept[0]

    cache = nn.attention_cache(2, 7, heads, SIZE, np.float64)
    logits = spmd.zeros((2, 6, VOCABULARY))
    logits[:, :2], cache = step(0, tokens[:, :2], cache)
    for k in spmd.range(2, 6):
        logits[:, k : k + 1], cache = step(k, tokens[:, k : k + 1], cache)

    drawn, last = spmd.zeros((2, STEPS), np.int64), tokens[:, 0].astype(np.int64)
    cache = nn.attention_cache(2, STEPS, heads, SIZE, np.float64)
    for k in spmd.range(STEPS):
        following, cache = step(k, last[:, None], cache)
        last = nn.sample(3, following[:, 0], top_k=3, stream=k)
        drawn[:, k] = last

    def one(k: Any, tokens: Any, cache: Any) -> Any:
        following, cache = step(k, tokens[..., None], cache)
        return following[:, :, 0], cache

    beams = nn.attention_cache((2, 25), STEPS, heads, SIZE, np.float64)
    return logits, drawn, *nn.beam_search(one, beams, tokens[:, 0], 3, 25)


def test_a_cache_gives_what_the_whole_pass_gives():
    tokens, w = np.int32([[1, 3, 0, 4, 2, 2], [0, 0, 1, 4, 3, 1]]), weights()
    image = spmd.build(decoding)
    runs = [decoding.eager(w=w, tokens=tokens)]
    runs += [image.run(ranks=n, w=w, tokens=tokens) for n in (1, 3)]
    every = np.array(list(itertools.product(range(VOCABULARY), repeat=3)))
    for logits, drawn, found, scores in runs:
        close(logits, full(w, tokens))
        for k in range(STEPS):
            before = np.concatenate([tokens[:, :1], drawn[:, :k]], 1)
            likely = full(w, before)[:, -1]
            np.testing.assert_array_equal(nn.sample(3, likely, top_k=3, stream=k), drawn[:, k])
        for b in range(2):
            whole = np.concatenate([np.full((len(every), 1), tokens[b, 0]), every], 1)
            chances = nn.log_softmax(full(w, whole))[:, :3]
            costs = np.take_along_axis(chances, every[..., None], -1).sum((1, 2))
            best = np.argsort(costs)[::-1][:3]
            close(scores[b, :3], costs[best], rtol=1e-9)
            np.testing.assert_array_equal(found[b, :3], every[best])
    assert {kind for kind, _ in exchanges(decoding)} == {"all_reduce"}  # of what all heads give

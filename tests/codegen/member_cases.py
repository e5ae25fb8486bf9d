"""Functions of one member, a row of four floats, whose course depends on what is in it.

They stand in a module of their own, so that programs and tests can read their source.
"""

from __future__ import annotations

import numpy as np

import spmd

# mypy: ignore-errors


@spmd.kernel
def scaled(row, s, out):
    for i in range(row.shape[0]):
        out[i] = row[i] * s + row[0]


@spmd.kernel(signature="(n),()->()")
def total(row, s, out):
    out[0] = s
    for i in range(row.shape[0]):
        out[0] += row[i]


@spmd.kernel
def into(row, out):
    for i in range(row.shape[0]):
        out[i] += row[i]


@spmd.custom_vjp
def rounded(x, w):
    return np.round(x @ w)


rounded.defvjp(lambda x, w: (np.round(x @ w), (x, w)),
               lambda kept, g: (g @ kept[1].T, np.outer(kept[0], g)))


def until_ten(s):
    while np.sum(s * s) < 10:
        s = s * 2 + 0.1
    return s


def times(x):
    """Make a number of turns that the first element decides."""
    made = x * 0
    for i in spmd.range(np.floor(np.abs(x[0]) * 3).astype(int)):
        made = np.sin(made * x + i)
    return made


def left_early(x):
    if x[0] > 0:
        return x * 2
    for i in spmd.range(3):
        if x[1] > 0:
            return x + i
        x = x + 1
    return x


def broken_off(x):
    made = x * 0
    for _ in spmd.range(6):
        made = made + x
        if np.sum(made) > 3:
            break
    return made


def branches_with_loops(x):
    """A loop that would never end for those that do not come through it."""
    if x[0] > 0:
        while x[0] < 100:
            x = x * 3
    else:
        assert x[0] <= 0
        x = -x
    return x


def two_loops(x):
    count = 0
    while x[0] * x[0] < 4:
        x = x * 1.5
        inner = x[1] * 0
        while inner < 2:
            inner = inner + np.abs(x[0])
            count = count + 1
    return x, count


def kernels(x):
    table = np.ones(4)
    into(x, out=table)
    return scaled(x, x[1], out=spmd.like(x)), total(np.outer(x, x), x, out=spmd.like(x)), table


def written(x):
    k = np.floor(np.abs(x[0])).astype(int)
    made = x * 0
    made[k] += x[2]
    x[1] = 7
    made = made.at[k].max(x[3])
    box = spmd.dynamic_slice(x, (k,), (3,))
    return x, made, spmd.dynamic_update_slice(x, box[:2], (k - 1,)), x[k], made[[k, 0]]


def scanned(x):
    return spmd.scan(lambda c, r: ({"c": c["c"] + r}, c["c"] * r), {"c": x[0]}, x, reverse=True)


def drawn(x):
    seed = (np.abs(x[0]) * 1000).astype(int)
    return (spmd.random.bits(seed, 2), spmd.random.uniform(5, 3) + x[0],
            spmd.random.normal(seed, 2, stream=seed), spmd.random.randint(7, 2, 0, 9),
            spmd.random.categorical(seed, x), spmd.random.permutation(seed, x))


def kept_back(x):
    f = spmd.remat(lambda y: np.sin(spmd.checkpoint_name(y * y, "y")),
                   policy=spmd.checkpoint_policies.save_only_these_names("y"))
    return spmd.grad(lambda x: np.sum(f(f(x))))(x)


def forward_and_back(x):
    f = lambda x: np.sin(x) * x[0]
    y, back = spmd.vjp(f, x)
    return spmd.jvp(f, (x,), (x[::-1],)), y, back(x)


def matrices(x):
    a = np.outer(x, x) + 5 * np.eye(4)
    return (np.linalg.cholesky(a), np.linalg.solve(a, x), np.linalg.eigvalsh(a),
            np.linalg.det(a), np.linalg.svd(a, compute_uv=False), np.linalg.qr(a)[1] ** 2)


def taken_apart(x):
    return {"sorted": np.sort(x), "order": [np.argsort(-x), (spmd.top_k(x, 2),)],
            "fft": np.fft.rfft(x), "found": np.searchsorted(np.sort(x), x * 0.9),
            "median": np.median(x), "one": 3, "text": "as it is", "nothing": None}


ROW = np.linspace(-1, 1, 4)

CASES = {
    "arithmetic": lambda x: np.tanh(x @ np.outer(ROW, ROW)) + x.T,
    "shared only": lambda x: np.arange(3),
    "cond": lambda x: spmd.cond(x[0] > 0, lambda a: a * 2, lambda a: -a, x),
    "switch": lambda x: spmd.switch((x[0] * 3).astype(int), [
        lambda a: a * 2, lambda a: -a, lambda a: a + 1], x),
    "switch of all": lambda x: spmd.switch(spmd.scalar("way", 1), [
        lambda a: a * 2, lambda a: -a, lambda a: ROW], x),
    "fori_loop": lambda x: spmd.fori_loop(0, 4, lambda i, s: (s[0] * x + i, s[1] + 1), (x, 0)),
    "while_loop": lambda x: spmd.while_loop(
        lambda s: np.sum(s) < 10, lambda s: s * 2 + 1, np.abs(x)),
    "until_ten": until_ten, "times": times, "left_early": left_early, "broken_off": broken_off,
    "branches_with_loops": branches_with_loops, "two_loops": two_loops, "kernels": kernels,
    "written": written, "scanned": scanned, "drawn": drawn, "matrices": matrices,
    "taken_apart": taken_apart,
    "nested": lambda x: spmd.vmap(lambda a: spmd.vmap(lambda b: np.sort(a * x) * b)(x),
                                  out_axes=1)(x),
    "convolved": lambda x: spmd.nn.conv(x.reshape(1, 4, 1), x[:2].reshape(2, 1, 1)),
    "gradient": lambda x: spmd.value_and_grad(lambda x: np.sum(np.cumprod(x) * np.sort(x)))(x),
    "gradient of a while": lambda x: spmd.grad(lambda x: np.sum(np.sin(until_ten(x))))(x),
    "gradient of turns": lambda x: spmd.grad(lambda x: np.sum(times(x) * x))(x),
    "gradient of an exit": lambda x: spmd.grad(lambda x: np.sum(broken_off(x) ** 2))(x),
    "gradient of branches": lambda x: spmd.grad(lambda x: np.sum(branches_with_loops(x)))(x),
    "gradient of a scan": lambda x: spmd.grad(lambda x: np.sum(scanned(x)[1] ** 2))(x),
    "own derivative": lambda x: spmd.grad(
        lambda x: np.sum(rounded(x, np.outer(ROW, ROW) * 9) * x))(x),
    "kept_back": kept_back, "forward_and_back": forward_and_back,
    "jacobian": lambda x: spmd.jacobian(lambda x: np.cumsum(x**2) * x[0])(x),
    "hessian": lambda x: spmd.hessian(lambda x: np.sum(x**3 * x[0]))(x),
}

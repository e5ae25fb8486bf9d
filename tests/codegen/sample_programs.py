"""Small programs whose levels are looked at by several tests."""

import numpy as np

import spmd


@spmd.program(mesh=("ring",))
def ring_allreduce(count: int = 10):
    n = spmd.axis_size("ring")
    part = spmd.input(
        "part", (n, count), np.float32, layout=("ring", None), default=lambda r, c: r + c % 7
    )

    @spmd.shard_map(mesh="ring", out_layouts=("ring", None))
    def reduce(row):
        i = spmd.axis_index("ring")
        b = spmd.blocks(row[0], n)
        for s in spmd.range(n - 1):
            b[(i - s - 1) % n] += spmd.ppermute(b[(i - s) % n], "ring", shift=1)
        for s in spmd.range(n - 1):
            b[(i - s) % n] = spmd.ppermute(b[(i + 1 - s) % n], "ring", shift=1)
        return row

    return {"sum": reduce(part)}


@spmd.program(mesh=("x",))
def branches(n: int = 9):
    """A branch on the index, one on data, a while loop, a scalar, an all-reduce."""
    steps = spmd.scalar("steps", 3)
    rate = spmd.scalar("rate", 0.5)
    u = spmd.input("u", (n, 4), np.float64, layout=("x", None), default=lambda i, j: i + j / 10)

    @spmd.shard_map(out_layouts=("x", None))
    def relax(a):
        i = spmd.axis_index("x")
        for _ in spmd.range(steps):
            a = a - rate * (a - spmd.pmean(np.mean(a, axis=0), "x"))
        if i % 2 == 0:
            a[:, 0] = -1
        else:
            a[:, 0] = 1
        largest = spmd.pmax(np.max(np.abs(a), initial=0), "x")
        while largest > 1:
            largest = largest / 2
            a = a / 2
        return a

    return relax(u)


@spmd.program(mesh=("x", "y"))
def halo(n: int = 7, m: int = 5):
    """One row from above, with physical boundaries; a 2-D mesh."""
    u = spmd.input("u", (n, m), np.float32, layout=("x", "y"), default=lambda i, j: 10 * i + j)

    @spmd.shard_map(out_layouts=("x", "y"))
    def shift_down(a):
        above = spmd.ppermute(
            a[a.shape[0] - 1 :], "x", to=lambda i, k: i + 1 if i < k - 1 else None
        )
        return np.concatenate([above, a])[: a.shape[0]]

    return shift_down(u)


@spmd.program(mesh=("x",))
def in_place(n: int = 12):
    """Writes through views, values read before they are overwritten."""
    u = spmd.input("u", (n, 6), np.float64, layout=("x", None), default=lambda i, j: i * 6 + j)

    @spmd.shard_map(out_layouts=("x", None))
    def update(a):
        old = a[:, 0]
        a[:, 0] = a[:, 5]
        a[:, 5] = old
        a[:, 1:5] += a[:, 2:6]
        a.T[2] *= 2
        return a

    return update(u)


@spmd.program(mesh=("x",))
def fed(batch: int = 6):
    """A loop over a feed, a batch before it, a batch in a branch, what is sent back."""
    feed = spmd.feed(x=spmd.spec((batch, 4), np.float32),
                     mask=spmd.spec((batch,), np.bool_, layout=spmd.replicated))
    w = np.mean(feed.next().x, axis=0)
    for b in feed:
        error = b.x @ w
        if np.sum(error) > 1 and feed.more():
            w = w + feed.next().x[0]
        w = w - np.mean(np.where(b.mask, error, 0)[:, None] * b.x, axis=0)
        feed.send(error)
    return w


@spmd.program(mesh=("x",))
def fed_ranks(batch: int = 6, turns: int = 2):
    """A program from one rank's view takes batches in a loop, a field that every rank has whole,
    and sends rows back; then it takes the batches that are left."""
    train = spmd.feed("train", x=spmd.spec((batch, 4), np.float32))
    rates = spmd.feed("rates", rate=spmd.spec((1,), np.float32, layout=spmd.replicated))

    @spmd.shard_map(mesh="x", out_layouts=(spmd.replicated, ("x",)))
    def learn(w):
        for _ in spmd.range(turns):
            x = train.next().x
            error = x @ w
            w = w - rates.next().rate[0] * spmd.psum(error @ x, "x")
            train.send(error)
        return w, error

    @spmd.shard_map(mesh="x")
    def rest(w):
        for b in train:
            w = w + spmd.pmax(np.max(b.x, axis=0, initial=0), "x")
        return w

    w, error = learn(np.ones(4, np.float32))
    return rest(w), error

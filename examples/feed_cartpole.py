"""Reinforcement learning: a network learns to balance poles, which workers simulate.

Proximal policy optimization (J. Schulman and others, 2017): the program takes what sixteen carts
show, draws a push for each, sends it back, and learns from what came of 64 turns.
    python -m spmd build examples/feed_cartpole.py -o poles.img
    mpirun -n 2 python -m spmd run poles.img --feed examples/pipelines/cartpole.py
"""

from pathlib import Path

import numpy as np

import spmd
from spmd import nn, optim

PIPELINE = Path(__file__).parent / "pipelines" / "cartpole.py"
DISCOUNT, TRACE, CLIP = 0.98, 0.95, 0.2


def network(w, state):
    """Return the scores of a push to the left and to the right, and how long the pole may stand."""
    actor, critic = (np.tanh(nn.dense(state, w[k])) for k in ("actor", "critic"))
    return nn.dense(actor, w["push"]), nn.dense(critic, w["value"])[..., 0]


def likelihood(w, state, push):
    """The logarithm of how likely these pushes are, the entropy of pushes, and values."""
    scores, value = network(w, state)
    log = nn.log_softmax(scores)
    chosen = np.where(push == 1, log[..., 1], log[..., 0])
    return chosen, -np.sum(np.exp(log) * log, axis=-1), value


def loss(w, seen):
    log, entropy, value = likelihood(w, seen["state"], seen["push"])
    ratio, gain = np.exp(log - seen["log"]), seen["gain"]
    better = np.minimum(ratio * gain, np.clip(ratio, 1 - CLIP, 1 + CLIP) * gain)
    wrong = (value - seen["worth"]) ** 2
    return np.sum(seen["counts"] * (wrong / 2 - better - 0.01 * entropy)) / np.sum(seen["counts"])


@spmd.program(mesh=("data",), layout={"carts": "data"})
def train(carts: int = 16, turns: int = 64, updates: int = 25, hidden: int = 32):
    many = spmd.Dim("carts", carts)
    feed = spmd.feed(state=spmd.spec((many, 4), np.float32),
                     reward=spmd.spec((many,), np.float32),
                     begins=spmd.spec((many,), np.bool_), fell=spmd.spec((many,), np.bool_))
    w = {"actor": nn.glorot(1, (4, hidden)), "push": 0.1 * nn.glorot(2, (hidden, 2)),
         "critic": nn.glorot(3, (4, hidden)), "value": nn.glorot(4, (hidden, 1))}
    tx = optim.adam(1e-2)
    opt, losses, lengths = tx.init(w), spmd.zeros(updates, np.float32), spmd.zeros(updates)
    state = spmd.zeros((turns, many, 4), np.float32)
    reward, begins, fell, gain = (spmd.zeros((turns, many), np.float32) for _ in range(4))
    push = spmd.zeros((turns, many), np.int32)

    for u in spmd.range(updates):
        for t in spmd.range(turns):
            b = feed.next()
            push[t] = spmd.random.categorical(u * turns + t, network(w, b.state)[0])
            feed.send(push[t])
            state[t], reward[t], begins[t], fell[t] = b.state, b.reward, b.begins, b.fell

        # What comes of the push of turn t is shown at turn t + 1, unless a new episode begins then.
        log, _, value = likelihood(w, state, push)
        counts, gain[turns - 1] = 1 - begins[1:], 0
        for t in spmd.range(turns - 2, -1, -1):
            surprise = reward[t + 1] + DISCOUNT * (1 - fell[t + 1]) * value[t + 1] - value[t]
            gain[t] = counts[t] * (surprise + DISCOUNT * TRACE * gain[t + 1])
        worth, g = value + gain, gain[:-1]
        mean = np.sum(counts * g) / np.sum(counts)
        spread = np.sqrt(np.sum(counts * (g - mean) ** 2) / np.sum(counts))
        seen = {"state": state[:-1], "push": push[:-1], "log": log[:-1], "counts": counts,
                "gain": (g - mean) / (spread + 1e-6), "worth": worth[:-1]}
        for _ in spmd.range(8):
            losses[u], grads = spmd.value_and_grad(loss)(w, seen)
            changes, opt = tx.update(grads, opt, w)
            w = optim.apply_updates(w, changes)
        lengths[u] = np.sum(counts) / np.maximum(np.sum(begins[1:]), 1)
    return {"losses": losses, "lengths": lengths}


def check(ranks=(1, 3)):
    """The same losses on any number of ranks; at the end the poles stand three times as long."""
    image = spmd.build(train)
    runs = [image.run(ranks=n, feed=PIPELINE) for n in ranks]
    for out in runs:
        np.testing.assert_allclose(out["losses"][:3], runs[0]["losses"][:3], rtol=1e-3, atol=1e-5)
        assert np.mean(out["lengths"][-3:]) > 3 * out["lengths"][0]
    return runs[0]["lengths"]


if __name__ == "__main__":
    lengths = check()
    print(f"poles stand for {lengths[0]:.0f} turns at first, at last for "
          f"{np.mean(lengths[-3:]):.0f}")

"""The character model of examples/transformer.py in JAX and in PyTorch, from the same weights.

`python -m tests.spmd.character_model` trains both for 20 steps on one made-up text and writes their
losses to tests/golden/character_model.json. It needs jax, optax and torch; the tests do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

# mypy: ignore-errors

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "character_model.json"
STEPS, BATCH, LAYERS, HEADS, WIDTH, LENGTH, VOCAB = 20, 12, 4, 4, 128, 64, 65
RATE, DECAY, BETA2 = 1e-3, 0.1, 0.99


def weights(seed: int = 0) -> dict[str, Any]:
    """Under the names that the example gives them."""
    random, size = np.random.default_rng(seed), WIDTH // HEADS

    def normal(*shape: int, std: float = 0.02) -> Any:
        return (std * random.standard_normal(shape)).astype(np.float32)

    def block() -> dict[str, Any]:
        small, one = 0.02 / (2 * LAYERS) ** 0.5, np.ones(WIDTH, np.float32)
        return {
            "norm1": one, "query": normal(WIDTH, HEADS, size), "key": normal(WIDTH, HEADS, size),
            "value": normal(WIDTH, HEADS, size), "out": normal(HEADS, size, WIDTH, std=small),
            "norm2": one, "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH, std=small),
        }

    return {"token": normal(VOCAB, WIDTH), "place": normal(LENGTH, WIDTH),
            "blocks": [block() for _ in range(LAYERS)], "norm": np.ones(WIDTH, np.float32)}


def text(steps: int = STEPS, seed: int = 1) -> Any:
    """Numbers of letters, of which five may follow each: (steps, batch, length + 1)."""
    noise = np.random.default_rng(seed).integers(5, size=(steps, BATCH, LENGTH + 1))
    noise[..., 0] = noise[..., 0] * 13
    letters = noise.astype(np.int32)
    for k in range(LENGTH):
        letters[..., k + 1] = (7 * letters[..., k] + noise[..., k + 1]) % VOCAB
    return letters


def in_jax(w: Any) -> Any:
    """A function that trains on a text, a step for each of its pieces, and gives the losses."""
    import jax
    import jax.numpy as jnp
    import optax

    def norm(x, scale):
        less = x - jnp.mean(x, -1, keepdims=True)
        return less * jax.lax.rsqrt(jnp.mean(less * less, -1, keepdims=True) + 1e-5) * scale

    def attention(b, x):
        query, key, value = (
            jnp.einsum("blc,chd->blhd", x, b[k]) for k in ("query", "key", "value"))
        seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return jnp.einsum("blhd,hdc->blc", seen, b["out"])

    def loss_of(w, x, y):
        h = w["token"][x] + w["place"]
        for b in w["blocks"]:
            h = h + attention(b, norm(h, b["norm1"]))
            h = h + jax.nn.gelu(norm(h, b["norm2"]) @ b["up"]) @ b["down"]
        logits = norm(h, w["norm"]) @ w["token"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    tx = optax.adamw(RATE, b2=BETA2, weight_decay=DECAY)

    def step(w, state, piece):
        loss, grads = jax.value_and_grad(loss_of)(w, piece[:, :-1], piece[:, 1:])
        updates, state = tx.update(grads, state, w)
        return optax.apply_updates(w, updates), state, loss

    step = jax.jit(step, donate_argnums=(0, 1))
    w = jax.tree.map(jnp.array, w)
    state = tx.init(w)

    def run(pieces):
        nonlocal w, state
        losses = []
        for piece in pieces:
            w, state, loss = step(w, state, piece)
            losses.append(loss)
        return np.array([float(loss) for loss in losses])

    return run


def in_torch(w: Any, compiled: bool = False) -> Any:
    """The same in PyTorch, with the three matrices of attention as one, as nanoGPT has them."""
    import torch
    from torch.nn import functional as F

    def leaf(x):
        return torch.tensor(x).requires_grad_()

    token, place, last = leaf(w["token"]), leaf(w["place"]), leaf(w["norm"])
    three = ("query", "key", "value")
    blocks = [
        {"norm1": leaf(b["norm1"]), "norm2": leaf(b["norm2"]),
         "qkv": leaf(np.concatenate([b[k].reshape(WIDTH, -1).T for k in three])),
         "out": leaf(np.ascontiguousarray(b["out"].reshape(-1, WIDTH).T)),
         "up": leaf(np.ascontiguousarray(b["up"].T)),
         "down": leaf(np.ascontiguousarray(b["down"].T))}
        for b in w["blocks"]
    ]

    def loss_of(x, y):
        h = F.embedding(x, token) + place
        for b in blocks:
            n = F.linear(F.layer_norm(h, (WIDTH,), b["norm1"]), b["qkv"])
            q, k, v = (t.view(*x.shape, HEADS, -1).transpose(1, 2) for t in n.split(WIDTH, 2))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + F.linear(seen.transpose(1, 2).reshape(h.shape), b["out"])
            n = F.linear(F.layer_norm(h, (WIDTH,), b["norm2"]), b["up"])
            h = h + F.linear(F.gelu(n, approximate="tanh"), b["down"])
        logits = F.linear(F.layer_norm(h, (WIDTH,), last), token)
        return F.cross_entropy(logits.view(-1, VOCAB), y.reshape(-1))

    leaves = [token, place, last, *(p for b in blocks for p in b.values())]
    tx = torch.optim.AdamW(leaves, RATE, (0.9, BETA2), weight_decay=DECAY, fused=True)
    loss_of = torch.compile(loss_of) if compiled else loss_of

    def run(pieces):
        losses = []
        for piece in torch.from_numpy(pieces).long():
            loss = loss_of(piece[:, :-1], piece[:, 1:])
            tx.zero_grad()
            loss.backward()
            tx.step()
            losses.append(loss.detach())
        return np.array([float(loss) for loss in losses])

    return run


def main() -> None:
    found = {}
    for name, train in (("jax", in_jax), ("torch", in_torch)):
        version = __import__(name).__version__
        found[name] = {"version": version, "losses": train(weights())(text()).tolist()}
    GOLDEN.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()

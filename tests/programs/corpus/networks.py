"""Neural networks by hand, forwards and backwards, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np

import spmd
from tests.programs.corpus.cases import case


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


@case(18, 512, lambda n, r: dict(x=r(n, 8), y=(3 * r(n)).astype(np.int64), w1=r(8, 16) - 0.5,
                                 b1=np.zeros(16), w2=r(16, 3) - 0.5, b2=np.zeros(3), steps=10))
def perceptron_training(x, y, w1, b1, w2, b2, steps, rate=0.1):
    targets = np.eye(3)[y]
    losses = np.zeros(steps)
    for t in spmd.range(steps):
        h = np.maximum(0, x @ w1 + b1)
        p = softmax(h @ w2 + b2)
        losses[t] = -np.mean(np.sum(targets * np.log(p + 1e-12), axis=1))
        d2 = (p - targets) / len(x)
        dw2, db2 = h.T @ d2, d2.sum(axis=0)
        d1 = (d2 @ w2.T) * (h > 0)
        dw1, db1 = x.T @ d1, d1.sum(axis=0)
        w1 -= rate * dw1
        b1 -= rate * db1
        w2 -= rate * dw2
        b2 -= rate * db2
    return w1, b1, w2, b2, losses


@case(10, 128, lambda n, r: dict(x=r(2, n, 12) - 0.5, wqkv=r(12, 36) - 0.5, wo=r(12, 12) - 0.5,
                                 w1=r(12, 24) - 0.5, w2=r(24, 12) - 0.5, heads=3))
def transformer_block(x, wqkv, wo, w1, w2, heads):
    """Causal attention with several heads, layer norms, and two dense layers with GELU."""

    def layer_norm(x):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5)

    b, n, d = x.shape
    q, k, v = np.split(layer_norm(x) @ wqkv, 3, axis=-1)
    q = q.reshape(b, n, heads, d // heads).transpose(0, 2, 1, 3)
    k = k.reshape(b, n, heads, d // heads).transpose(0, 2, 1, 3)
    v = v.reshape(b, n, heads, d // heads).transpose(0, 2, 1, 3)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d // heads)
    mask = np.triu(np.ones((n, n), dtype=bool), k=1)
    weights = softmax(np.where(mask, -1e9, scores))
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(b, n, d)
    x = x + mixed @ wo
    h = layer_norm(x) @ w1
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return x + h @ w2


@case(7, 32, lambda n, r: dict(
    x=(r(n, 10, 10, 2) - 0.5).astype(np.float32), w1=(r(3, 3, 2, 4) - 0.5).astype(np.float32),
    gamma=np.ones(4, np.float32), beta=np.zeros(4, np.float32),
    w2=(r(64, 5) - 0.5).astype(np.float32)))
def convolutional_network(x, w1, gamma, beta, w2):
    """Convolution by windows, batch norm, ReLU, pooling, one dense layer."""
    kh, kw, cin, cout = w1.shape
    n, height, width, _ = x.shape
    oh, ow = height - kh + 1, width - kw + 1
    columns = np.stack([x[:, i : i + oh, j : j + ow, :] for i in range(kh) for j in range(kw)],
                       axis=3)
    h = columns.reshape(n * oh * ow, kh * kw * cin) @ w1.reshape(-1, cout)
    h = h.reshape(n, oh, ow, cout)
    mean, var = h.mean(axis=(0, 1, 2)), h.var(axis=(0, 1, 2))
    h = gamma * (h - mean) / np.sqrt(var + 1e-5) + beta
    h = np.maximum(h, 0)
    pooled = h.reshape(n, oh // 2, 2, ow // 2, 2, cout).max(axis=(2, 4))
    return softmax(pooled.reshape(n, -1) @ w2), mean, var


@case(6, 64, lambda n, r: dict(x=r(n, 9, 5) - 0.5, wx=r(5, 28) - 0.5, wh=r(7, 28) - 0.5,
                               b=np.zeros(28)))
def lstm_layer(x, wx, wh, b):
    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    batch, length, _ = x.shape
    hidden = wh.shape[0]
    h = np.zeros((batch, hidden))
    c = np.zeros((batch, hidden))
    states = np.zeros((batch, length, hidden))
    for t in spmd.range(length):
        z = x[:, t] @ wx + h @ wh + b
        i = sigmoid(z[:, :hidden])
        f = sigmoid(z[:, hidden : 2 * hidden])
        o = sigmoid(z[:, 2 * hidden : 3 * hidden])
        g = np.tanh(z[:, 3 * hidden :])
        c = f * c + i * g
        h = o * np.tanh(c)
        states[:, t] = h
    return states, c


@case(12, 2000, lambda n, r: dict(nodes=r(n, 4), source=(n * r(3 * n)).astype(np.int64),
                                  target=(n * r(3 * n)).astype(np.int64), w_message=r(8, 6) - 0.5,
                                  w_node=r(10, 4) - 0.5, rounds=2))
def graph_network(nodes, source, target, w_message, w_node, rounds):
    """Messages along edges, summed at their targets, divided by the degrees."""
    degree = np.bincount(target, minlength=len(nodes))
    for _ in range(rounds):
        message = np.tanh(np.concatenate([nodes[source], nodes[target]], axis=1) @ w_message)
        gathered = np.zeros((len(nodes), message.shape[1]))
        np.add.at(gathered, target, message)
        gathered /= np.maximum(degree, 1)[:, None]
        nodes = np.tanh(np.concatenate([nodes, gathered], axis=1) @ w_node)
    return nodes, nodes.max(axis=0)


@case(16, 256, lambda n, r: dict(x=r(n, 10), w1=r(10, 4) - 0.5, w2=r(4, 10) - 0.5, steps=5))
def autoencoder_with_adam(x, w1, w2, steps, rate=0.01):
    """Derivatives from spmd, the optimizer by hand: all parameters in one dict."""
    params = {"w1": w1, "w2": w2}

    def loss(params):
        return np.mean((np.tanh(x @ params["w1"]) @ params["w2"] - x) ** 2)

    m = {k: np.zeros_like(p) for k, p in params.items()}
    v = {k: np.zeros_like(p) for k, p in params.items()}
    losses = np.zeros(steps)
    for t in spmd.range(steps):
        losses[t], grads = spmd.value_and_grad(loss)(params)
        for k in params:
            m[k] = 0.9 * m[k] + 0.1 * grads[k]
            v[k] = 0.999 * v[k] + 0.001 * grads[k] ** 2
            m_hat = m[k] / (1 - 0.9 ** (t + 1.0))
            v_hat = v[k] / (1 - 0.999 ** (t + 1.0))
            params[k] = params[k] - rate * m_hat / (np.sqrt(v_hat) + 1e-8)
    return params["w1"], params["w2"], losses


@case(12, 400, lambda n, r: dict(words=(n * r(40, 2)).astype(np.int64), negative=(
    n * r(40, 5)).astype(np.int64), inner=r(n, 6) - 0.5, outer=r(n, 6) - 0.5))
def word_vectors(words, negative, inner, outer, rate=0.05):
    """Skip-grams with negative samples: gathers, and updates of rows that meet."""
    centre, context = inner[words[:, 0]], outer[words[:, 1]]
    others = outer[negative]
    right = 1 / (1 + np.exp(-np.sum(centre * context, axis=1)))
    wrong = 1 / (1 + np.exp(-np.einsum("bd,bnd->bn", centre, others)))
    loss = -np.mean(np.log(right)) - np.mean(np.log(1 - wrong))
    d_centre = (right - 1)[:, None] * context + np.einsum("bn,bnd->bd", wrong, others)
    np.add.at(inner, words[:, 0], -rate * d_centre)
    np.add.at(outer, words[:, 1], -rate * (right - 1)[:, None] * centre)
    np.add.at(outer, negative, -rate * wrong[..., None] * centre[:, None, :])
    return inner, outer, loss

"""Networks as layers of a pipeline, on real data: digits row by row, and Python's documentation.

In: a name of NETWORKS. Out: layers, their weights as NumPy arrays, and batches, in any float type.
Layers are unlike, and some hand on trees: masks, states of cells, numbers of words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from examples import bert
from examples import transformer as letters
from spmd import nn

# mypy: ignore-errors

WIDTH, HEADS, LENGTH = 16, 2, 12


class Network(NamedTuple):
    """layers: functions; weights: of each; xs, ys: trees of arrays (steps, batch, …)."""

    layers: list[Any]
    weights: list[Any]
    xs: Any
    ys: Any


class Drawn:
    """Weights that begin as random numbers."""

    def __init__(self, seed, dtype):
        self.random, self.dtype = np.random.default_rng(seed), dtype

    def __call__(self, *shape, std=None):
        scale = shape[0] ** -0.5 if std is None else std
        return (self.random.standard_normal(shape) * scale).astype(self.dtype)

    def zeros(self, *shape):
        return np.zeros(shape, self.dtype)

    def ones(self, *shape):
        return np.ones(shape, self.dtype)


# ---- BERT: a mask and what stands where are handed on with what is known of each word


def bert_embed(w, x):
    """Words, places and halves; `keys`: what attention may look at, which is no padding."""
    keys = x["length"][:, None] > np.arange(LENGTH)
    h = nn.embedding(x["shown"], w["words"]) + w["places"]
    h = h + w["halves"][np.arange(LENGTH) // (LENGTH // 2)]
    return {"h": nn.layer_norm(h, w["norm"]), "keys": keys}


def bert_attention(w, t):
    x = nn.layer_norm(t["h"], w["norm"])
    query, key, value = (nn.dense(x, w[k]) for k in ("query", "key", "value"))
    found = nn.attention(query, key, value, mask=t["keys"][:, None, None, :])
    return {**t, "h": t["h"] + nn.dense(found, w["out"], axes=2)}


def bert_mlp(w, t):
    x = nn.gelu(nn.dense(nn.layer_norm(t["h"], w["norm"]), w["up"], w["bias"]))
    return {**t, "h": t["h"] + nn.dense(x, w["down"])}


def bert_head(w, t, y):
    losses = nn.softmax_cross_entropy(nn.layer_norm(t["h"]) @ w["words"].T, y["text"])
    return np.sum(np.where(y["guessed"], losses, 0)) / np.sum(y["guessed"])


def bert_network(steps, batch, seed, dtype, tied=True, blocks=1):
    new, width = Drawn(seed, dtype), WIDTH
    words, size = len(bert.WORDS), width // HEADS

    def attention():
        look = {k: new(width, HEADS, size) for k in ("query", "key", "value")}
        return {**look, "out": new(HEADS, size, width), "norm": new.ones(width)}

    def mlp():
        return {"norm": new.ones(width), "up": new(width, 4 * width), "bias": new.zeros(4 * width),
                "down": new(4 * width, width)}

    first = {"words": new(words, width, std=0.3), "places": new(LENGTH, width, std=0.3),
             "halves": new(2, width, std=0.3), "norm": new.ones(width)}
    last = {"words": first["words"] if tied else new(words, width, std=0.3)}
    random = new.random
    starts = random.integers(len(bert.CODES) - LENGTH, size=(steps, batch, 1))
    text = bert.CODES[starts + np.arange(LENGTH)]
    length = random.integers(LENGTH // 2, LENGTH + 1, (steps, batch)).astype(np.int32)
    there = length[..., None] > np.arange(LENGTH)
    guessed = (random.random(text.shape) < 0.3) & there
    guessed[..., 0] = True  # each microbatch has a word to guess
    shown = np.where(guessed, bert.MASK, text).astype(np.int32)
    return Network(
        [bert_embed, *[bert_attention, bert_mlp] * blocks, bert_head],
        [first, *[make() for _ in range(blocks) for make in (attention, mlp)], last],
        {"shown": shown, "length": length}, {"text": text, "guessed": guessed})


# ---- an LSTM with peepholes reads digits: the state of one layer begins the next one


def lstm_rows(w, images):
    state, rows = nn.recurrent(nn.lstm_cell, w, images.swapaxes(0, 1))
    return {"rows": rows, "state": state}


def lstm_more(w, t):
    state, rows = nn.recurrent(nn.lstm_cell, w, t["rows"], t["state"])
    return {"rows": rows, "state": state}


def lstm_last(w, t):
    _, rows = nn.recurrent(nn.lstm_cell, w, t["rows"], t["state"], reverse=True)
    return rows[0]


def digit(w, h, labels):
    return np.mean(nn.softmax_cross_entropy(nn.dense(h, w["out"], w["bias"]), labels))


def digits_of(random, steps, batch, dtype):
    from sklearn.datasets import load_digits  # a second, and not for each worker

    data = load_digits()
    order = random.integers(len(data.images), size=(steps, batch))
    return (data.images / 16).astype(dtype)[order], data.target.astype(np.int32)[order]


def lstm_network(steps, batch, seed, dtype):
    new = Drawn(seed, dtype)

    def cell(inputs):
        return {"w": new(inputs, 4, WIDTH), "u": new(WIDTH, 4, WIDTH),
                "b": new.zeros(4, WIDTH), "peepholes": new(3, WIDTH, std=0.1)}

    return Network(
        [lstm_rows, lstm_more, lstm_last, digit],
        [cell(8), cell(WIDTH), cell(WIDTH), {"out": new(WIDTH, 10), "bias": new.zeros(10)}],
        *digits_of(new.random, steps, batch, dtype))


# ---- a GRU reads letters, and says after each which one is next


def gru_letters(w, text):
    return nn.embedding(text, w).swapaxes(0, 1)


def gru_layer(w, h):
    return h + nn.recurrent(nn.gru_cell, w, h)[1]


def gru_norm(w, h):
    return nn.layer_norm(h, w)


def next_letter(w, h, text):
    return np.mean(nn.softmax_cross_entropy(nn.dense(h, w["out"], w["bias"]), text.T))


def letters_of(random, steps, batch, length=LENGTH):
    text = letters.pieces(steps, batch, length, int(random.integers(1000)))
    return text[..., :-1], text[..., 1:]


def gru_network(steps, batch, seed, dtype):
    new, size = Drawn(seed, dtype), len(letters.LETTERS)

    def cell():
        return {"w": new(WIDTH, 3, WIDTH), "u": new(WIDTH, 3, WIDTH),
                "b": new.zeros(3, WIDTH), "c": new.zeros(3, WIDTH)}

    return Network(
        [gru_letters, gru_layer, gru_norm, gru_layer, next_letter],
        [new(size, WIDTH, std=0.5), cell(), new.ones(WIDTH), cell(),
         {"out": new(WIDTH, size), "bias": new.zeros(size)}],
        *letters_of(new.random, steps, batch))


# ---- a convolutional network reads digits


def conv(w, x):
    return np.maximum(nn.conv(x, w["w"], w["b"]), 0)


def pooled(w, x):
    return nn.max_pool(conv(w, x), 2)


def flat(w, x):
    return np.maximum(nn.dense(x.reshape(x.shape[0], -1), w["out"], w["bias"]), 0)


def conv_network(steps, batch, seed, dtype, wide=4):
    new = Drawn(seed, dtype)

    def windows(inputs, outputs):
        return {"w": new(3, 3, inputs, outputs, std=(2 / (9 * inputs)) ** 0.5),
                "b": new.zeros(outputs)}

    def matrix(inputs, outputs):
        return {"out": new(inputs, outputs), "bias": new.zeros(outputs)}

    x, y = digits_of(new.random, steps, batch, dtype)
    return Network(
        [conv, pooled, flat, digit],
        [windows(1, wide), windows(wide, 2 * wide), matrix(32 * wide, 32), matrix(32, 10)],
        x[..., None], y)


# ---- the Transformer of letters, its attention and its perceptrons as layers of their own


def text_embed(w, text):
    return nn.embedding(text, w["token"]) + w["place"]


def text_attention(w, h):
    return h + letters.attention(w, nn.layer_norm(h, w["norm"]))


def text_mlp(w, h):
    return h + nn.dense(nn.gelu(nn.dense(nn.layer_norm(h, w["norm"]), w["up"])), w["down"])


def text_head(w, h, text):
    return np.mean(nn.softmax_cross_entropy(nn.layer_norm(h, w["norm"]) @ w["out"], text))


def transformer_network(steps, batch, seed, dtype, blocks=1, width=WIDTH, length=LENGTH):
    new, size, vocab = Drawn(seed, dtype), width // HEADS, len(letters.LETTERS)

    def attention():
        look = {k: new(width, HEADS, size) for k in ("query", "key", "value")}
        return {**look, "out": new(HEADS, size, width), "norm": new.ones(width)}

    def mlp():
        return {"norm": new.ones(width), "up": new(width, 4 * width), "down": new(4 * width, width)}

    return Network(
        [text_embed, *[text_attention, text_mlp] * blocks, text_head],
        [{"token": new(vocab, width, std=0.3), "place": new(length, width, std=0.1)},
         *[make() for _ in range(blocks) for make in (attention, mlp)],
         {"norm": new.ones(width), "out": new(width, vocab)}],
        *letters_of(new.random, steps, batch, length))


NETWORKS = {
    "bert": bert_network, "lstm": lstm_network, "gru": gru_network, "conv": conv_network,
    "transformer": transformer_network,
}

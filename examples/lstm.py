"""An LSTM with peepholes reads real handwritten digits row by row, and says which they are.

The images lie split over the ranks; weights, and the states of the optimizer, all ranks have. What
they exchange are sums of gradients (`show lstm.img --layouts`).
    python examples/lstm.py
    python -m spmd run examples/lstm.py --ranks 16 --set steps=80
"""

import numpy as np
from sklearn.datasets import load_digits

import spmd
from spmd import nn

DIGITS = load_digits()
IMAGES = (DIGITS.images / 16).astype(np.float32)  # (1797, 8, 8)


def network(w, images):
    rows = images.swapaxes(0, 1)  # time first: (8, batch, 8)
    (output, _), _ = nn.recurrent(nn.lstm_cell, w["lstm"], rows)
    return nn.dense(output, w["out"], w["bias"])


@spmd.program(mesh=("x",), layout={"batch": "x"})
def lstm(hidden: int = 32, steps: int = 40, train: int = 1437):
    batch, rest = spmd.Dim("batch", train), spmd.Dim("batch", len(IMAGES) - train)
    x = spmd.input("x", (batch, 8, 8), np.float32, default=IMAGES[:train])
    y = spmd.input("y", (batch,), np.int32, default=DIGITS.target[:train].astype(np.int32))
    new = spmd.input("new", (rest, 8, 8), np.float32, default=IMAGES[train:])
    answers = spmd.input("answers", (rest,), np.int32,
                         default=DIGITS.target[train:].astype(np.int32))
    w = {"lstm": {"w": nn.glorot(1, (8, 4, hidden)),
                  "u": nn.init.glorot_uniform(0, (1, 2))(2, (hidden, 4, hidden)),
                  "b": nn.init.zeros(0, (4, hidden)),
                  "peepholes": nn.init.zeros(0, (3, hidden))},
         "out": nn.glorot(3, (hidden, 10)), "bias": nn.init.zeros(0, (10,))}
    tx = spmd.optim.chain(spmd.optim.clip_by_global_norm(1.0), spmd.optim.adam(0.03))
    state = tx.init(w)
    losses = spmd.zeros(steps, np.float32)

    def loss(w):
        return np.mean(nn.softmax_cross_entropy(network(w, x), y))

    for k in spmd.range(steps):
        losses[k], gradient = spmd.value_and_grad(loss)(w)
        updates, state = tx.update(gradient, state, w)
        w = spmd.optim.apply_updates(w, updates)
    right = np.argmax(network(w, new), -1) == answers
    return {"losses": losses, "accuracy": np.mean(right.astype(np.float64)), "w": w}


def check(ranks=(1, 3, 16)):
    image = spmd.build(lstm)
    runs = [image.run(ranks=n) for n in ranks]
    for out in runs:  # rounding grows from step to step: only the first are compared closely
        np.testing.assert_allclose(out["losses"][:20], runs[0]["losses"][:20], rtol=1e-3)
        assert out["accuracy"] > 0.8 and out["losses"][-1] < 0.3
    return runs[0]


if __name__ == "__main__":
    out = check()
    print(f"loss {out['losses'][0]:.3f} to {out['losses'][-1]:.3f} on 1, 3 and 16 ranks; "
          f"{out['accuracy']:.1%} of the digits that it never saw are right")

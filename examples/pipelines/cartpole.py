"""Poles on carts (Gymnasium's CartPole-v1), which workers move as a program says.

Each place of a batch is one cart; an example is what it shows after the last action. Workers take
the actions that examples/feed_cartpole.py sends back, and start anew when a pole has fallen.
"""

import spmd.data as data

CARTS = 16


@data.pipeline(source=data.environments("CartPole-v1", CARTS), seed=1)
def cartpole(example):
    return {"state": example.obs, "reward": example.reward, "begins": example.first,
            "fell": example.terminated}

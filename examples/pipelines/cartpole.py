"""Sixteen poles on carts (Gymnasium's CartPole-v1), which workers move as a program says.

An example is what an environment shows after the last action. examples/feed_cartpole.py sends the
actions back, and learns to keep the poles upright.
"""

import numpy as np

import spmd.data as data

POLES = 16


@data.pipeline(source=data.environments("CartPole-v1", POLES), seed=1)
def cartpole(example):
    return {"state": np.float32(example.obs), "reward": np.float32(example.reward),
            "begins": example.first, "ends": example.terminated, "stops": example.truncated}

"""Parts of networks, as functions of arrays: parameters are arguments."""

from __future__ import annotations

from spmd.nn.convolution import conv, conv_transpose
from spmd.nn.pooling import adaptive_avg_pool, avg_pool, max_pool

__all__ = ["adaptive_avg_pool", "avg_pool", "conv", "conv_transpose", "max_pool"]

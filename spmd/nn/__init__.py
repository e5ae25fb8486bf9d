"""Parts of networks as functions: parameters are arguments, dims lie as their layouts say.

Always holds: they are written in the language itself, so that programs, eager runs and derivatives
have them.
"""

from __future__ import annotations

from spmd.nn import init
from spmd.nn.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    mish,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    swish,
)
from spmd.nn.attention_heads import attention
from spmd.nn.attention_steps import attention_cache, attention_with_cache
from spmd.nn.convolution import conv, conv_transpose
from spmd.nn.decoding import beam_search, sample
from spmd.nn.experts import mixture_of_experts
from spmd.nn.init import glorot
from spmd.nn.layers import dense, dropout, embedding
from spmd.nn.losses import (
    cosine_distance,
    cosine_similarity,
    hinge_loss,
    huber_loss,
    kl_divergence,
    l2_loss,
    log_cosh,
    sigmoid_binary_cross_entropy,
    smooth_labels,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
    squared_error,
)
from spmd.nn.normalization import (
    batch_norm,
    batch_norm_inference,
    layer_norm,
    rms_norm,
    update_statistics,
)
from spmd.nn.pooling import adaptive_avg_pool, avg_pool, max_pool
from spmd.nn.recurrent import gru_cell, lstm_cell, recurrent, rnn_cell
from spmd.nn.rotary_positions import rotary

__all__ = [
    "adaptive_avg_pool", "attention", "attention_cache", "attention_with_cache", "avg_pool",
    "batch_norm", "batch_norm_inference", "beam_search", "celu", "conv", "conv_transpose",
    "cosine_distance", "cosine_similarity", "dense", "dropout", "elu", "embedding", "gelu",
    "glorot", "glu", "gru_cell", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh",
    "hinge_loss", "huber_loss", "init", "kl_divergence", "l2_loss", "layer_norm", "leaky_relu",
    "log_cosh", "log_sigmoid", "log_softmax", "logsumexp", "lstm_cell", "max_pool", "mish",
    "mixture_of_experts", "one_hot", "recurrent", "relu", "relu6", "rms_norm", "rnn_cell",
    "rotary", "sample", "selu", "sigmoid", "sigmoid_binary_cross_entropy", "silu",
    "smooth_labels", "soft_sign", "softmax", "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels", "softplus", "squared_error", "swish",
    "update_statistics",
]

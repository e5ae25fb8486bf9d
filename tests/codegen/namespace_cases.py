"""Every function of spmd.numpy, spmd.nn, scipy.special and spmd.optim that can be differentiated,
with arguments; and of those that cannot, or need not, the reason."""

from __future__ import annotations

from functools import partial

import numpy as np

from spmd import nn, optim

# mypy: ignore-errors

_rng = np.random.default_rng(11)


def _spread(shape, low, high):
    """Numbers that are apart from each other and from the ends, in no order."""
    n = int(np.prod(shape))
    return _rng.permutation(np.linspace(low, high, n + 2)[1:-1]).reshape(shape)


S, T = _spread((3, 4), -1.1, 1.3), _spread((3, 4), -0.9, 1.2)  # signed
P, Q = _spread((3, 4), 0.1, 0.95), _spread((3, 4), 0.15, 0.9)  # between 0 and 1
V, W = _spread((5,), -1.1, 1.3), _spread((5,), 0.1, 0.95)
M = np.eye(3) * 3 + _spread((3, 3), -1, 1)
SPD = M @ M.T / 4
BIG = 1.5 + P
IDS = np.array([2, 0, 2, 1])
MASK = S > 0.1
CASES = {}  # by namespace and name: a function, and arrays by which it is differentiated


def case(name, f, *arrays):
    assert name not in CASES, name
    CASES[name] = f, arrays


def numpy_cases(names, *arrays, **options):
    for name in names.split():
        f = np
        for part in name.split("."):
            f = getattr(f, part)
        case(f"np.{name}", partial(f, **options) if options else f, *arrays)


# ---- NumPy --------------------------------------------------------------------------------------

numpy_cases(
    "abs absolute fabs around arctan atan arcsinh asinh cbrt ceil conj conjugate cos cosh "
    "cumprod cumsum deg2rad degrees exp exp2 expm1 fix floor i0 "
    "mean max min amax amin median nan_to_num negative positive prod ptp rad2deg radians real imag "
    "rint round sign sin sinc sinh square std sum tan tanh trunc var unwrap copy array asarray "
    "asanyarray ascontiguousarray asfortranarray asarray_chkfinite atleast_1d atleast_2d "
    "atleast_3d concatenate diff ediff1d flip fliplr flipud gradient matrix_transpose "
    "nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar ravel "
    "require rot90 sort squeeze trace transpose permute_dims trapezoid tril triu unstack diagonal "
    "block row_stack concat stack hstack vstack dstack column_stack modf average", S)
numpy_cases("arccos acos arcsin asin arctanh atanh", S / 1.5)
numpy_cases("arccosh acosh", BIG)
numpy_cases("log log10 log1p log2 reciprocal sqrt", P)
numpy_cases("add subtract multiply arctan2 atan2 copysign divide true_divide fmax fmin hypot "
            "maximum minimum logaddexp logaddexp2 vecdot inner", S, T)
numpy_cases("power pow float_power", BIG, S)
numpy_cases("fmod mod remainder floor_divide divmod", S * 3, P)
numpy_cases("heaviside", S, T)
numpy_cases("nextafter", S, T)
numpy_cases("cumulative_prod cumulative_sum", S, axis=1)
numpy_cases("convolve correlate outer kron", V, W)
numpy_cases("dot matmul", S, T.T)
numpy_cases("matvec", S, T[0])
numpy_cases("vecmat", S[:, 0], T)
numpy_cases("vdot", S, T)
numpy_cases("tensordot", S, T.T, axes=1)
numpy_cases("cross", S[:, :3], T[:, :3])
numpy_cases("corrcoef cov", S)
numpy_cases("append", S, V)
numpy_cases("polyadd polysub polymul", V, W)
numpy_cases("polydiv", V, W[:2])
numpy_cases("polyval", V, S)
numpy_cases("polyint polyder vander diag diagflat poly", V)
numpy_cases("polyfit", V, W, deg=2)
numpy_cases("interp", P[0], np.sort(W), V)
numpy_cases("broadcast_arrays", S, T[0])
numpy_cases("meshgrid", V, W[:3])
case("np.ldexp", lambda x: np.ldexp(x, 3), S)
numpy_cases("roots", np.array([1.0, -3.1, 1.3, 0.7]))
numpy_cases("expand_dims", S, axis=1)
numpy_cases("swapaxes", S, axis1=0, axis2=1)
numpy_cases("moveaxis", S, source=0, destination=1)
numpy_cases("rollaxis", S, axis=1)
numpy_cases("reshape", S, shape=(4, 3))
numpy_cases("resize", S, new_shape=(4, 4))
numpy_cases("tile", S, reps=(2, 1))
numpy_cases("repeat", S, repeats=2, axis=1)
numpy_cases("roll", S, shift=1, axis=1)
case("np.split", lambda x: np.split(x, 2, 1), S)
case("np.array_split", lambda x: np.array_split(x, 3, 1), S)
case("np.hsplit", lambda x: np.hsplit(x, 2), S)
case("np.vsplit", lambda x: np.vsplit(x, 3), S)
case("np.dsplit", lambda x: np.dsplit(x[None], 2), S)
numpy_cases("broadcast_to", S[0], shape=(3, 4))
numpy_cases("take", S, indices=IDS, axis=1)
numpy_cases("take_along_axis", S, indices=IDS[None], axis=1)
case("np.compress", lambda x: np.compress([True, False, True], x, 0), S)
case("np.extract", lambda x: np.sum(np.extract(MASK, x) ** 2), S)
case("np.choose", lambda x, y: np.choose(IDS % 2, [x, y]), S, T)
case("np.select", lambda x, y: np.select([MASK, T > 0.2], [x, y], 0.5), S, T)
case("np.where", lambda x, y: np.where(MASK, x, y), S, T)
case("np.piecewise", lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda x: x**2, np.sin]), S)
case("np.clip", lambda x: np.clip(x, -0.52, 0.61), S)
case("np.astype", lambda x: np.astype(x, np.float64), S)
case("np.delete", lambda x: np.delete(x, 1, 1), S)
case("np.insert", lambda x, y: np.insert(x, 1, y, 1), S, T[:, 0])
case("np.pad", lambda x: np.pad(x, 1, mode="reflect"), S)
case("np.percentile", lambda x: np.percentile(x, [20, 61], 1), S)
case("np.quantile", lambda x: np.quantile(x, 0.37), S)
case("np.nanpercentile", lambda x: np.nanpercentile(x, 33.0), S)
case("np.nanquantile", lambda x: np.nanquantile(x, 0.7, 0), S)
case("np.partition", lambda x: np.sort(np.partition(x, 2, 1)[:, :2], 1), S)
case("np.einsum", lambda x, y: np.einsum("ij,kj->ik", x, y), S, T)
case("np.linspace", lambda x: np.linspace(x[0], x[1], 4), V)
case("np.logspace", lambda x: np.logspace(x[0], x[1], 4), V)
case("np.geomspace", lambda x: np.geomspace(x[0], x[1], 4), W)
case("np.full", lambda x: np.full((2, 2), x[0]), V)
case("np.full_like", lambda x: np.full_like(x, x[0]), V)
case("np.angle", lambda x: np.angle(x + 2j), S)
case("np.sort_complex", lambda x: np.sort_complex(x + 2j), V)
case("np.apply_over_axes", lambda x: np.apply_over_axes(np.sum, x * x, [0]), S)
case("np.frexp", lambda x: np.frexp(x)[0], np.array([0.3, 0.7, -1.2]))
case("np.spacing", lambda x: np.spacing(x), S)
case("np.fromfunction", lambda x: np.fromfunction(lambda i, j: i * x[0] + j * x[1], (2, 3)), V)


def _written(name):
    def f(x, y):
        z = x * 2
        {"copyto": lambda: np.copyto(z, y, where=MASK),
         "fill_diagonal": lambda: np.fill_diagonal(z, y[0, 0]),
         "place": lambda: np.place(z, MASK, y[0]),
         "put": lambda: np.put(z, [1, 5], y[0, :2]),
         "put_along_axis": lambda: np.put_along_axis(z, IDS[:3, None], y[:, :1], 1),
         "putmask": lambda: np.putmask(z, MASK, y)}[name]()
        return z

    return f


for _name in ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"):
    case(f"np.{_name}", _written(_name), S, T)

numpy_cases("linalg.cond linalg.det linalg.inv linalg.matrix_norm linalg.norm linalg.pinv "
            "linalg.svdvals linalg.matrix_transpose linalg.trace linalg.diagonal linalg.slogdet", M)
numpy_cases("linalg.vector_norm", S)
numpy_cases("linalg.cross", S[:, :3], T[:, :3])
numpy_cases("linalg.matmul", S, T.T)
numpy_cases("linalg.outer", V, W)
numpy_cases("linalg.tensordot", S, T.T, axes=1)
numpy_cases("linalg.vecdot", S, T)
numpy_cases("linalg.matrix_power", M, n=3)
numpy_cases("linalg.solve", M, V[:3])
case("np.linalg.cholesky", lambda x: np.linalg.cholesky((x + x.T) / 2), SPD)
case("np.linalg.eigh", lambda x: np.abs(np.linalg.eigh((x + x.T) / 2)[1]), SPD)
case("np.linalg.eigvalsh", lambda x: np.linalg.eigvalsh((x + x.T) / 2), SPD)
case("np.linalg.eig", lambda x: np.sum(np.linalg.eig(x)[0] ** 3).real, M)
case("np.linalg.eigvals", lambda x: np.sum(np.linalg.eigvals(x) ** 3).real, M)
case("np.linalg.lstsq", lambda x, y: np.linalg.lstsq(x, y, rcond=None)[0], S.T + np.eye(4, 3) * 2,
     V[:4])
case("np.linalg.multi_dot", lambda x, y: np.linalg.multi_dot([x, y.T, x]), S, T)
case("np.linalg.qr", lambda x: np.abs(np.linalg.qr(x)[0]), M)
case("np.linalg.svd", lambda x: [np.linalg.svd(x)[1], np.abs(np.linalg.svd(x)[0])], M)
case("np.linalg.tensorinv", lambda x: np.linalg.tensorinv(x[:, :, None], 1), M)
case("np.linalg.tensorsolve", lambda x, y: np.linalg.tensorsolve(x, y), M, V[:3])
numpy_cases("fft.fft fft.fft2 fft.fftn fft.ifft fft.ifft2 fft.ifftn fft.rfft fft.rfft2 fft.rfftn "
            "fft.ihfft fft.fftshift fft.ifftshift", S)
for _name in ("hfft", "irfft", "irfft2", "irfftn"):
    case(f"np.fft.{_name}", lambda x, y, n=_name: getattr(np.fft, n)(x + 1j * y), S, T)

# ---- scipy.special ------------------------------------------------------------------------------


def special_cases(special):
    """Add the cases of scipy.special, which need SciPy."""
    def several(names, *arrays):
        for name in names.split():
            case(f"special.{name}", getattr(special, name), *arrays)

    several("cbrt cosm1 erf erfc exp10 exp2 expit expm1 exprel i0 i0e i1 i1e j0 j1 log_expit "
            "log_softmax logsumexp ndtr softmax", S)
    several("entr erfinv gamma gammaln log1p logit ndtri psi y0 y1 erfcinv", P)
    several("boxcox boxcox1p", BIG, S)
    several("inv_boxcox inv_boxcox1p", P, Q)
    several("huber pseudo_huber", P, S)
    several("kl_div rel_entr xlogy xlog1py", P, Q)
    case("special.polygamma", lambda x: special.polygamma(2, x), BIG)
    case("special.zeta", lambda q: special.zeta(2.5, q), BIG)


# ---- networks -----------------------------------------------------------------------------------

IMAGE = _spread((2, 5, 5, 4), -1, 1)
WINDOW = _spread((3, 3, 2, 4), -1, 1)
TOKENS = _spread((2, 6, 2, 4), -1, 1)  # batch, positions, heads, size
MORE = [_spread((2, 6, 2, 4), -1, 1) for _ in range(2)]


def nn_cases(names, *arrays, **options):
    for name in names.split():
        f = getattr(nn, name)
        case(f"nn.{name}", partial(f, **options) if options else f, *arrays)


nn_cases("celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid "
         "log_softmax logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus "
         "swish", S)
nn_cases("cosine_distance cosine_similarity hinge_loss huber_loss l2_loss log_cosh squared_error "
         "sigmoid_binary_cross_entropy softmax_cross_entropy", S, P)
nn_cases("kl_divergence", np.log(P), Q)
nn_cases("smooth_labels", P, alpha=0.1)
nn_cases("layer_norm batch_norm", S, W[:4], V[:4])
nn_cases("rms_norm", S, W[:4])
nn_cases("avg_pool max_pool", IMAGE, window=(2, 2))
nn_cases("adaptive_avg_pool", IMAGE, places=(2, 3))
nn_cases("conv", IMAGE, WINDOW, groups=2)
nn_cases("conv_transpose", IMAGE, _spread((3, 3, 4, 3), -1, 1), strides=2)
nn_cases("attention", TOKENS, *MORE, causal=True)
nn_cases("rotary", TOKENS)
nn_cases("dense", S, T.T, V[:3])
case("nn.dropout", lambda x: nn.dropout(x, 0.3, 5), S)
case("nn.embedding", lambda table: nn.embedding(IDS, table), S)
case("nn.softmax_cross_entropy_with_integer_labels",
     lambda x: nn.softmax_cross_entropy_with_integer_labels(x, IDS[:3]), S)
case("nn.batch_norm_inference", lambda x, m, v: nn.batch_norm_inference(
    x, {"mean": m, "variance": v}), S, V[:4], W[:4])
case("nn.update_statistics", lambda m, v: nn.update_statistics(
    {"mean": m, "variance": v}, {"mean": v * 2, "variance": m * m}), V, W)
case("nn.mixture_of_experts", lambda x, r, w: nn.mixture_of_experts(
    x, r, lambda y: np.einsum("etf,efh->eth", y, w), k=2, capacity=6),
    _spread((2, 3, 4), -1, 1), T.T * 2, _spread((3, 4, 4), -1, 1))


def _with_cache(x, k, v):
    cache = nn.attention_cache((2,), 8, 2, 4, np.float64)
    return nn.attention_with_cache(x[:, :3], k[:, :3], v[:, :3], cache, 0)


case("nn.attention_with_cache", _with_cache, TOKENS, *MORE)
CELLS = {"rnn_cell": 1, "gru_cell": 3, "lstm_cell": 4}


def _cell(name, x, state, w, u, b):
    p = {"w": w, "u": u, "b": b, "c": b * 0.5}
    state = (state, state * 0.7) if name == "lstm_cell" else state
    return getattr(nn, name)(p, state, x)


def _recurrent(x, w, u, b):
    return nn.recurrent(nn.gru_cell, {"w": w, "u": u, "b": b, "c": b * 0.5}, x)


def _gates(*shape, gates):
    return _spread((*shape, gates, 3) if gates > 1 else (*shape, 3), -0.8, 0.9)


for _name, _k in CELLS.items():
    case(f"nn.{_name}", partial(_cell, _name), S, T[:, :3], _gates(4, gates=_k),
         _gates(3, gates=_k), _gates(gates=_k))
case("nn.recurrent", _recurrent, _spread((2, 3, 4), -1, 1), _gates(4, gates=3),
     _gates(3, gates=3), _gates(gates=3))

# ---- optimizers: an update as a function of gradients and weights, in the third step ------------


def optim_case(name, make):
    """Add a case that updates parameters twice by the transformation that make() returns."""
    def update(g, w):
        tx, params = make(), {"a": w, "b": w[0] * 2}
        state = tx.init(params)
        for k in (0.6, -0.3):
            _, state = tx.update({"a": S * k + 0.2, "b": T[0] * k}, state, params)
        return tx.update({"a": g, "b": g[1] * 0.5}, state, params)[0]

    case(f"optim.{name}", update, S + 0.3 * T, T)


for _name in ("adabelief", "adagrad", "adam", "adamw", "amsgrad", "lamb", "lars", "lion", "nadam",
              "nadamw", "rmsprop", "sgd"):
    optim_case(_name, lambda n=_name: getattr(optim, n)(0.1))
for _name in ("scale_by_adam", "scale_by_amsgrad", "scale_by_belief", "scale_by_factored_rms",
              "scale_by_lion", "scale_by_param_block_rms", "scale_by_rms", "scale_by_rss",
              "scale_by_sign", "scale_by_stddev", "scale_by_trust_ratio", "set_to_zero",
              "identity"):
    optim_case(_name, getattr(optim, _name))
optim_case("adafactor", lambda: optim.adafactor(0.1, min_dim_size_to_factor=2))
optim_case("adaptive_grad_clip", lambda: optim.adaptive_grad_clip(0.5))
optim_case("add_decayed_weights", lambda: optim.add_decayed_weights(0.1))
optim_case("apply_if_finite", lambda: optim.apply_if_finite(optim.adam(0.1), 3))
optim_case("chain", lambda: optim.chain(optim.scale_by_adam(), optim.scale(-0.1)))
optim_case("named_chain", lambda: optim.named_chain(("a", optim.scale_by_adam()),
                                                    ("b", optim.scale(-0.1))))
optim_case("clip", lambda: optim.clip(0.37))
optim_case("clip_by_block_rms", lambda: optim.clip_by_block_rms(0.4))
optim_case("clip_by_global_norm", lambda: optim.clip_by_global_norm(0.7))
optim_case("ema", lambda: optim.ema(0.9))
optim_case("freeze", lambda: optim.freeze({"a": False, "b": True}))
optim_case("inject_hyperparams", lambda: optim.inject_hyperparams(optim.adam)(0.1))
optim_case("masked", lambda: optim.masked(optim.adam(0.1), {"a": True, "b": False}))
for _name in ("multi_transform", "partition"):
    optim_case(_name, lambda n=_name: getattr(optim, n)(
        {"x": optim.adam(0.1), "y": optim.sgd(0.2)}, {"a": "x", "b": "y"}))
optim_case("scale", lambda: optim.scale(0.3))
optim_case("scale_by_learning_rate", lambda: optim.scale_by_learning_rate(0.3))
optim_case("scale_by_schedule", lambda: optim.scale_by_schedule(lambda k: 0.1 * (k + 1)))
optim_case("selective_transform", lambda: optim.selective_transform(
    optim.adam(0.1), freeze_mask={"a": False, "b": True}))
optim_case("trace", lambda: optim.trace(0.9, nesterov=True))
case("optim.apply_updates", lambda x, y: optim.apply_updates({"a": x}, {"a": x * y}), S, T)
case("optim.global_norm", lambda x, y: optim.global_norm({"a": x, "b": y}), S, T)
case("optim.incremental_update", lambda x, y: optim.incremental_update(
    {"a": x}, {"a": y * y}, 0.2), S, T)
case("optim.static_loss_scale", lambda x: optim.static_loss_scale(8.0).scale({"a": x * x}), S)
case("optim.StaticLossScale", lambda x: optim.StaticLossScale(8.0).unscale({"a": x * x}), S)
case("optim.dynamic_loss_scale", lambda x: optim.dynamic_loss_scale(8.0).scale({"a": x * x}), S)
SCHEDULES = {
    "cosine_decay_schedule": lambda r: optim.cosine_decay_schedule(r, 10),
    "cosine_onecycle_schedule": lambda r: optim.cosine_onecycle_schedule(10, r),
    "constant_schedule": lambda r: optim.constant_schedule(r),
    "exponential_decay": lambda r: optim.exponential_decay(r, 5, 0.9),
    "join_schedules": lambda r: optim.join_schedules(
        [optim.constant_schedule(r), optim.linear_schedule(r, 1.0, 5)], [2]),
    "linear_onecycle_schedule": lambda r: optim.linear_onecycle_schedule(10, r),
    "linear_schedule": lambda r: optim.linear_schedule(r, 1.0, 5),
    "piecewise_constant_schedule": lambda r: optim.piecewise_constant_schedule(r, {2: 0.5}),
    "piecewise_interpolate_schedule": lambda r: optim.piecewise_interpolate_schedule(
        "cosine", r, {5: 0.5}),
    "polynomial_schedule": lambda r: optim.polynomial_schedule(r, 1.0, 2, 5),
    "warmup_constant_schedule": lambda r: optim.warmup_constant_schedule(0.1, r, 5),
    "warmup_cosine_decay_schedule": lambda r: optim.warmup_cosine_decay_schedule(r, 0.7, 5, 10),
}
for _name, _make in SCHEDULES.items():  # of its rate
    case(f"optim.{_name}", lambda x, make=_make: make(x[0])(3) * x[1], W)

# ---- what is not differentiated, and why ---------------------------------------------------------

WITHOUT = {
    "it returns integers or truth values": (
        "np.all np.allclose np.any np.argmax np.argmin np.argpartition np.argsort np.argwhere "
        "np.array_equal np.array_equiv np.bincount np.bitwise_and np.bitwise_count "
        "np.bitwise_invert np.bitwise_left_shift np.bitwise_not np.bitwise_or "
        "np.bitwise_right_shift np.bitwise_xor np.count_nonzero np.digitize np.equal "
        "np.flatnonzero np.gcd np.greater np.greater_equal np.histogram np.histogram2d "
        "np.histogramdd np.invert np.isclose np.iscomplex np.isfinite np.isin np.isinf np.isnan "
        "np.isneginf np.isposinf np.isreal np.lcm np.left_shift np.less np.less_equal np.lexsort "
        "np.logical_and np.logical_not np.logical_or np.logical_xor np.nanargmax np.nanargmin "
        "np.nonzero np.not_equal np.packbits np.ravel_multi_index np.right_shift np.searchsorted "
        "np.signbit np.unpackbits np.unravel_index np.linalg.matrix_rank nn.one_hot nn.sample "
        "nn.beam_search optim.all_finite"),
    "nothing goes in by which it could be differentiated": (
        "np.arange np.bartlett np.blackman np.diag_indices np.empty np.eye np.hamming np.hanning "
        "np.identity np.indices np.ix_ np.kaiser np.mask_indices np.ones np.tri np.tril_indices "
        "np.triu_indices np.zeros np.fft.fftfreq np.fft.rfftfreq nn.glorot nn.attention_cache "
        "np.diag_indices_from np.empty_like np.ones_like np.tril_indices_from "
        "np.triu_indices_from np.zeros_like"),
    "it is no function of arrays": (
        "np.bool np.complex128 np.complex64 np.e np.float16 np.float32 np.float64 np.inf np.int16 "
        "np.int32 np.int64 np.int8 np.linalg np.nan np.newaxis np.pi np.uint16 np.uint32 "
        "np.uint64 np.uint8 np.common_type np.einsum_path np.iscomplexobj np.isrealobj "
        "np.min_scalar_type np.ndim np.result_type np.shape np.size np.linalg.test np.fft.test "
        "nn.init np.fft"),
    "it reads data from outside of the program": (
        "np.frombuffer np.fromfile np.fromiter np.fromregex np.fromstring np.genfromtxt np.load "
        "np.loadtxt"),
    "the shape of what it returns depends on the data": (
        "np.histogram_bin_edges np.intersect1d np.setdiff1d np.setxor1d np.trim_zeros np.union1d "
        "np.unique np.unique_all np.unique_counts np.unique_inverse np.unique_values"),
    "it is made of others, or changes nothing": (
        "optim.GradientTransformation optim.MultiSteps optim.DynamicLossScale"),
    "it is a kernel, whose way back users write": "np.vectorize",
    "it needs ranks: tests/spmd/optimizers.py": "optim.sharded",
}
REASONS = {name: reason for reason, names in WITHOUT.items() for name in names.split()}

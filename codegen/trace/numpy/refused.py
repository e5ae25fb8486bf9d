"""NumPy's functions that programs cannot call, each with what to write instead.

A row is names and one remedy. Names are NumPy's, dotted in a submodule; `ndarray.` stands before
methods. A test holds this table, and that of function_table.py, against NumPy's own namespace.
"""

from __future__ import annotations

KERNEL = "the function itself on arrays; @spmd.kernel for a loop over elements"
SPARSE = (
    "np.add.at(y, A.row, A.data * x[A.col]) of A.tocoo() is A @ x; A.toarray() @ x where A is small"
)
_KNOWN = "NumPy's own works on arrays that are known while building"

_OF_DATA: tuple[tuple[str, str], ...] = (  # the shape of the result depends on data
    ("ma.masked_where",
     "x[mask].sum(), np.mean(x, where=mask); np.where(mask, x, other) keeps the shape"),
    ("unique unique_all unique_counts unique_inverse unique_values trim_zeros",
     "spmd.numpy.{name}(x, size=n), with the first n and what fills up"),
    ("union1d intersect1d setdiff1d setxor1d",
     "spmd.numpy.{name}(a, b, size=n), with the first n and what fills up; np.isin(a, b)"),
)
_ROWS: tuple[tuple[str, str], ...] = (
    *_OF_DATA,
    # -- the element type of the result depends on data --------------------------------------------
    ("real_if_close", "z.real, or np.abs(z)"),
    ("emath.arccos emath.arcsin emath.arctanh emath.log emath.log10 emath.log2 emath.logn "
     "emath.power emath.sqrt", "the function of np itself, of x.astype(np.complex128)"),
    # -- a function of yours for each element ------------------------------------------------------
    ("frompyfunc", KERNEL),
    ("apply_along_axis", "the function itself with axis=; spmd.vmap(f)(x); or a loop: for k in "
     "spmd.range(x.shape[0]): out[k] = f(x[k])"),
    # -- the memory of an array, and loops over its elements ---------------------------------------
    ("ndarray.resize", "np.resize(x, shape), or np.pad"),
    ("lib.stride_tricks.as_strided", "np.lib.stride_tricks.sliding_window_view, or slices of x"),
    ("ndarray.view ndarray.byteswap ndarray.getfield ndarray.setfield "
     "ndarray.base ndarray.ctypes ndarray.data ndarray.flags ndarray.setflags isfortran",
     "x.astype(t) converts, x[...] shows the same elements"),
    ("ndarray.strides", "np.lib.stride_tricks.sliding_window_view(x, shape), or slices of x"),
    ("may_share_memory shares_memory", "x.copy() is an array of its own"),
    ("nested_iters nditer ndenumerate", "for k in spmd.range(x.shape[0]): row = x[k]"),
    # -- files and text ----------------------------------------------------------------------------
    ("save savez savez_compressed savetxt ndarray.dump ndarray.dumps ndarray.tofile",
     "return the array from the program; run -o name=file.npy writes it"),
    ("array2string array_repr array_str", 'spmd.print("... {}", value)'),
    ("ndarray.tolist ndarray.tobytes", "return the array from the program"),
    # -- other kinds of array ----------------------------------------------------------------------
    ("asmatrix bmat", "np.block, and @ for products"),
    ("isnat", "integers of a unit of time that you choose"),
    ("from_dlpack ndarray.to_device ndarray.device", "spmd.input takes arrays; layouts say where"),
)

REMEDIES: dict[str, str] = {
    name: remedy.replace("{name}", name.removeprefix("ndarray."))
    for names, remedy in _ROWS for name in names.split()
}

SHAPES_OF_DATA = frozenset(" ".join(names for names, _ in _OF_DATA).split())

# What begins with these: classes, which hold arrays of NumPy's.
_LOOP = "for k in spmd.range(x.shape[0]): row = x[k]"
CLASSES: dict[str, str] = {
    "numpy.poly1d": "functions of the coefficients: np.polyval(p, x), np.polymul(p, q)",
    "numpy.polynomial": "functions of the coefficients: np.polynomial.polynomial.polyval(x, c)",
    "numpy.ma.": "np.mean(x, where=mask), x[mask].sum(), np.where(mask, x, other)",
    **dict.fromkeys(("numpy.nditer", "numpy.ndenumerate", "numpy.flatiter"), _LOOP),
    "numpy.matrix": "x itself, and @ for products",
    "numpy.rec": "an array for each field",
}

# What takes no array, or says something about element types, text, dates, or this Python.
NOT_ABOUT_ARRAYS = frozenset(
    "base_repr binary_repr busday_count busday_offset can_cast datetime_as_string datetime_data "
    "format_float_positional format_float_scientific get_include get_printoptions getbufsize "
    "geterr geterrcall is_busday isdtype issubdtype mintypecode printoptions promote_types "
    "set_printoptions setbufsize seterr seterrcall show_config show_runtime test typename "
    "broadcast_shapes info iterable isscalar linalg.test fft.test".split(),
)

# NumPy's own: what they give is a constant of the image.
BUILD_TIME: dict[str, str] = {
    **dict.fromkeys(
        "bartlett blackman diag_indices frombuffer fromfunction fromiter fromstring hamming "
        "hanning indices kaiser mask_indices tri tril_indices triu_indices"
        .split(), "of numbers known while building"),
    **dict.fromkeys(
        "fromfile fromregex genfromtxt load loadtxt".split(),
        "the file is read while building; spmd.input reads one at launch"),
}

# Attributes that NumPy lets you set, or that you may think it does.
ATTRIBUTES = {
    "shape": "x = x.reshape(shape)",
    "dtype": "x = x.astype(dtype), which converts the elements",
    "T": "x[...] = y.T",
    "flat": "x[...] = v",
    "layout": "x = x.relayout(layout)",
}

# Of NumPy's random numbers, and JAX's: spmd.random's.
_U = "spmd.random.uniform(seed, shape)"
RANDOM: dict[str, str] = {
    **dict.fromkeys("key PRNGKey split fold_in seed get_state set_state".split(),
                    "a seed and stream= of spmd.random's functions take its place"),
    **dict.fromkeys("default_rng Generator RandomState".split(),
                    "np.random.default_rng draws while building"),
    **dict.fromkeys("rand random random_sample ranf sample".split(), _U),
    "uniform": "spmd.random.uniform(seed, shape, low, high)",
    **dict.fromkeys("randn standard_normal".split(), "spmd.random.normal(seed, shape)"),
    "normal": "mean + sd * spmd.random.normal(seed, shape)",
    "lognormal": "np.exp(mean + sd * spmd.random.normal(seed, shape))",
    "multivariate_normal": "mean + spmd.random.normal(seed, (m, n)) @ np.linalg.cholesky(c).T",
    **dict.fromkeys("integers randint random_integers".split(),
                    "spmd.random.randint(seed, shape, low, high)"),
    "bytes": "spmd.random.bits(seed, shape, np.uint8)",
    "choice": "x[spmd.random.randint(seed, shape, 0, n)] draws from n elements; with chances p: "
    "spmd.random.categorical(seed, np.log(p) * np.ones((count, 1)))",
    **dict.fromkeys("shuffle permutation permuted".split(), "x[spmd.random.permutation(seed, n)]"),
    **dict.fromkeys("bernoulli binomial".split(), f"{_U} < p; the sum of n of them"),
    **dict.fromkeys("exponential standard_exponential".split(), f"-scale * np.log1p(-{_U})"),
    "rayleigh": f"scale * np.sqrt(-2 * np.log1p(-{_U}))",
    "weibull": f"(-np.log1p(-{_U})) ** (1 / a)",
    "pareto": f"np.expm1(-np.log1p(-{_U}) / a)",
    "power": f"{_U} ** (1 / a)",
    "geometric": f"np.ceil(np.log1p(-{_U}) / np.log1p(-p))",
    "standard_cauchy": f"np.tan(np.pi * ({_U} - 0.5))",
    "logistic": f"mean + scale * np.log(u / (1 - u)) with u = {_U}",
    "gumbel": f"mean - scale * np.log(-np.log1p(-{_U}))",
    "laplace": f"mean - scale * np.sign(u) * np.log1p(-2 * np.abs(u)) with u = {_U} - 0.5",
}

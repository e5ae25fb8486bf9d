"""NumPy's functions that programs cannot call, each with what to write instead.

A row is names and one remedy. Names are NumPy's, dotted in a submodule; `ndarray.` stands before
methods. A test holds this table, and that of table.py, against NumPy's own namespace.
"""

from __future__ import annotations

_KNOWN = "NumPy's own works on arrays that are known while building"

_ROWS: tuple[tuple[str, str], ...] = (
    # -- the shape of the result depends on data ---------------------------------------------------
    ("nonzero ndarray.nonzero argwhere",
     "x[mask] = v, x[mask].sum(); np.where(mask, x, other) keeps the shape; "
     "np.argmax(mask) is the first position"),
    ("flatnonzero", "x[mask] = v, x[mask].sum(); np.argmax(mask) is the first position"),
    ("extract ma.masked_where",
     "x[mask].sum(), np.mean(x, where=mask); np.where(mask, x, other) keeps the shape"),
    ("unique unique_all unique_counts unique_inverse unique_values",
     "np.sort(x), then np.where(x[1:] != x[:-1], ...) marks the first of each"),
    ("trim_zeros", "np.where keeps the shape"),
    ("union1d intersect1d setdiff1d setxor1d", "np.isin(a, b) with np.where"),
    ("bincount", "counts = np.zeros(k, int); np.add.at(counts, x, 1): k is known while building"),
    ("polymul polydiv poly1d", "np.convolve(a, b) is the product; np.polyval evaluates one"),
    ("geomspace", "10 ** np.linspace(np.log10(a), np.log10(b), n)"),
    # -- the element type of the result depends on data --------------------------------------------
    ("real_if_close", "z.real, or np.abs(z)"),
    ("emath.arccos emath.arcsin emath.arctanh emath.log emath.log10 emath.log2 emath.logn "
     "emath.power emath.sqrt", "the function of np itself, of x.astype(np.complex128)"),
    # -- a function of yours for each element ------------------------------------------------------
    ("piecewise", "np.select([x < 0, x >= 0], [f(x), g(x)])"),
    ("vectorize frompyfunc",
     "the function itself on arrays; @spmd.kernel for a loop over elements"),
    ("apply_along_axis apply_over_axes", "the function itself with axis=, or spmd.range"),
    # -- a loop over elements, or tables -----------------------------------------------------------
    ("gcd", "a loop of remainders: while np.any(b != 0): a, b = b, a % b"),
    ("lcm", "a * b // gcd, with a loop of remainders: while np.any(b != 0): a, b = b, a % b"),
    ("frexp", "np.floor(np.log2(np.abs(x))) is the exponent"),
    ("ldexp", "x * 2.0 ** k"),
    ("nextafter spacing", "np.abs(x) * np.finfo(x.dtype).eps is the distance, up to a factor of 2"),
    ("i0", "a polynomial with np.polyval, or @spmd.kernel"),
    ("packbits unpackbits", "(x[:, None] >> np.arange(8)) & 1 has the bits; a sum of shifts packs"),
    ("place ndarray.resize", "x[mask] = v, or x[...] = np.where(mask, v, x)"),
    ("lib.stride_tricks.as_strided", "np.lib.stride_tricks.sliding_window_view, or slices of x"),
    ("ndarray.view ndarray.byteswap ndarray.getfield ndarray.setfield ndarray.strides "
     "ndarray.base ndarray.ctypes ndarray.data ndarray.flags ndarray.setflags isfortran",
     "x.astype(t) converts, x[...] shows the same elements"),
    ("may_share_memory shares_memory", "x.copy() is an array of its own"),
    ("nested_iters nditer ndenumerate", "for k in spmd.range(x.shape[0]): row = x[k]"),
    # -- linear algebra and Fourier transforms -----------------------------------------------------
    ("polyfit", "np.linalg.lstsq(np.vander(x, k), y)[0]"),
    ("roots", "np.linalg.eigvals of the companion matrix"),
    ("poly", "np.convolve(p, [1, -root]), for one root after the other"),
    # -- files and text ----------------------------------------------------------------------------
    ("save savez savez_compressed savetxt ndarray.dump ndarray.dumps ndarray.tofile",
     "return the array from the program; run -o name=file.npy writes it"),
    ("array2string array_repr array_str", 'spmd.print("... {}", value)'),
    ("ndarray.tolist ndarray.tobytes", "return the array from the program"),
    ("ndarray.item", "x[k] is the element as a 0-d array"),
    # -- other kinds of array ----------------------------------------------------------------------
    ("asmatrix bmat", "np.block, and @ for products"),
    ("asarray_chkfinite", "np.asarray(x); np.all(np.isfinite(x)) says whether"),
    ("isnat", "integers of a unit of time that you choose"),
    ("from_dlpack ndarray.to_device ndarray.device", "spmd.input takes arrays; layouts say where"),
    ("einsum_path", "np.einsum(...), whose operands are combined from the left"),
    ("ufunc.reduceat", "np.add.at(sums, groups, x), or slices"),
)  # fmt: skip

REMEDIES: dict[str, str] = {name: remedy for names, remedy in _ROWS for name in names.split()}

# What takes no array, or says something about element types, text, dates, or this Python.
NOT_ABOUT_ARRAYS = frozenset(
    "base_repr binary_repr busday_count busday_offset can_cast datetime_as_string datetime_data "
    "format_float_positional format_float_scientific get_include get_printoptions getbufsize "
    "geterr geterrcall is_busday isdtype issubdtype mintypecode printoptions promote_types "
    "set_printoptions setbufsize seterr seterrcall show_config show_runtime test typename "
    "broadcast_shapes info iterable isscalar linalg.test fft.test".split(),
)  # fmt: skip

# NumPy's own: what they give is a constant of the image.
BUILD_TIME: dict[str, str] = {
    **dict.fromkeys(
        "bartlett blackman diag_indices frombuffer fromfunction fromiter fromstring hamming "
        "hanning indices kaiser mask_indices tri tril_indices triu_indices"
        .split(), "of numbers known while building"),
    **dict.fromkeys(
        "fromfile fromregex genfromtxt load loadtxt".split(),
        "the file is read while building; spmd.input reads one at launch"),
}  # fmt: skip

# Attributes that NumPy lets you set, or that you may think it does.
ATTRIBUTES = {
    "shape": "x = x.reshape(shape)",
    "dtype": "x = x.astype(dtype), which converts the elements",
    "T": "x[...] = y.T",
    "flat": "x[...] = v",
    "layout": "x = x.relayout(layout)",
}

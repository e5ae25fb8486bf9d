"""Boolean masks as subscripts: x[mask] = v, and x[mask] where its number of elements is no shape.

x[mask] is a Chosen: all of x, and the mask. Element-wise functions of it are computed everywhere
and are Chosen again; sums and means take the chosen elements; x[mask] = such a one writes them.
Always holds: what a Chosen is where its mask does not hold reaches no other array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from codegen.errors import ShapeError, UnsupportedError
from codegen.ir.graph import Op, Value
from codegen.trace.array import Array, as_array, wrap
from codegen.trace.context import Context
from codegen.trace.numpy import elementwise, reducing, subscripts
from codegen.trace.numpy.subscripts import refused

# ---- the key -----------------------------------------------------------------------------------


def is_mask(item: Any) -> bool:
    """Return whether an item of a key is a boolean array known only at run time. UnsupportedError
    for places that stand for no mask."""
    if isinstance(item, MaskPlaces):
        raise item.refused()
    return isinstance(item, Array) and item.type.dtype.kind == "b"


def masked(array: Array, key: Any) -> Chosen | None:
    """Return x[key] for a key with one mask; None where it has none."""
    if not any(is_mask(i) for i in (key if isinstance(key, tuple) else (key,))):
        return None
    raw, _ = subscripts.expand(array, key)
    position = next(k for k, item in enumerate(raw) if is_mask(item))
    mask: Array = raw[position]
    integers = [k for k, item in enumerate(raw) if subscripts.is_whole(item)]
    joined = sorted([position, *integers])  # not side by side: NumPy moves the chosen dims first
    others = [i for k, i in enumerate(raw) if k not in joined]
    together = joined[-1] - joined[0] == len(joined) - 1
    if not mask.ndim or not together or not all(i is None or isinstance(i, slice) for i in others):
        raise refused("x[...] with integers and slices first, then [mask]")
    first = sum(subscripts.consumes(i) for i in raw[:position])
    have = array.extents[first : first + mask.ndim]
    if not all(map(elementwise.same_extent, mask.extents, have)):
        raise ShapeError("a boolean index does not match the array",
                         expected=f"a mask of shape {elementwise.shape_text(have)}",
                         found=elementwise.shape_text(mask.extents))
    whole = (*raw[:position], *[slice(None)] * mask.ndim, *raw[position + 1 :])
    shown = subscripts.basic_view(array, subscripts.parse(array, whole)[0])
    mask = wrap(mask.context, mask.read(), scalar=False)  # as it is now
    return Chosen(shown, mask, sum(k not in integers for k in range(position)))


# ---- what is chosen ----------------------------------------------------------------------------


class Chosen(NDArrayOperatorsMixin):
    """The elements of `whole` for which `mask` holds; the mask's first dim is dim
    `mask_dim` of `whole`."""

    def __init__(self, whole: Array, mask: Array, mask_dim: int) -> None:
        self.whole = whole
        self.mask = mask
        self.mask_dim = mask_dim

    @property
    def wide(self) -> Array:
        """The mask, so that it broadcasts to `whole`."""
        rest = self.whole.ndim - self.mask_dim - self.mask.ndim
        broadcastable: Array = self.mask.reshape((*self.mask.shape, *[1] * rest))
        return broadcastable

    def fits(self, other: Chosen) -> bool:
        """Return whether both surely choose the same elements."""
        same = _same_value(self.mask.context, self.mask.read(), other.mask.read())
        return same and (self.mask_dim, self.ndim) == (other.mask_dim, other.ndim)

    def operand(self, x: Any) -> Any:
        """Return x as an operand beside `whole`."""
        if isinstance(x, Chosen):
            if not self.fits(x):
                raise UnsupportedError(
                    "x[mask] and y[other] may have different lengths",
                    expected="the same mask for both, and dims that match",
                    found="two masks that may choose different elements",
                    remedy="give the mask a name and use it for both: m = x > 0; x[m] += y[m]",
                )
            return x.whole
        x = elementwise.normal(x)
        shape = elementwise.extents_of(x)
        place = self.whole.ndim - self.mask_dim - self.mask.ndim  # dims behind the chosen ones
        if len(shape) <= place:
            return x
        if shape[-1 - place] != 1:
            raise UnsupportedError(
                "the length of x[mask] depends on data, so this array may not fit it",
                expected="a number, an array for each chosen element, or y[mask] of the same mask",
                found=f"an array of shape {elementwise.shape_text(shape)}",
                remedy="x[mask] = y[mask], or x[...] = np.where(mask, y, x) with y of the shape "
                "of x",
            )
        x = as_array(x)
        kept = x.ndim - 1 - place
        return x.reshape((*x.shape[:kept], *[1] * self.mask.ndim, *x.shape[kept + 1 :]))

    def like(self, whole: Any) -> Chosen:
        return Chosen(as_array(whole), self.mask, self.mask_dim)

    def write(self, value: Any) -> None:
        """Store in the chosen elements."""
        target, value = self.whole, self.operand(value)
        elementwise.check_assignable(elementwise.extents_of(value), target.extents)
        if isinstance(value, (bool, int, float, complex)):
            value = np.asarray(value).astype(target.dtype)
        value = as_array(value, target.type.dtype)  # np.where would promote
        elementwise.assign(target, elementwise.select(self.wide, value, target))

    # ---- NumPy's functions on it ---------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "reduce" and ufunc in (np.add, np.multiply):
            options.setdefault("axis", 0)  # as all ufuncs reduce
            return reduced("sum" if ufunc is np.add else "prod", *inputs, **options)
        out = options.pop("out", None)
        if method != "__call__" or ufunc is np.matmul or options:
            raise self.refused()
        first = next(x for x in inputs if isinstance(x, Chosen))
        operands = [first.operand(x) for x in inputs]
        if out is None:
            result = elementwise.apply(ufunc, *operands)
            several = isinstance(result, tuple)
            return tuple(map(first.like, result)) if several else first.like(result)
        if not isinstance(out[0], Chosen):
            raise self.refused()
        elementwise.apply(ufunc, *operands, out=first.operand(out[0]))
        return out[0]

    def computed(self, name: str, by_name: Any, args: Any, options: Any) -> Any:
        """Run a function of NumPy's that has this among its arguments. by_name: our functions."""
        if name in _REDUCED:
            return reduced(name, *args, **options)
        first = next((x for x in args if isinstance(x, Chosen)), None)
        if name not in _EACH or first is None:
            raise self.refused()
        plain = [first.operand(x) if isinstance(x, (Array, Chosen)) else x for x in args]
        return first.like(by_name(name)(*plain, **options))

    def __getattr__(self, name: str) -> Any:
        if name in _REDUCED:
            return lambda *args, **options: reduced(name, self, *args, **options)
        if name in ("clip", "round", "conj", "conjugate"):
            return lambda *args, **options: getattr(np, name)(self, *args, **options)
        if name.startswith("__") or not hasattr(Array, name):
            raise AttributeError(name)
        raise self.refused()

    def astype(self, dtype: Any, **_: Any) -> Chosen:
        return self.like(self.whole.astype(dtype))

    def copy(self) -> Chosen:
        """Return a copy of the chosen elements, as x[mask] is one in NumPy."""
        return Chosen(self.whole.copy(), self.mask, self.mask_dim)

    @property
    def dtype(self) -> Any:
        return self.whole.dtype

    @property
    def ndim(self) -> int:
        """The number of dims of x[mask]."""
        return self.whole.ndim - self.mask.ndim + 1

    @property
    def size(self) -> Any:
        """How many elements are chosen, known at run time: a number as Python's."""
        return _count(reducing.stretched(self.wide, self.whole))

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents; that of the chosen dim is known at run time."""
        extents = self.whole.shape
        end = self.mask_dim + self.mask.ndim
        return (*extents[: self.mask_dim], _count(self.mask), *extents[end:])

    @property
    def real(self) -> Chosen:
        return self.like(self.whole.real)

    @property
    def imag(self) -> Chosen:
        return self.like(self.whole.imag)

    def refused(self, remedy: str = "") -> UnsupportedError:
        """Return the error where the number of elements would have to be known."""
        return refused(remedy)

    def refused_output(self) -> UnsupportedError:
        """Return the error of a program that returns what is chosen."""
        whole = self.mask_dim == 0 and self.mask.ndim == self.whole.ndim
        sized = ("extract(mask, x, size=n)" if whole else
                 f"compress(mask, x, axis={self.mask_dim}, size=n)" if self.mask.ndim == 1 else "")
        remedy = f"{_SIZED.format(sized)}; or " if sized else ""
        return _no_output("x[mask]", remedy + "return np.where(mask, x, other), and the mask as "
                          "another output")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self.refused()

    __array__ = __len__ = __iter__ = __getitem__ = __setitem__ = __bool__ = _refuse


def _count(mask: Array) -> Array:
    """Return how often a mask holds, as a Python integer is: beside others it takes their dtype."""
    return wrap(mask.context, reducing.sum_(mask).read(), weak=True, scalar=True)


class MaskPlaces(Chosen):
    """The places where a mask holds, np.nonzero(mask)[dim]; dim None: places in the raveled mask,
    or rows of all. indices: makes the array of all places, from which the mask chooses."""

    def __init__(
        self, mask: Array, dim: int | None, indices: Callable[[], Array], name: str
    ) -> None:
        self.mask, self.mask_dim, self.dim = mask, 0, dim
        self._indices, self._name = indices, name

    @property
    def whole(self) -> Array:  # type: ignore[override]
        return self._indices()

    def copy(self) -> Chosen:
        return self

    def refused(self, remedy: str = "") -> UnsupportedError:
        return UnsupportedError(
            f"how many elements np.{self._name} gives depends on data, so it cannot be used here",
            expected="x[np.nonzero(mask)], len of it, element-wise functions and sums of it",
            found="np.nonzero, np.where or the like of an array known only at run time",
            remedy=f"spmd.numpy.{self._name}(x, size=n), with the first n; x[mask] = v, "
            "x[mask].sum(), np.where(mask, x, other) need no size",
        )

    def refused_output(self) -> UnsupportedError:
        """Return the error of a program that returns the places."""
        sized = _SIZED.format(f"{self._name}(x, size=n)")
        return _no_output(f"np.{self._name}(x)", f"{sized}; or return the mask itself")


_SIZED = "return spmd.numpy.{}, which has the first n and fills up behind them"


def _no_output(text: str, remedy: str) -> UnsupportedError:
    """Return the error for an output whose length only the run knows."""
    return UnsupportedError(
        f"{text} has a length that depends on data; it cannot be an output",
        expected="outputs whose shapes are known while building",
        found="a mask whose elements only the run knows", remedy=remedy,
    )


def as_masks(key: Any) -> Any:
    """Return a key with the mask itself where it has all places at which a mask holds."""
    if isinstance(key, MaskPlaces):
        return key.mask if key.mask.ndim == 1 and key.dim == 0 else key
    if not isinstance(key, tuple) or not any(isinstance(k, MaskPlaces) for k in key):
        return key
    items, rest = [], list(key)
    while rest:
        first = rest[0]
        if isinstance(first, MaskPlaces):
            n = first.mask.ndim
            run = rest[:n]
            if all(isinstance(p, MaskPlaces) and p.dim == d and first.fits(p)
                   for d, p in enumerate(run)) and len(run) == n:
                items.append(first.mask)
                rest = rest[n:]
                continue
        items.append(rest.pop(0))
    return tuple(items)


_EACH = {
    "angle", "around", "clip", "imag", "isclose", "isneginf", "isposinf", "nan_to_num", "real",
    "round", "where",
}
_REDUCED: dict[str, Callable[..., Any]] = {
    "sum": reducing.sum_, "prod": reducing.prod, "mean": reducing.mean, "any": reducing.any_,
    "all": reducing.all_, "std": reducing.std, "var": reducing.var, "max": reducing.max_,
    "min": reducing.min_, "amax": reducing.max_, "amin": reducing.min_,
    "count_nonzero": lambda x, axis, *, where: reducing.sum_(
        as_array(x, np.bool_), axis, where=where),
}


def reduced(name: str, chosen: Any, axis: Any = None, *args: Any, **options: Any) -> Any:
    """Reduce all that is chosen, or along a tuple of dims with the chosen one among them."""
    if not isinstance(chosen, Chosen) or options.get("where", True) is not True:
        raise refused()
    options = {k: v for k, v in options.items() if v is not np._NoValue}
    if options.get("keepdims") is False:
        options.pop("keepdims")
    dims: Any = None
    if axis is not None:
        axes = reducing.dims_of(axis, chosen.ndim, f"np.{name}")
        if chosen.mask_dim not in axes or "keepdims" in options:
            raise refused()
        more = chosen.mask.ndim - 1
        dims = [d if d < chosen.mask_dim else d + more for d in axes if d != chosen.mask_dim]
        dims = (*dims, *range(chosen.mask_dim, chosen.mask_dim + more + 1))
    if name in ("max", "min", "amax", "amin") and options.get("initial") is None:
        raise refused(f"np.{name}(x, where=mask, initial=v): v is the result where nothing is "
                      "chosen, which is an error in NumPy")
    return _REDUCED[name](chosen.whole, dims, *args, **options, where=chosen.wide)


# ---- whether two masks are one -----------------------------------------------------------------


def _same_value(context: Context, a: Value, b: Value) -> bool:
    """Return whether two values are computed by equal ops from the same values."""
    if a is b:
        return True
    producers = {v: op for block in context.blocks for op in block.ops for v in op.results}
    known: dict[tuple[Value, Value], bool] = {}

    def same(x: Value, y: Value) -> bool:
        if x is y:
            return True
        if (x, y) not in known:
            p, q = producers.get(x), producers.get(y)
            known[x, y] = p is not None and q is not None and _same_op(p, q) and (
                p.results.index(x) == q.results.index(y)
            ) and all(map(same, p.operands, q.operands))
        return known[x, y]

    return same(a, b)


def _same_op(p: Op, q: Op) -> bool:
    """Return whether two ops have equal kinds, as many operands, and no regions."""
    simple = not p.regions and not q.regions and len(p.operands) == len(q.operands)
    return simple and p.kind == q.kind

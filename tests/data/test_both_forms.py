"""Operations on a whole batch give the bits that they give of each example; others refuse it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spmd
from spmd import data

# mypy: ignore-errors

# Ready operations that take a batch in the place of an example, with some of their options.
ANY = {
    "normalise": data.normalise,
    "normalise l1": lambda x: data.normalise(x, norm="l1"),
    "normalise max": lambda x: data.normalise(x, norm="max"),
    "standardise": lambda x: data.standardise(x, mean=0.3, std=0.25),
    "standardise by channel": lambda x: data.standardise(
        x, mean=np.linspace(0, 1, x.shape[-1]), std=np.linspace(0.5, 2, x.shape[-1])),
    "standardise lanes": lambda x: data.standardise(x, axis=-1),
    "rescale": lambda x: data.rescale(x, low=0.1, high=0.9, to=(-1, 1)),
    "binarise": lambda x: data.binarise(x, 0.4),
    "to_float": data.image.to_float,
    "brightness": lambda x: data.image.brightness(x, 1.3),
    "one_hot": lambda x: data.one_hot(np.asarray(x > 0.5, np.int64), 2)[..., 1],
}
COLOURED = {
    "saturation": lambda x: data.image.saturation(x, 0.4),
    "adjust_hue": lambda x: data.image.adjust_hue(x, 0.2),
    "to_gray": data.image.to_gray,
}
ONE_PICTURE = {
    "crop": lambda x, rng: data.image.crop(x, 1, 1, 2, 2),
    "center_crop": lambda x, rng: data.image.center_crop(x, (2, 2)),
    "random_crop": lambda x, rng: data.image.random_crop(x, (2, 2), rng),
    "random_resized_crop": lambda x, rng: data.image.random_resized_crop(x, (2, 2), rng),
    "flip": lambda x, rng: data.image.flip(x),
    "random_flip": lambda x, rng: data.image.random_flip(x, rng, p=1.0),
    "resize": lambda x, rng: data.image.resize(x, (3, 3)),
    "rotate": lambda x, rng: data.image.rotate(x, 20),
    "contrast": lambda x, rng: data.image.contrast(x, 1.3),
    "jitter": lambda x, rng: data.image.jitter(x, rng, contrast=0.5),
}
NEITHER = {"decode", "size_of"}  # of the bytes of a file


def in_both_forms(change, x, size, shuffle=True):
    """Return, as bytes, the examples of a pipeline of one example and of one in batches of
    `size`."""
    source = data.arrays(x=x)

    @data.pipeline(source=source, shuffle=shuffle)
    def one(example):
        return {"x": change(example.x)}

    @data.batched(source=source, size=size, shuffle=shuffle)
    def several(examples):
        return {"x": change(examples.x)}

    return [p.compute(1, len(x) + 1) for p in (one, several)]


def same(change, x, size, shuffle=True):
    one, other = in_both_forms(change, x, size, shuffle)
    assert not one.failures and not other.failures
    one, other = one.arrays["x"], other.arrays["x"]
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


@st.composite
def examples(draw, channels=None):
    """Numbers of any dtype that pictures have; all zeros, and the ends of what is shown, too."""
    shape = draw(st.sampled_from([(), (1,), (5, 7), (33,), (16, 17)]))
    shape = (*shape, channels or draw(st.sampled_from([1, 2, 3, 9, 130])))
    dtype = np.dtype(draw(st.sampled_from(["uint8", "float16", "float32", "float64"])))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x = rng.random((draw(st.integers(1, 9)), *shape))
    x[rng.random(x.shape) < draw(st.sampled_from([0, 0.2, 1]))] = draw(st.sampled_from([0, 1]))
    return (x * 255 + 0.5 if dtype == np.uint8 else x).astype(dtype)


@pytest.mark.parametrize("name", [*ANY, *COLOURED])
def test_each_operation(name):
    @given(examples(3 if name in COLOURED else None), st.integers(1, 5))
    def tried(x, size):
        same({**ANY, **COLOURED}[name], x, size)

    tried()


@given(examples(3), st.integers(1, 5), st.lists(st.sampled_from([*ANY, *COLOURED]), min_size=2,
                                               max_size=5), st.booleans())
def test_one_after_the_other(x, size, names, shuffle):
    def change(x):
        for name in names:
            if name in ANY:
                x = ANY[name](x)
            elif x.shape[-1:] == (3,) and (x.dtype == np.uint8 or x.dtype.kind == "f"):
                x = COLOURED[name](x)
        return x

    same(change, x, size, shuffle)


@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from([(), (3,), (4, 2)]))
def test_classes(n, size, shape):
    labels = np.random.default_rng(n).integers(0, 7, (n, *shape))
    same(lambda x: data.one_hot(x, 7), labels, size)


@pytest.mark.parametrize("name", ONE_PICTURE)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_operations_on_one_picture_refuse_a_batch(name, dtype):
    """Whatever they would do with it, it would be another thing than with each picture."""
    x, rng = np.ones((4, 5, 6, 3), dtype), np.random.default_rng(0)
    for one in x:
        ONE_PICTURE[name](one, rng)
    with pytest.raises(spmd.InputError, match=r"\(4, 5, 6, 3\)"):
        ONE_PICTURE[name](x, rng)


def test_all_operations_are_here():
    """A new one says in which form it works."""
    known = {name.split()[0] for name in {**ANY, **COLOURED}}
    assert known | ONE_PICTURE.keys() | NEITHER == {
        *data.image.__all__, "normalise", "standardise", "rescale", "binarise", "one_hot"}


def test_a_difference_is_noticed():
    """A function that mixes a batch's examples gives other bits than each example by itself."""
    x = np.random.default_rng(0).random((6, 4))
    with pytest.raises(AssertionError):
        same(data.standardise, x, 3)

"""Operations on the colours of pictures: brightness, contrast, saturation, hue, gray.

Always holds: factor 1 changes nothing; uint8 stays uint8, rounded to nearest; floats are between 0
and 1, and stay floats. Gray is 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.errors import InputError

GRAY = np.array([0.299, 0.587, 0.114], np.float32)


def to_float(image: Any, dtype: Any = np.float32) -> np.ndarray:
    """Convert uint8 from 0 to 255 to floats from 0 to 1.

    ::

        >>> data.image.to_float(np.uint8([0, 51, 255])).tolist()
        [0.0, 0.20000000298023224, 1.0]
    """
    image = np.asarray(image)
    if image.dtype != np.uint8:
        return image.astype(dtype, copy=False)
    scaled = _in_order(image).astype(dtype)
    if scaled.dtype.kind != "f":
        return scaled / np.dtype(dtype).type(255)
    scaled /= scaled.dtype.type(255)
    return scaled


def _in_order(image: np.ndarray) -> np.ndarray:
    """Return the same pixels, copied as wholes where a mirrored picture has them backwards in
    memory: NumPy would copy so few channels one by one."""
    if image.ndim != 3 or image.strides[2] != 1 or image.strides[1] >= 0 or not image.size:
        return image
    pixels = image.view(f"V{image.shape[2]}")[..., 0]
    return np.ascontiguousarray(pixels).view(np.uint8).reshape(image.shape)


def to_gray(image: Any) -> np.ndarray:
    """Convert (height, width, 3) to gray (height, width), of the same dtype.

    ::

        >>> data.image.to_gray(np.uint8([[[255, 0, 0], [0, 255, 0], [10, 10, 10]]])).tolist()
        [[76, 150, 10]]
    """
    image = _coloured(image)
    if image.dtype == np.uint8:  # in integers, as Pillow has it
        wide = image.astype(np.int32)
        summed = wide[..., 0] * 19595 + wide[..., 1] * 38470 + wide[..., 2] * 7471 + 0x8000
        return (summed >> 16).astype(np.uint8)
    red, green, blue = GRAY.astype(image.dtype)  # a product of matrices rounds as its shape is
    return image[..., 0] * red + image[..., 1] * green + image[..., 2] * blue


def brightness(image: Any, factor: float) -> np.ndarray:
    """Multiply each value by factor: 0 gives black, 1 changes nothing.

    ::

        >>> data.image.brightness(np.uint8([[10, 200]]), 1.5).tolist()
        [[15, 255]]
    """
    return _blended(np.asarray(image), 0.0, factor)


def contrast(image: Any, factor: float) -> np.ndarray:
    """Change the contrast by a factor: 0 gives the picture's mean gray everywhere, 1 changes
    nothing.

    InputError for several pictures in one array: each has a mean of its own.
    """
    image = np.asarray(image)
    if image.ndim not in (2, 3) or image.shape[2:] not in ((), (1,), (3,)):
        raise InputError(
            "contrast is changed of one picture at a time", found=f"{image.dtype} {image.shape}",
            expected="(height, width), (height, width, 1) or (height, width, 3)",
            remedy="np.stack([data.image.contrast(one, factor) for one in pictures])")
    gray = to_gray(image) if image.shape[2:] == (3,) else image
    mean = float(gray.mean())
    return _blended(image, float(int(mean + 0.5)) if image.dtype == np.uint8 else mean, factor)


def saturation(image: Any, factor: float) -> np.ndarray:
    """Change the saturation by a factor: 0 gives a gray picture, 1 changes nothing."""
    return _blended(_coloured(image), to_gray(image)[..., None], factor)


def adjust_hue(image: Any, shift: float) -> np.ndarray:
    """Move the hue by `shift` turns of the colour circle, from -0.5 to 0.5.

    ::

        >>> data.image.adjust_hue(np.uint8([[[255, 0, 0]]]), 1 / 3).tolist()
        [[[0, 255, 0]]]
    """
    image = _coloured(image)
    plain = to_float(image, np.float32 if image.dtype == np.uint8 else image.dtype)
    high, low = plain.max(-1), plain.min(-1)
    span = high - low
    red, green, blue = np.moveaxis(plain, -1, 0)
    safe = np.where(span > 0, span, 1)
    hue = np.where(
        high == red, (green - blue) / safe,
        np.where(high == green, 2 + (blue - red) / safe, 4 + (red - green) / safe))
    hue = (hue + 6 * shift) % 6
    # As A. R. Smith, "Color gamut transform pairs", 1978, in a form without branches.
    turned = (hue[..., None] + np.array([5, 3, 1], plain.dtype)) % 6
    adjusted = high[..., None] - span[..., None] * np.clip(np.minimum(turned, 4 - turned), 0, 1)
    return _as_given(adjusted * (255 if image.dtype == np.uint8 else 1), image.dtype)


def jitter(
    image: Any, rng: np.random.Generator, *, brightness: float = 0.0, contrast: float = 0.0,
    saturation: float = 0.0, hue: float = 0.0,
) -> np.ndarray:
    """Change brightness, contrast and saturation by factors drawn from 1 - x to 1 + x, the hue by
    -hue to hue, in an order that is drawn too.

    ::

        bright = data.image.jitter(picture, rng, brightness=0.4, hue=0.1)
    """
    image = np.asarray(image)
    steps = [
        *((change, rng.uniform(max(0.0, 1 - x), 1 + x)) for change, x in (
            (_brightness, brightness), (_contrast, contrast), (_saturation, saturation)) if x),
        *([(adjust_hue, rng.uniform(-hue, hue))] if hue else []),
    ]
    for k in rng.permutation(len(steps)):
        change, amount = steps[k]
        image = change(image, float(amount))
    return image


_brightness, _contrast, _saturation = brightness, contrast, saturation  # jitter has such parameters


def _blended(image: np.ndarray, other: Any, factor: float) -> np.ndarray:
    """Return factor * image + (1 - factor) * other, within what the dtype shows."""
    if factor < 0:
        raise InputError("a factor of colours is negative", expected="0 or more",
                         found=repr(factor))
    if image.dtype == np.uint8 and np.ndim(other) == 0:  # 256 values: look them up
        every = np.arange(256, dtype=np.float32)
        return _as_given(factor * every + (1 - factor) * other, image.dtype)[image]
    plain = image.astype(np.float32 if image.dtype == np.uint8 else image.dtype)
    return _as_given(plain * factor + np.asarray(other, plain.dtype) * (1 - factor), image.dtype)


def _as_given(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype == np.uint8:
        return (np.clip(values, 0, 255) + 0.5).astype(np.uint8)
    return np.clip(values, 0, 1).astype(dtype)


def _coloured(image: Any) -> np.ndarray:
    image = np.asarray(image)
    if image.ndim < 1 or image.shape[-1] != 3 or image.dtype.kind not in "uf" or (
            image.dtype.kind == "u" and image.dtype != np.uint8):
        raise InputError(
            "this picture has no colours", expected="uint8 or floats, (height, width, 3)",
            found=f"{image.dtype} {image.shape}", remedy="data.image.decode(raw, 'RGB')")
    return image

"""Operations on pictures: (height, width) or (height, width, channels) arrays, NumPy in and out.

Always holds: what comes in is not written to, and may be a view; uint8 stays uint8. Pillow decodes,
resizes and rotates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.errors import InputError
from codegen.user.casts import may_cast, range_text
from spmd.data.colours import (
    adjust_hue,
    brightness,
    contrast,
    jitter,
    saturation,
    to_float,
    to_gray,
)
from spmd.data.picture_files import decode, decoded, is_raw, pillow, size_of

__all__ = [
    "adjust_hue", "brightness", "center_crop", "contrast", "crop", "decode", "flip", "jitter",
    "random_crop", "random_flip", "random_resized_crop", "resize", "rotate", "saturation",
    "size_of", "to_float", "to_gray",
]

METHODS = {"nearest": 0, "bilinear": 2}  # Pillow's numbers
ENOUGH = 2  # a file is decoded at so many times the size that it is resized to, or more


# ---- parts of a picture


def crop(image: Any, top: int, left: int, height: int, width: int) -> np.ndarray:
    """Cut out the part of this height and width whose first pixel is (top, left).

    ::

        >>> data.image.crop(np.arange(12).reshape(3, 4), 1, 2, 2, 2).tolist()
        [[6, 7], [10, 11]]
    """
    image = _picture(image)
    if height < 0 or width < 0:
        raise InputError("a part of a picture has no such size", found=repr((height, width)),
                         expected="(height, width), each from 0")
    if not (0 <= top <= image.shape[0] - height and 0 <= left <= image.shape[1] - width):
        raise _larger(image, (height, width), f" from ({top}, {left})")
    return image[top : top + height, left : left + width]


def center_crop(image: Any, size: tuple[int, int]) -> np.ndarray:
    """Cut out the middle, of size (height, width).

    ::

        >>> data.image.center_crop(np.arange(5)[None] + np.zeros((3, 1)), (1, 3)).tolist()
        [[1.0, 2.0, 3.0]]
    """
    image, (height, width) = _picture(image), _size(size)
    return crop(image, (image.shape[0] - height) // 2, (image.shape[1] - width) // 2, height, width)


def random_crop(image: Any, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Cut out a part of size (height, width), at a place drawn by rng."""
    image, size = _picture(image), _size(size)
    rest = image.shape[0] - size[0], image.shape[1] - size[1]
    if min(rest) < 0:
        raise _larger(image, size)
    return crop(image, int(rng.integers(rest[0] + 1)), int(rng.integers(rest[1] + 1)), *size)


def random_resized_crop(
    image: Any, size: tuple[int, int], rng: np.random.Generator,
    scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> np.ndarray:
    """Cut out a part with a share of the area within `scale`, and width / height within `ratio`,
    and resize it.

    Ten parts are drawn; if none fits, the largest one in the middle is taken, as others do. Of the
    bytes of a file the same part is taken, and only as many pixels are decoded as `resize` says.
    """
    high, wide = size_of(image) if is_raw(image) else _picture(image).shape[:2]
    part = _drawn_part(high, wide, rng, scale, ratio)
    return _resized(image, size, _method("bilinear"), part)


def _drawn_part(
    high: int, wide: int, rng: np.random.Generator, scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Return the part that is drawn, as (top, left, height, width)."""
    for _ in range(10):
        area = high * wide * rng.uniform(*scale)
        side = np.exp(rng.uniform(*np.log(ratio)))
        width, height = round(np.sqrt(area * side)), round(np.sqrt(area / side))
        if 0 < width <= wide and 0 < height <= high:
            top, left = (int(rng.integers(n + 1)) for n in (high - height, wide - width))
            return top, left, height, width
    side = min(max(wide / high, ratio[0]), ratio[1])
    height, width = min(high, round(wide / side)), min(wide, round(high * side))
    return (high - height) // 2, (wide - width) // 2, height, width


def flip(image: Any, axis: int = 1) -> np.ndarray:
    """Mirror a picture along an axis: 1 swaps left and right, 0 top and bottom.

    ::

        >>> data.image.flip(np.array([[1, 2, 3]])).tolist()
        [[3, 2, 1]]
    """
    return np.flip(_picture(image), axis)


def random_flip(image: Any, rng: np.random.Generator, axis: int = 1, p: float = 0.5) -> np.ndarray:
    """Mirror a picture with probability p."""
    return flip(image, axis) if rng.random() < p else _picture(image)


# ---- pixels between pixels


def resize(image: Any, size: tuple[int, int], method: str = "bilinear") -> np.ndarray:
    """Resize a picture to (height, width), by "bilinear" or "nearest".

    Where bilinear makes a picture smaller, each pixel is the weighted mean of all that it covers,
    as in Pillow. Integers of 8 bits and floats stay what they are; float64 is computed as float32,
    with its 7 digits. Of the bytes of a file, a JPEG is decoded at a half, a quarter or an eighth
    of its size, if that is at least twice `size`: colours are hardly others then, and large
    photographs take far less time.

    ::

        >>> data.image.resize(np.float32([[0, 1]]), (1, 4)).tolist()
        [[0.0, 0.25, 0.75, 1.0]]
    """
    return _resized(image, size, _method(method))


def _resized(
    image: Any, size: tuple[int, int], how: int, part: tuple[int, int, int, int] | None = None
) -> np.ndarray:
    """Resize a picture, or a part of it. part: (top, left, height, width) of what is resized."""
    height, width = size = _size(size)
    share, box = 1, None
    if is_raw(image):
        whole = size_of(image)
        part = part or (0, 0, *whole)
        enough = [ENOUGH * n * all_of // own for n, all_of, own in zip(size, whole, part[2:])]
        image, share = decoded(image, "RGB", (enough[0], enough[1]))
    if part and share == 1:
        image = crop(image, *part)
    elif part:  # counted in the pixels that were decoded
        top, left, high, wide = (n / share for n in part)
        box = left, top, min(left + wide, image.shape[1]), min(top + high, image.shape[0])
    return _by_planes(image, lambda plane: plane.resize((width, height), how, box=box))


def rotate(
    image: Any, degrees: float, method: str = "bilinear", fill: float = 0
) -> np.ndarray:
    """Turn a picture counter-clockwise about its middle, the size unchanged; corners that nothing
    comes to are filled. float64 is computed as float32. Use np.rot90 for quarter turns of pictures
    that are not square.

    ::

        >>> data.image.rotate(np.uint8([[1, 2], [3, 4]]), 90).tolist()
        [[2, 4], [1, 3]]
    """
    how = _method(method)
    return _by_planes(image, lambda plane: plane.rotate(degrees, how, fillcolor=fill), single=True)


def _by_planes(image: Any, change: Any, single: bool = False) -> np.ndarray:
    """Change a picture by Pillow: all colours together if it can, else channel by channel."""
    image = _picture(image)
    if image.dtype == np.bool_ or (image.dtype.kind in "iu" and image.dtype != np.uint8) or (
            image.dtype.kind not in "uf"):
        raise InputError("a picture has another dtype", expected="uint8, or floats",
                         found=f"{image.dtype} {image.shape}",
                         remedy="np.float32(image), divided by the largest value that there is")
    module = pillow()
    if not may_cast(image, np.dtype(np.float32)):
        raise InputError("a picture has values that are too large", expected="those of float32",
                         found=f"{image.dtype}{range_text(image)}",
                         remedy="data.rescale, or another scale")
    plain = image if image.dtype == np.uint8 else image.astype(np.float32)
    if plain.ndim == 2 or (plain.dtype == np.uint8 and plain.shape[2] == 3 and not single):
        changed = np.asarray(change(module.fromarray(np.ascontiguousarray(plain))))
    else:
        planes = [np.asarray(change(module.fromarray(np.ascontiguousarray(plain[:, :, c]))))
                  for c in range(plain.shape[2])]
        changed = np.stack(planes, axis=2)
    return changed.astype(image.dtype, copy=False)


def _method(method: str) -> int:
    if method not in METHODS:
        raise InputError("method of a picture is unknown", expected=" or ".join(METHODS),
                         found=repr(method))
    return METHODS[method]


def _picture(image: Any) -> np.ndarray:
    image = np.asarray(image)
    if image.ndim not in (2, 3):
        raise InputError(
            "this array is no picture", expected="(height, width) or (height, width, channels)",
            found=f"{image.dtype} {image.shape}")
    return image


def _size(size: Any) -> tuple[int, int]:
    two = isinstance(size, tuple | list | np.ndarray) and len(size) == 2
    if not two or not all(isinstance(n, int | np.integer) and n >= 1 for n in size):
        raise InputError("size of a picture is wrong", expected="(height, width), each from 1",
                         found=repr(size))
    return int(size[0]), int(size[1])


def _larger(image: np.ndarray, size: tuple[int, int], where: str = "") -> InputError:
    return InputError(
        "a part is larger than its picture", expected=f"at most {image.shape[:2]}",
        found=f"{size}{where}", remedy="data.image.resize first, or data.pad")

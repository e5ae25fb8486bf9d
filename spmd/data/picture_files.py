"""Pictures of files: decoded whole, or a JPEG at a part of its size where less is enough.

In: the bytes of a file, or its path. Out: arrays, (height, width[, channels]), mostly uint8.
Always holds: simplejpeg, if it is there, gives the pixels that Pillow gives, only sooner; whatever
it does not take, Pillow reads.
"""

from __future__ import annotations

import io
import os
from functools import cache
from importlib import import_module
from typing import Any, TypeGuard

import numpy as np

from codegen.errors import EnvironmentFault, InputError

SHARES = (8, 4, 2)  # a JPEG can be decoded at an eighth, a quarter, a half of its size
SMALLEST = 16  # pixels: below this several scales of libjpeg give one size
JPEG = b"\xff\xd8\xff"
# Modes whose values are no 8 bits, and those that hold all of them: Pillow would clip in others.
DEEP = {"I": ("I", "F"), "F": ("F",), **dict.fromkeys(
    ("I;16", "I;16L", "I;16B", "I;16N"), ("I;16", "I", "F"))}

Raw = bytes | bytearray | memoryview


@cache
def pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise EnvironmentFault(
            "spmd.data.image needs Pillow", expected="the package pillow", found="none",
            remedy="pip install pillow, where the workers run") from None


@cache
def faster() -> Any:
    """Return simplejpeg, or None where it is not installed."""
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


def is_raw(image: Any) -> TypeGuard[Raw]:
    """Return whether a value is the bytes of a file that are not decoded yet."""
    return isinstance(image, Raw)


def decode(
    raw: Raw | str | os.PathLike[str], mode: str = "RGB",
    at_least: tuple[int, int] | None = None,
) -> np.ndarray:
    """Decode a picture from the bytes of a file, or its path: JPEG, PNG and all that Pillow reads.

    mode: "RGB" gives uint8 (height, width, 3), "L" gray uint8 (height, width), "RGBA" with the
    opacity. Depth maps and others of 16 bits, 32 bits or floats are given by "I;16", "I" and "F" as
    they are: uint16, int32, float32; no other mode takes them. at_least: (height, width) that are
    enough. A JPEG is then decoded at a half, a quarter or an eighth of its size, the smallest that
    is as large; that takes less time. Other files are decoded whole.

    Pixels come as they lie in the file. How the camera was held (EXIF orientation) is not heeded,
    as in torchvision: np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(path))) is upright.

    Raises InputError for what is no picture, or ends too early, and for values that the mode cannot
    hold.

    ::

        picture = data.image.decode(example.bytes)
        small = data.image.decode(example.bytes, at_least=(192, 192))
    """
    return decoded(raw, mode, at_least)[0]


def size_of(raw: Raw | str | os.PathLike[str]) -> tuple[int, int]:
    """Return (height, width) of an encoded picture: its first bytes are enough."""
    if is_raw(raw) and raw[:3] == JPEG and faster():
        try:
            height, width = faster().decode_jpeg_header(raw)[:2]
            return height, width
        except ValueError:
            pass  # Pillow says what is wrong
    with _reading(raw), _open(raw) as opened:
        width, height = opened.size
        return height, width


def decoded(
    raw: Raw | str | os.PathLike[str], mode: str = "RGB", at_least: tuple[int, int] | None = None
) -> tuple[np.ndarray, int]:
    """Return the picture, and which share of its size it has: 1, 2, 4 or 8 pixels are one in it."""
    with _reading(raw):
        if mode == "RGB" and is_raw(raw) and raw[:3] == JPEG and faster():
            picture = _by_simplejpeg(raw, at_least)
            if picture:
                return picture
        with _open(raw) as opened:
            share = _share((opened.height, opened.width), at_least)
            if share > 1:
                before = opened.size
                opened.draft(None, (before[0] // share, before[1] // share))
                share = 1 if opened.size == before else share
            _check_holds(mode, opened)
            pixels = np.array(opened if opened.mode == mode else opened.convert(mode))
            return pixels.astype(pixels.dtype.newbyteorder("="), copy=False), share


def _check_holds(mode: str, opened: Any) -> None:
    """Raise InputError where values of the picture would be clipped."""
    own = opened.mode
    if own in DEEP and mode not in (own, *DEEP[own]):
        raise InputError(
            f"a picture of mode {own} does not fit into mode {mode}",
            expected="values of 8 bits" if mode not in DEEP else f"values that {mode} can hold",
            found="floats" if own == "F" else f"integers of {16 if '16' in own else 32} bits",
            remedy=f"data.image.decode(raw, {own!r}) gives them as they are; scale them yourself")


def _by_simplejpeg(raw: Any, at_least: tuple[int, int] | None) -> tuple[np.ndarray, int] | None:
    """Return a JPEG picture that simplejpeg decodes, and which share of its size it has; None if
    Pillow is to read the picture, or to report why it cannot be read."""
    library = faster()
    try:
        height, width, colours, _ = library.decode_jpeg_header(raw)
        if colours not in ("YCbCr", "Gray") or height * width > (pillow().MAX_IMAGE_PIXELS or 0):
            return None
        share = _share((height, width), at_least)
        if share == 1:
            return library.decode_jpeg(raw, "RGB"), 1
        if min(height, width) < SMALLEST:
            return None
        want = -(-height // share), -(-width // share)
        pixels = library.decode_jpeg(raw, "RGB", min_height=want[0], min_width=want[1])
        return (pixels, share) if pixels.shape[:2] == want else None
    except ValueError:
        return None


def _share(size: tuple[int, int], at_least: tuple[int, int] | None) -> int:
    if at_least is None:
        return 1
    most = min(have // max(enough, 1) for have, enough in zip(size, at_least))
    return next((s for s in SHARES if s <= most), 1)


def _open(raw: Any) -> Any:
    return pillow().open(io.BytesIO(raw) if is_raw(raw) else raw)


class _reading:
    """Turn what Pillow raises while it reads into InputError."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __enter__(self) -> None:
        pillow()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        known = OSError, SyntaxError, ValueError, pillow().DecompressionBombError
        if not isinstance(error, known):
            return
        raw = self.raw
        size = f"{len(raw)} bytes" if is_raw(raw) else os.fspath(raw)
        text = str(error) if "BytesIO" not in str(error) else "of no format that Pillow knows"
        raise InputError(
            "a picture cannot be decoded", expected="JPEG, PNG or another picture",
            found=f"{size}: {text}") from None

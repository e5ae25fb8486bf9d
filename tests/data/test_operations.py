"""Operations beside what others compute: Pillow, matplotlib, scikit-learn, plain Python."""

from __future__ import annotations

import doctest
import importlib
import io
import pkgutil
import unicodedata
from collections import Counter
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import matplotlib.colors
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy import ndimage

import spmd
from spmd import data

PHOTO = Path(find_spec("sklearn").origin).parent / "datasets" / "images" / "china.jpg"


@pytest.fixture(scope="module")
def photo():
    return data.image.decode(PHOTO.read_bytes())


def rng(seed=0):
    return np.random.default_rng(seed)


def near(found, expected, most):
    return np.abs(found.astype(int) - np.asarray(expected).astype(int)).max() <= most


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(data.__path__)])
def test_examples_of_docstrings_are_true(module):
    found = importlib.import_module(f"spmd.data.{module}")
    assert doctest.testmod(found, extraglobs={"data": data, "np": np}).failed == 0


@pytest.mark.parametrize("name", data.__all__)
def test_every_public_name_is_explained(name):
    assert len((getattr(data, name).__doc__ or "").split()) > 3


# ---- pictures


def test_decoding(photo):
    with Image.open(PHOTO) as opened:
        assert np.array_equal(photo, np.asarray(opened)) and photo.shape == (427, 640, 3)
        gray = np.asarray(opened.convert("L"))
    assert np.array_equal(data.image.to_gray(photo), gray)
    assert np.array_equal(data.image.decode(PHOTO, "RGB"), photo)
    png = io.BytesIO()
    Image.fromarray(photo[:9, :7]).save(png, "PNG")
    assert np.array_equal(data.image.decode(png.getvalue()), photo[:9, :7])
    raw = PHOTO.read_bytes()
    for wrong in (raw[: len(raw) // 2], b"text", b""):
        with pytest.raises(spmd.InputError, match="cannot be decoded"):
            data.image.decode(wrong)


@pytest.mark.parametrize("kind, form, mode, held", [
    (np.uint16, "PNG", "I;16", ("I", "F")), (">u2", "TIFF", "I;16B", ("I", "F")),
    (np.int32, "TIFF", "I", ("F",)), (np.float32, "TIFF", "F", ()),
])
def test_deep_pictures_are_given_as_they_are_or_refused(kind, form, mode, held):
    values = (np.arange(12) * 4096 / (1 if mode != "F" else 50000)).reshape(3, 4).astype(kind)
    file = io.BytesIO()
    Image.fromarray(values).save(file, form)
    raw = file.getvalue()
    found = data.image.decode(raw, mode)
    assert np.array_equal(found, values) and found.dtype == values.dtype.newbyteorder("=")
    for wider in held:
        assert np.array_equal(data.image.decode(raw, wider), values)
    for narrow in {"RGB", "L", "RGBA"} | {"I;16", "I"} - {mode, *held, "I;16" * ("16" in mode)}:
        with pytest.raises(spmd.InputError, match=f"decode.raw, '{mode}'. gives them as they are"):
            data.image.decode(raw, narrow)
    with pytest.raises(spmd.InputError, match="does not fit into mode RGB"):
        data.image.resize(raw, (2, 2))
    with pytest.raises(spmd.InputError, match="divided by the largest") if mode != "F" else (
            nullcontext()):
        data.image.resize(found, (2, 2))


def jpeg(pixels, **how):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **how)
    return file.getvalue()


def test_the_faster_decoder_gives_the_same_pixels(photo, monkeypatch):
    """Sizes, kinds of JPEG and scales; damaged files and those of other colours go to Pillow."""
    pytest.importorskip("simplejpeg")
    draw, cases = rng(3), []
    for k in range(24):
        high, wide = draw.integers(1, 200, 2)
        part = photo[:high, :wide] if k % 5 else photo[:high, :wide, 0]
        enough = None if k % 3 else (int(draw.integers(1, 90)), int(draw.integers(1, 90)))
        cases.append((jpeg(part, quality=int(draw.integers(20, 99)), subsampling=k % 3,
                           progressive=k % 4 == 0), enough))
    cmyk = io.BytesIO()
    Image.fromarray(photo[:40, :40]).convert("CMYK").save(cmyk, "JPEG")
    cases.append((cmyk.getvalue(), None))
    faster = [data.picture_files.decoded(raw, "RGB", enough) for raw, enough in cases]
    sizes = [data.image.size_of(raw) for raw, _ in cases]
    with pytest.raises(spmd.InputError, match="cannot be decoded"):
        data.image.decode(cases[0][0][:300])
    monkeypatch.setattr(data.picture_files, "faster", lambda: None)
    for (raw, enough), (found, share), size in zip(cases, faster, sizes):
        expected, other = data.picture_files.decoded(raw, "RGB", enough)
        assert share == other and np.array_equal(found, expected)
        assert data.image.size_of(raw) == size and found.shape[0] == -(-size[0] // share)
    assert {share for _, share in faster} >= {1, 2, 4}


def test_large_photographs_are_decoded_small(photo):
    """Nearly the picture that decoding all of it gives, and the very part that would be drawn."""
    large = np.asarray(Image.fromarray(photo).resize((1280, 854), Image.Resampling.LANCZOS))
    raw = jpeg(large, quality=92)
    assert data.image.size_of(raw) == (854, 1280)
    assert data.image.decode(raw, at_least=(213, 320)).shape == (214, 320, 3)
    assert data.image.decode(raw, at_least=(215, 320)).shape == (427, 640, 3)
    whole = data.image.decode(raw)
    for change in (lambda of: data.image.resize(of, (48, 72)),
                   *(lambda of, k=k: data.image.random_resized_crop(of, (40, 40), rng(k))
                     for k in range(4))):
        off = np.abs(change(whole).astype(int) - change(raw))
        assert off.mean() < 1 and off.max() < 30  # of 255
    small = jpeg(photo)  # nothing can be left out: bit for bit the same
    assert np.array_equal(data.image.resize(small, (300, 400)),
                          data.image.resize(data.image.decode(small), (300, 400)))
    with pytest.raises(spmd.InputError, match="cannot be decoded"):
        data.image.random_resized_crop(b"text", (9, 9), rng())


@pytest.mark.parametrize("size", [(32, 48), (427, 640), (500, 100), (1, 1)])
def test_resize_is_a_triangle_filter(photo, size):
    """Weights written out: each pixel is a mean of what it covers, or lies between."""
    def weights(n, out):
        scale = max(n / out, 1.0)
        centre = (np.arange(out)[:, None] + 0.5) * n / out
        w = np.clip(1 - np.abs((np.arange(n) + 0.5 - centre) / scale), 0, None)
        return w / w.sum(1, keepdims=True)

    down, across = weights(427, size[0]), weights(640, size[1])
    expected = np.einsum("ih,hwc,jw->ijc", down, photo.astype(float), across, optimize=True)
    assert near(data.image.resize(photo, size), np.round(expected), 1)
    floats = data.image.resize(data.image.to_float(photo), size)
    assert floats.dtype == np.float32 and np.abs(floats * 255 - expected).max() < 1e-2


def test_nearest_takes_pixels(photo):
    small = data.image.resize(photo, (61, 64), "nearest")
    rows = ((np.arange(61) + 0.5) * 427 / 61).astype(int)
    assert np.array_equal(small, photo[rows][:, 5::10])


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_quarter_turns_are_exact(photo, degrees):
    square = photo[:200, :200]
    assert np.array_equal(data.image.rotate(square, degrees), np.rot90(square, degrees // 90))


def test_rotation_beside_scipy(photo):
    plain = ndimage.gaussian_filter(data.image.to_float(photo).mean(2), 3).astype(np.float32)
    expected = ndimage.rotate(plain, 17, reshape=False, order=1)
    inner = slice(90, -90), slice(150, -150)
    assert np.abs(data.image.rotate(plain, 17)[inner] - expected[inner]).max() < 5e-3
    colours = data.image.rotate(photo, 45, fill=7)
    assert (colours[0, 0] == 7).all() and colours.shape == photo.shape


def test_parts_and_mirrors(photo):
    assert np.array_equal(data.image.center_crop(photo, (27, 40)), photo[200:227, 300:340])
    places = {data.image.random_crop(np.arange(6)[None], (1, 4), rng(k))[0, 0] for k in range(50)}
    assert places == {0, 1, 2}
    assert np.array_equal(data.image.random_crop(photo, photo.shape[:2], rng()), photo)
    flips = [np.array_equal(data.image.random_flip(photo[:2, :9], rng(k)), photo[:2, :9])
             for k in range(200)]
    assert 70 < sum(flips) < 130
    assert np.array_equal(data.image.flip(photo, 0), photo[::-1])
    crops = [data.image.random_resized_crop(photo, (8, 9), rng(k)) for k in range(5)]
    assert {c.shape for c in crops} == {(8, 9, 3)} and len({c.tobytes() for c in crops}) == 5
    thin = data.image.random_resized_crop(photo[:2], (8, 9), rng(), scale=(1, 1))
    middle = data.image.center_crop(photo[:2], (2, 3))
    assert np.array_equal(thin, data.image.resize(middle, (8, 9)))
    assert data.image.center_crop(photo, (27, 40)).base is not None  # a view: nothing is copied
    for wrong in (lambda: data.image.crop(photo, 0, 0, 428, 1), lambda: data.image.flip([1, 2]),
                  lambda: data.image.random_crop(photo, (1, 641), rng()),
                  lambda: data.image.resize(photo, (0, 1)),
                  lambda: data.image.to_gray(photo[..., 0]),
                  lambda: data.image.resize(photo, (2, 2), "cubic"),
                  lambda: data.image.resize(photo.astype(int), (2, 2))):
        with pytest.raises(spmd.InputError):
            wrong()


def test_floats_of_mirrored_parts(photo):
    """However the pixels lie in memory."""
    for part in (photo[9:40, 5:30], photo[:7, :9, 1], photo[:3, ::2], photo[:4, :5, :2], photo[:0],
                 np.moveaxis(photo[:8, :6], 2, 0)):
        for mirrored in (part, part[:, ::-1], part[::-1], part[::-1, ::-1]):
            for kind in (np.float32, np.float16, np.float64):
                found = data.image.to_float(mirrored, kind)
                assert found.dtype == kind
                assert np.array_equal(found, mirrored.astype(kind) / kind(255))


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_colours_beside_pillow(photo, factor):
    picture = Image.fromarray(photo)
    for mine, theirs in ((data.image.brightness, ImageEnhance.Brightness),
                         (data.image.contrast, ImageEnhance.Contrast),
                         (data.image.saturation, ImageEnhance.Color)):
        assert near(mine(photo, factor), theirs(picture).enhance(factor), 1), mine.__name__
        plain = mine(data.image.to_float(photo), factor)
        assert plain.dtype == np.float32 and near(plain * 255, mine(photo, factor), 2)
        if factor == 1.0:
            assert np.array_equal(mine(photo, factor), photo)


def test_hue_beside_matplotlib(photo):
    part = data.image.to_float(photo[:60, :60])
    for shift in (-0.5, -0.1, 0.0, 0.2):
        hsv = matplotlib.colors.rgb_to_hsv(part)
        hsv[..., 0] = (hsv[..., 0] + shift) % 1
        expected = matplotlib.colors.hsv_to_rgb(hsv)
        assert np.abs(data.image.adjust_hue(part, shift) - expected).max() < 1e-5
    assert np.array_equal(data.image.adjust_hue(photo, 0.0), photo)


def test_jitter_is_drawn(photo):
    part = photo[:20, :20]
    assert np.array_equal(data.image.jitter(part, rng()), part)
    every = {data.image.jitter(part, rng(k), brightness=0.4, contrast=0.4, saturation=0.4,
                               hue=0.1).tobytes() for k in range(9)}
    assert len(every) == 9


# ---- numbers

NUMBERS = rng().normal(size=(7, 5)).astype(np.float32)


def test_scales_beside_sklearn():
    from sklearn import preprocessing  # a second, and not for each worker

    x = NUMBERS.copy()
    x[3] = 0
    for norm in ("l1", "l2", "max"):
        assert np.allclose(data.normalise(x, norm=norm), preprocessing.normalize(x, norm))
    x[:, 2] = 4.0
    assert np.allclose(data.standardise(x, axis=0), preprocessing.StandardScaler().fit_transform(x),
                       atol=1e-5)
    assert np.allclose(data.rescale(x, x.min(0), x.max(0), (-1, 2)),
                       preprocessing.MinMaxScaler((-1, 2)).fit_transform(x), atol=1e-5)
    assert np.array_equal(data.binarise(x, 0.3), preprocessing.binarize(x, threshold=0.3))
    for out in (data.normalise(x), data.standardise(x), data.rescale(x), data.binarise(x)):
        assert out.dtype == np.float32
    labels = np.array([2, 0, 1, 1])
    assert np.array_equal(data.one_hot(labels, 3),
                          preprocessing.label_binarize(labels, classes=range(3)))


def test_lengths():
    assert np.array_equal(data.pad(NUMBERS, (9, 8), 7),
                          np.pad(NUMBERS, ((0, 2), (0, 3)), constant_values=7))
    assert data.stack([[1, 2], [3]]).tolist() == [[1, 2], [3, 0]]
    for empty in (data.pad_or_cut([], 3, value=-1), data.stack([[], [1, 2]])):  # of an empty line
        assert empty.dtype == np.int64
    assert data.stack([NUMBERS, NUMBERS[:2]], length=[4, 8]).shape == (2, 8, 5)
    for wrong in (lambda: data.pad([1, 2], 1), lambda: data.bucket(9, (4, 8)),
                  lambda: data.one_hot([3], 3), lambda: data.one_hot([0.5], 3),
                  lambda: data.pad(NUMBERS, (9,)), lambda: data.normalise(NUMBERS, norm="l3")):
        with pytest.raises(spmd.InputError):
            wrong()


# ---- text

CORPUS = (PHOTO.parent / "README.txt").read_text()


def test_text_to_tokens_and_back():
    assert data.text.normalise("Straße  ÉCLAIR", accents=False) == "strasse eclair"
    assert data.text.normalise(CORPUS) == " ".join(
        unicodedata.normalize("NFKC", CORPUS).casefold().split())
    assert data.text.decode_bytes(data.text.fixed_bytes("né", 8)) == "né"
    with pytest.raises(spmd.InputError, match="at most 2 bytes"):
        data.text.fixed_bytes("né", 2)
    assert data.text.windows(np.arange(10), 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert data.text.windows([1, 2], 3).shape == (0, 3)


def test_vocabularies(tmp_path):
    words = data.text.words(CORPUS.lower(), punctuation=False)
    v = data.text.Vocabulary.build([words], size=20, specials=["<?>", "<pad>"])
    common = Counter(words).most_common()
    assert len(v) == 20 and set(v.words[2:12]) <= {w for w, n in common if n >= common[19][1]}
    tokens = v.encode(words)
    assert all(w in ("<?>", given) for w, given in zip(v.decode(tokens), words))
    assert (tokens == 0).sum() == sum(w not in v for w in words)
    v.save(tmp_path / "words.txt")
    again = data.text.Vocabulary.read(tmp_path / "words.txt", unknown="<?>")
    assert again.words == v.words and again.encode(words).tolist() == tokens.tolist()
    with pytest.raises(spmd.InputError, match="not in the vocabulary"):
        data.text.Vocabulary(["a"], None).encode(["b"])
    with pytest.raises(spmd.InputError, match="twice"):
        data.text.Vocabulary(["a", "a"])


@pytest.mark.parametrize("specials, unknown, stands", [
    ((), "<unknown>", False), ((), None, False), (("<unknown>",), "<unknown>", True),
    (("<unknown>",), None, False), (("<pad>", "<?>"), "<?>", True), (("<?>",), "<unknown>", False),
])
def test_no_word_of_a_file_stands_for_others_unless_asked(tmp_path, specials, unknown, stands):
    built = data.text.Vocabulary.build([["the", "cat"], ["the"]], specials=specials)
    built.save(tmp_path / "words.txt")
    default = () if unknown == "<unknown>" else (unknown,)
    read = data.text.Vocabulary.read(tmp_path / "words.txt", *default)
    assert read.encode(["cat"]) == built.encode(["cat"])
    if stands:
        assert read.decode(read.encode(["dog"])) == [unknown]
        return
    with pytest.raises(spmd.InputError, match="'dog'"):
        read.encode(["dog"])


PAIRS = data.text.BytePairs.train([CORPUS], size=400)


def test_byte_pairs_are_the_most_frequent(tmp_path):
    """Beside the algorithm without its counts: look at everything each time."""
    pieces = Counter(importlib.import_module("spmd.data.byte_pairs").PIECE.findall(CORPUS))
    words = {piece: list(piece.encode()) for piece in pieces}
    for number, pair in enumerate(PAIRS.pairs[:40], 256):
        counts = Counter()
        for piece, tokens in words.items():
            for two in zip(tokens, tokens[1:]):
                counts[two] += pieces[piece]
        assert pair == min(counts, key=lambda two: (-counts[two], two))
        for tokens in words.values():
            k = 0
            while k < len(tokens) - 1:
                if (tokens[k], tokens[k + 1]) == pair:
                    tokens[k : k + 2] = [number]
                k += 1
    assert len(PAIRS.encode(CORPUS)) < 0.6 * len(CORPUS.encode())
    PAIRS.save(tmp_path / "pairs.json")
    assert data.text.BytePairs.read(tmp_path / "pairs.json").pairs == PAIRS.pairs
    (tmp_path / "pairs.json").write_text("[1]")
    with pytest.raises(spmd.InputError, match="no byte pairs"):
        data.text.BytePairs.read(tmp_path / "pairs.json")


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_byte_pairs_lose_nothing(text):
    assert PAIRS.decode(PAIRS.encode(text)) == text


def test_what_others_call_normalising_is_named():
    with pytest.raises(spmd.InputError, match=r"data.standardise\(x, mean, std\)"):
        data.normalise(np.ones((2, 2, 3)), [0.5, 0.5, 0.5], [0.2, 0.2, 0.2])
    for size in (32, (32,), (0, 4), (2.5, 3)):
        with pytest.raises(spmd.InputError, match=r"\(height, width\), each from 1"):
            data.image.resize(np.ones((4, 4)), size)
        with pytest.raises(spmd.InputError, match=r"\(height, width\), each from 1"):
            data.image.center_crop(np.ones((4, 4)), size)


# ---- numbers at the ends of their dtypes


def test_lengths_of_complex_numbers_and_of_large_ones():
    assert np.allclose(data.normalise([3 + 4j, 0]), [0.6 + 0.8j, 0])
    for dtype, by in ((np.float16, 100), (np.float32, 1e30), (np.float64, 1e300),
                      (np.float64, 1e-300), (np.complex64, 1e30)):
        found = data.normalise(np.array([3, 4], dtype) * dtype(by))
        assert found.dtype == dtype and np.allclose(found, [0.6, 0.8], rtol=1e-3)
    halves = np.arange(1000).astype(np.float16) * np.float16(60)
    found = data.standardise(halves)
    assert found.dtype == np.float16
    assert np.allclose(found, data.standardise(halves.astype(float)), atol=0.01)
    wide = np.float16([-60000, 0, 60000])
    assert data.rescale(wide).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(("a", "value"), [
    ([1, 2], np.nan), ([1, 2], 0.5), ([True], 2), (np.uint8([1]), -1), (np.int8([1]), 300),
    (np.float16([1]), 1e6), ([1.0], 1j)])
def test_padding_with_what_a_dtype_has_not_is_refused(a, value):
    for pad in (lambda: data.pad(a, 4, value), lambda: data.pad_or_cut(a, 4, value),
                lambda: data.stack([a, a], 4, value)):
        with pytest.raises(spmd.InputError, match="padded with what its dtype has not"):
            pad()


def test_padding_with_what_a_dtype_has():
    assert data.pad([1], 2, 3.0).tolist() == [1, 3] and data.pad([True], 2).tolist() == [True, 0]
    assert np.array_equal(data.pad([1.0], 2, np.nan), [1, np.nan], equal_nan=True)
    assert data.pad(np.float32([1]), 2, 0.1)[1] == np.float32(0.1)


def test_arrays_that_differ_in_more_than_their_length_are_not_stacked():
    with pytest.raises(spmd.InputError, match="differ in more than their length"):
        data.stack([np.ones((1, 2)), np.ones((2, 3))])


def test_parts_of_negative_size_are_refused(photo):
    for size in ((-1, 5), (5, -1)):
        for cut in (lambda: data.image.crop(photo, 9, 9, *size),
                    lambda: data.image.center_crop(photo, size),
                    lambda: data.image.random_crop(photo, size, rng())):
            with pytest.raises(spmd.InputError, match="no such size|size of a picture is wrong"):
                cut()


def test_pictures_beyond_float32_are_refused():
    large = np.array([[1e300, 0.0], [0.0, 1.0]])
    for change in (lambda: data.image.resize(large, (4, 4)), lambda: data.image.rotate(large, 9)):
        with pytest.raises(spmd.InputError, match="values that are too large"):
            change()
    assert data.image.resize(large / 1e300, (4, 4)).dtype == np.float64


def test_tokens_of_another_dtype_than_told_are_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(10, dtype=np.int64))
    for tokens in (tmp_path / "t.npy", np.arange(10)):
        with pytest.raises(spmd.InputError, match="another dtype than data.windows is told"):
            data.windows(tokens, 2, dtype=np.uint16).length()
    assert data.windows([1, 2, 3], 2, dtype=np.uint16).get(0).tokens.dtype == np.uint16

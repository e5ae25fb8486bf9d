"""Crops of two real photographs, a temple in China and a flower: flipped, and in other colours.

Workers cut a crop at random each time: sampling="independent" has no epochs, and never ends.
examples/feed_photographs.py learns to say which photograph a crop comes from.
"""

from functools import cache
from pathlib import Path

import sklearn

import spmd.data as data

FOLDER = Path(sklearn.__file__).parent / "datasets" / "images"
NAMES = "china.jpg", "flower.jpg"


@cache  # each worker decodes them once
def photograph(path):
    return data.image.decode(path)


def label(path):
    return NAMES.index(Path(path).name)


@data.pipeline(source=data.files([FOLDER / name for name in NAMES], label=label),
               sampling="independent", seed=1)
def crops(example, rng):
    whole = photograph(example.path)
    left = whole[:, : whole.shape[1] * 2 // 3]  # the right third is held out
    crop = data.image.random_crop(left, (64, 64), rng)
    crop = data.image.random_flip(data.image.resize(crop, (16, 16)), rng)
    crop = data.image.jitter(crop, rng, brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1)
    return {"crop": data.image.to_float(crop), "label": example.label}

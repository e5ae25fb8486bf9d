"""Real hand-written digits in PNG files: workers decode, turn and shift them.

The files are written once, from scikit-learn's data set: 0/0007.png to 9/1796.png, where the name
of the folder is the digit. examples/feed_digits.py learns to read them.
"""

import numpy as np
from caching import cached

import spmd.data as data

TRAIN = 1500  # the other 297 digits are held out


def write(folder):
    from PIL import Image
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    for k in np.random.default_rng(0).permutation(len(pictures))[:TRAIN]:
        place = folder / str(labels[k])
        place.mkdir(exist_ok=True)
        Image.fromarray(np.uint8(pictures[k] * 255 / 16).reshape(8, 8)).save(place / f"{k:04}.png")


FILES = cached(f"digits-{TRAIN}", write) / "*/*.png"


@data.pipeline(source=data.files(FILES, label="folder"), sampling="once", seed=1)
def digits(example, rng):
    picture = data.image.to_float(data.image.decode(example.bytes, "L"))
    picture = data.image.rotate(picture, rng.uniform(-10, 10))
    if rng.random() < 0.5:
        picture = data.image.random_crop(data.pad(picture, (8, 9)), (8, 8), rng)
    return {"picture": picture, "digit": example.label}

"""Real hand-written digits in PNG files: workers decode, turn and shift them.

The files are written once, from scikit-learn's data set, below the folder for caches.
    mpirun -n 3 python -m spmd run digits.img --feed examples/pipelines/digits.py
"""

import os
import tempfile
from pathlib import Path

import numpy as np

import spmd.data as data

TRAIN = 1500  # the other 297 digits are held out: examples/feed_digits.py asks for them
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "spmd-examples"


def files():
    """The folder of the files: 0/0000.png to 9/1499.png, the folder being the digit."""
    folder = CACHE / f"digits-{TRAIN}"
    if not folder.exists():
        from PIL import Image
        from sklearn.datasets import load_digits

        CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        images, labels = load_digits(return_X_y=True)
        for k in np.random.default_rng(0).permutation(len(images))[:TRAIN]:
            (made / str(labels[k])).mkdir(exist_ok=True)
            pixels = np.uint8(images[k] / 16 * 255).reshape(8, 8)
            Image.fromarray(pixels).save(made / str(labels[k]) / f"{k:04}.png")
        try:
            made.rename(folder)
        except OSError:  # another worker was faster
            pass
    return folder


@data.pipeline(source=data.files(f"{files()}/*/*.png", label="folder"), sampling="once", seed=1)
def digits(example, rng):
    image = data.image.to_float(data.image.decode(example.bytes, "L"))
    image = data.image.rotate(image, rng.uniform(-10, 10))
    image = data.image.random_crop(np.pad(image, 1), (8, 8), rng)  # a pixel to any side
    return {"image": image, "digit": example.label}

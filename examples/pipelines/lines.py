"""Lines of Python's documentation as tokens, byte pairs that the text itself suggests.

The text is written once to a file, with the byte pairs found in it. Each line is an example, once
in an epoch; there are two, then the stream ends. examples/feed_lines.py learns what follows what.
"""

from pydoc_data.topics import topics

from caching import cached

import spmd.data as data

LONGEST = 32  # tokens of a line; what is left is cut off


def write(folder):
    lines = [line for name in sorted(topics) for line in topics[name].splitlines() if line.strip()]
    (folder / "topics.txt").write_text("\n".join(lines[:4000]) + "\n", encoding="utf-8")
    data.text.BytePairs.train(lines[:1000], size=384).save(folder / "pairs.json")


FOLDER = cached("topics", write)
PAIRS = data.text.BytePairs.read(FOLDER / "pairs.json")


@data.pipeline(source=data.lines(FOLDER / "topics.txt"), sampling="once", seed=1, epochs=2)
def lines(example):
    tokens = PAIRS.encode(example.text + "\n")
    return {"tokens": data.pad_or_cut(tokens, LONGEST), "length": min(len(tokens), LONGEST)}

"""Byte pair encoding: frequent pairs of tokens become tokens, beginning with the 256 bytes.

P. Gage, "A new algorithm for data compression", 1994; over words, as R. Sennrich, B. Haddow and
A. Birch have it (2016). Always holds: decoding gives the text that was encoded, whatever it is.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from codegen.errors import InputError

PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s+")  # pairs are made within such pieces only
Pair = tuple[int, int]


class BytePairs:
    """Encode text as tokens: 0 to 255 are bytes, each further one stands for a pair of earlier
    ones.

    ::

        >>> pairs = data.text.BytePairs.train(["low lower lowest"], size=259)
        >>> pairs.encode("low slow").tolist()
        [257, 32, 115, 257]
        >>> pairs.decode([257, 32, 115, 257])
        'low slow'
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.pairs = [(int(a), int(b)) for a, b in pairs]
        self._rank = {pair: k for k, pair in enumerate(self.pairs)}
        self._bytes = [bytes([k]) for k in range(256)]
        for number, (a, b) in enumerate(self.pairs, 256):
            if not (0 <= a < number and 0 <= b < number):
                raise InputError("pair of a byte pair encoding", found=f"{(a, b)} for {number}",
                                 expected="tokens that are smaller than the one they make")
            self._bytes.append(self._bytes[a] + self._bytes[b])
        self._piece = lru_cache(1 << 16)(self._encoded)

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> BytePairs:
        """Make tokens of the most frequent pairs of texts, until there are `size` or none is left.

        Among equally frequent pairs the smallest comes first.
        """
        pieces = Counter(piece for text in texts for piece in PIECE.findall(text))
        words = [(list(piece.encode()), n) for piece, n in sorted(pieces.items())]
        counts: Counter[Pair] = Counter()
        where: defaultdict[Pair, set[int]] = defaultdict(set)
        for k, (tokens, n) in enumerate(words):
            for pair in zip(tokens, tokens[1:]):
                counts[pair] += n
                where[pair].add(k)
        pairs: list[Pair] = []
        while len(pairs) < size - 256 and counts:
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            if counts[best] < 2:
                break
            for k in sorted(where.pop(best)):
                tokens, n = words[k]
                for pair in zip(tokens, tokens[1:]):
                    counts[pair] -= n
                tokens[:] = _merged(tokens, best, 256 + len(pairs))
                for pair in zip(tokens, tokens[1:]):
                    counts[pair] += n
                    where[pair].add(k)
            pairs.append(best)
            counts = +counts  # without those that are gone
        return cls(pairs)

    def __len__(self) -> int:
        return len(self._bytes)

    def encode(self, text: str, dtype: Any = np.int32) -> np.ndarray:
        """Return the tokens of a text: (number of tokens,)."""
        tokens = [token for piece in PIECE.findall(text) for token in self._piece(piece)]
        return np.array(tokens, dtype)

    def _encoded(self, piece: str) -> tuple[int, ...]:
        tokens = list(piece.encode())
        while len(tokens) > 1:
            last = len(self.pairs)
            rank = min(self._rank.get(pair, last) for pair in zip(tokens, tokens[1:]))
            if rank == last:
                break
            tokens = _merged(tokens, self.pairs[rank], 256 + rank)
        return tuple(tokens)

    def decode(self, tokens: Any) -> str:
        """Return the text of tokens; bytes that are no whole character are marked."""
        raw = b"".join(self._bytes[t] for t in np.asarray(tokens).tolist())
        return raw.decode(errors="replace")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, for `read`."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"pairs": self.pairs}, file)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> BytePairs:
        """Read a file that `save` wrote. InputError for another file."""
        try:
            with open(path, encoding="utf-8") as file:
                return cls((int(a), int(b)) for a, b in json.load(file)["pairs"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{os.fspath(path)} has no byte pairs", found=str(error),
                             expected="a file that BytePairs.save wrote") from None


def _merged(tokens: list[int], pair: Pair, number: int) -> list[int]:
    """Return the pair as one token, from left to right."""
    merged: list[int] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] = number
        else:
            merged.append(token)
    return merged

"""Vocabularies: which integer stands for which word.

In: lists of words, or a file with a word a line. Out: tokens, and words again.
Always holds: special words come first, then the others by how often they came, then by name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from codegen.errors import InputError


class Vocabulary:
    """Words in the order of their numbers. Other words become `unknown`, one of these words.

    ::

        >>> v = data.text.Vocabulary.build([["a", "b"], ["b", "c"]])
        >>> v.words
        ['<unknown>', 'b', 'a', 'c']
        >>> v.encode(["c", "x"]).tolist(), v.decode([1, 0])
        ([3, 0], ['b', '<unknown>'])
    """

    def __init__(self, words: Iterable[str], unknown: str | None = "<unknown>") -> None:
        self.words = list(words)
        self._numbers = {word: k for k, word in enumerate(self.words)}
        if len(self._numbers) < len(self.words):
            twice = [w for w, n in Counter(self.words).items() if n > 1]
            raise InputError("a word is twice in a vocabulary", expected="each word once",
                             found=repr(twice[0]))
        self.unknown = self._numbers.get(unknown, -1) if unknown is not None else -1

    @classmethod
    def build(
        cls, texts: Iterable[Sequence[str]], *, size: int | None = None, least: int = 1,
        specials: Sequence[str] = ("<unknown>",),
    ) -> Vocabulary:
        """Make a vocabulary of texts: words that come `least` times or more, `size` at most.

        specials: words that come first, and count; the first one stands for all that is not there.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        frequent = sorted((w for w, n in counts.items() if n >= least and w not in specials),
                          key=lambda w: (-counts[w], w))
        kept = frequent if size is None else frequent[: max(size - len(specials), 0)]
        return cls([*specials, *kept], specials[0] if specials else None)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    def __getitem__(self, word: str) -> int:
        """Return the number of a word. InputError if it has none, and nothing stands for unknown
        ones."""
        number = self._numbers.get(word, self.unknown)
        if number < 0:
            raise InputError("a word is not in the vocabulary", found=repr(word),
                             expected=f"one of {len(self)} words",
                             remedy="build(…, specials=['<unknown>']), or read(path, unknown="
                             "word): that word stands for all such")
        return number

    def encode(self, words: Iterable[str], dtype: Any = np.int32) -> np.ndarray:
        """Return the numbers of words: (number of words,)."""
        return np.fromiter((self[word] for word in words), dtype)

    def decode(self, tokens: Any) -> list[str]:
        """Return the words of numbers."""
        return [self.words[t] for t in np.asarray(tokens).tolist()]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a text file, a word on each line, for `read`."""
        wrong = [w for w in self.words if not w or "\n" in w or "\r" in w]
        if wrong:
            raise InputError("a word cannot stand on a line", expected="no end of line in it",
                             found=repr(wrong[0]))
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(word + "\n" for word in self.words)

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], unknown: str | None = "<unknown>"
    ) -> Vocabulary:
        """Read a vocabulary from a text with a word a line. unknown: which of them stands for
        others, if it is there; None: no word does."""
        with open(path, encoding="utf-8", newline="\n") as file:
            words = file.read().removesuffix("\n").split("\n")
        return cls(words, unknown)

"""What a misspelt word probably means."""

import pytest

from codegen.suggest import VERY_LIKE, meant, nearest

NAMES = ("ranks", "layout", "build", "RANDOM_SEED")


@pytest.mark.parametrize(("word", "name"), [
    ("rank", "ranks"), ("bild", "build"), ("Layout", "layout"), ("random_sed", "RANDOM_SEED"),
    ("x", ""), ("", ""), (4, ""), (None, ""),
])
def test_the_name_that_is_most_like_it(word: object, name: str) -> None:
    assert nearest(word, NAMES) == name


def test_as_a_remedy() -> None:
    assert meant("rank", NAMES, "{}=…") == "ranks=…, if that is what you mean"
    assert meant("run", NAMES) == meant("bald", NAMES, least=VERY_LIKE) == ""

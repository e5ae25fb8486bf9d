"""What a misspelt word probably means."""

import pytest

from codegen.suggest import VERY_LIKE, meant, meant_keyword, nearest

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


def test_a_keyword_that_a_function_does_not_take() -> None:
    def run(ranks: int, layout: str = "") -> None: ...

    def remedy(**wrong: object) -> str:
        with pytest.raises(TypeError) as error:
            run(**wrong)  # type: ignore[arg-type]
        return meant_keyword(error.value, NAMES)

    assert remedy(ranks=1, layuot="x") == "layout=…, if that is what you mean"
    assert remedy(ranks=1, volume=3) == remedy(layout="x") == ""

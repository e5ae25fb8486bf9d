"""Checkers of JSON values: what they refuse, and the place that they name."""

from __future__ import annotations

import re

import pytest

from codegen.validators import (
    Invalid,
    all_of,
    by_name,
    each,
    flag,
    integer,
    maybe,
    number,
    one_of,
    pattern,
    record,
    row,
    shown,
    table,
    text,
)

SMALL = integer(0, 9)
LOWER = pattern(re.compile("[a-z]+"), "lower-case letters")
WORK = record(id=LOWER, span=row(SMALL, SMALL), rates=by_name(each(number, 2), 2, LOWER),
              end=maybe(SMALL))
IMAGE = table({"place": text(3)}, from_=all_of(text(None), one_of("a", "b")), many=each(flag, 3))
GOOD = {"id": "a", "span": [1, 2], "rates": {"x": [0, 1.5]}, "end": None}


@pytest.mark.parametrize(("check", "value", "says"), [
    (WORK, [], "expected an object, found a list"),
    (WORK, {**GOOD, "more": 1}, "expected only the fields id, span, rates, end, found 'more'"),
    (WORK, {"id": "a"}, "expected a field 'span', found nothing"),
    (WORK, {**GOOD, "id": "A\n"}, r"id: expected lower-case letters, found 'A\n'"),
    (WORK, {**GOOD, "span": [1]}, "span: expected a list of 2 items, found 1"),
    (WORK, {**GOOD, "span": [1, 10]}, "span[1]: expected an integer from 0 to 9, found 10"),
    (WORK, {**GOOD, "span": [True, 1]}, "span[0]: expected an integer from 0 to 9, found True"),
    (WORK, {**GOOD, "end": 1.0}, "end: expected an integer from 0 to 9, found 1.0"),
    (WORK, {**GOOD, "rates": {"X": []}}, "rates: expected lower-case letters, found 'X'"),
    (WORK, {**GOOD, "rates": {"x": [0] * 3}}, "rates.x: expected a list of at most 2 items, "
                                              "found 3"),
    (WORK, {**GOOD, "rates": {"x": [0, -1]}}, "rates.x[1]: expected a number from 0 on, found -1"),
    (WORK, {**GOOD, "rates": {"x": [float("nan")]}}, "rates.x[0]: expected a number from 0 on, "
                                                     "found nan"),
    (WORK, {**GOOD, "rates": dict.fromkeys("xyz", [])}, "rates: expected an object of at most 2 "
                                                        "entries, found 3"),
    (IMAGE, {"many": []}, "expected a field 'from', found nothing"),
    (IMAGE, {"from": "c", "many": []}, "from: expected one of a, b, found 'c'"),
    (IMAGE, {"from": "a", "many": [True, 0]}, "many[1]: expected true or false, found 0"),
    (IMAGE, {"from": "a", "many": [], "place": "long"}, "place: expected a text of at most 3 "
                                                        "characters, found 'long'"),
])
def test_a_refusal_names_place_expected_and_found(check, value, says):
    with pytest.raises(Invalid) as caught:
        check(value)
    assert str(caught.value) == says


def test_what_is_valid_is_accepted():
    """A record fills in what may be missing; a table reads nothing else."""
    value = {one: GOOD[one] for one in GOOD if one != "end"}
    WORK(value)
    assert value == GOOD
    IMAGE(image := {"from": "b", "many": [True], "more": 1})
    assert image == {"from": "b", "many": [True], "more": 1}


def test_what_was_found_is_short():
    assert [*map(shown, (None, {}, [], 3, (1,)))] == [
        "nothing", "an object", "a list", "3", "a value of type tuple"]
    assert len(shown("x" * 10**6)) == len(shown(10**200)) == 80

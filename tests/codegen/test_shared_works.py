"""Works that a program does several times are one function of C, and give what each gave alone."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.emit.alike import differing, numbers, tokens

MANY = 9


@spmd.program(mesh=("r",))
def alike():
    """Rows that are normed alike, updates of one statement, and one that differs in a number;
    random numbers of several seeds."""
    rate = spmd.scalar("rate", 0.5)
    rows = [spmd.input(f"x{k}", (9, 5), np.float32, layout=("r", None),
                       default=lambda i, j, k=k: (i * 5 + j + k) % 7) for k in range(MANY)]
    moments = [spmd.input(f"m{k}", (5,), np.float64, default=lambda j, k=k: j + k)
               for k in range(MANY)]
    start = [spmd.random.uniform(seed=k, shape=(6,)) for k in range(4)]
    for step in spmd.range(3):
        for k in range(MANY):
            x = rows[k]
            mean = np.mean(x, axis=1, keepdims=True)
            x = (x - mean) / np.sqrt(np.mean((x - mean) ** 2, axis=1, keepdims=True) + 1e-3)
            rows[k] = np.where(x > 0.5 * rate, x + step, x * rate + (0.25 if k == 3 else 0.5))
            moments[k] = moments[k] * 0.9 + np.sum(x, axis=0) * (0.2 if k == 5 else 0.1)
    named = zip("xms", (rows, moments, start), strict=True)
    return {f"{name}{k}": x for name, arrays in named for k, x in enumerate(arrays)}


@pytest.mark.parametrize("ranks", (1, 3, 5))
def test_as_numpy(ranks):
    out, plain = spmd.build(alike).run(ranks=ranks, rate=0.75), alike.eager(rate=0.75)
    assert out.keys() == plain.keys()
    for name, x in plain.items():
        np.testing.assert_allclose(out[name], x, rtol=2e-5, atol=1e-6, err_msg=name)


def test_what_is_alike_stands_there_once():
    text = lower(alike.graph({})).source.text
    functions = re.findall(r"^static void (shared_\d+)\(", text, re.M)
    calls = {name: len(re.findall(rf"^ +{name}\(", text, re.M)) for name in functions}
    assert calls and all(count >= 3 for count in calls.values()), calls
    assert text.count("spmd_sqrt_f32(") <= 3  # the first row, the last one, all others
    assert text.count("spmd_philox_first_u64(") == 1 and "const uint64_t number" in text
    for name in ("pull", "send", "exchange"):
        assert len(re.findall(rf"^static void {name}_\w+\(", text, re.M)) == 1, name


def test_numbers_that_are_as_fast_in_a_variable():
    text = "x[4] = 0.5f * a - 1e-05 + spmd_pow_f64(b, 3.0) / 7.0 + spmd_philox_first_u64(i, 5u, 2u)"
    pieces = tokens(text)
    assert "".join(pieces) == text
    assert [pieces[k] for k in numbers(pieces)] == ["0.5f", "1e-05", "5u", "2u"]
    assert differing([("1", "a", "1", "c"), ("2", "a", "2", "d")]) == [[0, 2], [3]]


def test_few_and_short_ones_stay_in_their_place():
    @spmd.program(mesh=("r",))
    def two():
        a, b = (spmd.input(n, (8,), np.float64, layout=("r",), default=lambda i: i) for n in "ab")
        for _ in spmd.range(2):
            a, b = np.sqrt(a + 1) * a, np.sqrt(b + 1) * b
        return a, b

    assert "static void shared_" not in lower(two.graph({})).source.text

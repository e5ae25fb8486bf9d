"""Python state that a compiled body would change once instead of every time: refused, by line."""

import collections
import datetime
import itertools
import os
import random
import re
import threading
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import ProgramError, UnsupportedError
from codegen.oracle import interpret
from codegen.trace.program import Program

RNG = np.random.default_rng(0)
HIDDEN = threading.local()  # whose attributes nobody can see from outside
CALLS = 0
SEEN: set[int] = set()
TABLES: dict[int, Any] = {}
WEIGHTS = np.zeros(3)
SPACE = types.SimpleNamespace(n=0)


class Box:
    total = 0

    def __init__(self) -> None:
        self.n = 0

    def bump(self) -> int:
        self.n += 1
        return self.n


BOX = Box()


def bump():
    global CALLS
    CALLS += 1  # here: global
    return CALLS


def table(n):
    """A cache, which fills once."""
    if n not in TABLES:
        TABLES[n] = np.hanning(n)
    return TABLES[n]


def program(f: Callable[..., Any]) -> Program:
    def whole():
        x = spmd.input("x", (6,), layout=("r",), default=lambda i: i * 1.0)
        return f(x)

    made: Program = spmd.program(whole, mesh=("r",))
    return made


# ---- refused: the function, and what the message says; the line is marked ------------------------


def generator_of_the_program(x):
    rng = np.random.default_rng(1)
    for i in spmd.range(4):
        x[i] = rng.random()  # here
    return x


def generator_of_the_module(x):
    for _ in spmd.range(4):
        x = x + RNG.normal()  # here
    return x


def module_random(x):
    for i in spmd.range(4):
        x[i] = random.random()  # here
    return x


def old_numpy(x):
    for _ in spmd.range(4):
        x = x + np.random.rand()  # here
    return x


def shuffled(x):
    order = [1.0, 2.0, 3.0]
    for _ in spmd.range(4):
        random.shuffle(order)  # here
        x = x + order[0]
    return x


def next_of_an_iterator(x):
    rates = iter([1.0, 2.0, 3.0, 4.0])
    for i in spmd.range(4):
        x[i] = next(rates)  # here
    return x


def for_over_a_generator(x):
    rates = (float(k) for k in range(100))
    for _ in spmd.range(4):
        for v in rates:  # here
            x = x + v
    return x


def sum_of_an_iterator(x):
    rates = iter([1.0, 2.0])
    for _ in spmd.range(4):  # here
        x = x + sum(rates)
    return x


def lines_of_a_file(x):
    with open(__file__) as file:
        for _ in spmd.range(4):
            x = x + len(file.readline())  # here
    return x


def while_of_an_iterator(x):
    counter = itertools.count()
    while x.sum() < 300:
        x = x + next(counter)  # here
    return x


def deque(x):
    waiting = collections.deque([1.0, 2.0, 3.0, 4.0])
    for _ in spmd.range(4):
        x = x + waiting.popleft()  # here
    return x


def list_in_fori(x):
    kept = []

    def body(i, x):
        kept.append(i)  # here
        return x + len(kept)

    return spmd.fori_loop(0, 4, body, x)


def nonlocal_in_scan(x):
    n = 0

    def body(carry, v):
        nonlocal n
        n += 1  # here
        return carry + n, v

    return spmd.scan(body, 0.0, x)[0]


def while_loop_condition(x):
    kept = []

    def more(x):
        kept.append(1)  # here
        return x.sum() < 100

    return spmd.while_loop(more, lambda x: x + 1, x)


def global_in_a_helper(x):
    for _ in spmd.range(4):  # in the body
        x = x + bump()
    return x


def set_of_the_module(x):
    for _ in spmd.range(4):
        SEEN.add(len(SEEN))  # here
        x = x + len(SEEN)
    return x


def attribute_of_a_class(x):
    for _ in spmd.range(4):
        Box.total += 1  # here
        x = x + Box.total
    return x


def attribute_of_a_namespace(x):
    for _ in spmd.range(4):
        SPACE.n += 1  # here
        x = x + SPACE.n
    return x


def object_in_fori(x):
    def body(i, x):
        return x + BOX.bump()

    return spmd.fori_loop(0, 4, body, x)  # in the body


def numpy_in_a_helper(x):
    def body(i, x):
        WEIGHTS[0] = WEIGHTS[0] + 1  # here
        return x + WEIGHTS[0]

    return spmd.fori_loop(0, 4, body, x)


def shard_map_that_keeps(x):
    shapes = []

    @spmd.shard_map(out_layouts=("r",))
    def local(v):
        shapes.append(v.shape)  # here
        return v

    return local(x)


def shard_map_that_draws(x):
    rng = np.random.default_rng(0)

    @spmd.shard_map(out_layouts=("r",))
    def local(v):
        return v + rng.random()  # here

    return local(x)


def branch_that_draws(x):
    rng = np.random.default_rng(0)
    if x.sum() > 3:
        x = x + rng.random()  # here
    return x


def conditional_expression(x):
    rng = np.random.default_rng(0)
    return x + (rng.random() if x.sum() > 3 else 0.0)  # here


def arm_of_cond(x):
    kept = []

    def one(x):
        kept.append(1)  # here
        return x

    return spmd.cond(x.sum() > 3, one, lambda x: x + 1, x) + len(kept)


def what_nobody_sees(x):
    HIDDEN.n = 0.0
    for _ in spmd.range(4):
        HIDDEN.n += 1
        x = x + HIDDEN.n  # here
    return x


def drawn_from_the_module(x):
    return x + RNG.normal(size=6)  # here


def drawn_by_old_numpy(x):
    return x + np.random.rand(6)  # here


def no_seed(x):
    return x + np.random.default_rng().random()  # here


def clock(x):
    return x + time.time()  # here


def today(x):
    return x + datetime.datetime.now().year  # here


def entropy(x):
    return x + os.urandom(1)[0]  # here


def identifier(x):
    return x + uuid.uuid4().int  # here


LOOP, BRANCH, RANKS = "not once per iteration", "whichever is taken", "not once per rank"
REFUSED = [
    (generator_of_the_program, "rng would give every iteration", "spmd.random.uniform"),
    (generator_of_the_module, "RNG would give every iteration", "spmd.random.uniform"),
    (module_random, "random would give every iteration", LOOP),
    (old_numpy, "np.random would give every iteration", LOOP),
    (shuffled, "random would give every iteration", LOOP),
    (next_of_an_iterator, "rates would give every iteration", "x[i]; or the rows of spmd.scan"),
    (for_over_a_generator, "rates would give every iteration", "an iterator from outside"),
    (sum_of_an_iterator, "rates would give every iteration", LOOP),
    (lines_of_a_file, "file would give every iteration", LOOP),
    (while_of_an_iterator, "counter would give every iteration", LOOP),
    (deque, "waiting is changed in a loop", "a deque from outside"),
    (list_in_fori, "kept is changed in a loop", "out[i] = …", "the body begins at"),
    (nonlocal_in_scan, "n is changed in a loop", "a variable from outside"),
    (while_loop_condition, "kept is changed in a loop"),
    (set_of_the_module, "SEEN is changed in a loop", "a set from outside"),
    (attribute_of_a_class, "Box.total is changed in a loop"),
    (attribute_of_a_namespace, "SPACE.n is changed in a loop"),
    (numpy_in_a_helper, "WEIGHTS is a NumPy array from outside", "WEIGHTS.copy()"),
    (shard_map_that_keeps, "shapes is changed in a function given to shard_map", RANKS),
    (shard_map_that_draws, "rng would give every rank the same value", RANKS),
    (branch_that_draws, "rng is asked for a value in a branch", BRANCH),
    (conditional_expression, "rng is asked for a value in a branch", BRANCH),
    (arm_of_cond, "kept is changed in a branch", BRANCH),
    (what_nobody_sees, "gives another constant each time Python runs", "2.0, then 3.0"),
    (drawn_from_the_module, "RNG would give another value in every build", "default_rng(0) in"),
    (drawn_by_old_numpy, "np.random would give another value in every build"),
    (no_seed, "default_rng() without a seed", "a seed: rng = np.random.default_rng(0)"),
    (clock, "time.time() gives another value in every build", "--profile"),
    (today, "datetime.now() gives another value in every build"),
    (entropy, "urandom() gives another value in every build"),
    (identifier, "uuid4() gives another value in every build"),
]


@pytest.mark.parametrize(("f", "said"), [(f, said) for f, *said in REFUSED], ids=lambda p: (
    getattr(p, "__name__", "")))  # fmt: skip
def test_refused(f: Callable[..., Any], said: list[str]) -> None:
    with pytest.raises(ProgramError) as caught:
        program(f).capture()
    text = str(caught.value)
    assert all(part in text for part in said), text
    assert text.startswith(__file__) and "# here" in text.split("\n")[1], text


@pytest.mark.parametrize(("f", "said"), [
    (global_in_a_helper, "CALLS is changed in a loop"), (object_in_fori, "BOX.n is changed in a"),
])  # fmt: skip
def test_the_line_that_changes_it_and_the_body(f: Callable[..., Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(said)) as caught:
        program(f).capture()
    first, _, rest = str(caught.value).partition("the body begins at")
    assert "+= 1" in first and "# in the body" in rest


# ---- not refused, and as Python has it -----------------------------------------------------------


def counters(x):
    """Variables, dicts and objects that the loop's own function names are carried."""
    box, rates, n = Box(), {"a": 0.5}, 0

    def count():
        nonlocal n
        n += 1

    for _ in spmd.range(4):
        count()
        rates["a"] += 1
        x = x + box.bump() * rates["a"] + n
    return x, box.n, n


def made_inside(x):
    rng = np.random.default_rng(1)
    x = x + rng.random(6)
    weights = iter([3.0, 4.0])
    x = x * next(weights)
    for _ in spmd.range(3):
        rows = []
        for k in range(3):
            rows.append(x * k)
        x = sum(rows) + np.random.default_rng(2).random()
        x = x + next(iter([1.0, 2.0])) + sum(v for v in (1.0, 2.0))
        if x.sum() > 3:
            factors = {"a": 1.0}
            factors["b"] = 2.0
            x = x * factors["b"]
    return x


def caches(x):
    for _ in spmd.range(3):
        x = x + table(6)
    return x


def seeded(x):
    np.random.seed(3)
    random.seed(3)
    return x + np.random.rand(6) + random.random()


@pytest.mark.parametrize("f", [counters, made_inside, caches, seeded])
def test_as_python_has_it(f: Callable[..., Any]) -> None:
    made = program(f)
    module = made.capture()
    for got, expected in zip(interpret.run(module, {"r": 2}).values(), leaves(made.eager(ranks=2))):
        np.testing.assert_allclose(got, expected)


def leaves(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)

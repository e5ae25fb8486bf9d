"""Python state that a compiled body would change once instead of every time: refused, by line."""

import collections
import datetime
import functools
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
from tests.codegen.refusals import check_refused, program

RNG = np.random.default_rng(0)
HIDDEN = threading.local()  # whose attributes nobody can see from outside
CALLS = 0
SEEN: set[int] = set()
TABLES: dict[int, Any] = {}
WEIGHTS = np.zeros(3)
SPACE = types.SimpleNamespace(n=0)


TOTAL = 0.0
ROWS: list[Any] = []
KEPT: dict[str, Any] = {}


class Meter:
    """Ways to a counter that the walk from a function to what it reaches goes through."""

    count = [0]

    @property
    def tick(self) -> int:
        return Meter.bump()

    @classmethod
    def bump(cls) -> int:
        cls.count[0] += 1
        return cls.count[0]

    @staticmethod
    def still() -> int:
        return BOX.bump()

    @functools.cached_property
    def first(self) -> int:
        return BOX.bump()

    def __call__(self) -> int:
        return BOX.bump()


class Below(Meter):
    pass


class Table(dict[str, Any]):
    last = 0.0


class Box:
    total = 0

    def __init__(self) -> None:
        self.n = 0

    def bump(self) -> int:
        self.n += 1
        return self.n


BOX = Box()
METER = Meter()
TABLE = Table()
LATER = None


class Squares:
    @functools.cached_property
    def first(self) -> int:
        return 1


SQUARES = Squares()


@functools.cache
def squared(n):
    return n * n


def bump():
    global CALLS
    CALLS += 1  # here: global
    return CALLS


@functools.lru_cache
def counted(n):
    return BOX.bump() + n


@functools.cache
def window(n):
    return np.hanning(n)


def table(n):
    """A cache, which fills once."""
    if n not in TABLES:
        TABLES[n] = np.hanning(n)
    return TABLES[n]


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
        HIDDEN.n += 1  # here
        x = x + HIDDEN.n
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


def global_of_the_program(x):
    global CALLS
    CALLS = CALLS + 1  # here
    return x + CALLS


def list_of_the_program(x):
    ROWS.append(1)  # here
    return x + len(ROWS)


def global_that_keeps(x):
    global TOTAL
    TOTAL = TOTAL + x.sum()  # here
    return x + TOTAL


def list_that_keeps(x):
    ROWS.append(x.sum())  # here
    return x + sum(ROWS)


def cache_that_keeps(x):
    if "sum" not in KEPT:
        KEPT["sum"] = [x.sum()]  # here
    return x + KEPT["sum"][0]


def attribute_that_keeps(x):
    BOX.n = BOX.n + x.sum()  # here
    return x + BOX.n


def new_global_that_keeps(x):
    global NEW
    NEW = x.sum()  # here
    return x + NEW


def loop_that_keeps_in_a_global(x):
    global TOTAL
    for i in spmd.range(4):
        TOTAL = TOTAL + 1  # here
        x[i] = TOTAL
    return x


def loop_that_keeps_in_an_attribute(x):
    for i in spmd.range(4):
        BOX.n = BOX.n + 1  # here
        x[i] = BOX.n
    return x


def attribute_set_in_a_loop(x):
    box = types.SimpleNamespace(box=Box())
    del box.box.n
    inner = box.box
    for i in spmd.range(4):
        inner.n = i * 2  # here
    return x


LOOP, BRANCH, RANKS = "not once per iteration", "whichever is taken", "not once per rank"
KEEPS = "would keep an array of the program"
REFUSED = [
    (generator_of_the_program, "rng would give every iteration", "spmd.random.uniform"),
    (generator_of_the_module, "RNG would give every iteration", "spmd.random.normal"),
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
    (attribute_of_a_namespace, "SPACE.n is changed in a program"),
    (numpy_in_a_helper, "WEIGHTS is a NumPy array from outside", "WEIGHTS.copy()"),
    (shard_map_that_keeps, "shapes is changed in a function given to shard_map", RANKS),
    (shard_map_that_draws, "rng would give every rank the same value", RANKS),
    (branch_that_draws, "rng is asked for a value in a branch", BRANCH),
    (conditional_expression, "rng is asked for a value in a branch", BRANCH),
    (arm_of_cond, "kept is changed in a branch", BRANCH),
    (what_nobody_sees, "an attribute of a _local is changed in a loop", "a class of your own"),
    (drawn_from_the_module, "RNG would give another value in every build", "default_rng(0) in"),
    (drawn_by_old_numpy, "np.random would give another value in every build"),
    (no_seed, "default_rng() without a seed", "a seed: rng = np.random.default_rng(0)"),
    (clock, "time.time() gives another value in every build", "--profile"),
    (today, "datetime.now() gives another value in every build"),
    (entropy, "urandom() gives another value in every build"),
    (identifier, "uuid4() gives another value in every build"),
    (global_of_the_program, "CALLS is changed in a program", "a global variable", "return it"),
    (list_of_the_program, "ROWS is changed in a program", "a list from outside", "more than once"),
    (global_that_keeps, "TOTAL is changed in a program", KEEPS),
    (list_that_keeps, "ROWS is changed in a program", KEEPS),
    (cache_that_keeps, "KEPT is changed in a program", KEEPS),
    (attribute_that_keeps, "BOX.n is changed in a program", KEEPS),
    (new_global_that_keeps, "NEW is changed in a program", KEEPS),
    (loop_that_keeps_in_a_global, "TOTAL is changed in a program", KEEPS),
    (loop_that_keeps_in_an_attribute, "BOX.n is changed in a program", KEEPS),
    (attribute_set_in_a_loop, "inner.n is set for the first time in this loop", "bind it before"),
]


@pytest.mark.parametrize(("f", "said"), [(f, said) for f, *said in REFUSED], ids=lambda p: (
    getattr(p, "__name__", "")))
def test_refused(f: Callable[..., Any], said: list[str]) -> None:
    check_refused(f, said, __file__)


@pytest.mark.parametrize(("f", "said"), [
    (global_in_a_helper, "CALLS is changed in a loop"), (object_in_fori, "BOX.n is changed in a"),
])
def test_the_line_that_changes_it_and_the_body(f: Callable[..., Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(said)) as caught:
        program(f).capture()
    first, _, rest = str(caught.value).partition("the body begins at")
    assert "+= 1" in first and "# in the body" in rest


def test_a_program_that_is_refused_keeps_no_array() -> None:
    """Python's variables are what they were before, also where another line of the program
    failed."""

    def whole(x):
        global TOTAL, NEW
        TOTAL = NEW = x.sum()
        ROWS.append(x)
        KEPT["x"] = {"deep": x}
        BOX.n, Box.total, SPACE.new, TABLE.last = x, x, x, x
        x.reshape((5, 5))

    before = TOTAL, list(ROWS), dict(KEPT), BOX.n, Box.total, vars(SPACE).copy(), TABLE.last
    with pytest.raises(ProgramError):
        program(whole).capture()
    assert before == (TOTAL, ROWS, KEPT, BOX.n, Box.total, vars(SPACE), TABLE.last)
    assert "NEW" not in globals()


@pytest.mark.parametrize("body", [
    lambda v: v + METER.tick, lambda v: v + Below.bump(), lambda v: v + Meter.still(),
    lambda v: v + Meter().first, lambda v: v + METER(), lambda v: v + counted(3),
], ids=["property", "classmethod", "staticmethod", "cached_property", "__call__", "lru_cache"])
def test_ways_to_what_is_changed(body: Callable[..., Any]) -> None:
    counted.cache_clear()
    with pytest.raises(UnsupportedError, match=r"is changed in a function given to shard_map"):
        program(lambda x: spmd.shard_map(body, out_layouts=("r",))(x)).capture()
    with pytest.raises(UnsupportedError, match="is changed in a branch"):
        counted.cache_clear()
        program(lambda x: spmd.cond(x[0] > 5, body, lambda v: v, x)).capture()


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
    """Filled in a loop, a test and a member: what Python runs again finds them full. In an arm,
    those of functools."""
    for _ in spmd.range(3):
        x = x + table(6)
        if x[0] > 2:
            x = x + window(8)[:6]
        while x[1] + table(9)[0] < 3:
            x = x * 2
    return x + spmd.vmap(lambda v: v + table(10)[1])(x)


def caches_of_the_program(x):
    """A table, a global that was None, an attribute that was not there, and those of functools."""
    global LATER
    LATER = 2.0 if LATER is None else LATER
    if not hasattr(SPACE, "later"):
        SPACE.later = 3.0
    return x + table(7)[:6] * LATER + SPACE.later + SQUARES.first + squared(5)


def seeded(x):
    np.random.seed(3)
    random.seed(3)
    return x + np.random.rand(6) + random.random()


@pytest.mark.parametrize("f", [counters, made_inside, caches, caches_of_the_program, seeded])
def test_as_python_has_it(f: Callable[..., Any]) -> None:
    made = program(f)
    module = made.capture()
    for got, expected in zip(interpret.run(module, {"r": 2}).values(), leaves(made.eager(ranks=2))):
        np.testing.assert_allclose(got, expected)


def leaves(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)

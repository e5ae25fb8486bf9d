"""Random programs with feeds: in loops, in branches and helpers, eager runs and images agree.

Each draws feeds with layouts, statements that take, ask, send and keep batches, and batches; what
is sent back is compared too. A batch that ranks have left is written over at once. `make random`
searches on.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import random

import numpy as np
import pytest

import spmd
from tests.programs.test_fed_images import Overwritten

# mypy: ignore-errors

SEEDS = range(int(os.environ.get("FED_SEEDS", "4")))
MESHES = ({"r": 1, "c": 1}, {"r": 2, "c": 1}, {"r": 3, "c": 1}, {"r": 2, "c": 2}, {"r": 1, "c": 3})
LAYOUTS = ("None", "spmd.replicated", '("r", None)', '(("r", "c"), None)', '("c", "r")',
           '(None, "r")', '(None, ("c", "r"))')
DTYPES = ("float64", "float32", "int32")
HEAD = '''
import numpy as np
import spmd

def of(x):
    return np.sum(x, axis=0) + 0.5 * np.max(x)

def taken(feed, w):
    return w * 0.5 + of(feed.next().x)

@spmd.program(mesh=("r", "c"))
def program():
'''


def split_over(layout):
    """The axes of each dim; () where all ranks hold all of it."""
    known = {"None": ("r", None), "spmd.replicated": ()}
    layout = known[layout] if layout in known else ast.literal_eval(layout)
    return tuple(e if isinstance(e, tuple) else (e,) if e else () for e in layout)


def within(lines):
    return ["    " + line for line in lines]


class Drawn:
    """The text of a program, its feeds, and how many batches each is given."""

    def __init__(self, seed):
        self.random = r = random.Random(seed)
        self.count, self.feeds, self.helpers = 0, {}, ""
        for name in ("one", "two")[: r.choice((1, 1, 2))]:
            layouts = {"x": r.choice(LAYOUTS), "y": r.choice(LAYOUTS[:4])}
            self.feeds[name] = r.choice((1, 3, 5, 6)), r.choice(DTYPES), layouts
        self.sends = {name: r.random() < 0.5 for name in self.feeds}
        self.counts = {name: r.randrange(5, 24) for name in self.feeds}
        # Variables for batches that are kept: each has more than one of them in its life.
        self.kept = {name: (f"{name}_a", f"{name}_b") for name in self.feeds}

    def text(self):
        lines = []
        for name, (rows, dtype, layouts) in self.feeds.items():
            lines.append(f"{name} = spmd.feed({name!r}, "
                         f"x=spmd.spec(({rows}, 3), np.{dtype}, layout={layouts['x']}), "
                         f"y=spmd.spec(({rows}, 2), np.float64, layout={layouts['y']}))")
        lines += ['w = spmd.input("w", (3,), np.float64, default=lambda i: i + 1.0)',
                  "seen, n = spmd.zeros(4), spmd.asarray(np.int64(0))"]
        for name, (rows, dtype, _) in self.feeds.items():
            first = f"spmd.zeros(({rows}, 3), np.{dtype})"
            if not self.sends[name]:
                first = self.random.choice((first, f"{name}.next().x"))
            lines += [f"{kept} = {first}" for kept in self.kept[name]]
        for name in self.feeds:
            lines += self.take(name) + self.statement(2) + self.loop(2)
        kept = [variable for two in self.kept.values() for variable in two]
        lines.append(", ".join(("return w, seen, n", *kept)))
        text = "".join(f"{line}\n" for line in within(lines))
        return HEAD.replace("@spmd.program", self.helpers + "@spmd.program") + text

    def take(self, name=""):
        """A batch, and perhaps an answer."""
        r = self.random
        name = name or r.choice([*self.feeds])
        if not self.sends[name] and r.random() < 0.2:
            return [f"w = taken({name}, w)", "n = n + 1"]
        self.count += 1
        b = f"b{self.count}"
        lines = [f"{b} = {name}.next()", r.choice((
            f"w = w * 0.5 + of({b}.x)", f"w = w * 0.25 + {b}.x[-1]", "w = w + 1",
            f"w = np.tanh(w) + np.sum({b}.x * w, axis=0)", f"w = w * 0.5 + np.sum({b}.y)"))]
        if self.sends[name]:
            lines.append(f"{name}.send(a={b}.x[:, 0] * 2, b={b}.y + np.sum(w))")
        if r.random() < 0.6:
            lines.append(f"seen[n % 4] = seen[n % 4] * 0.5 + np.sum({b}.x)")
        for _ in range(r.randrange(3)):
            lines += self.keep(name, b)
        if r.random() < 0.3 and not self.sends[name]:  # two batches at once
            lines += [f"w = w * 0.5 + of({name}.next().x) + np.max({b}.x)", "n = n + 1"]
        return [*lines, "n = n + 1"]

    def keep(self, name, b):
        """A batch that outlives its turn, or a part of it that others read too."""
        r, rows = self.random, self.feeds[name][0]
        one, other = r.sample(self.kept[name], 2)
        line = r.choice((
            f"{one} = {b}.x", f"{one}, {other} = {b}.x, {one}", f"{one} = {one} + {b}.x",
            f"{one} = {one}[::-1]", f"{one} = np.roll({b}.x, 1, axis=0)",
            f"{one} = {b}.x.T.reshape({rows}, 3)", f"w = w * 0.5 + of({one})",
            f"w = np.tanh(w) + of(({b}.x * 2).astype(np.float64) - {one})",
            f"w = w * 0.5 + np.sum(np.roll({one}, 1, axis=0) * {b}.x, axis=0)",
            f"w = w * 0.5 + of({b}.x[np.arange({rows}) * 5 % {rows}])"))
        lines = [f"{r.choice([*self.feeds])}.more()"] if r.random() < 0.3 else []
        if r.random() < 0.3:
            return [*lines, f"if n % {r.randrange(1, 4)} == 0:", *within([line])]
        return [*lines, line]

    def statement(self, deep):
        kinds = (self.take,) if not deep else (
            self.take, self.loop, self.branch, self.unrolled, self.ranked)
        kind = self.random.choice(kinds)
        return kind() if kind in (self.take, self.ranked) else kind(deep)

    def ranked(self):
        """Batches that each rank takes in its own view, and what it answers for its rows."""
        r, name = self.random, self.random.choice([*self.feeds])
        _, dtype, layouts = self.feeds[name]
        x, y = (split_over(layouts[f]) for f in "xy")
        if self.sends[name] and y and x[:1] != y[:1]:
            return self.take(name)  # all rows would have to be had first
        self.count += 1
        axes = [a for entry in x for a in entry]
        total = f"spmd.psum(np.sum(b.x), {tuple(axes)})" if axes else "np.sum(b.x)"
        body = ["b = feed.next()", f"w, n = np.tanh(w) + {total}, n + 1"]
        if self.sends[name]:
            body.append(f"feed.send(a=b.y[:, 0].astype(np.{dtype}) * 2, b=b.y + n)")
        head = r.choice((f"for k in spmd.range({r.randrange(0, 4)}):", "while feed.more():",
                         f"while n < {r.randrange(2, 7)}:", ""))
        body = [head, *within(body)] if head else body
        self.helpers += "".join(f"{line}\n" for line in (
            f"def inner{self.count}(feed, w, n):", *within([*body, "return w, n"]), ""))
        return [f"w, n = spmd.shard_map(lambda w, n: inner{self.count}({name}, w, n), "
                "in_layouts=spmd.replicated, out_layouts=spmd.replicated)(w, n)"]

    def unrolled(self, deep):
        turns = self.random.randrange(1, 3)
        return [f"for _ in range({turns}):", *within(self.statement(deep - 1))]

    def loop(self, deep):
        r, name = self.random, self.random.choice([*self.feeds])
        head = r.choice((f"for k in spmd.range({r.randrange(0, 4)}):", f"while {name}.more():",
                         f"while {name}.more() and n < {r.randrange(2, 9)}:",
                         f"for each in {name}:", f"while n < {r.randrange(2, 7)}:"))
        body = [] if head.startswith("for each") else self.take(name)
        if not body:
            answer = [f"{name}.send(a=each.x[:, 0] * 2, b=each.y + n)"] if self.sends[name] else []
            body = ["w = w * 0.5 + of(each.x)", "n = n + 1", *answer]
        if r.random() < 0.6:
            body += self.statement(deep - 1)
        if r.random() < 0.3:
            body += [f"if n > {r.randrange(2, 9)}:", "    break"]
        return [head, *within(body)]

    def branch(self, deep):
        r, name = self.random, self.random.choice([*self.feeds])
        on = r.choice(("n % 2 == 0", "np.sum(w) > 3", f"{name}.more()", "n > 2 and np.max(w) > 1"))
        lines = [f"if {on}:", *within(self.statement(deep - 1))]
        if r.random() < 0.5:
            lines += ["else:", *within(self.statement(deep - 1))]
        return lines

    def batches(self, name, told):
        """Yield batches, each of which depends on the answer to the one before it."""
        rows, dtype, _ = self.feeds[name]
        rng, more = np.random.default_rng(rows), 0.0
        for k in range(self.counts[name]):
            x = rng.integers(-3, 4, (rows, 3)) + k % 3
            back = yield {"x": x.astype(dtype), "y": rng.normal(size=(rows, 2)) + more}
            if back is not None:
                told.append(back)
                more = np.tanh(np.sum(back["a"]) / 100)


def outcome(run, drawn):
    """Return a run's results and what it sent; None for a stream that ended too early."""
    told = {name: [] for name in drawn.feeds}
    try:
        found = run({name: drawn.batches(name, told[name]) for name in drawn.feeds})
    except spmd.InputError as error:
        assert "has no more batches" in error.message, error
        return None, told
    except spmd.SpmdError as error:
        assert "has ended after" in str(error), error
        return None, told
    return found, told


def close(one, other, where):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7, err_msg=where)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_with_feeds(seed, tmp_path):
    drawn = Drawn(seed)
    (file := tmp_path / f"fed_{seed}.py").write_text(drawn.text())
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected, said = outcome(lambda feed: module.program.eager(feed=feed), drawn)
    image = spmd.build(module.program)
    for mesh in drawn.random.sample(MESHES, 2):
        found, told = outcome(lambda feed, mesh=mesh: image.run(
            mesh=mesh, feed={name: Overwritten(given) for name, given in feed.items()}), drawn)
        where = f"{file.read_text()}\nseed {seed}, mesh {mesh}, batches {drawn.counts}"
        assert (found is None) == (expected is None), where
        for one, other in zip(found or (), expected or (), strict=True):
            close(one, other, where)
        for name, answers in said.items():
            # A generator hears of the last answer when it is asked for more: an image reads ahead.
            assert found is None or len(told[name]) - len(answers) in (0, 1), where
            for one, other in zip(told[name], answers):
                for field, values in other.items():
                    close(one[field], values, where)

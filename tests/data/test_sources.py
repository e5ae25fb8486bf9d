"""Sources: what they give beside what Python reads itself; parts, mixes; files that are wrong."""

from __future__ import annotations

import csv
import gzip
import os
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import spmd
from spmd import data
from spmd.data import line_sources
from spmd.data.computing import advice
from spmd.data.permutations import permuted
from spmd.data.source_tools import relative_to


def every(source):
    return [source.get(i) for i in range(source.length())]


# ---- lines and tables

TEXTS = st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=9),
                 max_size=90)


@settings(max_examples=40)
@given(TEXTS, TEXTS, st.booleans(), st.sampled_from(["\n", "\r\n"]),
       st.sampled_from([7, 64, 1 << 22]))
def test_lines_are_those_that_python_reads(tmp_path_factory, one, two, ends, newline, at_once):
    folder = tmp_path_factory.mktemp("lines")
    for name, text in (("a", one), ("b", two)):
        whole = newline.join(text) + (newline if ends and text else "")
        (folder / name).write_bytes(whole.encode())
    expected = []
    for name in "ab":
        raw = (folder / name).read_bytes().split(b"\n")
        expected += [line.removesuffix(b"\r").decode() for line in raw[:-1] + ([raw[-1]] if raw[-1]
                                                                             else [])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_sources, "AT_ONCE", at_once)
        source = data.lines([folder / "a", folder / "b"])
        assert [e.text for e in every(source)] == expected
    if expected:
        last = source.length() - 1
        assert source.name(last).split()[1] == str(source.get(last).number)


def test_csv_beside_the_csv_module(tmp_path):
    rng = np.random.default_rng(0)
    words = ['a,b', 'two\nlines', 'say "hi"', "plain", "é"]
    rows = [[str(k), f"{rng.random():.4f}", words[k % 5], "" if k % 7 == 0 else str(k / 2)]
            for k in range(200)]
    path = tmp_path / "t.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["n", "x", "word", "gap"], *rows])
    source = data.csv(path, types={"n": np.int16})
    assert source.length() == 200 and source.name(4).startswith("row 5 of ")
    for k in (0, 31, 32, 33, 101, 199):
        found = source.get(k)
        assert found.n == k and found.n.dtype == np.int16 and found.word == words[k % 5]
        assert found.x == float(rows[k][1])
        assert np.isnan(found.gap) if k % 7 == 0 else found.gap == k / 2
    assert data.csv(path, header=False).get(0).column2 == "word"
    (tmp_path / "long.csv").write_text(f"a,b\n1,{'x' * 200_000}\n2,y\n")
    long = data.csv(tmp_path / "long.csv")
    assert len(long.get(0).b) == 200_000 and long.get(1).b == "y"
    assert data.csv(path, header=list("abcd")).get(1).a == "0"
    (tmp_path / "commas.csv").write_text("a,b,,\n1,2, ,\n3,4\n")
    row = data.csv(tmp_path / "commas.csv").get(1)
    assert (row.a, row.b) == (3, 4) and not hasattr(row, "")


@pytest.mark.parametrize("text, message", [
    ("z,b\n1,2\n3\n", r"row 2 of .* has another number of values"),
    ("a,a\n1,2\n", "has other columns"), ("a,b\n1,2\n", "has other columns"),
    ('z\n"open\n', "cannot be read"), ("z\n\xff\n", "cannot be read"),
])
def test_tables_that_are_wrong(tmp_path, text, message):
    path = tmp_path / "wrong.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(spmd.InputError, match=message):
        data.csv(path, types={"z": int}).length()


def test_a_value_of_another_type_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\nx,4\n")
    with pytest.raises(spmd.InputError, match=r"column 'a' of row 2 of .*t.csv"):
        data.csv(tmp_path / "t.csv", types={"a": int}).get(1)


@pytest.mark.parametrize("kind", [bool, np.bool_, "bool"])
def test_truths_of_a_table(tmp_path, kind):
    path = tmp_path / "t.csv"
    path.write_text("b\nTrue\nFALSE\n0\n1\nno\n")
    source = data.csv(path, types={"b": kind})
    found = [source.get(k).b for k in range(4)]
    assert found == [True, False, False, True]
    assert all(type(b) is (bool if kind is bool else np.bool_) for b in found)
    with pytest.raises(spmd.InputError, match="column 'b' of row 5 of"):
        source.get(4)


@pytest.mark.parametrize("kind, value", [
    (np.uint8, "300"), (np.uint8, "-1"), ("int16", "40000"), (np.float16, "1e6"), (float, "1e400"),
])
def test_a_value_out_of_range_is_named(tmp_path, kind, value):
    (tmp_path / "t.csv").write_text(f"a,b\n1,2\n{value},4\ninf,0\n")
    source = data.csv(tmp_path / "t.csv", types={"a": kind})
    assert source.get(0).a == 1
    with pytest.raises(spmd.InputError, match=r"column 'a' of row 2 of .*t.csv"):
        source.get(1)
    if "float" in str(kind):
        assert source.get(2).a == np.inf


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('"id",b\n' + "".join(f"{k},\ufeff{k}\n" for k in range(70)), "utf-8-sig")
    source = data.csv(path)
    assert source.length() == 70
    assert [source.get(k).id for k in (0, 31, 32, 69)] == [0, 31, 32, 69]
    assert source.get(33).b == "\ufeff33"
    path.write_text("5", "utf-8-sig")
    assert data.csv(path, header=["a"]).get(0).a == 5


def test_a_line_that_is_no_text_is_named(tmp_path):
    (tmp_path / "t.txt").write_bytes("one\ntw\xf6\n".encode("latin-1"))
    source = data.lines(tmp_path / "t.txt")
    assert source.get(0).text == "one"
    with pytest.raises(spmd.InputError, match=r"line 2 of .*t.txt cannot be read"):
        source.get(1)
    assert data.lines(tmp_path / "t.txt", encoding="latin-1").get(1).text == "tw\xf6"


@pytest.mark.parametrize("read", [data.lines, data.csv])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "no such"])
def test_encodings_whose_lines_end_otherwise_are_refused(tmp_path, read, encoding):
    with pytest.raises(spmd.UsageError, match="cannot read encoding="):
        read(tmp_path / "t.txt", encoding=encoding)


def test_packed_text_is_refused_with_what_reads_it(tmp_path):
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    with pytest.raises(spmd.UsageError, match="gzip.open"):
        data.lines(path)
    read = data.iterator(lambda: gzip.open(path, "rt"))
    assert [line for _, line in read.begin()] == ["one\n", "two\n"]


# ---- arrays

X = np.arange(60.0, dtype=np.float32).reshape(20, 3)
Y = np.arange(20, dtype=np.int16)


@pytest.mark.parametrize("how", ["memory", "names", "npz", "packed npz", "safetensors", "npy"])
def test_arrays_of_memory_and_of_files(tmp_path, how):
    files = {
        "npz": lambda p: np.savez(p, x=X, y=Y), "safetensors": lambda p: save_file(
            {"x": X, "y": Y}, p), "packed npz": lambda p: np.savez_compressed(p, x=X, y=Y)}
    if how in files:
        path = tmp_path / ("set." + how.split()[-1])
        files[how](path)
        source = data.arrays(path)
    elif how == "npy":
        np.save(tmp_path / "x.npy", np.asfortranarray(X))
        np.save(tmp_path / "y.npy", Y)
        source = data.arrays(x=tmp_path / "x.npy", y=str(tmp_path / "y.npy"))
    else:
        source = data.arrays({"x": X, "y": Y}) if how == "memory" else data.arrays(x=X, y=Y)
    assert source.length() == 20
    assert source.digest() == data.arrays(x=X.copy(), y=Y).digest()
    assert source.digest() != data.arrays(x=X + 1, y=Y).digest()
    one, some = source.get(7), source.get_many([3, 5, 3])
    assert np.array_equal(one.x, X[7]) and one["y"] == 7 and set(one) == {"x", "y"}
    assert np.array_equal(some.x, X[[3, 5, 3]]) and [int(e.y) for e in some] == [3, 5, 3]
    with pytest.raises(ValueError, match="read-only"):
        one.x[0] = 1
    with pytest.raises(AttributeError, match="row 7 has no field 'z'; it has x, y"):
        _ = one.z
    assert X.flags.writeable


def test_plain_files_are_mapped(tmp_path):
    np.savez(tmp_path / "a.npz", x=X)
    save_file({"x": X}, tmp_path / "a.safetensors")
    np.save(tmp_path / "a.npy", X)
    for name, field in (("a.npz", "x"), ("a.safetensors", "x"), ("a.npy", "a")):
        assert isinstance(data.arrays(tmp_path / name).get(0)[field].base, np.memmap)


@pytest.mark.parametrize("name", ["a.npz", "packed.npz", "a.safetensors", "a.npy"])
def test_damaged_files_are_refused_or_read(tmp_path, name):
    rng = np.random.default_rng(1)
    path = tmp_path / name
    write = {"a.npz": np.savez, "packed.npz": np.savez_compressed}
    if name in write:
        write[name](path, x=X)
    elif name == "a.npy":
        np.save(path, X)
    else:
        save_file({"x": X}, path)
    raw, refused = path.read_bytes(), 0
    for _ in range(150):
        damaged = bytearray(raw)
        for at in rng.integers(0, len(raw), rng.integers(1, 9)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged[: rng.integers(len(raw))] if rng.random() < 0.2 else damaged)
        source = data.arrays(path)
        try:
            source.get(source.length() - 1)
            source.digest()
        except spmd.InputError:
            refused += 1
    assert refused > 20


def test_arrays_that_are_wrong(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK nonsense")
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 20)
    np.save(tmp_path / "o.npy", np.array([{}, {}], object))
    np.save(tmp_path / "cut.npy", X)
    os.truncate(tmp_path / "cut.npy", 200)
    for name, message in (("a.npz", "is damaged"), ("a.safetensors", "is damaged"),
                          ("o.npy", "is damaged"), ("cut.npy", "is damaged"),
                          ("none.npy", "no such file"), ("t.txt", "no file of arrays")):
        with pytest.raises(spmd.InputError, match=message):
            data.arrays(tmp_path / name).length()
    with pytest.raises(spmd.InputError, match="x: 20, y: 19"):
        data.arrays(x=X, y=Y[:-1]).length()
    with pytest.raises(spmd.InputError, match="no rows that can be examples"):
        data.arrays(x=np.float32(1)).length()
    for wrong in (lambda: data.arrays(), lambda: data.arrays(X), lambda: data.arrays({}, x=X)):
        with pytest.raises(spmd.UsageError, match="arrays by name"):
            wrong()


# ---- files


def test_files_by_pattern_by_list_and_by_folder(tmp_path, monkeypatch):
    tmp_path = tmp_path / "a [folder]"  # what is a pattern elsewhere
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.bin", "a/10.bin", "a/1.bin", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    with relative_to(tmp_path):
        source = data.files("*/*.bin", label="folder")
    assert [(e.bytes, e.label) for e in every(source)] == [
        (b"a/1.bin", 0), (b"a/10.bin", 0), (b"b/2.bin", 1)]
    assert source.classes == ["a", "b"] and source.name(2).endswith("b/2.bin")
    listed = data.files([tmp_path / "c.txt", tmp_path / "a/1.bin"], label=lambda p: p[-3:])
    assert [(e.name, e.label) for e in every(listed)] == [("c.txt", "txt"), ("1.bin", "bin")]
    before = source.digest()
    (tmp_path / "b/2.bin").write_bytes(b"longer than before")
    assert source.digest() != before

    @data.pipeline(source=listed, shuffle=False, epochs=1, on_error="skip")
    def sizes(example):
        return {"n": len(example.bytes)}

    (tmp_path / "c.txt").unlink()
    found = sizes.compute(0, 2)
    assert found.there.tolist() == [False, True] and "no such file" in found.failures[0].text
    with pytest.raises(spmd.InputError, match=r"no file is called .*\.jpg"):
        data.pipeline(source=data.files(tmp_path / "*.jpg"))(lambda e: e).compute(0, 1)
    with pytest.raises(spmd.UsageError, match="label of data.files"):
        data.files("*", label="foldr")


# ---- parts and mixes


@given(st.integers(1, 200), st.floats(0.05, 0.95), st.integers(0, 5), st.booleans())
def test_a_split_is_one(n, fraction, seed, shuffle):
    source = data.range(n)
    parts = [every(p) for p in source.split(fraction, seed=seed, shuffle=shuffle)]
    assert sorted(sum(parts, [])) == list(range(n))
    assert abs(len(parts[0]) - fraction * n) <= 0.5
    again = source.split(fraction, seed=seed, shuffle=shuffle)[0]
    assert every(again) == parts[0]
    if shuffle:  # whichever places were computed
        order = permuted(n, np.arange(n), seed).tolist()
        assert parts == [sorted(order[: len(parts[0])]), sorted(order[len(parts[0]) :])]


@pytest.mark.parametrize(("sampling", "shuffle"), [
    ("once", False), ("once", True), ("once", 1000), ("independent", True)])
def test_memory_does_not_grow_with_the_source(shuffle, sampling):
    """A table of its numbers would take 8 GB."""
    tracemalloc.start()
    try:
        numbers = data.batched(source=data.range(10**9), size=16, epochs=1, shuffle=shuffle,
                               sampling=sampling)(lambda ids: {"x": np.asarray(ids)})
        assert numbers.order() and numbers.total(1024) == -(-(10**9) // 1024)
        for first in (0, 10**8, 10**9 - 1024):
            found = numbers.compute(first, 1024)
            assert found.there.all() and found.arrays["x"].max() < 10**9
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_parts_of_parts_and_of_iterators():
    source = data.range(100).skip(10).take(50).where(np.arange(50) % 3 == 0).map(lambda x: -x)
    assert every(source) == [-k for k in range(10, 60, 3)]
    assert source.get_many([1, 0]) == [-13, -10] and source.name(1) == "number 13"
    numbers = data.iterator(lambda: iter(range(9))).skip(2).take(4).map(str)
    assert [e for _, e in numbers.begin()] == list("2345") and numbers.length() is None
    digests = {s.digest() for s in (
        data.range(9), data.range(9).take(5), data.range(9).take(6), data.range(9).skip(5),
        data.range(9).where([0]), data.range(9).where([1]), data.concatenate(data.range(9)),
        data.mix(data.range(9)), data.mix(data.range(9), stop="last"))}
    assert len(digests) == 9
    for wrong in (lambda s: s.where([9]).length(), lambda s: s.where([True]).length(),
                  lambda s: s.split(0.7, 0.7), lambda s: s.split(), lambda s: s.take(-1),
                  lambda s: s.skip(1.5)):
        with pytest.raises(spmd.UsageError):
            wrong(data.range(9))
    with pytest.raises(spmd.UsageError) as refused:
        data.range(9).where(lambda e: e > 3).length()
    assert refused.value.found == "a function" and "source.get(k)" in refused.value.remedy
    with pytest.raises(spmd.UsageError, match="split needs a source of known length"):
        data.iterator(lambda: iter(range(9))).split(0.5)[0].length()


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 10)), min_size=1, max_size=4))
def test_a_mix_has_each_source_by_its_weight(given_):
    sources = [data.range(1000 * k, 1000 * k + n) for k, (n, _) in enumerate(given_)]
    weights = [w for _, w in given_]
    first = [e // 1000 for e in every(data.mix(*sources, weights=weights))]
    share = np.array(weights) / sum(weights)
    for end in range(1, len(first) + 1):
        counts = np.bincount(first[:end], minlength=len(sources))
        assert np.all(np.abs(counts - share * end) < 1.5 + 0.01 * end)
    assert [c <= n for c, (n, _) in zip(np.bincount(first, minlength=len(sources)), given_)]
    last = Counter(every(data.mix(*sources, weights=weights, stop="last")))
    assert set(last) == {e for s in sources for e in every(s)}


def test_a_mix_with_an_iterator_is_the_same_mix():
    known = [data.range(5), data.range(10, 21)]
    read = [data.iterator(lambda: iter(range(5))), data.range(10, 21)]
    for stop in ("first", "last"):
        a = every(data.mix(*known, weights=(1, 3), stop=stop))
        b = [e for _, e in data.mix(*read, weights=(1, 3), stop=stop).begin()]
        assert b[: len(a)] == a and len(b) - len(a) < 4
    for wrong in (lambda: data.mix(), lambda: data.mix([1]), lambda: data.mix(known[0], stop="all"),
                  lambda: data.mix(*known, weights=(1,)), lambda: data.concatenate()):
        with pytest.raises(spmd.UsageError):
            wrong()


# ---- environments


class Counting:
    """Shows how many actions came, and their sum; ends when the sum reaches 5."""

    def reset(self, seed=None):
        self.start = 0 if seed is None else seed % 3
        self.sum = 0
        return np.array([self.start, 0.0]), {}

    def step(self, action):
        self.sum += int(action)
        return np.array([self.start, self.sum]), float(action), self.sum >= 5, False, {}


def acting(make=Counting, **settings):
    @data.pipeline(source=data.environments(make, 2), seed=1, **settings)
    def play(seen):
        return {"obs": seen.obs, "reward": seen.reward, "done": seen.done, "first": seen.first}

    return play


def test_environments_step_by_the_actions_sent():
    play = acting()
    assert play.acts and play.total() is None and play.ready(0, 2)
    begin = play.compute(0, 2).arrays
    assert begin["first"].all() and not begin["reward"].any() and not play.ready(2, 2)
    assert "no action has come" in play.compute(2, 2, raises=False).failures[0].text
    rewards, dones, firsts = [], [], []
    for turn in range(1, 6):
        play.send(2 * turn - 2, {"action": np.array([3, 1])})
        assert play.ready(2 * turn, 2)
        found = play.compute(2 * turn, 2).arrays
        again = play.compute(2 * turn + 1, 1).arrays
        assert np.array_equal(again["obs"], found["obs"][1:])
        rewards.append(found["reward"].tolist())
        dones.append(found["done"].tolist())
        firsts.append(found["first"].tolist())
    assert rewards == [[3, 1], [3, 1], [0, 1], [3, 1], [3, 1]]
    assert dones == [[False] * 2, [True, False], [False] * 2, [False] * 2, [True, True]]
    assert firsts[2] == [True, False]
    other = acting()  # a worker that takes over begins new episodes
    assert other.ready(12, 2) and other.compute(12, 2).arrays["first"].all()
    assert other.example_name(13) == "environment 1, turn 6"
    starts = [acting().compute(2 * k, 2).arrays["obs"][:, 0].tolist() for k in range(8)]
    assert len({tuple(s) for s in starts}) > 2


def test_environments_that_are_wrong():
    class Old(Counting):
        def step(self, action):
            return 1, 2, 3, {}

    play = acting(Old)
    play.compute(0, 2)
    play.send(0, {"a": np.zeros(2)})
    assert "4 values" in play.compute(2, 1, raises=False).failures[0].text
    with pytest.raises(spmd.UsageError, match="epochs does not apply"):
        acting(epochs=2).compute(0, 1)
    with pytest.raises(spmd.UsageError, match="count of data.environments"):
        data.environments(Counting, 0)
    acting().check_batch(2)
    with pytest.raises(spmd.UsageError, match="2 environments, a batch of 4"):
        acting().check_batch(4)
    with pytest.raises(spmd.UsageError, match="takes no actions"):
        data.pipeline(source=data.range(3))(lambda e: e).send(0, {"a": np.zeros(1)})
    try:
        import gymnasium  # noqa: F401
    except ImportError:
        with pytest.raises(spmd.InputError, match="pip install gymnasium"):
            acting("CartPole-v1").compute(0, 1)


def test_a_batch_of_several_sources_is_whole_arrays_where_they_are_alike():
    """mix and concatenate of tables with the same fields act as one table; of others, as lists."""
    a, b = np.arange(8.0).reshape(4, 2), np.arange(10.0, 16).reshape(3, 2)
    tables = data.arrays(x=a, y=a[:, 0]), data.arrays(x=b, y=b[:, 0])
    for source in (data.concatenate(*tables), data.mix(*tables, weights=(2, 1), stop="last"),
                   data.concatenate(tables[0].skip(1), data.mix(*tables))):
        numbers = list(range(source.length()))[::-1]
        rows, each = source.get_many(numbers), [source.get(k) for k in numbers]
        assert np.array_equal(rows.x, [e.x for e in each])
        assert np.array_equal(rows.y, [e.y for e in each])
        assert np.array_equal(rows[1].x, each[1].x) and len(rows) == len(each)

        @data.batched(source=source, size=3, epochs=1, seed=2)
        def doubled(examples):
            return {"x": 2 * examples.x}

        found = doubled.compute(0, source.length()).arrays["x"]
        assert sorted(found[:, 0]) == sorted(2 * e.x[0] for e in each)
    for other in (data.arrays(x=b), data.arrays(x=b.astype(int), y=b[:, 0]), data.range(3)):
        assert isinstance(data.concatenate(tables[0], other).get_many([0, 5]), list)


def test_a_column_with_1_000_is_text(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1_000,1_0.5\n2,3\n")
    row = data.csv(tmp_path / "t.csv").get(0)
    assert (row.a, row.b) == ("1_000", "1_0.5")
    with pytest.raises(spmd.InputError, match="'1_000' is no number"):
        data.csv(tmp_path / "t.csv", types={"a": int}).get(0)


@pytest.mark.parametrize("error", [RuntimeError("away"), FileNotFoundError(2, "no such", "x.csv"),
                                   KeyError("rows")])
def test_a_source_that_cannot_say_how_long_it_is_is_named_with_its_line(error):
    """Whatever is asked of the pipeline; it is no fault of spmd."""
    class Away(data.ExampleSource):
        def length(self):
            raise error

        digest = length

    of = data.pipeline(source=Away(), epochs=1)(lambda example: {"x": example})
    for ask in (of.length, of.total, of.order, of.digest, of.specs, lambda: of.acts,
                lambda: of.compute(0, 2), lambda: next(of.batches(2))):
        with pytest.raises(spmd.InputError, match=rf"(?s)test_sources.py:\d+: the source of pipe.*"
                           rf"raise error.*found:    {type(error).__name__}"):
            ask()


def test_an_empty_source_has_advice_that_helps():
    of = data.pipeline(source=data.range(9).where([False] * 9))(lambda example: {"x": example})
    with pytest.raises(spmd.InputError, match=r"(?s)is empty.*try:.*source.where") as caught:
        of.compute(0, 2)
    assert "skip" not in str(caught.value) and not advice(str(caught.value))

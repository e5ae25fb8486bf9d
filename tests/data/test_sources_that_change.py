"""Sources that do not keep still: arrays written again, files and lengths that change, iterators in
another order, processes that come back from a fork."""

from __future__ import annotations

import io
import os
import random
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

import spmd
from spmd import data

FILES = {
    "lines": ("a.txt", lambda p, n: p.write_text("".join(f"{k}\n" for k in range(n))), data.lines),
    "csv": ("a.csv", lambda p, n: p.write_text("a\n" + "".join(f"{k}\n" for k in range(n))),
            data.csv),
    "npy": ("a.npy", lambda p, n: p.write_bytes(bytes_of(np.arange(n))), data.arrays),
    "npz": ("a.npz", lambda p, n: np.savez(p, a=np.arange(n)), data.arrays),
    "windows": ("a.npy", lambda p, n: p.write_bytes(bytes_of(np.arange(n))),
                lambda p: data.windows(p, 1)),
    "zip": ("a.zip", lambda p, n: zipped(p, n), data.archive),
}


def bytes_of(a):
    out = io.BytesIO()
    np.save(out, a)
    return out.getvalue()


def zipped(path, n):
    with zipfile.ZipFile(path, "w") as out:
        for k in range(n):
            out.writestr(f"{k:03}", str(k))


def made(source, function=lambda e: {"x": e}, **settings):
    return data.pipeline(source=source, **settings)(function)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_file_that_is_written_to_during_a_run_is_named(tmp_path, kind, on_error):
    name, write, source = FILES[kind]
    path = tmp_path / name
    write(path, 100)

    def f(example):
        return {"x": len(example.bytes) if kind == "zip" else 1}

    pipeline = made(source(path), f, on_error=on_error, shuffle=False)
    assert not pipeline.compute(0, 3, raises=False).failures
    write(path, 70)
    (failed,) = pipeline.compute(3, 5, raises=False).failures
    assert failed.fatal and f"{name} was changed while it was read" in failed.text
    assert "rename it" in failed.text


def test_a_file_that_another_one_takes_the_place_of_is_read_on(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{k}\n" for k in range(100)))
    source = data.lines(path)
    assert source.get(3).text == "3"
    (tmp_path / "b.txt").write_text("others\n" * 100)
    os.replace(tmp_path / "b.txt", path)
    assert source.get(4).text == "4"


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: {"a": a}, lambda a: (1, [a])])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_iterator_may_write_each_example_to_the_same_array(wrap, shuffle):
    def read():
        a = np.zeros(1, np.int64)
        for a[0] in range(100):
            yield wrap(a)

    def f(example):
        a = example["a"] if isinstance(example, dict) else example
        return {"x": a[1][0][0] if isinstance(a, tuple) else a[0]}

    pipeline = made(data.iterator(read), f, epochs=1, shuffle=shuffle)
    assert sorted(pipeline.compute(0, 100).arrays["x"].tolist()) == list(range(100))
    batched = data.batched(size=10, source=data.iterator(read), epochs=1, shuffle=shuffle)(
        lambda examples: {"x": np.array([f(e)["x"] for e in examples])})
    assert sorted(batched.compute(0, 100).arrays["x"].tolist()) == list(range(100))


def test_an_own_source_may_give_the_same_array_again():
    class Mine(data.ExampleSource):
        kept = np.zeros(1, np.int64)

        def length(self):
            return 20

        def get(self, index):
            self.kept[0] = index
            return self.kept

        def digest(self):
            return "x"

    batched = data.batched(size=10, source=Mine(), epochs=1)(lambda many: {"x": np.stack(many)})
    assert sorted(batched.compute(0, 20).arrays["x"].ravel().tolist()) == list(range(20))


class Shrinking(data.ExampleSource):
    def __init__(self, n=100):
        self.n = n

    def length(self):
        self.n -= 1
        return self.n

    def get(self, index):
        return index

    def digest(self):
        return "the same"


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: data.mix(s, s, stop="last")])
def test_a_length_is_asked_for_once(wrap):
    pipeline = made(wrap(Shrinking()), epochs=1)
    n = pipeline.total()
    seen = [pipeline.compute(k, 1).arrays["x"][0] for k in range(n)]
    assert sorted(set(seen)) == list(range(99)) if n == 99 else len(set(seen)) >= 98
    assert pipeline.total() == n


def test_sources_of_other_lengths_are_other_streams():
    assert made(Shrinking(100)).order() == made(Shrinking(100)).order()
    assert made(Shrinking(100)).order() != made(Shrinking(90)).order()


@pytest.mark.parametrize("length", [-1, 100.0, "3", True, 2**62])
def test_a_length_that_is_no_number_of_examples_is_refused(length):
    class Odd(Shrinking):
        def length(self):
            return length

    with pytest.raises(spmd.InputError, match=r"length\(\) of Odd is no number of examples"):
        made(Odd()).total()


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)])
def test_a_length_that_raises_is_an_error_of_the_source(error):
    class Odd(Shrinking):
        def length(self):
            raise error

    with pytest.raises(spmd.InputError, match="does not say how many examples it has"):
        made(Odd()).total()


def test_an_iterator_in_another_order_is_another_stream():
    def shuffled(seed=None):
        def read():
            found = [{"a": np.full(3, k), "name": str(k)} for k in range(100)]
            random.Random(seed).shuffle(found)
            yield from found
        return made(data.iterator(read), lambda e: {"x": e["a"]}, epochs=1)

    assert shuffled().order() != shuffled().order()
    assert shuffled(1).order() == shuffled(1).order()


def test_files_of_other_contents_are_another_stream_copies_are_not(tmp_path):
    """A stream is known by the contents of its files, not by their times or sizes, on any
    machine."""
    def order(folder):
        return made(data.files(folder / "*/*"), epochs=1).order()

    here, there = tmp_path / "here", tmp_path / "over/there"
    for k in range(300):
        (folder := here / f"{k % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"{k}.bin").write_bytes(bytes([k % 256]) * 10000)
    first = order(here)
    shutil.copytree(here, there, copy_function=shutil.copyfile)
    os.utime(there / "0/0.bin", (1, 1))
    assert order(there) == first == order(here / ".." / "here")
    for at in (0, 9999):
        with open(there / "2/299.bin", "r+b") as file:
            file.seek(at)
            file.write(b"x")
        assert order(there) != first
        shutil.copyfile(here / "2/299.bin", there / "2/299.bin")
        assert order(there) == first


def test_a_file_that_may_not_be_read_is_a_bad_example_only(tmp_path):
    for k in range(3):
        (tmp_path / f"{k}.bin").write_bytes(b"abc")
    os.remove(tmp_path / "1.bin")
    os.symlink("/proc/self/mem", tmp_path / "1.bin")  # nobody reads its begin, root neither
    pipeline = made(data.files(tmp_path / "*.bin"), lambda e: {"x": len(e.bytes)}, epochs=1,
                    on_error="skip", shuffle=False)
    assert pipeline.order()
    found = pipeline.compute(0, 3)
    assert [f.position for f in found.failures] == [1]
    assert found.there.tolist() == [True, False, True]


@pytest.mark.parametrize("end", ["return {'x': 1}", "raise ValueError", "raise SystemExit"])
def test_a_process_that_is_forked_in_an_operation_ends_there(tmp_path, end, capfd):
    (tmp_path / "p.py").write_text(
        "import os, spmd.data as data\n"
        "@data.pipeline(source=data.range(20), epochs=1, on_error='skip')\n"
        "def p(e):\n"
        "    if e == 7 and not os.fork():\n"
        f"        {end}\n"
        "    return {'x': e}\n")
    mine, came = os.getpid(), tmp_path / "came"
    pipeline = data.load(tmp_path / "p.py")
    found = pipeline.compute(0, 20)
    if os.getpid() != mine:  # it must not
        came.write_text("back")
        os._exit(0)
    os.wait()
    assert not came.exists()
    assert sorted(found.arrays["x"].tolist()) == list(range(20))
    said = capfd.readouterr().err
    assert ("p.py:2" in said and "was forked here came back" in said) is ("Exit" not in end)


def test_links_in_a_tar_are_the_files_that_they_lead_to(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        row = tarfile.TarInfo("d/a")
        row.size = 5
        out.addfile(row, io.BytesIO(b"hello"))
        for name, kind, to in (("d/hard", tarfile.LNKTYPE, "d/a"), ("d/soft", tarfile.SYMTYPE, "a"),
                               ("soft", tarfile.SYMTYPE, "d/soft"),
                               ("out", tarfile.SYMTYPE, "../x")):
            row = tarfile.TarInfo(name)
            row.type, row.linkname = kind, to
            out.addfile(row)
    source = data.archive(tmp_path / "a.tar", match="d/*")
    assert [(source.get(k).path, source.get(k).bytes) for k in range(source.length())] == [
        (name, b"hello") for name in ("d/a", "d/hard", "d/soft")]
    assert data.archive(tmp_path / "a.tar", match="soft").get(0).bytes == b"hello"
    with pytest.raises(spmd.InputError, match=r"out is a link to \.\./x, which is not in"):
        data.archive(tmp_path / "a.tar").length()


def test_names_that_are_no_utf_8_have_a_digest(tmp_path):
    for name in (b"a\xff", b"b"):
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    assert len(data.files(tmp_path / "*").digest()) == 32

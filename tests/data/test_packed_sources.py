"""Archives and windows of tokens, beside the files themselves and plain slices."""

from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmd
from spmd import data

FILES = {"b/dog/1.txt": b"one", "b/cat/2.txt": b"two " * 5000, "b/cat/empty.txt": b"",
         "b/dog/3.bin": bytes(range(256)), "top.txt": b"top"}


def written(folder, kind):
    path = folder / f"packed.{kind}"
    if kind == "tar":
        with tarfile.open(path, "w") as out:
            out.add(folder, "b", recursive=False)  # a folder is no example
            for name, raw in [("top.txt", b"older"), *FILES.items()]:
                row = tarfile.TarInfo(name)
                row.size = len(raw)
                out.addfile(row, io.BytesIO(raw))
        return path
    how = zipfile.ZIP_DEFLATED if kind == "zip" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as out:
        out.mkdir("b")
        for name, raw in FILES.items():
            out.writestr(name, raw)
    return path


@pytest.mark.parametrize("kind", ["zip", "stored", "tar"])
def test_archives_have_the_files_that_were_put_in(tmp_path, kind):
    path = written(tmp_path, kind)
    source = data.archive(path, label="folder")
    found = [source.get(k) for k in range(source.length())]
    assert {one.path: one.bytes for one in found} == FILES
    assert [one.path for one in found] == sorted(FILES)
    assert source.classes == ["", "cat", "dog"]
    assert [one.label for one in found] == [1, 1, 2, 2, 0]
    assert found[0].name == "2.txt" and source.name(0).startswith("b/cat/2.txt in ")
    text = data.archive(path, match="b/*.txt", label=lambda name: name[-5])
    assert [text.get(k).label for k in range(text.length())] == ["2", "y", "1"]

    @data.pipeline(source=source, epochs=2, seed=4)
    def sizes(example):
        return {"size": len(example.bytes)}

    once = sizes.compute(0, 99)
    assert sorted(once.arrays["size"][once.there]) == sorted(2 * [len(r) for r in FILES.values()])
    again = data.archive(path, label="folder")
    assert again.digest() == source.digest() != text.digest()


def test_archives_that_are_wrong(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as out:
        out.add(__file__, "x")
    (tmp_path / "text.zip").write_text("no archive")
    tar = written(tmp_path, "tar")
    raw = bytearray(written(tmp_path, "stored").read_bytes())
    raw[raw.index(b"two two")] = 0
    (tmp_path / "bad.zip").write_bytes(raw)
    for path, message in (("a.tar.gz", "a compressed file"), ("text.zip", "no archive"),
                          ("none.zip", "cannot be read")):
        with pytest.raises(spmd.InputError, match=message):
            data.archive(tmp_path / path).length()
    with pytest.raises(spmd.InputError, match=r"CRC-32|cannot be unpacked"):
        data.archive(tmp_path / "bad.zip").get(0).bytes  # noqa: B018
    source = data.archive(tar, match="b/cat/2*")
    assert source.length() == 1
    tar.write_bytes(tar.read_bytes()[:2000])
    with pytest.raises(spmd.InputError, match="was changed while it was read"):
        source.get(0).bytes  # noqa: B018
    with pytest.raises(spmd.InputError, match=r"no file in .* is called \*\.jpg"):
        data.pipeline(source=data.archive(tmp_path / "bad.zip", match="*.jpg"))(
            lambda example: {"x": 1}).compute(0, 1)
    with pytest.raises(spmd.UsageError, match="label"):
        data.archive(tar, label="folders")


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 60), length=st.integers(1, 12), stride=st.integers(1, 15))
def test_windows_are_slices(count, length, stride):
    tokens = np.arange(count, dtype=np.uint16) * 7
    source = data.windows(tokens, length, stride=stride)
    plain = [tokens[k : k + length] for k in range(0, count - length + 1, stride)]
    assert source.length() == len(plain)
    assert all(np.array_equal(source.get(k).tokens, row) for k, row in enumerate(plain))
    if plain:
        many = source.get_many([len(plain) - 1, 0])
        assert np.array_equal(many.tokens, [plain[-1], plain[0]])
        assert many.start.tolist() == [(len(plain) - 1) * stride, 0]
        assert np.array_equal(many[0].tokens, plain[-1])
        assert not source.get(0).tokens.flags.writeable
    whole = data.windows(tokens, 5)
    assert whole.length() == count // 5


def test_windows_of_files(tmp_path):
    """Each token of the text is a target once; files are mapped, and are the same source."""
    tokens = np.random.default_rng(0).integers(0, 50_000, 1001).astype(np.uint16)
    np.save(tmp_path / "tokens.npy", tokens)
    tokens.tofile(tmp_path / "tokens.bin")
    sources = [data.windows(tokens, 11, stride=10),
               data.windows(tmp_path / "tokens.npy", 11, stride=10),
               data.windows(tmp_path / "tokens.bin", 11, stride=10, dtype="uint16")]
    assert len({s.digest() for s in sources}) == 1
    assert sources[0].digest() != data.windows(tokens, 11).digest()
    for source in sources:
        @data.batched(source=source, size=7, epochs=1)
        def blocks(examples):
            return {"x": examples.tokens[:, :-1], "y": examples.tokens[:, 1:]}

        found = blocks.compute(0, source.length()).arrays
        assert sorted(found["y"].ravel()) == sorted(tokens[1:])
        assert np.array_equal(found["x"][:, 1:], found["y"][:, :-1])
    assert isinstance(sources[2].get(0).tokens, np.memmap)
    (tmp_path / "text.txt").write_text("running text")
    assert bytes(data.windows(tmp_path / "text.txt", 4).get(1).tokens) == b"ing "
    for wrong, message in ((np.zeros((3, 3)), "one row"), (tmp_path / "none.bin", "cannot be read"),
                           (["a", "b"], "array of numbers"), (np.zeros(3), "too few tokens")):
        with pytest.raises(spmd.InputError, match=message):
            found = data.pipeline(source=data.windows(wrong, 4))(lambda e: {"x": e.tokens})
            found.compute(0, 1)
    with pytest.raises(spmd.InputError, match="a multiple of 8 bytes"):
        data.windows(tmp_path / "text.txt", 4, dtype="int64").length()
    for wrong in ((tokens, 0), (data.lines(tmp_path / "text.txt"), 4)):
        with pytest.raises(spmd.UsageError):
            data.windows(*wrong)

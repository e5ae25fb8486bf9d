"""Trees of inputs and outputs: one for each leaf, taken and given whole, in Python and in files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import spmd
from tests.conftest import Finished

pytestmark = pytest.mark.one_mpi


class Block(NamedTuple):
    query: Any
    bias: Any


@dataclasses.dataclass(frozen=True)
class Head:
    kernel: Any
    extra: Any


@spmd.program(mesh=("r",), layout={"heads": "r"})
def network(blocks: int = 3):
    heads = spmd.Dim("heads", 6)
    block = Block(spmd.spec((heads, 4), default=lambda i, j: i + j), spmd.spec(4, np.float64))
    w = spmd.input("w", {
        "blocks": [block] * blocks,
        "head": Head(spmd.spec((4, 2), default=np.ones((4, 2))), (spmd.spec((), np.int32),)),
    }, default=None)
    return {"w": w, "sum": sum(np.sum(b.query) for b in w["blocks"]) + w["head"].extra[0]}


def tree() -> dict[str, Any]:
    q = np.arange(24, dtype=np.float32).reshape(6, 4)
    blocks = [Block(q + k, np.full(4, k / 2)) for k in range(3)]
    return {"blocks": blocks, "head": Head(np.zeros((4, 2), np.float32), (np.int32(5),))}


@pytest.fixture(scope="module")
def image() -> Any:
    return spmd.build(network)


def test_a_tree_is_one_input_per_leaf_and_comes_back_as_it_went(image):
    layouts = {a["name"]: a["layout"] for a in image.manifest["inputs"]}
    assert layouts["w.blocks.2.query"] == [["r"], []] and len(layouts) == 8
    out = image.run(ranks=4, w=tree())
    again = image.run(ranks=1, w=out["w"])  # what a run returned, for the tree
    for found in (out, again, network.eager(w=tree())):
        assert found["sum"] == sum(b.query.sum() for b in tree()["blocks"]) + 5
        assert np.array_equal(found["w"]["blocks"][2].bias, tree()["blocks"][2].bias)
        assert found["w"]["head"].extra[0] == 5
    with image.open(ranks=2, keep="w") as job:
        kept = job(w=tree())
        assert job(w=kept["w"])["sum"] == out["sum"]


def wrong(change: Callable[[dict[str, Any]], Any]) -> Any:
    given = tree()
    changed = change(given)
    return given if changed is None else changed


@pytest.mark.parametrize("change, message, expected", [
    (lambda w: w.pop("head") and None, "input w.head.kernel is not given", "blocks, head"),
    (lambda w: w.update(tail=np.ones(2)), "input w has something of which", "blocks, head"),
    (lambda w: w["blocks"].pop() and None, "input w.blocks.2.query is not given", "0, 1, 2"),
    (lambda w: w["blocks"].append(w["blocks"][0]), "input w.blocks has something", "0, 1, 2"),
    (lambda w: np.ones(3), "input w is a tree of arrays", "one with blocks, head"),
    (lambda w: w.update(blocks=[b._replace(bias=np.ones(5)) for b in w["blocks"]]),
     r"input w.blocks.0.bias has", r"\(4,\)"),
])  # fmt: skip
def test_a_tree_that_lacks_something_or_has_more_is_refused_by_name(
    image, change, message, expected
):
    for run in (lambda w: image.run(w=w), lambda w: network.eager(w=w)):
        with pytest.raises(spmd.InputError, match=f"{message}(.|\n)*expected: {expected}"):
            run(wrong(change))


@pytest.mark.parametrize("declare, error, message", [
    (lambda: spmd.input("w", {"a": (3, 4)}), spmd.UsageError, "holds something else than specs"),
    (lambda: spmd.input("w", {"a": spmd.spec(3)}, np.float32), spmd.UsageError, "stand in its"),
    (lambda: spmd.input("w", {"a.b": spmd.spec(3), "a": {"b": spmd.spec(3)}}), spmd.ProgramError,
     "w.a.b is the name of two inputs"),
    (lambda: [spmd.input("w", {"a": spmd.spec(3)}),
              spmd.input("w", (2,))], spmd.ProgramError, '"w" is declared twice'),
    (lambda: [spmd.input("w", {"a": spmd.spec(3)}),
              spmd.input("w", {"b": spmd.spec(3)})], spmd.ProgramError, '"w" is declared twice'),
    (lambda: spmd.input("w", {"a": spmd.spec(3), "b": spmd.spec(3)}, default={"a": np.ones(3)}),
     spmd.InputError, "default of w.b is not given"),
])  # fmt: skip
def test_what_is_no_tree_of_specs_is_refused(declare, error, message):
    @spmd.program
    def declares():
        declare()
        return np.ones(1)

    with pytest.raises(error, match=message):
        spmd.build(declares)


def test_a_key_may_begin_as_another_with_dots():
    specs = {"a": {"c": spmd.spec(2)}, "a.b": spmd.spec(2), "a.b.d": {"e": spmd.spec(2)}}
    given = {"a.b": [1, 2], "a": {"c": np.ones(2)}, "a.b.d": {"e": np.zeros(2)}}

    @spmd.program
    def dotted():
        return spmd.input("w", specs)

    found = dotted.eager(w=given)
    assert [found[k].tolist() for k in ("a.b",)] == [[1, 2]] and found["a"]["c"].sum() == 2
    assert found["a.b.d"]["e"].sum() == 0
    given["a"].clear()
    with pytest.raises(spmd.InputError, match="w.a.c is not given"):
        dotted.eager(w=given)


def test_defaults_may_be_a_tree():
    @spmd.program
    def table():
        specs = {"a": spmd.spec(3), "b": [spmd.spec((2, 2))]}
        return spmd.input("w", specs, default={"a": np.ones(3), "b": [lambda i, j: i - j]})

    for found in (spmd.build(table).run(ranks=2), table.eager()):
        assert found["a"].tolist() == [1, 1, 1] and found["b"][0].tolist() == [[0, -1], [1, 0]]


def test_files_hold_trees(
    image: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spmd_here: Callable[..., Finished]
) -> None:
    monkeypatch.chdir(tmp_path)
    image.save("net.img")
    blocks = {f"blocks.{k}.bias": np.ones(4) for k in range(3)}
    members = {**blocks, **{f"blocks.{k}.query": np.ones((6, 4), np.float32) for k in range(3)},
               "head.kernel": np.ones((4, 2), np.float32), "head.extra.0": np.int32(1)}
    np.savez("bare.npz", **members)
    np.savez("less.npz", **blocks)
    np.savez("more.npz", **members, tail=np.ones(1))

    def run(*words: str) -> Finished:
        return spmd_here("run", "net.img", "--ranks", "3", *words)

    said = run("-i", "w=bare.npz", "-o", "w=all.safetensors")
    lines = said.out.splitlines()
    assert lines[0] == "w.blocks.0.query: float32 (6, 4) in all.safetensors" and len(lines) == 9
    again = run("-i", "w=all.safetensors", "-o", "w=named.npz:ema")  # members w.blocks.0.query, …
    assert again.out.splitlines()[-1] == lines[-1] == "sum: float64 73.0"
    assert "ema.head.kernel" in np.load("named.npz")
    assert run("-i", "w=named.npz:ema").out.splitlines()[-1] == lines[-1]
    assert "less.npz has nothing for w.blocks.0.query" in run("-i", "w=less.npz").err
    assert "more.npz has tail, of which" in run("-i", "w=more.npz").err
    assert "input w is a tree of 8 arrays" in run("-i", "w=one.npy").err


def test_tables_have_one_line_for_many_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spmd_here: Callable[..., Finished]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("""
import numpy as np, spmd

@spmd.program
def net():
    q = spmd.spec((4, 4), layout=("x", None), default=1)
    specs = [{"q": q, "k": spmd.spec(4, default=2)} for _ in range(30)]
    return {"w": spmd.input("w", specs)}
""")
    spmd_here("build", "net.py")
    shown = spmd_here("show", "net.img", "--layouts").out
    assert shown.count("w.*.q (30)") == 1 and "w.3" not in shown
    line = "w: 60 arrays, 600 elements of float32; use -o w=FILE.safetensors\n"
    for image in (["net.img"], ["net.py", "--eager"]):
        assert spmd_here("run", *image).out == line

"""The operation graph as people see it: text, a picture, rows; damaged ones are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from codegen.compile import build
from codegen.errors import ImageError
from codegen.image import manifest
from examples import two_layers
from spmd import cli
from spmd.graph_boxes import region_of
from spmd.graph_picture import picture
from spmd.graph_text import graph_text
from tests.codegen import sample_programs
from tests.spmd.test_show import made
from tests.spmd.walks import Walks

SVG = "{http://www.w3.org/2000/svg}"
PROGRAMS = {"branches": sample_programs.branches, "fed_ranks": sample_programs.fed_ranks,
            "Walks": Walks}
_images: dict[str, bytes] = {}


def image_of(name: str) -> manifest.ImageFile:
    if name not in _images:
        _images[name] = build(PROGRAMS[name], {})
    return manifest.read(_images[name])


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "layers.img"
    path.write_bytes(build(two_layers.both, {}))
    return path


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_of_a_graph(name: str, golden: Any) -> None:
    golden(f"{name}.rows", graph_text(region_of(image_of(name))))


def test_rows_for_programs(layers: Path, spmd_here: Any) -> None:
    said = json.loads(spmd_here("show", layers, "--json").expect(0).out)
    rows = said["graph"]
    assert [row["number"] for row in rows] == list(range(len(rows)))
    (library,) = said["libraries"]
    products = [row for row in rows if row["kind"] == "library"]
    assert library["rows"] == [row["number"] for row in products]
    assert set(library["buffers"]) == {k for row in products for k in row["reads"] + row["writes"]}
    assert said["streams"] == 1 + max(row["stream"] for row in rows) > 1
    assert "graph" not in manifest.read(layers.read_bytes()).manifest  # which every rank parses
    spmd_here("show", layers).expect(0, f"streams     {said['streams']}, joined into one")


def test_show_draws_it_behind_the_program(layers: Path, spmd_here: Any) -> None:
    text = spmd_here("show", layers, "--graph").expect(0).out
    program, _, drawing = text.partition("\noperations, ")
    assert program.startswith("graph ") and "\n" + drawing.partition("\n")[2] in (
        "\n" + graph_text(region_of(manifest.read(layers.read_bytes()))).partition("\n")[2])


# ---- the picture ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A box of a picture, in units of the whole. group: the element that it lies in."""

    x: float
    y: float
    width: float
    height: float
    group: int


def drawn(svg: str) -> list[Drawn]:
    """The boxes of a picture that have no others in them, but for the legend's."""
    found = list(_rects(ElementTree.fromstring(svg), 0.0, 0.0))
    return [box for box in found if not any(_within(other, box) for other in found)]


def _rects(element: Any, x: float, y: float) -> Iterator[Drawn]:
    for child in element:
        to_x, to_y = x, y
        if place := child.get("transform"):
            left, top = place.removeprefix("translate(").removesuffix(")").split(",")
            to_x, to_y = x + float(left), y + float(top)
        if child.tag == f"{SVG}rect" and "box" in (child.get("class") or "") and float(
                child.get("height")) > 20:
            at = (float(child.get(k)) for k in ("x", "y", "width", "height"))
            left, top, width, height = at
            yield Drawn(x + left, y + top, width, height, id(element))
        yield from _rects(child, to_x, to_y)


def _within(inner: Drawn, box: Drawn) -> bool:
    return inner is not box and box.x <= inner.x and box.y <= inner.y and (
        inner.x + inner.width <= box.x + box.width
        and inner.y + inner.height <= box.y + box.height)


def _overlap(a: Drawn, b: Drawn) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and (
        a.y < b.y + b.height and b.y < a.y + a.height)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_picture_has_a_box_for_each_row(name: str) -> None:
    """Boxes of rows lie apart, but for the second one that says that a box is of many rows."""
    image = image_of(name)
    rows = image.notes()["operations"]
    svg = picture(region_of(image), name)
    around = {row["region"][0] for row in rows if "region" in row}
    boxes = drawn(svg)
    assert len(boxes) == len(rows) - len(around)
    for k, a in enumerate(boxes):
        assert not any(_overlap(a, b) for b in boxes[:k])
    tree = ElementTree.fromstring(svg)
    assert len(tree.findall(f".//{SVG}path")) == sum(len(row["waits"]) for row in rows)
    texts = {text.text.split()[0] for text in tree.iter(f"{SVG}text") if text.text}
    assert texts >= {str(row["number"]) for row in rows}


def test_the_picture_of_an_image(layers: Path, spmd_here: Any, tmp_path: Path) -> None:
    file = tmp_path / "graph.svg"
    assert spmd_here("show", layers, "--graph", "-o", file).expect(0).out == ""
    tree = ElementTree.fromstring(file.read_text())
    assert tree.tag == f"{SVG}svg" and "all-reduce" in file.read_text()
    done = spmd_here("show", layers, "--graph", "--sizes", "-o", file).expect(0)
    assert "buffers of a rank" in done.out and "operations" not in done.out


def test_alike_rows_are_one_box() -> None:
    """Not those that wait for each other."""
    kind = {"kind": "nest", "place": "a.py:1", "text": "x", "reads": [], "writes": [0]}
    many = [{**kind, "number": k, "stream": k, "waits": []} for k in range(6)]
    chain = [{**kind, "number": 6 + k, "stream": 0, "waits": [5 + k]} for k in range(6)]
    notes = {"operations": [*many, *chain]}
    image = manifest.read(_altered(notes).read_bytes())
    boxes = region_of(image).boxes
    assert [box.number for box in boxes] == ["0-5", *map(str, range(6, 12))]
    assert "0-5 nest ×6" in graph_text(region_of(image))


def test_what_cannot_be_drawn(layers: Path, spmd_here: Any, tmp_path: Path) -> None:
    for arguments, code, said in (
        (("-o", tmp_path / "g.svg"), 2, "-o is for the picture of --graph"),
        (("--graph", "-o", tmp_path / "g.png"), 2, "a picture of a graph is an SVG file"),
        (("--graph", "-o", tmp_path / "none" / "g.svg"), 74, "graph: cannot write"),
    ):
        done = spmd_here("show", layers, *arguments)
        assert said in done.expect(code).err
    assert cli.main(["show", str(layers), "--graph", "-o", str(tmp_path)]) == 2


# ---- images that cannot be trusted ---------------------------------------------------------------

_folder: list[Path] = []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    _folder[:] = [tmp_path]


def _altered(notes: dict[str, Any]) -> Path:
    return made(_folder[0] / "made.img", **notes)


ROW = {"number": 0, "kind": "nest", "waits": [], "stream": 0, "reads": [], "writes": []}


@pytest.mark.parametrize("rows", [
    [{**ROW, "number": 1}],
    [{**ROW, "waits": [0]}],
    [{**ROW, "waits": [7]}],
    [{**ROW, "region": [0, 0]}],
    [ROW, {**ROW, "number": 1, "region": [4, 0]}],
    [{**ROW, "kind": "loop"}, {**ROW, "number": 1, "region": [0, 1], "waits": [0]}],
    [{**ROW, "number": k, **({"region": [k - 1, 0]} if k else {})} for k in range(400)],
])
def test_rows_out_of_order_are_refused(rows: list[Any]) -> None:
    with pytest.raises(ImageError, match="damaged notes"):
        region_of(manifest.read(_altered({"operations": rows}).read_bytes()))


def test_rows_of_another_shape_are_refused() -> None:
    for rows in ([{**ROW, "waits": "all"}], [{"number": 0}], [{**ROW, "region": [1]}], "rows"):
        with pytest.raises(ImageError, match=r"operations"):
            region_of(manifest.read(_altered({"operations": rows}).read_bytes()))


def test_numbers_that_nothing_has_are_left_out() -> None:
    """Numbers of buffers, routines, kernels and regions that do not exist are left out."""
    rows = [{**ROW, "kind": "library", "reads": [10**6], "libraries": [77]},
            {**ROW, "number": 1, "kind": "branch"},
            {**ROW, "number": 2, "kind": "kernel", "kernel": "k", "region": [1, 10**9]}]
    image = manifest.read(_altered({"operations": rows}).read_bytes())
    assert "2 kernel" in graph_text(region_of(image))
    ElementTree.fromstring(picture(region_of(image), "x"))


def test_texts_are_drawn_escaped() -> None:
    evil = "</svg><script>\x1b[2J\x00&\u202e"
    rows = [{**ROW, "kind": evil, "place": evil, "text": evil}]
    image = manifest.read(_altered({"operations": rows}).read_bytes())
    svg = picture(region_of(image), "x")
    assert not any("script" in element.tag for element in ElementTree.fromstring(svg).iter())
    assert not set(svg + graph_text(region_of(image))) & set("\x1b\x00\u202e")

"""What is in an image, for people: summary, sizes, every level of the compiler, machine code.

Goes in: the path of an image. Comes out: text or JSON on standard output.
Always holds: nothing of the image is executed; an image for another machine can be looked at too;
what an image says of itself is printed without terminal escapes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from codegen.errors import ImageError, MeshError, UsageError
from codegen.image import manifest as reader
from codegen.image.elf import printable
from codegen.image.manifest import evaluate
from codegen.user.named import roots, together
from spmd import graph_picture, image_or_program, layout_table, pipeline_notes, report
from spmd.arguments import check_settings, read, scalars_of
from spmd.faces import Face, faces_of, states_of
from spmd.files.whole import check_place, refuse_replacing, write_whole
from spmd.graph_boxes import region_of
from spmd.graph_text import graph_text
from spmd.launch import loader, memory, sizes
from spmd.launch.processes import Processes
from spmd.verify.formulas import infix, layout_text

DRAWN = ("graph", "schedule")  # parts that -o draws
RANKS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


def command(asked: argparse.Namespace, _: Processes) -> int:
    """Run the command `spmd show`."""
    parts = asked.parts or ["manifest"]
    if asked.ranks and not {"layouts", "schedule"} & {*parts}:
        raise UsageError("--ranks is for the bytes that --layouts shows, and for --schedule",
                         remedy="show IMAGE --layouts --ranks N")
    if asked.mesh and not {"layouts", "schedule"} & {*parts}:
        raise UsageError("--mesh is for the bytes that --layouts shows, and for --schedule",
                         remedy="show IMAGE --layouts --mesh NAME=N")
    if asked.set and not loader.is_program(asked.image):
        raise UsageError("--set is for a FILE.py, which is built to be shown",
                         found=f"{asked.image}, whose parameters were fixed when it was built",
                         remedy=f"show FILE.py --set {'='.join(next(iter(asked.set.items())))}")
    if asked.without and not loader.is_program(asked.image):
        raise UsageError("--without is for a FILE.py, which is built to be shown",
                         found=f"{asked.image}, which was built before")
    if asked.output is not None:
        check_picture(asked.output, asked.image, parts)
    if "passes" in parts:
        return _passes(asked, parts)
    return main(asked.image, parts, asked.json, asked.ranks, asked.mesh, asked.set, asked.no_cache,
                asked.output, asked.without)


def _passes(asked: argparse.Namespace, parts: list[str]) -> int:
    """Print what each pass does in a build made afresh."""
    if not loader.is_program(asked.image):
        raise UsageError("--passes is for a FILE.py, which is built to be shown",
                         found=f"{asked.image}: what passes did is not in an image")
    if len(parts) > 1:
        raise UsageError("--passes stands alone", found=" ".join(f"--{part}" for part in parts))
    table = image_or_program.builder().passes_of(asked.image, asked.set, asked.without)
    print(json.dumps(table.json(), indent=1) if asked.json else "\n".join(table.text()))
    return 0


def check_picture(output: str, path: str, parts: list[str]) -> None:
    """Raises UsageError or OutputError where no picture can be written to `output`."""
    drawn = [part for part in parts if part in DRAWN]
    if len(drawn) != 1:
        raise UsageError("-o is for the picture of --graph, or of --schedule",
                         remedy="show IMAGE --graph -o FILE.svg")
    if not output.lower().endswith(".svg"):
        raise UsageError(f"-o {output}: a picture of a {drawn[0]} is an SVG file",
                         expected="a name that ends in .svg")
    refuse_replacing(output, {path.partition(":")[0]: "what is shown"})
    check_place(output, drawn[0])


def main(
    path: str, parts: list[str], as_json: bool, ranks: int | None = None,
    mesh: dict[str, int] | None = None, settings: dict[str, str] | None = None,
    no_cache: bool = False, output: str | None = None, without: Sequence[str] = (),
) -> int:
    """Print the parts that were asked for of an image, or of the one that FILE.py gives; layouts on
    a mesh. output: a file for the graph as a picture. Raises ImageError and its like."""
    settings = settings or {}
    with loader.named(path):
        data, parameters = image_or_program.image_or_built(path, settings, no_cache, without)
        image = reader.read(data, host=False)
        scalars = {name: value for name, value in read(settings).items() if name not in parameters}
        check_settings(image.manifest, scalars)
        scalars_of(image.manifest, scalars)  # what the program does not know is refused
        if output is not None:
            write_whole(output, _picture(image, parts, ranks, mesh).encode())
            parts = [part for part in parts if part not in DRAWN]
        return _shown(image, parts, as_json, ranks, mesh)


def _picture(
    image: reader.ImageFile, parts: list[str], ranks: int | None, mesh: dict[str, int] | None,
) -> str:
    """Return the picture of the graph, or of the schedule of a pipeline, as SVG."""
    if "graph" in parts:
        return graph_picture.picture(region_of(image), printable(image.manifest["program"]))
    pipelines = _pipelines(image, ranks, mesh)
    if len(pipelines) > 1:
        raise UsageError(f"-o draws one pipeline, and the image has {len(pipelines)}",
                         remedy="show IMAGE --schedule, which draws them as text")
    return pipelines[0].schedule.svg(kept_bytes=pipelines[0].kept)


def _pipelines(
    image: reader.ImageFile, ranks: int | None, mesh: dict[str, int] | None = None,
) -> list[pipeline_notes.PipelineNotes]:
    sizes.check_axes(image.manifest, mesh or {})
    pipelines = pipeline_notes.pipelines_of(image, ranks, mesh)
    if not pipelines:
        raise UsageError("--schedule is for an image that has a pipeline of spmd.pipeline",
                         found=f"{image.manifest['program']}, which has none")
    return pipelines


def _shown(
    image: reader.ImageFile, names: list[str], as_json: bool, ranks: int | None,
    mesh: dict[str, int] | None,
) -> int:
    parts: dict[str, Any] = {}
    for part in names:
        if part == "manifest":
            parts[part] = {**image.manifest, "digest": image.digest, "sections": _sections(image),
                           "graph": image.notes().get("operations", [])}
        elif part == "sizes":
            parts[part] = size_table(image)
        elif part == "layouts":
            parts[part] = layout_table.table(image, ranks, mesh or {})
        elif part == "schedule":
            parts[part] = [pipeline.json() if as_json else pipeline.text()
                           for pipeline in _pipelines(image, ranks, mesh)]
        elif part == "asm":
            from codegen.image.link import disassemble  # subprocess, for --asm alone

            parts[part] = disassemble(image.data)
        else:
            parts[part] = _level(image, part)
    if as_json and parts:
        print(json.dumps(parts if len(parts) > 1 else next(iter(parts.values())), indent=1))
        return 0
    for part, content in parts.items():
        if part == "manifest":
            text = "\n".join(summary(image))
        elif part == "sizes":
            text = "\n".join(sizes_text(image, content))
        elif part == "layouts":
            text = "\n".join(layout_table.text(image, content))
        else:
            text = "\n\n".join(content) if part == "schedule" else content
        print("\n".join(printable(line.expandtabs()) for line in text.rstrip("\n").split("\n")))
    return 0


def _level(image: reader.ImageFile, level: str) -> str:
    text = image.notes().get(level)
    if not isinstance(text, str):
        raise ImageError("damaged image", expected=f"the text of the {level}", found="none")
    if level == "graph" and "operations" in image.notes():
        text = f"{text}\n{graph_text(region_of(image))}"
    return text


def _sections(image: reader.ImageFile) -> dict[str, int]:
    return {name: size for name, (_, size) in image.sections.items() if name}


def axis_text(axis: dict[str, Any]) -> str:
    return str(axis["name"]) if axis["size"] is None else f"{axis['name']}={axis['size']}"


def shape_text(array: dict[str, Any]) -> str:
    return ", ".join(infix(extent) for extent in array["shape"])


# ---- the summary -------------------------------------------------------------------------------


def summary(image: reader.ImageFile) -> Iterator[str]:
    """Yield the lines of one screen: what the image is, takes, gives and does."""
    m = image.manifest
    target = m["target"]
    yield f"program     {m['program']}"
    for name, value in m["parameters"].items():
        yield f"parameter   {name} = {value}"
    words = reader.IndexWords(image.section(".spmd.index"))
    if words.patched:
        yield f"local       {words}: it runs on its own ranks only"
    yield f"mesh        ({', '.join(map(axis_text, m['mesh']))}), sizes bound at launch"
    for s in m["scalars"]:
        if "at_most" in s:
            yield f"dim         {s['name']}: 0 to {s['at_most']} elements, as inputs have them"
    yield from _entry_rows(m) if m["entries"] else _face_rows(m, Face(m))
    for c in m["conditions"]:
        yield f"condition   {c['text']}  ({c['place']})"
    for pipeline in pipeline_notes.pipelines_of(image):
        yield f"pipeline    {pipeline.schedule.title()}; --schedule draws it"
    if m["checks"]:
        yield f"checks      {report.checks_text(m)}, whenever it runs"
    for r in m["routes"]:
        yield f"route       {r['member']} sends to {r['text']}; tried at launch  ({r['place']})"
    for b in m["buffers"]:
        used = ", ".join(str(k) for k in b["operations"])
        yield (
            f"buffer {b['number']:<5}{b['name']}: {b['dtype']}, {infix(b['bytes'])} bytes"
            + (f", operations {used}" if used else "")
        )
    for c in m["constants"]:
        used = ", ".join(str(k) for k in c["operations"])
        label = f"{c['name']}: {c['dtype']}, {c['bytes']} bytes in the image"
        yield f"constant {c['number']:<3}{label}" + (f", operations {used}" if used else "")
    for row in m["libraries"]:
        yield f"library {row['number']:<4}{row['routine']} of {row['source']}{_used(row)}"
    for row in m.get("kernels", ()):
        yield f"kernel      {row['name']} of {row['file']}{_used(row)}"
    for row in m["operations"]:
        over = f" over ({', '.join(row['axes'])})" if "axes" in row else ""
        where = f"  {row['place']}: {row['text']}" if "place" in row else ""
        label = f'{row["kind"]} of feed "{row["feed"]}"' if "feed" in row else row["kind"]
        yield f"operation {row['number']:<3}{label}{over}{where}"
    if "streams" in m:
        many = m["streams"]
        yield f"streams     {many}{', joined into one' if many > 1 else ''}; --graph draws them"
    yield f"target      {target['machine']}, {target['level']}"
    yield f"digest      {image.digest}"
    sections = _sections(image)
    code = sections.get(".text", 0)
    yield f"file        {len(image.data)} bytes, of which {code} machine code"


def _entry_rows(m: dict[str, Any]) -> Iterator[str]:
    """Yield lines about what stays between calls, and what each entry takes, gives and does with
    it."""
    names = list(states_of(m))
    rows = ((a["name"], f"{a['dtype']}[{shape_text(a)}] over {layout_text(a['layout'])}", "")
            for _, a in states_of(m).values())
    for name, description, _ in together(rows):
        yield f"state       {name}: {description}"
    for face in faces_of(m).values():
        entry = m["entries"][face.number]
        where = f"  ({entry['place']})" if "place" in entry else ""
        changed = sorted({*entry["rebinds"], *entry["updates"]})
        uses = [f"{verb} {_whole_trees([names[k] for k in numbers], names)}"
                for verb, numbers in (("reads", entry["reads"]), ("changes", changed)) if numbers]
        yield f"entry       {face.name}: {'; '.join(uses) or 'no state'}{where}"
        yield from (f"  {line}" for line in _face_rows(m, face, numbers=False))


def _whole_trees(some: list[str], known: list[str]) -> str:
    """Return these names, with that of a tree where all of its arrays are among them."""
    every = roots(known)
    return ", ".join(root if mine == every[root] else ", ".join(mine)
                     for root, mine in roots(some).items())


def _face_rows(m: dict[str, Any], face: Face, numbers: bool = True) -> Iterator[str]:
    """Yield lines about what a call takes and gives. numbers: of buffers too."""
    for s in m["scalars"]:
        if s["name"] in face.scalars and "at_most" not in s:
            yield f"scalar      {s['name']}: {s['dtype']} = {s['default']}"
    for kind, arrays in (("input", face.inputs), ("output", face.outputs)):
        for name, description, last in together(_array_row(a, numbers) for _, a in arrays):
            yield f"{kind:<12}{name}: {description}{last}"
    for f in m["feeds"]:
        if f["name"] in face.feeds:
            yield from _feed_rows(f)
    if face.dims:
        yield f"rows        {rows_text(face)}"
    for name in face.saves if face.number is not None else ():
        yield f"frames      {name}"


def rows_text(face: Face) -> str:
    """Return whether requests of a server may be joined, and if not, why."""
    row = face.rows()
    if "dim" in row:
        return f"independent along {row['dim']}: requests may be joined"
    where = f"  ({row['place']}: {row['text']})" if "place" in row else ""
    return f"requests are not joined: {row['because']}{where}"


def _used(row: dict[str, Any]) -> str:
    """Return which buffers a routine or a kernel is handed, and in which operations."""
    said = ((role, ", ".join(map(str, row.get(role, ())))) for role in ("buffers", "operations"))
    return "".join(f", {role} {numbers}" for role, numbers in said if numbers)


def _feed_rows(feed: dict[str, Any]) -> Iterator[str]:
    """Yield lines about a feed: its fields, and how often the program takes batches, and sends."""
    counts = ", ".join(f"{many} {kind}{'s' * (many != 1)}" for kind in ("take", "send")
                       if (many := len(feed[f"{kind}s"])))
    yield f"feed        {feed['name']}: {counts}"
    sent = feed["sends"][0]["fields"] if feed["sends"] else []
    for kind, arrays in (("field", feed["fields"]), ("sent", sent)):
        for a in arrays:
            description = f"{a['dtype']}[{shape_text(a)}] over {layout_text(a['layout'])}"
            yield f"  {kind:<10}{a['name']}: {description}"


def _array_row(a: dict[str, Any], numbers: bool) -> tuple[str, ...]:
    """Return an array's name, its description, and the remarks behind it. Arrays of a tree are
    many, so their buffers are left out."""
    remarks = ", has a default" if a.get("default") else ""
    remarks += ", optional" if "optional" in a else ""
    remarks += f", needs {' and '.join(a['needs'])}" if a.get("needs") else ""
    description = f"{a['dtype']}[{shape_text(a)}] over {layout_text(a['layout'])}"
    buffer = f", buffer {a['buffer']}" if numbers and "." not in a["name"] else ""
    return a["name"], description, buffer + remarks


# ---- sizes -------------------------------------------------------------------------------------


def size_table(image: reader.ImageFile) -> list[dict[str, Any]]:
    """Return per number of ranks: the mesh, the image's bytes, and memory per rank and in all."""
    scalars = {s["name"]: s["default"] for s in image.manifest["scalars"] if s["dtype"] == "int64"}
    rows: list[dict[str, Any]] = []
    for ranks in RANKS:
        row: dict[str, Any] = {"ranks": ranks, "image_bytes": len(image.data)}
        try:
            mesh = sizes.bind_mesh(image.manifest, ranks, {}, scalars, ranks)
            values = {**scalars, **sizes.mesh_symbols(image.manifest, mesh)}
            per_rank = _rank_bytes(image.manifest, values)
            row.update(mesh=list(mesh), rank_bytes=per_rank, total_bytes=per_rank * ranks)
        except MeshError as error:
            row["refused"] = error.message
        rows.append(row)
    return rows


def _rank_bytes(manifest: dict[str, Any], values: dict[str, int]) -> int:
    """Return how far a rank's buffers reach: those of an overlay begin where those of the one
    around it end."""
    own = [0] * (1 + len(manifest["overlays"]))
    for b in manifest["buffers"]:
        own[b["overlay"]] += -(-evaluate(b["bytes"], values) // 64) * 64
    ends = own[:1]
    for around, size in zip(manifest["overlays"], own[1:], strict=True):
        ends.append(ends[around] + size)
    return max(ends)


def sizes_text(image: reader.ImageFile, rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "The image is built once; no number of ranks is in it."
    yield f"{'ranks':>9}  {'image':>14}  {'buffers of a rank':>18}  {'of all ranks':>14}  mesh"
    for row in rows:
        head = f"{row['ranks']:>9}  {row['image_bytes']:>8} bytes"
        if "refused" in row:
            yield f"{head}  {row['refused']}"
            continue
        names = (a["name"] for a in image.manifest["mesh"])
        mesh = ", ".join(f"{n}={s}" for n, s in zip(names, row["mesh"], strict=True))
        yield (
            f"{head}  {memory.bytes_text(row['rank_bytes']):>18}  "
            f"{memory.bytes_text(row['total_bytes']):>14}  {mesh}"
        )

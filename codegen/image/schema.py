"""What a manifest, and the notes of an image, may hold: one schema for both, and its checker.

In: what JSON gave. Out: nothing, or an ImageError that names the place, as in
`inputs[0].dtype`, what is expected there and what was found.
Always holds: work is bounded by the length of the text; only cheap modules are imported.
"""

from __future__ import annotations

from codegen.checks.names import CHECKS
from codegen.image.elf import damaged
from codegen.symbolic.meaning import ARGUMENTS, MANY, names_in
from codegen.validators import (
    BITS_64,
    Invalid,
    all_of,
    anything,
    each,
    flag,
    integer,
    maybe,
    one_of,
    row,
    shown,
    table,
    text,
)

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from codegen.validators import Check

AXES = 3
DIMS = 8
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
)
FLOWS = ("all", "from_root", "to_root", "up_to", "before", "near")
_MOST_NODES = 10_000
_MOST_DEPTH = 100
MOST_NESTED = 100  # containers inside each other, of what a program returns


# ---- checkers of our own -------------------------------------------------------------------------

_COUNT, _TEXT = integer(0), text(None)


def _accumulation(value: Any) -> None:
    """Check that an accumulation is a number of microbatches, or "8 ticks"."""
    number = value[:-len(" ticks")] if isinstance(value, str) and value.endswith(" ticks") else ""
    if not number.isdecimal() or len(number) > 9 or int(number) < 1:
        integer(1)(value)


def _scalar_default(value: Any) -> None:
    """Check that a default is nothing, or a number of 64 bits."""
    if value is not None and (type(value) not in (int, float, bool) or (
            type(value) is int and value not in BITS_64)):
        raise Invalid("a number of 64 bits", value)


def _formula(value: Any) -> None:
    """Check an expression in prefix form, of bounded depth and length: names are looked at
    later."""
    level, nodes = [value], 0
    for _ in range(_MOST_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, list):
                op, count = (node[0] if node else None), len(node) - 1
                if not isinstance(op, str) or count < 1 or (
                        op not in (*MANY, "table") and ARGUMENTS.get(op) != count):
                    raise Invalid("an operation and its arguments", op)
                if op == "table" and any(type(value) is not int for value in node[2:]):
                    raise Invalid("a table of integers", node)
                below += node[1:]
            elif not isinstance(node, str) and (type(node) is not int or node not in BITS_64):
                raise Invalid("an integer of 64 bits, a name or a list", node)
        nodes += len(level)
        if nodes + len(below) > _MOST_NODES:
            raise Invalid(f"at most {_MOST_NODES} parts of an expression", nodes + len(below))
        if not below:
            return
        level = below
    raise Invalid(f"an expression that nests at most {_MOST_DEPTH} deep", value)


def _returned(value: Any) -> None:
    """Check a tree as codegen.ir.graph.Returned says; `leaves` gives the outputs that it holds."""
    level = [value]
    for _ in range(MOST_NESTED + 2):
        level = [tree for node in level for tree in _nested(node)]
        if not level:
            return
    raise Invalid(f"containers that nest at most {MOST_NESTED} deep", value)


def _nested(node: Any) -> list[Any]:
    """Return the trees of which a tree consists."""
    if not isinstance(node, list):
        _COUNT(node)
        return []
    kind, *trees = node or [None]
    one_of("tuple", "list", "dict", "named")(kind)
    if kind in ("tuple", "list"):
        return trees
    if kind == "named":
        _TEXT(trees.pop(0) if trees else None)
    each(row(_TEXT, anything))(trees)
    return [tree for _, tree in trees]


def leaves(tree: Any) -> Iterator[int]:
    """Yield numbers of outputs, in order, of a checked tree."""
    if not isinstance(tree, list):
        yield tree
        return
    named = tree[0] in ("dict", "named")
    for inner in tree[2 if tree[0] == "named" else 1 :]:
        yield from leaves(inner[1] if named else inner)


# ---- the schema ----------------------------------------------------------------------------------

_ARRAY = table(name=_TEXT, dtype=one_of(*DTYPES), shape=each(_formula, DIMS),
               layout=each(each(_TEXT, AXES), DIMS), buffer=_COUNT)
_FIELD = table(name=_TEXT, dtype=one_of(*DTYPES), shape=each(_formula, DIMS),
               layout=each(each(_TEXT, AXES), DIMS))
_MANIFEST = table(
    {"kernels": each(table({"rows": each(_COUNT)}, symbol=_TEXT, name=_TEXT, file=_TEXT,
                           buffers=each(_COUNT), operations=each(_COUNT))),
     "streams": integer(1), "position": _COUNT,
     "independent_rows": each(table({"dim": _TEXT, "because": _TEXT, "place": _TEXT,
                                     "text": _TEXT}))},
    program=_TEXT, parameters=table(),
    target=table(machine=_TEXT, level=_TEXT, features=each(_TEXT, 1000)),
    mesh=each(table(name=_TEXT, size=maybe(integer(1, 2**31 - 1))), AXES),
    scalars=each(table({"at_most": _COUNT}, name=_TEXT, dtype=one_of("int64", "float64"),
                       default=_scalar_default, loads=flag)),
    inputs=each(all_of(_ARRAY, table({"optional": _TEXT}, default=flag))),
    outputs=each(all_of(_ARRAY, table({"needs": each(_TEXT), "selectable": flag}))),
    points=maybe(each(each(table(
        name=_TEXT, dtype=one_of(*DTYPES), shape=maybe(each(_formula, DIMS)),
        layout=maybe(each(each(_TEXT, AXES), DIMS)), buffer=_COUNT)))),
    feeds=each(table(
        {"place": _TEXT}, name=_TEXT, fields=each(_FIELD),
        takes=each(table(number=_COUNT, buffers=each(_COUNT))),
        sends=each(table(number=_COUNT, fields=each(_ARRAY))))),
    saves=each(all_of(_ARRAY, table(every=_COUNT))),
    returns=_returned,
    states=each(table({"begins": flag}, input=_COUNT, path=_TEXT, new=_COUNT)),
    entries=each(table({"place": _TEXT}, name=_TEXT, inputs=each(_COUNT), outputs=each(_COUNT),
                        reads=each(_COUNT), rebinds=each(_COUNT), updates=each(_COUNT),
                        scalars=each(_TEXT), feeds=each(_TEXT), saves=each(_TEXT),
                        returns=maybe(_returned))),
    conditions=each(table(holds=_formula, text=_TEXT, place=_TEXT)),
    routes=each(table(member=_TEXT, to=_formula, sends=_formula, size=_formula, text=_TEXT,
                       place=_TEXT)),
    operations=each(table(
        {"place": _TEXT, "text": _TEXT, "site": _COUNT, "axes": each(_TEXT, AXES), "phase": _TEXT,
         "feed": _TEXT, "lines": row(_COUNT, _COUNT), "libraries": each(_COUNT),
         "kernels": each(_TEXT)},
        number=_COUNT, kind=_TEXT, buffers=each(_COUNT),
    )),
    buffers=each(table(number=_COUNT, name=_TEXT, dtype=one_of(*DTYPES), bytes=_formula,
                        overlay=_COUNT, operations=each(_COUNT))),
    overlays=each(_COUNT),
    constants=each(table(number=_COUNT, name=_TEXT, dtype=one_of(*DTYPES), offset=_COUNT,
                          bytes=_COUNT, operations=each(_COUNT))),
    libraries=each(table({"buffers": each(_COUNT), "rows": each(_COUNT)}, number=_COUNT,
                          source=_TEXT, routine=_TEXT, operations=each(_COUNT))),
    checks=each(one_of(*CHECKS)),
)

_NAMED = each(row(_TEXT, _formula))
_BOX = table(buffer=_COUNT, offset=_formula, extent=each(_formula, 32),
             stride=each(_formula, 32), names=_NAMED)
_TICKS = each(each(integer(-1, 1 << 40), 1 << 12), 1 << 12)
_PLACE = one_of("block", "round", "v", "microbatch")
_ROWS = table(weights=_formula, activations=_formula, cotangents=_formula, loss=_formula)
_SCHEDULE = table(
    name=_TEXT, stages=integer(1, 1 << 12), microbatches=integer(1, 1 << 12),
    ticks=table({"W": _TICKS, "U": _TICKS}, F=_TICKS, B=_TICKS),
    period=maybe(integer(1, 1 << 40)), accumulate=_accumulation, correction=_TEXT,
    place=_PLACE, ranks=integer(1, 1 << 12), proof=_TEXT, source=_TEXT)
_NOTES = table(
    {
        "graph": _TEXT, "program": _TEXT, "loops": _TEXT, "plan": _TEXT, "c": _TEXT,
        "load": _NAMED, "coordinates": each(_TEXT, AXES),
        "exchanges": each(table({"fn": _TEXT},
            site=_COUNT, kind=_TEXT, axes=each(_TEXT, AXES), place=_TEXT, member=_TEXT,
            loops=each(row(_TEXT, _formula, maybe(_formula), _formula)),
            guards=each(row(maybe(_formula), _COUNT, _COUNT)),
            sends=maybe(_formula), dest=maybe(_formula), receives=maybe(_formula),
            source=maybe(_formula), root=maybe(_formula),
            from_=maybe(_BOX), into=maybe(_BOX), send=maybe(_BOX), give=maybe(_BOX),
            flow=one_of(*FLOWS), wraps=_formula, near=each(each(_formula, 4), AXES),
        )),
        "operations": each(table(
            {"region": row(_COUNT, _COUNT), "operation": _COUNT, "place": _TEXT, "text": _TEXT,
             "libraries": each(_COUNT), "kernel": _TEXT, "exchange": _TEXT,
             "axes": each(_TEXT, AXES), "feed": _TEXT},
            number=_COUNT, kind=_TEXT, waits=each(_COUNT), stream=_COUNT, reads=each(_COUNT),
            writes=each(_COUNT))),
        "arrays": each(table(name=_TEXT, dtype=one_of(*DTYPES), shape=each(_formula, 64),
                              bytes=_formula)),
        "traffic": each(table(site=_COUNT, kind=_TEXT, words=_TEXT, bytes=_formula, often=_TEXT)),
        "chosen": each(table({"try": _TEXT, "costs": flag}, message=_TEXT)),
        "pipelines": each(table(
            {"kept": each(_formula, 1 << 12), "rows": _ROWS},
            place=maybe(table(file=_TEXT, line=_COUNT, column=_COUNT, end=integer(-1), text=_TEXT)),
            axis=_TEXT, cut=_TEXT, stages_lie=_PLACE, schedule=_SCHEDULE)),
    }
)


def _check(check: Check, value: Any, where: str) -> None:
    """Raise ImageError with the place of what a checker refuses. where: the place of the value."""
    try:
        check(value)
    except Invalid as error:
        place = (where + error.path).lstrip(".")
        raise damaged(f"{error.found} at {place}" if place else error.found,
                      error.expected) from None


def refuse(where: str, expected: str, value: Any) -> None:
    """Raise ImageError for what stands at a place of the image."""
    raise damaged(f"{shown(value)} at {where}", expected)


def check_manifest(m: dict[str, Any]) -> None:
    """Raises ImageError unless all that a runtime reads is there and means something."""
    _check(_MANIFEST, m, "")
    for name in ("mesh", "scalars", "inputs", "outputs", "feeds", "saves"):
        names = [row["name"] for row in m[name]]
        if len(set(names)) < len(names):
            refuse(name, "distinct names", max(names, key=names.count))
    for name in ("operations", "buffers", "constants", "libraries"):
        numbers = [row["number"] for row in m[name]]
        if numbers != list(range(len(numbers))):
            refuse(f"{name} are not numbered", "numbers from 0 on", numbers[0])
    for k, around in enumerate(m["overlays"]):
        if around > k:
            refuse(f"overlays[{k}]", "the number of an overlay before it, or 0", around)
    for k, buffer in enumerate(m["buffers"]):
        if buffer["overlay"] > len(m["overlays"]):
            refuse(f"buffers[{k}].overlay", f"one of {len(m['overlays'])} overlays, or 0",
                   buffer["overlay"])
    for k, operation in enumerate(m["operations"]):
        if ("place" in operation) != ("text" in operation):
            refuse(f"operations[{k}]", "a place and its text, or neither", operation)
    if list(leaves(m["returns"])) != list(range(len(m["outputs"]))):
        refuse("returns", "each output once, in order", m["returns"])
    _check_entries(m)
    axes = {axis["name"] for axis in m["mesh"]}
    known = {s["name"] for s in m["scalars"]} | {f"n_{name}" for name in axes}
    for k, s in enumerate(m["scalars"]):
        if type(s["default"]) is (float if s["dtype"] == "int64" else bool):
            refuse(f"scalars[{k}].default", "an integer" if s["dtype"] == "int64" else "a number",
                   s["default"])
    optional = {i["optional"] for i in m["inputs"] if "optional" in i}
    for k, output in enumerate(m["outputs"]):
        if not optional.issuperset(needs := output.get("needs", [])):
            refuse(f"outputs[{k}].needs", "optional inputs", ", ".join(needs))
    for kind in ("inputs", "outputs"):
        for k, array in enumerate(m[kind]):
            _check_array(array, f"{kind}[{k}]", axes, known, m["buffers"])
    for k, carried in enumerate(m["points"] or ()):
        for j, array in enumerate(carried):
            whole = {**array, "shape": array["shape"] or [], "layout": array["layout"] or []}
            _check_array(whole, f"points[{k}][{j}]", axes, known, m["buffers"])
    _check_feeds(m["feeds"], axes, known, m["buffers"])
    for k, save in enumerate(m["saves"]):
        _check_array(save, f"saves[{k}]", axes, known, m["buffers"])
        if save["every"] < 1:
            refuse(f"saves[{k}].every", "a number from 1", save["every"])
    for kind, part in (("conditions", "holds"), ("buffers", "bytes")):
        for k, entry in enumerate(m[kind]):
            check_names(entry[part], known, f"{kind}[{k}].{part}")
    for k, route in enumerate(m["routes"]):
        for part in ("to", "sends", "size"):
            check_names(route[part], known | {route["member"]}, f"routes[{k}].{part}")


def _check_entries(m: dict[str, Any]) -> None:
    """Check that numbers of inputs, outputs, states and scalars are of those that there are, and
    that a new value is an array like the one whose place it takes."""
    names = [e["name"] for e in m["entries"]]
    if len(set(names)) < len(names):
        refuse("entries", "distinct names", max(names, key=names.count))
    if names and (len(names) < 2 or all(s["name"] != "entry" for s in m["scalars"])):
        refuse("entries", "a scalar that says which one runs, and two of them at least", len(names))
    for k, state in enumerate(m["states"]):
        for part, kind in (("input", "inputs"), ("new", "outputs")):
            if state[part] >= len(m[kind]):
                refuse(f"states[{k}].{part}", f"one of {len(m[kind])} {kind}", state[part])
        old, new = m["inputs"][state["input"]], m["outputs"][state["new"]]
        if any(old[part] != new[part] for part in ("dtype", "shape", "layout")) or (
                m["buffers"][old["buffer"]]["bytes"] != m["buffers"][new["buffer"]]["bytes"]):
            refuse(f"states[{k}]", "a new value of the same dtype, shape and layout", old["name"])
    for k, e in enumerate(m["entries"]):
        for part, kind in (("inputs", "inputs"), ("outputs", "outputs"), ("reads", "states"),
                           ("rebinds", "states"), ("updates", "states")):
            if any(number >= len(m[kind]) for number in e[part]):
                refuse(f"entries[{k}].{part}", f"numbers of {len(m[kind])} {kind}", e[part])
        if e["returns"] is not None and list(leaves(e["returns"])) != list(
                range(len(e["outputs"]))):
            refuse(f"entries[{k}].returns", "each output once, in order", e["returns"])
        for part in ("scalars", "feeds", "saves"):
            for name in e[part]:
                if name not in {row["name"] for row in m[part]}:
                    refuse(f"entries[{k}].{part}", f"{part} of the image", name)


def _check_array(
    array: dict[str, Any], where: str, axes: set[str], known: set[str], buffers: list[Any]
) -> None:
    if array["buffer"] >= len(buffers):
        refuse(f"{where}.buffer", f"one of {len(buffers)} buffers", array["buffer"])
    if array["dtype"] != (has := buffers[array["buffer"]]["dtype"]):
        refuse(f"{where}.dtype", f"{has}, as its buffer has", array["dtype"])
    if len(array["shape"]) != len(array["layout"]):
        refuse(f"{where}.layout", "an entry for each dim", array["layout"])
    used = [name for entry in array["layout"] for name in entry]
    if not axes.issuperset(used) or len(set(used)) < len(used):
        refuse(f"{where}.layout", "axes of the mesh, each once", ", ".join(used))
    for k, e in enumerate(array["shape"]):
        check_names(e, known, f"{where}.shape[{k}]")
        if type(e) is int and e < 0:
            refuse(f"{where}.shape[{k}]", "an extent of at least 0", e)


def _check_feeds(
    feeds: list[dict[str, Any]], axes: set[str], known: set[str], buffers: list[Any]
) -> None:
    """Check that fields are arrays with one first extent, and that each take has a buffer for
    each."""
    for k, feed in enumerate(feeds):
        where, fields = f"feeds[{k}]", feed["fields"]
        names = [item["name"] for item in fields]
        if not fields or len(set(names)) < len(names):
            refuse(f"{where}.fields", "fields, each with a name of its own", names)
        for j, field in enumerate(fields):
            if field["shape"][:1] != fields[0]["shape"][:1] or not field["shape"]:
                refuse(f"{where}.fields[{j}].shape", "the batch as the first extent",
                       field["shape"])
        for n, take in enumerate(feed["takes"]):
            if len(take["buffers"]) != len(fields):
                refuse(f"{where}.takes[{n}].buffers", "one for each field", take["buffers"])
            for j, (field, buffer) in enumerate(zip(fields, take["buffers"])):
                _check_array({**field, "buffer": buffer}, f"{where}.takes[{n}][{j}]", axes, known,
                             buffers)
        for n, send in enumerate(feed["sends"]):
            for j, array in enumerate(send["fields"]):
                _check_array(array, f"{where}.sends[{n}][{j}]", axes, known, buffers)
    for kind in ("takes", "sends"):
        numbers = sorted(one["number"] for feed in feeds for one in feed[kind])
        if numbers != list(range(len(numbers))):
            refuse(f"{kind} of feeds are not numbered", "numbers from 0 on", numbers)


def check_notes(notes: dict[str, Any]) -> None:
    """Raise ImageError unless the notes are as the schema says."""
    _check(_NOTES, notes, "notes")


def check_formula(e: Any, known: set[str], where: str) -> None:
    """Raise ImageError unless this is a formula of bounded size that names only these."""
    _check(_formula, e, where)
    check_names(e, known, where)


def check_names(e: Any, known: set[str], where: str) -> None:
    """Raise ImageError if a checked formula names anything but these."""
    for name in names_in(e):
        if name not in known:
            refuse(where, "symbols that the image declares", name)

"""The schema of manifests and of the notes of an image, and its checker.

In: what JSON gave. Out: nothing, or an ImageError that names the place, as in
`inputs[0].dtype`, what is expected there and what was found.
Always holds: work is bounded by the length of the text; only cheap modules are imported.
"""

from __future__ import annotations

from codegen.checks.names import CHECKS
from codegen.image.elf import damaged, printable
from codegen.symbolic.meaning import ARGUMENTS, MANY, names_in

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Rule = Callable[[Any, str], None]

AXES = 3
DIMS = 8
BITS_64 = range(-(2**63), 2**63)
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
)
FLOWS = ("all", "from_root", "to_root", "up_to", "before", "near")
_MOST_NODES = 10_000
_MOST_DEPTH = 100
MOST_NESTED = 100  # containers inside each other, of what a program returns


# ---- rules ---------------------------------------------------------------------------------------


def refuse(where: str, expected: str, value: Any) -> None:
    text = printable(repr(value)[:60]) if isinstance(value, (str, int, float)) else _kind(value)
    raise damaged(f"{text} at {where}", expected)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return "an object" if isinstance(value, dict) else "a list"


def text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        refuse(where, "a text", value)


def anything(value: Any, where: str) -> None:
    """Accept every value, since only people read it."""


def truth(value: Any, where: str) -> None:
    if type(value) is not bool:
        refuse(where, "true or false", value)


def integer(low: int = BITS_64[0], high: int = BITS_64[-1]) -> Rule:
    """Return the rule of an integer from low to high, both inclusive."""

    def rule(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            refuse(where, f"an integer from {low} to {high}", value)

    return rule


def word(*known: str) -> Rule:
    def rule(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in known:
            refuse(where, f"one of {', '.join(known)}", value)

    return rule


def maybe(inner: Rule) -> Rule:
    """Return the rule of that, or of nothing (null)."""

    def rule(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return rule


def every(inner: Rule, most: int = 1 << 20) -> Rule:
    """Return the rule of a list of at most so many items."""

    def rule(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) > most:
            refuse(where, f"a list of at most {most}", value)
        for k, item in enumerate(value):
            inner(item, f"{where}[{k}]")

    return rule


def row(*rules: Rule) -> Rule:
    """Return the rule of a list of just these items."""

    def rule(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) != len(rules):
            refuse(where, f"a list of {len(rules)}", value)
        for k, (item, inner) in enumerate(zip(value, rules)):
            inner(item, f"{where}[{k}]")

    return rule


def both(*rules: Rule) -> Rule:
    def rule(value: Any, where: str) -> None:
        for inner in rules:
            inner(value, where)

    return rule


def table(optional: dict[str, Rule] | None = None, **fields: Rule) -> Rule:
    """Return the rule of an object with these fields, some of which may be missing. What else is
    there nobody reads."""

    def rule(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            refuse(where, "an object", value)
        for name, inner in fields.items():
            place = f"{where}.{name.rstrip('_')}" if where else name.rstrip("_")
            if name.rstrip("_") not in value:
                refuse(place, "a value", None)
            inner(value[name.rstrip("_")], place)
        for name, inner in (optional or {}).items():
            if name in value:
                inner(value[name], f"{where}.{name}" if where else name)

    return rule


def _accumulation(value: Any, where: str) -> None:
    """Check that an accumulation is a number of microbatches, or "8 ticks"."""
    number = value[:-len(" ticks")] if isinstance(value, str) and value.endswith(" ticks") else ""
    if not number.isdecimal() or len(number) > 9 or int(number) < 1:
        integer(1)(value, where)


def scalar_default(value: Any, where: str) -> None:
    if value is not None and (type(value) not in (int, float, bool) or (
            type(value) is int and value not in BITS_64)):
        refuse(where, "a number of 64 bits", value)


def formula(value: Any, where: str) -> None:
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
                    refuse(where, "an operation and its arguments", op)
                if op == "table" and any(type(value) is not int for value in node[2:]):
                    refuse(where, "a table of integers", node)
                below += node[1:]
            elif not isinstance(node, str) and (type(node) is not int or node not in BITS_64):
                refuse(where, "an integer of 64 bits, a name or a list", node)
        nodes += len(level)
        if nodes + len(below) > _MOST_NODES:
            refuse(where, f"at most {_MOST_NODES} parts of an expression", nodes + len(below))
        if not below:
            return
        level = below
    refuse(where, f"an expression that nests at most {_MOST_DEPTH} deep", "a deeper one")


_COUNT = integer(0)


def returned(value: Any, where: str) -> None:
    """Check a tree as codegen.ir.graph.Returned has it; `leaves` collects the numbers of its
    outputs."""
    level = [value]
    for _ in range(MOST_NESTED + 2):
        level = [tree for node in level for tree in _nested(node, where)]
        if not level:
            return
    refuse(where, f"containers that nest at most {MOST_NESTED} deep", "deeper ones")


def _nested(node: Any, where: str) -> list[Any]:
    """Return the trees of which a tree consists."""
    if not isinstance(node, list):
        _COUNT(node, where)
        return []
    kind, *trees = node or [None]
    word("tuple", "list", "dict", "named")(kind, where)
    if kind in ("tuple", "list"):
        return trees
    if kind == "named":
        text(trees.pop(0) if trees else None, where)
    every(row(text, anything))(trees, where)
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

_ARRAY = table(name=text, dtype=word(*DTYPES), shape=every(formula, DIMS),
               layout=every(every(text, AXES), DIMS), buffer=_COUNT)
_FIELD = table(name=text, dtype=word(*DTYPES), shape=every(formula, DIMS),
               layout=every(every(text, AXES), DIMS))
_MANIFEST = table(
    {"kernels": every(table({"rows": every(_COUNT)}, symbol=text, name=text, file=text,
                            buffers=every(_COUNT), operations=every(_COUNT))),
     "streams": integer(1), "position": _COUNT,
     "independent_rows": every(table({"dim": text, "because": text, "place": text,
                                      "text": text}))},
    program=text, parameters=table(),
    target=table(machine=text, level=text, features=every(text, 1000)),
    mesh=every(table(name=text, size=maybe(integer(1, 2**31 - 1))), AXES),
    scalars=every(table({"at_most": _COUNT}, name=text, dtype=word("int64", "float64"),
                        default=scalar_default, loads=truth)),
    inputs=every(both(_ARRAY, table({"optional": text}, default=truth))),
    outputs=every(both(_ARRAY, table({"needs": every(text), "selectable": truth}))),
    points=maybe(every(every(table(
        name=text, dtype=word(*DTYPES), shape=maybe(every(formula, DIMS)),
        layout=maybe(every(every(text, AXES), DIMS)), buffer=_COUNT)))),
    feeds=every(table(
        {"place": text}, name=text, fields=every(_FIELD),
        takes=every(table(number=_COUNT, buffers=every(_COUNT))),
        sends=every(table(number=_COUNT, fields=every(_ARRAY))))),
    saves=every(both(_ARRAY, table(every=_COUNT))),
    returns=returned,
    states=every(table({"begins": truth}, input=_COUNT, path=text, new=_COUNT)),
    entries=every(table({"place": text}, name=text, inputs=every(_COUNT), outputs=every(_COUNT),
                        reads=every(_COUNT), rebinds=every(_COUNT), updates=every(_COUNT),
                        scalars=every(text), feeds=every(text), saves=every(text),
                        returns=maybe(returned))),
    conditions=every(table(holds=formula, text=text, place=text)),
    routes=every(table(member=text, to=formula, sends=formula, size=formula, text=text,
                       place=text)),
    operations=every(table(
        {"place": text, "text": text, "site": _COUNT, "axes": every(text, AXES), "phase": text,
         "feed": text, "lines": row(_COUNT, _COUNT), "libraries": every(_COUNT),
         "kernels": every(text)},
        number=_COUNT, kind=text, buffers=every(_COUNT),
    )),
    buffers=every(table(number=_COUNT, name=text, dtype=word(*DTYPES), bytes=formula,
                        overlay=_COUNT, operations=every(_COUNT))),
    overlays=every(_COUNT),
    constants=every(table(number=_COUNT, name=text, dtype=word(*DTYPES), offset=_COUNT,
                          bytes=_COUNT, operations=every(_COUNT))),
    libraries=every(table({"buffers": every(_COUNT), "rows": every(_COUNT)}, number=_COUNT,
                          source=text, routine=text, operations=every(_COUNT))),
    checks=every(word(*CHECKS)),
)

_NAMED = every(row(text, formula))
_BOX = table(buffer=_COUNT, offset=formula, extent=every(formula, 32),
             stride=every(formula, 32), names=_NAMED)
_TICKS = every(every(integer(-1, 1 << 40), 1 << 12), 1 << 12)
_PLACE = word("block", "round", "v", "microbatch")
_ROWS = table(weights=formula, activations=formula, cotangents=formula, loss=formula)
_SCHEDULE = table(
    name=text, stages=integer(1, 1 << 12), microbatches=integer(1, 1 << 12),
    ticks=table({"W": _TICKS, "U": _TICKS}, F=_TICKS, B=_TICKS),
    period=maybe(integer(1, 1 << 40)), accumulate=_accumulation, correction=text,
    place=_PLACE, ranks=integer(1, 1 << 12), proof=text, source=text)
_NOTES = table(
    {
        "graph": text, "program": text, "loops": text, "plan": text, "c": text,
        "load": _NAMED, "coordinates": every(text, AXES),
        "exchanges": every(table({"fn": text},
            site=_COUNT, kind=text, axes=every(text, AXES), place=text, member=text,
            loops=every(row(text, formula, maybe(formula), formula)),
            guards=every(row(maybe(formula), _COUNT, _COUNT)),
            sends=maybe(formula), dest=maybe(formula), receives=maybe(formula),
            source=maybe(formula), root=maybe(formula),
            from_=maybe(_BOX), into=maybe(_BOX), send=maybe(_BOX), give=maybe(_BOX),
            flow=word(*FLOWS), wraps=formula, near=every(every(formula, 4), AXES),
        )),
        "operations": every(table(
            {"region": row(_COUNT, _COUNT), "operation": _COUNT, "place": text, "text": text,
             "libraries": every(_COUNT), "kernel": text, "exchange": text,
             "axes": every(text, AXES), "feed": text},
            number=_COUNT, kind=text, waits=every(_COUNT), stream=_COUNT, reads=every(_COUNT),
            writes=every(_COUNT))),
        "arrays": every(table(name=text, dtype=word(*DTYPES), shape=every(formula, 64),
                              bytes=formula)),
        "traffic": every(table(site=_COUNT, kind=text, words=text, bytes=formula, often=text)),
        "chosen": every(table({"try": text, "costs": truth}, message=text)),
        "pipelines": every(table(
            {"kept": every(formula, 1 << 12), "rows": _ROWS},
            place=maybe(table(file=text, line=_COUNT, column=_COUNT, end=integer(-1), text=text)),
            axis=text, cut=text, stages_lie=_PLACE, schedule=_SCHEDULE)),
    }
)


def check_manifest(m: dict[str, Any]) -> None:
    """Raises ImageError unless all that a runtime reads is there and means something."""
    _MANIFEST(m, "")
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
        for k, row in enumerate(m[kind]):
            check_names(row[part], known, f"{kind}[{k}].{part}")
    for k, route in enumerate(m["routes"]):
        for part in ("to", "sends", "size"):
            check_names(route[part], known | {route["member"]}, f"routes[{k}].{part}")


def _check_entries(m: dict[str, Any]) -> None:
    """Check that entries name existing inputs, outputs, states and scalars, and that a new value
    has the type of the state that it replaces."""
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
    """Raise ImageError unless the notes follow the schema."""
    _NOTES(notes, "notes")


def check_names(e: Any, known: set[str], where: str) -> None:
    """Raise ImageError if a checked formula names anything but these."""
    for name in names_in(e):
        if name not in known:
            refuse(where, "symbols that the image declares", name)

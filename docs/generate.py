"""Pages that are made from the code: the command line, NumPy's functions, settings of pipelines.

In: the parser of `spmd`, NumPy's namespace, the tracer's table, rules. Out: Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from codegen.trace import namespace
from spmd import cli
from spmd.data.settings import RULES, Settings


def write(folder: Path) -> None:
    """All of them, as files of this folder; those that are as they should be stay untouched."""
    folder.mkdir(exist_ok=True)
    made = {"command-line.md": command_line, "numpy.md": numpy_table, "settings.md": settings}
    for name, make in made.items():
        path, text = folder / name, make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def command_line() -> str:
    """A section for every command: what it does, and its options."""
    parts = []
    for name, (what, add, _) in cli.COMMANDS.items():
        parser = cli.Parser(prog=f"spmd {name}", add_help=False)
        add(parser)
        inside = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        parts.append(f"## {name}\n\n{sentence(what)}\n" if inside else
                     section("##", name, what, parser))
        parts += [section("###", f"{name} {inner}", one.description or inner, one)
                  for action in inside for inner, one in action.choices.items()]
    return "\n".join(parts)


def section(level: str, name: str, what: str, parser: argparse.ArgumentParser) -> str:
    text = parser.format_help().strip().replace("usage: python -m spmd", "usage: spmd")
    return f"{level} {name}\n\n{sentence(what)}\n\n```text\n{text}\n```\n"


def sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:].rstrip('.')}."


STATES = {  # of codegen.trace.numpy.namespace.states, in the order of their tables
    "works": "What works",
    "gathers": "What works, and brings a split operand whole to every rank",
    "sized": "What works as spmd.numpy's, with a size",
    "refused": "What is refused, and what to write instead",
    "unknown": "What a later NumPy has",
}


def numpy_table() -> str:
    """Names that simply work as a list, and a row for every one with a note."""
    found = [s for s in namespace.states() if s.state in STATES]
    parts = [
        f"{sum(s.state == state for s in found)} of {len(found)}: {title[0].lower()}{title[1:]}."
        for state, title in STATES.items() if any(s.state == state for s in found)
    ]
    parts = ["- " + part for part in parts]
    for state, title in STATES.items():
        mine = [s for s in found if s.state == state]
        plain = [f"`{full(s.name)}`" for s in mine if not s.note]
        noted = [f"| `{full(s.name)}` | {cell(s.note)} |" for s in mine if s.note]
        if mine:
            parts += ["", f"## {title}", "", ", ".join(plain)]
        if noted:
            parts += ["", "| function | note |", "|---|---|", *noted]
    return "\n".join([*parts, ""])


def settings() -> str:
    """A row for each setting of a pipeline."""
    usual = Settings().as_json()
    rows = [f"| `{name}` | `{usual[name]!r}` | {cell(expected)} | {cell(note)} |"
            for name, (_, expected, note) in RULES.items()]
    head = ["| setting | without it | what it may be | note |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def full(name: str) -> str:
    return name if name.startswith(("ndarray.", "ufunc.", "scipy.")) else f"np.{name}"


def cell(note: str) -> str:
    """A note in a table: code is not told apart from words, so all of it is plain text."""
    return "".join(f"\\{c}" if c in "|*_`<>[]$" else c for c in note)

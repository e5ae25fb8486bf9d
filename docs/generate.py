"""Pages that are made from the code: the command line, and the table of NumPy's functions.

In: the parser of `spmd`, NumPy's namespace, the tracer's table. Out: Markdown.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np

from codegen.trace import dispatch
from spmd import cli


def write(folder: Path) -> None:
    """All of them, as files of this folder; those that are as they should be stay untouched."""
    folder.mkdir(exist_ok=True)
    for name, make in {"command-line.md": command_line, "numpy.md": numpy_table}.items():
        path, text = folder / name, make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def command_line() -> str:
    """A section for every command: what it does, and its options."""
    parts = []
    for name, (what, add) in cli._OPTIONS.items():
        parser = cli.Parser(prog=f"python -m spmd {name}", add_help=False)
        add(parser)
        parts.append(f"## {name}\n\n{what[0].upper()}{what[1:]}.\n\n"
                     f"```text\n{parser.format_help().strip()}\n```\n")  # fmt: skip
    return "\n".join(parts)


def numpy_table() -> str:
    """A row for every function of `np.*` that takes arrays."""
    known = {name.removeprefix("np.") for name in dispatch.table()}
    names = [n for n in sorted(dir(np), key=str.lower) if not n.startswith("_") and is_function(n)]
    rows = [f"| `np.{name}` | {'yes' if name in known else 'no'} |" for name in names]
    there = sum(name in known for name in names)
    head = [f"{there} of {len(names)}.", "", "| function | there |", "|---|---|"]
    return "\n".join([*head, *rows, ""])


def is_function(name: str) -> bool:
    what = getattr(np, name)
    return isinstance(what, np.ufunc) or (callable(what) and not inspect.isclass(what))

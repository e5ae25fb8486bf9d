"""What pages of the reference take from the code, written into them between two comments.

In: pages with `<!-- generated: docstrings spmd.grad spmd.Image(save,run) -->`, or another name of
MAKERS, and `<!-- /generated -->` behind it. Out: the same pages with new text between the two, so
that the files can be read without a build. `python docs/generate.py` writes them; a test compares.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

import spmd  # noqa: E402
from codegen.trace import namespace  # noqa: E402
from docs.code_map import code_map  # noqa: E402
from spmd import cli  # noqa: E402
from spmd.data.settings import RULES, Settings  # noqa: E402

BLOCK = re.compile(r"<!-- generated: (\w+)(.*?\s)-->\n(.*?)<!-- /generated -->\n", re.S)
NAME = re.compile(r"([\w.]+)(?:\(([^)]*)\))?")


def filled(page: str) -> str:
    """Return the text of a page with all its generated blocks made anew."""
    def fill(block: re.Match[str]) -> str:
        maker, names, _ = block.groups()
        text = docstrings(names) if maker == "docstrings" else MAKERS[maker]()
        return f"<!-- generated: {maker}{names}-->\n\n{text.strip()}\n\n<!-- /generated -->\n"

    return BLOCK.sub(fill, page)


def with_directives(page: str) -> str:
    """Return a page for Sphinx: its autodoc writes the docstrings, with an index of names."""
    def fill(block: re.Match[str]) -> str:
        maker, names, text = block.groups()
        if maker != "docstrings":
            return text
        lines = [line for name, members in NAME.findall(names) for line in directive(name, members)]
        examples = [".. highlight:: python", "   :force:", ""]
        return "\n".join(["```{eval-rst}", *examples, *lines, "```", ""])

    return BLOCK.sub(fill, page)


def documented_names(page: str) -> list[str]:
    """Return the names of which a page has the docstrings, in the order of the page."""
    return [name for maker, names, _ in BLOCK.findall(page) if maker == "docstrings"
            for name, _ in NAME.findall(names)]


# ---- docstrings


def directive(name: str, members: str) -> list[str]:
    value = resolved(name)
    if not inspect.isclass(value):
        return [f".. auto{'function' if callable(value) else 'data'}:: {name}"]
    special = [m for m in members.split(",") if m.startswith("__")]
    usual = [m for m in members.split(",") if m not in special]
    kind = "exception" if issubclass(value, BaseException) else "class"
    lines = [f".. auto{kind}:: {name}"]
    lines += [f"   :members: {'' if usual == ['*'] else ', '.join(usual)}"] if members else []
    return lines + ([f"   :special-members: {', '.join(special)}"] if special else [])


def docstrings(names: str) -> str:
    """Return the docstrings of names as Markdown, a heading with the signature above each."""
    parts = []
    for name, members in NAME.findall(names):
        value = resolved(name)
        parts.append(entry(name, value))
        if inspect.isclass(value):
            parts += [entry(f"{value.__name__}.{m}", inspect.getattr_static(value, m))
                      for m in member_names(value, members)]
    return "\n\n".join(parts)


def member_names(cls: type, members: str) -> list[str]:
    """Return the names of `members`; * means each public method and property that has a text."""
    public = [m for m, value in vars(cls).items() if not m.startswith("_")
              and (callable(value) or isinstance(value, property | classmethod | staticmethod))
              and inspect.getdoc(getattr(cls, m))]
    return [m for word in members.split(",") if word
            for m in (public if word == "*" else [word.strip()])]


def resolved(name: str) -> Any:
    """Return what a dotted name that begins with `spmd` means."""
    return functools.reduce(getattr, name.split(".")[1:], spmd)


MADE_BY_USERS = ("spmd.Dim",)  # classes whose constructor users call; others have none to show


def entry(name: str, value: Any) -> str:
    """Return a heading with the signature, and the docstring below it as Markdown."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    hidden = inspect.isclass(value) and name not in MADE_BY_USERS
    call = signature(value) if callable(value) and not hidden else ""
    text = re.sub(r"::$", ":", inspect.getdoc(value) or "", flags=re.M)
    # Doctests become code by their indentation; other code of docstrings is indented already.
    doctest = re.compile(r"(?:^|\n\n)(>>> .*?)(?=\n\n|\Z)", re.S)
    text = doctest.sub(lambda m: m[0].replace(m[1], re.sub("^", "    ", m[1], flags=re.M)), text)
    return f"#### `{name}{call}`\n\n{text}"


def signature(function: Any) -> str:
    """Return the parameters of a function with their defaults, as autodoc shows them."""
    try:
        found = inspect.signature(function)
    except ValueError:
        return "(…)"
    parameters = [p.replace(annotation=p.empty) for p in found.parameters.values()
                  if p.name != "self"]
    text = str(found.replace(parameters=parameters, return_annotation=found.empty))
    text = text.replace("=Ellipsis", "=...")
    return re.sub(r"<class '([\w.]+)'>", lambda m: m[1].replace("numpy.", "np."), text)


# ---- tables


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
    return f"{level} {name}\n\n{sentence(what)}\n\n```none\n{text}\n```\n"


def sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:].rstrip('.')}."


STATES = {  # of codegen.trace.numpy.namespace.states: what the table calls each, and what it means
    "works": ("works", "works as in NumPy, on any layout"),
    "gathers": ("gathers", "works; every rank gets a split operand whole"),
    "sized": ("needs a size", "works as `spmd.numpy`'s, with the argument `size`"),
    "refused": ("refused", "the note says what to write instead"),
    "unknown": ("not known", "a later NumPy has it"),
}


def numpy_table() -> str:
    """Return a table with a row for every function, and another one that explains its states."""
    rows = sorted((s for s in namespace.states() if s.state in STATES),
                  key=lambda s: (s.name.count("."), full(s.name)))
    counts = {state: sum(s.state == state for s in rows) for state in STATES}
    legend = [f"| {word} | {counts[state]} | {meaning} |"
              for state, (word, meaning) in STATES.items() if counts[state]]
    body = [f"| `{full(s.name)}` | {STATES[s.state][0]} | {cell(s.note)} |" for s in rows]
    return "\n".join(["| state | functions | meaning |", "|---|---|---|", *legend, "",
                      "| function | state | note |", "|---|---|---|", *body])


def settings() -> str:
    """A row for each setting of a pipeline."""
    usual = Settings().as_json()
    rows = [f"| `{name}` | `{usual[name]!r}` | {cell(expected)} | {cell(note)} |"
            for name, (_, expected, note) in RULES.items()]
    head = ["| setting | without it | what it may be | note |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def schedules() -> str:
    """A row for each schedule of pipelines that has a name."""
    rows = [f"| `{name}` | {recipe.summary} | {cell(recipe.source)} |"
            for name, recipe in spmd.schedules.BUILT_IN.items()]
    return "\n".join(["| schedule | what it does | source |", "|---|---|---|", *rows])


def full(name: str) -> str:
    return name if name.startswith(("ndarray.", "ufunc.", "scipy.")) else f"np.{name}"


def cell(note: str) -> str:
    """A note in a table: code is not told apart from words, so all of it is plain text."""
    return "".join(f"\\{c}" if c in "|*_`<>[]$" else c for c in note)


MAKERS = {
    "code_map": code_map, "command_line": command_line, "numpy_table": numpy_table,
    "schedules": schedules, "settings": settings,
}


if __name__ == "__main__":
    for path in sorted(HERE.rglob("*.md")):
        text = path.read_text()
        if (new := filled(text)) != text:
            path.write_text(new)
            print("wrote", path.relative_to(HERE.parent))

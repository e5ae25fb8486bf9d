"""The pages people read, as tests: every code block of README.md and docs/ runs as it stands.

In: a Markdown page and an empty folder. A ```python or ```c block that begins with `# NAME.py` or
`/* NAME.c */` is a file of that folder; other Python runs in the page's namespace, and what it
prints, or the error that it raises, stands in the ```text block after it. A ```console block has
commands and what they say. `<!-- not run: WHY -->`; `<!-- numbers vary -->`: words count.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import PATIENCE, ROOT, kept_signals, run

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
GENERATED = re.compile(r"(?<=<!-- generated: ).*?(?=<!-- /generated -->)", re.S)
FENCE = re.compile(r"^( *)```(\{?[\w-]*\}?)[^\n]*\n(.*?)^\1```$", re.M | re.S)
NOTE = re.compile(r"<!-- (not run|numbers vary)(?:: (.*?))? -->\s*$")
RUNS = ("python", "c", "console", "text")
SLOW_START = "waits: its workers are still starting"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `note` is the comment above it, `reason` why it does not run."""

    language: str
    text: str
    line: int
    note: str = ""
    reason: str = ""


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page in order, without those of docstrings, which other tests run."""
    text = GENERATED.sub(lambda made: "\n" * made[0].count("\n"), page.read_text())
    found = []
    for match in FENCE.finditer(text):
        indent, language, body = match.groups()
        if language.startswith("{"):  # a directive of the generator
            continue
        note = NOTE.search(text[: match.start()])
        body = re.sub(f"^{indent}", "", body, flags=re.M)
        line = text[: match.start()].count("\n") + 1
        found.append(Block(language, body, line, *(note.groups("") if note else ())))
    return found


class Reader:
    """Somebody who reads a page from top to bottom, and does what it says in one folder."""

    def __init__(self, folder: Path, real: bool = False) -> None:
        self.folder, self.real = folder, real
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.blocks = 0
        self.code = 0

    def read(self, page: Path) -> None:
        """Raises AssertionError, with page and line, where a page says something else."""
        every = blocks(page)
        for block, after in zip(every, [*every[1:], None]):
            where = f"{page.relative_to(ROOT) if ROOT in page.parents else page}:{block.line}"
            if block.note == "not run":
                assert block.reason, f"{where}: say why it does not run"
                continue
            assert block.language in RUNS, f"{where}: a block of {block.language!r} cannot run"
            try:
                if block.language == "python":
                    self.python(block, after if after and after.language == "text" else None)
                elif block.language == "c":
                    self.c(block)
                elif block.language == "console":
                    self.console(block)
                else:
                    self.follows(block, every)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from None

    def follows(self, block: Block, every: list[Block]) -> None:
        before = every[every.index(block) - 1] if every.index(block) else None
        assert before and before.language == "python", "text that no Python block above it prints"

    # ---- Python

    def python(self, block: Block, shown: Block | None) -> None:
        first = block.text.partition("\n")[0]
        if file := re.fullmatch(r"# ([\w/.-]+\.py)", first):
            (self.folder / file[1]).write_text(block.text)
            sys.modules.pop(Path(file[1]).stem, None)  # of this name, from another folder
            return
        self.blocks += 1
        name = f"example-{self.blocks}.py"
        linecache.cache[name] = (len(block.text), None, block.text.splitlines(True), name)
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                exec(compile(block.text, name, "exec"), self.names)
        except Exception as error:
            assert shown, f"raised\n{''.join(traceback.format_exception(error))}"
            kind = type(error)
            module = "" if kind.__module__ == "builtins" else "spmd."
            said.write(f"{module}{kind.__name__}: {error}\n")
        out = re.sub(r"example-\d+\.py", "example.py", said.getvalue())
        if shown and shown.note != "not run":
            compare(shown.text, out, shown.note)

    def c(self, block: Block) -> None:
        named = re.match(r"/\* ([\w/.-]+\.[ch]) \*/\n", block.text)
        assert named, "a block of C begins with the name of its file: /* NAME.c */"
        (self.folder / named[1]).write_text(block.text)

    # ---- commands

    def console(self, block: Block) -> None:
        for command, shown in commands(block.text):
            if command == "echo $?":
                assert shown.strip() == str(self.code), f"the exit code was {self.code}"
                self.code = 0
                continue
            assert self.code == 0, f"ended with {self.code} before `{command}`\n{self.said}"
            self.code, self.said = self.command(shlex.split(command, comments=True))
            try:
                compare(shown, _without_waits(self.said, shown), block.note)
            except AssertionError as error:
                raise AssertionError(f"`{command}` (exit code {self.code}): {error}") from None
        after = "" if self.code == 0 else f"ended with {self.code}\n{self.said}"
        assert not after, after

    def command(self, words: list[str]) -> tuple[int, str]:
        ranks: list[str] = []
        if words[0] == "mpirun" and not self.real and "spmd" in words[3:6]:
            assert words[1] == "-n", "only mpirun -n N is understood here"
            ranks, words = ["--ranks", words[2]], words[3:]
        if words[:3] == ["python", "-m", "spmd"]:
            words = words[2:]
        if words[0] == "spmd":
            return self.spmd([*words[1:], *([] if "--ranks" in words else ranks)])
        assert words[0] in ("python", "mpirun"), f"{words[0]} is no command of these pages"
        words = [sys.executable if word == "python" else word for word in words]
        done = run(words, cwd=self.folder, timeout=5 * PATIENCE)
        return done.code, done.text

    def spmd(self, words: list[str]) -> tuple[int, str]:
        """Run a command in this process, as starting Python each time would take most of the
        time."""
        from spmd import cli

        said = io.StringIO()
        with kept_signals(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = cli.main(words)
            except SystemExit as leave:
                code = int(leave.code or 0)
        return code, said.getvalue()


def _without_waits(said: str, shown: str) -> str:
    """Return what a command said without the line of a machine on which workers start slowly,
    unless the page shows it."""
    if SLOW_START in shown:
        return said
    return "".join(line for line in said.splitlines(keepends=True) if SLOW_START not in line)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command, and what it says: the lines up to the next one."""
    lines = text.replace("\\\n", " ").splitlines()
    starts = [k for k, line in enumerate(lines) if line.startswith("$ ")]
    assert starts and starts[0] == 0, "a console block begins with `$ ` and a command"
    for k, stop in zip(starts, [*starts[1:], len(lines)]):
        yield lines[k][2:].strip(), "\n".join(lines[k + 1 : stop])


def compare(shown: str, found: str, note: str) -> None:
    """Shown may be empty: then nothing is claimed. `...` stands for any text."""
    if note == "numbers vary":
        words = set(re.findall(r"[A-Za-z_]{3,}", shown))
        missing = sorted(words - set(re.findall(r"[A-Za-z_]{3,}", found)))
        assert not missing, f"{missing} is not in\n{found}"
    elif shown.strip():
        parts = [re.escape(squeezed(part)) for part in shown.split("...")]
        assert re.fullmatch(r"(?s:.*?)".join(parts), squeezed(found)), (
            f"the page shows\n{shown}\nand it is\n{found}"
        )


def squeezed(text: str) -> str:
    """Without the spaces at the ends of lines, and blank lines at both ends."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())

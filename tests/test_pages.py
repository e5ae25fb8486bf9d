"""Every code block of README.md and docs/ does what the page says; few do not run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import spmd
from tests.conftest import ROOT
from tests.pages import DOCS, PAGES, Reader, blocks

WITH_CODE = [page for page in PAGES if any(b.note != "not run" for b in blocks(page))]
REAL = ("README.md", "docs/howto/mpi4py-program.md")  # read with real processes


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A reader's own folder; what is imported from it does not stay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in WITH_CODE if name(p) not in REAL], ids=name)
def test_page_does_what_it_says(page, folder):
    Reader(folder).read(page)


@pytest.mark.one_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("page", [p for p in WITH_CODE if name(p) in REAL], ids=name)
def test_page_does_what_it_says_under_mpirun(page, folder):
    Reader(folder, real=True).read(page)


WRONG = {
    "another output": ("python", "print(1)", "text", "2"),
    "an exception": ("python", "1 / 0"),
    "another exception": ("python", "1 / 0", "text", "ValueError: no"),
    "no exception": ("python", "1 / 1", "text", "ZeroDivisionError: division by zero"),
    "an exit code": ("console", "$ spmd run missing.img"),
    "another exit code": ("console", "$ spmd run missing.img\n$ echo $?\n65"),
    "another answer": ("console", "$ spmd --version\nspmd 77"),
    "text from nowhere": ("text", "3"),
    "an unknown command": ("console", "$ rm page.md"),
    "an unknown language": ("sh", "true"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_page_that_is_wrong_is_noticed(what, folder):
    words = WRONG[what]
    page = folder / "page.md"
    page.write_text("\n".join(f"```{a}\n{b}\n```" for a, b in zip(words[::2], words[1::2])))
    with pytest.raises(AssertionError, match=r"page.md:1: "):
        Reader(folder).read(page)


def test_few_blocks_do_not_run():
    resting = [f"{name(p)}:{b.line}" for p in PAGES for b in blocks(p) if b.note == "not run"]
    running = [b for p in PAGES for b in blocks(p) if b.note != "not run"]
    assert len(resting) * 8 < len(running), resting


def test_readme_is_one_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 1500


@pytest.fixture(scope="module")
def generate():
    """docs/generate.py, which writes what pages take from the code."""
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))


def test_reference_has_every_public_name_once(generate):
    pages = (ROOT / "docs" / "reference").glob("*.md")
    names = [name for page in pages for name in generate["documented_names"](page.read_text())]
    assert sorted(names) == sorted(set(names))
    assert {name.split(".")[1] for name in names} | {"numpy"} == set(spmd.__all__)


@pytest.mark.parametrize("page", [p for p in DOCS if "<!-- generated: " in p.read_text()], ids=name)
def test_reference_says_what_the_code_says(page, generate, request):
    text = generate["filled"](page.read_text())
    if request.config.getoption("--update-golden"):
        page.write_text(text)
    assert page.read_text() == text, "make golden"


def test_figures_are_drawn_from_their_numbers():
    folder = ROOT / "docs" / "figures"
    figures = runpy.run_path(str(folder / "draw.py"))["FIGURES"]
    assert figures
    for file, draw in figures.items():
        assert (folder / file).read_text() == draw(), f"python docs/figures/draw.py rewrites {file}"

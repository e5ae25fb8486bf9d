"""What editors and type checkers know of spmd: names, types, docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from pathlib import Path

import numpy as np

import spmd
from spmd import launch_signatures
from spmd.launch.options import OPTIONS, Options
from tests.spmd import typed_program

ROOT = Path(__file__).resolve().parents[2]


def imported_for_types() -> dict[str, tuple[str, str]]:
    """Name -> module and name there, under `if TYPE_CHECKING:` of spmd/__init__.py."""
    tree = ast.parse((ROOT / "spmd" / "__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    (block,) = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
    found = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and node.module != "typing":
            module = str(node.module)
            for alias in node.names:
                every = importlib.import_module(module).__all__ if alias.name == "*" else ()
                found |= {name: (module, name) for name in every}
                if alias.name != "*":
                    found[alias.asname or alias.name] = module, alias.name
        elif isinstance(node, ast.Assign):
            target, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
            found[target] = found.pop(value)
    return found


def test_every_name_has_its_type_and_is_what_that_says():
    found = imported_for_types()
    assert sorted(found) == spmd.__all__ == dir(spmd)
    for name, (module, inner) in found.items():
        if module in ("spmd", "codegen.trace.api"):
            continue
        real, public = getattr(__import__(module, fromlist=[inner]), inner), getattr(spmd, name)
        assert public is real or public.__wrapped__ is real, name


def test_mypy_reads_a_users_program():
    """With all else, in `make types`."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        settings = tomllib.load(file)
    assert "tests/spmd/typed_program.py" in settings["tool"]["mypy"]["files"]
    assert settings["tool"]["mypy"]["strict"]  # what is ignored in vain is an error
    data = settings["tool"]["setuptools"]["package-data"]
    for package in ("spmd", "codegen"):
        assert "py.typed" in data[package] and (ROOT / package / "py.typed").exists()
    graph = typed_program.laplacian(np.arange(5.0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(graph, [5, 0, 0, 0, -5])


def test_names_of_spmd_numpy():
    """TAB shows what there is; all of it can be had, with a docstring."""
    names = dir(spmd.numpy)
    assert {"roll", "sum", "where", "float32", "pi", "newaxis", "linalg", "acos"} <= set(names)
    assert "apply_along_axis" not in names and "save" not in names
    for name in names:
        assert (getattr(spmd.numpy, name) is None) == (name == "newaxis")
    for function in (spmd.numpy.roll, spmd.numpy.sin):
        assert len((inspect.getdoc(function) or "").split()) > 4


def test_options_are_declared_once():
    """`launch_signatures.call` lists them again, for type checkers; an image's methods show all."""
    said = dict(inspect.signature(launch_signatures.call).parameters)
    assert said.pop("arguments").kind is inspect.Parameter.VAR_KEYWORD
    assert {name: p.default for name, p in said.items()} == {
        name: row.default for name, row in OPTIONS.items() if name not in ("keep", "state")
    }
    types = inspect.get_annotations(Options)
    assert {name: p.annotation for name, p in said.items()} == {n: types[n] for n in said}
    for method in (spmd.Image.run, spmd.Image.profile, spmd.Image.timeline):
        assert set(said) < set(inspect.signature(method).parameters)
    assert list(inspect.signature(spmd.Image.open).parameters) == ["self", *OPTIONS]
    for name in said:
        assert re.search(rf"^- {name}( \(.*\))?: ", spmd.Image.run.__doc__ or "", re.M)

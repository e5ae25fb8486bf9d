"""What a pipeline's file imports from its folder is its own: of that folder and that version."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import packaging
import pytest

import spmd
from spmd import data
from spmd.data import own_modules
from spmd.data.pipeline_files import load_text

PIPELINE = """
import numpy as np
import spmd.data as data
{imports}

@data.pipeline(source=data.range(100), shuffle=False)
def p(example):
    {body}
    return {{"x": np.int64({value})}}
"""


def written(folder, files, imports="", body="pass", value="value(example)"):
    """A pipeline in a folder, with what lies beside it."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (file := folder / "p.py").write_text(PIPELINE.format(imports=imports, body=body, value=value))
    return file


def x_of(pipeline, count=3):
    found = pipeline.compute(0, count)
    assert not found.failures, found.failures[0].text
    return found.arrays["x"].tolist()


@pytest.fixture(autouse=True)
def nothing_stays():
    """Neither a path, nor a module by a plain name, nor arguments."""
    before = list(sys.path), list(sys.argv), set(sys.modules)
    yield
    assert (sys.path, sys.argv) == before[:2] and own_modules.plain_names.running == []
    new = {name for name in sys.modules.keys() - before[2] if not name.startswith("__pipeline_")}
    assert not new & {"helper", "kit", "lib", "beside", "deep", "__pipeline__"}, new


@pytest.mark.parametrize("imports, body", [
    ("from helper import value", "pass"), ("import helper; value = helper.value", "pass"),
    ("", "from helper import value"), ("", "import helper as h; value = h.value"),
    ("import importlib", "value = importlib.import_module('helper').value"),
    ("import importlib; value = importlib.import_module('helper').value", "pass"),
    ("from .helper import value", "pass"), ("from helper import *", "pass"),
])
def test_each_folder_and_each_version_has_its_own(tmp_path, imports, body):
    files = [written(tmp_path / name, {"helper.py": f"def value(e): return {value}\n"},
                     imports, body) for name, value in (("a", "e"), ("b", "10 - e"))]
    a, b = map(data.load, files)
    assert (x_of(a), x_of(b), x_of(a)) == ([0, 1, 2], [10, 9, 8], [0, 1, 2])
    (tmp_path / "a" / "helper.py").write_text("def value(e): return 7\n")
    assert (x_of(data.load(files[0])), x_of(a)) == ([7, 7, 7], [0, 1, 2])


@pytest.mark.parametrize("name, shared", [
    ("packaging", "packaging.__file__"), ("colorsys", "colorsys.__file__")])
def test_one_that_is_called_as_an_installed_package(tmp_path, name, shared):
    """Its own code gets it, and nobody else: whoever needs the package has that."""
    file = written(tmp_path, {f"{name}.py": "def value(e): return 5 * e\n"},
                   f"from {name} import value")
    one = data.load(file)
    assert x_of(one) == [0, 5, 10]
    found: dict = {}
    exec(f"import {name}\nfile = {shared}", found)
    assert not found["file"].startswith(str(tmp_path))
    assert sys.modules["packaging"] is packaging


def test_a_folder_of_data_is_no_package_where_there_is_one(tmp_path):
    file = written(tmp_path, {"packaging/a.txt": ""}, "from packaging.version import Version",
                   value="Version('3.0').major")
    assert x_of(data.load(file)) == [3, 3, 3]


TREE = {
    "kit/__init__.py": "from .one import ONE\nfrom . import two as second\n__all__ = ['three']\n",
    "kit/one.py": "from kit.sub.deep import DEEP\nONE = 1 + DEEP\n",
    "kit/two.py": "import kit.one\nTWO = 2 * kit.one.ONE\n",
    "kit/three.py": "from beside import B\nTHREE = B().b - 1\n",
    "kit/sub/deep.py": "DEEP = 100\n",  # a folder without __init__.py
    "kit/lazy.py": "def lazy():\n    from .sub import deep\n    return deep.DEEP\n",
    "beside.py": "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
                 "import pickle\n@dataclass\nclass B:\n    b: int = field(default=4)\n"
                 "def copied():\n    return pickle.loads(pickle.dumps(B(6))).b\n",
    "lib/more.py": "MORE = 9\n",
}


@pytest.mark.parametrize("imports, body, value", [
    ("import kit", "pass", "kit.ONE + kit.second.TWO"),
    ("import kit.two as t", "pass", "t.TWO"), ("from kit import *", "pass", "three.THREE"),
    ("", "import kit.lazy", "kit.lazy.lazy()"), ("", "from kit.sub import deep", "deep.DEEP"),
    ("import beside", "pass", "beside.copied()"), ("from beside import B", "pass", "B().b"),
    ("import sys, os; sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))",
     "import more", "more.MORE"),
    ("import sys; sys.path.append(__file__[:-4] + 'lib'); import more", "pass", "more.MORE"),
])
def test_packages_travel_as_they_are(tmp_path, imports, body, value):
    """A pipeline's own modules travel to a machine without the folder; later changes do not
    count."""
    file = written(tmp_path / "here", TREE, imports, body, value)
    one = data.load(file)
    expected = {"t.TWO": 202, "three.THREE": 3, "more.MORE": 9, "B().b": 4,
                "kit.ONE + kit.second.TWO": 303, "beside.copied()": 6}.get(value, 100)
    texts = one.own.texts()
    assert x_of(one) == [expected] * 3
    assert {t["name"] for t in texts} <= {t["name"] for t in one.own.texts()}
    for name in TREE:
        (tmp_path / "here" / name).write_text("raise SystemExit('read again')\n")
    (there,) = load_text(one.own.text, str(file), modules=texts).values()
    assert x_of(there) == [expected] * 3
    (tmp_path / "here").rename(tmp_path / "gone")
    (there,) = load_text(one.own.text, str(file), modules=texts).values()
    assert x_of(there) == [expected] * 3


def test_what_did_not_travel_is_named(tmp_path):
    file = written(tmp_path, {"helper.py": "def value(e): return e\n"},
                   body="value = __import__('hel' + 'per').value")
    one = data.load(file)
    assert one.own.texts() == []
    (there,) = load_text(one.own.text, str(file), modules=[]).values()
    (failed,) = there.compute(0, 3, raises=False).failures
    assert "No module named 'helper' came with" in failed.text and failed.line == 8
    assert x_of(one) == [0, 1, 2]


def test_a_mistake_in_a_module_has_its_line_and_its_name(tmp_path):
    file = written(tmp_path, {"helper.py": "x = 1\n\ny = 1 / 0\n"}, "try: import helper\n"
                   "except ZeroDivisionError: pass", "import helper")
    (failed,) = data.load(file).compute(0, 1, raises=False).failures
    assert "ZeroDivisionError" in failed.text and failed.line == 9
    (tmp_path / "helper.py").write_text("import nowhere_at_all\n")
    with pytest.raises(spmd.InputError, match="No module named 'nowhere_at_all'"):
        data.load(file)
    (tmp_path / "helper.py").write_text("import kit.nowhere\n")
    written(tmp_path, TREE, "import helper")
    with pytest.raises(spmd.InputError, match="No module named 'kit.nowhere'"):
        data.load(file)


def test_the_file_has_no_arguments(tmp_path):
    file = written(tmp_path, {"helper.py": "import sys\nARGV = list(sys.argv)\n"},
                   "import sys, helper\nTHERE = list(sys.argv)",
                   f"assert helper.ARGV == THERE == sys.argv == [{str(tmp_path / 'p.py')!r}]",
                   "len(THERE)")
    assert x_of(data.load(file)) == [1, 1, 1]


def test_threads_that_compute_two_of_them(tmp_path):
    """Each has its own modules; when the last one has ended, all names are as they were."""
    both = [data.load(written(tmp_path / name, {"helper.py": f"def value(e): return {value}\n"},
                              body="from helper import value", imports="import sys"))
            for name, value in (("a", "e"), ("b", "50 - e"))]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: both[k % 2].compute(k, 1).arrays["x"][0], range(100)))
    assert found == [50 - k if k % 2 else k for k in range(100)]


def test_what_nobody_uses_any_more_is_let_go(tmp_path):
    file = written(tmp_path, TREE, "import kit", value="kit.ONE")
    before = set(sys.modules)
    one = data.load(file)
    assert len(sys.modules.keys() - before) > 4
    one.own.close()
    assert sys.modules.keys() == before
    (tmp_path / "p.py").write_text("import kit\n1 / 0\n")
    with pytest.raises(spmd.InputError):
        data.load(file)
    assert sys.modules.keys() == before

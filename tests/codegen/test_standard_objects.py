"""Objects of the standard library that loops and branches change: as in Python, or refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.errors import SpmdError
from codegen.oracle import interpret
from codegen.trace.program import Program

IMPORTS = "array collections configparser contextvars ctypes functools hashlib heapq io queue types"
# what is made | how it is changed | what is read behind
KINDS = """
{'a': 1.0} | c['a'] += 1 | c['a']
{'a': 1.0} | c['b'] = 1 | len(c)
collections.Counter('aab') | c['a'] += 1 | c['a']
collections.Counter('aab') | c.update('ab') | c['b']
collections.Counter('aab') | c['z'] += 1 | c['z']
collections.OrderedDict(a=1.0, b=2.0) | c['a'] += 1 | c['a']
collections.OrderedDict(a=1.0, b=2.0) | c.move_to_end('a') | c[list(c)[0]]
collections.defaultdict(float) | c['z'] += 1 | c['z']
collections.defaultdict(float, z=1.0) | c['z'] += 1 | c['z']
collections.deque([1.0]) | c.append(2.0) | len(c)
collections.deque([1.0, 2.0]) | c.rotate(1) | c[0]
collections.ChainMap({'a': 1.0}) | c['a'] += 1 | c['a']
collections.ChainMap({'a': 1.0}) | c['b'] = 1 | len(c)
collections.UserDict(a=1.0) | c['b'] = 1 | len(c)
collections.UserList([1.0]) | c.append(2) | len(c)
{1} | c.add(2) | len(c)
bytearray(b'ab') | c[0] += 1 | c[0]
bytearray(b'ab') | c.append(3) | len(c)
memoryview(bytearray(b'ab')) | c[0] = 5 | c[0]
array.array('d', [1.0, 2.0]) | c[0] += 1 | c[0]
array.array('d', [1.0, 2.0]) | c.append(3) | len(c)
(ctypes.c_double * 2)(1.0, 2.0) | c[0] = c[0] + 1 | c[0]
ctypes.c_double(1.0) | c.value = c.value + 1 | c.value
[3, 1, 2] | heapq.heappush(c, 0) | len(c)
queue.Queue() | c.put(1) | c.qsize()
queue.SimpleQueue() | c.put(1) | c.qsize()
contextvars.ContextVar('v', default=1.0) | c.set(c.get() + 1) | c.get()
functools.partial(max, 1) | c.keywords['b'] = 2 | len(c.keywords)
io.StringIO() | c.write('a') | len(c.getvalue())
hashlib.sha256() | c.update(b'a') | c.digest()[0]
types.SimpleNamespace(a=1.0) | c.a += 1 | c.a
type('C', (), {'a': 1.0})() | type(c).a = 5.0 | c.a
type('S', (), {'__slots__': ('a',)})() | c.a = 2.0 | getattr(c, 'a', 1.0)
ValueError('a') | c.add_note('x') | len(getattr(c, '__notes__', []))
np.array([1, None], dtype=object) | c[0] = 5 | float(c[0])
configparser.ConfigParser() | c.read_string('[a]') | len(c.sections())
""".strip().splitlines()
CARRIED = {"c['a'] += 1", "c.update('ab')", "c.a += 1"}  # what must not be refused
FUNCTIONS = """
def loop(x):
    c = {0}
    for _ in spmd.range(3):
        {1}
    return x[1] * ({2})

def branch(x):
    c = {0}
    if x[0] > 100:
        {1}
    return x[1] * ({2})
"""


@pytest.mark.parametrize("kind", KINDS)
def test_as_in_python_or_refused(kind: str, tmp_path: Path) -> None:
    made, change, read = kind.split(" | ")
    path = tmp_path / "objects_of_a_user.py"
    lines = [f"import {name}" for name in IMPORTS.split()]
    path.write_text("\n".join(["import numpy as np", "import spmd", *lines, FUNCTIONS.format(
        made, change, read)]))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for function in (module.loop, module.branch):
        check(function, change in CARRIED and "ChainMap" not in made and "'z'" not in made)


def check(function: Any, carried: bool) -> None:
    def program() -> Any:
        return function(function.__globals__["spmd"].input("x", (4,), np.float64, layout=("r",)))

    x = np.arange(4.0)
    try:
        graph = Program(program, ("r",)).capture()
    except SpmdError as error:
        text = str(error)
        assert not carried and error.place and "objects_of_a_user.py" in text, text
        assert ("c" in text.partition(": ")[2].split(" ")[0] or "change" in text), text
        assert "try: " in text or "expected" in text, text
        return
    (found,) = interpret.run(graph, {"r": 2}, {"x": x}).values()
    assert float(found) == function(x), function.__name__

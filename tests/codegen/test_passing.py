"""What another process, machine or moment would have otherwise is no constant of an image."""

import enum
import os
import platform
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.errors import UnsupportedError

THING = object()
OUTSIDE = {id(THING): 7}
Colour = enum.Enum("Colour", "RED GREEN BLUE")


def captured(body):
    return spmd.program(body).capture()


@pytest.mark.parametrize("read, text", [
    (os.getpid, "os.getpid() gives another value in every build"),
    (threading.get_ident, "threading.get_ident()"),
    (lambda: len(socket.gethostname()), "socket.gethostname() gives another value on every"),
    (lambda: len(platform.node()), "platform.node()"),
    (uuid.getnode, "uuid.getnode()"),
    (lambda: time.clock_gettime(0), "time.clock_gettime()"),
    (lambda: time.localtime().tm_hour, "time.localtime()"),
    (lambda: len(time.strftime("%S")), "time.strftime()"),
    (lambda: np.datetime64("now").astype(int), 'np.datetime64("now")'),
    (lambda: id(THING), "id() gives another value"),
    (lambda: id(THING) % 8, "id() gives another value"),
    (lambda: np.array([hash("abc"), 1])[1], "zlib.crc32"),
    (lambda: hash(("abc", 1)) % 8, "hash() gives another value"),
    (lambda: len([x.__doc__ for x in {object(), object()}]), "the order of this set"),
    (lambda: len([*{object(), object()}]), "the order of this set"),
])
def test_what_would_be_another_value_is_refused(read, text):
    def body():
        return np.ones(2) * read()

    with pytest.raises(UnsupportedError) as caught:
        captured(body)
    assert text in str(caught.value) and __file__ in str(caught.value)


ORDERS = """
import numpy as np, spmd, sys
@spmd.program
def orders(n: int = 3):
    names, out = {"b", "a", "c", "d"}, []
    for name in names:
        out.append(ord(name))
    out += [ord(x) for x in frozenset(names)] + [ord(x) for x in list(names)]
    out += [ord(x) for x in "".join(names)] + [ord(x) for x in map(str, names)]
    out += [ord(next(iter(names))), *[ord(x) for x in dict.fromkeys(names, 1)]]
    out += [k * ord(x) for k, x in enumerate(names)] + [ord(names.pop()), ord(names.pop())]
    out += [k for _, k in {("b", 2), ("a", 1)}]
    return np.array(out)
print(orders.capture().body.ops[-1].kind.data.tolist())
"""


def test_sets_have_one_order(tmp_path: Path):
    """Sets are traced in the same order in every process, whatever number Python hashes text by."""
    (tmp_path / "orders.py").write_text(ORDERS)
    said = {
        subprocess.run(
            [sys.executable, tmp_path / "orders.py"], env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout for seed in ("1", "2")
    }
    (one,) = said
    assert one.startswith("[97, 98, 99, 100, 97, 98,")


def test_keys_stay_keys():
    def body():
        class Point:
            def __init__(self, x):
                self.x = x

            def __hash__(self):
                return hash(("point", self.x))

            def __eq__(self, other):
                return self.x == other.x

        memo = {id(THING): 2, hash("abc"): 3, Point(1): 4}
        assert OUTSIDE[id(THING)] == 7 and id(THING) in memo and id(THING) == id(THING)
        assert hash(5) % 3 == 2 and hash((1, 2.5)) == hash((1, 2.5)) and str(id(THING)).isdigit()
        assert time.gmtime(0).tm_year + time.gmtime(0)[0] == 3940
        assert [c.name for c in {Colour.RED, Colour.BLUE}] == ["BLUE", "RED"]
        assert [t.__name__ for t in {int, float, str}] == ["float", "int", "str"]
        assert sorted({"b", "a"}) == ["a", "b"] and len({3, 1, 2}) == sum({1, 2})
        return np.ones(2) * memo[id(THING)] * memo[hash("abc")] * memo[Point(1)]

    assert captured(body)


def test_files_and_settings_belong_to_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second build after a change of os.environ, sys.argv or a file that is read is a new one."""
    path = tmp_path / "value.txt"

    @spmd.program
    def reads(n: int = 2):
        return np.array([float(os.environ["A_VALUE"]), float(sys.argv[1]), float(path.read_text())])

    found = []
    for value in ("3", "4"):
        monkeypatch.setenv("A_VALUE", value)
        monkeypatch.setattr(sys, "argv", ["p.py", value])
        path.write_text(value)
        found.append(spmd.build(reads).run().tolist())
    assert found == [[3.0] * 3, [4.0] * 3]

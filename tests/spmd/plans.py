"""Programs whose exchanges `verify` looks at, and images with other notes."""

from __future__ import annotations

import json
import zlib

from codegen.image import elf, manifest

HALO = '''
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def halo(n: int = 200):
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"), default=lambda i, j: i + j)

    @spmd.shard_map(mesh=("x", "y"), out_layouts=("x", "y"))
    def exchange(u):
        left = spmd.ppermute(u[:, -1], "y", to=lambda i, n: i + 1 if i + 1 < n else None)
        both = spmd.all_gather(np.sum(u), "x")
        total = spmd.psum(u[0, 0] + both[0], ("x", "y"))
        if spmd.axis_index("x") == 1:
            left = spmd.ppermute(left, "y", shift=1)
        return u + left[:, None] + total

    return {"u": exchange(u)}
'''

STENCIL = '''
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def stencil():
    u = spmd.input("u", (9, 4), np.float32, layout=("x", "y"))
    u[1:-1, 1:-1] += u[:-2, 1:-1] + u[1:-1, 2:]
    return {"u": u}
'''


def edited(path, folder, notes=None, old=b"", new=b""):
    """A copy with other notes, or other bytes, and a digest that fits it."""
    data = bytearray(path.read_bytes())
    sections = elf.read_sections(bytes(data))[1]
    if notes is not None:
        at, room = sections[".spmd.notes"]
        whole = manifest.ImageFile(bytes(data)).notes()
        notes(whole)
        text = zlib.compress(json.dumps({**whole, "c": "", "graph": ""}).encode(), 9)
        assert len(text) <= room
        data[at : at + room] = text.ljust(room, b"\0")
    if old:
        assert len(old) == len(new) and data.count(old) >= 1
        data = data.replace(old, new, 1)
    at, room = sections[".spmd.digest"]
    data[at : at + room] = manifest.make_digest(bytes(data), sections)
    copy = folder / "edited.img"
    copy.write_bytes(data)
    return copy

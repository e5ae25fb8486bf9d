"""spmd.save: frames of arrays that a program writes while it runs, in every k-th iteration.

In: a name, an array of the program. Out: a `save` in the body of the loop that is being captured.
Always holds: a save stands in a loop of the program, outside of shard_map, once under its name.
"""

from __future__ import annotations

from typing import Any

from codegen.errors import ProgramError, UnsupportedError, UsageError
from codegen.ir.graph import Module, Op, walk
from codegen.ops import Save
from codegen.places import user_place
from codegen.trace.array import as_array
from codegen.trace.context import require_context
from codegen.user.series import check_series


def save(name: str, x: Any, /, *, every: int = 1) -> None:
    """Save an array as a frame while the program runs, in every `every`-th turn of the enclosing
    loop.

    - name: of the series of frames, for `run -o 'NAME=frames/{}.npy'` or `run(save={"NAME": …})`;
      `stream` of an open image gives all of them to Python.
    - x: an array, or a number, as it is when the program comes here.
    - every: a frame is made in turn 0, every, 2 * every … of the innermost loop, counted from each
      time that the loop begins.

    Frames are numbered from 0 on. Ranks copy their parts and go on; files are written meanwhile. In
    an eager run, `eager(save={"NAME": function})` is called with each frame.
    Where nobody says where frames go, none are made. UsageError outside of a loop of the program,
    UnsupportedError in a shard_map, ProgramError for two saves of one name.

    Example::

        @program(mesh=("r",))
        def cools(n: int = 8, steps: int = 20):
            u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
            for step in spmd.range(steps):
                spmd.save("u", u, every=10)
                u = u * 0.5
            return u

        frames = []
        cools.eager(save={"u": frames.append})
        print(len(frames), frames[1][:3])    # 2 [0.         0.00097656 0.00195312]
    """
    context = require_context("spmd.save")
    check_series(name, every)
    if context.rank_view:
        raise UnsupportedError(
            f"save {name!r} stands in a shard_map, where a rank has parts of arrays only",
            place=user_place(), expected="a whole array", found="what one rank has",
            remedy="return the array from the shard_map, and save it in the loop around that")
    if not context.loops:
        raise UsageError(
            f"save {name!r} stands outside of a loop of the program", place=user_place(),
            expected="a place in a loop of spmd.range, or in a while of values that it computes",
            found="no loop around it, or one that Python runs while building",
            remedy=f'return {{"{name}": x}}: what is there at the end is an output')
    context.emit(Save(name, every), [as_array(x).read()])


def check_saves(module: Module) -> Module:
    """Return the module unchanged. Raises ProgramError where two saves have the same name."""
    outputs = {o.name for o in module.outputs}
    if module.entries:  # whose outputs users call by their own names
        outputs = {module.outputs[k].name.removeprefix(f"{e.name}.")
                   for e in module.entries for k in e.outputs}
    first: dict[str, Op] = {}
    for op in walk(module.body):
        if not isinstance(op.kind, Save):
            continue
        name = op.kind.series
        if name in first or name in outputs:
            other = first[name].place if name in first else None
            raise ProgramError(
                f"save {name!r} stands twice in the program" if name in first else
                f"save {name!r} is called as an output is", place=op.place,
                also=(("the other one:", other),) if other else (),
                expected="a name of its own for each save, other than those of outputs",
                found=f"{name!r} twice", remedy=f'spmd.save("{name}_2", …)')
        first[name] = op
    return module

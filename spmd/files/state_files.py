"""Files of the state of a program: opened, and compared with the arrays that it keeps.

In: a path, arrays by name with dtype and shape. Out: for each array where its elements lie.
Always holds: a file has every array and no other, of its shape, with elements of a dtype that
becomes its own without loss; else one error lists all that differs.
"""

from __future__ import annotations

from codegen.errors import InputError
from codegen.user.named import some
from spmd.files.inputs import InputArray, InputFile, archive_format

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Form = tuple[str, tuple[int, ...]]  # dtype and shape of an array


def open_state(path: str, wanted: Mapping[str, Form], program: str) -> dict[str, InputArray]:
    """Return the arrays of a file, of the dtypes and shapes that are wanted. Raises InputError for
    one that holds the state of another program or is damaged, OutputError for one that is not
    there."""
    file = InputFile(path, "", "state")
    archive = archive_format(path)
    opened: dict[str, InputArray] = {}
    try:
        for name, member in archive.members(file).items():
            mine = file.shared(name)
            mine.label = f"{path}:{some([name])}"
            opened[name] = InputArray(mine, archive.elements(mine, member))
        stored = {name: (array.dtype, array.shape) for name, array in opened.items()}
        for name in set(opened).intersection(wanted):
            opened[name].convert(wanted[name][0], len(wanted[name][1]))
        check_state(wanted, stored, path, program,
                    lambda name: (opened[name].dtype, opened[name].shape) == wanted[name])
    except BaseException:
        for array in opened.values():
            array.close()
        raise
    finally:
        file.close()
    return {name: opened[name] for name in wanted}


def check_state(
    wanted: Mapping[str, Form], stored: Mapping[str, Form], title: str, program: str,
    fits: Callable[[str], bool],
) -> None:
    """Raises one InputError for all arrays that are missing, too many, or do not fit. title: what
    messages call these arrays. fits: whether one has its shape, and a dtype that loses nothing by
    becoming its own.
    """
    missing = [name for name in wanted if name not in stored]
    others = [name for name in stored if name not in wanted]
    unlike = [name for name in wanted if name in stored and not fits(name)]
    if not (missing or others or unlike):
        return
    problems = [some(_said(name, stored[name]) for name in unlike)] if unlike else []
    problems += [f"no {some(missing)}"] if missing else []
    problems += [f"{some(others)} besides"] if others else []
    expected = some(_said(name, wanted[name]) for name in (*unlike, *missing))
    raise InputError(
        f"{title} is not the state of {program}",
        expected=expected if unlike or missing else f"{len(wanted)} arrays: {some(wanted)}",
        found="; ".join(problems),
        remedy="the program, and the parameters, that it was saved from")


def _said(name: str, form: Form) -> str:
    dtype, shape = form
    return f"{name}: {dtype} {shape}"

"""Programs in Python files: finding them, their parameters, building, running them as NumPy.

In: FILE.py[:NAME] and settings as text. Out: a program, an image, printed outputs.
Always holds: a mistake in the user's file is shown with its line, never as a traceback of ours.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from codegen.checks.names import POINTS, built_with, checks_of
from codegen.errors import (
    REPORT,
    InputError,
    InternalError,
    OutputError,
    Place,
    ProgramError,
    SpmdError,
    UsageError,
)
from codegen.image import build_cache
from codegen.image import manifest as reader
from codegen.image.target import resolve
from codegen.misspelt import keyword_remedy
from codegen.places import HERE, is_ours, is_user_file, last, place_at
from codegen.suggest import VERY_LIKE, meant
from codegen.trace.program import Program
from spmd import pipeline_notes
from spmd.cache import Cache
from spmd.files.outputs import program_file
from spmd.files.whole import refuse_replacing, write_whole
from spmd.launch.loader import Checked
from spmd.launch.processes import Processes
from spmd.layout_table import layout_warnings
from spmd.pass_table import PassTable
from spmd.progress_display import shown
from spmd.shadowed_modules import shadowing_error

# What only hands calls of the user on to Python and NumPy: what they raise is the user's mistake.
HANDING_ON = tuple(
    os.path.join(HERE, "codegen", *path.split("/"))
    for path in (
        "oracle/common.py", "oracle/eager.py", "oracle/local.py", "oracle/ranks.py",
        "oracle/threads.py", "trace/calls.py", "trace/control/hooks.py", "trace/numpy/dispatch.py",
        "trace/foreign.py", "trace/known.py", "trace/numpy/logic.py", "trace/control/stateful.py",
        "user/half_types.py",
    )
)


def find_program(path: str) -> Any:
    """Return the program that FILE.py[:NAME] names; NAME may be left out where there is one
    only."""
    name = path[len(program_file(path)) + 1 :]
    path = program_file(path)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}") from None
    if b"\0" in text:
        raise InputError(f"{path} is not a Python file", expected="the source of a program",
                         found="an image" if text[:4] == b"\x7fELF" else "a binary file",
                         remedy="build takes FILE.py, run and show take images")
    programs = {
        key: value for key, value in _executed(path, text).items() if isinstance(value, Program)
    }
    for key, program in programs.items():  # what spmd.program(mesh=…)(f) is assigned to names it
        if program.name not in programs:
            program.name = key
    names = ", ".join(programs) or "no function under @spmd.program"
    if name:
        if name not in programs:
            raise UsageError(f"{path} has no program {name!r}", expected=names)
        return programs[name]
    if len({id(program) for program in programs.values()}) != 1:
        raise UsageError(
            f"{path} holds {len(programs)} programs", expected="one program, or FILE.py:NAME",
            found=names,
        )
    return next(iter(programs.values()))


def _executed(path: str, text: bytes) -> dict[str, Any]:
    """Return the names that a Python file defines. Its own folder can be imported from, as in a
    script."""
    stem = os.path.splitext(os.path.basename(path))[0]
    module = ModuleType(stem)
    module.__file__ = os.path.abspath(path)
    folder = os.path.dirname(module.__file__)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    taken = sys.modules.get(stem)
    if taken is None:
        sys.modules[stem] = module  # dataclasses and pickle look their module up
    return guarded(lambda: _execute(module, path, text))


def _execute(module: Any, path: str, text: bytes) -> dict[str, Any]:
    exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    return dict(module.__dict__)


# Packages that the project's own examples need, by the module that they import.
_PACKAGES = {"PIL": "pillow", "gymnasium": "gymnasium", "num2words": "num2words",
             "sklearn": "scikit-learn"}
_PUBLIC = ("spmd", "spmd.random", "spmd.numpy")  # modules in which users look for names


_DEFECTS = (AssertionError, AttributeError, LookupError, TypeError, ValueError)  # of a pass


def guarded(step: Any) -> Any:
    """Return the result of code that runs a user's Python; its exceptions become errors with a
    place."""
    try:
        return step()
    except SpmdError:
        raise
    except SyntaxError as error:
        place = Place(error.filename or "?", error.lineno or 1, max(0, (error.offset or 1) - 1))
        raise ProgramError(f"{type(error).__name__}: {error.msg}", place=place) from error
    except RecursionError as error:
        where, _ = user_place(error)
        if where is None:
            raise InternalError("the compiler recursed deeper than Python allows",
                                remedy="smaller functions, or spmd.range") from error
        decided, step = False, error.__traceback__
        while step is not None and not decided:
            decided = step.tb_frame.f_code.co_name in ("captured_if", "captured_switch")
            step = step.tb_next
        if decided:
            raise ProgramError(
                "recursion whose end only the run knows", place=where,
                expected="a test that is known while building: both arms of another one are "
                "recorded, so the calls never end",
                found="a call of itself under a condition of the run",
                remedy="@spmd.recursive(depth=64) above the function; or a loop: for k in "
                "spmd.range(n), or a while, with what it needs in arrays",
            ) from None
        raise ProgramError("recursion without end, or deeper than Python allows", place=where,
                           expected="functions that call each other while building only",
                           remedy="a loop: spmd.range, or Python's range") from None
    except Exception as error:
        if isinstance(error.__cause__, SpmdError):
            raise error.__cause__ from None  # NumPy said less about it
        where, ours = user_place(error)
        text = f"{type(error).__name__}: {error}"
        if where is None:
            if isinstance(error, _DEFECTS):
                raise InternalError(text, remedy=REPORT) from error
            raise
        misspelt = any(getattr(error, "obj", 0) is sys.modules.get(name) for name in _PUBLIC) or (
            isinstance(error, TypeError) and keyword_remedy(error) is not None)
        if ours and not misspelt:
            raise InternalError(text, place=where) from error
        raise ProgramError(text, place=where, remedy=_meant(error)) from error


def _meant(error: Exception) -> str:
    """Return what to do about a name or a keyword that does not exist: one that is like it, or a
    package to install."""
    if hider := shadowing_error(error):
        return hider.remedy
    if isinstance(error, TypeError):
        return keyword_remedy(error) or ""
    name, known = getattr(error, "name", None), []
    if isinstance(error, ModuleNotFoundError) and name:
        package = _PACKAGES.get(name.partition(".")[0])
        package = package or f"{name.partition('.')[0]}, if that is the package that has it,"
        return f"pip install {package} for {sys.executable}"
    if isinstance(error, AttributeError):
        known = dir(error.obj)
    elif isinstance(error, NameError) and (tb := last(error.__traceback__)):
        frame = tb.tb_frame
        known = [*frame.f_locals, *frame.f_globals, *dir(builtins)]
    return meant(name, known, least=VERY_LIKE)


def user_place(error: BaseException) -> tuple[Place | None, bool]:
    """Return the innermost position in the user's own code, and whether it was ours that raised."""
    mistake = isinstance(error, (TypeError, ValueError, LookupError, ArithmeticError,
                                 AttributeError, OSError))
    place, tb = None, error.__traceback__
    ours = True
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        ours = is_ours(file) and not (mistake and file in HANDING_ON)
        if is_user_file(file):
            place = place_at(tb)
        tb = tb.tb_next
    return place, ours


def parameters_of(program: Any, settings: dict[str, str]) -> dict[str, Any]:
    """Return the settings that are parameters of the program, which reads them as annotated."""
    return guarded(lambda: program.read(settings))


def build_program(
    program: Any, parameters: dict[str, Any], target: str = "native", cache: Any = None,
    checks: tuple[str, ...] = (), without: Sequence[str] = (),
) -> bytes:
    """Return the image of a program. cache: where earlier builds are; None: the user's. without:
    names of optimisations that are left out."""
    with shown(logged=True):
        return guarded(
            lambda: _built(program, parameters, target, cache or Cache(), checks, without))


def _built(
    program: Any, parameters: dict[str, Any], target: str, cache: Any, checks: tuple[str, ...],
    without: Sequence[str],
) -> bytes:
    target = resolve(target)
    values = program.bind(parameters)
    how = (target, *checks, *(f"without {name}" for name in without))
    key = build_cache.program_key(program, values, how)
    if key and (data := cache.get(key)) is not None:
        return data
    data = _compiler().build(
        program, parameters, target=target, store=cache, checks=checks, without=without)
    # A program that changes what it reads is not the one that was looked up.
    if key and key == build_cache.program_key(program, values, how):
        cache.put(key, data)
    return data


def _compiler() -> Any:
    """Return the module that lists the passes: an image that is kept needs none of them."""
    from codegen import compile as compiler  # the passes: an image that is kept needs none

    return compiler


def program_beside(image: str) -> str:
    """Return the file that `spmd build FILE.py` writes FILE.img for."""
    return os.path.splitext(image)[0] + ".py"


def checked_twin(
    checked: Checked, path: str, checks: tuple[str, ...], cache: Any = None
) -> bytes | None:
    """Return the image in this file with these checks as well, built from the program beside it;
    None where that one does not give this image, to the bit."""
    manifest, file = checked.manifest, program_beside(path)
    if not os.path.isfile(file) or reader.IndexWords(checked.image.section(".spmd.index")).patched:
        return None
    has = built_with(manifest)
    try:
        program = find_program(f"{file}:{manifest['program']}")
        texts = {k: v for k, v in manifest["parameters"].items() if isinstance(v, str)}
        parameters = {**manifest["parameters"], **parameters_of(program, texts)}
        target = manifest["target"]["level"]
        same = build_program(program, parameters, target, cache, has)
        if reader.read(same).digest != checked.digest:
            return None
        return build_program(program, parameters, target, cache, checks_of([*has, *checks]))
    except SpmdError:  # it is another program by now, or none
        return None


def image_for_run(
    asked: argparse.Namespace, opened: Checked | None
) -> tuple[bytes, dict[str, Any]]:
    """Return the image that `run` builds before it runs, and those of the settings that are
    parameters.

    opened: an image without the checks that are asked for; b"" where its program is not beside it.
    """
    cache = chosen_cache(asked)
    if opened is not None:
        twin = checked_twin(opened, asked.image, asked.check, cache)
        if twin is not None:
            missing = "points to keep it at" if asked.check == (POINTS,) else "such checks"
            print(f"spmd: {asked.image} has no {missing}; built again with them from "
                  f"{program_beside(asked.image)}, which gives this image", file=sys.stderr)
        return twin or b"", {}
    program = find_program(asked.image)
    parameters = parameters_of(program, asked.set)
    data = build_program(program, parameters, cache=cache, checks=asked.check)
    if not asked.json:
        point_out(data)
    return data, parameters


def image_of(
    path: str, settings: dict[str, str], no_cache: bool, without: Sequence[str]
) -> tuple[bytes, set[str]]:
    """Return the image of a program in FILE.py[:NAME], and the names of the settings that are its
    parameters."""
    program = find_program(path)
    parameters = parameters_of(program, settings)
    cache = Cache("") if no_cache else Cache()
    return build_program(program, parameters, cache=cache, without=without), set(parameters)


def passes_of(path: str, settings: dict[str, str], without: Sequence[str]) -> PassTable:
    """Return what each pass does in a build of the program in FILE.py[:NAME], made afresh."""
    program = find_program(path)
    parameters = parameters_of(program, settings)
    with shown(logged=True):
        recording = guarded(lambda: _compiler().recorded(program, parameters, without=without))
    return PassTable(program.name, *recording)


def build_file(options: argparse.Namespace, _: Processes) -> int:
    """Write the image beside the program, or where it was asked for: the command `spmd build`."""
    path = options.program
    file = program_file(path)
    image = options.output or os.path.splitext(file)[0] + ".img"
    program = find_program(path)  # first: what is an image is told so
    refuse_replacing(image, {file: "the program"})
    if image.endswith(".py") and os.path.exists(image):
        raise UsageError(f"{image} is Python: it would be replaced by an image",
                         remedy="-o NAME.img")
    parameters = parameters_of(program, options.set)
    for name in options.set:
        if name not in parameters:
            raise UsageError(
                f"--set {name}: the program has no parameter {name!r}",
                expected=", ".join(program.parameters) or "no parameters",
                remedy=meant(name, program.parameters, "--set {}=…"),
            )
    cache = chosen_cache(options)
    started = time.perf_counter()
    checks = (*options.check, POINTS) if options.checkpoint else options.check
    data = build_program(
        program, parameters, options.target, cache, checks, options.without)
    gc.freeze()  # the process ends soon, without a last look for garbage in all of this
    seconds = time.perf_counter() - started
    point_out(data)
    write_whole(image, data)
    how = "from the cache" if cache.used else "built"
    print(f"{image}: {len(data)} bytes, {how} in {seconds:.2f} s", file=sys.stderr)
    return 0


def chosen_cache(options: argparse.Namespace) -> Any:
    """Return the cache, or one that forgets where --no-cache is given."""
    return Cache("") if options.no_cache else Cache()


def point_out(data: bytes) -> None:
    """Print on standard error what layouts make ranks exchange that they might not have to, and how
    the layers of pipelines are cut."""
    for text in [*warnings_of(data), *pipeline_notes.warnings(reader.read(data, host=False))]:
        print(f"spmd: {text}", file=sys.stderr)


def warnings_of(data: bytes, loops: bool = True) -> list[str]:
    return list(layout_warnings(reader.read(data, host=False), loops))

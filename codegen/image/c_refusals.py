"""C functions that no image can hold: why, and the user's own line.

Goes in: a FunctionInC, and what the compiler said or made of it. Comes out: a KernelError.
"""

from __future__ import annotations

import linecache
import os
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from codegen.errors import KernelError, Place
from codegen.image import link
from codegen.suggest import meant

if TYPE_CHECKING:
    from codegen.image.c_objects import FunctionInC

_SAID = re.compile(r"(?m)^(.+?):(\d+):(?:(\d+):)? (fatal error|error|note): (.*)$")
_WRAPPER = "kernel.c"  # the file that includes the user's
_OPTION = re.compile(r" \[-W[^\]]*\]$")
# Comments, and texts in quotes: what stands in them is no code.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def line_of(file: str, word: str, behind: str = "") -> Place | None:
    """Return the first place in a C file where a word of code stands, with this behind it."""
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    code = _NO_CODE.sub(lambda x: re.sub(r"[^\n]", " ", x[0]), text)
    match = re.search(rf"\b{re.escape(word)}\b\s*{re.escape(behind)}", code)
    if match is None:
        return None
    line = code.count("\n", 0, match.start()) + 1
    column = match.start() - (code.rfind("\n", 0, match.start()) + 1)
    return Place(file, line, column, column + len(word))


def _anywhere(function: FunctionInC, *words: str) -> Place | None:
    """Return the first place in any of a function's files where one of these words stands: as a
    call if it can."""
    files = [function.file, *function.files()[1:]]
    places = (line_of(file, word, behind)
              for word in words for behind in ("(", "") for file in files)
    return next(filter(None, places), None)


def _refused(function: FunctionInC, text: str, expected: str, found: str, remedy: str,
             place: Place | None) -> KernelError:
    name = function.prototype.name
    named = () if function.place is None or place is None else (("declared at", function.place),)
    return KernelError(f'kernel "{name}": {text}', place=place or function.place,
                       expected=expected, found=found, remedy=remedy, also=named)


# ---- what the compiler refuses -------------------------------------------------------------------


def not_compiled(function: FunctionInC, said: str) -> KernelError:
    """Return the error with the compiler's text, at the first line of the user's that it names."""
    rows = [(file, int(line), int(column or 1), kind, _OPTION.sub("", text))
            for file, line, column, kind, text in _SAID.findall(said)]
    texts = [text for _, _, _, kind, text in rows if kind != "note"]
    first_text = texts[0] if texts else (said.strip().splitlines() or ["not a word"])[0]
    for file, line, column, kind, text in rows:
        if file != _WRAPPER and (kind != "note" or "definition" in text):
            linecache.checkcache(file)
            place = Place(function.file if file == function.path else file, line, column - 1)
            if re.match(rf"conflicting types for .{function.prototype.name}\b", first_text):
                return _refused(function, "the function is not what its prototype says",
                                " ".join(function.prototype.text.split()),
                                place.source_line().strip(),
                                "make the two say the same", place)
            return _refused(function, "the C compiler refuses it", "C11", first_text, "", place)
    return _refused(function, "the C compiler refuses it", "C11", first_text, "", None)


# ---- what it makes, and no image can hold --------------------------------------------------------


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    size: int

    @property
    def runs_at_load(self) -> bool:
        return bool(self.size) and (self.kind in _ARRAYS_OF_FUNCTIONS
                                    or self.name.startswith(_RUN_AT_LOAD))

    @property
    def keeps_state(self) -> bool:
        """Return whether it can be written; what the linker alone writes cannot."""
        return bool(self.size and self.flags & _WRITE) and not self.runs_at_load \
            and not self.name.startswith(".data.rel.ro")


class _Symbol(NamedTuple):
    name: str
    kind: int
    section: int


_OBJECT, _FUNCTION, _THREAD_LOCAL, _INDIRECT = 1, 2, 6, 10
_COMMON = 0xFFF2
_WRITE, _SYMBOLS = 1, 2
_ARRAYS_OF_FUNCTIONS = (14, 15, 16)
_RUN_AT_LOAD = (".init", ".fini", ".ctors", ".dtors")


def check_object(function: FunctionInC, symbol: str, data: bytes) -> None:
    """Raises KernelError where an object file, in which `symbol` calls the function, needs what an
    image has not, keeps state, or has code that runs when it is loaded."""
    sections, symbols = _read(data)
    name = function.prototype.name
    outside = [s.name for s in symbols if s.section == 0 and s.name
               and s.name != "_GLOBAL_OFFSET_TABLE_" and not link.is_math(s.name)]
    if name in outside:
        functions = [s.name for s in symbols if s.kind == _FUNCTION and s.name != symbol]
        raise _refused(function, f"no function {name} in {os.path.basename(function.file)}",
                       " ".join(function.prototype.text.split()),
                       ", ".join(functions) or "no function", meant(name, functions), None)
    if chosen := [s.name for s in symbols if s.kind == _INDIRECT]:
        raise _refused(function, f"{chosen[0]} is chosen when the image is loaded",
                       "one version of each function, for the target of the build",
                       "target_clones, or an ifunc", "leave the attribute out",
                       _anywhere(function, *chosen))
    if outside:
        raise _refused(function, f"it calls {outside[0]}, which an image does not hold",
                       "functions of the file itself, and of math.h and complex.h",
                       ", ".join(outside[:4]),
                       "pass work space as one more output; print and allocate in the program",
                       _anywhere(function, *outside))
    if any(section.runs_at_load for section in sections):
        raise _refused(function, "a function of it runs when the image is loaded",
                       "code that runs when it is called",
                       "a constructor or a destructor", "leave the attribute out",
                       _anywhere(function, "constructor", "destructor", "__constructor__",
                                 "__destructor__"))
    written = [s.name.partition(".")[0] for s in symbols
               if s.kind in (_OBJECT, _THREAD_LOCAL) and (
                   s.section == _COMMON
                   or (s.section < len(sections) and sections[s.section].keeps_state))]
    if written or any(section.keeps_state for section in sections):
        raise _refused(function, "it keeps variables from one call to the next",
                       "a result that follows from what the call is given: ranks may share a "
                       "process", ", ".join(dict.fromkeys(written)) or "static variables",
                       "const for a table; pass what is to be kept as an array",
                       _anywhere(function, *written))


def _read(data: bytes) -> tuple[list[_Section], list[_Symbol]]:
    """Yield sections and symbols of an object file of this machine's compiler."""
    table, count, names = struct.unpack_from("<40xQ12xHH", data)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * k) for k in range(count)]

    def text(row: tuple[int, ...], offset: int) -> str:
        begin = row[4] + offset
        return data[begin : data.find(b"\0", begin)].decode("ascii", "replace")

    def symbols() -> Iterator[_Symbol]:
        for row in rows:
            if row[1] == _SYMBOLS:  # with their names in section number row[6]
                for offset in range(row[4], row[4] + row[5], 24):
                    name, info, _, section = struct.unpack_from("<IBBH", data, offset)
                    yield _Symbol(text(rows[row[6]], name), info & 15, section)

    sections = [_Section(text(rows[names], r[0]), r[1], r[2], r[5]) for r in rows]
    return sections, list(symbols())

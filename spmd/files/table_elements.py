"""Arrays that come from the columns of a table, and outputs that become its columns.

In: who fills memory with the elements of some rows; arrays by name. Out: elements in memory; the
columns of a table. Always holds: a process fills in only the rows that its ranks have.
"""

from __future__ import annotations

from codegen.errors import UsageError
from codegen.image.manifest import hashed
from spmd.files import npy

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    from spmd.files.inputs import InputFile

    Fill = Callable[[mmap.mmap, str, int, int], None]


class TableElements(npy.Elements):
    """A column of a table, or all of them as a 2-D array: their dtype is what the program wants.

    fill(memory, dtype, low, high) puts the elements of these rows where they stand in memory.
    column: its number; -1: all. fits: whether elements can be of a dtype. names: of all columns.
    """

    def __init__(self, file: InputFile, shape: tuple[int, ...], column: int,
                 fits: Callable[[str], bool], fill: Fill, names: Sequence[str],
                 dtype: str = "float64") -> None:
        super().__init__(0, dtype, shape)
        self.file, self.column, self.fits, self.fill = file, column, fits, fill
        self.names = names
        self.inflate = self._filled
        self.sum = column

    def typed(self, dtype: str, dims: int) -> TableElements:
        """Return the elements with the dtype that a program wants, or unchanged if they cannot have
        it. A table of one column becomes 1-D if `dims` is 1."""
        shape = self.shape
        if dims == 1 and len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]
        known = self.fits(dtype)
        return TableElements(self.file, shape, self.column, self.fits, self.fill, self.names,
                             dtype if known else self.dtype)

    def way_out(self, dims: int) -> str:
        """Return what to try where the shape is not that of an input of so many dims; or ""."""
        if self.column >= 0 or not self.names:
            return ""
        if not self.names[0]:
            return "a file without a column for its index: pandas writes it so with index=False"
        many = len(self.names) > 1 and dims == 1
        return f"one of the columns: {taking(self.file, self.names[-1])}" if many else ""

    def digest(self) -> str:
        """Return a hash of the file's bytes, the column and the shape."""
        hasher = hashed(repr((self.column, self.shape)).encode(), digest_size=16)
        for offset in range(0, self.file.length, npy.AT_ONCE):
            hasher.update(self.file.read_all(offset, min(npy.AT_ONCE, self.file.length - offset)))
        return hasher.hexdigest()

    def _filled(self, low: int, high: int, processes: int, available: int) -> mmap.mmap:
        remedy = "numpy.save: of a .npy file, each process maps its part"
        memory = self.file.memory("as numbers", self.end, high - low, processes, available, remedy)
        row = npy.SIZES[self.dtype] * npy.element_count(self.shape[1:])
        if row:
            self.fill(memory, self.dtype, low // row, min(-(-high // row), self.shape[0]))
        return memory


def repeated(names: list[str]) -> str | None:
    """Return the first name that an earlier column has too; None where all differ."""
    taken: set[str] = set()
    for name in names:
        if name in taken:
            return name
        taken.add(name)
    return None


def taking(file: InputFile, member: str) -> str:
    """Return the option by which an input takes a member of a file, as a shell reads it."""
    plain = member.replace("_", "").replace(".", "").isalnum()
    quoted = member if plain else "'" + member.replace("'", "'\\''") + "'"
    return f"-i {file.name}={file.path}:{quoted}"


class Column:
    """A column of a table that is written: its name, and which elements of an output it holds:
    `first`, `first + step`, …"""

    def __init__(self, name: str, output: int, first: int, step: int) -> None:
        self.name, self.output, self.first, self.step = name, output, first, step


def frame(arrays: list[tuple[str, str, tuple[int, ...]]]) -> npy.Frame:
    """Return the layout in which ranks write the arrays before the table is made: one after the
    other."""
    columns_of(arrays)
    starts, offset = [], 0
    for _, dtype, shape in arrays:
        starts.append(offset)
        offset += -(-npy.element_count(shape) * npy.SIZES[dtype] // 64) * 64
    return npy.Frame(max(1, offset), [], starts)


def columns_of(arrays: list[tuple[str, str, tuple[int, ...]]]) -> list[Column]:
    """Return the columns that outputs (name, dtype, shape) become; a 2-D output becomes name_0,
    name_1, …

    Raises UsageError for what no table can hold: arrays of more dims, of unequal lengths, complex
    numbers, two columns of one name.
    """
    rows = {name: shape[0] if shape else 1 for name, _, shape in arrays}
    columns: list[Column] = []
    for k, (name, dtype, shape) in enumerate(arrays):
        odd = next((other for other, count in rows.items() if count != rows[name]), None)
        if len(shape) > 2 or dtype.startswith("complex") or odd is not None:
            reason = f"{rows[name]} rows, {odd} has {rows[odd]}" if odd else f"{dtype} {shape}"
            raise UsageError(f"output {name} is no column of a table", found=reason,
                             expected="real numbers, 1-D or 2-D, as many rows in each output",
                             remedy=f"-o {name}=FILE.npy, or a table for each output")
        width = shape[1] if len(shape) == 2 else 1
        names = [f"{name}_{j}" for j in range(width)] if len(shape) == 2 else [name]
        columns += [Column(text, k, j, width) for j, text in enumerate(names)]
    names = [column.name for column in columns]
    if (twice := repeated(names)) is not None:
        raise UsageError(f"two columns of the table are called {twice}",
                         expected="names that differ", found=", ".join(names),
                         remedy="a table for each output")
    return columns

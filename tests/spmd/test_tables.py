"""Inputs from and outputs to CSV and Parquet files: each process parses its own rows."""

from __future__ import annotations

import csv
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from codegen.errors import InputError
from spmd.files import csv_tables, inputs, npy, table_elements
from tests.conftest import Finished

parquet = pytest.importorskip("pyarrow.parquet")

PROGRAM = """
import ml_dtypes
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def columns(n: int = 7, k: int = 4):
    zero = {"default": 0}
    u = spmd.input("u", (n, k), np.float64, layout=("r", None), **zero)
    price = spmd.input("price", (n,), np.float32, layout=("r",), **zero)
    count = spmd.input("count", (n,), np.int16, layout=("r",), **zero)
    sold = spmd.input("sold", (n,), np.bool_, layout=("r",), **zero)
    rough = spmd.input("rough", (n,), ml_dtypes.bfloat16, layout=("r",), **zero)
    return {"u": u * 2, "price": price + price, "count": count + 1, "sold": ~sold,
            "rough": rough + rough}
"""

ROWS = """price,count,sold,rough
1.5,3,true,1
,-4,0,2.5
2.25,5,FALSE,0.1
1e3,-6,1,1e38

0.1,7,False,nan
inf,0,true,-1e-3
"7.5",32766,1,1
"""

Start = Callable[..., Finished]


def expected() -> dict[str, np.ndarray]:
    import ml_dtypes

    columns = list(zip(*[row for row in csv.reader(ROWS.split("\n")) if row], strict=True))
    text = {c[0]: c[1:] for c in columns}
    sold = np.array([t.lower() in ("true", "1") for t in text["sold"]])
    number = {k: np.array([float(t or "nan") for t in text[k]]) for k in ("price", "rough")}
    rough = number["rough"].astype(np.float32).astype(ml_dtypes.bfloat16)
    return {"price": 2 * number["price"].astype(np.float32), "sold": ~sold, "rough": rough + rough,
            "count": np.array([*map(int, text["count"])], np.int16) + 1}


@pytest.mark.parametrize("ranks, at_once", [(1, 1 << 22), (3, 16), (5, 40), (9, 1 << 22)])
def test_columns_by_their_names(
    built: Callable[..., Path], spmd_here: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    ranks: int, at_once: int,
) -> None:
    """A column goes to the input of its name, an empty field is NaN, and what is written reads
    back; lines are found across the ends of what is read at once."""
    monkeypatch.setattr(npy, "AT_ONCE", at_once)
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(ROWS)
    outputs = "-o price=o.csv -o count=o.csv -o sold=o.csv -o rough=o.parquet -o u=u.parquet"
    spmd_here("run", built(PROGRAM), "--ranks", ranks, "-i", "t.csv", *outputs.split()).expect(0)
    wanted = expected()
    found = np.genfromtxt("o.csv", delimiter=",", names=True, dtype=None)
    for name in ("price", "count", "sold"):
        np.testing.assert_array_equal(found[name].astype(wanted[name].dtype), wanted[name])
    rough = parquet.read_table("o.parquet").column("rough").to_numpy()
    np.testing.assert_array_equal(rough, wanted["rough"].astype(np.float32))
    assert parquet.read_schema("u.parquet").names == ["u_0", "u_1", "u_2", "u_3"]
    spmd_here("run", built(PROGRAM), "--ranks", 2, "-i", "price=o.csv:price", "-i",
              "sold=o.csv:sold", "-o", "back.npz").expect(0)
    with np.load("back.npz") as back:
        np.testing.assert_array_equal(back["price"], 2 * wanted["price"])
        np.testing.assert_array_equal(back["sold"], ~wanted["sold"])


@pytest.mark.one_mpi
def test_all_columns_under_mpirun(
    built: Callable[..., Path], mpirun: Start, tmp_path: Path
) -> None:
    """A table without a header, and a Parquet table of several row groups, on uneven ranks."""
    u = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.savetxt(tmp_path / "u.csv", u, delimiter=",")
    import pyarrow

    table = pyarrow.table({f"c{k}": u[:, k] for k in range(4)})
    parquet.write_table(table, tmp_path / "u.parquet", row_group_size=3)
    for name in ("u.csv", "u.parquet"):
        mpirun(3, "-m", "spmd", "run", built(PROGRAM), "--ranks", 5, "-i", f"u={name}", "-o",
               "r.csv", cwd=tmp_path).expect(0)
        found = np.genfromtxt(tmp_path / "r.csv", delimiter=",", names=True)
        got = np.stack([found[f"u_{k}"] for k in range(4)], 1)
        np.testing.assert_array_equal(got, 2 * u.astype(np.float64))
    assert sorted(os.listdir(tmp_path)) == ["r.csv", "u.csv", "u.parquet"]


def test_a_wide_table_with_a_long_field(tmp_path: Path) -> None:
    """Thousands of columns, and more characters in a field than Python's csv takes by itself."""
    names = [f"c{k}" for k in range(5000)]
    (tmp_path / "t.csv").write_text(
        f"{','.join(names)},text\n{','.join(map(str, range(5000)))},{'0' * 200_000}\n")
    array = inputs.open_inputs({"u": f"{tmp_path / 't.csv'}:c4999"}, [])["u"]
    array.convert("int64", 1)
    array.reserve(0, 8, 1, 0)
    assert np.frombuffer(array.buffer[:8], np.int64) == [4999]
    array.close()
    assert table_elements.repeated(names) is None
    assert table_elements.repeated([*names, "c3"]) == "c3"


def test_a_rank_parses_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank parses the rows that it asks for, of 10,000, and reads only their block of the file
    again."""
    (tmp_path / "t.csv").write_text("".join(f"{k},{-k}\n" for k in range(10_000)))
    monkeypatch.setattr(npy, "AT_ONCE", 4096)
    array = inputs.open_inputs({"u": f"{tmp_path / 't.csv'}"}, [])["u"]
    array.convert("int64", 2)
    assert array.shape == (10_000, 2)
    parsed: list[str] = []
    monkeypatch.setattr(csv_tables, "integer", lambda text: parsed.append(text) or int(text))
    array.reserve(9000 * 16, 9100 * 16, 1, 0)
    got = np.frombuffer(array.buffer[9000 * 16 : 9100 * 16], np.int64).reshape(-1, 2)
    np.testing.assert_array_equal(got, np.outer(np.arange(9000, 9100), [1, -1]))
    assert len(parsed) == 200
    array.close()


def by_lines(text: str) -> np.ndarray | None:
    """A table of floats as Python's csv reads it line by line; None where it is none."""
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    try:
        rows = [next(csv.reader([line], strict=True)) for line in lines if line.strip("\r")]
        is_header = any(x and {*x.strip()} != {"1"} for x in rows[0])
        if is_header:  # it may end with commas, and rows then with as many
            most, width = len(rows[0]), len(",".join(rows[0]).rstrip(", ").split(","))
            rows = [row[:width] if len(row) <= most and not "".join(row[width:]).strip() else row
                    for row in rows]
        if is_header and len({*rows[0]}) < len(rows[0]):
            return None
        numbers = [[float(field or "nan") for field in row] for row in rows[is_header:]]
        return np.array(numbers).reshape(len(numbers), len(rows[0]))
    except (csv.Error, ValueError, IndexError):
        return None


def test_every_short_table_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All texts of up to three of these characters, behind a byte-order mark up to two: read in
    one piece or in pieces of a byte, by one rank or by three, they are what Python's csv finds, or
    are refused."""
    path = tmp_path / "t.csv"
    texts = ["".join(x) for n in range(4) for x in itertools.product('1,\n\r"a', repeat=n)]
    for text in [*texts, *("\ufeff" + text for text in texts if len(text) < 3)]:
        path.write_bytes(text.encode())
        wanted = by_lines(text)
        for at_once, ranks, k in ((1 << 16, 1, 0), (1, 3, 0), (1, 3, 1), (2, 3, 2)):
            monkeypatch.setattr(npy, "AT_ONCE", at_once)
            try:
                array = inputs.open_inputs({"u": str(path)}, [])["u"]
                array.convert("float64", 2)
                rows, width = array.shape
                low, high = (8 * width * (j * rows // ranks) for j in (k, k + 1))
                array.reserve(low, high, 1, 0)
                part = bytes(array.buffer[low:high])
                array.close()
            except InputError:
                assert wanted is None, (text, at_once, k)
                continue
            if wanted is None:
                assert ranks > 1, repr(text)  # another rank has the row that is wrong
            else:
                assert wanted.shape == (rows, width), repr(text)
                assert wanted.tobytes()[low:high] == part, (text, at_once, k)


WRONG = {
    "a,b\n1,2\n3\n": ("u", 2, "too few fields in line 3", "2, as there", "1"),
    "a,b\n1,2\n\n3,4,5\n": ("u", 2, "too many fields in line 4", "2, as there", "3"),
    "a,b\n1,2\n3,four\n": ("u", 2, "line 3, column 2 (b)", "number of float64", "'four'"),
    "a,a\n1,2\n": ("u", 2, "two columns of one name, in line 1", "differ", "columns 1 and 2"),
    'a,b\n1,"2\n3",4\n': ("u", 2, "line 2 that cannot be read", "on one line", "runs over"),
    'a,b\n1,"2\n': ("u", 2, "line 2 that cannot be read", "on one line", ""),
    "a,b\n1,2_0\n": ("u", 2, "line 2, column 2 (b)", "float64", "'2_0'"),
    "a,b\n1,1e999\n": ("u", 2, "line 2, column 2 (b)", "float64", "does not fit"),
    "a,count\n1,2\n,\n": ("count", 0, "line 3, column 2 (count)", "int16", "an empty field"),
    "count\n1\n70000\n": ("count", 0, "line 3, column 1 (count)", "int16", "does not fit int16"),
    "count\n1.5\n": ("count", 0, "line 2, column 1 (count)", "int16", "'1.5'"),
    "price\n1e39\n": ("price", 0, "line 2, column 1 (price)", "float32", "does not fit float32"),
    "sold\n2\n": ("sold", 0, "line 2, column 1 (sold)", "true, false, 1 or 0", "'2'"),
    "a,b,\n1,2,\n3,4,7\n": ("u", 2, "line 3, column 3, which has no name", "last comma", "'7'"),
    "a,b,c\n1,2,3\n": ("u", 2, "wrong shape", "(1, 2)", "(1, 3)"),
    "a;b\n1;2\n": ("price", 0, "no member 'price'", "a;b", "this one has ';'"),
    ",a\n0,1\n": ("count", 2, "wrong shape", "(1,)", "pandas writes it so with index=False"),
    "a,count\n0,1\n": ("count", 3, "wrong shape", "(1,)", "t.csv:count"),
    "": ("u", 2, "no table", "rows", "an empty file"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_line_and_column(
    built: Callable[..., Path], spmd_here: Start, tmp_path: Path, text: str
) -> None:
    name, width, *said = WRONG[text]
    (tmp_path / "t.csv").write_text(text)
    n = max(0, len([line for line in text.split("\n") if line]) - 1)
    image = built(PROGRAM, n=n or 1, k=width or 4)
    file = f"{tmp_path / 't.csv'}" + ("" if width else f":{name}")
    told = spmd_here("run", image, "--ranks", 2, "-i", f"{name}={file}").expect(65).err
    for part in said:
        assert part in told, told


@pytest.mark.parametrize("header", ["a,b,,", "u_0,u_1"])
def test_columns_of_one_input(
    built: Callable[..., Path], spmd_here: Start, tmp_path: Path, header: str
) -> None:
    """Commas that end the header are no columns; columns u_0, u_1 are u, as they are written."""
    table, out = tmp_path / "t.csv", tmp_path / "o.csv"
    given = f"u={table}" if header[-1] == "," else table
    table.write_text("\n".join([header, "1,2" + ", ," * (header[-1] == ","), "3,4", ""]))
    spmd_here("run", built(PROGRAM, n=2, k=2), "-i", given, "-o", f"u={out}").expect(0)
    assert out.read_text() == "u_0,u_1\n2.0,4.0\n6.0,8.0\n"


def test_parquet_columns_that_do_not_fit(
    built: Callable[..., Path], spmd_here: Start, tmp_path: Path
) -> None:
    import pyarrow

    wrong = {"text": pyarrow.array(["a"] * 7), "wide": pyarrow.array(range(7), pyarrow.int64()),
             "holes": pyarrow.array([1, None, *range(5)], pyarrow.int16()),
             "nan": pyarrow.array([0.5, None] + [1.0] * 5, pyarrow.float32())}
    parquet.write_table(pyarrow.table(wrong), tmp_path / "t.parquet")

    def run(what: str, code: int = 65) -> str:
        name, _, column = what.partition("=")
        return spmd_here("run", built(PROGRAM), "-i", f"{name}={tmp_path}/t.parquet:{column}"
                         ).expect(code).text

    assert "'text' of a type that programs do not have" in run("price=text")
    assert "row 2, column 'holes'" in run("count=holes")
    assert "found:    int64" in run("count=wide")
    assert "(7,) [ 1. nan  2.  2.  2.  2.  2.]" in run("price=nan", 0)
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but no more")
    assert "is no Parquet table" in run("price=nan")


def test_outputs_that_are_no_columns(
    built: Callable[..., Path], spmd_here: Start, tmp_path: Path
) -> None:
    text = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def outputs():
    x = spmd.input("x", (6,), np.float64, layout=("r",), default=1)
    return {"a": x, "b": x[:3], "c": x * 1j, "d": x.reshape(1, 2, 3), "a_0": x, "total": np.sum(x)}
"""
    for given, said in (("a=t.csv b=t.csv", "6 rows, b has 3"), ("c=t.csv", "complex128"),
                        ("d=t.parquet", "(1, 2, 3)"), ("total=t.csv a=t.csv", "total has 1")):
        files = [x for one in given.split() for x in ("-o", one.replace("=", f"={tmp_path}/"))]
        told = spmd_here("run", built(text), *files).expect(2).err
        assert "no column of a table" in told and said in told, told
    spmd_here("run", built(text), "-o", f"total={tmp_path}/t.csv").expect(0)
    assert (tmp_path / "t.csv").read_text() == "total\n6.0\n"


def test_who_reads_no_table_imports_no_pyarrow(
    built: Callable[..., Path], spmd_command: Start, tmp_path: Path
) -> None:
    """And without pyarrow the extra that brings it is named, before anything runs."""
    (tmp_path / "t.csv").write_text(ROWS)
    look = (f"import sys; sys.path.insert(0, {os.getcwd()!r}); from spmd import cli; "
            "code = cli.main(sys.argv[1:]); print('arrow', 'pyarrow' in sys.modules)")
    env = {**os.environ}

    def run(first: str, *args: object) -> str:
        from tests.conftest import run as start

        return start([sys.executable, "-c", first + look, "run", built(PROGRAM), *args],
                     cwd=tmp_path, env=env).text

    assert "arrow False" in run("", "-i", "t.csv", "-o", "o.csv")
    assert "arrow True" in run("", "-o", "o.parquet")
    hidden = "import sys; sys.modules['pyarrow'] = None; "
    for way in (("-o", "p.parquet"), ("-i", "price=o.parquet:price")):
        assert 'pip install "spmd[tables]"' in run(hidden, *way)
    assert not (tmp_path / "p.parquet").exists()

"""A newcomer's mistakes, one line each: what a build and an eager run say of them, and where."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import numpy as np
import pytest

import spmd
from codegen import compile as compiler
from codegen import places
from codegen.errors import InternalError, ProgramError, SpmdError
from spmd import report, source
from spmd.launch import host_processes

HEAD = """import numpy as np
import spmd

@spmd.program(mesh=("r",))
def program(n: int = 20):
    x = spmd.input("x", (n,), layout=("r",), default=lambda i: i * 1.0)
"""

# the faulty line; what a build says; what an eager run says (None: it works there, as in NumPy)
LINES = {
    "y = xx + 1": ("NameError", "NameError"),
    "y = abss(n)": ("abs, if that", "abs, if that"),
    "y = np.sinn(x)": ("sin, if that", "sin, if that"),
    "y = spmd.al_gather(x, 'r')": ("all_gather, if that", "all_gather, if that"),
    "y = x.summ()": ("x.sum", "sum, if that"),
    "y = np.sum(x, axes=0)": ("axis=…, if that", "axis=…, if that"),
    "y = x.sum(axs=0)": ("axis=…, if that", "axis=…, if that"),
    "y = x.reshape((20,), ordr='C')": ("order=…, if that", "order=…, if that"),
    "y = np.exp(x, dtyp=np.float32)": ("dtype=…, if that", "dtype=…, if that"),
    "y = np.einsum('i,i->', x, x, optimise=True)": ("optimize=…, if that", "optimize=…, if that"),
    "y = np.pad(x, 1, mod='edge')": ("mode=…, if that", "{'mod'}"),
    "y = spmd.numpy.sum(x, axs=0)": ("axis=…, if that", "axis=…, if that"),
    "y = spmd.numpy.zeros(3, layot=None)": ("layout=…, if that", "layout=…, if that"),
    "y = spmd.nn.softmax(x, axs=0)": ("axis=…, if that", "axis=…, if that"),
    "y = spmd.random.uniform(0, (n,), lo=2)": ("low=…, if that", "low=…, if that"),
    "y = spmd.grad(np.sum, argnum=0)(x)": ("argnums=…, if that", "argnums=…, if that"),
    "y = np.random.default_rng(0).normal(sze=n)": ("keyword argument 'sze'", "'sze'"),
    "y = spmd.shard_map(lambda v: v, out_layout=('r',))(x)": (
        "out_layouts=…, if that", "out_layouts=…, if that"),
    "y = spmd.shard_map(lambda v: spmd.psum(v, axes='r'), out_layouts=())(x)": (
        "axis=…, if that", "axis=…, if that"),
    "spmd.print('{}', n, every_ranks=True)": ("every_rank=…, if that", None),
    "y = np.sum(x, axis='r')": ("'r'", "TypeError"),
    "y = x.sum(axis=1)": ("axis 1 is out of bounds", "axis 1 is out of bounds"),
    "y = np.arange()": ("TypeError: arange()", "TypeError: arange()"),
    "y = np.linspace(0)": ("TypeError: linspace()", "TypeError: linspace()"),
    "y = np.roll(x, 'a')": ("ValueError: invalid literal", "ValueError: invalid literal"),
    "y = np.tensordot(x, x, axes=3)": ("IndexError", "IndexError"),
    "y = int('abc')": ("ValueError: invalid literal", "ValueError: invalid literal"),
    "y = len(x.sum())": ("len() of a number", "TypeError"),
    "y = len(n)": ("TypeError: object of type 'int'", "TypeError: object of type 'int'"),
    "y = len(spmd.axis_size('r'))": ("len() of a number", "TypeError"),
    "y = float(x)": ("float() of an array with several elements", "TypeError"),
    "y = x.tolist()[0]": ("Python needs a value that only the run knows", None),
    "y = f'{x[0]:.2f}'": ("try:      print(f\"", None),
    "y = x + [[1], [1, 2]]": ("the rows of this list differ in length", "ValueError"),
    "y = x + 'a'": ("unsupported operand", "UFuncTypeError"),
    "y = x + None": ("unsupported operand", "unsupported operand"),
    "y = x & 3": ("x.astype", "TypeError"),
    "y = x + np.ones(7)": ("(20,) and (7,)", "could not be broadcast"),
    "y = x @ np.ones(7)": ("20 columns meet 7 rows", "mismatch"),
    "x[0] = 'a'": ("an operand of type 'str'", "could not convert string"),
    "x.fill('a')": ("an operand of type 'str'", "could not convert string"),
    "y = np.where(x > 0, 'a', 'b')": ("an operand of type 'str'", None),
    "y = x[100]": ("index 100 is out of bounds for dim 0", "index 100 is out of bounds"),
    "x[-21] = 5": ("index -21 is out of bounds for dim 0", "index -21 is out of bounds"),
    "np.add.at(x, [1, 50], 1)": ("index 50 is out of bounds", "index 50 is out of bounds"),
    "y = x.at[50].add(1)": ("index 50 is out of bounds", "index 50 is out of bounds"),
    "y = x[np.array([True, False])]": ("a mask has another shape", "boolean index did not match"),
    "y = np.concatenate(x, x)": ("np.concatenate([a, b])", "TypeError"),
    "y = spmd.input('y')": ("expected: spmd.input(name, shape", "expected: spmd.input(name, shape"),
    "y = spmd.input('y', 4, default='a')": ("not an array of numbers", "could not convert string"),
    "y = spmd.input('y', 4, default=np.ones(5))": ("another shape", "broadcast"),
    "y = spmd.input('y', 4, 'flot')": ("'flot' is not an element type", "'flot' is not an element"),
    "y = spmd.scalar('k', 'a')": ("the default of a scalar must be a number", "could not convert"),
    "y = spmd.zeros(3.5)": ("3.5 cannot be an extent", "TypeError"),
    "y = np.zeros(x.sum().astype(int))": ("a number that the program computes while it runs", None),
    "y = spmd.scan(lambda c, v: c, 0.0, x)": ("must return a pair", "TypeError"),
    "y = spmd.fori_loop(0, 3, x, x)": ("a function of i, state", "not callable"),
    "y = spmd.cond(x, lambda a: a, lambda a: a, x)": ("ambiguous", "ambiguous"),
    "y = spmd.switch(0, [], x)": ("at least one branch", "IndexError"),
    "y = spmd.range()": ("expected: spmd.range(start", "expected: spmd.range(start"),
    "spmd.require(n == 3)": ("can never hold", "does not hold"),
    "spmd.require(n > 3, n > 4)": ("one condition and a text", "one condition and a text"),
    "spmd.require(n == 20)": (None, None),
    "x = spmd.shard_map(lambda v: (spmd.require(spmd.ranks() < 9), v)[1], out_layouts=('r',))(x)": (
        None, None),
    "k = spmd.scalar('k', 2); y = k // (k - k)": ("division by zero", "division"),
    "y = spmd.scalar('k', 2**70)": ("does not fit into 64 bits", None),
    "y = spmd.scalar('k', np.nan, int)": ("does not fit into 64 bits", "NaN to integer"),
    "z = np.zeros(5, int); z[0] = np.nan": ("nan out of bounds for int64", "NaN to integer"),
    "z = np.zeros(5, int); z[:] = np.inf": ("infinity to integer", "infinity to integer"),
    "y = x + 10**400": ("too large for a float", "too large to convert to float"),
    "y = spmd.psum(x, 'r')": ("outside a shard_map", "outside a shard_map"),
    "y = spmd.shard_map(lambda v, w: v, out_layouts=('r',))(x)": ("'w'", "'w'"),
    "y = spmd.shard_map(lambda v: spmd.blocks(v, 0)[0], out_layouts=('r',))(x)": (
        "at least one block", "larger than 0"),
    "y = spmd.shard_map(lambda v: spmd.ppermute(v, 'r'), out_layouts=('r',))(x)": (
        "one of shift=", "TypeError"),
    "for i in range(x[0]): x = x + 1": ("try:      for i in spmd.range(", "TypeError"),
    "y = np.full((2,), x)": ("broadcast", "broadcast"),
    "y = np.full((20,), x[None])": ("the value does not fit into the shape", None),
    "y = np.diff(x, n=-1)": ("the order is negative", "non-negative"),
    "y = np.fft.fft2(x)": ("axis -2 is out of bounds", "IndexError"),
    "y = np.ix_(x[None])": ("places in one dim are 1-D", "Cross index"),
    "y = np.meshgrid(x, indexing='xx')": ("indexing='xx'", "indexing"),
    "y = np.sort(x, kind='bogus')": ("np.sort with kind='bogus'", "sort kind"),
    "x.sort(kind='bogus')": ("np.sort with kind='bogus'", "sort kind"),
    "y = np.argsort(x, kind='bogus')": ("np.argsort with kind='bogus'", "sort kind"),
    "y = np.partition(x, 1, kind='bogus')": ("try:      kind='introselect'", "select kind"),
    "y = spmd.numpy.unique(x, size=-1)": ("found:    size=-1", "0 or more"),
    "y = spmd.numpy.unique(x, size=2.5)": ("found:    size=2.5", "0 or more"),
    "y = np.tile(x, -1)": ("a count is negative", "negative"),
    "y = np.nanpercentile(x, 101)": ("np.nanpercentile with q=101", "range [0, 100]"),
    "y = np.digitize(x, x[None])": ("np.digitize: the bins are not 1-D", "ValueError"),
    "y = np.searchsorted(x[None], x)": ("np.searchsorted: what is searched is not 1-D", "too deep"),
    "y = np.interp(x, x, x[:2])": ("fp and xp are not of the same length", "the same length"),
    "y = np.linalg.matrix_power(np.ones((2, 2)) * x[0], 1.5)": (
        "exponent must be an integer", "exponent must be an integer"),
    "y = np.linalg.multi_dot([x])": ("at least two arrays", "at least two arrays"),
    "return object()": ("a program returns arrays", None),
    "return x[x > 3]": ("x[mask] has a length that depends on data; it cannot be", None),
    "return {3: x}": ("the keys of a dict", None),
    "y = spmd.sum(x)": ("np.sum works on arrays", "np.sum works on arrays"),
    "y = spmd.Send(x)": ("spmd.ppermute sends", "spmd.ppermute sends"),
    "y = spmd.random.choice(3)": ("randint(seed, shape, 0, n)", "randint(seed, shape, 0, n)"),
    "y = spmd.random.beta(3)": ("it has bits, categorical, ", "it has bits, categorical, "),
    "y = spmd.shard_map(lambda v: spmd.ppermute(v, 'r', 1), out_layouts=('r',))(x)": (
        "shift=k sends", "not iterable"),
    "y = spmd.shard_map(lambda v: np.sum(v), out_layouts=('r',))(x)": (
        "return value[None]", "more entries than the array has dims"),
    "y = np.sum(a=x, axis=0)": (None, None),
}


def said(step) -> str | None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            source.guarded(step)
        except SpmdError as error:
            assert not isinstance(error, InternalError) and error.exit_code in (65, 78), error
            return report.error_text(error)
    return None


@pytest.mark.parametrize("line", LINES)
def test_a_line(tmp_path, line):
    path = tmp_path / "program.py"
    path.write_text(f"{HEAD}    {line}\n    return x\n")
    program = source.find_program(str(path))
    for step, expected in zip((program.capture, lambda: program.eager(ranks=3)), LINES[line]):
        found = said(step)
        if expected is None:
            assert found is None, found
        else:
            assert found and expected in found and "program.py:7:" in found, found
            assert line in found.splitlines()[1]


FILES = {
    "@spmd.program(mesh=4)\ndef p(): return spmd.zeros(3)": "4 is not a mesh",
    "@spmd.program(mesh=None)\ndef p(): return spmd.zeros(3)": "None is not a mesh",
    "@spmd.program(mesh=('r', 'r'))\ndef p(): return spmd.zeros(3)": "different names",
    "@spmd.program\nclass P:\n    pass": "the class P",
    "@spmd.program\n@spmd.program\ndef p(): return spmd.zeros(3)": "a program already",
    "@spmd.program\nasync def p(): return spmd.zeros(3)": "an async function",
    "@spmd.program\ndef p(): yield spmd.zeros(3)": "a function with yield",
    "spmd.program(np.sin)": "ufunc",
}


@pytest.mark.parametrize("text", FILES)
def test_what_is_no_program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(f"import numpy as np\nimport spmd\n{text}\n")
    found = said(lambda: source.find_program(str(path)))
    assert found and FILES[text] in found and "program.py:3:" in found and "^" in found


def test_in_helpers_of_other_modules_and_kernels(tmp_path, monkeypatch):
    """The line is the one that is wrong, wherever it stands."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mistakes_helper.py").write_text(
        "import spmd\ndef third(x):\n    return x[30]\n@spmd.kernel\ndef twice(a, out):\n"
        "    out[a.shape[0]] = 2\n"
    )
    path = tmp_path / "program.py"
    path.write_text(HEAD + "    from mistakes_helper import third, twice\n    return third(x)\n")
    program = source.find_program(str(path))
    for step in (program.capture, program.eager):
        found = said(step)
        assert found and "mistakes_helper.py:3:" in found and "out of bounds" in found
    path.write_text(HEAD + "    from mistakes_helper import third, twice\n"
                    "    return twice(x, out=spmd.like(x))\n")
    found = said(lambda: source.find_program(str(path)).eager(ranks=1))
    assert found and "mistakes_helper.py:6:" in found and "IndexError" in found


def test_what_a_pass_raises_is_a_defect_of_spmd(monkeypatch):
    @spmd.program(mesh=("r",))
    def program():
        return spmd.ones((4,), layout=("r",)) + 1

    for raises, text in ((().__getitem__, "TypeError: tuple indices"), ({}.pop, "KeyError: ")):
        monkeypatch.setattr(compiler, "split", raises)
        with pytest.raises(InternalError, match=f"{text}(.|\\n)*report this program"):
            spmd.build(program, cache=False)


def test_whose_a_file_is():
    ours = os.path.join(places.HERE, "codegen", "expr.py")
    installed = "/usr/lib/python3/dist-packages/a.py"
    theirs = (ours, np.__file__, os.__file__, "<frozen os>", "<string>", report.__file__, installed)
    mine = (__file__, "<stdin>", "<ipython-input-1-ab>", os.path.join(sys.prefix, "work", "a.py"))
    assert [f for f in (*theirs, *mine) if places.is_user_file(f)] == list(mine)
    frames = [(f, k) for k, f in enumerate((*theirs, *mine))]
    assert host_processes.user_place(frames) == (mine[0], 7)


def test_a_file_below_the_prefix_of_python(tmp_path, monkeypatch):
    """A program under Python's prefix, such as /opt/conda/work or a project's own, shows its
    line."""
    path = tmp_path / "program.py"
    path.write_text(HEAD + "    y = {}['k']\n    return x\n")
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path))
    program = source.find_program(str(path))
    for step in (program.capture, program.eager):
        found = said(step)
        assert found and "KeyError: 'k'" in found and "program.py:7:" in found, found


@pytest.mark.parametrize("name", ["<stdin>", "<ipython-input-3-0f>"])
def test_what_is_typed_has_a_place(name):
    typed = compile("\n{}['k']", name, "exec")
    with pytest.raises(ProgramError, match="KeyError: 'k'") as caught:
        source.guarded(lambda: exec(typed))
    assert caught.value.place and str(caught.value.place) == f"{name}:2"


def test_files_that_hand_calls_on_exist():
    assert [file for file in source.HANDING_ON if not os.path.isfile(file)] == []

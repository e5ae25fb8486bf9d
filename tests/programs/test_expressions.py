"""Every function of NumPy's namespace against NumPy, on 1 to 8 ranks, or refused with a remedy.

The functions are read from NumPy itself, so that one of a later NumPy has no state and is noticed.
The default run interprets; `make random` builds images of all of them too.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
from hypothesis import settings

import spmd
from codegen.checks.check_graph import check
from codegen.errors import MissingError, SpmdError, TracedValueError, UnsupportedError
from codegen.explain.traffic import Meter
from codegen.ir.graph import Module, Region
from codegen.layouts.partition import partition
from codegen.ops import Exchange
from codegen.oracle import interpret
from codegen.trace import namespace
from codegen.trace.numpy.refused import BUILD_TIME
from tests.programs.expressions import ARRAYS, EXPRESSIONS, MORE

pytestmark = pytest.mark.usefixtures("vectors_cc")

STATES = {s.name: s for s in namespace.states()}
LONG = settings.get_profile(settings._current_profile or "short").max_examples > 100  # make random


def lines(name: str) -> list[str]:
    return [part.strip() for part in EXPRESSIONS[name].split("|")]


NOT = ("refused", "sized")
WORKING = [
    (name, text) for name in EXPRESSIONS if STATES[name].state not in NOT for text in lines(name)
] + [("", text) for text in MORE]
REFUSED = [(n, text) for n in EXPRESSIONS if STATES[n].state in NOT for text in lines(n)]
PART = 90
PARTS = [WORKING[k : k + PART] for k in range(0, len(WORKING), PART)]
GIVEN = {name: array for name, (array, _) in ARRAYS.items()}

# ---- programs ------------------------------------------------------------------------------------

HEAD = "import math\n\nimport numpy as np\nimport scipy.special as sp\n\nimport spmd\n\n"


def split(text: str) -> tuple[list[str], str]:
    """Statements, and the last expression."""
    *statements, last = (part.strip() for part in text.split(";"))
    return statements, last


def used(text: str) -> list[str]:
    return [name for name in ARRAYS if re.search(rf"\b{name}\b", text)]


def functions(texts: list[str]) -> str:
    """One function for each expression, of copies of the arrays where it writes."""
    out = ""
    for k, text in enumerate(texts):
        statements, last = split(text)
        out += f"def f{k}({', '.join(used(text))}):\n"
        out += "".join(f"    {name} = {name}.copy()\n" for name in used(text) if statements)
        out += "".join(f"    {line}\n" for line in statements) + f"    return {last}\n\n\n"
    return out


def program(name: str, calls: dict[str, str], arrays: list[str]) -> str:
    out = f"@spmd.program(mesh=('r',))\ndef {name}():\n"
    for a in arrays:
        array, layout = ARRAYS[a]
        out += f"    {a} = spmd.input('{a}', {array.shape}, np.{array.dtype}, layout={layout!r})\n"
    made = "".join(f"        {key!r}: {call},\n" for key, call in calls.items())
    return out + "    found = {\n" + made + "    }\n    return flat(found)\n\n\n"


FLAT = """def leaves(x):
    return [y for e in x for y in leaves(e)] if isinstance(x, (list, tuple)) else [x]


def flat(found):
    return {f"{name}_{k}": x for name, made in found.items() for k, x in enumerate(leaves(made))}


"""


# What NumPy leaves to the processor for 0, and the order and signs that a build of LAPACK gives.
BY_MACHINE = ("np.reciprocal(i)", "np.reciprocal(h)", "np.linalg.eig")


def loaded(text: str, folder: Path, name: str) -> Any:
    """A module of this text in a file of its own: its source must be readable."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def whole(texts: list[str], folder: Path, name: str) -> Any:
    """One program of many expressions."""
    calls = {f"e{k}": f"f{k}({', '.join(used(t))})" for k, t in enumerate(texts)}
    needed = [a for a in ARRAYS if any(a in used(t) for t in texts)]
    text = HEAD + FLAT + functions(texts) + program("case", calls, needed)
    return loaded(text, folder, name).case


# ---- what NumPy says -----------------------------------------------------------------------------


def leaves(x: Any) -> list[np.ndarray]:
    return [y for e in x for y in leaves(e)] if isinstance(x, (list, tuple)) else [np.asarray(x)]


def numpy_says(text: str) -> list[np.ndarray]:
    modules = {"np": np, "math": math, "sp": scipy.special}
    known: dict[str, Any] = {**modules, **{n: a.copy() for n, a in GIVEN.items()}}
    statements, last = split(text)
    with np.errstate(all="ignore"):
        exec("\n".join(statements), known)
        return leaves(eval(last, known))


def agree(found: dict[str, Any], texts: list[str], expected: list[list[np.ndarray]],
          where: str, image: bool = False) -> None:
    wrong = []
    for k, (text, wanted) in enumerate(zip(texts, expected, strict=True)):
        if image and any(part in text for part in BY_MACHINE):
            continue
        for j, want in enumerate(wanted):
            got = np.asarray(found[f"e{k}_{j}"])
            if (got.dtype, got.shape) != (want.dtype, want.shape):
                wrong.append(f"{text}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}")
            elif not same(got, want):
                wrong.append(f"{text}: {got.ravel()[:6]}, not {want.ravel()[:6]}")
    assert not wrong, where + "\n" + "\n".join(wrong)


def same(got: np.ndarray, want: np.ndarray) -> bool:
    if want.dtype.kind not in "fc":
        return bool((got == want).all())
    single = want.dtype in (np.float32, np.complex64)
    tolerance = 2e-5 if single else 1e-10
    return np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


# ---- tests ---------------------------------------------------------------------------------------


def test_every_function_has_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = [s.name for s in STATES.values() if s.state == "unknown"]
    assert unknown == [], "functions of this NumPy: codegen/trace/numpy/dispatch.py or refused.py"
    silent = [s.name for s in STATES.values() if s.state == "refused" and not s.note]
    assert silent == []
    asked = {n for n, s in STATES.items() if s.state != "not about arrays"}
    asked -= {n for n, note in BUILD_TIME.items() if "file" in note}
    asked -= {n for n in asked if n.startswith("random.")}
    assert asked == set(EXPRESSIONS)
    assert len(asked) > 390
    monkeypatch.setattr(np, "one_of_a_later_numpy", lambda x: x, raising=False)
    assert [s.name for s in namespace.states() if s.state == "unknown"] == ["one_of_a_later_numpy"]


def test_refused_functions_say_what_to_write(tmp_path: Path) -> None:
    wrong = []
    for k, (name, text) in enumerate(REFUSED):
        case = whole([text], tmp_path, f"refused{k}")
        try:
            case.capture()
        except (UnsupportedError, MissingError, TracedValueError) as error:
            if STATES[name].note not in str(error):
                wrong.append(f"{text}: {error}")
            continue
        except Exception as error:
            wrong.append(f"{text}: {error!r}")
        else:
            wrong.append(f"{text}: not refused")
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("k", range(len(PARTS)))
def test_expressions_agree_with_numpy(k: int, tmp_path: Path) -> None:
    texts = [text for _, text in PARTS[k]]
    case = whole(texts, tmp_path, f"part{k}")
    expected = [numpy_says(text) for text in texts]
    graph = check(case.capture())
    given = {i.name: GIVEN[i.name] for i in graph.inputs}
    agree(interpret.run(graph, {"r": 2}, given), texts, expected, "the Graph")
    lowered = check(partition(graph))
    for ranks in range(1, 9) if LONG else (3, 8):  # parts of any size, and none
        agree(interpret.run(lowered, {"r": ranks}, given), texts, expected, f"{ranks} ranks")
    if LONG:
        image = spmd.build(case)
        for ranks in range(1, 9):
            agree(image.run(ranks=ranks, **given), texts, expected, f"an image on {ranks} ranks",
                  image=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_image_of_what_is_new_in_c(tmp_path: Path) -> None:
    """In a short run, every second expression of each; `make random` builds them all."""
    every = 1 if LONG else 2
    names = ("max", "argmin", "sort", "argsort", "histogram", "searchsorted", "interp", "digitize",
             "bitwise_count", "nanmedian", "frexp", "vectorize")
    texts = [text for name in names for text in lines(name)[::every]] + [
        t for t in MORE if "math" in t]
    methods = [t for name in EXPRESSIONS if name.startswith("ufunc.") for t in lines(name)]
    ours = "gcd|hypot|signbit|inf|logadd|fmax|reduceat.*j|logical_or.at".split("|")
    methods = [t for one in ours for t in [m for m in methods if re.search(one, m)][::every]]
    texts += dict.fromkeys(methods)
    image, expected = spmd.build(whole(texts, tmp_path, "image")), [numpy_says(t) for t in texts]
    given = {i: GIVEN[i] for i in ARRAYS if any(i in used(t) for t in texts)}
    for ranks in (1, 3, 8):
        agree(image.run(ranks=ranks, **given), texts, expected, f"{ranks} ranks")


def test_functions_that_gather_say_so(tmp_path: Path) -> None:
    """Functions that gather are listed so, by the first expression of each (a third in short
    runs)."""
    names = [n for n in EXPRESSIONS if STATES[n].state in ("works", "gathers")]
    found = set()
    for k, name in enumerate(names if LONG else names[::3]):
        text = lines(name)[0]
        case = whole([text], tmp_path, f"gathers{k}")
        if name not in BUILD_TIME and gathers(case.capture(), used(text)):
            found.add(name)
    found.discard("bincount")  # of 7 numbers, 50 counts, which are added up
    expected = {name for name in names if STATES[name].state == "gathers"}
    assert found == expected & set(names if LONG else names[::3])


def gathers(graph: Module, arrays: list[str]) -> bool:
    """Whether a rank of 16 gets as much as one of the operands is."""
    lowered = partition(graph)
    meter = Meter(lowered.mesh)
    least = min((GIVEN[name].size for name in arrays), default=math.inf)
    for op in exchanges(lowered.body):
        traffic = meter.of(op)
        if traffic.gathered:
            size = traffic.result.evaluate({"n_r": 16}) / op.results[0].type.dtype.size
            if size >= least:
                return True
    return False


def exchanges(region: Region) -> list[Any]:
    found = [op for op in region.ops if isinstance(op.kind, Exchange)]
    return found + [op for o in region.ops for inner in o.regions for op in exchanges(inner)]


# ---- Python's own mistakes -----------------------------------------------------------------------

MISTAKES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: np.where(x > 0, "a", "b"), "numbers that stand for it"),
    (lambda x: math.fsum([x[0, 0], 1]), "np.sum(x)"),
    (lambda x: math.sqrt(x), "np.sqrt(x) takes arrays"),
    (lambda x: round(x), "np.round(x, digits)"),
    (lambda x: np.lib.stride_tricks.sliding_window_view(x, (9, 1)), "at most 7 in dim 0"),
    (lambda x: np.add(x, np.ma.masked_array(np.ones((7, 5)), x is None)), "x.filled(v)"),
    (lambda x: spmd.asarray(np.ma.masked_array([1.0], [True])) + x, "x.filled(v)"),
    (lambda x: np.clip(x, 0, 1, dtype=np.float32), "x.astype(t)"),
    (lambda x: np.clip(x, 0, 1, where=x > 0), "unexpected keyword argument 'where'"),
    (lambda x: np.fill_diagonal(x[0], 1), "2 dims"),
    (lambda x: np.concatenate([x, x * 1j], dtype=np.float64), "casting='same_kind'"),
    (lambda x: x.astype(np.int32, casting="safe"), "casting='safe'"),
    (lambda x: np.vecdot(x, x, axes=[0, 0, 0]), "np.swapaxes before and after it"),
    (lambda x: np.power.reduce(x, where=x > 0), "np.where(mask[k], f(t, x[k]), t)"),
    (lambda x: np.power.at(x, (slice(2), [1, 1]), 2), "where each comes once"),
    (lambda x: np.add.at(x.astype(int), 0, 1.5), "casting='same_kind'"),
    (lambda x: np.add.reduceat(x, [0, 9]), "0 to 6"),
    (lambda x: scipy.special.erf(x + 1j), "z.real"),
    (lambda x: scipy.special.jv(1, x), "scipy.special.jv cannot be compiled"),
    (lambda x: scipy.special.comb(x, 2), "comb of scipy asks for the elements"),
    (lambda x: np.pad(x, 1, mode="other"), "linear_ramp"),
    (lambda x: np.insert(x, x[0], 1), "places that depend on data"),
    (lambda x: np.gradient(x[:2], axis=0, edge_order=2), "edge_order"),
]


@pytest.mark.parametrize("k", range(len(MISTAKES)))
def test_mistakes_say_what_to_write(k: int) -> None:
    @spmd.program(mesh=("r",))
    def case() -> Any:
        return MISTAKES[k][0](spmd.input("x", (7, 5), np.float64, layout=("r", None)))

    with pytest.raises(SpmdError) as caught:
        case.capture()
    assert MISTAKES[k][1] in str(caught.value)


def test_masked_inputs_are_refused() -> None:
    @spmd.program(mesh=("r",))
    def case() -> Any:
        return spmd.input("x", (3,), np.float64, layout=("r",)) + 1

    masked = np.ma.masked_array([1.0, 2, 3], [False, True, False])
    for run in (case.eager, lambda x: spmd.build(case).run(ranks=2, x=x)):
        with pytest.raises(SpmdError) as caught:
            run(x=masked)
        assert "x.filled(v)" in str(caught.value)

"""What a user gets wrong in a pipeline: settings, parameters, fields; and pipelines in files."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import spmd
from spmd import data
from spmd.data.settings import RULES, Settings, read

# ---- settings

WRONG = {
    "sampling": ("onse", "'once' or 'independent'"), "seed": (-1, "from 0"),
    "epochs": (0, "from 1"), "shuffle": (1, "window"), "on_error": ("ignore", "'stop' or 'skip'"),
    "timeout": (0, "above 0"), "queue": ("fifi", "'fifo' or 'lifo'"), "workers": ([], "addresses"),
    "min_workers": (0, "from 1"), "max_workers": (0, "from 1"),
    "compress": ("gzip", "'zstd'"), "user": (3, "a name"),
    "priority": (-2, "from 0"), "image": (1, "image file"), "estimated_seconds": (-1, "seconds"),
    "rates": ({"cpu": 0}, "above 0"), "cost": (float("nan"), "above 0"), "energy": (True, "joules"),
    "ranks": ((4, 2), "(least, most)"), "device": (3, "a kind of device"),
    "takes": ({"cpu": 0}, "a rank takes"), "serves": ({"nodea": "all"}, "agent, host or address"),
    "first": ("3-", "as '0-3,8'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_with_what_is_right(name):
    value, expected = WRONG[name]
    with pytest.raises(spmd.UsageError) as caught:
        @data.pipeline(source=data.range(3), **{name: value})
        def f(example):
            return {"x": example}

    text = str(caught.value)
    assert f"{name} of a pipeline is wrong" in text and expected in text and repr(value) in text
    assert "test_pipelines.py" in text and caught.value.exit_code == 65


@pytest.mark.parametrize(("given", "says"), [
    ({"queue": "lifo"}, "(?s)queue='lifo' has no effect.*found:    sampling='once'"),
    ({"sampling": "independent", "shuffle": False}, "(?s)shuffle has no effect.*shuffle=False"),
])
def test_a_setting_without_effect_is_refused(given, says):
    """Also of a pipeline that is there already."""
    with pytest.raises(spmd.UsageError, match=says):
        data.pipeline(source=data.range(3), **given)(lambda e: {"x": e})
    kept = read({k: v for k, v in given.items() if k == "sampling"})
    with pytest.raises(spmd.UsageError, match=says):
        replace(kept, shuffle=given.get("shuffle", True)).changed(given)


def test_near_words_are_suggested():
    with pytest.raises(spmd.UsageError, match="'once'"):
        read({"sampling": "onse"})
    with pytest.raises(spmd.UsageError, match="priority=…"):
        read({"prioritty": 1})


def test_settings_travel_as_json():
    given = read({"seed": np.int64(3), "workers": ("tcp://a:1",), "rates": {"cpu": np.float32(2)}})
    assert Settings(**given.as_json()) == given == read(given.as_json())
    assert type(given.seed) is int and given.workers == ["tcp://a:1"]
    assert RULES.keys() == given.as_json().keys()


def test_what_is_constant_while_it_runs():
    begun = read({"seed": 3})
    assert begun.changed({"priority": 4, "seed": 3}).priority == 4
    with pytest.raises(spmd.UsageError, match="seed of a running pipeline cannot be changed"):
        begun.changed({"seed": 4})
    with pytest.raises(spmd.UsageError, match="priority of a pipeline is wrong"):
        begun.changed({"priority": -1})


# ---- functions and sources

BAD = {
    "no source": (lambda: data.pipeline()(lambda e: e), "needs a source"),
    "bare": (lambda: data.pipeline(lambda e: e), "needs a source"),
    "a pattern": (lambda: data.pipeline(source="a/*.jpg"), r"data.files\('a/\*.jpg'\)"),
    "an array": (lambda: data.pipeline(source=np.zeros(3)), r"data.arrays\(x="),
    "a range": (lambda: data.pipeline(source=range(4)), r"data.range\(0, 4\)"),
    "no parameter": (lambda: data.pipeline(source=data.range(1))(lambda: 1), "other parameters"),
    "two": (lambda: data.pipeline(source=data.range(1))(lambda a, b: 1), r"found:    \(a, b\)"),
    "a class instance": (lambda: data.pipeline(source=data.range(1))(3), "decorates functions"),
    "a name": (lambda: data.pipeline(source=data.range(1), name="a@b"), "name of data.pipeline"),
    "a size": (lambda: data.batched(source=data.range(1), size=0), "from 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_no_pipeline_is_made_of(what):
    make, message = BAD[what]
    with pytest.raises(spmd.UsageError, match=message):
        make()


def test_parameters_with_defaults_are_the_users_own():
    @data.pipeline(source=data.range(3), shuffle=False)
    def f(example, scale=10, *, rng):
        return {"x": example * scale + rng.integers(1)}

    assert f.compute(0, 3).arrays["x"].tolist() == [0, 10, 20]


# ---- what an operation returns

FIELDS = {"x": ((2,), np.float32)}


def returned(value, fields=FIELDS, **settings):
    @data.pipeline(source=data.range(9), shuffle=False, **settings)
    def f(example):
        return value(example) if callable(value) else value

    return f.compute(0, 3, fields, raises=False)


MISFITS = {
    "shape": ({"x": np.zeros(3)}, ["another shape", "float32 (2,)", "float64 (3,)"]),
    "dtype": ({"x": np.array([1j, 2])}, ["to which it is not cast", "complex128", "astype"]),
    "missing": ({"y": np.zeros(2)}, ["other fields", "expected: x", "found:    y"]),
    "more": ({"x": np.zeros(2), "z": 1}, ["other fields", "found:    x, z"]),
    "nothing": (None, ["returned no fields", "nothing (None)"]),
    "an array": (np.zeros(2), ["returned no fields", "an array, float64 (2,)"]),
    "the mask": ({"mask": True}, ["'mask'"]),
    "ragged": ({"x": [[1], [2, 3]]}, ["is no array"]),
}


@pytest.mark.parametrize("what", MISFITS)
def test_what_does_not_fit_is_named_with_expected_and_found(what):
    value, words = MISFITS[what]
    found = returned(value)
    (failure,) = found.failures
    assert all(word in failure.text for word in words), failure.text
    assert failure.position == 0 and failure.example == "number 0"
    assert failure.file == __file__ and failure.line > 0
    assert not found.there.any() and not found.arrays["x"].any()


CASTS = [
    (np.float64, np.float32, 1.5, True), (np.int64, np.int32, 7, True),
    (np.int64, np.uint8, 256, False), (np.int64, np.uint8, -1, False),
    (np.int64, np.uint8, 255, True), (np.float32, np.int32, 1.0, False),
    (bool, np.float32, True, True), (np.uint8, np.float32, 3, True),
    (np.float32, "bfloat16", 0.5, True), (np.float64, np.float16, 0.5, True),
    (np.uint8, bool, 1, False), (np.complex128, np.float64, 1.0, False),
    (np.float32, np.complex64, 2.0, True),
]


@pytest.mark.parametrize("given, to, value, allowed", CASTS)
def test_casts(given, to, value, allowed):
    found = returned({"x": np.array(value, given)}, {"x": ((), to)})
    assert (not found.failures) is allowed
    if allowed:
        assert found.arrays["x"].astype(complex).tolist() == [value] * 3


def test_the_first_example_declares_what_nobody_else_does():
    found = returned(lambda e: {"x": np.zeros(2 if e < 2 else 3)}, None)
    assert found.there.tolist() == [True, True, False]
    assert "than the first example" in found.failures[0].text
    assert "fixed_bytes" in returned({"x": "word"}, None).failures[0].text


def inner(example):
    if example in (2, 4):
        raise ValueError(f"no {example}")  # this line
    return np.full(2, example)


def test_an_operation_that_raises_is_named_and_skipped():
    @data.pipeline(source=data.range(6), shuffle=False, on_error="skip")
    def f(example):
        return {"x": np.sqrt(inner(example))}

    found = f.compute(1, 6, FIELDS)
    assert found.there.tolist() == [True, False, True, False, True, True]
    assert found.arrays["x"][:, 0].tolist()[:4] == [1.0, 0.0, np.float32(np.sqrt(3)), 0.0]
    first, second = found.failures
    assert (first.position, first.example, first.text) == (2, "number 2", "ValueError: no 2")
    line = Path(__file__).read_text().splitlines()[first.line - 1]
    assert first.file == __file__ and "this line" in line
    assert second.position == 4 and not second.fatal
    error = str(first.error("f"))
    assert "pipeline f failed at position 2, number 2" in error and "this line" in error


def test_what_no_example_can_do_without_is_not_skipped():
    found = returned(lambda e: __import__("no_such_package"), on_error="skip")
    (failure,) = found.failures
    assert failure.fatal and "No module named 'no_such_package'" in failure.text
    assert f"install it where workers run: {sys.executable}" in failure.text


@pytest.mark.parametrize("raises, words", [
    (lambda e: e.label, ""), (lambda e: np.zeros(2, int, int, int, int, int), ""),
    (lambda e: data.image.decode(b"no picture"), "on_error='skip'"),
    (lambda e: int("no number"), "on_error='skip'"),
    (lambda e: data.image.resize(np.zeros((4, 4)), 2), "on_error='skip'"),
    (lambda e: {"x": np.zeros(3)}, "data.pad_or_cut(…, 2)"),
    (lambda e: {"z": np.zeros(2)}, "call 'z' 'x'"),
    (lambda e: {"x": np.zeros(2), "a": 1, "b": 2, "c": 3}, "leave out 'a', 'b' and 'c', or de"),
])
def test_what_to_try_can_help(raises, words):
    error = str(returned(raises).failures[0].error("f"))
    assert words in error and (words == "on_error='skip'") == ("on_error" in error)


def test_pictures_of_several_sizes_are_to_be_resized():
    found = returned(lambda e: {"x": np.zeros((4 + e, 5, 3), np.uint8)}, None)
    assert found.failures[0].text.endswith(
        "try:      data.image.resize(picture, (4, 5)) makes all equally large")
    told = returned({"x": np.zeros((4, 4, 3))}, {"x": ((8, 8, 3), np.float32)}).failures[0].text
    assert told.endswith("(8, 8)) makes all equally large; or declare (4, 4, 3) in spmd.feed")


def test_floats_that_are_declared_as_integers_are_not_just_to_be_cut_off():
    told = returned({"x": np.float32([0.2, 0.8])}, {"x": ((2,), np.uint8)}).failures[0].text
    assert "declare np.float32 in spmd.feed; or .astype(np.uint8), which cuts off" in told
    told = returned(lambda e: {"x": e if e < 1 else e / 2}, None).failures[0].text
    assert ".astype(np.int64), which cuts off" in told and "declare" not in told
    assert "-1" in returned({"x": None}, None).failures[0].text


@pytest.mark.parametrize("setting, words", [
    ("num_workers", "workers=…"), ("batch_size", "spmd.spec"), ("transform", "in the function"),
    ("epoch", "epochs=…"), ("xyz", "remove it"),
])
def test_settings_of_other_libraries_are_told_what_they_are_here(setting, words):
    with pytest.raises(spmd.UsageError, match=f"no setting '{setting}'(?s:.*)try: .*{words}"):
        data.pipeline(source=data.range(2), **{setting: 4})


def test_a_pipeline_of_a_function_that_is_there():
    made = data.pipeline(lambda example: {"x": example}, source=data.range(3), shuffle=False)
    assert made.compute(0, 3).arrays["x"].tolist() == [0, 1, 2]
    with pytest.raises(spmd.UsageError, match="needs a source"):
        data.pipeline(lambda example: {"x": example})


def test_a_stop_stops_and_an_exit_is_a_failure():
    assert len(returned(lambda e: 1 / 0).failures) == 1
    assert "SystemExit" in returned(lambda e: sys.exit(3)).failures[0].text
    with pytest.raises(KeyboardInterrupt):
        returned(lambda e: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_an_example_that_fails_is_raised_unless_it_is_skipped_or_asked_for():
    @data.pipeline(source=data.range(6), shuffle=False)
    def f(example):
        return {"x": 6 // (example - 2)}

    with pytest.raises(spmd.InputError, match="failed at position 2, number 2") as caught:
        f.compute(0, 4)
    assert "ZeroDivisionError" in str(caught.value) and "6 // (example - 2)" in str(caught.value)
    assert f.compute(3, 3).arrays["x"].tolist() == [6, 3, 2]
    assert len(f.compute(0, 4, raises=False).failures) == 1

    @data.pipeline(source=data.range(6), on_error="skip")
    def g(example):
        import no_such_package  # noqa: F401

    with pytest.raises(spmd.InputError, match="no_such_package"):  # no other example is better
        g.compute(0, 4)


def test_a_batch_that_raises_fails_as_one():
    @data.batched(source=data.range(9), size=4, shuffle=False, on_error="skip", epochs=1)
    def f(examples):
        if 5 in examples:
            raise ValueError("five")
        return {"x": np.float32(examples)}

    found = f.compute(2, 9)
    assert found.there.tolist() == [True, True] + [False] * 4 + [True] + [False] * 2
    (failure,) = found.failures
    assert failure.position == 4 and failure.example == "number 4 and the 3 behind it in the stream"


@pytest.mark.parametrize("value, words", [
    ({"x": np.zeros(3)}, "4 rows"), ([{"x": 1}], "4 dicts"), ({}, "no fields"),
])
def test_a_batch_that_returns_something_else(value, words):
    @data.batched(source=data.range(8), size=4)
    def f(examples):
        return value

    assert words in f.compute(0, 8, raises=False).failures[0].text


def test_batches_may_be_lists_of_examples():
    @data.batched(source=data.range(5), size=3, shuffle=False, epochs=1)
    def f(examples):
        return [{"x": e, "y": [e, e]} for e in examples]

    assert f.compute(0, 5).arrays["y"].tolist() == [[k, k] for k in range(5)]


# ---- files

FILE = """
import numpy as np
import beside_it
from spmd import data

@data.pipeline(source=data.lines("words.txt"), shuffle=False)
def lengths(example):
    return {"x": np.int32(beside_it.length(example.text))}

@data.pipeline(source=data.range(3))
def others(example):
    return {"x": example}
"""


def test_pipelines_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "beside_it.py").write_text("def length(t): return len(t)\n")
    (folder / "words.txt").write_text("one\nthree\n")
    (folder / "p.py").write_text(FILE)
    found = data.load(folder / "p.py", "lengths")  # paths begin beside the file, not here
    assert found.compute(0, 2).arrays["x"].tolist() == [3, 5]
    assert data.load(f"{folder}/p.py:others").name == "others"
    for name, message in (("", "several pipelines"), ("length", r"p.py:lengths")):
        with pytest.raises(spmd.UsageError, match=message):
            data.load(folder / "p.py", name)
    with pytest.raises(spmd.OutputError, match="no such file"):
        data.load(folder / "q.py")
    every = data.load_text(FILE, "elsewhere.py", folder)
    assert list(every) == ["lengths", "others"]
    assert every["lengths"].compute(0, 2).arrays["x"].tolist() == [3, 5]
    assert every["lengths"].digest() == found.digest()


@pytest.mark.parametrize("text, message", [
    ("x = 1", "has no pipeline"), ("def f(:", "SyntaxError"),
    ("\n1 / 0", ":2: .*ZeroDivisionError"),
    ("import spmd.data as d\nd.range(2).take(-1)", ":2: take of a source"),
    ("import spmd.data as d\np = d.pipeline(source=d.range(2), name='a')\nb = p(lambda e: 1)\n"
     "c = p(lambda e: 2)", "two pipelines called a"),
])
def test_a_mistake_in_a_file_has_its_line(tmp_path, text, message):
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(spmd.SpmdError, match=message) as caught:
        data.load(path)
    assert "wrong.py" in str(caught.value)


def test_importing_it_needs_numpy_only():
    code = ("import sys, spmd.data; print([m for m in sys.modules if m.split('.')[0] in "
            "('mpi4py', 'numba', 'cffi', '_cffi_backend', 'PIL', 'llvmlite', 'pickle5') or "
            "m.startswith(('codegen.', 'spmd.')) and not m.startswith(('spmd.data', "
            "'spmd.files', 'codegen.errors', 'codegen.user.casts', 'codegen.short_batches', "
            "'codegen.user.named', 'codegen.suggest')) and m != 'codegen.user'])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True).stdout.strip() == "[]"


def test_whatever_class_is_raised_it_is_said():
    class Mute(BaseException):
        def __str__(self):
            raise OSError("no text")

    @data.pipeline(source=data.range(9), shuffle=False)
    def raises(example):
        if example == 3:
            raise Mute
        return {"x": example}

    (failed,) = raises.compute(0, 9, raises=False).failures
    assert failed.position == 3 and failed.text == "Mute: its text cannot be had: OSError"


# ---- values that a field does not hold


@pytest.mark.parametrize(("value", "dtype"), [
    (1e300, np.float32), (-1e300, np.float32), (2**30, np.float16), (1e6, np.float16),
    (1e39j, np.complex64), (1e39, np.complex64), (3.4e38, "bfloat16"), (1000.0, "float8_e4m3fn")])
@pytest.mark.parametrize("batched", [False, True])
def test_numbers_that_are_too_large_for_a_float_are_refused(value, dtype, batched):
    if batched:
        made = data.batched(source=data.range(4), size=2)(
            lambda e: {"x": np.array([[0, value], [1, 2]])})
    else:
        made = data.pipeline(source=data.range(4))(lambda e: {"x": np.array([0, value])})
    (failed,) = made.compute(0, 2, {"x": ((2,), dtype)}, raises=False).failures
    assert "to which it is not cast" in failed.text


@pytest.mark.parametrize(("value", "dtype"), [
    ([np.inf, -np.inf, np.nan, 3e38], np.float32), ([65519.0], np.float16), ([65519], np.float16),
    ([2**63], np.float32), ([1.5], np.complex64), ([True], np.float16), ([3e38], "bfloat16")])
def test_numbers_that_a_float_rounds_are_taken(value, dtype):
    made = data.pipeline(source=data.range(4))(lambda e: {"x": np.array(value)})
    assert not made.compute(0, 1, {"x": ((len(value),), dtype)}, raises=False).failures


def test_masked_arrays_are_refused():
    hidden = np.ma.array([1, 2], mask=[0, 1])
    for made in (data.pipeline(source=data.range(4))(lambda e: {"x": hidden}),
                 data.batched(source=data.range(4), size=2)(lambda e: {"x": hidden}),
                 data.batched(source=data.range(4), size=2)(lambda e: [{"x": hidden}] * 2)):
        for fields in (None, {"x": ((2,) if made.size == 0 else (), np.int64)}):
            (failed,) = made.compute(0, 2, fields, raises=False).failures
            assert "has masked elements" in failed.text and ".filled(0)" in failed.text
    taken = data.pipeline(source=data.range(4))(lambda e: {"x": np.ma.array([1, 2])})
    assert taken.compute(0, 1).arrays["x"].tolist() == [[1, 2]]


def test_examples_of_a_batch_that_differ_are_named():
    for second, said in (({"x": 1, "y": 2}, "other fields"), ({"y": 1}, "other fields"),
                         ({"x": [1, 2]}, "another shape")):
        made = data.batched(source=data.range(2), size=2)(lambda e, s=second: [{"x": 0}, s])
        (failed,) = made.compute(0, 2, raises=False).failures
        assert "example 1" in failed.text and said in failed.text


@pytest.mark.parametrize("name", ["größe", "a b", "a@b", "a:b", "a/b", "x" * 129])
def test_names_that_a_scheduler_does_not_take_are_refused_where_they_stand(name):
    def größe(example):
        return {"x": 1}

    for settings in ({"name": name}, {} if name == "größe" else {"name": name}):
        with pytest.raises(spmd.UsageError, match=r"name of data.pipeline is wrong"):
            data.pipeline(source=data.range(3), **settings)(größe)

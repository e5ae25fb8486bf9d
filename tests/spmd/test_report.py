"""What is printed at the end: small outputs in full, large ones summarised, errors once."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.errors import InternalError, MeshError, UsageError
from spmd import arrays, report
from spmd.arrays import output_text
from spmd.launch import memory


def test_small_outputs_are_printed_as_numpy_prints_them() -> None:
    assert output_text("peak", "float32", np.array(0.1, np.float32)) == "peak: float32 0.1"
    assert output_text("v", "int64", np.arange(3)) == "v: int64 (3,) [0 1 2]"
    assert output_text("m", "int64", np.eye(2, dtype=int)) == (
        "m: int64 (2, 2)\n[[1 0]\n [0 1]]"
    )
    assert output_text("e", "bool", np.zeros((0, 3), bool)) == "e: bool (0, 3) []"


def test_large_outputs_are_summarised_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "AT_ONCE", 700)
    array = np.random.default_rng(1).normal(size=(60, 50)).astype(np.float32)
    low, high, mean = arrays.summary(array)
    assert (low, high) == (array.min(), array.max())
    assert mean == pytest.approx(array.mean(dtype=np.float64), rel=1e-12)
    text = output_text("u", "float32", array)
    assert text.startswith(f"u: float32 (60, 50) min {low!s} max {high!s} mean ")
    array[3, 4] = np.nan
    assert "min nan max nan mean nan" in output_text("u", "float32", array)
    assert "mean 1.5+2j" in output_text("z", "complex64", np.full(2000, 1.5 + 2j))
    flags = np.arange(2000) % 4 == 0
    assert output_text("b", "bool", flags) == "b: bool (2000,) min False max True mean 0.25"


def test_exit_codes() -> None:
    assert report.exit_code(UsageError("")) == 2
    assert report.exit_code(MeshError("")) == 78
    assert report.exit_code(KeyboardInterrupt()) == 130
    assert report.exit_code(OSError()) == 74
    assert report.exit_code(MemoryError()) == 69
    assert report.exit_code(ZeroDivisionError()) == 70


def test_too_little_memory_is_no_defect() -> None:
    """Whatever needs it first: a library, a mapping, a thread."""
    for error in (
        ImportError("numpy\nOriginal error was: libx.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"), RuntimeError("can't start new thread"),
        MemoryError(),
    ):
        assert report.exit_code(error) == 69
        text = report.error_text(error)
        assert "out of memory" in text and "defect" not in text


def test_a_defect_is_short_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPMD_DEBUG", raising=False)
    report.print_error(InternalError("a level broke a rule"))
    report.print_error(ZeroDivisionError("oh"))
    text = capsys.readouterr().err
    assert "a level broke a rule" in text and "defect of spmd" in text and "Traceback" not in text
    monkeypatch.setenv("SPMD_DEBUG", "1")
    try:
        raise ZeroDivisionError("oh")
    except ZeroDivisionError as error:
        report.print_error(error)
    assert "Traceback" in capsys.readouterr().err


def test_memory_is_known() -> None:
    assert 1 << 20 < memory.available_memory() < 1 << 50
    assert memory.bytes_text(12345) == "12.1 KiB"
    assert memory.bytes_text(1000) == "1000 bytes"
    assert memory.bytes_text(3 << 40) == "3.0 TiB"

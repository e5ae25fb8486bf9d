"""The engine and the images without Python: warnings, and the sanitizers of the compiler.

`make sanitize-address` and `make sanitize-thread` run one of these each.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from tests.engine.harness import ENGINE, HERE, compile_c

LIMIT_S = 5 * PATIENCE
NAMES = ("driver", "images", "near", "mixed", "kept", "fed", "led", "here", "supply")
DRIVER = [str(HERE / f"{name}.c") for name in NAMES]


def runs_clean(tmp_path: Path, numbers: str, *flags: str) -> None:
    try:
        probe = tmp_path / "probe.c"
        probe.write_text("int main(void) { return 0; }\n")
        compile_c(tmp_path / "probe", *flags, str(probe))
        subprocess.run([tmp_path / "probe"], check=True, capture_output=True, timeout=PATIENCE)
    except (AssertionError, subprocess.CalledProcessError):
        pytest.skip(f"this machine's compiler has no {' '.join(flags)}")
    compile_c(tmp_path / "driver", "-O0", *flags, *DRIVER, *ENGINE, numbers)
    done = subprocess.run([tmp_path / "driver"], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 wrong\n", "")


def test_no_warning_and_no_wrong_value(tmp_path, engine_object):
    compile_c(tmp_path / "driver", "-O2", *DRIVER, engine_object)
    done = subprocess.run([tmp_path / "driver"], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 wrong\n", "")


def test_sanitize_address(tmp_path, numbers_object):
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    runs_clean(tmp_path, numbers_object, *flags)


def test_sanitize_thread(tmp_path, numbers_object):
    flags = ("-fsanitize=thread", "-Wno-tsan")  # it does not know fences
    runs_clean(tmp_path, numbers_object, *flags)

"""How benchmarks run commands and other benchmarks, and print tables; on which machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.conftest import run


def spmd_command(*args: object) -> str:
    return run([sys.executable, "-m", "spmd", *args], timeout=300).expect(0).out


def json_lines(module: str, *args: object, timeout: float = 1800) -> list[Any]:
    """Return the JSON lines that benchmarks.<module> prints; its BLAS has one thread."""
    argv = [sys.executable, "-m", f"benchmarks.{module}", *args]
    done = run(argv, timeout=timeout, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}).expect(0)
    return [json.loads(line) for line in done.out.splitlines() if line.startswith(("{", "["))]


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    head = list(head)
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.split(":")[1].strip() for x in info if x.startswith("model name")), "")
    cc = subprocess.run([os.environ.get("CC", "cc"), "-dumpversion"], capture_output=True,
                        text=True).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    python = platform.python_version()
    return f"{cores} cores of {model or platform.machine()}, cc {cc}, Python {python}"

"""The figures of docs/reference/figures.md, measured on this machine: `make figures`.

In: names of figures, or nothing for all of them. Out: Markdown on standard output. Every figure is
a median; runs that are compared alternate, so that both meet the same disturbances.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from benchmarks.running import machine

# The function that prints each, by its module: what it needs is imported only when it is measured.
FIGURES = {
    "start": "images:start_up",
    "build": "images:build_times",
    "builds": "builds:report",
    "sizes": "images:image_sizes",
    "verify": "images:verified",
    "load": "images:load_costs",
    "digits": "images:digits",
    "transports": "images:transports",
    "timelines": "images:timelines",
    "global": "global_arrays:report",
    "growth": "growth:report",
    "fourier": "fourier:report",
    "random": "random_numbers:report",
    "functions": "functions:report",
    "numpy": "numpy_kernels:report",
    "linear": "linear:linear",
    "products": "products:report",
    "entities": "entities:report",
    "sort": "linear:sorting",
    "passes": "passes:report",
    "derivatives": "derivatives:report",
    "training": "training:report",
    "convergence": "convergence:report",
    "pipelines": "pipelines:report",
    "feeding": "feeding:report",
    "pictures": "pictures:report",
    "prk": "research_kernels:report",
    "serving": "serving:report",
}


def main(names: list[str]) -> None:
    """Measure the figures of these names, or all; that beside C needs its folder in PRK."""
    unknown = sorted(set(names) - FIGURES.keys())
    if unknown:
        sys.exit(f"no figure is called {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    print(f"Measured {time.strftime('%Y-%m-%d')} on {machine()}.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or [n for n in FIGURES if n != "prk" or "PRK" in os.environ]:
            print(f"figures: {name}", file=sys.stderr, flush=True)
            module, _, function = FIGURES[name].partition(":")
            try:
                measure = getattr(import_module(f"benchmarks.{module}"), function)
            except ModuleNotFoundError as error:
                print(f"{name} are measured beside {error.name}: pip install {error.name}\n")
                continue
            measure(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])

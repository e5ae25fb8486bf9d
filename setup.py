"""Builds the engine (csrc/, through cffi) and ships the headers that images are compiled with.

Everything else about the distribution stands in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithHeaders(build_py):
    """An installed compiler finds the C headers in codegen/include; a source tree, in csrc/."""

    def run(self):
        super().run()
        if not self.editable_mode:
            include = Path(self.build_lib, "codegen", "include")
            include.mkdir(parents=True, exist_ok=True)
            for header in Path("csrc").glob("*.h"):
                shutil.copy2(header, include)


setup(
    cffi_modules=["spmd/engine/build_engine.py:ffibuilder"],
    cmdclass={"build_py": BuildWithHeaders},
)

"""What the pipelines of the examples read: files that whoever comes first writes, for all later."""

import os
import shutil
import tempfile
from pathlib import Path


def cached(name, make):
    """The path of `name` below the folder for caches. make(folder) fills a folder of that name."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "spmd-examples"
    whole = caches / name
    if not whole.exists():
        caches.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(dir=caches))
        make(begun)
        try:
            begun.rename(whole)
        except OSError:  # another process was faster
            shutil.rmtree(begun)
    return whole

"""The recipe of the documentation for Ray Serve, in a Ray of its own."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import spmd
from tests.conftest import ROOT, run
from tests.pages import blocks

pytestmark = pytest.mark.slow

BLOCKS = [block.text for block in blocks(ROOT / "docs" / "howto" / "serving.md")]
(PROGRAM,) = [text for text in BLOCKS if text.startswith("# digits.py")]
(RECIPE,) = [text for text in BLOCKS if text.startswith("# ray_digits.py")]
ASKS = """
import json, socket, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor
import ray
from ray import serve

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=sys.argv[1],
         _node_ip_address="127.0.0.1")
serve.start(http_options={"host": "127.0.0.1", "port": port})
import ray_digits
serve.run(ray_digits.app)

def ask(row):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(row).encode())
    return json.load(urllib.request.urlopen(request, timeout=60))

with ThreadPoolExecutor(16) as pool:
    print("answers:", list(pool.map(ask, json.load(open("rows.json")))))
serve.shutdown()
ray.shutdown()
"""


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """A folder for what Ray keeps: its name is short, as sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    yield folder
    shutil.rmtree(folder)


def test_the_recipe(tmp_path: Path, ray_folder: Path) -> None:
    """Each request has the answer of its row."""
    pytest.importorskip("ray.serve")
    (tmp_path / "digits.py").write_text(PROGRAM)
    spmd.build(str(tmp_path / "digits.py")).save(tmp_path / "digits.img")
    (tmp_path / "ray_digits.py").write_text(RECIPE.replace("/shared", str(tmp_path)))
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    (tmp_path / "rows.json").write_text(json.dumps(x.tolist()))
    with spmd.load(tmp_path / "digits.img").open() as digits:
        digits.save(tmp_path / "trained.safetensors")
        expected = [int(digits.infer(x=x[k:k + 1])[0]) for k in range(len(x))]
    (tmp_path / "asks.py").write_text(ASKS)
    done = run([sys.executable, "asks.py", ray_folder], cwd=tmp_path, timeout=300,
               env={"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120",
                    "RAY_AUTH_MODE": "disabled", "PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert f"answers: {expected}" in done.out, done.text
    assert 20 < sum(expected) < 180

"""Workers that Dask and Ray start; where these are not installed, that is said."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import spmd.data as data
from spmd import EnvironmentFault
from tests.feeding.served_kit import ServedProcess, until


@pytest.fixture
def served(tmp_path):
    one = ServedProcess(tmp_path)
    yield one
    one.close()


@pytest.mark.slow
def test_dask_starts_workers(served):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False,
                                  dashboard_address=None) as cluster, \
            distributed.Client(cluster) as client:
        data.on_dask(client, served.address, served.keys_folder, processes=1, device="dask")
        found = until(lambda: len((s := served.status())["workers"]) == 2 and s)
        assert {w["device"] for w in found["workers"]} == {"dask"}
        client.unregister_worker_plugin("spmd-feed")
        until(lambda: not served.status()["workers"])


@pytest.mark.slow
def test_ray_starts_workers(served):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        actors = data.on_ray(served.address, served.keys_folder, processes=2)
        assert len(actors) == 1
        until(lambda: len(served.status()["workers"]) == 2)
        ray.kill(actors[0])
        until(lambda: not served.status()["workers"])
    finally:
        ray.shutdown()


@pytest.mark.skipif(bool(find_spec("ray")), reason="it is installed")
def test_what_is_missing_is_named():
    with pytest.raises(EnvironmentFault, match="pip install ray"):
        data.on_ray("tcp://127.0.0.1:1")

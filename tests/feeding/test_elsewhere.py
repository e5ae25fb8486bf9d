"""Workers that Dask and Ray start; where these are not installed, that is said."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest

import spmd.data as data
from spmd import EnvironmentFault
from tests.conftest import until
from tests.feeding.served_kit import ServedProcess


@pytest.fixture
def served(tmp_path):
    one = ServedProcess(tmp_path)
    yield one
    one.close()


@pytest.fixture
def workers(served):
    """workers(n): their names, once there are n. other_than: one of these is gone."""
    def come(count, other_than=()):
        def found():
            names = {w["worker"] for w in served.status()["workers"]}
            return len(names) == count and names != other_than and (names or {"nobody"})
        return until(found)
    return come


@pytest.mark.slow
def test_dask_starts_workers(served, workers):
    """They end with the process of a Dask worker, come back with it, and end with the cluster."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1,
                                  dashboard_address=None) as cluster, \
            distributed.Client(cluster) as client:
        data.on_dask(client, served.address, served.keys_folder, processes=1, device="dask")
        before = workers(2)
        assert {w["device"] for w in served.status()["workers"]} == {"dask"}
        os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
        workers(2, other_than=before)
        client.unregister_worker_plugin("spmd-feed")
        workers(0)
        data.on_dask(client, served.address, served.keys_folder)
        workers(2)
    workers(0)


@pytest.mark.slow
def test_what_dask_cannot_start_is_said_where_it_was_asked_for(served, workers):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, processes=False,
                                  dashboard_address=None) as cluster, \
            distributed.Client(cluster) as client:
        with pytest.raises(EnvironmentFault, match="do not start: tcp://nowhere.invalid:1: "):
            data.on_dask(client, "tcp://nowhere.invalid:1", served.keys_folder)
        cluster.scale(2)  # workers of Dask start all the same
        client.wait_for_workers(2, 40)
        data.on_dask(client, served.address, served.keys_folder)
        workers(2)


@pytest.mark.slow
def test_ray_starts_workers(served, workers):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(EnvironmentFault, match="(?s)too few CPUs.*processes=3\n.*found:    2"):
            data.on_ray(served.address, served.keys_folder, processes=3)
        with pytest.raises(EnvironmentFault, match="do not start: tcp://nowhere.invalid:1: "):
            data.on_ray("tcp://nowhere.invalid:1", served.keys_folder)
        (actor,) = data.on_ray(served.address, served.keys_folder, processes=2)
        before = workers(2)
        ray.kill(actor, no_restart=False)
        workers(2, other_than=before)
        ray.kill(actor)
        workers(0)
        actors = data.on_ray(served.address, served.keys_folder)
        workers(len(actors))
    finally:
        ray.shutdown()
    workers(0)


@pytest.mark.skipif(bool(find_spec("ray")), reason="it is installed")
def test_what_is_missing_is_named():
    with pytest.raises(EnvironmentFault, match="pip install ray"):
        data.on_ray("tcp://127.0.0.1:1")

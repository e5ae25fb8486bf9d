"""Several hosts: pretended ones, and two that have nothing but a network between them."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

from spmd import output_parts
from tests.conftest import EXAMPLES, ROOT, Launch, run
from tests.faults.test_lost import LIMIT, TURNS, said_once_in_time, wait_for_text
from tests.spmd.network import ADDRESSES, Network

BY_MPI = ("--transport", "mpi")


@pytest.mark.parametrize(("options", "hosts"), [
    (BY_MPI, ""), ((), "a,a,b"), ((), "a,b,a"), ((), "a,b,c"), (("--ranks", "7"), "a,a,b"),
    ((*BY_MPI, "--ranks", "8", "--threads", "2"), ""),
])
def test_examples_on_hosts_that_share_no_memory(
    built, mpirun, spmd_command, tmp_path, options, hosts
):
    """The same files and the same text as one process writes, up to rounding in sums."""
    image = built(EXAMPLES / "heat.py")
    ranks = options[options.index("--ranks") + 1] if "--ranks" in options else "3"
    alone, apart = tmp_path / "alone.npy", tmp_path / "apart.npy"
    first = spmd_command("run", image, "--ranks", ranks, "-o", f"u={alone}").expect(0)
    second = mpirun(
        3, "-m", "spmd", "run", image, "-o", f"u={apart}", *options,
        env={"SPMD_PRETEND_HOSTS": hosts},
    ).expect(0)
    np.testing.assert_array_equal(np.load(apart), np.load(alone))
    assert second.out.replace("apart", "alone") == first.out


@pytest.mark.one_mpi
def test_printed_outputs_come_from_all_hosts(built, mpirun, spmd_command):
    image = built(EXAMPLES / "ring_allreduce.py", count=20)
    one = spmd_command("run", image, "--ranks", 4).expect(0)
    many = mpirun(4, "-m", "spmd", "run", image, env={"SPMD_PRETEND_HOSTS": "a,b,b,c"}).expect(0)
    assert many.out == one.out and "[" in one.out


PARTS = '''
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def parts(n: int = 37, m: int = 23):
    a = spmd.input("a", (n, m, 3), np.float32, layout=("x", "y", None),
                   default=lambda i, j, k: i * 1000 + j * 10 + k)
    b = spmd.input("b", (n, m), np.int16, layout=(None, "y"), default=lambda i, j: i * 100 + j)
    c = spmd.input("c", (5, n), np.complex64, layout=(None, ("x", "y")),
                   default=lambda i, j: i * 100 + j)
    d = spmd.input("d", (2,), np.uint8, layout=("x",), default=lambda i: i)
    return {"a": a, "b": b, "c": c, "d": d}
'''


@pytest.mark.one_mpi
@pytest.mark.parametrize("hosts", ["a,a,b,b,b,b", "a,b,c,a,b,c"])
def test_every_host_writes_its_parts_of_a_file(built, mpirun, spmd_command, tmp_path, hosts):
    """Runs of a few bytes, whole rows, empty shards, and what several ranks hold alike."""
    image = built(PARTS)
    spmd_command("run", image, "--ranks", 1, "-o", tmp_path / "one.npz").expect(0)
    mpirun(6, "-m", "spmd", "run", image, "-o", tmp_path / "six.npz",
           env={"SPMD_PRETEND_HOSTS": hosts}).expect(0)
    one, six = np.load(tmp_path / "one.npz"), np.load(tmp_path / "six.npz")
    assert one.files == six.files == ["a", "b", "c", "d"]
    for name in one.files:
        np.testing.assert_array_equal(six[name], one[name])


def test_shared_memory_is_for_one_host(built, mpirun):
    done = mpirun(2, "-m", "spmd", "run", built(EXAMPLES / "heat.py"), "--transport", "shm",
                  env={"SPMD_PRETEND_HOSTS": "a,b"})
    done.expect(69, "the processes run on 2 hosts", "--transport auto")


SCRIPT = """
import sys
import numpy as np, spmd
from mpi4py import MPI
comm = MPI.COMM_WORLD
image = spmd.load(sys.argv[1])
with image.open(comm=comm, transport=sys.argv[2]) as job:
    for steps in (3, 3, 5):
        out = job(steps=steps)
        whole = out["u"].gather(root=1)
        part = out["u"].local
        place = tuple(slice(o, o + e) for o, e in zip(out["u"].offsets, part.shape))
        assert (whole is None) == (comm.rank != 1)
        whole = comm.bcast(whole, root=1)
        assert np.array_equal(whole[place], part)
alone = image.run(ranks=comm.size, steps=5)
assert np.array_equal(alone["u"], whole)
if comm.rank == 0:
    print("right")
"""


@pytest.mark.parametrize(("transport", "hosts"), [("mpi", ""), ("auto", "a,b,b"), ("shm", "")])
def test_inside_an_mpi4py_program(built, mpirun, tmp_path, transport, hosts):
    """Loaded once, run several times; again when a scalar changes; ends without a word."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = mpirun(3, tmp_path / "script.py", built(EXAMPLES / "heat.py"), transport,
                  env={"SPMD_PRETEND_HOSTS": hosts}).expect(0)
    assert done.out.count("right") == 1 and done.err == ""  # launchers mix lines of ranks


def test_parts_travel_in_pieces_that_have_room(monkeypatch):
    monkeypatch.setattr(output_parts, "MOST_SENT", 64)
    part = np.arange(3 * 5 * 7.0).reshape(3, 5, 7)
    whole = np.full((4, 9, 7), -1.0)
    for (i, j, k), piece in output_parts._pieces([((1, 4, 0), part), ((0, 0, 0), part[:0])]):
        assert piece.nbytes <= 64
        a, b, c = piece.shape
        assert (whole[i : i + a, j : j + b, k : k + c] == -1).all()
        whole[i : i + a, j : j + b, k : k + c] = piece
    assert np.array_equal(whole[1:, 4:], part) and (whole == -1).sum() == 4 * 9 * 7 - part.size


@pytest.fixture
def network(tmp_path):
    try:
        opened = Network(tmp_path).__enter__()
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    yield opened
    opened.__exit__()


def across(network: Network, folder, *argv: object) -> list[object]:
    """Four processes of a launcher on the first host, two on each."""
    first, second = ADDRESSES.values()
    python = [sys.executable, "-m", "spmd", "run", *argv]
    inside = network.enter("hosta", folder)
    if "HYDRA" in run(["mpirun", "--version"]).text:
        return [*inside, "mpirun", "-launcher", "ssh", "-launcher-exec", network.agent, "-iface",
                "ve0", "-hosts", f"{first},{second}", "-ppn", 2, "-n", 4, *python]
    return [*inside, "mpirun", "--mca", "plm_ssh_agent", network.agent, "--host",
            f"{first}:2,{second}:2", "--map-by", "ppr:2:node:oversubscribe", "-x", "PYTHONPATH",
            "-n", 4, *python]


# MPICH's UCX finds a network by /sys only if it is told its name.
ENVIRONMENT = {"UCX_NET_DEVICES": "ve0", "PYTHONPATH": str(ROOT)}


@pytest.mark.mpi
def test_two_hosts_with_addresses_of_their_own(built, spmd_command, network, tmp_path):
    image = built(EXAMPLES / "heat.py")
    alone, apart = tmp_path / "alone.npy", tmp_path / "apart.npy"
    spmd_command("run", image, "--ranks", 4, "-o", f"u={alone}").expect(0)
    argv = across(network, tmp_path, image, "-o", f"u={apart}")
    done = run(argv, env=ENVIRONMENT).expect(0, "peak: float32")
    np.testing.assert_array_equal(np.load(apart), np.load(alone))
    assert "spmd:" not in done.err, done.err
    refused = run(across(network, tmp_path, image, "--transport", "shm"), env=ENVIRONMENT)
    assert "found:    hosta, hostb" in refused.err, refused.err


SAVES = """
import numpy as np
import spmd

@spmd.program(mesh=("x",))
def saves(n: int = 8):
    x = spmd.zeros(n, np.float32, layout=("x",))
    for _ in spmd.range(3):
        x = x + 1
        spmd.save("x", x)
        print("a turn")
    return x
"""


@pytest.mark.mpi
def test_frames_in_a_folder_of_one_host_are_refused_before_the_first(built, network, tmp_path):
    """Ranks would wait for them to be whole, for ever where the program has no end."""
    image, folder = built(SAVES), tmp_path / "apart"
    folder.mkdir()
    for host in ADDRESSES:
        network.inside(host, "mount", "-t", "tmpfs", "none", str(folder))
    done = run(across(network, tmp_path, image, "-o", f"x={folder}/{{}}.npy"), env=ENVIRONMENT)
    assert done.code == 74 and "a turn" not in done.out, done.text
    assert f"parts of other processes are missing in {folder}" in done.err
    assert "a folder that all hosts share" in done.err
    run(across(network, tmp_path, image, "-o", f"x={tmp_path}/{{}}.npy"), env=ENVIRONMENT).expect(0)
    assert (np.load(tmp_path / "2.npy") == 3).all()


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_stops_on_another_host(built, network, tmp_path, rank):
    """Named with its host, within the limit, by one process of the four."""
    argv, host = across(network, tmp_path, built(TURNS)), list(ADDRESSES)[rank // 2]

    def once_in_time() -> bool:
        with Launch(argv, env=ENVIRONMENT) as launch:
            victim = launch.ranks(4)[rank]
            wait_for_text(launch)
            os.kill(victim, signal.SIGSTOP)
            done = launch.finish()
        done.expect(75, f"spmd: rank {rank} on {host} lost in superstep",
                    ".py:20: x = spmd.ppermute")
        return said_once_in_time(done.err, LIMIT)

    assert any(once_in_time() for _ in range(3))

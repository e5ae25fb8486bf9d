"""`spmd feed …` as users type it, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import spmd
import spmd.data as data
from spmd import cli
from spmd.feeding.clients.first_example import first_example
from spmd.feeding.clients.image_check import check_image
from spmd.feeding.host.children import Child
from spmd.feeding.messages.keys import made_for_a_run, make_folder
from spmd.feeding.starting.scheduler_process import SCHEDULER, wait_for_address
from tests.conftest import PATIENCE, ROOT, until
from tests.feeding.served_kit import PIPELINE, ServedProcess, command_of

pytestmark = pytest.mark.slow  # it waits for processes of its own


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    one = ServedProcess(tmp_path_factory.mktemp("served"))
    yield one
    one.close()


@pytest.fixture
def feed(capfd):
    """Runs a command of feed; returns exit code, what it printed, what it said is wrong."""
    def run(*words):
        capfd.readouterr()
        code = cli.main(["feed", *map(str, words)])
        return (code, *capfd.readouterr())
    return run


def test_submit_waits_for_a_scheduler_as_long_as_it_is_told(feed, tmp_path):
    file = tmp_path / "words.py"
    file.write_text(PIPELINE.format(name="words", seconds=0, settings="seed=2"))
    keys = str(make_folder(tmp_path / "keys"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        there = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        code, _, err = feed("submit", file, "--wait", 0.2, "--connect", there, "--keys", keys)
    assert code == 75 and "within 0.2 s" in err


def test_submit_status_update_cancel(served, feed, tmp_path):
    here = ("--connect", served.address, "--keys", served.keys_folder)
    file = tmp_path / "words.py"
    file.write_text(PIPELINE.format(name="words", seconds=0, settings="seed=2"))
    code, out, err = feed("submit", file, "--priority", 3, "--workers", "hosta,hostb",
                          "--rates", "cpu=50,gpu=400", "--cost-per-hour", 2.5, *here)
    assert (code, out, err) == (0, "words: submitted (version 1); no worker is called hosta or "
                                "hostb now, there is none\n", "")

    def settings_of(*words):
        return json.loads(feed("status", "--json", *words)[1])["settings"]

    code, out, _ = feed("status", "--json", *here)
    seen, = json.loads(out)["pipelines"]
    assert seen["settings"]["rates"] == {"cpu": 50.0, "gpu": 400.0}
    assert seen["settings"]["workers"] == ["hosta", "hostb"] and seen["state"] == "idle"
    assert feed("update", "words", "--max-workers", 2, *here)[1] == "words: updated (version 1)\n"
    limits = {"workers": "2", "max_workers": "2", "min_workers": "2",
              "cost": "5", "cost_per_hour": "5", "energy": "5",
              "energy_per_hour": "5", "estimated_seconds": "5", "timeout": "5"}
    for what, value in limits.items():
        option = "--" + what.replace("_", "-")
        for word, found in ((value, float(value)), ("none", None)):
            assert feed("update", "words", option, word, *here)[0] == 0
            assert settings_of("words", *here)[what] == found
    code, out, err = feed("update", "words", *here)
    assert (code, out) == (2, "") and "nothing is given that is to change" in err
    assert feed("update", "words", "--workers", "0", *here)[0] == 2
    assert feed("update", "words", "--workers", "hosta,hostb", *here)[0] == 0
    code, out, _ = feed("status", *here)
    assert "words prefers workers that are not here: hosta, hostb; " in out
    code, _, err = feed("submit", file, "--name", "two words", *here)
    assert code == 2 and "name of what is submitted is wrong" in err and "'two words'" in err
    assert "words            3  idle         0" in out and served.address in out
    code, out, _ = feed("status", "words", *here)
    assert code == 0 and "version 1" in out and "rates={'cpu': 50.0" in out
    assert json.loads(feed("status", "words", "--json", *here)[1])["name"] == "words"
    code, _, err = feed("status", "wrods", *here)
    assert code == 2 and "words, if that is what you mean" in err
    code, _, err = feed("update", "wrods", "--max-workers", 2, *here)
    assert code == 2 and "there is no pipeline wrods" in err and "words, if that is" in err
    code, _, err = feed("submit", file, "--pull", "al", *here)
    assert code == 2 and "pull of a pipeline is wrong" in err and "'all'" in err
    assert feed("submit", file, "--priority", "x", *here)[0] == 2
    assert feed("cancel", "words", *here)[:2] == (0, "words: cancelled\n")
    code, _, err = feed("cancel", "words", *here)
    assert code == 2 and "none is there" in err


def test_serve_says_why_it_does_not(served, feed, tmp_path):
    code, _, err = feed("serve", "--listen", "tcp://0.0.0.0:5599")
    assert code == 2 and "can be reached from other machines" in err and "feed keys FOLDER" in err
    for address in ("here:5", "tcp://127.0.0.1:99999"):
        code, _, err = feed("serve", "--listen", address)
        assert code == 2 and "tcp://HOST:PORT" in err
    assert feed("status", "--connect", "tcp://127.0.0.1:99999")[0] == 2
    with_keys = ("serve", "--keys", served.keys_folder, "--state")
    code, _, err = feed(*with_keys, tmp_path / "s", "--listen", served.address)
    assert code == 69 and "cannot listen there" in err
    code, _, err = feed(*with_keys, served.folder / "state", "--listen", "tcp://127.0.0.1:*")
    assert code == 69 and "another scheduler works with this file" in err
    (tmp_path / "notes").write_text("my notes")
    code, _, err = feed(*with_keys, tmp_path / "notes", "--listen", "tcp://127.0.0.1:*")
    assert code == 65 and "is damaged, or no state of a scheduler" in err
    code, _, err = feed("worker", "--free", "20-7")
    assert code == 2 and "HH:MM-HH:MM" in err
    code, _, err = feed("worker", "--ports", "40000")
    assert code == 2 and "FIRST-LAST" in err


def test_keys_are_made_once(feed, tmp_path):
    folder = tmp_path / "keys"
    code, out, _ = feed("keys", folder)
    assert code == 0 and "client.secret" in out
    assert sorted(os.listdir(folder)) == ["client.key", "client.secret", "server.key",
                                          "server.secret"]
    assert all(os.stat(folder / f"{who}.secret").st_mode & 0o77 == 0 for who in ("client",
                                                                                "server"))
    code, _, err = feed("keys", folder)
    assert code == 2 and "holds keys already" in err


def test_top_redraws_on_a_terminal(served):
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "spmd", "feed", "top", "--every", "0.1", "--connect",
         served.address, "--keys", served.keys_folder], cwd=ROOT, stdin=other, stdout=other,
        stderr=other, start_new_session=True)
    os.close(other)
    text = b""
    while text.count(b"\x1b[H") < 3:
        text += os.read(main, 4096)
    process.send_signal(signal.SIGINT)
    with pytest.raises(OSError):  # the end of a terminal
        while True:
            text += os.read(main, 4096)
    assert process.wait(PATIENCE) == 130
    assert text.count(b"\x1b[H") >= 3 and served.address.encode() in text
    assert text.rstrip().endswith(b"\x1b[?1049l"), "the screen is as it was"


PROGRAM = """
import numpy as np
import spmd

@spmd.program
def train(batch: int = 8):
    feed = spmd.feed(x=spmd.spec((batch, 3), np.float32), y=spmd.spec((batch,), np.int32))
    total = np.zeros((), np.float32)
    for _ in spmd.range(2):
        b = feed.next()
        total = total + b.x.sum() + b.y.sum().astype(np.float32)
    return total
"""


def test_a_pipeline_is_compared_with_its_image(served, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    assert cli.main(["build", str(tmp_path / "train.py"), "-o", str(tmp_path / "train.img")]) == 0

    def submitted(returned):
        file = tmp_path / "given.py"
        file.write_text(
            "import numpy as np\nimport spmd.data as data\n"
            "@data.pipeline(source=data.range(9), image='train.img')\n"
            f"def given(example):\n    return {returned}\n")
        with served.client() as client:
            return client.submit(file)

    x, y = "'x': np.zeros(3, np.float32)", "'y': np.int32(1)"
    for returned, message in (
            (f"{{{x}}}", "field y is not among what it gives"),
            (f"{{{x}, {y}, 'z': 1}}", "no feed has a field z"),
            (f"{{'x': np.zeros((3, 1), np.float32), {y}}}", r"field x has the shape \(3, 1\)"),
            (f"{{{x}, 'y': 1.5}}", "field y is of float64"),
            (f"{{{x}, 'y': 2**40}}", "field y is of int64, from 1099511627776")):
        with pytest.raises(spmd.InputError, match=f"(?s)given.py:.*train.img takes: {message}"):
            submitted(returned)
    assert submitted(f"{{{x}, {y}}}")["what"] == "new"
    # What a run casts is no misfit: labels are Python's integers.
    for cast in (f"{{{x}, 'y': 1}}", f"{{'x': np.zeros(3), {y}}}",
                 "{'x': np.zeros(3, np.uint8), 'y': True}"):
        assert submitted(cast)["what"] == "changed"


def test_a_tuple_is_compared_with_the_tree_of_an_image(tmp_path):
    @spmd.program
    def pairs():
        feed = spmd.feed(p=(spmd.spec((4, 2), np.float32), spmd.spec((4,), np.int32)))
        return feed.next().p[0].sum()

    def given(second):
        return data.pipeline(source=data.range(9))(lambda example: {"p": (np.zeros(2), second)})

    spmd.build(pairs).save(tmp_path / "pairs.img")
    check_image(given(1), str(tmp_path / "pairs.img"))
    with pytest.raises(spmd.InputError, match=r"takes: field p\.1 has the shape \(3,\)"):
        check_image(given(np.zeros(3, np.int32)), str(tmp_path / "pairs.img"))


@pytest.mark.parametrize("name, package", [
    ("zmq", "pyzmq"), ("lz4", "lz4"), ("zstandard", "zstandard"),
    ("prometheus_client", "prometheus-client")])
def test_a_missing_package_is_said_before_anything_starts(name, package, tmp_path):
    (tmp_path / "p.py").write_text(
        "import spmd.data as d\np = d.pipeline(source=d.range(2))(lambda e: e)\n")
    (tmp_path / "q.py").write_text(
        "import spmd\n@spmd.program(mesh=('r',))\ndef q():\n"
        "    return spmd.feed(x=spmd.spec((4,))).next().x\n")
    for words in (["feed", "worker", "--connect", "tcp://127.0.0.1:1"],
                  ["run", str(tmp_path / "q.py"), "--eager", "--feed", str(tmp_path / "p.py")]):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.modules[{name!r}] = None\n"
             f"from spmd import cli; sys.exit(cli.main({words}))"],
            capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 69, done.stderr
        assert f"feeding needs {package}, not installed here" in done.stderr
        assert "pip install pyzmq lz4 zstandard prometheus-client" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_scheduler_of_a_run_ends_with_it():
    keys = made_for_a_run()
    child = Child(SCHEDULER)
    address = wait_for_address(child, keys, "tcp://127.0.0.1:*")
    with data.Client(address, keys, PATIENCE) as client:
        assert client.status()["pipelines"] == []
        child.channel.close()
        until(lambda: child.has_ended() is not None)
    assert child.has_ended() == 0


def test_a_first_example_that_cannot_be_computed_where_it_is_submitted(served, feed, tmp_path):
    """It is said, and nothing else happens: workers may have what is missing here."""
    here = ("--connect", served.address, "--keys", served.keys_folder)
    file = tmp_path / "broken.py"

    def submitted(line):
        file.write_text("import os\nimport signal\nimport numpy as np\nimport spmd.data as data\n"
                        f"@data.pipeline(source=data.range(9))\ndef broken(example):\n    {line}\n")
        code, out, err = feed("submit", file, *here)
        assert code == 0 and not err and out.startswith("broken: submitted")
        return out

    out = submitted("return {'x': np.load('/nowhere.npy')}")
    assert "FileNotFoundError" in out and "broken.py:7: " in out and "skip" not in out
    assert "was killed by SIGKILL" in submitted("os.kill(os.getpid(), signal.SIGKILL)")
    assert "ended with status 7" in submitted("os._exit(7)")
    assert "no feed can have" in submitted("return {'two words': example}")
    assert submitted("return {'x': example}").count("\n") == 1
    code, out, _ = feed("update", "broken", "--source", file, *here)
    assert code == 0 and "first example" not in out


def test_a_first_example_that_takes_too_long(monkeypatch, tmp_path):
    """The process that computes it is ended, with what it has started."""
    mark = f"spmd-test-{os.getpid()}-sleeps"
    (tmp_path / "slow.py").write_text(
        "import subprocess\nimport sys\nimport spmd.data as data\n"
        "@data.pipeline(source=data.range(9))\ndef slow(example):\n"
        f"    subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)', '{mark}'])\n")
    monkeypatch.setattr("spmd.feeding.clients.first_example.WITHIN_S", 3.0)
    texts = {"own_name": "slow", "file": str(tmp_path / "slow.py"), "modules": [],
             "source": (tmp_path / "slow.py").read_text()}
    assert first_example(texts) == (
        None, "it takes more than 3 s")
    until(lambda: not any(mark in command_of(int(pid)) for pid in os.listdir("/proc")
                          if pid.isdigit()))

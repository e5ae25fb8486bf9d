"""Operations and sources that do what nobody would: workers, and the run, name them and go on or
end; no example comes twice."""

from __future__ import annotations

import pytest

from spmd import InputError, SpmdError
from tests.feeding.feeding_kit import mask_of, running, x_of

pytestmark = pytest.mark.slow  # it waits for processes of its own

HEAD = "import os, random, time\nimport numpy as np\nimport spmd.data as data\n"


def numbers(body, source="data.range(100)", head="", **settings):
    words = "".join(f", {k}={v!r}" for k, v in settings.items())
    return (HEAD + head + f"@data.pipeline(source={source}, epochs=1{words})\n"
            "def numbers(example):\n" + "".join(f"    {line}\n" for line in body.splitlines()))


def all_of(ring):
    seen = []
    while (batch := ring.next()) is not None:
        seen += batch["x"].tolist()
    return seen


@pytest.mark.parametrize("end", ["pass", "raise ValueError('of the child')"])
def test_a_child_that_comes_back_from_a_fork_does_no_work_of_its_worker(end):
    body = f"if example % 10 == 7 and not os.fork():\n    {end}\nreturn {{'x': example}}"
    with running(numbers(body)) as run:
        mine = run.workers(2)
        (ring,) = run.supply(x_of(10), 10)
        assert sorted(all_of(ring)) == list(range(100))
        assert mine.said == []


def test_workers_that_read_on_in_another_order_are_refused(tmp_path):
    head = ("def drawn():\n    found = list(range(100))\n    random.shuffle(found)\n"
            "    yield from found\n")
    for wait in (True, False):  # for the first of them; none goes on before another is there
        (folder := tmp_path / str(wait)).mkdir()
        body = (f"open(os.path.join({str(folder)!r}, str(os.getpid())), 'w').close()\n"
                f"while len(os.listdir({str(folder)!r})) < 2: time.sleep(0.01)\n"
                "return {'x': example}")
        with running(numbers(body, "data.iterator(drawn)", head)) as run:
            if wait:
                run.workers(3).wait_for_workers(3)
            (ring,) = run.supply(x_of(10), 10)
            run.workers(3)
            with pytest.raises(SpmdError, match=r"a data\.iterator that gives others each time"):
                all_of(ring)


def test_deaths_after_examples_end_the_run_and_name_the_pipeline():
    body = "if example == 57:\n    os.closerange(0, 1000)\nreturn {'x': example}"
    with running(numbers(body, on_error="skip")) as run:
        run.workers(2)
        (ring,) = run.supply([*x_of(10), *mask_of(10)], 10)
        with pytest.raises(InputError, match=r"numbers failed at no example, but soon after some"):
            while ring.next() is not None:
                pass


def test_clocks_that_an_operation_changes_are_not_those_of_its_worker():
    body = ("time.monotonic = time.time = time.perf_counter = lambda: 0.0\n"
            "time.monotonic_ns = lambda: 0\ntime.sleep = lambda s: None\nreturn {'x': example}")
    with running(numbers(body)) as run:
        mine = run.workers(2)
        (ring,) = run.supply(x_of(10), 10)
        assert sorted(all_of(ring)) == list(range(100))
        assert mine.said == []


def test_what_a_full_worker_has_no_memory_for_is_computed_by_a_new_one():
    head = "kept = []\n"
    body = "kept.append(np.ones(4 << 20))\nreturn {'x': example}"  # 32 MiB
    with running(numbers(body, head=head, on_error="skip")) as run:
        mine = run.workers(1, memory=256 << 20)
        (ring,) = run.supply([*x_of(2), *mask_of(2)], 2)
        seen = []
        while (batch := ring.next()) is not None:
            assert batch["mask"].all()
            seen += batch["x"].tolist()
        assert sorted(seen) == list(range(100))
        assert any("had no memory left" in text for text in mine.said)


def test_an_example_that_no_memory_is_enough_for_fails():
    body = "np.ones(1 << 33) if example == 57 else None\nreturn {'x': example}"
    with running(numbers(body)) as run:
        run.workers(1, memory=256 << 20)
        (ring,) = run.supply(x_of(2), 2)
        with pytest.raises(InputError, match=r"MemoryError"):
            while ring.next() is not None:
                pass


def test_escape_sequences_of_an_exception_do_not_come_to_the_terminal(capfd):
    body = ("if example == 7:\n"
            "    raise ValueError('\\x1b[2Jgone\\r\\x9b5A é')\nreturn {'x': example}")
    for on_error in ("stop", "skip"):
        with running(numbers(body, on_error=on_error)) as run:
            run.workers(1)
            (ring,) = run.supply([*x_of(10), *mask_of(10)], 10)
            said = ""
            try:
                while ring.next() is not None:
                    pass
            except InputError as error:
                said = str(error)
        said += capfd.readouterr().err
        assert r"ValueError: \x1b[2Jgone\x0d\x9b5A é" in said
        assert not set("\x1b\r\x9b") & set(said)


@pytest.mark.parametrize("batched", [False, True])
def test_an_interrupt_that_an_operation_raises_is_of_its_example(batched):
    body = "if 57 in (example if batched else [example]):\n    raise KeyboardInterrupt\n"
    source = numbers(body + "return {'x': example}", head=f"batched = {batched}\n")
    if batched:
        source = source.replace("@data.pipeline(", "@data.batched(size=2, shuffle=False, ")
    with running(source) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(10), 10)
        with pytest.raises(InputError, match=r"made_here.py:8: [^\0]*number 5[67][^\0]*KeyboardI"):
            all_of(ring)

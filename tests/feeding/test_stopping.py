"""A signal ends the loops of scheduler and agent, whichever instruction it comes at."""

from __future__ import annotations

import signal
import socket
import sys

from spmd.feeding.host import stop_request
from spmd.feeding.host.children import Channel
from spmd.feeding.messages import sockets
from spmd.feeding.messages.keys import made_for_a_run
from spmd.feeding.scheduling import scheduler
from spmd.feeding.starting.scheduler_process import Served
from spmd.feeding.workers import agent

LOOPS = {scheduler.__file__: {"run"}, agent.__file__: {"run", "attend"},
         stop_request.__file__: None}
TURNS = 2


class At:
    """Sends SIGTERM before the k-th instruction of a loop, and of what says that it should stop."""

    def __init__(self, k: int) -> None:
        self.k, self.seen = k, 0

    def __enter__(self) -> At:
        sys.settrace(self.call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def call(self, frame, event, _):
        names = LOOPS.get(frame.f_code.co_filename, ())
        if names is not None and frame.f_code.co_name not in names:
            return None
        frame.f_trace_opcodes = True
        return self.step

    def step(self, frame, event, _):
        if event == "opcode":
            self.seen += 1
            if self.seen == self.k:
                signal.raise_signal(signal.SIGTERM)  # its handler runs here
        return self.step


def told_at(k, loop, word):
    """What a loop ends by that is told by a signal before its k-th instruction, and how many it
    had."""
    with word.by_signals(), At(k) as at:
        loop()
    return word.why, at.seen


def ends_by_a_signal_anywhere(begin):
    """begin(n): a loop that ends after n turns, for "not heard", and its StopRequest."""
    why, many = told_at(0, *begin(TURNS))
    assert why == "not heard" and many > 20
    for k in range(1, many + 1):
        assert told_at(k, *begin(3 * TURNS))[0] == "SIGTERM", f"before instruction {k} of {many}"


def test_a_signal_at_any_instruction_ends_a_scheduler(monkeypatch):
    monkeypatch.setattr(scheduler, "POLL_MS", 0)
    served = Served("tcp://127.0.0.1:*", made_for_a_run())
    one = served.scheduler

    def begin(turns):
        one.stopping, said = stop_request.StopRequest(), iter([""] * (turns - 1))
        return lambda: one.run(lambda: next(said, "not heard")), one.stopping

    ends_by_a_signal_anywhere(begin)
    served.close()


class Turning(agent.Agent):
    """One that has no workers, as out of its hours, and may begin again."""

    def keep_number(self):
        self.turns -= 1
        self.stopping.say("" if self.turns else "not heard")

    def end(self):
        """Its lines stay."""


def test_a_signal_at_any_instruction_ends_an_agent(monkeypatch):
    """Also while it hears that whoever started it is gone."""
    monkeypatch.setattr(agent, "LOOK_S", 0.0)
    ours, theirs = socket.socketpair()
    one = Turning("tcp://127.0.0.1:9", made_for_a_run(), 1, lifeline=Channel(ours))

    def begin(turns):
        one.stopping, one.turns = stop_request.StopRequest(), turns
        return one.run, one.stopping

    ends_by_a_signal_anywhere(begin)
    theirs.close()
    one.stopping, one.turns = stop_request.StopRequest(), TURNS
    one.run()
    assert one.stopping.why == "whoever started it has ended"
    ours.close()
    agent.Agent.end(one)


def test_lines_end_though_zeromq_waits(monkeypatch):
    """It waits for a socket that somebody has kept, and did so without end."""
    monkeypatch.setattr(sockets, "END_S", 0.1)
    lines = sockets.Lines(made_for_a_run())
    kept = lines.context.socket(sockets.zmq.DEALER)
    lines.close()
    kept.close(0)

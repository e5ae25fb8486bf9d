"""Starting a scheduler: here (`feed serve`), or in a child process that ends with its parent.

In: an address, keys, a file for the state, a port for the page. Out: a scheduler that runs.
Always holds: without a folder of keys it listens on this machine only; strangers are counted.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from codegen.errors import EnvironmentFault, SpmdError, UsageError
from spmd.feed_options import HERE
from spmd.feeding.host.children import Channel, Child, of_parent
from spmd.feeding.messages.keys import KEYS, AllowedKeys, Keys, keys_of, state_folder, zmq
from spmd.feeding.messages.sockets import LAST_PORT, Lines
from spmd.feeding.scheduling.scheduler import SLICE_S, Scheduler
from spmd.feeding.scheduling.scheduler_state import StateFile, StateMemory
from spmd.feeding.status.overview import overview

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.feeding.status.web_page import WebPage

PORT = int(HERE.rpartition(":")[2])
START_S = 20.0  # for a child to say its address
SCHEDULER = "spmd.feeding.starting.scheduler_process"  # as a child


def checked_listen(listen: str, folder: str, option: str = "--listen") -> str:
    """Return an address to listen at. Raises UsageError where others could reach it, and there are
    no keys."""
    host, _, port = listen.removeprefix("tcp://").rpartition(":")
    is_port = port == "*" or (port.isascii() and port.isdecimal() and int(port) <= LAST_PORT)
    if not listen.startswith("tcp://") or not host or not is_port:
        raise UsageError(f"{option} {listen!r}", expected="tcp://HOST:PORT, as tcp://0.0.0.0:5570, "
                         f"with a port of at most {LAST_PORT}", remedy=HERE)
    if not folder and not is_loopback(host):
        raise UsageError(
            f"{listen} can be reached from other machines, and no keys are given",
            expected="a folder of keys", found="none",
            remedy="python -m spmd feed keys FOLDER, then --keys FOLDER here and for everybody "
            f"who connects; or listen on this machine only: {option} {HERE}")
    return listen


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Served:
    """A scheduler with its sockets, its file and its page. Close it: nothing is left."""

    def __init__(self, listen: str, keys: Keys, *, state: str = "", page: int | None = None,
                 slice_s: float = SLICE_S, folder: str | None = None,
                 memory: StateMemory | None = None) -> None:
        self.keys = keys
        self.counts: Counter[str] = Counter()
        self.page: WebPage | None = None
        self.store = StateFile(state, memory)
        more = self.store.allowed() if folder is None else set()
        self._allowed = AllowedKeys(keys.allowed | more, folder)
        self.lines = Lines(keys, self._allows)
        try:
            router = self.lines.router(listen, keys.server_secret, keys.server)
            address = reached_at(listen, router.last_endpoint.decode())
            self.scheduler = Scheduler(router, self.store, address=address, slice_s=slice_s,
                                       counts=self.counts)
            self.scheduler.looking = overview
            if folder is not None:
                self.scheduler.allowed = self._allowed.now
                self.scheduler.welcomes = self.lines.without_strangers
            if page is not None:
                from spmd.feeding.status.web_page import WebPage  # a tenth of a second, for a page
                self.page = WebPage(self.scheduler, page)
        except BaseException as error:
            self.close()
            if isinstance(error, zmq.ZMQError):
                raise EnvironmentFault(
                    f"{listen}: cannot listen there: {error}", expected="a free port",
                    remedy=f"another --listen, as tcp://127.0.0.1:{PORT + 1}; is a scheduler "
                    "there already? python -m spmd feed status") from None
            raise
        self.store.remember(keys=self._allowed.now())

    def _allows(self, key: str) -> bool:
        """Return whether a key is allowed; asked for every connection, and now and then for those
        that stand."""
        if key in self._allowed.now():
            return True
        self.counts["strangers"] += 1
        return False

    def close(self) -> None:
        if self.page:
            self.page.close()
        self.lines.close(linger_ms=200)
        self.store.close()


def reached_at(listen: str, endpoint: str) -> str:
    """Return the address with the port that was taken, and a name for "everywhere"."""
    host, port = listen.rpartition(":")[0], endpoint.rpartition(":")[2]
    if host in ("tcp://0.0.0.0", "tcp://*", "tcp://[::]"):
        host = f"tcp://{socket.gethostname()}"
    return f"{host}:{port}"


def serve(listen: str, folder: str, state: str, page: int | None, slice_s: float,
          say: Callable[[str], None]) -> None:
    """Run `feed serve` until Ctrl-C or SIGTERM; consumers go on with the workers that they have."""
    folder = folder or os.environ.get(KEYS, "")
    checked_listen(listen, folder)
    keys = keys_of(folder, scheduler=True)
    if not state:
        port = listen.rpartition(":")[2]
        state = os.path.join(state_folder(), f"feed-{'any' if port == '*' else port}.sqlite")
    new = not os.path.exists(state)
    served = Served(listen, keys, state=state, page=page, slice_s=slice_s, folder=folder)
    scheduler = served.scheduler
    with scheduler.stopping.by_signals():
        say(f"scheduler at {scheduler.address}, state in {state}" + ", which is new" * new)
        if served.page:
            say(f"page at {served.page.address}")
        if scheduler.pipelines:
            say(f"known from before: {', '.join(sorted(scheduler.pipelines))}")
        scheduler.run()
    served.close()
    say(f"ended: {scheduler.stopping.why}")


# ---- in a child ---------------------------------------------------------------------------------


def wait_for_address(child: Child, keys: Keys, listen: str) -> str:
    """Return the address of a started scheduler once it listens. Raises EnvironmentFault where it
    does not."""
    child.channel.send(keys=keys.as_plain(with_server=True), listen=listen)
    said, why = child.first_word(START_S)
    if not said or "address" not in said:
        child.kill()
        raise EnvironmentFault(
            "the scheduler of this run does not start", found=why or (said or {}).get("error", ""),
            remedy="python -m spmd feed serve says more; then run --feed NAME@ADDRESS")
    return str(said["address"])


def _in_child(channel: Channel, memory: StateMemory | None) -> None:
    """Run a scheduler in a child process until its parent closes the channel."""
    channel.wait_for(START_S)
    asked: dict[str, Any] = (channel.said() or [{}])[0]
    if not asked:
        return
    try:
        served = Served(asked["listen"], Keys.of_plain(asked["keys"]), memory=memory)
    except SpmdError as error:
        channel.send(error=str(error))
        return
    channel.send(address=served.scheduler.address)
    served.scheduler.own_workers = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run is told, and ends us
    served.scheduler.run(lambda: "the run has ended" if channel.said() is None else "")
    served.close()


def main(arguments: list[str]) -> None:
    """Run the scheduler that a parent starts with a channel, and memory for the state if it is to
    be kept."""
    channel, kept = of_parent(arguments)
    _in_child(channel, StateMemory(kept[0]) if kept else None)


if __name__ == "__main__":
    main(sys.argv[1:])

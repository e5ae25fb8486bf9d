"""Sockets between processes that feed: pyzmq, always with CURVE, nothing ever dropped silently.

In: Keys. Out: ROUTERs that only allowed keys reach, DEALERs that know whom they talk to.
Always holds: a ROUTER says so when a peer is gone (ROUTER_MANDATORY) or its queue is full; whose
key is not allowed any more has no line after without_strangers().
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress

from zmq.utils import z85

from codegen.errors import EnvironmentFault, UsageError
from spmd.feeding.host.machine import allow_descriptors
from spmd.feeding.messages.keys import zmq

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from spmd.feeding.messages.keys import Keys

ZAP = "inproc://zeromq.zap.01"
LAST_PORT = 65535
HANDSHAKE_MS = 5000  # a peer that connects and says nothing is dropped then
HEARTBEAT_MS = 500
SILENT_MS = 1500  # a peer whose machine vanished is noticed then
MESSAGES = 4096  # on their way to a peer; credits keep it far below
FRAME_BYTES = 4 << 20  # at most; arrays travel in smaller parts

DESCRIPTORS, SOCKETS = 1 << 16, 1 << 14  # for a run with thousands of workers
CONNECT_MS = 2000  # for an answer to a connection, before it is tried anew
END_S = 2.0  # for ZeroMQ to let all go
LAST_WORD_MS = 200  # for what a ROUTER has still to send
BOUND_S = 1.0  # for a port that we gave up a moment ago
REFUSED_S = 2.0  # before a line is tried again that the other side refused

EVENTS, READABLE = int(zmq.EVENTS), int(zmq.POLLIN)  # plain numbers: asked for at every turn

SENT, GONE, FULL = "sent", "gone", "full"

REFUSED_KEY = "it refuses our key"
OTHER_KEY = "it ends our connections: its key is another one than we know"
OF_KEYS = (REFUSED_KEY, OTHER_KEY)
FINAL = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
SAYS = {  # what a monitor tells of a line that does not stand
    zmq.EVENT_CONNECTED: "it takes connections and gives no proper answer",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "the line broke",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: REFUSED_KEY,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "what listens there is no part of feeding",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: OTHER_KEY,
}
WATCHED = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_DELAYED, zmq.EVENT_CLOSED, *SAYS)


class Lines:
    """A context of pyzmq with its doorkeeper. One for a process, or for a part of it.

    allows: says of a public key whether it may connect to our ROUTERs; asked for each connection.
    """

    def __init__(self, keys: Keys, allows: Callable[[str], bool] | None = None) -> None:
        self.keys = keys
        allow_descriptors(DESCRIPTORS)
        self.context = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, SOCKETS)
        self._allows = allows or keys.allowed.__contains__
        self._let_in: set[str] = set()  # keys with which somebody has connected to a ROUTER
        self._sockets: set[Any] = set()
        self._watches: dict[Any, LineWatch] = {}  # of dealers
        self._bound: dict[Any, tuple[str, str, str]] = {}  # of routers: where, secret, public
        self._door = self.context.socket(zmq.REP)
        self._door.linger = 0
        self._door.bind(ZAP)
        self._keeper = threading.Thread(target=self._keep, name="feed-door", daemon=True)
        self._keeper.start()

    def router(self, address: str, secret: str, public: str) -> Any:
        """Return a ROUTER that strangers cannot connect to. address: tcp://0.0.0.0:* takes a free
        port, tcp://0.0.0.0:40000-40099 one of these.

        Raises ZMQError, or EnvironmentFault where none of these is free.
        """
        router = self._router(secret, public)
        try:
            bind(router, address)
        except BaseException:
            self.forget(router)
            raise
        self._bound[router] = router.last_endpoint.decode(), secret, public
        return router

    def without_strangers(self, router: Any) -> Any:
        """Return the ROUTER to use from now on. Where a peer is connected whose key is no longer
        allowed, it is a new one bound to the same address, to which all other peers connect again
        by themselves."""
        gone = {key for key in set(self._let_in) if not self._is_allowed(key)}
        if not gone:
            return router
        address, secret, public = self._bound[router]
        successor = self._router(secret, public)
        with suppress(zmq.ZMQError):  # of an attempt before, which came to nothing
            router.unbind(address)
        end = time.monotonic() + BOUND_S
        while True:
            try:
                successor.bind(address)
                break
            except zmq.ZMQError:
                if time.monotonic() > end:
                    self.forget(successor)
                    raise
                time.sleep(0.005)
        self._bound[successor] = address, secret, public
        self.forget(router, LAST_WORD_MS)
        self._let_in -= gone
        return successor

    def _router(self, secret: str, public: str) -> Any:
        router = self._socket(zmq.ROUTER)
        router.router_mandatory = True
        router.router_handover = True  # who comes again after its line broke is the same peer
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = public.encode(), secret.encode()
        router.zap_domain = b"feed"
        return router

    def dealer(self, address: str, server: str, identity: str) -> Any:
        """Return a DEALER to one ROUTER, whose public key is `server`. It connects again by itself.

        Raises UsageError for what is no address.
        """
        dealer = self._socket(zmq.DEALER)
        dealer.routing_id = identity.encode()
        dealer.curve_serverkey = server.encode()
        dealer.curve_publickey = self.keys.public.encode()
        dealer.curve_secretkey = self.keys.secret.encode()
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = 50, 500
        dealer.connect_timeout = CONNECT_MS
        try:
            address = resolved(address)
            self._watches[dealer] = LineWatch(dealer, address)
            dealer.connect(address)
        except zmq.ZMQError as error:
            raise UsageError(f"{address}: {error}", expected="tcp://HOST:PORT") from None
        return dealer

    def watch(self, dealer: Any) -> LineWatch:
        """Return the watch over a dealer's line; it ends with the socket."""
        return self._watches[dealer]

    def _socket(self, kind: int) -> Any:
        opened = self.context.socket(kind)
        opened.linger = 0
        # No limit for what comes: libzmq 4.3.5 aborts the process where a peer's queue is full, its
        # line breaks, and a heartbeat is due (its issue 4767). Credits keep queues short.
        opened.sndhwm, opened.rcvhwm = MESSAGES, 0
        opened.maxmsgsize = FRAME_BYTES
        opened.handshake_ivl = HANDSHAKE_MS
        opened.heartbeat_ivl = HEARTBEAT_MS
        opened.heartbeat_timeout = SILENT_MS
        opened.ipv6 = True
        opened.tcp_keepalive = 1
        self._sockets.add(opened)
        return opened

    def forget(self, line: Any, linger_ms: int = 0) -> None:
        """Close one of our sockets; what it still has to send may take so long."""
        self._sockets.discard(line)
        self._bound.pop(line, None)
        if watch := self._watches.pop(line, None):
            watch.close()
        line.close(linger_ms)

    def close(self, linger_ms: int = 0) -> None:
        """Close all sockets. It takes limited time: a process ends though ZeroMQ does not."""
        for line in list(self._sockets):
            self.forget(line, linger_ms)
        # It ends the doorkeeper, which closes its own socket.
        ending = threading.Thread(target=self.context.term, name="feed-end", daemon=True)
        ending.start()
        ending.join(linger_ms / 1000 + END_S)
        self._keeper.join(END_S)

    def _keep(self) -> None:
        """Answer ZeroMQ's questions which keys may connect, by its RFC 27 (ZAP)."""
        try:
            while True:
                parts = self._door.recv_multipart()
                if len(parts) < 6:
                    self._door.send_multipart([b"1.0", b"", b"400", b"malformed", b"", b""])
                    continue
                version, number, _, _, _, mechanism, *proof = parts
                known = (mechanism == b"CURVE" and len(proof) == 1 and len(proof[0]) == 32
                         and self._is_allowed(z85.encode(proof[0]).decode()))
                answer = (b"200", b"OK") if known else (b"400", b"a key that is not allowed")
                self._door.send_multipart([version, number, *answer, b"", b""])
        except zmq.ZMQError:
            self._door.close(0)

    def _is_allowed(self, key: str) -> bool:
        try:
            allowed = self._allows(key)
            if allowed:
                self._let_in.add(key)
            return allowed
        except Exception:  # a folder of keys that vanishes: the door must not stay without a keeper
            return False


class LineWatch:
    """Whether the line of a DEALER stands. What was under way when it broke may be lost."""

    def __init__(self, line: Any, address: str) -> None:
        self._watched, self.address = line, address
        self.monitor = line.get_monitor_socket(sum(WATCHED))
        self._fds = (int(self.monitor.FD),)
        self.stands = False
        self.since = self._tried = time.monotonic()
        self._found = "nothing answers there"
        self._ended = False  # ZeroMQ does not try any more

    def fds(self) -> tuple[int, ...]:
        """Return the descriptors that become readable when the line stands, or breaks."""
        return self._fds

    def broke(self) -> bool:
        """Return whether the line has broken since the last call. It may stand again already."""
        broken = False
        while is_readable(self.monitor):
            # As zmq.utils.monitor reads it, which would import asyncio: much of a start.
            (number,) = struct.unpack_from("=H", self.monitor.recv_multipart()[0])
            event = zmq.Event(number)
            if event in (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED):
                before, self.stands = self.stands, event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if before != self.stands:
                    self.since = time.monotonic()
                broken = broken or (before and not self.stands)
            self._note(event)
        if self._ended and time.monotonic() - self._tried > REFUSED_S:
            self._try_again()
        return broken

    def _note(self, event: Any) -> None:
        now = time.monotonic()
        if event == zmq.EVENT_CONNECT_DELAYED:
            self._tried = now
        elif event == zmq.EVENT_CLOSED:  # before there was a connection
            self._found = ("nothing answers there" if now - self._tried > SILENT_MS / 1000 else
                           "the connection is refused: nobody listens there")
        elif event in SAYS:
            # It is tried on, and connects again: that says nothing new.
            if event != zmq.EVENT_CONNECTED or self._found not in OF_KEYS:
                self._found = SAYS[event]
            self._ended = self._ended or event in FINAL
            self._tried = now

    def _try_again(self) -> None:
        """Connect again: a key may have been allowed meanwhile, or another process may listen
        there."""
        self._ended, self._tried = False, time.monotonic()
        with suppress(zmq.ZMQError):  # there is nothing left of it
            self._watched.disconnect(self.address)
        self._watched.connect(self.address)

    def away(self) -> float:
        """Return for how many seconds there has been no connection."""
        return 0.0 if self.stands else time.monotonic() - self.since

    def why(self) -> str:
        """Return why the last attempt to connect failed."""
        return self._found

    def close(self) -> None:
        self._watched.disable_monitor()
        self.monitor.close(0)


def bind(router: Any, address: str) -> None:
    """Bind a socket to an address, or to the first free port of tcp://HOST:FIRST-LAST."""
    host, _, port = address.rpartition(":")
    first, dash, last = port.partition("-")
    for number in range(int(first), int(last) + 1) if dash else ():
        try:
            router.bind(f"{host}:{number}")
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
    if dash:
        raise EnvironmentFault(f"none of the ports {port} is free here",
                               remedy="a wider range: --ports FIRST-LAST")
    router.bind(address)


def resolved(address: str) -> str:
    """Return tcp://NAME:PORT with the address of that name: looking names up later would hold up
    all lines.

    Raises UsageError for a name that nobody knows.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not port.isdigit() or host.startswith("["):
        return address
    if int(port) > LAST_PORT:  # the system would take another one: its last 16 bits
        raise UsageError(f"{address}: there is no such port", expected=f"at most {LAST_PORT}",
                         found=port, remedy="is the number right?")
    try:
        addresses = socket.getaddrinfo(host, int(port), socket.AF_INET6, socket.SOCK_STREAM,
                                       flags=socket.AI_V4MAPPED)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(f"{address}: {error}", expected="tcp://HOST:PORT",
                         remedy="is the name of the host right?") from None
    ip = str(addresses[0][4][0]).removeprefix("::ffff:")
    return f"tcp://[{ip}]:{port}" if ":" in ip else f"tcp://{ip}:{port}"


def send_to(router: Any, peer: bytes, frames: Sequence[Any]) -> str:
    """Sends to a peer of a ROUTER without waiting: SENT; GONE, nobody there; FULL, try later."""
    try:
        router.send_multipart([peer, *frames], zmq.DONTWAIT, copy=len(frames) == 1)
    except zmq.Again:
        return FULL
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return GONE
        raise
    return SENT


def is_readable(socket: Any) -> bool:
    return bool(int(socket.getsockopt(EVENTS)) & READABLE)


def received(socket: Any) -> list[Any] | None:
    """Return the frames of the next message without waiting, or None."""
    if not is_readable(socket):  # a tenth of what zmq.Again takes
        return None
    try:
        return list(socket.recv_multipart(zmq.DONTWAIT, copy=False))
    except zmq.Again:
        return None

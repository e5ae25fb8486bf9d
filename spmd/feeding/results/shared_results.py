"""Results in memory that a worker shares with consumers of its host: nameless, never copied.

A region is a memfd that holds one result. The worker hands it over a Unix socket (SCM_RIGHTS) to a
process of the same user that knows its secret; the consumer maps it, read-only. Short messages go
the same way: for each, ZeroMQ wakes two threads more. Always holds: a region is written again only
after its consumer freed it; it never shrinks.
"""

from __future__ import annotations

import array
import fcntl
import hmac
import mmap
import os
import secrets
import socket
import struct
from collections import deque
from contextlib import suppress

PAGE = mmap.PAGESIZE
MOST_REGIONS = 256  # of one worker: each takes a descriptor at both ends
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
HELLO = struct.Struct("16s32s")  # a consumer's id and the worker's secret
# A region's number and its bytes, with its descriptor; 0 bytes: it is not used any more.
HANDED = struct.Struct("<QQ")
SHORT = 16 << 10  # bytes of a message that goes over the Unix socket
AT_ONCE = 64  # messages of one consumer that are read before the others'


class SharedRegion:
    """Memory for one result, mapped by its worker."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.fd = os.memfd_create("spmd-feed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, size)  # too little memory is said here, not at a write
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self.memory = mmap.mmap(self.fd, size)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        os.close(self.fd)
        try:
            self.memory.close()
        except BufferError:  # an array still looks at it; it goes with that one
            pass


class ResultSharer:
    """Lends regions of shared memory to the consumers on this host, for a worker.

    most: bytes of all regions together. `local`: the name of its socket, `secret`: what it asks.
    """

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self.beside = 0  # bytes of results that are not in regions
        self.local = "spmd-feed-" + secrets.token_hex(8)
        self.secret = secrets.token_hex(16)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind("\0" + self.local)
        self.listening.listen(64)
        self.listening.setblocking(False)
        self.peers: dict[str, socket.socket] = {}
        self._unknown: list[socket.socket] = []
        self._free: dict[str, list[SharedRegion]] = {}
        self._lent: dict[str, tuple[str, SharedRegion]] = {}  # by the id of the result
        self._numbers = 0

    def sockets(self) -> list[socket.socket]:
        return [self.listening, *self._unknown, *self.peers.values()]

    def attend(self) -> None:
        """Takes in new consumers."""
        while True:
            try:
                peer, _ = self.listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError:  # no descriptor is left: they get frames
                break
            peer.setblocking(False)
            if _user_of(peer) != os.getuid() or len(self._unknown) >= 64:
                peer.close()
            else:
                self._unknown.append(peer)
        for peer in list(self._unknown):
            self._greet(peer)

    def heard(self) -> tuple[list[tuple[str, bytes]], list[str]]:
        """Return the messages that have come, each with its consumer, and the consumers that are
        gone."""
        said, gone = [], []
        for who, peer in self.peers.items():
            for _ in range(AT_ONCE):
                try:
                    message = peer.recv(SHORT + 1)
                except BlockingIOError:
                    break
                except OSError:
                    message = b""
                if not message:
                    gone.append(who)
                    break
                said.append((who, message))
        return said, gone

    def say(self, consumer: str, message: bytes) -> bool:
        """Send a message over the local socket; return False where it must go over the network."""
        peer = self.peers.get(consumer)
        return peer is not None and _said(peer, message)

    def _greet(self, peer: socket.socket) -> None:
        try:
            said = peer.recv(256)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._unknown.remove(peer)
        if len(said) == HELLO.size:
            who, secret = HELLO.unpack(said)
            if hmac.compare_digest(secret, self.secret.encode()) and who.isalnum():
                self.leave(who.decode())
                self.peers[who.decode()] = peer
                return
        peer.close()

    def leave(self, consumer: str) -> None:
        """Take back the regions of a consumer that is gone."""
        if peer := self.peers.pop(consumer, None):
            peer.close()
        for result, (whose, region) in list(self._lent.items()):
            if whose == consumer:
                del self._lent[result]
                self._drop(region)
        for region in self._free.pop(consumer, []):
            self._drop(region)

    def lend(self, consumer: str, result: str, size: int) -> SharedRegion | None:
        """Return a region for a result of so many bytes; None where there is no room now: send it
        as frames."""
        peer = self.peers.get(consumer)
        if peer is None or size == 0:
            return None
        mine = self._free.setdefault(consumer, [])
        fitting = [r for r in mine if size <= r.size <= 2 * size + 16 * PAGE]
        if fitting:
            region = min(reversed(fitting), key=lambda r: r.size)  # the one that is warm yet
            mine.remove(region)
        else:
            rounded = -(-size // PAGE) * PAGE
            self._make_room(rounded)
            if not self._fits(rounded):
                return None
            try:
                region = SharedRegion(self._numbers, rounded)
            except OSError:
                return None
            self._numbers += 1
            self.used += rounded
            if not _hand(peer, region):
                self._drop(region)
                return None
        self._lent[result] = (consumer, region)
        return region

    def free(self, result: str) -> None:
        """Free the region of a result that its consumer no longer needs."""
        if result in self._lent:
            whose, region = self._lent.pop(result)
            self._free.setdefault(whose, []).append(region)

    def _make_room(self, size: int) -> None:
        """Release unused regions until so many more bytes fit."""
        for consumer, regions in self._free.items():
            while regions and not self._fits(size):
                region = regions.pop(0)
                with suppress(OSError):  # who keeps it mapped keeps its memory
                    self.peers[consumer].send(HANDED.pack(region.number, 0))
                self._drop(region)

    def _fits(self, size: int) -> bool:
        return self.used + self.beside + size <= self.most and self._count() < MOST_REGIONS

    def _count(self) -> int:
        return len(self._lent) + sum(map(len, self._free.values()))

    def _drop(self, region: SharedRegion) -> None:
        self.used -= region.size
        region.close()

    def close(self) -> None:
        for consumer in list(self.peers):
            self.leave(consumer)
        for peer in self._unknown:
            peer.close()
        self.listening.close()


def _user_of(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("iII", credentials)[1]


def _said(peer: socket.socket, message: bytes) -> bool:
    if len(message) > SHORT:
        return False
    try:
        peer.send(message)
    except OSError:  # too many lie there already, or it is gone
        return False
    return True


def _hand(peer: socket.socket, region: SharedRegion) -> bool:
    try:
        peer.sendmsg([HANDED.pack(region.number, region.size)],
                     [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [region.fd]))])
    except OSError:
        return False
    return True


class ResultReader:
    """The consumer's side, to one worker of its host. Mapped regions stay until it closes."""

    def __init__(self, consumer: str, local: str, secret: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self._memory: dict[int, mmap.mmap] = {}
        self._heard: deque[bytes] = deque()
        try:
            self.socket.connect("\0" + local)
            if _user_of(self.socket) != os.getuid():
                raise ConnectionRefusedError("another user's process")
            self.socket.send(HELLO.pack(consumer.encode(), secret.encode()))
        except OSError:
            self.socket.close()
            raise

    def region(self, number: int) -> mmap.mmap | None:
        """Return the memory of a region that the worker has shared; None where the worker is gone,
        or its number is wrong."""
        while number not in self._memory and self._take_in():  # it may lie behind many messages
            pass
        return self._memory.get(number)

    def say(self, message: bytes) -> bool:
        """Send a message over the local socket; return False where it must go over the network."""
        return _said(self.socket, message)

    def heard(self) -> bytes | None:
        """Return the next message, or None."""
        return self._heard.popleft() if self._heard else None

    def attend(self) -> bool:
        """Map regions and receive messages that have come; return False once the worker has
        ended."""
        for _ in range(AT_ONCE):
            if not (taken := self._take_in()):
                return taken is None
        return True  # there may be more

    def _take_in(self) -> bool | None:
        """Receive one region or message; return None where none has come, False at the end."""
        try:
            said, fds, _, _ = socket.recv_fds(self.socket, SHORT + 1, 1)
        except BlockingIOError:
            return None
        except OSError:
            return False
        if not said:
            return False
        if len(said) != HANDED.size and not fds:
            self._heard.append(said)
            return True
        try:
            self._map(said, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _map(self, said: bytes, fds: list[int]) -> None:
        if len(said) != HANDED.size or len(fds) > 1:
            return
        number, size = HANDED.unpack(said)
        if not fds:
            self._memory.pop(number, None)
            return
        with suppress(OSError):  # what is no memory of a worker
            sealed = fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if sealed and 0 < size <= os.fstat(fds[0]).st_size:
                self._memory[number] = mmap.mmap(fds[0], size, prot=mmap.PROT_READ)

    def close(self) -> None:
        self.socket.close()
        self._memory.clear()  # what arrays still look at goes with them

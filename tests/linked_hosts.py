"""Hosts on this machine whose links can be cut: network namespaces of Linux, for tests.

In: how many others the first host has a link to. Out: contexts in which processes and connections
are a host's own. Always holds: what it makes is gone once it is closed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CUTS = ("down", "one way")


class NoHosts(Exception):
    """Namespaces may not be made here: the command that failed, and what it said."""


class LinkedHosts:
    """Host 0, and others, each at the end of a link of its own."""

    def __init__(self, others: int) -> None:
        self._names = [f"spmd-{os.getpid()}-{k}" for k in range(1 + others)]
        try:
            for name in self._names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            for k, name in enumerate(self._names[1:], 1):
                _ip("-n", self._names[0], "link", "add", f"link{k}", "type", "veth", "peer",
                    "name", "link", "netns", name)
                _ip("-n", self._names[0], "address", "add", f"{self.first(k)}/24", "dev",
                    f"link{k}")
                _ip("-n", name, "address", "add", f"{self.other(k)}/24", "dev", "link")
                _ip("-n", name, "link", "set", "dev", "link", "up")
                self.mend(k)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def first(k: int) -> str:
        """Return the address at which host k reaches host 0."""
        return f"10.77.{k}.1"

    @staticmethod
    def other(k: int) -> str:
        """Return the address at which host 0 reaches host k."""
        return f"10.77.{k}.2"

    @contextmanager
    def inside(self, k: int) -> Iterator[None]:
        """Processes and threads that begin inside the with statement, and connections that are made
        there, are of this host."""
        with open("/proc/thread-self/ns/net") as before, open(
                f"/run/netns/{self._names[k]}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def cut(self, k: int, how: str = "down") -> None:
        """Cut the link to host k: "down", both ends know; "one way", what host 0 sends is lost."""
        if how == "down":
            _ip("-n", self._names[0], "link", "set", "dev", f"link{k}", "down")
        else:
            _ip("-n", self._names[0], "neighbour", "replace", self.other(k), "lladdr",
                "02:00:00:00:00:01", "nud", "permanent", "dev", f"link{k}")

    def mend(self, k: int) -> None:
        """Bring the link to host k back."""
        _ip("-n", self._names[0], "link", "set", "dev", f"link{k}", "up")
        _ip("-n", self._names[0], "neighbour", "flush", "dev", f"link{k}", "nud", "permanent")

    def close(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    command = ["ip", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoHosts(f"{' '.join(command)}: {error}: apt install iproute2") from None
    if done.returncode:
        raise NoHosts(f"{' '.join(command)}: {done.stderr.strip()}")


def _enter(namespace: int) -> None:
    """Have this thread use another namespace from now on."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
        raise NoHosts(f"setns: {os.strerror(ctypes.get_errno())}")

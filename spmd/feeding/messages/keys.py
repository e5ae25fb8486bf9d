"""CURVE keys of feeding: who may connect, and how each side proves who it is.

A folder of keys holds server.key and client.key (public), server.secret and client.secret (their
owner's only), and allowed/NAME.key for further clients: certificates of zmq.auth, or bare keys.
Always holds: a secret is written to no file that others can read, and to no command line.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import zmq as zmq  # the others take it from here
from zmq.auth.certs import create_certificates, load_certificate

from codegen.errors import OutputError, SpmdError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

Z85 = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
KEYS = "SPMD_FEED_KEYS"  # a folder of keys, where none is given
PARTS = ("server.key", "server.secret", "client.key", "client.secret")


class Keys:
    """Holds the keys of one process: the scheduler's public key, a pair of its own, and the keys
    that are allowed.

    server: the scheduler's public key. public, secret: of this process. allowed: public keys.
    server_secret: known to the scheduler only, else "".
    """

    def __init__(self, server: str, public: str, secret: str, allowed: frozenset[str],
                 server_secret: str = "") -> None:
        self.server, self.public, self.secret = server, public, secret
        self.allowed, self.server_secret = allowed, server_secret

    def as_plain(self, with_server: bool = False) -> dict[str, Any]:
        """Return the keys as JSON has them, for a child process."""
        return {"server": self.server, "public": self.public, "secret": self.secret,
                "allowed": sorted(self.allowed),
                "server_secret": self.server_secret if with_server else ""}

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> Keys:
        return cls(plain["server"], plain["public"], plain["secret"],
                   frozenset(plain["allowed"]), plain["server_secret"])


def pair() -> tuple[str, str]:
    """Return a new public key and its secret."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def made_for_a_run() -> Keys:
    """Return new keys that only this run and the processes that it starts know."""
    server, server_secret = pair()
    public, secret = pair()
    return Keys(server, public, secret, frozenset({public}), server_secret)


def make_folder(folder: str) -> Path:
    """Make a folder with a new pair for the scheduler and one for everybody who may connect to
    it."""
    there = Path(folder)
    if any((there / part).exists() for part in PARTS):
        raise UsageError(f"{there}: holds keys already",
                         remedy="name another folder, or remove the old keys first")
    try:
        there.mkdir(parents=True, exist_ok=True)
        os.chmod(there, 0o700)
        for who in ("server", "client"):  # into a folder that only we can look into
            _, secret = create_certificates(there, who)
            os.chmod(secret, 0o600)
            os.rename(secret, there / f"{who}.secret")
    except OSError as error:
        raise OutputError(f"{there}: keys cannot be written: {error.strerror}") from None
    return there


def read_folder(folder: str, *, scheduler: bool = False) -> Keys:
    """Return the keys of a folder. A scheduler needs server.secret; the others client.secret."""
    there = Path(folder)
    server = _read(there / "server.key")
    allowed = {_read(path) for path in sorted((there / "allowed").glob("*.key"))}
    if (there / "client.key").exists():
        allowed.add(_read(there / "client.key"))
    if scheduler:
        return Keys(server, server, "", frozenset(allowed), _secret(there / "server.secret"))
    return Keys(server, _read(there / "client.key"), _secret(there / "client.secret"),
                frozenset(allowed))


def state_folder() -> str:
    """Return the folder where this user's schedulers and clients keep keys and state by default."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "spmd")


def folder_of(folder: str) -> str:
    """Return the folder of keys to use."""
    return folder or os.environ.get(KEYS, "") or os.path.join(state_folder(), "feed-keys")


def keys_of(folder: str, *, scheduler: bool = False) -> Keys:
    """Return the keys of a folder, or of SPMD_FEED_KEYS, or of this user on this machine: the first
    process that needs these makes them."""
    folder = folder or os.environ.get(KEYS, "")
    where = folder_of(folder)
    if not folder and not os.path.exists(where):
        mine = f"{where}.{os.getpid()}"
        make_folder(mine)
        try:
            os.rename(mine, where)  # whole, or not at all
        except OSError:  # another one was faster
            shutil.rmtree(mine)
    return read_folder(where, scheduler=scheduler)


class AllowedKeys:
    """The public keys that may connect: those that a folder has now, as folder_of names it; None:
    the same ones for good."""

    def __init__(self, keys: Iterable[str], folder: str | None) -> None:
        self._keys, self._folder = set(keys), folder
        self._stamp = None if folder is None else _stamp(folder)

    def now(self) -> set[str]:
        """Return the allowed keys. While somebody writes the folder, those that were read before
        count."""
        if self._folder is not None and self._stamp != (now := _stamp(self._folder)):
            with suppress(SpmdError):
                self._keys = set(keys_of(self._folder, scheduler=True).allowed)
                self._stamp = now
        return self._keys


def _stamp(folder: str) -> tuple[Any, ...]:
    """Return a value that changes when a key is added to a folder, or removed from it."""
    there = Path(folder_of(folder))
    stamps = []
    for path in sorted((there / "client.key", there / "allowed", *there.glob("allowed/*.key"))):
        with suppress(OSError):
            stat = path.stat()
            stamps.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(stamps)


def _read(path: Path, secret: bool = False) -> str:
    """Return the public key of a file, or its secret one. UsageError where it holds none."""
    value: bytes | None
    try:
        with path.open("rb") as file:
            value = file.read(100).strip()
        if not Z85.fullmatch(value):
            value = load_certificate(path)[secret]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}",
                         remedy="make keys with: python -m spmd feed keys FOLDER") from None
    except ValueError:  # no certificate
        value = None
    if value is None or not Z85.fullmatch(value):
        kind = "secret" if secret else "public"
        raise UsageError(f"{path}: expected a {kind} key: a certificate as zmq.auth writes it, "
                         "or one line of 40 characters",
                         remedy="copy the file again as it was made")
    return value.decode()


def _secret(path: Path) -> str:
    value = _read(path, secret=True)
    if path.stat().st_mode & 0o077:
        raise UsageError(f"{path}: others than its owner may read this secret",
                         remedy=f"chmod 600 {path}")
    return value

"""What builds keep for later ones, in the user's cache directory: bytes by their content.

In: keys and bytes. Out: the same bytes, or None. SPMD_CACHE: another folder, or "off".
Always holds: an entry is whole or it is not used; a folder that cannot be used is no cache, and no
build fails for it; what was used longest ago goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator

from spmd.files.whole import ENDING, whole
from spmd.launch import limits

CHOSEN = "SPMD_CACHE"
MOST_BYTES = 256 << 20  # of the folder; beyond it the oldest entries go
KEPT = 0.75  # of MOST_BYTES, when it was too much
FORGOTTEN_S = 3600  # after which a part of a file is of a build that was killed
_BLOCK = 4096  # what the smallest file takes
_UNSEEN = 1 / 32  # of MOST_BYTES, which a process writes before it looks at the whole folder again
_unseen: dict[str, int] = {}  # bytes that this process has written since it looked, by folder


class Cache:
    """A folder of files named by what is in them, and of keys, each with such a name in it."""

    def __init__(self, folder: str | None = None, most: int = MOST_BYTES) -> None:
        self.folder = place() if folder is None else folder
        self.most = most
        self.used = False  # something was found

    def get(self, key: str) -> bytes | None:
        """Return what was kept under a key; using it makes it young again."""
        name = self._read(f"{key}.key").decode("ascii", "replace")
        if len(name) != 64 or not name.isalnum():
            return None
        data = self._read(name)
        if hashlib.sha256(data).hexdigest() != name:
            return None
        self.used = True
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps bytes under a key, where that is possible."""
        if not self.folder or 2 * len(data) > self.most:
            return
        name = hashlib.sha256(data).hexdigest()
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            if not self._is_ours():
                return
            self._write(name, data)
            self._write(f"{key}.key", name.encode())
            unseen = _unseen.get(self.folder, self.most) + max(_BLOCK, len(data)) + _BLOCK
            if unseen > self.most * _UNSEEN:
                self._make_room()
                unseen = 0
            _unseen[self.folder] = unseen
        except OSError:
            pass

    def _is_ours(self) -> bool:
        """Return whether nobody else can write there: what is kept will be run."""
        status = os.stat(self.folder)
        return status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def _read(self, name: str) -> bytes:
        path = os.path.join(self.folder, name)
        try:
            if not self.folder or not self._is_ours():
                return b""
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return b""
        try:
            os.utime(path)
        except OSError:  # a folder that can only be read
            pass
        return data

    def _write(self, name: str, data: bytes) -> None:
        """Write a file in one step: whoever reads meanwhile sees the old file or the new one."""
        with whole(os.path.join(self.folder, name), sync=False) as file:
            file.write(data)

    def _make_room(self) -> None:
        entries = sorted(self._entries())
        size = sum(s for _, s, _ in entries)
        aim = self.most * KEPT if size > self.most else size
        for when, bytes_, path in entries:
            if size > aim or (path.endswith(ENDING) and when < time.time() - FORGOTTEN_S):
                size -= bytes_
                with contextlib.suppress(FileNotFoundError):  # another build makes room too
                    os.unlink(path)

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                try:
                    state = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # another build has made room meanwhile
                    continue
                yield state.st_mtime, max(_BLOCK, state.st_size), entry.path


def place() -> str:
    """Return the path of the cache folder; "" where builds are to keep nothing."""
    chosen = os.environ.get(CHOSEN, "")
    if chosen:
        return "" if chosen == "off" else os.path.abspath(chosen)
    base = limits.folder()
    return os.path.join(base, "builds") if base else ""

"""The engine (csrc/) from Python: thin wrappers, one status check at the boundary.

Goes in: addresses of an image and of arrays, and numbers. Comes out: states, text, addresses.
Always holds: importing this imports nothing but the extension; what Python objects an engine object
needs live as long as it does; calls that may take long release the interpreter.
"""

from __future__ import annotations

import os
from collections import namedtuple

from codegen.errors import EnvironmentFault, InternalError, SpmdError, VersionError

from ._engine import ffi, lib

TYPE_CHECKING = False  # typing costs every rank more time than the engine
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

IDLE, RUNNING = lib.SPMD_IDLE, lib.SPMD_RUNNING
FINISHED, ABORTED = lib.SPMD_FINISHED, lib.SPMD_ABORTED
EVERY_RANK: int = lib.SPMD_EVERY_RANK
ALGORITHMS = {
    "auto": lib.SPMD_AUTO,
    "flat": lib.SPMD_FLAT,
    "blocks": lib.SPMD_BLOCKS,
    "ring": lib.SPMD_RING,
}
AXES = 3


def check(status: int, doing: str) -> None:
    """Raises unless status is SPMD_OK; `doing` completes the sentence "while …"."""
    if status == lib.SPMD_OK:
        return
    cause = os.strerror(ffi.errno) if status == lib.SPMD_SYSTEM else ""
    text = ffi.string(lib.spmd_status_text(status)).decode()
    kind: type[SpmdError] = InternalError
    if status in (lib.SPMD_NO_MEMORY, lib.SPMD_SYSTEM):
        kind = EnvironmentFault
    elif status == lib.SPMD_MISMATCH:
        kind = VersionError
    raise kind(f"{text}: {cause}" if cause else text, found=f"while {doing}")


def address_of(data: Any, writable: bool = False) -> Any:
    """A pointer to a buffer's first byte; an int is taken for an address, None for NULL."""
    if isinstance(data, int) or data is None:
        return ffi.cast("char *", data or 0)
    return ffi.from_buffer("char[]", data, require_writable=writable)


def memory_at(address: int, size: int) -> Any:
    """A writable buffer over `size` bytes at an address; valid while its arena is."""
    return ffi.buffer(ffi.cast("char *", address), size)


class Failure(namedtuple("Failure", "code rank superstep site text")):
    """Why a job was aborted. rank and site are -1 where there is none in particular."""

    __slots__ = ()


class RankState(namedtuple("RankState", "process operation superstep site runs done")):
    """Where a rank is. process is 0 before it is loaded, site -1 outside an exchange."""

    __slots__ = ()


class Shard(namedtuple("Shard", "offset extent address")):
    """A rank's part of an array: where it lies in the global one, and its row-major memory."""

    __slots__ = ()


class Arena:
    """Memory for all ranks of a host. `shared`: other processes can attach to it."""

    def __init__(self, size: int, shared: bool) -> None:
        made = ffi.new("spmd_arena **")
        check(lib.spmd_arena_new(size, shared, made), f"mapping {size} bytes")
        self.handle = made[0]

    @classmethod
    def attach(cls, path: str, size: int, nonce: int) -> Arena:
        """The arena of another process; path is its `path`, nonce its `nonce`."""
        made = ffi.new("spmd_arena **")
        check(lib.spmd_arena_attach(path.encode(), size, nonce, made), f"mapping {path}")
        arena = cls.__new__(cls)
        arena.handle = made[0]
        return arena

    @property
    def nonce(self) -> int:
        return int(lib.spmd_arena_nonce(self.handle))

    @property
    def path(self) -> str:
        """Under which other processes of this user can attach until `close_fd`."""
        return f"/proc/{os.getpid()}/fd/{lib.spmd_arena_fd(self.handle)}"

    def close_fd(self) -> None:
        lib.spmd_arena_close_fd(self.handle)

    def free(self) -> None:
        """After the job in it was freed."""
        lib.spmd_arena_free(self.handle)
        self.handle = ffi.NULL


class Library:
    """An image or a library of routines, opened by the dynamic linker."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle = lib.spmd_library_open(os.fsencode(path))
        if self.handle == ffi.NULL:
            raise EnvironmentFault(f"cannot open {path}", found=self._error())

    def _error(self) -> str:
        return str(ffi.string(lib.spmd_library_error()).decode(errors="replace"))

    def symbol(self, name: str) -> int:
        """The address of a symbol."""
        found = lib.spmd_library_symbol(self.handle, name.encode())
        if found == ffi.NULL:
            raise EnvironmentFault(f"no symbol {name} in {self.path}", found=self._error())
        return int(ffi.cast("uintptr_t", found))

    def close(self) -> None:
        check(lib.spmd_library_close(self.handle), f"closing {self.path}")
        self.handle = ffi.NULL


class Job:
    """Ranks first … first + count - 1 of a job of `ranks` ranks, hosted by this process.

    image: address of its spmd_image_table, which must stay loaded. size: ranks along each mesh
    axis. scalars: 64-bit words (a float by its bits). library: addresses by logical number.
    threads, cores: 0 leaves the choice to the engine. Raises InternalError for arguments out of
    range, VersionError for an image of another interface, EnvironmentFault for want of memory.
    """

    def __init__(
        self,
        image: int,
        *,
        ranks: int,
        size: Sequence[int],
        scalars: Sequence[int] = (),
        first: int = 0,
        count: int | None = None,
        threads: int = 0,
        cores: int = 0,
        algorithm: str = "auto",
        library: Sequence[int] = (),
    ) -> None:
        settings = ffi.new("spmd_settings *")
        sizes = ffi.new("int64_t[]", [*size, *[1] * (AXES - len(size))])
        words = ffi.new("int64_t[]", list(scalars) or 1)
        routines = ffi.new("void *[]", [ffi.cast("void *", at) for at in library] or 1)
        settings.image = ffi.cast("void *", image)
        settings.ranks, settings.size = ranks, sizes
        settings.scalar, settings.scalars = words, len(scalars)
        settings.first, settings.count = first, ranks - first if count is None else count
        settings.threads, settings.cores = threads, cores
        settings.algorithm = ALGORITHMS[algorithm]
        settings.library, settings.libraries = routines, len(library)
        made = ffi.new("spmd_job **")
        check(lib.spmd_job_new(settings, made), f"planning a job of {ranks} ranks")
        self.handle = made[0]
        self.arena: Arena | None = None

    @property
    def bytes(self) -> int:
        """That the arena needs, for all ranks of the job."""
        return int(lib.spmd_job_bytes(self.handle))

    @property
    def rank_bytes(self) -> int:
        """The memory of one rank."""
        return int(lib.spmd_job_rank_bytes(self.handle))

    @property
    def threads(self) -> int:
        return int(lib.spmd_job_threads(self.handle))

    def load(self, arena: Arena) -> None:
        """Takes the memory of the hosted ranks; after it scatter, start, wait, gather."""
        self.arena = arena
        check(lib.spmd_job_load(self.handle, arena.handle), "loading the image")

    def scatter(self, array: int, source: Any, shape: Sequence[int], strides: Sequence[int],
                size: int, swap: int = 0, rank: int = EVERY_RANK) -> None:
        """Copies each hosted rank's part of a global array into its shard.

        source: a buffer or the address of the element with all indices 0. strides: bytes. size:
        bytes of an element. swap: reverse every so many bytes, 0 for native byte order.
        """
        view, keep = self._global(address_of(source), shape, strides, size, swap)
        check(lib.spmd_job_scatter(self.handle, array, rank, view), f"scattering input {array}")
        del keep

    def gather(self, array: int, into: Any, shape: Sequence[int], strides: Sequence[int],
               size: int, swap: int = 0, rank: int = EVERY_RANK) -> None:
        """The other way; with rank, that rank's part only (enough for a replicated array)."""
        view, keep = self._global(address_of(into, True), shape, strides, size, swap)
        check(lib.spmd_job_gather(self.handle, array, rank, view), f"gathering array {array}")
        del keep

    def _global(self, base: Any, shape: Sequence[int], strides: Sequence[int], size: int,
                swap: int) -> tuple[Any, Any]:
        extents = ffi.new("int64_t[]", list(shape) or 1)
        steps = ffi.new("int64_t[]", list(strides) or 1)
        view = ffi.new("spmd_global *")
        view.base, view.dims, view.shape, view.stride = base, len(shape), extents, steps
        view.size, view.swap = size, swap
        return view, (base, extents, steps)

    def shard(self, array: int, rank: int, dims: int) -> Shard:
        """A hosted rank's part of an array of so many dims."""
        offset, extent = ffi.new("int64_t[8]"), ffi.new("int64_t[8]")
        address = ffi.new("void **")
        status = lib.spmd_job_shard(self.handle, array, rank, offset, extent, address)
        check(status, f"looking for array {array} of rank {rank}")
        at = int(ffi.cast("uintptr_t", address[0]))
        return Shard(tuple(offset[0:dims]), tuple(extent[0:dims]), at)

    def start(self, given: Sequence[int] | bytes = b"") -> None:
        """Starts a run on the engine's own threads. given: 1 per input that was scattered."""
        check(lib.spmd_job_start(self.handle, ffi.new("uint8_t[]", bytes(given) + b"\0")),
              "starting the job")

    def wait(self, timeout_ms: int = 50) -> int:
        """RUNNING (after the timeout, or because text is waiting), FINISHED, ABORTED or IDLE."""
        return int(lib.spmd_job_wait(self.handle, timeout_ms))

    def text(self, room: int = 1 << 16) -> bytes:
        """Printed lines that were not taken yet, each with its newline; b"" when there are none."""
        into = ffi.new("char[]", room)
        return bytes(ffi.buffer(into, lib.spmd_job_text(self.handle, into, room)))

    def abort(self, code: int, text: str, rank: int = -1) -> None:
        """Ends the run of all processes in this arena; the first failure wins."""
        lib.spmd_job_abort(self.handle, code, rank, text.encode()[: lib.SPMD_TEXT_BYTES - 1])

    def failure(self) -> Failure | None:
        seen = ffi.new("spmd_failure *")
        if not lib.spmd_job_failure(self.handle, seen):
            return None
        text = ffi.string(seen.text).decode(errors="replace")
        return Failure(seen.code, seen.rank, seen.superstep, seen.site, text)

    def watch(self, rank: int) -> RankState:
        """Where any rank of the arena is, hosted here or by another process."""
        seen = ffi.new("spmd_rank_state *")
        check(lib.spmd_job_watch(self.handle, rank, seen), f"watching rank {rank}")
        return RankState(seen.process, seen.operation, seen.superstep, seen.site, seen.runs,
                         seen.done)

    def free(self) -> bool:
        """False: a thread is still inside a compute phase and nothing was freed."""
        if self.handle == ffi.NULL:
            return True
        if lib.spmd_job_free(self.handle) == lib.SPMD_BUSY:
            return False
        self.handle = ffi.NULL
        return True

"""What the engine needs of MPI where the ranks of a job share no memory.

In: a communicator, through Processes. Out: functions and handles as csrc/engine.h wants them.
Always holds: the job's messages travel in a communicator of its own; the engine is compiled without
any MPI: its functions are those of the library that mpi4py has loaded.
"""

from __future__ import annotations

from codegen.errors import EnvironmentFault
from spmd.engine import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.launch.hosts import Hosts
    from spmd.launch.processes import Processes

_FUNCTIONS = {
    "isend": b"MPI_Isend", "issend": b"MPI_Issend", "irecv": b"MPI_Irecv", "test": b"MPI_Test",
    "error_string": b"MPI_Error_string",
}


class Transport:
    """MPI for one job, while the job lives. settings: a `spmd_mpi *`."""

    def __init__(self, processes: Processes, hosts: Hosts) -> None:
        MPI = processes.mpi()
        _check_library(MPI, processes.comm, hosts)
        self.comm = processes.comm.Dup()
        library = lib.spmd_library_open(MPI.__file__.encode())
        functions = {
            name: lib.spmd_library_symbol(library, symbol) for name, symbol in _FUNCTIONS.items()
        }
        missing = [symbol.decode() for name, symbol in _FUNCTIONS.items() if not functions[name]]
        if missing:
            raise EnvironmentFault(
                f"the MPI library has no {missing[0]}", found=MPI.Get_library_version().strip(),
                remedy="--transport shm, on one host",
            )
        handles = {
            "handle_bytes": MPI._sizeof(MPI.Comm),
            "comm": ffi.cast("int64_t", MPI._handleof(self.comm)),
            "byte": ffi.cast("int64_t", MPI._handleof(MPI.BYTE)),
        }
        self.settings: Any = ffi.new("spmd_mpi *", {**functions, **handles})

    def close(self) -> None:
        """Close MPI's resources of the job. Every process must come."""
        self.comm.Free()


def _check_library(MPI: Any, comm: Any, hosts: Hosts) -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise EnvironmentFault(
            "MPI was started for one thread only",
            expected="MPI_THREAD_MULTIPLE: the engine's threads send and receive",
            found=f"thread level {MPI.Query_thread()}",
            remedy='mpi4py.rc.thread_level = "multiple" before MPI is imported, '
            "an MPI built with threads, or --transport shm on one host",
        )
    widest = max(b - a for a, b in zip(hosts.first, hosts.first[1:]))
    most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767  # the least that MPI promises
    if widest * widest > most:
        raise EnvironmentFault(
            f"{widest} ranks in one process are more than the tags of this MPI can tell apart",
            expected=f"at most {int(most**0.5)} ranks in each process", found=str(widest),
            remedy="more processes, or fewer ranks",
        )

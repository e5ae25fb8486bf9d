"""One MPI job on several agents: what its launcher is told, so that our program starts its daemons.

In: the agents of a job with their numbers of ranks. Out: names of hosts, a list of them in a file,
the launcher's environment. Always holds: Hydra (MPICH) and PRRTE (Open MPI) call that program as
they would call ssh; nothing of one machine's environment reaches ranks on another.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence

from spmd.feeding.host.machine import interface_of, own_address

REMOTE_START = "spmd.feeding.jobs.remote_start"
# Where ranks run on each agent, and its Python: daemons hand their own environment on.
FOLDER, PYTHON = "SPMD_JOB_FOLDER", "SPMD_JOB_PYTHON"
RANK = ["sh", "-c", f'cd "${FOLDER}" && exec "${PYTHON}" -m spmd "$@"', "sh"]
EVERYWHERE = "/"  # a folder that all machines have: launchers start ranks in their own
# Agents inside an allocation of these are not the hosts that it names.
ALLOCATIONS = "^slurm,pbs,lsf,gridengine"

Places = Sequence[tuple[str, int]]  # [host, ranks], in the order of ranks; each has its own name


def launcher() -> list[str]:
    """Return the words of the launcher of a job that names none: mpirun beside our Python, if it is
    there, as its library is."""
    here = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"
    return [shutil.which("mpirun", path=here) or "mpirun", "-n", "{ranks}"]


def prepare(folder: str, places: Places, connect: str, *more: str) -> dict[str, str]:
    """Write what launchers read into a folder, and return the environment that leads them there.
    connect: the scheduler's address, by which our own is found. more: what our program is told."""
    files = {}
    for family, between in (("hydra", ":"), ("prrte", " slots=")):
        files[family] = os.path.join(folder, f"hosts.{family}")
        with open(files[family], "w") as file:
            file.writelines(f"{host}{between}{ranks}\n" for host, ranks in places)
    program = os.path.join(folder, "remote-start")
    hosts = ",".join(host for host, _ in places)
    words = [sys.executable, "-P", "-m", REMOTE_START, connect, *more, hosts]
    with open(program, "w") as file:
        file.write(f"#!/bin/sh\nexec {shlex.join(words)} \"$@\"\n")
    os.chmod(program, 0o700)
    # Open MPI calls shared memory by the host's name, which agents of one machine have in common.
    apart = {"OMPI_MCA_btl": "^sm", "OMPI_MCA_coll": "^han"}
    alike = any(host.endswith(f"-{k}") for k, (host, _) in enumerate(places))
    # Daemons come back to the address of this interface: a host's name may mean nothing elsewhere.
    way = os.environ.get("HYDRA_IFACE") or interface_of(own_address(connect))
    return {
        **({"HYDRA_IFACE": way} if way else {}), **(apart if alike else {}),
        # MPICH, "Using the Hydra Process Manager". AUTOFORK: it would take a host for its own.
        "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": program, "HYDRA_LAUNCHER_AUTOFORK": "0",
        "HYDRA_HOST_FILE": files["hydra"], "HYDRA_RMK": "user", "HYDRA_ENV": "none",
        # Open MPI 5, prte_info --param all all. The agents start all daemons, not one another's.
        "PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": program,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1", "PRTE_MCA_prte_do_not_resolve": "1",
        "PRTE_MCA_prte_default_hostfile": files["prrte"], "PRTE_MCA_ras": ALLOCATIONS,
        # As many ranks as each has slots; not those of each job on the same first cores.
        "PRTE_MCA_rmaps_default_mapping_policy": "slot",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }

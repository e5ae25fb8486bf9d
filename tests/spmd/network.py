"""Two hosts on one machine: network namespaces with names and addresses of their own.

Always holds: nothing is left; the namespaces live as long as the processes that hold them.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from tests.conftest import PATIENCE

ADDRESSES = {"hosta": "10.77.0.1", "hostb": "10.77.0.2"}
HOLD = "mount -t sysfs none /sys && ip link set lo up && echo ready && exec sleep 600"


class Network:
    """Use as a context. `agent`: what a launcher calls instead of ssh."""

    def __init__(self, folder: Path) -> None:
        self.agent = folder / "agent"
        self.holders: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Network:
        """Raises OSError where this machine does not permit it."""
        tools = [shutil.which(tool) for tool in ("unshare", "nsenter", "ip")]
        if None in tools:
            raise OSError("needs unshare, nsenter and ip")
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        for name in ADDRESSES:
            self.holders[name] = subprocess.Popen(
                ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", HOLD],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
        for holder in self.holders.values():
            if holder.stdout is None or holder.stdout.readline() != "ready\n":
                raise OSError("namespaces are not permitted here")
        a, b = (str(holder.pid) for holder in self.holders.values())
        _run("ip", "link", "add", "ve0", "netns", a, "type", "veth", "peer", "name", "ve0",
             "netns", b)
        for name, address in ADDRESSES.items():
            self.inside(name, "sh", "-c", f"hostname {name}; ip addr add {address}/24 dev ve0; "
                        "ip link set ve0 up")
        deadline = time.monotonic() + PATIENCE
        for name in ADDRESSES:
            while self.inside(name, "cat", "/sys/class/net/ve0/operstate") != "up\n":
                if time.monotonic() > deadline:
                    raise OSError("the link does not come up")
                time.sleep(0.05)
        places = "".join(
            f"{ADDRESSES[name]}) pid={holder.pid}; shift; break;; "
            for name, holder in self.holders.items()
        )
        self.agent.write_text(
            "#!/bin/sh\n# options, the address of a host, then a command for a shell\n"
            f'while [ $# -gt 0 ]; do case "$1" in {places}*) shift;; esac; done\n'
            'exec nsenter -t $pid -n -u -i -m -- sh -c "$*"\n'
        )
        self.agent.chmod(0o755)

    def enter(self, name: str, folder: Path) -> list[str]:
        """Return the words to put before a command that runs on one of the hosts."""
        return ["nsenter", "-t", str(self.holders[name].pid), "-n", "-u", "-i", "-m", "--",
                "env", "-C", str(folder)]

    def inside(self, name: str, *argv: str) -> str:
        return _run(*self.enter(name, Path("/")), *argv)

    def __exit__(self, *_: object) -> None:
        for holder in self.holders.values():
            holder.kill()
            holder.communicate()


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr}")
    return done.stdout

"""What feeding asks of a machine: its name, its address, its memory, and when it is free."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import socket
import struct
import time
from contextlib import suppress

from codegen.errors import UsageError

SIOCGIFADDR = 0x8915  # of Linux: the address of an interface
PORTS = "SPMD_FEED_PORTS"  # at which workers listen, and the scheduler of one command


def host_name() -> str:
    """Return a name that two processes have in common only if they can share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def own_address(connect: str) -> str:
    """Return the address of this machine by which the scheduler's network reaches it."""
    host, _, port = connect.removeprefix("tcp://").rpartition(":")
    try:
        family, kind, protocol, _, to = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(to)  # sends nothing: it only chooses the way
            address = str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UsageError(f"no way to the scheduler at {connect}: {error}",
                         expected="tcp://HOST:PORT") from None
    address = address.removeprefix("::ffff:")
    return f"[{address}]" if ":" in address else address


def interface_of(address: str) -> str:
    """Return the network interface that has an IPv4 address; "" for one of this machine alone, or
    where none has it."""
    if address.startswith("127."):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                asked = struct.pack("256s", name.encode())
                packed = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)[20:24]
                if socket.inet_ntoa(packed) == address:
                    return name
    return ""


def ports_of(ports: str, processes: int, mine: str) -> str:
    """Return the range FIRST-LAST of ports at which workers listen: `ports`, or SPMD_FEED_PORTS
    where other machines can reach them; else "*", any. Raises UsageError for another text, or fewer
    ports than workers."""
    word = ports or ("" if mine == "127.0.0.1" else os.environ.get(PORTS, ""))
    if not word:
        return "*"
    many = len(port_range(word))
    if many < processes:
        raise UsageError(f"ports {word}: fewer than workers", expected=f"{processes} or more",
                         found=f"{many}", remedy="a wider --ports FIRST-LAST, or fewer --processes")
    return word


def port_range(word: str) -> range:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", word, re.ASCII)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise UsageError(f"{word!r} is no range of ports", expected="FIRST-LAST, as 40000-40099",
                         remedy=f"--ports, or {PORTS}")
    return range(first, last + 1)


def available_memory() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 30


def memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since the machine
    started."""
    with open("/proc/vmstat") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))


def lower(wanted: int, most: int) -> int:
    """Return the limit that may be set where `most` is the hard one."""
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def allow_descriptors(wanted: int) -> None:
    """Raise the limit of descriptors to so many, or to the hard limit: a connection takes five."""
    now, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now < (most := lower(wanted, hard)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def hours(free: str) -> tuple[int, int] | None:
    """Return hours such as "20:00-06:00" in minutes of the day. Raises UsageError for another
    text."""
    if not free:
        return None
    match = re.fullmatch(r"(\d\d):(\d\d)-(\d\d):(\d\d)", free)
    minutes = [int(h) * 60 + int(m) for h, m in (match.groups()[:2], match.groups()[2:])] if (
        match) else []
    if len(minutes) != 2 or max(minutes) >= 24 * 60 or minutes[0] == minutes[1]:
        raise UsageError(f"--free {free!r}: expected hours such as 20:00-06:00")
    return minutes[0], minutes[1]


def is_free(span: tuple[int, int] | None, now: time.struct_time | None = None) -> bool:
    if span is None:
        return True
    clock = now or time.localtime()
    minute = clock.tm_hour * 60 + clock.tm_min
    begin, end = span
    return begin <= minute < end if begin < end else not end <= minute < begin

"""How much memory a job may take on this host, and how amounts of it are written."""

from __future__ import annotations

import resource


def bytes_text(count: int) -> str:
    """Return bytes as people read them: "12.1 KiB" for 12,345."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def available_memory() -> int:
    """Return bytes that can be taken now without swapping, under the limits of this control
    group."""
    have = 1 << 62
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    have = 1024 * int(line.split()[1])
                    break
    except OSError:
        pass
    for folder in _control_groups():
        limit, used = _number(f"{folder}/memory.max"), _number(f"{folder}/memory.current")
        if limit is not None and used is not None:
            have = min(have, limit - used + _cache(f"{folder}/memory.stat"))
    return max(0, have)


def address_space() -> int:
    """Return bytes that this process may still map, under its own limit (ulimit -v)."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    try:
        with open("/proc/self/statm") as file:
            return max(0, limit - int(file.read().split()[0]) * resource.getpagesize())
    except OSError:
        return limit


def memory_limit() -> int:
    """Return bytes that the control groups of this process may take together; 0 where none is
    limited."""
    limits = [_number(f"{folder}/memory.max") for folder in _control_groups()]
    return min((limit for limit in limits if limit is not None), default=0)


def _control_groups() -> list[str]:
    """Return folders of this process's control group and of all above it, version 2."""
    try:
        with open("/proc/self/cgroup") as file:
            paths = [line[3:].strip() for line in file if line.startswith("0::")]
    except OSError:
        return []
    folders = []
    for path in paths:
        parts = [part for part in path.split("/") if part]
        for k in range(len(parts) + 1):
            folders.append("/".join(["/sys/fs/cgroup", *parts[:k]]))
    return folders


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # no such limit, or "max"
        return None


def _cache(path: str) -> int:
    """Return bytes of files that the kernel drops when memory is needed."""
    try:
        with open(path) as file:
            return sum(
                int(line.split()[1])
                for line in file
                if line.startswith(("inactive_file ", "active_file "))
            )
    except OSError:
        return 0

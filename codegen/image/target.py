"""The instruction set an image is built for: a psABI level, named the same by gcc and LLVM.

Always holds: importing this imports nothing outside the standard library.
"""

from __future__ import annotations

import os

from codegen.errors import UsageError

# What each level adds, as /proc/cpuinfo spells it (x86-64 psABI, section 3.1.1).
_ADDS = {
    "x86-64": (),
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
_OTHERS = {"aarch64": "armv8-a"}
# What people call a level.
_MARKS = {"x86-64": "SSE2", "x86-64-v2": "SSE4.2", "x86-64-v3": "AVX2", "x86-64-v4": "AVX-512"}


def native() -> str:
    """Return the highest level of this machine."""
    machine = os.uname().machine
    if machine not in ("x86_64", "AMD64"):
        return _OTHERS.get(machine, machine)
    have = host_features()
    best = "x86-64"
    for level, adds in _ADDS.items():
        if not have >= set(adds):
            break
        best = level
    return best


def mark(level: str) -> str:
    """Return the instruction set that a level is known by, for messages."""
    return _MARKS.get(level, level)


def host_features() -> set[str]:
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith(("flags", "Features")):
                return set(line.partition(":")[2].split())
    return set()


def resolve(name: str) -> str:
    """Return a target as the user names it; "native" is this machine. Raises UsageError."""
    if name == "native":
        return native()
    if name in _ADDS or name in _OTHERS.values():
        return name
    raise UsageError(
        f"no target {name}", expected=f"native, {', '.join(_ADDS)}", found=name,
        remedy="--target native builds for this machine",
    )


def features(target: str) -> list[str]:
    """Return the CPU features that code for this target may use beyond the baseline."""
    out: list[str] = []
    for level, adds in _ADDS.items():
        out += adds
        if level == target:
            return out
    return []


def describe(target: str) -> dict[str, object]:
    """Return the manifest's description of a target."""
    machine = "x86-64" if target in _ADDS else "aarch64"
    return {"machine": machine, "level": target, "features": features(target)}

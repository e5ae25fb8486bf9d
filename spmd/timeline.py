"""What every rank did when: a timeline for a trace viewer, and a profile as a table.

In: a job that has run with its times kept. Out: a file in the Chrome trace format, which
ui.perfetto.dev and chrome://tracing open, and rows of numbers by operation.
Always holds: the events stay with the ranks until the run is over; only process 0 has all of them.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from codegen.errors import OutputError
from spmd.engine import ffi, lib
from spmd.files.whole import whole
from spmd.launch.job import Job
from spmd.launch.memory import bytes_text
from spmd.launch.sizes import ranks_text
from spmd.pipeline_positions import positions_of

EVENT, TOTAL = (ffi.sizeof(name) // 8 for name in ("spmd_event", "spmd_total"))  # numbers in each
NS = 1e9  # nanoseconds of a second
_OF_FEEDS = {"take": "batch of", "more": "whether there is more of", "send": "values to"}


class RankEvents:
    """One rank's events and totals. dropped: events that there was no room for."""

    def __init__(self, process: int, rank: int, count: int, events: bytes, totals: bytes) -> None:
        self.process, self.rank = process, rank
        self.numbers, self.totals = array("q", events), array("q", totals)
        self.dropped = count - len(self.numbers) // EVENT

    def events(self) -> Iterator[tuple[int, ...]]:
        """Yield begin, end, busy (nanoseconds), bytes, operation, whether it is a wait,
        position."""
        for k in range(0, len(self.numbers), EVENT):
            yield tuple(self.numbers[k : k + EVENT])

    def total(self, operation: int) -> tuple[int, ...]:
        """Return how often an operation ran, its time and its busy time in nanoseconds, the bytes
        that it moved, and the longest run in nanoseconds."""
        return tuple(self.totals[operation * TOTAL : (operation + 1) * TOTAL])


def gather(job: Job) -> list[RankEvents]:
    """Return the times of all ranks, in process 0; nothing elsewhere. Every process must come."""
    return [RankEvents(*row) for rows in job.processes.gather_to_first(_mine(job)) for row in rows]


def cost_of_checks(job: Job) -> tuple[float, float]:
    """Return, for the ranks of this process, once they have run, the seconds that checks took,
    about, and all seconds but those of waiting; both are means."""
    rows, ranks = job.manifest["operations"], [RankEvents(*row) for row in _mine(job)]
    busy = [sum(rank.total(row["number"])[2] for rank in ranks) / len(ranks) / NS for row in rows]
    return sum(t * row.get("checking", 0.0) for t, row in zip(busy, rows)), sum(busy)


def _mine(job: Job) -> list[Any]:
    setup, number = job.setup, job.processes.number
    rows = len(job.manifest["operations"])
    events, totals = ffi.new("spmd_event **"), ffi.new("spmd_total **")
    mine = []
    for rank in range(setup.first, setup.first + setup.count):
        count = lib.spmd_job_events(job._job, rank, events, totals)
        kept = min(count, job.events)
        mine.append((
            number, rank, count, bytes(ffi.buffer(events[0], kept * ffi.sizeof("spmd_event"))),
            bytes(ffi.buffer(totals[0], rows * ffi.sizeof("spmd_total"))),
        ))
    return mine


# ---- timeline --------------------------------------------------------------------------------


def write(path: str, job: Job, ranks: list[RankEvents]) -> str:
    """Write the timeline to a file and return the line to print about it. Raises OutputError."""
    rows, names = job.manifest["operations"], job.setup.hosts.names
    begins, positions = _host_begins(job, ranks), positions_of(job)
    path = os.path.realpath(path)
    try:
        with whole(path) as file:
            file.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')
            for process, host in enumerate(names):
                file.write(_line({"ph": "M", "pid": process, "name": "process_name",
                                  "args": {"name": f"process {process} on {host}"}}))
            for rank in ranks:
                base = begins[job.setup.hosts.hosts[rank.process]]
                file.write(_line({"ph": "M", "pid": rank.process, "tid": rank.rank,
                                  "name": "thread_name", "args": {"name": f"rank {rank.rank}"}}))
                for position, events in groupby(rank.events(), lambda event: event[-1]):
                    of_tick = list(events)
                    doing = positions and positions.work_of(position, rank.rank)
                    if doing and not doing.ended:
                        file.write(_line(_tick(rank, of_tick, base, doing.action_text())))
                    for event in of_tick:
                        file.write(_line(_slice(rank, event, base, rows)))
            file.write(b'{"ph": "M", "pid": 0, "name": "process_labels"}\n]}\n')  # without a comma
    except OSError as error:
        raise OutputError(f"timeline: cannot write {path}: {error.strerror}") from None
    dropped = sum(rank.dropped for rank in ranks)
    text = f"timeline: {path} (open it in ui.perfetto.dev)"
    if dropped:
        text += f"; the last {dropped:,} events had no room"
    if job.setup.hosts.count > 1:
        text += "; the clocks of the hosts are set to one at the first event of each"
    return text


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b",\n"


def _host_begins(job: Job, ranks: list[RankEvents]) -> dict[int, int]:
    """Return the first event of every host: each has a clock of its own."""
    begins: dict[int, int] = {}
    for rank in ranks:
        host = job.setup.hosts.hosts[rank.process]
        first = min(rank.numbers[::EVENT], default=0)
        begins[host] = min(begins.get(host, first), first)
    return begins


def _tick(rank: RankEvents, events: list[tuple[int, ...]], base: int, name: str) -> dict[str, Any]:
    """Return the slice of a tick, which lies around those of its operations."""
    begin, end = min(e[0] for e in events), max(e[1] for e in events)
    return {"ph": "X", "pid": rank.process, "tid": rank.rank, "ts": (begin - base) / 1e3,
            "dur": (end - begin) / 1e3, "cat": "tick", "name": name}


def _slice(
    rank: RankEvents, event: tuple[int, ...], base: int, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    begin, end, busy, moved, operation, waits, _ = event
    row = rows[operation] if operation < len(rows) else {}
    kind = row.get("kind", "operation")
    args: dict[str, Any] = {"source": f"{_place(row)}: {row.get('text', '')}"}
    if kind != "compute" and not waits:
        args |= {"axes": row.get("axes", []), "bytes": moved, "wait us": (end - begin - busy) / 1e3}
    return {
        "ph": "X", "pid": rank.process, "tid": rank.rank, "ts": (begin - base) / 1e3,
        "dur": (end - begin) / 1e3, "cat": "wait" if waits else kind,
        "name": _waits(row) if waits else f"{_title(row)} {_place(row)}".strip(), "args": args,
    }


def _waits(row: dict[str, Any]) -> str:
    return f'waits for feed "{row["feed"]}"' if "feed" in row else "wait"


def _title(row: dict[str, Any]) -> str:
    if "feed" in row:
        return f'{_OF_FEEDS[str(row["kind"])]} feed "{row["feed"]}"'
    return str(row.get("kind", "operation")).replace("_", "-")


def _place(row: dict[str, Any]) -> str:
    """Return the place of a row: heat.py:36, or heat.py:39-41 for a phase that several lines
    became."""
    place = str(row.get("place", ""))
    first, last = row.get("lines", (0, 0))
    return f"{place.rpartition(':')[0]}:{first}-{last}" if first < last else place


# ---- profile ---------------------------------------------------------------------------------


def profile(job: Job, ranks: list[RankEvents]) -> list[dict[str, Any]]:
    """Return a row for every operation that ran, the longest first. Seconds are means over the
    ranks.

    imbalance: of the time without waiting, the largest over the mean. bytes: brought to a rank, the
    mean; bandwidth: bytes over the time without waiting, per second and rank.
    """
    rows = []
    for row in job.manifest["operations"]:
        of_feed = {"feed": row["feed"]} if "feed" in row else {}
        totals = [rank.total(row["number"]) for rank in ranks]
        count, time, busy, moved, longest = (list(column) for column in zip(*totals))
        if not sum(count):
            continue
        mean = sum(busy) / len(ranks)
        rows.append({
            "operation": row["number"], "kind": row["kind"], "axes": row.get("axes", []),
            "place": _place(row), "text": row.get("text", "").strip(),
            "count": max(count), "seconds": sum(time) / len(ranks) / NS,
            "waiting": 1 - sum(busy) / max(1, sum(time)), "longest": max(longest) / NS,
            "imbalance": max(busy) / mean if mean else 1.0, "bytes": sum(moved) // len(ranks),
            "bandwidth": sum(moved) / (sum(busy) / NS) if sum(moved) and sum(busy) else 0.0,
            **of_feed,
        })
    return sorted(rows, key=lambda row: -row["seconds"])


HEAD = ("time", "share", "waits", "turns", "longest", "uneven", "bytes", "rate", "operation")
_WIDTHS = (10, 6, 6, 8, 10, 7, 10, 12)


def profile_text(ranks: int, rows: list[dict[str, Any]]) -> str:
    """Return the profile as a table."""
    lines = [profile_title(ranks, rows)]
    for cells in (HEAD, *profile_cells(rows)):
        numbers = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS))
        lines.append(f"{numbers}  {cells[-1]}")
    whole = sum(row["seconds"] for row in rows) or 1.0
    waiting = sum(row["seconds"] * row["waiting"] for row in rows) / whole
    lines.append(f"waiting: {waiting:.1%} of the time")
    for feed in dict.fromkeys(row["feed"] for row in rows if "feed" in row):
        waiting = sum(row["seconds"] * row["waiting"] for row in rows if row.get("feed") == feed)
        lines.append(f'waiting for feed "{feed}": {waiting / whole:.1%} of the time')
    return "\n".join(lines)


def profile_title(ranks: int, rows: list[dict[str, Any]]) -> str:
    whole = sum(row["seconds"] for row in rows) or 1.0
    return (f"profile: {time_text(whole)} on each of {ranks_text(ranks)}, the mean; "
            "times are of all turns together")


def profile_cells(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of every row of the table, under HEAD."""
    whole = sum(row["seconds"] for row in rows) or 1.0
    for row in rows:
        exchange = row["kind"] != "compute"
        over = f" over {', '.join(row['axes'])}" if row["axes"] else ""
        yield (
            time_text(row["seconds"]), f"{row['seconds'] / whole:.1%}",
            f"{row['waiting']:.1%}" if exchange else "", str(row["count"]),
            time_text(row["longest"]), f"{row['imbalance']:.2f}x",
            bytes_text(row["bytes"]) if exchange else "",
            f"{bytes_text(int(row['bandwidth']))}/s" if row["bandwidth"] else "",
            f"{_title(row)}{over}" + (f", {row['place']}: {row['text']}" if row["place"] else ""),
        )


def time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds:.0f} s"
    return f"{seconds / 1e-9:.0f} ns"

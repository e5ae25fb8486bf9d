"""What `feed status` and `feed top` print: tables of an overview, of all pipelines or of one.

In: what overview() gives. Out: text that fits a terminal.
Always holds: what is left out is counted, and said where all of it is.
"""

from __future__ import annotations

import textwrap
from typing import Any

from spmd.data.settings import Settings

MOST_ROWS = 20  # of runs, and of machines
WIDTH = 100  # of warnings, where nobody says how wide a terminal is

# Heads of columns. > numbers stand on the right; - is left out where the terminal is narrow, the
# last one first.
PIPELINES = ("pipeline", "priority>", "state", "workers>", "needs>", "taken/s>", "starved>",
             "user-", "queued>-", "made/s>-")
RUNS = ("run", "pipeline", "ranks", "workers>", "needs>", "taken/s>", "starved>", "batches>-",
        "host-", "queued>-", "could/s>-")
JOBS = ("job", "state", "ranks>", "on", "for", "status>", "start>-")
MACHINES = ("agent on", "kind", "workers>", "busy>", "queued>", "free slots>", "a worker makes")
WORKERS = ("worker", "agent on", "kind", "its part>", "makes/s>", "busy>", "queued>")

Row = list[str]


def table_text(seen: dict[str, Any], width: int = 0) -> str:
    """Return the tables of the whole status. width: of the terminal; 0 cuts no line."""
    lines = [_head(seen)]
    lines += _aligned(PIPELINES, [_pipeline(p) for p in seen["pipelines"]], width)
    lines += _shortened(RUNS, [_run(c) for c in seen["consumers"]], "ranks", width)
    lines += _shortened(JOBS, [_job(j) for j in reversed(seen["jobs"])], "jobs", width)
    lines += _shortened(MACHINES, [_machine(seen, a) for a in seen["agents"]], "agents", width)
    if not seen["pipelines"]:
        lines += ["", "no pipeline was submitted yet: python -m spmd feed submit FILE.py "
                  f"--connect {seen['scheduler']['address']}"]
    return _cut(lines, width) + _warned(seen["warnings"], width)


def pipeline_text(seen: dict[str, Any], name: str, width: int = 0) -> str:
    """Return the status of one pipeline, with all its ranks and workers."""
    row = next(p for p in seen["pipelines"] if p["name"] == name)
    runs = [c for c in seen["consumers"] if c["pipeline"] == name]
    mine = {c["consumer"] for c in runs}
    parts = {w["worker"]: sum(s for c, s in w["shares"].items() if c in mine)
             for w in seen["workers"]}
    lines = [_head(seen), *_aligned(PIPELINES, [_pipeline(row)], width),
             "", f"from {row['file']}, {_versions(row)}"]
    if row["spent"]:
        lines.append("spent up to now: " + ", ".join(
            _spent(row, resource) for resource in row["spent"]))
    usual = Settings().as_json()
    changed = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
               for key, value in row["settings"].items() if value != usual.get(key)]
    lines += textwrap.wrap("settings: " + (", ".join(changed) or "as usual"), width or WIDTH,
                           subsequent_indent="          ")
    lines += _aligned(RUNS, [_run(c) for c in runs], width)
    lines += _aligned(WORKERS, [
        [w["worker"][:8], w["host"], w["device"], f"{parts[w['worker']]:.0%}",
         _number(w["rates"].get(name)), f"{w['busy']:.0%}", f"{w['queue']}"]
        for w in seen["workers"] if parts[w["worker"]]], width)
    lines += _aligned(JOBS, [_job(j) for j in seen["jobs"] if j["pipeline"] == name], width)
    about = [text for text in seen["warnings"]
             if text.startswith((f"{name} ", f"{name}/")) or f" of {name} starve" in text]
    return _cut(lines, width) + _warned(about, width)


def job_text(job: dict[str, Any]) -> str:
    """Return the status of one job: where and how it runs, how it ended, its last lines."""
    lines = _aligned(JOBS, [_job(job)], 0)[1:]
    if condition := job["asked"]["until"]:
        lines += ["", f"until {condition}"]
    if job["why"]:
        lines += ["", f"{'waits' if job['state'] == 'pending' else 'why'}: {job['why']}"]
    if job["said"]:
        lines += ["", "it said last:", *(f"    {line}" for line in job["said"])]
    return "\n".join(lines)


def _head(seen: dict[str, Any]) -> str:
    head = seen["scheduler"]
    workers, agents = len(seen["workers"]), len(seen["agents"])
    return (f"{head['address']}, up {_duration(head['uptime_s'])}: {workers} worker"
            f"{'s' * (workers != 1)} of {agents} agent{'s' * (agents != 1)}")


def _pipeline(p: dict[str, Any]) -> Row:
    return [p["name"], f"{p['priority']:g}", p["state"], _own(p["workers"], p["spare"]),
            _number(p["needs"]), _number(p["taken_per_s"]),
            f"{p['starved']:.1%}" if p["consumers"] else "-", p["user"], f"{p['queued']}",
            _number(p["made_per_s"])]


def _own(workers: int, spare: int) -> str:
    """Return numbers of workers as text: 2+5 for two of its own, and the spare time of five."""
    return f"{workers}+{spare}" if spare else f"{workers}"


def _run(c: dict[str, Any]) -> Row:
    return [c["run"], c["pipeline"], c["ranks"].removeprefix("ranks ").removeprefix("rank "),
            _own(len(c["workers"]), len(c["spare"])), _number(c["needs"]),
            _number(c["taken_per_s"]), f"{c['starved']:.1%}", f"{c['batches']}", c["host"],
            f"{c['queued']}", _number(c["rate"])]


def _machine(seen: dict[str, Any], agent: dict[str, Any]) -> Row:
    mine = [w for w in seen["workers"] if w["agent"] == agent["agent"]]
    rates: dict[str, list[float]] = {}
    for w in mine:
        for name, rate in w["rates"].items():
            if rate:
                rates.setdefault(name, []).append(rate)
    makes = ", ".join(f"{n} {_number(sum(r) / len(r))}/s" for n, r in sorted(rates.items()))
    count = f"{len(mine)}"
    if agent["free"] and not mine:
        makes = f"works at {agent['free']}"
    return [agent["host"], agent["device"], count,
            f"{sum(w['busy'] for w in mine) / len(mine):.0%}" if mine else "-",
            f"{sum(w['queue'] for w in mine)}",
            f"{agent['slots_free']} of {agent['slots']}" if agent["slots"] else "", makes or "-"]


def _job(j: dict[str, Any]) -> Row:
    return [j["name"], j["state"], f"{j['ranks']}", j["host"], _duration(j["seconds"]),
            "" if j["status"] is None else f"{j['status']}",
            f"{j['attempt']}" if j["attempt"] > 1 else ""]


def _versions(row: dict[str, Any]) -> str:
    """Return in words which runs take which version of a pipeline's source."""
    older = {v: n for v, n in row["versions"].items() if v != str(row["version"])}
    text = f"version {row['version']}"
    if older:
        text += "; " + ", ".join(f"{n} run{'s go' if n > 1 else ' goes'} on with version {v}"
                                 for v, n in older.items())
    return text


def _spent(row: dict[str, Any], resource: str) -> str:
    limit = row["settings"].get(resource)
    most = f" of {limit:g}" if limit is not None else ""
    return f"{resource} {row['spent'][resource]:.4g}{most}"


# ---- lines --------------------------------------------------------------------------------------


def _shortened(head: tuple[str, ...], rows: list[Row], kind: str, width: int) -> list[str]:
    lines = _aligned(head, rows[:MOST_ROWS], width)
    if len(rows) > MOST_ROWS:
        lines.append(f"… {len(rows) - MOST_ROWS} more lines of {kind}: feed status PIPELINE, or "
                     "--json")
    return lines


def _aligned(heads: tuple[str, ...], rows: list[Row], width: int) -> list[str]:
    """Return rows in aligned columns, without empty ones and last ones that do not fit."""
    if not rows:
        return []
    kept = [k for k in range(len(heads)) if any(row[k] for row in rows)]
    names = [head.rstrip("->") for head in heads]
    wide = {k: max(len(names[k]), *(len(row[k]) for row in rows)) for k in kept}
    while width and sum(wide[k] + 2 for k in kept) - 2 > width and heads[kept[-1]].endswith("-"):
        kept.pop()
    return ["", *("  ".join(f"{row[k]:{'>' if '>' in heads[k] else '<'}{wide[k]}}"
                            for k in kept).rstrip() for row in [names, *rows])]


def _cut(lines: list[str], width: int) -> str:
    return "\n".join(f"{line[: width - 1]}…" if width and len(line) > width else line
                     for line in lines)


def _warned(warnings: list[str], width: int) -> str:
    """Return warnings, wrapped and never cut: they end with what to do."""
    parts = [textwrap.fill(text, width or WIDTH, initial_indent="warning: ",
                           subsequent_indent="         ", break_long_words=False,
                           break_on_hyphens=False) for text in warnings]
    return "\n".join(["", "", *parts]) if parts else ""


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else (
        f"{rest} s")

"""`python -m spmd feed …`: serve, worker, submit, fetch, status, top, update, cancel, keys.

In: options. Out: text or JSON on standard output, an exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from codegen.errors import PeerError, UsageError, shown
from spmd.data.pipeline_files import load
from spmd.feed_options import NONE, command_line_settings
from spmd.feeding.clients.client import Client, row_of
from spmd.feeding.messages.keys import keys_of, make_folder
from spmd.feeding.starting.scheduler_process import serve
from spmd.feeding.status.status_tables import job_text, pipeline_text, table_text
from spmd.feeding.workers.agent import run_agent
from spmd.interrupts import Terminated
from spmd.launch.processes import Processes

HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
BEGIN, END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor


def command(asked: argparse.Namespace, _: Processes) -> int:
    """Run a `feed` command; return the exit code, which may be that of a job."""
    return WHAT[asked.subcommand](asked) or 0


def _serve(asked: argparse.Namespace) -> None:
    serve(asked.listen, asked.keys, asked.state, asked.page, asked.slice, _say)


def _worker(asked: argparse.Namespace) -> None:
    processes = asked.processes
    if processes is None:
        processes = 0 if asked.slots else len(os.sched_getaffinity(0))
    if not processes and not asked.slots:
        raise UsageError("this agent would have nothing to do", found="--processes 0",
                         expected="workers (--processes), or slots for ranks (--slots)")
    run_agent(asked.connect, keys_of(asked.keys), processes, device=asked.device,
              free=asked.free or "", memory=asked.memory, cost=asked.cost, watts=asked.watts,
              ports=asked.ports or "", slots=asked.slots, launch=asked.launch or "",
              folder=asked.folder)


def _keys(asked: argparse.Namespace) -> None:
    folder = make_folder(asked.folder)
    print(f"{folder}: the scheduler needs all of it; workers and runs on other machines need\n"
          "server.key, client.key and client.secret. Nobody else may read the secrets.")


def _client(asked: argparse.Namespace) -> Client:
    return Client(asked.connect, asked.keys)


def _submit(asked: argparse.Namespace) -> int:
    pipeline = load(asked.file)
    asked.ranks = pipeline.settings.ranks if asked.ranks is None else asked.ranks
    asked.ranks = None if asked.ranks is NONE else asked.ranks
    if asked.ranks is None and (without := asked.flags & OF_RANKS):
        raise UsageError(f"{min(without)} is for ranks, and none are submitted",
                         expected="--ranks N, or ranks= in the pipeline")
    with Client(asked.connect, asked.keys, timeout=asked.wait) as client:
        answer = client.submit(pipeline, name=asked.name, **command_line_settings(asked))
        how = {"new": "submitted", "changed": "submitted in the place of what was there",
               "unchanged": "is there already, as it is"}[answer["what"]]
        text = f"{answer['name']}: {how} (version {answer['version']})"
        if asked.ranks is None:
            _told(asked, answer, text + _not_here(answer) + _unknown(answer))
            return 0
        return _submit_ranks(asked, client, answer)


def _submit_ranks(asked: argparse.Namespace, client: Client, answer: dict[str, Any]) -> int:
    """Submit the ranks of a pipeline; follow them to their end, unless --detach."""
    name = answer["name"]
    image = asked.image or row_of(client.status(), name)["settings"].get("image")
    if not image:
        raise UsageError("which image do the ranks run?", expected="--image IMAGE",
                         found=f"{name} names none")
    job = client.submit_job(
        name, image, asked.ranks, inputs=_files(asked, "input"), outputs=_files(asked, "output"),
        options=asked.options, launch=asked.launch or "", device=asked.device,
        restarts=asked.restarts, feed=asked.feed, until=asked.until or "")
    if asked.detach:
        _told(asked, {**answer, "job": job}, f"{job['name']}: submitted")
        return 0
    _follow("note", f"{job['name']}: submitted")
    return _fetched(client, job["name"], ())


def _files(asked: argparse.Namespace, kind: str) -> list[tuple[str, str]]:
    alone = getattr(asked, f"{kind}_all")
    return [*getattr(asked, kind).items(), *(("", path) for path in alone)]


def _fetch(asked: argparse.Namespace) -> int:
    with _client(asked) as client:
        return _fetched(client, asked.name, [
            (name or os.path.basename(path), path) for name, path in _files(asked, "output")])


def _fetched(client: Client, job: str, outputs: Any) -> int:
    """Follow a job to its end; return its exit code. Whoever interrupts this leaves the job
    alone."""
    try:
        return int(client.fetch(job, outputs=outputs, follow=_follow)["status"])
    except (KeyboardInterrupt, Terminated):
        _follow("note", f"{job} goes on; python -m spmd feed fetch {job} brings what it gives, "
                f"feed cancel {job} ends it")
        raise


def _follow(kind: str, text: str) -> None:
    """Print what comes of a job, as a run here would."""
    if kind == "note":
        print(shown(f"spmd feed: {text}"), file=sys.stderr, flush=True)
    else:
        print(text, end="", file=getattr(sys, kind), flush=True)


def _update(asked: argparse.Namespace) -> None:
    with _client(asked) as client:
        answer = client.update(asked.name, source=asked.source, **command_line_settings(asked))
        text = f"{answer['name']}: updated (version {answer['version']}){_not_here(answer)}"
        if count := answer["runs_before"]:
            text += (f"; {count} run{'s go' if count > 1 else ' goes'} on with the source with "
                     "which it began, later ones take this one")
        text += _unknown(answer)
        _told(asked, answer, text)


def _unknown(answer: dict[str, Any]) -> str:
    """Return the note on a first example that could not be computed where it was submitted, or
    ""."""
    why = answer.get("first_example")
    return ("\nIts first example could not be computed here, so a run is compared with it when a "
            f"worker has done so: {why}") if why else ""


def _not_here(answer: dict[str, Any]) -> str:
    """Return the note on preferred workers that have not joined, or ""."""
    if "not_here" not in answer:
        return ""
    return (f"; no worker is called {' or '.join(answer['not_here'])} now, there is "
            + (", ".join(answer["here"]) or "none"))


def _cancel(asked: argparse.Namespace) -> None:
    with _client(asked) as client:
        if "/" in asked.name:
            answer = client.cancel_job(asked.name)
            _told(asked, answer, f"{asked.name}: {answer['what']}")
            return
        answer = client.cancel(asked.name)
        runs = answer["runs"]
        _told(asked, answer, f"{asked.name}: cancelled" + (
            f"; {runs} run{'s' * (runs > 1)} that took it end{'s' * (runs == 1)}" if runs else ""))


def _status(asked: argparse.Namespace) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    with _client(asked) as client:
        if "/" in asked.name:
            job = client.job(asked.name)
            _told(asked, job, job_text(job))
            return
        if asked.name and asked.json:
            print(json.dumps(client.status(asked.name), indent=1))
            return
        seen = client.status()
        _told(asked, seen, _tables(seen, asked.name, width))


def _tables(seen: dict[str, Any], name: str, width: int) -> str:
    if not name:
        return shown(table_text(seen, width))
    row_of(seen, name)
    return shown(pipeline_text(seen, name, width))


def _top(asked: argparse.Namespace) -> None:
    """Print the status again and again: over itself on a terminal, else one table after the
    other."""
    drawn = sys.stdout.isatty()
    width, height = shutil.get_terminal_size() if drawn else (0, 0)
    with _client(asked) as client:
        text = _tables(client.status(), asked.name, width)
        print(BEGIN if drawn else "", end="")
        try:
            while True:
                if drawn:
                    lines = [line[:width] for line in text.splitlines()]
                    if len(lines) >= height:  # warnings stand at the end: say that they are there
                        lines = [*lines[: height - 2], "… a higher window shows more"]
                    body = "".join(f"{line}{CLEAR_LINE}\n" for line in lines)
                    print(f"{HOME}{body}{CLEAR_BELOW}", end="", flush=True)
                else:
                    print(text, end="\n\n", flush=True)
                time.sleep(asked.every)
                width, height = shutil.get_terminal_size() if drawn else (0, 0)
                text = _looked(client, asked.name, width, text)
        finally:
            print(END if drawn else "", end="", flush=True)


def _looked(client: Client, name: str, width: int, before: str) -> str:
    try:
        return _tables(client.status(), name, width)
    except PeerError:  # it may be starting again
        note = "the scheduler does not answer; this is what it said last:\n"
        return before if before.startswith(note) else note + before


def _told(asked: argparse.Namespace, value: Any, text: str) -> None:
    print(json.dumps(value, indent=1) if asked.json else shown(text))


def _say(text: str) -> None:
    print(f"spmd feed serve: {text}", file=sys.stderr, flush=True)


OF_RANKS = {"-i", "--input", "-o", "--output", "--feed", "--launch", "--options", "--device",
            "--restarts", "--until", "--detach"}
WHAT: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "serve": _serve, "worker": _worker, "submit": _submit, "fetch": _fetch, "status": _status,
    "top": _top, "update": _update, "cancel": _cancel, "keys": _keys}

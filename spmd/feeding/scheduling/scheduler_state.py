"""What a scheduler knows, in one SQLite file with a write-ahead log: no kill damages it.

In: pipelines, older versions that runs go on with, agents, rates. Out: the same after a restart.
Always holds: what put_pipeline() has returned from is in the file; a file has one scheduler at a
time; a full disk refuses what is new, and everything else goes on from memory.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from codegen.errors import EnvironmentFault, InputError, OutputError, VersionError

# 1 had no older versions, facts, nor runs that were read; 2 no modules; 3 no jobs; 4 none that ends
# early; 5 jobs on one agent.
FORMAT = 6
COMES = -1
LOCKED_S = 0.5  # a scheduler that is ending gives its file up within this time

_TABLES = """
CREATE TABLE IF NOT EXISTS pipelines (name TEXT PRIMARY KEY, version INTEGER, file TEXT,
    source TEXT, settings TEXT, spent TEXT, submitted REAL, facts TEXT DEFAULT '{}',
    own_name TEXT DEFAULT '', modules TEXT DEFAULT 'null');
CREATE TABLE IF NOT EXISTS agents (agent TEXT PRIMARY KEY, name TEXT, host TEXT, device TEXT,
    seen REAL);
CREATE TABLE IF NOT EXISTS older (name TEXT, version INTEGER, file TEXT, source TEXT,
    settings TEXT, facts TEXT, own_name TEXT DEFAULT '', modules TEXT DEFAULT 'null',
    PRIMARY KEY (name, version));
CREATE TABLE IF NOT EXISTS runs (stream TEXT PRIMARY KEY, run TEXT, feed TEXT, pipeline TEXT,
    version INTEGER, taken INTEGER, seen REAL);
CREATE TABLE IF NOT EXISTS rates (pipeline TEXT, device TEXT, rate REAL,
    PRIMARY KEY (pipeline, device));
CREATE TABLE IF NOT EXISTS allowed (key TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT UNIQUE,
    value TEXT);
"""


class FullDisk(OutputError):
    """The state cannot be written; what was asked for is refused, all else goes on."""


@dataclass
class StoredPipeline:
    """A version of a pipeline. spent: "cost" and "energy" up to now.

    facts: what whoever submitted it found in its source: "order", "environments", "gives".
    own_name: what the file calls it. modules: that it imports from its folder; None: not known.
    """

    name: str
    version: int
    file: str
    source: str
    settings: dict[str, Any]
    spent: dict[str, float] = field(default_factory=dict)
    submitted: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    own_name: str = ""
    modules: list[dict[str, str]] | None = None

    def code(self) -> tuple[Any, ...]:
        """Return what distinguishes it from another version, beside settings."""
        return self.source, self.own_name, self.modules


@dataclass
class KnownRun:
    """A run that takes a feed, with the version that it began with. stream: its own name.

    taken: batches; COMES before a process of it has come. seen: when somebody of it was heard last,
    in seconds of the epoch.
    """

    stream: str
    run: str
    feed: str
    pipeline: str
    version: int
    taken: int = COMES
    seen: float = 0.0


@dataclass
class StoredJob:
    """Ranks that were submitted with a pipeline. job: the identity that its submitter gave it.

    asked: the fields of wire.JOB. state: "pending", "running" or "ended". attempt: how often it was
    started. failures: how often it began, and ended badly. places: of the last start, [agent, host,
    ranks] in the order of ranks. status: its exit status, None before its end. why: it waits, or
    ended so. files: its outputs with their sizes. batches: after so many its feed ends; None: as
    its source does. Times are of the epoch.
    """

    job: str
    pipeline: str
    asked: dict[str, Any]
    number: int = 0
    state: str = "pending"
    attempt: int = 0
    failures: int = 0
    places: list[list[Any]] = field(default_factory=list)
    status: int | None = None
    why: str = ""
    batches: int | None = None
    files: dict[str, int] = field(default_factory=dict)
    submitted: float = 0.0
    began: float = 0.0
    ended: float = 0.0

    @property
    def name(self) -> str:
        """Return what people call it: no pipeline and no other job has this name."""
        return f"{self.pipeline}/{self.number}"

    @property
    def ranks(self) -> int:
        """Return with how many ranks it was started last; 0 for none."""
        return sum(ranks for _, _, ranks in self.places)

    @property
    def where(self) -> str:
        """Return the hosts of its last start; of several, which ranks each has."""
        hosts, first = [], 0
        for _, host, ranks in self.places:
            last = first + ranks - 1
            hosts.append(f"{host} (rank{'s' * (ranks > 1)} {first}" + f"-{last}" * (ranks > 1) + ")"
                         if len(self.places) > 1 else host)
            first = last + 1
        return ", ".join(hosts)

    def part_of(self, agent: str) -> int | None:
        """Return which of its places an agent has, or None."""
        return next((k for k, place in enumerate(self.places) if place[0] == agent), None)


class StateMemory:
    """The state of a scheduler that ends with its run: no file is left, and another one that the
    run starts goes on with it. fd: memory of both. A kill while it is written leaves the one
    before it: there are two places, and the number of the right one is written last."""

    HEAD = struct.Struct("<QQ")  # number of states so far, bytes of the last
    PLACES = 1 << 12, 1 << 40  # only pages that are written take memory

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("spmd-feed-state", os.MFD_CLOEXEC) if fd is None else fd

    def _head(self) -> tuple[int, int]:
        head = os.pread(self.fd, self.HEAD.size, 0)
        return self.HEAD.unpack(head) if head else (0, 0)

    def read(self) -> bytes:
        number, size = self._head()
        return os.pread(self.fd, size, self.PLACES[number % 2])

    def write(self, state: bytes) -> None:
        number = self._head()[0] + 1
        os.pwrite(self.fd, state, self.PLACES[number % 2])
        os.pwrite(self.fd, self.HEAD.pack(number, len(state)), 0)

    def close(self) -> None:
        os.close(self.fd)


class StateFile:
    """Keeps a scheduler's state in a SQLite file. path: "" keeps everything in memory, for a
    scheduler that ends with its run."""

    def __init__(self, path: str = "", memory: StateMemory | None = None) -> None:
        self.path, self.memory = os.path.abspath(path) if path else "", memory
        self.trouble = ""  # why the last write failed; "" when it did not
        if path:
            _folder(self.path)
        try:
            self._db = self._opened()
        except sqlite3.Error as error:
            raise _refusal(self.path, error) from None

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path or ":memory:", timeout=LOCKED_S, check_same_thread=False)
        try:
            if self.path:
                # Exclusive: the lock goes with the process, however it ends; no other gets in.
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")
            elif self.memory and (kept := self.memory.read()):
                db.deserialize(kept)
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > FORMAT:
                raise VersionError(f"{self.path}: state of a newer version",
                                   expected=f"format {FORMAT} at most", found=f"{version}",
                                   remedy="another --state FILE, or the newer version of spmd")
            verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            if version == FORMAT:
                return db  # nothing is written: the disk may be full
            with db:
                if version == 1:
                    db.execute("DROP TABLE runs")
                    db.execute("ALTER TABLE pipelines ADD COLUMN facts TEXT DEFAULT '{}'")
                for table in {1: ["pipelines"], 2: ["pipelines", "older"]}.get(version, []):
                    db.execute(f"ALTER TABLE {table} ADD COLUMN own_name TEXT DEFAULT ''")
                    db.execute(f"ALTER TABLE {table} ADD COLUMN modules TEXT DEFAULT 'null'")
                db.executescript(_TABLES)
                db.execute(f"PRAGMA user_version={FORMAT}")
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    # ---- what must be kept: FullDisk where it cannot

    def put_pipeline(self, pipeline: StoredPipeline, older: Iterable[StoredPipeline] = ()) -> None:
        """Store a new pipeline, or a new version of one, and the older versions that its runs
        use."""
        self._must(("INSERT OR REPLACE INTO pipelines VALUES (?,?,?,?,?,?,?,?,?,?)",
                    [_row(pipeline)]),
                   ("INSERT OR REPLACE INTO older VALUES (?,?,?,?,?,?,?,?)",
                    [(o.name, o.version, o.file, o.source, json.dumps(o.settings),
                      json.dumps(o.facts), o.own_name, json.dumps(o.modules)) for o in older]))

    def drop_pipeline(self, name: str) -> None:
        self._must(("DELETE FROM pipelines WHERE name=?", [(name,)]),
                   ("DELETE FROM rates WHERE pipeline=?", [(name,)]),
                   ("DELETE FROM older WHERE name=?", [(name,)]),
                   ("DELETE FROM runs WHERE pipeline=?", [(name,)]))

    def put_job(self, stored: StoredJob) -> None:
        """Store a job as it is now, and set a new one's number, which no other ever has."""
        value = asdict(stored)
        number, job = value.pop("number") or None, value["job"]
        self._must(("INSERT INTO jobs VALUES (?,?,?) ON CONFLICT (job) DO UPDATE SET "
                    "value=excluded.value", [(number, job, json.dumps(value))]))
        if not number:
            stored.number = self._db.execute("SELECT number FROM jobs WHERE job=?",
                                             (job,)).fetchone()[0]

    def drop_job(self, job: str) -> None:
        self._must(("DELETE FROM jobs WHERE job=?", [(job,)]))

    def _must(self, *work: tuple[str, list[tuple[Any, ...]]]) -> None:
        if not self._try(list(work)):
            raise FullDisk(
                f"the scheduler cannot keep this: {self.trouble}",
                found=f"{self.path or 'memory'}; what runs goes on",
                remedy="make room on that disk, then ask again")

    # ---- what is kept if it can be

    def remember(
        self, *, pipelines: Iterable[StoredPipeline] = (),
        agents: Iterable[tuple[str, str, str, str]] = (),
        runs: Iterable[KnownRun] = (),
        rates: Mapping[tuple[str, str], float] | None = None, keys: Iterable[str] = (),
        shares: Mapping[str, Mapping[str, float]] | None = None,
    ) -> bool:
        """Write all of this in one transaction. agents: id, name, host, device; rates: by pipeline
        and device. False: see `trouble`."""
        now = time.time()
        work: list[tuple[str, list[tuple[Any, ...]]]] = [
            ("UPDATE pipelines SET spent=? WHERE name=?",
             [(json.dumps(pipeline.spent), pipeline.name) for pipeline in pipelines]),
            ("INSERT OR REPLACE INTO agents VALUES (?,?,?,?,?)", [(*row, now) for row in agents]),
            ("INSERT OR REPLACE INTO runs VALUES (?,?,?,?,?,?,?)",
             [astuple(run) for run in runs]),
            ("INSERT OR REPLACE INTO rates VALUES (?,?,?)",
             [(*of, rate) for of, rate in (rates or {}).items()]),
            ("INSERT OR IGNORE INTO allowed VALUES (?)", [(key,) for key in keys]),
        ]
        if shares is not None:
            work.append(("INSERT OR REPLACE INTO facts VALUES ('shares', ?)",
                         [(json.dumps(shares),)]))
        work = [(text, rows) for text, rows in work if rows]
        return not work or self._try(work)

    def forget_agent(self, agent: str) -> None:
        """Delete an agent that has left, or is dead: nobody waits for it after a restart."""
        self._try([("DELETE FROM agents WHERE agent=?", [(agent,)])])

    def forget_runs(self, before: float) -> None:
        """Delete runs that were not seen since then, and the older versions that no run uses."""
        self._try([("DELETE FROM runs WHERE seen<?", [(before,)]),
                   ("DELETE FROM older WHERE NOT EXISTS (SELECT 1 FROM runs WHERE "
                    "runs.pipeline=older.name AND runs.version=older.version)", [()])])

    def _try(self, work: list[tuple[str, list[tuple[Any, ...]]]]) -> bool:
        try:
            with self._db:
                for text, rows in work:
                    self._db.executemany(text, rows)
            if self.memory:
                self.memory.write(self._db.serialize())
        except (sqlite3.Error, OSError) as error:
            self.trouble = f"{self.path or 'memory'}: {error}"
            return False
        self.trouble = ""
        return True

    # ---- what was kept

    def pipelines(self) -> list[StoredPipeline]:
        rows = self._db.execute("SELECT * FROM pipelines ORDER BY submitted, name").fetchall()
        return [StoredPipeline(n, v, f, s, json.loads(settings), json.loads(spent), submitted,
                               json.loads(facts), own, json.loads(modules))
                for n, v, f, s, settings, spent, submitted, facts, own, modules in rows]

    def older(self) -> list[StoredPipeline]:
        """Return the versions that were replaced, and that runs may go on with."""
        rows = self._db.execute("SELECT * FROM older ORDER BY name, version").fetchall()
        return [StoredPipeline(n, v, f, s, json.loads(settings), facts=json.loads(facts),
                               own_name=own, modules=json.loads(modules))
                for n, v, f, s, settings, facts, own, modules in rows]

    def jobs(self) -> list[StoredJob]:
        rows = self._db.execute("SELECT number, value FROM jobs ORDER BY number").fetchall()
        return [StoredJob(number=number, **_as_now(json.loads(value))) for number, value in rows]

    def agents(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT agent FROM agents")]

    def runs(self) -> list[KnownRun]:
        return [KnownRun(*row) for row in self._db.execute("SELECT * FROM runs ORDER BY seen")]

    def rates(self) -> dict[tuple[str, str], float]:
        rows = self._db.execute("SELECT pipeline, device, rate FROM rates")
        return {(pipeline, device): rate for pipeline, device, rate in rows}

    def allowed(self) -> set[str]:
        return {row[0] for row in self._db.execute("SELECT key FROM allowed")}

    def shares(self) -> dict[str, dict[str, float]]:
        row = self._db.execute("SELECT value FROM facts WHERE name='shares'").fetchone()
        return json.loads(row[0]) if row else {}


def _row(pipeline: StoredPipeline) -> tuple[Any, ...]:
    return (pipeline.name, pipeline.version, pipeline.file, pipeline.source,
            json.dumps(pipeline.settings), json.dumps(pipeline.spent), pipeline.submitted,
            json.dumps(pipeline.facts), pipeline.own_name, json.dumps(pipeline.modules))


def _as_now(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a job, also of one that an older format has kept."""
    if "places" not in value:
        place = [value.pop("agent"), value.pop("host"), value.pop("ranks")]
        value["places"] = [place] if place[0] else []
    value["asked"].setdefault("until", "")
    return value


def _folder(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: its folder cannot be made: {error.strerror}",
                          remedy="another --state FILE") from None


def _refusal(path: str, error: sqlite3.Error) -> Exception:
    """Return the error for a file that cannot be opened as the state of a scheduler."""
    if "locked" in str(error):
        return EnvironmentFault(
            f"{path}: another scheduler works with this file",
            expected="one scheduler for a file", found=str(error),
            remedy="use that one (python -m spmd feed status), end it, or give another --state")
    if isinstance(error, sqlite3.OperationalError):
        return OutputError(f"{path}: cannot be opened: {error}",
                           remedy="a file that you may write, on a disk with room: --state FILE")
    return InputError(
        f"{path}: is damaged, or no state of a scheduler: {error}",
        expected="a file that `feed serve` has written",
        remedy=f"mv {path} {path}.bad: the scheduler begins anew, submit the pipelines again; runs "
        "that go on lose nothing")

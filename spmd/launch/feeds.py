"""The feeds of a launch: what is given for each, its rings, who starves, what was taken.

In: the option feed, a loaded job. Out: rings that supplies fill while the ranks run.
Always holds: every feed of the image is given, and nothing else; what a supply fails at ends the
run in all processes, and is said once; all processes have taken equally many batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from codegen.errors import (
    EXIT_DATA,
    EXIT_PEER,
    InputError,
    InternalError,
    PeerError,
    Place,
    UsageError,
)
from spmd import report
from spmd.engine import ffi, lib
from spmd.engine.feed_rings import NS, FedFeed, FeedField, FeedRing
from spmd.launch.iterable_supply import IterableSupply, Supply, supply_of
from spmd.launch.processes import Processes, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.launch.job import Job
    from spmd.launch.lifecycle import Launch

AHEAD_BYTES = 64 << 20  # of batches that wait in a ring
LEAST, MOST = 2, 32  # batches in a ring
SMALL_BYTES, MOST_SMALL = 1 << 20, 128  # of small ones more: what is done for a ring is done less
SOON, AT_FIRST = 0.5, 2.0  # time limits after which it is said; workers import what they need first
PATIENCE = 60  # time limits that a rank waits for a batch: as for processes that compute
STARVING = 0.05  # share of the time that is worth a warning,
WORTH_SECONDS = 3.0  # of so long a time at least
HELPS = "a pipeline with workers"  # in the place of an iterable in the ranks' own process
CONNECT = "spmd.feeding.starting.connect"  # supplies of pipelines


class OpenFeed:
    """A feed of a loaded job, its rings, and who fills them."""

    def __init__(self, feed: FedFeed, rings: list[FeedRing]) -> None:
        self.feed, self.rings = feed, rings
        self.supply: Supply | None = None
        self.first = 0  # the batch with which this run began


def stream_identity(opened: OpenFeed) -> dict[str, Any]:
    """Return what a checkpoint knows the stream of a feed by, the text of what computes it, and
    settings that have part in it; "" where nothing is known."""
    asked = {key: getattr(opened.supply, key, None) for key in ("order", "text", "settings")}
    return {key: ask() if ask else "" for key, ask in asked.items()}


def _differing_settings(kept: Any, now: Any) -> tuple[str, str]:
    """Return the settings of a pipeline that differ from those kept, as texts; "" for none."""
    if not isinstance(kept, dict) or not isinstance(now, dict):
        return "", ""
    names = [name for name in kept if name in now and kept[name] != now[name]]
    before, after = (", ".join(f"{name}={of[name]!r}" for name in names) for of in (kept, now))
    return before, after


class Feeds:
    """The feeds of a launch, in one process."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.processes = launch, launch.processes
        self.rows: list[dict[str, Any]] = launch.manifest["feeds"]
        self.sources: dict[str, Any] = {}
        self.fresh = False  # what is given has not begun yet
        self.ended: set[str] = set()  # feeds of which a run saw the end
        self.slow: set[str] = set()  # feeds that were said to be waited for
        self.supplies: dict[str, Supply] = {}  # of iterables, which know what they have given
        self.before: dict[str, Supply] = {}  # those of streams that go on in another job
        self.open: list[OpenFeed] = []
        self.job: Job | None = None
        self.taken: dict[str, int] = {}  # in the runs so far, of streams that go on
        self.error: BaseException | None = None
        self._once = threading.Lock()
        self.warned = 0.0

    # ---- before a run ----------------------------------------------------------------------------

    def set_sources(self, feed: Any) -> None:
        """Note what the feeds are given from now on. Raises UsageError for what does not fit."""
        names = [row["name"] for row in self.rows]
        if feed is None:
            return
        several = isinstance(feed, Mapping)
        if not names:
            raise UsageError("the program has no feed", expected="no feed=, no --feed",
                             found="one", remedy="feed = spmd.feed(x=…) in the program")
        if not several and len(names) > 1:
            raise UsageError(f"the program has {len(names)} feeds", expected="what is for which: "
                             "feed={" + ", ".join(f'"{n}": …' for n in names) + "}",
                             found=type(feed).__name__, remedy=f"--feed {names[0]}=FILE for each")
        self.finish()
        self.sources = dict(feed) if several else {names[0]: feed}
        self.fresh, self.supplies, self.before, self.ended = True, {}, {}, set()
        self.slow = set()

    def check(self) -> None:
        """Check that every feed that the entry takes of is given, and no other."""
        names = [row["name"] for row in self.rows]
        asked = self.launch.face.feeds
        for name in self.sources:
            if name not in names:
                raise UsageError(f"the program has no feed {name!r}", expected=", ".join(names),
                                 found=str(name))
        if missing := [name for name in asked if name not in self.sources]:
            only = len(names) == 1
            raise UsageError(
                f'feed "{missing[0]}" was not given', expected="batches for "
                + ", ".join(names), found=", ".join(map(str, self.sources)) or "nothing",
                remedy=f"feed={'batches' if only else '{' + repr(missing[0]) + ': batches}'} with "
                "an iterable of dicts of arrays, a pipeline or its file; "
                f"--feed {'' if only else missing[0] + '='}FILE.py on the command line")

    def begin(self, job: Job, resumed: dict[str, Any] | None) -> None:
        """Prepare a run, in all processes together: rings for a new job, batches into them."""
        self.error = None
        if job is not self.job:
            self.processes.run_in_all(lambda: self._open(job))
        mine = [opened for opened in self.open if opened.feed.name in self.launch.face.feeds]
        starts = self.processes.run_in_all(lambda: self._starts(mine, resumed))
        try:
            for opened in mine:
                if opened.supply is None or resumed is not None:
                    if resumed is not None:
                        self.before.pop(opened.feed.name, None)
                    supply = self.supplies.get(opened.feed.name) or self._supply(opened.feed)
                    opened.supply = self.before[opened.feed.name] = supply
                    if isinstance(supply, IterableSupply):
                        self.supplies[opened.feed.name] = supply
                    self._compare(opened, resumed)
                    self._begin(job, opened, *starts[opened.feed.name])
        except BaseException:
            self.finish()
            raise
        self.fresh = False
        job.look_feeds = self.look

    def _open(self, job: Job) -> None:
        """Make the rings of a job's feeds. A feed goes on where the job before this one had come
        to."""
        self.close(goes_on=True)
        self.job = job
        for number, row in enumerate(self.rows):
            feed = described(number, row, job, self._asks(row["name"]))
            self.open.append(OpenFeed(feed, self._rings(job, feed)))
        held = self.processes.all_gather([[r.rows for r in opened.rings] for opened in self.open])
        for k, opened in enumerate(self.open):
            opened.feed.copied = is_copied([rows[k] for rows in held])

    def _asks(self, feed: str) -> bool:
        return any(row["kind"] == "more" and row["feed"] == feed
                   for row in self.launch.manifest["operations"])

    def _rings(self, job: Job, feed: FedFeed) -> list[FeedRing]:
        batch_bytes = max(1, feed.batch * feed.row_bytes)
        depth = max(LEAST, min(MOST, AHEAD_BYTES // batch_bytes))
        if not feed.sends:
            depth = max(depth, min(MOST_SMALL, SMALL_BYTES // batch_bytes))
        shapes = [n for f in (*feed.fields, *feed.sends) for n in (len(f.shape), *f.shape)]
        keep = ffi.new("char[]", feed.name.encode()), ffi.new("int64_t[]", shapes)
        row = {"name": keep[0], "depth": depth, "fields": len(feed.fields),
               "values": len(feed.sends), "shape": keep[1]}
        status = lib.spmd_job_feed(job._job, feed.number, ffi.new("spmd_feed *", row))
        job._check_array(status, f"of feed {feed.name}")
        count = lib.spmd_job_feed_rings(job._job, feed.number)
        return [FeedRing(feed, lib.spmd_job_feed_ring(job._job, feed.number, k), depth,
                         lambda error: self.fail(feed, error)) for k in range(count)]

    def _starts(
        self, mine: list[OpenFeed], resumed: dict[str, Any] | None
    ) -> dict[str, tuple[int, int]]:
        """Return, by feed, the batch that the supply begins at, and how many the checkpoint has
        taken."""
        starts = {}
        for opened in mine:
            name = opened.feed.name
            taken = 0 if self.fresh else self.taken.get(name, 0)
            start = taken
            if name in self.ended and hasattr(self.sources[name], "__next__"):
                raise UsageError(
                    f'feed "{name}": its iterator has ended in a call before', found="an iterator",
                    expected="something that can begin again: a list, a pipeline, or a function "
                    "that gives an iterator", remedy=f"feed={{{name!r}: …}} in each call")
            if resumed is not None:
                cursor = resumed.get("feeds", {}).get(name)
                if cursor is None:
                    raise InputError(f'the checkpoint says nothing of feed "{name}"',
                                     expected="how many batches were taken", found="no such feed",
                                     remedy="the program with which it was kept")
                taken, start = cursor["taken"], cursor["from"]
            starts[name] = (start, taken)
        return starts

    def _compare(self, opened: OpenFeed, resumed: dict[str, Any] | None) -> None:
        """Check that the stream with which a checkpoint goes on is the one that it has taken
        batches of."""
        if resumed is None:
            return
        kept, now = resumed["feeds"][opened.feed.name], stream_identity(opened)
        order, text = kept.get("order", ""), kept.get("text", "")
        if order and now["order"] and order != now["order"]:
            before, after = _differing_settings(kept.get("settings"), now["settings"])
            self.processes.refuse(InputError(
                f'feed "{opened.feed.name}" is another stream than that of the checkpoint',
                expected=before or "a pipeline with the same source as before",
                found=f"{after or 'another source'}: examples would be taken twice, or never",
                remedy="the pipeline as it was; or a new run that begins with the kept arrays"))
        if order and (hold := getattr(opened.supply, "goes_on_with", None)):
            hold(order)  # workers are held to it where nobody else knows it yet
        if text and now["text"] and text != now["text"] and self.processes.number == 0:
            say(f'spmd: feed "{opened.feed.name}": the text of its pipeline is another one than '
                "when the checkpoint was kept; examples from here on are computed by that of now")

    def _supply(self, feed: FedFeed) -> Supply:
        """Return the supply of what was given for a feed. All processes come here; those of a
        pipeline meet in it."""
        source, first = self.sources[feed.name], self.processes.number == 0
        mine: Supply | None = self.processes.run_in_all(
            lambda: supply_of(source, feed, speaks=first), shared=False)
        if mine is not None:
            return mine
        setup = self.job.setup if self.job else None
        ranks = tuple(range(setup.first, setup.first + setup.count)) if setup else ()
        others = [supply for name, supply in self.before.items() if name != feed.name]
        return served(source, feed, self.processes, ranks, self.before.get(feed.name), others)

    def _begin(self, job: Job, opened: OpenFeed, start: int, taken: int) -> None:
        def begin() -> None:
            number, supply, opened.first = opened.feed.number, opened.supply, start
            assert supply is not None
            job._check(lib.spmd_job_feed_begin(job._job, number, start))
            job._check(lib.spmd_job_resume_feed(job._job, number, taken, start))
            supply.begin(opened.feed, opened.rings, start)

        self.processes.run_in_all(begin)

    # ---- while it runs ---------------------------------------------------------------------------

    def fail(self, feed: FedFeed, error: BaseException) -> None:
        """Ends the run of all processes, from any thread: the first error is the one."""
        with self._once:
            if self.error is not None or self.job is None:
                return
            self.error = error
            text = f'feed "{feed.name}" failed'
            code = report.exit_code(error)  # 75 is for lost processes: nobody waits for those
            lib.spmd_job_abort(self.job._job, EXIT_DATA if code == EXIT_PEER else code, -1,
                               text.encode())

    def look(self) -> None:
        """Warns of ranks that wait too long for a batch, and ends the run where that has no end."""
        job, limit = self.job, self.launch.options.time_limit
        numbers = ffi.new("int64_t[3]")
        assert job is not None
        waited = lib.spmd_job_starves(job._job, numbers, numbers + 1, numbers + 2) / NS
        if not limit or waited < SOON * limit or self.error is not None:
            return
        rank, number, batch = numbers
        feed = self.open[number].feed
        if batch == self.open[number].first and waited < AT_FIRST * limit:
            return
        if waited > PATIENCE * limit:
            self.fail(feed, PeerError(
                f'feed "{feed.name}" starves: rank {rank} has waited for batch {batch} for '
                f"{waited:.1f} s", expected=f"a batch within {PATIENCE * limit:g} s, which is "
                f"{PATIENCE} times --time-limit", found="none",
                remedy="look whether its workers, or its iterable, go on; a longer --time-limit, "
                "or 0 for none"))
        elif time.monotonic() - self.warned > 10 * limit:
            self.warned = time.monotonic()
            say(f'spmd: warning: rank {rank} waits for feed "{feed.name}": batch {batch} has not '
                f"come for {waited:.1f} s")

    # ---- after it --------------------------------------------------------------------------------

    def check_after_run(self) -> None:
        """Check, after each run, in all processes together, that all have taken equally many
        batches."""
        if self.job is not None:
            self.job.look_feeds = None
        rows = self.processes.run_and_gather(self._counts)
        self.taken = {name: row[0] for name, row in rows[0].items()}
        helps = {opened.feed.name: getattr(opened.supply, "helps", HELPS) for opened in self.open}
        for opened in self.open:
            if rows[0][opened.feed.name][3]:
                self._end(opened)
        # Where a feed takes answers, either side may be the one that waits for the other.
        answers = {opened.feed.name for opened in self.open if opened.feed.sends}
        for name, (taken, *_) in rows[0].items():
            others = [row[name][0] for row in rows]
            if odd := [k for k, count in enumerate(others) if count != taken]:
                self.processes.refuse(InputError(
                    f'processes of one job have taken different batches of feed "{name}"',
                    expected=f"{taken} batches, as process 0", found=f"{others[odd[0]]} batches in "
                    f"process {odd[0]}", remedy="give every process the same stream"))
            self._say_ended(name, rows[0][name][3])
            waited, passed = max(row[name][1:3] for row in rows)
            if (self.processes.number == 0 and passed > WORTH_SECONDS
                    and waited > STARVING * passed and name not in {*answers, *self.slow}):
                self.slow.add(name)
                say(f'spmd: feed "{name}" was waited for {waited / passed:.0%} of the time: '
                    f"{helps[name]}, or less work for each example, would make the run faster")

    def _say_ended(self, name: str, told: int) -> None:
        """Say that a stream has ended: a loop behind its end has no turns, which an answer does not
        show."""
        if told > 1 and self.processes.number == 0:
            times = "once" if told == 2 else f"{told - 1} times"
            say(f'spmd: feed "{name}" was asked for more behind its end {times}: a loop that '
                "begins there has no turns. try: so many batches, of a pipeline without epochs=; "
                "or a call of the program for each pass")

    def _end(self, opened: OpenFeed) -> None:
        """Note that a program was told that there are no more batches: the next call begins the
        stream again."""
        if opened.supply is not None:
            opened.supply.finish()
        opened.supply = None
        self.supplies.pop(opened.feed.name, None)
        self.before.pop(opened.feed.name, None)
        self.taken[opened.feed.name] = 0
        self.ended.add(opened.feed.name)

    def _counts(self) -> dict[str, tuple[int, float, float, int]]:
        """Return for each feed: batches taken; seconds that the rank waited that did most, and in
        all; how often it was told that there are no more."""
        assert self.job is not None
        counts, n = {}, ffi.new("int64_t[4]")
        for opened in self.open:
            number, job = opened.feed.number, self.job._job
            if lib.spmd_job_feed_taken(job, number, n, n + 3) != lib.SPMD_OK:
                raise InternalError(f"ranks have taken different batches of {opened.feed.name}")
            lib.spmd_job_feed_waits(job, number, n + 1, n + 2)
            counts[opened.feed.name] = (n[0], n[1] / NS, n[2] / NS, n[3])
        return counts

    def cursors(self) -> dict[str, dict[str, Any]]:
        """Return the cursors of the set at hand, by feed: batches that were taken, where a stream
        has to begin, and what it is a stream of."""
        assert self.job is not None
        cursors, n = {}, ffi.new("int64_t[2]")
        for opened in self.open:
            self.job._check(lib.spmd_job_set_feed(self.job._job, opened.feed.number, n, n + 1))
            cursors[opened.feed.name] = {"taken": n[0], "from": n[1], **stream_identity(opened)}
        return cursors

    def finish(self) -> None:
        """End the supplies, whose rings stay."""
        for opened in self.open:
            if opened.supply is not None:
                opened.supply.finish()
                opened.supply = None

    def close(self, goes_on: bool = False) -> None:
        """Close the feeds before the job goes. goes_on: another one takes what comes next, of the
        same workers."""
        self.finish()
        if not goes_on:
            self.before.clear()
        for opened in self.open:
            for ring in opened.rings:
                ring.close()
        with self._once:
            self.open, self.job = [], None


def served(source: Any, feed: FedFeed, processes: Processes, ranks: tuple[int, ...],
           before: Supply | None = None, beside: Iterable[Supply] = ()) -> Supply:
    """Return the supply of a pipeline, its file, or PIPELINE@ADDRESS. All processes of a job come
    here. ranks: those of this process. before: whose stream goes on. beside: of other feeds of the
    run. EnvironmentFault where packages are missing."""
    connect = processes.run_in_all(lambda: import_module(CONNECT), shared=False)
    supply: Supply = connect.supply_for(source, feed=feed, processes=processes, ranks=ranks,
                                        before=before, beside=beside)
    return supply


def is_copied(held: list[list[tuple[int, int]]]) -> bool:
    """Return whether two processes hold the same row. held: ranges of rows of each process."""
    end, owner = 0, -1
    for first, last, process in sorted((*rows, k) for k, mine in enumerate(held) for rows in mine):
        if first < min(end, last) and process != owner:
            return True
        if last > end:
            end, owner = last, process
    return False


def described(number: int, row: dict[str, Any], job: Job, asked: bool) -> FedFeed:
    """Return a feed as the manifest says it, for the sizes of this job. Raises UsageError."""

    def fields(rows: list[dict[str, Any]]) -> list[FeedField]:
        return [FeedField(f["name"], f["dtype"], job.setup.shape(f)) for f in rows]

    sends = [fields(send["fields"]) for send in row["sends"]]
    for other in sends[1:]:
        if repr(other) != repr(sends[0]):
            raise UsageError(f'feed "{row["name"]}" is sent different values at different places',
                             expected=repr(sends[0]), found=repr(other),
                             remedy="send the same fields everywhere")
    file, _, line = row.get("place", "").rpartition(":")
    return FedFeed(number, row["name"], fields(row["fields"]), sends[0] if sends else [],
                   asked, Place(file, int(line)) if line.isdigit() else None)


"""A model of csrc/direct.c, and of csrc/reduce.c and csrc/exchange.c where they meet it.

In: exchanges, one after the other. Out: what each member does to words that others see. A method
is named after the C function that it stands for, a word after its field. Rings of bells, and their
fences, are left out (test_bell.py): what holds without them holds with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.engine.explore import Machine, Op

IN_PLACE, HERE, GIVEN, RESULT = range(4)  # `where`


class Exchange(NamedTuple):
    """An exchange between members `root` and `dest`. The data of `long` members exceed a slot; if
    it `folds`, nothing is read before all have posted."""

    kind: str = "pull"  # permute, route (a permute with an unknown source), blocks, ring
    flow: str = "all"  # from_root, to_root, up_to, before
    root: int = 0
    dest: tuple[int | None, ...] = ()
    long: tuple[int, ...] = ()
    gives: bool = False
    gated: bool = False
    folds: bool = False
    site: int = 0


class Member:
    """Writes down the `ops` of one of `members` for all exchanges. `without` names a wait to leave
    out, or something to do too early or out of turn."""

    def __init__(self, own: int, members: int, exchanges: Sequence[Exchange], without: str) -> None:
        self.own, self.members, self.without = own, members, without
        self.ops: list[Op] = []
        self.counts: dict[int, int] = {}
        self.arrived: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.read_by: dict[str, list[int]] = {}
        for self.number, self.exchange in enumerate(exchanges, 1):
            self.compute()
            self.advance()
            self.use()

    # ---- words

    def wait(self, name: str, word: str, value: int) -> None:
        if self.without != name:
            self.ops.append(Op("wait", word, value, name=name))

    def read(self, word: str, value: int) -> None:
        self.ops.append(Op("read", word, value))

    def write(self, word: str, value: int) -> None:
        self.ops.append(Op("write", word, value))

    def release(self, word: str, value: int, since: int, name: str) -> None:
        """After all that has been done since then; unless that is what is left out."""
        at = since if self.without == name else len(self.ops)
        self.ops.insert(at, Op("write", word, value, name=name))

    def site(self, place: int, word: str) -> str:
        return f"site{self.exchange.site}.{place}.{word}"

    def slot(self, place: int, word: str) -> str:
        turn = 0 if self.without == "slots in turn" else self.count & 1
        return self.site(place, f"slot{turn}.{word}")

    def where(self, kind: int) -> int:
        """An offset may change from one exchange to the next: one of another exchange is wrong."""
        return 4 * self.number + kind

    # ---- the program

    def compute(self) -> None:
        """Write new data to send, and overwrite old results."""
        self.write(f"data{self.own}", self.number)
        for k in range(self.members):
            self.write(f"result{self.own}.{k}", 0)
            for half in (0, 1):
                self.write(f"result{self.own}.{k}.{half}", 0)

    def use(self) -> None:
        """A result has a part for every member that it is from, or that has worked on it."""
        parts = [] if self.exchange.kind == "ring" else range(self.members)
        for k in parts:
            self.read(f"result{self.own}.{k}", self.number if k in self.gets else 0)

    def advance(self) -> None:
        site = self.exchange.site
        self.count = self.counts[site] = self.counts.get(site, 0) + 1  # spmd_count_begin
        self.flow_find()
        self.gets = self.sources
        getattr(self, self.exchange.kind)()

    def permute(self) -> None:
        self.direct()

    def route(self) -> None:
        """Announce itself, meet the others, and read who has announced itself to this member, as
        permute_route does."""
        turn = 0 if self.without == "routes in turn" else self.count & 1
        dest, since = self.exchange.dest[self.own], len(self.ops)
        if dest is not None:
            self.ops.append(Op("swap", self.site(dest, f"route{turn}"), 0, self.own + 1))
        self.team_arrive(since, "announced before it arrives")
        self.team_passed("all have announced")
        source = self.sources[0] + 1 if self.sources else 0
        self.ops.append(Op("swap", self.site(self.own, f"route{turn}"), source, 0))
        self.direct()

    # ---- direct.c

    def team_arrive(self, since: int, name: str) -> None:
        site = self.exchange.site
        self.target = self.arrived[site] = self.arrived.get(site, 0) + self.members
        at = since if self.without == name else len(self.ops)
        self.ops.insert(at, Op("add", self.site(0, "arrivals"), name=name))

    def team_passed(self, name: str) -> None:
        self.wait(name, self.site(0, "arrivals"), self.target)

    def has_posted(self, place: int, name: str) -> None:
        self.wait(name, self.slot(place, "posted"), self.count)

    def have_taken(self, places: list[int], count: int, name: str) -> None:
        for place in places:
            if place != self.own:
                self.wait(name, self.site(place, "taken"), count)

    def slot_free(self) -> None:
        slot = self.site(self.own, f"slot{self.count & 1}")
        if self.count > 2:
            read_by = self.readers if self.without == "read_by" else self.read_by[slot]
            self.have_taken(read_by, self.count - 2, "slot_free")
        self.read_by[slot] = []

    def flow_find(self) -> None:
        x, own, everyone = self.exchange, self.own, list(range(self.members))
        self.gated = x.gated
        if x.kind in ("permute", "route"):
            self.sources = [k for k in everyone if x.dest[k] == own]
            self.readers = [k for k in everyone if x.dest[own] == k]
            return
        self.sources, self.readers = {
            "all": (everyone, everyone),
            "from_root": ([x.root], everyone if own == x.root else []),
            "to_root": (everyone if own == x.root else [], [x.root]),
            "up_to": (everyone[: own + 1], everyone[own:]),
            "before": (everyone[:own], everyone[own + 1 :]),
        }[x.flow]

    def others(self, places: list[int]) -> list[int]:
        """Beginning next to me, or with whoever comes first: spmd_span_place."""
        at = places.index(self.own) if self.own in places else 0
        return [k for k in places[at:] + places[:at] if k != self.own]

    def kept(self, place: int) -> int:
        """Return where a member keeps the data that others read."""
        if place not in self.exchange.long:
            return HERE
        return GIVEN if self.exchange.gives else IN_PLACE

    def post(self) -> None:
        x, since = self.exchange, len(self.ops)
        is_read = bool(self.others(self.readers))
        kind = self.kept(self.own) if is_read else HERE
        self.in_place, self.gives = kind == IN_PLACE, kind == GIVEN
        self.theirs_in_place = self.theirs_given = False
        if x.kind != "pull" or x.flow != "all":
            self.read_by[self.site(self.own, f"slot{self.count & 1}")] = self.readers
        if is_read or (x.gives and self.others(self.sources) and self.without != "all post"):
            if is_read and kind == HERE:
                self.write(self.slot(self.own, "bytes"), self.number)  # slot_fill
            self.write(self.slot(self.own, "where"), self.where(kind))
            self.release(self.slot(self.own, "posted"), self.count, since, "posted by release")
        if self.gated:
            self.team_arrive(since, "posted before it arrives")

    def readers_give(self) -> None:
        if self.gated:
            self.team_passed("readers have arrived")
        else:
            for place in self.others(self.readers):
                self.has_posted(place, "readers have posted")
        since = len(self.ops)
        for place in self.readers:  # give
            self.write(f"result{place}.{self.own}", self.number)
        self.release(self.site(self.own, "given"), self.count, since, "given by release")

    def copy_from(self, place: int) -> None:
        if place == self.own:
            if not (self.gives and self.exchange.flow == "all"):
                self.write(f"result{self.own}.{self.own}", self.number)
            return
        kind = self.kept(place)
        self.read(self.slot(place, "where"), self.where(kind))
        if kind == GIVEN:
            self.theirs_given = True
            if not self.gated:
                self.wait("has_given", self.site(place, "given"), self.count)
            return
        self.theirs_in_place |= kind == IN_PLACE  # source_memory
        self.read(self.slot(place, "bytes") if kind == HERE else f"data{place}", self.number)
        self.write(f"result{self.own}.{place}", self.number)

    def sources_take(self) -> None:
        if self.gated:
            self.team_passed("sources have arrived")
        own = [self.own] if self.own in self.sources else []
        waits = [] if self.gated else self.others(self.sources)
        for place in own + self.others(self.sources):
            if place in waits:
                self.has_posted(place, "sources have posted")
            if not self.exchange.folds:
                self.copy_from(place)
        for place in self.sources if self.exchange.folds else []:  # fold_all
            self.copy_from(place)

    def direct(self) -> None:
        self.slot_free()
        self.post()
        if self.gives:
            self.readers_give()
        since = len(self.ops)
        self.sources_take()
        self.release(self.site(self.own, "taken"), self.count, since, "taken by release")
        told = self.in_place or self.theirs_in_place or self.gives or self.theirs_given
        if self.gated and told:  # meets_again
            self.team_arrive(since, "taken before it arrives")
            self.team_passed("all have taken")
        elif self.in_place:  # is_over
            self.have_taken(self.readers, self.count, "readers have taken")

    pull = direct

    # ---- reduce.c

    def blocks(self) -> None:
        """Member k reads block k of all that count, and writes it into the results wanted."""
        x, everyone, since = self.exchange, list(range(self.members)), len(self.ops)
        wanted = {"to_root": [x.root], "before": everyone[1:]}.get(x.flow, everyone)
        self.gets = everyone if self.own in wanted else []
        self.slot_free()
        self.write(self.slot(self.own, "where"), self.where(RESULT))  # result_post
        self.team_arrive(since, "result posted before it arrives")
        self.team_passed("results are posted")
        since = len(self.ops)
        for place in wanted:  # result_at
            self.read(self.slot(place, "where"), self.where(RESULT))
        for place in [x.root] if x.flow == "from_root" else everyone:  # block_terms, block_copy
            self.read(f"data{place}", self.number)
        for place in wanted:
            self.write(f"result{place}.{self.own}", self.number)
        self.team_arrive(since, "blocks written before it arrives")
        self.team_passed("blocks are written")

    def ring(self) -> None:
        n, k, since = self.members, self.own, len(self.ops)
        left, right, last = (k - 1) % n, (k + 1) % n, 2 * (n - 1)
        base = self.steps.get(self.exchange.site, 0)
        self.steps[self.exchange.site] = base + last
        self.slot_free()
        held = [{(f, half): {p} for f in range(n) for half in (0, 1)} for p in range(n)]
        for fragment, half in held[k]:
            self.write(f"result{k}.{fragment}.{half}", self.part(held[k][fragment, half]))
        self.write(self.slot(k, "where"), self.where(RESULT))
        self.release(self.slot(k, "posted"), self.count, since, "result posted by release")
        for step in range(last):
            self.ring_ready(left, right, base + step, "neighbours have made the last step")
            since, before = len(self.ops), held
            held = [dict(parts) for parts in before]
            for p in range(n):  # what all hold after this step, where nothing goes wrong
                hop = step + 1 if step < n - 1 else step - (n - 1)
                for from_, at in (((p - 1) % n, ((p - hop) % n, 0)),
                                  ((p + 1) % n, ((p + hop) % n, 1))):
                    own = before[p][at] if step < n - 1 else set()
                    held[p][at] = before[from_][at] | own
                    if p == k:  # ring_hop
                        word = f"{at[0]}.{at[1]}"
                        self.read(self.slot(from_, "where"), self.where(RESULT))
                        self.read(f"result{from_}.{word}", self.part(before[from_][at]))
                        self.write(f"result{k}.{word}", self.part(held[k][at]))
            self.release(self.site(k, "steps"), base + step + 1, since, "steps by release")
        self.ring_ready(left, right, base + last, "neighbours have made all steps")
        assert all(got == set(range(n)) for got in held[k].values())

    def part(self, of: set[int]) -> int:
        return sum(1 << k for k in of) + (self.number << self.members)

    def ring_ready(self, left: int, right: int, steps: int, name: str) -> None:
        for place in {left, right}:
            self.has_posted(place, "neighbours have posted")
            if steps:
                self.wait(name, self.site(place, "steps"), steps)


def model(members: int, exchanges: Sequence[Exchange], without: str = "",
          each: bool = False) -> Machine:
    return Machine([Member(k, members, exchanges, without).ops for k in range(members)], each)

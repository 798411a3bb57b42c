"""A dataflow in a store over a long time, and a model of its collections.

    After any actions and restarts, each collection at each readable time equals the one that a
    dictionary computes from the committed updates.
"""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from damaged_stores import Wrong, arrangement_of, rows_of
from pyspark.sql import is_remote

from pyspark_diff import Dataflow, NotReadableError, thresholds
from pyspark_diff.dataflow.stored import StateReader

RETAIN = 5
#: The maximum number of files and folders: five commits with their files and leftovers.
MOST_FILES = 600

Records = Counter[tuple[Any, ...]]
Update = tuple[tuple[Any, ...], int, int]


def _joined(a: Records, b: Records) -> Records:
    return Counter({
        (k, v, w): m * n for (k, v), m in a.items() for (other, w), n in b.items() if k == other
    })


def _counts(a: Records, b: Records) -> Records:
    counts: Counter[Any] = Counter()
    for (k, _), m in a.items():
        counts[k] += m
    return Counter({(k, n): 1 for k, n in counts.items() if n})


#: By name a collection, as a dataflow makes it, as a dictionary does, and its inputs.
OUTPUTS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Records, Records], Records], str]] = {
    "a": (lambda a, b: a, lambda a, b: a, "a"),
    "b": (lambda a, b: b, lambda a, b: b, "b"),
    "joined": (lambda a, b: a.join(b, "k"), _joined, "ab"),
    "counts": (lambda a, b: a.select("k").count(), _counts, "a"),
    "distinct": (
        lambda a, b: b.select("w").distinct(),
        lambda a, b: Counter({(w,): 1 for (_, w), n in b.items() if n > 0}), "b",
    ),
    "few": (
        lambda a, b: a.where("v < 2"),
        lambda a, b: Counter({(k, v): n for (k, v), n in a.items() if v < 2}), "a",
    ),
}


@dataclass(frozen=True)
class Kept:
    """A collection at a commit.

    Parameters
    ----------
    frontier : int
    known : int
        For a late collection, the latest time at which it may first be known.
    records : Records
        At its latest complete time.
    """

    frontier: int
    known: int
    records: Records


def readable(arrangement: Any, time: int) -> bool:
    """Whether users can read a collection at a time."""
    try:
        return bool(arrangement.readable(time, str) == time)
    except NotReadableError:
        return False


class LongRun:
    """A dataflow and its model."""

    def __init__(self, spark: Any, root: str, seed: int):
        self.spark, self.root = spark, root
        self.chance = random.Random(seed)
        self.names = ["a", "b", "joined"]
        #: Collections that no step has reached.
        self.fresh: set[str] = set(self.names)
        #: The latest time at which each may first be known. A late collection reads the
        #: inputs that were kept then, and one input may be ahead of the other.
        self.known = dict.fromkeys(self.names, 0)
        self.processed: dict[str, list[Update]] = {"a": [], "b": []}
        self.pending: dict[str, list[Update]] = {"a": [], "b": []}
        #: Up to where inputs were advanced, and where the last commit has that.
        self.now, self.stood = {"a": 0, "b": 0}, {"a": 0, "b": 0}
        #: By commit its collections, and the names of new ones.
        self.past: dict[int, tuple[dict[str, Kept], frozenset[str]]] = {-1: ({}, frozenset())}
        #: The collections after the last step.
        self.here: dict[str, Kept] = {}
        self.readers: list[StateReader] = []
        self.holds: list[tuple[Any, str, int]] = []
        self.done: Counter[str] = Counter()
        self.open()

    # The dataflow.

    def write(self, flow: Dataflow) -> None:
        self.frames = {name: flow.input(name, f"k long, {'vw'[name > 'a']} long")[0]
                       for name in "ab"}
        for name in self.names:
            self.keep(name)

    def keep(self, name: str) -> None:
        OUTPUTS[name][0](self.frames["a"], self.frames["b"]).keep(name)

    def open(self) -> None:
        self.flow = Dataflow.open(
            self.root, self.write, spark=self.spark, runner="local", buckets=2, retain=RETAIN,
            on_change="extend",
        )
        self.pending = {"a": [], "b": []}
        self.now = dict(self.stood)
        self.holds = []
        for name in "ab":
            self.expect(self.flow.session(name).time(), self.now[name], f"time of {name}")

    def last(self) -> int:
        """The number of the last commit."""
        assert self.flow._store is not None
        return self.flow._store.last.number

    def check_past(self, reader: Any, what: str) -> None:
        """Check the collections of a reader. A commit of an opening has those of the one
        before."""
        past, new = self.past[max(number for number in self.past if number <= reader.commit)]
        names = set(reader)
        if not set(past) <= names <= {*past, *new}:
            raise Wrong(f"{what}: {sorted(names)} and not {sorted(past)}, with {sorted(new)}")
        for name, state in past.items():
            self.expect(reader[name].frontier(), state.frontier, f"frontier of {name}")
            self.expect_last(reader[name], state, f"{name} {what}")

    def note(self) -> None:
        """Note the collections of the commit of a step or a discard. Removed ones are not
        in it. Before a step it has a new one only if an earlier commit had it."""
        here = {name: state for name, state in self.here.items()
                if name in self.names and name not in self.fresh}
        self.past[self.last()] = here, frozenset(self.fresh)

    def state_after_step(self, name: str) -> Kept:
        """A collection after the last step."""
        frontier = self.frontier(name)
        return Kept(frontier, self.known[name], self.expected(name, frontier - 1))

    # The model.

    def frontier(self, name: str) -> int:
        return min(self.stood[source] for source in OUTPUTS[name][2])

    def expected(self, name: str, time: int) -> Records:
        a, b = (self.contents(source, time) for source in "ab")
        records = OUTPUTS[name][1](a, b)
        return Counter({record: n for record, n in records.items() if n})

    def contents(self, source: str, time: int) -> Records:
        counts: Records = Counter()
        for record, at, diff in self.processed[source]:
            if at <= time:
                counts[record] += diff
        return counts

    def expect(self, actual: object, expected: object, what: str) -> None:
        if actual != expected:
            raise Wrong(f"{what}: {actual!r} and not {expected!r}"[:900])

    def expect_last(self, collection: Any, state: Kept, what: str) -> None:
        """The latest complete time can be read. A late collection is unknown at times at
        which its inputs were not kept, and raises an error until its frontier is later."""
        arrangement, time = arrangement_of(collection), state.frontier - 1
        self.expect(arrangement.trace.upper.bound, state.frontier, f"frontier of {what}")
        self.expect(readable(arrangement, state.frontier), False, f"{what} beyond its frontier")
        since = arrangement.trace.since.bound
        if since is None or since > max(time, state.known):
            raise Wrong(f"{what}: known from {since} on, and not from {max(time, state.known)} on")
        self.done["known" if since <= time else "not known yet"] += 1
        self.expect(readable(arrangement, time), since <= time, f"whether {what} can be read")
        if since <= time:
            self.expect(self.at(collection, time), state.records, what)

    @staticmethod
    def at(collection: Any, time: int) -> Records:
        counts: Records = Counter()
        for (*record, when, diff), number in rows_of(collection).items():
            if when <= time:
                counts[tuple(record)] += diff * number
        return Counter({record: n for record, n in counts.items() if n})

    def check(self) -> None:
        for name, state in self.here.items():
            self.expect_last(self.flow[name], state, name)

    # Actions.

    def insert(self) -> None:
        source = self.chance.choice("ab")
        records = [
            (self.chance.randrange(4), self.chance.randrange(4))
            for _ in range(self.chance.choice([1, 2, 9]))
        ]
        self.flow.session(source).insert(records)
        self.pending[source] += [(record, self.now[source], 1) for record in records]

    def remove(self) -> None:
        source = self.chance.choice("ab")
        there = self.contents(source, 1 << 60)
        for record, _, diff in self.pending[source]:
            there[record] += diff
        records = [record for record, n in there.items() if n > 0][:self.chance.randint(1, 3)]
        if records:
            self.flow.session(source).remove(records)
            self.pending[source] += [(record, self.now[source], -1) for record in records]

    def advance(self) -> None:
        for source in self.chance.choice(["a", "b", "ab", "ab", "ab"]):
            self.now[source] += self.chance.randint(1, 2)
            self.flow.session(source).advance_to(self.now[source])

    def step(self) -> None:
        last = self.last()
        self.know()
        self.flow.step()
        for source in "ab":
            self.processed[source] += self.pending[source]
        self.pending = {"a": [], "b": []}
        self.stood = dict(self.now)
        self.fresh = set()
        self.here = {name: self.state_after_step(name) for name in self.names}
        if self.last() > last:
            self.note()
        self.check()

    def know(self) -> None:
        """Set the time from which the next step knows the new collections: the latest of
        the times of all their sources."""
        old = set(self.names) - self.fresh
        if self.fresh and old:
            sources = {source for name in self.fresh for source in OUTPUTS[name][2]}
            since = max([self.stood[source] - 1 for source in sources] + [
                self.known[name] for name in old if sources & set(OUTPUTS[name][2])
            ])
            self.known.update(dict.fromkeys(self.fresh, max(since, 0)))

    def advance_and_step(self) -> None:
        self.advance()
        self.step()

    def discard(self) -> None:
        source, last = self.chance.choice("ab"), self.last()
        self.flow.session(source).discard()
        self.pending[source] = []
        # A discard also drops processed updates at times that no step released yet.
        stood = self.stood[source]
        self.processed[source] = [update for update in self.processed[source] if update[1] < stood]
        if self.last() > last:
            self.note()

    def late_operator(self) -> None:
        missing = [name for name in OUTPUTS if name not in self.names]
        if missing:
            name = self.chance.choice(missing)
            self.names.append(name)
            self.fresh.add(name)
            self.keep(name)

    def hold(self) -> None:
        name = self.chance.choice(self.names)
        time = self.frontier(name) - 1
        if name not in self.fresh and readable(arrangement_of(self.flow[name]), time):
            self.holds.append((self.flow[name].hold(time), name, time))
            if len(self.holds) > 3:
                self.holds.pop(0)[0].release()

    def read_held(self) -> None:
        for _, name, time in self.holds:
            self.expect(readable(arrangement_of(self.flow[name]), time), True, f"{name} is held")
            self.expect(self.at(self.flow[name], time), self.expected(name, time), name)

    def read(self) -> None:
        """Read a collection through Spark, as users do."""
        name = self.chance.choice(self.names)
        time = self.chance.randrange(max(self.now.values()) + 1)
        since = max(self.frontier(name) - 1, self.known.get(name, 0))
        try:
            rows = self.flow[name].at(time, allow_negative=True).collect()
        except NotReadableError:
            if name not in self.fresh and since <= time < self.frontier(name):
                raise
            return
        expected = self.expected(name, time)
        self.expect(Counter(map(tuple, rows)), +expected, f"{name} at {time}")

    def changes(self) -> None:
        if self.holds:
            _, name, first = self.holds[0]
            last = self.frontier(name) - 1
            counts: Records = Counter()
            for *record, _, diff in self.flow[name].changes(first, last).collect():
                counts[tuple(record)] += diff
            before, after = self.expected(name, first), self.expected(name, last)
            after.subtract(before)
            self.expect(
                {r: n for r, n in counts.items() if n}, {r: n for r, n in after.items() if n},
                f"changes of {name}",
            )

    def reopen(self) -> None:
        self.flow.close()
        self.open()

    def kill(self) -> None:
        self.flow._storage.close()
        self.open()

    def new_reader(self) -> None:
        self.readers.append(StateReader(self.root, spark=self.spark))
        if len(self.readers) > 2:
            self.readers.pop(0).close()
        self.read_readers()

    def refresh(self) -> None:
        if self.readers:
            self.chance.choice(self.readers).refresh()
        self.read_readers()

    def read_readers(self) -> None:
        for reader in self.readers:
            self.check_past(reader, "of a reader")

    def older(self) -> None:
        """All commits that are retained."""
        for number in self.flow.history().select("commit").toPandas()["commit"]:
            with self.flow.at(int(number)) as reader:
                self.check_past(reader, f"at {number}")

    def vacuum(self) -> None:
        self.flow.vacuum(dry_run=self.chance.random() < 0.3, older_than=0.0)
        files = sum(len(names) for _, _, names in os.walk(self.root))
        if files > MOST_FILES:
            raise Wrong(f"{files} files")

    def verify(self) -> None:
        self.expect(self.flow.verify(), [], "verify")

    def drop(self) -> None:
        """Another program: with one collection less, or one more."""
        if len(self.names) > 3 and self.chance.random() < 0.6:
            gone = self.chance.choice([name for name in self.names if name not in "ab"])
            self.names.remove(gone)
            self.fresh.discard(gone)
        else:
            missing = [name for name in OUTPUTS if name not in self.names]
            if missing:
                self.names.append(self.chance.choice(missing))
                self.fresh.add(self.names[-1])
        self.reopen()

    def act(self) -> None:
        name = self.chance.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self.done[name] += 1
        getattr(self, name)()

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.flow.close()


#: How often each is taken.
ACTIONS = {
    "insert": 20, "remove": 8, "advance": 6, "step": 8, "advance_and_step": 20, "discard": 2,
    "late_operator": 1, "hold": 3, "read_held": 3, "read": 1, "changes": 1, "reopen": 3, "kill": 3,
    "new_reader": 2, "refresh": 4, "older": 1, "vacuum": 3, "verify": 2, "drop": 2,
}


def _persistent(spark: Any) -> int:
    """The number of persistent RDDs; a server does not report it."""
    return 0 if is_remote() else spark.sparkContext._jsc.getPersistentRDDs().size()


def run(spark: Any, root: str, actions: int, seed: int = 0) -> Counter[str]:
    """Take many actions; return the count of each, and the sizes at the end."""
    before = _persistent(spark)
    with thresholds.using(in_memory_rows_max=4, tombstones_max=10):
        long = LongRun(spark, root, seed)
        descriptors: list[int] = []
        for number in range(actions):
            try:
                long.act()
            except Exception as error:
                raise Wrong(f"seed {seed}, action {number}: {error!r}") from error
            if number % 50 == 49:
                gc.collect()
                descriptors.append(len(os.listdir("/proc/self/fd")))
        long.step()
        long.vacuum()
        files = sum(len(names) for _, _, names in os.walk(root))
        long.close()
    if _persistent(spark) != before:
        raise Wrong(f"{_persistent(spark)} persistent RDDs, and there were {before}")
    if descriptors and max(descriptors) > descriptors[0] + 24:
        raise Wrong(f"descriptors: {descriptors}")
    tmp = [path for path in Path(root).rglob("*.tmp")]
    if tmp:
        raise Wrong(f"left: {tmp}")
    return long.done + Counter({"files at the end": files})

"""Identifiers of clusters that persist while a cluster keeps its core, and a log of changes.

Components have the name of their smallest record, so a name changes with that record. An identifier
does not: a cluster keeps the one that most of its records had before.

    records that two clusters have in common, the most first  ->  who keeps which identifier

The target is a file of SQLite. An epoch is one transaction, and a repeated epoch changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from pyspark_diff.sinks import Epoch, Sink

TABLES = """
CREATE TABLE IF NOT EXISTS clusters (record TEXT PRIMARY KEY, component TEXT, cluster INTEGER);
CREATE INDEX IF NOT EXISTS by_component ON clusters (component);
CREATE TABLE IF NOT EXISTS log (epoch INTEGER, event TEXT, cluster INTEGER, other, record TEXT);
CREATE TABLE IF NOT EXISTS epochs (number INTEGER PRIMARY KEY, created INTEGER);
"""
#: An event, its cluster, the cluster that it came from or went into, and a record.
Event = tuple[str, int, "int | None", "str | None"]


def named(
    members: dict[str, list[str]], before: dict[str, int], created: int
) -> tuple[dict[str, int], int]:
    """The identifier of each component, and the largest identifier.

    Parameters
    ----------
    members : dict of str to list of str
        The records of each changed component.
    before : dict of str to int
        The identifier that each record had.
    created : int
        The largest identifier so far.
    """
    shared = Counter(
        (component, before[record])
        for component, records in members.items() for record in records if record in before
    )
    # The oldest identifier and the smallest component come first if two share as many records.
    order = sorted((-count, cluster, component) for (component, cluster), count in shared.items())
    names: dict[str, int] = {}
    used: set[int] = set()
    for _, cluster, component in order:
        if component not in names and cluster not in used:
            names[component] = cluster
            used.add(cluster)
    for component in sorted(set(members) - set(names)):
        created += 1
        names[component] = created
    return names, created


def events(before: dict[str, int], after: dict[str, int]) -> list[Event]:
    """The changes from the identifiers of some records to their new ones.

    Clusters are created, split from others, merged into others, or deleted. Records join or leave a
    cluster that persists, or move from one to another.
    """
    old, new = set(before.values()), set(after.values())
    origins: dict[int, set[int]] = defaultdict(set)
    targets: dict[int, set[int]] = defaultdict(set)
    for record, cluster in after.items():
        if record in before:
            origins[cluster].add(before[record])
            targets[before[record]].add(cluster)
    log: list[Event] = []
    for cluster in sorted(new - old):
        parts = sorted(origins[cluster])
        log += [("split", cluster, part, None) for part in parts]
        log += [("created", cluster, None, None)] * (not parts)
    for cluster in sorted(old - new):
        parts = sorted(targets[cluster])
        log += [("merged", cluster, part, None) for part in parts]
        log += [("deleted", cluster, None, None)] * (not parts)
    for record in sorted(set(before) | set(after)):
        was, now = before.get(record), after.get(record)
        if was is None and now in old:
            log.append(("joined", now, None, record))
        elif now is None and was in new:
            log.append(("left", was, None, record))
        elif was is not None and now is not None and was != now:
            log.append(("moved", now, was, record))
    return log


def apply(db: sqlite3.Connection, changes: Iterable[tuple[str, str, int]], number: int) -> None:
    """Bring the tables to the components after a step: rows of record, component and diff."""
    come: dict[str, str] = {}
    gone: set[str] = set()
    for record, component, diff in changes:
        if diff > 0:
            come[record] = component
        else:
            gone.add(record)
    db.execute("CREATE TEMP TABLE changed (record TEXT PRIMARY KEY, component TEXT)")
    db.executemany("INSERT INTO changed VALUES (?, ?)", [
        (record, come.get(record)) for record in gone | set(come)])
    # All records of the components that lose or get a record.
    db.execute("CREATE TEMP TABLE touched AS SELECT component FROM changed UNION "
               "SELECT clusters.component FROM clusters JOIN changed USING (record)")
    inside = "FROM clusters WHERE component IN (SELECT component FROM touched)"
    before = dict(db.execute(f"SELECT record, cluster {inside}"))
    db.execute("DELETE FROM clusters WHERE record IN (SELECT record FROM changed)")
    db.execute("INSERT INTO clusters SELECT record, component, 0 FROM changed "
               "WHERE component IS NOT NULL")
    members: dict[str, list[str]] = defaultdict(list)
    for record, component in db.execute(f"SELECT record, component {inside}"):
        members[component].append(record)
    (created,) = db.execute("SELECT coalesce(max(created), 0) FROM epochs").fetchone()
    names, created = named(members, before, created)
    after = {record: names[name] for name, records in members.items() for record in records}
    db.executemany("UPDATE clusters SET cluster = ? WHERE record = ?", [
        (cluster, record) for record, cluster in after.items()])
    db.executemany(f"INSERT INTO log VALUES ({number}, ?, ?, ?, ?)", events(before, after))
    db.execute("INSERT INTO epochs VALUES (?, ?)", (number, created))
    db.execute("DROP TABLE changed")
    db.execute("DROP TABLE touched")


class Identifiers(Sink):
    """A sink of ``record`` and ``component`` that keeps ``clusters`` and ``log`` in SQLite."""

    def __init__(self, path: Path):
        self._path = path

    def connect(self) -> sqlite3.Connection:
        """A connection to the tables."""
        db = sqlite3.connect(self._path)
        db.executescript(TABLES)
        return db

    def write(self, epoch: Epoch) -> None:
        with closing(self.connect()) as db, db:  # one transaction
            (last,) = db.execute("SELECT coalesce(max(number), -1) FROM epochs").fetchone()
            if epoch.number <= last:
                return  # a repeated write, after a failure
            changes = [(row[0], row[1], row[-1]) for row in epoch.changes.toLocalIterator()]
            if epoch.is_first:  # the changes are the whole collection
                come = {record for record, _, _ in changes}
                records = db.execute("SELECT record FROM clusters").fetchall()
                changes += [(record, "", -1) for (record,) in records if record not in come]
            apply(db, changes, epoch.number)

"""The example of entity resolution: over random changes, and as users run it.

    a cluster that has most records of an old one, and most of its own from it, keeps its identifier
"""

from __future__ import annotations

import importlib
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import networkx as nx
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "entity_resolution"


@pytest.fixture
def identifiers(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("identifiers")


def components(records, pairs):
    graph = nx.Graph()
    graph.add_nodes_from(records)
    graph.add_edges_from(pair for pair in pairs if set(pair) <= set(records))
    return {record: min(part) for part in nx.connected_components(graph) for record in part}


@pytest.mark.parametrize("seed", range(20))
def test_identifiers_persist_over_random_changes(identifiers, seed):
    choice = random.Random(seed)
    everyone = [f"r{n}" for n in range(12)]
    records, pairs = set(everyone[:8]), set()
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(identifiers.TABLES)
        parts, names, largest = {}, {}, 0
        for step in range(12):
            for _ in range(choice.randrange(3)):
                records ^= {choice.choice(everyone)}
            for _ in range(choice.randrange(1, 4)):
                pairs ^= {tuple(sorted(choice.sample(everyone, 2)))}
            now = components(records, pairs)
            changes = [(*row, -1) for row in parts.items() if row not in now.items()]
            changes += [(*row, 1) for row in now.items() if row not in parts.items()]
            choice.shuffle(changes)
            with db:
                identifiers.apply(db, changes, step)
            rows = db.execute("SELECT record, component, cluster FROM clusters").fetchall()
            assert {record: component for record, component, _ in rows} == now
            after = {record: cluster for record, _, cluster in rows}
            # One identifier for each component.
            pairings = {(component, cluster) for _, component, cluster in rows}
            assert len(pairings) == len(dict(pairings)) == len({cluster for _, cluster in pairings})
            shared = Counter((names[r], after[r]) for r in names if r in after)
            old, new = Counter(names.values()), Counter(after.values())
            for (before, cluster), count in shared.items():
                if 2 * count > old[before] and 2 * count > new[cluster]:
                    assert before == cluster
            assert all(cluster in old or cluster > largest for cluster in new)
            largest = max([largest, *new])
            log = db.execute("SELECT event, cluster, other, record FROM log WHERE epoch = ?",
                             (step,)).fetchall()
            assert {row[1:] for row in log if row[0] == "moved"} == {
                (after[r], names[r], r) for r in names if r in after and after[r] != names[r]}
            origins = {cluster: {a for a, b in shared if b == cluster} for cluster in new}
            fresh, ended = set(new) - set(old), set(old) - set(new)
            assert {row[1] for row in log if row[0] == "created"} == {
                cluster for cluster in fresh if not origins[cluster]}
            assert {row[1:3] for row in log if row[0] == "split"} == {
                (cluster, part) for cluster in fresh for part in origins[cluster]}
            assert {row[1:3] for row in log if row[0] == "merged"} == {
                pair for pair in shared if pair[0] in ended}
            assert {row[1] for row in log if row[0] == "deleted"} == {
                cluster for cluster in ended if not any(a == cluster for a, _ in shared)}
            assert {(row[1], row[3]) for row in log if row[0] == "joined"} == {
                (c, r) for r, c in after.items() if r not in names and c in old}
            assert {(row[1], row[3]) for row in log if row[0] == "left"} == {
                (c, r) for r, c in names.items() if r not in after and c in new}
            parts, names = now, after


@pytest.mark.classic_only("the example is a program that spark-submit starts")
def test_each_day_of_the_example(spark, identifiers, monkeypatch, tmp_path, capsys):
    module = importlib.import_module("resolve")
    module.main(["--folder", str(tmp_path)])
    out = capsys.readouterr().out
    assert out.endswith("""\
day 1
  cluster 2 merged into 1
  record r4 moved from 2 to 1
  record r5 moved from 2 to 1
    1: r1 r2 r3 r4 r5
    3: r6
day 2
  cluster 4 split from 1
  record r4 moved from 1 to 4
  record r5 moved from 1 to 4
  record r7 joined 3
    1: r1 r2 r3
    3: r6 r7
    4: r4 r5
day 3
  record r1 left 1
  record r7 left 3
    1: r2 r3
    3: r6
    4: r4 r5
""")
    # A run without changes, as after a failure, does not change the tables.
    with closing(sqlite3.connect(tmp_path / "clusters.sqlite")) as db:
        before = db.execute("SELECT * FROM clusters ORDER BY record").fetchall()
        module.catch_up(*module.frames(spark, 3), tmp_path, 0.9)
        assert db.execute("SELECT * FROM clusters ORDER BY record").fetchall() == before

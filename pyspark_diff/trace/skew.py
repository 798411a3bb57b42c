"""Skew: how many rows each bucket of an arrangement has, and which keys have the most of them."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from pyspark_diff.trace import storage
from pyspark_diff.trace.arrangement import Arrangement

#: So many of the heaviest keys of a bucket are named.
NAMED = 3


class Heavy(NamedTuple):
    """A key, as JSON, and how many update rows it has."""

    key: str
    rows: int


class Load(NamedTuple):
    """What one bucket holds.

    Parameters
    ----------
    bucket : int
    rows, bytes : int
    heaviest : list of Heavy
        The keys with the most rows, the first of all first.
    """

    bucket: int
    rows: int
    bytes: int
    heaviest: list[Heavy]


def loads(arrangement: Arrangement, buckets: int) -> list[Load]:
    """What each bucket holds. All hashes of keys are read for it, and no more.

    Keys whose hashes of 64 bits are the same count as one.

    Parameters
    ----------
    arrangement : Arrangement
    buckets : int
        How many there are.
    """
    return [_load(arrangement, bucket) for bucket in range(buckets)]


def _load(arrangement: Arrangement, bucket: int) -> Load:
    rows: dict[int, int] = {}
    places: dict[int, tuple[str, int]] = {}
    files = [f for batch in arrangement.trace.batches for f in batch.files.get(bucket, ())]
    for file in files:
        hashes = storage.open_updates(file.path).key64
        starts = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1])) if hashes.size else hashes
        counts = np.diff(starts, append=hashes.size)
        # A key that is not among these in any file may be among them in all: seldom, and then it
        # is not much heavier than they are.
        most = np.argsort(counts, kind="stable")[::-1][:max(64, NAMED)]
        for at, count in zip(starts[most].tolist(), counts[most].tolist()):
            key = int(hashes[at])
            rows[key] = rows.get(key, 0) + count
            places.setdefault(key, (file.path, at))
    heaviest = sorted(rows, key=lambda key: (-rows[key], key))[:NAMED]
    named = [Heavy(_named(arrangement, *places[key]), rows[key]) for key in heaviest]
    return Load(
        bucket, sum(file.rows for file in files), sum(file.size for file in files), named
    )


def _named(arrangement: Arrangement, path: str, at: int) -> str:
    """The key of a row, as JSON."""
    row = storage.open_updates(path).take(np.array([at]))
    columns = arrangement.layout.decode(row)
    values = {name: column[0].as_py() for name, column in zip(arrangement.key, columns)}
    return json.dumps(values, default=str, ensure_ascii=False)

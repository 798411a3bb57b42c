"""Skew: how many rows each bucket of an arrangement has, and which keys have the most of them."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from pyspark_diff.trace import storage
from pyspark_diff.trace.arrangement import Arrangement

#: The number of heaviest keys that the report lists for each bucket.
NAMED = 3


class Heavy(NamedTuple):
    """A key, as JSON, and how many update rows it has."""

    key: str
    rows: int


class Load(NamedTuple):
    """The contents of one bucket.

    Parameters
    ----------
    heaviest : list of Heavy
        The keys with the most rows, in descending order of rows.
    """

    bucket: int
    rows: int
    bytes: int
    heaviest: list[Heavy]


def loads(arrangement: Arrangement, buckets: int) -> list[Load]:
    """The contents of each bucket. The reads are the hashes of all keys, and the named keys.

    Keys with the same hash of 64 bits count as one key.

    Parameters
    ----------
    buckets : int
        The number of buckets.
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
        # A key that no file lists here may be among the heaviest keys of all files together. This
        # is rare, and such a key is not much heavier than the listed ones.
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

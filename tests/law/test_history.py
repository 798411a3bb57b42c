"""The history before an interval: parts without a common key are not added up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_diff import thresholds
from pyspark_diff.kernels import history as module
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.history import history
from pyspark_diff.kernels.updates import UpdateChunk

rows = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 1), st.sampled_from([1, 2, -1])),
    min_size=1, max_size=10,
)


def batch(rows, hashed):
    """Rows of (key, value, time, diff) as a batch, with hashes of the keys if ``hashed``."""
    k, v, time, diff = (np.array(column, dtype=np.int64) for column in zip(*rows))
    columns = (pa.array(k),) if hashed else None
    key = k % 2 if hashed else k  # half of all keys collide
    return consolidate(UpdateChunk(key, columns, time, diff, v)).updates


def comparable(result):
    """Rows as a comparable value for any order of the rows of a key."""
    group, read, rows = result
    if rows is None:
        return group.tolist(), read, None
    keys = rows.columns[0].to_pylist() if rows.columns else rows.key64.tolist()
    return group.tolist(), read, sorted(
        zip(group.tolist(), keys, rows.val64.tolist(), rows.times().tolist(),
            rows.diffs().tolist())
    )


@given(
    new=rows, parts=st.lists(rows, min_size=2, max_size=4), hashed=st.booleans(),
    disjoint=st.booleans(), still=st.booleans(),
)
def test_parts_without_a_key_in_common_are_not_added_up(new, parts, hashed, disjoint, still):
    """The threshold changes the cost and not the history."""
    if disjoint:
        parts = [[(k * len(parts) + i, *rest) for k, *rest in part] for i, part in enumerate(parts)]
        new = [*new, *((k, v, 2, 1) for part in parts for k, v, *_ in part)]
    if still:
        parts = [[(k, v, 0, diff) for k, v, _, diff in part] for part in parts]
    touched = consolidate(batch([(k, v, 2, abs(d)) for k, v, _, d in new], hashed))
    batches, results = [batch(part, hashed) for part in parts], []
    for rows_min in 0, 1 << 30:
        with thresholds.using(disjoint_check_rows_min=rows_min):
            results.append(comparable(history(touched, batches, 2)))
    assert results[0] == results[1]


def test_buckets_that_are_done_at_once_are_not_added_up(monkeypatch, use_thresholds):
    """Two buckets of many rows, of one time: sorting them by record would be most of the work."""
    added = []
    monkeypatch.setattr(module, "consolidate", lambda rows: added.append(rows) or consolidate(rows))
    use_thresholds(disjoint_check_rows_min=4)
    touched = consolidate(batch([(k, 0, 2, 1) for k in range(4)], False))
    buckets = [batch([(k, v, 0, 1) for k in keys for v in range(2)], False)
               for keys in ((1, 2), (0, 3))]
    group, read, records = history(touched, buckets, 2)
    assert (group.tolist(), read) == ([0, 0, 1, 1, 2, 2, 3, 3], 8) and not added
    assert records.key64.tolist() == group.tolist()
    history(touched, [*buckets, buckets[0]], 2)
    assert added

"""Changes as rows: with time and diff, or in the form of change data capture.

For updates ``U`` of a bucket, subtracted updates ``V``, and ``s < t``, `changes_in` yields::

    consolidate(u for u in U - V if s < time(u) <= t)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.data_source.opened import Rows
from pyspark_diff.errors import NotReadableError
from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.key_ranges import fitting, ranges, updates_between
from pyspark_diff.kernels.layout import from_int64
from pyspark_diff.kernels.standing import repeated_places
from pyspark_diff.kernels.updates import UpdateChunk, concat


def changes_in(
    rows: Rows, new: Sequence[UpdateChunk], old: Sequence[UpdateChunk], since: int, until: int,
    floor: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Record batches of changes.

    Parameters
    ----------
    new, old : sequence of UpdateChunk
        The present updates, and the earlier ones, which are subtracted.
    since, until : int
        Changes are at times after the first, up to and with the last.
    floor : int, optional
        Earlier times are advanced to it, before they are compared with ``since``.
    """
    batches = [updates for updates in (*new, *old) if len(updates)]
    negated = {id(updates) for updates in old}
    most = thresholds.current.standing_piece_rows
    for keys in ranges(batches, [], fitting(batches, most)) if batches else ():
        parts = []
        for updates in batches:
            part = updates_between(updates, keys)
            times = part.times() if floor is None else np.maximum(part.times(), floor)
            wanted = (times > since) & (times <= until)
            diffs = -part.diffs() if id(updates) in negated else part.diffs()
            if rows.shape != "changes":
                times = np.zeros_like(times)  # only the net change matters
            parts.append(part.at(times, diffs).placed(0).take(wanted))
        changes = consolidate(concat(parts)).updates
        if rows.shape == "changes":
            moments = from_int64(pa.array(changes.times()), rows.moment)
            yield from rows.batches(changes, (moments, pa.array(changes.diffs())))
        elif rows.shape == "cdc":
            yield from _as_cdc(rows, changes)
        else:
            yield from _as_rows(rows, changes)


def _as_cdc(rows: Rows, changes: UpdateChunk) -> Iterator[pa.RecordBatch]:
    """A row for each inserted or deleted record. If a key has one of each, both are an update."""
    if not len(changes):
        return
    diffs = changes.diffs()
    kinds = np.where(diffs > 0, 0, 1)
    if changes.val64 is not None:
        starts = runs_of(changes).key_starts
        assert starts is not None  # records are pairs
        lengths = np.diff(starts, append=len(changes))
        pairs = starts[lengths == 2]
        pairs = pairs[(np.abs(diffs[pairs]) == 1) & (diffs[pairs] + diffs[pairs + 1] == 0)]
        for at in (pairs, pairs + 1):
            kinds[at] += 2
        # The row before comes first in an update.
        order = np.arange(len(changes))
        turned = pairs[diffs[pairs] > 0]
        order[turned], order[turned + 1] = turned + 1, turned
        changes, kinds, diffs = changes.take(order), kinds[order], diffs[order]
    names = pa.array(["insert", "delete", "update_postimage", "update_preimage"])
    for places in repeated_places(np.abs(diffs), thresholds.current.read_batch_rows):
        version = pa.array(np.full(places.size, rows.commit))
        extra = (names.take(pa.array(kinds[places])), version)
        yield from rows.batches(changes.take(places), extra)


def _as_rows(rows: Rows, changes: UpdateChunk) -> Iterator[pa.RecordBatch]:
    """The inserted records with their multiplicity; a removed one is an error."""
    diffs = changes.diffs()
    if (diffs < 0).any():
        wrong = changes.take(np.flatnonzero(diffs < 0)[:5])
        # The message shows five records.
        shown = list(zip(*(column.to_pylist() for column in rows.layout.decode(wrong))))
        raise NotReadableError(
            f"records were taken back, such as {shown}, and shape 'rows' cannot express that: read "
            "the stream as .option('shape', 'changes'), or as 'cdc'"
        )
    for places in repeated_places(diffs, thresholds.current.read_batch_rows):
        yield from rows.batches(changes.take(places))

"""Changes as rows: with time and diff, or as change data capture has them.

For updates ``U`` of a bucket, ``V`` that are taken off, and ``s < t``, `changes_in` gives::

    consolidate(u for u in U - V if s < time(u) <= t)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.data_source.opened import BATCH_ROWS, Rows
from pyspark_diff.errors import NotReadableError
from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.key_ranges import fitting, ranges, within
from pyspark_diff.kernels.layout import from_int64
from pyspark_diff.kernels.standing import PIECE_ROWS, each_as_often
from pyspark_diff.kernels.updates import Updates, concat


def changes_in(
    rows: Rows, new: Sequence[Updates], old: Sequence[Updates], since: int, until: int,
    floor: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Record batches of changes.

    Parameters
    ----------
    rows : Rows
    new, old : sequence of Updates
        What there is, and what there was before, which is taken off it.
    since, until : int
        Changes are at times after the first, up to and with the last.
    floor : int, optional
        Earlier times become it, before that is asked.
    """
    held = [updates for updates in (*new, *old) if len(updates)]
    taken = {id(updates) for updates in old}
    for keys in ranges(held, [], fitting(held, PIECE_ROWS)) if held else ():
        parts = []
        for updates in held:
            part = within(updates, keys)
            times = part.times() if floor is None else np.maximum(part.times(), floor)
            wanted = (times > since) & (times <= until)
            diffs = -part.diffs() if id(updates) in taken else part.diffs()
            if rows.shape != "changes":
                times = np.zeros_like(times)  # what has changed on the whole
            parts.append(part.at(times, diffs).placed(0).take(wanted))
        found = consolidate(concat(parts)).updates
        if rows.shape == "changes":
            moments = from_int64(pa.array(found.times()), rows.moment)
            yield from rows.batches(found, (moments, pa.array(found.diffs())))
        elif rows.shape == "cdc":
            yield from _as_cdc(rows, found)
        else:
            yield from _as_rows(rows, found)


def _as_cdc(rows: Rows, changes: Updates) -> Iterator[pa.RecordBatch]:
    """A row for each record that came or went; where a key lost one and got one, an update."""
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
        # An update begins with what there was before.
        order = np.arange(len(changes))
        turned = pairs[diffs[pairs] > 0]
        order[turned], order[turned + 1] = turned + 1, turned
        changes, kinds, diffs = changes.take(order), kinds[order], diffs[order]
    names = pa.array(["insert", "delete", "update_postimage", "update_preimage"])
    for places in each_as_often(np.abs(diffs), BATCH_ROWS):
        version = pa.array(np.full(places.size, rows.commit))
        beside = (names.take(pa.array(kinds[places])), version)
        yield from rows.batches(changes.take(places), beside)


def _as_rows(rows: Rows, changes: Updates) -> Iterator[pa.RecordBatch]:
    """What came, as often as it did; nothing may have gone."""
    diffs = changes.diffs()
    if (diffs < 0).any():
        wrong = changes.take(np.flatnonzero(diffs < 0)[:5])
        # Five of them, for the message.
        shown = list(zip(*(column.to_pylist() for column in rows.layout.decode(wrong))))
        raise NotReadableError(
            f"records were taken back, such as {shown}, and rows alone cannot tell that: read the "
            "stream as .option('shape', 'changes'), or as 'cdc'"
        )
    for places in each_as_often(diffs, BATCH_ROWS):
        yield from rows.batches(changes.take(places))

"""The work of an operator that replays histories, in one bucket: each visited key anew.

In a loop the visited keys are those with new updates and those that are due. The output at a
coordinate is the output up to it, minus the earlier output at smaller coordinates, and the keys are
due again at later coordinates of their updates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Sequence

import pyarrow as pa

from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.coordinates import Limit, pack
from pyspark_diff.kernels.equality import normalise
from pyspark_diff.kernels.history import due_after, recent
from pyspark_diff.kernels.key_ranges import Keys
from pyspark_diff.kernels.replay import compact
from pyspark_diff.kernels.updates import UpdateChunk, concat, empty, spread
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.runners.pieces import RowsInMemory, Spool, room
from pyspark_diff.runners.read import Read, visited_keys
from pyspark_diff.runners.work import BucketResult, write_file
from pyspark_diff.times import Coordinate
from pyspark_diff.trace.batch import BatchFile


def process_replay(
    read: Read, kernel: ReplayKernel, bucket: int, waiting: RowsInMemory, in_memory: bool
) -> BucketResult:
    """The output of a bucket, range of keys by range of keys."""
    files: list[BatchFile] = []
    due: dict[int, tuple[BatchFile, ...]] = {}
    spool = Spool(read.directory, f"out-{bucket:05d}", waiting, make=in_memory)
    rows_in = rows_read = 0
    for number, keys in enumerate(read.ranges(bucket)):
        name = f"{bucket:05d}" if keys is None else f"{bucket:05d}-{number}"
        sides = read.sides(bucket, keys)
        rows_in += sum(len(side.new.updates) for side in sides)
        with room(read.name, sides, read.most):
            result = _replay(read, kernel, bucket, keys, name, sides, in_memory)
        rows_read += result.rows_read
        files += result.files
        if result.output is not None:
            spool.add(result.output)
        for code, touched in result.due.items():
            due[code] = (*due.get(code, ()), *touched)
    return BucketResult(bucket, tuple(files), spool.added(), rows_in, rows_read, {}, due)


class ReplayResult(NamedTuple):
    """The result of one range of keys."""

    files: list[BatchFile]
    output: pa.Table | None
    rows_read: int
    due: dict[int, list[BatchFile]]


def _replay(
    read: Read, kernel: ReplayKernel, bucket: int, keys: Keys, name: str, sides: Sequence[Side],
    in_memory: bool,
) -> ReplayResult:
    at = read.at
    if at and read.own is None:
        raise ValueError("in a loop an operator arranges its output of other coordinates")
    due = read.visited_again(bucket, keys)
    touched = visited_keys(due, sides) if at else empty()
    visited: Sequence[Side] = sides
    rows_read = 0
    if at:
        visited, rows_read = _visited(read, due, sides, touched)
    own, earlier = None, empty()
    if read.own is not None:
        own = read.own.side(bucket, keys, read.lower, read.upper)
        own = read.own.with_recorded(own, bucket, touched, read.lower)
        limit = _limit(own.depth, at)
        if own.earlier:
            grouped, rows = recent(touched, own.earlier, limit)
            earlier, rows_read = grouped.updates, rows_read + rows
        own = replace(own, earlier=[], limit=limit) if at else own
    wanted = () if read.output is None else read.output.wanted
    changes, rows = kernel(visited, own, wanted if own is None else read.stored)
    files: list[BatchFile] = []
    if own is not None:
        # Stored rows are in normal form, so retractions and insertions must be.
        changes = list(map(normalise, changes[0])), *changes[1:]
        files, changes = _store_output(read, name, own, changes, earlier, in_memory)
        columns, time, diff = changes
        changes = [columns[read.stored.index(i)] for i in wanted], time, diff
    output = None if read.output is None else read.output.table(changes)
    again = _due(read, name, touched, sides, in_memory) if at else {}
    return ReplayResult(files, output, rows_read + rows, again)


def _store_output(
    read: Read, name: str, own: Side, changes: Changes, earlier: UpdateChunk, in_memory: bool
) -> tuple[list[BatchFile], Changes]:
    """Store changes in the arranged output, minus the earlier output at other coordinates."""
    if not read.keeps and not len(earlier):
        return [], changes
    columns, time, diff = changes
    # The times carry the number of rows if records have no columns.
    updates = own.layout.encode(columns, spread(time, diff.size), diff)
    if len(earlier):
        updates = concat([updates, earlier.at(earlier.time, -earlier.diffs())])
    change = consolidate(updates)
    files: list[BatchFile] = []
    if read.keeps:
        compacted = compact(change, read.since).placed(pack(read.at))
        files = write_file(read.directory, name, compacted, in_memory=in_memory)
    if not read.at:
        return files, changes  # their reader consolidates them
    # A loop runs as long as there are rows, so no cancelling rows may remain.
    rows = change.updates
    return files, (own.layout.decode(rows), rows.times(), rows.diffs())


def _visited(
    read: Read, due: Sequence[UpdateChunk], sides: Sequence[Side], keys: UpdateChunk
) -> tuple[Sequence[Side], int]:
    """The sides up to the coordinate, for the visited keys; and the number of rows read."""
    visited, rows_read = [], 0
    # Without processed updates and due keys the new updates are complete.
    alone = not due and not any(side.earlier for side in sides)
    for side in sides:
        new, limit = side.new, _limit(side.depth, read.at)
        if not alone:
            new, rows = recent(keys, [*side.earlier, new.updates], limit)
            rows_read += rows - len(side.new.updates)
        elif limit is not None:
            new = Grouped(new.updates.placed(0), new.starts, new.key_starts)
        visited.append(replace(side, earlier=[], new=new, limit=limit))
    return visited, rows_read


def _due(
    read: Read, name: str, keys: UpdateChunk, sides: Sequence[Side], in_memory: bool
) -> dict[int, list[BatchFile]]:
    """The keys to visit again, by coordinate."""
    batches = []
    recorded = any(view.recorded for view in read.views)
    for side in sides:
        updates = side.old
        # In one loop new updates have no later coordinate, unless earlier steps reached it.
        if len(read.at) > 1 or recorded:
            updates = [*updates, *side.earlier, side.new.updates]
        batches.append((updates, side.depth))
    due = {}
    for code, touched in due_after(keys, batches, read.at).items():
        path = f"due-{code}-{name}"
        files = write_file(read.directory, path, touched, in_memory=in_memory)
        if files:
            due[code] = files
    return due


def _limit(depth: int, at: Coordinate) -> Limit | None:
    return Limit(depth, pack(at[:depth])) if depth else None

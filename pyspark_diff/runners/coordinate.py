"""The work of one operator in a loop: one bucket, one interval, a coordinate that has its turn.

At the coordinate ``c`` all times of the interval are done at once. With ``F`` the operator's
function, ``I`` its input and ``O`` its output, projected on the outer time::

    sum(O at coordinates <= c) = F(sum(I at coordinates <= c))

so what the operator gives at ``c`` is the change of the right side in the interval, less what it
gave at smaller coordinates. The keys that can have any are those with fresh updates, and those that
were found due. A bilinear operator needs none of this: each pair of updates is met once, and
belongs to the least upper bound of their coordinates.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.coordinates import Limit, pack
from pyspark_diff.kernels.history import distinct_keys, due_after, recent
from pyspark_diff.kernels.join import Reached
from pyspark_diff.kernels.updates import PerRow, Updates, concat, empty, pick, spread
from pyspark_diff.operators.contract import Side
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.work import BucketResult, write_file
from pyspark_diff.times import Coordinate
from pyspark_diff.trace import storage


def visit_coordinate(read: Read, bucket: int, *, in_memory: bool = False) -> BucketResult:
    """Do one bucket's share of a coordinate's turn.

    Parameters
    ----------
    read : Read
        With the coordinate in ``at``.
    bucket : int
    in_memory : bool
        Small batches may stay in this process's memory.

    Returns
    -------
    BucketResult
    """
    if read.at is None:
        raise ValueError("only in a loop a coordinate has its turn")
    reached = [view.reached(bucket, read.lower, read.upper) for view in read.views]
    if getattr(read.kernel, "bilinear", False):
        return _bilinear(read, bucket, read.at, reached)
    return _replayed(read, bucket, read.at, reached, in_memory)


def _bilinear(
    read: Read, bucket: int, at: Coordinate, reached: Sequence[Reached]
) -> BucketResult:
    kernel: Any = read.kernel
    sides = [
        Side(r.old, r.fresh, view.layout, view.names, read.lower, reached=r)
        for view, r in zip(read.views, reached)
    ]
    rows_in = sum(len(r.fresh.updates) for r in reached)
    wanted = () if read.output is None else read.output.wanted
    (columns, time, diff), coordinate, rows_read = kernel.at(sides, at, wanted)
    output, later = None, {}
    rows = coordinate.size if isinstance(coordinate, np.ndarray) else np.size(diff)
    if read.output is not None and rows:
        now = pack(at)
        codes = np.unique(coordinate) if isinstance(coordinate, np.ndarray) else [coordinate]
        for code in codes:
            table = read.output.table(
                _at_one(columns, time, diff, coordinate, code) if len(codes) > 1
                else (columns, time, diff)
            )
            if int(code) == now:
                output = table
            elif table.num_rows:
                later[int(code)] = (table, None, table.num_rows)
    rows_out = 0 if output is None else output.num_rows
    return BucketResult(bucket, None, output, None, rows_in, rows_read, rows_out, later)


def _at_one(
    columns: Sequence[pa.Array], time: PerRow, diff: PerRow, coordinate: PerRow, code: int
) -> tuple[list[pa.Array], PerRow, PerRow]:
    """The changes that belong to one coordinate."""
    rows = np.flatnonzero(np.asarray(coordinate) == code)
    index = pa.array(rows)
    # A time and diff of all rows would not tell how many there are.
    time = spread(pick(time, rows), rows.size)
    return [column.take(index) for column in columns], time, spread(pick(diff, rows), rows.size)


def _replayed(
    read: Read, bucket: int, at: Coordinate, reached: Sequence[Reached], in_memory: bool
) -> BucketResult:
    if read.own is None:
        raise ValueError("in a loop an operator knows what it gave at other coordinates")
    keys = _keys(read, bucket, reached)
    sides = []
    rows_read = 0
    for view, r in zip(read.views, reached):
        limit = _limit(r.depth, at)
        new, rows = recent(keys, r.new, limit)
        rows_read += rows - len(r.fresh.updates)
        sides.append(Side(r.old, new, view.layout, view.names, read.lower, limit))
    own = read.own.reached(bucket, read.lower, read.upper)
    layout, limit = read.own.layout, _limit(own.depth, at)
    given, rows = recent(keys, own.new, limit)
    nothing = Grouped(empty(), np.empty(0, np.int64))
    recalled = Side(own.old, nothing, layout, read.own.names, read.lower, limit)
    made, rows_old = empty(), 0
    if any(len(side.new.updates) for side in sides):  # else all that was new has cancelled out
        (columns, time, diff), rows_old = read.kernel(sides, recalled, read.stored)
        if isinstance(diff, np.ndarray):
            time = spread(time, diff.size)  # records without columns are counted by their times
        made = layout.encode(columns, time, diff)
    if len(given.updates):
        made = concat([made, given.updates.at(given.updates.time, -given.updates.diffs())])
    change = consolidate(made).updates
    file = write_file(read.directory, bucket, change.placed(pack(at)), in_memory=in_memory)
    output = None
    if read.output is not None and len(change):
        found = layout.decode(change)
        wanted = [found[read.stored.index(i)] for i in read.output.wanted]
        output = read.output.table((wanted, change.times(), change.diffs()))
    due = {}
    for code, touched in due_after(keys, _rows(reached, at), at).items():
        held = write_file(read.directory, bucket, touched, in_memory=in_memory, name=f"due-{code}-")
        if held is not None:
            due[code] = held
    rows_in = sum(len(r.fresh.updates) for r in reached)
    rows_out = 0 if output is None else output.num_rows
    return BucketResult(
        bucket, file, output, None, rows_in, rows_read + rows + rows_old, rows_out, {}, due
    )


def _keys(read: Read, bucket: int, reached: Sequence[Reached]) -> Updates:
    """The keys that have to be visited, each once."""
    parts = [distinct_keys(r.fresh).at(0, 1).placed(0) for r in reached if len(r.fresh.updates)]
    parts += [storage.open_updates(path) for path in read.due.get(bucket, ())]
    if len(parts) == 1:
        return parts[0]
    return consolidate(concat(parts)).updates


def _limit(depth: int, at: Coordinate) -> Limit | None:
    return Limit(depth, pack(at[:depth])) if depth else None


def _rows(reached: Sequence[Reached], at: Coordinate) -> list[tuple[list[Updates], int]]:
    """Where later coordinates may be found: in one loop what is new has none yet."""
    return [(r.old + r.new if len(at) > 1 else r.old, r.depth) for r in reached]

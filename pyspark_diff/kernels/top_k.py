"""The first k records of each touched key, without a read of all other records.

For the input ``I``, every key and every time ``t``::

    accumulate(top_k(I), t)  =  the first k places of accumulate(I, t)

A record with a count ``c > 0`` takes ``c`` places, in the order of the values, and a record with
``c <= 0`` takes none. Batches have the rows of a key in that order, so its first records are among
the first rows of its range in each of them.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

import numpy as np

from pyspark_diff.kernels import ranking
from pyspark_diff.kernels.candidates import candidates, check, code_order, expand, values_of
from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.coordinates import Limit
from pyspark_diff.kernels.history import distinct_keys, key_lengths, key_starts
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.lookup import key_ranges
from pyspark_diff.kernels.merge_sort import sort_within
from pyspark_diff.kernels.ranking import Ordering
from pyspark_diff.kernels.updates import Int64, UpdateChunk, concat, empty, spread

_MOST = np.iinfo(np.int64).max


def top_k(
    old: list[UpdateChunk],
    new: Grouped,
    k: int,
    ordering: Ordering,
    *,
    by: int,
    mode: str,
    from_back: bool = False,
    window: int = 16,
    limit: Limit | None = None,
) -> tuple[UpdateChunk, np.ndarray | None, int]:
    """Updates of the first k records of each key.

    Parameters
    ----------
    old : list of UpdateChunk
        Batches of updates before the new ones, each ordered by (key64, key, value, time) with the
        values ordered by `ordering`.
    new : Grouped
        Updates of pairs of a key and a value, consolidated.
    k : int
        Less than 2**31.
    ordering : Ordering
        Order of the value's columns. Values that are only ``val64`` are in ascending order.
    by : int
        For ranks: records that are equal in this number of first columns tie.
    mode : {"rows", "row_number", "rank", "dense_rank"}
        The first k places, with the last record cut; or each of these places with its number;
        or all records with a rank of at most k. The rank is 1 + the places of better records,
        and the dense rank is 1 + the number of different better records.
    from_back : bool
        Whether the last records in order count as the first.
    window : int
        Number of rows to read in one round beyond the rows that are certainly needed.
    limit : Limit or None
        In a loop, the coordinates whose rows count.

    Returns
    -------
    updates : UpdateChunk
        Consolidated, together with `numbers`; ordered by key, then the best record first, then by
        time.
    numbers : ndarray of int64, or None
        For each row its row number or rank.
    read : int
        Number of old rows read; a row that was read twice counts twice.

    Raises
    ------
    DiffOverflowError
        If an accumulated diff leaves 64 bits.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> old = UpdateChunk(np.array([1, 1, 1]), None, 0, 1, np.array([10, 20, 30]))
    >>> new = consolidate(UpdateChunk(np.array([1]), None, 5, -1, np.array([10])))
    >>> first, _, read = top_k([old], new, 2, ((False, False),), by=1, mode="rows")
    >>> first.val64.tolist(), first.diff.tolist(), first.time, read
    ([10, 30], [-1, 1], 5, 3)
    """
    if mode not in ranking.MODES or not 0 <= k < 2**31:
        raise ValueError(f"there is no top {k} of {mode!r}")
    pieces, numbers, owners = [], [np.empty(0, np.int64)], []
    read = 0
    if len(new.updates) and k:
        keys = distinct_keys(new)
        step = _Step(old, new, keys, np.arange(len(keys)), ordering, limit)
        which = _Search(k, by, ranking.MODES[mode], from_back)
        for result in step.rounds(which, window):
            out, times = result.changes, new.updates.time
            rows = result.first[out[:, 0]]
            of_key = result.active[result.owner[rows]]
            key, value = keys.take(of_key), result.pool.take(rows)
            if isinstance(times, np.ndarray):
                times = out[:, 1].copy()
            pieces.append(UpdateChunk(
                key.key64, key.columns, times, out[:, 2].copy(), value.key64, value.columns,
                new.updates.ordering,
            ))
            numbers.append(out[:, 3].copy())
            owners.append(of_key)
            read += result.read
    updates, number = concat(pieces) if pieces else empty(), np.concatenate(numbers)
    if len(pieces) > 1 and len(updates):
        order = np.argsort(np.concatenate(owners), kind="stable")
        updates, number = updates.take(order), number[order]
    return updates, None if mode == "rows" else number, read


class FirstValues:
    """The first and the last values of some keys, before some new updates and at their times.

    Parameters
    ----------
    keys : UpdateChunk
        Distinct keys in order: those of the new updates, and possibly others.
    place : ndarray of int64
        For each key of the new updates its index in ``keys``.
    old, new, ordering, limit
        As in `top_k`.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> old = UpdateChunk(np.array([1, 1, 2]), None, 0, 1, np.array([10, 20, 30]))
    >>> new = consolidate(UpdateChunk(np.array([1]), None, 5, -1, np.array([10])))
    >>> keys = UpdateChunk(np.array([1, 2]), None, 0, 1)
    >>> firsts = FirstValues(keys, np.array([0]), [old], new, ((False, False),))
    >>> values, before, key, time, diff, row, read = firsts.changes()
    >>> values.key64[before].tolist(), key.tolist(), diff.tolist(), values.key64[row].tolist()
    ([10, 30], [0, 0], [-1, 1], [10, 20])
    """

    def __init__(
        self, keys: UpdateChunk, place: Int64, old: list[UpdateChunk], new: Grouped,
        ordering: Ordering, limit: Limit | None = None,
    ):
        self._step = _Step(old, new, keys, place, ordering, limit)

    def changes(
        self, *, from_back: bool = False, window: int = 16
    ) -> tuple[UpdateChunk, Int64, Int64, Int64, Int64, Int64, int]:
        """The first values, or the last ones, and their changes.

        Returns
        -------
        values : UpdateChunk
            Values as records of their own.
        before : ndarray of int64, shape (keys,)
            The first value of each key before the new updates, -1 for none.
        key, time, diff, row : ndarray of int64
            The changes of first values: the key, the time, and -1 for the old value or 1 for
            the new one.
        read : int
            Number of old rows that were read.
        """
        step, none = self._step, np.empty(0, np.int64)
        before = np.full(len(step.keys), -1)
        changed, pools = [(none, none, none, none)], []
        at = read = 0
        for result in step.rounds(_Search(1, 0, ranking.MODES["rows"], from_back), window):
            candidate = _first_present(result.bounds, result.stops, result.base)
            there = np.flatnonzero(candidate >= 0)
            before[result.active[there]] = at + result.first[candidate[there]]
            row = result.first[result.changes[:, 0]]
            key = result.active[result.owner[row]]
            changed.append((key, result.changes[:, 1], result.changes[:, 2], at + row))
            pools.append(result.pool)
            at += len(result.pool)
            read += result.read
        key, time, diff, row = (np.concatenate(parts) for parts in zip(*changed))
        return concat(pools), before, key, time, diff, row, read


class _Search(NamedTuple):
    """The parameters of a search: see `top_k`."""

    k: int
    by: int
    mode: int
    from_back: bool


class _Round(NamedTuple):
    """The result of one round of a search for some keys.

    Candidates are distinct values of a key: ``bounds[g]`` to ``bounds[g + 1]`` are those of key
    ``active[g]``. Candidates from ``stops[g]`` on are not known; -1 means that none is known.
    """

    active: Int64
    #: The values of rows that were read, and the place of each row's key among the active keys.
    pool: UpdateChunk
    owner: Int64
    #: A row of each candidate, and the sum of its old diffs.
    first: Int64
    base: Int64
    bounds: Int64
    stops: Int64
    #: Rows of (candidate, time, diff, number), by candidate.
    changes: Int64
    read: int


class _Step:
    """The ranges of some keys in the batches, and the new updates of each key."""

    def __init__(
        self, old: list[UpdateChunk], new: Grouped, keys: UpdateChunk, place: Int64,
        ordering: Ordering, limit: Limit | None,
    ):
        self.new, self.limit, self.ordering, self.keys = new, limit, ordering, keys
        # Keys with equal hashes, such as those of null and zero, are in any order.
        in_place = np.array_equal(place, np.arange(len(keys)))
        #: The touched values: the first row of each, the first of each key, and their number. And
        #: the first new row of each key, and the number of its new rows.
        self.values = values_of(new.records()) if len(new.updates) else empty()
        first = np.searchsorted(new.starts, key_starts(new))
        parts = (
            first, np.diff(first, append=new.starts.size), key_starts(new), key_lengths(new)
        )
        self._in_place = in_place
        self.first, self.touched, self.starts, self.lengths = (
            part if in_place else _placed(part, place, len(keys)) for part in parts
        )
        #: All rows of the keys as `_collect` returns them, after a read of all of them.
        self.whole: tuple[UpdateChunk, Int64, Int64] | None = None
        self.ranges = []
        for batch in old:
            if len(batch):
                self.ranges.append((values_of(batch), *key_ranges(self.keys, batch)))

    def rounds(self, which: _Search, window: int) -> Iterator[_Round]:
        """The results of each round, for the keys that are still active; settled keys leave after
        it."""
        active, reach = np.arange(len(self.keys)), self.touched + which.k + window
        while active.size:
            result = self._round(which, active, reach)
            yield result
            settled = result.stops >= 0
            # Reads that grow by a factor cost in total little more than the last read.
            active, reach = active[~settled], reach[~settled] * 4

    def _round(self, which: _Search, active: Int64, reach: Int64) -> _Round:
        """The result of a read of `reach` rows of each batch."""
        # An earlier search from the other end may have read all rows: then they are reused.
        pool, owner, last = self.whole or self._collect(active, reach, which.from_back)
        read = len(pool) - int(self.touched[active].sum())
        code, tie = self._codes(pool, which)
        packed = ranking.pack([owner, code])
        diff = spread(pool.scalars(), len(pool))
        if self.limit is not None:
            # Rows at other coordinates are read, and count zero.
            diff = np.where(self.limit.mask(np.atleast_1d(pool.coordinate)), diff, 0)
        first, base, touched, of_record, fits = candidates(code_order(packed), packed, read, diff)
        check(fits)
        cut = (last >= 0).any(axis=0)
        if active.size == len(self.keys) and not cut.any():
            self.whole = pool, owner, last
        horizon = np.full(active.size, _MOST)
        if tie.size:  # the keys may have no row
            horizon = np.where(last >= 0, tie[last], _MOST).min(axis=0, initial=_MOST)
        tie = tie[first]
        bounds = np.searchsorted(owner[first], np.arange(active.size + 1))
        stops = _stops(bounds, base, touched, tie, cut, horizon, which.k, which.mode)
        events = self._events(active, bounds, of_record)
        out, fits = ranking.replay_first(bounds, stops, base, tie, *events, which.k, which.mode)
        check(fits)
        out = out[_by_candidate(out[:, 0], first.size)]
        return _Round(active, pool, owner, first, base, bounds, stops, out, read)

    def _collect(
        self, active: Int64, reach: Int64, from_back: bool
    ) -> tuple[UpdateChunk, Int64, Int64]:
        """The first rows of some keys in each batch, followed by the touched values.

        Returns the values, the key of each, and for each batch and key the last row that was read,
        or -1 if all rows were read.
        """
        parts, owners = [], []
        last = np.full((len(self.ranges), active.size), -1)
        at = 0
        for i, (values, low, high) in enumerate(self.ranges):
            there = high[active] - low[active]
            counts = np.minimum(there, reach)
            begin = high[active] - counts if from_back else low[active]
            owner, rows = expand(begin, counts)
            parts.append(values.take(rows))
            owners.append(owner)
            stops = at + np.cumsum(counts)
            last[i] = np.where(counts < there, stops - (counts if from_back else 1), -1)
            at += rows.size
        owner, rows = expand(self.first[active], self.touched[active])
        whole = self._in_place and rows.size == len(self.values)
        parts.append(self.values if whole else self.values.take(rows))
        return concat(parts), np.concatenate([*owners, owner]), last

    def _codes(self, pool: UpdateChunk, which: _Search) -> tuple[Int64, Int64]:
        """Codes of values, with the best value least, and codes that are equal for tied values."""
        if pool.columns is None:
            code, tie = pool.key64, pool.key64 if which.by else np.zeros(len(pool), np.int64)
        else:
            code = tie = ranking.codes(pool.columns, self.ordering, len(pool))
            if which.mode in ranking.TIED and which.by < len(pool.columns):
                tied = self.ordering[: which.by]
                tie = ranking.codes(pool.columns[: which.by], tied, len(pool))
        tie = tie if which.mode in ranking.TIED else code
        return (~code, ~tie) if which.from_back else (code, tie)

    def _events(
        self, active: Int64, bounds: Int64, of_record: Int64
    ) -> tuple[Int64, Int64, Int64, Int64]:
        """The new updates of some keys by key, time and candidate: the start of each key's updates
        (and the end of the last key's), and candidates, times and diffs."""
        new = self.new
        lengths = self.lengths[active]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        owner, rows = expand(self.starts[active], lengths)
        record = np.repeat(np.arange(new.starts.size), new.lengths())[rows]
        # Records of other keys are not among the candidates.
        touched = self.touched[active]
        record += (np.cumsum(touched) - touched - self.first[active])[owner]
        candidate = of_record[record]
        times = new.updates.times()[rows]
        if isinstance(new.updates.time, np.ndarray):
            order = sort_within(starts, times, candidate)
        else:
            order = code_order(candidate)
        diffs = spread(new.updates.scalars(), len(new.updates))[rows]
        return starts, candidate[order], times[order], diffs[order]


def _placed(part: Int64, place: Int64, keys: int) -> Int64:
    """Numbers of some keys at their places, and zero for all other keys."""
    out = np.zeros(keys, np.int64)
    out[place] = part
    return out


@kernel("int64[:], int64[:], bool[:], int64[:], bool[:], int64[:], int64, int64")
def _stops(bounds, base, touched, tie, cut, horizon, k, mode):  # type: ignore[no-untyped-def]
    """The end of each key's relevant candidates, or -1 if more rows have to be read.

    If a batch was not read to its end, only values strictly before the last row that was read of it
    are known with all their rows. The horizon is the least such last value. If untouched candidates
    before the horizon fill k places, no later candidate is relevant, known or unknown, touched or
    untouched. The k places are filled at every time of the step, and later candidates never come
    into the top k. Ranks are settled with whole groups of ties, since a tie of the last candidate
    shares its rank. For dense ranks each group fills one place.
    """
    stops = np.empty(cut.size, np.int64)
    for g in range(cut.size):
        places = 0
        counted = np.int64(-1)  # the last candidate that filled a place
        stop = bounds[g + 1]
        settled = not cut[g]
        for c in range(bounds[g], bounds[g + 1]):
            beyond = cut[g] and tie[c] >= horizon[g]
            if beyond or (places >= k and tie[c] != tie[c - 1]):
                stop = c
                settled = places >= k
                break
            if touched[c] or base[c] <= 0:
                continue
            if mode != ranking.DENSE_RANK:
                places = min(places + min(base[c], k), k)
            elif counted < 0 or tie[c] != tie[counted]:
                places += 1
                counted = c
        stops[g] = stop if settled else -1
    return stops


@kernel("int64[:], int64[:], int64[:]")
def _first_present(bounds, stops, base):  # type: ignore[no-untyped-def]
    """For each settled key the first candidate with a positive count, else -1."""
    first = np.full(stops.size, -1)
    for g in range(stops.size):
        for c in range(bounds[g], stops[g]):
            if base[c] > 0:
                first[g] = c
                break
    return first


@kernel("int64[:]!, int64")
def _by_candidate(cand, candidates):  # type: ignore[no-untyped-def]
    """Stable order of rows by candidate."""
    at = np.zeros(candidates + 1, np.int64)
    for i in range(cand.size):
        at[cand[i] + 1] += 1
    for c in range(candidates):
        at[c + 1] += at[c]
    order = np.empty(cand.size, np.int64)
    for i in range(cand.size):
        order[at[cand[i]]] = i
        at[cand[i]] += 1
    return order

"""The first k records of each touched key, found without reading the others.

For the input ``I``, every key and every time ``t``::

    accumulate(top_k(I), t)  =  the first k places of accumulate(I, t)

where a record that is there ``c > 0`` times takes ``c`` places, in the order of the values, and one
with ``c <= 0`` takes none. Batches hold the rows of a key in that order, so its first records are
among the first rows of its range in each of them.
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
from pyspark_diff.kernels.updates import Int64, Updates, concat, empty, spread

_MOST = np.iinfo(np.int64).max


def top_k(
    old: list[Updates],
    new: Grouped,
    k: int,
    ordering: Ordering,
    *,
    by: int,
    mode: str,
    from_back: bool = False,
    window: int = 16,
    limit: Limit | None = None,
) -> tuple[Updates, np.ndarray | None, int]:
    """Updates of the first k records of each key.

    Parameters
    ----------
    old : list of Updates
        Batches of updates before the new ones, each ordered by (key64, key, value, time) with the
        values ordered by `ordering`.
    new : Grouped
        Updates of pairs of a key and a value, consolidated.
    k : int
        Less than 2**31.
    ordering : Ordering
        Order of the value's columns. Values that are only ``val64`` are in ascending order.
    by : int
        For ranks: records equal in so many columns, the first ones, tie.
    mode : {"rows", "row_number", "rank", "dense_rank"}
        The first k places, the last record being cut; or each of these places with its number; or
        all records with a rank of at most k, the rank being 1 + the places of better records, or of
        dense ranks 1 + the number of different ones.
    from_back : bool
        Whether the last in order count as the first.
    window : int
        How many rows to read at once beyond those that are surely needed.
    limit : Limit or None
        In a loop, the coordinates whose rows count.

    Returns
    -------
    updates : Updates
        Consolidated, together with `numbers`; ordered by key, then the best first, then by time.
    numbers : ndarray of int64, or None
        For each row its row number or rank.
    read : int
        Number of old rows that were read; a row that was read twice counts twice.

    Raises
    ------
    DiffOverflowError
        If an accumulated diff leaves 64 bits.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> old = Updates(np.array([1, 1, 1]), None, 0, 1, np.array([10, 20, 30]))
    >>> new = consolidate(Updates(np.array([1]), None, 5, -1, np.array([10])))
    >>> found, _, read = top_k([old], new, 2, ((False, False),), by=1, mode="rows")
    >>> found.val64.tolist(), found.diff.tolist(), found.time, read
    ([10, 30], [-1, 1], 5, 3)
    """
    if mode not in ranking.MODES or not 0 <= k < 2**31:
        raise ValueError(f"there is no top {k} of {mode!r}")
    pieces, numbers, owners = [], [np.empty(0, np.int64)], []
    read = 0
    if len(new.updates) and k:
        keys = distinct_keys(new)
        step = _Step(old, new, keys, np.arange(len(keys)), ordering, limit)
        which = _Which(k, by, ranking.MODES[mode], from_back)
        for found in step.rounds(which, window):
            out, times = found.changes, new.updates.time
            rows = found.first[out[:, 0]]
            of_key = found.active[found.owner[rows]]
            key, value = keys.take(of_key), found.pool.take(rows)
            if isinstance(times, np.ndarray):
                times = out[:, 1].copy()
            pieces.append(Updates(
                key.key64, key.columns, times, out[:, 2].copy(), value.key64, value.columns,
                new.updates.ordering,
            ))
            numbers.append(out[:, 3].copy())
            owners.append(of_key)
            read += found.read
    updates, number = concat(pieces) if pieces else empty(), np.concatenate(numbers)
    if len(pieces) > 1 and len(updates):
        order = np.argsort(np.concatenate(owners), kind="stable")
        updates, number = updates.take(order), number[order]
    return updates, None if mode == "rows" else number, read


class Firsts:
    """The first and the last values of some keys, before some new updates and at their times.

    Parameters
    ----------
    keys : Updates
        Distinct keys in order: those of the new updates, and maybe others.
    place : ndarray of int64
        For each key of the new updates which one of them it is.
    old, new, ordering, limit
        As of `top_k`.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> old = Updates(np.array([1, 1, 2]), None, 0, 1, np.array([10, 20, 30]))
    >>> new = consolidate(Updates(np.array([1]), None, 5, -1, np.array([10])))
    >>> keys = Updates(np.array([1, 2]), None, 0, 1)
    >>> firsts = Firsts(keys, np.array([0]), [old], new, ((False, False),))
    >>> values, before, key, time, diff, row, read = firsts.of()
    >>> values.key64[before].tolist(), key.tolist(), diff.tolist(), values.key64[row].tolist()
    ([10, 30], [0, 0], [-1, 1], [10, 20])
    """

    def __init__(
        self, keys: Updates, place: Int64, old: list[Updates], new: Grouped, ordering: Ordering,
        limit: Limit | None = None,
    ):
        self._step = _Step(old, new, keys, place, ordering, limit)

    def of(
        self, *, from_back: bool = False, window: int = 16
    ) -> tuple[Updates, Int64, Int64, Int64, Int64, Int64, int]:
        """What comes first, or last.

        Returns
        -------
        values : Updates
            Values as records of their own.
        before : ndarray of int64, shape (keys,)
            The first value of each key before the new updates, -1 for none.
        key, time, diff, row : ndarray of int64
            Where another one comes first: of which key and when, with -1 what goes and with 1 what
            comes.
        read : int
            Number of old rows that were read.
        """
        step, none = self._step, np.empty(0, np.int64)
        before = np.full(len(step.keys), -1)
        changed, pools = [(none, none, none, none)], []
        at = read = 0
        for found in step.rounds(_Which(1, 0, ranking.MODES["rows"], from_back), window):
            candidate = _standing(found.bounds, found.stops, found.base)
            there = np.flatnonzero(candidate >= 0)
            before[found.active[there]] = at + found.first[candidate[there]]
            row = found.first[found.changes[:, 0]]
            key = found.active[found.owner[row]]
            changed.append((key, found.changes[:, 1], found.changes[:, 2], at + row))
            pools.append(found.pool)
            at += len(found.pool)
            read += found.read
        key, time, diff, row = (np.concatenate(parts) for parts in zip(*changed))
        return concat(pools), before, key, time, diff, row, read


class _Which(NamedTuple):
    """What is looked for: see `top_k`."""

    k: int
    by: int
    mode: int
    from_back: bool


class _Found(NamedTuple):
    """What was found of some keys.

    Candidates are distinct values of a key: ``bounds[g]`` to ``bounds[g + 1]`` those of key
    ``active[g]``. Of what comes at ``stops[g]`` or later nothing is known; where that is -1, of
    nothing.
    """

    active: Int64
    #: The values of rows that were read, and the place among the active keys of each.
    pool: Updates
    owner: Int64
    #: Of each candidate a row, and the sum of old diffs.
    first: Int64
    base: Int64
    bounds: Int64
    stops: Int64
    #: Rows of (candidate, time, diff, number), by candidate.
    changes: Int64
    read: int


class _Step:
    """Where some keys are in the batches, and what is new of each."""

    def __init__(
        self, old: list[Updates], new: Grouped, keys: Updates, place: Int64, ordering: Ordering,
        limit: Limit | None,
    ):
        self.new, self.limit, self.ordering, self.keys = new, limit, ordering, keys
        # Keys whose hashes are equal, as those of null and zero, are in any order.
        every = np.array_equal(place, np.arange(len(keys)))
        #: The touched values: the first row of each, the first of each key, and their number. And
        #: the first of the new rows of each key, and how many there are.
        self.values = values_of(new.records()) if len(new.updates) else empty()
        first = np.searchsorted(new.starts, key_starts(new))
        found = (
            first, np.diff(first, append=new.starts.size), key_starts(new), key_lengths(new)
        )
        self._every = every
        self.first, self.touched, self.starts, self.lengths = (
            part if every else _placed(part, place, len(keys)) for part in found
        )
        #: All rows of the keys as `_collect` gives them, once they have been read.
        self.whole: tuple[Updates, Int64, Int64] | None = None
        self.ranges = []
        for batch in old:
            if len(batch):
                self.ranges.append((values_of(batch), *key_ranges(self.keys, batch)))

    def rounds(self, which: _Which, window: int) -> Iterator[_Found]:
        """What is found of the keys: some in each round, those that are settled with it."""
        active, reach = np.arange(len(self.keys)), self.touched + which.k + window
        while active.size:
            found = self._round(which, active, reach)
            yield found
            settled = found.stops >= 0
            # Reads that grow by a factor cost in all little more than the last of them.
            active, reach = active[~settled], reach[~settled] * 4

    def _round(self, which: _Which, active: Int64, reach: Int64) -> _Found:
        """What is found when `reach` rows of each batch are read."""
        # What begins at the other end may have been read: then both are found in the same rows.
        pool, owner, last = self.whole or self._collect(active, reach, which.from_back)
        read = len(pool) - int(self.touched[active].sum())
        code, tie = self._codes(pool, which)
        packed = ranking.pack([owner, code])
        diff = spread(pool.scalars(), len(pool))
        if self.limit is not None:
            # Rows at other coordinates are read, and are worth nothing.
            diff = np.where(self.limit.mask(np.atleast_1d(pool.coordinate)), diff, 0)
        first, base, touched, of_record, fits = candidates(code_order(packed), packed, read, diff)
        check(fits)
        cut = (last >= 0).any(axis=0)
        if active.size == len(self.keys) and not cut.any():
            self.whole = pool, owner, last
        horizon = np.full(active.size, _MOST)
        if tie.size:  # there may be no row of any of the keys
            horizon = np.where(last >= 0, tie[last], _MOST).min(axis=0, initial=_MOST)
        tie = tie[first]
        bounds = np.searchsorted(owner[first], np.arange(active.size + 1))
        stops = _stops(bounds, base, touched, tie, cut, horizon, which.k, which.mode)
        events = self._events(active, bounds, of_record)
        out, fits = ranking.replay_first(bounds, stops, base, tie, *events, which.k, which.mode)
        check(fits)
        out = out[_by_candidate(out[:, 0], first.size)]
        return _Found(active, pool, owner, first, base, bounds, stops, out, read)

    def _collect(
        self, active: Int64, reach: Int64, from_back: bool
    ) -> tuple[Updates, Int64, Int64]:
        """The first rows of some keys in each batch, and behind them the touched values.

        Gives the values, which of the keys each belongs to, and for each batch and key the last row
        that was read of it, or -1 where all were.
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
        whole = self._every and rows.size == len(self.values)
        parts.append(self.values if whole else self.values.take(rows))
        return concat(parts), np.concatenate([*owners, owner]), last

    def _codes(self, pool: Updates, which: _Which) -> tuple[Int64, Int64]:
        """Codes of values, the best being the least, and codes that are equal where values tie."""
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
        """The new updates of some keys by key, time and candidate: where each key's begin (and
        the last one's end), and candidates, times and diffs."""
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
    """Numbers of some of the keys, zero for the others."""
    found = np.zeros(keys, np.int64)
    found[place] = part
    return found


@kernel("int64[:], int64[:], bool[:], int64[:], bool[:], int64[:], int64, int64")
def _stops(bounds, base, touched, tie, cut, horizon, k, mode):  # type: ignore[no-untyped-def]
    """For each key where the candidates that matter end, or -1 where more rows have to be read.

    Where a batch was not read to its end, only values strictly before the last one read of it are
    known with all their rows: those before the least such value, the horizon. Once untouched ones
    among them fill k places, nothing behind matters, known or not, touched or not: these k places
    are filled at every time of the step, and what stands behind them never comes into the top k.
    Ranks are settled with whole groups of ties, as a tie of the last one shares its rank; for dense
    ones each of these groups fills one place.
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
def _standing(bounds, stops, base):  # type: ignore[no-untyped-def]
    """For each key that is settled the first candidate that is there, else -1."""
    found = np.full(stops.size, -1)
    for g in range(stops.size):
        for c in range(bounds[g], stops[g]):
            if base[c] > 0:
                found[g] = c
                break
    return found


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

"""A user's function that is called twice, to see that it gives the same for the same.

    twice(f)(x) == f(x),  or  NonDeterministicError where f(x) != f(x) as multisets

What a step takes back it computes again, so that rows of a function that depends on chance, the
clock or a counter do not cancel, and stay for ever.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import pandas as pd
import pyarrow as pa

from pyspark_diff.errors import NonDeterministicError


@dataclass(frozen=True)
class Twice:
    """A function of `flat_map`, `reduce` or `threshold`.

    Parameters
    ----------
    function : callable
        Its first argument is the record, the key or the multiplicity, for the message.
    kind : str
        The operator's name.
    """

    function: Callable[..., Any]
    kind: str

    def __call__(self, about: Any, *values: Any) -> Any:
        # The first call may change what it is given.
        again = [_copied(value) for value in values]
        first, second = _kept(self.function(about, *values)), _kept(self.function(about, *again))
        ours, theirs = _rows(first), _rows(second)
        if ours != theirs:
            one, other = next(iter(ours - theirs), "nothing"), next(iter(theirs - ours), "nothing")
            raise NonDeterministicError(_told(self.kind, f"{about!r}", one, other))
        return first


@dataclass(frozen=True)
class TwiceInPandas:
    """A function of `map_in_pandas`.

    Parameters
    ----------
    function : callable
    """

    function: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]

    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:  # one by one, as they are no more than parts of the whole
            given = frame.copy()
            first = list(self.function(iter([frame])))
            second = list(self.function(iter([given.copy()])))
            ours, theirs = (sum(map(_rows, made), Counter[str]()) for made in (first, second))
            if ours != theirs:
                one = next(iter(ours - theirs), "nothing")
                other = next(iter(theirs - ours), "nothing")
                rows = list(given.head(1).itertuples(index=False, name=None))
                about = f"{len(given)} rows that begin with {rows}"
                raise NonDeterministicError(_told("map_in_pandas", about, one, other))
            yield from first


def _copied(value: Any) -> Any:
    if isinstance(value, pd.DataFrame):
        return value.copy()
    return list(value) if isinstance(value, list) else value


def _kept(result: Any) -> Any:
    """A result that can be looked at, and then be used."""
    if isinstance(result, (pd.DataFrame, pa.Table)) or not hasattr(result, "__iter__"):
        return result
    return list(result)


def _rows(result: Any) -> Counter[str]:
    """A result as a multiset of rows, in words: NaN is not equal to itself."""
    if isinstance(result, pa.Table):
        # A group's rows, or a part's, as many as the user's function has made at once.
        result = zip(*(column.to_pylist() for column in result.columns))
    elif isinstance(result, pd.DataFrame):
        result = result.itertuples(index=False, name=None)
    elif not isinstance(result, list):
        result = [result]
    return Counter(map(repr, result))


def _told(kind: str, about: str, one: str, other: str) -> str:
    return (
        f"{kind}'s function gives different results for the same input, {about}: {one} at one time "
        f"and {other} at another, so that they would not cancel. Let it depend on its arguments "
        "alone: no clock, chance, counter, or order of a set"
    )

"""A user's function that is called twice, to check that equal arguments have equal results.

    twice(f)(x) == f(x),  or  NonDeterministicError if f(x) != f(x) as multisets

A step computes retracted rows again. So retractions of a function that depends on chance, the clock
or a counter do not cancel its insertions, and rows remain for ever.
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
        # The first call may change its arguments.
        again = [_copied(value) for value in values]
        first = _listed(self.function(about, *values))
        second = _listed(self.function(about, *again))
        _compare(self.kind, lambda: f"{about!r}", _rows(first), _rows(second))
        return first


@dataclass(frozen=True)
class TwiceInPandas:
    """A function of `map_in_pandas`."""

    function: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]

    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:  # a call for each frame, since any cut of the rows is allowed
            original = frame.copy()
            first = list(self.function(iter([frame])))
            second = list(self.function(iter([original.copy()])))

            def about() -> str:
                return f"{len(original)} rows that begin with {_tuples(original.head(1))}"

            totals = (sum(map(_rows, results), Counter[str]()) for results in (first, second))
            _compare("map_in_pandas", about, *totals)
            yield from first


def _copied(value: Any) -> Any:
    if isinstance(value, pd.DataFrame):
        return value.copy()
    return list(value) if isinstance(value, list) else value


def _listed(result: Any) -> Any:
    """A result that can be iterated more than once."""
    if isinstance(result, (pd.DataFrame, pa.Table)) or not hasattr(result, "__iter__"):
        return result
    return list(result)


def _rows(result: Any) -> Counter[str]:
    """A result as a multiset of rows, as text, since NaN does not equal itself."""
    if isinstance(result, pa.Table):
        # The rows of a group or a part, which the user's function has in memory already.
        result = zip(*(column.to_pylist() for column in result.columns))
    elif isinstance(result, pd.DataFrame):
        result = _tuples(result)
    elif not isinstance(result, list):
        result = [result]
    return Counter(map(repr, result))


def _tuples(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a frame with Python's own numbers, which messages show without their type."""
    return list(frame.astype(object).itertuples(index=False, name=None))


def _compare(
    kind: str, about: Callable[[], str], first: Counter[str], second: Counter[str]
) -> None:
    if first == second:
        return
    row, other = next(iter(first - second), "nothing"), next(iter(second - first), "nothing")
    raise NonDeterministicError(
        f"{kind}'s function gives different results for the same input, {about()}: {row} in one "
        f"call and {other} in another, so its retractions would not cancel. Let it depend on its "
        "arguments alone: no clock, chance, counter, or order of a set"
    )

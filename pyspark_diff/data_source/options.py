"""The options of the data source, checked: one that is not known is refused, as it may be a typing
error in one that would change what is read.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import types as T

from pyspark_diff.spark.schema import TimeType

#: Options that Spark hands over with those of the user.
_SPARKS = frozenset({"checkpointlocation", "queryname", "outputmode", "provider"})

#: For how many seconds a read hold stands without being renewed.
HOLD_SECONDS = 3600.0


class Options:
    """Options by their names, in any case.

    Parameters
    ----------
    given : mapping of str to str
    known : iterable of str
    use : str
        What they are for, for messages.

    Raises
    ------
    ValueError
        If one is not known.

    Examples
    --------
    >>> Options({"PATH": "/data/shop"}, ["path", "name"], "a read").needed("path", "the store's")
    '/data/shop'
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str], use: str):
        names = list(known)
        self._given = {name.lower(): value for name, value in given.items()}
        self._use = use
        odd = sorted(self._given.keys() - _SPARKS - {name.lower() for name in names})
        if odd:
            raise ValueError(
                f"{use} of format 'diff' has no option {', '.join(map(repr, odd))}; the options "
                f"are {', '.join(names)}"
            )

    def get(self, name: str) -> str | None:
        """An option, if it was given."""
        return self._given.get(name.lower())

    def needed(self, name: str, what: str) -> str:
        """An option that has to be given."""
        found = self.get(name)
        if not found:
            raise ValueError(f"{self._use} of format 'diff' needs .option({name!r}, ...): {what}")
        return found

    def whole(self, name: str) -> int | None:
        """A whole number from 0 on, if it was given."""
        found = self.get(name)
        if found is None:
            return None
        if not (found.isascii() and found.isdecimal()):
            raise ValueError(f"option {name!r} is {found!r}; give a whole number from 0 on")
        return int(found)

    def flag(self, name: str) -> bool:
        """Whether something was said to be true."""
        found = self.get(name)
        if (found or "false").lower() not in ("true", "false"):
            raise ValueError(f"option {name!r} is {found!r}; give true or false")
        return (found or "false").lower() == "true"

    def one_of(self, name: str, *values: str) -> str:
        """One of some values; the first if none was given."""
        found = self.get(name)
        if found is not None and found.lower() not in values:
            raise ValueError(f"option {name!r} is {found!r}; give {' or '.join(values)}")
        return values[0] if found is None else found.lower()

    def seconds(self) -> float:
        """For how long a read hold stands."""
        found = self.get("holdSeconds")
        if found is None:
            return HOLD_SECONDS
        try:
            seconds = float(found)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < 1e9:
            raise ValueError(f"option 'holdSeconds' is {found!r}; give a number of seconds")
        return seconds

    def time(self, name: str, kind: TimeType) -> Any:
        """A time of a type, if it was given."""
        found = self.get(name)
        if found is None:
            return None
        try:
            if isinstance(kind.kind, T.DateType):
                return datetime.date.fromisoformat(found)
            if isinstance(kind.kind, (T.TimestampType, T.TimestampNTZType)):
                return datetime.datetime.fromisoformat(found)
            return int(found)
        except ValueError:
            example = {"date": "2026-07-01", "timestamp": "2026-07-01 12:00:00+00:00",
                       "timestamp_ntz": "2026-07-01 12:00:00"}.get(kind.name, "17")
            raise ValueError(
                f"option {name!r} is {found!r}, and the times of this store are of type "
                f"{kind.name}; give one as {example!r}"
            ) from None

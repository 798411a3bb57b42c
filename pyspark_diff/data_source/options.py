"""The options of the data source, checked. An unknown option is refused: it may be a misspelt one
that would change the rows.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import types as T

from pyspark_diff.spark.schema import TimeType

#: Options that Spark passes with the user's.
_SPARKS = frozenset({"checkpointlocation", "queryname", "outputmode", "provider"})

#: The seconds after which a read hold without a renewal expires.
HOLD_SECONDS = 3600.0


class Options:
    """Options by their names, without regard to case.

    Parameters
    ----------
    use : str
        The operation, for messages.

    Raises
    ------
    ValueError
        If an option is unknown.

    Examples
    --------
    >>> Options({"PATH": "/data/shop"}, ["path", "name"], "a read").needed("path", "the store's")
    '/data/shop'
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str], use: str):
        names = list(known)
        self._values = {name.lower(): value for name, value in given.items()}
        self._use = use
        odd = sorted(self._values.keys() - _SPARKS - {name.lower() for name in names})
        if odd:
            raise ValueError(
                f"{use} of format 'diff' has no option {', '.join(map(repr, odd))}; the options "
                f"are {', '.join(names)}"
            )

    def get(self, name: str) -> str | None:
        """An option; None if absent."""
        return self._values.get(name.lower())

    def needed(self, name: str, what: str) -> str:
        """A required option."""
        value = self.get(name)
        if not value:
            raise ValueError(f"{self._use} of format 'diff' needs .option({name!r}, ...): {what}")
        return value

    def store(self) -> str:
        """The root of a store. Python processes of Spark have other working directories."""
        path = self.needed("path", "where the store is")
        if not os.path.isabs(path) and ":/" not in path:
            raise ValueError(
                f"option 'path' is {path!r}, a relative path, and Spark's processes have working "
                "directories of their own. Pass os.path.abspath of it"
            )
        return path

    def whole(self, name: str) -> int | None:
        """A whole number from 0 on; None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal()):
            raise ValueError(f"option {name!r} is {value!r}; give a whole number from 0 on")
        return int(value)

    def flag(self, name: str) -> bool:
        """A boolean option; false if absent."""
        value = self.get(name)
        if (value or "false").lower() not in ("true", "false"):
            raise ValueError(f"option {name!r} is {value!r}; give true or false")
        return (value or "false").lower() == "true"

    def one_of(self, name: str, *values: str) -> str:
        """An option with certain values; the first if absent."""
        value = self.get(name)
        if value is not None and value.lower() not in values:
            raise ValueError(f"option {name!r} is {value!r}; give {' or '.join(values)}")
        return values[0] if value is None else value.lower()

    def seconds(self) -> float:
        """The seconds after which a read hold without a renewal expires."""
        value = self.get("holdSeconds")
        if value is None:
            return HOLD_SECONDS
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < 1e9:
            raise ValueError(f"option 'holdSeconds' is {value!r}; give a number of seconds")
        return seconds

    def time(self, name: str, kind: TimeType) -> Any:
        """A time of a type; None if absent."""
        value = self.get(name)
        if value is None:
            return None
        try:
            if isinstance(kind.kind, T.DateType):
                return datetime.date.fromisoformat(value)
            if isinstance(kind.kind, (T.TimestampType, T.TimestampNTZType)):
                return datetime.datetime.fromisoformat(value)
            return int(value)
        except ValueError:
            example = {"date": "2026-07-01", "timestamp": "2026-07-01 12:00:00+00:00",
                       "timestamp_ntz": "2026-07-01 12:00:00"}.get(kind.name, "17")
            raise ValueError(
                f"option {name!r} is {value!r}, and the times of this store are of type "
                f"{kind.name}; give one as {example!r}"
            ) from None

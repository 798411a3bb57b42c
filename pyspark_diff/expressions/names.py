"""Names by which a user can tell the columns of a collection: its own, and those an alias gives.

A join may bring two columns of one name together. Inside the library each has a name of its own;
the user sees the name that both have, and tells them apart by alias, as in PySpark.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Iterable, NamedTuple, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_diff.spark.frames import column


class Entry(NamedTuple):
    """One column: where the user finds it, and the column of the node that it is."""

    alias: str | None
    visible: str
    internal: str


class Origin(NamedTuple):
    """Where a column of a join comes from: the side, the name there, and the name here."""

    side: int
    source: str
    internal: str


def unused(name: str, names: Iterable[str]) -> str:
    """The name, or the name with a number, that is none of some others up to case.

    Examples
    --------
    >>> unused("count", ["k", "Count"])
    'count_1'
    """
    taken = {n.lower() for n in names}
    found, number = name, 0
    while found.lower() in taken:
        number += 1
        found = f"{name}_{number}"
    return found


@dataclass(frozen=True)
class Resolver:
    """The columns of a collection as a user sees them.

    Parameters
    ----------
    entries : tuple of Entry
    sources : tuple of Origin
        After a join, where each column comes from.
    """

    entries: tuple[Entry, ...]
    sources: tuple[Origin, ...] = ()

    @classmethod
    def plain(cls, names: Sequence[str]) -> "Resolver":
        """The resolver of columns that are what they are called."""
        return cls(tuple(Entry(None, name, name) for name in names))

    @classmethod
    def of(cls, names: Sequence[str]) -> "Resolver":
        """The resolver of columns of which some may be called the same."""
        counts = Counter(name.lower() for name in names)
        entries: list[Entry] = []
        for name in names:
            taken = [entry.internal for entry in entries]
            taken += [n for n in names if counts[n.lower()] > 1]
            entries.append(Entry(None, name, unused(name, taken)))
        return cls(tuple(entries))

    @property
    def visible(self) -> list[str]:
        """Names that the user sees, perhaps some of them twice."""
        return [entry.visible for entry in self.entries]

    @property
    def ambiguous(self) -> list[str]:
        """Names that more than one column has."""
        counts = Counter(name.lower() for name in self.visible)
        return list(dict.fromkeys(n for n in self.visible if counts[n.lower()] > 1))

    def internal(self, name: str) -> str | None:
        """The column with a name that only one has."""
        found = [entry.internal for entry in self.entries if entry.visible == name]
        return found[0] if len(found) == 1 and name not in self.ambiguous else None

    def named(self, alias: str) -> "Resolver":
        """The same columns, all found under one alias."""
        return Resolver(tuple(entry._replace(alias=alias) for entry in self.entries))

    def restricted(self, entries: Iterable[Entry]) -> "Resolver":
        """Only some of the columns."""
        return Resolver(tuple(entries))

    def beside(
        self, other: "Resolver", using: Sequence[str] = (), keys: Sequence[str] = ()
    ) -> "Resolver":
        """The columns of a join: all of this side, then of the other without its ``keys``.

        The columns ``using`` come first, once.
        """
        ours = [e for n in using for e in self.entries if e.internal == n]
        ours += [e for e in self.entries if e.internal not in using]
        theirs = [e for e in other.entries if e.internal not in keys]
        entries: list[Entry] = []
        sources: list[Origin] = []
        both = Counter(e.visible.lower() for e in (*ours, *theirs))
        reserved = [n for n, count in both.items() if count > 1]
        for side, entry in [(0, e) for e in ours] + [(1, e) for e in theirs]:
            taken = [e.internal for e in entries]
            if both[entry.visible.lower()] > 1:
                taken += reserved  # nobody finds it by its name alone
            internal = unused(entry.visible, taken)
            alias = None if side == 0 and entry.internal in using else entry.alias
            entries.append(Entry(alias, entry.visible, internal))
            sources.append(Origin(side, entry.internal, internal))
        return Resolver(tuple(entries), tuple(sources))

    def template(self, frame: DataFrame) -> DataFrame:
        """A Spark frame of the node's columns in which expressions find them by alias too."""
        aliases = self._aliases()
        if not aliases:
            return frame
        if len(aliases) == 1 and all(e.alias and e.visible == e.internal for e in self.entries):
            return frame.alias(aliases[0])
        # A field of a struct is named as a column of an aliased frame would be.
        parts = {
            alias: F.struct(*[
                column(e.internal).alias(e.visible) for e in self.entries if e.alias == alias
            ])
            for alias in aliases
        }
        return frame.withColumns(parts)

    def strip(self, frame: DataFrame) -> DataFrame:
        """Undo `template` on a frame that has some more columns."""
        return frame.drop(*[alias for alias in self._aliases() if alias in frame.columns])

    def with_column(self, name: str, replaced: Sequence[str] = ()) -> "Resolver":
        """The resolver with one more column, or with that in the place of others."""
        if name in self.visible:
            return replace(self, sources=())
        if not replaced:
            return Resolver((*self.entries, Entry(None, name, name)))
        return Resolver(tuple(
            Entry(None, name, name) if entry.visible in replaced else entry
            for entry in self.entries
        ))

    def _aliases(self) -> list[str]:
        return list(dict.fromkeys(e.alias for e in self.entries if e.alias is not None))

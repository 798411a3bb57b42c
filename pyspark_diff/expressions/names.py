"""Names by which a user can tell the columns of a collection: its own, and those an alias gives.

A join may bring two columns of one name together. Inside the library each has a name of its own;
the user sees the name that both have, and tells them apart by alias or by the frames that they come
from, as in PySpark.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Iterable, Mapping, NamedTuple, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.handles import STAR, Handle, Lineage, Owner, as_named
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import DIFF, TIME

#: The alias of all data columns in a frame that has none of the user's.
COLUMNS = "__columns"


class Entry(NamedTuple):
    """One column: where the user finds it, the column of the node that it is, and the handles that
    stand for it.

    A key of a join by names is under the alias of one side only; ``merged`` has the alias of the
    other side.
    """

    alias: str | None
    visible: str
    internal: str
    lineage: Lineage | None = None
    merged: tuple[str, ...] = ()


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
    bound : tuple of (str, str)
        Handles in an expression that is to be evaluated, and the columns that they stand for.
    star : Handle, optional
        What stands for all columns.
    spread : bool
        Whether an expression that is to be evaluated has a star, which takes the data columns only.
    """

    entries: tuple[Entry, ...]
    sources: tuple[Origin, ...] = ()
    bound: tuple[tuple[str, str], ...] = ()
    star: Handle | None = None
    spread: bool = False

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

    def standing_for(self, handle: Handle) -> list[Entry]:
        """The columns that a handle stands for."""
        return [e for e in self.entries if e.lineage is not None and handle in e.lineage]

    def binding(self, found: Mapping[Handle, Entry]) -> "Resolver":
        """The same columns, some of which an expression finds by handles."""
        pairs = [(handle.text, entry.internal) for handle, entry in found.items()]
        return replace(self, bound=(*self.bound, *pairs))

    def bound_to(self, name: str) -> str | None:
        """The column that a handle of an expression stands for, by the name that Spark has."""
        return next((to for text, to in self.bound if text.lower() == name.lower()), None)

    def owned(self, kind: str, frame: DataFrame | None = None) -> "Resolver":
        """The same columns of a collection that is made now, perhaps of a plain frame, with handles
        of its own."""
        owner = Owner(kind, tuple(self.visible), frame)
        handles = tuple(Handle(entry.visible, owner) for entry in self.entries)
        entries = tuple(
            entry._replace(lineage=Lineage(handle, entry.lineage))
            for entry, handle in zip(self.entries, handles)
        )
        return Resolver(entries, self.sources, star=Handle(STAR, owner, handles))

    def lineage(self, internal: str) -> Lineage | None:
        """The lineage of a column of the node."""
        return next((e.lineage for e in self.entries if e.internal == internal), None)

    def of_plain_frames(self) -> dict[Owner, dict[str, Handle]]:
        """The handles of columns that plain frames have too, by frame and name."""
        found: dict[Owner, dict[str, Handle]] = {}
        for entry in self.entries:
            for handle in entry.lineage or ():
                if handle.owner.frame is not None:
                    found.setdefault(handle.owner, {})[handle.name] = handle
        return found

    def as_named(self, name: str) -> str:
        """The name of a result without the handles that it is made of."""
        return as_named(name, [text for text, _ in self.bound])

    def as_shown(self, name: str, given: str | Column) -> str:
        """The same of an expression, also without the aliases of its columns.

        A name that the user gave to it stays.
        """
        name = self.as_named(name)
        aliases = [a for a in self.aliases() if f"{a}." in name] if "." in name else []
        if not aliases or self.alias_of_all != COLUMNS:
            return name
        if isinstance(given, Column) and str(given).endswith((f"AS {name}'>", f"AS `{name}`'>")):
            return name
        for alias in aliases:
            name = re.sub(rf"(?<![\w.`'\"]){re.escape(alias)}\.(?=[\w`])", "", name)
        # A field of a struct has its name twice, as in sum(x AS x).
        return re.sub(r"\b(\w+) AS \1\b", r"\1", name)

    def named(self, alias: str) -> "Resolver":
        """The same columns, all found under one alias."""
        return Resolver(tuple(e._replace(alias=alias, merged=()) for e in self.entries))

    def restricted(self, entries: Iterable[Entry]) -> "Resolver":
        """Only some of the columns."""
        return Resolver(tuple(entries))

    def beside(
        self, other: "Resolver", using: Sequence[str] = (), keys: Sequence[str] = (),
        named_by: int | None = 0,
    ) -> "Resolver":
        """The columns of a join: all of this side, then of the other without its ``keys``.

        The columns ``using`` come first, once. A handle of one side is bound to that side,
        also if both sides come from the same collection.

        Parameters
        ----------
        other : Resolver
        using, keys : sequence of str
            The key's columns on this side and on the other.
        named_by : {0, 1, None}
            The side (this is 0) whose names and alias the key's columns keep. With None they have
            the names of this side and no alias.
        """
        ours = [e for n in using for e in self.entries if e.internal == n]
        twins = [e for n in keys for e in other.entries if e.internal == n]
        for number, pair in enumerate(zip(ours, twins)):
            kept = None if named_by is None else pair[named_by].alias
            aliases = {a for e in pair for a in (e.alias, *e.merged) if a is not None and a != kept}
            ours[number] = ours[number]._replace(
                alias=kept, visible=pair[named_by or 0].visible, merged=tuple(sorted(aliases))
            )
        ours += [e for e in self.entries if e.internal not in using]
        theirs = [e for e in other.entries if e.internal not in keys]
        own = [{e.lineage.handle for e in s.entries if e.lineage} for s in (self, other)]
        gone = (own[1] - own[0], own[0] - own[1])
        entries: list[Entry] = []
        sources: list[Origin] = []
        both = Counter(e.visible.lower() for e in (*ours, *theirs))
        reserved = [n for n, count in both.items() if count > 1]
        for side, entry in [(0, e) for e in ours] + [(1, e) for e in theirs]:
            taken = [e.internal for e in entries]
            if both[entry.visible.lower()] > 1:
                taken += reserved  # nobody finds it by its name alone
            internal = unused(entry.visible, taken)
            lineage = entry.lineage and entry.lineage.without(gone[side])
            entries.append(entry._replace(internal=internal, lineage=lineage))
            sources.append(Origin(side, entry.internal, internal))
        made = {(origin.side, origin.source): origin.internal for origin in sources}
        bound = [
            (text, made[number, internal])
            for number, side_ in enumerate((self, other))
            for text, internal in side_.bound if (number, internal) in made
        ]
        return Resolver(tuple(entries), tuple(sources), tuple(bound))

    def template(self, frame: DataFrame) -> DataFrame:
        """A Spark frame of the node's columns in which expressions find them by alias too, and by
        handle."""
        more = {text: column(internal) for text, internal in self.bound}
        whole = self.alias_of_all
        if whole != COLUMNS:
            frame = frame.alias(whole)
        else:
            # A field of a struct is named as a column of an aliased frame would be.
            parts = {
                alias: F.struct(*[
                    column(e.internal).alias(e.visible) for e in self.entries if e.alias == alias
                ])
                for alias in self.aliases()
            }
            more = {**parts, **more}
            if self.spread:
                frame = frame.alias(whole)
        if self.spread:
            # A computed column is not under the alias, so that a star does not take it.
            more |= {name: column(name) for name in (TIME, DIFF) if name in frame.columns}
        return frame.withColumns(more) if more else frame

    @property
    def alias_of_all(self) -> str:
        """The alias of all data columns in the frame of `template`."""
        aliases = self.aliases()
        whole = len(aliases) == 1 and all(
            e.alias and e.visible == e.internal for e in self.entries
        )
        return aliases[0] if whole else COLUMNS

    def strip(self, frame: DataFrame) -> DataFrame:
        """Undo `template` on a frame that has some more columns."""
        made = [*self.aliases(), *(text for text, _ in self.bound)]
        return frame.drop(*[name for name in made if name in frame.columns])

    def with_column(self, name: str, replaced: Sequence[str] = ()) -> "Resolver":
        """The resolver with one more column, or with that in the place of others."""
        if name in self.visible:
            return Resolver(tuple(
                entry._replace(lineage=None) if entry.visible == name else entry
                for entry in self.entries
            ))
        if not replaced:
            return Resolver((*self.entries, Entry(None, name, name)))
        return Resolver(tuple(
            Entry(None, name, name) if entry.visible in replaced else entry
            for entry in self.entries
        ))

    def under(self, alias: str) -> list[Entry]:
        """The columns that are found under an alias.

        Raises
        ------
        SchemaError
            If a join by names has merged some with those of the other side.
        """
        merged = [entry.visible for entry in self.entries if alias in entry.merged]
        if merged:
            raise SchemaError(
                f"{alias}.* would have the key {', '.join(merged)}, and a join by names keeps only "
                f"the other side's. Name the columns, as in select({merged[0]!r}, ...)"
            )
        return [entry for entry in self.entries if entry.alias == alias]

    def aliases(self, *, merged: bool = False) -> list[str]:
        """The aliases that some columns are found under, perhaps those of merged keys too."""
        found = [a for e in self.entries for a in (e.alias, *(e.merged if merged else ()))]
        return list(dict.fromkeys(alias for alias in found if alias is not None))

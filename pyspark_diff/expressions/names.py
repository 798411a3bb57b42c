"""The names of a collection's columns: the user's names, and names under an alias.

A join may have two columns of one name. Inside the library each has a unique name. The user sees
the common name, and distinguishes the columns by alias or by their frames, as in PySpark.
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

#: The alias of all data columns in a frame without an alias of the user.
COLUMNS = "__columns"


class ColumnEntry(NamedTuple):
    """One column: the user's alias and name, the column of the node, and its handles.

    A key of a join by names has the alias of one side only; ``merged`` has the alias of the other
    side.
    """

    alias: str | None
    visible: str
    internal: str
    lineage: Lineage | None = None
    merged: tuple[str, ...] = ()


class Origin(NamedTuple):
    """The origin of a column of a join: the side, the name there, and the name in the join."""

    side: int
    source: str
    internal: str


def unused(name: str, names: Iterable[str]) -> str:
    """The name, or the name with a number, so that it differs from others in any case.

    Examples
    --------
    >>> unused("count", ["k", "Count"])
    'count_1'
    """
    occupied = {n.lower() for n in names}
    candidate, number = name, 0
    while candidate.lower() in occupied:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


@dataclass(frozen=True)
class Resolver:
    """The columns of a collection by the user's names.

    Parameters
    ----------
    sources : tuple of Origin
        After a join, the origin of each column.
    bound : tuple of (str, str)
        The handles in an expression to evaluate, and their columns.
    star : Handle, optional
        The handle for all columns.
    spread : bool
        Whether an expression to evaluate has a star, which takes the data columns only.
    """

    entries: tuple[ColumnEntry, ...]
    sources: tuple[Origin, ...] = ()
    bound: tuple[tuple[str, str], ...] = ()
    star: Handle | None = None
    spread: bool = False

    @classmethod
    def plain(cls, names: Sequence[str]) -> "Resolver":
        """The resolver of columns with unique names, which are also the node's names."""
        return cls(tuple(ColumnEntry(None, name, name) for name in names))

    @classmethod
    def with_repeats(cls, names: Sequence[str]) -> "Resolver":
        """The resolver of columns whose names may repeat."""
        counts = Counter(name.lower() for name in names)
        entries: list[ColumnEntry] = []
        for name in names:
            occupied = [entry.internal for entry in entries]
            occupied += [n for n in names if counts[n.lower()] > 1]
            entries.append(ColumnEntry(None, name, unused(name, occupied)))
        return cls(tuple(entries))

    @property
    def visible(self) -> list[str]:
        """The user's names, which may repeat."""
        return [entry.visible for entry in self.entries]

    @property
    def ambiguous(self) -> list[str]:
        """Names of more than one column."""
        counts = Counter(name.lower() for name in self.visible)
        return list(dict.fromkeys(n for n in self.visible if counts[n.lower()] > 1))

    def internal(self, name: str) -> str | None:
        """The column of a name; None if no column, or more than one, has it."""
        columns = [entry.internal for entry in self.entries if entry.visible == name]
        return columns[0] if len(columns) == 1 and name not in self.ambiguous else None

    def entries_of(self, handle: Handle) -> list[ColumnEntry]:
        """The columns of a handle."""
        return [e for e in self.entries if e.lineage is not None and handle in e.lineage]

    def binding(self, by_handle: Mapping[Handle, ColumnEntry]) -> "Resolver":
        """The same columns, with handles by which an expression finds some."""
        pairs = [(handle.text, entry.internal) for handle, entry in by_handle.items()]
        return replace(self, bound=(*self.bound, *pairs))

    def bound_to(self, name: str) -> str | None:
        """The column of a handle in an expression, by the handle's name in Spark."""
        return next((to for text, to in self.bound if text.lower() == name.lower()), None)

    def owned(self, kind: str, frame: DataFrame | None = None) -> "Resolver":
        """The same columns of a new collection, perhaps of a plain frame, with new handles."""
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
        """The handles of columns that come from plain frames, by frame and name."""
        handles: dict[Owner, dict[str, Handle]] = {}
        for entry in self.entries:
            for handle in entry.lineage or ():
                if handle.owner.frame is not None:
                    handles.setdefault(handle.owner, {})[handle.name] = handle
        return handles

    def as_named(self, name: str) -> str:
        """The name of a result, without the numbers of handles."""
        return as_named(name, [text for text, _ in self.bound])

    def as_shown(self, name: str, expression: str | Column) -> str:
        """The name of an expression, also without the aliases of its columns.

        An alias of the user stays.
        """
        name = self.as_named(name)
        aliases = [a for a in self.aliases() if f"{a}." in name] if "." in name else []
        if not aliases or self.alias_of_all != COLUMNS:
            return name
        named = f"AS {name}'>", f"AS `{name}`'>"
        if isinstance(expression, Column) and str(expression).endswith(named):
            return name
        for alias in aliases:
            name = re.sub(rf"(?<![\w.`'\"]){re.escape(alias)}\.(?=[\w`])", "", name)
        # A field of a struct shows its name twice, as in sum(x AS x).
        return re.sub(r"\b(\w+) AS \1\b", r"\1", name)

    def named(self, alias: str) -> "Resolver":
        """The same columns, all under one alias."""
        return Resolver(tuple(e._replace(alias=alias, merged=()) for e in self.entries))

    def restricted(self, entries: Iterable[ColumnEntry]) -> "Resolver":
        """The resolver of some of the columns."""
        return Resolver(tuple(entries))

    def joined_with(
        self, other: "Resolver", using: Sequence[str] = (), keys: Sequence[str] = (),
        named_by: int | None = 0,
    ) -> "Resolver":
        """The columns of a join: all columns of this side, then those of the other side without its
        ``keys``.

        The columns ``using`` come first, once. A handle of one side is bound to that side,
        also if both sides come from the same collection.

        Parameters
        ----------
        using, keys : sequence of str
            The key's columns on this side and on the other.
        named_by : {0, 1, None}
            The side (this is 0) whose names and alias the key's columns keep. With None they have
            the names of this side and no alias.
        """
        ours = [e for n in using for e in self.entries if e.internal == n]
        twins = [e for n in keys for e in other.entries if e.internal == n]
        for number, pair in enumerate(zip(ours, twins)):
            alias = None if named_by is None else pair[named_by].alias
            others = {a for e in pair for a in (e.alias, *e.merged)} - {None, alias}
            ours[number] = ours[number]._replace(
                alias=alias, visible=pair[named_by or 0].visible,
                merged=tuple(sorted(str(other) for other in others)),
            )
        ours += [e for e in self.entries if e.internal not in using]
        theirs = [e for e in other.entries if e.internal not in keys]
        own = [{e.lineage.handle for e in s.entries if e.lineage} for s in (self, other)]
        gone = (own[1] - own[0], own[0] - own[1])
        entries: list[ColumnEntry] = []
        sources: list[Origin] = []
        both = Counter(e.visible.lower() for e in (*ours, *theirs))
        reserved = [n for n, count in both.items() if count > 1]
        for side, entry in [(0, e) for e in ours] + [(1, e) for e in theirs]:
            occupied = [e.internal for e in entries]
            if both[entry.visible.lower()] > 1:
                occupied += reserved  # the name alone is ambiguous
            internal = unused(entry.visible, occupied)
            lineage = entry.lineage and entry.lineage.without(gone[side])
            entries.append(entry._replace(internal=internal, lineage=lineage))
            sources.append(Origin(side, entry.internal, internal))
        internals = {(origin.side, origin.source): origin.internal for origin in sources}
        bound = [
            (text, internals[number, internal])
            for number, side_ in enumerate((self, other))
            for text, internal in side_.bound if (number, internal) in internals
        ]
        return Resolver(tuple(entries), tuple(sources), tuple(bound))

    def template(self, frame: DataFrame) -> DataFrame:
        """A Spark frame of the node's columns, in which expressions find them also by alias and by
        handle."""
        more = {text: column(internal) for text, internal in self.bound}
        whole = self.alias_of_all
        if whole != COLUMNS:
            frame = frame.alias(whole)
        else:
            # A field of a struct has the name of a column of an aliased frame.
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
            # A computed column has no alias, so the star of the alias does not take it.
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
        """Undo `template` on a frame that may have further columns."""
        added = [*self.aliases(), *(text for text, _ in self.bound)]
        return frame.drop(*[name for name in added if name in frame.columns])

    def with_column(self, name: str, replaced: Sequence[str] = ()) -> "Resolver":
        """The resolver with a column added, or in the place of others."""
        if name in self.visible:
            return Resolver(tuple(
                entry._replace(lineage=None) if entry.visible == name else entry
                for entry in self.entries
            ))
        if not replaced:
            return Resolver((*self.entries, ColumnEntry(None, name, name)))
        return Resolver(tuple(
            ColumnEntry(None, name, name) if entry.visible in replaced else entry
            for entry in self.entries
        ))

    def under(self, alias: str) -> list[ColumnEntry]:
        """The columns of an alias.

        Raises
        ------
        SchemaError
            If a join by names has merged some of them with columns of the other side.
        """
        merged = [entry.visible for entry in self.entries if alias in entry.merged]
        if merged:
            raise SchemaError(
                f"{alias}.* would have the key {', '.join(merged)}, and a join by names keeps only "
                f"the other side's. Name the columns, as in select({merged[0]!r}, ...)"
            )
        return [entry for entry in self.entries if entry.alias == alias]

    def aliases(self, *, merged: bool = False) -> list[str]:
        """The aliases of columns, with those of merged keys on request."""
        listed = [a for e in self.entries for a in (e.alias, *(e.merged if merged else ()))]
        return list(dict.fromkeys(alias for alias in listed if alias is not None))

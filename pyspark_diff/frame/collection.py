"""Collections as the methods of a frame see them: a node, and the user's names of its columns.

A collection is a value. An operator derives another one with `Collection.derived`, which makes the
checks that every operator needs::

    derived(c, node) = c with the node and its columns, without hints or a key, and with handles
                       of its own
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Iterable, Sequence, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.times import time_kind
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.handles import Handle, Owner, handles_in, with_handles_spelled
from pyspark_diff.expressions.names import ColumnEntry, Resolver
from pyspark_diff.operators.cross import Hot
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Input, Node
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.frames import template
from pyspark_diff.spark.schema import DIFF, TIME, check_data_names, meant_by
from pyspark_diff.spark.stars import spread
from pyspark_diff.spark.taken import TakenColumn, star_taken, with_taken_replaced

#: Expressions as a method receives them: a column, or a list, tuple or dict of columns.
Given = TypeVar("Given")


@dataclass(frozen=True, eq=False)
class Collection:
    """A collection while a program is written.

    Parameters
    ----------
    flow : BaseDataflow or None
        The dataflow of the collection; None if it has its whole history.
    time_name, diff_name : str
        The user's names of these two columns.
    resolver : Resolver
        The user's names of the data columns.
    small : bool
        Whether the user declared it small, so that all buckets may have a copy of it.
    hot : Hot, optional
        Keys that the user declared to occur in many records.
    key : tuple of str, optional
        Columns of the node by which it was arranged last.
    """

    node: Node
    flow: BaseDataflow | None
    spark: SparkSession
    time_name: str
    diff_name: str
    resolver: Resolver
    small: bool = False
    hot: Hot | None = None
    key: tuple[str, ...] | None = None

    @property
    def columns(self) -> list[str]:
        """Names of the data columns, as the user sees them."""
        return self.resolver.visible

    @property
    def times(self) -> T.DataType:
        """The type of the times, as the user sees them."""
        return time_kind(self.node)

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the data columns, as the user sees them."""
        fields = self.node.schema.struct
        if not self.resolver.ambiguous:
            return fields
        return T.StructType([
            T.StructField(e.visible, fields[e.internal].dataType, fields[e.internal].nullable)
            for e in self.resolver.entries
        ])

    def __post_init__(self) -> None:
        # New columns have no handle yet.
        if any(entry.lineage is None for entry in self.resolver.entries):
            object.__setattr__(self, "resolver", self.resolver.owned(_called(self.node)))

    def derived(
        self, node: Node, *, resolver: Resolver | None = None, same: bool = False
    ) -> Collection:
        """The collection of a node that an operator derived from this one.

        Parameters
        ----------
        resolver : Resolver, optional
            Without a resolver, the columns have the node's names. A column with the lineage of a
            column of this collection is that column, unchanged.
        same : bool
            Whether, without a resolver, columns of the same name and type are unchanged.
        """
        if resolver is None:
            self.check_unambiguous(node.kind)
            resolver = Resolver.plain(node.schema.names)
            if same:
                resolver = self.unchanged(resolver, node)
        check_data_names(node.schema.names, self.time_name, self.diff_name, node.kind)
        self.check_open()
        resolver = resolver.owned(_called(node))
        return replace(self, node=node, resolver=resolver, small=False, hot=None, key=None)

    def unchanged(self, resolver: Resolver, node: Node) -> Resolver:
        """The columns of a node: those with the name and type of one of our columns get its
        lineage."""
        # A look-up by name in a struct goes through all fields, so the fields go into dicts.
        ours, theirs = (
            {field.name: field.dataType for field in n.schema.struct.fields}
            for n in (self.node, node)
        )
        same = {
            name for name, kind in ours.items()
            if name in theirs and without_nullability(kind) == without_nullability(theirs[name])
        }
        lineages = {entry.internal: entry.lineage for entry in self.resolver.entries}
        return Resolver(tuple(
            entry._replace(lineage=lineages.get(entry.internal))
            if entry.internal in same else entry
            for entry in resolver.entries
        ))

    def seeing(self, expressions: Given) -> tuple[Collection, Given]:
        """This collection, in which expressions find the columns of their handles, and these
        expressions.

        Parameters
        ----------
        given : Column, or list, tuple or dict of them
            Other values stay unchanged. Handles replace the columns of plain frames.

        Raises
        ------
        SchemaError
            If a handle refers to no column of this collection, or to more than one.
        """
        expressions = with_frame_handles(expressions, self.resolver, [self])
        handles = handles_in([expressions])
        if not handles:
            return self, expressions
        bound = {handle: self.entry_of(handle) for handle in handles}
        return replace(self, resolver=self.resolver.binding(bound)), expressions

    def spreading(self, expressions: Given) -> tuple[Collection, Given]:
        """As `seeing`; stars within the expressions take the data columns only.

        Raises
        ------
        SchemaError
            As in `seeing`, and if a star would take columns that have one name.
        """
        source, expressions = self.seeing(expressions)
        alias, stars = source.resolver.alias_of_all, set()

        def spread_in(thing: Any) -> Any:
            if isinstance(thing, Column):
                thing, more = spread(thing, alias, source.resolver.visible)
                stars.update(more)
                return thing
            if isinstance(thing, (list, tuple)):
                return type(thing)(map(spread_in, thing))
            return {k: spread_in(v) for k, v in thing.items()} if type(thing) is dict else thing

        spread_out = spread_in(expressions)
        if not stars:
            return source, expressions
        if False in stars:
            self.check_unambiguous("a star in an expression")
        return replace(source, resolver=replace(source.resolver, spread=True)), spread_out

    def entry_of(self, handle: Handle) -> ColumnEntry:
        """The column of a handle."""
        entries = self.resolver.entries_of(handle)
        if len(entries) > 1:
            raise two_of(handle)
        if not entries:
            raise none_of(handle.name, handle.owner, [self])
        return entries[0]

    def picked(self, kind: str, names: Sequence[tuple[str, str]]) -> Collection:
        """Some columns, from pairs of the user's name of a column and its new name."""
        internal = [(self.column_name(old, f"for {kind}"), new) for old, new in names]
        entries = [
            ColumnEntry(
                None, new, new,
                self.resolver.lineage(there) if self.named(new) == self.named(old) else None,
            )
            for (old, new), (there, _) in zip(names, internal)
        ]
        return self.derived(pick(kind, self.node, internal), resolver=Resolver(tuple(entries)))

    def template(self) -> DataFrame:
        """A frame without rows in which the user's expressions find this collection's columns."""
        frame = template(self.spark, self.node.schema, self.node.time_type).drop(TIME, DIFF)
        return self.resolver.template(frame)

    def column_name(self, name: str, where: str) -> str:
        """The node's column for a name of the user.

        Raises
        ------
        SchemaError
            If no column, or more than one, has the name.
        """
        internal = self.resolver.internal(name)
        if internal is None:
            spelled = self.named(name)
            if len(spelled) == 1:
                internal = self.resolver.internal(spelled[0])
        if internal is None:
            if self.named(name):
                self.check_unambiguous(where)
            raise SchemaError(
                f"there is no column {name!r} {where}; the columns are {', '.join(self.columns)}"
            )
        return internal

    def named(self, name: str) -> list[str]:
        """The columns that a name means under the setting ``spark.sql.caseSensitive``."""
        return meant_by(name, self.columns, self.spark)

    def check_unambiguous(self, kind: str) -> None:
        """Refuse a collection in which several columns have one name."""
        if self.resolver.ambiguous:
            raise SchemaError(
                f"{kind}: more than one column is called {', '.join(self.resolver.ambiguous)}; "
                "name each side by alias, as in a.alias(\"l\").join(b.alias(\"r\"), ...)"
                ".select(\"l.x\", \"r.y\"), drop some, or rename all with toDF(...)"
            )

    def check_open(self) -> None:
        """Refuse an operator of a dataflow that was closed."""
        if self.flow is not None:
            self.flow._check_open()

    def check_combines(self, other: Collection) -> None:
        """Refuse a collection that no operator can combine with this one."""
        if other.flow is not self.flow:
            raise SchemaError(
                "the two collections belong to different dataflows; take both from one Dataflow, "
                "or wrap the whole history of both. Pass a table that does not change itself, "
                "without DiffFrame"
            )
        ours, theirs = self.times, other.times
        if ours != theirs:
            raise SchemaError(
                f"the two collections have times of different types, {ours.simpleString()} "
                f"and {theirs.simpleString()}; cast one"
            )

    def matched(self, other: Collection, kind: str) -> Collection:
        """Another collection with our columns, matched by name.

        Raises
        ------
        SchemaError
            If it has others.
        """
        pairs = [(name, mine) for mine in self.columns for name in other.named(mine)]
        if len(pairs) != len(self.columns) or len(pairs) != len(other.columns):
            raise self.mismatch(kind, other)
        return other.picked(kind, pairs)

    def mismatch(self, kind: str, other: Collection) -> SchemaError:
        """The error of an operator that needs the same columns on both sides."""
        return SchemaError(
            f"{kind} needs the same columns on both sides; here ({self.node.schema.describe()}), "
            f"there ({other.node.schema.describe()})" + (
                "; the body of a loop gives the columns that it is given" if kind == "set" else ""
            )
        )


def _called(node: Node) -> str:
    return node.name if isinstance(node, Input) else node.kind


def two_of(handle: Handle) -> SchemaError:
    """The error of a handle with more than one column."""
    name, owner = handle.name, handle.owner
    if owner.is_plain:
        return SchemaError(
            f"the column {name!r} of {owner} is there more than once, as the frame came in more "
            "than once. Give it another name each time, as in a.join(df.alias('d'), a['x'] == "
            f"F.col('d.{name}'))"
        )
    return SchemaError(
        f"the column {name!r} of {owner} is there more than once, as a collection was joined with "
        "itself. Give each side a name of its own: a, b = edges.alias(\"a\"), edges.alias(\"b\"), "
        f"then a.join(b, a[{name!r}] == b[...])"
    )


def none_of(name: str, owner: Owner, collections: Iterable[Collection]) -> SchemaError:
    """The error of a column that the collections no longer have, or never had."""
    return SchemaError(
        f"the column {name!r} of {owner} is none of {_shown(collections)}: it is another "
        "collection's, or was changed, renamed or dropped on the way. Take a column of the "
        f"collection itself, frame[{name!r}], or join the other one first"
    )


def with_frame_handles(
    given: Given, resolver: Resolver, collections: Sequence[Collection]
) -> Given:
    """Expressions in which handles replace columns that were taken from plain Spark frames.

    Parameters
    ----------
    given : Column, or list, tuple or dict of them
    resolver : Resolver
        Has the handles, if the frames have become a part of its collection.
    collections : sequence of Collection
        The collections whose columns it has, for messages.
    """

    def of_star(star: Column) -> list[Column]:
        return columns_of_star(star, resolver)

    def replaced(thing: Any) -> Any:
        if isinstance(thing, Column):
            thing = with_taken_replaced(thing, of_handle, of_star)
            handles = handles_in([thing])
            return with_handles_spelled(thing, handles) if handles else thing
        if isinstance(thing, (list, tuple)):
            parts = [replaced(part) for part in thing]
            same = all(new is old for new, old in zip(parts, thing))
            return thing if same else parts if isinstance(thing, list) else tuple(parts)
        if type(thing) is dict:
            return {key: replaced(part) for key, part in thing.items()}
        return thing

    def of_handle(taken: TakenColumn) -> Column:
        matches: list[tuple[Handle, str]] = []
        gone: list[tuple[str, Owner]] = []
        for owner, handles in resolver.of_plain_frames().items():
            assert owner.frame is not None
            there = taken.found_in(owner.frame)
            if there is not None and there[0] in handles:
                matches.append((handles[there[0]], there[1]))
            elif there is not None:
                gone.append((there[0], owner))
        if len(matches) > 1:
            raise two_of(matches[0][0])
        if matches:
            handle, rest = matches[0]
            return handle.column(taken.name[:len(taken.name) - len(rest)].strip("`"), rest)
        if gone:
            raise none_of(*gone[0], collections)
        name = taken.name.strip("`")
        raise SchemaError(
            f"the column {name!r} comes from a plain Spark frame, which is no part of "
            f"{_shown(collections)}. Join that frame first, a.join(df, a['x'] == df[{name!r}]), "
            "and use its columns after the join. A column of the collection itself is frame['x']"
        )

    return replaced(given)


def columns_of_star(star: Column, resolver: Resolver) -> list[Column]:
    """The columns of a plain frame's star; an empty list if the column is no such star.

    Raises
    ------
    SchemaError
        If the collection has no part of that frame.
    """
    names_in = star_taken(star)
    if names_in is None:
        return []
    columns = [
        handles[name].column() for owner, handles in resolver.of_plain_frames().items()
        if owner.frame is not None for name in names_in(owner.frame) if name in handles
    ]
    if not columns:
        raise SchemaError(
            "a star comes from a plain Spark frame, which is no part of this collection. "
            "Join that frame first, and take the star of the joined collection"
        )
    return columns


def _shown(collections: Iterable[Collection]) -> str:
    return " and ".join(f"{_called(c.node)}[{', '.join(c.columns)}]" for c in collections)

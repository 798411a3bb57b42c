"""Tables as users name them, for the sources that read one.

    columns that are read  =  columns that the table had when the input was made

Other people change tables. A column that a table gains is left out, so that a program without a use
of it continues. A lost column, or one with another type, is an error.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import Offset, Source
from pyspark_diff.errors import SchemaError, SourceError
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.frames import column, few, frame_of_table
from pyspark_diff.spark.schema import Schema, meant_by

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger("pyspark_diff")

#: A table: its name, a frame that each reading evaluates anew, or a function that returns one.
Table: TypeAlias = "str | DataFrame | Callable[[], DataFrame]"


def frame_of(table: Table, spark: SparkSession) -> DataFrame:
    """The present table as a frame."""
    if isinstance(table, str):
        return spark.table(table)
    return table() if callable(table) else table


def table_text(table: Table) -> str:
    """The name of a table in a message."""
    return repr(table) if isinstance(table, str) else "the frame"


def named(
    fields: Sequence[T.StructField], names: Iterable[str], table: Table, spark: SparkSession
) -> list[str]:
    """The table's columns that a user's names mean.

    Raises
    ------
    SchemaError
        If no column has one of the names.
    """
    columns = [field.name for field in fields]
    resolved = []
    for name in names:
        meant = meant_by(name, columns, spark)
        if not meant:
            raise SchemaError(
                f"{table_text(table)} has no column {name!r}; its columns are "
                f"{', '.join(columns)}. Name one of them"
            )
        resolved.append(meant[0])
    return resolved


class TableSource(Source):
    """A source with the columns of a table. It keeps them, and logs columns that it leaves out."""

    #: The owner's remedy for a change of the columns, for messages.
    undo = "Bring them back"
    _columns: T.StructType | None = None
    _left_out: tuple[str, ...] = ()
    #: The columns that are read; None for all.
    _used: frozenset[str] | None = None
    #: Further columns of the table, which no message mentions.
    _unused: frozenset[str] = frozenset()
    #: The offset in the store from which it continues; None for a new source.
    _begun: Offset = None
    #: The present names of renamed columns, by the names here.
    _new_names: Mapping[str, str] = {}

    def reading(self, names: Iterable[str]) -> Self:
        """The source with some columns of its table, which are its key or used by a program.

        A table may lose its other columns, or change their types. If it has none of the names, its
        first column is read.
        """
        source = copy(self)
        source._used = frozenset(names)
        return source

    def columns(self, spark: SparkSession) -> T.StructType:
        struct = without_nullability(self._columns_now(spark))
        if self._used is not None:
            used = [field for field in struct.fields if field.name in self._used]
            self._unused = frozenset(struct.names) - {field.name for field in used}
            struct = T.StructType(used or struct.fields[:1])
        if self.key:
            try:
                self.key = Schema(struct).resolved(self.key, f"the key of {self!r}", spark)
            except SchemaError:
                # A store may have a renamed column under this name: see `_with`. The input refuses
                # a key that is in neither.
                if self._begun is None:
                    raise
        self._columns, self._left_out = struct, ()
        return struct

    def narrowed(self, columns: T.StructType, spark: SparkSession) -> TableSource:
        source, now = self._with(columns, self._columns_now(spark), spark)
        old = {new: name for name, new in source._new_names.items()}
        added = sorted({old.get(name, name) for name in self._used or ()} - {*columns.names})
        if added:
            raise self._columns_changed(f"{', '.join(added)} was added, and the query uses it")
        source._check_columns(now)
        return source

    def compared(
        self, columns: T.StructType, present: T.StructType, spark: SparkSession
    ) -> tuple[Mapping[str, str], str | None]:
        """The present names of renamed columns, and the other changes in words.

        Parameters
        ----------
        columns : StructType
            The columns at the offset of `after`.
        present : StructType
            All columns of the table.
        """
        source, now = self._with(columns, present, spark)
        same = T.StructType([field for field in now.fields if field.name in columns.names])
        return source._new_names, differences(columns, same)

    def columns_in_log(self, spark: SparkSession) -> T.StructType:
        """All columns of the rows, without a Spark job if possible."""
        return self._columns_now(spark)

    def _with(
        self, columns: T.StructType, present: T.StructType, spark: SparkSession
    ) -> tuple[Self, T.StructType]:
        """The source with earlier columns, and the present columns under their names."""
        source, now = copy(self), without_nullability(present)
        source._columns = without_nullability(columns)
        source._follow_renames(spark, self._begun, now.names)
        old = {new: name for name, new in source._new_names.items()}
        source.key = tuple(
            next(iter(meant_by(old.get(name, name), columns.names, spark)), name)
            for name in self.key
        )
        return source, source._in_old_case(source._under_old_names(now), spark)

    def after(self, offset: Offset) -> Self:
        source = copy(self)
        source._begun = offset
        return source

    def renamed(self) -> Mapping[str, str]:
        return self._new_names

    def _follow_renames(self, spark: SparkSession, offset: Offset, names: Sequence[str]) -> None:
        """Find the present names of columns that were renamed since an offset, if the table has
        the identity of columns.

        Parameters
        ----------
        names : sequence of str
            The present columns.
        """
        self._new_names = {}

    def _under_old_names(self, struct: T.StructType) -> T.StructType:
        """Present columns of the table with the names here."""
        old = {new: name for name, new in self._new_names.items()}
        return T.StructType([
            T.StructField(old.get(field.name, field.name), field.dataType, True, field.metadata)
            for field in struct.fields
        ])

    def _in_old_case(self, struct: T.StructType, spark: SparkSession) -> T.StructType:
        """Columns of the table with the spelling of the names here."""
        return _respelled(struct, self._known().names, spark)

    @abstractmethod
    def _columns_now(self, spark: SparkSession) -> T.StructType:
        """All columns of the rows.

        Raises
        ------
        SourceError
            If the table does not exist.
        """

    @abstractmethod
    def _called(self) -> str:
        """The name of the table in a message."""

    def _known(self) -> T.StructType:
        assert self._columns is not None  # a source is asked for its columns first
        return self._columns

    def _check_columns(self, now: T.StructType, renamed: Mapping[str, str] = {}) -> None:
        """Refuse columns without those of the source, and name the others in the log, once.

        Parameters
        ----------
        renamed : mapping of str to str
            Old and new names, if they are known.
        """
        known = self._known()
        changed = differences(known, now, renamed)
        if changed is not None:
            raise self._columns_changed(changed)
        names = frozenset(known.names)
        left_out = tuple(name for name in now.names if name not in names | self._unused)
        if left_out and left_out != self._left_out:
            _logger.warning(
                "%s has new columns, %s, which are not read. A dataflow that is opened anew, with "
                "on_change='rebuild' if it has a store, reads the table again with them",
                self._called(), ", ".join(left_out),
            )
        self._left_out = left_out

    def _columns_changed(self, changes: str) -> SourceError:
        return SourceError(
            f"the columns of {self._called()} have changed: {changes}. Nothing was read. "
            f"{self.undo}; or open the dataflow anew: with a store, on_change='extend' reads this "
            "table again, and on_change='rebuild' all tables"
        )

    def _narrowed(self, frame: DataFrame, extra: Sequence[str] = ()) -> DataFrame:
        """The columns of the source in a frame, and some others; case may have changed."""
        known, spark = self._known().names, frame.sparkSession
        own = {match for name in extra for match in meant_by(name, frame.columns, spark)}
        fields = T.StructType([field for field in frame.schema.fields if field.name not in own])
        now = _respelled(fields, known, spark)
        self._check_columns(now)
        named = dict(zip(now.names, fields.names))
        return frame.select(
            *(column(named[name]).alias(name) for name in known), *map(column, extra)
        )


def _respelled(
    struct: T.StructType, names: Sequence[str], spark: SparkSession
) -> T.StructType:
    """Columns with the spelling of some names, which Spark resolves to the same columns."""
    meant = {there: name for name in names for there in meant_by(name, struct.names, spark)}
    return T.StructType([
        T.StructField(meant.get(field.name, field.name), field.dataType) for field in struct.fields
    ])


def differences(
    was: T.StructType, now: T.StructType, renamed: Mapping[str, str] = {}
) -> str | None:
    """The columns that differ, in words; None if all old columns exist with their types.

    Examples
    --------
    >>> was, now = (T.StructType.fromDDL(ddl) for ddl in ("a int, b int", "a long, c int"))
    >>> differences(was, now)
    'c was added, b was dropped, a was int and is bigint'
    >>> differences(was, now, {"b": "c"})
    'b was renamed to c, a was int and is bigint'
    >>> differences(was, T.StructType.fromDDL("c int, b int, a int")) is None
    True
    """
    old, new = ({field.name: without_nullability(field.dataType) for field in struct.fields}
                for struct in (was, now))
    if all(name in new and new[name] == kind for name, kind in old.items()):
        return None
    texts = [f"{name} was added" for name in new
             if name not in old and name not in renamed.values()]
    texts += [f"{name} was renamed to {renamed[name]}" if name in renamed
              else f"{name} was dropped" for name in old if name not in new]
    texts += [f"{name} was {kind.simpleString()} and is {new[name].simpleString()}"
              for name, kind in old.items() if name in new and new[name] != kind]
    return ", ".join(texts)


def at_hand(frame: DataFrame) -> DataFrame:
    """The rows of a frame; few rows are read now, and not again later."""
    table = few(frame)
    return frame if table is None else frame_of_table(frame.sparkSession, table, frame.schema)

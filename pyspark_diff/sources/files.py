"""Folders of change files: each file is read once, and none is ever left out.

    files of a reading  =  the files in the folder without the files of earlier readings

The offset has the names of the files, so their order of arrival does not matter. A changed file is
an error. A removed file is forgotten.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import (
    Change,
    Deletes,
    Forget,
    Inserts,
    Offset,
    Reading,
    Removes,
    Source,
    Upserts,
    Versions,
    hidden_names,
)
from pyspark_diff.errors import SchemaError, SourceError
from pyspark_diff.sources.logs import check_retention, last_versions, latest, version_rows
from pyspark_diff.sources.tables import at_hand
from pyspark_diff.spark.frames import check_format, column, literal_path
from pyspark_diff.spark.schema import Schema, as_keys, parse_schema

#: The values of an op column, in small letters.
INSERTS = ("i", "insert", "c", "create", "r", "read", "+i")
UPDATES = ("u", "update", "upsert", "update_postimage", "update_after", "+u")
DELETES = ("d", "delete", "remove", "-d")
BEFORE = ("update_preimage", "update_before", "-u")

#: The columns with the op and with the order of a row.
OP, ORDER = "__op", "__order"
#: The column with the number of a row's file.
_FILE = "__file"


def files(
    path: str, schema: str | T.StructType, *, format: str = "json", key: str | Sequence[str] = (),
    op: str | None = "op", order: str | Sequence[str] = (), options: Mapping[str, Any] = {},
) -> Source:
    """A folder to which files of changes are added.

    Parameters
    ----------
    path : str
        The folder. Files whose names begin with ``_`` or ``.`` are left alone, and so are folders
        in it.
    schema : str or StructType
        Columns of the rows, for example ``"id int, city string"``, without that of the op.
    format : str
        Any that Spark reads: ``"json"``, ``"csv"``, ``"parquet"``, ``"orc"``.
    key : str or list of str
        Columns of a key, of which there is one row at a time: an insert or update takes the place
        of the row with its key, a delete needs nothing but the key.
    op : str, optional
        A text column that tells what each row is: insert (``i``, ``c``, ``r``), update (``u``) or
        delete (``d``), also in whole words; None if all are inserts. Without a key an update is two
        rows, the one from before (``update_preimage``) and the one behind.
    order : str or list of str
        Columns by which changes of one key come after each other. Files come in the order of the
        times at which they were written, and of one time of their names; within one file the order
        of changes of one key is not known without. The schema has to have these columns.
    options : mapping
        Of Spark's reader, such as ``{"header": True}`` of CSV.

    Raises
    ------
    SchemaError
        If the schema has the op, or lacks a column of the order.
    SourceError
        By `Dataflow.catch_up`: if a file was changed that had been read, a row has an op that is
        none, or it cannot be told which change of a key is the last.

    Notes
    -----
    Each reading lists the folder, and each commit holds the names of all files that are in it. So
    move files away that were read by a commit, and both stay small. They are forgotten with the
    next file that is read; one that is put back after that is read again.

    JSON has to spell the names of fields exactly as the schema does, as another spelling is another
    field, and one that is missing is null. CSV is read by position and its header is ignored: the
    columns of the schema are first, then the op. In Parquet and ORC columns are matched by name,
    without regard to case.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> from pyspark_diff import Dataflow
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> def put(name, *rows):
    ...     _ = (folder / name).write_text("\\n".join(map(json.dumps, rows)))
    >>> with Dataflow(spark) as flow:
    ...     people = flow.source("people", files(str(folder), "id int, city string", key="id"))
    ...     kept = people.keep()
    ...     rome, oslo, bonn = [(1, "Rome"), (2, "Oslo"), (1, "Bonn")]
    ...     put("1.json", *({"op": "c", "id": id, "city": city} for id, city in (rome, oslo)))
    ...     _ = flow.catch_up()
    ...     put("2.json", {"op": "u", "id": bonn[0], "city": bonn[1]}, {"op": "d", "id": 2})
    ...     _ = flow.catch_up()
    ...     kept.at().collect()
    [Row(id=1, city='Bonn')]
    """
    struct = parse_schema(schema).struct
    check_format(format, struct)
    named = [] if op is None else [T.StructField(op, T.StringType())]
    read = T.StructType([*struct.fields, *named])
    if op is not None and op.lower() in map(str.lower, struct.names):
        raise SchemaError(
            f"column {op} is the op of a row, and no part of the record. Leave it out of the "
            "schema, or name another one, op=..."
        )
    columns = [field.name.lower() for field in read.fields]
    for name in as_keys(order):
        if name.lower() not in columns:
            raise SchemaError(
                f"the schema of the files has no column {name!r} to order changes by; its columns "
                f"are {', '.join(read.names)}. Add the column to the schema, or order by another "
                "one, order=..."
            )
    return _Files(path, struct, read, format, as_keys(key), op, as_keys(order), dict(options))


def debezium(
    path: str, schema: str | T.StructType, *, key: str | Sequence[str] = (),
    order: str | Sequence[str] = "ts_ms", options: Mapping[str, Any] = {},
    retention: int | None = None,
) -> Source:
    """A folder to which files of Debezium's change events are added, as JSON.

    An event is an object with ``op``, ``before`` and ``after``, by itself or as ``payload``; one of
    an update or delete without a key needs the whole row in ``before``. With a key, an update
    whose ``before`` has another key also deletes the row of that key. Tombstones are left out.

    Parameters
    ----------
    path, key, options
        As of `files`.
    schema : str or StructType
        Columns of the rows.
    order : str or list of str
        Numbers of an event by which changes of one key come after each other, ``"ts_ms"`` or the
        log position of the database, such as ``"source.lsn"``. A missing number is smallest. Of
        equal numbers the event in the file that was written last is the last one.
    retention : int, optional
        The distance from the greatest number of earlier readings, the first of `order`, up to which
        an event with a key may be late. Later events are left out. By default an event may have any
        number.

    Raises
    ------
    ValueError
        If `order` is empty.
    SourceError
        As of `files`; also if an event says that the table was truncated, which no event can be
        made of: read the table as `snapshots` then.

    Notes
    -----
    With a key, events may come in any order. At every time a key has the row of the event with the
    greatest order among all events read so far, and no row if that is a deletion. So a deletion may
    come before its insertion, and an event that is delivered again changes nothing.

    The state has the order of each row, and keeps a tombstone for each deleted key: its key and its
    order. So files may leave the folder once they were read. Without a `retention` tombstones stay
    for ever. With one, those beyond it are removed from time to time, which reads the state. A join
    by the key arranges the rows once more, without orders and tombstones.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> from pyspark_diff import Dataflow
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rome, bonn = {"id": 1, "city": "Rome"}, {"id": 1, "city": "Bonn"}
    >>> events = [{"op": "c", "before": None, "after": rome, "ts_ms": 1},
    ...           {"op": "u", "before": rome, "after": bonn, "ts_ms": 2}]
    >>> _ = (folder / "1.json").write_text("\\n".join(map(json.dumps, events)))
    >>> with Dataflow(spark) as flow:
    ...     people = flow.source("people", debezium(str(folder), "id int, city string")).keep()
    ...     _ = flow.catch_up()
    ...     people.at().collect()
    [Row(id=1, city='Bonn')]
    """
    if not as_keys(order):
        raise ValueError(
            "debezium(order=()) names no number of an event: name one that grows, such as 'ts_ms'"
        )
    check_retention(retention)
    return _Debezium(
        path, parse_schema(schema).struct, as_keys(key), as_keys(order), dict(options), retention
    )


class _FolderSource(Source):
    """A folder to which files are added."""

    def __init__(self, path: str, struct: T.StructType, key: tuple[str, ...]):
        self._path, self._struct, self.key = path, struct, key

    def columns(self, spark: SparkSession) -> T.StructType:
        return self._struct

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        known = {} if offset is None else offset["files"]
        there = self._listed(spark)
        changed = [name for name, entry in there.items() if known.get(name, entry) != entry]
        if changed:
            raise SourceError(
                f"files in {self._path!r} have changed since they were read: "
                f"{', '.join(sorted(changed)[:5])}. Give changes in files of other names; nothing "
                "was taken"
            )
        new = _in_order(there, there.keys() - known.keys())
        if not new:
            return None
        changes, more = self._read_new(spark, new, {} if offset is None else offset)
        return Reading({"files": there, **more}, changes)

    def _read_new(
        self, spark: SparkSession, new: Sequence[str], offset: Mapping[str, Any]
    ) -> tuple[list[Change], dict[str, Any]]:
        """The changes in new files, and further entries of the offset after them."""
        return self._changes(spark, new), {}

    def _listed(self, spark: SparkSession) -> dict[str, list[int]]:
        """The files of the folder: length, and time of the last write."""
        rows = spark.read.format("binaryFile").load(literal_path(self._path)).select(
            "path", "length", F.unix_millis("modificationTime").alias("written")
        ).collect()
        names = {row.path.rsplit("/", 1)[1]: [row.length, row.written] for row in rows}
        return {n: entry for n, entry in names.items() if not n.startswith(("_", "."))}

    def _numbered(self, frame: DataFrame, names: Sequence[str]) -> DataFrame:
        """Rows with the number of their file in the order of files."""
        place = F.create_map(*(
            F.lit(part) for number, name in enumerate(names) for part in (name, number)
        ))
        return frame.withColumn(_FILE, place[_file_name(frame)])

    def _paths(self, names: Sequence[str]) -> list[str]:
        return [literal_path(f"{self._path.rstrip('/')}/{name}") for name in names]

    @abstractmethod
    def _changes(self, spark: SparkSession, names: Sequence[str]) -> list[Change]:
        """The changes in some files."""


def _in_order(there: Mapping[str, Sequence[int]], names: Iterable[str]) -> list[str]:
    """Names of files by the times at which they were written."""
    return sorted(names, key=lambda name: (there[name][1], name))


def _metadata(frame: DataFrame) -> Column:
    """The metadata of the file of each row; rows may have a column of its name as well."""
    return frame.metadataColumn("_metadata")


def _file_name(frame: DataFrame) -> Column:
    name = _metadata(frame).getField("file_name")
    return F.url_decode(F.regexp_replace(name, r"\+", "%2B"))


class _Files(_FolderSource):
    def __init__(
        self, path: str, struct: T.StructType, read: T.StructType, format: str,
        key: tuple[str, ...], op: str | None, order: tuple[str, ...], options: dict[str, Any],
    ):
        super().__init__(path, struct, key)
        self._read, self._format, self._options = read, format, options
        self._op, self._order = op, order

    def _changes(self, spark: SparkSession, names: Sequence[str]) -> list[Change]:
        options = {"mode": "FAILFAST", **self._options}  # other modes read malformed rows as null
        reader = spark.read.format(self._format).schema(self._read).options(**options)
        frame = self._numbered(reader.load(self._paths(names)), names)
        order = F.struct(F.col(_FILE), *map(column, self._order))
        op = F.lit("i") if self._op is None else column(self._op)
        rows = at_hand(frame.select(
            *map(column, self._struct.names), op.alias(OP), order.alias(ORDER)
        ))
        return changes_of(rows, self._struct.names, self.key, repr(self._path))

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"files({self._path!r}, format={self._format!r}{key})"


class _Debezium(_FolderSource):
    def __init__(
        self, path: str, struct: T.StructType, key: tuple[str, ...], order: tuple[str, ...],
        options: dict[str, Any], retention: int | None,
    ):
        super().__init__(path, struct, key)
        self._order, self._options, self._retention = order, options, retention

    def versions(self, columns: T.StructType) -> Versions:
        """An event is ordered by its numbers, then by the time and the name of its file."""
        orders = [f"order_{n}" for n in range(len(self._order))]
        names = hidden_names([*orders, "written", "file", "deleted"], columns.names)
        kinds = [*(T.LongType() for _ in orders), T.LongType(), T.StringType(), T.BooleanType()]
        fields = tuple(T.StructField(name, kind) for name, kind in zip(names, kinds))
        return Versions(names[:-1], fields, names[-1], self._retention is not None)

    def _events(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        """The events of some files: two images, an op and the order."""
        images = [T.StructField(name, self._struct) for name in ("before", "after")]
        event = [*images, T.StructField("op", T.StringType()), *_nested(self._order)]
        struct = T.StructType([*event, T.StructField("payload", T.StructType(event))])
        options = {"mode": "FAILFAST", **self._options}
        reader = spark.read.format("json").schema(struct).options(**options)
        frame = reader.load(self._paths(names))
        written = F.unix_millis(_metadata(frame).getField("file_modification_time"))
        order = F.struct(
            *(_either(*name.split(".")).alias(f"number{n}") for n, name in enumerate(self._order)),
            written.alias("written"), _file_name(frame).alias("file"),
        )
        events = at_hand(frame.select(
            *(_either(name).alias(name) for name in ("before", "after", "op")),
            order.alias(ORDER),
        ).where("op is not null or before is not null or after is not null"))
        if events.where("op = 't'").limit(1).count():
            raise SourceError(
                f"an event in {self._path!r} says that the table was truncated, which is no change "
                "of rows. Read the table as snapshots(), or leave the event out and give deletes; "
                "nothing was taken"
            )
        return events

    def _rows(self, events: DataFrame) -> DataFrame:
        """The rows of events by a key, an op and the order of each."""
        image = F.when(F.col("op") == "d", F.col("before")).otherwise(F.col("after"))
        rows = events.select(*_fields(image, self._struct), F.col("op").alias(OP), ORDER)
        # An update may give a row another key, which is a deletion of the key before.
        keys = [(F.col("before").getField(name), F.col("after").getField(name))
                for name in self.key]
        moved = events.where("op = 'u'").where(
            reduce(Column.__or__, (before.isNotNull() for before, _ in keys))
            & ~reduce(Column.__and__, (before.eqNullSafe(after) for before, after in keys))
        )
        return rows.unionByName(moved.select(
            *_fields(F.col("before"), self._struct), F.lit("d").alias(OP), ORDER))

    def _changes(self, spark: SparkSession, names: Sequence[str]) -> list[Change]:
        """The changes without a key."""
        events = self._events(spark, names)
        came = F.col("op") != "d"
        lacking = events.where(
            (F.col("op").isin("u", "d") & F.col("before").isNull())
            | (came & F.col("after").isNull())
        ).limit(1).count()
        if lacking:
            raise SourceError(
                f"an event in {self._path!r} has no image of the row from before, or after. "
                "Nothing was read. Let the database send whole rows (REPLICA IDENTITY FULL), or "
                "name a key, key=..."
            )
        before = events.where("op in ('u', 'd')").select(
            *_fields(F.col("before"), self._struct), F.lit("d").alias(OP), ORDER
        )
        after = events.where("op <> 'd' or op is null").select(
            *_fields(F.col("after"), self._struct),
            F.when(F.col("op") == "u", "i").otherwise(F.col("op")).alias(OP), ORDER,
        )
        return changes_of(before.unionByName(after), self._struct.names, (), repr(self._path))

    def _read_new(
        self, spark: SparkSession, new: Sequence[str], offset: Mapping[str, Any]
    ) -> tuple[list[Change], dict[str, Any]]:
        if not self.key:
            return self._changes(spark, new), {}
        rows, number = self._rows(self._events(spark, new)), F.col(ORDER).getField("number0")
        changes: list[Change] = []
        more = {name: offset[name] for name in ("horizon", "forgotten") if name in offset}
        horizon = more.get("horizon")
        if horizon is not None:
            rows = rows.where(number >= horizon)
        if self._retention is not None:
            (greatest,) = rows.agg(F.max(number)).collect()[0]
            ends = [horizon, None if greatest is None else greatest - self._retention]
            more["horizon"] = max((end for end in ends if end is not None), default=None)
            forgotten = more.get("forgotten")
            if forgotten is None:
                more["forgotten"] = more["horizon"]
            elif horizon is not None and horizon > forgotten + self._retention:
                # Forgetting reads the state, so it waits until the horizon has moved that far.
                versions, more["forgotten"] = self.versions(self._struct), horizon
                assert versions.tombstone is not None
                old = F.coalesce(column(versions.sequence[0]) < horizon, F.lit(True))
                changes.append(Forget(column(versions.tombstone) & old))
        return [*changes, Upserts(self._versions_in(rows))], more

    def _versions_in(self, rows: DataFrame) -> DataFrame:
        """The last version of each key in rows with an op."""
        names, table = self._struct.names, repr(self._path)
        last = last_versions(
            _with_deletes(rows, names, table), self.key, [F.col(ORDER)], F.col(OP), table
        )
        numbers = rows.select(f"{ORDER}.*").columns
        versions = self.versions(self._struct)
        assert versions.tombstone is not None
        order = [F.col("row").getField(ORDER).getField(name).alias(new)
                 for name, new in zip(numbers, versions.sequence)]
        own = Schema(self._struct).resolved(self.key, f"the key of {self!r}", rows.sparkSession)
        return version_rows(last, names, own, versions.tombstone, order)

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"debezium({self._path!r}{key})"


def changes_of(
    rows: DataFrame, names: Sequence[str], key: Sequence[str], table: str
) -> list[Change]:
    """The changes of rows with an op.

    Parameters
    ----------
    rows : DataFrame
        Columns of the records, `OP` and `ORDER`.
    names : sequence of str
        Columns of the records.
    table : str
        The name of the table in an error.

    Raises
    ------
    SourceError
        If an op is unknown, or needs a key.
    """
    op = F.lower(F.col(OP))
    records = list(map(column, names))
    if key:
        frame = _with_deletes(rows, names, table)
        deleted, upserted = latest(frame, key, [F.col(ORDER)], F.col(OP), table)
        return [Deletes(deleted), Upserts(upserted.select(*records))]
    _check_ops(rows, table)
    if rows.where(op.isin("u", "update", "upsert")).limit(1).count():
        raise SourceError(
            f"a row of {table} is an update, and without a key the row before is unknown. Nothing "
            "was read. Name a key, key=..., or write the row before as a row of its own, with the "
            "op update_preimage, and this one as update_postimage"
        )
    gone = op.isin(*DELETES, *BEFORE)
    return [
        Inserts(rows.where(~gone).select(*records)), Removes(rows.where(gone).select(*records))
    ]


def _with_deletes(rows: DataFrame, names: Sequence[str], table: str) -> DataFrame:
    """The changes by key of rows with an op, which becomes whether a change is a deletion."""
    _check_ops(rows, table)
    op = F.lower(F.col(OP))
    return rows.where(~op.isin(*BEFORE)).select(
        *map(column, names), op.isin(*DELETES).alias(OP), ORDER
    )


def _check_ops(rows: DataFrame, table: str) -> None:
    """Refuse rows with an unknown op."""
    op = F.lower(F.col(OP))
    known = (*INSERTS, *DELETES, *BEFORE, *UPDATES)
    strange = rows.where(F.coalesce(~op.isin(*known), F.lit(True))).limit(1).collect()
    if strange:
        raise SourceError(
            f"a row of {table} has the op {strange[0][OP]!r}, and ops are "
            f"{', '.join(known)}; nothing was taken"
        )


def _nested(names: Sequence[str]) -> list[T.StructField]:
    """Fields of numbers with names such as ``source.lsn``."""
    tree: dict[str, Any] = {}
    for name in names:
        parts = name.split(".")
        reduce(lambda at, part: at.setdefault(part, {}), parts[:-1], tree)[parts[-1]] = None

    def fields(level: dict[str, Any]) -> list[T.StructField]:
        return [
            T.StructField(name, T.LongType() if inner is None else T.StructType(fields(inner)))
            for name, inner in level.items()
        ]

    return fields(tree)


def _either(*names: str) -> Column:
    """A field of an event, at its top or in its payload."""
    def at(column: Column, parts: Sequence[str]) -> Column:
        return reduce(lambda value, part: value.getField(part), parts, column)

    return F.coalesce(
        at(F.col(names[0]), names[1:]), at(F.col("payload"), names)
    ).alias("_".join(names))


def _fields(image: Column, struct: T.StructType) -> list[Column]:
    return [image.getField(name).alias(name) for name in struct.names]

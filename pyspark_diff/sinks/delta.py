"""Delta tables as targets: the log of changes, the collection by a key, or as a whole.

    one epoch  =  one commit of the table, which has the sink's name and the number of the epoch

Delta keeps the last number of each name and skips a commit whose number is not above it. So an
epoch that is written again does nothing, after a lost answer or by a process that seemed dead. Only
the sink's own commits have the name and number, and no other write of the user's session.

The userMetadata of the commit reports the epoch and the offset of each source, so that a reader of
the table can name the source versions of its rows. It also reports the version that the sink
checked. A log or a merged table with rows of other writers is refused, see
`pyspark_diff.spark.delta_commits`.
"""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.sink import Epoch, Sink
from pyspark_diff.errors import DuplicateKeyError, SchemaError, SinkError
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.spark.data_types import contains
from pyspark_diff.spark.delta import (
    REDIRECT,
    DeltaTable,
    delta_table,
    identifier,
    redirect_target,
    refusal,
)
from pyspark_diff.spark.delta_commits import (
    METADATA,
    Actions,
    actions_by_spark,
    commits_by_spark,
    compaction_check,
    intruder,
    since_own,
)
from pyspark_diff.spark.delta_files import DeltaFiles, delta_files
from pyspark_diff.spark.frames import column, frame_of_table, sql_text
from pyspark_diff.spark.own_session import own_session
from pyspark_diff.spark.schema import Schema, as_keys, quoted

#: The property of a table with the sink that writes it.
OWNER = "pyspark_diff.sink"
#: The settings of a session for the options of a commit.
_SETTINGS = (
    "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.commitInfo.userMetadata",
)
_FEED, _MAPPING = "delta.enableChangeDataFeed", "delta.columnMapping.mode"
_IDENTITY = "DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED"
#: Names of columns that have other characters are mapped, which older readers do not know.
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")


def delta_append(
    table: str | PathLike[str], *, replace: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Sink:
    """A Delta table of all changes: the columns of the collection, then time and diff.

    Each epoch is appended in one commit, once.

    Parameters
    ----------
    table : str or path
        Name or path. The first epoch creates it. It replaces all of an empty table: its columns,
        their rules, and its partitions.
    replace : bool
        Whether a table that is there, has rows, and was not written by this sink may be replaced.
    properties : mapping, optional
        Properties of a table that is made, as ``{"delta.enableChangeDataFeed": "true"}``.

    Raises
    ------
    SinkError
        By the step, if the table may not be written or is not what it was. The error names the
        first commit by which another writer changed rows since the last epoch.

    Examples
    --------
    >>> delta_append("shop.revenue_log")
    delta_append('shop.revenue_log')
    """
    return _Append(table, replace, properties)


def delta_merge(
    table: str | PathLike[str], *, key: str | Sequence[str], replace: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Sink:
    """A Delta table with the rows of a collection that has a unique key.

    Each epoch merges its net change in a single commit, exactly once, so every reader of the table
    sees the collection after some step. Null in a key is equal to null. If the table's files are on
    this machine and the package ``deltalake`` is installed, few changes are merged without a Spark
    job.

    Parameters
    ----------
    table, replace
        See `delta_append`.
    key : str or list of str
        Columns of a unique key. If two rows have the same key, an error names them, and nothing of
        the epoch is written.
    properties : mapping, optional
        See `delta_append`. Deletion vectors are enabled unless they are named here: a merge then
        marks rows in place of writing files anew.

    Raises
    ------
    SinkError
        The step raises it as in `delta_append`, and if two rows have the same key.

    Examples
    --------
    >>> delta_merge("shop.revenue", key="region")
    delta_merge('shop.revenue', key=['region'])
    """
    return MergedTable(table, as_keys(key), replace, properties)


def delta_snapshot(
    table: str | PathLike[str], *, replace: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Sink:
    """A Delta table that is overwritten with the collection by each epoch that changes it.

    The cost is the size of the whole collection. The sink needs no key.

    Parameters
    ----------
    table, replace, properties
        See `delta_append`.

    Examples
    --------
    >>> delta_snapshot("/data/revenue")
    delta_snapshot('delta.`/data/revenue`')
    """
    return _Snapshot(table, replace, properties)


class SignedEpoch(NamedTuple):
    """An epoch, the sink that writes it, and the version of the table that the sink checked."""

    owner: str
    epoch: Epoch
    after: int | None

    def metadata(self) -> str:
        """The text of the commit: its sink, epoch and checked version, and the source offsets."""
        entries = {
            "sink": self.owner, "epoch": self.epoch.number, "sources": dict(self.epoch.offsets)
        }
        if self.after is not None:
            entries["after"] = self.after
        return json.dumps(entries, sort_keys=True)

    def options(self) -> dict[str, str]:
        """The options of the commit, in the order of their settings."""
        return {
            "txnAppId": self.owner, "txnVersion": str(self.epoch.number), METADATA: self.metadata()
        }


class _Target(Sink):
    def __init__(
        self, table: str | PathLike[str], replace: bool, properties: Mapping[str, str] | None
    ):
        self._name, self._replace = identifier(table), replace
        self._properties = dict(properties or {})

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        try:
            with self._known_features(spark):
                delta_table(spark, self._name)
        except ValueError as error:
            raise SchemaError(str(error)) from error

    def write(self, epoch: Epoch) -> None:
        with self._known_features(epoch.spark):
            self._write(epoch)

    @contextmanager
    def _known_features(self, spark: SparkSession) -> Iterator[None]:
        """Refuse a table that needs more than this version of Delta has."""
        try:
            yield
        except Exception as error:
            refused = refusal(spark, self._name, error)
            if refused is None:
                raise
            reason, remedy = refused
            raise SinkError(
                f"Delta table {self._name} cannot be written by this session: {reason}. Nothing of "
                f"this epoch was written. {remedy}"
            ) from error

    def _write(self, epoch: Epoch) -> None:
        table = delta_files(epoch.spark, self._name) or delta_table(epoch.spark, self._name)
        owner = f"{epoch.store}/{epoch.name}"
        redirects = [] if table is None else [
            name for name in table.properties if name.startswith(REDIRECT)
        ]
        if table is not None and redirects:
            target = redirect_target(table.properties)
            raise SinkError(
                f"Delta table {self._name} redirects its writers to "
                f"{'another table' if target is None else target} ({', '.join(redirects)}). "
                f"Nothing of this epoch was written. Name that table: {self._function()}"
                f"({'...' if target is None else repr(target)}, ...)"
            )
        if epoch.is_first:
            self._begin(SignedEpoch(owner, epoch, None), table)
            return
        if table is None or table.properties.get(OWNER) != owner:
            there = "is gone" if table is None else "was replaced by another one"
            raise SinkError(
                f"Delta table {self._name} {there} since this sink wrote to it, and the changes "
                f"of an epoch make no table. Restore it; or {self._anew()}"
            )
        columns = (table.struct if isinstance(table, DeltaFiles)
                   else epoch.spark.read.table(self._name).schema)
        self._check_columns(Schema(columns), Schema(self._struct(epoch)))
        after, written = self._checked(epoch, table, owner)
        # Delta forgets the number of an epoch after delta.setTransactionRetentionDuration.
        if written < epoch.number:
            self._go_on(SignedEpoch(owner, epoch, after), table)

    def _checked(
        self, epoch: Epoch, table: DeltaTable | DeltaFiles, owner: str
    ) -> tuple[int | None, int]:
        """The version of the table and the last epoch in it, if its rows are those of the sink."""
        actions: Actions = actions_by_spark(epoch.spark, self._name)
        newest = commits_by_spark(epoch.spark, self._name)
        if isinstance(table, DeltaFiles):
            newest, actions = table.commits(), table.actions
        commits = since_own(newest, owner)
        if commits is None:
            raise SinkError(
                f"the log of Delta table {self._name} no longer has the last commit of this sink, "
                "so writes of others cannot be excluded. Nothing of this epoch was written. Keep "
                f"the log longer, by delta.logRetentionDuration, and {self._anew()}"
            )
        foreign = intruder(
            commits, lambda commit: commit.entries.get("sink") == owner,
            compaction_check(epoch.spark, self._name, actions),
        )
        if foreign is not None:
            restore = "" if foreign.intact is None else (
                f"take that back, RESTORE TABLE {self._name} TO VERSION AS OF {foreign.intact}; or "
            )
            raise SinkError(
                f"Delta table {self._name} was written by others since this sink wrote to it, "
                f"{foreign.commit.operation} in version {foreign.commit.version}. Nothing of this "
                f"epoch was written. To go on, {restore}{self._anew()}"
            )
        written = max(
            commit.entries.get("epoch", -1) for commit in commits
            if commit.entries.get("sink") == owner
        )
        return commits[-1].version, written

    def _anew(self) -> str:
        return (
            "let the sink begin anew, with another name in the program and "
            f"{self._function()}(..., replace=True)"
        )

    @abstractmethod
    def _whole(self, epoch: Epoch) -> DataFrame:
        """The rows of the table after the first epoch."""

    @abstractmethod
    def _go_on(self, signed: SignedEpoch, table: DeltaTable | DeltaFiles) -> None:
        """Write a later epoch."""

    def _begin(self, signed: SignedEpoch, table: DeltaTable | DeltaFiles | None) -> None:
        epoch, owner = signed.epoch, signed.owner
        spark, rows = epoch.spark, self._whole(epoch)
        if table is None:
            properties = {OWNER: owner, **self._properties}
            if any(_NOT_IN_PARQUET.intersection(name) for name in rows.columns):
                properties = {_MAPPING: "name", **properties}
            # Delta makes no table from a query that has both.
            feed = properties.pop(_FEED, None) if _MAPPING in properties else None
            # A frame's own writer leaves userMetadata out of the commit that makes a table.
            with _signed_session(signed) as session, _global_view(rows) as view:
                session.sql(
                    f"CREATE TABLE {self._name} USING delta TBLPROPERTIES ({_listed(properties)}) "
                    f"AS SELECT * FROM {view}"
                )
            if feed is not None:
                self._set({_FEED: feed}, spark)
            return
        self._own(table, signed)
        ntz, there = T.TimestampNTZType, spark.read.table(self._name).schema
        if contains(rows.schema, ntz) and not contains(there, ntz):  # an overwrite cannot enable it
            self._set({"delta.feature.timestampNtz": "supported"}, spark)
        try:
            self._overwrite(rows, signed)
        except AnalysisException as error:
            if error.getCondition() != _IDENTITY:
                raise
            raise SinkError(
                f"Delta table {self._name} has an identity column that accepts no values. Drop the "
                "table, which this sink then creates; or name another table"
            ) from error

    def _own(self, table: DeltaTable | DeltaFiles, signed: SignedEpoch) -> None:
        """Record this sink as the writer of a table, unless it has rows of another writer."""
        spark, owner = signed.epoch.spark, signed.owner
        if table.properties.get(OWNER) != owner:
            if not self._replace and not spark.read.table(self._name).isEmpty():
                raise SinkError(
                    f"Delta table {self._name} has rows, and was not written by this sink. Name "
                    f"another table, or let it be replaced: {self._function()}(..., replace=True)"
                )
            self._set({OWNER: owner}, spark)
        elif _FEED in self._properties and _FEED not in table.properties:
            # The process ended before it had set it.
            self._set({_FEED: self._properties[_FEED]}, spark)

    def _overwrite(self, rows: DataFrame, signed: SignedEpoch) -> None:
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.options(**signed.options()).saveAsTable(self._name)

    def _set(self, properties: Mapping[str, str], spark: SparkSession) -> None:
        spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ({_listed(properties)})")

    def _function(self) -> str:
        """The function of the library that returns such a sink."""
        return type(self).__name__.lower().replace("_", "delta_")

    def _check_columns(self, there: Schema, wanted: Schema) -> None:
        if not wanted.same_types(there):
            raise SinkError(
                f"the columns of Delta table {self._name} have changed since this sink created "
                f"them: they are {there.describe()}; they were {wanted.describe()}. Bring them back"
            )

    def _struct(self, epoch: Epoch) -> T.StructType:
        return epoch.schema

    def __repr__(self) -> str:
        return f"{self._function()}({self._name!r})"


class _Append(_Target):
    def _whole(self, epoch: Epoch) -> DataFrame:
        return epoch.changes

    def _go_on(self, signed: SignedEpoch, table: DeltaTable | DeltaFiles) -> None:
        writer = signed.epoch.changes.write.format("delta").mode("append")
        writer.options(**signed.options()).saveAsTable(self._name)

    def _struct(self, epoch: Epoch) -> T.StructType:
        return epoch.changes.schema


class _Snapshot(_Target):
    writes_snapshots = True

    def _whole(self, epoch: Epoch) -> DataFrame:
        return epoch.snapshot()

    def _checked(
        self, epoch: Epoch, table: DeltaTable | DeltaFiles, owner: str
    ) -> tuple[int | None, int]:
        """Nothing, as each epoch replaces all rows."""
        return None, -1

    def _go_on(self, signed: SignedEpoch, table: DeltaTable | DeltaFiles) -> None:
        self._overwrite(self._whole(signed.epoch), signed)


class MergedTable(_Target):
    """A table into which the net change of each epoch is merged by a key."""

    writes_snapshots = True

    def __init__(
        self, table: str | PathLike[str], key: tuple[str, ...], replace: bool,
        properties: Mapping[str, str] | None,
    ):
        merged = {"delta.enableDeletionVectors": "true", **(properties or {})}
        super().__init__(table, replace, merged)
        self._key = key

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        super().check(schema, spark)
        Schema(schema).check_compared(self._columns_of(schema, spark)[0], "join")

    def _columns_of(
        self, schema: T.StructType, spark: SparkSession
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Columns of the key, and the others."""
        key = Schema(schema).resolved(self._key, "the key of a sink", spark)
        return key, tuple(name for name in schema.names if name not in key)

    def _whole(self, epoch: Epoch) -> DataFrame:
        rows = epoch.snapshot()
        key, _ = self._columns_of(epoch.schema, epoch.spark)
        counts = rows.groupBy(*map(column, key)).agg(F.count(F.lit(1)).alias("__rows"))
        self._refuse(key, counts.where("__rows > 1").drop("__rows").limit(4).collect())
        return rows

    def _refuse(self, key: Sequence[str], repeated: Sequence[tuple[object, ...]]) -> None:
        """Refuse keys that more than one row has."""
        if repeated:
            shown = ", ".join(str(tuple(row)) for row in repeated[:3])
            more = " and others" if len(repeated) > 3 else ""
            raise DuplicateKeyError(
                f"more than one row has the key {tuple(key)} = {shown}{more}; nothing of this "
                "epoch was written. Name a unique key, or write delta_snapshot or delta_append"
            )

    def _go_on(self, signed: SignedEpoch, table: DeltaTable | DeltaFiles) -> None:
        epoch = signed.epoch
        key, values = self._columns_of(epoch.schema, epoch.spark)
        spark, schema = epoch.spark, Schema(epoch.schema)
        few_changes = epoch.few_changes()
        if few_changes is None:
            net = net_changes(epoch.changes, epoch.diff, key, values)
            doubt = net.where("__doubt").select(*(column(f"_{i}") for i in range(len(key))))
            self._refuse(key, doubt.limit(4).collect())
        else:
            rows, twice = _net_of(few_changes, epoch.diff, schema, key, values)
            self._refuse(key, _rows(twice.slice(0, 4)))
            if not rows.num_rows or self._merged(rows, table, key, signed):
                return
            fields = [T.StructField(f"_{i}", schema.field(name).dataType)
                      for i, name in enumerate((*key, *values))]
            fields.append(T.StructField("__kind", T.StringType()))
            rows = rows.rename_columns([field.name for field in fields])
            net = frame_of_table(spark, rows, T.StructType(fields))
        merged_in_own_session(signed, net, lambda view: self._statement(view, key, values))

    def _merged(
        self, rows: pa.Table, table: DeltaTable | DeltaFiles, key: Sequence[str],
        signed: SignedEpoch,
    ) -> bool:
        """Merge rows without Spark, if possible; returns whether it was."""
        if not isinstance(table, DeltaFiles) or not table.can_be_merged_into():
            return False
        owner, number = signed.owner, signed.epoch.number
        if table.last_number(owner) >= number:
            return True  # an earlier attempt has merged them
        new = rows.filter(pc.equal(rows["__kind"], "insert"))
        there = table.among(new, key)
        if there is None:
            return False
        self._refuse(key, _rows(there.slice(0, 4)))
        return table.merge(rows, key, "__kind", owner, number, {METADATA: signed.metadata()})

    def _statement(self, view: str, key: Sequence[str], values: Sequence[str]) -> str:
        names = [*key, *values]
        new = [f"s._{i}" for i in range(len(names))]
        same = " AND ".join(f"t.{quoted(k)} <=> {n}" for k, n in zip(key, new))
        message = f"concat({sql_text(TWICE)}, to_json(struct({', '.join(new[: len(key)])})))"
        update = ", ".join(
            f"t.{quoted(name)} = {n}" for name, n in list(zip(names, new))[len(key):]
        )
        # An inserted key must be missing in the table, and an updated or deleted one must exist.
        first = f"t.{quoted(names[0])} = raise_error({message})"
        return f"""
            MERGE INTO {self._name} AS t USING {view} AS s ON {same}
            WHEN MATCHED AND s.__kind = 'delete' THEN DELETE
            WHEN MATCHED AND s.__kind = 'insert' THEN UPDATE SET {first}
            {f"WHEN MATCHED THEN UPDATE SET {update}" if update else ""}
            WHEN NOT MATCHED AND s.__kind <> 'delete'
                THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({', '.join(new)})
        """

    def _function(self) -> str:
        return "delta_merge"

    def __repr__(self) -> str:
        return f"{self._function()}({self._name!r}, key={list(self._key)})"


TWICE = "more than one row has the key "


def net_changes(
    changes: DataFrame, diff: str, key: Sequence[str], values: Sequence[str]
) -> DataFrame:
    """The net change of each key: its columns ``_0``, ``_1``, ..., and the kind of change.

    A record that was inserted and deleted in the epoch is no change.
    """
    names = [*key, *values]
    changes = changes.select(
        *(column(name).alias(f"_{i}") for i, name in enumerate(names)),
        column(diff).alias("__diff"),
    )
    records = [f"_{i}" for i in range(len(names))]
    keys = records[: len(key)]
    net = changes.groupBy(*records).agg(F.sum("__diff").alias("__diff")).where("__diff <> 0")
    came = F.col("__diff") > 0
    by_key = net.groupBy(*keys).agg(
        *(F.max(F.when(came, F.struct(name)))[name].alias(name) for name in records[len(key):]),
        F.coalesce(F.sum(F.when(came, F.col("__diff"))), F.lit(0)).alias("__came"),
        F.coalesce(F.sum(F.when(~came, -F.col("__diff"))), F.lit(0)).alias("__went"),
    )
    kind = F.when(F.col("__came") == 0, "delete").when(F.col("__went") == 0, "insert")
    return by_key.select(
        *records, kind.otherwise("update").alias("__kind"),
        ((F.col("__came") > 1) | (F.col("__went") > 1)).alias("__doubt"),
    )


def _net_of(
    changes: pa.Table, diff: str, schema: Schema, key: Sequence[str], values: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """The net change of each key from changes on the driver, and the keys with several rows."""
    names = [*key, *values]
    layout = Layout(tuple(schema.arrow(names).types))
    net = consolidate(
        layout.encode([changes[name] for name in names], 0, changes[diff].to_numpy())
    ).updates
    rows = pa.table(layout.decode(net), names=names)
    group, first = schema.layout(key).groups([rows[name] for name in key])
    diffs = net.diffs()
    came, went = np.zeros(first.size, np.int64), np.zeros(first.size, np.int64)
    np.add.at(came, group[diffs > 0], diffs[diffs > 0])
    np.add.at(went, group[diffs < 0], -diffs[diffs < 0])
    row = first.copy()
    row[group[diffs > 0]] = np.flatnonzero(diffs > 0)
    kind = np.where(came == 0, "delete", np.where(went == 0, "insert", "update"))
    net_rows = rows.take(row).append_column("__kind", pa.array(kind, pa.string()))
    return net_rows, rows.select(list(key)).take(first[(came > 1) | (went > 1)])


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns)))


def merged_in_own_session(
    signed: SignedEpoch, net: DataFrame, statement: Callable[[str], str]
) -> None:
    """Run a statement over a view of the net changes, in a commit of the epoch."""
    with _signed_session(signed) as session, _global_view(net) as view:
        session.sql(statement(view))


@contextmanager
def _signed_session(signed: SignedEpoch) -> Iterator[SparkSession]:
    """A session with the user's settings, whose statements carry the name and number of an epoch.

    A merge reads name and number from settings. In the user's session the writes of other threads
    would carry them too, and Delta would skip all writes but the first.
    """
    with own_session(signed.epoch.spark) as session:
        for name, text in zip(_SETTINGS, signed.options().values()):
            session.conf.set(name, text)
        yield session


@contextmanager
def _global_view(frame: DataFrame) -> Iterator[str]:
    """The name of a view of a frame that all sessions of its Spark application can read."""
    name = f"pyspark_diff_{uuid.uuid4().hex}"
    frame.createGlobalTempView(name)
    try:
        yield f"{frame.sparkSession.conf.get('spark.sql.globalTempDatabase')}.{name}"
    finally:
        frame.sparkSession.catalog.dropGlobalTempView(name)


def _listed(properties: Mapping[str, str]) -> str:
    """Properties of a table, in SQL."""
    return ", ".join(f"{sql_text(name)} = {sql_text(text)}" for name, text in properties.items())

"""A Delta table that a sink writes, other writers change, and a source reads.

    a source:  the rows before  +  the changes since  =  the table, or an error of the reason

    a sink:    the table  =  the collection, or an error of the reason and nothing was written

After an error of the sink, the remedy of its message is run, and the sink writes the same epoch.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import dataclass, field

import delta_session
import pytest
from delta_cases import applied, rows_of
from delta_session import MODULES
from pyspark.errors import PySparkException

from pyspark_diff import Dataflow, SinkError, SourceError
from pyspark_diff.sinks import delta_append, delta_merge, delta_snapshot
from pyspark_diff.sources import delta
from pyspark_diff.spark.delta import delta_table

spark, reads_files = delta_session.spark, delta_session.reads_files
FEED = "delta.enableChangeDataFeed"
MAPPED = {"delta.columnMapping.mode": "name"}
VECTORS = "delta.enableDeletionVectors"
NAMES = ["id", "v", "n"]
#: Parts of messages.
OTHERS = "columns of Delta table .* have changed: .*{}.*on_change='rebuild'"
GAP = "{}.*on_gap='snapshot'"
REPLACED = GAP.format("replaced by another table")
COLUMNS = "have changed since this sink created them.*Bring them back"
OWNER = "was replaced by another one"
WRITTEN = r"was written by others since this sink wrote to it, {} in version \d+.*RESTORE TABLE"
BACK = "RESTORE TABLE {t} TO VERSION AS OF {b}"


@dataclass(frozen=True)
class Change:
    """A change of the table by another writer, and the errors of the source and the sink.

    Parameters
    ----------
    *statements : str
        With ``{t}`` for the table, ``{b}`` for its version before, ``{n}`` for an id in it.
    source, sink : str, optional
        A part of the error; None if there is none.
    undo : list of str
        The remedy of the sink's error, unless its message has one; empty if the table is lost.
    is_recorded : bool
        Whether the change feed has the change.
    """

    statements: list[str]
    source: str | None = None
    sink: str | None = None
    undo: list[str] = field(default_factory=lambda: [BACK])
    is_recorded: bool = True


def change(*statements, **outcomes):
    return Change(list(statements), **outcomes)


def properties(**values):
    listed = ", ".join(f"'delta.{name}' = '{value}'" for name, value in values.items())
    return f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})"


def write(text="SELECT * FROM {t}", by=(), mode="overwrite", **options):
    """A write of the rows of a query by a DataFrame."""
    def written(spark, folder):
        frame = spark.sql(text.replace("{t}", f"delta.`{folder}`")).coalesce(1)
        writer = frame.write.format("delta").mode(mode).options(**options)
        writer.partitionBy(*by).save(str(folder))

    return written


def refused(statement):
    """A statement that Delta refuses, so that nothing changes."""
    def fails(spark, folder):
        with pytest.raises(PySparkException):
            spark.sql(statement.replace("{t}", f"delta.`{folder}`"))

    return fails


ONE = "SELECT 2 AS id, 'y' AS v, 2 AS n"
ROWS = [
    change("INSERT INTO {t} VALUES (700, 'g', 7)", sink=WRITTEN.format("WRITE")),
    change("OPTIMIZE {t}", "UPDATE {t} SET v = 'z' WHERE id = {n}", "OPTIMIZE {t}",
           sink=WRITTEN.format("UPDATE")),
    change("DELETE FROM {t} WHERE id = {n}", "INSERT INTO {t} VALUES (700, 'g', 7)",
           sink=WRITTEN.format("DELETE")),
    change("MERGE INTO {t} t USING (SELECT {n} AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
           sink=WRITTEN.format("MERGE")),
    change("TRUNCATE TABLE {t}", sink=WRITTEN.format("TRUNCATE")),
    change("INSERT OVERWRITE {t} VALUES (1, 'a', 1), (6, 'f', 6)", sink=WRITTEN.format("WRITE")),
    change("INSERT INTO {t} REPLACE WHERE id = 2 VALUES (2, 'y', 2)", sink=WRITTEN.format("WRITE")),
    change(write(ONE, replaceWhere="id = 2"), sink=WRITTEN.format("WRITE")),
    change("RESTORE TABLE {t} TO VERSION AS OF 0", sink=WRITTEN.format("RESTORE")),
    change("DELETE FROM {t}", "OPTIMIZE {t}", BACK),
    change("DELETE FROM {t}", BACK, "RESTORE TABLE {t} TO VERSION AS OF 1",
           sink=WRITTEN.format("RESTORE")),
    change("UPDATE {t} SET v = 'z' WHERE id = -77", "DELETE FROM {t} WHERE id = -77",
           "MERGE INTO {t} t USING (SELECT -77 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE"),
    # The writer declares that it moves the rows to other files without a change.
    change(write(dataChange="false"), "OPTIMIZE {t}"),
    # Readers of changes trust the same statement of a writer that appends a row.
    change(write("SELECT 700 AS id, 'g' AS v, 7 AS n", mode="append", dataChange="false"),
           sink=WRITTEN.format("WRITE"), is_recorded=False),
]
#: The statements of Delta's parser (DeltaSqlBase.g4) and Spark's ALTER TABLE, and the properties
#: of DeltaConfigs, that change no row. GENERATE makes no commit.
MAINTAINED = [
    change("VACUUM {t} RETAIN 0 HOURS", "VACUUM {t} LITE", "OPTIMIZE {t}",
           "OPTIMIZE {t} ZORDER BY (n)", "REORG TABLE {t} APPLY (PURGE)"),
    change("COMMENT ON TABLE {t} IS 'text'", "ALTER TABLE {t} SET TBLPROPERTIES (own='x')",
           "ALTER TABLE {t} UNSET TBLPROPERTIES (own)",
           "ALTER TABLE {t} ALTER COLUMN v COMMENT 'text\u2028'",
           properties(**{"feature.allowColumnDefaults": "supported"}),
           "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 'x'",
           "ALTER TABLE {t} ALTER COLUMN v DROP DEFAULT",
           "ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL",
           "ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 100)"),
    change("ALTER TABLE {t} DROP CONSTRAINT small",
           refused("ALTER TABLE {t} ALTER COLUMN id SET NOT NULL"),
           refused("ALTER TABLE {t} DROP PARTITION (n = 1)"),
           refused("ANALYZE TABLE {t} COMPUTE STATISTICS"),
           refused("ALTER TABLE {t} ALTER COLUMN n SYNC IDENTITY")),
    change("ALTER TABLE {t} ADD CONSTRAINT old CHECK (n <= {n})",
           sink="CHECK constraint old", undo=["ALTER TABLE {t} DROP CONSTRAINT old"]),
    change(properties(appendOnly="true"), sink="APPEND_ONLY|append",
           undo=[properties(appendOnly="false")]),
    change(properties(enableDeletionVectors="false"),
           "ALTER TABLE {t} DROP FEATURE deletionVectors",
           properties(enableDeletionVectors="true")),
    change("ALTER TABLE {t} CLUSTER BY (n)", "OPTIMIZE {t}", "ALTER TABLE {t} CLUSTER BY (id, n)",
           "OPTIMIZE {t} FULL", "ALTER TABLE {t} CLUSTER BY NONE"),
    change(properties(**{
        "autoOptimize.autoCompact": "true", "autoOptimize.optimizeWrite": "true",
        "checkpoint.writeStatsAsJson": "false", "checkpoint.writeStatsAsStruct": "true",
        "checkpointInterval": "3", "dataSkippingNumIndexedCols": "0",
        "enableExpiredLogCleanup": "false", "enableFullRetentionRollback": "true",
        "isolationLevel": "Serializable", "logRetentionDuration": "interval 60 days",
        "deletedFileRetentionDuration": "interval 40 days", "parquet.format.version": "2.12.0",
        "randomizeFilePrefixes": "true", "randomPrefixLength": "3", "sampleRetentionDuration":
        "interval 1 days", "setTransactionRetentionDuration": "interval 0 seconds"})),
    change(properties(enableRowTracking="true", enableInCommitTimestamps="true",
                      checkpointPolicy="v2", enableTypeWidening="true")),
    change("ALTER TABLE {t} DROP FEATURE rowTracking",
           "ALTER TABLE {t} DROP FEATURE typeWidening"),
    change("DELETE FROM {t}", "VACUUM {t} RETAIN 0 HOURS",
           source=GAP.format("cannot tell what has changed"), sink=WRITTEN.format("DELETE"),
           undo=[]),
]
ALTERED = [
    change("ALTER TABLE {t} ADD COLUMN w INT FIRST", sink=COLUMNS),
    change("ALTER TABLE {t} ADD COLUMN w INT", "ALTER TABLE {t} DROP COLUMN w",
           sink=WRITTEN.format("DROP COLUMNS")),
    change("ALTER TABLE {t} DROP COLUMN v", source=OTHERS.format("v was dropped"), sink=COLUMNS),
    change("ALTER TABLE {t} RENAME COLUMN v TO w", "ALTER TABLE {t} RENAME COLUMN w TO v",
           sink=WRITTEN.format("RENAME COLUMN")),
    change("ALTER TABLE {t} RENAME COLUMN v TO w", "ALTER TABLE {t} RENAME COLUMN w TO V",
           source=OTHERS.format("V was added, v was dropped"), sink=COLUMNS),
    change("ALTER TABLE {t} DROP COLUMN n", "ALTER TABLE {t} ADD COLUMN n INT",
           source=GAP.format("other columns of the names"), sink=WRITTEN.format("DROP COLUMNS")),
    change("ALTER TABLE {t} RENAME COLUMN id TO x", "ALTER TABLE {t} RENAME COLUMN n TO id",
           "ALTER TABLE {t} RENAME COLUMN x TO n", "ALTER TABLE {t} ALTER COLUMN id FIRST",
           "ALTER TABLE {t} ALTER COLUMN v AFTER id",
           source=GAP.format("other columns of the names"), sink=WRITTEN.format("RENAME COLUMN")),
    change("ALTER TABLE {t} ALTER COLUMN n FIRST", sink=COLUMNS,
           undo=["ALTER TABLE {t} ALTER COLUMN n AFTER v"]),
    change("ALTER TABLE {t} REPLACE COLUMNS (id INT, v STRING)",
           source=OTHERS.format("n was dropped"), sink=COLUMNS),
    change(properties(enableTypeWidening="true"), "ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT",
           source=OTHERS.format("n was int and is bigint"), sink=COLUMNS),
    change(write(mode="append", text="SELECT 700 AS id, 'g' AS v, 7 AS n, 1 AS w",
                 mergeSchema="true"), sink=COLUMNS),
]
REPLACEMENTS = [
    change(f"REPLACE TABLE {{t}} (id INT, v STRING, n INT) USING delta TBLPROPERTIES ({FEED}=true)",
           source=REPLACED, sink=OWNER),
    change(f"CREATE TABLE {{t}}_2 (id INT, v STRING, n INT) USING delta TBLPROPERTIES "
           f"({FEED}=true)", "INSERT INTO {t}_2 VALUES (1, 'c', 1)", "DELETE FROM {t}",
           "CREATE OR REPLACE TABLE {t} SHALLOW CLONE {t}_2",
           sink=OWNER),
    change(f"REPLACE TABLE {{t}} USING delta PARTITIONED BY (n) TBLPROPERTIES ({FEED}=true) AS "
           "SELECT 1 AS id, 'a' AS v, 1 AS n", source=REPLACED, sink=OWNER),
    change("ALTER TABLE {t} UNSET TBLPROPERTIES ('pyspark_diff.sink')", sink=OWNER),
    # Delta reads the column n of rows before as null.
    change(write(by=["n"], overwriteSchema="true"),
           source=GAP.format("other partition columns"), sink=WRITTEN.format("WRITE")),
    change(properties(enableChangeDataFeed="false")),
    change(properties(enableChangeDataFeed="true")),
    change(properties(enableChangeDataFeed="false"), "INSERT INTO {t} VALUES (700, 'g', 7)",
           properties(enableChangeDataFeed="true"), sink=WRITTEN.format("WRITE")),
    change(properties(minReaderVersion=3, minWriterVersion=7)),
    change(properties(**{"columnMapping.mode": "name"})),
    change(properties(**{"columnMapping.mode": "none"}),
           "ALTER TABLE {t} DROP FEATURE columnMapping"),
    change("DROP", source="no Delta table", sink="is gone", undo=[]),
]
GROUPS = {
    "rows": ({}, ROWS), "maintained": ({}, MAINTAINED), "altered": (MAPPED, ALTERED),
    "replaced": ({}, REPLACEMENTS),
}


class Readers:
    """Sources of a table, by its files and by Spark, and the rows that they have read."""

    def __init__(self, spark, folder):
        self.spark, self.table = spark, f"delta.`{folder}`"
        self.read = {
            (key, files): delta(folder, key=key) for key in ((), "id") for files in (True, False)
        }
        self.lenient = delta(folder, on_gap="snapshot")
        self.begin()

    def begin(self):
        for source in (*self.read.values(), self.lenient):
            source.columns(self.spark)
        first = self.lenient.read(self.spark, None)
        self.offset, self.content = first.offset, applied({}, first)

    def follow(self, error, where, key, rows, both=True):
        """Read the table, by its files and by Spark from the same version.

        Parameters
        ----------
        error : str or None
            A part of the error of both readers.
        where : Change
        key : str or tuple
        rows : Counter or None
            The rows of the table, unless no reader can read it.
        both : bool
            Whether Spark reads the table too.
        """
        offset, content = self.offset, self.content
        for files in (True, False)[: 1 + both]:
            source = self.read[key, files]
            with pytest.MonkeyPatch.context() as patch:
                if not files:
                    patch.setattr(MODULES[0], "delta_files", lambda *_: None)
                if error is None:
                    reading = source.read(self.spark, offset)
                    assert applied(content, reading) == rows, (where, key, files)
                    if files and reading is not None:
                        self.content, self.offset = rows, reading.offset
                    continue
                # Without the log, the operations since are named.
                wanted = error.replace("other columns", ".* other columns")
                with pytest.raises(SourceError, match=f"(?s){wanted}"):
                    source.read(self.spark, offset)
        if error is not None and "on_gap" in error:
            reading = self.lenient.read(self.spark, offset)
            self.content, self.offset = applied(content, reading), reading.offset
            assert self.content == rows, where

    def rows(self):
        return rows_of(self.spark, self.spark.table(self.table).select(*NAMES))


def run(spark, statements, folder, begin, number):
    """Some statements about a table."""
    for statement in statements:
        if callable(statement):
            statement(spark, folder)
        elif statement == "DROP":
            shutil.rmtree(folder)
        else:
            text = statement.replace("{t}_2", f"delta.`{folder}_2`").replace("{b}", str(begin))
            spark.sql(text.replace("{t}", f"delta.`{folder}`").replace("{n}", str(number)))


def changed(spark, folder, options, changes):
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "id int, v string, n int", key="id")
        rows.keep("rows")
        rows.sink("out", delta_merge(folder, key="id", properties={FEED: "true", **options}))
        feed.upsert([(-1, "a", 1), (-2, "b", 1), (-3, "c", 1)])
        flow.advance_to(1)
        feed.upsert([(-1, "u", 1)])
        flow.advance_to(2)
        readers = Readers(spark, folder)
        for number, change in enumerate(changes, 1):
            key = ((), "id")[number % 2]
            begin = len(list((folder / "_delta_log").glob("*.json"))) - 1
            # The row that the sink wrote last.
            run(spark, change.statements, folder, begin, number - 1 or -2)
            # Else it has other columns, or none.
            is_readable = change.source is None or "on_gap" in change.source
            before = readers.rows() if is_readable else None
            if change.is_recorded:
                readers.follow(change.source, change, key, before)
            feed.upsert([(number, "new", number), (-1, None, number)])
            feed.delete([number - 2])
            if change.sink is None:
                flow.advance_to(number + 2)
            else:
                with pytest.raises(SinkError, match=f"(?s){change.sink}") as raised:
                    flow.advance_to(number + 2)
                if not change.undo:
                    return
                if is_readable:
                    assert readers.rows() == before, change
                remedy = re.search("RESTORE TABLE .* TO VERSION AS OF \\d+", str(raised.value))
                undo = [remedy[0]] if remedy else change.undo
                run(spark, undo, folder, begin, number)
                flow.step()
            expected = Counter(map(tuple, flow["rows"].at().collect()))
            assert readers.rows() == expected, change
            if not change.is_recorded:
                readers.begin()
                continue
            try:
                readers.follow(None, change, key, expected, both=False)
            except SourceError:
                # Without the log, a RESTORE may have put back another column.
                assert change.source is not None or change.sink is not None and options, change
                readers.begin()


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_a_table_that_others_change(spark, tmp_path, name):
    changed(spark, tmp_path / "t", *GROUPS[name])


def test_a_table_that_others_change_a_little(spark, tmp_path):
    changed(spark, tmp_path / "t", MAPPED, [change("OPTIMIZE {t}"), ALTERED[5]])


@pytest.mark.slow
def test_a_log_and_a_snapshot_that_others_write(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(MODULES[1], "delta_files", lambda *_: None)
    folder = tmp_path / "a b%20c"
    log, whole = (f"delta.`{folder}/{name}`" for name in ("log", "whole"))
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "id int")
        rows.sink("log", delta_append(folder / "log"))
        rows.sink("whole", delta_snapshot(folder / "whole"))
        feed.insert([(1,), (2,)])
        flow.advance_to(1)
        write(dataChange="false")(spark, folder / "log")
        spark.sql(f"DELETE FROM {log} WHERE id = 1")
        spark.sql(f"DELETE FROM {whole} WHERE id = 1")
        feed.insert([(3,)])
        with pytest.raises(SinkError, match=r"'log'.*by others.*DELETE in version 2") as raised:
            flow.advance_to(2)
        # A snapshot replaces all rows.
        assert rows_of(spark, whole) == {(1,): 1, (2,): 1, (3,): 1}
        spark.sql(re.search("RESTORE TABLE .* TO VERSION AS OF \\d+", str(raised.value))[0])
        flow.step()
        assert rows_of(spark, log) == {(1, 0, 1): 1, (2, 0, 1): 1, (3, 1, 1): 1}


@pytest.mark.slow
def test_a_write_between_the_check_and_the_merge(spark, tmp_path, reads_files, monkeypatch):
    """Delta merges into the rows of both, so that the next epoch is refused."""
    table = f"delta.`{tmp_path}/t`"
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "id int")
        rows.sink("out", delta_merge(tmp_path / "t", key="id"))
        feed.insert([(1,), (2,)])
        flow.advance_to(1)
        merge = MODULES[1].MergedTable._go_on

        def late(*args):
            monkeypatch.undo()
            spark.sql(f"INSERT INTO {table} VALUES (7)")
            # The files are those of the newest version.
            merge(*args[:2], delta_table(spark, table))

        monkeypatch.setattr(MODULES[1].MergedTable, "_go_on", late)
        feed.insert([(3,)])
        flow.advance_to(2)
        assert rows_of(spark, table) == {(1,): 1, (2,): 1, (3,): 1, (7,): 1}
        feed.insert([(4,)])
        with pytest.raises(SinkError, match="written by others.*WRITE in version 1.*replace=True"):
            flow.advance_to(3)


@pytest.mark.slow
def test_a_log_that_ends_after_the_last_commit_of_a_sink(spark, tmp_path):
    table, commits = f"delta.`{tmp_path}/t`", tmp_path / "t" / "_delta_log"
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "id int")
        rows.sink("out", delta_merge(
            tmp_path / "t", key="id", properties={"delta.checkpointInterval": "1"}))
        feed.insert([(1,)])
        flow.advance_to(1)
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES (own = 'x')")
        (commits / f"{0:020d}.json").unlink()
        feed.insert([(2,)])
        with pytest.raises(SinkError, match="no longer has the last commit of this sink"):
            flow.advance_to(2)
        assert rows_of(spark, table) == {(1,): 1}


#: The columns of an empty table, and the clauses after its format.
EMPTY = {
    "generated": ("id BIGINT, v STRING, n INT GENERATED ALWAYS AS (CAST(id AS INT))", ""),
    "identity": ("id BIGINT GENERATED BY DEFAULT AS IDENTITY, v STRING, n INT", ""),
    "fixed identity": ("id BIGINT GENERATED ALWAYS AS IDENTITY, v STRING, n INT", ""),
    "further identity": ("id BIGINT, k BIGINT GENERATED ALWAYS AS IDENTITY", "CLUSTER BY (id)"),
    "rules": ("id BIGINT NOT NULL, v CHAR(3) NOT NULL, n INT", "PARTITIONED BY (v)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    delta_append, delta_snapshot, lambda folder: delta_merge(folder, key="id")])
def test_an_empty_table_is_replaced(spark, tmp_path, make):
    """Its columns and their rules do not change the rows that a sink writes."""
    for name, (columns, more) in EMPTY.items():
        folder = tmp_path / name
        spark.sql(f"CREATE TABLE delta.`{folder}` ({columns}) USING delta {more}")
        with Dataflow(spark, runner="local") as flow:
            rows, feed = flow.input("rows", "id bigint, v string, n int")
            rows.sink("out", make(folder))
            feed.insert([(1, "a", 7), (2, "b", 8)])
            if name == "fixed identity":
                with pytest.raises(SinkError, match="accepts no values. Drop the table"):
                    flow.advance_to(1)
                shutil.rmtree(folder)
                flow.step()
            else:
                flow.advance_to(1)
            feed.insert([(3, None, 9)])
            flow.advance_to(2)
            written = spark.table(f"delta.`{folder}`").select("id", "v", "n")
            assert rows_of(spark, written) == {(1, "a", 7): 1, (2, "b", 8): 1, (3, None, 9): 1}

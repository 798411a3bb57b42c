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
COLUMNS = "not what this sink made them.*Bring them back"
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
    """

    statements: list[str]
    source: str | None = None
    sink: str | None = None
    undo: list[str] = field(default_factory=lambda: [BACK])


def change(*statements, **outcomes):
    return Change(list(statements), **outcomes)


def properties(**values):
    listed = ", ".join(f"'delta.{name}' = '{value}'" for name, value in values.items())
    return f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})"


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
    change("RESTORE TABLE {t} TO VERSION AS OF 0", sink=WRITTEN.format("RESTORE")),
    change("DELETE FROM {t}", "OPTIMIZE {t}", BACK),
    change("DELETE FROM {t}", BACK, "RESTORE TABLE {t} TO VERSION AS OF 1",
           sink=WRITTEN.format("RESTORE")),
]
MAINTAINED = [
    change("OPTIMIZE {t}"),
    change("OPTIMIZE {t} ZORDER BY (n)"),
    change("REORG TABLE {t} APPLY (PURGE)"),
    change("COMMENT ON TABLE {t} IS 'text'"),
    change("ALTER TABLE {t} SET TBLPROPERTIES (own='x')"),
    change("ALTER TABLE {t} UNSET TBLPROPERTIES (own)"),
    change("ALTER TABLE {t} ALTER COLUMN v COMMENT 'text'"),
    change(properties(**{"feature.allowColumnDefaults": "supported"}),
           "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 'x'"),
    change("ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL"),
    change("ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 100)"),
    change("ALTER TABLE {t} DROP CONSTRAINT small"),
    change("ALTER TABLE {t} ADD CONSTRAINT old CHECK (n <= {n})",
           sink="CHECK constraint old", undo=["ALTER TABLE {t} DROP CONSTRAINT old"]),
    change(properties(appendOnly="true"), sink="APPEND_ONLY|append",
           undo=[properties(appendOnly="false")]),
    change(properties(enableDeletionVectors="false")),
    change(properties(enableDeletionVectors="true")),
    change(properties(enableRowTracking="true")),
    change(properties(enableInCommitTimestamps="true")),
    change(properties(checkpointPolicy="v2")),
    change(properties(isolationLevel="Serializable")),
    change("VACUUM {t} RETAIN 0 HOURS"),
    change("DELETE FROM {t} WHERE id = {n}", "VACUUM {t} RETAIN 0 HOURS",
           source=GAP.format("cannot tell what has changed"), sink=WRITTEN.format("DELETE"),
           undo=[]),
]
ALTERED = [
    change("ALTER TABLE {t} ADD COLUMN w INT", sink=COLUMNS),
    change("ALTER TABLE {t} ADD COLUMN w INT FIRST", sink=COLUMNS),
    change("ALTER TABLE {t} ADD COLUMN w INT", "ALTER TABLE {t} DROP COLUMN w",
           source=GAP.format("cannot tell what has changed|other columns of the names"),
           sink=WRITTEN.format("DROP COLUMNS")),
    change("ALTER TABLE {t} DROP COLUMN v", source=OTHERS.format("v was dropped"), sink=COLUMNS),
    change("ALTER TABLE {t} RENAME COLUMN v TO w",
           source=OTHERS.format("w was added, v was dropped"), sink=COLUMNS),
    change("ALTER TABLE {t} RENAME COLUMN v TO w", "ALTER TABLE {t} RENAME COLUMN w TO v",
           source=GAP.format("cannot tell what has changed|other columns of the names"),
           sink=WRITTEN.format("RENAME COLUMN")),
    change("ALTER TABLE {t} RENAME COLUMN v TO V",
           source=OTHERS.format("V was added, v was dropped"), sink=COLUMNS),
    change("ALTER TABLE {t} DROP COLUMN n", "ALTER TABLE {t} ADD COLUMN n INT",
           source=GAP.format("other columns of the names"), sink=WRITTEN.format("DROP COLUMNS")),
    change("ALTER TABLE {t} RENAME COLUMN id TO x", "ALTER TABLE {t} RENAME COLUMN n TO id",
           "ALTER TABLE {t} RENAME COLUMN x TO n", "ALTER TABLE {t} ALTER COLUMN id FIRST",
           "ALTER TABLE {t} ALTER COLUMN v AFTER id",
           source=GAP.format("other columns of the names"), sink=WRITTEN.format("RENAME COLUMN")),
    change("ALTER TABLE {t} ALTER COLUMN n FIRST", sink=COLUMNS,
           undo=["ALTER TABLE {t} ALTER COLUMN n AFTER v"]),
    change(properties(enableTypeWidening="true"), "ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT",
           source=OTHERS.format("n was int and is bigint"), sink=COLUMNS),
]
REPLACEMENTS = [
    change(f"CREATE OR REPLACE TABLE {{t}} (id INT, v STRING, n INT) USING delta TBLPROPERTIES "
           f"({FEED}=true)", source=REPLACED, sink=OWNER),
    change(f"REPLACE TABLE {{t}} USING delta PARTITIONED BY (n) TBLPROPERTIES ({FEED}=true) AS "
           "SELECT 1 AS id, 'a' AS v, 1 AS n", source=REPLACED, sink=OWNER),
    change(f"CREATE TABLE {{t}}_2 (id INT, v STRING, n INT) USING delta TBLPROPERTIES "
           f"({FEED}=true)", "INSERT INTO {t}_2 VALUES (1, 'c', 1)",
           "CREATE OR REPLACE TABLE {t} SHALLOW CLONE {t}_2", source=REPLACED, sink=OWNER),
    change("ALTER TABLE {t} UNSET TBLPROPERTIES ('pyspark_diff.sink')", sink=OWNER),
    change("ALTER TABLE {t} CLUSTER BY (n)", "OPTIMIZE {t}"),
    change(properties(enableChangeDataFeed="false"),
           source=GAP.format("cannot tell what has changed.*ALTER TABLE")),
    change(properties(enableChangeDataFeed="true")),
    change(properties(enableChangeDataFeed="false"), "INSERT INTO {t} VALUES (700, 'g', 7)",
           properties(enableChangeDataFeed="true"),
           source=GAP.format("cannot tell what has changed.*ALTER TABLE"),
           sink=WRITTEN.format("WRITE")),
    change(properties(minReaderVersion=3, minWriterVersion=7)),
    change(properties(**{"columnMapping.mode": "name"})),
    change("DROP", source="no Delta table", sink="is gone", undo=[]),
]
GROUPS = {
    "rows": ({}, ROWS), "maintained": ({}, MAINTAINED), "altered": (MAPPED, ALTERED),
    "replaced": ({}, REPLACEMENTS),
}


class Readers:
    """Sources of a table, by its files and by Spark, and the rows that each has given."""

    def __init__(self, spark, folder):
        self.spark, self.table = spark, f"delta.`{folder}`"
        self.read = {
            (key, files): delta(folder, key=key) for key in ((), "id") for files in (True, False)
        }
        self.lenient = delta(folder, on_gap="snapshot")
        self.begin()

    def begin(self):
        for source in self.sources():
            source.columns(self.spark)
        first = self.lenient.read(self.spark, None)
        self.offset, self.content = first.offset, applied({}, first)

    def sources(self):
        return [*self.read.values(), self.lenient]

    def follow(self, error, where, key):
        """Read the table, by its files and by Spark from the same version."""
        offset = self.offset
        for files in (True, False):
            source = self.read[key, files]
            with pytest.MonkeyPatch.context() as patch:
                if not files:
                    patch.setattr(MODULES[0], "delta_files", lambda *_: None)
                if error is None:
                    reading = source.read(self.spark, offset)
                    found = applied(self.content, reading)
                    assert found == self.rows(), (where, key, files)
                    continue
                # Without the log, the operations since are named.
                wanted = error.replace("other columns", ".* other columns")
                with pytest.raises(SourceError, match=f"(?s){wanted}"):
                    source.read(self.spark, offset)
        if error is not None and "on_gap" not in error:
            return
        reading = self.lenient.read(self.spark, offset)
        self.content = applied(self.content, reading)
        self.offset = self.offset if reading is None else reading.offset
        assert self.content == self.rows(), where

    def rows(self):
        return rows_of(self.spark, self.spark.table(self.table).select(*NAMES))


def run(spark, statements, folder, begin, number):
    """Some statements about a table."""
    for statement in statements:
        if statement == "DROP":
            shutil.rmtree(folder)
            continue
        text = statement.replace("{t}_2", f"delta.`{folder}_2`").replace("{b}", str(begin))
        spark.sql(text.replace("{t}", f"delta.`{folder}`").replace("{n}", str(number)))


def changed(spark, folder, given, changes):
    table = f"delta.`{folder}`"
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "id int, v string, n int", key="id")
        rows.keep("rows")
        rows.sink("out", delta_merge(folder, key="id", properties={FEED: "true", **given}))
        feed.upsert([(-1, "a", 1), (-2, "b", 2), (-3, "c", 3)])
        flow.advance_to(1)
        feed.upsert([(-1, "u", 1)])
        flow.advance_to(2)
        readers = Readers(spark, folder)
        for number, change in enumerate(changes, 1):
            key = ((), "id")[number % 2]
            begin = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").head().version
            # The row that the sink wrote last.
            run(spark, change.statements, folder, begin, number - 1 or -2)
            readers.follow(change.source, change, key)
            feed.upsert([(number, "new", number), (-1, None, number)])
            feed.delete([number - 2])
            if change.sink is None:
                flow.advance_to(number + 2)
            else:
                before = readers.content
                with pytest.raises(SinkError, match=f"(?s){change.sink}") as raised:
                    flow.advance_to(number + 2)
                if not change.undo:
                    return
                if "have changed" not in (change.source or ""):  # else it has other columns
                    assert readers.rows() == before, change
                remedy = re.search("RESTORE TABLE .* TO VERSION AS OF \\d+", str(raised.value))
                undo = [remedy[0]] if remedy else change.undo
                run(spark, undo, folder, begin, number)
                flow.step()
            expected = Counter(map(tuple, flow["rows"].at().collect()))
            assert readers.rows() == expected, change
            try:
                readers.follow(None, change, key)
            except SourceError:
                # Without the log, a RESTORE may have put back another column.
                assert change.source is not None or change.sink is not None and given, change
                readers.begin()


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_a_table_that_others_change(spark, tmp_path, name):
    changed(spark, tmp_path / "t", *GROUPS[name])


def test_a_table_that_others_change_a_little(spark, tmp_path):
    changed(spark, tmp_path / "t", MAPPED, [MAINTAINED[0], ALTERED[7]])


@pytest.mark.slow
def test_a_log_and_a_snapshot_that_others_write(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(MODULES[1], "delta_files", lambda *_: None)
    log, whole = (f"delta.`{tmp_path}/{name}`" for name in ("log", "whole"))
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "id int")
        rows.sink("log", delta_append(tmp_path / "log"))
        rows.sink("whole", delta_snapshot(tmp_path / "whole"))
        feed.insert([(1,), (2,)])
        flow.advance_to(1)
        spark.sql(f"DELETE FROM {log} WHERE id = 1")
        spark.sql(f"DELETE FROM {whole} WHERE id = 1")
        feed.insert([(3,)])
        with pytest.raises(SinkError, match=r"'log'.*written by others.*DELETE") as raised:
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
        merge = MODULES[1]._Merge._go_on

        def late(*given):
            monkeypatch.undo()
            spark.sql(f"INSERT INTO {table} VALUES (7)")
            # The files are those of the newest version.
            merge(*given[:2], delta_table(spark, table))

        monkeypatch.setattr(MODULES[1]._Merge, "_go_on", late)
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

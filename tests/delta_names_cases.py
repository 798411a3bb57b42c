"""Delta tables whose columns, keys and folders have names that need quoting, or another case.

    kept(source of a table)  =  the table  =  a merged sink  =  a snapshot sink  =  the sum of a log
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import delta_session
import pytest

from pyspark_diff import Dataflow, SchemaError, SourceError
from pyspark_diff.sinks import change_log, delta_append, delta_merge, delta_snapshot, snapshot
from pyspark_diff.sources import delta
from pyspark_diff.spark.schema import quoted

spark = delta_session.spark
FEED = "delta.enableChangeDataFeed=true"
MAPPED = f"{FEED}, delta.columnMapping.mode='name'"
#: Names of Parquet and names that Delta maps; the first two are a key. None has a backtick:
#: Delta fails at an update of a table that has one and records its changes.
NAMES = {
    "unmapped": ["a.B", "Éf", "g'h", 'i"j', "user", "order", "select", "from", "Mixed", "%s", "a",
                 "x/y", "$1", "\\n", "ß", "_c", "1", "*"],
    "mapped": ["A B", "k=V", "a,b", "(c)", "{d};", "tab\there", "new\nline", "日本", "a b.c", "",
               "s.t", "count", "value", "key"],
}
FOLDERS = ["plain", "a b%20c=d", "it's \"é\" `日`", "x=1/y=%2C/#a?b", "{a}[b]*c"]


def rows_of(frame):
    return Counter(map(tuple, frame.collect()))


def followed(spark, folder, names, key, more=False):
    """A table is written, changed and read, at each step by a dataflow that is opened anew."""
    names = [name for name in names if name]
    table = f"delta.{quoted(f'{folder}/source')}"
    kinds = ["INT", *["STRING"] * (len(names) - 1)]
    declared = ", ".join(f"{quoted(name)} {kind}" for name, kind in zip(names, kinds))
    properties = MAPPED if set("".join(names)) & set(" ,;{}()\n\t=") else FEED
    spark.sql(f"CREATE TABLE {table} ({declared}) USING delta TBLPROPERTIES ({properties})")
    first, second, last = names[0], names[1], names[-1]

    def insert_rows(*numbers):
        rows = ", ".join(
            str((number, *(f"{number}{i % 3}" for i in range(1, len(names)))))
            for number in numbers
        )
        spark.sql(f"INSERT INTO {table} VALUES {rows}")

    sinks = {
        "merge": delta_merge(f"{folder}/merge", key=[name.swapcase() for name in (first, second)]),
    }
    if more:
        sinks |= {
            "append": delta_append(f"{folder}/append"), "whole": delta_snapshot(f"{folder}/whole"),
            "log": change_log(f"{folder}/log"), "folder": snapshot(f"{folder}/folder"),
        }

    def program(flow):
        rows = flow.source("rows", delta(f"{folder}/source", key=key))
        rows.keep("rows")
        for name, sink in sinks.items():
            rows.sink(name, sink)

    steps = [
        lambda: insert_rows(1, 2, 3, 4),
        lambda: (
            spark.sql(f"UPDATE {table} SET {quoted(last)} = 'new' WHERE {quoted(first)} = 2"),
            spark.sql(f"DELETE FROM {table} WHERE {quoted(first)} < 2"), insert_rows(5),
            spark.sql(f"UPDATE {table} SET {quoted(first)} = 9 WHERE {quoted(second)} = '31'"),
        ),
    ]
    for step in steps:
        step()
        with Dataflow.open(f"{folder}/store", program, spark=spark, buckets=2) as flow:
            flow.catch_up()
            expected = rows_of(spark.table(table))
            assert rows_of(flow["rows"].at()) == expected
            assert flow["rows"].at().columns == names
        targets = {
            "merge": lambda: spark.table(f"delta.{quoted(f'{folder}/merge')}"),
            "whole": lambda: spark.table(f"delta.{quoted(f'{folder}/whole')}"),
            "folder": lambda: spark.read.parquet(f"{folder}/folder"),
        }
        for name in targets.keys() & sinks.keys():
            target = targets[name]()
            assert rows_of(target) == expected and target.columns == names, name
        if not more:
            continue
        for log in (spark.table(f"delta.{quoted(f'{folder}/append')}"),
                    spark.read.parquet(f"{folder}/log").drop("epoch")):
            total = Counter()
            for *row, _, diff in log.collect():
                total[tuple(row)] += diff
            assert {row: n for row, n in total.items() if n} == expected
    assert len(expected) == 4


def test_a_key_in_another_case_and_names_that_need_quoting(spark, tmp_path):
    names = NAMES["unmapped"][:4]
    followed(spark, tmp_path / "a b%20c='d'", names, [name.swapcase() for name in names[:2]])


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["true", "false"])
def test_a_key_and_other_columns_that_are_renamed(spark, tmp_path, feed):
    """By their old or new names, in any case. Another column of a name is read by `extend`."""
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING delta TBLPROPERTIES "
              f"(delta.enableChangeDataFeed={feed}, delta.columnMapping.mode='name')")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')")

    def read(key, columns, **how):
        def program(flow):
            flow.source("rows", delta(tmp_path / "t", key=key)).keep("rows")

        with Dataflow.open(tmp_path / "store", program, spark=spark, buckets=2, **how) as flow:
            flow.catch_up()
            assert rows_of(flow["rows"].at()) == rows_of(spark.table(table))
            assert flow["rows"].at().columns == columns

    def renamed(*names):
        for old, new in zip(names, names[1:]):
            spark.sql(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")

    read("Id", ["id", "v"])
    renamed("id", "number")
    renamed("v", "w", "V")
    spark.sql(f"UPDATE {table} SET v = 'z' WHERE number = 1")
    spark.sql(f"DELETE FROM {table} WHERE number = 2")
    read("Id", ["id", "v"])
    spark.sql(f"UPDATE {table} SET v = 'y' WHERE number = 3")
    read("Number", ["id", "v"])
    with pytest.raises(SchemaError, match="no column 'other' for the key"):
        read("other", [])
    # Another column has the name of v in another case.
    renamed("V", "old")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN V STRING")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd', 'new')")
    with pytest.raises(SourceError, match="v was dropped.*on_change='extend'"):
        read("id", [])
    read("number", ["number", "old", "V"], on_change="extend")


@pytest.mark.slow
@pytest.mark.parametrize("names, folder, keyed", [
    *product(NAMES, FOLDERS[:1], [False, True]),
    *(("unmapped", name, True) for name in FOLDERS[1:]),
])
def test_names_of_columns_and_folders(spark, tmp_path, names, folder, keyed):
    key = [name.swapcase() for name in NAMES[names][:2]] if keyed else ()
    followed(spark, tmp_path / folder, NAMES[names], key, more=folder == FOLDERS[0])


@pytest.mark.slow
def test_names_without_files(spark, tmp_path, monkeypatch):
    for module in delta_session.MODULES:
        monkeypatch.setattr(module, "delta_files", lambda *_: None)
    names = NAMES["unmapped"]
    followed(spark, tmp_path / FOLDERS[2], names, [name.swapcase() for name in names[:2]])

"""Inputs and outputs of each ordered type of records and times agree exactly.

    at(t)  ==  the rows with a positive sum of diffs up to t, as plain Spark groups them
"""

from __future__ import annotations

import datetime
import math
import struct
import time
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce

import connect_server
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, DiffFrame, UnsupportedTypeError
from pyspark_diff.spark.data_types import lack_common_type

RUNNERS = ("local", "spark")
UTC = datetime.timezone.utc

#: In New York both are 01:30 on 1 November, as summer time ends between them.
FOLD = [datetime.datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6)]

NAN, INF = math.nan, math.inf

#: Values of each type. No two values of a type are equal in Spark.
VALUES = {
    "boolean": [True, False, None],
    "tinyint": [-128, 127, 0, -1, None],
    "smallint": [-(2**15), 2**15 - 1, 0, None],
    "int": [-(2**31), 2**31 - 1, 0, 7, None],
    "bigint": [-(2**63), 2**63 - 1, 2**53, 2**53 + 1, 0, -1, None],
    "float": [1.5, -1.5, INF, -INF, NAN, 0.0, 2.0**-149, 16777216.0, None],
    "double": [0.1, 5e-324, INF, -INF, NAN, 0.0, 2.0**53, 1.7976931348623157e308, None],
    "decimal(10,2)": [Decimal(d) for d in ("0.00", "1.10", "1.11", "-99999999.99")] + [None],
    "decimal(38,10)": [
        Decimal(d)
        for d in ("0.0000000001", "1.1000000000", "9" * 28 + "." + "9" * 10,
                  "-" + "9" * 28 + "." + "9" * 10, "18446744073709551616.0000000000")
    ] + [None],
    # The letter a with two dots: as one character, and as two.
    "string": ["", "a", "A", " a", "a ", "\xe4", "a\u0308", "\u65e5\u672c", "\U0001f600",
               "a\x00b", "x" * 500, None],
    "binary": [b"", b"\x00", b"\x00\x00", b"\xff\xfe", b"a", None],
    "date": [datetime.date(*d) for d in ((1, 1, 1), (1582, 10, 10), (1969, 12, 31), (9999, 12, 31))]
    + [None],
    "timestamp": [*FOLD, datetime.datetime(1900, 1, 1, tzinfo=UTC),
                  datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
                  datetime.datetime(2262, 4, 12, tzinfo=UTC), None],
    # The second time does not exist in New York, and the third one exists twice.
    "timestamp_ntz": [datetime.datetime(*d) for d in (
        (1, 1, 1), (2026, 3, 8, 2, 30), (2026, 11, 1, 1, 30), (9999, 12, 31, 23, 59, 59, 999999)
    )] + [None],
    "interval day to second": [datetime.timedelta(), datetime.timedelta(-3, 5, 1),
                               datetime.timedelta(106751990), datetime.timedelta(0, 0, 1), None],
    "struct<a:int,b:struct<c:string,d:double>>": [
        None, Row(a=None, b=None), Row(a=1, b=None), Row(a=1, b=Row(c=None, d=None)),
        Row(a=1, b=Row(c="", d=None)), Row(a=1, b=Row(c="", d=0.0)),
        Row(a=None, b=Row(c="x", d=NAN)),
    ],
    "array<int>": [None, [], [None], [1], [1, None], [None, 1], [1, 2], [2, 1]],
    "array<string>": [None, [], [""], [None], ["ab"], ["a", "b"], ["a", "b", ""]],
    "array<struct<a:int,b:string>>": [
        None, [], [None], [Row(a=None, b=None)], [Row(a=1, b="x")], [Row(a=1, b="x"), None],
        [Row(a=1, b=None), Row(a=None, b="x")],
    ],
    "array<array<double>>": [None, [], [[]], [None], [[NAN]], [[0.0], [1.0]], [[0.0, 1.0]]],
}


def exact(value: object) -> object:
    """A form that is equal only for the same type and bits. It identifies `-0.0` with `0.0`, and
    all NaNs."""
    if isinstance(value, float):
        return ("float", "nan" if value != value else struct.pack("<d", value + 0.0))
    if isinstance(value, Row):
        return ("row", *value.__fields__, *map(exact, value))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(exact, value))
    if isinstance(value, Decimal):
        return ("decimal", value.as_tuple())
    return (type(value).__name__, bytes(value) if isinstance(value, bytearray) else value)


def rows_of(frame: DataFrame) -> Counter[object]:
    """The rows with their multiplicities."""
    return rows_of_all([frame])[0]


def rows_of_all(frames: Sequence[DataFrame]) -> list[Counter[object]]:
    """The rows of each frame with their multiplicities, read by one job of Spark.

    The frames may differ only in their columns of counts, times and diffs. Instants become
    numbers, as Python has no exact form of them.
    """
    whole = {}
    for frame in frames:
        whole.update((field.name, field.dataType) for field in frame.schema)
    tagged = []
    for number, frame in enumerate(frames):
        columns = [F.lit(number).alias("from_")]
        for name, kind in whole.items():
            column = quoted(name) if name in frame.columns else F.lit(None).cast(kind)
            is_instant = kind == T.TimestampType()
            columns.append((F.unix_micros(column) if is_instant else column).alias(name))
        tagged.append(frame.select(*columns))
    counts: list[Counter[object]] = [Counter() for _ in frames]
    for row in reduce(DataFrame.union, tagged).collect():
        counts[row.from_][exact(row[1:])] += 1
    return counts


def kinds_of(frame: DataFrame) -> list[tuple[str, T.DataType]]:
    return [(field.name, field.dataType) for field in frame.schema]


def assert_same(actual: DataFrame, expected: DataFrame) -> None:
    assert kinds_of(actual) == kinds_of(expected)
    assert rows_of(actual) == rows_of(expected)


def table(rows: list[tuple[object, ...]], schema: T.StructType) -> pa.Table:
    """An Arrow table of the rows, built without the library."""
    kinds = [arrow(field.dataType) for field in schema]
    plain = [[as_dict(value) for value in column] for column in zip(*rows)]
    arrays = [pa.array(column, type=kind) for column, kind in zip(plain, kinds)]
    return pa.Table.from_arrays(arrays, names=schema.names)


def as_dict(value: object) -> object:
    if isinstance(value, Row):
        return {name: as_dict(part) for name, part in zip(value.__fields__, value)}
    return [as_dict(part) for part in value] if isinstance(value, list) else value


def arrow(kind: T.DataType) -> pa.DataType:
    if isinstance(kind, T.StructType):
        return pa.struct([(f.name, arrow(f.dataType)) for f in kind])
    if isinstance(kind, T.ArrayType):
        return pa.list_(arrow(kind.elementType))
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return {
        "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(),
        "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(), "string": pa.string(),
        "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"), "interval day to second": pa.duration("us"),
    }[kind.simpleString()]


def history(records: list[tuple[object, ...]]) -> list[list[tuple[object, ...]]]:
    """Updates of three times: they insert the records, change their multiplicities, remove all."""
    first = [i % 3 + 1 for i in range(len(records))]
    second = [2 * i % 4 for i in range(len(records))]
    return [
        [(*record, 0, n) for record, n in zip(records, first)],
        [(*record, 1, m - n) for record, n, m in zip(records, first, second)],
        [(*record, 2, -m) for record, m in zip(records, second)],
    ]


def check(spark, schema: T.StructType, records, runner: str, *, thorough: bool) -> None:
    """Compare the operators with plain Spark over a history of some records."""
    wide = T.StructType(
        [*schema, T.StructField("time", T.LongType()), T.StructField("diff", T.LongType())]
    )
    steps = history(records)
    # In one partition, so that Spark groups them without a shuffle.
    all_updates = spark.createDataFrame(
        table([row for step in steps for row in step], wide), wide
    ).coalesce(1)
    with Dataflow(spark, runner=runner, buckets=3, keep_history=True) as flow:
        rows, session = flow.input("rows", schema)
        counts, arranged = rows.count().keep(), rows.arrange_by_self()
        others = []
        if thorough:
            evaluated = rows.withColumn("w_", F.lit(1)).where("w_ > 0").drop("w_")
            mapped = rows.flat_map(lambda row: [row], schema)
            others = [rows.distinct().keep(), evaluated.distinct().keep(), mapped.distinct().keep()]
        # Each step has another form: Spark and Arrow retract the records of Python.
        session.update(steps[0])
        session.advance_to(1)
        if thorough:
            session.flush()
            flow.step()
        frame = spark.createDataFrame(table(steps[1], wide), wide).repartition(2)
        session.update(frame)
        session.advance_to(2)
        session.flush()
        flow.step()
        session.update(table(steps[2], wide))
        session.close()
        flow.step()
        compare(all_updates, counts, arranged, others, records)
        assert rows_of_all([arranged.at(2), counts.at(2)]) == [{}, {}]


def compare(all_updates: DataFrame, counts, arranged, others, records) -> None:
    """The snapshots and the updates of collections with those of plain Spark."""
    actual, expected = [], []
    keys = [quoted(name) for name in all_updates.columns[:-2]]
    for when in (0, 1):
        snapshot = all_updates.where(F.col("time") <= when).groupBy(*keys).agg(
            F.sum("diff").alias("count")
        ).where("count > 0")
        each = snapshot.withColumn("i", F.explode(F.sequence(F.lit(1), "count"))).select(*keys)
        actual += [counts.at(when), arranged.at(when), *(other.at(when) for other in others)]
        expected += [snapshot, each, *[snapshot.select(*keys)] * len(others)]
    actual.append(arranged.to_df())
    expected.append(all_updates.where("diff != 0"))
    assert list(map(kinds_of, actual)) == list(map(kinds_of, expected))
    read = rows_of_all([*actual, *(other.to_df() for other in others)])
    assert read[:len(actual)] == rows_of_all(expected)
    for updates in read[len(actual):]:
        # The values of the record, an empty count, the time and the diff.
        net: Counter[object] = Counter()
        for row, number in updates.items():
            *record, _, _, diff = row[1:]
            net[tuple(record)] += diff[1] * number
        assert len(net) == len(records) and not any(net.values())


def quoted(name: str):
    return F.col(f"`{name}`")


def both(values: Sequence[str], in_spark: Sequence[str]) -> list[object]:
    """Each value with both runners. On Spark, values not in `in_spark` are slow tests."""
    cases: list[object] = [(value, "local") for value in values]
    for value in values:
        marks = [] if value in in_spark else [pytest.mark.slow]
        cases.append(pytest.param(value, "spark", marks=marks))
    return cases


#: A type for each column layout of the kernels. More operators receive these types alone.
LAID_OUT = {
    "boolean", "bigint", "double", "decimal(38,10)", "string", "timestamp",
    "struct<a:int,b:struct<c:string,d:double>>", "array<array<double>>",
}


# The quick tests on Spark cover these types alone. A record with all types covers the others.
@pytest.mark.parametrize(("kind", "runner"), both(VALUES, [
    "boolean", "double", "string", "timestamp", "struct<a:int,b:struct<c:string,d:double>>",
]))
def test_every_type_is_a_record(spark, kind, runner):
    schema = T.StructType.fromDDL(f"v {kind}")
    thorough = runner == "local" and kind in LAID_OUT
    check(spark, schema, [(v,) for v in VALUES[kind]], runner, thorough=thorough)


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_all_types_are_columns_of_one_record(spark, runner):
    schema = T.StructType.fromDDL(", ".join(f"c{i} {kind}" for i, kind in enumerate(VALUES)))
    most = max(map(len, VALUES.values()))
    records = [tuple(v[i % len(v)] for v in VALUES.values()) for i in range(most)]
    check(spark, schema, records, runner, thorough=True)


@pytest.mark.parametrize(
    ("columns", "runner"),
    both(["a bigint, b bigint", "a string, b string"], ["a string, b string"]),
)
def test_a_null_in_one_column_is_not_one_in_another(spark, columns, runner):
    schema = T.StructType.fromDDL(columns)
    zero, other = (0, 1) if "bigint" in columns else ("", "a")
    values = (None, zero, other)
    check(spark, schema, [(a, b) for a in values for b in values], runner, thorough=False)


# Equal floats with different bits.


def nans(kind: str) -> list[np.floating]:
    """NaNs with different bits: quiet, with a payload, negative."""
    if kind == "float":
        return list(np.array([0x7FC00000, 0x7FC00123, 0xFFC00000], np.uint32).view(np.float32))
    bits = [0x7FF8000000000000, 0x7FF8000000000123, 0xFFF8000000000000]
    return list(np.array(bits, np.uint64).view(np.float64))


FLOATS = [shape.format(kind) for shape in ("{}", "array<{}>", "struct<x:{}>")
          for kind in ("float", "double")]


@pytest.mark.parametrize(("type_", "runner"), both(FLOATS, ["double", "array<float>"]))
def test_equal_floats_cancel(spark, type_, runner):
    schema = T.StructType.fromDDL(f"v {type_}")
    kind = "float" if "float" in type_ else "double"
    flat = np.array([*nans(kind), 0.0, -0.0], np.float32 if kind == "float" else np.float64)
    assert len({x.tobytes() for x in flat}) == 5
    floats = pa.array(flat)
    offsets = pa.array(range(6), pa.int32())
    column = {
        "array": pa.ListArray.from_arrays(offsets, floats),
        "struct": pa.StructArray.from_arrays([floats], ["x"]),
    }.get(type_.split("<")[0], floats)
    data = pa.table({"v": column})
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, session = flow.input("rows", schema)
        counts, kinds = rows.count().keep(), rows.distinct().keep()
        session.insert(data)
        session.advance_to(1)
        session.flush()
        flow.step()
        plain = spark.createDataFrame(data, schema).groupBy("v").count()
        actual, expected = [counts.at(0), kinds.at(0)], [plain, plain.select("v")]
        assert list(map(kinds_of, actual)) == list(map(kinds_of, expected))
        read = rows_of_all([*actual, *expected])
        assert read[:2] == read[2:]
        assert sorted(row[2] for row in read[0]) == [("int", 2), ("int", 3)]
        # A removal of each kind has other bits than the insertion.
        session.remove(spark.createDataFrame(data.take([1, 2, 3]), schema).repartition(1))
        session.remove(data.take([4]))
        session.advance_to(2)
        session.flush()
        flow.step()
        left = spark.createDataFrame(data.take([0]), schema)
        assert_same(counts.at(1), left.withColumn("count", F.lit(1).cast("long")))
        session.remove(data.take([2]))
        session.advance_to(3)
        session.flush()
        flow.step()
        assert rows_of_all([counts.at(2), kinds.at(2)]) == [{}, {}]


# Time zones.


@pytest.fixture
def new_york(monkeypatch):
    """Sets the time zone of this process to New York."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def micros(moments: list[datetime.datetime]) -> list[int]:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=UTC)
    return [(moment - epoch) // datetime.timedelta(microseconds=1) for moment in moments]


def fold_stays_two_keys(session, runner: str) -> None:
    instants = session.createDataFrame([(n,) for n in micros(FOLD)], "n long")
    frame = instants.select(F.timestamp_micros("n").alias("v"), F.array(F.timestamp_micros("n")))
    frame = frame.toDF("v", "w").repartition(1)
    with Dataflow(session, runner=runner, buckets=2) as flow:
        rows, feed = flow.input("rows", "v timestamp, w array<timestamp>")
        evaluated = rows.where("v > '1970-01-01' and w[0] > '1970-01-01'").select("v").count()
        mapped = rows.flat_map(lambda r: [(r.v, r.w)], "v timestamp, w array<timestamp>").count()
        evaluated.keep(), mapped.keep()
        feed.insert([(moment, [moment]) for moment in FOLD])
        feed.insert([(moment.astimezone(), [moment.astimezone()]) for moment in FOLD])
        feed.insert(frame)
        feed.insert(pa.table({"v": FOLD, "w": [[moment] for moment in FOLD]}))
        feed.insert(pd.DataFrame({"v": FOLD, "w": [[moment] for moment in FOLD]}))
        feed.advance_to(1)
        feed.flush()
        flow.step()
        actual = evaluated.at(0).select(F.unix_micros("v"), "count", F.hour("v")).collect()
        assert sorted(row[:2] for row in actual) == [(n, 5) for n in micros(FOLD)]
        hours = sorted(row[2] for row in actual)
        actual = mapped.at(0).select(F.unix_micros("v"), F.unix_micros(F.col("w")[0]), "count")
        assert sorted(map(tuple, actual.collect())) == [(n, n, 5) for n in micros(FOLD)]
        zone = session.conf.get("spark.sql.session.timeZone")
        assert hours == ([1, 1] if zone == "America/New_York" else [5, 6])
        feed.remove(frame)
        feed.advance_to(2)
        feed.remove(frame)
        feed.remove([(moment, [moment]) for moment in FOLD] * 3)
        feed.close()
        flow.step()
        assert evaluated.at().collect() == mapped.at().collect() == []


@pytest.mark.parametrize(
    ("zone", "runner"), both(["UTC", "America/New_York"], ["America/New_York"])
)
def test_instants_of_a_fold_stay_two_keys(another, runner, zone):
    another.conf.set("spark.sql.session.timeZone", zone)
    fold_stays_two_keys(another, runner)


@pytest.mark.parametrize("runner", RUNNERS)
def test_instants_of_a_fold_stay_two_keys_where_the_process_has_it(another, new_york, runner):
    another.conf.set("spark.sql.session.timeZone", "America/New_York")
    fold_stays_two_keys(another, runner)


def test_naive_datetimes_are_local_time(spark, new_york):
    """As everywhere in PySpark, also in nested values."""
    naive = datetime.datetime(2026, 11, 1, 1, 30)
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", "v timestamp, w struct<x:timestamp>, z timestamp_ntz")
        rows.keep()
        for moment in (naive, naive.replace(fold=1)):
            session.insert([(moment, Row(x=moment), naive)])
        session.advance_to(1)
        session.flush()
        flow.step()
        actual = rows.at(0).select(F.unix_micros("v"), F.unix_micros("w.x"), "z").collect()
    assert sorted(map(tuple, actual)) == [(n, n, naive) for n in micros(FOLD)]


# Logical times.

TIMES = {
    "tinyint": [0, 100, 127],
    "smallint": [-5, 200, 2**15 - 1],
    "int": [0, 2**15, 2**31 - 1],
    "bigint": [-(2**63), 2**53 + 1, 2**63 - 1],
    "date": [datetime.date(*d) for d in ((1, 1, 1), (1970, 1, 2), (9999, 12, 31))],
    "timestamp": [*FOLD, datetime.datetime(2026, 11, 1, 7, tzinfo=UTC)],
    "timestamp_ntz": [datetime.datetime(*d) for d in (
        (2026, 3, 8, 2, 30), (2026, 11, 1, 1, 30), (2026, 11, 1, 1, 30, 0, 1)
    )],
}


def series(values: list[object]) -> pd.Series:
    return pd.Series(values, dtype="Int64" if isinstance(values[0], int) else None)


@pytest.mark.parametrize(("kind", "runner"), both(TIMES, ["bigint", "date", "timestamp"]))
def test_every_type_of_time(spark, kind, runner):
    first, second, last = TIMES[kind]
    schema = T.StructType.fromDDL(f"n bigint, time {kind}, diff bigint")
    updates = [(1, first, 2), (2, first, 1), (1, second, -1), (3, last, 1), (2, last, -1)]
    frame = spark.createDataFrame(table(updates, schema), schema)
    whole = DiffFrame(frame.repartition(1)).count()
    assert whole.to_df().schema["time"].dataType == schema["time"].dataType

    def snapshots(collection, *times):
        """The snapshots at some times and all updates, read by one job."""
        *actual, updates = rows_of_all([*(collection.at(t) for t in times), collection.to_df()])
        for at in actual:
            assert set(at.values()) == {1}
        return [sorted((n[1], count[1]) for _, n, count, *_ in at) for at in actual], updates

    expected = [[(1, 2), (2, 1)], [(1, 1), (2, 1)], [(1, 1), (3, 1)]]
    actual, changes = snapshots(whole, first, second, last, None)
    assert actual == [*expected, expected[2]]
    for form in ("rows", "arrow", "pandas", "frame") if runner == "local" else ("frame",):
        with Dataflow(
            spark, time_type=kind, runner=runner, buckets=2, keep_history=True
        ) as flow:
            rows, session = flow.input("rows", "n bigint", start=first)
            counts, probe = rows.count().keep(), rows.probe()
            shown = rows.transform(lambda df: df.where("diff != 0")).arrange_by_self()
            columns = [list(column) for column in zip(*updates)]
            data = {
                "rows": updates[:3],
                "arrow": table(updates[:3], schema),
                "pandas": pd.DataFrame(
                    {name: series(c[:3]) for name, c in zip(schema.names, columns)}
                ),
                "frame": frame.limit(3).repartition(1),
            }[form]
            session.update(data)
            assert session.time() == back(first, kind)
            session.advance_to(second)
            session.advance_to(session.time())
            session.flush()
            flow.step_while(lambda: probe.less_than(second))
            assert probe.time() == back(second, kind) and not probe.less_than(second)
            now = sorted(map(tuple, counts.at(first).collect()))
            assert now == expected[0]
            session.advance_to(last)
            # The session sets the time of both records. Spark alone can read the first form.
            session.insert(spark.createDataFrame([(3,)], "n long").repartition(1))
            session.remove([(2,)])
            session.close()
            flow.step()
            assert kinds_of(counts.to_df()) == kinds_of(whole.to_df())
            assert snapshots(counts, first, second, last) == (expected, changes)
            assert_df_equality(
                shown.to_df(), frame, ignore_row_order=True, ignore_nullable=True
            )


def back(value: object, kind: str) -> object:
    """The form of a time in the interface: instants are in local time, as in Spark."""
    if kind != "timestamp":
        return value
    return value.astimezone().replace(tzinfo=None)


def test_times_of_a_fold_stay_two(spark, new_york):
    early, late = (moment.astimezone() for moment in FOLD)
    with Dataflow(spark, time_type="timestamp", runner="local", keep_history=True) as flow:
        rows, session = flow.input("rows", "n bigint", start=early)
        rows.keep()
        session.insert([(1,)])
        session.advance_to(late)
        assert session.time() == datetime.datetime(2026, 11, 1, 1, 30)
        assert session.time().fold == 1
        session.advance_to(session.time())
        session.insert(spark.createDataFrame([(2,)], "n long").repartition(1))
        session.advance_to(late + datetime.timedelta(hours=1))
        session.flush()
        flow.step()
        assert [row.n for row in rows.at(early).collect()] == [1]
        assert sorted(row.n for row in rows.at(late).collect()) == [1, 2]
        actual = rows.to_df().select("n", F.unix_micros("time")).collect()
        assert sorted(map(tuple, actual)) == [(i + 1, n) for i, n in enumerate(micros(FOLD))]


# The output of inspect.

#: Also values without equality: they are no keys, but inspect shows them.
SHOWN = {
    **VALUES,
    "map<string,struct<a:int,t:timestamp>>": [
        None, {}, {"x": None}, {"y": Row(a=1, t=FOLD[0])}, {"z": Row(a=None, t=FOLD[1])}
    ],
    "struct<t:timestamp,n:array<timestamp_ntz>,m:map<date,binary>>": [
        None, Row(t=FOLD[0], n=[datetime.datetime(2026, 11, 1, 1, 30)], m=None),
        Row(t=FOLD[1], n=None, m={datetime.date(1969, 12, 31): b"\x00"}),
    ],
    "time": [datetime.time(0, 0), datetime.time(23, 59, 59, 999999), None],
}


def exact_text(value: object) -> str:
    """A text that differs by type, zone and fold. All NaNs have the same text."""
    # Spark may return a number with more zeros than its type has.
    text = repr(("decimal", value.as_integer_ratio()) if isinstance(value, Decimal) else value)
    # Instants that a client of Connect collects have no fold.
    return text.replace(", fold=1", "") if connect_server.WANTED else text


@pytest.mark.parametrize("runner", RUNNERS)
def test_inspect_shows_what_collect_gives(spark, new_york, runner):
    schema = T.StructType.fromDDL(", ".join(f"c{i} {kind}" for i, kind in enumerate(SHOWN)))
    most = max(map(len, SHOWN.values()))
    # Python values. An aware datetime is an instant here and in Spark.
    records = [tuple(values[i % len(values)] for values in SHOWN.values()) for i in range(most)]
    shown: list[tuple[object, ...]] = []
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, session = flow.input("rows", schema)
        rows.inspect(lambda *update: shown.append(update))
        session.insert(records)
        session.close()
        flow.step()
    frame = spark.createDataFrame(records, schema)
    # A client of Connect cannot collect TIME. That type has only one form in Python.
    times = {name: [row[i] for row in records] for i, name in enumerate(schema.names)
             if isinstance(schema[name].dataType, T.TimeType)}
    expected = frame.drop(*times).collect()
    assert times and all(type(record) is Row for record, _, _ in shown)
    for name in schema.names:
        actual = sorted(exact_text(record[name]) for record, _, _ in shown)
        values = times.get(name) or [record[name] for record in expected]
        assert actual == sorted(map(exact_text, values))


@pytest.mark.parametrize("kind", TIMES)
def test_inspect_shows_times_as_all_else_does(spark, new_york, kind):
    first, second, last = TIMES[kind]
    shown: list[tuple[object, ...]] = []
    with Dataflow(spark, time_type=kind, runner="local", keep_history=True) as flow:
        rows, session = flow.input("rows", "n bigint", start=first)
        arranged = rows.arrange_by_self()
        rows.inspect(lambda *update: shown.append(update))
        times = []
        for n, moment in enumerate((first, second, last)):
            session.advance_to(moment)
            times.append(session.time())
            session.insert([(n,)])
        session.close()
        flow.step()
        expected = [(row.time, row.diff) for row in arranged.to_df().orderBy("n").collect()]
    assert [repr(update[1:]) for update in sorted(shown)] == [repr(update) for update in expected]
    assert [update[1] for update in sorted(shown)] == times


def test_inspect_calls_columns_as_the_user_does(spark):
    shown = []
    with Dataflow(spark, runner="local") as flow:
        left, left_in = flow.input("left", "k int, x int")
        right, right_in = flow.input("right", "k int, x int")
        both = left.alias("l").join(right.alias("r"), F.col("l.k") == F.col("r.k"))
        both = both.inspect(lambda row, *_: shown.append(row))
        none = left.select().inspect(lambda row, *_: shown.append(row))
        for session, row in ((left_in, (1, 2)), (right_in, (1, 3))):
            session.insert([row])
            session.close()
        flow.step()
        assert [list(row.__fields__) for row in shown] == [both.columns, none.columns]
    assert shown == [(1, 2, 1, 3), ()]


def test_wide_rows_cost_by_their_columns(spark, monkeypatch):
    """A look-up by name scans all fields of a struct, and Spark plans each frame as a whole."""
    sought, created = [], []
    find, make = T.StructType.__getitem__, type(spark).createDataFrame

    def seek(struct, name):
        sought.append(name)
        return find(struct, name)

    def create(session, *arguments, **options):
        created.append(arguments)
        return make(session, *arguments, **options)

    names = [f"c{i}" for i in range(300)]
    row = tuple(range(300))
    with Dataflow(spark, runner="local", buckets=2) as flow:
        rows, session = flow.input("rows", ", ".join(f"{name} long" for name in names))
        monkeypatch.setattr(T.StructType, "__getitem__", seek)
        monkeypatch.setattr(type(spark), "createDataFrame", create)
        selected = rows.select(*reversed(names)).distinct().keep()
        session.insert([row, dict(zip(names, row))])
        session.close()
        flow.step()
        # Ignore the frame on which Spark tries the selection.
        created.clear()
        snapshot = selected.at()
        assert len(created) == 1
        monkeypatch.undo()
        assert snapshot.collect() == [row[::-1]]
    assert len(sought) < len(names)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_types_apart_have_none_in_common(another, ansi):
    """For each pair without a common type, Spark refuses the union, too."""
    another.conf.set("spark.sql.ansi.enabled", ansi)
    kinds = ["boolean", "int", "double", "decimal(20, 2)", "date", "timestamp", "timestamp_ntz",
             "string", "binary", "array<int>", "map<int, int>", "struct<a: int>", "void",
             "interval day to second", "interval year to month"]
    frames = [another.sql(f"SELECT CAST(NULL AS {kind}) AS x") for kind in kinds]
    refused = 0
    for frame in frames:
        for other in frames:
            if lack_common_type(frame.schema["x"].dataType, other.schema["x"].dataType):
                refused += 1
                with pytest.raises(AnalysisException):
                    frame.union(other).schema
    assert refused > 60


# Each type in each operator.

#: Values of each type as SQL text. Some are equal. Maps with doubles have no nulls, as Spark 4.2
#: groups a null value of a map as zero.
LITERALS = {
    "boolean": ["true", "false"],
    "tinyint": ["-128Y", "127Y"],
    "smallint": ["-32768S", "32767S"],
    "int": ["-2147483648", "2147483647", "0"],
    "bigint": ["9223372036854775807L", "9007199254740993L", "-1L"],
    "float": ["float('NaN')", "float('-Infinity')", "1.5F", "float(-0.0)", "float(0.0)"],
    "double": ["double('NaN')", "double('Infinity')", "5e-324D", "-0.0D", "0.0D"],
    "decimal(1,0)": ["9BD", "-9BD"],
    "decimal(18,6)": ["123456789012.345678BD", "-0.000001BD"],
    "decimal(19,0)": ["9999999999999999999BD", "-9999999999999999999BD"],
    "decimal(38,38)": ["0.00000000000000000000000000000000000001BD", "-0.1BD"],
    "decimal(38,0)": ["9999999999999999999999999999999999999BD", "-1BD"],
    "string": ["''", "'a'", "'A'", "'a '"],
    "char(3)": ["'a'", "'b'"],
    "varchar(3)": ["'a'", "'b '"],
    "binary": ["X''", "X'00'", "X'FFFE'"],
    "date": ["DATE'0001-01-01'", "DATE'9999-12-31'"],
    "timestamp": ["TIMESTAMP'0001-01-02 00:00:00Z'", "TIMESTAMP'9999-12-30 23:59:59.999999Z'"],
    "timestamp_ntz": ["TIMESTAMP_NTZ'0001-01-01'", "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'"],
    "time(6)": ["TIME'00:00:00'", "TIME'23:59:59.999999'"],
    "interval day to second": ["INTERVAL '-1 02:03:04.000005' DAY TO SECOND", "INTERVAL '0' DAY"],
    "interval hour": ["INTERVAL '5' HOUR", "INTERVAL '-7' HOUR"],
    "void": ["NULL"],
    "array<double>": ["array()", "array(NULL)", "array(double('NaN'), -0.0D)",
                      "array(double('NaN'), 0.0D)"],
    "struct<a:int,b:string>": ["named_struct('a', 1, 'b', 'x')",
                               "named_struct('a', NULL, 'b', NULL)"],
    "map<string,int>": ["map()", "map('b', 1, 'a', 2)", "map('a', 2, 'b', 1)"],
    "map<struct<x:int>,array<map<date,string>>>": [
        "map(named_struct('x', 2), array(map(DATE'2020-01-02', 'b', DATE'2020-01-01', 'a')),"
        " named_struct('x', 1), NULL)",
        "map(named_struct('x', 1), NULL,"
        " named_struct('x', 2), array(map(DATE'2020-01-01', 'a', DATE'2020-01-02', 'b')))",
    ],
    "array<struct<m:map<int,boolean>,t:time(6)>>": [
        "array(named_struct('m', map(2, true, 1, false), 't', TIME'01:00:00'))",
        "array(named_struct('m', map(1, false, 2, true), 't', TIME'01:00:00'))", "array(NULL)",
    ],
    "variant": ["parse_json('{\"a\": [1, 2.5, null]}')", "parse_json('1')", "parse_json('null')"],
    "struct<v:variant,n:int>": ["named_struct('v', parse_json('\"x\"'), 'n', 1)",
                                "named_struct('v', NULL, 'n', 2)"],
    "map<string,variant>": ["map('b', parse_json('1'), 'a', parse_json('2'))", "map()"],
    "string collate UTF8_LCASE": ["'a'", "'A'", "'b'"],
    "string collate UNICODE_CI": ["'a'", "'A'", "'b'"],
    "map<string collate UTF8_LCASE,int>": ["map('b', 2, 'a', 1)", "map()"],
    "geometry(4326)": [
        "st_setsrid(st_geomfromwkb(X'0101000000000000000000F03F0000000000000040'), 4326)"
    ],
    "geography(4326)": ["st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')"],
}
#: Types of values that cannot be keys.
CARRIED = ("variant", "collate", "geometry", "geography")
#: Types that no row can have.
FORMLESS = {
    "interval year to month": "make_ym_interval(1, 2)", "interval month": "make_ym_interval(0, 2)",
    "interval": "make_interval(1, 2, 3)",
}


def others_of(rows, name):
    return rows.select("k", F.col("v").alias(name), F.col("n").alias("m")).where("m % 10 > 1")


def by_value(rows):
    return rows.select("v", F.col("n").alias("m")).where("m % 10 > 1")


#: Operators of PySpark that carry a value.
CARRY = {
    "select": lambda d: d.select("v", "n"),
    "computed": lambda d: d.select(F.struct("v", "n").alias("s"), F.col("v").isNull().alias("b")),
    "where": lambda d: d.where(F.col("v").isNotNull() & (F.col("n") > 0)),
    "union": lambda d: d.union(d),
    "count": lambda d: d.groupBy("k").agg(F.count("v").alias("a")),
    "max_by": lambda d: d.where("n % 10 < 3").groupBy("k").agg(F.max_by("v", "n").alias("a")),
    "collect_list": lambda d: d.groupBy("k").agg(F.collect_list("v").alias("a")),
    "join": lambda d: d.join(others_of(d, "w"), "k"),
    "left": lambda d: d.join(others_of(d, "w"), "k", "left"),
    "full": lambda d: d.join(others_of(d, "w").where("k = 1"), "k", "full"),
    "semi": lambda d: d.join(others_of(d, "w"), "k", "left_semi"),
    "residual": lambda d: d.alias("l").join(
        others_of(d, "w").alias("r"),
        (F.col("l.k") == F.col("r.k")) & (F.col("l.n") < F.col("r.m")), "left",
    ).select("l.v", "r.w", "r.m"),
    "lag": lambda d: d.withColumn("x", F.lag("v").over(Window.partitionBy("k").orderBy("n"))),
}
#: The operators that compare the column. They refuse the types of `CARRIED`.
COMPARE = {
    "distinct": lambda d: d.distinct(),
    "groupBy": lambda d: d.groupBy("v").agg(F.sum("n").alias("s"), F.count("*").alias("c")),
    "min": lambda d: d.groupBy("k").agg(F.min("v").alias("a"), F.max("v").alias("b")),
    "extremes of": lambda d: d.groupBy("v").agg(F.min("n").alias("a"), F.max("k").alias("b")),
    "count_distinct": lambda d: d.groupBy("k").agg(F.count_distinct("v").alias("a")),
    "join by": lambda d: d.join(by_value(d), "v"),
    "full by": lambda d: d.join(by_value(d), "v", "full"),
    "anti by": lambda d: d.join(by_value(d), "v", "left_anti").select("v", "k", "n"),
    "null-safe": lambda d: d.alias("l").join(
        d.where("n > 2").alias("r"), F.col("l.v").eqNullSafe(F.col("r.v"))
    ).select("l.n", F.col("r.n").alias("m")),
    "partitionBy": lambda d: d.withColumn(
        "x", F.row_number().over(Window.partitionBy("v").orderBy("n"))),
    "orderBy": lambda d: d.withColumn(
        "x", F.dense_rank().over(Window.partitionBy("k").orderBy("v"))),
    "dropDuplicates": lambda d: d.dropDuplicates(["v"]).select("v"),
    "exceptAll": lambda d: d.exceptAll(d.where("n > 2")),
}
#: The operators of this library, with their equivalent in plain Spark.
OWN = {
    "arrange": (lambda d: d.arrange_by_key("k"), lambda d: d),
    "reduce": (
        lambda d: d.reduce(
            lambda key, values: [value for value, count in values for _ in range(count)],
            T.StructType([d.schema["v"], d.schema["n"]]), key="k",
        ), lambda d: d.select("k", "v", "n"),
    ),
    "flat_map": (lambda d: d.flat_map(lambda row: [tuple(row)], d.schema), lambda d: d),
    "mapInArrow": (lambda d: d.mapInArrow(lambda batches: batches, d.schema), lambda d: d),
    "iterate": (
        lambda d: d.iterate(lambda now: now.union(
            now.where("k < 0").join(d.select("k").distinct(), "k"))), lambda d: d,
    ),
}


def plain_value(value):
    """A form that is the same for equal values: sorted maps, and zeros without a sign."""
    if isinstance(value, dict):
        return ("map", *sorted(repr((plain_value(k), plain_value(v))) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        name = "list" if isinstance(value, list) else "row"
        return (name, *map(plain_value, value))
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def as_texts(frame, *, any_order=False):
    """The rows of a frame as texts. `any_order` ignores the order of the elements of lists."""
    rows = [plain_value(list(row)) for row in frame.collect()]
    if any_order:
        rows = [tuple(sorted(map(repr, part)) if isinstance(part, tuple) else part
                      for part in row) for row in rows]
    return Counter(map(repr, rows))


def each_type_in_each_operator(spark, kind, runner, operators):
    spark.conf.set("spark.sql.timeType.enabled", "true")
    parts = [
        f"SELECT {i % 3} AS k, CAST({value} AS {kind}) AS v, {n + 10 * (i // 3)} AS n"
        for i, value in enumerate([*LITERALS[kind], "NULL"]) for n in ((2, 3, 3), (2, 3))[i % 2]
    ]
    whole = spark.sql(" UNION ALL ".join(parts)).coalesce(1)
    gone = "n % 10 = 3 AND k = 1"
    carried = any(part in kind for part in CARRIED)
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, feed = flow.input("rows", whole.schema)
        outputs = {}
        for name in operators:
            ours, plain = OWN[name] if name in OWN else ({**CARRY, **COMPARE}[name],) * 2
            try:
                outputs[name] = ours(rows).keep(), plain
            except (UnsupportedTypeError, AnalysisException):
                # Refused with the program, either as by Spark or as a carried type.
                assert name in COMPARE
                if not carried:
                    with pytest.raises(AnalysisException):
                        plain(whole).schema
        feed.insert(whole)
        flow.advance_to(1)
        for when, left in enumerate((whole, whole.where(f"NOT ({gone})")), 1):
            for name, (output, plain) in outputs.items():
                try:
                    expected = plain(left)
                except AnalysisException:
                    assert "map" in kind and name in COMPARE  # sets of maps are more than Spark has
                    continue
                if (kind, name) == ("void", "null-safe"):
                    continue  # Spark's join has no pairs, although NULL <=> NULL is true
                lists = name == "collect_list"
                actual = as_texts(output.at(), any_order=lists)
                assert actual == as_texts(expected, any_order=lists), (name, when)
            if when == 1:
                feed.remove(whole.where(gone))
                flow.advance_to(2)
        feed.remove(whole.where(f"NOT ({gone})"))
        flow.advance_to(3)
        assert [name for name, (output, _) in outputs.items() if output.at().count()] == []


#: Some types for each way of treating a type, each with some operators.
SOME = {
    "map<string,int>": ["groupBy"],
    "struct<v:variant,n:int>": ["residual", "groupBy"],
    "void": ["groupBy"],
}


@pytest.mark.parametrize(
    ("kind", "runner"),
    [pytest.param(kind, runner, marks=pytest.mark.slow) for kind in LITERALS for runner in RUNNERS],
)
def test_each_type_in_each_operator(another, kind, runner):
    each_type_in_each_operator(another, kind, runner, [*CARRY, *COMPARE, *OWN])


def test_some_types_in_some_operators(another):
    for kind, operators in SOME.items():
        each_type_in_each_operator(another, kind, "local", operators)


def test_dates_beside_variants_that_no_python_object_has(spark):
    rows = spark.sql("""
        SELECT id AS k, if(id = 2, NULL, parse_json('{"a": 1}')) AS v,
               timestamp_micros(-70000000000000000 * id) AS t,
               array(date_from_unix_date(-800000)) AS d
        FROM range(3)
    """).coalesce(1)

    def shown(frame):
        days = "transform(d, x -> unix_date(x))"
        exact = frame.selectExpr("k", "to_json(v)", "unix_micros(t)", days)
        return Counter(map(str, exact.collect()))

    with Dataflow(spark, runner="local", buckets=1) as flow:
        collection, session = flow.input("rows", rows.schema)
        collection.where("k > 0").keep("kept")
        session.insert(rows)
        flow.advance_to(1)
        assert shown(flow["kept"].at()) == shown(rows.where("k > 0"))


def test_types_without_a_form_are_refused_where_they_are_written(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, _ = flow.input("rows", "k int")
        for kind, text in FORMLESS.items():
            with pytest.raises(UnsupportedTypeError, match="'v'"):
                flow.input(kind, f"k int, v {kind}")
            with pytest.raises(UnsupportedTypeError, match="'v'"):
                rows.select("k", F.expr(text).alias("v")).keep()
        for kind in ("char(3)", "varchar(3)"):
            with pytest.raises(UnsupportedTypeError, match="'v'.*string"):
                flow.input(kind, f"v {kind}")

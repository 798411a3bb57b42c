"""`kernels.hashing` equals Spark's own `hash`, `xxhash64` and `pmod(hash, P)`, bit for bit."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import connect_server
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_diff.kernels import buffers, hashing, jit
from pyspark_diff.kernels.hashing import bucket_of, bucket_of_int64, spark_hash, spark_xxhash64

ROWS = 211  # not a multiple of eight, so that the last byte of every bitmap is a partial one
SEED = 20240229
BUCKETS = (1, 2, 7, 64, 200, 12345)

Draw = Callable[[np.random.Generator], Any]


def integers(bits: int) -> Draw:
    edges = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]

    def draw(rng: np.random.Generator) -> int:
        if rng.random() < 0.2:
            return edges[rng.integers(len(edges))]
        return int(rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1)))

    return draw


def number(rng: np.random.Generator) -> float:
    edges = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, 1.5]
    return edges[rng.integers(len(edges))] if rng.random() < 0.4 else float(rng.normal())


def text(rng: np.random.Generator) -> str:
    letters = list("abcxyz019 é€😀\0")
    return "".join(rng.choice(letters, size=rng.integers(0, 41)))


def octets(rng: np.random.Generator) -> bytes:
    return rng.integers(0, 256, size=rng.integers(0, 41), dtype=np.uint8).tobytes()


def decimals(precision: int, scale: int) -> Draw:
    def draw(rng: np.random.Generator) -> Decimal:
        # Any number of digits, and numbers next to a change of the number of bytes.
        if rng.random() < 0.3:
            unscaled = 256 ** int(rng.integers(0, 16)) // 2 + int(rng.integers(-2, 3))
        else:
            digits = rng.choice(list("0123456789"), rng.integers(0, precision))
            unscaled = int("0" + "".join(digits))
        unscaled = unscaled % 10**precision * (-1 if rng.random() < 0.5 else 1)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))

    return draw


def nullable(draw: Draw, share: float = 0.2) -> Draw:
    return lambda rng: None if rng.random() < share else draw(rng)


def lists(draw: Draw) -> Draw:
    return lambda rng: [draw(rng) for _ in range(rng.integers(0, 5))]


def structs(**draws: Draw) -> Draw:
    return lambda rng: {name: draw(rng) for name, draw in draws.items()}


UTC_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
micros = integers(50)
CASES: dict[str, tuple[str, pa.DataType, Draw]] = {
    "boolean": ("boolean", pa.bool_(), lambda rng: bool(rng.random() < 0.5)),
    "byte": ("byte", pa.int8(), integers(8)),
    "short": ("short", pa.int16(), integers(16)),
    "int": ("int", pa.int32(), integers(32)),
    "long": ("long", pa.int64(), integers(64)),
    "float": ("float", pa.float32(), number),
    "double": ("double", pa.float64(), number),
    "string": ("string", pa.string(), text),
    "binary": ("binary", pa.binary(), octets),
    "date": ("date", pa.date32(), lambda rng: date.fromordinal(int(rng.integers(1, 3_000_000)))),
    "timestamp": (
        "timestamp",
        pa.timestamp("us", tz="UTC"),
        lambda rng: UTC_EPOCH + timedelta(microseconds=micros(rng)),
    ),
    "timestamp_ntz": (
        "timestamp_ntz",
        pa.timestamp("us"),
        lambda rng: datetime(1970, 1, 1) + timedelta(microseconds=micros(rng)),
    ),
    "interval": (
        "interval day to second",
        pa.duration("us"),
        lambda rng: timedelta(microseconds=micros(rng)),
    ),
    "decimal_4": ("decimal(4,1)", pa.decimal128(4, 1), decimals(4, 1)),
    "decimal_18": ("decimal(18,6)", pa.decimal128(18, 6), decimals(18, 6)),
    "decimal_19": ("decimal(19,0)", pa.decimal128(19, 0), decimals(19, 0)),
    "decimal_38": ("decimal(38,10)", pa.decimal128(38, 10), decimals(38, 10)),
    "ints": ("array<int>", pa.list_(pa.int32()), lists(nullable(integers(32)))),
    "doubles": ("array<double>", pa.list_(pa.float64()), lists(nullable(number))),
    "strings": ("array<string>", pa.list_(pa.string()), lists(nullable(text))),
    "matrix": (
        "array<array<decimal(38,10)>>",
        pa.list_(pa.list_(pa.decimal128(38, 10))),
        lists(nullable(lists(nullable(decimals(38, 10))))),
    ),
    "struct": (
        "struct<a: long, b: string, c: array<float>>",
        pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.float32()))]),
        structs(a=nullable(integers(64)), b=nullable(text), c=nullable(lists(nullable(number)))),
    ),
    "struct_in_struct": (
        "struct<s: struct<a: boolean, b: binary>>",
        pa.struct([("s", pa.struct([("a", pa.bool_()), ("b", pa.binary())]))]),
        structs(s=nullable(structs(a=nullable(lambda rng: True), b=nullable(octets)))),
    ),
    "structs": (
        "array<struct<a: long, b: string>>",
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
        lists(nullable(structs(a=nullable(integers(64)), b=nullable(text)))),
    ),
}


def column_of(name: str, rows: int = ROWS) -> pa.Array:
    """The values of one case, a fifth of them null; the same in every run."""
    _, kind, draw = CASES[name]
    rng = np.random.default_rng([SEED, list(CASES).index(name)])
    return pa.array([nullable(draw)(rng) for _ in range(rows)], kind)


def by_spark(spark: Any, table: pa.Table, ddl: str, expressions: dict[str, str]) -> dict[str, Any]:
    """An array of Spark's values for each expression."""
    frame = spark.createDataFrame(table, schema=ddl).coalesce(1)
    named = [f"{sql} AS `{name}`" for name, sql in expressions.items()]
    result = frame.selectExpr(*named).toArrow()
    return {name: result[name].to_numpy() for name in expressions}


@pytest.fixture(scope="module")
def columns() -> dict[str, pa.Array]:
    return {name: column_of(name) for name in CASES}


@pytest.fixture(scope="module")
def expected(spark: Any, columns: dict[str, pa.Array]) -> dict[str, Any]:
    expressions = {"all": f"hash({', '.join(columns)})", "all_x": f"xxhash64({', '.join(columns)})"}
    for name in columns:
        expressions[name] = f"hash({name})"
        expressions[name + "_x"] = f"xxhash64({name})"
    for buckets in BUCKETS:
        expressions[f"string_{buckets}"] = f"pmod(hash(string), {buckets})"
        expressions[f"int_{buckets}"] = f"pmod(hash(coalesce(int, 0)), {buckets})"
        expressions[f"long_{buckets}"] = f"pmod(hash(coalesce(long, 0)), {buckets})"
    ddl = ", ".join(f"`{name}` {kind}" for name, (kind, _, _) in CASES.items())
    return by_spark(spark, pa.table(columns), ddl, expressions)


@pytest.mark.parametrize("name", CASES)
def test_a_column_hashes_as_in_spark(name, columns, expected):
    column = columns[name]
    assert column.null_count
    assert spark_hash([column]).tolist() == expected[name].tolist()
    assert spark_xxhash64([column]).tolist() == expected[name + "_x"].tolist()


@pytest.mark.parametrize("name", CASES)
def test_slices_and_chunks_hash_as_the_whole(name, columns, expected):
    column = columns[name]
    for begin, length in [(3, 100), (8, 16), (ROWS - 1, 1), (5, 0)]:
        part = column.slice(begin, length)
        assert spark_hash([part]).tolist() == expected[name][begin : begin + length].tolist()
        wanted = expected[name + "_x"][begin : begin + length].tolist()
        assert spark_xxhash64([part]).tolist() == wanted
    chunks = pa.chunked_array([column[:9], column[9:9], column[9:130], column[130:]])
    assert spark_xxhash64([chunks]).tolist() == expected[name + "_x"].tolist()


def test_columns_chain(columns, expected):
    assert spark_hash(list(columns.values())).tolist() == expected["all"].tolist()
    assert spark_xxhash64(list(columns.values())).tolist() == expected["all_x"].tolist()


@pytest.mark.parametrize("buckets", BUCKETS)
def test_buckets_are_those_of_spark(buckets, columns, expected):
    actual = bucket_of(spark_hash([columns["string"]]), buckets)
    assert actual.dtype == np.int32
    assert actual.tolist() == expected[f"string_{buckets}"].tolist()
    for name, narrow in [("int", True), ("long", False)]:
        keys = columns[name].fill_null(0).cast(pa.int64()).to_numpy()
        actual = bucket_of_int64(keys, buckets, narrow=narrow)
        assert actual.dtype == np.int32
        assert actual.tolist() == expected[f"{name}_{buckets}"].tolist()


@pytest.mark.parametrize("buckets", [1, 2, 3, 1000, 2**30, 2**31 - 1])
def test_pmod_at_the_edges(buckets):
    edges = [-(2**31), -(2**31) + 1, -buckets, -1, 0, 1, buckets - 1, 2**31 - 1]
    hashes = np.array(edges, np.int32)
    assert bucket_of(hashes, buckets).tolist() == [int(h) % buckets for h in hashes]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.integers(1, 2**31 - 1))
@settings(deadline=None, derandomize=True)
def test_pmod_of_any_hash(hashes, buckets):
    actual = bucket_of(np.array(hashes, np.int32), buckets).tolist()
    assert actual == [h % buckets for h in hashes]


@pytest.mark.parametrize("buckets", [0, -1, 2**31])
def test_a_number_of_buckets_out_of_range_is_refused(buckets):
    with pytest.raises(ValueError, match=f"not {buckets}"):
        bucket_of(np.zeros(1, np.int32), buckets)


def test_time_of_day_hashes_as_in_spark(spark):
    values = [time(0), None, time(12, 34, 56, 123456), time(23, 59, 59, 999999)]
    sql = ", ".join("(NULL)" if v is None else f"(time'{v.isoformat()}')" for v in values)
    frame = spark.sql(f"SELECT c, hash(c) AS h, xxhash64(c) AS x FROM VALUES {sql} AS t(c)")
    column = pa.array(values, pa.time64("ns"))
    # A client of Spark Connect cannot fetch times of day.
    assert connect_server.WANTED or frame.toArrow()["c"].type == column.type
    result = frame.coalesce(1).select("h", "x").toArrow()
    assert spark_hash([column]).tolist() == result["h"].to_pylist()
    assert spark_xxhash64([column]).tolist() == result["x"].to_pylist()


def test_a_column_of_nulls_leaves_the_seed():
    assert spark_hash([pa.nulls(2)]).tolist() == [42, 42]
    assert spark_xxhash64([pa.nulls(2, pa.list_(pa.string()))], seed=-7).tolist() == [-7, -7]


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


PART = st.fixed_dictionaries(
    {"x": maybe(st.floats()), "ys": maybe(st.lists(maybe(st.binary(max_size=9)), max_size=3))}
)
ROW = st.fixed_dictionaries(
    {
        "key": maybe(st.integers(-(2**63), 2**63 - 1)),
        "name": maybe(st.text(st.characters(exclude_categories=["Cs"]), max_size=70)),
        "parts": maybe(st.lists(maybe(PART), max_size=4)),
    }
)


@given(st.lists(ROW, min_size=1, max_size=30), st.integers(0, 5))
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_rows_hash_as_in_spark(spark, rows, cut):
    part = pa.struct([("x", pa.float64()), ("ys", pa.list_(pa.binary()))])
    schema = pa.schema([("key", pa.int64()), ("name", pa.string()), ("parts", pa.list_(part))])
    table = pa.Table.from_pylist(rows, schema)
    ddl = "key long, name string, parts array<struct<x: double, ys: array<binary>>>"
    sql = {"h": "hash(key, name, parts)", "x": "xxhash64(parts, name, key)"}
    wanted = by_spark(spark, table, ddl, sql)
    table = table.slice(cut)
    assert spark_hash(table.columns).tolist() == wanted["h"][cut:].tolist()
    assert spark_xxhash64(table.columns[::-1]).tolist() == wanted["x"][cut:].tolist()


@pytest.mark.parametrize("name", ["string", "binary", "strings", "structs"])
def test_large_types_hash_as_their_small_twins(name, columns, expected):
    kind = {
        "string": pa.large_string(),
        "binary": pa.large_binary(),
        "strings": pa.large_list(pa.large_string()),
        "structs": pa.large_list(pa.struct([("a", pa.int64()), ("b", pa.large_string())])),
    }[name]
    column = columns[name].cast(kind)
    assert spark_hash([column[2:]]).tolist() == expected[name][2:].tolist()
    assert spark_xxhash64([column]).tolist() == expected[name + "_x"].tolist()


def test_what_lies_under_a_null_is_not_seen():
    mask = pa.array([False, True, False, True])
    numbers = pa.array([1, 2, 3, 4, 5, 6], pa.int64())
    lists_ = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3, 6], pa.int32()), numbers, mask=mask)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(range(8), pa.int16()), 2, mask=mask)
    struct = pa.StructArray.from_arrays([numbers[:4], lists_], ["a", "b"], mask=mask)
    for column in (lists_, fixed, struct):
        clean = pa.array(column.to_pylist(), column.type)
        for shown, wanted in [(column, clean), (column[1:], clean[1:]), (column[3:], clean[3:])]:
            assert spark_hash([shown]).tolist() == spark_hash([wanted]).tolist()
            assert spark_xxhash64([shown]).tolist() == spark_xxhash64([wanted]).tolist()
        assert spark_hash([column])[[1, 3]].tolist() == [42, 42]


def test_a_fixed_size_list_hashes_as_a_list():
    column = pa.array([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int64(), 2))
    as_list = pa.array(column.to_pylist(), pa.list_(pa.int64()))
    assert spark_hash([column[1:]]).tolist() == spark_hash([as_list[1:]]).tolist()


@pytest.mark.parametrize("name", CASES)
def test_no_rows(name):
    assert spark_hash([column_of(name, rows=0)]).tolist() == []
    assert spark_xxhash64([pa.chunked_array([], CASES[name][1])]).tolist() == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        pa.uint8(),
        pa.timestamp("ns"),
        pa.time32("ms"),
        pa.float16(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.decimal256(50, 2),
    ],
    ids=str,
)
def test_other_types_are_refused_by_name(kind):
    for function in (spark_hash, spark_xxhash64):
        with pytest.raises(TypeError) as caught:
            function([pa.nulls(1, kind)])
        leaf = kind.value_type if pa.types.is_list(kind) else kind
        assert str(leaf) in str(caught.value)


def test_columns_must_be_of_one_length():
    with pytest.raises(ValueError, match="one length"):
        spark_hash([pa.array([1]), pa.array([1, 2])])
    with pytest.raises(ValueError, match="one length"):
        spark_xxhash64([])


def test_a_kernel_that_cannot_be_cached_is_compiled_all_the_same():
    # Numba has no cache for code without a file.
    scope: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", scope)
    assert jit.jit(scope["double"])(21) == 42


@pytest.mark.parametrize("module", [buffers, hashing, jit], ids=lambda module: module.__name__)
def test_examples(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed

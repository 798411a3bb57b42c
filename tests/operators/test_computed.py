"""Compiled expressions have the values of Spark, and Spark evaluates all other expressions.

    formula(row) = Spark's value of the expression in that row, null where that is null,
    and an error only where Spark raises one
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from decimal import Context, Decimal

import connect_server
import pyarrow as pa
import pytest
from connect_server import in_sql_text
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import ArithmeticException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, DiffFrame, DiffOverflowError, SchemaError, StepError
from pyspark_diff.expressions.compiled import compiled
from pyspark_diff.expressions.tree import tree_of
from pyspark_diff.frame.row_wise import COMPILE
from pyspark_diff.kernels.arrow_expression import column_of
from pyspark_diff.operators import projection
from pyspark_diff.operators.node import Linear
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.spark.schema import DIFF, TIME, Schema

every_runner = pytest.mark.parametrize("runner", ["local", "spark"])

#: Small numbers, with which arithmetic seldom overflows, and large ones (``x..``).
COLUMNS = {
    "b": T.ByteType(), "h": T.ShortType(), "i": T.IntegerType(), "l": T.LongType(),
    "xb": T.ByteType(), "xi": T.IntegerType(), "xl": T.LongType(),
    "p": T.BooleanType(), "q": T.BooleanType(), "s": T.StringType(), "t": T.StringType(),
    "d": T.DateType(), "e": T.DateType(), "u": T.TimestampType(), "v": T.TimestampType(),
    "w": T.TimestampNTZType(), "f": T.DoubleType(), "g": T.ArrayType(T.IntegerType()),
    "m": T.DecimalType(5, 2), "n": T.DecimalType(15, 0), "o": T.DecimalType(32, 4),
    "y": T.DecimalType(38, 0), "z": T.DecimalType(38, 30), "k": T.DoubleType(),
}
#: Doubles at the edges of whole numbers and of their range.
DOUBLES = [
    0.1, -1.5, 2.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"), -0.0,
    2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**63 - 1024, 0.5, -0.5,
]
STRUCT = T.StructType([T.StructField(name, kind) for name, kind in COLUMNS.items()])
#: Enough for all digits of any decimal.
ALL = Context(prec=76)
WIDTHS = {"xb": 7, "xi": 31, "xl": 63}


def value(choice: random.Random, name: str):
    if choice.random() < 0.2:
        return None
    if name in WIDTHS:
        most = 2 ** WIDTHS[name]
        return choice.choice([-most, 1 - most, -1, 0, 1, most - 1, choice.randrange(-most, most)])
    if name == "y":
        return Decimal(choice.choice([0, 1, -1, 10**37 - 1]))
    if name == "z":
        near = choice.choice([10**30 - 1, 10**30 + 1, 10**38 - 1, 0])
        return Decimal(near * choice.choice([1, -1])).scaleb(-30, ALL)
    if name in ("m", "n", "o"):
        whole, scale = {"m": (500, 2), "n": (3, 0), "o": (10**choice.randrange(2, 32), 4)}[name]
        return Decimal(choice.randrange(-whole, whole + 1)).scaleb(-scale)
    day = datetime.date(2024, 2, 28) + datetime.timedelta(days=choice.randrange(3))
    moment = datetime.datetime(2024, 3, 31, 0, 59, 59, choice.randrange(2))
    return {
        "p": choice.random() < 0.5,
        "s": choice.choice(["", "a", "ab", "B", "ü", "\U0001f600", "\uffff", "a ", "a\nb"]),
        "d": choice.choice([day, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        "u": moment + datetime.timedelta(minutes=choice.randrange(3)),
        "f": choice.choice([0.0, -0.0, float("nan"), 1.5]),
        "k": choice.choice(DOUBLES),
        "g": [choice.randrange(2)],
    }.get({"q": "p", "t": "s", "e": "d", "v": "u", "w": "u"}.get(name, name),
          choice.randrange(-4, 5))


def rows(seed: int, number: int):
    choice = random.Random(seed)
    return [tuple(value(choice, name) for name in STRUCT.names) for _ in range(number)]


ROWS = rows(0, 60)


def with_updates(table: pa.Table) -> pa.Table:
    """The rows with time and diff, and in chunks of uneven size."""
    zeros = pa.array([0] * table.num_rows, pa.int64())
    table = table.append_column(TIME, zeros).append_column(DIFF, zeros)
    cut = table.num_rows // 3
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


@pytest.fixture(scope="module")
def frame(spark):
    return spark.createDataFrame(ROWS, STRUCT).coalesce(1)


@pytest.fixture(scope="module")
def table(frame):
    rows = frame.toArrow()
    return with_updates(rows.cast(Schema(STRUCT).arrow()))


@pytest.fixture(scope="module")
def updates(frame):
    return DiffFrame(frame.withColumns({"time": F.lit(0), "diff": F.lit(1)}))


def formula_of(column, *, ansi: bool = True, zone: str = ""):
    tree = tree_of(column)
    return None if tree is None else compiled(tree, STRUCT, ansi=ansi, zone=zone)


def by_spark(frame, columns):
    result = frame.select(*[c.alias(f"c{n}") for n, c in enumerate(columns)])
    kinds = Schema(result.schema).arrow()
    # Otherwise Spark evaluates a shared subexpression first, also in rows where no expression
    # asks for it, and it may overflow there.
    frame.sparkSession.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    try:
        computed = result.toArrow().cast(kinds)
    finally:
        frame.sparkSession.conf.unset("spark.sql.subexpressionElimination.enabled")
    return result.schema.fields, computed.columns


def listed(values):
    """Values in Python; times as numbers, as Python has less of them than Spark."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    return values.to_pylist()


def check(frame, table, columns, zone=""):
    """Types, values and nulls of expressions that nowhere overflow."""
    fields, expected = by_spark(frame, columns)
    for column, field, wanted in zip(columns, fields, expected):
        formula = formula_of(column, zone=zone)
        assert formula is not None, f"{column} is not understood"
        assert formula.kind == field.dataType, column
        actual = column_of(formula.formula, table)
        assert actual.type == wanted.type, column
        # As text, so that NaN is itself and 0.0 is not -0.0.
        assert repr(listed(actual)) == repr(listed(wanted)), column
        for none in (table.slice(0, 0), table.schema.empty_table()):
            assert len(column_of(formula.formula, none)) == 0


#: SQL text that is understood; most of it is written in Python too.
PORTABLE = """
b + b; b + h; i + l; b + 1; i - 1L; h * b; l * -3; -b; -l; abs(h); (b + h) * i - l; 1 + i
i % 3; i % -1; xi % -7; xl % 10L; mod(b, 2); xb % -128Y; pmod(xl, 7); pmod(b, 3); xi div 7
b div 2L; xl div -3; i div IF(l = 0, 1, l); xl div IF(h > 0, h, 9)
xl % -9223372036854775808L; pmod(xi, 2147483647); xi div -2147483648L
i = 1; i == l; b <> h; xi < xl; xl <= xi; b > -1; l >= i; i <=> h; i <=> NULL; NOT i <=> b
s = 'a'; s != t; s < t; s <= 'a'; s > '\U0001f600'; s <=> t; s >= t; 'ü' = s; p = q; p < q
d = e; d < e; d >= DATE'2024-02-28'; d <=> e; u < v; u = v; w > TIMESTAMP_NTZ'2024-03-31 01:00:00'
p AND q; p OR q; NOT p; !q; p AND NULL; p OR NULL; i > 1 AND (l < 2 OR NOT p); p <=> TRUE
i IS NULL; f IS NOT NULL; s IS NULL; g IS NULL; isnull(p); isnotnull(d); (i + 1) IS NULL
coalesce(i, 0); coalesce(b, l); coalesce(s, t, 'none'); coalesce(NULL, i); coalesce(p, FALSE)
coalesce(f, f); coalesce(u, v); nvl(d, e); ifnull(i, l); coalesce(xl, i, b, 7)
least(i, l, 1); greatest(b, h); least(s, t); greatest(s, 'b'); least(d, e); greatest(u, v, NULL)
least(NULL, xi, xl); greatest(w, w)
CASE WHEN i > 1 THEN l WHEN p THEN b ELSE 7 END; CASE WHEN p THEN s END; if(p, d, e); if(q, f, f)
CASE WHEN p THEN NULL WHEN q THEN i END; CASE i WHEN 1 THEN 'one' WHEN 2 THEN 'two' END
i IN (1, 2, 3); i IN (1, NULL); i NOT IN (1L, 2L); s IN ('a', 'ü'); xb IN (1)
i BETWEEN -1 AND 1; s BETWEEN 'a' AND 'b'; i IS DISTINCT FROM l
CAST(b AS long); CAST(i AS int); CAST(NULL AS date); CAST(p AS int); CAST(xl AS string); i::bigint
m + n; m - 1; 1 - m; m * n; n * 10; m * (1 - m) * (1 + m); o * m; o * (1 - m); -o; abs(m)
m + i; l * m; b - m; m + 100Y; m * 0; m * 0.5; 1.5 - m; n * CAST(1 AS int); m + CAST(NULL AS int)
m = n; m < o; m >= 1; n <> i; m <=> 2.5; m BETWEEN -0.05 AND 1.07; l = 1.0; m IN (1, 0.5, NULL)
coalesce(m, 0); coalesce(i, 1.5); least(m, n); greatest(m, l, 2)
nvl(o, m); if(p, m, 0); if(p, o, 1)
coalesce(o, 0.00000000001); o > 0.00000000001; o <=> 1e-12BD
z > 1; 1L <> z; z <=> 0; z > i; z = l; y = z; coalesce(z, 1); least(z, y); z BETWEEN -1 AND 1
CASE WHEN p THEN m WHEN q THEN n END; CASE WHEN m > 0 THEN m * m ELSE 0 END; m IS NULL; 1.5
CAST(m AS decimal(7,3)); CAST(i AS decimal(12, 2)); CAST(m AS decimal(5,2)); CAST(5 AS decimal(3,1))
s like 'a%'; s LIKE '_'; s LIKE '%'; s LIKE '%b%'; s LIKE ''; s NOT LIKE 'a_b'
startswith(s, 'a'); endswith(s, 'b'); contains(s, 'b'); substring(s, 1, 1); substr(s, 2, 2)
substring(s, 1, 0); year(d); month(d); day(d); dayofmonth(e); year(d) + month(e)
CAST(w AS date); to_date(w); date(w); quarter(d); year(w); quarter(w); month(w); day(w); to_date(d)
hour(w); minute(w); second(w); datediff(d, e); datediff(w, d); date_diff(DATE'2024-03-01', d)
w + INTERVAL '23' HOUR; w - INTERVAL 1 DAY 2 HOURS; INTERVAL '3' MINUTE + w; d = to_date(w)
w > w - INTERVAL '0.000001' SECOND; w + INTERVAL '-40' DAY; CAST(w AS date) IS NULL
trunc(d, 'week'); trunc(d, 'MM'); trunc(d, 'Mon'); trunc(d, 'QUARTER'); trunc(d, 'yy')
trunc(w, 'month'); trunc(e, 'year')
5; 'x'; TRUE; 5L; 5Y; DATE'2020-01-01'; g; f; u; s; `i`
f + 1; k + f; k - xl; xl * k; k * k; 1.5 * k; k * 0.1D; -k; abs(k); f = 1; f > k; k <= f; k <=> f
k < 1.5; xl >= k; k <> f; least(f, k, i); greatest(k, f, 1); coalesce(f, i); coalesce(k, 1.5)
nvl(l, k); CAST(i AS double); CAST(xl AS double); CAST(xl AS double) * 0.3D - k; floor(k); ceil(k)
ceiling(f); floor(k * 0.85D); floor(xl * 0.7D); k / 2; xl / 3; i / 2; l / 0.3D; xl / -7Y; k / 1.5
1.1D; if(p, k, 0); CASE WHEN k > 1 THEN k WHEN f < 0 THEN xl ELSE 0.5D END; k BETWEEN -1 AND 1.5
NOT k = f; k IS NULL; k / NULL; k + CAST(NULL AS int); k > CAST(NULL AS double)
nullif(i, 0); nullif(k, f); nullif(s, 'a'); nullif(b, xl); nvl2(i, l, b); nvl2(s, k, 1)
"""

#: Expressions whose value depends on the time zone of the session.
ZONED = """
date_trunc('week', w); date_trunc('MM', w); date_trunc('quarter', u); date_trunc('YEAR', u)
date_trunc('hour', u); date_trunc('day', w); date_trunc('DD', u); date_trunc('Minute', w)
date_trunc('second', u); date_trunc('millisecond', u); date_trunc('microsecond', w)
CAST(u AS date); to_date(u); year(u); quarter(u); month(u); day(u); hour(u); minute(u); second(u)
u + INTERVAL '23' HOUR; u - INTERVAL '1' DAY; datediff(u, w); trunc(u, 'month')
CAST(w AS timestamp); date_trunc('week', CAST(w AS timestamp)) < u; to_date(date_trunc('mon', w))
"""

#: Operands that Spark does not evaluate everywhere, so that nothing overflows.
LAZY = """
CASE WHEN xi < 2147483647 THEN xi + 1 END
CASE WHEN xi = 2147483647 THEN 0 WHEN xi + 1 > 5 THEN 1 ELSE 2 END
xi = -2147483648 OR if(xl > 0, xl - 1, if(xl < 0, xl + 1, -xi + 0L)) IS NULL
xi IS NULL OR xi = 2147483647 OR xi + 1 > 0
xi < 2147483647 AND xi + 1 < 0
coalesce(CASE WHEN xi > 0 THEN 1 END, if(xi <= 0, abs(xi + 1), 7))
CASE WHEN xi BETWEEN -100 AND 100 THEN i END + xi * if(xi BETWEEN -100 AND 100, 1, 0)
CASE WHEN xi BETWEEN -100 AND 100 THEN i END * (xi + xi)
CASE WHEN xi BETWEEN -100 AND 100 THEN i END < xi * 3
NOT (xl > -9223372036854775808L AND -xl > 0)
k / nullif(i, 0); nvl2(nullif(f, 0), k / f, 0)
CASE WHEN i <> 0 THEN k / i END
i <> 0 AND k / i > 0.5
if(k = 0 OR k IS NULL, NULL, floor(xl * 0.85D / k))
CASE WHEN f <> 0 AND i > 0 THEN (f + i) / (f * i) - k END
"""


def split(texts: str):
    return [text.strip() for line in texts.split("\n") for text in line.split(";") if text.strip()]


@in_sql_text
@pytest.mark.parametrize("texts", [PORTABLE, LAZY], ids=["portable", "lazy"])
def test_sql_text_equals_spark(frame, table, texts):
    check(frame, table, [F.expr(text) for text in split(texts)])


@pytest.fixture
def utc(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield "UTC"
    spark.conf.set("spark.sql.session.timeZone", before)


#: Microseconds of timestamps: around midnights, months, years and leap days, and far away.
MOMENTS = [
    moment + offset
    for moment in (0, 951_782_400_000_000, 1_709_164_800_000_000, 1_735_689_600_000_000,
                   -2_208_988_800_000_000, -62_135_596_800_000_000, 253_402_300_800_000_000,
                   9_000_000_000_000_000_000, -9_000_000_000_000_000_000)
    for offset in (-86_400_000_000, -1, 0, 1, 59_999_999, 3_600_000_000, 86_399_999_999)
]


def moments(spark):
    """`MOMENTS` and nulls in all columns of times of `STRUCT`, in Spark and as a table."""
    frame = spark.createDataFrame([(n,) for n in [*MOMENTS, None]], "n long").coalesce(1)
    texts = {
        "u": "timestamp_micros(n)", "v": "timestamp_micros(-n)", "w":
        "CAST(timestamp_micros(n) AS timestamp_ntz)", "d":
        "date_from_unix_date(CAST(n div 86400000000 AS int))", "e":
        "date_from_unix_date(CAST(n div 4320000000 AS int))",
    }
    return frame.select(*[
        F.expr(texts.get(name, "NULL")).cast(kind).alias(name) for name, kind in COLUMNS.items()
    ])


@in_sql_text
def test_expressions_of_times_in_utc(spark, frame, table, utc):
    check(frame, table, [F.expr(text) for text in split(ZONED)], utc)
    assert [text for text in split(ZONED) if formula_of(F.expr(text), zone="Asia/Tokyo")] == []


@in_sql_text
def test_times_far_away(spark, utc):
    frame = moments(spark).cache()
    table = with_updates(frame.toArrow().cast(Schema(STRUCT).arrow()))
    texts = [text for text in split(PORTABLE + ZONED)
             if "w" in text.replace("week", "").replace("WHEN", "") or text in split(ZONED)
             or text.startswith(("trunc", "year", "quarter", "month", "day", "date"))]
    try:
        check(frame, table, [F.expr(text) for text in texts], utc)
    finally:
        frame.unpersist()


def columns_in_python(F):
    """The same expressions as `IN_SQL`, by the functions of classic Spark or of Connect."""
    c = F.col
    return [
        c("i") + 1, 1 - c("i"), -c("i"), c("b") * c("h"), c("i") % 3, F.pmod(c("i"), F.lit(3)),
        c("i") == 1, c("i") != 1, ~(c("i") > 1), c("i").eqNullSafe(c("l")), c("i") >= 2**40,
        c("p") & c("q") | (c("s") < "x"), c("i").isNull(), F.isnotnull("i"),
        F.coalesce("i", F.lit(0)), F.nvl("i", "l"), F.least("i", "l"), F.greatest("i", F.lit(None)),
        F.when(c("i") > 1, 2), F.when(c("p"), 1).when(c("q"), 2).otherwise(c("l")),
        c("b").cast("long"), c("b").cast(T.IntegerType()), c("b").cast("INT"),
        c("i").isin(1, 2), c("i").between(1, 2), F.abs("i"), (c("i") + 1).alias("j"), c("`i`"),
        c("d") == datetime.date(2024, 2, 28), c("p").eqNullSafe(True), F.lit(None).cast("date"),
        c("a.x"), c("`a.b`.`c``d`"), F.call_function("ABS", c("i")), F.upper("s"),
        c("m") * (1 - c("m")), c("m") < Decimal("0.05"), c("m").cast("decimal(7,3)"),
        c("m").cast(T.DecimalType(7, 3)), c("s").startswith("a"), F.substring("s", 1, 2),
        F.year("d"), c("s").like("a%"), F.contains("s", F.lit("a")), F.to_date("w"),
        F.date_trunc("week", "w"), F.trunc("d", "MM"), F.hour("w"), F.datediff("d", "e"),
        c("w") - datetime.timedelta(hours=23), c("w").cast("timestamp"),
    ]


IN_SQL = """
i + 1; 1 - i; -i; b * h; i % 3; pmod(i, 3); i = 1; i <> 1; NOT i > 1; i <=> l; i >= 1099511627776
p AND q OR s < 'x'; i IS NULL; i IS NOT NULL; coalesce(i, 0); nvl(i, l); least(i, l)
greatest(i, NULL); CASE WHEN i > 1 THEN 2 END; CASE WHEN p THEN 1 WHEN q THEN 2 ELSE l END
CAST(b AS bigint); CAST(b AS int); CAST(b AS int); i IN (1, 2); i BETWEEN 1 AND 2; abs(i)
i + 1 AS j; i; d = DATE'2024-02-28'; p <=> TRUE; CAST(NULL AS date); a.x; `a.b`.`c``d`; ABS(i)
upper(s); m * (1 - m); m < 0.05; CAST(m AS decimal(7,3)); CAST(m AS decimal(7,3))
startswith(s, 'a'); substring(s, 1, 2); year(d); like(s, 'a%'); contains(s, 'a'); CAST(w AS date)
date_trunc('week', w); trunc(d, 'MM'); hour(w); datediff(d, e); w - INTERVAL '23' HOUR
CAST(w AS timestamp)
"""


@in_sql_text
def test_trees_do_not_tell_how_they_were_written(spark):
    expected = [tree_of(F.expr(text)) for text in split(IN_SQL)]
    assert None not in expected
    assert [tree_of(column) for column in columns_in_python(F)] == expected


@in_sql_text
def test_trees_of_connect(spark):
    pytest.importorskip("grpc")
    from pyspark.sql.connect.functions import builtin as functions

    expected = [tree_of(F.expr(text)) for text in split(IN_SQL)]
    assert [tree_of(column) for column in columns_in_python(functions)] == expected
    for column in (functions.expr("i + 1"), functions.col("*"), functions.col("s").cast("char(3)")):
        assert tree_of(column) is None


#: Expressions that only Spark evaluates.
OTHERS = """
upper(s); s || t; s LIKE t; t LIKE NULL; s LIKE 'a\\%'; s LIKE 'a/%' ESCAPE '/'
m + f; m / n; m % 2
s LIKE 'a/%' escape '/'; y * y; -y; abs(z); o IN (0.00000000001); y IN (1, 0.5)
substring(s, 0, 1); substring(s, -1, 1); substring(s, i, 1); year(u); startswith(s, t); m = s
o * o; o * m * m; o * (1 - m) * (1 + m)
CAST(m AS decimal(5,1)); CAST(m AS int); CAST(l AS decimal(19,0))
o + 0.0000000001; contains(s, NULL)
f IN (1.5); i % l; i % 0; f % 2; m / f; m > k; CAST(m AS double); CAST(k AS int); round(k)
floor(i); floor(m); ceil(k, 1); (i + 1) / 2; i / (k / 2); CAST(f AS float) + 1; k > '1'; m / 2
xl div -1; pmod(i, -3); CAST(l AS int); CAST(s AS int); CAST(d AS timestamp)
i = '1'; i + '1'; d = '2024-01-01'; d = u; d + 1; g = g; g[0]; struct(i); 1 + 1; NULL
s = 'A' COLLATE UTF8_LCASE; CAST(s AS string COLLATE UTF8_LCASE) = 'a'; least(p, q)
u > TIMESTAMP'2024-03-31 01:00:00'; try_add(i, 1); i & 1; +i; hash(i); I + 1
coalesce(g, g); i IN (l); CASE WHEN p THEN 1 ELSE 'x' END; transform(g, x -> x + 1)
d < DATE'1500-01-01'; date_trunc('week', w); date_trunc(s, u); date_trunc('decade', w)
trunc(d, 'day'); trunc(d, s); w - w; d + INTERVAL '1' DAY; d - INTERVAL '1' HOUR
w + INTERVAL '1' MONTH; INTERVAL '1' DAY; to_date(s); to_date(w, 'yyyy'); datediff(s, d); hour(s)
CAST(w AS timestamp); u - INTERVAL '1' DAY; CAST(u AS date); hour(u)
"""


def test_others_stay_with_spark(frame):
    texts = split(OTHERS)
    frame.select(*[F.expr(text) for text in texts]).schema  # they are right in Spark
    assert [text for text in texts if formula_of(F.expr(text)) is not None] == []
    function = F.udf(lambda i: i, "int")
    assert formula_of(function("i")) is None and formula_of(F.col("*")) is None


def test_deep_expressions_stay_with_spark():
    deep = cases = F.col("i")
    for _ in range(150):
        deep = deep + 1
    for _ in range(20):
        cases = F.when(F.col("p"), cases)
    assert formula_of(deep) is None
    # The JVM lists each of its branches twice.
    assert connect_server.WANTED or formula_of(cases) is None


def test_collations_and_padded_text_stay_with_spark():
    struct = T.StructType([
        T.StructField("c", T.StringType("UTF8_LCASE")),
        T.StructField("k", T.StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}),
    ])
    for name in struct.names:
        assert compiled(tree_of(F.col(name) == "a"), struct, ansi=True) is None
        assert compiled(tree_of(F.col(name) < F.col(name)), struct, ansi=True) is None


@in_sql_text
def test_without_ansi_integers_wrap_round_in_spark(spark, updates):
    assert formula_of(F.expr("i + 1"), ansi=False) is None
    assert formula_of(F.expr("abs(i) > 0"), ansi=False) is None
    for text in ("i > l", "i % 3", "coalesce(i, l)"):
        assert formula_of(F.expr(text), ansi=False) is not None
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert not updates.withColumn("m", F.col("i") + 1)._node.stage.portable
        assert updates.where("i > 1")._node.stage.portable
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize(("setting", "other"), [
    ("spark.sql.legacy.literal.pickMinimumPrecision", "false"),
    ("spark.sql.legacy.decimal.retainFractionDigitsOnTruncate", "true"),
])
def test_decimals_of_other_digits_stay_with_spark(spark, updates, setting, other):
    spark.conf.set(setting, other)
    try:
        assert not updates.where(F.col("z") > 1)._node.stage.portable
        assert not updates.select(F.greatest("y", "m"))._node.stage.portable
        assert updates.where(F.col("i") > 1).select("z")._node.stage.portable
    finally:
        spark.conf.unset(setting)
    assert updates.where(F.col("z") > 1)._node.stage.portable


# Random expressions.


INTEGERS = {"b": 0, "h": 1, "i": 2, "l": 3, "xb": 0, "xi": 2, "xl": 3}
KINDS = {"text": ["s", "t"], "date": ["d", "e"], "moment": ["u", "v"], "truth": ["p", "q"]}


class Writer:
    """Writes random SQL text whose type is known."""

    def __init__(self, seed: int):
        self._choice = random.Random(seed)

    def integer(self, depth: int) -> str:
        pick = self._choice.choice
        if depth == 0 or self._choice.random() < 0.2:
            return pick([*INTEGERS, "b", "h", "i", "l", str(pick(range(-3, 4))), "5L", "2Y"])
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        n = pick(["2", "3", "7L", "-5"])
        return pick([
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"(- {a})", f"abs({a})", f"({a} % {n})",
            f"coalesce({a}, {b})", f"least({a}, {b})", f"greatest({a}, {b}, 1)", f"({a} div {n})",
            f"CAST({a} AS long)", f"pmod({a}, 3)", f"if({self.truth(depth - 1)}, {a}, {b})",
            f"CASE WHEN {self.truth(depth - 1)} THEN {a} WHEN {self.truth(0)} THEN {b} END",
        ])

    def decimal(self, depth: int) -> str:
        pick = self._choice.choice
        if depth == 0 or self._choice.random() < 0.2:
            return pick(["m", "n", "o", "m", "0.05", "-1.5"])
        a, c = self.decimal(depth - 1), self.decimal(0)
        b = pick([self.decimal(depth - 1), self.integer(0)])
        return pick([
            f"({a} + {b})", f"({b} - {a})", f"({a} * {c})", f"(- {a})", f"abs({a})",
            f"coalesce({a}, {b})", f"least({a}, {b})", f"if({self.truth(depth - 1)}, {a}, {b})",
        ])

    def double(self, depth: int) -> str:
        pick = self._choice.choice
        if depth == 0 or self._choice.random() < 0.2:
            return pick(["f", "k", "0.3D", "-1.5D", "k"])
        a = self.double(depth - 1)
        b = pick([self.double(depth - 1), self.integer(0), "0.05"])
        return pick([
            f"({a} + {b})", f"({b} - {a})", f"({a} * {b})", f"(- {a})", f"abs({a})",
            f"({a} / {pick(['2', '0.7D', '-3'])})", f"CAST({self.integer(0)} AS double)",
            f"coalesce({a}, {b})", f"least({a}, {b})", f"greatest({a}, {b})",
            f"if({self.truth(depth - 1)}, {a}, {b})", f"CAST(floor({a}) AS double)",
            f"if({b} = 0, {a}, {a} / {b})",
        ])

    def any(self, kind: str, depth: int) -> str:
        if kind == "double":
            return self.double(depth)
        if kind == "integer":
            return self.integer(depth)
        if kind == "decimal":
            return self.decimal(depth)
        if kind == "truth":
            return self.truth(depth)
        a, b = self._choice.choices(KINDS[kind], k=2)
        return self._choice.choice([a, f"coalesce({a}, {b})", f"if({self.truth(0)}, {a}, {b})"])

    def truth(self, depth: int) -> str:
        pick = self._choice.choice
        if depth == 0:
            known = ["p", "q", "i > 0", "s < t", "(xl IS NULL)", "d = e", "TRUE"]
            return pick([*known, "CAST(NULL AS boolean)"])
        kind = pick(["integer", "integer", "decimal", "double", *KINDS])
        a, b = self.any(kind, depth - 1), self.any(kind, depth - 1)
        p, q = self.truth(depth - 1), self.truth(depth - 1)
        return pick([
            f"({a} {pick(['=', '<>', '<', '<=', '>', '>=', '<=>'])} {b})", f"({p} AND {q})",
            f"({p} OR {q})", f"(NOT {p})", f"({a} IS NULL)", f"({a} IS NOT NULL)",
            f"({self.integer(depth - 1)} IN (0, 1L, {pick(['3', 'NULL'])}))",
        ])


@in_sql_text
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32))
def test_random_expressions(spark, frame, table, seed):
    """The next test has the expressions that overflow: a single one would fail the whole query."""
    writer = Writer(seed)
    kinds = (writer.integer, writer.truth, writer.decimal, writer.truth, writer.double)
    texts = [kinds[n % 5](2 if n % 5 == 2 else 4) for n in range(100)]
    compiled = []
    for text in texts:
        formula = formula_of(F.expr(text))
        try:
            compiled += [F.expr(text)] if formula and column_of(formula.formula, table) else []
        except DiffOverflowError:
            pass
    assert len(compiled) > 15
    check(frame, table, compiled)


#: Expressions that overflow in Spark, and their names in the error.
OVERFLOWS = [
    ("xi + 1", "(xi + 1)", "int"),
    ("b + (xb - 1Y)", "(xb - 1)", "tinyint"),
    ("xl * 2", "(xl * 2)", "bigint"),
    ("-xl", "negative(xl)", "bigint"),
    ("abs(xb) > 3", "abs(xb)", "tinyint"),
    ("p OR xi + i > 3", "(xi + i)", "int"),
    ("coalesce(i, xi * 4)", "(xi * 4)", "int"),
    ("o * (m * 0 + 99999999.0) > 1", "(o * ((m * 0) + 99999999.0))", "decimal(38,6)"),
    ("y * 100 > m", "(y * 100)", "decimal(38,0)"),
]


@in_sql_text
@pytest.mark.parametrize(("text", "shown", "kind"), OVERFLOWS)
def test_overflow(frame, table, text, shown, kind):
    with pytest.raises(DiffOverflowError) as caught:
        column_of(formula_of(F.expr(text)).formula, table)
    assert f"{shown} leaves the range of {kind} " in str(caught.value)
    assert "wider type" in str(caught.value)
    with pytest.raises(ArithmeticException):
        frame.select(F.expr(text)).collect()


@in_sql_text
@pytest.mark.parametrize(("text", "kind"), [
    ("w + INTERVAL '106751991' DAY", "timestamp_ntz"), ("date_trunc('year', u)", "timestamp"),
])
def test_times_without_room(spark, utc, text, kind):
    frame = spark.sql(
        "SELECT timestamp_micros(-9223372036854775807L) AS u, TIMESTAMP_NTZ'2024-01-01 00:00:00' w"
    )
    table = with_updates(frame.toArrow().cast(Schema(frame.schema).arrow()))
    formula = compiled(tree_of(F.expr(text)), frame.schema, ansi=True, zone=utc).formula
    with pytest.raises(DiffOverflowError, match=f"leaves the range of {kind} in some row; leave"):
        column_of(formula, table)
    with pytest.raises(Exception, match="overflow"):
        frame.select(F.expr(text)).collect()


# Through DiffFrame.


def left_over(spark, columns, inserted, removed):
    """The remaining rows when Spark evaluates the insertions, and formulas the removals."""
    with Dataflow(spark) as flow:
        rows, session = flow.input("rows", STRUCT)
        output = rows.select(*[column.alias(f"c{n}") for n, column in enumerate(columns)]).keep()
        assert output._node.stage.portable
        if inserted is not None:
            assert not inserted.isLocal()
            session.insert(inserted)
        if removed is not None:
            session.remove(removed)
        session.advance_to(1)
        session.flush()
        flow.step()
        return output.to_df().count()


@in_sql_text
def test_what_spark_inserts_formulas_remove(spark, frame, table):
    everything = [
        column for column in map(F.expr, split(PORTABLE)) if formula_of(column).formula.columns
    ]
    rows = table.select(STRUCT.names)
    assert left_over(spark, everything, frame.repartition(1), rows) == 0
    assert left_over(spark, everything, frame.repartition(1), None) > 0


@in_sql_text
@settings(max_examples=max(4, settings().max_examples // 2))
@given(seed=st.integers(0, 2**32))
def test_what_spark_inserts_formulas_remove_or_both_refuse(spark, seed):
    """One expression of large numbers: it overflows on both sides, or on neither."""
    writer, given_rows = Writer(seed), rows(seed, 3)
    columns = [F.expr(writer.integer(2))]
    if not any(formula and formula.formula.columns for formula in map(formula_of, columns)):
        return
    frame = spark.createDataFrame(given_rows, STRUCT).repartition(1)
    failed = []
    for inserted, removed in ((frame, None), (None, given_rows)):
        try:
            left_over(spark, columns, inserted, removed)
        except (ArithmeticException, DiffOverflowError, StepError):
            failed.append(inserted is None)
    assert failed in ([], [False, True]), columns
    if not failed:
        assert left_over(spark, columns, frame, given_rows) == 0, columns


def test_formulas_can_be_turned_off(spark, updates):
    spark.conf.set(COMPILE, "false")
    try:
        computed = updates.where(F.col("i") > 1).withColumn("m", F.col("i") + 1)
        assert not computed._node.stage.portable
    finally:
        spark.conf.unset(COMPILE)
    again = updates.where(F.col("i") > 1).withColumn("m", F.col("i") + 1)
    assert again._node.stage.portable
    assert Counter(computed.select("m").at(0).collect()) == Counter(
        again.select("m").at(0).collect()
    )


@in_sql_text
def test_division_by_zero(table):
    with pytest.raises(DiffOverflowError, match="divides by zero"):
        column_of(formula_of(F.expr("l div i")).formula, table)
    for text in ("k / i", "CASE WHEN i > 0 THEN 1.0D ELSE k / i END", "k / -f", "l / i > 2"):
        with pytest.raises(DiffOverflowError, match="divides by zero"):
            column_of(formula_of(F.expr(text)).formula, table)


def test_arithmetic_needs_no_spark(updates):
    stage = updates.withColumn("m", F.col("i") + 1)._node.stage
    assert stage.portable
    # It travels to the executors, and columns of the JVM could not.
    travelled = cloudpickle.dumps(stage)
    assert len(travelled) < 10_000
    assert cloudpickle.loads(travelled) == stage


@in_sql_text
def test_columns_that_nobody_wants(table, updates, frame):
    node = updates.select("i", F.expr("b + h AS m"), F.lit(5).alias("five"), "s")._node
    assert node.needs(frozenset({"m", "five"})) == {"b", "h"}
    few = table.select(["b", "h", TIME, DIFF])
    done = node.stage.on_table(few)
    assert done.column_names == ["m", "five", TIME, DIFF]
    again = node.stage.on_frame(frame.select("b", "h", F.lit(0).alias(TIME), F.lit(0).alias(DIFF)))
    assert again.columns == done.column_names
    assert again.toArrow().to_pylist() == done.to_pylist()
    where = updates.where("b > h")._node
    assert where.needs(frozenset({"i"})) == {"b", "h", "i"}
    rows = where.stage.on_frame(frame.select("h", F.lit(0).alias(TIME), "b"
                                             ).withColumn(DIFF, F.lit(0)))
    assert sorted(rows.columns) == sorted(few.column_names)
    assert rows.count() == where.stage.on_table(few).num_rows


def test_a_filter_copies_what_is_read(spark, monkeypatch):
    """The whole of a wide table is most of the work on it."""
    tables = []
    on_table = projection.Filter.on_table

    def watched(self, table):
        result = on_table(self, table)
        tables.append((result.num_rows, result.column_names))
        return result

    monkeypatch.setattr(projection.Filter, "on_table", watched)
    with Dataflow(spark, runner="local") as flow:
        wide, session = flow.input("wide", "k long, a long, b long, c string")
        some = wide.where(F.col("a") > 1).where(F.col("b") < 9)
        maxima = some.groupBy("k").agg(F.max("a").alias("a")).keep()
        for rows in (2, 5000):
            session.insert(pa.table({
                "k": [0] * rows, "a": range(rows), "b": [0] * rows, "c": ["x"] * rows}))
            flow.advance_to(flow.session("wide").time() + 1)
        assert maxima.at().collect() == [(0, 4999)]
    many = {frozenset(names) - {TIME, DIFF} for rows, names in tables if rows > 2000}
    assert many == {frozenset("kab"), frozenset("ka")}


def test_formulas_read_the_columns_that_spark_resolves(spark, updates):
    """A formula is made of the columns that Spark finds, or of none."""
    joined = updates.alias("l").join(updates.alias("r"), F.col("l.i") == F.col("r.l"))
    node = joined.where(F.col("l.h") < F.col("r.h"))._node
    assert node.stage.portable and node.stage.condition.columns == {"h_1", "h_2"}
    odd = spark.createDataFrame(
        [((1,), 2, 3, 4, 0, 1)],
        "r struct<x int>, `r.x` int, `r, x` int, `q``x` int, time int, diff int",
    )
    frame = DiffFrame(odd)
    assert not frame.select(F.col("r.x") + 1)._node.stage.portable
    assert frame.select(F.col("`r.x`") + 1, F.col("`q``x`") + 1)._node.stage.portable
    # The JVM lists names without quotes.
    assert connect_server.WANTED == frame.select(F.col("`r, x`") + 1)._node.stage.portable
    aliased = DiffFrame(odd.withColumnRenamed("r, x", "a").withColumnRenamed("r", "z")).alias("a")
    assert aliased.where(F.col("a.a") > 1)._node.stage.portable
    assert not aliased.where(F.col("a") > 1)._node.stage.portable


@pytest.fixture
def by_hand(monkeypatch):
    """Fails if an expression is evaluated by Spark on the driver."""
    def refuse(*arguments):
        raise AssertionError("evaluated by Spark")

    monkeypatch.setattr(SparkRunner, "evaluate", refuse)


def program(frame):
    some = F.col("i").isNotNull() & ((F.col("s") != "B") | (F.col("d") < F.col("e")))
    chosen = frame.where(some).withColumn("n", F.col("i") * 2 + 1)
    third = (F.col("n") % 3 == 0).alias("third")
    chosen = chosen.select("n", "s", third, F.coalesce("b", "i"), "u")
    return chosen.drop("u").filter(F.col("n") > -5).count().keep()


@every_runner
def test_programs(spark, updates, runner, by_hand):
    data = [tuple(row) for row in ROWS]
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows_in_flow, session = flow.input("rows", STRUCT)
        result = program(rows_in_flow)
        session.insert(data)
        session.advance_to(1)
        session.flush()
        flow.step()
        actual = sorted(map(repr, result.at(0).collect()))
    expected = spark.createDataFrame(ROWS, STRUCT).where("i IS NOT NULL AND (s <> 'B' OR d < e)")
    expected = expected.selectExpr("i * 2 + 1 AS n", "s", "coalesce(b, i)").selectExpr(
        "n", "s", "n % 3 = 0 AS third", "`coalesce(b, i)`"
    ).where("n > -5").groupBy("n", "s", "third", "coalesce(b, i)").count()
    assert actual == sorted(map(repr, expected.collect()))
    # For a collection that comes as a whole, Spark does the same.
    assert sorted(map(repr, program(updates).at(0).collect())) == actual


def stages_of(node):
    """The stages of all linear operators that a node is made of."""
    stages = [node.stage] if isinstance(node, Linear) else []
    return [*stages, *(stage for source in node.inputs for stage in stages_of(source))]


#: Aggregates and groups over expressions. Spark has to evaluate none.
BY_EXPRESSION = {
    "mixed": lambda f: f.groupBy("s").agg(
        F.sum(F.col("i") * 2), F.avg("l"), F.count_if(F.col("i") > 0), F.min(F.col("b") + 1),
        F.count_distinct(F.col("h") % 3), F.max_by("s", -F.col("i").cast("long")),
        F.collect_list(F.coalesce("i", "b")),
    ),
    "key": lambda f: f.groupBy((F.col("i") % 3).alias("i"), "s").count(),
    "text": lambda f: f.groupBy(F.expr("i % 3")).agg(F.expr("sum(i + 1) AS t")),
    "all": lambda f: f.agg(F.sum(F.col("i") + 1), F.max(F.col("l") - 1)),
    "several": lambda f: f.agg(F.count_distinct("i", "s"), F.expr("count(i, s)")),
    "alias": lambda f: f.alias("a").groupBy("a.s").agg(F.sum(F.col("a.i") * F.col("a.b"))),
    "join": lambda f: f.alias("l").join(
        f.alias("r"), (F.col("l.i") + 1 == F.col("r.l")) & (F.col("l.h") < F.col("r.h"))
    ).groupBy("l.s").agg(F.sum(F.col("l.i") + F.col("r.i"))),
    "using": lambda f: f.join(f.select(F.col("i").cast("long").alias("i")), "i", "full").count(),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=in_sql_text) if name in ("text", "several") else name
    for name in BY_EXPRESSION
])
def test_groups_and_joins_by_expressions_need_no_spark(updates, name):
    stages = stages_of(BY_EXPRESSION[name](updates)._node)
    assert stages and all(stage.portable for stage in stages)


@every_runner
def test_select_expr(spark, runner):
    """The results of PySpark's selectExpr, in all forms of its call, also after a join."""
    rows = [(1, "a"), (2, "b"), (None, "c"), (2, "b")]
    frame = spark.createDataFrame(rows, "n int, s string")
    pair = F.col("l.n") == F.col("r.n")
    ways = {
        "expressions": lambda f: f.selectExpr("n + 1 AS m", "upper(s) t", "n", "CAST(n AS string)"),
        "all": lambda f: f.selectExpr("*", "n IS NULL AS gone"),
        "list": lambda f: f.selectExpr(["s", "length(s) * 2 AS wide"]),
        "name": lambda f: f.selectExpr("s"),
        "join": lambda f: f.alias("l").join(f.alias("r"), pair).selectExpr("l.s", "r.n - 1 AS m"),
    }
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        collection, session = flow.input("rows", "n int, s string")
        outputs = {name: way(collection).keep() for name, way in ways.items()}
        session.insert(rows)
        session.close()
        flow.step()
        for name, way in ways.items():
            expected = way(frame)
            assert outputs[name].columns == expected.columns, name
            assert Counter(outputs[name].at().collect()) == Counter(expected.collect()), name


@pytest.mark.parametrize("text", ["1", "`1`", "upper(s)", "`upper(s)`", "a.b", "`a.b`", "N", " * "])
def test_select_expr_reads_sql_and_not_names(spark, text):
    """A column whose name is an expression does not hide the expression."""
    odd = "`1` int, s string, `upper(s)` string, a struct<b: int>, `a.b` int, n int"
    frame = spark.createDataFrame([(7, "x", "y", (3,), 4, 5, 0, 1)], f"{odd}, time int, diff int")
    actual = DiffFrame(frame).selectExpr(text).at(0)
    expected = frame.drop("time", "diff").selectExpr(text)
    assert (actual.columns, actual.collect()) == (expected.columns, expected.collect())


def test_select_expr_names_what_is_ambiguous(updates):
    joined = updates.alias("l").join(updates.alias("r"), F.col("l.i") == F.col("r.l"))
    with pytest.raises(SchemaError, match="i"):
        joined.selectExpr("i")


@every_runner
def test_overflow_leaves_the_state_as_it_was(spark, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        numbers, numbers_in = flow.input("numbers", "n int")
        result = numbers.withColumn("m", F.col("n") + 1).count().keep()
        numbers_in.insert([(1,)])
        numbers_in.advance_to(1)
        numbers_in.flush()
        flow.step()
        numbers_in.insert([(2**31 - 1,)])
        numbers_in.advance_to(2)
        numbers_in.flush()
        with pytest.raises(DiffOverflowError, match=r"\(n \+ 1\) leaves the range of int"):
            flow.step()
        assert [tuple(row) for row in result.at(0).collect()] == [(1, 2, 1)]


@every_runner
def test_what_is_not_understood_goes_to_spark(spark, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        words, words_in = flow.input("words", "w string, n int")
        upper = words.withColumn("n", F.col("n") + 1).withColumn("u", F.upper("w"))
        result = upper.where("n > 1").count().keep()
        words_in.insert([("a", 1), ("b", 0)])
        words_in.advance_to(1)
        words_in.flush()
        flow.step()
        assert [tuple(row) for row in result.at(0).collect()] == [("a", 2, "A", 1)]

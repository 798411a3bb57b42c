"""`session_window` merges rows in an aggregate of Spark; row by row it is no session."""

import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SchemaError

GAPS = {
    "static": lambda: F.session_window("ts", "5 minutes"),
    "dynamic": lambda: F.session_window(
        "ts", F.when(F.col("n") > 1, "5 minutes").otherwise("1 hour")
    ),
    "field": lambda: F.session_window("ts", "5 minutes")["start"],
    "text": lambda: F.expr("session_window(ts, '5 minutes')"),
}
USES = {
    "groupBy": lambda t, w: t.groupBy("n", w).agg(F.count("*")),
    "alone": lambda t, w: t.groupBy(w).count(),
    "rollup": lambda t, w: t.rollup("n", w).agg(F.count("*")),
    "cube": lambda t, w: t.cube("n", w).agg(F.count("*")),
    "withColumn": lambda t, w: t.withColumn("w", w),
    "select": lambda t, w: t.select("n", w.alias("w")),
    "where": lambda t, w: t.where(w.isNotNull()),
    "argument": lambda t, w: t.groupBy("n").agg(F.max(w)),
}


@pytest.mark.parametrize("use, gap, kind", [
    *[(use, "static", "timestamp") for use in USES],
    *[("groupBy", gap, "timestamp_ntz") for gap in GAPS],
])
def test_session_window_is_refused_by_name(spark, use, gap, kind):
    with Dataflow(spark) as flow:
        events, _ = flow.input("events", f"n long, ts {kind}")
        with pytest.raises(SchemaError, match="session_window, which is not supported"):
            USES[use](events, GAPS[gap]())


def test_time_windows_are_still_accepted(spark):
    with Dataflow(spark) as flow:
        events, _ = flow.input("events", "n long, ts timestamp")
        events.groupBy(F.window("ts", "5 minutes")).count()

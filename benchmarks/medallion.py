"""Fifteen views over seven keyed inputs, kept up to date hour by hour, compared with plain Spark.

    python benchmarks/medallion.py                          # 200,000 rows, 1,300 changes an hour
    python benchmarks/medallion.py --rows 10000 --changes 94 --hours 5

A shop's tables come as change data: each hour some rows are inserted, updated and deleted by key.
The views are those of a medallion pipeline: the latest row of a key, joins of up to five tables,
conditional sums, distinct counts, windows over weeks, and the trailing 24 hours. Each hour is one
step. Plain Spark computes all views from Parquet files of the same rows in the same session, and
every view is compared with it exactly, after the load and after the last hour. Quote the ratio:
absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import pyspark_diff
from measure import save, seconds, table
from pyspark_diff import Dataflow

#: The tables: schema, key, share of all rows, and shares of the changes that are inserts, updates
#: and deletes.
TABLES: dict[str, tuple[str, str, float, tuple[float, float, float]]] = {
    "clickstream": ("click long, customer long, product long, kind string, at timestamp_ntz",
                    "click", 0.55, (0.56, 0, 0.02)),
    "orders": ("order long, customer long, status string, at timestamp_ntz",
               "order", 0.1, (0.06, 0.09, 0.005)),
    "items": ("item long, order long, product long, quantity int, price decimal(10,2), "
              "discount decimal(4,2)", "item", 0.25, (0.15, 0.02, 0.01)),
    "products": ("product long, supplier long, category string, reorder int",
                 "product", 0.01, (0.001, 0.004, 0)),
    "inventory": ("stocktake long, product long, warehouse int, quantity int, at timestamp_ntz",
                  "stocktake", 0.04, (0.06, 0.005, 0)),
    "customers": ("customer long, segment string, region string", "customer", 0.0475,
                  (0.004, 0.01, 0)),
    "suppliers": ("supplier long, country string", "supplier", 0.0025, (0, 0.001, 0)),
}
#: The number of days of the rows that are loaded.
DAYS = 56
BEGIN = datetime(2026, 1, 5)
LOADED = BEGIN + timedelta(days=DAYS)
HOUR = timedelta(hours=1)
KINDS, STATUSES = ("view", "view", "view", "cart", "buy"), ("open", "paid", "sent", "returned")


class Shop:
    """The current tables. State: `hour` changes the tables.

    Parameters
    ----------
    rows : int
        Rows of all tables together.
    changes : int
        Changes per hour.
    """

    def __init__(self, rows: int, changes: int, seed: int = 7):
        self._random = np.random.default_rng(seed)
        self._changes = changes
        self._next = {name: 0 for name in TABLES}
        self.now = LOADED
        self.tables: dict[str, pa.Table] = {}
        sizes = {name: max(int(rows * share), 3) for name, (_, _, share, _) in TABLES.items()}
        # Rows of the other tables refer to rows of the first four.
        for name in ("suppliers", "products", "customers", "orders", *TABLES):
            if name not in self.tables:
                keys = self._new_keys(name, sizes[name])
                self.tables[name] = self._rows(name, keys, BEGIN, LOADED)

    def _new_keys(self, name: str, count: int) -> np.ndarray:
        first = self._next[name]
        self._next[name] += count
        return np.arange(first, first + count)

    def _rows(self, name: str, keys: np.ndarray, begin: datetime, end: datetime) -> pa.Table:
        """Rows of a table with these keys, and times of an interval."""
        random, count = self._random, keys.size
        moments = np.datetime64(begin, "us") + np.sort(
            random.integers(0, int((end - begin).total_seconds()), count)
        ).astype("timedelta64[s]")

        def choice(values: tuple[str, ...]) -> Any:
            return np.array(values)[random.integers(0, len(values), count)]

        def cents(low: int, high: int, scale: int) -> Any:
            return [Decimal(int(n)).scaleb(-scale) for n in random.integers(low, high, count)]

        def reference(other: str) -> Any:
            other_keys = self.tables[other].column(0).to_numpy()
            # Low keys are popular.
            return other_keys[(other_keys.size * random.random(count) ** 2).astype(int)]

        columns: dict[str, Callable[[], Any]] = {
            "customer": lambda: reference("customers"), "product": lambda: reference("products"),
            "order": lambda: reference("orders"), "supplier": lambda: reference("suppliers"),
            "kind": lambda: choice(KINDS), "status": lambda: choice(STATUSES),
            "category": lambda: choice(tuple(f"category {n}" for n in range(20))),
            "segment": lambda: choice(("home", "office", "trade")),
            "region": lambda: choice(("north", "south", "east", "west")),
            "country": lambda: choice(tuple(f"country {n}" for n in range(15))),
            "quantity": lambda: random.integers(1, 10, count),
            "warehouse": lambda: random.integers(0, 3, count),
            "reorder": lambda: random.integers(5, 20, count),
            "price": lambda: cents(100, 100_000, 2), "discount": lambda: cents(0, 30, 2),
            "at": lambda: moments,
        }
        text, key, _, _ = TABLES[name]
        arrow = arrow_schema(text)
        return pa.table(
            [pa.array(keys if field.name == key else columns[field.name](), field.type)
             for field in arrow], schema=arrow,
        )

    def hour(self) -> dict[str, tuple[pa.Table, pa.Table]]:
        """Return the upserts and the deleted keys of the next hour by table."""
        begin, self.now = self.now, self.now + HOUR
        changes = {}
        for name, (_, key, _, shares) in TABLES.items():
            added, updated, deleted = (round(self._changes * share) for share in shares)
            there = self.tables[name].column(key).to_numpy()
            touched = self._random.choice(
                there, min(updated + deleted, there.size), replace=False)
            gone, changed = touched[:deleted], touched[deleted:]
            upserts = pa.concat_tables([
                self._rows(name, self._new_keys(name, added), begin, self.now),
                self._updated(name, changed),
            ])
            rest = self.tables[name].filter(pc.invert(pc.is_in(
                self.tables[name].column(key), pa.array(touched))))
            self.tables[name] = pa.concat_tables([rest, upserts]).combine_chunks()
            changes[name] = upserts, pa.table({key: pa.array(gone, pa.int64())})
        return changes

    def _updated(self, name: str, keys: np.ndarray) -> pa.Table:
        """Return rows with other values for present keys. A row keeps its time."""
        rows, key = self.tables[name], TABLES[name][1]
        before = rows.filter(pc.is_in(rows.column(key), pa.array(keys)))
        after = self._rows(name, before.column(key).to_numpy(), BEGIN, LOADED)
        # An order keeps its customer, and an item its order.
        for column in ("at", "order", *["customer"] * (name == "orders")):
            if column in after.column_names and column != key:
                place = after.column_names.index(column)
                after = after.set_column(place, after.field(place), before.column(column))
        return after


def arrow_schema(text: str) -> pa.Schema:
    """The Arrow schema of one of `TABLES`."""
    kinds = {"long": pa.int64(), "int": pa.int32(), "string": pa.string(),
             "timestamp_ntz": pa.timestamp("us"), "decimal(10,2)": pa.decimal128(10, 2),
             "decimal(4,2)": pa.decimal128(4, 2)}
    return pa.schema([(name, kinds[kind]) for name, kind in map(str.split, text.split(", "))])


def views(
    tables: Mapping[str, Any], recent: Callable[[Any], Any], due: Any
) -> dict[str, Any]:
    """Return the views of collections or of frames.

    Parameters
    ----------
    tables : mapping of str to DiffFrame or DataFrame
    recent : callable
        The rows of the trailing 24 hours, by their column ``at``.
    due : DiffFrame or DataFrame
        One row: the time 24 hours ago.
    """
    clicks, orders, items, products, inventory, customers, suppliers = (
        tables[name] for name in TABLES)
    week, day = F.date_trunc("week", "at").alias("week"), F.to_date("at").alias("day")
    amount = (F.col("quantity") * F.col("price") * (1 - F.col("discount"))).alias("amount")
    lines = items.join(orders, "order").select(
        "item", "order", "product", "customer", "status", "at", "quantity", amount)
    named = lines.join(products, "product").drop("reorder")
    weekly = named.groupBy("category", "supplier", week).agg(
        F.sum("amount").alias("amount"), F.sum("quantity").alias("quantity"))
    categories = weekly.groupBy("category", "week").agg(F.sum("amount").alias("amount"))
    stock = _latest(inventory, "stocktake", "product", "warehouse")
    sold = lines.groupBy("product").agg(F.sum("quantity").alias("sold"))
    recent_clicks, recent_orders = recent(clicks), recent(orders)
    recent_lines = recent_orders.join(items, "order")
    orders_of = lines.groupBy("customer").agg(
        F.countDistinct("order").alias("orders"), F.countDistinct("product").alias("products"),
        F.sum("amount").alias("amount"), F.max("at").alias("last"))
    by_week = Window.partitionBy("supplier").orderBy("week")
    of_category = Window.partitionBy("category").orderBy("week")
    best = Window.partitionBy("category").orderBy(F.desc("sold"), "product")

    def when(condition: str, value: Any) -> Any:
        return F.sum(F.when(F.expr(condition), value).otherwise(0))

    return {
        "current_stock": stock,
        "last_click": _latest(clicks, "click", "customer"),
        "order_lines": named,
        "sales": named.join(suppliers, "supplier").join(customers, "customer").groupBy(
            "segment", "country", "category").agg(
                F.sum("amount").alias("amount"), F.count("*").alias("lines"),
                when("status = 'returned'", F.col("amount")).alias("returned"),
                when("status = 'open'", F.col("quantity")).alias("open")),
        "customer_360": customers.join(orders_of, "customer", "left").select(
            "customer", "segment", "region", F.coalesce("orders", F.lit(0)).alias("orders"),
            "products", "amount", "last"),
        "funnel": clicks.groupBy("product").agg(
            *(F.count_if(F.col("kind") == kind).alias(kind) for kind in ("view", "cart", "buy"))
        ).join(products.select("product", "category"), "product").join(sold, "product", "left"),
        "daily_visitors": clicks.groupBy(day, "kind").agg(
            F.countDistinct("customer").alias("customers"), F.count("*").alias("clicks")),
        "supplier_weeks": weekly.groupBy("supplier", "week").agg(
            F.sum("amount").alias("amount")).select(
                "supplier", "week", "amount", F.lag("amount").over(by_week).alias("before")),
        "category_weeks": categories.select(
            "category", "week", "amount",
            F.sum("amount").over(of_category.rowsBetween(-3, 0)).alias("four_weeks")),
        "trending": recent_clicks.groupBy("product").agg(
            F.count("*").alias("clicks"), F.countDistinct("customer").alias("customers")),
        "day_revenue": recent_lines.join(customers, "customer").groupBy("segment", "region").agg(
            F.sum(amount).alias("amount"), F.countDistinct("order").alias("orders")),
        "low_stock": stock.groupBy("product").agg(F.sum("quantity").alias("stock")).join(
            products, "product").where("stock < reorder").join(suppliers, "supplier"),
        "best_sellers": sold.join(products.select("product", "category"), "product").withColumn(
            "place", F.row_number().over(best)).where("place <= 5"),
        "overdue": orders.where("status = 'open'").crossJoin(due.hint("broadcast")).where(
            "at < due").join(customers, "customer").groupBy("region").agg(
                F.count("*").alias("orders"), F.min("at").alias("oldest")),
        "abandoned": recent_clicks.where("kind = 'cart'").select("customer", "product").distinct()
        .join(recent_lines.select("customer", "product"), ["customer", "product"], "left_anti"),
    }


def _latest(frame: Any, key: str, *columns: str) -> Any:
    """The latest row for some columns."""
    order = Window.partitionBy(*columns).orderBy(F.desc("at"), F.desc(key))
    return frame.withColumn("place", F.row_number().over(order)).where("place = 1").drop("place")


def program(flow: Dataflow) -> list[str]:
    """Define the dataflow, and return the names of its views."""
    tables = {name: flow.input(name, text, key=key)[0]
              for name, (text, key, _, _) in TABLES.items()}
    due = flow.clock("1 hour", start=LOADED - HOUR).selectExpr(
        "now - INTERVAL '23' HOUR AS due")
    outputs = views(tables, lambda rows: rows.expire_after("24 hours", "at"), due)
    for name, view in outputs.items():
        view.keep(name)
    return list(outputs)


def feed(flow: Dataflow, changes: Mapping[str, tuple[pa.Table, pa.Table]], now: datetime) -> None:
    """Process the changes before a time in one step."""
    for name, (upserts, deletes) in changes.items():
        if deletes.num_rows:
            flow.session(name).delete(deletes)
        if upserts.num_rows:
            flow.session(name).upsert(upserts)
    flow.advance_to(now)


def plain_views(spark: SparkSession, shop: Shop, folder: str) -> dict[str, DataFrame]:
    """The views in plain Spark, over Parquet files of the current tables."""
    tables = {}
    for name, rows in shop.tables.items():
        path = f"{folder}/{name}-{shop.now:%Y%m%d%H}.parquet"
        pq.write_table(rows, path)
        tables[name] = spark.read.parquet(path)
    due = shop.now - timedelta(hours=24)
    return views(tables, lambda rows: rows.where(F.col("at") >= F.lit(due)),
                 spark.createDataFrame([(due,)], "due timestamp_ntz"))


def recompute(frames: Mapping[str, DataFrame]) -> None:
    """Compute all views with plain Spark."""
    for frame in frames.values():
        frame.write.format("noop").mode("overwrite").save()


def check(flow: Dataflow, frames: Mapping[str, DataFrame]) -> dict[str, int]:
    """Raise an error if a view differs from plain Spark's. Return the rows of each view."""
    counts = {}
    for name, frame in frames.items():
        expected = sorted(map(repr, frame.collect()))
        answer = sorted(map(repr, flow[name].at().select(frame.columns).collect()))
        if answer != expected:
            raise SystemExit(f"the view {name} has {len(answer)} rows, unlike plain Spark's "
                             f"{len(expected)}")
        counts[name] = len(expected)
    return counts


def run(
    spark: SparkSession, rows: int, changes: int, hours: int, folder: str, runner: str = "auto",
    repeats: int = 2,
) -> dict[str, Any]:
    """Load the tables, process the hours one by one, and compare.

    Plain Spark recomputes the views `repeats` times before the hours and as often after them.
    """
    shop = Shop(rows, changes)
    nothing = {key: pa.table({key: pa.array([], pa.int64())}) for _, key, _, _ in TABLES.values()}
    with Dataflow(spark, time_type="timestamp_ntz", runner=runner) as flow:
        program(flow)
        first = {name: (rows_, nothing[TABLES[name][1]]) for name, rows_ in shop.tables.items()}
        load, _ = seconds(lambda: feed(flow, first, shop.now))
        frames = plain_views(spark, shop, folder)
        check(flow, frames)
        plain = [seconds(lambda: recompute(frames))[0] for _ in range(repeats)]
        took, counts = [], []
        for _ in range(hours):
            hour = shop.hour()
            counts.append(sum(a.num_rows + b.num_rows for a, b in hour.values()))
            took.append(seconds(lambda: feed(flow, hour, shop.now))[0])
        explanation = flow.explain()
        frames = plain_views(spark, shop, folder)
        view_rows = sum(check(flow, frames).values())
        plain += [seconds(lambda: recompute(frames))[0] for _ in range(repeats)]
        expensive = sorted(explanation.operators, key=lambda operator: -operator.cost.seconds)[:10]
        operators = [
            {"operator": operator.name, "ms": round(operator.cost.seconds * 1e3, 2),
             "in": operator.cost.rows_in, "touched": operator.cost.rows_read,
             "out": operator.cost.rows_out}
            for operator in expensive
        ]
        fallbacks = {str(kind): number for kind, number in explanation.fallbacks.items()}
    hour_s, plain_s = statistics.median(took), statistics.median(plain)
    return {
        "rows": sum(rows.num_rows for rows in shop.tables.values()), "view_rows": view_rows,
        "changes": int(statistics.median(counts)), "hours": hours,
        "load_seconds": round(load, 2), "hour_seconds": round(hour_s, 4),
        "hour_most": round(max(took), 4), "plain_seconds": round(plain_s, 2),
        "ratio": round(plain_s / hour_s, 1),
        "operators": operators, "fallbacks": fallbacks,
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="rows of all tables")
    parser.add_argument("--changes", type=int, default=1_300, help="changes of an hour")
    parser.add_argument("--hours", type=int, default=20)
    parser.add_argument("--runner", default="auto", choices=["auto", "local", "spark"])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help="where tables go; a temporary one if not given")
    options = parser.parse_args()
    spark = pyspark_diff.session("benchmark medallion")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = run(spark, options.rows, options.changes, options.hours, folder, options.runner)
    operators = result["operators"]
    print(table([{name: value for name, value in result.items()
                  if name not in ("operators", "fallbacks")}]))
    print(table(operators))
    for kind, number in result["fallbacks"].items():
        print(number, kind)
    if options.json:
        save(options.json, {"runs": [result]})


if __name__ == "__main__":
    main()

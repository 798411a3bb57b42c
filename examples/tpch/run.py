"""TPC-H queries as views that are kept up to date while the tables change, record by record.

    spark-submit examples/tpch/run.py 3 15 --scale 0.01 --physical 10000 --check
    spark-submit examples/tpch/run.py --scale 0.01 --logical 1000 --deletes --check

`--logical` is the number of rounds of the stream (see `tpch_stream.py`) at one logical time, and
`--physical` the number in one step. The answers at a time do not depend on the latter. With
`--store` the state is kept in a folder, and a later run of the same stream continues from the end
of this one. `--until` ends a run at some round.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import math
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Iterable, Iterator

import pyarrow.parquet as pq
from tqdm.auto import tqdm

import pyspark_diff
from pyspark_diff import Dataflow
from tpch_stream import CACHE, TABLES, Stream, generated

QUERIES = range(1, 23)


def module(number: int) -> Any:
    """The file of a query."""
    return importlib.import_module(f"q{number:02}")


def sql(number: int) -> str:
    """The SQL of a query, from its docstring."""
    return inspect.getdoc(module(number)).split("\n\n", 1)[1]


def columns_of(numbers: list[int], folder: Path) -> dict[str, list[str]]:
    """The columns that some queries read, by table."""
    words = set(re.findall(r"\w+", " ".join(map(sql, numbers))))
    columns = {}
    for table in TABLES:
        if any(table in inspect.signature(module(number).query).parameters for number in numbers):
            there = pq.read_schema(folder / f"{table}.parquet").names
            columns[table] = [name for name in there if name in words] or there[:1]
    return columns


def program(numbers: list[int], schemas: dict[str, str]) -> Any:
    """The program that keeps some queries over the tables."""
    def write(flow: Dataflow) -> None:
        tables = {name: flow.input(name, schema)[0] for name, schema in schemas.items()}
        for number in numbers:
            query = module(number).query
            query(*(tables[name] for name in inspect.signature(query).parameters)).keep(
                f"q{number:02}")

    return write


def schema_of(stream: Stream, spark: Any) -> dict[str, str]:
    """The columns of each input."""
    return {
        name: ", ".join(
            f"{f.name} {f.dataType.simpleString()}"
            for f in spark.createDataFrame(table.records.slice(0, 1)).schema
        )
        for name, table in stream.changes.items()
    }


def steps(first: int, stop: int, size: int, also: Iterable[int] = ()) -> Iterator[tuple[int, int]]:
    """The first and the last round of each step, with more ends at some rounds."""
    ends = sorted({*range(first + size, stop, size), *also, stop} - set(range(first + 1)))
    return zip([first, *ends], ends)


def feed(flow: Dataflow, stream: Stream, first: int, stop: int, logical: int) -> None:
    """Feed some rounds, and process them."""
    for name, table in stream.changes.items():
        flow.session(name).update(table.between(first, stop, logical))
    flow.advance_to(complete(stream, stop, logical))


def complete(stream: Stream, stop: int, logical: int) -> int:
    """The first incomplete time after all rounds before `stop`."""
    return stop // logical if stop < stream.rounds else -(-stop // logical)


def expected(number: int, stream: Stream, stop: int) -> tuple[list[tuple[Any, ...]], set[int]]:
    """The answer over the records before a round, by DuckDB from scratch, and the places of its
    floating-point columns, because DuckDB divides so."""
    import duckdb  # an optional package

    with duckdb.connect() as database:
        for name, table in stream.changes.items():
            database.register(name, table.before(stop))
        answer = database.sql(sql(number))
        inexact = {place for place, kind in enumerate(answer.types) if str(kind) == "DOUBLE"}
        return answer.fetchall(), inexact


def agrees(number: int, stream: Stream, stop: int, answer: list[Any]) -> bool:
    """Whether an answer equals DuckDB's over the records before a round, row by row."""
    wanted, inexact = expected(number, stream, stop)

    def parts(row: Any) -> tuple[list[str], list[float]]:
        """The exact values, and the rounded ones."""
        rounded = [place in inexact and value is not None for place, value in enumerate(row)]
        return [
            f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)
            for value, is_rounded in zip(row, rounded) if not is_rounded
        ], [float(value) for value, is_rounded in zip(row, rounded) if is_rounded]

    ours, theirs = (sorted(map(parts, rows)) for rows in (answer, wanted))
    return [same for same, _ in ours] == [same for same, _ in theirs] and all(
        math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)
        for (_, some), (_, others) in zip(ours, theirs) for a, b in zip(some, others)
    )


def check(flow: Dataflow, numbers: list[int], stream: Stream, stop: int, logical: int) -> None:
    """Compare the answers before a round with DuckDB's; end the program if one differs."""
    for number in numbers:
        answer = flow[f"q{number:02}"].at().collect()
        if not agrees(number, stream, complete(stream, stop, logical) * logical, answer):
            raise SystemExit(f"q{number:02} differs from DuckDB's after {stop} rounds")


def main(arguments: list[str] | None = None) -> None:
    """Run queries over the stream from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", type=int, metavar="QUERY", default=[],
                        help="their numbers; all if there are none")
    parser.add_argument("--scale", type=float, default=0.01, help="scale factor of the tables")
    parser.add_argument("--logical", type=int, default=1, metavar="ROUNDS",
                        help="rounds at one logical time")
    parser.add_argument("--physical", type=int, default=10_000, metavar="ROUNDS",
                        help="rounds in one step")
    parser.add_argument("--deletes", action="store_true",
                        help="delete orders with their lineitems, and insert them again")
    parser.add_argument("--until", type=int, metavar="ROUND", help="stop there")
    parser.add_argument("--store", metavar="FOLDER", help="keep the state, and go on with it")
    parser.add_argument("--table", metavar="NAME",
                        help="save each answer, with its changes, as a table NAME_q01 and so on")
    parser.add_argument("--check", type=int, nargs="?", const=0, metavar="TIMES",
                        help="compare the answers with DuckDB's at the end, and at so many rounds "
                        "on the way")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where generated tables are kept")
    options = parser.parse_args(arguments)
    numbers = options.queries or list(QUERIES)
    if not set(numbers) <= set(QUERIES):
        parser.error(f"TPC-H has queries 1 to 22, not {sorted(set(numbers) - set(QUERIES))}")
    if options.check is not None and importlib.util.find_spec("duckdb") is None:
        parser.error("--check needs duckdb: pip install duckdb")  # before hours of work
    if options.scale <= 0:
        parser.error("--scale is a positive number, as 0.01")
    if min(options.logical, options.physical) < 1:
        parser.error("--logical and --physical are positive numbers of rounds")
    if options.store and options.physical % options.logical:
        parser.error("with --store a step ends with a logical time, so that the next run knows how "
                     "far this one has come: let --physical be a multiple of --logical")
    spark = pyspark_diff.session("tpch")
    columns = columns_of(numbers, generated(options.scale, options.cache))
    stream = Stream(options.scale, columns, options.deletes, options.cache)
    end = stream.rounds if options.until is None else min(options.until, stream.rounds)
    if options.store and end < stream.rounds and end % options.logical:
        parser.error(f"with --store --until is a multiple of --logical, {options.logical}: what "
                     "comes later at the same time would be given twice")
    rounds = range(0, end, options.logical)
    looks = random.Random(7).sample(rounds, min(options.check or 0, len(rounds)))
    write = program(numbers, schema_of(stream, spark))
    with contextlib.ExitStack() as stack:
        if options.store:
            # Another stream has other rounds.
            name = f"sf{options.scale:g}-{options.logical}" + "-deletes" * options.deletes
            path = str(Path(options.store, name))
            flow = stack.enter_context(Dataflow.open(path, write, spark=spark))
        else:
            flow = stack.enter_context(Dataflow(spark))
            write(flow)
        begun = min(flow.session(name).time() for name in columns) * options.logical
        begun = min(begun, stream.rounds)
        if begun > end:
            parser.error(f"the store has come to round {begun} already; --until is a later one")
        bar = stack.enter_context(tqdm(total=end, initial=begun, unit="round", disable=None))
        for first, stop in steps(begun, end, options.physical, looks):
            feed(flow, stream, first, stop, options.logical)
            bar.update(stop - first)
            if stop in looks and stop < end:
                check(flow, numbers, stream, stop, options.logical)
        if options.check is not None:
            # Also if an earlier run has brought a store up to the end.
            check(flow, numbers, stream, end, options.logical)
        for number in numbers:
            answer = flow[f"q{number:02}"]
            if options.table:
                answer.save_as_table(f"{options.table}_q{number:02}")
            print(f"q{number:02}: {answer.at().count():,} rows after {end:,} rounds")


if __name__ == "__main__":
    main()

"""Everyone's manager's manager, in a company that is reorganised all the time.

The program is one join: ``manages`` by its person, with itself by its manager. It is written once,
and its answer is exact at every logical time while people change their managers.

    python examples/skip_level.py                              # a small company, every update shown
    python examples/skip_level.py --people 100000 --changes 20000 --batch 1000 --check
    spark-submit examples/skip_level.py --people 10000000 --changes 9999999
    python examples/skip_level.py --people 1000000 --interactive    # make the changes yourself

People are numbered from 0, and ``person // 2`` manages a person, so 0 manages itself. Each change
moves one person from there to ``person // 3`` at a logical time of its own. One physical step
processes ``--batch`` changes, or all of them. The batch size changes the cost and never the answer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tqdm.auto import tqdm

import pyspark_diff
from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.errors import DiffError

#: Companies with at most this many people have every update row shown.
SMALL = 100
#: More changes than these in one batch are made by Spark and not on the driver.
ON_DRIVER = 1_000_000

HELP = """\
  move PERSON MANAGER   give a person another manager
  add PERSON MANAGER    a new person
  remove PERSON         a person leaves; those it manages have no manager's manager then
  who PERSON            the manager's manager of a person
  quit"""


def skip_levels(manages: DiffFrame) -> DiffFrame:
    """The manager's manager of everyone: columns ``boss`` and ``person``."""
    bosses = manages.toDF("boss", "manager")
    return bosses.join(manages, "manager").select("boss", "person")


def program(flow: Dataflow) -> DiffFrame:
    """Define the input ``manages``; return the manager's manager of everyone."""
    return skip_levels(flow.input("manages", "manager long, person long")[0])


def questions(flow: Dataflow, skip: DiffFrame) -> DiffFrame:
    """Define the input ``asked``; return the manager's manager of the people there."""
    asked, _ = flow.input("asked", "person long")
    return skip.join(asked, "person").select("boss", "person")


def company(spark: SparkSession, people: int, moved: int = 0) -> DataFrame:
    """Who manages whom, after the first people have moved: columns ``manager`` and ``person``."""
    manager = F.expr(f"CASE WHEN id <= {moved} THEN id DIV 3 ELSE id DIV 2 END")
    return spark.range(people).select(manager.alias("manager"), F.col("id").alias("person"))


def moves(spark: SparkSession, first: int, count: int) -> DataFrame | pa.Table:
    """Update rows of some changes: at time ``person`` a person leaves one manager for another."""
    if count > ON_DRIVER:
        people = spark.range(first, first + count)
        parts = [
            people.selectExpr(f"id DIV {by} manager", "id person", "id time", f"{diff}L diff")
            for by, diff in ((2, -1), (3, 1))
        ]
        return parts[0].union(parts[1])
    person = np.arange(first, first + count)
    return pa.table(
        {
            "manager": np.concatenate((person // 2, person // 3)),
            "person": np.concatenate((person, person)),
            "time": np.concatenate((person, person)),
            "diff": np.repeat([-1, 1], count),
        }
    )


class Total:
    """The number of pairs, from their diffs alone."""

    def __init__(self) -> None:
        self.pairs = 0

    def take(self, updates: pa.Table) -> None:
        """Follow the update rows of one step: a count, its time and its diff."""
        _, count, _, diff = (column.to_numpy() for column in updates.columns)
        self.pairs += int(np.sum(count * diff))

    def follow(self, collection: DiffFrame) -> DiffFrame:
        """Count the records of a collection: one constant for each, so that all are made."""
        ones = collection.select(F.lit(1).alias("one")).count()
        return ones.inspect(self.take, by_table=True)


def show(record: tuple[int, int], at: int, diff: int) -> None:
    """Print one update row."""
    print(f"  {tuple(record)} {at} {diff:+d}")


def run_changes(spark: SparkSession, options: argparse.Namespace) -> None:
    """Load a company, then move people, a batch at a time."""
    people = options.people
    changes = min(options.changes, people - 1)
    batch = options.batch or max(changes, 1)
    small = people <= SMALL
    total = Total()
    with Dataflow(spark) as flow:
        skip, manages_in = program(flow), flow.session("manages")
        counted = total.follow(skip)
        if small:
            skip.consolidate().inspect(show)
        if options.check:
            skip.keep()  # so that the pairs can be read
        probes = [skip.probe(), counted.probe()]

        def step() -> None:
            now = manages_in.time()
            flow.step_while(lambda: any(probe.less_than(now) for probe in probes))

        started = time.perf_counter()
        manages_in.insert(company(spark, people))
        manages_in.advance_to(1)
        manages_in.flush()
        if small:
            print("(boss, person) time diff")
        step()
        print(f"loaded {people:,} people in {time.perf_counter() - started:.2f} s")
        print(f"  {total.pairs:,} pairs")

        took = []
        with tqdm(total=changes, unit=" changes", disable=small) as bar:
            for first in range(1, changes + 1, batch):
                count = min(batch, changes + 1 - first)
                started = time.perf_counter()
                manages_in.update(moves(spark, first, count))
                manages_in.advance_to(first + count)
                manages_in.flush()
                step()
                took.append(time.perf_counter() - started)
                bar.update(count)
        if changes:
            print(
                f"{changes:,} changes in {sum(took):.2f} s: {len(took):,} batches of up to "
                f"{batch:,}, {statistics.median(took) * 1e3:,.1f} ms a batch (median), "
                f"{sum(took) / changes * 1e6:,.1f} µs a change"
            )
            print(f"  {total.pairs:,} pairs")
        if options.check:
            check(skip.at(), company(spark, people, changes), total.pairs)


def check(found: DataFrame, manages: DataFrame, counted: int) -> None:
    """Compare the pairs, and our count of them, with plain Spark's own self-join."""
    started = time.perf_counter()
    on = F.col("a.person") == F.col("b.manager")
    joined = manages.alias("a").join(manages.alias("b"), on).select("a.manager", "b.person")
    both = found.select("boss", "person", F.lit(1).alias("side")).union(
        joined.select("manager", "person", F.lit(-1))
    )
    wrong = both.groupBy("boss", "person").agg(F.sum("side").alias("more")).where("more != 0")
    differ, expected = wrong.count(), joined.count()
    same = differ == 0 and counted == expected
    print(
        f"plain Spark's self-join: {expected:,} pairs, {'the same' if same else 'NOT the same'} "
        f"({time.perf_counter() - started:.2f} s)"
    )
    if not same:
        raise SystemExit(f"{differ:,} pairs differ; {counted:,} were counted")


class Office:
    """A company that a user changes at a prompt. Its state: the manager of each person."""

    def __init__(self, flow: Dataflow, people: int):
        self._flow = flow
        self._people = people
        self._changed: dict[int, int | None] = {}
        self._rows: list[str] = []
        self._answers: list[int] = []
        skip = program(flow)
        answers = questions(flow, skip)
        self._manages_in, self._asked_in = flow.session("manages"), flow.session("asked")
        skip.consolidate().inspect(self._show, by_table=True)
        answers.inspect(self._answer)
        self._probes = [skip.probe(), answers.probe()]
        self._loaded = False

    def load(self, spark: SparkSession) -> float:
        """Take everyone in; returns the seconds it took."""
        self._manages_in.insert(company(spark, self._people))
        took = self._step()
        self._loaded = True
        return took

    def manager(self, person: int) -> int | None:
        """Who manages a person now."""
        if person in self._changed:
            return self._changed[person]
        return person // 2 if 0 <= person < self._people else None

    def obey(self, line: str) -> None:
        """Run one line of input.

        Raises
        ------
        ValueError
            If the line is not valid. The company is unchanged then.
        """
        command, *words = line.split()
        arguments = {"move": 2, "add": 2, "remove": 1, "who": 1}.get(command)
        if arguments is None:
            raise ValueError(f"{command!r} is not one of move, add, remove, who, quit\n{HELP}")
        numbers = [_number(word) for word in words]
        if len(numbers) != arguments:
            wanted = "PERSON MANAGER" if arguments == 2 else "PERSON"
            raise ValueError(f"write: {command} {wanted}")
        person, old = numbers[0], self.manager(numbers[0])
        if command == "add" and old is not None:
            raise ValueError(f"{person} is there already, managed by {old}")
        if command != "add" and old is None:
            raise ValueError(f"there is no {person}")
        if command == "who":
            self._who(person)
        else:
            self._change(person, old, numbers[1] if arguments == 2 else None)

    def _change(self, person: int, old: int | None, new: int | None) -> None:
        if old is not None:
            self._manages_in.remove([(old, person)])
        if new is not None:
            self._manages_in.insert([(new, person)])
        took = self._step()
        self._changed[person] = new
        for row in self._rows:
            print(row)
        print(f"  {len(self._rows):,} updates in {took * 1e3:.1f} ms")
        self._rows.clear()

    def _who(self, person: int) -> None:
        """Answer a question. Questions are an input, which is joined with the pairs."""
        self._asked_in.insert([(person,)])
        took = self._step()
        names = ", ".join(str(boss) for boss in sorted(self._answers)) or "nobody"
        print(f"  {names} ({took * 1e3:.1f} ms)")
        self._asked_in.remove([(person,)])
        self._step()
        self._answers.clear()

    def _step(self) -> float:
        """Process the pending input, at a time of its own."""
        started = time.perf_counter()
        then = self._manages_in.time() + 1
        for session in (self._manages_in, self._asked_in):
            session.advance_to(then)
            session.flush()
        self._flow.step_while(lambda: any(probe.less_than(then) for probe in self._probes))
        return time.perf_counter() - started

    def _show(self, updates: pa.Table) -> None:
        if self._loaded:
            rows = zip(*(column.to_pylist() for column in updates.columns))
            self._rows += [f"  {(boss, person)} {at} {diff:+d}" for boss, person, at, diff in rows]

    def _answer(self, record: tuple[int, int], at: int, diff: int) -> None:
        if diff > 0:
            self._answers.append(record[0])


def _number(word: str) -> int:
    try:
        number = int(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a number; people are numbers") from None
    if not 0 <= number < 2**63:
        raise ValueError(f"{word} is out of range; people are numbered from 0")
    return number


def run_interactive(spark: SparkSession, people: int) -> None:
    """A prompt: each line changes the company, and shows the updates of its answer."""
    with Dataflow(spark) as flow:
        office = Office(flow, people)
        print(f"loaded {people:,} people in {office.load(spark):.2f} s")
        print(f"{HELP}\n(boss, person) time diff")
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return
            except UnicodeDecodeError as error:
                print(f"  error: {error}")
                continue
            if line == "quit":
                return
            if not line:
                continue
            try:
                office.obey(line)
            except (ValueError, DiffError) as error:
                print(f"  error: {error}")


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=10, help="people of the company")
    parser.add_argument("--changes", type=int, default=5, help="how many change their manager")
    parser.add_argument("--batch", type=int, help="changes in one physical step; all if not given")
    parser.add_argument("--check", action="store_true", help="compare the end with plain Spark")
    parser.add_argument("--interactive", action="store_true", help="make the changes yourself")
    options = parser.parse_args(arguments)
    if options.people < 1 or options.changes < 0 or (options.batch or 1) < 1:
        parser.error("--people must be at least 1, --changes at least 0, and --batch positive")
    if options.interactive and "PYSPARK_GATEWAY_PORT" in os.environ:
        parser.error("spark-submit does not hand on what is typed; run --interactive with python")
    spark = pyspark_diff.session("skip level")
    spark.sparkContext.setLogLevel("ERROR")
    if options.interactive:
        run_interactive(spark, options.people)
    else:
        run_changes(spark, options)


if __name__ == "__main__":
    main()

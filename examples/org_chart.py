"""The salaries and the number of all people below each manager, at every level of a company.

The answer is exact for each manager, at every logical time, while people move and salaries change.
It takes sums inside of a recursion that is as deep as the company has levels. The recursive SQL of
Spark allows no aggregates there, and stops after 100 levels by default.

    python examples/org_chart.py                                # a small company, all updates shown
    python examples/org_chart.py --nodes 100000 --levels 150 --changes 100 --batch 50
    spark-submit examples/org_chart.py --edges company.txt

A file has lines "manager person salary"; a line that begins with # is a comment. A person without a
manager is at the top; without salaries everyone earns 1. Each change is at a logical time of its
own: a person gets a raise, or moves to another manager with everyone below. One physical step
processes ``--batch`` changes. The batch size changes the cost and never the answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow, DiffFrame
from reachability import make_changes, show_iterations, step

#: Companies of at most so many people print every update, others some of the first change.
SMALL = 100

Company = dict[int, tuple[int | None, int]]  # from a person to its manager and its salary


def below(employees: DiffFrame) -> DiffFrame:
    """For each manager the salaries and the number of everyone below, directly or not."""
    head = F.lit(1).cast("long").alias("heads")
    own = employees.select("id", F.col("salary").alias("total"), head)
    managed = employees.where("manager IS NOT NULL").select("id", "manager")

    def one_level_up(sums: DiffFrame) -> DiffFrame:
        reports = sums.join(managed, "id").select("manager", "total", "heads").toDF(*sums.columns)
        parts = own.concat(reports).groupBy("id")
        return parts.agg(F.sum("total").alias("total"), F.sum("heads").alias("heads"))

    # The sums of a person above themselves would grow for ever.
    sums = own.iterate(one_level_up, max_iterations=10_000, name="org chart")
    managers = sums.where("heads > 1").join(employees.select("id", "salary"), "id")
    total, heads = F.col("total") - F.col("salary"), F.col("heads") - 1
    return managers.select("id", total.alias("total"), heads.alias("heads"))


def program(flow: Dataflow) -> DiffFrame:
    """Define the input ``employees``; return the sums below each manager."""
    employees, _ = flow.input("employees", "id long, manager long, salary long")
    return below(employees).consolidate()


def read_company(path: str) -> Company:
    """A company from a text file."""
    rows = np.loadtxt(path, dtype=np.int64, ndmin=2).tolist()
    tops: Company = {manager: (None, 1) for manager, *_ in rows}
    return tops | {person: (manager, *(salary or [1])) for manager, person, *salary in rows}


def random_company(people: int, levels: int, seed: int) -> Company:
    """A company with one person at the top, and about as many at each of the other levels."""
    random = np.random.default_rng(seed)
    level = np.array([0, *(1 + np.arange(people - 1) * (levels - 1) // max(people - 1, 1))])
    first = np.searchsorted(level, level)  # of the people at the same level
    managers = random.integers(np.searchsorted(level, level[1:] - 1), first[1:]).tolist()
    return dict(enumerate(zip([None, *managers], random.integers(30, 100, people).tolist())))


def is_below(company: Company, person: int | None, other: int) -> bool:
    """Whether someone is, or works below, another one."""
    while person not in (other, None):
        person = company[person][0]
    return person == other


def changed(company: Company, count: int, seed: int) -> Iterator[list[tuple]]:
    """Update rows of each change, a move or a raise. The company is changed as well."""
    random = np.random.default_rng(seed + 1)
    people = [person for person, (manager, _) in company.items() if manager is not None]
    for at in range(1, count + 1 if people else 1):
        person, *others = (people[i] for i in random.integers(len(people), size=20))
        manager, salary = company[person]
        above = (company[other][0] for other in others)
        moves = (new for new in above if new != manager and not is_below(company, new, person))
        new = next(moves, None) if at % 2 else None
        company[person] = (manager, salary + 10) if new is None else (new, salary)
        yield [(person, manager, salary, at, -1), (person, *company[person], at, 1)]


def show(updates: pa.Table) -> None:
    """Print update rows: a manager, and the salaries and the number of the people below."""
    print("(manager, total, heads) time diff")
    order = [(name, "ascending") for name in ("time", "id", "diff")]
    for *record, at, diff in zip(*(c.to_pylist() for c in updates.sort_by(order).columns)):
        print(f"  {tuple(record)} {at} {diff:+d}")


def show_top(company: Company, updates: pa.Table) -> None:
    """Print the salaries and the number of people below each top manager after all updates."""
    for person in [person for person, (manager, _) in company.items() if manager is None][:10]:
        _, total, heads, _, diff = (
            column.to_numpy() for column in updates.filter(pc.field("id") == person).columns
        )
        print(f"  {person} is above {np.sum(heads * diff):,}, who earn {np.sum(total * diff):,}")


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", help='company: a text file with lines "manager person salary"')
    parser.add_argument("--nodes", type=int, default=12, help="people of a random company")
    parser.add_argument("--levels", type=int, default=4, help="levels of a random company")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--changes", type=int, default=4, help="moves and raises")
    parser.add_argument("--batch", type=int, help="changes in one physical step; all if not given")
    options = parser.parse_args(arguments)
    if not 2 <= options.levels <= options.nodes or (options.batch or 1) < 1:
        parser.error("--levels is from 2 to --nodes, and --batch at least 1")
    spark = pyspark_diff.session("org chart")
    spark.sparkContext.setLogLevel("ERROR")
    company = random_company(options.nodes, options.levels, options.seed)
    if options.edges:
        company = read_company(options.edges)
    rows = [(person, *fields) for person, fields in company.items()]
    changes = list(changed(company, options.changes, options.seed))
    steps: list[pa.Table] = []
    with Dataflow(spark) as flow:
        program(flow).inspect(steps.append, by_table=True)
        employees_in = flow.session("employees")
        employees_in.insert(rows)
        print(f"loaded {len(rows):,} people in {step(flow, employees_in, 1):.2f} s")
        show_top(company, steps[0])
        show_iterations(flow)
        make_changes(flow, employees_in, changes, options.batch)
    updates = pa.concat_tables(steps)
    show_top(company, updates)
    if len(company) <= SMALL:
        show(updates)
    elif changes:
        (person, old, *_), (_, new, *_) = changes[0]
        first = updates.filter(pc.field("time") == 1)
        print(f"{person} moves from {old} to {new}: {first.num_rows:,} updates of totals, such as")
        show(first.slice(0, 10))


if __name__ == "__main__":
    main()

"""The table of bad inputs and faults, over a store that each step opens again.

    an input that a dataflow without a store refuses is refused with one, and commits nothing
    an accepted input has the same result after the store was opened again

A row of the table is a test here, or `ELSEWHERE` names its tests.
"""

from __future__ import annotations

import datetime
import math
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import (
    DamagedStateError,
    Dataflow,
    DiffError,
    DiffOverflowError,
    FormatError,
    InvalidDiffError,
    NegativeMultiplicityError,
    NonDeterministicError,
    NotReadableError,
    ReservedNameError,
    SchemaError,
    StaleWarning,
    StepError,
    StorageError,
    TimeRegressionError,
    UnsupportedTypeError,
)
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.errors import ProgramChangedError
from pyspark_diff.trace import manifest
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.roots import objects_at

#: Rows that other tests prove.
ELSEWHERE = {
    9: ["test_stored_cases.py::test_row_07"],
    12: ["test_reopening.py::test_reopened_while_inputs_lag"],
    20: ["test_stored_cases.py::test_row_13"],
    29: ["test_reopening.py::test_reopened_on_the_driver",
         "test_commits.py::test_retirement_that_is_killed_anywhere_is_done_again"],
    32: ["test_damage.py::test_processes_that_write_one_store",
         "test_damage.py::test_threads_that_write_one_store",
         "test_commits.py::test_phases_of_two_writers_interleaved"],
    33: ["test_damage.py::test_a_writer_that_was_paused_in_a_step_has_lost_the_store",
         "test_commits.py::test_a_sleeper_cannot_create_an_old_number_anew"],
    34: ["test_objects.py::test_a_file_that_cannot_be_written_leaves_nothing"],
    35: ["test_damage.py::test_what_is_damaged_is_found_or_makes_no_difference"],
    36: ["test_damage.py::test_what_is_damaged_is_found_or_makes_no_difference"],
    38: ["test_blueprint.py::test_programs_that_changed_keep_what_did_not"],
    39: ["test_vacuum.py::test_what_is_held_stays_and_can_be_read",
         "test_vacuum.py::test_a_vacuum_that_is_killed_anywhere_is_run_again"],
    40: ["test_commits.py::test_a_hostile_manifest_is_refused",
         "test_hostile_stores.py::test_a_hostile_commit_ends_in_an_error_of_ours"],
    41: ["test_hostile_stores.py::test_nothing_is_unpickled_or_evaluated",
         "test_hostile_stores.py::test_a_hostile_commit_ends_in_an_error_of_ours"],
    43: ["test_hostile_stores.py::test_no_credentials_are_told",
         "test_objects.py::test_credentials_in_a_url_are_refused_and_not_repeated"],
    45: ["test_damage.py::test_a_long_run_is_what_a_model_says"],
}
#: The rows of the table that a store may affect.
ROWS = {*range(1, 26), *range(29, 44), *range(45, 48)}


def test_every_row_is_proved():
    here = {int(name[9:11]) for name in globals() if name.startswith("test_row_")}
    assert here | set(ELSEWHERE) == ROWS
    for tests in ELSEWHERE.values():
        for test in tests:
            file, _, name = test.partition("::")
            (path,) = Path(__file__).parents[1].glob(f"*/{file}")
            assert f"def {name}" in path.read_text()


class Stored:
    """A store that each step opens again."""

    def __init__(self, spark, root, program, **options):
        self.spark, self.root, self.program, self.options = spark, str(root), program, options

    def open(self, **options):
        return Dataflow.open(
            self.root, self.program, spark=self.spark, runner="local",
            **{"buckets": 2, **self.options, **options},
        )

    def step(self, rows=(), gone=(), to=None):
        """Insert and remove rows, and advance by one time."""
        with self.open() as flow:
            session = flow.session("in")
            if rows:
                session.insert(rows)
            if gone:
                session.remove(gone)
            flow.advance_to(session.time() + 1 if to is None else to)

    def rows(self, name="out", **options):
        with self.open() as flow:
            answer = Counter(map(tuple, flow[name].at(**options).collect()))
        with StateReader(self.root, spark=self.spark) as reader:
            again = Counter(map(tuple, reader[name].at(**options).collect()))
        assert sorted(map(repr, again.elements())) == sorted(map(repr, answer.elements()))
        return answer

    def commits(self):
        return Commits(objects_at(self.root)).latest().number


@pytest.fixture
def stored(spark, tmp_path):
    def make(program, **options):
        return Stored(spark, tmp_path / "store", program, **options)

    return make


def counts(schema, *columns):
    """A program that counts the records of an input, or the values of some columns."""

    def program(flow):
        frame, _ = flow.input("in", schema)
        frame.select(*columns or ["*"]).count().keep("out")

    return program


def test_row_01_null_keys_are_one_group_and_match_nothing(stored):
    def program(flow):
        frame, _ = flow.input("in", "k long, v long")
        frame.select("k").count().keep("out")
        frame.join(frame.toDF("k", "w"), "k").keep("joined")

    store = stored(program)
    store.step([(None, 1), (1, 1)])
    store.step([(None, 2)])
    assert store.rows() == {(None, 2): 1, (1, 1): 1}
    assert store.rows("joined") == {(1, 1, 1): 1}


def test_row_02_nan_is_one_key(stored):
    store = stored(counts("x double"))
    store.step([(math.nan,)])
    store.step([(-math.nan,), (1.0,)])
    ((value, count),) = [row for row in store.rows() if row[0] != 1.0]
    assert math.isnan(value) and count == 2
    store.step(gone=[(math.nan,), (math.nan,)])
    assert store.rows() == {(1.0, 1): 1}


def test_row_03_both_zeros_are_one_key(stored):
    store = stored(counts("x double"))
    store.step([(0.0,), (-0.0,)])
    store.step([], [(-0.0,)])
    assert store.rows() == {(0.0, 1): 1}
    store.step([], [(-0.0,)])
    assert store.rows() == {}


def test_row_04_a_diff_of_zero_moves_the_frontier(stored, spark):
    store = stored(counts("x long"))
    with store.open() as flow:
        flow.session("in").update(
            spark.createDataFrame([(1, 0, 0)], "x long, time long, diff long"))
        flow.advance_to(3)
    with store.open() as flow:
        assert flow.session("in").time() == 3
    assert store.rows() == {}


def test_row_05_a_null_diff_is_refused_and_commits_nothing(stored, spark):
    store = stored(counts("x long"))
    store.step([(1,)])
    with store.open() as flow:
        before = store.commits()
        with pytest.raises(InvalidDiffError):
            flow.session("in").update(
                spark.createDataFrame([(1, 1, None)], "x long, time long, diff long"))
        assert store.commits() == before
    assert store.rows() == {(1, 1): 1}


def test_row_06_negative_multiplicities_are_named(stored):
    def program(flow):
        flow.input("in", "x long")[0].keep("out")

    store = stored(program)
    store.step([(2,)], [(1,)])
    with pytest.raises(NegativeMultiplicityError, match="1"):
        store.rows()
    assert store.rows(allow_negative=True) == {(2,): 1}
    store.step([(1,), (1,)])
    assert store.rows() == {(1,): 1, (2,): 1}


def test_row_07_an_update_before_the_frontier_is_refused(stored, spark):
    store = stored(counts("x long"))
    store.step([(1,)], to=5)
    with store.open() as flow:
        before = store.commits()
        with pytest.raises(TimeRegressionError, match="5"):
            flow.session("in").update(
                spark.createDataFrame([(1, 4, 1)], "x long, time long, diff long"))
        with pytest.raises(TimeRegressionError):
            flow.session("in").advance_to(4)
        assert store.commits() == before


def test_row_08_an_update_of_a_later_time_waits_for_it(stored, spark):
    store = stored(counts("x long"))
    with store.open() as flow:
        flow.session("in").update(
            spark.createDataFrame([(1, 0, 1), (2, 7, 1)], "x long, time long, diff long"))
        flow.advance_to(1)
    assert store.rows() == {(1, 1): 1}
    store.step(to=8)
    assert store.rows() == {(1, 1): 1, (2, 1): 1}


def test_row_10_a_frontier_moves_without_data(stored, spark):
    store = stored(counts("x long"))
    for time in 1, 5, 9:
        store.step(to=time)
        with StateReader(store.root, spark=spark) as reader:
            assert reader["out"].frontier() == time
            assert reader["out"].at().collect() == []


def test_row_11_what_cannot_be_read_is_an_error(stored, spark):
    store = stored(counts("x long"))
    for _ in range(5):
        store.step([(1,)])
    with store.open() as flow, StateReader(store.root, spark=spark) as reader:
        for output in flow["out"], reader["out"]:
            for time in 0, 5:
                with pytest.raises(NotReadableError, match="compacted|not complete"):
                    output.at(time)
            assert [tuple(row) for row in output.at(4).collect()] == [(1, 5)]


@pytest.mark.parametrize("schema", ["x int", "x string", "y long", "x decimal(10,2)"])
def test_row_13_another_schema_is_refused(stored, schema):
    store = stored(counts("x long"))
    store.step([(1,)])
    before = store.commits()
    store.program = counts(schema)
    with pytest.raises(ProgramChangedError, match="'in'"):
        store.open()
    assert store.commits() == before


def test_row_14_a_new_column_is_another_program(stored):
    store = stored(counts("x long"))
    store.step([(1,)])
    store.program = counts("x long, y long")
    with pytest.raises(ProgramChangedError):
        store.open()
    # A backfill from no rows would be silently wrong.
    with pytest.raises(ProgramChangedError, match="input 'in' has .*y bigint.* and had .x bigint"):
        store.open(on_change="extend")
    with pytest.warns(StaleWarning, match="begin anew that depend on 'in'"), store.open(
        on_change="rebuild"
    ) as flow:
        flow.session("in").insert([(1, 2)])
        flow.advance_to(flow.session("in").time() + 1)
    assert store.rows() == {(1, 2, 1): 1}


def test_row_15_reserved_names(stored):
    for schema, error in [("__x long", ReservedNameError), ("time long", DiffError),
                          ("diff long", DiffError)]:
        with pytest.raises(error):
            stored(counts(schema)).open()
    store = stored(counts("time long, diff long"), time="__t"[2:], diff="d")
    store.step([(3, 4)])
    store.step([(3, 4)])
    assert store.rows() == {(3, 4, 2): 1}


def test_row_16_names_that_are_there_twice(stored):
    for schema in "x long, x long", "x long, X long":
        with pytest.raises(DiffError, match="x"):
            stored(counts(schema)).open()


def test_row_17_odd_names_of_columns(stored):
    names = ["a.b", "x y", "a`b", "größe", "select", "a/b", "1", "%s {}", "\u2028"]
    schema = T.StructType([T.StructField(name, T.LongType()) for name in names])

    def program(flow):
        frame, _ = flow.input("in", schema)
        frame.count().keep("out")
        frame.keep("a/../b' ; drop")

    store = stored(program)
    row = tuple(range(len(names)))
    store.step([row])
    store.step([row])
    assert store.rows() == {(*row, 2): 1}
    assert store.rows("a/../b' ; drop") == {row: 2}
    with StateReader(store.root, spark=store.spark) as reader:
        assert reader["out"].schema.names[:-1] == names


def test_row_18_instants_of_a_fold_and_another_zone(stored, another, caplog):
    store = stored(counts("t timestamp"))
    store.spark = another
    another.conf.set("spark.sql.session.timeZone", "America/New_York")
    fold = [datetime.datetime(2024, 11, 3, hour, 30, tzinfo=datetime.timezone.utc)
            for hour in (5, 6)]
    store.step([(fold[0],), (fold[1],)])
    another.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    with caplog.at_level("WARNING", "pyspark_diff"):
        store.step([(fold[0],)])
    assert "America/New_York" in caplog.text and "Asia/Kolkata" in caplog.text
    with store.open() as flow:
        instants = flow["out"].at().select(F.col("t").cast("long"), "count").collect()
    assert sorted(map(tuple, instants)) == [
        (int(fold[0].timestamp()), 2), (int(fold[1].timestamp()), 1)
    ]


def test_row_19_decimals(stored):
    def program(flow):
        frame, _ = flow.input("in", "d decimal(38,2)")
        frame.count().keep("out")
        frame.groupBy().agg(F.sum("d").alias("s")).keep("sum")

    store = stored(program)
    store.step([(Decimal("1.1"),)])
    store.step([(Decimal("1.10"),)])
    assert store.rows() == {(Decimal("1.10"), 2): 1}
    assert store.rows("sum") == {(Decimal("2.20"),): 1}
    most = Decimal("9e35")
    with pytest.raises((DiffOverflowError, StepError)):
        store.step([(most,)] * 10_000)
    assert store.rows("sum") == {(Decimal("2.20"),): 1}


def test_row_21_sums_of_floats_do_not_depend_on_steps(stored):
    def program(flow):
        frame, _ = flow.input("in", "x double")
        frame.groupBy().agg(F.sum("x").alias("s")).keep("out")

    store = stored(program)
    for value in 1e16, 1.0, -1e16, 0.1:
        store.step([(value,)])
    assert [row[0] for row in store.rows()] == [math.fsum([1e16, 1.0, -1e16, 0.1])]


def test_row_22_keys_of_odd_types(stored):
    store = stored(counts("a array<long>, s struct<x:long, y:array<string>>"))
    row = ([1, None], (None, ["", None]))
    store.step([row, (None, None), ([], (1, []))])
    store.step([row])
    with store.open() as flow:
        actual = {str(row[0]): row["count"] for row in flow["out"].at().collect()}
    assert actual == {"[1, None]": 2, "None": 1, "[]": 1}
    for kind in "map<string,variant>", "variant":
        with pytest.raises(UnsupportedTypeError):
            stored(counts(f"x {kind}")).open()


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_row_23_diffs_do_not_wrap(stored, another, ansi):
    another.conf.set("spark.sql.ansi.enabled", ansi)
    store = stored(counts("x long"))
    store.spark = another

    def give(diff):
        with store.open() as flow:
            time = flow.session("in").time()
            flow.session("in").update(another.createDataFrame(
                [(1, time, diff)], "x long, time long, diff long"))
            flow.advance_to(time + 1)

    give(2**63 - 1)
    before = store.rows()
    assert before == {(1, 2**63 - 1): 1}
    with pytest.raises(DiffOverflowError):
        give(1)
    assert store.rows() == before
    give(-1)
    assert store.rows() == {(1, 2**63 - 2): 1}


def test_row_24_what_changes_is_refused(stored):
    def program(flow):
        frame, _ = flow.input("in", "x long")
        frame.withColumn("r", F.rand()).keep("out")

    with pytest.raises(NonDeterministicError):
        stored(program).open()
    assert not (Path(stored(program).root) / "commits").exists()


def test_row_25_a_function_that_raises_changes_nothing(stored):
    def tested(key, values):
        if any(value == (13,) for value, _ in values):
            raise ZeroDivisionError("thirteen")
        return [(len(values),)]

    def program(flow):
        frame, _ = flow.input("in", "k long, v long")
        frame.reduce(tested, "n long", key="k").keep("out")

    store = stored(program)
    store.step([(1, 1), (2, 2)])
    with store.open() as flow:
        before = store.commits()
        flow.session("in").insert([(1, 13)])
        with pytest.raises(DiffError, match="thirteen"):
            flow.advance_to(2)
        assert store.commits() == before
    assert store.rows() == {(1, 1): 1, (2, 1): 1}
    store.step([(1, 14)])
    assert store.rows() == {(1, 2): 1, (2, 1): 1}


def test_row_30_a_store_is_its_path(stored, another, tmp_path):
    """The store needs no catalog, and files of others stay."""
    store = stored(counts("x long"))
    store.step([(1,)])
    store.spark = another
    shutil.move(store.root, tmp_path / "elsewhere")
    store.root = str(tmp_path / "elsewhere")
    assert store.rows() == {(1, 1): 1}
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("x")
    store.root = str(foreign)
    with pytest.raises(StorageError, match="precious"):
        store.open()
    assert [path.name for path in foreign.iterdir()] == ["precious"]


def test_row_31_a_token_tells_what_was_done(stored):
    store = stored(counts("x long"))
    for day in "monday", "tuesday", "tuesday":
        with store.open() as flow:
            if flow.history().where(F.col("token") == day).count():
                continue
            flow.session("in").insert([(1,)])
            flow.advance_to(flow.session("in").time() + 1, token=day)
    assert store.rows() == {(1, 2): 1}


def test_row_37_a_newer_format_names_both(stored):
    store = stored(counts("x long"))
    store.step([(1,)])
    path = sorted(Path(store.root, "commits").iterdir())[-1]
    good = path.read_bytes()
    footer = list(manifest._FOOTER.unpack(good[-manifest._FOOTER.size:]))
    footer[2] = manifest.FORMAT + 1
    path.write_bytes(good[:-manifest._FOOTER.size] + manifest._FOOTER.pack(*footer))
    message = f"format {manifest.FORMAT + 1}.* {manifest.FORMAT}\\b"
    for what in store.open, lambda: StateReader(store.root, spark=store.spark):
        with pytest.raises(FormatError, match=message):
            what()
    # An older commit never counts as the last one.
    path.write_bytes(good[:100])
    with pytest.raises(DamagedStateError, match=path.name):
        store.open()
    path.write_bytes(good)
    assert store.rows() == {(1, 1): 1}


def test_row_42_texts_are_no_sql(stored):
    def program(flow):
        frame, _ = flow.input("a` or 1=1 -- ", "`b'; drop table x` string")
        frame.keep("c`; select 1")

    store = stored(program)
    with store.open() as flow:
        session = flow.session("a` or 1=1 -- ")
        session.insert([("x' or '1'='1",)])
        flow.advance_to(1)
    assert store.rows("c`; select 1") == {("x' or '1'='1",): 1}


def test_row_46_the_number_of_buckets_never_changes(stored):
    store = stored(counts("x long"))
    store.step([(1,)])
    with pytest.raises(SchemaError, match="2 buckets"):
        store.open(buckets=3)
    with store.open(buckets=None) as flow:
        assert flow._buckets == 2


def test_row_47_nothing_at_all(stored):
    def program(flow):
        frame, _ = flow.input("in", "x long")
        nothing, _ = flow.input("empty", "y long")
        frame.where("x < 0").keep("out")
        frame.drop("x").count().keep("columns")
        nothing.join(frame, nothing["y"] == frame["x"]).keep("joined")

    store = stored(program)
    store.step()
    store.step([])
    for name in "out", "joined":
        assert store.rows(name) == {}
    store.step([(1,), (2,)])
    assert store.rows("columns") == {(2,): 1}

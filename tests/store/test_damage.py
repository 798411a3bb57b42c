"""Small forms of ci/damage, and tests of the errors that it has revealed."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path

import long_run
import pytest
import random_forms
from damage_program import FAULTS, forms
from damaged_stores import rows_of, sweep
from writers import PHASES, paused, processes, threads

from pyspark_diff import DamagedStateError, Dataflow, thresholds
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.roots import objects_at

#: The mark of tests with several processes that share the JVM.
multiprocess = pytest.mark.classic_only("other processes share the JVM of Spark's context")


@pytest.fixture(autouse=True)
def silent():
    """Silence the log, which reports damage; these tests damage stores on purpose."""
    logger = logging.getLogger("pyspark_diff")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.fixture
def merged():
    """Merge batches of a few rows at once, so that a commit refers only to the last state."""
    with thresholds.using(spine_merge_rows_min=0):
        yield


def test_what_is_damaged_is_found_or_makes_no_difference(spark, tmp_path):
    wrong = []
    outcomes = sweep(spark, str(tmp_path), 15, report=wrong.append)
    assert not wrong and sum(outcomes.values()) == 15
    assert outcomes["detected"] > 4 and outcomes["harmless"] > 1


def test_blocks_of_random_programs_are_parts_of_a_run(monkeypatch):
    seeds = []

    def run(spark, folder, count, first):
        seeds.append(first)
        return Counter(programs=count)

    monkeypatch.setattr(random_forms, "run", run)
    assert forms(None, "", False, 3, range(0, 7))[:2] == (700, 700)
    assert forms(None, "", False, 3, range(7, 20))[:2] == (1300, 1300)
    parts, seeds[:] = seeds[:], []
    forms(None, "", False, 3)
    assert seeds == parts and len(set(seeds)) == 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_random_damage(spark, tmp_path, seed):
    wrong = []
    sweep(spark, str(tmp_path), 250, seed, wrong.append)
    assert not wrong


def counting(flow):
    words, _ = flow.input("words", "word string")
    words.count().keep("counts")


def step(flow, time, word="a"):
    flow.session("words").insert([(word,)])
    flow.advance_to(time)


@pytest.mark.usefixtures("merged")
def test_a_commit_of_another_store_is_not_read_by_its_number(spark, tmp_path):
    """The commit stores small batches, so that no other file of the store needs a read."""
    for name in "ours", "theirs":
        with Dataflow.open(str(tmp_path / name), counting, spark=spark, runner="local") as flow:
            for time in 1, 2, 3, 4:
                step(flow, time, name)
    name = "commits/0000000000000002.commit"
    shutil.copy(tmp_path / "theirs" / name, tmp_path / "ours" / name)
    with pytest.raises(DamagedStateError, match="0000000000000002.commit.*of another store"):
        StateReader(str(tmp_path / "ours"), spark=spark, commit=2)
    with StateReader(str(tmp_path / "ours"), spark=spark, commit=3) as reader:
        assert [row[0] for row in rows_of(reader["counts"])] == ["ours"]


def test_a_hint_tells_of_its_own_store_alone(spark, tmp_path):
    for name, times in ("ours", 2), ("theirs", 5):
        with Dataflow.open(str(tmp_path / name), counting, spark=spark, runner="local") as flow:
            for time in range(times):
                step(flow, time + 1, name)
    there = Path(tmp_path, "ours", "head")
    ours = there.read_bytes()
    shutil.copy(tmp_path / "theirs" / "head", there)
    with StateReader(str(tmp_path / "ours"), spark=spark) as reader:
        last = reader.commit
    there.write_bytes(ours)
    Path(tmp_path, "ours", "commits", f"{last:016d}.commit").unlink()
    with pytest.raises(DamagedStateError, match=f"commit {last} |{last:016d}"):
        StateReader(str(tmp_path / "ours"), spark=spark, commit=last)


def test_a_floor_above_all_commits_is_told_by_whoever_reads_one(spark, tmp_path):
    """No commit below the floor is readable, but the floor is damage and not a retirement."""
    with Dataflow.open(str(tmp_path), counting, spark=spark, runner="local") as flow:
        for time in 1, 2:
            step(flow, time)
    Path(tmp_path, "floor").mkdir(exist_ok=True)
    Path(tmp_path, "floor", f"{58:016d}").touch()
    with pytest.raises(DamagedStateError, match="commit 58 is missing, and no commit is there"):
        StateReader(str(tmp_path), spark=spark, commit=1)


def test_commits_go_also_if_their_turn_comes_when_nobody_steps(spark, tmp_path):
    """Every second commit is the opening of the store by an application."""
    numbers = []
    for time in range(1, 12):
        with Dataflow.open(
            str(tmp_path), counting, spark=spark, runner="local", retain=2
        ) as flow:
            step(flow, time)
        numbers.append(len(Commits(objects_at(str(tmp_path))).numbers()))
    assert max(numbers) <= 4


@pytest.mark.usefixtures("merged")
def test_a_step_that_is_done_does_not_fail_for_an_old_commit(spark, tmp_path):
    with Dataflow.open(str(tmp_path), counting, spark=spark, runner="local", retain=2) as flow:
        step(flow, 1)
        Path(tmp_path, "commits/0000000000000000.commit").write_bytes(bytes(640))
        for time in range(2, 6):
            step(flow, time)
        assert rows_of(flow["counts"]) == {("a", 5, 4, 1): 1}


@pytest.mark.usefixtures("merged")
def test_who_comes_second_to_make_a_store_goes_on_from_it(spark, tmp_path, monkeypatch):
    make = Commits.make

    def late(commits, *arguments):
        monkeypatch.undo()
        with Dataflow.open(str(tmp_path), counting, spark=spark, runner="local") as flow:
            step(flow, 1)
        return make(commits, *arguments)

    monkeypatch.setattr(Commits, "make", late)
    with Dataflow.open(str(tmp_path), counting, spark=spark, runner="local") as flow:
        step(flow, 2)
        assert rows_of(flow["counts"]) == {("a", 2, 1, 1): 1}


def test_threads_that_write_one_store(spark, tmp_path):
    assert threads(spark, str(tmp_path), 2, 4)["steps"] == 8


@multiprocess
@pytest.mark.parametrize("phase", [
    "files written",
    *(pytest.param(phase, marks=pytest.mark.slow) for phase in PHASES if phase != "files written"),
])
def test_a_writer_that_was_paused_in_a_step_has_lost_the_store(spark, tmp_path, phase):
    """The writer gets the same error even if its files have been removed."""
    paused(spark, str(tmp_path), phase)


@multiprocess
@pytest.mark.parametrize(("count", "steps"), [
    (2, 5), pytest.param(4, 25, marks=pytest.mark.slow)
])
def test_processes_that_write_one_store(spark, tmp_path, count, steps):
    assert processes(spark, str(tmp_path), count, steps)["steps"] == count * steps


@pytest.mark.parametrize(("actions", "seed"), [
    (120, 0), pytest.param(300, 0, marks=pytest.mark.slow),
    pytest.param(10_000, 1, marks=pytest.mark.slow),
])
def test_a_long_run_is_what_a_model_says(spark, tmp_path, actions, seed):
    totals = long_run.run(spark, str(tmp_path), actions, seed)
    assert sum(totals[name] for name in long_run.ACTIONS) == actions
    assert totals["known"] > max(actions, 10 * totals["not known yet"])


@pytest.mark.slow
def test_random_programs_in_three_forms(spark, tmp_path):
    totals = random_forms.run(spark, str(tmp_path), 100)
    assert [totals[form] for form in random_forms.FORMS] == [100] * 3


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_faults_that_have_to_be_found_have_their_places(fault):
    with fault.there():
        assert getattr(fault.where, fault.what).__name__ == "instead"

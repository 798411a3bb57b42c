"""Eight threads use one dataflow: they insert, advance, step, read and explain at any moment.

    the collection in the end  =  the rows of all calls of insert that returned
    two reads of one time      =  each other
"""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections import Counter

import pytest

from pyspark_diff import Dataflow
from pyspark_diff.errors import NotReadableError, TimeRegressionError

#: Another thread has advanced the inputs past this time, or the time is not complete yet.
EXPECTED = (TimeRegressionError, NotReadableError)


def program(flow):
    events, _ = flow.input("events", "id long, user long")
    users, _ = flow.input("users", "user long, name string")
    events.join(users, "user").groupBy("name").count().keep("names")
    events.groupBy("user").count().keep("users")


class Users:
    """Threads that repeat calls until a moment."""

    def __init__(self, flow, seconds):
        self.flow, self.end = flow, time.monotonic() + seconds
        self.lock = threading.Lock()
        self.inserted: Counter = Counter()
        self.answers: dict[int, set] = {}
        self.failed: list[BaseException] = []
        self.number = 0

    def insert(self, draw):
        with self.lock:
            self.number += 1
            row = (self.number, draw.randrange(5))
        self.flow.session("events").insert([row])
        with self.lock:
            self.inserted[row[1]] += 1

    def advance(self, _):
        self.flow.advance_to(self.flow.session("events").time() + 1)

    def step(self, _):
        self.flow.step()

    def read(self, _):
        now = self.flow.session("events").time() - 1
        rows = frozenset(map(tuple, self.flow["users"].at(now).collect()))
        with self.lock:
            self.answers.setdefault(now, set()).add(rows)

    def explain(self, _):
        self.flow.explain(), self.flow.describe(), self.flow.progress()

    def run(self, seed):
        draw = random.Random(seed)
        actions = [*[self.insert] * 4, self.advance, self.step, *[self.read] * 2, self.explain]
        while time.monotonic() < self.end and not self.failed:
            action = draw.choice(actions)
            try:
                action(draw)
            except EXPECTED:
                pass
            except Exception as error:
                self.failed.append(error)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_eight_threads_use_one_dataflow(spark, tmp_path, stored, seconds):
    if stored:
        flow = Dataflow.open(tmp_path / "store", program, spark=spark)
    else:
        flow = Dataflow(spark)
        program(flow)
    with flow, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow.session("users").insert([(n, f"user {n}") for n in range(5)])
        users = Users(flow, seconds)
        threads = [threading.Thread(target=users.run, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if users.failed:
            raise users.failed[0]
        flow.advance_to(flow.session("events").time() + 1)
        assert dict(flow["users"].at().collect()) == users.inserted
        named = {f"user {user}": count for user, count in users.inserted.items()}
        assert dict(flow["names"].at().collect()) == named
        assert users.answers and all(len(answers) == 1 for answers in users.answers.values())
    if stored:
        with Dataflow.open(tmp_path / "store", program, spark=spark) as again:
            assert dict(again["users"].at().collect()) == users.inserted

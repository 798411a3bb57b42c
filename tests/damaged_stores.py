"""Damage stores in a chosen way, and check the answers and errors of their readers.

    answer of a damaged store  =  answer of the whole store,
                                  or a DamagedStateError with the name of the damaged file

A store has parts of each kind: several commits, large files and small batches, waiting updates,
an undelivered outbox, payloads and tombstones of retired commits, a floor, and a hold.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_diff import DamagedStateError, Dataflow, DiffFrame, FormatError, thresholds
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.trace import commits as chain
from pyspark_diff.trace.manifest import name_of
from pyspark_diff.trace.roots import objects_at

#: A batch with more rows is a file.
SMALL = 6
#: The number of tombstones that stay.
TOMBSTONES = 3
RETAIN = 6
#: The folders and files of a store.
WHERE = ("commits", "data", "readers", "floor", "head")
#: The kinds of damage.
ACTS = ("flip", "cut", "empty", "delete", "stray", "swap", "swap with another store")
#: Damage that random choice seldom meets; the digest of a header and the hint each detect one.
AIMED = (("commits", "flip in the last header"), ("commits", "lose the last"))
#: Fields of a header that no other field repeats: another digit would decode as well.
_ALONE = re.compile(rb'"written":"([^"]+)"|"epoch":(\d+)|[.]arrow":\[\d+,(\d+,-?\d+)\]')


class Wrong(AssertionError):
    """A damage that no check detected, or an error without the damaged file."""


class ConsumerError(Exception):
    pass


def program(flow: Dataflow, give: Callable[..., None] | None = None) -> None:
    """Keep a join, a count and an input, and deliver the updates of the join."""
    people, _ = flow.input("people", "k long, name string")
    visits, _ = flow.input("visits", "k long, place string")
    joined = people.join(visits, "k").keep("joined")
    visits.select("place").count().keep("places")
    people.keep("people")
    joined.inspect(lambda record, time, diff, to=give: to and to((tuple(record), time, diff)))


def open_store(spark: Any, root: str, give: Callable[..., None] | None = None) -> Dataflow:
    return Dataflow.open(
        root, lambda flow: program(flow, give), spark=spark, runner="local", buckets=2,
        retain=RETAIN, keep_history=True,
    )


@contextmanager
def limits() -> Iterator[None]:
    """Write small batches to files, and keep few tombstones."""
    with thresholds.using(in_memory_rows_max=SMALL, tombstones_max=TOMBSTONES):
        yield


def feed(flow: Dataflow, time: int) -> None:
    """Push the updates of a step; odd steps get more rows than `SMALL`."""
    count = 12 if time % 2 else 2
    rows = [(n % 7, f"name {n} of {time}") for n in range(count)]
    flow.session("people").insert(rows)
    flow.session("visits").insert([(n % 5, f"place {n % 3}") for n in range(count)])
    if time > 2:
        flow.session("people").remove([(1, "name 1 of 1")] if time == 3 else [])


def make(spark: Any, root: str, steps: int = 11) -> None:
    """Make a store with all kinds of parts."""

    def fail(_: object) -> None:
        raise ConsumerError("not now")

    with limits():
        for first in range(1, steps, 4):
            # Several applications open the store in turn.
            with open_store(spark, root) as flow:
                for time in range(first, min(first + 4, steps)):
                    feed(flow, time)
                    flow.advance_to(time + 1)
        flow = open_store(spark, root, fail)
        feed(flow, steps)
        # One input lags, so the updates of the other input wait.
        flow.session("people").advance_to(steps + 3)
        flow.session("people").insert([(n, "waits") for n in range(SMALL + 3)])
        flow.session("people").advance_to(steps + 4)
        flow.session("visits").advance_to(steps + 1)
        try:
            flow.step()
        except ConsumerError:
            pass  # the outbox keeps the undelivered updates
        StateReader(root, spark=spark)  # the reader ends without releasing its hold
        flow._storage.close()  # the writer ends without a close


@dataclass
class Answers:
    """The answers and errors of a store, by question."""

    answered: dict[str, object] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)
    verified: list[str] = field(default_factory=list)

    def ask(self, question: str, answer: Callable[[], object]) -> None:
        try:
            self.answered[question] = answer()
        except (DamagedStateError, FormatError) as error:
            self.refused[question] = error
        except Exception as error:
            raise Wrong(f"{question}: {type(error).__name__}: {error}") from error


def rows_of(collection: Any) -> Counter[Any]:
    """All updates of a kept collection, consolidated on the driver: Spark would be slower."""
    with reading(collection):
        updates = arrangement_of(collection).table()
    return Counter(tuple(row.values()) for row in updates.to_pylist())


def reading(collection: Any) -> AbstractContextManager[Any]:
    """Hold the files during a read: a step or close in another thread could remove them."""
    own = isinstance(collection, DiffFrame)
    return collection._collection.flow._reading() if own else nullcontext()


def arrangement_of(collection: Any) -> Any:
    """The arrangement of a kept collection, of a dataflow or of a reader."""
    if isinstance(collection, DiffFrame):
        source = collection._collection
        return source.flow._arrangement(source.node)
    return collection._arrangement


def answers(spark: Any, root: str, commits: list[int]) -> Answers:
    """Ask a store all questions; answers before an error count too."""
    result = Answers()
    for number in commits:
        def at(number: int = number) -> object:
            with StateReader(root, spark=spark, commit=number) as reader:
                return {name: rows_of(reader[name]) for name in reader}

        result.ask(f"at commit {number}", at)
    delivered: list[object] = []
    flow: list[Dataflow] = []
    with limits():
        result.ask("open", lambda: flow.append(open_store(spark, root, delivered.append)))
        if not flow:
            return result
        try:
            result.verified = flow[0].verify()
        except Exception as error:
            raise Wrong(f"verify: {type(error).__name__}: {error}") from error
        try:
            _ask_history(result, flow[0], commits)
            for name in "people", "joined", "places":
                result.ask(f"{name} before", lambda: rows_of(flow[0][name]))
            result.ask("step", lambda: _step(flow[0], delivered))
            when = "after" if "step" in result.answered else "before"
            for name in "people", "joined", "places":
                result.ask(f"{name} {when}", lambda: rows_of(flow[0][name]))
        finally:
            result.ask("close", flow[0].close)
    return result


def _ask_history(result: Answers, flow: Dataflow, commits: list[int]) -> None:
    """Ask for the history; it must list each readable commit."""
    rows: list[tuple[Any, ...]] = []
    store = flow._store
    assert store is not None
    result.ask("history", lambda: rows.extend(store.history()[0]))
    known = {row[0]: row for row in rows if row[0] in commits}
    result.answered |= {f"history of {number}": row for number, row in known.items()}
    for number in commits:
        if (
            "history" in result.answered and number not in known
            and f"at commit {number}" in result.answered
        ):
            raise Wrong(f"history: without commit {number}, which can be read")


def _step(flow: Dataflow, delivered: list[object]) -> object:
    feed(flow, 21)
    flow.advance_to(30)
    return Counter(delivered)


@dataclass(frozen=True)
class Damage:
    """A damage to a file of a store.

    Parameters
    ----------
    act : str
        One of `ACTS`, or of the acts in `AIMED`.
    name : str
        The file.
    what : str
        A description of the change.
    others : tuple of str
        Other files that changed.
    """

    act: str
    name: str
    what: str
    others: tuple[str, ...] = ()


def damaged(root: str, another: str, where: str, act: str, chance: random.Random) -> Damage | None:
    """Damage a store; None if this store has no file for it."""
    names = sorted(
        str(path.relative_to(root)) for path in Path(root).rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] == where
    )
    if not names:
        return None
    name = names[-1] if (where, act) in AIMED else chance.choice(names)
    path = Path(root, name)
    data = path.read_bytes()
    if act == "flip in the last header":
        match = chance.choice(list(_ALONE.finditer(data)))
        first, last = match.span(match.lastindex or 0)
        place = chance.choice([at for at in range(first, last) if data[at:at + 1].isdigit()])
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1:])
        return Damage(act, name, f"bit 0 at {place} of {len(data)}, in {match[0].decode()}")
    if act == "lose the last":
        path.unlink()
        return Damage(act, name, "gone")
    if act == "flip":
        if not data:
            return None
        # Half of the flips are in the last bytes, because commits are read from their end.
        places = [chance.randrange(len(data)), max(0, len(data) - 1 - chance.randrange(200))]
        place, bit = chance.choice(places), chance.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1:])
        return Damage(act, name, f"bit {bit} at {place} of {len(data)}")
    if act == "cut":
        if not data:
            return None
        length = chance.randrange(len(data))
        if chance.random() < 0.3:
            length = length // 32 * 32  # a cut at a block may look like a valid shorter file
        path.write_bytes(data[:length])
        return Damage(act, name, f"{length} of {len(data)} bytes")
    if act == "empty":
        if not data:
            return None
        path.write_bytes(b"")
        return Damage(act, name, "no bytes")
    if act == "delete":
        path.unlink()
        return Damage(act, name, "gone")
    if act == "stray":
        numbers = sorted(map(int, re.findall(r"\d{16}", " ".join(names))))
        strays = ["stray", f"{where}/stray.txt", f"{name}.bak", f"{name}.0123456789abcdef.tmp"]
        if where == "commits":
            strays += [f"commits/{numbers[-1] + 1:016d}.commit", "commits/7.commit"]
        if where == "floor":
            strays += [f"floor/{numbers[-1] - 1:016d}", f"floor/{numbers[-1] + 50:016d}"]
        stray = chance.choice(strays) if where != "head" else "head.bak"
        if stray.startswith("head/"):
            return None
        Path(root, stray).write_bytes(data)
        return Damage(act, stray, f"a copy of {name}")
    if act == "swap":
        others = [other for other in names if other != name]
        if not others:
            return None
        other = chance.choice(others)
        there = Path(root, other)
        content = there.read_bytes()
        if content == data:
            return None
        path.write_bytes(content)
        there.write_bytes(data)
        return Damage(act, name, f"swapped with {other}", (other,))
    foreign = sorted(Path(another, where).glob("**/*")) if where != "head" else [
        Path(another, "head")]
    files = [file for file in foreign if file.is_file()]
    same = [file for file in files if file.name == path.name] or files
    source = chance.choice(same)
    if source.read_bytes() == data:
        return None
    path.write_bytes(source.read_bytes())
    return Damage(act, name, f"taken from another store, {source.name}")


def check(whole: Answers, actual: Answers, damage: Damage, needed: set[str]) -> str:
    """Check that each answer is right, or is an error with the name of a damaged file.

    `verify` must report each damaged file that the last commit needs. A flipped bit in a commit
    may be exempt: its object has unused bytes between the segments.
    """
    for question, answer in actual.answered.items():
        if answer != whole.answered[question]:
            expected = whole.answered[question]
            raise Wrong(f"{question}: answered {answer!r} and not {expected!r}"[:600])
    for question, error in actual.refused.items():
        if not _names(str(error), damage):
            raise Wrong(f"{question}: does not name {damage.name!r}: {error}")
        if isinstance(error, FormatError) and damage.act != "flip":
            raise Wrong(f"{question}: {error}")
    for line in actual.verified:
        if not _names(line, damage):
            raise Wrong(f"verify does not name {damage.name!r}: {line}")
    hit = {damage.name, *damage.others} & needed
    certain = damage.act != "flip" or damage.name.startswith("data/")
    if "open" in actual.answered and hit and certain and not actual.verified:
        raise Wrong(f"verify does not name {hit}")
    if actual.refused:
        return "detected"
    return "named by verify" if actual.verified else "harmless"


def _names(text: str, damage: Damage) -> bool:
    """Whether a text names one of the changed files."""
    for name in (damage.name, *damage.others):
        number = re.search(r"(\d{16})", name)
        if os.path.basename(name) in text or number and re.search(
                rf"\bcommit {int(number[1])}\b", text):
            return True
    # A lost floor, or one that is too high, shows in the commits that are then missing.
    return damage.name.startswith("floor/") and "is missing" in text


def sweep(
    spark: Any, folder: str, count: int, seed: int = 0, report: Callable[[str], object] = print
) -> Counter[str]:
    """Damage copies of a store in many ways; returns the number of runs per outcome."""
    root, another = f"{folder}/whole", f"{folder}/another"
    make(spark, root)
    make(spark, another, 13)
    chained = chain.Commits(objects_at(root))
    commits, last = chained.numbers(), chained.latest()
    needed = {*last.files, *map(name_of, (*last.uses, last.number))}
    copy = f"{folder}/copy"
    shutil.copytree(root, copy)
    whole = answers(spark, copy, commits)
    if whole.refused or whole.verified or not whole.answered["step"]:
        raise Wrong(f"the whole store is not: {whole.refused} {whole.verified}")
    kinds = [*AIMED, *((where, act) for where in WHERE for act in ACTS)]
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    number = 0
    while sum(outcomes.values()) < count:
        # Most runs damage commits and data, because a store has most of its bytes there.
        where, act = kinds[number % len(kinds)]
        number += 1
        if where in ("readers", "floor", "head") and number // len(kinds) % 3:
            where = ("commits", "data")[number % 2]
        here = f"{folder}/{number}"
        shutil.copytree(root, here)
        damage = damaged(here, another, where, act, chance)
        if damage is not None:
            try:
                outcome = check(whole, answers(spark, here, commits), damage, needed)
            except Wrong as error:
                outcome = "wrong"
                report(f"WRONG: {seed}/{number}: {act} {damage.name} ({damage.what}): {error}")
            outcomes[outcome] += 1
        shutil.rmtree(here)
    return +outcomes

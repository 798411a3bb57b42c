"""Stores that are damaged in a chosen way, and what whoever opens them is told.

    every question to a damaged store is answered as the whole store answers it,
    or with a DamagedStateError that names what is damaged

A store has what can be damaged: several commits, large files and small batches, updates that wait,
an outbox that was not delivered, payloads and tombstones of retired commits, a floor, and a hold.
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

#: Batches of more rows are files.
SMALL = 6
#: So many tombstones stay.
TOMBSTONES = 3
RETAIN = 6
#: What lies in a store.
WHERE = ("commits", "data", "readers", "floor", "head")
#: What may happen to it.
ACTS = ("flip", "cut", "empty", "delete", "stray", "swap", "swap with another store")
#: What chance seldom meets, and only one look each finds: the digest of a header, and the hint.
AIMED = (("commits", "flip in the last header"), ("commits", "lose the last"))
#: In a header what agrees with nothing else, and would be read with another digit as well.
_ALONE = re.compile(rb'"written":"([^"]+)"|"epoch":(\d+)|[.]arrow":\[\d+,(\d+,-?\d+)\]')


class Wrong(AssertionError):
    """A damage that was not found, or not told as it should be."""


class ConsumerError(Exception):
    pass


def program(flow: Dataflow, give: Callable[..., None] | None = None) -> None:
    """A join, a count and a distinct, kept and shown."""
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
    """Few rows are many, and few tombstones."""
    with thresholds.using(in_memory_rows_max=SMALL, tombstones_max=TOMBSTONES):
        yield


def feed(flow: Dataflow, time: int) -> None:
    """What a step is given; every other one much."""
    count = 12 if time % 2 else 2
    rows = [(n % 7, f"name {n} of {time}") for n in range(count)]
    flow.session("people").insert(rows)
    flow.session("visits").insert([(n % 5, f"place {n % 3}") for n in range(count)])
    if time > 2:
        flow.session("people").remove([(1, "name 1 of 1")] if time == 3 else [])


def make(spark: Any, root: str, steps: int = 11) -> None:
    """Make a store with all that can be damaged."""

    def fail(_: object) -> None:
        raise ConsumerError("not now")

    with limits():
        for first in range(1, steps, 4):
            # Its applications come and go.
            with open_store(spark, root) as flow:
                for time in range(first, min(first + 4, steps)):
                    feed(flow, time)
                    flow.advance_to(time + 1)
        flow = open_store(spark, root, fail)
        feed(flow, steps)
        # One input lags, so what the other one was given waits.
        flow.session("people").advance_to(steps + 3)
        flow.session("people").insert([(n, "waits") for n in range(SMALL + 3)])
        flow.session("people").advance_to(steps + 4)
        flow.session("visits").advance_to(steps + 1)
        try:
            flow.step()
        except ConsumerError:
            pass  # that is how it is owed
        StateReader(root, spark=spark)  # it dies with its hold
        flow._storage.close()  # so does the writer


@dataclass
class Answers:
    """What a store answers, question by question."""

    told: dict[str, object] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)
    verified: list[str] = field(default_factory=list)

    def ask(self, question: str, answer: Callable[[], object]) -> None:
        try:
            self.told[question] = answer()
        except (DamagedStateError, FormatError) as error:
            self.refused[question] = error
        except Exception as error:
            raise Wrong(f"{question}: {type(error).__name__}: {error}") from error


def rows_of(collection: Any) -> Counter[Any]:
    """All updates of a kept collection, consolidated: on the driver, as Spark takes its time."""
    with reading(collection):
        found = arrangement_of(collection).table()
    return Counter(tuple(row.values()) for row in found.to_pylist())


def reading(collection: Any) -> AbstractContextManager[Any]:
    """Around a reading by hand: else a step, or the end, of another thread removes the files."""
    own = isinstance(collection, DiffFrame)
    return collection._collection.flow._reading() if own else nullcontext()


def arrangement_of(collection: Any) -> Any:
    """The arrangement of a kept collection, of a dataflow or of a reader."""
    if isinstance(collection, DiffFrame):
        source = collection._collection
        return source.flow._arrangement(source.node)
    return collection._arrangement


def answers(spark: Any, root: str, commits: list[int]) -> Answers:
    """Ask a store all that can be asked; what it answers before it refuses is answered."""
    found = Answers()
    for number in commits:
        def at(number: int = number) -> object:
            with StateReader(root, spark=spark, commit=number) as reader:
                return {name: rows_of(reader[name]) for name in reader}

        found.ask(f"at commit {number}", at)
    given: list[object] = []
    flow: list[Dataflow] = []
    with limits():
        found.ask("open", lambda: flow.append(open_store(spark, root, given.append)))
        if not flow:
            return found
        try:
            found.verified = flow[0].verify()
        except Exception as error:
            raise Wrong(f"verify: {type(error).__name__}: {error}") from error
        try:
            _ask_history(found, flow[0], commits)
            for name in "people", "joined", "places":
                found.ask(f"{name} before", lambda: rows_of(flow[0][name]))
            found.ask("step", lambda: _step(flow[0], given))
            when = "after" if "step" in found.told else "before"
            for name in "people", "joined", "places":
                found.ask(f"{name} {when}", lambda: rows_of(flow[0][name]))
        finally:
            found.ask("close", flow[0].close)
    return found


def _ask_history(found: Answers, flow: Dataflow, commits: list[int]) -> None:
    """Ask what is known of each commit; one that can be read is not left out."""
    rows: list[tuple[Any, ...]] = []
    store = flow._store
    assert store is not None
    found.ask("history", lambda: rows.extend(store.history()[0]))
    known = {row[0]: row for row in rows if row[0] in commits}
    found.told |= {f"history of {number}": row for number, row in known.items()}
    for number in commits:
        if "history" in found.told and number not in known and f"at commit {number}" in found.told:
            raise Wrong(f"history: without commit {number}, which can be read")


def _step(flow: Dataflow, given: list[object]) -> object:
    feed(flow, 21)
    flow.advance_to(30)
    return Counter(given)


@dataclass(frozen=True)
class Damage:
    """Something that happens to a file of a store.

    Parameters
    ----------
    act : str
        One of `ACTS`, or of those of `AIMED`.
    name : str
        The file.
    what : str
        In words.
    others : tuple of str
        Files that are not what they were either.
    """

    act: str
    name: str
    what: str
    others: tuple[str, ...] = ()


def damaged(root: str, another: str, where: str, act: str, chance: random.Random) -> Damage | None:
    """Damage a store; None where that cannot be."""
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
        found = chance.choice(list(_ALONE.finditer(data)))
        first, last = found.span(found.lastindex or 0)
        place = chance.choice([at for at in range(first, last) if data[at:at + 1].isdigit()])
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1:])
        return Damage(act, name, f"bit 0 at {place} of {len(data)}, in {found[0].decode()}")
    if act == "lose the last":
        path.unlink()
        return Damage(act, name, "gone")
    if act == "flip":
        if not data:
            return None
        # As many within the last bytes as elsewhere: commits are read from their end.
        places = [chance.randrange(len(data)), max(0, len(data) - 1 - chance.randrange(200))]
        place, bit = chance.choice(places), chance.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1:])
        return Damage(act, name, f"bit {bit} at {place} of {len(data)}")
    if act == "cut":
        if not data:
            return None
        length = chance.randrange(len(data))
        if chance.random() < 0.3:
            length = length // 32 * 32  # what may look like something else
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
    taken = chance.choice(same)
    if taken.read_bytes() == data:
        return None
    path.write_bytes(taken.read_bytes())
    return Damage(act, name, f"taken from another store, {taken.name}")


def check(whole: Answers, found: Answers, damage: Damage, needed: set[str]) -> str:
    """See that each answer is right, or a refusal that names what is damaged.

    What the last commit needs is looked at by `verify`; between what is in the object of a commit
    there are bytes that nobody needs.
    """
    for question, told in found.told.items():
        if told != whole.told[question]:
            raise Wrong(f"{question}: answered {told!r} and not {whole.told[question]!r}"[:600])
    for question, error in found.refused.items():
        if not _names(str(error), damage):
            raise Wrong(f"{question}: does not name {damage.name!r}: {error}")
        if isinstance(error, FormatError) and damage.act != "flip":
            raise Wrong(f"{question}: {error}")
    for line in found.verified:
        if not _names(line, damage):
            raise Wrong(f"verify does not name {damage.name!r}: {line}")
    hit = {damage.name, *damage.others} & needed
    certain = damage.act != "flip" or damage.name.startswith("data/")
    if "open" in found.told and hit and certain and not found.verified:
        raise Wrong(f"verify does not name {hit}")
    if found.refused:
        return "detected"
    return "named by verify" if found.verified else "harmless"


def _names(text: str, damage: Damage) -> bool:
    """Whether a text names one of the files that are not what they were."""
    for name in (damage.name, *damage.others):
        number = re.search(r"(\d{16})", name)
        if os.path.basename(name) in text or number and re.search(
                rf"\bcommit {int(number[1])}\b", text):
            return True
    # Of a floor that is gone, or too high, the commits tell that are then missing.
    return damage.name.startswith("floor/") and "is missing" in text


def sweep(
    spark: Any, folder: str, count: int, seed: int = 0, told: Callable[[str], object] = print
) -> Counter[str]:
    """Damage copies of a store in many ways; gives how often that became what."""
    root, another = f"{folder}/whole", f"{folder}/another"
    make(spark, root)
    make(spark, another, 13)
    chained = chain.Commits(objects_at(root))
    commits, last = chained.numbers(), chained.latest()
    needed = {*last.files, *map(name_of, (*last.uses, last.number))}
    copy = f"{folder}/copy"
    shutil.copytree(root, copy)
    whole = answers(spark, copy, commits)
    if whole.refused or whole.verified or not whole.told["step"]:
        raise Wrong(f"the whole store is not: {whole.refused} {whole.verified}")
    kinds = [*AIMED, *((where, act) for where in WHERE for act in ACTS)]
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    number = 0
    while sum(outcomes.values()) < count:
        # Commits and data are most of what there is.
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
                told(f"WRONG: {seed}/{number}: {act} {damage.name} ({damage.what}): {error}")
            outcomes[outcome] += 1
        shutil.rmtree(here)
    return +outcomes

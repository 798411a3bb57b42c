"""Read holds: what other applications read of a store, so that it stays until they have done.

::

    take(objects, n, seconds) returns at t  =>  commit n can be read until t + seconds

A hold is an object of its own with a time at which it expires, so a reader that has died holds
nothing for ever. One that lives on renews it in time. The clocks of readers and of who vacuums may
differ by up to `CLOCKS` seconds.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import dataclass

from pyspark_diff.errors import NotReadableError
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.objects import Objects

#: By how many seconds clocks may differ.
CLOCKS = 60.0
#: For how many seconds after it was written a hold counts that cannot be read.
GRACE = 3600.0

_FORMAT = 1
_NAME = re.compile(r"readers/[0-9a-f]{16}\.json")


class ReadHold:
    """A claim on one commit that this process reads. Made by `take`.

    Examples
    --------
    >>> from pyspark_diff.trace.roots import objects_at
    >>> objects = objects_at("memory://doctest-holds")
    >>> _ = Commits(objects).make(b"state")
    >>> hold = ReadHold.take(objects, 0, 60)
    >>> hold.expired, [standing.commit for standing in standing(objects, time.time())[0]]
    (False, [0])
    >>> hold.release()
    >>> standing(objects, time.time())
    ([], [])
    """

    def __init__(self, objects: Objects, name: str, commit: int, seconds: float, until: float):
        self.objects = objects
        self.name = name
        self.commit = commit
        self.seconds = seconds
        self.until = until

    @classmethod
    def take(cls, objects: Objects, commit_number: int, seconds: float) -> ReadHold:
        """Hold a commit for some seconds. A `NotReadableError` where it was retired already."""
        until = time.time() + seconds
        name = f"readers/{secrets.token_hex(8)}.json"
        objects.create(name, [_text(commit_number, until)])
        hold = cls(objects, name, commit_number, seconds, until)
        try:
            # Only now: who retires commits looks at the holds once more after it has done so.
            Commits(objects).read(commit_number)
        except BaseException:
            hold.release()
            raise
        return hold

    @property
    def expired(self) -> bool:
        return time.time() >= self.until

    def renew(self) -> None:
        """Hold for as many seconds again, from now on.

        A `NotReadableError` where it has expired, or is gone: what it held may be gone too.
        """
        try:
            there = not self.expired and bool(self.objects.read(self.name))
        except FileNotFoundError:
            there = False
        if not there:
            raise NotReadableError(
                f"the read hold {self.name!r} on commit {self.commit} of {self.objects.root!r} has "
                "expired, so what it held may be gone. Take a new one, on the last commit, and "
                "renew it in time"
            )
        until = time.time() + self.seconds
        self.objects.replace(self.name, _text(self.commit, until))
        self.until = until

    def release(self) -> None:
        """Hold no longer. A second call does nothing."""
        self.until = 0.0
        self.objects.delete([self.name])

    def __repr__(self) -> str:
        state = "expired" if self.expired else f"{self.until - time.time():.0f} s left"
        return f"<ReadHold on commit {self.commit} of {self.objects.root!r}, {state}>"


def held(
    objects: Objects, commits: Commits, number: int | None, seconds: float
) -> tuple[Commit, ReadHold]:
    """A commit, or the latest one, and a hold on it.

    Raises
    ------
    NotReadableError
        If that commit is not retained.
    """
    while True:
        at = commits.latest() if number is None else commits.read(number)
        try:
            return at, ReadHold.take(objects, at.number, seconds)
        except NotReadableError:
            # A vacuum was under way that had not seen the hold: there is a later one.
            if number is not None:
                raise


@dataclass(frozen=True)
class StandingHold:
    """A hold as others see it."""

    name: str
    #: None where it cannot be read: it may be any.
    commit: int | None
    until: float
    #: What is wrong with it.
    damage: str | None = None


def standing(objects: Objects, now: float) -> tuple[list[StandingHold], list[StandingHold]]:
    """The holds that count, and those that have expired.

    One that cannot be read counts for a while from when it was written, whatever it holds.
    """
    live: list[StandingHold] = []
    expired: list[StandingHold] = []
    for found in objects.names("readers"):
        if not _NAME.fullmatch(found.name):
            continue  # not ours
        try:
            hold = _read(found.name, objects.read(found.name), found.modified)
        except FileNotFoundError:
            continue  # released since
        (live if now < hold.until + CLOCKS else expired).append(hold)
    return live, expired


def _text(commit: int, until: float) -> bytes:
    return json.dumps({"format": _FORMAT, "commit": commit, "until": until}).encode()


def _read(name: str, data: bytes, modified: float) -> StandingHold:
    try:
        content = json.loads(data) if len(data) < 4096 else None
        if isinstance(content, dict) and content.keys() == {"format", "commit", "until"}:
            commit, until = content["commit"], content["until"]
            right = type(commit) is int and commit >= 0 and isinstance(until, (int, float))
            if right and content["format"] == _FORMAT and 0 <= until < 1e12:
                return StandingHold(name, commit, float(until))
    except (ValueError, RecursionError):
        pass
    return StandingHold(name, None, modified + GRACE, "it is not as holds are written")

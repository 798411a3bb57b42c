"""Read holds: each keeps a commit of a store while another application reads it.

::

    take(objects, n, seconds) returns at t  =>  commit n can be read until t + seconds

A hold is an object of its own with an expiry time, so the hold of a dead reader ends. A living
reader renews its hold in time. The clocks of readers and of the process that vacuums may differ by
up to `clock_difference_seconds_max`.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import dataclass

from pyspark_diff import thresholds
from pyspark_diff.errors import NotReadableError
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.objects import Objects

#: The seconds after its time of writing during which an unreadable hold counts.
GRACE = 3600.0

_FORMAT = 1
_NAME = re.compile(r"readers/[0-9a-f]{16}\.json")


class ReadHold:
    """A claim on one commit that this process reads. `take` creates it.

    Examples
    --------
    >>> from pyspark_diff.trace.roots import objects_at
    >>> objects = objects_at("memory://doctest-holds")
    >>> _ = Commits(objects).make(b"state")
    >>> hold = ReadHold.take(objects, 0, 60)
    >>> hold.expired, [live.commit for live in stored_holds(objects, time.time())[0]]
    (False, [0])
    >>> hold.release()
    >>> stored_holds(objects, time.time())
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
        """Hold a commit for some seconds. A `NotReadableError` if it was retired already."""
        until = time.time() + seconds
        name = f"readers/{secrets.token_hex(8)}.json"
        objects.create(name, [_text(commit_number, until)])
        hold = cls(objects, name, commit_number, seconds, until)
        try:
            # Only now: a retirement of commits reads the holds again at its end.
            Commits(objects).read(commit_number)
        except BaseException:
            hold.release()
            raise
        return hold

    @property
    def expired(self) -> bool:
        return time.time() >= self.until

    def renew(self) -> None:
        """Hold for the same number of seconds again, from now on.

        A `NotReadableError` if the hold has expired, or is gone: then its commit may be gone, too.
        """
        try:
            is_live = not self.expired and bool(self.objects.read(self.name))
        except FileNotFoundError:
            is_live = False
        if not is_live:
            raise NotReadableError(
                f"the read hold {self.name!r} on commit {self.commit} of {self.objects.root!r} has "
                "expired, so the commit may be gone. Take a new hold on the last commit, and renew "
                "it in time"
            )
        until = time.time() + self.seconds
        self.objects.replace(self.name, _text(self.commit, until))
        self.until = until

    def release(self) -> None:
        """End the hold. A second call does nothing."""
        self.until = 0.0
        self.objects.delete([self.name])

    def __repr__(self) -> str:
        state = "expired" if self.expired else f"{self.until - time.time():.0f} s left"
        return f"<ReadHold on commit {self.commit} of {self.objects.root!r}, {state}>"


def read_with_hold(
    objects: Objects, commits: Commits, number: int | None, seconds: float
) -> tuple[Commit, ReadHold]:
    """Read a commit, or the latest one, and take a hold on it.

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
            # A concurrent vacuum did not see the hold: there is a later commit.
            if number is not None:
                raise


@dataclass(frozen=True)
class StoredHold:
    """A hold of any process, read from the store."""

    name: str
    #: None if the hold cannot be read: it may be any commit.
    commit: int | None
    until: float
    #: The reason why the hold cannot be read.
    damage: str | None = None


def stored_holds(objects: Objects, now: float) -> tuple[list[StoredHold], list[StoredHold]]:
    """The live holds of a store, and the expired ones.

    An unreadable hold counts for `GRACE` seconds after its time of writing.
    """
    live: list[StoredHold] = []
    expired: list[StoredHold] = []
    for item in objects.names("readers"):
        if not _NAME.fullmatch(item.name):
            continue  # not ours
        try:
            hold = _read(item.name, objects.read(item.name), item.modified)
        except FileNotFoundError:
            continue  # released meanwhile
        until = hold.until + thresholds.current.clock_difference_seconds_max
        (live if now < until else expired).append(hold)
    return live, expired


def _text(commit: int, until: float) -> bytes:
    return json.dumps({"format": _FORMAT, "commit": commit, "until": until}).encode()


def _read(name: str, data: bytes, modified: float) -> StoredHold:
    try:
        content = json.loads(data) if len(data) < 4096 else None
        if isinstance(content, dict) and content.keys() == {"format", "commit", "until"}:
            commit, until = content["commit"], content["until"]
            right = type(commit) is int and commit >= 0 and isinstance(until, (int, float))
            if right and content["format"] == _FORMAT and 0 <= until < 1e12:
                return StoredHold(name, commit, float(until))
    except (ValueError, RecursionError):
        pass
    return StoredHold(name, None, modified + GRACE, "it is not in the format of holds")

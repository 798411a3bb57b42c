"""The commits that the objects of a store show: their listing, the floor and the hint.

::

    the hint has the number N        =>  commit N was created
    a number is below the floor      =>  it does not count

A listing may be late and lack recent commits. Then `sizes` requests their names one by one.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_diff.errors import StorageError
from pyspark_diff.trace import manifest
from pyspark_diff.trace.manifest import Commit, name_of, number_in
from pyspark_diff.trace.objects import HEAD, Objects

_logger = logging.getLogger("pyspark_diff")

#: The most commits that a process requests after the last one of a listing that may be late.
_MOST_LATE = 1000
_FLOOR = re.compile(r"floor/(\d{16})")
_HINT = re.compile(rb"(\d{16}) ([0-9a-f]{32}) ([0-9a-f]{8})\n")


class Hint(NamedTuple):
    """The number of the last commit in the hint, and the identity of its store.

    The number is -1 without a readable hint. The hint may be a copy from another store.
    """

    number: int
    store: str


class Listing:
    """The numbers of commits at a root, as its objects show them. Nothing is remembered."""

    def __init__(self, objects: Objects):
        self._objects = objects

    def sizes(self, hint: int, last: int) -> dict[int, int]:
        """The lengths of all objects of commits, by their numbers.

        Parameters
        ----------
        hint, last : int
            Numbers of commits that exist or existed: of the hint, and of this process's last
            commit; -1 if unknown.
        """
        sizes = {
            number: listed.size
            for listed in self._objects.names("commits")
            if (number := number_in(listed.name)) is not None
        }
        return sizes if self._objects.lists_all else self._completed(sizes, max(hint, last))

    def _completed(self, listed: Mapping[int, int], known: int) -> dict[int, int]:
        """Add the commits that a late listing lacks, with a request for each name.

        Numbers have no gaps, so the search ends at the first missing number.
        """
        top = max(*listed, known, 0)
        sizes = dict(listed)
        for number in range(min(listed, default=top), top + 1):
            self._add_size(sizes, number)
        newer = range(top + 1, top + 1 + _MOST_LATE)
        for numbers in newer, range(min(sizes, default=0) - 1, -1, -1):
            for number in numbers:
                if not self._add_size(sizes, number):
                    break
        return sizes

    def _add_size(self, sizes: dict[int, int], number: int) -> bool:
        """Add the length of a commit's object; False if there is none."""
        if number not in sizes:
            try:
                sizes[number] = len(self._objects.read(name_of(number)))
            except FileNotFoundError:
                return False
            except StorageError:
                return False  # its reader raises the reason
        return True

    def _floors(self) -> list[int]:
        matches = (_FLOOR.fullmatch(listed.name) for listed in self._objects.names("floor"))
        return [int(match[1]) for match in matches if match]

    def floor(self) -> int:
        """The floor: lower numbers do not count."""
        return max(self._floors(), default=0)

    def create_floor(self, number: int) -> None:
        """Create a floor."""
        self._objects.create(f"floor/{number:016d}", [b""])

    def delete_old_floors(self) -> None:
        """Delete all but the last two floors: concurrent readers may have the previous one."""
        self._objects.delete([f"floor/{number:016d}" for number in sorted(self._floors())[:-2]])

    def hint(self) -> Hint:
        """The hint at the last commit."""
        for _ in range(2):  # a writer may overwrite it during the first read
            try:
                match = _HINT.fullmatch(self._objects.read(HEAD))
            except FileNotFoundError:
                return Hint(-1, "")
            if match is not None and int(match[3], 16) == zlib.crc32(match[0][:-10]):
                return Hint(int(match[1]), match[2].decode())
        _logger.warning(
            "%s/%s, a hint at the last commit, is damaged; the next commit writes it again",
            self._objects.root, HEAD,
        )
        return Hint(-1, "")

    def write_hint(self, commit: Commit) -> None:
        """Make a commit the one of the hint. A failure is logged: the commit is in the store."""
        text = f"{commit.number:016d} {commit.store}".encode()
        try:
            self._objects.replace(HEAD, text + b" %08x\n" % zlib.crc32(text), lasting=False)
        except StorageError as error:
            # The commit is there. Without the hint only a loss of the last commit goes undetected.
            _logger.warning("commit %d is there, its hint is not: %s", commit.number, error)


def is_commit(size: int) -> bool:
    """Whether an object of this length is a commit, and not the remains of a retired one."""
    return not manifest.is_tombstone(size) and not manifest.is_payload(size)

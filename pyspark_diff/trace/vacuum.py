"""Removing what no commit that is kept needs, and finding what is not as it was written.

::

    retained = the last commits, those that live read holds name
    a file is deleted  =>  no retained commit lists it, its epoch is over or the store's own,
                           it is older than the grace period

First commits are retired, for good, then files are deleted: ended anywhere in between, it leaves
files that nobody lists, which the next run finds. A hold that was taken meanwhile is seen before
anything is deleted, and what it names is put back.
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pyspark_diff.errors import StorageError
from pyspark_diff.trace import manifest, read_holds
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.manifest import DATA_FILE, Retired, name_of
from pyspark_diff.trace.objects import Objects

_logger = logging.getLogger("pyspark_diff")

#: A file of ours, also one that no commit would ever list.
_FILE = re.compile(r"data/e(\d{4,9})-[^/]{1,200}-[0-9a-f]{12}\.durable/[^/]{1,250}\.arrow")
#: How many bytes of a file are looked at together.
_PIECE = 1 << 23


@dataclass(frozen=True)
class Vacuumed:
    """What a vacuum has removed, or would remove.

    Attributes
    ----------
    files : tuple of str
        Files, by their names in the store.
    bytes : int
        How many bytes they have.
    commits : tuple of int
        The commits that cannot be read any more.
    expired_holds : tuple of str
        Read holds that had expired.
    """

    files: tuple[str, ...]
    bytes: int
    commits: tuple[int, ...]
    expired_holds: tuple[str, ...]


def vacuum(
    objects: Objects,
    commits: Commits,
    retain: int,
    *,
    dry_run: bool = True,
    older_than: float = 3600.0,
    keep: Collection[str] = (),
) -> Vacuumed:
    """Retire all commits but the last ones and those that are read, and delete what is unlisted.

    Parameters
    ----------
    objects : Objects
    commits : Commits
        Of the same root.
    retain : int
        How many commits stay, at least one.
    dry_run : bool
        Only say what would be done.
    older_than : float
        Files younger than so many seconds stay: they may be of a commit that is being made.
    keep : collection of str
        Files that stay, by their names: this process still reads them.
    """
    if retain < 1:
        raise ValueError(f"retain is {retain}, and the last commit always stays: give 1 or more")
    now = time.time()
    latest = commits.latest()
    epoch = min(latest.epoch, commits.last.epoch) if commits.last else latest.epoch
    live, expired = read_holds.standing(objects, now)
    for hold in live:
        if hold.damage:
            _logger.warning(
                "the read hold %s of %s cannot be read: %s. Until it expires nothing is retired",
                hold.name, objects.root, hold.damage,
            )
    before = max(latest.number - retain + 1, 0)
    numbers = commits.numbers()
    if any(hold.commit is None for hold in live):
        before = 0
    held = {hold.commit for hold in live if hold.commit is not None}
    going = [n for n in numbers if n < before and n not in held]
    kept = commits.read_all(n for n in numbers if n not in going)

    if not dry_run and going:
        kept |= _retire(objects, commits, before, held, going, now)
        going = [n for n in going if n not in kept]
    listed = {name for commit in kept.values() for name in commit.files} | set(keep)
    files = list(_unlisted(objects, listed, epoch, now - older_than))
    if not dry_run:
        for hold in expired:
            _logger.warning(
                "the read hold %s on commit %s of %s had expired and is removed: its reader has "
                "died, or has not renewed it", hold.name, hold.commit, objects.root,
            )
        objects.delete([hold.name for hold in expired])
        objects.delete([name for name, _ in files])
        objects.remove_empty("data", now - older_than)
    return Vacuumed(
        tuple(sorted(name for name, _ in files)), sum(size for _, size in files), tuple(going),
        tuple(sorted(hold.name for hold in expired)),
    )


def verify(objects: Objects, commit: Commit, *, full: bool) -> list[str]:
    """What is wrong with what a commit stands on, a line for each; nothing if all is there.

    Looks at the length of each file; if `full` also at each byte of the files and segments.
    """
    wrong = []
    sizes = {found.name: found.size for found in objects.names("data")}
    for name, info in commit.files.items():
        if name not in sizes and not _is_whole(objects, name, info.length):
            wrong.append(f"{name}: it is missing")
        elif sizes.get(name, info.length) != info.length:
            wrong.append(f"{name}: it has {sizes[name]:,} bytes, and had {info.length:,}")
        elif full:
            found = DATA_FILE.fullmatch(name)
            if found is None or _checksum(objects, name, info.length) != int(found[3], 16):
                wrong.append(f"{name}: it is not as it was written")
    for number in (*commit.uses, commit.number):
        wrong += _wrong_in(objects, commit, number, full)
    return wrong


def _retire(
    objects: Objects, commits: Commits, before: int, held: set[int], going: list[int], now: float
) -> dict[int, Commit]:
    """Retire commits; those that came to be held meanwhile are put back, and returned."""
    going_commits = commits.read_all(going)
    needed = {n for commit in going_commits.values() for n in (commit.number, *commit.uses)}
    were = {}
    for number in sorted(needed):
        try:
            were[number] = objects.read(name_of(number))
        except FileNotFoundError:
            pass  # it was damaged before, and goes all the same
    commits.retire(before, keep=held, collapse=False)
    live, _ = read_holds.standing(objects, now)
    put_back = {
        n: commit for n, commit in going_commits.items()
        if any(hold.commit in (None, n) and hold.commit not in held for hold in live)
    }
    # What they use first: a commit that is there is whole.
    used = {n for commit in put_back.values() for n in commit.uses}
    for number in sorted(used & set(were) - set(put_back)):
        found = manifest.decode(were[number], number)
        if isinstance(found, Retired):
            objects.replace(name_of(number), were[number])
        elif number in going_commits:
            objects.replace(name_of(number), manifest.payload_of(found, were[number]))
    for number in put_back:
        objects.replace(name_of(number), were[number])
    commits.collapse()
    return put_back


def _unlisted(
    objects: Objects, listed: set[str], epoch: int, before: float
) -> Iterable[tuple[str, int]]:
    """Old files of finished epochs that are not listed, and what was left half-written."""
    for found in objects.names("data"):
        name = _FILE.fullmatch(found.name)
        if name and int(name[1]) <= epoch and found.name not in listed and found.modified < before:
            yield found.name, found.size
    for found in objects.leftovers():
        if found.modified < before:
            yield found.name, found.size


def _checksum(objects: Objects, name: str, length: int) -> int:
    checksum = 0
    for offset in range(0, length, _PIECE):
        checksum = zlib.crc32(objects.read_range(name, offset, _PIECE), checksum)
    return checksum


def _is_whole(objects: Objects, name: str, length: int) -> bool:
    """Whether a file that a listing lacks is there with all its bytes: a listing may be late."""
    if objects.lists_all:
        return False
    begin = max(length - 1, 0)
    try:
        return len(objects.read_range(name, begin, 2)) == length - begin
    except (FileNotFoundError, StorageError):
        return False


def _wrong_in(objects: Objects, commit: Commit, number: int, full: bool) -> list[str]:
    """What is wrong with the object of a commit, or with what is left of it."""
    name = name_of(number)
    try:
        data = objects.read(name)
        found = manifest.decode(data, number)
    except FileNotFoundError:
        return [f"{name}: it is missing"]
    except StorageError as error:
        return [f"{name}: {error}"]
    if found.store != commit.store:
        return [f"{name}: it is of another store"]
    if number != commit.number and not found.segments:
        return [f"{name}: its payload is missing"]
    return [
        f"{name}: {segment.length:,} bytes at {segment.offset:,} are not as they were written"
        for segment in (found.segments if full else ())
        if zlib.crc32(data[segment.offset:segment.offset + segment.length]) != segment.checksum
    ]

"""The removal of files that no retained commit needs, and the check of a commit's files.

::

    retained = the last commits, and the commits of live read holds

    a file is deleted  =>  no retained commit lists it, its epoch is over or the store's own,
                           and it is older than the grace period

First commits are retired, for good, and then files are deleted. An interruption in between leaves
unlisted files, which the next run deletes. Before a deletion the run reads the holds again: a
commit with a new hold is put back.
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

#: A file of a store, even one that no commit would ever list.
_FILE = re.compile(r"data/e(\d{4,9})-[^/]{1,200}-[0-9a-f]{12}\.durable/[^/]{1,250}\.arrow")
#: The bytes of one request of a check.
_PIECE = 1 << 23


@dataclass(frozen=True)
class Vacuumed:
    """The files that a vacuum has removed, or would remove.

    Attributes
    ----------
    files : tuple of str
        Their names in the store.
    bytes : int
        Their total length.
    commits : tuple of int
        The commits that are retired.
    expired_holds : tuple of str
        The expired read holds.
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
    """Retire all commits except the last ones and those with a hold, and delete unlisted files.

    Parameters
    ----------
    commits : Commits
        The commits of the same root.
    retain : int
        The number of last commits that stay, at least 1.
    dry_run : bool
        Only report the changes, and make none.
    older_than : float
        Files younger than this number of seconds stay: an unfinished commit may need them.
    keep : collection of str
        Names of files that stay, because this process still reads them.
    """
    if retain < 1:
        raise ValueError(f"retain is {retain}, and the last commit always stays. Pass 1 or more")
    now = time.time()
    latest = commits.latest()
    epoch = min(latest.epoch, commits.last.epoch) if commits.last else latest.epoch
    live, expired = read_holds.stored_holds(objects, now)
    for hold in live:
        if hold.damage:
            _logger.warning(
                "the read hold %s of %s cannot be read: %s. No commit is retired until it expires",
                hold.name, objects.root, hold.damage,
            )
    before = max(latest.number - retain + 1, 0)
    numbers = commits.numbers()
    if any(hold.commit is None for hold in live):
        before = 0
    on_hold = {hold.commit for hold in live if hold.commit is not None}
    going = [n for n in numbers if n < before and n not in on_hold]
    retained = commits.read_all(n for n in numbers if n not in going)

    if not dry_run and going:
        retained |= _retire(objects, commits, before, on_hold, going, now)
        going = [n for n in going if n not in retained]
    listed = {name for commit in retained.values() for name in commit.files} | set(keep)
    files = list(_unlisted(objects, listed, epoch, now - older_than))
    if not dry_run:
        for hold in expired:
            _logger.warning(
                "the read hold %s on commit %s of %s had expired and is removed: its reader died, "
                "or did not renew it", hold.name, hold.commit, objects.root,
            )
        objects.delete([hold.name for hold in expired])
        objects.delete([name for name, _ in files])
        objects.remove_empty("data", now - older_than)
    return Vacuumed(
        tuple(sorted(name for name, _ in files)), sum(size for _, size in files), tuple(going),
        tuple(sorted(hold.name for hold in expired)),
    )


def verify(objects: Objects, commit: Commit, *, full: bool) -> list[str]:
    """A line for each missing or changed file or segment that a commit needs.

    Checks the length of each file, and with `full` each byte of the files and segments.
    """
    wrong = []
    sizes = {item.name: item.size for item in objects.names("data")}
    for name, info in commit.files.items():
        if name not in sizes and not _is_whole(objects, name, info.length):
            wrong.append(f"{name}: it is missing")
        elif sizes.get(name, info.length) != info.length:
            wrong.append(f"{name}: it has {sizes[name]:,} bytes, and had {info.length:,}")
        elif full:
            match = DATA_FILE.fullmatch(name)
            if match is None or _checksum(objects, name, info.length) != int(match[3], 16):
                wrong.append(f"{name}: its bytes have changed")
    for number in (*commit.uses, commit.number):
        wrong += _wrong_in(objects, commit, number, full)
    return wrong


def _retire(
    objects: Objects, commits: Commits, before: int, on_hold: set[int], going: list[int],
    now: float,
) -> dict[int, Commit]:
    """Retire commits, put those with a new hold back, and return these."""
    going_commits = commits.read_all(going)
    needed = {n for commit in going_commits.values() for n in (commit.number, *commit.uses)}
    originals = {}
    for number in sorted(needed):
        try:
            originals[number] = objects.read(name_of(number))
        except FileNotFoundError:
            pass  # it was damaged before, and is retired like the others
    commits.retire(before, keep=on_hold, collapse=False)
    live, _ = read_holds.stored_holds(objects, now)
    put_back = {
        n: commit for n, commit in going_commits.items()
        if any(hold.commit in (None, n) and hold.commit not in on_hold for hold in live)
    }
    # First the payloads that they use, so that each commit in the chain is whole.
    used = {n for commit in put_back.values() for n in commit.uses}
    for number in sorted(used & set(originals) - set(put_back)):
        original = manifest.decode(originals[number], number)
        if isinstance(original, Retired):
            objects.replace(name_of(number), originals[number])
        elif number in going_commits:
            objects.replace(name_of(number), manifest.payload_of(original, originals[number]))
    for number in put_back:
        objects.replace(name_of(number), originals[number])
    commits.collapse()
    return put_back


def _unlisted(
    objects: Objects, listed: set[str], epoch: int, before: float
) -> Iterable[tuple[str, int]]:
    """Old files of finished epochs that are not listed, and old unfinished files."""
    for item in objects.names("data"):
        name = _FILE.fullmatch(item.name)
        if name and int(name[1]) <= epoch and item.name not in listed and item.modified < before:
            yield item.name, item.size
    for item in objects.leftovers():
        if item.modified < before:
            yield item.name, item.size


def _checksum(objects: Objects, name: str, length: int) -> int:
    checksum = 0
    for offset in range(0, length, _PIECE):
        checksum = zlib.crc32(objects.read_range(name, offset, _PIECE), checksum)
    return checksum


def _is_whole(objects: Objects, name: str, length: int) -> bool:
    """Whether a file outside of a listing exists with all its bytes: a listing may be late."""
    if objects.lists_all:
        return False
    begin = max(length - 1, 0)
    try:
        return len(objects.read_range(name, begin, 2)) == length - begin
    except (FileNotFoundError, StorageError):
        return False


def _wrong_in(objects: Objects, commit: Commit, number: int, full: bool) -> list[str]:
    """A line for each fault of the object of a commit, retired or not."""
    name = name_of(number)
    try:
        data = objects.read(name)
        content = manifest.decode(data, number)
    except FileNotFoundError:
        return [f"{name}: it is missing"]
    except StorageError as error:
        return [f"{name}: {error}"]
    if content.store != commit.store:
        return [f"{name}: it is of another store"]
    if number != commit.number and not content.segments:
        return [f"{name}: its payload is missing"]
    return [
        f"{name}: its {segment.length:,} bytes at {segment.offset:,} have changed"
        for segment in (content.segments if full else ())
        if zlib.crc32(data[segment.offset:segment.offset + segment.length]) != segment.checksum
    ]

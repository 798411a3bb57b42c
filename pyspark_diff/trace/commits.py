"""The chain of commits of a store: numbered without gaps, each made once, by one writer at a time.

::

    a name of the chain is never free again:  create(N + 1) = True  =>  N + 1 was not committed yet
    append returns commit N     =>  every later `latest` of anybody is N or a later one
    append raises a DiffError   =>  the chain is as it was, and stays so; after an
                                    `UnknownOutcomeError`, or damage there, that is not known

**Writers.** Who opens a store for writing appends a commit of the next epoch, with the same state.
Whoever wrote before finds its next number taken, and is fenced for good. Of an answer that is lost,
the nonce of what is there tells whose it is; where nothing is there, the same bytes are sent again,
so that it does not matter which of the requests arrives.

**Retirement.** A commit that is retired leaves a tombstone, or its payload if others need that.
Were tombstones just deleted, a writer that slept since could create an old number anew and take it
for a commit. So a floor is made first, below which no number counts, and who creates looks at the
floor again afterwards::

    a number below the floor is there as a commit  =>  it never was one

Commits are created and, when they are retired, replaced; nothing is ever compared and updated.

Readers, the writer and retirement are one class: each is right only by what the others do to the
listing, the floor and the hint, and apart they would have to be read side by side all the same.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import blake2b

from pyspark_diff.errors import (
    ConcurrentWriteError,
    DamagedStateError,
    NotReadableError,
    StorageError,
    UnknownOutcomeError,
)
from pyspark_diff.trace import manifest
from pyspark_diff.trace.manifest import (
    Commit,
    FileInfo,
    Payload,
    Retired,
    Segment,
    name_of,
    number_in,
    segments_of,
)
from pyspark_diff.trace.objects import FOLDERS, HEAD, INBOX, Objects

__all__ = ["Commit", "Commits", "FileInfo", "Segment", "segments_of"]

_logger = logging.getLogger("pyspark_diff")

#: With more tombstones than this, those below a new floor are deleted.
MOST_TOMBSTONES = 200
#: The most commits that are asked for after the last one of a listing that may be late.
_MOST_LATE = 1000
#: How often something is tried again that another process, or the network, may have come between.
_TRIES = 5
#: Seconds before the second try; it doubles.
_PAUSE = 0.02
_FLOOR = re.compile(r"floor/(\d{16})")
_HINT = re.compile(rb"(\d{16}) ([0-9a-f]{32}) ([0-9a-f]{8})\n")


class Commits:
    """The commits of the store at a root. One thread at a time appends.

    Parameters
    ----------
    objects : Objects

    Attributes
    ----------
    last : Commit or None
        What this object committed last, if it has the store open for writing. Taking it over is
        the commit point: it is set before `append` returns, and nothing can fail in between.

    Examples
    --------
    >>> from pyspark_diff.trace.roots import objects_at
    >>> commits = Commits(objects_at("memory://doctest-commits"))
    >>> commits.make(b"nothing yet").number
    0
    >>> commit = commits.append(b"some rows", [b"the rows"], {}, ())
    >>> commit.number, Commits(objects_at("memory://doctest-commits")).latest() == commit
    (1, True)
    """

    def __init__(self, objects: Objects):
        self.objects = objects
        self.last: Commit | None = None
        self._store: str | None = None
        #: The store that the hint is of, which may have come from another one.
        self._hinted = ""
        #: The commit that told which store it is.
        self._told_by = -1
        #: What was sent, and of which it is not known whether it is there.
        self._in_doubt: tuple[Commit, list[bytes | memoryview]] | None = None
        #: The nonces of attempts that were told to have failed.
        self._failed: set[str] = set()
        #: Why this object may not write any more, and what it will never find out.
        self._fenced: str | None = None
        self._never_known: str | None = None

    @property
    def next_number(self) -> int:
        """The number of the next commit."""
        return self._writing().number + 1

    def exists(self) -> bool:
        """Whether there is a store at the root, or what is left of one."""
        return bool(self._numbers() or self._floor() or self._hint() >= 0)

    def make(
        self,
        state: bytes,
        *,
        payload: Payload = (),
        files: Mapping[str, FileInfo] | None = None,
        token: str | None = None,
    ) -> Commit:
        """Make a store where there is none: its commit 0, of epoch 1.

        What a process left behind that was killed while it made one is no hindrance. Files of
        others are: a `StorageError` names some, and nothing is touched.
        """
        self._refuse_what_is_there()
        self.objects.probe()
        commit = Commit(
            0, 1, secrets.token_hex(16), "", secrets.token_hex(16), _now(), token,
            dict(files or {}), (), segments_of(payload), state,
        )
        self._put(commit, payload)
        self._hint_at(commit)
        return commit

    def numbers(self) -> list[int]:
        """The commits that can be read, oldest first."""
        sizes = self._numbers()
        floor = self._floor()
        return sorted(n for n, size in sizes.items() if n >= floor and _is_commit(size))

    def latest(self) -> Commit:
        """The last commit.

        Raises
        ------
        DamagedStateError
            Where it cannot be told to be the last, or is not whole. It is never an earlier one
            because that one could be read.
        """
        for tries in range(_TRIES):
            # In this order: what is hinted at is there by the time of the listing, and what is
            # below the floor may have gone since.
            hint = self._hint()
            sizes = self._numbers(hint)
            floor = self._floor()
            try:
                return self._last_of(hint, sizes, floor)
            except (DamagedStateError, FileNotFoundError) as error:
                # A listing may be torn by who writes or retires at the same time.
                if tries == _TRIES - 1:
                    if isinstance(error, DamagedStateError):
                        raise
                    raise self._lost(f"{error.filename!r} is gone") from error
                time.sleep(_PAUSE * 2**tries)
        raise AssertionError("unreachable")

    def read(self, number: int) -> Commit:
        """A commit that was not retired."""
        if self._store is None:
            self._learn_store(number)
        try:
            found = self._decoded(number)
        except FileNotFoundError:
            found = None
        if isinstance(found, Commit) and number >= self._floor():
            return found
        there = self.numbers()
        if found is None and there and self._floor() <= number <= max(there[-1], self._hint()):
            raise self._lost(f"{name_of(number)!r} is gone")
        if not there:
            self.latest()  # the last commit always stays, so something is wrong: that is said
        raise NotReadableError(
            f"there is no commit {number} in {self.objects.root!r} any more, or not yet: those "
            f"that can be read are {_ranges(there) or 'none'}. Read one of them; how many are "
            "kept is set by the retention of the store"
        )

    def read_all(self, numbers: Iterable[int]) -> dict[int, Commit]:
        """Those of some commits that nobody retires meanwhile."""
        found = {}
        for number in numbers:
            try:
                found[number] = self.read(number)
            except NotReadableError:
                pass
        return found

    def segment_bytes(self, number: int, segment: Segment) -> bytes:
        """A segment of a commit, or of one whose payload is still used, as it was written."""
        name = name_of(number)
        try:
            data = self.objects.read_range(name, segment.offset, segment.length)
        except FileNotFoundError:
            raise self._lost(f"{name!r} is gone") from None
        if len(data) != segment.length or zlib.crc32(data) != segment.checksum:
            raise DamagedStateError(
                f"{self.objects.root}/{name}: {segment.length:,} bytes at {segment.offset:,} are "
                "not as they were written, or not there. Nothing of them was used. Put the object "
                "back from a copy of the store, or start a new one"
            )
        return data

    def open_for_writing(self) -> Commit:
        """Take the store over: the next commit, of a new epoch, with the state of the last one.

        Every writer before is fenced. Where several open at once, each of them wins over those
        before it, and the last goes on.
        """
        self.objects.probe()
        for tries in range(_TRIES):
            last = self.latest()
            used = {last.number} if last.segments else set()
            commit = replace(
                last, number=last.number + 1, epoch=last.epoch + 1, nonce=secrets.token_hex(16),
                previous=last.nonce, written=_now(), segments=(), token=None,
                uses=tuple(sorted({*last.uses, *used})),
            )
            self._fenced = self._never_known = None
            try:
                self._put(commit, ())
            except ConcurrentWriteError:
                if tries == _TRIES - 1:
                    raise
                time.sleep(_PAUSE * 2**tries * (1 + secrets.randbelow(100) / 100))
                continue
            self._hint_at(commit)
            return commit
        raise AssertionError("unreachable")

    def append(
        self,
        state: bytes,
        payload: Payload,
        files: Mapping[str, FileInfo],
        uses: Iterable[int],
        token: str | None = None,
    ) -> Commit:
        """Commit: the state, with its payload, the files and the older payloads it stands on.

        Raises
        ------
        ConcurrentWriteError
            Another writer has the store. Nothing was committed, and nothing will be.
        UnknownOutcomeError
            The store could not be reached to see whether the commit is there. Nothing more is
            committed until `settle` has found out.
        """
        last = self._writing()
        self._refuse_doubt()
        if self._fenced is not None:
            raise ConcurrentWriteError(self._fenced)
        commit = Commit(
            last.number + 1, last.epoch, secrets.token_hex(16), last.nonce, last.store, _now(),
            token, dict(files), tuple(sorted(set(uses))), segments_of(payload), state,
        )
        self._put(commit, payload)
        self._hint_at(commit)
        return commit

    def settle(self) -> Commit | None:
        """Find out whether the commit that is in doubt is there.

        Returns it if it is; None if it is not and never will be: a commit with the state of the one
        before then has its number, so that a request that is still under way comes to nothing.
        Without a doubt that is None. As long as the store cannot be reached, the error says so; and
        if others have committed and retired so much since that it cannot be told any more.
        """
        if self._never_known is not None:
            raise UnknownOutcomeError(self._never_known)
        if self._in_doubt is None:
            return None
        commit, _ = self._in_doubt
        before = self.last
        if before is not None and before.nonce == commit.previous:
            used = {before.number} if before.segments else set()
            empty = replace(
                before, number=commit.number, previous=before.nonce, written=_now(), token=None,
                # The same each time, should this one be in doubt as well.
                nonce=blake2b(commit.nonce.encode(), digest_size=16).hexdigest(), segments=(),
                uses=tuple(sorted({*before.uses, *used})),
            )
            parts = manifest.encode(empty, ())
        else:
            empty, parts = self._in_doubt
        try:
            self._send(empty, parts, commit, doubtful=True)
        except ConcurrentWriteError:
            return None  # the next append says so
        return commit if self.last is not None and self.last.nonce == commit.nonce else None

    def retire(
        self, before: int, *, keep: Collection[int] = (), collapse: bool = True
    ) -> list[int]:
        """Retire all commits below a number but some; the last commit always stays.

        A tombstone, or the payload if one that stays uses it, takes the place of each. It may be
        ended anywhere and done again. Returns the numbers that were retired. Where tombstones have
        become many, those below the oldest commit go, which `collapse` does by itself.
        """
        last = self.latest()
        before = min(before, last.number)
        sizes = self._numbers()
        floor = self._floor()
        staying = {
            n for n, size in sizes.items()
            if n >= floor and _is_commit(size) and (n >= before or n in keep)
        }
        used = {n for commit in self.read_all(staying).values() for n in commit.uses}
        retired = []
        for number, size in sorted(sizes.items()):
            whole = _is_commit(size)
            if number in staying or number > last.number or whole and number < floor:
                continue  # below the floor it never was a commit: who made it removes it
            if number not in used and not manifest.is_tombstone(size):
                self._replace(number, used=False)
            elif whole:
                self._replace(number, used=True)
            if whole:
                retired.append(number)
        if collapse:
            self.collapse()
        return retired

    def collapse(self) -> None:
        """Delete tombstones when there are many: those below a floor that is made before."""
        sizes = self._numbers()
        floor = self._floor()
        gone = [n for n, size in sizes.items() if manifest.is_tombstone(size)]
        least = min(n for n, size in sizes.items() if n >= floor and _is_commit(size))
        if len(gone) > MOST_TOMBSTONES and least > floor:
            self.objects.create(f"floor/{least:016d}", [b""])
            floor = least
        self.objects.delete([name_of(n) for n in gone if n < floor])
        # The one before stays for who is reading the listing now.
        older = sorted(self._floors())[:-2]
        self.objects.delete([f"floor/{n:016d}" for n in older])

    def _put(self, commit: Commit, payload: Payload) -> None:
        """Create the object of a commit, and be sure of it; `last` is it then."""
        self._send(commit, manifest.encode(commit, payload))

    def _send(
        self,
        commit: Commit,
        parts: Sequence[bytes | memoryview],
        also: Commit | None = None,
        *,
        doubtful: bool = False,
    ) -> None:
        """Create an object until it is known to be there, or another one in its place.

        Where the attempt that is in doubt turns up instead, that is committed. It is `doubtful`
        whether something like it was there already once some attempt has had no answer.
        """
        name = name_of(commit.number)
        if also is None:
            self._in_doubt = commit, list(parts)
        reason: Exception | None = None
        for tries in range(_TRIES):
            if tries:
                time.sleep(_PAUSE * 2**tries)
            try:
                made = self.objects.create(name, parts)
            except UnknownOutcomeError as error:
                reason = error
                doubtful = True
                made = False
            except StorageError as error:
                if not doubtful:
                    # Refused at once, so that it is certain.
                    self._in_doubt = None
                    self._failed.add(commit.nonce)
                    raise
                reason = error
                continue
            try:
                found = commit if made else self._decoded(commit.number)
                if not made and found.nonce in (commit.nonce, also and also.nonce):
                    self.objects.secure(name)
                self._judge(commit, found, also, doubtful)
                return
            except (DamagedStateError, UnknownOutcomeError):
                raise
            except FileNotFoundError as error:
                # Nothing is there: the same bytes again, and it does not matter which arrive.
                reason = reason or error
                doubtful = True
            except StorageError as error:
                reason = error
                doubtful = True
        raise UnknownOutcomeError(
            f"it is not known whether commit {commit.number} is in {self.objects.root!r}: "
            f"{reason}. Nothing more is committed until that is settled; when the store can be "
            "reached, opening it again gives what is there"
        ) from reason

    def _judge(
        self, commit: Commit, found: Commit | Retired, also: Commit | None, doubtful: bool
    ) -> None:
        """What it means that this was found under the name of a commit of ours."""
        won = next((mine for mine in (commit, also) if mine and mine.nonce == found.nonce), None)
        passed = commit.number < self._floor()
        if won is not None and passed and self._is_late(won):
            try:
                self.objects.delete([name_of(won.number)])
            except StorageError:
                pass  # it never counts
            won = None
        if won is not None:
            self._store, self._told_by = won.store, won.number
            # One assignment: what comes after may fail without a harm.
            self.last = won
            self._in_doubt = None
            self._failed.clear()
            return
        if found.nonce in self._failed:
            raise UnknownOutcomeError(
                f"commit {commit.number} of {self.objects.root!r} is there, of an attempt that was "
                "told to have failed. Open the store again to go on from it"
            )
        try:
            theirs = self.latest().epoch
        except StorageError:
            theirs = found.epoch
        self._fenced = (
            f"commit {commit.number} of {self.objects.root!r} was not made: this writer, of epoch "
            f"{commit.epoch}, has lost the store to one of epoch {theirs}. Nothing of it was "
            "written. If both are meant to write, open it again and repeat; else end this one"
        )
        self._in_doubt = None
        if passed and doubtful:
            self._never_known = (
                f"whether commit {commit.number} was in {self.objects.root!r} cannot be told any "
                f"more: a writer of epoch {theirs} has the store now, and has retired that number. "
                "Open the store again, and see whether what it was to commit is there"
            )
            raise UnknownOutcomeError(self._never_known)
        raise ConcurrentWriteError(self._fenced)

    def _is_late(self, commit: Commit) -> bool:
        """Whether a commit below the floor was made after its number had been retired.

        Those that were there in time were retired before the floor was made.
        """
        try:
            found = self._decoded(commit.number)
        except FileNotFoundError:
            return False
        return isinstance(found, Commit) and found.nonce == commit.nonce

    def _last_of(self, hint: int, sizes: Mapping[int, int], floor: int) -> Commit:
        chain = sorted(n for n in sizes if n >= floor)
        if not chain and hint < 0 and not floor:
            raise StorageError(
                f"there is no store in {self.objects.root!r}. See that this is the root that it "
                "was made with"
            )
        last = chain[-1] if chain else -1
        missing = next((n for at, n in enumerate(chain) if n != floor + at), None)
        if missing is not None or not chain:
            gap = floor + next((at for at, n in enumerate(chain) if n != floor + at), 0)
            raise self._lost(f"commit {gap} is missing, and {last if chain else 'none'} is there")
        if hint > last and self._hinted == self._decoded(last).store:
            raise self._lost(f"commit {hint} was made, and {last} is the last that is there")
        if not _is_commit(sizes[last]):
            raise self._lost(f"commit {last}, the last, is cut short, or was retired")
        found = self._decoded(last)
        if not isinstance(found, Commit):
            raise self._lost(f"commit {last}, the last, was retired")
        if last > floor and self._decoded(last - 1).nonce != found.previous:
            raise self._lost(f"commit {last} does not follow from the commit {last - 1} there")
        return found

    def _lost(self, what: str) -> DamagedStateError:
        return DamagedStateError(
            f"the store {self.objects.root!r} is damaged: {what}. An earlier commit is not taken "
            "for the last. Put the folder of commits back from a copy of the store, or start a new "
            "one"
        )

    def _decoded(self, number: int) -> Commit | Retired:
        found = manifest.decode(self.objects.read(name_of(number)), number)
        if self._store is None:
            self._store, self._told_by = found.store, number
        elif found.store != self._store:
            raise self._lost(
                f"{name_of(number)!r} is of another store than commit {self._told_by}"
            )
        return found

    def _learn_store(self, number: int) -> None:
        """Learn which store this is from the last commit but one that is to be read: that one may
        have come from another store."""
        for other in sorted(self._numbers(), reverse=True):
            if other != number:
                try:
                    self._decoded(other)
                    return
                except (StorageError, FileNotFoundError):
                    pass  # whoever needs it is told

    def _replace(self, number: int, *, used: bool) -> None:
        name = name_of(number)
        try:
            data = self.objects.read(name)
        except FileNotFoundError:
            return  # another vacuum was quicker
        found = manifest.decode(data, number)
        if used and isinstance(found, Commit):
            self.objects.replace(name, manifest.payload_of(found, data))
        elif not used:
            self.objects.replace(name, manifest.tombstone_of(found))

    def _refuse_what_is_there(self) -> None:
        root = self.objects.root
        if self.exists():
            raise StorageError(
                f"there is a store in {root!r} already; open it instead of making it"
            )
        foreign = self.objects.foreign()
        # A stream may have put rows there for a store that is to come.
        inside = sorted(
            found.name for folder in FOLDERS if folder != INBOX
            for found in self.objects.names(folder)
        )
        if foreign or inside:
            there = ", ".join(foreign + inside[:5])
            raise StorageError(
                f"{root!r} is not empty, and is no store: {there} and perhaps more are there. Give "
                "a folder of its own, or an empty one; nothing was touched"
            )

    def _writing(self) -> Commit:
        if self.last is None:
            raise StorageError(
                f"the store {self.objects.root!r} is not open for writing; call open_for_writing"
            )
        return self.last

    def _refuse_doubt(self) -> None:
        if self._in_doubt is not None:
            raise UnknownOutcomeError(
                f"it is not known whether commit {self._in_doubt[0].number} is in "
                f"{self.objects.root!r}, so nothing more is committed; settle that first, or open "
                "the store again"
            )

    def _numbers(self, hint: int = -1) -> dict[int, int]:
        """The lengths of all objects of commits, by their numbers."""
        sizes = {
            number: found.size
            for found in self.objects.names("commits")
            if (number := number_in(found.name)) is not None
        }
        return sizes if self.objects.lists_all else self._completed(sizes, hint)

    def _completed(self, listed: Mapping[int, int], hint: int) -> dict[int, int]:
        """Add the commits that a late listing lacks, each of which is asked for by its name.

        Numbers have no gaps, so the search ends at the first one that is not there.
        """
        known = [*listed, hint, -1 if self.last is None else self.last.number]
        top = max(max(known), 0)
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
                sizes[number] = len(self.objects.read(name_of(number)))
            except FileNotFoundError:
                return False
            except StorageError:
                return False  # its reader raises the reason
        return True

    def _floors(self) -> list[int]:
        found = (_FLOOR.fullmatch(found.name) for found in self.objects.names("floor"))
        return [int(match[1]) for match in found if match]

    def _floor(self) -> int:
        return max(self._floors(), default=0)

    def _hint(self) -> int:
        """The last commit that anybody noted; -1 if there is no note that can be read."""
        for _ in range(2):  # it may be read while it is written over
            try:
                found = _HINT.fullmatch(self.objects.read(HEAD))
            except FileNotFoundError:
                return -1
            if found is not None and int(found[3], 16) == zlib.crc32(found[0][:-10]):
                self._hinted = found[2].decode()
                return int(found[1])
        _logger.warning(
            "%s/%s, a hint at the last commit, is damaged; it is written anew with the next",
            self.objects.root, HEAD,
        )
        return -1

    def _hint_at(self, commit: Commit) -> None:
        text = f"{commit.number:016d} {commit.store}".encode()
        try:
            self.objects.replace(HEAD, text + b" %08x\n" % zlib.crc32(text), lasting=False)
        except StorageError as error:
            # The commit is there; without the note only the loss of the last one is not seen.
            _logger.warning("commit %d is there, its note is not: %s", commit.number, error)


def _is_commit(size: int) -> bool:
    return not manifest.is_tombstone(size) and not manifest.is_payload(size)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in a few words.

    Examples
    --------
    >>> _ranges([0, 3, 4, 5])
    '0, 3 to 5'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts)

"""The chain of commits of a store: numbered without gaps, each created once, by one writer.

::

    create(N + 1) = True       =>  N + 1 was never committed: a used name is never free again

    append returns commit N    =>  every later `latest`, of any process, is N or a later commit

    append raises a DiffError  =>  the chain did not change, and will not; after an
                                   `UnknownOutcomeError`, or damage there, that is not known

**Writers.** A process that opens a store for writing appends a commit of the next epoch, with the
same state. The previous writer then cannot create its next number, and is fenced for good. After a
lost answer, the nonce of the object under the name identifies its writer. If there is no object,
the same bytes are sent again, so it does not matter which of the requests arrives.

**Retirement.** A retired commit leaves a tombstone, or its payload if other commits need that. If
tombstones were just deleted, a writer that slept meanwhile could create an old number again, and
take it for a commit. So a floor is created first, and numbers below it do not count. After each
creation of a commit, its writer reads the floor again::

    an object of a commit exists below the floor  =>  its number was never committed

Commits are created and, at their retirement, replaced. No object is ever compared and updated.

Readers, the writer and retirement are one class. Each is correct only by the actions of the others
on the listing, the floor and the hint (`pyspark_diff.trace.listing`), so a reader of separate
classes would need all three anyway.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import blake2b

from pyspark_diff import thresholds
from pyspark_diff.errors import (
    ConcurrentWriteError,
    DamagedStateError,
    NotReadableError,
    StorageError,
    UnknownOutcomeError,
)
from pyspark_diff.trace import manifest
from pyspark_diff.trace.listing import Hint, Listing, is_commit
from pyspark_diff.trace.manifest import (
    Commit,
    FileInfo,
    Payload,
    Retired,
    Segment,
    name_of,
    segments_of,
)
from pyspark_diff.trace.objects import FOLDERS, INBOX, Objects

__all__ = ["Commit", "Commits", "FileInfo", "Segment", "segments_of"]

#: The number of tries of an operation that another process, or the network, may interrupt.
_TRIES = 5


class Commits:
    """The commits of the store at a root. One thread at a time appends.

    Attributes
    ----------
    last : Commit or None
        The last commit of this object, if it has the store open for writing. Its assignment is the
        commit point: it happens before `append` returns, and no failure is possible in between.

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
        self._listing = Listing(objects)
        self.last: Commit | None = None
        self._store: str | None = None
        #: The commit from which this object read the identity of the store.
        self._identified_by = -1
        #: A commit with its bytes that were sent, if it is not known whether they arrived.
        self._in_doubt: tuple[Commit, list[bytes | memoryview]] | None = None
        #: The nonces of attempts that the caller knows as failed.
        self._failed: set[str] = set()
        #: The reason why this object may not write any more, and an outcome that stays unknown.
        self._fenced: str | None = None
        self._never_known: str | None = None

    @property
    def next_number(self) -> int:
        """The number of the next commit."""
        return self._writing().number + 1

    def exists(self) -> bool:
        """Whether the root has a store, or the rest of one."""
        return bool(self._numbers() or self._listing.floor() or self._listing.hint().number >= 0)

    def make(
        self,
        state: bytes,
        *,
        payload: Payload = (),
        files: Mapping[str, FileInfo] | None = None,
        token: str | None = None,
    ) -> Commit:
        """Create a store at an empty root: its commit 0, of epoch 1.

        Files of a process that was killed during a creation are no obstacle. For other files a
        `StorageError` names some of them, and no file changes.
        """
        self._refuse_other_files()
        self.objects.probe()
        commit = Commit(
            0, 1, secrets.token_hex(16), "", secrets.token_hex(16), _now(), token,
            dict(files or {}), (), segments_of(payload), state,
        )
        self._create(commit, payload)
        self._listing.write_hint(commit)
        return commit

    def numbers(self) -> list[int]:
        """The commits that can be read, oldest first."""
        sizes = self._numbers()
        floor = self._listing.floor()
        return sorted(n for n, size in sizes.items() if n >= floor and is_commit(size))

    def latest(self) -> Commit:
        """The last commit.

        Raises
        ------
        DamagedStateError
            If the objects do not show which commit is the last, or if that commit is not whole. An
            earlier commit is never returned in its place, even if it can be read.
        """
        for tries in range(_TRIES):
            # The order matters: the commit of the hint exists before the listing, and commits below
            # the floor may have been deleted after it.
            hint = self._listing.hint()
            sizes = self._numbers(hint.number)
            floor = self._listing.floor()
            try:
                return self._last_of(hint, sizes, floor)
            except (DamagedStateError, FileNotFoundError) as error:
                # A concurrent writer or retirement may make the listing inconsistent.
                if tries == _TRIES - 1:
                    if isinstance(error, DamagedStateError):
                        raise
                    raise self._lost(f"{error.filename!r} is gone") from error
                time.sleep(thresholds.current.commit_pause_seconds * 2**tries)
        raise AssertionError("unreachable")

    def read(self, number: int) -> Commit:
        """A commit that was not retired."""
        if self._store is None:
            self._learn_store(number)
        try:
            content = self._decoded(number)
        except FileNotFoundError:
            content = None
        if isinstance(content, Commit) and number >= self._listing.floor():
            return content
        readable = self.numbers()
        last = max(readable[-1], self._listing.hint().number) if readable else -1
        if content is None and readable and self._listing.floor() <= number <= last:
            raise self._lost(f"{name_of(number)!r} is gone")
        if not readable:
            self.latest()  # the last commit is never retired, so this raises the damage
        raise NotReadableError(
            f"there is no commit {number} in {self.objects.root!r} any more, or not yet. The "
            f"commits that can be read are {_ranges(readable) or 'none'}. Read one of them; the "
            "retention of the store sets how many it keeps"
        )

    def read_all(self, numbers: Iterable[int]) -> dict[int, Commit]:
        """The commits of some numbers, without those that are retired meanwhile."""
        commits = {}
        for number in numbers:
            try:
                commits[number] = self.read(number)
            except NotReadableError:
                pass
        return commits

    def segment_bytes(self, number: int, segment: Segment) -> bytes:
        """The verified bytes of a segment of a commit, or of a retired one with a used payload."""
        name = name_of(number)
        try:
            data = self.objects.read_range(name, segment.offset, segment.length)
        except FileNotFoundError:
            raise self._lost(f"{name!r} is gone") from None
        if len(data) != segment.length or zlib.crc32(data) != segment.checksum:
            raise DamagedStateError(
                f"{self.objects.root}/{name} is damaged: its {segment.length:,} bytes at "
                f"{segment.offset:,} have changed, or are missing. None of them were used. Put the "
                "object back from a copy of the store, or start a new store"
            )
        return data

    def open_for_writing(self) -> Commit:
        """Take the store over: append a commit of a new epoch, with the state of the last commit.

        This fences every previous writer. If several processes open the store at once, each fences
        the ones before it, and the last one continues.
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
                self._create(commit, ())
            except ConcurrentWriteError:
                if tries == _TRIES - 1:
                    raise
                pause = thresholds.current.commit_pause_seconds * 2**tries
                time.sleep(pause * (1 + secrets.randbelow(100) / 100))
                continue
            self._listing.write_hint(commit)
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
        """Commit a state with its payload, and the files and older payloads that it needs.

        Raises
        ------
        ConcurrentWriteError
            Another writer has the store. The state was not committed, and never will be.
        UnknownOutcomeError
            A failure of the store hides whether it has the commit. Further commits are refused
            until `settle` has determined that.
        """
        last = self._writing()
        self._refuse_doubt()
        if self._fenced is not None:
            raise ConcurrentWriteError(self._fenced)
        commit = Commit(
            last.number + 1, last.epoch, secrets.token_hex(16), last.nonce, last.store, _now(),
            token, dict(files), tuple(sorted(set(uses))), segments_of(payload), state,
        )
        self._create(commit, payload)
        self._listing.write_hint(commit)
        return commit

    def settle(self) -> Commit | None:
        """Determine whether the commit in doubt is in the store.

        Returns the commit if it is. Returns None if it is not and never will be: then a commit with
        the previous state has its number, so that a request still under way has no effect. Without
        a commit in doubt it returns None, too. An error says that the store cannot be reached, or
        that others have committed and retired so much meanwhile that the outcome is lost.
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
                # The same nonce in each call, as this commit may end up in doubt, too.
                nonce=blake2b(commit.nonce.encode(), digest_size=16).hexdigest(), segments=(),
                uses=tuple(sorted({*before.uses, *used})),
            )
            parts = manifest.encode(empty, ())
        else:
            empty, parts = self._in_doubt
        try:
            self._send(empty, parts, commit, doubtful=True)
        except ConcurrentWriteError:
            return None  # the next append raises it
        return commit if self.last is not None and self.last.nonce == commit.nonce else None

    def retire(
        self, before: int, *, keep: Collection[int] = (), collapse: bool = True
    ) -> list[int]:
        """Retire all commits below a number except some; the last commit always stays.

        A tombstone replaces each commit, or its payload does if a staying commit uses it. A call
        may be interrupted anywhere and repeated. Returns the retired numbers. If there are many
        tombstones, those below the oldest commit are deleted; `collapse` does only that.
        """
        last = self.latest()
        before = min(before, last.number)
        sizes = self._numbers()
        floor = self._listing.floor()
        staying = {
            n for n, size in sizes.items()
            if n >= floor and is_commit(size) and (n >= before or n in keep)
        }
        used = {n for commit in self.read_all(staying).values() for n in commit.uses}
        retired = []
        for number, size in sorted(sizes.items()):
            whole = is_commit(size)
            if number in staying or number > last.number or whole and number < floor:
                continue  # below the floor it never was a commit: its writer removes it
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
        """If there are many tombstones, create a new floor and delete those below it."""
        sizes = self._numbers()
        floor = self._listing.floor()
        gone = [n for n, size in sizes.items() if manifest.is_tombstone(size)]
        least = min(n for n, size in sizes.items() if n >= floor and is_commit(size))
        if len(gone) > thresholds.current.tombstones_max and least > floor:
            self._listing.create_floor(least)
            floor = least
        self.objects.delete([name_of(n) for n in gone if n < floor])
        self._listing.delete_old_floors()

    def _create(self, commit: Commit, payload: Payload) -> None:
        """Create the object of a commit, verify that it is there, and set `last` to it."""
        self._send(commit, manifest.encode(commit, payload))

    def _send(
        self,
        commit: Commit,
        parts: Sequence[bytes | memoryview],
        also: Commit | None = None,
        *,
        doubtful: bool = False,
    ) -> None:
        """Try to create an object until it, or another object under its name, is known to be there.

        If the name has the attempt in doubt instead, that attempt is the commit. After an attempt
        without an answer it is `doubtful` whether the name was free before the next attempt.
        """
        name = name_of(commit.number)
        if also is None:
            self._in_doubt = commit, list(parts)
        reason: Exception | None = None
        for tries in range(_TRIES):
            if tries:
                time.sleep(thresholds.current.commit_pause_seconds * 2**tries)
            try:
                created = self.objects.create(name, parts)
            except UnknownOutcomeError as error:
                reason = error
                doubtful = True
                created = False
            except StorageError as error:
                if not doubtful:
                    # The store refused the first attempt, so there is no doubt.
                    self._in_doubt = None
                    self._failed.add(commit.nonce)
                    raise
                reason = error
                continue
            try:
                stored = commit if created else self._decoded(commit.number)
                if not created and stored.nonce in (commit.nonce, also and also.nonce):
                    self.objects.secure(name)
                self._judge(commit, stored, also, doubtful)
                return
            except (DamagedStateError, UnknownOutcomeError):
                raise
            except FileNotFoundError as error:
                # There is no object: send the same bytes again. Either request may arrive.
                reason = reason or error
                doubtful = True
            except StorageError as error:
                reason = error
                doubtful = True
        raise UnknownOutcomeError(
            f"it is not known whether commit {commit.number} is in {self.objects.root!r}: "
            f"{reason}. Further commits are refused until that is settled. Open the store again "
            "when it can be reached"
        ) from reason

    def _judge(
        self, commit: Commit, stored: Commit | Retired, also: Commit | None, doubtful: bool
    ) -> None:
        """Decide the outcome of a commit from the object that the store has under its name."""
        won = next((mine for mine in (commit, also) if mine and mine.nonce == stored.nonce), None)
        passed = commit.number < self._listing.floor()
        if won is not None and passed and self._is_late(won):
            try:
                self.objects.delete([name_of(won.number)])
            except StorageError:
                pass  # it never counts
            won = None
        if won is not None:
            self._store, self._identified_by = won.store, won.number
            # A single assignment is the commit point: later failures do no harm.
            self.last = won
            self._in_doubt = None
            self._failed.clear()
            return
        if stored.nonce in self._failed:
            raise UnknownOutcomeError(
                f"commit {commit.number} of {self.objects.root!r} exists, although its attempt was "
                "reported as failed. Open the store again to continue from it"
            )
        try:
            theirs = self.latest().epoch
        except StorageError:
            theirs = stored.epoch
        self._fenced = (
            f"commit {commit.number} of {self.objects.root!r} was not made: a writer of epoch "
            f"{theirs} has taken the store over from this writer, of epoch {commit.epoch}. Nothing "
            "of the commit was written. If both are meant to write, open the store again and "
            "repeat; otherwise end this writer"
        )
        self._in_doubt = None
        if passed and doubtful:
            self._never_known = (
                f"it will not be known whether commit {commit.number} was in "
                f"{self.objects.root!r}: a writer of epoch {theirs} has the store now, and has "
                "retired that number. Open the store again, and check whether it has the changes "
                "of that commit"
            )
            raise UnknownOutcomeError(self._never_known)
        raise ConcurrentWriteError(self._fenced)

    def _is_late(self, commit: Commit) -> bool:
        """Whether a commit below the floor was created after the retirement of its number.

        An earlier commit was retired before the creation of the floor.
        """
        try:
            stored = self._decoded(commit.number)
        except FileNotFoundError:
            return False
        return isinstance(stored, Commit) and stored.nonce == commit.nonce

    def _last_of(self, hint: Hint, sizes: Mapping[int, int], floor: int) -> Commit:
        chain = sorted(n for n in sizes if n >= floor)
        if not chain and hint.number < 0 and not floor:
            raise StorageError(
                f"there is no store in {self.objects.root!r}. Check that the store was made with "
                "this root"
            )
        last = chain[-1] if chain else -1
        missing = next((n for at, n in enumerate(chain) if n != floor + at), None)
        if missing is not None or not chain:
            gap = floor + next((at for at, n in enumerate(chain) if n != floor + at), 0)
            rest = f"the last commit there is {last}" if chain else "no commit is there"
            raise self._lost(f"commit {gap} is missing, and {rest}")
        if hint.number > last and hint.store == self._decoded(last).store:
            raise self._lost(f"commit {hint.number} was made, and the last commit there is {last}")
        if not is_commit(sizes[last]):
            raise self._lost(f"commit {last}, the last, is cut short, or was retired")
        newest = self._decoded(last)
        if not isinstance(newest, Commit):
            raise self._lost(f"commit {last}, the last, was retired")
        if last > floor and self._decoded(last - 1).nonce != newest.previous:
            raise self._lost(f"commit {last} does not follow from the commit {last - 1} there")
        return newest

    def _lost(self, damage: str) -> DamagedStateError:
        return DamagedStateError(
            f"the store {self.objects.root!r} is damaged: {damage}. An earlier commit is not used "
            "as the last one. Put the folder of commits back from a copy of the store, or start a "
            "new store"
        )

    def _decoded(self, number: int) -> Commit | Retired:
        content = manifest.decode(self.objects.read(name_of(number)), number)
        if self._store is None:
            self._store, self._identified_by = content.store, number
        elif content.store != self._store:
            raise self._lost(
                f"{name_of(number)!r} is of another store than commit {self._identified_by}"
            )
        return content

    def _learn_store(self, number: int) -> None:
        """Read the identity of the store from the last commit other than the given one.

        The given commit is about to be read, and may be a copy from another store.
        """
        for other in sorted(self._numbers(), reverse=True):
            if other != number:
                try:
                    self._decoded(other)
                    return
                except (StorageError, FileNotFoundError):
                    pass  # a reader of that commit gets the error

    def _replace(self, number: int, *, used: bool) -> None:
        name = name_of(number)
        try:
            data = self.objects.read(name)
        except FileNotFoundError:
            return  # another vacuum was faster
        content = manifest.decode(data, number)
        if used and isinstance(content, Commit):
            self.objects.replace(name, manifest.payload_of(content, data))
        elif not used:
            self.objects.replace(name, manifest.tombstone_of(content))

    def _refuse_other_files(self) -> None:
        root = self.objects.root
        if self.exists():
            raise StorageError(
                f"there is a store in {root!r} already. Open it instead of making it"
            )
        foreign = self.objects.foreign()
        # A stream may have put rows there for a future store.
        inside = sorted(
            listed.name for folder in FOLDERS if folder != INBOX
            for listed in self.objects.names(folder)
        )
        if foreign or inside:
            names = ", ".join(foreign + inside[:5])
            raise StorageError(
                f"{root!r} is not empty, and is no store: it has {names}, and perhaps more. "
                "Nothing was changed there. Pass a folder of its own, or an empty one"
            )

    def _writing(self) -> Commit:
        if self.last is None:
            raise StorageError(
                f"the store {self.objects.root!r} is not open for writing. Call open_for_writing"
            )
        return self.last

    def _refuse_doubt(self) -> None:
        if self._in_doubt is not None:
            raise UnknownOutcomeError(
                f"it is not known whether commit {self._in_doubt[0].number} is in "
                f"{self.objects.root!r}, so further commits are refused. Settle that first, or "
                "open the store again"
            )

    def _numbers(self, hint: int = -1) -> dict[int, int]:
        """The lengths of all objects of commits, by their numbers."""
        return self._listing.sizes(hint, -1 if self.last is None else self.last.number)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as text, with a range for adjacent numbers.

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

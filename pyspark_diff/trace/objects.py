"""The objects of a store, below a root in a folder or in a bucket, with a common interface.

An object has a name within its root, ``folder/name``, and is either whole or absent. All durability
is based on one request::

    create(name, parts) = True   =>  the object did not exist, and outlives a crash from now on

    create(name, parts) = False  =>  the name is taken, and its object did not change

`False` does not say who took the name. After a lost answer, a client tries again, and then S3 and
NFS report that its own object exists already. So the caller of `create` reads the object to
identify its writer.
"""

from __future__ import annotations

import re
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Union

from pyspark_diff.errors import StorageError

Part = Union[bytes, memoryview]

#: The end of the name of an unfinished file.
SCRATCH = ".tmp"
#: A hint at the last commit, next to the folders.
HEAD = "head"
#: The maximum bytes of an object that is read as a whole.
MOST_BYTES = 1 << 32
#: The begin of the key that a probe creates twice, as the store must refuse the second request.
PROBE = "probe-"
#: The folder to which streaming queries write the input of a dataflow.
INBOX = "inbox"
#: The folders of a store. Other files below its root do not belong to the store.
FOLDERS = ("commits", "data", "floor", INBOX, "readers")
#: The folder in which Databricks mounts the volumes of Unity Catalog.
VOLUMES = "/Volumes"
_VOLUME = re.compile(r"(dbfs:)?/*(/Volumes/[^/]+/[^/]+/[^/]+(?:/[^/]+)*)/*")
#: The parts of names of a store's own objects.
SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,254}")


@dataclass(frozen=True)
class ListedObject:
    """An object in a listing: its name within the root, its length, its time of writing."""

    name: str
    size: int
    modified: float


class Objects(ABC):
    """The objects below one root."""

    root: str
    #: Whether a listing contains each object that was created before it.
    lists_all = False

    @abstractmethod
    def create(self, name: str, parts: Sequence[Part]) -> bool:
        """Create an object under a free name, in one request.

        Returns True when the object is durable, and False if the name is taken. A lost answer
        raises an `UnknownOutcomeError`; after every other error the object does not exist.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Create an object, or replace the object of that name.

        Without `lasting` it is faster, and a crash may lose or damage the object.
        """

    @abstractmethod
    def upload(self, name: str, path: str) -> None:
        """Create a durable object from a file of any size, under a name that only it ever has."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of an object. A `FileNotFoundError` if it does not exist."""

    @abstractmethod
    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """A part of an object; it is shorter if the object ends before it."""

    @abstractmethod
    def names(self, folder: str) -> list[ListedObject]:
        """The objects in a folder and its subfolders, in no order; "" for all below the root."""

    @abstractmethod
    def leftovers(self) -> list[ListedObject]:
        """Unfinished objects of running processes and of processes that have ended."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; a missing object is no error."""

    @abstractmethod
    def locate(self, name: str) -> str:
        """The absolute path or the URL of an object."""

    def secure(self, name: str) -> None:
        """Make an existing object and its folders durable, if `create` could not confirm that.

        This also works for files that were written to the path of `locate`.
        """

    @abstractmethod
    def foreign(self) -> list[str]:
        """A few names directly below the root that do not belong to a store."""

    def remove_empty(self, folder: str, before: float) -> None:
        """Remove the subfolders of a folder that are empty and older than a time."""

    def probe(self) -> None:
        """Check that a second create of one key is refused; otherwise raise a `StorageError`.

        Some mounted object stores overwrite an existing object, and report that they created it.
        """
        name = f"{PROBE}{secrets.token_hex(8)}"
        try:
            if not self.create(name, [b"first"]) and self.read(name) != b"first":
                raise StorageError(
                    f"{self.root!r} reports that a new key is taken. So a writer there cannot "
                    "distinguish its commits from those of others. Keep the store somewhere else"
                )
            if self.create(name, [b"second"]) or self.read(name) != b"first":
                raise StorageError(
                    f"{self.root!r}: a second create of one key is not refused there, so two "
                    "writers would overwrite each other's commits. Keep the store on a file system "
                    "with hard links, or in an object store with conditional writes"
                )
        finally:
            try:
                self.delete([name])
            except StorageError:
                pass  # a vacuum deletes it


def volume_url(path: str) -> str | None:
    """The URL of a folder in a volume of Unity Catalog; None for other paths.

    On macOS, the folder of this name has the mounted disks. There a volume needs ``dbfs:``.

    Examples
    --------
    >>> volume_url("dbfs:/Volumes/catalog/schema/volume/store/")
    'dbfs:///Volumes/catalog/schema/volume/store'
    >>> volume_url("/Volumes/catalog") is None
    True
    """
    match = _VOLUME.fullmatch(path)
    if match is None or match[1] is None and (sys.platform == "darwin" or path.startswith("//")):
        return None
    return None if {".", ".."} & set(match[2].split("/")) else f"dbfs://{match[2]}"


def redacted(text: str) -> str:
    """Remove passwords and queries, which may contain keys, from the URLs of a text.

    Examples
    --------
    >>> redacted("s3://me:secret@bucket/folder?X-Amz-Signature=abc")
    's3://bucket/folder'
    """
    text = re.sub(r"(\w://)[^/@\s'\"]*:[^/@\s'\"]*@", r"\1", text)
    return re.sub(r"(\w://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)


def checked(name: str) -> str:
    """The name of an object, after a check that it is relative and has only plain characters."""
    if not (len(name) <= 1024 and all(map(SEGMENT.fullmatch, name.split("/")))):
        raise StorageError(
            f"{name[:200]!r} is no name of an object. A name has parts between slashes. A part has "
            "letters, digits, '_', '.', '=' and '-', and begins with a letter, a digit or '_'"
        )
    return name


def foreign_among(names: Iterable[str]) -> list[str]:
    """A few names directly below a root that do not belong to a store."""
    return sorted(
        name for name in names
        if name not in (*FOLDERS, HEAD) and not name.startswith((PROBE, f"{HEAD}."))
    )[:5]

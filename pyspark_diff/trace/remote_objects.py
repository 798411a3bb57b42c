"""Objects of a store in a bucket of an object store, by its own create-only requests.

    an answer that is lost  =>  `UnknownOutcomeError`, never "it was not done"

What a provider says goes on without the keys and signatures that may be in it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark_diff.errors import DiffError, StorageError, UnknownOutcomeError
from pyspark_diff.trace.credentials import access_of
from pyspark_diff.trace.objects import (
    MOST_BYTES,
    PROBE,
    SEGMENT,
    Found,
    Objects,
    Part,
    checked,
    foreign_among,
    redacted,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

#: How often a request is made again whose answer is lost.
RETRIES = 5
#: Options of the client that sends requests; the others are of a provider.
CLIENT = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout",
    "user_agent",
})
#: Stores in memory, by their names in this process.
_memories: dict[str, ObjectStore] = {}


class RemoteObjects(Objects):
    """Objects in a bucket of an object store, or for tests in memory.

    Credentials come from `set_credentials`, else from the environment, as those of each provider's
    own tools do.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/folder``, ``gs://bucket/folder``, ``az://container/folder``, or
        ``memory://name``, which is gone with the process.
    """

    lists_all = True

    def __init__(self, url: str):
        there = urlsplit(url)
        if there.password is not None or there.query or there.fragment:
            raise StorageError(
                f"the root {redacted(url)!r} came with a password or a query; give the URL "
                "without, and credentials in the environment or with set_credentials"
            )
        self.root = url.rstrip("/")
        try:
            import obstore.store
        except ImportError as error:
            raise StorageError(
                f"the root {self.root!r} needs obstore, which is not installed here: "
                'pip install "pyspark_diff[remote]"'
            ) from error
        if there.scheme.lower() == "memory":
            self._prefix = there.path.strip("/") + "/" if there.path.strip("/") else ""
            self._store = _memories.setdefault(there.netloc, obstore.store.MemoryStore())
            return
        self._prefix, access = "", access_of(self.root)
        client = {name: value for name, value in access.options.items() if name in CLIENT}
        config = {name: value for name, value in access.options.items() if name not in CLIENT}
        if config.get("endpoint", "").startswith("http:"):
            client["allow_http"] = "true"
        open_store: Any = obstore.store.from_url  # its overloads name each provider's own options
        with self._explained(""):
            self._store = open_store(
                self.root, config=config or None, client_options=client or None,
                credential_provider=access.provider,
                # Timeouts are the client's own, 30 s: options here would disable those of the
                # environment. A request that is made again may meet its own object:
                # whoever creates reads back.
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=60)},
            )

    def create(self, name: str, parts: Sequence[Part]) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        data = b"".join(parts)
        with self._explained(checked(name), writes=True):
            try:
                obstore.put(self._store, self._prefix + name, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        import obstore

        with self._explained(checked(name), writes=True):
            obstore.put(self._store, self._prefix + name, data, use_multipart=False)

    def upload(self, name: str, path: str) -> None:
        import obstore

        with self._explained(checked(name), writes=True):
            # In parts where it is large; it is there when all of them are.
            obstore.put(self._store, self._prefix + name, Path(path))

    def read(self, name: str) -> bytes:
        import obstore

        with self._explained(checked(name)):
            found = obstore.get(self._store, self._prefix + name)
            if found.meta["size"] > MOST_BYTES:
                raise StorageError(f"{self.locate(name)!r} has {found.meta['size']:,} bytes")
            return bytes(found.bytes())

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        import obstore
        from obstore.exceptions import BaseError

        with self._explained(checked(name)):
            try:
                if length:
                    return bytes(obstore.get_range(
                        self._store, self._prefix + name, start=offset, length=length
                    ))
            except BaseError:
                # A range behind the end is an error, of no class of its own.
                if offset < obstore.head(self._store, self._prefix + name)["size"]:
                    raise
        return b""

    def names(self, folder: str) -> list[Found]:
        import obstore

        below = self._prefix + (checked(folder) + "/" if folder else "")
        with self._explained(folder):
            pages = obstore.list(self._store, below or None)
            found = [self._found(entry) for page in pages for entry in page]
        # What has a name that we never give is not ours.
        return [item for item in found if all(map(SEGMENT.fullmatch, item.name.split("/")))]

    def leftovers(self) -> list[Found]:
        # An object is there or not; only a key of a probe can stay behind.
        return [found for found in self._top()[1] if found.name.startswith(PROBE)]

    def foreign(self) -> list[str]:
        folders, found = self._top()
        return foreign_among([*folders, *(item.name for item in found)])

    def delete(self, names: Iterable[str]) -> None:
        import obstore

        waiting = [self._prefix + checked(name) for name in names]
        try:
            with self._explained(""):
                if waiting:
                    obstore.delete(self._store, waiting)
        except FileNotFoundError:
            # Some stores say so, and have left the others.
            for name in waiting:
                try:
                    with self._explained(name):
                        obstore.delete(self._store, name)
                except FileNotFoundError:
                    pass

    def locate(self, name: str) -> str:
        return f"{self.root}/{checked(name)}"

    def _top(self) -> tuple[list[str], list[Found]]:
        """The folders right below the root, and the objects there."""
        import obstore

        with self._explained(""):
            found = obstore.list_with_delimiter(self._store, self._prefix or None)
        folders = [path.removeprefix(self._prefix) for path in found["common_prefixes"]]
        return folders, [self._found(entry) for entry in found["objects"]]

    def _found(self, entry: ObjectMeta) -> Found:
        return Found(
            entry["path"].removeprefix(self._prefix), int(entry["size"]),
            entry["last_modified"].timestamp(),
        )

    @contextmanager
    def _explained(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """What the object store says, as an error of ours without keys or signatures in it."""
        from obstore import exceptions

        try:
            yield
        except (DiffError, FileNotFoundError, exceptions.AlreadyExistsError):
            raise
        except exceptions.NotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
        except (
            exceptions.PermissionDeniedError, exceptions.UnauthenticatedError,
            exceptions.InvalidPathError, exceptions.NotSupportedError,
            exceptions.UnknownConfigurationKeyError, ValueError,
        ) as error:
            raise StorageError(self._told(name, error)) from None
        except (exceptions.BaseError, OSError, TimeoutError) as error:
            told = self._told(name, error)
            raise (UnknownOutcomeError(told) if writes else StorageError(told)) from None

    def _told(self, name: str, error: Exception) -> str:
        # The first line; what follows is the client's own account, with headers and addresses.
        reason = redacted(str(error).partition("\n")[0])[:500]
        return (
            f"{self.root}/{name}: {reason}. Credentials, region and endpoint come from "
            "set_credentials, or from the environment; see that they are those of this root"
        )

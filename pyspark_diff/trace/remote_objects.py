"""Objects of a store in a bucket of an object store, by its own create-only requests.

    a lost answer  =>  `UnknownOutcomeError`, never a report that the request failed

Messages of a provider are passed on without the keys and signatures in them.
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

from pyspark_diff import thresholds
from pyspark_diff.errors import DiffError, StorageError, UnknownOutcomeError
from pyspark_diff.trace.credentials import access_of
from pyspark_diff.trace.objects import (
    MOST_BYTES,
    PROBE,
    SEGMENT,
    ListedObject,
    Objects,
    Part,
    checked,
    foreign_among,
    redacted,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

#: Options of the client that sends requests; other options belong to a provider.
CLIENT = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout",
    "user_agent",
})
#: Stores in memory, by their names in this process.
_memories: dict[str, ObjectStore] = {}


class RemoteObjects(Objects):
    """Objects in a bucket of an object store, or for tests in memory.

    Credentials come from `set_credentials`, else from the environment, like those of each
    provider's own tools.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/folder``, ``gs://bucket/folder``, ``az://container/folder``, or
        ``memory://name``, which ends with the process.
    """

    lists_all = True

    def __init__(self, url: str):
        parts = urlsplit(url)
        if parts.password is not None or parts.query or parts.fragment:
            raise StorageError(
                f"the root {redacted(url)!r} came with a password, a query or a fragment. Pass "
                "the URL without them, and credentials in the environment or with set_credentials"
            )
        self.root = url.rstrip("/")
        try:
            import obstore.store
        except ImportError as error:
            raise StorageError(
                f"the root {self.root!r} needs obstore, which is not installed here: "
                'pip install "pyspark_diff[remote]"'
            ) from error
        if parts.scheme.lower() == "memory":
            self._prefix = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
            self._store = _memories.setdefault(parts.netloc, obstore.store.MemoryStore())
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
                # The timeout is the client's own, 30 s: options here would disable those of the
                # environment. A retry of a request may meet its own object: the caller of
                # `create` reads the object to detect that.
                retry_config={
                    "max_retries": thresholds.current.request_retries_max,
                    "retry_timeout": timedelta(seconds=60),
                },
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
            # A large object is sent in parts, and exists after the last part.
            obstore.put(self._store, self._prefix + name, Path(path))

    def read(self, name: str) -> bytes:
        import obstore

        with self._explained(checked(name)):
            answer = obstore.get(self._store, self._prefix + name)
            if answer.meta["size"] > MOST_BYTES:
                raise StorageError(f"{self.locate(name)!r} has {answer.meta['size']:,} bytes")
            return bytes(answer.bytes())

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
                # A range after the end is an error without a class of its own.
                if offset < obstore.head(self._store, self._prefix + name)["size"]:
                    raise
        return b""

    def names(self, folder: str) -> list[ListedObject]:
        import obstore

        below = self._prefix + (checked(folder) + "/" if folder else "")
        with self._explained(folder):
            pages = obstore.list(self._store, below or None)
            items = [self._listed(entry) for page in pages for entry in page]
        # Objects with names that a store never uses are not ours.
        return [item for item in items if all(map(SEGMENT.fullmatch, item.name.split("/")))]

    def leftovers(self) -> list[ListedObject]:
        # No object is ever unfinished; only the key of a probe may remain.
        return [item for item in self._top()[1] if item.name.startswith(PROBE)]

    def foreign(self) -> list[str]:
        folders, items = self._top()
        return foreign_among([*folders, *(item.name for item in items)])

    def delete(self, names: Iterable[str]) -> None:
        import obstore

        waiting = [self._prefix + checked(name) for name in names]
        try:
            with self._explained(""):
                if waiting:
                    obstore.delete(self._store, waiting)
        except FileNotFoundError:
            # Some stores raise it for a missing object, and do not delete the others.
            for name in waiting:
                try:
                    with self._explained(name):
                        obstore.delete(self._store, name)
                except FileNotFoundError:
                    pass

    def locate(self, name: str) -> str:
        return f"{self.root}/{checked(name)}"

    def _top(self) -> tuple[list[str], list[ListedObject]]:
        """The folders directly below the root, and the objects there."""
        import obstore

        with self._explained(""):
            listing = obstore.list_with_delimiter(self._store, self._prefix or None)
        folders = [path.removeprefix(self._prefix) for path in listing["common_prefixes"]]
        return folders, [self._listed(entry) for entry in listing["objects"]]

    def _listed(self, entry: ObjectMeta) -> ListedObject:
        return ListedObject(
            entry["path"].removeprefix(self._prefix), int(entry["size"]),
            entry["last_modified"].timestamp(),
        )

    @contextmanager
    def _explained(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """Turn errors of the object store into errors of the library without keys or signatures."""
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
            raise StorageError(self._message(name, error)) from None
        except (exceptions.BaseError, OSError, TimeoutError) as error:
            message = self._message(name, error)
            raise (UnknownOutcomeError(message) if writes else StorageError(message)) from None

    def _message(self, name: str, error: Exception) -> str:
        # Only the first line: the next lines are the client's report, with headers and addresses.
        reason = redacted(str(error).partition("\n")[0])[:500]
        return (
            f"{self.root}/{name}: {reason}. Credentials, region and endpoint come from "
            "set_credentials, or from the environment. Check that they are those of this root"
        )

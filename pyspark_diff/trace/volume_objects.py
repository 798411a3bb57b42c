"""Objects of a store in a volume of Unity Catalog.

A volume has two interfaces. The mount answers ENOSYS to rename, link and lock, and has neither
append nor random writes. The Files API creates a file only if its name is free. So each is used for
some requests::

    create, replace        by the Files API: create sends overwrite=false, and 409 is `False`

    data/                  by path, each file written from its begin to its end under its final name

    commits/ and the rest  read and listed by the Files API, which sees its own writes

A machine without the mount uses the Files API for all. A process without a client, such as a task
of serverless compute, which has no network, reads by path and cannot commit.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from pyspark_diff.errors import DiffError, StorageError, UnknownOutcomeError
from pyspark_diff.trace.credentials import access_of
from pyspark_diff.trace.local_objects import UNSUPPORTED
from pyspark_diff.trace.objects import (
    MOST_BYTES,
    PROBE,
    SEGMENT,
    VOLUMES,
    ListedObject,
    Objects,
    Part,
    checked,
    foreign_among,
    redacted,
    volume_url,
)

#: The number of threads that create one name at once when a store is opened.
RACERS = 4
#: The maximum bytes of a new object that `create` reads back.
_BEGIN = 1 << 16
#: The bytes of one piece of a copied file.
_PIECE = 1 << 23
_INSTALL = 'pip install "pyspark_diff[databricks]"'
#: The errors for a path that the mount does not have, or does not have yet.
_ABSENT = (FileNotFoundError, NotADirectoryError)


class VolumeObjects(Objects):
    """Objects in a folder of a volume.

    The client comes from `set_credentials`, else it is ``WorkspaceClient()``, which a notebook and
    a job of Databricks provide with credentials.

    Parameters
    ----------
    root : str
        A path such as ``/Volumes/catalog/schema/volume/folder``, also after ``dbfs:``.
    """

    def __init__(self, root: str):
        url = volume_url(root)
        if url is None:
            raise StorageError(
                f"{redacted(root)!r} names no folder of a volume. Give a path such as "
                "/Volumes/catalog/schema/volume/folder"
            )
        self.root = url
        access = access_of(url)
        unknown = sorted(set(access.options) - {"mount"})
        if unknown:
            raise StorageError(
                f"the credentials for {url!r} have the option {unknown[0]!r}, and a volume has "
                "only the option mount. Leave it out, or set it on the client"
            )
        self._folder = "/" + url.partition(":///")[2]
        self._provider = access.provider
        parts = self._folder.split("/")[2:]
        mount = access.options.get("mount", VOLUMES)
        self._path = os.path.join(mount, *parts)
        #: Whether this machine has the volume as a folder.
        self._mounted = os.path.isdir(os.path.join(mount, *parts[:3]))

    def create(self, name: str, parts: Sequence[Part]) -> bool:
        data = b"".join(parts)
        with self._explained(checked(name), writes=True):
            if not self._send(name, io.BytesIO(data), overwrite=False):
                return False
            # The service's pages do not promise that only one of two concurrent requests succeeds.
            try:
                return self._range(name, 0, _BEGIN) == data[:_BEGIN]
            except FileNotFoundError as error:
                raise UnknownOutcomeError(
                    f"{self.locate(name)!r} was created, and cannot be read yet. Open the store "
                    "again when the volume can be read"
                ) from error

    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        with self._explained(checked(name), writes=True):
            self._send(name, io.BytesIO(data), overwrite=True)

    def upload(self, name: str, path: str) -> None:
        with self._explained(checked(name), writes=True), open(path, "rb") as file:
            if self._mounted:
                _copy(file, os.path.join(self._path, name))
            else:
                self._send(name, file, overwrite=True)

    def read(self, name: str) -> bytes:
        with self._explained(checked(name)):
            return self._first(name, self._whole, lambda path: _read(path, 0, MOST_BYTES))

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with self._explained(checked(name)):
            return self._first(
                name, lambda at: self._range(at, offset, length),
                lambda path: _read(path, offset, length),
            )

    def names(self, folder: str) -> list[ListedObject]:
        with self._explained(checked(folder) if folder else ""):
            return [item for item, is_folder in self._walk(folder) if not is_folder]

    def leftovers(self) -> list[ListedObject]:
        # An unfinished file has a name that no commit lists.
        return [item for item, _ in self._top() if item.name.startswith(PROBE)]

    def foreign(self) -> list[str]:
        return foreign_among(item.name for item, _ in self._top())

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            with self._explained(checked(name)):
                if self._by_path(name):
                    with suppress(*_ABSENT):
                        os.unlink(os.path.join(self._path, name))
                else:
                    with suppress(FileNotFoundError):
                        self._files("delete", name)
            folders.add(name.rpartition("/")[0])
        for folder in sorted(folder for folder in folders if folder.count("/")):
            # The folder may have other files, and an empty folder does no harm.
            with suppress(OSError, StorageError), self._explained(folder):
                if self._by_path(folder):
                    os.rmdir(os.path.join(self._path, folder))
                else:
                    self._files("delete_directory", folder)

    def locate(self, name: str) -> str:
        return f"{self.root}/{checked(name)}"

    def remove_empty(self, folder: str, before: float) -> None:
        if not self._by_path(f"{checked(folder)}/"):
            return  # the Files API reports no time for a folder
        with self._explained(folder), suppress(*_ABSENT):
            for entry in os.scandir(os.path.join(self._path, folder)):
                if entry.is_dir(follow_symlinks=False):
                    with suppress(OSError):  # it has files, or it is gone
                        if entry.stat(follow_symlinks=False).st_mtime < before:
                            os.rmdir(entry.path)

    def probe(self) -> None:
        """Check that a second create of one key is refused, also for concurrent requests."""
        super().probe()
        name = f"{PROBE}{secrets.token_hex(8)}"
        contents = [b"%d" % number for number in range(RACERS)]

        def send(data: bytes) -> bool:
            with self._explained(name, writes=True):
                return self._send(name, io.BytesIO(data), overwrite=False)

        try:
            with ThreadPoolExecutor(RACERS) as threads:
                created = list(threads.map(send, contents))
            winners = [data for data, won in zip(contents, created) if won]
            # The answer to the first request may be lost, and then the client meets its own file.
            if len(winners) > 1 or winners and self.read(name) != winners[0]:
                raise StorageError(
                    f"{self.root!r}: {len(winners)} of {RACERS} concurrent requests have created "
                    "one file, so two writers would overwrite each other's commits. Keep the store "
                    "in an object store: s3://, gs:// or az://"
                )
        finally:
            with suppress(StorageError):
                self.delete([name])

    def _by_path(self, name: str) -> bool:
        """Whether this process writes and deletes an object by its path."""
        return self._mounted and name.startswith("data/")

    def _first(
        self, name: str, by_request: Callable[[str], bytes], by_path: Callable[[str], bytes]
    ) -> bytes:
        """Read an object by one interface, and by the other if the first does not have it.

        A mount may learn late of another machine's new file, so a second request checks its
        absence.
        """
        path = os.path.join(self._path, name)
        # A file never changes under these names.
        if self._mounted and name.startswith(("data/", "inbox/")):
            try:
                return by_path(path)
            except _ABSENT:
                if self._client_or_none() is None:
                    raise
            return by_request(name)
        if self._mounted and self._client_or_none() is None:
            return by_path(path)
        return by_request(name)

    def _walk(self, folder: str, *, deep: bool = True) -> Iterator[tuple[ListedObject, bool]]:
        """The objects and folders in a folder; folders have True."""
        waiting = [folder]
        while waiting:
            parent = waiting.pop()
            for item, is_folder in list(self._entries(parent)):
                if SEGMENT.fullmatch(item.name.rpartition("/")[2]) is None:
                    continue  # no object of a store has such a name
                yield item, is_folder
                if deep and is_folder:
                    waiting.append(item.name)

    def _entries(self, folder: str) -> Iterator[tuple[ListedObject, bool]]:
        below = f"{folder}/" if folder else ""
        by_path = self._mounted and (below.startswith("data/") or self._client_or_none() is None)
        if not by_path:
            with suppress(FileNotFoundError):
                for entry in self._files("list_directory_contents", folder):
                    item = ListedObject(
                        below + str(entry.name), int(entry.file_size or 0),
                        (entry.last_modified or 0) / 1000,
                    )
                    yield item, bool(entry.is_directory)
            return
        with suppress(*_ABSENT):
            for child in os.scandir(os.path.join(self._path, folder)):
                with suppress(*_ABSENT):
                    status = child.stat(follow_symlinks=False)
                    name = below + child.name
                    is_folder = child.is_dir(follow_symlinks=False)
                    yield ListedObject(name, status.st_size, status.st_mtime), is_folder

    def _top(self) -> list[tuple[ListedObject, bool]]:
        with self._explained(""):
            return list(self._walk("", deep=False))

    # The Files API.

    def _send(self, name: str, contents: Any, *, overwrite: bool) -> bool:
        """Send a file; False if its name is taken."""
        self._client()
        from databricks.sdk.errors import Aborted, ResourceConflict

        try:
            try:
                self._files("upload", name, contents, overwrite=overwrite)
            except FileNotFoundError:
                # Its folder is missing.
                self._files("create_directory", name.rpartition("/")[0])
                contents.seek(0)
                self._files("upload", name, contents, overwrite=overwrite)
            return True
        except Aborted:
            raise
        except ResourceConflict:
            if overwrite:
                raise
            return False

    def _whole(self, name: str) -> bytes:
        answer = self._files("download", name)
        with answer.contents as contents:
            if (answer.content_length or 0) > MOST_BYTES:
                raise StorageError(
                    f"{self.locate(name)!r} has {answer.content_length:,} bytes, and "
                    f"{MOST_BYTES:,} are the maximum. Put it back from a copy of the store"
                )
            return bytes(contents.read())

    def _range(self, name: str, offset: int, length: int) -> bytes:
        if not length:
            return b""
        client = self._client()
        from databricks.sdk.errors import DatabricksError

        try:
            answer = client.api_client.do(
                "GET", f"/api/2.0/fs/files{quote(self._place(name))}", raw=True, headers={
                    "Accept": "application/octet-stream",
                    "Range": f"bytes={offset}-{offset + length - 1}",
                }, response_headers=["content-range"],
            )
        except DatabricksError as error:
            # A range after the end is an error without a class of its own.
            whole = self._files("get_metadata", name).content_length or 0
            if offset < whole:
                raise error
            return b""
        with answer["contents"] as contents:
            # A server may answer with the whole object.
            begin = 0 if answer.get("content-range") else offset
            return bytes(contents.read(begin + length)[begin:])

    def _files(self, method: str, name: str, *more: Any, **options: Any) -> Any:
        """Send a request of the Files API."""
        client = self._client()
        from databricks.sdk.errors import NotFound
        from databricks.sdk.service.files import FilesAPI

        # Use the class itself: the client's method may send a large file in parts, and parts have
        # other rules.
        call = getattr(FilesAPI, method)
        if method == "upload" and options.get("overwrite"):
            call = getattr(type(client.files), method)
        try:
            answer = call(client.files, self._place(name), *more, **options)
            return list(answer) if method == "list_directory_contents" else answer
        except NotFound as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error

    def _place(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def _client(self) -> Any:
        try:
            import databricks.sdk  # noqa: F401
        except ImportError as error:
            raise StorageError(
                f"a store in the volume {self.root!r} needs databricks-sdk, which is not installed "
                f"here: {_INSTALL}"
            ) from error
        try:
            return _client_by(self._provider)
        except ValueError as error:
            reason = redacted(str(error).partition("\n")[0])[:300]
            raise StorageError(
                f"{self.root!r}: there is no client of the workspace: {reason}. Set "
                "DATABRICKS_HOST and DATABRICKS_TOKEN, or set_credentials with a function that "
                "returns a WorkspaceClient"
            ) from None

    def _client_or_none(self) -> Any:
        try:
            return self._client()
        except StorageError:
            return None

    @contextmanager
    def _explained(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """Turn errors of the service and the mount into errors of the library, without secrets."""
        try:
            yield
        except DiffError:
            raise
        except FileNotFoundError as error:
            if not writes:
                raise
            raise StorageError(self._text(name, error)) from error
        except (OSError, TimeoutError) as error:
            text = self._text(name, error)
            if writes and not _is_definite(error):
                raise UnknownOutcomeError(text) from error
            raise StorageError(text) from error

    def _text(self, name: str, error: Exception) -> str:
        code = getattr(error, "errno", None)
        reason = os.strerror(code) if code else str(error).partition("\n")[0]
        return (
            f"{self.root}/{name}: {redacted(reason)[:500]}. Check that the volume exists, and that "
            "its user has READ VOLUME and WRITE VOLUME"
        )


@lru_cache(maxsize=16)
def _client_by(provider: Callable[[], Any] | None) -> Any:
    if provider is not None:
        return provider()
    from databricks.sdk import WorkspaceClient

    return WorkspaceClient()


def _is_definite(error: Exception) -> bool:
    """Whether an error proves that no object was written under the name."""
    if isinstance(error, OSError) and error.errno:
        return True  # an error of the mount: no commit names the data file yet
    module = sys.modules.get("databricks.sdk.errors")
    return module is not None and isinstance(
        error, (module.BadRequest, module.PermissionDenied, module.Unauthenticated)
    )


def _copy(source: Any, path: str) -> None:
    """Write a file once, from its begin to its end, and check that it is whole."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "wb", buffering=0) as file:
            shutil.copyfileobj(source, file, _PIECE)
            try:
                os.fsync(file.fileno())
            except OSError as error:
                # Without fsync, the mount sends the file when it is closed.
                if error.errno not in UNSUPPORTED:
                    raise
        size, length = os.path.getsize(path), os.fstat(source.fileno()).st_size
        if size != length:
            raise OSError(errno.EIO, f"it has {size:,} bytes, and was written with {length:,}")
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def _read(path: str, offset: int, length: int) -> bytes:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if length >= MOST_BYTES < size:
            raise StorageError(
                f"{path!r} has {size:,} bytes, and {MOST_BYTES:,} are the maximum. Put it back "
                "from a copy of the store"
            )
        if offset:
            file.seek(offset)
        return file.read(length)

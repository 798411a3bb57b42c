"""A stand-in for a workspace of Databricks: volumes with the Files API, and their mount.

The server answers as the reference of the API says. It stores the files in a folder, which is the
mount as well. `refusing` lets the mount answer as that of a volume does.

Source: `Files API <https://docs.databricks.com/api/workspace/files>`_.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

TOKEN = "a-very-secret-token"
VOLUME = "/Volumes/cat/schema/vol"
FILES, DIRECTORIES = "/api/2.0/fs/files", "/api/2.0/fs/directories"
#: How the mount may answer to a call that it lacks.
CODES = {"ENOSYS": errno.ENOSYS, "EPERM": errno.EPERM, "Illegal seek": errno.ESPIPE}
#: The calls that a mount may lack.
CALLS = ("rename", "link", "lock", "append", "mmap")

#: Set in the threads of the server, which has a file system and no mount.
_serving = threading.local()


class Workspace(ThreadingHTTPServer):
    """A server whose volumes are below a folder.

    Attributes
    ----------
    folder : Path
        The mount: the volume is in ``cat/schema/vol`` below it.

    page : int
        The maximum number of entries in one answer with the content of a folder.

    racy : bool
        Whether a create looks for the name and then writes, so that two creates can both succeed.

    requests : list of str
        The methods and paths of the requests so far.
    """

    daemon_threads = True

    def __init__(self, folder: Path, page: int = 1000):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.page, self.racy = folder, page, False
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self.uploads = Path(f"{folder}-uploads")
        self.uploads.mkdir()
        self.volume.mkdir(parents=True)
        threading.Thread(target=partial(self.serve_forever, 0.05), daemon=True).start()

    @property
    def volume(self) -> Path:
        """The folder of the volume."""
        return self.folder / VOLUME.removeprefix("/Volumes/")

    @property
    def address(self) -> str:
        return "http://{}:{}".format(*self.server_address[:2])

    def client(self) -> Any:
        """A client of the workspace, of the real package."""
        from databricks.sdk import WorkspaceClient
        from databricks.sdk.core import Config

        return WorkspaceClient(config=Config(
            host=self.address, token=TOKEN, auth_type="pat", retry_timeout_seconds=5))

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that was killed is no error of the server.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        shutil.rmtree(self.uploads)


class Handler(BaseHTTPRequestHandler):
    """The requests of the Files API."""

    protocol_version = "HTTP/1.1"
    # An answer goes out at once, and as a whole.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Workspace

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_any(self) -> None:
        _serving.here = True
        there = urlsplit(self.path)
        path, query = unquote(there.path), parse_qs(there.query)
        length = int(self.headers.get("Content-Length") or 0)
        sent = b"" if not length else self.rfile.read(length)
        if len(sent) < length:  # the client was killed: an upload is complete or absent
            self.close_connection = True
            return
        if self.headers.get("Transfer-Encoding") == "chunked":
            sent = b"".join(self._chunks())
        self.server.requests.append(f"{self.command} {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._error(401, "UNAUTHENTICATED", "the token is of nobody")
        for begin, kind in (FILES, "file"), (DIRECTORIES, "directory"):
            if path.startswith(f"{begin}/Volumes/"):
                place = path.removeprefix(begin)
                if not place.startswith(VOLUME):
                    return self._error(404, "NOT_FOUND", f"Volume {place!r} does not exist.")
                local = self.server.folder / place.removeprefix("/Volumes/")
                answer = getattr(self, f"{self.command.lower()}_{kind}")
                try:
                    return answer(local, place, sent, query)
                except OSError as error:
                    return self._error(500, "INTERNAL_ERROR", str(error))
        self._error(404, "ENDPOINT_NOT_FOUND", f"No API found for {path}")

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_any

    def put_file(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        overwrite = query.get("overwrite", ["true"])[0] == "true"
        if not local.parent.is_dir():
            return self._error(404, "NOT_FOUND", "The parent directory does not exist.")
        if local.is_dir():
            return self._error(409, "ALREADY_EXISTS", "The path is a directory.")
        if self.server.racy:
            exists = not overwrite and local.exists()
            threading.Event().wait(0.05)
        upload = self.server.uploads / uuid.uuid4().hex
        upload.write_bytes(sent)
        with self.server.lock:
            if not self.server.racy:
                exists = not overwrite and local.exists()
            if not exists:
                os.replace(upload, local)
        if exists:
            upload.unlink()
            return self._error(409, "ALREADY_EXISTS", "The file being created already exists.")
        self._answer(204)

    def get_file(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        if not local.is_file():
            return self._error(404, "NOT_FOUND", "The file being accessed is not found.")
        data = local.read_bytes()
        modified = {"Last-Modified": self.date_time_string(local.stat().st_mtime)}
        wanted = self.headers.get("Range")
        if not wanted:
            return self._answer(200, data, modified)
        begin, _, end = wanted.removeprefix("bytes=").partition("-")
        if int(begin) >= len(data):
            return self._error(416, "INVALID_PARAMETER_VALUE", "The range is not satisfiable.")
        part = data[int(begin):int(end) + 1]
        whole = f"bytes {begin}-{int(begin) + len(part) - 1}/{len(data)}"
        self._answer(206, part, {**modified, "Content-Range": whole})

    def head_file(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        if not local.is_file():
            return self._error(404, "NOT_FOUND", "")
        self._answer(200, local.read_bytes())

    def delete_file(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        try:
            os.unlink(local)
        except FileNotFoundError:
            return self._error(404, "NOT_FOUND", "The file being deleted is not found.")
        self._answer(204)

    def put_directory(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        if local.is_file():
            return self._error(409, "ALREADY_EXISTS", "The path is a file.")
        os.makedirs(local, exist_ok=True)
        self._answer(204)

    def head_directory(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        self._answer(200) if local.is_dir() else self._error(404, "NOT_FOUND", "")

    def delete_directory(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        if not local.is_dir():
            return self._error(404, "NOT_FOUND", "The directory being deleted is not found.")
        try:
            os.rmdir(local)
        except OSError:
            return self._error(400, "DIRECTORY_NOT_EMPTY", "The directory is not empty.")
        self._answer(204)

    def get_directory(self, local: Path, place: str, sent: bytes, query: Any) -> None:
        if not local.is_dir():
            return self._error(404, "NOT_FOUND", "The directory being accessed is not found.")
        begin = int(query.get("page_token", ["0"])[0])
        names = sorted(os.listdir(local))
        contents = []
        for name in names[begin:begin + self.server.page]:
            entry: dict[str, Any] = {
                "path": f"{place}/{name}", "name": name, "is_directory": (local / name).is_dir()}
            if not entry["is_directory"]:
                try:
                    status = (local / name).stat()
                except FileNotFoundError:
                    continue
                entry["file_size"] = status.st_size
                entry["last_modified"] = int(status.st_mtime * 1000)
            contents.append(entry)
        body: dict[str, Any] = {"contents": contents}
        if begin + self.server.page < len(names):
            body["next_page_token"] = str(begin + self.server.page)
        self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, code: int, data: bytes = b"", headers: Any = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _error(self, code: int, kind: str, message: str) -> None:
        body = json.dumps({"error_code": kind, "message": message}).encode()
        self._answer(code, body, {"Content-Type": "application/json"})


@contextmanager
def refusing(root: Any, code: int, calls: Any = CALLS) -> Iterator[list[str]]:
    """Let calls below a folder fail that the mount of a volume lacks; yields the failed calls."""
    root = os.path.realpath(root)
    refused: list[str] = []

    def below(path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        place = os.path.realpath(os.fspath(path))
        return place == root or place.startswith(root + os.sep)

    def guarded(what: str, call: Any, applies: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            if not getattr(_serving, "here", False) and applies(args, options):
                refused.append(what)
                raise OSError(code, os.strerror(code))
            return call(*args, **options)

        return run

    def of_names(args: Any, options: Any) -> bool:
        return any(options.get(f) is not None and below(options[f])
                   for f in ("src_dir_fd", "dst_dir_fd")) or below(args[0]) or below(args[1])

    def of_flags(args: Any, options: Any) -> bool:
        flags = args[1] if len(args) > 1 else options.get("flags", 0)
        # A volume takes no write that is not at the end of a new file.
        random = flags & os.O_APPEND or flags & (os.O_WRONLY | os.O_RDWR) and not flags & (
            os.O_TRUNC | os.O_EXCL)
        folder = options.get("dir_fd")
        return bool(random) and (below(args[0]) if folder is None else below(folder))

    def of_mode(args: Any, options: Any) -> bool:
        mode = args[1] if len(args) > 1 else options.get("mode", "r")
        return ("a" in mode or "+" in mode) and not isinstance(args[0], int) and below(args[0])

    patches: list[tuple[str, Any, str, Any]] = [
        ("rename", os, "rename", of_names), ("rename", os, "replace", of_names),
        ("link", os, "link", of_names), ("link", os, "symlink", lambda g, o: below(g[1])),
        ("lock", fcntl, "flock", lambda g, o: below(g[0])),
        ("lock", fcntl, "lockf", lambda g, o: below(g[0])),
        ("append", os, "open", of_flags), ("append", __import__("builtins"), "open", of_mode),
        ("append", os, "pwrite", lambda g, o: below(g[0])),
        ("append", os, "truncate", lambda g, o: below(g[0])),
        ("append", os, "ftruncate", lambda g, o: below(g[0])),
        ("mmap", mmap, "mmap", lambda g, o: g[0] >= 0 and below(g[0])),
        ("mmap", pa, "memory_map", lambda g, o: below(g[0])),
    ]
    with ExitStack() as stack:
        patched = {}
        for what, holder, name, applies in patches:
            if what in calls:
                function = guarded(what, getattr(holder, name), applies)
                patched[name] = function
                stack.enter_context(mock.patch.object(holder, name, function))
        for which in "supports_dir_fd", "supports_follow_symlinks":
            stack.enter_context(mock.patch.object(os, which, getattr(os, which) | {
                function for name, function in patched.items()
                if getattr(getattr(os, name, None), "__name__", "") == "run"}))
        yield refused


@lru_cache(maxsize=1)
def workspace() -> Workspace:
    """A workspace of this process."""
    import atexit
    import tempfile

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, True)
    return Workspace(folder / "Volumes")


class Entries(list):
    """The entries of a folder, as `os.scandir` returns them."""

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def late(root: Any, count: int = 2) -> Iterator[list[str]]:
    """Below a folder, leave the newest files out of the listing of each folder; yields these."""
    root = os.path.realpath(root)
    scan, list_names = os.scandir, os.listdir
    hidden: list[str] = []

    def newest(path: Any) -> set[str]:
        place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        place = os.path.realpath(place)
        if not place.startswith(root + os.sep) or os.path.basename(place) == "store":
            return set()
        files = []
        for name in list_names(place):
            status = os.stat(os.path.join(place, name), follow_symlinks=False)
            if not os.path.isdir(os.path.join(place, name)):
                files.append((status.st_mtime_ns, name))
        names = {name for _, name in sorted(files)[-count:]}
        hidden.extend(sorted(names))
        return names

    def scandir(path: Any = ".") -> Entries:
        without = newest(path)
        with scan(path) as entries:
            return Entries(entry for entry in entries if entry.name not in without)

    def listdir(path: Any = ".") -> list[str]:
        without = newest(path)
        return [name for name in list_names(path) if name not in without]

    with mock.patch.object(os, "scandir", scandir), mock.patch.object(os, "listdir", listdir), \
            mock.patch.object(os, "supports_fd", os.supports_fd | {scandir, listdir}):
        yield hidden

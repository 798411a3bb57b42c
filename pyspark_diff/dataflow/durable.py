"""Durable state: each step is a commit of a store.

    a step is done  ⟺  its commit exists

The store alone decides whether a commit exists. A step that is interrupted after its commit is
therefore done, and the next call adopts its state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_diff.engine.blueprint import blueprint
from pyspark_diff.engine.durable import Encoded, encoded, sealed
from pyspark_diff.engine.fingerprint import Fingerprint, fingerprints
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.program import written
from pyspark_diff.engine.state import State
from pyspark_diff.errors import ConcurrentWriteError, StorageError
from pyspark_diff.operators.node import Node
from pyspark_diff.trace import storage
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.stored_traces import PayloadPlace, understood
from pyspark_diff.trace.vacuum import Vacuumed, vacuum, verify

_logger = logging.getLogger("pyspark_diff")

#: The number of tokens that a store remembers.
MOST_TOKENS = 100
#: The description of a program that has not run.
NOTHING = b"null"


class Store:
    """The writer of a dataflow's commits. It holds state: the last commit.

    Parameters
    ----------
    commits : Commits
        Open for writing.
    commit : Commit
        The last commit.
    places : mapping of str to PayloadPlace
        The places of the commit's small batches, by their paths.
    prints : mapping of Node to Fingerprint
        The known fingerprints of nodes.
    tokens : mapping of str to int
        The commit of each token of the last steps.
    retain : int
        The number of commits that stay readable.
    base : mapping of str to str
        The settings that fingerprints are compared with.
    """

    def __init__(
        self, objects: Objects, commits: Commits, commit: Commit, files: storage.StoreFiles,
        places: Mapping[str, PayloadPlace], prints: Mapping[Node, Fingerprint],
        tokens: Mapping[str, int], retain: int, base: Mapping[str, str],
    ):
        self.commits, self.last = commits, commit
        self.files, self.retain = files, retain
        self._objects = objects
        #: The commit of each token of the last steps.
        self.tokens = dict(tokens)
        self._places = dict(places)
        #: The state of a commit without a known outcome, its encoding, and its tokens.
        self._going: tuple[State, Encoded, dict[str, int]] | None = None
        self._done: State | None = None
        self._described: tuple[Graph, bytes] | None = None
        self._prints, self._base = dict(prints), base
        #: Whether the last commit has updates that consumers had not received.
        self._owes = False
        #: The oldest commit that a cleanup may remove, if known.
        self._oldest: int | None = None

    def commit(
        self, state: State, settings: Mapping[str, Any], names: Mapping[Node, str],
        token: str | None,
    ) -> State:
        """Commit a state; returns the state with the batches of the commit.

        Raises
        ------
        ConcurrentWriteError
            If another application writes this store now. Then this call commits nothing.
        UnknownOutcomeError
            If the outcome of the commit is unknown; the next step determines it.
        """
        after = sealed(state, self.files.directory)
        number, tokens = self.commits.next_number, dict(self.tokens)
        if token is not None:
            tokens.pop(token, None)
            tokens[token] = number
        tokens = dict(list(tokens.items())[-MOST_TOKENS:])
        encoding = encoded(
            after, self.files.name, number, self._places, self._program(after, names),
            {**settings, "tokens": tokens},
        )
        self.files.make_lasting(name for name in encoding.files if name not in self.last.files)
        self._going = after, encoding, tokens
        self.commits.append(
            encoding.text, encoding.payload, encoding.files, encoding.uses, token
        )
        self._settle()
        return after

    def committed(self, state: State) -> State:
        """The state of the last commit if it is newer than ``state``, else ``state``.

        A step may be interrupted after its commit, so each operation on the store calls this first.
        """
        if self._going is not None:
            self.commits.settle()
            self._settle()
        done, self._done = self._done, None
        return state if done is None else done

    def _settle(self) -> None:
        """Adopt the pending state if its commit exists."""
        last = self.commits.last
        assert last is not None  # it is open
        # If it does not exist, another commit has its number, with the state before.
        if self._going is not None and last.state == self._going[1].text:
            self._done, self._places = self._going[0], dict(self._going[1].places)
            self._owes = not self._done.handed_over
            self.tokens = self._going[2]
        self.last, self._going = last, None

    def check_own(self, error: Exception) -> None:
        """Raise if another application has the store by now: it may have removed files that the
        failed step needed.

        Raises
        ------
        ConcurrentWriteError
        """
        try:
            latest = self.commits.latest()
        except StorageError:
            return
        if latest.epoch > self.last.epoch:
            raise ConcurrentWriteError(
                f"the step has failed as this writer, of epoch {self.last.epoch}, has lost the "
                f"store {self._objects.root!r} to one of epoch {latest.epoch}. Nothing of it was "
                "written. If both are meant to write, open it again and repeat; else end this one"
            ) from error

    def owes_nothing(self, state: State) -> bool:
        """Whether consumers and sinks have received all updates that the last commit owes."""
        return self._owes and state.handed_over

    def tidy(self, keep: Sequence[str]) -> None:
        """Remove commits beyond the retained number, once there are twice as many.

        The step is done, so a failure is only logged; a call of `vacuum` raises it.
        """
        try:
            if self._oldest is None:
                # Includes commits that earlier applications have left.
                self._oldest = min(self.commits.numbers(), default=self.last.number)
            if self.last.number - self._oldest + 1 >= 2 * self.retain:
                self.vacuum(keep, dry_run=False, older_than=0.0)
                self._oldest = self.last.number - self.retain + 1
        except StorageError:
            self._oldest = self.last.number
            _logger.warning(
                "commits of %s that are not retained any more are still there",
                self._objects.root, exc_info=True,
            )

    def vacuum(
        self, keep: Sequence[str], *, dry_run: bool, older_than: float
    ) -> Vacuumed:
        """Remove files that no retained commit needs, except some paths."""
        return vacuum(
            self._objects, self.commits, self.retain, dry_run=dry_run, older_than=older_than,
            keep=list(map(self.files.name, keep)),
        )

    @property
    def identity(self) -> str:
        """The unique identity of the store."""
        return self.last.store

    @property
    def root(self) -> str:
        """The location of the store."""
        return self._objects.root

    def verify(self) -> list[str]:
        """The damaged files of the last commit."""
        return verify(self._objects, self.last, full=True)

    def history(self) -> tuple[list[tuple[Any, ...]], str]:
        """The readable commits as rows, and the columns of the rows."""
        rows = []
        for number in self.commits.numbers():
            commit = self.commits.read(number)
            with understood():
                body = json.loads(commit.state.split(b"\n")[1])
                step, offsets = int(body["step"]), dict(body.get("offsets", {}))
            size = sum(file.length for file in commit.files.values())
            sources = json.dumps(offsets, separators=(",", ":"), sort_keys=True)
            rows.append((
                number, commit.written, commit.epoch, commit.token, step, len(commit.files), size,
                sources,
            ))
        columns = (
            "commit long, written timestamp, epoch long, token string, step long, files long, "
            "bytes long, sources string"
        )
        return rows, columns

    def _program(self, state: State, names: Mapping[Node, str]) -> bytes:
        """The description of the graph, with the user's names of nodes."""
        graph = state.graph
        if graph is None:
            return NOTHING
        if self._described is None or self._described[0] is not graph:
            origins = (node for nodes in graph.origins.values() for node in nodes)
            program = written([*graph.lowered, *origins])
            self._prints = fingerprints(program, self._prints, rows=True, base=self._base)
            text = json.dumps(blueprint(graph, self._prints, names), separators=(",", ":"))
            self._described = graph, text.encode()
        return self._described[1]

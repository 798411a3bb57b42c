"""State that outlives the application: each step that is done is a commit.

    a step is done  ⟺  its commit exists

Whether it exists is settled by the store alone, so a step that is cut short behind its commit is
done, and is taken over by whatever comes next.
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
from pyspark_diff.trace.stored_traces import Place, understood
from pyspark_diff.trace.vacuum import Vacuumed, vacuum, verify

_logger = logging.getLogger("pyspark_diff")

#: So many tokens are remembered.
MOST_TOKENS = 100
#: The description of a program of which nothing has run.
NOTHING = b"null"


class Store:
    """The commits of one dataflow, as its writer makes them. It holds state: the last of them.

    Parameters
    ----------
    objects : Objects
    commits : Commits
        Open for writing.
    commit : Commit
        The last one.
    places : mapping of str to Place
        Where the small batches lie that it holds, by their paths.
    prints : mapping of Node to Fingerprint
        Of nodes that have them already.
    tokens : mapping of str to int
        What the last steps were called, and their commits.
    retain : int
        So many commits stay readable.
    base : mapping of str to str
        The settings that fingerprints are compared with.
    """

    def __init__(
        self, objects: Objects, commits: Commits, commit: Commit, files: storage.StoreFiles,
        places: Mapping[str, Place], prints: Mapping[Node, Fingerprint],
        tokens: Mapping[str, int], retain: int, base: Mapping[str, str],
    ):
        self.commits, self.last = commits, commit
        self.files, self.retain = files, retain
        self._objects = objects
        #: What the last steps were called, and their commits.
        self.tokens = dict(tokens)
        self._places = dict(places)
        #: What is being committed, and where its small batches are going to lie.
        self._going: tuple[State, Encoded, dict[str, int]] | None = None
        self._done: State | None = None
        self._described: tuple[Graph, bytes] | None = None
        self._prints, self._base = dict(prints), base
        #: Whether the last commit has something that consumers were to be given.
        self._owes = False
        #: The oldest commit that may have to go, if that was found out.
        self._oldest: int | None = None

    def commit(
        self, state: State, settings: Mapping[str, Any], names: Mapping[Node, str],
        token: str | None,
    ) -> State:
        """Make a state last; returns it as it is then held.

        Raises
        ------
        ConcurrentWriteError
            If another application writes this store now. Nothing is committed then.
        UnknownOutcomeError
            If it cannot be told whether it was committed; the next step finds out.
        """
        after = sealed(state, self.files.directory)
        number, tokens = self.commits.next_number, dict(self.tokens)
        if token is not None:
            tokens.pop(token, None)
            tokens[token] = number
        tokens = dict(list(tokens.items())[-MOST_TOKENS:])
        found = encoded(
            after, self.files.name, number, self._places, self._program(after, names),
            {**settings, "tokens": tokens},
        )
        self.files.make_lasting(name for name in found.files if name not in self.last.files)
        self._going = after, found, tokens
        self.commits.append(found.text, found.payload, found.files, found.uses, token)
        self._settle()
        return after

    def committed(self, state: State) -> State:
        """The state of the last commit, where that is not yet the state that is held.

        A step may be cut short behind its commit, so whoever is about to do something asks first.
        """
        if self._going is not None:
            self.commits.settle()
            self._settle()
        done, self._done = self._done, None
        return state if done is None else done

    def _settle(self) -> None:
        """Take over what was going to be committed, if it was."""
        last = self.commits.last
        assert last is not None  # it is open
        # If it was not, another one has its number, with the state of before.
        if self._going is not None and last.state == self._going[1].text:
            self._done, self._places = self._going[0], dict(self._going[1].places)
            self._owes = not self._done.handed_over
            self.tokens = self._going[2]
        self.last, self._going = last, None

    def check_own(self, error: Exception) -> None:
        """Tell whether a step has failed because another application has the store by now, which
        may have removed what this one needs.

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
        """Whether consumers and sinks have been given since what the last commit says they were
        to be."""
        return self._owes and state.handed_over

    def tidy(self, keep: Sequence[str]) -> None:
        """Let go of commits that are not retained, whenever there are twice as many.

        What keeps it from that is told the next time somebody asks for it: the step is done.
        """
        try:
            if self._oldest is None:
                # Also those of applications that ended before it was their turn.
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
        """Let go of what no retained commit needs, but for some paths."""
        return vacuum(
            self._objects, self.commits, self.retain, dry_run=dry_run, older_than=older_than,
            keep=list(map(self.files.name, keep)),
        )

    @property
    def identity(self) -> str:
        """What no other store has."""
        return self.last.store

    @property
    def root(self) -> str:
        """Where it is."""
        return self._objects.root

    def verify(self) -> list[str]:
        """What is wrong with the files of the last commit."""
        return verify(self._objects, self.last, full=True)

    def history(self) -> tuple[list[tuple[Any, ...]], str]:
        """The commits that can be read, and the columns that tell of them."""
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
        """The description of what runs, with what users call nodes."""
        graph = state.graph
        if graph is None:
            return NOTHING
        if self._described is None or self._described[0] is not graph:
            origins = (node for nodes in graph.origins.values() for node in nodes)
            program = written([*graph.lowered, *origins])
            self._prints = fingerprints(program, self._prints, rows=True, base=self._base)
            told = blueprint(graph, self._prints, names)
            self._described = graph, json.dumps(told, separators=(",", ":")).encode()
        return self._described[1]

"""GraphFrames' ``Pregel``: a program of vertices that send messages, put together step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import at_least_one
from pyspark_diff.graphs.pregel import Votes, run_rounds
from pyspark_diff.spark.schema import meant_by

#: The combined messages to a vertex in expressions, as in GraphFrames.
MSG = "_pregel_msg_"


class Pregel:
    """A program in which vertices send messages along edges, in rounds: see `GraphDiff.pregel`.

    Parameters
    ----------
    vertices : DiffFrame
        ``id``, each once, and any attributes.
    edges : DiffFrame
        ``src`` and ``dst``, both vertices, and any attributes.

    Notes
    -----
    Each method sets a part of the program and returns the object. The methods are those of
    GraphFrames. Those about checkpoints, storage and required columns have no effect. The result
    has no column that tells active vertices.

    Unchanged vertices cost nothing here, with or without the votes of active vertices. A vote that
    ends the program for all vertices reads all of them if a change moves the end.

    Examples
    --------
    >>> from pyspark_diff.graphs import GraphDiff, Pregel
    >>> vertices = spark.createDataFrame([(1, 5), (2, 7), (3, 1)], "id long, size int")
    >>> edges = spark.createDataFrame([(1, 2), (2, 3)], "src long, dst long")
    >>> program = GraphDiff(vertices, edges).pregel.setMaxIter(2).withVertexColumn(
    ...     "largest", F.col("size"), F.greatest("largest", Pregel.msg()))
    >>> program = program.sendMsgToDst(Pregel.src("largest")).aggMsgs(F.max(Pregel.msg()))
    >>> sorted(tuple(row) for row in program.run().at(0).collect())
    [(1, 5, 5), (2, 7, 7), (3, 1, 7)]
    """

    def __init__(self, vertices: DiffFrame, edges: DiffFrame):
        self._vertices, self._edges = vertices, edges
        self._rounds = 10
        self._initial: dict[str, Column] = {}
        self._update: dict[str, Column] = {}
        self._messages: list[tuple[str, Column]] = []
        self._aggregate: Column | None = None
        self._votes = Votes()

    def setMaxIter(self, value: int) -> Pregel:
        """The number of rounds, by default 10."""
        self._rounds = at_least_one(value, "setMaxIter")
        return self

    def withVertexColumn(
        self, colName: str, initialExpr: Column, updateAfterAggMsgsExpr: Column
    ) -> Pregel:
        """A value of each vertex.

        Parameters
        ----------
        colName : str
            Its column in the result.
        initialExpr : Column
            Its first value, over the columns of the vertices.
        updateAfterAggMsgsExpr : Column
            Its value after a round, over the columns of the vertices, the values before the round,
            and `msg`, which is null for a vertex without messages.
        """
        columns = [*self._vertices.columns, *self._initial, MSG]
        if meant_by(colName, columns, self._vertices.sparkSession):
            raise SchemaError(f"Pregel: there is a column {colName!r} already. Take another name")
        self._initial[colName], self._update[colName] = initialExpr, updateAfterAggMsgsExpr
        return self

    def sendMsgToSrc(self, msgExpr: Column) -> Pregel:
        """A message along each edge to its source, over `src`, `edge` and `dst`; null is none."""
        self._messages.append(("src", msgExpr))
        return self

    def sendMsgToDst(self, msgExpr: Column) -> Pregel:
        """A message along each edge to its destination, as in `sendMsgToSrc`."""
        self._messages.append(("dst", msgExpr))
        return self

    def aggMsgs(self, aggExpr: Column) -> Pregel:
        """The aggregate of the messages to a vertex, such as ``F.sum(Pregel.msg())``."""
        self._aggregate = aggExpr
        return self

    def setEarlyStopping(self, value: bool) -> Pregel:
        """Whether the first round without messages, and all later rounds, change nothing."""
        self._votes = replace(self._votes, stop_without_messages=bool(value))
        return self

    def setInitialActiveVertexExpression(self, value: Column) -> Pregel:
        """Whether a vertex is active before the first round, over the columns of the vertices."""
        self._votes = replace(self._votes, initial=value)
        return self

    def setUpdateActiveVertexExpression(self, value: Column) -> Pregel:
        """Whether a vertex is active after a round, over the columns for `withVertexColumn`."""
        self._votes = replace(self._votes, update=value)
        return self

    def setStopIfAllNonActiveVertices(self, value: bool) -> Pregel:
        """Whether the first round after which no vertex is active is the last one."""
        self._votes = replace(self._votes, stop_if_inactive=bool(value))
        return self

    def setSkipMessagesFromNonActiveVertices(self, value: bool) -> Pregel:
        """Whether an edge between two vertices that are not active sends no message."""
        self._votes = replace(self._votes, skip=bool(value))
        return self

    def _no_effect(self, *_: Any) -> Pregel:
        """No effect: there are no checkpoints, and only used columns are read."""
        return self

    setCheckpointInterval = setUseLocalCheckpoints = setIntermediateStorageLevel = _no_effect
    required_src_columns = required_dst_columns = required_edge_columns = _no_effect

    def run(self) -> DiffFrame:
        """The vertices with their columns and the values after the last round.

        Raises
        ------
        SchemaError
            If the program has no value, no message or no aggregate, or the type of a value changes.
        """
        parts: Sequence[tuple[str, Any]] = (
            ("withVertexColumn", self._initial), ("sendMsgToDst", self._messages),
            ("aggMsgs", self._aggregate is not None),
        )
        missing = [name for name, part in parts if not part]
        if missing or self._aggregate is None:
            raise SchemaError(f"Pregel: a part is missing. Call {missing[0]}(...) before run()")
        return run_rounds(
            self._vertices, self._edges, self._messages, self._initial, self._aggregate,
            self._update, self._rounds, key="id", msg=MSG, votes=self._votes,
        )

    @staticmethod
    def msg() -> Column:
        """The messages in `aggMsgs`, and the combined message in `withVertexColumn`."""
        return F.col(MSG)

    @staticmethod
    def src(colName: str) -> Column:
        """A column of the source in a message."""
        return F.col(f"src.{colName}")

    @staticmethod
    def dst(colName: str) -> Column:
        """A column of the destination in a message."""
        return F.col(f"dst.{colName}")

    @staticmethod
    def edge(colName: str) -> Column:
        """A column of the edge in a message."""
        return F.col(f"edge.{colName}")

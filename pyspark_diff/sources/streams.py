"""Micro-batches of a streaming query, each taken in once, by its query and its number.

    batch n is taken in  ⟹  batches 0 to n - 1 of the same query were, each once

Spark's checkpoint and the state of the dataflow each have the position of the query. A batch that
the state has already is skipped. A missing batch, or a batch of another query, is an error with
both positions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.source import Offset, Reading, Source
from pyspark_diff.errors import NotReadableError, SourceError
from pyspark_diff.sources.files import OP, ORDER, changes_of
from pyspark_diff.sources.tables import at_hand, named
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.jvm_context import query_of
from pyspark_diff.spark.schema import as_keys, parse_schema

_logger = logging.getLogger("pyspark_diff")


class Batches(Source):
    """The micro-batches of one streaming query at a time. `batches` returns it."""

    def __init__(
        self, struct: T.StructType, key: tuple[str, ...], op: str | None, order: tuple[str, ...]
    ):
        self._struct, self.key, self._op, self._order = struct, key, op, order
        #: The batch to read: query, number and rows.
        self._now: tuple[str, int, DataFrame] | None = None

    def columns(self, spark: SparkSession) -> T.StructType:
        return self._struct

    def into(
        self, flow: BaseDataflow, *, query: str | None = None, on_new_query: str = "refuse"
    ) -> Callable[[DataFrame, int], None]:
        """A function for ``foreachBatch``: each call processes a batch as an epoch of the dataflow.

        Parameters
        ----------
        flow : Dataflow
            A dataflow that has an input with this source.
        query : str, optional
            The identity of the query; by default Spark's id, which is in its checkpoint. Spark
            Connect requires it.
        on_new_query : {"refuse", "append"}
            The reaction to a batch of another query than before. A query with a deleted checkpoint
            is another one, and begins again with its first rows. ``"append"`` takes the rows as new
            ones.

        Returns
        -------
        callable
            A function of a frame and the number of a batch.
        """
        if on_new_query not in ("refuse", "append"):
            raise ValueError(f"on_new_query is 'refuse' or 'append', not {on_new_query!r}")
        name = flow._sources.name_of(self)
        if name is None:
            raise NotReadableError(
                "this dataflow has no input that is filled from these batches: "
                "flow.source(name, batches)"
            )

        def take(frame: DataFrame, batch: int) -> None:
            self._take(flow, name, query or _query_of(frame), on_new_query, frame, batch)

        return take

    def _take(
        self, flow: BaseDataflow, name: str, query: str, on_new_query: str, frame: DataFrame,
        batch: int,
    ) -> None:
        with flow._lock:
            known = flow._sources.offsets.get(name)
            if known is not None and known["query"] != query:
                if on_new_query == "refuse":
                    raise SourceError(
                        f"input {name!r} has batches 0 to {known['batch']} of the streaming query "
                        f"{known['query']}, and this is batch {batch} of {query}: another query, "
                        "or its checkpoint was deleted. Give the query its earlier checkpoint. "
                        "With new rows, use into(flow, on_new_query='append'), and with the same "
                        "rows begin with a new store"
                    )
                known = None
            last = -1 if known is None else known["batch"]
            if batch > last + 1 and (known is not None or on_new_query == "refuse"):
                raise SourceError(
                    f"Spark's checkpoint is ahead: this is batch {batch} of the streaming query "
                    f"{query}, and input {name!r} has taken in "
                    f"{f'those up to {last}' if last >= 0 else 'none'}, so {last + 1} to "
                    f"{batch - 1} would be lost. Open the store that has them, or let the query "
                    "begin again with a new checkpoint and a new store"
                )
            if batch <= last:
                _logger.info(
                    "batch %d of streaming query %s is in the state already, which has those up "
                    "to %d", batch, query, last,
                )
                flow._catch_up()  # a sink may lack the changes of the batch
                return
            # Spark keeps the rows only until this returns.
            with flow._sources.or_undone(name, lambda: flow._state.offsets):
                self._now = query, batch, frame
                try:
                    flow._catch_up()
                finally:
                    self._now = None

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        if self._now is None:
            return None
        query, batch, frame = self._now
        named(
            frame.schema.fields, [*([] if self._op is None else [self._op]), *self._order],
            f"batch {batch}", spark,
        )
        op = F.lit("i") if self._op is None else column(self._op)
        order = [*map(column, self._order)] or [F.lit(0)]
        rows = at_hand(frame.select(
            *map(column, self._struct.names), op.alias(OP), F.struct(*order).alias(ORDER)
        ))
        changes = changes_of(rows, self._struct.names, self.key, f"batch {batch}")
        return Reading({"query": query, "batch": batch}, changes)

    def __repr__(self) -> str:
        return f"batches({', '.join(self._struct.names)})"


def batches(
    schema: str | T.StructType, *, key: str | Sequence[str] = (), op: str | None = None,
    order: str | Sequence[str] = (),
) -> Batches:
    """The micro-batches of a streaming query, which ``foreachBatch`` passes to the dataflow.

    Parameters
    ----------
    schema : str or StructType
        Columns of the rows.
    key : str or list of str
        Columns of a key, so that each key has at most one row.
    op : str, optional
        The column with the op of each row: see `pyspark_diff.sources.files`. Without it all rows
        are inserts, or with a key upserts.
    order : str or list of str
        Columns that order the changes of a key in a batch.

    Examples
    --------
    >>> import tempfile
    >>> from pyspark_diff import Dataflow
    >>> folder, checkpoint = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> spark.createDataFrame([("a",), ("a",)], "word string").write.mode("append").json(folder)
    >>> with Dataflow(spark) as flow:
    ...     words = batches("word string")
    ...     counts = flow.source("words", words).count().keep()
    ...     stream = spark.readStream.schema("word string").json(folder).writeStream
    ...     query = stream.foreachBatch(words.into(flow)).option("checkpointLocation", checkpoint)
    ...     _ = query.trigger(availableNow=True).start().awaitTermination()
    ...     counts.at().collect()
    [Row(word='a', count=2)]
    """
    return Batches(parse_schema(schema).struct, as_keys(key), op, as_keys(order))


def _query_of(frame: DataFrame) -> str:
    """The id of the streaming query whose batch a frame is."""
    query = query_of(frame)
    if query is None:
        raise SourceError(
            "this is no batch of a streaming query, or one of Spark Connect, where its id is "
            "unknown. Name the query, into(flow, query=...)"
        )
    return query

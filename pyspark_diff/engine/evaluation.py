"""Evaluation of feeds: into files, once for all readers, or into tables for the user.

For update rows ``S`` and a chain of linear operators ``f``, each result has the updates ``f(S)``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Sequence

import pyarrow as pa

from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import StepSettings
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.node import Node
from pyspark_diff.runners.bilinear import check_fit
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.local import LocalRunner
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.work import check_ceiling
from pyspark_diff.spark.schema import DIFF, TIME, Schema


class Evaluation:
    """Evaluates feeds within one step.

    Parameters
    ----------
    directory : callable
        Returns a new directory of the step.
    written : list of str
        The list to which the paths of new files are appended.
    """

    def __init__(
        self, graph: Graph, settings: StepSettings, spark: SparkRunner, local: LocalRunner,
        directory: Callable[[str], str], written: list[str],
    ):
        self._graph, self._settings = graph, settings
        self._spark, self._local = spark, local
        self._directory, self._written = directory, written

    def materialised(self, source: UpdateRows) -> UpdateRows:
        """Update rows as files, evaluated once."""
        return self.written_out(Feed(source), source.schema)

    def written_out(self, feed: Feed, schema: Schema) -> UpdateRows:
        """The rows of a feed after its chain, in files."""
        rows = self._spark.materialise(feed, schema, self._directory("rows"))
        self._written.extend(rows.paths)
        return rows

    def put_off(self, node: Node, feed: Feed) -> Feed:
        """A feed for a later step of a node: stored, and without stages that may fail.

        Otherwise a later step could fail on updates that an earlier step has accepted.
        """
        if any(stage.may_fail or self._settings.lasting for stage in feed.chain):
            needed = node.needs_of(self._graph.wanted[node], 0)
            stored = self.evaluated(node.inputs[0], feed, needed)
            if feed.upper is None and not all(s.keeps_time_and_diff for s in feed.chain):
                self._check_times(stored)
            return stored
        if feed.source.passing:
            return replace(feed, source=self.materialised(feed.source))
        return feed

    def _check_times(self, feed: Feed) -> None:
        """Check that no update lies beyond the frontier of its source, before the update waits."""
        if feed.until.end is not None:
            for table in self._local.tables(feed):
                time = as_int64(table[TIME].combine_chunks()).to_numpy()
                check_ceiling(time, feed.until.end)

    def evaluated(self, node: Node, feed: Feed, wanted: frozenset[str]) -> Feed:
        """A feed of a node after one evaluation of its chain, for all readers of some columns."""
        schema = node.schema.only(n for n in node.schema.names if n in wanted)
        source = feed.source
        if source.table is None or not self._settings.few(source.table.num_rows):
            return replace(feed, source=self.written_out(feed, schema), chain=())
        tables = [t.select([*schema.names, TIME, DIFF]) for t in self._local.tables(feed)]
        if not tables:
            empty = pa.schema([
                *schema.arrow(), (TIME, node.time_type.arrow), (DIFF, pa.int64())
            ]).empty_table()
            tables = [empty]
        table = pa.concat_tables(tables)
        return replace(feed, source=UpdateRows(schema, table=table, rows=table.num_rows), chain=())

    def tables(self, node: Node, feeds: Sequence[Feed]) -> list[pa.Table]:
        """The rows of feeds, all in one schema: Spark and Arrow differ in nullability."""
        if not feeds:
            return []
        schema = self._graph.form(node).table
        tables: list[pa.Table] = []
        for feed in feeds:
            if feed.source.frame is not None:
                feed = replace(feed, source=self.materialised(feed.source))
            check_fit(feed.source.rest)
            tables.extend(feed.in_interval(table) for table in self._local.tables(feed))
        return [
            table if table.schema == schema else table.select(schema.names).cast(schema)
            for table in tables
        ]

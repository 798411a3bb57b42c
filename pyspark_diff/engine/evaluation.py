"""Evaluation of feeds: into files, once for all that read them, or into tables to be shown.

For update rows ``S`` and a chain of linear operators ``f``, all give the updates ``f(S)``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Sequence

import pyarrow as pa

from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import Settings
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.node import Node
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.local import LocalRunner
from pyspark_diff.runners.read import check_fit
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.work import check_ceiling
from pyspark_diff.spark.schema import DIFF, TIME, Schema


class Evaluation:
    """Evaluates feeds within one step.

    Parameters
    ----------
    graph : Graph
    settings : Settings
    spark : SparkRunner
    local : LocalRunner
    directory : callable
        Gives a new directory of the step.
    written : list of str
        Where the files that are written are noted.
    """

    def __init__(
        self, graph: Graph, settings: Settings, spark: SparkRunner, local: LocalRunner,
        directory: Callable[[str], str], written: list[str],
    ):
        self._graph, self._settings = graph, settings
        self._spark, self._local = spark, local
        self._directory, self._written = directory, written

    def materialised(self, source: UpdateRows) -> UpdateRows:
        """Update rows as files, evaluated once."""
        return self.written_out(Feed(source), source.schema)

    def written_out(self, feed: Feed, schema: Schema) -> UpdateRows:
        """The rows of a feed, its chain applied, in files."""
        made = self._spark.materialise(feed, schema, self._directory("rows"))
        self._written.extend(made.paths)
        return made

    def put_off(self, node: Node, feed: Feed) -> Feed:
        """A feed that a node reads in a later step: at rest, and with nothing left to fail on.

        Else a later step could fail on updates that an earlier one was right to take in.
        """
        if any(stage.may_fail or self._settings.lasting for stage in feed.chain):
            needed = node.needs_of(self._graph.wanted[node], 0)
            made = self.evaluated(node.inputs[0], feed, needed)
            if feed.upper is None and not all(s.keeps_time_and_diff for s in feed.chain):
                self._check_times(made)
            return made
        if feed.source.passing:
            return replace(feed, source=self.materialised(feed.source))
        return feed

    def _check_times(self, feed: Feed) -> None:
        """What has no place before the frontier of its source is found before it waits."""
        if feed.until.end is not None:
            for table in self._local.tables(feed):
                time = as_int64(table[TIME].combine_chunks()).to_numpy()
                check_ceiling(time, feed.until.end)

    def evaluated(self, node: Node, feed: Feed, wanted: frozenset[str]) -> Feed:
        """A feed of a node with its chain applied once, for all that read some columns of it."""
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
            tables.extend(feed.within(table) for table in self._local.tables(feed))
        return [
            table if table.schema == schema else table.select(schema.names).cast(schema)
            for table in tables
        ]

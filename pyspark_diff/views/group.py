"""A group of views over one dataflow: planned, refreshed and rebuilt together.

    after a refresh:  each target  =  its query over the source versions in the record

The state is that of a store, in a folder for each generation. A refresh continues the generation
of the record. A rebuild begins the next one, reads all sources, overwrites the targets, and deletes
the states before.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.errors import ClosedError, ProgramChangedError, SchemaError, SourceError
from pyspark_diff.sinks.delta_history import COLUMNS, continues
from pyspark_diff.spark.delta import delta_table, identifier
from pyspark_diff.spark.jvm import analysed_of
from pyspark_diff.spark.jvm_tables import described_table
from pyspark_diff.views.columns import (
    ColumnChanges,
    column_changes,
    digests,
    recorded_columns,
)
from pyspark_diff.views.forecast import (
    Plan,
    SourceForecast,
    change_seconds,
    load_seconds,
    source_forecast,
)
from pyspark_diff.views.program import (
    ReadingDataflow,
    View,
    ViewDataflow,
    Wiring,
    file_reason,
    identifier_of,
    program_of,
    whole_reason,
)
from pyspark_diff.views.record import Cost, Record, RecordFile
from pyspark_diff.views.reports import Refreshed, ViewReport, append_log, check_log, emit_metrics
from pyspark_diff.views.target import Written, begin_target, check_target, create_target

_logger = logging.getLogger("pyspark_diff")

#: The begin of the recorded query of a view with a history.
_HISTORY = "-- history: scd2\n"

Policy = Literal["strict", "incremental", "auto"]
Approve = Callable[[Plan], bool]


class ViewGroup:
    """Views with one store, each after the views that it reads. It holds state.

    Parameters
    ----------
    policy : {"strict", "incremental", "auto"}
    approve : callable, optional
        Takes the `Plan` of a rebuild; the rebuild stops if it returns False.
    log : str, optional
        A Delta table to which each refresh appends a row for each view.
    """

    def __init__(
        self, spark: SparkSession, views: Sequence[View], store: str | os.PathLike[str],
        policy: Policy, approve: Approve | None, log: str | None = None,
    ):
        if policy not in ("strict", "incremental", "auto"):
            raise ValueError(f"policy is 'strict', 'incremental' or 'auto', not {policy!r}")
        self._spark, self.policy, self._approve = spark, policy, approve
        self.views = tuple(
            replace(view, target=identifier(view.target), query=view.query.strip().rstrip(";"))
            for view in views
        )
        self._file = RecordFile(store)
        self._record = Record()
        self._flow: ViewDataflow | None = None
        self._wiring: Wiring | None = None
        self._names: dict[str, str] = {}
        self._sources: dict[str, str] | None = None
        self._used: dict[str, set[str]] = {}
        #: The columns of the sources when the queries were read last.
        self._present: dict[str, list[str]] = {}
        self._columns = ColumnChanges()
        #: The sources of each view, also through other views.
        self._reads: dict[str, set[str]] = {}
        self._written: dict[str, Written] = {}
        self._log = None if log is None else identifier(log)
        self._open = True

    def plan(self) -> Plan:
        """The forecast of the next refresh. It reads logs only, and changes nothing."""
        self._check_open()
        self._record = self._file.read()
        return self._plan()

    def refresh(self) -> Refreshed:
        """Read the changes of all sources, and change the rows of the targets exactly once."""
        self._check_open()
        began = time.perf_counter()
        self._record = self._file.read()
        self._prepare()
        plan = self._plan()
        if plan.action == "rebuild" and self._columns.others:
            done = self._refresh_columns(plan, began)
            if done is not None:
                return done
        elif plan.action == "rebuild":
            self._agree(plan)
            self._begin_generation("; ".join(plan.reasons))
        elif plan.action == "load" and self._changed_queries():
            # The first load did not end, so that its state is of another program.
            self._begin_generation("the query changed before the first load ended")
        try:
            return self._refresh(plan, began)
        except SourceError as error:
            # A first load cannot fall back, and raises the error of the source.
            if not self._record.offsets or self._record.rebuild:
                raise
            self._leave()
            # A query that has lost a column is refused before its state is given up.
            self._source_tables()
            plan = self._rebuild_plan([str(error)])
            self._agree(plan, error)
            self._begin_generation(str(error))
            return self._refresh(plan, began)

    def _refresh_columns(self, plan: Plan, began: float) -> Refreshed | None:
        """Read sources with other columns again, and keep the state of the others; None after the
        begin of a rebuild, if nothing can be kept."""
        self._agree(plan, SourceError("; ".join(plan.reasons)))
        if set(self._source_tables()) - set(self._columns.others):
            self._leave()
            self._check_histories(plan.rebuilt)
            try:
                return self._refresh(plan, began, "extend")
            except ProgramChangedError as error:
                _logger.info("the state of other sources cannot be kept: %s", error)
            plan = self._rebuild_plan(plan.reasons)
            self._agree(plan)
        self._begin_generation("; ".join(plan.reasons))
        return None

    def rebuild(self) -> Refreshed:
        """Read all sources, compute all views, and overwrite their targets."""
        self._check_open()
        began = time.perf_counter()
        self._record = self._file.read()
        plan = self._rebuild_plan(["rebuild() was called"])
        self._begin_generation("rebuild() was called")
        self._prepare()
        return self._refresh(plan, began)

    def explain(self) -> str:
        """The plan, and the cost of a change for each view and clause. It reads no rows."""
        self._check_open()
        self._record = self._file.read()
        self._prepare()
        lines = [str(self._plan())]
        with ViewDataflow(self._spark, time="_time", diff="_diff") as flow:
            flow.wiring = self._new_wiring()
            for view in self.views:
                frame, read, key = flow.view(view)
                lines += ["", f"{view.target}, merged by {', '.join(key)}"]
                reads = ", ".join(sorted(read.tables)) or "no table"
                lines.append(f"  reads {reads}")
                costs = frame.explain()
                clauses = [
                    f"  {operator.name}: {reason.code}, {reason.text}; {reason.advice}"
                    for operator in costs.operators for reason in operator.reasons
                ]
                lines += clauses or ["  a change costs its own rows in each clause"]
                frame.keep(self._names[view.target])
        return "\n".join(lines)

    def close(self) -> None:
        """Release the state. A second call does nothing."""
        self._open = False
        self._leave()

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(
                "this view was closed; make it again with pyspark_diff.materialized_view(...)"
            )

    def _leave(self) -> None:
        flow, self._flow = self._flow, None
        # Others may have altered the tables, when the next dataflow reads the queries.
        self._sources = None
        if flow is not None:
            flow.close()

    # Targets

    def _prepare(self) -> None:
        """Create the targets that are not there, and check the others."""
        record = self._record
        if self._log is not None:
            check_log(self._spark, self._log)
        for view in self.views:
            mark = record.targets.get(view.target)
            if mark is None and delta_table(self._spark, view.target) is None:
                create_target(
                    self._spark, view.target, self._schema(view), view.comment
                )
            if mark is not None:
                check_target(self._spark, view.target, mark, self._sink_name(view))
            elif not record.rebuild:
                mark = begin_target(self._spark, view.target)
                self._write(self._record.with_target(view.target, mark))
        self._name_targets()

    def _name_targets(self) -> None:
        """Find the names of the targets in plans."""
        for view in self.views:
            if view.target not in self._names:
                leaf = analysed_of(self._spark.read.table(view.target))
                self._names[view.target] = _leaf_name(leaf)

    def _schema(self, view: View) -> Any:
        with ViewDataflow(
            self._spark, time="_time", diff="_diff", strict=self.policy == "strict"
        ) as flow:
            flow.wiring = self._new_wiring()
            # A kept collection is checked before its target is created.
            schema = flow.view(view)[0].keep().schema
            return T.StructType([*schema.fields, *COLUMNS.fields]) if view.history else schema

    def _sink_name(self, view: View) -> str:
        return view.target

    def _write(self, record: Record) -> None:
        self._record = record
        self._file.write(record)

    # Plans

    def _plan(self) -> Plan:
        record, self._columns = self._record, ColumnChanges()
        changed = self._changed_queries()
        if record.rebuild:
            plan = self._rebuild_plan([f"a rebuild was interrupted: {record.rebuild}", *changed])
            return plan if changed else replace(plan, action="load")
        if not record.offsets:
            sources = self._forecasts({})
            rows = sum(source.reads or 0 for source in sources)
            return Plan("load", sources, load_seconds(rows, record.costs))
        if changed and not self._is_same_program():
            return self._rebuild_plan(changed)
        sources = self._forecasts(record.offsets)
        self._columns = self._changed_columns([
            source.name for source in sources if source.first != source.last
        ])
        if self._columns.others:
            return self._plan_of_columns()
        is_new = self._flow is None and not changed
        if self._columns.renamed and is_new and not self._is_same_program():
            return self._rebuild_plan(self._columns.renames())
        rows = sum(source.reads or 0 for source in sources)
        if all(source.rows == 0 and source.first == source.last for source in sources):
            return Plan("nothing", sources, 0.0)
        seconds = change_seconds(rows, record.costs)
        whole = sum(source.whole or 0 for source in sources)
        load = load_seconds(whole, record.costs)
        unknown = [source.name for source in sources if source.rows is None]
        if self.policy == "auto" and seconds > load and not unknown:
            _logger.info(
                "the changes of %d rows would take %.1f s, and a rebuild %.1f s", rows, seconds,
                load,
            )
            return self._rebuild_plan([
                f"{rows} changed rows would take {seconds:.1f} s, and all {whole} rows "
                f"take {load:.1f} s"
            ])
        return Plan("change", sources, seconds)

    def _plan_of_columns(self) -> Plan:
        """The plan of a refresh that reads sources with other columns again."""
        changed = self._columns.others
        offsets = {
            name: offset for name, offset in self._record.offsets.items() if name not in changed
        }
        sources = self._forecasts(offsets)
        rows = sum(source.reads or 0 for source in sources)
        return Plan(
            "rebuild", sources, load_seconds(rows, self._record.costs),
            tuple(view.target for view in self.views if self._reads[view.target] & set(changed)),
            tuple(f"the columns of {name} have changed: {words}"
                  for name, words in changed.items()),
        )

    def _changed_columns(self, sources: Sequence[str]) -> ColumnChanges:
        """The changes of the columns of some sources since the last refresh."""
        def compare() -> ColumnChanges:
            tables = self._source_tables()
            names = [name for name in sources if tables.get(name) == "delta"]
            return column_changes(self._spark, self._record, names, self._used)

        changes = compare()
        if any(self._present.get(name, now) != now for name, now in changes.present.items()):
            self._sources = None  # a star has other columns now
            changes = compare()
        self._present.update(changes.present)
        known = {} if self._wiring is None else self._wiring.renamed
        if self._flow is not None and any(
            known.get(name, {}) != pairs for name, pairs in changes.renamed.items()
        ):
            # The queries have to use the new names.
            self._leave()
            self._source_tables()
        return changes

    def _is_same_program(self) -> bool:
        """Whether other texts of the queries, or other names of columns, do not change the program
        of the state."""
        record, now = self._record, self._queries()
        if record.programs.keys() != now.keys() or any(
            text.startswith(_HISTORY) != record.queries.get(name, "").startswith(_HISTORY)
            for name, text in now.items()
        ):
            return False
        columns = self._changed_columns(list(self._source_tables()))
        if columns.others:
            return False
        try:
            self._name_targets()
        except AnalysisException:  # A refresh refuses a target that is gone.
            return False
        with ViewDataflow(self._spark, time="_time", diff="_diff") as flow:
            flow._sources.stored = {
                name: T.StructType.fromJson(json.loads(text))
                for name, text in record.columns.items()
            }
            flow._sources.stored_offsets = record.offsets
            flow.wiring = replace(self._new_wiring(), renamed=columns.renamed)
            frames = {}
            for view in self.views:
                frames[view.target] = flow.view(view)[0].keep(self._names[view.target])
            return digests(flow, frames) == record.programs

    def _queries(self) -> dict[str, str]:
        """The text of each view that its state depends on."""
        return {
            view.target: f"{_HISTORY if view.history else ''}{view.query}" for view in self.views
        }

    def _changed_queries(self) -> list[str]:
        """What differs from the program of the state; nothing if there is no state."""
        now, before = self._queries(), self._record.queries
        changed = []
        for name in {**before, **now} if before else ():
            old, new = before.get(name, ""), now.get(name, "")
            if old.removeprefix(_HISTORY) != new.removeprefix(_HISTORY):
                changed.append(f"the query of {name} has changed")
            if old.startswith(_HISTORY) and not new.startswith(_HISTORY):
                changed.append(f"the history of {name} is no longer wanted, and is overwritten")
            elif new.startswith(_HISTORY) and old and not old.startswith(_HISTORY):
                changed.append(f"a history of {name} begins")
        return changed

    def _rebuild_plan(self, reasons: Sequence[str]) -> Plan:
        sources = self._forecasts({})
        rows = sum(source.reads or 0 for source in sources)
        return Plan(
            "rebuild", sources, load_seconds(rows, self._record.costs),
            tuple(view.target for view in self.views), tuple(reasons),
        )

    def _forecasts(self, offsets: Mapping[str, Any]) -> tuple[SourceForecast, ...]:
        forecasts = []
        for name, provider in self._source_tables().items():
            if provider != "delta":
                offset = offsets.get(name)
                forecasts.append(SourceForecast(
                    name, None, None, offset, None, whole_reason(self._spark, name, provider)
                ))
                continue
            forecasts.append(source_forecast(
                self._spark, name, identifier_of(name), offsets.get(name),
                whole_reason(self._spark, name, provider),
                file_reason(self._spark, name, provider),
            ))
        return tuple(forecasts)

    def _source_tables(self) -> dict[str, str]:
        """The tables of the catalog that the views read, with their providers."""
        if self._sources is None:
            names: dict[str, str] = {}  # of the tables that are targets
            self._reads = {}
            with ReadingDataflow(self._spark, time="_time", diff="_diff") as flow:
                for view in self.views:
                    try:
                        target = analysed_of(self._spark.read.table(view.target))
                        names[_leaf_name(target)] = view.target
                    except AnalysisException:
                        pass  # it will be created
                    read = self._read_query(flow, view)
                    self._reads[view.target] = {name for name in read if name not in names}.union(
                        *(self._reads.get(names[name], ()) for name in read if name in names)
                    )
                self._used = flow.used
            self._sources = {
                name: provider for name, provider in flow.providers.items() if name not in names
            }
        return self._sources

    def _read_query(self, flow: ReadingDataflow, view: View) -> set[str]:
        """The tables of a query. An error names the renamed columns that the query uses."""
        try:
            return flow.read(view.query)
        except SchemaError as error:
            columns = column_changes(self._spark, self._record, self._record.columns, {})
            pairs = [
                (old, new, name) for name, renamed in columns.renamed.items()
                for new, old in renamed.items()
                if re.search(rf"(?<!\w){re.escape(old)}(?!\w)", view.query)
            ]
            if not pairs:
                raise
            texts = [f"column {old} of {name} was renamed to {new}" for old, new, name in pairs]
            words = "; ".join(columns.others.values())
            effect = f"all rows are read again, because {words}" if words else "the state is kept"
            raise SchemaError(
                f"{'; '.join(texts)} since the last refresh of {view.target}, and the query uses "
                "the old name. Nothing was read or written. Use the new name in the query, and "
                f"{effect}; or ALTER TABLE {pairs[0][2]} RENAME COLUMN {pairs[0][1]} TO "
                f"{pairs[0][0]}"
            ) from error

    def _agree(self, plan: Plan, cause: SourceError | None = None) -> None:
        """Refuse a rebuild that the policy or the caller does not allow.

        Parameters
        ----------
        cause : SourceError, optional
            The error of the source that makes it necessary.
        """
        try:
            self._check_agreed(plan)
        except ProgramChangedError as refusal:
            if cause is None:
                raise
            raise SourceError(str(refusal)) from cause

    def _check_agreed(self, plan: Plan) -> None:
        if self._approve is not None:
            if self._approve(plan):
                return
            raise ProgramChangedError(
                f"the rebuild was not approved. Nothing was read or written. The plan:\n{plan}\n"
                "Return True from approve= to go on"
            )
        if self.policy == "strict":
            raise ProgramChangedError(
                f"policy='strict' refuses to read whole sources again. Nothing was read or "
                f"written. The plan:\n{plan}\nPass approve=, a function that returns True for this "
                "plan; or call rebuild()"
            )

    # Work

    def _new_wiring(self) -> Wiring:
        return Wiring(
            self.policy, self._names, bool(self._record.rebuild) or self._record.generation > 1,
            lambda target: self._record.targets.get(target), self._note, self._used,
        )

    def _note(self, target: str, mark: Mapping[str, Any], done: Written) -> None:
        self._written[target] = done
        self._write(self._record.with_target(target, mark))

    def _check_histories(self, targets: Sequence[str]) -> None:
        """Refuse to overwrite a history that has other columns."""
        for view in self.views:
            if view.target in targets and view.history and (
                delta_table(self._spark, view.target) is not None
            ):
                continues(self._spark, view.target, self._schema(view))

    def _begin_generation(self, reason: str) -> None:
        self._leave()
        self._check_histories([view.target for view in self.views])
        record = self._record
        self._write(replace(
            record, generation=record.generation + 1, targets={}, offsets={}, rebuild=reason,
            queries=self._queries(), columns={}, programs={},
        ))

    def _refresh(
        self, plan: Plan, began: float, on_change: Literal["refuse", "extend"] = "refuse"
    ) -> Refreshed:
        if not self._names or len(self._names) < len(self.views):
            self._prepare()
        self._written = {}
        if not self._record.queries:
            self._write(replace(self._record, queries=self._queries()))
        record, rebuild = self._record, self._record.rebuild
        try:
            flow = self._opened(on_change)
            changed = flow.catch_up()
        except BaseException:
            self._leave()
            raise
        assert self._wiring is not None  # of the open dataflow
        offsets = dict(flow._state.offsets)
        recomputed = []
        if rebuild or not record.offsets:
            cause = f": {rebuild}" if rebuild else ": first load"
            recomputed = [f"{view.target}{cause}" for view in self.views]
        elif on_change == "extend":
            recomputed = [f"{target}: {'; '.join(plan.reasons)}" for target in plan.rebuilt]
        elif changed:
            recomputed = [
                f"{name}: {why}" for name, why in self._wiring.whole.items()
                if offsets.get(name) != record.offsets.get(name)
            ]
        seconds = time.perf_counter() - began
        first = bool(rebuild) or not record.offsets
        changed = changed or bool(self._written)
        if changed or first:
            forecast = None if on_change == "extend" else plan.seconds
            cost = Cost(plan.rows, seconds, forecast, first)
            programs = self._record.programs
            if first or on_change == "extend" or not programs:
                programs = digests(flow, self._wiring.frames)
            self._write(replace(
                self._record, offsets=offsets, rebuild="", queries=self._queries(),
                columns=recorded_columns(flow._sources.columns()), programs=programs,
            ).with_cost(cost))
            if first:
                self._file.remove_before(self._record.generation)
            _logger.info("refresh: forecast %.1f s, actual %.1f s", plan.seconds, seconds)
        changed_rows = plan.rows if changed else 0
        reports = self._reports(plan, seconds, recomputed) if changed else ()
        if reports:
            if self._log is not None:
                append_log(self._spark, self._log, datetime.now(timezone.utc), reports)
            emit_metrics(reports)
        return Refreshed(
            changed, changed_rows,
            {name: done.rows for name, done in self._written.items()}, seconds,
            tuple(recomputed),
            {name: offset.get("version", offset) if isinstance(offset, dict) else offset
             for name, offset in offsets.items()},
            reports,
        )

    def _reports(
        self, plan: Plan, seconds: float, recomputed: Sequence[str]
    ) -> tuple[ViewReport, ...]:
        """The report of each view, in the order of the views."""
        self._source_tables()  # it also lists the sources of each view
        reports = []
        for view in self.views:
            reads = self._reads[view.target]
            done = self._written.get(view.target, Written(0, 0.0))
            parts = tuple(
                part for part in recomputed if part.partition(": ")[0] in {view.target, *reads}
            )
            rows = sum(source.reads or 0 for source in plan.sources if source.name in reads)
            reports.append(
                ViewReport(view.target, rows, done.rows, seconds, done.seconds, parts)
            )
        return tuple(reports)

    def _opened(self, on_change: Literal["refuse", "extend"]) -> ViewDataflow:
        if self._flow is None:
            columns = self._changed_columns(list(self._source_tables()))
            self._wiring = replace(self._new_wiring(), renamed=columns.kept_renames())
            self._flow = ViewDataflow.open(
                self._file.state(self._record.generation),
                program_of(self.views, self._sink_name, self._wiring), spark=self._spark,
                time="_time", diff="_diff", on_change=on_change, strict=self.policy == "strict",
            )
        return self._flow


def _leaf_name(plan: Any) -> str:
    """The name that the reader of plans has for the only table of a plan."""
    while True:
        described = described_table(plan) if plan.children().size() == 0 else None
        if described is not None:
            return described[0]
        plan = plan.children().apply(0)

"""Dataflows that take queries: `Dataflow` with SQL text and plain frames over its inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.sql_formatter import SQLStringFormatter

from pyspark_diff.dataflow.source import Source
from pyspark_diff.errors import NotReadableError, SchemaError, UnsupportedQueryError
from pyspark_diff.frame.dataflow import FrameDataflow
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query.clock import TABLE as CLOCK
from pyspark_diff.query.clock import QueryClock, clock_of
from pyspark_diff.query.costs import costs
from pyspark_diff.query.form import Relation
from pyspark_diff.query.placeholder import failing, marked
from pyspark_diff.query.joins import placed
from pyspark_diff.query.plan_reader import QueryForm, check_pivot, numbered, read_plan
from pyspark_diff.query.pruning import pruned
from pyspark_diff.query.refusals import NO_QUERY, Refusal, refused
from pyspark_diff.query.recursion import (
    MutualRecursion,
    mutual_recursion,
    with_distinct_recursion,
)
from pyspark_diff.query.translation import translated
from pyspark_diff.sources import delta, iceberg, snapshots
from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.jvm import (
    JVM_ERRORS,
    analysed_of,
    copied_session,
    frame_of_no_rows,
    is_classic_frame,
    parsed_plan,
    runs_a_command,
    written_of,
)
from pyspark_diff.spark.schema import parse_schema


#: The sources that read the changes of a table, by its provider.
_SOURCES: dict[str, Callable[[str], Source]] = {
    "delta": delta, "iceberg": iceberg, "parquet": snapshots,
}


class Dataflow(FrameDataflow):
    __doc__ = FrameDataflow.__doc__

    def sql(
        self, query: str, args: dict[str, Any] | list[Any] | None = None, *,
        clock: DiffFrame | None = None, **kwargs: Any,
    ) -> DiffFrame:
        """The collection that a SQL query defines, kept up to date.

        Parameters
        ----------
        query : str
            A SELECT in the SQL of Spark. The name of a table is an input or a kept collection of
            the dataflow, or else a table or view of the session. A table of Delta, Iceberg or
            Parquet becomes a source, which `catch_up` reads; local rows become constants.

            A recursion may have UNION or UNION ALL.

            ``WITH MUTUALLY RECURSIVE name (column type, ...) AS (query), ... SELECT`` computes the
            fixed point of all definitions.
        args : dict or list, optional
            Values of the parameters ``:name`` or ``?``. ``spark.sql`` takes the same.
        clock : DiffFrame, optional
            A collection of `clock`. ``current_date`` and ``now()`` are its time, or NULL before its
            first row. Without a clock they are refused.
        **kwargs
            Collections, frames and values of ``{name}`` in the text, as of ``spark.sql``.

        Returns
        -------
        DiffFrame
            Keep it, or go on with its methods.

        Raises
        ------
        SchemaError
            If Spark refuses the query: it does not parse, or a name has no table or column.
        UnsupportedQueryError
            If parts of the query cannot be kept up to date. It lists all of them.

        Notes
        -----
        ``ORDER BY`` with ``LIMIT`` keeps the first rows; ``ORDER BY`` alone has no effect, as a
        collection has no order. ``LIMIT`` alone keeps the least rows by their columns. A scalar
        subquery with several rows fails the step that brings the second row. A column whose name
        the result has already gets a number: ``id``, ``id_2``.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     orders, orders_in = flow.input("orders", "id int, customer int, amount int")
        ...     customers, customers_in = flow.input("customers", "customer int, region string")
        ...     revenue = flow.sql('''
        ...         SELECT region, sum(amount) AS revenue
        ...         FROM orders JOIN customers USING (customer) GROUP BY region
        ...     ''').keep("revenue")
        ...     orders_in.insert([(1, 7, 20), (2, 7, 5)])
        ...     customers_in.insert([(7, "north")])
        ...     _ = flow.advance_to(1)
        ...     revenue.at().collect()
        [Row(region='north', revenue=25)]
        """
        return self._of_text(query, args, _with_clock(query, kwargs, clock))[0]

    def query(self, frame: DataFrame) -> DiffFrame:
        """The collection that a plain DataFrame over `table` defines, kept up to date.

        Parameters
        ----------
        frame : DataFrame
            Built from frames that `table` returned, by any methods of PySpark. Other local rows in
            it are constants.

        Returns
        -------
        DiffFrame

        Raises
        ------
        UnsupportedQueryError
            If parts of the query cannot be kept up to date. It lists all of them.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     counts = flow.table("words").groupBy("word").count()
        ...     kept = flow.query(counts).keep("counts")
        ...     words_in.insert([("a",), ("b",), ("a",)])
        ...     _ = flow.advance_to(1)
        ...     sorted(tuple(row) for row in kept.at().collect())
        [('a', 2), ('b', 1)]
        """
        self._check_open()
        if not isinstance(frame, DataFrame):
            raise SchemaError(
                f"query takes a Spark DataFrame, not a {type(frame).__name__}; a text goes to "
                "flow.sql(...)"
            )
        return self._built(self._read(frame), {})

    def table(self, name: str) -> DataFrame:
        """A plain DataFrame that `query` reads as an input or a kept collection.

        It has columns, and no rows: a method that asks Spark for rows fails, such as a pivot
        without values.

        Parameters
        ----------
        name : str

        Raises
        ------
        NotReadableError
            If the dataflow has no input and no kept collection of that name.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     flow.table("words").columns
        ['word']
        """
        self._check_open()
        tables = self._tables()
        if name not in tables:
            known = ", ".join(map(repr, tables)) or "none"
            raise NotReadableError(
                f"there is no table {name!r}. The inputs and kept collections are {known}. Keep "
                "the collection first: frame.keep(name)"
            )
        return failing(self.spark, name, tables[name])

    def explain_sql(
        self, query: str, args: dict[str, Any] | list[Any] | None = None, *,
        clock: DiffFrame | None = None, **kwargs: Any,
    ) -> str:
        """Whether a query can be kept up to date, and the costs of a change; no row is read.

        Returns
        -------
        str
            The refused parts; or the tables that the query reads, notes on clauses without effect,
            the cost of a change in each clause, and the reasons for costs beyond the rows of the
            change.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     print(flow.explain_sql("SELECT word, count(*) FROM words GROUP BY word"))
        supported; reads words
        a change costs, clause by clause:
          FROM words: the changed rows
          GROUP BY word: the changed rows, and the stored rows of their keys
        """
        self._check_open()
        # Sources and claims of the query belong to a dataflow of their own, and not to this one.
        with Dataflow(self.spark, time=self.time_name, diff=self.diff_name) as separate:
            for name, table in self._tables().items():
                separate.input(name, table.schema)
            values = {
                name: separate.input(f"{{{name}}}", item.schema)[0]
                if isinstance(item, DiffFrame) else item
                for name, item in _with_clock(query, kwargs, clock).items()
            }
            frames: dict[int, tuple[Relation, DiffFrame]] = {}
            try:
                frame, read = separate._of_text(query, args, values, frames)
            except UnsupportedQueryError as error:
                return str(error)
            clauses, reasons = costs(read.relation, frames), frame.explain().reasons
        lines = [f"supported; reads {', '.join(sorted(read.tables)) or 'no table'}"]
        lines += read.notes
        if clauses:
            lines += ["a change costs, clause by clause:", *(f"  {item}" for item in clauses)]
        lines += [f"{item.code}: {item.text}; {item.advice}" for item in reasons]
        return "\n".join(lines)

    def _tables(self) -> dict[str, DiffFrame]:
        """The inputs and kept collections, by name."""
        tables = {
            session.name: self._frame_of(session._node)
            for session in list(self._inputs.sessions())
        }
        return {**tables, **{name: self[name] for name in self._kept_names()}}

    def _of_text(
        self, query: str, args: dict[str, Any] | list[Any] | None, values: dict[str, Any],
        frames: dict[int, tuple[Relation, DiffFrame]] | None = None,
    ) -> tuple[DiffFrame, QueryForm]:
        """The collection of a query in SQL, and the query in its relational form."""
        mutual = mutual_recursion(query) if isinstance(query, str) else None
        if mutual is not None:
            return self._mutually_recursive(mutual, args, values, frames)
        read, named = self._read_query(query, args, values)
        return self._built(read, named, frames), read

    def _read_query(
        self, query: str, args: dict[str, Any] | list[Any] | None, values: dict[str, Any],
        variables: dict[str, DiffFrame] | None = None,
    ) -> tuple[QueryForm, dict[str, DiffFrame]]:
        """A query in its relational form, and the collections that only this query names.

        Variables are tables of their own names, before those of the dataflow.
        """
        if not self._is_classic():
            return self._read_text(query, args, values, variables)
        frame, named = self._analysed(query, args, values, variables)
        return self._read(frame, _clock_in(named)), named

    def _is_classic(self) -> bool:
        return is_classic_frame(frame_of_no_rows(self.spark, T.StructType([])))

    def _read_text(
        self, query: str, args: dict[str, Any] | list[Any] | None, values: dict[str, Any],
        variables: dict[str, DiffFrame] | None = None,
    ) -> tuple[QueryForm, dict[str, DiffFrame]]:
        """A query read from its text, as a client of Connect sees no analysed plan."""
        self._check_open()
        if not isinstance(query, str):
            raise SchemaError(f"sql takes a text, not a {type(query).__name__}")
        try:
            from pyspark_diff.query.text_reader import read_text
            from pyspark_diff.query.text_values import with_values
        except ModuleNotFoundError as error:
            raise _without_sqlglot(error, "flow.sql", "the text of a query") from error
        named = {f"{{{key}}}": item for key, item in values.items() if isinstance(item, DiffFrame)}
        # The reader folds names: a variable hides a table whose name differs in case alone.
        hidden = {name.lower() for name in variables or {}}
        tables = {name: item for name, item in self._tables().items() if name.lower() not in hidden}
        named |= variables or {}
        schemas = {name: item.schema for name, item in {**tables, **named}.items()}
        match = read_text(
            with_values(query, args, values), schemas, self.spark, self._providers(),
            _clock_in(named),
        )
        return _read_of(match), named

    def _analysed(
        self, query: str, args: dict[str, Any] | list[Any] | None, values: dict[str, Any],
        variables: dict[str, DiffFrame] | None = None,
    ) -> tuple[DataFrame, dict[str, DiffFrame]]:
        """The plain frame of a query, and the collections that only this query names."""
        self._check_open()
        if not isinstance(query, str):
            raise SchemaError(f"sql takes a text, not a {type(query).__name__}")
        # Names of the dataflow are views of a session of their own, and not of the user's.
        session = copied_session(self.spark)
        views = {name: (name, table) for name, table in self._tables().items()}
        views |= {name: (f"{{{name}}}", item) for name, item in (variables or {}).items()}
        for name, (mark, table) in views.items():
            marked(session, mark, table).createOrReplaceTempView(f"`{name.replace('`', '``')}`")
        # No table of a dataflow has braces around its name by accident.
        named = {f"{{{name}}}": item for name, item in (variables or {}).items()}
        named |= {f"{{{key}}}": item for key, item in values.items() if isinstance(item, DiffFrame)}
        values = {
            key: marked(session, f"{{{key}}}", item) if isinstance(item, DiffFrame) else item
            for key, item in values.items()
        }
        try:
            formatter = SQLStringFormatter(session)
            text = formatter.format(query, **values) if values else query
            # Spark runs a command while it reads it.
            if runs_a_command(parsed_plan(text, session)):
                raise refused([Refusal(NO_QUERY, " ".join(text.split()[:2]))])
            distinct = None if args else with_distinct_recursion(text, session)
            return distinct or session.sql(text, args=args), named
        except JVM_ERRORS as error:  # some have no class of PySpark, as types that do not merge
            raise SchemaError(f"Spark refuses the query: {in_words(error)}") from error

    def _mutually_recursive(
        self, query: MutualRecursion, args: dict[str, Any] | list[Any] | None,
        values: dict[str, Any], frames: dict[int, tuple[Relation, DiffFrame]] | None = None,
    ) -> tuple[DiffFrame, QueryForm]:
        """The query over the fixed point of its definitions, which begin empty."""
        if isinstance(args, list) and args:
            raise SchemaError(
                "WITH MUTUALLY RECURSIVE has several queries, so a list of args has no order. Name "
                "the parameters: :name in the text, and args={'name': value}"
            )
        with self.loop(query.limit, query.on_limit) as loop:
            variables = {}
            for item in query.bindings:
                if item.name in variables:
                    raise SchemaError(
                        f"WITH MUTUALLY RECURSIVE defines {item.name!r} twice; rename one"
                    )
                try:
                    struct = parse_schema(item.columns).struct
                except SchemaError as error:
                    raise SchemaError(
                        f"WITH MUTUALLY RECURSIVE {item.name} ({item.columns}): {error}"
                    ) from error
                variables[item.name] = loop.variable(self.constant([], struct))
            results = {}
            for item in query.bindings:
                body = self._built(*self._read_query(item.query, args, values, variables))
                variable = variables[item.name]
                if len(body.columns) != len(variable.columns):
                    raise SchemaError(
                        f"WITH MUTUALLY RECURSIVE {item.name} declares {len(variable.columns)} "
                        f"columns, and its query has {len(body.columns)}: "
                        f"{', '.join(body.columns)}"
                    )
                fields = variable.schema.fields
                results[item.name] = variable.set(body.select(*[
                    column(old).cast(field.dataType).alias(field.name)
                    for old, field in zip(body.columns, fields)
                ]))
        fixed = {name: loop.leave(result) for name, result in results.items()}
        read, named = self._read_query(query.query, args, values, fixed)
        return self._built(read, named, frames), read

    def _read(self, frame: DataFrame, clock: QueryClock | None = None) -> QueryForm:
        if not is_classic_frame(frame):
            return self._read_remote(frame)
        check_pivot(written_of(frame))
        return read_plan(
            analysed_of(frame), frame.sparkSession, self._providers(), clock, self._renames()
        )

    def _read_remote(self, frame: DataFrame) -> QueryForm:
        """A frame of Spark Connect, whose analysed plan is not visible."""
        try:
            from pyspark_diff.query.frame_reader import read_frame
        except ModuleNotFoundError as error:
            raise _without_sqlglot(error, "flow.query", "a frame") from error
        schemas = {name: item.schema for name, item in self._tables().items()}
        return _read_of(read_frame(frame, schemas, self.spark, self._providers()))

    def _providers(self) -> frozenset[str]:
        """The providers of tables that become sources: none if times are structs."""
        return frozenset(_SOURCES) if self.times is None else frozenset()

    def _renames(self) -> Mapping[str, Mapping[str, str]]:
        """For each source with renamed columns, their names here by their names in its table."""
        return {}

    def _source_of(self, name: str, provider: str) -> Source:
        """The source of a table of the catalog that the dataflow does not know."""
        return _SOURCES[provider](name)

    def _built(
        self, read: QueryForm, named: dict[str, DiffFrame],
        frames: dict[int, tuple[Relation, DiffFrame]] | None = None,
    ) -> DiffFrame:
        known = {session.name for session in self._inputs.sessions()} | set(self._kept_names())
        for name, provider in read.sources:
            if name not in known:
                self.source(name, self._source_of(name, provider))
        tables = {**self._tables(), **named}
        # A source may read fewer columns than its table has.
        relation = pruned(
            read.relation, [old for old, _ in read.columns],
            {name: table.columns for name, table in tables.items()},
        )
        frame = translated(relation, tables, self.spark, self.constant, frames)
        names = [name.lower() for _, name in read.columns]
        time, diff = _free(self.time_name, names), _free(self.diff_name, names)
        wrapped = DiffFrame._wrap(
            replace(frame._collection, time_name=time, diff_name=diff)
        )
        return wrapped.select(*[F.col(old).alias(new) for old, new in read.columns])


def _without_sqlglot(error: ModuleNotFoundError, method: str, what: str) -> Exception:
    if error.name != "sqlglot":
        return error
    return UnsupportedQueryError(
        f"{method} over Spark Connect reads {what} with sqlglot, which is not "
        'installed. Install it: pip install "pyspark_diff[connect]"'
    )


def _read_of(read: Any) -> QueryForm:
    """The reading of a text, with a name of its own for each column."""
    columns = tuple(zip(read.columns, numbered(read.names)))
    return QueryForm(placed(read.relation), columns, read.tables, read.sources, read.notes)


def _with_clock(
    query: str, values: dict[str, Any], clock: DiffFrame | None
) -> dict[str, Any]:
    """The values of a query, with its clock; it may be a collection of the text too."""
    if clock is None:
        return values
    if CLOCK not in str(query):
        if not isinstance(clock, DiffFrame):
            raise SchemaError(
                "the clock of a query is a collection, flow.clock(...), and not of type "
                f"{type(clock).__name__}. Pass clock=flow.clock(...)"
            )
        clock_of(clock.schema)
    return {**values, "clock": clock}


def _clock_in(named: dict[str, DiffFrame]) -> QueryClock | None:
    """The clock among the collections that only a query names."""
    try:
        return clock_of(named[CLOCK].schema)
    except (KeyError, SchemaError):
        return None


def _free(name: str, used: Sequence[str]) -> str:
    """A name that no column has: the name, or the name with underscores."""
    while name.lower() in used:
        name += "_"
    return name

"""Dataflows as users have them: their inputs are frames."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Iterator, Literal, Sequence, overload

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import Data
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.input_session import InputSession
from pyspark_diff.dataflow.keyed_session import KeyedSession
from pyspark_diff.dataflow.opening import opened
from pyspark_diff.dataflow.source import Source
from pyspark_diff.errors import NotReadableError, SchemaError
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.constants import Setting, constant
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.frame.html import as_html
from pyspark_diff.frame.loops import Loop
from pyspark_diff.frame.sliding import Interval
from pyspark_diff.operators.loop import Enter, scope_of, with_times
from pyspark_diff.operators.linear import with_normal_form
from pyspark_diff.operators.node import Input, Node, Reader
from pyspark_diff.spark.schema import Schema, meant_by
from pyspark_diff.spark.tables import read_table

if TYPE_CHECKING:
    from typing_extensions import Self


class Dataflow(BaseDataflow):
    """A program over collections that is kept up to date, step by step.

    It holds state: arrangements on disk, and the frontiers of its inputs. Use it as a context
    manager; what it wrote is removed at the end, also after an exception.

    Parameters
    ----------
    spark : SparkSession
        Any session; none of its settings is changed.
    time_type : str or DataType
        Type of the logical times of all inputs: an integer, date or timestamp; or a struct of
        integers, which is compared field by field (`DiffFrame`), such as
        ``"struct<day: int, known: int>"``. Then a frontier is one or several of them, and a time is
        complete that is before each of these in some field; and there are no keys, sources and
        clocks.
    time, diff : str
        Names of these two columns wherever updates are shown as a table.
    buckets : int, optional
        Buckets of every arrangement; the cluster's default parallelism if not given.
    runner : {"auto", "spark", "local"}
        Where operators run. Automatic: on the driver when few updates reach them, else as Spark
        jobs. The answer is the same.
    local_rows : int, optional
        Up to this many update rows an operator runs on the driver under ``"auto"``: 2 million if
        not given; 20 million on a cluster that is told to have no more cores than the driver; and
        as many, or 120 for 24 GiB of memory, where there is no other machine than the driver's.
    keep_history : bool
        Keep collections that are read (`DiffFrame.at`, `DiffFrame.to_df`) at all times. Otherwise
        only the latest complete time can be read, and state stays bounded however long the stream
        of changes is.
    root : str, optional
        Directory for state. On a cluster of several machines it must be shared by all of them.
    strict : bool
        Refuse, with a `FullScanError`, what would read all that it keeps for a change of one
        record: see `explain`.

    Raises
    ------
    ClosedError
        On any use after `close`.

    Notes
    -----
    Only what is kept, `DiffFrame.keep`, or shown, `DiffFrame.inspect`, is computed, with what it
    needs. Operators can be added at any time. Those that are added after a step are filled, by the
    next one, from what is kept; where the past of what they are made of is gone, that is said at
    once.

    Any thread may call any method. Those that feed an input never wait for a step. Those that step,
    add operators, read or close wait while another thread steps; a function that a step calls may
    feed inputs and read, and what it reads is the state after the step. A frame that was read is of
    the moment of the call, and other threads may step on as soon as `DiffFrame.at` has returned.

    Column expressions whose result is known exactly are evaluated with Arrow, all others by Spark.
    ``spark.conf.set("spark.pyspark_diff.compileExpressions", "false")`` leaves those that are
    written afterwards to Spark: slower, and a way to tell whether the two agree.

    An operator holds up to 8 million rows at once, some gigabyte, in each task, and on the driver
    in all buckets that are at work together; it works through more, or very wide ones, in pieces.
    Where there is no other machine than the driver's, they are as many as half of the memory has
    room for in all tasks.
    ``spark.conf.set("spark.pyspark_diff.pieceRows", ...)`` sets another number for dataflows that
    are made afterwards. What cannot be taken apart and does not fit, one key with too many rows
    say, is a TooManyRowsError.

    What the driver makes stays in its memory until Spark's tasks have to read it, up to a quarter
    of the machine's, and is in files below `root` beyond that; all that a store keeps is in files.

    A step of more than two seconds tells the logger ``pyspark_diff`` how far it is, level INFO, and
    shows a bar on a terminal or in a notebook if tqdm is installed;
    ``spark.conf.set("spark.pyspark_diff.progress", "false")`` leaves the bar out.

    Source: McSherry, Murray, Isaacs, Isard, "Differential dataflow", CIDR 2013.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     edges, edges_in = flow.input("edges", "src long, dst long")
    ...     degrees = edges.select("src").count().keep()
    ...     edges_in.insert([(1, 2), (1, 3), (2, 3)])
    ...     _ = flow.advance_to(1)
    ...     sorted(tuple(row) for row in degrees.at().collect())
    [(1, 2), (2, 1)]
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        program: Callable[[Self], object],
        *,
        spark: SparkSession,
        on_change: Literal["refuse", "extend", "rebuild"] = "refuse",
        retain: int = 100,
        time_type: str | T.DataType = "long",
        time: str = "time",
        diff: str = "diff",
        buckets: int | None = None,
        runner: str = "auto",
        local_rows: int | None = None,
        keep_history: bool = False,
        root: str | None = None,
        strict: bool = False,
    ) -> Self:
        """A dataflow whose state outlives the application: each step that is done is committed to
        a store, and the next application goes on there.

        Opening costs the same whatever the size of the state, as files are mapped and not loaded.
        What was given to inputs and came to no step is not in a commit; give it again. Consumers of
        `DiffFrame.inspect` are given updates at least once: those of the last step again, if the
        application ended before they had returned.

        Parameters
        ----------
        path : str
            Of the store: a directory, on a cluster one that the driver and all executors share; or
            ``s3://bucket/name``, ``gs://...``, ``az://...`` with the extra ``remote``, whose
            credentials come from the environment. A new store is made where there is none, in a
            directory that is empty or not there.
        program : callable
            Given the dataflow, writes inputs and operators, and names what is to be read with
            `DiffFrame.keep`. It is called once, before anything runs.
        spark : SparkSession
        on_change : {"refuse", "extend", "rebuild"}
            What to do if the program is not the one that has run: refuse, and say what would be
            done; keep what does the same to the same, drop what is gone, and fill what is new from
            what is kept; or also begin anew with what cannot be filled, whose inputs have to be
            given again then.
        retain : int
            So many commits can be read, `Dataflow.at`; older ones go, with what only they need.
        time_type, time, diff, buckets, runner, local_rows, keep_history, strict
            As of `Dataflow`. The first four are the store's for ever.
        root : str, optional
            For a store in a bucket: a folder that all machines share, for batches before a commit
            uploads them. Without it, the machines of a cluster exchange files through the bucket,
            with the credentials of `set_credentials` or of the environment of each machine.

        Returns
        -------
        Dataflow

        Raises
        ------
        ProgramChangedError
            If the program has changed, and that is not allowed. Nothing has been done then.
        ConcurrentWriteError
            From a later step: if another application has opened the store. Only the last one that
            did writes it.
        DamagedStateError
            If something in the store is not what was written.

        Notes
        -----
        Two programs are the same if their operators are, one by one: columns, expressions,
        functions (their code, and what they refer to in their module), and constants by content.
        Functions of Spark itself and of other modules are compared by name.

        Examples
        --------
        >>> import tempfile
        >>> from pyspark_diff import Dataflow
        >>> def program(flow):
        ...     words, _ = flow.input("words", "word string")
        ...     words.count().keep("counts")
        >>> path = tempfile.mkdtemp()
        >>> with Dataflow.open(path, program, spark=spark) as flow:
        ...     flow.session("words").insert([("a",), ("a",)])
        ...     _ = flow.advance_to(1)
        >>> with Dataflow.open(path, program, spark=spark) as flow:
        ...     flow.session("words").insert([("a",)])
        ...     _ = flow.advance_to(2)
        ...     flow["counts"].at().collect()
        [Row(word='a', count=3)]
        """
        if not callable(program):
            raise SchemaError(
                "open takes the program as a function that is given the dataflow, def "
                f"program(flow), and not {program!r}"
            )
        return opened(
            cls, path, program, spark=spark, on_change=on_change, retain=retain,
            time_type=time_type, time=time, diff=diff, buckets=buckets, runner=runner,
            local_rows=local_rows, keep_history=keep_history, root=root, strict=strict,
        )

    def session(self, name: str) -> InputSession | KeyedSession:
        """The session that feeds the input of a name.

        Raises
        ------
        NotReadableError
            If there is no such input.
        """
        self._check_open()
        found = {session.name: session for session in list(self._inputs.sessions())}
        if name not in found:
            names = ", ".join(map(repr, found)) or "none"
            raise NotReadableError(f"there is no input {name!r}; the inputs are {names}")
        session = found[name]
        if name in self._products:
            return self._products[name]  # type: ignore[return-value]
        if not isinstance(session, (InputSession, KeyedSession)):
            raise NotReadableError(
                f"{name!r} is a clock, which nobody feeds: it goes on with the other inputs, and "
                "with advance_to of the dataflow"
            )
        return session

    @overload
    def input(
        self, name: str, schema: str | T.StructType, *, start: Any = None, key: None = None,
        check: bool = False,
    ) -> tuple[DiffFrame, InputSession]: ...

    @overload
    def input(
        self, name: str, schema: str | T.StructType, *, start: Any = None,
        key: str | Sequence[str], check: bool = False,
    ) -> tuple[DiffFrame, KeyedSession]: ...

    def input(
        self, name: str, schema: str | T.StructType, *, start: Any = None,
        key: str | Sequence[str] | None = None, check: bool = False,
    ) -> tuple[DiffFrame, InputSession | KeyedSession]:
        """A new input: its collection, and the session that feeds it.

        Parameters
        ----------
        name : str
        schema : str or StructType
            Data columns, for example ``"src long, dst long"``.
        start : int, date or datetime, optional
            First time of the input; zero or the epoch if not given.
        key : str or list of str, optional
            Columns of a key, of which there is one row at a time. The session then takes rows in
            the place of others (``upsert``, ``delete``, ``replace``), and the collection is
            arranged by its key.
        check : bool
            Whether a step fails if at some time more of a record is removed than was inserted. It
            keeps the collection for that. With a key this is always so.

        Returns
        -------
        frame : DiffFrame
        session : InputSession or KeyedSession
            The latter with a key; where times are structs a `ProductSession`.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     words.columns, words_in.time()
        (['word'], 0)
        >>> with Dataflow(spark) as flow:
        ...     prices, prices_in = flow.input("prices", "item string, price int", key="item")
        ...     kept = prices.keep("prices")
        ...     prices_in.upsert([("tea", 3), ("milk", 2), ("tea", 4)])
        ...     prices_in.close()
        ...     _ = flow.step()
        ...     sorted(tuple(row) for row in kept.at().collect())
        [('milk', 2), ('tea', 4)]
        """
        if self.times is not None:
            return self._product_input(name, schema, start, key is not None, check)
        if key is None:
            node, session = self._add_input(name, schema, start, check)
            return self._frame_of(node), session
        keyed, keyed_session = self._add_keyed_input(name, schema, start, key)
        return self._frame_of(keyed, keyed.key), keyed_session

    def _product_input(
        self, name: str, schema: str | T.StructType, start: Any, keyed: bool, check: bool
    ) -> tuple[DiffFrame, Any]:
        """The same where times are structs."""
        times = self.times
        assert times is not None
        if keyed:
            self._check_plain_times(
                "an input with a key",
                "where two replacements of a record meet, of which none is before the other, none "
                "is the later one. Feed an input without a key, and insert and remove"
            )
        if check:
            self._check_plain_times(
                "an input that is checked",
                "of two removals of a record, each of them right where it is, one may be too many "
                "where they meet, at a time at which nothing comes, and a check looks only at "
                "times of updates. Claim it: count().where('count < 0').assert_empty()"
            )
        product = self._add_product_input(name, schema, start)
        node, fields = product._session._node, product._fields
        return self._frame_of(with_times(with_normal_form(node), times, fields)), product

    def source(
        self, name: str, source: Source, *, start: Any = None,
        late: Literal["refuse", "aside"] = "refuse", check: bool = False,
    ) -> DiffFrame:
        """A new input that `catch_up` fills from a source.

        Parameters
        ----------
        name : str
            Of the input: a store keeps how far its source was read by it.
        source : Source
            What is read: one of `pyspark_diff.sources`, or your own.
        start : int, date or datetime, optional
            As of `input`.
        late : {"refuse", "aside"}
            What becomes of rows that bring a time that is complete already: an error names them,
            and nothing is read; or they are kept aside, in the collection that `late` gives.
        check : bool
            As of `input`, for a source without a key.

        Returns
        -------
        DiffFrame

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> from pyspark_diff.sources import snapshots
        >>> table = spark.createDataFrame([(1, "Rome"), (2, "Oslo")], "id int, city string")
        >>> with Dataflow(spark) as flow:
        ...     customers = flow.source("customers", snapshots(lambda: table, key="id"))
        ...     cities = customers.select("city").count().keep()
        ...     _ = flow.catch_up()
        ...     table = spark.createDataFrame([(1, "Rome"), (3, "Rome")], "id int, city string")
        ...     _ = flow.catch_up()
        ...     cities.at().collect()
        [Row(city='Rome', count=2)]
        """
        self._check_plain_times(
            "a source",
            "what it reads has one time, or none of its own. Read it yourself, and give an input "
            "rows with their times: flow.session(name).update(rows)"
        )
        node = self._add_source(name, source, start, late, check)
        return self._frame_of(node, node.key if isinstance(node, Reader) else None)

    def late(self, name: str) -> DiffFrame:
        """The rows of a source that came too late: its columns, ``late_time`` and ``late_diff``.

        They are there from the time on at which they came, and are part of no other collection.

        Parameters
        ----------
        name : str
            Of an input that was made by `source` with ``late="aside"``.

        Raises
        ------
        NotReadableError
            If there is no such input.
        """
        self._check_open()
        return self._frame_of(self._sources.late(name))

    def clock(
        self, every: Interval, *, name: str = "clock", column: str = "now", start: Any = None
    ) -> DiffFrame:
        """The current time, as a collection of one record: the last tick up to then.

        What depends on the time of day is a join with it, and is kept up to date as anything else:
        the time is that of the data, up to where the inputs have advanced, and not that of the
        machine.

        Parameters
        ----------
        every : int, timedelta or str
            The interval between two ticks, as of `DiffFrame.expire_after`. Ticks are its multiples,
            from zero or the epoch on. What is made of the clock changes at each of them.
        name : str
            As inputs have one.
        column : str
            What its column is called.
        start : int, date or datetime, optional
            When it begins; before, there is no record. Where the inputs do, if not given.

        Returns
        -------
        DiffFrame

        Raises
        ------
        InvalidTimeError
            If ``every`` is no interval of these times; or when inputs advance, if that would be
            more than ten million ticks.

        Notes
        -----
        It goes on with the least of the frontiers of the inputs that are open, and with
        `advance_to`. Where all are closed it stays, as there is always a later time.

        What only leaves when it has become old needs no clock: see `DiffFrame.expire_after`, which
        costs what leaves, and not a look at each record at each tick.

        Examples
        --------
        >>> from datetime import date
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark, time_type="date") as flow:
        ...     bills, bills_in = flow.input("bills", "id int, due date", start=date(2026, 3, 1))
        ...     today = flow.clock("1 day", start=date(2026, 3, 1))
        ...     late = bills.join(today).selectExpr("id", "datediff(now, due) AS days")
        ...     late = late.where("days > 0").keep()
        ...     bills_in.insert([(1, date(2026, 3, 2)), (2, date(2026, 3, 9))])
        ...     for day in (3, 6):
        ...         _ = flow.advance_to(date(2026, 3, day))
        ...         print(late.at().collect())
        []
        [Row(id=1, days=3)]
        """
        self._check_plain_times(
            "a clock",
            "it ticks in one field, and which one is meant is not said. Feed an input that has the "
            "current time as its record"
        )
        found = self._frame_of(self._add_clock(name, column, every, start))
        return found.hint("broadcast")  # one record goes beside all others

    def constant(self, data: Data, schema: str | T.StructType | None = None) -> DiffFrame:
        """A collection that never changes: some rows, there at all times.

        A plain table that is given to an operator beside a collection becomes one by itself.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            A Spark frame is evaluated once, by the first step.
        schema : str or StructType, optional
            Columns, for example ``"src long, dst long"``. Tables have their own; rows need one.

        Raises
        ------
        SchemaError
            If the rows do not fit the schema, or there is none, or a column is called as the time
            or the diff.
        NonDeterministicError
            If a Spark frame gives other rows at each evaluation.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     orders, orders_in = flow.input("orders", "city string")
        ...     countries = flow.constant([("Rome", "Italy")], "city string, country string")
        ...     found = orders.join(countries, "city").keep("found")
        ...     orders_in.insert([("Rome",), ("Oslo",)])
        ...     orders_in.close()
        ...     _ = flow.step()
        ...     found.at().collect()
        [Row(city='Rome', country='Italy')]
        """
        self._check_open()
        setting = Setting(self, self.spark, self.time_type, self.time_name, self.diff_name)
        found = constant(data, setting, schema)
        if self.times is not None:
            found = replace(found, node=Enter(scope_of(self.times), found.node))
        return DiffFrame._wrap(found)

    @overload
    def import_table(self, table: str, input: None = None) -> DiffFrame: ...

    @overload
    def import_table(self, table: str, input: str) -> tuple[DiffFrame, InputSession]: ...

    def import_table(
        self, table: str, input: str | None = None
    ) -> DiffFrame | tuple[DiffFrame, InputSession]:
        """A table of Spark as a collection: one that never changes, or a new input that begins with
        it.

        Parameters
        ----------
        table : str
            Such as `DiffFrame.save_as_table` writes, or any other.
        input : str, optional
            Name of an input, that is given the rows of the table; and if the table has columns for
            time and diff, the updates that they are.

        Returns
        -------
        DiffFrame
            With ``input`` also the session that feeds it.

        Raises
        ------
        SchemaError
            If that is no name of a table, or it has columns for time and diff and no input is
            named.
        StorageError
            If there is no such table.

        Notes
        -----
        The first step reads it. Where it goes into an arrangement by the key of the table's
        buckets, with as many buckets as the dataflow has, each task reads a bucket and no row
        moves. Its rows go through an exchange where the key is another one, or its columns come in
        another order; where the number of buckets is another; where more than one operator reads
        the input, or that operator reads others too; where the table has a column for its buckets,
        as one of Delta; and over Spark Connect. The answer is the same.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> spark.range(3).write.mode("overwrite").saveAsTable("doctest_numbers")
        >>> with Dataflow(spark) as flow:
        ...     numbers, numbers_in = flow.import_table("doctest_numbers", input="numbers")
        ...     even = numbers.where("id % 2 = 0").keep()
        ...     numbers_in.insert([(4,)])
        ...     _ = flow.advance_to(1)
        ...     sorted(row.id for row in even.at().collect())
        [0, 2, 4]
        >>> _ = spark.sql("DROP TABLE doctest_numbers")
        """
        self._check_open()
        rows = read_table(self.spark, table)
        if input is None:
            return self.constant(rows)
        self._check_plain_times(
            "an input that begins with a table",
            f"give an input its rows with their times: flow.input({input!r}, ...), and "
            f"flow.session({input!r}).update(...)"
        )
        if self._writing:
            raise SchemaError(
                f"a program that is opened again would give table {table} to input {input!r} each "
                f"time: write flow.input({input!r}, ...) there, and give the new store its rows "
                f"outside: flow.session({input!r}).update(spark.table(...))"
            )
        names = [meant_by(name, rows.columns, self.spark)
                 for name in (self.time_name, self.diff_name)]
        taken = [name for found in names for name in found]
        if len(taken) == 1:
            raise SchemaError(
                f"table {table} has a column {taken[0]!r}, which is that of the "
                f"{'time' if names[0] else 'diff'}, and none for the other: updates have both, "
                f"{self.time_name!r} and {self.diff_name!r}, and rows have neither"
            )
        fields = [field for field in rows.schema.fields if field.name not in taken]

        def fill(session: InputSession) -> None:
            (session.update if taken else session.insert)(rows)

        node, session = self._add_input(input, T.StructType(fields), None, False, fill)
        return self._frame_of(node), session

    def _frame_of(self, node: Node, key: tuple[str, ...] | None = None) -> DiffFrame:
        if isinstance(node, Input):
            node = with_normal_form(node)
        return DiffFrame._wrap(Collection(
            node, self, self.spark, self.time_name, self.diff_name,
            Resolver.plain(node.schema.names), key=key,
        ))

    def __getitem__(self, name: str) -> DiffFrame:
        """The collection that is kept under a name: see `DiffFrame.keep`.

        Raises
        ------
        NotReadableError
            If there is none of that name.
        """
        found = self._kept(name)
        assert isinstance(found, DiffFrame)  # what keep gave
        return found

    def __contains__(self, name: object) -> bool:
        """Whether a collection is kept under a name."""
        return name in self._kept_names()

    def __iter__(self) -> Iterator[str]:
        """The names under which collections are kept."""
        return iter(self._kept_names())

    def __repr__(self) -> str:
        told = [f"{name} ({columns}) {at}" for name, columns, at in self._inputs_told()]
        return f"Dataflow[{'; '.join(told) or 'no inputs'}; {self._told()}]"

    def _repr_html_(self) -> str:
        return as_html(f"Dataflow, {self._told()}", ("input", "columns", "time"),
                       self._inputs_told())

    def _inputs_told(self) -> list[tuple[str, str, str]]:
        # Not under the lock: to look at a dataflow must not wait for its step.
        return [
            (session.name, Schema(session.schema).describe(), session._told())
            for session in list(self._inputs.sessions())
        ]

    def _told(self) -> str:
        if not self._open:
            return "closed"
        steps = self._state.epoch
        return f"{steps} step{'' if steps == 1 else 's'}"

    def loop(
        self, max_iterations: int | None = None, on_limit: str = "error", name: str | None = None
    ) -> Loop:
        """A loop of several variables: see `Loop`."""
        self._check_open()
        return Loop(max_iterations, on_limit, name)

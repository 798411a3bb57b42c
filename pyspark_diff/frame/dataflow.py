"""The dataflow of users: its inputs are frames."""

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
from pyspark_diff.frame.tables import data_fields
from pyspark_diff.operators.loop import Enter, scope_of, with_times
from pyspark_diff.operators.linear import with_normal_form
from pyspark_diff.operators.node import Input, Node, Reader
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.tables import read_table

if TYPE_CHECKING:
    from typing_extensions import Self


class FrameDataflow(BaseDataflow):
    """A program over collections that is kept up to date, step by step.

    It has state: arrangements on disk, and the frontiers of its inputs. Use it as a context
    manager: it removes its files at the end, also after an exception.

    Parameters
    ----------
    spark : SparkSession
        Any session; none of its settings is changed.
    time_type : str or DataType
        Type of the logical times of all inputs: an integer, date or timestamp; or a struct of
        integers, which is compared field by field (`DiffFrame`), such as
        ``"struct<day: int, known: int>"``. With structs, a frontier is one or several times, and a
        time is complete if it is less than each of them in some field; there are no keys, sources
        and clocks.
    time, diff : str
        Names of these two columns in every table of updates.
    buckets : int, optional
        Buckets of every arrangement; the cluster's default parallelism if not given.
    runner : {"auto", "spark", "local"}
        The place where operators run. ``"auto"``: on the driver if few updates reach them, else as
        Spark jobs. The answer is the same.
    local_rows : int, optional
        The largest number of update rows for which an operator runs on the driver under ``"auto"``.
        The default is 2 million, and 20 million on a cluster whose settings give it no more cores
        than the driver. Without another machine than the driver's it is 20 million too, or 120
        million with 24 GiB of memory.
    keep_history : bool
        Keep all times of the collections that are read (`DiffFrame.at`, `DiffFrame.to_df`).
        Otherwise only the latest complete time is readable, and state stays bounded for any length
        of the stream.
    root : str, optional
        Directory for state. On a cluster of several machines, all of them must share it.
    strict : bool
        Refuse, with a `FullScanError`, an operator that would read all of its state for a change of
        one record: see `explain`.

    Raises
    ------
    ClosedError
        On any use after `close`.

    Notes
    -----
    Steps compute only collections that are kept (`DiffFrame.keep`) or shown (`DiffFrame.inspect`),
    with their inputs. A program can add operators at any time. The next step backfills an operator
    that was added after a step from kept collections; if the history of its inputs is gone, adding
    it is an error.

    Any thread may call any method. Methods that feed an input never wait for a step. Methods that
    step, add operators, read or close wait while another thread steps. A function that a step calls
    may feed inputs and read; it reads the state after the step. A frame from `DiffFrame.at` has the
    state of the moment of the call, and other threads may step as soon as the call has returned.

    Column expressions whose result is known exactly are evaluated with Arrow, all others by Spark.
    ``spark.conf.set("spark.pyspark_diff.compileExpressions", "false")`` leaves later expressions to
    Spark. That is slower, and it checks that the two agree.

    An operator has up to 8 million rows in memory at once, some gigabyte, in each task, and on the
    driver in all active buckets together. It processes more rows, or very wide rows, in pieces.
    Without another machine than the driver's, the limit is the number of rows that fit into half of
    the memory, over all tasks. The setting ``spark.conf.set("spark.pyspark_diff.pieceRows", ...)``
    sets another number for dataflows that are made afterwards. An input that has no pieces and does
    not fit, such as one key with too many rows, raises TooManyRowsError.

    Batches of the driver stay in its memory until Spark's tasks have to read them. Beyond a quarter
    of the machine's memory they go to files below `root`. A store keeps all its state in files.

    A step of more than two seconds logs its progress to the logger ``pyspark_diff``, level INFO. It
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
        """A dataflow whose state outlives the application: each completed step is committed to a
        store, and the next application continues there.

        Opening costs the same at any size of the state, as it maps files and does not load them. A
        commit lacks updates that inputs received but no step processed; send them again. Consumers
        of `DiffFrame.inspect` receive updates at least once: those of the last step again, if the
        application ended before the consumers had returned.

        Parameters
        ----------
        path : str
            Path of the store: a directory, on a cluster one that the driver and all executors
            share; or ``s3://bucket/name``, ``gs://...``, ``az://...`` with the extra ``remote``,
            whose credentials come from the environment. If the directory is empty or absent, the
            call creates a new store.
        program : callable
            A function of the dataflow that adds inputs and operators, and marks the collections to
            read with `DiffFrame.keep`. The call comes once, before anything runs.
        spark : SparkSession
        on_change : {"refuse", "extend", "rebuild"}
            The action if the program differs from the one that has run. ``refuse`` raises an error
            that lists the changes. ``extend`` keeps the state of unchanged operators, drops that of
            removed ones, and backfills new ones from kept collections. A source whose table has
            lost a column or changed a type is read again. ``rebuild`` also restarts operators
            without a backfill; feed their inputs again.
        retain : int
            The number of commits that `Dataflow.at` can read. A step deletes older ones.
        time_type, time, diff, buckets, runner, local_rows, keep_history, strict
            As in `Dataflow`. The first four stay the store's for ever.
        root : str, optional
            For a store in a bucket: a folder that all machines share, for batches before a commit
            uploads them. Without it, the machines of a cluster exchange files through the bucket.
            They use the credentials of `set_credentials` or of the environment of each machine.

        Returns
        -------
        Dataflow

        Raises
        ------
        ProgramChangedError
            If the program has changed and `on_change` forbids that. The store is unchanged.
        ConcurrentWriteError
            From a later step: if another application has opened the store. Only the application
            that opened it last can commit.
        DamagedStateError
            If the store has content that differs from the written content.

        Notes
        -----
        Two programs are the same if their operators are the same, one by one: columns, expressions,
        functions (their code, and the values of their module that they use), and constants by
        content. Functions of Spark itself and of other modules are compared by name.

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
        return opened(
            cls, path, program, spark=spark, on_change=on_change, retain=retain,
            time_type=time_type, time=time, diff=diff, buckets=buckets, runner=runner,
            local_rows=local_rows, keep_history=keep_history, root=root, strict=strict,
        )

    def session(self, name: str) -> InputSession | KeyedSession:
        """The session that feeds the input with a name.

        Raises
        ------
        NotReadableError
            If there is no such input.
        """
        self._check_open()
        sessions = {session.name: session for session in list(self._inputs.sessions())}
        if name not in sessions:
            names = ", ".join(map(repr, sessions)) or "none"
            raise NotReadableError(f"there is no input {name!r}; the inputs are {names}")
        session = sessions[name]
        if name in self._products:
            return self._products[name]  # type: ignore[return-value]
        if not isinstance(session, (InputSession, KeyedSession)):
            raise NotReadableError(
                f"{name!r} is a clock and has no session: it advances with the other inputs, and "
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
            The first time of the input; the default is zero or the epoch.
        key : str or list of str, optional
            Columns of a key. Each key has one row at a time: the session then replaces rows
            (``upsert``, ``delete``, ``replace``), and the collection is arranged by its key.
        check : bool
            Whether a step fails if at some time the removals of a record exceed its insertions. The
            step keeps the collection for that. An input with a key always has this check.

        Returns
        -------
        frame : DiffFrame
        session : InputSession or KeyedSession
            A `KeyedSession` with a key; a `ProductSession` if times are structs.

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
            product = self._add_product_input(name, schema, start, key is not None, check)
            node = with_times(with_normal_form(product._session._node), self.times, product._fields)
            return self._frame_of(node), product  # type: ignore[return-value]
        if key is None:
            rows, session = self._add_input(name, schema, start, check)
            return self._frame_of(rows), session
        keyed, keyed_session = self._add_keyed_input(name, schema, start, key)
        return self._frame_of(keyed, keyed.key), keyed_session

    def source(
        self, name: str, source: Source, *, start: Any = None,
        late: Literal["refuse", "aside"] = "refuse", check: bool = False,
    ) -> DiffFrame:
        """A new input that `catch_up` fills from a source.

        Parameters
        ----------
        name : str
            Name of the input: a store keeps the position of its source under this name.
        source : Source
            The source to read: one of `pyspark_diff.sources`, or your own.
        start : int, date or datetime, optional
            As in `input`.
        late : {"refuse", "aside"}
            The action for rows with a time that is complete already. ``refuse`` raises an error
            that names them, and reads nothing. ``aside`` puts them into the collection that `late`
            returns.
        check : bool
            As in `input`, for a source without a key.

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
            "its rows have one time, or none. Read it yourself, and give an input rows with their "
            "times: flow.session(name).update(rows)"
        )
        node, names, tombstone = self._add_source(name, source, start, late, check)
        key = node.key if isinstance(node, Reader) else None
        frame = self._frame_of(node, key)
        if len(names) == len(node.schema.names):
            return frame
        if tombstone is not None:
            frame = frame.where(~column(tombstone))
        rows = frame.select(*map(column, names))._collection
        return DiffFrame._wrap(replace(rows, key=key))

    def late(self, name: str) -> DiffFrame:
        """The rows of a source that came too late: its columns, ``late_time`` and ``late_diff``.

        The collection has them from the time of their arrival on. No other collection has them.

        Parameters
        ----------
        name : str
            Name of an input that `source` made with ``late="aside"``.

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
        """The current time, as a collection of one record: the last tick up to that time.

        A query that depends on the time of day joins with the clock, and steps keep it up to date.
        The time is the time of the data, up to the frontier of the inputs, and not the time of the
        machine.

        Parameters
        ----------
        every : int, timedelta or str
            The interval between two ticks, as in `DiffFrame.expire_after`. Ticks are its multiples,
            from zero or the epoch on. Collections derived from the clock change at each tick.
        name : str
            The name of the clock as an input.
        column : str
            The name of its column.
        start : int, date or datetime, optional
            The first time of the clock, which has no record before it. The default is the first
            time of the inputs.

        Returns
        -------
        DiffFrame

        Raises
        ------
        InvalidTimeError
            If ``every`` is no interval of these times; or when inputs advance, if that makes more
            than ten million ticks.

        Notes
        -----
        The clock advances with the least frontier of the open inputs, and with `advance_to`. If all
        inputs are closed it stops, as there is always a later time.

        Records that only leave at some age need no clock: see `DiffFrame.expire_after`. Its cost
        depends on the records that leave, while a clock reads each record at each tick.

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
            "a clock ticks in one field, and these times have several. Feed an input that has the "
            "current time as its record"
        )
        return self._frame_of(self._add_clock(name, column, every, start)).hint("broadcast")

    def constant(self, data: Data, schema: str | T.StructType | None = None) -> DiffFrame:
        """A collection that never changes: some rows, there at all times.

        A plain table that an operator takes as its other side becomes a constant by itself.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            A Spark frame is evaluated once, by the first step.
        schema : str or StructType, optional
            Columns, for example ``"src long, dst long"``. Tables have their own; rows need one.

        Raises
        ------
        SchemaError
            If the rows do not fit the schema, or have none, or a column has the name of the time or
            the diff.
        NonDeterministicError
            If a Spark frame has other rows at each evaluation.

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
        collection = constant(data, setting, schema)
        if self.times is not None:
            collection = replace(collection, node=Enter(scope_of(self.times), collection.node))
        return DiffFrame._wrap(collection)

    @overload
    def import_table(self, table: str, input: None = None) -> DiffFrame: ...

    @overload
    def import_table(self, table: str, input: str) -> tuple[DiffFrame, InputSession]: ...

    def import_table(
        self, table: str, input: str | None = None
    ) -> DiffFrame | tuple[DiffFrame, InputSession]:
        """A table of Spark as a collection: a constant, or a new input that begins with the table.

        Parameters
        ----------
        table : str
            A table that `DiffFrame.save_as_table` wrote, or any other.
        input : str, optional
            Name of an input, which receives the rows of the table; or its updates, if the table has
            columns for time and diff.

        Returns
        -------
        DiffFrame
            With ``input`` also the session of that input.

        Raises
        ------
        SchemaError
            If the text is no name of a table, or the table has columns for time and diff and no
            input is named.
        StorageError
            If the table is absent.

        Notes
        -----
        The first step reads the table. If it goes into an arrangement by the key of the table's
        buckets, with as many buckets as the dataflow has, each task reads a bucket and no row
        moves. Its rows go through an exchange if the key or the order of its columns differs, or
        the number of buckets. They also do if several operators read the input, if that operator
        reads others too, if the table has a column for its buckets (as a table of Delta), and over
        Spark Connect. The answer is the same.

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
                f"each opening of this program would add table {table} to input {input!r} again. "
                f"Write flow.input({input!r}, ...) in the program, and feed the new store once, "
                f"outside of it: flow.session({input!r}).update(spark.table(...))"
            )
        fields = data_fields(rows, table, self.time_name, self.diff_name)

        def fill(session: InputSession) -> None:
            (session.insert if len(fields) == len(rows.columns) else session.update)(rows)

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
        """The kept collection with a name: see `DiffFrame.keep`.

        Raises
        ------
        NotReadableError
            If no kept collection has the name.
        """
        frame = self._kept_frame(name)
        assert isinstance(frame, DiffFrame)  # keep stored the frame
        return frame

    def __contains__(self, name: object) -> bool:
        """Whether a kept collection has the name."""
        return name in self._kept_names()

    def __iter__(self) -> Iterator[str]:
        """The names of the kept collections."""
        return iter(self._kept_names())

    def __repr__(self) -> str:
        inputs = [f"{name} ({columns}) {at}" for name, columns, at in self._input_rows()]
        return f"Dataflow[{'; '.join(inputs) or 'no inputs'}; {self._progress()}]"

    def _repr_html_(self) -> str:
        return as_html(f"Dataflow, {self._progress()}", ("input", "columns", "time"),
                       self._input_rows())

    def loop(
        self, max_iterations: int | None = None, on_limit: str = "error", name: str | None = None
    ) -> Loop:
        """A loop of several variables: see `Loop`."""
        self._check_open()
        return Loop(max_iterations, on_limit, name)

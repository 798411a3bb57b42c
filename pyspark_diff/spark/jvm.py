"""The door to the JVM, with `jvm_tables`: its classes and objects, the plans of frames, and the
context of Spark with the jobs that are no frames.

Functions of a frame or a context also work over Spark Connect, unless their docstring says
"classic". The modules that look into expressions (`pyspark_diff.spark.calls`, `taken` and
`expression_parts`) call `is_classic` first.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer, pack_long
from pyspark.sql import Column, DataFrame, SparkSession, is_remote
from pyspark.sql import types as T
from pyspark.sql.utils import get_active_spark_context

from pyspark_diff.spark.sent import sent

#: Functions whose value changes with the evaluation, the day or the session, as plans show them.
_NAMES = re.compile(
    r"\b(rand|randn|random|uuid|shuffle|randstr|uniform|monotonically_increasing_id|"
    r"spark_partition_id|input_file_name|input_file_block_start|input_file_block_length|"
    r"reflect|java_method|try_reflect|current_timestamp|current_date|curdate|now|localtimestamp|"
    r"current_time|current_timezone|current_user|session_user|user|current_catalog|"
    r"current_database|current_schema|current_path)\b", re.IGNORECASE
)
_CLOCK = re.compile(
    r"(?<![.\w])(current_timestamp|current_date|current_time|localtimestamp)\b(?!\s*\()",
    re.IGNORECASE,
)
#: Without case: Spark shows one of them as SPARK_PARTITION_ID.
_UNSTABLE = re.compile(_NAMES.pattern[:-2] + r"\(", re.IGNORECASE)
#: Reads the clock if it has no argument.
_NO_ARGUMENT = re.compile(r"\b(unix_timestamp)\s*\(\s*\)", re.IGNORECASE)
_NODE = re.compile(r"^[\s:|+\-]*(?:\(\d+\) )?'?([A-Z]\w+)")

#: The analysed form of ``session_window``: one session for each event, which an aggregate merges.
_SESSION = re.compile(
    r"named_struct\(start, (?:knownnullable\()?"
    r"precisetimestampconversion\(precisetimestampconversion\("
)

#: An encryption with another result in each evaluation, which Spark takes as deterministic. Its
#: mode is not ECB, and the vector is the empty default.
_RANDOM_VECTOR = re.compile(
    r"\baes_encrypt\(.*, (?!ECB,)[^,]+, \w+, (?:cast\( as binary\))?, ")
#: The number of columns in the text of a plan.
_FIELDS_MAX = 1 << 20
#: A plan whose root gives the frame a name.
_ALIAS = re.compile(r"^SubqueryAlias ([^\s.]+)$", re.MULTILINE)

#: Values from outside of a row, as an analysed plan shows them.
_VARIABLE = re.compile(r"\bvariablereference\((?:system\.session\.)?([^=]+)=")
_SUBQUERY = re.compile(r"\b(?:list|scalar-subquery|exists|lateral-subquery)#\d+ \[")
_VIEW = re.compile(r"\bView \((`[^,]+`), \[")

_MOST_CASES = 8

#: Whether Spark gives up the buckets of tables. One thread at a time says that it does not.
_GIVES_UP = "spark.sql.sources.bucketing.autoBucketedScan.enabled"
_planning = threading.Lock()

#: What an operator of a classic frame asks its other side for.
JVM_FRAME = "_jdf"


@dataclass(frozen=True)
class Plan:
    """The properties of an analysed plan that the library reads.

    Parameters
    ----------
    nodes : tuple of str
        Names of the logical operators, from the root down.
    unstable : tuple of str
        Expressions whose value is not a function of the row.
    alias : str or None
        What the frame was called with `alias`.
    sessions : bool
        Whether an expression is ``session_window``, which only an aggregate of Spark merges.
    outside : tuple of str
        Session variables and subqueries in expressions, in words.
    """

    nodes: tuple[str, ...]
    unstable: tuple[str, ...]
    alias: str | None = None
    sessions: bool = False
    outside: tuple[str, ...] = ()

    @property
    def hinted(self) -> bool:
        """Whether the frame was declared small, with ``hint("broadcast")``."""
        return "ResolvedHint" in self.nodes[:2]


def analysed_plan(frame: DataFrame) -> Plan:
    """Logical operators and non-deterministic expressions of a frame.

    Parameters
    ----------
    frame : DataFrame
        Classic or Connect; nothing is run.

    Returns
    -------
    Plan
    """
    if hasattr(frame, "_jdf"):
        analysed = frame._jdf.queryExecution().analyzed()
        text = _whole_text(analysed)
        # The clock counts as deterministic in Spark, which reads it once a query.
        clock = analysed.containsPattern(sql_class("catalyst.trees.TreePattern").CURRENT_LIKE())
        # A plan is deterministic if its expressions are and the plans below it.
        unstable = _named(text) if clock or not analysed.deterministic() else ()
        if _RANDOM_VECTOR.search(text):
            unstable = (*unstable, "aes_encrypt with an initialisation vector of Spark")
        pattern = sql_class("catalyst.trees.TreePattern")
        variable = analysed.containsPattern(pattern.VARIABLE_REFERENCE())
        subquery = analysed.containsPattern(pattern.PLAN_EXPRESSION())
    else:
        extended = frame._explain_string(extended=True)  # type: ignore[operator]
        text = extended.split("== Analyzed Logical Plan ==")[-1].split("== Optimized")[0]
        # The section opens with a line of column names and types.
        text = "\n".join(text.strip().splitlines()[1:])
        told = sent(frame)
        called = {name for name in told.functions if _UNSTABLE.match(f"{name}(")} | told.random
        if _RANDOM_VECTOR.search(text):
            called.add("aes_encrypt with an initialisation vector of Spark")
        called |= told.bare & {"unix_timestamp"}
        for one in told.texts:
            calls = _UNSTABLE.findall(one) + _NO_ARGUMENT.findall(one)
            called.update(name.lower() for name in calls)
            # In SQL the clock needs no brackets; a column of that name goes before it.
            called.update(name for name in _CLOCK.findall(one) if f"{name}#" not in text)
        unstable = tuple(sorted(called))
        # Of all else the server tells, in a text that is cut and no syntax.
        elsewhere = not told.whole or any(_NAMES.search(one) for one in told.texts)
        if not unstable and elsewhere and _UNSTABLE.search(text):
            unstable = _named(text)
        variable, subquery = _VARIABLE.search(text), _SUBQUERY.search(text)
    outside: list[str] = []
    if variable:
        names = dict.fromkeys(_VARIABLE.findall(text))
        outside += [f"the session variable {name}" for name in names] or ["a session variable"]
    if subquery:
        views = dict.fromkeys(_VIEW.findall(text))
        outside += [f"a subquery over the view {name}" for name in views] or ["a subquery"]
    nodes = tuple(m.group(1) for m in map(_NODE.match, text.splitlines()) if m)
    alias = _ALIAS.match(text)
    sessions = _SESSION.search(text) is not None
    name = None if alias is None else alias.group(1)
    return Plan(nodes, unstable, name, sessions, tuple(outside))


def _whole_text(plan: Any) -> str:
    """The text of a plan with all columns: Spark's own text shows 25 of a list."""
    text = str(plan.toString())
    if " more fields" not in text:
        return text
    try:
        return str(plan.treeString(True, False, _FIELDS_MAX, False, False))
    except Py4JError:  # the method of another version has other parameters
        return text


def _named(text: str) -> tuple[str, ...]:
    """What is not deterministic in a plan, of which some is: the text only serves to name it, as
    long plans are cut, and column names may look like calls."""
    found = tuple(dict.fromkeys(name.lower() for name in _UNSTABLE.findall(text)))
    return found or ("an expression that Spark marks as non-deterministic",)


def frame_of_no_rows(spark: SparkSession, struct: T.StructType) -> DataFrame:
    """A frame without any row, in whose session names are looked up from now on.

    As `createDataFrame` makes it, which on classic takes three times as long: it moves the rows,
    of which there are none, to the JVM. Each operator of a program asks for such a frame when it
    is written.

    Examples
    --------
    >>> frame_of_no_rows(spark, spark.range(3).schema).columns
    ['id']
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return spark.createDataFrame([], struct)
    SparkSession._activeSession = spark
    sql_class("classic.SparkSession").setActiveSession(session)
    rows = class_called("java.util.ArrayList")()
    return DataFrame(session.createDataFrame(rows, session.parseDataType(struct.json())), spark)


def needs_job(frame: DataFrame) -> bool:
    """Whether Spark runs a job for the rows of a frame, and does not know them when it has planned.

    Over Connect, where nobody knows, it is taken to run one.
    """
    if not hasattr(frame, "_jdf"):
        return True
    return kind_of(frame._jdf.queryExecution().optimizedPlan()) != "LocalRelation"


def leaves_of(frame: DataFrame) -> list[Any]:
    """What an analysed plan reads. Nothing is planned; over Connect nobody knows."""
    if not hasattr(frame, "_jdf"):
        return []
    return items_of(frame._jdf.queryExecution().analyzed().collectLeaves())


def optimised_plan(frame: DataFrame) -> Any:
    """What Spark makes of a classic frame before it chooses how to run it; nothing is run.

    None for a frame that Spark will fail on.
    """
    try:
        return frame._jdf.queryExecution().optimizedPlan()  # type: ignore[operator]
    except (Py4JError, PySparkException):
        return None


def reads_buckets(frame: DataFrame, buckets: int) -> bool:
    """Whether a frame reads a table of so many buckets of Spark. Nothing is planned.

    Over Connect, where nobody knows, it does not.
    """
    for leaf in leaves_of(frame):
        if kind_of(leaf) == "LogicalRelation" and kind_of(leaf.relation()) == "HadoopFsRelation":
            found = leaf.relation().bucketSpec()
            if found.isDefined() and found.get().numBuckets() == buckets:
                return True
    return False


def planned_by_bucket(mapped: DataFrame, key: int, buckets: int) -> bool:
    """Plan a classic frame that `mapInArrow` gave, tables being read a bucket a task; gives whether
    the function is given the rows by the hash of a key.

    Spark gives up the buckets of a table where nothing in a plan asks for them, and a function
    cannot ask. When it runs, the frame keeps the plan that it has from here.

    Parameters
    ----------
    mapped : DataFrame
    key : int
        Columns of the key, the first of those that the function takes.
    buckets : int
    """
    conf = mapped.sparkSession._jsparkSession.conf()  # type: ignore[attr-defined]
    with _planning:
        before = conf.get(_GIVES_UP) if conf.contains(_GIVES_UP) else None
        conf.set(_GIVES_UP, "false")
        try:
            plan = mapped._jdf.queryExecution().executedPlan()  # type: ignore[operator]
        finally:
            if before is None:
                conf.unset(_GIVES_UP)
            else:
                conf.set(_GIVES_UP, before)
    found = plan.outputPartitioning()
    if kind_of(plan) != "MapInArrowExec" or kind_of(found) != "HashPartitioning":
        return False
    by, columns = items_of(found.expressions()), items_of(plan.child().output())
    return (
        found.numPartitions() == buckets and len(by) == key <= len(columns)
        and all(one.semanticEquals(given) for one, given in zip(by, columns))
    )


#: What a task does: given its number and what comes to it, which is to be taken to its end.
Task = Callable[[int, Iterable[Any]], Iterator[Any]]


def collected(
    spark: SparkSession, count: int, task: Task, moved: tuple[int, Task] | None = None
) -> list[Any]:
    """What so many tasks give, to which nothing comes.

    Parameters
    ----------
    spark : SparkSession
        A classic one.
    count : int
    task : callable
    moved : tuple of (int, callable), optional
        So many tasks of another kind, for which the first give pairs of a number and bytes. Then
        the result is theirs.
    """
    made = spark.sparkContext.parallelize([], count).mapPartitionsWithIndex(task)
    if moved is not None:
        buckets, then = moved
        made = _exchanged(made, buckets).mapPartitionsWithIndex(then)
    return made.collect()


def _exchanged(made: RDD[tuple[int, bytes]], buckets: int) -> RDD[bytes]:
    """Bytes moved to the partition that each of them names, of so many.

    It is `RDD.partitionBy` without what that does to single records: here each has its frame, and
    may have megabytes, of which that would gather a thousand.
    """

    def framed(pairs: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        for bucket, data in pairs:
            yield pack_long(bucket)
            yield data

    keyed: Any = made.mapPartitions(framed)
    keyed._bypass_serializer = True
    java, context = keyed.ctx._jvm, keyed.ctx
    pairs = java.PairwiseRDD(keyed._jrdd.rdd()).asJavaPairRDD()
    moved = pairs.partitionBy(java.PythonPartitioner(buckets, 0))
    return RDD(java.PythonRDD.valueOfPair(moved), context, NoOpSerializer())


def has_context() -> bool:
    """Whether a context is there: none is over Connect, if the server is not of this process."""
    return SparkContext._active_spark_context is not None


def settings_given() -> dict[str, str] | None:
    """The settings of the context, or those that a launcher has merged; None if Spark has yet to
    merge them."""
    context = SparkContext._active_spark_context
    if context is not None:
        return dict(context.getConf().getAll())
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    # Launched by spark-submit: the JVM runs and has merged everything that was given.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def live_settings(spark: SparkSession) -> Any:
    """The settings of a classic session that were set: a map of the JVM that changes with them.

    None over Connect.
    """
    session = getattr(spark, "_jsparkSession", None)
    return None if session is None else session.sessionState().conf().settings()


def copied_map(settings: Any) -> Any:
    """A map of the JVM with the content that another one has now."""
    return class_called("java.util.HashMap")(settings)


def only_keys(settings: Any, names: Iterable[str]) -> dict[str, str]:
    """The entries of a map of the JVM with some keys."""
    part, keys = copied_map(settings), class_called("java.util.HashSet")()
    for name in names:
        keys.add(name)
    part.keySet().retainAll(keys)
    return {str(name): str(value) for name, value in part.items()}


def values_unless_set(names: Iterable[str]) -> dict[str, str]:
    """The values of settings in a session that sets none, for those that this Spark knows."""
    entries = getattr(sql_class("internal.SQLConf$"), "MODULE$")
    found = {name: entries.getConfigEntry(name) for name in names}
    return {name: str(e.defaultValueString()) for name, e in found.items() if e is not None}


def default_parallelism(spark: SparkSession) -> int:
    """So many tasks a classic session's cluster runs at once."""
    return int(spark.sparkContext.defaultParallelism)


def add_tag(spark: SparkSession, tag: str) -> None:
    """Mark the jobs of this thread."""
    if is_remote():
        spark.addTag(tag)
    else:
        # A classic session knows its own tags only in the thread that has set them.
        spark.sparkContext.addJobTag(tag)


def cancel_tag(spark: SparkSession, tag: str) -> None:
    """Cancel all jobs so marked."""
    if is_remote():
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def cancels_all(handler: object) -> bool:
    """Whether a handler of a signal is PySpark's, which cancels all jobs."""
    return getattr(handler, "__module__", None) == SparkContext.__module__


def query_of(frame: DataFrame) -> str | None:
    """The id of the streaming query whose batch a frame is; None if it is of none, and over
    Connect, where nobody knows."""
    if not hasattr(frame, "_jdf"):
        return None
    return frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or None


def is_running(context: SparkContext) -> bool:
    """Whether a context was not stopped."""
    return context._jsc is not None  # type: ignore[attr-defined]


def scala_version(context: SparkContext) -> str:
    """The version of Scala that Spark runs on, such as ``2.13.18``."""
    return context._jvm.scala.util.Properties.versionNumberString()  # type: ignore[union-attr]


#: By gateway, classes that were loaded. Py4J finds methods by the name of a class, so that a second
#: class of one name, from another loader, would be mistaken for the first.
_loaded: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def instance(context: SparkContext, name: str, jar: Path) -> Any:
    """A new object of a class that takes a SparkContext; None if the class is nowhere.

    Parameters
    ----------
    context : SparkContext
    name : str
        Of the class. One on the class path is taken; else the one in the jar.
    jar : Path
        Need not exist. It stays open from then on.
    """
    java: Any = context._jvm
    gateway: Any = context._gateway
    loaded = _loaded.setdefault(gateway, {})
    if name not in loaded:
        loader = java.java.lang.Thread.currentThread().getContextClassLoader()
        try:
            loaded[name] = loader.loadClass(name)
        except Py4JJavaError:
            if not jar.is_file():
                return None
            urls = gateway.new_array(java.java.net.URL, 1)
            urls[0] = java.java.io.File(str(jar)).toURI().toURL()
            loaded[name] = java.java.net.URLClassLoader(urls, loader).loadClass(name)
    given = gateway.new_array(java.java.lang.Object, 1)
    given[0] = context._jsc.sc()  # type: ignore[attr-defined]
    return loaded[name].getConstructors()[0].newInstance(given)


def is_classic(column: Column) -> bool:
    """Whether a column is an object of the JVM, and not of a Connect client."""
    return hasattr(column, "_jc")


def is_classic_frame(frame: DataFrame) -> bool:
    """Whether a frame is one. A column would have every attribute that it is asked for."""
    return hasattr(frame, "_jdf")


def node_of(column: Column) -> Any:
    """What a classic column has for its expression: a tree of nodes of columns."""
    return column._jc.node()  # type: ignore[operator]


def expression_of(column: Column) -> Any:
    """A classic column as Spark's own expression, not yet analysed; SQL text is parsed."""
    converter = sql_class("classic.ColumnNodeToExpressionConverter$")
    return getattr(converter, "MODULE$").apply(node_of(column))


def column_of(expression: Any, make: Callable[[Any], Column]) -> Column:
    """Spark's own expression as a classic column, of the class that makes it."""
    return columns_of([expression], make)[0]


def columns_of(expressions: Iterable[Any], make: Callable[[Any], Column]) -> tuple[Column, ...]:
    """The same of several, for which the JVM is asked for the class once."""
    to_column = sql_class("classic.ExpressionUtils").column
    return tuple(make(to_column(one)) for one in expressions)


def expression_json(column: Column) -> str | None:
    """A classic column as Spark's own JSON of its expression tree; nothing is analysed or run.

    SQL text is parsed, so that it looks as a column that was written in Python does.

    Returns
    -------
    str or None
        A list of nodes, each in front of its children; None on Connect, or if Spark cannot tell.

    Examples
    --------
    >>> expression_json(F.col("n")).count("UnresolvedAttribute")
    1
    """
    if not is_classic(column):
        return None
    # The JSON of a CASE has each of its branches twice, so that nested ones would double it.
    if column._jc.toString().upper().count("CASE") > _MOST_CASES:  # type: ignore[operator]
        return None
    try:
        return expression_of(column).toJSON()
    except (Py4JError, TypeError):
        # An object of this name is no part of Spark's public interface.
        return None


def sql_of(column: Column) -> str:
    """A classic column as SQL, or as Spark shows it where it has none for it."""
    try:
        return str(expression_of(column).sql())
    except Py4JError:
        return node_of(column).normalized().toString()


def attributes_by_id(frame: DataFrame) -> Any:
    """The columns of a classic frame, found by their ids."""
    output = frame._jdf.queryExecution().analyzed().output()  # type: ignore[operator]
    return sql_class("catalyst.expressions.package$AttributeSeq")(output)


def sql_class(name: str) -> Any:
    """A class of Spark SQL, by its name in there."""
    return class_called(f"org.apache.spark.sql.{name}")


def class_called(name: str) -> Any:
    """A class of the JVM, by its full name.

    In one piece: of ``jvm.org.apache.spark`` the JVM is asked dot by dot what it is, and looks for
    a class of that name in each of Spark's 300 jars before it calls it a package.
    """
    context: Any = get_active_spark_context()
    return getattr(context._jvm, name)


def kind_of(node: Any) -> str:
    """The class of an object of the JVM, without its package."""
    return node.getClass().getName().rpartition(".")[2]


def items_of(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


def bytes_of(sequence: Any) -> bytes:
    """A Scala sequence of bytes."""
    return bytes(sequence.toArray(class_called("scala.reflect.ClassTag").Byte()))


def analysed_of(frame: DataFrame) -> Any:
    """The logical plan of a classic frame, after Spark has resolved its names and types."""
    return frame._jdf.queryExecution().analyzed()  # type: ignore[operator]


def analysed_json(frame: DataFrame) -> str | None:
    """The analysed plan of a frame as Spark's JSON, expressions included; None over Connect."""
    if not hasattr(frame, "_jdf"):
        return None
    try:
        return str(analysed_of(frame).toJSON())
    except Py4JError:  # a part of the plan has no JSON
        return None


def frame_of_plan(plan: Any, spark: SparkSession) -> DataFrame:
    """The classic frame of a logical plan."""
    session = spark._jsparkSession  # type: ignore[attr-defined]
    return DataFrame(sql_class("classic.Dataset").ofRows(session, plan), spark)


def copied_session(spark: SparkSession) -> SparkSession:
    """A classic session with the settings, functions and temporary views that another one has now.

    Later changes of one are not seen by the other.
    """
    session = spark._jsparkSession.cloneSession()  # type: ignore[attr-defined]
    return SparkSession(spark.sparkContext, session)


def loaded_class(name: str) -> Any:
    """The `java.lang.Class` of a name, for `isInstance`."""
    context: Any = get_active_spark_context()
    loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return loader.loadClass(name)


def scala_sequence(values: Iterable[Any]) -> Any:
    """Objects of the JVM as a Scala sequence."""
    converters = class_called("scala.jdk.javaapi.CollectionConverters")
    return converters.asScala(list(values)).toSeq()


def parsed_plan(text: str, spark: SparkSession) -> Any:
    """The logical plan of a text, before Spark resolves its names."""
    state = spark._jsparkSession.sessionState()  # type: ignore[attr-defined]
    return state.sqlParser().parsePlan(text)


def runs_a_command(plan: Any) -> bool:
    """Whether a parsed plan does something else than return rows, such as to write a table."""
    logical = "org.apache.spark.sql.catalyst.plans.logical."
    classes = [loaded_class(logical + name) for name in ("Command", "ParsedStatement")]
    classes.append(loaded_class("org.apache.spark.sql.catalyst.plans.logical.CompoundBody"))

    def found(node: Any) -> bool:
        return any(one.isInstance(node) for one in classes) or any(
            map(found, items_of(node.children()))
        )

    return found(plan)


def sql_text(expression: Any) -> str | None:
    """Spark's own expression as SQL; None if it has no text."""
    try:
        return str(expression.sql())
    except Py4JError:
        return None


#: By gateway, a function of Scala from an expression to the class names in its tree.
_tree_names: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _names_in_tree() -> Any:
    """The function that `expression_classes` maps over expressions.

    It is put together from method handles, so that the JVM walks the trees: a call of the JVM for
    each node would take longer than the analysis.
    """
    context: Any = get_active_spark_context()
    if context._gateway not in _tree_names:
        handles = class_called("java.lang.invoke.MethodHandles")
        of_type = class_called("java.lang.invoke.MethodType").methodType
        proxies = class_called("java.lang.invoke.MethodHandleProxies")
        whatever, kind = loaded_class("java.lang.Object"), loaded_class("java.lang.Class")
        function = loaded_class("scala.Function1")
        public = handles.publicLookup()
        name = handles.filterReturnValue(
            public.findVirtual(whatever, "getClass", of_type(kind)),
            public.findVirtual(kind, "getName", of_type(loaded_class("java.lang.String"))),
        )
        each = public.findVirtual(
            loaded_class("org.apache.spark.sql.catalyst.trees.TreeNode"), "map",
            of_type(loaded_class("scala.collection.immutable.Seq"), function),
        )
        mapped = context._gateway.new_array(context._jvm.java.lang.Object, 1)
        mapped[0] = proxies.asInterfaceInstance(function, name)
        _tree_names[context._gateway] = proxies.asInterfaceInstance(
            function, handles.insertArguments(each, 1, mapped)
        )
    return _tree_names[context._gateway]


def expression_classes(plan: Any) -> dict[str, Any]:
    """The full names of the classes of all expressions in a plan, with an operator that has one."""
    names, found, nodes = _names_in_tree(), {}, [plan]
    while nodes:  # without recursion: plans may be deeper than Python's stack
        node = nodes.pop()
        nodes.extend(items_of(node.children()))
        text = str(node.expressions().flatMap(names).distinct().mkString(" "))
        found.update(dict.fromkeys(text.split(), node))
    return found


def called_name(plan: Any, name: str) -> str:
    """The function that an expression of a class is in SQL, if it is in an operator."""
    expressions = items_of(plan.expressions())
    while expressions:
        one = expressions.pop()
        if str(one.getClass().getName()) == name:
            return str(one.prettyName())
        expressions.extend(items_of(one.children()))
    return name

"""The door to the JVM, with `jvm_context` and `jvm_tables`: its classes and objects, the plans of
frames, and expressions.

Functions of a frame also work over Spark Connect, unless their docstring says "classic". The
modules that inspect expressions (`pyspark_diff.spark.calls`, `taken` and `expression_parts`) call
`is_classic` first.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterable
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.utils import get_active_spark_context

from pyspark_diff.spark.sent import sent

#: The errors of a call into the JVM, with a class of PySpark or without.
JVM_ERRORS = (PySparkException, Py4JError)
#: Functions whose value depends on the evaluation, the day or the session, by their names in plans.
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
#: The pattern ignores case: Spark shows one of the names as SPARK_PARTITION_ID.
_UNSTABLE = re.compile(_NAMES.pattern[:-2] + r"\(", re.IGNORECASE)
#: A function that reads the clock if it has no argument.
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
#: A plan whose root is an alias.
_ALIAS = re.compile(r"^SubqueryAlias ([^\s.]+)$", re.MULTILINE)

#: Values from outside of a row, as an analysed plan shows them.
_VARIABLE = re.compile(r"\bvariablereference\((?:system\.session\.)?([^=]+)=")
_SUBQUERY = re.compile(r"\b(?:list|scalar-subquery|exists|lateral-subquery)#\d+ \[")
_VIEW = re.compile(r"\bView \((`[^,]+`), \[")

#: A function of Avro whose schema Spark reads from a file, for each query anew.
_SCHEMA_FILE = re.compile(r"\b(from_avro|to_avro|schema_of_avro)\(.*avroSchemaUrl", re.IGNORECASE)

_MOST_CASES = 8

#: The setting by which Spark ignores the buckets of tables. One thread at a time may change it.
_GIVES_UP = "spark.sql.sources.bucketing.autoBucketedScan.enabled"
_planning = threading.Lock()

#: The attribute that an operator of a classic frame reads from its other side.
JVM_FRAME = "_jdf"


@dataclass(frozen=True)
class AnalysedPlan:
    """The properties of an analysed plan that the library reads.

    Parameters
    ----------
    nodes : tuple of str
        Names of the logical operators, from the root down.
    unstable : tuple of str
        Expressions whose value is not a function of the row.
    alias : str or None
        The name that `alias` gave the frame.
    sessions : bool
        Whether an expression is ``session_window``, which only an aggregate of Spark merges.
    outside : tuple of str
        Session variables, subqueries and files of schemas in expressions, in words.
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


def analysed_plan(frame: DataFrame) -> AnalysedPlan:
    """Logical operators and non-deterministic expressions of a frame.

    Parameters
    ----------
    frame : DataFrame
        Classic or Connect; nothing is run.
    """
    if hasattr(frame, "_jdf"):
        analysed = frame._jdf.queryExecution().analyzed()
        text = _whole_text(analysed)
        # The clock counts as deterministic in Spark, which reads it once a query.
        clock = analysed.containsPattern(sql_class("catalyst.trees.TreePattern").CURRENT_LIKE())
        # A plan is deterministic if its expressions and the plans below it are.
        unstable = _named(text) if clock or not analysed.deterministic() else ()
        if _RANDOM_VECTOR.search(text):
            unstable = (*unstable, "aes_encrypt with an initialisation vector of Spark")
        pattern = sql_class("catalyst.trees.TreePattern")
        variable = analysed.containsPattern(pattern.VARIABLE_REFERENCE())
        subquery = analysed.containsPattern(pattern.PLAN_EXPRESSION())
    else:
        extended = frame._explain_string(extended=True)  # type: ignore[operator]
        text = extended.split("== Analyzed Logical Plan ==")[-1].split("== Optimized")[0]
        # The section starts with a line of column names and types.
        text = "\n".join(text.strip().splitlines()[1:])
        request = sent(frame)
        called = {name for name in request.functions if _UNSTABLE.match(f"{name}(")}
        called |= request.random
        if _RANDOM_VECTOR.search(text):
            called.add("aes_encrypt with an initialisation vector of Spark")
        called |= request.bare & {"unix_timestamp"}
        for sql in request.texts:
            calls = _UNSTABLE.findall(sql) + _NO_ARGUMENT.findall(sql)
            called.update(name.lower() for name in calls)
            # In SQL the clock needs no brackets; a column of that name has priority.
            called.update(name for name in _CLOCK.findall(sql) if f"{name}#" not in text)
        unstable = tuple(sorted(called))
        # For all other parts there is only the server's text, which is truncated and no syntax.
        elsewhere = not request.whole or any(map(_NAMES.search, request.texts))
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
    schema_file = _SCHEMA_FILE.search(text)
    if schema_file:
        outside.append(f"the file in the option avroSchemaUrl of {schema_file.group(1).lower()}")
    nodes = tuple(m.group(1) for m in map(_NODE.match, text.splitlines()) if m)
    alias = _ALIAS.match(text)
    sessions = _SESSION.search(text) is not None
    name = None if alias is None else alias.group(1)
    return AnalysedPlan(nodes, unstable, name, sessions, tuple(outside))


def has_sessions(plan: Any) -> bool:
    """Whether a plan that Spark has analysed, subqueries included, calls ``session_window``."""
    return _SESSION.search(_whole_text(plan)) is not None


def _whole_text(plan: Any) -> str:
    """The text of a plan with all columns: Spark's own text shows 25 columns of a list."""
    text = str(plan.toString())
    if " more fields" not in text:
        return text
    try:
        return str(plan.treeString(True, False, _FIELDS_MAX, False, False))
    except Py4JError:  # the method of another version has other parameters
        return text


def _named(text: str) -> tuple[str, ...]:
    """The names of the non-deterministic expressions in a plan that has some. The text serves only
    for the names, as Spark truncates long plans and column names may look like calls."""
    names = tuple(dict.fromkeys(name.lower() for name in _UNSTABLE.findall(text)))
    return names or ("an expression that Spark marks as non-deterministic",)


def frame_of_no_rows(spark: SparkSession, struct: T.StructType) -> DataFrame:
    """An empty frame, whose session becomes the active one for the look-up of names.

    `createDataFrame` makes the same frame, but on classic takes three times as long, to move zero
    rows to the JVM. Each operator of a program needs such a frame when it is written.

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


def frame_over(rows: DataFrame, struct: T.StructType, name: str) -> DataFrame:
    """A frame whose leaf has the rows of another one, under a name, and the columns of a schema.

    Spark does not compute the rows before it runs a job over the frame.

    Examples
    --------
    >>> frame = frame_over(spark.range(3), spark.range(3).schema, "numbers")
    >>> frame.count(), rdd_name(analysed_of(frame))
    (3, 'numbers')
    """
    spark = rows.sparkSession
    session = getattr(spark, "_jsparkSession")
    kind = session.parseDataType(struct.json())
    frame = DataFrame(session.createDataFrame(rows._jdf.toDF().javaRDD(), kind), spark)
    analysed_of(frame).rdd().setName(name)
    return frame


def rdd_name(leaf: Any) -> str | None:
    """The name of the rows of a leaf in a plan; None if it has none."""
    if kind_of(leaf) != "LogicalRDD":
        return None
    name = leaf.rdd().name()
    return None if name is None else str(name)


def needs_job(frame: DataFrame) -> bool:
    """Whether Spark runs a job for the rows of a frame, so that planning alone does not provide
    them.

    Over Connect the answer is yes, as the client has no plan.
    """
    if not hasattr(frame, "_jdf"):
        return True
    return kind_of(frame._jdf.queryExecution().optimizedPlan()) != "LocalRelation"


def leaves_of(frame: DataFrame) -> list[Any]:
    """The leaves of an analysed plan. Nothing is planned; over Connect the list is empty."""
    if not hasattr(frame, "_jdf"):
        return []
    return items_of(frame._jdf.queryExecution().analyzed().collectLeaves())


def optimised_plan(frame: DataFrame) -> Any:
    """The optimised logical plan of a classic frame; nothing runs.

    None for a frame whose optimisation fails.
    """
    try:
        return frame._jdf.queryExecution().optimizedPlan()  # type: ignore[operator]
    except JVM_ERRORS:
        return None


def reads_buckets(frame: DataFrame, buckets: int) -> bool:
    """Whether a frame reads a table with this number of Spark's buckets. Nothing is planned.

    Over Connect the answer is no, as the client has no plan.
    """
    for leaf in leaves_of(frame):
        if kind_of(leaf) == "LogicalRelation" and kind_of(leaf.relation()) == "HadoopFsRelation":
            buckets_of = leaf.relation().bucketSpec()
            if buckets_of.isDefined() and buckets_of.get().numBuckets() == buckets:
                return True
    return False


def planned_by_bucket(mapped: DataFrame, key: int, buckets: int) -> bool:
    """Plan a classic frame of `mapInArrow` so that each task reads one bucket of its table. Return
    whether the function receives the rows partitioned by the hash of a key.

    Spark ignores the buckets of a table if no operator of a plan requires them, and a function
    cannot require them. The frame keeps this plan when it runs.

    Parameters
    ----------
    key : int
        The number of columns of the key, which come first in the function's input.
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
    placed = plan.outputPartitioning()
    if kind_of(plan) != "MapInArrowExec" or kind_of(placed) != "HashPartitioning":
        return False
    by, columns = items_of(placed.expressions()), items_of(plan.child().output())
    return (
        placed.numPartitions() == buckets and len(by) == key <= len(columns)
        and all(part.semanticEquals(column) for part, column in zip(by, columns))
    )


def is_classic(column: Column) -> bool:
    """Whether a column is an object of the JVM, and not of a Connect client."""
    return hasattr(column, "_jc")


def is_classic_frame(frame: DataFrame) -> bool:
    """Whether a frame is classic. A test of a column would fail, as it returns every attribute."""
    return hasattr(frame, "_jdf")


def node_of(column: Column) -> Any:
    """The tree of column nodes of a classic column."""
    return column._jc.node()  # type: ignore[operator]


def expression_of(column: Column) -> Any:
    """A classic column as Spark's own expression, not yet analysed; SQL text is parsed."""
    converter = sql_class("classic.ColumnNodeToExpressionConverter$")
    return getattr(converter, "MODULE$").apply(node_of(column))


def column_of(expression: Any, make: Callable[[Any], Column]) -> Column:
    """Spark's own expression as a classic column, made by `make`."""
    return columns_of([expression], make)[0]


def columns_of(expressions: Iterable[Any], make: Callable[[Any], Column]) -> tuple[Column, ...]:
    """`column_of` for several expressions, with one look-up of the class in the JVM."""
    to_column = sql_class("classic.ExpressionUtils").column
    return tuple(make(to_column(expression)) for expression in expressions)


def expression_json(column: Column) -> str | None:
    """A classic column as Spark's own JSON of its expression tree; nothing is analysed or run.

    SQL text is parsed, so that it has the same form as a column of Python code.

    Returns
    -------
    str or None
        A list of nodes, each before its children; None on Connect, or if Spark has no JSON.

    Examples
    --------
    >>> expression_json(F.col("n")).count("UnresolvedAttribute")
    1
    """
    if not is_classic(column):
        return None
    # The JSON of a CASE has each of its branches twice, so each level of nesting would double it.
    if column._jc.toString().upper().count("CASE") > _MOST_CASES:  # type: ignore[operator]
        return None
    try:
        return expression_of(column).toJSON()
    except (Py4JError, TypeError):
        # This object is no part of Spark's public interface, so it may be missing.
        return None


def sql_of(column: Column) -> str:
    """A classic column as SQL, or in Spark's display form if it has no SQL."""
    try:
        return str(expression_of(column).sql())
    except Py4JError:
        return node_of(column).normalized().toString()


def attributes_by_id(frame: DataFrame) -> Any:
    """The columns of a classic frame, found by their ids."""
    output = frame._jdf.queryExecution().analyzed().output()  # type: ignore[operator]
    return sql_class("catalyst.expressions.package$AttributeSeq")(output)


def sql_class(name: str) -> Any:
    """A class of Spark SQL, by its name within the package."""
    return class_called(f"org.apache.spark.sql.{name}")


def class_called(name: str) -> Any:
    """A class of the JVM, by its full name.

    One look-up of the full name: for ``jvm.org.apache.spark`` Py4J looks each part up. The JVM then
    searches for a class of that name in all of Spark's 300 jars before it reports a package.
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


def written_of(frame: DataFrame) -> Any:
    """The logical plan of a classic frame as its last method wrote it."""
    return frame._jdf.queryExecution().logical()  # type: ignore[operator]


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
    """A classic session with a copy of another one's settings, functions and temporary views.

    Later changes of one session do not affect the other.
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
    """The logical plan of SQL text, before Spark resolves its names."""
    state = spark._jsparkSession.sessionState()  # type: ignore[attr-defined]
    return state.sqlParser().parsePlan(text)


def runs_a_command(plan: Any) -> bool:
    """Whether a parsed plan has another effect than to return rows, such as writing a table."""
    logical = "org.apache.spark.sql.catalyst.plans.logical."
    classes = [loaded_class(logical + name) for name in ("Command", "ParsedStatement")]
    classes.append(loaded_class("org.apache.spark.sql.catalyst.plans.logical.CompoundBody"))

    def has_one(node: Any) -> bool:
        return any(kind.isInstance(node) for kind in classes) or any(
            map(has_one, items_of(node.children()))
        )

    return has_one(plan)


def sql_text(expression: Any) -> str | None:
    """Spark's own expression as SQL; None if it has no text."""
    try:
        return str(expression.sql())
    except Py4JError:
        return None


#: A function of Scala from an expression to the class names in its tree, by gateway.
_tree_names: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _names_in_tree() -> Any:
    """The function that `expression_classes` maps over expressions.

    The function is composed of method handles, so that the JVM walks the trees: a call of the JVM
    for each node would take longer than the analysis.
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
    """The full names of the classes of all expressions in a plan, each with an operator that has
    it."""
    names, operators, nodes = _names_in_tree(), {}, [plan]
    while nodes:  # without recursion: plans may be deeper than Python's stack
        node = nodes.pop()
        nodes.extend(items_of(node.children()))
        text = str(node.expressions().flatMap(names).distinct().mkString(" "))
        operators.update(dict.fromkeys(text.split(), node))
    return operators


def called_name(plan: Any, name: str) -> str:
    """The SQL function of a class of expressions in an operator; the name of the class without
    one."""
    expressions = items_of(plan.expressions())
    while expressions:
        expression = expressions.pop()
        if str(expression.getClass().getName()) == name:
            return str(expression.prettyName())
        expressions.extend(items_of(expression.children()))
    return name

"""The part of the door to the JVM for the context of Spark: its settings, its jobs and its classes.

Functions also work over Spark Connect, unless their docstring says "classic".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.serializers import NoOpSerializer, pack_long
from pyspark.sql import DataFrame, SparkSession, is_remote

from pyspark_diff.spark.jvm import class_called, sql_class


#: The work of a task: a function of its number and its input, which it has to read to the end.
Task = Callable[[int, Iterable[Any]], Iterator[Any]]


def collected(
    spark: SparkSession, count: int, task: Task, moved: tuple[int, Task] | None = None
) -> list[Any]:
    """The results of tasks without input.

    Parameters
    ----------
    spark : SparkSession
        A classic one.
    task : callable
    moved : tuple of (int, callable), optional
        The number and the function of a second kind of tasks. The first tasks return pairs of a
        second task's number and bytes, and the result comes from the second tasks.
    """
    results = spark.sparkContext.parallelize([], count).mapPartitionsWithIndex(task)
    if moved is not None:
        buckets, then = moved
        results = _exchanged(results, buckets).mapPartitionsWithIndex(then)
    return results.collect()


def _exchanged(routed: RDD[tuple[int, bytes]], buckets: int) -> RDD[bytes]:
    """Bytes moved to the partition of their numbers.

    `RDD.partitionBy` would gather a thousand records into one batch. Here each record may have
    megabytes, so each has a frame of its own.
    """

    def framed(pairs: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        for bucket, data in pairs:
            yield pack_long(bucket)
            yield data

    keyed: Any = routed.mapPartitions(framed)
    keyed._bypass_serializer = True
    java, context = keyed.ctx._jvm, keyed.ctx
    pairs = java.PairwiseRDD(keyed._jrdd.rdd()).asJavaPairRDD()
    moved = pairs.partitionBy(java.PythonPartitioner(buckets, 0))
    return RDD(java.PythonRDD.valueOfPair(moved), context, NoOpSerializer())


def has_context() -> bool:
    """Whether this process has a context. A client of Connect has none if the server is another
    process."""
    return SparkContext._active_spark_context is not None


def settings_given() -> dict[str, str] | None:
    """The settings of the context, or the settings that a launcher has merged; None before Spark
    merges them."""
    context = SparkContext._active_spark_context
    if context is not None:
        return dict(context.getConf().getAll())
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    # Launched by spark-submit: the JVM runs and has merged all settings.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def live_settings(spark: SparkSession) -> Any:
    """The explicit settings of a classic session: a map of the JVM that changes with them.

    None over Connect.
    """
    session = getattr(spark, "_jsparkSession", None)
    return None if session is None else session.sessionState().conf().settings()


def copied_map(settings: Any) -> Any:
    """A copy of a map of the JVM."""
    return class_called("java.util.HashMap")(settings)


def only_keys(settings: Any, names: Iterable[str]) -> dict[str, str]:
    """The entries of a map of the JVM with some keys."""
    part, keys = copied_map(settings), class_called("java.util.HashSet")()
    for name in names:
        keys.add(name)
    part.keySet().retainAll(keys)
    return {str(name): str(value) for name, value in part.items()}


def values_unless_set(names: Iterable[str]) -> dict[str, str]:
    """The default values of settings, for those that this version of Spark has."""
    entries = getattr(sql_class("internal.SQLConf$"), "MODULE$")
    known = {name: entries.getConfigEntry(name) for name in names}
    return {name: str(e.defaultValueString()) for name, e in known.items() if e is not None}


def default_parallelism(spark: SparkSession) -> int:
    """The number of tasks that the cluster of a classic session runs at once."""
    return int(spark.sparkContext.defaultParallelism)


def add_tag(spark: SparkSession, tag: str) -> None:
    """Mark the jobs of this thread."""
    if is_remote():
        spark.addTag(tag)
    else:
        # A classic session has its own tags only in the thread that has set them.
        spark.sparkContext.addJobTag(tag)


def cancel_tag(spark: SparkSession, tag: str) -> None:
    """Cancel all jobs with a mark."""
    if is_remote():
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def cancels_all(handler: object) -> bool:
    """Whether a handler of a signal is PySpark's, which cancels all jobs."""
    return getattr(handler, "__module__", None) == SparkContext.__module__


def query_of(frame: DataFrame) -> str | None:
    """The id of the streaming query whose micro-batch a frame is; None for any other frame, and
    over Connect."""
    if not hasattr(frame, "_jdf"):
        return None
    return frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or None


def is_running(context: SparkContext) -> bool:
    """Whether a context was not stopped."""
    return context._jsc is not None  # type: ignore[attr-defined]


def scala_version(context: SparkContext) -> str:
    """The version of Scala that Spark runs on, such as ``2.13.18``."""
    return context._jvm.scala.util.Properties.versionNumberString()  # type: ignore[union-attr]


#: Loaded classes, by gateway. Py4J finds methods by the name of a class, so it would mistake a
#: second class of one name, from another loader, for the first.
_loaded: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def instance(context: SparkContext, name: str, jar: Path) -> Any:
    """A new object of a class that takes a SparkContext; None if the class is missing.

    Parameters
    ----------
    name : str
        Name of the class. A class on the class path has priority over one in the jar.
    jar : Path
        The file may be absent. It stays open after the call.
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
    arguments = gateway.new_array(java.java.lang.Object, 1)
    arguments[0] = context._jsc.sc()  # type: ignore[attr-defined]
    return loaded[name].getConstructors()[0].newInstance(arguments)

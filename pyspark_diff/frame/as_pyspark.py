"""PySpark's access to a frame without operators: names of its columns, null values, and a hint for
each method that only a DataFrame can have.

A DataFrame is a table; a collection is a table for each time. Methods that need a table, an order
or a job are absent, and the error for each names the method to use instead::

    every public name of DataFrame is a method here, or has a hint

A column is taken from a frame as in PySpark: ``df["x"]``, or ``df.x`` if no method and no hint has
the name. It refers to that column in every collection derived from the frame, as long as no
operator changes the column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, NoReturn, Sequence, overload

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_diff.errors import NotReadableError, SchemaError
from pyspark_diff.expressions.analysis import suggesting
from pyspark_diff.expressions.handles import STAR, Handle
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.row_wise import filtered, row_wise
from pyspark_diff.frame.windows import with_columns
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.jvm import JVM_FRAME
from pyspark_diff.spark.schema import DIFF, TIME, check_names, meant_by
from pyspark_diff.spark.taken import same_columns

if TYPE_CHECKING:
    from typing_extensions import Self

_AT = "a collection has a moment: .at(t).{name}({inside}) is what it is at a time"
_ACTIONS = (
    "asTable collect corr cov createGlobalTempView createOrReplaceGlobalTempView "
    "createOrReplaceTempView createTempView crosstab describe exists first foreach "
    "foreachPartition freqItems head inputFiles isEmpty isLocal pandas_api plot rdd "
    "registerTempTable sample sampleBy scalar show stat summary tail take toArrow toJSON "
    "toLocalIterator toPandas transpose approxQuantile randomSplit mergeInto executionInfo "
    "nearestByJoin zipWithIndex"
).split()
_ORDER = (
    "a collection has no order: .at(t).{name}(...) is of the rows at a time, and top_k(n, "
    "by=...) keeps the first records of each key"
)
_KEPT = (
    "a collection is kept where it is arranged, and nothing is evaluated twice: arrange_by_self(), "
    "or arrange_by_key(...)"
)
_SHUFFLE = (
    "where records lie is up to the library: Dataflow(buckets=...) sets the number of buckets, and "
    "arrange_by_key(...) what they are found by"
)
_STREAM = "a collection's times are its watermark: advance its inputs, and hold(...) keeps history"
_WRITE = (
    ".at(t).{name} writes it as it is at a time, .to_df() gives its updates, and inspect(f, "
    "by_table=True) each step's"
)
_OTHERS = {
    "lateralJoin": "join(...), or flat_map(...) for rows that are made of one",
    "dropDuplicatesWithinWatermark": "dropDuplicates(...) is kept up to date for all times",
    "coalesce": _SHUFFLE,
    "repartition": _SHUFFLE,
    "repartitionById": _SHUFFLE,
    "repartitionByRange": _SHUFFLE,
    "sortWithinPartitions": _ORDER,
    "orderBy": _ORDER,
    "sort": _ORDER,
    "limit": _ORDER,
    "offset": _ORDER,
    "cache": _KEPT,
    "persist": _KEPT,
    "unpersist": _KEPT,
    "checkpoint": _KEPT,
    "localCheckpoint": _KEPT,
    "storageLevel": _KEPT,
    "withWatermark": _STREAM,
    "isStreaming": _STREAM,
    "observe": "inspect(f) shows the updates of each step",
    "write": _WRITE,
    "writeTo": _WRITE,
    "writeStream": _WRITE,
    "sameSemantics": "two collections are the same if they are one object",
    "semanticHash": "two collections are the same if they are one object",
    "colRegex": "choose from .columns",
    "metadataColumn": "a collection has no columns but those of .columns",
    "withMetadata": "put it on the frame: .at(t).withMetadata(...)",
    "to": "select(...) the columns with the casts that are wanted",
}

#: Several columns, in brackets.
Several = list[str] | list[Column] | list[str | Column] | tuple[str | Column, ...]

#: The default for an absent value, as None is a value.
_NO_VALUE = object()


def hint(name: str) -> str | None:
    """The method to use instead of one that DataFrame has and a collection lacks."""
    if name in _ACTIONS:
        inside = "" if name in ("collect", "show", "toPandas", "isEmpty", "toArrow") else "..."
        return _AT.format(name=name, inside=inside)
    text = _OTHERS.get(name)
    return None if text is None else text.format(name=name)


class PySparkMethods(Frame):
    """Columns and nulls by PySpark's names, and hints."""

    @overload
    def __getitem__(self, item: int | str) -> Column: ...

    @overload
    def __getitem__(self, item: Column | Several) -> Self: ...

    def __getitem__(self, item: int | str | Column | Several) -> Column | Self:
        """A column of this collection, as PySpark's ``df["x"]``; or several columns, or a
        condition.

        Parameters
        ----------
        item : str, int, Column, or list of str or Column
            A column by its name or number. Every expression over this collection accepts it, and
            every expression over a collection derived from it, as long as the column is unchanged;
            ``df["*"]`` is all columns. With a condition the call is `where`, with a list `select`.
            ``df.x`` is the same as ``df["x"]`` if no method has that name; type checkers know
            ``df["x"]`` only.

        Raises
        ------
        SchemaError
            If there is no such column, or more than one.

        Examples
        --------
        >>> e = DiffFrame(spark.createDataFrame(
        ...     [(1, 2, 0, 1), (2, 3, 0, 1)], "src int, dst int, time int, diff int"))
        >>> a, b = e.alias("a"), e.alias("b")
        >>> a.join(b, a["dst"] == b["src"]).select(a["src"], b["dst"]).at(0).collect()
        [Row(src=1, dst=3)]
        >>> e[e["src"] > 1][["dst"]].at(0).collect()
        [Row(dst=3)]
        """
        if isinstance(item, Column):
            return self._wrap(filtered(*self._collection.spreading(item)))
        if isinstance(item, (list, tuple)):
            selected: Any = self
            return selected.select(*item)
        if isinstance(item, int) and not isinstance(item, bool):
            if not -len(self.columns) <= item < len(self.columns):
                raise SchemaError(
                    f"there is no column number {item}; the columns are {', '.join(self.columns)}"
                )
            item = self.columns[item]
        if not isinstance(item, str):
            raise SchemaError(
                "a frame takes the name or number of a column, a list of columns, or a condition, "
                f"and not {item!r}"
            )
        return self._column(item)

    def _column(self, name: str) -> Column:
        """The column of a name in this collection and in no other."""
        source = self._collection
        if name == STAR and source.resolver.star is not None:
            return source.resolver.star.column()
        if not source.named(name) and any(mark in name for mark in ".`"):
            # A field of a column, or a column under an alias: Spark resolves the text.
            source.template().select(F.col(name)).schema
            first, dot, rest = name.partition(".")
            if dot and len(source.named(first)) == 1:
                return self._handle(first).column(first, f".{rest}")
            literal = name.strip("`").replace("``", "`")
            return self._column(literal) if source.named(literal) else F.col(name)
        return self._handle(name).column(name)

    def _handle(self, name: str) -> Handle:
        source = self._collection
        lineage = source.resolver.lineage(source.column_name(name, "in this collection"))
        assert lineage is not None  # every column of a collection has one
        return lineage.handle

    def __dir__(self) -> list[str]:
        """Names for completion: methods and columns."""
        return sorted({*super().__dir__(), *filter(str.isidentifier, self.columns)})

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Names and types of the data columns, as PySpark's `dtypes`.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.dtypes
        [('n', 'int')]
        """
        return [(field.name, field.dataType.simpleString()) for field in self.schema]

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802
        """The session that the collection's expressions are analysed in."""
        return self._collection.spark

    def printSchema(self, level: int | None = None) -> None:  # noqa: N802
        """Print the data columns as a tree, as PySpark's `printSchema`.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.printSchema()
        root
         |-- n: integer (nullable = true)
        <BLANKLINE>
        """
        print(self.schema.treeString(level) if level is not None else self.schema.treeString())

    def withColumns(self, colsMap: Mapping[str, Column]) -> Self:  # noqa: N802, N803
        """Several columns added, or replaced, as PySpark's `withColumns`.

        Every expression reads the columns of this collection, before any replacement.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.withColumns({"n": F.col("n") + 1, "old": F.col("n")}).at(0).collect()
        [Row(n=2, old=1)]
        """
        return self._wrap(with_columns(self._collection, "withColumns", dict(colsMap)))

    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> Self:  # noqa: N802, N803
        """Other names for several columns, as PySpark's `withColumnsRenamed`, one after the other.

        An absent name changes nothing.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.withColumnsRenamed({"n": "m", "x": "y"}).columns
        ['m']
        """
        source = self._collection
        names = self.columns
        for old, new in colsMap.items():
            meant = meant_by(old, names, source.spark)
            names = [new if name in meant else name for name in names]
        check_names([new for name, new in zip(self.columns, names) if new != name])
        return self._wrap(source.picked("withColumnsRenamed", list(zip(self.columns, names))))

    def dropna(
        self, how: str = "any", thresh: int | None = None,
        subset: str | Sequence[str] | None = None,
    ) -> Self:
        """The records without nulls, as PySpark's `dropna`.

        Examples
        --------
        >>> rows = [(1, None, 0, 1), (2, 3, 0, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, m int, time int, diff int"))
        >>> n.dropna().at(0).collect(), n.dropna(subset="n").at(0).count()
        ([Row(n=2, m=3)], 2)
        """
        names = self._subset(subset, "dropna")
        return self._spark("dropna", lambda frame: frame.dropna(how, thresh, names))

    def fillna(self, value: Any, subset: str | Sequence[str] | None = None) -> Self:
        """Values in the place of nulls, as PySpark's `fillna`.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(None, 0, 1)], "n int, time int, diff int"))
        >>> n.fillna(7).at(0).collect()
        [Row(n=7)]
        """
        if isinstance(value, dict):
            self._subset(list(value), "fillna")
            return self._spark("fillna", lambda frame: frame.fillna(value))
        names = self._subset(subset, "fillna")
        return self._spark("fillna", lambda frame: frame.fillna(value, names))

    def replace(
        self, to_replace: Any, value: Any = _NO_VALUE, subset: str | Sequence[str] | None = None
    ) -> Self:
        """Values in the place of others, as PySpark's `replace`.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.replace({1: 2}).at(0).collect(), n.replace(1, 3).at(0).collect()
        ([Row(n=2)], [Row(n=3)])
        """
        names = self._subset(subset, "replace")
        requested = [subset] if isinstance(subset, str) else list(subset or ())
        for name, meant in zip(requested, names):
            if name != meant:
                raise SchemaError(
                    f"replace, as PySpark's, takes names in their own case only: write {meant!r}, "
                    f"not {name!r}"
                )
        if value is _NO_VALUE:
            return self._spark("replace", lambda frame: frame.replace(to_replace, subset=names))
        return self._spark("replace", lambda frame: frame.replace(to_replace, value, names))

    @property
    def na(self) -> "NaMethods":
        """`dropna`, `fillna` and `replace` under the names that PySpark's `na` has for them."""
        return NaMethods(self)

    def unpivot(
        self, ids: Any, values: Any, variableColumnName: str, valueColumnName: str  # noqa: N803
    ) -> Self:
        """A record for each of several columns, as PySpark's `unpivot`.

        Examples
        --------
        >>> rows = [(1, 10, 20, 0, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "k int, a int, b int, time int, diff int"))
        >>> sorted(n.unpivot("k", ["a", "b"], "name", "value").at(0).collect())
        [Row(k=1, name='a', value=10), Row(k=1, name='b', value=20)]
        """
        listed = list(ids) if isinstance(ids, (list, tuple)) else [ids]
        if values is None:
            source = self._collection
            ids_ = {n for name in listed if isinstance(name, str) for n in source.named(name)}
            values = [name for name in self.columns if name not in ids_]
        chosen = [values] if isinstance(values, (str, Column)) else list(values)
        check_names([variableColumnName, valueColumnName])
        names = (variableColumnName, valueColumnName)
        source, (listed, chosen) = self._collection.seeing((listed, chosen))
        with suggesting(source.columns):
            melted = source.template().unpivot(listed, chosen, *names)
            kind = melted.schema[valueColumnName].dataType  # the common type of all values
        shown = source.resolver.as_named

        def apply(frame: DataFrame) -> DataFrame:
            # One expression makes all rows of a record, as no operator may look at more than one
            # record.
            pairs = [
                F.struct(
                    F.lit(shown(frame.select(_column(value)).columns[0])).alias(variableColumnName),
                    _column(value).cast(kind).alias(valueColumnName),
                )
                for value in chosen
            ]
            return frame.select(*map(_column, listed), F.inline(F.array(*pairs)), TIME, DIFF)

        source.check_unambiguous("unpivot")
        return self._wrap(row_wise(source, "unpivot", apply))

    melt = unpivot

    def _spark(self, kind: str, apply: Callable[[DataFrame], DataFrame]) -> Self:
        """The operator of a Spark method on each record, which marks the columns that Spark leaves
        unchanged."""
        source = self._collection
        source.check_unambiguous(kind)
        same = same_columns(source.template(), apply)
        unchanged = [name if name in same else None for name in source.columns]
        return self._wrap(row_wise(source, kind, apply, unchanged=unchanged))

    def _subset(self, subset: str | Sequence[str] | None, kind: str) -> list[str]:
        """The data columns that the caller names, by their own spelling."""
        if subset is None:
            return self.columns
        names = [subset] if isinstance(subset, str) else list(subset)
        return [self._collection.column_name(name, f"for {kind}") for name in names]

    if not TYPE_CHECKING:  # so that a type checker knows what there is

        def __getattr__(self, name):
            advice = None if name.startswith("_") else hint(name)
            if name == JVM_FRAME:
                # An operator of a Spark frame asks its other side for this attribute.
                raise AttributeError(
                    "a Spark frame does not change, so its methods cannot take a collection. Begin "
                    "with the collection, as in collection.join(df, ...), or with "
                    "flow.constant(df).join(collection, ...)"
                )
            there = "_collection" in self.__dict__ and name in self.columns
            if advice is not None:
                column = f"; the column is frame[{name!r}]" if there else ""
                raise AttributeError(f"a DiffFrame has no {name}: {advice}{column}")
            if there:
                return self._column(name)
            shown = ", ".join(self.columns) if "_collection" in self.__dict__ else ""
            raise AttributeError(
                f"a DiffFrame has no {name!r}" + (f"; its columns are {shown}" if shown else "")
            )

    def __bool__(self) -> NoReturn:
        raise NotReadableError(
            f"{self!r} changes over time, and is neither true nor false. Is a frame meant, ask "
            "`is not None`; its records at a time, .at(t).count(), or not .at(t).isEmpty()"
        )

    def __int__(self) -> NoReturn:
        self._no_number()

    def __float__(self) -> NoReturn:
        self._no_number()

    def __index__(self) -> NoReturn:
        self._no_number()

    def __len__(self) -> NoReturn:
        self._no_number()

    def __lt__(self, other: object) -> NoReturn:
        self._no_number()

    __le__ = __gt__ = __ge__ = __lt__

    def __iter__(self) -> NoReturn:
        raise NotReadableError(
            f"{self!r} changes over time, so its records cannot be gone through; .at(t).collect() "
            "has those of a time, and inspect(f) shows each update"
        )

    def _no_number(self) -> NoReturn:
        raise NotReadableError(
            f"{self!r} is a collection that changes over time, and not a number; .at(t).count() is "
            "how many records it has at a time"
        )


def _column(name: str | Column) -> Column:
    return column(name) if isinstance(name, str) else name


class NaMethods:
    """The value of `DiffFrame.na`: PySpark's names of the methods that change nulls."""

    def __init__(self, frame: PySparkMethods):
        self._frame = frame

    def __repr__(self) -> str:
        return f"NaMethods[{self._frame!r}]"

    def drop(
        self, how: str = "any", thresh: int | None = None,
        subset: str | Sequence[str] | None = None,
    ) -> Any:
        """See `DiffFrame.dropna`."""
        return self._frame.dropna(how, thresh, subset)

    def fill(self, value: Any, subset: str | Sequence[str] | None = None) -> Any:
        """See `DiffFrame.fillna`."""
        return self._frame.fillna(value, subset)

    def replace(
        self, to_replace: Any, value: Any = _NO_VALUE, subset: str | Sequence[str] | None = None
    ) -> Any:
        """See `DiffFrame.replace`."""
        return self._frame.replace(to_replace, value, subset)

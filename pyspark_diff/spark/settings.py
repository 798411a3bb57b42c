"""Settings of a session that change the value of an expression.

    recorded(s).values == recorded(t).values  ⟹  expressions have the same values in s and t

An operator keeps the record of the session in which its expression was written. It compares the
record when Spark evaluates the expression. `VALUES` lists these settings, and `LEFT_OUT` has a
reason for each setting that is not compared. A test compares both with the settings of Spark.

A session that did not change is recognised by one call of the JVM, which compares all settings.
Over Connect the comparison is one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from pyspark.sql import SparkSession

from pyspark_diff.errors import SettingsChangedError
from pyspark_diff.spark import jvm_context

ZONE = "spark.sql.session.timeZone"
ANSI = "spark.sql.ansi.enabled"
CASE = "spark.sql.caseSensitive"

#: Names without ``spark.sql.``, and the effect of each setting. A version of Spark may lack some.
_VALUES = {
    "session.timeZone": "days, hours and texts of timestamps",
    "ansi.enabled": "overflow, casts, divisions by zero and missing elements: an error or a value",
    "caseSensitive": "the column or field that a name means",
    "timestampType": "the type of TIMESTAMP literals, casts and to_timestamp",
    "decimalOperations.allowPrecisionLoss": "digits of decimal products and quotients",
    "legacy.decimal.retainFractionDigitsOnTruncate": "digits of decimals that have no room",
    "legacy.literal.pickMinimumPrecision": "the precision of whole numbers beside decimals",
    "legacy.allowNegativeScaleOfDecimal": "the scale of large decimal literals",
    "legacy.exponentLiteralAsDecimal.enabled": "1E-3 as a decimal or a double",
    # The parser of SQL text.
    "ansi.doubleQuotedIdentifiers": "\"a\" as a column or a text",
    "parser.escapedStringLiterals": "backslashes in text and patterns",
    "parser.quotedRegexColumnNames": "names in backticks as patterns",
    "parser.singleCharacterPipeOperator.enabled": "the operator | as a pipe",
    "legacy.consecutiveStringLiterals.enabled": "'a''b' as ab or a'b",
    "legacy.bangEqualsNot": "where ! may stand for NOT",
    "legacy.fromDayTimeString.enabled": "interval literals",
    "legacy.interval.enabled": "the type of intervals",
    "legacy.identifierClause": "the meaning of IDENTIFIER()",
    "variable.substitute": "whether ${name} is replaced",
    # The function, column or type that a name means.
    "functionResolution.sessionOrder": "built-in or session functions first",
    "defaultPath": "where functions are looked up",
    "path.enabled": "where functions are looked up",
    "legacy.persistentCatalogFirst": "the function that a name with a dot means",
    "legacy.allowUdfParameterToShadowParameterlessFunction": "names in SQL functions",
    "analyzer.sqlFunctionResolution.applyConfOverrides": "settings inside of SQL functions",
    "assumeAnsiFalseIfNotPersisted.enabled": "ANSI mode inside of old SQL functions",
    "lateralColumnAlias.enableImplicitResolution": "an alias of the same select as a column",
    "analyzer.preferColumnOverLcaInArrayIndex": "an alias of the same select as a column",
    "stableDerivedColumnAlias.enabled": "names of columns without an alias",
    "preserveCharVarcharTypeInfo": "casts to char and varchar",
    "legacy.charVarcharAsString": "casts to char and varchar",
    "legacy.noCharPaddingInPredicate": "spaces at the end of char values in comparisons",
    # Dates and times as text.
    "legacy.timeParserPolicy": "texts that to_date, to_timestamp and date_format read and write",
    "legacy.csv.enableDateTimeParsingFallback": "dates that from_csv reads",
    "legacy.json.enableDateTimeParsingFallback": "dates that from_json reads",
    "legacy.typeCoercion.datetimeToString.enabled": "a date compared with a text",
    "avro.datetimeRebaseModeInRead": "old dates that from_avro reads",
    "legacy.avro.allowIncompatibleSchema": "types that from_avro takes for others",
    # Text.
    "icu.caseMappings.enabled": "upper, lower and initcap",
    "chunkBase64String.enabled": "line ends in base64",
    "function.concatBinaryAsString": "concat of binary",
    "function.eltOutputAsString": "elt of binary",
    "legacy.lpadRpadAlwaysReturnString": "lpad and rpad of binary",
    "legacy.castComplexTypesToString.enabled": "maps, structs and arrays cast to text",
    "legacy.codingErrorAction": "characters that encode and decode cannot map",
    "legacy.javaCharsets": "the character sets of encode and decode",
    "legacy.truncateForEmptyRegexSplit": "split by nothing",
    "legacy.allowZeroIndexInFormatString": "%0$ in format_string",
    # Arrays, maps, nulls and hashes.
    "mapKeyDedupPolicy": "a key that a map has twice",
    "mapZipWithUsesJavaCollections": "keys that map_zip_with takes for equal",
    "legacy.disableMapKeyNormalization": "-0.0 as the key of a map",
    "legacy.createEmptyCollectionUsingStringType": "the type of array() and map()",
    "legacy.negativeIndexInArrayInsert": "array_insert from the end",
    "legacy.sizeOfNull": "size(NULL)",
    "legacy.nullInEmptyListBehavior": "NULL IN ()",
    "legacy.followThreeValuedLogicInArrayExists": "exists over nulls",
    "legacy.allowNullComparisonResultInArraySort": "array_sort with a function that gives null",
    "legacy.collationAwareHashFunctions": "hash and xxhash64 of collated text",
    # JSON, variants, XML and Protobuf.
    "columnNameOfCorruptRecord": "the field of from_json and from_csv for damaged records",
    "json.enableExactStringParsing": "numbers and objects that from_json reads as text",
    "json.enablePartialResults": "from_json of records that are damaged in part",
    "legacy.json.allowEmptyString.enabled": "from_json of an empty text",
    "jsonGenerator.ignoreNullFields": "nulls in to_json",
    "variant.allowDuplicateKeys": "parse_json of a key that comes twice",
    "variant.validateUnicodeInJsonParsing": "parse_json of broken text",
    "xml.variant.respectInferSchema": "from_xml to a variant",
    "legacy.useLegacyXMLParser": "from_xml",
    "function.protobufExtensions.enabled": "fields that from_protobuf reads",
    # Functions in Python.
    "execution.pythonUDF.arrow.enabled": "how results of another type are converted",
    "execution.pythonUDF.arrow.legacy.fallbackOnUDT": "the same, of user-defined types",
    "execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "whole numbers given for decimals",
    "execution.pythonUDF.pandas.preferIntExtensionDtype": "whole numbers with nulls in pandas",
    "execution.pandas.convertToArrowArraySafely": "results that have no room: an error or a value",
    "execution.pyspark.binaryAsBytes": "bytes or bytearray as arguments",
    "legacy.execution.pythonUDF.pandas.conversion.enabled": "how results are converted",
}
VALUES = {f"spark.sql.{name}": changes for name, changes in _VALUES.items()}

#: Prefixes of the names of settings that are not compared, by the reason.
LEFT_OUT = {
    "it changes how a query runs, and not its values": """
        adaptive. alwaysInline analyzer.canonicalization analyzer.max analyzer.single auto
        broadcast bucketing. cache cartesian cbo. classic. codegen. columnVector connect.
        constraintPropagation cteRecursionAnchor exchange. execution. inMemory join.
        json.useUnsafeRow lazySetOperator leafNode legacy.bucketed legacy.inlineCTE limit.
        maxBroadcast maxConcurrent maxSingle objectHash optimize orderingAware parser.manage
        parser.parserDfa pipelines. planner. pyspark.udf.profiler queryExecution requireAll
        resultQuery session.localRelation sessionWindow. shuffle sort statistics.
        streaming. subexpression subquery. thrift types.framework unionOutput useCommonExpr
        variant.pushVariant window. windowExec""",
    "it changes texts for people": """
        binaryOutputStyle cli. dataFrameQuery dataframeCache debug error. event. expressionTree
        extendedExplain legacy.emptyCurrentDB legacy.keepCommand legacy.raiseError lightweight
        maxMetadata maxPlanString metadataCache nameResolution planChange pyspark.jvm
        pyspark.plotting pyspark.worker redaction repl. stackTraces ui.
        spark.python.sql.dataFrameDebugging""",
    "it changes reading and writing: rows come from frames of the user": """
        addPartition artifact. avro. charAsVarchar csv. dataSource. dropTable execution.arrow
        fileSource files insert json.filterPushdown jsonGenerator.writeNull legacy.addSingle
        legacy.allowEmptySchema legacy.allowNonEmpty legacy.createHive legacy.dataFrameWriter
        legacy.db2 legacy.extraOptions legacy.keepPartition legacy.mssql legacy.mysql
        legacy.notReserve legacy.nullValueWritten legacy.oracle legacy.parquet legacy.parseNull
        legacy.pathOption legacy.postgres legacy.readFile legacy.replaceDatabricks
        legacy.respectNullability legacy.skipType legacy.useV1 mergeNested orc. parquet.
        pyspark.dataSource python.filterPushdown readSideChar runSQLOnFiles scriptTransformation
        sources. storeAssignment timeTravel truncateTable udt. variant.allowReading
        variant.forceShredding variant.inferShredding variant.shredding variant.write""",
    "it is about catalogs and views, which expressions do not read": """
        catalog collation.objectLevel collation.schemaLevel defaultCa defaultColumn defaultSize
        defaultUrl extensions globalTemp hive. legacy.allowAutoGenerated legacy.allowSession
        legacy.allowTemp legacy.blockCreate legacy.session legacy.setCommand legacy.storeAnalyzed
        legacy.useCurrent legacy.v1Identifier legacy.view maven. view. warehouse""",
    "it makes an expression valid or an error, and changes no value": """
        allowNamed analyzer.allowSubquery analyzer.fail analyzer.strict
        ansi.enforceReserved collation.allowInMap crossJoin geospatial legacy.allowHash
        legacy.allowUntyped legacy.doLoose operatorPipe timeType""",
    "it is about joins, sets, groups, orders and common tables, which are operators here": """
        analyzer.dontDeduplicate analyzer.expandTag analyzer.lowerEmpty analyzer.scalarSubquery
        analyzer.subqueryAlias analyzer.unionIs analyzer.uniqueNecessary ansi.relationPrecedence
        cteRecursionLevel cteRecursionRow cteRelation enforceTypeCoercionBeforeUnion groupBy
        legacy.allowParameterless legacy.allowStar legacy.cte legacy.dataset
        legacy.execution.pandas.grouped legacy.execution.pythonUDTF legacy.grouping
        legacy.histogram legacy.inSubquery legacy.integerGrouping legacy.parser.having
        legacy.percentileDisc legacy.scalarSubquery legacy.setops legacy.statistical listagg.
        orderByOrdinal parser.eagerEval pivotMax prioritizeOrdinal retainGroup
        runCollationTypeCasts selfJoin transposeMax tvf.""",
    "it is about rows that a client makes, scripts and clocks, which are refused or not met": """
        datetime.java8 legacy.duplicateBetween legacy.earlyEval legacy.parameterSubstitution
        legacy.parseQuery pyspark.infer pyspark.legacy pyspark.toJSON scripting.""",
}


class Settings:
    """The values in a session, by setting. It never changes.

    Parameters
    ----------
    values : mapping of str to str
        By the names in `VALUES`; a setting without a value has ``<undefined>``.
    """

    def __init__(self, values: Mapping[str, str], spark: SparkSession):
        self.values = dict(values)
        # The table of records must not keep a session alive.
        self._session = ref(spark)

    @property
    def session(self) -> SparkSession | None:
        """The session, if it is still in use."""
        return self._session()

    def differing(self, other: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """The settings that differ, with the value here and that of the other.

        A setting that one version of Spark lacks is not compared.
        """
        return {
            name: (value, other[name]) for name, value in self.values.items()
            if name in other and other[name] != value
        }

    def check(self, spark: SparkSession, reads_zone: Callable[[], bool]) -> None:
        """Refuse to evaluate an expression in a session with other settings.

        Parameters
        ----------
        reads_zone : callable
            Whether the expression depends on the time zone. It is called if only the time zone
            differs.

        Raises
        ------
        SettingsChangedError
        """
        now = recorded(spark)
        if now is self:
            return
        changed = self.differing(now.values)
        if changed.keys() == {ZONE} and not reads_zone():
            return
        if changed:
            differences = " and ".join(
                f"{name} = {before}, and the session has {value}"
                for name, (before, value) in changed.items()
            )
            back = ", ".join(f"spark.conf.set({n!r}, {v!r})" for n, (v, _) in changed.items())
            raise SettingsChangedError(
                f"an expression was written with {differences} now. A step with both settings "
                f"would mix their values. Set it back, {back}, or make the dataflow again; a store "
                "can be opened with on_change='rebuild'"
            )


class _Last(NamedTuple):
    """The last record of a session."""

    settings: Settings
    #: All settings of a classic session: an object that changes with them, and a copy from that
    #: time.
    live: Any = None
    copy: Any = None


#: The value of a setting without a value, and the names of settings without a default.
_UNDEFINED = "<undefined>"
_NO_DEFAULT = frozenset(
    f"spark.sql.legacy.{name}" for name in (
        "csv.enableDateTimeParsingFallback", "json.enableDateTimeParsingFallback",
        "nullInEmptyListBehavior",
    )
)

_last: WeakKeyDictionary[SparkSession, _Last] = WeakKeyDictionary()
#: Default values by name, from the JVM.
_unset: dict[str, str] = {}


def recorded(spark: SparkSession) -> Settings:
    """The settings of a session. The same object is returned until one of them changes.

    Examples
    --------
    >>> recorded(spark) is recorded(spark), recorded(spark).values["spark.sql.caseSensitive"]
    (True, 'false')
    """
    last = _last.get(spark)
    live = jvm_context.live_settings(spark) if last is None else last.live
    if live is None:
        copy, values = None, _asked(spark)
    else:
        if last is not None and last.copy.equals(live):
            return last.settings
        copy = jvm_context.copied_map(live)
        values = _read(copy)
    settings = Settings(values, spark)
    if last is not None and settings.values == last.settings.values:
        settings = last.settings
    _last[spark] = _Last(settings, live, copy)
    return settings


def is_on(spark: SparkSession, name: str) -> bool:
    """Whether a setting that is in `VALUES` is ``true``."""
    return recorded(spark).values.get(name, "").lower() == "true"


def _read(settings: Any) -> dict[str, str]:
    """The values in a classic session, from a copy of its settings."""
    if not _unset:
        _unset.update(jvm_context.values_unless_set(VALUES))
    there = jvm_context.only_keys(settings, VALUES)
    return {name: _plain(there.get(name, value)) for name, value in _unset.items()}


def _asked(spark: SparkSession) -> dict[str, str]:
    """The values over Connect, by one request."""
    from pyspark.sql.connect import proto

    client: Any = spark.client
    asked = proto.ConfigRequest.GetOption(keys=list(VALUES))
    answer = client.config(proto.ConfigRequest.Operation(get_option=asked))
    answers = dict(answer.pairs)
    # The server returns no value for a setting without a default, and for an unknown one.
    undefined = {name: _UNDEFINED for name in _NO_DEFAULT if answers.get(name) is None}
    there = {name: _plain(value) for name, value in answers.items() if value is not None}
    return there | undefined


def _plain(value: str) -> str:
    """A value in Spark's form: booleans in lower case."""
    return value.lower() if value.lower() in ("true", "false") else value

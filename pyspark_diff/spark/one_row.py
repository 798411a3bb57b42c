"""The list of the expressions that a program may use, each a function of one row.

    an expression has a class that is not listed  =>  it is refused, by its name

Spark and its extensions add expressions, and the name of an expression does not say which rows it
reads. The list has the expressions of Spark 4.1 to 4.3 without those that Spark marks as not
deterministic, and without clocks, settings of the session, subqueries and variables. Aggregates and
windows have lists of their own, in `aggregate_functions` and `frame.windows`.

Functions of users are in the list. Spark marks those that are not deterministic, and a user
vouches for the rest.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from pyspark_diff.spark import jvm

_SPARK = "org.apache.spark.sql."
_EXPRESSIONS = f"{_SPARK}catalyst.expressions."
#: Aggregates: `pyspark_diff.expressions.aggregate_functions` lists the maintained ones.
_AGGREGATES = f"{_EXPRESSIONS}aggregate."

#: By the part of the package after `_EXPRESSIONS`. A version of Spark need not have each class.
_CLASSES = {
    "": """
        Abs Acos Acosh Add AddMonths AesDecrypt AesEncrypt Alias And ApplyFunctionExpression
        ApproxTopKEstimate ArrayAggregate ArrayAppend ArrayBinarySearch ArrayCompact
        ArrayContains ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll
        ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition ArrayPrepend
        ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap
        ArraysZip Ascii Asin Asinh AssertTrue AtLeastNNonNulls Atan Atan2 Atanh
        AttributeReference BRound Base32 Base64 Between Bin BinaryPad BitLength
        BitmapBitPosition BitmapBucketNumber BitmapCount BitwiseAnd BitwiseCount BitwiseGet
        BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast CastTimestampNTZToLong Cbrt Ceil
        CheckOverflow CheckOverflowInSum Chr Coalesce Collate Collation CollationKey
        CommonExpressionDef CommonExpressionRef Concat ConcatWs Contains Conv
        ConvertTimezone Cos Cosh Cot Crc32 CreateArray CreateMap CreateNamedStruct Csc
        CsvToStructs CumeDist CurrentRow DateAdd DateAddInterval DateAddYMInterval DateDiff
        DateFormatClass DateFromUnixDate DateSub DatetimeSub DayName DayOfMonth DayOfWeek
        DayOfYear DecimalSubtractNoOverflowCheck Decode DenseRank Divide DivideDTInterval
        DivideInterval DivideYMInterval DropField ElementAt Elt Empty2Null Encode EndsWith
        EqualNull EqualNullSafe EqualTo EulerNumber Exp Explode Expm1 Extract
        ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes
        ExtractANSIIntervalMonths ExtractANSIIntervalSeconds ExtractANSIIntervalYears
        ExtractIntervalDays ExtractIntervalHours ExtractIntervalMinutes
        ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears Factorial
        FindInSet Flatten Floor FormatNumber FormatString FromAvro FromProtobuf
        FromUTCTimestamp FromUnixTime GeneratorOuter Get GetArrayItem GetArrayStructFields
        GetJsonObject GetMapValue GetStructField GetTimestamp GreaterThan GreaterThanOrEqual
        Greatest Hex HllSketchEstimate HllUnion Hmac Hour HoursOfTime Hypot ILike If In
        InSet InitCap Inline IntegralDivide IsNaN IsNotNull IsNotUnknown IsNull IsUnknown
        IsValidUTF8 JaroWinkler JsonObjectKeys JsonToStructs JsonTuple KllSketchGetNBigint
        KllSketchGetNDouble KllSketchGetNFloat KllSketchGetQuantileBigint
        KllSketchGetQuantileDouble KllSketchGetQuantileFloat KllSketchGetRankBigint
        KllSketchGetRankDouble KllSketchGetRankFloat KllSketchMergeBigint
        KllSketchMergeDouble KllSketchMergeFloat KllSketchToStringBigint
        KllSketchToStringDouble KllSketchToStringFloat KnownFloatingPointNormalized
        KnownNotContainsNull KnownNotNull KnownNullable Lag LambdaFunction LastDay Lead
        Least Left Length LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like
        LikeAll LikeAny Literal Log Log10 Log1p Log2 Logarithm Lower Luhncheck
        MakeDTInterval MakeDate MakeDecimal MakeInterval MakeTime MakeTimestamp
        MakeTimestampFromDateTime MakeTimestampLTZ MakeTimestampNTZ MakeValidUTF8
        MakeYMInterval MapConcat MapContainsKey MapEntries MapFilter MapFromArrays
        MapFromEntries MapKeys MapSort MapValues MapZipWith Mask Md5 MicrosToTimestamp
        MillisToTimestamp Minute MinutesOfTime Month MonthName MonthsBetween Multiply
        MultiplyDTInterval MultiplyInterval MultiplyYMInterval Murmur3Hash NTile NaNvl
        NamedLambdaVariable NextDay Not NotLikeAll NotLikeAny NthValue NullIf NullIfResult
        NullIfZero Nvl Nvl2 OctetLength Or Overlay ParseToDate ParseToTimestamp ParseUrl
        PercentRank Pi PipeExpression Pmod PosExplode Pow PreciseTimestampConversion
        PythonUDAF PythonUDF Quarter Quote RLike RaiseError Rank RegExpCount RegExpExtract
        RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr Remainder ReplicateRows
        ResolvedCollation Reverse Right Rint Round RoundCeil RoundFloor RowNumber ScalaUDF
        SchemaOfAvro SchemaOfCsv SchemaOfJson SchemaOfXml Sec Second SecondWithFraction
        SecondsOfTime SecondsOfTimeWithFraction SecondsToTimestamp Sentences Sequence Sha1
        Sha2 ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Sinh Size Slice SortArray
        SortOrder SoundEx SpecifiedWindowFrame SplitPart Sqrt Stack StartsWith StringDecode
        StringInstr StringInstrWithOccurrence StringLPad StringLocate StringRPad
        StringRepeat StringReplace StringSpace StringSplit StringSplitSQL StringToMap
        StringTranslate StringTrim StringTrimBoth StringTrimLeft StringTrimRight
        StructsToCsv StructsToJson StructsToXml Substring SubstringIndex Subtract
        SubtractDates SubtractTimes SubtractTimestamps Tan Tanh ThetaDifference
        ThetaIntersection ThetaSketchEstimate ThetaUnion TimeAddInterval TimeBucket TimeDiff
        TimeFromMicros TimeFromMillis TimeFromSeconds TimeToMicros TimeToMillis
        TimeToSeconds TimeTrunc TimeWindow TimestampAdd TimestampAddInterval
        TimestampAddYMInterval TimestampDiff ToAvro ToBinary ToCharacter ToDegrees ToNumber
        ToPrettyString ToProtobuf ToRadians ToTime ToUTCTimestamp ToUnixTimestamp
        TransformExpression TransformKeys TransformValues TruncDate TruncTimestamp TryAdd
        TryAesDecrypt TryDivide TryElementAt TryEval TryMakeInterval TryMakeTimestamp
        TryMakeTimestampFromDateTime TryMod TryMultiply TryParseUrl TrySubtract TryToBinary
        TryToNumber TryUrlDecode TryValidateUTF8 TupleDifferenceDouble
        TupleDifferenceInteger TupleDifferenceThetaDouble TupleDifferenceThetaInteger
        TupleIntersectionDouble TupleIntersectionInteger TupleIntersectionThetaDouble
        TupleIntersectionThetaInteger TupleSketchEstimateDouble TupleSketchEstimateInteger
        TupleSketchSummaryDouble TupleSketchSummaryInteger TupleSketchThetaDouble
        TupleSketchThetaInteger TupleUnionDouble TupleUnionInteger TupleUnionThetaDouble
        TupleUnionThetaInteger TypeOf TypedNullLiteral UnBase32 UnBase64 UnaryMinus
        UnaryPositive UnboundedFollowing UnboundedPreceding Unhex UnixDate UnixMicros
        UnixMillis UnixSeconds UnixTimestamp UnscaledValue UnwrapUDT UpCast UpdateFields
        Upper UrlDecode UrlEncode UserDefinedGenerator ValidateUTF8 VectorCosineSimilarity
        VectorInnerProduct VectorL2Distance VectorNorm VectorNormalize WeekDay WeekOfYear
        WidthBucket WindowExpression WindowSpecDefinition WindowTime With WithField
        XmlToStructs XxHash64 Year YearOfWeek ZeroIfNull ZipWith""",
    "objects.": """
        AssertNotNull CatalystToExternalMap CreateExternalRow DecodeUsingSerializer
        EncodeUsingSerializer ExternalMapToCatalyst GetExternalRowField InitializeJavaBean
        Invoke LambdaVariable MapObjects NewInstance StaticInvoke UnwrapOption
        ValidateExternalType WrapOption""",
    "st.": """
        ST_AsBinary ST_GeogFromWKB ST_GeomFromWKB ST_SetSrid ST_Srid""",
    "variant.": """
        IsValidVariant IsVariantNull ParseJson SchemaOfVariant ToVariantObject
        VariantArrayAppend VariantDelete VariantExplode VariantGet VariantInsert VariantSet
        VariantStripNulls""",
    "xml.": """
        XPathBoolean XPathDouble XPathFloat XPathInt XPathList XPathLong XPathShort
        XPathString""",
}
#: Functions of users that are in other packages, and a check of rows of a table's changes.
_ELSEWHERE = (
    "catalyst.analysis.SQLScalarFunction", "catalyst.analysis.SQLFunctionExpression",
    "hive.HiveSimpleUDF", "hive.HiveGenericUDF",
    "catalyst.analysis.CdcAssertCommitTimestampNotNull",
)
#: Full names of the classes.
ONE_ROW = frozenset(
    f"{_EXPRESSIONS}{part}{name}" for part, names in _CLASSES.items() for name in names.split()
) | {f"{_SPARK}{name}" for name in _ELSEWHERE}


def is_one_row(name: str) -> bool:
    """Whether a class of expressions is listed, by its full name.

    Examples
    --------
    >>> is_one_row("org.apache.spark.sql.catalyst.expressions.Add"), is_one_row("vendor.Add")
    (True, False)
    """
    # An object of Scala has the name of its class and a mark, and so has a class without a name.
    plain = name.partition("$")[0]
    return plain in ONE_ROW or plain.startswith(_AGGREGATES)


def not_one_row(frame: DataFrame) -> tuple[str, ...]:
    """Names of the expressions of a plan that are not listed.

    Over Connect the server reports no classes, so this check refuses nothing there.

    Examples
    --------
    >>> not_one_row(spark.range(1).select(F.abs("id") + 1))
    ()
    >>> not_one_row(spark.range(1).select(F.version()))
    ('version',)
    """
    if not jvm.is_classic_frame(frame):
        return ()
    classes = jvm.expression_classes(jvm.analysed_of(frame))
    wrong = [name for name in classes if not is_one_row(name)]
    return tuple(sorted({jvm.called_name(classes[name], name) for name in wrong}))

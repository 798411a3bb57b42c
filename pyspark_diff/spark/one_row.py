"""The list of the expressions that a program may use, each a function of one row.

    an expression has a class (over Connect: a name) that is not listed  =>  it is refused by name

Spark and its extensions add expressions, and the name of an expression does not say which rows it
reads. The list has the expressions of Spark 4.1 to 4.3 without those that Spark marks as not
deterministic, and without clocks, settings of the session, subqueries and variables. Aggregates and
windows have lists of their own, in `aggregate_functions` and `frame.windows`.

Functions of users are in the list. Spark marks those that are not deterministic, and a user
vouches for the rest.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession

from pyspark_diff.spark import jvm
from pyspark_diff.spark.sent import sent

_SPARK = "org.apache.spark.sql."
_EXPRESSIONS = f"{_SPARK}catalyst.expressions."
#: Aggregates: `pyspark_diff.expressions.aggregate_functions` lists the maintained ones.
_AGGREGATES = f"{_EXPRESSIONS}aggregate."

#: Names of classes, by the part of the package after `_EXPRESSIONS`. A version of Spark may lack
#: some.
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
        FindInSet Flatten Floor FormatNumber FormatString FromAvro
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
        ToPrettyString ToRadians ToTime ToUTCTimestamp ToUnixTimestamp
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
#: Functions of users in other packages, and a check of the rows of a table's changes.
_ELSEWHERE = (
    "catalyst.analysis.SQLScalarFunction", "catalyst.analysis.SQLFunctionExpression",
    "hive.HiveSimpleUDF", "hive.HiveGenericUDF",
    "catalyst.analysis.CdcAssertCommitTimestampNotNull",
)
#: Functions by their names in Spark's registry, for Connect, whose server reports no classes. The
#: operators check aggregates and window functions themselves.
FUNCTIONS = frozenset("""
    ! != % & * + - / < << <= <=> <> = == > >= >> >>> ^ abs acos acosh add_months aes_decrypt
    aes_encrypt aggregate and any any_value approx_count_distinct approx_percentile
    approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate array
    array_agg array_append array_compact array_contains array_distinct array_except
    array_insert array_intersect array_join array_max array_min array_position array_prepend
    array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii
    asin asinh assert_true atan atan2 atanh avg base64 between bigint bin binary bit_and
    bit_count bit_get bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position
    bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or
    boolean bround btrim cardinality case cast cbrt ceil ceiling char char_length
    character_length chr coalesce collate collation collect_list collect_set collect_union
    concat concat_ws contains conv convert_timezone corr cos cosh cot count count_if
    count_min_sketch covar_pop covar_samp crc32 csc cume_dist date date_add date_diff
    date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day
    dayname dayofmonth dayofweek dayofyear decimal decode degrees dense_rank div double e
    element_at elt encode endswith equal_null every exists exp explode explode_outer expm1
    extract factorial filter find_in_set first first_value flatten float floor forall
    format_number format_string from_avro from_base32 from_csv from_json
    from_unixtime from_utc_timestamp from_xml get get_json_object getbit greatest grouping
    grouping_id hash hex histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union
    hll_union_agg hmac hour hypot if ifnull ilike in initcap inline inline_outer instr int
    is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull
    jaro_winkler_similarity json_array_length json_object_keys json_tuple kll_merge_agg_bigint
    kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
    kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
    kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
    kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float kurtosis
    lag last last_day last_value lcase lead least left len length levenshtein like listagg ln
    locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval
    make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter
    map_from_arrays map_from_entries map_keys map_values map_zip_with mask max max_by md5 mean
    measure median min min_by minute mod mode month monthname months_between named_struct nanvl
    negative next_day not nth_value ntile nullif nullifzero nvl nvl2 octet_length or overlay
    parse_json parse_url percent_rank percentile percentile_approx percentile_cont
    percentile_disc pi pmod posexplode posexplode_outer position positive pow power printf
    quarter quote radians raise_error rank reduce regexp regexp_count regexp_extract
    regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat
    replace reverse right rint rlike round row_number rpad rtrim schema_of_avro schema_of_csv
    schema_of_json schema_of_variant schema_of_variant_agg schema_of_xml sec second sentences
    sequence session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum
    sin sinh size skewness slice smallint some sort_array soundex space split split_part sqrt
    st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid stack startswith std stddev
    stddev_pop stddev_samp str_to_map string string_agg struct substr substring substring_index
    sum tan tanh theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
    theta_sketch_estimate theta_union theta_union_agg time time_bucket time_diff
    time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc timestamp timestamp_micros timestamp_millis timestamp_seconds
    tinyint to_avro to_base32 to_binary to_char to_csv to_date to_json to_number
    to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp
    to_varchar to_variant_object to_xml transform transform_keys transform_values translate
    trim trunc try_add try_aes_decrypt try_avg try_divide try_element_at try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply
    try_parse_json try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number
    try_to_time try_to_timestamp try_url_decode try_validate_utf8 try_variant_array_append
    try_variant_get try_variant_insert try_variant_set tuple_difference_double
    tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_intersection_double
    tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_sketch_estimate_double
    tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer
    tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double
    tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis
    unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 var_pop var_samp
    variance variant_array_append variant_delete variant_explode variant_explode_outer
    variant_get variant_insert variant_set variant_strip_nulls vector_avg
    vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm
    vector_normalize vector_sum weekday weekofyear when width_bucket window window_time xpath
    xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short
    xpath_string xxhash64 year zeroifnull zip_with | || ~
""".split())
#: A call in SQL text.
_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
#: The class of a function in Spark's description of its registry.
_BUILT_IN = re.compile(r"^Class:\s+org\.apache\.spark\.sql\.catalyst\.")
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
    # The name of a Scala object is that of its class and a mark, as for an anonymous class.
    plain = name.partition("$")[0]
    return plain in ONE_ROW or plain.startswith(_AGGREGATES)


def not_one_row(frame: DataFrame) -> tuple[str, ...]:
    """Names of the expressions of a plan that are not listed.

    Over Connect the function compares names of functions, and each unlisted name takes one or two
    requests.

    Examples
    --------
    >>> not_one_row(spark.range(1).select(F.abs("id") + 1))
    ()
    >>> not_one_row(spark.range(1).select(F.version()))
    ('version',)
    """
    if not jvm.is_classic_frame(frame):
        request = sent(frame)
        called = {name.lower() for text in request.texts for name in _CALL.findall(text)}
        unlisted = (request.functions | called) - FUNCTIONS
        return tuple(name for name in sorted(unlisted) if _is_built_in(frame.sparkSession, name))
    classes = jvm.expression_classes(jvm.analysed_of(frame))
    wrong = [name for name in classes if not is_one_row(name)]
    return tuple(sorted({jvm.called_name(classes[name], name) for name in wrong}))


def _is_built_in(spark: SparkSession, name: str) -> bool:
    """Whether a function is built into Spark; users vouch for their own functions."""
    quoted = f"`{name}`"
    if not spark.catalog.functionExists(quoted):
        return False  # a word of SQL, or a function of the protocol without a name in SQL
    described = spark.sql(f"DESCRIBE FUNCTION {quoted}").collect()
    return any(_BUILT_IN.match(row[0]) for row in described)

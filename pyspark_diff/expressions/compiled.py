"""Column expressions as formulas that need no Spark, if their results are known exactly.

    compiled(tree, inputs) is not None  ⟹  its value is, bit for bit, the value of Spark

An expression with special rules in Spark has no formula, and Spark evaluates it: floats of 32 bits,
decimals as doubles, rounded decimals, text as numbers, a collation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.errors import UnsupportedTypeError
from pyspark_diff.expressions.tree import Alias, Attribute, Cast, Literal, Tree
from pyspark_diff.kernels import calendar
from pyspark_diff.kernels.arrow_expression import (
    Apply,
    ArrowConstant,
    ArrowExpression,
    Field,
)
from pyspark_diff.spark.data_types import arrow_type

_BOOLEAN, _LONG, _NULL, _STRING = T.BooleanType(), T.LongType(), T.NullType(), T.StringType()
_DOUBLE = T.DoubleType()
_DATE, _INSTANT, _MOMENT = T.DateType(), T.TimestampType(), T.TimestampNTZType()

#: Integers, the narrow ones first.
_INTEGERS: tuple[T.DataType, ...] = (T.ByteType(), T.ShortType(), T.IntegerType(), _LONG)
#: Types whose values Spark and Arrow order in the same way.
_ORDERED: tuple[T.DataType, ...] = (
    *_INTEGERS, T.StringType(), T.DateType(), T.TimestampType(), T.TimestampNTZType()
)
#: Digits of the decimals into which Spark converts whole numbers of a type.
_DIGITS: dict[T.DataType, int] = dict(zip(_INTEGERS, (3, 5, 10, 20)))
#: The largest number of digits of a decimal, and the number of decimal places that Spark keeps at
#: least if the result has more digits.
_MOST, _KEPT = 38, 6
#: The largest number of digits in Arrow's decimals.
_MOST_IN_ARROW = 76
#: The largest number of digits with which Spark negates a decimal without rounding.
_SIGNED = 34
#: Types whose values a choice does not compare.
_CHOSEN = (T.BooleanType, T.FloatType, T.DoubleType, T.DecimalType, T.BinaryType)

#: Time zones of the session in which the fields of a timestamp follow from its microseconds alone.
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00"})
#: Functions of timestamps whose result depends on the time zone of the session.
_ZONED = frozenset({
    "+", "-", "date_trunc", "trunc", "datediff", "year", "quarter", "month", "day", "hour",
    "minute", "second",
})

#: The key in the metadata of columns whose text Spark pads before a comparison.
_PADDED = "__CHAR_VARCHAR_TYPE_STRING"


@dataclass(frozen=True)
class CompiledExpression:
    """A formula, and the Spark type of its result.

    Parameters
    ----------
    written : bool
        Whether the expression is a literal.
    """

    formula: ArrowExpression
    kind: T.DataType
    written: bool = False

    @property
    def has_decimals(self) -> bool:
        """Whether the formula computes with decimals or compares them."""
        return _has_decimals(self.formula)

    @property
    def reads_zone(self) -> bool:
        """Whether a value depends on the session's time zone."""
        return _reads_zone(self.formula)


def _has_decimals(formula: ArrowExpression) -> bool:
    return isinstance(formula, Apply) and any(
        pa.types.is_decimal(argument.kind) or _has_decimals(argument)
        for argument in formula.arguments
    )


def _reads_zone(formula: ArrowExpression) -> bool:
    if not isinstance(formula, Apply):
        return False
    times = any(pa.types.is_temporal(part.kind) for part in (formula, *formula.arguments))
    zoned = formula.function in _ZONED or formula.function in ("cast", "date")
    return zoned and times or any(map(_reads_zone, formula.arguments))


class _NoFormula(Exception):
    """There is no formula for the expression."""


def compiled(
    tree: Tree,
    inputs: T.StructType,
    *,
    ansi: bool,
    qualified: Mapping[tuple[str | None, str], T.StructField] | None = None,
    any_case: bool = False,
    zone: str = "",
) -> CompiledExpression | None:
    """The formula of an expression.

    Parameters
    ----------
    tree : Tree
        An expression that Spark has accepted, so this function does not check it.
    inputs : StructType
        The columns of the input.
    ansi : bool
        Whether an integer overflow is an error in Spark, its default, or wraps around.
    qualified : mapping of (str or None, str) to StructField, optional
        Columns by their alias and their name under it; handles have no alias.
    any_case : bool
        Whether names match in any case. Then no two columns have one name.
    zone : str
        The time zone of the session. Without UTC as the zone, Spark evaluates the functions that
        depend on it.

    Returns
    -------
    CompiledExpression or None
        None if Spark has to evaluate it.

    Examples
    --------
    >>> from pyspark_diff.expressions.tree import tree_of
    >>> inputs = T.StructType.fromDDL("n int, x float")
    >>> found = compiled(tree_of(F.col("n") + 1), inputs, ansi=True)
    >>> str(found.formula), found.kind
    ('(n + 1)', IntegerType())
    >>> compiled(tree_of(F.col("x") + 1), inputs, ansi=True) is None
    True
    """
    try:
        compiler = _Compiler(inputs, ansi, qualified or {}, any_case, zone in _UTC)
        result = compiler.compiled(tree)
    except (_NoFormula, UnsupportedTypeError):
        return None
    if isinstance(result.formula, ArrowConstant) and (result.kind == _NULL or _is_interval(result)):
        return None
    return result


class _Compiler:
    def __init__(
        self,
        inputs: T.StructType,
        ansi: bool,
        qualified: Mapping[tuple[str | None, str], T.StructField],
        any_case: bool,
        utc: bool,
    ):
        plain: dict[tuple[str | None, str], T.StructField] = {
            (None, field.name): field for field in inputs.fields
        }
        self._ansi, self._utc = ansi, utc
        self._fields = {**plain, **qualified}
        self._lowered = {
            (alias and alias.lower(), name.lower()): field
            for (alias, name), field in self._fields.items()
        } if any_case else {}

    def compiled(self, tree: Tree) -> CompiledExpression:
        if isinstance(tree, Attribute):
            field = self._field(tree)
            return CompiledExpression(Field(field.name, arrow_type(field.dataType)), field.dataType)
        if isinstance(tree, Literal):
            constant = ArrowConstant(tree.value, arrow_type(tree.kind))
            return CompiledExpression(constant, tree.kind, written=True)
        if isinstance(tree, Alias):
            return self.compiled(tree.child)
        if isinstance(tree, Cast):
            value = self.compiled(tree.child)
            self._check_zone([value.kind, tree.kind] if value.kind != tree.kind else [])
            return replace(_cast(value, tree.kind), written=False)
        if tree.name not in _RULES:
            raise _NoFormula
        arguments = [self.compiled(argument) for argument in tree.arguments]
        result = _RULES[tree.name](tree.name, arguments)
        if tree.name in _ZONED:
            self._check_zone([result.kind, *(argument.kind for argument in arguments)])
        if isinstance(result.formula, Apply) and result.formula.checked and not self._ansi:
            raise _NoFormula
        if not result.formula.columns:
            # Spark folds it into a constant, and does not evaluate it without rows.
            raise _NoFormula
        return result

    def _check_zone(self, kinds: Sequence[T.DataType]) -> None:
        if _INSTANT in kinds and not self._utc:
            raise _NoFormula

    def _field(self, named: Attribute) -> T.StructField:
        alias, name = named.qualifier, named.name
        field = self._fields.get((alias, name))
        if field is None:
            field = self._lowered.get((alias and alias.lower(), name.lower()))
        if field is None or _PADDED in (field.metadata or {}):
            raise _NoFormula
        return field


def _apply(
    name: str, arguments: Sequence[CompiledExpression], kind: T.DataType
) -> CompiledExpression:
    applied = Apply(name, tuple(a.formula for a in arguments), arrow_type(kind))
    return CompiledExpression(applied, kind)


def _arithmetic(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    _count(arguments, 2)
    if any(map(_is_interval, arguments)):
        return _shifted(name, *arguments)
    if any(value.kind == _DOUBLE for value in arguments):
        return _apply(name, [_as(value, _DOUBLE) for value in arguments], _DOUBLE)
    if any(isinstance(value.kind, T.DecimalType) for value in arguments):
        return _decimal_arithmetic(name, *[_as_decimal(value) for value in arguments])
    kind = _widest(arguments)
    return _apply(name, [_as(a, kind) for a in arguments], kind)


def _quotient(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    """A quotient of doubles and whole numbers, which Spark converts to doubles.

    Spark evaluates the divisor first, and a formula the dividend. So none of them may fail.
    """
    _count(arguments, 2)
    decimals = any(isinstance(value.kind, T.DecimalType) for value in arguments)
    doubles = any(value.kind == _DOUBLE for value in arguments)
    if decimals and not doubles or any(value.formula.fails for value in arguments):
        raise _NoFormula
    return _apply(name, [_as(value, _DOUBLE) for value in arguments], _DOUBLE)


def _rounding(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    if [value.kind for value in arguments] != [_DOUBLE]:
        raise _NoFormula
    return _apply(name, arguments, _LONG)


def _is_interval(value: CompiledExpression) -> bool:
    return isinstance(value.kind, T.DayTimeIntervalType)


def _shifted(
    name: str, value: CompiledExpression, by: CompiledExpression
) -> CompiledExpression:
    """A timestamp plus or minus a literal interval of days and times."""
    if name == "+" and _is_interval(value):
        value, by = by, value
    content = by.formula.content if isinstance(by.formula, ArrowConstant) else None
    if name not in ("+", "-") or content is None or value.kind not in (_INSTANT, _MOMENT):
        raise _NoFormula
    return _apply(name, [value, by], value.kind)


def _decimal_arithmetic(
    name: str, a: CompiledExpression, b: CompiledExpression
) -> CompiledExpression:
    """Sums and products of decimals that Spark does not round.

    If the result would need more than 38 digits, Spark keeps at least six decimal places, and the
    value has to fit.
    """
    kinds = [value.kind for value in (a, b) if isinstance(value.kind, T.DecimalType)]
    if name == "*":
        scale, digits = sum(k.scale for k in kinds), sum(k.precision for k in kinds) + 1
    else:
        scale = max(k.scale for k in kinds)
        digits = scale + 1 + max(k.precision - k.scale for k in kinds)
    if digits <= _MOST:
        return _apply(name, [a, b], T.DecimalType(digits, scale))
    places = max(_MOST - (digits - scale), min(scale, _KEPT))
    if scale > places or digits > _MOST_IN_ARROW:
        raise _NoFormula
    kind = T.DecimalType(_MOST, scale)
    wide = [
        Apply("cast", (value.formula,), pa.decimal256(k.precision, k.scale))
        for value, k in zip((a, b), kinds)
    ]
    exact = Apply(name, tuple(wide), pa.decimal256(digits, scale))
    return CompiledExpression(Apply("fit", (exact,), arrow_type(kind)), kind)


def _as_decimal(value: CompiledExpression) -> CompiledExpression:
    """A number converted as in Spark's operations with decimals: a literal has the digits that it
    needs."""
    if isinstance(value.kind, T.DecimalType):
        return value
    if value.kind not in _INTEGERS:
        raise _NoFormula
    digits = _DIGITS[value.kind]
    formula = value.formula
    if value.written and isinstance(formula, ArrowConstant) and formula.content is not None:
        digits = len(str(abs(int(formula.content))))
    return _as(value, T.DecimalType(digits, 0))


def _sign(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    _count(arguments, 1)
    kind = arguments[0].kind
    if not isinstance(kind, (T.DecimalType, T.DoubleType)):
        kind = _widest(arguments)
    elif isinstance(kind, T.DecimalType) and kind.precision > _SIGNED:
        raise _NoFormula
    return _apply(name, arguments, kind)


def _division(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    """Division by a constant that is never an error, and `div` by any expression."""
    _count(arguments, 2)
    kind = _LONG if name == "div" and _widest(arguments) else _widest(arguments)
    value, divisor = arguments[0], arguments[1].formula
    by = divisor.content if isinstance(divisor, ArrowConstant) else None
    if name == "div" and not isinstance(divisor, ArrowConstant):
        return _apply("div by", [_as(a, _LONG) for a in arguments], _LONG)
    if name == "%" and by == -1:
        by = 1
    if by is None or by in (0, -1) or isinstance(by, str) or name == "pmod" and by < 0:
        raise _NoFormula
    constant = CompiledExpression(ArrowConstant(by, arrow_type(kind)), kind)
    return _apply(name, [_as(value, kind), constant], kind)


def _comparison(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    _count(arguments, 2)
    if any(isinstance(value.kind, T.DecimalType) for value in arguments) and not any(
        value.kind == _DOUBLE for value in arguments
    ):
        # In comparisons, unlike choices, a literal whole number has the digits that it needs.
        arguments = [_as_decimal(a) if a.kind in _INTEGERS else a for a in arguments]
    kind = _common(arguments)
    if not _is_ordered(kind) and kind not in (_BOOLEAN, _DOUBLE):
        raise _NoFormula
    return _apply(name, [_as(a, kind) for a in arguments], _BOOLEAN)


def _logic(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    _count(arguments, 1 if name == "not" else 2)
    return _apply(name, [_as(a, _BOOLEAN) for a in arguments], _BOOLEAN)


def _null_test(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    _count(arguments, 1)
    return _apply(name, arguments, _BOOLEAN)


def _choice(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    kind = _common(arguments)
    if kind not in _ORDERED and not isinstance(kind, _CHOSEN):
        raise _NoFormula
    return _apply(name, [_as(a, kind) for a in arguments], kind)


def _extreme(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    kind = _common(arguments)
    if not _is_ordered(kind) and kind != _DOUBLE:
        raise _NoFormula
    return _apply(name, [_as(a, kind) for a in arguments], kind)


def _case(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    conditions, values = arguments[:-1:2], [*arguments[1::2], arguments[-1]]
    chosen = _choice(name, values)
    branches: list[CompiledExpression] = []
    for condition, value in zip(conditions, values):
        branches += [_as(condition, _BOOLEAN), _as(value, chosen.kind)]
    return _apply(name, [*branches, _as(values[-1], chosen.kind)], chosen.kind)


def _membership(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    kind = _common(arguments)
    operands = [_as(a, kind) for a in arguments]
    # A literal that needs rounding is no constant any more.
    constant = all(isinstance(a.formula, ArrowConstant) for a in operands[1:])
    if len(operands) < 2 or not constant or not _is_ordered(kind):
        raise _NoFormula
    return _apply(name, operands, _BOOLEAN)


def _search(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    """Whether a text contains a literal part, or matches a literal pattern."""
    _count(arguments, 2)
    if any(value.kind != _STRING for value in arguments):
        raise _NoFormula
    part = arguments[1].formula
    if not isinstance(part, ArrowConstant) or not isinstance(part.content, str):
        raise _NoFormula
    if name == "like" and "\\" in part.content:
        raise _NoFormula
    return _apply(name, arguments, _BOOLEAN)


def _substring(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    """A substring by a literal position from the beginning and a literal length."""
    _count(arguments, 3)
    first, length = (value.formula for value in arguments[1:])
    if arguments[0].kind != _STRING or not (
        isinstance(first, ArrowConstant) and isinstance(first.content, int)
        and isinstance(length, ArrowConstant) and isinstance(length.content, int)
    ):
        raise _NoFormula
    if first.content < 1 or length.content < 0:
        raise _NoFormula
    begin = first.content - 1
    ends = [ArrowConstant(at, pa.int64()) for at in (begin, begin + length.content)]
    return CompiledExpression(
        Apply(name, (arguments[0].formula, *ends), arrow_type(_STRING)), _STRING
    )


def _of_day(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    _count(arguments, 2 if name == "datediff" else 1)
    return _apply(name, list(map(_as_day, arguments)), T.IntegerType())


def _of_time(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    _count(arguments, 1)
    if arguments[0].kind not in (_INSTANT, _MOMENT):
        raise _NoFormula
    return _apply(name, arguments, T.IntegerType())


def _truncation(name: str, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
    """The start of the calendar unit of a timestamp, as a timestamp, or of a date, as a date."""
    _count(arguments, 2)
    value, written = arguments if name == "trunc" else reversed(arguments)
    text = written.formula.content if isinstance(written.formula, ArrowConstant) else None
    unit = calendar.UNITS.get(text.lower()) if isinstance(text, str) else None
    if unit is None or name == "trunc" and unit not in calendar.DAYS:
        raise _NoFormula
    kind = _DATE if name == "trunc" else _INSTANT
    if name == "trunc":
        value = _as_day(value)
    elif value.kind not in (_INSTANT, _MOMENT):
        raise _NoFormula
    constant = CompiledExpression(ArrowConstant(unit, pa.string()), _STRING)
    return _apply("trunc", [value, constant], kind)


def _as_day(value: CompiledExpression) -> CompiledExpression:
    """A date, or the date of a timestamp."""
    if value.kind == _DATE:
        return value
    if value.kind not in (_INSTANT, _MOMENT) or isinstance(value.formula, ArrowConstant):
        raise _NoFormula
    # Unlike a cast, the function `date` may map different values to one.
    return _apply("date", [value], _DATE)


def _cast(value: CompiledExpression, kind: T.DataType) -> CompiledExpression:
    """An injective cast, or a cast to a date."""
    if kind == _DATE and value.kind in (_INSTANT, _MOMENT):
        return _as_day(value)
    if kind == _INSTANT and value.kind == _MOMENT and not isinstance(value.formula, ArrowConstant):
        return _apply("cast", [value], kind)
    if value.kind in _INTEGERS and kind == T.StringType() or (
        value.kind == _BOOLEAN and kind in _INTEGERS
    ):
        if isinstance(value.formula, ArrowConstant):
            raise _NoFormula
        return _apply("cast", [value], kind)
    if isinstance(kind, T.DecimalType) and not _holds(kind, value):
        raise _NoFormula
    return _as(value, kind)


def _as(value: CompiledExpression, kind: T.DataType) -> CompiledExpression:
    """A value converted to a type that contains all values of its own type."""
    if value.kind == kind:
        return value
    if value.kind == _NULL:
        return CompiledExpression(ArrowConstant(None, arrow_type(kind)), kind)
    if kind == _DOUBLE:
        return _as_double(value)
    if not _holds(kind, value):
        if isinstance(kind, T.DecimalType) and isinstance(value.kind, T.DecimalType):
            return _fitted(value, kind)
        raise _NoFormula
    if isinstance(value.formula, ArrowConstant):
        content = value.formula.content
        if isinstance(kind, T.DecimalType) and content is not None:
            content = Decimal(content)
        return CompiledExpression(ArrowConstant(content, arrow_type(kind)), kind)
    return _apply("cast", [value], kind)


def _as_double(value: CompiledExpression) -> CompiledExpression:
    """A whole number or a literal decimal as the nearest double."""
    decimal = isinstance(value.kind, T.DecimalType)
    if isinstance(value.formula, ArrowConstant) and (decimal or value.kind in _INTEGERS):
        content = None if value.formula.content is None else float(value.formula.content)
        return CompiledExpression(ArrowConstant(content, arrow_type(_DOUBLE)), _DOUBLE)
    if value.kind not in _INTEGERS:
        raise _NoFormula
    return _apply("double", [value], _DOUBLE)


def _fitted(value: CompiledExpression, kind: T.DecimalType) -> CompiledExpression:
    """A decimal with 38 digits: the value is rounded to its scale, and has to fit."""
    assert isinstance(value.kind, T.DecimalType)
    if kind.precision < _MOST:
        raise _NoFormula
    scale = max(value.kind.scale, kind.scale)
    # One digit more, as Arrow returns zero if rounding up overflows.
    digits = value.kind.precision - value.kind.scale + scale + 1
    wide = Apply("cast", (value.formula,), pa.decimal256(digits, scale))
    return CompiledExpression(Apply("fit", (wide,), arrow_type(kind)), kind)


def _holds(kind: T.DataType, value: CompiledExpression) -> bool:
    """Whether a type contains all values of another one, or the literal."""
    if not isinstance(kind, T.DecimalType):
        known = value.kind in _INTEGERS and kind in _INTEGERS
        return known and _INTEGERS.index(value.kind) <= _INTEGERS.index(kind)
    whole = kind.precision - kind.scale
    if isinstance(value.kind, T.DecimalType):
        there = value.kind.precision - value.kind.scale
        return there <= whole and value.kind.scale <= kind.scale
    if isinstance(value.formula, ArrowConstant) and value.kind in _INTEGERS:
        content = value.formula.content
        return content is None or len(str(abs(int(content)))) <= whole
    return _DIGITS.get(value.kind, _MOST + 1) <= whole


def _is_ordered(kind: T.DataType) -> bool:
    return kind in _ORDERED or isinstance(kind, T.DecimalType)


def _widest(values: Sequence[CompiledExpression]) -> T.DataType:
    """The type in which Spark computes with some integers."""
    if not all(value.kind in _INTEGERS for value in values):
        raise _NoFormula
    return max((value.kind for value in values), key=_INTEGERS.index)


def _common(values: Sequence[CompiledExpression]) -> T.DataType:
    """Spark's common type of some values; nulls without a type get the type of the others."""
    typed = [value for value in values if value.kind != _NULL]
    if not typed:
        raise _NoFormula
    kinds = [value.kind for value in typed]
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if _DOUBLE in kinds:
        return _DOUBLE
    if not any(isinstance(kind, T.DecimalType) for kind in kinds):
        return _widest(typed)
    decimals = [
        kind if isinstance(kind, T.DecimalType) else T.DecimalType(_DIGITS[kind], 0)
        for kind in kinds if isinstance(kind, T.DecimalType) or kind in _INTEGERS
    ]
    scale = max(kind.scale for kind in decimals)
    digits = scale + max(kind.precision - kind.scale for kind in decimals)
    if len(decimals) < len(kinds):
        raise _NoFormula
    # With more than 38 digits the scale shrinks.
    return T.DecimalType(min(digits, _MOST), max(0, scale - max(0, digits - _MOST)))


def _count(arguments: Sequence[CompiledExpression], expected: int) -> None:
    # A minus may have a single operand, and other functions have defaults.
    if len(arguments) != expected:
        raise _NoFormula


_RULES: dict[str, Callable[[str, Sequence[CompiledExpression]], CompiledExpression]] = {
    **dict.fromkeys(("+", "-", "*"), _arithmetic),
    **dict.fromkeys(("negative", "abs"), _sign),
    "/": _quotient,
    **dict.fromkeys(("floor", "ceil"), _rounding),
    **dict.fromkeys(("%", "pmod", "div"), _division),
    **dict.fromkeys(("==", "<=>", "<", "<=", ">", ">="), _comparison),
    **dict.fromkeys(("and", "or", "not"), _logic),
    **dict.fromkeys(("isnull", "isnotnull"), _null_test),
    **dict.fromkeys(("least", "greatest"), _extreme),
    "coalesce": _choice,
    "case": _case,
    "in": _membership,
    **dict.fromkeys(("like", "startswith", "endswith", "contains"), _search),
    "substring": _substring,
    **dict.fromkeys(("year", "quarter", "month", "day", "datediff"), _of_day),
    **dict.fromkeys(("hour", "minute", "second"), _of_time),
    **dict.fromkeys(("date_trunc", "trunc"), _truncation),
}

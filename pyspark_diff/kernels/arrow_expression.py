"""Expressions on one row, computed by Arrow for a whole table, with the same results as Spark.

Spark evaluates an operand only if the result depends on it, which matters if it may fail. Here::

    value(formula, table, active)[row]  =  Spark's value, in every row that is active
    an error is raised  ⟺  in some active row Spark evaluates an operand that overflows

Rows that are not active have any value; callers never read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, reduce
from typing import Any, Callable, ClassVar, Sequence, Union

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels import calendar, decimals

#: One value for each row; a scalar is the value of all rows.
Value = Any


def _equal(x: Value, y: Value) -> Value:
    """Equality in which a NaN equals a NaN."""
    same = pc.equal(x, y)
    if pa.types.is_floating(x.type):
        same = pc.or_(same, pc.and_(pc.is_nan(x), pc.is_nan(y)))
    return same


def _less(x: Value, y: Value) -> Value:
    """An order in which a NaN is larger than all other numbers."""
    less = pc.less(x, y)
    if pa.types.is_floating(x.type):
        less = pc.or_(less, pc.and_(pc.invert(pc.is_nan(x)), pc.is_nan(y)))
    return less


def _less_or_equal(x: Value, y: Value) -> Value:
    return pc.invert(_less(y, x)) if pa.types.is_floating(x.type) else pc.less_equal(x, y)


#: Functions of two values that are null if one of them is. They evaluate the second value only if
#: the first is not null.
_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "==": _equal,
    "<": _less,
    "<=": _less_or_equal,
    ">": lambda x, y: _less(y, x),
    ">=": lambda x, y: _less_or_equal(y, x),
    "div by": pc.divide_checked,
    # Its arguments are doubles without a function that fails.
    "/": pc.divide_checked,
    # The divisor is a number that is neither 0 nor -1, so that all quotients fit.
    "div": pc.divide,
    "%": lambda x, n: pc.subtract(x, pc.multiply(pc.divide(x, n), n)),
    "pmod": lambda x, n: _positive(_BINARY["%"](x, n), n),
    # The second value is a constant.
    "like": lambda x, pattern: pc.match_like(x, pattern.as_py()),
    "startswith": lambda x, part: pc.starts_with(x, part.as_py()),
    "endswith": lambda x, part: pc.ends_with(x, part.as_py()),
    "contains": lambda x, part: pc.match_substring(x, part.as_py()),
}

#: Functions that evaluate all their values in every row.
_PLAIN: dict[str, Callable[..., Value]] = {
    "negative": pc.negate_checked,
    "abs": pc.abs_checked,
    "not": pc.invert,
    "year": calendar.year,
    "quarter": calendar.quarter,
    "month": calendar.month,
    "day": calendar.day,
    "date": calendar.day_of,
    "hour": calendar.clock_part("hour", 24),
    "minute": calendar.clock_part("minute", 60),
    "second": calendar.clock_part("second", 60),
    # The result has 32 bits and wraps round.
    "datediff": lambda end, start: pc.subtract(end.cast(pa.int32()), start.cast(pa.int32())),
    "isnull": pc.is_null,
    "isnotnull": pc.is_valid,
    "least": lambda *values: reduce(lambda x, y: _first(_less(y, x), y, x), values),
    "greatest": lambda *values: reduce(lambda x, y: _first(_less(x, y), y, x), values),
    "<=>": lambda x, y: pc.or_(
        pc.fill_null(_equal(x, y), False), pc.and_(pc.is_null(x), pc.is_null(y))
    ),
    # Whole numbers beyond 2**53 are rounded.
    "double": lambda x: pc.cast(x, pa.float64(), safe=False),
    "floor": lambda x: _as_long(pc.floor(x)),
    "ceil": lambda x: _as_long(pc.ceil(x)),
}

#: Functions that fail if the result does not fit. Doubles fail only if they are divided by zero.
CHECKED = frozenset({"+", "-", "*", "/", "div by", "negative", "abs", "fit", "trunc"})
#: All functions.
FUNCTIONS = frozenset({
    *_BINARY, *_PLAIN, "and", "or", "coalesce", "case", "in", "cast", "fit", "substring", "trunc"
})

#: Functions of decimals that may be computed in 64 bits.
_SUMS = frozenset({"+", "-", "*"})
_WORDS = frozenset({"and", "or", "div", "div by"})
#: Functions of `_BINARY` that are written as calls.
_CALLED = frozenset({"pmod", "like", "startswith", "endswith", "contains"})


@dataclass(frozen=True)
class Field:
    """A column of the table.

    Parameters
    ----------
    kind : pyarrow.DataType
        Arrow type of the values; the table's type may differ, for example in the time zone.
    """

    name: str
    kind: pa.DataType
    fails: ClassVar[bool] = False

    @property
    def columns(self) -> frozenset[str]:
        """Columns of the table that it reads."""
        return frozenset({self.name})

    def value(self, table: pa.Table, active: Value | None = None) -> Value:
        """The value in each row."""
        column = table.column(self.name)
        same = column.type == self.kind or pa.types.is_nested(self.kind)
        return column if same else column.cast(self.kind)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ArrowConstant:
    """The same value in each row: an int, float, Decimal, bool or str, or None."""

    content: int | float | Decimal | bool | str | None
    kind: pa.DataType
    fails: ClassVar[bool] = False
    columns: ClassVar[frozenset[str]] = frozenset()

    def value(self, table: pa.Table, active: Value | None = None) -> Value:
        """The value in each row."""
        return pa.scalar(self.content, type=self.kind)

    def __str__(self) -> str:
        if isinstance(self.content, Decimal):
            return f"{self.content:f}"
        if pa.types.is_duration(self.kind):
            return f"{self.content} microseconds"
        return "NULL" if self.content is None else repr(self.content)


@dataclass(frozen=True)
class Apply:
    """A function of other formulas.

    Parameters
    ----------
    function : str
        One of `FUNCTIONS`.
    arguments : tuple of ArrowExpression
        Of the types that the function takes: there is no conversion. The arguments of ``case`` are
        conditions and values in turn, and then the value of all other rows. Those of ``in`` are a
        value and constants. The second argument is a constant for ``div``, ``%`` and ``pmod`` (the
        divisor), for ``like``, ``startswith``, ``endswith`` and ``contains`` (the text to search),
        and for ``trunc`` (a unit of `calendar.UNITS`). For ``substring`` it is the begin, from 0
        on, and the third is the end.
    kind : pyarrow.DataType
        Type of the result.
    """

    function: str
    arguments: tuple["ArrowExpression", ...]
    kind: pa.DataType

    @property
    def checked(self) -> bool:
        """Whether the function itself raises an error for some values."""
        exact = not pa.types.is_floating(self.kind)
        return self.function in CHECKED and (exact or self.function == "/")

    @cached_property
    def fails(self) -> bool:
        """Whether there are rows for which it raises an error."""
        return self.checked or any(a.fails for a in self.arguments)

    @cached_property
    def columns(self) -> frozenset[str]:
        """Columns of the table that it reads."""
        return frozenset[str]().union(*[a.columns for a in self.arguments])

    def value(self, table: pa.Table, active: Value | None = None) -> Value:
        """The value in each row.

        Parameters
        ----------
        table : pyarrow.Table
        active : boolean value, optional
            Rows that count; all rows by default.

        Raises
        ------
        DiffOverflowError
            If an integer does not fit into its type in a row that counts.
        """
        name, arguments = self.function, self.arguments
        if name in _BINARY:
            return self._of_two(table, active, arguments, self.kind)
        if name in ("and", "or"):
            first = arguments[0].value(table, active)
            inner = None
            if arguments[1].fails:
                # The second value is not evaluated if the first decides.
                decides = first if name == "or" else pc.invert(first)
                inner = _narrowed(active, _is_not_true, decides)
            second = arguments[1].value(table, inner)
            return (pc.and_kleene if name == "and" else pc.or_kleene)(first, second)
        if name == "coalesce":
            return self._coalesce(table, active)
        if name == "case":
            return self._case(table, active)
        if name == "in":
            return self._in(arguments[0].value(table, active))
        if name == "cast":
            return pc.cast(arguments[0].value(table, active), self.kind)
        if name == "fit":
            value = self._to_fit(table, active)
            return value if value.type == self.kind else self._checked(self._fit, active, value)
        if name == "substring":
            value, first, end = arguments
            assert isinstance(first, ArrowConstant) and isinstance(end, ArrowConstant)
            return pc.utf8_slice_codeunits(value.value(table, active), first.content, end.content)
        if name == "trunc":
            value, unit = arguments
            assert isinstance(unit, ArrowConstant) and isinstance(unit.content, str)
            text = unit.content
            return self._checked(
                lambda starts: calendar.truncated(starts, text, self.kind), active,
                value.value(table, active),
            )
        return self._checked(_PLAIN[name], active, *[a.value(table, active) for a in arguments])

    def _checked(
        self, function: Callable[..., Value], active: Value | None, first: Value, *rest: Value
    ) -> Value:
        if active is not None and self.checked:
            # Arrow computes nothing from null.
            first = pc.if_else(active, first, pa.scalar(None, first.type))
        try:
            return function(first, *rest)
        except pa.ArrowInvalid as error:
            if "zero" in str(error):
                raise DiffOverflowError(
                    f"{self} divides by zero in some row; leave such rows out, or divide by "
                    "F.when(divisor != 0, divisor)"
                ) from error
            if pa.types.is_temporal(self.kind):
                raise DiffOverflowError(
                    f"the result of {self} leaves the range of {_sql(self.kind)} in some row; "
                    "leave such rows out"
                ) from error
            wider = "'long') or, beyond that, 'decimal(38,0)'"
            if pa.types.is_decimal(self.kind):  # which has no more digits
                wider = "'double')"
            raise DiffOverflowError(
                f"the result of {self} leaves the range of {_sql(self.kind)} in some row; "
                "cast its columns to a wider type, as in "
                f"F.col({min(self.columns)!r}).cast({wider}"
            ) from error

    def _of_two(
        self, table: pa.Table, active: Value | None, sides: Sequence[ArrowExpression],
        kind: pa.DataType,
    ) -> Value:
        """The result for two arguments; in another type if that type is known to have room.

        The arguments are ``sides``, possibly without their casts to the types of the function.
        """
        left, right = sides
        first = left.value(table, active)
        inner = None
        if right.fails and (active is not None or _null_count(first)):
            inner = _narrowed(active, pc.is_valid, first)
        second = right.value(table, inner)
        if self.function in _SUMS and pa.types.is_decimal128(kind):
            result = decimals.computed(self.function, first, second, kind)
            if result is not None:
                return result
        if left is not self.arguments[0]:
            first, second = (
                pc.cast(value, cast.kind) for value, cast in zip((first, second), self.arguments)
            )
        return self._checked(_BINARY[self.function], active, first, second)

    def _to_fit(self, table: pa.Table, active: Value | None) -> Value:
        """The value to fit; already of its own type if that type is known to have room."""
        (inner,) = self.arguments
        if isinstance(inner, Apply) and inner.function in _SUMS:
            sides = [argument.arguments[0] for argument in inner.arguments
                     if isinstance(argument, Apply) and argument.function == "cast"]
            if len(sides) == 2 and inner.kind.scale == self.kind.scale:
                return inner._of_two(table, active, sides, self.kind)
        return inner.value(table, active)

    def _fit(self, value: Value) -> Value:
        """A decimal in a type of fewer digits; halves are rounded away from zero."""
        if value.type.scale > self.kind.scale:
            value = pc.round(value, self.kind.scale, "half_towards_infinity")
        return pc.cast(value, self.kind)

    def _coalesce(self, table: pa.Table, active: Value | None) -> Value:
        values: list[Value] = []
        for argument in self.arguments:
            if self.fails and values:
                active = _narrowed(active, pc.is_null, values[-1])
            values.append(argument.value(table, active))
        return pc.coalesce(*values)

    def _case(self, table: pa.Table, active: Value | None) -> Value:
        cases: list[tuple[Value, Value]] = []
        *branches, otherwise = self.arguments
        for condition, value in zip(branches[::2], branches[1::2]):
            holds = pc.fill_null(condition.value(table, active), False)
            inner = _narrowed(active, _same, holds) if value.fails else None
            cases.append((holds, value.value(table, inner)))
            if self.fails:
                active = _narrowed(active, pc.invert, holds)
        result = otherwise.value(table, active)
        for holds, value in reversed(cases):
            result = pc.if_else(holds, value, result)
        return result

    def _in(self, value: Value) -> Value:
        contents = [a.content for a in self.arguments[1:] if isinstance(a, ArrowConstant)]
        known = pa.array([c for c in contents if c is not None], type=self.arguments[0].kind)
        contained = pc.is_in(value, value_set=known)
        unknown = pc.is_null(value)
        if None in contents:
            unknown = pc.or_(unknown, pc.invert(contained))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), contained)

    def __str__(self) -> str:
        name, texts = self.function, [str(argument) for argument in self.arguments]
        if name in ("cast", "double", "fit"):
            return texts[0]
        if name in _BINARY and name not in _CALLED or name in _WORDS or name == "<=>":
            return f"({texts[0]} {name} {texts[1]})"
        return f"{name}({', '.join(texts)})"


ArrowExpression = Union[Field, ArrowConstant, Apply]

_SQL = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
        "date32[day]": "date"}


def _sql(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    return _SQL[str(kind)]


def column_of(formula: ArrowExpression, table: pa.Table) -> pa.ChunkedArray | pa.Array:
    """The values of a formula as a column.

    Examples
    --------
    >>> import pyarrow as pa
    >>> half = Apply("div", (Field("n", pa.int64()), ArrowConstant(2, pa.int64())), pa.int64())
    >>> column_of(half, pa.table({"n": [7, None, -7]})).to_pylist()
    [3, None, -3]
    """
    if isinstance(formula, Field):
        return table.column(formula.name)
    value = formula.value(table)
    return pa.repeat(value, table.num_rows) if isinstance(value, pa.Scalar) else value


def _as_long(whole: Value) -> Value:
    """Whole doubles as Java converts them to long: the nearest number in its range, 0 for NaN."""
    below, above = (pa.scalar(limit, pa.float64()) for limit in (-(2.0**63), 2.0**63))
    fits = pc.and_(pc.greater_equal(whole, below), pc.less(whole, above))
    limits = pc.if_else(
        pc.less(whole, below), pa.scalar(-(2**63), pa.int64()),
        pc.if_else(pc.greater_equal(whole, above), pa.scalar(2**63 - 1, pa.int64()),
                   pa.scalar(0, pa.int64())))
    inner = pc.if_else(fits, whole, pa.scalar(0.0, pa.float64()))
    return pc.if_else(fits, pc.cast(inner, pa.int64()), limits)


def _null_count(value: Value) -> int:
    """The number of null rows; for a scalar 1 if it is null."""
    return int(not value.is_valid) if isinstance(value, pa.Scalar) else int(value.null_count)


def _narrowed(active: Value | None, test: Callable[[Value], Value], value: Value) -> Value:
    """The active rows in which a value passes a test."""
    passed = test(value)
    return passed if active is None else pc.and_(active, passed)


def _first(better: Value, new: Value, old: Value) -> Value:
    """The new value if it is better than the old value, or the old value is null."""
    return pc.if_else(pc.coalesce(better, pc.is_null(old)), new, old)


def _is_not_true(value: Value) -> Value:
    return pc.invert(pc.fill_null(value, False))


def _same(value: Value) -> Value:
    return value


def _positive(rest: Value, n: Value) -> Value:
    return pc.if_else(pc.less(rest, pa.scalar(0, rest.type)), pc.add(rest, n), rest)

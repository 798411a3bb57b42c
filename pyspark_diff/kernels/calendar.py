"""Parts of dates and timestamps in the proleptic Gregorian calendar, for all days of 32 bits.

Dates are numbers of days and timestamps numbers of microseconds in UTC, both from 1970 on::

    truncated(t, unit)  <=  t  <  the start of the next unit

Null stays null. Arrow's own functions count years in 16 bits.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

#: Microseconds of a day.
DAY = 86_400_000_000
#: Units of a fixed length, in microseconds.
_FIXED = {
    "microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000,
    "hour": 3_600_000_000, "day": DAY,
}
#: Units of whole days.
DAYS = frozenset({"week", "month", "quarter", "year"})
#: The accepted names of units, in lower case.
UNITS = {
    **{unit: unit for unit in (*_FIXED, *DAYS)},
    "dd": "day", "mon": "month", "mm": "month", "yyyy": "year", "yy": "year",
}
#: Days from the first of March of the year 0 to 1970, and days of 400 years.
_EPOCH, _ERA = 719_468, 146_097


def civil(days: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Years, months and days of the month.

    Examples
    --------
    >>> [int(part[0]) for part in civil(np.array([19_782]))]
    [2024, 2, 29]
    """
    era, day = np.divmod(days + _EPOCH, _ERA)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day = day - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153  # from March on
    day = day - (153 * month + 2) // 5 + 1
    month = np.where(month < 10, month + 3, month - 9)
    return year + 400 * era + (month <= 2), month, day


def day_of(moment: Any) -> Any:
    """The dates of timestamps."""
    return _mapped(moment, lambda n: n // DAY, pa.date32())


def truncated(value: Any, unit: str, kind: pa.DataType) -> Any:
    """The starts of the units in which dates or timestamps lie.

    Parameters
    ----------
    value : Array or ChunkedArray
    unit : str
        A value of `UNITS`; for dates one of `DAYS`.
    kind : DataType
        Type of the result.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a start lies before all values of the type.

    Examples
    --------
    >>> truncated(pa.array([19_782], pa.date32()), "quarter", pa.date32()).to_pylist()
    [datetime.date(2024, 1, 1)]
    """
    scale = 1 if pa.types.is_date32(value.type) else DAY

    def start(numbers: Numbers) -> Numbers:
        if unit in _FIXED:
            starts = numbers - numbers % _FIXED[unit]
        else:
            starts = numbers - numbers % scale - _day_of_unit(numbers // scale, unit) * scale
        if np.any(starts > numbers):
            raise pa.ArrowInvalid("overflow")
        return starts

    return _mapped(value, start, kind)


def _day_of_unit(days: Numbers, unit: str) -> Numbers:
    """The number of days from the start of a unit; weeks start on Monday."""
    if unit == "week":
        return (days + 3) % 7
    year, month, day = civil(days)
    if unit == "month":
        return day - 1
    first = month - (month - 1) % 3 if unit == "quarter" else np.ones_like(month)
    return days - _first_of(year, first)


def _first_of(year: Numbers, month: Numbers) -> Numbers:
    """The first day of a month."""
    year = year - (month <= 2)
    era, of_era = np.divmod(year, 400)
    day = (153 * ((month + 9) % 12) + 2) // 5
    return era * _ERA + of_era * 365 + of_era // 4 - of_era // 100 + day - _EPOCH


def year(date: Any) -> Any:
    """The years of dates."""
    return _mapped(date, lambda n: civil(n)[0], pa.int32())


def quarter(date: Any) -> Any:
    """The quarters of dates, from 1 on."""
    return _mapped(date, lambda n: (civil(n)[1] + 2) // 3, pa.int32())


def month(date: Any) -> Any:
    """The months of dates, from 1 on."""
    return _mapped(date, lambda n: civil(n)[1], pa.int32())


def day(date: Any) -> Any:
    """The days of the month of dates, from 1 on."""
    return _mapped(date, lambda n: civil(n)[2], pa.int32())


def clock_part(unit: str, units: int) -> Callable[[Any], Any]:
    """A function from timestamps to the number of a unit inside the next larger unit."""
    length = _FIXED[unit]
    return lambda moment: _mapped(moment, lambda n: n // length % units, pa.int32())


def _mapped(value: Any, function: Callable[[Numbers], Numbers], kind: pa.DataType) -> Any:
    if isinstance(value, pa.ChunkedArray):
        chunks = [_mapped(chunk, function, kind) for chunk in value.chunks]
        return pa.chunked_array(chunks, kind)
    narrow = pa.int32() if pa.types.is_date32(value.type) else pa.int64()
    numbers = value.cast(narrow).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    nulls = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    # A number of more than 32 bits is an error here.
    width = pa.int64() if kind.bit_width == 64 else pa.int32()
    return pa.array(function(numbers), mask=nulls).cast(width).cast(kind)

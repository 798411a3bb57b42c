"""The clock of a query: its current date and time are those of a collection of the dataflow.

    current_date at t  =  the date of the clock's record at t; NULL while it has none
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.query.form import Aggregate, Named, Relation, Scan, SqlExpression, Subquery

#: The remark of `explain_sql`.
NOTE = (
    "current date or time: it is that of the clock, and each tick visits all rows of the clause; "
    "expire_after costs only the rows that leave"
)
#: The name of the clock among the tables of a query.
TABLE = "{clock}"
#: The type of a value of the clock, by the function of SQL.
KINDS = {
    "curdate": "DATE", "current_date": "DATE", "current_timestamp": "TIMESTAMP",
    "now": "TIMESTAMP", "localtimestamp": "TIMESTAMP_NTZ",
}
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


@dataclass
class QueryClock:
    """The values of a clock in the expressions of a query.

    Parameters
    ----------
    column : str
        Its only column.
    """

    column: str
    kind: T.DataType
    _relation: Relation | None = field(default=None, repr=False)

    def value(self, fresh: Callable[[str], str]) -> Subquery:
        """The time of the clock, as a subquery of one row.

        Parameters
        ----------
        fresh : callable
            It returns a new name that begins with a prefix.
        """
        if self._relation is None:
            now, last = fresh("now"), fresh("last")
            self._relation = Aggregate(Scan(TABLE, ((self.column, now),)), (), (
                Named(last, SqlExpression(f"max({now})", columns=frozenset({now}))),
            ))
        return Subquery(fresh("s"), "scalar", self._relation)


def clock_of(struct: T.StructType) -> QueryClock:
    """The clock of a collection with one column.

    Raises
    ------
    SchemaError
        If it has several columns, or one of another type than a date or time.

    Examples
    --------
    >>> clock_of(T.StructType.fromDDL("now date")).column
    'now'
    """
    if len(struct.fields) != 1 or not isinstance(struct.fields[0].dataType, _TIMES):
        raise SchemaError(
            f"the clock of a query has one column, a date or timestamp; this one has "
            f"({struct.simpleString()}). Pass clock=flow.clock(...) of a dataflow whose times are "
            "dates or timestamps"
        )
    return QueryClock(struct.fields[0].name, struct.fields[0].dataType)

"""The forms of aggregate functions: sums, the first in an order, and functions of all values.

For a group ``G``, a multiset of records with multiplicities of either sign, a function has one of
three forms::

    linear       finish(sum of m * f(x) over the records x of G with their multiplicities m)
    ordered      the first record in an order
    collected    a function of the values and their multiplicities, in ascending order

Linear functions of one group share a vector of sums. Ordered and collected functions read
the values with a *positive* multiplicity. `Truth` (the extreme of booleans) and distinct aggregates
do so too. For them, as for `distinct` and `top_k`, a value is absent if it was removed more often
than inserted, and a group is empty if all its values are absent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError, UnsupportedTypeError
from pyspark_diff.kernels import results
from pyspark_diff.spark.calls import Ordering
from pyspark_diff.spark.data_types import arrow_type


@dataclass(frozen=True)
class Argument:
    """The input of an aggregate: a column of the collection that is grouped.

    Parameters
    ----------
    column : int
        Its number among the columns to sum.
    nullable : bool
        Whether nulls may be among its values.
    """

    column: int
    type: T.DataType
    nullable: bool = True


#: The input of ``count(*)``.
RECORD = Argument(-1, T.NullType(), nullable=False)


@dataclass(frozen=True)
class AggregateFunction(ABC):
    """An aggregate function of `agg`, in one of the three forms below.

    Parameters
    ----------
    name : str
        Spark's name of the function.
    """

    name: str
    synonyms: tuple[str, ...] = ()
    #: The number of its arguments; None for any number.
    arity: ClassVar[int | None] = 1
    #: Whether the result may differ if equal arguments count once.
    can_be_distinct: ClassVar[bool] = True
    #: Whether equal arguments always count once.
    counts_once: ClassVar[bool] = False
    #: The largest number of constants after the arguments.
    constants: ClassVar[int] = 0
    #: The result over no values.
    empty: ClassVar[Any] = None
    #: The argument whose null excludes a record.
    decisive: ClassVar[int] = 0
    #: Whether the columns of WITHIN GROUP are arguments too, after the others.
    takes_order: ClassVar[bool] = False
    #: Whether nulls of the argument count, so that a FILTER has to exclude whole records.
    counts_nulls: ClassVar[bool] = False

    def with_constants(self, *constants: Any) -> AggregateFunction:
        """The function with its constants."""
        return self

    def ordered(
        self, order: Sequence[Ordering], types: Sequence[T.DataType]
    ) -> AggregateFunction:
        """The function over values in the order of WITHIN GROUP.

        Raises
        ------
        SchemaError
            If the function has no such order.
        """
        raise SchemaError(
            f"{self.name} has WITHIN GROUP (ORDER BY ...). It is not maintained in an order of its "
            "own. Remove the order, or use min_by or max_by"
        )

    def in_session(self, ansi: bool) -> AggregateFunction:
        """The function in a session, in ANSI mode or not."""
        return self

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        """The input expressions, from the arguments and their types."""
        return list(arguments)


@dataclass(frozen=True)
class LinearFunction(AggregateFunction):
    """A function of sums over the records."""

    #: Whether windows of rows have room for the sums of each row.
    over_windows: ClassVar[bool] = True

    def result(
        self, arguments: Sequence[Argument], kind: T.DataType, *, exact: bool
    ) -> results.Result:
        """The sums of a group, and the formula from the sums to the value.

        Parameters
        ----------
        kind : DataType
            The type of the result.
        exact : bool
            Whether to sum floats exactly and round once.

        Raises
        ------
        UnsupportedTypeError
            If values of the arguments' types cannot be summed.
        """
        formula = self._over(arguments, arrow_type(kind), exact)
        if formula is None:
            shown = ", ".join(argument.type.simpleString() for argument in arguments)
            raise UnsupportedTypeError(
                f"{self.name} of a column of type {shown} is not supported; cast it to a number"
            )
        return formula

    @abstractmethod
    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result | None:
        """`result` for a type of Arrow; None if the argument's type has no sums."""


@dataclass(frozen=True)
class OrderedFunction(AggregateFunction):
    """The first argument of the first record in an order.

    Parameters
    ----------
    greatest : bool
        Whether the last record in the order counts as the first.
    """

    greatest: bool = False
    can_be_distinct = False

    @property
    @abstractmethod
    def order(self) -> tuple[tuple[int, bool], ...]:
        """The numbers of the arguments in the order, and whether each is descending.

        Records with a null in the first argument of the order do not count.
        """

    @property
    def from_back(self) -> bool:
        """Whether the last record in this order counts as the first."""
        return False


@dataclass(frozen=True)
class CollectedFunction(AggregateFunction):
    """A function of all non-null values of a group, which the operator keeps."""

    @abstractmethod
    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        """The result over values and their multiplicities, in ascending order."""

    def __call__(self, key: Any, values: list[tuple[tuple[Any, ...], int]]) -> list[tuple[Any]]:
        """The function in the form of `reduce`."""
        return [(self.collect([(v, count) for (v, *_), count in values if count > 0]),)]

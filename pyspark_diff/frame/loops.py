"""Loops as users write them: `iterate`, and loops of several variables.

At every logical time, the result of a loop is the fixed point that its body reaches from its
initial value at that time, or the value after a limit of iterations.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from pyspark.sql import types as T

from pyspark_diff.errors import NotReadableError, SchemaError
from pyspark_diff.expressions.names import unused
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.row_wise import computed
from pyspark_diff.operators.consolidate import consolidate
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.loop import EnterAt, Leave, Variable, time_scope
from pyspark_diff.operators.node import Concat, Linear, LoopScope, Node
from pyspark_diff.spark.frames import column

if TYPE_CHECKING:
    from pyspark.sql._typing import ColumnOrName
    from typing_extensions import Self

#: The number of iterations after which a loop without a limit of its own counts as endless.
MAX_ITERATIONS = 10_000

_open = threading.local()

#: The class of frames that are variables of a loop.
LoopFrameT = TypeVar("LoopFrameT", bound="LoopMethods")


class Loop:
    """A loop: collections that are defined by each other, computed until nothing changes.

    A loop is a context manager. Operators inside may read collections from outside; the loop shares
    them and makes no copies. Loops may be nested.

    Parameters
    ----------
    max_iterations : int, optional
        The largest number of iterations; the default is 10,000.
    on_limit : {"error", "return"}
        The action if collections still change at the limit: raise an error, or return the value at
        the limit. With ``"return"`` and n iterations the result is the body applied n times.
    name : str, optional
        For messages and tables.
    advice : str, optional
        The remedy in the error of a loop that reaches its limit, instead of general advice.
    endless : str, optional
        For a loop in which each change is the join, by a key, of a change of the iteration before
        with a collection from outside, and which has no fixed point if changes come from one key
        twice. The text of the error that is raised as soon as the loop has more iterations than
        there are keys, and more than a minimum. The default is no such check.
    falls : str, optional
        For `endless`: a column of doubles, starting at zero, that sums doubles from outside; the
        loop keeps the least sum for the other columns of a record. As doubles are rounded, the
        error of `endless` is raised only if the sum fell by more than rounding explains. It is
        never raised in a nested loop or with structs as times.

    Raises
    ------
    StalledError
        In a step: if the loop has no fixed point after `max_iterations`, or alternates between
        collections so that it never reaches one.

    Notes
    -----
    Source: McSherry, Murray, Isaacs, Isard, "Differential dataflow", CIDR 2013; the original's
    ``operators/iterate.rs``. Here an iteration processes all logical times of a step at once, so
    the number of Spark jobs depends on the number of iterations and never on that of times. A loop
    of more than a few seconds logs its progress: logger ``pyspark_diff``, level INFO.

    Examples
    --------
    Nodes at an even, and at an odd number of edges from 1, each computed from the other:

    >>> from pyspark_diff import DiffFrame, Loop
    >>> edges = DiffFrame(spark.createDataFrame(
    ...     [(1, 2, 0, 1), (2, 3, 0, 1), (3, 4, 5, 1)], "src int, dst int, time int, diff int"))
    >>> one = edges.where("src = 1").select(F.col("src").alias("node")).distinct()
    >>> def beyond(nodes):
    ...     return nodes.toDF("src").join(edges, "src").select(F.col("dst").alias("node"))
    >>> with Loop() as loop:
    ...     even, odd = loop.variable(one), loop.variable(one.where(F.lit(False)))
    ...     at_even = even.set(beyond(odd).union(one).distinct())
    ...     at_odd = odd.set(beyond(even).distinct())
    >>> found = at_odd.leave()
    >>> [sorted(row.node for row in found.at(t).collect()) for t in (0, 5)]
    [[2], [2, 4]]
    """

    def __init__(
        self,
        max_iterations: int | None = None,
        on_limit: str = "error",
        name: str | None = None,
        advice: str = "",
        endless: str = "",
        falls: str = "",
    ):
        if on_limit not in ("error", "return"):
            raise SchemaError(f"on_limit must be 'error' or 'return', not {on_limit!r}")
        most = MAX_ITERATIONS if max_iterations is None else max_iterations
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise SchemaError(f"max_iterations is a positive whole number, not {max_iterations!r}")
        if max_iterations is None and on_limit == "return":
            raise SchemaError(
                "on_limit='return' needs max_iterations, the number of iterations to return after"
            )
        self._limit, self._stops, self._name = most, on_limit == "return", name
        self._advice, self._endless, self._falls = advice, endless, falls
        self._scope: LoopScope | None = None
        self._variables: list[Variable] = []

    def __repr__(self) -> str:
        name = self._name if self._scope is None else self._scope.name
        count = len(self._variables)
        return f"Loop({name!r}, {count} variable{'' if count == 1 else 's'})"

    def __enter__(self) -> Self:
        if self._scope is not None:
            raise SchemaError("a loop has one with statement; make a new loop")
        stack = _stack()
        parent = stack[-1] if stack else None
        name = self._name or _name(parent)
        self._scope = LoopScope(
            name, parent, self._limit, stops=self._stops, advice=self._advice,
            endless=self._endless, falls=self._falls,
        )
        stack.append(self._scope)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        _stack().pop()
        if kind is not None or self._scope is None:
            return
        for variable in self._variables:
            if variable.result is None:
                raise SchemaError(
                    f"a variable of {self._scope.name} ({variable.schema.describe()}) was never "
                    "set; define its next iteration: x.set(...)"
                )
            _check_no_end(variable.result, self._scope)

    def variable(self, start: LoopFrameT) -> LoopFrameT:
        """A collection that begins as `start`; each iteration replaces it by the collection of
        `set`.

        Parameters
        ----------
        start : DiffFrame
            A collection from outside of the loop.
        """
        if self._scope is None or self._scope not in _stack():
            raise SchemaError("a variable is made inside of its loop: with Loop() as loop: ...")
        start._collection.check_unambiguous("a variable")
        if self._scope.parent is None and not self._variables:
            scope = time_scope(start._node)
            if scope is not None:  # times are structs, so the loop is nested in their scope
                place = _stack().index(self._scope)
                self._scope = replace(self._scope, parent=scope)
                _stack()[place] = self._scope
        node = Variable(self._scope, start._node)
        self._variables.append(node)
        return start._derived(node)

    def leave(self, frame: LoopFrameT) -> LoopFrameT:
        """The final state of a collection of the loop; see `DiffFrame.leave`."""
        return frame.leave() if self._scope is not None and frame._node in self._scope else frame


class LoopMethods(Frame):
    """Loops of one variable, and methods of the variables of other loops."""

    def iterate(
        self,
        func: Callable[[Self], Self],
        max_iterations: int | None = None,
        on_limit: str = "error",
        name: str | None = None,
    ) -> Self:
        """The fixed point of a function, kept up to date.

        Parameters
        ----------
        func : callable
            From a `DiffFrame` to one with the same columns. `iterate` calls it once, to build the
            body of the loop. The function may use other collections and all operators.
        max_iterations : int, optional
            The largest number of iterations; the default is 10,000.
        on_limit : {"error", "return"}
            The action if the collection still changes at the limit. With ``"return"`` and n
            iterations the result is the function applied n times.
        name : str, optional
            For messages and tables.

        Raises
        ------
        StalledError
            In a step: if the loop has no fixed point after `max_iterations`, or alternates between
            collections so that it never reaches one. The message names the loop and some of the
            last changes.
        SchemaError
            If the function returns other columns than it takes.

        Notes
        -----
        The result is a fixed point, so the function must return all records that have to stay. If
        the loop does not change the initial records, begin the function with ``start.union(...)``.
        Source: differential-dataflow ``operators/iterate.rs``.

        Examples
        --------
        >>> edges = DiffFrame(spark.createDataFrame(
        ...     [(1, 2, 0, 1), (2, 3, 0, 1), (2, 3, 7, -1)], "src int, dst int, time int, diff int"
        ... )).arrange_by_key("src")
        >>> roots = edges.where("src = 1").select(F.col("src").alias("node")).distinct()
        >>> reached = roots.iterate(lambda x: x.toDF("src").join(edges, "src")
        ...     .select(F.col("dst").alias("node")).union(roots).distinct())
        >>> sorted(row.node for row in reached.at(0).collect())
        [1, 2, 3]
        >>> sorted(row.node for row in reached.at(7).collect())
        [1, 2]
        """
        with Loop(max_iterations, on_limit, name) as loop:
            variable = loop.variable(self)
            result = func(variable)
            if not isinstance(result, Frame):
                raise SchemaError(
                    f"the function of iterate returns a DiffFrame, not a {type(result).__name__}"
                )
            variable.set(result)
        return loop.leave(result)

    def enter_at(self, iteration: ColumnOrName) -> Self:
        """This collection within the current loop, each record from some iteration on.

        At every logical time, iteration ``i`` of the loop has the records whose column is at most
        ``i``; so the last iterations have all records.

        Parameters
        ----------
        iteration : Column or str
            A whole number for each record, zero or more. It must depend on the record alone, so
            that it is the same when the record is removed.

        Raises
        ------
        SchemaError
            If the call is outside of a loop, or this is a collection of the loop, or the column has
            no integer type; in a step, if the number is null or negative.
        StalledError
            In a step: if the number of a record reaches `max_iterations`. With
            ``on_limit="return"`` the record does not enter.

        Notes
        -----
        If a loop keeps the best value that reaches a record, likely winners should enter first:
        then values that would be retracted later are never sent. Empty iterations cost nothing, in
        any number, so the numbers may be as far apart as the values need to spread. All iterations
        count for `max_iterations`.
        Source: differential-dataflow, ``enter_at`` of ``operators/iterate.rs``.

        Examples
        --------
        The least number that reaches each node, small ones first:

        >>> from pyspark_diff import DiffFrame, Loop
        >>> edges = DiffFrame(spark.createDataFrame(
        ...     [(7, 3, 0, 1), (3, 9, 0, 1), (9, 7, 0, 1)],
        ...     "node int, other int, time int, diff int"))
        >>> labels = edges.select("node", F.col("node").alias("label"))
        >>> with Loop() as loop:
        ...     sent = loop.variable(labels.where(F.lit(False)))
        ...     own = labels.enter_at(F.col("label") * 10)
        ...     least = own.union(sent).top_k(1, "label", per="node")
        ...     moved = least.join(edges, "node").select(F.col("other").alias("node"), "label")
        ...     _ = sent.set(moved)
        >>> sorted(tuple(row) for row in loop.leave(least).at(0).collect())
        [(3, 3), (7, 3), (9, 3)]
        """
        self._collection.check_open()
        stack = _stack()
        if not stack:
            raise SchemaError("enter_at is for loops: with Loop() as loop: ..., or iterate(...)")
        if isinstance(iteration, str):
            iteration = column(self._collection.column_name(iteration, "for enter_at"))
        source, wanted = self._collection.spreading(iteration)
        scope = time_scope(source.node)
        if scope is not None and stack[-1].enclosing(scope.depth) is not scope:
            raise SchemaError(
                "with structs as times a loop needs a variable before enter_at; make one first"
            )
        names = source.node.schema.names
        at = unused("iteration", names)
        node = computed(
            source, "enter_at", [*((name, column(name)) for name in names), (at, wanted)],
            outputs={at: wanted},
        )
        kind = node.schema.field(at).dataType
        if not isinstance(kind, (T.ByteType, T.ShortType, T.IntegerType, T.LongType)):
            raise SchemaError(
                f"enter_at takes the number of an iteration, and this is a {kind.simpleString()}"
            )
        entered = EnterAt(stack[-1], node, at, names)
        return self._derived(entered, resolver=self._collection.resolver)

    def set(self, result: Self) -> Self:
        """Define the next iteration of a variable of a loop: see `Loop`.

        Parameters
        ----------
        result : DiffFrame
            A collection with the columns of the variable, matched by name.
        """
        self._collection.check_open()
        node = self._node
        if not isinstance(node, Variable):
            raise SchemaError("only a variable of a loop can be set: x = loop.variable(start)")
        if node.result is not None:
            raise SchemaError("this variable was set before; a variable is set once")
        theirs = self._peer(result)
        theirs.check_unambiguous("set")
        if theirs.columns != self.columns:
            theirs = self._collection.matched(theirs, "set")
        following = theirs.node
        if not node.schema.same_types(following.schema):
            raise self._collection.mismatch("set", theirs)
        # Without this, updates that cancel out would circulate for ever.
        node.define(consolidate(following) if _unsettled(following) else following)
        return result

    def leave(self) -> Self:
        """The final state of a collection of a loop, for use outside of the loop."""
        self._collection.check_open()
        self._collection.check_unambiguous("leave")
        if self._node.loop is time_scope(self._node):
            raise NotReadableError(
                "leave is for collections of a loop, and this one is in no loop: use it directly"
            )
        assert self._node.loop is not None
        _check_no_end(self._node, self._node.loop)
        return self._derived(Leave(self._node), resolver=self._collection.resolver)


def _stack() -> list[LoopScope]:
    if not hasattr(_open, "loops"):
        _open.loops = []
    scopes: list[LoopScope] = _open.loops
    return scopes


def _name(parent: LoopScope | None) -> str:
    _open.count = getattr(_open, "count", 0) + 1
    return f"loop {_open.count}" + ("" if parent is None else f" in {parent.name}")


def _check_no_end(node: Node, loop: LoopScope) -> None:
    """Refuse a collection of a loop that derives from the final state of the same loop.

    Raises
    ------
    SchemaError
    """
    stack, visited = [node], {node}
    while stack:
        at = stack.pop()
        if isinstance(at, Leave) and at.inputs[0].loop is loop:
            raise SchemaError(
                f"{loop.name} uses the final state of one of its own collections "
                f"({at.schema.describe()}). It is not known before the loop has ended. Use the "
                "collection itself inside of the loop, and leave() outside of it"
            )
        sources = [*at.inputs]
        if isinstance(at, Variable) and at.result is not None:
            sources.append(at.result)
        for source in sources:
            if source not in visited:
                visited.add(source)
                stack.append(source)


def _unsettled(node: Node) -> bool:
    """Whether a path from a variable to its result has no operator that consolidates."""
    stack, visited = [node], set()
    while stack:
        at = stack.pop()
        if isinstance(at, Variable):
            return True
        if isinstance(at, (Linear, Concat, Inspect, Leave)) and at not in visited:
            visited.add(at)
            stack.extend(at.inputs)
    return False

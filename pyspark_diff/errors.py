"""The errors of the library: one base, and each of them is also a builtin.

    error raised by the library  ⟹  isinstance(error, DiffError)
    from_payload(*to_payload(error))  has the class and the message of  error

The second line carries an error out of a Spark task as data, two strings, so that the driver raises
the error that the task found, and nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

#: Where an error of the library begins in a text.
_MARK = "pyspark_diff error: "


class DiffError(Exception):
    """Base of every error that the library raises on purpose.

    Failures of Spark keep their own classes. Within a step such a failure is the cause of a
    `StepError`.
    """

    #: The first wrong time as an integer, if a bucket of a collection reports it.
    first_time: int | None = None


class SchemaError(DiffError, TypeError):
    """Columns are missing, have the wrong type, or two schemas do not match.

    Raised when a collection is made or combined, before any Spark job runs. Select, rename or cast
    the columns that the message names.
    """


class InvalidTimeError(DiffError, ValueError):
    """A time is null, is not made of integers, or does not have the shape of the others.

    Raised where the time enters: on input, or when two times are compared. Fill or filter nulls
    first; give all times of one dataflow the same shape.
    """


class InvalidDiffError(DiffError, ValueError):
    """A diff is null, or is not a whole number.

    Raised when updates enter, and nothing of them is kept. Fill or filter the rows first; a diff
    of zero is fine and is dropped.
    """


class TimeRegressionError(DiffError, ValueError):
    """An update has a time before the frontier, or a call moves a frontier backwards.

    Raised before anything is written, so the whole set of updates is refused. Give late updates a
    time that is beyond the frontier, or advance the input later.
    """


class ReservedNameError(DiffError, ValueError):
    """A user column has a name that the library keeps for itself.

    Raised when a collection is made or a column is added. Rename the column; names that start with
    two underscores are reserved.
    """


class UnsupportedTypeError(DiffError, TypeError):
    """A column has a type that a keyed operator cannot group, order or store exactly.

    Raised when the operator is built, for example for a map or variant key or a collation that is
    not binary. Cast the column, or derive a key of a supported type from it.
    """


class DiffOverflowError(DiffError, OverflowError):
    """A sum or product of diffs, or an aggregate kept in the diff, leaves its range.

    Raised instead of wrapping round; the step is abandoned and the state is unchanged. Use a wider
    type for the aggregate, or look for updates that were inserted many times.
    """


class ClosedError(DiffError, RuntimeError):
    """A dataflow, an input or a trace was used after it was closed.

    Raised at the call. Open the dataflow again from its path, or keep it open for longer.
    """


class NonDeterministicError(DiffError, ValueError):
    """The same input gave different outputs, or an expression is known to do so.

    Raised when such an expression is used, or when a repeated call of a user's function differs
    from the first. Compute the value once, store it, and use the stored column.
    """


class NegativeMultiplicityError(DiffError, ValueError):
    """A record accumulates to a negative count where a multiset is needed.

    Raised by snapshots, user reducers and inputs that check it, and names the records. Remove only
    records that were inserted, or allow negative counts if the method has that option.
    """


class AssertionFailedError(DiffError, AssertionError):
    """A collection is not what `assert_empty` or `assert_eq` says that it always is.

    Names the first time at which it is not, and some of the records. The step that raises it
    changes nothing; it works when the updates are dropped that are to blame, which it names too.
    """


class DuplicateKeyError(DiffError, ValueError):
    """A row has a key that another row has already, where each key has one row.

    Raised by inputs that have a key, and names the rows. Use upsert for a row that may take the
    place of another one.
    """


class NotReadableError(DiffError, LookupError):
    """A collection cannot be read at the time that was asked for.

    Raised when the time was compacted away, is not complete yet, or the collection was not kept;
    never answered approximately. Read at a time inside the interval that the message gives, hold
    compaction back, or run the dataflow further.
    """


class FunctionError(DiffError, RuntimeError):
    """A function of the user has failed.

    The message names the key, the time of the call, and the error of the function.
    """


class StalledError(DiffError, RuntimeError):
    """A step can make no progress, or a loop does not come to rest.

    Raised instead of waiting for ever. Advance or close the input that the message names, or, for
    a loop, look for a body whose differences never vanish.
    """


class StepError(DiffError, RuntimeError):
    """An expression or a function of the user, or Spark, has failed within a step.

    Its cause is the first error. The message names the updates to blame if the library can find
    them. The step changes nothing, and works again after `InputSession.discard` has dropped them.
    `discard` also drops updates of earlier steps that waited for another input.
    """


class StepCancelledError(DiffError, RuntimeError):
    """A step was ended by `RunningStep.cancel` before it was committed.

    It changed nothing; the next step does all of it again.
    """


class StorageError(DiffError, OSError):
    """State could not be written or read where it is kept.

    Names the path and the error of the system: a full disk, a place without permission, a file
    that another machine does not see. A step that raises it changes nothing and can be run again.
    """


class ProgramChangedError(DiffError, ValueError):
    """A store was written by another program than the one that it is opened with.

    Names the change and the remedy of each operator. Nothing has been done.
    """


class SettingsChangedError(DiffError, ValueError):
    """The session has other settings than the one in which an expression was written.

    Names each setting that changes values of expressions, with both values. The step changes
    nothing, and works again when they are set back.
    """


class DamagedStateError(StorageError):
    """An object of a store has other contents than the library wrote.

    Names the object and its fault: missing, cut short, changed, or in the place of another one.
    Nothing of it was used. Put the object back from a copy of the store, or start a new store.
    """


class FormatError(StorageError):
    """A store was written in a format that this version of the library does not read.

    Names both versions. Nothing was changed; open the store with the newer version of the library.
    """


class UnknownOutcomeError(StorageError):
    """A write may or may not have happened: its answer was lost, and perhaps its request too.

    Names the object. Nothing more is written until the outcome is known. When the store can be
    reached again, opening it reads the outcome.
    """


class ConcurrentWriteError(DiffError, RuntimeError):
    """Another writer has taken over a store, so this one may not write any more.

    Names both epochs. The commit of this writer is not in the store. If only one of them should
    write, open the store again, and continue from the commit of the other writer.
    """


class RepeatedTokenError(DiffError, ValueError):
    """A step was to be committed by a token that names a commit already, and with more updates.

    Nothing has been done. If the same job runs again, drop its updates with `discard`, because the
    first run processed them. Else use another token for the step.
    """


class SourceError(DiffError, RuntimeError):
    """A source has no changes since its last offset, or is another table than before.

    Nothing of it was taken. The changes of other sources were, and the next step processes them.
    """


class SinkError(DiffError, RuntimeError):
    """A sink failed to write the changes of a step; its error is the cause.

    The step is committed. Nothing later happens before the sink has these changes: the next step,
    of this application or another one, writes them first, under the same epoch.
    """


class TooManyRowsError(DiffError, MemoryError):
    """Something cannot be worked through in pieces, and as a whole does not fit into memory.

    Names the operator and its heaviest keys with their rows. A step that raises it changes nothing.
    How many rows are held at once is set by ``spark.pyspark_diff.pieceRows``.
    """


class FullScanError(DiffError, ValueError):
    """With ``strict=True``: an operator reads all that it keeps for a change of one record.

    Raised by the call that keeps or shows the collection. Names the operator, the code of the
    reason and the remedy. The dataflow does not change.
    """


class FallbackError(DiffError, RuntimeError):
    """With ``PYSPARK_DIFF_FALLBACKS=raise``: a fast path left its work to a slower one.

    Names the operator, the path and the reason. The step is undone, as after any error.
    """


class UnsupportedQueryError(DiffError, ValueError):
    """A query has parts that cannot be kept up to date.

    Lists all of them, each with a code, its place in the text and a remedy. The dataflow is
    unchanged.
    """


_BY_NAME: dict[str, type[DiffError]] = {
    error.__name__: error
    for error in (
        DiffError,
        SchemaError,
        InvalidTimeError,
        InvalidDiffError,
        TimeRegressionError,
        ReservedNameError,
        UnsupportedTypeError,
        DiffOverflowError,
        ClosedError,
        NonDeterministicError,
        NegativeMultiplicityError,
        AssertionFailedError,
        DuplicateKeyError,
        NotReadableError,
        FunctionError,
        StalledError,
        StepError,
        StepCancelledError,
        StorageError,
        ProgramChangedError,
        SettingsChangedError,
        RepeatedTokenError,
        DamagedStateError,
        FormatError,
        UnknownOutcomeError,
        ConcurrentWriteError,
        SourceError,
        SinkError,
        TooManyRowsError,
        FallbackError,
        FullScanError,
        UnsupportedQueryError,
    )
}


def to_payload(error: DiffError) -> tuple[str, str]:
    """Describe an error by two strings: the name of its class here, and its message.

    A subclass made elsewhere travels as the nearest class of this module; its extra attributes and
    its traceback are lost.

    Examples
    --------
    >>> to_payload(InvalidDiffError("diff is null in 3 rows"))
    ('InvalidDiffError', 'diff is null in 3 rows')
    """
    for ancestor in type(error).__mro__:
        if _BY_NAME.get(ancestor.__name__) is ancestor:
            return ancestor.__name__, str(error)
    raise TypeError(f"only a DiffError travels as a payload, not {type(error).__name__}: {error}")


def from_payload(name: str, message: str) -> DiffError:
    """Rebuild an error from `to_payload`, to be raised by the caller.

    Only classes of this module are ever built. An unknown name, as another version of the library
    may send, gives a plain `DiffError` that keeps the name in its message.

    Examples
    --------
    >>> from_payload("InvalidDiffError", "diff is null in 3 rows")
    InvalidDiffError('diff is null in 3 rows')
    >>> from_payload("SystemExit", "0")
    DiffError('SystemExit: 0')
    """
    known = _BY_NAME.get(name)
    return known(message) if known else DiffError(f"{name}: {message}")


def earliest(errors: Sequence[DiffError]) -> DiffError:
    """The error of several buckets with the first time; the first error if one has no time.

    Examples
    --------
    >>> late, early = DiffError("at time 3"), DiffError("at time 1")
    >>> late.first_time, early.first_time = 3, 1
    >>> earliest([late, early]), earliest([late, DiffError("of no time"), early])
    (DiffError('at time 1'), DiffError('at time 3'))
    """
    times = [error.first_time for error in errors if error.first_time is not None]
    if len(times) < len(errors):
        return errors[0]
    return errors[times.index(min(times))]


def to_text(error: DiffError) -> str:
    """Describe an error in a text, for places where only the message of an error gets through.

    Examples
    --------
    >>> to_text(InvalidDiffError("diff is null in 3 rows"))
    'pyspark_diff error: ["InvalidDiffError", "diff is null in 3 rows"]'
    """
    return _MARK + json.dumps(to_payload(error))


def from_text(text: str) -> DiffError | None:
    """Rebuild an error that `to_text` described somewhere in a text; None if there is none.

    Examples
    --------
    >>> from_text("Job aborted. " + to_text(InvalidDiffError("diff is null")) + " at line 3")
    InvalidDiffError('diff is null')
    """
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    try:
        (name, message), _ = json.JSONDecoder().raw_decode(rest)
    except ValueError:
        return None
    return from_payload(name, message)


@contextmanager
def errors_to_text() -> Iterator[None]:
    """In a task that gives a user's rows, an error of the library leaves as text."""
    try:
        yield
    except DiffError as error:
        raise RuntimeError(to_text(error)) from error


@contextmanager
def errors_from_text() -> Iterator[None]:
    """Around a job, an error of the library that left a task as text is raised as itself."""
    try:
        yield
    except Exception as error:
        original = from_text(str(error))
        if original is None:
            raise
        raise original from error

"""Fallbacks: Spark does a piece of work that a faster path cannot do exactly as Spark does.

    fast path(input)  =  Spark(input)          or a fallback with its reason
"""

from __future__ import annotations

import logging

_logger = logging.getLogger("pyspark_diff")


def fall_back(operator: str, path: str, reason: str) -> None:
    """Record that Spark does the work of an operator, at level DEBUG of the logger.

    Parameters
    ----------
    operator : str
        Such as "delta" or "delta_merge".
    path : str
        The table or the file.
    reason : str
        The cause, in one sentence without a full stop.

    Examples
    --------
    >>> fall_back("delta", "/data/orders", "the table has column mapping")
    """
    _logger.debug("%s: Spark reads or writes %s: %s", operator, path, reason)

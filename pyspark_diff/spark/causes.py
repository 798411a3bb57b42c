"""The causes of Spark's errors, in a few lines: a failed job prints them below a hundred others."""

from __future__ import annotations

import re

#: The prefix of a cause: its class in the JVM.
_CLASS = re.compile(r"^(?:Caused by: )?(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ")


def in_words(error: BaseException) -> str:
    """The messages of an error and its causes, without the stack of the JVM.

    Examples
    --------
    >>> print(in_words(ValueError("no such file")))
    no such file
    >>> print(in_words(ValueError("An error occurred while calling a\\n\\tat a.B.c(B.scala:1)\\n"
    ...     "Caused by: a.ReadException: [READ] cannot read 1.json\\n\\tat a.B.c(B.scala:2)\\n")))
    [READ] cannot read 1.json
    """
    text = str(error).strip()
    if "\n\tat " not in text:
        return text
    lines = [line for line in text.splitlines() if line.strip()]
    end = next(n for n, line in enumerate(lines) if line.startswith(("\tat ", "JVM stacktrace:")))
    causes = [line for line in lines[end:] if line.startswith("Caused by: ")]
    # For a call into the JVM, the text above the stack only repeats the causes.
    if not (causes and text.startswith("An error occurred while calling")):
        causes = [" ".join(line.removeprefix(": ") for line in lines[:end]), *causes]
    return "; ".join(dict.fromkeys(_CLASS.sub("", line).strip() for line in causes))

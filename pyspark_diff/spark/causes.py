"""What Spark's errors say, in a few lines: a failed job tells it below a hundred of others."""

from __future__ import annotations

import re

#: What stands before what a cause says: its class in the JVM.
_CLASS = re.compile(r"^(?:Caused by: )?(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ")


def in_words(error: BaseException) -> str:
    """What an error says, without the stack of the JVM: of each cause what it says itself.

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
    # Of a call into the JVM nothing is told above the stack that its causes do not tell.
    if not (causes and text.startswith("An error occurred while calling")):
        causes = [" ".join(line.removeprefix(": ") for line in lines[:end]), *causes]
    return "; ".join(dict.fromkeys(_CLASS.sub("", line).strip() for line in causes))

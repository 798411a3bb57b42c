"""The results of the tests on versions of Spark, as a page: ``versions_table.py REPORTS PAGE``.

The reports are of pytest, in its XML, each named VERSION-WAY.xml. Rows of other versions stay on
the page.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

_HEAD = """# The versions of Spark

The command `ci/versions` runs a part of the tests on each version of Spark, in an environment of
its own. They cover the law, joins, aggregates, loops, windows, stores, the session, the data
source, the bridge, and Spark Connect. A *classic* session is in the process that has the JVM. A
*connect* session is one of a client, and these tests all run over it. `ci/test` runs all tests on
the version that `ci/constraints.txt` names, and `ci/connect` all of them over Connect.

A version such as 4.2.0-pandas-3.1.1 has that pandas, and the tests in which a function, an input or
a constant has a table of pandas. PySpark 4.2 and 4.3 warn that they do not yet fully support pandas
3, and 4.1 does not say so. All rows without a name of pandas ran with pandas 2.
The bound of the package is pandas below 3 for this reason. A run of tests that use pandas, on 4.2.0
with pandas 3.1.1 and without the slow cases, had 285 tests right. A store whose functions
take tables of pandas was written with pandas 2.3.3, and continued right with pandas 3.1.1.

| Spark | session | tests | passed | failed | skipped |
|---|---|---|---|---|---|
"""
_ROW = re.compile(r"^\| (\d[\w.-]*) \| (\w+) \|.*$", re.MULTILINE)
_REASON = re.compile(r"^\* (\d[\w.-]*), (\w+): .*$", re.MULTILINE)


def counted(report: Path) -> tuple[str, list[str]]:
    """A row of the table, and a line for each reason for which tests were skipped, or each that
    has failed."""
    version, _, way = report.stem.rpartition("-")
    counts, said = Counter[str](), Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        bad = case.find("failure")
        bad = case.find("error") if bad is None else bad
        skipped = case.find("skipped")
        if bad is not None:
            counts["failed"] += 1
            said[f"failed: {case.get('classname')}::{case.get('name')}"] += 1
        elif skipped is not None:
            counts["skipped"] += 1
            said[f"skipped: {skipped.get('message', '').splitlines()[0]}"] += 1
        else:
            counts["passed"] += 1
    row = (
        f"| {version} | {way} | {counts.total()} | {counts['passed']} | {counts['failed']} | "
        f"{counts['skipped']} |"
    )
    lines = [
        f"* {version}, {way}: {what}" + (f" ({times} tests)" if times > 1 else "")
        for what, times in sorted(said.items())
    ]
    return row, lines


def main(folder: str, page: str) -> None:
    path = Path(page)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    rows = {match.groups(): match.group(0) for match in _ROW.finditer(before)}
    reasons: dict[tuple[str, ...], list[str]] = {}
    for match in _REASON.finditer(before):
        reasons.setdefault(match.groups(), []).append(match.group(0))
    for report in sorted(Path(folder).glob("*.xml")):
        version, _, way = report.stem.rpartition("-")
        rows[version, way], reasons[version, way] = counted(report)
    table = "\n".join(rows[which] for which in sorted(rows))
    why = "\n".join(line for which in sorted(reasons) for line in reasons[which])
    text = _HEAD + table + "\n" + (f"\nSkipped and failed:\n\n{why}\n" if why else "")
    path.write_text(text, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])

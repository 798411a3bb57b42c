"""Reads groups, pivots and missing values of a frame of Spark Connect.

    fillna   =  coalesce(column, value) for the columns whose type the value has
    dropna   =  the rows with so many columns that are neither NULL nor NaN
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import types as T

from pyspark_diff.query import refusals
from pyspark_diff.query.frame_columns import Item, RelationText, literal_text
from pyspark_diff.query.frame_texts import FrameTexts, where
from pyspark_diff.query.text_expressions import quoted

_WORD = re.compile(r"\w+")


class FrameGroups(FrameTexts):
    """The groups, pivots and missing values of a frame."""

    def _of_aggregate(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        keys = self.all_items(message.grouping_expressions, written)
        if message.group_type == 4:
            return self.pivoted(message, relation, written, keys)
        calls = self.all_items(message.aggregate_expressions, written)
        by = [
            f"CAST({key.text} AS STRING)" if key.text.isdigit() else key.text for key in keys
        ]
        kind, rest = message.group_type, ""
        if kind == 1 and by:
            rest = f" GROUP BY {', '.join(by)}"
        elif kind in (2, 3):
            rest = f" GROUP BY {'ROLLUP' if kind == 2 else 'CUBE'}({', '.join(by)})"
        elif kind == 5:
            sets = [
                f"({', '.join(part.text for part in self.all_items(item.grouping_set, written))})"
                for item in message.grouping_sets
            ]
            rest = f" GROUP BY GROUPING SETS ({', '.join(sets)})"
        if any(key.text.isdigit() for key in keys):
            self.refuse(refusals.NODE, "groupBy of a number", "Remedy: leave it out")
        return self.selected(
            written, [*keys, *calls], relation, rest or " ", keeps=kind == 1
        )

    def pivoted(
        self, message: Any, relation: Any, written: RelationText, keys: Sequence[Item]
    ) -> RelationText:
        pivot = message.pivot
        if not pivot.values:
            self.refuse(refusals.NODE, *refusals.PIVOT)
        (by,) = self.all_items([pivot.col], written)
        calls = self.all_items(message.aggregate_expressions, written)
        words = {word for call in calls for word in _WORD.findall(call.text)}
        used = [column for column in written.columns() if column in words]
        names = [self.fresh("k") for _ in keys]
        chosen = self.fresh("p")
        texts = [
            *(f"{key.text} AS {name}" for key, name in zip(keys, names)),
            f"{by.text} AS {chosen}", *used,
        ]
        inner = self.fresh("r")
        self.queries[inner] = (
            [*names, chosen, *used],
            f"SELECT {', '.join(texts)} FROM {written.body}{where(written)}",
        )
        values = []
        for item in pivot.values:
            kind = item.WhichOneof("expr_type") if hasattr(item, "WhichOneof") and (
                "expr_type" in item.DESCRIPTOR.oneofs_by_name) else None
            values.append(literal_text(item.literal if kind == "literal" else item))
        if None in values:
            self.refuse(refusals.NODE, "pivot of values without a literal")
        text = (
            f"SELECT * FROM {inner} PIVOT ("
            f"{', '.join(f'{call.text} AS {self.fresh(chr(118))}' for call in calls)} "
            f"FOR {chosen} IN ({', '.join(f'{item} AS {self.fresh(chr(118))}' for item in values)})"
            ")"
        )
        return self.renamed(text, relation)

    def _of_unpivot(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        ids = self.all_items(message.ids, written)
        if message.HasField("values"):
            values = self.all_items(message.values.values, written)
        else:
            gone = {item.entry for item in ids}
            values = [
                Item(entry.column, entry=entry) for entry in written.visible() if entry not in gone
            ]
        if any(item.entry is None for item in (*ids, *values)) or not values:
            self.refuse(refusals.NODE, "unpivot of expressions", "Remedy: name them by select")
        names, inner = [self.fresh("k") for _ in ids], self.fresh("r")
        columns = [self.fresh("v") for _ in values]
        texts = [item.text for item in (*ids, *values)]
        self.queries[inner] = (
            [*names, *columns], f"SELECT {', '.join(texts)} FROM {written.body}{where(written)}"
        )
        pairs = ", ".join(
            f"{column} AS {quoted(item.entry.name or '')}"
            for column, item in zip(columns, values) if item.entry is not None
        )
        text = (
            f"SELECT * FROM {inner} UNPIVOT INCLUDE NULLS ({self.fresh('v')} FOR "
            f"{self.fresh('k')} IN ({pairs}))"
        )
        return self.renamed(text, relation)

    # Missing values

    def each(self, message: Any, relation: Any, value: Any) -> RelationText:
        """Some columns with other values under the same names."""
        written = self.relation(message.input)
        kinds, folded = self.kinds_of(message.input), self.names.folded
        wanted = {folded(name) for name in message.cols}
        items = []
        for number, (entry, kind) in enumerate(zip(written.visible(), kinds)):
            name = folded(entry.name or "")
            text = value(entry.column, kind, name) if not wanted or name in wanted else None
            items.append(
                Item(entry.column, entry=entry) if text is None else Item(text, (entry.name or "",))
            )
        return self.selected(written, items, relation)

    def _of_fill_na(self, message: Any, relation: Any) -> RelationText:
        values = list(message.values)
        by = dict(zip((self.names.folded(name) for name in message.cols), values))

        def value(column: str, kind: T.DataType, name: str) -> str | None:
            filler = values[0] if len(values) == 1 else by.get(name)
            if filler is None or not _fits(filler, kind):
                return None
            plain = f"nanvl({column}, CAST(NULL AS {kind.simpleString()}))" if isinstance(
                kind, (T.DoubleType, T.FloatType)) else column
            return f"coalesce({plain}, CAST({literal_text(filler)} AS {kind.simpleString()}))"

        return self.each(message, relation, value)

    def _of_replace(self, message: Any, relation: Any) -> RelationText:
        def value(column: str, kind: T.DataType, name: str) -> str | None:
            pairs = [
                (item.old_value, item.new_value) for item in message.replacements
                if _fits(item.old_value, kind)
            ]
            if not pairs:
                return None
            type_name = kind.simpleString()
            cases = "".join(
                f" WHEN {column} = CAST({literal_text(old)} AS {type_name}) THEN "
                f"CAST({literal_text(new)} AS {type_name})" for old, new in pairs
            )
            return f"(CASE{cases} ELSE {column} END)"

        if any(
            item.old_value.WhichOneof("literal_type") == "null" for item in message.replacements
        ):
            self.refuse(refusals.NODE, "replace of NULL", "Remedy: use fillna")
        return self.each(message, relation, value)

    def _of_drop_na(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        kinds, folded = self.kinds_of(message.input), self.names.folded
        wanted = {folded(name) for name in message.cols}
        tests = []
        for entry, kind in zip(written.visible(), kinds):
            if wanted and folded(entry.name or "") not in wanted:
                continue
            test = f"{entry.column} IS NOT NULL"
            if isinstance(kind, (T.DoubleType, T.FloatType)):
                test += f" AND NOT isnan({entry.column})"
            tests.append(f"({test})")
        least = message.min_non_nulls if message.HasField("min_non_nulls") else len(tests)
        if least >= len(tests):
            condition = " AND ".join(tests) if least == len(tests) else "false"
        else:
            counted = " + ".join(f"CASE WHEN {test} THEN 1 ELSE 0 END" for test in tests)
            condition = f"{counted} >= {least}"
        return replace(written, conditions=(*written.conditions, f"({condition})"))


def _fits(literal: Any, kind: T.DataType) -> bool:
    """Whether fillna and replace give a value to columns of a type."""
    name = literal.WhichOneof("literal_type")
    if name == "string":
        return isinstance(kind, T.StringType)
    if name == "boolean":
        return isinstance(kind, T.BooleanType)
    return isinstance(kind, T.NumericType)

"""A dataflow as a picture in a notebook: text of Mermaid, and SVG where Graphviz is there."""

from __future__ import annotations

import html
import shutil
import subprocess
from collections.abc import Sequence

from pyspark_diff.engine.explanation import Operator

#: How operators look, by form: what is before and after the text in Mermaid, and in Graphviz.
_SHAPES = {
    "source": ("([", "])", "oval"), "keyed": ("[(", ")]", "cylinder"),
    "loop": ("{{", "}}", "hexagon"), "sink": ("([", "])", "oval"), "linear": ("[", "]", "box"),
}
#: What cannot stand in a text of Mermaid as it is: entities are written with "#".
_ENTITIES = {ord(c): f"#{ord(c)};" for c in '#"<>&`\\;\n'}
#: Seconds that Graphviz may take; what is too large for it is told as text.
_PATIENCE = 20


class Plot:
    """The graph of a dataflow, as `Dataflow.plot` has it.

    As text it is a diagram of Mermaid; notebooks show it as a picture, by Graphviz where its
    program ``dot`` is there and else by their own Mermaid, if they have it.

    Parameters
    ----------
    operators : sequence of Operator
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._operators = tuple(operators)

    @property
    def mermaid(self) -> str:
        """The diagram in Mermaid's language: nodes are operators, boxes around them are loops."""
        lines = ["flowchart TD"]
        around: tuple[str, ...] = ()
        for number, one in enumerate(self._operators):
            around = _moved(lines, around, one.loops, f'subgraph l{number}_{{}}["{{}}"]', "end")
            before, after, _ = _SHAPES[one.form]
            lines.append(f'n{one.number}{before}"{one.name.translate(_ENTITIES)}"{after}')
        _moved(lines, around, (), "", "end")
        for one in self._operators:
            lines += [f"n{source} --> n{one.number}" for source in one.inputs]
            if one.feedback is not None:
                lines.append(f"n{one.feedback} -. next .-> n{one.number}")
        return "\n".join(lines) + "\n"

    @property
    def dot(self) -> str:
        """The same in the language of Graphviz."""
        lines = ["digraph {", "node [fontname=sans fontsize=10]", "graph [fontname=sans]"]
        around: tuple[str, ...] = ()
        for number, one in enumerate(self._operators):
            around = _moved(
                lines, around, one.loops, f'subgraph cluster_{number}_{{}} {{{{ label="{{}}"', "}"
            )
            name = one.name.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'n{one.number} [label="{name}" shape={_SHAPES[one.form][2]}]')
        _moved(lines, around, (), "", "}")
        for one in self._operators:
            lines += [f"n{source} -> n{one.number}" for source in one.inputs]
            if one.feedback is not None:
                lines.append(f"n{one.feedback} -> n{one.number} [style=dashed constraint=false]")
        return "\n".join([*lines, "}"]) + "\n"

    def svg(self) -> str | None:
        """The picture, or None where Graphviz is not there, or gives up."""
        program = shutil.which("dot")
        if program is None:
            return None
        try:
            drawn = subprocess.run(
                [program, "-Tsvg"], input=self.dot, capture_output=True, encoding="utf-8",
                timeout=_PATIENCE, check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        return drawn[drawn.index("<svg"):]

    def __str__(self) -> str:
        return self.mermaid

    def __repr__(self) -> str:
        return f"Plot({len(self._operators)} operators)"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What notebooks show: the first kind that they know."""
        found = {"text/plain": self.mermaid, "text/vnd.mermaid": self.mermaid}
        svg = self.svg()
        return found if svg is None else {**found, "image/svg+xml": svg}

    def _repr_html_(self) -> str:
        """For notebooks that only take HTML."""
        return self.svg() or f"<pre>{html.escape(self.mermaid)}</pre>"


def _moved(
    lines: list[str], around: tuple[str, ...], wanted: tuple[str, ...], opening: str, closing: str
) -> tuple[str, ...]:
    """Boxes are closed and opened, so that what comes next is in those that are wanted."""
    shared = 0
    while shared < min(len(around), len(wanted)) and around[shared] == wanted[shared]:
        shared += 1
    lines += [closing] * (len(around) - shared)
    lines += [
        opening.format(depth, name.translate(_ENTITIES))
        for depth, name in enumerate(wanted[shared:], shared)
    ]
    return wanted

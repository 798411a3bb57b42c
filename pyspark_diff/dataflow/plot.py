"""A dataflow as a picture in a notebook: a Mermaid diagram, and SVG if Graphviz is installed."""

from __future__ import annotations

import html
import shutil
import subprocess
from collections.abc import Sequence

from pyspark_diff.engine.explanation import Operator

#: The shapes of operators by form: Mermaid's brackets around the text, and Graphviz's shape.
_SHAPES = {
    "source": ("([", "])", "oval"), "keyed": ("[(", ")]", "cylinder"),
    "loop": ("{{", "}}", "hexagon"), "sink": ("([", "])", "oval"), "linear": ("[", "]", "box"),
}
#: Characters that a Mermaid text must escape; Mermaid writes entities with "#".
_ENTITIES = {ord(c): f"#{ord(c)};" for c in '#"<>&`\\;\n'}
#: Seconds that Graphviz may take; a larger graph is shown as text.
_PATIENCE = 20


class Plot:
    """The graph of a dataflow; `Dataflow.plot` returns it.

    Its text is a Mermaid diagram. Notebooks show a picture: Graphviz draws it if its program
    ``dot`` is installed, else the notebook's own Mermaid.

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
        boxes: tuple[str, ...] = ()
        for number, node in enumerate(self._operators):
            boxes = _moved(lines, boxes, node.loops, f'subgraph l{number}_{{}}["{{}}"]', "end")
            before, after, _ = _SHAPES[node.form]
            lines.append(f'n{node.number}{before}"{node.name.translate(_ENTITIES)}"{after}')
        _moved(lines, boxes, (), "", "end")
        for node in self._operators:
            lines += [f"n{source} --> n{node.number}" for source in node.inputs]
            if node.feedback is not None:
                lines.append(f"n{node.feedback} -. next .-> n{node.number}")
        return "\n".join(lines) + "\n"

    @property
    def dot(self) -> str:
        """The diagram in Graphviz's language."""
        lines = ["digraph {", "node [fontname=sans fontsize=10]", "graph [fontname=sans]"]
        boxes: tuple[str, ...] = ()
        for number, node in enumerate(self._operators):
            boxes = _moved(
                lines, boxes, node.loops, f'subgraph cluster_{number}_{{}} {{{{ label="{{}}"', "}"
            )
            name = node.name.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'n{node.number} [label="{name}" shape={_SHAPES[node.form][2]}]')
        _moved(lines, boxes, (), "", "}")
        for node in self._operators:
            lines += [f"n{source} -> n{node.number}" for source in node.inputs]
            if node.feedback is not None:
                lines.append(f"n{node.feedback} -> n{node.number} [style=dashed constraint=false]")
        return "\n".join([*lines, "}"]) + "\n"

    def svg(self) -> str | None:
        """The picture, or None if Graphviz is not installed or fails."""
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
        """The forms of the picture; a notebook shows the richest one that it supports."""
        forms = {"text/plain": self.mermaid, "text/vnd.mermaid": self.mermaid}
        svg = self.svg()
        return forms if svg is None else {**forms, "image/svg+xml": svg}

    def _repr_html_(self) -> str:
        """The picture for notebooks that only show HTML."""
        return self.svg() or f"<pre>{html.escape(self.mermaid)}</pre>"


def _moved(
    lines: list[str], boxes: tuple[str, ...], wanted: tuple[str, ...], opening: str, closing: str
) -> tuple[str, ...]:
    """Close and open boxes, so that the following lines are in the wanted ones."""
    shared = 0
    while shared < min(len(boxes), len(wanted)) and boxes[shared] == wanted[shared]:
        shared += 1
    lines += [closing] * (len(boxes) - shared)
    lines += [
        opening.format(depth, name.translate(_ENTITIES))
        for depth, name in enumerate(wanted[shared:], shared)
    ]
    return wanted

"""Draws the pictures of docs/model.md and of README.md into the folder of this file.

    python docs/assets/model_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

from pyspark_diff import Antichain  # noqa: E402

FOLDER = Path(__file__).parent
INK, MORE, LESS, OPEN = "#333333", "#1b7f5c", "#b3261e", "#f3d9a4"
SETTINGS = {
    "svg.hashsalt": "pyspark_diff", "svg.fonttype": "none", "font.family": "sans-serif",
    "text.color": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
}
#: Record, time and diff.
UPDATES = [("apple", 0, 2), ("apple", 3, -1), ("pear", 1, 1), ("pear", 4, -1), ("plum", 2, 3)]
END = 6
#: The frontier of the example in the text, and the times that the picture shows.
FRONTIER, WIDTH, HEIGHT = [(3, 0), (1, 2)], 5, 4
#: Two incomparable times, and their least upper bound.
LEFT, RIGHT, BOUND = (1, 2), (3, 1), (3, 2)
#: The tables of the first program of README.md, with the diff of each row that a change touches.
ORDERS = [("1", "1", "20", ""), ("2", "1", "5", "-1"), ("3", "2", "7", "")]
REVENUE = [("north", "25", "-1"), ("north", "20", "+1"), ("south", "7", "")]


def change() -> plt.Figure:
    """A deleted row of an input, and the two updates of the answer that follow from it."""
    figure, axes = plt.subplots(figsize=(7.2, 2.1))
    axes.set(xlim=(0, 10.4), ylim=(0.1, 5))
    axes.axis("off")
    for left, title, names, rows in (
        (0.1, "orders", ("id", "customer", "amount"), ORDERS),
        (7.3, "revenue, kept", ("region", "revenue"), REVENUE),
    ):
        width = 1.05 * len(names)
        axes.text(left, 4.6, title, weight="bold")
        axes.plot([left, left + width], [3.55, 3.55], color=INK, linewidth=0.8)
        for x, name in enumerate(names):
            axes.text(left + 1.05 * x, 3.75, name, color="#777777", size="small")
        for y, (*values, diff) in zip((2.85, 1.95, 1.05), rows):
            color = {"": INK, "-1": LESS, "+1": MORE}[diff]
            for x, value in enumerate(values):
                axes.text(left + 0.05 + 1.05 * x, y, value, color=color)
            axes.text(left + width + 0.05, y, diff, color=color, weight="bold")
            if diff == "-1":
                axes.plot([left, left + width - 0.2], [y + 0.15] * 2, color=LESS, linewidth=1)
    axes.text(5.5, 2.25, "JOIN customers\nGROUP BY region", ha="center", va="center",
              bbox={"boxstyle": "round,pad=0.5", "facecolor": OPEN, "edgecolor": "none"})
    for begin, end in ((3.85, 4.25), (6.75, 7.15)):
        axes.annotate("", (end, 2.1), (begin, 2.1), arrowprops={"arrowstyle": "->", "color": INK})
    axes.text(0.1, 0.25, "one deleted row", color=LESS, size="small")
    axes.text(7.3, 0.25, "two updates; south is not read", color=MORE, size="small")
    return figure


def times() -> plt.Figure:
    """Times of two fields: two incomparable ones, and the times that are not before either."""
    figure, axes = plt.subplots(figsize=(4.4, 2.8))
    for (a, b), color in ((LEFT, LESS), (RIGHT, MORE)):
        axes.fill_between([a, WIDTH + 0.5], b, HEIGHT + 0.5, color=color, alpha=0.13, linewidth=0)
    for a in range(WIDTH + 1):
        for b in range(HEIGHT + 1):
            axes.plot(a, b, ".", color=INK, markersize=3)
    for (a, b), color, name in (
        (LEFT, LESS, "an update"), (RIGHT, MORE, "an update"), (BOUND, INK, "their result"),
    ):
        axes.plot(a, b, "o", color=color, markersize=9)
        axes.text(a + 0.18, b + 0.15, f"({a}, {b}) {name}", color=color)
    axes.set(xlim=(-0.5, WIDTH + 0.5), ylim=(-0.5, HEIGHT + 0.5), xlabel="a", ylabel="b",
             xticks=range(WIDTH + 1), yticks=range(HEIGHT + 1))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def updates() -> plt.Figure:
    """Three records over six times: their updates, and how many copies there are between them."""
    figure, axes = plt.subplots(figsize=(5.2, 2.4))
    records = list(dict.fromkeys(record for record, _, _ in UPDATES))
    for y, record in enumerate(reversed(records)):
        changes = [(time, diff) for name, time, diff in UPDATES if name == record]
        copies = 0
        for (time, diff), (end, _) in zip(changes, [*changes[1:], (END, 0)]):
            copies += diff
            if copies:
                axes.plot([time, end], [y, y], color=INK, linewidth=2 * copies, alpha=0.35,
                          solid_capstyle="butt")
                axes.text((time + end) / 2, y + 0.14, f"{copies}", ha="center")
            axes.plot(time, y, "o", color=MORE if diff > 0 else LESS, markersize=9)
            axes.text(time, y - 0.36, f"{diff:+d}", ha="center", color=MORE if diff > 0 else LESS)
    axes.set(xlim=(-0.5, END), ylim=(-0.7, len(records) - 0.5), xlabel="time",
             xticks=range(END), yticks=range(len(records)))
    axes.set_yticklabels(reversed(records))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def frontier() -> plt.Figure:
    """Times of two fields: those beyond the frontier, where updates may come, and the others."""
    antichain = Antichain(FRONTIER)
    figure, axes = plt.subplots(figsize=(4.4, 3.2))
    for a, b in FRONTIER:
        axes.fill_between([a - 0.5, WIDTH + 0.5], b - 0.5, HEIGHT + 0.5, color=OPEN, linewidth=0)
    for a in range(WIDTH + 1):
        for b in range(HEIGHT + 1):
            is_open = antichain.less_equal((a, b))
            axes.plot(a, b, "s" if (a, b) in FRONTIER else "o", color=LESS if is_open else MORE,
                      fillstyle="none" if is_open else "full",
                      markersize=10 if (a, b) in FRONTIER else 6)
    for a, b in FRONTIER:
        axes.text(a + 0.18, b + 0.18, f"({a}, {b})", color=LESS)
    axes.set(xlim=(-0.5, WIDTH + 0.5), ylim=(-0.5, HEIGHT + 0.5), xlabel="a", ylabel="b",
             xticks=range(WIDTH + 1), yticks=range(HEIGHT + 1))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    for draw in change, updates, times, frontier:
        with plt.rc_context(SETTINGS):
            figure = draw()
            figure.tight_layout()
            # Without a date, so that the same picture is the same file.
            figure.savefig(FOLDER / f"{draw.__name__}.svg", metadata={"Date": None})

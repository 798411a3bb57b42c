"""Writes tests/algebra_cases.json: the cases that all implementations of the algebra of times run.

    python tests/algebra_cases.py

They are `pyspark_diff/times.py`, the columns of `pyspark_diff/kernels/`, and `scala-bridge/`. The
expected results are computed here from the definitions, by enumeration and without their code.
"""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
LEAST, MOST = -(1 << 63), (1 << 63) - 1
#: Small ones meet often; the ends are where a sum or a difference would overflow.
VALUES = [0, 0, 1, 1, 2, 3, 3, 5, 8]
ENDS = [LEAST, LEAST + 1, -1, 0, 1, MOST - 1, MOST]

Time = tuple[int, ...]


def less_equal(a: Time, b: Time) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def join(a: Time, b: Time) -> Time:
    return tuple(map(max, a, b))


def meet(a: Time, b: Time) -> Time:
    return tuple(map(min, a, b))


def minimal(times: set[Time]) -> list[Time]:
    return sorted(t for t in times if not any(less_equal(s, t) and s != t for s in times))


def beyond(frontier: list[Time], t: Time) -> bool:
    return any(less_equal(f, t) for f in frontier)


def closure(recorded: list[Time], new: list[Time]) -> list[Time]:
    """The joins of all sets of times that have a new one among them."""
    joins = set()
    for size in range(1, len(recorded) + len(new) + 1):
        for some in combinations(recorded + new, size):
            if set(some) & set(new):
                least = some[0]
                for t in some[1:]:
                    least = join(least, t)
                joins.add(least)
    return sorted(joins)


def time(rng: random.Random, width: int) -> Time:
    values = VALUES if rng.random() < 0.8 else ENDS
    return tuple(rng.choice(values) for _ in range(width))


def antichain(rng: random.Random, width: int) -> list[Time]:
    return minimal({time(rng, width) for _ in range(rng.choice([0, 1, 1, 2, 3, 4]))})


def cases(rng: random.Random) -> dict[str, list[object]]:
    widths = [1, 2, 3, 4]
    examples: dict[str, list[object]] = {name: [] for name in (
        "times", "moves", "antichains", "frontiers", "outstanding", "closures",
    )}
    for width in widths * 12:
        a, b = time(rng, width), time(rng, width)
        examples["times"].append({
            "a": a, "b": b, "less_equal": less_equal(a, b), "join": join(a, b), "meet": meet(a, b),
        })
    for width in widths * 3:
        t = tuple(rng.choice(VALUES) for _ in range(width))
        examples["moves"].append({
            "t": t, "enter": (*t, 0), "leave": t[:-1], "step": (*t[:-1], t[-1] + 1),
        })
    for width in widths * 8:
        times = [time(rng, width) for _ in range(rng.randrange(7))]
        elements, t = minimal(set(times)), time(rng, width)
        examples["antichains"].append({
            "times": times, "elements": elements, "t": t, "less_equal": beyond(elements, t),
            "less_than": any(less_equal(f, t) and f != t for f in elements),
        })
    for width in widths * 10:
        f, g = antichain(rng, width), antichain(rng, width)
        examples["frontiers"].append({
            "f": f, "g": g, "precedes": all(beyond(f, t) for t in g),
            "meet": minimal({*f, *g}), "join": minimal({join(s, t) for s in f for t in g}),
        })
    for width in widths * 4:
        net: dict[Time, int] = {}
        rounds, before = [], []
        for _ in range(6):
            # Times come again, so that holds are released; also before they are taken.
            changes = [(rng.choice([time(rng, width), *net]), rng.choice([-2, -1, 1, 1, 2]))
                       for _ in range(rng.randrange(4))]
            for t, change in changes:
                net[t] = net.get(t, 0) + change
            now = minimal({t for t, n in net.items() if n > 0})
            rounds.append({
                "changes": changes, "frontier": now,
                "gone": [t for t in before if t not in now],
                "come": [t for t in now if t not in before],
            })
            before = now
        examples["outstanding"].append(rounds)
    for width in [1, 2, 2, 3, 3, 3] * 4:
        all_times = list({tuple(rng.choice(VALUES) for _ in range(width)) for _ in range(5)})
        new = all_times[: rng.randrange(1, 3)]
        recorded = all_times[len(new):]
        examples["closures"].append({
            "recorded": recorded, "new": new, "due": closure(recorded, new),
        })
    # (3, 3) is no join of a pair with (1, 1).
    examples["closures"].append({
        "recorded": [(3, 0), (0, 3)], "new": [(1, 1)],
        "due": closure([(3, 0), (0, 3)], [(1, 1)]),
    })
    return examples


def main() -> None:
    groups = cases(random.Random(15))
    lines = (
        f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in listed) + "\n]"
        for name, listed in groups.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

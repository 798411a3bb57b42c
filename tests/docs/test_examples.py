"""The examples print correct answers, in this process and in the processes of users.

The slow tests start examples with python and with spark-submit.
"""

import importlib
import io
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import networkx as nx
import pyspark
import pytest
from connect_server import no_client
from tqdm import tqdm

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.classic_only("the examples are programs that spark-submit starts")
#: Seconds after which an example hangs; a slow machine may take minutes for it.
HANGS = 1800


def run(*command, cwd, text=None):
    environment = {
        **no_client(os.environ), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable
    }
    done = subprocess.run(
        command, cwd=cwd, env=environment, input=text, capture_output=True, text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def updates(text):
    """Parse lines such as ``(2, 1) 5 -1`` into the sum of diffs by record and time."""
    sums = {}
    for degree, count, time, diff in re.findall(r"\((\d+), (\d+)\) (\d+) ([+-]\d+)", text):
        key = (int(degree), int(count), int(time))
        sums[key] = sums.get(key, 0) + int(diff)
    return {key: diff for key, diff in sums.items() if diff}


@pytest.fixture
def example(spark, tmp_path, monkeypatch, capsys):
    """Run the `main` of an example in this process, and return its output.

    The example uses the session of the tests: a new Spark costs ten seconds.
    """
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)

    def call(name, *arguments):
        module = importlib.import_module(name)
        module.main([str(argument) for argument in arguments])
        return capsys.readouterr().out

    return call


@pytest.fixture
def edge_list(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("from,to\n1,2\n1,3\n2,3\n3,1\n")
    return str(path)


def test_degrees_shows_every_update_and_batches_change_nothing(example, tmp_path):
    graph = ("--nodes", 6, "--edges", 12, "--rounds", 6)
    single = example("degrees", *graph, "--batch", 1)
    whole = example("degrees", *graph, "--batch", 6)
    assert updates(single) == updates(whole)
    assert (tmp_path / "degrees.png").stat().st_size > 5000
    # At the end the degrees of the nodes also add up to 12 edges.
    end = single.split("at the end:")[1]
    rows = re.findall(r"^\s+(\d+)\s+(\d+)$", end, flags=re.MULTILINE)
    assert sum(int(degree) * int(count) for degree, count in rows) == 12


@pytest.mark.slow
def test_degrees_with_spark_submit_on_a_file(tmp_path, edge_list):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    script = str(ROOT / "examples" / "degrees.py")
    out = run(submit, "--master", "local[2]", script, "--input", edge_list, "--rounds", "0",
              cwd=tmp_path)
    assert updates(out) == {(2, 1, 0): 1, (1, 2, 0): 1}


@pytest.mark.slow
def test_degrees_with_progress_on_a_larger_graph(tmp_path):
    script = str(ROOT / "examples" / "degrees.py")
    out = run(sys.executable, script, "--nodes", "1000", "--edges", "5000", "--rounds", "2000",
              "--batch", "500", cwd=tmp_path)
    assert "loaded 5,000 edges" in out and "2,000 rounds" in out


@pytest.mark.parametrize("share", [30, pytest.param(1, marks=pytest.mark.slow)])
def test_flights_agree_with_plain_spark(example, monkeypatch, share):
    pytest.importorskip("matplotlib")
    module = importlib.import_module("degrees")
    flights = module.read_flights()
    assert len(flights) == 327_346
    # Every 30th flight has each day of the year and nearly all airports.
    monkeypatch.setattr(module, "read_flights", lambda: flights[::share])
    out = example("degrees", "--flights")
    assert f"{len(flights[::share]):,} flights" in out
    assert re.search(r"\b36\d days in ", out)
    assert out.count("agrees") == 5 and "DIFFERS" not in out
    assert "the same updates as in one go: yes" in out


def test_skip_level_shows_every_update_and_batches_change_nothing(example):
    company = ("--people", 20, "--changes", 19, "--check")
    single = example("skip_level", *company, "--batch", 1)
    whole = example("skip_level", *company)
    assert updates(single) == updates(whole)
    assert "20 pairs, the same" in single and "20 pairs, the same" in whole
    sums = updates(single)
    # Person 2 leaves 1 for 0, and with it 5, whom it manages.
    assert (sums[1, 5, 2], sums[0, 5, 2]) == (-1, 1)
    # Person 7 leaves 3, whom 1 manages, for 2.
    assert (sums[1, 7, 7], sums[0, 7, 7]) == (-1, 1)


@pytest.mark.slow
def test_skip_level_with_spark_submit(tmp_path):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    script = str(ROOT / "examples" / "skip_level.py")
    out = run(submit, "--master", "local[2]", script, "--people", "3", "--changes", "0",
              cwd=tmp_path)
    assert updates(out) == {(0, 0, 0): 1, (0, 1, 0): 1, (0, 2, 0): 1}


@pytest.mark.slow
def test_skip_level_with_progress_agrees_with_plain_spark(tmp_path):
    script = str(ROOT / "examples" / "skip_level.py")
    out = run(sys.executable, script, "--people", "5000", "--changes", "2000", "--batch", "500",
              "--check", cwd=tmp_path)
    assert "loaded 5,000 people" in out and "2,000 changes" in out and "4 batches" in out
    assert "5,000 pairs, the same" in out


@pytest.mark.slow
def test_skip_level_takes_changes_that_are_typed(tmp_path):
    script = str(ROOT / "examples" / "skip_level.py")
    lines = ["who 5", "move 5 1", "who 5", "add 8 5", "who 8", "remove 5", "who 8",
             # No wrong line may stop the example.
             "", "move", "move 5 1", "move x 1", "add 8 1", "remove -1", "jump 3", "who 8 9",
             f"move 8 {2**63}", "move 7 7", "quit", "move 1 1"]
    out = run(sys.executable, script, "--people", "8", "--interactive", cwd=tmp_path,
              text="\n".join(lines))
    assert updates(out) == {
        (1, 5, 3): -1, (0, 5, 3): 1, (1, 8, 6): 1, (1, 8, 9): -1, (0, 5, 9): -1,
        (1, 7, 12): -1, (7, 7, 12): 1,
    }
    answers = re.findall(r"^  (\w+) \([\d.]+ ms\)$", out, flags=re.MULTILINE)
    assert answers == ["1", "0", "1", "nobody"]
    assert out.count("updates in") == 4 and out.count("error:") == 8


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# a comment\n\n1 2\n 1\t3 0.5\n3 4\n#5 6\n4 1\n7 8\n")
    return path


SMALL_GRAPH = ("--nodes", 20, "--edges-count", 40, "--changes", 8, "--seed", 1)


def graphs_over_time(spark, *arguments):
    """Yield the graph at each time, with the load and the changes of the examples."""
    module = importlib.import_module("reachability")
    options = module.graph_parser("").parse_args([str(argument) for argument in arguments])
    loaded, changes = module.changing_graph(spark, options)
    edges = Counter(tuple(edge) for edge in loaded.collect())
    for rows in [[], *changes]:
        for *edge, _, diff in rows:
            edges[tuple(edge)] += diff
        yield nx.DiGraph((+edges).keys())


def at_changes(values):
    """Return each value that differs from the value before, with its time."""
    return [
        (*value, at) for at, value in enumerate(values) if at == 0 or value != values[at - 1]
    ]


def table(text, header):
    """Parse the rows of numbers below the header of a table."""
    rows = text.split(header + "\n")[1].splitlines()
    numbers = [tuple(map(int, row.replace(",", "").split())) for row in rows if row[-1].isdigit()]
    assert numbers
    return numbers


@pytest.mark.parametrize("batch", [None, 1])
def test_bfs_shows_the_updates_of_the_worked_history(example, batch):
    out = example("bfs", *(() if batch is None else ("--batch", batch)))
    assert f"(median of {4 if batch else 1})" in out
    assert out.endswith("""\
updates of the number of nodes at each distance:
  distance 0: +1 at 0
  distance 1: +1 at 0, +1 at 5, -1 at 11
  distance 2: +1 at 11
""")


@pytest.mark.slow
def test_bfs_with_spark_submit(tmp_path, text_file):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    script = str(ROOT / "examples" / "bfs.py")
    out = run(submit, "--master", "local[2]", script, "--edges", str(text_file), "--root", "1",
              "--changes", "1", cwd=tmp_path)
    assert "nodes:\n         1 at distance 0\n         2 at distance 1\n" in out


def test_bfs_of_a_graph(spark, example, text_file):
    out = example("bfs", "--edges", text_file, "--root", 1, "--changes", 0)
    loaded = re.findall(r"(\d+) at distance (\d+)", out.split("nodes at the end:")[0])
    assert loaded == [("1", "0"), ("2", "1"), ("1", "2")]
    out = example("bfs", *SMALL_GRAPH, "--batch", 3)
    shown = re.findall(r"(\d+) at distance (\d+)", out.split("nodes at the end:")[1])
    *_, last = graphs_over_time(spark, *SMALL_GRAPH)
    expected = Counter(nx.single_source_shortest_path_length(last, 0).values())
    assert {int(distance): int(nodes) for nodes, distance in shown} == expected


def test_reachability(spark, example, tmp_path, text_file):
    out = example("reachability", "--edges", text_file, "--roots", 3, 7, "--changes", 0)
    assert table(out, "reachable  from time") == [(6, 0)]
    picture = tmp_path / "reachable.png"
    out = example("reachability", *SMALL_GRAPH, "--batch", 3, "--picture", picture)
    numbers = [(len(nx.descendants(graph, 0) | {0}),)
               for graph in graphs_over_time(spark, *SMALL_GRAPH)]
    assert len(set(numbers)) > 1
    assert table(out, "reachable  from time") == at_changes(numbers)
    assert re.search(r"^reachability +\[0\] +\d+ +[\d.]+$", out, flags=re.MULTILINE)
    assert picture.stat().st_size > 5000


def test_iterations_are_shown_while_a_step_runs(example, monkeypatch, text_file):
    screen = io.StringIO()

    class Bar(tqdm):
        def __init__(self, **options):
            always = {"disable": False, "file": screen, "ncols": 80, "mininterval": 0}
            super().__init__(**{**options, **always})

    monkeypatch.setattr(importlib.import_module("reachability"), "tqdm", Bar)
    example("bfs", "--edges", text_file, "--root", 1, "--changes", 0)
    assert "\r1 iterations [" in screen.getvalue()
    assert re.search(r"\r3 iterations \[.*, changes=0\]", screen.getvalue())


def test_k_core(spark, example, tmp_path):
    picture = tmp_path / "core.png"
    out = example("k_core", *SMALL_GRAPH, "--batch", 3, "--picture", picture)
    cores = [
        nx.k_core(nx.Graph(edge for edge in graph.edges if edge[0] != edge[1]), 3)
        for graph in graphs_over_time(spark, *SMALL_GRAPH)
    ]
    sizes = [(core.number_of_edges(), core.number_of_nodes()) for core in cores]
    assert len(set(sizes)) > 1
    assert table(out, "    edges      nodes  from time") == at_changes(sizes)
    assert picture.stat().st_size > 5000


def test_components(spark, example, tmp_path):
    picture = tmp_path / "components.png"
    sparse = (*SMALL_GRAPH, "--edges-count", 14)
    out = example("components", *sparse, "--batch", 3, "--picture", picture)
    parts_over_time = [list(nx.weakly_connected_components(graph))
                       for graph in graphs_over_time(spark, *sparse)]
    sizes = [(len(parts), max(map(len, parts))) for parts in parts_over_time]
    assert len(set(sizes)) > 1
    header = "components  nodes of the largest  from time"
    assert table(out, header) == at_changes(sizes)
    assert picture.stat().st_size > 5000


def everyone_below(company):
    """Return the salaries and the number of all people below each manager, by recursion."""
    reports = {}
    for person, (manager, _) in company.items():
        reports.setdefault(manager, []).append(person)

    def add_up(person):
        parts = [(company[who][1], 1, *add_up(who)) for who in reports.get(person, ())]
        return sum(s + t for s, _, t, _ in parts), sum(n + m for _, n, _, m in parts)

    return {person: add_up(person) for person in company if person in reports}


@pytest.mark.parametrize("people, levels, changes, batch", [(12, 4, 6, 1), (170, 150, 3, 3)])
def test_org_chart_against_a_recursion(example, monkeypatch, people, levels, changes, batch):
    module = importlib.import_module("org_chart")
    monkeypatch.setattr(module, "SMALL", 1000)
    out = example("org_chart", "--nodes", people, "--levels", levels, "--changes", changes,
                  "--batch", batch)
    rows = re.findall(r"^  \((\d+), (\d+), (\d+)\) (\d+) ([+-]1)$", out, flags=re.MULTILINE)
    updates = [tuple(map(int, row)) for row in rows]
    company = module.random_company(people, levels, 0)
    now = dict(company)
    moves = 0
    for at, change in enumerate([[], *module.changed(company, changes, 0)]):
        for person, manager, salary, _, diff in change:
            if diff > 0:
                moves += now[person][0] != manager
                now[person] = (manager, salary)
        sums = Counter()
        for manager, total, heads, time, diff in updates:
            sums[manager, total, heads] += diff if time <= at else 0
        expected = {(manager, *below): 1 for manager, below in everyone_below(now).items()}
        assert {record: diff for record, diff in sums.items() if diff} == expected
    assert moves > 0


def test_org_chart_of_a_file(example, tmp_path):
    path = tmp_path / "company.txt"
    path.write_text("# manager person salary\n1 2 10\n2 3 20\n2 4 30\n5 6 7\n")
    out = example("org_chart", "--edges", path, "--changes", 0)
    assert "loaded 6 people" in out
    assert "  1 is above 3, who earn 60\n  5 is above 1, who earn 7\n" in out


def nights(example, folder, killed, *options, submit=()):
    """Run three nights of a job, kill the second, and return the outputs."""
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *submit,
               "--master", "local[2]", str(ROOT / "examples" / example)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    outputs = []
    for night in 0, 1, 2:
        done = subprocess.run(
            [*command, "--folder", str(folder), "--night", str(night), *options,
             *(killed if night == 1 else ())],
            cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=HANGS,
        )
        assert (done.returncode == 0) == (night != 1), done.stdout + done.stderr
        outputs.append(done.stdout)
    return outputs


@pytest.mark.slow
def test_a_graph_is_kept_over_three_nights(tmp_path):
    outputs = nights("nightly_graph.py", tmp_path / "graph", ["--killed"],
                     "--nodes", "60", "--edges", "50")
    assert "as a search finds them" in outputs[0] and "as a search finds them" in outputs[2]
    assert "NOT" not in "".join(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["committed", "merged"])
def test_a_view_of_delta_tables_is_kept_over_three_nights(tmp_path, when):
    folder = os.environ.get("DELTA_JARS") or Path(sys.prefix) / "delta"
    jars = sorted(map(str, Path(folder).glob("*.jar")))
    assert jars, "run ci/delta_jars"
    outputs = nights(
        "nightly_view.py", tmp_path / "shop", ["--killed", when], "--sales", "2000", submit=(
            "--jars", ",".join(jars),
            "--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
            "--conf", "spark.sql.catalog.spark_catalog="
            "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "--conf", "spark.databricks.delta.snapshotPartitions=1",
        ),
    )
    assert "as plain Spark" in outputs[0] and "as plain Spark" in outputs[2]
    assert "NOT" not in "".join(outputs)

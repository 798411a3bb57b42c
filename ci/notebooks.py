"""Runs the notebooks of examples/notebooks, and writes them as .ipynb with their outputs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "notebooks"
HEADER = "# Databricks notebook source\n"
SEPARATOR = "\n# COMMAND ----------\n"
MAGIC, TEXT = "# MAGIC", "# MAGIC %md"

#: The configuration of the kernels' Spark, with Delta and few log messages.
CONF = """\
spark.master local[2]
spark.jars {jars}
spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension
spark.sql.catalog.spark_catalog org.apache.spark.sql.delta.catalog.DeltaCatalog
spark.sql.warehouse.dir {folder}/warehouse
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.log.level ERROR
"""


def cells(source: str) -> list[tuple[str, str]]:
    """Return the cells of a notebook in Databricks' form: kind (code or markdown) and text.

    Examples
    --------
    >>> cells(HEADER + "# MAGIC %md\\n# MAGIC # A title" + SEPARATOR + "x = 1\\n")
    [('markdown', '# A title'), ('code', 'x = 1')]
    """
    if not source.startswith(HEADER):
        raise ValueError(f"the first line of a notebook is {HEADER!r}, and not {source[:40]!r}")
    parsed = []
    for cell in source.removeprefix(HEADER).split(SEPARATOR):
        cell = cell.strip("\n")
        if cell.startswith(TEXT):
            lines = cell.splitlines()[1:]
            parsed.append(("markdown", "\n".join(line[len(MAGIC):].strip() for line in lines)))
        else:
            parsed.append(("code", cell))
    return parsed


def notebook(path: Path) -> Any:
    """Return the notebook before its run."""
    import nbformat

    document = nbformat.v4.new_notebook()
    for number, (kind, text) in enumerate(cells(path.read_text(encoding="utf-8"))):
        cell = (
            nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        )(text)
        cell["id"] = f"cell-{number}"  # or each run would draw another id
        document.cells.append(cell)
    return document


def run(path: Path) -> None:
    """Run a notebook in a separate kernel, and write it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    document = notebook(path)
    with tempfile.TemporaryDirectory() as folder:
        jars = ",".join(map(str, sorted(Path(os.environ["DELTA_JARS"]).glob("*.jar"))))
        Path(folder, "spark-defaults.conf").write_text(CONF.format(jars=jars, folder=folder))
        environment = {
            **os.environ, "SPARK_CONF_DIR": folder, "SPARK_LOCAL_DIRS": folder,
            "PYTHONPATH": str(ROOT), "PYSPARK_DIFF_SCHEMA": "default",
            "PYSPARK_DIFF_STORE": f"{folder}/store",
        }
        NotebookClient(
            document, timeout=600, kernel_name="python3", record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute(env=environment)
    document.metadata["language_info"] = {"name": "python"}  # without a version
    for cell in document.cells:
        # Spark's messages about the machine are no part of the notebook.
        if cell.cell_type == "code":
            cell.outputs = [
                output for output in cell.outputs
                if not (output.output_type == "stream" and output.name == "stderr")
            ]
    nbformat.write(document, path.with_suffix(".ipynb"))
    print(f"{path.with_suffix('.ipynb').relative_to(ROOT)}: {len(document.cells)} cells")


def main(names: list[str]) -> None:
    for name in names or sorted(path.stem for path in FOLDER.glob("*.py")):
        run(FOLDER / f"{name}.py")


if __name__ == "__main__":
    main(sys.argv[1:])

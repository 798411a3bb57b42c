"""Delta tables with features that need another service, or another version of Delta.

    a source:  the rows of the table, or an error that names the feature
    a sink:    the rows of the collection, or an error that names it, and nothing was written

No such service is here: each test writes a commit of the features into the log of a table.
"""

from __future__ import annotations

import json

import delta_session
import pytest

from pyspark_diff import Dataflow, SinkError, SourceError
from pyspark_diff.sinks import delta_append, delta_merge
from pyspark_diff.sources import delta

spark, reads_files = delta_session.spark, delta_session.reads_files
FEED = {"delta.enableChangeDataFeed": "true"}
CLOCK = {"delta.enableInCommitTimestamps": "true"}
REDIRECT = json.dumps({
    "type": "PathBasedRedirect", "state": "REDIRECT-READY",
    "spec": json.dumps({"sourcePath": "/nowhere", "destPath": "/elsewhere"}),
})
#: By feature of readers or of writers: further features and properties, and parts of the messages
#: of a source and of sinks, if they are refused.
FEATURES = {
    "reader newReader": ((), {}, "read.*newReader", "newReader"),
    "writer newWriter": ((), {}, None, "newWriter"),
    "reader redirectReaderWriter-preview": (
        (), {"delta.redirectReaderWriter-preview": REDIRECT},
        "redirects its readers and writers to /elsewhere .*redirectReader",
        "redirects its readers and writers to /elsewhere .*redirectReader"),
    "writer redirectWriterOnly-preview": (
        (), {"delta.redirectWriterOnly-preview": REDIRECT}, None,
        "redirects its writers to /elsewhere .*redirectWriterOnly"),
    "writer coordinatedCommits-preview": (
        ("inCommitTimestamp",),
        {**CLOCK, "delta.coordinatedCommits.commitCoordinator-preview": "nowhere",
         "delta.coordinatedCommits.commitCoordinatorConf-preview": "{}"},
        "coordinated commits", "coordinated commits"),
    # A catalog-managed table has vacuumProtocolCheck too.
    "reader catalogManaged": (("inCommitTimestamp",), CLOCK, "vacuumProtocol", "vacuumProtocol"),
    "reader catalogManaged complete": (
        ("inCommitTimestamp", "vacuumProtocolCheck"), CLOCK,
        "Catalog-Managed table", "Catalog-Managed table"),
    "reader catalogOwned-preview": (
        ("inCommitTimestamp", "vacuumProtocolCheck"), CLOCK, "catalogOwned", "catalogOwned"),
}
#: Further features that readers need too.
READERS = {"vacuumProtocolCheck"}


def give(folder, name):
    """Add a commit with the protocol and the properties of a feature to the log of a table."""
    further, properties, _, _ = FEATURES[name]
    kind, feature = name.split()[:2]
    commits = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in commits for line in file.read_text().splitlines()]
    protocol = [action["protocol"] for action in actions if "protocol" in action][-1]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    metadata["configuration"] |= properties
    readers = {*protocol.get("readerFeatures", ()), *([feature] if kind == "reader" else []),
               *READERS.intersection(further)}
    writers = protocol.get("writerFeatures", ["appendOnly", "changeDataFeed", "invariants"])
    protocol = {
        "minReaderVersion": 3 if readers else 1, "minWriterVersion": 7,
        **({"readerFeatures": sorted(readers)} if readers else {}),
        "writerFeatures": sorted({*writers, *readers, feature, *further}),
    }
    now = 1_900_000_000_000
    info = {
        "timestamp": now, "inCommitTimestamp": now, "operation": "SET TBLPROPERTIES",
        "operationParameters": {}, "txnId": "0",
    }
    commit = [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]
    path = folder / "_delta_log" / f"{len(commits):020d}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in commit))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_features_of_other_services(spark, tmp_path, reads_files, name):
    *_, read, written = FEATURES[name]
    folder, merged, log = (tmp_path / part for part in ("t", "kept", "log"))
    table = f"delta.`{folder}`"
    spark.sql(f"CREATE TABLE {table} USING delta TBLPROPERTIES ({FEED_SQL}) AS SELECT 1 AS id")
    source = delta(folder)
    source.columns(spark)
    offset = source.read(spark, None).offset
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "id int")
        rows.sink("kept", delta_merge(merged, key="id", properties=FEED))
        rows.sink("log", delta_append(log))
        feed.insert([(1,), (2,)])
        flow.advance_to(1)
        for place in folder, merged, log:
            give(place, name)
        if read is None:
            reading = source.read(spark, offset)
            assert reading is None or not any(change[0].num_rows for change in reading.changes)
            assert delta(folder).columns(spark).names == ["id"]
        else:
            for reader in source, delta(folder, on_gap="snapshot"):
                with pytest.raises(SourceError, match=f"(?s){read}.*Start Spark with "):
                    reader.columns(spark)
                    reader.read(spark, offset)
        feed.insert([(3,)])
        with pytest.raises(SinkError, match=f"(?s){written}") as raised:
            flow.advance_to(2)
        assert "Nothing of this epoch was written" in str(raised.value)
    if "complete" in name:
        assert "the catalog that manages it, and give its name" in str(raised.value)
    for place in merged, log:
        assert len(list((place / "_delta_log").glob("*.json"))) == 2


FEED_SQL = ", ".join(f"'{name}' = '{text}'" for name, text in FEED.items())

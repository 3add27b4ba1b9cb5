"""Readers in a sink's URI: what they let the sink use, and what that costs."""

import pytest

from agent.errors import SinkUriError
from agent.sinks import notices_of, open_sink
from agent.sinks.delta.options import DeltaOptions
from reactor.records.changefeed import SinkMode


@pytest.mark.parametrize(
    ("given", "takes_vectors"),
    [
        ({}, False),
        ({"deletion_vectors": "true"}, True),
        ({"readers": "duckdb"}, True),
        ({"readers": " duckdb, spark,,weir "}, True),
        ({"readers": "duckdb,trino"}, False),
        ({"readers": "duckdb", "deletion_vectors": "false"}, False),
        ({"readers": "duckdb", "deletion_vectors": "true"}, True),
    ],
)
def test_vectors_are_used_if_all_readers_read_them(given: dict[str, str], takes_vectors: bool) -> None:
    assert DeltaOptions.model_validate(given).takes_vectors is takes_vectors


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("delta+file:///lake?readers=oracle", "there is no reader 'oracle' of Delta tables; known are chdb, daft"),
        ("delta+file:///lake?readers=pyiceberg", "there is no reader 'pyiceberg' of Delta"),
        ("iceberg+file:///lake?readers=delta-rs", "there is no reader 'delta-rs' of Iceberg tables"),
        ("delta+file:///lake?readers=duckdb,trino&deletion_vectors=true", "trino does not read deletion vectors"),
    ],
)
def test_what_cannot_be_is_refused(uri: str, says: str) -> None:
    with pytest.raises(SinkUriError, match=says):
        open_sink(uri, changefeed="feed", mode=SinkMode.UPSERT)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("readers=duckdb,trino", "sink mode history needs deletion vectors, and trino does not read them"),
        ("deletion_vectors=false", "and deletion_vectors=false refuses them; use upsert, or Iceberg"),
    ],
)
def test_a_history_that_a_reader_cannot_read_is_refused(options: str, says: str) -> None:
    with pytest.raises(SinkUriError, match=says):
        open_sink(f"delta+file:///lake?{options}", changefeed="feed", mode=SinkMode.HISTORY)


@pytest.mark.parametrize(
    ("uri", "mode", "says"),
    [
        ("delta+file:///lake", SinkMode.UPSERT, ()),
        ("delta+file:///lake?readers=duckdb,spark", SinkMode.UPSERT, ("duckdb, spark read deletion vectors",)),
        ("delta+file:///lake?readers=duckdb,trino", SinkMode.UPSERT, ("because of trino: an update",)),
        ("delta+file:///lake?readers=duckdb&deletion_vectors=false", SinkMode.UPSERT, ("because of deletion_vec",)),
        ("delta+file:///lake?readers=trino", SinkMode.CHANGELOG, ()),
        ("iceberg+file:///lake?readers=trino,duckdb", SinkMode.UPSERT, ()),
        ("blackhole://", SinkMode.UPSERT, ()),
    ],
)
def test_the_user_is_shown_what_it_costs(uri: str, mode: SinkMode, says: tuple[str, ...]) -> None:
    found = notices_of(uri, mode)
    assert len(found) == len(says)
    assert all(text in notice for text, notice in zip(says, found, strict=True))

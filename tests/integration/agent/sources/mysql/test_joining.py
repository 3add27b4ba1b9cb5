"""Tables that a changed filter adds while nobody writes to the server."""

from pathlib import Path

import pytest

from capture.embedded import EmbeddedMariaDB
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.integration.agent.sources.mysql.binlog_rig import run
from tests.integration.agent.sources.mysql.log_rig import make_rig


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("last", ["INSERT INTO a VALUES (1)", "DROP TABLE c"], ids=["rows", "schema-change"])
async def test_a_table_joins_at_the_end_of_an_idle_servers_log(
    server: EmbeddedMariaDB, tmp_path: Path, last: str
) -> None:
    database = f"joins_{len(last)}"
    server.create_database(database)
    run(server, database, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abcd"))
    rig = make_rig(server, tmp_path, [f"{database}.a", f"{database}.c"])
    run(server, database, last)
    await rig.read()
    head = rig.head()

    await rig.join((database, "b"))
    joined = rig.ddl()[-1]
    assert [(one.kind, one.table and one.table.name) for one in joined.changes] == [(SchemaChangeKind.CREATE, "b")]
    assert head.resolved_ts - 1 <= joined.ts <= head.resolved_ts

    await rig.join((database, "d"))
    assert joined.ts - 1 in [record.ts for record in rig.ddl()], "it follows no other change"

    run(server, database, "INSERT INTO b VALUES (1)")
    await rig.read()
    assert len(rig.ddl()) == 2 + last.startswith("DROP")

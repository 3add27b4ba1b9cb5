"""The prover of a stream that is closed while it opens its session: nothing stays open."""

from unittest.mock import Mock

import pytest

from agent.errors import SourceUnreachableError
from agent.rows.arena import LogChunk
from agent.sources.postgres.publication.choosing import Wanted
from agent.sources.postgres.publication.prover import Prover
from reactor.ids import Ts


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("resolved_ts", [100, 101], ids=["idle", "moved"])
def test_a_session_that_is_opened_too_late_is_closed(end: str, resolved_ts: int) -> None:
    connection = Mock()

    def connect() -> Mock:
        getattr(prover, end)()
        return connection

    prover = Prover(
        connect,
        ("p",),
        {},
        at=Ts(100),
        proof="",
        wanted=Wanted(lambda *_: True, lambda _: True),
        sightings=Mock(),
        quiet=Mock(),
        joining={("public", "t")},
    )
    cut = LogChunk(None, 0, [], Ts(resolved_ts), Ts(resolved_ts), Ts(resolved_ts), 0.0, is_complete=True)
    with pytest.raises(SourceUnreachableError, match="the stream was closed"):
        prover.prove(cut)
    connection.close.assert_called_once()
    connection.query.assert_not_called()

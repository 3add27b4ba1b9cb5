"""Attachments: what belongs to a head's position lies in a file that was there before the head named it."""

from pathlib import Path

import pytest

from agent.errors import LogError, PositionLostError
from agent.log import attachments, retention
from agent.log.attachments import Attachment
from agent.log.retention import Needs
from agent.log.storage import LogDirectory
from reactor.ids import Ts
from reactor.records.log_head import LogHead


@pytest.fixture
def directory(tmp_path: Path) -> LogDirectory:
    return LogDirectory(str(tmp_path), changefeed="feed", source="main")


def test_what_is_written_is_read_again(directory: LogDirectory) -> None:
    written = Attachment.of("é" * 100_000, epoch=7)
    attachments.write(directory, written)
    assert attachments.read(directory, written.name) == written
    assert attachments.read(directory, "") == Attachment() == Attachment.of("", epoch=7)


def test_a_file_that_is_gone_or_another_one_is_not_taken(directory: LogDirectory, tmp_path: Path) -> None:
    written = Attachment.of("as it was", epoch=7)
    with pytest.raises(PositionLostError, match="lacks position-7-"):
        attachments.read(directory, written.name)
    attachments.write(directory, written)
    (tmp_path / "feed" / "main" / written.name).write_text("as it wa")
    with pytest.raises(LogError, match="damaged"):
        attachments.read(directory, written.name)


def test_only_the_one_that_the_head_names_stays(directory: LogDirectory) -> None:
    of = {epoch: Attachment.of(f"of {epoch}", epoch=epoch) for epoch in (3, 4, 5)}
    named = Attachment.of("the head's", epoch=4)
    for attachment in (*of.values(), named):
        attachments.write(directory, attachment)
    head = LogHead(epoch=4, attachment=named.name)
    removal = retention.plan(head, directory.entries(), Needs(Ts(0), 0), now=1e12)
    assert set(removal.names) == {of[3].name, of[4].name}  # that of a later writer is its own

"""Sink directory: whether this process can create files in it."""

import os
from pathlib import Path

from agent.errors import SinkConfigError


def refuse_unwritable(directory: Path) -> None:
    """Test whether files can be created in ``directory``, which need not exist; leaves nothing behind.

    :raises SinkConfigError: files cannot be created.
    """
    made: list[Path] = []
    try:
        for path in [*reversed(directory.parents), directory]:
            if not path.exists():
                path.mkdir()
                made.append(path)
        probe = directory / f".weir-probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise SinkConfigError(
            f"sink directory {str(directory)[:300]} is not writable ({error.strerror}); check its owner, or choose "
            "another directory"
        ) from error
    finally:
        for path in reversed(made):
            path.rmdir()

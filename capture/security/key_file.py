"""Key file: the cluster's secret keys, one per line, the newest last; two during a rotation."""

import contextlib
import os
import tempfile
from pathlib import Path

from cryptography.fernet import Fernet

from capture.errors import ConfigError
from reactor.files import read_bounded


def read_keys(path: Path) -> list[bytes]:
    """:raises ConfigError: the file cannot be read, or is empty."""
    try:
        keys = read_bounded(path).split()
    except OSError as error:
        raise ConfigError(
            f"cannot read the secret key file {path} ({error.strerror}); give --secret-key-file"
        ) from error
    if not keys:
        raise ConfigError(f"the secret key file {path} is empty; take the secret.key of one capture's data directory")
    return keys


def make_file(path: Path) -> None:
    """Create the file with a new key (0600), never replacing one that another capture has just written.

    :raises ConfigError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # 0600 from its first byte on
            _fill(file.fileno(), [new_key()])
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}); choose another --data-dir") from error


def add_key(path: Path) -> bytes:
    """Append a new key to the file atomically, and return it. Owner and permissions are kept.

    :raises ConfigError: the file cannot be read or written.
    """
    keys = [*read_keys(path), new_key()]
    try:
        known = path.stat()
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            os.fchown(descriptor, known.st_uid, known.st_gid)
            os.fchmod(descriptor, known.st_mode & 0o777)
            _fill(descriptor, keys)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}); run this as its owner") from error
    return keys[-1]


def new_key() -> bytes:
    return Fernet.generate_key()


def _fill(descriptor: int, keys: list[bytes]) -> None:
    os.write(descriptor, b"".join(key + b"\n" for key in keys))
    os.fsync(descriptor)

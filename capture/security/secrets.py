"""Secrets: passwords in URIs, masked for people, sealed for etcd, resolved for whoever connects.

A secret can be written into a URI, or named by reference: ``?password=env:NAME`` or ``?password=file:/path``.
References are stored as they are and looked up by the capture that connects, each time it does. What is stored is
encrypted (Fernet) with a key that all captures of a cluster share.
"""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from cryptography.fernet import Fernet, InvalidToken

from capture.errors import ConfigError
from reactor.records.changefeed import SealedUri

MASK = "***"
_SECRET_PARAMETER = re.compile(
    r"pass(word|wd)?$|secret|token|credential|(access|private|account|api|sasl)[-_.]?key", re.I
)
# For text that holds URIs: the password of the user part, up to the last @ before the path; then secret parameters.
_USERINFO = re.compile(r"([a-zA-Z][\w+.-]*://[^\s/?#:@]*):[^\s/?#]*@")
_PARAMETER = re.compile(r"([?&]([\w.-]+)=)([^&\s#'\"]+)")
_REFERENCE = re.compile(r"^(env|file):(.+)$")


def mask(text: str) -> str:
    """``text`` with the passwords of every URI in it replaced; works on malformed URIs and on whole sentences."""
    return _PARAMETER.sub(_masked_parameter, _USERINFO.sub(rf"\1:{MASK}@", text))


def _masked_parameter(match: re.Match[str]) -> str:
    is_secret = _SECRET_PARAMETER.search(match[2]) and not _REFERENCE.match(unquote(match[3]))
    return f"{match[1]}{MASK}" if is_secret else match[0]


def resolve(uri: str) -> str:
    """``uri`` with references replaced by what they name; a ``password`` parameter moves to the user part.

    :raises ConfigError: a reference names nothing; the text has the name, never a value.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise ConfigError("a URI is malformed; write scheme://user:password@host:port/…, an IPv6 host in [ ]") from None
    if not parts.query:
        return uri
    parameters = [(name, looked_up(value)) for name, value in parse_qsl(parts.query, keep_blank_values=True)]
    if parts.username:
        password = next((value for name, value in parameters if name == "password"), None)
        parameters = [pair for pair in parameters if pair[0] != "password"]
        parts = _with_password(parts, password) if password is not None else parts
    return urlunsplit(parts._replace(query=urlencode(parameters, quote_via=quote, safe="/:,*")))


def looked_up(value: str) -> str:
    """``value``, or what it refers to.

    :raises ConfigError: a reference names nothing.
    """
    match = _REFERENCE.match(value)
    if match is None:
        return value
    kind, name = match.groups()
    if kind == "env":
        if name not in os.environ:
            raise ConfigError(f"the variable {name} is not set; set it for every capture, or name another (env:NAME)")
        return os.environ[name]
    try:
        return Path(name).read_text().rstrip("\r\n")
    except OSError as error:
        raise ConfigError(
            f"cannot read the secret file {name} ({error.strerror}); it must exist on every capture"
        ) from None


def _with_password(parts: SplitResult, password: str) -> SplitResult:
    userinfo, _, host = parts.netloc.rpartition("@")
    user = userinfo.partition(":")[0]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}")


class Keeper:
    """Seals URIs with the cluster's key, and opens them."""

    def __init__(self, key: bytes) -> None:
        try:
            self._fernet = Fernet(key)
        except ValueError as error:
            raise ConfigError(
                "the secret key is not a Fernet key; take the secret.key of one capture's data directory"
            ) from error

    @classmethod
    def from_file(cls, path: Path) -> "Keeper":
        """:raises ConfigError: the file cannot be read, or holds no key."""
        try:
            return cls(path.read_bytes().strip())
        except OSError as error:
            raise ConfigError(
                f"cannot read the secret key file {path} ({error.strerror}); give --secret-key-file"
            ) from error

    @classmethod
    def from_own_file(cls, path: Path) -> "Keeper":
        """As ``from_file``, but the file is made (0600) when it is not there: for a cluster of one machine."""
        if not path.exists():
            try:
                _write_new(path, new_key())
            except OSError as error:
                raise ConfigError(f"cannot write {path} ({error.strerror}); choose another --data-dir") from error
        return cls.from_file(path)

    def seal(self, uri: str) -> SealedUri:
        return SealedUri(masked=mask(uri), sealed=self._fernet.encrypt(uri.encode()).decode())

    def open(self, sealed: SealedUri) -> str:
        """The URI as it was given; references are not resolved.

        :raises ConfigError: it was sealed with another key.
        """
        try:
            return self._fernet.decrypt(sealed.sealed.encode()).decode()
        except InvalidToken:
            raise ConfigError(
                f"{sealed.masked} was sealed with another key; give every capture the same --secret-key-file"
            ) from None

    def connectable(self, sealed: SealedUri) -> str:
        """The URI to connect with: opened, references resolved. Never log it, never store it."""
        return resolve(self.open(sealed))


def new_key() -> bytes:
    return Fernet.generate_key()


def _write_new(path: Path, content: bytes) -> None:
    """Whole or not at all, and never over a file that another capture has just written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # 0600 from its first byte on
        file.write(content)
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)

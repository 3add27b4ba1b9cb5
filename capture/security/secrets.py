"""Secrets: passwords in URIs: masked for people, sealed for etcd, resolved for connecting.

A secret can be written into a URI, or named by reference: ``?password=env:NAME`` or ``?password=file:/path``.
References are stored as they are and resolved by the connecting capture, each time. Stored secrets are encrypted
(Fernet) with a key that all captures of a cluster share.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agent.references import is_pem
from capture.errors import CaptureFaultError, ConfigError
from capture.security import key_file
from capture.security.reach import LookUp, look_up_freely
from reactor.records.changefeed import SealedUri

MASK = "***"
#: names of parameters whose values are secret, or may hold a secret
_SECRET_PARAMETER = re.compile(
    r"pass(word|wd|phrase)?$|pwd$|secret|token|credential|bearer|auth|signature|key|connection[-_.]?string"
    r"|(^|[-_.])(sas|sig)($|[-_.])|^headers?[-_.]",
    re.I,
)
# for text that contains URIs: the password of the user part, up to the last @ of the word, since @, /, ? and # in it
# may be unescaped; then secret parameters. Placeholders in error texts are kept
_USERINFO = re.compile(r"((?<![\w+.-])[\w+.-]+://(?!user:password@)[^/?#:]*):.*@", re.DOTALL)
_WORD = re.compile(r"\S+")
# a quote ends a value only where the text that quotes it continues
_PARAMETER = re.compile(r"([?&]([\w.%-]+)=)((?:[^&\s#'\"]|['\"](?=[^\s,;.)\]}]))+)")
_REFERENCE = re.compile(r"^(env|file):(.+)$")


def mask_uri(uri: str) -> str:
    """Return a URI for display: without its password, and without parameters whose values may be secret.

    Unlike a text that contains URIs it is known where this one ends: blanks and quotes are parts of it.
    """
    scheme, mark, rest = uri.partition("://")
    userinfo, at, place = rest.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    if mark and at and colon and not {"/", "?", "#"} & set(user):
        uri = f"{scheme}://{user}:{MASK}@{place}"
    base, question, query = uri.partition("?")
    return base + question + "&".join(map(_shown_parameter, query.split("&")))


def _shown_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    plain = unquote(value)
    if _REFERENCE.fullmatch(plain):
        return parameter
    is_secret = _SECRET_PARAMETER.search(unquote(name)) or is_pem(plain) or mask(plain) != plain
    return f"{name}{equals}{MASK}" if equals and value and is_secret else parameter


def mask(text: str) -> str:
    """Return ``text`` with the passwords of every URI in it replaced; works on malformed URIs and on whole sentences.

    Its time is proportional to the text's length, whatever the text: everything that is logged passes through here.
    """
    return _PARAMETER.sub(_masked_parameter, _WORD.sub(_masked_word, text) if "@" in text else text)


def _masked_word(match: re.Match[str]) -> str:
    word = match[0]
    end = word.rfind("@") + 1
    return _USERINFO.sub(rf"\1:{MASK}@", word[:end]) + word[end:] if end and "://" in word else word


def _masked_parameter(match: re.Match[str]) -> str:
    name, value = unquote(match[2]), unquote(match[3])
    is_secret = is_pem(value) or (_SECRET_PARAMETER.search(name) and not _REFERENCE.match(value))
    return f"{match[1]}{MASK}" if is_secret else match[0]


def resolve(uri: str, look_up: LookUp = look_up_freely) -> str:
    """Return ``uri`` with references resolved; a ``password`` parameter moves to the user part.

    ``look_up``: see ``capture.security.reach``, which decides what may be named.

    :raises ConfigError: a reference cannot be resolved; the text has the name, never a value.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise ConfigError("a URI is malformed; write scheme://user:password@host:port/…, an IPv6 host in [ ]") from None
    if not parts.query:
        return uri
    parameters = [(name, look_up(value)) for name, value in parse_qsl(parts.query, keep_blank_values=True)]
    if parts.username:
        password = next((value for name, value in parameters if name == "password"), None)
        parameters = [pair for pair in parameters if pair[0] != "password"]
        parts = _with_password(parts, password) if password is not None else parts
    return urlunsplit(parts._replace(query=urlencode(parameters, quote_via=quote, safe="/:,*")))


def with_password(uri: str, password: str) -> str:
    """:raises ConfigError: the URI names no user, or has a password."""
    parts = urlsplit(uri)
    if not parts.username or parts.password:
        raise ConfigError("the source URI must name a user, and no password beside the one that is given apart")
    return urlunsplit(_with_password(parts, password))


def _with_password(parts: SplitResult, password: str) -> SplitResult:
    userinfo, _, host = parts.netloc.rpartition("@")
    user = userinfo.partition(":")[0]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}")


class Keeper:
    """Seals URIs with one of the cluster's keys, and opens what any of them has sealed."""

    def __init__(self, *keys: bytes, path: Path | None = None) -> None:
        """``keys``: the newest last; the first one seals until ``use`` changes that. ``path``: their file."""
        self._path = path
        self._keys = _by_fingerprint(keys)
        self._sealing = next(iter(self._keys))

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All keys, the sealing one first; other keys are derived from them, never shown."""
        return tuple(sorted(self._keys.values(), key=lambda key: key != self._keys[self._sealing]))

    @property
    def fingerprint(self) -> str:
        """Identifies the sealing key without revealing it."""
        return self._sealing

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprints of all keys, the newest last."""
        return tuple(self._keys)

    @property
    def has_file(self) -> bool:
        return self._path is not None

    @classmethod
    def from_file(cls, path: Path) -> "Keeper":
        """:raises ConfigError: the file cannot be read, or contains no key."""
        return cls(*key_file.read_keys(path), path=path)

    @classmethod
    def from_own_file(cls, path: Path) -> "Keeper":
        """Like ``from_file``, but create the file (0600) if it is missing: for a cluster on one machine."""
        if not path.exists():
            key_file.make_file(path)
        return cls.from_file(path)

    def use(self, fingerprint: str) -> None:
        """Seal with this key from now on, if it is known."""
        if fingerprint in self._keys:
            self._sealing = fingerprint

    def read_again(self, needed: Collection[str] = ()) -> None:
        """Reload the file's keys. Keys that are ``needed`` are kept even if the file has lost them.

        :raises ConfigError: it has lost one, cannot be read, or contains no key; all other keys are loaded.
        """
        if self._path is None:
            return
        found = _by_fingerprint(key_file.read_keys(self._path))
        lost = {name: key for name, key in self._keys.items() if name in needed and name not in found}
        self._keys = lost | found
        if self._sealing not in self._keys:
            self._sealing = next(iter(self._keys))
        if lost:
            raise ConfigError(
                f"the secret key file {self._path} lacks the cluster's key {next(iter(lost))}; put it back"
            )

    def seal(self, uri: str) -> SealedUri:
        sealed = Fernet(self._keys[self._sealing]).encrypt(uri.encode())
        return SealedUri(masked=mask_uri(uri), sealed=sealed.decode())

    def open(self, sealed: SealedUri) -> str:
        """Return the URI as it was given; references are not resolved.

        :raises CaptureFaultError: it was sealed with another key.
        """
        try:
            return MultiFernet([Fernet(key) for key in self.keys]).decrypt(sealed.sealed.encode()).decode()
        except InvalidToken:
            raise CaptureFaultError(
                f"{sealed.masked} was sealed with another key; give every capture the same --secret-key-file"
            ) from None

    def sealed_again(self, sealed: SealedUri) -> SealedUri | None:
        """Return the URI sealed with the current key; None if it already is.

        :raises CaptureFaultError: none of the keys opens it.
        """
        try:
            Fernet(self._keys[self._sealing]).decrypt(sealed.sealed.encode())
        except InvalidToken:
            return self.seal(self.open(sealed))
        return None


def fingerprint_of(key: bytes) -> str:
    return HKDF(SHA256(), 8, salt=None, info=b"weir secret key fingerprint 1").derive(key).hex()


def _by_fingerprint(keys: Sequence[bytes]) -> dict[str, bytes]:
    """:raises ConfigError: one is invalid."""
    try:
        for key in keys:
            Fernet(key)
    except ValueError as error:
        raise ConfigError(
            "the secret key is not a Fernet key; take the secret.key of one capture's data directory"
        ) from error
    return {fingerprint_of(key): key for key in keys}

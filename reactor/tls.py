"""TLS key pairs: loaded without a question on the terminal, at which a server would wait for ever."""

import ssl
from pathlib import Path


def load_pair(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None) -> None:
    """:raises OSError: the files cannot be used, among them a key that is encrypted; ``ssl.SSLError`` is one."""

    def refuse() -> str:
        raise ssl.SSLError(f"the key in {key or certificate} has a passphrase; take it off with openssl pkey")

    context.load_cert_chain(certificate, key, password=refuse)

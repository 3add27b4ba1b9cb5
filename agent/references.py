"""References: what the values of a URI's options can name on the machine that reads them: variables and files."""

import re
from typing import Final

#: options that name a file which proves an identity: to an object store or who lets in there, or to a database
FILE_OPTIONS: Final = re.compile(
    r"token_file$|service_account(_path)?$|application_credentials$|^ssl[-_]?(cert|key)$", re.I
)


def reference_in(value: str) -> tuple[str, str]:
    """Return kind and name of the reference that an option's value is (``env:NAME``, ``file:/path``); empty if it is
    none."""
    kind, _, name = value.partition(":")
    return (kind, name) if name and kind in ("env", "file") else ("", "")


def is_pem(value: str) -> bool:
    """Return whether an option's value is a certificate or key itself, and no path of one."""
    return "-----BEGIN" in value


def is_local(option: str, value: str) -> bool:
    """Return whether the option names a variable or a file of the machine that reads it."""
    return bool(reference_in(value)[0]) or FILE_OPTIONS.search(option) is not None

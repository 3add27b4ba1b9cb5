"""SQL text: quotes names and values, since the simple query protocol has no parameters; reads texts of the server.

A database in ``SQL_ASCII`` may have any bytes in a name or a value. Those that are not UTF-8 are lone surrogates here,
which no other text has, and which nothing encodes by mistake.
"""


def text_of(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def bytes_of(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def shown(name: str) -> str:
    """Return the name as text, for people."""
    return bytes_of(name).decode(errors="backslashreplace")


def is_text(*names: str) -> bool:
    """Return whether the names are text in the server's encoding, UTF-8."""
    try:
        return all(name.isascii() or bool(name.encode()) for name in names)
    except UnicodeEncodeError:
        return False


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a string constant, in the ``E`` form only if it contains a backslash."""
    quoted = text.replace("'", "''")
    return f" E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{quoted}'"


def qualified(schema_name: str, name: str) -> str:
    return f"{identifier(schema_name)}.{identifier(name)}"


def output_text(expression: str) -> str:
    """Return an expression for the value's text by its type's output function, as in the stream and COPY; keeps NULL.

    ``format`` is the only function of all server versions that calls the output function of any type. It converts NULL
    to an empty string; and ``IS NULL`` is true for a composite value of only NULLs, unlike this condition.
    """
    return f"CASE WHEN {expression} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {expression}) END"

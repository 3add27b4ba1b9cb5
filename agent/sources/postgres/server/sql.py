"""SQL quoting: quotes names and values in SQL text, since the simple query protocol has no parameters."""


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

"""SQL quoting: writes names and values into SQL text, as the simple query protocol knows no parameters."""


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string constant. The ``E`` form is used only where a backslash asks for it."""
    quoted = text.replace("'", "''")
    return f" E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{quoted}'"


def qualified(schema_name: str, name: str) -> str:
    return f"{identifier(schema_name)}.{identifier(name)}"


def output_text(expression: str) -> str:
    """The value as its type's output function writes it, which the stream and COPY use; NULL where it is NULL.

    ``format`` alone of what every server has calls that function for any type. It makes an empty string of NULL; and
    ``IS NULL`` is true of a composite value of nothing but NULLs, which this test is not.
    """
    return f"CASE WHEN {expression} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {expression}) END"

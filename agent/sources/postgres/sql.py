"""Names and values inside SQL text: the simple query protocol knows no parameters."""


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string constant. The ``E`` form is used only where a backslash asks for it."""
    quoted = text.replace("'", "''")
    return f" E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{quoted}'"


def qualified(schema_name: str, name: str) -> str:
    return f"{identifier(schema_name)}.{identifier(name)}"

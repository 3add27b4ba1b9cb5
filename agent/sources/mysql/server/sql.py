"""SQL quoting: quotes names and values for sessions with an empty SQL mode (see ``connection``)."""


def identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def qualified(schema_name: str, name: str) -> str:
    return f"{identifier(schema_name)}.{identifier(name)}"

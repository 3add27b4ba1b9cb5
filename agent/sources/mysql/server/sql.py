"""SQL quoting: writes names and values into SQL text, for sessions whose SQL mode is empty (see ``connection``)."""


def identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def qualified(schema_name: str, name: str) -> str:
    return f"{identifier(schema_name)}.{identifier(name)}"
